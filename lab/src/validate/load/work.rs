//! What runs under load: operations with operands of their own, enqueued again and again.

use std::fmt;

use half::{bf16, f16};
use warpsmith::device::Device;
use warpsmith::error::{Error, Result};
use warpsmith::layers::{Peer, PeerConfig, PeerInput, PeerRouter};
use warpsmith::ops::{self, Implementation};
use warpsmith::peer::{CacheOptions, ExpertMemory};
use warpsmith::stream::Operand;
use warpsmith::tensor::{DType, Element, Tensor};
use warpsmith::weights::FloatElement;

use super::super::{
    adamw, attention, backward, cross_entropy, elementwise, embedding, experts, kv_cache, norm, product,
    rotary, routing, scaled, softmax, topk, update,
};
use crate::cases::{
    AdamWCase, AttentionCase, CrossEntropyCase, Data, ElementwiseCase, EmbeddingCase, ExpertCase,
    KvCacheCase, LinearBackwardCase, LinearCase, MatmulBackwardCase, MatmulCase, NormCase, PeerSizes,
    Placement, RotaryCase, RoutingCase, ScaledBackwardCase, ScaledCase, SoftmaxCase, TopkCase,
    UpdateBackwardCase, UpdateCase,
};

/// The operation's name in errors.
const OPERATION: &str = "validate::load";
/// The outputs that a work has for each thread, unless it says otherwise.
const SLOTS: usize = 4;
/// The bytes of outputs that a work should have for each thread at most.
const SLOT_BYTES: usize = 32 << 20;

/// Memory that a work writes.
///
/// A tensor without gaps, of which every element is compared. Where a result is a part of larger memory, that is the output, so that stray
/// writes show too.
pub struct Output {
    name: &'static str,
    memory: Box<dyn Memory>,
}

/// A tensor of any type.
trait Memory: Send + Sync {
    fn dtype(&self) -> DType;
    fn shape(&self) -> &[usize];
    fn address(&self) -> u64;
    fn operand(&self) -> &dyn Operand;
    fn read(&self) -> Result<Vec<u8>>;
    fn write(&mut self, bytes: &[u8]) -> Result<()>;
}

impl<T: Element> Memory for Tensor<T> {
    fn dtype(&self) -> DType {
        T::DTYPE
    }

    fn shape(&self) -> &[usize] {
        Tensor::shape(self)
    }

    fn address(&self) -> u64 {
        self.arg().address()
    }

    fn operand(&self) -> &dyn Operand {
        self
    }

    fn read(&self) -> Result<Vec<u8>> {
        Ok(bytemuck::cast_slice(&self.to_vec()?).to_vec())
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.write_slice(&bytemuck::pod_collect_to_vec::<u8, T>(bytes))
    }
}

impl Output {
    /// The memory of `tensor`, which the output shares, under a name for reports.
    ///
    /// # Errors
    ///
    /// [`Error::Stride`] if the tensor has gaps.
    pub fn new<T: Element>(name: &'static str, tensor: &Tensor<T>) -> Result<Self> {
        if !tensor.is_contiguous() {
            return Err(Error::Stride {
                operation: OPERATION,
                operand: name,
                expected: "elements without gaps".into(),
                actual: tensor.strides().to_vec(),
            });
        }
        Ok(Self { name, memory: Box::new(tensor.clone()) })
    }

    /// The name.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// The elements' type.
    #[must_use]
    pub fn dtype(&self) -> DType {
        self.memory.dtype()
    }

    /// The shape.
    #[must_use]
    pub fn shape(&self) -> &[usize] {
        self.memory.shape()
    }

    pub(super) fn address(&self) -> u64 {
        self.memory.address()
    }

    pub(super) fn operand(&self) -> &dyn Operand {
        self.memory.operand()
    }

    /// The bytes, once the work on the home stream is done.
    pub(super) fn read(&self) -> Result<Vec<u8>> {
        self.memory.read()
    }

    /// Overwrites the bytes in the order of the home stream.
    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.memory.write(bytes)
    }
}

impl fmt::Debug for Output {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Output({}: {} {:?})", self.name(), self.dtype(), self.shape())
    }
}

/// What one of the operations of this crate is asked to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Step {
    /// To say what runs.
    Ask,
    /// To run.
    Run,
}

