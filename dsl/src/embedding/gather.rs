//! Rows of a table.

// Registers are indexed by constants: an iterator over several arrays at once might put them in memory.
#![allow(clippy::needless_range_loop, clippy::manual_memcpy)]

use super::Ids;
use crate::launch::{Global, GlobalMut, KernelParam};
use crate::rows::{Columns, RowElement, THREADS};
use crate::thread;

/// What is read, and where it goes.
#[repr(C)]
pub struct GatherParams<T> {
    /// The table.
    pub table: Global<T>,
    /// Elements from one row of it to the next.
    pub table_stride: u64,
    /// The rows that are wanted.
    pub ids: Ids,
    /// Where they go.
    pub y: GlobalMut<T>,
    /// Elements from one row of y to the next.
    pub y_stride: u64,
    /// Tokens.
    pub tokens: u32,
    /// Columns.
    pub columns: u32,
    /// Threads of a block that share a row, a power of two.
    pub threads: u32,
    /// The bits of elements of a row that is not there, in each word.
    pub missing: u32,
}

impl<T> Clone for GatherParams<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for GatherParams<T> {}

// SAFETY: fields of 8, 8, 16, 8, 8, 4, 4, 4 and 4 bytes, without padding.
unsafe impl<T: 'static> KernelParam for GatherParams<T> {}

/// Copies rows of a table. Along x the grid has blocks for the columns, along y for the tokens, as many as it likes.
///
/// # Safety
///
/// What `p` describes is valid, and aligned to chunks if `VECTOR`; what is written overlaps nothing else.
/// `p.threads` is a power of two up to [`THREADS`], as [`Columns`] takes them.
#[inline(always)]
pub unsafe fn gather_rows<T: RowElement, const PER: usize, const CHUNKS: usize, const VECTOR: bool>(
    p: &GatherParams<T>,
) {
    let (id, shift) = (thread::thread_idx_x(), p.threads.trailing_zeros());
    let teams = THREADS >> shift;
    let all = Columns::<PER, VECTOR>::new(id & (p.threads - 1), p.threads, p.columns);
    // SAFETY: the caller's promise; a row that is none is not touched.
    unsafe {
        let mut token = thread::block_idx_y() * teams + (id >> shift);
        while token < p.tokens {
            let row = p.ids.get(token, true);
            let is_there = row < p.ids.limit;
            let mine = all.only_if(is_there);
            let from = p.table.offset(row as u64 * p.table_stride).address();
            let to = p.y.offset(token as u64 * p.y_stride).address();
            let mut first = thread::block_idx_x() * CHUNKS as u32;
            while all.has(first, 0) {
                let mut words = [[0; 4]; CHUNKS];
                for c in 0..CHUNKS {
                    words[c] = mine.load_words::<T>(from, first + c as u32);
                }
                for c in 0..CHUNKS {
                    for i in 0..4 {
                        words[c][i] = if is_there { words[c][i] } else { p.missing };
                    }
                    all.store_words::<T>(to, first + c as u32, words[c]);
                }
                first += thread::grid_dim_x() * CHUNKS as u32;
            }
            token += thread::grid_dim_y() * teams;
        }
    }
}
