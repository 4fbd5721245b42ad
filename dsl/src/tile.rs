//! Tiles: pieces of a matrix in global memory, and their copies in shared memory.
//!
//! An operand of a matrix product is stored K-major: each row is contiguous along the dimension that the product sums
//! over. A block copies `ROWS` rows × `ROW_BYTES` bytes of it at a time, in 16-byte chunks spread over its threads, into a
//! swizzled tile (see [`layout`](crate::layout)). What lies outside the matrix arrives as zeros, so that the product need
//! not know of edges.

use core::marker::PhantomData;

use crate::float::Element;
use crate::launch::{Global, GlobalMut};
use crate::layout::{CHUNK_BYTES, swizzled_chunk};
use crate::ptx;
use crate::shared::SharedAddress;
use crate::thread;

/// A K-major matrix in global memory: `rows` rows of `k` elements, `stride` elements apart.
#[derive(Clone, Copy)]
pub struct Operand<T> {
    /// The first element.
    pub base: Global<T>,
    /// Elements from one row to the next.
    pub stride: u64,
    /// The number of rows.
    pub rows: u32,
    /// Elements of a row.
    pub k: u32,
}

/// The matrix that a kernel writes: `rows` × `columns` elements, rows `stride` elements apart.
#[derive(Clone, Copy)]
pub struct Output<T> {
    /// The first element.
    pub base: GlobalMut<T>,
    /// Elements from one row to the next.
    pub stride: u64,
    /// The number of rows.
    pub rows: u32,
    /// The number of columns.
    pub columns: u32,
}

impl<T: Element> Output<T> {
    /// Whether every row starts at a multiple of `bytes`, a power of two.
    #[inline(always)]
    #[must_use]
    pub fn is_aligned_to(&self, bytes: u32) -> bool {
        (self.base.address() | (self.stride * T::BYTES as u64)) & (bytes as u64 - 1) == 0
    }

    /// Whether every row starts at a multiple of four elements' size, so that four may be stored at a time.
    #[inline(always)]
    #[must_use]
    pub fn is_vector_aligned(&self) -> bool {
        self.is_aligned_to(4 * T::BYTES)
    }

    /// The place of an element.
    #[inline(always)]
    #[must_use]
    pub fn at(&self, row: u32, column: u32) -> GlobalMut<T> {
        self.base.offset(row as u64 * self.stride + column as u64)
    }

    /// Rounds `values` to columns `column`.. of `row` and stores those that lie within the matrix.
    ///
    /// # Safety
    ///
    /// The matrix is valid for writes, no other thread touches these elements, `column` is a multiple of 4, and
    /// `vector_aligned` is what [`is_vector_aligned`](Self::is_vector_aligned) says.
    #[inline(always)]
    pub unsafe fn store_4(&self, row: u32, column: u32, values: [f32; 4], vector_aligned: bool) {
        if row >= self.rows {
            return;
        }
        let at = self.at(row, column);
        if vector_aligned && column + 4 <= self.columns {
            // SAFETY: within the matrix, and aligned as the caller says.
            unsafe { T::store_rounded_4(at, values) }
        } else {
            for i in 0..4 {
                if column + i < self.columns {
                    // SAFETY: within the matrix.
                    unsafe { T::store_rounded(at.offset(i as u64), values[i as usize]) }
                }
            }
        }
    }
}

/// How a 16-byte chunk of an operand is read: what its alignment allows.
pub trait Access: 'static {
    /// Copies a chunk to shared memory, of which the first `bytes` come from `from` and the rest are zeros.
    ///
    /// The copy belongs to the thread's open `cp.async` group, or is complete on return.
    ///
    /// # Safety
    ///
    /// `to` is a multiple of 16 in the block's shared memory that no thread touches until the copy has completed. `from` is
    /// valid for reads of `bytes` ≤ 16 bytes, whole elements, aligned as the implementation asks.
    unsafe fn copy_chunk<T: Element>(to: SharedAddress, from: Global<T>, bytes: u32);
}

/// Base address and row stride are multiples of 16 bytes: one asynchronous copy a chunk.
pub enum Aligned {}

/// Any element-aligned address and stride: element by element.
pub enum Unaligned {}

impl Access for Aligned {
    #[inline(always)]
    unsafe fn copy_chunk<T: Element>(to: SharedAddress, from: Global<T>, bytes: u32) {
        // SAFETY: the caller's promise; `from` is a multiple of 16.
        unsafe { ptx::cp_async_cg_16(to.get(), from.address(), bytes) }
    }
}

