//! Operations on rows with a function of a program's own: `y[r, c] = f(r, c, x[r, c], what passes over row r have found)`.

// Loops over registers index arrays by constants: an iterator by value would be an array in local memory.
#![allow(clippy::needless_range_loop)]

use super::{Columns, RowElement, Team, hidden};
use crate::launch::{Global, GlobalMut, Kernel, KernelParam};
use crate::operands::FieldOperands;
use crate::ptx;

/// How the numbers of a pass over a row become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduction {
    /// They are added, in an order that depends on the row's length and alignment only; 0 of a row without elements.
    Sum,
    /// The largest of them; NaN if any is.
    Maximum,
}

/// Passes that a function may make over a row at most.
pub const MOST_PASSES: usize = 4;

/// What is known of a row.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// Its number among all rows.
    pub index: u32,
    /// Its elements.
    pub columns: u32,
    /// What each pass so far has found; 0 of the others.
    pub found: [f32; MOST_PASSES],
}

/// A function of the elements of a row, and of numbers that passes over the row find first.
///
/// It may read what its fields hold: numbers, and [slices and matrices](crate::slice), which know how far they go. It is asked for elements of the rows
/// only. Numbers are in f32; results are rounded when they are stored.
///
/// [`row_kernels`](crate::row_kernels) makes the kernels, and has the example.
pub trait RowFunction: KernelParam {
    /// The passes over a row, one after another: at most [`MOST_PASSES`].
    const PASSES: &'static [Reduction];

    /// What pass `pass` takes of element `x` in column `column`. `row` has what the passes before have found.
    fn term(&self, pass: usize, x: f32, column: u32, row: Row) -> f32;

    /// The result of element `x` in column `column`.
    fn finish(&self, x: f32, column: u32, row: Row) -> f32;
}

/// Where rows are, and who has them.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct RowFunctionParams {
    /// Elements from one row of x to the next.
    pub x_stride: u64,
    /// Elements from one row of y to the next.
    pub y_stride: u64,
    /// Rows.
    pub rows: u32,
    /// Columns.
    pub columns: u32,
    /// Threads of a block that share a row, a power of two.
    pub threads: u32,
    /// How often the threads of a row have `CHUNKS` chunks of it each.
    pub rounds: u32,
}

// SAFETY: two fields of eight bytes, four of four: no padding.
unsafe impl KernelParam for RowFunctionParams {}

/// Chunks of a thread: those of sixteen elements.
#[must_use]
pub const fn chunks_of<T: RowElement>() -> usize {
    16 / per_chunk::<T>()
}

/// Elements of a chunk of 16 bytes.
#[must_use]
pub const fn per_chunk<T: RowElement>() -> usize {
    16 / T::BYTES as usize
}

/// The pass of a number, if there are so many.
const fn pass<F: RowFunction>(number: usize) -> Option<Reduction> {
    assert!(F::PASSES.len() <= MOST_PASSES, "a function makes at most four passes over a row");
    if number < F::PASSES.len() { Some(F::PASSES[number]) } else { None }
}

/// Applies a function to rows: a team has one.
///
/// # Safety
///
/// x and y have the rows that `p` describes, aligned to chunks if `VECTOR`. They are apart, or the same rows of the same type. `p.threads` is a power of two up to
/// [`THREADS`](super::THREADS), as [`Columns`] takes them; all threads of a row have all of its chunks in `p.rounds` rounds. The grid has a team for each
/// row. What `f` reads is not written.
#[inline(always)]
pub unsafe fn apply<
    T: RowElement,
    O: RowElement,
    F: RowFunction,
    const PER: usize,
    const CHUNKS: usize,
    const VECTOR: bool,
    const CLUSTER: bool,
