//! Launches, cooperative ones, early ones and those in clusters too.

use std::ffi::{c_uint, c_void};
use std::mem::MaybeUninit;
use std::ptr;

use warpsmith_dsl::launch::RawArg;

use super::module::CudaFunction;
use super::raw::CudaStream;
use crate::device::backend::LaunchSize;
use crate::driver::{self, sys as cuda};
use crate::error::Result;

/// Blocks a cluster that every GPU with clusters takes; more has to be asked for.
const PORTABLE_CLUSTER: u32 = 8;
/// The first version of CUDA that captures early launches into graphs.
const EARLY_LAUNCHES: (u32, u32) = (12, 3);

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
    let LaunchSize { grid, block, cluster, dynamic_shared, cooperative, early, beside_last: _ } = size;
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
        let allowed = cuda::CUfunction_attribute::CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED;
        // SAFETY: the caller answers for the kernel.
        driver::check("allowing larger clusters", unsafe { cuda::cuFuncSetAttribute(function, allowed, 1) })?;
    }
    let attribute = |id, of: &[c_uint]| {
        // SAFETY: its values are numbers, for all of which zeros stand; they begin where the union does.
        let value = unsafe {
            let mut value = MaybeUninit::<cuda::CUlaunchAttributeValue>::zeroed();
            value.as_mut_ptr().cast::<c_uint>().copy_from_nonoverlapping(of.as_ptr(), of.len());
            value.assume_init()
        };
        cuda::CUlaunchAttribute { id, pad: [0; 4], value }
    };
    use cuda::CUlaunchAttributeID as Id;
    let asked = [
        (cluster != [1; 3]).then(|| attribute(Id::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, &cluster)),
        cooperative.then(|| attribute(Id::CU_LAUNCH_ATTRIBUTE_COOPERATIVE, &[1])),
        early.then(|| attribute(Id::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION, &[1])),
    ];
    let mut attributes: Vec<_> = asked.into_iter().flatten().collect();
    let config = cuda::CUlaunchConfig {
        gridDimX: grid[0],
        gridDimY: grid[1],
        gridDimZ: grid[2],
        blockDimX: block[0],
        blockDimY: block[1],
        blockDimZ: block[2],
        sharedMemBytes: dynamic_shared,
        hStream: stream.raw(),
        attrs: attributes.as_mut_ptr(),
        numAttrs: attributes.len() as c_uint,
    };
    // SAFETY: the driver reads the configuration and copies the arguments during the call, for which the caller answers as for the kernel.
    driver::check(OPERATION, unsafe {
        cuda::cuLaunchKernelEx(&raw const config, function, pointers.as_mut_ptr(), ptr::null_mut())
    })
}
