//! Host memory that a device's kernels read where it is.

use crate::device::Device;
use crate::device::backend::{MappedBlock, Memory, Rows};
use crate::error::{Error, Result};
use crate::memory::HostBytes;

/// Host memory that kernels of a device read: pinned or managed memory for a GPU, memory of its own on the emulator, ordinary memory on the CPU.
///
/// Its owner answers for the order of the host's writes and the kernels' reads, and drops it only after the kernels that read it are done.
#[derive(Debug)]
pub(crate) struct MappedMemory {
    device: Device,
    block: MappedBlock,
    bytes: usize,
}

impl MappedMemory {
    /// `bytes` zeros.
    pub(crate) fn zeroed(device: &Device, bytes: usize, managed: bool) -> Result<Self> {
        let block = match bytes {
            0 => Self::nothing()?,
            _ => device.backend().allocate_mapped(bytes, managed)?,
        };
        Ok(Self { device: device.clone(), block, bytes })
    }

    fn nothing() -> Result<MappedBlock> {
        HostBytes::zeroed(0)
            .map(MappedBlock::Host)
            .ok_or_else(|| crate::device::cpu::out_of_memory("allocating host memory", 0))
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The address that kernels read it at; 0 without bytes and on the CPU.
    pub(crate) fn address(&self) -> u64 {
        match &self.block {
            MappedBlock::Host(_) => 0,
            MappedBlock::Device(address) => *address,
            MappedBlock::Cuda(memory) => memory.address(),
        }
    }

    /// The bytes, where the host has them.
    pub(crate) fn as_slice(&self) -> Option<&[u8]> {
        match &self.block {
            MappedBlock::Host(bytes) => Some(bytes.as_slice()),
            MappedBlock::Device(_) => None,
            MappedBlock::Cuda(memory) => Some(memory.as_slice()),
        }
    }

    /// Writes `values` from byte `offset` on. No kernel reads them meanwhile.
    pub(crate) fn write(&mut self, offset: usize, values: &[u8]) -> Result<()> {
        let range = self.range(offset, values.len())?;
        match &mut self.block {
            MappedBlock::Host(bytes) => bytes.as_mut_slice()[range].copy_from_slice(values),
            MappedBlock::Cuda(memory) => memory.as_mut_slice()[range].copy_from_slice(values),
            MappedBlock::Device(address) => {
                let rows = Rows { offset, pitch: values.len(), width: values.len(), height: 1 };
                let stream = self.device.default_stream();
                // SAFETY: the range was checked; the emulator is done with it on return.
                unsafe {
                    let memory = Memory::Device(*address);
                    self.device.backend().write(&memory, rows, values.as_ptr(), stream.handle())?;
                }
            }
        }
        Ok(())
    }

    /// Reads into `values` from byte `offset` on.
    pub(crate) fn read(&self, offset: usize, values: &mut [u8]) -> Result<()> {
        let range = self.range(offset, values.len())?;
        match &self.block {
            MappedBlock::Host(bytes) => values.copy_from_slice(&bytes.as_slice()[range]),
            MappedBlock::Cuda(memory) => values.copy_from_slice(&memory.as_slice()[range]),
            MappedBlock::Device(address) => {
                let rows = Rows { offset, pitch: values.len(), width: values.len(), height: 1 };
                let stream = self.device.default_stream();
                // SAFETY: the range was checked; the emulator is done with it on return.
                unsafe {
                    let memory = Memory::Device(*address);
                    self.device.backend().read(&memory, rows, values.as_mut_ptr(), stream.handle())?;
                }
            }
        }
        Ok(())
    }

    fn range(&self, offset: usize, length: usize) -> Result<std::ops::Range<usize>> {
        match offset.checked_add(length) {
            Some(end) if end <= self.bytes => Ok(offset..end),
            end => Err(Error::SizeLimit {
                operation: "using host memory",
                operand: "memory",
                quantity: "end of the range",
                limit: format!("at most {} bytes", self.bytes),
                actual: end.map_or_else(|| "beyond 64 bits".into(), |end| format!("{end} bytes")),
            }),
        }
    }

    /// Gives the memory up without freeing it: where nobody knows whether a kernel still reads it.
    pub(crate) fn leak(&mut self) {
        if let Ok(nothing) = Self::nothing() {
            std::mem::forget(std::mem::replace(&mut self.block, nothing));
            self.bytes = 0;
        }
    }
}

impl Drop for MappedMemory {
    fn drop(&mut self) {
        if let MappedBlock::Device(address) = self.block {
            let stream = self.device.default_stream();
            self.device.backend().free(Memory::Device(address), self.bytes, stream.handle());
        }
    }
}
