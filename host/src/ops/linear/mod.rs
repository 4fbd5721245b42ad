//! `Y = act(scale · X Wᵀ + b)`: the fused linear operation.
//!
//! [`linear`] starts a builder; [`LinearOp::run`] and [`LinearOp::run_into`] check everything first (`plan`), then launch a
//! kernel (`instances`) that [`select::select`] has chosen, or run the CPU implementation.
//!
//! Accumulation is in f32, the result is rounded once. f32 inputs are multiplied at f32 accuracy (as three TF32 products on
//! tensor cores).

mod instances;
mod plan;
pub mod select;

pub use instances::{LinearInput, LinearTypes};
pub use select::Tile;

use ndarray::{ArrayViewMut2, Ix1, Ix2};

use crate::cpu::{self, FromAccumulator, LinearOptions};
use crate::device::cpu::out_of_memory;
use crate::error::{Error, Result};
use crate::memory::HostBytes;
use crate::ops::{Activation, Implementation};
use crate::stream::{Operand, Stream};
use crate::tensor::{Element, Tensor};
use plan::Plan;

/// The operation's name in errors.
const OPERATION: &str = "linear";

/// The linear operation on `x` `[.., K]` and `w` `[N, K]`: `y = act(scale · x wᵀ + bias)`, `[.., N]`.
///
/// ```
/// use ndarray::array;
/// use warpsmith::{Device, Tensor, ops, ops::Activation};
///
/// let device = Device::cpu();
/// let x = Tensor::from_array(&device, &array![[1.0f32, 2.0]])?;
/// let w = Tensor::from_array(&device, &array![[3.0f32, 4.0], [-5.0, 0.0]])?;
/// let b = Tensor::from_array(&device, &array![0.5f32, 1.0])?;
/// let y = ops::linear(&x, &w).bias(&b).activation(Activation::Relu).run()?;
/// assert_eq!(y.to_vec()?, [11.5, 0.0]);
/// # Ok::<(), warpsmith::Error>(())
/// ```
pub fn linear<'a, T: LinearInput>(x: &'a Tensor<T>, w: &'a Tensor<T>) -> LinearOp<'a, T, T> {
    with_output(x, w)
}

/// As [`linear`], with any output type that the inputs' type has kernels for.
pub(crate) fn with_output<'a, T, O>(x: &'a Tensor<T>, w: &'a Tensor<T>) -> LinearOp<'a, T, O>
where
    T: LinearTypes<O>,
    O: Element + FromAccumulator<f32>,
{
    LinearOp {
        x,
        w,
        bias: None,
        scale: 1.0,
        activation: Activation::None,
        stream: None,
        tile: None,
        output: std::marker::PhantomData,
    }
}

/// A linear operation that has yet to run; see [`linear`].
#[derive(Debug)]
#[must_use = "an operation does nothing until `run` or `run_into`"]
pub struct LinearOp<'a, T: Element, O: Element> {
    x: &'a Tensor<T>,
    w: &'a Tensor<T>,
    bias: Option<&'a Tensor<T>>,
    scale: f32,
    activation: Activation,
    stream: Option<&'a Stream>,
    tile: Option<Tile>,
    output: std::marker::PhantomData<O>,
}

