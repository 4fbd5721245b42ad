//! Times of whole steps of replicas: forward and backward pass, averages, optimiser; beside those of one rank without averages.

use half::bf16;
use warpsmith::layers::Linear;
use warpsmith::ops::Activation;
use warpsmith::ops::linear::LinearGradientOutputs;
use warpsmith::optim::{AdamW, AdamWOptions};
use warpsmith::{Device, DeviceKind, Stream, StreamPriority, Tensor};
use warpsmith_parallel::data::{GradientOptions, Gradients, Wire};
use warpsmith_parallel::{Communicator, NcclOptions, Result};

use crate::timing::{Few, median_of, numbers};
use crate::{Arguments, Rank};

/// Layers of the model.
const LAYERS: usize = 4;
/// Bytes of a bucket, in MiB.
const BUCKETS: [usize; 2] = [64, 256];
/// The most thread blocks of NCCL's kernels.
const MAX_CTAS: [Option<u32>; 4] = [None, Some(16), Some(8), Some(4)];

/// Layers of `side` by `side` weights, of which each rank has as many rows.
pub(crate) struct Model {
    layers: Vec<Linear<bf16>>,
    x: Tensor<bf16>,
    dy: Tensor<bf16>,
    /// Gradients that are not averaged.
    own: Vec<Tensor<f32>>,
    optimizer: AdamW,
}

impl Model {
    pub(crate) fn new(device: &Device, side: usize) -> Result<Self> {
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
    pub(crate) fn averages(
        &self,
        communicator: &Communicator,
        options: GradientOptions,
    ) -> Result<Gradients> {
        let shapes: Vec<_> = self.own.iter().map(Tensor::shape).collect();
        Gradients::new(communicator, self.x.device(), &shapes, options)
    }

    /// A step. `mark` is called before and after each layer's backward pass.
    pub(crate) fn step(
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
            layer.backward_operation(&saved[index], &dy).run_into(outputs)?;
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
pub(crate) fn replicas(arguments: &Arguments, rank: &Rank) -> Result<()> {
    let (Rank { communicator, device, host, .. }, side) = (rank, arguments.side);
    let (stream, size) = (device.default_stream(), communicator.size() as f64);
    let mut model = Model::new(device, side)?;
    let alone = median_of(rank, &stream, Few::STEPS, || model.step(None, |_, _| Ok(())))?;
    let shape = format!("{LAYERS}x{side}x{side}");
    rank.say(&format!(
        "{LAYERS} layers {side} × {side} bf16, {side} rows a rank, whole steps: alone {alone:.0} µs; \
         speed of {} ranks over one's, with averages at",
        communicator.size()
    ));
    rank.say(&format!("wire, CTAs | {}", settings().map(|at| at.0).collect::<Vec<_>>().join(" | ")));
    for max_ctas in MAX_CTAS {
        let communicator = match (device.kind(), max_ctas) {
            (_, None) => communicator.clone(),
            (DeviceKind::Cuda(_), _) => {
                Communicator::nccl(host, device, NcclOptions::default().with_max_ctas(max_ctas))?
            }
            // Others have no thread blocks.
            _ => break,
        };
        for wire in [Wire::F32, Wire::Bf16] {
            let ctas = max_ctas.map_or_else(|| "NCCL's".into(), |of| of.to_string());
            let mut speeds = Vec::new();
            for (name, options) in settings() {
                let mut averages = model.averages(&communicator, GradientOptions { wire, ..options })?;
                let together =
                    median_of(rank, &stream, Few::STEPS, || model.step(Some(&mut averages), |_, _| Ok(())))?;
                speeds.push(format!("{:.2}", size * alone / together));
                let variant = format!("{wire:?} on the wire, {name}, CTAs {ctas}");
                rank.row("data parallel step", "bf16", &shape, &variant, together, Some(("one rank", alone)));
            }
            rank.say(&format!("{wire:?}, {ctas} | {}", speeds.join(" | ")));
        }
    }
    Ok(())
}

/// Buckets and priorities, with their names.
fn settings() -> impl Iterator<Item = (String, GradientOptions)> {
    [StreamPriority::Normal, StreamPriority::High].into_iter().flat_map(|priority| {
        BUCKETS.into_iter().map(move |mib| {
            let options = GradientOptions { bucket_bytes: mib << 20, priority, ..GradientOptions::default() };
            (format!("{mib} MiB, {priority:?}"), options)
        })
    })
}
