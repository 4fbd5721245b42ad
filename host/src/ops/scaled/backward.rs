//! The gradients of scaled linear layers: of X and W, for 8-bit operands and a gradient of 8, 16 or 32 bits.
//!
//! An 8-bit gradient is multiplied as it is where no scale is along the sums. [`linear_scaled`] computes dX = dY W of a
//! transposed copy of W, and dW = dYᵀ X of transposed copies of both, since tensor cores take 8-bit operands along their sums
//! only. A gradient of more bits, and scales along the sums, take the other way: the operands are widened to bf16,
//! which holds every 8-bit number exactly, and the scales are multiplied into the gradient, which is rounded to bf16.

#[cfg(test)]
mod tests;

use float8::{F8E4M3, F8E5M2};
use half::{bf16, f16};

use super::check::check_scale;
use super::{Scale, ScaledInput, ScaledOutput, linear_scaled};
use crate::cpu::FromAccumulator;
use crate::device::DeviceKind;
use crate::error::{Error, Result};
use crate::ops::column_sums::SumElement;
use crate::ops::gemm::{Options, Product, Terms, fp8, implementation_of_views};
use crate::ops::linear::backward::flattened;
use crate::ops::linear::{LinearGradientElement, LinearGradientOutputs, LinearTypes, linear_backward};
use crate::ops::matrix::{has_unit_stride, row_stride};
use crate::ops::rows::{Sizes, as_result_rows, expect_rows, expect_shape, rounded};
use crate::ops::{CHUNK_BYTES, Implementation, cast, expect_result, mul};
use crate::stream::Stream;
use crate::tensor::{Element, Span, Tensor, View};
use crate::trace;

/// The operation's name in errors.
const OPERATION: &str = "linear_scaled_backward";

/// A type of the gradient of a scaled layer's output: f8e4m3, f8e5m2, f16, bf16 or f32.
pub trait ScaledGradient: Element {
    /// The tensor as one of any of these types.
    #[doc(hidden)]
    fn any(tensor: &Tensor<Self>) -> AnyGradient<'_>;
}

/// A gradient of any type.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub enum AnyGradient<'a> {
    E4M3(&'a Tensor<F8E4M3>),
    E5M2(&'a Tensor<F8E5M2>),
    F16(&'a Tensor<f16>),
    Bf16(&'a Tensor<bf16>),
    F32(&'a Tensor<f32>),
}

macro_rules! gradients {
    ($($element:ty, $variant:ident;)*) => {
        $(
            impl ScaledGradient for $element {
                fn any(tensor: &Tensor<Self>) -> AnyGradient<'_> {
                    AnyGradient::$variant(tensor)
                }
            }
        )*
    };
}
gradients! {
    F8E4M3, E4M3;
    F8E5M2, E5M2;
    f16, F16;
    bf16, Bf16;
    f32, F32;
}

impl AnyGradient<'_> {
    fn has_8_bits(&self) -> bool {
        matches!(self, Self::E4M3(_) | Self::E5M2(_))
    }
}

/// The gradients of [`linear_scaled`] for 8-bit `x` `[.., K]`, 8-bit `w` `[N, K]` and `dy` `[.., N]`, the gradient of its product:
///
/// - dx = alpha · (dy_scale · dy) (w_scale · w),
/// - dw = alpha · (dy_scale · dy)ᵀ (x_scale · x),
/// - db, the sum of dy over all rows.
///
/// They are gradients of the numbers that x and w stand for, x_scale · x and w_scale · w. With an activation, dy is the gradient of its argument, which
/// [`activation_backward`](crate::ops::activation_backward) makes of that of the output. dy has 8 bits and a scale, or it is f16, bf16 or f32 without one.
///
/// Of an 8-bit dy, dx is a product of 8-bit numbers unless w has a scale for each row, and dw unless x or dy has. Otherwise, and for any other dy, operands are widened to
/// bf16, and dy with all scales is rounded to bf16. [`implementation`](ScaledBackwardOp::implementation) tells which.
///
/// ```
/// use float8::{F8E4M3, F8E5M2};
/// use ndarray::array;
/// use warpsmith::ops::{self, Scale};
/// use warpsmith::{Device, Tensor};
///
/// let device = Device::cpu();
/// let x = Tensor::from_array(&device, &array![[1.0, 2.0]].mapv(F8E4M3::from_f32))?;
/// let w = Tensor::from_array(&device, &array![[3.0, 4.0], [-5.0, 0.5]].mapv(F8E4M3::from_f32))?;
/// let dy = Tensor::from_array(&device, &array![[8.0, 16.0]].mapv(F8E5M2::from_f32))?;
/// let backward = ops::linear_scaled_backward(&x, &w, &dy).dy_scale(Scale::Tensor(0.125));
/// let gradients = backward.x_scale(Scale::Tensor(4.0)).w_scale(Scale::Tensor(2.0)).run()?;
/// assert_eq!(gradients.dx.to_vec()?, [-14.0, 10.0].map(half::bf16::from_f32));
/// assert_eq!(gradients.dw.to_vec()?, [4.0, 8.0, 8.0, 16.0]);
/// # Ok::<(), warpsmith::Error>(())
/// ```
pub fn linear_scaled_backward<'a, X: ScaledInput, W: ScaledInput, D: ScaledGradient>(
    x: &'a Tensor<X>,
    w: &'a Tensor<W>,
    dy: &'a Tensor<D>,
) -> ScaledBackwardOp<'a, X, W, D> {
    let one = Scale::One;
    ScaledBackwardOp { x, w, dy, x_scale: one, w_scale: one, dy_scale: one, alpha: 1.0, stream: None }
}

