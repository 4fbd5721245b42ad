//! Operations on rows with a function of a program's own, planned by the library.

use std::marker::PhantomData;

use warpsmith_dsl::launch::{Global, Kernel};
use warpsmith_dsl::operands::FieldOperands;
use warpsmith_dsl::rows::{AnyRows, RowFunctionArgs, RowFunctionParams, RowKernels, THREADS};

use super::loaded::Loaded;
use super::{RowOf, Worst};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::kernel::{KernelFile, LaunchArgs, Resolved, resolve};
use crate::ops::Implementation;
use crate::ops::rows::{
    Plan, RowElement, Shares, Sizes, Variant, as_result_rows, as_rows, expect_rows, is_copied, is_in_place,
    rows_of,
};
use crate::stream::{Operand, Stream};
use crate::tensor::{Element, Tensor};
use crate::trace;

/// Elements of a thread at a time: those of [`chunks_of`](warpsmith_dsl::rows::chunks_of) chunks.
const ELEMENTS: u32 = 16;

/// The fields of the function of `F`.
type OperandsOf<F> = <<F as RowKernels>::Function as FieldOperands>::Operands;

/// The arguments of each kernel of `F`.
type ArgsOf<F> =
    RowFunctionArgs<<F as RowKernels>::Input, <F as RowKernels>::Output, <F as RowKernels>::Function>;

/// The kernels, and the types of rows and results: of which nothing is held.
type Types<F, T, O> = fn() -> (F, T, O);

/// The kernels of an operation on rows with a function of a program's own, on a device: see [`rows`].
#[derive(Debug)]
pub struct FusedRows<F, T, O> {
    device: Device,
    loaded: Loaded,
    has_clusters: bool,
    types: PhantomData<Types<F, T, O>>,
}

/// Loads the kernels `F` from the program's `file`, for rows of type `T` and results of type `O`.
///
/// A file that was built for `sm_80` only gives a row no more than a block. Build it for `sm_90a` too, so that long rows are read once.
///
/// # Errors
///
/// [`Error::MissingKernel`] if the file has no kernels of this name; otherwise as for [`Device::load_kernels`], which takes no device without kernels:
/// [`FusedRowsOp::check`] compares with a function on the CPU.
pub fn rows<F, T, O>(device: &Device, file: &KernelFile) -> Result<FusedRows<F, T, O>>
where
    F: RowKernels,
    T: RowElement + Element<Device = F::Input>,
    O: RowElement + Element<Device = F::Output>,
{
    let module = device.load_kernels(file)?;
    // A variant that every architecture has.
    module.function(F::BlockAny::DECLARATION.name)?;
    let loaded = Loaded::new(module);
    let has_clusters = loaded.has(F::Cluster::DECLARATION.name);
    Ok(FusedRows { device: device.clone(), loaded, has_clusters, types: PhantomData })
}

impl<F, T, O> FusedRows<F, T, O>
where
    F: RowKernels,
    T: RowElement + Element<Device = F::Input>,
    O: RowElement + Element<Device = F::Output>,
{
    /// The operation on the rows of `x`, [.., N], any strides, with these operands of the function: a tuple of its fields in order, a tensor for each slice or
    /// matrix.
    pub fn of<'a, A: LaunchArgs<OperandsOf<F>>>(
        &'a self,
        x: &'a Tensor<T>,
        operands: A,
    ) -> FusedRowsOp<'a, F, T, O, A> {
        FusedRowsOp { rows: self, x, operands, stream: None }
    }

    /// Who has which part of rows of these sizes: sixteen elements to a thread at a time, if chunks of 16 bytes are aligned in all of `rows`.
    fn plan(&self, sizes: Sizes, rows: &[AnyRows]) -> (Shares, Plan) {
        let shares = Shares::of::<T>(sizes.columns, rows, ELEMENTS / Shares::vector::<T>());
        let max_cluster = if self.has_clusters { self.device.properties().max_cluster } else { 1 };
        (shares, Plan::new(sizes, shares, max_cluster))
    }
}

/// An operation on rows that has yet to run; see [`FusedRows::of`].
#[derive(Debug)]
#[must_use = "an operation does nothing until `run` or `run_into`"]
pub struct FusedRowsOp<'a, F, T: Element, O, A> {
    rows: &'a FusedRows<F, T, O>,
    x: &'a Tensor<T>,
    operands: A,
    stream: Option<&'a Stream>,
}

