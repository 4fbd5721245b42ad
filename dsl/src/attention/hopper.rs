//! Attention on Hopper: the copy engine fills rings of keys and values, warpgroups multiply them with `wgmma`; sm_90a.
//!
//! One thread of the first warpgroup has the copy engine bring the tile's rows of Q, and then key block after key block, the last one first. Each of the
//! other warpgroups has 64 rows. While the tensor cores add the weights of one block times its values, the warpgroup's lanes make weights of the scores of
//! the next. The warpgroups take turns in issuing products, so that those of one run under the softmax of another.
//!
//! What is behind the end of a sequence arrives as zeros, and is not written, whatever comes after it in memory: [`Rows`] says how.
//!
//! Where there are few rows for each key, blocks share a sequence's keys, and rows of the heads that have the same keys alternate in a tile. [`dealt`] has what is
//! different then: lanes copy the rows of Q and store the sums.

pub mod dealt;
mod keys;
mod maps;
mod queries;

pub use maps::{Ends, KeyMaps, Maps, Rows};
pub use queries::{CopiedQueries, Queries};

use core::marker::PhantomData;

use keys::{KeyBlocks, OwnRows};

use super::scores::{self, Place, ScoreOperands};
use super::softmax::{LOG2_E, OnlineSoftmax, Total};
use super::window::Window;
use super::work::Work;
use crate::float::HalfElement;
use crate::gemm::OutputElement;
use crate::launch::{GlobalMut, TensorMap};
use crate::layout::accumulator_coord;
use crate::pipeline::{self, AsyncProxy, FullStage, GenericProxy, Pipeline};
use crate::ptx::{self, Accumulators, Wgmma, WgmmaHalfRegisters};
use crate::shared::SharedAddress;
use crate::tile::registers::{Fragment, ROWS};
use crate::warpgroup::{self, BOX_COLUMNS, BOX_ROW_BYTES, Boxed, RegisterOperand, WARP_ROWS};
use crate::{thread, warp};

/// The sizes of a tile.
pub trait AttentionShape: 'static {
    /// A warpgroup's scores: 64 rows, and the keys of a block.
    type Scores: Accumulators;
    /// A warpgroup's weights, rounded.
    type Weights: RegisterOperand;
    /// A warpgroup's sums: 64 rows, and the columns of V.
    type Sums: Accumulators;
    /// Columns of Q and K, a multiple of 16.
    const COLUMNS: u32;
    /// Warpgroups that have rows.
    const WARPGROUPS: u32;
    /// Key blocks that the rings hold.
    const STAGES: u32;
}

/// A type of elements that a tile of shape `S` multiplies.
pub trait AttentionElement<S: AttentionShape>:
    Wgmma<S::Scores> + WgmmaHalfRegisters<S::Sums> + HalfElement + OutputElement
{
}

impl<S: AttentionShape, T> AttentionElement<S> for T where
    T: Wgmma<S::Scores> + WgmmaHalfRegisters<S::Sums> + HalfElement + OutputElement
{
}

/// What a launch does to scores.
#[derive(Clone, Copy)]
pub struct Scoring {
    /// Which keys a row attends to by its place.
    pub window: Window,
    /// What scores are multiplied by before they are exponents of 2, where no operand changes them: positive.
    pub factor: f32,
    /// Operands that change them.
    pub operands: ScoreOperands,
    /// Heads of Q whose rows alternate, at least 1; where operands change scores, 1.
    pub pack: u32,
}

/// A tile of shape `S`, whose scores operands change if `CHANGES`.
pub struct Tile<S, const CHANGES: bool>(PhantomData<S>);

/// The side that has Q, keys and values copied.
pub struct Producer {
    tiles: pipeline::Producer<2, 1>,
    q: pipeline::Producer<1, 1>,
    k: pipeline::Producer<2, 1>,
    v: pipeline::Producer<2, 1>,
}

