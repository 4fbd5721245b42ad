//! Matrix products and linear layers: `Y = activation(alpha · X Wᵀ + …)`, with `X [M, K]`, `W [N, K]` and `Y [M, N]`, one or many
//! at a time, and an epilogue that says the rest.
//!
//! All are row-major with any row stride. Each block computes one tile of Y, or some of the products of one: where there are few tiles, several blocks share
//! the sums over K. The accumulators are f32, and the epilogue is applied to them before they are rounded to Y's type, once.

use warpsmith_dsl::epilogue::LinearEpilogue;
use warpsmith_dsl::float::{Bf16, Element, F16};
use warpsmith_dsl::gemm::mma_sync::MmaTile;
use warpsmith_dsl::gemm::parts::Parts;
use warpsmith_dsl::gemm::product::portable;
pub use warpsmith_dsl::gemm::product::{LinearParams, Tile16x64, Tile64x64, Tile128x64, Tile128x128};
use warpsmith_dsl::gemm::{MmaElement, Single, TileShape};
use warpsmith_dsl::kernel;
use warpsmith_dsl::launch::{Global, GlobalMut};
#[cfg(not(feature = "turing"))]
use warpsmith_dsl::tile::Aligned;
use warpsmith_dsl::tile::{Access, Words};

/// [`Tile128x128`] for f32 that is rounded to TF32.
pub type Tf32Tile128x128 = MmaTile<4, 8, 2, 2, 4, 64, Single>;
/// [`Tile64x64`] for f32 that is rounded to TF32.
pub type Tf32Tile64x64 = MmaTile<2, 4, 2, 2, 4, 128, Single>;
/// [`Tile16x64`] for f32 that is rounded to TF32.
pub type Tf32Tile16x64 = MmaTile<1, 2, 1, 4, 6, 128, Single>;

/// `Y = activation(alpha · X Wᵀ + …)`, all that [`LinearEpilogue`] says, on a one-dimensional grid of ⌈M / `BLOCK_M`⌉ · ⌈N / `BLOCK_N`⌉
/// tiles for each matrix, of `parts.count` blocks each where the tile [shares](TileShape::SHARES), else of one.
///
/// The name of an instance tells the type of X and W, the type of Y, and the tile.
///
/// # Safety
///
/// The pointers, those of `epilogue` too, are valid for the matrices that `p` describes. Y and what else is written overlap nothing
/// else, but that Y may be the epilogue's residual; the memory of `parts` is this launch's alone. The addresses and the strides of X and W are multiples of what the access `A`
/// asks for; with [`Words`], they are read fastest where they are multiples of 16 bytes.
#[kernel(
    family = linear,
    block = [S::THREADS, 1, 1],
    shared = S::SHARED_BYTES,
    instances = [
        #[cfg(not(feature = "turing"))]
        linear_f16_f16_128x128 = <F16, F16, Tile128x128, Aligned>,
        #[cfg(not(feature = "turing"))]
        linear_f16_f16_128x64 = <F16, F16, Tile128x64, Aligned>,
        linear_f16_f16_64x64 = <F16, F16, Tile64x64, Words>,
        #[cfg(not(feature = "turing"))]
        linear_f16_f16_16x64 = <F16, F16, Tile16x64, Words>,
        #[cfg(not(feature = "turing"))]
        linear_f16_f32_128x128 = <F16, f32, Tile128x128, Aligned>,
        #[cfg(not(feature = "turing"))]
        linear_f16_f32_128x64 = <F16, f32, Tile128x64, Aligned>,
        linear_f16_f32_64x64 = <F16, f32, Tile64x64, Words>,
        #[cfg(not(feature = "turing"))]
        linear_f16_f32_16x64 = <F16, f32, Tile16x64, Words>,
        #[cfg(not(feature = "turing"))]
        linear_bf16_bf16_128x128 = <Bf16, Bf16, Tile128x128, Aligned>,
        #[cfg(not(feature = "turing"))]
        linear_bf16_bf16_128x64 = <Bf16, Bf16, Tile128x64, Aligned>,
        linear_bf16_bf16_64x64 = <Bf16, Bf16, Tile64x64, Words>,
        #[cfg(not(feature = "turing"))]
        linear_bf16_bf16_16x64 = <Bf16, Bf16, Tile16x64, Words>,
        #[cfg(not(feature = "turing"))]
        linear_bf16_f32_128x128 = <Bf16, f32, Tile128x128, Aligned>,
        #[cfg(not(feature = "turing"))]
        linear_bf16_f32_128x64 = <Bf16, f32, Tile128x64, Aligned>,
        linear_bf16_f32_64x64 = <Bf16, f32, Tile64x64, Words>,
        #[cfg(not(feature = "turing"))]
        linear_bf16_f32_16x64 = <Bf16, f32, Tile16x64, Words>,
        #[cfg(not(feature = "turing"))]
        linear_f32_f32_128x64 = <f32, f32, Tile128x64, Aligned>,
        linear_f32_f32_64x64 = <f32, f32, Tile64x64, Words>,
        #[cfg(not(feature = "turing"))]
        linear_f32_f32_16x64 = <f32, f32, Tile16x64, Words>,
        #[cfg(not(feature = "turing"))]
        linear_tf32_f32_128x128 = <f32, f32, Tf32Tile128x128, Aligned>,
        #[cfg(not(feature = "turing"))]
        linear_tf32_f32_64x64 = <f32, f32, Tf32Tile64x64, Words>,
        #[cfg(not(feature = "turing"))]
        linear_tf32_f32_16x64 = <f32, f32, Tf32Tile16x64, Words>,
    ],
)]
pub unsafe fn linear<T: MmaElement, O: Element, S: TileShape, A: Access>(
    x: Global<T>,
    w: Global<T>,
    y: GlobalMut<O>,
    epilogue: LinearEpilogue<T, O>,
    parts: Parts,
    p: LinearParams,
) {
    let epilogue = |batch| epilogue.of_matrix(batch, p.m, p.n);
    // SAFETY: the caller's promise.
    unsafe { portable::<T, O, S, A, _>(x, w, y, epilogue, parts, p) }
}
