//! NVIDIA GPUs.
//!
//! There is one [`Gpu`] a GPU and process while anything of it is in use. It works in the GPU's primary context, the one
//! that the CUDA runtime uses too; every call has that context be the calling thread's current one, and restores the one before.
//! Everything that the driver gave out holds the context, so nothing outlives it.

mod context;
#[cfg(feature = "cust")]
mod cust;
mod event;
mod foreign;
mod graph;
mod kept;
mod launch;
mod mapped;
mod module;
mod pinned;
mod raw;
mod recordings;
mod tensor_map;

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use warpsmith_dsl::launch::RawArg;
use warpsmith_emulator::TensorMapArguments;

pub(crate) use context::Bound;
#[cfg(feature = "cust")]
pub(crate) use cust::{
    device_of_context, device_of_handle, expect_primary, in_context, kept, shared_ordinal,
};
pub(crate) use event::CudaEvent;
pub(crate) use graph::CudaGraph;
pub(crate) use mapped::CudaMappedMemory;
pub(crate) use module::{CudaFunction, CudaModule};
pub(crate) use pinned::CudaHostMemory;
pub(crate) use raw::{CudaStream, is_sanitized};

use super::backend::{
    AllocationError, Backend, EventHandle, FunctionHandle, FunctionResources, GraphHandle, HostBlock,
    LaunchSize, Memory, ModuleHandle, Rows, StreamHandle, foreign_handle,
};
use super::cpu::pageable_block;
use super::properties::max_cluster;
use super::{Device, DeviceKind, Inner, MemoryStats, Properties};
use crate::driver::sys::{self as cuda, CUdevice};
use crate::driver::{self, Failure, code};
use crate::error::{Error, Result};
use crate::kernel::PtxSummary;
use crate::memory::Owner;
use crate::stream::StreamPriority;
use context::GpuContext;
use foreign::Leaving;

/// What fails if a GPU cannot be used.
const OPENING: &str = "opening a GPU";

/// One GPU.
#[derive(Debug)]
struct Gpu {
    ordinal: usize,
    name: String,
    properties: Properties,
    /// The largest pitch of a two-dimensional copy.
    max_pitch: usize,
    /// `None` where the driver has no stream-ordered allocator.
    pool: Option<raw::Pool>,
    /// Owners of foreign memory that may still be in use.
    leaving: Leaving,
    maps: tensor_map::Maps,
    context: Arc<GpuContext>,
}

/// Initialises the driver.
fn initialise() -> Result<()> {
    const OPERATION: &str = "initialising the driver";
    // SAFETY: it may be called at any time.
    match unsafe { cuda::cuInit(0) } {
        Ok(()) => Ok(()),
        Err(Failure::Code(code::NO_DEVICE)) => Err(Error::NoSuchDevice {
            requested: "cuda".into(),
            available: "a GPU; the NVIDIA driver is there but reports none".into(),
        }),
        Err(failure @ Failure::Code(_)) => Err(Error::NoDriver {
            expected: "an NVIDIA driver that starts".into(),
            reason: failure.error(OPERATION).to_string(),
        }),
        Err(failure) => Err(failure.error(OPERATION)),
    }
}

/// How many GPUs the driver has, once it is initialised.
fn gpus(operation: &'static str) -> Result<usize> {
    let mut count = 0;
    // SAFETY: the number is written to a local variable.
    driver::check(operation, unsafe { cuda::cuDeviceGetCount(&raw mut count) })?;
    Ok(usize::try_from(count).unwrap_or(0))
}

/// How many GPUs there are.
pub(super) fn count() -> Result<usize> {
    match initialise() {
        Err(Error::NoSuchDevice { .. }) => Ok(0),
        other => other.and_then(|()| gpus("counting GPUs")),
    }
}

/// What may be in use of a GPU.
struct Known {
    device: Weak<Inner>,
    /// Also in use while the device is being dropped, which waits for the context when it unloads modules.
    context: Weak<GpuContext>,
}

