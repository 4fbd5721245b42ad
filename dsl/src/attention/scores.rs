//! What happens to scores between the product of Q and K and the softmax.

use super::softmax::LOG2_E;
use super::window::Window;
use super::work::Work;
use crate::KernelParam;
use crate::float::Element;
use crate::launch::Global;
use crate::ptx::{self, Accumulators};
use crate::tile::registers::{Fragment, ROWS};
use crate::warp;

/// Elements from one index to the next along each axis of an operand that has an element for each score; 0 where all have the same.
#[derive(Clone, Copy, Debug, Default, KernelParam)]
#[repr(C)]
pub struct ScoreStrides {
    /// From sequence to sequence.
    pub sequence: u64,
    /// From head to head.
    pub head: u64,
    /// From row to row.
    pub row: u64,
    /// From key to key.
    pub key: u64,
}

/// Operands that change scores. What is null, or 0, is not given.
#[derive(Clone, Copy, KernelParam)]
#[repr(C)]
pub struct ScoreOperands {
    /// What is added, of the type of Q.
    pub bias: Global<u8>,
    /// Where its elements are.
    pub bias_strides: ScoreStrides,
    /// Not 0 where a row attends to a key.
    pub mask: Global<u8>,
    /// Where its elements are.
    pub mask_strides: ScoreStrides,
    /// The same for whole blocks of rows and keys.
    pub blocks: Global<u8>,
    /// Where its elements are, block by block.
    pub block_strides: ScoreStrides,
    /// Of each head, what is subtracted for each key between a row and a key.
    pub slopes: Global<f32>,
    /// Elements from one sequence's slopes to the next.
    pub slopes_sequence: u64,
    /// Of each head, one more score without a value.
    pub sinks: Global<f32>,
    /// Rows of a block of `blocks`.
    pub block_rows: u32,
    /// Keys of it.
    pub block_keys: u32,
    /// What scores are multiplied by.
    pub scale: f32,
    /// What they stay below: `cap · tanh(score / cap)`.
    pub cap: f32,
    /// 1 if the key beside a row, from which distances are counted, is found from the last row; else 0.
    pub counts_from_last: u32,
    /// [`PAIRED_BIAS`] and [`PAIRED_MASK`].
    pub paired: u32,
}

/// The bias has whole pairs of keys, which are side by side, and each pair begins at a multiple of its size.
pub const PAIRED_BIAS: u32 = 1;
/// The same of the mask.
pub const PAIRED_MASK: u32 = 2;

/// The scores that a thread has: two rows, and columns from `key` on.
#[derive(Clone, Copy)]
pub struct Place {
    /// The two rows, within the sequence.
    pub rows: [u32; ROWS],
    /// The head of Q that each of them is of.
    pub heads: [u32; ROWS],
    /// The key of the thread's first column.
    pub key: u32,
}

/// Makes −∞ of scores whose keys are outside of the window of their rows, of the sequence, or of `part`, the first key and the one behind the last.
#[inline(always)]
pub fn keep_within<C: Accumulators>(
    scores: &mut Fragment<C>,
    window: Window,
    work: &Work,
    place: Place,
    part: [u32; 2],
) {
    let bounds = place.rows.map(|row| {
        let [first, end] = window.keys_of(row, work.offset, work.keys);
        [first.max(part[0] as i32), end.min(part[1] as i32)].map(|key| key - place.key as i32)
    });
    scores.map(|score, row, column| {
        let [first, end] = bounds[row];
        let is_within = column as i32 >= first && (column as i32) < end;
        if is_within { score } else { f32::NEG_INFINITY }
    });
}

impl ScoreOperands {
    /// Whether any row of `rows` attends to any key of `keys` in any of `heads`, by the mask of blocks; each is the first and the one behind the last.
    ///
    /// # Safety
    ///
    /// The pointers are valid, and nothing writes there.
    #[inline(always)]
    #[must_use]
    pub unsafe fn has_any(&self, work: &Work, heads: [u32; 2], rows: [u32; 2], keys: [u32; 2]) -> bool {
        if self.blocks.is_null() {
            return true;
        }
        let [block_rows, block_keys] = self.block();
        // Heads that have the same blocks are looked at once.
        let end = if self.block_strides.head == 0 { heads[0] + 1 } else { heads[1] };
        for head in heads[0]..end {
            let first = self.block_strides.of(work, head, 0, 0);
            let mut row = rows[0] / block_rows;
            while row * block_rows < rows[1] {
                let mut key = keys[0] / block_keys;
                while key * block_keys < keys[1] {
                    let at =
                        first + row as u64 * self.block_strides.row + key as u64 * self.block_strides.key;
                    // SAFETY: the caller's promise.
                    if unsafe { ptx::ld_global_nc_b8_if(self.blocks.offset(at).address(), true) } != 0 {
                        return true;
                    }
                    key += 1;
                }
                row += 1;
            }
        }
        false
    }

    /// Rows and keys of a block: at least 1, for a division by zero would be a trap.
    #[inline(always)]
    fn block(&self) -> [u32; 2] {
        [self.block_rows, self.block_keys].map(|size| ptx::opaque(size).max(1))
    }

