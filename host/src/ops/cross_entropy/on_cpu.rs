//! The cross-entropy on the CPU.

use rayon::prelude::*;

use super::{CrossEntropyOp, CrossEntropyOutputs, LabelElement, LogitElement, Reduction};
use crate::cpu::{self, RowLoss, Target};
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
        let row = |row: usize| &logits[row * columns..(row + 1) * columns];
        let of_row = |at: usize, gradient: Option<&mut [f32]>| {
            cpu::cross_entropy(row(at), targets[at], self.options, factor, gradient)
        };
        let rows: Vec<RowLoss<f32>> = match outputs.gradient {
            Some(gradient) => {
                let mut numbers = vec![0.0f32; logits.len()];
                // Without columns there are no chunks, but rows.
                let rows = if columns == 0 {
                    (0..sizes.rows).map(|at| of_row(at, None)).collect()
                } else {
                    let chunks = numbers.par_chunks_mut(columns).enumerate();
                    chunks.map(|(at, gradient)| of_row(at, Some(gradient))).collect()
                };
                gradient.write_slice(&rounded::<G>(&numbers))?;
                rows
            }
            None => (0..sizes.rows).into_par_iter().map(|at| of_row(at, None)).collect(),
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
