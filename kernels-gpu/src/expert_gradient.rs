//! Gradients of experts that tokens use: those of x and of the gates, and for each use of a hidden unit the factors of x and dy in the gradient of
//! its expert.
//!
//! [`embedding_weighted`](mod@crate::embedding) makes the gradient of the table of these: rows of the experts that are in use.

use warpsmith_dsl::experts::{
    self, ExpertGradientParams, ExpertParams, ExpertRows, GRADIENT_BYTES, GRADIENT_THREADS, Int4, Int8,
    RowFormat,
};
use warpsmith_dsl::float::{Bf16, F8E4M3, F16};
use warpsmith_dsl::kernel;

/// Computes a token's gradients, on a one-dimensional grid of a block for each.
///
/// The name of an instance tells the rows' format.
///
/// # Safety
///
/// As [`expert_gradients`](experts::expert_gradients).
#[kernel(
    family = expert_gradient,
    block = [GRADIENT_THREADS, 1, 1],
    min_blocks = 5,
    shared = GRADIENT_BYTES,
    instances = [
        expert_gradient_f32 = <f32>,
        expert_gradient_f16 = <F16>,
        expert_gradient_bf16 = <Bf16>,
        expert_gradient_int8 = <Int8>,
        expert_gradient_int4 = <Int4>,
        expert_gradient_e4m3 = <F8E4M3>,
    ],
)]
pub unsafe fn expert_gradient<F: RowFormat>(rows: ExpertRows, p: ExpertParams, g: ExpertGradientParams) {
    // SAFETY: the caller's promise.
    unsafe { experts::expert_gradients::<F>(&rows, &p, &g) }
}
