//! cuBLAS's plain product with the algorithm of its own choice, which is what frameworks call. It is no peer of fused
//! operations, but a control: a framework's own time of the same call should come out alike.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::rc::Rc;

use anyhow::{Context, Result, anyhow, bail};
use cudarc::cublas::sys;
use warpsmith::{Error, Stream};
use warpsmith_lab::benchmark::Subject;

use super::case::{Case, Operation, Precision};
use super::operands::Operands;

/// cuBLAS on one stream.
pub(super) struct Cublas {
    handle: sys::cublasHandle_t,
    /// Also keeps the device's context alive.
    stream: Stream,
}

impl Cublas {
    /// Opens the library and binds it to `stream`; an error says why that cannot be.
    pub(super) fn open(stream: &Stream) -> Result<Rc<Self>> {
        let raw_stream = stream.cuda_handle().context("the stream is not a GPU's")?;
        // SAFETY: this only opens the library, whose initialisers have no requirements.
        if !unsafe { sys::is_culib_present() } {
            bail!("libcublas was not found; its folder can be added to LD_LIBRARY_PATH");
        }
        let mut handle = ptr::null_mut();
        // SAFETY: the library is there; the pointer is to a live variable; the device's context is current on this thread since
        // its stream was made or used here.
        check("cublasCreate", unsafe { sys::cublasCreate_v2(&raw mut handle) })?;
        let library = Rc::new(Self { handle, stream: stream.clone() });
        // SAFETY: both handles are alive.
        check("cublasSetStream", unsafe { sys::cublasSetStream_v2(handle, raw_stream.cast()) })?;
        Ok(library)
    }

    /// The plain product of `operands`; `None` for types that it does not multiply, and for layouts that are no control.
    pub(super) fn product(self: &Rc<Self>, operands: &Rc<Operands>) -> Result<Option<Product>> {
        let Case { precision, operation, .. } = operands.case;
        let Some((dtype, compute)) = types(precision).filter(|_| is_control(operation)) else {
            return Ok(None);
        };
        let mut product = Product { library: self.clone(), operands: operands.clone(), dtype, compute };
        product.enqueue(0)?;
        self.stream.synchronize()?;
        operands.check(Operation::PRODUCT).context("cuBLAS computes another product")?;
        Ok(Some(product))
    }
}

impl Drop for Cublas {
    fn drop(&mut self) {
        // SAFETY: the handle is from `cublasCreate` and is used no more. Nothing can be done about an error.
        let _ = unsafe { sys::cublasDestroy_v2(self.handle) };
    }
}

/// Whether an operation's product is a control: that of linear layers is.
fn is_control(operation: Operation) -> bool {
    operation.its_product() == Operation::PRODUCT
}

fn types(precision: Precision) -> Option<(sys::cudaDataType, sys::cublasComputeType_t)> {
    use sys::cublasComputeType_t::{CUBLAS_COMPUTE_32F, CUBLAS_COMPUTE_32F_FAST_TF32};
    use sys::cudaDataType_t::{CUDA_R_16BF, CUDA_R_16F, CUDA_R_32F};
    match precision {
        Precision::Bf16 => Some((CUDA_R_16BF, CUBLAS_COMPUTE_32F)),
        Precision::F16 => Some((CUDA_R_16F, CUBLAS_COMPUTE_32F)),
        Precision::Tf32 => Some((CUDA_R_32F, CUBLAS_COMPUTE_32F_FAST_TF32)),
        Precision::F32 => Some((CUDA_R_32F, CUBLAS_COMPUTE_32F)),
        Precision::F8 | Precision::F8Mixed | Precision::Bf16ToF32 => None,
    }
}

/// A product to measure.
pub(super) struct Product {
    library: Rc<Cublas>,
    operands: Rc<Operands>,
    dtype: sys::cudaDataType,
    compute: sys::cublasComputeType_t,
}

impl Subject for Product {
    fn enqueue(&mut self, index: usize) -> Result<(), Error> {
        let addresses = self.operands.addresses(index);
        let [m, k, n] = self.operands.case.shape;
        let (m, k, n) = (side(m)?, side(k)?, side(n)?);
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
                addresses.w as *const c_void,
                self.dtype,
                k,
                addresses.x as *const c_void,
                self.dtype,
                k,
                (&raw const zero).cast(),
                addresses.y as *mut c_void,
                self.dtype,
                n,
                self.compute,
                sys::cublasGemmAlgo_t::CUBLAS_GEMM_DEFAULT,
            )
        };
        check("cublasGemmEx", status).map_err(|error| argument("product", "success", error.to_string()))
    }
}

fn side(size: usize) -> Result<c_int, Error> {
    c_int::try_from(size).map_err(|_| argument("side", "less than 2³¹", size.to_string()))
}

/// The error for something that cuBLAS refuses.
fn argument(argument: &'static str, expected: &str, actual: String) -> Error {
    Error::Argument { operation: "cuBLAS product", argument, expected: expected.into(), actual }
}

fn check(call: &str, status: sys::cublasStatus_t) -> Result<()> {
    match status {
        sys::cublasStatus_t::CUBLAS_STATUS_SUCCESS => Ok(()),
        status => Err(anyhow!("{call} returned {status:?}")),
    }
}
