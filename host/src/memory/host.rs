//! Host memory blocks, aligned for any element type and for vector instructions.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::fmt;
use std::ptr::NonNull;
use std::slice;

use std::sync::Arc;

use parking_lot::RwLock;

use crate::device::cpu::out_of_memory;
use crate::error::Result;

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

/// `length` zeros on the host, or the error if there is no memory for them.
pub(crate) fn zeros<T: bytemuck::Zeroable>(operation: &'static str, length: usize) -> Result<Vec<T>> {
    bytemuck::allocation::try_zeroed_vec(length)
        .map_err(|()| out_of_memory(operation, length.saturating_mul(size_of::<T>())))
}

/// The memory of a CPU tensor, shared by its views.
///
/// A reader takes a snapshot, and a writer that finds one taken writes to a copy. So the lock is never held over more
/// than copying bytes: a thread that waits within parallel work may run any other task of its pool, and one that held a
/// lock meanwhile could wait for itself.
#[derive(Debug)]
pub(crate) struct HostMemory(RwLock<Arc<HostBytes>>);

impl HostMemory {
    pub(crate) fn new(bytes: HostBytes) -> Self {
        Self(RwLock::new(Arc::new(bytes)))
    }

    /// The bytes as they are now; later writes do not change them.
    pub(crate) fn snapshot(&self) -> Arc<HostBytes> {
        self.0.read().clone()
    }

    /// Changes the bytes by `change`, which must not wait for other threads. `None` if there are snapshots to spare and
    /// no memory for a copy.
    pub(crate) fn write<R>(&self, change: impl FnOnce(&mut [u8]) -> R) -> Option<R> {
        let mut block = self.0.write();
        if Arc::get_mut(&mut block).is_none() {
            let mut copy = HostBytes::zeroed(block.bytes)?;
            copy.as_mut_slice().copy_from_slice(block.as_slice());
            *block = Arc::new(copy);
        }
        Arc::get_mut(&mut block).map(|block| change(block.as_mut_slice()))
    }

    /// Puts `bytes`, of the same length, in the place of the bytes.
    pub(crate) fn replace(&self, bytes: HostBytes) {
        let mut block = self.0.write();
        debug_assert_eq!(block.bytes, bytes.bytes);
        *block = Arc::new(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::{HostBytes, HostMemory};

    #[test]
    fn a_snapshot_is_neither_waited_for_nor_changed_by_a_write() {
        let memory = HostMemory::new(HostBytes::zeroed(4).expect("four bytes"));
        let before = memory.snapshot();
        assert_eq!(memory.write(|bytes| bytes[1] = 7), Some(()));
        assert_eq!(before.as_slice(), [0; 4]);
        assert_eq!(memory.snapshot().as_slice(), [0, 7, 0, 0]);
    }

    #[test]
    fn a_write_without_snapshots_is_in_place() {
        let memory = HostMemory::new(HostBytes::zeroed(4).expect("four bytes"));
        let start = memory.snapshot().as_slice().as_ptr();
        assert_eq!(memory.write(|bytes| bytes.fill(1)), Some(()));
        assert_eq!(memory.snapshot().as_slice().as_ptr(), start);
    }
}
