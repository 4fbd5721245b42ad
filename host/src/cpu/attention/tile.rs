//! The attention of a few rows of one head.

use std::ops::Range;

use ndarray::{ArrayView1, ArrayView2, ArrayView3, ArrayViewMut2, ArrayViewMut3, s};

use super::window::Window;
use crate::cpu::number::{Accumulator, FromAccumulator, Operand};
use crate::device::cpu::out_of_memory;
use crate::error::Result;

/// Keys whose rows are widened at a time.
pub(super) const BLOCK: usize = 64;
/// Sums that the product of a row and a key is added up in, so that they need not wait for each other.
pub const LANES: usize = 8;

/// A tile: its rows of q, all keys and values of its head, and what is done to its scores.
pub(super) struct Tile<'a, A, T, K> {
    pub(super) q: ArrayView2<'a, T>,
    pub(super) k: Rows<'a, K>,
    pub(super) v: Rows<'a, K>,
    /// The number of the first row.
    pub(super) first: usize,
    /// The rows and keys of the sequence that count.
    pub(super) lengths: [usize; 2],
    /// What is added to a row's number to have that of the key beside it.
    pub(super) offset: i64,
    pub(super) window: Window,
    pub(super) scale: A,
    /// What the stored keys are multiplied with, and the stored values.
    pub(super) k_scale: Option<A>,
    pub(super) v_scale: Option<A>,
    pub(super) soft_cap: Option<A>,
    /// The mask, bias and blocks of the head: all rows and keys.
    pub(super) mask: Option<ArrayView2<'a, u8>>,
    pub(super) bias: Option<ArrayView2<'a, T>>,
    pub(super) block_mask: Option<(ArrayView2<'a, u8>, [usize; 2])>,
    pub(super) slope: Option<A>,
    pub(super) sink: Option<A>,
}

/// The keys or values of one head of a sequence, in pages, or in one.
pub(super) struct Rows<'a, T> {
    /// `[P, page size, D]`.
    pub(super) pages: ArrayView3<'a, T>,
    /// Which pages the sequence has; without a table there is one.
    pub(super) table: Option<ArrayView1<'a, u32>>,
}

impl<T> Rows<'_, T> {
    pub(super) fn columns(&self) -> usize {
        self.pages.dim().2
    }

    pub(super) fn row(&self, index: usize) -> ArrayView1<'_, T> {
        let (pages, size, _) = self.pages.dim();
        match &self.table {
            // What is beyond the last page is the last page.
            Some(table) => {
                let page = (table[index / size] as usize).min(pages - 1);
                self.pages.slice(s![page, index % size, ..])
            }
            None => self.pages.slice(s![0, index, ..]),
        }
    }
}

/// A thread's buffers, kept from tile to tile.
#[derive(Default)]
pub(super) struct Scratch<A> {
    pub(super) q: Vec<A>,
    /// Keys or values.
    pub(super) block: Vec<A>,
    /// A row of each before it is widened.
    pub(super) narrow: Vec<f32>,
    pub(super) scores: Vec<A>,
    sums: Vec<A>,
}

