//! Gradients of norms.

// Loops over registers index arrays by constants: an iterator by value would be an array in local memory.
#![allow(clippy::needless_range_loop, clippy::manual_memcpy)]

use crate::launch::{Global, GlobalMut, KernelParam};
use crate::rows::{
    AnyRows, Columns, OverChunks, RowElement, SHARED_BYTES, Staged, THREADS, Team, each_chunk, hidden,
};
use crate::shared::SharedAddress;
use crate::{ptx, thread};

/// What the gradients are of, and where they go. `T` is the type of the rows that were normed, of their gradient and of the result's.
#[repr(C)]
pub struct NormGradientParams<T> {
    /// What columns of normed rows were multiplied with; ones if there is none.
    pub weight: AnyRows,
    /// The rows that were normed.
    pub x: Global<T>,
    /// The gradient of the result.
    pub dy: Global<T>,
    /// The gradient of the rows from elsewhere, which is added; null if there is none.
    pub dsum: Global<T>,
    /// Where the gradient of the rows goes; nowhere if it is null.
    pub dx: GlobalMut<T>,
    /// Elements from one row to the next of each of the four.
    pub strides: [u64; 4],
    /// Each row's mean; null of an RMS norm.
    pub mean: Global<f32>,
    /// 1 over the square root of each row's variance and ε.
    pub deviation: Global<f32>,
    /// Where each block, or cluster, or part of the rows adds up its part of the weight's gradient: a row of f32 for each; null if it is not wanted.
    pub dweight: GlobalMut<f32>,
    /// The same of the bias.
    pub dbias: GlobalMut<f32>,
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
    /// Whether the mean was taken off.
    pub is_centered: u32,
}

impl<T> Clone for NormGradientParams<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for NormGradientParams<T> {}

// SAFETY: an operand of 24 bytes, twelve fields of eight, six of four: no padding.
unsafe impl<T: 'static> KernelParam for NormGradientParams<T> {}

/// Where a block's teams meet: what each thread has added up, after the place of the teams' sums.
const MEETING: u32 = SHARED_BYTES;
/// The most columns of which a thread adds up a gradient.
const MOST_COLUMNS: u32 = 16;
/// Shared memory of a block, in bytes.
pub const GRADIENT_SHARED_BYTES: u32 = MEETING + THREADS * MOST_COLUMNS * 4;

/// The gradient of norms. Which rows a block has depends on the grid's size, which is the number of rows that `p.dweight` and `p.dbias` have. In several rounds
/// only the gradient of the rows is computed.
///
/// # Safety
///
/// As [`norm_rows`](super::norm_rows), but the grid may have fewer teams than there are rows. `PER · CHUNKS` is at most 16, and `p.deviation` is there, and of a layer norm
/// `p.mean`. In several rounds `p.dx` is there. dx may be x, dy or dsum if their rows are the same.
#[inline(always)]
pub unsafe fn norm_gradients<
    T: RowElement,
    const PER: usize,
    const CHUNKS: usize,
    const VECTOR: bool,
    const CLUSTER: bool,
