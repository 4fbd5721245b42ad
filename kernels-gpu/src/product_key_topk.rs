//! Product-key retrieval: for each row of queries the k best of n² experts, and what each of them counts.

use warpsmith_dsl::float::{Bf16, F16};
use warpsmith_dsl::kernel;
use warpsmith_dsl::launch::{Global, GlobalMut};
use warpsmith_dsl::product_key::{ProductKeyBlock, ProductKeyParams, ProductKeyShape, QueryNormParams};

/// 32 rows of queries for each block, of each of which up to 32 experts are found.
pub type Few<T> = ProductKeyBlock<T, 2, 1, 1, 8>;
/// The same, of up to 64 experts.
pub type Many<T> = ProductKeyBlock<T, 2, 2, 1, 8>;

/// Finds the experts of each row of queries, as [`ProductKeyShape::retrieve`] says.
///
/// The name of an instance tells the type of the sub-keys, and how many are found at most.
///
/// # Safety
///
/// As [`ProductKeyShape::retrieve`].
#[kernel(
    family = product_key_topk,
    block = [S::THREADS, 1, 1],
    min_blocks = S::MIN_BLOCKS,
    shared = S::SHARED_BYTES,
    instances = [
        product_key_topk_f16_32 = <Few<F16>>,
        product_key_topk_f16_64 = <Many<F16>>,
        product_key_topk_bf16_32 = <Few<Bf16>>,
        product_key_topk_bf16_64 = <Many<Bf16>>,
        product_key_topk_f32_32 = <Few<f32>>,
        product_key_topk_f32_64 = <Many<f32>>,
    ],
)]
pub unsafe fn product_key_topk<S: ProductKeyShape>(
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
