//! Places by counting: how many entries are above one.

// Loops over registers index arrays by constants: an iterator by value would be an array in local memory.
#![allow(clippy::needless_range_loop)]

use crate::{ptx, warp};

/// A candidate as one number: the larger, the better. The upper half is its key, the lower one the complement of its id, so that of equal keys that
/// of the lowest id is the best. No candidate is 0.
pub type Entry = u64;

/// The entry of a candidate.
#[inline(always)]
#[must_use]
pub fn entry(key: u32, id: u32) -> Entry {
    (key as u64) << 32 | !id as u64
}

/// The key of a candidate.
#[inline(always)]
#[must_use]
pub fn key_of_entry(entry: Entry) -> u32 {
    (entry >> 32) as u32
}

/// The id of a candidate.
#[inline(always)]
#[must_use]
pub fn id_of_entry(entry: Entry) -> u32 {
    !(entry as u32)
}

/// Loads an entry from shared memory.
///
/// # Safety
///
/// `at` is a multiple of 8, and 8 bytes of shared memory are readable there that nothing else writes unordered.
#[inline(always)]
#[must_use]
pub unsafe fn load_entry(at: u32) -> Entry {
    // SAFETY: the caller's promise.
    let [low, high] = unsafe { ptx::ld_shared_v2_f32(at) }.map(f32::to_bits);
    (high as u64) << 32 | low as u64
}

/// Stores an entry in shared memory.
///
/// # Safety
///
/// `at` is a multiple of 8, and 8 bytes of shared memory are writable there that nothing else touches unordered.
#[inline(always)]
pub unsafe fn store_entry(at: u32, entry: Entry) {
    let halves = [f32::from_bits(entry as u32), f32::from_bits((entry >> 32) as u32)];
    // SAFETY: the caller's promise.
    unsafe { ptx::st_shared_v2_f32(at, halves) }
}

/// Entries that are read at a time.
const READ: u32 = 4;

/// How many of the `count` entries at `at` are above each of the lane's own `N`, of each of `LISTS` lists `stride` bytes apart.
///
/// # Safety
///
/// `at` and `stride` are multiples of 16. The entries, and those behind them up to a multiple of 4, are in shared memory and visible; those behind are 0.
#[inline(always)]
#[must_use]
pub unsafe fn ranks<const LISTS: usize, const N: usize>(
    at: u32,
    stride: u32,
    count: u32,
    own: &[[Entry; N]; LISTS],
) -> [[u32; N]; LISTS] {
    let mut ranks = [[0; N]; LISTS];
    let mut first = 0;
    while first < count {
        for list in 0..LISTS {
            for pair in 0..READ / 2 {
                let from = at + list as u32 * stride + (first + 2 * pair) * 8;
                // SAFETY: the caller's promise.
                let [a, b, c, d] = unsafe { ptx::ld_shared_v4_b32(from) };
                let (one, other) = ((b as u64) << 32 | a as u64, (d as u64) << 32 | c as u64);
                for i in 0..N {
                    ranks[list][i] += (one > own[list][i]) as u32;
                    ranks[list][i] += (other > own[list][i]) as u32;
                }
            }
        }
        // Opaque: the compiler would copy the loop.
        first = ptx::opaque(first + READ);
    }
    ranks
}

/// How many of a warp's entries are above each lane's own, for each of `LISTS` lists of up to 32 entries, one a lane: lanes below `counts` have one. Their keys are in shared memory too, those
/// of a list at `at` + its number · `stride`.
///
/// Keys alone are compared. Where some are equal, which the places tell, the entries are.
///
/// # Safety
///
/// All lanes of the warp call it. `at` and `stride` are multiples of 16. 32 keys of each list are in shared memory and visible, those that are none 0.
#[inline(always)]
#[must_use]
pub unsafe fn ranks_of_lanes<const LISTS: usize>(
    at: u32,
    stride: u32,
    counts: [u32; LISTS],
    own: &[Entry; LISTS],
) -> [u32; LISTS] {
    let lane = warp::lane_id();
    let mut most = counts[0];
    for list in 1..LISTS {
        most = most.max(counts[list]);
    }
    let mut ranks = [0; LISTS];
    let mut first = 0;
    while first < most {
        for list in 0..LISTS {
            // SAFETY: the caller's promise.
            let keys = unsafe { ptx::ld_shared_v4_b32(at + list as u32 * stride + first * 4) };
            for key in &keys {
                ranks[list] += (*key > key_of_entry(own[list])) as u32;
            }
        }
        // Opaque: the compiler would copy the loop.
        first = ptx::opaque(first + READ);
    }
    for list in 0..LISTS {
        let place = if lane < counts[list] { 1 << ranks[list] } else { 0 };
        // SAFETY: the caller's promise: all lanes are here, and the counts are the same for all.
        unsafe {
            if ptx::redux_sync_or(place).count_ones() < counts[list] {
                let (low, high) = (own[list] as u32, key_of_entry(own[list]));
                ranks[list] = 0;
                let mut from = 0;
                while from < counts[list] {
                    let other = [ptx::shfl_sync_idx(low, from), ptx::shfl_sync_idx(high, from)];
                    ranks[list] += (((other[1] as u64) << 32 | other[0] as u64) > own[list]) as u32;
                    from = ptx::opaque(from + 1);
                }
            }
        }
    }
    ranks
}