impl<'a, T, O> LinearOp<'a, T, O>
where
    T: LinearTypes<O>,
    O: Element + FromAccumulator<f32>,
{
    /// Adds `bias` `[N]` to every row; `None` adds nothing.
    pub fn bias(self, bias: impl Into<Option<&'a Tensor<T>>>) -> Self {
        Self { bias: bias.into(), ..self }
    }

    /// Applies `activation` last, before rounding.
    pub fn activation(self, activation: Activation) -> Self {
        Self { activation, ..self }
    }

    /// Multiplies the product by `scale` before the bias is added. 1 unless it is set.
    pub fn scale(self, scale: f32) -> Self {
        Self { scale, ..self }
    }

    /// Rounds the result to `P` instead of the inputs' type; `f32` is the alternative.
    pub fn output<P>(self) -> LinearOp<'a, T, P>
    where
        T: LinearTypes<P>,
        P: Element + FromAccumulator<f32>,
    {
        let Self { x, w, bias, scale, activation, stream, tile, .. } = self;
        LinearOp { x, w, bias, scale, activation, stream, tile, output: std::marker::PhantomData }
    }

    /// Runs on `stream` instead of the device's default stream.
    pub fn on(self, stream: &'a Stream) -> Self {
        Self { stream: Some(stream), ..self }
    }

    /// Takes this tile instead of the one that [`select::select`] chooses; it must run on the device. The CPU implementation has no such tiles and
    /// ignores it.
    pub fn tile(self, tile: impl Into<Option<Tile>>) -> Self {
        Self { tile: tile.into(), ..self }
    }

    /// Runs the operation into a new tensor of shape [.., N]. On a GPU the work may still be under way when this returns.
    ///
    /// # Errors
    ///
    /// [`Error::Shape`], [`Error::Stride`], [`Error::DeviceMismatch`] and [`Error::SizeLimit`] if an operand does not fit;
    /// whatever allocating the output, loading the kernel and launching it may return.
    pub fn run(&self) -> Result<Tensor<O>> {
        let plan = Plan::new(self)?;
        let stream = self.stream();
        let mut y = Tensor::uninit_on(&stream, &plan.output_shape)?;
        self.execute(&plan, &stream, &mut y)?;
        Ok(y)
    }

    /// Runs the operation into `y`, which may be a view with any row stride.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run), and [`Error::Overlap`] if `y` shares memory with an input: if the spans from first to last
    /// element of the two meet, even if their elements alternate.
    pub fn run_into(&self, y: &mut Tensor<O>) -> Result<()> {
        let plan = Plan::new(self)?;
        plan.check_output(self, y)?;
        self.execute(&plan, &self.stream(), y)
    }

    /// Which implementation [`run`](Self::run) would take.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run), for the operands.
    pub fn implementation(&self) -> Result<Implementation> {
        Ok(Plan::new(self)?.implementation)
    }

    fn stream(&self) -> Stream {
        self.stream.cloned().unwrap_or_else(|| self.x.device().default_stream())
    }

    fn execute(&self, plan: &Plan<T, O>, stream: &Stream, y: &mut Tensor<O>) -> Result<()> {
        match &plan.launch {
            _ if y.is_empty() => Ok(()),
            None => self.execute_on_cpu(plan, y),
            Some(launch) => {
                let mut flat = plan::flatten("y", y)?;
                let y_arg = flat.arg_mut();
                let arguments = launch.operands(plan, self, &flat, y_arg);
                let mut operands: Vec<&dyn Operand> = vec![self.x, self.w, y];
                operands.extend(self.bias.map(|bias| bias as &dyn Operand));
                stream.with_operands(&operands, || {
                    // SAFETY: the plan has checked shapes, strides, alignment and device of every operand, and that `y` is
                    // apart from the inputs. Tensors are freed in the order of their home streams, which
                    // `with_operands` makes wait for this work.
                    unsafe { launch.instance.launch(self.x.device(), stream, launch.blocks, &arguments) }
                })
            }
        }
    }

    /// Works on snapshots of the inputs and on a block of its own for the result, so no lock is held meanwhile.
    fn execute_on_cpu(&self, plan: &Plan<T, O>, y: &mut Tensor<O>) -> Result<()> {
        let mut result = HostBytes::zeroed(plan.m * plan.n * size_of::<O>())
            .ok_or_else(|| out_of_memory(OPERATION, plan.m * plan.n * size_of::<O>()))?;
        {
            let (x, w) = (plan.x.host_view(OPERATION)?, self.w.host_view(OPERATION)?);
            let bias = self.bias.map(|bias| bias.host_view(OPERATION)).transpose()?;
            let (x, w) = (x.array(), w.array());
            let bias = bias.as_ref().map(|bias| bias.array());
            let two = |shape: ndarray::ShapeError| Error::Argument {
                operation: OPERATION,
                argument: "shape",
                expected: "two axes".into(),
                actual: shape.to_string(),
            };
            let x = x.into_dimensionality::<Ix2>().map_err(two)?;
            let w = w.into_dimensionality::<Ix2>().map_err(two)?;
            let bias = bias.map(|bias| bias.into_dimensionality::<Ix1>()).transpose().map_err(two)?;
            let options = LinearOptions { scale: self.scale, activation: self.activation };
            let elements = bytemuck::cast_slice_mut(result.as_mut_slice());
            let result = ArrayViewMut2::from_shape((plan.m, plan.n), elements).map_err(two)?;
            cpu::linear::<T, f32, O>(x, w, bias, options, result)?;
        }
        y.put_host_bytes(OPERATION, result)
    }
}
