//! The cross-entropy of rows that are wider than a block has registers for, and its gradient: as [`cross_entropy`](mod@crate::cross_entropy), by the blocks of a
//! cluster.

use warpsmith_dsl::cross_entropy::{CrossEntropyParams, cross_entropy_rows};
use warpsmith_dsl::float::{Bf16, F16};
use warpsmith_dsl::kernel;
use warpsmith_dsl::rows::{RowElement, SHARED_BYTES, THREADS};

/// The loss of rows, as [`cross_entropy_rows`] says, with a cluster for each. The launch names the cluster's size.
///
/// # Safety
///
/// As [`cross_entropy_rows`].
#[kernel(
    family = cross_entropy_cluster,
    block = [THREADS, 1, 1],
    dependent_launch = true,
    min_blocks = if VECTOR { 4 } else { 3 },
    shared = SHARED_BYTES,
    instances = [
        cross_entropy_cluster_f16 = <F16, 8, 4, true>,
        cross_entropy_cluster_bf16 = <Bf16, 8, 4, true>,
        cross_entropy_cluster_f32 = <f32, 4, 4, true>,
        cross_entropy_cluster_any_f16 = <F16, 8, 4, false>,
        cross_entropy_cluster_any_bf16 = <Bf16, 8, 4, false>,
        cross_entropy_cluster_any_f32 = <f32, 4, 4, false>,
    ],
)]
pub unsafe fn cross_entropy_cluster<
    T: RowElement,
    const PER: usize,
    const CHUNKS: usize,
    const VECTOR: bool,
>(
    p: CrossEntropyParams<T>,
) {
    // SAFETY: the caller's promise.
    unsafe { cross_entropy_rows::<T, PER, CHUNKS, VECTOR, true>(&p) }
}
