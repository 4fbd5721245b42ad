//! The gradients of generated low-rank updates, alone and onto a linear operation: of X, and of V, the codes and U of each update.
//!
//! Two products make H = X V and P = dY Uᵀ of all updates, in f32. A pass for each update makes A = s · H ⊙ codes and dH = s · P ⊙ codes of them, rounded to the operands'
//! type, and the gradient of the codes. Further products give dU = Aᵀ dY, dV = Xᵀ dH and dX = dH Vᵀ. Nothing is computed that is not wanted.
//!
//! Onto a linear operation, [`linear_backward`] makes dZ first, and adds dZ W to dX last.

mod check;
mod pass;
#[cfg(test)]
mod tests;

use half::{bf16, f16};
use warpsmith_dsl::launch::Kernel;
use warpsmith_dsl::update_gradient::UpdateGradientParams;
use warpsmith_kernels::update_gradient::update_gradient as update_gradient_kernel;

use super::check::Checked;
use super::operands::{Packed, Updates};
use super::{Update, UpdateInput};
use crate::cpu::FromAccumulator;
use crate::device::DeviceKind;
#[cfg(doc)]
use crate::error::Error;
use crate::error::Result;
use crate::ops::column_sums::{SumElement, launch_of};
use crate::ops::gemm::{Options, Product, Terms, between_launches, implementation_of_views};
use crate::ops::linear::backward::{Wanted as OfBase, flattened};
use crate::ops::linear::{
    LinearBackwardOp, LinearGradientElement, LinearGradientOutputs, LinearTypes, linear_backward,
};
use crate::ops::rows::as_result_rows;
use crate::ops::{Activation, CHUNK_BYTES, Implementation};
use crate::stream::Stream;
use crate::tensor::{Element, Tensor, View};
use crate::trace;
use pass::Plan;

/// The operation's name in errors.
const OPERATION: &str = "generated_update_backward";
/// That onto a linear operation.
const WITH_LINEAR: &str = "linear_with_update_backward";

/// An element type of generated updates that has kernels for their gradients: [`f16`](struct@f16), [`bf16`] or `f32`.
pub trait UpdateGradientElement: UpdateInput + LinearGradientElement + SumElement {
    /// The kernel of what is between the products.
    #[doc(hidden)]
    type Gradient: Kernel<Args = (UpdateGradientParams<Self::Device>,)>;
}

impl UpdateGradientElement for f16 {
    type Gradient = update_gradient_kernel<Self::Device>;
}
impl UpdateGradientElement for bf16 {
    type Gradient = update_gradient_kernel<Self::Device>;
}
impl UpdateGradientElement for f32 {
    type Gradient = update_gradient_kernel<Self::Device>;
}

/// The gradients of [`generated_update`](super::generated_update) for `x` `[.., K1]`, v `[K1, R]`, codes, u `[R, K2]`, and `dy` `[.., K2]`, the gradient of its result.
///
/// With h = x v and p = dy uᵀ they are
///
/// - dx = (scaling · p ⊙ codes) vᵀ, the sum of it for several updates,
/// - dv = xᵀ (scaling · p ⊙ codes),
/// - dcodes = scaling · p ⊙ h, summed over the rows that share a row of codes,
/// - du = (scaling · h ⊙ codes)ᵀ dy.
///
/// h is computed once more. Sums are in f32, in an order that depends on the sizes and the GPU's architecture, but not on its number of multiprocessors;
/// scaling · h ⊙ codes and scaling · p ⊙ codes are rounded to the type of x.
///
/// ```
/// use ndarray::array;
/// use warpsmith::{Device, Tensor, ops};
///
/// let device = Device::cpu();
/// let x = Tensor::from_array(&device, &array![[1.0f32, 2.0], [3.0, -1.0]])?;
/// let v = Tensor::from_array(&device, &array![[1.0f32], [1.0]])?;
/// // One row of codes for both rows of x.
/// let codes = Tensor::from_array(&device, &array![[0.5f32]])?;
/// let u = Tensor::from_array(&device, &array![[10.0f32, 20.0]])?;
/// let dy = Tensor::from_array(&device, &array![[1.0f32, 0.0], [0.0, 1.0]])?;
/// let gradients = ops::generated_update_backward(&x, &v, &codes, &u, 2.0, &dy).run()?;
/// assert_eq!(gradients.dx.to_vec()?, [10.0, 10.0, 20.0, 20.0]);
/// let of_update = &gradients.updates[0];
/// assert_eq!(of_update.dv.to_vec()?, [70.0, 0.0]);
/// assert_eq!(of_update.dcodes.to_vec()?, [2.0 * (10.0 * 3.0 + 20.0 * 2.0)]);
/// assert_eq!(of_update.du.to_vec()?, [3.0, 2.0]);
/// # Ok::<(), warpsmith::Error>(())
/// ```
pub fn generated_update_backward<'a, T: UpdateGradientElement>(
    x: &'a Tensor<T>,
    v: &'a Tensor<T>,
    codes: &'a Tensor<T>,
    u: &'a Tensor<T>,
    scaling: f32,
    dy: &'a Tensor<T>,
) -> UpdateBackwardOp<'a, T> {
    let updates = Updates::Given(vec![Update { v, codes, u, scaling }]);
    UpdateBackwardOp::new(OPERATION, x, None, updates, dy)
}

