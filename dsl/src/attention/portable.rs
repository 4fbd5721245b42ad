//! Attention by `mma.sync`: `cp.async` fills a ring of keys and values, warps multiply them; sm_80 and later.
//!
//! A tile's rows are dealt to warps, 16 to each. Where a tile has no more than those, the warps have the same rows and deal the keys of a block instead, and add up
//! what they have at the end. Rows of the heads that share keys may alternate in a tile, so that few rows read the keys once.
//!
//! A launch may be split along the keys: each block then has a part of them, and stores its sums, and another kernel adds them up.

pub(super) mod copies;
mod element;
pub(super) mod output;
pub(super) mod products;
mod stored;
mod tensors;
mod widen;

pub use element::PortableElement;
pub use stored::{Fp8, Fp8Keys, StoredKeys, WidenedElement};
pub use tensors::{Pages, Parts, Strided, Tensors};

use core::marker::PhantomData;

use copies::copy;
use output::OutputRow;
use products::{add_weighted, multiply_rows};
use tensors::Keys;

use super::scores::{self, Place, ScoreOperands};
use super::softmax::{LOG2_E, OnlineSoftmax, Total};
use super::window::Window;
use super::work::{Sequences, Sizes, Tiles, Work};
use crate::launch::GlobalMut;
use crate::layout::{Swizzle, accumulator_coord};
use crate::ptx::{self, Accumulators};
use crate::shared::SharedAddress;
use crate::tile::registers::{Fragment, ROWS};
use crate::warpgroup::{BOX_ROW_BYTES, WARP_ROWS};
use crate::{thread, warp};

/// Threads of a block.
pub const THREADS: u32 = 128;
/// Warps of a block.
pub(super) const WARPS: u32 = THREADS / warp::SIZE;

/// The sizes of a tile.
pub trait PortableShape: 'static {
    /// A warp's scores: 16 rows, and its keys of a block.
    type Scores: Accumulators;
    /// A warp's sums: 16 rows, and the columns of V.
    type Sums: Accumulators;
    /// Columns of Q and K, whole steps of a product.
    const COLUMNS: u32;
    /// Warps that share rows and deal the keys of a block: 1, or all.
    const KEY_WARPS: u32;
    /// Key blocks that the ring holds.
    const STAGES: u32;
    /// Blocks that a multiprocessor holds at a time: while one begins or ends, others read keys.
    const MIN_BLOCKS: u32;
}

/// What a launch does to scores.
#[derive(Clone, Copy)]
struct Scoring {
    /// Which keys a row attends to by its place.
    window: Window,
    /// Operands that change them.
    operands: ScoreOperands,
}

/// A tile of shape `S` of elements `T`, whose keys and values are stored as `K`.
pub struct PortableTile<T, S, K = T>(PhantomData<(T, S, K)>);

/// What a warp has found for its rows.
struct Attended<C> {
    sums: Fragment<C>,
    totals: [Total; ROWS],
}