/// A warpgroup that has rows.
pub struct Consumer {
    tiles: pipeline::Consumer<2, 1, GenericProxy>,
    q: pipeline::Consumer<1, 1, AsyncProxy>,
    k: pipeline::Consumer<2, 1, AsyncProxy>,
    v: pipeline::Consumer<2, 1, AsyncProxy>,
    /// Its number among those that have rows.
    index: u32,
}

/// The sums of a warpgroup's rows, and what they are divided by.
pub struct Attended<C> {
    sums: Fragment<C>,
    totals: [Total; ROWS],
}

impl<S: AttentionShape, const CHANGES: bool> Tile<S, CHANGES> {
    /// Rows of a tile.
    pub const BLOCK_ROWS: u32 = S::WARPGROUPS * warpgroup::ROWS;
    /// Keys of a block.
    pub const BLOCK_KEYS: u32 = S::Scores::COLUMNS;
    /// Threads of a block.
    pub const THREADS: u32 = (1 + S::WARPGROUPS) * warpgroup::THREADS;
    /// Steps of a product of Q and K.
    const STEPS: u32 = {
        assert!(S::COLUMNS.is_multiple_of(warpgroup::STEP), "whole steps");
        assert!(S::Weights::STEPS * warpgroup::STEP == Self::BLOCK_KEYS, "weights for all keys");
        assert!(S::STAGES == 2, "rings of two");
        S::COLUMNS / warpgroup::STEP
    };
    /// Boxes of a row of Q and K.
    const K_BOXES: u32 = S::COLUMNS.div_ceil(BOX_COLUMNS);
    /// Boxes of a row of V and O.
    const V_BOXES: u32 = S::Sums::COLUMNS.div_ceil(BOX_COLUMNS);
    /// Bytes of a warpgroup's rows of Q.
    const Q_BYTES: u32 = Boxed::bytes(warpgroup::ROWS, Self::K_BOXES);
    const K_BYTES: u32 = Boxed::bytes(Self::BLOCK_KEYS, Self::K_BOXES);
    const V_BYTES: u32 = Boxed::bytes(Self::BLOCK_KEYS, Self::V_BOXES);
    const K_AT: u32 = S::WARPGROUPS * Self::Q_BYTES;
    const V_AT: u32 = Self::K_AT + S::STAGES * Self::K_BYTES;
    const STAGING_AT: u32 = Self::V_AT + S::STAGES * Self::V_BYTES;
    /// Bytes of a box of O: a warp's rows.
    const STAGED_BYTES: u32 = Boxed::bytes(WARP_ROWS, 1);
    /// Boxes that a warp has on their way at a time.
    const STAGED: u32 = 2;
    const Q_BARRIERS_AT: u32 = Self::STAGING_AT + 4 * S::WARPGROUPS * Self::STAGED * Self::STAGED_BYTES;
    const K_BARRIERS_AT: u32 = Self::Q_BARRIERS_AT + Pipeline::<1, 1>::BYTES;
    const V_BARRIERS_AT: u32 = Self::K_BARRIERS_AT + Pipeline::<2, 1>::BYTES;
    const TILE_BARRIERS_AT: u32 = Self::V_BARRIERS_AT + Pipeline::<2, 1>::BYTES;
    /// Where the numbers of the next tiles are.
    const TILES_AT: u32 = Self::TILE_BARRIERS_AT + Pipeline::<2, 1>::BYTES;
    /// Shared memory of a block.
    pub const SHARED_BYTES: u32 = Self::TILES_AT + 2 * 4;

    #[inline(always)]
    fn at(bytes: u32) -> SharedAddress {
        SharedAddress::dynamic().offset(bytes)
    }

    /// Where the rows of Q of warpgroup `index` are.
    #[inline(always)]
    fn queries(index: u32) -> SharedAddress {
        Self::at(index * Self::Q_BYTES)
    }

    #[inline(always)]
    fn q_ring() -> Pipeline<1, 1> {
        Pipeline::at(Self::at(Self::Q_BARRIERS_AT))
    }

