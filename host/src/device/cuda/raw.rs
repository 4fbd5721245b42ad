//! Streams that do not wait for the null stream, memory pools, and copies of rows in stream order.
//!
//! Every function expects the caller to have made the context current.

use std::ffi::c_int;
use std::fmt;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::{Arc, OnceLock};
use std::thread::{self, ThreadId};

use parking_lot::Mutex;

use super::GpuContext;
use super::event::CudaEvent;
use super::kept::{Kept, Sizes};
use crate::device::backend::{AllocationError, Rows};
use crate::driver::sys::{self as cuda, CUdevice, CUdeviceptr};
use crate::driver::{self, Failure, code};
use crate::error::{Error, Result};
use crate::memory::Owner;
use crate::stream::StreamPriority;

pub(super) use cuda::CUdevice_attribute as Attribute;

/// The handle that stands for the calling thread's default stream. Below it are those that stand for the legacy one.
const OF_THREAD: usize = 2;
/// The handle of the legacy default stream, whatever the program was compiled for.
const LEGACY: usize = 1;

/// Bytes of the longest asynchronous copy of a thread.
const COPY_BYTES: usize = 16;
/// The variable that has allocations be of whole copies, for compute-sanitizer.
const SANITIZER_VARIABLE: &str = "WARPSMITH_SANITIZER";

/// Bytes behind `bytes` that are allocated too, and zeroed: none, unless it is for compute-sanitizer. That counts a copy with a short source as one of all
/// its bytes, and would report the last elements of allocations.
fn padding(bytes: usize) -> usize {
    match is_sanitized() {
        true => bytes.checked_next_multiple_of(COPY_BYTES).map_or(0, |whole| whole - bytes),
        false => 0,
    }
}

/// Whether this runs under compute-sanitizer, as a variable says.
pub(crate) fn is_sanitized() -> bool {
    static IS: OnceLock<bool> = OnceLock::new();
    *IS.get_or_init(|| std::env::var_os(SANITIZER_VARIABLE).is_some_and(|value| !value.is_empty()))
}

/// A number that the driver knows of a GPU.
pub(super) fn attribute(device: CUdevice, attribute: Attribute) -> Result<u32> {
    let mut value = 0;
    // SAFETY: the value is written to a local variable; `device` comes from the driver.
    driver::check("asking for a GPU's properties", unsafe {
        cuda::cuDeviceGetAttribute(&raw mut value, attribute, device)
    })?;
    Ok(u32::try_from(value).unwrap_or(0))
}

/// A stream of a GPU: one of its own that runs beside all others, the null stream included, or a borrowed one.
pub(crate) struct CudaStream {
    raw: cuda::CUstream,
    context: Arc<GpuContext>,
    /// What keeps a stream alive that is somebody else's.
    owner: Option<Owner>,
    /// The thread that it is of, if it is a thread's default stream: the handle is the same in every thread.
    thread: Option<ThreadId>,
    kept: Mutex<Kept>,
}

// SAFETY: the driver's handles may be used from any thread.
unsafe impl Send for CudaStream {}
// SAFETY: as above.
unsafe impl Sync for CudaStream {}

impl CudaStream {
    /// The context is current.
    pub(super) fn new(context: &Arc<GpuContext>, priority: StreamPriority) -> Result<Self> {
        let priority = context.priority(priority)?;
        let mut raw = ptr::null_mut();
        let flags = cuda::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: the handle is written to a local variable.
        driver::check("creating a stream", unsafe {
            cuda::cuStreamCreateWithPriority(&raw mut raw, flags, priority)
        })?;
        Ok(Self { raw, context: context.clone(), owner: None, thread: None, kept: Mutex::default() })
    }

