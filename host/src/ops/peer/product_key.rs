//! Product-key retrieval: the experts of each token and head.
//!
//! [`product_key_topk`] is the operation. It runs two kernels: the linear one that projects the tokens to queries in f32, and one that
//! does the rest, from the queries' normalisation to the gates.

mod backward;
mod parts;

use ndarray::{ArrayView2, Ix2, Ix3};
use warpsmith_dsl::launch::Global;
use warpsmith_dsl::product_key as kernels;
use warpsmith_dsl::product_key::{ProductKeyParams, QueryNormParams};

use super::Routing;
use super::options::{Kind, QueryNorm};
use super::retrieval::{Choice, RetrievalBlocks, RoutingInput, choose, forced};
use crate::cpu::Gate;
use crate::cpu::{self, Normalization, ProductKeys};
use crate::device::DeviceKind;
use crate::error::{Error, Result};
use crate::ops::topk::MAX_K;
use crate::ops::{CHUNK_BYTES, Implementation, SIDE_LIMIT, expect_result, linear, repack};
use crate::stream::{Operand, Stream};
use crate::tensor::{Element, Tensor};
use crate::trace;
pub use backward::{ProductKeyBackwardOp, ProductKeyGradientOutputs, ProductKeyGradients};
pub(super) use parts::Parts;

/// The operation's name in errors.
const OPERATION: &str = "product_key_topk";
/// The most sub-keys of a half: the number of an expert has 32 bits.
const MOST_SUB_KEYS: usize = 1 << 16;

/// The `k` experts of each token of `x` `[.., D]` and each of `heads` heads, of n² experts: ids and gates `[.., H, k]`.
///
/// The query of a head is the head's d of the H · d columns of `x w_qᵀ + bias`, normalised. Expert `i · n + j` has as score the product of
/// the query's first half with row i of `keys_1`, and of its second half with row j of `keys_2`: `[n, d / 2]` each, shared by all heads,
/// or `[H, n, d / 2]`. The k experts with the highest scores are found, best first, and of equal scores that with the lowest id.
/// (Where sums that differ are rounded to the same score, it may be that whose first or second sub-key has the higher one.)
///
/// Scores are f32 throughout. A query is not rounded to the type of the sub-keys, but split into two numbers of it: to within 2⁻¹⁷ for bf16, 2⁻²² for
/// f16; for f32 the products are those of three TF32 products.
///
/// ```
/// use ndarray::array;
/// use warpsmith::ops::peer::{Gate, QueryNorm};
/// use warpsmith::{Device, Tensor, ops};
///
/// let device = Device::cpu();
/// let x = Tensor::from_array(&device, &array![[1.0f32, 2.0]])?;
/// let w_q = Tensor::from_array(&device, &array![[1.0f32, 0.0], [0.0, 1.0]])?;
/// let keys_1 = Tensor::from_array(&device, &array![[0.0f32], [1.0], [3.0]])?;
/// let keys_2 = Tensor::from_array(&device, &array![[0.0f32], [-1.0], [1.0]])?;
/// let routing = ops::product_key_topk(&x, &w_q, &keys_1, &keys_2, 1, 2)
///     .query_norm(QueryNorm::none())
///     .gate(Gate::Identity)
///     .run()?;
/// // Sub-keys 2 and 2 have scores 3 and 2; the next best are 1 and 2, and 2 and 0: of equal scores the lowest id.
/// assert_eq!(routing.ids.to_vec()?, [2 * 3 + 2, 3 + 2]);
/// assert_eq!(routing.gates.to_vec()?, [5.0, 3.0]);
/// # Ok::<(), warpsmith::Error>(())
/// ```
pub fn product_key_topk<'a, T: RoutingInput>(
    x: &'a Tensor<T>,
    w_q: &'a Tensor<T>,
    keys_1: &'a Tensor<T>,
    keys_2: &'a Tensor<T>,
    heads: usize,
    k: usize,
) -> ProductKeyOp<'a, T> {
    ProductKeyOp {
        x,
        w_q,
        keys: [keys_1, keys_2],
        heads,
        k,
        bias: None,
        norm: QueryNorm::layer(1e-5),
        gate: Gate::Softmax,
        temperature: 1.0,
        blocks: None,
        stream: None,
    }
}

