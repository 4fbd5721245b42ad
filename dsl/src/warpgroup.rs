//! Products of a warpgroup as functions of values: accumulators in registers, matrices in shared memory.

use crate::pipeline::Operand;
use crate::ptx::{self, Accumulators, MatrixDescriptor, Wgmma, WgmmaHalfRegisters};
use crate::thread;
use crate::warp;

/// Threads of a warpgroup.
pub const THREADS: u32 = 4 * warp::SIZE;
/// Rows of a product, 16 for each warp.
pub const ROWS: u32 = 64;
/// Rows of a warp.
pub const WARP_ROWS: u32 = 16;
/// Bytes of a row of a box: the width of the swizzle.
pub const BOX_ROW_BYTES: u32 = 128;
/// Columns of a box.
pub const BOX_COLUMNS: u32 = BOX_ROW_BYTES / 2;
/// Indices along K that one instruction takes.
pub const STEP: u32 = 16;

/// Which of the block's warpgroups this thread belongs to.
#[inline(always)]
#[must_use]
pub fn index() -> u32 {
    thread::thread_idx_x() / THREADS
}

/// Waits for the turn of the block's warpgroup `index` of several that issue products one after the other.
///
/// # Safety
///
/// All warps of the warpgroup call it. Each turn is [passed](pass_turn) on, the first one by the last warpgroup, and the last one is waited for. Nothing else uses the
/// block's barriers 1 and on.
#[inline(always)]
pub unsafe fn wait_for_turn(index: u32) {
    // SAFETY: two warpgroups come to the barrier: one that waits, one that has passed the turn.
    unsafe { ptx::bar_sync_at(1 + index, 2 * THREADS) }
}

/// Gives the turn to the warpgroup behind `index`, of `count`.
///
/// # Safety
///
/// As [`wait_for_turn`].
#[inline(always)]
pub unsafe fn pass_turn(index: u32, count: u32) {
    let next = if index + 1 == count { 0 } else { index + 1 };
    // SAFETY: as there.
    unsafe { ptx::bar_arrive_at(1 + next, 2 * THREADS) }
}

/// Has the warps of the block's warpgroup `index` wait for each other, of `count` that take turns.
///
/// # Safety
///
/// All warps of the warpgroup call it. Nothing else uses the block's barriers from 1 on.
#[inline(always)]
pub unsafe fn sync_own(index: u32, count: u32) {
    // SAFETY: the warpgroup comes to a barrier of its own, behind those of the turns; a block has 16, for at most seven warpgroups with two each.
    unsafe { ptx::bar_sync_at(1 + count + index, THREADS) }
}

/// A matrix of 16-bit elements in shared memory, in boxes of [`BOX_COLUMNS`] columns and all of its rows, one box after the other, as the copy
/// engine writes them in the 128-byte swizzle.
#[derive(Clone, Copy)]
pub struct Boxed {
    first: Operand,
    rows: u32,
}

impl Boxed {
    /// Bytes of a matrix of `rows` rows, a multiple of 8, in `boxes` boxes.
    #[must_use]
    pub const fn bytes(rows: u32, boxes: u32) -> u32 {
        assert!(rows.is_multiple_of(8), "boxes are whole units of the swizzle");
        boxes * rows * BOX_ROW_BYTES
    }

    /// The matrix of `rows` rows at `first`, aligned to 1024 bytes.
    #[inline(always)]
    #[must_use]
    pub fn at(first: Operand, rows: u32) -> Self {
        Self { first, rows }
    }

    /// All rows, and along K columns 16 · `step`..
    #[inline(always)]
    fn rows(self, step: u32) -> MatrixDescriptor {
        let steps = BOX_COLUMNS / STEP;
        let rows = self.first.offset(Self::bytes(self.rows, step / steps));
        rows.rows_of_128_bytes().advance(step % steps * (STEP * 2))
    }

    /// The columns as rows of an operand, and along K rows 16 · `step`..
    #[inline(always)]
    fn columns(self, step: u32) -> MatrixDescriptor {
        self.first.panels_of_128_bytes(Self::bytes(self.rows, 1)).advance(step * STEP * BOX_ROW_BYTES)
    }
}

/// An operand A in registers: four for each 16 indices along K.
pub trait RegisterOperand: AsRef<[[u32; 4]]> + AsMut<[[u32; 4]]> + Copy {
    /// Steps of 16 indices.
    const STEPS: u32;

    /// The operand whose registers `f` gives, by step and number.
    fn from_fn(f: impl Fn(usize, usize) -> u32) -> Self;
}

impl<const STEPS: usize> RegisterOperand for [[u32; 4]; STEPS] {
    const STEPS: u32 = STEPS as u32;

    #[inline(always)]
    fn from_fn(f: impl Fn(usize, usize) -> u32) -> Self {
        core::array::from_fn(|step| core::array::from_fn(|register| f(step, register)))
    }
}

/// Begins `c = a bᵀ` over the first 16 · `steps` columns of both: a group of its own.
///
/// # Safety
///
/// As [`Wgmma::wgmma`]: all warps of the warpgroup call it, and nothing touches `c` before a wait for the group. `a` has 64 rows, and `b` as many as `c`
/// has columns.
#[inline(always)]
pub unsafe fn begin_product<T: Wgmma<C>, C: Accumulators>(c: &mut C, a: Boxed, b: Boxed, steps: u32) {
    // SAFETY: the caller's promise.
    unsafe {
        c.hold();
        ptx::wgmma_fence();
        for step in 0..steps {
            T::wgmma_if::<false, false>(c, a.rows(step), b.rows(step), step);
        }
        ptx::wgmma_commit_group();
    }
}

/// Begins `c += a b`, where `a` is in registers and has as many columns as `b` has rows: a group of its own.
///
/// # Safety
///
/// As [`begin_product`], and nothing touches `a` before a wait for the group, either. `b` has boxes for all columns of `c`.
#[inline(always)]
pub unsafe fn begin_sum<T: WgmmaHalfRegisters<C>, C: Accumulators, A: RegisterOperand>(
    c: &mut C,
    a: &mut A,
    b: Boxed,
) {
    // SAFETY: the caller's promise.
    unsafe {
        c.hold();
        a.as_mut().iter_mut().for_each(ptx::hold_registers);
        ptx::wgmma_fence();
        for (step, a) in a.as_ref().iter().enumerate() {
            T::wgmma_registers(c, a, b.columns(step as u32));
        }
        ptx::wgmma_commit_group();
    }
}

/// Ends products that a wait has waited for: their sums, and the registers that they read, may be touched again.
#[inline(always)]
pub fn end_sum<C: Accumulators, A: RegisterOperand>(c: &mut C, a: &mut A) {
    c.hold();
    a.as_mut().iter_mut().for_each(ptx::hold_registers);
}
