//! Where a thread is, and synchronisation within its block.

use crate::ptx;

macro_rules! index {
    ($($(#[$doc:meta])* $name:ident = $register:ident;)*) => {
        $($(#[$doc])*
        #[inline(always)]
        #[must_use]
        pub fn $name() -> u32 {
            ptx::$register()
        })*
    };
}
index! {
    /// The thread's index in its block, along x.
    thread_idx_x = tid_x;
    /// The thread's index in its block, along y.
    thread_idx_y = tid_y;
    /// The thread's index in its block, along z.
    thread_idx_z = tid_z;
    /// The number of threads of a block, along x.
    block_dim_x = ntid_x;
    /// The number of threads of a block, along y.
    block_dim_y = ntid_y;
    /// The number of threads of a block, along z.
    block_dim_z = ntid_z;
    /// The block's index in the grid, along x.
    block_idx_x = ctaid_x;
    /// The block's index in the grid, along y.
    block_idx_y = ctaid_y;
    /// The block's index in the grid, along z.
    block_idx_z = ctaid_z;
    /// The number of blocks of the grid, along x.
    grid_dim_x = nctaid_x;
    /// The number of blocks of the grid, along y.
    grid_dim_y = nctaid_y;
    /// The number of blocks of the grid, along z.
    grid_dim_z = nctaid_z;
}

/// Waits for every thread of the block; memory accesses before it are visible to all of them after it.
///
/// # Safety
///
/// Every thread of the block that has not exited reaches it the same number of times.
#[inline(always)]
pub unsafe fn sync_threads() {
    // SAFETY: the caller's promise.
    unsafe { ptx::bar_sync() }
}
