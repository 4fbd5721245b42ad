//! `Y = act(alpha · X Wᵀ + b)`: the fused linear operation.
//!
//! [`linear`] starts a builder; [`LinearOp::run`] and [`LinearOp::run_into`] check everything first and launch a kernel
//! (`instances`) that [`select::select`] has chosen, or run the CPU implementation, as every product does (`ops::product`).
//!
//! Accumulation is in f32, the result is rounded once. f32 inputs are multiplied at f32 accuracy (as three TF32 products on
//! tensor cores), unless [`LinearOp::precision`] allows less.

mod instances;
mod launch;
pub mod select;

pub use instances::{LinearInput, LinearTypes};
pub(crate) use launch::{Instance, Operands, has_only_tiles, is_early, tiles};
pub use select::Tile;

use crate::cpu::FromAccumulator;
use crate::error::{Error, Result};
use crate::ops::product::{Options, Product, option_methods};
use crate::ops::{Activation, Implementation, Precision};
use crate::stream::Stream;
use crate::tensor::{Element, Tensor};

/// The operation's name in errors.
const OPERATION: &str = "linear";

/// The linear operation on `x` `[.., K]` and `w` `[N, K]`: `y = act(alpha · x wᵀ + bias)`, `[.., N]`.
///
/// ```
/// use ndarray::array;
/// use warpsmith::{Device, Tensor, ops, ops::Activation};
///
/// let device = Device::cpu();
/// let x = Tensor::from_array(&device, &array![[1.0f32, 2.0]])?;
/// let w = Tensor::from_array(&device, &array![[3.0f32, 4.0], [-5.0, 0.0]])?;
/// let b = Tensor::from_array(&device, &array![0.5f32, 1.0])?;
/// let y = ops::linear(&x, &w).bias(&b).activation(Activation::Relu).run()?;
/// assert_eq!(y.to_vec()?, [11.5, 0.0]);
/// # Ok::<(), warpsmith::Error>(())
/// ```
pub fn linear<'a, T: LinearInput>(x: &'a Tensor<T>, w: &'a Tensor<T>) -> LinearOp<'a, T, T> {
    with_output(x, w)
}

/// As [`linear`], with any output type that the inputs' type has kernels for.
pub(crate) fn with_output<'a, T, O>(x: &'a Tensor<T>, w: &'a Tensor<T>) -> LinearOp<'a, T, O>
where
    T: LinearTypes<O>,
    O: Element + FromAccumulator<f32>,
{
    LinearOp { x, w, options: Options::new() }
}

/// A linear operation that has yet to run; see [`linear`].
#[derive(Debug)]
#[must_use = "an operation does nothing until `run` or `run_into`"]
pub struct LinearOp<'a, T: Element, O: Element> {
    x: &'a Tensor<T>,
    w: &'a Tensor<T>,
    options: Options<'a, T, O>,
}