/// Gradients of a scaled linear layer that have yet to be computed; see [`linear_scaled_backward`].
#[derive(Clone, Copy, Debug)]
#[must_use = "an operation does nothing until `run`"]
pub struct ScaledBackwardOp<'a, X: Element, W: Element, D: Element> {
    x: &'a Tensor<X>,
    w: &'a Tensor<W>,
    dy: &'a Tensor<D>,
    x_scale: Scale<'a>,
    w_scale: Scale<'a>,
    dy_scale: Scale<'a>,
    alpha: f32,
    stream: Option<&'a Stream>,
}

/// The gradients of a scaled linear layer.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ScaledGradients {
    /// Of x_scale · x, of the shape of x.
    pub dx: Tensor<bf16>,
    /// Of w_scale · w, `[N, K]`.
    pub dw: Tensor<f32>,
}

/// Where [`ScaledBackwardOp::run_into`] writes gradients, in bf16 or f32; what is none is not computed.
///
/// No result may share memory with an operand or with another result.
#[derive(Debug)]
pub struct ScaledGradientOutputs<'o, A: Element, B: Element> {
    /// Of x, of its shape, with contiguous rows.
    pub dx: Option<&'o mut Tensor<A>>,
    /// Of w, `[N, K]`, with contiguous rows.
    pub dw: Option<&'o mut Tensor<B>>,
    /// Of the bias, `[N]`, without gaps. Not of an 8-bit dy: what that sums to has lost most of its bits, so the bias takes the sum of the gradient before it is rounded to 8 bits.
    pub db: Option<&'o mut Tensor<B>>,
    /// Whether dw and db are added to what is there.
    pub adds: bool,
    /// Whether dx is.
    pub adds_dx: bool,
}

// A derived one would ask for it of the element types.
impl<A: Element, B: Element> Default for ScaledGradientOutputs<'_, A, B> {
    fn default() -> Self {
        Self { dx: None, dw: None, db: None, adds: false, adds_dx: false }
    }
}

/// Which gradient.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    X,
    W,
}

impl<'a, X: ScaledInput, W: ScaledInput, D: ScaledGradient> ScaledBackwardOp<'a, X, W, D> {
    /// What the numbers of x are multiplied with.
    pub fn x_scale(self, scale: Scale<'a>) -> Self {
        Self { x_scale: scale, ..self }
    }

    /// What the numbers of w are multiplied with.
    pub fn w_scale(self, scale: Scale<'a>) -> Self {
        Self { w_scale: scale, ..self }
    }

    /// What the numbers of an 8-bit dy are multiplied with.
    pub fn dy_scale(self, scale: Scale<'a>) -> Self {
        Self { dy_scale: scale, ..self }
    }

    /// What the layer's product was multiplied with beside the scales. 1 unless it is set.
    pub fn alpha(self, alpha: f32) -> Self {
        Self { alpha, ..self }
    }

