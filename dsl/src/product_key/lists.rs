//! The best of each row: sub-keys of both halves, and the sums of these, whose gates they become.
//!
//! A list is in shared memory, best first: [entries](crate::topk::Entry) of keys and numbers of sub-keys, 0 where nothing is yet.

use core::num::NonZeroU32;

use super::params::{GATE_RELU, GATE_SIGMOID, GATE_SOFTMAX, ProductKeyParams};
use super::queries::warp_sum;
use super::{CANDIDATE_BYTES, CHUNK, Places, ROW_BYTES, SCORE_ROW, WARPS};
use crate::launch::GlobalMut;
use crate::topk::{
    BestOfWarp, EMPTY, Entry, entry, id_of_entry, key_of_entry, kth_of_lanes, load_entry, number_of_key,
    order_key, rank_in_sorted, ranks, store_entry,
};
use crate::{math, ptx, warp};

/// Writes the pairs of ranks whose sums can win: the first in the upper half of a word, the second in the lower half.
///
/// # Safety
///
/// All lanes of the warp call it; the place is shared memory that nothing else touches before a barrier.
#[inline(always)]
pub(super) unsafe fn write_pairs<const SLOTS: usize>(k: u32, to: u32) {
    let mut begin = 0;
    for slot in 0..SLOTS as u32 {
        let first = slot * warp::SIZE + warp::lane_id();
        // SAFETY: a place of a list and one more is not 0.
        let rank = unsafe { NonZeroU32::new_unchecked(first + 1) };
        let count = k / rank;
        let mut end = count;
        for step in 0..5 {
            // SAFETY: the caller's promise.
            let below = unsafe { ptx::shfl_sync_up(end, 1 << step) };
            end += if warp::lane_id() >= 1 << step { below } else { 0 };
        }
        let mut second = 0;
        while second < count {
            let at = to + (begin + end - count + second) * 4;
            // SAFETY: the caller's promise.
            unsafe { ptx::st_shared_b32(at, first << 16 | second) }
            second += 1;
        }
        // SAFETY: the caller's promise.
        begin += unsafe { ptx::shfl_sync_idx(end, warp::SIZE - 1) };
    }
}

/// The scores of a row with a chunk of sub-keys.
#[derive(Clone, Copy)]
pub(super) struct Chunk {
    /// Where they are in shared memory.
    pub(super) scores: u32,
    /// The number of the chunk's first sub-key.
    pub(super) first: u32,
    /// Sub-keys in all.
    pub(super) n: u32,
    /// How many of them are kept.
    pub(super) k: u32,
}

impl Chunk {
    /// Sub-keys that there are.
    #[inline(always)]
    fn count(&self) -> u32 {
        (self.n - self.first).min(ptx::opaque(CHUNK))
    }
}

/// Offers the scores of a chunk to a row's list at `at`, one after the other; `new` says that it is empty.
///
/// # Safety
///
/// All lanes of the warp call it; the scores are visible to it, and the list is this warp's.
#[inline(always)]
pub(super) unsafe fn select<const SLOTS: usize>(of: &Chunk, at: u32, new: bool) {
    let (lane, count) = (warp::lane_id(), of.count());
    let mut best = BestOfWarp::<SLOTS>::new(of.k);
    if !new {
        let (mut keys, mut ids) = ([EMPTY; SLOTS], [0; SLOTS]);
        for slot in 0..SLOTS {
            // SAFETY: the caller's promise.
            let entry = unsafe { load_entry(at + (slot as u32 * warp::SIZE + lane) * 8) };
            (keys[slot], ids[slot]) = (key_of_entry(entry), id_of_entry(entry));
        }
        // SAFETY: the caller's promise; it was stored sorted.
        best = unsafe { BestOfWarp::of(of.k, keys, ids) };
    }
    let mut column = 0;
    while column < count {
        // SAFETY: the caller's promise; there is room for a whole chunk.
        unsafe {
            let score = ptx::ld_shared_f32(of.scores + (column + lane) * 4);
            let key = if column + lane < count { order_key(score) } else { EMPTY };
            best.offer(key, of.first + column);
        }
        column += warp::SIZE;
    }
    for slot in 0..SLOTS {
        let (key, id) = (best.keys()[slot], best.ids()[slot]);
        let entry = if key == EMPTY { 0 } else { entry(key, id) };
        // SAFETY: the caller's promise.
        unsafe { store_entry(at + (slot as u32 * warp::SIZE + lane) * 8, entry) }
    }
    // SAFETY: the caller's promise: all lanes are here.
    unsafe { warp::sync_warp() }
}

/// Rows that are selected from at a time: so one of them does not wait for its own results only.
const TOGETHER: usize = 2;
/// Candidates of a row that there is room for.
const ROOM: u32 = CANDIDATE_BYTES / TOGETHER as u32 / 8;
/// Scores of a lane, of which four lie side by side.
const OF_LANE: u32 = CHUNK / warp::SIZE;
const _: () = assert!(OF_LANE == 8 && ROOM == 2 * warp::SIZE);