    /// A stream that is somebody else's, or one of the driver's default streams.
    ///
    /// # Safety
    ///
    /// The handle is valid as long as `owner` lives.
    pub(super) unsafe fn borrow(
        context: &Arc<GpuContext>,
        raw: cuda::CUstream,
        owner: Owner,
    ) -> Result<Self> {
        const OPERATION: &str = "Stream::borrow";
        let is_of_thread = raw.addr() == OF_THREAD;
        if raw.addr() > OF_THREAD {
            let mut of = ptr::null_mut();
            // SAFETY: the stream is alive; the handle is written to a local variable.
            driver::check(OPERATION, unsafe { cuda::cuStreamGetCtx(raw, &raw mut of) })?;
            if !context.is(of) {
                return Err(Error::DeviceMismatch {
                    operation: OPERATION,
                    operand: "stream",
                    expected: "the primary context of the device".into(),
                    actual: format!("of the context {of:?}"),
                });
            }
        }
        let thread = is_of_thread.then(|| thread::current().id());
        Ok(Self { raw, context: context.clone(), owner: Some(owner), thread, kept: Mutex::default() })
    }

    /// Whether the calling thread may use it.
    pub(super) fn is_of_this_thread(&self) -> bool {
        self.thread.is_none_or(|thread| thread == thread::current().id())
    }

    /// The legacy default stream. Its work comes after everything that the default streams of all threads were given before. `None` while it cannot be used:
    /// some stream that it would wait for is being captured.
    ///
    /// The context is current.
    pub(super) fn after_all_threads(context: &Arc<GpuContext>) -> Option<Self> {
        let _relaxed = Relaxed::new();
        let legacy = Self {
            raw: ptr::without_provenance_mut(LEGACY),
            context: context.clone(),
            owner: Some(Box::new(())),
            thread: None,
            kept: Mutex::default(),
        };
        (!legacy.is_held_up()).then_some(legacy)
    }

    /// Whether it takes no work now, since a stream that it would wait for is being captured: so it is with the legacy default stream. Work that it is given all the
    /// same ends that capture.
    pub(super) fn is_held_up(&self) -> bool {
        // To be asked does no harm: the driver answers with an error, and the capture goes on.
        self.raw.addr() <= LEGACY && !matches!(self.is_capturing(), Ok(false))
    }

    /// Whether its work is being captured, by whomever.
    pub(super) fn is_capturing(&self) -> Result<bool> {
        let mut status = 0;
        // SAFETY: the stream is alive; the number is written to a local variable.
        driver::check("asking a stream", unsafe { cuda::cuStreamIsCapturing(self.raw, &raw mut status) })?;
        Ok(status != 0)
    }

    /// Memory for this stream's work, which is kept for it: see [`Kept::memory`]. `None` also for what may run beside other work of the stream: that of
    /// somebody else's streams, and what others than this crate capture. `is_recorded` is whether this crate captures it: its graphs run on the stream
    /// that they are of.
    pub(super) fn kept(
        &self,
        pool: Option<&Pool>,
        is_recorded: bool,
        sizes: Sizes,
    ) -> Result<Option<[u64; 2]>> {
        if self.owner.is_some() {
            return Ok(None);
        }
        let is_captured = self.is_capturing()?;
        if is_captured && !is_recorded {
            return Ok(None);
        }
        self.kept.lock().memory(self, pool, is_captured, sizes)
    }

    /// What keeps it alive, if it is of the type `T`.
    #[cfg(feature = "cust")]
    pub(super) fn owner<T: 'static>(&self) -> Option<&T> {
        (**self.owner.as_ref()?).downcast_ref()
    }

    /// The context that it is of.
    #[cfg(feature = "cust")]
    pub(super) fn context(&self) -> &Arc<GpuContext> {
        &self.context
    }

    /// The driver's handle; valid as long as `self` is.
    pub(crate) fn raw(&self) -> cuda::CUstream {
        self.raw
    }

    pub(super) fn synchronize(&self) -> Result<()> {
        // SAFETY: the stream is alive.
        driver::check("waiting for a stream", unsafe { cuda::cuStreamSynchronize(self.raw) })
    }

    pub(super) fn wait(&self, event: &CudaEvent) -> Result<()> {
        // SAFETY: stream and event are alive; the driver keeps what it needs of the event.
        driver::check("making a stream wait", unsafe { cuda::cuStreamWaitEvent(self.raw, event.raw(), 0) })
    }
}

