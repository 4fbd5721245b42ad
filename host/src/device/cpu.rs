//! The CPU as a device: memory is the host's, work is done by the call that asks for it, and there are no kernels.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use warpsmith_dsl::launch::RawArg;
use warpsmith_emulator::TensorMapArguments;

use super::backend::{
    AllocationError, Backend, EventHandle, FunctionHandle, FunctionResources, HostBlock, LaunchSize, Memory,
    ModuleHandle, Rows, StreamHandle, foreign_handle,
};
use super::{DeviceKind, MemoryStats, Properties};
use crate::error::{Error, Result};
use crate::kernel::PtxSummary;
use crate::memory::{HostBytes, HostMemory, Owner};
use crate::stream::{StreamPriority, negative_interval};

#[derive(Debug)]
pub(super) struct Cpu {
    properties: Properties,
    used: AtomicU64,
}

impl Cpu {
    pub(super) fn new() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
        let properties = Properties {
            compute_capability: (0, 0),
            multiprocessors: u32::try_from(cores).unwrap_or(u32::MAX),
            warp_size: 1,
            max_threads_per_block: 0,
            max_threads_per_multiprocessor: 0,
            max_block: [0; 3],
            max_grid: [0; 3],
            max_cluster: 0,
            max_shared_per_block: 0,
            shared_per_multiprocessor: 0,
            reserved_shared_per_block: 0,
            registers_per_multiprocessor: 0,
            max_parameter_bytes: 0,
            total_memory: system_memory().map_or(0, |memory| memory.total),
            l2_bytes: 0,
            clock_khz: 0,
            memory_clock_khz: 0,
            memory_bus_bits: 0,
            driver_version: None,
            pci_address: None,
        };
        Self { properties, used: AtomicU64::new(0) }
    }

    fn no_kernels<T>(&self, operation: &'static str) -> Result<T> {
        Err(Error::UnsupportedDevice {
            operation,
            device: "cpu".into(),
            expected: "a device that runs kernels".into(),
            actual: "the operations' own CPU implementations only".into(),
        })
    }
}

/// Copies densely packed bytes to rows, or rows to dense bytes, whichever way `move_row` goes.
pub(super) fn for_each_row(rows: Rows, mut move_row: impl FnMut(std::ops::Range<usize>, usize)) {
    if rows.pitch == rows.width {
        move_row(rows.offset..rows.offset + rows.width * rows.height, 0);
        return;
    }
    for row in 0..rows.height {
        let start = rows.offset + row * rows.pitch;
        move_row(start..start + rows.width, row * rows.width);
    }
}

fn host<'a>(operation: &'static str, memory: &'a Memory) -> Result<&'a HostMemory> {
    match memory {
        Memory::Host(memory) => Ok(memory),
        Memory::Device(_) | Memory::Empty => Err(foreign_handle(operation, "memory", DeviceKind::Cpu)),
    }
}

/// Changes `memory`'s bytes by `change`.
fn write(operation: &'static str, memory: &Memory, change: impl FnOnce(&mut [u8])) -> Result<()> {
    let memory = host(operation, memory)?;
    memory.write(change).ok_or_else(|| out_of_memory(operation, memory.bytes()))
}

/// The bytes of `memory` as they are now.
fn snapshot(operation: &'static str, memory: &Memory) -> Result<Arc<HostBytes>> {
    let memory = host(operation, memory)?;
    memory.snapshot().ok_or_else(|| out_of_memory(operation, memory.bytes()))
}

impl Backend for Cpu {
    fn kind(&self) -> DeviceKind {
        DeviceKind::Cpu
    }

    fn name(&self) -> &str {
        "CPU"
    }

    fn properties(&self) -> &Properties {
        &self.properties
    }

    fn allocate(&self, bytes: usize, _: &StreamHandle) -> Result<Memory, AllocationError> {
        let block = HostBytes::zeroed(bytes).ok_or(AllocationError::Full)?;
        self.used.fetch_add(bytes as u64, Ordering::Relaxed);
        Ok(Memory::Host(HostMemory::new(block)))
    }

    fn free(&self, memory: Memory, bytes: usize, _: &Arc<StreamHandle>) {
        drop(memory);
        self.used.fetch_sub(bytes as u64, Ordering::Relaxed);
    }

    unsafe fn adopt(&self, operation: &'static str, address: u64, bytes: usize, _: bool) -> Result<Memory> {
        let start = host_pointer(operation, address)?;
        // SAFETY: the caller's promise.
        Ok(Memory::Host(unsafe { HostMemory::foreign(start, bytes) }))
    }

    fn disown(&self, memory: Memory, owner: Owner, _: &Arc<StreamHandle>) {
        drop(memory);
        drop(owner);
    }

    fn release_memory(&self) -> Result<()> {
        Ok(())
    }

    fn memory_stats(&self) -> Result<MemoryStats> {
        let used = self.used.load(Ordering::Relaxed);
        let system = system_memory().unwrap_or(SystemMemory { total: 0, available: 0 });
        Ok(MemoryStats { used, reserved: used, free: system.available, total: system.total })
    }

    fn fill(&self, memory: &Memory, rows: Rows, byte: u8, _: &StreamHandle) -> Result<()> {
        let fill = |bytes: &mut [u8]| for_each_row(rows, |range, _| bytes[range].fill(byte));
        write("filling memory", memory, fill)
    }

