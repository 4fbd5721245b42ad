//! Gradients of matrix products.

use half::{bf16, f16};
use ndarray::{Array2, ArrayView2, Axis, ShapeError, concatenate, s};
use warpsmith::cpu::FromAccumulator;
use warpsmith::device::{Device, DeviceKind};
use warpsmith::error::{Error, Result};
use warpsmith::ops::linear::{LinearInput, LinearTypes};
use warpsmith::ops::matmul::{MatmulBackwardOp, MatmulGradientOutputs};
use warpsmith::ops::{self, Activation, Implementation};
use warpsmith::tensor::{DType, Tensor};

use super::Number;
use super::products::Gradient;
use crate::bound::backward::Near;
use crate::bound::{Arithmetic, ErrorModel};
use crate::cases::{LinearCase, MatmulBackwardCase, Placement};
use crate::validate::Outcome;
use crate::validate::load::{Output, Prepared, Step};
use crate::validate::product::{Stored, place};
use crate::validate::tally::Tally;

/// The operation's name in errors.
const OPERATION: &str = "validate::matmul_backward";

/// A type of gradients.
trait Gradient_: Number + FromAccumulator<f32> {}
impl<O: Number + FromAccumulator<f32>> Gradient_ for O {}

/// Runs `$f::<T, O>` with the types of a case's operands and gradients.
macro_rules! of_types {
    ($case:expr, $f:ident($($argument:expr),*)) => {
        match ($case.product.product.input, $case.product.product.output) {
            (DType::F16, DType::F16) => $f::<f16, f16>($($argument),*),
            (DType::F16, DType::F32) => $f::<f16, f32>($($argument),*),
            (DType::Bf16, DType::Bf16) => $f::<bf16, bf16>($($argument),*),
            (DType::Bf16, DType::F32) => $f::<bf16, f32>($($argument),*),
            (DType::F32, DType::F32) => $f::<f32, f32>($($argument),*),
            (input, output) => {
                let is_known = matches!(input, DType::F16 | DType::Bf16 | DType::F32);
                let (operand, actual) = if is_known { ("da", output) } else { ("a", input) };
                let expected = if is_known { format!("{input} or f32") } else { "f16, bf16 or f32".into() };
                Err(Error::Type { operation: OPERATION, operand, expected, actual })
            }
        }
    };
}

/// Computes both gradients of one case on `device`, and compares each with the exact one.
///
/// # Errors
///
/// [`Error::Type`] if there is no such product for the case's types, [`Error::Argument`] if its batches do not fit together, [`Error::SizeLimit`] if the host cannot
/// hold its operands; otherwise whatever the operation returns.
pub fn matmul_backward(device: &Device, case: &MatmulBackwardCase) -> Result<Outcome> {
    case.product.check_sizes(OPERATION)?;
    of_types!(case, check(device, case))
}

/// The bits of both gradients: to compare one device, or mode, with another.
///
/// # Errors
///
/// As [`matmul_backward`].
pub fn matmul_backward_bits(device: &Device, case: &MatmulBackwardCase) -> Result<Vec<u8>> {
    case.product.check_sizes(OPERATION)?;
    of_types!(case, bits(device, case))
}

/// Prepares a case to be run again and again into one of `slots` outputs.
pub(in crate::validate) fn prepare(
    device: &Device,
    case: &MatmulBackwardCase,
    slots: usize,
) -> Result<Prepared> {
    case.product.check_sizes(OPERATION)?;
    of_types!(case, prepared(device, case, slots))
}

/// What a case reads: matrices one below the other.
struct Operands<T> {
    /// `[M, K]` each.
    a: Array2<T>,
    /// `[N, K]` each.
    b: Array2<T>,
    /// `[M, N]` each.
    dy: Array2<T>,
}

fn draw<U: Number>(case: &MatmulBackwardCase, stream: u64, shape: (usize, usize)) -> Result<Array2<U>> {
    let LinearCase { m, n, data, seed, .. } = case.product.product;
    let sums = m.max(n).max(1) * case.product.matrices().max(1);
    data.draw(seed, stream, shape, sums, |number| U::round(f64::from(number)))
}

impl<T: Number> Operands<T> {
    fn draw(case: &MatmulBackwardCase) -> Result<Self> {
        let LinearCase { m, n, k, .. } = case.product.product;
        let [of_a, of_b] = case.product.batch;
        Ok(Self {
            a: draw(case, 0, (of_a * m, k))?,
            b: draw(case, 1, (of_b * n, k))?,
            dy: draw(case, 2, (case.product.matrices() * m, n))?,
        })
    }
}

/// What a case reads, on its device.
struct Uploaded<T: Number> {
    a: Tensor<T>,
    b: Tensor<T>,
    dy: Tensor<T>,
}

