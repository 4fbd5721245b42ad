//! Steps of AdamW.

use std::fmt::Write as _;

use warpsmith::DType;
use warpsmith::optim::{Rounding, SecondMoment};

/// What of the weights a gradient has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdamWRows {
    /// Everything: weights are vectors.
    All,
    /// Some rows: the first axis of weights has the length.
    Some {
        /// Elements of a row.
        columns: usize,
        /// Rows that the gradient has, at most.
        used: usize,
    },
    /// Some experts of a table of as many as the length.
    Experts {
        /// Inputs of an expert; it has three outputs more.
        inputs: usize,
        /// Hidden units of an expert.
        hidden: usize,
        /// Whether the units are gated.
        gated: bool,
        /// Experts that the gradient has, at most.
        used: usize,
    },
}

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
    /// Elements, or rows, of the first.
    pub length: usize,
    /// What of them gradients have.
    pub rows: AdamWRows,
    /// How many second moments there are.
    pub second_moment: SecondMoment,
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
            rows: AdamWRows::All,
            second_moment: SecondMoment::PerElement,
            before: [0, 0],
            max_norm: None,
            loss_scale: None,
            steps: 2,
            seed: 0,
        }
    }

    /// The rows of tensor `number` that have a gradient in a step, in ascending order; of weights that are moved as a whole none.
    #[must_use]
    pub fn ids(&self, number: usize, step: usize) -> Vec<u32> {
        let rows = self.length + number;
        let used = match self.rows {
            AdamWRows::All => 0,
            AdamWRows::Some { used, .. } | AdamWRows::Experts { used, .. } => used.min(rows),
        };
        // One of each of so many equal parts of the rows, another in each step.
        let apart = rows.checked_div(used).unwrap_or(1).max(1);
        let first = (step + self.seed as usize % 7) % apart;
        (0..used).map(|place| (place * rows / used + first) as u32).collect()
    }

    /// The sizes in short.
    #[must_use]
    pub fn shape(&self) -> String {
        let &Self { tensors, length, .. } = self;
        match self.rows {
            AdamWRows::All => format!("{tensors}×{length}"),
            AdamWRows::Some { columns, .. } => format!("{tensors}×{length}×{columns}"),
            AdamWRows::Experts { inputs, hidden, gated, .. } => {
                let vectors = hidden * if gated { 3 } else { 2 };
                format!("{tensors}×{length}×{vectors}×{inputs}")
            }
        }
    }

    /// The options in short.
    #[must_use]
    pub fn options(&self) -> String {
        let mut told = format!("{} steps", self.steps);
        match self.rows {
            AdamWRows::All => {}
            AdamWRows::Some { used, .. } => {
                let _ = write!(told, " {used} rows");
            }
            AdamWRows::Experts { used, .. } => {
                let _ = write!(told, " {used} experts");
            }
        }
        if self.second_moment == SecondMoment::PerRow {
            told.push_str(" moments by row");
        }
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
