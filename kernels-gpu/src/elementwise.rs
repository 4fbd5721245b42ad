//! Functions of the elements of tensors of one shape, of which a kernel has all: sums, products, activations, conversions and gradients.
//!
//! The name of an instance tells the type of the first operand, and `any` that operands may have any alignment.

use warpsmith_dsl::elementwise::{ElementwiseParams, apply_to_elements};
use warpsmith_dsl::float::{Bf16, F16};
use warpsmith_dsl::kernel;
use warpsmith_dsl::rows::{RowElement, THREADS};

/// Applies an operation to elements, as [`apply_to_elements`] says.
///
/// # Safety
///
/// As [`apply_to_elements`].
#[kernel(
    family = elementwise,
    block = [THREADS, 1, 1],
    min_blocks = 3,
    instances = [
        elementwise_f16 = <F16, 8, true>,
        elementwise_bf16 = <Bf16, 8, true>,
        elementwise_f32 = <f32, 4, true>,
        elementwise_any_f16 = <F16, 4, false>,
        elementwise_any_bf16 = <Bf16, 4, false>,
        elementwise_any_f32 = <f32, 4, false>,
    ],
)]
pub unsafe fn elementwise<T: RowElement, const PER: usize, const VECTOR: bool>(p: ElementwiseParams<T>) {
    // SAFETY: the caller's promise.
    unsafe { apply_to_elements::<T, PER, VECTOR>(&p) }
}