/// Offers the scores of a chunk to the lists of a row, at `at`, and of that [`WARPS`] rows further on if there is a `second`. The lists have
/// up to 32 places, and are empty if they are `new`.
///
/// Of each row only those are looked at that are as good as a bound: at first the k-th best of the lanes' best, later the k-th best so far. There
/// are seldom more than [`ROOM`] with those that the list has; if there are, they are offered one after the other.
///
/// # Safety
///
/// As [`select`], for both rows.
#[inline(always)]
pub(super) unsafe fn select_two(places: &Places, of: &Chunk, at: u32, second: bool, new: bool) {
    const LIST_BYTES: u32 = warp::SIZE * 8;
    let (lane, count, k) = (warp::lane_id(), of.count(), of.k);
    let candidates = places.candidates();
    let stride = CANDIDATE_BYTES / TOGETHER as u32;
    let scores_of = |row: usize| of.scores + row as u32 * (WARPS * SCORE_ROW);
    let list_of = |row: usize| at + row as u32 * (WARPS * LIST_BYTES);
    let is_there = [true, second];

    let mut scores = [[0.0; OF_LANE as usize]; TOGETHER];
    for row in 0..TOGETHER {
        for four in 0..2 {
            // SAFETY: the caller's promise; a row that is not there has scores of zeros' products.
            let loaded = unsafe { ptx::ld_shared_v4_f32(scores_of(row) + four * (CHUNK * 2) + lane * 16) };
            for (i, score) in loaded.iter().enumerate() {
                scores[row][four as usize * 4 + i] = *score;
            }
        }
    }
    // A bit for each of a lane's scores.
    let bits = |first: u32| (1u32 << count.saturating_sub(first + lane * 4).min(4)) - 1;
    let valid = bits(0) | bits(CHUNK / 2) << 4;

    let mut bounds = [EMPTY; TOGETHER];
    if new {
        for row in 0..TOGETHER {
            let mut best = f32::NEG_INFINITY;
            for (i, &score) in scores[row].iter().enumerate() {
                best = best.max(if valid >> i & 1 != 0 { score } else { f32::NEG_INFINITY });
            }
            bounds[row] = order_key(best);
        }
        // SAFETY: the caller's promise: all lanes are here.
        bounds = unsafe { kth_of_lanes(bounds, k) };
    } else {
        for row in 0..TOGETHER {
            // SAFETY: the caller's promise: the list has k places.
            bounds[row] = key_of_entry(unsafe { load_entry(list_of(row) + (k - 1) * 8) });
        }
    }

    // Those that are not worse: NaNs too, and if the bound is none, all.
    let mut mask = 0;
    for row in 0..TOGETHER {
        let bound = number_of_key(bounds[row]);
        let mut of_row = 0;
        for (i, &score) in scores[row].iter().enumerate() {
            of_row |= if score < bound { 0 } else { 1 << i };
        }
        mask |= if is_there[row] { (of_row & valid) << (8 * row) } else { 0 };
    }

    // Four counts of up to 128, of each row those of the lower and the upper half of the chunk.
    let counts = (mask & 0xf).count_ones()
        | (mask >> 4 & 0xf).count_ones() << 8
        | (mask >> 8 & 0xf).count_ones() << 16
        | (mask >> 12).count_ones() << 24;
    let mut ends = counts;
    for step in 0..5 {
        // SAFETY: the caller's promise.
        let below = unsafe { ptx::shfl_sync_up(ends, 1 << step) };
        ends += if lane >= 1 << step { below } else { 0 };
    }
    // SAFETY: the caller's promise.
    let mut total = unsafe { ptx::shfl_sync_idx(ends, warp::SIZE - 1) };
    let (begin, mut begins) = (if new { 0 } else { k }, ends - counts);
    let mut found = [0; TOGETHER];
    // A bit for each row.
    let mut too_many = 0u32;
    for row in 0..TOGETHER {
        let of_row = total >> (16 * row);
        found[row] = begin + (of_row & 0xff) + (of_row >> 8 & 0xff);
        if found[row] > ROOM {
            let of_other = 0xffff_0000 >> (16 * row);
            (found[row], total, begins) = (0, total & of_other, begins & of_other);
            mask &= 0xff00 >> (8 * row);
            too_many |= 1 << row;
        }
    }
    begins += (total << 8 & 0xff00_ff00) + begin * 0x0101_0101;

    // SAFETY: the candidates' places are this warp's, and each lane's its own between barriers.
    unsafe {
        for row in 0..TOGETHER {
            let to = candidates + row as u32 * stride + lane * 8;
            // Of a row with too many nothing is moved.
            let stays = lane >= begin || too_many >> row & 1 != 0;
            let listed = if stays { 0 } else { load_entry(list_of(row) + lane * 8) };
            store_entry(to, listed);
            store_entry(to + warp::SIZE * 8, 0);
        }
        warp::sync_warp();
        while mask != 0 {
            let bit = mask.trailing_zeros();
            mask &= mask - 1;
            let (row, field) = (bit / 8, bit / 4);
            let place = begins >> (8 * field) & 0xff;
            begins += 1 << (8 * field);
            let column = field % 2 * (CHUNK / 2) + lane * 4 + bit % 4;
            let score = ptx::ld_shared_f32(of.scores + row * (WARPS * SCORE_ROW) + column * 4);
            let to = candidates + row * stride + place * 8;
            store_entry(to, entry(order_key(score), of.first + column));
        }
        warp::sync_warp();
        if found[0].max(found[1]) <= warp::SIZE {
            keep::<1>(candidates, stride, found, at, k);
        } else {
            keep::<2>(candidates, stride, found, at, k);
        }
        warp::sync_warp();
        while too_many != 0 {
            let row = too_many.trailing_zeros() as usize;
            too_many &= too_many - 1;
            select::<1>(&Chunk { scores: scores_of(row), ..*of }, list_of(row), new);
        }
    }
}

