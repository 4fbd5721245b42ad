//! The linear layer whose output's columns are split.

use std::ops::Range;

use warpsmith::Tensor;
use warpsmith::layers::{Linear, LinearSaved};
use warpsmith::ops::linear::{LinearBackwardOp, LinearGradientOutputs};
use warpsmith::ops::{self, Activation};

use super::sequence::{gathered, padded_rows, scattered_sum};
use super::{PIECES, SplitGradients, TensorParallelElement, matrix, sides, sum_in_pieces};
use crate::communicator::Communicator;
use crate::error::Result;
use crate::ranges::even_range;

const OPERATION: &str = "ColumnLinear";

/// `y = activation(x Wᵀ + b)` with W `[out, in]` split along `out`: each rank has x whole, and some columns of y.
///
/// ```
/// use warpsmith::ops::Activation;
/// use warpsmith::{Device, Tensor};
/// use warpsmith_parallel::launch;
/// use warpsmith_parallel::tensor::{ColumnLinear, RowLinear};
///
/// let outputs = launch::threads(2, |communicator| {
///     let of = |numbers: &[f32], shape| Tensor::from_slice(&Device::cpu(), numbers, shape);
///     let up = of(&[1.0, 0.0, 0.0, 1.0, 1.0, -1.0], [3, 2])?;
///     let down = of(&[1.0, 2.0, 3.0], [1, 3])?;
///     let up = ColumnLinear::shard(&communicator, &up, None, Activation::Relu)?;
///     let down = RowLinear::shard(&communicator, &down, None)?;
///     let x = of(&[5.0, 7.0], [1, 2])?;
///     Ok(down.forward(&up.forward(&x)?)?.to_vec()?)
/// })?;
/// assert_eq!(outputs, [[19.0], [19.0]]);
/// # Ok::<(), warpsmith_parallel::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct ColumnLinear<T: TensorParallelElement> {
    communicator: Communicator,
    layer: Linear<T>,
    range: Range<usize>,
    pieces: usize,
}

impl<T: TensorParallelElement> ColumnLinear<T> {
    /// This rank's part of a layer, which is a copy: the rows [`even_range`] of the weight, `[out, in]`, and of the bias,
    /// `[out]`.
    ///
    /// # Errors
    ///
    /// As [`Linear::new`].
    pub fn shard(
        communicator: &Communicator,
        weight: &Tensor<T>,
        bias: Option<&Tensor<T>>,
        activation: Activation,
    ) -> Result<Self> {
        let [rows, _] = sides(OPERATION, weight)?;
        // The whole layer is checked before it is split.
        Linear::new(weight.clone(), bias.cloned(), activation)?;
        let range = even_range(rows, communicator.size(), communicator.rank());
        let bias = bias.map(|bias| bias.slice(0, range.clone())?.deep_clone()).transpose()?;
        let weight = weight.slice(0, range.clone())?.deep_clone()?;
        let layer = Linear::new(weight, bias, activation)?;
        Ok(Self { communicator: communicator.clone(), layer, range, pieces: PIECES })
    }

    /// Cuts the sum of the backward pass into so many pieces of rows, at least one. 4 unless it is set.
    #[must_use]
    pub fn pieces(self, pieces: usize) -> Self {
        Self { pieces, ..self }
    }

    /// This rank's part: a layer of its own.
    #[must_use]
    pub fn layer(&self) -> &Linear<T> {
        &self.layer
    }

    /// The columns of the output that this rank has.
    #[must_use]
    pub fn range(&self) -> Range<usize> {
        self.range.clone()
    }

    /// This rank's columns of the output for x `[M, in]`, which is the same on all ranks. Nothing is sent.
    ///
    /// # Errors
    ///
    /// As [`Linear::forward`].
    pub fn forward(&self, x: &Tensor<T>) -> Result<Tensor<T>> {
        Ok(self.layer.forward(&self.input(x)?)?)
    }

    /// As [`forward`](Self::forward), with what [`backward`](Self::backward) needs.
    ///
    /// # Errors
    ///
    /// As [`Linear::forward_train`].
    pub fn forward_train(&self, x: &Tensor<T>) -> Result<(Tensor<T>, LinearSaved<T>)> {
        Ok(self.layer.forward_train(&self.input(x)?)?)
    }

