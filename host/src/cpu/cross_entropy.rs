//! The cross-entropy of a row of logits, and its gradient, on the CPU.

use super::number::Accumulator;
use super::sums::{max_nan, pairwise};

/// What the loss of a row is made of.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CrossEntropy {
    /// ε: the part of the label's probability that all columns share.
    pub smoothing: f32,
    /// ζ: what the square of the logarithm of the sum of exponentials adds to the loss.
    pub z_loss: f32,
    /// What logits are capped at: z = cap · tanh(x / cap).
    pub soft_cap: Option<f32>,
}

/// The label of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// A column.
    Column(usize),
    /// None that there is: loss and gradient are NaN.
    Outside,
    /// The row does not count: loss and gradient are 0.
    Ignored,
}

/// What a row gives.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RowLoss<A> {
    /// The loss.
    pub loss: A,
    /// ln Σ exp(z).
    pub lse: A,
}

/// The loss of a row, and `factor` times its gradient with respect to the logits, which has their length.
///
/// With V logits x and label l: `loss = (1 − ε) (lse − z[l]) + ε (lse − mean(z)) + ζ lse²`.
pub fn cross_entropy<A: Accumulator>(
    logits: &[f32],
    target: Target,
    options: CrossEntropy,
    factor: A,
    gradient: Option<&mut [A]>,
) -> RowLoss<A> {
    let [smoothing, z_loss] = [options.smoothing, options.z_loss].map(A::from_f32);
    let cap = options.soft_cap.map(A::from_f32);
    let z = |column: usize| {
        let x = A::from_f32(logits[column]);
        cap.map_or(x, |cap| cap * (x / cap).tanh())
    };
    let all = || 0..logits.len();
    let count = A::from_f64(logits.len() as f64);
    let max = all().map(z).fold(A::neg_infinity(), max_nan);
    let base = if max == A::neg_infinity() { A::zero() } else { max };
    let power = |column: usize| (z(column) - base).exp();
    let sum = pairwise(all(), &power);
    let lse = max + sum.ln();
    let loss = match target {
        Target::Ignored => A::zero(),
        Target::Outside => A::nan(),
        Target::Column(label) => {
            let mut loss = (max - z(label)) + sum.ln();
            if options.smoothing != 0.0 {
                let to_all = (max - pairwise(all(), &z) / count) + sum.ln();
                loss = (A::one() - smoothing) * loss + smoothing * to_all;
            }
            if options.z_loss != 0.0 {
                loss += z_loss * lse * lse;
            }
            loss
        }
    };
    let Some(gradient) = gradient else { return RowLoss { loss, lse } };
    let of_lse = if options.z_loss == 0.0 { A::one() } else { A::one() + (z_loss + z_loss) * lse };
    for (column, gradient) in gradient.iter_mut().enumerate() {
        let is_label = target == Target::Column(column);
        let wanted = smoothing / count + if is_label { A::one() - smoothing } else { A::zero() };
        let slope = cap.map_or(A::one(), |cap| {
            let t = (A::from_f32(logits[column]) / cap).tanh();
            (A::one() - t) * (A::one() + t)
        });
        *gradient = match target {
            Target::Ignored => A::zero(),
            Target::Outside => A::nan(),
            Target::Column(_) => (of_lse * (power(column) / sum) - wanted) * slope * factor,
        };
    }
    RowLoss { loss, lse }
}

#[cfg(test)]
mod tests {
    use super::{CrossEntropy, RowLoss, Target, cross_entropy};

    const PLAIN: CrossEntropy = CrossEntropy { smoothing: 0.0, z_loss: 0.0, soft_cap: None };

    #[test]
    fn equal_logits_lose_the_logarithm_of_their_number() {
        let RowLoss { loss, lse } =
            cross_entropy::<f64>(&[3.0; 129_920], Target::Column(5), PLAIN, 1.0, None);
        assert!((loss - 129_920f64.ln()).abs() < 1e-12 && (lse - 3.0 - loss).abs() < 1e-12);
    }

    #[test]
    fn rows_that_do_not_count_have_zeros_and_labels_outside_nan() {
        let mut gradient = [1.0f32; 2];
        let row = cross_entropy(&[f32::NAN, 1.0], Target::Ignored, PLAIN, 1.0, Some(&mut gradient));
        assert!(row.loss == 0.0 && row.lse.is_nan() && gradient == [0.0; 2]);
        let row = cross_entropy(&[2.0, 1.0], Target::Outside, PLAIN, 1.0, Some(&mut gradient));
        assert!(row.loss.is_nan() && row.lse.is_finite() && gradient.iter().all(|g| g.is_nan()));
    }

    #[test]
    fn gradients_are_those_of_finite_differences() {
        let logits: Vec<f32> = (0..9).map(|i| ((i * 37 % 11) as f32 - 5.0) / 2.0).collect();
        for smoothing in [0.0, 0.125] {
            for z_loss in [0.0, 0.03125] {
                for soft_cap in [None, Some(4.0)] {
                    let options = CrossEntropy { smoothing, z_loss, soft_cap };
                    let target = Target::Column(4);
                    let mut gradient = [0.0f64; 9];
                    cross_entropy(&logits, target, options, 0.5, Some(&mut gradient));
                    for column in 0..9 {
                        let slope = |step: f32| {
                            let moved = |by: f32| {
                                let mut logits = logits.clone();
                                logits[column] += by;
                                cross_entropy::<f64>(&logits, target, options, 1.0, None).loss
                            };
                            (moved(step) - moved(-step)) / f64::from(2.0 * step)
                        };
                        let expected = 0.5 * (4.0 * slope(1.0 / 64.0) - slope(1.0 / 32.0)) / 3.0;
                        let found = gradient[column];
                        // What the extrapolation leaves is of the fourth order in 2⁻⁵.
                        assert!((found - expected).abs() < 1e-6, "{options:?}, {column}: {found} {expected}");
                    }
                }
            }
        }
    }
}
