//! The gradient of the softmax of rows.

// Loops over registers index arrays by constants: an iterator by value would be an array in local memory.
#![allow(clippy::needless_range_loop)]

use crate::launch::{Global, KernelParam};
use crate::ptx;
use crate::rows::{AnyRows, Columns, OverChunks, RowElement, Team, each_chunk, hidden, hide};

/// What the gradient of a softmax is made of, and where it goes.
#[repr(C)]
pub struct SoftmaxGradientParams<T> {
    /// The gradient with respect to y.
    pub dy: AnyRows,
    /// Where the gradient with respect to x goes.
    pub dx: AnyRows,
    /// The softmax, rows `y_stride` apart.
    pub y: Global<T>,
    /// Elements from one row to the next.
    pub y_stride: u64,
    /// Rows.
    pub rows: u32,
    /// Columns.
    pub columns: u32,
    /// Threads of a block that share a row, a power of two.
    pub threads: u32,
    /// How often the threads of a row have `CHUNKS` chunks of it each.
    pub rounds: u32,
    /// What x was multiplied with.
    pub scale: f32,
    /// Nothing.
    pub reserved: u32,
}

impl<T> Clone for SoftmaxGradientParams<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for SoftmaxGradientParams<T> {}

// SAFETY: two operands of 24 bytes, two fields of eight, six of four: no padding.
unsafe impl<T: 'static> KernelParam for SoftmaxGradientParams<T> {}

/// `dx = scale · y ⊙ (dy − Σ dy ⊙ y)` of each row. Where y is 0 so is dx, whatever dy is there. A team has a row.
///
/// # Safety
///
/// What `p` describes is valid, and aligned to chunks if `VECTOR`. What is written overlaps nothing else, but dx may be y or dy if their types and rows are the
/// same. `p.threads` is a power of two up to [`THREADS`](crate::rows::THREADS), as [`Columns`] takes them; all threads of a row have all of its chunks
/// in `p.rounds` rounds. The grid has a team for each row.
#[inline(always)]
pub unsafe fn softmax_gradients<
    T: RowElement,
    const PER: usize,
    const CHUNKS: usize,
    const VECTOR: bool,
    const CLUSTER: bool,
>(
    p: &SoftmaxGradientParams<T>,
) {
    // SAFETY: the caller's promise.
    let mut team = unsafe { Team::<CLUSTER>::new(p.threads) };
    let all = Columns::<PER, VECTOR>::new(team.rank, team.threads, p.columns);
    if p.rounds == 1 && p.dy.kind == T::KIND {
        // SAFETY: the caller's promise.
        unsafe { rows_at_once::<T, PER, CHUNKS, VECTOR, CLUSTER>(p, team, all) };
        return;
    }
    let row = team.row();
    let mine = all.only_if(row < p.rows);
    // SAFETY: the row is one of p's, or no column of it is touched.
    unsafe { gradient_row::<T, PER, CHUNKS, VECTOR, CLUSTER>(p, &mut team, mine, row) };
}

/// Rows of which a thread has all of its chunks in registers, of y and dy of one type.
///
/// # Safety
///
/// As [`softmax_gradients`], for one round and a dy of type `T`.
#[inline(always)]
unsafe fn rows_at_once<
    T: RowElement,
    const PER: usize,
    const CHUNKS: usize,
    const VECTOR: bool,
    const CLUSTER: bool,
