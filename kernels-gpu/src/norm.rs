//! Layer norm and RMS norm of rows, and their gradients.
//!
//! A part of a warp, some warps or a block has a row. The name of an instance tells the type of the rows, and `any` that they may have any alignment.

use warpsmith_dsl::float::{Bf16, F16};
use warpsmith_dsl::kernel;
use warpsmith_dsl::norm::{
    GRADIENT_SHARED_BYTES, NormGradientParams, NormParams, norm_column_gradients, norm_gradients, norm_rows,
};
use warpsmith_dsl::rows::{RowElement, SHARED_BYTES, THREADS};

/// Norms rows, as [`norm_rows`] says.
///
/// # Safety
///
/// As [`norm_rows`].
#[kernel(
    family = norm,
    block = [THREADS, 1, 1],
    dependent_launch = true,
    min_blocks = if VECTOR { 4 } else { 3 },
    shared = SHARED_BYTES,
    instances = [
        norm_f16 = <F16, 8, 4, true>,
        norm_bf16 = <Bf16, 8, 4, true>,
        norm_f32 = <f32, 4, 4, true>,
        norm_any_f16 = <F16, 8, 4, false>,
        norm_any_bf16 = <Bf16, 8, 4, false>,
        norm_any_f32 = <f32, 4, 4, false>,
    ],
)]
pub unsafe fn norm<T: RowElement, const PER: usize, const CHUNKS: usize, const VECTOR: bool>(
    p: NormParams<T>,
) {
    // SAFETY: the caller's promise.
    unsafe { norm_rows::<T, PER, CHUNKS, VECTOR, false>(&p) }
}

/// The gradients of norms, as [`norm_gradients`] says.
///
/// # Safety
///
/// As [`norm_gradients`].
#[kernel(
    family = norm,
    block = [THREADS, 1, 1],
    dependent_launch = true,
    min_blocks = 2,
    shared = GRADIENT_SHARED_BYTES,
    instances = [
        norm_gradient_f16 = <F16, 8, 2, true>,
        norm_gradient_bf16 = <Bf16, 8, 2, true>,
        norm_gradient_f32 = <f32, 4, 2, true>,
        norm_gradient_any_f16 = <F16, 8, 2, false>,
        norm_gradient_any_bf16 = <Bf16, 8, 2, false>,
        norm_gradient_any_f32 = <f32, 4, 2, false>,
    ],
)]
pub unsafe fn norm_gradient<T: RowElement, const PER: usize, const CHUNKS: usize, const VECTOR: bool>(
    p: NormGradientParams<T>,
) {
    // SAFETY: the caller's promise.
    unsafe { norm_gradients::<T, PER, CHUNKS, VECTOR, false>(&p) }
}

/// The gradients of weight and bias of norms of wide rows, as [`norm_column_gradients`] says.
///
/// # Safety
///
/// As [`norm_column_gradients`].
#[kernel(
    family = norm,
    block = [THREADS, 1, 1],
    dependent_launch = true,
    min_blocks = 2,
    instances = [
        norm_columns_f16 = <F16, 8, true>,
        norm_columns_bf16 = <Bf16, 8, true>,
        norm_columns_f32 = <f32, 4, true>,
        norm_columns_any_f16 = <F16, 8, false>,
        norm_columns_any_bf16 = <Bf16, 8, false>,
        norm_columns_any_f32 = <f32, 4, false>,
    ],
)]
pub unsafe fn norm_columns<T: RowElement, const PER: usize, const VECTOR: bool>(p: NormGradientParams<T>) {
    // SAFETY: the caller's promise.
    unsafe { norm_column_gradients::<T, PER, VECTOR>(&p) }
}
