//! Linear layers of few rows of X in f32: what [`linear`](mod@crate::linear) computes, in the time that reading W takes.

use warpsmith_dsl::epilogue::LinearEpilogue;
use warpsmith_dsl::gemm::dots::{self, DotsProblem};
use warpsmith_dsl::launch::{Global, GlobalMut};
use warpsmith_dsl::{KernelParam, kernel};

/// The sizes and strides of a launch, strides in elements.
#[derive(Clone, Copy, Debug, KernelParam)]
#[repr(C)]
pub struct DotsParams {
    /// From one row of X to the next.
    pub stride_x: u64,
    /// From one row of W to the next.
    pub stride_w: u64,
    /// From one row of Y to the next.
    pub stride_y: u64,
    /// From one matrix of X to the next; 0 where all have the same.
    pub batch_x: u64,
    /// From one matrix of W to the next; 0 where all have the same.
    pub batch_w: u64,
    /// From one matrix of Y to the next.
    pub batch_y: u64,
    /// Rows of X and of Y.
    pub m: u32,
    /// Rows of W, and columns of Y.
    pub n: u32,
    /// Columns of X and of W.
    pub k: u32,
    /// Products.
    pub batch: u32,
    /// The logarithm to base two of the warps that share the sums of a tile, which are at most [`dots::WARPS`].
    pub log2_warps: u32,
    /// Keeps the size a multiple of the alignment; its value is not read.
    pub reserved: u32,
}

/// `Y = activation(alpha · X Wᵀ + bias)`, what of [`LinearEpilogue`] needs no other memory, on a one-dimensional grid of any number of blocks.
///
/// # Safety
///
/// The pointers, that of the bias too, are valid for the matrices that `p` describes. Y overlaps nothing else. `epilogue` asks for nothing but these terms. There are fewer than 2³¹ tiles of
/// 8 × 2, and fewer than 2³⁰ columns of X.
#[kernel(
    family = linear_dots,
    block = [dots::THREADS, 1, 1],
    min_blocks = dots::RESIDENT,
    dependent_launch = true,
    shared = dots::SHARED_BYTES,
)]
pub unsafe fn linear_dots_f32_f32_8x2(
    x: Global<f32>,
    w: Global<f32>,
    y: GlobalMut<f32>,
    epilogue: LinearEpilogue<f32, f32>,
    p: DotsParams,
) {
    let problem = DotsProblem {
        a: x,
        b: w,
        output: y,
        rows: [p.stride_x, p.stride_w, p.stride_y],
        matrices: [p.batch_x, p.batch_w, p.batch_y],
        m: p.m,
        n: p.n,
        k: p.k,
        batch: p.batch,
        log2_warps: p.log2_warps,
    };
    // SAFETY: the whole grid is here, with the threads and the shared memory that it asks for; the rest is the caller's promise.
    unsafe { dots::run(&problem, &epilogue.of_matrix(0, p.m, p.n).in_registers()) }
}
