//! New keys and values become those of a cache, at places that the device knows; and where tokens stand.
//!
//! The name of an instance tells the type of new keys and values, or how many bits they keep. `any` says that they may have any layout.

use warpsmith_dsl::attention::cache::{self, Append, AppendParams, Kept, Narrowed, PositionParams, THREADS};
use warpsmith_dsl::float::{Bf16, F16};
use warpsmith_dsl::kernel;

/// Appends a token's keys and values for each block, as [`append`](cache::append) says.
///
/// # Safety
///
/// As [`append`](cache::append).
#[kernel(
    family = kv_cache,
    block = [THREADS, 1, 1],
    dependent_launch = true,
    instances = [
        kv_cache_append_b16 = <Kept<2>, true>,
        kv_cache_append_b32 = <Kept<4>, true>,
        kv_cache_append_fp8_f16 = <Narrowed<F16>, true>,
        kv_cache_append_fp8_bf16 = <Narrowed<Bf16>, true>,
        kv_cache_append_any_b16 = <Kept<2>, false>,
        kv_cache_append_any_b32 = <Kept<4>, false>,
        kv_cache_append_any_fp8_f16 = <Narrowed<F16>, false>,
        kv_cache_append_any_fp8_bf16 = <Narrowed<Bf16>, false>,
    ],
)]
pub unsafe fn kv_cache_append<A: Append, const CHUNKS: bool>(p: AppendParams) {
    // SAFETY: the caller's promise.
    unsafe { cache::append::<A, CHUNKS>(&p) }
}

/// Writes the position of a token for each thread, as [`positions`](cache::positions) says.
///
/// # Safety
///
/// As [`positions`](cache::positions).
#[kernel(family = kv_cache, block = [THREADS, 1, 1], dependent_launch = true)]
pub unsafe fn kv_cache_positions(p: PositionParams) {
    // SAFETY: the caller's promise.
    unsafe { cache::positions(&p) }
}
