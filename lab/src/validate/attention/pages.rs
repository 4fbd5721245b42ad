//! Keys and values of attention in pages that are in memory in any order.

use ndarray::{Array2, Array4, Axis, s};
use warpsmith::device::Device;
use warpsmith::error::Result;
use warpsmith::tensor::{Element, Tensor};

use super::placed::filled;
use crate::cases::{self, AttentionCase, split_mix};

/// Pages that no sequence has.
const SPARE: usize = 3;
/// Columns of the table's memory before and after those of the sequences.
const BESIDE: usize = 2;

/// Where each sequence's pages are in memory.
pub(super) struct Pages {
    size: usize,
    /// How many there are in memory.
    count: usize,
    /// Of each sequence, its pages in their order; those that hold no key of it are of no sequence.
    table: Array2<u32>,
    /// Of each sequence, how many of its pages hold keys.
    used: Vec<usize>,
    seed: u64,
}

impl Pages {
    /// The pages of a case that can be drawn, with `size` keys each.
    pub(super) fn new(case: &AttentionCase, size: usize) -> Result<Self> {
        let ([.., keys], batch, seed) = (case.sequences.axes(), case.sequences.batch(), case.seed);
        let columns = keys / size.max(1);
        let count = batch * columns + SPARE;
        // In a random order: each swaps its place with one before it.
        let mut order = cases::filled((1, count), 0u32)?;
        order.iter_mut().zip(0..).for_each(|(page, number)| *page = number);
        for last in (1..count).rev() {
            order.swap([0, last], [0, (split_mix(seed, last as u64) % (last as u64 + 1)) as usize]);
        }
        let mut table = cases::filled((batch, columns), 0u32)?;
        table.iter_mut().zip(&order).for_each(|(page, &number)| *page = number);
        let used = (0..batch).map(|b| case.sequences.lengths(b)[1].div_ceil(size.max(1))).collect();
        Ok(Self { size, count, table, used, seed })
    }

    /// The pages in memory, of the keys or values of all sequences; `filler` where no sequence has any.
    pub(super) fn place<T: Element>(&self, elements: &Array4<T>, filler: T) -> Result<Array4<T>> {
        let (_, _, heads, width) = elements.dim();
        let mut pages = filled([self.count, self.size, heads, width], filler)?;
        for ((b, column), &page) in
            self.table.indexed_iter().filter(|((b, column), _)| *column < self.used[*b])
        {
            let keys = column * self.size..(column + 1) * self.size;
            pages.index_axis_mut(Axis(0), page as usize).assign(&elements.slice(s![b, keys, .., ..]));
        }
        Ok(pages)
    }

    /// The table, a part of a wider one. It holds anything where a sequence has no keys, and numbers beyond the last page stand for that.
    pub(super) fn table_on(&self, device: &Device) -> Result<Tensor<u32>> {
        let (batch, columns) = self.table.dim();
        let mut wide = cases::filled((batch, columns + 2 * BESIDE), u32::MAX)?;
        for ((b, column), &page) in self.table.indexed_iter() {
            let any = split_mix(!self.seed, (b * columns + column) as u64) as u32;
            let is_last = page as usize == self.count - 1;
            wide[[b, column + BESIDE]] = match column < self.used[b] {
                true if is_last => page.saturating_add(any >> 1),
                true => page,
                false => any,
            };
        }
        Tensor::from_array(device, &wide)?.slice(1, BESIDE..BESIDE + columns)
    }
}
