//! A matrix product on Hopper in eight steps, `Y = X Wᵀ` of bf16: from one warpgroup that waits for everything to a
//! persistent kernel that waits for little.
//!
//! | step | what it adds |
//! |---|---|
//! | 1 | `wgmma` on tiles that threads copy |
//! | 2 | tiles that the copy engine (TMA) copies |
//! | 3 | a ring of stages, filled ahead |
//! | 4 | a warp that copies and a warpgroup that multiplies, which meet at barriers only |
//! | 5 | two multiplying warpgroups, tiles of 128 × 256, registers handed over |
//! | 6 | a product that is still running when the next one begins |
//! | 7 | clusters of two blocks, which load W once |
//! | 8 | blocks that stay, and begin the next tile's copies during the last one's stores |

use warpsmith_dsl::pipeline::{AsyncProxy, FullStage, Pipeline};
use warpsmith_dsl::prelude::*;
use warpsmith_dsl::ptx::{self, Accumulators, MatrixDescriptor, Wgmma};
use warpsmith_dsl::shared::SharedAddress;
use warpsmith_dsl::{barrier::Barrier, warpgroup};

mod first;

pub use first::{RING, copied, step_1};

/// Elements of K that a stage has: rows of 128 bytes.
pub const DEPTH: u32 = 64;
const ROW_BYTES: u32 = 128;

/// `sums += X Wᵀ` over a stage's elements of K, for the own warpgroup's 64 rows at `x`.
///
/// # Safety
///
/// All warps of the warpgroup call it; the stage is written and visible to `wgmma`. Nothing touches `sums` before a wait.
#[inline(always)]
unsafe fn multiply<C: Accumulators>(sums: &mut C, x: MatrixDescriptor, w: MatrixDescriptor)
where
    Bf16: Wgmma<C>,
{
    // SAFETY: the caller's promise.
    unsafe {
        ptx::wgmma_fence();
        for step in 0..4 {
            <Bf16 as Wgmma<C>>::wgmma::<false, false>(sums, x.advance(32 * step), w.advance(32 * step));
        }
        ptx::wgmma_commit_group();
    }
}

/// Rounds the sums of the own warpgroup, whose first is at `row` and `column` of y, and stores those that are inside.
///
/// # Safety
///
/// All products have ended, and no other warpgroup has these elements.
#[inline(always)]
unsafe fn store<C: Accumulators>(sums: &C, y: GlobalMatrixMut<Bf16>, row: u32, column: u32) {
    let (warp, lane) = (warp::warp_id() % 4, warp::lane_id());
    for fragment in 0..C::COLUMNS / 8 {
        let values = sums.fragment(fragment as usize);
        for (index, value) in values.into_iter().enumerate() {
            let row = row + 16 * warp + lane / 4 + 8 * (index as u32 / 2);
            let column = column + 8 * fragment + 2 * (lane % 4) + index as u32 % 2;
            let (row, column) = (row as usize, column as usize);
            if row < y.rows() && column < y.columns() {
                // SAFETY: inside, and the caller's promise.
                unsafe { y.write_unchecked(row, column, Bf16::from_f32(value)) }
            }
        }
    }
}

/// Bytes of shared memory for so many stages of `rows` rows of X and `columns` rows of W, and their barriers.
pub const fn shared_bytes(rows: u32, columns: u32, stages: u32) -> u32 {
    stages * ((rows + columns) * ROW_BYTES + 2 * Barrier::BYTES)
}

/// Steps 4 to 8. `GROUPS` warpgroups multiply, 64 rows each, and the one after them copies; `BLOCKS` blocks of a cluster
/// have tiles below each other; up to `PENDING` products are running when the next one begins. The grid has `BLOCKS` blocks
/// for each cluster, as many clusters as there are tiles or, if the kernel is `PERSISTENT`, any number.
///
/// # Safety
///
/// The grid is of blocks along x, as said. `x` describes X [M, K] in boxes of 64 · `GROUPS` × 64 elements, `w` W [N, K] in boxes of `C::COLUMNS` / `BLOCKS` × 64,
/// both in the 128-byte swizzle; y is [M, N].
#[kernel(
    block = [(GROUPS + 1) * 128, 1, 1],
    cluster = [BLOCKS, 1, 1],
    shared = shared_bytes(64 * GROUPS, C::COLUMNS, STAGES),
    instances = [
        step_4 = <[f32; 64], 1, 4, 1, 0, false>,
        step_5 = <[f32; 128], 2, 4, 1, 0, false>,
        step_6 = <[f32; 128], 2, 4, 1, 1, false>,
        step_7 = <[f32; 128], 2, 4, 2, 1, false>,
        step_8 = <[f32; 128], 2, 4, 2, 1, true>,
    ],
)]
pub unsafe fn specialised<
    C: Accumulators,
    const GROUPS: u32,
    const STAGES: u32,
    const BLOCKS: u32,
    const PENDING: u32,
    const PERSISTENT: bool,