    unsafe fn read(&self, memory: &Memory, rows: Rows, destination: *mut u8, _: &StreamHandle) -> Result<()> {
        let block = snapshot("copying to the host", memory)?;
        // SAFETY: the caller lends `width * height` bytes there until the work is done, which it is on return.
        let dense = unsafe { std::slice::from_raw_parts_mut(destination, rows.width * rows.height) };
        let bytes = block.as_slice();
        for_each_row(rows, |range, at| {
            let length = range.len();
            dense[at..at + length].copy_from_slice(&bytes[range]);
        });
        Ok(())
    }

    unsafe fn write(&self, memory: &Memory, rows: Rows, source: *const u8, _: &StreamHandle) -> Result<()> {
        // SAFETY: the caller lends `width * height` bytes there until the work is done, which it is on return.
        let dense = unsafe { std::slice::from_raw_parts(source, rows.width * rows.height) };
        write("copying from the host", memory, |bytes| {
            for_each_row(rows, |range, at| {
                let length = range.len();
                bytes[range].copy_from_slice(&dense[at..at + length]);
            });
        })
    }

    fn copy(
        &self,
        (destination, to): (&Memory, Rows),
        (source, from): (&Memory, Rows),
        _: &StreamHandle,
    ) -> Result<()> {
        const OPERATION: &str = "copying on the device";
        let offsets = (0..to.height).map(|row| (to.offset + row * to.pitch, from.offset + row * from.pitch));
        if std::ptr::eq(host(OPERATION, destination)?, host(OPERATION, source)?) {
            return write(OPERATION, destination, |bytes| {
                offsets.for_each(|(to_row, from_row)| {
                    bytes.copy_within(from_row..from_row + from.width, to_row);
                });
            });
        }
        let source = snapshot(OPERATION, source)?;
        let source = source.as_slice();
        write(OPERATION, destination, |bytes| {
            for (to_row, from_row) in offsets {
                bytes[to_row..to_row + to.width].copy_from_slice(&source[from_row..from_row + from.width]);
            }
        })
    }

    fn allocate_pinned(&self, bytes: usize) -> Result<HostBlock> {
        pageable_block(bytes)
    }

    fn new_stream(&self, _: StreamPriority) -> Result<StreamHandle> {
        Ok(StreamHandle::Immediate)
    }

    fn synchronize(&self, _: &StreamHandle) -> Result<()> {
        Ok(())
    }

    fn synchronize_all(&self) -> Result<()> {
        Ok(())
    }

    fn record(&self, _: &StreamHandle) -> Result<EventHandle> {
        Ok(EventHandle::Immediate(Instant::now()))
    }

    fn wait(&self, _: &StreamHandle, _: &EventHandle) -> Result<()> {
        Ok(())
    }

    fn synchronize_event(&self, _: &EventHandle) -> Result<()> {
        Ok(())
    }

    fn is_done(&self, _: &EventHandle) -> Result<bool> {
        Ok(true)
    }

    fn elapsed(&self, start: &EventHandle, end: &EventHandle) -> Result<Duration> {
        elapsed_on_host(start, end)
    }

    fn tensor_map(&self, _: &TensorMapArguments<'_>) -> Result<[u64; 16]> {
        self.no_kernels("encoding a tensor map")
    }

    fn load_module(&self, _: &str, _: &str, _: &PtxSummary) -> Result<ModuleHandle> {
        self.no_kernels("loading a module")
    }

    fn function(&self, _: &ModuleHandle, _: &str) -> Result<(FunctionHandle, FunctionResources)> {
        self.no_kernels("finding a kernel")
    }

    unsafe fn launch(
        &self,
        _: &ModuleHandle,
        _: FunctionHandle,
        _: &str,
        _: LaunchSize,
        _: &[RawArg],
        _: &StreamHandle,
    ) -> Result<()> {
        self.no_kernels("launching a kernel")
    }
}

/// A host address as a pointer to what is there, which its owner has exposed by giving its number.
pub(super) fn host_pointer(operation: &'static str, address: u64) -> Result<NonNull<u8>> {
    let number = usize::try_from(address).unwrap_or(0);
    NonNull::new(std::ptr::with_exposed_provenance_mut(number)).ok_or_else(|| Error::Argument {
        operation,
        argument: "address",
        expected: "an address of the host's memory".into(),
        actual: format!("{address:#x}"),
    })
}

/// Ordinary memory in the place of pinned memory.
pub(super) fn pageable_block(bytes: usize) -> Result<HostBlock> {
    HostBytes::zeroed(bytes)
        .map(HostBlock::Pageable)
        .ok_or_else(|| out_of_memory("PinnedBuffer::zeros", bytes))
}

/// The error for `bytes` bytes of the host's memory that it does not have.
pub(crate) fn out_of_memory(operation: &'static str, bytes: usize) -> Error {
    let system = system_memory();
    Error::OutOfMemory {
        operation,
        device: "the host".into(),
        requested: bytes as u64,
        free: system.as_ref().map_or(0, |system| system.available),
        total: system.as_ref().map_or(0, |system| system.total),
    }
}

/// The time between two events of a device that works immediately.
pub(super) fn elapsed_on_host(start: &EventHandle, end: &EventHandle) -> Result<Duration> {
    let (EventHandle::Immediate(start), EventHandle::Immediate(end)) = (start, end) else {
        return Err(foreign_handle("Event::elapsed_since", "event", DeviceKind::Cpu));
    };
    end.checked_duration_since(*start)
        .ok_or_else(|| negative_interval(start.duration_since(*end).as_secs_f64() * 1e3))
}

struct SystemMemory {
    total: u64,
    available: u64,
}

/// The machine's memory, where `/proc/meminfo` says.
fn system_memory() -> Option<SystemMemory> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let field = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
    };
    Some(SystemMemory { total: field("MemTotal:")?, available: field("MemAvailable:")? })
}
