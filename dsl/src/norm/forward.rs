//! Norms of rows.

use crate::launch::{Global, GlobalMut, KernelParam};
use crate::rows::{AnyRows, Columns, RowElement, Team};
use crate::{math, ptx};

/// What is normed, and where results go. `T` is the type of the rows that are normed: those of x, or, with a residual, of its sum with x.
#[repr(C)]
pub struct NormParams<T> {
    /// The rows; of type `T` unless there is a residual.
    pub x: AnyRows,
    /// What columns of normed rows are multiplied with; ones if there is none.
    pub weight: AnyRows,
    /// What is added to them then.
    pub bias: AnyRows,
    /// Where results go; nowhere if it is not there.
    pub y: AnyRows,
    /// What is added to x before, rows `residual_stride` apart; null if nothing is.
    pub residual: Global<T>,
    /// Where the sum of both goes, rows `sum_stride` apart; there if there is a residual.
    pub sum: GlobalMut<T>,
    /// Elements from one row of the residual to the next.
    pub residual_stride: u64,
    /// Elements from one row of the sum to the next.
    pub sum_stride: u64,
    /// Where each row's mean goes; null if it is not wanted.
    pub mean: GlobalMut<f32>,
    /// Where 1 over the square root of each row's variance and ε goes; null if it is not wanted.
    pub deviation: GlobalMut<f32>,
    /// Rows.
    pub rows: u32,
    /// Columns.
    pub columns: u32,
    /// Threads of a block that share a row, a power of two.
    pub threads: u32,
    /// How often the threads of a row have `CHUNKS` chunks of it each.
    pub rounds: u32,
    /// 1 over the number of columns.
    pub inverse: f32,
    /// ε.
    pub epsilon: f32,
    /// Whether the mean is taken off: 1 for a layer norm, 0 for an RMS norm.
    pub is_centered: u32,
    /// Nothing.
    pub reserved: u32,
}

impl<T> Clone for NormParams<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for NormParams<T> {}

// SAFETY: four operands of 24 bytes, six fields of eight, eight of four: no padding.
unsafe impl<T: 'static> KernelParam for NormParams<T> {}

/// Norms rows. The grid has blocks, or clusters of them, for as many rows as it likes.
///
/// # Safety
///
/// What `p` describes is valid, and aligned to chunks if `VECTOR`. What is written overlaps nothing else, but the sum may be x or the residual, and y what
/// else is of its type, each if their rows are the same. `p.threads` is a power of two up to [`THREADS`](crate::rows::THREADS); all threads of a row have all
/// of its chunks in `p.rounds` rounds.
#[inline(always)]
pub unsafe fn norm_rows<
    T: RowElement,
    const PER: usize,
    const CHUNKS: usize,
    const VECTOR: bool,
    const CLUSTER: bool,
>(
    p: &NormParams<T>,
) {
    // SAFETY: the caller's promise.
    let mut team = unsafe { Team::<CLUSTER>::new(p.threads) };
    let all = Columns::<PER, VECTOR>::new(team.rank, team.threads, p.columns);
    let mut base = team.first;
    while base < p.rows {
        let row = base + team.index;
        let mine = all.only_if(row < p.rows);
        // SAFETY: the row is one of p's, or no column of it is touched.
        unsafe { norm_row::<T, PER, CHUNKS, VECTOR, CLUSTER>(p, &mut team, mine, row) };
        base += team.step;
    }
}

#[inline(always)]
unsafe fn norm_row<
    T: RowElement,
    const PER: usize,
    const CHUNKS: usize,
    const VECTOR: bool,
    const CLUSTER: bool,
