//! Validation of the scaled linear operation on 8-bit operands.

use float8::{F8E4M3, F8E5M2};
use half::{bf16, f16};
use ndarray::{Array1, Array2, Axis, s};

use super::bound::{Arithmetic, ErrorModel, Expected};
use super::case::Placement;
use super::data::{Data, filled};
use super::reference::sampled;
use super::scaled_case::{ScaleKind, ScaledCase};
use super::{Outcome, Worst};
use crate::cpu::{self, ScaledOptions, Scales};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::ops::scaled::{Bias, ScaledInput, ScaledOutput};
use crate::ops::{self, Activation, Implementation, Scale};
use crate::tensor::{DType, Tensor};
use crate::weights::FloatElement;

/// The operation's name in errors.
const OPERATION: &str = "validate::linear_scaled";
/// What the memory beside an output is filled with: a number that no validated result is.
const SENTINEL: f64 = -24576.0;
/// The streams of [`Data`] that the operands are drawn from.
const STREAMS: [u64; 5] = [0, 1, 2, 3, 4];
/// Multiply–adds above which only some rows of the output are compared.
const FULL_WORK: usize = 1 << 31;

/// Runs one case on `device` and compares the result with the reference.
///
/// # Errors
///
/// [`Error::Type`] if the case's types are not 8-bit inputs and an output of f16, bf16 or f32; otherwise whatever drawing the
/// operands and running the operation return.
pub fn linear_scaled(device: &Device, case: &ScaledCase) -> Result<Outcome> {
    match (case.x_type, case.w_type) {
        (DType::F8E4M3, DType::F8E4M3) => to_output::<F8E4M3, F8E4M3>(device, case),
        (DType::F8E4M3, DType::F8E5M2) => to_output::<F8E4M3, F8E5M2>(device, case),
        (DType::F8E5M2, DType::F8E4M3) => to_output::<F8E5M2, F8E4M3>(device, case),
        (DType::F8E5M2, DType::F8E5M2) => to_output::<F8E5M2, F8E5M2>(device, case),
        (DType::F8E4M3 | DType::F8E5M2, actual) => Err(wrong_type("w", "f8e4m3 or f8e5m2", actual)),
        (actual, _) => Err(wrong_type("x", "f8e4m3 or f8e5m2", actual)),
    }
}

fn to_output<X, W>(device: &Device, case: &ScaledCase) -> Result<Outcome>
where
    X: ScaledInput + FloatElement,
    W: ScaledInput + FloatElement,
{
    match case.output {
        DType::F16 => check::<X, W, f16>(device, case),
        DType::Bf16 => check::<X, W, bf16>(device, case),
        DType::F32 => check::<X, W, f32>(device, case),
        actual => Err(wrong_type("y", "f16, bf16 or f32", actual)),
    }
}

fn wrong_type(operand: &'static str, expected: &str, actual: DType) -> Error {
    Error::Type { operation: OPERATION, operand, expected: expected.into(), actual }
}

/// The operands of a case on the host.
struct Operands<X, W, O> {
    x: Array2<X>,
    w: Array2<W>,
    bias: Option<Array1<O>>,
    x_scale: Scales,
    w_scale: Scales,
}

impl<X: FloatElement, W: FloatElement, O: FloatElement> Operands<X, W, O> {
    fn draw(case: &ScaledCase) -> Result<Self> {
        let ScaledCase { m, k, n, data, seed, .. } = *case;
        let [x_stream, w_stream, bias_stream, x_scales, w_scales] = STREAMS;
        let bias: Option<Array2<O>> = case
            .bias
            .then(|| data.draw(seed, bias_stream, (1, n), k, |value| O::round(value.into())))
            .transpose()?;
        let scales = |kind, stream, rows| -> Result<Scales> {
            Ok(match kind {
                ScaleKind::One => Scales::default(),
                ScaleKind::Tensor | ScaleKind::Device => Scales::All(Self::scale(data, seed, stream, 1)?[0]),
                ScaleKind::Rows => Scales::Rows(Self::scale(data, seed, stream, rows)?),
            })
        };
        Ok(Self {
            x: data.draw(seed, x_stream, (m, k), k, |value| X::round(value.into()))?,
            w: data.draw(seed, w_stream, (n, k), k, |value| W::round(value.into()))?,
            bias: bias.map(|bias| bias.remove_axis(Axis(0))),
            x_scale: scales(case.x_scale, x_scales, m)?,
            w_scale: scales(case.w_scale, w_scales, n)?,
        })
    }

