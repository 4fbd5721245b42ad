//! Steps of AdamW.

use std::fmt::Write as _;

use warpsmith::DType;
use warpsmith::optim::Rounding;

/// Some steps of AdamW to validate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamWCase {
    /// The type of the weights: f16, bf16 or f32.
    pub dtype: DType,
    /// The type of their gradients: f16, bf16 or f32.
    pub gradient: DType,
    /// How weights of 16 bits are rounded.
    pub rounding: Rounding,
    /// Tensors, each of which has an element more than the one before.
    pub tensors: usize,
    /// Elements of the first.
    pub length: usize,
    /// Elements in memory before the weights, and before their gradients.
    pub before: [usize; 2],
    /// What the norm of gradients is limited to.
    pub max_norm: Option<f32>,
    /// What the loss is multiplied with.
    pub loss_scale: Option<f32>,
    /// Steps.
    pub steps: usize,
    /// Decides the numbers.
    pub seed: u64,
}

impl AdamWCase {
    /// Two steps of one tensor that is aligned.
    #[must_use]
    pub fn new(dtype: DType, gradient: DType, length: usize) -> Self {
        Self {
            dtype,
            gradient,
            rounding: Rounding::Master,
            tensors: 1,
            length,
            before: [0, 0],
            max_norm: None,
            loss_scale: None,
            steps: 2,
            seed: 0,
        }
    }

    /// The sizes in short.
    #[must_use]
    pub fn shape(&self) -> String {
        format!("{}×{}", self.tensors, self.length)
    }

    /// The options in short.
    #[must_use]
    pub fn options(&self) -> String {
        let mut told = format!("{} steps", self.steps);
        if self.rounding == Rounding::Stochastic {
            told.push_str(" random");
        }
        if self.before != [0, 0] {
            let _ = write!(told, " after {},{}", self.before[0], self.before[1]);
        }
        if let Some(norm) = self.max_norm {
            let _ = write!(told, " norm {norm}");
        }
        if let Some(scale) = self.loss_scale {
            let _ = write!(told, " scale {scale}");
        }
        told
    }
}
