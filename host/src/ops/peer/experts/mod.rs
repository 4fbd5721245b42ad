//! Evaluating the experts that tokens use: `y = Σ gate · act(x·u) [· (x·w)] · v` over their hidden units.
//!
//! [`expert_mlp`] starts a builder. Its operands are checked (here), a pure function says which kernel runs and how a block shares
//! the columns (`select`), or how many tokens are worked in the order of the table (`sorted`), and the CPU has its own implementation. The experts' rows are a table's (`table`).

mod backward;
mod select;
mod sorted;
mod table;

pub use backward::{ExpertGradients, ExpertMlpBackwardOp, ExpertMlpGradients, expert_mlp_backward};
pub use select::ExpertBlocks;
pub use table::ExpertTable;
pub(crate) use table::NUMBERS_AT_A_TIME;

use half::{bf16, f16};
use ndarray::{ArrayViewMut2, Ix2};
use warpsmith_dsl::experts::{ExpertParams, GROUP_UNITS, TYPE_BF16, TYPE_F16, TYPE_F32};
use warpsmith_dsl::launch::{Global, GlobalMut, Kernel as _};
use warpsmith_kernels::expert_mlp_sorted::expert_mlp_order;

use super::Routing;
use crate::cpu::{self, FromAccumulator, TokenExperts};
use crate::device::cpu::out_of_memory;
use crate::device::{DeviceKind, Properties};
use crate::error::{Error, Result};
use crate::experts::ExpertLayout;
use crate::memory::HostBytes;
use crate::ops::embedding::EmbeddingElement;
use crate::ops::{Activation, Implementation, ROW_LIMIT, SIDE_LIMIT};
use crate::stream::{Operand, Stream};
use crate::tensor::{Element, Tensor};
use crate::trace;

/// The operation's name in errors.
const OPERATION: &str = "expert_mlp";
/// Hidden units of one token's experts, of all heads together.
const UNITS_LIMIT: usize = 1 << 24;

/// An element type of tokens: [`f16`](struct@f16), [`bf16`] or `f32`. The experts' format may be another.
pub trait ExpertInput: EmbeddingElement + cpu::Operand + FromAccumulator<f32> {
    /// What stands for it in a kernel's parameters.
    #[doc(hidden)]
    const ON_DEVICE: u32;
}

impl ExpertInput for f16 {
    const ON_DEVICE: u32 = TYPE_F16;
}
impl ExpertInput for bf16 {
    const ON_DEVICE: u32 = TYPE_BF16;
}
impl ExpertInput for f32 {
    const ON_DEVICE: u32 = TYPE_F32;
}

/// The output of the experts that `routing` names, for each row of `x` `[.., D]`: `[.., O]`,
/// `y = Σ gate · act(x·u) · v` over the hidden units of the experts of all heads, with `act(x·u) · (x·w)` for gated units.
///
/// Sums are in f32, in an order that depends on device, sizes, format and the token's own ids alone, and rounded once. The activation is
/// [GELU](Activation::GeluErf) unless another is asked for.
///
/// An id that is not less than the number of experts is an error on the CPU. A GPU and the emulator read nothing out of bounds for it
/// either, and make the token's outputs NaN.
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
/// let y = ops::expert_mlp(&x, &routing, &experts).activation(Activation::Relu).run()?;
/// assert_eq!(y.to_vec()?, [0.5 * 4.0 * 100.0 + 2.0 * 3.0 * 1.0]);
/// # Ok::<(), warpsmith::Error>(())
/// ```
pub fn expert_mlp<'a, T: ExpertInput>(
    x: &'a Tensor<T>,
    routing: &'a Routing,
    experts: &'a ExpertTable,
) -> ExpertMlpOp<'a, T> {
    let activation = Activation::GeluErf;
    ExpertMlpOp {
        x,
        routing,
        experts,
        activation,
        tokens: None,
        blocks: None,
        is_beside: false,
        stream: None,
    }
}

/// Experts that have yet to be evaluated; see [`expert_mlp`].
#[derive(Clone, Debug)]
#[must_use = "an operation does nothing until `run` or `run_into`"]
pub struct ExpertMlpOp<'a, T: Element> {
    x: &'a Tensor<T>,
    routing: &'a Routing,
    experts: &'a ExpertTable,
    activation: Activation,
    tokens: Option<usize>,
    blocks: Option<ExpertBlocks>,
    is_beside: bool,
    stream: Option<&'a Stream>,
}

