//! Functions of the elements of tensors of one shape, of which a kernel has all with as many operands: sums, products, activations, conversions and gradients.
//!
//! The name of an instance tells the type of the first operand, and `any` that operands may have any alignment.

use warpsmith_dsl::elementwise::{ElementwiseParams, apply_to_elements};
use warpsmith_dsl::float::{Bf16, F16};
use warpsmith_dsl::kernel;
use warpsmith_dsl::rows::{RowElement, THREADS};

/// Applies an operation of `OPERANDS` operands to elements, as [`apply_to_elements`] says.
///
/// # Safety
///
/// As [`apply_to_elements`].
#[kernel(
    family = elementwise,
    block = [THREADS, 1, 1],
    dependent_launch = true,
    min_blocks = 7 - OPERANDS as u32,
    instances = [
        elementwise_f16_unary = <F16, 8, true, 1>,
        elementwise_bf16_unary = <Bf16, 8, true, 1>,
        elementwise_f32_unary = <f32, 4, true, 1>,
        elementwise_any_f16_unary = <F16, 8, false, 1>,
        elementwise_any_bf16_unary = <Bf16, 8, false, 1>,
        elementwise_any_f32_unary = <f32, 4, false, 1>,
        elementwise_f16_binary = <F16, 8, true, 2>,
        elementwise_bf16_binary = <Bf16, 8, true, 2>,
        elementwise_f32_binary = <f32, 4, true, 2>,
        elementwise_any_f16_binary = <F16, 8, false, 2>,
        elementwise_any_bf16_binary = <Bf16, 8, false, 2>,
        elementwise_any_f32_binary = <f32, 4, false, 2>,
        elementwise_f16_ternary = <F16, 8, true, 3>,
        elementwise_bf16_ternary = <Bf16, 8, true, 3>,
        elementwise_f32_ternary = <f32, 4, true, 3>,
        elementwise_any_f16_ternary = <F16, 8, false, 3>,
        elementwise_any_bf16_ternary = <Bf16, 8, false, 3>,
        elementwise_any_f32_ternary = <f32, 4, false, 3>,
    ],
)]
pub unsafe fn elementwise<T: RowElement, const PER: usize, const VECTOR: bool, const OPERANDS: usize>(
    p: ElementwiseParams<T>,
) {
    // SAFETY: the caller's promise.
    unsafe { apply_to_elements::<T, PER, VECTOR, OPERANDS>(&p) }
}