    /// What the bias adds to the scores at `place`, loaded while their products are on the way.
    ///
    /// # Safety
    ///
    /// All lanes of the warp call it. The pointers are valid, the bias for elements of `T`, and nothing writes there.
    #[inline(always)]
    pub unsafe fn fetch<T: Element, C: Accumulators>(&self, work: &Work, place: Place) -> Fragment<C> {
        // What is added to −0 stays what it is: no instruction.
        let mut added = Fragment(C::zero());
        added.map(|_, _, _| -0.0);
        // SAFETY: the caller's promise.
        unsafe { self.add_bias::<T, C>(&mut added, work, place) };
        added
    }

    /// Adds the bias, if there is one.
    ///
    /// # Safety
    ///
    /// As [`fetch`](Self::fetch).
    #[inline(always)]
    unsafe fn add_bias<T: Element, C: Accumulators>(&self, to: &mut Fragment<C>, work: &Work, place: Place) {
        if self.bias.is_null() {
            return;
        }
        let (to, base) = (to.0.as_mut(), Global::<T>::new(self.bias.address()));
        // SAFETY: the caller's promise, of rows and keys that are there.
        unsafe {
            if self.paired & PAIRED_BIAS != 0 {
                for_each_pair::<C>(self.bias_strides, work, place, |index, at, is_inside| {
                    let [first, second] = T::load_pair_if(base.offset(at), is_inside);
                    to[index] += first;
                    to[index + 1] += second;
                });
            } else {
                for_each::<C>(self.bias_strides, work, place, |index, at, is_inside| {
                    to[index] += T::load_read_only_if(base.offset(at), is_inside).to_f32();
                });
            }
        }
    }

    /// Whether nothing happens to scores but a multiplication.
    #[inline(always)]
    #[must_use]
    pub fn only_scale(&self) -> bool {
        let Self { bias, mask, blocks, slopes, cap, .. } = self;
        let addresses = bias.address() | mask.address() | blocks.address() | slopes.address();
        addresses == 0 && *cap == 0.0
    }

    /// What the products of Q and K become before the window is applied, in natural units: scaled, capped, with what is added to them, and −∞ where a mask says so.
    ///
    /// # Safety
    ///
    /// As [`fetch`](Self::fetch), whose result for this place `added` is, if the bias has been loaded before.
    #[inline(always)]
    pub unsafe fn apply<T: Element, C: Accumulators>(
        &self,
        scores: &mut Fragment<C>,
        added: Option<&Fragment<C>>,
        work: &Work,
        place: Place,
    ) {
        scores.map(|score, _, _| score * self.scale);
        if self.cap != 0.0 {
            let (factor, cap) = (1.0 / self.cap, self.cap);
            scores.map(|score, _, _| cap * tanh(score * factor));
        }
        match added {
            Some(added) if !self.bias.is_null() => {
                for (score, added) in scores.0.as_mut().iter_mut().zip(added.0.as_ref()) {
                    *score += added;
                }
            }
            Some(_) => {}
            // SAFETY: the caller's promise.
            None => unsafe { self.add_bias::<T, C>(scores, work, place) },
        }
        if !self.slopes.is_null() {
            let slopes = place.heads.map(|head| {
                let at = work.sequence as u64 * self.slopes_sequence + head as u64;
                // SAFETY: the caller's promise.
                unsafe { ptx::ld_global_nc_f32(self.slopes.offset(at).address()) }
            });
            let offset = if self.counts_from_last != 0 { work.keys as i32 - work.rows as i32 } else { 0 };
            let first = place.rows.map(|row| place.key as i32 - (row as i32 + offset));
            scores.map(|score, row, column| {
                ptx::fma(-slopes[row], (first[row] + column as i32).unsigned_abs() as f32, score)
            });
        }
        if !self.mask.is_null() {
            let all = scores.0.as_mut();
            // SAFETY: the caller's promise, of rows and keys that are there.
            unsafe {
                if self.paired & PAIRED_MASK != 0 {
                    for_each_pair::<C>(self.mask_strides, work, place, |index, at, is_inside| {
                        let pair = ptx::ld_global_nc_b16_if(self.mask.offset(at).address(), is_inside);
                        all[index] = kept(all[index], pair & 0xff != 0);
                        all[index + 1] = kept(all[index + 1], pair >> 8 != 0);
                    });
                } else {
                    for_each::<C>(self.mask_strides, work, place, |index, at, is_inside| {
                        let byte = ptx::ld_global_nc_b8_if(self.mask.offset(at).address(), is_inside);
                        all[index] = kept(all[index], byte != 0);
                    });
                }
            }
        }
        if !self.blocks.is_null() {
            let [block_rows, block_keys] = self.block();
            let strides = self.block_strides;
            let first = [0, 1].map(|row: usize| {
                self.blocks.offset(strides.of(work, place.heads[row], place.rows[row] / block_rows, 0))
            });
            let key_stride = ptx::opaque_u64(strides.key);
            let has_row = place.rows.map(|row| row < work.rows);
            for (fragment, elements) in scores.0.as_mut().chunks_exact_mut(4).enumerate() {
                // Opaque: quotients of all fragments at a time would take registers.
                let key = ptx::opaque(place.key + 8 * fragment as u32);
                let (block, within) = (key / block_keys, key % block_keys);
                let blocks = [block, block + u32::from(within + 1 == block_keys)];
                for (index, element) in elements.iter_mut().enumerate() {
                    let (row, column) = (index / 2, index % 2);
                    let at = first[row].offset(blocks[column] as u64 * key_stride);
                    let is_inside = has_row[row] && key + (column as u32) < work.keys;
                    // SAFETY: the caller's promise, of rows and keys that are there.
                    let byte = unsafe { ptx::ld_global_nc_b8_if(at.address(), is_inside) };
                    *element = kept(*element, byte != 0);
                }
            }
        }
    }

