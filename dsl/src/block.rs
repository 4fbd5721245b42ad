//! The block: which tile of the output it works on; sums, maxima, minima and prefix sums over its threads.

use crate::layout::{self, TileIndex};
use crate::thread;

/// The output tile of this block in a one-dimensional grid of `tiles_m · tiles_n` blocks for each matrix, in the raster order of
/// [`layout::raster`].
#[inline(always)]
#[must_use]
pub fn tile_index(tiles_m: u32, tiles_n: u32) -> TileIndex {
    layout::raster(thread::block_idx_x(), tiles_m, tiles_n)
}

use crate::scalar::Number;
use crate::shared::SharedArray;
use crate::{ptx, warp};

/// The number of threads of the block.
#[inline(always)]
#[must_use]
pub fn size() -> u32 {
    thread::block_dim_x() * thread::block_dim_y() * thread::block_dim_z()
}

/// The thread's number in the block: x runs fastest, then y, then z.
#[inline(always)]
#[must_use]
pub fn thread_rank() -> u32 {
    (thread::thread_idx_z() * thread::block_dim_y() + thread::thread_idx_y()) * thread::block_dim_x()
        + thread::thread_idx_x()
}

/// The indices below `end` that this thread has if the block's threads take them in turns: each is one thread's.
#[inline(always)]
pub fn strided(end: usize) -> impl Iterator<Item = usize> {
    let step = size() as usize;
    let mut next = thread_rank() as usize;
    core::iter::from_fn(move || {
        let own = next;
        next += step;
        (own < end).then_some(own)
    })
}

/// What functions over a block exchange between its warps: a place for each that it may have.
pub type Scratch<T> = SharedArray<T, 32>;

macro_rules! reductions {
    ($($(#[$doc:meta])* $name:ident = $of_warp:ident, $nothing:ident;)*) => { $(
        $(#[$doc])*
        /// The order of the operations is fixed.
        ///
        /// # Safety
        ///
        /// Every thread of the block calls it, and the block consists of whole warps. No thread uses `scratch` for anything else between the
        /// last barrier before the call and its end.
        #[inline(always)]
        #[must_use]
        pub unsafe fn $name<T: Number>(value: T, scratch: Scratch<T>) -> T {
            // SAFETY: the caller's promise; warps write a place each, between barriers.
            unsafe {
                let of_warp = warp::$of_warp(value);
                let of_warps = exchange(of_warp, warp::lane_id() == 0, T::$nothing, scratch);
                warp::$of_warp(of_warps)
            }
        }
    )* };
}
reductions! {
    /// The sum of the values of a block's threads, the same bits in all of them.
    sum = sum, ZERO;
    /// The largest of the values of a block's threads; of f32, of those that are numbers.
    max = max, LOWEST;
    /// The smallest of the values of a block's threads; of f32, of those that are numbers.
    min = min, HIGHEST;
}

/// Hands each warp's value, which one of its lanes has, to lane w of every warp, w being the warp's number; `nothing` to the lanes that stand for
/// no warp.
///
/// # Safety
///
/// As [`sum`].
#[inline(always)]
unsafe fn exchange<T: Number>(value: T, has_it: bool, nothing: T, scratch: Scratch<T>) -> T {
    let (own, lane) = (own_warp(), warp::lane_id());
    // SAFETY: the caller's promise.
    unsafe {
        if has_it {
            scratch.write_unchecked(own as usize, value);
        }
        thread::sync_threads();
        let of_warps =
            if lane < size() / warp::SIZE { scratch.read_unchecked(lane as usize) } else { nothing };
        // The next use of the places.
        thread::sync_threads();
        of_warps
    }
}

/// The warp's number in its block.
#[inline(always)]
fn own_warp() -> u32 {
    thread_rank() / warp::SIZE
}

/// The sum of the values of the threads up to this one, by [`thread_rank`], with its own.
///
/// # Safety
///
/// As [`sum`].
#[inline(always)]
#[must_use]
pub unsafe fn inclusive_sum<T: Number>(value: T, scratch: Scratch<T>) -> T {
    // SAFETY: the caller's promise.
    unsafe {
        let in_warp = warp::inclusive_sum(value);
        before_warp(in_warp, scratch).plus(in_warp)
    }
}

/// The sum of the values of the threads before this one, by [`thread_rank`]; zero for the first.
///
/// # Safety
///
/// As [`sum`].
#[inline(always)]
#[must_use]
pub unsafe fn exclusive_sum<T: Number>(value: T, scratch: Scratch<T>) -> T {
    // SAFETY: the caller's promise.
    unsafe {
        let in_warp = warp::inclusive_sum(value);
        let before = warp::shuffle_up(in_warp, 1);
        let before = if warp::lane_id() == 0 { T::ZERO } else { before };
        before_warp(in_warp, scratch).plus(before)
    }
}

/// The sum of the warps before this one, of whose prefix sums the last is its sum.
///
/// # Safety
///
/// As [`sum`].
#[inline(always)]
unsafe fn before_warp<T: Number>(in_warp: T, scratch: Scratch<T>) -> T {
    // SAFETY: the caller's promise. There are as many warps as lanes, at most.
    unsafe {
        let is_last = warp::lane_id() == warp::SIZE - 1;
        let of_warps = exchange(in_warp, is_last, T::ZERO, scratch);
        warp::shuffle(warp::exclusive_sum(of_warps), own_warp())
    }
}

/// A barrier, and whether `condition` holds in every thread of the block.
///
/// # Safety
///
/// As [`thread::sync_threads`].
#[inline(always)]
#[must_use]
pub unsafe fn all(condition: bool) -> bool {
    // SAFETY: the caller's promise.
    unsafe { ptx::bar_red_and(condition) }
}

/// A barrier, and whether `condition` holds in any thread of the block.
///
/// # Safety
///
/// As [`thread::sync_threads`].
#[inline(always)]
#[must_use]
pub unsafe fn any(condition: bool) -> bool {
    // SAFETY: the caller's promise.
    unsafe { ptx::bar_red_or(condition) }
}
