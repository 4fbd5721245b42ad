//! The linear layer whose input's columns are split.

use std::ops::Range;

use warpsmith::layers::Linear;
use warpsmith::ops::Activation;
use warpsmith::ops::linear::LinearGradientOutputs;
use warpsmith::{Device, Tensor};

use super::sequence::{gathered, padded_rows, scattered_sum};
use super::{PIECES, SplitGradients, TensorParallelElement, matrix, sides, sum_in_pieces};
use crate::communicator::Communicator;
use crate::error::Result;
use crate::ranges::even_range;

const OPERATION: &str = "RowLinear";

/// `y = x Wᵀ + b` with W `[out, in]` split along `in`: each rank has some columns of x, and y is the sum over the ranks.
///
/// Each rank's product is rounded to the type of x before it is added. See [`ColumnLinear`](super::ColumnLinear) for an example.
#[derive(Clone, Debug)]
pub struct RowLinear<T: TensorParallelElement> {
    communicator: Communicator,
    layer: Linear<T>,
    range: Range<usize>,
    pieces: usize,
}

impl<T: TensorParallelElement> RowLinear<T> {
    /// This rank's part of a layer, which is a copy: the columns [`even_range`] of the weight, `[out, in]`, and the whole bias,
    /// `[out]`.
    ///
    /// # Errors
    ///
    /// As [`Linear::new`].
    pub fn shard(communicator: &Communicator, weight: &Tensor<T>, bias: Option<&Tensor<T>>) -> Result<Self> {
        let [_, columns] = sides(OPERATION, weight)?;
        let range = even_range(columns, communicator.size(), communicator.rank());
        let weight = weight.slice(1, range.clone())?.deep_clone()?;
        let bias = bias.map(Tensor::deep_clone).transpose()?;
        let layer = Linear::new(weight, bias, Activation::None)?;
        Ok(Self { communicator: communicator.clone(), layer, range, pieces: PIECES })
    }

    /// Cuts the sum of the forward pass into so many pieces of rows, at least one. 4 unless it is set.
    #[must_use]
    pub fn pieces(self, pieces: usize) -> Self {
        Self { pieces, ..self }
    }

    /// This rank's part: a layer of its own, whose bias is the whole one.
    #[must_use]
    pub fn layer(&self) -> &Linear<T> {
        &self.layer
    }

    /// The columns of the input that this rank has.
    #[must_use]
    pub fn range(&self) -> Range<usize> {
        self.range.clone()
    }

    /// The output `[M, out]`, the same on all ranks, for this rank's columns of the input, `[M, in of the rank]`. The sum of
    /// some rows runs beside the product of others.
    ///
    /// # Errors
    ///
    /// As [`Linear::forward`] and [`Communicator::all_reduce`].
    pub fn forward(&self, x: &Tensor<T>) -> Result<Tensor<T>> {
        let x = matrix(OPERATION, "x", x, self.range.len())?;
        let y = Tensor::uninit(x.device(), [x.shape()[0], self.layer.weight().shape()[0]])?;
        let of_piece = |range: Range<usize>, part: &mut Tensor<T>| self.partial(&x.slice(0, range)?, part);
        sum_in_pieces(&self.communicator, &y, self.pieces, of_piece, || Ok(()))?;
        Ok(y)
    }

    /// As [`forward`](Self::forward), with what [`backward`](Self::backward) needs.
    ///
    /// # Errors
    ///
    /// As [`forward`](Self::forward).
    pub fn forward_train(&self, x: &Tensor<T>) -> Result<(Tensor<T>, RowSaved<T>)> {
        Ok((self.forward(x)?, RowSaved { x: x.clone() }))
    }

    /// The gradients for that of the output `[M, out]`, which all ranks have: of this rank's columns of x, of its weight, and
    /// of the bias, which is the same on all ranks. Nothing is sent.
    ///
    /// # Errors
    ///
    /// As [`Linear::backward`].
    pub fn backward(&self, saved: &RowSaved<T>, dy: &Tensor<T>) -> Result<SplitGradients<T>> {
        let dy = matrix(OPERATION, "dy", dy, self.layer.weight().shape()[0])?;
        let dx = Tensor::uninit(dy.device(), saved.x.shape())?;
        let mut gradients = SplitGradients::new(&self.layer, dx)?;
        let SplitGradients { dx, dw, db } = &mut gradients;
        let operation = warpsmith::ops::linear_backward(&saved.x, self.layer.weight(), &dy);
        operation.precision(self.layer.precision()).run_into(LinearGradientOutputs {
            dx: Some(dx),
            dw: Some(dw),
            db: Some(db),
            ..LinearGradientOutputs::default()
        })?;
        Ok(gradients)
    }

    /// As [`forward_train`](Self::forward_train), with this rank's block of the rows of the output.
    ///
    /// # Errors
    ///
    /// As [`Linear::forward`] and [`Communicator::reduce_scatter`].
    pub fn forward_sequence(&self, x: &Tensor<T>) -> Result<(Tensor<T>, RowSaved<T>)> {
        let x = matrix(OPERATION, "x", x, self.range.len())?;
        let (rows, columns) = (x.shape()[0], self.layer.weight().shape()[0]);
        let whole = padded_rows(x.device(), &self.communicator, &[rows, columns])?;
        self.partial(&x, &mut whole.slice(0, 0..rows)?)?;
        Ok((scattered_sum(&self.communicator, &whole, rows, || Ok(()))?, RowSaved { x }))
    }

    /// As [`backward`](Self::backward), for the gradient of this rank's block of the rows of the output.
    ///
    /// # Errors
    ///
    /// As [`backward`](Self::backward) and [`Communicator::all_gather`]; [`Error::Argument`](crate::Error::Argument) if dy has
    /// not the rank's rows.
    pub fn backward_sequence(&self, saved: &RowSaved<T>, dy: &Tensor<T>) -> Result<SplitGradients<T>> {
        let dy = matrix(OPERATION, "dy", dy, self.layer.weight().shape()[0])?;
        let dy = gathered(OPERATION, &self.communicator, &dy, saved.x.shape()[0])?;
        self.backward(saved, &dy)
    }

    /// This rank's product. The bias is added once: by rank 0.
    fn partial(&self, x: &Tensor<T>, y: &mut Tensor<T>) -> Result<()> {
        let bias = self.layer.bias().filter(|_| self.communicator.rank() == 0);
        Ok(self.layer.operation(x).bias(bias).run_into(y)?)
    }

    /// The device that has this rank's part.
    #[must_use]
    pub fn device(&self) -> &Device {
        self.layer.weight().device()
    }
}

/// What [`RowLinear::forward_train`] keeps for the backward pass: this rank's columns of x, whose memory it shares.
#[derive(Clone, Debug)]
pub struct RowSaved<T: TensorParallelElement> {
    x: Tensor<T>,
}

impl<T: TensorParallelElement> RowSaved<T> {
    /// This rank's columns of the input.
    #[must_use]
    pub fn x(&self) -> &Tensor<T> {
        &self.x
    }
}