/// The gradients of [`linear_with_update`](super::linear_with_update) for `x` `[.., K]`, `w` `[N, K]`, an update, and `dy` `[.., N]`, the gradient of its output.
///
/// With y = act(z) and dz = dy ⊙ act′(z), those of the update are as [`generated_update_backward`] says for dz in the place of dy. To dx is added dz w. The gradient of the bias
/// is the sum of dz over all rows, that of the residual is beta · dz. w is frozen: it has no gradient here. dz is rounded to the type of x.
///
/// ```
/// use ndarray::array;
/// use warpsmith::{Device, Tensor, ops, ops::Activation};
///
/// let device = Device::cpu();
/// let x = Tensor::from_array(&device, &array![[1.0f32, 2.0]])?;
/// let w = Tensor::from_array(&device, &array![[3.0f32, 4.0], [-5.0, 0.0]])?;
/// let v = Tensor::from_array(&device, &array![[1.0f32], [1.0]])?;
/// let codes = Tensor::from_array(&device, &array![[2.0f32]])?;
/// let u = Tensor::from_array(&device, &array![[0.5f32, 1.0]])?;
/// let mut mask = Tensor::zeros(&device, [1, 1])?;
/// let forward = ops::linear_with_update(&x, &w, &v, &codes, &u, 1.0).activation(Activation::Relu);
/// assert_eq!(forward.relu_mask(&mut mask).run()?.to_vec()?, [14.0, 1.0]);
///
/// let dy = Tensor::from_array(&device, &array![[1.0f32, 10.0]])?;
/// let backward = ops::linear_with_update_backward(&x, &w, &v, &codes, &u, 1.0, &dy);
/// let gradients = backward.activation(Activation::Relu).relu_mask(&mask).run()?;
/// assert_eq!(gradients.dx.to_vec()?, [-47.0 + 21.0, 4.0 + 21.0]);
/// assert_eq!(gradients.updates[0].du.to_vec()?, [6.0, 60.0]);
/// # Ok::<(), warpsmith::Error>(())
/// ```
pub fn linear_with_update_backward<'a, T: UpdateGradientElement>(
    x: &'a Tensor<T>,
    w: &'a Tensor<T>,
    v: &'a Tensor<T>,
    codes: &'a Tensor<T>,
    u: &'a Tensor<T>,
    scaling: f32,
    dy: &'a Tensor<T>,
) -> UpdateBackwardOp<'a, T> {
    let updates = Updates::Given(vec![Update { v, codes, u, scaling }]);
    UpdateBackwardOp::new(WITH_LINEAR, x, Some(w), updates, dy)
}

