//! Product-key retrieval: for each row of queries the k best of n² experts, whose scores are sums of two scores of n sub-keys, and
//! what each of them counts.
//!
//! A block has 32 rows of queries. It normalises them, multiplies each half with all sub-keys of that half, 256 at a time, and keeps the k
//! best of each row; of the sums of these it keeps the k best again. So no score leaves the block.

mod lists;
mod queries;

use warpsmith_dsl::float::{Bf16, F16};
use warpsmith_dsl::gemm::query::{QUERY_FRAGMENTS, QUERY_ROWS, QueryElement};
use warpsmith_dsl::launch::{Global, GlobalMut};
use warpsmith_dsl::layout::{CHUNK_BYTES, ChunkIndex, b_fragment_chunk, swizzled_chunk};
use warpsmith_dsl::shared::SharedAddress;
use warpsmith_dsl::{KernelParam, kernel, ptx, thread, warp};

pub use lists::{GATE_IDENTITY, GATE_RELU, GATE_SIGMOID, GATE_SOFTMAX};
use lists::{finish, select, write_pairs};
pub use queries::{NORM_BATCH, NORM_L2, NORM_LAYER, NORM_NONE, NORM_RMS, QueryNormParams};
use queries::{Queries, put_queries};

/// Rows of queries of a block.
pub const ROWS: u32 = QUERY_ROWS;
/// Warps of a block.
const WARPS: u32 = 8;
/// Threads of a block.
pub const THREADS: u32 = WARPS * warp::SIZE;
/// Rows whose best a warp keeps.
const WARP_ROWS: u32 = ROWS / WARPS;
/// Sub-keys that a warp multiplies at a time.
const WARP_KEYS: u32 = 32;
/// Sub-keys that a block multiplies at a time.
pub const CHUNK: u32 = WARPS * WARP_KEYS;
/// Fragments of a warp's sub-keys.
const KEY_FRAGMENTS: usize = WARP_KEYS as usize / 8;
/// Pairs of these, which are loaded together.
const KEY_PAIRS: usize = KEY_FRAGMENTS / 2;
/// Columns of the queries that are in shared memory at a time.
pub const PIECE: u32 = 128;
/// Bytes of the queries there: f32, or two parts of 16 bits.
const QUERY_BYTES: u32 = ROWS * PIECE * 4;
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
/// Bytes of a row of scores: the 8 rows of a fragment begin in different banks.
const SCORE_ROW: u32 = (CHUNK + 8) * 4;
/// Bytes of what is known of a row: mean, factor, power of two, and its reciprocal.
const ROW_BYTES: u32 = 16;
const _: () = assert!(ROWS * SCORE_ROW <= RING_BYTES);

/// Pairs of ranks of both halves whose sum can be among the `k` best: those that at most k − 1 others are at least as good as.
#[must_use]
pub const fn pairs(k: u32) -> u32 {
    let (mut pairs, mut rank) = (0, 1);
    while rank <= k {
        pairs += k / rank;
        rank += 1;
    }
    pairs
}

/// Shared memory of a block that keeps the 32 · `slots` best.
const fn shared_bytes(slots: u32) -> u32 {
    let lists = 2 * ROWS * slots * warp::SIZE * 8;
    QUERY_BYTES + RING_BYTES + lists + ROWS * ROW_BYTES + pairs(slots * warp::SIZE) * 4
}

/// The sizes of a retrieval, in elements.
#[derive(Clone, Copy, Debug, KernelParam)]
#[repr(C)]
pub struct ProductKeyParams {
    /// From one sub-key of the first half to the next: a multiple of 16 bytes.
    pub key_stride_1: u64,
    /// The same of the second half.
    pub key_stride_2: u64,
    /// From the sub-keys of one head to those of the next, of the first half, where the grid has an axis for heads: a multiple of 16 bytes.
    pub head_stride_1: u64,
    /// The same of the second half.
    pub head_stride_2: u64,
    /// Rows of queries that share sub-keys.
    pub rows: u32,
    /// From one of them to the next: 1, or the number of heads where each has sub-keys of its own.
    pub row_step: u32,
    /// Heads, at least 1: row r of all queries is one of head r mod `heads`.
    pub heads: u32,
    /// Sub-keys of a half.
    pub n: u32,
    /// Columns of a half.
    pub half: u32,
    /// How many are kept: 1 to 32 · `SLOTS`, and at most n.
    pub k: u32,
    /// [`pairs`] of k.
    pub pairs: u32,
    /// One of the constants.
    pub gate: u32,
    /// What scores are multiplied with before the gate.
    pub inverse_temperature: f32,
    /// Keeps the size a multiple of the alignment; its value is not read.
    pub reserved: u32,
}

/// Where a block's data are in shared memory.
#[derive(Clone, Copy)]
struct Places {
    query: u32,
    ring: u32,
    lists: u32,
    rows: u32,
    pairs: u32,
}

