//! Times of layers on several ranks, beside one rank's.

use crate::Result;
use crate::experts::SplitExperts;
use crate::tensor::{ColumnLinear, RowLinear};
use warpsmith::Tensor;
use warpsmith::layers::Linear;
use warpsmith::ops::peer::{ExpertFormat, ExpertLayout, ExpertTable, ExpertVectors, Routing};
use warpsmith::ops::{self, Activation};

use super::timing::{Few, median_of, numbers};
use super::{Options, Rank};

/// A multilayer perceptron, forwards and backwards: whole on each rank, and split.
pub(super) fn split_layers(options: &Options, rank: &Rank) -> Result<()> {
    let (Rank { device, .. }, side) = (rank, options.side);
    let stream = device.default_stream();
    let (x, dy) = (numbers(device, 1, [side, side])?, numbers(device, 2, [side, side])?);
    let (up, down) = (numbers(device, 3, [side, side])?, numbers(device, 4, [side, side])?);
    let whole_up = Linear::new(up.clone(), None, Activation::Relu)?;
    let whole_down = Linear::new(down.clone(), None, Activation::None)?;
    let one = median_of(rank, &stream, Few::CALLS, || {
        let (h, saved_up) = whole_up.forward_train(&x)?;
        let (_, saved_down) = whole_down.forward_train(&h)?;
        let gradients = whole_down.backward(&saved_down, &dy)?;
        whole_up.backward(&saved_up, &gradients.dx)?;
        Ok(())
    })?;
    for &sharing in rank.sharings() {
        let communicator = rank.sharing(sharing)?;
        let shared = sharing.name();
        for pieces in [1, 2, 4, 8] {
            let up = ColumnLinear::shard(&communicator, &up, None, Activation::Relu)?.pieces(pieces);
            let down = RowLinear::shard(&communicator, &down, None)?.pieces(pieces);
            let split = median_of(rank, &stream, Few::CALLS, || {
                let (h, saved_up) = up.forward_train(&x)?;
                let (_, saved_down) = down.forward_train(&h)?;
                let gradients = down.backward(&saved_down, &dy)?;
                up.backward(&saved_up, &gradients.dx)?;
                Ok(())
            })?;
            rank.say(&format!(
                "MLP {side} × {side} × {side} bf16, forward and backward: whole {one:.0} µs, split, {pieces} pieces, \
                 {shared}: {split:.0} µs, {:.2} times as fast",
                one / split
            ));
            let (shape, variant) = (format!("{side}x{side}x{side}"), format!("{pieces} pieces, {shared}"));
            rank.row("tensor parallel MLP", "bf16", &shape, &variant, split, Some(("one rank", one)));
        }
    }
    Ok(())
}

/// Experts that are split, beside one table with all tokens.
pub(super) fn experts(options: &Options, rank: &Rank) -> Result<()> {
    let Rank { communicator, device, .. } = rank;
    let size = communicator.size();
    let [width, tokens, count] =
        [options.side / 8, (options.side / 2).next_multiple_of(size), options.side * 8];
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
    let one =
        median_of(rank, &stream, Few::CALLS, || Ok(ops::expert_mlp(&x, &whole, &table).run_into(&mut y)?))?;
    let shape = format!("{tokens}x128 of {count}x{width}");
    let mut split = split;
    for pieces in [1, 2, 4] {
        split = split.pieces(pieces);
        let together = median_of(rank, &stream, Few::CALLS, || split.forward(&own_x, &own).map(drop))?;
        rank.say(&format!(
            "{tokens} tokens, 128 of {count} experts of width {width} each, bf16: one table {one:.0} µs, split, {pieces} \
             pieces: {together:.0} µs, {:.2} times as fast",
            one / together
        ));
        rank.row(
            "split experts",
            "bf16",
            &shape,
            &format!("{pieces} pieces"),
            together,
            Some(("one table", one)),
        );
    }
    Ok(())
}
