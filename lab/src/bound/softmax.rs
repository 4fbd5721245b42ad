//! How far shares of rows, and losses of them, may be off.
//!
//! u is 2⁻²⁴, L the distance of a column's exponent to the row's largest, p its share, and E(L) = Σ p L.
//!
//! **Shares.** An exponent is a difference, rounded, times a factor, rounded, and rounded again: 3 u L off. That also holds of the sum of exponents that a number goes
//! through while the largest rises. A power is 4 u off, and its product with what the largest has risen by 5 u more for each round and at the end. A number of a sum is
//! added at most so often: in a round twice in a chunk, twice for its parts, and once for each of four chunks; 14 times over lanes, warps and blocks. A thread
//! has 8 columns or more of a round, so that there are at most 1 + N / 2048 rounds. On the CPU it is 32 and the logarithm of N. The reciprocal is 2 u off, the product
//! u. Powers below 2⁻¹²⁶ are 0.
//!
//! **Gradients of shares.** The sum of products is off by its additions and a rounding, the difference from it by u, the products with y and the scale by 2 u.
//!
//! **Losses.** A capped logit is 11 u off: the hyperbolic tangent 8 u, its argument 2 u, the product u. So lse is off by as much as the largest error of a logit, and
//! shares by twice that, relatively. The logarithm is off by what the sum is, relatively, by 2⁻²² of it or of 1, and by 2 u of it. The slope of the cap is 1 − t²,
//! where t is 13 u off: 28 u off with its rounding. Every product, difference and sum of the results is u off, 1 over the number of rows 3 u. A thread adds up
//! logits one after the other, for their mean.

use warpsmith::DType;
use warpsmith::cpu::{CrossEntropy, RowLoss, Target, cross_entropy};

use super::{Judgement, Rounding, U};

/// More than what second orders add.
const SECOND: f64 = 1.001;
/// More than what powers, and products with subnormal numbers, lose.
const TINY: f64 = f32::MIN_POSITIVE as f64 * 2.0;

/// A number, and what a result may differ from it by.
pub type Bounded = (f64, f64);

/// How often the sum over so many columns is rounded.
fn additions(columns: usize) -> f64 {
    let rounds = 1 + columns / 2048;
    let (on_cpu, over_threads, in_round) = (32 + 16, 14, 2 + 2 + 4 + 5);
    f64::from(on_cpu.max(over_threads)) + f64::from(in_round) * rounds as f64 + 5.0
}

/// What rounding to a type adds to the error of a number.
fn rounding(dtype: DType, number: f64) -> f64 {
    let Rounding { relative, absolute, .. } = Rounding::of(dtype);
    relative * number.abs() * SECOND + absolute
}

/// The largest error of each share of a row, relative to it, before it is rounded to its type.
fn share_errors(exponents: &[f64], shares: &[f64]) -> Vec<f64> {
    let max = exponents.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let distance = |exponent: f64| if exponent == f64::NEG_INFINITY { 0.0 } else { max - exponent };
    let mean: f64 = exponents.iter().zip(shares).map(|(&exponent, share)| share * distance(exponent)).sum();
    let others = 4.0 + 4.0 + 3.0 + additions(shares.len());
    exponents.iter().map(|&exponent| U * SECOND * (3.0 * (distance(exponent) + mean) + others)).collect()
}

/// The softmax of a row, of type `output`; see [`warpsmith::cpu::softmax()`].
#[must_use]
pub fn softmax(x: &[f32], mask: Option<&[u8]>, scale: f32, output: DType) -> Vec<Bounded> {
    let mut shares = vec![0.0f64; x.len()];
    warpsmith::cpu::softmax(x, mask, scale, &mut shares);
    let exponent = |column: usize| match mask {
        Some(mask) if mask[column] == 0 => f64::NEG_INFINITY,
        _ => f64::from(x[column]) * f64::from(scale),
    };
    let exponents: Vec<f64> = (0..x.len()).map(exponent).collect();
    let errors = share_errors(&exponents, &shares);
    // Also of NaN others.
    let relative = |share: f64, error: f64| if share == 0.0 { 0.0 } else { error * share };
    let bounded = |(share, error)| (share, relative(share, error) + TINY + rounding(output, share));
    shares.into_iter().zip(errors).map(bounded).collect()
}

/// The gradient of a row's softmax y, of type `output`; see [`warpsmith::cpu::softmax_gradient()`].
#[must_use]
pub fn softmax_gradient(y: &[f32], dy: &[f32], scale: f32, output: DType) -> Vec<Bounded> {
    let columns = y.len();
    let mut gradient = vec![0.0f64; columns];
    warpsmith::cpu::softmax_gradient(y, dy, scale, &mut gradient);
    let product = |column: usize| match y[column] {
        0.0 => 0.0,
        y => f64::from(y) * f64::from(dy[column]),
    };
    let sum: f64 = (0..columns).map(product).sum();
    let magnitude: f64 = (0..columns).map(|column| product(column).abs()).sum();
    let of_sum = (additions(columns) + 1.0) * U * magnitude;
    let bounded = |(column, number): (usize, f64)| {
        if y[column] == 0.0 {
            return (0.0, 0.0);
        }
        let difference = (f64::from(dy[column]) - sum).abs();
        let factor = f64::from(y[column]) * f64::from(scale);
        let error = factor * (of_sum + 3.0 * U * difference) * SECOND + TINY * f64::from(scale.max(1.0));
        (number, error + rounding(output, number.abs() + error))
    };
    gradient.into_iter().enumerate().map(bounded).collect()
}

