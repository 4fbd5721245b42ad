//! Generated low-rank updates as a layer, and linear layers that have some.

use super::Linear;
use crate::device::Device;
use crate::error::{Error, Result};
#[cfg(doc)]
use crate::ops::update::MAX_UPDATES;
use crate::ops::update::{
    LinearUpdateOp, Packed, UpdateInput, UpdateOp, expect_count, expect_rank, expect_total,
};
use crate::ops::{self, Implementation};
use crate::stream::Stream;
use crate::tensor::Tensor;
use crate::weights::{FloatElement, Weights};

/// `ΔY = ((X V) ⊙ codes) U · alpha / rank` with V [in, rank] and U [rank, out]. The codes come with each forward pass.
///
/// ```
/// use ndarray::array;
/// use warpsmith::layers::{GeneratedUpdate, Linear};
/// use warpsmith::{Device, Tensor, ops::Activation};
///
/// # fn main() -> warpsmith::Result<()> {
/// let device = Device::cpu();
/// let weight = Tensor::from_array(&device, &array![[1.0f32, 0.0], [0.0, 1.0]])?;
/// let frozen = Linear::new(weight, None, Activation::None)?;
/// let v = Tensor::from_array(&device, &array![[1.0f32], [1.0]])?;
/// let u = Tensor::from_array(&device, &array![[1.0f32, -1.0]])?;
/// let mut layer = frozen.attach([GeneratedUpdate::new(v, u, 2.0)?])?;
///
/// let x = Tensor::from_array(&device, &array![[3.0f32, 4.0]])?;
/// let codes = Tensor::from_array(&device, &array![[0.5f32]])?;
/// assert_eq!(layer.forward(&x, &[&codes])?.to_vec()?, [10.0, -3.0]);
/// layer.detach(0)?;
/// assert_eq!(layer.forward(&x, &[])?.to_vec()?, [3.0, 4.0]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct GeneratedUpdate<T: UpdateInput> {
    v: Tensor<T>,
    u: Tensor<T>,
    alpha: f32,
}

impl<T: UpdateInput> GeneratedUpdate<T> {
    /// An update with these weights: `v` is [in, rank], `u` [rank, out].
    ///
    /// # Errors
    ///
    /// [`Error::Shape`], [`Error::SizeLimit`] or [`Error::DeviceMismatch`] if the two do not fit together, or the rank is not 1 to
    /// [`MAX_RANK`](crate::ops::update::MAX_RANK).
    pub fn new(v: Tensor<T>, u: Tensor<T>, alpha: f32) -> Result<Self> {
        const OPERATION: &str = "GeneratedUpdate::new";
        let shape = |operand, expected: String, actual: &Tensor<T>| Error::Shape {
            operation: OPERATION,
            operand,
            expected,
            actual: actual.shape().to_vec(),
        };
        let &[_, rank] = v.shape() else { return Err(shape("v", "[in, rank], two axes".into(), &v)) };
        expect_rank(OPERATION, "v", rank)?;
        if u.rank() != 2 || u.shape()[0] != rank {
            return Err(shape("u", format!("[{rank}, out], since v has {rank} columns"), &u));
        }
        v.device().expect_same(OPERATION, "u", u.device())?;
        Ok(Self { v, u, alpha })
    }

    /// An update with the tensors `{prefix}.v` [in, rank] and `{prefix}.u` [rank, out], which are of type `T`.
    ///
    /// # Errors
    ///
    /// [`Error::Weights`] if one is missing or has another type; otherwise as [`new`](Self::new) and for copying to the device.
    pub fn from_safetensors(weights: &Weights, prefix: &str, device: &Device, alpha: f32) -> Result<Self> {
        let tensor = |name| weights.tensor(&format!("{prefix}.{name}"), device);
        Self::new(tensor("v")?, tensor("u")?, alpha)
    }

    /// As [`from_safetensors`](Self::from_safetensors), with weights of any floating-point type rounded to `T`.
    ///
    /// # Errors
    ///
    /// As [`from_safetensors`](Self::from_safetensors); a tensor must be of a floating-point type.
    pub fn from_safetensors_converted(
        weights: &Weights,
        prefix: &str,
        device: &Device,
        alpha: f32,
    ) -> Result<Self>
    where
        T: FloatElement,
    {
        let tensor = |name| weights.tensor_converted(&format!("{prefix}.{name}"), device);
        Self::new(tensor("v")?, tensor("u")?, alpha)
    }

    /// The update of `x` [.., in]: [.., out]. The codes are as [`ops::generated_update`] takes them.
    ///
    /// # Errors
    ///
    /// As [`UpdateOp::run`].
    pub fn forward(&self, x: &Tensor<T>, codes: &Tensor<T>) -> Result<Tensor<T>> {
        self.operation(x, codes).run()
    }

