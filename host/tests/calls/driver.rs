//! A driver that does nothing, in the place of NVIDIA's: it says that there is an H100, gives out addresses of nothing, and counts the calls that it gets.
//!
//! `calls` builds it as a library by itself. So what a call of an operation costs its caller is seen on a machine without a GPU. `cargo xtask cust` builds
//! it for what links to the driver.

#![allow(non_snake_case, clippy::missing_safety_doc, reason = "the driver's names and contracts")]

use std::cell::Cell;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

type Status = c_int;
type Handle = *mut c_void;

thread_local! {
    static CURRENT: Cell<usize> = const { Cell::new(0) };
}

/// How often each of [`NAMES`] was called.
static CALLS: [AtomicU64; NAMES.len()] = [const { AtomicU64::new(0) }; NAMES.len()];
/// The next address or handle to give out.
static NEXT: AtomicUsize = AtomicUsize::new(1 << 32);

/// The GPU's primary context.
const PRIMARY: usize = 1;
/// Any other context.
const OTHER: usize = 2;
/// Set in addresses and handles that were given out in another context than the primary one.
const OF_OTHER: usize = 1 << 60;
/// The variable that says for which version of CUDA the driver is, as it says that itself.
const VERSION: &str = "WARPSMITH_STAND_IN_VERSION";
/// Whether somebody captures a stream that the legacy default stream waits for.
static IS_CAPTURED: AtomicBool = AtomicBool::new(false);
/// The driver's code for work that the legacy default stream is given then.
const IMPLICIT: Status = 906;

/// The stream that is recorded.
static RECORDED: AtomicUsize = AtomicUsize::new(NONE);
/// No stream.
const NONE: usize = usize::MAX;

/// Whether a stream is the legacy default stream, which takes no work while somebody captures.
fn is_held_up(stream: usize) -> bool {
    stream <= 1 && IS_CAPTURED.load(Ordering::Relaxed)
}

/// Has somebody capture a stream, or not any more.
#[unsafe(no_mangle)]
pub extern "C" fn capture(is: bool) {
    IS_CAPTURED.store(is, Ordering::Relaxed);
}

/// The variable that has the driver find no GPU.
const NO_GPU: &str = "WARPSMITH_STAND_IN_NO_GPU";
/// The driver's code for that.
const NO_DEVICE: Status = 100;

/// So many bytes that nobody else has.
fn fresh(bytes: usize) -> usize {
    let number = NEXT.fetch_add(bytes.next_multiple_of(512).max(512), Ordering::Relaxed);
    if CURRENT.get() == OTHER { number | OF_OTHER } else { number }
}

/// The context in which an address or a handle was given out.
fn context_of(given: usize) -> usize {
    if given & OF_OTHER == 0 { PRIMARY } else { OTHER }
}

/// A function whose parameters are said, with what it does.
macro_rules! functions {
    ($($name:ident($($argument:ident: $type:ty),*) $body:block)*) => {
        #[allow(non_camel_case_types, reason = "the driver's names")]
        #[derive(Clone, Copy)]
        enum Function { $($name),* }
        const NAMES: &[&str] = &[$(stringify!($name)),*];
        $(
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($argument: $type),*) -> Status {
                CALLS[Function::$name as usize].fetch_add(1, Ordering::Relaxed);
                $(let _ = $argument;)*
                $body
                0
            }
        )*
    };
}

/// Writes `value` where the driver would.
macro_rules! put {
    ($to:ident, $value:expr) => {
        // SAFETY: the caller of the driver gives a place for it.
        unsafe { $to.write($value) }
    };
}

/// An attribute of an H100.
fn of_device(attribute: c_int) -> c_int {
    match attribute {
        1 | 2 | 3 => 1024,
        4 => 64,
        5 => i32::MAX,
        6 | 7 => 65535,
        8 => 49152,
        10 => 32,
        11 => i32::MAX,
        12 | 82 => 65536,
        13 => 1_980_000,
        16 => 132,
        36 => 2_619_000,
        37 => 5120,
        38 => 50 << 20,
        39 => 2048,
        75 => 9,
        76 => 0,
        81 => 228 << 10,
        97 => 227 << 10,
        111 => 1024,
        115 => 1,
        _ => 1,
    }
}

