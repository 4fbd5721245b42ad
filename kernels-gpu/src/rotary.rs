//! Rotary position embedding of heads.
//!
//! The name of an instance tells the type of the heads, and `any` that they may have any alignment.

use warpsmith_dsl::float::{Bf16, F16};
use warpsmith_dsl::kernel;
use warpsmith_dsl::rotary::{RotaryParams, rotate_heads};
use warpsmith_dsl::rows::{RowElement, THREADS};

/// Turns pairs of elements of heads, as [`rotate_heads`] says.
///
/// # Safety
///
/// As [`rotate_heads`].
#[kernel(
    family = rotary,
    block = [THREADS, 1, 1],
    dependent_launch = true,
    min_blocks = 3,
    instances = [
        rotary_f16 = <F16, 8>,
        rotary_bf16 = <Bf16, 8>,
        rotary_f32 = <f32, 4>,
        rotary_any_f16 = <F16, 1>,
        rotary_any_bf16 = <Bf16, 1>,
        rotary_any_f32 = <f32, 1>,
    ],
)]
pub unsafe fn rotary<T: RowElement, const PER: usize>(p: RotaryParams<T>) {
    // SAFETY: the caller's promise.
    unsafe { rotate_heads::<T, PER>(&p) }
}
