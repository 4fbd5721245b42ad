//! The softmax of rows, and its gradient.
//!
//! [`softmax()`] is the operation, [`softmax_gradient()`] its gradient. Who shares a row follows from its columns and their alignment alone, so that other rows
//! never change a row's result.

mod backward;
mod forward;
#[cfg(test)]
mod tests;

use half::{bf16, f16};
use warpsmith_dsl::float::{Bf16, F16};
use warpsmith_dsl::launch::Kernel;
use warpsmith_dsl::softmax::{SoftmaxGradientParams, SoftmaxParams};
use warpsmith_kernels::softmax::{softmax as block, softmax_gradient as block_gradient};
use warpsmith_kernels::softmax_cluster::{
    softmax_cluster as cluster, softmax_cluster_gradient as cluster_gradient,
};

pub use backward::SoftmaxGradientOp;
pub use forward::SoftmaxOp;

use super::rows::RowElement;
use crate::error::{Error, Result};
use crate::tensor::Tensor;

/// The smallest scale, and 1 over the largest: the difference of two numbers is only too large for an f32 where its exponential is 0 then.
const LEAST_SCALE: f32 = 1.0 / (1u128 << 100) as f32;

/// The arguments of a kernel.
type Args<D> = (SoftmaxParams<D>,);
/// Those of a gradient's.
type GradientArgs<D> = (SoftmaxGradientParams<D>,);

/// An element type of rows that a softmax is taken of, or of one.
pub trait SoftmaxElement: RowElement {
    /// The kernel for aligned rows.
    #[doc(hidden)]
    type Block: Kernel<Args = Args<Self::Device>>;
    /// For rows of any alignment.
    #[doc(hidden)]
    type BlockAny: Kernel<Args = Args<Self::Device>>;
    /// For aligned rows, with a cluster for each.
    #[doc(hidden)]
    type Cluster: Kernel<Args = Args<Self::Device>>;
    /// The same for rows of any alignment.
    #[doc(hidden)]
    type ClusterAny: Kernel<Args = Args<Self::Device>>;
    /// The gradient's kernel for aligned rows.
    #[doc(hidden)]
    type Gradient: Kernel<Args = GradientArgs<Self::Device>>;
    /// For rows of any alignment.
    #[doc(hidden)]
    type GradientAny: Kernel<Args = GradientArgs<Self::Device>>;
    /// For aligned rows, with a cluster for each.
    #[doc(hidden)]
    type GradientCluster: Kernel<Args = GradientArgs<Self::Device>>;
    /// The same for rows of any alignment.
    #[doc(hidden)]
    type GradientClusterAny: Kernel<Args = GradientArgs<Self::Device>>;
}

macro_rules! softmax_elements {
    ($($element:ty, $device:ty, $vector:literal;)*) => {
        $(
            impl SoftmaxElement for $element {
                type Block = block<$device, $vector, 4, true>;
                type BlockAny = block<$device, $vector, 4, false>;
                type Cluster = cluster<$device, $vector, 4, true>;
                type ClusterAny = cluster<$device, $vector, 4, false>;
                type Gradient = block_gradient<$device, $vector, 2, true>;
                type GradientAny = block_gradient<$device, $vector, 2, false>;
                type GradientCluster = cluster_gradient<$device, $vector, 2, true>;
                type GradientClusterAny = cluster_gradient<$device, $vector, 2, false>;
            }
        )*
    };
}
softmax_elements! {
    f16, F16, 8;
    bf16, Bf16, 8;
    f32, f32, 4;
}

/// The softmax of each row of `x` `[.., N]`, over its last axis: `y = exp(scale · x) / Σ exp(scale · x)`.
///
/// Columns that a [mask](SoftmaxOp::mask) leaves out have 0 and add nothing, whatever is there, and so has −∞. A row of which nothing is left has zeros. Of a row with
/// NaN or ∞ in a column that counts every column is NaN but those of −∞ or left out; other rows are as they are.
///
/// Sums are in f32, relative to the largest number of the row, and results are rounded once. They are the same bits each time.
///
/// ```
/// use ndarray::array;
/// use warpsmith::{Device, Tensor, ops};
///
/// let x = Tensor::from_array(&Device::cpu(), &array![[0.0f32, 0.0, f32::NEG_INFINITY], [2.0, 2.0, 2.0]])?;
/// let mask = Tensor::from_slice(&Device::cpu(), &[1u8, 0, 1, 0, 1, 1], [2, 3])?;
/// let y = ops::softmax(&x).temperature(0.5).mask(&mask).run()?;
/// assert_eq!(y.to_vec()?, [1.0, 0.0, 0.0, 0.0, 0.5, 0.5]);
/// # Ok::<(), warpsmith::Error>(())
/// ```
pub fn softmax<T: SoftmaxElement>(x: &Tensor<T>) -> SoftmaxOp<'_, T> {
    SoftmaxOp::new(x)
}

/// The gradient with respect to x of a [softmax](softmax()) whose result was `y` `[.., N]`, for `dy`, the gradient of that: `dx = scale · y ⊙ (dy − Σ dy ⊙ y)`, row by
/// row.
///
/// Where y is 0 so is dx, whatever dy is there: what a mask left out of the softmax is left out here as well, without the mask.
///
/// ```
/// use warpsmith::{Device, Tensor, ops};
///
/// let y = Tensor::from_slice(&Device::cpu(), &[0.5f32, 0.5, 0.0], [1, 3])?;
/// let dy = Tensor::from_slice(&Device::cpu(), &[1.0f32, 3.0, f32::NAN], [1, 3])?;
/// let dx = ops::softmax_gradient(&y, &dy).run()?;
/// assert_eq!(dx.to_vec()?, [-0.5, 0.5, 0.0]);
/// # Ok::<(), warpsmith::Error>(())
/// ```
pub fn softmax_gradient<'a, Y: SoftmaxElement, D: RowElement>(
    y: &'a Tensor<Y>,
    dy: &'a Tensor<D>,
) -> SoftmaxGradientOp<'a, Y, D> {
    SoftmaxGradientOp::new(y, dy)
}

/// The error for a scale that exponents would be wrong with, or for the temperature that it was given as.
fn expect_scale(operation: &'static str, scale: f32, temperature: Option<f32>) -> Result<()> {
    if (LEAST_SCALE..=1.0 / LEAST_SCALE).contains(&scale) {
        return Ok(());
    }
    let argument = if temperature.is_some() { "temperature" } else { "scale" };
    Err(Error::Argument {
        operation,
        argument,
        expected: "a number from 2⁻¹⁰⁰ to 2¹⁰⁰".into(),
        actual: temperature.unwrap_or(scale).to_string(),
    })
}
