//! Buffers: memory of a device with its home stream, freed in the order of that stream's work.

use std::sync::Arc;

use crate::device::Device;
use crate::device::backend::{AllocationError, Memory, Rows, StreamHandle};
use crate::error::{Error, Result};
use crate::stream::Stream;

/// Memory of a device. Its home stream is the one that it was allocated on: uses on other streams are ordered with it
/// (see [`Stream::with_operands`]), so that freeing it there waits for all of them.
#[derive(Debug)]
pub(crate) struct Buffer {
    device: Device,
    home: Arc<StreamHandle>,
    memory: Memory,
    bytes: usize,
}

impl Buffer {
    /// Allocates `bytes` bytes on `stream`'s device. If the device's memory is full, what the pool holds unused is
    /// given back and the allocation tried once more.
    pub(crate) fn allocate(operation: &'static str, stream: &Stream, bytes: usize) -> Result<Self> {
        let device = stream.device().clone();
        let home = stream.handle().clone();
        let memory =
            if bytes == 0 { Memory::Empty } else { allocate_or_release(operation, &device, &home, bytes)? };
        Ok(Self { device, home, memory, bytes })
    }

    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    pub(crate) fn home(&self) -> &Arc<StreamHandle> {
        &self.home
    }

    pub(crate) fn memory(&self) -> &Memory {
        &self.memory
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The device address of the first byte; 0 for a buffer of zero bytes and on the CPU, where no kernel runs.
    pub(crate) fn address(&self) -> u64 {
        match self.memory {
            Memory::Device(address) => address,
            Memory::Host(_) | Memory::Empty => 0,
        }
    }

    /// The error for rows that reach beyond the buffer, if they do.
    pub(crate) fn check_rows(&self, operation: &'static str, rows: Rows) -> Result<()> {
        match rows.offset.checked_add(rows.span()) {
            Some(end) if end <= self.bytes => Ok(()),
            end => Err(Error::SizeLimit {
                operation,
                operand: "buffer",
                quantity: "end of the range",
                limit: format!("at most {} bytes", self.bytes),
                actual: end.map_or_else(|| "beyond 64 bits".into(), |end| format!("{end} bytes")),
            }),
        }
    }
}

fn allocate_or_release(
    operation: &'static str,
    device: &Device,
    home: &StreamHandle,
    bytes: usize,
) -> Result<Memory> {
    let backend = device.backend();
    match retry_once(|| backend.allocate(bytes, home), || backend.release_memory())? {
        Some(memory) => Ok(memory),
        None => {
            let stats = backend.memory_stats()?;
            Err(Error::OutOfMemory {
                operation,
                device: device.to_string(),
                requested: bytes as u64,
                free: stats.free,
                total: stats.total,
            })
        }
    }
}

/// What `allocate` gives; if there is no memory, `release`s some and tries once more. `None` if that did not help.
fn retry_once<T>(
    mut allocate: impl FnMut() -> Result<T, AllocationError>,
    release: impl FnOnce() -> Result<()>,
) -> Result<Option<T>> {
    match allocate() {
        Ok(memory) => return Ok(Some(memory)),
        Err(AllocationError::Other(error)) => return Err(error),
        Err(AllocationError::Full) => release()?,
    }
    match allocate() {
        Ok(memory) => Ok(Some(memory)),
        Err(AllocationError::Other(error)) => Err(error),
        Err(AllocationError::Full) => Ok(None),
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let memory = std::mem::replace(&mut self.memory, Memory::Empty);
        if !matches!(memory, Memory::Empty) {
            self.device.backend().free(memory, self.bytes, &self.home);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// Runs `retry_once` with an allocator that gives `results` in turn; also says how often memory was released.
    fn run(mut results: Vec<Result<u32, AllocationError>>) -> (Result<Option<u32>>, u32) {
        let released = Cell::new(0);
        let result = retry_once(
            || results.remove(0),
            || {
                released.set(released.get() + 1);
                Ok(())
            },
        );
        assert!(results.is_empty(), "allocation was tried as often as expected");
        (result, released.get())
    }

    fn other() -> AllocationError {
        AllocationError::Other(Error::Emulator { operation: "test", reason: String::new() })
    }

    #[test]
    fn memory_is_released_only_when_there_is_none_left() {
        assert!(matches!(run(vec![Ok(1)]), (Ok(Some(1)), 0)));
        assert!(matches!(run(vec![Err(AllocationError::Full), Ok(2)]), (Ok(Some(2)), 1)));
        assert!(matches!(run(vec![Err(other())]), (Err(Error::Emulator { .. }), 0)));
    }

    #[test]
    fn allocation_is_tried_twice_and_no_more() {
        assert!(matches!(run(vec![Err(AllocationError::Full), Err(AllocationError::Full)]), (Ok(None), 1)));
        let (result, released) = run(vec![Err(AllocationError::Full), Err(other())]);
        assert!(matches!(result, Err(Error::Emulator { .. })));
        assert_eq!(released, 1);
    }

    #[test]
    fn memory_that_cannot_be_released_is_the_error() {
        let release = || Err(Error::Emulator { operation: "release", reason: String::new() });
        let result = retry_once::<u32>(|| Err(AllocationError::Full), release);
        assert!(matches!(result, Err(Error::Emulator { operation: "release", .. })));
    }
}