/// Gradients of generated updates that have yet to be computed; see [`generated_update_backward`] and [`linear_with_update_backward`].
///
/// Options beside [`and`](Self::and) and [`on`](Self::on) are those of a linear operation: alone, an update has none of them.
#[derive(Debug)]
#[must_use = "an operation does nothing until `run`"]
pub struct UpdateBackwardOp<'a, T: Element> {
    operation: &'static str,
    x: &'a Tensor<T>,
    w: Option<&'a Tensor<T>>,
    updates: Updates<'a, T>,
    dy: &'a Tensor<T>,
    activation: Activation,
    preactivation: Option<&'a Tensor<T>>,
    output: Option<&'a Tensor<T>>,
    mask: Option<&'a Tensor<u32>>,
    /// The residual's factor, if there is a residual.
    beta: Option<f32>,
    stream: Option<&'a Stream>,
}

/// The gradients of generated updates.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct UpdateGradients<T: Element> {
    /// Of x, of its shape.
    pub dx: Tensor<T>,
    /// Of each update, in their order.
    pub updates: Vec<GradientsOfUpdate<T>>,
    /// Of the bias, `[N]`, of a linear operation.
    pub db: Option<Tensor<f32>>,
    /// Of the residual, of the shape of dy, if there is one.
    pub dresidual: Option<Tensor<T>>,
}

/// The gradients of one update's operands, each of its operand's shape.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct GradientsOfUpdate<T: Element> {
    /// Of v.
    pub dv: Tensor<f32>,
    /// Of the codes.
    pub dcodes: Tensor<T>,
    /// Of u.
    pub du: Tensor<f32>,
}

/// Where [`UpdateBackwardOp::run_into`] writes the gradients of one update; what is none is not computed.
#[derive(Debug)]
pub struct UpdateGradientPlaces<'o, W: Element, C: Element> {
    /// Of v, `[K, R]`, with contiguous rows.
    pub dv: Option<&'o mut Tensor<W>>,
    /// Of the codes, of their shape, with contiguous rows.
    pub dcodes: Option<&'o mut Tensor<C>>,
    /// Of u, `[R, N]`, with contiguous rows.
    pub du: Option<&'o mut Tensor<W>>,
}

// A derived one would ask for it of the element types.
impl<W: Element, C: Element> Default for UpdateGradientPlaces<'_, W, C> {
    fn default() -> Self {
        Self { dv: None, dcodes: None, du: None }
    }
}

/// Where [`UpdateBackwardOp::run_into`] writes gradients; what is none is not computed.
///
/// `W` is the type of the gradients of weights, that of x or f32; `C` is that of the gradients of codes, any of f16, bf16 and f32. No result may share memory with an operand or with
/// another result, but `dz` may be the same view as dy or the preactivation, and gradients of codes may be columns of one matrix.
#[derive(Debug)]
pub struct UpdateGradientOutputs<'o, T: Element, W: Element, C: Element> {
    /// Of x, of its shape, with contiguous rows.
    pub dx: Option<&'o mut Tensor<T>>,
    /// Of each update, in their order; or none at all.
    pub updates: Vec<UpdateGradientPlaces<'o, W, C>>,
    /// Of the bias of a linear operation, `[N]`, without gaps.
    pub db: Option<&'o mut Tensor<W>>,
    /// Of the residual, of the shape of dy, with contiguous rows.
    pub dresidual: Option<&'o mut Tensor<T>>,
    /// dz, of the shape of dy, with contiguous rows.
    pub dz: Option<&'o mut Tensor<T>>,
    /// Whether the gradients of v, u and the bias are added to what is there.
    pub adds: bool,
    /// Whether those of codes are.
    pub adds_dcodes: bool,
    /// Whether dx is.
    pub adds_dx: bool,
}

// A derived one would ask for it of the element types.
impl<T: Element, W: Element, C: Element> Default for UpdateGradientOutputs<'_, T, W, C> {
    fn default() -> Self {
        Self {
            dx: None,
            updates: Vec::new(),
            db: None,
            dresidual: None,
            dz: None,
            adds: false,
            adds_dcodes: false,
            adds_dx: false,
        }
    }
}

