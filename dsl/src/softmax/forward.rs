//! The softmax of rows.

// Loops over registers index arrays by constants: an iterator by value would be an array in local memory.
#![allow(clippy::needless_range_loop)]

use crate::launch::{Global, KernelParam};
use crate::ptx;
use crate::rows::{AnyRows, Columns, Exponentials, Kind, RowElement, Team, hide};

/// What a softmax is taken of, and where it goes.
#[repr(C)]
pub struct SoftmaxParams<T> {
    /// Where results go.
    pub y: AnyRows,
    /// The rows, `x_stride` apart.
    pub x: Global<T>,
    /// Bytes that are 0 where an element does not count; null if all do.
    pub mask: Global<u8>,
    /// Elements from one row to the next.
    pub x_stride: u64,
    /// Bytes from one row of the mask to the next; 0 if all rows have the same.
    pub mask_stride: u64,
    /// Rows.
    pub rows: u32,
    /// Columns.
    pub columns: u32,
    /// Threads of a block that share a row, a power of two.
    pub threads: u32,
    /// How often the threads of a row have `CHUNKS` chunks of it each.
    pub rounds: u32,
    /// What numbers are multiplied with before they are exponents to base 2: the scale times the binary logarithm of e, above 0.
    pub factor: f32,
    /// Nothing.
    pub reserved: u32,
}

impl<T> Clone for SoftmaxParams<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for SoftmaxParams<T> {}

// SAFETY: an operand of 24 bytes, four fields of eight, six of four: no padding.
unsafe impl<T: 'static> KernelParam for SoftmaxParams<T> {}

/// Takes the softmax of rows. The grid has blocks, or clusters of them, for as many rows as it likes.
///
/// # Safety
///
/// What `p` describes is valid, and aligned to chunks if `VECTOR`: of the mask, to as many bytes. What is written overlaps nothing else, but y may be x if their
/// types and rows are the same. `p.threads` is a power of two up to [`THREADS`](crate::rows::THREADS); all threads of a row have all of its chunks in `p.rounds`
/// rounds.
#[inline(always)]
pub unsafe fn softmax_rows<
    T: RowElement,
    const PER: usize,
    const CHUNKS: usize,
    const VECTOR: bool,
    const CLUSTER: bool,
>(
    p: &SoftmaxParams<T>,
) {
    // SAFETY: the caller's promise.
    let mut team = unsafe { Team::<CLUSTER>::new(p.threads) };
    let all = Columns::<PER, VECTOR>::new(team.rank, team.threads, p.columns);
    let mut base = team.first;
    while base < p.rows {
        let row = base + team.index;
        let mine = all.only_if(row < p.rows);
        // SAFETY: the row is one of p's, or no column of it is touched.
        unsafe { softmax_row::<T, PER, CHUNKS, VECTOR, CLUSTER>(p, &mut team, mine, row) };
        base += team.step;
    }
}

#[inline(always)]
unsafe fn softmax_row<
    T: RowElement,
    const PER: usize,
    const CHUNKS: usize,
    const VECTOR: bool,
    const CLUSTER: bool,
>(
    p: &SoftmaxParams<T>,
    team: &mut Team<CLUSTER>,
    mine: Columns<PER, VECTOR>,
    row: u32,
) {
    let mut words = [[0; 4]; CHUNKS];
    let mut own = Exponentials::NONE;
    // SAFETY (of all blocks): the caller's promise; a thread writes where only itself has read.
    for round in 0..p.rounds {
        // SAFETY: as above.
        words = unsafe { load::<T, PER, CHUNKS, VECTOR>(p, mine, row, round) };
        let mut max = f32::NEG_INFINITY;
        for c in 0..CHUNKS {
            let x: [f32; PER] = T::unpack(words[c]);
            for j in 0..PER {
                max = ptx::max_nan(max, x[j]);
            }
        }
        own.raise(max, p.factor);
        hide(&mut words);
        for c in 0..CHUNKS {
            own.add::<PER>(&T::unpack(words[c]), p.factor);
        }
    }
    // SAFETY: as above.
    let (Exponentials { max, sum }, _) = unsafe { own.join(team, p.factor, [0.0; 3]) };
    let inverse = ptx::rcp_approx_ftz(sum);
    for round in 0..p.rounds {
        if p.rounds > 1 {
            // SAFETY: as above.
            words = unsafe { load::<T, PER, CHUNKS, VECTOR>(p, mine, row, round) };
        }
        hide(&mut words);
        for c in 0..CHUNKS {
            let x: [f32; PER] = T::unpack(words[c]);
            let mut y = [0.0; PER];
            for j in 0..PER {
                let share = Exponentials::of(x[j], max, p.factor) * inverse;
                // Also where the others are none, or NaN.
                y[j] = if x[j] == f32::NEG_INFINITY { 0.0 } else { share };
            }
            // SAFETY: as above.
            unsafe { mine.store(&p.y, row, round * CHUNKS as u32 + c as u32, y) };
        }
    }
}

