//! Operations on the rows of a matrix: what their kernels share.
//!
//! Some threads, a [`Team`], have a row: a part of a warp up to a block, or the blocks of a cluster. Each loads its chunks of it into
//! registers before it waits for any, so that a row is read once. Wider rows are read in rounds of as many.
//!
//! [`Columns`] says which elements a thread has, and loads and stores them. Which they are follows from the columns' number and the
//! alignment only: other rows never change a row's result.

/// Runs a block for each chunk that a thread has of a round, at most four. A loop would be one: the compiler unrolls none whose body is long, and puts what
/// it indexes into memory.
macro_rules! each_chunk {
    ($chunk:ident of $count:expr => $body:block) => {
        const { assert!($count <= 4, "a thread has at most four chunks of a round") };
        if $count > 0 {
            let $chunk = 0;
            $body
        }
        if $count > 1 {
            let $chunk = 1;
            $body
        }
        if $count > 2 {
            let $chunk = 2;
            $body
        }
        if $count > 3 {
            let $chunk = 3;
            $body
        }
    };
}
pub(crate) use each_chunk;

mod any;
mod columns;
mod element;
mod exponentials;
mod function;
mod staged;
mod team;

pub use any::unpack_any;
pub use columns::{Columns, hidden, hide};
pub use element::RowElement;
pub use exponentials::Exponentials;
pub use function::{
    MOST_PASSES, Reduction, Row, RowFunction, RowFunctionArgs, RowFunctionParams, RowKernels, apply,
    chunks_of, per_chunk,
};
pub use staged::Staged;
pub use team::{OverChunks, SHARED_BYTES, Team};

use crate::float::{Bf16, Element, F16};
use crate::launch::{GlobalMut, KernelParam};

/// Threads of a block.
pub const THREADS: u32 = 256;

/// The element type of an operand whose type the kernel is told when it is launched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct Kind(u32);

impl Kind {
    /// f32.
    pub const F32: Self = Self(0);
    /// f16.
    pub const F16: Self = Self(1);
    /// bf16.
    pub const BF16: Self = Self(2);

    /// Bytes of an element.
    #[inline(always)]
    #[must_use]
    pub const fn bytes(self) -> u32 {
        if self.0 == Self::F32.0 { 4 } else { 2 }
    }
}

// SAFETY: transparent over a `u32`.
unsafe impl KernelParam for Kind {}

/// Rows of elements of any type: an operand of a kernel.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct AnyRows {
    /// The device address of the first element; 0 if there is no such operand.
    pub base: u64,
    /// Elements from one row to the next; 0 if all rows are the same.
    pub stride: u64,
    /// The type of elements.
    pub kind: Kind,
    /// What an element's number is raised by when it is read.
    pub offset: f32,
}

// SAFETY: fields of 8, 8, 4 and 4 bytes, without padding.
unsafe impl KernelParam for AnyRows {}

impl AnyRows {
    /// No operand.
    pub const NONE: Self = Self { base: 0, stride: 0, kind: Kind::F32, offset: 0.0 };

    /// Whether there is such an operand.
    #[inline(always)]
    #[must_use]
    pub const fn is_there(&self) -> bool {
        self.base != 0
    }

    /// The address of a row.
    #[inline(always)]
    #[must_use]
    pub const fn row(&self, row: u32) -> u64 {
        self.base + row as u64 * self.stride * self.kind.bytes() as u64
    }

    /// The address of a row of an operand whose type is known to be `T`.
    #[inline(always)]
    #[must_use]
    pub const fn row_of<T: Element>(&self, row: u32) -> u64 {
        self.base + row as u64 * self.stride * T::BYTES as u64
    }

    /// Rounds a number to the operand's type, and stores it in a column of a row.
    ///
    /// # Safety
    ///
    /// There is such an element, and no other thread touches it.
    #[inline(always)]
    pub unsafe fn store(&self, row: u32, column: u32, value: f32) {
        let at = self.row(row) + column as u64 * self.kind.bytes() as u64;
        // SAFETY: the caller's promise.
        unsafe {
            if self.kind == Kind::F32 {
                <f32 as Element>::store_rounded(GlobalMut::new(at), value);
            } else if self.kind == Kind::F16 {
                F16::store_rounded(GlobalMut::new(at), value);
            } else {
                Bf16::store_rounded(GlobalMut::new(at), value);
            }
        }
    }
}
