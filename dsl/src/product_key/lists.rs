//! The best of each row: sub-keys of both halves, and the sums of these, whose gates they become.
//!
//! A list is in shared memory, best first: [entries](crate::topk::Entry) of keys and numbers of sub-keys, 0 where nothing is yet.

use core::num::NonZeroU32;

use super::candidates::Chunk;
use super::params::{GATE_RELU, GATE_SIGMOID, GATE_SOFTMAX, ProductKeyParams};
use super::{MOST_SUMS, Places, ROW_BYTES};
use crate::launch::GlobalMut;
use crate::reduce::warp_sum;
use crate::topk::{
    BestOfWarp, EMPTY, Entry, entry, id_of_entry, key_of_entry, load_entry, number_of_key, order_key,
    rank_in_sorted, ranks, ranks_of_lanes, store_entry,
};
use crate::{math, ptx, warp};

/// The bit of a pair of ranks that is set if exactly k sums are of ranks that are no worse.
const CORNER: u32 = 1 << 31;

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
            let corner = if (first + 1) * (second + 1) == k { CORNER } else { 0 };
            // SAFETY: the caller's promise.
            unsafe { ptx::st_shared_b32(at, first << 16 | second | corner) }
            second += 1;
        }
        // SAFETY: the caller's promise.
        begin += unsafe { ptx::shfl_sync_idx(end, warp::SIZE - 1) };
    }
}

