//! The softmax of rows, and its gradient.
//!
//! A part of a warp, some warps or a block has a row. The name of an instance tells the type of the rows, and `any` that they may have any alignment.

use warpsmith_dsl::float::{Bf16, F16};
use warpsmith_dsl::kernel;
use warpsmith_dsl::rows::{RowElement, SHARED_BYTES, THREADS};
use warpsmith_dsl::softmax::{SoftmaxGradientParams, SoftmaxParams, softmax_gradients, softmax_rows};

/// The softmax of rows, as [`softmax_rows`] says.
///
/// # Safety
///
/// As [`softmax_rows`].
#[kernel(
    family = softmax,
    block = [THREADS, 1, 1],
    dependent_launch = true,
    min_blocks = if VECTOR { 4 } else { 3 },
    shared = SHARED_BYTES,
    instances = [
        softmax_f16 = <F16, 8, 4, true>,
        softmax_bf16 = <Bf16, 8, 4, true>,
        softmax_f32 = <f32, 4, 4, true>,
        softmax_any_f16 = <F16, 8, 4, false>,
        softmax_any_bf16 = <Bf16, 8, 4, false>,
        softmax_any_f32 = <f32, 4, 4, false>,
    ],
)]
pub unsafe fn softmax<T: RowElement, const PER: usize, const CHUNKS: usize, const VECTOR: bool>(
    p: SoftmaxParams<T>,
) {
    // SAFETY: the caller's promise.
    unsafe { softmax_rows::<T, PER, CHUNKS, VECTOR, false>(&p) }
}

/// The gradient of a softmax, as [`softmax_gradients`] says.
///
/// # Safety
///
/// As [`softmax_gradients`].
#[kernel(
    family = softmax,
    block = [THREADS, 1, 1],
    dependent_launch = true,
    min_blocks = 4,
    shared = SHARED_BYTES,
    instances = [
        softmax_gradient_f16 = <F16, 8, 2, true>,
        softmax_gradient_bf16 = <Bf16, 8, 2, true>,
        softmax_gradient_f32 = <f32, 4, 2, true>,
        softmax_gradient_any_f16 = <F16, 8, 2, false>,
        softmax_gradient_any_bf16 = <Bf16, 8, 2, false>,
        softmax_gradient_any_f32 = <f32, 4, 2, false>,
    ],
)]
pub unsafe fn softmax_gradient<T: RowElement, const PER: usize, const CHUNKS: usize, const VECTOR: bool>(
    p: SoftmaxGradientParams<T>,
) {
    // SAFETY: the caller's promise.
    unsafe { softmax_gradients::<T, PER, CHUNKS, VECTOR, false>(&p) }
}