/// Which gradients of an update are wanted.
#[derive(Clone, Copy, Debug, Default)]
struct OfUpdate {
    dv: bool,
    dcodes: bool,
    du: bool,
}

/// Which gradients are wanted.
#[derive(Clone, Debug, Default)]
struct Wanted {
    dx: bool,
    updates: Vec<OfUpdate>,
    dz: bool,
}

impl Wanted {
    fn of<T: Element, W: Element, C: Element>(outputs: &UpdateGradientOutputs<'_, T, W, C>) -> Self {
        let of_update = |places: &UpdateGradientPlaces<'_, W, C>| OfUpdate {
            dv: places.dv.is_some(),
            dcodes: places.dcodes.is_some(),
            du: places.du.is_some(),
        };
        Self {
            dx: outputs.dx.is_some(),
            updates: outputs.updates.iter().map(of_update).collect(),
            dz: outputs.dz.is_some(),
        }
    }

    fn any(&self, of: impl Fn(&OfUpdate) -> bool) -> bool {
        self.updates.iter().any(of)
    }

    /// Whether H is needed, and whether P is.
    fn sides(&self) -> [bool; 2] {
        let has_h = self.any(|of| of.du || of.dcodes);
        let has_p = self.dx || self.any(|of| of.dv || of.dcodes);
        [has_h, has_p]
    }

    /// Whether any product reads dZ.
    fn products(&self) -> bool {
        self.dx || self.any(|of| of.dv || of.dcodes || of.du)
    }
}

/// What is between the products, of all updates: each `[M, R]`.
struct Between<T: Element> {
    a: Option<Tensor<T>>,
    dh: Option<Tensor<T>>,
}

impl<'a, T: UpdateGradientElement> UpdateBackwardOp<'a, T> {
    fn new(
        operation: &'static str,
        x: &'a Tensor<T>,
        w: Option<&'a Tensor<T>>,
        updates: Updates<'a, T>,
        dy: &'a Tensor<T>,
    ) -> Self {
        Self {
            operation,
            x,
            w,
            updates,
            dy,
            activation: Activation::None,
            preactivation: None,
            output: None,
            mask: None,
            beta: None,
            stream: None,
        }
    }

    /// Of the updates of a layer, whose V and U are packed.
    pub(crate) fn of_packed(
        x: &'a Tensor<T>,
        w: &'a Tensor<T>,
        packed: &'a Packed<T>,
        codes: Vec<&'a Tensor<T>>,
        dy: &'a Tensor<T>,
    ) -> Self {
        Self::new(WITH_LINEAR, x, Some(w), Updates::Packed(packed, codes), dy)
    }

    /// Takes another update; there may be [`MAX_UPDATES`](super::MAX_UPDATES), with ranks of [`MAX_RANK`](super::MAX_RANK) together.
    pub fn and(mut self, v: &'a Tensor<T>, codes: &'a Tensor<T>, u: &'a Tensor<T>, scaling: f32) -> Self {
        self.updates.push(Update { v, codes, u, scaling });
        self
    }

    /// The activation of the linear operation. Its slopes are taken at the [`preactivation`](Self::preactivation); those of ReLU may be known from the
    /// [`relu_mask`](Self::relu_mask) or from the [`output`](Self::output) instead.
    pub fn activation(mut self, activation: Activation) -> Self {
        self.activation = activation;
        self
    }

    /// The argument of the activation, of the shape of dy, as the operation has stored it. Without an activation it is not read.
    pub fn preactivation(mut self, z: impl Into<Option<&'a Tensor<T>>>) -> Self {
        self.preactivation = z.into();
        self
    }

    /// Where the argument of ReLU was above 0, as the operation has stored it: of the shape of dy, but with ⌈N / 32⌉ words for the last axis.
    pub fn relu_mask(mut self, mask: impl Into<Option<&'a Tensor<u32>>>) -> Self {
        self.mask = mask.into();
        self
    }