impl<'a, T, O> LinearOp<'a, T, O>
where
    T: LinearTypes<O>,
    O: Element + FromAccumulator<f32>,
{
    option_methods!();

    /// Multiplies the product by `alpha` before anything is added. 1 unless it is set.
    pub fn alpha(mut self, alpha: f32) -> Self {
        self.options.alpha = alpha;
        self
    }

    /// Adds `beta` times what the output of [`run_into`](Self::run_into) holds. With 0, as it is unless it is set, the output is not read.
    /// [`residual`](Self::residual) adds another tensor instead.
    ///
    /// ```
    /// use ndarray::array;
    /// use warpsmith::{Device, Tensor, ops};
    ///
    /// let device = Device::cpu();
    /// let x = Tensor::from_array(&device, &array![[1.0f32, 2.0]])?;
    /// let w = Tensor::from_array(&device, &array![[3.0f32, 4.0], [-5.0, 0.0]])?;
    /// let mut y = Tensor::from_array(&device, &array![[100.0f32, 100.0]])?;
    /// ops::linear(&x, &w).beta(1.0).run_into(&mut y)?;
    /// assert_eq!(y.to_vec()?, [111.0, 95.0]);
    ///
    /// // A clone shares the tensor's memory, so that this is the same.
    /// let held = y.clone();
    /// ops::linear(&x, &w).residual(&held, 1.0).run_into(&mut y)?;
    /// assert_eq!(y.to_vec()?, [122.0, 90.0]);
    /// # Ok::<(), warpsmith::Error>(())
    /// ```
    pub fn beta(mut self, beta: f32) -> Self {
        self.options.terms.beta = beta;
        self
    }

    /// Rounds the result to `P` instead of the inputs' type; `f32` is the alternative. It comes before the options that take tensors
    /// of the output's type.
    pub fn output<P>(self) -> LinearOp<'a, T, P>
    where
        T: LinearTypes<P>,
        P: Element + FromAccumulator<f32>,
    {
        LinearOp { x: self.x, w: self.w, options: self.options.output() }
    }

    /// Runs the operation into a new tensor of shape [.., N]. On a GPU the work may still be under way when this returns.
    ///
    /// # Errors
    ///
    /// [`Error::Shape`], [`Error::Stride`], [`Error::DeviceMismatch`], [`Error::Overlap`] and [`Error::SizeLimit`] if an operand does
    /// not fit; [`Error::Argument`] if [`beta`](Self::beta) was set, if the [tile](Self::tile) that was asked for does not serve it, or if an
    /// operand of the output's type was given before [`output`](Self::output) changed that; whatever allocating the output, loading the kernel
    /// and launching it may return.
    pub fn run(&self) -> Result<Tensor<O>> {
        self.product()?.run()
    }

    /// Runs the operation into `y`, which may be a view whose last axis is contiguous.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run), but that [`beta`](Self::beta) may be set, if there is no residual; and [`Error::Overlap`] if `y` shares memory
    /// with another operand: if the spans from first to last element of the two meet, even if their elements alternate. Only a residual may be
    /// the same tensor.
    pub fn run_into(&self, y: &mut Tensor<O>) -> Result<()> {
        self.product()?.run_into(y)
    }

    /// Which implementation [`run`](Self::run) would take. [`implementation_into`](Self::implementation_into) says it for an
    /// output that is there.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run), for the operands.
    pub fn implementation(&self) -> Result<Implementation> {
        self.product()?.implementation()
    }

    /// Which implementation [`run_into`](Self::run_into) would take for `y`, which is checked as it is there. It differs from that for a new
    /// output, which has no gaps, where `y` is a view: one that the copy engine cannot store, since rows do not start at multiples of 16
    /// bytes, may take another tile, and leading axes that are not evenly spaced are no rows of one matrix, but a batch or launches of
    /// their own.
    ///
    /// # Errors
    ///
    /// As [`run_into`](Self::run_into), for the operands and `y`.
    pub fn implementation_into(&self, y: &Tensor<O>) -> Result<Implementation> {
        self.product()?.implementation_into(y)
    }

    fn product(&self) -> Result<Product<'_, T, O>> {
        let (x, w) = (self.x, self.w);
        let shape = |operand, expected: String, tensor: &Tensor<T>| Error::Shape {
            operation: OPERATION,
            operand,
            expected,
            actual: tensor.shape().to_vec(),
        };
        let Some((&k, rows)) = x.shape().split_last() else {
            return Err(shape("x", "[.., K], at least one axis".into(), x));
        };
        let &[n, w_k] = w.shape() else { return Err(shape("w", format!("[N, {k}], two axes"), w)) };
        if w_k != k {
            return Err(shape("w", format!("[N, {k}], since x has {k} columns"), w));
        }
        let output_shape = [rows, &[n]].concat();
        // A vector is a matrix of one row.
        let a = if rows.is_empty() { x.reshape([1, k])? } else { x.clone() };
        let leading = a.shape()[..a.rank() - 2].to_vec();
        let (b, options) = (w.clone(), &self.options);
        Ok(Product { operation: OPERATION, names: ["x", "w"], a, b, leading, output_shape, options })
    }
}
