//! The best of each row: sub-keys of both halves, and the sums of these, whose gates they become.

use core::num::NonZeroU32;

use warpsmith_dsl::launch::GlobalMut;
use warpsmith_dsl::topk::{BestOfWarp, EMPTY, number_of_key, order_key};
use warpsmith_dsl::{math, ptx, warp};

use super::queries::warp_sum;
use super::{CHUNK, Places, ProductKeyParams, ROW_BYTES, SCORE_ROW};

/// The gates are a softmax over the k scores.
pub const GATE_SOFTMAX: u32 = 0;
/// Each is the logistic function of its score.
pub const GATE_SIGMOID: u32 = 1;
/// Each is its score, or 0 if that is negative.
pub const GATE_RELU: u32 = 2;
/// Each is its score.
pub const GATE_IDENTITY: u32 = 3;

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

/// Offers a row's scores of a chunk to its list.
///
/// # Safety
///
/// All lanes of the warp call it; the scores are visible to it, and the list is this warp's.
#[inline(always)]
pub(super) unsafe fn select<const SLOTS: usize>(
    places: &Places,
    [half, row, chunk]: [u32; 3],
    n: u32,
    k: u32,
) {
    let (slots, lane) = (SLOTS as u32, warp::lane_id());
    let end = (n - chunk).min(ptx::opaque(CHUNK));
    let key_at = |column: u32| {
        // SAFETY: the caller's promise.
        let score = unsafe { ptx::ld_shared_f32(places.ring + row * SCORE_ROW + (column + lane) * 4) };
        if column + lane < end { order_key(score) } else { EMPTY }
    };
    let mut best = BestOfWarp::<SLOTS>::new(k);
    if chunk > 0 {
        // SAFETY: each lane reads what it has written.
        best = unsafe { load_list(places, half, row, k) };
    } else if SLOTS == 1 {
        // Most of the first scores would only be put in their places to be displaced again.
        let (mut largest, mut column) = (EMPTY, 0);
        while column < end {
            largest = largest.max(key_at(column));
            column += warp::SIZE;
        }
        // SAFETY: the caller's promise; there are no more than 32 places.
        unsafe { best.expect_at_least(largest) }
    }
    let mut column = 0;
    while column < end {
        // SAFETY: the caller's promise.
        unsafe { best.offer(key_at(column), chunk + column) }
        column += warp::SIZE;
    }
    for slot in 0..SLOTS {
        let at = places.list(slots, half, row, slot as u32 * warp::SIZE + lane);
        let entry = [f32::from_bits(best.keys()[slot]), f32::from_bits(best.ids()[slot])];
        // SAFETY: the caller's promise.
        unsafe { ptx::st_shared_v2_f32(at, entry) }
    }
}

/// A row's list of a half, as [`select`] has stored it.
///
/// # Safety
///
/// As [`select`].
#[inline(always)]
unsafe fn load_list<const SLOTS: usize>(places: &Places, half: u32, row: u32, k: u32) -> BestOfWarp<SLOTS> {
    let (mut keys, mut ids) = ([EMPTY; SLOTS], [0; SLOTS]);
    for slot in 0..SLOTS {
        let at = places.list(SLOTS as u32, half, row, slot as u32 * warp::SIZE + warp::lane_id());
        // SAFETY: the caller's promise.
        let [key, id] = unsafe { ptx::ld_shared_v2_f32(at) }.map(f32::to_bits);
        keys[slot] = key;
        ids[slot] = id;
    }
    // SAFETY: the caller's promise; it was stored sorted.
    unsafe { BestOfWarp::of(k, keys, ids) }
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
    ids: GlobalMut<u32>,
    gates: GlobalMut<f32>,
    p: &ProductKeyParams,
) {
    let (slots, lane) = (SLOTS as u32, warp::lane_id());
    let mut best = BestOfWarp::<SLOTS>::new(p.k);
    let mut first = 0;
    while first < p.pairs {
        let (mut key, mut id) = (EMPTY, 0);
        if first + lane < p.pairs {
            // SAFETY: the caller's promise; the ranks are below k.
            unsafe {
                let pair = ptx::ld_shared_b32(places.pairs + (first + lane) * 4);
                let entry = |half: u32, place: u32| {
                    ptx::ld_shared_v2_f32(places.list(slots, half, row, place)).map(f32::to_bits)
                };
                let ([key_1, id_1], [key_2, id_2]) = (entry(0, pair >> 16), entry(1, pair & 0xffff));
                key = order_key(number_of_key(key_1) + number_of_key(key_2));
                id = id_1 * p.n + id_2;
            }
        }
        // SAFETY: the caller's promise.
        unsafe { best.offer_unordered(key, id) }
        first += warp::SIZE;
    }
    // SAFETY: written before the block's first barrier.
    let [_, _, _, unscale] = unsafe { ptx::ld_shared_v4_f32(places.rows + row * ROW_BYTES) };
    let factor = unscale * p.inverse_temperature;
    // SAFETY: the caller's promise.
    let largest = number_of_key(unsafe { ptx::shfl_sync_idx(best.keys()[0], 0) });
    let mut sum = 0.0;
    let mut values = [0.0; SLOTS];
    for (slot, value) in values.iter_mut().enumerate() {
        let score = number_of_key(best.keys()[slot]);
        let place = slot as u32 * warp::SIZE + lane;
        *value = match p.gate {
            GATE_SOFTMAX => ptx::ex2_approx_ftz((score - largest) * factor * core::f32::consts::LOG2_E),
            GATE_SIGMOID => math::sigmoid(score * factor),
            GATE_RELU => math::relu(score * factor),
            _ => score * factor,
        };
        sum += if place < p.k { *value } else { 0.0 };
    }
    if p.gate == GATE_SOFTMAX {
        // SAFETY: the caller's promise.
        let reciprocal = ptx::rcp_approx_ftz(unsafe { warp_sum(sum) });
        for value in &mut values {
            *value *= reciprocal;
        }
    }
    for (slot, value) in values.iter().enumerate() {
        let place = slot as u32 * warp::SIZE + lane;
        if place < p.k {
            // SAFETY: the caller's promise.
            unsafe {
                ptx::st_global_b32(ids.offset(place as u64).address(), best.ids()[slot]);
                ptx::st_global_b32(gates.offset(place as u64).address(), value.to_bits());
            }
        }
    }
}
