//! Norms of rows.

// Loops over registers index arrays by constants: an iterator by value would be an array in local memory.
#![allow(clippy::needless_range_loop, clippy::manual_memcpy)]

use crate::launch::{Global, GlobalMut, KernelParam};
use crate::rows::{AnyRows, Columns, OverChunks, RowElement, Team, each_chunk, hidden};
use crate::{math, ptx};

/// What is normed, and where results go. `T` is the type of the rows that are normed: those of x, or, with a residual, of its sum with x.
#[repr(C)]
pub struct NormParams<T> {
    /// The rows; of type `T` unless there is a residual.
    pub x: AnyRows,
    /// What columns of normed rows are multiplied with; ones if there is none.
    pub weight: AnyRows,
    /// What is added to them then; without an offset.
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

/// Norms rows: a team has one.
///
/// # Safety
///
/// What `p` describes is valid, and aligned to chunks if `VECTOR`. What is written overlaps nothing else, but the sum may be x or the residual, and y what
/// else is of its type, each if their rows are the same.
/// `p.threads` is a power of two up to [`THREADS`](crate::rows::THREADS), as [`Columns`] takes them; all threads of a row have all
/// of its chunks in `p.rounds` rounds. The grid has a team for each row.
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
    unsafe {
        let team = Team::<CLUSTER>::new(p.threads);
        let all = Columns::<PER, VECTOR>::new(team.rank, team.threads, p.columns);
        if p.rounds == 1 {
            rows_at_once::<T, PER, CHUNKS, VECTOR, CLUSTER>(p, team, all);
        } else {
            rows_in_rounds::<T, PER, CHUNKS, VECTOR, CLUSTER>(p, team, all);
        }
    }
}

/// 1 over the square root of a variance and ε: ∞ of 0.
#[inline(always)]
fn inverse_deviation(square: f32) -> f32 {
    // Without ε the squares of small numbers may be subnormal, of which there is no root.
    let is_subnormal = square < f32::MIN_POSITIVE;
    let root = math::rsqrt(if is_subnormal { square * 16_777_216.0 } else { square });
    if is_subnormal { root * 4096.0 } else { root }
}

/// The statistics of a row: its rounded mean, what that is off by, and the inverse deviation.
struct Statistics {
    mean: f32,
    rest: f32,
    deviation: f32,
}

impl Statistics {
    /// Of the sum of squares.
    #[inline(always)]
    fn of_squares<T>(p: &NormParams<T>, squares: f32) -> Self {
        Self { mean: 0.0, rest: 0.0, deviation: inverse_deviation(ptx::fma(squares, p.inverse, p.epsilon)) }
    }

    /// Of the rounded mean, and the sums of differences to it and of their squares.
    #[inline(always)]
    fn of_differences<T>(p: &NormParams<T>, mean: f32, sums: [f32; 2]) -> Self {
        let rest = sums[0] * p.inverse;
        let variance = ptx::fma(-rest, rest, sums[1] * p.inverse);
        // No less than nothing, but for rounding; a NaN stays one.
        let variance = if variance < 0.0 { 0.0 } else { variance };
        Self { mean, rest, deviation: inverse_deviation(variance + p.epsilon) }
    }

    /// Stores what is wanted of row `row`.
    ///
    /// # Safety
    ///
    /// The row is one of p's, and this thread is the only one that stores its statistics.
    #[inline(always)]
    unsafe fn store<T>(&self, p: &NormParams<T>, row: u32) {
        // SAFETY: the caller's promise.
        unsafe {
            if !p.mean.is_null() {
                ptx::st_global_b32(p.mean.offset(row as u64).address(), (self.mean + self.rest).to_bits());
            }
            if !p.deviation.is_null() {
                ptx::st_global_b32(p.deviation.offset(row as u64).address(), self.deviation.to_bits());
            }
        }
    }
}