impl<T: Number> Uploaded<T> {
    fn new(device: &Device, case: &MatmulBackwardCase, operands: &Operands<T>) -> Result<Self> {
        let product = &case.product;
        let LinearCase { m, n, x, w, y, .. } = product.product;
        let batched = product.batch != [1; 2];
        let stored = |batch, rows, across, placement: Placement| {
            let (batch_axis, turned_back) = (batched && batch != 1, false);
            Stored { batch, rows, batch_axis, across, turned_back, placement }
        };
        let of_dy = Stored { batch_axis: batched, ..stored(product.matrices(), m, false, y) };
        Ok(Self {
            a: place(device, &operands.a, stored(product.batch[0], m, product.across[0], x))?,
            b: place(device, &operands.b, stored(product.batch[1], n, product.across[1], w))?,
            dy: place(device, &operands.dy, of_dy)?,
        })
    }

    fn operation(&self, case: &MatmulBackwardCase) -> MatmulBackwardOp<'_, T>
    where
        T: LinearInput,
    {
        let product = &case.product;
        let operation = ops::matmul_backward(&self.a, &self.b, &self.dy)
            .alpha(product.product.scale)
            .precision(product.product.precision);
        let operation = if product.across[0] { operation.transpose_a() } else { operation };
        // B as it is drawn is N × K.
        if product.across[1] { operation } else { operation.transpose_b() }
    }

    /// New gradients, of zeros, or of what is added to: matrices one below the other, as the operands are stored.
    fn gradients<O: Number>(&self, before: Option<[&Array2<O>; 2]>) -> Result<[Tensor<O>; 2]> {
        let new = |of: &Tensor<T>, before: Option<&Array2<O>>| -> Result<Tensor<O>> {
            let elements = match before {
                Some(before) => before.iter().copied().collect(),
                None => vec![O::round(f64::NAN); of.len()],
            };
            Tensor::from_slice(of.device(), &elements, of.shape())
        };
        Ok([new(&self.a, before.map(|[da, _]| da))?, new(&self.b, before.map(|[_, db]| db))?])
    }
}

fn run<T, O>(operation: &MatmulBackwardOp<'_, T>, [da, db]: &mut [Tensor<O>; 2], adds: bool) -> Result<()>
where
    T: LinearInput + LinearTypes<O>,
    O: Gradient_,
{
    operation.run_into(MatmulGradientOutputs { da: Some(da), db: Some(db), adds: [adds; 2] })
}

/// What gradients are added to, if they are: matrices one below the other, as the operands are stored.
fn before<O: Number>(case: &MatmulBackwardCase) -> Result<Option<[Array2<O>; 2]>> {
    if !case.adds {
        return Ok(None);
    }
    let LinearCase { m, n, k, .. } = case.product.product;
    let shape = |batch: usize, rows: usize, across: bool| {
        if across { (batch * k, rows) } else { (batch * rows, k) }
    };
    let ([of_a, of_b], [a_across, b_across]) = (case.product.batch, case.product.across);
    Ok(Some([draw(case, 3, shape(of_a, m, a_across))?, draw(case, 4, shape(of_b, n, b_across))?]))
}

fn check<T, O>(device: &Device, case: &MatmulBackwardCase) -> Result<Outcome>
where
    T: LinearInput + LinearTypes<O> + Number,
    O: Gradient_,
{
    let LinearCase { m, n, k, scale, precision, .. } = case.product.product;
    let (operands, before) = (Operands::<T>::draw(case)?, before::<O>(case)?);
    let uploaded = Uploaded::new(device, case, &operands)?;
    let operation = uploaded.operation(case);
    let implementation = operation.implementation()?;
    let mut gradients = uploaded.gradients(before.as_ref().map(|[da, db]| [da, db]))?;
    run(&operation, &mut gradients, case.adds)?;

    let mut tally = Tally::new(implementation, case.product.product.is_exact());
    let matrices = case.product.matrices();
    let exact = |operand: &Array2<T>| operand.mapv(|element| element.widen());
    let (a, b, dy) = (exact(&operands.a), exact(&operands.b), exact(&operands.dy));
    for (side, got) in gradients.iter().enumerate() {
        let (rows, across) = ([m, n][side], case.product.across[side]);
        let count = case.product.batch[side];
        let stored = if across { (k, rows) } else { (rows, k) };
        let numbers: Vec<f64> = got.to_vec()?.into_iter().map(|element| element.widen()).collect();
        let there = before.as_ref().map(|before| before[side].mapv(|element| element.widen()));
        for matrix in 0..count {
            // The products that this matrix has had a part in.
            let parts: Vec<usize> = if count == matrices { vec![matrix] } else { (0..matrices).collect() };
            let (other, other_rows) = if side == 0 { (&b, n) } else { (&a, m) };
            let others = case.product.batch[1 - side];
            let of_other = |part: usize| {
                let part = if others == 1 { 0 } else { part };
                other.slice(s![part * other_rows..(part + 1) * other_rows, ..])
            };
            let of_dy = |part: usize| {
                let dy = dy.slice(s![part * m..(part + 1) * m, ..]);
                if side == 0 { dy } else { dy.reversed_axes() }
            };
            // [rows, sums] and [K, sums], with the sums of all parts.
            let left = side_by_side(parts.iter().map(|&part| of_dy(part)), rows)?;
            let right = side_by_side(parts.iter().map(|&part| of_other(part).reversed_axes()), k)?;
            let left = left.mapv(|exact| Near { exact, error: 0.0 });
            let length = left.ncols();
            let arithmetic = match device.kind() {
                DeviceKind::Cpu => Arithmetic::Cpu,
                _ => Arithmetic::on_tensor_cores(T::DTYPE, length, precision),
            };
            let model = ErrorModel::new(arithmetic, T::DTYPE, O::DTYPE, length, scale, Activation::None);
            let start = matrix * rows * k;
            let turned = |numbers: ArrayView2<'_, f64>| {
                if across { numbers.reversed_axes().to_owned() } else { numbers.to_owned() }
            };
            let of_matrix = |numbers: &[f64]| {
                let view = ArrayView2::from_shape(stored, &numbers[start..start + rows * k]);
                view.map(turned).map_err(|error| shape_error(stored, &error))
            };
            let there =
                there.as_ref().map(|there| of_matrix(there.as_slice().unwrap_or_default())).transpose()?;
            let gradient = Gradient {
                left: left.view(),
                right: right.view(),
                right_errors: None,
                between: None,
                alpha: scale,
                factors: None,
                least: [0.0; 2],
                before: there.as_ref(),
                input: T::DTYPE,
                // Zeros that rows are padded with are products, too.
                model: if parts.len() > 1 { model.without_claim() } else { model },
                round: |number| O::round(number).widen(),
            };
            gradient.judge(&mut tally, of_matrix(&numbers)?.view(), matrix * rows);
        }
    }
    Ok(tally.finish())
}

