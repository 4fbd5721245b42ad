//! The softmax of rows.

// Loops over registers index arrays by constants: an iterator by value would be an array in local memory.
#![allow(clippy::needless_range_loop)]

use crate::launch::{Global, KernelParam};
use crate::ptx;
use crate::rows::{AnyRows, Columns, Exponentials, RowElement, Team, each_chunk, hidden};

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

/// Takes the softmax of rows: a team has one.
///
/// # Safety
///
/// What `p` describes is valid, and aligned to chunks if `VECTOR`: of the mask, to as many bytes. What is written overlaps nothing else, but y may be x if their
/// types and rows are the same. `p.threads` is a power of two up to [`THREADS`](crate::rows::THREADS), as [`Columns`] takes them; all threads of a row
/// have all of its chunks in `p.rounds` rounds. The grid has a team for each row.
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
    unsafe {
        let team = Team::<CLUSTER>::new(p.threads);
        if p.mask.is_null() {
            rows::<T, PER, CHUNKS, VECTOR, CLUSTER, false>(p, team);
        } else {
            rows::<T, PER, CHUNKS, VECTOR, CLUSTER, true>(p, team);
        }
    }
}

/// The rows of a team, with a mask or without.
///
/// # Safety
///
/// As [`softmax_rows`].
#[inline(always)]
unsafe fn rows<
    T: RowElement,
    const PER: usize,
    const CHUNKS: usize,
    const VECTOR: bool,
    const CLUSTER: bool,
    const MASKED: bool,
>(
    p: &SoftmaxParams<T>,
    mut team: Team<CLUSTER>,
) {
    let all = Columns::<PER, VECTOR>::new(team.rank, team.threads, p.columns);
    // SAFETY: the caller's promise; the rows are p's, or no column of them is touched; a thread writes where only itself has read.
    unsafe {
        let row = team.row();
        let mine = all.only_if(row < p.rows);
        let mut words = [[0; 4]; CHUNKS];
        let mut own = Exponentials::NONE;
        for round in 0..p.rounds {
            load::<T, PER, CHUNKS, VECTOR>(p, mine, row, round, &mut words);
            if MASKED {
                keep::<T, PER, CHUNKS, VECTOR>(p, mine, row, round, &mut words);
            }
            own.raise(T::max_of_all::<PER, CHUNKS>(&words), p.factor);
            each_chunk!(c of CHUNKS => {
                if mine.reaches(round * CHUNKS as u32 + c as u32) {
                    own.add::<PER>(&T::unpack(hidden(words[c])), p.factor);
                }
            });
        }
        let (Exponentials { max, sum }, _) = team.exponentials(own, 0.0, p.factor);
        let inverse = ptx::rcp_approx_ftz(sum);
        let to = p.y.row(row);
        for round in 0..p.rounds {
            if p.rounds > 1 {
                load::<T, PER, CHUNKS, VECTOR>(p, mine, row, round, &mut words);
                if MASKED {
                    keep::<T, PER, CHUNKS, VECTOR>(p, mine, row, round, &mut words);
                }
            }
            each_chunk!(c of CHUNKS => {
                let chunk = round * CHUNKS as u32 + c as u32;
                if mine.reaches(chunk) {
                    let x: [f32; PER] = T::unpack(hidden(words[c]));
                    let mut y = [0.0; PER];
                    for j in 0..PER {
                        let share = Exponentials::of(x[j], max, p.factor) * inverse;
                        // Also where the others are none, or NaN.
                        y[j] = if x[j] == f32::NEG_INFINITY { 0.0 } else { share };
                    }
                    mine.store_as(p.y.kind, to, chunk, y);
                }
            });
        }
    }
}

/// The chunks of a round, with −∞ where there is no column.
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
    words: &mut [[u32; 4]; CHUNKS],
) {
    let from = p.x.offset(row as u64 * p.x_stride).address();
    for c in 0..CHUNKS {
        // SAFETY: the caller's promise.
        words[c] = unsafe { mine.load_words_or_least::<T>(from, round * CHUNKS as u32 + c as u32) };
    }
}

/// Makes the chunks of a round −∞ where the mask says so.
///
/// # Safety
///
/// As [`softmax_rows`], with a mask.
#[inline(always)]
unsafe fn keep<T: RowElement, const PER: usize, const CHUNKS: usize, const VECTOR: bool>(
    p: &SoftmaxParams<T>,
    mine: Columns<PER, VECTOR>,
    row: u32,
    round: u32,
    words: &mut [[u32; 4]; CHUNKS],
) {
    let mask = p.mask.offset(row as u64 * p.mask_stride).address();
    let mut counts = [[0; 2]; CHUNKS];
    for c in 0..CHUNKS {
        // SAFETY: the caller's promise.
        counts[c] = unsafe { load_mask(mine, mask, round * CHUNKS as u32 + c as u32) };
    }
    for c in 0..CHUNKS {
        for j in 0..PER {
            T::keep_if(&mut words[c], j, counts[c][j / 4] >> (j % 4 * 8) & 0xff != 0);
        }
    }
}

/// The bytes of a chunk of a row of a mask; 0 where there is no column.
///
/// # Safety
///
/// The row is valid for reads of its columns, at a multiple of `PER` if `VECTOR`; no other thread writes it.
#[inline(always)]
unsafe fn load_mask<const PER: usize, const VECTOR: bool>(
    mine: Columns<PER, VECTOR>,
    row: u64,
    chunk: u32,
) -> [u32; 2] {
    if VECTOR {
        let (at, is_there) = (row + mine.column(chunk, 0) as u64, mine.has(chunk, 0));
        // SAFETY: the caller's promise.
        return unsafe {
            if PER == 8 {
                ptx::ld_global_v2_b32_if(at, is_there)
            } else {
                [ptx::ld_global_f32_if(at, is_there).to_bits(), 0]
            }
        };
    }
    let mut bytes = [0; 2];
    for j in 0..PER {
        let at = row + mine.column(chunk, j) as u64;
        // SAFETY: the caller's promise.
        let byte = unsafe { ptx::ld_global_b8_if(at, mine.has(chunk, j)) } as u32;
        bytes[j / 4] |= (byte & 0xff) << (j % 4 * 8);
    }
    bytes
}
