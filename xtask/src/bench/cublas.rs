//! The vendor's library as a peer: plain products by cuBLAS, opened at run time.

use std::ffi::{c_int, c_void};
use std::ptr;

use cudarc::cublas::sys;
use warpsmith::benchmark::{LinearSubject, Subject};
use warpsmith::validate::LinearCase;
use warpsmith::{DType, Error, Stream};

/// cuBLAS on one stream.
pub(super) struct Cublas {
    handle: sys::cublasHandle_t,
    version: c_int,
    /// Keeps the stream, and through it the device's context, alive.
    _stream: Stream,
}

impl Cublas {
    /// Opens the library and binds it to `stream`; an error says why that cannot be.
    pub(super) fn open(stream: &Stream) -> Result<Self, String> {
        let raw_stream = stream.cuda_handle().ok_or("the stream is not a GPU's")?;
        // SAFETY: this only opens the library, whose initialisers have no requirements.
        if !unsafe { sys::is_culib_present() } {
            return Err("libcublas was not found; its folder can be added to LD_LIBRARY_PATH".into());
        }
        let mut handle = ptr::null_mut();
        let mut version = 0;
        // SAFETY: the library is there; the pointers are to live variables; the device's context is current on this thread
        // since its stream was made or used here, and the stream handle is valid while `_stream` lives.
        unsafe {
            check("cublasCreate", sys::cublasCreate_v2(&mut handle))?;
            check("cublasSetStream", sys::cublasSetStream_v2(handle, raw_stream.cast()))?;
            check("cublasGetVersion", sys::cublasGetVersion_v2(handle, &mut version))?;
        }
        Ok(Self { handle, version, _stream: stream.clone() })
    }

    /// The library's version, as in `13.1.0`.
    pub(super) fn version(&self) -> String {
        format!("{}.{}.{}", self.version / 10_000, self.version / 100 % 100, self.version % 100)
    }

    /// The plain product x wᵀ of `case` on the subject's operands, without bias and activation. f32 products are made of f32
    /// instructions, not of TF32 ones.
    pub(super) fn product<'a>(
        &'a mut self,
        case: &LinearCase,
        operands: &'a mut dyn LinearSubject,
    ) -> Product<'a> {
        Product { library: self, case: case.clone(), operands }
    }
}

impl Drop for Cublas {
    fn drop(&mut self) {
        // SAFETY: the handle is from `cublasCreate` and is used no more. Nothing can be done about an error.
        let _ = unsafe { sys::cublasDestroy_v2(self.handle) };
    }
}

/// A product to measure.
pub(super) struct Product<'a> {
    library: &'a mut Cublas,
    case: LinearCase,
    operands: &'a mut dyn LinearSubject,
}

impl Subject for Product<'_> {
    fn enqueue(&mut self, index: usize) -> Result<(), Error> {
        let [x, w, y] = self.operands.addresses(index);
        let (m, k, n) = (side(self.case.m)?, side(self.case.k)?, side(self.case.n)?);
        let (input, output) = (data_type(self.case.input), data_type(self.case.output));
        let (one, zero) = (1f32, 0f32);
        // cuBLAS is column-major: there y is the N × M matrix wᵀ' x', with w' and x' the K × N and K × M matrices in memory.
        //
        // SAFETY: the addresses are of live tensors with these sizes, without gaps; the scalars are f32, as the compute type
        // asks, and are read during the call.
        let status = unsafe {
            sys::cublasGemmEx(
                self.library.handle,
                sys::cublasOperation_t::CUBLAS_OP_T,
                sys::cublasOperation_t::CUBLAS_OP_N,
                n,
                m,
                k,
                (&raw const one).cast(),
                w as *const c_void,
                input,
                k,
                x as *const c_void,
                input,
                k,
                (&raw const zero).cast(),
                y as *mut c_void,
                output,
                n,
                sys::cublasComputeType_t::CUBLAS_COMPUTE_32F,
                sys::cublasGemmAlgo_t::CUBLAS_GEMM_DEFAULT,
            )
        };
        check("cublasGemmEx", status).map_err(|reason| argument("product", "success", reason))
    }
}

fn side(size: usize) -> Result<c_int, Error> {
    c_int::try_from(size).map_err(|_| argument("side", "less than 2³¹", size.to_string()))
}

/// The error for something that cuBLAS refuses.
fn argument(argument: &'static str, expected: &str, actual: String) -> Error {
    Error::Argument { operation: "cuBLAS product", argument, expected: expected.into(), actual }
}

fn data_type(dtype: DType) -> sys::cudaDataType {
    match dtype {
        DType::F16 => sys::cudaDataType::CUDA_R_16F,
        DType::Bf16 => sys::cudaDataType::CUDA_R_16BF,
        _ => sys::cudaDataType::CUDA_R_32F,
    }
}

fn check(call: &str, status: sys::cublasStatus_t) -> Result<(), String> {
    match status {
        sys::cublasStatus_t::CUBLAS_STATUS_SUCCESS => Ok(()),
        status => Err(format!("{call} returned {status:?}")),
    }
}
