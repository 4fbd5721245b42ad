//! Norms of rows that are wider than a block has registers for, and their gradients: as [`norm`](mod@crate::norm), by the blocks of a cluster.

use warpsmith_dsl::float::{Bf16, F16};
use warpsmith_dsl::kernel;
use warpsmith_dsl::norm::{GRADIENT_SHARED_BYTES, NormGradientParams, NormParams, norm_gradients, norm_rows};
use warpsmith_dsl::rows::{RowElement, SHARED_BYTES, THREADS};

/// Norms rows, as [`norm_rows`] says, with a cluster for each. The launch names the cluster's size.
///
/// # Safety
///
/// As [`norm_rows`].
#[kernel(
    family = norm_cluster,
    block = [THREADS, 1, 1],
    dependent_launch = true,
    min_blocks = if VECTOR { 4 } else { 3 },
    shared = SHARED_BYTES,
    instances = [
        norm_cluster_f16 = <F16, 8, 4, true>,
        norm_cluster_bf16 = <Bf16, 8, 4, true>,
        norm_cluster_f32 = <f32, 4, 4, true>,
        norm_cluster_any_f16 = <F16, 8, 4, false>,
        norm_cluster_any_bf16 = <Bf16, 8, 4, false>,
        norm_cluster_any_f32 = <f32, 4, 4, false>,
    ],
)]
pub unsafe fn norm_cluster<T: RowElement, const PER: usize, const CHUNKS: usize, const VECTOR: bool>(
    p: NormParams<T>,
) {
    // SAFETY: the caller's promise.
    unsafe { norm_rows::<T, PER, CHUNKS, VECTOR, true>(&p) }
}

/// The gradients of norms, as [`norm_gradients`] says, with a cluster for a row. The launch names the cluster's size.
///
/// # Safety
///
/// As [`norm_gradients`].
#[kernel(
    family = norm_cluster,
    block = [THREADS, 1, 1],
    dependent_launch = true,
    min_blocks = 2,
    shared = GRADIENT_SHARED_BYTES,
    instances = [
        norm_cluster_gradient_f16 = <F16, 8, 2, true>,
        norm_cluster_gradient_bf16 = <Bf16, 8, 2, true>,
        norm_cluster_gradient_f32 = <f32, 4, 2, true>,
        norm_cluster_gradient_any_f16 = <F16, 8, 2, false>,
        norm_cluster_gradient_any_bf16 = <Bf16, 8, 2, false>,
        norm_cluster_gradient_any_f32 = <f32, 4, 2, false>,
    ],
)]
pub unsafe fn norm_cluster_gradient<
    T: RowElement,
    const PER: usize,
    const CHUNKS: usize,
    const VECTOR: bool,
>(
    p: NormGradientParams<T>,
) {
    // SAFETY: the caller's promise.
    unsafe { norm_gradients::<T, PER, CHUNKS, VECTOR, true>(&p) }
}
