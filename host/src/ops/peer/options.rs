//! What can be asked of routing: gates, and how queries are normalised.

use std::fmt;

use warpsmith_dsl::product_key as kernels;

use crate::tensor::Tensor;

/// What an expert counts, of the scores of the k experts that a head has found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Gate {
    /// A softmax over the k scores.
    #[default]
    Softmax,
    /// The logistic function of the score.
    Sigmoid,
    /// The score, or 0 if it is negative.
    Relu,
    /// The score.
    Identity,
}

impl Gate {
    /// Every gate.
    pub const ALL: [Self; 4] = [Self::Softmax, Self::Sigmoid, Self::Relu, Self::Identity];

    /// The same for a kernel.
    pub(super) fn on_device(self) -> u32 {
        match self {
            Self::Softmax => kernels::GATE_SOFTMAX,
            Self::Sigmoid => kernels::GATE_SIGMOID,
            Self::Relu => kernels::GATE_RELU,
            Self::Identity => kernels::GATE_IDENTITY,
        }
    }
}

impl fmt::Display for Gate {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(match self {
            Self::Softmax => "softmax",
            Self::Sigmoid => "sigmoid",
            Self::Relu => "relu",
            Self::Identity => "identity",
        })
    }
}

/// The part of a normalisation before weight and bias.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind<'a> {
    None,
    Layer,
    Rms,
    L2,
    Batch { mean: &'a Tensor<f32>, variance: &'a Tensor<f32> },
}

/// How the query of a head, of d numbers, is normalised, in f32.
///
/// Every tensor has a number for each feature of a head, `[d]`, or for those of each head, `[H, d]`.
#[derive(Clone, Copy, Debug)]
pub struct QueryNorm<'a> {
    pub(super) kind: Kind<'a>,
    pub(super) epsilon: f32,
    pub(super) weight: Option<&'a Tensor<f32>>,
    pub(super) bias: Option<&'a Tensor<f32>>,
}

impl<'a> QueryNorm<'a> {
    const fn new(kind: Kind<'a>, epsilon: f32) -> Self {
        Self { kind, epsilon, weight: None, bias: None }
    }

    /// Not at all; weight and bias apply if there are any.
    #[must_use]
    pub const fn none() -> Self {
        Self::new(Kind::None, 0.0)
    }

    /// By mean and variance of the query: `(q − mean) / √(variance + epsilon)`.
    #[must_use]
    pub const fn layer(epsilon: f32) -> Self {
        Self::new(Kind::Layer, epsilon)
    }

    /// By the mean square of the query: `q / √(mean square + epsilon)`.
    #[must_use]
    pub const fn rms(epsilon: f32) -> Self {
        Self::new(Kind::Rms, epsilon)
    }

    /// By the length of the query: `q / max(length, epsilon)`.
    #[must_use]
    pub const fn l2(epsilon: f32) -> Self {
        Self::new(Kind::L2, epsilon)
    }

    /// By mean and variance of each feature, as training has left them: `(q − mean) / √(variance + epsilon)`.
    #[must_use]
    pub const fn batch(mean: &'a Tensor<f32>, variance: &'a Tensor<f32>, epsilon: f32) -> Self {
        Self::new(Kind::Batch { mean, variance }, epsilon)
    }

    /// Multiplies what is normalised.
    #[must_use]
    pub const fn weight(self, weight: &'a Tensor<f32>) -> Self {
        Self { weight: Some(weight), ..self }
    }

    /// Is added last.
    #[must_use]
    pub const fn bias(self, bias: &'a Tensor<f32>) -> Self {
        Self { bias: Some(bias), ..self }
    }
}
