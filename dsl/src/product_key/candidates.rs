//! Which scores can be among a row's best, and their order.
//!
//! Of a row's scores of a chunk of sub-keys, each lane of each warp has a few. The largest of each such group, of all chunks so far,
//! are put where all warps see them. The k-th largest of these is a bound below which no score is wanted, and not many more than k are
//! above it. Each lane compares its scores with it, all of them without a branch, and adds those that are left to the row's candidates.
//! At the end the candidates' places among each other are counted. Nothing here depends on the order in which they were added.

use super::element::QUERY_FRAGMENTS;
use super::scores::Scores;
use super::{KEY_FRAGMENTS, Places, RING_BYTES, WARP_KEYS};
use crate::topk::{
    Entry, OF_FOUR, entry, key_of_entry, kth_of_four_lanes, load_entry, number_of_key, order_key, ranks,
    ranks_of_lanes, store_entry,
};
use crate::{ptx, warp};

/// Candidates of a row that there is room for.
pub(super) const ROOM: u32 = 96;
/// Bytes of the candidates' scores of a row, and of their sub-keys' numbers.
pub(super) const SCORE_BYTES: u32 = ROOM * 4;
pub(super) const COLUMN_BYTES: u32 = ROOM * 2;
/// Rows that a lane has scores of in the fragments of 32 rows: every eighth.
const LANE_ROWS: usize = 2 * QUERY_FRAGMENTS;
/// Bytes between the scores that a lane writes at a time: those of all lanes are between.
const FOUR_BYTES: u32 = warp::SIZE * 16;
const _: () = assert!(LANE_ROWS * KEY_FRAGMENTS == 16 && RING_BYTES >= 8 * FOUR_BYTES);

/// Bytes of a row of groups' maxima of so many warps: a word of each of four lanes a warp, and four more. So those of eight rows are in different banks.
pub(super) const fn maxima_row(warps: u32) -> u32 {
    (warps * 4 + 4) * 4
}

/// A word of two bfloat16 numbers that are −∞.
const LOWEST: u32 = 0xff80_ff80;

/// A chunk of sub-keys.
#[derive(Clone, Copy)]
pub(super) struct Chunk {
    /// The number of its first sub-key.
    pub(super) first: u32,
    /// Sub-keys that there are if it is not the last.
    pub(super) size: u32,
    /// Sub-keys in all.
    pub(super) n: u32,
    /// How many of them are kept.
    pub(super) k: u32,
    /// Sub-keys of all of the block's chunks.
    pub(super) of_block: u32,
    /// Whether it is the block's first.
    pub(super) is_first: bool,
}

impl Chunk {
    /// Sub-keys that there are.
    #[inline(always)]
    pub(super) fn count(&self) -> u32 {
        (self.n - self.first).min(ptx::opaque(self.size))
    }

    /// The first sub-key that this lane has scores of.
    #[inline(always)]
    fn column(&self) -> u32 {
        self.first + warp::warp_id() * WARP_KEYS + warp::lane_id() % 4 * 2
    }

    /// Whether a lane's scores of a row are two groups: where more are wanted than 32 groups tell, or few lanes have any.
    #[inline(always)]
    fn two_groups(&self) -> bool {
        self.k > warp::SIZE / 2 || self.of_block <= 4 * WARP_KEYS
    }

    /// Makes scores of sub-keys that are not there −∞.
    #[inline(always)]
    pub(super) fn mask_end<const FRAGMENTS: usize>(&self, scores: &mut Scores<FRAGMENTS>) {
        if self.first + self.size <= self.n {
            return;
        }
        for key in 0..KEY_FRAGMENTS {
            for j in 0..2 {
                let is_there = self.column() + ((key * 8 + j) as u32) < self.n;
                for fragment in 0..FRAGMENTS {
                    for lower in 0..2 {
                        let score = &mut scores[fragment][key][2 * lower + j];
                        *score = if is_there { *score } else { f32::NEG_INFINITY };
                    }
                }
            }
        }
    }

