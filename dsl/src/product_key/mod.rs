//! Product-key retrieval: for each row of queries the k best of n² experts, whose scores are sums of two scores of n sub-keys, and
//! what each of them counts.
//!
//! A block has 32 or 64 rows of queries. It normalises them and multiplies each half with all sub-keys of that half, 32
//! for each warp at a time. It keeps the k best of each row. Of scores in registers, those that a bound does not rule
//! out become candidates, and are sorted at the end. Of the sums of these it keeps the k best again. So no score leaves
//! the block. The blocks of a cluster share the sub-keys: each has a half of the queries, and a part of that half's
//! sub-keys if they are more than two. What they have kept they send each other, and each goes on with some of the rows.

// Loops over rows and registers index several arrays by constants: an iterator of each by value would be an array in local memory.
#![allow(clippy::needless_range_loop)]

mod candidates;
mod element;
mod gradient;
mod lists;
mod params;
mod queries;
mod scores;

use core::marker::PhantomData;

use candidates::{COLUMN_BYTES, Chunk, ROOM, SCORE_BYTES, maxima_row};
pub use element::QueryElement;
use element::{QUERY_FRAGMENTS, QUERY_ROWS};
pub use gradient::{GRADIENT_BYTES, GRADIENT_ROWS, GRADIENT_THREADS, ProductKeyGradientParams, gradients};
pub use params::{
    GATE_IDENTITY, GATE_RELU, GATE_SIGMOID, GATE_SOFTMAX, NORM_BATCH, NORM_L2, NORM_LAYER, NORM_NONE,
    NORM_RMS, ProductKeyParams, QueryNormParams, pairs,
};
use queries::{Queries, describe_rows};
use scores::{Keys, Scores, score_chunk, score_row, store_scores};

use crate::launch::{Global, GlobalMut};
use crate::shared::SharedAddress;
use crate::{grid, ptx, thread, warp};

/// Sub-keys that a warp multiplies at a time.
const WARP_KEYS: u32 = 32;
/// Fragments of a warp's sub-keys.
const KEY_FRAGMENTS: usize = WARP_KEYS as usize / 8;
/// Columns of the queries that are in shared memory at a time.
pub const PIECE: u32 = 128;
/// Bytes of 32 rows of the queries there: f32, or two parts of 16 bits.
const QUERY_BYTES: u32 = QUERY_ROWS * PIECE * 4;
/// Slots of a warp's ring of sub-keys.
const STAGES: u32 = 2;
/// Bytes of a sub-key in a slot.
const SLOT_ROW: u32 = 64;
/// Bytes of a slot.
const SLOT_BYTES: u32 = WARP_KEYS * SLOT_ROW;
/// k-steps of a slot.
const SLOT_STEPS: u32 = SLOT_ROW / 32;
/// Bytes of a warp's ring.
const RING_BYTES: u32 = STAGES * SLOT_BYTES;
/// Rows whose scores are there at a time.
const SCORE_ROWS: u32 = QUERY_ROWS;
/// Sums that a warp compares at a time, at most.
const MOST_SUMS: u32 = 4 * warp::SIZE;
/// Bytes of a warp's sums: entries, and keys of 32 of them.
const SUM_BYTES: u32 = MOST_SUMS * 8 + warp::SIZE * 4;
/// A number above that of chunks: a half has at most 2¹⁶ sub-keys.
const ONE_BY_ONE: u32 = 1 << 16;
/// Bytes of what is known of a row: mean, factor, power of two, and its reciprocal.
const ROW_BYTES: u32 = 16;
const _: () = assert!(SUM_BYTES <= RING_BYTES);

/// How a block retrieves experts.
pub trait ProductKeyShape {
    /// The sub-keys' type.
    type Keys: QueryElement;
    /// Threads of a block.
    const THREADS: u32;
    /// Rows of queries of a block or cluster.
    const ROWS: u32;
    /// Blocks that share rows, at most.
    const CLUSTER: u32;
    /// How many experts of a row are found at most.
    const MOST: u32;
    /// Sub-keys that a block multiplies at a time.
    const CHUNK: u32;
    /// Blocks that a multiprocessor is to hold at a time.
    const MIN_BLOCKS: u32;
    /// Bytes of shared memory.
    const SHARED_BYTES: u32;