impl<T: PortableElement, S: PortableShape, K: StoredKeys<T>> PortableTile<T, S, K> {
    /// Rows of a tile.
    pub const BLOCK_ROWS: u32 = WARPS / S::KEY_WARPS * WARP_ROWS;
    /// Keys of a warp's part of a block.
    const WARP_KEYS: u32 = S::Scores::COLUMNS;
    /// Keys of a block.
    pub const BLOCK_KEYS: u32 = S::KEY_WARPS * Self::WARP_KEYS;
    const STEPS: u32 = {
        assert!(S::COLUMNS.is_multiple_of(T::STEP) && Self::WARP_KEYS.is_multiple_of(T::STEP), "whole steps");
        assert!(S::KEY_WARPS == 1 || S::KEY_WARPS == WARPS, "all or none");
        S::COLUMNS / T::STEP
    };
    const K_BOXES: u32 = (S::COLUMNS * T::BYTES).div_ceil(BOX_ROW_BYTES);
    const V_BOXES: u32 = (S::Sums::COLUMNS * T::BYTES).div_ceil(BOX_ROW_BYTES);
    const Q_BYTES: u32 = Self::K_BOXES * Self::BLOCK_ROWS * BOX_ROW_BYTES;
    const K_BYTES: u32 = Self::K_BOXES * Self::BLOCK_KEYS * BOX_ROW_BYTES;
    /// Keys and values of a block as they are multiplied.
    const BLOCK_BYTES: u32 = Self::K_BYTES + Self::V_BOXES * Self::BLOCK_KEYS * BOX_ROW_BYTES;
    const STORED_K_BOXES: u32 = (S::COLUMNS * K::BYTES).div_ceil(BOX_ROW_BYTES);
    const STORED_V_BOXES: u32 = (S::Sums::COLUMNS * K::BYTES).div_ceil(BOX_ROW_BYTES);
    const STORED_K_BYTES: u32 = Self::STORED_K_BOXES * Self::BLOCK_KEYS * BOX_ROW_BYTES;
    /// Keys and values of a block as they are stored.
    const STAGE_BYTES: u32 = Self::STORED_K_BYTES + Self::STORED_V_BOXES * Self::BLOCK_KEYS * BOX_ROW_BYTES;
    /// What is between Q and the ring: a block that has been widened.
    const WIDENED_BYTES: u32 = if K::IS_WIDENED { Self::BLOCK_BYTES } else { 0 };
    /// Bytes of what a warp adds up with others: its sums, and of each row a number.
    const SHARED_SUMS_BYTES: u32 = WARP_ROWS * 4 * (S::Sums::COLUMNS + 1);
    /// Shared memory of a block.
    pub const SHARED_BYTES: u32 = {
        let ring = Self::Q_BYTES + Self::WIDENED_BYTES + S::STAGES * Self::STAGE_BYTES;
        let sums = if S::KEY_WARPS == 1 { 0 } else { WARPS * Self::SHARED_SUMS_BYTES };
        if ring > sums { ring } else { sums }
    };

    #[inline(always)]
    fn stage(index: u32) -> SharedAddress {
        let first = Self::Q_BYTES + Self::WIDENED_BYTES;
        SharedAddress::dynamic().offset(first + index % S::STAGES * Self::STAGE_BYTES)
    }

    /// Where the block of a stage is multiplied.
    #[inline(always)]
    fn block(index: u32) -> SharedAddress {
        if K::IS_WIDENED { SharedAddress::dynamic().offset(Self::Q_BYTES) } else { Self::stage(index) }
    }

    /// The warp's place among those that have different rows.
    #[inline(always)]
    fn row_warp() -> u32 {
        if S::KEY_WARPS == 1 { warp::warp_id() } else { 0 }
    }

    /// Its place among those that have different keys.
    #[inline(always)]
    fn key_warp() -> u32 {
        if S::KEY_WARPS == 1 { 0 } else { warp::warp_id() }
    }

    /// What a block of a launch computes: a part of the keys for the rows of a tile.
    ///
    /// # Safety
    ///
    /// All threads of the block call it, on a one-dimensional grid of a block for each part of each tile. The pointers are valid for what the arguments describe: `lse`, if it is
    /// not null, operands, scales, and the parts' results, if there are several. What is written overlaps nothing else.
    #[inline(always)]
    pub unsafe fn run(
        tensors: &Tensors,
        lse: GlobalMut<f32>,
        parts: &Parts,
        operands: ScoreOperands,
        fp8: &Fp8Keys,
        (sizes, sequences): (&Sizes, Sequences),
    ) {
        let scoring = Scoring { window: sizes.window, operands };
        let tiles = Tiles::new(*sizes, sequences, Self::BLOCK_ROWS);
        let count = parts.count.max(1);
        let block = thread::block_idx_x();
        let (tile, part) = (block / count, block % count);
        // SAFETY: the caller's promise; each part of each row belongs to one block.
        unsafe {
            let Some(work) = tiles.work(tile) else { return };
            let attended = Self::attend(tensors, sizes, &scoring, fp8, parts, part, &work);
            // Again, so that the registers are free meanwhile.
            let Some(work) = tiles.work(ptx::opaque(tile)) else { return };
            Self::store(&attended, tensors, sizes, lse, parts, part, &work);
        }
    }

