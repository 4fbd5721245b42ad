//! Products with an epilogue of a program's own, planned by the library.

use std::marker::PhantomData;

use warpsmith_dsl::epilogue::LinearEpilogue;
use warpsmith_dsl::gemm::product::ProductKernels;
use warpsmith_dsl::launch::Kernel;
use warpsmith_dsl::operands::{FieldOperands, Misfit};

use super::loaded::Loaded;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::kernel::{KernelFile, LaunchArgs, Resolved, resolve};
use crate::ops::gemm::own::OwnKernels;
use crate::ops::gemm::{Fused, LinearTypes, Operands, Planned, Request, Tile};
use crate::ops::matrix::expect_unit_stride;
use crate::ops::{Implementation, Precision, repack, repack_both};
use crate::stream::{Operand, Stream};
use crate::tensor::{Element, Tensor, View};
use crate::trace;

/// The fields of the epilogue of `F`.
pub(super) type OperandsOf<F> = <<F as ProductKernels>::Epilogue as FieldOperands>::Operands;

/// The kernels, and the types of inputs and results: of which nothing is held.
type Types<F, T, O> = fn() -> (F, T, O);

/// The kernels of products with an epilogue of a program's own, on a device: see [`product`].
#[derive(Debug)]
pub struct FusedProduct<F, T, O> {
    device: Device,
    loaded: Loaded,
    has_hopper: bool,
    types: PhantomData<Types<F, T, O>>,
}

/// Loads the kernels `F` from the program's `file`, for inputs of type `T` and results of type `O`.
///
/// On Hopper a file that was built for `sm_80` only runs the variants for that; build it for `sm_90a` too.
///
/// # Errors
///
/// [`Error::MissingKernel`] if the file has no kernels of this name; otherwise as for [`Device::load_kernels`], which takes no device
/// without kernels: [`FusedProductOp::check`] compares with a function on the CPU.
pub fn product<F, T, O>(device: &Device, file: &KernelFile) -> Result<FusedProduct<F, T, O>>
where
    F: ProductKernels,
    T: LinearTypes<f32> + Element<Device = F::Input>,
    O: Element<Device = F::Output>,
{
    let module = device.load_kernels(file)?;
    // The smallest of the variants that every architecture has.
    module.function(F::T16x64::DECLARATION.name)?;
    let loaded = Loaded::new(module);
    let has_hopper = loaded.has(F::PingPong128x128::DECLARATION.name);
    Ok(FusedProduct { device: device.clone(), loaded, has_hopper, types: PhantomData })
}

impl<F, T, O> FusedProduct<F, T, O>
where
    F: ProductKernels,
    T: LinearTypes<f32> + Element<Device = F::Input>,
    O: Element<Device = F::Output>,
{
    /// The product of `x` [M, K] and `w` [N, K], any strides, with these operands of the epilogue: a tuple of its parameters or fields in order, a
    /// tensor for each row or column, slice or matrix.
    pub fn of<'a, A: LaunchArgs<OperandsOf<F>>>(
        &'a self,
        x: &'a Tensor<T>,
        w: &'a Tensor<T>,
        operands: A,
    ) -> FusedProductOp<'a, F, T, O, A> {
        FusedProductOp { product: self, x, w, operands, stream: None, tile: None, parts: None }
    }
}

/// A product that has yet to run; see [`FusedProduct::of`].
#[derive(Debug)]
#[must_use = "an operation does nothing until `run` or `run_into`"]
pub struct FusedProductOp<'a, F, T: Element, O, A> {
    product: &'a FusedProduct<F, T, O>,
    pub(super) x: &'a Tensor<T>,
    pub(super) w: &'a Tensor<T>,
    operands: A,
    stream: Option<&'a Stream>,
    tile: Option<Tile>,
    parts: Option<u32>,
}

