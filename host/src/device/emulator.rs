//! The emulator as a device: the PTX that a GPU runs, on the CPU, with every access checked.
//!
//! Work is done by the call that asks for it, so streams order nothing and an event is a time of day.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::RwLock;
use warpsmith_dsl::launch::RawArg;
use warpsmith_emulator::{
    Checks, Completion, Config, LaunchConfig, LaunchError, Limits, Machine, MemoryError, Module, Numerics,
    TensorMap, TensorMapArguments, Tracer,
};

use super::backend::{
    AllocationError, Backend, EventHandle, FunctionHandle, FunctionResources, HostBlock, LaunchSize, Memory,
    ModuleHandle, Rows, StreamHandle, foreign_handle,
};
use super::cpu::{elapsed_on_host, for_each_row, host_pointer, pageable_block};
use super::properties::max_cluster;
use super::{DeviceKind, MemoryStats, Properties};
use crate::error::{Error, Result};
use crate::kernel::PtxSummary;
use crate::memory::Owner;
use crate::stream::StreamPriority;

/// What an emulated GPU is like.
///
/// ```
/// use warpsmith::{Device, EmulatorOptions};
/// let options = EmulatorOptions { compute_capability: (9, 0), ..EmulatorOptions::default() };
/// assert_eq!(Device::emulator_with(options).properties().compute_capability, (9, 0));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EmulatorOptions {
    /// The compute capability; the sizes and limits are those of a GPU of that generation.
    pub compute_capability: (u32, u32),
    /// Multiprocessors that launches are planned for, at least 1; as many as a GPU of that generation has if not given. Between GPUs with other numbers of
    /// them the bits of long sums may differ: they are divided for as many.
    pub multiprocessors: Option<u32>,
    /// Bytes of memory.
    pub memory: u64,
    /// The checks that run beside a kernel.
    pub checks: Checks,
    /// How matrix instructions add their products.
    pub numerics: Numerics,
    /// When an asynchronous copy moves its bytes.
    pub completion: Completion,
    /// How many threads run blocks, at most as many as the machine has cores; `None` takes rayon's current pool. The result
    /// is the same for any number.
    pub threads: Option<usize>,
    /// The seed of everything that a GPU leaves open.
    pub seed: u64,
    /// Where the steps of chosen lanes go, for a look at what a kernel does; nowhere if there is none.
    pub trace: Option<Tracer>,
}

impl Default for EmulatorOptions {
    fn default() -> Self {
        let Config { compute_capability, checks, numerics, completion, threads, seed, trace, limits } =
            Config::default();
        Self {
            compute_capability,
            multiprocessors: None,
            memory: limits.global_memory,
            checks,
            numerics,
            completion,
            threads,
            seed,
            trace,
        }
    }
}

/// Sizes of one GPU of a generation (CUDA programming guide, "technical specifications per compute capability"; the
/// number of multiprocessors and the level-2 cache are those of the GPU named).
struct Generation {
    capability: (u32, u32),
    gpu: &'static str,
    multiprocessors: u32,
    threads: u32,
    shared_kib: u32,
    l2_mib: u64,
}

#[rustfmt::skip]
const GENERATIONS: &[Generation] = &[
    Generation { capability: (7, 5), gpu: "T4", multiprocessors: 40, threads: 1024, shared_kib: 65, l2_mib: 4 },
    Generation { capability: (8, 0), gpu: "A100", multiprocessors: 108, threads: 2048, shared_kib: 164, l2_mib: 40 },
    Generation { capability: (8, 6), gpu: "A40", multiprocessors: 84, threads: 1536, shared_kib: 100, l2_mib: 6 },
    Generation { capability: (8, 7), gpu: "Orin", multiprocessors: 16, threads: 1536, shared_kib: 164, l2_mib: 4 },
    Generation { capability: (8, 9), gpu: "L40", multiprocessors: 142, threads: 1536, shared_kib: 100, l2_mib: 96 },
    Generation { capability: (9, 0), gpu: "H100", multiprocessors: 132, threads: 2048, shared_kib: 228, l2_mib: 50 },
    Generation { capability: (10, 0), gpu: "B200", multiprocessors: 148, threads: 2048, shared_kib: 228, l2_mib: 126 },
    Generation { capability: (12, 0), gpu: "RTX 5090", multiprocessors: 170, threads: 1536, shared_kib: 100, l2_mib: 96 },
];

