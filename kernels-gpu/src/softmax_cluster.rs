//! The softmax of rows that are wider than a block has registers for, and its gradient: as [`softmax`](mod@crate::softmax), by the blocks of a cluster.

use warpsmith_dsl::float::{Bf16, F16};
use warpsmith_dsl::kernel;
use warpsmith_dsl::rows::{RowElement, SHARED_BYTES, THREADS};
use warpsmith_dsl::softmax::{SoftmaxGradientParams, SoftmaxParams, softmax_gradients, softmax_rows};

/// The softmax of rows, as [`softmax_rows`] says, with a cluster for each. The launch names the cluster's size.
///
/// # Safety
///
/// As [`softmax_rows`].
#[kernel(
    family = softmax_cluster,
    block = [THREADS, 1, 1],
    dependent_launch = true,
    min_blocks = if VECTOR { 4 } else { 3 },
    shared = SHARED_BYTES,
    instances = [
        softmax_cluster_f16 = <F16, 8, 4, true>,
        softmax_cluster_bf16 = <Bf16, 8, 4, true>,
        softmax_cluster_f32 = <f32, 4, 4, true>,
        softmax_cluster_any_f16 = <F16, 8, 4, false>,
        softmax_cluster_any_bf16 = <Bf16, 8, 4, false>,
        softmax_cluster_any_f32 = <f32, 4, 4, false>,
    ],
)]
pub unsafe fn softmax_cluster<T: RowElement, const PER: usize, const CHUNKS: usize, const VECTOR: bool>(
    p: SoftmaxParams<T>,
) {
    // SAFETY: the caller's promise.
    unsafe { softmax_rows::<T, PER, CHUNKS, VECTOR, true>(&p) }
}

/// The gradient of a softmax, as [`softmax_gradients`] says, with a cluster for a row. The launch names the cluster's size.
///
/// # Safety
///
/// As [`softmax_gradients`].
#[kernel(
    family = softmax_cluster,
    block = [THREADS, 1, 1],
    dependent_launch = true,
    min_blocks = 4,
    shared = SHARED_BYTES,
    instances = [
        softmax_cluster_gradient_f16 = <F16, 8, 2, true>,
        softmax_cluster_gradient_bf16 = <Bf16, 8, 2, true>,
        softmax_cluster_gradient_f32 = <f32, 4, 2, true>,
        softmax_cluster_gradient_any_f16 = <F16, 8, 2, false>,
        softmax_cluster_gradient_any_bf16 = <Bf16, 8, 2, false>,
        softmax_cluster_gradient_any_f32 = <f32, 4, 2, false>,
    ],
)]
pub unsafe fn softmax_cluster_gradient<
    T: RowElement,
    const PER: usize,
    const CHUNKS: usize,
    const VECTOR: bool,
>(
    p: SoftmaxGradientParams<T>,
) {
    // SAFETY: the caller's promise.
    unsafe { softmax_gradients::<T, PER, CHUNKS, VECTOR, true>(&p) }
}
