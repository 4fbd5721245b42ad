//! Linear layers with a generated low-rank update in one kernel: `Y = activation(alpha · (X Wᵀ + ((X V) ⊙ codes) U) + …)`, with `X [M, K]`,
//! `W [N, K]`, `Vᵀ [R, K]`, `codes [M, R]`, `U [R, N]` and `Y [M, N]`.
//!
//! A block computes some neighbouring tiles of a row of Y: `(X V) ⊙ codes` is a by-product of the first, and kept for the others.

use warpsmith_dsl::epilogue::LinearEpilogue;
use warpsmith_dsl::float::{Bf16, Element, F16};
#[cfg(any(feature = "turing", not(target_arch = "nvptx64")))]
use warpsmith_dsl::gemm::turing_update::TuringUpdateTile;
use warpsmith_dsl::gemm::update::UpdateTile;
use warpsmith_dsl::gemm::update::{TileRow, UpdateElement, UpdateOperands, UpdateShape};
use warpsmith_dsl::launch::{Global, GlobalMut};
use warpsmith_dsl::tile::{Operand, Output};
use warpsmith_dsl::{KernelParam, block, kernel};

use crate::codes::Codes;

/// 128 × 128 outputs by eight warps, for 16-bit types: 64 ranks ride along, more take a pass of their own over X.
pub type Update128x128<T> = UpdateTile<T, 4, 4, 2, 4, 3, 64, 8, 2>;
/// 64 × 64 outputs by four warps, for f32: 64 ranks ride along, more take a pass of their own over X.
pub type Update64x64<T> = UpdateTile<T, 2, 4, 2, 2, 3, 64, 8, 2>;

/// The sizes and options of a launch.
#[derive(Clone, Copy, Debug, KernelParam)]
#[repr(C)]
pub struct LinearUpdateParams {
    /// Elements from one row of X to the next.
    pub stride_x: u64,
    /// Elements from one row of W to the next.
    pub stride_w: u64,
    /// Elements from one row of Vᵀ to the next.
    pub stride_vt: u64,
    /// Elements from one row of U to the next.
    pub stride_u: u64,
    /// Elements from one row of Y to the next.
    pub stride_y: u64,
    /// Rows of X and of Y.
    pub m: u32,
    /// Rows of W, and columns of U and of Y.
    pub n: u32,
    /// Columns of X, of W and of Vᵀ; a row has less than 2³¹ bytes.
    pub k: u32,
    /// Tiles of Y that a block computes, at least 1: neighbours along N.
    pub tiles: u32,
}

/// `Y = activation(alpha · (X Wᵀ + ((X V) ⊙ codes) U) + …)`, all that [`LinearEpilogue`] says, on a one-dimensional grid of ⌈M / `BLOCK_M`⌉ ·
/// ⌈⌈N / `BLOCK_N`⌉ / `tiles`⌉ blocks.
///
/// `(X V) ⊙ codes`, with the scaling, is rounded to the type of X before the second product. The name of an instance tells the
/// type of X and Y, and the tile. Those for Turing compute the update alone where `w` is null.
///
/// # Safety
///
/// The pointers, those of `codes` and `epilogue` too, are valid for the matrices that `p` describes; there are `codes.rank()` ranks, at least
/// one and at most as many as the instance takes. Y and what else is written overlap nothing else, but that Y may be the epilogue's
/// residual. The addresses and the strides of X, W, Vᵀ and U are multiples of 16 bytes. No number of rows in `codes` is zero.
#[kernel(
    family = linear_update,
    block = [S::THREADS, 1, 1],
    shared = S::SHARED_BYTES,
    instances = [
        #[cfg(not(feature = "turing"))]
        linear_update_f16_128x128 = <F16, F16, Update128x128<F16>>,
        #[cfg(not(feature = "turing"))]
        linear_update_bf16_128x128 = <Bf16, Bf16, Update128x128<Bf16>>,
        #[cfg(not(feature = "turing"))]
        linear_update_f32_64x64 = <f32, f32, Update64x64<f32>>,
        #[cfg(any(feature = "turing", not(target_arch = "nvptx64")))]
        linear_update_f16_turing = <F16, F16, TuringUpdateTile<F16>>,
        #[cfg(any(feature = "turing", not(target_arch = "nvptx64")))]
        linear_update_bf16_turing = <Bf16, Bf16, TuringUpdateTile<Bf16>>,
        #[cfg(any(feature = "turing", not(target_arch = "nvptx64")))]
        linear_update_f32_turing = <f32, f32, TuringUpdateTile<f32>>,
    ],
)]
#[allow(clippy::too_many_arguments, reason = "each operand is one")]
pub unsafe fn linear_update<T: UpdateElement, O: Element, S: UpdateShape<T>>(
    x: Global<T>,
    w: Global<T>,
    vt: Global<T>,
    u: Global<T>,
    y: GlobalMut<O>,
    codes: Codes<T>,
    epilogue: LinearEpilogue<T, O>,
    p: LinearUpdateParams,
) {
    let tiles_n = p.n.div_ceil(S::BLOCK_N);
    let row = block::tile_index(p.m.div_ceil(S::BLOCK_M), tiles_n.div_ceil(p.tiles.max(1)));
    let first = row.n * p.tiles;
    let tiles = TileRow { m: row.m, first, end: (first + p.tiles).min(tiles_n) };

    let ranks = codes.rank();
    let operands = UpdateOperands {
        x: Operand { base: x, stride: p.stride_x, rows: p.m, k: p.k },
        w: Operand { base: w, stride: p.stride_w, rows: p.n, k: p.k },
        vt: Operand { base: vt, stride: p.stride_vt, rows: ranks, k: p.k },
        u: Operand { base: u, stride: p.stride_u, rows: ranks, k: p.n },
    };
    let y = Output { base: y, stride: p.stride_y, rows: p.m, columns: p.n };
    let epilogue = epilogue.of_matrix(0, p.m, p.n);

    // SAFETY: the whole block is here, with the threads and the shared memory that the tile asks for; the caller vouches for the pointers, and
    // each tile of Y belongs to one block.
    unsafe {
        let scale = |rank: u32| {
            let codes = codes.of_rank(rank);
            move |row: u32| codes.scaled(row, row < p.m)
        };
        S::run(&operands, scale, epilogue, y, tiles);
    }
}
