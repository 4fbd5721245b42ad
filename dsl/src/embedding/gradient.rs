//! Sums of the rows of tokens with equal ids.

// Registers are indexed by constants: an iterator over several arrays at once might put them in memory.
#![allow(clippy::needless_range_loop, clippy::manual_memcpy)]

use crate::launch::{Global, KernelParam};
use crate::rows::{AnyRows, Columns, RowElement, THREADS};
use crate::{ptx, thread};

/// Rows, and where their sums go.
#[repr(C)]
pub struct GradientParams<T> {
    /// A row for each token.
    pub dy: Global<T>,
    /// Elements from one row to the next.
    pub dy_stride: u64,
    /// The tokens' ids in ascending order.
    pub keys: Global<u32>,
    /// The tokens in that order.
    pub tokens: Global<u32>,
    /// Where each different id begins, and the last one ends; null if sums are added to the rows of a table, which ids name.
    pub starts: Global<u32>,
    /// How many different ids there are; null with `starts`.
    pub distinct: Global<u32>,
    /// Rows of sums, or of the table.
    pub to: AnyRows,
    /// Tokens.
    pub count: u32,
    /// Columns.
    pub columns: u32,
    /// Threads of a block that share a row, a power of two.
    pub threads: u32,
    /// What ids of tokens that count are less than.
    pub limit: u32,
}

impl<T> Clone for GradientParams<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for GradientParams<T> {}

// SAFETY: six fields of eight bytes, one of 24, four of four: no padding.
unsafe impl<T: 'static> KernelParam for GradientParams<T> {}

/// Rows that are used several times, each time with a weight for each of several sums.
#[repr(C)]
pub struct WeightedParams<T> {
    /// The rows, of which each is used [`uses`](Self::uses) times: what is a token there is a use here.
    pub rows: GradientParams<T>,
    /// A weight for each use and each of its sums.
    pub weights: Global<f32>,
    /// Bytes from an id's first sum to its second.
    pub sum_bytes: u64,
    /// Uses of a row, one after the other.
    pub uses: u32,
    /// Sums of an id, and weights of a use.
    pub sums: u32,
}

impl<T> Clone for WeightedParams<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for WeightedParams<T> {}

// SAFETY: parameters of a multiple of eight bytes, two fields of eight, two of four: no padding.
unsafe impl<T: 'static> KernelParam for WeightedParams<T> {}

/// Which rows are added up, and what they are multiplied with.
trait Terms: Copy {
    /// The row of a token, or of a use.
    fn row(self, token: u32) -> u32;

    /// What the row is multiplied with; any number if the condition does not hold.
    ///
    /// # Safety
    ///
    /// There is such a token, if the condition holds.
    unsafe fn weight(self, token: u32, condition: bool) -> f32;

    /// A sum and one more term.
    fn add(self, sum: f32, weight: f32, value: f32) -> f32;
}

/// Each token's row as it is.
#[derive(Clone, Copy)]
struct Plain;

impl Terms for Plain {
    #[inline(always)]
    fn row(self, token: u32) -> u32 {
        token
    }

    #[inline(always)]
    unsafe fn weight(self, _: u32, _: bool) -> f32 {
        1.0
    }

    #[inline(always)]
    fn add(self, sum: f32, _: f32, value: f32) -> f32 {
        sum + value
    }
}

/// Rows that are used several times.
#[derive(Clone, Copy)]
struct Weighted {
    weights: Global<f32>,
    uses: u32,
    sums: u32,
}

impl Terms for Weighted {
    #[inline(always)]
    fn row(self, token: u32) -> u32 {
        token / self.uses.max(1)
    }

    #[inline(always)]
    unsafe fn weight(self, token: u32, condition: bool) -> f32 {
        let at = self.weights.offset(token as u64 * self.sums as u64).address();
        // SAFETY: the caller's promise.
        unsafe { ptx::ld_global_f32_if(at, condition) }
    }

    #[inline(always)]
    fn add(self, sum: f32, weight: f32, value: f32) -> f32 {
        ptx::fma(weight, value, sum)
    }
}

/// Rows that a thread loads together.
const LOADED: usize = 4;

/// Adds up the rows of equal ids in the order of their tokens, in f32. Along x the grid has blocks for the columns, along y for the ids, as many as it likes.
///
/// # Safety
///
/// What `p` describes is valid, and aligned to chunks if `VECTOR`; what is written overlaps nothing else.
/// `p.threads` is a power of two up to [`THREADS`], as [`Columns`] takes them.
#[inline(always)]
pub unsafe fn add_rows<T: RowElement, const PER: usize, const CHUNKS: usize, const VECTOR: bool>(
    p: &GradientParams<T>,
) {
    // SAFETY: the caller's promise.
    unsafe { add_terms::<T, PER, CHUNKS, VECTOR>(p, Plain) }
}

/// The same of rows times weights: along z the grid has a block for each of the sums.
///
/// # Safety
///
/// As [`add_rows`]. There is a row for [`uses`](WeightedParams::uses) uses, and a weight for each use and sum. Sums are
/// [`sum_bytes`](WeightedParams::sum_bytes) apart, and aligned to chunks if `VECTOR`.
#[inline(always)]
pub unsafe fn add_weighted_rows<T: RowElement, const PER: usize, const CHUNKS: usize, const VECTOR: bool>(
    p: &WeightedParams<T>,
) {
    let (mut rows, number) = (p.rows, thread::block_idx_z() as u64);
    rows.to.base += number * p.sum_bytes;
    let terms = Weighted { weights: p.weights.offset(number), uses: p.uses, sums: p.sums };
    // SAFETY: the caller's promise.
    unsafe { add_terms::<T, PER, CHUNKS, VECTOR>(&rows, terms) }
}

