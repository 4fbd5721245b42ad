//! cuBLASLt as a peer: products with the epilogues that it fuses, by the fastest of the algorithms that it proposes.
//!
//! The library is opened at run time. What it computes is column-major: there y is the N × M matrix of w's N × K by x's K × M. What
//! is in memory as rows of K is a matrix of K rows to it.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use cudarc::cublas::sys::cublasOperation_t;
use cudarc::cublaslt::sys;
use warpsmith::ops::Activation;
use warpsmith::{Error, Stream, Tensor};
use warpsmith_lab::benchmark::{self, Options, Subject};

use super::case::{Extra, Operation, Precision};
use super::operands::{Operands, mask_bits};

/// Memory that an algorithm may work in.
const WORKSPACE_BYTES: usize = 64 << 20;
/// Algorithms to ask for and to try.
const ALGORITHMS: usize = 24;

/// cuBLASLt on one stream.
pub(super) struct CublasLt {
    handle: sys::cublasLtHandle_t,
    workspace: Tensor<u8>,
    /// Also keeps the device's context alive.
    stream: Stream,
}

impl CublasLt {
    /// Opens the library for work on `stream`; an error says why that cannot be.
    pub(super) fn open(stream: &Stream) -> Result<Rc<Self>> {
        stream.cuda_handle().context("the stream is not a GPU's")?;
        // SAFETY: this only opens the library, whose initialisers have no requirements.
        if !unsafe { sys::is_culib_present() } {
            bail!("libcublasLt was not found; its folder can be added to LD_LIBRARY_PATH");
        }
        let workspace = Tensor::zeros_on(stream, [WORKSPACE_BYTES])?;
        let mut handle = ptr::null_mut();
        // SAFETY: the library is there; the pointer is to a live variable; the device's context is current on this thread since
        // memory was allocated on it here.
        check("cublasLtCreate", unsafe { sys::cublasLtCreate(&raw mut handle) })?;
        Ok(Rc::new(Self { handle, workspace, stream: stream.clone() }))
    }

    /// The library's version.
    pub(super) fn version(&self) -> String {
        // SAFETY: the library is there, since there is a handle.
        version(unsafe { sys::cublasLtGetVersion() })
    }

    /// The fastest of the library's algorithms for the product of `operands` followed by `operation`, timed on them; `None` if
    /// it has none for these types, sizes and epilogue.
    pub(super) fn fastest(
        self: &Rc<Self>,
        operands: &Rc<Operands>,
        operation: Operation,
    ) -> Result<Option<Product>> {
        let Some(epilogue) = epilogue(operation, operands.case.precision) else { return Ok(None) };
        let call = Rc::new(Call::new(operands, operation.extra, epilogue)?);
        let mut products: Vec<Product> = call
            .proposals(self)?
            .into_iter()
            .map(|algorithm| Product {
                library: self.clone(),
                call: call.clone(),
                operands: operands.clone(),
                algorithm,
            })
            .collect();
        // Some of the proposals are refused when they are run.
        products.retain_mut(|product| product.enqueue(0).is_ok() && self.stream.synchronize().is_ok());
        if products.len() > 1 {
            let mut options = Options::default();
            (options.warm_up, options.samples, options.batch) =
                (Duration::from_millis(20), 5, Duration::from_millis(1));
            let mut subjects: Vec<&mut dyn Subject> =
                products.iter_mut().map(|product| product as &mut dyn Subject).collect();
            let timings = benchmark::interleaved(&self.stream, &mut subjects, &options)?;
            let fastest = (0..timings.len()).min_by_key(|&index| timings[index].median);
            products.swap(0, fastest.unwrap_or(0));
        }
        products.truncate(1);
        let Some(mut product) = products.pop() else { return Ok(None) };
        product.enqueue(0)?;
        self.stream.synchronize()?;
        operands.check(operation).with_context(|| format!("cuBLASLt computes another {operation}"))?;
        Ok(Some(product))
    }
}

impl Drop for CublasLt {
    fn drop(&mut self) {
        // SAFETY: the handle is from `cublasLtCreate` and is used no more. Nothing can be done about an error.
        let _ = unsafe { sys::cublasLtDestroy(self.handle) };
    }
}

/// A version as the library counts them, as in `13.1.0`.
pub(super) fn version(number: usize) -> String {
    format!("{}.{}.{}", number / 10_000, number / 100 % 100, number % 100)
}

