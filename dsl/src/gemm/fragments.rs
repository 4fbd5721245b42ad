//! A warpgroup's accumulators on their way to the output, warp by warp: each warp has 16 of 64 rows.
//!
//! There are two ways. [`store_boxes`] applies the epilogue in registers, rounds into shared memory, and leaves the rest to the copy
//! engine, or to lanes that store whole chunks: for rows that are aligned. What else an epilogue reads comes by the same way:
//! [`fetch_boxes`] has it copied to where the output will be put. [`store_rows`] stages f32 and goes along the rows in a loop: for any alignment.

mod boxes;
mod chunks;
mod rows;
mod staged;

pub use boxes::store_boxes;
pub use chunks::ColumnCache;
pub(super) use rows::prefetch_rows;
pub use rows::store_rows;
pub use staged::{BoxOutput, FragmentPair, OutputElement, fetch_boxes};

use crate::layout::{FRAGMENT_ROWS, STRIP_COLUMNS};
use crate::ptx;
use crate::shared::SharedAddress;
use crate::warp;

/// Rows of a warp's accumulators of one block.
const ROWS: u32 = FRAGMENT_ROWS;
/// Rows of a block of accumulators, which four warps share.
const BLOCK_ROWS: u32 = 64;
/// Bytes of a row of a box.
pub(super) const BOX_ROW_BYTES: u32 = 128;
/// Bytes of a box of the output: 16 rows of 128 bytes.
pub const BOX_BYTES: u32 = ROWS * BOX_ROW_BYTES;

/// Boxes of a warp's staging buffer in which one is filled while the other is stored.
pub const STAGED_BOXES: u32 = 2;
/// Bytes of such a buffer, which are as many as a strip of f32 takes.
pub const STAGING_BYTES: u32 = {
    assert!(STAGED_BOXES * BOX_BYTES == ROWS * STRIP_COLUMNS * 4);
    STAGED_BOXES * BOX_BYTES
};

/// Where a warp's accumulators belong.
#[derive(Clone, Copy)]
pub struct WarpRows {
    /// The thread's lane.
    pub lane: u32,
    /// The matrix.
    pub batch: u32,
    /// The warp's first row.
    pub row: u32,
    /// The first column.
    pub column: u32,
    /// Columns, from the accumulators' first on: all, or of accumulators of 64 rows the first half.
    pub columns: u32,
    /// The warp's staging buffer: as many boxes of shared memory, aligned to 1024.
    pub staging: SharedAddress,
    /// Boxes of the staging buffer: one or [`STAGED_BOXES`]; a constant after inlining. [`store_rows`] takes the latter.
    pub staged_boxes: u32,
    /// Bytes of a row of a box: `BOX_ROW_BYTES`, or for 16-bit types half as many; a constant after inlining. [`store_rows`] takes the
    /// former.
    pub box_row_bytes: u32,
    /// Whether the accumulators leave registers for those of a group of columns beside them; a constant after inlining.
    pub has_registers: bool,
}

/// Waits until the copy engine has read what [`store_boxes`] gave it.
///
/// # Safety
///
/// All lanes of the warp call it.
#[inline(always)]
pub unsafe fn wait_for_stores() {
    ptx::cp_async_bulk_wait_group_read::<0>();
    // SAFETY: all lanes of the warp are here.
    unsafe { warp::sync_warp() };
}
