//! Modules on a GPU: compiling PTX with a log of what is wrong with it, and an entry's resources.

use std::ffi::{CString, c_void};
use std::ptr;
use std::sync::Arc;

use super::{Gpu, GpuContext};
use crate::device::backend::{Backend, FunctionResources};
use crate::driver::{self, Failure, code, sys as cuda};
use crate::error::{Error, Result};
use crate::kernel::{PtxSummary, required_cuda};

/// A loaded module.
#[derive(Debug)]
pub(crate) struct CudaModule {
    raw: cuda::CUmodule,
    name: String,
    context: Arc<GpuContext>,
}

// SAFETY: the driver's handles may be used from any thread.
unsafe impl Send for CudaModule {}
// SAFETY: as above.
unsafe impl Sync for CudaModule {}

/// The driver's handle of an entry; valid as long as its module is loaded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CudaFunction(pub(super) cuda::CUfunction);

// SAFETY: the driver's handles may be used from any thread.
unsafe impl Send for CudaFunction {}
// SAFETY: as above.
unsafe impl Sync for CudaFunction {}

impl Drop for CudaModule {
    fn drop(&mut self) {
        // Its kernels may still run, and unloading pulls the code from under them. Where they cannot be waited for, it stays loaded.
        // SAFETY: the module is loaded and not used again.
        let _ = self.context.when_done(|| unsafe { cuda::cuModuleUnload(self.raw) });
    }
}

/// Compiles and loads `text`.
pub(super) fn load(
    context: &Arc<GpuContext>,
    gpu: &Gpu,
    name: &str,
    text: &str,
    summary: &PtxSummary,
) -> Result<CudaModule> {
    let invalid =
        |log: String| Error::InvalidPtx { module: name.into(), device: gpu.kind().to_string(), log };
    let too_old = || too_old(name, summary, gpu);
    let driver_version = gpu.properties().driver_version.unwrap_or((u32::MAX, 0));
    if required_cuda(summary.version).is_some_and(|required| required > driver_version) {
        return Err(too_old());
    }
    let text = CString::new(text).map_err(|error| {
        invalid(format!("a zero byte at offset {}, where text was expected", error.nul_position()))
    })?;
    let _bound = context.bind()?;
    let mut compiled = compile(&text);
    if matches!(compiled, Err((Failure::Code(code::OUT_OF_MEMORY), _))) {
        gpu.release_memory()?;
        compiled = compile(&text);
    }
    let raw = compiled.map_err(|(failure, log)| match failure {
        Failure::Code(code::UNSUPPORTED_PTX_VERSION) => too_old(),
        Failure::Code(
            code::INVALID_PTX | code::INVALID_IMAGE | code::INVALID_SOURCE | code::NO_BINARY_FOR_GPU,
        ) => invalid(if log.is_empty() { failure.error("compiling PTX").to_string() } else { log }),
        Failure::Code(code::OUT_OF_MEMORY) => Error::OutOfMemory {
            operation: "loading a module",
            device: gpu.kind().to_string(),
            requested: text.as_bytes().len() as u64,
            free: gpu.memory_stats().map_or(0, |stats| stats.free),
            total: gpu.properties().total_memory,
        },
        other => other.error("loading a module"),
    })?;
    Ok(CudaModule { raw, name: name.to_owned(), context: context.clone() })
}

fn too_old(name: &str, summary: &PtxSummary, gpu: &Gpu) -> Error {
    let show = |(major, minor): (u32, u32)| format!("{major}.{minor}");
    Error::DriverTooOld {
        module: name.to_owned(),
        ptx: show(summary.version),
        required: required_cuda(summary.version)
            .map_or_else(|| "of a later version".into(), |version| format!("{} or later", show(version))),
        driver: gpu.properties().driver_version.map_or_else(|| "unknown".into(), show),
    }
}

/// Compiles `text`, or says why not and what the compiler says of it.
fn compile(text: &CString) -> std::result::Result<cuda::CUmodule, (Failure, String)> {
    const CAPACITY: usize = 16 << 10;
    let mut log = vec![0u8; CAPACITY];
    use cuda::CUjit_option as Option;
    let mut options = [Option::CU_JIT_ERROR_LOG_BUFFER, Option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES];
    // The driver takes numbers in the place of the pointers.
    let mut values: [*mut c_void; 2] = [log.as_mut_ptr().cast(), ptr::without_provenance_mut(CAPACITY)];
    let mut module = ptr::null_mut();
    // SAFETY: the text ends in a zero byte, the log has the length given, and there are two options with a value each.
    let loaded = unsafe {
        cuda::cuModuleLoadDataEx(
            &raw mut module,
            text.as_ptr().cast(),
            2,
            options.as_mut_ptr(),
            values.as_mut_ptr(),
        )
    };
    loaded.map(|()| module).map_err(|failure| {
        let length = log.iter().position(|&byte| byte == 0).unwrap_or(CAPACITY);
        (failure, String::from_utf8_lossy(&log[..length]).trim().to_owned())
    })
}

impl CudaModule {
    /// An entry and what it uses. It may be launched with all the shared memory that the device has.
    pub(super) fn function(&self, entry: &str, max_shared: u32) -> Result<(CudaFunction, FunctionResources)> {
        const OPERATION: &str = "finding a kernel";
        let missing = || Error::MissingKernel {
            kernel: entry.to_owned(),
            module: self.name.clone(),
            available: "no such entry after compilation".into(),
        };
        // No entry has a zero byte in its name.
        let name = CString::new(entry).map_err(|_| missing())?;
        let mut function = ptr::null_mut();
        // SAFETY: the module is loaded, the name ends in a zero byte, and the handle is written to a local variable.
        let found = unsafe { cuda::cuModuleGetFunction(&raw mut function, self.raw, name.as_ptr()) };
        found.map_err(|failure| match failure {
            Failure::Code(code::NOT_FOUND) => missing(),
            other => other.error(OPERATION),
        })?;
        use cuda::CUfunction_attribute as A;
        let attribute = |attribute| {
            let mut value = 0;
            // SAFETY: the function belongs to this module; the value is written to a local variable.
            driver::check(OPERATION, unsafe {
                cuda::cuFuncGetAttribute(&raw mut value, attribute, function)
            })?;
            Ok::<_, Error>(u32::try_from(value).unwrap_or(0))
        };
        let resources = FunctionResources {
            static_shared: attribute(A::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)?,
            max_threads: attribute(A::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK)?,
            registers: Some(attribute(A::CU_FUNC_ATTRIBUTE_NUM_REGS)?),
        };
        let dynamic = max_shared.saturating_sub(resources.static_shared);
        // SAFETY: the function belongs to this module, which is loaded.
        driver::check("opting in to shared memory", unsafe {
            cuda::cuFuncSetAttribute(
                function,
                A::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                i32::try_from(dynamic).unwrap_or(i32::MAX),
            )
        })?;
        Ok((CudaFunction(function), resources))
    }
}
