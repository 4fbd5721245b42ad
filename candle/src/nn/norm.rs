//! Layer norm and RMS norm.

use candle_core::{Module, Result, Tensor};
use candle_nn::{LayerNormConfig, VarBuilder};

/// A layer norm, or an RMS norm if it does not remove the mean.
#[derive(Clone, Debug)]
pub struct LayerNorm {
    weight: Tensor,
    bias: Option<Tensor>,
    remove_mean: bool,
    eps: f64,
}

impl LayerNorm {
    /// A layer norm with weight and bias, each `[N]`.
    #[must_use]
    pub fn new(weight: Tensor, bias: Tensor, eps: f64) -> Self {
        Self { weight, bias: Some(bias), remove_mean: true, eps }
    }

    /// A layer norm without a bias.
    #[must_use]
    pub fn new_no_bias(weight: Tensor, eps: f64) -> Self {
        Self { weight, bias: None, remove_mean: true, eps }
    }

    /// An RMS norm.
    #[must_use]
    pub fn rms_norm(weight: Tensor, eps: f64) -> Self {
        Self { weight, bias: None, remove_mean: false, eps }
    }

    /// The weight, `[N]`.
    #[must_use]
    pub fn weight(&self) -> &Tensor {
        &self.weight
    }

    /// The bias, `[N]`.
    #[must_use]
    pub fn bias(&self) -> Option<&Tensor> {
        self.bias.as_ref()
    }

    /// What is added to the variance.
    #[must_use]
    pub fn eps(&self) -> f64 {
        self.eps
    }

    /// Whether the mean is taken off: a layer norm, not an RMS norm.
    #[must_use]
    pub fn remove_mean(&self) -> bool {
        self.remove_mean
    }
}

impl Module for LayerNorm {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let norm = if self.remove_mean { crate::layer_norm(xs) } else { crate::rms_norm(xs) };
        Ok(norm.weight(&self.weight).bias(self.bias.as_ref()).epsilon(self.eps as f32).run()?)
    }
}

impl From<candle_nn::LayerNorm> for LayerNorm {
    fn from(layer: candle_nn::LayerNorm) -> Self {
        let (weight, bias) = (layer.weight().clone(), layer.bias().cloned());
        Self { weight, bias, remove_mean: layer.remove_mean(), eps: layer.eps() }
    }
}

/// A norm whose weight and bias `vb` has as `weight` and `bias`, or `gamma` and `beta`, or initialises as
/// [`candle_nn::layer_norm()`] does.
///
/// # Errors
///
/// If `vb` has no such tensors of these shapes.
pub fn layer_norm<C: Into<LayerNormConfig>>(size: usize, config: C, vb: VarBuilder) -> Result<LayerNorm> {
    candle_nn::layer_norm(size, config, vb).map(LayerNorm::from)
}

/// As [`layer_norm`], without a bias.
///
/// # Errors
///
/// As [`layer_norm`].
pub fn layer_norm_no_bias(size: usize, eps: f64, vb: VarBuilder) -> Result<LayerNorm> {
    candle_nn::layer_norm_no_bias(size, eps, vb).map(LayerNorm::from)
}

/// An RMS norm.
#[derive(Clone, Debug)]
pub struct RmsNorm(LayerNorm);

impl RmsNorm {
    /// An RMS norm with a weight `[N]`.
    #[must_use]
    pub fn new(weight: Tensor, eps: f64) -> Self {
        Self(LayerNorm::rms_norm(weight, eps))
    }

    /// The same as a [`LayerNorm`] that does not remove the mean.
    #[must_use]
    pub fn into_inner(self) -> LayerNorm {
        self.0
    }

    /// The weight, `[N]`.
    #[must_use]
    pub fn weight(&self) -> &Tensor {
        self.0.weight()
    }

    /// What is added to the mean of squares.
    #[must_use]
    pub fn eps(&self) -> f64 {
        self.0.eps()
    }

    /// The same as `forward`, which has gradients here.
    ///
    /// # Errors
    ///
    /// As [`NormOp::run`](crate::NormOp::run).
    pub fn forward_diff(&self, xs: &Tensor) -> Result<Tensor> {
        self.0.forward(xs)
    }
}

impl Module for RmsNorm {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        self.0.forward(xs)
    }
}

/// An RMS norm whose weight `vb` has as `weight`, or initialises with ones.
///
/// # Errors
///
/// If `vb` has no such tensor of this shape.
pub fn rms_norm(size: usize, eps: f64, vb: VarBuilder) -> Result<RmsNorm> {
    candle_nn::rms_norm(size, eps, vb).map(|norm| RmsNorm(norm.into_inner().into()))
}