    /// As [`forward`](Self::forward), on `stream`.
    ///
    /// # Errors
    ///
    /// As [`forward`](Self::forward), and [`Error::DeviceMismatch`] if the stream is another device's.
    pub fn forward_on(&self, x: &Tensor<T>, codes: &Tensor<T>, stream: &Stream) -> Result<Tensor<T>> {
        self.operation(x, codes).on(stream).run()
    }

    /// As [`forward`](Self::forward), on `stream` and into `y` [.., out].
    ///
    /// # Errors
    ///
    /// As [`UpdateOp::run_into`].
    pub fn forward_into(
        &self,
        x: &Tensor<T>,
        codes: &Tensor<T>,
        y: &mut Tensor<T>,
        stream: &Stream,
    ) -> Result<()> {
        self.operation(x, codes).on(stream).run_into(y)
    }

    /// Adds the update of `x` to `y`, the output of a layer that knows nothing of it.
    ///
    /// # Errors
    ///
    /// As [`UpdateOp::add_to`].
    pub fn add_to(&self, x: &Tensor<T>, codes: &Tensor<T>, y: &mut Tensor<T>) -> Result<()> {
        self.operation(x, codes).add_to(y)
    }

    /// The implementation that [`forward`](Self::forward) takes.
    ///
    /// # Errors
    ///
    /// As [`UpdateOp::implementation`].
    pub fn implementation(&self, x: &Tensor<T>, codes: &Tensor<T>) -> Result<Implementation> {
        self.operation(x, codes).implementation()
    }

    /// The update as an operation, for what else it can do.
    pub fn operation<'a>(&'a self, x: &'a Tensor<T>, codes: &'a Tensor<T>) -> UpdateOp<'a, T> {
        ops::generated_update(x, &self.v, codes, &self.u, self.scaling())
    }

    /// V, [in, rank].
    #[must_use]
    pub fn v(&self) -> &Tensor<T> {
        &self.v
    }

    /// U, [rank, out].
    #[must_use]
    pub fn u(&self) -> &Tensor<T> {
        &self.u
    }

    /// The rank.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.u.shape()[0]
    }

    /// What the update is multiplied with, times the rank.
    #[must_use]
    pub fn alpha(&self) -> f32 {
        self.alpha
    }

    /// What the update is multiplied with: alpha / rank.
    #[must_use]
    pub fn scaling(&self) -> f32 {
        self.alpha / self.rank() as f32
    }
}

impl<T: UpdateInput> Linear<T> {
    /// This layer with `updates` attached. The two share the weights, which stay as they are.
    ///
    /// # Errors
    ///
    /// As [`UpdatedLinear::attach`].
    pub fn attach(&self, updates: impl IntoIterator<Item = GeneratedUpdate<T>>) -> Result<UpdatedLinear<T>> {
        UpdatedLinear::with(self.clone(), updates.into_iter().collect())
    }
}

/// A linear layer with generated low-rank updates: `Y = activation(X Wᵀ + b + ΣΔY)`; see [`Linear::attach`].
///
/// V and U of all updates are copied once, when one is attached or detached, into the layout that kernels read; a forward pass copies
/// nothing.
#[derive(Clone, Debug)]
pub struct UpdatedLinear<T: UpdateInput> {
    base: Linear<T>,
    updates: Vec<GeneratedUpdate<T>>,
    /// Of all updates, if there are any.
    packed: Option<Packed<T>>,
}

impl<T: UpdateInput> UpdatedLinear<T> {
    fn with(base: Linear<T>, updates: Vec<GeneratedUpdate<T>>) -> Result<Self> {
        const OPERATION: &str = "Linear::attach";
        let &[out, columns] = base.weight().shape() else { return Ok(Self::bare(base)) };
        if updates.is_empty() {
            return Ok(Self::bare(base));
        }
        expect_count(OPERATION, updates.len())?;
        for update in &updates {
            base.weight().device().expect_same(OPERATION, "v", update.v.device())?;
            let shape = |operand, expected, tensor: &Tensor<T>| Error::Shape {
                operation: OPERATION,
                operand,
                expected,
                actual: tensor.shape().to_vec(),
            };
            if update.v.shape()[0] != columns {
                let expected = format!("[{columns}, rank], since the weight has {columns} columns");
                return Err(shape("v", expected, &update.v));
            }
            if update.u.shape()[1] != out {
                let expected = format!("[rank, {out}], since the weight has {out} rows");
                return Err(shape("u", expected, &update.u));
            }
        }
        expect_total(OPERATION, updates.iter().map(GeneratedUpdate::rank).sum())?;
        let parts: Vec<_> =
            updates.iter().map(|update| (update.v.clone(), update.u.clone(), update.scaling())).collect();
        let packed = Packed::new(&base.weight().device().default_stream(), &parts)?;
        Ok(Self { base, updates, packed: Some(packed) })
    }