/// Whether so many tokens, of so many experts each of a table of so many rows, have a block each.
pub(super) fn is_by_token(
    layout: &ExpertLayout,
    [tokens, experts, rows]: [usize; 3],
    properties: &Properties,
) -> bool {
    let sizes = select::Sizes { tokens, experts, rows };
    select::choose_blocks(layout, &sizes, properties) == ExpertBlocks::One
}

/// Operands that fit together.
struct Checked<T: Element> {
    /// `[T, D]`, contiguous along D.
    x: Tensor<T>,
    tokens: usize,
    /// Experts of a token, of all heads.
    experts: usize,
    y_shape: Vec<usize>,
}

/// What evaluation and gradients read.
struct Inputs<'a, T: Element> {
    x: &'a Tensor<T>,
    routing: &'a Routing,
    experts: &'a ExpertTable,
}

impl<T: ExpertInput> Inputs<'_, T> {
    fn checked(&self, operation: &'static str, stream: Option<&Stream>) -> Result<Checked<T>> {
        let (device, layout) = (self.x.device(), self.experts.layout());
        if let Some(stream) = stream {
            device.expect_same(operation, "stream", stream.device())?;
        }
        device.expect_same(operation, "ids", self.routing.ids.device())?;
        device.expect_same(operation, "experts", self.experts.device())?;
        let [tokens, heads, k] = self.routing.sizes(operation)?;
        let wrong = |operand, expected, actual: &[usize]| {
            Err(Error::Shape { operation, operand, expected, actual: actual.to_vec() })
        };
        let Some((&d, leading)) = self.x.shape().split_last() else {
            return wrong("x", "[.., D], at least one axis".into(), &[]);
        };
        if d != layout.d() {
            return wrong("x", format!("[.., {}], the experts' inputs", layout.d()), self.x.shape());
        }
        let ids = self.routing.ids.shape();
        if ids[..ids.len() - 2] != *leading {
            return wrong("ids", format!("{leading:?} before [H, k], as x has"), ids);
        }
        let limit = |operand, quantity, limit: String, actual: usize| {
            let actual = actual.to_string();
            Err(Error::SizeLimit { operation, operand, quantity, limit, actual })
        };
        if tokens as u64 >= SIDE_LIMIT {
            return limit("x", "number of tokens", format!("less than {SIDE_LIMIT}"), tokens);
        }
        let experts = heads * k;
        let units = experts.saturating_mul(layout.hidden());
        if units >= UNITS_LIMIT {
            return limit(
                "ids",
                "number of a token's hidden units",
                format!("less than {UNITS_LIMIT}"),
                units,
            );
        }
        let row = layout.d().max(layout.o()) * size_of::<T>();
        if row as u64 >= ROW_LIMIT {
            return limit("x", "length of a row", format!("less than {ROW_LIMIT} bytes"), row);
        }
        if self.experts.count() == 0 && tokens * experts > 0 {
            return limit("experts", "number of rows", "at least 1".into(), 0);
        }
        let x = matrix(operation, "x", self.x)?;
        expect_contiguous_rows(operation, "x", &x)?;
        let y_shape = [leading, &[layout.o()]].concat();
        Ok(Checked { x, tokens, experts, y_shape })
    }

    /// Sizes and strides as kernels take them, of a matrix x and one of as many outputs.
    fn params(&self, checked: &Checked<T>, stride_y: u64, activation: Activation) -> ExpertParams {
        let layout = self.experts.layout();
        ExpertParams {
            stride_x: row_stride(&checked.x),
            stride_y,
            unit_bytes: layout.unit_bytes() as u64,
            d: layout.d() as u32,
            o: layout.o() as u32,
            experts: checked.experts as u32,
            hidden: layout.hidden() as u32,
            input_bytes: layout.input_bytes() as u32,
            v_at: layout.v_at() as u32,
            scales_at: layout.scales_at() as u32,
            lanes: 1,
            splits: 1,
            activation: activation.on_device(),
            element: T::ON_DEVICE,
            cluster: 1,
        }
    }
}

/// What is launched.
enum Work {
    /// A kernel, once.
    ByToken(select::Choice),
    /// All tokens' experts in the order of the table.
    Sorted(sorted::Kernels, sorted::Plan),
}

