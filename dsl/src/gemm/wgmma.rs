//! Hopper's main loop: the copy engine fills a ring of tiles, warpgroups multiply them with `wgmma`; sm_90a.
//!
//! The warps of a block have different work. One thread of the first warpgroup, the producer, has the copy engine (TMA) fill the
//! ring's stages; the other warpgroups consume them, each with 64 rows of the block's tile (the *cooperative* schedule). A
//! launch is persistent: a block works through several tiles, and the producer is already filling stages for the next one
//! while the consumers store the last.
//!
//! A stage holds 128 bytes of each row of A and of B, in the 128-byte swizzle, as the copy engine writes it and `wgmma` reads it.
//! In a cluster, the blocks' tiles are neighbours along M: they need the same rows of B, of which each block fetches a share and
//! sends it to all.
//!
//! While the tensor cores work on one stage, the consumers issue the products of the next; a stage is given back when the
//! products after it have been issued and its own have completed.

use core::marker::PhantomData;

use crate::epilogue::Epilogue;
use crate::float::Element;
use crate::gemm::fragments::STRIP_FRAGMENTS;
use crate::gemm::{ColumnCache, OutputElement, PersistentTile};
use crate::launch::TensorMap;
use crate::layout::{STRIP_COLUMNS, TileIndex, accumulator_coord, swizzled_staging_word};
use crate::pipeline::{Consumer, FullStage, Pipeline, Producer};
use crate::ptx::{self, Accumulators, MatrixDescriptor, Wgmma};
use crate::shared::SharedAddress;
use crate::thread;
use crate::tile::Output;
use crate::warp;

/// Threads of a warpgroup.
const WARPGROUP: u32 = 4 * warp::SIZE;
/// Rows that a warpgroup multiplies, 16 by each warp.
const WARPGROUP_ROWS: u32 = 64;
/// Bytes of each row in a stage: the width of the widest swizzle.
const ROW_BYTES: u32 = 128;
/// Bytes of each row that one product takes.
const STEP_BYTES: u32 = 32;
/// Rows of accumulators that a warp has.
const WARP_ROWS: u32 = 16;
/// Columns of an accumulator fragment.
const FRAGMENT_COLUMNS: u32 = 8;
/// Bytes of a warp's staging buffer, for a strip of f32.
const STAGING_BYTES: u32 = WARP_ROWS * STRIP_COLUMNS * 4;
/// Columns that a lane transforms and stores at a time, of what is staged.
const COLUMNS: usize = 4;
/// Registers of a thread of the producer's warpgroup and of a consumer, where there are two consumers: with them the consumers
/// can hold 128 accumulators each. 40 · 128 + 232 · 256 is within the 64 Ki registers of a multiprocessor.
const PRODUCER_REGISTERS: u32 = 40;
/// See [`PRODUCER_REGISTERS`].
const CONSUMER_REGISTERS: u32 = 232;

/// A consuming warp's part of a tile.
struct WarpPart {
    /// The thread's lane.
    lane: u32,
    /// The output's first row that the warp has accumulators of.
    row: u32,
    /// Its staging buffer.
    staging: SharedAddress,
}

/// A tile of `CONSUMERS` warpgroups × 64 rows and as many columns as the accumulators `C` are for, over a ring of `STAGES` stages, in
/// clusters of `CLUSTER` blocks.
pub struct WgmmaTile<C, const CONSUMERS: u32, const STAGES: u32, const CLUSTER: u32>(PhantomData<C>);