impl<'a, F, T, O, A> FusedProductOp<'a, F, T, O, A>
where
    F: ProductKernels,
    T: LinearTypes<f32> + Element<Device = F::Input>,
    O: Element<Device = F::Output>,
    A: LaunchArgs<OperandsOf<F>>,
{
    /// Runs on `stream` rather than on the device's default stream.
    pub fn on(self, stream: &'a Stream) -> Self {
        Self { stream: Some(stream), ..self }
    }

    /// Computes with this variant instead of the one that the cost model chooses.
    pub fn tile(self, tile: impl Into<Option<Tile>>) -> Self {
        Self { tile: tile.into(), ..self }
    }

    /// Has so many blocks share each sum, where the variant can do that.
    pub fn parts(self, parts: impl Into<Option<u32>>) -> Self {
        Self { parts: parts.into(), ..self }
    }

    /// Runs into a new tensor, [M, N].
    ///
    /// # Errors
    ///
    /// [`Error::Shape`], [`Error::Stride`], [`Error::DeviceMismatch`] and [`Error::Overlap`] for operands that do not fit, [`Error::Argument`] for a
    /// variant that does not compute the product, or for an operand of the epilogue that is written; otherwise as for a launch.
    pub fn run(self) -> Result<Tensor<O>> {
        let _range = trace::operation(F::NAME);
        let shape = self.check_inputs()?;
        let planned = self.plan(None)?;
        let mut y = Tensor::uninit_on(&self.stream(), shape)?;
        self.execute(&planned, shape, &mut y)?;
        Ok(y)
    }

    /// Runs into `y`, [M, N], whose rows are contiguous.
    ///
    /// # Errors
    ///
    /// As for [`run`](Self::run), and [`Error::ReadOnly`].
    pub fn run_into(self, y: &mut Tensor<O>) -> Result<()> {
        let _range = trace::operation(F::NAME);
        let shape = self.check_inputs()?;
        self.check_output(shape, y)?;
        let planned = self.plan(Some(y))?;
        self.execute(&planned, shape, y)
    }

    /// What would run for a new output.
    ///
    /// # Errors
    ///
    /// As for [`run`](Self::run).
    pub fn implementation(&self) -> Result<Implementation> {
        self.check_inputs()?;
        Ok(self.plan(None)?.implementation(&self.product.device))
    }

    fn stream(&self) -> Stream {
        self.stream.cloned().unwrap_or_else(|| self.product.device.default_stream())
    }

    /// Checks x, w and the stream; returns the output's shape.
    pub(super) fn check_inputs(&self) -> Result<[usize; 2]> {
        let (operation, device) = (F::NAME, &self.product.device);
        for (operand, tensor) in [("x", self.x), ("w", self.w)] {
            device.expect_same(operation, operand, tensor.device())?;
        }
        if let Some(stream) = self.stream {
            device.expect_same(operation, "stream", stream.device())?;
        }
        let refused = |operand, expected: String, tensor: &Tensor<T>| Error::Shape {
            operation,
            operand,
            expected,
            actual: tensor.shape().to_vec(),
        };
        let &[m, k] = self.x.shape() else { return Err(refused("x", "[M, K], two axes".into(), self.x)) };
        match *self.w.shape() {
            [n, of_w] if of_w == k => Ok([m, n]),
            _ => Err(refused("w", format!("[N, {k}], since x has {k} columns"), self.w)),
        }
    }

    fn check_output(&self, shape: [usize; 2], y: &Tensor<O>) -> Result<()> {
        let operation = F::NAME;
        self.product.device.expect_same(operation, "y", y.device())?;
        y.expect_writable(operation, "y")?;
        if y.shape() != shape {
            let expected = format!("{shape:?}, as x and w give");
            return Err(Error::Shape { operation, operand: "y", expected, actual: y.shape().to_vec() });
        }
        expect_unit_stride(operation, "y", y)?;
        for (other, tensor) in [("x", self.x), ("w", self.w)] {
            if y.span().meets(&tensor.span()) {
                return Err(Error::Overlap { operation, operand: "y", other });
            }
        }
        Ok(())
    }

    fn plan(&self, y: Option<&Tensor<O>>) -> Result<Planned<OwnKernels<F, T>>> {
        Planned::of(&Request {
            operation: F::NAME,
            names: ["x", "w"],
            device: &self.product.device,
            input: T::DTYPE,
            output: O::DTYPE,
            operands: [View::of(self.x), View::of(self.w)],
            leading: &[],
            y: y.map(View::of),
            row_scale: None,
            residual: None,
            adds_y: false,
            mask: None,
            preactivation: None,
            fused: Fused::Own,
            precision: Precision::Full,
            tile: self.tile,
            parts: self.parts,
            has_hopper: self.product.has_hopper,
        })
    }

    fn execute(
        mut self,
        planned: &Planned<OwnKernels<F, T>>,
        [rows, columns]: [usize; 2],
        y: &mut Tensor<O>,
    ) -> Result<()> {
        let stream = self.stream();
        let names = F::Epilogue::NAMES;
        let Resolved { values, used } = resolve(F::NAME, &mut self.operands, names)?;
        for (name, operand, span) in &used {
            self.product.device.expect_same(F::NAME, name, operand.buffer().device())?;
            if y.span().meets(span) {
                return Err(Error::Overlap { operation: F::NAME, operand: "y", other: name });
            }
        }
        let epilogue = F::Epilogue::from_operands(values);
        if let Some(Misfit { operand, is_of_rows, expected, actual }) = epilogue.misfit(rows, columns) {
            let what = if is_of_rows { "row" } else { "column" };
            let expected = format!("{expected} elements, one for each {what} of y");
            return Err(Error::Shape { operation: F::NAME, operand, expected, actual: vec![actual] });
        }
        // No device that runs kernels is planned for the CPU.
        let Planned::Kernels(plan, kernels) = planned else { return Ok(()) };
        let [x, w] = match plan.path.repack {
            [true, true] => repack_both([self.x, self.w], &stream)?,
            [true, false] => [repack(self.x).on(&stream).run()?, self.w.clone()],
            [false, true] => [self.x.clone(), repack(self.w).on(&stream).run()?],
            [false, false] => [self.x.clone(), self.w.clone()],
        };
        let mut operands: Vec<&dyn Operand> = vec![&x, &w, y];
        operands.extend(used.iter().map(|(_, operand, _)| *operand));
        stream.with_operands(&operands, || {
            let matrix = |tensor: &Tensor<T>| {
                let (shape, strides) = (tensor.shape(), tensor.strides());
                tensor.with_axes(0, &[1, shape[0], shape[1]], &[0, strides[0], strides[1]])
            };
            let (x, w) = (matrix(&x), matrix(&w));
            let mut y = y.with_axes(0, &[1, y.shape()[0], y.shape()[1]], &[0, y.strides()[0], 1]);
            let y_arg = y.arg_mut();
            let (m, n, k, parts) = (plan.m, plan.n, plan.k, plan.parts);
            let plain = LinearEpilogue::plain();
            let of_launch =
                Operands { x: &x, w: &w, y: &y, y_arg, m, n, k, parts, epilogue: plain, joined: None };
            // SAFETY: shapes, strides, alignment and device of every operand are checked, here and by the plan, and y is apart from the
            // rest. The epilogue is made of tensors that are only read. Tensors are freed in the order of their home streams, which
            // `with_operands` makes wait for this work.
            unsafe { kernels.launch(&self.product.loaded, &stream, plan.blocks, &of_launch, epilogue) }
        })
    }
}