    /// Runs on `stream` instead of the device's default stream.
    pub fn on(self, stream: &'a Stream) -> Self {
        Self { stream: Some(stream), ..self }
    }

    /// Computes the gradients of x, in bf16, and of w, in f32. On a GPU the work may still be under way when this returns.
    ///
    /// # Errors
    ///
    /// [`Error::Shape`], [`Error::Stride`], [`Error::DeviceMismatch`] and [`Error::SizeLimit`] if an operand does not fit.
    /// [`Error::Argument`] if a dy that has not 8 bits has a scale. [`Error::UnsupportedDevice`] if no kernel runs on the
    /// device. Otherwise whatever allocating the results, loading kernels and launching them may return.
    pub fn run(&self) -> Result<ScaledGradients> {
        self.check()?;
        let stream = self.stream();
        let mut dx = Tensor::uninit_on(&stream, self.x.shape())?;
        let mut dw = Tensor::uninit_on(&stream, self.w.shape())?;
        self.run_into(ScaledGradientOutputs {
            dx: Some(&mut dx),
            dw: Some(&mut dw),
            ..ScaledGradientOutputs::default()
        })?;
        Ok(ScaledGradients { dx, dw })
    }

    /// Computes gradients into tensors of the caller's.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run); [`Error::Shape`], [`Error::Stride`], [`Error::DeviceMismatch`], [`Error::ReadOnly`] and [`Error::Overlap`] if a result does not fit;
    /// [`Error::Argument`] if the bias's is asked for of an 8-bit dy.
    pub fn run_into<A, B>(&self, outputs: ScaledGradientOutputs<'_, A, B>) -> Result<()>
    where
        bf16: LinearTypes<A> + LinearTypes<B>,
        A: ScaledOutput + FromAccumulator<f32>,
        B: ScaledOutput + SumElement,
    {
        let _range = trace::operation(OPERATION);
        let sizes = self.check()?;
        self.check_outputs(sizes, &outputs)?;
        let stream = self.stream();
        let ScaledGradientOutputs { dx, dw, db, adds, adds_dx } = outputs;
        if let Some(db) = db {
            self.sums(&stream, db, adds)?;
        }
        if let Some(dx) = dx {
            if self.is_scaled(Side::X) {
                let w = self.w.swap_axes(0, 1)?;
                match D::any(self.dy) {
                    AnyGradient::E4M3(dy) => self.scaled_dx(dy, &w, &stream, dx, adds_dx)?,
                    AnyGradient::E5M2(dy) => self.scaled_dx(dy, &w, &stream, dx, adds_dx)?,
                    AnyGradient::F16(_) | AnyGradient::Bf16(_) | AnyGradient::F32(_) => {}
                }
            } else {
                let a = flattened(&self.wide_gradient(Side::X, &stream)?, &stream)?;
                let b = wide(self.w, &stream)?.swap_axes(0, 1)?;
                let mut to = as_result_rows(OPERATION, "dx", dx)?;
                self.product(Side::X, [a, b], &stream, &mut to, adds_dx)?;
            }
        }
        let Some(dw) = dw else { return Ok(()) };
        if !self.is_scaled(Side::W) {
            let a = flattened(&self.wide_gradient(Side::W, &stream)?, &stream)?.swap_axes(0, 1)?;
            let b = flattened(&wide(self.x, &stream)?, &stream)?.swap_axes(0, 1)?;
            return self.product(Side::W, [a, b], &stream, dw, adds);
        }
        let x = flattened(self.x, &stream)?.swap_axes(0, 1)?;
        match D::any(self.dy) {
            AnyGradient::E4M3(dy) => self.scaled_dw(dy, &x, &stream, dw, adds),
            AnyGradient::E5M2(dy) => self.scaled_dw(dy, &x, &stream, dw, adds),
            AnyGradient::F16(_) | AnyGradient::Bf16(_) | AnyGradient::F32(_) => Ok(()),
        }
    }

    /// Which implementation [`run`](Self::run) would take for the products. Operands that are transposed or widened, and a gradient that is multiplied with scales, count as
    /// copies.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run), for the operands.
    pub fn implementation(&self) -> Result<Implementation> {
        let sizes = self.check()?;
        let device = self.dy.device();
        let (m, n, k) = (sizes.rows, sizes.columns, self.w.shape()[1]);
        if device.kind() == DeviceKind::Cpu {
            return Ok(if m * n * k == 0 && self.x.is_empty() && self.w.is_empty() {
                Implementation::Empty
            } else {
                Implementation::Cpu
            });
        }
        let stream = self.stream();
        let of_side = |side: Side| -> Result<Implementation> {
            if self.is_scaled(side) {
                return match D::any(self.dy) {
                    AnyGradient::E4M3(dy) => self.scaled_implementation(side, dy, &stream),
                    AnyGradient::E5M2(dy) => self.scaled_implementation(side, dy, &stream),
                    AnyGradient::F16(_) | AnyGradient::Bf16(_) | AnyGradient::F32(_) => {
                        Ok(Implementation::Empty)
                    }
                };
            }
            // New tensors without gaps.
            let (shapes, strides) = match side {
                Side::X => ([[m, n], [k, n]], [[n, 1], [1, k]]),
                Side::W => ([[n, m], [k, m]], [[1, n], [1, k]]),
            };
            let view = |at: usize| View {
                element: bf16::DTYPE,
                address: 1 << 8,
                shape: &shapes[at],
                strides: &strides[at],
            };
            let product = (OPERATION, self.names(side), [view(0), view(1)], &[][..]);
            let one = match side {
                Side::X => {
                    let options = self.options::<bf16>(side, &stream, false);
                    implementation_of_views::<bf16, bf16>(device, product, &options)?
                }
                Side::W => {
                    let options = self.options::<f32>(side, &stream, false);
                    implementation_of_views::<bf16, f32>(device, product, &options)?
                }
            };
            let copies = one.copies() as usize + 1 + usize::from(self.changes_dy(side));
            Ok(one.with_copies(copies))
        };
        Ok(of_side(Side::X)?.then(of_side(Side::W)?))
    }

    fn stream(&self) -> Stream {
        self.stream.cloned().unwrap_or_else(|| self.dy.device().default_stream())
    }

    /// The operands of a gradient in errors.
    fn names(&self, side: Side) -> [&'static str; 2] {
        ["dy", if side == Side::X { "w" } else { "x" }]
    }

    /// The scale of the operand that dy is multiplied with.
    fn other_scale(&self, side: Side) -> Scale<'a> {
        if side == Side::X { self.w_scale } else { self.x_scale }
    }

