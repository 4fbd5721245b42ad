//! What the gradients of a generated update have between their products: the operands of the last ones, and the gradient of the codes.
//!
//! The name of an instance tells the type of the update's operands.

use warpsmith_dsl::float::{Bf16, Element, F16};
use warpsmith_dsl::kernel;
use warpsmith_dsl::rows::THREADS;
use warpsmith_dsl::update_gradient::{SHARED_BYTES, UpdateGradientParams, update_gradients};

/// Computes what is between the products of a gradient, as [`update_gradients`] says.
///
/// # Safety
///
/// As [`update_gradients`].
#[kernel(
    family = update_gradient,
    block = [THREADS, 1, 1],
    min_blocks = 4,
    shared = SHARED_BYTES,
    instances = [
        update_gradient_f16 = <F16>,
        update_gradient_bf16 = <Bf16>,
        update_gradient_f32 = <f32>,
    ],
)]
pub unsafe fn update_gradient<T: Element>(p: UpdateGradientParams<T>) {
    // SAFETY: the caller's promise.
    unsafe { update_gradients::<T>(&p) }
}
