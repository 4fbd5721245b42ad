//! The tile whose sums are transposed: rows of B are the rows of its products.

mod update;

pub use update::{TransposedUpdate, URegisters};

use core::marker::PhantomData;

use super::{COLUMNS, MOST_GROUPS, Share, SplitKTile};
use crate::epilogue::Epilogue;
use crate::float::Element;
use crate::gemm::Layouts;
use crate::grid;
use crate::launch::TensorMap;
use crate::layout::{Coord, TileIndex, accumulator_coord, transposed_fragment_word};
use crate::pipeline::{AsyncProxy, FullStage, Pipeline, Producer};
use crate::ptx::{self, Accumulators, Wgmma};
use crate::shared::SharedAddress;
use crate::thread;
use crate::tile::Output;
use crate::warp;

/// Rows of B that a warpgroup multiplies, 16 by each warp.
const WARPGROUP_ROWS: u32 = 64;
/// Bytes of each row in a box: the width of the widest swizzle.
const ROW_BYTES: u32 = 128;
/// Bytes of each row that one product takes.
const STEP_BYTES: u32 = 32;
/// Products of a box.
const STEPS: u32 = ROW_BYTES / STEP_BYTES;
/// Bytes of a panel of 64 rows and 64 indices along K, as many as of 64 rows of a box.
const PANEL_BYTES: u32 = WARPGROUP_ROWS * ROW_BYTES;
/// Bytes from one product's part of a panel to the next: 16 indices along K.
const PANEL_STEP_BYTES: u32 = PANEL_BYTES / STEPS;
/// Columns of the output that a warp has accumulators of.
const WARP_COLUMNS: u32 = 16;
/// Rows of the output in an accumulator fragment.
const FRAGMENT_ROWS: u32 = 8;
/// Bytes of a warp's accumulators of a fragment.
const FRAGMENT_BYTES: u32 = FRAGMENT_ROWS * WARP_COLUMNS * 4;
/// Bytes of a lane's.
const LANE_BYTES: u32 = FRAGMENT_BYTES / warp::SIZE;
/// The barrier at which the rings are made.
const MADE: u32 = 0;
/// Rows that a lane stores at once where the epilogue is short.
const AT_ONCE: usize = 4;
/// Lanes that store a row of a warp's columns.
const LANES_PER_ROW: u32 = WARP_COLUMNS / COLUMNS as u32;

/// A tile of as many rows as the accumulators `C` have columns, and `CONSUMERS` warpgroups × 64 columns. A step along K is `BOXES` boxes of
/// each operand; the rings have `A_STAGES` and `B_STAGES` of them. `SPLIT` blocks sum a part of K each, and `BLOCKS` blocks fit a
/// multiprocessor.
pub struct TransposedTile<
    C,
    const CONSUMERS: u32,
    const BOXES: u32,
    const A_STAGES: u32,
    const B_STAGES: u32,
    const SPLIT: u32,
    const BLOCKS: u32,
>(PhantomData<C>);

impl<
    C: Accumulators,
    const CONSUMERS: u32,
    const BOXES: u32,
    const A_STAGES: u32,
    const B_STAGES: u32,
    const SPLIT: u32,
    const BLOCKS: u32,
