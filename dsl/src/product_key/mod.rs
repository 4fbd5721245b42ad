//! Product-key retrieval: for each row of queries the k best of n² experts, whose scores are sums of two scores of n sub-keys, and
//! what each of them counts.
//!
//! A block has 32 or 64 rows of queries. It normalises them, multiplies each half with all sub-keys of that half, 256 at a time, and keeps the k
//! best of each row; of the sums of these it keeps the k best again. So no score leaves the block. The blocks of a cluster share the
//! sub-keys: each has a half of the queries, and a part of that half's sub-keys if they are more than two. What they have kept they
//! send each other, and each goes on with some of the rows.

// Loops over rows and registers index several arrays by constants: an iterator of each by value would be an array in local memory.
#![allow(clippy::needless_range_loop)]

mod element;
mod lists;
mod params;
mod queries;

use core::marker::PhantomData;

pub use element::QueryElement;
use element::{QUERY_FRAGMENTS, QUERY_ROWS};
pub use params::{
    GATE_IDENTITY, GATE_RELU, GATE_SIGMOID, GATE_SOFTMAX, NORM_BATCH, NORM_L2, NORM_LAYER, NORM_NONE,
    NORM_RMS, ProductKeyParams, QueryNormParams, pairs,
};
use queries::{Queries, describe_rows, put_queries};

use crate::launch::{Global, GlobalMut};
use crate::layout::{CHUNK_BYTES, ChunkIndex, b_fragment_chunk, swizzled_chunk};
use crate::shared::SharedAddress;
use crate::{grid, ptx, thread, warp};

/// Warps of a block.
const WARPS: u32 = 8;
/// Sub-keys that a warp multiplies at a time.
const WARP_KEYS: u32 = 32;
/// Sub-keys that a block multiplies at a time.
pub const CHUNK: u32 = WARPS * WARP_KEYS;
/// Fragments of a warp's sub-keys.
const KEY_FRAGMENTS: usize = WARP_KEYS as usize / 8;
/// Columns of the queries that are in shared memory at a time.
pub const PIECE: u32 = 128;
/// Bytes of 32 rows of the queries there: f32, or two parts of 16 bits.
const QUERY_BYTES: u32 = QUERY_ROWS * PIECE * 4;
/// Slots of a warp's ring of sub-keys.
const STAGES: u32 = 3;
/// Bytes of a sub-key in a slot.
const SLOT_ROW: u32 = 64;
/// Bytes of a slot.
const SLOT_BYTES: u32 = WARP_KEYS * SLOT_ROW;
/// k-steps of a slot.
const SLOT_STEPS: u32 = SLOT_ROW / 32;
/// Bytes of the rings, which the scores take the place of when they are done.
const RING_BYTES: u32 = WARPS * STAGES * SLOT_BYTES;
/// Rows whose scores are there at a time.
const SCORE_ROWS: u32 = QUERY_ROWS;
/// Bytes of a row of scores: the 8 rows of a fragment begin in different banks.
const SCORE_ROW: u32 = (CHUNK + 8) * 4;
/// Behind them, bytes of a warp's candidates.
const CANDIDATE_BYTES: u32 = 1024;
/// Bytes of what is known of a row: mean, factor, power of two, and its reciprocal.
const ROW_BYTES: u32 = 16;
const _: () = assert!(SCORE_ROWS * SCORE_ROW + WARPS * CANDIDATE_BYTES <= RING_BYTES);

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
    /// Blocks that a multiprocessor is to hold at a time.
    const MIN_BLOCKS: u32;
    /// Bytes of shared memory.
    const SHARED_BYTES: u32;

    /// Finds the `k` best experts of each row of queries, best first, of equal ones that of the lowest id, and their gates.
    ///
    /// q is row-major and without gaps: a row of 2 · `half` columns for each token and head, heads first. `row_step` is 1 where all
    /// heads share the sub-keys, and the grid has a block, or the blocks of a cluster, for each `ROWS` rows along x; else it is the number of heads, and the grid
    /// has as many along x for each `ROWS` tokens, and one along y for each head.
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

/// A block with 16 · `FRAGMENTS` rows of queries, one of up to `CLUSTER` that share them, which keeps the 32 · `SLOTS` best, for sub-keys of
/// type `T`.
pub struct ProductKeyBlock<T, const FRAGMENTS: usize, const SLOTS: usize, const CLUSTER: u32>(PhantomData<T>);