>(
    p: &SoftmaxGradientParams<T>,
    mut team: Team<CLUSTER>,
    all: Columns<PER, VECTOR>,
) {
    // SAFETY: the caller's promise; the rows are p's, or no column of them is touched; a thread writes where only itself has read.
    unsafe {
        let row = team.row();
        let mine = all.only_if(row < p.rows);
        let (mut words, mut of_dy) = ([[0; 4]; CHUNKS], [[0; 4]; CHUNKS]);
        mine.load_all::<T, CHUNKS>(p.y.offset(row as u64 * p.y_stride).address(), 0, &mut words);
        mine.load_all::<T, CHUNKS>(p.dy.row(row), 0, &mut of_dy);
        let mut all_sums = OverChunks::<CHUNKS>::NOTHING;
        each_chunk!(c of CHUNKS => {
            let (y, dy): ([f32; PER], [f32; PER]) = (T::unpack(words[c]), T::unpack(of_dy[c]));
            // Partial sums, so that additions do not wait for each other.
            let mut sums = [0.0; 2];
            for j in 0..PER {
                let sum = ptx::fma(y[j], dy[j], sums[j % 2]);
                sums[j % 2] = if y[j] == 0.0 { sums[j % 2] } else { sum };
            }
            all_sums.add(c, sums[0] + sums[1]);
        });
        let [sum] = team.sum([all_sums.sum()]);
        let to = p.dx.row(row);
        each_chunk!(c of CHUNKS => {
            if mine.reaches(c as u32) {
                let y: [f32; PER] = T::unpack(hidden(words[c]));
                let dy: [f32; PER] = T::unpack(hidden(of_dy[c]));
                let mut dx = [0.0; PER];
                for j in 0..PER {
                    let gradient = y[j] * (dy[j] - sum) * p.scale;
                    dx[j] = if y[j] == 0.0 { 0.0 } else { gradient };
                }
                mine.store_as(p.dx.kind, to, c as u32, dx);
            }
        });
    }
}

/// The gradient of a row of any width and type of dy.
///
/// # Safety
///
/// As [`softmax_gradients`].
#[inline(always)]
unsafe fn gradient_row<
    T: RowElement,
    const PER: usize,
    const CHUNKS: usize,
    const VECTOR: bool,
    const CLUSTER: bool,
>(
    p: &SoftmaxGradientParams<T>,
    team: &mut Team<CLUSTER>,
    mine: Columns<PER, VECTOR>,
    row: u32,
) {
    let from = p.y.offset(row as u64 * p.y_stride).address();
    let (mut words, mut dy) = ([[0; 4]; CHUNKS], [[0.0; PER]; CHUNKS]);
    // Partial sums, so that additions do not wait for each other.
    let mut sums = [0.0; 4];
    // SAFETY (of all blocks): the caller's promise; a thread writes where only itself has read.
    for round in 0..p.rounds {
        let first = round * CHUNKS as u32;
        for c in 0..CHUNKS {
            // SAFETY: as above.
            words[c] = unsafe { mine.load_words::<T>(from, first + c as u32) };
            // SAFETY: as above.
            dy[c] = unsafe { mine.load(&p.dy, row, first + c as u32) };
        }
        for c in 0..CHUNKS {
            let y: [f32; PER] = T::unpack(words[c]);
            for j in 0..PER {
                let sum = ptx::fma(y[j], dy[c][j], sums[j % 4]);
                sums[j % 4] = if y[j] == 0.0 { sums[j % 4] } else { sum };
            }
        }
    }
    // SAFETY: as above.
    let [sum] = unsafe { team.sum([(sums[0] + sums[1]) + (sums[2] + sums[3])]) };
    for round in 0..p.rounds {
        let first = round * CHUNKS as u32;
        if p.rounds > 1 {
            for c in 0..CHUNKS {
                // SAFETY: as above.
                words[c] = unsafe { mine.load_words::<T>(from, first + c as u32) };
                // SAFETY: as above.
                dy[c] = unsafe { mine.load(&p.dy, row, first + c as u32) };
            }
        }
        hide(&mut words);
        for c in 0..CHUNKS {
            let y: [f32; PER] = T::unpack(words[c]);
            let mut dx = [0.0; PER];
            for j in 0..PER {
                let gradient = y[j] * (dy[c][j] - sum) * p.scale;
                dx[j] = if y[j] == 0.0 { 0.0 } else { gradient };
            }
            // SAFETY: as above.
            unsafe { mine.store(&p.dx, row, first + c as u32, dx) };
        }
    }
}