impl fmt::Debug for CudaStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CudaStream").field("raw", &self.raw).finish_non_exhaustive()
    }
}

impl Drop for CudaStream {
    fn drop(&mut self) {
        if self.owner.is_some() {
            return;
        }
        if let Ok(_bound) = self.context.bind() {
            self.kept.get_mut().free(self.raw);
            // SAFETY: the stream is alive and not used again. Its work goes on; memory that the work uses is freed in
            // stream order, by buffers that hold this stream.
            let _ = unsafe { cuda::cuStreamDestroy_v2(self.raw) };
        }
    }
}

/// A GPU as the place of memory.
fn location(device: CUdevice) -> cuda::CUmemLocation {
    let mut location = MaybeUninit::<cuda::CUmemLocation>::zeroed();
    let kind = cuda::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
    const { assert!(size_of::<cuda::CUmemLocation>() == 2 * size_of::<u32>()) };
    // SAFETY: the structure is the kind and the number behind it, which in later versions of CUDA is a field of a union.
    unsafe {
        (&raw mut (*location.as_mut_ptr()).type_).write(kind);
        location.as_mut_ptr().cast::<CUdevice>().add(1).write(device);
        location.assume_init()
    }
}

/// A pool of a GPU's memory that keeps what is freed until it is trimmed.
///
/// It is this crate's own, so its setting does not change how other users of the GPU in this process see memory.
#[derive(Debug)]
pub(super) struct Pool {
    raw: cuda::CUmemoryPool,
    context: Arc<GpuContext>,
}

// SAFETY: the driver's handles may be used from any thread.
unsafe impl Send for Pool {}
// SAFETY: as above.
unsafe impl Sync for Pool {}

impl Pool {
    /// A pool, or `None` if the driver has none on this GPU.
    pub(super) fn new(context: &Arc<GpuContext>, device: CUdevice) -> Result<Option<Self>> {
        const OPERATION: &str = "creating a memory pool";
        if attribute(device, Attribute::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED).unwrap_or(0) == 0 {
            return Ok(None);
        }
        // SAFETY: all fields are numbers, enums with a zero value, or pointers that may be null.
        let mut properties: cuda::CUmemPoolProps = unsafe { MaybeUninit::zeroed().assume_init() };
        properties.allocType = cuda::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
        properties.location = location(device);
        let mut raw = ptr::null_mut();
        // SAFETY: the handle is written to a local variable, the properties are read from one.
        driver::check(OPERATION, unsafe { cuda::cuMemPoolCreate(&raw mut raw, &raw const properties) })?;
        let pool = Self { raw, context: context.clone() };
        let mut keep_everything = u64::MAX;
        // SAFETY: the attribute is a 64-bit number.
        driver::check(OPERATION, unsafe {
            cuda::cuMemPoolSetAttribute(
                pool.raw,
                cuda::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD,
                (&raw mut keep_everything).cast(),
            )
        })?;
        Ok(Some(pool))
    }

    /// Gives everything back that is not in use.
    pub(super) fn trim(&self) -> Result<()> {
        // SAFETY: the pool is alive.
        driver::check("releasing memory", unsafe { cuda::cuMemPoolTrimTo(self.raw, 0) })
    }

