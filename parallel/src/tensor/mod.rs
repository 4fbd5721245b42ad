//! Tensor parallelism: linear layers whose weights are split over the ranks.
//!
//! A [`ColumnLinear`] has the same rows of x on all ranks, and gives each rank some of the output's columns. A [`RowLinear`]
//! takes these, and sums over the ranks. One after the other they need one sum forwards and one backwards.
//!
//! Between such pairs rows may be split too, which is called sequence parallelism: rank r has
//! [`block_range`](crate::ranges::block_range) of the rows, a column layer gathers them, and a row layer scatters its sum.

mod column;
mod row;
mod sequence;

pub use column::ColumnLinear;
pub use row::{RowLinear, RowSaved};

use std::ops::Range;

use warpsmith::layers::Linear;
use warpsmith::ops::linear::{LinearGradientElement, LinearInput};
use warpsmith::{Stream, StreamPriority, Tensor};

use crate::communicator::{Communicator, Reduction};
use crate::error::{Result, argument};
use crate::ranges::even_range;

/// An element type of layers that are split: f16, bf16 or f32.
pub trait TensorParallelElement: LinearInput + LinearGradientElement {}

impl<T: LinearInput + LinearGradientElement> TensorParallelElement for T {}

/// The gradients of a layer that is split.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SplitGradients<T: TensorParallelElement> {
    /// Of x, in the layout that the layer takes x in.
    pub dx: Tensor<T>,
    /// Of this rank's weight.
    pub dw: Tensor<f32>,
    /// Of this rank's bias; also where it has none.
    pub db: Tensor<f32>,
}

impl<T: TensorParallelElement> SplitGradients<T> {
    /// A place for those of a layer, with `dx` as given.
    fn new(layer: &Linear<T>, dx: Tensor<T>) -> Result<Self> {
        let (device, weight) = (dx.device(), layer.weight());
        let (dw, db) =
            (Tensor::uninit(device, weight.shape())?, Tensor::uninit(device, &weight.shape()[..1])?);
        Ok(Self { dx, dw, db })
    }
}

/// Into how many pieces of its rows a sum is cut unless another number is asked for.
const PIECES: usize = 4;

/// The weight's two axes.
fn sides<T: TensorParallelElement>(operation: &'static str, weight: &Tensor<T>) -> Result<[usize; 2]> {
    match *weight.shape() {
        [rows, columns] => Ok([rows, columns]),
        _ => Err(argument(operation, "weight", "[out, in]", format!("of shape {:?}", weight.shape()))),
    }
}

/// `x` as a matrix of so many columns.
fn matrix<T: TensorParallelElement>(
    operation: &'static str,
    operand: &'static str,
    x: &Tensor<T>,
    columns: usize,
) -> Result<Tensor<T>> {
    match *x.shape() {
        [_, found] if found == columns => Ok(x.clone()),
        _ => {
            let actual = format!("of shape {:?}", x.shape());
            Err(argument(operation, operand, format!("a matrix of {columns} columns"), actual))
        }
    }
}

/// Makes a matrix in pieces of its rows with `compute`, and sums each over the ranks on another stream while the next one is
/// made. The last sum runs beside what `meanwhile` enqueues. What runs beside a sum leaves multiprocessors to it.
fn sum_in_pieces<T: TensorParallelElement>(
    communicator: &Communicator,
    y: &Tensor<T>,
    pieces: usize,
    mut compute: impl FnMut(Range<usize>, &mut Tensor<T>) -> Result<()>,
    meanwhile: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let rows = y.shape()[0];
    let pieces = pieces.clamp(1, rows.max(1));
    let stream = y.home_stream();
    let beside_sums = communicator.beside(&y.device().default_stream());
    stream.beside_with_priority(StreamPriority::High, &[y], |branch| {
        let communicator = communicator.on(branch);
        let mut sum = |piece: usize| -> Result<()> {
            let range = even_range(rows, pieces, piece);
            let mut part = y.slice(0, range.clone())?;
            match piece {
                // Nothing is summed yet.
                0 => compute(range, &mut part)?,
                _ => beside_sums.as_default(|| compute(range, &mut part))?,
            }
            follow(branch, &stream)?;
            communicator.all_reduce(&mut part, Reduction::Sum)
        };
        Ok((0..pieces).try_for_each(&mut sum).and_then(|()| beside_sums.as_default(meanwhile)))
    })?
}

/// Makes work on `later` wait for what `earlier` has so far.
fn follow(later: &Stream, earlier: &Stream) -> Result<()> {
    Ok(later.wait(&earlier.record()?)?)
}
