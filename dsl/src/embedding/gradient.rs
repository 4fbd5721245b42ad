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
    /// Where each different id begins; null if sums are added to the rows of a table, which ids name.
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
const LOADED: usize = 8;

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
    // SAFETY: the caller's promise.
    unsafe {
        let mut ids = p.count;
        if !is_dense {
            ids = ptx::ld_global_b32(p.distinct.address());
        }
        let key_at = |at: u32, condition: bool| {
            ptx::ld_global_f32_if(p.keys.offset(at as u64).address(), condition).to_bits()
        };
        let mut number = thread::block_idx_y() * teams + (id >> shift);
        while number < ids {
            let mut start = number;
            if !is_dense {
                start = ptx::ld_global_b32(p.starts.offset(number as u64).address());
            }
            let key = key_at(start, true);
            let before = key_at(start.max(1) - 1, is_dense && start > 0);
            // Of a table's rows each is added to from where its id begins.
            let is_mine = !is_dense || key < p.limit && (start == 0 || before != key);
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
                let (mut at, mut goes_on) = (start, true);
                while goes_on {
                    let (mut keys, mut rows, mut is_there) = ([0; LOADED], [0; LOADED], [false; LOADED]);
                    let mut weights = [0.0; LOADED];
                    for i in 0..LOADED {
                        let place = at + i as u32;
                        keys[i] = key_at(place, place < p.count);
                        let from = p.tokens.offset(place as u64).address();
                        let token = ptx::ld_global_f32_if(from, place < p.count).to_bits();
                        rows[i] = p.dy.offset(terms.row(token) as u64 * p.dy_stride).address();
                        weights[i] = terms.weight(token, place < p.count);
                    }
                    for i in 0..LOADED {
                        goes_on = goes_on & (at + (i as u32) < p.count) & (keys[i] == key);
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
            number += thread::grid_dim_y() * teams;
        }
    }
}