/// The device of a GPU: the one in use if there is one.
pub(super) fn open(ordinal: usize) -> Result<Device> {
    static OPEN: Mutex<Option<HashMap<usize, Known>>> = Mutex::new(None);
    initialise()?;
    let mut open = OPEN.lock();
    let open = open.get_or_insert_default();
    let known = open.get(&ordinal);
    if let Some(inner) = known.and_then(|known| known.device.upgrade()) {
        return Ok(Device(inner));
    }
    let (gpu, stream) = Gpu::new(ordinal, known.and_then(|known| known.context.upgrade()))?;
    let context = Arc::downgrade(&gpu.context);
    let device = Device::from_backend(Box::new(gpu), StreamHandle::Cuda(stream));
    open.insert(ordinal, Known { device: Arc::downgrade(&device.0), context });
    Ok(device)
}

impl Gpu {
    /// A GPU and its default stream, in its `context` if that is in use.
    fn new(ordinal: usize, context: Option<Arc<GpuContext>>) -> Result<(Self, CudaStream)> {
        let count = gpus(OPENING)?;
        let number = i32::try_from(ordinal).ok().filter(|_| ordinal < count).ok_or_else(|| {
            let available = match count {
                0 => "no NVIDIA GPU".to_owned(),
                1 => "`cuda:0`".to_owned(),
                _ => format!("`cuda:0` to `cuda:{}`", count - 1),
            };
            Error::NoSuchDevice { requested: format!("cuda:{ordinal}"), available }
        })?;
        let mut device = 0;
        // SAFETY: the handle is written to a local variable.
        driver::check(OPENING, unsafe { cuda::cuDeviceGet(&raw mut device, number) })?;
        let context = context.map_or_else(|| GpuContext::new(device).map(Arc::new), Ok)?;
        let _bound = context.bind()?;
        let name = name_of(device)?;
        let attribute = |attribute| raw::attribute(device, attribute);
        let max_pitch = attribute(raw::Attribute::CU_DEVICE_ATTRIBUTE_MAX_PITCH)? as usize;
        let pool = raw::Pool::new(&context, device)?;
        let stream = CudaStream::new(&context, StreamPriority::Normal)?;
        let properties = properties(device, attribute)?;
        Ok((
            Self {
                ordinal,
                name,
                properties,
                max_pitch,
                pool,
                leaving: Leaving::default(),
                maps: tensor_map::Maps::default(),
                context,
            },
            stream,
        ))
    }

    fn stream<'a>(&self, handle: &'a StreamHandle) -> Result<&'a CudaStream> {
        match handle {
            StreamHandle::Cuda(stream) if stream.is_of_this_thread() => Ok(stream),
            StreamHandle::Cuda(_) => Err(Error::Argument {
                operation: "using a stream",
                argument: "the calling thread",
                expected: "the one that borrowed the stream, whose default stream it is (handle 2)".into(),
                actual: format!("{:?}", std::thread::current().id()),
            }),
            StreamHandle::Immediate => Err(foreign_handle("using a stream", "stream", self.kind())),
        }
    }

    fn event<'a>(&self, handle: &'a EventHandle) -> Result<&'a CudaEvent> {
        match handle {
            EventHandle::Cuda(event) => Ok(event),
            EventHandle::Immediate(_) => Err(foreign_handle("using an event", "event", self.kind())),
        }
    }

    fn address(&self, memory: &Memory) -> Result<u64> {
        match memory {
            Memory::Device(address) => Ok(*address),
            Memory::Host(_) | Memory::Empty => Err(foreign_handle("using memory", "memory", self.kind())),
        }
    }

    fn module<'a>(&self, handle: &'a ModuleHandle) -> Result<&'a CudaModule> {
        match handle {
            ModuleHandle::Cuda(module) => Ok(module),
            ModuleHandle::Emulator(_) => Err(foreign_handle("using a module", "module", self.kind())),
        }
    }
}

/// A GPU's name.
fn name_of(device: CUdevice) -> Result<String> {
    const CAPACITY: usize = 256;
    let mut name = [0u8; CAPACITY];
    // SAFETY: the driver writes at most so many bytes, a zero byte the last.
    driver::check(OPENING, unsafe {
        cuda::cuDeviceGetName(name.as_mut_ptr().cast(), CAPACITY as i32, device)
    })?;
    let length = name.iter().position(|&byte| byte == 0).unwrap_or(CAPACITY);
    Ok(String::from_utf8_lossy(&name[..length]).into_owned())
}