    /// Scales: with integers powers of two, that keep every result exact, else numbers of both signs.
    fn scale(data: Data, seed: u64, stream: u64, count: usize) -> Result<Vec<f32>> {
        let drawn = Data::Uniform.draw(seed, stream, (1, count), 1, |value| value)?;
        let scale = |value: f32| match data {
            Data::Integers => [0.25, 0.5, 1.0, 0.5][((value + 1.0) * 2.0) as usize & 3],
            Data::Uniform => 1.5 * value + 0.01,
        };
        Ok(drawn.iter().map(|&value| scale(value)).collect())
    }
}

impl<X, W, O> Operands<X, W, O> {
    fn options(&self, case: &ScaledCase, activation: Activation) -> ScaledOptions {
        let (x_scale, w_scale) = (self.x_scale.clone(), self.w_scale.clone());
        ScaledOptions { factor: case.alpha, x_scale, w_scale, activation }
    }
}

/// The result of a case: the matrix that holds y, and what ran.
struct CaseResult<O> {
    surrounding: Array2<O>,
    implementation: Implementation,
}

/// Copies `matrix` to the device as the columns of a matrix with other numbers beside them.
fn place<T: FloatElement>(device: &Device, matrix: &Array2<T>, placement: Placement) -> Result<Tensor<T>> {
    let columns = placement.before..placement.before + matrix.ncols();
    let mut surrounding = filled((matrix.nrows(), columns.end + placement.after), T::round(f64::NAN))?;
    surrounding.slice_mut(s![.., columns.clone()]).assign(matrix);
    Tensor::from_array(device, &surrounding)?.slice(1, columns)
}

fn run_case<X, W, O>(
    device: &Device,
    case: &ScaledCase,
    operands: &Operands<X, W, O>,
) -> Result<CaseResult<O>>
where
    X: ScaledInput + FloatElement,
    W: ScaledInput + FloatElement,
    O: ScaledOutput + FloatElement,
    for<'a> Bias<'a>: From<&'a Tensor<O>>,
{
    let (x, w) = (place(device, &operands.x, case.x)?, place(device, &operands.w, case.w)?);
    let bias = operands.bias.as_ref().map(|bias| Tensor::from_array(device, bias)).transpose()?;
    let vector = |kind, scales: &Scales| -> Result<Option<Tensor<f32>>> {
        Ok(match (kind, scales) {
            (ScaleKind::Device, Scales::All(scale)) => Some(Tensor::from_slice(device, &[*scale], [1])?),
            (ScaleKind::Rows, Scales::Rows(scales)) => {
                Some(Tensor::from_slice(device, scales, [scales.len()])?)
            }
            _ => None,
        })
    };
    let (x_scale, w_scale) =
        (vector(case.x_scale, &operands.x_scale)?, vector(case.w_scale, &operands.w_scale)?);
    let columns = case.y.before..case.y.before + case.n;
    let filler = filled((case.m, columns.end + case.y.after), O::round(SENTINEL))?;
    let surrounding = Tensor::from_array(device, &filler)?;
    let mut y = surrounding.slice(1, columns)?;
    let mut op = ops::linear_scaled(&x, &w)
        .output::<O>()
        .x_scale(scale(case.x_scale, &operands.x_scale, x_scale.as_ref()))
        .w_scale(scale(case.w_scale, &operands.w_scale, w_scale.as_ref()))
        .alpha(case.alpha)
        .activation(case.activation)
        .tile(case.tile);
    if let Some(bias) = &bias {
        op = op.bias(bias);
    }
    let implementation = op.implementation()?;
    op.run_into(&mut y)?;
    let surrounding = Array2::from_shape_vec(filler.dim(), surrounding.to_vec()?)
        .expect("the tensor has the filler's shape");
    Ok(CaseResult { surrounding, implementation })
}

/// A scale as the operation takes it.
fn scale<'a>(kind: ScaleKind, scales: &Scales, tensor: Option<&'a Tensor<f32>>) -> Scale<'a> {
    match (kind, scales, tensor) {
        (ScaleKind::Device, _, Some(tensor)) => Scale::Device(tensor),
        (ScaleKind::Rows, _, Some(tensor)) => Scale::Rows(tensor),
        (ScaleKind::Tensor, Scales::All(scale), _) => Scale::Tensor(*scale),
        _ => Scale::One,
    }
}

