//! Launches, cooperative ones, early ones and those in clusters too, for which `cust_raw`'s version of the driver has no function.

use std::ffi::{c_int, c_uint, c_void};
use std::ptr;

use cust_raw as cuda;
use warpsmith_dsl::launch::RawArg;

use super::module::CudaFunction;
use super::raw::CudaStream;
use crate::device::backend::LaunchSize;
use crate::driver;
use crate::error::Result;

/// Blocks a cluster that every GPU with clusters takes; more has to be asked for.
const PORTABLE_CLUSTER: u32 = 8;
/// `CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED`.
const NON_PORTABLE_ALLOWED: c_int = 14;
/// `CU_LAUNCH_ATTRIBUTE_COOPERATIVE`.
const COOPERATIVE: c_uint = 2;
/// `CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION`.
const CLUSTER_DIMENSION: c_uint = 4;
/// `CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION`.
const PROGRAMMATIC_SERIALIZATION: c_uint = 6;
/// The first version of CUDA that captures early launches into graphs.
const EARLY_LAUNCHES: (u32, u32) = (12, 3);

/// `CUlaunchAttribute` (CUDA 12's `cuda.h`), of which the value is a union of 64 bytes.
#[repr(C, align(8))]
struct LaunchAttribute {
    id: c_uint,
    padding: u32,
    value: [c_uint; 16],
}

/// `CUlaunchConfig`.
#[repr(C)]
struct LaunchConfig {
    grid: [c_uint; 3],
    block: [c_uint; 3],
    dynamic_shared: c_uint,
    stream: cuda::CUstream,
    attributes: *const LaunchAttribute,
    attribute_count: c_uint,
}

type LaunchKernelEx =
    unsafe extern "C" fn(*const LaunchConfig, cuda::CUfunction, *mut *mut c_void, *mut *mut c_void) -> c_int;
type SetAttribute = unsafe extern "C" fn(cuda::CUfunction, c_int, c_int) -> c_int;

/// Launches an entry, on a driver of CUDA version `version`.
///
/// # Safety
///
/// As for [`Backend::launch`](crate::device::backend::Backend::launch).
pub(super) unsafe fn launch(
    CudaFunction(function): CudaFunction,
    size: LaunchSize,
    version: Option<(u32, u32)>,
    arguments: &[RawArg],
    stream: &CudaStream,
) -> Result<()> {
    const OPERATION: &str = "launching a kernel";
    let LaunchSize { grid, block, cluster, dynamic_shared, cooperative, early } = size;
    let early = early && version.is_some_and(|version| version >= EARLY_LAUNCHES);
    let mut pointers: Vec<*mut c_void> =
        arguments.iter().map(|argument| argument.data.cast_mut().cast()).collect();
    if cluster == [1; 3] && !cooperative && !early {
        // SAFETY: the caller answers for function and arguments, which the driver copies during the call.
        return driver::check(OPERATION, unsafe {
            cuda::cuLaunchKernel(
                function,
                grid[0],
                grid[1],
                grid[2],
                block[0],
                block[1],
                block[2],
                dynamic_shared,
                stream.raw(),
                pointers.as_mut_ptr(),
                ptr::null_mut(),
            )
        });
    }
    if cluster.iter().product::<u32>() > PORTABLE_CLUSTER {
        // SAFETY: the driver's function of this name has this type, its attribute being an `int` enum; the caller answers
        // for the kernel.
        unsafe {
            driver::call("allowing larger clusters", "cuFuncSetAttribute\0", |set: SetAttribute| {
                set(function, NON_PORTABLE_ALLOWED, 1)
            })?;
        }
    }
    let attribute = |id, of: &[c_uint]| {
        let mut value = [0; 16];
        value[..of.len()].copy_from_slice(of);
        LaunchAttribute { id, padding: 0, value }
    };
    let asked = [
        (cluster != [1; 3]).then(|| attribute(CLUSTER_DIMENSION, &cluster)),
        cooperative.then(|| attribute(COOPERATIVE, &[1])),
        early.then(|| attribute(PROGRAMMATIC_SERIALIZATION, &[1])),
    ];
    let attributes: Vec<_> = asked.into_iter().flatten().collect();
    let config = LaunchConfig {
        grid,
        block,
        dynamic_shared,
        stream: stream.raw(),
        attributes: attributes.as_ptr(),
        attribute_count: attributes.len() as c_uint,
    };
    // SAFETY: the driver's function of this name has this type; it reads the configuration and copies the arguments during
    // the call, for which the caller answers as for the kernel.
    unsafe {
        driver::call(OPERATION, "cuLaunchKernelEx\0", |launch: LaunchKernelEx| {
            launch(&raw const config, function, pointers.as_mut_ptr(), ptr::null_mut())
        })
    }
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    #[test]
    fn structures_have_the_drivers_layout() {
        assert_eq!((size_of::<LaunchAttribute>(), align_of::<LaunchAttribute>()), (72, 8));
        assert_eq!(offset_of!(LaunchAttribute, value), 8);
        assert_eq!((size_of::<LaunchConfig>(), offset_of!(LaunchConfig, dynamic_shared)), (56, 24));
        assert_eq!((offset_of!(LaunchConfig, stream), offset_of!(LaunchConfig, attributes)), (32, 40));
        assert_eq!(offset_of!(LaunchConfig, attribute_count), 48);
    }
}
