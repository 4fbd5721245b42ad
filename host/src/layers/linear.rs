//! The linear layer: weight, optional bias, activation.

use crate::cpu::FromAccumulator;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::ops::linear::{LinearInput, LinearOp, LinearTypes};
use crate::ops::{self, Activation, Implementation, Precision};
use crate::stream::Stream;
use crate::tensor::{Element, Tensor};
use crate::weights::{FloatElement, Weights};

/// `y = activation(x Wᵀ + b)` with W [out, in] and, if there is one, b `[out]`.
///
/// ```
/// use ndarray::array;
/// use warpsmith::layers::Linear;
/// use warpsmith::ops::{Activation, Precision};
/// use warpsmith::{Device, Tensor};
///
/// # fn main() -> warpsmith::Result<()> {
/// let device = Device::cpu();
/// let weight = Tensor::from_array(&device, &array![[1.0f32, 0.0], [0.0, -1.0]])?;
/// let layer = Linear::new(weight, None, Activation::Relu)?.with_precision(Precision::Tf32);
/// let x = Tensor::from_array(&device, &array![[3.0f32, 4.0]])?;
/// assert_eq!(layer.forward(&x)?.to_vec()?, [3.0, 0.0]);
///
/// // On a stream of its own, into an existing tensor.
/// let stream = device.new_stream()?;
/// let mut y = Tensor::zeros(&device, [1, 2])?;
/// layer.forward_into(&x, &mut y, &stream)?;
/// assert_eq!(y.to_vec()?, [3.0, 0.0]);
///
/// // With all that the operation can do besides.
/// layer.operation(&x).beta(2.0).run_into(&mut y)?;
/// assert_eq!(y.to_vec()?, [9.0, 0.0]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Linear<T: LinearInput> {
    weight: Tensor<T>,
    bias: Option<Tensor<T>>,
    activation: Activation,
    precision: Precision,
}

impl<T: LinearInput> Linear<T> {
    /// A layer with these weights; `weight` is `[out, in]`, `bias` `[out]`.
    ///
    /// # Errors
    ///
    /// [`Error::Shape`] or [`Error::DeviceMismatch`] if the two do not fit together.
    pub fn new(weight: Tensor<T>, bias: Option<Tensor<T>>, activation: Activation) -> Result<Self> {
        const OPERATION: &str = "Linear::new";
        let &[out, _] = weight.shape() else {
            return Err(Error::Shape {
                operation: OPERATION,
                operand: "weight",
                expected: "[out, in], two axes".into(),
                actual: weight.shape().to_vec(),
            });
        };
        if let Some(bias) = &bias {
            weight.device().expect_same(OPERATION, "bias", bias.device())?;
            if bias.shape() != [out] {
                return Err(Error::Shape {
                    operation: OPERATION,
                    operand: "bias",
                    expected: format!("[{out}], since the weight has {out} rows"),
                    actual: bias.shape().to_vec(),
                });
            }
        }
        Ok(Self { weight, bias, activation, precision: Precision::default() })
    }

    /// The layer with products as exact as this. It matters for f32 alone, and [attached updates](Self::attach) leave them at full
    /// accuracy; so it is unless it is set.
    #[must_use]
    pub fn with_precision(self, precision: Precision) -> Self {
        Self { precision, ..self }
    }

    /// A layer with the tensors `{prefix}.weight` and, if it is there, `{prefix}.bias`, which are of type `T`.
    ///
    /// # Errors
    ///
    /// [`Error::Weights`] if the weight is missing or a tensor has another type; otherwise as [`new`](Self::new) and for
    /// copying to the device.
    pub fn from_safetensors(
        weights: &Weights,
        prefix: &str,
        device: &Device,
        activation: Activation,
    ) -> Result<Self> {
        Self::load(weights, prefix, activation, |name| weights.tensor(name, device))
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
        activation: Activation,
    ) -> Result<Self>
    where
        T: FloatElement,
    {
        Self::load(weights, prefix, activation, |name| weights.tensor_converted(name, device))
    }

    pub(in crate::layers) fn load(
        weights: &Weights,
        prefix: &str,
        activation: Activation,
        tensor: impl Fn(&str) -> Result<Tensor<T>>,
    ) -> Result<Self> {
        let bias = format!("{prefix}.bias");
        let bias = weights.contains(&bias).then(|| tensor(&bias)).transpose()?;
        Self::new(tensor(&format!("{prefix}.weight"))?, bias, activation)
    }

    /// The layer's output for `x` [.., in]: [.., out].
    ///
    /// # Errors
    ///
    /// As [`LinearOp::run`].
    pub fn forward(&self, x: &Tensor<T>) -> Result<Tensor<T>> {
        self.operation(x).run()
    }

    /// As [`forward`](Self::forward), on `stream`.
    ///
    /// # Errors
    ///
    /// As [`forward`](Self::forward), and [`Error::DeviceMismatch`] if the stream is another device's.
    pub fn forward_on(&self, x: &Tensor<T>, stream: &Stream) -> Result<Tensor<T>> {
        self.operation(x).on(stream).run()
    }

    /// As [`forward`](Self::forward), on `stream` and into `y` [.., out], whose type the result is rounded to; it may be a view whose last axis
    /// is contiguous.
    ///
    /// # Errors
    ///
    /// As [`LinearOp::run_into`].
    pub fn forward_into<O>(&self, x: &Tensor<T>, y: &mut Tensor<O>, stream: &Stream) -> Result<()>
    where
        T: LinearTypes<O>,
        O: Element + FromAccumulator<f32>,
    {
        self.operation(x).output::<O>().on(stream).run_into(y)
    }

    /// The layer's output for `x`, rounded to `O` instead of `T`.
    ///
    /// # Errors
    ///
    /// As [`LinearOp::run`].
    pub fn forward_as<O>(&self, x: &Tensor<T>) -> Result<Tensor<O>>
    where
        T: LinearTypes<O>,
        O: Element + FromAccumulator<f32>,
    {
        self.operation(x).output::<O>().run()
    }

    /// The implementation that [`forward`](Self::forward) takes for `x`.
    ///
    /// # Errors
    ///
    /// As [`LinearOp::implementation`].
    pub fn implementation(&self, x: &Tensor<T>) -> Result<Implementation> {
        self.operation(x).implementation()
    }

    /// The implementation that [`forward_as`](Self::forward_as) takes for `x`.
    ///
    /// # Errors
    ///
    /// As [`LinearOp::implementation`].
    pub fn implementation_as<O>(&self, x: &Tensor<T>) -> Result<Implementation>
    where
        T: LinearTypes<O>,
        O: Element + FromAccumulator<f32>,
    {
        self.operation(x).output::<O>().implementation()
    }

    /// The forward pass as an operation, for what else it can do: residuals, what training needs, a kernel of one's own choice.
    pub fn operation<'a>(&'a self, x: &'a Tensor<T>) -> LinearOp<'a, T, T> {
        ops::linear(x, &self.weight).bias(&self.bias).activation(self.activation).precision(self.precision)
    }

    /// The weight, `[out, in]`.
    #[must_use]
    pub fn weight(&self) -> &Tensor<T> {
        &self.weight
    }

    /// The bias, `[out]`.
    #[must_use]
    pub fn bias(&self) -> Option<&Tensor<T>> {
        self.bias.as_ref()
    }

    /// The function applied last.
    #[must_use]
    pub fn activation(&self) -> Activation {
        self.activation
    }

    /// How exact the products are.
    #[must_use]
    pub fn precision(&self) -> Precision {
        self.precision
    }
}