/// A work with operands on a device, ready to be enqueued.
pub struct Prepared {
    implementation: String,
    outputs: Vec<Vec<Output>>,
    run: Box<dyn FnMut(usize) -> Result<()> + Send>,
}

impl Prepared {
    /// Work that `run(slot)` enqueues, into the outputs of that slot, on the device's default stream as it is for the calling thread.
    ///
    /// Each slot has outputs of the same shapes and contents, in the same order. `implementation` says what runs, with the names of kernels.
    #[must_use]
    pub fn new(
        implementation: impl Into<String>,
        outputs: Vec<Vec<Output>>,
        run: impl FnMut(usize) -> Result<()> + Send + 'static,
    ) -> Self {
        Self { implementation: implementation.into(), outputs, run: Box::new(run) }
    }

    /// Work of which `step` does a step into one of `slots`, whose memory `memory` names.
    pub(in super::super) fn of_slots<S: Send + 'static>(
        mut slots: Vec<S>,
        memory: impl Fn(&S) -> Result<Vec<Output>>,
        mut step: impl FnMut(&mut S, Step) -> Result<Implementation> + Send + 'static,
    ) -> Result<Self> {
        let Some(first) = slots.first_mut() else { return Err(no_such_slot(0, 0)) };
        let implementation = step(first, Step::Ask)?.to_string();
        let outputs = slots.iter().map(memory).collect::<Result<_>>()?;
        Ok(Self::new(implementation, outputs, move |slot| {
            let count = slots.len();
            let outputs = slots.get_mut(slot).ok_or_else(|| no_such_slot(slot, count))?;
            step(outputs, Step::Run).map(drop)
        }))
    }

    /// What runs.
    #[must_use]
    pub fn implementation(&self) -> &str {
        &self.implementation
    }

    /// The outputs of each slot.
    pub(super) fn outputs(&self) -> &[Vec<Output>] {
        &self.outputs
    }

    pub(super) fn outputs_mut(&mut self) -> &mut [Vec<Output>] {
        &mut self.outputs
    }

    /// Enqueues the work.
    pub(super) fn run(&mut self, slot: usize) -> Result<()> {
        (self.run)(slot)
    }
}

impl fmt::Debug for Prepared {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { implementation, outputs, .. } = self;
        formatter
            .debug_struct("Prepared")
            .field("implementation", implementation)
            .field("outputs", outputs)
            .finish_non_exhaustive()
    }
}

fn no_such_slot(slot: usize, count: usize) -> Error {
    Error::Argument {
        operation: OPERATION,
        argument: "slot",
        expected: format!("a number below {count}, as many as there are slots"),
        actual: slot.to_string(),
    }
}

/// Prepares a work for a device, with so many slots.
type Prepare = Box<dyn Fn(&Device, usize) -> Result<Prepared> + Send + Sync>;

/// Something to run under load: an operation whose result has the same bits each time.
///
/// ```
/// use warpsmith::{Device, Tensor, ops};
/// use warpsmith_lab::validate::load::{self, Options, Output, Prepared, Work};
///
/// # fn main() -> warpsmith::Result<()> {
/// let work = Work::new("my product", |device, slots| {
///     let x = Tensor::from_slice(device, &[1.0f32, 2.0], [1, 2])?;
///     let mut results = Vec::new();
///     for _ in 0..slots {
///         results.push(Tensor::<f32>::zeros(device, [1, 1])?);
///     }
///     let outputs = results.iter().map(|y| Ok(vec![Output::new("y", y)?]));
///     let outputs = outputs.collect::<warpsmith::Result<_>>()?;
///     Ok(Prepared::new("my kernel", outputs, move |slot| ops::linear(&x, &x).run_into(&mut results[slot])))
/// });
/// let mut options = Options::default();
/// (options.threads, options.rounds) = (2, 10);
/// let report = load::run(&Device::cpu(), &[work], &options, &|_| ())?;
/// assert!(report.passed() && report.works[0].runs >= 10);
/// # Ok(())
/// # }
/// ```
pub struct Work {
    name: String,
    slots: usize,
    rounds: Option<usize>,
    is_capturable: bool,
    prepare: Prepare,
}