    /// The gradients for that of this rank's columns, `[M, out of the rank]`: of x, summed over the ranks, and of this rank's
    /// weights. The sum runs beside the product for the weight.
    ///
    /// # Errors
    ///
    /// As [`Linear::backward`] and [`Communicator::all_reduce`].
    pub fn backward(&self, saved: &LinearSaved<T>, dy: &Tensor<T>) -> Result<SplitGradients<T>> {
        self.input(saved.x())?;
        let dx = Tensor::uninit(dy.device(), saved.x().shape())?;
        let mut gradients = SplitGradients::new(&self.layer, dx)?;
        let dz = self.slopes(saved, dy, &mut gradients)?;
        let SplitGradients { dx, dw, .. } = &mut gradients;
        let of_piece = |range: Range<usize>, part: &mut Tensor<T>| -> Result<()> {
            let (x, dz) = (saved.x().slice(0, range.clone())?, dz.slice(0, range)?);
            self.dx_into(&x, &dz, part)
        };
        let meanwhile = || self.dw_into(saved.x(), &dz, dw);
        sum_in_pieces(&self.communicator, dx, self.pieces, of_piece, meanwhile)?;
        Ok(gradients)
    }

    /// This rank's columns of the output for its block of the rows of x `[rows of the rank, in]`, of `rows` rows on all ranks;
    /// with what [`backward_sequence`](Self::backward_sequence) needs.
    ///
    /// # Errors
    ///
    /// As [`Linear::forward_train`] and [`Communicator::all_gather`]; [`Error::Argument`](crate::Error::Argument) if x has not
    /// the rank's rows.
    pub fn forward_sequence(&self, x: &Tensor<T>, rows: usize) -> Result<(Tensor<T>, LinearSaved<T>)> {
        let x = self.input(x)?;
        self.forward_train(&gathered(OPERATION, &self.communicator, &x, rows)?)
    }

    /// As [`backward`](Self::backward), with the gradient of this rank's block of the rows of x.
    ///
    /// # Errors
    ///
    /// As [`Linear::backward`] and [`Communicator::reduce_scatter`].
    pub fn backward_sequence(&self, saved: &LinearSaved<T>, dy: &Tensor<T>) -> Result<SplitGradients<T>> {
        self.input(saved.x())?;
        let whole = padded_rows(dy.device(), &self.communicator, saved.x().shape())?;
        let mut gradients = SplitGradients::new(&self.layer, whole.clone())?;
        let dz = self.slopes(saved, dy, &mut gradients)?;
        let rows = saved.x().shape()[0];
        self.dx_into(saved.x(), &dz, &mut whole.slice(0, 0..rows)?)?;
        let dw = &mut gradients.dw;
        gradients.dx = scattered_sum(&self.communicator, &whole, rows, || self.dw_into(saved.x(), &dz, dw))?;
        Ok(gradients)
    }

    /// The input, which is a matrix.
    fn input(&self, x: &Tensor<T>) -> Result<Tensor<T>> {
        matrix(OPERATION, "x", x, self.layer.weight().shape()[1])
    }

    /// dz, and the gradient of the bias.
    fn slopes(
        &self,
        saved: &LinearSaved<T>,
        dy: &Tensor<T>,
        gradients: &mut SplitGradients<T>,
    ) -> Result<Tensor<T>> {
        let dy = matrix(OPERATION, "dy", dy, self.range.len())?;
        let mut dz = Tensor::uninit(dy.device(), dy.shape())?;
        self.layer.backward_operation(saved, &dy).run_into(LinearGradientOutputs {
            dz: Some(&mut dz),
            db: Some(&mut gradients.db),
            ..LinearGradientOutputs::default()
        })?;
        Ok(dz)
    }

    fn dx_into(&self, x: &Tensor<T>, dz: &Tensor<T>, dx: &mut Tensor<T>) -> Result<()> {
        let outputs = LinearGradientOutputs::<T, T, f32> { dx: Some(dx), ..Default::default() };
        Ok(self.products(x, dz).run_into(outputs)?)
    }

    fn dw_into(&self, x: &Tensor<T>, dz: &Tensor<T>, dw: &mut Tensor<f32>) -> Result<()> {
        let outputs = LinearGradientOutputs { dw: Some(dw), ..Default::default() };
        Ok(self.products(x, dz).run_into(outputs)?)
    }

    /// The products with dz, which needs no activation any more.
    fn products<'a>(&'a self, x: &'a Tensor<T>, dz: &'a Tensor<T>) -> LinearBackwardOp<'a, T, T> {
        ops::linear_backward(x, self.layer.weight(), dz).precision(self.layer.precision())
    }
}