/// What a row of logits gives.
#[derive(Clone, Debug)]
pub struct Loss {
    /// The loss.
    pub loss: Bounded,
    /// ln Σ exp(z).
    pub lse: Bounded,
    /// The gradient.
    pub gradient: Vec<Bounded>,
}

/// The loss of a row, and its gradient times `factor`, of type `output`; see [`warpsmith::cpu::cross_entropy()`].
#[must_use]
pub fn loss(x: &[f32], target: Target, options: CrossEntropy, factor: f64, output: DType) -> Loss {
    let columns = x.len();
    let mut gradient = vec![0.0f64; columns];
    let RowLoss { loss, lse } = cross_entropy(x, target, options, factor, Some(&mut gradient));
    let cap = options.soft_cap.map(f64::from);
    let capped = |&x: &f32| cap.map_or(f64::from(x), |cap| cap * (f64::from(x) / cap).tanh());
    let z: Vec<f64> = x.iter().map(capped).collect();
    let max = z.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let shares: Vec<f64> = z.iter().map(|z| (z - lse).exp()).collect();
    let of_logits = cap.map_or(0.0, |_| z.iter().fold(0.0, |most: f64, z| most.max(z.abs())) * 11.0 * U);
    let log = lse - max;
    let distance = |(&z, share): (&f64, &f64)| if *share == 0.0 { 0.0 } else { share * (max - z) };
    let mean_distance: f64 = z.iter().zip(&shares).map(distance).sum();
    let of_sum = U * (3.0 * mean_distance + 9.0 + additions(columns));
    let of_log = SECOND * (of_sum + 2f64.powi(-22) * (1.0 + log) + 2.0 * U * log);
    let of_lse = (of_logits + of_log + U * lse.abs()) * SECOND;
    let of_type = |(number, error): (f64, f64)| (number, error + rounding(output, number.abs() + error));
    let Target::Column(label) = target else {
        let gradient = gradient.into_iter().map(|number| (number, 0.0)).collect();
        return Loss { loss: (loss, 0.0), lse: (lse, of_lse), gradient };
    };
    let [smoothing, z_loss] = [options.smoothing, options.z_loss].map(f64::from);
    let to_label = lse - z[label];
    let mut of_loss = 2.0 * of_logits + of_log + U * ((max - z[label]).abs() + to_label.abs());
    if smoothing != 0.0 {
        let mean = z.iter().sum::<f64>() / columns as f64;
        let magnitude = z.iter().map(|z| z.abs()).sum::<f64>() / columns as f64;
        let adds = 32.0 * (1 + columns / 2048) as f64 + 48.0;
        let of_mean = of_logits + (adds + 3.0) * U * magnitude;
        let to_all = lse - mean;
        let of_all = of_logits + of_mean + of_log + U * ((max - mean).abs() + to_all.abs());
        let products = 3.0 * U * (to_label.abs() + to_all.abs());
        of_loss = (1.0 - smoothing) * of_loss + smoothing * of_all + products;
    }
    of_loss += z_loss.abs() * (2.0 * lse.abs() * of_lse + of_lse * of_lse + 4.0 * U * lse * lse);
    of_loss = (of_loss + U * loss.abs()) * SECOND;
    let weight = 1.0 + 2.0 * z_loss * lse;
    let of_weight = 2.0 * z_loss.abs() * of_lse + 2.0 * U * (1.0 + weight.abs());
    let of_shares = share_errors(&z, &shares);
    let error_of = |column: usize| {
        let wanted = smoothing / columns as f64 + if column == label { 1.0 - smoothing } else { 0.0 };
        let before = weight * shares[column] - wanted;
        let of_share = shares[column] * (of_shares[column] + 2.0 * of_logits) + TINY;
        let of_products = shares[column] * of_weight + 3.0 * U * wanted + U * before.abs();
        let of_before = (weight.abs() + of_weight) * of_share + of_products;
        let slope = cap.map_or(1.0, |cap| 1.0 - (z[column] / cap).powi(2));
        let of_slope = if cap.is_some() { 28.0 * U } else { 0.0 };
        let of_product = of_before * (slope + of_slope) + before.abs() * of_slope;
        (factor.abs() * of_product + 6.0 * U * gradient[column].abs()) * SECOND + TINY
    };
    let errors: Vec<f64> = (0..columns).map(error_of).collect();
    let gradient = gradient.into_iter().zip(errors).map(of_type).collect();
    Loss { loss: (loss, of_loss), lse: (lse, of_lse), gradient }
}

/// The sum of losses over `divisor`, and what it may be off by: its additions, 256 and more rows to a thread or a block, and 4 u for the divisor.
#[must_use]
pub fn total(losses: &[Bounded], divisor: f64) -> Bounded {
    let sum: f64 = losses.iter().map(|(loss, _)| loss).sum();
    let magnitude: f64 = losses.iter().map(|(loss, _)| loss.abs()).sum();
    let error: f64 = losses.iter().map(|(_, error)| error).sum();
    let additions = 48.0 + losses.len() as f64 / 256.0;
    (sum / divisor, (error + (additions + 4.0) * U * magnitude) / divisor * SECOND)
}

/// Whether a result is within its bound; of NaN it has to be NaN.
#[must_use]
pub fn is_within(found: f32, (expected, error): Bounded) -> bool {
    let found = f64::from(found);
    if expected.is_nan() { found.is_nan() } else { found == expected || (found - expected).abs() <= error }
}

/// What [`is_within`] says, with the error.
#[must_use]
pub fn judge(found: f64, (expected, bound): Bounded) -> Judgement {
    let is_same = found == expected || found.is_nan() && expected.is_nan();
    let error = if is_same { 0.0 } else { (found - expected).abs() };
    Judgement { error, bound, within: is_within(found as f32, (expected, bound)) }
}
