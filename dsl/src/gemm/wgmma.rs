//! Hopper's main loop: the copy engine fills a ring of tiles, warpgroups multiply them with `wgmma`; sm_90a.
//!
//! The warps of a block have different work. One thread of the first warpgroup, the producer, has the copy engine (TMA) fill the
//! ring's stages; the other warpgroups consume them. A launch is persistent: a block works through several tiles, and the
//! producer is already filling stages for the next one while consumers store the last.
//!
//! There are two schedules. [`Cooperative`]: all consumers work on one tile, each on its own rows, which makes the tile large.
//! [`PingPong`]: two consumers have a tile each and take turns with the tensor cores, so that the epilogue of one runs under the
//! products of the other.
//!
//! A stage holds 128 bytes of each row of A and of B. Of an operand whose columns are contiguous (16-bit types) it holds
//! panels of 64 rows × 64 indices along K. Both are in the 128-byte swizzle, as the copy engine writes it and `wgmma`
//! reads it. In a cluster, the blocks' tiles are neighbours. Those along M need the same rows of B, those along N the same
//! rows of A. Each block fetches a share of these and sends it to all. The last tiles of a launch may be the work of a
//! cluster each, whose blocks have half of the columns. Then the rows of A are common, and the blocks fetch them in turn.
//!
//! While the tensor cores work on one stage, the consumers issue the products of the next; a stage is given back when the
//! products after it have been issued and its own have completed.

mod load;
mod multiply;
mod promoted;
mod schedules;
mod update;

pub use promoted::{Promote, PromotedTile};
pub use schedules::{AlongN, Cooperative, PingPong, Schedule};
pub use update::{CHUNK, Exchange, PART, U_BOX_COLUMNS, UpdateTile, WgmmaUpdateTile};

use core::marker::PhantomData;

use crate::barrier::Barrier;
use crate::epilogue::Epilogue;
use crate::float::Element;
use crate::gemm::fragments::{self, BOX_BYTES, BOX_ROW_BYTES, STAGED_BOXES, WarpRows};
use crate::gemm::{
    BoxOutput, ColumnCache, Extent, HalfFragment, Layouts, OutputElement, PersistentTile, PersistentTiles,
    TilePart,
};
use crate::launch::TensorMap;
use crate::layout::{self, STRIP_COLUMNS};
use crate::pipeline::{self, AsyncProxy, Pipeline};
use crate::ptx::{self, Accumulators, Wgmma};
use crate::shared::SharedAddress;
use crate::thread;
use crate::tile::Output;
use crate::warp;

/// Threads of a warpgroup.
const WARPGROUP: u32 = 4 * warp::SIZE;
/// Rows of the products that a warpgroup issues, 16 for each warp.
const BLOCK_ROWS: u32 = 64;
/// Shared memory that a block of Hopper can have, in bytes.
const MAX_SHARED_BYTES: u32 = 227 << 10;
/// Bytes of each row in a stage: the width of the widest swizzle.
const ROW_BYTES: u32 = 128;
/// Bytes of each row that one product takes.
const STEP_BYTES: u32 = 32;
/// Products along K of a stage.
const STEPS: u32 = ROW_BYTES / STEP_BYTES;
/// Rows of accumulators that a warp has in each block.
const WARP_ROWS: u32 = 16;
/// Bytes of a panel of 64 rows and 64 indices along K, of a 16-bit type.
const PANEL_BYTES: u32 = 64 * ROW_BYTES;
/// Bytes from one product's part of a panel to the next: 16 indices along K.
const PANEL_STEP_BYTES: u32 = 16 * ROW_BYTES;

/// Rows that one of `blocks` blocks fetches of the `rows` rows that all of them need.
const fn share(rows: u32, blocks: u32) -> u32 {
    assert!(rows.is_multiple_of(blocks * 8), "a share is whole units of the swizzle");
    rows / blocks
}

