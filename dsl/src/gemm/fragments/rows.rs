//! The epilogue row by row, for matrices of any alignment.

use super::{BLOCK_ROWS, ROWS, WarpRows, wait_for_stores};
use crate::epilogue::Epilogue;
use crate::float::Element;
use crate::layout::{Coord, FRAGMENT_COLUMNS, STRIP_COLUMNS, accumulator_coord, swizzled_staging_word};
use crate::ptx::{self, Accumulators};
use crate::tile::Output;
use crate::warp;

/// Fragments of a strip.
const STRIP_FRAGMENTS: usize = (STRIP_COLUMNS / FRAGMENT_COLUMNS) as usize;
/// Columns that a lane transforms and stores at a time, of what is staged.
const COLUMNS: usize = 4;
/// Rows of a lane that stand next to each other in the code: more take registers that large tiles lack.
const BATCH: usize = 2;
/// Bytes of a line of the level-2 cache.
const LINE_BYTES: u32 = 128;

/// Applies `epilogue` to a warp's accumulators of several times 64 rows, rounds them, and stores those that are within the
/// output. The epilogue's code stands once for a batch of rows of a lane, and what it reads of the next ones is on its way meanwhile.
///
/// # Safety
///
/// All lanes of the warp call it, with the same `at`; block i of the accumulators belongs 64 · i rows further down. The output is
/// valid for writes, and no other warp has these places; `epilogue` may be asked for every row and column of it.
#[inline(always)]
pub unsafe fn store_rows<C: Accumulators, O: Element, E: Epilogue, const BLOCKS: usize>(
    accumulators: &[C; BLOCKS],
    epilogue: &E,
    output: &Output<O>,
    at: WarpRows,
) {
    const LANES_PER_ROW: u32 = STRIP_COLUMNS / COLUMNS as u32;
    const ROWS_PER_PASS: u32 = warp::SIZE / LANES_PER_ROW;
    // Rows of a batch of the warp's, and turns in which it has all rows of a strip.
    let batch_rows = const { BATCH as u32 * ROWS_PER_PASS };
    let turns = const {
        assert!(ROWS.is_multiple_of(BATCH as u32 * ROWS_PER_PASS), "batches cover the rows");
        ROWS / (BATCH as u32 * ROWS_PER_PASS)
    };
    let strips = const { C::COLUMNS / STRIP_COLUMNS };
    let place = |row: u32, column: u32| at.staging.offset(4 * swizzled_staging_word(row, column)).get();
    let vector_aligned = output.is_vector_aligned();
    // A lane's first row and column of a strip.
    let first_of = |lane: u32| (lane / LANES_PER_ROW, (lane % LANES_PER_ROW) * COLUMNS as u32);
    // Its rows of a batch and its first column, of the output.
    let batch_of = |lane: u32, strip: u32, turn: u32| {
        let (row, column) = first_of(lane);
        let first = at.row + strip / strips * BLOCK_ROWS + row + turn * batch_rows;
        let mut rows = [first; BATCH];
        for (i, row) in rows.iter_mut().enumerate() {
            *row += i as u32 * ROWS_PER_PASS;
        }
        (rows, at.column + strip % strips * STRIP_COLUMNS + column)
    };
    // What the epilogue reads of a batch is asked for while it is at the one before.
    let read = |(rows, column): ([u32; BATCH], u32)| {
        // SAFETY: the caller's promise. Every element of the tile belongs to one lane of one warp, which reads it before it stores it.
        unsafe { epilogue.read_rows(rows, column) }
    };
    let mut ahead = read(batch_of(at.lane, 0, 0));

    // SAFETY: all lanes of the warp are here.
    unsafe { wait_for_stores() };
    // Loops that begin with opaque numbers stay as they are: the epilogue's code is larger than their overhead.
    let may_be_half = const { BLOCKS == 1 && C::Half::COLUMNS < C::COLUMNS };
    let count = if may_be_half { at.columns / STRIP_COLUMNS } else { strips * BLOCKS as u32 };
    let mut strip = ptx::opaque(0);
    while strip < count {
        // Opaque: what follows from it is worth no register all the time.
        let lane = ptx::opaque(at.lane);
        let own = accumulator_coord(lane, 0);
        // SAFETY: the caller's promise.
        let columns = unsafe { epilogue.read_columns(batch_of(lane, strip, 0).1) };
        for candidate in 0..strips * BLOCKS as u32 {
            // Registers have no index: each strip has its own stores.
            if strip == ptx::opaque(candidate) {
                for fragment in 0..STRIP_FRAGMENTS {
                    let of_block = (candidate % strips) as usize * STRIP_FRAGMENTS + fragment;
                    let [c0, c1, c2, c3] = accumulators[(candidate / strips) as usize].fragment(of_block);
                    let column = fragment as u32 * FRAGMENT_COLUMNS + own.column;
                    // SAFETY: within this warp's staging buffer, which no other warp touches.
                    unsafe {
                        ptx::st_shared_v2_f32(place(own.row, column), [c0, c1]);
                        ptx::st_shared_v2_f32(place(own.row + ROWS / 2, column), [c2, c3]);
                    }
                }
            }
        }
        // SAFETY: all lanes of the warp are here.
        unsafe { warp::sync_warp() };
        let mut turn = ptx::opaque(0);
        while turn < turns {
            let known = ahead;
            let (first_row, column) = first_of(lane);
            let mut values = [[0.0; COLUMNS]; BATCH];
            for (i, values) in values.iter_mut().enumerate() {
                let row = first_row + turn * batch_rows + i as u32 * ROWS_PER_PASS;
                // SAFETY: written before the barrier, by this warp.
                *values = unsafe { ptx::ld_shared_v4_f32(place(row, column)) };
            }
            let (rows, column) = batch_of(lane, strip, turn);
            // SAFETY: the caller's promise; the lanes of a row have four neighbouring columns each.
            unsafe { epilogue.begin_rows(&columns, &known, &mut values) };
            // What was read is in no register any more.
            let next = if turn + 1 < turns { (strip, turn + 1) } else { (strip + 1, 0) };
            if next.0 < count {
                ahead = read(batch_of(lane, next.0, next.1));
            }
            // SAFETY: the caller's promise; the lanes of a row have four neighbouring columns each.
            unsafe {
                epilogue.finish_rows(rows, column, &mut values);
                output.store_4_of_rows(rows, column, &values, vector_aligned);
            }
            turn += 1;
        }
        // SAFETY: all lanes of the warp are here.
        unsafe { warp::sync_warp() };
        strip += 1;
    }
}

/// Has the level-2 cache get what `epilogue` reads of a warp's part of an output of type `O`, long before [`store_rows`] asks for it.
#[inline(always)]
pub(in crate::gemm) fn prefetch_rows<C: Accumulators, O: Element, E: Epilogue, const BLOCKS: usize>(
    epilogue: &E,
    at: WarpRows,
) {
    // Columns of a line.
    let line = const { LINE_BYTES / O::BYTES };
    for first in 0..const { BLOCKS as u32 * ROWS * (C::COLUMNS / (LINE_BYTES / O::BYTES)) / warp::SIZE } {
        let index = first * warp::SIZE + at.lane;
        let (row, column) = (index % (BLOCKS as u32 * ROWS), index / (BLOCKS as u32 * ROWS) * line);
        if column < at.columns {
            let row = at.row + row / ROWS * BLOCK_ROWS + row % ROWS;
            epilogue.prefetch(Coord { row, column: at.column + column });
        }
    }
}
