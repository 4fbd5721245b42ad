//! Linear layers on Hopper for few rows of X or few tiles of Y: what [`linear`](mod@crate::linear) computes, in the time that reading
//! W takes.
//!
//! Where there are few tiles of Y, the blocks of a cluster share the sum over K of one, so that enough of them keep the GPU's
//! memory busy. In each block one warp has X and W copied to shared memory, the others multiply. Then the blocks send each
//! other their parts of the f32 sums. Each applies the epilogue to some rows of the tile and rounds them to Y's type, once.

use warpsmith_dsl::epilogue::LinearEpilogue;
use warpsmith_dsl::float::{Bf16, Element, F16};
use warpsmith_dsl::gemm::SplitKTile;
use warpsmith_dsl::kernel;
use warpsmith_dsl::launch::{GlobalMut, TensorMap};
use warpsmith_dsl::ptx::Wgmma;

use crate::skinny::few_rows;
pub use crate::skinny::{
    Skinny16x64, Skinny16x64Split2, Skinny16x64Split4, Skinny32x64, Skinny64x64, Skinny64x64Split2,
    Skinny64x64Split8, Skinny64x64Split8Deep, SkinnyParams,
};

/// `Y = activation(alpha · X Wᵀ + …)`, all that [`LinearEpilogue`] says, on a one-dimensional grid of one cluster for each tile of each
/// matrix.
///
/// The name of an instance tells the type of X and W, the type of Y, the tile, and how many blocks share it. An f32 Y of 16-bit operands has fewer
/// tiles: those that are never far from the fastest. TF32 operands are f32 in memory; the copy engine rounds them if their maps ask for it, else they are
/// cut off.
///
/// # Safety
///
/// `x` and `w` describe X and W as [`SplitKTile`] asks; `y` and the pointers of `epilogue` are valid for what `p` describes. Y and
/// what else is written overlap nothing else, but that Y may be the epilogue's residual.
#[kernel(
    family = linear_skinny,
    block = [S::THREADS, 1, 1],
    cluster = [S::SPLIT, 1, 1],
    min_blocks = S::MIN_BLOCKS,
    shared = S::SHARED_BYTES,
    instances = [
        linear_skinny_f16_f16_64x64 = <F16, F16, Skinny64x64>,
        linear_skinny_f16_f16_64x64_split2 = <F16, F16, Skinny64x64Split2>,
        linear_skinny_f16_f16_64x64_split8 = <F16, F16, Skinny64x64Split8>,
        linear_skinny_f16_f16_64x64_split8_deep = <F16, F16, Skinny64x64Split8Deep>,
        linear_skinny_f16_f16_32x64 = <F16, F16, Skinny32x64>,
        linear_skinny_f16_f16_16x64 = <F16, F16, Skinny16x64>,
        linear_skinny_f16_f16_16x64_split2 = <F16, F16, Skinny16x64Split2>,
        linear_skinny_f16_f16_16x64_split4 = <F16, F16, Skinny16x64Split4>,
        linear_skinny_f16_f32_16x64 = <F16, f32, Skinny16x64>,
        linear_skinny_f16_f32_16x64_split4 = <F16, f32, Skinny16x64Split4>,
        linear_skinny_bf16_bf16_64x64 = <Bf16, Bf16, Skinny64x64>,
        linear_skinny_bf16_bf16_64x64_split2 = <Bf16, Bf16, Skinny64x64Split2>,
        linear_skinny_bf16_bf16_64x64_split8 = <Bf16, Bf16, Skinny64x64Split8>,
        linear_skinny_bf16_bf16_64x64_split8_deep = <Bf16, Bf16, Skinny64x64Split8Deep>,
        linear_skinny_bf16_bf16_32x64 = <Bf16, Bf16, Skinny32x64>,
        linear_skinny_bf16_bf16_16x64 = <Bf16, Bf16, Skinny16x64>,
        linear_skinny_bf16_bf16_16x64_split2 = <Bf16, Bf16, Skinny16x64Split2>,
        linear_skinny_bf16_bf16_16x64_split4 = <Bf16, Bf16, Skinny16x64Split4>,
        linear_skinny_bf16_f32_16x64 = <Bf16, f32, Skinny16x64>,
        linear_skinny_bf16_f32_16x64_split4 = <Bf16, f32, Skinny16x64Split4>,
        linear_skinny_tf32_f32_64x64 = <f32, f32, Skinny64x64>,
        linear_skinny_tf32_f32_64x64_split2 = <f32, f32, Skinny64x64Split2>,
        linear_skinny_tf32_f32_64x64_split8 = <f32, f32, Skinny64x64Split8>,
        linear_skinny_tf32_f32_64x64_split8_deep = <f32, f32, Skinny64x64Split8Deep>,
        linear_skinny_tf32_f32_32x64 = <f32, f32, Skinny32x64>,
        linear_skinny_tf32_f32_16x64 = <f32, f32, Skinny16x64>,
        linear_skinny_tf32_f32_16x64_split2 = <f32, f32, Skinny16x64Split2>,
        linear_skinny_tf32_f32_16x64_split4 = <f32, f32, Skinny16x64Split4>,
    ],
)]
pub unsafe fn linear_skinny<T: Wgmma<S::Accumulators>, O: Element, S: SplitKTile>(
    x: &TensorMap,
    w: &TensorMap,
    y: GlobalMut<O>,
    epilogue: LinearEpilogue<T, O>,
    p: SkinnyParams,
) {
    // SAFETY: the caller's promise.
    unsafe { few_rows::<T, O, S, 0>(x, w, [], y, epilogue, p) }
}