    /// Bytes in use, and bytes that the pool holds.
    pub(super) fn usage(&self) -> Result<(u64, u64)> {
        use cuda::CUmemPool_attribute as A;
        let number = |attribute| {
            let mut value = 0u64;
            // SAFETY: the attributes that are asked for are 64-bit numbers, written to a local variable.
            driver::check("asking for a memory pool", unsafe {
                cuda::cuMemPoolGetAttribute(self.raw, attribute, (&raw mut value).cast())
            })?;
            Ok::<_, Error>(value)
        };
        Ok((number(A::CU_MEMPOOL_ATTR_USED_MEM_CURRENT)?, number(A::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)?))
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        if let Ok(_bound) = self.context.bind() {
            // SAFETY: the pool is alive and not used again; memory of it that is still being freed is returned when
            // that is done.
            let _ = unsafe { cuda::cuMemPoolDestroy(self.raw) };
        }
    }
}

/// Allocates memory in the order of `stream`'s work.
pub(super) fn allocate(
    pool: Option<&Pool>,
    bytes: usize,
    stream: &CudaStream,
) -> Result<CUdeviceptr, AllocationError> {
    let padding = padding(bytes);
    let mut address = 0;
    let (used, bytes) = (bytes, bytes + padding);
    let result = match pool {
        // SAFETY: pool and stream are alive; the address is written to a local variable.
        Some(pool) => unsafe { cuda::cuMemAllocFromPoolAsync(&raw mut address, bytes, pool.raw, stream.raw) },
        // SAFETY: the address is written to a local variable.
        None => unsafe { cuda::cuMemAlloc_v2(&raw mut address, bytes) },
    };
    match result {
        Err(Failure::Code(code::OUT_OF_MEMORY)) => return Err(AllocationError::Full),
        other => driver::check("allocating memory", other).map_err(AllocationError::Other)?,
    }
    if padding > 0 {
        // SAFETY: they are the last of the allocation, which nobody else knows yet.
        let zeroed = unsafe { cuda::cuMemsetD8Async(address + used as u64, 0, padding, stream.raw) };
        driver::check("allocating memory", zeroed).map_err(AllocationError::Other)?;
    }
    Ok(address)
}

/// The start and the bytes of the allocation that an address is in, where the driver can say.
pub(super) fn allocation_of(address: CUdeviceptr) -> Option<(CUdeviceptr, usize)> {
    let (mut base, mut bytes) = (0, 0);
    // SAFETY: the numbers are written to local variables; any address may be asked for.
    let range = unsafe { cuda::cuMemGetAddressRange_v2(&raw mut base, &raw mut bytes, address) };
    range.ok().map(|()| (base, bytes))
}

/// The one GPU that the memory at an address is of, where the driver can say. Managed memory and the host's are every GPU's.
pub(super) fn gpu_of(address: CUdeviceptr) -> Option<CUdevice> {
    use cuda::CUpointer_attribute as A;
    /// `CU_MEMORYTYPE_DEVICE`.
    const OF_DEVICE: u32 = 2;
    let number = |attribute| {
        let mut number = 0u32;
        // SAFETY: the attributes that are asked for are numbers of 32 bits at most; any address may be asked for.
        let known = unsafe { cuda::cuPointerGetAttribute((&raw mut number).cast(), attribute, address) };
        known.ok().map(|()| number)
    };
    let is_shared = number(A::CU_POINTER_ATTRIBUTE_IS_MANAGED).is_some_and(|managed| managed != 0)
        || number(A::CU_POINTER_ATTRIBUTE_MEMORY_TYPE) != Some(OF_DEVICE);
    let ordinal = number(A::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL).filter(|_| !is_shared)?;
    CUdevice::try_from(ordinal).ok()
}

/// Until it is dropped, captures of other libraries do not forbid this thread to ask for events: those that it asks for have no part in them.
pub(super) struct Relaxed {
    /// The thread's mode before, where the driver takes modes.
    before: Option<c_int>,
}

impl Relaxed {
    pub(super) fn new() -> Self {
        /// `CU_STREAM_CAPTURE_MODE_RELAXED`.
        const RELAXED: c_int = 2;
        let mut mode = RELAXED;
        // SAFETY: the number is read from and written to a local variable.
        let exchanged = unsafe { cuda::cuThreadExchangeStreamCaptureMode(&raw mut mode) };
        Self { before: exchanged.ok().map(|()| mode) }
    }
}

