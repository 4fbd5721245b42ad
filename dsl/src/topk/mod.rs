//! The best of many numbers.
//!
//! Numbers are compared as unsigned integers in the same order ([`order_key`]). There are two ways:
//!
//! - [`BestOfWarp`] is a sorted list that the lanes of a warp keep in registers. A candidate that beats the worst of the k best is put
//!   in its place, and what is behind it moves on by one; one that does not costs a comparison. Of n numbers in random order about
//!   k · (1 + ln(n / k)) get in, one after the other.
//! - Where few numbers can win, their places are counted: that of an [`entry`] is the number of entries above it ([`ranks`]). All lanes count
//!   at the same time, and nothing waits for another. A bound that few exceed is the k-th best of the best of 32 groups
//!   ([`kth_of_four_lanes`]).

mod ranks;

pub use ranks::{
    Entry, OF_FOUR, entry, id_of_entry, key_of_entry, kth_of_four_lanes, load_entry, rank_in_sorted, ranks,
    ranks_of_lanes, store_entry,
};

use crate::float::Element;
use crate::{ptx, warp};

/// The key of a place that nothing has been put in. Every number has a larger one.
pub const EMPTY: u32 = 0;

/// An integer for each number, in the same order: the larger the number, the larger the integer.
///
/// A NaN of either sign is above every number, and −0 is 0.
#[inline(always)]
#[must_use]
pub fn order_key<T: Element>(value: T) -> u32 {
    let number = value.to_f32();
    // −0 + 0 is 0, and nothing else changes.
    let bits = (number + 0.0).to_bits();
    let sign = (bits as i32 >> 31) as u32;
    let key = bits ^ (sign | 0x8000_0000);
    if number.is_nan() { u32::MAX } else { key }
}

/// The number of a key, which is not a NaN's.
#[inline(always)]
#[must_use]
pub fn number_of_key(key: u32) -> f32 {
    let sign = (!key as i32 >> 31) as u32;
    f32::from_bits(key ^ (sign | 0x8000_0000))
}

/// The best candidates so far of those that a warp has seen, with their ids: 32 · `SLOTS` places, best first. Lane l has those of
/// number l, l + 32 and so on.
pub struct BestOfWarp<const SLOTS: usize> {
    keys: [u32; SLOTS],
    ids: [u32; SLOTS],
    /// What a candidate has to beat: the k-th best key, or what is known of that.
    bar: u32,
    /// What every one of the k best is known to exceed.
    floor: u32,
    k: u32,
}

impl<const SLOTS: usize> BestOfWarp<SLOTS> {
    /// An empty list for the `k` best, 1 to 32 · `SLOTS`.
    #[inline(always)]
    #[must_use]
    pub fn new(k: u32) -> Self {
        Self { keys: [EMPTY; SLOTS], ids: [0; SLOTS], bar: EMPTY, floor: EMPTY, k }
    }

    /// A list of what the lanes have.
    ///
    /// # Safety
    ///
    /// All lanes of the warp call it; the keys are sorted as the list is.
    #[inline(always)]
    #[must_use]
    pub unsafe fn of(k: u32, keys: [u32; SLOTS], ids: [u32; SLOTS]) -> Self {
        let mut list = Self { keys, ids, bar: EMPTY, floor: EMPTY, k };
        // SAFETY: the caller's promise.
        list.bar = unsafe { list.kth() };
        list
    }

    /// The keys of this lane's places.
    #[inline(always)]
    #[must_use]
    pub fn keys(&self) -> &[u32; SLOTS] {
        &self.keys
    }

    /// The ids of this lane's places.
    #[inline(always)]
    #[must_use]
    pub fn ids(&self) -> &[u32; SLOTS] {
        &self.ids
    }

    /// What a candidate's key has to exceed.
    #[inline(always)]
    #[must_use]
    pub fn bar(&self) -> u32 {
        self.bar
    }

    #[inline(always)]
    unsafe fn kth(&self) -> u32 {
        let place = self.k - 1;
        let mut key = self.keys[0];
        for slot in 1..SLOTS {
            if place / warp::SIZE == slot as u32 {
                key = self.keys[slot];
            }
        }
        // SAFETY: the caller's promise.
        unsafe { ptx::shfl_sync_idx(key, place % warp::SIZE) }
    }