/// Puts the best of two rows' candidates in their places in the lists.
///
/// # Safety
///
/// As [`ranks`]; the lists are this warp's.
#[inline(always)]
unsafe fn keep<const N: usize>(candidates: u32, stride: u32, found: [u32; TOGETHER], lists: u32, k: u32) {
    let mut own = [[0; N]; TOGETHER];
    // SAFETY: the caller's promise.
    unsafe {
        for row in 0..TOGETHER {
            for i in 0..N {
                let place = i as u32 * warp::SIZE + warp::lane_id();
                own[row][i] = load_entry(candidates + row as u32 * stride + place * 8);
            }
        }
        let places = ranks(candidates, stride, found[0].max(found[1]), &own);
        for row in 0..TOGETHER {
            for i in 0..N {
                put(own[row][i], places[row][i], lists + row as u32 * (WARPS * warp::SIZE * 8), k);
            }
        }
    }
}

/// Puts an entry in its place if it is one of the `k` best.
///
/// # Safety
///
/// The list is this warp's.
#[inline(always)]
unsafe fn put(entry: Entry, place: u32, list: u32, k: u32) {
    if entry != 0 && place < k {
        // SAFETY: the caller's promise.
        unsafe { store_entry(list + place * 8, entry) }
    }
}

/// Merges lists of two halves: of each the `parts` lists, a power of two, of `count` entries, at most 32, that lie behind each other at `of` give the list at `to`, which has
/// room for 32.
///
/// # Safety
///
/// All lanes of the warp call it; the lists are sorted and visible to it, those of the second half lie behind those of the first, and there are k
/// entries or more that are not 0. The new lists are this warp's.
#[inline(always)]
pub(super) unsafe fn merge(of: u32, parts: u32, count: u32, to: u32, k: u32) {
    // Lists in places of 16 or 32.
    let shift = if count <= 16 { 4 } else { 5 };
    let mut number = warp::lane_id();
    while number < parts << (shift + 1) {
        let (list, place) = (number >> shift, number & ((1 << shift) - 1));
        if place < count {
            // Parts are a power of two.
            let (half, part) = (list >> parts.trailing_zeros(), list & (parts - 1));
            let of = of + half * parts * count * 8;
            // SAFETY: the caller's promise.
            unsafe {
                let own = load_entry(of + (part * count + place) * 8);
                let mut rank = place;
                for distance in 1..parts {
                    let other = (part + distance) & (parts - 1);
                    rank += rank_in_sorted(of + other * count * 8, count, own);
                }
                put(own, rank, to + half * (warp::SIZE * 8), k);
            }
        }
        number = ptx::opaque(number + warp::SIZE);
    }
    // SAFETY: the caller's promise: all lanes are here.
    unsafe { warp::sync_warp() }
}

/// The entry of the sum of a pair of ranks, number `pair` of those that can win.
///
/// # Safety
///
/// The pair is one that there is; pairs and lists are visible.
#[inline(always)]
unsafe fn sum(places: &Places, lists: [u32; 2], pair: u32, n: u32) -> Entry {
    // SAFETY: the caller's promise; the ranks are below k.
    unsafe {
        let ranks = ptx::ld_shared_b32(places.pairs + pair * 4);
        let one = load_entry(lists[0] + (ranks >> 16) * 8);
        let other = load_entry(lists[1] + (ranks & 0xffff) * 8);
        let score = number_of_key(key_of_entry(one)) + number_of_key(key_of_entry(other));
        entry(order_key(score), id_of_entry(one) * n + id_of_entry(other))
    }
}