/// The epilogue for what follows a product, if there is one.
fn epilogue(operation: Operation, precision: Precision) -> Option<sys::cublasLtEpilogue_t> {
    use sys::cublasLtEpilogue_t as Epilogue;
    // A residual is no matter of the epilogue: it is the matrix that beta is for. Neither are the scales of 8-bit operands' rows.
    let plain = match operation.extra {
        Extra::None | Extra::Residual => true,
        Extra::Scales => precision.is_f8(),
        Extra::Mask | Extra::Preactivation => false,
    };
    match (operation.bias, operation.activation, operation.extra) {
        (false, Activation::None, _) if plain => Some(Epilogue::CUBLASLT_EPILOGUE_DEFAULT),
        (true, Activation::None, _) if plain => Some(Epilogue::CUBLASLT_EPILOGUE_BIAS),
        (false, Activation::Relu, _) if plain => Some(Epilogue::CUBLASLT_EPILOGUE_RELU),
        (true, Activation::Relu, _) if plain => Some(Epilogue::CUBLASLT_EPILOGUE_RELU_BIAS),
        (false, Activation::GeluTanh, _) if plain => Some(Epilogue::CUBLASLT_EPILOGUE_GELU),
        (true, Activation::GeluTanh, _) if plain => Some(Epilogue::CUBLASLT_EPILOGUE_GELU_BIAS),
        (true, Activation::Relu, Extra::Mask) => Some(Epilogue::CUBLASLT_EPILOGUE_RELU_AUX_BIAS),
        (true, Activation::GeluTanh, Extra::Preactivation) => Some(Epilogue::CUBLASLT_EPILOGUE_GELU_AUX_BIAS),
        _ => None,
    }
}

/// The types of w, of x, and of the bias and the output; and that of the products.
fn types(precision: Precision) -> ([sys::cudaDataType; 3], sys::cublasComputeType_t) {
    use sys::cublasComputeType_t::{CUBLAS_COMPUTE_32F, CUBLAS_COMPUTE_32F_FAST_TF32};
    use sys::cudaDataType_t::{CUDA_R_8F_E4M3, CUDA_R_8F_E5M2, CUDA_R_16BF, CUDA_R_16F, CUDA_R_32F};
    match precision {
        Precision::Bf16 => ([CUDA_R_16BF; 3], CUBLAS_COMPUTE_32F),
        Precision::Bf16ToF32 => ([CUDA_R_16BF, CUDA_R_16BF, CUDA_R_32F], CUBLAS_COMPUTE_32F),
        Precision::F16 => ([CUDA_R_16F; 3], CUBLAS_COMPUTE_32F),
        Precision::Tf32 => ([CUDA_R_32F; 3], CUBLAS_COMPUTE_32F_FAST_TF32),
        Precision::F32 => ([CUDA_R_32F; 3], CUBLAS_COMPUTE_32F),
        Precision::F8 => ([CUDA_R_8F_E4M3, CUDA_R_8F_E4M3, CUDA_R_16BF], CUBLAS_COMPUTE_32F),
        Precision::F8Mixed => ([CUDA_R_8F_E5M2, CUDA_R_8F_E4M3, CUDA_R_16BF], CUBLAS_COMPUTE_32F),
    }
}

/// The library's descriptions of one operation and its matrices.
struct Call {
    operation: sys::cublasLtMatmulDesc_t,
    /// Of w, x and y.
    layouts: Vec<sys::cublasLtMatrixLayout_t>,
    /// What the bias's address was last set to.
    bias: Cell<u64>,
    /// What the address of the matrix that the epilogue stores was last set to.
    stored: Cell<u64>,
    /// Whether the residual is added.
    adds: bool,
}