impl<A: Accumulator, T: Operand, K: Operand> Tile<'_, A, T, K> {
    /// Computes the rows' results.
    pub(super) fn compute<O: FromAccumulator<A>, L: FromAccumulator<A>>(
        &self,
        operation: &'static str,
        scratch: &mut Scratch<A>,
        mut y: ArrayViewMut2<'_, O>,
        mut lse: Option<ArrayViewMut3<'_, L>>,
    ) -> Result<()> {
        let rows = self.q.nrows();
        let spans: Vec<_> = (0..rows).map(|row| self.span(row)).collect();
        let keys = union(&spans);
        self.score(operation, scratch, &spans, &keys)?;
        let weights: Vec<_> = scratch
            .scores
            .chunks_exact_mut(keys.len().max(1))
            .map(|scores| softmax(scores, self.sink))
            .collect();
        self.add_values(operation, scratch, &keys)?;

        let width = self.v.columns();
        let nothing = Total { sum: A::zero(), lse: A::neg_infinity() };
        for row in 0..rows {
            let total = if self.first + row >= self.lengths[0] {
                nothing
            } else if keys.is_empty() {
                // The sink is all there is.
                Total { lse: self.sink.unwrap_or(A::neg_infinity()), ..nothing }
            } else {
                weights[row]
            };
            let sums = scratch.sums.get(row * width..(row + 1) * width).unwrap_or_default();
            for (column, y) in y.row_mut(row).iter_mut().enumerate() {
                let value = if total.sum == A::zero() { A::zero() } else { sums[column] / total.sum };
                let value = self.v_scale.map_or(value, |scale| value * scale);
                *y = O::from_accumulator(value);
            }
            if let Some(lse) = &mut lse {
                lse[[0, 0, row]] = L::from_accumulator(total.lse);
            }
        }
        Ok(())
    }

    /// The keys that a row attends to by its place.
    pub(super) fn span(&self, row: usize) -> Range<usize> {
        let row = self.first + row;
        if row >= self.lengths[0] { 0..0 } else { self.window.keys(row, self.offset, self.lengths[1]) }
    }

    /// The logits of all rows with `keys`, −∞ where a row does not attend.
    pub(super) fn score(
        &self,
        operation: &'static str,
        scratch: &mut Scratch<A>,
        spans: &[Range<usize>],
        keys: &Range<usize>,
    ) -> Result<()> {
        let (rows, width) = self.q.dim();
        fill(operation, &mut scratch.scores, rows.saturating_mul(keys.len()))?;
        if keys.is_empty() {
            return Ok(());
        }
        widen(operation, width, (0..rows).map(|row| self.q.row(row)), &mut scratch.narrow, &mut scratch.q)?;
        for start in keys.clone().step_by(BLOCK) {
            let block = start..keys.end.min(start + BLOCK);
            let of_keys = block.clone().map(|key| self.k.row(key));
            widen(operation, width, of_keys, &mut scratch.narrow, &mut scratch.block)?;
            for (row, span) in spans.iter().enumerate() {
                let scores = &mut scratch.scores[row * keys.len()..][..keys.len()];
                for key in block.clone() {
                    scores[key - keys.start] = if span.contains(&key) && self.attends(row, key) {
                        let of_key = &scratch.block[(key - start) * width..][..width];
                        self.logit(row, key, dot(&scratch.q[row * width..][..width], of_key))
                    } else {
                        A::neg_infinity()
                    };
                }
            }
        }
        Ok(())
    }

    /// Whether the masks let a row attend to a key.
    fn attends(&self, row: usize, key: usize) -> bool {
        let row = self.first + row;
        self.mask.as_ref().is_none_or(|mask| mask[[row, key]] != 0)
            && self.block_mask.as_ref().is_none_or(|(mask, [rows, keys])| mask[[row / rows, key / keys]] != 0)
    }

    /// The logit of a row and a key with this product.
    fn logit(&self, row: usize, key: usize, product: A) -> A {
        let row = self.first + row;
        let mut logit = product * self.k_scale.map_or(self.scale, |scale| self.scale * scale);
        if let Some(cap) = self.soft_cap {
            logit = cap * (logit / cap).tanh();
        }
        if let Some(bias) = &self.bias {
            logit += A::from_f32(bias[[row, key]].to_f32());
        }
        if let Some(slope) = self.slope {
            let distance = (row as i64 + self.offset - key as i64).unsigned_abs();
            logit = logit - slope * A::from_f64(distance as f64);
        }
        logit
    }

    /// The sums of the values of `keys`, with the weights that are in the place of the scores.
    fn add_values(
        &self,
        operation: &'static str,
        scratch: &mut Scratch<A>,
        keys: &Range<usize>,
    ) -> Result<()> {
        let (rows, width) = (self.q.nrows(), self.v.columns());
        fill(operation, &mut scratch.sums, rows.saturating_mul(width))?;
        for start in keys.clone().step_by(BLOCK) {
            let block = start..keys.end.min(start + BLOCK);
            let of_keys = block.clone().map(|key| self.v.row(key));
            widen(operation, width, of_keys, &mut scratch.narrow, &mut scratch.block)?;
            for row in 0..rows {
                let weights = &scratch.scores[row * keys.len()..][..keys.len()];
                let sums = &mut scratch.sums[row * width..][..width];
                for key in block.clone() {
                    let weight = weights[key - keys.start];
                    // What a row does not attend to must not show, even if it is NaN.
                    if weight == A::zero() {
                        continue;
                    }
                    let values = &scratch.block[(key - start) * width..][..width];
                    for (sum, &value) in sums.iter_mut().zip(values) {
                        *sum += weight * value;
                    }
                }
            }
        }
        Ok(())
    }
}

