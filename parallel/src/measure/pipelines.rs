//! Times of pipelines, beside the same layers without any waiting, the formulas and the simulation.

use std::collections::HashMap;

use crate::pipeline::{Costs, Links, Place, Schedule, Stage, run, simulate};
use crate::{Error, Result};
use half::bf16;
use warpsmith::layers::{Linear, LinearSaved};
use warpsmith::ops::Activation;
use warpsmith::ops::linear::LinearGradientOutputs;
use warpsmith::{DeviceKind, Event, Stream, Tensor};

use super::checks::wrong;
use super::timing::{Few, median_of, numbers};
use super::{Options, Rank, Sharing};

/// Layers of a stage.
const LAYERS: usize = 4;
/// Parts of a batch.
pub(super) const MICROBATCHES: usize = 8;

/// What a stage keeps of a microbatch: of each layer what its backward pass needs, and the gradient of its output.
struct Kept {
    saved: Vec<LinearSaved<bf16>>,
    dy: Vec<Tensor<bf16>>,
}

/// A stage of some layers, in chunks of as many.
pub(super) struct Layers {
    layers: Vec<Linear<bf16>>,
    chunks: usize,
    input: Tensor<bf16>,
    dw: Tensor<f32>,
    kept: HashMap<Place, Kept>,
    stream: Stream,
    /// Where a timeline is asked for: each pass with the events before and after it.
    pub(super) passes: Option<Vec<(String, [Event; 2])>>,
}

impl Layers {
    pub(super) fn new(rank: &Rank, side: usize) -> Result<Self> {
        let (device, shape) = (&rank.device, [side, side]);
        let weight = numbers(device, 1, shape)?;
        let layer = Linear::new(weight, None, Activation::None)?;
        Ok(Self {
            layers: vec![layer; LAYERS],
            chunks: 1,
            input: numbers(device, 2, shape)?,
            dw: Tensor::zeros(device, shape)?,
            kept: HashMap::new(),
            stream: device.default_stream(),
            passes: None,
        })
    }

    /// The layers of a chunk.
    fn of(&self, place: Place) -> Vec<Linear<bf16>> {
        let each = self.layers.len() / self.chunks;
        self.layers[place.chunk * each..(place.chunk + 1) * each].to_vec()
    }

    /// Does a pass, with events before and after it where they are asked for.
    fn marked<R>(
        &mut self,
        name: &str,
        place: Place,
        pass: impl FnOnce(&mut Self) -> Result<R>,
    ) -> Result<R> {
        if self.passes.is_none() {
            return pass(self);
        }
        let start = self.stream.record()?;
        let result = pass(self)?;
        let end = self.stream.record()?;
        if let Some(passes) = &mut self.passes {
            passes.push((format!("{name}{}", place.microbatch), [start, end]));
        }
        Ok(result)
    }

    /// One microbatch after the other, without other stages.
    fn alone(&mut self) -> Result<()> {
        for microbatch in 0..MICROBATCHES {
            for chunk in 0..self.chunks {
                self.forward(Place { microbatch, chunk }, None)?;
            }
            for chunk in (0..self.chunks).rev() {
                self.backward_input(Place { microbatch, chunk }, None)?;
                self.backward_weight(Place { microbatch, chunk })?;
            }
        }
        Ok(())
    }
}

impl Stage<bf16> for Layers {
    fn input_shape(&self, _: Place) -> Vec<usize> {
        self.input.shape().to_vec()
    }

    fn output_shape(&self, _: Place) -> Vec<usize> {
        self.input.shape().to_vec()
    }

    fn forward(&mut self, place: Place, x: Option<Tensor<bf16>>) -> Result<Tensor<bf16>> {
        self.marked("F", place, |stage| {
            let (mut h, mut saved) = (x.unwrap_or_else(|| stage.input.clone()), Vec::new());
            for layer in stage.of(place) {
                let (y, kept) = layer.forward_train(&h)?;
                saved.push(kept);
                h = y;
            }
            stage.kept.insert(place, Kept { saved, dy: Vec::new() });
            Ok(h)
        })
    }

    fn backward_input(&mut self, place: Place, dy: Option<Tensor<bf16>>) -> Result<Tensor<bf16>> {
        self.marked("B", place, |stage| {
            let mut dy = dy.unwrap_or_else(|| stage.input.clone());
            let layers = stage.of(place);
            let kept = stage.kept.get_mut(&place).ok_or_else(|| without_forward(place))?;
            for (layer, saved) in layers.iter().zip(&kept.saved).rev() {
                let dx = layer.backward_operation(saved, &dy).dx()?;
                kept.dy.push(std::mem::replace(&mut dy, dx));
            }
            Ok(dy)
        })
    }