/// The generation of a compute capability: the last one that is not later.
fn generation(capability: (u32, u32)) -> &'static Generation {
    GENERATIONS.iter().rev().find(|generation| generation.capability <= capability).unwrap_or(&GENERATIONS[0])
}

#[derive(Debug)]
pub(super) struct Emulator {
    machine: Machine,
    name: String,
    properties: Properties,
    used: AtomicU64,
    /// Memory of the host that is somebody else's. Launches run beside each other where there is none.
    foreign: RwLock<Vec<ForeignRange>>,
}

/// Memory of the host that stands for memory of the device. What is there is copied in before work that may use it, and what the work has
/// changed is copied out after it.
#[derive(Debug)]
struct ForeignRange {
    address: u64,
    start: NonNull<u8>,
    bytes: usize,
    is_writable: bool,
}

// SAFETY: it is used under a lock, and its owner lets any thread use it.
unsafe impl Send for ForeignRange {}
// SAFETY: as above.
unsafe impl Sync for ForeignRange {}

/// A module that the emulator has parsed.
#[derive(Debug)]
pub(crate) struct EmulatorModule(Module);

impl Emulator {
    pub(super) fn new(options: EmulatorOptions) -> Self {
        let EmulatorOptions {
            compute_capability,
            multiprocessors,
            memory,
            checks,
            numerics,
            completion,
            threads,
            seed,
            trace,
        } = options;
        let generation = generation(compute_capability);
        // The hardware keeps 1 KiB of every block's shared memory for itself.
        let shared_per_block = (generation.shared_kib - 1) * 1024;
        let blocks_per_cluster = max_cluster(compute_capability);
        let limits =
            Limits { shared_per_block, blocks_per_cluster, global_memory: memory, ..Limits::default() };
        let properties = Properties {
            compute_capability,
            multiprocessors: multiprocessors.unwrap_or(generation.multiprocessors).max(1),
            warp_size: 32,
            max_threads_per_block: limits.threads_per_block,
            max_threads_per_multiprocessor: generation.threads,
            max_block: limits.block,
            max_grid: limits.grid,
            max_cluster: blocks_per_cluster,
            max_shared_per_block: shared_per_block,
            shared_per_multiprocessor: generation.shared_kib * 1024,
            reserved_shared_per_block: 1024,
            registers_per_multiprocessor: 65_536,
            max_parameter_bytes: limits.parameters,
            total_memory: memory,
            l2_bytes: generation.l2_mib << 20,
            clock_khz: 0,
            memory_clock_khz: 0,
            memory_bus_bits: 0,
            driver_version: None,
            pci_address: None,
        };
        let (major, minor) = compute_capability;
        // More threads than cores gain nothing, and absurdly many take the machine down.
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
        let threads = threads.map(|threads| threads.min(cores));
        let config =
            Config { compute_capability, checks, numerics, completion, threads, seed, trace, limits };
        Self {
            machine: Machine::new(config),
            name: format!("emulated GPU, compute capability {major}.{minor}, sized as {}", generation.gpu),
            properties,
            used: AtomicU64::new(0),
            foreign: RwLock::default(),
        }
    }
}

impl Emulator {
    /// Does `work`, which reads and changes the device's memory, with the foreign memory as it is, and as the work leaves it.
    fn with_foreign<R>(&self, work: impl FnOnce() -> R) -> Result<R> {
        const OPERATION: &str = "using foreign memory";
        let none = self.foreign.read();
        if none.is_empty() {
            return Ok(work());
        }
        drop(none);
        let ranges = self.foreign.write();
        let mut before = Vec::with_capacity(ranges.len());
        for range in ranges.iter() {
            // SAFETY: adopted memory is valid for reads, and its owner's other work is ordered with this.
            let bytes = unsafe { std::slice::from_raw_parts(range.start.as_ptr(), range.bytes) }.to_vec();
            self.machine.write(range.address, &bytes).map_err(memory_error(OPERATION))?;
            before.push(bytes);
        }
        let result = work();
        for (range, before) in ranges.iter().zip(before).filter(|(range, _)| range.is_writable) {
            let mut after = vec![0; range.bytes];
            self.machine.read(range.address, &mut after).map_err(memory_error(OPERATION))?;
            // Only what has changed: ranges may have gaps in which others lie.
            for (at, _) in after.iter().enumerate().filter(|&(at, byte)| *byte != before[at]) {
                // SAFETY: adopted memory that is writable is valid for writes.
                unsafe { range.start.add(at).write(after[at]) };
            }
        }
        Ok(result)
    }
}

