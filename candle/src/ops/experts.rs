//! Layers of very many small experts: which of them tokens use, and what these compute.

use candle_core::{DType, Tensor};
use warpsmith::cpu::Operand;
use warpsmith::ops;
use warpsmith::ops::Activation;
use warpsmith::ops::peer::{
    ExpertFormat, ExpertInput, ExpertMlpGradients, ExpertTable, Gate, ProductKeyGradientOutputs, QueryNorm,
    Routing, RoutingInput,
};

use super::{tracked, with_columns};
use crate::error::Result;
use crate::graph::attach;
use crate::memory::{Call, Shared, with_element};
use crate::place::expect_same;

/// A table of experts, in memory of this crate's. Clones share it.
#[derive(Clone, Debug)]
pub struct Experts {
    device: candle_core::Device,
    table: ExpertTable,
}

impl Experts {
    /// A table of experts with the vectors u `[N, hidden, D]`, w likewise if the units are gated, and v `[N, hidden,
    /// O]`, or `[N, D]` and `[N, O]` for one hidden unit.
    ///
    /// They are copied by way of the host, once: later changes of the tensors do not change the table.
    ///
    /// # Errors
    ///
    /// [`Error::Type`](crate::Error::Type) unless all operands are of the same type, f32, f16 or bf16; [`Error::DeviceMismatch`](crate::Error::DeviceMismatch) if they
    /// are on different devices; [`Error::Warpsmith`](crate::Error::Warpsmith) if the
    /// shapes do not fit together or the format has no such sizes.
    pub fn new(format: ExpertFormat, u: &Tensor, w: Option<&Tensor>, v: &Tensor) -> Result<Self> {
        let mut operands = vec![("u", u), ("v", v)];
        operands.extend(w.map(|w| ("w", w)));
        let call = Call::new("Experts::new", &operands)?;
        with_element!(call, T => Self::of::<T>(&call, format, w.is_some()))
    }

    fn of<T: Shared + Operand>(call: &Call, format: ExpertFormat, is_gated: bool) -> Result<Self> {
        let locked = call.lock();
        let (u, v) = (locked.view::<T>(0)?, locked.view::<T>(1)?);
        let w = is_gated.then(|| locked.view::<T>(2)).transpose()?;
        // On the device's own stream, not on candle's, which may be this thread's: other threads use the table, too.
        let table = ExpertTable::from_tensors(format, &u, w.as_deref(), &v)?;
        Ok(Self { device: call.place.candle.clone(), table })
    }
}

/// The output of the experts that `ids` `[.., H, k]` name, for each row of `x` `[.., D]`: `y = Σ gate · act(x·u) ·
/// v`, `[.., O]`, over the hidden units of the experts of
/// all heads, with `act(x·u) · (x·w)` for gated units.
///
/// `ids` are u32 and `gates`, of their shape, f32; [`product_key_topk`] gives both. The activation is
/// [GELU](Activation::GeluErf) unless another is asked for.
///
/// # Gradients
///
/// x and the gates have gradients. The table's vectors are frozen: `warpsmith`'s own `expert_mlp_backward` has theirs.
pub fn expert_mlp<'a>(
    x: &'a Tensor,
    ids: &'a Tensor,
    gates: &'a Tensor,
    experts: &'a Experts,
) -> ExpertMlpOp<'a> {
    ExpertMlpOp { x, ids, gates, experts, activation: Activation::GeluErf }
}

/// Experts that have yet to be evaluated; see [`expert_mlp`].
#[derive(Clone, Copy, Debug)]
#[must_use = "an operation does nothing until `run`"]
pub struct ExpertMlpOp<'a> {
    x: &'a Tensor,
    ids: &'a Tensor,
    gates: &'a Tensor,
    experts: &'a Experts,
    activation: Activation,
}

impl ExpertMlpOp<'_> {
    /// What the hidden units do to x·u.
    pub fn activation(self, activation: Activation) -> Self {
        Self { activation, ..self }
    }

    /// Evaluates the experts.
    ///
    /// # Errors
    ///
    /// - [`Error::Type`](crate::Error::Type) if x is not f32, f16 or bf16, ids not u32 or gates not f32.
    /// - [`Error::DeviceMismatch`](crate::Error::DeviceMismatch) if an operand or the table is on another device.
    /// - [`Error::Warpsmith`](crate::Error::Warpsmith) if a shape does not fit, or, on the CPU, an id is of no expert.
    pub fn run(&self) -> Result<Tensor> {
        let operation = "expert_mlp";
        expect_same(operation, ("experts", &self.experts.device), ("x", self.x.device()))?;
        let call = Call::new(operation, &[("x", self.x)])?
            .with_contiguous_rows()?
            .with(("ids", self.ids), &[DType::U32])?
            .with(("gates", self.gates), &[DType::F32])?;
        with_element!(call, T => self.run_as::<T>(call))
    }

    fn run_as<T: Shared + ExpertInput>(&self, call: Call) -> Result<Tensor> {
        let mut y = call.fresh::<T>(with_columns(self.x, self.experts.table.layout().o()))?;
        {
            let locked = call.lock();
            let (x, ids, gates) = (locked.view::<T>(0)?, locked.view::<u32>(1)?, locked.view::<f32>(2)?);
            let routing = Routing { ids: ids.clone(), gates: gates.clone() };
            let operation = ops::expert_mlp(&x, &routing, &self.experts.table).activation(self.activation);
            operation.on(call.stream()).run_into(&mut *y.open()?)?;
        }
        let wanted = tracked([Some(self.x), Some(self.gates)]);
        let (table, activation) = (self.experts.table.clone(), self.activation);
        attach("expert_mlp", y.finish(), &[self.x, self.gates], move |_, dy| {
            backward::<T>(&call, &table, activation, wanted, dy)
        })
    }
}

