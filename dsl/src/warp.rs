//! The warp: 32 threads that run in step. What lanes exchange: shuffles, votes, sums, maxima, minima, prefix sums.

use crate::{ptx, thread};

/// Threads in a warp.
pub const SIZE: u32 = 32;

/// The thread's lane in its warp, 0 to 31.
#[inline(always)]
#[must_use]
pub fn lane_id() -> u32 {
    ptx::laneid()
}

/// The warp's index in its block, for blocks that extend along x only.
#[inline(always)]
#[must_use]
pub fn warp_id() -> u32 {
    thread::thread_idx_x() / SIZE
}

/// Waits for all 32 lanes; memory accesses before it are visible to the warp after it.
///
/// # Safety
///
/// All lanes of the warp reach it.
#[inline(always)]
pub unsafe fn sync_warp() {
    // SAFETY: all lanes execute it with the full mask.
    unsafe { ptx::bar_warp_sync(u32::MAX) }
}

use crate::scalar::Number;

macro_rules! shuffles {
    ($($(#[$doc:meta])* $name:ident($argument:ident) = $instruction:ident, $mask:literal;)*) => { $(
        $(#[$doc])*
        ///
        /// # Safety
        ///
        /// All lanes of the warp call it.
        #[inline(always)]
        #[must_use]
        pub unsafe fn $name<T: Number>(value: T, $argument: u32) -> T {
            // SAFETY: the caller's promise; the number is less than 32.
            T::from_word(unsafe { ptx::$instruction(value.to_word(), $argument & $mask) })
        }
    )* };
}
shuffles! {
    /// The value of lane `lane`, of which the lowest five bits count.
    shuffle(lane) = shfl_sync_idx, 31;
    /// The value of the lane whose number differs in the bits of `mask`, of which the lowest five count.
    shuffle_xor(mask) = shfl_sync_bfly, 31;
    /// The value of the lane `distance` below, modulo 32; the first lanes, which have none, keep their own.
    shuffle_up(distance) = shfl_sync_up, 31;
    /// The value of the lane `distance` above, modulo 32; the last lanes, which have none, keep their own.
    shuffle_down(distance) = shfl_sync_down, 31;
}

/// A bit for each lane, set where `condition` holds.
///
/// # Safety
///
/// All lanes of the warp call it.
#[inline(always)]
#[must_use]
pub unsafe fn ballot(condition: bool) -> u32 {
    // SAFETY: the caller's promise.
    unsafe { ptx::vote_sync_ballot(condition) }
}

/// Whether `condition` holds in every lane.
///
/// # Safety
///
/// All lanes of the warp call it.
#[inline(always)]
#[must_use]
pub unsafe fn all(condition: bool) -> bool {
    // SAFETY: the caller's promise.
    unsafe { ballot(condition) == u32::MAX }
}

/// Whether `condition` holds in any lane.
///
/// # Safety
///
/// All lanes of the warp call it.
#[inline(always)]
#[must_use]
pub unsafe fn any(condition: bool) -> bool {
    // SAFETY: the caller's promise.
    unsafe { ballot(condition) != 0 }
}

macro_rules! reductions {
    ($($(#[$doc:meta])* $name:ident = $of_two:ident;)*) => { $(
        $(#[$doc])*
        /// The order of the operations is fixed.
        ///
        /// # Safety
        ///
        /// All lanes of the warp call it.
        #[inline(always)]
        #[must_use]
        pub unsafe fn $name<T: Number>(value: T) -> T {
            let (mut all, mut mask) = (value, 1);
            while mask < SIZE {
                // SAFETY: the caller's promise.
                all = all.$of_two(unsafe { shuffle_xor(all, mask) });
                mask *= 2;
            }
            all
        }
    )* };
}
reductions! {
    /// The sum of the lanes' values, the same bits in all of them.
    sum = plus;
    /// The largest of the lanes' values; of f32, of those that are numbers, and NaN if none is.
    max = larger;
    /// The smallest of the lanes' values; of f32, of those that are numbers, and NaN if none is.
    min = smaller;
}

/// The sum of the values of the lanes up to this one, with its own.
///
/// # Safety
///
/// All lanes of the warp call it.
#[inline(always)]
#[must_use]
pub unsafe fn inclusive_sum<T: Number>(value: T) -> T {
    let (mut sum, mut distance, lane) = (value, 1, lane_id());
    while distance < SIZE {
        // SAFETY: the caller's promise.
        let below = unsafe { shuffle_up(sum, distance) };
        sum = if lane < distance { sum } else { below.plus(sum) };
        distance *= 2;
    }
    sum
}

/// The sum of the values of the lanes below this one; zero for the first.
///
/// # Safety
///
/// All lanes of the warp call it.
#[inline(always)]
#[must_use]
pub unsafe fn exclusive_sum<T: Number>(value: T) -> T {
    // SAFETY: the caller's promise.
    let below = unsafe { shuffle_up(inclusive_sum(value), 1) };
    if lane_id() == 0 { T::ZERO } else { below }
}