    /// The rows' sums over the keys of part `part`.
    ///
    /// # Safety
    ///
    /// All threads of the block call it, and nothing else of the block touches shared memory. The tensors and the operands' pointers are valid.
    #[inline(always)]
    unsafe fn attend(
        tensors: &Tensors,
        sizes: &Sizes,
        scoring: &Scoring,
        fp8: &Fp8Keys,
        parts: &Parts,
        part: u32,
        work: &Work,
    ) -> Attended<S::Sums> {
        let [first, end] = work.within;
        let (first, end) = if parts.count > 1 {
            let [from, to] = parts.keys_of(part, work.keys, Self::BLOCK_KEYS);
            (first.max(from), end.min(to))
        } else {
            (first, end)
        };
        let key_head = sizes.key_head(work);
        let keys = Keys::<K>::new(tensors, work, key_head, end);
        let mut softmax = OnlineSoftmax::empty();
        let mut sums = Fragment(S::Sums::zero());
        let first_block = first / Self::BLOCK_KEYS;
        let lane = warp::lane_id();
        let own_row = work.row + Self::row_warp() * WARP_ROWS + accumulator_coord(lane, 0).row;
        // SAFETY: a stage is filled when all have read what it held before, and read when its copies have come; the rest is the caller's promise.
        unsafe {
            let scaled;
            let scoring = if K::IS_WIDENED {
                let scale = scoring.operands.scale * fp8.of_keys(key_head);
                scaled = Scoring { operands: ScoreOperands { scale, ..scoring.operands }, ..*scoring };
                &scaled
            } else {
                scoring
            };
            if first < end {
                let rows = tensors.q;
                let all = work.rows * sizes.pack.max(1);
                let count = all.saturating_sub(work.row);
                copy::<T>(
                    SharedAddress::dynamic(),
                    Self::K_BOXES,
                    Self::BLOCK_ROWS,
                    count,
                    tensors.columns,
                    |row| {
                        let [row, head] = sizes.row_and_head(work, work.row + row);
                        let to_row = work.place.batch as u64 * rows.sequence
                            + (work.place.row + row) as u64 * rows.row;
                        rows.first().offset(to_row + head as u64 * rows.head)
                    },
                );
                for stage in 0..S::STAGES - 1 {
                    keys.load::<T, S>(first_block + stage, stage);
                }
                // Where registers are short it is worth none from block to block.
                let within = (!T::IS_SPLIT).then(|| Self::keys_of_all(scoring, sizes, work, [first, end]));
                let mut index = 0;
                while (first_block + index) * Self::BLOCK_KEYS < end {
                    let block = first_block + index;
                    ptx::cp_async_wait_group(S::STAGES - 2);
                    thread::sync_threads();
                    keys.load::<T, S>(block + S::STAGES - 1, index + S::STAGES - 1);
                    if K::IS_WIDENED {
                        Self::widen(index, fp8.is_e5m2 != 0);
                    }
                    let key = block * Self::BLOCK_KEYS + Self::key_warp() * Self::WARP_KEYS;
                    let is_there = key < end && {
                        let from = work.row + Self::row_warp() * WARP_ROWS;
                        Self::has_any(scoring, sizes, work, from, key)
                    };
                    if is_there {
                        let mut scores = Fragment(S::Scores::zero());
                        Self::multiply_keys(&mut scores, Self::block(index));
                        // Opaque: what follows from the row is worth no register from block to block.
                        let row = ptx::opaque(own_row);
                        Self::score(&mut scores, scoring, sizes, work, row, ([key, first, end], within));
                        let scales = softmax.weigh(&mut scores, LOG2_E);
                        sums.scale_rows(scales);
                        Self::multiply_values(&mut sums, &scores, Self::block(index).offset(Self::K_BYTES));
                    }
                    // Opaque: copies of the loop are worth nothing.
                    index = ptx::opaque(index + 1);
                }
                ptx::cp_async_wait_all();
            }
            if K::IS_WIDENED {
                sums.scale_rows([fp8.of_values(ptx::opaque(key_head)); ROWS]);
            }
            if S::KEY_WARPS > 1 {
                Self::share(&mut sums, &mut softmax);
            }
            let sinks = if parts.count == 1 {
                let of = |row: u32| scoring.operands.sink(sizes.row_and_head(work, row)[1]);
                match (of(own_row), of(own_row + 8)) {
                    (Some(first), Some(second)) => Some([first, second]),
                    _ => None,
                }
            } else {
                None
            };
            Attended { sums, totals: softmax.finish(LOG2_E, sinks) }
        }
    }