>(
    x: &TensorMap,
    w: &TensorMap,
    y: GlobalMatrixMut<Bf16>,
    k: u32,
) where
    Bf16: Wgmma<C>,
{
    let (rows, columns) = (64 * GROUPS, C::COLUMNS);
    let stage_bytes = (rows + columns) * ROW_BYTES;
    let place = move |stage: u32| SharedAddress::dynamic().offset(stage * stage_bytes);
    let pipeline = Pipeline::<STAGES, BLOCKS>::at(SharedAddress::dynamic().offset(STAGES * stage_bytes));
    let (rank, cluster) = (thread::block_idx_x() % BLOCKS, thread::block_idx_x() / BLOCKS);
    let clusters_m = (y.rows() as u32).div_ceil(rows).div_ceil(BLOCKS).max(1);
    let tiles = clusters_m * (y.columns() as u32).div_ceil(columns);
    let stride = if PERSISTENT { thread::grid_dim_x() / BLOCKS } else { tiles };
    let origin = move |tile: u32| (((tile % clusters_m) * BLOCKS + rank) * rows, tile / clusters_m * columns);
    let steps = k.div_ceil(DEPTH);

    // SAFETY: every thread of the block, and of the cluster, is here; the caller's promise for what the maps describe.
    unsafe {
        if thread::thread_idx_x() == 0 {
            pipeline.init(4 * GROUPS);
        }
        if BLOCKS == 1 {
            sync_threads();
        } else {
            ptx::barrier_cluster_arrive();
            ptx::barrier_cluster_wait();
        }
        if warpgroup::index() == GROUPS {
            if GROUPS == 2 {
                ptx::setmaxnreg_dec::<40>();
            }
            if thread::thread_idx_x() == GROUPS * 128 {
                let mut producer = pipeline.producer();
                let mut tile = cluster;
                while tile < tiles {
                    let (row, column) = origin(tile);
                    for step in 0..steps {
                        let stage = producer.acquire(stage_bytes);
                        let (at, full, depth) =
                            (place(stage.index), stage.full.address(), (step * DEPTH) as i32);
                        ptx::tma_load_2d(at.get(), x.address(), [depth, row as i32], full);
                        // Each block loads its part of W, for all of them.
                        let part = rank * (columns / BLOCKS);
                        let to = at.offset((rows + part) * ROW_BYTES).get();
                        let from = [depth, (column + part) as i32];
                        if BLOCKS == 1 {
                            ptx::tma_load_2d(to, w.address(), from, full);
                        } else {
                            ptx::tma_load_2d_multicast(to, w.address(), from, full, (1 << BLOCKS) - 1);
                        }
                    }
                    tile += stride;
                }
                producer.drain();
            }
        } else {
            if GROUPS == 2 {
                ptx::setmaxnreg_inc::<232>();
            }
            let group = warpgroup::index();
            let mut consumer = pipeline.consumer::<AsyncProxy>();
            let mut tile = cluster;
            while tile < tiles {
                let (mut sums, mut last) = (C::zero(), FullStage::none());
                sums.hold();
                for step in 0..steps {
                    let stage = consumer.wait();
                    let x = stage.operand(place).offset(group * 64 * ROW_BYTES).rows_of_128_bytes();
                    let w = stage.operand(place).offset(rows * ROW_BYTES).rows_of_128_bytes();
                    multiply(&mut sums, x, w);
                    ptx::wgmma_wait_group::<PENDING>();
                    if PENDING == 0 {
                        consumer.release(stage);
                    } else if step > 0 {
                        consumer.release(last);
                    }
                    last = stage;
                }
                ptx::wgmma_wait_group::<0>();
                sums.hold();
                if PENDING > 0 && steps > 0 {
                    consumer.release(last);
                }
                let (row, column) = origin(tile);
                store(&sums, y, row + 64 * group, column);
                tile += stride;
            }
        }
    }
}

#[cfg(not(target_arch = "nvptx64"))]
pub mod host;
