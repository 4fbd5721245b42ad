//! The gradients of expert MLPs: of x, of the gates, and of the experts that tokens use.

use ndarray::{ArrayViewMut2, Ix2};
use warpsmith_dsl::experts::{ExpertGradientParams, ExpertParams, ExpertRows, Int4, Int8};
use warpsmith_dsl::float::{Bf16, F8E4M3, F16};
use warpsmith_dsl::launch::{Declaration, Global, GlobalMut, Kernel};
use warpsmith_kernels::expert_gradient::expert_gradient;

use super::{Checked, ExpertInput, ExpertTable, Inputs, expect_contiguous_rows, matrix, row_stride};
use crate::cpu::{self, ExpertFactors, TokenExperts};
use crate::device::cpu::out_of_memory;
use crate::device::{Device, DeviceKind};
use crate::error::{Error, Result};
use crate::experts::ExpertFormat;
use crate::memory::{HostBytes, zeros};
use crate::ops::embedding::{Order, Weights, add_weighted, order_kernels, weighted_kernel};
use crate::ops::peer::Routing;
use crate::ops::rows::{RowElement, as_rows, is_copied, rounded, widened};
use crate::ops::{Activation, Implementation, SIDE_LIMIT, expect_result};
use crate::stream::{Operand, Stream};
use crate::tensor::{Element, Tensor};
use crate::trace;

/// The operation's name in errors.
const OPERATION: &str = "expert_mlp_backward";

/// The gradients of [`expert_mlp`](super::expert_mlp) for `x` `[.., D]`, a routing and experts, and `dy` `[.., O]`, the gradient of its output.
///
/// Write `z = x·u`, `h = act(z)`, or `act(z) · (x·w)` of gated units, and `t = dy·v`:
///
/// - The gradient of a gate g is the sum of `h t` over the expert's units.
/// - That of x is the sum of `g t act′(z) u` over all units of the token.
/// - That of a unit's u is the sum of `g t act′(z) x` over the tokens that use it.
/// - That of its v is the sum of `g h dy`.
/// - Of gated units the terms of x and u have the factor `x·w` more. x has also `g t act(z) w`, and w the sum of `g t act(z) x`.
///
/// Sums are in f32, those over tokens in their order: the same bits every time. The gradient of the table is that of the experts in use, a row for each of them. A table that is
/// quantised has the gradients of the numbers that its codes stand for.
///
/// An id that is not less than the number of experts is an error on the CPU. A GPU and the emulator make the token's dx and the gate's gradient NaN, and the id counts for no expert.
/// Of a table that is [a part](ExpertTable::part) of one, the rows of other devices' experts are among the gradients, with zeros for u and v.
///
/// ```
/// use ndarray::array;
/// use warpsmith::ops::peer::{ExpertFormat, ExpertTable, Routing};
/// use warpsmith::ops::{self, Activation};
/// use warpsmith::{Device, Tensor};
///
/// let device = Device::cpu();
/// let u = Tensor::from_array(&device, &array![[1.0f32, 0.0], [0.0, 1.0], [1.0, 1.0]])?;
/// let v = Tensor::from_array(&device, &array![[1.0f32], [10.0], [100.0]])?;
/// let experts = ExpertTable::from_tensors(ExpertFormat::F32, &u, None, &v)?;
/// let routing = Routing {
///     ids: Tensor::from_array(&device, &array![[[2u32, 0]]])?,
///     gates: Tensor::from_array(&device, &array![[[0.5f32, 2.0]]])?,
/// };
/// let x = Tensor::from_array(&device, &array![[3.0f32, 1.0]])?;
/// let dy = Tensor::from_array(&device, &array![[1.0f32]])?;
/// let backward = ops::expert_mlp_backward(&x, &routing, &experts, &dy);
/// let gradients = backward.activation(Activation::Relu).run()?;
/// assert_eq!(gradients.dx.to_vec()?, [0.5 * 100.0 + 2.0 * 1.0, 0.5 * 100.0]);
/// assert_eq!(gradients.dgates.to_vec()?, [4.0 * 100.0, 3.0 * 1.0]);
/// let (ids, [du, _, dv]) = gradients.experts.expect("they are not frozen").read()?;
/// assert_eq!(ids, [0, 2]);
/// assert_eq!(du, [2.0 * 3.0, 2.0 * 1.0, 50.0 * 3.0, 50.0 * 1.0]);
/// assert_eq!(dv, [2.0 * 3.0, 0.5 * 4.0]);
/// # Ok::<(), warpsmith::Error>(())
/// ```
pub fn expert_mlp_backward<'a, T: ExpertInput>(
    x: &'a Tensor<T>,
    routing: &'a Routing,
    experts: &'a ExpertTable,
    dy: &'a Tensor<T>,
) -> ExpertMlpBackwardOp<'a, T> {
    let activation = Activation::GeluErf;
    ExpertMlpBackwardOp { x, routing, experts, dy, activation, is_frozen: false, stream: None }
}