/// The chunks of a round, with −∞ where there is no column, or it does not count.
///
/// # Safety
///
/// As [`softmax_rows`].
#[inline(always)]
unsafe fn load<T: RowElement, const PER: usize, const CHUNKS: usize, const VECTOR: bool>(
    p: &SoftmaxParams<T>,
    mine: Columns<PER, VECTOR>,
    row: u32,
    round: u32,
) -> [[u32; 4]; CHUNKS] {
    let first = round * CHUNKS as u32;
    let from = p.x.offset(row as u64 * p.x_stride).address();
    let mut words = [[0; 4]; CHUNKS];
    for c in 0..CHUNKS {
        // SAFETY: the caller's promise.
        words[c] = unsafe { mine.load_words::<T>(from, first + c as u32) };
    }
    if p.mask.is_null() {
        for c in 0..CHUNKS {
            for j in 0..PER {
                keep_if::<T>(&mut words[c], j, mine.has(first + c as u32, j));
            }
        }
        return words;
    }
    let mask = p.mask.offset(row as u64 * p.mask_stride).address();
    for c in 0..CHUNKS {
        // SAFETY: the caller's promise.
        let counts = unsafe { load_mask(mine, mask, first + c as u32) };
        for j in 0..PER {
            // Where there is no column it is 0.
            keep_if::<T>(&mut words[c], j, counts[j] != 0);
        }
    }
    words
}

/// A chunk of a row of a mask; 0 where there is no column.
///
/// # Safety
///
/// The row is valid for reads of its columns, at a multiple of `PER` if `VECTOR`, and nothing writes it.
#[inline(always)]
unsafe fn load_mask<const PER: usize, const VECTOR: bool>(
    mine: Columns<PER, VECTOR>,
    row: u64,
    chunk: u32,
) -> [u32; PER] {
    let mut counts = [0; PER];
    if VECTOR {
        let (at, is_there) = (row + mine.column(chunk, 0) as u64, mine.has(chunk, 0));
        // SAFETY: the caller's promise.
        let bytes = unsafe {
            if PER == 8 {
                ptx::ld_global_v2_b32_if(at, is_there)
            } else {
                [ptx::ld_global_f32_if(at, is_there).to_bits(), 0]
            }
        };
        for j in 0..PER {
            counts[j] = bytes[j / 4] >> (j % 4 * 8) & 0xff;
        }
        return counts;
    }
    for j in 0..PER {
        let at = row + mine.column(chunk, j) as u64;
        // SAFETY: the caller's promise.
        counts[j] = unsafe { ptx::ld_global_nc_b8_if(at, mine.has(chunk, j)) } as u32;
    }
    counts
}

/// Makes element `j` of a chunk −∞ unless the condition holds.
#[inline(always)]
fn keep_if<T: RowElement>(words: &mut [u32; 4], j: usize, condition: bool) {
    let (word, own) = if T::BYTES == 2 { (j / 2, 0xffff << (j % 2 * 16)) } else { (j, u32::MAX) };
    let least = if T::KIND == Kind::F16 {
        0xfc00_fc00
    } else if T::KIND == Kind::BF16 {
        0xff80_ff80
    } else {
        0xff80_0000
    };
    let without = words[word] & !own | least & own;
    words[word] = if condition { words[word] } else { without };
}
