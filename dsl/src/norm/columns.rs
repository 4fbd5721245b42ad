//! Gradients of a norm's weight and bias, where rows are too wide for threads to add them up beside the gradient of the rows.

// Loops over registers index arrays by constants: an iterator by value would be an array in local memory.
#![allow(clippy::needless_range_loop, clippy::manual_memcpy)]

use super::NormGradientParams;
use super::backward::{Chunk, statistics_of};
use crate::rows::{Columns, RowElement, THREADS, each_chunk};
use crate::{ptx, thread};

/// Rows that a thread loads at a time.
const ROWS: usize = 4;

/// Adds up the columns of one part of the rows: along y the grid has as many parts as `p.dweight` and `p.dbias` have rows, along x a block for
/// each [`THREADS`] · `PER` columns. Other gradients are not computed.
///
/// # Safety
///
/// As [`norm_gradients`](super::norm_gradients), for what of `p` is read and written. The grid has blocks for all columns.
#[inline(always)]
pub unsafe fn norm_column_gradients<T: RowElement, const PER: usize, const VECTOR: bool>(
    p: &NormGradientParams<T>,
) {
    let (across, parts) = (thread::grid_dim_x(), thread::grid_dim_y());
    let rank = thread::block_idx_x() * THREADS + thread::thread_idx_x();
    let mine = Columns::<PER, VECTOR>::new(rank, across * THREADS, p.columns);
    let (part, of_part) = (thread::block_idx_y(), p.rows.div_ceil(if parts == 0 { 1 } else { parts }));
    let end = p.rows.min((part + 1) * of_part);
    let mut sums = [[0.0; PER]; 2];
    let mut row = part * of_part;
    while row < end {
        let mut words = [[[0; 4]; 2]; ROWS];
        let mut statistics = [[0.0; 2]; ROWS];
        // All on their way before any is waited for. What is not there is zero, and adds nothing.
        for i in 0..ROWS {
            let at = row + i as u32;
            let of_row = mine.only_if(at < end);
            // SAFETY: a row of p's, or one that no column of is read.
            unsafe {
                words[i][0] = of_row.load_words::<T>(p.x.offset(at as u64 * p.strides[0]).address(), 0);
                words[i][1] = of_row.load_words::<T>(p.dy.offset(at as u64 * p.strides[1]).address(), 0);
                statistics[i] = statistics_of(p, if at < end { at } else { u32::MAX });
            }
        }
        each_chunk!(i of ROWS => {
            let Chunk { normed, dy, .. } = Chunk::<PER>::new::<T>(words[i], [1.0; PER], statistics[i]);
            for j in 0..PER {
                sums[0][j] = ptx::fma(dy[j], normed[j], sums[0][j]);
                sums[1][j] += dy[j];
            }
        });
        row += ROWS as u32;
    }
    for (to, sums) in [(p.dweight, sums[0]), (p.dbias, sums[1])] {
        if !to.is_null() {
            let row = to.offset(part as u64 * p.columns as u64);
            // SAFETY: the part is this block's, and these of its columns are this thread's. Rows are as aligned as a chunk of theirs.
            unsafe { mine.store_rounded::<f32>(row.address(), 0, sums) };
        }
    }
}
