//! Measuring operations on rows.

use half::{bf16, f16};
use warpsmith::error::{Error, Result};
use warpsmith::ops::cross_entropy::{CrossEntropyOutputs, LogitElement};
use warpsmith::ops::elementwise::ElementwiseElement;
use warpsmith::ops::norm::{NormElement, NormGradientOutputs, NormOp, NormOutputs};
use warpsmith::ops::rotary::RotaryElement;
use warpsmith::ops::softmax::SoftmaxElement;
use warpsmith::ops::{self, Activation, Implementation, RotaryTable};
use warpsmith::stream::Stream;
use warpsmith::tensor::{DType, Element, Tensor};
use warpsmith::weights::FloatElement;

use super::{Subject, sets_beyond_cache};
use crate::cases::Data;

/// The operation's name in errors.
const OPERATION: &str = "benchmark::rows";

/// An operation on rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RowOperation {
    /// A layer norm with weight and bias.
    LayerNorm,
    /// An RMS norm with a weight.
    RmsNorm,
    /// The same with a residual, whose sum with x is written too.
    RmsNormOfSum,
    /// A layer norm and its gradients: of x, of the weight and of the bias.
    LayerNormTraining,
    /// An RMS norm and its gradients: of x and of the weight.
    RmsNormTraining,
    /// The softmax.
    Softmax,
    /// The softmax and its gradient.
    SoftmaxTraining,
    /// The mean cross-entropy of logits and its gradient.
    CrossEntropyTraining,
    /// A rotary embedding of heads of 128 elements, the halves of a head paired.
    Rotary,
    /// The SiLU of one operand, times another.
    GatedSilu,
    /// The sum of two operands.
    Add,
}

/// Elements of a head.
const HEAD: usize = 128;

impl RowOperation {
    /// All of them.
    pub const ALL: [Self; 11] = [
        Self::LayerNorm,
        Self::RmsNorm,
        Self::RmsNormOfSum,
        Self::LayerNormTraining,
        Self::RmsNormTraining,
        Self::Softmax,
        Self::SoftmaxTraining,
        Self::CrossEntropyTraining,
        Self::Rotary,
        Self::GatedSilu,
        Self::Add,
    ];

    /// Whether it can be measured on rows of so many columns.
    #[must_use]
    pub const fn takes(self, columns: usize) -> bool {
        !matches!(self, Self::Rotary) || columns.is_multiple_of(HEAD)
    }

    /// A name, in words that hyphens join.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::LayerNorm => "layer-norm",
            Self::RmsNorm => "rms-norm",
            Self::RmsNormOfSum => "rms-norm-residual",
            Self::LayerNormTraining => "layer-norm-training",
            Self::RmsNormTraining => "rms-norm-training",
            Self::Softmax => "softmax",
            Self::SoftmaxTraining => "softmax-training",
            Self::CrossEntropyTraining => "cross-entropy-training",
            Self::Rotary => "rotary",
            Self::GatedSilu => "gated-silu",
            Self::Add => "add",
        }
    }

    /// Matrices of the rows' size that it must read and write.
    #[must_use]
    pub const fn matrices(self) -> usize {
        match self {
            Self::LayerNorm | Self::RmsNorm | Self::Softmax | Self::CrossEntropyTraining | Self::Rotary => 2,
            Self::GatedSilu | Self::Add => 3,
            Self::RmsNormOfSum => 4,
            Self::LayerNormTraining | Self::RmsNormTraining | Self::SoftmaxTraining => 5,
        }
    }

    const fn is_training(self) -> bool {
        matches!(self, Self::LayerNormTraining | Self::RmsNormTraining)
    }
}

/// An operation on rows ready to be measured: sets of operands in the device's memory, through which the launches rotate.
pub struct RowSubject {
    /// The operation.
    pub operation: Box<dyn Subject>,
    /// What it runs.
    pub implementation: Implementation,
    /// Bytes that it must read and write.
    pub bytes: f64,
}

