//! Products of matrices: which kernel computes one, on how many blocks, with which arguments.
//!
//! [`linear`](crate::ops::linear()) and [`matmul`](crate::ops::matmul()) describe what they want as a `Product`, `y = act(alpha · a bᵀ + …)` with all
//! operands as views `[.., M, K]`, `[.., N, K]` and `[.., M, N]`. The product checks every operand (`check`, `terms`) and asks for a plan (`plan`). It runs
//! the planned launches or the CPU implementation (`on_cpu`). [`linear_scaled`](crate::ops::linear_scaled()) checks operands of its own, and asks for a plan
//! in the same way. Modules:
//!
//! | module | what it holds |
//! |---|---|
//! | `problem` | [`Problem`] and [`Limits`]: what the choice depends on |
//! | `operands` | the layouts of operands, and which of them are copied first |
//! | `batch` | which launches compute all matrices of a batch |
//! | `variants` | [`Tile`]: the table of kernel variants, the conditions under which one computes a problem, and the kernels for each type |
//! | `cost`, `halves` | the cost model, and tiles that are computed in halves |
//! | `select` | [`select()`] and [`candidates`]: the choice by that model |
//! | `plan` | the plan of an operation: launches, layouts, variant, blocks |
//! | `launch`, `passes` | the launches of a planned product |

mod batch;
mod check;
mod cost;
mod halves;
mod launch;
mod on_cpu;
mod operands;
mod options;
mod passes;
mod plan;
mod problem;
mod select;
mod terms;
pub(super) mod variants;

pub use problem::{Access, Fused, Limits, Problem};
pub use select::{candidates, select};
pub use variants::Tile;

pub(crate) use batch::broadcast;
pub(crate) use launch::fp8;
pub(crate) use launch::own;
pub(crate) use launch::{Kernels, Operands, has_only_tiles, skinny_launch};
pub(crate) use options::{Options, epilogue_methods, factor_methods, product_methods};
pub(crate) use passes::{between_launches, sums_blocks};
pub(crate) use plan::{Division, Planned, Request};
pub(crate) use problem::{TURING, has_tf32, is_hopper};
pub(crate) use select::{estimate, estimate_of_launch};
pub(crate) use terms::{FlatTerms, Terms, TermsOf, two_axes, zeroed};
pub(crate) use variants::{LinearInput, LinearTypes};

use warpsmith_dsl::epilogue::LinearEpilogue;
use warpsmith_dsl::launch::{Global, GlobalMut};

use crate::cpu::FromAccumulator;
use crate::device::Device;
use crate::error::Result;
use crate::ops::{Implementation, repack, repack_both};
use crate::stream::{Operand, Stream};
use crate::tensor::{Element, Tensor, View};
use crate::trace;
use batch::{Launches, PerRole, Role};
use plan::Plan;

/// A product that has yet to run.
#[derive(Debug)]
pub(crate) struct Product<'o, T: Element, O: Element> {
    /// The operation's name in errors.
    pub(crate) operation: &'static str,
    /// The operands' names there.
    pub(crate) names: [&'static str; 2],
    /// `[.., M, K]`, any strides.
    pub(crate) a: Tensor<T>,
    /// `[.., N, K]`, any strides.
    pub(crate) b: Tensor<T>,
    /// The leading axes of a and b, broadcast.
    pub(crate) leading: Vec<usize>,
    /// The output's shape as the caller sees it: the leading axes, M unless it was given as no axis, N.
    pub(crate) output_shape: Vec<usize>,
    /// What else there is to do.
    pub(crate) options: &'o Options<'o, T, O>,
}

