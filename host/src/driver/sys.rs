//! The driver's functions, found in its library by name when they are first called.
//!
//! Types and signatures are `cudarc`'s. Its own functions are not called: they panic where the driver lacks one, and return an enum, which a
//! newer driver's code would not be a value of.

use std::ffi::{c_char, c_int, c_uchar, c_uint, c_ulonglong, c_void};
use std::sync::OnceLock;

use cudarc::driver::sys::{self as cudarc_sys, CUresult};
pub(crate) use cudarc::driver::sys::{
    CUDA_MEMCPY2D, CUcontext, CUdevice, CUdevice_attribute, CUdeviceptr, CUevent, CUfunction,
    CUfunction_attribute, CUgraph, CUgraphExec, CUjit_option, CUlaunchAttribute, CUlaunchAttributeID,
    CUlaunchAttributeValue, CUlaunchConfig, CUmem_advise, CUmemAllocationType, CUmemLocation,
    CUmemLocationType, CUmemPool_attribute, CUmemPoolProps, CUmemoryPool, CUmemorytype, CUmodule,
    CUpointer_attribute, CUstream, CUstream_flags, CUstreamCaptureMode,
};

use super::{Failure, find, library};

/// What came of a call.
pub(crate) type Outcome = Result<(), Failure>;

/// A version of CUDA.
type Version = (u32, u32);

