//! Pinned host memory.

use std::ptr::{self, NonNull};
use std::slice;
use std::sync::Arc;

use super::GpuContext;
use crate::driver::{self, Failure, code, sys as cuda};
use crate::error::Result;

/// A block of it.
#[derive(Debug)]
pub(crate) struct CudaHostMemory {
    start: NonNull<u8>,
    bytes: usize,
    context: Arc<GpuContext>,
}

// SAFETY: the block is owned, and reached only through `&self` for reading and `&mut self` for writing.
unsafe impl Send for CudaHostMemory {}
// SAFETY: as above.
unsafe impl Sync for CudaHostMemory {}

impl CudaHostMemory {
    pub(super) fn zeroed(context: &Arc<GpuContext>, bytes: usize) -> Result<Self> {
        const OPERATION: &str = "PinnedBuffer::zeros";
        let mut start = ptr::null_mut();
        // SAFETY: the address is written to a local variable; the memory is owned by the value made below.
        unsafe { cuda::cuMemHostAlloc(&raw mut start, bytes, 0) }.map_err(|failure| match failure {
            Failure::Code(code::OUT_OF_MEMORY) => crate::device::cpu::out_of_memory(OPERATION, bytes),
            other => other.error(OPERATION),
        })?;
        let start =
            NonNull::new(start.cast::<u8>()).ok_or_else(|| driver::error(OPERATION, code::OUT_OF_MEMORY))?;
        // SAFETY: the block has `bytes` bytes.
        unsafe { ptr::write_bytes(start.as_ptr(), 0, bytes) };
        Ok(Self { start, bytes, context: context.clone() })
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

impl Drop for CudaHostMemory {
    fn drop(&mut self) {
        if let Ok(_bound) = self.context.bind() {
            // SAFETY: the block came from the driver and is not used again.
            let _ = unsafe { cuda::cuMemFreeHost(self.start.as_ptr().cast()) };
        }
    }
}
