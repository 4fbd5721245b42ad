//! Validation of the scaled linear operation on 8-bit operands.

use float8::{F8E4M3, F8E5M2};
use half::{bf16, f16};
use ndarray::{Array1, Array2, Axis};
use warpsmith::device::Device;
use warpsmith::error::{Error, Result};
use warpsmith::ops::scaled::{ScaledInput, ScaledOutput};
use warpsmith::ops::{self, Implementation, Launch, Scale};
use warpsmith::tensor::{DType, Element, Tensor};
use warpsmith::weights::FloatElement;

use super::Outcome;
use super::load::{Prepared, Step};
use super::outputs::{Bits, Outputs, Results};
use super::product::{Stored, each, place};
use super::tally::Tally;
use crate::bound::{Arithmetic, ErrorModel};
use crate::cases::Data;
use crate::cases::{ScaleKind, ScaledCase};
use crate::reference::{Reference, ReferenceTerms};

/// The streams of [`Data`] that the operands are drawn from.
const X_STREAM: u64 = 0;
const W_STREAM: u64 = 1;
const BIAS_STREAM: u64 = 2;
const X_SCALE_STREAM: u64 = 3;
const W_SCALE_STREAM: u64 = 4;
const RESIDUAL_STREAM: u64 = 5;

/// Runs one case on `device` and compares the result with the reference.
///
/// # Errors
///
/// [`Error::Type`] if the case's types are not 8-bit inputs and an output of f16, bf16 or f32, [`Error::Argument`] if its terms have
/// scales of their own; otherwise whatever drawing the operands and running the operation return.
pub fn linear_scaled(device: &Device, case: &ScaledCase) -> Result<Outcome> {
    const OPERATION: &str = "validate::linear_scaled";
    case.check(OPERATION)?;
    dispatch(OPERATION, case, CheckRun { device, case })
}

/// Runs one case on `device` and returns the bits of the result, row by row, to compare devices with each other.
///
/// # Errors
///
/// As [`linear_scaled`].
pub fn linear_scaled_bits(device: &Device, case: &ScaledCase) -> Result<Vec<u32>> {
    const OPERATION: &str = "validate::linear_scaled_bits";
    case.check(OPERATION)?;
    dispatch(OPERATION, case, BitsRun { device, case })
}

/// Something to do with the types of a case.
trait TypedRun {
    type Output;

    fn run<X, W, O>(self) -> Result<Self::Output>
    where
        X: ScaledInput + FloatElement,
        W: ScaledInput + FloatElement,
        O: ScaledOutput + FloatElement + Bits;
}

fn dispatch<R: TypedRun>(operation: &'static str, case: &ScaledCase, run: R) -> Result<R::Output> {
    let wrong_type = |operand, expected: &str, actual| {
        Err(Error::Type { operation, operand, expected: expected.into(), actual })
    };
    macro_rules! to_output {
        ($x:ty, $w:ty) => {
            match case.output {
                DType::F16 => run.run::<$x, $w, f16>(),
                DType::Bf16 => run.run::<$x, $w, bf16>(),
                DType::F32 => run.run::<$x, $w, f32>(),
                actual => wrong_type("y", "f16, bf16 or f32", actual),
            }
        };
    }
    match (case.x_type, case.w_type) {
        (DType::F8E4M3, DType::F8E4M3) => to_output!(F8E4M3, F8E4M3),
        (DType::F8E4M3, DType::F8E5M2) => to_output!(F8E4M3, F8E5M2),
        (DType::F8E5M2, DType::F8E4M3) => to_output!(F8E5M2, F8E4M3),
        (DType::F8E5M2, DType::F8E5M2) => to_output!(F8E5M2, F8E5M2),
        (DType::F8E4M3 | DType::F8E5M2, actual) => wrong_type("w", "f8e4m3 or f8e5m2", actual),
        (actual, _) => wrong_type("x", "f8e4m3 or f8e5m2", actual),
    }
}

/// The operands of a case on the host.
struct Operands<X, W, O> {
    x: Array2<X>,
    w: Array2<W>,
    bias: Option<Array1<O>>,
    residual: Option<Array2<O>>,
    x_scale: Option<Array1<f32>>,
    w_scale: Option<Array1<f32>>,
}

impl<X: FloatElement, W: FloatElement, O: FloatElement> Operands<X, W, O> {
    fn draw(case: &ScaledCase) -> Result<Self> {
        let ScaledCase { m, k, n, data, seed, terms, .. } = *case;
        let round: fn(f32) -> O = |value| O::round(value.into());
        let bias = case.bias.then(|| data.draw(seed, BIAS_STREAM, (1, n), k, round)).transpose()?;
        let residual = (terms.beta != 0.0).then(|| data.draw(seed, RESIDUAL_STREAM, (m, n), k, round));
        let scales = |kind, stream, rows| match kind {
            ScaleKind::One => Ok(None),
            ScaleKind::Tensor | ScaleKind::Device => Self::scales(data, seed, stream, 1).map(Some),
            ScaleKind::Rows => Self::scales(data, seed, stream, rows).map(Some),
        };
        Ok(Self {
            x: data.draw(seed, X_STREAM, (m, k), k, |value| X::round(value.into()))?,
            w: data.draw(seed, W_STREAM, (n, k), k, |value| W::round(value.into()))?,
            bias: bias.map(|bias| bias.remove_axis(Axis(0))),
            residual: residual.transpose()?,
            x_scale: scales(case.x_scale, X_SCALE_STREAM, m)?,
            w_scale: scales(case.w_scale, W_SCALE_STREAM, n)?,
        })
    }