>(
    x: Global<T>,
    y: GlobalMut<O>,
    f: &F,
    p: RowFunctionParams,
) {
    // SAFETY: the caller's promise; rows are p's, or no column of them is touched; a thread writes where only itself has read.
    unsafe {
        let mut team = Team::<CLUSTER>::new(p.threads);
        let all = Columns::<PER, VECTOR>::new(team.rank, team.threads, p.columns);
        let index = team.row();
        let mine = all.only_if(index < p.rows);
        let from = x.offset(index as u64 * p.x_stride).address();
        let mut words = [[0; 4]; CHUNKS];
        mine.load_all::<T, CHUNKS>(from, 0, &mut words);
        let mut row = Row { index, columns: p.columns, found: [0.0; MOST_PASSES] };
        // One after another, each with its number known to the compiler, as with chunks.
        macro_rules! pass {
            ($number:literal) => {
                if let Some(reduction) = const { pass::<F>($number) } {
                    let own = own_terms::<T, F, PER, CHUNKS, VECTOR>(
                        f,
                        ($number, reduction),
                        mine,
                        (from, p.rounds),
                        &mut words,
                        row,
                    );
                    row.found[$number] = match reduction {
                        Reduction::Sum => team.sum([own])[0],
                        Reduction::Maximum => team.max(own),
                    };
                }
            };
        }
        pass!(0);
        pass!(1);
        pass!(2);
        pass!(3);
        let to = y.offset(index as u64 * p.y_stride).address();
        for round in 0..p.rounds {
            if p.rounds > 1 {
                mine.load_all::<T, CHUNKS>(from, round * CHUNKS as u32, &mut words);
            }
            each_chunk!(c of CHUNKS => {
                let chunk = round * CHUNKS as u32 + c as u32;
                if mine.reaches(chunk) {
                    let x: [f32; PER] = T::unpack(hidden(words[c]));
                    let mut results = [0.0; PER];
                    for j in 0..PER {
                        if mine.has(chunk, j) {
                            results[j] = f.finish(x[j], mine.column(chunk, j), row);
                        }
                    }
                    mine.store_as(O::KIND, to, chunk, results);
                }
            });
        }
    }
}

/// What a pass makes of this thread's elements of a row: all rounds of them, the first of which is loaded if there is no other.
///
/// # Safety
///
/// As [`apply`], for a row at `from` in so many rounds.
#[inline(always)]
unsafe fn own_terms<
    T: RowElement,
    F: RowFunction,
    const PER: usize,
    const CHUNKS: usize,
    const VECTOR: bool,
>(
    f: &F,
    (number, reduction): (usize, Reduction),
    mine: Columns<PER, VECTOR>,
    (from, rounds): (u64, u32),
    words: &mut [[u32; 4]; CHUNKS],
    row: Row,
) -> f32 {
    let mut own = match reduction {
        Reduction::Sum => 0.0,
        Reduction::Maximum => f32::NEG_INFINITY,
    };
    for round in 0..rounds {
        if rounds > 1 {
            // SAFETY: the caller's promise.
            unsafe { mine.load_all::<T, CHUNKS>(from, round * CHUNKS as u32, words) };
        }
        each_chunk!(c of CHUNKS => {
            let chunk = round * CHUNKS as u32 + c as u32;
            if mine.reaches(chunk) {
                let x: [f32; PER] = T::unpack(hidden(words[c]));
                for j in 0..PER {
                    if mine.has(chunk, j) {
                        let term = f.term(number, x[j], mine.column(chunk, j), row);
                        own = match reduction {
                            Reduction::Sum => own + term,
                            Reduction::Maximum => ptx::max_nan(own, term),
                        };
                    }
                }
            }
        });
    }
    own
}

/// The arguments of a kernel with the body [`apply`].
pub type RowFunctionArgs<T, O, F> = (Global<T>, GlobalMut<O>, F, RowFunctionParams);

/// The kernels of a [`RowFunction`]: those that the host chooses from.
///
/// # Safety
///
/// Each kernel has the body [`apply`] for these types and this function, with blocks of [`THREADS`](super::THREADS) threads. They have chunks of 16
/// bytes, [`chunks_of`] to a thread, aligned ones in `Block` and `Cluster`. [`row_kernels`](crate::row_kernels) guarantees it by writing both.
pub unsafe trait RowKernels: 'static {
    /// The operation's name in errors.
    const NAME: &'static str;
    /// The type of x.
    type Input: RowElement;
    /// The type of y.
    type Output: RowElement;
    /// What is applied.
    type Function: RowFunction + FieldOperands;

    /// A part of a warp, some warps or a block has a row.
    type Block: Kernel<Args = RowFunctionArgs<Self::Input, Self::Output, Self::Function>>;
    /// The same of rows with any alignment.
    type BlockAny: Kernel<Args = RowFunctionArgs<Self::Input, Self::Output, Self::Function>>;
    /// The blocks of a cluster have a row.
    type Cluster: Kernel<Args = RowFunctionArgs<Self::Input, Self::Output, Self::Function>>;
    /// The same of rows with any alignment.
    type ClusterAny: Kernel<Args = RowFunctionArgs<Self::Input, Self::Output, Self::Function>>;
}
