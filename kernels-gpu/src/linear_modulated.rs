//! The first product of generated updates on Hopper: `G = (X V) ⊙ codes`, added up in f32 and rounded once.
//!
//! V has few columns, so that the time is that of reading X: the tiles are those for [few rows](mod@crate::linear_skinny), and the blocks of a cluster
//! share a sum where there are few.

use warpsmith_dsl::float::{Bf16, Element, F16};
use warpsmith_dsl::gemm::SplitKTile;
use warpsmith_dsl::launch::{GlobalMut, TensorMap};
use warpsmith_dsl::ptx::Wgmma;
use warpsmith_dsl::tile::Output;
use warpsmith_dsl::{grid, kernel};

use crate::codes::Codes;
use crate::skinny::{
    Skinny16x64, Skinny16x64Split2, Skinny16x64Split4, Skinny32x64, Skinny64x64, Skinny64x64Split2,
    Skinny64x64Split8, SkinnyParams,
};

/// `G = (X V) ⊙ codes`, with each code's scaling, on a one-dimensional grid of one cluster for each tile.
///
/// The name of an instance tells the type of all matrices, the tile, and how many blocks share it.
///
/// # Safety
///
/// `x` and `vt` describe X and Vᵀ as [`SplitKTile`] asks; `g` is valid for what `p` describes, and `codes` for as many rows as G has and as many ranks as it has
/// columns; `codes.rows` holds no zero. G overlaps nothing else.
#[kernel(
    family = linear_modulated,
    block = [S::THREADS, 1, 1],
    cluster = [S::SPLIT, 1, 1],
    min_blocks = S::MIN_BLOCKS,
    shared = S::SHARED_BYTES,
    instances = [
        linear_modulated_f16_64x64 = <F16, Skinny64x64>,
        linear_modulated_f16_64x64_split2 = <F16, Skinny64x64Split2>,
        linear_modulated_f16_64x64_split8 = <F16, Skinny64x64Split8>,
        linear_modulated_f16_32x64 = <F16, Skinny32x64>,
        linear_modulated_f16_16x64 = <F16, Skinny16x64>,
        linear_modulated_f16_16x64_split2 = <F16, Skinny16x64Split2>,
        linear_modulated_f16_16x64_split4 = <F16, Skinny16x64Split4>,
        linear_modulated_bf16_64x64 = <Bf16, Skinny64x64>,
        linear_modulated_bf16_64x64_split2 = <Bf16, Skinny64x64Split2>,
        linear_modulated_bf16_64x64_split8 = <Bf16, Skinny64x64Split8>,
        linear_modulated_bf16_32x64 = <Bf16, Skinny32x64>,
        linear_modulated_bf16_16x64 = <Bf16, Skinny16x64>,
        linear_modulated_bf16_16x64_split2 = <Bf16, Skinny16x64Split2>,
        linear_modulated_bf16_16x64_split4 = <Bf16, Skinny16x64Split4>,
    ],
)]
pub unsafe fn linear_modulated<T: Wgmma<S::Accumulators> + Element, S: SplitKTile>(
    x: &TensorMap,
    vt: &TensorMap,
    g: GlobalMut<T>,
    codes: Codes<T>,
    p: SkinnyParams,
) {
    // SAFETY: the whole grid is here, with the threads, the shared memory and the clusters that the tile asks for; the caller
    // vouches for maps and pointers, and each tile of G belongs to one cluster.
    unsafe {
        S::start(x, vt);
        // Behind the start, under which its divisions run, and before what else waits for other launches.
        let share = S::share(p.m, p.n, p.k * T::BYTES);
        // A product whose sums go on in G reads X before it waits for G.
        grid::wait_before_next_launch();
        if S::is_producer() {
            S::load::<T>(x, vt, p.layouts, share);
        } else {
            let first = S::column(share.tile);
            let of_rank = [0, 1, 2, 3].map(|column| codes.of_rank(first + column));
            let factors =
                S::factors(share.tile, |at| of_rank.map(|codes| codes.scaled(at.row, at.row < p.m)));
            S::exchange(S::multiply::<T>(p.layouts, share));
            let g = Output { base: g, stride: p.stride_y, rows: p.m, columns: p.n };
            S::store_multiplied(&factors, &g, share.tile);
        }
    }
}