    /// Whether any of the warp's rows from `row` on attends to any of its keys from `key` on, by the mask of blocks.
    ///
    /// # Safety
    ///
    /// The operands' pointers are valid.
    #[inline(always)]
    unsafe fn has_any(scoring: &Scoring, sizes: &Sizes, work: &Work, row: u32, key: u32) -> bool {
        if scoring.operands.blocks.is_null() {
            return true;
        }
        let pack = sizes.pack.max(1);
        let [first, _] = sizes.row_and_head(work, row);
        let [last, _] = sizes.row_and_head(work, row + WARP_ROWS - 1);
        let rows = [first, work.rows.min(last + 1)];
        let heads = [work.head * pack, (work.head + 1) * pack];
        let keys = [key, work.keys.min(key + Self::WARP_KEYS)];
        // SAFETY: the caller's promise.
        unsafe { scoring.operands.has_any(work, heads, rows, keys) }
    }

    /// Adds the products of Q and the warp's keys.
    ///
    /// # Safety
    ///
    /// All lanes of the warp call it; Q and the stage have come.
    #[inline(always)]
    unsafe fn multiply_keys(scores: &mut Fragment<S::Scores>, stage: SharedAddress) {
        // A warp's rows, and each pair's keys, are whole units of the swizzle.
        let q = SharedAddress::dynamic().offset(Self::row_warp() * WARP_ROWS * BOX_ROW_BYTES);
        let k = stage.offset(Self::key_warp() * Self::WARP_KEYS * BOX_ROW_BYTES);
        // SAFETY: the caller's promise.
        unsafe { multiply_rows::<T, _>(scores, (q, Self::BLOCK_ROWS), (k, Self::BLOCK_KEYS), Self::STEPS) }
    }

    /// Adds the products of the weights and the warp's values.
    ///
    /// # Safety
    ///
    /// All lanes of the warp call it; the values have come.
    #[inline(always)]
    unsafe fn multiply_values(
        sums: &mut Fragment<S::Sums>,
        weights: &Fragment<S::Scores>,
        values: SharedAddress,
    ) {
        let own = values.offset(Self::key_warp() * Self::WARP_KEYS * BOX_ROW_BYTES);
        // SAFETY: the caller's promise; steps are whole units of the swizzle.
        unsafe { add_weighted::<T, _, _>(sums, weights, (own, Self::BLOCK_KEYS), Self::WARP_KEYS) }
    }