/// Rows of which a thread has all of its chunks in registers.
///
/// # Safety
///
/// As [`norm_rows`], for one round.
#[inline(always)]
unsafe fn rows_at_once<
    T: RowElement,
    const PER: usize,
    const CHUNKS: usize,
    const VECTOR: bool,
    const CLUSTER: bool,
>(
    p: &NormParams<T>,
    mut team: Team<CLUSTER>,
    all: Columns<PER, VECTOR>,
) {
    let is_sum = !p.residual.is_null();
    let is_centered = p.is_centered != 0;
    let of_row = |row: u32| all.only_if(row < p.rows);
    // What is left when the mean is taken off takes its place. A cluster's blocks take off other numbers than that.
    let is_kept_apart = VECTOR && !CLUSTER;
    // SAFETY: the caller's promise; the rows are p's, or no column of them is touched.
    unsafe {
        let row = team.row();
        let mine = of_row(row);
        // Opaque, since of a selection among fields' places the compiler would make a copy of the parameter in local memory.
        let (x, residual) = (ptx::opaque_u64(p.x.base), ptx::opaque_u64(p.residual.address()));
        let strides = [ptx::opaque_u64(p.x.stride), ptx::opaque_u64(p.residual_stride)];
        let (base, stride) = if residual == 0 { (x, strides[0]) } else { (residual, strides[1]) };
        let mut words = [[0; 4]; CHUNKS];
        mine.load_all::<T, CHUNKS>(base + row as u64 * stride * T::BYTES as u64, 0, &mut words);
        if is_sum {
            add_residual::<T, PER, CHUNKS, VECTOR>(p, mine, row, &mut words);
        }
        let mut totals = OverChunks::<CHUNKS>::NOTHING;
        let mut kept = [[0.0; PER]; CHUNKS];
        each_chunk!(c of CHUNKS => {
            if mine.reaches(c as u32) {
                // Where there is no column, there is a zero.
                let values: [f32; PER] = T::unpack(words[c]);
                // Two chains: each addition waits for the one before.
                let mut sums = [0.0; 2];
                if is_centered {
                    for j in 0..PER {
                        sums[j % 2] += values[j];
                    }
                } else {
                    for j in 0..PER {
                        sums[j % 2] = ptx::fma(values[j], values[j], sums[j % 2]);
                    }
                }
                totals.add(c, sums[0] + sums[1]);
                kept[c] = values;
            }
        });
        // Elements that come one by one take registers, so that there are too few for numbers, too.
        let numbers = |c: usize, kept: &[[f32; PER]; CHUNKS]| -> [f32; PER] {
            if VECTOR { kept[c] } else { T::unpack(hidden(words[c])) }
        };
        let total = totals.sum();
        let statistics = if is_centered {
            let differences = |mean: f32| {
                let mut all = [OverChunks::<CHUNKS>::NOTHING; 2];
                each_chunk!(c of CHUNKS => {
                    let chunk = c as u32;
                    if mine.reaches(chunk) {
                        let apart = without::<PER, VECTOR>(mine, chunk, numbers(c, &kept), mean);
                        let mut sums = [[0.0; 2]; 2];
                        for j in 0..PER {
                            sums[0][j % 2] += apart[j];
                            sums[1][j % 2] = ptx::fma(apart[j], apart[j], sums[1][j % 2]);
                        }
                        all[0].add(c, sums[0][0] + sums[0][1]);
                        all[1].add(c, sums[1][0] + sums[1][1]);
                        if is_kept_apart {
                            kept[c] = apart;
                        }
                    }
                });
                all.map(OverChunks::sum)
            };
            let count = if CLUSTER { all.count_of_block(CHUNKS as u32) } else { 0.0 };
            let (mean, sums) = team.moments(total, differences, p.inverse, count);
            Statistics::of_differences(p, mean, sums)
        } else {
            let [total] = team.sum([total]);
            Statistics::of_squares(p, total)
        };
        let row = team.row();
        if team.rank == 0 && row < p.rows {
            statistics.store(p, row);
        }
        if p.y.is_there() {
            let mine = of_row(row);
            let (to, deviation) = (p.y.row(row), statistics.deviation);
            // The normed number is d · deviation + shift, for d without the mean. Of an RMS norm the shift is −0, which keeps the sign of a zero. So it is where the
            // deviation is infinite, or not a number: a product would make NaN of the infinities that the reference has.
            let shift = if deviation < f32::INFINITY { -(statistics.rest * deviation) } else { -0.0 };
            // As most often: no branch for a chunk then.
            let is_own = |of: &AnyRows| of.is_there() && of.kind == T::KIND && of.offset == 0.0;
            let is_plain = is_own(&p.weight)
                && p.y.kind == T::KIND
                && if is_centered { is_own(&p.bias) } else { !p.bias.is_there() };
            let normed = |c: usize, kept: &[[f32; PER]; CHUNKS]| {
                let mut values = numbers(c, kept);
                if is_centered && !is_kept_apart {
                    for j in 0..PER {
                        values[j] -= statistics.mean;
                    }
                }
                for j in 0..PER {
                    values[j] = ptx::fma(values[j], deviation, shift);
                }
                values
            };
            if is_plain {
                each_chunk!(c of CHUNKS => {
                    if mine.reaches(c as u32) {
                        let weight = mine.load_words::<T>(p.weight.base, c as u32);
                        // −0 in each element: a sum with it keeps the sign of a zero.
                        let mut terms = [if T::BYTES == 2 { 0x8000_8000 } else { 0x8000_0000 }; 4];
                        if is_centered {
                            terms = mine.load_words::<T>(p.bias.base, c as u32);
                        }
                        let mut values = normed(c, &kept);
                        let (weight, terms): ([f32; PER], [f32; PER]) = (T::unpack(weight), T::unpack(terms));
                        for j in 0..PER {
                            values[j] = ptx::fma(values[j], weight[j], terms[j]);
                        }
                        mine.store_words::<T>(to, c as u32, T::pack(values));
                    }
                });
            } else {
                each_chunk!(c of CHUNKS => {
                    if mine.reaches(c as u32) {
                        let mut values = normed(c, &kept);
                        if p.weight.is_there() {
                            let weight = mine.load(&p.weight, 0, c as u32);
                            for j in 0..PER {
                                values[j] *= weight[j];
                            }
                        }
                        if p.bias.is_there() {
                            let bias = mine.load(&p.bias, 0, c as u32);
                            for j in 0..PER {
                                values[j] += bias[j];
                            }
                        }
                        mine.store_as(p.y.kind, to, c as u32, values);
                    }
                });
            }
        }
    }
}

