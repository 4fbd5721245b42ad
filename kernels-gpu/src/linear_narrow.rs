//! Linear layers on Hopper for many rows of X and few columns of X and Y: what [`linear`](mod@crate::linear) computes, in the time that
//! reading X and writing Y takes, whatever multiple of an element their rows' length is.

use warpsmith_dsl::epilogue::LinearEpilogue;
use warpsmith_dsl::float::{Bf16, F16, HalfElement};
use warpsmith_dsl::gemm::MmaElement;
use warpsmith_dsl::gemm::narrow::{self, NarrowProblem};
use warpsmith_dsl::grid;
use warpsmith_dsl::launch::{Global, GlobalMut};
use warpsmith_dsl::{KernelParam, kernel};

/// The sizes and strides of a launch.
#[derive(Clone, Copy, Debug, KernelParam)]
#[repr(C)]
pub struct NarrowParams {
    /// Elements from one row of W to the next.
    pub row_stride_w: u64,
    /// Elements from one column of W to the next.
    pub column_stride_w: u64,
    /// Rows of X and of Y.
    pub m: u32,
    /// Rows of W, and columns of Y.
    pub n: u32,
    /// Columns of X and of W.
    pub k: u32,
    /// Keeps the size a multiple of the alignment; its value is not read.
    pub reserved: u32,
}

/// `Y = activation(alpha · X Wᵀ + bias)`, what of [`LinearEpilogue`] needs no other memory, on a one-dimensional grid of any number of blocks.
///
/// # Safety
///
/// The pointers, that of the bias too, are valid for the matrices that `p` describes: X and Y without gaps, from multiples of 16 bytes
/// on, and of sizes that [`narrow::fits`]. Y overlaps nothing else. `epilogue` asks for nothing but these terms.
#[kernel(
    family = linear_narrow,
    block = [narrow::THREADS, 1, 1],
    shared = narrow::SHARED_BYTES,
    instances = [
        linear_narrow_f16_f16_16x256 = <F16>,
        linear_narrow_bf16_bf16_16x256 = <Bf16>,
    ],
)]
pub unsafe fn linear_narrow<T: MmaElement + HalfElement>(
    x: Global<T>,
    w: Global<T>,
    y: GlobalMut<T>,
    epilogue: LinearEpilogue<T, T>,
    p: NarrowParams,
) {
    grid::wait_for_earlier_launches();
    let problem = NarrowProblem {
        a: x,
        b: w,
        strides_b: [p.row_stride_w, p.column_stride_w],
        output: y,
        m: p.m,
        n: p.n,
        k: p.k,
    };
    // SAFETY: the whole grid is here, with the threads and the shared memory that it asks for; the rest is the caller's promise.
    unsafe { narrow::run(&problem, &epilogue.of_matrix(0, p.m, p.n).in_registers()) }
}
