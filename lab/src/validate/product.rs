//! Validation of products: the linear operation, and batches of matrix products.

use half::{bf16, f16};
use ndarray::{Array1, Array2, Axis, s};
use warpsmith::cpu::FromAccumulator;
use warpsmith::device::{Device, DeviceKind};
use warpsmith::error::{Error, Result};
use warpsmith::ops::linear::LinearTypes;
use warpsmith::ops::{self, Implementation};
use warpsmith::tensor::{DType, Element, Tensor};
use warpsmith::weights::FloatElement;

use super::Outcome;
use super::load::{Prepared, Step};
use super::outputs::{Bits, Outputs, Results};
use super::tally::Tally;
use crate::bound::{Arithmetic, ErrorModel, lost_near_zero};
use crate::cases::{Data, filled};
use crate::cases::{LinearCase, MatmulCase, Placement, Scales};
use crate::reference::{Reference, ReferenceTerms};

/// The streams of [`Data`] that the operands are drawn from.
const X_STREAM: u64 = 0;
const W_STREAM: u64 = 1;
const BIAS_STREAM: u64 = 2;
const RESIDUAL_STREAM: u64 = 3;
const ROW_SCALE_STREAM: u64 = 4;
const COLUMN_SCALE_STREAM: u64 = 5;

/// Runs one case on `device` and compares the result with the reference.
///
/// # Errors
///
/// [`Error::Type`] if there is no linear operation for the case's types, [`Error::SizeLimit`] or [`Error::OutOfMemory`] if
/// the host cannot hold its operands; otherwise whatever the operation returns.
pub fn linear(device: &Device, case: &LinearCase) -> Result<Outcome> {
    const OPERATION: &str = "validate::linear";
    case.check_sizes(OPERATION)?;
    let product = &MatmulCase::new(case.clone());
    dispatch(OPERATION, case, CheckRun { device, case: product, kind: Kind::Linear })
}

/// Runs one case on `device` and returns the bits of the result, row by row, to compare devices with each other.
///
/// # Errors
///
/// As [`linear`].
pub fn linear_bits(device: &Device, case: &LinearCase) -> Result<Vec<u32>> {
    const OPERATION: &str = "validate::linear_bits";
    case.check_sizes(OPERATION)?;
    let product = &MatmulCase::new(case.clone());
    dispatch(OPERATION, case, BitsRun { device, case: product, kind: Kind::Linear })
}

/// Runs a batch of matrix products on `device` and compares the results with the reference.
///
/// # Errors
///
/// As [`linear`], and [`Error::Argument`] if the case's batches do not fit together.
pub fn matmul(device: &Device, case: &MatmulCase) -> Result<Outcome> {
    const OPERATION: &str = "validate::matmul";
    case.check_sizes(OPERATION)?;
    dispatch(OPERATION, &case.product, CheckRun { device, case, kind: Kind::Matmul })
}

/// Runs a batch of matrix products on `device` and returns the bits of the result, row by row, to compare devices with each other.
///
/// # Errors
///
/// As [`matmul`].
pub fn matmul_bits(device: &Device, case: &MatmulCase) -> Result<Vec<u32>> {
    const OPERATION: &str = "validate::matmul_bits";
    case.check_sizes(OPERATION)?;
    dispatch(OPERATION, &case.product, BitsRun { device, case, kind: Kind::Matmul })
}

/// Which operation a case is run with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Linear,
    Matmul,
}

/// Something to do with the types of a case.
trait TypedRun {
    type Output;

    fn run<T, O>(self) -> Result<Self::Output>
    where
        T: LinearTypes<O> + FloatElement,
        O: FloatElement + FromAccumulator<f32> + Bits;
}

fn dispatch<R: TypedRun>(operation: &'static str, case: &LinearCase, run: R) -> Result<R::Output> {
    match (case.input, case.output) {
        (DType::F16, DType::F16) => run.run::<f16, f16>(),
        (DType::F16, DType::F32) => run.run::<f16, f32>(),
        (DType::Bf16, DType::Bf16) => run.run::<bf16, bf16>(),
        (DType::Bf16, DType::F32) => run.run::<bf16, f32>(),
        (DType::F32, DType::F32) => run.run::<f32, f32>(),
        (DType::F16 | DType::Bf16 | DType::F32, output) => Err(Error::Type {
            operation,
            operand: "y",
            expected: format!("{} or f32", case.input),
            actual: output,
        }),
        (input, _) => {
            Err(Error::Type { operation, operand: "x", expected: "f16, bf16 or f32".into(), actual: input })
        }
    }
}