/// Matrices with so many rows side by side.
fn side_by_side<'a>(matrices: impl Iterator<Item = ArrayView2<'a, f64>>, rows: usize) -> Result<Array2<f64>> {
    let matrices: Vec<_> = matrices.collect();
    if matrices.is_empty() {
        return Ok(Array2::zeros((rows, 0)));
    }
    concatenate(Axis(1), &matrices).map_err(|error| shape_error(rows, &error))
}

fn shape_error(expected: impl std::fmt::Debug, error: &ShapeError) -> Error {
    let (expected, actual) = (format!("{expected:?}"), error.to_string());
    Error::Argument { operation: OPERATION, argument: "shape", expected, actual }
}

fn bits<T, O>(device: &Device, case: &MatmulBackwardCase) -> Result<Vec<u8>>
where
    T: LinearInput + LinearTypes<O> + Number,
    O: Gradient_,
{
    let (operands, before) = (Operands::<T>::draw(case)?, before::<O>(case)?);
    let uploaded = Uploaded::new(device, case, &operands)?;
    let mut gradients = uploaded.gradients(before.as_ref().map(|[da, db]| [da, db]))?;
    run(&uploaded.operation(case), &mut gradients, case.adds)?;
    let mut all = Vec::new();
    for gradient in gradients {
        all.extend_from_slice(bytemuck::cast_slice(&gradient.to_vec()?));
    }
    Ok(all)
}

fn prepared<T, O>(device: &Device, case: &MatmulBackwardCase, slots: usize) -> Result<Prepared>
where
    T: LinearInput + LinearTypes<O> + Number,
    O: Gradient_,
{
    // What is added to would be another number each time.
    let case = MatmulBackwardCase { adds: false, ..case.clone() };
    let uploaded = Uploaded::<T>::new(device, &case, &Operands::draw(&case)?)?;
    let of_slots = (0..slots).map(|_| uploaded.gradients::<O>(None)).collect::<Result<Vec<_>>>()?;
    let memory = |[da, db]: &[Tensor<O>; 2]| Ok(vec![Output::new("da", da)?, Output::new("db", db)?]);
    Prepared::of_slots(of_slots, memory, move |gradients, step| {
        let operation = uploaded.operation(&case);
        match step {
            Step::Ask => operation.implementation(),
            Step::Run => run(&operation, gradients, false).map(|()| Implementation::Empty),
        }
    })
}