impl<'a, T: ExpertInput> ExpertMlpOp<'a, T> {
    /// What the hidden units do to x·u.
    pub fn activation(self, activation: Activation) -> Self {
        Self { activation, ..self }
    }

    /// Takes these blocks for each token instead of those that would be chosen; the device must have them, and they must have room for the
    /// token's hidden units. For measurements: outputs may differ in their last bits. The CPU implementation has no blocks and ignores it.
    pub fn blocks(self, blocks: impl Into<Option<ExpertBlocks>>) -> Self {
        Self { blocks: blocks.into(), ..self }
    }

    /// Takes the kernel that `tokens` tokens, at least as many as x has, would take: outputs are the same bit for bit as those of all of them at once.
    /// For callers that evaluate tokens in parts.
    pub fn part_of(self, tokens: usize) -> Self {
        Self { tokens: Some(tokens), ..self }
    }

    /// Leaves room for a retrieval that runs at the same time.
    pub(super) fn beside_retrieval(self) -> Self {
        Self { is_beside: true, ..self }
    }

    /// Runs on `stream` instead of the device's default stream.
    pub fn on(self, stream: &'a Stream) -> Self {
        Self { stream: Some(stream), ..self }
    }

    /// Runs the operation into a new tensor of shape [.., O]. On a GPU the work may still be under way when this returns.
    ///
    /// # Errors
    ///
    /// [`Error::Shape`], [`Error::Stride`], [`Error::DeviceMismatch`] and [`Error::SizeLimit`] if an operand does not fit; on
    /// the CPU [`Error::Argument`] for an id of no expert. [`Error::UnsupportedDevice`], [`Error::SizeLimit`] and, of a format
    /// that has none such. [`Error::Argument`] for [blocks](Self::blocks) that cannot be. Otherwise whatever allocating the
    /// output, loading the kernel and launching it may return.
    pub fn run(&self) -> Result<Tensor<T>> {
        let _range = trace::operation(OPERATION);
        let checked = self.checked()?;
        let stream = self.stream();
        let mut y = Tensor::uninit_on(&stream, &checked.y_shape)?;
        self.write(&stream, &checked, &mut y)?;
        Ok(y)
    }

    /// Runs the operation into `y`, a view whose last axis is contiguous.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run), and [`Error::Overlap`] if `y` shares memory with another operand.
    pub fn run_into(&self, y: &mut Tensor<T>) -> Result<()> {
        let _range = trace::operation(OPERATION);
        let checked = self.checked()?;
        self.x.device().expect_same(OPERATION, "y", y.device())?;
        if y.shape() != checked.y_shape {
            let expected = format!("{:?}, as x and the experts give", checked.y_shape);
            return Err(Error::Shape {
                operation: OPERATION,
                operand: "y",
                expected,
                actual: y.shape().into(),
            });
        }
        expect_contiguous_rows(OPERATION, "y", &matrix(OPERATION, "y", y)?)?;
        y.expect_writable(OPERATION, "y")?;
        let Routing { ids, gates } = self.routing;
        for (other, shares) in [
            ("x", y.shares_memory(self.x)),
            ("ids", y.shares_memory(ids)),
            ("gates", y.shares_memory(gates)),
            ("experts", self.experts.shares_memory(y)),
        ] {
            if shares {
                return Err(Error::Overlap { operation: OPERATION, operand: "y", other });
            }
        }
        self.write(&self.stream(), &checked, y)
    }

    /// Which implementation [`run`](Self::run) would take.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run), for the operands.
    pub fn implementation(&self) -> Result<Implementation> {
        let checked = self.checked()?;
        let device = self.x.device();
        if checked.is_empty() {
            return Ok(Implementation::Empty);
        }
        if device.kind() == DeviceKind::Cpu {
            return Ok(Implementation::Cpu);
        }
        let copied = [self.routing.ids.is_contiguous(), self.routing.gates.is_contiguous()];
        let ran = match self.choose(&checked)? {
            Work::ByToken(choice) => Implementation::kernel(device, choice.kernel.name, choice.blocks),
            Work::Sorted(kernels, plan) => {
                let groups = plan.groups(plan.tokens.min(checked.tokens));
                let order = expert_mlp_order::DECLARATION.name;
                let order = Implementation::kernel(device, order, groups as u32);
                let blocks = kernels.blocks(groups);
                let [products, outputs] =
                    kernels.declarations.map(|kernel| Implementation::kernel(device, kernel.name, blocks));
                order.then(products).then(outputs)
            }
        };
        Ok(ran.with_copies(copied.iter().filter(|contiguous| !**contiguous).count()))
    }