impl Work {
    /// Work that `prepare(device, slots)` prepares for each thread: with operands of its own and as many outputs as there are slots.
    ///
    /// While it is prepared and run, the device's default stream is one of the calling thread alone. So operands, outputs and operations that name
    /// no stream have that one.
    pub fn new(
        name: impl Into<String>,
        prepare: impl Fn(&Device, usize) -> Result<Prepared> + Send + Sync + 'static,
    ) -> Self {
        Self {
            name: name.into(),
            slots: SLOTS,
            rounds: None,
            is_capturable: true,
            prepare: Box::new(prepare),
        }
    }

    /// The same with so many outputs for each thread, at least 1: that many runs follow each other before their results are compared.
    #[must_use]
    pub fn slots(self, slots: usize) -> Self {
        Self { slots: slots.max(1), ..self }
    }

    /// The same, to be run so often in each phase, at least once, instead of as often as [the others](super::Options::rounds). In graphs it runs
    /// as often as the others that are captured with it.
    #[must_use]
    pub fn rounds(self, rounds: usize) -> Self {
        Self { rounds: Some(rounds.max(1)), ..self }
    }

    /// The same, but never captured: the host waits for something within it.
    #[must_use]
    pub fn not_captured(self) -> Self {
        Self { is_capturable: false, ..self }
    }

    /// The name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether it can be [captured](warpsmith::Stream::capture).
    #[must_use]
    pub fn is_capturable(&self) -> bool {
        self.is_capturable
    }

    /// How often it runs in each phase, where the others run `rounds` times.
    pub(super) fn rounds_of(&self, rounds: usize) -> usize {
        self.rounds.unwrap_or(rounds)
    }

    /// What it runs on `device`.
    ///
    /// # Errors
    ///
    /// Whatever preparing it returns.
    pub fn implementation(&self, device: &Device) -> Result<String> {
        Ok((self.prepare)(device, 1)?.implementation)
    }

    /// The work with operands and outputs on `device`.
    pub(super) fn prepare(&self, device: &Device) -> Result<Prepared> {
        let prepared = (self.prepare)(device, self.slots)?;
        if prepared.outputs.len() != self.slots || prepared.outputs.iter().any(Vec::is_empty) {
            return Err(Error::Argument {
                operation: OPERATION,
                argument: "outputs",
                expected: format!("one or more for each of {} slots", self.slots),
                actual: format!("{:?}", prepared.outputs.iter().map(Vec::len).collect::<Vec<_>>()),
            });
        }
        Ok(prepared)
    }

    /// As many slots as outputs of so many bytes should have.
    fn for_bytes(self, bytes: usize) -> Self {
        self.slots((SLOT_BYTES / bytes.max(1)).clamp(1, SLOTS))
    }

    /// A linear operation.
    #[must_use]
    pub fn linear(case: LinearCase) -> Self {
        let bytes = case.m.saturating_mul(case.n).saturating_mul(case.output.size());
        let name = format!("linear {} {} {}", case.types(), case.shape(), case.options());
        Self::new(name, move |device, slots| product::prepare_linear(device, &case, slots)).for_bytes(bytes)
    }

    /// Matrix products.
    #[must_use]
    pub fn matmul(case: MatmulCase) -> Self {
        let of_one = case.product.m.saturating_mul(case.product.n).saturating_mul(case.product.output.size());
        let bytes = of_one.saturating_mul(case.matrices());
        let name = format!("matmul {} {} {}", case.product.types(), case.shape(), case.options());
        Self::new(name, move |device, slots| product::prepare_matmul(device, &case, slots)).for_bytes(bytes)
    }

    /// A scaled linear operation.
    #[must_use]
    pub fn linear_scaled(case: ScaledCase) -> Self {
        let bytes = case.m.saturating_mul(case.n).saturating_mul(case.output.size());
        let name = format!("linear_scaled {} {} {}", case.types(), case.shape(), case.options());
        Self::new(name, move |device, slots| scaled::prepare(device, &case, slots)).for_bytes(bytes)
    }