impl<T, O> Product<'_, T, O>
where
    T: LinearTypes<O>,
    O: Element + FromAccumulator<f32>,
{
    /// Rows of a matrix of the output.
    fn m(&self) -> usize {
        self.a.shape()[self.a.rank() - 2]
    }

    /// Columns of the output.
    fn n(&self) -> usize {
        self.b.shape()[self.b.rank() - 2]
    }

    /// The length of the sums.
    fn k(&self) -> usize {
        self.a.shape()[self.a.rank() - 1]
    }

    pub(crate) fn stream(&self) -> Stream {
        self.options.stream.cloned().unwrap_or_else(|| self.a.device().default_stream())
    }

    /// Runs into a new tensor.
    pub(crate) fn run(&self) -> Result<Tensor<O>> {
        let _range = trace::operation(self.operation);
        self.check()?;
        self.options.terms.expect_no_beta(self.operation)?;
        let planned = self.plan(None)?;
        let stream = self.stream();
        let mut y = Tensor::uninit_on(&stream, &self.output_shape)?;
        self.execute(&planned, &stream, &mut y)?;
        Ok(y)
    }

    /// Runs into `y`.
    pub(crate) fn run_into(&self, y: &mut Tensor<O>) -> Result<()> {
        let _range = trace::operation(self.operation);
        self.check()?;
        self.check_output(y)?;
        let planned = self.plan(Some(y))?;
        self.execute(&planned, &self.stream(), y)
    }

    /// What would run for a new output.
    pub(crate) fn implementation(&self) -> Result<Implementation> {
        self.check()?;
        Ok(self.plan(None)?.implementation(self.a.device()))
    }

    /// What would run for `y`.
    pub(crate) fn implementation_into(&self, y: &Tensor<O>) -> Result<Implementation> {
        self.check()?;
        self.check_output(y)?;
        Ok(self.plan(Some(y))?.implementation(self.a.device()))
    }

    /// What to run for an output with the layout of `y`, or for one without gaps. All operands have been checked.
    fn plan(&self, y: Option<&Tensor<O>>) -> Result<Planned<Kernels<T, O>>> {
        let options = self.options;
        let terms = &options.terms;
        Planned::of(&Request {
            operation: self.operation,
            names: self.names,
            device: self.a.device(),
            input: T::DTYPE,
            output: O::DTYPE,
            operands: [View::of(&self.a), View::of(&self.b)],
            leading: &self.leading,
            y: y.map(View::of),
            row_scale: options.row_scale.map(View::of),
            residual: terms.read_residual().map(|(residual, _)| View::of(residual)),
            adds_y: terms.beta != 0.0,
            mask: terms.mask.as_deref().map(View::of),
            preactivation: terms.preactivation.as_deref().map(View::of),
            fused: options.fused(),
            precision: options.precision,
            tile: options.tile,
            parts: options.parts,
            has_hopper: true,
        })
    }

    fn execute(&self, planned: &Planned<Kernels<T, O>>, stream: &Stream, y: &mut Tensor<O>) -> Result<()> {
        let (plan, kernels) = match planned {
            Planned::Empty => return Ok(()),
            Planned::Cpu => return self.execute_on_cpu(y),
            Planned::Kernels(plan, kernels) => (plan, kernels),
        };
        let [a, b] = match plan.path.repack {
            [true, true] => repack_both([&self.a, &self.b], stream)?,
            [true, false] => [repack(&self.a).on(stream).run()?, self.b.clone()],
            [false, true] => [self.a.clone(), repack(&self.b).on(stream).run()?],
            [false, false] => [self.a.clone(), self.b.clone()],
        };

        let options = self.options;
        let mut operands: Vec<&dyn Operand> = vec![&a, &b, y];
        operands.extend(options.bias.map(|bias| bias as &dyn Operand));
        operands.extend(options.row_scale.map(|scale| scale as &dyn Operand));
        operands.extend(options.column_scale.map(|scale| scale as &dyn Operand));
        operands.extend(options.terms.operands());

        let launches = &plan.launches;
        let epilogue = self.epilogue(launches, y);
        let matrices = |stride: usize| if stride == 0 { 1 } else { launches.batch };
        stream.with_operands(&operands, || {
            for start in launches.starts() {
                let view = |role: Role| {
                    let (batch, row) = (launches.batch_strides[role], launches.row_strides[role]);
                    (start[role], matrices(batch), [batch, row, 1])
                };
                let (at, batch, mut strides) = view(Role::A);
                strides[2] = a.strides()[a.rank() - 1];
                let x = a.with_axes(at, &[batch, launches.rows, self.k()], &strides);
                let (at, batch, mut strides) = view(Role::B);
                strides[1..].copy_from_slice(&b.strides()[b.rank() - 2..]);
                let w = b.with_axes(at, &[batch, self.n(), self.k()], &strides);
                let (at, _, strides) = view(Role::Y);
                let mut y = y.with_axes(at, &[launches.batch, launches.rows, self.n()], &strides);
                let y_arg = y.arg_mut();
                let epilogue = started(epilogue, start);
                let &Plan { m, n, k, parts, blocks, .. } = &**plan;
                let operands =
                    Operands { x: &x, w: &w, y: &y, y_arg, m, n, k, parts, epilogue, joined: None };
                // SAFETY: `check` and the plan have checked shapes, strides, alignment and device of every operand, and that what
                // is written is apart from the rest. Tensors are freed in the order of their home streams, which
                // `with_operands` makes wait for this work.
                unsafe { kernels.launch(self.a.device(), stream, blocks, &operands) }?;
            }
            Ok(())
        })
    }

    /// The kernels' epilogue for the first launch.
    fn epilogue(&self, launches: &Launches, y: &Tensor<O>) -> LinearEpilogue<T::Device, O::Device> {
        let options = self.options;
        let row = |role: Role| launches.row_strides[role] as u64;
        let batch = |role: Role| launches.batch_strides[role] as u64;
        let added = options.terms.added(y);
        let mask = options.terms.mask.as_deref().map(|mask| mask.clone().arg_mut());
        let preactivation = options.terms.preactivation.as_deref().map(|z| z.clone().arg_mut());
        LinearEpilogue {
            bias: options.bias.map_or(Global::new(0), Tensor::arg),
            residual: added.map_or(Global::new(0), |(residual, _)| residual.arg()),
            row_scale: options.row_scale.map_or(Global::new(0), Tensor::arg),
            column_scale: options.column_scale.map_or(Global::new(0), Tensor::arg),
            mask: mask.unwrap_or(GlobalMut::new(0)),
            preactivation: preactivation.unwrap_or(GlobalMut::new(0)),
            residual_stride: row(Role::Residual),
            residual_batch: batch(Role::Residual),
            mask_stride: row(Role::Mask),
            mask_batch: batch(Role::Mask),
            preactivation_stride: row(Role::Preactivation),
            preactivation_batch: batch(Role::Preactivation),
            row_scale_stride: row(Role::RowScale) as u32,
            column_scale_stride: options.column_scale.map_or(0, |scale| u32::from(scale.len() > 1)),
            alpha: options.alpha,
            beta: added.map_or(0.0, |(_, beta)| beta),
            activation: options.activation.on_device(),
            reserved: 0,
        }
    }
}

