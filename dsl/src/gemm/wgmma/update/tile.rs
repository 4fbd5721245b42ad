//! The tile of a product that an update is added to: [`WgmmaTile`](crate::gemm::wgmma::WgmmaTile)'s arrangement, with room for the rows
//! of Vᵀ in each stage, for the codes, and for the rows of U.

mod parts;
mod places;

use core::marker::PhantomData;

use super::{CHUNK, Exchange, PART, U_BOX_COLUMNS, UpdateTile};
use crate::barrier::Barrier;
use crate::epilogue::Epilogue;
use crate::float::{Element, HalfElement};
use crate::gemm::fragments;
use crate::gemm::wgmma::{
    BLOCK_ROWS, Consumer, ROW_BYTES, STEP_BYTES, STEPS, Schedule, WARP_ROWS, WARPGROUP,
};
use crate::gemm::{BoxOutput, ColumnCache, OutputElement, PersistentTiles};
use crate::launch::TensorMap;
use crate::layout::{TileIndex, accumulator_coord};
use crate::pipeline::{self, AsyncProxy, FullStage};
use crate::ptx::{self, Accumulators, MatrixDescriptor, WgmmaUpdate};
use crate::shared::SharedAddress;
use crate::thread;
use crate::tile::Output;
use crate::warp;

/// Bytes of a box of U: a panel of 64 columns and 16 ranks.
const PANEL_BYTES: u32 = U_BOX_COLUMNS * PART * 2;
/// Parts of U that a consumer has in shared memory at a time.
const RESIDENT_PARTS: u32 = 4;

/// A consumer's sums: of its outputs, and of a chunk of H.
pub struct UpdateAccumulators<C, const BLOCKS: usize> {
    outputs: [C; BLOCKS],
    chunk: [[f32; 4]; BLOCKS],
}

/// What a consumer knows.
pub struct UpdateConsumer<const STAGES: u32, const CLUSTER: u32> {
    tiles: Consumer<STAGES, CLUSTER>,
    /// The parity of the phase in which the next rows of U arrive.
    parity: u32,
}

/// As [`WgmmaTile`](crate::gemm::wgmma::WgmmaTile), for products that an update is added to.
///
/// With `IS_OWN`, for updates of one chunk, which each tile computes for itself, and outputs that the copy engine stores: what else a
/// kernel may do takes instructions that warps come past for every tile.
pub struct WgmmaUpdateTile<
    C,
    const BLOCKS: usize,
    S,
    const STAGES: u32,
    const CLUSTER: u32,
    const IS_OWN: bool,
>(PhantomData<(C, S)>);

impl<
    C: Accumulators,
    const BLOCKS: usize,
    S: Schedule,
    const STAGES: u32,
    const CLUSTER: u32,
    const IS_OWN: bool,
