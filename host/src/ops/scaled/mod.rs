//! `Y = act(alpha · x_scale · w_scale · X Wᵀ + b + beta · R)` for 8-bit floating-point X and W: the linear operation of quantised layers.
//!
//! [`linear_scaled`] starts a builder; [`ScaledLinearOp::run`] and [`ScaledLinearOp::run_into`] check everything first (`check`), then
//! launch the kernels that [`gemm`](crate::ops::gemm) has planned, or run the CPU implementation.
//!
//! An 8-bit number says little without its scale: what it stands for is the number times a scale of the tensor, or of its row. A
//! row of W is a column of Y, so both kinds of scales are factors of whole rows and columns of Y, and cost as little as a
//! bias.
//!
//! Products are exact and are added up in f32: by the tensor cores for 8-bit numbers 128 at a time, in sums that keep 13 bits.

mod backward;
mod check;

pub use crate::ops::gemm::variants::{ScaledInput, ScaledOutput};
pub use backward::{
    ScaledBackwardOp, ScaledGradient, ScaledGradientOutputs, ScaledGradients, linear_scaled_backward,
};

use half::bf16;
use ndarray::{ArrayView1, ArrayViewMut2, Ix1, Ix2};
use warpsmith_dsl::epilogue::LinearEpilogue;
use warpsmith_dsl::launch::Global;

use crate::cpu::{self, LinearTerms};
use crate::error::Result;
use crate::ops::gemm::{Planned, Terms, Tile, epilogue_methods, factor_methods, fp8, two_axes, zeroed};
use crate::ops::matrix::{as_matrix, has_unit_stride};
use crate::ops::{Activation, Implementation};
use crate::stream::{Operand, Stream};
use crate::tensor::Tensor;
use crate::trace;
use check::Checked;

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
    /// A number for each row of the tensor: of shape `[rows]`, or of the tensor's but for the last axis.
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