/// The addresses are of functions of one type, which is `cudarc`'s but for the result.
macro_rules! functions {
    ($($(#[$unchecked:ident])? ($major:literal, $minor:literal) fn $name:ident($($argument:ident: $type:ty),* $(,)?);)*) => {
        $(
            #[allow(non_snake_case, reason = "the driver's name")]
            #[allow(clippy::too_many_arguments, reason = "the driver's signature")]
            #[doc = concat!("The driver's function of this name, since CUDA ", $major, ".", $minor, ".")]
            ///
            /// # Safety
            ///
            /// As for the driver's function.
            pub(crate) unsafe fn $name($($argument: $type),*) -> Outcome {
                functions!(@signature $($unchecked)? $name($($type),*));
                type Function = unsafe extern "C" fn($($type),*) -> c_int;
                static FUNCTION: OnceLock<Option<Function>> = OnceLock::new();
                // SAFETY: the driver's function of this name has this type; the numbers that it returns may be any.
                match FUNCTION.get_or_init(|| unsafe { find(concat!(stringify!($name), "\0")) }) {
                    // SAFETY: the caller keeps the function's contract.
                    Some(function) => Failure::from_code(unsafe { function($($argument),*) }),
                    None => Err(missing(stringify!($name), ($major, $minor))),
                }
            }
        )*
    };
    // A signature that `cudarc` has in every version that it may be built for.
    (@signature $name:ident($($type:ty),*)) => {
        const _: unsafe fn($($type),*) -> CUresult = cudarc_sys::$name;
    };
    (@signature unchecked $name:ident($($type:ty),*)) => {};
}

/// Why the function `name`, which came with CUDA `since`, cannot be called.
#[cold]
fn missing(function: &'static str, since: Version) -> Failure {
    match library() {
        Ok(_) => Failure::Missing { function, since },
        Err(reason) => Failure::NoDriver(reason),
    }
}

functions! {
    (2, 0) fn cuInit(flags: c_uint);
    (2, 2) fn cuDriverGetVersion(version: *mut c_int);
    (2, 0) fn cuDeviceGet(device: *mut CUdevice, ordinal: c_int);
    (2, 0) fn cuDeviceGetCount(count: *mut c_int);
    (2, 0) fn cuDeviceGetName(name: *mut c_char, length: c_int, device: CUdevice);
    (3, 2) fn cuDeviceTotalMem_v2(bytes: *mut usize, device: CUdevice);
    (2, 0) fn cuDeviceGetAttribute(value: *mut c_int, attribute: CUdevice_attribute, device: CUdevice);
    (7, 0) fn cuDevicePrimaryCtxRetain(context: *mut CUcontext, device: CUdevice);
    (11, 0) fn cuDevicePrimaryCtxRelease_v2(device: CUdevice);
    (4, 0) fn cuCtxSetCurrent(context: CUcontext);
    (4, 0) fn cuCtxGetCurrent(context: *mut CUcontext);
    (2, 0) fn cuCtxSynchronize();
    (2, 1) fn cuModuleLoadDataEx(
        module: *mut CUmodule, image: *const c_void, count: c_uint, options: *mut CUjit_option,
        values: *mut *mut c_void,
    );
    (2, 0) fn cuModuleUnload(module: CUmodule);
    (2, 0) fn cuModuleGetFunction(function: *mut CUfunction, module: CUmodule, name: *const c_char);
    (3, 2) fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize);
    (3, 2) fn cuMemGetAddressRange_v2(base: *mut CUdeviceptr, bytes: *mut usize, address: CUdeviceptr);
    (4, 0) fn cuPointerGetAttribute(value: *mut c_void, attribute: CUpointer_attribute, address: CUdeviceptr);
    (3, 2) fn cuMemAlloc_v2(address: *mut CUdeviceptr, bytes: usize);
    (3, 2) fn cuMemFree_v2(address: CUdeviceptr);
    (2, 2) fn cuMemHostAlloc(start: *mut *mut c_void, bytes: usize, flags: c_uint);
    (2, 0) fn cuMemFreeHost(start: *mut c_void);
    (3, 2) fn cuMemHostGetDevicePointer_v2(address: *mut CUdeviceptr, start: *mut c_void, flags: c_uint);
    (6, 0) fn cuMemAllocManaged(address: *mut CUdeviceptr, bytes: usize, flags: c_uint);
    #[unchecked] (8, 0) fn cuMemAdvise(address: CUdeviceptr, bytes: usize, advice: CUmem_advise, device: CUdevice);
    (3, 2) fn cuMemcpyHtoDAsync_v2(to: CUdeviceptr, from: *const c_void, bytes: usize, stream: CUstream);
    (3, 2) fn cuMemcpyDtoHAsync_v2(to: *mut c_void, from: CUdeviceptr, bytes: usize, stream: CUstream);
    (3, 2) fn cuMemcpyDtoDAsync_v2(to: CUdeviceptr, from: CUdeviceptr, bytes: usize, stream: CUstream);
    (3, 2) fn cuMemcpy2DAsync_v2(copy: *const CUDA_MEMCPY2D, stream: CUstream);
    (3, 2) fn cuMemsetD8Async(address: CUdeviceptr, byte: c_uchar, count: usize, stream: CUstream);
    (11, 2) fn cuMemAllocFromPoolAsync(
        address: *mut CUdeviceptr, bytes: usize, pool: CUmemoryPool, stream: CUstream,
    );
    (11, 2) fn cuMemFreeAsync(address: CUdeviceptr, stream: CUstream);
    (11, 2) fn cuMemPoolCreate(pool: *mut CUmemoryPool, properties: *const CUmemPoolProps);
    (11, 2) fn cuMemPoolDestroy(pool: CUmemoryPool);
    (11, 2) fn cuMemPoolTrimTo(pool: CUmemoryPool, keep: usize);
    (11, 2) fn cuMemPoolSetAttribute(pool: CUmemoryPool, attribute: CUmemPool_attribute, value: *mut c_void);
    (11, 2) fn cuMemPoolGetAttribute(pool: CUmemoryPool, attribute: CUmemPool_attribute, value: *mut c_void);
    (5, 5) fn cuCtxGetStreamPriorityRange(least: *mut c_int, greatest: *mut c_int);
    (5, 5) fn cuStreamCreateWithPriority(stream: *mut CUstream, flags: c_uint, priority: c_int);
    (4, 0) fn cuStreamDestroy_v2(stream: CUstream);
    (3, 2) fn cuStreamWaitEvent(stream: CUstream, event: CUevent, flags: c_uint);
    (2, 0) fn cuStreamSynchronize(stream: CUstream);
    (10, 1) fn cuStreamBeginCapture_v2(stream: CUstream, mode: CUstreamCaptureMode);
    (9, 2) fn cuStreamGetCtx(stream: CUstream, context: *mut CUcontext);
    // The status comes as the number that it is.
    #[unchecked] (10, 0) fn cuStreamIsCapturing(stream: CUstream, status: *mut c_int);
    // The mode goes in and comes out as the number that it is.
    #[unchecked] (10, 1) fn cuThreadExchangeStreamCaptureMode(mode: *mut c_int);
    (10, 0) fn cuStreamEndCapture(stream: CUstream, graph: *mut CUgraph);
    (2, 0) fn cuEventCreate(event: *mut CUevent, flags: c_uint);
    (4, 0) fn cuEventDestroy_v2(event: CUevent);
    (2, 0) fn cuEventRecord(event: CUevent, stream: CUstream);
    (2, 0) fn cuEventQuery(event: CUevent);
    (2, 0) fn cuEventSynchronize(event: CUevent);
    #[unchecked] (2, 0) fn cuEventElapsedTime(milliseconds: *mut f32, start: CUevent, end: CUevent);
    (2, 2) fn cuFuncGetAttribute(value: *mut c_int, attribute: CUfunction_attribute, function: CUfunction);
    (9, 0) fn cuFuncSetAttribute(function: CUfunction, attribute: CUfunction_attribute, value: c_int);
    (4, 0) fn cuLaunchKernel(
        function: CUfunction, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint,
        block_y: c_uint, block_z: c_uint, shared_bytes: c_uint, stream: CUstream,
        arguments: *mut *mut c_void, extra: *mut *mut c_void,
    );
    (11, 8) fn cuLaunchKernelEx(
        config: *const CUlaunchConfig, function: CUfunction, arguments: *mut *mut c_void,
        extra: *mut *mut c_void,
    );
    (11, 4) fn cuGraphInstantiateWithFlags(executable: *mut CUgraphExec, graph: CUgraph, flags: c_ulonglong);
    (10, 0) fn cuGraphDestroy(graph: CUgraph);
    (10, 0) fn cuGraphLaunch(executable: CUgraphExec, stream: CUstream);
    (10, 0) fn cuGraphExecDestroy(executable: CUgraphExec);
    // Its enums come as the numbers that they are.
    #[unchecked] (12, 0) fn cuTensorMapEncodeTiled(
        map: *mut c_void, data_type: c_int, rank: c_uint, address: *mut c_void, dims: *const u64,
        strides: *const u64, box_dims: *const u32, element_strides: *const u32, interleave: c_int,
        swizzle: c_int, l2_promotion: c_int, oob_fill: c_int,
    );
}

#[cfg(feature = "cust")]
functions! {
    (2, 0) fn cuCtxGetDevice(device: *mut CUdevice);
}
