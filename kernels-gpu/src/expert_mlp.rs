//! Experts of a token: `y = Σ gate · act(x·u) [· (x·w)] · v` over the hidden units of the experts that the token uses, read where they are stored.
//!
//! An expert is a row of a table, of which each token names a few: that gather is what takes the time. The rows' format is the instance's,
//! all else is a parameter, the element type of X and Y too.

use warpsmith_dsl::experts::{ExpertBlock, ExpertParams, ExpertRows, ExpertShape, Int4, Int8};
use warpsmith_dsl::float::{Bf16, F8E4M3, F16};
use warpsmith_dsl::kernel;
use warpsmith_dsl::launch::{Global, GlobalMut};

/// A token for each block of four warps.
pub type Token<F> = ExpertBlock<F, 4, 1, 512, 5>;
/// The same with more registers, for formats of which a chunk is many columns.
pub type TokenOfMany<F> = ExpertBlock<F, 4, 1, 512, 4>;

/// Evaluates the experts of each token, on a one-dimensional grid of a block for each.
///
/// The name of an instance tells the rows' format.
///
/// # Safety
///
/// As [`ExpertShape::evaluate`].
#[kernel(
    family = expert_mlp,
    block = [S::THREADS, 1, 1],
    min_blocks = S::MIN_BLOCKS,
    shared = S::SHARED_BYTES,
    instances = [
        expert_mlp_f32 = <Token<f32>>,
        expert_mlp_f16 = <Token<F16>>,
        expert_mlp_bf16 = <Token<Bf16>>,
        expert_mlp_int8 = <TokenOfMany<Int8>>,
        expert_mlp_int4 = <TokenOfMany<Int4>>,
        expert_mlp_e4m3 = <TokenOfMany<F8E4M3>>,
    ],
)]
pub unsafe fn expert_mlp<S: ExpertShape>(
    x: Global<u8>,
    ids: Global<u32>,
    gates: Global<f32>,
    rows: ExpertRows,
    y: GlobalMut<u8>,
    p: ExpertParams,
) {
    // SAFETY: the caller's promise is the shape's.
    unsafe { S::evaluate(x, ids, gates, rows, y, p) }
}