    /// A generated update, alone or with a linear operation.
    #[must_use]
    pub fn generated_update(case: UpdateCase) -> Self {
        let bytes = case.m.saturating_mul(case.n).saturating_mul(case.dtype.size());
        let name = format!("{} {} {} {}", case.operation(), case.dtype, case.shape(), case.options());
        Self::new(name, move |device, slots| update::prepare(device, &case, slots)).for_bytes(bytes)
    }

    /// An attention.
    #[must_use]
    pub fn attention(case: AttentionCase) -> Self {
        let bytes = case.elements().saturating_mul(case.dtype.size());
        let name = format!("attention {} {} {}", case.dtype, case.shape(), case.options());
        let prepare = move |device: &Device, slots| attention::prepare(device, &case, slots);
        Self::new(name.trim_end(), prepare).for_bytes(bytes)
    }

    /// The gradients of an attention.
    #[must_use]
    pub fn attention_backward(case: AttentionCase) -> Self {
        let [matrices, rows, keys] = case.sequences.axes();
        let widths = case.width.saturating_add(case.value_width);
        let of_rows = rows.saturating_mul(case.heads()).saturating_mul(case.width);
        let of_keys = keys.saturating_mul(case.key_heads).saturating_mul(widths);
        let elements = matrices.saturating_mul(of_rows.saturating_add(of_keys));
        let bytes = elements.saturating_mul(case.dtype.size());
        let name = format!("attention_backward {} {} {}", case.dtype, case.shape(), case.options());
        let prepare = move |device: &Device, slots| attention::gradient::prepare(device, &case, slots);
        Self::new(name.trim_end(), prepare).for_bytes(bytes)
    }

    /// A selection of top-k.
    #[must_use]
    pub fn topk(case: TopkCase) -> Self {
        let name = format!("topk {} {} {}", case.dtype, case.shape(), case.options());
        Self::new(name.trim_end(), move |device, slots| topk::prepare(device, &case, slots))
    }

    /// A norm of rows, and its gradients.
    #[must_use]
    pub fn norm(case: NormCase) -> Self {
        let bytes = case.rows.saturating_mul(case.columns).saturating_mul(2 * case.dtype.size());
        let name = format!("norm {}→{} {} {}", case.dtype, case.output, case.shape(), case.options());
        Self::new(name, move |device, slots| norm::prepare(device, &case, slots)).for_bytes(bytes)
    }

    /// A step of AdamW, of weights and moments that are what they were before.
    #[must_use]
    pub fn adamw(case: AdamWCase) -> Self {
        let bytes = case.tensors.saturating_mul(case.length).saturating_mul(12 + case.dtype.size());
        let name = format!("adamw {}←{} {} {}", case.dtype, case.gradient, case.shape(), case.options());
        Self::new(name, move |device, slots| adamw::prepare(device, &case, slots)).for_bytes(bytes)
    }

    /// The gradients of a linear layer. They are not added to what is there.
    pub fn linear_backward(case: LinearBackwardCase) -> Self {
        let (m, k, n) = (case.m, case.k, case.n);
        let elements =
            m.saturating_mul(k).saturating_add(n.saturating_mul(k)).saturating_add(m.saturating_mul(n));
        let name = format!("linear_backward {} {} {}", case.types(), case.shape(), case.options());
        let prepare = move |device: &Device, slots| backward::prepare_linear(device, &case, slots);
        Self::new(name, prepare).for_bytes(elements.saturating_mul(DType::F32.size()))
    }

    /// The gradients of a matrix product. They are not added to what is there.
    pub fn matmul_backward(case: MatmulBackwardCase) -> Self {
        let LinearCase { m, k, n, .. } = case.product.product;
        let [of_a, of_b] = case.product.batch;
        let elements = of_a.saturating_mul(m).saturating_add(of_b.saturating_mul(n)).saturating_mul(k);
        let types = case.product.product.types();
        let name = format!("matmul_backward {types} {} {}", case.product.shape(), case.options());
        let prepare = move |device: &Device, slots| backward::prepare_matmul(device, &case, slots);
        Self::new(name, prepare).for_bytes(elements.saturating_mul(DType::F32.size()))
    }