    /// Finds the `k` best experts of each row of queries, best first, of equal ones that of the lowest id, and their gates.
    ///
    /// q is row-major and without gaps: a row of 2 · `half` columns for each token and head, heads first. `row_step` is 1 where all heads share the
    /// sub-keys. Then the grid has a block, or the blocks of a cluster, for each `ROWS` rows along x. Else `row_step` is the number of heads. Then the grid
    /// has as many along x for each `ROWS` tokens, and one along y for each head. Where clusters take several rows in turn, the grid may have fewer along x.
    ///
    /// # Safety
    ///
    /// Every thread of every block of the grid calls it. The pointers are valid for what the parameters describe; sub-keys begin at
    /// multiples of 16 bytes. `ids` and `gates` overlap nothing else. `p.heads` and `p.half` are not 0, `p.k` is 1 to `MOST`, and
    /// the grid is launched in clusters of 2 to the power of `p.cluster_log2` blocks, at most `CLUSTER`.
    unsafe fn retrieve(
        q: Global<f32>,
        keys_1: Global<Self::Keys>,
        keys_2: Global<Self::Keys>,
        norm: QueryNormParams,
        ids: GlobalMut<u32>,
        gates: GlobalMut<f32>,
        p: ProductKeyParams,
    );
}

/// A block of `WARPS` warps with 16 · `FRAGMENTS` rows of queries, one of up to `CLUSTER` that share them, which keeps the 32 · `SLOTS` best, for
/// sub-keys of type `T`. With `ROUNDS`, clusters take other rows when they are done with theirs, until there are none left: a grid may have
/// as few along x as find room.
pub struct ProductKeyBlock<
    T,
    const FRAGMENTS: usize,
    const SLOTS: usize,
    const CLUSTER: u32,
    const WARPS: u32,
    const ROUNDS: bool = false,
>(PhantomData<T>);

/// Where a block's data are in shared memory.
#[derive(Clone, Copy)]
struct Places {
    /// Warps of the block.
    warps: u32,
    query: u32,
    ring: u32,
    /// The largest scores of groups of them, of each row.
    maxima: u32,
    /// The candidates of each row: scores, and numbers of sub-keys.
    scores: u32,
    columns: u32,
    /// The lists of the best: for each half that the block has, for each row. Those of the last half are where the candidates' scores have been.
    lists: u32,
    rows: u32,
    /// For each row, what scores are compared with, and how many candidates there are.
    bounds: u32,
    counts: u32,
    /// Of each half, how many candidates there was no room for.
    overflow: u32,
    pairs: u32,
    /// The warp's sums.
    sums: u32,
}

impl Places {
    /// This warp's ring.
    #[inline(always)]
    fn ring_of_warp(&self) -> u32 {
        self.ring + warp::warp_id() * RING_BYTES
    }

    /// Where a row's candidates are: scores and numbers.
    #[inline(always)]
    fn candidates_of(&self, row: u32) -> (u32, u32) {
        (self.scores + row * SCORE_BYTES, self.columns + row * COLUMN_BYTES)
    }
}

impl<
    T: QueryElement,
    const FRAGMENTS: usize,
    const SLOTS: usize,
    const CLUSTER: u32,
    const WARPS: u32,
    const ROUNDS: bool,
