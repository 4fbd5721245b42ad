//! Linear layers of 8-bit floating-point types before Ada, which has products of these: f16 holds all their numbers exactly, so the
//! operands are widened to it, and the products are f16's.
//!
//! [`widen_fp8`](fn@widen_fp8) makes the copies, [`linear_fp8`](fn@linear_fp8) is [`linear`](mod@crate::linear) with a bias of Y's type.

use warpsmith_dsl::epilogue::LinearEpilogue;
use warpsmith_dsl::float::{Bf16, Element, F8E4M3, F8E5M2, F16, Float8};
use warpsmith_dsl::gemm::TileShape;
use warpsmith_dsl::gemm::again::Whole;
use warpsmith_dsl::gemm::mma_sync::MmaTile;
use warpsmith_dsl::launch::{Global, GlobalMut};
use warpsmith_dsl::tile::{Aligned, Operand, Output};
use warpsmith_dsl::{KernelParam, block, kernel, ptx, thread};

/// 64 × 64 outputs by four warps.
pub type Fp8Portable64x64 = MmaTile<2, 4, 2, 2, 4, 128>;

/// Threads of a block of [`widen_fp8`](fn@widen_fp8).
pub const WIDEN_THREADS: u32 = 128;
/// Elements that a thread widens at a time: 16 bytes.
pub const WIDEN_CHUNK: u32 = 16;

/// The matrices of a launch of [`widen_fp8`](fn@widen_fp8).
#[derive(Clone, Copy, Debug, KernelParam)]
#[repr(C)]
pub struct WidenParams {
    /// Elements from one row of the source to the next: a multiple of 16.
    pub stride: u64,
    /// Chunks of 16 elements of a row, which the copy has without gaps.
    pub chunks: u32,
    /// Keeps the size a multiple of the alignment; its value is not read.
    pub reserved: u32,
}

/// Copies a matrix to f16, a row by each block.
///
/// # Safety
///
/// The source is valid for reads of whole chunks of 16 elements and aligned to 16 bytes, as its stride says too; the copy is valid
/// for writes of as many elements, aligned to 16 bytes, and overlaps nothing else.
#[kernel(
    family = linear_fp8,
    block = [WIDEN_THREADS, 1, 1],
    instances = [
        widen_fp8_e4m3 = <F8E4M3>,
        widen_fp8_e5m2 = <F8E5M2>,
    ],
)]
pub unsafe fn widen_fp8<T: Float8>(from: Global<T>, to: GlobalMut<F16>, p: WidenParams) {
    let row = thread::block_idx_x() as u64;
    let mut chunk = thread::thread_idx_x();
    while chunk < p.chunks {
        let at = chunk as u64 * WIDEN_CHUNK as u64;
        let copy = to.offset(row * p.chunks as u64 * WIDEN_CHUNK as u64 + at).address();
        // SAFETY: a chunk within the row of the source and of the copy, for which the caller vouches.
        unsafe {
            let words =
                ptx::ld_global_nc_v4_f32(from.offset(row * p.stride + at).address()).map(f32::to_bits);
            for half in 0..2 {
                let [a, b] = [words[2 * half], words[2 * half + 1]];
                let pair = |word: u32, shift: u32| {
                    let number = |shift| T::to_f32((word >> shift) as u8);
                    ptx::cvt_f16x2_f32(number(shift + 8), number(shift))
                };
                let halves = [pair(a, 0), pair(a, 16), pair(b, 0), pair(b, 16)];
                ptx::st_global_v4_b32(copy + 16 * half as u64, halves);
            }
        }
        chunk += WIDEN_THREADS;
    }
}

/// The sizes of a launch of [`linear_fp8`](fn@linear_fp8).
#[derive(Clone, Copy, Debug, KernelParam)]
#[repr(C)]
pub struct Fp8Params {
    /// Elements from one row of X and of W to the next.
    pub stride: u64,
    /// Elements from one row of Y to the next.
    pub stride_y: u64,
    /// Rows of X and of Y.
    pub m: u32,
    /// Rows of W, and columns of Y.
    pub n: u32,
    /// Columns of X and of W.
    pub k: u32,
    /// Keeps the size a multiple of the alignment; its value is not read.
    pub reserved: u32,
}

/// `Y = activation(alpha · row_scale · column_scale · X Wᵀ + …)`, all that [`LinearEpilogue`] says, on a one-dimensional grid of
/// ⌈M / `BLOCK_M`⌉ · ⌈N / `BLOCK_N`⌉ blocks.
///
/// # Safety
///
/// The pointers, those of `epilogue` too, are valid for the matrices that `p` describes. Y and what else is written overlap nothing
/// else, but that Y may be the epilogue's residual. The addresses and the strides of X and W are multiples of 16 bytes.
#[kernel(
    family = linear_fp8,
    block = [S::THREADS, 1, 1],
    shared = S::SHARED_BYTES,
    instances = [
        linear_fp8_bf16_64x64 = <Bf16, Fp8Portable64x64>,
        linear_fp8_f16_64x64 = <F16, Fp8Portable64x64>,
        linear_fp8_f32_64x64 = <f32, Fp8Portable64x64>,
    ],
)]
pub unsafe fn linear_fp8<O: Element, S: TileShape>(
    x: Global<F16>,
    w: Global<F16>,
    y: GlobalMut<O>,
    epilogue: LinearEpilogue<O, O>,
    p: Fp8Params,
) {
    let tile = block::tile_index(p.m.div_ceil(S::BLOCK_M), p.n.div_ceil(S::BLOCK_N));
    let x = Operand { base: x, stride: p.stride, rows: p.m, k: p.k };
    let w = Operand { base: w, stride: p.stride, rows: p.n, k: p.k };
    let y = Output { base: y, stride: p.stride_y, rows: p.m, columns: p.n };
    let epilogue = epilogue.of_matrix(tile.batch, p.m, p.n);

    // SAFETY: the whole block is here, with the threads and the shared memory that the tile asks for; the caller vouches for
    // the pointers, and each tile of Y belongs to one block.
    unsafe {
        let accumulators = S::multiply::<F16, Aligned>(x, w, tile);
        S::store(accumulators, &Whole, epilogue, y, tile);
    }
}