/// What would run for operands that are described only, `[.., M, K]` and `[.., N, K]` with these leading axes, into a new output: a product's name in
/// errors, its operands' names, the operands, and their leading axes, broadcast.
pub(crate) fn implementation_of_views<T, O>(
    device: &Device,
    (operation, names, operands, leading): (&'static str, [&'static str; 2], [View<'_>; 2], &[usize]),
    options: &Options<'_, T, O>,
) -> Result<Implementation>
where
    T: LinearTypes<O>,
    O: Element + FromAccumulator<f32>,
{
    let planned = Planned::<Kernels<T, O>>::of(&Request {
        operation,
        names,
        device,
        input: T::DTYPE,
        output: O::DTYPE,
        operands,
        leading,
        y: None,
        row_scale: None,
        residual: None,
        adds_y: options.terms.beta != 0.0,
        mask: None,
        preactivation: None,
        fused: options.fused(),
        precision: options.precision,
        tile: options.tile,
        parts: options.parts,
        has_hopper: true,
    })?;
    Ok(planned.implementation(device))
}

/// The epilogue with its operands `start` elements further on.
fn started<B, O>(epilogue: LinearEpilogue<B, O>, start: PerRole) -> LinearEpilogue<B, O> {
    let offset = |role: Role| start[role] as u64;
    LinearEpilogue {
        residual: epilogue.residual.offset(offset(Role::Residual)),
        row_scale: epilogue.row_scale.offset(offset(Role::RowScale)),
        mask: epilogue.mask.offset(offset(Role::Mask)),
        preactivation: epilogue.preactivation.offset(offset(Role::Preactivation)),
        ..epilogue
    }
}
