//! Product-key retrieval by clusters: what [`product_key_topk`](mod@crate::product_key_topk) computes for up to 32 experts, with 32 or 64 rows of
//! queries for each cluster.
//!
//! The blocks of a cluster share the sub-keys, so that there are blocks for all multiprocessors where rows are few, and sub-keys are read for twice as
//! many rows at a time where they are many.

use warpsmith_dsl::float::{Bf16, F16};
use warpsmith_dsl::kernel;
use warpsmith_dsl::launch::{Global, GlobalMut};
use warpsmith_dsl::product_key::{ProductKeyBlock, ProductKeyParams, ProductKeyShape, QueryNormParams};

/// Two, four or eight blocks for 64 rows of queries: a half of each for as many. Of 16-bit sub-keys a multiprocessor holds two blocks.
pub type OfManyRows<T> = ProductKeyBlock<T, 4, 1, 8, 8>;
/// The same for 32 rows, by twice as many warps: sooner done, and for as many rows more work.
pub type OfFewRows<T> = ProductKeyBlock<T, 2, 1, 8, 16>;
/// As [`OfManyRows`], of which a cluster takes one 64 rows after the other, so that no block has to wait for room: for launches beside other work.
pub type InRounds<T> = ProductKeyBlock<T, 4, 1, 8, 8, true>;

/// Finds the experts of each row of queries, as [`ProductKeyShape::retrieve`] says.
///
/// The name of an instance tells the rows of a cluster and the type of the sub-keys.
///
/// # Safety
///
/// As [`ProductKeyShape::retrieve`].
#[kernel(
    family = product_key_topk_cluster,
    block = [S::THREADS, 1, 1],
    min_blocks = S::MIN_BLOCKS,
    shared = S::SHARED_BYTES,
    instances = [
        product_key_topk_cluster_64_f16 = <OfManyRows<F16>>,
        product_key_topk_cluster_64_bf16 = <OfManyRows<Bf16>>,
        product_key_topk_cluster_rounds_64_f16 = <InRounds<F16>>,
        product_key_topk_cluster_rounds_64_bf16 = <InRounds<Bf16>>,
        product_key_topk_cluster_32_f16 = <OfFewRows<F16>>,
        product_key_topk_cluster_32_bf16 = <OfFewRows<Bf16>>,
        product_key_topk_cluster_32_f32 = <OfFewRows<f32>>,
    ],
)]
pub unsafe fn product_key_topk_cluster<S: ProductKeyShape>(
    q: Global<f32>,
    keys_1: Global<<S as ProductKeyShape>::Keys>,
    keys_2: Global<<S as ProductKeyShape>::Keys>,
    norm: QueryNormParams,
    ids: GlobalMut<u32>,
    gates: GlobalMut<f32>,
    p: ProductKeyParams,
) {
    // SAFETY: the caller's promise is the shape's.
    unsafe { S::retrieve(q, keys_1, keys_2, norm, ids, gates, p) }
}