    /// The gradients of a scaled linear layer. They are not added to what is there.
    #[must_use]
    pub fn scaled_backward(case: ScaledBackwardCase) -> Self {
        let ScaledCase { m, k, n, .. } = case.product;
        let elements =
            m.saturating_mul(k).saturating_add(n.saturating_mul(k)).saturating_add(m.saturating_mul(n));
        let (types, shape, options) = (case.types(), case.product.shape(), case.options());
        let name = format!("linear_scaled_backward {types} {shape} {options}");
        let prepare = move |device: &Device, slots| backward::prepare_scaled(device, &case, slots);
        Self::new(name, prepare).for_bytes(elements.saturating_mul(DType::F32.size()))
    }

    /// The gradients of generated updates. They are not added to what is there.
    #[must_use]
    pub fn update_backward(case: UpdateBackwardCase) -> Self {
        let UpdateCase { m, k, n, .. } = case.update;
        let elements = m.saturating_mul(k.saturating_add(n.saturating_mul(2)));
        let (types, shape, options) = (case.types(), case.update.shape(), case.options());
        let name = format!("{} {types} {shape} {options}", case.operation());
        let prepare = move |device: &Device, slots| backward::prepare_update(device, &case, slots);
        Self::new(name, prepare).for_bytes(elements.saturating_mul(DType::F32.size()))
    }

    /// A softmax of rows, and its gradient.
    #[must_use]
    pub fn softmax(case: SoftmaxCase) -> Self {
        let of_row = case.columns.saturating_mul(case.dtype.size() + case.output.size());
        let name = format!("softmax {}→{} {} {}", case.dtype, case.output, case.shape(), case.options());
        let prepare = move |device: &Device, slots| softmax::prepare(device, &case, slots);
        Self::new(name, prepare).for_bytes(case.rows.saturating_mul(of_row))
    }

    /// Losses of rows of logits, and their gradient.
    #[must_use]
    pub fn cross_entropy(case: CrossEntropyCase) -> Self {
        let bytes = case.rows.saturating_mul(case.columns).saturating_mul(case.output.size());
        let name =
            format!("cross_entropy {}→{} {} {}", case.dtype, case.output, case.shape(), case.options());
        let prepare = move |device: &Device, slots| cross_entropy::prepare(device, &case, slots);
        Self::new(name, prepare).for_bytes(bytes)
    }

    /// A function of elements.
    #[must_use]
    pub fn elementwise(case: ElementwiseCase) -> Self {
        let bytes =
            case.rows.saturating_mul(case.columns).saturating_mul(case.dtype.size() + case.other.size());
        let name = format!("elementwise {}→{} {} {}", case.dtype, case.other, case.shape(), case.options());
        Self::new(name, move |device, slots| elementwise::prepare(device, &case, slots)).for_bytes(bytes)
    }

    /// A rotation of heads.
    #[must_use]
    pub fn rotary(case: RotaryCase) -> Self {
        let bytes = case.shape.iter().fold(case.dtype.size(), |bytes, &size| bytes.saturating_mul(size));
        let name = format!("rotary {} {} {}", case.dtype, case.sizes(), case.options());
        Self::new(name, move |device, slots| rotary::prepare(device, &case, slots)).for_bytes(bytes)
    }

    /// Keys and values that are appended to a cache.
    #[must_use]
    pub fn kv_cache(case: KvCacheCase) -> Self {
        let rows = case.batch.saturating_mul(case.capacity).saturating_mul(case.key_heads);
        let bytes = rows.saturating_mul((case.widths[0] + case.widths[1]) * case.dtype.size());
        let name = format!("kv_cache {} {} {}", case.dtype, case.shape(), case.options());
        Self::new(name, move |device, slots| kv_cache::prepare(device, &case, slots)).for_bytes(bytes)
    }

    /// A look-up in a table, and its gradient.
    #[must_use]
    pub fn embedding(case: EmbeddingCase) -> Self {
        let bytes = case.tokens.saturating_mul(case.columns).saturating_mul(4 + case.dtype.size());
        let name = format!("embedding {} {} {}", case.dtype, case.shape(), case.options());
        Self::new(name, move |device, slots| embedding::prepare(device, &case, slots)).for_bytes(bytes)
    }

    /// A product-key retrieval.
    #[must_use]
    pub fn product_key_topk(case: RoutingCase) -> Self {
        let name = format!("product_key_topk {} {} {}", case.dtype, case.shape(), case.options());
        Self::new(name, move |device, slots| routing::prepare(device, &case, slots))
    }