    fn bare(base: Linear<T>) -> Self {
        Self { base, updates: Vec::new(), packed: None }
    }

    /// Attaches another update, after the existing ones.
    ///
    /// # Errors
    ///
    /// [`Error::Shape`] or [`Error::DeviceMismatch`] if it does not fit the base layer; [`Error::Argument`] if there are
    /// [`MAX_UPDATES`] already, [`Error::SizeLimit`] if the ranks are more than [`MAX_RANK`](crate::ops::update::MAX_RANK) together.
    /// The layer is then as it was.
    pub fn attach(&mut self, update: GeneratedUpdate<T>) -> Result<()> {
        let mut updates = self.updates.clone();
        updates.push(update);
        *self = Self::with(self.base.clone(), updates)?;
        Ok(())
    }

    /// Takes off update `index`; those after it move up.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`] if there is none of that number; whatever copying what is left may return. The layer is then as it was.
    pub fn detach(&mut self, index: usize) -> Result<GeneratedUpdate<T>> {
        if index >= self.updates.len() {
            return Err(Error::Argument {
                operation: "UpdatedLinear::detach",
                argument: "index",
                expected: format!("less than {}, the number of updates", self.updates.len()),
                actual: index.to_string(),
            });
        }
        let mut updates = self.updates.clone();
        let detached = updates.remove(index);
        *self = Self::with(self.base.clone(), updates)?;
        Ok(detached)
    }

    /// The layer's output for `x` [.., in], with the codes of each update in their order: [.., out].
    ///
    /// # Errors
    ///
    /// As [`LinearUpdateOp::run`], and [`Error::Argument`] if there is not one tensor of codes for each update.
    pub fn forward(&self, x: &Tensor<T>, codes: &[&Tensor<T>]) -> Result<Tensor<T>> {
        match self.operation(x, codes)? {
            Some(operation) => operation.run(),
            None => self.base.forward(x),
        }
    }

    /// As [`forward`](Self::forward), on `stream`.
    ///
    /// # Errors
    ///
    /// As [`forward`](Self::forward), and [`Error::DeviceMismatch`] if the stream is another device's.
    pub fn forward_on(&self, x: &Tensor<T>, codes: &[&Tensor<T>], stream: &Stream) -> Result<Tensor<T>> {
        match self.operation(x, codes)? {
            Some(operation) => operation.on(stream).run(),
            None => self.base.forward_on(x, stream),
        }
    }

    /// As [`forward`](Self::forward), on `stream` and into `y` [.., out].
    ///
    /// # Errors
    ///
    /// As [`LinearUpdateOp::run_into`], and [`Error::Argument`] if there is not one tensor of codes for each update.
    pub fn forward_into(
        &self,
        x: &Tensor<T>,
        codes: &[&Tensor<T>],
        y: &mut Tensor<T>,
        stream: &Stream,
    ) -> Result<()> {
        match self.operation(x, codes)? {
            Some(operation) => operation.on(stream).run_into(y),
            None => self.base.forward_into(x, y, stream),
        }
    }

    /// The implementation that [`forward`](Self::forward) takes.
    ///
    /// # Errors
    ///
    /// As [`forward`](Self::forward), for the operands.
    pub fn implementation(&self, x: &Tensor<T>, codes: &[&Tensor<T>]) -> Result<Implementation> {
        match self.operation(x, codes)? {
            Some(operation) => operation.implementation(),
            None => self.base.implementation(x),
        }
    }

    /// The forward pass as an operation, for what else it can do; `None` if there are no updates.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`] if there is not one tensor of codes for each update.
    pub fn operation<'a>(
        &'a self,
        x: &'a Tensor<T>,
        codes: &[&'a Tensor<T>],
    ) -> Result<Option<LinearUpdateOp<'a, T>>> {
        if codes.len() != self.updates.len() {
            return Err(Error::Argument {
                operation: "UpdatedLinear::forward",
                argument: "number of codes",
                expected: format!("{}, one tensor for each update", self.updates.len()),
                actual: codes.len().to_string(),
            });
        }
        let base = &self.base;
        Ok(self.packed.as_ref().map(|packed| {
            LinearUpdateOp::of_packed(x, base.weight(), packed, codes.to_vec())
                .bias(base.bias())
                .activation(base.activation())
        }))
    }

    /// The layer without the updates.
    #[must_use]
    pub fn base(&self) -> &Linear<T> {
        &self.base
    }

    /// V and U of all updates, if there are any.
    pub(super) fn packed(&self) -> Option<&Packed<T>> {
        self.packed.as_ref()
    }

    /// The updates, in the order of their codes.
    #[must_use]
    pub fn updates(&self) -> &[GeneratedUpdate<T>] {
        &self.updates
    }
}
