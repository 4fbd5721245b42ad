//! The codes of a low-rank update, as a kernel looks them up.

use super::LowRankElement;
use crate::launch::Global;
use crate::ptx;

/// What the rank coordinates of each row are multiplied with.
pub trait RankCodes {
    /// The codes of rank coordinate `rank`.
    fn of_rank(&self, rank: u32) -> RankColumn;
}

/// The codes of a rank coordinate.
#[derive(Clone, Copy)]
pub struct RankColumn {
    /// The address of the first.
    pub address: u64,
    /// Bytes from one to the next.
    pub pitch: u64,
    /// Rows of X that share one; 0 if there is no such coordinate.
    pub rows: u32,
    /// What all of them are multiplied with.
    pub scaling: f32,
}

impl RankColumn {
    /// Bytes in shared memory.
    pub(super) const BYTES: u32 = 24;
    /// Where the scaling is in it.
    pub(super) const SCALING_AT: u32 = 20;

    /// Puts it into shared memory.
    ///
    /// # Safety
    ///
    /// `at` is [`BYTES`](Self::BYTES) bytes of shared memory, a multiple of 8, that no other thread touches.
    #[inline(always)]
    pub(super) unsafe fn put(&self, at: u32) {
        let words = |number: u64| [number as u32, (number >> 32) as u32].map(f32::from_bits);
        // SAFETY: the caller's promise.
        unsafe {
            ptx::st_shared_v2_f32(at, words(self.address));
            ptx::st_shared_v2_f32(at + 8, words(self.pitch));
            ptx::st_shared_v2_f32(at + 16, [f32::from_bits(self.rows), self.scaling]);
        }
    }

    /// What stands there.
    ///
    /// # Safety
    ///
    /// It was put there, and that is visible to this thread.
    #[inline(always)]
    pub(super) unsafe fn get(at: u32) -> Self {
        // SAFETY: the caller's promise.
        let words = |at: u32| unsafe { ptx::ld_shared_v2_f32(at).map(f32::to_bits) };
        let number = |[low, high]: [u32; 2]| low as u64 | (high as u64) << 32;
        let [rows, scaling] = words(at + 16);
        Self {
            address: number(words(at)),
            pitch: number(words(at + 8)),
            rows,
            scaling: f32::from_bits(scaling),
        }
    }

    /// The bits of the code of row `row`; zero if `valid` is false or there is no such coordinate.
    ///
    /// # Safety
    ///
    /// If `valid` and there is such a coordinate, the code is valid for reads, and nothing writes it while the kernel runs.
    #[inline(always)]
    pub(super) unsafe fn code_bits<T: LowRankElement>(&self, row: u32, valid: bool) -> u32 {
        let from = self.address + (row / self.rows.max(1)) as u64 * self.pitch;
        // SAFETY: the caller's promise.
        unsafe { T::load_code_bits(Global::new(from), valid && self.rows != 0) }
    }
}