    /// The operation's output, of the shape of dy, which is above 0 where the argument of ReLU was. A result that was rounded to 0 counts as 0.
    pub fn output(mut self, y: impl Into<Option<&'a Tensor<T>>>) -> Self {
        self.output = y.into();
        self
    }

    /// The factor that a residual was added with, so that [`run`](Self::run) returns its gradient. 1 unless it is set.
    pub fn residual(mut self, beta: f32) -> Self {
        self.beta = Some(beta);
        self
    }

    /// Runs on `stream` instead of the device's default stream.
    pub fn on(mut self, stream: &'a Stream) -> Self {
        self.stream = Some(stream);
        self
    }

    /// Computes all gradients, those of v, u and the bias in f32. On a GPU the work may still be under way when this returns.
    ///
    /// # Errors
    ///
    /// [`Error::Shape`], [`Error::Stride`], [`Error::DeviceMismatch`] and [`Error::SizeLimit`] if an operand does not fit.
    /// [`Error::Argument`] if an activation's slopes are not known, or by several operands, if there are too many updates, or
    /// if an option is set that an update alone has not. Otherwise whatever allocating the results, loading kernels and
    /// launching them may return.
    pub fn run(&self) -> Result<UpdateGradients<T>> {
        let checked = self.check()?;
        let stream = self.stream();
        let mut dx = Tensor::uninit_on(&stream, self.x.shape())?;
        let codes = self.codes();
        let mut updates = Vec::with_capacity(codes.len());
        for (index, codes) in codes.iter().enumerate() {
            let [dv, du] = self.weight_shapes(&checked, index);
            updates.push(GradientsOfUpdate {
                dv: Tensor::uninit_on(&stream, dv)?,
                dcodes: Tensor::uninit_on(&stream, codes.shape())?,
                du: Tensor::uninit_on(&stream, du)?,
            });
        }
        let mut db = self.w.map(|_| Tensor::uninit_on(&stream, [checked.n])).transpose()?;
        let mut dresidual = self.beta.map(|_| Tensor::uninit_on(&stream, self.dy.shape())).transpose()?;
        let places = updates.iter_mut().map(|GradientsOfUpdate { dv, dcodes, du }| UpdateGradientPlaces {
            dv: Some(dv),
            dcodes: Some(dcodes),
            du: Some(du),
        });
        self.run_into(UpdateGradientOutputs {
            dx: Some(&mut dx),
            updates: places.collect(),
            db: db.as_mut(),
            dresidual: dresidual.as_mut(),
            ..UpdateGradientOutputs::default()
        })?;
        Ok(UpdateGradients { dx, updates, db, dresidual })
    }

    /// dx alone.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run).
    pub fn dx(&self) -> Result<Tensor<T>> {
        self.check()?;
        let mut dx = Tensor::uninit_on(&self.stream(), self.x.shape())?;
        self.run_into(UpdateGradientOutputs::<T, f32, f32> { dx: Some(&mut dx), ..Default::default() })?;
        Ok(dx)
    }

