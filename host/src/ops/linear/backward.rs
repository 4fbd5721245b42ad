//! The gradients of linear layers: of X, W, the bias and the residual.
//!
//! One pass over dY makes dZ = dY ⊙ act′(z), with the scales of rows and columns, and sums it over the rows for the bias. Both products read its result,
//! which has the type of the operands. Where there is nothing to do to dY, the products read dY itself.

mod check;
mod pass;
#[cfg(test)]
pub(crate) mod tests;

use std::any::Any;

use half::{bf16, f16};
use warpsmith_dsl::float::{Bf16, F16};
use warpsmith_dsl::launch::Kernel;
use warpsmith_dsl::linear_gradient::LinearGradientParams;
use warpsmith_dsl::rows::AnyRows;
use warpsmith_kernels::linear_gradient::linear_gradient as linear_gradient_kernel;

use super::{LinearInput, LinearTypes};
use crate::cpu::FromAccumulator;
use crate::device::DeviceKind;
#[cfg(doc)]
use crate::error::Error;
use crate::error::Result;
use crate::ops::column_sums::{SumElement, launch_of};
use crate::ops::gemm::{Options, Product, Terms, implementation_of_views};
use crate::ops::rows::{RowElement, Sizes, is_copied, kind, rows_of};
use crate::ops::{Activation, Implementation, Precision};
use crate::stream::Stream;
use crate::tensor::{Element, Tensor, View};
use crate::trace;
use pass::Plan;

/// The operation's name in errors.
const OPERATION: &str = "linear_backward";
/// An element type of a layer's output that has kernels for its gradient: f16, bf16 or f32.
pub trait LinearGradientElement: RowElement {
    /// The kernel for aligned operands.
    #[doc(hidden)]
    type Vector: Kernel<Args = (LinearGradientParams<Self::Device>,)>;
    /// The kernel for any.
    #[doc(hidden)]
    type Any: Kernel<Args = (LinearGradientParams<Self::Device>,)>;
}

impl LinearGradientElement for f16 {
    type Vector = linear_gradient_kernel<F16, 8, 1, true>;
    type Any = linear_gradient_kernel<F16, 4, 4, false>;
}
impl LinearGradientElement for bf16 {
    type Vector = linear_gradient_kernel<Bf16, 8, 1, true>;
    type Any = linear_gradient_kernel<Bf16, 4, 4, false>;
}
impl LinearGradientElement for f32 {
    type Vector = linear_gradient_kernel<f32, 4, 1, true>;
    type Any = linear_gradient_kernel<f32, 4, 4, false>;
}

