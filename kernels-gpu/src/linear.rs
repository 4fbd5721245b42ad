//! Matrix products and linear layers: `Y = activation(alpha · X Wᵀ + …)`, with `X [M, K]`, `W [N, K]` and `Y [M, N]`, one or many
//! at a time, and an epilogue that says the rest.
//!
//! All are row-major with any row stride. Each block computes one tile of Y, or some of the products of one: where there are few tiles, several blocks share
//! the sums over K. The accumulators are f32, and the epilogue is applied to them before they are rounded to Y's type, once.

use warpsmith_dsl::epilogue::LinearEpilogue;
use warpsmith_dsl::float::{Bf16, Element, F16};
use warpsmith_dsl::gemm::again;
use warpsmith_dsl::gemm::mma_sync::MmaTile;
use warpsmith_dsl::gemm::parts::{Part, Parts};
use warpsmith_dsl::gemm::{MmaElement, Rule, Single, TileShape};
use warpsmith_dsl::launch::{Global, GlobalMut};
use warpsmith_dsl::layout;
use warpsmith_dsl::shared::SharedAddress;
use warpsmith_dsl::tile::{Access, Aligned, Operand, Output, Words};
use warpsmith_dsl::{KernelParam, kernel, ptx, thread};

/// 128 × 128 outputs by four warps, for 16-bit types: the most products for each byte loaded.
pub type Tile128x128 = MmaTile<4, 8, 2, 2, 4, 64>;
/// 128 × 64 outputs by four warps: the largest tile for f32, which needs twice the registers for its operands.
pub type Tile128x64 = MmaTile<4, 4, 2, 2, 4, 64>;
/// 64 × 64 outputs by four warps: more blocks for a smaller Y.
pub type Tile64x64 = MmaTile<2, 4, 2, 2, 4, 128>;
/// 16 × 64 outputs by four warps: for a few rows of X, where the time goes into reading W.
pub type Tile16x64 = MmaTile<1, 2, 1, 4, 6, 128>;

/// [`Tile128x128`] for f32 that is rounded to TF32.
pub type Tf32Tile128x128 = MmaTile<4, 8, 2, 2, 4, 64, Single>;
/// [`Tile64x64`] for f32 that is rounded to TF32.
pub type Tf32Tile64x64 = MmaTile<2, 4, 2, 2, 4, 128, Single>;
/// [`Tile16x64`] for f32 that is rounded to TF32.
pub type Tf32Tile16x64 = MmaTile<1, 2, 1, 4, 6, 128, Single>;

/// The sizes and options of a launch.
#[derive(Clone, Copy, Debug, KernelParam)]
#[repr(C)]
pub struct LinearParams {
    /// Elements from one row of X to the next.
    pub stride_x: u64,
    /// Elements from one row of W to the next.
    pub stride_w: u64,
    /// Elements from one row of Y to the next.
    pub stride_y: u64,
    /// Elements from one matrix of X to the next; 0 where all have the same.
    pub batch_x: u64,
    /// Elements from one matrix of W to the next; 0 where all have the same.
    pub batch_w: u64,
    /// Elements from one matrix of Y to the next.
    pub batch_y: u64,
    /// Rows of X and of Y.
    pub m: u32,
    /// Rows of W, and columns of Y.
    pub n: u32,
    /// Columns of X and of W; a row has less than 2³¹ bytes.
    pub k: u32,
    /// Keeps the size a multiple of the alignment; its value is not read.
    pub reserved: u32,
}

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
    let parts = if S::SHARES { parts } else { Parts::WHOLE };
    let part = parts.of_block(thread::block_idx_x());
    let tile = layout::raster(part.tile, p.m.div_ceil(S::BLOCK_M), p.n.div_ceil(S::BLOCK_N));
    let batch = tile.batch as u64;
    let first = [x, w];
    let x = Operand { base: x.offset(batch * p.batch_x), stride: p.stride_x, rows: p.m, k: p.k };
    let w = Operand { base: w.offset(batch * p.batch_w), stride: p.stride_w, rows: p.n, k: p.k };
    let y = Output { base: y.offset(batch * p.batch_y), stride: p.stride_y, rows: p.m, columns: p.n };
    let epilogue = epilogue.of_matrix(tile.batch, p.m, p.n);

    // SAFETY: the whole block is here, with the threads and the shared memory that the tile asks for; the caller vouches for
    // the pointers, and each tile of Y is stored by one block.
    unsafe {
        let [x, w] = [x, w].map(|operand| of_part::<T, S>(operand, &parts, part));
        // Turing's main loop reads chunks only.
        let mut accumulators = if cfg!(feature = "turing") || A::are_aligned(&x, &w) {
            S::multiply::<T, Aligned>(x, w, tile)
        } else {
            S::multiply::<T, A>(x, w, tile)
        };
        if parts.count > 1 {
            // No warp may read the ring any more, where the blocks' word is.
            thread::sync_threads();
            if !parts.combine(&mut accumulators, part, S::THREADS, SharedAddress::dynamic()) {
                return;
            }
        }
        let sums = again::of_rows::<T, <S::Rule as Rule>::Of<T>>(move || {
            // Not those above, which would take registers while the products run.
            let (batch, [x, w]) = (ptx::opaque(tile.batch) as u64, first);
            let x = Operand { base: x.offset(batch * p.batch_x), stride: p.stride_x, rows: p.m, k: p.k };
            [x, Operand { base: w.offset(batch * p.batch_w), stride: p.stride_w, rows: p.n, k: p.k }]
        });
        S::store(accumulators, &sums, epilogue, y, tile);
    }
}

/// The columns of an operand that a part has.
#[inline(always)]
fn of_part<T: Element, S: TileShape>(operand: Operand<T>, parts: &Parts, part: Part) -> Operand<T> {
    if parts.count <= 1 {
        return operand;
    }
    let columns = const { S::ROW_BYTES / T::BYTES };
    let [first, steps] = parts.steps(part.index, operand.k.div_ceil(columns));
    let begin = first * columns;
    let left = operand.k.saturating_sub(begin);
    let own = steps * columns;
    let k = if own < left { own } else { left };
    Operand { base: operand.base.offset(begin as u64), k, ..operand }
}