    /// Whether 8-bit operands are multiplied: no scale is along the sums.
    fn is_scaled(&self, side: Side) -> bool {
        let is_along = |scale: Scale<'_>| matches!(scale, Scale::Rows(_));
        let along_sums = is_along(self.other_scale(side)) || side == Side::W && is_along(self.dy_scale);
        D::any(self.dy).has_8_bits() && !along_sums
    }

    /// Whether a product of bf16 reads something else than dy.
    fn changes_dy(&self, side: Side) -> bool {
        let has_scales = self.dy_scale.tensor().is_some() || self.other_scale(side).tensor().is_some();
        has_scales || !matches!(D::any(self.dy), AnyGradient::Bf16(_))
    }

    /// The factor of a gradient that is known on the host.
    fn factor(&self, side: Side) -> f32 {
        let scales = f64::from(self.dy_scale.factor()) * f64::from(self.other_scale(side).factor());
        (f64::from(self.alpha) * scales) as f32
    }

    /// Checks devices, shapes and strides of all operands; the sizes of dy.
    fn check(&self) -> Result<Sizes> {
        let (x, w, dy) = (self.x, self.w, self.dy);
        let device = dy.device();
        let shape = |operand, expected: String, actual: &[usize]| Error::Shape {
            operation: OPERATION,
            operand,
            expected,
            actual: actual.to_vec(),
        };
        let Some((&k, leading)) = x.shape().split_last() else {
            return Err(shape("x", "[.., K], at least one axis".into(), x.shape()));
        };
        let &[n, w_k] = w.shape() else {
            return Err(shape("w", format!("[N, {k}], two axes"), w.shape()));
        };
        if w_k != k {
            return Err(shape("w", format!("[N, {k}], since x has {k} columns"), w.shape()));
        }
        let full = [leading, &[n]].concat();
        expect_shape(OPERATION, "dy", dy.shape(), &full, "the layer's output")?;
        let sizes = Sizes::of(OPERATION, "dy", &full)?;
        device.expect_same(OPERATION, "x", x.device())?;
        device.expect_same(OPERATION, "w", w.device())?;
        if let Some(stream) = self.stream {
            device.expect_same(OPERATION, "stream", stream.device())?;
        }
        for (name, scale, operand, leading) in [
            ("x_scale", self.x_scale, "x", leading),
            ("w_scale", self.w_scale, "w", &[n][..]),
            ("dy_scale", self.dy_scale, "dy", leading),
        ] {
            if let Some(tensor) = scale.tensor() {
                device.expect_same(OPERATION, name, tensor.device())?;
            }
            check_scale(OPERATION, name, scale, operand, leading)?;
        }
        if !D::any(dy).has_8_bits() && !matches!(self.dy_scale, Scale::One) {
            return Err(Error::Argument {
                operation: OPERATION,
                argument: "dy_scale",
                expected: "none, since dy has not 8 bits".into(),
                actual: format!("one, of a dy of {}", D::DTYPE),
            });
        }
        Ok(sizes)
    }