impl<'a, F, T, O, A> FusedRowsOp<'a, F, T, O, A>
where
    F: RowKernels,
    T: RowElement + Element<Device = F::Input>,
    O: RowElement + Element<Device = F::Output>,
    A: LaunchArgs<OperandsOf<F>>,
{
    /// Runs on `stream` rather than on the device's default stream.
    pub fn on(self, stream: &'a Stream) -> Self {
        Self { stream: Some(stream), ..self }
    }

    /// Runs into a new tensor of the shape of x.
    ///
    /// # Errors
    ///
    /// [`Error::Shape`], [`Error::SizeLimit`] and [`Error::DeviceMismatch`] for operands that do not fit, [`Error::Argument`] for an operand of the function that is
    /// written; otherwise as for a launch.
    pub fn run(self) -> Result<Tensor<O>> {
        let _range = trace::operation(F::NAME);
        let sizes = self.check_inputs()?;
        let mut y = Tensor::uninit_on(&self.stream(), self.x.shape())?;
        self.execute(sizes, &mut y)?;
        Ok(y)
    }

    /// Runs into `y`, which has the shape of x and contiguous rows. It may be x, if they have the same type.
    ///
    /// # Errors
    ///
    /// As for [`run`](Self::run), and [`Error::Stride`], [`Error::Overlap`] and [`Error::ReadOnly`] for y.
    pub fn run_into(self, y: &mut Tensor<O>) -> Result<()> {
        let _range = trace::operation(F::NAME);
        let sizes = self.check_inputs()?;
        expect_rows(F::NAME, "y", y, &self.rows.device, (self.x.shape(), "x"))?;
        if y.shares_memory(self.x) && !is_in_place(y, self.x) {
            return Err(Error::Overlap { operation: F::NAME, operand: "y", other: "x" });
        }
        self.execute(sizes, y)
    }

    /// What would run for a new output.
    ///
    /// # Errors
    ///
    /// As for [`run`](Self::run).
    pub fn implementation(&self) -> Result<Implementation> {
        let sizes = self.check_inputs()?;
        if sizes.are_none() {
            return Ok(Implementation::Empty);
        }
        // A new result is aligned, and so is a copy.
        let copied = is_copied(self.x);
        let rows = if copied { Vec::new() } else { vec![rows_of(&self.x.flatten_leading()?)] };
        let (shares, plan) = self.rows.plan(sizes, &rows);
        let name = Variant::of(shares, plan).of_four::<F::Block, F::BlockAny, F::Cluster, F::ClusterAny>();
        Ok(Implementation::kernel(&self.rows.device, name, plan.blocks).with_copies(usize::from(copied)))
    }

    /// Runs the operation and compares every element with `reference`, which gives of a row for each of its elements the exact result, and how far an f32
    /// evaluation may be from it. The rounding to the output's type is added here. `None` of an operation without elements.
    ///
    /// # Errors
    ///
    /// As for [`run`](Self::run), and of copies to the host. [`Error::Argument`] if `reference` gives another number of results than there are columns.
    pub fn check(self, mut reference: impl FnMut(&RowOf<'_>) -> Vec<(f64, f64)>) -> Result<Option<Worst>>
    where
        T: Into<f64>,
        O: Into<f64>,
    {
        let Sizes { rows, columns } = self.check_inputs()?;
        let x: Vec<f64> = self.x.to_vec()?.into_iter().map(Into::into).collect();
        let additions = self.additions()?;
        let y = self.run()?.to_vec()?;
        let mut worst = None;
        for index in 0..if columns == 0 { 0 } else { rows } {
            let of = RowOf { index, x: &x[index * columns..][..columns], additions };
            let expected = reference(&of);
            if expected.len() != columns {
                let (expected, actual) = (format!("{columns} results for a row"), expected.len().to_string());
                return Err(Error::Argument { operation: F::NAME, argument: "reference", expected, actual });
            }
            let actual = y[index * columns..][..columns].iter().zip(expected).enumerate();
            for (column, (&actual, expected)) in actual {
                Worst::raise(&mut worst, (index, column), actual.into(), expected, O::DTYPE);
            }
        }
        Ok(worst)
    }

    /// How often a sum has added to each of its terms at most: in a thread, between the lanes of a warp, the warps of a block and the blocks of a cluster.
    fn additions(&self) -> Result<f64> {
        let sizes = self.check_inputs()?;
        let most = [Vec::new(), vec![rows_of(&as_rows(self.x, &self.stream())?)]].into_iter().map(|rows| {
            let (shares, plan) = self.rows.plan(sizes, &rows);
            let of_warps = THREADS / self.rows.device.properties().warp_size;
            plan.rounds * shares.chunks * shares.chunk + 5 + of_warps + plan.cluster
        });
        Ok(most.max().map_or(0.0, f64::from))
    }

    fn stream(&self) -> Stream {
        self.stream.cloned().unwrap_or_else(|| self.rows.device.default_stream())
    }

    /// Checks x and the stream; returns the sizes.
    fn check_inputs(&self) -> Result<Sizes> {
        let (operation, device) = (F::NAME, &self.rows.device);
        device.expect_same(operation, "x", self.x.device())?;
        if let Some(stream) = self.stream {
            device.expect_same(operation, "stream", stream.device())?;
        }
        Sizes::of(operation, "x", self.x.shape())
    }

    fn execute(mut self, sizes: Sizes, y: &mut Tensor<O>) -> Result<()> {
        let stream = self.stream();
        let names = <F::Function as FieldOperands>::NAMES;
        let Resolved { values, used } = resolve(F::NAME, &mut self.operands, names)?;
        for (name, operand, span) in &used {
            self.rows.device.expect_same(F::NAME, name, operand.buffer().device())?;
            if y.span().meets(span) {
                return Err(Error::Overlap { operation: F::NAME, operand: "y", other: name });
            }
        }
        if sizes.are_none() {
            return Ok(());
        }
        let x = as_rows(self.x, &stream)?;
        let mut y = as_result_rows(F::NAME, "y", y)?;
        let (from, to) = (rows_of(&x), rows_of(&y));
        let (shares, plan) = self.rows.plan(sizes, &[from, to]);
        // The function may ask for a row's number among all.
        plan.expect_one_launch(F::NAME, "x", sizes.rows)?;
        let params = RowFunctionParams {
            x_stride: from.stride,
            y_stride: to.stride,
            rows: sizes.rows as u32,
            columns: sizes.columns as u32,
            threads: plan.threads,
            rounds: plan.rounds,
        };
        let to = y.arg_mut();
        let args: ArgsOf<F> = (Global::new(from.base), to, F::Function::from_operands(values), params);
        let mut operands: Vec<&dyn Operand> = vec![&x, &y];
        operands.extend(used.iter().map(|(_, operand, _)| *operand));
        // Slices are read as memory that nothing writes: no launch that may have written one is to be under way.
        let (loaded, early) = (&self.rows.loaded, used.is_empty());
        // SAFETY: rows, columns and strides are those of the tensors, which were checked to be this device's, of the same shape, and apart or in place. The plan's
        // threads have all chunks of a row. What the function reads is made of tensors that are only read, and apart from y. Tensors are freed in the order of their
        // home streams, which `with_operands` makes wait for this work.
        stream.with_operands(&operands, || unsafe {
            match Variant::of(shares, plan) {
                Variant::Block => launch::<F::Block>(loaded, &stream, (plan, early), args),
                Variant::BlockAny => launch::<F::BlockAny>(loaded, &stream, (plan, early), args),
                Variant::Cluster => launch::<F::Cluster>(loaded, &stream, (plan, early), args),
                Variant::ClusterAny => launch::<F::ClusterAny>(loaded, &stream, (plan, early), args),
            }
        })
    }
}

/// Launches a kernel in the clusters of its plan, if `early` before earlier launches have ended.
///
/// # Safety
///
/// The arguments are valid for what the kernel does with them. If `early`, it reads nothing as memory that no launch writes.
unsafe fn launch<K: Kernel>(
    loaded: &Loaded,
    stream: &Stream,
    (plan, early): (Plan, bool),
    args: K::Args,
) -> Result<()> {
    let (kernel, grid, cluster) = (loaded.kernel::<K>()?, [plan.blocks, 1, 1], [plan.cluster, 1, 1]);
    // SAFETY: the caller's promise.
    unsafe {
        match (plan.cluster, early) {
            (1, true) => kernel.launch_early(stream, grid, args),
            (1, false) => kernel.launch(stream, grid, args),
            (_, true) => kernel.launch_early_clusters(stream, grid, cluster, args),
            (_, false) => kernel.launch_clusters(stream, grid, cluster, args),
        }
    }
}