/// Places operands of `rows` rows of `columns` elements of type `dtype` on the stream's device.
///
/// # Errors
///
/// [`Error::Type`] if the type is not f16, bf16 or f32, [`Error::OutOfMemory`] if the host or the device cannot hold the operands; otherwise whatever the
/// operation returns.
pub fn row_subject(
    stream: &Stream,
    operation: RowOperation,
    dtype: DType,
    [rows, columns]: [usize; 2],
) -> Result<RowSubject> {
    match dtype {
        DType::F16 => subject::<f16>(stream, operation, [rows, columns]),
        DType::Bf16 => subject::<bf16>(stream, operation, [rows, columns]),
        DType::F32 => subject::<f32>(stream, operation, [rows, columns]),
        actual => Err(Error::Type {
            operation: OPERATION,
            operand: "x",
            expected: "f16, bf16 or f32".into(),
            actual,
        }),
    }
}

/// A type of rows.
trait Rows:
    NormElement + SoftmaxElement + LogitElement + RotaryElement + ElementwiseElement + FloatElement
{
}
impl<T: NormElement + SoftmaxElement + LogitElement + RotaryElement + ElementwiseElement + FloatElement> Rows
    for T
{
}

fn subject<T: Rows>(stream: &Stream, operation: RowOperation, shape: [usize; 2]) -> Result<RowSubject> {
    use RowOperation as Op;
    match operation {
        Op::LayerNorm | Op::RmsNorm | Op::RmsNormOfSum | Op::LayerNormTraining | Op::RmsNormTraining => {
            norms::<T>(stream, operation, shape)
        }
        _ => functions::<T>(stream, operation, shape),
    }
}

/// A function of two matrices at most, to one or two.
struct Functions<T: Element> {
    stream: Stream,
    operation: RowOperation,
    sets: Vec<[Tensor<T>; 4]>,
    labels: Tensor<i64>,
    loss: Tensor<f32>,
    table: RotaryTable,
}

fn functions<T: Rows>(stream: &Stream, operation: RowOperation, shape: [usize; 2]) -> Result<RowSubject> {
    let [rows, columns] = shape;
    let bytes = rows.saturating_mul(columns).saturating_mul(size_of::<T>() * operation.matrices());
    let count = sets_beyond_cache(stream.device(), bytes as u64);
    let read = [draw::<T>(stream, 0, shape)?, draw::<T>(stream, 1, shape)?];
    let nothing = Tensor::zeros_on(stream, [0, 0])?;
    let (has_two, has_second) = match operation {
        RowOperation::SoftmaxTraining => (true, true),
        RowOperation::GatedSilu | RowOperation::Add => (true, false),
        _ => (false, false),
    };
    let result =
        |is_there: bool| if is_there { Tensor::zeros_on(stream, shape) } else { Ok(nothing.clone()) };
    let set = || -> Result<[Tensor<T>; 4]> {
        let other = if has_two { read[1].deep_clone()? } else { nothing.clone() };
        Ok([read[0].deep_clone()?, other, result(true)?, result(has_second)?])
    };
    let labels: Vec<i64> = (0..rows).map(|row| (row * 7919 % columns) as i64).collect();
    let device = stream.device();
    let positions = if operation == RowOperation::Rotary { rows.min(1 << 14) } else { 1 };
    let mut measured = Functions {
        stream: stream.clone(),
        operation,
        sets: (0..count).map(|_| set()).collect::<Result<_>>()?,
        labels: stream.as_default(|| Tensor::from_slice(device, &labels, [rows]))?,
        loss: Tensor::zeros_on(stream, [1])?,
        table: stream.as_default(|| RotaryTable::new(device, 10_000.0, HEAD, positions))?,
    };
    let implementation = measured.implementation()?;
    measured.enqueue(0)?;
    Ok(RowSubject { operation: Box::new(measured), implementation, bytes: bytes as f64 })
}