impl Call {
    /// The caller has a handle of the library, which therefore is there.
    fn new(operands: &Operands, extra: Extra, epilogue: sys::cublasLtEpilogue_t) -> Result<Self> {
        use sys::cublasLtMatmulDescAttributes_t as Attribute;
        let case = &operands.case;
        let ([w_type, x_type, output], compute) = types(case.precision);
        let [m, k, n] = case.shape.map(|side| side as u64);
        let mut operation = ptr::null_mut();
        let scale = sys::cudaDataType_t::CUDA_R_32F;
        // SAFETY: the library is there; the handle is written to a local variable.
        check("cublasLtMatmulDescCreate", unsafe {
            sys::cublasLtMatmulDescCreate(&raw mut operation, compute, scale)
        })?;
        // From here on, dropping `call` frees what was made.
        let mut call = Self {
            operation,
            layouts: Vec::new(),
            bias: Cell::new(0),
            stored: Cell::new(0),
            adds: extra == Extra::Residual,
        };
        let layout = case.operation.layout;
        let transposed =
            |is: bool| if is { cublasOperation_t::CUBLAS_OP_T } else { cublasOperation_t::CUBLAS_OP_N };
        call.set(Attribute::CUBLASLT_MATMUL_DESC_TRANSA, transposed(layout.transposes_w()))?;
        call.set(Attribute::CUBLASLT_MATMUL_DESC_TRANSB, transposed(layout.transposes_x()))?;
        call.set(Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue)?;
        if epilogue != sys::cublasLtEpilogue_t::CUBLASLT_EPILOGUE_DEFAULT {
            call.set(Attribute::CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, output)?;
            call.set_bias(operands.addresses(0).bias)?;
        }
        // What the epilogue stores has a column for each of y's, of bits or of elements.
        let stored = match extra {
            Extra::Mask => Some(mask_bits(case.shape[2])),
            Extra::Preactivation => Some(case.shape[2]),
            Extra::None | Extra::Residual | Extra::Scales => None,
        };
        if let Some(rows) = stored {
            call.set(Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, rows as i64)?;
            call.set_stored(operands.addresses(0).extra)?;
        }
        if case.precision.is_f8() {
            let mut scales = [operands.scale_address(); 2];
            if extra == Extra::Scales {
                scales = operands.scale_addresses().context("operands without scales")?;
                let mode = sys::cublasLtMatmulMatrixScale_t::CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
                call.set(Attribute::CUBLASLT_MATMUL_DESC_A_SCALE_MODE, mode)?;
                call.set(Attribute::CUBLASLT_MATMUL_DESC_B_SCALE_MODE, mode)?;
            }
            let [rows, columns] = scales;
            call.set(Attribute::CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, columns)?;
            call.set(Attribute::CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, rows)?;
        }
        let (w_rows, w_columns) = if layout.transposes_w() { (k, n) } else { (n, k) };
        let (x_rows, x_columns) = if layout.transposes_x() { (m, k) } else { (k, m) };
        for (dtype, rows, columns) in
            [(w_type, w_rows, w_columns), (x_type, x_rows, x_columns), (output, n, m)]
        {
            let mut layout = ptr::null_mut();
            // SAFETY: as above. Columns lie without gaps, so the leading dimension is the number of rows.
            check("cublasLtMatrixLayoutCreate", unsafe {
                sys::cublasLtMatrixLayoutCreate(&raw mut layout, dtype, rows, columns, rows as i64)
            })?;
            call.layouts.push(layout);
            call.set_batch(layout, case.operation.batch, rows * columns)?;
        }
        Ok(call)
    }

    /// Sets an attribute, whose type is `T` as the library documents it.
    fn set<T: Copy>(&self, attribute: sys::cublasLtMatmulDescAttributes_t, value: T) -> Result<()> {
        // SAFETY: the description is alive; the value is read during the call, and is as long as said.
        let status = unsafe {
            sys::cublasLtMatmulDescSetAttribute(
                self.operation,
                attribute,
                (&raw const value).cast(),
                size_of::<T>(),
            )
        };
        check("cublasLtMatmulDescSetAttribute", status).with_context(|| format!("{attribute:?}"))
    }

    /// Says of a layout of this call that there are `count` matrices, each so many elements behind the other.
    fn set_batch(&self, layout: sys::cublasLtMatrixLayout_t, count: usize, elements: u64) -> Result<()> {
        use sys::cublasLtMatrixLayoutAttribute_t as Attribute;
        if count == 1 {
            return Ok(());
        }
        let count = i32::try_from(count).context("matrices of a batch")?;
        let distance = i64::try_from(elements).context("elements of a matrix")?;
        // SAFETY: the layout is alive; the values are read during the calls, and are of the types that the library documents.
        let (counted, spaced) = unsafe {
            (
                sys::cublasLtMatrixLayoutSetAttribute(
                    layout,
                    Attribute::CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT,
                    (&raw const count).cast(),
                    size_of::<i32>(),
                ),
                sys::cublasLtMatrixLayoutSetAttribute(
                    layout,
                    Attribute::CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                    (&raw const distance).cast(),
                    size_of::<i64>(),
                ),
            )
        };
        check("cublasLtMatrixLayoutSetAttribute", counted)?;
        check("cublasLtMatrixLayoutSetAttribute", spaced)
    }

    /// Sets the bias's address for the next calls.
    fn set_bias(&self, address: u64) -> Result<()> {
        if self.bias.replace(address) == address {
            return Ok(());
        }
        self.set(sys::cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_BIAS_POINTER, address)
    }

    /// Sets the address of what the epilogue stores for the next calls.
    fn set_stored(&self, address: u64) -> Result<()> {
        if self.stored.replace(address) == address {
            return Ok(());
        }
        self.set(sys::cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, address)
    }