    /// Computes gradients into tensors of the caller's.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run); [`Error::Shape`], [`Error::Stride`], [`Error::DeviceMismatch`], [`Error::ReadOnly`] and [`Error::Overlap`] if a result does not fit;
    /// [`Error::Argument`] if there are places for some of the updates only.
    pub fn run_into<W, C>(&self, outputs: UpdateGradientOutputs<'_, T, W, C>) -> Result<()>
    where
        T: LinearTypes<W>,
        W: SumElement + FromAccumulator<f32>,
        C: SumElement,
    {
        let _range = trace::operation(self.operation);
        let checked = self.check()?;
        self.check_outputs(&checked, &outputs)?;
        let (stream, wanted) = (self.stream(), Wanted::of(&outputs));
        let UpdateGradientOutputs { dx, updates, db, dresidual, dz, adds, adds_dcodes, adds_dx } = outputs;
        let mut new = self.has_new_dz(&wanted).then(|| Tensor::uninit_on(&stream, self.dy.shape()));
        let mut new = new.take().transpose()?;
        let mut written = dz.or(new.as_mut());
        if let Some(base) = self.base() {
            let dz = written.as_deref_mut();
            base.run_into(LinearGradientOutputs { db, dresidual, dz, adds, ..Default::default() })?;
        }
        if !wanted.products() {
            return Ok(());
        }
        let gradient = match written {
            Some(written) if self.activation != Activation::None => written.clone(),
            _ => self.dy.clone(),
        };
        let dz = flattened(&gradient, &stream)?;
        let (v, u) = checked.factors_alone(&stream)?;
        let [has_h, has_p] = wanted.sides();
        let x_v = ("v", &v.swap_axes(0, 1)?);
        let h = has_h.then(|| self.rank_product(&stream, ("x", &checked.x), x_v)).transpose()?;
        let p = has_p.then(|| self.rank_product(&stream, ("dy", &dz), ("u", &u))).transpose()?;
        let between = Between {
            a: wanted.any(|of| of.du).then(|| self.between(&checked, &stream)).transpose()?,
            dh: (wanted.dx || wanted.any(|of| of.dv)).then(|| self.between(&checked, &stream)).transpose()?,
        };
        let mut places = updates.into_iter();
        let mut begin = 0;
        let x_turned = checked.x.swap_axes(0, 1)?;
        for (index, of) in checked.codes.iter().enumerate() {
            let ranks = begin..begin + of.rank;
            begin = ranks.end;
            let UpdateGradientPlaces { dv, dcodes, du } = places.next().unwrap_or_default();
            let part = |all: &Option<Tensor<T>>, is_wanted: bool| {
                all.as_ref().filter(|_| is_wanted).map(|all| all.slice(1, ranks.clone())).transpose()
            };
            let side =
                |all: &Option<Tensor<f32>>| all.as_ref().map(|all| all.slice(1, ranks.clone())).transpose();
            let (a, dh) = (part(&between.a, du.is_some())?, part(&between.dh, wanted.dx || dv.is_some())?);
            let sides = [side(&h)?, side(&p)?];
            self.pass(&stream, of, sides, [a.as_ref(), dh.as_ref()], dcodes, adds_dcodes)?;
            if let (Some(du), Some(a)) = (du, &a) {
                let operands = [("codes", a.swap_axes(0, 1)?), ("dy", dz.swap_axes(0, 1)?)];
                self.weight_product(&checked, &stream, index, operands, du, adds, 1)?;
            }
            if let (Some(dv), Some(dh)) = (dv, &dh) {
                let operands = [("x", x_turned.clone()), ("codes", dh.swap_axes(0, 1)?)];
                self.weight_product(&checked, &stream, index, operands, dv, adds, 0)?;
            }
        }
        let (Some(dx), Some(dh)) = (dx, &between.dh) else { return Ok(()) };
        // The smaller part first: what it is rounded to in between is as small.
        let mut matrix = as_result_rows(self.operation, "dx", dx)?;
        let options = self.options::<T>(&stream, adds_dx);
        let output_shape = matrix.shape().to_vec();
        self.product(["codes", "v"], [dh.clone(), v], output_shape, &options).run_into(&mut matrix)?;
        match self.w {
            Some(w) => {
                let base = linear_backward(self.x, w, &gradient).named(self.operation).on(&stream);
                let outputs = LinearGradientOutputs::<T, T, f32> { dx: Some(dx), ..Default::default() };
                base.run_into(LinearGradientOutputs { adds_dx: true, ..outputs })
            }
            None => Ok(()),
        }
    }

    /// Which implementation [`run`](Self::run) would take. Of several updates it tells the first launches only.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run), for the operands.
    pub fn implementation(&self) -> Result<Implementation> {
        let checked = self.check()?;
        let device = self.x.device();
        if device.kind() == DeviceKind::Cpu {
            let is_empty = checked.m == 0 && checked.k == 0 && checked.n == 0;
            return Ok(if is_empty { Implementation::Empty } else { Implementation::Cpu });
        }
        let (dz_new, mut all) = match self.base() {
            Some(base) => {
                let dz = self.activation != Activation::None;
                let of_base = OfBase { db: true, dresidual: self.beta.is_some(), dz, ..OfBase::default() };
                (dz, base.implementation_of::<f32>(of_base)?)
            }
            None => (false, Implementation::Empty),
        };
        let (m, k, n, rank) = (checked.m, checked.k, checked.n, checked.rank());
        let pitch = pitch_of::<T>(rank);
        let dy = if dz_new { None } else { self.dy.flatten_leading().ok() };
        let mut copies = all.copies() as usize + checked.copies_alone();
        copies += usize::from(!dz_new && dy.is_none());
        // New tensors are aligned as much as any chunk.
        let new = |shape: [usize; 2], strides: [usize; 2]| Lies { address: 1 << 8, shape, strides };
        let dz = dy.as_ref().map_or(new([m, n], [n, 1]), Lies::of);
        let x = Lies::of(&checked.x);
        let packed = |side: usize, shape: [usize; 2]| {
            let of_layer = checked.packed.as_ref().map(|packed| Lies::of([&packed.v, &packed.u][side]));
            let given = match &checked.factors[..] {
                [one] => Some(Lies::of([&one.0, &one.1][side])).filter(|lies| lies.strides[1] == 1),
                _ => None,
            };
            of_layer.or(given).unwrap_or(new(shape, [pitch_of::<T>(shape[1]), 1]))
        };
        let (v, u) = (packed(0, [k, rank]), packed(1, [rank, n]));
        let stream = self.stream();
        let singles = self.options::<f32>(&stream, false);
        let rounded = self.options::<T>(&stream, false);
        let of_singles = |names: [&'static str; 2], a: Lies, b: Lies| {
            let operands = [a.view::<T>(), b.view::<T>()];
            implementation_of_views::<T, f32>(device, (self.operation, names, operands, &[]), &singles)
        };
        let mut add = |one: Implementation| {
            copies += one.copies() as usize;
            all = all.then(one);
        };
        add(of_singles(["x", "v"], x, v.turned())?);
        add(of_singles(["dy", "u"], dz, u)?);
        for of in &checked.codes {
            let plan = Plan::new(of, m);
            if m > 0 {
                add(Implementation::kernel(device, pass::kernel::<T>(), plan.blocks()));
            }
            if plan.strips > 1 {
                let (name, blocks) = launch_of::<T>(plan.groups as usize * of.rank);
                add(Implementation::kernel(device, name, blocks));
            }
            let part = new([m, of.rank], [pitch, 1]).turned();
            add(of_singles(["codes", "dy"], part, dz.turned())?);
            add(of_singles(["x", "codes"], x.turned(), part)?);
        }
        let dh = new([m, rank], [pitch, 1]);
        let of_x = (self.operation, ["codes", "v"], [dh.view::<T>(), v.view::<T>()], &[][..]);
        add(implementation_of_views::<T, T>(device, of_x, &rounded)?);
        if let Some(w) = self.w {
            let base = linear_backward(self.x, w, self.dy).named(self.operation);
            add(base.implementation_of::<f32>(OfBase { dx: true, ..OfBase::default() })?);
        }
        Ok(all.with_copies(copies))
    }

    fn stream(&self) -> Stream {
        self.stream.cloned().unwrap_or_else(|| self.x.device().default_stream())
    }

    /// What the linear operation's own gradients begin with, if there is one.
    fn base(&self) -> Option<LinearBackwardOp<'a, T, T>> {
        let w = self.w?;
        let base = linear_backward(self.x, w, self.dy)
            .named(self.operation)
            .activation(self.activation)
            .preactivation(self.preactivation)
            .relu_mask(self.mask)
            .output(self.output);
        let base = if let Some(beta) = self.beta { base.residual(beta) } else { base };
        Some(match self.stream {
            Some(stream) => base.on(stream),
            None => base,
        })
    }

