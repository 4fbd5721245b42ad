//! Copies of chunks of matrices of any alignment to shared memory.

use crate::float::Element;
use crate::layout::CHUNK_BYTES;
use crate::ptx;
use crate::tile::Operand;

/// A row-major matrix in global memory whose rows are copied in chunks of 16 bytes, with zeros for what is outside.
#[derive(Clone, Copy)]
pub(super) struct Source {
    /// The first element.
    address: u64,
    /// Bytes from one row to the next.
    pitch: u64,
    /// The number of rows.
    rows: u32,
    /// Bytes of a row.
    pub(super) row_bytes: u32,
    /// What address and pitch are multiples of: 16, 4 or 2 bytes.
    alignment: u32,
}

impl Source {
    /// The matrix `operand`; its rows have fewer than 2³¹ bytes.
    #[inline(always)]
    pub(super) fn new<T: Element>(operand: Operand<T>) -> Self {
        let (address, pitch) = (operand.base.address(), operand.stride * T::BYTES as u64);
        let low_bits = (address | pitch) as u32;
        let alignment = if low_bits.is_multiple_of(16) {
            16
        } else if low_bits.is_multiple_of(4) {
            4
        } else {
            2
        };
        Self { address, pitch, rows: operand.rows, row_bytes: operand.k * T::BYTES, alignment }
    }

    /// The first `row_bytes` bytes of its rows.
    #[inline(always)]
    pub(super) fn up_to(self, row_bytes: u32) -> Self {
        Self { row_bytes, ..self }
    }

    /// Copies the chunk `offset` bytes into row `row`, as part of the thread's open group of copies or at once.
    ///
    /// # Safety
    ///
    /// The matrix is valid for reads and nothing writes it while the kernel runs; `to` is a multiple of 16 in the block's shared
    /// memory that no thread touches until the copy has completed.
    #[inline(always)]
    pub(super) unsafe fn copy_chunk<T: Element>(&self, to: u32, row: u32, offset: u32) {
        let left = if row < self.rows { self.row_bytes.saturating_sub(offset) } else { 0 };
        let present = left.min(CHUNK_BYTES);
        let from = self.address + row as u64 * self.pitch + offset as u64;
        // SAFETY: so many bytes lie within the matrix, and are aligned as the first lines of `new` say.
        unsafe {
            if self.alignment == 16 {
                ptx::cp_async_cg_16(to, from, present);
            } else if T::BYTES == 4 || self.alignment == 4 {
                for i in 0..4 {
                    ptx::cp_async_ca_4(to + 4 * i, from + 4 * i as u64, present.saturating_sub(4 * i).min(4));
                }
            } else {
                let half = |i: u32| ptx::ld_global_nc_b16_if(from + 2 * i as u64, 2 * i < present) as u32;
                let pair = |i: u32| half(2 * i) | (half(2 * i + 1) << 16);
                ptx::st_shared_v4_b32(to, [pair(0), pair(1), pair(2), pair(3)]);
            }
        }
    }

    /// Whether every row starts at a multiple of 16 bytes.
    #[inline(always)]
    pub(super) fn is_aligned(&self) -> bool {
        self.alignment == 16
    }

    /// Copies the chunks `offset` bytes into `COUNT` rows, of which the first is `row` and each next one `step` further down, to where
    /// `to` says of each.
    ///
    /// # Safety
    ///
    /// As [`copy_chunk`](Self::copy_chunk); the matrix [is aligned](Self::is_aligned).
    #[inline(always)]
    pub(super) unsafe fn copy_aligned<const COUNT: u32>(
        &self,
        to: impl Fn(u32) -> u32,
        [row, step]: [u32; 2],
        offset: u32,
    ) {
        let left = self.row_bytes.saturating_sub(offset).min(CHUNK_BYTES);
        let rows = self.rows.saturating_sub(row);
        let mut from = self.address + row as u64 * self.pitch + offset as u64;
        let pitch = step as u64 * self.pitch;
        for i in 0..COUNT {
            let present = if i * step < rows { left } else { 0 };
            // SAFETY: so many bytes lie within the matrix.
            unsafe { ptx::cp_async_cg_16(to(i), from, present) }
            from += pitch;
        }
    }
}