impl Access for Unaligned {
    #[inline(always)]
    unsafe fn copy_chunk<T: Element>(to: SharedAddress, from: Global<T>, bytes: u32) {
        if T::BYTES == 4 {
            for i in 0..4 {
                let present = if 4 * i < bytes { 4 } else { 0 };
                // SAFETY: the caller's promise; an element of four bytes is a multiple of 4.
                unsafe {
                    ptx::cp_async_ca_4(to.offset(4 * i).get(), from.offset(i as u64).address(), present)
                }
            }
        } else {
            let element = |i: u32| {
                if 2 * i < bytes {
                    // SAFETY: the caller's promise.
                    unsafe { ptx::ld_global_nc_b16(from.offset(i as u64).address()) as u32 }
                } else {
                    0
                }
            };
            let pair = |i: u32| element(2 * i) | (element(2 * i + 1) << 16);
            // SAFETY: the caller's promise.
            unsafe { ptx::st_shared_v4_b32(to.get(), [pair(0), pair(1), pair(2), pair(3)]) }
        }
    }
}

/// A tile of an operand as a block copies it to shared memory.
pub trait CopyShape: 'static {
    /// Rows of the tile.
    const ROWS: u32;
    /// Bytes of a row: 64 or 128.
    const ROW_BYTES: u32;
    /// Threads that share the copy.
    const THREADS: u32;

    /// Chunks of a row.
    const CHUNKS_PER_ROW: u32 = Self::ROW_BYTES / CHUNK_BYTES;
    /// Rows that the block copies at a time.
    const ROWS_PER_PASS: u32 = Self::THREADS / Self::CHUNKS_PER_ROW;
    /// How many times the block copies so many rows.
    const PASSES: u32 = {
        assert!(Self::THREADS.is_multiple_of(Self::CHUNKS_PER_ROW), "every pass copies whole rows");
        assert!(Self::ROWS.is_multiple_of(Self::ROWS_PER_PASS), "the passes cover the tile exactly");
        assert!(
            (Self::ROWS_PER_PASS * Self::ROW_BYTES).is_multiple_of(1024),
            "the swizzle repeats with every pass"
        );
        Self::ROWS / Self::ROWS_PER_PASS
    };
}

/// One thread's share of copying the tiles of an operand to shared memory.
#[derive(Clone, Copy)]
pub struct TileLoader<T, A, S> {
    /// This thread's first chunk of the first tile along K.
    from: u64,
    /// Bytes between the rows of two passes.
    pass_stride: u64,
    /// Offset of the first chunk in the shared tile.
    to: u32,
    /// Rows of the operand from this thread's first row on; 0 if that row lies outside.
    rows_left: u32,
    /// Bytes of a row from this thread's chunk of the first tile on; negative if the chunk lies outside.
    bytes_left: i32,
    kind: PhantomData<(T, A, S)>,
}

impl<T: Element, A: Access, S: CopyShape> TileLoader<T, A, S> {
    /// The loader of the tiles of `operand` that start at row `first_row`, which lies within it.
    #[inline(always)]
    #[must_use]
    pub fn new(operand: Operand<T>, first_row: u32) -> Self {
        let thread = thread::thread_idx_x();
        let (row, chunk) = (thread / S::CHUNKS_PER_ROW, thread % S::CHUNKS_PER_ROW);
        let row_bytes = operand.stride * T::BYTES as u64;
        Self {
            from: operand.base.address()
                + (first_row + row) as u64 * row_bytes
                + (chunk * CHUNK_BYTES) as u64,
            pass_stride: S::ROWS_PER_PASS as u64 * row_bytes,
            to: swizzled_chunk(S::ROW_BYTES, row, chunk),
            rows_left: (operand.rows - first_row).saturating_sub(row),
            bytes_left: (operand.k * T::BYTES) as i32 - (chunk * CHUNK_BYTES) as i32,
            kind: PhantomData,
        }
    }

    /// Copies tile `step` along K to the shared tile at `to`.
    ///
    /// # Safety
    ///
    /// All threads of the block call it; `to` is a multiple of 1024 with room for the tile, which no thread touches until
    /// the copies have completed; the operand is valid for reads and aligned as `A` asks; `step` · `ROW_BYTES` < 2³¹.
    #[inline(always)]
    pub unsafe fn load(&self, to: SharedAddress, step: u32) {
        let left = self.bytes_left - (step * S::ROW_BYTES) as i32;
        let bytes = if left <= 0 { 0 } else { (left as u32).min(CHUNK_BYTES) };
        let mut from = self.from + (step * S::ROW_BYTES) as u64;
        for pass in 0..S::PASSES {
            let present = if pass * S::ROWS_PER_PASS < self.rows_left { bytes } else { 0 };
            let to = to.offset(self.to + pass * (S::ROWS_PER_PASS * S::ROW_BYTES));
            // SAFETY: `present` counts only bytes within the operand; the rest is the caller's promise.
            unsafe { A::copy_chunk::<T>(to, Global::new(from), present) }
            from += self.pass_stride;
        }
    }
}