> ProductKeyBlock<T, FRAGMENTS, SLOTS, CLUSTER, WARPS, ROUNDS>
{
    /// Rows of the block, of which warp w has w, w + `WARPS` and so on.
    const ROWS: u32 = FRAGMENTS as u32 * 16;
    /// Halves that a block has.
    const HALVES: u32 = if CLUSTER == 1 { 2 } else { 1 };
    /// Bytes of a list.
    const LIST_BYTES: u32 = SLOTS as u32 * warp::SIZE * 8;
    const RING_AT: u32 = FRAGMENTS as u32 / QUERY_FRAGMENTS as u32 * QUERY_BYTES;
    /// Whether candidates are found first, which is so for up to 32 places.
    const FINDS_CANDIDATES: bool = SLOTS == 1;
    /// Halves whose lists have places of their own.
    const LISTS: u32 = Self::HALVES - Self::FINDS_CANDIDATES as u32;
    const CANDIDATE_ROWS: u32 = if Self::FINDS_CANDIDATES { Self::ROWS } else { 0 };
    /// Bytes of the rings, which the scores take the place of when they are done.
    const RINGS_BYTES: u32 = WARPS * RING_BYTES;
    const MAXIMA_AT: u32 = Self::RING_AT + Self::RINGS_BYTES;
    const SCORES_AT: u32 = Self::MAXIMA_AT + Self::ROWS * maxima_row(WARPS);
    const COLUMNS_AT: u32 = Self::SCORES_AT + Self::CANDIDATE_ROWS * SCORE_BYTES;
    const LISTS_AT: u32 = Self::COLUMNS_AT + Self::CANDIDATE_ROWS * COLUMN_BYTES;
    const ROWS_AT: u32 = Self::LISTS_AT + Self::LISTS * Self::ROWS * Self::LIST_BYTES;
    const BOUNDS_AT: u32 = Self::ROWS_AT + Self::ROWS * ROW_BYTES;
    const COUNTS_AT: u32 = Self::BOUNDS_AT + Self::ROWS * 4;
    const OVERFLOW_AT: u32 = Self::COUNTS_AT + Self::ROWS * 4;
    const PAIRS_AT: u32 = Self::OVERFLOW_AT + Self::HALVES * 4;
    const END: u32 = Self::PAIRS_AT + pairs(SLOTS as u32 * warp::SIZE) * 4;
    /// Bytes of what the blocks of a cluster send each other.
    const RECEIVED: u32 = Self::ROWS * Self::LIST_BYTES;
    const VALID: () = {
        assert!(FRAGMENTS.is_multiple_of(QUERY_FRAGMENTS) && FRAGMENTS <= 2 * QUERY_FRAGMENTS);
        assert!(CLUSTER.is_power_of_two() && (CLUSTER == 1 || SLOTS == 1) && (CLUSTER > 1 || !ROUNDS));
        // What a cluster's blocks send each other is where the scores have been.
        assert!(CLUSTER == 1 || Self::RECEIVED + WARPS * SUM_BYTES <= Self::RINGS_BYTES);
        // Scores lie where rings and maxima have been.
        assert!(SCORE_ROWS * score_row(WARPS) <= Self::RINGS_BYTES + QUERY_ROWS * maxima_row(WARPS));
        // Each four lanes of eight warps have a word of a row's maxima, or two.
        assert!(WARPS == 8 || WARPS == 16);
        // A list takes the place of its row's candidates.
        assert!(SLOTS > 1 || Self::LIST_BYTES <= SCORE_BYTES);
        assert!(Self::ROWS.is_multiple_of(2 * WARPS) && Self::ROWS.is_multiple_of(CLUSTER));
    };

    #[inline(always)]
    fn places() -> Places {
        let base = SharedAddress::dynamic().get();
        let ring = base + Self::RING_AT;
        let sums = if CLUSTER == 1 {
            ring + warp::warp_id() * RING_BYTES
        } else {
            ring + Self::RECEIVED + warp::warp_id() * SUM_BYTES
        };
        Places {
            warps: WARPS,
            query: base,
            ring,
            maxima: base + Self::MAXIMA_AT,
            scores: base + Self::SCORES_AT,
            columns: base + Self::COLUMNS_AT,
            lists: base + Self::LISTS_AT,
            rows: base + Self::ROWS_AT,
            bounds: base + Self::BOUNDS_AT,
            counts: base + Self::COUNTS_AT,
            overflow: base + Self::OVERFLOW_AT,
            pairs: base + Self::PAIRS_AT,
            sums,
        }
    }

    /// Where the lists of a half of the block's are: the first row's, and bytes from one to the next.
    #[inline(always)]
    fn lists_of(places: &Places, half_of_block: u32) -> [u32; 2] {
        if Self::FINDS_CANDIDATES && half_of_block + 1 == Self::HALVES {
            [places.scores, SCORE_BYTES]
        } else {
            [places.lists + half_of_block * Self::ROWS * Self::LIST_BYTES, Self::LIST_BYTES]
        }
    }

    /// The chunk after `done` others, of those from `begin` on and before `end` that are the block's.
    #[inline(always)]
    fn chunk([begin, end]: [u32; 2], done: u32, [n, k]: [u32; 2]) -> Chunk {
        let of_block = (end * Self::CHUNK).min(n) - begin * Self::CHUNK;
        Chunk { first: (begin + done) * Self::CHUNK, size: Self::CHUNK, n, k, of_block, is_first: done == 0 }
    }

    /// There are no candidates yet.
    ///
    /// # Safety
    ///
    /// All threads of the block call it, and nothing else touches their numbers before a barrier.
    #[inline(always)]
    unsafe fn clear_counts(places: &Places) {
        let thread = thread::thread_idx_x();
        if thread < Self::ROWS + Self::HALVES {
            // SAFETY: the caller's promise; the numbers of both kinds lie side by side.
            unsafe { ptx::st_shared_b32(places.counts + thread * 4, 0) }
        }
    }

    /// Keeps the best of a half's sub-keys, of the `chunks` from the first on and before the second.
    ///
    /// # Safety
    ///
    /// All threads of the block call it; `half_of_block` is the half's number among those of the block.
    #[inline(always)]
    unsafe fn score_half(
        queries: &Queries,
        keys_of: &impl Fn(u32) -> Keys<T>,
        places: &Places,
        [half, half_of_block, rows]: [u32; 3],
        chunks: &impl Fn() -> [u32; 2],
    ) {
        let (n, k) = (queries.p.n, queries.p.k);
        let [list, stride] = Self::lists_of(places, half_of_block);
        let places = &Places { overflow: places.overflow + half_of_block * 4, ..*places };
        // Chunks that are done, in one register with whether their scores are offered to the lists one after the other: of the rows that had too many
        // candidates. Opaque: the compiler would copy all that is done in either way.
        let mut state = ptx::opaque(if Self::FINDS_CANDIDATES { 0 } else { ONE_BY_ONE });
        loop {
            // Asked for again each time, as the sub-keys are: what is known of them would stay in registers that there are not enough of.
            let [begin, end] = chunks();
            if begin + state % ONE_BY_ONE < end {
                // SAFETY: the caller's promise; what is read and written between barriers is said where that is done.
                unsafe {
                    let keys = keys_of(ptx::opaque(half));
                    let done = state % ONE_BY_ONE;
                    let chunk = Self::chunk([begin, end], done, [n, k]);
                    let mut scores =
                        score_chunk::<T, FRAGMENTS>(queries, &keys, places, [half, rows], &chunk);
                    state = ptx::opaque(state + 1);
                    let ([begin, end], done) = (chunks(), state % ONE_BY_ONE);
                    let chunk = Self::chunk([begin, end], done - 1, [n, k]);
                    if !Self::FINDS_CANDIDATES || state >= ONE_BY_ONE {
                        Self::offer_chunk(&scores, places, &chunk, rows, [list, stride]);
                    } else {
                        Self::find_candidates(&mut scores, places, &chunk, rows, [done, end - begin]);
                    }
                }
                continue;
            }
            if !Self::FINDS_CANDIDATES || state >= ONE_BY_ONE {
                break;
            }
            // SAFETY: the caller's promise. The barrier stands between candidates and their sorting, and all threads read the same number.
            unsafe {
                thread::sync_threads();
                candidates::sort_candidates(places, k, rows, list, stride);
                if ptx::ld_shared_b32(places.overflow) == 0 {
                    break;
                }
            }
            state = ptx::opaque(ONE_BY_ONE);
        }
        if half_of_block + 1 < Self::HALVES && Self::FINDS_CANDIDATES {
            // SAFETY: the counts of the warp's rows are read by no other warp, and those of the next half follow a barrier.
            unsafe {
                let row = warp::warp_id() + warp::lane_id() * WARPS;
                warp::sync_warp();
                if row < Self::ROWS {
                    ptx::st_shared_b32(places.counts + row * 4, 0);
                }
            }
        }
    }

    /// Finds the candidates of a chunk, number `done` of the block's `chunks` if counted from 1.
    ///
    /// # Safety
    ///
    /// All threads of the block call it, and the ring is free.
    #[inline(always)]
    unsafe fn find_candidates(
        scores: &mut Scores<FRAGMENTS>,
        places: &Places,
        of: &Chunk,
        rows: u32,
        [done, chunks]: [u32; 2],
    ) {
        of.mask_end(scores);
        // The bounds follow the scores in steps of 1, 2, 4, 6, 8, 12, 16 chunks and so on: so there are never many more candidates than at first.
        let is_step = done & (done - 1) == 0 || done.is_multiple_of(2) && is_three_times_power(done);
        // SAFETY: the caller's promise. The barriers stand before and behind all that the bounds' finding touches.
        unsafe {
            candidates::put_maxima(scores, places, of);
            if is_step || done == chunks || of.k > warp::SIZE / 2 {
                thread::sync_threads();
                candidates::put_bounds(places, of, [rows, Self::ROWS], done == chunks);
                thread::sync_threads();
            }
            // What the warp has read of the ring takes the scores now.
            warp::sync_warp();
            candidates::add_candidates::<FRAGMENTS, 0>(scores, places, of);
            if FRAGMENTS > QUERY_FRAGMENTS && rows > QUERY_ROWS {
                candidates::add_candidates::<FRAGMENTS, QUERY_FRAGMENTS>(scores, places, of);
            }
        }
    }

    /// Offers the scores of a chunk, one after the other, to the lists of rows that have more candidates than there is room for, or of all.
    ///
    /// # Safety
    ///
    /// As [`find_candidates`](Self::find_candidates), and all warps' rings are free once they have come here. They are free again when it returns.
    #[inline(always)]
    unsafe fn offer_chunk(
        scores: &Scores<FRAGMENTS>,
        places: &Places,
        of: &Chunk,
        rows: u32,
        [list, stride]: [u32; 2],
    ) {
        let mut row = 0;
        while row < rows {
            // SAFETY: the caller's promise; barriers stand between the writes and reads of scores.
            unsafe {
                thread::sync_threads();
                if FRAGMENTS > QUERY_FRAGMENTS && row > 0 {
                    store_scores::<FRAGMENTS, QUERY_FRAGMENTS>(scores, places);
                } else {
                    store_scores::<FRAGMENTS, 0>(scores, places);
                }
                thread::sync_threads();
                let mut own = warp::warp_id();
                while own < SCORE_ROWS && row + own < rows {
                    let number = row + own;
                    if !Self::FINDS_CANDIDATES || ptx::ld_shared_b32(places.counts + number * 4) > ROOM {
                        let scores = places.ring + own * score_row(WARPS);
                        lists::select::<SLOTS>(of, scores, list + number * stride);
                    }
                    own = ptx::opaque(own + WARPS);
                }
            }
            row = ptx::opaque(row + SCORE_ROWS);
        }
        // SAFETY: the caller's promise: all threads are here.
        unsafe { thread::sync_threads() }
    }

    /// Sends what the block has kept to those that go on with it: row r to block r mod 2 to the power of `log2`. Returns when all is there that the other
    /// blocks send to this one: for each of its rows the parts of the first half's list, then those of the second's, `send_bytes(k)` each, where
    /// the scores have been.
    ///
    /// # Safety
    ///
    /// All threads of the cluster call it.
    #[inline(always)]
    unsafe fn exchange(places: &Places, rows: u32, k: u32, log2: u32) {
        let (rank, lane) = (ptx::cluster_ctarank(), warp::lane_id());
        let (bytes, [list, stride]) = (send_bytes(k), Self::lists_of(places, 0));
        // SAFETY: all threads are here. The first barrier stands between the last reads of scores and what takes their place; the
        // second between that and its reads.
        unsafe {
            ptx::barrier_cluster_arrive();
            ptx::barrier_cluster_wait();
            // Two rows at a time: half a warp has a list.
            let (mut row, at) = (warp::warp_id() + lane / 16 * WARPS, lane % 16 * 16);
            while row < rows {
                if at < bytes {
                    let entries = ptx::ld_shared_v4_f32(list + row * stride + at);
                    let (block, place) = (row % (1 << log2), (row >> log2 << log2) + rank);
                    let to = ptx::mapa(places.ring + place * bytes + at, block);
                    ptx::st_shared_cluster_v4_f32(to, entries);
                }
                row += 2 * WARPS;
            }
            ptx::barrier_cluster_arrive();
            ptx::barrier_cluster_wait();
        }
    }
}

