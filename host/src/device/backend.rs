//! The interface that every kind of device implements, and the handles that it gives out.
//!
//! Everything above this module is written once for all devices. Handles are enums over the kinds rather than trait
//! objects: a handle that reaches a backend of another kind is an error, never a cast.

use std::ffi::c_void;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use warpsmith_dsl::launch::RawArg;
use warpsmith_emulator::TensorMapArguments;

use crate::device::cuda::{self, Bound};
use crate::device::emulator;
use crate::device::{DeviceKind, MemoryStats, Properties};
use crate::error::{Error, Result};
use crate::kernel::PtxSummary;
use crate::memory::{HostBytes, HostMemory, Owner};
use crate::stream::StreamPriority;

/// Memory of a device.
#[derive(Debug)]
pub(crate) enum Memory {
    /// Memory that the host addresses: the CPU device's.
    Host(HostMemory),
    /// An address of the device.
    Device(u64),
    /// Zero bytes: nothing was allocated.
    Empty,
}

/// `height` rows of `width` bytes in a device's memory, `pitch` bytes from one row's start to the next, the first at
/// `offset`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rows {
    pub(crate) offset: usize,
    pub(crate) pitch: usize,
    pub(crate) width: usize,
    pub(crate) height: usize,
}

impl Rows {
    /// The bytes from the first row's start to the last row's end.
    pub(crate) fn span(self) -> usize {
        if self.height == 0 || self.width == 0 { 0 } else { (self.height - 1) * self.pitch + self.width }
    }
}

/// A stream of a device.
#[derive(Debug)]
pub(crate) enum StreamHandle {
    /// Work is done by the call that asks for it.
    Immediate,
    /// A stream of a GPU.
    Cuda(cuda::CudaStream),
}

/// A point in a stream's work.
#[derive(Debug)]
pub(crate) enum EventHandle {
    /// The time at which the work before it was done.
    Immediate(Instant),
    /// An event of a GPU.
    Cuda(cuda::CudaEvent),
}

/// Recorded work that can be enqueued again.
#[derive(Debug)]
pub(crate) enum GraphHandle {
    /// A graph of a GPU.
    Cuda(cuda::CudaGraph),
}

/// A loaded module.
#[derive(Debug)]
pub(crate) enum ModuleHandle {
    /// A module that the emulator has parsed.
    Emulator(emulator::EmulatorModule),
    /// A module that the driver has compiled.
    Cuda(cuda::CudaModule),
}

/// An entry of a loaded module; valid as long as the module is.
#[derive(Clone, Copy, Debug)]
pub(crate) enum FunctionHandle {
    /// An entry that the emulator finds by its name.
    Emulator,
    /// The driver's handle.
    Cuda(cuda::CudaFunction),
}

/// What is known of an entry once its module is loaded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FunctionResources {
    /// Statically allocated shared memory, bytes a block.
    pub(crate) static_shared: u32,
    /// Threads that a block of this entry may have at most (its registers may allow fewer than the device does).
    pub(crate) max_threads: u32,
    /// Registers a thread, where that is known.
    pub(crate) registers: Option<u32>,
}

/// The size of a launch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LaunchSize {
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    /// Blocks of a cluster; `[1; 3]` without clusters.
    pub(crate) cluster: [u32; 3],
    pub(crate) dynamic_shared: u32,
    /// Whether all blocks have to be on the device at the same time.
    pub(crate) cooperative: bool,
    /// Whether it may begin before the launches before it on the stream have ended: the kernel waits for them itself.
    pub(crate) early: bool,
    /// Whether the last launch lets it begin only when all before that have ended: see
    /// [`launch_beside_last`](crate::kernel::TypedKernel::launch_beside_last).
    pub(crate) beside_last: bool,
}

/// Why an allocation failed.
#[derive(Debug)]
pub(crate) enum AllocationError {
    /// There is not enough memory: releasing some may help.
    Full,
    /// Anything else.
    Other(Error),
}