impl<T: Rows> Functions<T> {
    /// Rows as heads of as many sequences as the table's positions take.
    fn heads(&self, x: &Tensor<T>) -> Result<Tensor<T>> {
        let (rows, positions) = (x.shape()[0], self.table.positions());
        let whole = rows / positions * positions;
        x.slice(0, 0..whole)?.reshape([whole / positions, positions, x.shape()[1] / HEAD, HEAD])
    }

    fn implementation(&self) -> Result<Implementation> {
        let [x, other, y, _] = &self.sets[0];
        Ok(match self.operation {
            RowOperation::Softmax => ops::softmax(x).implementation()?,
            RowOperation::SoftmaxTraining => {
                ops::softmax(x).implementation()?.then(ops::softmax_gradient(y, other).implementation()?)
            }
            RowOperation::CrossEntropyTraining => ops::cross_entropy(x, &self.labels).implementation()?,
            RowOperation::Rotary => ops::rotary(&self.heads(x)?, &self.table).implementation()?,
            RowOperation::GatedSilu => ops::gated(x, other, Activation::Silu).implementation()?,
            _ => ops::add(x, other).implementation()?,
        })
    }
}

impl<T: Rows> Subject for Functions<T> {
    fn enqueue(&mut self, index: usize) -> Result<()> {
        let at = index % self.sets.len();
        let [x, other, y, second] = &self.sets[at];
        // Views: results are written through them.
        let (mut to, mut second) = (y.clone(), second.clone());
        match self.operation {
            RowOperation::Softmax => ops::softmax(x).on(&self.stream).run_into(&mut to),
            RowOperation::SoftmaxTraining => {
                ops::softmax(x).on(&self.stream).run_into(&mut to)?;
                ops::softmax_gradient(y, other).on(&self.stream).run_into(&mut second)
            }
            RowOperation::CrossEntropyTraining => {
                let mut loss = self.loss.clone();
                let outputs = CrossEntropyOutputs {
                    loss: Some(&mut loss),
                    gradient: Some(&mut to),
                    ..CrossEntropyOutputs::default()
                };
                ops::cross_entropy(x, &self.labels).on(&self.stream).run_into(outputs)
            }
            RowOperation::Rotary => {
                let mut to = self.heads(y)?;
                ops::rotary(&self.heads(x)?, &self.table).on(&self.stream).run_into(&mut to)
            }
            RowOperation::GatedSilu => {
                ops::gated(x, other, Activation::Silu).on(&self.stream).run_into(&mut to)
            }
            _ => ops::add(x, other).on(&self.stream).run_into(&mut to),
        }
    }
}

/// Drawn elements on the device, of which the host draws no more than a few megabytes.
fn draw<T: FloatElement>(stream: &Stream, which: u64, [rows, columns]: [usize; 2]) -> Result<Tensor<T>> {
    let drawn = Data::Uniform.draw(1, which, (rows, columns), 1, |v| T::round(f64::from(v)))?;
    stream.as_default(|| Tensor::from_array(stream.device(), &drawn))
}

/// Operands of one launch.
struct NormSet<T: Element> {
    x: Tensor<T>,
    other: Option<Tensor<T>>,
    y: Tensor<T>,
    second: Option<Tensor<T>>,
    mean: Tensor<f32>,
    deviation: Tensor<f32>,
}

/// A norm that is measured.
struct Norms<T: Element> {
    stream: Stream,
    operation: RowOperation,
    sets: Vec<NormSet<T>>,
    weight: Tensor<T>,
    bias: Tensor<T>,
    sums: [Tensor<f32>; 2],
}

