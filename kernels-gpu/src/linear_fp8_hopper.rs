//! Linear layers of 8-bit floating-point types on Hopper, with scales: `Y = activation(alpha · row_scale · column_scale · X Wᵀ + …)`.
//!
//! The launch is persistent, as that of [`linear_hopper`](mod@crate::linear_hopper). The tensor cores add up 128 elements along K at a
//! time, f32 accumulators the rest; the epilogue, which has the scales, is applied to these before they are rounded, once.

use warpsmith_dsl::epilogue::LinearEpilogue;
use warpsmith_dsl::float::{Bf16, F8E4M3, F8E5M2, F16};
use warpsmith_dsl::gemm::wgmma::{AlongN, Cooperative, PromotedTile, WgmmaTile};
use warpsmith_dsl::gemm::{BoxOutput, Layouts, OutputElement, PersistentTile};
use warpsmith_dsl::grid;
use warpsmith_dsl::launch::{GlobalMut, TensorMap};
use warpsmith_dsl::ptx::WgmmaFp8;
use warpsmith_dsl::tile::Output;
use warpsmith_dsl::{KernelParam, kernel};

use crate::fp8::Fp8Types;

/// 128 × 192 outputs by two warpgroups: the widest sums that leave registers for as many accumulators.
pub type Fp8Hopper128x192 = WgmmaTile<[f32; 96], 1, Cooperative<2>, 4, 2>;
/// 256 × 128 outputs by two warpgroups, 64 rows of each at a time.
pub type Fp8Hopper256x128 = WgmmaTile<[f32; 64], 2, AlongN<Cooperative<2>, 2>, 4, 2>;
/// 128 × 128 outputs by two warpgroups: more blocks for a smaller Y.
pub type Fp8Hopper128x128 = WgmmaTile<[f32; 64], 1, Cooperative<2>, 6, 2>;
/// 64 × 128 outputs by one warpgroup, for a still smaller one.
pub type Fp8Hopper64x128 = WgmmaTile<[f32; 64], 1, Cooperative<1>, 8, 2>;
/// 64 × 64 outputs by one warpgroup: the most blocks, each of which has the fewest products of a stage.
pub type Fp8Hopper64x64 = WgmmaTile<[f32; 32], 1, Cooperative<1>, 8, 2>;

/// The sizes and types of a launch.
#[derive(Clone, Copy, Debug, KernelParam)]
#[repr(C)]
pub struct Fp8HopperParams {
    /// Elements from one row of Y to the next.
    pub stride_y: u64,
    /// Rows of X and of Y.
    pub m: u32,
    /// Rows of W, and columns of Y.
    pub n: u32,
    /// Columns of X and of W, at least 1.
    pub k: u32,
    /// The types of X and of W.
    pub types: Fp8Types,
    /// 1 if `y_boxes` describes Y, which then has aligned rows; [`LANES_STORE`](Self::LANES_STORE) if it does and lanes are to store them, of
    /// a tile that has them do so; else 0.
    pub has_boxes: u32,
    /// Into how many parts the sums along K are split, at least 1. Each is a matrix of its own in Y; K is then that of each part, and of whole steps.
    pub parts: u32,
}

impl Fp8HopperParams {
    /// [`has_boxes`](Self::has_boxes) where lanes are to store Y.
    pub const LANES_STORE: u32 = 2;
}