/// The operands of a case on the host: matrices one below the other.
struct Operands<T, O> {
    x: Array2<T>,
    w: Array2<T>,
    bias: Option<Array1<T>>,
    residual: Option<Array2<O>>,
    row_scale: Option<Array1<f32>>,
    column_scale: Option<Array1<f32>>,
}

impl<T: FloatElement, O: FloatElement> Operands<T, O> {
    fn draw(case: &MatmulCase) -> Result<Self> {
        let LinearCase { m, k, n, data, seed, terms, .. } = case.product;
        let round: fn(f32) -> T = |value| T::round(value.into());
        let round_output: fn(f32) -> O = |value| O::round(value.into());
        let row = |drawn: Array2<f32>| drawn.remove_axis(Axis(0));
        let bias = case.product.bias.then(|| data.draw(seed, BIAS_STREAM, (1, n), k, round)).transpose()?;
        let rows = case.matrices() * m;
        let residual = (terms.beta != 0.0)
            .then(|| data.draw(seed, RESIDUAL_STREAM, (rows, n), k, round_output))
            .transpose()?;
        // Integers times 1 or −1 are exact.
        let sign: fn(f32) -> f32 = |value| if value < 0.0 { -1.0 } else { 1.0 };
        let itself: fn(f32) -> f32 = |value| value;
        let convert = if data == Data::Integers { sign } else { itself };
        let scale = |scales: Scales, stream: u64, each: usize| {
            let count = match scales {
                Scales::None => return Ok(None),
                Scales::One => 1,
                Scales::Each => each,
            };
            // Factors of all sums of a row or column are finite.
            let data = if data == Data::Integers { data } else { Data::Uniform };
            data.draw(seed, stream, (1, count), k, convert).map(|drawn| Some(row(drawn)))
        };
        Ok(Self {
            x: data.draw(seed, X_STREAM, (case.batch[0] * m, k), k, round)?,
            w: data.draw(seed, W_STREAM, (case.batch[1] * n, k), k, round)?,
            bias: bias.map(|bias| bias.remove_axis(Axis(0))),
            residual,
            row_scale: scale(terms.row_scale, ROW_SCALE_STREAM, m)?,
            column_scale: scale(terms.column_scale, COLUMN_SCALE_STREAM, n)?,
        })
    }
}

/// How an operand's matrices are given to the operation.
#[derive(Clone, Copy)]
pub(super) struct Stored {
    /// How many there are, and of how many rows each.
    pub(super) batch: usize,
    pub(super) rows: usize,
    /// Whether there is an axis for the batch.
    pub(super) batch_axis: bool,
    /// Whether each is stored with its axes exchanged, and whether a view exchanges them back.
    pub(super) across: bool,
    pub(super) turned_back: bool,
    pub(super) placement: Placement,
}

/// Copies matrices, one below the other, to the device, each as columns of a larger one that is filled with NaNs.
pub(super) fn place<T: FloatElement>(
    device: &Device,
    matrices: &Array2<T>,
    stored: Stored,
) -> Result<Tensor<T>> {
    let Stored { batch, rows, batch_axis, across, turned_back, placement } = stored;
    let columns = matrices.ncols();
    let matrix = |index: usize| matrices.slice(s![index * rows..(index + 1) * rows, ..]);
    let (height, width) = if across { (columns, rows) } else { (rows, columns) };
    let inside = placement.before..placement.before + width;
    let mut all = filled((batch * height, inside.end + placement.after), T::round(f64::NAN))?;
    for index in 0..batch {
        let mut target = all.slice_mut(s![index * height..(index + 1) * height, inside.clone()]);
        if across { target.assign(&matrix(index).t()) } else { target.assign(&matrix(index)) }
    }
    let tensor = Tensor::from_array(device, &all)?;
    let tensor = if batch_axis { tensor.reshape([batch, height, all.ncols()])? } else { tensor };
    let rank = tensor.rank();
    let tensor = tensor.slice(rank - 1, inside)?;
    if across && turned_back { tensor.swap_axes(rank - 2, rank - 1) } else { Ok(tensor) }
}

/// The operands of a case on its device, in the default stream's order.
struct Uploaded<T: Element> {
    x: Tensor<T>,
    w: Tensor<T>,
    bias: Option<Tensor<T>>,
    row_scale: Option<Tensor<f32>>,
    column_scale: Option<Tensor<f32>>,
}

/// What the seed of a case decides, and is the same for the result: views or flags, an axis of length 1 or none, a residual that is the output
/// or what the output holds.
fn decided(case: &MatmulCase) -> [bool; 3] {
    [0, 1, 2].map(|bit| case.product.seed >> bit & 1 == 1)
}

