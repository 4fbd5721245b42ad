//! The warp: 32 threads that run in step.

use crate::{ptx, thread};

/// Threads in a warp.
pub const SIZE: u32 = 32;

/// The thread's lane in its warp, 0 to 31.
#[inline(always)]
#[must_use]
pub fn lane_id() -> u32 {
    ptx::laneid()
}

/// The warp's index in its block, for blocks that extend along x only.
#[inline(always)]
#[must_use]
pub fn warp_id() -> u32 {
    thread::thread_idx_x() / SIZE
}

/// Waits for all 32 lanes; memory accesses before it are visible to the warp after it.
///
/// # Safety
///
/// All lanes of the warp reach it.
#[inline(always)]
pub unsafe fn sync_warp() {
    // SAFETY: all lanes execute it with the full mask.
    unsafe { ptx::bar_warp_sync(u32::MAX) }
}