/// `Y = activation(alpha · row_scale · column_scale · X Wᵀ + …)`, all that [`LinearEpilogue`] says, on a one-dimensional grid of any
/// number of clusters. The types of X and W are chosen at the launch: the name of an instance tells the type of Y and the tile.
///
/// # Safety
///
/// `x` and `w` describe X and W as [`PromotedTile`] asks, `y_boxes` Y if `has_boxes` is not 0; `y` and the pointers of `epilogue` are
/// valid for what `p` describes. Y and what else is written overlap nothing else, but that Y may be the epilogue's residual.
#[kernel(
    family = linear_fp8_hopper,
    block = [S::THREADS, 1, 1],
    cluster = [S::CLUSTER, 1, 1],
    min_blocks = S::MIN_BLOCKS,
    shared = S::SHARED_BYTES,
    instances = [
        linear_fp8_hopper_bf16_128x192 = <Bf16, Fp8Hopper128x192>,
        linear_fp8_hopper_bf16_256x128 = <Bf16, Fp8Hopper256x128>,
        linear_fp8_hopper_bf16_128x128 = <Bf16, Fp8Hopper128x128>,
        linear_fp8_hopper_bf16_64x128 = <Bf16, Fp8Hopper64x128>,
        linear_fp8_hopper_bf16_64x64 = <Bf16, Fp8Hopper64x64>,
        linear_fp8_hopper_f16_128x192 = <F16, Fp8Hopper128x192>,
        linear_fp8_hopper_f16_256x128 = <F16, Fp8Hopper256x128>,
        linear_fp8_hopper_f16_128x128 = <F16, Fp8Hopper128x128>,
        linear_fp8_hopper_f16_64x128 = <F16, Fp8Hopper64x128>,
        linear_fp8_hopper_f16_64x64 = <F16, Fp8Hopper64x64>,
        linear_fp8_hopper_f32_128x192 = <f32, Fp8Hopper128x192>,
        linear_fp8_hopper_f32_256x128 = <f32, Fp8Hopper256x128>,
        linear_fp8_hopper_f32_128x128 = <f32, Fp8Hopper128x128>,
        linear_fp8_hopper_f32_64x128 = <f32, Fp8Hopper64x128>,
        linear_fp8_hopper_f32_64x64 = <f32, Fp8Hopper64x64>,
    ],
)]
pub unsafe fn linear_fp8_hopper<O: OutputElement, S: PromotedTile>(
    x: &TensorMap,
    w: &TensorMap,
    y_boxes: &TensorMap,
    y: GlobalMut<O>,
    epilogue: LinearEpilogue<O, O>,
    p: Fp8HopperParams,
) where
    F8E4M3: WgmmaFp8<F8E4M3, S::Fragment> + WgmmaFp8<F8E5M2, S::Fragment>,
    F8E5M2: WgmmaFp8<F8E4M3, S::Fragment> + WgmmaFp8<F8E5M2, S::Fragment>,
{
    let steps = p.k.div_ceil(S::ROW_BYTES);
    let layouts = Layouts::K_MAJOR.with_parts(p.parts);

    // SAFETY: the whole grid is here, with the threads, the shared memory and the clusters that the tile asks for; the caller
    // vouches for maps and pointers, and each tile of Y belongs to one block.
    unsafe {
        S::start();
        if S::is_producer() {
            let mut tiles = S::tiles(p.m, p.n, p.parts);
            if let Some(mut producer) = S::producer() {
                grid::wait_for_earlier_launches();
                while let Some(tile) = tiles.next_tile() {
                    S::load_bytes(&mut producer, x, w, layouts, steps, tile);
                }
                S::finish(producer);
            } else {
                S::prefetch_bytes(x, w, layouts, steps, &mut tiles);
            }
        } else {
            let mut consumer = S::consumer();
            S::begin_turns(&consumer);
            let mut tiles = S::tiles(p.m, p.n, p.parts);
            grid::wait_for_earlier_launches();
            let epilogue = epilogue.of_matrix(0, p.m, p.n);
            let in_registers = epilogue.in_registers_scaled();
            let fits_registers = p.has_boxes != 0 && epilogue.fits_registers_scaled();
            while let Some(tile) = S::next_tile(&mut consumer, &mut tiles, steps) {
                // Read while the products run.
                let columns = if fits_registers { Some(S::columns(&in_registers, tile)) } else { None };
                let accumulators = match p.types {
                    Fp8Types::E4M3 => S::multiply_promoted::<F8E4M3, F8E4M3>(&mut consumer, steps),
                    Fp8Types::E5M2_BY_E4M3 => S::multiply_promoted::<F8E5M2, F8E4M3>(&mut consumer, steps),
                    Fp8Types::E4M3_BY_E5M2 => S::multiply_promoted::<F8E4M3, F8E5M2>(&mut consumer, steps),
                    _ => S::multiply_promoted::<F8E5M2, F8E5M2>(&mut consumer, steps),
                };
                let base = y.offset(tile.tile.batch as u64 * p.m as u64 * p.stride_y);
                let y = Output { base, stride: p.stride_y, rows: p.m, columns: p.n };
                if let Some(columns) = columns {
                    let by_lanes = S::LANES_STORE && p.has_boxes == Fp8HopperParams::LANES_STORE;
                    let boxes = BoxOutput { map: y_boxes, rows: by_lanes.then_some(y) };
                    match in_registers.with_floor() {
                        Some(e) if S::UNROLLS => {
                            S::store_boxes::<O, _, true>(&accumulators, &e, &columns, &boxes, tile)
                        }
                        _ => S::store_boxes::<O, _, false>(
                            &accumulators,
                            &in_registers,
                            &columns,
                            &boxes,
                            tile,
                        ),
                    }
                } else {
                    S::store_rows(&accumulators, &epilogue, &y, tile);
                }
            }
            S::end_turns(&consumer);
            S::finish_stores();
        }
    }
}
