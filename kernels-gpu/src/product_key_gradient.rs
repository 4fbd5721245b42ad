//! Gradients of product-key retrieval: those of queries, and what the gradients of sub-keys and of the norm are sums of.
//!
//! [`embedding_weighted`](mod@crate::embedding) and [`column_sums`](mod@crate::column_sums) add them up.

use warpsmith_dsl::float::{Bf16, Element, F16};
use warpsmith_dsl::kernel;
use warpsmith_dsl::launch::Global;
use warpsmith_dsl::product_key::{
    self, GRADIENT_BYTES, GRADIENT_THREADS, ProductKeyGradientParams, ProductKeyParams, QueryNormParams,
};

/// Computes the gradients of four rows, on a one-dimensional grid of a block for as many.
///
/// The name of an instance tells the type of the sub-keys.
///
/// # Safety
///
/// As [`gradients`](product_key::gradients).
#[kernel(
    family = product_key_gradient,
    block = [GRADIENT_THREADS, 1, 1],
    min_blocks = 5,
    shared = GRADIENT_BYTES,
    instances = [
        product_key_gradient_f16 = <F16>,
        product_key_gradient_bf16 = <Bf16>,
        product_key_gradient_f32 = <f32>,
    ],
)]
pub unsafe fn product_key_gradient<T: Element>(
    q: Global<f32>,
    keys_1: Global<T>,
    keys_2: Global<T>,
    norm: QueryNormParams,
    g: ProductKeyGradientParams,
    p: ProductKeyParams,
) {
    // SAFETY: the caller's promise.
    unsafe { product_key::gradients(q, [keys_1, keys_2], norm, &g, p) }
}