> WgmmaUpdateTile<C, BLOCKS, S, STAGES, CLUSTER, IS_OWN>
{
    /// Issues the products of stage `stage`, with its rows of Vᵀ if `CHUNKED`; those of a tile's first stage begin from zero.
    ///
    /// # Safety
    ///
    /// As [`UpdateTile::multiply`].
    #[inline(always)]
    unsafe fn multiply_stage<T: WgmmaUpdate<C>, const CHUNKED: bool>(
        index: u32,
        accumulators: &mut UpdateAccumulators<C, BLOCKS>,
        stage: &FullStage<AsyncProxy>,
        step: u32,
    ) {
        let first_row = if Self::TAKES_TURNS { 0 } else { index * Self::CONSUMER_ROWS };
        let rows = stage.operand(Self::stage);
        let a = rows.offset(first_row * ROW_BYTES).rows_of_128_bytes();
        let b = rows.offset(Self::A_BYTES).rows_of_128_bytes();
        let UpdateAccumulators { outputs, chunk } = accumulators;
        // SAFETY: the caller's promise.
        unsafe {
            ptx::wgmma_fence();
            for part in 0..STEPS {
                for (block, (outputs, chunk)) in outputs.iter_mut().zip(chunk.iter_mut()).enumerate() {
                    let a = a.advance(block as u32 * BLOCK_ROWS * ROW_BYTES + part * STEP_BYTES);
                    let b = b.advance(part * STEP_BYTES);
                    let keep = if part > 0 { 1 } else { step };
                    if CHUNKED {
                        T::wgmma_wider_if(outputs, chunk, a, b, keep);
                    } else {
                        T::wgmma_if::<false, false>(outputs, a, b, keep);
                    }
                }
            }
            ptx::wgmma_commit_group();
        }
    }

    /// The products of one tile.
    ///
    /// # Safety
    ///
    /// As [`UpdateTile::multiply`].
    #[inline(always)]
    unsafe fn multiply_as<T: WgmmaUpdate<C>, const CHUNKED: bool>(
        consumer: &mut Consumer<STAGES, CLUSTER>,
        steps: u32,
    ) -> UpdateAccumulators<C, BLOCKS> {
        // SAFETY: all-zero bits are numbers. (As for `Accumulators::zero`.)
        let mut accumulators: UpdateAccumulators<C, BLOCKS> = unsafe { core::mem::zeroed() };
        // Setting them to zero would take the tensor cores' time: it is this consumer's turn.
        accumulators.outputs.iter_mut().for_each(|outputs| *outputs = C::arbitrary());
        // SAFETY: all warps of the warpgroup run this alike; each stage is full, and it is given back when the products
        // that read it have completed.
        unsafe {
            let mut previous = FullStage::none();
            let mut step = 0;
            loop {
                let stage = consumer.ring.wait();
                Self::multiply_stage::<T, CHUNKED>(consumer.index, &mut accumulators, &stage, step);
                ptx::wgmma_wait_group::<1>();
                if step > 0 {
                    consumer.ring.release(previous);
                }
                previous = stage;
                // Opaque: copies of the loop for its first steps, or for several at a time, are worth nothing.
                step = ptx::opaque(step + 1);
                if step >= steps {
                    break;
                }
            }
            if Self::TAKES_TURNS && warp::lane_id() == 0 {
                Self::turn_of(1 - consumer.index).arrive();
            }
            ptx::wgmma_wait_group::<0>();
            accumulators.outputs.iter_mut().for_each(Accumulators::hold);
            accumulators.chunk.iter_mut().for_each(ptx::hold_sums);
            consumer.ring.release(previous);
        }
        accumulators
    }
}

impl<
    C: Accumulators,
    const BLOCKS: usize,
    S: Schedule,
    const STAGES: u32,
    const CLUSTER: u32,
    const IS_OWN: bool,