/// Offers the scores of a chunk, which are at `scores`, to a row's list at `at`, one after the other. At the first chunk the list is empty, whatever is there.
///
/// # Safety
///
/// All lanes of the warp call it; the scores are visible to it, and the list is this warp's.
#[inline(always)]
pub(super) unsafe fn select<const SLOTS: usize>(of: &Chunk, scores: u32, at: u32) {
    let (lane, count) = (warp::lane_id(), of.count());
    let mut best = BestOfWarp::<SLOTS>::new(of.k);
    if !of.is_first {
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
            let score = ptx::ld_shared_f32(scores + (column + lane) * 4);
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

/// Merges lists of two halves. Each half has `parts` lists, a power of two, of `count` entries, at most 32, which are
/// behind each other at `of`. They give the half's list at `to`, which has room for 32.
///
/// Those that are not below a bound are compared with each other: a list's k-th entry is one, and so is the least of the lists' entries of which each list
/// has its part of k. If they are more than 32, each is looked for in the other lists.
///
/// # Safety
///
/// All lanes of the warp call it. The lists are sorted and visible to it, those of the second half are behind those of
/// the first. There are k entries or more that are not 0. The new lists are this warp's.
#[inline(always)]
pub(super) unsafe fn merge(places: &Places, of: u32, [parts, count]: [u32; 2], to: u32, k: u32) {
    const HALF_BYTES: u32 = warp::SIZE * 8;
    const KEY_BYTES: u32 = warp::SIZE * 4;
    let (lane, at, total) = (warp::lane_id(), places.sums, parts * count);
    let part_of_k = (k + parts - 1) >> parts.trailing_zeros();
    let mut found = [0; 2];
    // SAFETY: the caller's promise; the place of sums is this warp's, and barriers of the warp stand between its lanes' writes and reads.
    unsafe {
        for half in 0..2 {
            let of = of + half as u32 * total * 8;
            let (mut largest, mut least, mut part) = (EMPTY, u32::MAX, 0);
            while part < parts {
                let key = |place: u32| ptx::ld_shared_b32(of + (part * count + place - 1) * 8 + 4);
                largest = largest.max(key(k));
                least = least.min(key(part_of_k));
                part = ptx::opaque(part + 1);
            }
            let bound = largest.max(least);
            let mut first = 0;
            while first < total {
                let own = if first + lane < total { load_entry(of + (first + lane) * 8) } else { 0 };
                let stays = own != 0 && key_of_entry(own) >= bound;
                let stay = ptx::vote_sync_ballot(stays);
                let place = found[half] + (stay & ((1 << lane) - 1)).count_ones();
                if stays && place < warp::SIZE {
                    store_entry(at + half as u32 * HALF_BYTES + place * 8, own);
                }
                found[half] += stay.count_ones();
                first = ptx::opaque(first + warp::SIZE);
            }
        }
        warp::sync_warp();
        if found[0].max(found[1]) <= warp::SIZE {
            let (mut own, keys) = ([0; 2], at + 2 * HALF_BYTES);
            for half in 0..2 {
                if lane < found[half] {
                    own[half] = load_entry(at + half as u32 * HALF_BYTES + lane * 8);
                }
                ptx::st_shared_b32(keys + half as u32 * KEY_BYTES + lane * 4, key_of_entry(own[half]));
            }
            warp::sync_warp();
            let ranks = ranks_of_lanes(keys, KEY_BYTES, found, &own);
            for half in 0..2 {
                put(own[half], ranks[half], to + half as u32 * HALF_BYTES, k);
            }
        } else {
            merge_many(of, [parts, count], to, k);
        }
        warp::sync_warp();
    }
}

/// As [`merge`]: each entry is looked for in the other lists.
///
/// # Safety
///
/// As [`merge`].
#[inline(always)]
unsafe fn merge_many(of: u32, [parts, count]: [u32; 2], to: u32, k: u32) {
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
}

/// The entry of the sum of a pair of ranks, number `pair` of those that can win, and whether exactly k sums are of ranks that are no worse.
///
/// # Safety
///
/// The pair is one that there is; pairs and lists are visible.
#[inline(always)]
unsafe fn sum(places: &Places, lists: [u32; 2], pair: u32, n: u32) -> (Entry, bool) {
    // SAFETY: the caller's promise; the ranks are below k.
    unsafe {
        let ranks = ptx::ld_shared_b32(places.pairs + pair * 4);
        let one = load_entry(lists[0] + (ranks >> 16 & 0x7fff) * 8);
        let other = load_entry(lists[1] + (ranks & 0xffff) * 8);
        let score = number_of_key(key_of_entry(one)) + number_of_key(key_of_entry(other));
        let id = id_of_entry(one) * n + id_of_entry(other);
        (entry(order_key(score), id), ranks & CORNER != 0)
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
                let (sum, _) = sum(places, lists, first + lane, p.n);
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

/// The best of up to 32 · `N` sums of a row's lists: those that are not below a bound are compared with each other.
///
/// The sum of ranks a and b is not above any of ranks that are no worse, which are a · b sums. So where they are k, it is not above the k-th best.
///
/// # Safety
///
/// As [`finish`].
#[inline(always)]
unsafe fn best_of_few<const N: usize>(places: &Places, lists: [u32; 2], p: &ProductKeyParams) -> Entry {
    let (lane, at) = (warp::lane_id(), places.sums);
    let mut own = [0; N];
    let mut corner = EMPTY;
    // SAFETY: the caller's promise; the sums' place is this warp's.
    unsafe {
        for i in 0..N {
            let pair = i as u32 * warp::SIZE + lane;
            if pair < p.pairs {
                let (sum, is_corner) = sum(places, lists, pair, p.n);
                own[i] = sum;
                // Infinities of both signs have a sum that is none.
                if is_corner && key_of_entry(sum) <= order_key(f32::INFINITY) {
                    corner = corner.max(key_of_entry(sum));
                }
            }
        }
        let bound = ptx::redux_sync_max(corner);
        let mut count = 0;
        for i in 0..N {
            let stays = own[i] != 0 && key_of_entry(own[i]) >= bound;
            let stay = ptx::vote_sync_ballot(stays);
            if stays {
                store_entry(at + (count + (stay & ((1 << lane) - 1)).count_ones()) * 8, own[i]);
            }
            count += stay.count_ones();
        }
        warp::sync_warp();
        if count <= warp::SIZE {
            let own = if lane < count { load_entry(at + lane * 8) } else { 0 };
            let keys = at + MOST_SUMS * 8;
            ptx::st_shared_b32(keys + lane * 4, key_of_entry(own));
            warp::sync_warp();
            let [rank] = ranks_of_lanes(keys, 0, [count], &[own]);
            put(own, rank, at, p.k);
        } else {
            let mut own = [[0; N]];
            for i in 0..N {
                let place = i as u32 * warp::SIZE + lane;
                if place < count {
                    own[0][i] = load_entry(at + place * 8);
                } else if place < MOST_SUMS {
                    store_entry(at + place * 8, 0);
                }
            }
            warp::sync_warp();
            let [ranks] = ranks(at, 0, count, &own);
            // All lanes have read.
            warp::sync_warp();
            for i in 0..N {
                put(own[0][i], ranks[i], at, p.k);
            }
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
