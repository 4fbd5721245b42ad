//! The scores of a chunk of sub-keys: the products, and the copies of the sub-keys that they wait for.

use super::candidates::Chunk;
use super::element::{QUERY_FRAGMENTS, QUERY_ROWS, QueryElement};
use super::queries::{Queries, put_queries};
use super::{KEY_FRAGMENTS, PIECE, Places, QUERY_BYTES, SLOT_BYTES, SLOT_ROW, SLOT_STEPS, STAGES, WARP_KEYS};
use crate::gemm::again::{Line, Seen, add_step, any_lane, is_not_finite, replace};
use crate::launch::Global;
use crate::layout::{CHUNK_BYTES, ChunkIndex, b_fragment_chunk, swizzled_chunk};
use crate::{ptx, thread, warp};

/// A warp's scores: its sub-keys' with all rows of the block.
pub(super) type Scores<const FRAGMENTS: usize> = [[[f32; 4]; KEY_FRAGMENTS]; FRAGMENTS];

/// The sub-keys that a warp multiplies, of a half.
#[derive(Clone, Copy)]
pub(super) struct Keys<T> {
    pub(super) base: Global<T>,
    pub(super) stride: u64,
    /// Bytes of a sub-key.
    pub(super) bytes: u32,
    /// Sub-keys that there are from `base` on.
    pub(super) n: u32,
}