/// How many of the `count` entries at `at`, which are sorted and at most 32, are above an entry.
///
/// # Safety
///
/// `at` is a multiple of 8. The entries are in shared memory and visible.
#[inline(always)]
#[must_use]
pub unsafe fn rank_in_sorted(at: u32, count: u32, entry: Entry) -> u32 {
    let mut above = 0;
    for step in (0..6).rev() {
        let probe = above + (1 << step);
        // SAFETY: the caller's promise.
        if probe <= count && unsafe { load_entry(at + (probe - 1) * 8) } > entry {
            above = probe;
        }
    }
    above
}

/// Numbers of a lane that [`kth_of_four_lanes`] takes.
pub const OF_FOUR: usize = 8;

/// Puts the larger of two numbers in the first place.
#[inline(always)]
fn sort_two(values: &mut [f32; OF_FOUR], first: usize, second: usize) {
    let (one, other) = (values[first], values[second]);
    values[first] = one.max(other);
    values[second] = one.min(other);
}

/// Sorts numbers of which the first rise or fall and the others do the opposite, the largest first.
#[inline(always)]
fn sort_bitonic(values: &mut [f32; OF_FOUR]) {
    for step in [4, 2, 1] {
        for i in 0..OF_FOUR {
            if i & step == 0 {
                sort_two(values, i, i + step);
            }
        }
    }
}

/// Pairs of numbers that sort eight of them, one after the other.
const PAIRS: [(usize, usize); 19] = [
    (0, 1),
    (2, 3),
    (4, 5),
    (6, 7),
    (0, 2),
    (1, 3),
    (4, 6),
    (5, 7),
    (1, 2),
    (5, 6),
    (0, 4),
    (1, 5),
    (2, 6),
    (3, 7),
    (2, 4),
    (3, 5),
    (1, 2),
    (3, 4),
    (5, 6),
];

/// Exchanges numbers with the lane whose number differs in the bits of `mask`, number i with its number i or, if they are `reversed`, 7 − i, and keeps the
/// larger of each two in the lane of the lower number.
#[inline(always)]
unsafe fn exchange(values: &mut [f32; OF_FOUR], mask: u32, reversed: bool, takes_larger: bool) {
    let own = *values;
    for i in 0..OF_FOUR {
        let of_other = own[if reversed { OF_FOUR - 1 - i } else { i }];
        // SAFETY: the caller's promise: all lanes are here.
        let other = f32::from_bits(unsafe { ptx::shfl_sync_bfly(of_other.to_bits(), mask) });
        values[i] = if takes_larger { own[i].max(other) } else { own[i].min(other) };
    }
}

/// The `k`-th largest of the 32 numbers that four lanes have, lanes 4 i to 4 i + 3, for each four lanes.
///
/// # Safety
///
/// All lanes of the warp call it; k is 1 to 32, the same for all of them. No number is NaN.
#[inline(always)]
#[must_use]
pub unsafe fn kth_of_four_lanes(mut values: [f32; OF_FOUR], k: u32) -> f32 {
    let lane = warp::lane_id();
    // Each lane sorts its own; two lanes' are merged, then those of all four.
    for i in 0..PAIRS.len() {
        sort_two(&mut values, PAIRS[i].0, PAIRS[i].1);
    }
    // SAFETY: the caller's promise.
    unsafe {
        exchange(&mut values, 1, true, lane & 1 == 0);
        sort_bitonic(&mut values);
        exchange(&mut values, 3, true, lane & 2 == 0);
        exchange(&mut values, 1, false, lane & 1 == 0);
        sort_bitonic(&mut values);
        let place = k - 1;
        let mut kth = values[0];
        for i in 1..OF_FOUR {
            if place % OF_FOUR as u32 == i as u32 {
                kth = values[i];
            }
        }
        f32::from_bits(ptx::shfl_sync_idx(kth.to_bits(), (lane & !3) + place / OF_FOUR as u32))
    }
}

#[cfg(test)]
mod tests {
    use super::{OF_FOUR, PAIRS, entry, id_of_entry, key_of_entry, sort_bitonic, sort_two};

    /// Eight numbers, each 0 or 1: what sorts all of these sorts everything.
    fn zeros_and_ones(bits: u32) -> [f32; OF_FOUR] {
        core::array::from_fn(|i| (bits >> i & 1) as f32)
    }

    #[test]
    fn eight_numbers_are_sorted_the_largest_first() {
        for bits in 0..256 {
            let mut values = zeros_and_ones(bits);
            for (first, second) in PAIRS {
                sort_two(&mut values, first, second);
            }
            assert!(values.is_sorted_by(|a, b| a >= b), "{bits:b}");
        }
    }

    #[test]
    fn eight_numbers_that_rise_and_fall_or_the_reverse_are_sorted() {
        for bits in 0..256 {
            let values = zeros_and_ones(bits);
            let changes = (0..OF_FOUR).filter(|&i| values[i] != values[(i + 1) % OF_FOUR]).count();
            if changes <= 2 {
                let mut values = values;
                sort_bitonic(&mut values);
                assert!(values.is_sorted_by(|a, b| a >= b), "{bits:b}");
            }
        }
    }

    #[test]
    fn entries_are_in_the_order_of_keys_and_then_of_ids_from_the_lowest_on() {
        let candidates = [(1, u32::MAX - 1), (1, 7), (1, 0), (2, u32::MAX - 1), (u32::MAX, 3), (u32::MAX, 0)];
        let entries = candidates.map(|(key, id)| entry(key, id));
        assert!(entries.is_sorted_by(|a, b| a < b));
        for ((key, id), entry) in candidates.into_iter().zip(entries) {
            assert_eq!((key_of_entry(entry), id_of_entry(entry)), (key, id));
            assert!(entry > 0);
        }
    }
}