    /// The gradients of a product-key retrieval.
    #[must_use]
    pub fn product_key_gradients(case: RoutingCase) -> Self {
        let name = format!("product_key_topk_backward {} {} {}", case.dtype, case.shape(), case.options());
        let (projected, groups) = (case.heads * 2 * case.half, if case.per_head { case.heads } else { 1 });
        let sums = projected.saturating_mul(case.columns) + groups * case.n * 2 * case.half;
        let bytes = case.tokens.saturating_mul(case.columns).saturating_mul(case.dtype.size()) + 4 * sums;
        Self::new(name, move |device, slots| routing::prepare_gradient(device, &case, slots)).for_bytes(bytes)
    }

    /// Expert MLP.
    #[must_use]
    pub fn experts(case: ExpertCase) -> Self {
        let bytes = case.tokens.saturating_mul(case.o).saturating_mul(case.dtype.size());
        let name = format!("expert_mlp {} x {} {} {}", case.format, case.dtype, case.shape(), case.options());
        Self::new(name, move |device, slots| experts::prepare(device, &case, slots)).for_bytes(bytes)
    }

    /// The gradients of an expert MLP.
    #[must_use]
    pub fn expert_gradients(case: ExpertCase) -> Self {
        let rows = (case.tokens * case.heads * case.k).min(case.experts);
        let vectors = case.d * if case.gated { 2 } else { 1 } + case.o;
        let bytes = case.tokens.saturating_mul(case.d).saturating_mul(case.dtype.size())
            + rows.saturating_mul(case.hidden * vectors * size_of::<f32>());
        let types = format!("{} x {}", case.format, case.dtype);
        let name = format!("expert_mlp_backward {types} {} {}", case.shape(), case.options());
        Self::new(name, move |device, slots| experts::prepare_gradients(device, &case, slots))
            .for_bytes(bytes)
    }

    /// A copy of a matrix of `rows` × `columns` elements into aligned rows. It is in a wider one as `placement` says, or its transpose does.
    #[must_use]
    pub fn repack(dtype: DType, size: [usize; 2], placement: Placement, is_transposed: bool) -> Self {
        let [rows, columns] = size;
        let transposed = if is_transposed { " transposed" } else { "" };
        let name = format!("repack {dtype} {rows}×{columns}{transposed}{}", placement.note("x"));
        let bytes = rows.saturating_mul(columns).saturating_mul(dtype.size());
        let prepare = move |device: &Device, slots| match dtype.size() {
            1 => repack::<u8>(device, size, placement, is_transposed, slots),
            2 => repack::<f16>(device, size, placement, is_transposed, slots),
            4 => repack::<f32>(device, size, placement, is_transposed, slots),
            _ => {
                let expected = "a type of at most 4 bytes".into();
                Err(Error::Type { operation: OPERATION, operand: "x", expected, actual: dtype })
            }
        };
        Self::new(name, prepare).for_bytes(bytes)
    }

    /// A PEER layer of these sizes with drawn weights; with the experts behind a cache of a quarter of them if it `is_cached`.
    #[must_use]
    pub fn peer(sizes: PeerSizes, is_cached: bool, seed: u64) -> Self {
        let PeerSizes { tokens, input, output, heads, top_k, query, sub_keys, dtype, format } = sizes;
        let name = format!(
            "peer {format} x {dtype} T={tokens} D={input} O={output} H={heads} k={top_k} d={query} n={sub_keys}{}",
            if is_cached { " cached" } else { "" }
        );
        let prepare = move |device: &Device, slots| match dtype {
            DType::F16 => peer::<f16>(device, &sizes, is_cached, seed, slots),
            DType::Bf16 => peer::<bf16>(device, &sizes, is_cached, seed, slots),
            DType::F32 => peer::<f32>(device, &sizes, is_cached, seed, slots),
            actual => {
                let expected = "f16, bf16 or f32".into();
                Err(Error::Type { operation: OPERATION, operand: "x", expected, actual })
            }
        };
        let work = Self::new(name, prepare);
        // Behind a cache the host waits for what is noted of the ids.
        if is_cached { work.not_captured() } else { work }
    }
}