    /// A bit for each of the lane's scores of two fragments of rows whose sub-key is there, the first the highest.
    #[inline(always)]
    fn there(&self) -> u32 {
        // Opaque: it is not worth a register.
        let n = ptx::opaque(self.n);
        if self.first + self.size <= n {
            return u32::MAX;
        }
        let mut there = 0;
        for key in 0..KEY_FRAGMENTS {
            for i in 0..4 {
                there = there << 1 | (self.column() + ((key * 8 + i % 2) as u32) < n) as u32;
            }
        }
        there * 0x1_0001
    }
}

/// Puts the largest score of each of the lane's groups where the others find it, or what was there if that is larger: as two bfloat16 numbers.
///
/// # Safety
///
/// All threads of the block call it, and nothing else touches the maxima.
#[inline(always)]
pub(super) unsafe fn put_maxima<const FRAGMENTS: usize>(
    scores: &Scores<FRAGMENTS>,
    places: &Places,
    chunk: &Chunk,
) {
    let lane = warp::lane_id();
    let row_bytes = maxima_row(places.warps);
    let (group, pair) = (lane / 4, lane % 4);
    let at = places.maxima + group * row_bytes + (warp::warp_id() * 4 + pair) * 4;
    if chunk.is_first {
        for eight in 0..2 * FRAGMENTS as u32 {
            // SAFETY: the caller's promise.
            unsafe { ptx::st_shared_b32(at + eight * 8 * row_bytes, LOWEST) }
        }
    }
    for fragment in 0..FRAGMENTS {
        for lower in 0..2 {
            let at = at + (fragment * 16 + lower * 8) as u32 * row_bytes;
            // SAFETY: the caller's promise; this lane has written it.
            let before = unsafe { ptx::ld_shared_b32(at) };
            let of = &scores[fragment];
            let mut largest = [f32::from_bits(before & 0xffff_0000), f32::from_bits(before << 16)];
            for key in 0..KEY_FRAGMENTS {
                let two = of[key][2 * lower].max(of[key][2 * lower + 1]);
                let part = key * 2 / KEY_FRAGMENTS;
                largest[part] = largest[part].max(two);
            }
            // SAFETY: the caller's promise.
            unsafe { ptx::st_shared_b32(at, ptx::cvt_bf16x2_f32(largest[0], largest[1])) }
        }
    }
}

/// A number that is not above any that is rounded to this one in bfloat16.
#[inline(always)]
fn rounded_down(number: f32) -> f32 {
    let lowest = order_key(f32::NEG_INFINITY);
    number_of_key(order_key(number).saturating_sub(0x1_0000).max(lowest))
}

/// Finds the bounds of the warp's rows, and drops candidates below it of rows that have many, unless none will follow. Rows of the block that are not there have a bound that nothing
/// reaches.
///
/// # Safety
///
/// All threads of the block call it, between two barriers; the maxima are visible.
#[inline(always)]
pub(super) unsafe fn put_bounds(places: &Places, chunk: &Chunk, [rows, of_block]: [u32; 2], is_last: bool) {
    let lane = warp::lane_id();
    let row = warp::warp_id() + lane / 4 * places.warps;
    let at = places.maxima + row % of_block * maxima_row(places.warps) + lane % 4 * (OF_FOUR as u32 * 4);
    let two = chunk.two_groups();
    // Opaque: what it is compared with would be kept, of all its values.
    let k = ptx::opaque(chunk.k);
    let (groups, k) = if two { (2, k.div_ceil(2)) } else { (1, k) };
    let mut bound = f32::INFINITY;
    let mut group = 0;
    while group < groups {
        let mut values = [f32::NEG_INFINITY; OF_FOUR];
        // Of 16 warps two have one together.
        for eight in 0..places.warps / 8 {
            for four in 0..2 {
                // SAFETY: the caller's promise; the row is one that there are maxima of.
                let words = unsafe { ptx::ld_shared_v4_b32(at + eight * 128 + four as u32 * 16) };
                for i in 0..4 {
                    let one = f32::from_bits(words[i] << (16 * group) & 0xffff_0000);
                    let other = f32::from_bits(words[i] << 16);
                    let largest = if two { one } else { one.max(other) };
                    values[four * 4 + i] = values[four * 4 + i].max(largest);
                }
            }
        }
        // Of each set of groups a part of the k is as good as this.
        // SAFETY: the caller's promise: all lanes are here; maxima are numbers.
        bound = bound.min(unsafe { kth_of_four_lanes(values, k) });
        group = ptx::opaque(group + 1);
    }
    bound = if row < rows { rounded_down(bound) } else { f32::INFINITY };
    if lane.is_multiple_of(4) && row < of_block {
        // SAFETY: the row is this warp's.
        unsafe { ptx::st_shared_f32(places.bounds + row * 4, bound) }
    }
    if !chunk.is_first && !is_last {
        // SAFETY: the caller's promise: all lanes are here, and candidates of the warp's rows are touched by no other warp.
        unsafe {
            warp::sync_warp();
            let mut row = warp::warp_id();
            while row < rows {
                drop_candidates(places, row);
                row = ptx::opaque(row + places.warps);
            }
        }
    }
}