/// The gradients of [`expert_mlp`](super::expert_mlp).
#[derive(Clone, Debug)]
pub struct ExpertMlpGradients<T: Element, R: Element = f32> {
    /// That of x, with its shape.
    pub dx: Tensor<T>,
    /// That of the gates, with their shape.
    pub dgates: Tensor<f32>,
    /// Those of the experts in use; none of a table that is [frozen](ExpertMlpBackwardOp::frozen).
    pub experts: Option<ExpertGradients<R>>,
}

/// The gradients of the experts of a table that are in use. All others are zero.
///
/// How many there are is known on the device; nothing waits for it.
#[derive(Clone, Debug)]
pub struct ExpertGradients<R: Element> {
    /// The experts' numbers, different and ascending, `[n]` with room for as many as there can be. Behind the first `count` they are unspecified, as are the gradients.
    pub ids: Tensor<u32>,
    /// Those of u, `[n, hidden, D]`.
    pub u: Tensor<R>,
    /// Those of w likewise, if the units are gated.
    pub w: Option<Tensor<R>>,
    /// Those of v, `[n, hidden, O]`.
    pub v: Tensor<R>,
    /// How many experts there are, `[1]`.
    pub count: Tensor<u32>,
}

impl<R: Element> ExpertGradients<R> {
    /// The experts' numbers, and the gradients of u, w and v, that of w empty without. Waits for the device.
    ///
    /// # Errors
    ///
    /// As [`Tensor::to_vec`].
    pub fn read(&self) -> Result<(Vec<u32>, [Vec<R>; 3])> {
        let count = self.count.to_vec()?.first().map_or(0, |&count| count as usize).min(self.ids.len());
        let part = |of: &Tensor<R>| of.slice(0, 0..count)?.to_vec();
        let w = self.w.as_ref().map(part).transpose()?.unwrap_or_default();
        Ok((self.ids.slice(0, 0..count)?.to_vec()?, [part(&self.u)?, w, part(&self.v)?]))
    }
}

/// Gradients that have yet to be computed; see [`expert_mlp_backward`].
#[derive(Clone, Debug)]
#[must_use = "an operation does nothing until `run` or `run_into`"]
pub struct ExpertMlpBackwardOp<'a, T: Element> {
    x: &'a Tensor<T>,
    routing: &'a Routing,
    experts: &'a ExpertTable,
    dy: &'a Tensor<T>,
    activation: Activation,
    is_frozen: bool,
    stream: Option<&'a Stream>,
}

impl<'a, T: ExpertInput> ExpertMlpBackwardOp<'a, T> {
    /// What the hidden units did to x·u.
    pub fn activation(self, activation: Activation) -> Self {
        Self { activation, ..self }
    }

    /// The experts have no gradients: only x and the gates.
    pub fn frozen(self) -> Self {
        Self { is_frozen: true, ..self }
    }

    /// Runs on `stream` instead of the device's default stream.
    pub fn on(self, stream: &'a Stream) -> Self {
        Self { stream: Some(stream), ..self }
    }

    /// The gradients, those of the experts in f32. On a GPU the work may still be under way when this returns.
    ///
    /// # Errors
    ///
    /// [`Error::Shape`], [`Error::Stride`], [`Error::DeviceMismatch`] and [`Error::SizeLimit`] if an operand does not fit; on
    /// the CPU [`Error::Argument`] for an id of no expert. Otherwise whatever allocating results, loading kernels and launching
    /// them may return.
    pub fn run(&self) -> Result<ExpertMlpGradients<T>> {
        self.run_as::<f32>()
    }