impl fmt::Debug for Work {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, slots, rounds, is_capturable, .. } = self;
        formatter
            .debug_struct("Work")
            .field("name", name)
            .field("slots", slots)
            .field("rounds", rounds)
            .field("is_capturable", is_capturable)
            .finish_non_exhaustive()
    }
}

fn repack<T: Element>(
    device: &Device,
    [rows, columns]: [usize; 2],
    placement: Placement,
    is_transposed: bool,
    slots: usize,
) -> Result<Prepared> {
    let [height, width] = if is_transposed { [columns, rows] } else { [rows, columns] };
    let inside = placement.before..placement.before + width;
    let all = inside.end + placement.after;
    // Any bits do, of which all are compared.
    let byte: fn(f32) -> u8 = |value| (value * 128.0) as i8 as u8;
    let bytes = Data::Uniform.draw(0, 0, (height, all * size_of::<T>()), 1, byte)?;
    let elements: Vec<T> = bytemuck::pod_collect_to_vec(&bytes.into_raw_vec_and_offset().0);
    let x = Tensor::from_slice(device, &elements, [height, all])?.slice(1, inside)?;
    let x = if is_transposed { x.swap_axes(0, 1)? } else { x };
    let of_slots = (0..slots).map(|_| Tensor::<T>::zeros(device, [rows, columns])).collect::<Result<_>>()?;
    let memory = |y: &Tensor<T>| Ok(vec![Output::new("copy", y)?]);
    Prepared::of_slots(of_slots, memory, move |y, step| {
        let operation = ops::repack(&x);
        match step {
            Step::Ask => operation.implementation(),
            // The operation gives new memory, which this keeps.
            Step::Run => y.copy_from(&operation.run()?).map(|()| Implementation::Empty),
        }
    })
}

fn peer<T: PeerInput>(
    device: &Device,
    sizes: &PeerSizes,
    is_cached: bool,
    seed: u64,
    slots: usize,
) -> Result<Prepared> {
    let PeerSizes { tokens, input, output, heads, top_k, query, sub_keys, format, .. } = *sizes;
    let draw = |stream: u64, shape: (usize, usize), length: usize| -> Result<Tensor<T>> {
        let drawn = Data::Uniform.draw(seed, stream, shape, 1, f64::from)?;
        let scale = (3.0 / length.max(1) as f64).sqrt();
        Tensor::from_array(device, &drawn.mapv(|value| <T as FloatElement>::round(value * scale)))
    };
    let x = draw(0, (tokens, input), 3)?;
    let keys = [draw(2, (sub_keys, query / 2), query / 2)?, draw(3, (sub_keys, query / 2), query / 2)?];
    let router = PeerRouter::new(draw(1, (heads * query, input), input)?, keys);
    let memory = if is_cached { ExpertMemory::Cached } else { ExpertMemory::Resident };
    let config = PeerConfig::default()
        .input(input)
        .output(output)
        .heads(heads)
        .experts_per_head(top_k)
        .query(query)
        .sub_keys(sub_keys)
        .format(format)
        .memory(memory)
        .cache(CacheOptions::default().slots((sizes.experts() / 4).max(1)));
    let layer = Peer::new(device, &config, router, |range| {
        let part = |stream: u64, length: usize| -> Result<Vec<f32>> {
            let seed = seed.wrapping_add(range.start as u64);
            let drawn = Data::Uniform.draw(seed, stream, (range.len(), length), 1, |value| value)?;
            Ok(drawn.into_raw_vec_and_offset().0)
        };
        Ok([part(4, input)?, Vec::new(), part(5, output)?])
    })?;
    let implementation = layer.implementation(&x)?.to_string();
    let results = (0..slots).map(|_| Tensor::<T>::zeros(device, [tokens, output]));
    let mut results = results.collect::<Result<Vec<_>>>()?;
    let outputs = results.iter().map(|y| Ok(vec![Output::new("y", y)?])).collect::<Result<_>>()?;
    let device = device.clone();
    Ok(Prepared::new(implementation, outputs, move |slot| {
        let count = results.len();
        let y = results.get_mut(slot).ok_or_else(|| no_such_slot(slot, count))?;
        layer.forward_into(&x, y, &device.default_stream())
    }))
}