    fn stream(&self) -> Stream {
        self.stream.cloned().unwrap_or_else(|| self.x.device().default_stream())
    }

    fn checked(&self) -> Result<Checked<T>> {
        self.inputs().checked(OPERATION, self.stream)
    }

    fn inputs(&self) -> Inputs<'a, T> {
        Inputs { x: self.x, routing: self.routing, experts: self.experts }
    }

    fn choose(&self, checked: &Checked<T>) -> Result<Work> {
        let (layout, properties) = (self.experts.layout(), self.x.device().properties());
        let tokens = self.tokens.unwrap_or(checked.tokens);
        let sizes = select::Sizes { tokens, experts: checked.experts, rows: self.experts.count() };
        let blocks = self.blocks.unwrap_or_else(|| select::choose_blocks(layout, &sizes, properties));
        self.expect_blocks(blocks, checked)?;
        if blocks == ExpertBlocks::Sorted
            && let Some(kernels) = sorted::Kernels::of(layout.format())
            && let Some(plan) =
                sorted::Plan::new(&kernels, [checked.tokens, sizes.units(layout), sizes.rows], properties)
        {
            return Ok(Work::Sorted(kernels, plan));
        }
        let choice = select::choose(layout, checked.tokens, blocks);
        let shared_bytes = if self.is_beside { select::shared_bytes_beside(properties) } else { 0 };
        Ok(Work::ByToken(select::Choice { shared_bytes, ..choice }))
    }

    /// Refuses blocks that the device does not have, or that have no room.
    fn expect_blocks(&self, blocks: ExpertBlocks, checked: &Checked<T>) -> Result<()> {
        let (device, layout) = (self.x.device(), self.experts.layout());
        let units = checked.experts * layout.hidden();
        let no_room = |quantity, limit: &str, actual| {
            let limit = limit.into();
            Err(Error::SizeLimit { operation: OPERATION, operand: "blocks", quantity, limit, actual })
        };
        match blocks {
            ExpertBlocks::One => Ok(()),
            ExpertBlocks::Cluster(cluster) => {
                let (major, minor) = device.properties().compute_capability;
                if major < 9 {
                    return Err(Error::UnsupportedDevice {
                        operation: OPERATION,
                        device: device.to_string(),
                        expected: "compute capability 9.0, for clusters".into(),
                        actual: format!("{major}.{minor}"),
                    });
                }
                if select::share_of_units(layout.format(), units as u32, cluster).is_none() {
                    let actual = format!("{cluster} blocks and {units} units");
                    let limit = "1 to 8 blocks, of at most 256 units each";
                    return no_room("blocks and hidden units of a token", limit, actual);
                }
                let (all, most) =
                    (checked.tokens as u64 * u64::from(cluster), device.properties().max_grid[0]);
                if all > u64::from(most) {
                    return no_room("blocks of all tokens", &format!("at most {most}"), all.to_string());
                }
                Ok(())
            }
            ExpertBlocks::Sorted if sorted::Kernels::of(layout.format()).is_none() => Err(Error::Argument {
                operation: OPERATION,
                argument: "blocks",
                expected: "rows of f32, f16 or bf16, for experts that are sorted".into(),
                actual: layout.format().to_string(),
            }),
            ExpertBlocks::Sorted if units > GROUP_UNITS as usize => {
                let limit = format!("at most {GROUP_UNITS}, for experts that are sorted");
                no_room("hidden units of a token", &limit, units.to_string())
            }
            ExpertBlocks::Sorted => Ok(()),
        }
    }

    /// Runs the operation into `y`, which has been checked, or is new.
    fn write(&self, stream: &Stream, checked: &Checked<T>, y: &mut Tensor<T>) -> Result<()> {
        if checked.is_empty() {
            return Ok(());
        }
        let device = self.x.device();
        if device.kind() == DeviceKind::Cpu {
            return self.run_on_cpu(checked, y);
        }
        if self.experts.count() == 0 {
            // No token has any.
            return y.copy_from_on(&Tensor::zeros_on(stream, y.shape())?, stream);
        }
        let (ids, gates) =
            (self.routing.ids.contiguous_on(stream)?, self.routing.gates.contiguous_on(stream)?);
        let layout = self.experts.layout();
        let mut y = y.flatten_leading()?;
        let work = self.choose(checked)?;
        let (x_arg, y_arg) = (Global::new(checked.x.arg().address()), GlobalMut::new(y.arg_mut().address()));
        let params = self.inputs().params(checked, row_stride(&y), self.activation);
        let mut used: Vec<&dyn Operand> = vec![&checked.x, &ids, &gates, &y];
        used.extend(self.experts.operands());
        match work {
            Work::ByToken(choice) => {
                let select::Choice { lanes, splits, cluster, .. } = choice;
                let params = ExpertParams { lanes, splits, cluster, ..params };
                let args = (x_arg, ids.arg(), gates.arg(), self.experts.arg(), y_arg, params);
                stream.with_operands(&used, || {
                    // SAFETY: shapes, strides and devices have been checked, and that y is apart from the rest; the kernel reads no row that is not
                    // within the table. Tensors are freed in the order of their home streams, which `with_operands` makes wait for this work, or if the stream
                    // is a branch, `Stream::beside`: these are among the operands there.
                    unsafe {
                        (choice.launch)(device, stream, [choice.blocks, cluster, choice.shared_bytes], args)
                    }
                })
            }
            Work::Sorted(kernels, plan) => {
                let workspace = sorted::Workspace::new(stream, layout, &plan)?;
                used.extend(workspace.operands());
                let operands = sorted::Operands {
                    x: x_arg,
                    ids: ids.arg(),
                    gates: gates.arg(),
                    rows: self.experts.arg(),
                    y: y_arg,
                    size: size_of::<T>() as u64,
                };
                let sizes = [checked.tokens, layout.input_chunks(), layout.output_chunks()];
                stream.with_operands(&used, || {
                    // SAFETY: as above; the workspace is this work's alone.
                    unsafe { sorted::run(stream, &kernels, &plan, &workspace, operands, params, sizes) }
                })
            }
        }
    }

    fn run_on_cpu(&self, checked: &Checked<T>, y: &mut Tensor<T>) -> Result<()> {
        let layout = self.experts.layout();
        let two = |error: ndarray::ShapeError| Error::Argument {
            operation: OPERATION,
            argument: "shape",
            expected: "two axes".into(),
            actual: error.to_string(),
        };
        let bytes = y.len() * size_of::<T>();
        let mut result = HostBytes::zeroed(bytes).ok_or_else(|| out_of_memory(OPERATION, bytes))?;
        let (ids, gates) = (self.routing.ids.to_vec()?, self.routing.gates.to_vec()?);
        let x = checked.x.host_view(OPERATION)?;
        let rows = self.experts.host_rows(OPERATION)?;
        let target = bytemuck::cast_slice_mut(result.as_mut_slice());
        let target = ArrayViewMut2::from_shape((checked.tokens, layout.o()), target).map_err(two)?;
        cpu::expert_mlp::<f32, T, T>(
            x.array().into_dimensionality::<Ix2>().map_err(two)?,
            TokenExperts { ids: &ids, gates: &gates, activation: self.activation },
            layout,
            |id| rows.row(id),
            target,
        )?;
        y.put_host_bytes(OPERATION, result)
    }
}

impl<T: Element> Checked<T> {
    fn is_empty(&self) -> bool {
        self.y_shape.contains(&0)
    }
}

/// The tensor as a matrix.
fn matrix<T: Element>(
    operation: &'static str,
    operand: &'static str,
    tensor: &Tensor<T>,
) -> Result<Tensor<T>> {
    tensor.flatten_leading().map_err(|error| match error {
        Error::Stride { expected, actual, .. } => Error::Stride { operation, operand, expected, actual },
        Error::Shape { expected, actual, .. } => Error::Shape { operation, operand, expected, actual },
        other => other,
    })
}

/// The error for a matrix whose rows are not contiguous.
fn expect_contiguous_rows<T: Element>(
    operation: &'static str,
    operand: &'static str,
    matrix: &Tensor<T>,
) -> Result<()> {
    if matrix.is_empty() || matrix.shape()[1] == 1 || matrix.strides()[1] == 1 {
        return Ok(());
    }
    let (expected, actual) = ("1 along the last axis".into(), matrix.strides().to_vec());
    Err(Error::Stride { operation, operand, expected, actual })
}

/// Elements from one row to the next.
fn row_stride<T: Element>(matrix: &Tensor<T>) -> u64 {
    matrix.strides()[0] as u64
}
