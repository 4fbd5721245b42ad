//! Memory that a stream keeps for its work, so that a launch that needs some neither allocates nor clears any.

use super::raw::{self, CudaStream, Pool};
use crate::device::backend::AllocationError;
use crate::driver::{self, sys as cuda};
use crate::error::Result;

/// How much a launch needs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    /// Words that it finds zero and leaves so.
    pub(super) zeros: usize,
    /// Bytes of any value.
    pub(super) bytes: usize,
}

/// What is kept for a stream's work.
#[derive(Default)]
pub(super) struct Kept {
    zeros: Option<cuda::CUdeviceptr>,
    /// Addresses and bytes, each at least twice those of the one before; the last is in use.
    scratch: Vec<(cuda::CUdeviceptr, usize)>,
    /// Whether it is memory of a pool.
    is_pooled: bool,
}

impl Kept {
    const ZEROS: usize = 1 << 14;
    const LEAST_SCRATCH: usize = 1 << 20;
    const MOST_SCRATCH: usize = 1 << 26;

    /// Where the words are that all work of `stream` finds zero and leaves so, and the bytes that each launch may use for itself. `None` if that is more than
    /// is kept, if there is too little memory, or if work that `is_captured` needs what is not there yet.
    pub(super) fn memory(
        &mut self,
        stream: &CudaStream,
        pool: Option<&Pool>,
        is_captured: bool,
        Sizes { zeros, bytes }: Sizes,
    ) -> Result<Option<[u64; 2]>> {
        if zeros > Self::ZEROS || bytes > Self::MOST_SCRATCH {
            return Ok(None);
        }
        // A graph was captured when the work had been done once, so what it needs is there.
        let allocate = |bytes: usize| {
            if is_captured {
                return Ok(None);
            }
            match raw::allocate(pool, bytes, stream) {
                Ok(address) => Ok(Some(address)),
                Err(AllocationError::Full) => Ok(None),
                Err(AllocationError::Other(error)) => Err(error),
            }
        };
        self.is_pooled = pool.is_some();
        let zeros = match self.zeros {
            Some(zeros) => zeros,
            None => {
                let bytes = Self::ZEROS * size_of::<u32>();
                let Some(address) = allocate(bytes)? else { return Ok(None) };
                // SAFETY: the memory has just been allocated, for this stream's work.
                driver::check("clearing memory", unsafe {
                    cuda::cuMemsetD8Async(address, 0, bytes, stream.raw())
                })?;
                *self.zeros.insert(address)
            }
        };
        let scratch = match self.scratch.last() {
            Some(&(address, there)) if there >= bytes => address,
            _ => {
                let bytes = bytes.next_power_of_two().max(Self::LEAST_SCRATCH);
                let Some(address) = allocate(bytes)? else { return Ok(None) };
                // Those before stay: graphs use them.
                self.scratch.push((address, bytes));
                address
            }
        };
        Ok(Some([zeros, scratch]))
    }

    /// Frees it in the order of the stream, of which no work is enqueued any more. Errors have nowhere to go.
    pub(super) fn free(&mut self, stream: cuda::CUstream) {
        let scratch = self.scratch.drain(..).map(|(address, _)| address);
        for address in self.zeros.take().into_iter().chain(scratch) {
            // SAFETY: nothing but this stream's work uses it, and none is enqueued any more: graphs hold their stream.
            let _ = unsafe {
                if self.is_pooled {
                    cuda::cuMemFreeAsync(address, stream)
                } else {
                    cuda::cuMemFree_v2(address)
                }
            };
        }
    }
}