/// The gradients of x and of the gates.
fn backward<T: Shared + ExpertInput>(
    forward: &Call,
    table: &ExpertTable,
    activation: Activation,
    [has_dx, has_dgates]: [bool; 2],
    dy: &Tensor,
) -> Result<Vec<Option<Tensor>>> {
    let [x, ids, gates] = [0, 1, 2].map(|index| forward.operand(index));
    let call = Call::new("expert_mlp_backward", &[("x", x), ("dy", dy)])?
        .with_contiguous_rows()?
        .with(("ids", ids), &[DType::U32])?
        .with(("gates", gates), &[DType::F32])?;
    let (mut dx, mut dgates) = (call.fresh::<T>(x.shape())?, call.fresh::<f32>(gates.shape())?);
    {
        let locked = call.lock();
        let (x, dy) = (locked.view::<T>(0)?, locked.view::<T>(1)?);
        let (ids, gates) = (locked.view::<u32>(2)?, locked.view::<f32>(3)?);
        let routing = Routing { ids: ids.clone(), gates: gates.clone() };
        let (dx, dgates) = (dx.open()?, dgates.open()?);
        let mut gradients = ExpertMlpGradients::<T> { dx: dx.clone(), dgates: dgates.clone(), experts: None };
        let operation = ops::expert_mlp_backward(&x, &routing, table, &dy).activation(activation).frozen();
        operation.on(call.stream()).run_into(&mut gradients)?;
    }
    Ok(vec![has_dx.then(|| dx.finish().detached()), has_dgates.then(|| dgates.finish().detached())])
}

/// The k best of n² experts for each row of `x` `[.., in]` and head, by sums of scores of two sets of n sub-keys:
/// ids and gates, each `[.., H, k]`, best first.
///
/// The queries are `x w_qᵀ`, with `w_q` `[H · d, in]`. The first half of a query is compared with `keys_1` `[n, d /
/// 2]`, or `[H, n, d / 2]` of each head's own, the second with
/// `keys_2`. The gates are a softmax of the scores unless another gate is asked for.
///
/// # Gradients
///
/// Ids have none by nature. Those of the gates are of x, w_q and both sets of sub-keys, in their type; the choice of
/// experts has none.
pub fn product_key_topk<'a>(
    x: &'a Tensor,
    w_q: &'a Tensor,
    keys_1: &'a Tensor,
    keys_2: &'a Tensor,
    heads: usize,
    k: usize,
) -> ProductKeyOp<'a> {
    let options = Options { norm: QueryNorm::layer(1e-5), gate: Gate::Softmax, temperature: 1.0 };
    ProductKeyOp { operands: [x, w_q, keys_1, keys_2], heads, k, options }
}

/// A retrieval that has yet to run; see [`product_key_topk`].
#[derive(Clone, Copy, Debug)]
#[must_use = "an operation does nothing until `run`"]
pub struct ProductKeyOp<'a> {
    /// x, w_q and both sets of sub-keys.
    operands: [&'a Tensor; 4],
    heads: usize,
    k: usize,
    options: Options,
}

/// What is asked of a retrieval.
#[derive(Clone, Copy, Debug)]
struct Options {
    norm: QueryNorm<'static>,
    gate: Gate,
    temperature: f32,
}

impl Options {
    /// The retrieval with these.
    fn of<'a, T: RoutingInput>(
        self,
        retrieval: ops::peer::ProductKeyOp<'a, T>,
    ) -> ops::peer::ProductKeyOp<'a, T> {
        retrieval.query_norm(self.norm).gate(self.gate).temperature(self.temperature)
    }
}

