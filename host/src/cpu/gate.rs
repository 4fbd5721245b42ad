//! The gates of experts.

use std::fmt;

use warpsmith_dsl::product_key as kernels;

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
    pub(crate) fn on_device(self) -> u32 {
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
