//! Linear layers on Hopper for few rows of X or few tiles of Y: what [`linear`](mod@crate::linear) computes, in the time that reading
//! W takes.
//!
//! Where there are few tiles of Y, the blocks of a cluster share the sum over K of one, so that enough of them keep the GPU's memory busy.
//! In each block one warp has X and W copied to shared memory, the others multiply; then the blocks send each other their parts
//! of the f32 sums, and each applies the epilogue to some rows of the tile and rounds them to Y's type, once.

use warpsmith_dsl::epilogue::LinearEpilogue;
use warpsmith_dsl::float::{Bf16, Element, F16};
use warpsmith_dsl::gemm::split_k::TransposedTile;
use warpsmith_dsl::gemm::{Layouts, SplitKTile};
use warpsmith_dsl::grid;
use warpsmith_dsl::launch::{GlobalMut, TensorMap};
use warpsmith_dsl::ptx::Wgmma;
use warpsmith_dsl::tile::Output;
use warpsmith_dsl::{KernelParam, kernel};

/// 64 × 64 outputs by one block.
pub type Skinny64x64 = TransposedTile<[f32; 32], 1, 1, 8, 14, 1, 1>;
/// 64 × 64 outputs by two blocks.
pub type Skinny64x64Split2 = TransposedTile<[f32; 32], 1, 1, 8, 14, 2, 1>;
/// 64 × 64 outputs by eight blocks.
pub type Skinny64x64Split8 = TransposedTile<[f32; 32], 1, 1, 5, 6, 8, 2>;
/// The same with rings as deep as a multiprocessor's shared memory, which holds no second block then.
pub type Skinny64x64Split8Deep = TransposedTile<[f32; 32], 1, 1, 11, 13, 8, 1>;
/// 32 × 64 outputs by one block.
pub type Skinny32x64 = TransposedTile<[f32; 16], 1, 2, 5, 9, 1, 1>;
/// 16 × 64 outputs by one block.
pub type Skinny16x64 = TransposedTile<[f32; 8], 1, 2, 4, 5, 1, 2>;
/// 16 × 64 outputs by two blocks.
pub type Skinny16x64Split2 = TransposedTile<[f32; 8], 1, 2, 4, 5, 2, 2>;
/// 16 × 64 outputs by four blocks.
pub type Skinny16x64Split4 = TransposedTile<[f32; 8], 1, 2, 4, 5, 4, 2>;

/// The sizes and strides of a launch.
#[derive(Clone, Copy, Debug, KernelParam)]
#[repr(C)]
pub struct SkinnyParams {
    /// Elements from one row of Y to the next.
    pub stride_y: u64,
    /// Elements from one matrix of Y to the next.
    pub batch_y: u64,
    /// Rows of X and of Y.
    pub m: u32,
    /// Rows of W, and columns of Y.
    pub n: u32,
    /// Columns of X and of W; a row has less than 2³¹ bytes.
    pub k: u32,
    /// Which of X and W all matrices share, and whether W is contiguous along N; X is along K.
    pub layouts: Layouts,
}

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
    // SAFETY: the whole grid is here, with the threads, the shared memory and the clusters that the tile asks for; the caller
    // vouches for maps and pointers, and each tile of Y belongs to one cluster.
    unsafe {
        S::start(x, w);
        // Behind the start, under which its divisions run, and before what else waits for other launches.
        let share = S::share(p.m, p.n, p.k * T::BYTES);
        let tile = share.tile;
        grid::wait_for_earlier_launches();
        if S::is_producer() {
            S::load::<T>(x, w, p.layouts, share);
        } else {
            let epilogue = epilogue.of_matrix(tile.batch, p.m, p.n);
            let columns = S::columns(&epilogue, tile);
            let accumulators = S::multiply::<T>(p.layouts, share);
            S::exchange(accumulators);
            let base = y.offset(tile.batch as u64 * p.batch_y);
            let y = Output { base, stride: p.stride_y, rows: p.m, columns: p.n };
            S::store_linear(&epilogue, columns, &y, tile);
        }
    }
}