/// The numbers of a chunk less another number; zeros where there is no column.
#[inline(always)]
fn without<const PER: usize, const VECTOR: bool>(
    mine: Columns<PER, VECTOR>,
    chunk: u32,
    mut values: [f32; PER],
    number: f32,
) -> [f32; PER] {
    if VECTOR || mine.is_full(chunk) {
        let number = mine.where_chunk(chunk, number);
        for j in 0..PER {
            values[j] -= number;
        }
        return values;
    }
    for j in 0..PER {
        values[j] -= if mine.has(chunk, j) { number } else { 0.0 };
    }
    values
}

/// Adds x to chunks of the residual, and stores the sums.
///
/// # Safety
///
/// As [`norm_rows`], for a row of p's, or one that this thread has no columns of.
#[inline(always)]
unsafe fn add_residual<T: RowElement, const PER: usize, const CHUNKS: usize, const VECTOR: bool>(
    p: &NormParams<T>,
    mine: Columns<PER, VECTOR>,
    row: u32,
    words: &mut [[u32; 4]; CHUNKS],
) {
    let sum = p.sum.offset(row as u64 * p.sum_stride).address();
    // SAFETY: the caller's promise.
    unsafe {
        if p.x.kind == T::KIND {
            // One at a time: there is no room for more.
            each_chunk!(c of CHUNKS => {
                let mut values: [f32; PER] = T::unpack(hidden(words[c]));
                let others: [f32; PER] = T::unpack(mine.load_words::<T>(p.x.row(row), c as u32));
                for j in 0..PER {
                    values[j] += others[j];
                }
                words[c] = T::pack(values);
            });
        } else {
            each_chunk!(c of CHUNKS => {
                let mut values = mine.load(&p.x, row, c as u32);
                let others: [f32; PER] = T::unpack(hidden(words[c]));
                for j in 0..PER {
                    values[j] += others[j];
                }
                words[c] = T::pack(values);
            });
        }
        each_chunk!(c of CHUNKS => {
            mine.store_words::<T>(sum, c as u32, words[c]);
        });
    }
}