    #[inline(always)]
    fn k_ring() -> Pipeline<2, 1> {
        Pipeline::at(Self::at(Self::K_BARRIERS_AT))
    }

    #[inline(always)]
    fn v_ring() -> Pipeline<2, 1> {
        Pipeline::at(Self::at(Self::V_BARRIERS_AT))
    }

    #[inline(always)]
    fn tile_ring() -> Pipeline<2, 1> {
        Pipeline::at(Self::at(Self::TILE_BARRIERS_AT))
    }

    /// Where the ring of tiles has the number of stage `index`.
    #[inline(always)]
    fn tile(index: u32) -> SharedAddress {
        Self::at(Self::TILES_AT + index * 4)
    }

    /// Makes the block's barriers.
    ///
    /// # Safety
    ///
    /// All threads of the block call it, before anything else.
    #[inline(always)]
    pub unsafe fn start() {
        // SAFETY: one thread makes the barriers, and the others wait for it.
        unsafe {
            if thread::thread_idx_x() == 0 {
                Self::q_ring().init(4 * S::WARPGROUPS);
                Self::k_ring().init(4 * S::WARPGROUPS);
                Self::v_ring().init(4 * S::WARPGROUPS);
                Self::tile_ring().init_between_warps(1, 4 * S::WARPGROUPS);
            }
            thread::sync_threads();
        }
    }

    /// Whether this thread's warpgroup is the one that copies.
    #[inline(always)]
    #[must_use]
    pub fn is_producer() -> bool {
        warpgroup::index() == 0
    }

    /// The producer, for one thread of its warpgroup.
    ///
    /// # Safety
    ///
    /// All threads of the warpgroup call it, after [`start`](Self::start).
    #[inline(always)]
    pub unsafe fn producer() -> Option<Producer> {
        // SAFETY: the whole warpgroup is here. 40 · 128 + 232 · 256 and 32 · 128 + 160 · 384 are within the 64 Ki registers of a multiprocessor.
        unsafe {
            if S::WARPGROUPS == 2 {
                ptx::setmaxnreg_dec::<40>();
            } else {
                ptx::setmaxnreg_dec::<32>();
            }
        }
        (thread::thread_idx_x() == 0).then(|| Producer {
            tiles: Self::tile_ring().producer(),
            q: Self::q_ring().producer(),
            k: Self::k_ring().producer(),
            v: Self::v_ring().producer(),
        })
    }

    /// The consumer that this thread's warpgroup is.
    ///
    /// # Safety
    ///
    /// All threads of the other warpgroups call it, after [`start`](Self::start).
    #[inline(always)]
    pub unsafe fn consumer() -> Consumer {
        let index = warpgroup::index() - 1;
        // SAFETY: whole warpgroups are here, and the producer's gives back as many registers.
        unsafe {
            if S::WARPGROUPS == 2 {
                ptx::setmaxnreg_inc::<232>();
            } else {
                ptx::setmaxnreg_inc::<160>();
            }
            // The first turn is warpgroup 0's.
            if index == S::WARPGROUPS - 1 {
                warpgroup::pass_turn(index, S::WARPGROUPS);
            }
        }
        Consumer {
            tiles: Self::tile_ring().consumer(),
            q: Self::q_ring().consumer(),
            k: Self::k_ring().consumer(),
            v: Self::v_ring().consumer(),
            index,
        }
    }

    /// Tells the consumers which tile is next; `None` that there is none.
    ///
    /// # Safety
    ///
    /// Consumers [take](Self::next) each of them.
    #[inline(always)]
    pub unsafe fn announce(producer: &mut Producer, tile: Option<u32>) {
        // SAFETY: the stage is free, and this thread alone writes it.
        unsafe {
            let stage = producer.tiles.acquire_to_write();
            ptx::st_shared_b32(Self::tile(stage.index).get(), tile.unwrap_or(u32::MAX));
            stage.full.arrive();
        }
    }

