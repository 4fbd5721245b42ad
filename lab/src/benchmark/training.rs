//! Measuring what training does: gradients of linear layers, optimiser steps, and whole steps of multi-layer perceptrons.

mod layer;
mod mlp;

use half::{bf16, f16};
use warpsmith::error::{Error, Result};
use warpsmith::ops::cross_entropy::LogitElement;
use warpsmith::ops::linear::{LinearGradientElement, LinearInput};
use warpsmith::ops::{Activation, Implementation};
use warpsmith::optim::{AdamW, AdamWOptions, Gradient};
use warpsmith::stream::Stream;
use warpsmith::tensor::{DType, Tensor};
use warpsmith::weights::FloatElement;

use super::{Subject, sets_beyond_cache};
use crate::cases::Data;
use layer::{Gradients, Layer};

/// The operation's name in errors.
const OPERATION: &str = "benchmark::training";
/// Bytes that AdamW reads and writes of a weight in f32: the weight and two moments twice, and the gradient.
const ADAMW_BYTES: usize = 28;
/// Bytes of a weight in f32, its gradient and its moments.
const ADAMW_MEMORY: usize = 16;

/// A part of training.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TrainingWork {
    /// A linear layer with a bias, and the gradients of x, of the weight and of the bias, the last two in f32.
    Linear {
        /// The layer's activation.
        activation: Activation,
        /// Rows of x, columns of x, and columns of y.
        shape: [usize; 3],
    },
    /// A step of AdamW over vectors of f32 with gradients of f32.
    AdamW {
        /// Elements of each vector.
        lengths: Vec<usize>,
    },
    /// A step of a multi-layer perceptron with ReLU between its layers: forward pass, mean cross-entropy, backward pass and AdamW. Weights of 16 bits have a copy in
    /// f32; moments are f32. Batches rotate through memory; the network is one, as in training.
    Mlp {
        /// Rows of a batch.
        batch: usize,
        /// Columns of the input and of each layer's output; the last are those of the logits.
        widths: Vec<usize>,
    },
}

/// A part of training ready to be measured.
pub struct TrainingSubject {
    /// The work.
    pub operation: Box<dyn Subject>,
    /// What it runs; of many launches not all are named.
    pub implementation: Implementation,
    /// Floating-point operations of its products.
    pub flops: f64,
    /// Bytes that it must read and write.
    pub bytes: f64,
}

/// Places what `work` needs on the stream's device, in elements of type `dtype`, and runs it so often that it can be captured.
///
/// # Errors
///
/// [`Error::Type`] if the type is not f16, bf16 or f32, or, for AdamW, not f32; [`Error::Argument`] if a network has no layer; [`Error::OutOfMemory`] if the host or
/// the device cannot hold the operands; otherwise whatever the operations return.
pub fn training_subject(stream: &Stream, work: &TrainingWork, dtype: DType) -> Result<TrainingSubject> {
    let refused = |expected: &str| {
        Err(Error::Type {
            operation: OPERATION,
            operand: "weights",
            expected: expected.into(),
            actual: dtype,
        })
    };
    match (work, dtype) {
        (TrainingWork::AdamW { lengths }, DType::F32) => adamw(stream, lengths),
        (TrainingWork::AdamW { .. }, _) => refused("f32"),
        (_, DType::F16) => of_layers::<f16>(stream, work),
        (_, DType::Bf16) => of_layers::<bf16>(stream, work),
        (_, DType::F32) => of_layers::<f32>(stream, work),
        _ => refused("f16, bf16 or f32"),
    }
}

/// A type of layers.
trait Trained: LinearInput + LinearGradientElement + LogitElement + FloatElement {}
impl<T: LinearInput + LinearGradientElement + LogitElement + FloatElement> Trained for T {}

fn of_layers<T: Trained>(stream: &Stream, work: &TrainingWork) -> Result<TrainingSubject> {
    match work {
        TrainingWork::Linear { activation, shape } => linear::<T>(stream, *activation, *shape),
        TrainingWork::Mlp { batch, widths } => mlp::subject::<T>(stream, *batch, widths),
        TrainingWork::AdamW { lengths } => adamw(stream, lengths),
    }
}

/// Drawn elements on the device, evenly between ± `limit`.
fn draw<T: FloatElement>(
    stream: &Stream,
    which: u64,
    [rows, columns]: [usize; 2],
    limit: f64,
) -> Result<Tensor<T>> {
    let drawn = Data::Uniform.draw(1, which, (rows, columns), 1, |v| v)?;
    let drawn = drawn.mapv(|v| T::round(f64::from(v) * limit));
    stream.as_default(|| Tensor::from_array(stream.device(), &drawn))
}

/// What one launch of a layer works on.
struct Set<T: Trained> {
    layer: Layer<T>,
    gradients: Gradients<T>,
    x: Tensor<T>,
    dy: Tensor<T>,
    dx: Tensor<T>,
}

/// A layer that is measured.
struct Linear<T: Trained> {
    stream: Stream,
    sets: Vec<Set<T>>,
}