    fn check_outputs<A, B>(&self, sizes: Sizes, outputs: &ScaledGradientOutputs<'_, A, B>) -> Result<()>
    where
        A: Element,
        B: SumElement,
    {
        let device = self.dy.device();
        let ScaledGradientOutputs { dx, dw, db, .. } = outputs;
        let mut others: Vec<(&'static str, Span<'_>)> =
            vec![("x", self.x.span()), ("w", self.w.span()), ("dy", self.dy.span())];
        let scales = [("x_scale", self.x_scale), ("w_scale", self.w_scale), ("dy_scale", self.dy_scale)];
        others.extend(scales.iter().filter_map(|(name, scale)| Some((*name, scale.tensor()?.span()))));
        let apart = |operand, span: &Span<'_>, others: &[(&'static str, Span<'_>)]| match others
            .iter()
            .find(|(_, other)| span.meets(other))
        {
            Some(&(other, _)) => Err(Error::Overlap { operation: OPERATION, operand, other }),
            None => Ok(()),
        };
        if let Some(dx) = dx {
            expect_rows(OPERATION, "dx", *dx, device, (self.x.shape(), "x"))?;
            apart("dx", &dx.span(), &others)?;
            others.push(("dx", dx.span()));
        }
        if let Some(dw) = dw {
            expect_rows(OPERATION, "dw", *dw, device, (self.w.shape(), "w"))?;
            apart("dw", &dw.span(), &others)?;
            others.push(("dw", dw.span()));
        }
        let Some(db) = db else { return Ok(()) };
        if D::any(self.dy).has_8_bits() {
            return Err(Error::Argument {
                operation: OPERATION,
                argument: "db",
                expected: "none, since dy has 8 bits: the sum of the gradient before it was rounded to them"
                    .into(),
                actual: "one".into(),
            });
        }
        expect_result(OPERATION, "db", *db, device, &[sizes.columns], "w")?;
        apart("db", &db.span(), &others)
    }

    /// dx = dy w for 8-bit dy, of w transposed.
    fn scaled_dx<G: ScaledInput, A: ScaledOutput>(
        &self,
        dy: &Tensor<G>,
        w: &Tensor<W>,
        stream: &Stream,
        dx: &mut Tensor<A>,
        adds: bool,
    ) -> Result<()> {
        let product = linear_scaled(dy, w).output::<A>().x_scale(self.dy_scale).w_scale(self.w_scale);
        product.alpha(self.alpha).beta(if adds { 1.0 } else { 0.0 }).on(stream).run_into(dx)
    }

    /// dw = dyᵀ x for 8-bit dy, of x transposed.
    fn scaled_dw<G: ScaledInput, B: ScaledOutput>(
        &self,
        dy: &Tensor<G>,
        x: &Tensor<X>,
        stream: &Stream,
        dw: &mut Tensor<B>,
        adds: bool,
    ) -> Result<()> {
        let dy = flattened(dy, stream)?.swap_axes(0, 1)?;
        let product = linear_scaled(&dy, x).output::<B>().x_scale(self.dy_scale).w_scale(self.x_scale);
        product.alpha(self.alpha).beta(if adds { 1.0 } else { 0.0 }).on(stream).run_into(dw)
    }

    fn scaled_implementation<G: ScaledInput>(
        &self,
        side: Side,
        dy: &Tensor<G>,
        stream: &Stream,
    ) -> Result<Implementation> {
        match side {
            Side::X => linear_scaled(dy, &self.w.swap_axes(0, 1)?).on(stream).implementation(),
            Side::W => {
                let turned = |rows: usize, columns: usize| ([rows, columns], [1, rows]);
                // Where there is no view as a matrix, a copy without gaps is one.
                let (m, n) = (dy.len() / self.w.shape()[0].max(1), self.w.shape()[0]);
                let matrices = dy.flatten_leading().and_then(|dy| Ok((dy, self.x.flatten_leading()?)));
                match matrices {
                    Ok((dy, x)) => {
                        let (dy, x) = (dy.swap_axes(0, 1)?, x.swap_axes(0, 1)?);
                        linear_scaled(&dy, &x).output::<f32>().on(stream).implementation()
                    }
                    Err(_) => {
                        let (shape, strides) = turned(n, m);
                        let dy = Tensor::<G>::uninit_on(stream, [m, n])?.with_axes(0, &shape, &strides);
                        let k = self.w.shape()[1];
                        let (shape, strides) = turned(k, m);
                        let x = Tensor::<X>::uninit_on(stream, [m, k])?.with_axes(0, &shape, &strides);
                        linear_scaled(&dy, &x).output::<f32>().on(stream).implementation()
                    }
                }
            }
        }
    }

    fn options<'o, Y: Element>(&self, side: Side, stream: &'o Stream, adds: bool) -> Options<'o, bf16, Y> {
        let terms = Terms { beta: if adds { 1.0 } else { 0.0 }, ..Terms::default() };
        Options { alpha: self.factor(side), stream: Some(stream), terms, ..Options::new() }
    }

    /// A product of widened operands.
    fn product<Y>(
        &self,
        side: Side,
        [a, b]: [Tensor<bf16>; 2],
        stream: &Stream,
        to: &mut Tensor<Y>,
        adds: bool,
    ) -> Result<()>
    where
        bf16: LinearTypes<Y>,
        Y: Element + FromAccumulator<f32>,
    {
        let options = self.options::<Y>(side, stream, adds);
        let (names, output_shape) = (self.names(side), to.shape().to_vec());
        let product = Product {
            operation: OPERATION,
            names,
            a,
            b,
            leading: Vec::new(),
            output_shape,
            options: &options,
        };
        product.run_into(to)
    }

    /// dy with the scales that tensors have, in bf16.
    fn wide_gradient(&self, side: Side, stream: &Stream) -> Result<Tensor<bf16>> {
        let leading = &self.dy.shape()[..self.dy.rank() - 1];
        let of_rows = |scale: Scale<'a>| match scale {
            Scale::Rows(scale) => scale.reshape(leading).map(Some),
            other => Ok(other.tensor().cloned()),
        };
        let of_dy = of_rows(self.dy_scale)?;
        let (rows, columns) = match side {
            Side::X => (of_dy, self.w_scale.tensor().cloned()),
            Side::W => (both_scales([of_dy, of_rows(self.x_scale)?], stream)?, None),
        };
        let scales = [rows.as_ref(), columns.as_ref()];
        match D::any(self.dy) {
            AnyGradient::E4M3(dy) => self.with_scales(&wide(dy, stream)?, scales, stream),
            AnyGradient::E5M2(dy) => self.with_scales(&wide(dy, stream)?, scales, stream),
            AnyGradient::Bf16(dy) if scales.iter().all(Option::is_none) => Ok(dy.clone()),
            AnyGradient::Bf16(dy) => self.with_scales(dy, scales, stream),
            AnyGradient::F16(dy) => self.with_scales(&cast::<f32>(dy).on(stream).run()?, scales, stream),
            AnyGradient::F32(dy) => self.with_scales(dy, scales, stream),
        }
    }

    fn with_scales<O>(
        &self,
        dy: &Tensor<O>,
        [rows, columns]: [Option<&Tensor<f32>>; 2],
        stream: &Stream,
    ) -> Result<Tensor<bf16>>
    where
        bf16: LinearTypes<O>,
        O: LinearGradientElement,
    {
        let [x, w] = self.no_columns(stream)?;
        let backward = linear_backward(&x, &w, dy).named(OPERATION).on(stream);
        backward.row_scale(rows).column_scale(columns).dz()
    }

    /// The sums of dy over its rows.
    fn sums<B>(&self, stream: &Stream, db: &mut Tensor<B>, adds: bool) -> Result<()>
    where
        bf16: LinearTypes<B>,
        B: SumElement + FromAccumulator<f32>,
    {
        fn of<O, B>(
            [x, w]: &[Tensor<bf16>; 2],
            dy: &Tensor<O>,
            stream: &Stream,
            db: &mut Tensor<B>,
            adds: bool,
        ) -> Result<()>
        where
            bf16: LinearTypes<O> + LinearTypes<B>,
            O: LinearGradientElement,
            B: SumElement + FromAccumulator<f32>,
        {
            let backward = linear_backward(x, w, dy).named(OPERATION).on(stream);
            backward.run_into(LinearGradientOutputs { db: Some(db), adds, ..Default::default() })
        }
        let none = self.no_columns(stream)?;
        match D::any(self.dy) {
            AnyGradient::F16(dy) => of::<f32, B>(&none, &cast::<f32>(dy).on(stream).run()?, stream, db, adds),
            AnyGradient::Bf16(dy) => of::<bf16, B>(&none, dy, stream, db, adds),
            AnyGradient::F32(dy) => of::<f32, B>(&none, dy, stream, db, adds),
            AnyGradient::E4M3(_) | AnyGradient::E5M2(_) => Ok(()),
        }
    }

    /// Operands of a layer without columns: what its gradient begins with depends on none.
    fn no_columns(&self, stream: &Stream) -> Result<[Tensor<bf16>; 2]> {
        let mut shape = self.x.shape().to_vec();
        if let Some(columns) = shape.last_mut() {
            *columns = 0;
        }
        Ok([Tensor::uninit_on(stream, shape)?, Tensor::uninit_on(stream, [self.w.shape()[0], 0])?])
    }
}

