//! Times of layers and steps on several ranks, beside one rank's.

use half::bf16;
use warpsmith::layers::{Linear, LinearSaved};
use warpsmith::ops::linear::LinearGradientOutputs;
use warpsmith::ops::peer::{ExpertFormat, ExpertLayout, ExpertTable, ExpertVectors, Routing};
use warpsmith::ops::{self, Activation};
use warpsmith::{Device, DeviceKind, Tensor};
use warpsmith_parallel::data::{GradientOptions, Gradients};
use warpsmith_parallel::experts::SplitExperts;
use warpsmith_parallel::pipeline::{Costs, Links, Place, Schedule, Stage, run, simulate};
use warpsmith_parallel::tensor::{ColumnLinear, RowLinear};
use warpsmith_parallel::{NcclOptions, Result};

use crate::checks::whole_numbers;
use crate::timing::median;
use crate::{Arguments, Rank};

/// Layers of the model whose steps are timed.
const LAYERS: usize = 4;
/// Parts of a batch in a pipeline.
const MICROBATCHES: usize = 8;

/// Numbers of both signs: products of zeros would need less power.
fn numbers(device: &Device, seed: usize, shape: [usize; 2]) -> Result<Tensor<bf16>> {
    let numbers = whole_numbers(seed, shape[0] * shape[1]).into_iter().map(|of| bf16::from_f32(of / 64.0));
    Ok(Tensor::from_slice(device, &numbers.collect::<Vec<_>>(), shape)?)
}

/// A multilayer perceptron, forwards and backwards: whole on each rank, and split.
pub(crate) fn split_layers(arguments: &Arguments, rank: &Rank) -> Result<()> {
    let (Rank { communicator, device, .. }, side) = (rank, arguments.side);
    let stream = device.default_stream();
    let (x, dy) = (numbers(device, 1, [side, side])?, numbers(device, 2, [side, side])?);
    let (up, down) = (numbers(device, 3, [side, side])?, numbers(device, 4, [side, side])?);
    let whole_up = Linear::new(up.clone(), None, Activation::Relu)?;
    let whole_down = Linear::new(down.clone(), None, Activation::None)?;
    let one = median(rank, &stream, || {
        let (h, saved_up) = whole_up.forward_train(&x)?;
        let (_, saved_down) = whole_down.forward_train(&h)?;
        let gradients = whole_down.backward(&saved_down, &dy)?;
        whole_up.backward(&saved_up, &gradients.dx)?;
        Ok(())
    })?;
    for pieces in [1, 2, 4, 8] {
        let up = ColumnLinear::split(communicator, &up, None, Activation::Relu)?.pieces(pieces);
        let down = RowLinear::split(communicator, &down, None)?.pieces(pieces);
        let split = median(rank, &stream, || {
            let (h, saved_up) = up.forward_train(&x)?;
            let (_, saved_down) = down.forward_train(&h)?;
            let gradients = down.backward(&saved_down, &dy)?;
            up.backward(&saved_up, &gradients.dx)?;
            Ok(())
        })?;
        rank.say(&format!(
            "MLP {side} × {side} × {side} bf16, forward and backward: whole {one:.0} µs, split, {pieces} pieces: \
             {split:.0} µs, {:.2} times as fast",
            one / split
        ));
    }
    Ok(())
}

/// Backward passes of layers with their averages, and without.
pub(crate) fn replicas(arguments: &Arguments, rank: &Rank) -> Result<()> {
    let (Rank { communicator, device, .. }, side) = (rank, arguments.side / 2);
    let stream = device.default_stream();
    let of = |seed| numbers(device, seed, [side, side]);
    let (x, weight, dy) = (of(1)?, of(2)?, of(3)?);
    let backward = |dw: &mut Tensor<f32>, dx: &mut Tensor<bf16>| -> Result<()> {
        let outputs =
            LinearGradientOutputs { dx: Some(dx), dw: Some(dw), ..LinearGradientOutputs::default() };
        Ok(ops::linear_backward(&x, &weight, &dy).run_into(outputs)?)
    };
    let (mut dw, mut dx) = (Tensor::zeros(device, [side, side])?, of(4)?);
    let alone = median(rank, &stream, || {
        for _ in 0..LAYERS {
            backward(&mut dw, &mut dx)?;
        }
        Ok(())
    })?;
    let shape = [side, side];
    for mib in [4, 25, 64, 256] {
        let options = GradientOptions { bucket_bytes: mib << 20, ..GradientOptions::default() };
        let mut gradients = Gradients::new(communicator, device, &[&shape[..]; LAYERS], options)?;
        let together = median(rank, &stream, || {
            for layer in (0..LAYERS).rev() {
                backward(&mut gradients.tensor(layer)?, &mut dx)?;
                gradients.ready(layer)?;
            }
            gradients.finish()?;
            // As an optimiser would, the next pass waits for the averages.
            gradients.tensors()?.iter().try_for_each(|tensor| Ok(stream.with_operands(&[tensor], || Ok(()))?))
        })?;
        rank.say(&format!(
            "{LAYERS} layers {side} × {side} bf16, backward: alone {alone:.0} µs, averages in buckets of {mib} MiB: \
             {together:.0} µs, {:.2} of the speed",
            alone / together
        ));
    }
    Ok(())
}

/// A stage of one layer, which keeps what its places need.
struct OneLayer {
    layer: Linear<bf16>,
    input: Tensor<bf16>,
    dw: Tensor<f32>,
    kept: Vec<(Place, LinearSaved<bf16>, Option<Tensor<bf16>>)>,
}