/// A tile in which each consumer of schedule `S` has `BLOCKS` × 64 rows and as many columns as the accumulators `C` are for, over a
/// ring of `STAGES` stages, in clusters of `CLUSTER` blocks.
pub struct WgmmaTile<C, const BLOCKS: usize, S, const STAGES: u32, const CLUSTER: u32>(PhantomData<(C, S)>);

/// What a consumer knows: its place in the ring, and whose turn it is.
pub struct Consumer<const STAGES: u32, const CLUSTER: u32> {
    ring: pipeline::Consumer<STAGES, CLUSTER, AsyncProxy>,
    /// The warpgroup's number among the consumers.
    index: u32,
    /// The parity of the phase of its turns' barrier in which it may multiply next.
    turn: u32,
    /// Whether the next tile in the order is another consumer's.
    skips: bool,
}

impl<C: Accumulators, const BLOCKS: usize, S: Schedule, const STAGES: u32, const CLUSTER: u32>
    WgmmaTile<C, BLOCKS, S, STAGES, CLUSTER>
{
    /// A bit for each block of the cluster that is a neighbour along M of the first.
    const BLOCKS_ALONG_M: u32 = (1 << Self::CLUSTER_M) - 1;
    /// The same along N.
    const BLOCKS_ALONG_N: u32 = {
        let (mut bits, mut block) = (0, 0);
        while block < Self::CLUSTER_N {
            bits |= 1 << (block * Self::CLUSTER_M);
            block += 1;
        }
        bits
    };
    /// Rows of a consumer.
    const CONSUMER_ROWS: u32 = BLOCKS as u32 * BLOCK_ROWS;
    /// Bytes of a stage's rows of A, which its rows of B follow.
    const A_BYTES: u32 = Self::BLOCK_M * ROW_BYTES;
    /// Bytes of a stage.
    const STAGE_BYTES: u32 = Self::A_BYTES + Self::BLOCK_N * ROW_BYTES;
    /// Where the consumers' staging buffers follow the ring.
    const STAGING_AT: u32 = STAGES * Self::STAGE_BYTES;
    /// Boxes of a warp's staging buffer, and bytes of their rows: as many as keep stores and epilogue under way together, but one, or half
    /// of one, where a ring of so many stages leaves no room.
    const STAGED: (u32, u32) = {
        let barriers = Pipeline::<STAGES, CLUSTER>::BYTES + 2 * Barrier::BYTES;
        let room = (MAX_SHARED_BYTES - Self::STAGING_AT - barriers) / (4 * S::CONSUMERS);
        if room >= STAGED_BOXES * BOX_BYTES {
            (STAGED_BOXES, BOX_ROW_BYTES)
        } else {
            (1, if room >= BOX_BYTES { BOX_ROW_BYTES } else { BOX_ROW_BYTES / 2 })
        }
    };
    /// Bytes of a warp's staging buffer.
    const STAGING_BYTES: u32 = Self::STAGED.0 * WARP_ROWS * Self::STAGED.1;
    /// Where the ring's barriers follow the staging buffers.
    const BARRIERS_AT: u32 = Self::STAGING_AT + 4 * S::CONSUMERS * Self::STAGING_BYTES;
    /// Where the barriers of the consumers' turns follow them.
    const TURNS_AT: u32 = Self::BARRIERS_AT + Pipeline::<STAGES, CLUSTER>::BYTES;
    /// Whether consumers take turns.
    const TAKES_TURNS: bool = S::CONSUMERS > S::CONSUMERS_OF_TILE;
    /// Whether the producer's warpgroup hands registers to the consumers; a single one has all it can use, and so have those with few
    /// accumulators.
    const HANDS_OVER_REGISTERS: bool = S::CONSUMERS > 1 && BLOCKS as u32 * C::COLUMNS > 64;
    /// Whether the last stores are a large part of the time of a launch of one tile for each block, and registers are left for lanes that store.
    const IS_SMALL: bool = Self::PREFETCHES && C::COLUMNS <= 160;
    /// Whether the first copies are a large part of the time of such a launch, which then prefetches.
    const PREFETCHES: bool = (Self::CLUSTER_M > 1 || S::CONSUMERS == 1) && BLOCKS == 1 && !Self::TAKES_TURNS;
    /// Whether a consumer's accumulators leave it few other registers.
    const IS_WIDE: bool = BLOCKS as u32 * C::COLUMNS > 256;

    #[inline(always)]
    fn pipeline() -> Pipeline<STAGES, CLUSTER> {
        Pipeline::at(SharedAddress::dynamic().offset(Self::BARRIERS_AT))
    }

    /// The barrier that completes a phase when consumer `index` may multiply again.
    #[inline(always)]
    fn turn_of(index: u32) -> Barrier {
        Barrier::at(SharedAddress::dynamic().offset(Self::TURNS_AT + index * Barrier::BYTES))
    }

    /// The place of a stage.
    #[inline(always)]
    fn stage(index: u32) -> SharedAddress {
        SharedAddress::dynamic().offset(index * Self::STAGE_BYTES)
    }

    /// This consuming warp's place in the output.
    #[inline(always)]
    fn own_rows(part: TilePart) -> WarpRows {
        let tile = part.tile;
        // Opaque: what follows from it is worth no register while the products run.
        let thread = ptx::opaque(thread::thread_idx_x());
        let (warp, lane) = (thread / warp::SIZE - 4, thread % warp::SIZE);
        let first = if Self::TAKES_TURNS { 0 } else { warp / 4 * Self::CONSUMER_ROWS };
        WarpRows {
            lane,
            batch: tile.batch,
            row: tile.m * Self::BLOCK_M + first + warp % 4 * WARP_ROWS,
            column: Self::first_column(part),
            columns: if Self::HALVES && part.is_half() { C::Half::COLUMNS } else { C::COLUMNS },
            staging: SharedAddress::dynamic().offset(Self::STAGING_AT + warp * Self::STAGING_BYTES),
            staged_boxes: Self::STAGED.0,
            box_row_bytes: Self::STAGED.1,
            has_registers: Self::UNROLLS,
        }
    }

    /// The first column of this block's part of the output.
    #[inline(always)]
    fn first_column(part: TilePart) -> u32 {
        let first = part.tile.n * Self::BLOCK_N;
        if Self::HALVES && part.extent == Extent::Half {
            first + ptx::cluster_ctarank() * C::Half::COLUMNS
        } else {
            first
        }
    }

    /// The layouts that the tile's kernels for type `T` serve, of those asked for.
    #[inline(always)]
    fn layouts<T: Wgmma<C>>(asked: Layouts) -> Layouts {
        if Self::TRANSPOSES && T::TRANSPOSES { asked } else { asked.without_mn() }
    }

    /// The index of this thread's warpgroup; 0 is the producer's.
    #[inline(always)]
    fn warpgroup() -> u32 {
        thread::thread_idx_x() / WARPGROUP
    }
}