/// Whether a score is below a bound: a NaN is not.
#[inline(always)]
fn is_below(score: f32, bound: f32) -> bool {
    score < bound
}

/// Drops the candidates of a row that are below its bound, if there is not room for many more.
///
/// # Safety
///
/// All lanes of the warp call it; the row's candidates are visible to it, and nothing else touches them.
#[inline(always)]
unsafe fn drop_candidates(places: &Places, row: u32) {
    let lane = warp::lane_id();
    let (scores, columns) = places.candidates_of(row);
    // SAFETY: the caller's promise; a place that is written has been read by all lanes.
    unsafe {
        let count = ptx::ld_shared_b32(places.counts + row * 4);
        if count <= ROOM / 2 || count > ROOM {
            return;
        }
        let bound = ptx::ld_shared_f32(places.bounds + row * 4);
        let (mut first, mut kept) = (0, 0);
        while first < count {
            let from = first + lane;
            let (mut score, mut column) = (0.0, 0);
            let mut stays = from < count;
            if stays {
                score = ptx::ld_shared_f32(scores + from * 4);
                column = ptx::ld_shared_b16(columns + from * 2);
                stays = !is_below(score, bound);
            }
            let stay = ptx::vote_sync_ballot(stays);
            warp::sync_warp();
            if stays {
                let to = kept + (stay & ((1 << lane) - 1)).count_ones();
                ptx::st_shared_f32(scores + to * 4, score);
                ptx::st_shared_b16(columns + to * 2, column);
            }
            kept += stay.count_ones();
            first = ptx::opaque(first + warp::SIZE);
        }
        warp::sync_warp();
        if lane == 0 {
            ptx::st_shared_b32(places.counts + row * 4, kept);
        }
    }
}

/// Adds the scores of 32 rows, from fragment `FIRST` on, that are not below their rows' bounds to the candidates.
/// Where there is no room for one, it is only counted.
///
/// # Safety
///
/// All lanes of the warp call it, and the warp's ring is free. The bounds are visible, and of candidates only this touches any until a barrier.
#[inline(always)]
pub(super) unsafe fn add_candidates<const FRAGMENTS: usize, const FIRST: usize>(
    scores: &Scores<FRAGMENTS>,
    places: &Places,
    chunk: &Chunk,
) {
    let lane = warp::lane_id();
    let first_row = FIRST as u32 * 16 + lane / 4;
    // A place of the lane's own for each of its scores, since registers have no numbers.
    let own = places.ring_of_warp() + lane * 16;
    let mut bounds = [0.0; LANE_ROWS];
    for row in 0..LANE_ROWS {
        // SAFETY: the caller's promise.
        bounds[row] = unsafe { ptx::ld_shared_f32(places.bounds + (first_row + row as u32 * 8) * 4) };
    }
    let mut worse = 0u32;
    for fragment in 0..QUERY_FRAGMENTS {
        for key in 0..KEY_FRAGMENTS {
            let values = scores[FIRST + fragment][key];
            // SAFETY: the caller's promise; the place is this lane's.
            unsafe {
                ptx::st_shared_v4_f32(own + (fragment * KEY_FRAGMENTS + key) as u32 * FOUR_BYTES, values)
            }
            for i in 0..4 {
                // The sign of the difference, which is exact: NaN has none.
                worse = worse << 1 | (values[i] - bounds[fragment * 2 + i / 2]).to_bits() >> 31;
            }
        }
    }
    let column = chunk.column();
    let (counts, to) = (places.counts + first_row * 4, places.candidates_of(first_row));
    let mut left = !worse & chunk.there();
    while left != 0 {
        let i = left.leading_zeros();
        left &= !(0x8000_0000 >> i);
        // Bits from the highest on: fragments of 16 rows, of 8 sub-keys, the fragment's upper or lower 8 rows, and of two sub-keys one.
        let row = (i & 16) + (i & 2) * 4;
        // SAFETY: the caller's promise; a place that has been counted is this lane's.
        unsafe {
            let place = ptx::atom_shared_add_u32(counts + row * 4, 1);
            if place < ROOM {
                let score = ptx::ld_shared_f32(own + (i & 28) * (FOUR_BYTES / 4) + i % 4 * 4);
                ptx::st_shared_f32(to.0 + row * SCORE_BYTES + place * 4, score);
                let column = column + (i & 12) * 2 + i % 2;
                ptx::st_shared_b16(to.1 + row * COLUMN_BYTES + place * 2, column as u16);
            } else {
                let _ = ptx::atom_shared_add_u32(places.overflow, 1);
            }
        }
    }
}

