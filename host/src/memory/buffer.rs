//! Buffers: memory of a device with its home stream, freed in the order of that stream's work, or given back to whose it is.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use crate::device::Device;
use crate::device::backend::{AllocationError, Memory, Rows, StreamHandle};
use crate::error::{Error, Result};
use crate::stream::Stream;

/// Memory of a device. Its home stream is the one that it was allocated on: uses on other streams are ordered with it
/// (see [`Stream::with_operands`]), so that freeing it there waits for all of them.
pub(crate) struct Buffer {
    device: Device,
    home: Arc<StreamHandle>,
    memory: Memory,
    bytes: usize,
    /// Of memory that is somebody else's.
    foreign: Option<Foreign>,
}

/// What keeps memory that is not this crate's alive: dropped when it is no longer used.
pub(crate) type Owner = Box<dyn Any + Send + Sync>;

struct Foreign {
    owner: Owner,
    /// As its owner gave it.
    address: u64,
    is_writable: bool,
}

impl Buffer {
    /// Allocates `bytes` bytes on `stream`'s device. If the device's memory is full, what the pool holds unused is
    /// given back and the allocation tried once more.
    pub(crate) fn allocate(operation: &'static str, stream: &Stream, bytes: usize) -> Result<Self> {
        let device = stream.device().clone();
        let home = stream.handle().clone();
        let memory =
            if bytes == 0 { Memory::Empty } else { allocate_or_release(operation, &device, &home, bytes)? };
        Ok(Self { device, home, memory, bytes, foreign: None })
    }

    /// The `bytes` bytes at `address`, which are kept alive by `owner` and used in the order of `stream`'s work.
    ///
    /// # Safety
    ///
    /// As long as the owner lives, the memory is valid for reads and, where `is_writable`, for writes. Who else uses it is ordered with the
    /// stream's work.
    pub(crate) unsafe fn adopt(
        operation: &'static str,
        stream: &Stream,
        address: u64,
        bytes: usize,
        owner: Owner,
        is_writable: bool,
    ) -> Result<Self> {
        let device = stream.device().clone();
        let memory = match bytes {
            0 => Memory::Empty,
            // SAFETY: the caller's promise.
            _ => unsafe { device.backend().adopt(operation, address, bytes, is_writable)? },
        };
        let foreign = Some(Foreign { owner, address, is_writable });
        Ok(Self { device, home: stream.handle().clone(), memory, bytes, foreign })
    }

    /// The address by which two buffers of foreign memory are found to overlap.
    pub(crate) fn foreign_address(&self) -> Option<u64> {
        self.foreign.as_ref().map(|foreign| foreign.address)
    }

    /// Whether the memory is not this crate's.
    pub(crate) fn is_foreign(&self) -> bool {
        self.foreign.is_some()
    }

    /// Whether it may be written.
    pub(crate) fn is_writable(&self) -> bool {
        self.foreign.as_ref().is_none_or(|foreign| foreign.is_writable)
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
        if matches!(memory, Memory::Empty) {
            return;
        }
        match self.foreign.take() {
            Some(Foreign { owner, .. }) => self.device.backend().disown(memory, owner, &self.home),
            None => self.device.backend().free(memory, self.bytes, &self.home),
        }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { device, home, memory, bytes, foreign } = self;
        f.debug_struct("Buffer")
            .field("device", device)
            .field("home", home)
            .field("memory", memory)
            .field("bytes", bytes)
            .field("is_foreign", &foreign.is_some())
            .finish()
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
