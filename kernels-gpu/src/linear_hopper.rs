//! Linear layers on Hopper: what [`linear`](mod@crate::linear) computes, with the copy engine and `wgmma`.
//!
//! The launch is persistent: a block works through several tiles of Y. One of its threads has X and W copied to shared memory, its
//! consumers multiply, apply the epilogue to the f32 accumulators and round them to Y's type, once.

use warpsmith_dsl::epilogue::{Activation, Bias, Epilogue, Scale};
use warpsmith_dsl::float::{Bf16, F16};
use warpsmith_dsl::gemm::wgmma::WgmmaTile;
use warpsmith_dsl::gemm::{OutputElement, PersistentTile};
use warpsmith_dsl::launch::{Global, GlobalMut, TensorMap};
use warpsmith_dsl::ptx::Wgmma;
use warpsmith_dsl::tile::Output;
use warpsmith_dsl::{KernelParam, kernel};

/// 128 × 256 outputs by two warpgroups, in clusters of two blocks: the most products for each byte loaded.
pub type Hopper128x256 = WgmmaTile<[f32; 128], 2, 4, 2>;
/// 128 × 128 outputs by two warpgroups: more blocks for a smaller Y.
pub type Hopper128x128 = WgmmaTile<[f32; 64], 2, 6, 1>;
/// 64 × 128 outputs by one warpgroup, two blocks to a multiprocessor: for the smallest Y.
pub type Hopper64x128 = WgmmaTile<[f32; 64], 1, 4, 1>;

/// The sizes and options of a launch.
#[derive(Clone, Copy, Debug, KernelParam)]
#[repr(C)]
pub struct HopperParams {
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

/// `Y = activation(scale · X Wᵀ + bias)`, on a one-dimensional grid of any number of clusters.
///
/// `bias` may be null, which adds nothing. The name of an instance tells the type of X and W, the type of Y, and the tile.
///
/// # Safety
///
/// `x` and `w` describe `[M, K]` and `[N, K]` as [`PersistentTile`] asks; `bias` and `y` are valid for what `p` describes, and
/// Y overlaps nothing else.
#[kernel(
    family = linear_hopper,
    block = [S::THREADS, 1, 1],
    cluster = [S::CLUSTER_M, 1, 1],
    min_blocks = S::MIN_BLOCKS,
    shared = S::SHARED_BYTES,
    instances = [
        linear_hopper_f16_f16_128x256 = <F16, F16, Hopper128x256>,
        linear_hopper_f16_f16_128x128 = <F16, F16, Hopper128x128>,
        linear_hopper_f16_f16_64x128 = <F16, F16, Hopper64x128>,
        linear_hopper_f16_f32_128x256 = <F16, f32, Hopper128x256>,
        linear_hopper_f16_f32_128x128 = <F16, f32, Hopper128x128>,
        linear_hopper_f16_f32_64x128 = <F16, f32, Hopper64x128>,
        linear_hopper_bf16_bf16_128x256 = <Bf16, Bf16, Hopper128x256>,
        linear_hopper_bf16_bf16_128x128 = <Bf16, Bf16, Hopper128x128>,
        linear_hopper_bf16_bf16_64x128 = <Bf16, Bf16, Hopper64x128>,
        linear_hopper_bf16_f32_128x256 = <Bf16, f32, Hopper128x256>,
        linear_hopper_bf16_f32_128x128 = <Bf16, f32, Hopper128x128>,
        linear_hopper_bf16_f32_64x128 = <Bf16, f32, Hopper64x128>,
    ],
)]
pub unsafe fn linear_hopper<T: Wgmma<S::Accumulators>, O: OutputElement, S: PersistentTile>(
    x: &TensorMap,
    w: &TensorMap,
    bias: Global<T>,
    y: GlobalMut<O>,
    p: HopperParams,
) {
    let steps = (p.k * T::BYTES).div_ceil(S::ROW_BYTES);
    let mut tiles = S::tiles(p.m, p.n);

    // SAFETY: the whole grid is here, with the threads, the shared memory and the clusters that the tile asks for; the caller
    // vouches for maps and pointers, and each tile of Y belongs to one block.
    unsafe {
        S::start();
        if S::is_producer() {
            if let Some(mut producer) = S::producer() {
                while let Some(tile) = tiles.next_tile() {
                    S::load::<T>(&mut producer, x, w, steps, tile);
                }
                S::finish(producer);
            }
        } else {
            let mut consumer = S::consumer();
            let y = Output { base: y, stride: p.stride_y, rows: p.m, columns: p.n };
            let affine = Scale(p.scale).then(Bias::new(bias, p.n));
            let floor = p.activation.as_floor();
            let cheap = affine.then(floor.unwrap_or_default());
            while let Some(tile) = tiles.next_tile() {
                let columns = S::columns(&cheap, tile);
                let accumulators = S::multiply::<T>(&mut consumer, steps);
                if floor.is_some() && S::is_whole(&y, tile) {
                    S::store_whole(accumulators, &cheap, &columns, &y, tile);
                } else {
                    S::store(accumulators, &affine.then(p.activation), &y, tile);
                }
            }
        }
    }
}