/// Where a block's data are in shared memory.
#[derive(Clone, Copy)]
struct Places {
    query: u32,
    ring: u32,
    /// The lists of the best: for each half that the block has, for each row.
    lists: u32,
    rows: u32,
    pairs: u32,
}

impl Places {
    /// Where this warp's candidates are.
    #[inline(always)]
    fn candidates(&self) -> u32 {
        self.ring + SCORE_ROWS * SCORE_ROW + warp::warp_id() * CANDIDATE_BYTES
    }
}

/// A warp's scores: its sub-keys' with all rows of the block.
type Scores<const FRAGMENTS: usize> = [[[f32; 4]; KEY_FRAGMENTS]; FRAGMENTS];

impl<T: QueryElement, const FRAGMENTS: usize, const SLOTS: usize, const CLUSTER: u32>
    ProductKeyBlock<T, FRAGMENTS, SLOTS, CLUSTER>
{
    /// Rows of the block, of which warp w has w, w + 8 and so on.
    const ROWS: u32 = FRAGMENTS as u32 * 16;
    /// Halves that a block has.
    const HALVES: u32 = if CLUSTER == 1 { 2 } else { 1 };
    /// Bytes of a list.
    const LIST_BYTES: u32 = SLOTS as u32 * warp::SIZE * 8;
    const RING_AT: u32 = FRAGMENTS as u32 / QUERY_FRAGMENTS as u32 * QUERY_BYTES;
    const LISTS_AT: u32 = Self::RING_AT + RING_BYTES;
    const ROWS_AT: u32 = Self::LISTS_AT + Self::HALVES * Self::ROWS * Self::LIST_BYTES;
    const PAIRS_AT: u32 = Self::ROWS_AT + Self::ROWS * ROW_BYTES;
    const END: u32 = Self::PAIRS_AT + pairs(SLOTS as u32 * warp::SIZE) * 4;
    const VALID: () = {
        assert!(FRAGMENTS.is_multiple_of(QUERY_FRAGMENTS) && FRAGMENTS <= 2 * QUERY_FRAGMENTS);
        assert!(CLUSTER.is_power_of_two() && (CLUSTER == 1 || SLOTS == 1));
        // What a cluster's blocks send each other is where the scores have been.
        assert!(CLUSTER == 1 || Self::ROWS * 2 * Self::LIST_BYTES / 2 <= SCORE_ROWS * SCORE_ROW);
        assert!(CLUSTER == 1 || Self::ROWS.is_multiple_of(CLUSTER * WARPS));
    };

    #[inline(always)]
    fn places() -> Places {
        let base = SharedAddress::dynamic().get();
        Places {
            query: base,
            ring: base + Self::RING_AT,
            lists: base + Self::LISTS_AT,
            rows: base + Self::ROWS_AT,
            pairs: base + Self::PAIRS_AT,
        }
    }

    /// Empties the lists of the warp's rows.
    ///
    /// # Safety
    ///
    /// All threads of the block call it, and nothing else touches the lists before a barrier.
    #[inline(always)]
    unsafe fn clear_lists(places: &Places) {
        let mut at = thread::thread_idx_x() * 16;
        while at < Self::HALVES * Self::ROWS * Self::LIST_BYTES {
            // SAFETY: the caller's promise.
            unsafe { ptx::st_shared_v4_b32(places.lists + at, [0; 4]) }
            at = ptx::opaque(at + WARPS * warp::SIZE * 16);
        }
    }

    /// Keeps the best of the chunks `begin` to `end` of a half's sub-keys.
    ///
    /// # Safety
    ///
    /// All threads of the block call it; `half_of_block` is the half's number among those of the block.
    #[inline(always)]
    unsafe fn score_half(
        queries: &Queries,
        keys: &Keys<T>,
        places: &Places,
        [half, half_of_block, rows]: [u32; 3],
        [begin, end]: [u32; 2],
    ) {
        let (n, k) = (queries.p.n, queries.p.k);
        let lists = places.lists + half_of_block * Self::ROWS * Self::LIST_BYTES;
        let mut chunk = begin;
        while chunk < end {
            // SAFETY: the caller's promise; what is read and written between barriers is said where that is done.
            unsafe {
                // What the chunk before has left in the ring, and the queries, are no longer read.
                thread::sync_threads();
                let first = chunk * CHUNK;
                let scores =
                    score_chunk::<T, FRAGMENTS>(queries, keys, places, [half, rows, first], chunk == begin);
                let mut row = 0;
                while row < rows {
                    thread::sync_threads();
                    if FRAGMENTS > QUERY_FRAGMENTS && row > 0 {
                        store_scores::<FRAGMENTS, QUERY_FRAGMENTS>(&scores, places);
                    } else {
                        store_scores::<FRAGMENTS, 0>(&scores, places);
                    }
                    thread::sync_threads();
                    let mut own = warp::warp_id();
                    while own < SCORE_ROWS && row + own < rows {
                        let at = lists + (row + own) * Self::LIST_BYTES;
                        let of = lists::Chunk { scores: places.ring + own * SCORE_ROW, first, n, k };
                        if SLOTS == 1 {
                            let second = row + own + WARPS < rows;
                            lists::select_two(places, &of, at, second, chunk == begin);
                        } else {
                            lists::select::<SLOTS>(&of, at, chunk == begin);
                        }
                        own = ptx::opaque(own + if SLOTS == 1 { 2 * WARPS } else { WARPS });
                    }
                    row += SCORE_ROWS;
                }
                chunk += 1;
            }
        }
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
        let bytes = send_bytes(k);
        // SAFETY: all threads are here. The first barrier stands between the last reads of scores and what takes their place; the
        // second between that and its reads.
        unsafe {
            ptx::barrier_cluster_arrive();
            ptx::barrier_cluster_wait();
            // Two rows at a time: half a warp has a list.
            let (mut row, at) = (warp::warp_id() + lane / 16 * WARPS, lane % 16 * 16);
            while row < rows {
                if at < bytes {
                    let entries = ptx::ld_shared_v4_f32(places.lists + row * Self::LIST_BYTES + at);
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

/// Bytes of what is sent of a list: its first `k` entries, and another one if that is odd.
#[inline(always)]
fn send_bytes(k: u32) -> u32 {
    k.next_multiple_of(2) * 8
}

impl<T: QueryElement, const FRAGMENTS: usize, const SLOTS: usize, const CLUSTER: u32> ProductKeyShape
    for ProductKeyBlock<T, FRAGMENTS, SLOTS, CLUSTER>
{
    type Keys = T;
    const THREADS: u32 = WARPS * warp::SIZE;
    const ROWS: u32 = Self::ROWS;
    const CLUSTER: u32 = CLUSTER;
    const MOST: u32 = SLOTS as u32 * warp::SIZE;
    // What is made of f32 takes more registers than two blocks leave it.
    const MIN_BLOCKS: u32 = T::PARTS;
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
        let block_row = (thread::block_idx_x() >> log2) * Self::ROWS;
        // Rows of the block that there are.
        let rows = (p.rows - block_row).min(Self::ROWS);
        let queries = Queries { first: q, norm, first_row: block_row * p.row_step + head, p };
        let keys_of = |half: u32| {
            let (base, stride, head_stride) = if half == 0 {
                (keys_1, p.key_stride_1, p.head_stride_1)
            } else {
                (keys_2, p.key_stride_2, p.head_stride_2)
            };
            let base = base.offset(head as u64 * head_stride);
            Keys { base, stride, bytes: p.half * T::BYTES, n: p.n }
        };
        let chunks = p.n.div_ceil(CHUNK);

        // SAFETY: all threads of the block are here, and come to the same barriers, since they do so by the same parameters; what they
        // read and write between them is said where they do.
        unsafe {
            Self::clear_lists(&places);
            if warp::warp_id() == WARPS - 1 {
                lists::write_pairs::<SLOTS>(p.k, places.pairs);
            }
            if CLUSTER > 1 {
                grid::wait_for_earlier_launches();
            }
            describe_rows::<T>(&queries, places.rows, rows);
            if CLUSTER == 1 {
                for half in 0..ptx::opaque(2) {
                    Self::score_half(&queries, &keys_of(half), &places, [half, half, rows], [0, chunks]);
                }
                // A row's lists are those that this warp has written; the pairs stand since the first barrier.
                warp::sync_warp();
                let mut row = warp::warp_id();
                while row < rows {
                    let list = places.lists + row * Self::LIST_BYTES;
                    let of = [list, list + Self::ROWS * Self::LIST_BYTES];
                    let to = queries.number(row) as u64 * p.k as u64;
                    lists::finish::<SLOTS>(&places, row, of, ids.offset(to), gates.offset(to), &p);
                    row = ptx::opaque(row + WARPS);
                }
            } else {
                // Blocks that share the sub-keys of a half.
                let parts = 1 << (log2 - 1);
                let (half, part) = (rank >> (log2 - 1), rank % parts);
                let bound = |part: u32| (part * chunks) >> (log2 - 1);
                let own = [bound(part), bound(part + 1)];
                Self::score_half(&queries, &keys_of(half), &places, [half, 0, rows], own);
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
                        let merged = places.lists + warp::warp_id() * 2 * Self::LIST_BYTES;
                        lists::merge(sent, parts, bytes / 8, merged, p.k);
                        of = [merged, merged + Self::LIST_BYTES];
                    }
                    let to = queries.number(row) as u64 * p.k as u64;
                    lists::finish::<SLOTS>(&places, row, of, ids.offset(to), gates.offset(to), &p);
                    number = ptx::opaque(number + WARPS);
                }
            }
        }
    }
}

/// The sub-keys that a warp multiplies, of a half.
#[derive(Clone, Copy)]
struct Keys<T> {
    base: Global<T>,
    stride: u64,
    /// Bytes of a sub-key.
    bytes: u32,
    /// Sub-keys that there are from `base` on.
    n: u32,
}

impl<T: QueryElement> Keys<T> {
    /// Begins to copy slot `index` of the ring: 64 bytes of each of the sub-keys from `first` on. Closes a group, an empty one past the end.
    ///
    /// # Safety
    ///
    /// All lanes of the warp call it, and nothing touches the slot until the copy has completed.
    #[inline(always)]
    unsafe fn copy(&self, first: u32, index: u32, ring: u32) {
        let lane = warp::lane_id();
        let (row, chunk) = (lane / 4, lane % 4);
        let offset = index * SLOT_ROW + chunk * CHUNK_BYTES;
        if index * SLOT_ROW < self.bytes {
            let slot = ring + index % STAGES * SLOT_BYTES;
            for pass in 0..WARP_KEYS / 8 {
                let row = row + pass * 8;
                let key = first + row;
                let present =
                    if key < self.n { self.bytes.saturating_sub(offset).min(CHUNK_BYTES) } else { 0 };
                // Nothing is read of a place that is not there.
                let from = if present > 0 {
                    self.base.address() + key as u64 * self.stride * T::BYTES as u64 + offset as u64
                } else {
                    self.base.address()
                };
                let to = slot + swizzled_chunk(SLOT_ROW, row, chunk);
                // SAFETY: the caller's promise; so many bytes of the sub-key are left.
                unsafe { ptx::cp_async_cg_16(to, from, present) }
            }
        }
        ptx::cp_async_commit_group();
    }
}

/// Adds the products of a slot with the fragments of queries that have rows.
///
/// # Safety
///
/// All lanes of the warp call it; the slot and the queries' columns from k-step `step` on are in shared memory and visible to it.
#[inline(always)]
unsafe fn multiply<T: QueryElement, const FRAGMENTS: usize>(
    scores: &mut Scores<FRAGMENTS>,
    slot: u32,
    query: u32,
    [step, rows]: [u32; 2],
) {
    let ChunkIndex { row, chunk } = b_fragment_chunk(warp::lane_id());
    let own = swizzled_chunk(SLOT_ROW, row, chunk);
    for i in 0..SLOT_STEPS {
        let at = slot + (own ^ (i * 32));
        // SAFETY: the caller's promise.
        unsafe {
            let [a, b] = load_keys::<T>(at, 0);
            let [c, d] = load_keys::<T>(at, 1);
            let keys = [a, b, c, d];
            for (fragment, scores) in scores.iter_mut().enumerate() {
                let fragment = fragment as u32;
                // Of few rows there is little to multiply.
                if fragment == 0 || fragment * 16 < rows {
                    let panels = query + fragment / QUERY_FRAGMENTS as u32 * QUERY_BYTES;
                    let query = T::load_query(panels, step + i, fragment % QUERY_FRAGMENTS as u32);
                    T::multiply_query(scores, query, &keys);
                }
            }
        }
    }
}

/// Two fragments of sub-keys of a k-step, number `pair` of those of the slot.
///
/// # Safety
///
/// As [`multiply`].
#[inline(always)]
unsafe fn load_keys<T: QueryElement>(at: u32, pair: u32) -> [T::B; 2] {
    // SAFETY: the caller's promise.
    let [a, b, c, d] = unsafe { ptx::ldmatrix_x4(at + pair * 16 * SLOT_ROW) };
    [T::prepare_b([a, b]), T::prepare_b([c, d])]
}

/// Multiplies a half of the queries with the sub-keys of a chunk, which begins with number `first`. The queries are put into shared memory if they
/// are `new`, or come in several pieces.
///
/// # Safety
///
/// All threads of the block call it, when nothing touches the queries and the ring. The ring is free when all threads of the block have
/// returned.
#[inline(always)]
unsafe fn score_chunk<T: QueryElement, const FRAGMENTS: usize>(
    queries: &Queries,
    keys: &Keys<T>,
    places: &Places,
    [half, rows, first]: [u32; 3],
    new: bool,
) -> Scores<FRAGMENTS> {
    let ring = places.ring + warp::warp_id() * (STAGES * SLOT_BYTES);
    let first = first + warp::warp_id() * WARP_KEYS;
    let piece_slots = PIECE * T::BYTES / SLOT_ROW;
    let end = keys.bytes.div_ceil(SLOT_ROW);
    let mut scores: Scores<FRAGMENTS> = [[[0.0; 4]; KEY_FRAGMENTS]; FRAGMENTS];
    // SAFETY: a slot is this warp's; a barrier of the warp stands between its last reads and the next copy. Of the queries, a barrier of the
    // block stands between writes and reads.
    unsafe {
        for index in 0..STAGES - 1 {
            keys.copy(first, index, ring);
        }
        let mut begin = 0;
        while begin < end {
            // Queries of a single piece stay for all chunks.
            if new || end > piece_slots {
                if begin > 0 {
                    thread::sync_threads();
                }
                put_queries::<T>(queries, places, half, rows, begin * SLOT_ROW / T::BYTES);
            }
            thread::sync_threads();
            let piece_end = (begin + piece_slots).min(end);
            let mut index = begin;
            while index < piece_end {
                ptx::cp_async_wait_group(STAGES - 2);
                warp::sync_warp();
                keys.copy(first, index + STAGES - 1, ring);
                let slot = ring + index % STAGES * SLOT_BYTES;
                let step = (index - begin) * SLOT_STEPS;
                multiply::<T, FRAGMENTS>(&mut scores, slot, places.query, [step, rows]);
                index += 1;
            }
            begin += piece_slots;
        }
        ptx::cp_async_wait_all();
    }
    scores
}

/// Puts the scores of 32 rows, from fragment `FIRST` on, where the ring has been.
///
/// # Safety
///
/// All lanes of the warp call it, and nothing else touches the place.
#[inline(always)]
unsafe fn store_scores<const FRAGMENTS: usize, const FIRST: usize>(
    scores: &Scores<FRAGMENTS>,
    places: &Places,
) {
    let (group, pair) = (warp::lane_id() / 4, warp::lane_id() % 4);
    let column = warp::warp_id() * WARP_KEYS + 2 * pair;
    for fragment in 0..QUERY_FRAGMENTS {
        for (key, &[a, b, c, d]) in scores[FIRST + fragment].iter().enumerate() {
            let row = fragment as u32 * 16 + group;
            let at = places.ring + row * SCORE_ROW + (column + key as u32 * 8) * 4;
            // SAFETY: the caller's promise.
            unsafe {
                ptx::st_shared_v2_f32(at, [a, b]);
                ptx::st_shared_v2_f32(at + 8 * SCORE_ROW, [c, d]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{ProductKeyBlock, ProductKeyShape};
    use crate::float::Bf16;

    #[test]
    fn blocks_fit_the_shared_memory_of_every_architecture() {
        let bytes = [
            ProductKeyBlock::<Bf16, 2, 1, 1>::SHARED_BYTES,
            ProductKeyBlock::<Bf16, 2, 2, 1>::SHARED_BYTES,
            ProductKeyBlock::<f32, 4, 1, 8>::SHARED_BYTES,
            ProductKeyBlock::<Bf16, 4, 1, 8>::SHARED_BYTES,
        ];
        assert!(bytes.iter().all(|&bytes| bytes <= 99 << 10), "{bytes:?}");
    }
}