/// The gradients of [`linear`](crate::ops::linear()) for `x` `[.., K]`, `w` `[N, K]` and `dy` `[.., N]`, the gradient of its output.
///
/// With y = act(z), z = alpha · r ⊙ c ⊙ (x wᵀ) + bias + beta · residual and dz = dy ⊙ act′(z), they are
///
/// - dx = alpha · (r ⊙ c ⊙ dz) w,
/// - dw = alpha · (r ⊙ c ⊙ dz)ᵀ x,
/// - db, the sum of dz over all rows, in f32 before dz is rounded,
/// - dresidual = beta · dz.
///
/// The options are those that the layer was run with. `dy` has the type of the layer's output, which may be f32 where x and w have 16 bits. Sums are in f32, in an
/// order that depends on the sizes and the GPU's architecture, but not on its number of multiprocessors; r ⊙ c ⊙ dz is rounded to the type of x.
///
/// ```
/// use ndarray::array;
/// use warpsmith::ops::{self, Activation};
/// use warpsmith::{Device, Tensor};
///
/// let device = Device::cpu();
/// let x = Tensor::from_array(&device, &array![[1.0f32, 2.0]])?;
/// let w = Tensor::from_array(&device, &array![[3.0f32, 4.0], [-5.0, 0.0]])?;
/// let mut mask = Tensor::zeros(&device, [1, 1])?;
/// let y = ops::linear(&x, &w).activation(Activation::Relu).relu_mask(&mut mask).run()?;
/// assert_eq!(y.to_vec()?, [11.0, 0.0]);
///
/// let dy = Tensor::from_array(&device, &array![[2.0f32, 7.0]])?;
/// let backward = ops::linear_backward(&x, &w, &dy).activation(Activation::Relu).relu_mask(&mask);
/// let gradients = backward.run()?;
/// assert_eq!(gradients.dx.to_vec()?, [6.0, 8.0]);
/// assert_eq!(gradients.dw.to_vec()?, [2.0, 4.0, 0.0, 0.0]);
/// assert_eq!(gradients.db.to_vec()?, [2.0, 0.0]);
///
/// // dX now, dW later, both from one dZ.
/// let dz = backward.dz()?;
/// let products = ops::linear_backward(&x, &w, &dz);
/// assert_eq!(products.dx()?.to_vec()?, [6.0, 8.0]);
/// assert_eq!(products.dw::<f32>()?.to_vec()?, [2.0, 4.0, 0.0, 0.0]);
/// # Ok::<(), warpsmith::Error>(())
/// ```
pub fn linear_backward<'a, T, O>(
    x: &'a Tensor<T>,
    w: &'a Tensor<T>,
    dy: &'a Tensor<O>,
) -> LinearBackwardOp<'a, T, O>
where
    T: LinearInput + LinearTypes<O> + RowElement,
    O: LinearGradientElement,
{
    LinearBackwardOp {
        operation: OPERATION,
        x,
        w,
        dy,
        activation: Activation::None,
        preactivation: None,
        output: None,
        mask: None,
        row_scale: None,
        column_scale: None,
        alpha: 1.0,
        beta: None,
        precision: Precision::default(),
        stream: None,
    }
}

/// Gradients of a linear layer that have yet to be computed; see [`linear_backward`].
#[derive(Clone, Copy, Debug)]
#[must_use = "an operation does nothing until `run`"]
pub struct LinearBackwardOp<'a, T: Element, O: Element> {
    /// The operation's name in errors.
    operation: &'static str,
    x: &'a Tensor<T>,
    w: &'a Tensor<T>,
    dy: &'a Tensor<O>,
    activation: Activation,
    preactivation: Option<&'a Tensor<O>>,
    output: Option<&'a Tensor<O>>,
    mask: Option<&'a Tensor<u32>>,
    row_scale: Option<&'a Tensor<f32>>,
    column_scale: Option<&'a Tensor<f32>>,
    alpha: f32,
    /// The residual's factor, if there is a residual.
    beta: Option<f32>,
    precision: Precision,
    stream: Option<&'a Stream>,
}

/// The gradients of a linear layer.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LinearGradients<T: Element, O: Element> {
    /// Of x, of its shape.
    pub dx: Tensor<T>,
    /// Of w, `[N, K]`.
    pub dw: Tensor<f32>,
    /// Of the bias, `[N]`.
    pub db: Tensor<f32>,
    /// Of the residual, of the shape of dy, if there is one.
    pub dresidual: Option<Tensor<O>>,
}

/// Where [`LinearBackwardOp::run_into`] writes gradients; what is none is not computed.
///
/// No result may share memory with an operand or with another result, but `dz` may be the same view as dy or the preactivation, if it has their type.
#[derive(Debug)]
pub struct LinearGradientOutputs<'o, T: Element, O: Element, W: Element> {
    /// Of x, of its shape, with contiguous rows.
    pub dx: Option<&'o mut Tensor<T>>,
    /// Of w, `[N, K]`, with contiguous rows, in the type of x or in f32.
    pub dw: Option<&'o mut Tensor<W>>,
    /// Of the bias, `[N]`, without gaps.
    pub db: Option<&'o mut Tensor<W>>,
    /// Of the residual, of the shape of dy, with contiguous rows.
    pub dresidual: Option<&'o mut Tensor<O>>,
    /// r ⊙ c ⊙ dz, of the shape of dy, with contiguous rows: what [`LinearBackwardOp::dz`] returns.
    pub dz: Option<&'o mut Tensor<T>>,
    /// Whether dw and db are added to what is there.
    pub adds: bool,
    /// Whether dx is.
    pub adds_dx: bool,
}

