//! The second pass of products that are split along K: adds the parts of each sum, in order, and applies the epilogue.

use warpsmith_dsl::epilogue::LinearEpilogue;
use warpsmith_dsl::float::{Bf16, Element, F16};
use warpsmith_dsl::gemm::product::{SUMS_THREADS, add_parts};
pub use warpsmith_dsl::gemm::product::{SumsParams, WARP_COLUMNS};
use warpsmith_dsl::launch::{Global, GlobalMut};
use warpsmith_dsl::{kernel, warp};

/// Threads of a block.
pub const THREADS: u32 = SUMS_THREADS;
/// Warps of a block.
pub const WARPS: u32 = THREADS / warp::SIZE;

/// `Y = activation(alpha · Σ parts + …)`, all that [`LinearEpilogue`] says, on a one-dimensional grid with a warp for each [`WARP_COLUMNS`] columns
/// of a row. The name of an instance tells the type of X and W, which is that of the bias, and the type of Y.
///
/// # Safety
///
/// `sums` is aligned to 16 bytes and valid for reads of whole groups of four columns; `y` and the pointers of `epilogue` are valid for what `p` describes.
/// Y and what else is written overlap nothing else, but that Y may be the epilogue's residual. `p.m` and `p.n` are not 0.
#[kernel(
    family = linear_sums,
    block = [THREADS, 1, 1],
    instances = [
        linear_sums_f16_f16 = <F16, F16>,
        linear_sums_f16_f32 = <F16, f32>,
        linear_sums_bf16_bf16 = <Bf16, Bf16>,
        linear_sums_bf16_f32 = <Bf16, f32>,
        linear_sums_f32_f32 = <f32, f32>,
    ],
)]
pub unsafe fn linear_sums<T: Element, O: Element>(
    sums: Global<f32>,
    y: GlobalMut<O>,
    epilogue: LinearEpilogue<T, O>,
    p: SumsParams,
) {
    let epilogue = |batch| epilogue.of_matrix(batch, p.m, p.n);
    // SAFETY: the caller's promise.
    unsafe { add_parts(sums, y, epilogue, p) }
}
