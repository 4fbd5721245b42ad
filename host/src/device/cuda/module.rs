//! Modules on a GPU: compiling PTX with a log of what is wrong with it, and an entry's resources.

use std::ffi::{CString, c_void};
use std::mem::ManuallyDrop;
use std::ptr;
use std::sync::Arc;

use cust::error::CudaError;
use cust::function::FunctionAttribute;
use cust::module::Module;
use cust_raw as cuda;

use super::{Gpu, GpuContext};
use crate::device::backend::{Backend, FunctionResources};
use crate::driver;
use crate::error::{Error, Result};
use crate::kernel::{PtxSummary, required_cuda};

/// The driver's error codes that loading a module tells apart.
mod code {
    pub(super) const OUT_OF_MEMORY: i32 = 2;
    pub(super) const INVALID_IMAGE: i32 = 200;
    pub(super) const NO_BINARY_FOR_GPU: i32 = 209;
    pub(super) const INVALID_PTX: i32 = 218;
    pub(super) const UNSUPPORTED_PTX_VERSION: i32 = 222;
    pub(super) const INVALID_SOURCE: i32 = 300;
}

/// A loaded module.
#[derive(Debug)]
pub(crate) struct CudaModule {
    module: ManuallyDrop<Module>,
    name: String,
    context: Arc<GpuContext>,
}

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
        let module = &mut self.module;
        // SAFETY: the module is not used again.
        let _ = self.context.when_done(|| unsafe { ManuallyDrop::drop(module) });
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
    context.bind()?;
    let compile = || Module::from_ptx_cstr(&text, &[]);
    let mut compiled = compile();
    if matches!(compiled, Err(CudaError::OutOfMemory)) {
        gpu.release_memory()?;
        compiled = compile();
    }
    let module = compiled.map_err(|failure| match driver::cust_code(failure) {
        code::UNSUPPORTED_PTX_VERSION => too_old(),
        code @ (code::INVALID_PTX | code::INVALID_IMAGE | code::INVALID_SOURCE | code::NO_BINARY_FOR_GPU) => {
            let log = compile_log(&text);
            let said = if log.is_empty() { driver::error("compiling PTX", code).to_string() } else { log };
            invalid(said)
        }
        code::OUT_OF_MEMORY => Error::OutOfMemory {
            operation: "loading a module",
            device: gpu.kind().to_string(),
            requested: text.as_bytes().len() as u64,
            free: gpu.memory_stats().map_or(0, |stats| stats.free),
            total: gpu.properties().total_memory,
        },
        code => driver::error("loading a module", code),
    })?;
    Ok(CudaModule { module: ManuallyDrop::new(module), name: name.to_owned(), context: context.clone() })
}

fn too_old(name: &str, summary: &PtxSummary, gpu: &Gpu) -> Error {
    let show = |(major, minor): (u32, u32)| format!("{major}.{minor}");
    Error::DriverTooOld {
        module: name.to_owned(),
        ptx: show(summary.version),
        required: required_cuda(summary.version).map_or_else(|| "that is newer".into(), show),
        driver: gpu.properties().driver_version.map_or_else(|| "unknown".into(), show),
    }
}

/// Compiles `text` again for what the compiler says is wrong. `cust` offers no way to ask for it.
fn compile_log(text: &CString) -> String {
    const CAPACITY: usize = 16 << 10;
    let mut log = vec![0u8; CAPACITY];
    let mut options =
        [cuda::CUjit_option::CU_JIT_ERROR_LOG_BUFFER, cuda::CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES];
    // The driver takes numbers in the place of the pointers.
    let mut values: [*mut c_void; 2] = [log.as_mut_ptr().cast(), ptr::without_provenance_mut(CAPACITY)];
    let mut module = ptr::null_mut();
    // SAFETY: the text ends in a zero byte, the log has the length given, and there are two options with a value each.
    let result = unsafe {
        cuda::cuModuleLoadDataEx(
            &raw mut module,
            text.as_ptr().cast(),
            2,
            options.as_mut_ptr(),
            values.as_mut_ptr(),
        )
    };
    if result == cuda::CUresult::CUDA_SUCCESS {
        // SAFETY: the module was just loaded and nothing uses it.
        let _ = unsafe { cuda::cuModuleUnload(module) };
    }
    let length = log.iter().position(|&byte| byte == 0).unwrap_or(CAPACITY);
    String::from_utf8_lossy(&log[..length]).trim().to_owned()
}

impl CudaModule {
    /// An entry and what it uses. It may be launched with all the shared memory that the device has.
    pub(super) fn function(&self, entry: &str, max_shared: u32) -> Result<(CudaFunction, FunctionResources)> {
        const OPERATION: &str = "finding a kernel";
        const NOT_FOUND: i32 = 500;
        let function =
            self.module.get_function(entry).map_err(|failure| match driver::cust_code(failure) {
                NOT_FOUND => Error::MissingKernel {
                    kernel: entry.to_owned(),
                    module: self.name.clone(),
                    available: "no such entry after compilation".into(),
                },
                code => driver::error(OPERATION, code),
            })?;
        let attribute = |attribute| {
            let value = function.get_attribute(attribute).map_err(driver::cust_error(OPERATION))?;
            Ok::<_, Error>(u32::try_from(value).unwrap_or(0))
        };
        let resources = FunctionResources {
            static_shared: attribute(FunctionAttribute::SharedMemorySizeBytes)?,
            max_threads: attribute(FunctionAttribute::MaxThreadsPerBlock)?,
            registers: Some(attribute(FunctionAttribute::NumRegisters)?),
        };
        let dynamic = max_shared.saturating_sub(resources.static_shared);
        // SAFETY: the function belongs to this module, which is loaded.
        driver::check("opting in to shared memory", unsafe {
            cuda::cuFuncSetAttribute(
                function.to_raw(),
                cuda::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                i32::try_from(dynamic).unwrap_or(i32::MAX),
            )
        })?;
        Ok((CudaFunction(function.to_raw()), resources))
    }
}