/// How often the driver's function of this name, which ends in a zero byte, was called; -1 if there is none.
///
/// # Safety
///
/// The name ends.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn calls_of(name: *const c_char) -> i64 {
    // SAFETY: the caller's promise.
    let name = unsafe { std::ffi::CStr::from_ptr(name) }.to_str().unwrap_or_default();
    let index = NAMES.iter().position(|known| *known == name);
    index.map_or(-1, |index| CALLS[index].load(Ordering::Relaxed) as i64)
}

/// How often any function of the driver was called.
#[unsafe(no_mangle)]
pub extern "C" fn calls_of_all() -> u64 {
    CALLS.iter().map(|calls| calls.load(Ordering::Relaxed)).sum()
}

functions! {
    cuInit(flags: c_uint) {
        if std::env::var_os(NO_GPU).is_some() {
            return NO_DEVICE;
        }
    }
    cuGetErrorName(code: Status, name: *mut *const c_char) {
        put!(name, if code == NO_DEVICE { c"CUDA_ERROR_NO_DEVICE" } else { c"CUDA_ERROR" }.as_ptr())
    }
    cuGetErrorString(code: Status, text: *mut *const c_char) {
        put!(text, if code == NO_DEVICE { c"no CUDA-capable device is detected" } else { c"an error" }.as_ptr())
    }
    cuDriverGetVersion(version: *mut c_int) {
        let told = std::env::var(VERSION).ok().and_then(|version| version.parse().ok());
        put!(version, told.unwrap_or(13000))
    }
    cuDeviceGet(device: *mut c_int, ordinal: c_int) { put!(device, ordinal) }
    cuDeviceGetCount(count: *mut c_int) { put!(count, 1) }
    cuDeviceGetName(name: *mut c_char, length: c_int, device: c_int) { put!(name, 0) }
    cuDeviceTotalMem_v2(bytes: *mut usize, device: c_int) { put!(bytes, 80 << 30) }
    cuDeviceGetAttribute(value: *mut c_int, attribute: c_int, device: c_int) { put!(value, of_device(attribute)) }
    cuDevicePrimaryCtxRetain(context: *mut usize, device: c_int) { put!(context, PRIMARY) }
    cuDevicePrimaryCtxRelease_v2(device: c_int) {}
    cuDevicePrimaryCtxSetFlags_v2(device: c_int, flags: c_uint) {}
    cuCtxCreate_v2(context: *mut usize, flags: c_uint, device: c_int) { put!(context, OTHER); CURRENT.set(OTHER) }
    cuCtxDestroy_v2(context: usize) {}
    cuCtxGetDevice(device: *mut c_int) { put!(device, 0) }
    cuCtxSetCurrent(context: usize) { CURRENT.set(context) }
    cuCtxGetCurrent(context: *mut usize) { put!(context, CURRENT.get()) }
    cuCtxSynchronize() {}
    cuCtxGetStreamPriorityRange(least: *mut c_int, greatest: *mut c_int) { put!(least, 0); put!(greatest, -5) }
    cuModuleLoadDataEx(module: *mut usize, image: *const c_void, count: c_uint, options: Handle, values: Handle) {
        put!(module, fresh(1))
    }
    cuModuleLoadData(module: *mut usize, image: *const c_void) { put!(module, fresh(1)) }
    cuModuleUnload(module: usize) {}
    cuModuleGetFunction(function: *mut usize, module: usize, name: *const c_char) { put!(function, fresh(1)) }
    cuMemGetInfo_v2(free: *mut usize, total: *mut usize) { put!(free, 80 << 30); put!(total, 80 << 30) }
    cuMemGetAddressRange_v2(base: *mut usize, bytes: *mut usize, address: usize) {
        put!(base, 0);
        put!(bytes, usize::MAX)
    }
    cuPointerGetAttribute(value: Handle, attribute: c_int, address: usize) {
        // The context is a handle, what else is asked for a number.
        match attribute {
            1 => { let value: *mut usize = value.cast(); put!(value, context_of(address)) }
            _ => { let value: *mut c_int = value.cast(); put!(value, 0) }
        }
    }
    cuMemAlloc_v2(address: *mut usize, bytes: usize) { put!(address, fresh(bytes)) }
    cuMemFree_v2(address: usize) {}
    cuMemcpyHtoD_v2(to: usize, from: *const c_void, bytes: usize) {}
    cuMemcpyDtoH_v2(to: *mut c_void, from: usize, bytes: usize) {}
    cuMemcpyHtoDAsync_v2(to: usize, from: *const c_void, bytes: usize, stream: usize) {}
    cuMemcpyDtoHAsync_v2(to: *mut c_void, from: usize, bytes: usize, stream: usize) {}
    cuMemcpyDtoDAsync_v2(to: usize, from: usize, bytes: usize, stream: usize) {}
    cuMemcpy2DAsync_v2(copy: *const c_void, stream: usize) {}
    cuMemsetD8Async(address: usize, byte: u8, count: usize, stream: usize) {}
    cuMemAllocFromPoolAsync(address: *mut usize, bytes: usize, pool: usize, stream: usize) { put!(address, fresh(bytes)) }
    cuMemFreeAsync(address: usize, stream: usize) { if is_held_up(stream) { return IMPLICIT } }
    cuMemPoolCreate(pool: *mut usize, properties: *const c_void) { put!(pool, fresh(1)) }
    cuMemPoolDestroy(pool: usize) {}
    cuMemPoolTrimTo(pool: usize, keep: usize) {}
    cuMemPoolSetAttribute(pool: usize, attribute: c_int, value: *mut c_void) {}
    cuMemPoolGetAttribute(pool: usize, attribute: c_int, value: *mut u64) { put!(value, 0) }
    cuStreamCreateWithPriority(stream: *mut usize, flags: c_uint, priority: c_int) { put!(stream, fresh(1)) }
    cuStreamDestroy_v2(stream: usize) {}
    cuStreamWaitEvent(stream: usize, event: usize, flags: c_uint) {}
    cuStreamSynchronize(stream: usize) {}
    cuStreamGetCtx(stream: usize, context: *mut usize) { put!(context, context_of(stream)) }
    cuThreadExchangeStreamCaptureMode(mode: *mut c_int) { put!(mode, 0) }
    cuStreamIsCapturing(stream: usize, status: *mut c_int) {
        if is_held_up(stream) { return IMPLICIT }
        put!(status, (RECORDED.load(Ordering::Relaxed) == stream).into())
    }
    cuStreamBeginCapture_v2(stream: usize, mode: c_int) { RECORDED.store(stream, Ordering::Relaxed) }
    cuStreamEndCapture(stream: usize, graph: *mut usize) {
        RECORDED.store(NONE, Ordering::Relaxed);
        put!(graph, fresh(1))
    }
    cuGraphInstantiateWithFlags(executable: *mut usize, graph: usize, flags: u64) { put!(executable, fresh(1)) }
    cuGraphDestroy(graph: usize) {}
    cuGraphLaunch(executable: usize, stream: usize) {}
    cuGraphExecDestroy(executable: usize) {}
    cuEventCreate(event: *mut usize, flags: c_uint) { put!(event, fresh(1)) }
    cuEventDestroy_v2(event: usize) {}
    cuEventRecord(event: usize, stream: usize) { if is_held_up(stream) { return IMPLICIT } }
    cuEventQuery(event: usize) {}
    cuEventSynchronize(event: usize) {}
    cuEventElapsedTime(milliseconds: *mut f32, start: usize, end: usize) { put!(milliseconds, 1.0) }
    cuFuncGetAttribute(value: *mut c_int, attribute: c_int, function: usize) {
        put!(value, match attribute { 0 => 1024, 1 => 0, _ => 64 })
    }
    cuFuncSetAttribute(function: usize, attribute: c_int, value: c_int) {}
    cuLaunchKernel(
        function: usize, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint, block_z: c_uint,
        shared_bytes: c_uint, stream: usize, arguments: Handle, extra: Handle
    ) {}
    cuLaunchKernelEx(config: *const c_void, function: usize, arguments: Handle, extra: Handle) {}
    cuTensorMapEncodeTiled(
        map: *mut c_void, data_type: c_int, rank: c_uint, address: usize, dims: *const u64, strides: *const u64,
        box_dims: *const u32, element_strides: *const u32, interleave: c_int, swizzle: c_int, l2_promotion: c_int, oob_fill: c_int
    ) {}
}
