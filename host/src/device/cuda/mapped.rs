//! Host memory that a GPU's kernels read over the link: pinned and mapped into the GPU's address space, or managed by the driver.
//!
//! Managed memory is told to stay on the host and to be mapped by the GPU, so that reading it moves no pages. What is worth a
//! place in the GPU's memory is decided by the cache in front of it.

use std::ffi::c_uint;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use super::GpuContext;
use super::raw::{Attribute, attribute};
use crate::device::cpu::out_of_memory;
use crate::driver::{self, code, sys as cuda};
use crate::error::{Error, Result};

const OPERATION: &str = "allocating host memory";

/// Host memory with an address that the GPU's kernels read it at.
#[derive(Debug)]
pub(crate) struct CudaMappedMemory {
    start: NonNull<u8>,
    address: u64,
    bytes: usize,
    managed: bool,
    context: Arc<GpuContext>,
}

// SAFETY: the block is owned, and the host reaches it only through `&self` for reading and `&mut self` for writing.
unsafe impl Send for CudaMappedMemory {}
// SAFETY: as above.
unsafe impl Sync for CudaMappedMemory {}

/// The error of an allocation: one of the host's memory if it is full.
fn allocation_error(bytes: usize) -> impl Fn(Error) -> Error {
    move |error| match error {
        Error::Driver { code: code::OUT_OF_MEMORY, .. } => out_of_memory(OPERATION, bytes),
        other => other,
    }
}

impl CudaMappedMemory {
    /// `bytes` (at least 1) zeros in pinned memory. The context is current.
    pub(super) fn pinned(context: &Arc<GpuContext>, bytes: usize) -> Result<Self> {
        const PORTABLE: c_uint = 1;
        const DEVICE_MAP: c_uint = 2;
        let mut start = ptr::null_mut();
        // SAFETY: the address is written to a local variable.
        let allocated = unsafe { cuda::cuMemHostAlloc(&raw mut start, bytes, PORTABLE | DEVICE_MAP) };
        driver::check(OPERATION, allocated).map_err(allocation_error(bytes))?;
        let start =
            NonNull::new(start.cast::<u8>()).ok_or_else(|| driver::error(OPERATION, code::OUT_OF_MEMORY))?;
        let mut memory = Self { start, address: 0, bytes, managed: false, context: context.clone() };
        // SAFETY: as above; the memory was allocated to be mapped.
        driver::check(OPERATION, unsafe {
            cuda::cuMemHostGetDevicePointer_v2(&raw mut memory.address, start.as_ptr().cast(), 0)
        })?;
        memory.clear();
        Ok(memory)
    }

    /// `bytes` (at least 1) zeros in managed memory that stays on the host. The context, which is that of GPU `ordinal`, is current.
    pub(super) fn managed(context: &Arc<GpuContext>, ordinal: usize, bytes: usize) -> Result<Self> {
        const ATTACH_GLOBAL: c_uint = 1;
        /// In the place of a GPU: the host.
        const HOST: i32 = -1;
        let device = context.device();
        if attribute(device, Attribute::CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY)? == 0 {
            return Err(Error::UnsupportedDevice {
                operation: OPERATION,
                device: format!("cuda:{ordinal}"),
                expected: "a GPU with managed memory".into(),
                actual: "none".into(),
            });
        }
        // Without it the host may not touch managed memory while any kernel runs.
        if attribute(device, Attribute::CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS)? == 0 {
            return Err(Error::UnsupportedDevice {
                operation: OPERATION,
                device: format!("cuda:{ordinal}"),
                expected: "a GPU beside whose kernels the host may use managed memory".into(),
                actual: "one without concurrent managed access".into(),
            });
        }
        let mut address = 0;
        // SAFETY: the address is written to a local variable.
        driver::check(OPERATION, unsafe { cuda::cuMemAllocManaged(&raw mut address, bytes, ATTACH_GLOBAL) })
            .map_err(allocation_error(bytes))?;
        // A managed address is the same for the host and for the GPU.
        let start = NonNull::new(ptr::with_exposed_provenance_mut::<u8>(address as usize))
            .ok_or_else(|| driver::error(OPERATION, code::OUT_OF_MEMORY))?;
        let mut memory = Self { start, address, bytes, managed: true, context: context.clone() };
        let advices = [
            (cuda::CUmem_advise::CU_MEM_ADVISE_SET_PREFERRED_LOCATION, HOST),
            (cuda::CUmem_advise::CU_MEM_ADVISE_SET_ACCESSED_BY, device),
        ];
        for (advice, location) in advices {
            // SAFETY: the range is that of the allocation.
            let advised = unsafe { cuda::cuMemAdvise(address, bytes, advice, location) };
            driver::check("advising on managed memory", advised)?;
        }
        memory.clear();
        Ok(memory)
    }

    fn clear(&mut self) {
        // SAFETY: the block has `bytes` bytes, and no other reference to it exists.
        unsafe { ptr::write_bytes(self.start.as_ptr(), 0, self.bytes) };
    }

    /// The address that kernels read it at.
    pub(crate) fn address(&self) -> u64 {
        self.address
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        // SAFETY: the block holds `bytes` initialised bytes; kernels only read them.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.bytes) }
    }

    pub(crate) fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as above, and the block is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.bytes) }
    }
}

impl Drop for CudaMappedMemory {
    fn drop(&mut self) {
        let Ok(_bound) = self.context.bind() else { return };
        // SAFETY: the block came from the driver and is not used again: its owner has waited for the kernels that read it.
        let _ = unsafe {
            match self.managed {
                true => cuda::cuMemFree_v2(self.address),
                false => cuda::cuMemFreeHost(self.start.as_ptr().cast()),
            }
        };
    }
}