    /// The number of the consumer's next tile, if there is one.
    ///
    /// # Safety
    ///
    /// All warps of the warpgroup call it. The producer [announces](Self::announce) a tile, or that there is none.
    #[inline(always)]
    pub unsafe fn next(consumer: &mut Consumer) -> Option<u32> {
        // SAFETY: the stage is full, and given back when all lanes have read it.
        unsafe {
            let stage = consumer.tiles.wait();
            let mut tile = [ptx::ld_shared_b32(stage.address(Self::tile).get()), 0, 0, 0];
            consumer.tiles.release_loaded(stage, &mut tile);
            (tile[0] != u32::MAX).then_some(tile[0])
        }
    }

    /// Has the tile's rows of Q, and its keys and values, copied.
    ///
    /// # Safety
    ///
    /// The maps are as [`Maps`] says and the scoring's pointers valid; consumers attend to the same works in the same order.
    #[inline(always)]
    pub unsafe fn load(
        producer: &mut Producer,
        maps: Maps<'_>,
        scoring: &Scoring,
        key_head: u32,
        work: &Work,
    ) {
        // SAFETY: a stage's bytes are those of its boxes; nothing touches it before it is full. The rest is the caller's promise.
        unsafe {
            Self::load_blocks(producer, maps.keys(), scoring, key_head, work, |producer| {
                let q = producer.q.acquire(S::WARPGROUPS * Self::Q_BYTES);
                for warpgroup in 0..S::WARPGROUPS {
                    let row = work.row + warpgroup * warpgroup::ROWS;
                    let rows = Rows {
                        first: work.place.row + row,
                        count: work.rows.saturating_sub(row),
                        of_box: warpgroup::ROWS,
                        head: work.head,
                        batch: work.place.batch,
                        ends: false,
                    };
                    rows.load(maps.q, Self::queries(warpgroup), q.full.address(), Self::K_BOXES);
                }
            });
        }
    }

    /// Has the tile's keys and values copied, and behind the first keys what `queries` does.
    ///
    /// # Safety
    ///
    /// As [`load`](Self::load).
    #[inline(always)]
    unsafe fn load_blocks(
        producer: &mut Producer,
        maps: KeyMaps<'_>,
        scoring: &Scoring,
        key_head: u32,
        work: &Work,
        queries: impl FnOnce(&mut Producer),
    ) {
        let mut blocks = KeyBlocks::of::<S, CHANGES>(work);
        // SAFETY: the caller's promise.
        unsafe {
            let Some(mut block) = blocks.next::<S, CHANGES>(&scoring.operands, work) else { return };
            Self::load_keys(producer, maps.k, key_head, work, block);
            queries(producer);
            // Values one block later: they are needed when the scores of the next block have been begun.
            while let Some(next) = blocks.next::<S, CHANGES>(&scoring.operands, work) {
                Self::load_keys(producer, maps.k, key_head, work, next);
                Self::load_values(producer, maps, key_head, work, block);
                block = next;
            }
            Self::load_values(producer, maps, key_head, work, block);
        }
    }

    /// # Safety
    ///
    /// As [`load`](Self::load).
    #[inline(always)]
    unsafe fn load_keys(producer: &mut Producer, map: &TensorMap, head: u32, work: &Work, block: u32) {
        // SAFETY: the caller's promise.
        unsafe {
            let stage = producer.k.acquire(Self::K_BYTES);
            let to = Self::at(Self::K_AT + stage.index * Self::K_BYTES);
            Self::keys(head, work, block).load(map, to, stage.full.address(), Self::K_BOXES);
        }
    }