/// A retrieval that has yet to run; see [`product_key_topk`](fn@product_key_topk).
#[derive(Clone, Copy, Debug)]
#[must_use = "an operation does nothing until `run` or `run_into`"]
pub struct ProductKeyOp<'a, T: Element> {
    x: &'a Tensor<T>,
    w_q: &'a Tensor<T>,
    keys: [&'a Tensor<T>; 2],
    heads: usize,
    k: usize,
    bias: Option<&'a Tensor<T>>,
    norm: QueryNorm<'a>,
    gate: Gate,
    temperature: f32,
    blocks: Option<RetrievalBlocks>,
    stream: Option<&'a Stream>,
}

/// The sizes of a retrieval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sizes {
    tokens: usize,
    n: usize,
    half: usize,
    /// Whether each head has sub-keys of its own.
    per_head: bool,
}

impl<'a, T: RoutingInput> ProductKeyOp<'a, T> {
    /// Adds `bias` `[H · d]` to the projection.
    pub fn bias(self, bias: &'a Tensor<T>) -> Self {
        Self { bias: Some(bias), ..self }
    }

    /// How queries are normalised: by layer with epsilon 10⁻⁵, without weight and bias, unless it is set.
    pub fn query_norm(self, norm: QueryNorm<'a>) -> Self {
        Self { norm, ..self }
    }

    /// What gates are of the scores. A softmax unless it is set.
    pub fn gate(self, gate: Gate) -> Self {
        Self { gate, ..self }
    }

    /// Divides scores by `temperature`, above 0, before the gate. 1 unless it is set.
    pub fn temperature(self, temperature: f32) -> Self {
        Self { temperature, ..self }
    }

    /// Takes these blocks instead of those that would be chosen; the device must have them, and they must find as many experts. For measurements: results
    /// are the same. The CPU implementation has no blocks and ignores it.
    pub fn blocks(self, blocks: impl Into<Option<RetrievalBlocks>>) -> Self {
        Self { blocks: blocks.into(), ..self }
    }

    /// Runs on `stream` instead of the device's default stream.
    pub fn on(self, stream: &'a Stream) -> Self {
        Self { stream: Some(stream), ..self }
    }

