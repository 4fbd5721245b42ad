//! Sums of rows that are used several times, each time with weights of its own.

use warpsmith_dsl::embedding::order::{DIGITS, TILE};
use warpsmith_dsl::embedding::{GradientParams, WeightedParams};
use warpsmith_dsl::launch::{Global, Kernel};
use warpsmith_dsl::rows::AnyRows;
use warpsmith_kernels::embedding::{embedding_count, embedding_distinct, embedding_order, embedding_sums};

use super::{EmbeddingElement, GradientPlan, Order};
use crate::device::Device;
use crate::error::Result;
use crate::ops::rows::{RowElement, Sizes, as_rows, is_copied, kind, rows_of};
use crate::stream::{Operand, Stream};
use crate::tensor::Tensor;

/// What rows are multiplied with.
#[derive(Clone, Copy)]
pub(in crate::ops) struct Weights<'a> {
    /// `[tokens · uses, sums]` without gaps: of each use one for each sum.
    pub(in crate::ops) weights: &'a Tensor<f32>,
    /// Uses of a row.
    pub(in crate::ops) uses: usize,
    /// Sums of an id, at most as many as a grid has blocks along z.
    pub(in crate::ops) sums: usize,
}

/// Adds up rows times weights for each different id: `to[n, s] = Σ weights[j, s] · rows[j / uses]` over the uses j that have the id number n. `to` is
/// `[.., sums · D]` without gaps. It has a row for each id that begins where `distinct` says, of which there are so many; without, ids name the rows that
/// is added to.
pub(in crate::ops) fn add_weighted<T: EmbeddingElement, R: RowElement>(
    stream: &Stream,
    rows: &Tensor<T>,
    Weights { weights, uses, sums }: Weights<'_>,
    (order, limit): (&Order, usize),
    distinct: Option<(&Tensor<u32>, &Tensor<u32>)>,
    to: &Tensor<R>,
) -> Result<()> {
    let sizes = Sizes::of("embedding", "rows", rows.shape())?;
    if sizes.are_none() || to.is_empty() {
        return Ok(());
    }
    let (device, rows) = (stream.device(), as_rows(rows, stream)?);
    let from = rows_of(&rows);
    let all = rows_of(to);
    // The sums of an id are aligned as rows of so many columns are.
    let one = AnyRows { stride: sizes.columns as u64, ..all };
    let places = distinct.map_or(order.keys.len(), |(starts, _)| starts.len() - 1);
    let plan = GradientPlan::new::<T>(sizes, places as u64, [from, one]);
    let pointer = |of: Option<&Tensor<u32>>| of.map_or(Global::new(0), Tensor::arg);
    let params = WeightedParams {
        rows: GradientParams {
            dy: Global::new(from.base),
            dy_stride: from.stride,
            keys: order.keys.arg(),
            tokens: order.tokens.arg(),
            starts: pointer(distinct.map(|(starts, _)| starts)),
            distinct: pointer(distinct.map(|(_, count)| count)),
            to: all,
            count: order.keys.len() as u32,
            columns: sizes.columns as u32,
            threads: plan.threads,
            limit: limit as u32,
        },
        weights: weights.arg(),
        sum_bytes: (sizes.columns * size_of::<R>()) as u64,
        uses: uses as u32,
        sums: sums as u32,
    };
    let most = device.properties().max_grid[2] as usize;
    let mut operands: Vec<&dyn Operand> = vec![&rows, &order.keys, &order.tokens, weights, to];
    if let Some((starts, count)) = distinct {
        operands.extend([starts as &dyn Operand, count]);
    }
    // SAFETY: the sizes and strides are those of the tensors; the sums share no memory with anything. Tensors are freed in the order of their home streams, which
    // `with_operands` makes wait for this work.
    stream.with_operands(&operands, || unsafe {
        for first in (0..sums).step_by(most) {
            let mut params = params;
            params.rows.to.base += first as u64 * params.sum_bytes;
            params.weights = params.weights.offset(first as u64);
            let grid = [plan.grid[0], plan.grid[1], (sums - first).min(most) as u32];
            if plan.vector {
                device.kernel::<T::Weighted>()?.launch(stream, grid, (params,))?;
            } else {
                device.kernel::<T::WeightedAny>()?.launch(stream, grid, (params,))?;
            }
        }
        Ok(())
    })
}

/// The kernels that order ids and find different ones, and their blocks, in the order of their first launches.
pub(in crate::ops) fn order_kernels(ids: usize) -> [(&'static str, u32); 5] {
    let tiles = (ids as u32).div_ceil(TILE);
    [
        (embedding_count::DECLARATION.name, tiles),
        (embedding_sums::DECLARATION.name, DIGITS),
        (embedding_order::DECLARATION.name, tiles),
        (embedding_distinct::<false>::DECLARATION.name, tiles),
        (embedding_distinct::<true>::DECLARATION.name, tiles),
    ]
}

/// The kernel that [`add_weighted`] runs for rows and sums in f32 of so many different ids, and its blocks; none if there is nothing to add up.
pub(in crate::ops) fn weighted_kernel<T: EmbeddingElement>(
    rows: &Tensor<T>,
    ids: usize,
    sums: usize,
    device: &Device,
) -> Option<(&'static str, u32)> {
    let sizes = Sizes::of("embedding", "rows", rows.shape()).ok().filter(|sizes| !sizes.are_none())?;
    let dense = |kind| AnyRows { base: 1 << 8, stride: sizes.columns as u64, kind, offset: 0.0 };
    let from = if is_copied(rows) { dense(kind::<T>()) } else { rows_of(&rows.flatten_leading().ok()?) };
    let plan = GradientPlan::new::<T>(sizes, ids as u64, [from, dense(kind::<f32>())]);
    let name = if plan.vector { T::Weighted::DECLARATION.name } else { T::WeightedAny::DECLARATION.name };
    let at_a_time = sums.min(device.properties().max_grid[2] as usize) as u32;
    Some((name, plan.grid[0].saturating_mul(plan.grid[1]).saturating_mul(at_a_time)))
}
