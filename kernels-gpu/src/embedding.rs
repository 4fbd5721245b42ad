//! Rows of a table that ids name, and its gradient: ids in ascending order, and sums of the rows of equal ones.
//!
//! The name of an instance tells the type of rows, of those that are copied their elements' bits, and `any` that they may have any alignment.

use warpsmith_dsl::embedding::order::{
    DistinctParams, ORDER_BYTES, ORDER_THREADS, PassParams, count_digits, find_distinct, put_in_order,
    sum_before,
};
use warpsmith_dsl::embedding::{
    GatherParams, GradientParams, WeightedParams, add_rows, add_weighted_rows, gather_rows,
};
use warpsmith_dsl::float::{Bf16, F16};
use warpsmith_dsl::kernel;
use warpsmith_dsl::launch::GlobalMut;
use warpsmith_dsl::rows::{RowElement, THREADS};

/// Copies rows of a table, as [`gather_rows`] says.
///
/// # Safety
///
/// As [`gather_rows`].
#[kernel(
    family = embedding,
    block = [THREADS, 1, 1],
    min_blocks = 4,
    instances = [
        embedding_16 = <F16, 8, 4, true>,
        embedding_32 = <f32, 4, 4, true>,
        embedding_any_16 = <F16, 8, 4, false>,
        embedding_any_32 = <f32, 4, 4, false>,
    ],
)]
pub unsafe fn embedding<T: RowElement, const PER: usize, const CHUNKS: usize, const VECTOR: bool>(
    p: GatherParams<T>,
) {
    // SAFETY: the caller's promise.
    unsafe { gather_rows::<T, PER, CHUNKS, VECTOR>(&p) }
}

/// Counts digits of ids, as [`count_digits`] says.
///
/// # Safety
///
/// As [`count_digits`].
#[kernel(family = embedding, block = [ORDER_THREADS, 1, 1], shared = ORDER_BYTES)]
pub unsafe fn embedding_count(p: PassParams) {
    // SAFETY: the caller's promise.
    unsafe { count_digits(&p) }
}

/// Sums of what is before each number of a row, as [`sum_before`] says.
///
/// # Safety
///
/// As [`sum_before`].
#[kernel(family = embedding, block = [ORDER_THREADS, 1, 1], shared = ORDER_BYTES)]
pub unsafe fn embedding_sums(numbers: GlobalMut<u32>, totals: GlobalMut<u32>, count: u32) {
    // SAFETY: the caller's promise.
    unsafe { sum_before(numbers, totals, count) }
}

/// Puts ids in the order of a digit, as [`put_in_order`] says.
///
/// # Safety
///
/// As [`put_in_order`].
#[kernel(family = embedding, block = [ORDER_THREADS, 1, 1], shared = ORDER_BYTES)]
pub unsafe fn embedding_order(p: PassParams) {
    // SAFETY: the caller's promise.
    unsafe { put_in_order(&p) }
}

/// Counts or puts different ids, as [`find_distinct`] says.
///
/// # Safety
///
/// As [`find_distinct`].
#[kernel(
    family = embedding,
    block = [ORDER_THREADS, 1, 1],
    shared = ORDER_BYTES,
    instances = [embedding_distinct_count = <false>, embedding_distinct_put = <true>],
)]
pub unsafe fn embedding_distinct<const PUTS: bool>(p: DistinctParams) {
    // SAFETY: the caller's promise.
    unsafe { find_distinct::<PUTS>(&p) }
}

/// Adds up rows of equal ids, as [`add_rows`] says.
///
/// # Safety
///
/// As [`add_rows`].
#[kernel(
    family = embedding,
    block = [THREADS, 1, 1],
    min_blocks = 2,
    instances = [
        embedding_gradient_f16 = <F16, 8, 1, true>,
        embedding_gradient_bf16 = <Bf16, 8, 1, true>,
        embedding_gradient_f32 = <f32, 4, 1, true>,
        embedding_gradient_any_f16 = <F16, 8, 1, false>,
        embedding_gradient_any_bf16 = <Bf16, 8, 1, false>,
        embedding_gradient_any_f32 = <f32, 4, 1, false>,
    ],
)]
pub unsafe fn embedding_gradient<T: RowElement, const PER: usize, const CHUNKS: usize, const VECTOR: bool>(
    p: GradientParams<T>,
) {
    // SAFETY: the caller's promise.
    unsafe { add_rows::<T, PER, CHUNKS, VECTOR>(&p) }
}

/// Adds up rows of equal ids times weights, as [`add_weighted_rows`] says.
///
/// # Safety
///
/// As [`add_weighted_rows`].
#[kernel(
    family = embedding,
    block = [THREADS, 1, 1],
    min_blocks = 2,
    instances = [
        embedding_weighted_f16 = <F16, 8, 1, true>,
        embedding_weighted_bf16 = <Bf16, 8, 1, true>,
        embedding_weighted_f32 = <f32, 4, 1, true>,
        embedding_weighted_any_f16 = <F16, 8, 1, false>,
        embedding_weighted_any_bf16 = <Bf16, 8, 1, false>,
        embedding_weighted_any_f32 = <f32, 4, 1, false>,
    ],
)]
pub unsafe fn embedding_weighted<T: RowElement, const PER: usize, const CHUNKS: usize, const VECTOR: bool>(
    p: WeightedParams<T>,
) {
    // SAFETY: the caller's promise.
    unsafe { add_weighted_rows::<T, PER, CHUNKS, VECTOR>(&p) }
}