impl Drop for Relaxed {
    fn drop(&mut self) {
        if let Some(mut before) = self.before {
            // SAFETY: as above. An error has nowhere to go.
            let _ = unsafe { cuda::cuThreadExchangeStreamCaptureMode(&raw mut before) };
        }
    }
}

/// Frees memory in the order of `stream`'s work. An error can only be one of earlier work, which later calls report.
/// Frees memory of a device in the order of a stream's work.
pub(super) fn free(pool: Option<&Pool>, address: CUdeviceptr, stream: &CudaStream) -> Result<()> {
    // SAFETY: the address came from `allocate`, and what used it is ordered before this on the stream; freeing outside
    // of stream order waits for the device.
    driver::check("freeing memory", unsafe {
        match pool {
            Some(_) => cuda::cuMemFreeAsync(address, stream.raw),
            None => cuda::cuMemFree_v2(address),
        }
    })
}

/// Memory of a device that nothing uses any more when this is dropped.
#[derive(Debug)]
pub(super) struct Unused {
    pub(super) context: Arc<GpuContext>,
    pub(super) address: CUdeviceptr,
}

impl Drop for Unused {
    fn drop(&mut self) {
        if let Ok(_bound) = self.context.bind() {
            let _relaxed = Relaxed::new();
            // SAFETY: the address came from `allocate`, and no work that uses it is left. The driver relies on that for memory of pools, and does
            // not wait.
            let _ = unsafe { cuda::cuMemFree_v2(self.address) };
        }
    }
}

pub(super) fn fill(address: u64, rows: Rows, byte: u8, stream: &CudaStream) -> Result<()> {
    let Rows { offset, pitch, width, height } = rows;
    let (pieces, length) = if pitch == width || height == 1 { (1, width * height) } else { (height, width) };
    (0..pieces).try_for_each(|row| {
        let start = address + (offset + row * pitch) as u64;
        // SAFETY: the caller's rows lie within the memory at `address`.
        driver::check("filling memory", unsafe { cuda::cuMemsetD8Async(start, byte, length, stream.raw) })
    })
}

/// One side of a copy.
#[derive(Clone, Copy)]
enum Side {
    Device(u64),
    Host(*mut u8),
}

/// Copies rows from the device to dense rows on the host.
///
/// # Safety
///
/// As for [`Backend::read`](crate::device::backend::Backend::read).
pub(super) unsafe fn read(
    address: u64,
    rows: Rows,
    destination: *mut u8,
    max_pitch: usize,
    stream: &CudaStream,
) -> Result<()> {
    let dense = Rows { offset: 0, pitch: rows.width, ..rows };
    // SAFETY: the caller answers for both sides.
    unsafe { copy_rows((Side::Host(destination), dense), (Side::Device(address), rows), max_pitch, stream) }
}

/// Copies dense rows on the host to rows of the device.
///
/// # Safety
///
/// As for [`Backend::write`](crate::device::backend::Backend::write).
pub(super) unsafe fn write(
    address: u64,
    rows: Rows,
    source: *const u8,
    max_pitch: usize,
    stream: &CudaStream,
) -> Result<()> {
    let dense = Rows { offset: 0, pitch: rows.width, ..rows };
    // SAFETY: the caller answers for both sides; the source is only read from.
    unsafe {
        copy_rows((Side::Device(address), rows), (Side::Host(source.cast_mut()), dense), max_pitch, stream)
    }
}

/// Copies rows to rows of the same width on one device.
pub(super) fn copy(
    (destination, to): (u64, Rows),
    (source, from): (u64, Rows),
    max_pitch: usize,
    stream: &CudaStream,
) -> Result<()> {
    // SAFETY: the caller's rows lie within the memory at each address; device memory is no Rust object.
    unsafe { copy_rows((Side::Device(destination), to), (Side::Device(source), from), max_pitch, stream) }
}