    /// The gradients for a routing that this retrieval has found, and `dgates` `[.., H, k]`, the gradient of its gates.
    ///
    /// ```
    /// use ndarray::array;
    /// use warpsmith::ops::peer::{Gate, QueryNorm};
    /// use warpsmith::{Device, Tensor, ops};
    ///
    /// let device = Device::cpu();
    /// let x = Tensor::from_array(&device, &array![[1.0f32, 2.0]])?;
    /// let w_q = Tensor::from_array(&device, &array![[1.0f32, 0.0], [0.0, 1.0]])?;
    /// let keys_1 = Tensor::from_array(&device, &array![[0.0f32], [3.0]])?;
    /// let keys_2 = Tensor::from_array(&device, &array![[-1.0f32], [1.0]])?;
    /// let retrieval = ops::product_key_topk(&x, &w_q, &keys_1, &keys_2, 1, 1)
    ///     .query_norm(QueryNorm::none())
    ///     .gate(Gate::Identity);
    /// let routing = retrieval.run()?;
    /// assert_eq!((routing.ids.to_vec()?, routing.gates.to_vec()?), (vec![3], vec![5.0]));
    ///
    /// let dgates = Tensor::from_array(&device, &array![[[10.0f32]]])?;
    /// let gradients = retrieval.backward(&routing, &dgates).run()?;
    /// assert_eq!(gradients.dx.to_vec()?, [10.0 * 3.0, 10.0 * 1.0]);
    /// assert_eq!(gradients.dw_q.to_vec()?, [30.0, 60.0, 10.0, 20.0]);
    /// assert_eq!(gradients.dkeys_1.to_vec()?, [0.0, 10.0 * 1.0]);
    /// assert_eq!(gradients.dkeys_2.to_vec()?, [0.0, 10.0 * 2.0]);
    /// # Ok::<(), warpsmith::Error>(())
    /// ```
    pub fn backward(self, routing: &'a Routing, dgates: &'a Tensor<f32>) -> ProductKeyBackwardOp<'a, T> {
        ProductKeyBackwardOp::new(self, routing, dgates)
    }

    /// Finds the experts. On a GPU the work may still be under way when this returns.
    ///
    /// # Errors
    ///
    /// [`Error::Shape`] if an operand does not fit. [`Error::Argument`] if `k` is 0, above 64 or above n, if there is no head
    /// or if the temperature is not a number above 0. [`Error::SizeLimit`] if there are more than 2¹⁶ sub-keys or 2³¹ tokens
    /// and heads. [`Error::DeviceMismatch`] if an operand or the stream is another device's. [`Error::UnsupportedDevice`] and
    /// [`Error::Argument`] for [blocks](Self::blocks) that cannot be. Otherwise whatever allocating memory, loading the kernels
    /// and launching them may return.
    pub fn run(&self) -> Result<Routing> {
        let _range = trace::operation(OPERATION);
        let sizes = self.check()?;
        let (stream, shape) = (self.stream(), self.shape());
        let mut routing =
            Routing { ids: Tensor::uninit_on(&stream, &shape)?, gates: Tensor::uninit_on(&stream, &shape)? };
        self.write(sizes, &stream, &mut routing)?;
        Ok(routing)
    }

    /// Finds the experts into `routing` `[.., H, k]`, tensors without gaps, so that the work can be [captured](Stream::capture) with its results kept.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run); [`Error::Shape`], [`Error::Stride`], [`Error::DeviceMismatch`] and [`Error::Overlap`] if the routing does not fit or
    /// shares memory with an operand.
    pub fn run_into(&self, routing: &mut Routing) -> Result<()> {
        let _range = trace::operation(OPERATION);
        let sizes = self.check()?;
        let (device, shape) = (self.x.device(), self.shape());
        let origin = "x, heads and k";
        expect_result(OPERATION, "ids", &routing.ids, device, &shape, origin)?;
        expect_result(OPERATION, "gates", &routing.gates, device, &shape, origin)?;
        let with = |other: &Tensor<T>| [routing.ids.shares_memory(other), routing.gates.shares_memory(other)];
        let mut shared = vec![
            ("gates", [routing.ids.shares_memory(&routing.gates), false]),
            ("x", with(self.x)),
            ("w_q", with(self.w_q)),
            ("keys_1", with(self.keys[0])),
            ("keys_2", with(self.keys[1])),
        ];
        shared.extend(self.bias.map(|bias| ("bias", with(bias))));
        for (name, other) in self.of_features() {
            shared.push((name, [routing.ids.shares_memory(other), routing.gates.shares_memory(other)]));
        }
        for (other, [ids, gates]) in shared {
            if let Some(operand) = ids.then_some("ids").or(gates.then_some("gates")) {
                return Err(Error::Overlap { operation: OPERATION, operand, other });
            }
        }
        self.write(sizes, &self.stream(), routing)
    }

    /// The tokens.
    pub(super) fn x(&self) -> &'a Tensor<T> {
        self.x
    }

    pub(super) fn stream(&self) -> Stream {
        self.stream.cloned().unwrap_or_else(|| self.x.device().default_stream())
    }

    /// The shape of ids and gates.
    fn shape(&self) -> Vec<usize> {
        let mut shape = self.x.shape().to_vec();
        shape.pop();
        shape.extend([self.heads, self.k]);
        shape
    }

    /// Finds the experts into `routing`, which has been checked, or is new.
    fn write(&self, sizes: Sizes, stream: &Stream, routing: &mut Routing) -> Result<()> {
        if sizes.tokens == 0 {
            return Ok(());
        }
        if self.x.device().kind() == DeviceKind::Cpu {
            return self.run_on_cpu(routing);
        }
        let q = self.project(stream)?;
        self.launch(sizes, &self.choice(sizes)?, stream, &q, routing)
    }

    /// The queries before they are normalised.
    fn project(&self, stream: &Stream) -> Result<Tensor<f32>> {
        let projection = linear(self.x, self.w_q).output::<f32>().on(stream);
        match self.bias {
            Some(bias) => projection.bias(bias).run(),
            None => projection.run(),
        }
    }

    /// Which implementation [`run`](Self::run) would take.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run), for the operands.
    pub fn implementation(&self) -> Result<Implementation> {
        let sizes = self.check()?;
        let device = self.x.device();
        if sizes.tokens == 0 {
            return Ok(Implementation::Empty);
        }
        if device.kind() == DeviceKind::Cpu {
            return Ok(Implementation::Cpu);
        }
        let Choice { kernel, grid: [x, y, _], .. } = self.choice(sizes)?;
        let projection = linear(self.x, self.w_q).output::<f32>().implementation()?;
        let copies = self.keys.iter().filter(|keys| !is_chunked(keys)).count();
        let kernel = Implementation::kernel(device, kernel.name, x.saturating_mul(y));
        let copies = projection.copies() as usize + copies;
        Ok(projection.then(kernel).with_copies(copies))
    }

    fn check(&self) -> Result<Sizes> {
        let (operation, device) = (OPERATION, self.x.device());
        let shape = |operand, expected: String, actual: &[usize]| {
            Err(Error::Shape { operation, operand, expected, actual: actual.to_vec() })
        };
        let argument = |argument, expected: String, actual: String| {
            Err(Error::Argument { operation, argument, expected, actual })
        };
        if self.heads == 0 {
            return argument("heads", "at least 1".into(), "0".into());
        }
        let Some((&columns, leading)) = self.x.shape().split_last() else {
            return shape("x", "[.., D], at least one axis".into(), self.x.shape());
        };
        let heads = self.heads;
        let (per_head, n, half) = match *self.keys[0].shape() {
            [n, half] => (false, n, half),
            [groups, n, half] if groups == heads => (true, n, half),
            _ => {
                let expected = format!("[n, d / 2], or [{heads}, n, d / 2], for each of {heads} heads");
                return shape("keys_1", expected, self.keys[0].shape());
            }
        };
        if self.keys[1].shape() != self.keys[0].shape() {
            let expected = format!("{:?}, as keys_1 has", self.keys[0].shape());
            return shape("keys_2", expected, self.keys[1].shape());
        }
        if half == 0 {
            return shape("keys_1", "at least one column".into(), self.keys[0].shape());
        }
        let width = half.saturating_mul(2);
        let projected = heads.saturating_mul(width);
        if self.w_q.shape() != [projected, columns] {
            let expected =
                format!("[{projected}, {columns}]: {heads} heads of {width}, and x has {columns} columns");
            return shape("w_q", expected, self.w_q.shape());
        }
        if let Some(bias) = self.bias.filter(|bias| bias.shape() != [projected]) {
            return shape("bias", format!("[{projected}]"), bias.shape());
        }
        for (operand, tensor) in self.of_features() {
            if tensor.shape() != [width] && tensor.shape() != [heads, width] {
                return shape(operand, format!("[{width}], or [{heads}, {width}]"), tensor.shape());
            }
            device.expect_same(operation, operand, tensor.device())?;
        }
        if let Kind::Batch { mean, variance } = self.norm.kind
            && mean.shape() != variance.shape()
        {
            return shape("variance", format!("{:?}, as the mean has", mean.shape()), variance.shape());
        }
        if let (Some(weight), Some(bias)) = (self.norm.weight, self.norm.bias)
            && weight.shape() != bias.shape()
        {
            return shape(
                "bias of the norm",
                format!("{:?}, as its weight has", weight.shape()),
                bias.shape(),
            );
        }
        if self.k == 0 || self.k > MAX_K.min(n) {
            let expected = format!("1 to {MAX_K}, and at most the {n} sub-keys of a half");
            return argument("k", expected, self.k.to_string());
        }
        if !(self.temperature > 0.0 && self.temperature.is_finite() && (1.0 / self.temperature).is_finite()) {
            let expected = "above 0, and a number as its reciprocal is".into();
            return argument("temperature", expected, self.temperature.to_string());
        }
        if !(self.norm.epsilon >= 0.0 && self.norm.epsilon.is_finite()) {
            return argument("epsilon", "0 or above".into(), self.norm.epsilon.to_string());
        }
        let tokens = leading.iter().product::<usize>();
        let rows = (tokens as u64).saturating_mul(heads as u64);
        for (operand, quantity, size, limit) in [
            ("x", "number of tokens times heads", rows, SIDE_LIMIT),
            ("keys_1", "number of sub-keys", n as u64, MOST_SUB_KEYS as u64 + 1),
            ("keys_1", "number of columns of a query", width as u64, SIDE_LIMIT / 4),
        ] {
            if size >= limit {
                let (limit, actual) = (format!("less than {limit}"), size.to_string());
                return Err(Error::SizeLimit { operation, operand, quantity, limit, actual });
            }
        }
        for (operand, tensor) in [("w_q", self.w_q), ("keys_1", self.keys[0]), ("keys_2", self.keys[1])] {
            device.expect_same(operation, operand, tensor.device())?;
        }
        if let Some(bias) = self.bias {
            device.expect_same(operation, "bias", bias.device())?;
        }
        if let Some(stream) = self.stream {
            device.expect_same(operation, "stream", stream.device())?;
        }
        Ok(Sizes { tokens, n, half, per_head })
    }

    /// The tensors that have a number for each feature.
    fn of_features(&self) -> Vec<(&'static str, &'a Tensor<f32>)> {
        let mut all = Vec::new();
        all.extend(self.norm.weight.map(|weight| ("weight of the norm", weight)));
        all.extend(self.norm.bias.map(|bias| ("bias of the norm", bias)));
        if let Kind::Batch { mean, variance } = self.norm.kind {
            all.extend([("mean", mean), ("variance", variance)]);
        }
        all
    }

    /// The kernel, and how it is launched.
    fn choice(&self, sizes: Sizes) -> Result<Choice<T::Device>> {
        let (rows, heads) =
            if sizes.per_head { (sizes.tokens, self.heads) } else { (sizes.tokens * self.heads, 1) };
        let properties = self.x.device().properties();
        let most = properties.max_grid[1] as usize;
        if heads > most {
            let (limit, actual) = (format!("at most {most}"), heads.to_string());
            let (operand, quantity) = ("keys_1", "number of heads");
            return Err(Error::SizeLimit { operation: OPERATION, operand, quantity, limit, actual });
        }
        let capability = properties.compute_capability;
        let Some(blocks) = self.blocks else {
            let has = [properties.multiprocessors, properties.max_shared_per_block];
            return Ok(choose(&T::KERNELS, [rows, heads, sizes.n, self.k], capability, has));
        };
        let Some(choice) = forced(&T::KERNELS, [rows, heads, self.k], blocks) else {
            return Err(Error::Argument {
                operation: OPERATION,
                argument: "blocks",
                expected: "one, or for at most 32 experts a cluster of 2, 4 or 8 for 32 rows, or for 64 with sub-keys of 16 bits".into(),
                actual: format!("{blocks}, for {} experts with {} sub-keys", self.k, T::DTYPE),
            });
        };
        let (shared, (major, minor)) = (choice.kernel.shared_bytes, capability);
        if choice.cluster > 1 && (major < 9 || properties.max_shared_per_block < shared) {
            let actual = format!("{major}.{minor} and {} bytes", properties.max_shared_per_block);
            return Err(Error::UnsupportedDevice {
                operation: OPERATION,
                device: self.x.device().to_string(),
                expected: format!(
                    "compute capability 9.0 and {shared} bytes of shared memory for a block, for clusters"
                ),
                actual,
            });
        }
        Ok(choice)
    }

    /// Launches the kernel for these queries.
    fn launch(
        &self,
        sizes: Sizes,
        choice: &Choice<T::Device>,
        stream: &Stream,
        q: &Tensor<f32>,
        routing: &mut Routing,
    ) -> Result<()> {
        let Sizes { tokens, half, per_head, .. } = sizes;
        let chunked = |keys: &Tensor<T>| {
            if is_chunked(keys) { Ok(keys.clone()) } else { repack(keys).on(stream).run() }
        };
        let (keys_1, keys_2) = (chunked(self.keys[0])?, chunked(self.keys[1])?);
        let norm = self.norm_on(stream, half)?;
        let params = ProductKeyParams {
            rows: if per_head { tokens } else { tokens * self.heads } as u32,
            row_step: if per_head { self.heads as u32 } else { 1 },
            cluster_log2: choice.cluster.trailing_zeros(),
            ..self.params(sizes, [&keys_1, &keys_2])
        };
        let Routing { ids, gates } = routing;
        let arguments =
            (q.arg(), keys_1.arg(), keys_2.arg(), norm.params, ids.arg_mut(), gates.arg_mut(), params);
        let mut operands: Vec<&dyn Operand> = vec![q, &keys_1, &keys_2, ids, gates];
        operands.extend(norm.operands());
        // SAFETY: `check` has checked the sizes of every operand, the sub-keys are in chunks, and the results are new, or have been checked too. Tensors are freed in
        // the order of their home streams, which `with_operands` makes wait for this work, or if the stream is a branch, `Stream::beside`: these are
        // among the operands there.
        stream.with_operands(&operands, || unsafe { choice.launch(stream, arguments) })
    }

    /// How queries are normalised, as kernels are told.
    fn norm_on(&self, stream: &Stream, half: usize) -> Result<NormOnDevice> {
        let contiguous =
            |tensor: Option<&Tensor<f32>>| tensor.map(|tensor| tensor.contiguous_on(stream)).transpose();
        let (mean, variance) = match self.norm.kind {
            Kind::Batch { mean, variance } => (Some(mean), Some(variance)),
            _ => (None, None),
        };
        let [weight, bias] = [contiguous(self.norm.weight)?, contiguous(self.norm.bias)?];
        let [mean, variance] = [contiguous(mean)?, contiguous(variance)?];
        let arg = |tensor: &Option<Tensor<f32>>| tensor.as_ref().map_or(Global::new(0), Tensor::arg);
        let stride = |tensors: [&Option<Tensor<f32>>; 2]| {
            let per_head = tensors.into_iter().flatten().any(|tensor| tensor.rank() == 2);
            if per_head { 2 * half as u32 } else { 0 }
        };
        let params = QueryNormParams {
            weight: arg(&weight),
            bias: arg(&bias),
            mean: arg(&mean),
            variance: arg(&variance),
            kind: match self.norm.kind {
                Kind::None => kernels::NORM_NONE,
                Kind::Layer => kernels::NORM_LAYER,
                Kind::Rms => kernels::NORM_RMS,
                Kind::L2 => kernels::NORM_L2,
                Kind::Batch { .. } => kernels::NORM_BATCH,
            },
            epsilon: match self.norm.kind {
                Kind::L2 => 1.0 / self.norm.epsilon,
                _ => self.norm.epsilon,
            },
            weight_stride: stride([&weight, &bias]),
            mean_stride: stride([&mean, &variance]),
        };
        Ok(NormOnDevice { params, tensors: [weight, bias, mean, variance] })
    }

    /// What kernels are told of a retrieval whose rows are all queries, one after the other, with these sub-keys.
    fn params(&self, sizes: Sizes, [keys_1, keys_2]: [&Tensor<T>; 2]) -> ProductKeyParams {
        let row_stride = |keys: &Tensor<T>| keys.strides()[keys.rank() - 2] as u64;
        let head_stride = |keys: &Tensor<T>| if sizes.per_head { keys.strides()[0] as u64 } else { 0 };
        ProductKeyParams {
            key_stride_1: row_stride(keys_1),
            key_stride_2: row_stride(keys_2),
            head_stride_1: head_stride(keys_1),
            head_stride_2: head_stride(keys_2),
            rows: (sizes.tokens * self.heads) as u32,
            row_step: 1,
            heads: self.heads as u32,
            n: sizes.n as u32,
            half: sizes.half as u32,
            k: self.k as u32,
            pairs: kernels::pairs(self.k as u32),
            gate: self.gate.on_device(),
            inverse_temperature: 1.0 / self.temperature,
            cluster_log2: 0,
        }
    }

    fn run_on_cpu(&self, routing: &mut Routing) -> Result<()> {
        let columns = self.x.shape()[self.x.rank() - 1];
        let x = self.x.to_vec()?;
        let leading = &self.x.shape()[..self.x.rank() - 1];
        let tokens = leading.iter().product();
        let x = ArrayView2::from_shape((tokens, columns), &x).map_err(|error| self.misshapen(error))?;
        let (ids, gates) = self.with_cpu_keys(|keys| cpu::product_key_topk::<f32, T>(x, keys))?;
        routing.ids.write_slice(&ids)?;
        routing.gates.write_slice(&gates)
    }

    fn misshapen(&self, error: ndarray::ShapeError) -> Error {
        Error::Argument {
            operation: OPERATION,
            argument: "shape",
            expected: error.to_string(),
            actual: format!("{:?}", self.x.shape()),
        }
    }

    /// What `f` makes of the retrieval as the CPU has it.
    fn with_cpu_keys<R>(&self, f: impl FnOnce(&ProductKeys<'_, T>) -> Result<R>) -> Result<R> {
        let values = |tensor: Option<&Tensor<f32>>| tensor.map(Tensor::to_vec).transpose();
        let (weight, shift) = (values(self.norm.weight)?, values(self.norm.bias)?);
        let (mean, variance) = match self.norm.kind {
            Kind::Batch { mean, variance } => (mean.to_vec()?, variance.to_vec()?),
            _ => (Vec::new(), Vec::new()),
        };
        let epsilon = self.norm.epsilon;
        let bias = self.bias.map(Tensor::to_vec).transpose()?;
        let error = |error| self.misshapen(error);
        let w = self.w_q.host_view(OPERATION)?;
        let keys = [self.keys[0].host_view(OPERATION)?, self.keys[1].host_view(OPERATION)?];
        let three = |view: &crate::tensor::host::HostView<'_, T>| {
            let array = view.array().to_owned();
            let shape = array.shape().to_vec();
            match *shape.as_slice() {
                [n, half] => array.into_shape_with_order((1, n, half)),
                _ => array.into_dimensionality::<Ix3>(),
            }
            .map_err(error)
        };
        let (keys_1, keys_2) = (three(&keys[0])?, three(&keys[1])?);
        f(&ProductKeys {
            w: w.array().into_dimensionality::<Ix2>().map_err(error)?,
            bias: bias.as_deref(),
            keys_1: keys_1.view(),
            keys_2: keys_2.view(),
            heads: self.heads,
            k: self.k,
            norm: match self.norm.kind {
                Kind::None => Normalization::None,
                Kind::Layer => Normalization::Layer { epsilon },
                Kind::Rms => Normalization::Rms { epsilon },
                Kind::L2 => Normalization::L2 { epsilon },
                Kind::Batch { .. } => Normalization::Batch { mean: &mean, variance: &variance, epsilon },
            },
            weight: weight.as_deref(),
            shift: shift.as_deref(),
            gate: self.gate,
            temperature: self.temperature,
        })
    }
}

/// How queries are normalised: the tensors without gaps, and what kernels are told of them.
struct NormOnDevice {
    params: QueryNormParams,
    tensors: [Option<Tensor<f32>>; 4],
}

impl NormOnDevice {
    fn operands(&self) -> impl Iterator<Item = &dyn Operand> {
        self.tensors.iter().flatten().map(|tensor| tensor as &dyn Operand)
    }
}

/// Whether the kernel reads sub-keys in place: in rows of chunks of 16 bytes.
fn is_chunked<T: Element>(keys: &Tensor<T>) -> bool {
    let is_multiple = |elements: usize| (elements * size_of::<T>()).is_multiple_of(CHUNK_BYTES);
    let (&last, leading) = keys.strides().split_last().unwrap_or((&1, &[]));
    (last == 1 || keys.shape()[keys.rank() - 1] == 1)
        && leading.iter().all(|&stride| is_multiple(stride))
        && keys.arg().address().is_multiple_of(CHUNK_BYTES as u64)
}