// A derived one would ask for it of the element types.
impl<T: Element, O: Element, W: Element> Default for LinearGradientOutputs<'_, T, O, W> {
    fn default() -> Self {
        Self { dx: None, dw: None, db: None, dresidual: None, dz: None, adds: false, adds_dx: false }
    }
}

/// Which gradients are wanted.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Wanted {
    pub(crate) dx: bool,
    pub(crate) dw: bool,
    pub(crate) db: bool,
    pub(crate) dresidual: bool,
    pub(crate) dz: bool,
}

impl Wanted {
    fn products(self) -> bool {
        self.dx || self.dw
    }
}

/// What runs for a request that has been checked.
pub(crate) struct Checked {
    pub(crate) sizes: Sizes,
    stream: Stream,
}

impl<'a, T, O> LinearBackwardOp<'a, T, O>
where
    T: LinearInput + LinearTypes<O> + RowElement,
    O: LinearGradientElement,
{
    /// The same as a part of another operation, which errors name.
    pub(crate) fn named(mut self, operation: &'static str) -> Self {
        self.operation = operation;
        self
    }

    /// The activation of the layer. Its slopes are taken at the [`preactivation`](Self::preactivation); those of ReLU may be known from the
    /// [`relu_mask`](Self::relu_mask) or from the [`output`](Self::output) instead.
    pub fn activation(mut self, activation: Activation) -> Self {
        self.activation = activation;
        self
    }

    /// The argument of the activation, of the shape of dy, as the layer has stored it. Without an activation it is not read.
    pub fn preactivation(mut self, z: impl Into<Option<&'a Tensor<O>>>) -> Self {
        self.preactivation = z.into();
        self
    }

    /// Where the argument of ReLU was above 0, as the layer has stored it: of the shape of dy, but with ⌈N / 32⌉ words for the last axis.
    pub fn relu_mask(mut self, mask: impl Into<Option<&'a Tensor<u32>>>) -> Self {
        self.mask = mask.into();
        self
    }

    /// The layer's output, of the shape of dy, which is above 0 where the argument of ReLU was. A result that was rounded to 0 counts as 0.
    pub fn output(mut self, y: impl Into<Option<&'a Tensor<O>>>) -> Self {
        self.output = y.into();
        self
    }

    /// What the product was multiplied with. 1 unless it is set.
    pub fn alpha(mut self, alpha: f32) -> Self {
        self.alpha = alpha;
        self
    }

    /// What rows of the product were multiplied with: `[1]`, `[M]` or one number for each row, as the layer takes it. It has no gradient here.
    pub fn row_scale(mut self, scale: impl Into<Option<&'a Tensor<f32>>>) -> Self {
        self.row_scale = scale.into();
        self
    }

    /// What columns of the product were multiplied with: `[N]` or `[1]`. It has no gradient here.
    pub fn column_scale(mut self, scale: impl Into<Option<&'a Tensor<f32>>>) -> Self {
        self.column_scale = scale.into();
        self
    }

    /// The factor that a residual was added with, so that [`run`](Self::run) returns its gradient. 1 unless it is set.
    pub fn residual(mut self, beta: f32) -> Self {
        self.beta = Some(beta);
        self
    }

    /// How exact the products have to be; the accuracy of the operands' type unless it is set.
    pub fn precision(mut self, precision: Precision) -> Self {
        self.precision = precision;
        self
    }

    /// Runs on `stream` instead of the device's default stream.
    pub fn on(mut self, stream: &'a Stream) -> Self {
        self.stream = Some(stream);
        self
    }

    /// Computes all gradients. On a GPU the work may still be under way when this returns.
    ///
    /// # Errors
    ///
    /// [`Error::Shape`], [`Error::Stride`], [`Error::DeviceMismatch`] and [`Error::SizeLimit`] if an operand does not fit; [`Error::Argument`] if an activation's
    /// slopes are not known, or by several operands; whatever allocating the results, loading kernels and launching them may return.
    pub fn run(&self) -> Result<LinearGradients<T, O>> {
        let Checked { sizes, stream } = self.check()?;
        let mut dx = Tensor::uninit_on(&stream, self.x.shape())?;
        let mut dw = Tensor::uninit_on(&stream, self.w.shape())?;
        let mut db = Tensor::uninit_on(&stream, [sizes.columns])?;
        let dresidual = self.beta.map(|_| Tensor::uninit_on(&stream, self.dy.shape()));
        let mut dresidual = dresidual.transpose()?;
        self.run_into(LinearGradientOutputs {
            dx: Some(&mut dx),
            dw: Some(&mut dw),
            db: Some(&mut db),
            dresidual: dresidual.as_mut(),
            ..LinearGradientOutputs::default()
        })?;
        Ok(LinearGradients { dx, dw, db, dresidual })
    }

    /// dx alone.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run).
    pub fn dx(&self) -> Result<Tensor<T>> {
        let Checked { stream, .. } = self.check()?;
        let mut dx = Tensor::uninit_on(&stream, self.x.shape())?;
        self.run_into(LinearGradientOutputs::<T, O, f32> { dx: Some(&mut dx), ..Default::default() })?;
        Ok(dx)
    }

    /// dw alone, in the type of x or in f32.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run).
    pub fn dw<W>(&self) -> Result<Tensor<W>>
    where
        T: LinearTypes<W>,
        W: SumElement + FromAccumulator<f32>,
    {
        let Checked { stream, .. } = self.check()?;
        let mut dw = Tensor::uninit_on(&stream, self.w.shape())?;
        self.run_into(LinearGradientOutputs { dw: Some(&mut dw), ..Default::default() })?;
        Ok(dw)
    }

    /// r ⊙ c ⊙ dz alone, rounded to the type of x. [`linear_backward`] takes it in the place of dy, with alpha and no other options, for dx and dw.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run).
    pub fn dz(&self) -> Result<Tensor<T>> {
        let Checked { stream, .. } = self.check()?;
        let mut dz = Tensor::uninit_on(&stream, self.dy.shape())?;
        self.run_into(LinearGradientOutputs::<T, O, f32> { dz: Some(&mut dz), ..Default::default() })?;
        Ok(dz)
    }

    /// Computes gradients into tensors of the caller's.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run); [`Error::Shape`], [`Error::Stride`], [`Error::DeviceMismatch`], [`Error::ReadOnly`] and [`Error::Overlap`] if a result does not fit.
    pub fn run_into<W>(&self, outputs: LinearGradientOutputs<'_, T, O, W>) -> Result<()>
    where
        T: LinearTypes<W>,
        W: SumElement + FromAccumulator<f32>,
    {
        let _range = trace::operation(self.operation);
        let Checked { sizes, stream } = self.check()?;
        self.check_outputs(sizes, &outputs)?;
        let LinearGradientOutputs { dx, dw, db, dresidual, dz, adds, adds_dx } = outputs;
        let wanted = Wanted {
            dx: dx.is_some(),
            dw: dw.is_some(),
            db: db.is_some(),
            dresidual: dresidual.is_some(),
            dz: dz.is_some(),
        };
        let mut new =
            self.has_new_dz(wanted).then(|| Tensor::uninit_on(&stream, self.dy.shape())).transpose()?;
        let mut written = dz.or(new.as_mut());
        if sizes.are_none() {
            // The sum over no rows.
            if let (Some(db), false) = (db, adds) {
                db.fill_zero_on(&stream)?;
            }
        } else if self.has_pass(wanted) {
            self.pass(sizes, &stream, written.as_deref_mut(), dresidual, db, adds)?;
        }
        if !wanted.products() {
            return Ok(());
        }
        let gradient = match (written, self.dy_as_input()) {
            (Some(written), _) => written.clone(),
            (None, Some(dy)) => dy.clone(),
            // Of another type there is always a new one.
            (None, None) => return Ok(()),
        };
        if let Some(dx) = dx {
            let options = self.options(adds_dx);
            self.dx_product(&gradient, &options)?.run_into(dx)?;
        }
        if let Some(dw) = dw {
            let options = self.options(adds);
            let gradient = flattened(&gradient, &stream)?;
            let x = flattened(self.x, &stream)?;
            self.dw_product(&gradient, &x, &options)?.run_into(dw)?;
        }
        Ok(())
    }

    /// Which implementation [`run`](Self::run) would take.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run), for the operands.
    pub fn implementation(&self) -> Result<Implementation> {
        let wanted = Wanted { dx: true, dw: true, db: true, dresidual: self.beta.is_some(), dz: false };
        self.implementation_of::<f32>(wanted)
    }

    /// That for some of the gradients, into new tensors.
    pub(crate) fn implementation_of<W>(&self, wanted: Wanted) -> Result<Implementation>
    where
        T: LinearTypes<W>,
        W: SumElement + FromAccumulator<f32>,
    {
        let Checked { sizes, .. } = self.check()?;
        let device = self.dy.device();
        if device.kind() == DeviceKind::Cpu {
            let is_empty = sizes.are_none() && self.x.is_empty() && self.w.is_empty();
            return Ok(if is_empty { Implementation::Empty } else { Implementation::Cpu });
        }
        let mut all = Implementation::Empty;
        let mut copies = 0;
        // New tensors are aligned as much as any chunk, and have no gaps.
        let new = |kind, columns: usize| AnyRows { base: 1 << 8, stride: columns as u64, kind, offset: 0.0 };
        if !sizes.are_none() && self.has_pass(wanted) {
            let in_place = |tensor: &Tensor<O>| match (is_copied(tensor), tensor.flatten_leading()) {
                (false, Ok(matrix)) => rows_of(&matrix),
                _ => new(kind::<O>(), sizes.columns),
            };
            let operands = [Some(self.dy), self.slopes_at().map(|(_, z)| z)].into_iter().flatten();
            let mut rows: Vec<AnyRows> = operands.clone().map(in_place).collect();
            copies += operands.filter(|tensor| is_copied(tensor)).count();
            rows.extend(self.has_new_dz(wanted).then(|| new(kind::<T>(), sizes.columns)));
            rows.extend(wanted.dresidual.then(|| new(kind::<O>(), sizes.columns)));
            let plan = Plan::new::<O>(sizes, &rows);
            all = Implementation::kernel(device, plan.kernel::<O>(), plan.blocks());
            if wanted.db && plan.strips > 1 {
                let (name, blocks) = launch_of::<W>(sizes.columns);
                all = all.then(Implementation::kernel(device, name, blocks));
            }
        }
        let dense = [sizes.rows, sizes.columns];
        let dense_strides = [sizes.columns, 1];
        let dense = View { element: T::DTYPE, address: 1 << 8, shape: &dense, strides: &dense_strides };
        // What the products read in the place of dZ.
        let in_place = self.dy_as_input().filter(|_| !self.has_new_dz(wanted));
        let [n, k] = [self.w.shape()[0], self.w.shape()[1]];
        if wanted.dx {
            let (gradient, w) = (in_place.map(with_two_axes).transpose()?, self.w.swap_axes(0, 1)?);
            let gradient = gradient.as_ref().map_or(dense, View::of);
            let leading = &gradient.shape[..gradient.shape.len() - 2];
            let operands = [gradient, View::of(&w)];
            let product = (self.operation, ["dy", "w"], operands, leading);
            let options = self.options::<T>(false);
            all = all.then(implementation_of_views::<T, T>(device, product, &options)?);
        }
        if wanted.dw {
            let turned = |tensor: &Tensor<T>| tensor.flatten_leading().and_then(|flat| flat.swap_axes(0, 1));
            let (gradient, x) = (in_place.map(turned), turned(self.x));
            copies += usize::from(matches!(gradient, Some(Err(_)))) + usize::from(x.is_err());
            let (shapes, strides) = ([[n, sizes.rows], [k, sizes.rows]], [[1, n], [1, k]]);
            let new = |at: usize| View { shape: &shapes[at], strides: &strides[at], ..dense };
            let gradient = match &gradient {
                Some(Ok(gradient)) => View::of(gradient),
                _ => new(0),
            };
            let operands = [gradient, x.as_ref().map_or_else(|_| new(1), View::of)];
            let product = (self.operation, ["dy", "x"], operands, &[][..]);
            let options = self.options::<W>(false);
            all = all.then(implementation_of_views::<T, W>(device, product, &options)?);
        }
        let copies = all.copies() as usize + copies;
        Ok(all.with_copies(copies))
    }

    /// The operand at which slopes are taken.
    fn slopes_at(&self) -> Option<(&'static str, &'a Tensor<O>)> {
        if self.activation == Activation::None {
            return None;
        }
        let output = self.output.map(|y| ("output", y));
        self.preactivation.map(|z| ("preactivation", z)).or(output)
    }

    /// Whether dY and what the products read of it differ.
    fn changes_dy(&self) -> bool {
        let has_slopes = self.activation != Activation::None;
        has_slopes || self.row_scale.is_some() || self.column_scale.is_some() || T::DTYPE != O::DTYPE
    }

    /// Whether products read a tensor of dZ that nobody else wants.
    fn has_new_dz(&self, wanted: Wanted) -> bool {
        !wanted.dz && wanted.products() && self.changes_dy()
    }

    /// Whether there is a pass over dY.
    fn has_pass(&self, wanted: Wanted) -> bool {
        wanted.db || wanted.dresidual || wanted.dz || self.has_new_dz(wanted)
    }

    /// dY, if it has the type of x.
    fn dy_as_input(&self) -> Option<&'a Tensor<T>> {
        (self.dy as &'a dyn Any).downcast_ref()
    }

    fn options<Y: Element>(&self, adds: bool) -> Options<'a, T, Y> {
        let terms = Terms { beta: if adds { 1.0 } else { 0.0 }, ..Terms::default() };
        let (alpha, precision, stream) = (self.alpha, self.precision, self.stream);
        Options { alpha, precision, stream, terms, ..Options::new() }
    }

    /// dx = alpha · dZ W.
    fn dx_product<'o>(
        &self,
        gradient: &Tensor<T>,
        options: &'o Options<'o, T, T>,
    ) -> Result<Product<'o, T, T>> {
        let a = with_two_axes(gradient)?;
        let leading = a.shape()[..a.rank() - 2].to_vec();
        let (b, output_shape) = (self.w.swap_axes(0, 1)?, self.x.shape().to_vec());
        Ok(Product { operation: self.operation, names: ["dy", "w"], a, b, leading, output_shape, options })
    }

    /// dw = alpha · dZᵀ X, of matrices.
    fn dw_product<'o, W>(
        &self,
        gradient: &Tensor<T>,
        x: &Tensor<T>,
        options: &'o Options<'o, T, W>,
    ) -> Result<Product<'o, T, W>>
    where
        T: LinearTypes<W>,
        W: Element + FromAccumulator<f32>,
    {
        let [a, b] = [gradient.swap_axes(0, 1)?, x.swap_axes(0, 1)?];
        let output_shape = self.w.shape().to_vec();
        let leading = Vec::new();
        Ok(Product { operation: self.operation, names: ["dy", "x"], a, b, leading, output_shape, options })
    }
}

/// A tensor as a matrix: a view, or a copy where there is none.
pub(crate) fn flattened<T: Element>(tensor: &Tensor<T>, stream: &Stream) -> Result<Tensor<T>> {
    match tensor.flatten_leading() {
        Ok(matrix) => Ok(matrix),
        Err(_) => tensor.contiguous_on(stream)?.flatten_leading(),
    }
}

/// The same tensor, a vector as a matrix of one row.
fn with_two_axes<T: Element>(tensor: &Tensor<T>) -> Result<Tensor<T>> {
    if tensor.rank() == 1 { tensor.reshape([1, tensor.len()]) } else { Ok(tensor.clone()) }
}
