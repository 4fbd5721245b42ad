//! `Y = act(alpha · X Wᵀ + b)`: the fused linear operation.
//!
//! [`linear`] starts a builder; [`LinearOp::run`] and [`LinearOp::run_into`] check everything first and launch the kernel that
//! [`gemm::select`](crate::ops::gemm::select) has chosen, or run the CPU implementation, as every product does ([`gemm`](crate::ops::gemm)).
//!
//! Accumulation is in f32, the result is rounded once. f32 inputs are multiplied at f32 accuracy (as three TF32 products on
//! tensor cores), unless [`LinearOp::precision`] allows less.

pub mod backward;

pub use crate::ops::gemm::variants::{LinearInput, LinearTypes};
pub use backward::{
    LinearBackwardOp, LinearGradientElement, LinearGradientOutputs, LinearGradients, linear_backward,
};

use crate::cpu::FromAccumulator;
use crate::error::{Error, Result};
use crate::ops::gemm::{Options, Product, Tile, product_methods};
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
///
/// // y = x wᵀ + y
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
pub fn linear<'a, T: LinearInput>(x: &'a Tensor<T>, w: &'a Tensor<T>) -> LinearOp<'a, T, T> {
    with_output(x, w)
}

/// As [`linear`], with any output type that the inputs' type has kernels for.
pub fn with_output<'a, T, O>(x: &'a Tensor<T>, w: &'a Tensor<T>) -> LinearOp<'a, T, O>
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
    product_methods!(LinearOp { x, w }, "[.., N]");

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