impl Places {
    #[inline(always)]
    fn new(slots: u32) -> Self {
        let query = SharedAddress::dynamic().get();
        let ring = query + QUERY_BYTES;
        let lists = ring + RING_BYTES;
        let rows = lists + 2 * ROWS * slots * warp::SIZE * 8;
        Self { query, ring, lists, rows, pairs: rows + ROWS * ROW_BYTES }
    }

    /// Where place `place` of a row's list of a half is.
    #[inline(always)]
    fn list(&self, slots: u32, half: u32, row: u32, place: u32) -> u32 {
        self.lists + ((half * ROWS + row) * slots * warp::SIZE + place) * 8
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

/// A warp's scores: its sub-keys' with all rows of the block.
type Scores = [[[f32; 4]; KEY_FRAGMENTS]; QUERY_FRAGMENTS];

/// Adds the products of a slot.
///
/// # Safety
///
/// All lanes of the warp call it; the slot and the queries' columns from k-step `step` on are in shared memory and visible to it.
#[inline(always)]
unsafe fn multiply<T: QueryElement>(scores: &mut Scores, slot: u32, query: u32, step: u32) {
    let ChunkIndex { row, chunk } = b_fragment_chunk(warp::lane_id());
    let own = swizzled_chunk(SLOT_ROW, row, chunk);
    for i in 0..SLOT_STEPS {
        let at = slot + (own ^ (i * 32));
        // SAFETY: the caller's promise.
        unsafe {
            let query = [0, 1].map(|fragment| T::load_query(query, step + i, fragment));
            for pair in 0..KEY_PAIRS {
                let keys = load_keys::<T>(at, pair);
                for (scores, &query) in scores.iter_mut().zip(&query) {
                    multiply_pair::<T>(scores, pair, query, keys);
                }
            }
        }
    }
}

/// Two fragments of sub-keys of a k-step.
///
/// # Safety
///
/// As [`multiply`].
#[inline(always)]
unsafe fn load_keys<T: QueryElement>(at: u32, pair: usize) -> [T::B; 2] {
    // SAFETY: the caller's promise.
    let [a, b, c, d] = unsafe { ptx::ldmatrix_x4(at + pair as u32 * 16 * SLOT_ROW) };
    [T::prepare_b([a, b]), T::prepare_b([c, d])]
}

/// Adds the products of a fragment of queries with two of sub-keys.
///
/// # Safety
///
/// As [`multiply`].
#[inline(always)]
unsafe fn multiply_pair<T: QueryElement>(
    scores: &mut [[f32; 4]; KEY_FRAGMENTS],
    pair: usize,
    query: T::Parts,
    [first, second]: [T::B; 2],
) {
    // SAFETY: the caller's promise.
    unsafe {
        T::multiply_query(&mut scores[2 * pair], query, first);
        T::multiply_query(&mut scores[2 * pair + 1], query, second);
    }
}

/// Finds the `k` best experts of each row of queries, best first, of equal ones that of the lowest id, and their gates.
///
/// q is row-major and without gaps: a row of 2 · `half` columns for each token and head, heads first. `row_step` is 1 where all heads
/// share the sub-keys, and the grid has a block for each [`ROWS`] rows along x; else it is the number of heads, and the grid has one along x
/// for each [`ROWS`] tokens, and one along y for each head.
///
/// The name of an instance tells the type of the sub-keys, and how many are kept at most.
///
/// # Safety
///
/// The pointers are valid for what the parameters describe; sub-keys begin at multiples of 16 bytes. `ids` and `gates` overlap nothing
/// else. `p.heads` is not 0, and `p.half` is not 0.
#[kernel(
    family = product_key_topk,
    block = [THREADS, 1, 1],
    // What is made of f32 takes more registers than two blocks leave it.
    min_blocks = <T as QueryElement>::PARTS,
    shared = shared_bytes(SLOTS as u32),
    instances = [
        product_key_topk_f16_32 = <F16, 1>,
        product_key_topk_f16_64 = <F16, 2>,
        product_key_topk_bf16_32 = <Bf16, 1>,
        product_key_topk_bf16_64 = <Bf16, 2>,
        product_key_topk_f32_32 = <f32, 1>,
        product_key_topk_f32_64 = <f32, 2>,
    ],
)]
pub unsafe fn product_key_topk<T: QueryElement, const SLOTS: usize>(
    q: Global<f32>,
    keys_1: Global<T>,
    keys_2: Global<T>,
    norm: QueryNormParams,
    ids: GlobalMut<u32>,
    gates: GlobalMut<f32>,
    p: ProductKeyParams,
) {
    let slots = SLOTS as u32;
    let places = Places::new(slots);
    let head = thread::block_idx_y();
    let block_row = thread::block_idx_x() * ROWS;
    // Rows of the block that there are.
    let rows = (p.rows - block_row).min(ROWS);
    let queries = Queries { first: q, norm, first_row: block_row * p.row_step + head, p };
    let ring = places.ring + warp::warp_id() * (STAGES * SLOT_BYTES);
    let own_row = warp::warp_id() * WARP_ROWS;

    // SAFETY: all threads of the block are here, and come to the same barriers, since they do so by the same parameters; what they read
    // and write between them is said where they do.
    unsafe {
        for row in own_row..own_row + ptx::opaque(WARP_ROWS) {
            let mut moments = [0.0; 2];
            let mut scales = [1.0; 2];
            if row < rows {
                moments = queries.moments(row);
                if T::IS_SCALED {
                    scales = queries.scales(row, moments);
                }
            }
            if warp::lane_id() == 0 {
                let known = [moments[0], moments[1], scales[0], scales[1]];
                ptx::st_shared_v4_f32(places.rows + row * ROW_BYTES, known);
            }
        }
        if warp::warp_id() == 0 {
            write_pairs::<SLOTS>(p.k, places.pairs);
        }

        for half in 0..ptx::opaque(2) {
            let (base, stride, head_stride) = if half == 0 {
                (keys_1, p.key_stride_1, p.head_stride_1)
            } else {
                (keys_2, p.key_stride_2, p.head_stride_2)
            };
            let base = base.offset(head as u64 * head_stride);
            let keys = Keys { base, stride, bytes: p.half * T::BYTES, n: p.n };
            let mut chunk = 0;
            while chunk < p.n {
                // What the chunk before has left in the ring, and the queries, are no longer read.
                thread::sync_threads();
                score_chunk(&queries, &keys, &places, [half, rows, chunk], ring);
                for row in own_row..own_row + ptx::opaque(WARP_ROWS) {
                    if row < rows {
                        select::<SLOTS>(&places, [half, row, chunk], p.n, p.k);
                    }
                }
                chunk += CHUNK;
            }
        }

        // A row's lists are those that this warp has written.
        warp::sync_warp();
        for row in own_row..own_row + ptx::opaque(WARP_ROWS) {
            if row < rows {
                let to = queries.number(row) as u64 * p.k as u64;
                finish::<SLOTS>(&places, row, ids.offset(to), gates.offset(to), &p);
            }
        }
    }
}

