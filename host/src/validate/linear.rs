//! Validation of the linear operation.

use half::{bf16, f16};
use ndarray::{Array1, Array2, ArrayView2, Axis, s};

use super::bound::{Arithmetic, ErrorModel};
use super::case::{LinearCase, Placement};
use super::data::filled;
use super::reference::Reference;
use super::{Outcome, Worst};
use crate::cpu::{FromAccumulator, LinearOptions};
use crate::device::{Device, DeviceKind};
use crate::error::{Error, Result};
use crate::ops::linear::LinearTypes;
use crate::ops::{self, Implementation};
use crate::tensor::{DType, Tensor};
use crate::weights::FloatElement;

/// What the memory beside an output is filled with: a number that no validated result is.
const SENTINEL: f32 = -24576.0;
/// The streams of [`Data`](super::Data) that the operands are drawn from.
const X_STREAM: u64 = 0;
const W_STREAM: u64 = 1;
const BIAS_STREAM: u64 = 2;

/// Runs one case on `device` and compares the result with the reference.
///
/// # Errors
///
/// [`Error::Type`] if there is no linear operation for the case's types, [`Error::SizeLimit`] or [`Error::OutOfMemory`] if
/// the host cannot hold its operands; otherwise whatever the operation returns.
pub fn linear(device: &Device, case: &LinearCase) -> Result<Outcome> {
    dispatch(case, CheckRun { device, case })
}

/// Runs one case on `device` and returns the bits of the result, row by row, to compare devices with each other.
///
/// # Errors
///
/// As [`linear`].
pub fn linear_bits(device: &Device, case: &LinearCase) -> Result<Vec<u32>> {
    dispatch(case, BitsRun { device, case })
}

/// Something to do with the types of a case.
trait TypedRun {
    type Output;

    fn run<T, O>(self) -> Result<Self::Output>
    where
        T: LinearTypes<O> + FloatElement,
        O: FloatElement + FromAccumulator<f32> + Bits;
}

fn dispatch<R: TypedRun>(case: &LinearCase, run: R) -> Result<R::Output> {
    case.check_sizes("validate::linear")?;
    match (case.input, case.output) {
        (DType::F16, DType::F16) => run.run::<f16, f16>(),
        (DType::F16, DType::F32) => run.run::<f16, f32>(),
        (DType::Bf16, DType::Bf16) => run.run::<bf16, bf16>(),
        (DType::Bf16, DType::F32) => run.run::<bf16, f32>(),
        (DType::F32, DType::F32) => run.run::<f32, f32>(),
        (DType::F16 | DType::Bf16 | DType::F32, output) => Err(Error::Type {
            operation: "validate::linear",
            operand: "y",
            expected: format!("{} or f32", case.input),
            actual: output,
        }),
        (input, _) => Err(Error::Type {
            operation: "validate::linear",
            operand: "x",
            expected: "f16, bf16 or f32".into(),
            actual: input,
        }),
    }
}

/// An output type whose numbers can be widened and compared bit by bit.
trait Bits: Copy {
    fn bits(self) -> u32;
    fn widen(self) -> f64;
}

impl Bits for f32 {
    fn bits(self) -> u32 {
        self.to_bits()
    }
    fn widen(self) -> f64 {
        self.into()
    }
}

impl Bits for f16 {
    fn bits(self) -> u32 {
        self.to_bits().into()
    }
    fn widen(self) -> f64 {
        self.into()
    }
}

impl Bits for bf16 {
    fn bits(self) -> u32 {
        self.to_bits().into()
    }
    fn widen(self) -> f64 {
        self.into()
    }
}

/// The operands of a case on the host.
struct Operands<T> {
    x: Array2<T>,
    w: Array2<T>,
    bias: Option<Array1<T>>,
}

impl<T: FloatElement> Operands<T> {
    fn draw(case: &LinearCase) -> Result<Self> {
        let LinearCase { m, k, n, data, seed, .. } = *case;
        let round: fn(f32) -> T = |value| T::round(value.into());
        let bias = case.bias.then(|| data.draw(seed, BIAS_STREAM, (1, n), k, round)).transpose()?;
        Ok(Self {
            x: data.draw(seed, X_STREAM, (m, k), k, round)?,
            w: data.draw(seed, W_STREAM, (n, k), k, round)?,
            bias: bias.map(|bias| bias.remove_axis(Axis(0))),
        })
    }
}

/// The result of a case: the matrix that holds y, and what ran.
struct CaseResult<O> {
    surrounding: Array2<O>,
    implementation: Implementation,
}

impl<O> CaseResult<O> {
    fn y(&self, case: &LinearCase) -> ArrayView2<'_, O> {
        self.surrounding.slice(s![.., case.y.before..case.y.before + case.n])
    }
}

/// Copies `matrix` to the device as the columns of a matrix with sentinels beside them.
fn place<T: FloatElement>(device: &Device, matrix: &Array2<T>, placement: Placement) -> Result<Tensor<T>> {
    if placement.is_whole() {
        return Tensor::from_array(device, matrix);
    }
    let columns = placement.before..placement.before + matrix.ncols();
    let mut surrounding = filled((matrix.nrows(), columns.end + placement.after), T::round(f64::NAN))?;
    surrounding.slice_mut(s![.., columns.clone()]).assign(matrix);
    Tensor::from_array(device, &surrounding)?.slice(1, columns)
}

