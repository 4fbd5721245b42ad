//! Host memory that a device's kernels read where it is.

use crate::device::Device;
use crate::device::cuda::CudaMappedMemory;
use crate::error::{Error, Result};
use crate::tensor::Tensor;

/// Host memory that kernels of a device read: pinned or managed memory for a GPU, memory like all other on the emulator and the CPU.
///
/// Its owner answers for the order of the host's writes and the kernels' reads, and drops it only after the kernels that read it are done.
#[derive(Debug)]
pub(crate) enum MappedMemory {
    /// A GPU's.
    Cuda(CudaMappedMemory),
    /// That of a device whose own memory is the host's.
    Own(Tensor<u8>),
}

impl MappedMemory {
    /// `bytes` zeros.
    pub(crate) fn zeroed(device: &Device, bytes: usize, managed: bool) -> Result<Self> {
        let mapped = match bytes {
            0 => None,
            _ => device.backend().allocate_mapped(bytes, managed)?,
        };
        match mapped {
            Some(memory) => Ok(Self::Cuda(memory)),
            None => Ok(Self::Own(Tensor::zeros(device, [bytes])?)),
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Cuda(memory) => memory.as_slice().len(),
            Self::Own(tensor) => tensor.len(),
        }
    }

    /// The address that kernels read it at; 0 without bytes and on the CPU.
    pub(crate) fn address(&self) -> u64 {
        match self {
            Self::Cuda(memory) => memory.address(),
            Self::Own(tensor) => tensor.arg().address(),
        }
    }

    /// The bytes of a GPU's memory, which the host has under its own addresses.
    pub(crate) fn as_slice(&self) -> Option<&[u8]> {
        match self {
            Self::Cuda(memory) => Some(memory.as_slice()),
            Self::Own(_) => None,
        }
    }

    /// As [`as_slice`](Self::as_slice), to be written. No kernel reads them meanwhile.
    pub(crate) fn as_mut_slice(&mut self) -> Option<&mut [u8]> {
        match self {
            Self::Cuda(memory) => Some(memory.as_mut_slice()),
            Self::Own(_) => None,
        }
    }

    /// The bytes as a tensor, but a GPU's.
    pub(crate) fn tensor(&self) -> Option<&Tensor<u8>> {
        match self {
            Self::Cuda(_) => None,
            Self::Own(tensor) => Some(tensor),
        }
    }

    /// Writes `values` from byte `offset` on. No kernel reads them meanwhile.
    pub(crate) fn write(&mut self, offset: usize, values: &[u8]) -> Result<()> {
        let range = self.range(offset, values.len())?;
        match self {
            Self::Cuda(memory) => memory.as_mut_slice()[range].copy_from_slice(values),
            Self::Own(tensor) => tensor.slice(0, range)?.write_slice(values)?,
        }
        Ok(())
    }

    /// `length` bytes from byte `offset` on.
    pub(crate) fn read(&self, offset: usize, length: usize) -> Result<Vec<u8>> {
        let range = self.range(offset, length)?;
        match self {
            Self::Cuda(memory) => Ok(memory.as_slice()[range].to_vec()),
            Self::Own(tensor) => tensor.slice(0, range)?.to_vec(),
        }
    }

    fn range(&self, offset: usize, length: usize) -> Result<std::ops::Range<usize>> {
        match offset.checked_add(length) {
            Some(end) if end <= self.bytes() => Ok(offset..end),
            end => Err(Error::SizeLimit {
                operation: "using host memory",
                operand: "memory",
                quantity: "end of the range",
                limit: format!("at most {} bytes", self.bytes()),
                actual: end.map_or_else(|| "beyond 64 bits".into(), |end| format!("{end} bytes")),
            }),
        }
    }
}