fn check<X, W, O>(device: &Device, case: &ScaledCase) -> Result<Outcome>
where
    X: ScaledInput + FloatElement,
    W: ScaledInput + FloatElement,
    O: ScaledOutput + FloatElement,
    for<'a> Bias<'a>: From<&'a Tensor<O>>,
{
    case.check_sizes(OPERATION)?;
    let operands = Operands::<X, W, O>::draw(case)?;
    let result = run_case(device, case, &operands)?;
    let arithmetic = match result.implementation {
        Implementation::Cpu => Arithmetic::Cpu,
        Implementation::Cuda { kernel, .. } | Implementation::Emulator { kernel, .. }
            if kernel.contains("hopper") =>
        {
            Arithmetic::Promoted
        }
        _ => Arithmetic::TensorCore,
    };
    let model = ErrorModel::new(arithmetic, case.x_type, case.output, case.k, 1.0, case.activation);
    let y = result.surrounding.slice(s![.., case.y.before..case.y.before + case.n]);
    let exact = case.is_exact();
    let mut outcome = Outcome {
        implementation: result.implementation,
        compared: 0,
        max_absolute_error: 0.0,
        max_relative_error: 0.0,
        worst: None,
        exact,
        failures: 0,
        stray_writes: stray_writes(case, &result.surrounding),
    };
    let mut largest = 0f64;
    for (row, column, expected) in reference(case, &operands)? {
        let got: f64 = y[[row, column]].to_f32().into();
        let (error, bound, within) = if exact {
            let exact = f64::from(O::round(expected.y).to_f32());
            (if got == exact { 0.0 } else { (got - exact).abs() }, 0.0, got == exact)
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
            (_, false) if error == f64::INFINITY => f64::INFINITY,
            (_, false) => (error / bound).max(1.0 + f64::EPSILON),
        };
        if outcome.worst.is_none_or(|worst| ratio > worst.ratio) {
            outcome.worst = Some(Worst { row, column, got, expected: expected.y, bound, ratio });
        }
    }
    outcome.max_relative_error =
        if outcome.max_absolute_error == 0.0 { 0.0 } else { outcome.max_absolute_error / largest };
    Ok(outcome)
}

/// What is expected of every element, or of those of sampled rows where there are many.
fn reference<X, W, O>(
    case: &ScaledCase,
    operands: &Operands<X, W, O>,
) -> Result<Vec<(usize, usize, Expected)>>
where
    X: ScaledInput,
    W: ScaledInput,
    O: ScaledOutput + FloatElement,
{
    let all = case.m.saturating_mul(case.n).saturating_mul(case.k.max(1)) <= FULL_WORK;
    let rows = if all { (0..case.m).collect() } else { sampled(case.m) };
    let x = operands.x.select(Axis(0), &rows);
    let mut options = operands.options(case, Activation::None);
    if let Scales::Rows(scales) = &options.x_scale {
        options.x_scale = Scales::Rows(rows.iter().map(|&row| scales[row]).collect());
    }
    let shape = (rows.len(), case.n);
    let (mut z, mut magnitude) = (filled(shape, 0f64)?, filled(shape, 0f64)?);
    let bias = operands.bias.as_ref().map(|bias| bias.view());
    cpu::linear_scaled::<X, W, O, f64, f64>(x.view(), operands.w.view(), bias, &options, z.view_mut())?;
    let sizes = |scales: &Scales| match scales {
        Scales::All(scale) => Scales::All(scale.abs()),
        Scales::Rows(scales) => Scales::Rows(scales.iter().map(|scale| scale.abs()).collect()),
    };
    let options = ScaledOptions {
        factor: options.factor.abs(),
        x_scale: sizes(&options.x_scale),
        w_scale: sizes(&options.w_scale),
        activation: Activation::None,
    };
    let (x, w) = (x.mapv(|v| size(v.to_f32(), X::DTYPE)), operands.w.mapv(|v| size(v.to_f32(), W::DTYPE)));
    cpu::linear_scaled::<f32, f32, f32, f64, f64>(x.view(), w.view(), None, &options, magnitude.view_mut())?;
    Ok(z.indexed_iter()
        .map(|((row, column), &z)| {
            let expected = Expected {
                z,
                y: case.activation.apply(z),
                magnitude: magnitude[[row, column]],
                factor: 1.0,
                added: operands.bias.as_ref().map_or(0.0, |bias| f64::from(bias[column].to_f32()).abs()),
                inner: 0.0,
            };
            (rows[row], column, expected)
        })
        .collect())
}

/// The size of a number as the tensor cores align it: no less than the smallest normal number, but for zero.
fn size(value: f32, dtype: DType) -> f32 {
    let smallest = if dtype == DType::F8E4M3 { 1.0 / 64.0 } else { 1.0 / 16384.0 };
    if value == 0.0 { 0.0 } else { value.abs().max(smallest) }
}

/// How many elements beside y no longer hold what they were filled with.
fn stray_writes<O: FloatElement>(case: &ScaledCase, surrounding: &Array2<O>) -> usize {
    let sentinel = O::round(SENTINEL);
    let y = case.y.before..case.y.before + case.n;
    let beside = surrounding.columns().into_iter().enumerate().filter(|(column, _)| !y.contains(column));
    beside.map(|(_, column)| column.iter().filter(|&&value| value != sentinel).count()).sum()
}
