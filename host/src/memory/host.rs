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
///
/// Memory that is somebody else's stays where it is: a snapshot of it is a copy, and writes are in place.
#[derive(Debug)]
pub(crate) struct HostMemory(Kind);

#[derive(Debug)]
enum Kind {
    Own(RwLock<Arc<HostBytes>>),
    Foreign(RwLock<ForeignBytes>),
}

/// A block of host memory that is somebody else's.
#[derive(Debug)]
struct ForeignBytes {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: it is reached only through `&self` for reading and `&mut self` for writing, and its owner lets any thread use it.
unsafe impl Send for ForeignBytes {}
// SAFETY: as above.
unsafe impl Sync for ForeignBytes {}

impl ForeignBytes {
    fn as_slice(&self) -> &[u8] {
        // SAFETY: valid for reads as long as it is adopted.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.bytes) }
    }

    fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: only what is valid for writes is written.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.bytes) }
    }
}

impl HostMemory {
    pub(crate) fn new(bytes: HostBytes) -> Self {
        Self(Kind::Own(RwLock::new(Arc::new(bytes))))
    }

    /// Memory that is somebody else's.
    ///
    /// # Safety
    ///
    /// It is valid for reads as long as this lives, and for writes if it is ever written; nobody else writes it meanwhile, or reads it
    /// while it is written.
    pub(crate) unsafe fn foreign(start: NonNull<u8>, bytes: usize) -> Self {
        Self(Kind::Foreign(RwLock::new(ForeignBytes { start, bytes })))
    }

    /// How many bytes there are.
    pub(crate) fn bytes(&self) -> usize {
        match &self.0 {
            Kind::Own(block) => block.read().bytes,
            Kind::Foreign(block) => block.read().bytes,
        }
    }

    /// The bytes as they are now; later writes do not change them. `None` if there is no memory for a copy.
    pub(crate) fn snapshot(&self) -> Option<Arc<HostBytes>> {
        match &self.0 {
            Kind::Own(block) => Some(block.read().clone()),
            Kind::Foreign(block) => copy_of(block.read().as_slice()).map(Arc::new),
        }
    }

    /// Changes the bytes by `change`, which must not wait for other threads. `None` if there are snapshots to spare and
    /// no memory for a copy.
    pub(crate) fn write<R>(&self, change: impl FnOnce(&mut [u8]) -> R) -> Option<R> {
        let block = match &self.0 {
            Kind::Own(block) => block,
            Kind::Foreign(block) => return Some(change(block.write().as_mut_slice())),
        };
        let mut block = block.write();
        if Arc::get_mut(&mut block).is_none() {
            let copy = copy_of(block.as_slice())?;
            *block = Arc::new(copy);
        }
        Arc::get_mut(&mut block).map(|block| change(block.as_mut_slice()))
    }

    /// Puts `bytes`, of the same length, in the place of the bytes.
    pub(crate) fn replace(&self, bytes: HostBytes) {
        debug_assert_eq!(self.bytes(), bytes.bytes);
        match &self.0 {
            Kind::Own(block) => *block.write() = Arc::new(bytes),
            Kind::Foreign(block) => block.write().as_mut_slice().copy_from_slice(bytes.as_slice()),
        }
    }
}

fn copy_of(bytes: &[u8]) -> Option<HostBytes> {
    let mut copy = HostBytes::zeroed(bytes.len())?;
    copy.as_mut_slice().copy_from_slice(bytes);
    Some(copy)
}

#[cfg(test)]
mod tests {
    use super::{HostBytes, HostMemory};

    #[test]
    fn a_snapshot_is_neither_waited_for_nor_changed_by_a_write() {
        let memory = HostMemory::new(HostBytes::zeroed(4).expect("four bytes"));
        let before = memory.snapshot().unwrap();
        assert_eq!(memory.write(|bytes| bytes[1] = 7), Some(()));
        assert_eq!(before.as_slice(), [0; 4]);
        assert_eq!(memory.snapshot().unwrap().as_slice(), [0, 7, 0, 0]);
    }

    #[test]
    fn a_write_without_snapshots_is_in_place() {
        let memory = HostMemory::new(HostBytes::zeroed(4).expect("four bytes"));
        let start = memory.snapshot().unwrap().as_slice().as_ptr();
        assert_eq!(memory.write(|bytes| bytes.fill(1)), Some(()));
        assert_eq!(memory.snapshot().unwrap().as_slice().as_ptr(), start);
    }

    #[test]
    fn foreign_memory_is_written_in_place_and_read_as_it_is() {
        let mut bytes = vec![0u8; 5];
        let start = std::ptr::NonNull::new(bytes.as_mut_ptr()).unwrap();
        // SAFETY: the vector outlives the memory, and is used again only when that is gone.
        let memory = unsafe { HostMemory::foreign(start, 5) };
        let before = memory.snapshot().unwrap();
        assert_eq!(memory.write(|bytes| bytes[1] = 7), Some(()));
        assert_eq!(
            (before.as_slice(), memory.snapshot().unwrap().as_slice()),
            (&[0; 5][..], &[0, 7, 0, 0, 0][..])
        );
        let mut all = HostBytes::zeroed(5).unwrap();
        all.as_mut_slice().fill(3);
        memory.replace(all);
        drop(memory);
        assert_eq!(bytes, [3; 5]);
    }
}
