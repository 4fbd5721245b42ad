//! The tensors of a launch, and how keys and values come from them.

use core::marker::PhantomData;

use super::copies::{copy, copy_strided};
use super::{PortableElement, PortableShape, PortableTile, StoredKeys};
use crate::KernelParam;
use crate::attention::work::{Place, Work};
use crate::launch::{Global, GlobalMut};
use crate::shared::SharedAddress;
use crate::{ptx, warp};

/// A tensor whose columns are contiguous, and its strides in elements.
#[derive(Clone, Copy, KernelParam)]
#[repr(C)]
pub struct Strided {
    /// The first element.
    pub base: GlobalMut<u8>,
    /// From sequence to sequence, or from page to page.
    pub sequence: u64,
    /// From row to row.
    pub row: u64,
    /// From head to head.
    pub head: u64,
}

impl Strided {
    /// The first element, of type `T`.
    #[inline(always)]
    pub(in crate::attention) const fn first<T>(&self) -> GlobalMut<T> {
        GlobalMut::new(self.base.address())
    }
}

/// Pages of keys and values; `table` is null if there are none, and tensors have sequences.
#[derive(Clone, Copy, KernelParam)]
#[repr(C)]
pub struct Pages {
    /// Of each sequence, which page has its first keys, its next, and so on.
    pub table: Global<u32>,
    /// Elements from one sequence's pages to the next.
    pub sequence: u64,
    /// Keys of a page, at least 1.
    pub size: u32,
    /// Pages: a number beyond the last stands for it.
    pub count: u32,
}

/// The tensors of a launch.
#[derive(Clone, Copy, KernelParam)]
#[repr(C)]
pub struct Tensors {
    /// Q, in rows that start at multiples of 16 bytes.
    pub q: Strided,
    /// K, in the same way.
    pub k: Strided,
    /// V, in the same way.
    pub v: Strided,
    /// O.
    pub o: Strided,
    /// The pages of K and V.
    pub pages: Pages,
    /// Columns of Q and K.
    pub columns: u32,
    /// Columns of V and O.
    pub value_columns: u32,
}

/// Parts of the keys, of which each block has one.
#[derive(Clone, Copy, KernelParam)]
#[repr(C)]
pub struct Parts {
    /// The weighted sums of each part of each row, [as many](Self::columns) f32 each, divided by the sum of weights; aligned to 16 bytes.
    pub sums: GlobalMut<f32>,
    /// The log-sum-exp of each part of each row.
    pub lse: GlobalMut<f32>,
    /// Parts, from 1 to [`MOST`](Self::MOST). If there is one, results are stored instead.
    pub count: u32,
    /// The least keys of a part: a multiple of a block's.
    pub keys: u32,
}

impl Parts {
    /// The most parts: one for each lane of a warp.
    pub const MOST: u32 = warp::SIZE;

    /// What stands for the log-sum-exp of a row that does not count.
    pub const NO_ROW: f32 = f32::INFINITY;

    /// The keys of part `part` of a sequence with `keys` keys, in whole blocks of `of_block`: the first, and the one behind the last.
    ///
    /// They are more than the least only where there are [most](Self::MOST) parts. So they follow from `keys` alone.
    #[inline(always)]
    #[must_use]
    pub(in crate::attention) fn keys_of(&self, part: u32, keys: u32, of_block: u32) -> [u32; 2] {
        let each = keys.div_ceil(self.count.max(1)).next_multiple_of(of_block).max(self.keys);
        [part * each, (part + 1) * each]
    }

    /// Sums of each part of a row with so many columns: whole groups of four.
    #[inline(always)]
    #[must_use]
    pub const fn columns(columns: u32) -> u32 {
        columns.next_multiple_of(4)
    }
}

/// The keys of a sequence and of a head, up to `end`, which are stored as `K`.
#[derive(Clone, Copy)]
pub(super) struct Keys<'a, K> {
    tensors: &'a Tensors,
    work: &'a Work,
    head: u32,
    end: u32,
    of: PhantomData<K>,
}

impl<'a, K> Keys<'a, K> {
    #[inline(always)]
    pub(super) const fn new(tensors: &'a Tensors, work: &'a Work, head: u32, end: u32) -> Self {
        Self { tensors, work, head, end, of: PhantomData }
    }

    /// The place of a key's row.
    ///
    /// # Safety
    ///
    /// The table of pages has the key's, if there is one.
    #[inline(always)]
    unsafe fn row(&self, tensor: Strided, key: u32) -> GlobalMut<K> {
        let Pages { table, sequence, size, count } = self.tensors.pages;
        let (at, row) = if table.is_null() {
            (self.work.place.batch, self.work.place.key + key)
        } else {
            let size = size.max(1);
            let entry = table.offset(self.work.sequence as u64 * sequence + (key / size) as u64);
            // SAFETY: the caller's promise.
            let page = unsafe { ptx::ld_global_nc_f32(entry.address()) }.to_bits();
            (page.min(count.max(1) - 1), key % size)
        };
        let to_row = at as u64 * tensor.sequence + row as u64 * tensor.row;
        tensor.first::<K>().offset(to_row + self.head as u64 * tensor.head)
    }

    /// Has the block's threads copy block `block` of keys and values to the ring's stage `index`, if it is before the end; a group of copies of its own.
    ///
    /// # Safety
    ///
    /// As [`copy`], and nobody reads the stage.
    #[inline(always)]
    pub(super) unsafe fn load<T: PortableElement, S: PortableShape>(&self, block: u32, index: u32)
    where
        K: StoredKeys<T>,
    {
        let rows = PortableTile::<T, S, K>::BLOCK_KEYS;
        let (tensors, key) = (self.tensors, block * rows);
        if key < self.end {
            let count = self.work.keys - key;
            let to = PortableTile::<T, S, K>::stage(index);
            let of_values = to.offset(PortableTile::<T, S, K>::STORED_K_BYTES);
            // SAFETY: the caller's promise; what is copied is there.
            unsafe {
                let (boxes, columns) = (PortableTile::<T, S, K>::STORED_K_BOXES, tensors.columns);
                self.load_one::<T>(tensors.k, key, (to, boxes, rows), count, columns);
                let (boxes, columns) = (PortableTile::<T, S, K>::STORED_V_BOXES, tensors.value_columns);
                self.load_one::<T>(tensors.v, key, (of_values, boxes, rows), count, columns);
            }
        }
        ptx::cp_async_commit_group();
    }

    /// Has the block's threads copy the keys from `key` on, or their values, to boxes of so many rows.
    ///
    /// # Safety
    ///
    /// As [`load`](Self::load).
    #[inline(always)]
    unsafe fn load_one<T: PortableElement>(
        &self,
        tensor: Strided,
        key: u32,
        (to, boxes, rows): (SharedAddress, u32, u32),
        count: u32,
        columns: u32,
    ) where
        K: StoredKeys<T>,
    {
        // SAFETY: the caller's promise.
        unsafe {
            // Of elements that are split, registers are short of what two ways would take.
            if !T::IS_SPLIT && self.tensors.pages.table.is_null() {
                let Place { batch, key: first, .. } = self.work.place;
                let to_row = batch as u64 * tensor.sequence + (first + key) as u64 * tensor.row;
                let row = tensor.first::<K>().offset(to_row + self.head as u64 * tensor.head);
                let rows_of = (row, tensor.row);
                copy_strided::<K>(to, boxes, rows, count, columns, rows_of);
            } else {
                copy::<K>(
                    to,
                    boxes,
                    rows,
                    count,
                    columns,
                    #[inline(always)]
                    |row| self.row(tensor, key + row),
                );
            }
        }
    }
}
