//! How far a step of AdamW may be off.
//!
//! u is 2⁻²⁴. The scalars of a step are computed in f64 and rounded once, and so is each operation of an element. With δ the error of what is above, c the shares
//! 1 − β, i the inverse root, s the step size and d the decay:
//!
//! - The gradient: two products, and what the clipping factor is off by.
//! - m: δg · c, three roundings of c · (g − m), one of m.
//! - v: 2 δg · g · c, three roundings of c · (g² − v), one of v.
//! - √v: δv / √v, or √δv where that is less; one rounding. The divisor r: i times that, two roundings of √v · i, one of r.
//! - q = m / r: (δm + |q| δr) / (r − δr), one rounding.
//! - v of a row: the mean of its gradients' squares is off by 2 δg / g, and by u for each addition that a term passes through, for its square and for the division.
//!   The additions are one for each 128 columns, 2 of a lane's sums and 5 of a warp. Then two roundings of c · (mean − v), one of v.
//! - w: two roundings of d · w and one of what is left, s · δq, two roundings of s · q, one of w. A weight of 16 bits is rounded once more; randomly, by less than the
//!   distance of two numbers.
//!
//! **The norm.** All squares are positive, so the relative error of the sum is u for each addition that a term passes through,
//! and 3 u of its own. 4 of a thread, 2 of its sums, 5 of a warp and 7 of a block, then one for each 1024 pieces, 5 of a warp
//! and 31 of the block. The root halves it.
//!
//! Terms of second order are below a hundredth of these. What is below 2⁻¹⁴⁹ may be lost.

use warpsmith::DType;
use warpsmith::cpu::AdamWScalars;

use super::{Rounding, U};

/// What is lost near zero, in any of a step's operations.
const TINY: f64 = 1e-44;
/// For terms of second order.
const SLACK: f64 = 1.01;

/// The relative error of the norm of the gradients of so many pieces.
#[must_use]
pub fn norm_error(pieces: usize) -> f64 {
    let additions = 4 + 2 + 5 + 7 + pieces.div_ceil(1024) + 5 + 31;
    ((additions + 3) as f64 / 2.0 + 1.0) * U * SLACK
}

/// The results of a step of one element, exactly: the weight and both moments, and what each may be off by. Of weights before they are rounded to 16 bits.
#[must_use]
pub fn adamw(
    scalars: &AdamWScalars<f64>,
    (gradient, relative): (f64, f64),
    [weight, mean, square]: [f64; 3],
) -> [(f64, f64); 3] {
    let share = scalars.shares[1];
    let new_square = scalars.element(gradient, [1.0; 2], [weight, mean, square])[2];
    let of_gradient = gradient.abs() * relative + TINY;
    let of_square = share
        * (2.0 * of_gradient * gradient.abs() + 3.0 * U * (gradient * gradient - square).abs())
        + U * new_square
        + TINY;
    let [weight, mean] = moved(scalars, (gradient, of_gradient), (new_square, of_square), [weight, mean]);
    [weight, mean, (new_square, of_square * SLACK)]
}

/// The second moment of a row after a step, exactly, and what it may be off by; of its gradients and the relative error of each.
#[must_use]
pub fn row_moment(
    scalars: &AdamWScalars<f64>,
    (gradients, relative): (&[f64], f64),
    square: f64,
) -> (f64, f64) {
    let mean = gradients.iter().map(|gradient| gradient * gradient).sum::<f64>() / gradients.len() as f64;
    let additions = gradients.len().div_ceil(128) + 2 + 5;
    let of_mean = mean * (2.0 * relative + (additions + 2) as f64 * U) + TINY;
    let exact = scalars.square(mean, square);
    let error = scalars.shares[1] * (of_mean + 2.0 * U * (mean - square).abs()) + U * exact + TINY;
    (exact, error * SLACK)
}

/// The weight and the first moment of an element whose row has one second moment, as [`adamw`] has them.
#[must_use]
pub fn of_row(
    scalars: &AdamWScalars<f64>,
    (gradient, relative): (f64, f64),
    square: (f64, f64),
    [weight, mean]: [f64; 2],
) -> [(f64, f64); 2] {
    let of_gradient = gradient.abs() * relative + TINY;
    moved(scalars, (gradient, of_gradient), square, [weight, mean])
}

/// The weight and the first moment of an element, of its gradient and its new second moment, each with what it may be off by.
fn moved(
    scalars: &AdamWScalars<f64>,
    (gradient, of_gradient): (f64, f64),
    (square, of_square): (f64, f64),
    [weight, mean]: [f64; 2],
) -> [(f64, f64); 2] {
    let exact = scalars.moved(gradient, scalars.divisor(square), [weight, mean]);
    let of_mean =
        scalars.shares[0] * (of_gradient + 3.0 * U * (gradient - mean).abs()) + U * exact[1].abs() + TINY;
    let root = square.sqrt();
    let of_root = (of_square / root).min(of_square.sqrt()) + U * root;
    let divisor = root * scalars.inverse_root + scalars.epsilon;
    let of_divisor = scalars.inverse_root * (of_root + 2.0 * U * root) + 2.0 * U * divisor + TINY;
    let ratio = exact[1] / divisor;
    let least = divisor - of_divisor;
    let of_ratio = if least > 0.0 {
        (of_mean + ratio.abs() * of_divisor) / least + U * ratio.abs() + TINY
    } else {
        f64::INFINITY
    };
    let decayed = weight - scalars.decay * weight;
    let of_weight = 2.0 * U * (scalars.decay * weight).abs()
        + U * decayed.abs()
        + scalars.step_size * (of_ratio + 2.0 * U * ratio.abs())
        + U * exact[0].abs()
        + TINY;
    [(exact[0], of_weight * SLACK), (exact[1], of_mean * SLACK)]
}

/// The same of a weight of a type of 16 bits, rounded to the nearest or randomly.
#[must_use]
pub fn rounded((exact, error): (f64, f64), dtype: DType, is_random: bool) -> (f64, f64) {
    let Rounding { relative, absolute, .. } = Rounding::of(dtype);
    let half = ((exact.abs() + error) * relative).max(absolute);
    (exact, error + if is_random { 2.0 * half } else { half })
}
