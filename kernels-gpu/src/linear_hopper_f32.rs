//! Linear layers on Hopper at f32 accuracy: what [`linear`](mod@crate::linear) computes on f32, with the copy engine and `wgmma`.
//!
//! The launch is persistent: a block works through several tiles of Y. One of its threads has X and W copied to shared memory,
//! three warps split W into TF32 parts, and the others multiply, apply the epilogue and store.

use warpsmith_dsl::epilogue::LinearEpilogue;
use warpsmith_dsl::gemm::wgmma_f32::{SplitTile, WgmmaF32Tile};
use warpsmith_dsl::gemm::{Layouts, again};
use warpsmith_dsl::launch::{Global, GlobalMut, TensorMap};
use warpsmith_dsl::tile::{Operand, Output};
use warpsmith_dsl::{KernelParam, kernel, ptx};

/// 128 × 256 outputs by two warpgroups, in clusters of two blocks: the most products for each byte loaded.
pub type Split128x256 = WgmmaF32Tile<[f32; 64], 2, 2, 3, 2, 2>;
/// 128 × 128 outputs by two warpgroups: more blocks for a smaller Y.
pub type Split128x128 = WgmmaF32Tile<[f32; 64], 1, 2, 4, 3, 1>;
/// 64 × 128 outputs by one warpgroup, two blocks to a multiprocessor: more blocks still.
pub type Split64x128 = WgmmaF32Tile<[f32; 64], 1, 1, 3, 2, 1>;
/// 64 × 64 outputs by one warpgroup, two blocks to a multiprocessor: for the smallest Y.
pub type Split64x64 = WgmmaF32Tile<[f32; 32], 1, 1, 4, 3, 1>;

/// The sizes and strides of a launch.
#[derive(Clone, Copy, Debug, KernelParam)]
#[repr(C)]
pub struct HopperF32Params {
    /// Elements from one row of X to the next.
    pub stride_x: u64,
    /// Elements from one row of W to the next.
    pub stride_w: u64,
    /// Elements from one matrix of X to the next; 0 where all have the same.
    pub batch_x: u64,
    /// Elements from one matrix of W to the next; 0 where all have the same.
    pub batch_w: u64,
    /// Elements from one row of Y to the next.
    pub stride_y: u64,
    /// Elements from one matrix of Y to the next.
    pub batch_y: u64,
    /// Matrices.
    pub batch: u32,
    /// Rows of X and of Y.
    pub m: u32,
    /// Rows of W, and columns of Y.
    pub n: u32,
    /// Columns of X and of W, at least 1; a row has less than 2³¹ bytes.
    pub k: u32,
    /// Which matrices of X and of W a product takes; both are K-major.
    pub layouts: Layouts,
    /// Keeps the size a multiple of the alignment; its value is not read.
    pub reserved: u32,
}

/// `Y = activation(alpha · X Wᵀ + …)` on f32, all that [`LinearEpilogue`] says, on a one-dimensional grid of any number of clusters.
///
/// The name of an instance tells the type of X and W, the type of Y, and the tile.
///
/// # Safety
///
/// `x` and `w` describe X and W as [`SplitTile`] asks; `x_rows` and `w_rows` are the same matrices, which sums that are not finite are
/// [added up again](again) from. These, `y` and the pointers of `epilogue` are valid for what `p` describes. Y and
/// what else is written overlap nothing else, but that Y may be the epilogue's residual.
#[kernel(
    family = linear_hopper_f32,
    block = [S::THREADS, 1, 1],
    cluster = [S::CLUSTER_M, 1, 1],
    min_blocks = S::MIN_BLOCKS,
    shared = S::SHARED_BYTES,
    instances = [
        linear_hopper_f32_f32_split_128x256 = <Split128x256>,
        linear_hopper_f32_f32_split_128x128 = <Split128x128>,
        linear_hopper_f32_f32_split_64x128 = <Split64x128>,
        linear_hopper_f32_f32_split_64x64 = <Split64x64>,
    ],
)]
pub unsafe fn linear_hopper_f32<S: SplitTile>(
    x: &TensorMap,
    w: &TensorMap,
    x_rows: Global<f32>,
    w_rows: Global<f32>,
    y: GlobalMut<f32>,
    epilogue: LinearEpilogue<f32, f32>,
    p: HopperF32Params,
) {
    // Worked out where they are needed: in front of all, they would take registers that the multipliers lack.
    let work = || (S::tiles(p.m, p.n, p.batch), p.k.div_ceil(S::STAGE_K));

    // SAFETY: the whole grid is here, with the threads, the shared memory and the clusters that the tile asks for; the caller
    // vouches for maps and pointers, and each tile of Y belongs to one block.
    unsafe {
        S::start();
        if S::multiplies() {
            let mut multiplier = S::multiplier();
            let (mut tiles, steps) = work();
            while let Some(tile) = tiles.next_tile() {
                let accumulators = S::multiply(&mut multiplier, steps);
                let base = y.offset(tile.batch as u64 * p.batch_y);
                let y = Output { base, stride: p.stride_y, rows: p.m, columns: p.n };
                let sums = again::of_rows::<f32, f32>(|| {
                    let batch = ptx::opaque(tile.batch) as u64;
                    let (x, w) = (x_rows.offset(batch * p.batch_x), w_rows.offset(batch * p.batch_w));
                    let x = Operand { base: x, stride: p.stride_x, rows: p.m, k: p.k };
                    [x, Operand { base: w, stride: p.stride_w, rows: p.n, k: p.k }]
                });
                S::store(accumulators, &sums, &epilogue.of_matrix(tile.batch, p.m, p.n), &y, tile);
            }
        } else {
            S::hand_over_registers();
            if let Some(mut splitter) = S::splitter() {
                let (mut tiles, steps) = work();
                while tiles.next_tile().is_some() {
                    S::split(&mut splitter, steps);
                }
            } else if let Some(mut loader) = S::loader() {
                let (mut tiles, steps) = work();
                while let Some(tile) = tiles.next_tile() {
                    S::load(&mut loader, x, w, p.layouts, steps, tile);
                }
                S::finish(loader);
            }
        }
    }
}