    /// The score without a value of `head`.
    ///
    /// # Safety
    ///
    /// The pointer is valid if it is not null, and nothing writes there.
    #[inline(always)]
    #[must_use]
    pub unsafe fn sink(&self, head: u32) -> Option<f32> {
        // SAFETY: the caller's promise.
        (!self.sinks.is_null())
            .then(|| unsafe { ptx::ld_global_nc_f32(self.sinks.offset(head as u64).address()) })
    }
}

impl ScoreStrides {
    /// How far an element is from the first.
    #[inline(always)]
    const fn of(self, work: &Work, head: u32, row: u32, key: u32) -> u64 {
        work.sequence as u64 * self.sequence
            + head as u64 * self.head
            + row as u64 * self.row
            + key as u64 * self.key
    }
}

/// A number that is kept, or −∞.
#[inline(always)]
fn kept(number: f32, is_kept: bool) -> f32 {
    if is_kept { number } else { f32::NEG_INFINITY }
}

/// Calls `f` for each score of a thread: with its index, the place of its element in an operand, and whether it has one.
///
/// # Safety
///
/// All lanes of the warp call it.
#[inline(always)]
unsafe fn for_each<C: Accumulators>(
    strides: ScoreStrides,
    work: &Work,
    place: Place,
    mut f: impl FnMut(usize, u64, bool),
) {
    // Opaque: what follows from it for each column is worth no register from one block to the next.
    let stride = ptx::opaque_u64(strides.key);
    let mut at = place.first_of(strides, work);
    let ends = place.ends_of_rows(work);
    for fragment in 0..C::COLUMNS / 8 {
        let first = place.key + 8 * fragment;
        for index in 0..4 {
            let (row, column) = (index / 2, index as u32 % 2);
            let is_inside = first + column < ends[row];
            f(4 * fragment as usize + index, at[row] + column as u64 * stride, is_inside);
        }
        at = at.map(|at| at + 8 * stride);
        if fragment % 2 == 1 {
            // What is loaded for so many columns is all that may be under way: registers are short.
            // SAFETY: the caller's promise.
            unsafe { warp::sync_warp() };
        }
    }
}

/// The same for each pair of neighbouring scores, whose elements are side by side: with the index of the first, and its element's place. Whether there is one is
/// the same for both, or the second is behind the last key.
#[inline(always)]
fn for_each_pair<C: Accumulators>(
    strides: ScoreStrides,
    work: &Work,
    place: Place,
    mut f: impl FnMut(usize, u64, bool),
) {
    // Opaque: places are worth no registers from one block to the next.
    let at = place.first_of(strides, work).map(ptx::opaque_u64);
    let ends = place.ends_of_rows(work);
    for fragment in 0..C::COLUMNS / 8 {
        for row in 0..ROWS {
            let is_inside = place.key + 8 * fragment < ends[row];
            f(4 * fragment as usize + 2 * row, at[row] + 8 * fragment as u64, is_inside);
        }
    }
}

impl Place {
    /// Of both rows, where an operand has the element of the first column.
    #[inline(always)]
    fn first_of(&self, strides: ScoreStrides, work: &Work) -> [u64; ROWS] {
        core::array::from_fn(|row| strides.of(work, self.heads[row], self.rows[row], self.key))
    }

    /// Of both rows, which key is behind the last that an operand has an element for: of a row that is not there, the first.
    #[inline(always)]
    fn ends_of_rows(&self, work: &Work) -> [u32; ROWS] {
        self.rows.map(|row| if row < work.rows { work.keys } else { 0 })
    }
}

/// The hyperbolic tangent, within a few roundings of itself: 1 − 2 / (1 + e²ˣ), which cancels where x is small.
#[inline(always)]
pub(super) fn tanh(x: f32) -> f32 {
    let large = 1.0 - 2.0 * ptx::rcp_approx_ftz(1.0 + ptx::ex2_approx_ftz(x * (2.0 * LOG2_E)));
    // The first terms of the series: the next is below a rounding.
    let square = x * x;
    let series = ptx::fma(square, ptx::fma(square, -17.0 / 315.0, 2.0 / 15.0), -1.0 / 3.0);
    let small = ptx::fma(x * square, series, x);
    if x.abs() < 0.1875 { small } else { large }
}