impl OneLayer {
    fn at(&mut self, place: Place) -> &mut (Place, LinearSaved<bf16>, Option<Tensor<bf16>>) {
        let at = self.kept.iter().position(|kept| kept.0 == place).unwrap_or(0);
        &mut self.kept[at]
    }
}

impl Stage<bf16> for OneLayer {
    fn input_shape(&self, _: Place) -> Vec<usize> {
        self.input.shape().to_vec()
    }

    fn output_shape(&self, _: Place) -> Vec<usize> {
        self.input.shape().to_vec()
    }

    fn forward(&mut self, place: Place, x: Option<Tensor<bf16>>) -> Result<Tensor<bf16>> {
        let (y, saved) = self.layer.forward_train(&x.unwrap_or_else(|| self.input.clone()))?;
        self.kept.push((place, saved, None));
        Ok(y)
    }

    fn backward_input(&mut self, place: Place, dy: Option<Tensor<bf16>>) -> Result<Tensor<bf16>> {
        let dy = dy.unwrap_or_else(|| self.input.clone());
        let layer = self.layer.clone();
        let (_, saved, kept_dy) = self.at(place);
        let dx = layer.backward_operation(saved, &dy).dx()?;
        *kept_dy = Some(dy);
        Ok(dx)
    }

    fn backward_weight(&mut self, place: Place) -> Result<()> {
        let at = self.kept.iter().position(|kept| kept.0 == place).unwrap_or(0);
        let (_, saved, dy) = self.kept.remove(at);
        let dy = dy.unwrap_or_else(|| self.input.clone());
        let outputs = LinearGradientOutputs { dw: Some(&mut self.dw), adds: true, ..Default::default() };
        Ok(self.layer.backward_operation(&saved, &dy).run_into(outputs)?)
    }
}

/// Pipelines of a layer a stage, beside the same layers without any waiting.
pub(crate) fn pipelines(arguments: &Arguments, rank: &Rank) -> Result<()> {
    let (Rank { communicator, device, host }, side) = (rank, arguments.side / 2);
    let links = match device.kind() {
        DeviceKind::Cuda(_) => Links::nccl(host, device, NcclOptions::default())?,
        _ => Links::over_host(communicator, device)?,
    };
    let layer = Linear::new(numbers(device, 1, [side, side])?, None, Activation::None)?;
    let dw = Tensor::zeros(device, [side, side])?;
    let mut stage = OneLayer { layer, input: numbers(device, 2, [side, side])?, dw, kept: Vec::new() };
    let stream = device.default_stream();
    let alone = median(rank, &stream, || {
        for microbatch in 0..MICROBATCHES {
            let place = Place { microbatch, chunk: 0 };
            stage.forward(place, None)?;
            stage.backward_input(place, None)?;
            stage.backward_weight(place)?;
        }
        Ok(())
    })?;
    for schedule in [Schedule::OneForwardOneBackward, Schedule::ZeroBubble] {
        let simulated = simulate(&schedule.all(communicator.size(), MICROBATCHES)?, 1, Costs::default())?;
        let together = median(rank, &stream, || run(schedule, MICROBATCHES, &links, &mut stage))?;
        rank.say(&format!(
            "{schedule:?}, {MICROBATCHES} microbatches, {side} × {side} bf16: alone {alone:.0} µs, piped {together:.0} µs, \
             bubble {:.1} %, by the formula {:.1} %",
            100.0 * (together / alone - 1.0),
            100.0 * simulated.bubble(),
        ));
    }
    Ok(())
}

/// Experts that are split, beside one table with all tokens.
pub(crate) fn experts(arguments: &Arguments, rank: &Rank) -> Result<()> {
    let Rank { communicator, device, .. } = rank;
    let size = communicator.size();
    let [width, tokens, count] =
        [arguments.side / 8, (arguments.side / 2).next_multiple_of(size), arguments.side * 8];
    let layout = ExpertLayout::new(ExpertFormat::Bf16, width, 1, width, false)?;
    let vectors = |experts: usize| [vec![0.01; experts * width], vec![], vec![0.01; experts * width]];
    let split = SplitExperts::new(communicator, device, layout, count, |ids| Ok(vectors(ids.len())))?;
    let mut table = ExpertTable::zeros(device, layout, count)?;
    for first in (0..count).step_by(4096) {
        let experts = 4096.min(count - first);
        let [u, w, v] = vectors(experts);
        let mut rows = vec![0; experts * layout.row_bytes()];
        layout.pack_rows(ExpertVectors { u: &u, w: &w, v: &v }, &mut rows)?;
        table.write_rows(first, &rows)?;
    }
    let routing = |tokens: usize| -> Result<Routing> {
        let ids: Vec<u32> =
            (0..tokens * 128).map(|at| ((at * 7919 + at / 128 * 31) % count) as u32).collect();
        let gates = vec![0.1f32; ids.len()];
        let shape = [tokens, 8, 16];
        Ok(Routing {
            ids: Tensor::from_slice(device, &ids, shape)?,
            gates: Tensor::from_slice(device, &gates, shape)?,
        })
    };
    let (whole, own) = (routing(tokens)?, routing(tokens / size)?);
    let (x, own_x) = (numbers(device, 1, [tokens, width])?, numbers(device, 1, [tokens / size, width])?);
    let stream = device.default_stream();
    let mut y = Tensor::zeros(device, [tokens, width])?;
    let one = median(rank, &stream, || Ok(ops::expert_mlp(&x, &whole, &table).run_into(&mut y)?))?;
    let together = median(rank, &stream, || split.forward(&own_x, &own).map(drop))?;
    rank.say(&format!(
        "{tokens} tokens, 128 of {count} experts of width {width} each, bf16: one table {one:.0} µs, split {together:.0} µs, \
         {:.2} times as fast",
        one / together
    ));
    Ok(())
}
