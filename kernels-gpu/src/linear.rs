//! Linear layers: `Y = activation(scale · X Wᵀ + bias)`, with `X [M, K]`, `W [N, K]`, `bias [N]` and `Y [M, N]`.
//!
//! All are row-major with any row stride. Each block computes one tile of Y; the accumulators are f32, and the epilogue is
//! applied to them before they are rounded to Y's type, once.

use warpsmith_dsl::epilogue::{Activation, Bias, Epilogue, Scale};
use warpsmith_dsl::float::{Bf16, Element, F16};
use warpsmith_dsl::gemm::mma_sync::MmaTile;
use warpsmith_dsl::gemm::{MmaElement, TileShape};
use warpsmith_dsl::launch::{Global, GlobalMut};
use warpsmith_dsl::tile::{Access, Aligned, Operand, Output, Unaligned};
use warpsmith_dsl::{KernelParam, block, kernel};

/// 128 × 128 outputs by four warps, for 16-bit types: the most products for each byte loaded.
pub type Tile128x128 = MmaTile<4, 8, 2, 2, 4, 64>;
/// 128 × 64 outputs by four warps: the largest tile for f32, which needs twice the registers for its operands.
pub type Tile128x64 = MmaTile<4, 4, 2, 2, 4, 64>;
/// 64 × 64 outputs by four warps: more blocks for a smaller Y.
pub type Tile64x64 = MmaTile<2, 4, 2, 2, 4, 128>;
/// 16 × 64 outputs by four warps: for a few rows of X, where the time goes into reading W.
pub type Tile16x64 = MmaTile<1, 2, 1, 4, 6, 128>;

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
    /// Rows of X and of Y.
    pub m: u32,
    /// Rows of W, and columns of Y.
    pub n: u32,
    /// Columns of X and of W; a row has less than 2³¹ bytes.
    pub k: u32,
    /// What the product is multiplied with before the bias is added.
    pub scale: f32,
    /// The function applied last.
    pub activation: Activation,
    /// Keeps the size a multiple of the alignment; its value is not read.
    pub reserved: u32,
}

/// `Y = activation(scale · X Wᵀ + bias)`, on a one-dimensional grid of ⌈M / `BLOCK_M`⌉ · ⌈N / `BLOCK_N`⌉ blocks.
///
/// `bias` may be null, which adds nothing. The name of an instance tells the type of X and W, the type of Y, the tile, and
/// the access.
///
/// # Safety
///
/// The pointers are valid for the matrices that `p` describes, and Y overlaps nothing else. With [`Aligned`] access, the
/// addresses and the row strides of X and W are multiples of 16 bytes.
#[kernel(
    family = linear,
    block = [S::THREADS, 1, 1],
    shared = S::SHARED_BYTES,
    instances = [
        linear_f16_f16_128x128 = <F16, F16, Tile128x128, Aligned>,
        linear_f16_f16_128x64 = <F16, F16, Tile128x64, Aligned>,
        linear_f16_f16_64x64 = <F16, F16, Tile64x64, Aligned>,
        linear_f16_f16_16x64 = <F16, F16, Tile16x64, Aligned>,
        linear_f16_f16_64x64_unaligned = <F16, F16, Tile64x64, Unaligned>,
        linear_f16_f16_16x64_unaligned = <F16, F16, Tile16x64, Unaligned>,
        linear_f16_f32_128x128 = <F16, f32, Tile128x128, Aligned>,
        linear_f16_f32_128x64 = <F16, f32, Tile128x64, Aligned>,
        linear_f16_f32_64x64 = <F16, f32, Tile64x64, Aligned>,
        linear_f16_f32_16x64 = <F16, f32, Tile16x64, Aligned>,
        linear_f16_f32_64x64_unaligned = <F16, f32, Tile64x64, Unaligned>,
        linear_f16_f32_16x64_unaligned = <F16, f32, Tile16x64, Unaligned>,
        linear_bf16_bf16_128x128 = <Bf16, Bf16, Tile128x128, Aligned>,
        linear_bf16_bf16_128x64 = <Bf16, Bf16, Tile128x64, Aligned>,
        linear_bf16_bf16_64x64 = <Bf16, Bf16, Tile64x64, Aligned>,
        linear_bf16_bf16_16x64 = <Bf16, Bf16, Tile16x64, Aligned>,
        linear_bf16_bf16_64x64_unaligned = <Bf16, Bf16, Tile64x64, Unaligned>,
        linear_bf16_bf16_16x64_unaligned = <Bf16, Bf16, Tile16x64, Unaligned>,
        linear_bf16_f32_128x128 = <Bf16, f32, Tile128x128, Aligned>,
        linear_bf16_f32_128x64 = <Bf16, f32, Tile128x64, Aligned>,
        linear_bf16_f32_64x64 = <Bf16, f32, Tile64x64, Aligned>,
        linear_bf16_f32_16x64 = <Bf16, f32, Tile16x64, Aligned>,
        linear_bf16_f32_64x64_unaligned = <Bf16, f32, Tile64x64, Unaligned>,
        linear_bf16_f32_16x64_unaligned = <Bf16, f32, Tile16x64, Unaligned>,
        linear_f32_f32_128x64 = <f32, f32, Tile128x64, Aligned>,
        linear_f32_f32_64x64 = <f32, f32, Tile64x64, Aligned>,
        linear_f32_f32_16x64 = <f32, f32, Tile16x64, Aligned>,
        linear_f32_f32_64x64_unaligned = <f32, f32, Tile64x64, Unaligned>,
        linear_f32_f32_16x64_unaligned = <f32, f32, Tile16x64, Unaligned>,
    ],
)]
pub unsafe fn linear<T: MmaElement, O: Element, S: TileShape, A: Access>(
    x: Global<T>,
    w: Global<T>,
    bias: Global<T>,
    y: GlobalMut<O>,
    p: LinearParams,
) {
    let x = Operand { base: x, stride: p.stride_x, rows: p.m, k: p.k };
    let w = Operand { base: w, stride: p.stride_w, rows: p.n, k: p.k };
    let y = Output { base: y, stride: p.stride_y, rows: p.m, columns: p.n };
    let tile = block::tile_index(p.m.div_ceil(S::BLOCK_M), p.n.div_ceil(S::BLOCK_N));
    let epilogue = Scale(p.scale).then(Bias::new(bias, p.n)).then(p.activation);

    // SAFETY: the whole block is here, with the threads and the shared memory that the tile asks for; the caller vouches for
    // the pointers, and each tile of Y belongs to one block.
    unsafe {
        let accumulators = S::multiply::<T, A>(x, w, tile);
        S::store(accumulators, epilogue, y, tile);
    }
}
