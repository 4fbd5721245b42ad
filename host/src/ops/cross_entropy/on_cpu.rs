//! The cross-entropy on the CPU.

use rayon::prelude::*;

use super::{CrossEntropyOp, CrossEntropyOutputs, LabelElement, LogitElement, Reduction};
use crate::cpu::{self, CrossEntropy, RowLoss, Target};
use crate::error::Result;
use crate::ops::rows::{RowElement, Sizes, rounded, widened};

impl<T: LogitElement, L: LabelElement> CrossEntropyOp<'_, T, L> {
    /// What a label means.
    fn target(&self, label: i64, columns: usize) -> Target {
        if self.ignored == Some(label) {
            return Target::Ignored;
        }
        match usize::try_from(label) {
            Ok(column) if column < columns => Target::Column(column),
            _ => Target::Outside,
        }
    }

    pub(super) fn run_on_cpu<G: RowElement>(
        &self,
        sizes: Sizes,
        outputs: CrossEntropyOutputs<'_, G>,
    ) -> Result<()> {
        let columns = sizes.columns;
        let logits = widened(self.logits)?;
        let labels = self.labels.to_vec()?;
        let targets: Vec<Target> = labels.iter().map(|&label| self.target(label.into(), columns)).collect();
        let count = targets.iter().filter(|target| **target != Target::Ignored).count();
        let mut factor = self.gradient_scale;
        if let Some(scale) = self.device_scale {
            factor *= scale.to_vec()?[0];
        }
        if self.reduction == Reduction::Mean {
            factor /= count.max(1) as f32;
        }
        let losses = Losses { columns, logits: &logits, targets: &targets, options: self.options, factor };
        let rows = match outputs.gradient {
            Some(gradient) => {
                let mut numbers = vec![0.0f32; logits.len()];
                let rows = losses.with_gradient(&mut numbers);
                gradient.write_slice(&rounded::<G>(&numbers))?;
                rows
            }
            None => losses.alone(),
        };
        if let Some(lse) = outputs.lse {
            lse.write_slice(&rows.iter().map(|row| row.lse).collect::<Vec<f32>>())?;
        }
        let Some(loss) = outputs.loss else { return Ok(()) };
        let sum = || cpu::pairwise(0..rows.len(), &|at| rows[at].loss);
        match self.reduction {
            Reduction::None => loss.write_slice(&rows.iter().map(|row| row.loss).collect::<Vec<f32>>()),
            Reduction::Sum => loss.write_slice(&[sum()]),
            Reduction::Mean => loss.write_slice(&[sum() / count.max(1) as f32]),
        }
    }
}

/// The losses of rows. Without the operands' types, so that programs have this once.
struct Losses<'a> {
    columns: usize,
    logits: &'a [f32],
    targets: &'a [Target],
    options: CrossEntropy,
    factor: f32,
}

impl Losses<'_> {
    fn of_row(&self, at: usize, gradient: Option<&mut [f32]>) -> RowLoss<f32> {
        let logits = &self.logits[at * self.columns..(at + 1) * self.columns];
        cpu::cross_entropy(logits, self.targets[at], self.options, self.factor, gradient)
    }

    fn alone(&self) -> Vec<RowLoss<f32>> {
        (0..self.targets.len()).into_par_iter().map(|at| self.of_row(at, None)).collect()
    }

    /// And their gradients.
    fn with_gradient(&self, gradients: &mut [f32]) -> Vec<RowLoss<f32>> {
        if self.columns == 0 {
            // There are no chunks, but rows.
            return self.alone();
        }
        let rows = gradients.par_chunks_mut(self.columns).enumerate();
        rows.map(|(at, gradient)| self.of_row(at, Some(gradient))).collect()
    }
}
