//! The cross-entropy of rows of logits, and its gradient; how many labels count, and the sum of losses.
//!
//! A part of a warp, some warps or a block has a row. The name of an instance tells the type of the logits, and `any` that they may have any alignment.

use warpsmith_dsl::cross_entropy::{
    CrossEntropyParams, Labels, count_labels, cross_entropy_rows, sum_losses,
};
use warpsmith_dsl::float::{Bf16, F16};
use warpsmith_dsl::launch::{Global, GlobalMut};
use warpsmith_dsl::rows::{RowElement, SHARED_BYTES, THREADS};
use warpsmith_dsl::{kernel, warp};

/// The loss of rows, as [`cross_entropy_rows`] says.
///
/// # Safety
///
/// As [`cross_entropy_rows`].
#[kernel(
    family = cross_entropy,
    block = [THREADS, 1, 1],
    min_blocks = 3,
    shared = SHARED_BYTES,
    instances = [
        cross_entropy_f16 = <F16, 8, 4, true>,
        cross_entropy_bf16 = <Bf16, 8, 4, true>,
        cross_entropy_f32 = <f32, 4, 4, true>,
        cross_entropy_any_f16 = <F16, 8, 4, false>,
        cross_entropy_any_bf16 = <Bf16, 8, 4, false>,
        cross_entropy_any_f32 = <f32, 4, 4, false>,
    ],
)]
pub unsafe fn cross_entropy<T: RowElement, const PER: usize, const CHUNKS: usize, const VECTOR: bool>(
    p: CrossEntropyParams<T>,
) {
    // SAFETY: the caller's promise.
    unsafe { cross_entropy_rows::<T, PER, CHUNKS, VECTOR, false>(&p) }
}

/// How many labels of each part of the rows count, as [`count_labels`] says.
///
/// # Safety
///
/// As [`count_labels`].
#[kernel(
    family = cross_entropy,
    block = [THREADS, 1, 1],
    min_blocks = 4,
    shared = THREADS / warp::SIZE * 4,
)]
pub unsafe fn label_counts(labels: Labels, counts: GlobalMut<u32>, rows: u32, part: u32) {
    // SAFETY: the caller's promise.
    unsafe { count_labels(&labels, counts, rows, part) }
}

/// The sum of the losses of each part of the rows, as [`sum_losses`] says.
///
/// # Safety
///
/// As [`sum_losses`].
#[kernel(
    family = cross_entropy,
    block = [THREADS, 1, 1],
    min_blocks = 4,
    shared = SHARED_BYTES,
)]
pub unsafe fn loss_sums(
    losses: Global<f32>,
    counts: Global<u32>,
    sums: GlobalMut<f32>,
    rows: u32,
    part: u32,
    parts: u32,
) {
    // SAFETY: the caller's promise.
    unsafe { sum_losses(losses, counts, sums, rows, part, parts) }
}