impl<C: Accumulators, const BLOCKS: usize, S: Schedule, const STAGES: u32, const CLUSTER: u32> PersistentTile
    for WgmmaTile<C, BLOCKS, S, STAGES, CLUSTER>
{
    const BLOCK_M: u32 = Self::CONSUMER_ROWS * S::CONSUMERS_OF_TILE;
    const BLOCK_N: u32 = C::COLUMNS;
    const CLUSTER_M: u32 = {
        assert!(CLUSTER.is_multiple_of(S::CLUSTER_N), "whole columns of blocks");
        CLUSTER / S::CLUSTER_N
    };
    const CLUSTER_N: u32 = S::CLUSTER_N;
    const THREADS: u32 = (1 + S::CONSUMERS) * WARPGROUP;
    const MIN_BLOCKS: u32 = 1;
    const SHARED_BYTES: u32 = Self::TURNS_AT + if Self::TAKES_TURNS { 2 * Barrier::BYTES } else { 0 };
    const ROW_BYTES: u32 = ROW_BYTES;
    const PRODUCT_BYTES: u32 = STEP_BYTES;
    const STORED_ROW_BYTES: u32 = Self::STAGED.1;
    const A_BOX_ROWS: u32 = share(Self::BLOCK_M, Self::CLUSTER_N);
    const B_BOX_ROWS: u32 = share(Self::BLOCK_N, Self::CLUSTER_M);

    // Main loops for these layouts would take registers that wide tiles lack.
    const TRANSPOSES: bool = Self::UNROLLS
        && Self::A_BOX_ROWS.is_multiple_of(BLOCK_ROWS)
        && Self::B_BOX_ROWS.is_multiple_of(BLOCK_ROWS);

    // Tiles of two warpgroups serve what others do not.
    const STORES_ROWS: bool = !Self::IS_WIDE
        && S::CONSUMERS == 2
        // It goes along strips of so many columns.
        && C::COLUMNS.is_multiple_of(STRIP_COLUMNS)
        // What is staged for it takes two boxes.
        && Self::STAGED.0 == STAGED_BOXES;

    const HALVES: bool = {
        let halves = !Self::TAKES_TURNS
            && BLOCKS == 1
            && CLUSTER == 2
            && S::CLUSTER_N == 1
            && C::Half::COLUMNS < C::COLUMNS;
        assert!(!halves || Self::B_BOX_ROWS == C::Half::COLUMNS, "a box is half the rows of B");
        halves
    };

    // They pass in whole, and fragments of a box at a time take registers.
    const PASSES_BOXES: bool = Self::UNROLLS
        && Self::STAGED.0 == STAGED_BOXES
        && Self::STAGED.1 == BOX_ROW_BYTES
        && C::COLUMNS.is_multiple_of(STRIP_COLUMNS);

    const LANES_STORE: bool = Self::IS_SMALL;

    // Tiles of 64 rows, of which all are computed at a time, are short of the level-2 cache, and what clusters that start one after the
    // other have in common follows from the order: measured with 1, 2, 4 and 8, for which larger tiles are best.
    const RASTER_GROUP: u32 = match (Self::BLOCK_M == BLOCK_ROWS, CLUSTER > 1) {
        (true, true) => 2,
        (true, false) => 4,
        (false, _) => layout::RASTER_GROUP,
    };

    // The level-2 cache answers several multiprocessors that ask for the same at about the same time with one read, but for what the blocks of a
    // cluster copy to each other. While all blocks are at the same steps, the order decides which of them ask for the same: measured in bf16 on an
    // H100 with 2, 4 and 8, at 1024x4096x1024 for tiles of 64 x 128 and at 2048x4096x1024 for 128 x 128 in turns.
    const ONLY_RASTER_GROUP: u32 = if CLUSTER > 1 { Self::RASTER_GROUP } else { 4 };

    // Early blocks lie on whichever multiprocessors are free. The blocks of a cluster, which read the same, stay together; of others fewer ask for
    // the same at the same time, which costs more with every step, while an early start always saves as much. For 64 x 128 in bf16 on an H100 an early
    // start was the faster one at 1024x1024x1024, 16 steps, and the slower one at 1024x1536x1024, 24. Larger tiles without clusters are not launched early.
    const EARLY_STEPS: u32 = match (CLUSTER > 1, Self::IS_SMALL) {
        (true, _) => u32::MAX,
        (false, true) => 18,
        (false, false) => 0,
    };

    // Of several tiles, too, early blocks are not where the order of the tiles has them. On an H100 in bf16 and f16, 128 x 128 in turns was 12 %
    // sooner done at 65536x64x64, one step, and 8 to 22 % later at 16384x1024x1024 and 200x1024x32768, 16 steps; 128 x 192 in turns, in clusters,
    // 2 % later at 8192x4096x4096; 64 x 128 4 to 5 % sooner at 65536x256x128 and 64x256x65536, 4 steps. 128 x 256 in clusters was 1 to 3 % sooner, as
    // were its kernels for TF32, or as soon, and so were the other tiles in clusters without turns, and those of FP8.
    const EARLY_STEPS_OF_SEVERAL: u32 = match (CLUSTER > 1, Self::TAKES_TURNS) {
        (true, false) => u32::MAX,
        (false, false) => 4,
        (_, true) => 1,
    };

    const UNROLLS: bool = Self::STORES_ROWS || Self::IS_SMALL;

    type Fragment = C;
    type Accumulators = [C; BLOCKS];
    type Producer = pipeline::Producer<STAGES, CLUSTER>;
    type Consumer = Consumer<STAGES, CLUSTER>;

    #[inline(always)]
    unsafe fn start() {
        // SAFETY: all threads of the cluster are here; one makes the barriers, and the others wait for it.
        unsafe {
            if thread::thread_idx_x() == 0 {
                if Self::TAKES_TURNS {
                    Self::turn_of(0).init(4);
                    Self::turn_of(1).init(4);
                }
                Self::pipeline().init(4 * S::CONSUMERS_OF_TILE);
            }
            if CLUSTER > 1 {
                // Nothing has been written but barriers.
                ptx::barrier_cluster_arrive_relaxed();
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
        // 24 · 128 + 240 · 256, 40 · 128 + 232 · 256 and 32 · 128 + 160 · 384 are within the 64 Ki registers of a multiprocessor.
        if Self::HANDS_OVER_REGISTERS {
            // SAFETY: the whole warpgroup is here.
            unsafe {
                if S::CONSUMERS > 2 {
                    ptx::setmaxnreg_dec::<32>();
                } else if Self::IS_WIDE {
                    ptx::setmaxnreg_dec::<24>();
                } else {
                    ptx::setmaxnreg_dec::<40>();
                }
            }
        }
        if thread::thread_idx_x() == 0 { Some(Self::pipeline().producer()) } else { None }
    }

    #[inline(always)]
    unsafe fn consumer() -> Self::Consumer {
        if Self::HANDS_OVER_REGISTERS {
            // SAFETY: the whole warpgroup is here, and the producer's gives back as many registers.
            unsafe {
                if S::CONSUMERS > 2 {
                    ptx::setmaxnreg_inc::<160>();
                } else if Self::IS_WIDE {
                    ptx::setmaxnreg_inc::<240>();
                } else {
                    ptx::setmaxnreg_inc::<232>();
                }
            }
        }
        let index = Self::warpgroup() - 1;
        // A new barrier is past the phase before its first, which has parity 1: the first turn is consumer 0's.
        Consumer { ring: Self::pipeline().consumer(), index, turn: 1 - index, skips: index > 0 }
    }

    #[inline(always)]
    fn next_tile(consumer: &mut Self::Consumer, tiles: &mut PersistentTiles, steps: u32) -> Option<TilePart> {
        if Self::TAKES_TURNS {
            if consumer.skips {
                tiles.skip_tile();
                consumer.ring.skip(steps);
            }
            consumer.skips = true;
        }
        if Self::HALVES {
            // SAFETY: all lanes of the consumer's warps are here, at the same tile.
            unsafe { tiles.agree() };
        }
        Self::next_part(tiles)
    }

    #[inline(always)]
    unsafe fn load<T: Wgmma<C>>(
        producer: &mut Self::Producer,
        a: &TensorMap,
        b: &TensorMap,
        layouts: Layouts,
        steps: u32,
        part: TilePart,
    ) {
        let layouts = Self::layouts::<T>(layouts);
        let elements = ROW_BYTES / T::BYTES;
        // SAFETY: the caller's promise.
        unsafe {
            if Self::HALVES && part.is_half() {
                Self::load_half(producer, a, b, layouts, elements, steps, part);
            } else {
                Self::load_rows(producer, a, b, layouts, elements, steps, part.tile);
            }
        }
    }

    #[inline(always)]
    unsafe fn prefetch<T: Wgmma<C>>(
        a: &TensorMap,
        b: &TensorMap,
        layouts: Layouts,
        steps: u32,
        tiles: &mut PersistentTiles,
    ) {
        let (layouts, elements) = (Self::layouts::<T>(layouts), ROW_BYTES / T::BYTES);
        // SAFETY: the caller's promise.
        unsafe { Self::prefetch_first(a, b, layouts, elements, steps, tiles) }
    }

    #[inline(always)]
    unsafe fn multiply<T: Wgmma<C>>(
        consumer: &mut Self::Consumer,
        layouts: Layouts,
        products: u32,
    ) -> [C; BLOCKS] {
        // SAFETY: the caller's promise; the barrier is made, and each phase of it is waited for.
        unsafe {
            if Self::TAKES_TURNS {
                Self::turn_of(consumer.index).wait(consumer.turn);
                consumer.turn ^= 1;
            }
            Self::multiply_layouts::<C, T>(consumer, layouts, products)
        }
    }

    #[inline(always)]
    unsafe fn multiply_half<T: Wgmma<HalfFragment<Self>>>(
        consumer: &mut Self::Consumer,
        layouts: Layouts,
        products: u32,
    ) -> [C; BLOCKS] {
        // SAFETY: the caller's promise.
        let halves = unsafe { Self::multiply_layouts::<C::Half, T>(consumer, layouts, products) };
        // SAFETY: all-zero bits are numbers.
        let mut accumulators: [C; BLOCKS] = unsafe { core::mem::zeroed() };
        for (accumulators, half) in accumulators.iter_mut().zip(&halves) {
            *accumulators = C::from_half(half);
        }
        accumulators
    }

    #[inline(always)]
    unsafe fn columns<E: Epilogue>(epilogue: &E, part: TilePart) -> ColumnCache<E::Column> {
        // SAFETY: the caller's promise.
        unsafe { ColumnCache::load(epilogue, Self::first_column(part), C::COLUMNS) }
    }

    #[inline(always)]
    unsafe fn store_boxes<O: OutputElement, E: Epilogue, const UNROLLED: bool>(
        accumulators: &[C; BLOCKS],
        epilogue: &E,
        columns: &ColumnCache<E::Column>,
        output: &BoxOutput<O>,
        part: TilePart,
    ) {
        // SAFETY: the caller's promise; each warp has its rows and its staging buffer.
        unsafe {
            let at = Self::own_rows(part);
            fragments::store_boxes::<C, O, E, BLOCKS, UNROLLED>(accumulators, epilogue, columns, output, at);
        }
    }

    #[inline(always)]
    unsafe fn fetch_boxes<O: OutputElement, E: Epilogue>(epilogue: &E, part: TilePart) {
        // SAFETY: the caller's promise; each warp has its rows and its staging buffer.
        unsafe { fragments::fetch_boxes::<C, O, E, BLOCKS>(epilogue, Self::own_rows(part)) }
    }

    #[inline(always)]
    fn prefetch_rows<O: Element, E: Epilogue>(epilogue: &E, part: TilePart) {
        if Self::STORES_ROWS {
            fragments::prefetch_rows::<C, O, E, BLOCKS>(epilogue, Self::own_rows(part));
        }
    }

    #[inline(always)]
    unsafe fn store_rows<O: Element, E: Epilogue>(
        accumulators: &[C; BLOCKS],
        epilogue: &E,
        output: &Output<O>,
        part: TilePart,
    ) {
        // SAFETY: the caller's promise; each warp has its rows and its staging buffer.
        unsafe {
            let at = Self::own_rows(part);
            fragments::store_rows::<C, O, E, BLOCKS>(accumulators, epilogue, output, at);
        }
    }

    #[inline(always)]
    unsafe fn finish(producer: Self::Producer) {
        if CLUSTER > 1 {
            // SAFETY: the caller's promise.
            unsafe { producer.drain() };
        }
    }

    #[inline(always)]
    unsafe fn finish_stores() {
        // SAFETY: the caller's promise.
        unsafe { fragments::wait_for_stores() };
    }
}