/// Whether a number is three times a power of two.
#[inline(always)]
fn is_three_times_power(number: u32) -> bool {
    number.count_ones() == 2 && number & number >> 1 != 0
}

/// Bytes of what is sent of a list: its first `k` entries, and another one if that is odd.
#[inline(always)]
fn send_bytes(k: u32) -> u32 {
    k.next_multiple_of(2) * 8
}

impl<
    T: QueryElement,
    const FRAGMENTS: usize,
    const SLOTS: usize,
    const CLUSTER: u32,
    const WARPS: u32,
    const ROUNDS: bool,
> ProductKeyShape for ProductKeyBlock<T, FRAGMENTS, SLOTS, CLUSTER, WARPS, ROUNDS>
{
    type Keys = T;
    const THREADS: u32 = WARPS * warp::SIZE;
    const ROWS: u32 = Self::ROWS;
    const CLUSTER: u32 = CLUSTER;
    const MOST: u32 = SLOTS as u32 * warp::SIZE;
    const CHUNK: u32 = WARPS * WARP_KEYS;
    // So that 16 warps share a multiprocessor. What is made of f32 takes more registers than two blocks leave it.
    const MIN_BLOCKS: u32 = if WARPS == 8 { T::PARTS } else { 1 };
    const SHARED_BYTES: u32 = {
        let () = Self::VALID;
        Self::END
    };

    #[inline(always)]
    unsafe fn retrieve(
        q: Global<f32>,
        keys_1: Global<T>,
        keys_2: Global<T>,
        norm: QueryNormParams,
        ids: GlobalMut<u32>,
        gates: GlobalMut<f32>,
        p: ProductKeyParams,
    ) {
        let places = Self::places();
        let (rank, log2) = if CLUSTER > 1 { (ptx::cluster_ctarank(), p.cluster_log2) } else { (0, 0) };
        let head = thread::block_idx_y();
        let keys_of = |half: u32| {
            let (base, stride, head_stride) = if half == 0 {
                (keys_1, p.key_stride_1, p.head_stride_1)
            } else {
                (keys_2, p.key_stride_2, p.head_stride_2)
            };
            let base = base.offset(head as u64 * head_stride);
            Keys { base, stride, bytes: p.half * T::BYTES, n: p.n }
        };

        // SAFETY: all threads of the block are here, and come to the same barriers, since they do so by the same parameters; what they
        // read and write between them is said where they do.
        unsafe {
            if Self::FINDS_CANDIDATES {
                Self::clear_counts(&places);
            }
            if warp::warp_id() == WARPS - 1 {
                lists::write_pairs::<SLOTS>(p.k, places.pairs);
            }
            if CLUSTER > 1 {
                grid::wait_for_earlier_launches();
            }
            let mut block_row = (thread::block_idx_x() >> log2) * Self::ROWS;
            loop {
                // Rows of the block that there are.
                let rows = (p.rows - block_row).min(Self::ROWS);
                let queries = Queries { first: q, norm, first_row: block_row * p.row_step + head, p };
                describe_rows::<T>(&queries, &places, rows);
                if CLUSTER == 1 {
                    for half in 0..ptx::opaque(2) {
                        let all = || [0, ptx::opaque(p.n).div_ceil(Self::CHUNK)];
                        Self::score_half(&queries, &keys_of, &places, [half, half, rows], &all);
                    }
                    // A row's lists are those that this warp has written; the pairs stand since the first barrier.
                    warp::sync_warp();
                    let mut row = warp::warp_id();
                    while row < rows {
                        let of = [0, 1].map(|half| {
                            let [list, stride] = Self::lists_of(&places, half);
                            list + row * stride
                        });
                        let to = queries.number(row) as u64 * p.k as u64;
                        lists::finish::<SLOTS>(&places, row, of, ids.offset(to), gates.offset(to), &p);
                        row = ptx::opaque(row + WARPS);
                    }
                } else {
                    // Blocks that share the sub-keys of a half.
                    let parts = 1 << (log2 - 1);
                    let half = rank >> (log2 - 1);
                    let own = || {
                        let part = ptx::opaque(ptx::cluster_ctarank()) % parts;
                        let chunks = ptx::opaque(p.n).div_ceil(Self::CHUNK);
                        [(part * chunks) >> (log2 - 1), ((part + 1) * chunks) >> (log2 - 1)]
                    };
                    Self::score_half(&queries, &keys_of, &places, [half, 0, rows], &own);
                    Self::exchange(&places, rows, p.k, log2);
                    // Of the rows that have been sent to this block, warps take one after the other.
                    let mut number = warp::warp_id();
                    while (number << log2) + rank < rows {
                        let row = (number << log2) + rank;
                        let bytes = send_bytes(p.k);
                        let sent = places.ring + (number << log2) * bytes;
                        let mut of = [sent, sent + parts * bytes];
                        if parts > 1 {
                            // The lists have been sent, so that there is room.
                            let merged = places.scores + warp::warp_id() * 2 * Self::LIST_BYTES;
                            lists::merge(&places, sent, [parts, bytes / 8], merged, p.k);
                            of = [merged, merged + Self::LIST_BYTES];
                        }
                        let to = queries.number(row) as u64 * p.k as u64;
                        lists::finish::<SLOTS>(&places, row, of, ids.offset(to), gates.offset(to), &p);
                        number = ptx::opaque(number + WARPS);
                    }
                }
                if !ROUNDS {
                    break;
                }
                block_row = ptx::opaque(block_row) + (thread::grid_dim_x() >> log2) * Self::ROWS;
                if block_row >= ptx::opaque(p.rows) {
                    break;
                }
                // What the rows before had is read no more. The other blocks send nothing before this one comes to the next exchange.
                thread::sync_threads();
                if Self::FINDS_CANDIDATES {
                    Self::clear_counts(&places);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{ProductKeyBlock, ProductKeyShape};
    use crate::float::{Bf16, F16};

    #[test]
    fn blocks_fit_the_shared_memory_of_the_architectures_they_are_for() {
        // Every one that has no clusters.
        let few = ProductKeyBlock::<Bf16, 2, 1, 1, 8>::SHARED_BYTES;
        let many = ProductKeyBlock::<Bf16, 2, 2, 1, 8>::SHARED_BYTES;
        assert!(few.max(many) <= 99 << 10, "{few} {many}");
        // Two blocks of 164 and 228 KiB, 1 KiB of each of which is not theirs.
        assert!(2 * (few + 1024) <= 164 << 10, "{few}");
        let of_cluster = ProductKeyBlock::<Bf16, 4, 1, 8, 8>::SHARED_BYTES;
        assert!(2 * (of_cluster + 1024) <= 228 << 10, "{of_cluster}");
        let few_rows = ProductKeyBlock::<F16, 2, 1, 8, 16>::SHARED_BYTES;
        assert!(few_rows <= of_cluster, "devices that have one have the other: {few_rows}");
    }
}