/// The linear operation on 8-bit `x` `[.., K]` and `w` `[N, K]`, whose types may differ:
/// `y = act(alpha · x_scale · w_scale · x wᵀ + bias + …)`, `[.., N]`, in bf16 unless [`output`](ScaledLinearOp::output) says
/// another type.
///
/// Both may have any strides. Rows that are contiguous, evenly spaced and start at multiples of 16 bytes are read in place from compute
/// capability 8.9 on; all else is copied first.
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
        parts: None,
        terms: Terms::default(),
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
    bias: Option<&'a Tensor<O>>,
    alpha: f32,
    activation: Activation,
    stream: Option<&'a Stream>,
    tile: Option<Tile>,
    parts: Option<u32>,
    terms: Terms<'a, O>,
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

    factor_methods!();
    epilogue_methods!(O, O);

    /// Rounds the result to `P`: f16, bf16 or f32. It comes before the options that take tensors of the output's type, the bias too.
    pub fn output<P: ScaledOutput>(self) -> ScaledLinearOp<'a, X, W, P> {
        let Self { x, w, x_scale, w_scale, bias, alpha, activation, stream, tile, parts, terms } = self;
        let mut terms = terms.output();
        if bias.is_some() {
            terms.of_another_output.get_or_insert("bias");
        }
        ScaledLinearOp { x, w, x_scale, w_scale, bias: None, alpha, activation, stream, tile, parts, terms }
    }

    /// Takes this tile instead of the one that [`select`](crate::ops::gemm::select) chooses; it must run on the device. The CPU implementation has no
    /// such tiles and ignores it.
    pub fn tile(self, tile: impl Into<Option<Tile>>) -> Self {
        Self { tile: tile.into(), ..self }
    }

    /// Has sums be computed in so many parts, at least 1, instead of as many as the model says: for tests and measurements. Tiles whose kernels compute
    /// whole sums only ignore it.
    #[doc(hidden)]
    pub fn parts(self, parts: impl Into<Option<u32>>) -> Self {
        Self { parts: parts.into(), ..self }
    }

    /// Runs the operation into a new tensor of shape [.., N]. On a GPU the work may still be under way when this returns.
    ///
    /// # Errors
    ///
    /// [`Error::Shape`], [`Error::Stride`], [`Error::DeviceMismatch`], [`Error::Overlap`] and [`Error::SizeLimit`] if an
    /// operand does not fit. [`Error::Argument`] if `beta` was set, if the [tile](Self::tile) that was asked for does not run
    /// here, or if an operand of the output's type was given before [`output`](Self::output) changed that.
    /// [`Error::UnsupportedDevice`] if no tile does. Otherwise whatever allocating the output, loading the kernels and
    /// launching them may return.
    ///
    /// [`Error::Shape`]: crate::Error::Shape
    /// [`Error::Stride`]: crate::Error::Stride
    /// [`Error::DeviceMismatch`]: crate::Error::DeviceMismatch
    /// [`Error::Overlap`]: crate::Error::Overlap
    /// [`Error::SizeLimit`]: crate::Error::SizeLimit
    /// [`Error::Argument`]: crate::Error::Argument
    /// [`Error::UnsupportedDevice`]: crate::Error::UnsupportedDevice
    pub fn run(&self) -> Result<Tensor<O>> {
        let _range = trace::operation(OPERATION);
        let checked = Checked::new(self)?;
        self.terms.expect_no_beta(OPERATION)?;
        let stream = self.stream();
        let mut y = Tensor::uninit_on(&stream, &checked.output_shape)?;
        self.execute(&checked, &stream, &mut y)?;
        Ok(y)
    }

    /// Runs the operation into `y`, which may be a view with any row stride.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run), but that [`beta`](Self::beta) may be set, if there is no residual; and
    /// [`Error::Overlap`](crate::Error::Overlap) if `y` shares memory with another operand: if the spans from first to last element of the two
    /// meet, even if their elements alternate. Only a residual may be the same tensor.
    pub fn run_into(&self, y: &mut Tensor<O>) -> Result<()> {
        let _range = trace::operation(OPERATION);
        let checked = Checked::new(self)?;
        checked.check_output(self, y)?;
        self.execute(&checked, &self.stream(), y)
    }

    /// Which implementation [`run`](Self::run) would take for the product, and how many operands it has copied first.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run), for the operands.
    pub fn implementation(&self) -> Result<Implementation> {
        Ok(Checked::new(self)?.planned.implementation(self.x.device()))
    }

    /// Which implementation [`run_into`](Self::run_into) would take for `y`, after the checks that `run_into` makes of it: the same that
    /// [`implementation`](Self::implementation) tells, since every kernel stores any such output, if need be row by row.
    ///
    /// # Errors
    ///
    /// As [`run_into`](Self::run_into), for the operands and `y`.
    pub fn implementation_into(&self, y: &Tensor<O>) -> Result<Implementation> {
        let checked = Checked::new(self)?;
        checked.check_output(self, y)?;
        Ok(checked.planned.implementation(self.x.device()))
    }

    fn stream(&self) -> Stream {
        self.stream.cloned().unwrap_or_else(|| self.x.device().default_stream())
    }

    /// The factor of the product that is known on the host.
    fn factor(&self) -> f32 {
        (f64::from(self.alpha) * f64::from(self.x_scale.factor()) * f64::from(self.w_scale.factor())) as f32
    }

    /// The operands beside x, w and y.
    fn others(&self) -> impl Iterator<Item = &dyn Operand> {
        let scale = |scale: Scale<'a>| scale.tensor().map(|tensor| tensor as &dyn Operand);
        let bias = self.bias.map(|bias| bias as &dyn Operand);
        let vectors = [scale(self.x_scale), scale(self.w_scale), bias];
        vectors.into_iter().flatten().chain(self.terms.operands())
    }

    fn execute(&self, checked: &Checked<O>, stream: &Stream, y: &mut Tensor<O>) -> Result<()> {
        let (plan, kernels) = match &checked.planned {
            Planned::Empty => return Ok(()),
            Planned::Cpu => return self.execute_on_cpu(checked, stream, y),
            Planned::Kernels(plan, kernels) => (plan, kernels),
        };
        let mut flat = as_matrix(OPERATION, "y", y)?;
        let (y_arg, epilogue) = (flat.arg_mut(), self.epilogue(checked, &flat));
        let operands = fp8::Operands { x: self.x, w: self.w, y: &flat, y_arg, epilogue };
        let others: Vec<&dyn Operand> = std::iter::once(&*y as &dyn Operand).chain(self.others()).collect();
        // SAFETY: `check` and the plan have checked shapes, strides and device of every operand, and that what is written is apart from the rest.
        unsafe { kernels.launch(plan, stream, &operands, &others) }
    }

    /// What is done to the product for the matrix `y`.
    fn epilogue(&self, checked: &Checked<O>, y: &Tensor<O>) -> LinearEpilogue<O::Device, O::Device> {
        let vector = |scale: Scale<'_>| {
            let stride = u32::from(matches!(scale, Scale::Rows(_)));
            (scale.tensor().map_or(Global::new(0), Tensor::arg), stride)
        };
        let ((row_scale, row_scale_stride), (column_scale, column_scale_stride)) =
            (vector(self.x_scale), vector(self.w_scale));
        LinearEpilogue {
            bias: self.bias.map_or(Global::new(0), Tensor::arg),
            row_scale,
            column_scale,
            row_scale_stride,
            column_scale_stride,
            alpha: self.factor(),
            activation: self.activation.on_device(),
            ..checked.terms.epilogue(y)
        }
    }

    /// Works on snapshots of the inputs and on blocks of its own for the results, so no lock is held meanwhile.
    fn execute_on_cpu(&self, checked: &Checked<O>, stream: &Stream, y: &mut Tensor<O>) -> Result<()> {
        let shape = (checked.m, checked.n);
        let mut result = zeroed::<O>(OPERATION, y.len())?;
        let mut on_host = self.terms.on_host(OPERATION, y)?;
        {
            let two = |error: ndarray::ShapeError| two_axes(OPERATION, &error);
            let x = in_rows(stream, self.x)?;
            let w = in_rows(stream, self.w)?;
            let (x, w) = (x.host_view(OPERATION)?, w.host_view(OPERATION)?);
            let x = x.array().into_dimensionality::<Ix2>().map_err(two)?;
            let w = w.array().into_dimensionality::<Ix2>().map_err(two)?;
            let bias = self.bias.map(|bias| bias.host_view(OPERATION)).transpose()?;
            let bias = bias.as_ref().map(|bias| bias.array().into_dimensionality::<Ix1>());
            let bias = bias.transpose().map_err(two)?;
            // One number for all is repeated.
            let scales = |scale: Scale<'_>, count: usize| -> Result<Option<Vec<f32>>> {
                let Some(tensor) = scale.tensor() else { return Ok(None) };
                Ok(Some(tensor.to_vec()?.into_iter().cycle().take(count).collect()))
            };
            let (x_scale, w_scale) = (scales(self.x_scale, checked.m)?, scales(self.w_scale, checked.n)?);
            let terms = LinearTerms {
                alpha: self.factor(),
                row_scale: x_scale.as_deref().map(ArrayView1::from),
                column_scale: w_scale.as_deref().map(ArrayView1::from),
                bias,
                activation: self.activation,
                ..on_host.of_matrix(OPERATION, 0, shape)?
            };
            let result = bytemuck::cast_slice_mut(result.as_mut_slice());
            let result = ArrayViewMut2::from_shape(shape, result).map_err(two)?;
            cpu::linear_scaled::<f32, X, W, O, f32, O>(x, w, terms, result)?;
        }
        self.terms.put(OPERATION, on_host)?;
        y.put_host_bytes(OPERATION, result)
    }
}

/// An operand as a matrix of contiguous rows: itself, or a copy.
fn in_rows<T: ScaledInput>(stream: &Stream, operand: &Tensor<T>) -> Result<Tensor<T>> {
    let is_copied = !operand.flatten_leading().is_ok_and(|matrix| has_unit_stride(&matrix));
    fp8::matrix(stream, operand, is_copied)
}