/// Adds up what `terms` makes of rows.
#[inline(always)]
unsafe fn add_terms<T: RowElement, const PER: usize, const CHUNKS: usize, const VECTOR: bool>(
    p: &GradientParams<T>,
    terms: impl Terms,
) {
    let (id, shift) = (thread::thread_idx_x(), p.threads.trailing_zeros());
    let teams = THREADS >> shift;
    let all = Columns::<PER, VECTOR>::new(id & (p.threads - 1), p.threads, p.columns);
    let is_dense = p.starts.is_null();
    let (step, from) = (thread::grid_dim_y() * teams, if is_dense { p.keys } else { p.starts });
    // SAFETY: the caller's promise.
    unsafe {
        let mut ids = p.count;
        if !is_dense {
            ids = ptx::ld_global_b32(p.distinct.address());
        }
        let load = |from: Global<u32>, at: u32, condition: bool| {
            ptx::ld_global_f32_if(from.offset(at as u64).address(), condition).to_bits()
        };
        // Where an id begins and where it ends, or of a place its key and that before.
        let bounds = |number: u32| {
            let is_there = number < ids;
            let other = if is_dense { number.max(1) - 1 } else { number + 1 };
            [load(from, number, is_there), load(from, other, is_there)]
        };
        let begin = |number: u32, bounds: [u32; 2]| if is_dense { number } else { bounds[0] };
        // What comes next is loaded before it is needed: bounds two ids ahead, the first token one.
        let mut number = thread::block_idx_y() * teams + (id >> shift);
        let (mut own, mut next) = (bounds(number), bounds(number + step));
        let mut token = load(p.tokens, begin(number, own), number < ids);
        while number < ids {
            let after = bounds(number + 2 * step);
            let next_token = load(p.tokens, begin(number + step, next), number + step < ids);
            let (start, mut end, mut key, mut is_mine) = (begin(number, own), own[1], 0, true);
            if is_dense {
                // Of a table's rows each is added to from where its id begins.
                (end, key) = (p.count, own[0]);
                is_mine = key < p.limit && (start == 0 || own[1] != key);
            }
            let mine = all.only_if(is_mine);
            let row = if is_dense { key } else { number };
            let mut first = thread::block_idx_x() * CHUNKS as u32;
            while mine.has(first, 0) {
                let mut sums = [[0.0; PER]; CHUNKS];
                if is_dense {
                    for c in 0..CHUNKS {
                        sums[c] = mine.load(&p.to, row, first + c as u32);
                    }
                }
                // Most ids of a table of experts are used once.
                let is_single = !is_dense && end - start == 1;
                if is_single {
                    let from = p.dy.offset(terms.row(token) as u64 * p.dy_stride).address();
                    let weight = terms.weight(token, true);
                    let mut words = [[0; 4]; CHUNKS];
                    for c in 0..CHUNKS {
                        words[c] = mine.load_words::<T>(from, first + c as u32);
                    }
                    for c in 0..CHUNKS {
                        let values: [f32; PER] = T::unpack(words[c]);
                        for j in 0..PER {
                            sums[c][j] = terms.add(sums[c][j], weight, values[j]);
                        }
                    }
                }
                let (mut at, mut goes_on) = (start, !is_single);
                while goes_on {
                    let (mut keys, mut rows, mut is_there) = ([0; LOADED], [0; LOADED], [false; LOADED]);
                    let mut weights = [0.0; LOADED];
                    for i in 0..LOADED {
                        let place = at + i as u32;
                        keys[i] = load(p.keys, place, is_dense && place < end);
                        let token = load(p.tokens, place, place < end);
                        rows[i] = p.dy.offset(terms.row(token) as u64 * p.dy_stride).address();
                        weights[i] = terms.weight(token, place < end);
                    }
                    for i in 0..LOADED {
                        // Of no table the end is known, and keys are all zeros.
                        goes_on = goes_on & (at + (i as u32) < end) & (keys[i] == key);
                        is_there[i] = goes_on;
                    }
                    let mut words = [[[0; 4]; CHUNKS]; LOADED];
                    for i in 0..LOADED {
                        for c in 0..CHUNKS {
                            let chunk = first + c as u32;
                            words[i][c] = mine.only_if(is_there[i]).load_words::<T>(rows[i], chunk);
                        }
                    }
                    for i in 0..LOADED {
                        for c in 0..CHUNKS {
                            let values: [f32; PER] = T::unpack(words[i][c]);
                            for j in 0..PER {
                                // Not a sum with 0, which would make 0 of −0.
                                let sum = terms.add(sums[c][j], weights[i], values[j]);
                                sums[c][j] = if is_there[i] { sum } else { sums[c][j] };
                            }
                        }
                    }
                    at += LOADED as u32;
                }
                for c in 0..CHUNKS {
                    mine.store(&p.to, row, first + c as u32, sums[c]);
                }
                first += thread::grid_dim_x() * CHUNKS as u32;
            }
            number += step;
            (own, next, token) = (next, after, next_token);
        }
    }
}
