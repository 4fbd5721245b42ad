//! Measuring operations on rows.

use half::{bf16, f16};
use warpsmith::error::{Error, Result};
use warpsmith::ops::norm::{NormElement, NormGradientOutputs, NormOp, NormOutputs};
use warpsmith::ops::{self, Implementation};
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
}

impl RowOperation {
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::LayerNorm, Self::RmsNorm, Self::RmsNormOfSum, Self::LayerNormTraining, Self::RmsNormTraining];

    /// A name, in words that hyphens join.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::LayerNorm => "layer-norm",
            Self::RmsNorm => "rms-norm",
            Self::RmsNormOfSum => "rms-norm-residual",
            Self::LayerNormTraining => "layer-norm-training",
            Self::RmsNormTraining => "rms-norm-training",
        }
    }

    /// Matrices of the rows' size that it must read and write.
    #[must_use]
    pub const fn matrices(self) -> usize {
        match self {
            Self::LayerNorm | Self::RmsNorm => 2,
            Self::RmsNormOfSum => 4,
            Self::LayerNormTraining | Self::RmsNormTraining => 5,
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
        DType::F16 => norms::<f16>(stream, operation, [rows, columns]),
        DType::Bf16 => norms::<bf16>(stream, operation, [rows, columns]),
        DType::F32 => norms::<f32>(stream, operation, [rows, columns]),
        actual => Err(Error::Type {
            operation: OPERATION,
            operand: "x",
            expected: "f16, bf16 or f32".into(),
            actual,
        }),
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