    /// The keys that all of the warp's rows attend to by their places, of a part from `first` to `end`: the first, and the one behind the last.
    #[inline(always)]
    fn keys_of_all(scoring: &Scoring, sizes: &Sizes, work: &Work, [first, end]: [u32; 2]) -> [i32; 2] {
        let warp_row = work.row + Self::row_warp() * WARP_ROWS;
        let last = (warp_row + WARP_ROWS - 1).min((work.rows * sizes.pack.max(1)).max(1) - 1);
        let [[upper, _], [lower, _]] = [warp_row, last].map(|row| sizes.row_and_head(work, row));
        let [begin, _] = scoring.window.keys_of(lower, work.offset, work.keys);
        let [_, stop] = scoring.window.keys_of(upper, work.offset, work.keys);
        [begin.max(first as i32), stop.min(end as i32)]
    }

    /// Makes scores of the products with the keys from `key` on, of a part from `first` to `end`, of which all rows attend to those `within`, if that is known.
    ///
    /// # Safety
    ///
    /// All lanes of the warp call it; the operands' pointers are valid.
    #[inline(always)]
    unsafe fn score(
        scores: &mut Fragment<S::Scores>,
        scoring: &Scoring,
        sizes: &Sizes,
        work: &Work,
        own_row: u32,
        ([key, first, end], within): ([u32; 3], Option<[i32; 2]>),
    ) {
        // Divisions, which only some launches need.
        let place = || {
            let own = [own_row, own_row + 8].map(|row| sizes.row_and_head(work, row));
            let column = accumulator_coord(warp::lane_id(), 0).column;
            Place { rows: own.map(|[row, _]| row), heads: own.map(|[_, head]| head), key: key + column }
        };
        if scoring.operands.only_scale() {
            scores.map(|score, _, _| score * scoring.operands.scale);
        } else {
            // SAFETY: the caller's promise.
            unsafe { scoring.operands.apply::<T, _>(scores, None, work, place()) };
        }
        let [begin, stop] = match within {
            Some(within) => within,
            None => Self::keys_of_all(scoring, sizes, work, [first, end]),
        };
        if (key as i32) < begin || (key + Self::WARP_KEYS) as i32 > stop {
            scores::keep_within(scores, scoring.window, work, place(), [first, end]);
        }
    }

    /// Shares what the warps have of the same rows: afterwards each has the largest scores and the sums of weights of all, and shared memory their sums of values.
    ///
    /// # Safety
    ///
    /// All threads of the block call it; the ring is free.
    #[inline(always)]
    unsafe fn share(sums: &mut Fragment<S::Sums>, softmax: &mut OnlineSoftmax) {
        let (warp, lane) = (warp::warp_id(), warp::lane_id());
        let at = accumulator_coord(lane, 0);
        let rows = [at.row, at.row + 8];
        // SAFETY: each warp writes its own area, and all wait before others read it.
        unsafe {
            let exchange = |own: [f32; ROWS], f: fn(f32, f32) -> f32| {
                thread::sync_threads();
                for (row, number) in rows.into_iter().zip(own) {
                    // Without a branch: the compiler would make two of those that stand before and behind a barrier, and of the barrier.
                    let to = Self::number(warp, row).get();
                    ptx::st_shared_b32_if(to, number.to_bits(), lane.is_multiple_of(4));
                }
                thread::sync_threads();
                rows.map(|row| {
                    let of = |warp| ptx::ld_shared_f32(Self::number(warp, row).get());
                    (1..WARPS).fold(of(0), |all, warp| f(all, of(warp)))
                })
            };
            let largest = exchange(softmax.largest(), f32::max);
            sums.scale_rows(softmax.rebase(largest, LOG2_E));
            let totals = exchange(softmax.row_sums(), |a, b| a + b);
            softmax.set_row_sums(totals, lane.is_multiple_of(4));
            for fragment in 0..S::Sums::COLUMNS / 8 {
                let [a, b, c, d] = sums.0.fragment(fragment as usize);
                let column = fragment * 8 + at.column;
                ptx::st_shared_v2_f32(Self::pair(warp, rows[0], column).get(), [a, b]);
                ptx::st_shared_v2_f32(Self::pair(warp, rows[1], column).get(), [c, d]);
            }
        }
    }