/// The product of two scales of rows, each for all or for each.
fn both_scales(scales: [Option<Tensor<f32>>; 2], stream: &Stream) -> Result<Option<Tensor<f32>>> {
    let (a, b) = match scales {
        [Some(a), Some(b)] => (a, b),
        [a, b] => return Ok(a.or(b)),
    };
    // The one of each row first, whose rows have a column.
    let (each, other) = if a.shape() == [1] { (b, a) } else { (a, b) };
    let shape = each.shape().to_vec();
    let column = each.reshape([each.len(), 1])?;
    let other = if other.len() == 1 { other.reshape([1])? } else { other.reshape([other.len(), 1])? };
    mul(&column, &other).on(stream).run()?.reshape(shape).map(Some)
}

/// An 8-bit tensor in bf16.
fn wide<T: ScaledInput>(tensor: &Tensor<T>, stream: &Stream) -> Result<Tensor<bf16>> {
    let shape = tensor.shape();
    if tensor.device().kind() == DeviceKind::Cpu {
        let numbers: Vec<f32> = tensor.to_vec()?.into_iter().map(|number| number.to_f32()).collect();
        return Tensor::from_slice(tensor.device(), &rounded::<bf16>(&numbers), shape);
    }
    let columns = shape.last().copied().unwrap_or(1);
    let rows = tensor.len().checked_div(columns).unwrap_or(0);
    if rows == 0 {
        return Tensor::uninit_on(stream, shape);
    }
    let is_aligned = |matrix: Tensor<T>| {
        let place = matrix.device_address() | row_stride(&matrix);
        has_unit_stride(&matrix) && place.is_multiple_of(CHUNK_BYTES as u64)
    };
    let is_copied = !tensor.flatten_leading().is_ok_and(is_aligned);
    let halves = fp8::widened(stream, tensor, is_copied, [rows as u32, columns as u32])?;
    cast::<bf16>(&halves.slice(1, 0..columns)?).on(stream).run()?.reshape(shape)
}