/// Rows whose candidates are sorted at a time: so one of them does not wait for its own results only.
const TOGETHER: usize = 2;

/// Bytes of a row's entries while they are sorted: there is room for a few zeros behind them. Behind those of all rows, bytes of the keys of 32.
const ENTRY_BYTES: u32 = (ROOM + 4) * 8;
const KEY_BYTES: u32 = warp::SIZE * 4;
const _: () = assert!(TOGETHER as u32 * (ENTRY_BYTES + KEY_BYTES) <= RING_BYTES);

/// Sorts the candidates of the warp's rows: the `k` best of each become its list, `list` + row · `stride`, which has zeros behind them up to 32.
/// Rows with more candidates than there is room for get an empty one.
///
/// # Safety
///
/// All threads of the block call it; the candidates are visible, and the warp's ring is free. Lists may be where their rows' candidates' scores are.
#[inline(always)]
pub(super) unsafe fn sort_candidates(places: &Places, k: u32, rows: u32, list: u32, stride: u32) {
    let lane = warp::lane_id();
    let entries = places.ring_of_warp();
    let keys = entries + TOGETHER as u32 * ENTRY_BYTES;
    let mut row = warp::warp_id();
    while row < rows {
        let mut found = [0; TOGETHER];
        for i in 0..TOGETHER {
            let row = row + i as u32 * places.warps;
            if row < rows {
                // SAFETY: the caller's promise.
                let count = unsafe { ptx::ld_shared_b32(places.counts + row * 4) };
                found[i] = if count > ROOM { 0 } else { count };
            }
        }
        // SAFETY: the caller's promise; barriers of the warp stand between its lanes' writes and reads.
        unsafe {
            let (mut own, mut is_sorted) = ([0; TOGETHER], [false; TOGETHER]);
            if found[0].max(found[1]) > warp::SIZE {
                for i in 0..TOGETHER {
                    let to = entries + i as u32 * ENTRY_BYTES;
                    found[i] = gather(places, row + i as u32 * places.warps, found[i], to);
                }
                warp::sync_warp();
                for i in 0..TOGETHER {
                    let from = entries + i as u32 * ENTRY_BYTES;
                    if found[i] > warp::SIZE {
                        sort_many(from, found[i], list + (row + i as u32 * places.warps) * stride, k);
                        (found[i], is_sorted[i]) = (0, true);
                    } else if lane < found[i] {
                        own[i] = load_entry(from + lane * 8);
                    }
                }
            } else {
                for i in 0..TOGETHER {
                    if lane < found[i] {
                        own[i] = candidate(places, row + i as u32 * places.warps, lane).1;
                    }
                }
            }
            for i in 0..TOGETHER {
                ptx::st_shared_b32(keys + i as u32 * KEY_BYTES + lane * 4, key_of_entry(own[i]));
            }
            warp::sync_warp();
            let ranks = ranks_of_lanes(keys, KEY_BYTES, found, &own);
            for i in 0..TOGETHER {
                let list = list + (row + i as u32 * places.warps) * stride;
                if !is_sorted[i] && lane >= found[i].min(k) {
                    store_entry(list + lane * 8, 0);
                }
                if lane < found[i] && ranks[i] < k {
                    store_entry(list + ranks[i] * 8, own[i]);
                }
            }
            // Before other rows' entries take their place.
            warp::sync_warp();
        }
        row = ptx::opaque(row + TOGETHER as u32 * places.warps);
    }
}