impl<C: Accumulators, const CONSUMERS: u32, const STAGES: u32, const CLUSTER: u32>
    WgmmaTile<C, CONSUMERS, STAGES, CLUSTER>
{
    /// Bytes of a stage's rows of A, which its rows of B follow.
    const A_BYTES: u32 = CONSUMERS * WARPGROUP_ROWS * ROW_BYTES;
    /// Bytes of a stage.
    const STAGE_BYTES: u32 = Self::A_BYTES + C::COLUMNS * ROW_BYTES;
    /// Where the consumers' staging buffers follow the ring.
    const STAGING_AT: u32 = STAGES * Self::STAGE_BYTES;
    /// Where the barriers follow the staging buffers.
    const BARRIERS_AT: u32 = Self::STAGING_AT + 4 * CONSUMERS * STAGING_BYTES;
    /// Strips that a warp stores one after the other.
    const STRIPS: usize = {
        let strips = C::COLUMNS / STRIP_COLUMNS;
        assert!(C::COLUMNS.is_multiple_of(STRIP_COLUMNS), "strips cover the columns");
        strips as usize
    };
    /// Whether the producer's warpgroup hands registers to the consumers.
    const HANDS_OVER_REGISTERS: bool = CONSUMERS == 2;

    #[inline(always)]
    fn pipeline() -> Pipeline<STAGES, CLUSTER> {
        Pipeline::at(SharedAddress::dynamic().offset(Self::BARRIERS_AT))
    }

    /// The place of a stage.
    #[inline(always)]
    fn stage(index: u32) -> SharedAddress {
        SharedAddress::dynamic().offset(index * Self::STAGE_BYTES)
    }

    /// This consuming warp's place in the output.
    #[inline(always)]
    fn own_part(tile: TileIndex) -> WarpPart {
        // Opaque: what follows from it is worth no register while the products run.
        let thread = ptx::opaque(thread::thread_idx_x());
        let (warp, lane) = (thread / warp::SIZE - 4, thread % warp::SIZE);
        WarpPart {
            lane,
            row: tile.m * (CONSUMERS * WARPGROUP_ROWS) + warp * WARP_ROWS,
            staging: SharedAddress::dynamic().offset(Self::STAGING_AT + warp * STAGING_BYTES),
        }
    }

    /// The index of this thread's warpgroup; 0 is the producer's.
    #[inline(always)]
    fn warpgroup() -> u32 {
        thread::thread_idx_x() / WARPGROUP
    }
}