/// A kind of device.
///
/// Methods that take a `StreamHandle` enqueue their work there and may return before it is done.
pub(crate) trait Backend: Send + Sync + fmt::Debug {
    fn kind(&self) -> DeviceKind;
    /// What [`str::parse`](str::parse) opens it by: an emulator's has its compute capability.
    fn label(&self) -> String {
        let (major, minor) = self.properties().compute_capability;
        match self.kind() {
            kind @ DeviceKind::Emulator => format!("{kind}:{major}.{minor}"),
            kind @ (DeviceKind::Cuda(_) | DeviceKind::Cpu) => kind.to_string(),
        }
    }
    fn name(&self) -> &str;
    fn properties(&self) -> &Properties;

    /// Makes the device's context the calling thread's current one, if it has one.
    fn make_current(&self) -> Result<Option<Bound>> {
        Ok(None)
    }

    /// Allocates `bytes` (at least 1) bytes, usable by work on `stream` and by work ordered after it.
    fn allocate(&self, bytes: usize, stream: &StreamHandle) -> Result<Memory, AllocationError>;
    /// Frees `memory`, which is of `bytes` bytes, once the work on `stream` so far is done.
    fn free(&self, memory: Memory, bytes: usize, home: &Arc<StreamHandle>);
    /// Takes `bytes` (at least 1) bytes at `address` that are somebody else's as this device's memory.
    ///
    /// # Safety
    ///
    /// They are valid for reads and, where `is_writable`, for writes, until they are [disowned](Self::disown) and their owner is dropped.
    unsafe fn adopt(
        &self,
        operation: &'static str,
        address: u64,
        bytes: usize,
        is_writable: bool,
    ) -> Result<Memory>;
    /// Lets go of memory that was adopted. Drops its `owner` once the work on `stream` so far is done.
    fn disown(&self, memory: Memory, owner: Owner, stream: &Arc<StreamHandle>);
    /// Drops `owner` once the work on `stream` so far is done.
    fn keep(&self, owner: Owner, _stream: &Arc<StreamHandle>) {
        drop(owner);
    }
    /// Gives memory that is pooled but unused back to the system.
    fn release_memory(&self) -> Result<()>;
    fn memory_stats(&self) -> Result<MemoryStats>;
    /// Where `zeros` words are that all work of `stream` finds zero and leaves so, and `bytes` bytes that each launch may use for itself, if the device keeps such
    /// for it; `is_recorded` is whether this crate records the work.
    fn kept(
        &self,
        _stream: &StreamHandle,
        _is_recorded: bool,
        _zeros: usize,
        _bytes: usize,
    ) -> Result<Option<[u64; 2]>> {
        Ok(None)
    }
    /// Fills `rows` with `byte`.
    fn fill(&self, memory: &Memory, rows: Rows, byte: u8, stream: &StreamHandle) -> Result<()>;
    /// Copies rows of the device, densely packed, to the host.
    ///
    /// # Safety
    ///
    /// `rows` is within `memory`, and `destination` is valid for writes of `rows.width * rows.height` bytes until the
    /// work on `stream` is done.
    unsafe fn read(
        &self,
        memory: &Memory,
        rows: Rows,
        destination: *mut u8,
        stream: &StreamHandle,
    ) -> Result<()>;
    /// Copies densely packed rows from the host to the device.
    ///
    /// # Safety
    ///
    /// `rows` is within `memory`, and `source` is valid for reads of `rows.width * rows.height` bytes until the work
    /// on `stream` is done.
    unsafe fn write(
        &self,
        memory: &Memory,
        rows: Rows,
        source: *const u8,
        stream: &StreamHandle,
    ) -> Result<()>;
    /// Copies rows to as many rows of the same width on the same device; the two do not overlap.
    fn copy(
        &self,
        destination: (&Memory, Rows),
        source: (&Memory, Rows),
        stream: &StreamHandle,
    ) -> Result<()>;