impl<T: QueryElement> Keys<T> {
    /// The numbers of sub-key `key`, or of the last if there is none.
    #[inline(always)]
    fn line(&self, key: u32) -> Line {
        let at = self.base.offset(key.min(self.n - 1) as u64 * self.stride);
        Line { address: at.address(), step: T::BYTES as u64 }
    }

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
        let bytes_between = self.stride * T::BYTES as u64;
        let from = self.base.address() + (first + row) as u64 * bytes_between + offset as u64;
        // The swizzle is the same for rows 8 apart.
        let to = ring + index % STAGES * SLOT_BYTES + swizzled_chunk(SLOT_ROW, row, chunk);
        if first + WARP_KEYS <= self.n && (index + 1) * SLOT_ROW <= self.bytes {
            for pass in 0..WARP_KEYS / 8 {
                let (to, from) = (to + pass * 8 * SLOT_ROW, from + pass as u64 * 8 * bytes_between);
                // SAFETY: the caller's promise; the whole slot is there.
                unsafe { ptx::cp_async_cg_16(to, from, CHUNK_BYTES) }
            }
        } else if index * SLOT_ROW < self.bytes {
            // Opaque: all that this seldom takes would be kept in registers.
            let key = ptx::opaque(first + row);
            for pass in 0..WARP_KEYS / 8 {
                let left = if key + pass * 8 < self.n { self.bytes } else { 0 };
                let present = left.saturating_sub(offset).min(CHUNK_BYTES);
                // Nothing is read of a place that is not there.
                let from =
                    if present > 0 { from + pass as u64 * 8 * bytes_between } else { self.base.address() };
                // SAFETY: the caller's promise; so many bytes of the sub-key are left.
                unsafe { ptx::cp_async_cg_16(to + pass * 8 * SLOT_ROW, from, present) }
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
            let (panels, _) = scores.as_chunks_mut::<QUERY_FRAGMENTS>();
            for (panel, scores) in panels.iter_mut().enumerate() {
                let (first_row, panel) = (panel as u32 * QUERY_ROWS, query + panel as u32 * QUERY_BYTES);
                // Of few rows there is little to multiply.
                if first_row + QUERY_ROWS / 2 < rows {
                    let queries = [0, 1].map(|fragment| T::load_query(panel, step + i, fragment));
                    T::multiply_query(scores, &queries, &keys);
                } else if first_row == 0 || first_row < rows {
                    let [first, _] = scores.as_chunks_mut::<1>().0 else { return };
                    T::multiply_query(first, &[T::load_query(panel, step + i, 0)], &keys);
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

/// Multiplies a half of the queries with the sub-keys of a chunk. The queries are put into shared memory if it is the first, or if they
/// come in several pieces.
///
/// # Safety
///
/// All threads of the block call it, when nothing but this warp touches its ring. The ring is the warp's own again when it has returned.
#[inline(always)]
pub(super) unsafe fn score_chunk<T: QueryElement, const FRAGMENTS: usize>(
    queries: &Queries,
    keys: &Keys<T>,
    places: &Places,
    [half, rows]: [u32; 2],
    chunk: &Chunk,
) -> Scores<FRAGMENTS> {
    let ring = places.ring_of_warp();
    let first = chunk.first + warp::warp_id() * WARP_KEYS;
    let piece_slots = PIECE * T::BYTES / SLOT_ROW;
    let end = keys.bytes.div_ceil(SLOT_ROW);
    let mut scores: Scores<FRAGMENTS> = [[[0.0; 4]; KEY_FRAGMENTS]; FRAGMENTS];
    // SAFETY: a slot is this warp's; a barrier of the warp stands between its last reads and the next copy. Of the queries, a barrier of the
    // block stands between writes and reads.
    unsafe {
        warp::sync_warp();
        for index in 0..STAGES - 1 {
            keys.copy(first, index, ring);
        }
        let mut begin = 0;
        while begin < end {
            // Queries of a single piece stay for all chunks.
            if chunk.is_first || end > piece_slots {
                thread::sync_threads();
                put_queries::<T>(queries, places, half, rows, begin * SLOT_ROW / T::BYTES);
                thread::sync_threads();
            }
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
        if T::IS_SPLIT {
            let mut seen = Seen::nothing();
            scores.iter().flatten().for_each(|&fragment| seen.fragment(fragment));
            if seen.has_infinities() {
                mend::<T, FRAGMENTS>(&mut scores, queries, keys, places, [half, rows, first]);
            }
        }
    }
    scores
}

/// Adds those scores up again that are not finite, with whole numbers instead of parts. `first` is the warp's first sub-key.
///
/// # Safety
///
/// All lanes of the warp call it, as [`score_chunk`]; the rows have been described.
#[inline(always)]
unsafe fn mend<T: QueryElement, const FRAGMENTS: usize>(
    scores: &mut Scores<FRAGMENTS>,
    queries: &Queries,
    keys: &Keys<T>,
    places: &Places,
    [half, rows, first]: [u32; 3],
) {
    let (group, pair) = (warp::lane_id() / 4, warp::lane_id() % 4);
    let mut index = ptx::opaque(0);
    while index < FRAGMENTS as u32 * KEY_FRAGMENTS as u32 {
        // Registers have no index: each fragment has its own moves.
        let is_it = |row: usize, key: usize| index == ptx::opaque((row * KEY_FRAGMENTS + key) as u32);
        let mut sums = [0.0; 4];
        for row in 0..FRAGMENTS {
            for key in 0..KEY_FRAGMENTS {
                if is_it(row, key) {
                    sums = scores[row][key];
                }
            }
        }
        let [a, b, c, d] = sums;
        // SAFETY: the caller's promise. Beyond the last row and sub-key there are sums of zeros, so what is read for them is not used.
        unsafe {
            if any_lane(is_not_finite(a) | is_not_finite(b) | is_not_finite(c) | is_not_finite(d)) {
                let row = index / KEY_FRAGMENTS as u32 * 16 + group;
                let key = first + index % KEY_FRAGMENTS as u32 * 8 + 2 * pair;
                let rows = [row, row + 8].map(|row| row.min(rows - 1));
                let mut keys = [key, key + 1].map(|key| keys.line(key));
                let (mut again, mut column) = ([0.0; 4], ptx::opaque(0));
                while column < queries.p.half {
                    let features = [
                        queries.feature(places, rows[0], half, column),
                        queries.feature(places, rows[1], half, column),
                    ];
                    add_step(&mut again, features, [keys[0].take(), keys[1].take()]);
                    column = ptx::opaque(column + 1);
                }
                replace(&mut sums, again);
                for row in 0..FRAGMENTS {
                    for key in 0..KEY_FRAGMENTS {
                        if is_it(row, key) {
                            scores[row][key] = sums;
                        }
                    }
                }
            }
        }
        index = ptx::opaque(index + 1);
    }
}

/// Bytes of a row of scores of so many warps: the 8 rows of a fragment begin in different banks.
pub(super) const fn score_row(warps: u32) -> u32 {
    (warps * WARP_KEYS + 8) * 4
}

/// Puts the scores of 32 rows, from fragment `FIRST` on, where the ring has been.
///
/// # Safety
///
/// All lanes of the warp call it, and nothing else touches the place.
#[inline(always)]
pub(super) unsafe fn store_scores<const FRAGMENTS: usize, const FIRST: usize>(
    scores: &Scores<FRAGMENTS>,
    places: &Places,
) {
    let (group, pair) = (warp::lane_id() / 4, warp::lane_id() % 4);
    let column = warp::warp_id() * WARP_KEYS + 2 * pair;
    for fragment in 0..QUERY_FRAGMENTS {
        for (key, &[a, b, c, d]) in scores[FIRST + fragment].iter().enumerate() {
            let row = fragment as u32 * 16 + group;
            let row_bytes = score_row(places.warps);
            let at = places.ring + row * row_bytes + (column + key as u32 * 8) * 4;
            // SAFETY: the caller's promise.
            unsafe {
                ptx::st_shared_v2_f32(at, [a, b]);
                ptx::st_shared_v2_f32(at + 8 * row_bytes, [c, d]);
            }
        }
    }
}