>(
    p: &NormParams<T>,
    team: &mut Team<CLUSTER>,
    mine: Columns<PER, VECTOR>,
    row: u32,
) {
    let residual = p.residual.offset(row as u64 * p.residual_stride).address();
    let sum = p.sum.offset(row as u64 * p.sum_stride).address();
    // Where later rounds find the rows.
    let source = if p.residual.is_null() { p.x.row(row) } else { sum };
    let mut words = [[0; 4]; CHUNKS];

    // SAFETY (of all blocks): the caller's promise; a thread reads what it has written itself.
    let mut total = 0.0;
    for round in 0..p.rounds {
        let first = round * CHUNKS as u32;
        for c in 0..CHUNKS {
            let from = if p.residual.is_null() { source } else { residual };
            words[c] = unsafe { mine.load_words::<T>(from, first + c as u32) };
        }
        if !p.residual.is_null() {
            for c in 0..CHUNKS {
                let chunk = first + c as u32;
                let mut values = unsafe { mine.load(&p.x, row, chunk) };
                let others: [f32; PER] = T::unpack(words[c]);
                for j in 0..PER {
                    values[j] += others[j];
                }
                words[c] = T::pack(values);
                unsafe { mine.store_words::<T>(sum, chunk, words[c]) };
            }
        }
        for c in 0..CHUNKS {
            let values: [f32; PER] = T::unpack(words[c]);
            for j in 0..PER {
                // Where there is no column there may be an offset.
                let value = if mine.has(first + c as u32, j) { values[j] } else { 0.0 };
                total = if p.is_centered == 0 { ptx::fma(value, value, total) } else { total + value };
            }
        }
    }
    let [total] = unsafe { team.sum([total]) };
    let (mut mean, mut rest, mut variance) = (0.0, 0.0, total * p.inverse);
    if p.is_centered != 0 {
        mean = total * p.inverse;
        let mut sums = [0.0; 2];
        for round in 0..p.rounds {
            let first = round * CHUNKS as u32;
            if p.rounds > 1 {
                for c in 0..CHUNKS {
                    words[c] = unsafe { mine.load_words::<T>(source, first + c as u32) };
                }
            }
            for c in 0..CHUNKS {
                let values: [f32; PER] = T::unpack(words[c]);
                for j in 0..PER {
                    let difference = if mine.has(first + c as u32, j) { values[j] - mean } else { 0.0 };
                    sums[0] += difference;
                    sums[1] = ptx::fma(difference, difference, sums[1]);
                }
            }
        }
        sums = unsafe { team.sum(sums) };
        rest = sums[0] * p.inverse;
        // Of the rounded mean's error: no more than the mean square, but for rounding.
        variance = ptx::fma(-rest, rest, sums[1] * p.inverse).max(0.0);
        if sums[1].is_nan() {
            variance = sums[1];
        }
    }
    let deviation = math::rsqrt(variance + p.epsilon);
    if team.rank == 0 && row < p.rows {
        unsafe {
            if !p.mean.is_null() {
                ptx::st_global_b32(p.mean.offset(row as u64).address(), (mean + rest).to_bits());
            }
            if !p.deviation.is_null() {
                ptx::st_global_b32(p.deviation.offset(row as u64).address(), deviation.to_bits());
            }
        }
    }
    if !p.y.is_there() {
        return;
    }
    for round in 0..p.rounds {
        let first = round * CHUNKS as u32;
        for c in 0..CHUNKS {
            let chunk = first + c as u32;
            if p.rounds > 1 {
                words[c] = unsafe { mine.load_words::<T>(source, chunk) };
            }
            let mut values: [f32; PER] = T::unpack(words[c]);
            for j in 0..PER {
                values[j] = (values[j] - mean - rest) * deviation;
            }
            if p.weight.is_there() {
                let weight = unsafe { mine.load(&p.weight, 0, chunk) };
                for j in 0..PER {
                    values[j] *= weight[j];
                }
            }
            if p.bias.is_there() {
                let bias = unsafe { mine.load(&p.bias, 0, chunk) };
                for j in 0..PER {
                    values[j] += bias[j];
                }
            }
            unsafe { mine.store(&p.y, row, chunk, values) };
        }
    }
}
