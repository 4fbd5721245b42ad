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

/// The indices below `end` that this thread has if the block's threads take them round-robin: each is one thread's.
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

/// The block's number in the grid, which no other block has: x runs fastest, then y, then z.
///
/// In one dimension it is [`thread::block_idx_x`]. What a block writes by this number no other block writes, whatever the grid.
#[inline(always)]
#[must_use]
pub fn index_in_grid() -> usize {
    let row = thread::block_idx_z() as u64 * thread::grid_dim_y() as u64 + thread::block_idx_y() as u64;
    (row * thread::grid_dim_x() as u64 + thread::block_idx_x() as u64) as usize
}

/// The indices below `end` that this block has if the grid's blocks share them out: each is one block's, and all of the block's threads get the
/// same. For any number of rows or tiles, and any grid.
#[inline(always)]
pub fn indices(end: usize) -> impl Iterator<Item = usize> {
    let blocks = thread::grid_dim_x() as u64 * thread::grid_dim_y() as u64 * thread::grid_dim_z() as u64;
    let mut next = index_in_grid();
    core::iter::from_fn(move || {
        let own = next;
        next = next.saturating_add(blocks as usize);
        (own < end).then_some(own)
    })
}

/// As [`indices`], of the rows and columns of a matrix or of its tiles: pairs below `rows` and `columns`, row after row.
#[inline(always)]
pub fn indices_2d([rows, columns]: [usize; 2]) -> impl Iterator<Item = [usize; 2]> {
    // At least 1: a division by zero would be a panic.
    let across = columns.max(1);
    indices(rows * columns).map(move |index| [index / across, index % across])
}

/// What functions over a block exchange between its warps: a place for each that it may have.
pub type Scratch<T> = SharedArray<T, 32>;

macro_rules! reductions {
    ($($(#[$doc:meta])* $name:ident = $of_warp:ident, |$own:ident| $nothing:expr;)*) => { $(
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
                let $own = of_warp;
                let of_warps = exchange(of_warp, warp::lane_id() == 0, $nothing, scratch);
                warp::$of_warp(of_warps)
            }
        }
    )* };
}
reductions! {
    /// The sum of the values of a block's threads, the same bits in all of them.
    sum = sum, |_own| T::ZERO;
    /// The largest of the values of a block's threads; of f32, of those that are numbers, and NaN if none is.
    // Twice the same value changes nothing, where the least of all would stand for a number that nobody has.
    max = max, |own| own;
    /// The smallest of the values of a block's threads; of f32, of those that are numbers, and NaN if none is.
    min = min, |own| own;
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