>(
    p: &NormGradientParams<T>,
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

/// Rows of which a thread has all of its chunks in registers, and what it adds up of their columns.
///
/// # Safety
///
/// As [`norm_gradients`], for one round.
#[inline(always)]
unsafe fn rows_at_once<
    T: RowElement,
    const PER: usize,
    const CHUNKS: usize,
    const VECTOR: bool,
    const CLUSTER: bool,
>(
    p: &NormGradientParams<T>,
    mut team: Team<CLUSTER>,
    all: Columns<PER, VECTOR>,
) {
    let mut of_columns = Sums { weight: [[0.0; PER]; CHUNKS], bias: [[0.0; PER]; CHUNKS] };
    let weight = Staged::at(&team, SharedAddress::dynamic().offset(MEETING));
    let of_row = |row: u32| all.only_if(row < p.rows);
    let mut next = [[[0; 4]; CHUNKS]; 2];
    let index = team.index();
    let mut base = team.first;
    // SAFETY: the caller's promise; the rows are p's, or no column of them is touched.
    unsafe {
        // A row is on its way while the one before is computed. Not one element by element, which would take a register for each.
        if VECTOR {
            load_both(p, of_row(base + index), base + index, &mut next);
        }
        let mut statistics = statistics_of(p, base + index);
        weight.read::<T, PER, CHUNKS, VECTOR, CLUSTER>(&team, all, &p.weight);
        thread::sync_threads();
        while base < p.rows {
            let row = base + index;
            let mut words = next;
            if VECTOR {
                load_both(p, of_row(row + team.step), row + team.step, &mut next);
            } else {
                load_both(p, of_row(row), row, &mut words);
            }
            // Where there is no column, the gradient of the result is zero, and so is all that is added.
            let mut all_sums = [OverChunks::<CHUNKS>::NOTHING; 2];
            each_chunk!(c of CHUNKS => {
                let Chunk { normed, dy, gradient } =
                    Chunk::<PER>::new::<T>([words[0][c], words[1][c]], weight.chunk(c as u32), statistics);
                let mut sums = [[0.0; 2]; 2];
                for j in 0..PER {
                    sums[0][j % 2] += gradient[j];
                    sums[1][j % 2] = ptx::fma(gradient[j], normed[j], sums[1][j % 2]);
                    of_columns.weight[c][j] = ptx::fma(dy[j], normed[j], of_columns.weight[c][j]);
                    of_columns.bias[c][j] += dy[j];
                }
                all_sums[0].add(c, sums[0][0] + sums[0][1]);
                all_sums[1].add(c, sums[1][0] + sums[1][1]);
            });
            let [of_gradient, of_product] = team.sum(all_sums.map(OverChunks::sum));
            let of_mean = if p.is_centered == 0 { 0.0 } else { of_gradient * p.inverse };
            let of_deviation = of_product * p.inverse;
            // Only now: before, other things take the registers.
            let at = ptx::opaque(row);
            let mine = of_row(at);
            let dsum = p.dsum.offset(at as u64 * p.strides[2]).address();
            let dx = p.dx.offset(at as u64 * p.strides[3]).address();
            each_chunk!(c of CHUNKS => {
                let mut from_elsewhere = [0.0; PER];
                if !p.dsum.is_null() {
                    from_elsewhere = T::unpack(mine.load_words::<T>(dsum, c as u32));
                }
                let words = [hidden(words[0][c]), hidden(words[1][c])];
                let Chunk { normed, gradient, .. } =
                    Chunk::<PER>::new::<T>(words, weight.chunk(c as u32), statistics);
                let mut result = [0.0; PER];
                for j in 0..PER {
                    let rest = ptx::fma(-normed[j], of_deviation, gradient[j] - of_mean);
                    result[j] = ptx::fma(rest, statistics[1], from_elsewhere[j]);
                }
                if !p.dx.is_null() {
                    mine.store_words::<T>(dx, c as u32, T::pack(result));
                }
            });
            // Before there is no room for them.
            statistics = statistics_of(p, at + team.step);
            base += team.step;
        }
        add_teams(&team, all, &of_columns.weight, p.dweight, part::<CLUSTER>(), p.columns);
        add_teams(&team, all, &of_columns.bias, p.dbias, part::<CLUSTER>(), p.columns);
    }
}

/// Rows that are wider than their threads hold at a time: they are read twice. Gradients of columns are [added up apart](super::norm_column_gradients).
///
/// # Safety
///
/// As [`norm_gradients`].
#[inline(always)]
unsafe fn rows_in_rounds<
    T: RowElement,
    const PER: usize,
    const CHUNKS: usize,
    const VECTOR: bool,
    const CLUSTER: bool,
>(
    p: &NormGradientParams<T>,
    mut team: Team<CLUSTER>,
    all: Columns<PER, VECTOR>,
) {
    let chunks = p.rounds * CHUNKS as u32;
    let mut row = team.row();
    // SAFETY: the caller's promise.
    unsafe {
        while row < p.rows {
            let statistics = statistics_of(p, row);
            let at = |operand: usize| row as u64 * p.strides[operand];
            let (x, dy) = (p.x.offset(at(0)).address(), p.dy.offset(at(1)).address());
            let (dsum, dx) = (p.dsum.offset(at(2)).address(), p.dx.offset(at(3)).address());
            let of_chunk = |chunk: u32| {
                let words = [all.load_words::<T>(x, chunk), all.load_words::<T>(dy, chunk)];
                let weight = if p.weight.is_there() { all.load(&p.weight, 0, chunk) } else { [1.0; PER] };
                Chunk::<PER>::new::<T>(words, weight, statistics)
            };
            let mut sums = [0.0; 2];
            for chunk in 0..chunks {
                let Chunk { normed, gradient, .. } = of_chunk(chunk);
                for j in 0..PER {
                    sums[0] += gradient[j];
                    sums[1] = ptx::fma(gradient[j], normed[j], sums[1]);
                }
            }
            sums = team.sum(sums);
            let of_mean = if p.is_centered == 0 { 0.0 } else { sums[0] * p.inverse };
            let of_deviation = sums[1] * p.inverse;
            for chunk in 0..chunks {
                let mut from_elsewhere = [0.0; PER];
                if !p.dsum.is_null() {
                    from_elsewhere = T::unpack(all.load_words::<T>(dsum, chunk));
                }
                let Chunk { normed, gradient, .. } = of_chunk(chunk);
                let mut result = [0.0; PER];
                for j in 0..PER {
                    let rest = ptx::fma(-normed[j], of_deviation, gradient[j] - of_mean);
                    result[j] = ptx::fma(rest, statistics[1], from_elsewhere[j]);
                }
                all.store_words::<T>(dx, chunk, T::pack(result));
            }
            row += team.step;
        }
    }
}

/// Which row of the parts is this block's, or this cluster's.
#[inline(always)]
fn part<const CLUSTER: bool>() -> u32 {
    if CLUSTER { ptx::clusterid_x() } else { thread::block_idx_x() }
}

/// What a thread has added up of its columns.
struct Sums<const PER: usize, const CHUNKS: usize> {
    weight: [[f32; PER]; CHUNKS],
    bias: [[f32; PER]; CHUNKS],
}

/// A chunk of a row, and of what follows from it.
pub(super) struct Chunk<const PER: usize> {
    /// The normed elements.
    pub(super) normed: [f32; PER],
    /// The gradient of the result.
    pub(super) dy: [f32; PER],
    /// The gradient of the normed elements.
    gradient: [f32; PER],
}

impl<const PER: usize> Chunk<PER> {
    /// Of words of x and of dy, the weight, and the row's statistics.
    #[inline(always)]
    pub(super) fn new<T: RowElement>(
        words: [[u32; 4]; 2],
        weight: [f32; PER],
        [mean, deviation]: [f32; 2],
    ) -> Self {
        let (mut normed, dy): ([f32; PER], [f32; PER]) = (T::unpack(words[0]), T::unpack(words[1]));
        let mut gradient = dy;
        for j in 0..PER {
            normed[j] = (normed[j] - mean) * deviation;
            gradient[j] *= weight[j];
        }
        Self { normed, dy, gradient }
    }
}

/// The mean and the inverse deviation of a row, if it is one of p's.
///
/// # Safety
///
/// As [`norm_gradients`].
#[inline(always)]
pub(super) unsafe fn statistics_of<T>(p: &NormGradientParams<T>, row: u32) -> [f32; 2] {
    let of_row = |of: Global<f32>| of.offset(row as u64).address();
    let is_there = row < p.rows;
    // SAFETY: the caller's promise.
    unsafe {
        [
            ptx::ld_global_f32_if(of_row(p.mean), is_there && !p.mean.is_null()),
            ptx::ld_global_f32_if(of_row(p.deviation), is_there),
        ]
    }
}

/// Chunks of x and of dy.
///
/// # Safety
///
/// As [`Columns::load_words`].
#[inline(always)]
unsafe fn load_both<T: RowElement, const PER: usize, const CHUNKS: usize, const VECTOR: bool>(
    p: &NormGradientParams<T>,
    mine: Columns<PER, VECTOR>,
    row: u32,
    words: &mut [[[u32; 4]; CHUNKS]; 2],
) {
    // SAFETY: the caller's promise.
    unsafe {
        mine.load_all::<T, CHUNKS>(p.x.offset(row as u64 * p.strides[0]).address(), 0, &mut words[0]);
        mine.load_all::<T, CHUNKS>(p.dy.offset(row as u64 * p.strides[1]).address(), 0, &mut words[1]);
    }
}

/// Adds up what the teams of a block have of the same columns, in their order, and stores it as row `part`.
///
/// # Safety
///
/// All threads of the block call it. The row is this block's, or this cluster's, unless the pointer is null.
#[inline(always)]
unsafe fn add_teams<const PER: usize, const CHUNKS: usize, const VECTOR: bool, const CLUSTER: bool>(
    team: &Team<CLUSTER>,
    columns: Columns<PER, VECTOR>,
    sums: &[[f32; PER]; CHUNKS],
    to: GlobalMut<f32>,
    part: u32,
    count: u32,
) {
    if to.is_null() {
        return;
    }
    let row = to.offset(part as u64 * count as u64);
    if CLUSTER || team.threads == THREADS {
        // SAFETY: the caller's promise.
        unsafe {
            for c in 0..CHUNKS {
                // Rows are as aligned as a chunk of theirs, which is as many columns as divide them.
                columns.store_rounded::<f32>(row.address(), c as u32, sums[c]);
            }
        }
        return;
    }
    // A place for each column, in the order of threads, and of teams.
    let (of_team, shift) = (team.threads * (CHUNKS * PER) as u32, team.threads.trailing_zeros());
    let meeting = SharedAddress::dynamic().offset(MEETING);
    let place = |team: u32, number: u32| meeting.offset((team * of_team + number) * 4).get();
    // SAFETY: each thread has places of its own; the barriers are between writing and reading.
    unsafe {
        thread::sync_threads();
        for c in 0..CHUNKS {
            for j in 0..PER {
                let number = (c * PER + j) as u32 * team.threads + team.rank;
                ptx::st_shared_f32(place(team.index(), number), sums[c][j]);
            }
        }
        thread::sync_threads();
        let mut number = thread::thread_idx_x();
        while number < of_team {
            let mut sum = 0.0;
            for team in 0..THREADS >> shift {
                sum += ptx::ld_shared_f32(place(team, number));
            }
            let (slot, rank) = (number >> shift, number & (team.threads - 1));
            let owner = Columns::<PER, VECTOR>::new(rank, team.threads, count);
            let (chunk, j) = (slot / PER as u32, slot as usize % PER);
            if owner.column(chunk, j) < count {
                ptx::st_global_b32(row.offset(owner.column(chunk, j) as u64).address(), sum.to_bits());
            }
            number += THREADS;
        }
    }
}