    fn backward_weight(&mut self, place: Place) -> Result<()> {
        self.marked("W", place, |stage| {
            let layers = stage.of(place);
            let kept = stage.kept.remove(&place).ok_or_else(|| without_forward(place))?;
            for ((layer, saved), dy) in layers.iter().zip(&kept.saved).rev().zip(&kept.dy) {
                let outputs =
                    LinearGradientOutputs { dw: Some(&mut stage.dw), adds: true, ..Default::default() };
                layer.backward_operation(saved, dy).run_into(outputs)?;
            }
            Ok(())
        })
    }
}

fn without_forward(place: Place) -> Error {
    wrong("place", "one whose forward pass is done".into(), format!("{place:?}"))
}

/// What connects the ranks' stages.
pub(super) fn links(rank: &Rank, sharing: Sharing) -> Result<Links> {
    match rank.device.kind() {
        DeviceKind::Cuda(_) => Links::nccl(&rank.host, &rank.device, sharing.options()),
        _ => Links::over_host(&rank.sharing(sharing)?, &rank.device),
    }
}

/// The time of a transfer from each even stage to the one after it, in µs. All ranks get the longest.
fn transfer(rank: &Rank, side: usize) -> Result<f64> {
    let (number, size) = (rank.communicator.rank(), rank.communicator.size());
    let stream = rank.device.new_stream()?;
    let communicator = rank.communicator.on(&stream);
    let mut activation = Tensor::<bf16>::zeros_on(&stream, [side, side])?;
    let own = median_of(rank, &stream, Few::CALLS, || match number % 2 {
        0 if number + 1 < size => communicator.send(&activation, number + 1),
        0 => Ok(()),
        _ => communicator.recv(&mut activation, number - 1),
    })?;
    let all = communicator.gather_bytes(own.to_le_bytes().to_vec())?;
    let times = all.iter().filter_map(|bytes| Some(f64::from_le_bytes(bytes.as_slice().try_into().ok()?)));
    Ok(times.fold(0.0, f64::max))
}

/// Pipelines of several layers a stage.
pub(super) fn pipelines(options: &Options, rank: &Rank) -> Result<()> {
    let (size, side) = (rank.communicator.size(), options.side / 2);
    let stream = rank.device.default_stream();
    let mut stage = Layers::new(rank, side)?;
    let alone = median_of(rank, &stream, Few::STEPS, || stage.alone())?;
    let transfer = transfer(rank, side)?;
    // Each of the three passes makes as many products.
    let nanoseconds = |time: f64| (time * 1e3) as u64;
    let pass = nanoseconds(alone / (3 * MICROBATCHES) as f64);
    let shape = format!("{size}x{LAYERS}x{side}x{side}");
    rank.say(&format!(
        "pipeline, {MICROBATCHES} microbatches, {LAYERS} layers {side} × {side} bf16 a stage: alone {alone:.0} µs, \
         a transfer {transfer:.0} µs; bubbles by formula | with transfers, simulated | measured"
    ));
    for &sharing in rank.sharings() {
        let (links, shared) = (links(rank, sharing)?, sharing.name());
        for schedule in [
            Schedule::OneForwardOneBackward,
            Schedule::EagerOneForwardOneBackward,
            Schedule::ZeroBubble,
            Schedule::EagerZeroBubble,
            Schedule::Interleaved { chunks: 2 },
        ] {
            let chunks = schedule.chunks();
            if chunks > 1 && (size == 1 || !MICROBATCHES.is_multiple_of(size)) {
                continue;
            }
            let actions = schedule.all(size, MICROBATCHES)?;
            let formula = simulate(&actions, chunks, Costs::default())?.bubble();
            let of_chunk = pass / chunks as u64;
            let costs = Costs {
                forward: of_chunk,
                backward_input: of_chunk,
                backward_weight: of_chunk,
                send: nanoseconds(transfer),
            };
            let simulated = simulate(&actions, chunks, costs)?.bubble();
            stage.chunks = chunks;
            let together =
                median_of(rank, &stream, Few::STEPS, || run(schedule, MICROBATCHES, &links, &mut stage))?;
            let measured = together / alone - 1.0;
            rank.say(&format!(
                "{schedule:?}, {shared}: {:.1} % | {:.1} % | {:.1} %, {together:.0} µs",
                100.0 * formula,
                100.0 * simulated,
                100.0 * measured
            ));
            let variant =
                format!("{schedule:?}, {MICROBATCHES} microbatches, {shared}, bubble {measured:.3}");
            rank.row("pipeline step", "bf16", &shape, &variant, together, Some(("one stage alone", alone)));
        }
    }
    Ok(())
}