    /// Scales: with integers powers of two, that keep every result exact, else numbers of both signs.
    fn scales(data: Data, seed: u64, stream: u64, count: usize) -> Result<Array1<f32>> {
        let drawn = Data::Uniform.draw(seed, stream, (1, count), 1, |value| value)?;
        let scale = |value: f32| match data {
            Data::Integers => [0.25, 0.5, 1.0, 0.5][((value + 1.0) * 2.0) as usize & 3],
            _ => 1.5 * value + 0.01,
        };
        Ok(drawn.remove_axis(Axis(0)).mapv(scale))
    }
}

/// The operands of a case on its device, in the default stream's order.
struct Uploaded<X: Element, W: Element, O: Element> {
    x: Tensor<X>,
    w: Tensor<W>,
    bias: Option<Tensor<O>>,
    /// The scales of x and of w: the first number, and all of them where the device has them.
    x_scale: (Option<f32>, Option<Tensor<f32>>),
    w_scale: (Option<f32>, Option<Tensor<f32>>),
}

impl<X, W, O> Uploaded<X, W, O>
where
    X: ScaledInput + FloatElement,
    W: ScaledInput + FloatElement,
    O: ScaledOutput + FloatElement,
{
    fn new(device: &Device, case: &ScaledCase, operands: &Operands<X, W, O>) -> Result<Self> {
        let ScaledCase { m, n, .. } = *case;
        let [x_across, w_across] = case.across;
        let stored = |rows, across, placement| Stored {
            batch: 1,
            rows,
            batch_axis: false,
            across,
            turned_back: true,
            placement,
        };
        let scales = |kind, scales: &Option<Array1<f32>>| -> Result<(Option<f32>, Option<Tensor<f32>>)> {
            let on_device = match (kind, scales) {
                (ScaleKind::Device | ScaleKind::Rows, Some(scales)) => {
                    Some(Tensor::from_array(device, scales)?)
                }
                _ => None,
            };
            Ok((scales.as_ref().and_then(|scales| scales.first().copied()), on_device))
        };
        Ok(Self {
            x: place(device, &operands.x, stored(m, x_across, case.x))?,
            w: place(device, &operands.w, stored(n, w_across, case.w))?,
            bias: operands.bias.as_ref().map(|bias| Tensor::from_array(device, bias)).transpose()?,
            x_scale: scales(case.x_scale, &operands.x_scale)?,
            w_scale: scales(case.w_scale, &operands.w_scale)?,
        })
    }

    /// Takes a step of the operation on these operands.
    fn step(&self, case: &ScaledCase, outputs: &mut Outputs<O>, step: Step) -> Result<Implementation> {
        let mut op = ops::linear_scaled(&self.x, &self.w)
            .output::<O>()
            .x_scale(scale(case.x_scale, &self.x_scale))
            .w_scale(scale(case.w_scale, &self.w_scale))
            .alpha(case.alpha)
            .activation(case.activation)
            .tile(case.tile)
            .parts(case.parts)
            .bias(&self.bias);
        if let Some(residual) = &outputs.residual {
            op = op.residual(residual, case.terms.beta);
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
    }
}

/// Memory for what a case writes.
fn outputs<X, W, O: FloatElement>(
    device: &Device,
    case: &ScaledCase,
    operands: &Operands<X, W, O>,
) -> Result<Outputs<O>> {
    let ScaledCase { m, n, terms, .. } = *case;
    Outputs::new(device, &terms, case.y, operands.residual.as_ref(), (m, n), |columns| vec![m, columns])
}

/// What was written, and by what.
fn run_case<X, W, O>(
    device: &Device,
    case: &ScaledCase,
    operands: &Operands<X, W, O>,
) -> Result<(Results<O>, Implementation)>
where
    X: ScaledInput + FloatElement,
    W: ScaledInput + FloatElement,
    O: ScaledOutput + FloatElement,
{
    let uploaded = Uploaded::new(device, case, operands)?;
    let mut outputs = outputs(device, case, operands)?;
    let implementation = uploaded.step(case, &mut outputs, Step::Ask)?;
    uploaded.step(case, &mut outputs, Step::Run)?;
    Ok((outputs.read()?, implementation))
}

/// Prepares a case to be run again and again into one of `slots` outputs.
pub(super) fn prepare(device: &Device, case: &ScaledCase, slots: usize) -> Result<Prepared> {
    const OPERATION: &str = "validate::load::Work::linear_scaled";
    case.check(OPERATION)?;
    dispatch(OPERATION, case, PrepareRun { device, case, slots })
}

struct PrepareRun<'a> {
    device: &'a Device,
    case: &'a ScaledCase,
    slots: usize,
}