    /// Whether products read a tensor of dZ that nobody else wants.
    fn has_new_dz(&self, wanted: &Wanted) -> bool {
        !wanted.dz && wanted.products() && self.activation != Activation::None
    }

    /// The codes as they were given.
    fn codes(&self) -> Vec<&'a Tensor<T>> {
        match &self.updates {
            Updates::Given(updates) => updates.iter().map(|update| update.codes).collect(),
            Updates::Packed(_, codes) => codes.clone(),
        }
    }

    /// The shapes of V and U of an update.
    fn weight_shapes(&self, checked: &Checked<T>, index: usize) -> [[usize; 2]; 2] {
        let rank = checked.codes[index].rank;
        [[checked.k, rank], [rank, checked.n]]
    }

    /// A new matrix for something between the products.
    fn between(&self, checked: &Checked<T>, stream: &Stream) -> Result<Tensor<T>> {
        let rank = checked.rank();
        between_launches(stream, [checked.m, pitch_of::<T>(rank)])?.slice(1, 0..rank)
    }

    fn options<'o, Y: Element>(&self, stream: &'o Stream, adds: bool) -> Options<'o, T, Y> {
        let terms = Terms { beta: if adds { 1.0 } else { 0.0 }, ..Terms::default() };
        Options { stream: Some(stream), terms, ..Options::new() }
    }

    fn product<'o, Y: Element>(
        &self,
        names: [&'static str; 2],
        [a, b]: [Tensor<T>; 2],
        output_shape: Vec<usize>,
        options: &'o Options<'o, T, Y>,
    ) -> Product<'o, T, Y> {
        Product { operation: self.operation, names, a, b, leading: Vec::new(), output_shape, options }
    }

    /// H or P: `a bᵀ` in f32.
    fn rank_product(
        &self,
        stream: &Stream,
        (a_name, a): (&'static str, &Tensor<T>),
        (b_name, b): (&'static str, &Tensor<T>),
    ) -> Result<Tensor<f32>> {
        let shape = [a.shape()[0], b.shape()[0]];
        // In rows that start at multiples of 16 bytes.
        let pitch = pitch_of::<f32>(shape[1]);
        let mut result = between_launches(stream, [shape[0], pitch])?.slice(1, 0..shape[1])?;
        let options = self.options::<f32>(stream, false);
        let product = self.product([a_name, b_name], [a.clone(), b.clone()], shape.to_vec(), &options);
        product.run_into(&mut result)?;
        Ok(result)
    }

    /// The gradient of V (`side` 0) or U (1) of an update.
    #[allow(clippy::too_many_arguments, reason = "a private step")]
    fn weight_product<W>(
        &self,
        checked: &Checked<T>,
        stream: &Stream,
        index: usize,
        [(a_name, a), (b_name, b)]: [(&'static str, Tensor<T>); 2],
        to: &mut Tensor<W>,
        adds: bool,
        side: usize,
    ) -> Result<()>
    where
        T: LinearTypes<W>,
        W: Element + FromAccumulator<f32>,
    {
        let output_shape = self.weight_shapes(checked, index)[side].to_vec();
        let options = self.options::<W>(stream, adds);
        self.product([a_name, b_name], [a, b], output_shape, &options).run_into(to)
    }
}

/// Elements from one row of so many to the next where rows start at multiples of 16 bytes.
fn pitch_of<T>(columns: usize) -> usize {
    columns.next_multiple_of(CHUNK_BYTES / size_of::<T>())
}

/// The layout of a matrix.
#[derive(Clone, Copy, Debug)]
struct Lies {
    address: u64,
    shape: [usize; 2],
    strides: [usize; 2],
}

impl Lies {
    fn of<T: Element>(matrix: &Tensor<T>) -> Self {
        let (shape, strides) = (matrix.shape(), matrix.strides());
        Self {
            address: matrix.device_address(),
            shape: [shape[0], shape[1]],
            strides: [strides[0], strides[1]],
        }
    }

    fn turned(self) -> Self {
        let (Self { shape: [a, b], strides: [c, d], .. }, address) = (self, self.address);
        Self { address, shape: [b, a], strides: [d, c] }
    }

    fn view<T: Element>(&self) -> View<'_> {
        View { element: T::DTYPE, address: self.address, shape: &self.shape, strides: &self.strides }
    }
}
