//! The tensors of a launch as the copy engine sees them.

use crate::KernelParam;
use crate::launch::TensorMap;
use crate::ptx;
use crate::shared::SharedAddress;
use crate::warpgroup::{BOX_COLUMNS, Boxed};

/// The tensor maps of a launch. Each has the five axes that [`Rows`] says, and boxes of [`BOX_COLUMNS`] columns in the 128-byte swizzle.
#[derive(Clone, Copy)]
pub struct Maps<'a> {
    /// Q, with boxes of 64 rows.
    pub q: &'a TensorMap,
    /// K, with boxes of a key block.
    pub k: &'a TensorMap,
    /// V, with boxes of a key block.
    pub v: &'a TensorMap,
    /// O, with boxes of 16 rows.
    pub o: &'a TensorMap,
    /// Which of them end where sequences do.
    pub ends: Ends,
}

impl<'a> Maps<'a> {
    /// Those of keys and values.
    #[inline(always)]
    #[must_use]
    pub const fn keys(&self) -> KeyMaps<'a> {
        KeyMaps { k: self.k, v: self.v, ends: self.ends }
    }
}

/// Those of [`Maps`] that are of keys and values.
#[derive(Clone, Copy)]
pub struct KeyMaps<'a> {
    /// K, with boxes of a key block.
    pub k: &'a TensorMap,
    /// V, with boxes of a key block.
    pub v: &'a TensorMap,
    /// Whether V ends where sequences do.
    pub ends: Ends,
}

/// Which tensors end for the copy engine where a sequence does, not only where they do themselves. Of Q and K what is behind a sequence is not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, KernelParam)]
#[repr(C)]
pub struct Ends {
    /// 1 if V does, else 0.
    pub v: u32,
    /// Rows of V from one sequence to the next, where V does and sequences are padded.
    pub v_sequence: u32,
    /// 1 if O does, else 0.
    pub o: u32,
    /// Keeps the size a multiple of eight; its value is not read.
    pub reserved: u32,
}

/// Rows of a tensor that a box has, from `first` on.
///
/// For the copy engine a tensor has five axes: columns, rows, rows again, heads, sequences. Where a tensor ends only where it does itself, the first axis of rows has
/// all and the second has one.
///
/// Where it ends with each sequence, both have the stride of a row, and the first has [`FAR`](Self::FAR) rows. A box of which `count` rows are to be copied begins
/// so many before the end of that axis, and at `first + count` along the second: `FAR` rows too far. The last axis takes that back. Its stride is 2³⁴ bytes less a row,
/// and its index `FAR`, so that it adds 2⁶⁴ bytes, which is nothing, less `FAR` rows.
#[derive(Clone, Copy)]
pub struct Rows {
    /// The first row, in the tensor.
    pub(super) first: u32,
    /// Rows from it to the end of the sequence.
    pub(super) count: u32,
    /// Rows of the box.
    pub(super) of_box: u32,
    pub(super) head: u32,
    pub(super) batch: u32,
    /// Whether the tensor ends with the sequence.
    pub(super) ends: bool,
}

impl Rows {
    /// Rows along the first axis of them, and the index along the last, of a tensor that ends with each sequence.
    pub const FAR: u32 = 1 << 30;
    /// What the stride of the last axis is less than by a row, in bytes.
    pub const WRAP: u64 = 1 << 34;

    /// `of_box` rows from row `first` of a tensor that ends where it does itself.
    #[inline(always)]
    pub(in crate::attention) const fn in_tensor(first: u32, of_box: u32, head: u32, batch: u32) -> Self {
        Self { first, count: 0, of_box, head, batch, ends: false }
    }

    /// `of_box` rows from row `first` of a tensor that ends with each sequence, of which `count` are to be copied.
    #[inline(always)]
    pub(in crate::attention) const fn in_sequence(first: u32, count: u32, of_box: u32, head: u32) -> Self {
        Self { first, count, of_box, head, batch: 0, ends: true }
    }

    /// The coordinates of the box whose first column is `column`.
    #[inline(always)]
    pub(super) fn box_at(self, column: u32) -> [i32; 5] {
        let count = self.count.min(self.of_box);
        let at = if self.ends {
            [column, Self::FAR - count, self.first + count, self.head, Self::FAR]
        } else {
            [column, self.first, 0, self.head, self.batch]
        };
        at.map(|index| index as i32)
    }

    /// Has `boxes` boxes copied to `to`.
    ///
    /// # Safety
    ///
    /// As [`ptx::tma_load_5d`].
    #[inline(always)]
    pub(in crate::attention) unsafe fn load(self, map: &TensorMap, to: SharedAddress, full: u32, boxes: u32) {
        // Opaque: the one thread that does it has few registers, and time.
        for index in 0..ptx::opaque(boxes) {
            let to = to.offset(index * Boxed::bytes(self.of_box, 1));
            // SAFETY: the caller's promise.
            unsafe { ptx::tma_load_5d(to.get(), map.address(), self.box_at(index * BOX_COLUMNS), full) };
        }
    }
}