    /// As [`run`](Self::run), where each sum of the experts' gradients is rounded to type `R` once.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run).
    pub fn run_as<R: RowElement>(&self) -> Result<ExpertMlpGradients<T, R>> {
        let _range = trace::operation(OPERATION);
        let checked = self.checked()?;
        let stream = self.stream();
        let experts = if self.is_frozen {
            None
        } else {
            let [u, v] = self.shapes(&checked);
            let new = |shape: [usize; 3]| Tensor::<R>::uninit_on(&stream, shape);
            Some(ExpertGradients {
                ids: Tensor::uninit_on(&stream, [u[0]])?,
                u: new(u)?,
                w: self.experts.layout().is_gated().then(|| new(u)).transpose()?,
                v: new(v)?,
                count: Tensor::uninit_on(&stream, [1])?,
            })
        };
        let mut result = ExpertMlpGradients {
            dx: Tensor::uninit_on(&stream, self.x.shape())?,
            dgates: Tensor::uninit_on(&stream, self.routing.gates.shape())?,
            experts,
        };
        self.write(&stream, &checked, &mut result)?;
        Ok(result)
    }

    /// Writes the gradients into `result`, whose tensors have the shapes of those of [`run`](Self::run) and no gaps, but for those between rows of dx. So the work can be
    /// [captured](Stream::capture) with its result kept. There are gradients of experts unless these are [frozen](Self::frozen).
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run); [`Error::Shape`], [`Error::Stride`], [`Error::DeviceMismatch`] and [`Error::ReadOnly`] if a tensor does not fit,
    /// [`Error::Argument`] if one is missing or too many, [`Error::Overlap`] if it shares memory with an operand or another one.
    pub fn run_into<R: RowElement>(&self, result: &mut ExpertMlpGradients<T, R>) -> Result<()> {
        let _range = trace::operation(OPERATION);
        let (operation, device) = (OPERATION, self.x.device());
        let checked = self.checked()?;
        let layout = self.experts.layout();
        let ExpertMlpGradients { dx, dgates, experts } = &*result;
        let of_inputs = "the operands";
        device.expect_same(operation, "dx", dx.device())?;
        dx.expect_writable(operation, "dx")?;
        if dx.shape() != self.x.shape() {
            let (expected, actual) = (format!("{:?}, as x has", self.x.shape()), dx.shape().to_vec());
            return Err(Error::Shape { operation, operand: "dx", expected, actual });
        }
        expect_contiguous_rows(operation, "dx", &matrix(operation, "dx", dx)?)?;
        expect_result(operation, "dgates", dgates, device, self.routing.gates.shape(), of_inputs)?;
        let absent = |what: &str, is_asked: bool| {
            let (yes, no) = (format!("{what} of the result"), format!("no {what} of the result"));
            let (expected, actual) = if is_asked { (yes, no) } else { (no, yes) };
            Error::Argument { operation, argument: "result", expected, actual: format!("there is {actual}") }
        };
        if experts.is_some() == self.is_frozen {
            return Err(absent("experts", !self.is_frozen));
        }
        if let Some(of) = experts {
            let [u, v] = self.shapes(&checked);
            expect_result(operation, "ids of the result", &of.ids, device, &u[..1], of_inputs)?;
            expect_result(operation, "count", &of.count, device, &[1], of_inputs)?;
            expect_result(operation, "u of the result", &of.u, device, &u, of_inputs)?;
            expect_result(operation, "v of the result", &of.v, device, &v, of_inputs)?;
            if of.w.is_some() != layout.is_gated() {
                return Err(absent("w", layout.is_gated()));
            }
            if let Some(w) = &of.w {
                expect_result(operation, "w of the result", w, device, &u, of_inputs)?;
            }
        }
        self.expect_apart(result)?;
        self.write(&self.stream(), &checked, result)
    }

    /// Which implementation [`run`](Self::run) would take.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run), for the operands.
    pub fn implementation(&self) -> Result<Implementation> {
        let checked = self.checked()?;
        let (device, layout) = (self.x.device(), self.experts.layout());
        if checked.tokens * checked.experts == 0 {
            return Ok(Implementation::Empty);
        }
        if device.kind() == DeviceKind::Cpu {
            return Ok(Implementation::Cpu);
        }
        let (kernel, _) = kernel(layout.format());
        let mut all = Implementation::kernel(device, kernel.name, checked.tokens as u32);
        if !self.is_frozen {
            let ids = self.shapes(&checked)[0][0];
            let mut launches = order_kernels(checked.tokens * checked.experts).to_vec();
            for rows in [&checked.x, self.dy] {
                let sums = weighted_kernel(rows, ids, layout.hidden(), device);
                launches.extend(sums.filter(|(name, _)| launches.iter().all(|(other, _)| other != name)));
            }
            for (name, blocks) in launches {
                all = all.then(Implementation::kernel(device, name, blocks));
            }
        }
        let Routing { ids, gates } = self.routing;
        let copied = [!ids.is_contiguous(), !gates.is_contiguous(), is_copied(self.dy)];
        Ok(all.with_copies(copied.iter().filter(|is_copied| **is_copied).count()))
    }

    fn stream(&self) -> Stream {
        self.stream.cloned().unwrap_or_else(|| self.x.device().default_stream())
    }

    fn inputs(&self) -> Inputs<'a, T> {
        Inputs { x: self.x, routing: self.routing, experts: self.experts }
    }

    /// Operands that fit together.
    fn checked(&self) -> Result<Checked<T>> {
        let operation = OPERATION;
        let checked = self.inputs().checked(operation, self.stream)?;
        self.x.device().expect_same(operation, "dy", self.dy.device())?;
        if self.dy.shape() != checked.y_shape {
            let expected = format!("{:?}, as x and the experts give", checked.y_shape);
            let actual = self.dy.shape().to_vec();
            return Err(Error::Shape { operation, operand: "dy", expected, actual });
        }
        let uses = checked.tokens.saturating_mul(checked.experts);
        for (operand, quantity, actual) in [
            ("ids", "number of experts of all tokens", uses),
            ("experts", "number of rows", self.experts.count()),
        ] {
            if actual as u64 >= SIDE_LIMIT {
                let (limit, actual) = (format!("less than {SIDE_LIMIT}"), actual.to_string());
                return Err(Error::SizeLimit { operation, operand, quantity, limit, actual });
            }
        }
        Ok(checked)
    }

    /// The shapes of the gradients of u and of v.
    fn shapes(&self, checked: &Checked<T>) -> [[usize; 3]; 2] {
        let layout = self.experts.layout();
        let room = (checked.tokens * checked.experts).min(self.experts.count());
        [[room, layout.hidden(), layout.d()], [room, layout.hidden(), layout.o()]]
    }

    /// Results share no memory with operands, nor with each other.
    fn expect_apart<R: RowElement>(&self, result: &ExpertMlpGradients<T, R>) -> Result<()> {
        let ExpertMlpGradients { dx, dgates, experts } = result;
        let of_table = |shares: bool| shares.then_some("experts");
        let mut results = vec![
            ("dx", dx.span(), of_table(self.experts.shares_memory(dx))),
            ("dgates", dgates.span(), of_table(self.experts.shares_memory(dgates))),
        ];
        if let Some(ExpertGradients { ids, u, w, v, count }) = experts {
            for (name, of) in [("ids of the result", ids), ("count", count)] {
                results.push((name, of.span(), of_table(self.experts.shares_memory(of))));
            }
            let vectors =
                [("u of the result", Some(u)), ("w of the result", w.as_ref()), ("v of the result", Some(v))];
            for (name, of) in vectors.into_iter().filter_map(|(name, of)| Some((name, of?))) {
                results.push((name, of.span(), of_table(self.experts.shares_memory(of))));
            }
        }
        let Routing { ids, gates } = self.routing;
        let operands =
            [("x", self.x.span()), ("dy", self.dy.span()), ("ids", ids.span()), ("gates", gates.span())];
        for (index, (operand, span, of_table)) in results.iter().enumerate() {
            let before = results[..index].iter().map(|(name, other, _)| (name, other));
            let mut others = operands.iter().map(|(name, other)| (name, other)).chain(before);
            let other = others.find_map(|(name, other)| span.meets(other).then_some(*name));
            if let Some(other) = of_table.or(other) {
                return Err(Error::Overlap { operation: OPERATION, operand, other });
            }
        }
        Ok(())
    }

    fn write<R: RowElement>(
        &self,
        stream: &Stream,
        checked: &Checked<T>,
        result: &mut ExpertMlpGradients<T, R>,
    ) -> Result<()> {
        let device = self.x.device();
        if checked.tokens * checked.experts == 0 {
            if !result.dx.is_empty() {
                result.dx.copy_from_on(&Tensor::zeros_on(stream, self.x.shape())?, stream)?;
            }
            return match &mut result.experts {
                Some(of) => of.count.fill_zero_on(stream),
                None => Ok(()),
            };
        }
        let dy = &as_rows(self.dy, stream)?;
        if device.kind() == DeviceKind::Cpu {
            return self.run_on_cpu(checked, dy, result);
        }
        let layout = self.experts.layout();
        let (ids, gates) =
            (self.routing.ids.contiguous_on(stream)?, self.routing.gates.contiguous_on(stream)?);
        let uses = checked.tokens * checked.experts;
        let of_units = || Tensor::<f32>::uninit_on(stream, [uses, layout.hidden()]);
        let (mut of_u, mut of_v) = (of_units()?, of_units()?);
        let mut of_w = layout.is_gated().then(of_units).transpose()?;
        let mut dx = result.dx.flatten_leading()?;
        let params = self.inputs().params(checked, row_stride(dy), self.activation);
        let gradients = ExpertGradientParams {
            x: Global::new(checked.x.arg().address()),
            dy: Global::new(dy.arg().address()),
            dx: GlobalMut::new(dx.arg_mut().address()),
            stride_dx: row_stride(&dx),
            ids: ids.arg(),
            gates: gates.arg(),
            dgates: result.dgates.arg_mut(),
            of_u: of_u.arg_mut(),
            of_w: of_w.as_mut().map_or(GlobalMut::new(0), Tensor::arg_mut),
            of_v: of_v.arg_mut(),
        };
        let (_, launch) = kernel(layout.format());
        let mut used: Vec<&dyn Operand> =
            vec![&checked.x, dy, &ids, &gates, &dx, &result.dgates, &of_u, &of_v];
        used.extend(of_w.as_ref().map(|of_w| of_w as &dyn Operand));
        used.extend(self.experts.operands());
        stream.with_operands(&used, || {
            // SAFETY: shapes, strides and devices have been checked, and that results are apart from the rest; the kernel reads no row that is not within the table.
            // Tensors are freed in the order of their home streams, which `with_operands` makes wait for this work.
            unsafe { launch(device, stream, checked.tokens as u32, (self.experts.arg(), params, gradients)) }
        })?;
        let Some(ExpertGradients { ids: distinct, u, w, v, count }) = &mut result.experts else {
            return Ok(());
        };
        let vocabulary = self.experts.count();
        let order = Order::of(&ids, vocabulary, stream)?;
        let starts = order.distinct(vocabulary, stream, distinct, count)?;
        let sums = |rows: &Tensor<T>, weights: &Tensor<f32>, to: &Tensor<R>| {
            let weights = Weights { weights, uses: checked.experts, sums: layout.hidden() };
            let [room, hidden, columns] = [to.shape()[0], to.shape()[1], to.shape()[2]];
            let to = to.reshape([room, hidden * columns])?;
            add_weighted(stream, rows, weights, (&order, vocabulary), Some((&starts, &*count)), &to)
        };
        sums(&checked.x, &of_u, u)?;
        if let (Some(w), Some(of_w)) = (w, &of_w) {
            sums(&checked.x, of_w, w)?;
        }
        sums(dy, &of_v, v)
    }

    fn run_on_cpu<R: RowElement>(
        &self,
        checked: &Checked<T>,
        dy: &Tensor<T>,
        result: &mut ExpertMlpGradients<T, R>,
    ) -> Result<()> {
        let layout = self.experts.layout();
        let two = |error: ndarray::ShapeError| Error::Argument {
            operation: OPERATION,
            argument: "shape",
            expected: "two axes".into(),
            actual: error.to_string(),
        };
        let (ids, gates) = (self.routing.ids.to_vec()?, self.routing.gates.to_vec()?);
        let bytes = result.dx.len() * size_of::<T>();
        let mut dx = HostBytes::zeroed(bytes).ok_or_else(|| out_of_memory(OPERATION, bytes))?;
        let rows = self.experts.host_rows(OPERATION)?;
        let factors = {
            let (x, dy) = (checked.x.host_view(OPERATION)?, dy.host_view(OPERATION)?);
            let target = bytemuck::cast_slice_mut(dx.as_mut_slice());
            cpu::expert_mlp_backward::<f32, T, T>(
                x.array().into_dimensionality::<Ix2>().map_err(two)?,
                TokenExperts { ids: &ids, gates: &gates, activation: self.activation },
                layout,
                |id| rows.row(id),
                dy.array().into_dimensionality::<Ix2>().map_err(two)?,
                ArrayViewMut2::from_shape((checked.tokens, layout.d()), target).map_err(two)?,
            )?
        };
        result.dx.put_host_bytes(OPERATION, dx)?;
        let ExpertFactors { dgates, u: of_u, w: of_w, v: of_v } = factors;
        result.dgates.write_slice(&dgates)?;
        let Some(ExpertGradients { ids: distinct, u, w, v, count }) = &mut result.experts else {
            return Ok(());
        };
        let uses: Vec<Option<usize>> = ids.iter().map(|&id| Some(id as usize)).collect();
        let uses = cpu::tokens_of_ids(&uses);
        let mut numbers = vec![0; distinct.len()];
        for (number, &id) in numbers.iter_mut().zip(uses.keys()) {
            *number = id as u32;
        }
        distinct.write_slice(&numbers)?;
        count.write_slice(&[uses.len() as u32])?;
        let hidden = layout.hidden();
        let sums = |rows: &Tensor<T>, factors: &[f32], to: &mut Tensor<R>| -> Result<()> {
            let (rows, columns) = (widened(rows)?, to.shape()[2]);
            let mut sums: Vec<f32> = zeros(OPERATION, to.len())?;
            if columns == 0 {
                return Ok(());
            }
            let all = uses.values().flat_map(|uses| (0..hidden).map(move |unit| (uses, unit)));
            for (sum, (uses, unit)) in sums.chunks_exact_mut(columns).zip(all) {
                cpu::add_weighted_rows(&rows, uses, checked.experts, |of| factors[of * hidden + unit], sum);
            }
            to.write_slice(&rounded::<R>(&sums))
        };
        sums(&checked.x, &of_u, u)?;
        if let Some(w) = w {
            sums(&checked.x, &of_w, w)?;
        }
        sums(dy, &of_v, v)
    }
}