/// The best sums of a row's lists, one after the other.
///
/// # Safety
///
/// As [`finish`].
#[inline(always)]
unsafe fn best_of_many<const SLOTS: usize>(
    places: &Places,
    lists: [u32; 2],
    p: &ProductKeyParams,
) -> [Entry; SLOTS] {
    let lane = warp::lane_id();
    let mut best = BestOfWarp::<SLOTS>::new(p.k);
    let mut first = 0;
    while first < p.pairs {
        // SAFETY: the caller's promise.
        unsafe {
            let (mut key, mut id) = (EMPTY, 0);
            if first + lane < p.pairs {
                let sum = sum(places, lists, first + lane, p.n);
                (key, id) = (key_of_entry(sum), id_of_entry(sum));
            }
            best.offer_unordered(key, id);
        }
        first += warp::SIZE;
    }
    let mut entries = [0; SLOTS];
    for slot in 0..SLOTS {
        entries[slot] = entry(best.keys()[slot], best.ids()[slot]);
    }
    entries
}

/// The best of up to 32 · `N` sums of a row's lists: all sums are compared with all.
///
/// # Safety
///
/// As [`finish`].
#[inline(always)]
unsafe fn best_of_few<const N: usize>(places: &Places, lists: [u32; 2], p: &ProductKeyParams) -> Entry {
    let (lane, at) = (warp::lane_id(), places.candidates());
    let mut own = [[0; N]];
    // SAFETY: the caller's promise; the candidates' place is this warp's.
    unsafe {
        for i in 0..N {
            let pair = i as u32 * warp::SIZE + lane;
            if pair < p.pairs {
                own[0][i] = sum(places, lists, pair, p.n);
            }
            store_entry(at + pair * 8, own[0][i]);
        }
        warp::sync_warp();
        let [ranks] = ranks(at, 0, p.pairs, &own);
        // All lanes have read.
        warp::sync_warp();
        for i in 0..N {
            put(own[0][i], ranks[i], at, p.k);
        }
        warp::sync_warp();
        let best = load_entry(at + lane * 8);
        // Before another row's take their place.
        warp::sync_warp();
        best
    }
}

/// Selects the best sums of a row's lists, and writes their ids and gates.
///
/// # Safety
///
/// All lanes of the warp call it; lists and pairs are visible to it; `ids` and `gates` are those of the row.
#[inline(always)]
pub(super) unsafe fn finish<const SLOTS: usize>(
    places: &Places,
    row: u32,
    lists: [u32; 2],
    ids: GlobalMut<u32>,
    gates: GlobalMut<f32>,
    p: &ProductKeyParams,
) {
    let lane = warp::lane_id();
    let mut best = [0; SLOTS];
    // SAFETY: the caller's promise; there are no more sums than that.
    unsafe {
        if SLOTS > 1 {
            best = best_of_many(places, lists, p);
        } else if p.pairs <= 2 * warp::SIZE {
            best[0] = best_of_few::<2>(places, lists, p);
        } else {
            best[0] = best_of_few::<4>(places, lists, p);
        }
    }
    // SAFETY: written before the block's first barrier.
    let [_, _, _, unscale] = unsafe { ptx::ld_shared_v4_f32(places.rows + row * ROW_BYTES) };
    let factor = unscale * p.inverse_temperature;
    // SAFETY: the caller's promise.
    let largest = number_of_key(unsafe { ptx::shfl_sync_idx(key_of_entry(best[0]), 0) });
    let mut total = 0.0;
    let mut values = [0.0; SLOTS];
    for (slot, value) in values.iter_mut().enumerate() {
        let score = number_of_key(key_of_entry(best[slot]));
        let place = slot as u32 * warp::SIZE + lane;
        *value = match p.gate {
            GATE_SOFTMAX => ptx::ex2_approx_ftz((score - largest) * factor * core::f32::consts::LOG2_E),
            GATE_SIGMOID => math::sigmoid(score * factor),
            GATE_RELU => math::relu(score * factor),
            _ => score * factor,
        };
        total += if place < p.k { *value } else { 0.0 };
    }
    if p.gate == GATE_SOFTMAX {
        // SAFETY: the caller's promise.
        let reciprocal = ptx::rcp_approx_ftz(unsafe { warp_sum(total) });
        for value in &mut values {
            *value *= reciprocal;
        }
    }
    for (slot, value) in values.iter().enumerate() {
        let place = slot as u32 * warp::SIZE + lane;
        if place < p.k {
            // SAFETY: the caller's promise.
            unsafe {
                ptx::st_global_b32(ids.offset(place as u64).address(), id_of_entry(best[slot]));
                ptx::st_global_b32(gates.offset(place as u64).address(), value.to_bits());
            }
        }
    }
}
