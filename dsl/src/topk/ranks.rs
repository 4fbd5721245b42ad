//! Places by counting: how many entries are above one.

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

/// How many of the `count` entries at `at` are above each of the lane's own `N`, of each of `LISTS` lists that lie `stride` bytes apart.
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

/// The `k`-th best of the keys that the lanes of the warp have, for each of `N` keys of a lane.
///
/// # Safety
///
/// All lanes of the warp call it; k is 1 to 32.
#[inline(always)]
#[must_use]
pub unsafe fn kth_of_lanes<const N: usize>(mut keys: [u32; N], k: u32) -> [u32; N] {
    // Bitonic sorting of the lanes' keys, the largest first.
    let lane = warp::lane_id();
    for size in 1..6 {
        for step in (0..size).rev() {
            let takes_larger = (lane >> size & 1) == (lane >> step & 1);
            for key in &mut keys {
                // SAFETY: the caller's promise.
                let other = unsafe { ptx::shfl_sync_bfly(*key, 1 << step) };
                *key = if takes_larger { (*key).max(other) } else { (*key).min(other) };
            }
        }
    }
    for key in &mut keys {
        // SAFETY: the caller's promise.
        *key = unsafe { ptx::shfl_sync_idx(*key, k - 1) };
    }
    keys
}

#[cfg(test)]
mod tests {
    use super::{entry, id_of_entry, key_of_entry};

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
