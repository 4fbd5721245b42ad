//! Experts of few tokens: what [`expert_mlp`](mod@crate::expert_mlp) computes, by the blocks of a cluster.
//!
//! Each block has some of the token's hidden units and adds up what they contribute to all columns; then each adds up some columns over the blocks. So
//! a token's experts are read by many multiprocessors, all of them at the same time.

use warpsmith_dsl::experts::{ExpertBlock, ExpertParams, ExpertRows, ExpertShape, Int4, Int8};
use warpsmith_dsl::float::{Bf16, F8E4M3, F16};
use warpsmith_dsl::launch::{Global, GlobalMut};
use warpsmith_dsl::{grid, kernel};

/// A token for each cluster of up to eight blocks of eight warps.
pub type TokenOfCluster<F> = ExpertBlock<F, 8, 8, 256, 2>;

/// Evaluates the experts of each token, on a one-dimensional grid of a cluster for each, of as many blocks as the parameters say.
///
/// The name of an instance tells the rows' format.
///
/// # Safety
///
/// As [`ExpertShape::evaluate`].
#[kernel(
    family = expert_mlp_cluster,
    block = [S::THREADS, 1, 1],
    min_blocks = S::MIN_BLOCKS,
    shared = S::SHARED_BYTES,
    instances = [
        expert_mlp_cluster_f32 = <TokenOfCluster<f32>>,
        expert_mlp_cluster_f16 = <TokenOfCluster<F16>>,
        expert_mlp_cluster_bf16 = <TokenOfCluster<Bf16>>,
        expert_mlp_cluster_int8 = <TokenOfCluster<Int8>>,
        expert_mlp_cluster_int4 = <TokenOfCluster<Int4>>,
        expert_mlp_cluster_e4m3 = <TokenOfCluster<F8E4M3>>,
    ],
)]
pub unsafe fn expert_mlp_cluster<S: ExpertShape>(
    x: Global<u8>,
    ids: Global<u32>,
    gates: Global<f32>,
    rows: ExpertRows,
    y: GlobalMut<u8>,
    p: ExpertParams,
) {
    grid::wait_for_earlier_launches();
    // SAFETY: the caller's promise is the shape's.
    unsafe { S::evaluate(x, ids, gates, rows, y, p) }
}