> UpdateTile for WgmmaUpdateTile<C, BLOCKS, S, STAGES, CLUSTER, IS_OWN>
{
    const BLOCK_M: u32 = S::CONSUMERS_OF_TILE * Self::CONSUMER_ROWS;
    const BLOCK_N: u32 = C::COLUMNS;
    const CLUSTER_M: u32 = CLUSTER;
    const THREADS: u32 = (1 + S::CONSUMERS) * WARPGROUP;
    const SHARED_BYTES: u32 = Self::TURNS_AT + if Self::TAKES_TURNS { 2 * Barrier::BYTES } else { 0 };
    const ROW_BYTES: u32 = ROW_BYTES;
    const A_BOX_ROWS: u32 = Self::BLOCK_M;
    const B_BOX_ROWS: u32 = {
        assert!((Self::BLOCK_N / CLUSTER).is_multiple_of(8), "a share of B is whole units of the swizzle");
        Self::BLOCK_N / CLUSTER
    };
    // One tile serves what others do not.
    const STORES_ROWS: bool = !Self::IS_WIDE && Self::TAKES_TURNS && !IS_OWN;
    const UNROLLS: bool = !Self::IS_WIDE;
    const IS_OWN: bool = IS_OWN;

    type Fragment = C;
    type Accumulators = UpdateAccumulators<C, BLOCKS>;
    type Producer = pipeline::Producer<STAGES, CLUSTER>;
    type Consumer = UpdateConsumer<STAGES, CLUSTER>;
    type Chunk = [[u32; 2]; BLOCKS];

    #[inline(always)]
    unsafe fn start() {
        // SAFETY: all threads of the cluster are here; one makes the barriers, and the others wait for it.
        unsafe {
            if thread::thread_idx_x() == 0 {
                if Self::TAKES_TURNS {
                    Self::turn_of(0).init(4);
                    Self::turn_of(1).init(4);
                }
                for index in 0..S::CONSUMERS {
                    Self::arrival_of(index).init(1);
                }
                Self::pipeline().init(4 * S::CONSUMERS_OF_TILE);
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
        thread::thread_idx_x() / WARPGROUP == 0
    }

    #[inline(always)]
    unsafe fn producer() -> Option<Self::Producer> {
        // 24 · 128 + 240 · 256 and 40 · 128 + 232 · 256 are within the 64 Ki registers of a multiprocessor.
        if Self::HANDS_OVER_REGISTERS {
            // SAFETY: the whole warpgroup is here.
            unsafe {
                if Self::IS_WIDE {
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
                if Self::IS_WIDE {
                    ptx::setmaxnreg_inc::<240>();
                } else {
                    ptx::setmaxnreg_inc::<232>();
                }
            }
        }
        let index = thread::thread_idx_x() / WARPGROUP - 1;
        // A new barrier is past the phase before its first, which has parity 1: the first turn is consumer 0's.
        let tiles = Consumer { ring: Self::pipeline().consumer(), index, turn: 1 - index, skips: index > 0 };
        UpdateConsumer { tiles, parity: 0 }
    }

    #[inline(always)]
    fn next_tile(
        consumer: &mut Self::Consumer,
        tiles: &mut PersistentTiles,
        steps: u32,
    ) -> Option<TileIndex> {
        let consumer = &mut consumer.tiles;
        if Self::TAKES_TURNS {
            if consumer.skips {
                tiles.skip_tile();
                consumer.ring.skip(steps);
            }
            consumer.skips = true;
        }
        tiles.next_tile()
    }

    #[inline(always)]
    unsafe fn load<T: WgmmaUpdate<C>>(
        producer: &mut Self::Producer,
        a: &TensorMap,
        b: &TensorMap,
        vt: &TensorMap,
        steps: u32,
        tile: TileIndex,
        chunk: Option<u32>,
    ) {
        let bytes = Self::STAGE_BYTES + if chunk.is_some() { Self::V_BYTES } else { 0 };
        let row_a = (tile.m * Self::BLOCK_M) as i32;
        let row_b = tile.n * Self::BLOCK_N;
        for step in 0..steps {
            let k = (step * (ROW_BYTES / T::BYTES)) as i32;
            // SAFETY: a stage's bytes come from the boxes of A, of Vᵀ and of B, in a cluster the shares of all blocks, which are
            // all at the same step; nothing touches the stage before it is full. The rest is the caller's promise.
            unsafe {
                let stage = producer.acquire(bytes);
                let (to_a, full) = (Self::stage(stage.index), stage.full.address());
                ptx::tma_load_3d(to_a.get(), a.address(), [k, row_a, 0], full);
                let to_b = to_a.offset(Self::A_BYTES);
                if CLUSTER > 1 {
                    let share = ptx::cluster_ctarank() * Self::B_BOX_ROWS;
                    let (to_b, blocks) = (to_b.offset(share * ROW_BYTES), ((1u32 << CLUSTER) - 1) as u16);
                    let at = [k, (row_b + share) as i32, 0];
                    ptx::tma_load_3d_multicast(to_b.get(), b.address(), at, full, blocks);
                } else {
                    ptx::tma_load_3d(to_b.get(), b.address(), [k, row_b as i32, 0], full);
                }
                if let Some(chunk) = chunk {
                    let to_v = to_a.offset(Self::STAGE_BYTES);
                    ptx::tma_load_3d(to_v.get(), vt.address(), [k, (chunk * CHUNK) as i32, 0], full);
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn fetch(consumer: &Self::Consumer, u: &TensorMap, exchange: &Exchange, tile: TileIndex) {
        let index = consumer.tiles.index;
        if IS_OWN {
            // SAFETY: the caller's promise; no thread comes here before its products with the rows that are there have completed.
            unsafe {
                Self::sync_consumer(index);
                if thread::thread_idx_x().is_multiple_of(WARPGROUP) {
                    let arrival = Self::arrival_of(index);
                    arrival.arrive_and_expect(Self::PART_BYTES);
                    Self::copy_part(arrival, u, 0, Self::area(index).offset(Self::ONLY_PART_AT), tile);
                }
            }
            return;
        }
        // SAFETY: the caller's promise; the stores of the tile before have been read.
        unsafe {
            fragments::wait_for_stores();
            Self::copy_parts(index, u, 0, exchange.parts(), tile);
        }
    }

    #[inline(always)]
    fn chunk_column() -> u32 {
        accumulator_coord(warp::lane_id(), 0).column
    }

    #[inline(always)]
    unsafe fn put_codes(
        consumer: &Self::Consumer,
        tile: TileIndex,
        scaling: [f32; 2],
        put: impl Fn(u32, SharedAddress),
    ) {
        let at = Self::own_rows(tile);
        let first = at.row + accumulator_coord(at.lane, 0).row;
        let index = consumer.tiles.index;
        // SAFETY: a place that only this thread uses.
        unsafe { ptx::st_shared_v2_f32(Self::scaling(index).get(), scaling) };
        for row in 0..BLOCKS as u32 * 2 {
            let of_tile = first + row / 2 * BLOCK_ROWS + row % 2 * (WARP_ROWS / 2);
            put(of_tile, Self::codes(index, row));
        }
    }

    #[inline(always)]
    unsafe fn multiply<T: WgmmaUpdate<C>>(
        consumer: &mut Self::Consumer,
        steps: u32,
        has_chunk: bool,
    ) -> Self::Accumulators {
        let consumer = &mut consumer.tiles;
        // SAFETY: the caller's promise; the barrier is made, and each phase of it is waited for.
        unsafe {
            if Self::TAKES_TURNS {
                Self::turn_of(consumer.index).wait(consumer.turn);
                consumer.turn ^= 1;
            }
            if has_chunk {
                Self::multiply_as::<T, true>(consumer, steps)
            } else {
                Self::multiply_as::<T, false>(consumer, steps)
            }
        }
    }

    #[inline(always)]
    unsafe fn scale<T: HalfElement>(
        consumer: &Self::Consumer,
        accumulators: &Self::Accumulators,
        inside: [bool; 2],
    ) -> Self::Chunk {
        let index = consumer.tiles.index;
        ptx::cp_async_wait_all();
        // SAFETY: this thread has put it there.
        let scaling = unsafe { ptx::ld_shared_v2_f32(Self::scaling(index).get()) };
        let mut chunk = [[0; 2]; BLOCKS];
        for (block, (packed, sums)) in chunk.iter_mut().zip(&accumulators.chunk).enumerate() {
            for (half, packed) in packed.iter_mut().enumerate() {
                let from = Self::codes(index, (block * 2 + half) as u32);
                // SAFETY: this thread has put them there, or had them copied, and has waited.
                let codes = T::unpack(unsafe { ptx::ld_shared_b32(from.get()) });
                let scaled = |i: usize| {
                    // Not a multiplication by a code of zero: a sum of what is not there may be infinite times zero.
                    if inside[i] { sums[half * 2 + i] * (scaling[i] * codes[i]) } else { 0.0 }
                };
                *packed = T::pack([scaled(0), scaled(1)]);
            }
        }
        chunk
    }

    #[inline(always)]
    fn no_chunk() -> Self::Chunk {
        [[0; 2]; BLOCKS]
    }

    #[inline(always)]
    unsafe fn publish(
        _: &Self::Consumer,
        exchange: &Exchange,
        tile: TileIndex,
        chunk: u32,
        own: Self::Chunk,
    ) {
        let at = Self::own_rows(tile);
        let strip = at.row / WARP_ROWS;
        // Of an odd number of chunks, the last has no other beside it.
        let is_single = chunk.is_multiple_of(2) && chunk + 1 == exchange.chunks;
        // SAFETY: the caller's promise: nobody else writes these registers' places, and those who read them see the counter first.
        unsafe {
            for (block, registers) in own.iter().enumerate() {
                let strip = strip + block as u32 * (BLOCK_ROWS / WARP_ROWS);
                let record = exchange.record(strip, chunk / 2, at.lane);
                ptx::st_global_v2_b32(record.offset(2 * (chunk % 2) as u64).address(), *registers);
                if is_single {
                    ptx::st_global_v2_b32(record.offset(2).address(), [0; 2]);
                }
            }
            warp::sync_warp();
            if at.lane == 0 {
                ptx::red_release_gpu_add_u32(exchange.counters.offset(strip as u64).address(), 1);
            }
        }
    }

    #[inline(always)]
    unsafe fn update<T: WgmmaUpdate<C>>(
        consumer: &mut Self::Consumer,
        accumulators: &mut Self::Accumulators,
        u: &TensorMap,
        exchange: &Exchange,
        tile: TileIndex,
        own: Self::Chunk,
    ) {
        if IS_OWN {
            // SAFETY: the caller's promise.
            unsafe { Self::update_own::<T>(consumer, accumulators, own) };
            return;
        }
        let (index, parts) = (consumer.tiles.index, exchange.parts());
        let at = Self::own_rows(tile);
        let strip = at.row / WARP_ROWS;
        // SAFETY: the caller's promise. Records are read when the counter says that they are written; U is read when it has arrived,
        // and its place is used again when all warps' products with it have completed.
        unsafe {
            if exchange.is_own == 0 {
                let counter = exchange.counters.offset(strip as u64).address();
                while ptx::ld_acquire_gpu_u32(counter) < exchange.chunks {}
                warp::sync_warp();
            }
            let mut part = 0;
            // This part of H', and where there are registers for them those after it, which are then waited for together.
            let mut ahead = [[[0; 4]; BLOCKS]; RESIDENT_PARTS as usize];
            while part < parts {
                let resident = part % RESIDENT_PARTS;
                if resident == 0 {
                    if part > 0 {
                        Self::copy_parts(index, u, part, parts, tile);
                    }
                    Self::arrival_of(index).wait(consumer.parity);
                    consumer.parity ^= 1;
                }
                if exchange.is_own != 0 {
                    for (a, own) in ahead[0].iter_mut().zip(&own) {
                        *a = [own[0], own[1], 0, 0];
                    }
                } else if Self::IS_WIDE || resident == 0 {
                    for (i, registers) in ahead.iter_mut().enumerate() {
                        let part = part + i as u32;
                        if (i > 0 && Self::IS_WIDE) || part >= parts {
                            continue;
                        }
                        for (block, a) in registers.iter_mut().enumerate() {
                            let strip = strip + block as u32 * (BLOCK_ROWS / WARP_ROWS);
                            *a = ptx::ld_global_v4_b32(exchange.record(strip, part, at.lane).address());
                        }
                    }
                }
                if !Self::IS_WIDE && resident == 0 && parts - part >= RESIDENT_PARTS {
                    // One group: after each wait the tensor cores would turn to the other consumer's products and back.
                    for registers in &mut ahead {
                        registers.iter_mut().for_each(ptx::hold_registers);
                    }
                    ptx::wgmma_fence();
                    for (i, registers) in ahead.iter().enumerate() {
                        let b = Self::area(index).offset(i as u32 * Self::PART_BYTES);
                        let b = MatrixDescriptor::panels_of_128_bytes(b.get(), PANEL_BYTES);
                        for (outputs, a) in accumulators.outputs.iter_mut().zip(registers) {
                            T::wgmma_registers(outputs, a, b);
                        }
                    }
                    ptx::wgmma_commit_group();
                    ptx::wgmma_wait_group::<0>();
                    accumulators.outputs.iter_mut().for_each(Accumulators::hold);
                    part += RESIDENT_PARTS;
                    continue;
                }
                ahead[0].iter_mut().for_each(ptx::hold_registers);
                let b = Self::area(index).offset(resident * Self::PART_BYTES);
                let b = MatrixDescriptor::panels_of_128_bytes(b.get(), PANEL_BYTES);
                ptx::wgmma_fence();
                for (outputs, a) in accumulators.outputs.iter_mut().zip(&ahead[0]) {
                    T::wgmma_registers(outputs, a, b);
                }
                ptx::wgmma_commit_group();
                ptx::wgmma_wait_group::<0>();
                accumulators.outputs.iter_mut().for_each(Accumulators::hold);
                if !Self::IS_WIDE {
                    for i in 1..ahead.len() {
                        let next = ahead[i];
                        for (to, from) in ahead[i - 1].iter_mut().zip(&next) {
                            *to = *from;
                        }
                    }
                }
                part += 1;
            }
            Self::sync_consumer(index);
        }
    }

    #[inline(always)]
    unsafe fn columns<E: Epilogue>(epilogue: &E, tile: TileIndex) -> ColumnCache<E::Column> {
        // SAFETY: the caller's promise.
        unsafe { ColumnCache::load(epilogue, tile.n * Self::BLOCK_N, Self::BLOCK_N) }
    }

    #[inline(always)]
    unsafe fn store_boxes<O: OutputElement, E: Epilogue, const UNROLLED: bool>(
        accumulators: &Self::Accumulators,
        epilogue: &E,
        columns: &ColumnCache<E::Column>,
        output: &BoxOutput<O>,
        tile: TileIndex,
    ) {
        // SAFETY: the caller's promise; each warp has its rows and its staging buffer, from which nothing is being stored.
        unsafe {
            let (at, outputs) = (Self::own_rows(tile), &accumulators.outputs);
            fragments::store_boxes::<C, O, E, BLOCKS, UNROLLED>(outputs, epilogue, columns, output, at);
        }
    }

    #[inline(always)]
    unsafe fn store_rows<O: Element, E: Epilogue>(
        accumulators: &Self::Accumulators,
        epilogue: &E,
        output: &Output<O>,
        tile: TileIndex,
    ) {
        // SAFETY: the caller's promise; each warp has its rows and its staging buffer.
        unsafe {
            let at = Self::own_rows(tile);
            fragments::store_rows::<C, O, E, BLOCKS>(&accumulators.outputs, epilogue, output, at);
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
