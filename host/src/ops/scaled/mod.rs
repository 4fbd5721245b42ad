//! `Y = act(alpha · x_scale · w_scale · X Wᵀ + b)` for 8-bit floating-point X and W: the linear operation of quantised layers.
//!
//! [`linear_scaled`] starts a builder; [`ScaledLinearOp::run`] and [`ScaledLinearOp::run_into`] check everything first (`plan`), then
//! launch kernels (`launch`), or run the CPU implementation.
//!
//! An 8-bit number says little without its scale: what it stands for is the number times a scale of the tensor, or of its row. A
//! row of W is a column of Y, so both kinds of scales are factors of whole rows and columns of Y, and cost as little as a
//! bias.
//!
//! Products are exact and are added up in f32: on Hopper's tensor cores 128 at a time, whose sums of 8-bit products keep 13 bits.

mod launch;
mod plan;
pub mod select;

pub use launch::{ScaledInput, ScaledOutput};
pub use select::Fp8Tile;

use half::{bf16, f16};
use ndarray::{ArrayViewMut2, Ix1, Ix2};

use crate::cpu::{self, ScaledOptions, Scales};
use crate::device::cpu::out_of_memory;
use crate::error::{Error, Result};
use crate::memory::HostBytes;
use crate::ops::{Activation, Implementation};
use crate::stream::{Operand, Stream};
use crate::tensor::{DType, Tensor};
use plan::Plan;

/// The operation's name in errors.
const OPERATION: &str = "linear_scaled";

/// What the numbers of an 8-bit tensor are multiplied with to be what they stand for.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub enum Scale<'a> {
    /// One: they stand for themselves.
    #[default]
    One,
    /// One number for the tensor.
    Tensor(f32),
    /// One number for the tensor, in the device's memory: of shape `[1]`.
    Device(&'a Tensor<f32>),
    /// A number for each row of the tensor: of shape `[rows]`.
    Rows(&'a Tensor<f32>),
}

impl<'a> Scale<'a> {
    /// The tensor of scales, if there is one.
    fn tensor(self) -> Option<&'a Tensor<f32>> {
        match self {
            Self::Device(tensor) | Self::Rows(tensor) => Some(tensor),
            Self::One | Self::Tensor(_) => None,
        }
    }

    /// The factor that is known on the host.
    fn factor(self) -> f32 {
        match self {
            Self::Tensor(factor) => factor,
            _ => 1.0,
        }
    }
}

/// A bias: a vector of one of the output types.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Bias<'a> {
    /// Of f16.
    F16(&'a Tensor<f16>),
    /// Of bf16.
    Bf16(&'a Tensor<bf16>),
    /// Of f32.
    F32(&'a Tensor<f32>),
}

macro_rules! bias_from {
    ($($element:ty => $variant:ident),*) => {
        $(
            impl<'a> From<&'a Tensor<$element>> for Bias<'a> {
                fn from(tensor: &'a Tensor<$element>) -> Self {
                    Self::$variant(tensor)
                }
            }
        )*
    };
}
bias_from!(f16 => F16, bf16 => Bf16, f32 => F32);

impl<'a> Bias<'a> {
    fn dtype(self) -> DType {
        match self {
            Self::F16(_) => DType::F16,
            Self::Bf16(_) => DType::Bf16,
            Self::F32(_) => DType::F32,
        }
    }
}

/// The linear operation on 8-bit `x` `[.., K]` and `w` `[N, K]`, whose types may differ:
/// `y = act(alpha · x_scale · w_scale · x wᵀ + bias)`, `[.., N]`, in bf16 unless [`output`](ScaledLinearOp::output) says
/// another type.
///
/// Both may have any strides. Rows that are contiguous, evenly spaced and start at multiples of 16 bytes are read where they lie on
/// Hopper; all else is copied first.
///
/// ```
/// use float8::F8E4M3;
/// use ndarray::array;
/// use warpsmith::ops::{self, Scale};
/// use warpsmith::{Device, Tensor};
///
/// let device = Device::cpu();
/// let x = Tensor::from_array(&device, &array![[1.0, 2.0]].mapv(F8E4M3::from_f32))?;
/// let w = Tensor::from_array(&device, &array![[3.0, 4.0], [-5.0, 0.5]].mapv(F8E4M3::from_f32))?;
/// let rows = Tensor::from_array(&device, &array![0.5f32, 2.0])?;
/// let op = ops::linear_scaled(&x, &w).output::<f32>();
/// let y = op.x_scale(Scale::Tensor(4.0)).w_scale(Scale::Rows(&rows)).run()?;
/// assert_eq!(y.to_vec()?, [22.0, -32.0]);
/// # Ok::<(), warpsmith::Error>(())
/// ```
pub fn linear_scaled<'a, X: ScaledInput, W: ScaledInput>(
    x: &'a Tensor<X>,
    w: &'a Tensor<W>,
) -> ScaledLinearOp<'a, X, W, bf16> {
    ScaledLinearOp {
        x,
        w,
        x_scale: Scale::One,
        w_scale: Scale::One,
        bias: None,
        alpha: 1.0,
        activation: Activation::None,
        stream: None,
        tile: None,
        output: std::marker::PhantomData,
    }
}