/// Sorts more than 32 entries of a row: the `k` best of them become its list.
///
/// # Safety
///
/// All lanes of the warp call it; the entries are visible, there is room for four more behind them, and the list is this warp's.
#[inline(always)]
unsafe fn sort_many(entries: u32, found: u32, list: u32, k: u32) {
    let lane = warp::lane_id();
    // SAFETY: the caller's promise.
    unsafe {
        if lane < 4 {
            store_entry(entries + (found + lane) * 8, 0);
        }
        if lane >= k {
            store_entry(list + lane * 8, 0);
        }
        warp::sync_warp();
        let mut first = 0;
        while first < found {
            let is_there = first + lane < found;
            let own = if is_there { load_entry(entries + (first + lane) * 8) } else { 0 };
            let [[rank]] = ranks(entries, 0, found, &[[own]]);
            if is_there && rank < k {
                store_entry(list + rank * 8, own);
            }
            first = ptx::opaque(first + warp::SIZE);
        }
    }
}

/// A candidate of a row: its score, and its entry.
///
/// # Safety
///
/// It is there, and visible.
#[inline(always)]
unsafe fn candidate(places: &Places, row: u32, place: u32) -> (f32, Entry) {
    let (scores, columns) = places.candidates_of(row);
    // SAFETY: the caller's promise.
    unsafe {
        let score = ptx::ld_shared_f32(scores + place * 4);
        (score, entry(order_key(score), ptx::ld_shared_b16(columns + place * 2) as u32))
    }
}

/// Gathers the entries of a row's candidates that are not below its bound, and returns how many they are.
///
/// # Safety
///
/// All lanes of the warp call it; the candidates are visible, and the place is this warp's.
#[inline(always)]
unsafe fn gather(places: &Places, row: u32, found: u32, to: u32) -> u32 {
    let lane = warp::lane_id();
    let (mut first, mut kept) = (0, 0);
    // SAFETY: the caller's promise; a row that is not there has found none.
    unsafe {
        let bound = if found > 0 { ptx::ld_shared_f32(places.bounds + row * 4) } else { 0.0 };
        while first < found {
            let (mut entry, mut stays) = (0, first + lane < found);
            if stays {
                let (score, of_score) = candidate(places, row, first + lane);
                (entry, stays) = (of_score, !is_below(score, bound));
            }
            let stay = ptx::vote_sync_ballot(stays);
            if stays {
                store_entry(to + (kept + (stay & ((1 << lane) - 1)).count_ones()) * 8, entry);
            }
            kept += stay.count_ones();
            first = ptx::opaque(first + warp::SIZE);
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::rounded_down;

    /// To bfloat16, to the nearest and to even.
    fn rounded(number: f32) -> f32 {
        let bits = number.to_bits();
        f32::from_bits((bits + 0x7fff + (bits >> 16 & 1)) & 0xffff_0000)
    }

    #[test]
    fn bounds_are_not_above_any_number_that_is_rounded_to_the_same() {
        let mut seed = 1u32;
        let drawn = (0..100_000).map(|_| {
            seed = seed.wrapping_mul(0x9e37_79b1).wrapping_add(0x7f4a_7c15);
            f32::from_bits(seed ^ seed >> 15)
        });
        let ends = [f32::MAX, f32::MIN, f32::NEG_INFINITY, 0.0, -0.0, f32::from_bits(1), -f32::from_bits(1)];
        for number in drawn.filter(|number| !number.is_nan()).chain(ends) {
            let bound = rounded_down(rounded(number));
            assert!(bound <= number, "{number:e}: {bound:e}");
            // And not far below it.
            assert!(bound >= number - number.abs() / 64.0 - 1e-38, "{number:e}: {bound:e}");
        }
    }
}