fn linear<T: Trained>(
    stream: &Stream,
    activation: Activation,
    shape @ [m, k, n]: [usize; 3],
) -> Result<TrainingSubject> {
    let mut measured = linear_sets::<T>(stream, activation, shape)?;
    let implementation = measured.implementation()?;
    measured.enqueue(0)?;
    let flops = 6.0 * m as f64 * k as f64 * n as f64;
    let bytes = layer::bytes::<T>(activation, shape, true);
    Ok(TrainingSubject { operation: Box::new(measured), implementation, flops, bytes })
}

fn linear_sets<T: Trained>(
    stream: &Stream,
    activation: Activation,
    shape @ [m, k, n]: [usize; 3],
) -> Result<Linear<T>> {
    let count = sets_beyond_cache(stream.device(), layer::bytes::<T>(activation, shape, true) as u64);
    let first = Layer::<T>::new(stream, activation, [k, n], 1.0)?;
    let (x, dy) = (draw::<T>(stream, 2, [m, k], 1.0)?, draw::<T>(stream, 3, [m, n], 1.0)?);
    let set = || -> Result<Set<T>> {
        let layer = first.deep_clone()?;
        let gradients = Gradients::new(stream, &layer, m)?;
        let dx = Tensor::zeros_on(stream, [m, k])?;
        Ok(Set { layer, gradients, x: x.deep_clone()?, dy: dy.deep_clone()?, dx })
    };
    let sets = (0..count).map(|_| set()).collect::<Result<_>>()?;
    Ok(Linear { stream: stream.clone(), sets })
}

impl<T: Trained> Linear<T> {
    fn implementation(&self) -> Result<Implementation> {
        let Some(Set { layer, gradients, x, dy, .. }) = self.sets.first() else {
            return Ok(Implementation::Empty);
        };
        let forward = layer.forward_implementation(gradients, x)?;
        Ok(forward.then(layer.backward(gradients, x, dy).implementation()?))
    }
}

impl<T: Trained> Subject for Linear<T> {
    fn enqueue(&mut self, index: usize) -> Result<()> {
        let at = index % self.sets.len();
        let Set { layer, gradients, x, dy, dx } = &self.sets[at];
        layer.run(&self.stream, gradients, x)?;
        layer.run_backward(&self.stream, gradients, x, dy, Some(dx))
    }
}

/// The options of a measured optimiser: steps so short that weights stay what they are, however often one is repeated.
fn options() -> AdamWOptions {
    AdamWOptions { learning_rate: 1e-6, ..AdamWOptions::default() }
}

/// An optimiser that is measured. Each set has one of its own, since a captured step reads its gradients where the step before did.
struct Steps {
    stream: Stream,
    sets: Vec<(AdamW, Vec<Tensor<f32>>)>,
}

fn adamw(stream: &Stream, lengths: &[usize]) -> Result<TrainingSubject> {
    let count: usize = lengths.iter().sum();
    let sets = sets_beyond_cache(stream.device(), (count.saturating_mul(ADAMW_MEMORY)) as u64);
    let [weights, gradients] = [4, 5].map(|which| {
        let of_length = |&length: &usize| draw::<f32>(stream, which, [1, length], 1.0)?.reshape([length]);
        lengths.iter().map(of_length).collect::<Result<Vec<_>>>()
    });
    let (weights, gradients) = (weights?, gradients?);
    let set = || -> Result<(AdamW, Vec<Tensor<f32>>)> {
        let mut optimizer = stream.as_default(|| AdamW::new(stream.device(), options()))?;
        for (number, weights) in weights.iter().enumerate() {
            let weights = weights.deep_clone()?;
            stream.as_default(|| optimizer.add(number.to_string(), &weights))?;
        }
        Ok((optimizer, gradients.iter().map(Tensor::deep_clone).collect::<Result<_>>()?))
    };
    let sets = (0..sets).map(|_| set()).collect::<Result<Vec<_>>>()?;
    let implementation = match sets.first() {
        Some((optimizer, gradients)) => optimizer.implementation(&all_of(gradients))?,
        None => Implementation::Empty,
    };
    let mut measured = Steps { stream: stream.clone(), sets };
    // The first step of each makes tables, which cannot be captured.
    (0..measured.sets.len()).try_for_each(|index| measured.enqueue(index))?;
    let bytes = (count.saturating_mul(ADAMW_BYTES)) as f64;
    Ok(TrainingSubject { operation: Box::new(measured), implementation, flops: 0.0, bytes })
}

impl Subject for Steps {
    fn enqueue(&mut self, index: usize) -> Result<()> {
        let at = index % self.sets.len();
        let (optimizer, gradients) = &mut self.sets[at];
        optimizer.step_on(&self.stream, &all_of(gradients))
    }
}

/// The gradients as a step takes them.
fn all_of(gradients: &[Tensor<f32>]) -> Vec<Option<Gradient<'_>>> {
    gradients.iter().map(|gradient| Some(gradient.into())).collect()
}

#[cfg(test)]
mod tests;
