//! What can be asked of routing: how queries are normalised.

use crate::tensor::Tensor;

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
