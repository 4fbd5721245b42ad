//! The gradient of a linear layer's sums, and of its bias: what the products of the backward pass begin with.
//!
//! The name of an instance tells the type of the layer's output, and `any` that operands may have any alignment.

use warpsmith_dsl::float::{Bf16, F16};
use warpsmith_dsl::kernel;
use warpsmith_dsl::linear_gradient::{LinearGradientParams, SHARED_BYTES, linear_gradients};
use warpsmith_dsl::rows::{RowElement, THREADS};

/// Computes a gradient and its sums over rows, as [`linear_gradients`] says.
///
/// # Safety
///
/// As [`linear_gradients`].
#[kernel(
    family = linear_gradient,
    block = [THREADS, 1, 1],
    dependent_launch = true,
    min_blocks = 2,
    shared = SHARED_BYTES,
    instances = [
        linear_gradient_f16 = <F16, 8, 1, true>,
        linear_gradient_bf16 = <Bf16, 8, 1, true>,
        linear_gradient_f32 = <f32, 4, 1, true>,
        linear_gradient_any_f16 = <F16, 4, 4, false>,
        linear_gradient_any_bf16 = <Bf16, 4, 4, false>,
        linear_gradient_any_f32 = <f32, 4, 4, false>,
    ],
)]
pub unsafe fn linear_gradient<T: RowElement, const PER: usize, const WORDS: usize, const VECTOR: bool>(
    p: LinearGradientParams<T>,
) {
    // SAFETY: the caller's promise.
    unsafe { linear_gradients::<T, PER, WORDS, VECTOR>(&p) }
}