> TransposedTile<C, CONSUMERS, BOXES, A_STAGES, B_STAGES, SPLIT, BLOCKS>
{
    /// Warps that multiply.
    const WARPS: u32 = 4 * CONSUMERS;
    /// Bytes of a box of A.
    const A_BYTES: u32 = C::COLUMNS * ROW_BYTES;
    /// Bytes of a box of B.
    const B_BYTES: u32 = CONSUMERS * WARPGROUP_ROWS * ROW_BYTES;
    /// Accumulator fragments of a warp.
    const FRAGMENTS: u32 = C::COLUMNS / FRAGMENT_ROWS;
    /// Fragments that a block completes: the block of rank `r` has those whose index is `r` more than a multiple of `SPLIT`.
    const OWNED: u32 = Self::FRAGMENTS.div_ceil(SPLIT);
    /// Where the ring of B follows that of A.
    const B_AT: u32 = A_STAGES * BOXES * Self::A_BYTES;
    /// Where the parts that the blocks send each other follow the rings.
    const PARTS_AT: u32 = Self::B_AT + B_STAGES * BOXES * Self::B_BYTES;
    /// Bytes of a block's fragments.
    const OWNED_BYTES: u32 = Self::OWNED * Self::WARPS * FRAGMENT_BYTES;
    /// Where the sums follow them, transposed.
    const SUMS_AT: u32 = {
        assert!(
            Self::OWNED <= AT_ONCE as u32 || Self::OWNED.is_multiple_of(AT_ONCE as u32),
            "whole groups of rows"
        );
        Self::PARTS_AT + if SPLIT > 1 { SPLIT * Self::OWNED_BYTES } else { 0 }
    };
    /// Where the rings' barriers follow these.
    const A_BARRIERS_AT: u32 = Self::SUMS_AT + Self::OWNED_BYTES;
    /// See [`A_BARRIERS_AT`](Self::A_BARRIERS_AT).
    const B_BARRIERS_AT: u32 = {
        assert!(B_STAGES >= A_STAGES, "the ring of B is the deeper one");
        Self::A_BARRIERS_AT + Pipeline::<A_STAGES, 1>::BYTES
    };

    #[inline(always)]
    fn ring_a() -> Pipeline<A_STAGES, 1> {
        Pipeline::at(SharedAddress::dynamic().offset(Self::A_BARRIERS_AT))
    }

    #[inline(always)]
    fn ring_b() -> Pipeline<B_STAGES, 1> {
        Pipeline::at(SharedAddress::dynamic().offset(Self::B_BARRIERS_AT))
    }

    /// Where the boxes of A of a stage are.
    #[inline(always)]
    fn stage_a(index: u32) -> SharedAddress {
        SharedAddress::dynamic().offset(index * BOXES * Self::A_BYTES)
    }

    /// Where the boxes of B of a stage are.
    #[inline(always)]
    fn stage_b(index: u32) -> SharedAddress {
        SharedAddress::dynamic().offset(Self::B_AT + index * BOXES * Self::B_BYTES)
    }

    /// Has `rows` rows from `row` on copied to the next stage of a ring, whose place `place` gives, for step `step` along K; in panels if the
    /// operand is MN-major.
    ///
    /// # Safety
    ///
    /// The ring is made; the boxes of `map` have `rows` rows, or are panels; the rest as [`SplitKTile::load`].
    #[inline(always)]
    unsafe fn copy<T: Element, const STAGES: u32>(
        producer: &mut Producer<STAGES, 1>,
        map: u64,
        is_mn: bool,
        place: impl Fn(u32) -> SharedAddress,
        [row, rows, batch]: [u32; 3],
        step: u32,
    ) {
        let box_bytes = rows * ROW_BYTES;
        // SAFETY: the boxes' bytes are those announced; nothing touches the stage before it is full.
        unsafe {
            let stage = producer.acquire(BOXES * box_bytes);
            for index in 0..BOXES {
                let to = place(stage.index).offset(index * box_bytes).get();
                let k = ((step * BOXES + index) * (ROW_BYTES / T::BYTES)) as i32;
                let (row, batch) = (row as i32, batch as i32);
                if is_mn {
                    for panel in 0..rows / WARPGROUP_ROWS {
                        let at = [row + (panel * WARPGROUP_ROWS) as i32, k, batch];
                        let to = to + panel * PANEL_BYTES;
                        ptx::tma_load_3d(to, map, at, stage.full.address());
                    }
                } else {
                    ptx::tma_load_3d(to, map, [k, row, batch], stage.full.address());
                }
            }
        }
    }

    /// [`load`](SplitKTile::load), of the operands whose maps `at` gives for each step, and the step's number in these.
    ///
    /// # Safety
    ///
    /// As [`SplitKTile::load`].
    #[inline(always)]
    unsafe fn load_from<T: Element>(layouts: Layouts, share: Share, at: impl Fn(u32) -> ([u64; 2], u32)) {
        let (mut producer_a, mut producer_b) = (Self::ring_a().producer(), Self::ring_b().producer());
        let rows_a = [share.tile.m * Self::BLOCK_M, Self::BLOCK_M, layouts.matrix_of_a(share.tile.batch)];
        let rows_b = [share.tile.n * Self::BLOCK_N, Self::BLOCK_N, layouts.matrix_of_b(share.tile.batch)];
        // The copies of B are `ahead` steps ahead of those of A, as many as its ring is deeper: so both wait for the same
        // products.
        let ahead = share.steps.min(ptx::opaque(B_STAGES - A_STAGES));
        // SAFETY: all lanes of the warp are here, and the other warps have come to the barrier, or will, in `start`.
        unsafe { ptx::bar_sync_at(MADE, Self::THREADS) };
        let b_is_mn = Self::TRANSPOSES && layouts.b_is_mn();
        // Opaque: the loops would be unrolled, which is worth nothing.
        let mut index = 0;
        if warp::lane_id() == 0 {
            while index < ahead {
                // SAFETY: the caller's promise.
                unsafe {
                    let ([_, b], step) = at(share.first + index);
                    Self::copy::<T, _>(&mut producer_b, b, b_is_mn, Self::stage_b, rows_b, step);
                }
                index = ptx::opaque(index + 1);
            }
            index = 0;
            while index < share.steps {
                let next = index + ahead;
                // SAFETY: the caller's promise.
                unsafe {
                    if next < share.steps {
                        let ([_, b], step) = at(share.first + next);
                        Self::copy::<T, _>(&mut producer_b, b, b_is_mn, Self::stage_b, rows_b, step);
                    }
                    let ([a, _], step) = at(share.first + index);
                    Self::copy::<T, _>(&mut producer_a, a, false, Self::stage_a, rows_a, step);
                }
                index = ptx::opaque(index + 1);
            }
        }
        if SPLIT > 1 {
            // SAFETY: all lanes of the warp are here, and have arrived in `start`.
            unsafe {
                warp::sync_warp();
                ptx::barrier_cluster_wait();
            }
        }
    }

    /// [`multiply`](SplitKTile::multiply), where B is MN-major or not.
    ///
    /// # Safety
    ///
    /// As [`SplitKTile::multiply`].
    #[inline(always)]
    pub(super) unsafe fn multiply_as<T: Wgmma<C>, const B_MN: bool>(share: Share) -> C {
        let first_row = thread::thread_idx_x() / (4 * warp::SIZE) * WARPGROUP_ROWS;
        let mut consumer_a = Self::ring_a().consumer::<AsyncProxy>();
        let mut consumer_b = Self::ring_b().consumer::<AsyncProxy>();
        let mut accumulators = C::zero();
        accumulators.hold();
        let mut previous: Option<[FullStage<AsyncProxy>; 2]> = None;
        for _ in 0..share.steps {
            // SAFETY: all warps of the warpgroup run this loop alike; the stages are full, and they are given back when the
            // products that read them have completed.
            unsafe {
                let (stage_b, stage_a) = (consumer_b.wait(), consumer_a.wait());
                let b = stage_b.operand(Self::stage_b).offset(first_row * ROW_BYTES);
                let (b, step_of_b) = if B_MN {
                    (b.panels_of_128_bytes(PANEL_BYTES), PANEL_STEP_BYTES)
                } else {
                    (b.rows_of_128_bytes(), STEP_BYTES)
                };
                let a = stage_a.operand(Self::stage_a).rows_of_128_bytes();
                ptx::wgmma_fence();
                for index in 0..BOXES {
                    for step in 0..STEPS {
                        let along_b = index * Self::B_BYTES + step * step_of_b;
                        let along_a = index * Self::A_BYTES + step * STEP_BYTES;
                        T::wgmma::<B_MN, false>(&mut accumulators, b.advance(along_b), a.advance(along_a));
                    }
                }
                ptx::wgmma_commit_group();
                if let Some([previous_a, previous_b]) = previous {
                    ptx::wgmma_wait_group::<1>();
                    consumer_a.release(previous_a);
                    consumer_b.release(previous_b);
                }
                previous = Some([stage_a, stage_b]);
            }
        }
        // SAFETY: as above. The last stages are not given back, as nothing fills them again.
        unsafe { ptx::wgmma_wait_group::<0>() };
        accumulators.hold();
        accumulators
    }

    /// Where this thread's part of the `owned`-th fragment of a block is, as summed by block `source`.
    #[inline(always)]
    fn part(source: u32, owned: u32) -> SharedAddress {
        let slot = (source * Self::OWNED + owned) * (Self::WARPS * warp::SIZE);
        SharedAddress::dynamic().offset(Self::PARTS_AT + (slot + thread::thread_idx_x()) * LANE_BYTES)
    }

    /// Where this warp's part of the sums of a block's `owned`-th fragment is.
    #[inline(always)]
    fn sums(owned: u32) -> SharedAddress {
        let slot = owned * Self::WARPS + warp::warp_id();
        SharedAddress::dynamic().offset(Self::SUMS_AT + slot * FRAGMENT_BYTES)
    }

    /// Where the four columns are that this thread stores of the row that it has of a block's `owned`-th fragment.
    #[inline(always)]
    fn stored(owned: u32) -> SharedAddress {
        let (row, column) = Self::row_and_column();
        Self::sums(owned).offset(4 * transposed_fragment_word(row, column))
    }

    /// The row of a fragment that this thread stores, and its first column among the warp's.
    #[inline(always)]
    fn row_and_column() -> (u32, u32) {
        let lane = warp::lane_id();
        (lane / LANES_PER_ROW, lane % LANES_PER_ROW * COLUMNS as u32)
    }

    /// Where this thread's share of the sums of a block's first fragment is, transposed.
    #[inline(always)]
    fn transposed() -> [u32; 4] {
        let place = |index| {
            let at = accumulator_coord(warp::lane_id(), index);
            Self::sums(0).offset(4 * transposed_fragment_word(at.column, at.row)).get()
        };
        [place(0), place(1), place(2), place(3)]
    }

    /// Writes this thread's share of the sums of a block's `owned`-th fragment; `places` is what [`transposed`](Self::transposed)
    /// returned.
    ///
    /// # Safety
    ///
    /// No other warp touches this warp's part.
    #[inline(always)]
    unsafe fn write_sums(places: &[u32; 4], owned: u32, sums: [f32; 4]) {
        for (place, sum) in places.iter().zip(&sums) {
            // SAFETY: the caller's promise.
            unsafe { ptx::st_shared_f32(place + owned * (Self::WARPS * FRAGMENT_BYTES), *sum) };
        }
    }

    /// Whether a block has an `owned`-th fragment.
    #[inline(always)]
    fn owns(rank: u32, owned: u32) -> bool {
        Self::FRAGMENTS.is_multiple_of(SPLIT) || rank + owned * SPLIT < Self::FRAGMENTS
    }

    /// This block's place among those that share the sum of a tile.
    #[inline(always)]
    fn rank() -> u32 {
        if SPLIT > 1 { ptx::cluster_ctarank() } else { 0 }
    }

    /// Fragments of `tile` that have rows of an output of `rows` rows.
    #[inline(always)]
    fn fragments(rows: u32, tile: TileIndex) -> u32 {
        (rows - tile.m * C::COLUMNS).div_ceil(FRAGMENT_ROWS).min(Self::FRAGMENTS)
    }
}

