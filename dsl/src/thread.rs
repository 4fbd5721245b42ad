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

/// The thread's number in the grid, which no other thread has: x runs fastest, then y, then z, in the block and in the grid.
///
/// In one dimension it is `block_idx_x() * block_dim_x() + thread_idx_x()`.
#[inline(always)]
#[must_use]
pub fn index_1d() -> ThreadIndex {
    let block = (block_idx_z() as u64 * grid_dim_y() as u64 + block_idx_y() as u64) * grid_dim_x() as u64
        + block_idx_x() as u64;
    ThreadIndex(block * crate::block::size() as u64 + crate::block::thread_rank() as u64)
}

/// The thread's column (along x) and row (along y) in the grid, which no other thread has.
///
/// In a grid with threads along z, those but the first along z have a row that no matrix has.
#[inline(always)]
#[must_use]
pub fn index_2d() -> ThreadIndex2d {
    let is_first = thread_idx_z() == 0 && block_idx_z() == 0;
    let row = block_idx_y() as u64 * block_dim_y() as u64 + thread_idx_y() as u64;
    let column = block_idx_x() as u64 * block_dim_x() as u64 + thread_idx_x() as u64;
    ThreadIndex2d { row: if is_first { row } else { u64::MAX }, column }
}

/// The number of threads of the grid.
#[inline(always)]
#[must_use]
pub fn grid_size() -> usize {
    let blocks = grid_dim_x() as u64 * grid_dim_y() as u64 * grid_dim_z() as u64;
    (blocks * crate::block::size() as u64) as usize
}

/// The indices below `end` that this thread has if the grid's threads take them round-robin: for any number of elements and of threads.
#[inline(always)]
pub fn indices(end: usize) -> impl Iterator<Item = ThreadIndex> {
    let step = grid_size() as u64;
    let mut next = index_1d().0;
    core::iter::from_fn(move || {
        let own = ThreadIndex(next);
        next = next.saturating_add(step);
        (own.get() < end).then_some(own)
    })
}

/// An index that one thread of the grid alone has: what it names in a [`GlobalSliceMut`](crate::slice::GlobalSliceMut) is this thread's.
#[derive(Clone, Copy)]
pub struct ThreadIndex(u64);

impl ThreadIndex {
    /// The index.
    #[inline(always)]
    #[must_use]
    pub fn get(self) -> usize {
        self.0 as usize
    }
}

/// A row and a column that one thread of the grid alone has, as [`ThreadIndex`].
#[derive(Clone, Copy)]
pub struct ThreadIndex2d {
    row: u64,
    column: u64,
}

impl ThreadIndex2d {
    /// The row.
    #[inline(always)]
    #[must_use]
    pub fn row(self) -> usize {
        self.row as usize
    }

    /// The column.
    #[inline(always)]
    #[must_use]
    pub fn column(self) -> usize {
        self.column as usize
    }
}