    /// The algorithms that the library proposes, the one that it holds for the fastest first.
    fn proposals(&self, library: &CublasLt) -> Result<Vec<sys::cublasLtMatmulAlgo_t>> {
        let mut preference = ptr::null_mut();
        // SAFETY: the library is there; the handle is written to a local variable.
        check("cublasLtMatmulPreferenceCreate", unsafe {
            sys::cublasLtMatmulPreferenceCreate(&raw mut preference)
        })?;
        let mut found = [const { MaybeUninit::<sys::cublasLtMatmulHeuristicResult_t>::uninit() }; ALGORITHMS];
        let mut count: c_int = 0;
        let workspace = WORKSPACE_BYTES as u64;
        let [w, x, y] = self.layouts[..] else { bail!("an operation with {} matrices", self.layouts.len()) };
        // SAFETY: all handles are alive; the attribute is an unsigned number of 64 bits; `found` has room for as many results
        // as are asked for.
        let (set, asked) = unsafe {
            let set = sys::cublasLtMatmulPreferenceSetAttribute(
                preference,
                sys::cublasLtMatmulPreferenceAttributes_t::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                (&raw const workspace).cast(),
                size_of::<u64>(),
            );
            let asked = sys::cublasLtMatmulAlgoGetHeuristic(
                library.handle,
                self.operation,
                w,
                x,
                y,
                y,
                preference,
                ALGORITHMS as c_int,
                found.as_mut_ptr().cast(),
                &raw mut count,
            );
            let _ = sys::cublasLtMatmulPreferenceDestroy(preference);
            (set, asked)
        };
        check("cublasLtMatmulPreferenceSetAttribute", set)?;
        match asked {
            sys::cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED
            | sys::cublasStatus_t::CUBLAS_STATUS_INVALID_VALUE => return Ok(Vec::new()),
            status => check("cublasLtMatmulAlgoGetHeuristic", status)?,
        }
        let count = usize::try_from(count).unwrap_or(0).min(ALGORITHMS);
        // SAFETY: the library has written the first `count` results.
        let found = found[..count].iter().map(|result| unsafe { result.assume_init_ref() });
        let usable = found.filter(|result| result.state == sys::cublasStatus_t::CUBLAS_STATUS_SUCCESS);
        Ok(usable.map(|result| result.algo).collect())
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        // SAFETY: the descriptions are used no more. Nothing can be done about an error.
        unsafe {
            for &layout in &self.layouts {
                let _ = sys::cublasLtMatrixLayoutDestroy(layout);
            }
            let _ = sys::cublasLtMatmulDescDestroy(self.operation);
        }
    }
}

/// One operation by one algorithm, to measure.
#[derive(Clone)]
pub(super) struct Product {
    library: Rc<CublasLt>,
    call: Rc<Call>,
    operands: Rc<Operands>,
    algorithm: sys::cublasLtMatmulAlgo_t,
}

impl Subject for Product {
    fn enqueue(&mut self, index: usize) -> Result<(), Error> {
        let addresses = self.operands.addresses(index);
        let failed = |reason: anyhow::Error| Error::Argument {
            operation: "cuBLASLt",
            argument: "product",
            expected: "success".into(),
            actual: format!("{reason:#}"),
        };
        if self.call.bias.get() != 0 {
            self.call.set_bias(addresses.bias).map_err(failed)?;
        }
        if self.call.stored.get() != 0 {
            self.call.set_stored(addresses.extra).map_err(failed)?;
        }
        let [w, x, y] = self.call.layouts[..] else {
            return Err(failed(anyhow!("{} matrices", self.call.layouts.len())));
        };
        let stream = self.library.stream.cuda_handle().unwrap_or(ptr::null_mut());
        // With zero for beta y is only written.
        let (one, beta, added) =
            if self.call.adds { (1f32, 1f32, addresses.extra) } else { (1f32, 0f32, addresses.y) };
        // SAFETY: all handles are alive, and the addresses are of live memory of the layouts' sizes; the scalars are f32, as
        // the description says, and are read during the call.
        let status = unsafe {
            sys::cublasLtMatmul(
                self.library.handle,
                self.call.operation,
                (&raw const one).cast(),
                addresses.w as *const c_void,
                w,
                addresses.x as *const c_void,
                x,
                (&raw const beta).cast(),
                added as *const c_void,
                y,
                addresses.y as *mut c_void,
                y,
                &raw const self.algorithm,
                self.library.workspace.arg().address() as *mut c_void,
                WORKSPACE_BYTES,
                stream.cast(),
            )
        };
        check("cublasLtMatmul", status).map_err(failed)
    }
}

fn check(call: &str, status: sys::cublasStatus_t) -> Result<()> {
    match status {
        sys::cublasStatus_t::CUBLAS_STATUS_SUCCESS => Ok(()),
        status => Err(anyhow!("{call} returned {status:?}")),
    }
}