/// The sum of a row's weights, and the logarithm of the sum of the exponentials.
#[derive(Clone, Copy)]
pub(super) struct Total<A> {
    pub(super) sum: A,
    pub(super) lse: A,
}

/// Turns logits into weights relative to the largest.
pub(super) fn softmax<A: Accumulator>(logits: &mut [A], sink: Option<A>) -> Total<A> {
    let nothing = A::neg_infinity();
    let sink = sink.unwrap_or(nothing);
    if sink == nothing && logits.iter().all(|&logit| logit == nothing) {
        logits.fill(A::zero());
        return Total { sum: A::zero(), lse: nothing };
    }
    // `max` passes over a NaN, whose weight is one.
    let largest = logits.iter().fold(sink, |largest, &logit| largest.max(logit));
    let mut sum = if sink == nothing { A::zero() } else { (sink - largest).exp() };
    for logit in logits {
        *logit = if *logit == nothing { A::zero() } else { (*logit - largest).exp() };
        sum += *logit;
    }
    Total { sum, lse: largest + sum.ln() }
}

/// From the first to the last key that any row attends to.
pub(super) fn union(spans: &[Range<usize>]) -> Range<usize> {
    let some = || spans.iter().filter(|span| !span.is_empty());
    let start = some().map(|span| span.start).min().unwrap_or(0);
    start..some().map(|span| span.end).max().unwrap_or(start)
}

pub(super) fn dot<A: Accumulator>(a: &[A], b: &[A]) -> A {
    let mut lanes = [A::zero(); LANES];
    let (a_chunks, b_chunks) = (a.chunks_exact(LANES), b.chunks_exact(LANES));
    let rest = a_chunks.remainder().iter().zip(b_chunks.remainder());
    let mut sum = rest.fold(A::zero(), |sum, (&a, &b)| sum + a * b);
    for (a, b) in a_chunks.zip(b_chunks) {
        for ((lane, &a), &b) in lanes.iter_mut().zip(a).zip(b) {
            *lane += a * b;
        }
    }
    for lane in lanes {
        sum += lane;
    }
    sum
}

/// Makes `buffer` so many zeros.
pub(super) fn fill<A: Accumulator>(
    operation: &'static str,
    buffer: &mut Vec<A>,
    length: usize,
) -> Result<()> {
    buffer.clear();
    buffer
        .try_reserve(length)
        .map_err(|_| out_of_memory(operation, length.saturating_mul(size_of::<A>())))?;
    buffer.resize(length, A::zero());
    Ok(())
}

/// Rows of so many columns, one after the other.
pub(super) fn widen<'r, A: Accumulator, T: Operand + 'r>(
    operation: &'static str,
    width: usize,
    rows: impl ExactSizeIterator<Item = ArrayView1<'r, T>>,
    narrow: &mut Vec<f32>,
    wide: &mut Vec<A>,
) -> Result<()> {
    fill(operation, wide, rows.len().saturating_mul(width))?;
    narrow.resize(width, 0.0);
    for (row, wide) in rows.zip(wide.chunks_exact_mut(width.max(1))) {
        match row.to_slice() {
            Some(row) => T::widen(row, narrow),
            None => narrow.iter_mut().zip(row).for_each(|(wide, element)| *wide = element.to_f32()),
        }
        for (wide, &narrow) in wide.iter_mut().zip(&*narrow) {
            *wide = A::from_f32(narrow);
        }
    }
    Ok(())
}