    /// Where a warp has its sums of a row, in a column and the next.
    #[inline(always)]
    fn pair(warp: u32, row: u32, column: u32) -> SharedAddress {
        let word = row * S::Sums::COLUMNS + column;
        SharedAddress::dynamic().offset(warp * Self::SHARED_SUMS_BYTES + word * 4)
    }

    /// Where a warp has a number of a row.
    #[inline(always)]
    fn number(warp: u32, row: u32) -> SharedAddress {
        Self::pair(warp, WARP_ROWS, 0).offset(row * 4)
    }

    /// Stores the rows, or their part.
    ///
    /// # Safety
    ///
    /// All threads of the block call it; what is written is valid for writes, and no other block has these rows, or this part of them.
    #[inline(always)]
    unsafe fn store(
        attended: &Attended<S::Sums>,
        tensors: &Tensors,
        sizes: &Sizes,
        lse: GlobalMut<f32>,
        parts: &Parts,
        part: u32,
        work: &Work,
    ) {
        let lane = warp::lane_id();
        let at = accumulator_coord(lane, 0);
        let first = work.row + Self::row_warp() * WARP_ROWS + at.row;
        let rows = [first, first + 8].map(|row| OutputRow::of(tensors, sizes, parts, part, work, row));
        let totals = [0, 1].map(|half: usize| {
            if rows[half].counts {
                attended.totals[half]
            } else {
                let lse = if parts.count > 1 { Parts::NO_ROW } else { f32::NEG_INFINITY };
                Total { scale: 0.0, lse }
            }
        });
        // SAFETY: the caller's promise.
        unsafe {
            if lane.is_multiple_of(4) && Self::key_warp() == 0 {
                for half in 0..ROWS {
                    rows[half].store_lse(lse, parts, part, totals[half].lse);
                }
            }
            if S::KEY_WARPS == 1 {
                for fragment in 0..S::Sums::COLUMNS / 8 {
                    let [a, b, c, d] = attended.sums.0.fragment(fragment as usize);
                    let column = fragment * 8 + at.column;
                    rows[0].store::<T>(tensors, parts, column, [a, b], totals[0].scale);
                    rows[1].store::<T>(tensors, parts, column, [c, d], totals[1].scale);
                }
                return;
            }
            // What rows are multiplied by, for whoever stores them.
            thread::sync_threads();
            for (half, total) in totals.iter().enumerate() {
                let to = Self::number(0, at.row + 8 * half as u32).get();
                let is_first = lane.is_multiple_of(4) && Self::key_warp() == 0;
                ptx::st_shared_b32_if(to, total.scale.to_bits(), is_first);
            }
            thread::sync_threads();
            let pairs = S::Sums::COLUMNS / 2;
            let mut index = thread::thread_idx_x();
            while index < WARP_ROWS * pairs {
                let (row, column) = (index / pairs, 2 * (index % pairs));
                let of = |warp| ptx::ld_shared_v2_f32(Self::pair(warp, row, column).get());
                let sum = (1..WARPS).fold(of(0), |[a, b], warp| {
                    let [c, d] = of(warp);
                    [a + c, b + d]
                });
                let scale = ptx::ld_shared_f32(Self::number(0, row).get());
                let to = OutputRow::of(tensors, sizes, parts, part, work, work.row + row);
                to.store::<T>(tensors, parts, column, sum, scale);
                // Opaque: copies of the loop are worth nothing.
                index = ptx::opaque(index + THREADS);
            }
        }
    }
}

/// Where a matrix of `rows` rows in boxes has byte `byte` of a row.
#[inline(always)]
pub(super) fn place(rows: u32, row: u32, byte: u32) -> u32 {
    let first = byte / BOX_ROW_BYTES * rows * BOX_ROW_BYTES;
    first + Swizzle::Bytes128.apply(row * BOX_ROW_BYTES + byte % BOX_ROW_BYTES)
}
