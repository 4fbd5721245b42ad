//! Generated low-rank updates of few rows: what [`generated_update`](mod@crate::generated_update) computes, by the blocks of a cluster.
//!
//! Each block sums the product of X and V over a part of K1, and sends its sums to the others. All then have all, and each computes columns
//! of Y of its own. So many blocks read V and U, whose bytes are the time of an update of few rows.

use warpsmith_dsl::float::{Bf16, F16, Stored};
use warpsmith_dsl::gemm::low_rank::{LowRankElement, LowRankShape, LowRankTile};
use warpsmith_dsl::kernel;
use warpsmith_dsl::launch::{Global, GlobalMut};

use crate::codes::Codes;
use crate::update::{UpdateParams, update};

/// 16 rows by eight blocks of four warps.
pub type Cluster16 = LowRankTile<2, 1, 4, 4, 4, 8, 2>;

/// `Y (+)= Σ scaling · ((X V) ⊙ codes) U` on a one-dimensional grid of one cluster for each tile of `BLOCK_M` rows × `SPLIT` · `slice`
/// columns.
///
/// The name of an instance tells the type of all operands, and the largest rank.
///
/// # Safety
///
/// As [`generated_update`](fn@crate::generated_update::generated_update).
#[kernel(
    family = generated_update_cluster,
    block = [S::THREADS, 1, 1],
    cluster = [S::SPLIT, 1, 1],
    min_blocks = S::MIN_BLOCKS,
    shared = S::BASE_BYTES + S::CODES * <T as Stored>::BYTES,
    instances = [
        generated_update_cluster_f16_rank16 = <F16, Cluster16>,
        generated_update_cluster_bf16_rank16 = <Bf16, Cluster16>,
        generated_update_cluster_f32_rank16 = <f32, Cluster16>,
    ],
)]
pub unsafe fn generated_update_cluster<T: LowRankElement, S: LowRankShape>(
    x: Global<T>,
    v: Global<T>,
    codes: Codes<T>,
    u: Global<T>,
    y: GlobalMut<T>,
    p: UpdateParams,
) {
    // SAFETY: the caller's promise is `update`'s.
    unsafe { update::<T, S>(x, v, codes, u, y, p) }
}