    /// # Safety
    ///
    /// As [`load`](Self::load).
    #[inline(always)]
    unsafe fn load_values(producer: &mut Producer, maps: KeyMaps<'_>, head: u32, work: &Work, block: u32) {
        // SAFETY: the caller's promise.
        unsafe {
            let stage = producer.v.acquire(Self::V_BYTES);
            let to = Self::at(Self::V_AT + stage.index * Self::V_BYTES);
            let mut rows = Self::keys(head, work, block);
            if maps.ends.v != 0 {
                rows.first += rows.batch * maps.ends.v_sequence;
                rows.ends = true;
            }
            rows.load(maps.v, to, stage.full.address(), Self::V_BOXES);
        }
    }

    /// The rows of K and V of a block.
    #[inline(always)]
    fn keys(head: u32, work: &Work, block: u32) -> Rows {
        let key = block * Self::BLOCK_KEYS;
        Rows {
            first: work.place.key + key,
            count: work.keys.saturating_sub(key),
            of_box: Self::BLOCK_KEYS,
            head,
            batch: work.place.batch,
            ends: false,
        }
    }

    /// The weighted sums of V for the rows of a warpgroup.
    ///
    /// # Safety
    ///
    /// All warps of the warpgroup call it; the scoring's pointers are valid. The producer loads the same works in the same order.
    #[inline(always)]
    pub unsafe fn attend<T: AttentionElement<S>, Q: Queries>(
        consumer: &mut Consumer,
        queries: &Q,
        scoring: &Scoring,
        work: &Work,
    ) -> Attended<S::Sums> {
        let factor = if CHANGES { LOG2_E } else { scoring.factor };
        // Computed again where rows alternate: kept from tile to tile it would take a register.
        let index = if Q::ALTERNATE { ptx::opaque(warpgroup::index()) - 1 } else { consumer.index };
        let own = OwnRows::of(index, scoring, work);
        let mut softmax = OnlineSoftmax::empty();
        let mut sums = Fragment(S::Sums::zero());
        let mut blocks = KeyBlocks::of::<S, CHANGES>(work);
        // SAFETY: stages are full when they are read, and given back when the products that read them have completed; nothing touches a
        // product's registers before. The rest is the caller's promise.
        unsafe {
            if let Some(first) = blocks.next::<S, CHANGES>(&scoring.operands, work) {
                let (q, held) = queries.begin::<S, CHANGES>(consumer, index, work);

                let k = consumer.k.wait();
                let mut scores = Fragment(S::Scores::arbitrary());
                warpgroup::wait_for_turn(index);
                warpgroup::begin_product::<T, _>(&mut scores.0, q, Self::k(&k), Self::STEPS);
                warpgroup::pass_turn(index, S::WARPGROUPS);
                let added = Self::fetch::<T>(index, scoring, work, first);
                ptx::wgmma_wait_group::<0>();
                scores.0.hold();
                consumer.k.release(k);
                Self::score::<T, Q>(own, index, &mut scores, added, scoring, work, first);
                softmax.weigh(&mut scores, factor);
                let mut weights: S::Weights = scores.packed::<T, _>();

                while let Some(block) = blocks.next::<S, CHANGES>(&scoring.operands, work) {
                    let k = consumer.k.wait();
                    warpgroup::wait_for_turn(index);
                    warpgroup::begin_product::<T, _>(&mut scores.0, q, Self::k(&k), Self::STEPS);
                    let v = consumer.v.wait();
                    warpgroup::begin_sum::<T, _, _>(&mut sums.0, &mut weights, Self::v(&v));
                    warpgroup::pass_turn(index, S::WARPGROUPS);
                    let added = Self::fetch::<T>(index, scoring, work, block);
                    if CHANGES {
                        // What changes scores takes the registers that weights have.
                        ptx::wgmma_wait_group::<0>();
                        warpgroup::end_sum(&mut sums.0, &mut weights);
                        consumer.v.release(v);
                    } else {
                        ptx::wgmma_wait_group::<1>();
                    }
                    scores.0.hold();
                    consumer.k.release(k);
                    Self::score::<T, Q>(own, index, &mut scores, added, scoring, work, block);
                    let scales = softmax.weigh(&mut scores, factor);
                    if !CHANGES {
                        ptx::wgmma_wait_group::<0>();
                        warpgroup::end_sum(&mut sums.0, &mut weights);
                        consumer.v.release(v);
                    }
                    weights = scores.packed::<T, _>();
                    sums.scale_rows(scales);
                }
                Q::end(consumer, held);

                let v = consumer.v.wait();
                warpgroup::wait_for_turn(index);
                warpgroup::begin_sum::<T, _, _>(&mut sums.0, &mut weights, Self::v(&v));
                warpgroup::pass_turn(index, S::WARPGROUPS);
                ptx::wgmma_wait_group::<0>();
                warpgroup::end_sum(&mut sums.0, &mut weights);
                consumer.v.release(v);
            }
            let sink = if CHANGES { scoring.operands.sink(work.head) } else { None };
            let totals = softmax.finish(factor, sink.map(|sink| [sink; ROWS]));
            Attended { sums, totals }
        }
    }