/// Rows that are wider than their threads hold at a time: they are read once for each sum and once for the result.
///
/// # Safety
///
/// As [`norm_rows`].
#[inline(always)]
unsafe fn rows_in_rounds<
    T: RowElement,
    const PER: usize,
    const CHUNKS: usize,
    const VECTOR: bool,
    const CLUSTER: bool,
>(
    p: &NormParams<T>,
    mut team: Team<CLUSTER>,
    all: Columns<PER, VECTOR>,
) {
    let is_sum = !p.residual.is_null();
    let chunks = p.rounds * CHUNKS as u32;
    let row = team.row();
    if row >= p.rows {
        return;
    }
    let count = if CLUSTER { all.count_of_block(chunks) } else { 0.0 };
    // SAFETY: the caller's promise; a thread reads what it has written itself.
    unsafe {
        let residual = p.residual.offset(row as u64 * p.residual_stride).address();
        let sum = p.sum.offset(row as u64 * p.sum_stride).address();
        let source = if is_sum { sum } else { p.x.row(row) };
        let mut total = 0.0;
        for chunk in 0..chunks {
            let mut words = all.load_words::<T>(if is_sum { residual } else { source }, chunk);
            if is_sum {
                let mut values = all.load(&p.x, row, chunk);
                let others: [f32; PER] = T::unpack(words);
                for j in 0..PER {
                    values[j] += others[j];
                }
                words = T::pack(values);
                all.store_words::<T>(sum, chunk, words);
            }
            let values: [f32; PER] = T::unpack(words);
            for j in 0..PER {
                // Where there is no column there may be an offset.
                let value = if all.has(chunk, j) { values[j] } else { 0.0 };
                total = if p.is_centered == 0 { ptx::fma(value, value, total) } else { total + value };
            }
        }
        let statistics = if p.is_centered == 0 {
            let [total] = team.sum([total]);
            Statistics::of_squares(p, total)
        } else {
            let differences = |mean: f32| {
                let mut sums = [0.0; 2];
                for chunk in 0..chunks {
                    let values: [f32; PER] = T::unpack(all.load_words::<T>(source, chunk));
                    for j in 0..PER {
                        let difference = if all.has(chunk, j) { values[j] - mean } else { 0.0 };
                        sums[0] += difference;
                        sums[1] = ptx::fma(difference, difference, sums[1]);
                    }
                }
                sums
            };
            let (mean, sums) = team.moments(total, differences, p.inverse, count);
            Statistics::of_differences(p, mean, sums)
        };
        if team.rank == 0 {
            statistics.store(p, row);
        }
        let chunks = if p.y.is_there() { chunks } else { 0 };
        for chunk in 0..chunks {
            let mut values: [f32; PER] = T::unpack(all.load_words::<T>(source, chunk));
            for j in 0..PER {
                values[j] = (values[j] - statistics.mean - statistics.rest) * statistics.deviation;
            }
            if p.weight.is_there() {
                let weight = all.load(&p.weight, 0, chunk);
                for j in 0..PER {
                    values[j] *= weight[j];
                }
            }
            if p.bias.is_there() {
                let bias = all.load(&p.bias, 0, chunk);
                for j in 0..PER {
                    values[j] += bias[j];
                }
            }
            all.store_as(p.y.kind, p.y.row(row), chunk, values);
        }
    }
}
