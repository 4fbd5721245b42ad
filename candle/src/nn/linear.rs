//! Linear layers.

use candle_core::{Module, Result, Tensor};
use candle_nn::VarBuilder;

use crate::Activation;

/// A linear layer: `y = act(x Wᵀ + bias)`, without an activation unless one is set.
#[derive(Clone, Debug)]
pub struct Linear {
    weight: Tensor,
    bias: Option<Tensor>,
    activation: Activation,
}

impl Linear {
    /// A layer with a weight `[out, in]` and a bias `[out]`.
    #[must_use]
    pub fn new(weight: Tensor, bias: Option<Tensor>) -> Self {
        Self { weight, bias, activation: Activation::None }
    }

    /// The layer with an activation, which the product's kernel applies.
    #[must_use]
    pub fn with_activation(self, activation: Activation) -> Self {
        Self { activation, ..self }
    }

    /// The weight, `[out, in]`.
    #[must_use]
    pub fn weight(&self) -> &Tensor {
        &self.weight
    }

    /// The bias, `[out]`.
    #[must_use]
    pub fn bias(&self) -> Option<&Tensor> {
        self.bias.as_ref()
    }
}

impl Module for Linear {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        Ok(crate::linear(xs, &self.weight).bias(self.bias.as_ref()).activation(self.activation).run()?)
    }
}

impl From<candle_nn::Linear> for Linear {
    fn from(layer: candle_nn::Linear) -> Self {
        Self::new(layer.weight().clone(), layer.bias().cloned())
    }
}

/// A layer whose weight and bias `vb` has as `weight` and `bias`, or initialises as [`candle_nn::linear()`] does.
///
/// # Errors
///
/// If `vb` has no such tensors of these shapes.
pub fn linear(in_dim: usize, out_dim: usize, vb: VarBuilder) -> Result<Linear> {
    candle_nn::linear(in_dim, out_dim, vb).map(Linear::from)
}

/// As [`linear`], without a bias.
///
/// # Errors
///
/// As [`linear`].
pub fn linear_no_bias(in_dim: usize, out_dim: usize, vb: VarBuilder) -> Result<Linear> {
    candle_nn::linear_no_bias(in_dim, out_dim, vb).map(Linear::from)
}

/// As [`linear`], with a bias if `bias` is true.
///
/// # Errors
///
/// As [`linear`].
pub fn linear_b(in_dim: usize, out_dim: usize, bias: bool, vb: VarBuilder) -> Result<Linear> {
    candle_nn::linear_b(in_dim, out_dim, bias, vb).map(Linear::from)
}