fn norms<T: NormElement + FloatElement>(
    stream: &Stream,
    operation: RowOperation,
    shape: [usize; 2],
) -> Result<RowSubject> {
    let [rows, columns] = shape;
    let bytes = (rows.saturating_mul(columns)).saturating_mul(size_of::<T>() * operation.matrices());
    let count = sets_beyond_cache(stream.device(), bytes as u64);
    let x = draw::<T>(stream, 0, shape)?;
    let needs_other = operation != RowOperation::LayerNorm && operation != RowOperation::RmsNorm;
    let other = needs_other.then(|| draw::<T>(stream, 1, shape)).transpose()?;
    let set = || -> Result<NormSet<T>> {
        Ok(NormSet {
            x: x.deep_clone()?,
            other: other.as_ref().map(Tensor::deep_clone).transpose()?,
            y: Tensor::zeros_on(stream, shape)?,
            second: needs_other.then(|| Tensor::zeros_on(stream, shape)).transpose()?,
            mean: Tensor::zeros_on(stream, [rows])?,
            deviation: Tensor::zeros_on(stream, [rows])?,
        })
    };
    let vector = |which| draw::<T>(stream, which, [1, columns])?.reshape([columns]);
    let mut measured = Norms {
        stream: stream.clone(),
        operation,
        sets: (0..count).map(|_| set()).collect::<Result<_>>()?,
        weight: vector(2)?,
        bias: vector(3)?,
        sums: [Tensor::zeros_on(stream, [columns])?, Tensor::zeros_on(stream, [columns])?],
    };
    let implementation = measured.implementation()?;
    measured.enqueue(0)?;
    Ok(RowSubject { operation: Box::new(measured), implementation, bytes: bytes as f64 })
}

impl<T: NormElement> Norms<T> {
    fn start<'a>(&'a self, x: &'a Tensor<T>) -> NormOp<'a, T> {
        match self.operation {
            RowOperation::LayerNorm | RowOperation::LayerNormTraining => {
                ops::layer_norm(x).weight(&self.weight).bias(&self.bias)
            }
            _ => ops::rms_norm(x).weight(&self.weight),
        }
    }

    fn implementation(&self) -> Result<Implementation> {
        let set = &self.sets[0];
        let forward = self.start(&set.x).implementation()?;
        match &set.other {
            Some(dy) if self.operation.is_training() => {
                let backward = self.start(&set.x).backward(dy).statistics(self.mean(set), &set.deviation);
                Ok(forward.then(backward.implementation()?))
            }
            _ => Ok(forward),
        }
    }

    fn mean<'a>(&self, set: &'a NormSet<T>) -> Option<&'a Tensor<f32>> {
        (self.operation == RowOperation::LayerNormTraining).then_some(&set.mean)
    }
}

impl<T: NormElement> Subject for Norms<T> {
    fn enqueue(&mut self, index: usize) -> Result<()> {
        let at = index % self.sets.len();
        let operation = self.operation;
        let is_layer = operation == RowOperation::LayerNormTraining;
        // Views: results are written through them.
        let NormSet { x, other, y, second, mean, deviation } = &self.sets[at];
        let (mut y, mut second) = (y.clone(), second.clone());
        let (mut mean_to, mut deviation_to) = (mean.clone(), deviation.clone());
        let norm = self.start(x).on(&self.stream);
        let Some(other) = other else {
            return norm.run_into(NormOutputs { y: Some(&mut y), ..NormOutputs::default() });
        };
        if !operation.is_training() {
            let outputs = NormOutputs { y: Some(&mut y), sum: second.as_mut(), ..NormOutputs::default() };
            return norm.residual(other).run_into(outputs);
        }
        norm.run_into(NormOutputs::<T, T> {
            y: Some(&mut y),
            sum: None,
            mean: is_layer.then_some(&mut mean_to),
            inverse_deviation: Some(&mut deviation_to),
        })?;
        let [mut dweight, mut dbias] = self.sums.clone();
        let outputs = NormGradientOutputs {
            dx: second.as_mut(),
            dweight: Some(&mut dweight),
            dbias: is_layer.then_some(&mut dbias),
            adds: false,
        };
        let gradient = self.start(x).backward(other).on(&self.stream);
        gradient.statistics(is_layer.then_some(mean), deviation).run_into(outputs)
    }
}