/// A linear operation on 8-bit operands that has yet to run; see [`linear_scaled`].
#[derive(Debug)]
#[must_use = "an operation does nothing until `run` or `run_into`"]
pub struct ScaledLinearOp<'a, X: ScaledInput, W: ScaledInput, O: ScaledOutput> {
    x: &'a Tensor<X>,
    w: &'a Tensor<W>,
    x_scale: Scale<'a>,
    w_scale: Scale<'a>,
    bias: Option<Bias<'a>>,
    alpha: f32,
    activation: Activation,
    stream: Option<&'a Stream>,
    tile: Option<Fp8Tile>,
    output: std::marker::PhantomData<O>,
}

impl<'a, X: ScaledInput, W: ScaledInput, O: ScaledOutput> ScaledLinearOp<'a, X, W, O> {
    /// What the numbers of x are multiplied with.
    pub fn x_scale(self, scale: Scale<'a>) -> Self {
        Self { x_scale: scale, ..self }
    }

    /// What the numbers of w are multiplied with.
    pub fn w_scale(self, scale: Scale<'a>) -> Self {
        Self { w_scale: scale, ..self }
    }

    /// Adds `bias` `[N]`, of the output's type, to every row.
    pub fn bias(self, bias: impl Into<Bias<'a>>) -> Self {
        Self { bias: Some(bias.into()), ..self }
    }

    /// Multiplies the product by `alpha`, beside the scales, before the bias is added. 1 unless it is set.
    pub fn alpha(self, alpha: f32) -> Self {
        Self { alpha, ..self }
    }

    /// Applies `activation` last, before rounding.
    pub fn activation(self, activation: Activation) -> Self {
        Self { activation, ..self }
    }