    /// Allocates host memory that the device's copy engines reach; zeroed.
    fn allocate_pinned(&self, bytes: usize) -> Result<HostBlock>;
    /// Allocates `bytes` (at least 1) bytes of host memory that the device's kernels read: pinned, or managed by the driver; zeroed. `None` from a
    /// device whose own memory is the host's.
    fn allocate_mapped(&self, _bytes: usize, _managed: bool) -> Result<Option<cuda::CudaMappedMemory>> {
        Ok(None)
    }

    fn new_stream(&self, priority: StreamPriority) -> Result<StreamHandle>;
    /// A stream that is somebody else's, by the driver's handle.
    ///
    /// # Safety
    ///
    /// The handle is valid as long as `owner` lives.
    unsafe fn borrow_stream(&self, _raw: *mut c_void, _owner: Owner) -> Result<StreamHandle> {
        Err(Error::UnsupportedDevice {
            operation: "Stream::borrow",
            device: self.label(),
            expected: "a GPU".into(),
            actual: "no streams of the driver's".into(),
        })
    }
    fn synchronize(&self, stream: &StreamHandle) -> Result<()>;
    fn synchronize_all(&self) -> Result<()>;
    fn record(&self, stream: &StreamHandle) -> Result<EventHandle>;
    /// Makes later work on `stream` wait for `event`.
    fn wait(&self, stream: &StreamHandle, event: &EventHandle) -> Result<()>;
    fn synchronize_event(&self, event: &EventHandle) -> Result<()>;
    fn is_done(&self, event: &EventHandle) -> Result<bool>;
    fn elapsed(&self, start: &EventHandle, end: &EventHandle) -> Result<Duration>;

    /// Records what `work` enqueues on `stream` instead of doing it; `None` from a device that has no such recordings, which
    /// then has not called `work`.
    fn record_graph(
        &self,
        _stream: &StreamHandle,
        _work: &mut dyn FnMut() -> Result<()>,
    ) -> Result<Option<GraphHandle>> {
        Ok(None)
    }
    /// Enqueues recorded work.
    ///
    /// # Safety
    ///
    /// What the recorded work uses is valid until the work on `stream` is done.
    unsafe fn launch_graph(&self, graph: &GraphHandle, _stream: &StreamHandle) -> Result<()> {
        let GraphHandle::Cuda(_) = graph;
        Err(foreign_handle("enqueueing recorded work", "graph", self.kind()))
    }

    /// The words of a tensor map.
    fn tensor_map(&self, arguments: &TensorMapArguments<'_>) -> Result<[u64; 16]>;

    fn load_module(&self, name: &str, text: &str, summary: &PtxSummary) -> Result<ModuleHandle>;
    fn function(&self, module: &ModuleHandle, entry: &str) -> Result<(FunctionHandle, FunctionResources)>;
    /// Launches an entry.
    ///
    /// # Safety
    ///
    /// `function` belongs to `module`; the arguments are what the entry takes, and the memory that they name is valid
    /// for what the kernel does with it, until the work on `stream` is done.
    unsafe fn launch(
        &self,
        module: &ModuleHandle,
        function: FunctionHandle,
        entry: &str,
        size: LaunchSize,
        arguments: &[RawArg],
        stream: &StreamHandle,
    ) -> Result<()>;
}

/// Host memory from a backend.
#[derive(Debug)]
pub(crate) enum HostBlock {
    /// Ordinary memory.
    Pageable(HostBytes),
    /// Memory that the driver has pinned.
    Cuda(cuda::CudaHostMemory),
}

/// The error for a handle that belongs to another kind of device.
pub(crate) fn foreign_handle(operation: &'static str, operand: &'static str, expected: DeviceKind) -> Error {
    Error::DeviceMismatch {
        operation,
        operand,
        expected: expected.to_string(),
        actual: "another kind of device".into(),
    }
}
