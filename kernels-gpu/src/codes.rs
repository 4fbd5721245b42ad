//! The codes of a generated low-rank update: what each row of X multiplies its rank coordinates with.
//!
//! Several updates run as one whose rank is the sum of theirs: each has some of the columns of V, of the rows of U, and codes of its own.

use core::num::NonZeroU32;

use warpsmith_dsl::float::Element;
use warpsmith_dsl::gemm::low_rank::{RankCodes, RankColumn};
use warpsmith_dsl::launch::{Global, KernelParam};
use warpsmith_dsl::ptx;

/// The most updates that run as one.
pub const MAX_UPDATES: usize = 8;

/// The codes of up to [`MAX_UPDATES`] updates. A kernel parameter.
#[repr(C)]
pub struct Codes<T> {
    /// The codes of each update: a row for some neighbouring rows of X, contiguous along the rank.
    pub codes: [Global<T>; MAX_UPDATES],
    /// Elements from one row of codes to the next.
    pub strides: [u64; MAX_UPDATES],
    /// Where the rank coordinates of each update end; they begin where those before end. Of updates that are not there, the total.
    pub ends: [u32; MAX_UPDATES],
    /// Rows of X that share a row of codes, at least 1.
    pub rows: [u32; MAX_UPDATES],
    /// What each update is multiplied with.
    pub scaling: [f32; MAX_UPDATES],
}

// A derived `Clone` would ask for it of the element type.
impl<T> Clone for Codes<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Codes<T> {}

// SAFETY: a fixed layout of kernel parameters, without padding: sixteen fields of eight bytes, then twenty-four of four.
unsafe impl<T: 'static> KernelParam for Codes<T> {}

/// The codes of one rank coordinate.
pub struct CodesOfRank<T> {
    first: Global<T>,
    stride: u64,
    rows: NonZeroU32,
    scaling: f32,
    /// Whether there is such a coordinate.
    inside: bool,
}

impl<T> Clone for CodesOfRank<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for CodesOfRank<T> {}

impl<T: Element> Codes<T> {
    /// The sum of the updates' ranks.
    #[inline(always)]
    #[must_use]
    pub fn rank(&self) -> u32 {
        self.ends[MAX_UPDATES - 1]
    }

    /// The codes of rank coordinate `rank`; past the last, codes that are zero.
    ///
    /// # Safety
    ///
    /// `rows` holds no zero.
    #[inline(always)]
    #[must_use]
    pub unsafe fn of_rank(&self, rank: u32) -> CodesOfRank<T> {
        let (mut first, mut begin) = (self.codes[0].address(), 0);
        let (mut stride, mut rows, mut scaling) = (self.strides[0], self.rows[0], self.scaling[0].to_bits());
        // Masks, opaque ones: of selections the compiler would make a selection among addresses, and copy the parameter to local memory
        // for it.
        for update in 1..MAX_UPDATES {
            let behind = rank >= self.ends[update - 1];
            let mask = ptx::opaque(0u32.wrapping_sub(behind.into()));
            let wide = mask as u64 | (mask as u64) << 32;
            let pick = |before: u32, behind: u32| (before & !mask) | (behind & mask);
            let pick_wide = |before: u64, behind: u64| (before & !wide) | (behind & wide);
            first = pick_wide(first, self.codes[update].address());
            stride = pick_wide(stride, self.strides[update]);
            begin = pick(begin, self.ends[update - 1]);
            rows = pick(rows, self.rows[update]);
            scaling = pick(scaling, self.scaling[update].to_bits());
        }
        let inside = rank < self.rank();
        // SAFETY: the caller's promise.
        let rows = unsafe { NonZeroU32::new_unchecked(rows) };
        let first = Global::new(first).offset((rank - begin) as u64);
        CodesOfRank { first, stride, rows, scaling: f32::from_bits(scaling), inside }
    }
}

impl<T: Element> CodesOfRank<T> {
    /// The code of row `row` of X times the update's scaling; 0 if `valid` is false, and nothing is read.
    ///
    /// # Safety
    ///
    /// If `valid`, the codes are valid for reads at this row, and nothing writes them while the kernel runs.
    #[inline(always)]
    #[must_use]
    pub unsafe fn scaled(&self, row: u32, valid: bool) -> f32 {
        let from = self.first.offset((row / self.rows) as u64 * self.stride);
        // SAFETY: the caller's promise.
        self.scaling * unsafe { T::load_read_only_if(from, valid && self.inside).to_f32() }
    }
}

/// The kernels that take codes ask that `rows` holds no zero.
impl<T: Element> RankCodes for Codes<T> {
    #[inline(always)]
    fn of_rank(&self, rank: u32) -> RankColumn {
        // SAFETY: a kernel's promise.
        let CodesOfRank { first, stride, rows, scaling, inside } = unsafe { Codes::of_rank(self, rank) };
        RankColumn {
            address: first.address(),
            pitch: stride * T::BYTES as u64,
            rows: if inside { rows.get() } else { 0 },
            scaling,
        }
    }
}