/// The arguments of a kernel.
type Args = (ExpertRows, ExpertParams, ExpertGradientParams);

/// Launches so many blocks.
type Launch = unsafe fn(&Device, &Stream, u32, Args) -> Result<()>;

/// The kernel for a format.
fn kernel(format: ExpertFormat) -> (Declaration, Launch) {
    fn of<K: Kernel<Args = Args>>() -> (Declaration, Launch) {
        (K::DECLARATION, launch::<K>)
    }
    match format {
        ExpertFormat::F32 => of::<expert_gradient<f32>>(),
        ExpertFormat::F16 => of::<expert_gradient<F16>>(),
        ExpertFormat::Bf16 => of::<expert_gradient<Bf16>>(),
        ExpertFormat::Int8 => of::<expert_gradient<Int8>>(),
        ExpertFormat::Int4 => of::<expert_gradient<Int4>>(),
        ExpertFormat::F8E4M3 => of::<expert_gradient<F8E4M3>>(),
    }
}

/// Launches the kernel `K`.
///
/// # Safety
///
/// As for [`expert_gradients`](warpsmith_dsl::experts::expert_gradients), until the stream's work is done.
unsafe fn launch<K: Kernel<Args = Args>>(
    device: &Device,
    stream: &Stream,
    blocks: u32,
    args: Args,
) -> Result<()> {
    let kernel = device.kernel::<K>()?;
    // SAFETY: the caller's promise is the kernel's.
    unsafe { kernel.launch(stream, [blocks, 1, 1], args) }
}