impl<C: Accumulators, const CONSUMERS: u32, const STAGES: u32, const CLUSTER: u32> PersistentTile
    for WgmmaTile<C, CONSUMERS, STAGES, CLUSTER>
{
    const BLOCK_M: u32 = CONSUMERS * WARPGROUP_ROWS;
    const BLOCK_N: u32 = C::COLUMNS;
    const CLUSTER_M: u32 = CLUSTER;
    const THREADS: u32 = (1 + CONSUMERS) * WARPGROUP;
    const MIN_BLOCKS: u32 = if CONSUMERS == 1 { 2 } else { 1 };
    const SHARED_BYTES: u32 = Self::BARRIERS_AT + Pipeline::<STAGES, CLUSTER>::BYTES;
    const ROW_BYTES: u32 = ROW_BYTES;
    const A_BOX_ROWS: u32 = Self::BLOCK_M;
    const B_BOX_ROWS: u32 = {
        assert!((Self::BLOCK_N / CLUSTER).is_multiple_of(8), "a share of B is whole units of the swizzle");
        Self::BLOCK_N / CLUSTER
    };

    type Accumulators = C;
    type Producer = Producer<STAGES, CLUSTER>;
    type Consumer = Consumer<STAGES, CLUSTER>;

    #[inline(always)]
    unsafe fn start() {
        // SAFETY: all threads of the cluster are here; one makes the barriers, and the others wait for it.
        unsafe {
            if thread::thread_idx_x() == 0 {
                Self::pipeline().init(4 * CONSUMERS);
            }
            if CLUSTER > 1 {
                ptx::barrier_cluster_arrive();
                ptx::barrier_cluster_wait();
            } else {
                thread::sync_threads();
            }
        }
    }

    #[inline(always)]
    fn is_producer() -> bool {
        Self::warpgroup() == 0
    }

    #[inline(always)]
    unsafe fn producer() -> Option<Self::Producer> {
        if Self::HANDS_OVER_REGISTERS {
            // SAFETY: the whole warpgroup is here.
            unsafe { ptx::setmaxnreg_dec::<PRODUCER_REGISTERS>() };
        }
        if thread::thread_idx_x() == 0 { Some(Self::pipeline().producer()) } else { None }
    }

    #[inline(always)]
    unsafe fn consumer() -> Self::Consumer {
        if Self::HANDS_OVER_REGISTERS {
            // SAFETY: the whole warpgroup is here, and the producer's gives back as many registers.
            unsafe { ptx::setmaxnreg_inc::<CONSUMER_REGISTERS>() };
        }
        Self::pipeline().consumer()
    }

    #[inline(always)]
    unsafe fn load<T: Element>(
        producer: &mut Self::Producer,
        a: &TensorMap,
        b: &TensorMap,
        steps: u32,
        tile: TileIndex,
    ) {
        let (row_a, row_b) = ((tile.m * Self::BLOCK_M) as i32, (tile.n * Self::BLOCK_N) as i32);
        for step in 0..steps {
            let k = (step * (ROW_BYTES / T::BYTES)) as i32;
            // SAFETY: a stage's bytes come from the boxes of A and of B, in a cluster the shares of all blocks, which are
            // all at the same step; nothing touches the stage before it is full. The rest is the caller's promise.
            unsafe {
                let stage = producer.acquire(Self::STAGE_BYTES);
                let (to_a, full) = (Self::stage(stage.index), stage.full.address());
                let to_b = to_a.offset(Self::A_BYTES);
                ptx::tma_load_2d(to_a.get(), a.address(), [k, row_a], full);
                if CLUSTER > 1 {
                    let share = ptx::cluster_ctarank() * Self::B_BOX_ROWS;
                    let to_b = to_b.offset(share * ROW_BYTES);
                    let all = ((1u32 << CLUSTER) - 1) as u16;
                    ptx::tma_load_2d_multicast(to_b.get(), b.address(), [k, row_b + share as i32], full, all);
                } else {
                    ptx::tma_load_2d(to_b.get(), b.address(), [k, row_b], full);
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn multiply<T: Wgmma<C>>(consumer: &mut Self::Consumer, steps: u32) -> C {
        let first_row = (Self::warpgroup() - 1) * WARPGROUP_ROWS;
        let mut accumulators = C::zero();
        accumulators.hold();
        let mut previous: Option<FullStage> = None;
        for _ in 0..steps {
            // SAFETY: all warps of the warpgroup run this loop alike; the stage is full, and it is given back when the
            // products that read it have completed.
            unsafe {
                let stage = consumer.wait();
                let rows = Self::stage(stage.index);
                let a = MatrixDescriptor::rows_of_128_bytes(rows.offset(first_row * ROW_BYTES).get());
                let b = MatrixDescriptor::rows_of_128_bytes(rows.offset(Self::A_BYTES).get());
                ptx::wgmma_fence();
                for part in 0..ROW_BYTES / STEP_BYTES {
                    let along_k = part * STEP_BYTES;
                    T::wgmma(&mut accumulators, a.advance(along_k), b.advance(along_k));
                }
                ptx::wgmma_commit_group();
                if let Some(previous) = previous {
                    ptx::wgmma_wait_group::<1>();
                    consumer.release(previous);
                }
                previous = Some(stage);
            }
        }
        // SAFETY: as above.
        unsafe {
            ptx::wgmma_wait_group::<0>();
            accumulators.hold();
            if let Some(previous) = previous {
                consumer.release(previous);
            }
        }
        accumulators
    }

    #[inline(always)]
    unsafe fn columns<E: Epilogue>(epilogue: &E, tile: TileIndex) -> ColumnCache<E::Column> {
        // SAFETY: the caller's promise.
        unsafe { ColumnCache::load(epilogue, tile.n * Self::BLOCK_N, Self::BLOCK_N) }
    }

    #[inline(always)]
    fn is_whole<O: OutputElement>(output: &Output<O>, tile: TileIndex) -> bool {
        (tile.m + 1) * Self::BLOCK_M <= output.rows
            && (tile.n + 1) * Self::BLOCK_N <= output.columns
            && O::is_strip_aligned(output)
    }

    #[inline(always)]
    unsafe fn store_whole<O: OutputElement, E: Epilogue>(
        accumulators: C,
        epilogue: &E,
        columns: &ColumnCache<E::Column>,
        output: &Output<O>,
        tile: TileIndex,
    ) {
        let WarpPart { lane, row, staging } = Self::own_part(tile);
        for strip in 0..Self::STRIPS {
            let fragment = |index| accumulators.fragment(strip * STRIP_FRAGMENTS + index);
            let column = tile.n * Self::BLOCK_N + strip as u32 * STRIP_COLUMNS;
            // SAFETY: all lanes of the warp are here. The states of columns and the results have a half of the staging buffer
            // each; between two uses of one, the warp synchronises for the other.
            unsafe {
                let scratch = staging.offset(STAGING_BYTES / 2);
                let results = columns.apply(epilogue, scratch, lane, strip, fragment);
                O::store_strip(results, lane, staging, output, row, column);
            }
        }
        // The staging buffer may be written again.
        // SAFETY: all lanes of the warp are here.
        unsafe { warp::sync_warp() };
    }

    #[inline(always)]
    unsafe fn store<O: Element, E: Epilogue>(
        accumulators: C,
        epilogue: &E,
        output: &Output<O>,
        tile: TileIndex,
    ) {
        const LANES_PER_ROW: u32 = STRIP_COLUMNS / COLUMNS as u32;
        const ROWS_PER_PASS: u32 = warp::SIZE / LANES_PER_ROW;
        let WarpPart { lane, row: output_row, staging } = Self::own_part(tile);
        let place = |row: u32, column: u32| staging.offset(4 * swizzled_staging_word(row, column)).get();

        let (first_row, column) = (lane / LANES_PER_ROW, (lane % LANES_PER_ROW) * COLUMNS as u32);
        let vector_aligned = output.is_vector_aligned();
        for strip in 0..Self::STRIPS {
            let output_column = tile.n * Self::BLOCK_N + strip as u32 * STRIP_COLUMNS + column;
            // SAFETY: the caller's promise.
            let columns = unsafe { epilogue.columns::<COLUMNS>(output_column) };
            for fragment in 0..STRIP_FRAGMENTS {
                let [c0, c1, c2, c3] = accumulators.fragment(strip * STRIP_FRAGMENTS + fragment);
                let at = accumulator_coord(lane, 0);
                let column = fragment as u32 * FRAGMENT_COLUMNS + at.column;
                // SAFETY: within this warp's staging buffer, which no other warp touches.
                unsafe {
                    ptx::st_shared_v2_f32(place(at.row, column), [c0, c1]);
                    ptx::st_shared_v2_f32(place(at.row + WARP_ROWS / 2, column), [c2, c3]);
                }
            }
            // SAFETY: all lanes of the warp are here.
            unsafe { warp::sync_warp() };
            // Not unrolled: the epilogue's code is larger than the loop's overhead.
            let rows = ptx::opaque(WARP_ROWS);
            let mut row = first_row;
            while row < rows {
                // SAFETY: written before the barrier, by this warp.
                let staged = unsafe { ptx::ld_shared_v4_f32(place(row, column)) };
                let result = epilogue.apply(columns, staged);
                // SAFETY: the caller's promise; every element of the tile belongs to one lane of one warp.
                unsafe { output.store_4(output_row + row, output_column, result, vector_aligned) };
                row += ROWS_PER_PASS;
            }
            // SAFETY: all lanes of the warp are here.
            unsafe { warp::sync_warp() };
        }
    }

    #[inline(always)]
    unsafe fn finish(producer: Self::Producer) {
        if CLUSTER > 1 {
            // SAFETY: the caller's promise.
            unsafe { producer.drain() };
        }
    }
}