/// # Safety
///
/// Both sides are valid for their rows until the work on `stream` is done, which are as many and as wide.
unsafe fn copy_rows(
    (destination, to): (Side, Rows),
    (source, from): (Side, Rows),
    max_pitch: usize,
    stream: &CudaStream,
) -> Result<()> {
    let dense = |rows: Rows| rows.pitch == rows.width || rows.height == 1;
    if dense(to) && dense(from) {
        let bytes = to.width * to.height;
        // SAFETY: both sides are one run of bytes.
        return unsafe { copy_run((destination, to.offset), (source, from.offset), bytes, stream) };
    }
    // The driver wants pitches of at least the width, which a single column of a transposed view need not have.
    let pitched = |rows: Rows| rows.width <= rows.pitch && rows.pitch <= max_pitch;
    if !pitched(to) || !pitched(from) {
        return (0..to.height).try_for_each(|row| {
            let starts = (to.offset + row * to.pitch, from.offset + row * from.pitch);
            // SAFETY: one row lies within the rows.
            unsafe { copy_run((destination, starts.0), (source, starts.1), to.width, stream) }
        });
    }
    // SAFETY: all fields are numbers, enums that are set below, or pointers that may be null.
    let mut copy: cuda::CUDA_MEMCPY2D = unsafe {
        let mut copy = MaybeUninit::<cuda::CUDA_MEMCPY2D>::zeroed();
        (&raw mut (*copy.as_mut_ptr()).srcMemoryType).write(cuda::CUmemorytype::CU_MEMORYTYPE_DEVICE);
        (&raw mut (*copy.as_mut_ptr()).dstMemoryType).write(cuda::CUmemorytype::CU_MEMORYTYPE_DEVICE);
        copy.assume_init()
    };
    copy.WidthInBytes = to.width;
    copy.Height = to.height;
    copy.dstPitch = to.pitch;
    copy.srcPitch = from.pitch;
    match destination {
        Side::Device(address) => copy.dstDevice = address + to.offset as u64,
        Side::Host(start) => {
            copy.dstMemoryType = cuda::CUmemorytype::CU_MEMORYTYPE_HOST;
            copy.dstHost = start.wrapping_add(to.offset).cast();
        }
    }
    match source {
        Side::Device(address) => copy.srcDevice = address + from.offset as u64,
        Side::Host(start) => {
            copy.srcMemoryType = cuda::CUmemorytype::CU_MEMORYTYPE_HOST;
            copy.srcHost = start.wrapping_add(from.offset).cast_const().cast();
        }
    }
    // SAFETY: the caller answers for both sides; the description is read during the call.
    driver::check("copying rows", unsafe { cuda::cuMemcpy2DAsync_v2(&raw const copy, stream.raw) })
}

/// # Safety
///
/// Both sides are valid for `bytes` bytes from their offsets until the work on `stream` is done.
unsafe fn copy_run(
    (destination, to): (Side, usize),
    (source, from): (Side, usize),
    bytes: usize,
    stream: &CudaStream,
) -> Result<()> {
    // SAFETY: the caller answers for both sides.
    let result = unsafe {
        match (destination, source) {
            (Side::Device(destination), Side::Device(source)) => {
                cuda::cuMemcpyDtoDAsync_v2(destination + to as u64, source + from as u64, bytes, stream.raw)
            }
            (Side::Device(destination), Side::Host(source)) => cuda::cuMemcpyHtoDAsync_v2(
                destination + to as u64,
                source.add(from).cast_const().cast(),
                bytes,
                stream.raw,
            ),
            (Side::Host(destination), Side::Device(source)) => cuda::cuMemcpyDtoHAsync_v2(
                destination.add(to).cast(),
                source + from as u64,
                bytes,
                stream.raw,
            ),
            (Side::Host(destination), Side::Host(source)) => {
                ptr::copy(source.add(from).cast_const(), destination.add(to), bytes);
                Ok(())
            }
        }
    };
    driver::check("copying", result)
}