fn properties(device: CUdevice, attribute: impl Fn(raw::Attribute) -> Result<u32>) -> Result<Properties> {
    use raw::Attribute as A;
    const OPERATION: &str = "asking for a GPU's properties";
    let mut total_memory = 0;
    // SAFETY: the number is written to a local variable.
    driver::check(OPERATION, unsafe { cuda::cuDeviceTotalMem_v2(&raw mut total_memory, device) })?;
    let compute_capability = (
        attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
        attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
    );
    Ok(Properties {
        compute_capability,
        multiprocessors: attribute(A::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        warp_size: attribute(A::CU_DEVICE_ATTRIBUTE_WARP_SIZE)?,
        max_threads_per_block: attribute(A::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK)?,
        max_threads_per_multiprocessor: attribute(A::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR)?,
        max_block: [
            attribute(A::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X)?,
            attribute(A::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y)?,
            attribute(A::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z)?,
        ],
        max_grid: [
            attribute(A::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X)?,
            attribute(A::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y)?,
            attribute(A::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z)?,
        ],
        max_cluster: max_cluster(compute_capability),
        max_shared_per_block: attribute(A::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?,
        shared_per_multiprocessor: attribute(A::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR)?,
        reserved_shared_per_block: attribute(A::CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK)?,
        registers_per_multiprocessor: attribute(A::CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR)?,
        // 32,764 bytes from compute capability 7.0 and CUDA 12.1 on, for PTX of version 8.1 and later. What this crate
        // ships is older, and the limit that always holds is enough.
        max_parameter_bytes: 4096,
        total_memory: total_memory as u64,
        l2_bytes: u64::from(attribute(A::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)?),
        // Newer drivers may give up on clocks. Without them, kernels are chosen as for an H100's memory.
        clock_khz: attribute(A::CU_DEVICE_ATTRIBUTE_CLOCK_RATE).unwrap_or(0),
        memory_clock_khz: attribute(A::CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE).unwrap_or(0),
        memory_bus_bits: attribute(A::CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH).unwrap_or(0),
        driver_version: driver::version(),
        pci_address: Some([
            attribute(A::CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID)?,
            attribute(A::CU_DEVICE_ATTRIBUTE_PCI_BUS_ID)?,
            attribute(A::CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID)?,
        ]),
    })
}

impl Drop for Gpu {
    fn drop(&mut self) {
        self.leaving.close(&self.context);
    }
}

impl Backend for Gpu {
    fn kind(&self) -> DeviceKind {
        DeviceKind::Cuda(self.ordinal)
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn properties(&self) -> &Properties {
        &self.properties
    }

    fn allocate(&self, bytes: usize, stream: &StreamHandle) -> Result<Memory, AllocationError> {
        let stream = self.stream(stream).map_err(AllocationError::Other)?;
        let _bound = self.context.bind().map_err(AllocationError::Other)?;
        raw::allocate(self.pool.as_ref(), bytes, stream).map(Memory::Device)
    }

    fn free(&self, memory: Memory, _: usize, home: &Arc<StreamHandle>) {
        let (Ok(address), StreamHandle::Cuda(stream)) = (self.address(&memory), &**home) else { return };
        let Ok(_bound) = self.context.bind() else { return };
        let free = |stream: &CudaStream| raw::free(self.pool.as_ref(), address, stream).is_ok();
        // The handle of a thread's default stream stands for another stream on another thread, which knows nothing of that one's work.
        let is_free = match stream.is_of_this_thread() {
            true => !stream.is_held_up() && free(stream),
            false => CudaStream::after_all_threads(&self.context).is_some_and(|legacy| free(&legacy)),
        };
        // While somebody captures, no work can be ordered after the legacy stream's.
        if !is_free {
            let context = self.context.clone();
            self.leaving.add(&self.context, home, Box::new(raw::Unused { context, address }));
        }
    }

    unsafe fn adopt(&self, operation: &'static str, address: u64, bytes: usize, _: bool) -> Result<Memory> {
        let _bound = self.context.bind()?;
        let gpu = raw::gpu_of(address);
        if gpu.is_some_and(|gpu| gpu != self.context.device()) {
            return Err(Error::DeviceMismatch {
                operation,
                operand: "address",
                expected: self.kind().to_string(),
                actual: gpu.map_or_else(String::new, |gpu| format!("cuda:{gpu}")),
            });
        }
        let end = address.checked_add(bytes as u64);
        // Memory that is mapped in pieces is known to the driver by the piece: there may be a next one where one ends.
        let mut known = None;
        while let Some((base, length)) = raw::allocation_of(known.unwrap_or(address))
            && let Some(next) = base.checked_add(length as u64)
            && known.is_none_or(|known| next > known)
        {
            known = Some(next);
            if end.is_none_or(|end| end <= next) {
                break;
            }
        }
        let fits = end.is_some_and(|end| known.is_none_or(|known| end <= known));
        if !fits {
            return Err(Error::SizeLimit {
                operation,
                operand: "tensor",
                quantity: "end",
                limit: known.map_or_else(
                    || "an address of 64 bits".into(),
                    |known| format!("at most {known:#x}, the end of the allocation"),
                ),
                actual: end.map_or_else(|| "beyond 64 bits".into(), |end| format!("{end:#x}")),
            });
        }
        Ok(Memory::Device(address))
    }

    fn disown(&self, _: Memory, owner: Owner, stream: &Arc<StreamHandle>) {
        self.keep(owner, stream);
    }

    fn keep(&self, owner: Owner, stream: &Arc<StreamHandle>) {
        self.leaving.add(&self.context, stream, owner);
    }

    unsafe fn borrow_stream(&self, raw: *mut c_void, owner: Owner) -> Result<StreamHandle> {
        let _bound = self.context.bind()?;
        // SAFETY: the caller's promise.
        unsafe { CudaStream::borrow(&self.context, raw.cast(), owner) }.map(StreamHandle::Cuda)
    }

    fn release_memory(&self) -> Result<()> {
        self.context.when_done(|| self.pool.as_ref().map_or(Ok(()), raw::Pool::trim))?
    }

    fn memory_stats(&self) -> Result<MemoryStats> {
        let _bound = self.context.bind()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: the numbers are written to local variables.
        driver::check("asking for free memory", unsafe {
            cuda::cuMemGetInfo_v2(&raw mut free, &raw mut total)
        })?;
        let (free, total) = (free as u64, total as u64);
        let (used, reserved) = match &self.pool {
            Some(pool) => pool.usage()?,
            None => (total - free, total - free),
        };
        Ok(MemoryStats { used, reserved, free, total })
    }

    fn kept(
        &self,
        stream: &StreamHandle,
        is_recorded: bool,
        zeros: usize,
        bytes: usize,
    ) -> Result<Option<[u64; 2]>> {
        let stream = self.stream(stream)?;
        let _bound = self.context.bind()?;
        stream.kept(self.pool.as_ref(), is_recorded, kept::Sizes { zeros, bytes })
    }

    fn fill(&self, memory: &Memory, rows: Rows, byte: u8, stream: &StreamHandle) -> Result<()> {
        let (address, stream) = (self.address(memory)?, self.stream(stream)?);
        let _bound = self.context.bind()?;
        raw::fill(address, rows, byte, stream)
    }

    unsafe fn read(
        &self,
        memory: &Memory,
        rows: Rows,
        destination: *mut u8,
        stream: &StreamHandle,
    ) -> Result<()> {
        let (address, stream) = (self.address(memory)?, self.stream(stream)?);
        let _bound = self.context.bind()?;
        // SAFETY: the caller answers for both sides.
        unsafe { raw::read(address, rows, destination, self.max_pitch, stream) }
    }

    unsafe fn write(
        &self,
        memory: &Memory,
        rows: Rows,
        source: *const u8,
        stream: &StreamHandle,
    ) -> Result<()> {
        let (address, stream) = (self.address(memory)?, self.stream(stream)?);
        let _bound = self.context.bind()?;
        // SAFETY: the caller answers for both sides.
        unsafe { raw::write(address, rows, source, self.max_pitch, stream) }
    }

    fn copy(
        &self,
        (destination, to): (&Memory, Rows),
        (source, from): (&Memory, Rows),
        stream: &StreamHandle,
    ) -> Result<()> {
        let (destination, source) = (self.address(destination)?, self.address(source)?);
        let stream = self.stream(stream)?;
        let _bound = self.context.bind()?;
        raw::copy((destination, to), (source, from), self.max_pitch, stream)
    }

    fn allocate_pinned(&self, bytes: usize) -> Result<HostBlock> {
        if bytes == 0 {
            return pageable_block(bytes);
        }
        let _bound = self.context.bind()?;
        CudaHostMemory::zeroed(&self.context, bytes).map(HostBlock::Cuda)
    }

    fn allocate_mapped(&self, bytes: usize, managed: bool) -> Result<Option<CudaMappedMemory>> {
        let _bound = self.context.bind()?;
        let memory = if managed {
            CudaMappedMemory::managed(&self.context, self.ordinal, bytes)
        } else {
            CudaMappedMemory::pinned(&self.context, bytes)
        };
        memory.map(Some)
    }

    fn new_stream(&self, priority: StreamPriority) -> Result<StreamHandle> {
        let _bound = self.context.bind()?;
        CudaStream::new(&self.context, priority).map(StreamHandle::Cuda)
    }

    fn make_current(&self) -> Result<Option<Bound>> {
        self.context.bind().map(Some)
    }

    fn synchronize(&self, stream: &StreamHandle) -> Result<()> {
        let stream = self.stream(stream)?;
        let _bound = self.context.bind()?;
        stream.synchronize()?;
        self.leaving.release(&self.context);
        Ok(())
    }

    fn synchronize_all(&self) -> Result<()> {
        self.leaving.when_done(&self.context)
    }

    fn record(&self, stream: &StreamHandle) -> Result<EventHandle> {
        let stream = self.stream(stream)?;
        let _bound = self.context.bind()?;
        CudaEvent::record(&self.context, stream).map(EventHandle::Cuda)
    }

    fn wait(&self, stream: &StreamHandle, event: &EventHandle) -> Result<()> {
        let (stream, event) = (self.stream(stream)?, self.event(event)?);
        let _bound = self.context.bind()?;
        stream.wait(event)
    }

    fn synchronize_event(&self, event: &EventHandle) -> Result<()> {
        let event = self.event(event)?;
        let _bound = self.context.bind()?;
        event.synchronize()
    }

    fn is_done(&self, event: &EventHandle) -> Result<bool> {
        let event = self.event(event)?;
        let _bound = self.context.bind()?;
        event.is_done()
    }

    fn elapsed(&self, start: &EventHandle, end: &EventHandle) -> Result<Duration> {
        let (start, end) = (self.event(start)?, self.event(end)?);
        let _bound = self.context.bind()?;
        end.elapsed_since(start)
    }

    fn record_graph(
        &self,
        stream: &StreamHandle,
        work: &mut dyn FnMut() -> Result<()>,
    ) -> Result<Option<GraphHandle>> {
        let stream = self.stream(stream)?;
        let _bound = self.context.bind()?;
        let graph = graph::record(&self.context, stream, work);
        self.leaving.release(&self.context);
        graph.map(|graph| Some(GraphHandle::Cuda(graph)))
    }

    unsafe fn launch_graph(&self, graph: &GraphHandle, stream: &StreamHandle) -> Result<()> {
        let GraphHandle::Cuda(graph) = graph;
        let stream = self.stream(stream)?;
        let _bound = self.context.bind()?;
        // SAFETY: the caller answers for what the work uses.
        unsafe { graph.launch(stream) }
    }

    fn tensor_map(&self, arguments: &TensorMapArguments<'_>) -> Result<[u64; 16]> {
        self.maps.get(arguments, || {
            let _bound = self.context.bind()?;
            tensor_map::encode(arguments)
        })
    }

    fn load_module(&self, name: &str, text: &str, summary: &PtxSummary) -> Result<ModuleHandle> {
        let module = module::load(&self.context, self, name, text, summary)?;
        Ok(ModuleHandle::Cuda(module))
    }

    fn function(&self, module: &ModuleHandle, entry: &str) -> Result<(FunctionHandle, FunctionResources)> {
        let module = self.module(module)?;
        let _bound = self.context.bind()?;
        let (function, resources) = module.function(entry, self.properties.max_shared_per_block)?;
        Ok((FunctionHandle::Cuda(function), resources))
    }

    unsafe fn launch(
        &self,
        _: &ModuleHandle,
        function: FunctionHandle,
        _: &str,
        size: LaunchSize,
        arguments: &[RawArg],
        stream: &StreamHandle,
    ) -> Result<()> {
        let FunctionHandle::Cuda(function) = function else {
            return Err(foreign_handle("launching a kernel", "kernel", self.kind()));
        };
        let stream = self.stream(stream)?;
        let _bound = self.context.bind()?;
        // SAFETY: the caller answers for function and arguments.
        unsafe { launch::launch(function, size, self.properties.driver_version, arguments, stream) }
    }
}
