//! Host memory blocks, aligned for any element type and for vector instructions.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::fmt;
use std::ptr::NonNull;
use std::slice;

use parking_lot::{RecursiveRwLock, RecursiveRwLockReadGuard, RecursiveRwLockWriteGuard};

/// The alignment of every block: a cache line, and a multiple of every element's alignment.
pub(crate) const ALIGNMENT: usize = 64;

/// A zero-initialised block of host memory.
pub(crate) struct HostBytes {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the block is owned, and reached only through `&self` for reading and `&mut self` for writing.
unsafe impl Send for HostBytes {}
// SAFETY: as above.
unsafe impl Sync for HostBytes {}

impl HostBytes {
    /// A block of `bytes` zeros, or `None` if there is no memory for it.
    pub(crate) fn zeroed(bytes: usize) -> Option<Self> {
        let layout = Layout::from_size_align(bytes, ALIGNMENT).ok()?;
        if bytes == 0 {
            return Some(Self { start: NonNull::without_provenance(ALIGNMENT.try_into().ok()?), bytes });
        }
        // SAFETY: the layout's size is not zero.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        Some(Self { start, bytes })
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        // SAFETY: the block holds `bytes` initialised bytes.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.bytes) }
    }

    pub(crate) fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: the block holds `bytes` initialised bytes, borrowed exclusively.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.bytes) }
    }
}

impl Drop for HostBytes {
    fn drop(&mut self) {
        if self.bytes != 0 {
            // SAFETY: allocated by `zeroed` with this very layout, which was valid there.
            unsafe { dealloc(self.start.as_ptr(), Layout::from_size_align_unchecked(self.bytes, ALIGNMENT)) };
        }
    }
}

impl fmt::Debug for HostBytes {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "HostBytes({} bytes)", self.bytes)
    }
}

/// The memory of a CPU tensor: shared by its views, so locked while it is read or written.
#[derive(Debug)]
pub(crate) struct HostMemory(RecursiveRwLock<HostBytes>);

impl HostMemory {
    pub(crate) fn new(bytes: HostBytes) -> Self {
        Self(RecursiveRwLock::new(bytes))
    }

    /// Locks for reading. A thread may hold several such locks of one block: two operands can share memory.
    pub(crate) fn read(&self) -> RecursiveRwLockReadGuard<'_, HostBytes> {
        self.0.read()
    }

    /// Locks for writing. The caller holds no lock of this block.
    pub(crate) fn write(&self) -> RecursiveRwLockWriteGuard<'_, HostBytes> {
        self.0.write()
    }
}