impl TypedRun for PrepareRun<'_> {
    type Output = Prepared;

    fn run<X, W, O>(self) -> Result<Prepared>
    where
        X: ScaledInput + FloatElement,
        W: ScaledInput + FloatElement,
        O: ScaledOutput + FloatElement + Bits,
    {
        let Self { device, case, slots } = self;
        let operands = Operands::<X, W, O>::draw(case)?;
        let uploaded = Uploaded::new(device, case, &operands)?;
        let of_slots = (0..slots).map(|_| outputs(device, case, &operands)).collect::<Result<Vec<_>>>()?;
        let case = case.clone();
        Prepared::of_slots(of_slots, Outputs::memory, move |outputs, step| {
            uploaded.step(&case, outputs, step)
        })
    }
}

/// A scale as the operation takes it.
fn scale(kind: ScaleKind, (number, tensor): &(Option<f32>, Option<Tensor<f32>>)) -> Scale<'_> {
    match (kind, number, tensor) {
        (ScaleKind::Device, _, Some(tensor)) => Scale::Device(tensor),
        (ScaleKind::Rows, _, Some(tensor)) => Scale::Rows(tensor),
        (ScaleKind::Tensor, Some(scale), _) => Scale::Tensor(*scale),
        _ => Scale::One,
    }
}

struct BitsRun<'a> {
    device: &'a Device,
    case: &'a ScaledCase,
}

impl TypedRun for BitsRun<'_> {
    type Output = Vec<u32>;

    fn run<X, W, O>(self) -> Result<Vec<u32>>
    where
        X: ScaledInput + FloatElement,
        W: ScaledInput + FloatElement,
        O: ScaledOutput + FloatElement + Bits,
    {
        let operands = Operands::<X, W, O>::draw(self.case)?;
        let (results, _) = run_case(self.device, self.case, &operands)?;
        Ok(results.bits())
    }
}

struct CheckRun<'a> {
    device: &'a Device,
    case: &'a ScaledCase,
}

impl TypedRun for CheckRun<'_> {
    type Output = Outcome;

    fn run<X, W, O>(self) -> Result<Outcome>
    where
        X: ScaledInput + FloatElement,
        W: ScaledInput + FloatElement,
        O: ScaledOutput + FloatElement + Bits,
    {
        let Self { device, case } = self;
        let operands = Operands::<X, W, O>::draw(case)?;
        let (results, implementation) = run_case(device, case, &operands)?;
        let multiplies_as_they_are =
            |launch: &Launch| launch.kernel.contains("hopper") || launch.kernel.contains("ada");
        let arithmetic = match implementation {
            Implementation::Cpu => Arithmetic::Cpu,
            kernels if kernels.launches().iter().any(multiplies_as_they_are) => Arithmetic::Promoted,
            _ => Arithmetic::TensorCore,
        };
        let ScaledCase { m, k, n, x_type, output, alpha, activation, terms, .. } = *case;
        let model = ErrorModel::new(arithmetic, x_type, output, k, alpha, activation);
        let (x_scale, w_scale) = (each(&operands.x_scale, m), each(&operands.w_scale, n));
        let residual = operands.residual.as_ref().map(|residual| residual.mapv(O::to_f32));
        let reference = ReferenceTerms {
            alpha,
            row_scale: x_scale.as_ref().map(|scale| scale.view()),
            column_scale: w_scale.as_ref().map(|scale| scale.view()),
            bias: operands.bias.as_ref().map(|bias| bias.view()),
            beta: terms.beta,
            residual: residual.as_ref().map(|residual| residual.view()),
            activation,
            sizes: [X::DTYPE, W::DTYPE].map(size),
            lost: 0.0,
        };
        let (x, w) = (operands.x.mapv(X::to_f32), operands.w.mapv(W::to_f32));
        let mut tally = Tally::new(implementation, case.is_exact());
        for part in Reference::cover(x.view(), w.view(), &reference)? {
            for (row, column, expected) in part.elements() {
                results.judge(&mut tally, [row, column], &model, expected);
            }
        }
        results.judge_rest(&mut tally, n);
        Ok(tally.finish())
    }
}

/// The size of a number as the tensor cores align it: no less than the smallest normal number, but for zero.
fn size(dtype: DType) -> fn(f32) -> f32 {
    fn at_least(value: f32, smallest: f32) -> f32 {
        if value == 0.0 { 0.0 } else { value.abs().max(smallest) }
    }
    match dtype {
        DType::F8E4M3 => |value| at_least(value, 1.0 / 64.0),
        _ => |value| at_least(value, 1.0 / 16384.0),
    }
}
