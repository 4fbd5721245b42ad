//! Times of whole steps of replicas: forward and backward pass, averages, optimiser; beside those of one rank without averages.

use crate::data::{GradientOptions, Gradients, Wire};
use crate::{Communicator, Result};
use half::bf16;
use warpsmith::layers::Linear;
use warpsmith::ops::Activation;
use warpsmith::ops::linear::LinearGradientOutputs;
use warpsmith::optim::{AdamW, AdamWOptions};
use warpsmith::{Device, Stream, Tensor};

use super::timing::{Few, median_of, numbers};
use super::{Options, Rank};

/// Layers of the model.
const LAYERS: usize = 4;
/// Bytes of a bucket, in MiB.
const BUCKETS: [usize; 2] = [64, 256];

/// Layers of `side` by `side` weights, of which each rank has as many rows.
pub(super) struct Model {
    layers: Vec<Linear<bf16>>,
    x: Tensor<bf16>,
    dy: Tensor<bf16>,
    /// Gradients that are not averaged.
    own: Vec<Tensor<f32>>,
    optimizer: AdamW,
}

impl Model {
    pub(super) fn new(device: &Device, side: usize) -> Result<Self> {
        let shape = [side, side];
        // Weights stay as they are, but for a last bit now and then: so all steps take as long.
        let options = AdamWOptions { learning_rate: 1e-9, weight_decay: 0.0, ..AdamWOptions::default() };
        let mut optimizer = AdamW::new(device, options)?;
        let (mut layers, mut own) = (Vec::new(), Vec::new());
        for index in 0..LAYERS {
            let weight = numbers(device, 3 + index, shape)?;
            optimizer.add(format!("layers.{index}"), &weight)?;
            layers.push(Linear::new(weight, None, Activation::Relu)?);
            own.push(Tensor::zeros(device, shape)?);
        }
        Ok(Self { layers, x: numbers(device, 1, shape)?, dy: numbers(device, 2, shape)?, own, optimizer })
    }

    /// Gradients of the model that are averaged.
    pub(super) fn averages(
        &self,
        communicator: &Communicator,
        options: GradientOptions,
    ) -> Result<Gradients> {
        let shapes: Vec<_> = self.own.iter().map(Tensor::shape).collect();
        Gradients::new(communicator, self.x.device(), &shapes, options)
    }

    /// A step. `mark` is called before and after each layer's backward pass.
    pub(super) fn step(
        &mut self,
        mut averages: Option<&mut Gradients>,
        mut mark: impl FnMut(usize, Option<&Stream>) -> Result<()>,
    ) -> Result<()> {
        let (mut h, mut saved) = (self.x.clone(), Vec::new());
        for layer in &self.layers {
            let (y, kept) = layer.forward_train(&h)?;
            saved.push(kept);
            h = y;
        }
        let mut dy = self.dy.clone();
        for (index, layer) in self.layers.iter().enumerate().rev() {
            let mut dw = match &averages {
                Some(averages) => averages.tensor(index)?,
                None => self.own[index].clone(),
            };
            let mut dx = Tensor::uninit(dy.device(), dy.shape())?;
            let outputs =
                LinearGradientOutputs { dx: Some(&mut dx), dw: Some(&mut dw), ..Default::default() };
            mark(index, None)?;
            let stream = dy.device().default_stream();
            // Beside averages that are under way, products leave them multiprocessors.
            let stream =
                averages.as_ref().map_or_else(|| stream.clone(), |averages| averages.beside(&stream));
            layer.backward_operation(&saved[index], &dy).on(&stream).run_into(outputs)?;
            mark(index, None)?;
            if let Some(averages) = &mut averages {
                mark(index, Some(averages.stream()))?;
                averages.ready(index)?;
                mark(index, Some(averages.stream()))?;
            }
            dy = dx;
        }
        let gradients = match averages {
            Some(averages) => {
                averages.finish()?;
                averages.tensors()?
            }
            None => self.own.clone(),
        };
        Ok(self.optimizer.step(&gradients.iter().map(Into::into).collect::<Vec<_>>())?)
    }
}

/// Weak scaling: each rank has as many rows as one rank alone.
pub(super) fn replicas(options: &Options, rank: &Rank) -> Result<()> {
    let (Rank { communicator, device, .. }, side) = (rank, options.side);
    let (stream, size) = (device.default_stream(), communicator.size() as f64);
    let mut model = Model::new(device, side)?;
    let alone = median_of(rank, &stream, Few::STEPS, || model.step(None, |_, _| Ok(())))?;
    let shape = format!("{LAYERS}x{side}x{side}");
    rank.say(&format!(
        "{LAYERS} layers {side} × {side} bf16, {side} rows a rank, whole steps: alone {alone:.0} µs; \
         speed of {} ranks over one's, with averages at",
        communicator.size()
    ));
    rank.say(&format!("wire, sharing | {}", settings().map(|at| at.0).collect::<Vec<_>>().join(" | ")));
    for &sharing in rank.sharings() {
        let communicator = rank.sharing(sharing)?;
        let shared = sharing.name();
        for wire in [Wire::F32, Wire::Bf16] {
            let mut speeds = Vec::new();
            for (name, options) in settings() {
                let mut averages = model.averages(&communicator, GradientOptions { wire, ..options })?;
                let together =
                    median_of(rank, &stream, Few::STEPS, || model.step(Some(&mut averages), |_, _| Ok(())))?;
                speeds.push(format!("{:.2}", size * alone / together));
                let variant = format!("{wire:?} on the wire, {name}, {shared}");
                rank.row("data parallel step", "bf16", &shape, &variant, together, Some(("one rank", alone)));
            }
            rank.say(&format!("{wire:?}, {shared} | {}", speeds.join(" | ")));
        }
    }
    Ok(())
}

/// Buckets, with their names.
fn settings() -> impl Iterator<Item = (String, GradientOptions)> {
    BUCKETS.into_iter().map(|mib| {
        (format!("{mib} MiB"), GradientOptions { bucket_bytes: mib << 20, ..GradientOptions::default() })
    })
}