    /// The scores that this thread has of block `block`.
    #[inline(always)]
    fn place(own: OwnRows, work: &Work, block: u32) -> Place {
        Place { rows: own.rows, heads: [work.head; ROWS], key: block * Self::BLOCK_KEYS + own.column }
    }

    /// Loads what is added to the scores of block `block`, while their products are on the way.
    ///
    /// # Safety
    ///
    /// All lanes of the warp call it; the scoring's pointers are valid.
    #[inline(always)]
    unsafe fn fetch<T: AttentionElement<S>>(
        index: u32,
        scoring: &Scoring,
        work: &Work,
        block: u32,
    ) -> Option<Fragment<S::Scores>> {
        if !CHANGES {
            return None;
        }
        let place = Self::place(OwnRows::of(ptx::opaque(index), scoring, work), work, block);
        // SAFETY: the caller's promise.
        Some(unsafe { scoring.operands.fetch::<T, _>(work, place) })
    }

    /// Makes scores of the products of block `block`.
    ///
    /// # Safety
    ///
    /// The scoring's pointers are valid. `added` is of this block, where operands change scores.
    #[inline(always)]
    unsafe fn score<T: AttentionElement<S>, Q: Queries>(
        own: OwnRows,
        index: u32,
        scores: &mut Fragment<S::Scores>,
        added: Option<Fragment<S::Scores>>,
        scoring: &Scoring,
        work: &Work,
        block: u32,
    ) {
        // What changes scores takes the registers, and so do wide sums. Where rows alternate only the common keys are kept: see below.
        let is_short = CHANGES || !Q::ALTERNATE && S::Sums::COLUMNS > 192;
        let own = if is_short { OwnRows::of(ptx::opaque(index), scoring, work) } else { own };
        let place = Self::place(own, work, block);
        if let Some(added) = added {
            // SAFETY: the caller's promise.
            unsafe { scoring.operands.apply::<T, _>(scores, Some(&added), work, place) };
        }
        let first = block * Self::BLOCK_KEYS;
        let [begin, end] = own.common;
        let is_whole = first as i32 >= begin && (first + Self::BLOCK_KEYS) as i32 <= end;
        if !is_whole {
            // Rows that alternate take divisions, which only blocks that a mask cuts need.
            let place = if Q::ALTERNATE {
                Self::place(OwnRows::of(ptx::opaque(index), scoring, work), work, block)
            } else {
                place
            };
            scores::keep_within(scores, scoring.window, work, place, [0, work.keys]);
        }
    }

    #[inline(always)]
    fn k(stage: &FullStage<AsyncProxy>) -> Boxed {
        Boxed::at(stage.operand(|index| Self::at(Self::K_AT + index * Self::K_BYTES)), Self::BLOCK_KEYS)
    }

    #[inline(always)]
    fn v(stage: &FullStage<AsyncProxy>) -> Boxed {
        Boxed::at(stage.operand(|index| Self::at(Self::V_AT + index * Self::V_BYTES)), Self::BLOCK_KEYS)
    }