/// Multiplies a half of the queries with a chunk of its sub-keys, and puts the scores where the ring was. When it returns, all of
/// them are there.
///
/// # Safety
///
/// All threads of the block call it, when nothing touches the queries and the ring.
#[inline(always)]
unsafe fn score_chunk<T: QueryElement>(
    queries: &Queries,
    keys: &Keys<T>,
    places: &Places,
    [half, rows, chunk]: [u32; 3],
    ring: u32,
) {
    let first = chunk + warp::warp_id() * WARP_KEYS;
    let piece_slots = PIECE * T::BYTES / SLOT_ROW;
    let end = keys.bytes.div_ceil(SLOT_ROW);
    let mut scores: Scores = [[[0.0; 4]; KEY_FRAGMENTS]; QUERY_FRAGMENTS];
    // SAFETY: a slot is this warp's; a barrier of the warp stands between its last reads and the next copy. Of the queries, a barrier of the
    // block stands between writes and reads.
    unsafe {
        for index in 0..STAGES - 1 {
            keys.copy(first, index, ring);
        }
        let mut begin = 0;
        while begin < end {
            // Queries of a single piece stay for all chunks.
            if chunk == 0 || end > piece_slots {
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
                multiply::<T>(&mut scores, slot, places.query, (index - begin) * SLOT_STEPS);
                index += 1;
            }
            begin += piece_slots;
        }
        ptx::cp_async_wait_all();
        thread::sync_threads();
        let (group, pair) = (warp::lane_id() / 4, warp::lane_id() % 4);
        let column = warp::warp_id() * WARP_KEYS + 2 * pair;
        for (fragment, scores) in scores.iter().enumerate() {
            for (key, &[a, b, c, d]) in scores.iter().enumerate() {
                let row = fragment as u32 * 16 + group;
                let at = places.ring + row * SCORE_ROW + (column + key as u32 * 8) * 4;
                ptx::st_shared_v2_f32(at, [a, b]);
                ptx::st_shared_v2_f32(at + 8 * SCORE_ROW, [c, d]);
            }
        }
        thread::sync_threads();
    }
}

#[cfg(test)]
mod tests {
    use super::{ROWS, pairs, shared_bytes};

    #[test]
    fn pairs_that_can_win_are_those_with_fewer_than_k_better_ones() {
        for k in 1..=64 {
            let count = (1..=k).map(|a| (1..=k).filter(|b| a * b <= k).count() as u32).sum::<u32>();
            assert_eq!(pairs(k), count);
        }
        assert_eq!([16, 32, 64].map(pairs), [50, 119, 280]);
    }

    #[test]
    fn a_block_fits_the_shared_memory_of_every_architecture() {
        assert!(shared_bytes(2) <= 99 << 10, "{} bytes", shared_bytes(2));
        assert!(ROWS.is_multiple_of(16));
    }
}
