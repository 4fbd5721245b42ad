//! Experts of many tokens: what [`expert_mlp`](mod@crate::expert_mlp) computes, in the order of the table of experts.
//!
//! Three kernels run one after the other: tokens' units are sorted, then u is gone through for each slice of x, then v for each slice of y. Where many tokens use the
//! same experts, a row is read from memory once for many of them.

use warpsmith_dsl::experts::{
    self, ExpertParams, ExpertRows, ORDER_BYTES, ORDER_THREADS, SortedExperts, SortedParams, SortedShape,
};
use warpsmith_dsl::float::{Bf16, F16};
use warpsmith_dsl::kernel;
use warpsmith_dsl::launch::{Global, GlobalMut};

/// Sorts the units of each group of tokens, on a one-dimensional grid of a block for each.
///
/// # Safety
///
/// As [`order_units`](experts::order_units).
#[kernel(family = expert_mlp_sorted, block = [ORDER_THREADS, 1, 1], min_blocks = 3, shared = ORDER_BYTES)]
pub unsafe fn expert_mlp_order(
    ids: Global<u32>,
    gates: Global<f32>,
    rows: ExpertRows,
    units: GlobalMut<u32>,
    sorted: GlobalMut<f32>,
    p: ExpertParams,
    s: SortedParams,
) {
    // SAFETY: the caller's promise.
    unsafe { experts::order_units(ids, gates, rows, units, sorted, p, s) }
}

/// Multiplies a slice of X with u or w of all units, on a one-dimensional grid of a warp or more for each group of tokens.
///
/// The name of an instance tells the rows' format.
///
/// # Safety
///
/// As [`SortedShape::products`].
#[kernel(
    family = expert_mlp_sorted,
    block = [S::THREADS, 1, 1],
    min_blocks = S::MIN_BLOCKS,
    shared = S::SHARED_BYTES,
    instances = [
        expert_mlp_products_f32 = <SortedExperts<f32>>,
        expert_mlp_products_f16 = <SortedExperts<F16>>,
        expert_mlp_products_bf16 = <SortedExperts<Bf16>>,
    ],
)]
pub unsafe fn expert_mlp_products<S: SortedShape>(
    x: Global<u8>,
    units: Global<u32>,
    gates: Global<f32>,
    products: GlobalMut<f32>,
    p: ExpertParams,
    s: SortedParams,
) {
    // SAFETY: the caller's promise is the shape's.
    unsafe { S::products(x, units, gates, products, p, s) }
}

/// Adds up a slice of v of all units, times what the products have become, likewise.
///
/// # Safety
///
/// As [`SortedShape::outputs`].
#[kernel(
    family = expert_mlp_sorted,
    block = [S::THREADS, 1, 1],
    min_blocks = S::MIN_BLOCKS,
    shared = S::SHARED_BYTES,
    instances = [
        expert_mlp_outputs_f32 = <SortedExperts<f32>>,
        expert_mlp_outputs_f16 = <SortedExperts<F16>>,
        expert_mlp_outputs_bf16 = <SortedExperts<Bf16>>,
    ],
)]
pub unsafe fn expert_mlp_outputs<S: SortedShape>(
    units: Global<u32>,
    factors: Global<f32>,
    y: GlobalMut<u8>,
    p: ExpertParams,
    s: SortedParams,
) {
    // SAFETY: the caller's promise is the shape's.
    unsafe { S::outputs(units, factors, y, p, s) }
}