impl ProductKeyOp<'_> {
    /// How queries are normalised: by layer with epsilon 10⁻⁵ unless it is set.
    pub fn query_norm(self, norm: QueryNorm<'static>) -> Self {
        Self { options: Options { norm, ..self.options }, ..self }
    }

    /// What gates are of the scores. A softmax unless it is set.
    pub fn gate(self, gate: Gate) -> Self {
        Self { options: Options { gate, ..self.options }, ..self }
    }

    /// Divides scores by `temperature`, above 0, before the gate. 1 unless it is set.
    pub fn temperature(self, temperature: f32) -> Self {
        Self { options: Options { temperature, ..self.options }, ..self }
    }

    /// Finds the experts: their ids, u32, and their gates, f32.
    ///
    /// # Errors
    ///
    /// [`Error::Type`](crate::Error::Type) unless all operands are of the same type, f32, f16 or bf16; [`Error::DeviceMismatch`](crate::Error::DeviceMismatch) if they
    /// are on different devices; [`Error::Warpsmith`](crate::Error::Warpsmith) if a
    /// shape does not fit, or `k` or the temperature is out of its range.
    pub fn run(&self) -> Result<(Tensor, Tensor)> {
        let [x, w_q, keys_1, keys_2] = self.operands;
        let operands = [("x", x), ("w_q", w_q), ("keys_1", keys_1), ("keys_2", keys_2)];
        let call = Call::new("product_key_topk", &operands)?;
        with_element!(call, T => self.run_as::<T>(call))
    }

    fn run_as<T: Shared + RoutingInput>(&self, call: Call) -> Result<(Tensor, Tensor)> {
        let mut shape = self.operands[0].dims().to_vec();
        shape.pop();
        shape.extend([self.heads, self.k]);
        let (mut ids, mut gates) = (call.fresh::<u32>(shape.clone())?, call.fresh::<f32>(shape)?);
        {
            let locked = call.lock();
            let (x, w_q) = (locked.view::<T>(0)?, locked.view::<T>(1)?);
            let (keys_1, keys_2) = (locked.view::<T>(2)?, locked.view::<T>(3)?);
            let (ids, gates) = (ids.open()?, gates.open()?);
            let mut routing = Routing { ids: ids.clone(), gates: gates.clone() };
            let retrieval = ops::product_key_topk(&x, &w_q, &keys_1, &keys_2, self.heads, self.k);
            self.options.of(retrieval).on(call.stream()).run_into(&mut routing)?;
        }
        let ids = ids.finish().detached();
        let wanted = tracked(self.operands.map(Some));
        let (found, options, heads, k) = (ids.clone(), self.options, self.heads, self.k);
        let gates = attach("product_key_topk", gates.finish(), &self.operands, move |gates, dgates| {
            retrieval_backward::<T>(&call, [&found, gates, dgates], [heads, k], options, wanted)
        })?;
        Ok((ids, gates))
    }
}

/// The gradients of x, w_q and both sets of sub-keys.
fn retrieval_backward<T: Shared + RoutingInput>(
    forward: &Call,
    [ids, gates, dgates]: [&Tensor; 3],
    [heads, k]: [usize; 2],
    options: Options,
    wanted: [bool; 4],
) -> Result<Vec<Option<Tensor>>> {
    let operands = [0, 1, 2, 3].map(|index| forward.operand(index));
    let [x, w_q, keys_1, keys_2] = operands;
    let call = Call::new(
        "product_key_topk_backward",
        &[("x", x), ("w_q", w_q), ("keys_1", keys_1), ("keys_2", keys_2)],
    )?
    .with(("ids", ids), &[DType::U32])?
    .with(("gates", gates), &[DType::F32])?
    .with(("dgates", dgates), &[DType::F32])?;
    let [_, has_w, has_1, has_2] = wanted;
    let sums = |of: &Tensor, is_wanted: bool| is_wanted.then(|| call.fresh::<f32>(of.shape())).transpose();
    let mut dx = wanted[0].then(|| call.fresh::<T>(x.shape())).transpose()?;
    let (mut dw_q, mut dkeys_1, mut dkeys_2) =
        (sums(w_q, has_w)?, sums(keys_1, has_1)?, sums(keys_2, has_2)?);
    {
        let locked = call.lock();
        let (x, w_q) = (locked.view::<T>(0)?, locked.view::<T>(1)?);
        let (keys_1, keys_2) = (locked.view::<T>(2)?, locked.view::<T>(3)?);
        let (ids, gates, dgates) = (locked.view::<u32>(4)?, locked.view::<f32>(5)?, locked.view::<f32>(6)?);
        let routing = Routing { ids: ids.clone(), gates: gates.clone() };
        let retrieval = options.of(ops::product_key_topk(&x, &w_q, &keys_1, &keys_2, heads, k));
        let mut dx = dx.as_mut().map(|dx| dx.open()).transpose()?;
        let mut dw_q = dw_q.as_mut().map(|sums| sums.open()).transpose()?;
        let mut dkeys_1 = dkeys_1.as_mut().map(|sums| sums.open()).transpose()?;
        let mut dkeys_2 = dkeys_2.as_mut().map(|sums| sums.open()).transpose()?;
        retrieval.on(call.stream()).backward(&routing, &dgates).run_into(ProductKeyGradientOutputs {
            dx: dx.as_deref_mut(),
            dw_q: dw_q.as_deref_mut(),
            dkeys_1: dkeys_1.as_deref_mut(),
            dkeys_2: dkeys_2.as_deref_mut(),
            ..ProductKeyGradientOutputs::default()
        })?;
    }
    let mut all = vec![dx.map(|dx| dx.finish().detached())];
    for sums in [dw_q, dkeys_1, dkeys_2] {
        // A gradient has the type of its operand.
        all.push(sums.map(|sums| sums.finish().detached().to_dtype(x.dtype())).transpose()?);
    }
    Ok(all)
}