impl<T: FloatElement> Uploaded<T> {
    fn new<O>(device: &Device, case: &MatmulCase, operands: &Operands<T, O>) -> Result<Self> {
        let LinearCase { m, n, .. } = case.product;
        let batched = case.batch != [1; 2];
        let [views, axes, _] = decided(case);
        let stored = |index: usize, placement: Placement| Stored {
            batch: case.batch[index],
            rows: [m, n][index],
            batch_axis: batched && (axes || case.batch[index] != 1),
            across: case.across[index],
            turned_back: views,
            placement,
        };
        let vector = |vector: &Option<Array1<f32>>| {
            vector.as_ref().map(|vector| Tensor::from_array(device, vector)).transpose()
        };
        Ok(Self {
            x: place(device, &operands.x, stored(0, case.product.x))?,
            w: place(device, &operands.w, stored(1, case.product.w))?,
            bias: operands.bias.as_ref().map(|bias| Tensor::from_array(device, bias)).transpose()?,
            row_scale: vector(&operands.row_scale)?,
            column_scale: vector(&operands.column_scale)?,
        })
    }

    /// Takes a step of the operation on these operands.
    fn step<O>(
        &self,
        case: &MatmulCase,
        kind: Kind,
        outputs: &mut Outputs<O>,
        step: Step,
    ) -> Result<Implementation>
    where
        T: LinearTypes<O>,
        O: FloatElement + FromAccumulator<f32>,
    {
        let terms = case.product.terms;
        let [views, _, holds] = decided(case);
        macro_rules! step {
            ($op:expr) => {{
                let mut op = $op
                    .bias(&self.bias)
                    .row_scale(&self.row_scale)
                    .column_scale(&self.column_scale)
                    .activation(case.product.activation)
                    .precision(case.product.precision)
                    .tile(case.product.tile)
                    .parts(case.product.parts);
                if terms.in_place && holds {
                    op = op.beta(terms.beta);
                } else if let Some(residual) = &outputs.residual {
                    op = op.residual(residual, terms.beta);
                }
                if let Some(mask) = &mut outputs.mask {
                    op = op.relu_mask(mask);
                }
                if let Some(preactivation) = &mut outputs.preactivation {
                    op = op.preactivation(preactivation);
                }
                match step {
                    Step::Ask => op.implementation(),
                    Step::Run => op.run_into(&mut outputs.y).map(|()| Implementation::Empty),
                }
            }};
        }
        match kind {
            Kind::Linear => {
                step!(ops::linear::with_output::<T, O>(&self.x, &self.w).alpha(case.product.scale))
            }
            Kind::Matmul => {
                let mut op = ops::matmul::with_output::<T, O>(&self.x, &self.w).alpha(case.product.scale);
                let [a_is_across, b_is_across] = case.across.map(|across| across && !views);
                // Where a view has exchanged the axes of b, it is as it was drawn: N × K.
                if a_is_across {
                    op = op.transpose_a();
                }
                if !b_is_across {
                    op = op.transpose_b();
                }
                step!(op)
            }
        }
    }
}

/// Memory for what a case writes.
fn outputs<T, O: FloatElement>(
    device: &Device,
    case: &MatmulCase,
    operands: &Operands<T, O>,
) -> Result<Outputs<O>> {
    let LinearCase { m, n, terms, .. } = case.product;
    let (matrices, batched) = (case.matrices(), case.batch != [1; 2]);
    let full = |columns: usize| if batched { vec![matrices, m, columns] } else { vec![m, columns] };
    Outputs::new(device, &terms, case.product.y, operands.residual.as_ref(), (matrices * m, n), full)
}

fn run_case<T, O>(
    device: &Device,
    case: &MatmulCase,
    kind: Kind,
    operands: &Operands<T, O>,
) -> Result<(Results<O>, Implementation)>
where
    T: LinearTypes<O> + FloatElement,
    O: FloatElement + FromAccumulator<f32>,
{
    let uploaded = Uploaded::new(device, case, operands)?;
    let mut outputs = outputs(device, case, operands)?;
    let implementation = uploaded.step(case, kind, &mut outputs, Step::Ask)?;
    uploaded.step(case, kind, &mut outputs, Step::Run)?;
    Ok((outputs.read()?, implementation))
}

/// Prepares a linear operation to be run again and again into one of `slots` outputs.
pub(super) fn prepare_linear(device: &Device, case: &LinearCase, slots: usize) -> Result<Prepared> {
    const OPERATION: &str = "validate::load::Work::linear";
    case.check_sizes(OPERATION)?;
    let product = &MatmulCase::new(case.clone());
    dispatch(OPERATION, case, PrepareRun { device, case: product, kind: Kind::Linear, slots })
}

/// The same of matrix products.
pub(super) fn prepare_matmul(device: &Device, case: &MatmulCase, slots: usize) -> Result<Prepared> {
    const OPERATION: &str = "validate::load::Work::matmul";
    case.check_sizes(OPERATION)?;
    dispatch(OPERATION, &case.product, PrepareRun { device, case, kind: Kind::Matmul, slots })
}

