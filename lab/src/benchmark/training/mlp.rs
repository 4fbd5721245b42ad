//! Whole steps of a multi-layer perceptron.

use warpsmith::error::{Error, Result};
use warpsmith::ops::cross_entropy::CrossEntropyOutputs;
use warpsmith::ops::{self, Activation, Implementation};
use warpsmith::optim::{AdamW, Gradient};
use warpsmith::stream::Stream;
use warpsmith::tensor::Tensor;

use super::layer::{self, Gradients, Layer};
use super::{ADAMW_BYTES, OPERATION, Trained, TrainingSubject, draw, options};
use crate::benchmark::{Subject, sets_beyond_cache};

/// A network and its optimiser, with room for one batch.
pub(super) struct Mlp<T: Trained> {
    stream: Stream,
    layers: Vec<Layer<T>>,
    gradients: Vec<Gradients<T>>,
    /// The gradient of each layer's output; that of the logits is the last.
    dy: Vec<Tensor<T>>,
    pub(super) loss: Tensor<f32>,
    pub(super) optimizer: AdamW,
    /// Inputs and labels, through which the steps rotate.
    batches: Vec<(Tensor<T>, Tensor<i64>)>,
}

pub(super) fn subject<T: Trained>(
    stream: &Stream,
    batch: usize,
    widths: &[usize],
) -> Result<TrainingSubject> {
    let mut measured = Mlp::<T>::new(stream, batch, widths)?;
    let (mut flops, mut bytes) = (0.0, 0.0);
    for (index, layer) in measured.layers.iter().enumerate() {
        let [k, n] = [widths[index], widths[index + 1]];
        let products = if index == 0 { 2.0 } else { 3.0 };
        flops += 2.0 * products * batch as f64 * k as f64 * n as f64;
        bytes += layer::bytes::<T>(activation(index, widths), [batch, k, n], index > 0);
        // A copy that is rounded is written once more.
        let rounded = if size_of::<T>() < 4 { size_of::<T>() } else { 0 };
        bytes += (layer.weight.len() + n) as f64 * (ADAMW_BYTES + rounded) as f64;
    }
    // The logits and their gradient.
    bytes += 2.0 * batch as f64 * measured.loss_columns() as f64 * size_of::<T>() as f64;
    let implementation = measured.implementation()?;
    // The first step makes tables, which cannot be captured.
    measured.enqueue(0)?;
    Ok(TrainingSubject { operation: Box::new(measured), implementation, flops, bytes })
}

/// ReLU but after the last layer.
const fn activation(index: usize, widths: &[usize]) -> Activation {
    if index + 2 < widths.len() { Activation::Relu } else { Activation::None }
}

impl<T: Trained> Mlp<T> {
    pub(super) fn new(stream: &Stream, batch: usize, widths: &[usize]) -> Result<Self> {
        let (&[inputs, .., classes], true) = (widths, batch > 0 && !widths.contains(&0)) else {
            return Err(Error::Argument {
                operation: OPERATION,
                argument: "sizes",
                expected: "rows, and columns of the input and of each layer's output, all above 0".into(),
                actual: format!("{batch} rows, columns {widths:?}"),
            });
        };
        let (mut layers, mut gradients, mut dy) = (Vec::new(), Vec::new(), Vec::new());
        let mut optimizer = stream.as_default(|| AdamW::new(stream.device(), options()))?;
        for (index, sides) in widths.windows(2).enumerate() {
            let [k, n] = [sides[0], sides[1]];
            // What suits ReLU.
            let limit = (6.0 / k as f64).sqrt();
            let layer = Layer::<T>::new(stream, activation(index, widths), [k, n], limit)?;
            stream.as_default(|| -> Result<()> {
                optimizer.add(format!("{index}.weight"), T::any(&layer.weight))?;
                optimizer.add(format!("{index}.bias"), T::any(&layer.bias))
            })?;
            gradients.push(Gradients::new(stream, &layer, batch)?);
            dy.push(Tensor::zeros_on(stream, [batch, n])?);
            layers.push(layer);
        }
        let x = draw::<T>(stream, 6, [batch, inputs], 1.0)?;
        let labels: Vec<i64> = (0..batch).map(|row| (row * 7919 % classes) as i64).collect();
        let bytes = batch * (inputs * size_of::<T>() + size_of::<i64>());
        let of_batch = || -> Result<(Tensor<T>, Tensor<i64>)> {
            let labels = stream.as_default(|| Tensor::from_slice(stream.device(), &labels, [batch]))?;
            Ok((x.deep_clone()?, labels))
        };
        let count = sets_beyond_cache(stream.device(), bytes as u64);
        let batches = (0..count).map(|_| of_batch()).collect::<Result<_>>()?;
        let loss = Tensor::zeros_on(stream, [1])?;
        Ok(Self { stream: stream.clone(), layers, gradients, dy, loss, optimizer, batches })
    }

    fn loss_columns(&self) -> usize {
        self.layers.last().map_or(0, |layer| layer.bias.len())
    }

    /// The input of a layer in the step that reads batch number `at`.
    fn input(&self, layer: usize, at: usize) -> &Tensor<T> {
        match layer {
            0 => &self.batches[at].0,
            _ => &self.gradients[layer - 1].y,
        }
    }

    fn implementation(&self) -> Result<Implementation> {
        let mut all = Implementation::Empty;
        let count = self.layers.len();
        for (index, (layer, gradients)) in self.layers.iter().zip(&self.gradients).enumerate() {
            all = all.then(layer.forward_implementation(gradients, self.input(index, 0))?);
        }
        let logits = &self.gradients[count - 1].y;
        all = all.then(ops::cross_entropy(logits, &self.batches[0].1).implementation()?);
        // Of the first layer less is computed than an operation of all gradients would say.
        for index in (1..count).rev() {
            let (layer, gradients) = (&self.layers[index], &self.gradients[index]);
            let backward = layer.backward(gradients, self.input(index, 0), &self.dy[index]);
            all = all.then(backward.implementation()?);
        }
        Ok(all.then(self.optimizer.implementation(&weight_gradients(&self.gradients))?))
    }
}

/// The gradients of all weights as a step takes them.
fn weight_gradients<T: Trained>(gradients: &[Gradients<T>]) -> Vec<Option<Gradient<'_>>> {
    gradients.iter().flat_map(|of| [&of.dw, &of.db]).map(|of| Some(of.into())).collect()
}

impl<T: Trained> Subject for Mlp<T> {
    fn enqueue(&mut self, index: usize) -> Result<()> {
        let (at, count) = (index % self.batches.len(), self.layers.len());
        for (index, (layer, gradients)) in self.layers.iter().zip(&self.gradients).enumerate() {
            layer.run(&self.stream, gradients, self.input(index, at))?;
        }
        // Views: results are written through them.
        let (mut loss, mut of_logits) = (self.loss.clone(), self.dy[count - 1].clone());
        let outputs = CrossEntropyOutputs {
            loss: Some(&mut loss),
            gradient: Some(&mut of_logits),
            ..CrossEntropyOutputs::default()
        };
        let logits = &self.gradients[count - 1].y;
        ops::cross_entropy(logits, &self.batches[at].1).on(&self.stream).run_into(outputs)?;
        for index in (0..count).rev() {
            let (layer, gradients) = (&self.layers[index], &self.gradients[index]);
            let dx = index.checked_sub(1).map(|before| &self.dy[before]);
            layer.run_backward(&self.stream, gradients, self.input(index, at), &self.dy[index], dx)?;
        }
        self.optimizer.step_on(&self.stream, &weight_gradients(&self.gradients))
    }
}
