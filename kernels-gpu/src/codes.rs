//! The codes of a generated low-rank update: what each row of X multiplies its rank coordinates with.
//!
//! Several updates run as one whose rank is the sum of theirs: each has some of the columns of V, of the rows of U, and codes of its own.

use core::num::NonZeroU32;

use warpsmith_dsl::float::{Element, HalfElement};
use warpsmith_dsl::gemm::low_rank::{RankCodes, RankColumn};
use warpsmith_dsl::launch::{Global, KernelParam};
use warpsmith_dsl::ptx;
use warpsmith_dsl::shared::SharedAddress;

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

/// The codes of two neighbouring rank coordinates, of which each row's are a word of memory.
pub struct CodeWords<T> {
    first: Global<T>,
    stride: u64,
    scaling: f32,
    /// Bytes of a word: 4, or fewer at the end of the ranks.
    bytes: u32,
}

impl<T> Clone for CodeWords<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for CodeWords<T> {}

impl<T: HalfElement> Codes<T> {
    /// The codes of rank coordinates `rank`, which is even, and `rank` + 1, if each row's are a word of memory: those of a single
    /// update, a row for each row of X, which begins at a word.
    #[inline(always)]
    #[must_use]
    pub fn words_of_rank(&self, rank: u32) -> Option<CodeWords<T>> {
        let (first, stride) = (self.codes[0], self.strides[0]);
        let rows_are_words = (first.address() | (stride * u64::from(T::BYTES))).is_multiple_of(4);
        if self.ends[0] != self.rank() || self.rows[0] != 1 || !rows_are_words {
            return None;
        }
        let bytes = self.rank().saturating_sub(rank).min(2) * T::BYTES;
        Some(CodeWords { first: first.offset(rank as u64), stride, scaling: self.scaling[0], bytes })
    }
}

impl<T: HalfElement> CodeWords<T> {
    /// What all of these codes are multiplied with.
    #[inline(always)]
    #[must_use]
    pub fn scaling(&self) -> [f32; 2] {
        [self.scaling; 2]
    }

    /// Begins to copy the codes of row `row` of X to `to`, by `cp.async`; zeros if `valid` is false, and nothing is read.
    ///
    /// # Safety
    ///
    /// As [`CodesOfRank::scaled`]; `to` is a word of shared memory that nothing touches until the copy has completed.
    #[inline(always)]
    pub unsafe fn copy(&self, row: u32, valid: bool, to: SharedAddress) {
        let from = self.first.offset(row as u64 * self.stride);
        let bytes = if valid { self.bytes } else { 0 };
        // SAFETY: the caller's promise; both are multiples of 4.
        unsafe { ptx::cp_async_ca_4(to.get(), from.address(), bytes) }
    }
}

impl<T: HalfElement> CodesOfRank<T> {
    /// Puts the codes of row `row` of X, of this rank coordinate and of `right`, into a word of shared memory; zeros if `valid` is
    /// false, and nothing is read.
    ///
    /// # Safety
    ///
    /// As [`scaled`](Self::scaled); nothing else touches the word `to`.
    #[inline(always)]
    pub unsafe fn put_beside(&self, right: &Self, row: u32, valid: bool, to: SharedAddress) {
        // SAFETY: the caller's promise.
        unsafe { ptx::st_shared_b32(to.get(), T::pack([self.code(row, valid), right.code(row, valid)])) }
    }
}

impl<T: Element> CodesOfRank<T> {
    /// What the codes are multiplied with.
    #[inline(always)]
    #[must_use]
    pub fn scaling(&self) -> f32 {
        self.scaling
    }

    /// The code of row `row` of X; 0 if `valid` is false, and nothing is read.
    ///
    /// # Safety
    ///
    /// As [`scaled`](Self::scaled).
    #[inline(always)]
    unsafe fn code(&self, row: u32, valid: bool) -> f32 {
        let from = self.first.offset((row / self.rows) as u64 * self.stride);
        // SAFETY: the caller's promise.
        unsafe { T::load_read_only_if(from, valid && self.inside).to_f32() }
    }

    /// The code of row `row` of X times the update's scaling; 0 if `valid` is false, and nothing is read.
    ///
    /// # Safety
    ///
    /// If `valid`, the codes are valid for reads at this row, and nothing writes them while the kernel runs.
    #[inline(always)]
    #[must_use]
    pub unsafe fn scaled(&self, row: u32, valid: bool) -> f32 {
        // SAFETY: the caller's promise.
        self.scaling * unsafe { self.code(row, valid) }
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