fn address(operation: &'static str, memory: &Memory) -> Result<u64> {
    match memory {
        Memory::Device(address) => Ok(*address),
        Memory::Host(_) | Memory::Empty => Err(foreign_handle(operation, "memory", DeviceKind::Emulator)),
    }
}

fn memory_error(operation: &'static str) -> impl Fn(MemoryError) -> Error {
    move |error| Error::Emulator { operation, reason: error.to_string() }
}

fn launch_error(kernel: &str, error: LaunchError) -> Error {
    match error {
        LaunchError::Finding(finding) => Error::Finding(finding),
        other => Error::Emulator { operation: "launching a kernel", reason: format!("`{kernel}`: {other}") },
    }
}

fn parsed(module: &ModuleHandle) -> Result<&Module> {
    match module {
        ModuleHandle::Emulator(EmulatorModule(module)) => Ok(module),
        ModuleHandle::Cuda(_) => Err(foreign_handle("finding a kernel", "module", DeviceKind::Emulator)),
    }
}

impl Backend for Emulator {
    fn kind(&self) -> DeviceKind {
        DeviceKind::Emulator
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn properties(&self) -> &Properties {
        &self.properties
    }

    fn allocate(&self, bytes: usize, _: &StreamHandle) -> Result<Memory, AllocationError> {
        match self.machine.allocate(bytes as u64) {
            Ok(address) => {
                self.used.fetch_add(bytes as u64, Ordering::Relaxed);
                Ok(Memory::Device(address))
            }
            Err(MemoryError::OutOfMemory { .. }) => Err(AllocationError::Full),
            Err(error) => Err(AllocationError::Other(memory_error("allocating memory")(error))),
        }
    }

    fn free(&self, memory: Memory, bytes: usize, _: &Arc<StreamHandle>) {
        if let Memory::Device(address) = memory
            && self.machine.free(address).is_ok()
        {
            self.used.fetch_sub(bytes as u64, Ordering::Relaxed);
        }
    }

    unsafe fn adopt(
        &self,
        operation: &'static str,
        address: u64,
        bytes: usize,
        is_writable: bool,
    ) -> Result<Memory> {
        let start = host_pointer(operation, address)?;
        let allocated = match is_writable {
            true => self.machine.allocate(bytes as u64),
            false => self.machine.allocate_read_only(bytes as u64),
        };
        let address = allocated.map_err(memory_error(operation))?;
        self.foreign.write().push(ForeignRange { address, start, bytes, is_writable });
        Ok(Memory::Device(address))
    }

    fn disown(&self, memory: Memory, owner: Owner, _: &Arc<StreamHandle>) {
        if let Memory::Device(address) = memory {
            self.foreign.write().retain(|range| range.address != address);
            // It is there: it was adopted.
            let _ = self.machine.free(address);
        }
        drop(owner);
    }

    fn release_memory(&self) -> Result<()> {
        Ok(())
    }

    fn memory_stats(&self) -> Result<MemoryStats> {
        let used = self.used.load(Ordering::Relaxed);
        let total = self.properties.total_memory;
        Ok(MemoryStats { used, reserved: used, free: total.saturating_sub(used), total })
    }

    fn fill(&self, memory: &Memory, rows: Rows, byte: u8, _: &StreamHandle) -> Result<()> {
        let base = address("filling memory", memory)?;
        let mut result = Ok(());
        self.with_foreign(|| {
            for_each_row(rows, |range, _| {
                if result.is_ok() {
                    result = self.machine.fill(base + range.start as u64, byte, range.len() as u64);
                }
            });
        })?;
        result.map_err(memory_error("filling memory"))
    }

    unsafe fn read(&self, memory: &Memory, rows: Rows, destination: *mut u8, _: &StreamHandle) -> Result<()> {
        let base = address("copying to the host", memory)?;
        // SAFETY: the caller lends `width * height` bytes there until the work is done, which it is on return.
        let dense = unsafe { std::slice::from_raw_parts_mut(destination, rows.width * rows.height) };
        let mut result = Ok(());
        self.with_foreign(|| {
            for_each_row(rows, |range, at| {
                if result.is_ok() {
                    result = self.machine.read(base + range.start as u64, &mut dense[at..at + range.len()]);
                }
            });
        })?;
        result.map_err(memory_error("copying to the host"))
    }

    unsafe fn write(&self, memory: &Memory, rows: Rows, source: *const u8, _: &StreamHandle) -> Result<()> {
        let base = address("copying from the host", memory)?;
        // SAFETY: the caller lends `width * height` bytes there until the work is done, which it is on return.
        let dense = unsafe { std::slice::from_raw_parts(source, rows.width * rows.height) };
        let mut result = Ok(());
        self.with_foreign(|| {
            for_each_row(rows, |range, at| {
                if result.is_ok() {
                    result = self.machine.write(base + range.start as u64, &dense[at..at + range.len()]);
                }
            });
        })?;
        result.map_err(memory_error("copying from the host"))
    }

    fn copy(
        &self,
        (destination, to): (&Memory, Rows),
        (source, from): (&Memory, Rows),
        _: &StreamHandle,
    ) -> Result<()> {
        let (destination, source) =
            (address("copying on the device", destination)?, address("copying on the device", source)?);
        self.with_foreign(|| {
            (0..to.height).try_for_each(|row| {
                let to_row = destination + (to.offset + row * to.pitch) as u64;
                let from_row = source + (from.offset + row * from.pitch) as u64;
                self.machine.copy(to_row, from_row, to.width as u64)
            })
        })?
        .map_err(memory_error("copying on the device"))
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

    fn tensor_map(&self, arguments: &TensorMapArguments<'_>) -> Result<[u64; 16]> {
        let map = TensorMap::encode(arguments)?;
        let (words, _) = map.as_bytes().as_chunks::<8>();
        Ok(std::array::from_fn(|i| u64::from_le_bytes(words[i])))
    }

    fn load_module(&self, name: &str, text: &str, _: &PtxSummary) -> Result<ModuleHandle> {
        Module::parse(name, text).map(|module| ModuleHandle::Emulator(EmulatorModule(module))).map_err(
            |error| Error::InvalidPtx {
                module: name.to_owned(),
                device: format!(
                    "emulator:{}.{}",
                    self.properties.compute_capability.0, self.properties.compute_capability.1
                ),
                log: error.to_string(),
            },
        )
    }

    fn function(&self, module: &ModuleHandle, entry: &str) -> Result<(FunctionHandle, FunctionResources)> {
        let module = parsed(module)?;
        let kernel = module.kernel(entry).ok_or_else(|| Error::MissingKernel {
            kernel: entry.to_owned(),
            module: module.file().to_owned(),
            available: "no such entry".into(),
        })?;
        let resources = FunctionResources {
            static_shared: kernel.static_shared,
            max_threads: self.properties.max_threads_per_block,
            registers: None,
        };
        Ok((FunctionHandle::Emulator, resources))
    }

    unsafe fn launch(
        &self,
        module: &ModuleHandle,
        _: FunctionHandle,
        entry: &str,
        size: LaunchSize,
        arguments: &[RawArg],
        _: &StreamHandle,
    ) -> Result<()> {
        // A launch of more blocks than the device holds has been refused.
        let LaunchSize { grid, block, cluster, dynamic_shared, cooperative: _, early: _, beside_last } = size;
        let arguments: Vec<&[u8]> = arguments
            .iter()
            // SAFETY: the caller answers for the arguments being readable.
            .map(|argument| unsafe { std::slice::from_raw_parts(argument.data, argument.size) })
            .collect();
        let config = LaunchConfig { grid, block, cluster, dynamic_shared, beside_last };
        let module = parsed(module)?;
        self.with_foreign(|| self.machine.launch(module, entry, &config, &arguments))?
            .map(|_| ())
            .map_err(|error| launch_error(entry, error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_compute_capability_takes_the_generation_before_it() {
        assert_eq!(generation((8, 0)).gpu, "A100");
        assert_eq!(generation((8, 8)).gpu, "Orin");
        assert_eq!(generation((10, 3)).gpu, "B200");
        assert_eq!(generation((99, 0)).gpu, "RTX 5090");
        assert_eq!(generation((5, 0)).gpu, "T4");
        assert!(GENERATIONS.is_sorted_by_key(|generation| generation.capability));
    }
}