    /// Rounds the result to `P`: f16, bf16 or f32.
    pub fn output<P: ScaledOutput>(self) -> ScaledLinearOp<'a, X, W, P> {
        let Self { x, w, x_scale, w_scale, bias, alpha, activation, stream, tile, .. } = self;
        let output = std::marker::PhantomData;
        ScaledLinearOp { x, w, x_scale, w_scale, bias, alpha, activation, stream, tile, output }
    }

    /// Runs on `stream` instead of the device's default stream.
    pub fn on(self, stream: &'a Stream) -> Self {
        Self { stream: Some(stream), ..self }
    }

    /// Takes this tile instead of the one that [`select::select`] chooses; it must run on the device. The CPU implementation has no
    /// such tiles and ignores it.
    pub fn tile(self, tile: impl Into<Option<Fp8Tile>>) -> Self {
        Self { tile: tile.into(), ..self }
    }

    /// Runs the operation into a new tensor of shape [.., N]. On a GPU the work may still be under way when this returns.
    ///
    /// # Errors
    ///
    /// [`Error::Shape`], [`Error::Stride`], [`Error::Type`], [`Error::DeviceMismatch`] and [`Error::SizeLimit`] if an operand does
    /// not fit; [`Error::Argument`] if the [tile](Self::tile) that was asked for does not run here; whatever allocating the output, loading the
    /// kernels and launching them may return.
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

    /// Which implementation [`run`](Self::run) would take for the product, and how many operands it has copied first.
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

    /// The factor of the product that is known on the host.
    fn factor(&self) -> f32 {
        (f64::from(self.alpha) * f64::from(self.x_scale.factor()) * f64::from(self.w_scale.factor())) as f32
    }

    /// The operands beside x, w and y.
    fn vectors(&self) -> Vec<(&'static str, &'a dyn Operand)> {
        let scale = |name, scale: Scale<'a>| scale.tensor().map(|tensor| (name, tensor as &dyn Operand));
        let bias = self.bias.map(|bias| match bias {
            Bias::F16(tensor) => ("bias", tensor as &dyn Operand),
            Bias::Bf16(tensor) => ("bias", tensor as &dyn Operand),
            Bias::F32(tensor) => ("bias", tensor as &dyn Operand),
        });
        [scale("x_scale", self.x_scale), scale("w_scale", self.w_scale), bias].into_iter().flatten().collect()
    }

    fn execute(&self, plan: &Plan<X, W, O>, stream: &Stream, y: &mut Tensor<O>) -> Result<()> {
        match &plan.launch {
            _ if y.is_empty() => Ok(()),
            None => self.execute_on_cpu(plan, stream, y),
            Some(launch) => launch.run(self, (&plan.x, &plan.w), stream, y),
        }
    }

    /// Works on snapshots of the inputs and on a block of its own for the result, so no lock is held meanwhile.
    fn execute_on_cpu(&self, plan: &Plan<X, W, O>, stream: &Stream, y: &mut Tensor<O>) -> Result<()> {
        let mut result = HostBytes::zeroed(plan.m * plan.n * size_of::<O>())
            .ok_or_else(|| out_of_memory(OPERATION, plan.m * plan.n * size_of::<O>()))?;
        {
            let axes = |shape: ndarray::ShapeError| Error::Argument {
                operation: OPERATION,
                argument: "shape",
                expected: "two axes of an operand, one of a vector".into(),
                actual: shape.to_string(),
            };
            let x = plan.x.in_place(|_| true).map_or_else(|| plan.x.copy(stream), Ok)?;
            let w = plan.w.in_place(|_| true).map_or_else(|| plan.w.copy(stream), Ok)?;
            let (x, w) = (x.host_view(OPERATION)?, w.host_view(OPERATION)?);
            let x = x.array().into_dimensionality::<Ix2>().map_err(axes)?;
            let w = w.array().into_dimensionality::<Ix2>().map_err(axes)?;
            let bias = plan.bias.map(|bias| bias.host_view(OPERATION)).transpose()?;
            let bias = bias.as_ref().map(|bias| bias.array().into_dimensionality::<Ix1>());
            let bias = bias.transpose().map_err(axes)?;
            let scales = |scale: Scale<'_>| -> Result<Scales> {
                Ok(match scale {
                    Scale::One | Scale::Tensor(_) => Scales::default(),
                    Scale::Device(tensor) => {
                        tensor.to_vec()?.first().map_or(Scales::default(), |&s| Scales::All(s))
                    }
                    Scale::Rows(tensor) => Scales::Rows(tensor.to_vec()?),
                })
            };
            let options = ScaledOptions {
                factor: self.factor(),
                x_scale: scales(self.x_scale)?,
                w_scale: scales(self.w_scale)?,
                activation: self.activation,
            };
            let elements = bytemuck::cast_slice_mut(result.as_mut_slice());
            let result = ArrayViewMut2::from_shape((plan.m, plan.n), elements).map_err(axes)?;
            cpu::linear_scaled::<X, W, O, f32, O>(x, w, bias, &options, result)?;
        }
        y.put_host_bytes(OPERATION, result)
    }
}
