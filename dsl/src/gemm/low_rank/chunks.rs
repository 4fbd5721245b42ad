//! Rows of the output in chunks of 16 bytes, whole ones and those that are cut or not aligned.

use super::LowRankElement;
use crate::layout::CHUNK_BYTES;
use crate::ptx;
use crate::tile::Output;

/// A lane's chunks of Y, of 16 bytes each, in one column of them.
pub(super) struct Chunks<T> {
    /// Y.
    pub(super) y: Output<T>,
    /// The first one's row.
    pub(super) row: u32,
    /// The first column.
    pub(super) column: u32,
    /// Where the columns end that may be touched.
    pub(super) columns: u32,
    /// Whether every row starts at a multiple of 16 bytes.
    pub(super) aligned: bool,
}

impl<T: LowRankElement> Chunks<T> {
    /// Columns of a chunk.
    const COLUMNS: u32 = CHUNK_BYTES / T::BYTES;

    /// How many columns of the chunk `down` rows further down there are.
    #[inline(always)]
    fn present(&self, down: u32) -> u32 {
        if self.row + down < self.y.rows {
            self.columns.saturating_sub(self.column).min(Self::COLUMNS)
        } else {
            0
        }
    }

    /// Whether the chunks of existing rows are within Y, at multiples of 16 bytes.
    #[inline(always)]
    pub(super) fn are_whole(&self) -> bool {
        self.aligned && self.columns.saturating_sub(self.column) >= Self::COLUMNS
    }

    /// The address of the chunk `down` rows further down.
    #[inline(always)]
    fn at(&self, down: u32) -> u64 {
        self.y.at(self.row + down, self.column).address()
    }

    /// The chunk `down` rows further down if [all are whole](Self::are_whole) and there is such a row, else zeros.
    ///
    /// # Safety
    ///
    /// Y is valid for reads, and no other thread touches the chunk.
    #[inline(always)]
    pub(super) unsafe fn load_whole(&self, down: u32) -> [u32; 4] {
        if !self.are_whole() || self.row + down >= self.y.rows {
            return [0; 4];
        }
        // SAFETY: the caller's promise; it lies within Y.
        unsafe { ptx::ld_global_v4_b32(self.at(down)) }
    }

    /// Stores it, of chunks that [are whole](Self::are_whole), if there is such a row.
    ///
    /// # Safety
    ///
    /// As [`load_whole`](Self::load_whole), for writes.
    #[inline(always)]
    pub(super) unsafe fn store_whole(&self, down: u32, words: [u32; 4]) {
        if self.row + down < self.y.rows {
            // SAFETY: the caller's promise; it lies within Y.
            unsafe { ptx::st_global_v4_b32(self.at(down), words) }
        }
    }

    /// The chunk `down` rows further down, element by element, with zeros for what is not there.
    ///
    /// # Safety
    ///
    /// As [`load_whole`](Self::load_whole).
    #[inline(always)]
    pub(super) unsafe fn load_part(&self, down: u32) -> [u32; 4] {
        let (at, present) = (self.at(down), self.present(down));
        let mut words = [0; 4];
        for i in 0..Self::COLUMNS {
            let from = at + (i * T::BYTES) as u64;
            // SAFETY: so many columns lie within Y.
            unsafe {
                if T::BYTES == 2 {
                    words[i as usize / 2] |=
                        (ptx::ld_global_b16_if(from, i < present) as u32) << (i % 2 * 16);
                } else {
                    words[i as usize] = ptx::ld_global_f32_if(from, i < present).to_bits();
                }
            }
        }
        words
    }

    /// Stores it, element by element.
    ///
    /// # Safety
    ///
    /// As [`load_whole`](Self::load_whole), for writes.
    #[inline(always)]
    pub(super) unsafe fn store_part(&self, down: u32, words: [u32; 4]) {
        let (at, present) = (self.at(down), self.present(down));
        for i in 0..Self::COLUMNS {
            let to = at + (i * T::BYTES) as u64;
            if i >= present {
                continue;
            }
            // SAFETY: so many columns lie within Y.
            unsafe {
                if T::BYTES == 2 {
                    ptx::st_global_b16(to, (words[i as usize / 2] >> (i % 2 * 16)) as u16);
                } else {
                    ptx::st_global_b32(to, words[i as usize]);
                }
            }
        }
    }
}
