//! Linear layers of 8-bit floating-point types on Ada and later, with scales: `Y = activation(alpha · row_scale · column_scale · X Wᵀ + …)`.
//!
//! [`linear`](mod@crate::linear) with products of 8-bit operands, which are read in place. The tensor cores add up 128 elements along K at
//! a time, f32 accumulators the rest; the epilogue, which has the scales, is applied to these before they are rounded, once.

use warpsmith_dsl::epilogue::LinearEpilogue;
use warpsmith_dsl::float::{Bf16, Element, F8E4M3, F8E5M2, F16};
use warpsmith_dsl::gemm::TileShape;
use warpsmith_dsl::gemm::again::Whole;
use warpsmith_dsl::gemm::fp8::{Fp8Products, Fp8Shape};
use warpsmith_dsl::gemm::mma_sync::MmaTile;
use warpsmith_dsl::launch::{Global, GlobalMut};
use warpsmith_dsl::tile::{Operand, Output};
use warpsmith_dsl::{KernelParam, block, kernel};

use crate::fp8::Fp8Types;

/// 128 × 128 outputs by eight warps: a warp has registers for 32 × 64 accumulators and as many sums.
pub type Fp8Ada128x128 = MmaTile<2, 8, 4, 2, 3, 128>;
/// 64 × 64 outputs by four warps: more blocks for a smaller Y, of which a multiprocessor has room for two.
pub type Fp8Ada64x64 = MmaTile<2, 4, 2, 2, 3, 128>;
/// 16 × 64 outputs by four warps: for a few rows of X, where the time goes into reading W.
pub type Fp8Ada16x64 = MmaTile<1, 2, 1, 4, 4, 128>;

/// The sizes and types of a launch.
#[derive(Clone, Copy, Debug, KernelParam)]
#[repr(C)]
pub struct Fp8AdaParams {
    /// Elements from one row of X to the next: a multiple of 16.
    pub stride_x: u64,
    /// Elements from one row of W to the next: a multiple of 16.
    pub stride_w: u64,
    /// Elements from one row of Y to the next.
    pub stride_y: u64,
    /// Rows of X and of Y.
    pub m: u32,
    /// Rows of W, and columns of Y.
    pub n: u32,
    /// Columns of X and of W.
    pub k: u32,
    /// The types of X and of W.
    pub types: Fp8Types,
}

/// `Y = activation(alpha · row_scale · column_scale · X Wᵀ + …)`, all that [`LinearEpilogue`] says, on a one-dimensional grid of
/// ⌈M / `BLOCK_M`⌉ · ⌈N / `BLOCK_N`⌉ blocks. The types of X and W are chosen at the launch: the name of an instance tells the type of Y
/// and the tile.
///
/// # Safety
///
/// The pointers, those of `epilogue` too, are valid for the matrices that `p` describes. Y and what else is written overlap nothing
/// else, but that Y may be the epilogue's residual. The addresses of X and W are multiples of 16.
#[kernel(
    family = linear_fp8_ada,
    block = [S::THREADS, 1, 1],
    shared = S::SHARED_BYTES,
    instances = [
        linear_fp8_ada_bf16_128x128 = <Bf16, Fp8Ada128x128>,
        linear_fp8_ada_bf16_64x64 = <Bf16, Fp8Ada64x64>,
        linear_fp8_ada_bf16_16x64 = <Bf16, Fp8Ada16x64>,
        linear_fp8_ada_f16_128x128 = <F16, Fp8Ada128x128>,
        linear_fp8_ada_f16_64x64 = <F16, Fp8Ada64x64>,
        linear_fp8_ada_f16_16x64 = <F16, Fp8Ada16x64>,
        linear_fp8_ada_f32_128x128 = <f32, Fp8Ada128x128>,
        linear_fp8_ada_f32_64x64 = <f32, Fp8Ada64x64>,
        linear_fp8_ada_f32_16x64 = <f32, Fp8Ada16x64>,
    ],
)]
pub unsafe fn linear_fp8_ada<O: Element, S: Fp8Shape>(
    x: Global<u8>,
    w: Global<u8>,
    y: GlobalMut<O>,
    epilogue: LinearEpilogue<O, O>,
    p: Fp8AdaParams,
) {
    let tile = block::tile_index(p.m.div_ceil(S::BLOCK_M), p.n.div_ceil(S::BLOCK_N));
    let x = Operand { base: x, stride: p.stride_x, rows: p.m, k: p.k };
    let w = Operand { base: w, stride: p.stride_w, rows: p.n, k: p.k };
    let y = Output { base: y, stride: p.stride_y, rows: p.m, columns: p.n };
    let epilogue = epilogue.of_matrix(tile.batch, p.m, p.n);

    // SAFETY: the whole block is here, with the threads and the shared memory that the tile asks for; the caller vouches for
    // the pointers, and each tile of Y belongs to one block.
    unsafe {
        let accumulators = match p.types {
            Fp8Types::E4M3 => S::multiply_bytes::<Fp8Products<F8E4M3, F8E4M3>>(x, w, tile),
            Fp8Types::E5M2_BY_E4M3 => S::multiply_bytes::<Fp8Products<F8E5M2, F8E4M3>>(x, w, tile),
            Fp8Types::E4M3_BY_E5M2 => S::multiply_bytes::<Fp8Products<F8E4M3, F8E5M2>>(x, w, tile),
            _ => S::multiply_bytes::<Fp8Products<F8E5M2, F8E5M2>>(x, w, tile),
        };
        S::store(accumulators, &Whole, epilogue, y, tile);
    }
}
