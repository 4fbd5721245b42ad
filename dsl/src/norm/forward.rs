//! Norms of rows.

use crate::launch::{Global, GlobalMut, KernelParam};
use crate::rows::{AnyRows, Columns, RowElement, Team, each_chunk, hide};
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
    for c in 0..CHUNKS as u32 {
        all.prefetch(&p.weight, 0, c);
        all.prefetch(&p.bias, 0, c);
    }
    // What is loaded first: opaque, since of a selection among fields' places the compiler would make a copy of the parameter in local memory.
    let (of_x, of_residual) = (ptx::opaque_u64(p.x.base), ptx::opaque_u64(p.residual.address()));
    let (x_stride, residual_stride) = (ptx::opaque_u64(p.x.stride), ptx::opaque_u64(p.residual_stride));
    let (first, stride) = if of_residual == 0 { (of_x, x_stride) } else { (of_residual, residual_stride) };
    let source = |row: u32| first + row as u64 * stride * T::BYTES as u64;
    // A row that fits is on its way while the one before is computed.
    let of_row = |row: u32| all.only_if(row < p.rows && p.rounds == 1);
    let mut next = [[0; 4]; CHUNKS];
    let mut base = team.first;
    // SAFETY: the rows are p's, or no column of them is touched.
    unsafe {
        of_row(base + team.index).load_all::<T, CHUNKS>(source(base + team.index), 0, &mut next);
        while base < p.rows {
            let row = base + team.index;
            let mut words = next;
            of_row(row + team.step).load_all::<T, CHUNKS>(source(row + team.step), 0, &mut next);
            norm_row::<T, PER, CHUNKS, VECTOR, CLUSTER>(
                p,
                &mut team,
                all.only_if(row < p.rows),
                row,
                &mut words,
            );
            base += team.step;
        }
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
    words: &mut [[u32; 4]; CHUNKS],
) {
    let residual = p.residual.offset(row as u64 * p.residual_stride).address();
    let sum = p.sum.offset(row as u64 * p.sum_stride).address();
    let is_sum = !p.residual.is_null();
    // Where later rounds find the rows.
    let source = if is_sum { sum } else { p.x.row(row) };

    // SAFETY (of all blocks): the caller's promise; a thread reads what it has written itself.
    let mut total = 0.0;
    for round in 0..p.rounds {
        let first = round * CHUNKS as u32;
        if p.rounds > 1 {
            unsafe { mine.load_all::<T, CHUNKS>(if is_sum { residual } else { source }, first, words) };
        }
        if is_sum {
            each_chunk!(c of CHUNKS => {
                let chunk = first + c as u32;
                let mut values = unsafe { mine.load(&p.x, row, chunk) };
                let others: [f32; PER] = T::unpack(words[c]);
                for j in 0..PER {
                    values[j] += others[j];
                }
                words[c] = T::pack(values);
                unsafe { mine.store_words::<T>(sum, chunk, words[c]) };
            });
        }
        each_chunk!(c of CHUNKS => {
            if mine.reaches(first + c as u32) {
                // Where there is no column, there is a zero.
                let values: [f32; PER] = T::unpack(words[c]);
                for j in 0..PER {
                    total = if p.is_centered == 0 { ptx::fma(values[j], values[j], total) } else { total + values[j] };
                }
            }
        });
    }
    let [total] = unsafe { team.sum([total]) };
    let (mut mean, mut rest, mut variance) = (0.0, 0.0, total * p.inverse);
    if p.is_centered != 0 {
        mean = total * p.inverse;
        let mut sums = [0.0; 2];
        for round in 0..p.rounds {
            let first = round * CHUNKS as u32;
            if p.rounds > 1 {
                unsafe { mine.load_all::<T, CHUNKS>(source, first, words) };
            } else {
                hide(words);
            }
            each_chunk!(c of CHUNKS => {
                let chunk = first + c as u32;
                if mine.reaches(chunk) && (!VECTOR || mine.has(chunk, 0)) {
                    let values: [f32; PER] = T::unpack(words[c]);
                    for j in 0..PER {
                        let difference = if VECTOR || mine.has(chunk, j) { values[j] - mean } else { 0.0 };
                        sums[0] += difference;
                        sums[1] = ptx::fma(difference, difference, sums[1]);
                    }
                }
            });
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
        if p.rounds > 1 {
            unsafe { mine.load_all::<T, CHUNKS>(source, first, words) };
        } else {
            hide(words);
        }
        each_chunk!(c of CHUNKS => {
            let chunk = first + c as u32;
            if mine.reaches(chunk) {
                let mut values: [f32; PER] = T::unpack(words[c]);
                let mut factors = [deviation; PER];
                if p.weight.is_there() {
                    let weight = unsafe { mine.load(&p.weight, 0, chunk) };
                    for j in 0..PER {
                        factors[j] *= weight[j];
                    }
                }
                for j in 0..PER {
                    values[j] = (values[j] - mean - rest) * factors[j];
                }
                if p.bias.is_there() {
                    let bias = unsafe { mine.load(&p.bias, 0, chunk) };
                    for j in 0..PER {
                        values[j] += bias[j];
                    }
                }
                unsafe { mine.store(&p.y, row, chunk, values) };
            }
        });
    }
}
