//! How a block's threads copy rows to boxes of shared memory.

use super::THREADS;
use crate::float::Stored;
use crate::launch::GlobalMut;
use crate::layout::{CHUNK_BYTES, Swizzle};
use crate::shared::SharedAddress;
use crate::warpgroup::{self, BOX_ROW_BYTES};
use crate::{ptx, thread};

/// Chunks of a box's row, each of which a thread copies.
const ROW_CHUNKS: u32 = BOX_ROW_BYTES / CHUNK_BYTES;
/// Rows that a block's threads copy at a time, and a warpgroup's.
const TURN_ROWS: u32 = {
    assert!(THREADS == warpgroup::THREADS, "as many threads");
    THREADS / ROW_CHUNKS
};

/// Has the block's threads copy `rows` rows, of which the first `count` are there, to boxes at `to`; `row` gives the place of one.
///
/// # Safety
///
/// All threads of the block call it. The first `count` rows are valid for reads of `columns` elements.
#[inline(always)]
pub(in crate::attention) unsafe fn copy<E: Stored>(
    to: SharedAddress,
    boxes: u32,
    rows: u32,
    count: u32,
    columns: u32,
    row: impl Fn(u32) -> GlobalMut<E>,
) {
    // The place of a row that is not there is the first's, of which nothing is read.
    let of = |at: u32| row(if at < count { at } else { 0 }).address();
    // SAFETY: the caller's promise.
    unsafe { copy_from::<E, false>(to, boxes, rows, count, columns, of) };
}

/// The same by the threads of a warpgroup.
///
/// # Safety
///
/// All threads of the warpgroup call it; the rest as [`copy`].
#[inline(always)]
pub(in crate::attention) unsafe fn copy_by_warpgroup<E: Stored>(
    to: SharedAddress,
    boxes: u32,
    rows: u32,
    count: u32,
    columns: u32,
    row: impl Fn(u32) -> GlobalMut<E>,
) {
    let of = |at: u32| row(if at < count { at } else { 0 }).address();
    // SAFETY: the caller's promise.
    unsafe { copy_from::<E, true>(to, boxes, rows, count, columns, of) };
}

/// As [`copy`], of rows that are `stride` elements apart, of which the first is at `first`.
///
/// # Safety
///
/// As [`copy`](Self::copy).
#[inline(always)]
pub(in crate::attention) unsafe fn copy_strided<E: Stored>(
    to: SharedAddress,
    boxes: u32,
    rows: u32,
    count: u32,
    columns: u32,
    (first, stride): (GlobalMut<E>, u64),
) {
    let own = thread::thread_idx_x() / ROW_CHUNKS;
    let mut next = first.offset(own as u64 * stride).address();
    let step = (TURN_ROWS * E::BYTES) as u64 * stride;
    // A thread's rows come one after the other; of those that are not there nothing is read.
    let of = |_| {
        let from = next;
        next = from.wrapping_add(step);
        from
    };
    // SAFETY: the caller's promise.
    unsafe { copy_from::<E, false>(to, boxes, rows, count, columns, of) };
}

/// The same by the threads of a block, or of a warpgroup if `IS_WARPGROUP`, where `address` gives the places of a thread's rows.
///
/// # Safety
///
/// As [`copy`](Self::copy).
#[inline(always)]
unsafe fn copy_from<E: Stored, const IS_WARPGROUP: bool>(
    to: SharedAddress,
    boxes: u32,
    rows: u32,
    count: u32,
    columns: u32,
    mut address: impl FnMut(u32) -> u64,
) {
    // Opaque: what follows from it for each box is worth no registers from block to block.
    let columns = ptx::opaque(columns);
    let thread = thread::thread_idx_x();
    let thread = if IS_WARPGROUP { thread % warpgroup::THREADS } else { thread };
    let (first, chunk) = (thread / ROW_CHUNKS, thread % ROW_CHUNKS);
    // Every turn is a multiple of the swizzle's rows further on.
    let place = to.offset(Swizzle::Bytes128.apply(first * BOX_ROW_BYTES + chunk * CHUNK_BYTES));
    for turn in 0..rows.div_ceil(TURN_ROWS) {
        let at = first + turn * TURN_ROWS;
        let from = address(at);
        for index in 0..boxes {
            let byte = index * BOX_ROW_BYTES + chunk * CHUNK_BYTES;
            let bytes = (columns * E::BYTES).saturating_sub(byte).min(CHUNK_BYTES);
            let bytes = if at < count { bytes } else { 0 };
            let place = place.offset((index * rows + turn * TURN_ROWS) * BOX_ROW_BYTES);
            // SAFETY: within the boxes; the caller's promise.
            unsafe {
                if rows.is_multiple_of(TURN_ROWS) || at < rows {
                    ptx::cp_async_cg_16(place.get(), from.wrapping_add(byte as u64), bytes);
                }
            }
        }
    }
}
