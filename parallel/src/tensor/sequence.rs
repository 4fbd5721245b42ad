//! Rows that are split between layers: gathered before one, scattered after.

use warpsmith::{Device, StreamPriority, Tensor};

use super::{TensorParallelElement, follow};
use crate::communicator::{Communicator, Reduction};
use crate::error::{Result, argument};
use crate::ranges::{block_len, block_range};

/// A matrix of as many rows as the blocks of all ranks have together: at least `shape` has. The rows beyond are zeros, so that
/// sums over them are numbers.
pub(super) fn padded_rows<T: TensorParallelElement>(
    device: &Device,
    communicator: &Communicator,
    shape: &[usize],
) -> Result<Tensor<T>> {
    let (rows, size) = (shape[0], communicator.size());
    let padded = block_len(rows, size) * size;
    let shape = [padded, shape[1]];
    Ok(if padded == rows { Tensor::uninit(device, shape)? } else { Tensor::zeros(device, shape)? })
}

/// All `rows` rows, of which each rank gives its block.
pub(super) fn gathered<T: TensorParallelElement>(
    operation: &'static str,
    communicator: &Communicator,
    x: &Tensor<T>,
    rows: usize,
) -> Result<Tensor<T>> {
    let (rank, size) = (communicator.rank(), communicator.size());
    let (own, columns) = (block_range(rows, size, rank).len(), x.shape()[1]);
    if x.shape()[0] != own {
        let expected = format!("{own} rows, the block of rank {rank} of {rows}");
        return Err(argument(operation, "x", expected, format!("of {} rows", x.shape()[0])));
    }
    let block = block_len(rows, size);
    let part = if own == block && x.is_contiguous() {
        x.clone()
    } else {
        let part = Tensor::zeros(x.device(), [block, columns])?;
        part.slice(0, 0..own)?.copy_from(x)?;
        part
    };
    let mut whole = Tensor::uninit(x.device(), [block * size, columns])?;
    communicator.all_gather(&part, &mut whole)?;
    Ok(whole.slice(0, 0..rows)?)
}

/// This rank's block of the sum over the ranks of the first `rows` rows of a matrix of [`padded_rows`]. The sum runs beside
/// what `meanwhile` enqueues.
pub(super) fn scattered_sum<T: TensorParallelElement>(
    communicator: &Communicator,
    whole: &Tensor<T>,
    rows: usize,
    meanwhile: impl FnOnce() -> Result<()>,
) -> Result<Tensor<T>> {
    let (rank, size) = (communicator.rank(), communicator.size());
    let mut block = Tensor::uninit(whole.device(), [block_len(rows, size), whole.shape()[1]])?;
    let stream = whole.home_stream();
    let own = block_range(rows, size, rank).len();
    stream.beside_with_priority(StreamPriority::High, &[whole, &block.clone()], |branch| {
        let scattered = follow(branch, &stream)
            .and_then(|()| communicator.on(branch).reduce_scatter(whole, &mut block, Reduction::Sum));
        let beside_sum = communicator.beside(&whole.device().default_stream());
        Ok(scattered.and_then(|()| beside_sum.as_default(meanwhile)))
    })??;
    Ok(block.slice(0, 0..own)?)
}
