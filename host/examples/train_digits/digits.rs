//! The digits, the network that reads them, and what its training needs, wherever it is trained.

use ndarray::{Array1, Array2, Axis, Ix1, Ix2};
use warpsmith::layers::{Linear, LinearSaved};
use warpsmith::ops::cross_entropy::LogitElement;
use warpsmith::ops::linear::{LinearGradientElement, LinearGradients, LinearInput};
use warpsmith::ops::{self, Activation};
use warpsmith::optim::{AdamW, AdamWOptions};
use warpsmith::weights::FloatElement;
use warpsmith::{Device, Tensor, Weights};

#[path = "../training/mod.rs"]
mod training;

use training::rate;
pub(crate) use training::{Random, Result, Worst, draw, exit, numbers, progress, scale};

static DIGITS: &[u8] = include_bytes!("../../data/digits-mlp/digits.safetensors");

/// Columns of each layer's input, and of the output.
pub(crate) const WIDTHS: [usize; 4] = [64, 256, 128, 10];
/// Images of a step.
pub(crate) const BATCH: usize = 64;

/// The images, row by row, and their labels.
pub(crate) struct Digits {
    pub(crate) train: Array2<f32>,
    pub(crate) labels: Array1<i64>,
    pub(crate) test: Array2<f32>,
    pub(crate) test_labels: Array1<i64>,
}

impl Digits {
    pub(crate) fn load() -> Result<Self> {
        let file = Weights::from_bytes(DIGITS)?;
        Ok(Self {
            train: file.array("x_train")?.into_dimensionality::<Ix2>()?,
            labels: file.array("y_train")?.into_dimensionality::<Ix1>()?,
            test: file.array("x_test")?.into_dimensionality::<Ix2>()?,
            test_labels: file.array("y_test")?.into_dimensionality::<Ix1>()?,
        })
    }
}

impl Random {
    /// Numbers 0 to `count` − 1 in any order.
    fn order(&mut self, count: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..count).collect();
        for last in (1..count).rev() {
            order.swap(last, (self.next() % (last as u64 + 1)) as usize);
        }
        order
    }
}

/// Element types that the network can be trained in.
pub(crate) trait Trained: LinearInput + LinearGradientElement + LogitElement + FloatElement {}

impl<T: LinearInput + LinearGradientElement + LogitElement + FloatElement> Trained for T {}

/// The mean loss of a batch, and the gradients of each layer.
pub(crate) type LossAndGradients<T> = (Tensor<f32>, Vec<LinearGradients<T, T>>);

/// Weights `[out, in]` and biases of three layers.
pub(crate) struct Network<T: LinearInput> {
    pub(crate) layers: [Linear<T>; 3],
}

impl<T: Trained> Network<T> {
    /// Weights between ±√(6 / in), as suits ReLU, and biases of 0.
    pub(crate) fn new(device: &Device, seed: u64) -> Result<Self> {
        let mut random = Random(seed);
        let mut layer = |index: usize, activation| {
            let (columns, rows) = (WIDTHS[index], WIDTHS[index + 1]);
            let limit = (6.0 / columns as f64).sqrt();
            let weights: Vec<T> =
                (0..rows * columns).map(|_| T::round((2.0 * random.unit() - 1.0) * limit)).collect();
            let weight = Tensor::from_slice(device, &weights, [rows, columns])?;
            Linear::new(weight, Some(Tensor::zeros(device, [rows])?), activation)
        };
        Ok(Self {
            layers: [layer(0, Activation::Relu)?, layer(1, Activation::Relu)?, layer(2, Activation::None)?],
        })
    }

    pub(crate) fn forward(&self, images: &Tensor<T>) -> warpsmith::Result<Tensor<T>> {
        self.layers[2].forward(&self.layers[1].forward(&self.layers[0].forward(images)?)?)
    }

    /// The mean loss, and the gradients of each layer.
    pub(crate) fn gradients(
        &self,
        images: &Tensor<T>,
        labels: &Tensor<i64>,
    ) -> warpsmith::Result<LossAndGradients<T>> {
        let mut saved: Vec<LinearSaved<T>> = Vec::new();
        let mut y = images.clone();
        for layer in &self.layers {
            let (next, of_layer) = layer.forward_train(&y)?;
            saved.push(of_layer);
            y = next;
        }
        let losses = ops::cross_entropy(&y, labels).run_with_gradient()?;
        let mut dy = losses.gradient;
        let mut gradients = Vec::new();
        for (layer, saved) in self.layers.iter().zip(&saved).rev() {
            let of_layer = layer.backward(saved, &dy)?;
            dy = of_layer.dx.clone();
            gradients.push(of_layer);
        }
        gradients.reverse();
        Ok((losses.loss, gradients))
    }

    /// An optimiser of all weights and biases.
    pub(crate) fn optimizer(&self, device: &Device) -> warpsmith::Result<AdamW> {
        let options = AdamWOptions { learning_rate: LEARNING_RATE, ..AdamWOptions::default() };
        let mut optimizer = AdamW::new(device, options)?;
        for (index, layer) in self.layers.iter().enumerate() {
            optimizer.add(format!("layers.{index}.weight"), T::any(layer.weight()))?;
            if let Some(bias) = layer.bias() {
                optimizer.add(format!("layers.{index}.bias"), T::any(bias))?;
            }
        }
        optimizer.set_max_norm(Some(1.0))?;
        Ok(optimizer)
    }
}

/// The highest learning rate.
pub(crate) const LEARNING_RATE: f64 = 2e-3;
/// Steps that it rises for.
pub(crate) const WARMUP: u64 = 20;

/// Gives so many batches of images and labels to `train`, in an order that follows from the seed, and returns the losses.
pub(crate) fn for_batches<T: Trained>(
    device: &Device,
    (images, labels): (&Array2<f32>, &Array1<i64>),
    seed: u64,
    steps: usize,
    mut train: impl FnMut(&Tensor<T>, &Tensor<i64>, u64) -> warpsmith::Result<Tensor<f32>>,
) -> Result<Vec<Tensor<f32>>> {
    let mut random = Random(!seed);
    let mut losses = Vec::new();
    let batches = images.nrows() / BATCH;
    while losses.len() < steps {
        // What is left over of an epoch is part of others, whose order is another.
        let order = random.order(images.nrows());
        let images = images.select(Axis(0), &order).mapv(|pixel| T::round(pixel.into()));
        let images = Tensor::from_array(device, &images)?;
        let labels = Tensor::from_array(device, &labels.select(Axis(0), &order))?;
        for batch in 0..batches.min(steps - losses.len()) {
            let rows = batch * BATCH..(batch + 1) * BATCH;
            let step = losses.len() as u64;
            losses.push(train(&images.slice(0, rows.clone())?, &labels.slice(0, rows)?, step)?);
        }
    }
    Ok(losses)
}

/// The learning rate of a step of so many.
pub(crate) fn learning_rate(step: u64, steps: usize) -> f64 {
    rate(LEARNING_RATE, WARMUP, step, steps)
}

/// How many rows of logits are largest at the label.
pub(crate) fn count_correct(logits: &[f32], labels: &Array1<i64>) -> usize {
    let rows = logits.chunks_exact(WIDTHS[3]).zip(labels);
    rows.filter(|(logits, label)| largest(logits) == **label as usize).count()
}

pub(crate) fn largest(logits: &[f32]) -> usize {
    let mut largest = 0;
    for (class, logit) in logits.iter().enumerate() {
        if *logit > logits[largest] {
            largest = class;
        }
    }
    largest
}