    /// Stores the rows, and the logarithm of the sum of their exponentials at `lse`, the place of this head's row 0, if that is not null.
    ///
    /// # Safety
    ///
    /// All warps of the warpgroup call it; the map and the pointer are valid for writes, and no other warp has these rows.
    #[inline(always)]
    pub unsafe fn store<T: AttentionElement<S>>(
        attended: Attended<S::Sums>,
        maps: Maps<'_>,
        lse: GlobalMut<f32>,
        work: &Work,
    ) {
        let Attended { mut sums, mut totals } = attended;
        let lane = warp::lane_id();
        let warp = thread::thread_idx_x() / warp::SIZE - 4;
        let first = work.row + warp * WARP_ROWS;
        let own = first + accumulator_coord(lane, 0).row;
        for (row, total) in totals.iter_mut().enumerate() {
            if own + 8 * row as u32 >= work.rows {
                *total = Total { scale: 0.0, lse: f32::NEG_INFINITY };
            }
        }
        // Not a product with zero: rows that do not count may be no numbers.
        sums.map(|sum, row, _| if totals[row].scale == 0.0 { 0.0 } else { sum * totals[row].scale });
        if !lse.is_null() && lane.is_multiple_of(4) {
            for (row, total) in totals.iter().enumerate() {
                let row = own + 8 * row as u32;
                if row < work.written {
                    let to = lse.offset((work.place.row + row) as u64);
                    // SAFETY: within the rows that are written.
                    unsafe { ptx::st_global_b32(to.address(), total.lse.to_bits()) };
                }
            }
        }
        let rows = Rows {
            first: work.place.row + first,
            count: work.written.saturating_sub(first),
            of_box: WARP_ROWS,
            head: work.head,
            batch: work.place.batch,
            ends: maps.ends.o != 0,
        };
        let staging = Self::at(Self::STAGING_AT + warp * Self::STAGED * Self::STAGED_BYTES);
        for index in 0..Self::V_BOXES {
            let buffer = staging.offset(index % Self::STAGED * Self::STAGED_BYTES);
            // SAFETY: all lanes of the warp are here, and the box before the last, which had the same buffer, has been read.
            unsafe {
                // Of an odd number of boxes the last has the buffer of the next tile's first.
                if index == 0 && !Self::V_BOXES.is_multiple_of(Self::STAGED) {
                    ptx::cp_async_bulk_wait_group_read::<0>();
                } else {
                    ptx::cp_async_bulk_wait_group_read::<1>();
                }
                warp::sync_warp();
                for pair in 0..(S::Sums::COLUMNS - index * BOX_COLUMNS).min(BOX_COLUMNS) / 16 {
                    let fragment = (index * BOX_COLUMNS / 8 + 2 * pair) as usize;
                    let pairs = [fragment, fragment + 1].map(|fragment| {
                        let [a, b, c, d] = sums.0.fragment(fragment);
                        [[a, b], [c, d]]
                    });
                    T::put_pair(pairs, pair, lane, buffer, BOX_ROW_BYTES);
                }
                ptx::fence_proxy_async_shared();
                warp::sync_warp();
                if lane == 0 {
                    ptx::tma_store_5d(maps.o.address(), rows.box_at(index * BOX_COLUMNS), buffer.get());
                }
                ptx::cp_async_bulk_commit_group();
            }
        }
    }

    /// Waits for the stores, and takes the turn that nobody waits for.
    ///
    /// # Safety
    ///
    /// All warps of the warpgroup call it, when they have nothing else to do.
    #[inline(always)]
    pub unsafe fn finish() {
        ptx::cp_async_bulk_wait_group_read::<0>();
        if warpgroup::index() == 1 {
            // SAFETY: the last warpgroup has passed it on.
            unsafe { warpgroup::wait_for_turn(0) };
        }
    }
}