fn run_case<T, O>(device: &Device, case: &LinearCase, operands: &Operands<T>) -> Result<CaseResult<O>>
where
    T: LinearTypes<O> + FloatElement,
    O: FloatElement + FromAccumulator<f32>,
{
    let x = place(device, &operands.x, case.x)?;
    let w = place(device, &operands.w, case.w)?;
    let bias = operands.bias.as_ref().map(|bias| Tensor::from_array(device, bias)).transpose()?;
    let columns = case.y.before..case.y.before + case.n;
    let filler = filled((case.m, columns.end + case.y.after), O::round(SENTINEL.into()))?;
    let surrounding = Tensor::from_array(device, &filler)?;
    let mut y = surrounding.slice(1, columns)?;
    let op = ops::linear::with_output::<T, O>(&x, &w)
        .bias(&bias)
        .activation(case.activation)
        .scale(case.scale)
        .tile(case.tile);
    let implementation = op.implementation()?;
    op.run_into(&mut y)?;
    let surrounding = Array2::from_shape_vec(filler.dim(), surrounding.to_vec()?)
        .expect("the tensor has the filler's shape");
    Ok(CaseResult { surrounding, implementation })
}

struct BitsRun<'a> {
    device: &'a Device,
    case: &'a LinearCase,
}

impl TypedRun for BitsRun<'_> {
    type Output = Vec<u32>;

    fn run<T, O>(self) -> Result<Vec<u32>>
    where
        T: LinearTypes<O> + FloatElement,
        O: FloatElement + FromAccumulator<f32> + Bits,
    {
        let result = run_case::<T, O>(self.device, self.case, &Operands::draw(self.case)?)?;
        Ok(result.y(self.case).iter().map(|y| y.bits()).collect())
    }
}

struct CheckRun<'a> {
    device: &'a Device,
    case: &'a LinearCase,
}

impl TypedRun for CheckRun<'_> {
    type Output = Outcome;

    fn run<T, O>(self) -> Result<Outcome>
    where
        T: LinearTypes<O> + FloatElement,
        O: FloatElement + FromAccumulator<f32> + Bits,
    {
        let Self { device, case } = self;
        let operands = Operands::<T>::draw(case)?;
        let result = run_case::<T, O>(device, case, &operands)?;
        compare(device, case, &operands, &result)
    }
}

fn compare<T, O>(
    device: &Device,
    case: &LinearCase,
    operands: &Operands<T>,
    result: &CaseResult<O>,
) -> Result<Outcome>
where
    T: LinearTypes<O> + FloatElement,
    O: FloatElement + FromAccumulator<f32> + Bits,
{
    let arithmetic = match device.kind() {
        DeviceKind::Cpu => Arithmetic::Cpu,
        _ => Arithmetic::TensorCore,
    };
    let model = ErrorModel::new(arithmetic, case.input, case.output, case.k, case.scale, case.activation);
    let options = LinearOptions { scale: case.scale, activation: case.activation };
    let bias = operands.bias.as_ref().map(|bias| bias.view());
    let y = result.y(case);

    let mut outcome = Outcome {
        implementation: result.implementation,
        compared: 0,
        max_absolute_error: 0.0,
        max_relative_error: 0.0,
        worst: None,
        exact: case.is_exact(),
        failures: 0,
        stray_writes: stray_writes(case, &result.surrounding),
    };
    let mut largest = 0f64;
    for part in Reference::cover(operands.x.view(), operands.w.view(), bias, options)? {
        for (row, column, expected) in part.elements() {
            let got = y[[row, column]].widen();
            let (error, bound, within) = if outcome.exact {
                let exact = O::round(expected.y).widen();
                ((got - exact).abs(), 0.0, got == exact)
            } else {
                let judgement = model.judge(got, expected);
                (judgement.error, judgement.bound, judgement.within)
            };
            // A NaN is as wrong as can be; `f64::max` would pass over it.
            let error = if error.is_nan() { f64::INFINITY } else { error };
            outcome.compared += 1;
            outcome.failures += usize::from(!within);
            outcome.max_absolute_error = outcome.max_absolute_error.max(error);
            if expected.y.is_finite() {
                largest = largest.max(expected.y.abs());
            }
            let ratio = match (error, within) {
                (0.0, true) => 0.0,
                (_, true) => (error / bound).min(1.0),
                // Both infinite: a bound that overflowed is no bound.
                (_, false) if error == f64::INFINITY => f64::INFINITY,
                (_, false) => (error / bound).max(1.0 + f64::EPSILON),
            };
            if outcome.worst.is_none_or(|worst| ratio > worst.ratio) {
                outcome.worst = Some(Worst { row, column, got, expected: expected.y, bound, ratio });
            }
        }
    }
    outcome.max_relative_error =
        if outcome.max_absolute_error == 0.0 { 0.0 } else { outcome.max_absolute_error / largest };
    Ok(outcome)
}

/// How many elements beside y no longer hold what they were filled with.
fn stray_writes<O: FloatElement>(case: &LinearCase, surrounding: &Array2<O>) -> usize {
    let sentinel = O::round(SENTINEL.into());
    let y = case.y.before..case.y.before + case.n;
    let beside = |view: ArrayView2<'_, O>| view.iter().filter(|&&value| value != sentinel).count();
    beside(surrounding.slice(s![.., ..y.start])) + beside(surrounding.slice(s![.., y.end..]))
}
