//! Layers that norm rows.

use crate::device::Device;
use crate::error::{Error, Result};
use crate::ops;
use crate::ops::norm::{NormElement, NormOp};
use crate::tensor::{Element, Tensor};
use crate::weights::{FloatElement, Weights};

/// `y = (x − mean) / √(variance + ε) ⊙ weight + bias`, of rows of N columns; see [`ops::layer_norm`].
///
/// ```
/// use warpsmith::layers::LayerNorm;
/// use warpsmith::{Device, Tensor};
///
/// # fn main() -> warpsmith::Result<()> {
/// let device = Device::cpu();
/// let weight = Tensor::from_slice(&device, &[2.0f32, 2.0], [2])?;
/// let layer = LayerNorm::new(weight, None)?.with_epsilon(0.0);
/// let x = Tensor::from_slice(&device, &[1.0f32, 3.0], [1, 2])?;
/// assert_eq!(layer.forward(&x)?.to_vec()?, [-2.0, 2.0]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct LayerNorm<T: Element> {
    weight: Tensor<T>,
    bias: Option<Tensor<T>>,
    epsilon: f32,
}

impl<T: NormElement> LayerNorm<T> {
    /// A layer with these weights, both `[N]`, and an ε of 10⁻⁵.
    ///
    /// # Errors
    ///
    /// [`Error::Shape`] or [`Error::DeviceMismatch`] if the two do not fit together.
    pub fn new(weight: Tensor<T>, bias: Option<Tensor<T>>) -> Result<Self> {
        const OPERATION: &str = "LayerNorm::new";
        let columns = vector(OPERATION, &weight)?;
        if let Some(bias) = &bias {
            weight.device().expect_same(OPERATION, "bias", bias.device())?;
            if bias.shape() != [columns] {
                return Err(Error::Shape {
                    operation: OPERATION,
                    operand: "bias",
                    expected: format!("[{columns}], as the weight has"),
                    actual: bias.shape().to_vec(),
                });
            }
        }
        Ok(Self { weight, bias, epsilon: 1e-5 })
    }

    /// The layer with another ε.
    #[must_use]
    pub fn with_epsilon(self, epsilon: f32) -> Self {
        Self { epsilon, ..self }
    }

    /// The layer with the weights `PREFIX.weight` and, if there is one, `PREFIX.bias`, of type `T`.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new) and [`Weights::tensor`].
    pub fn from_safetensors(weights: &Weights, prefix: &str, device: &Device) -> Result<Self> {
        Self::load(weights, prefix, |name| weights.tensor(name, device))
    }

    /// As [`from_safetensors`](Self::from_safetensors), with weights of any floating-point type rounded to `T`.
    ///
    /// # Errors
    ///
    /// As [`from_safetensors`](Self::from_safetensors); a tensor must be of a floating-point type.
    pub fn from_safetensors_converted(weights: &Weights, prefix: &str, device: &Device) -> Result<Self>
    where
        T: FloatElement,
    {
        Self::load(weights, prefix, |name| weights.tensor_converted(name, device))
    }

    pub(in crate::layers) fn load(
        weights: &Weights,
        prefix: &str,
        tensor: impl Fn(&str) -> Result<Tensor<T>>,
    ) -> Result<Self> {
        let bias = format!("{prefix}.bias");
        let bias = weights.contains(&bias).then(|| tensor(&bias)).transpose()?;
        Self::new(tensor(&format!("{prefix}.weight"))?, bias)
    }

    /// The layer's output for `x` `[.., N]`.
    ///
    /// # Errors
    ///
    /// As [`NormOp::run`].
    pub fn forward(&self, x: &Tensor<T>) -> Result<Tensor<T>> {
        self.operation(x).run()
    }

    /// The layer's operation on `x`: with a residual, gradients, and what else it can do.
    pub fn operation<'a, X: NormElement>(&'a self, x: &'a Tensor<X>) -> NormOp<'a, X> {
        let norm = ops::layer_norm(x).weight(&self.weight).epsilon(self.epsilon);
        match &self.bias {
            Some(bias) => norm.bias(bias),
            None => norm,
        }
    }

    /// The weight `[N]`.
    #[must_use]
    pub fn weight(&self) -> &Tensor<T> {
        &self.weight
    }

    /// The bias `[N]`.
    #[must_use]
    pub fn bias(&self) -> Option<&Tensor<T>> {
        self.bias.as_ref()
    }
}

/// `y = x / √(mean of x² + ε) ⊙ (weight + offset)`, of rows of N columns; see [`ops::rms_norm`].
#[derive(Clone, Debug)]
pub struct RmsNorm<T: Element> {
    weight: Tensor<T>,
    offset: f32,
    epsilon: f32,
}

impl<T: NormElement> RmsNorm<T> {
    /// A layer with the weight `[N]`, no offset, and an ε of 10⁻⁵.
    ///
    /// # Errors
    ///
    /// [`Error::Shape`] if the weight is no vector.
    pub fn new(weight: Tensor<T>) -> Result<Self> {
        vector("RmsNorm::new", &weight)?;
        Ok(Self { weight, offset: 0.0, epsilon: 1e-5 })
    }

    /// The layer with another ε.
    #[must_use]
    pub fn with_epsilon(self, epsilon: f32) -> Self {
        Self { epsilon, ..self }
    }

    /// The layer with so much added to each weight: 1 where weights are stored as differences to 1.
    #[must_use]
    pub fn with_weight_offset(self, offset: f32) -> Self {
        Self { offset, ..self }
    }

    /// The layer with the weight `PREFIX.weight`, of type `T`.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new) and [`Weights::tensor`].
    pub fn from_safetensors(weights: &Weights, prefix: &str, device: &Device) -> Result<Self> {
        Self::new(weights.tensor(&format!("{prefix}.weight"), device)?)
    }

    /// As [`from_safetensors`](Self::from_safetensors), with a weight of any floating-point type rounded to `T`.
    ///
    /// # Errors
    ///
    /// As [`from_safetensors`](Self::from_safetensors); the tensor must be of a floating-point type.
    pub fn from_safetensors_converted(weights: &Weights, prefix: &str, device: &Device) -> Result<Self>
    where
        T: FloatElement,
    {
        Self::new(weights.tensor_converted(&format!("{prefix}.weight"), device)?)
    }

    /// The layer's output for `x` `[.., N]`.
    ///
    /// # Errors
    ///
    /// As [`NormOp::run`].
    pub fn forward(&self, x: &Tensor<T>) -> Result<Tensor<T>> {
        self.operation(x).run()
    }

    /// The layer's operation on `x`: with a residual, gradients, and what else it can do.
    pub fn operation<'a, X: NormElement>(&'a self, x: &'a Tensor<X>) -> NormOp<'a, X> {
        ops::rms_norm(x).weight(&self.weight).weight_offset(self.offset).epsilon(self.epsilon)
    }

    /// The weight `[N]`.
    #[must_use]
    pub fn weight(&self) -> &Tensor<T> {
        &self.weight
    }
}

/// The length of a weight, or the error for one that is no vector.
fn vector<T: Element>(operation: &'static str, weight: &Tensor<T>) -> Result<usize> {
    let &[columns] = weight.shape() else {
        return Err(Error::Shape {
            operation,
            operand: "weight",
            expected: "[N], one axis".into(),
            actual: weight.shape().to_vec(),
        });
    };
    Ok(columns)
}
