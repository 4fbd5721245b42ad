//! Layer norm and RMS norm of rows, with a residual that is added first, and their gradients.
//!
//! [`layer_norm`] and [`rms_norm`] start a builder; [`NormOp::backward`] makes one of its gradients.

mod backward;
mod forward;
#[cfg(test)]
mod tests;

use half::{bf16, f16};
use warpsmith_dsl::float::{Bf16, F16};
use warpsmith_dsl::launch::Kernel;
use warpsmith_dsl::norm::{NormGradientParams, NormParams};
use warpsmith_kernels::norm::{norm, norm_columns, norm_gradient};
use warpsmith_kernels::norm_cluster::{norm_cluster, norm_cluster_gradient};

pub use backward::{NormGradientOp, NormGradientOutputs, NormGradients};
pub use forward::{NormOp, NormOutputs, Normed};

use crate::ops::rows;
use crate::tensor::Tensor;

/// An element type of rows that are normed.
pub trait NormElement: rows::RowElement {
    /// The kernels: of aligned rows and of any, in a block and in a cluster; and of columns of wide rows.
    #[doc(hidden)]
    type Norm: Kernel<Args = (NormParams<Self::Device>,)>;
    #[doc(hidden)]
    type NormAny: Kernel<Args = (NormParams<Self::Device>,)>;
    #[doc(hidden)]
    type NormCluster: Kernel<Args = (NormParams<Self::Device>,)>;
    #[doc(hidden)]
    type NormClusterAny: Kernel<Args = (NormParams<Self::Device>,)>;
    #[doc(hidden)]
    type Gradient: Kernel<Args = (NormGradientParams<Self::Device>,)>;
    #[doc(hidden)]
    type GradientAny: Kernel<Args = (NormGradientParams<Self::Device>,)>;
    #[doc(hidden)]
    type GradientCluster: Kernel<Args = (NormGradientParams<Self::Device>,)>;
    #[doc(hidden)]
    type GradientClusterAny: Kernel<Args = (NormGradientParams<Self::Device>,)>;
    #[doc(hidden)]
    type Columns: Kernel<Args = (NormGradientParams<Self::Device>,)>;
    #[doc(hidden)]
    type ColumnsAny: Kernel<Args = (NormGradientParams<Self::Device>,)>;
}

macro_rules! norm_elements {
    ($($element:ty, $device:ty, $chunk:literal;)*) => {
        $(
            impl NormElement for $element {
                type Norm = norm<$device, $chunk, 4, true>;
                type NormAny = norm<$device, $chunk, 4, false>;
                type NormCluster = norm_cluster<$device, $chunk, 4, true>;
                type NormClusterAny = norm_cluster<$device, $chunk, 4, false>;
                type Gradient = norm_gradient<$device, $chunk, 2, true>;
                type GradientAny = norm_gradient<$device, $chunk, 2, false>;
                type GradientCluster = norm_cluster_gradient<$device, $chunk, 2, true>;
                type GradientClusterAny = norm_cluster_gradient<$device, $chunk, 2, false>;
                type Columns = norm_columns<$device, $chunk, true>;
                type ColumnsAny = norm_columns<$device, $chunk, false>;
            }
        )*
    };
}
norm_elements! {
    f16, F16, 8;
    bf16, Bf16, 8;
    f32, f32, 4;
}

/// The layer norm of each row of `x` `[.., N]`: `y = (x − mean) / √(variance + ε) ⊙ weight + bias`, with the mean and the variance of the row's N elements.
///
/// Everything is computed in f32 and rounded once, to the type of the result. The variance is the mean of squared differences to the mean, so it does not
/// cancel where the mean is large. A row whose sum of squared differences is above the range of f32 has NaN in all of `y`, as has one with an infinity.
///
/// x may have any strides; rows that are not one after the other at equal distances, or whose elements are not neighbours, are copied first.
///
/// ```
/// use ndarray::array;
/// use warpsmith::{Device, Tensor, ops};
///
/// let device = Device::cpu();
/// let x = Tensor::from_array(&device, &array![[1.0f32, 3.0], [-2.0, -2.0]])?;
/// let weight = Tensor::from_array(&device, &array![1.0f32, 2.0])?;
/// let y = ops::layer_norm(&x).weight(&weight).epsilon(0.0001).run()?.to_vec()?;
/// assert!((y[0] + 1.0).abs() < 1e-4 && (y[1] - 2.0).abs() < 1e-3);
/// assert_eq!(y[2..], [0.0, 0.0]);
/// # Ok::<(), warpsmith::Error>(())
/// ```
pub fn layer_norm<T: NormElement>(x: &Tensor<T>) -> NormOp<'_, T> {
    NormOp::new("layer_norm", x, true)
}

/// The RMS norm of each row of `x` `[.., N]`: `y = x / √(mean of x² + ε) ⊙ weight + bias`.
///
/// As [`layer_norm`], without a mean that is taken off.
pub fn rms_norm<T: NormElement>(x: &Tensor<T>) -> NormOp<'_, T> {
    NormOp::new("rms_norm", x, false)
}