    /// Puts a candidate in its place. `stays` says of a place whether what is there is better.
    #[inline(always)]
    unsafe fn insert(&mut self, key: u32, id: u32, stays: impl Fn(u32, u32) -> bool) {
        let first_lane = warp::lane_id() == 0;
        // From the last slot on, since each gets what its predecessor has had.
        for slot in (0..SLOTS).rev() {
            let (own_key, own_id) = (self.keys[slot], self.ids[slot]);
            // SAFETY: the caller's promise.
            let (mut above_key, mut above_id) =
                unsafe { (ptx::shfl_sync_up(own_key, 1), ptx::shfl_sync_up(own_id, 1)) };
            let mut begins = first_lane;
            if slot > 0 {
                // SAFETY: the caller's promise.
                let (last_key, last_id) = unsafe {
                    let last = warp::SIZE - 1;
                    (
                        ptx::shfl_sync_idx(self.keys[slot - 1], last),
                        ptx::shfl_sync_idx(self.ids[slot - 1], last),
                    )
                };
                above_key = if first_lane { last_key } else { above_key };
                above_id = if first_lane { last_id } else { above_id };
                begins = false;
            }
            let here = begins || stays(above_key, above_id);
            if !stays(own_key, own_id) {
                self.keys[slot] = if here { key } else { above_key };
                self.ids[slot] = if here { id } else { above_id };
            }
        }
        // SAFETY: the caller's promise.
        self.bar = unsafe { self.kth() }.max(self.floor);
    }

    /// Says of an empty list that every one of the k best has this key or a larger one: candidates that have less are not put in.
    #[inline(always)]
    pub fn expect_at_least(&mut self, key: u32) {
        // Those that are equal to it get in.
        self.floor = key.saturating_sub(1);
        self.bar = self.floor;
    }

    /// Offers a candidate of each lane, whose ids are `first_id` and the next, all larger than those of candidates before: of equal
    /// keys the lowest id is the best.
    ///
    /// # Safety
    ///
    /// All lanes of the warp call it. A lane that has no candidate gives [`EMPTY`].
    #[inline(always)]
    pub unsafe fn offer(&mut self, key: u32, first_id: u32) {
        // SAFETY: the caller's promise; the mask is the same for all lanes, and so is the way through the loop.
        unsafe {
            let mut mask = ptx::vote_sync_ballot(key > self.bar);
            while mask != 0 {
                let lane = mask.trailing_zeros();
                let candidate = ptx::shfl_sync_idx(key, lane);
                self.insert(candidate, first_id + lane, |other, _| other >= candidate);
                // Those above this lane that still beat the bar.
                mask = ptx::vote_sync_ballot(key > self.bar && warp::lane_id() > lane);
            }
        }
    }

    /// Offers a candidate of each lane, with ids in any order: of equal keys the lowest id is the best.
    ///
    /// # Safety
    ///
    /// As [`offer`](Self::offer).
    #[inline(always)]
    pub unsafe fn offer_unordered(&mut self, key: u32, id: u32) {
        // SAFETY: the caller's promise; the mask is the same for all lanes, and so is the way through the loop.
        unsafe {
            let mut mask = ptx::vote_sync_ballot(key != EMPTY && key >= self.bar);
            while mask != 0 {
                let lane = mask.trailing_zeros();
                let (new_key, new_id) = (ptx::shfl_sync_idx(key, lane), ptx::shfl_sync_idx(id, lane));
                self.insert(new_key, new_id, |key, id| key > new_key || key == new_key && id < new_id);
                mask = ptx::vote_sync_ballot(key != EMPTY && key >= self.bar && warp::lane_id() > lane);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{EMPTY, number_of_key, order_key};

    #[test]
    fn keys_are_in_the_order_of_the_numbers_and_above_that_of_an_empty_place() {
        let numbers = [
            f32::NEG_INFINITY,
            f32::MIN,
            -1.5,
            -1.0,
            -f32::MIN_POSITIVE,
            -f32::from_bits(1),
            0.0,
            f32::from_bits(1),
            f32::MIN_POSITIVE,
            1.0,
            f32::MAX,
            f32::INFINITY,
        ];
        assert!(numbers.map(order_key).is_sorted_by(|a, b| a < b));
        assert!(order_key(f32::NEG_INFINITY) > EMPTY);
        assert!([f32::NAN, -f32::NAN].map(order_key).iter().all(|&key| key > order_key(f32::INFINITY)));
        assert_eq!(order_key(-0.0f32), order_key(0.0f32));
        for number in numbers {
            assert_eq!(number_of_key(order_key(number)), number);
        }
    }
}