impl<
    C: Accumulators,
    const CONSUMERS: u32,
    const BOXES: u32,
    const A_STAGES: u32,
    const B_STAGES: u32,
    const SPLIT: u32,
    const BLOCKS: u32,
> SplitKTile for TransposedTile<C, CONSUMERS, BOXES, A_STAGES, B_STAGES, SPLIT, BLOCKS>
{
    const BLOCK_M: u32 = C::COLUMNS;
    const BLOCK_N: u32 = CONSUMERS * WARPGROUP_ROWS;
    const SPLIT: u32 = SPLIT;
    const THREADS: u32 = (Self::WARPS + 1) * warp::SIZE;
    const MIN_BLOCKS: u32 = BLOCKS;
    const SHARED_BYTES: u32 = Self::B_BARRIERS_AT + Pipeline::<B_STAGES, 1>::BYTES;
    const ROW_BYTES: u32 = ROW_BYTES;
    const STEP_BYTES: u32 = BOXES * ROW_BYTES;
    const A_BOX_ROWS: u32 = Self::BLOCK_M;
    const B_BOX_ROWS: u32 = Self::BLOCK_N;
    // A second main loop costs 4 % of a launch of clusters of eight, which are for few results of long sums: measured in bf16 on an H100 at 128x16384x256.
    const TRANSPOSES: bool = SPLIT < 8;

    type Accumulators = C;

    #[inline(always)]
    fn share(rows: u32, columns: u32, row_bytes: u32) -> Share {
        let steps = row_bytes.div_ceil(BOXES * ROW_BYTES);
        let tiles = [rows.div_ceil(Self::BLOCK_M), columns.div_ceil(Self::BLOCK_N)];
        Share::of_block(thread::block_idx_x(), SPLIT, tiles, steps)
    }

    #[inline(always)]
    unsafe fn start(a: &TensorMap, b: &TensorMap) {
        // SAFETY: all threads of the cluster are here. The first warp makes the barriers, and the others wait for it, the one that has the
        // operands copied in `load`: until then it finds out what to copy. That all blocks of the cluster have started matters to
        // copies to several of them and to `exchange` only, which wait for it.
        unsafe {
            if Self::is_producer() {
                if warp::lane_id() == 0 {
                    ptx::prefetch_tensormap(b.address());
                    ptx::prefetch_tensormap(a.address());
                }
            } else if warp::warp_id() == 0 {
                if warp::lane_id() == 0 {
                    Self::ring_a().init(Self::WARPS);
                    Self::ring_b().init(Self::WARPS);
                }
                warp::sync_warp();
                ptx::bar_arrive_at(MADE, Self::THREADS);
            } else {
                ptx::bar_sync_at(MADE, Self::THREADS);
            }
            if SPLIT > 1 {
                // Before the copies: what arrives after them waits for them. Nothing has been written but barriers.
                ptx::barrier_cluster_arrive_relaxed();
            }
        }
    }

    #[inline(always)]
    fn is_producer() -> bool {
        thread::thread_idx_x() >= Self::WARPS * warp::SIZE
    }

    #[inline(always)]
    unsafe fn load<T: Element>(a: &TensorMap, b: &TensorMap, layouts: Layouts, share: Share) {
        // SAFETY: the caller's promise.
        unsafe { Self::load_from::<T>(layouts, share, |step| ([a.address(), b.address()], step)) }
    }

    #[inline(always)]
    unsafe fn load_joined<T: Element>(
        operands: [&TensorMap; 2],
        more: [&TensorMap; 2],
        first: u32,
        share: Share,
    ) {
        // Opaque: of a selection among parameters the compiler would make copies of them in local memory.
        let address = |map: &TensorMap| ptx::opaque_u64(map.address());
        let (operands, more) = (operands.map(address), more.map(address));
        // SAFETY: the caller's promise.
        unsafe {
            Self::load_from::<T>(Layouts::K_MAJOR, share, |step| {
                if step < first {
                    (operands, step)
                } else {
                    grid::wait();
                    (more, step - first)
                }
            });
        }
    }

    #[inline(always)]
    unsafe fn columns<E: Epilogue>(epilogue: &E, tile: TileIndex) -> [E::Column; COLUMNS] {
        // SAFETY: the caller's promise.
        unsafe { epilogue.columns::<COLUMNS>(Self::column(tile)) }
    }

    #[inline(always)]
    unsafe fn multiply<T: Wgmma<C>>(layouts: Layouts, share: Share) -> C {
        // SAFETY: the caller's promise.
        unsafe {
            if T::TRANSPOSES && Self::TRANSPOSES && layouts.b_is_mn() {
                Self::multiply_as::<T, true>(share)
            } else {
                Self::multiply_as::<T, false>(share)
            }
        }
    }

    #[inline(always)]
    unsafe fn exchange(accumulators: C) {
        let places = Self::transposed();
        if SPLIT == 1 {
            for index in 0..Self::FRAGMENTS {
                // SAFETY: this warp's part.
                unsafe { Self::write_sums(&places, index, accumulators.fragment(index as usize)) };
            }
        } else {
            let rank = Self::rank();
            // SAFETY: all lanes of the warp are here, and have arrived in `start`.
            unsafe { ptx::barrier_cluster_wait() };
            for index in 0..Self::FRAGMENTS {
                let to = Self::part(rank, index / SPLIT).get();
                let fragment = accumulators.fragment(index as usize);
                // SAFETY: a place of this thread's own, in a block that has started and waits for all others below.
                unsafe { ptx::st_shared_cluster_v4_f32(ptx::mapa(to, index % SPLIT), fragment) };
            }
            // SAFETY: all lanes of the warp are here. The producers do not arrive again: they end.
            unsafe {
                ptx::barrier_cluster_arrive();
                ptx::barrier_cluster_wait();
            }
            for owned in 0..Self::OWNED {
                if Self::owns(rank, owned) {
                    // SAFETY: what the blocks have sent to this thread before the barrier.
                    let mut sums = unsafe { ptx::ld_shared_v4_f32(Self::part(0, owned).get()) };
                    for source in 1..SPLIT {
                        // SAFETY: as above.
                        let part = unsafe { ptx::ld_shared_v4_f32(Self::part(source, owned).get()) };
                        for (sum, part) in sums.iter_mut().zip(&part) {
                            *sum += part;
                        }
                    }
                    // SAFETY: this warp's part.
                    unsafe { Self::write_sums(&places, owned, sums) };
                }
            }
        }
        // SAFETY: all lanes of the warp are here.
        unsafe { warp::sync_warp() };
    }

    #[inline(always)]
    unsafe fn store<O: Element, E: Epilogue>(
        epilogue: &E,
        columns: [E::Column; COLUMNS],
        output: &Output<O>,
        tile: TileIndex,
    ) {
        let first = tile.m * Self::BLOCK_M + Self::row_and_column().0;
        let vector_aligned = output.is_vector_aligned();
        let fragments = Self::fragments(output.rows, tile);
        // Not unrolled: the epilogue's code is larger than the loop's overhead.
        let (mut fragment, mut owned) = (ptx::opaque(Self::rank()), 0);
        while fragment < fragments {
            // SAFETY: written before the barrier at the end of `exchange`, by this warp.
            let sums = unsafe { ptx::ld_shared_v4_f32(Self::stored(owned).get()) };
            let at = Coord { row: first + fragment * FRAGMENT_ROWS, column: Self::column(tile) };
            // SAFETY: the caller's promise; every element of the tile belongs to one lane of one warp, of which all are here; two
            // lanes have eight columns of a row.
            unsafe {
                let result = epilogue.apply(at, epilogue.row(at.row), columns, sums);
                output.store_4(at.row, at.column, result, vector_aligned);
            }
            fragment += SPLIT;
            owned += 1;
        }
    }

    #[inline(always)]
    fn column(tile: TileIndex) -> u32 {
        tile.n * Self::BLOCK_N + warp::warp_id() * WARP_COLUMNS + Self::row_and_column().1
    }

    #[inline(always)]
    fn factors(tile: TileIndex, factor: impl Fn(Coord) -> [f32; COLUMNS]) -> [[f32; COLUMNS]; MOST_GROUPS] {
        const { assert!(Self::OWNED <= MOST_GROUPS as u32, "a place for each") };
        let first = tile.m * Self::BLOCK_M + Self::row_and_column().0;
        let mut factors = [[0.0; COLUMNS]; MOST_GROUPS];
        for (owned, factors) in factors.iter_mut().enumerate().take(Self::OWNED as usize) {
            let row = first + (Self::rank() + owned as u32 * SPLIT) * FRAGMENT_ROWS;
            *factors = factor(Coord { row, column: Self::column(tile) });
        }
        factors
    }

    #[inline(always)]
    unsafe fn store_multiplied<O: Element>(
        factors: &[[f32; COLUMNS]; MOST_GROUPS],
        output: &Output<O>,
        tile: TileIndex,
    ) {
        let first = tile.m * Self::BLOCK_M + Self::row_and_column().0;
        let vector_aligned = output.is_vector_aligned();
        let fragments = Self::fragments(output.rows, tile);
        for (owned, factors) in (0u32..).zip(factors).take(Self::OWNED as usize) {
            let fragment = Self::rank() + owned * SPLIT;
            if fragment < fragments {
                // SAFETY: written before the barrier at the end of `exchange`, by this warp. The rest is the caller's promise; every element of the tile
                // belongs to one lane of one warp.
                unsafe {
                    let mut sums = ptx::ld_shared_v4_f32(Self::stored(owned).get());
                    for (sum, factor) in sums.iter_mut().zip(factors) {
                        *sum *= factor;
                    }
                    let row = first + fragment * FRAGMENT_ROWS;
                    output.store_4(row, Self::column(tile), sums, vector_aligned);
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn store_at_once<O: Element, E: Epilogue>(
        epilogue: &E,
        columns: [E::Column; COLUMNS],
        output: &Output<O>,
        tile: TileIndex,
    ) {
        let (rank, column) = (Self::rank(), Self::column(tile));
        if column >= output.columns || !Self::owns(rank, 0) {
            return;
        }
        let first = tile.m * Self::BLOCK_M + rank * FRAGMENT_ROWS + Self::row_and_column().0;
        let mut group = 0;
        loop {
            let owned = |index: usize| group + index as u32;
            let mut sums = [[0.0; 4]; AT_ONCE];
            for (index, sums) in sums.iter_mut().enumerate().take(Self::OWNED as usize) {
                // SAFETY: written before the barrier at the end of `exchange`, by this warp.
                *sums = unsafe { ptx::ld_shared_v4_f32(Self::stored(owned(index)).get()) };
            }
            for (index, sums) in sums.iter().enumerate().take(Self::OWNED as usize) {
                let at = Coord { row: first + owned(index) * (SPLIT * FRAGMENT_ROWS), column };
                // SAFETY: the caller's promise; as there is a multiple of four columns, all four are the output's.
                unsafe {
                    let result = epilogue.apply(at, epilogue.row(at.row), columns, *sums);
                    if at.row < output.rows {
                        O::store_rounded_4(output.at(at.row, column), result);
                    }
                }
            }
            // Opaque: the loop would be unrolled.
            group = ptx::opaque(group + AT_ONCE as u32);
            if Self::OWNED <= AT_ONCE as u32 || group >= Self::OWNED {
                break;
            }
        }
    }
}