struct PrepareRun<'a> {
    device: &'a Device,
    case: &'a MatmulCase,
    kind: Kind,
    slots: usize,
}

impl TypedRun for PrepareRun<'_> {
    type Output = Prepared;

    fn run<T, O>(self) -> Result<Prepared>
    where
        T: LinearTypes<O> + FloatElement,
        O: FloatElement + FromAccumulator<f32> + Bits,
    {
        let Self { device, case, kind, slots } = self;
        let operands = Operands::<T, O>::draw(case)?;
        let uploaded = Uploaded::new(device, case, &operands)?;
        let of_slots = (0..slots).map(|_| outputs(device, case, &operands)).collect::<Result<Vec<_>>>()?;
        let case = case.clone();
        Prepared::of_slots(of_slots, Outputs::memory, move |outputs, step| {
            uploaded.step(&case, kind, outputs, step)
        })
    }
}

struct BitsRun<'a> {
    device: &'a Device,
    case: &'a MatmulCase,
    kind: Kind,
}

impl TypedRun for BitsRun<'_> {
    type Output = Vec<u32>;

    fn run<T, O>(self) -> Result<Vec<u32>>
    where
        T: LinearTypes<O> + FloatElement,
        O: FloatElement + FromAccumulator<f32> + Bits,
    {
        let operands = Operands::<T, O>::draw(self.case)?;
        let (results, _) = run_case::<T, O>(self.device, self.case, self.kind, &operands)?;
        Ok(results.bits())
    }
}

struct CheckRun<'a> {
    device: &'a Device,
    case: &'a MatmulCase,
    kind: Kind,
}

impl TypedRun for CheckRun<'_> {
    type Output = Outcome;

    fn run<T, O>(self) -> Result<Outcome>
    where
        T: LinearTypes<O> + FloatElement,
        O: FloatElement + FromAccumulator<f32> + Bits,
    {
        let Self { device, case, kind } = self;
        let operands = Operands::<T, O>::draw(case)?;
        let ran = run_case::<T, O>(device, case, kind, &operands)?;
        compare(device, case, &operands, ran)
    }
}

fn compare<T, O>(
    device: &Device,
    case: &MatmulCase,
    operands: &Operands<T, O>,
    (results, implementation): (Results<O>, Implementation),
) -> Result<Outcome>
where
    T: LinearTypes<O> + FloatElement,
    O: FloatElement + FromAccumulator<f32> + Bits,
{
    let arithmetic = match device.kind() {
        DeviceKind::Cpu => Arithmetic::Cpu,
        _ => Arithmetic::on_tensor_cores(case.product.input, case.product.k, case.product.precision),
    };
    let LinearCase { m, n, k, input, output, scale, activation, terms, .. } = case.product;
    let model = ErrorModel::new(arithmetic, input, output, k, scale, activation);
    let (row_scale, column_scale) = (each(&operands.row_scale, m), each(&operands.column_scale, n));
    let residual = operands.residual.as_ref().map(|residual| residual.mapv(|value| value.widen() as f32));

    let mut tally = Tally::new(implementation, case.product.is_exact());
    for index in 0..case.matrices() {
        let of =
            |count: usize, rows: usize| if count == 1 { 0..rows } else { index * rows..(index + 1) * rows };
        let reference = ReferenceTerms {
            alpha: scale,
            row_scale: row_scale.as_ref().map(|scale| scale.view()),
            column_scale: column_scale.as_ref().map(|scale| scale.view()),
            bias: operands.bias.as_ref().map(|bias| bias.view()),
            beta: terms.beta,
            residual: residual.as_ref().map(|residual| residual.slice(s![index * m..(index + 1) * m, ..])),
            activation,
            lost: lost_near_zero(T::DTYPE),
            ..ReferenceTerms::default()
        };
        let x = operands.x.slice(s![of(case.batch[0], m), ..]);
        let w = operands.w.slice(s![of(case.batch[1], n), ..]);
        for part in Reference::cover(x, w, &reference)? {
            for (row, column, expected) in part.elements() {
                results.judge(&mut tally, [index * m + row, column], &model, expected);
            }
        }
    }
    results.judge_rest(&mut tally, n);
    Ok(tally.finish())
}

/// A scale for each of `count` lines, where one for all is repeated.
pub(super) fn each(scale: &Option<Array1<f32>>, count: usize) -> Option<Array1<f32>> {
    let scale = scale.as_ref()?;
    Some(if scale.len() == 1 { Array1::from_elem(count, scale[0]) } else { scale.clone() })
}
