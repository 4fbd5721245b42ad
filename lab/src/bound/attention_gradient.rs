//! How far the gradients of attention may be from the exact ones; see [`attention`](super::attention) for logits and their errors, and [`bound`](super) for sums and
//! for u.
//!
//! Of a row i and a key j let `p = exp(s − lse)`, `x = dy·v − Δ` with `Δ = Σ dy ∘ y`, c the slope of the soft cap, 1 without one, and `ds = p · x · c`. Then, with sums over
//! the rows of all heads that share a key,
//!
//! ```text
//! dq = scale · Σⱼ ds k      dk = scale · Σᵢ ds q      dv = Σᵢ p dy      dsink = −Σᵢ exp(sink − lse) Δ
//! ```
//!
//! Of factors that are off by δa and δb, the product is off by at most `(|a| + δa)(|b| + δb) − |a b|`, and so on for more of them.
//!
//! **Weights.** A weight's exponent is off by what its logit is, and by what lse is, which has its own bound. Roundings come on top: of their difference, and of the factor
//! that makes it a power of two. So it is as off as a weight of the forward pass, with lse in the place of the largest logit. The CPU divides by the sum instead, whose logarithm lse
//! is: one rounding more. So p is off by `p · e` with `e = (1 + w) exp(δlse) (1 + 2u) − 1`, with w the error of such a weight.
//!
//! **Δ.** GPUs add up products with the rounded y, which is off by its bound β: `Σ |dy| β`, and the D products pass through at most D + 6 roundings. The CPU adds up
//! `p · (dy·v)` over the keys: each weight is off by `p · e`, each product by `a(D) · A` with `A = Σ |dy v|`, and K + 2 roundings.
//!
//! **x** is off by `δx = a(D) · A + δΔ`, and a rounding of the difference.
//!
//! **The slope of the cap** is `(1 − t)(1 + t)` with t a hyperbolic tangent, within 16u, of what is off by `(a(D) + 4u) · S / cap`: twice that, and 4u.
//!
//! **Gradients of scores** have three roundings of their own. GPUs round them, and weights, to the type T of the operands before they multiply: t of themselves, or η where
//! they are subnormal in T. Below 2⁻¹²⁶ a number may become 0.
//!
//! **Sums** of n products are off by a(n) of the sum of magnitudes, on the CPU by n + 1 roundings. The scale is one rounding more, and the result is rounded to T. The
//! gradient of a sink is a sum of f32 in some order, a rounding for each term.

use warpsmith::DType;
use warpsmith::cpu::PRODUCT_LANES as LANES;
use warpsmith::ops::{Precision, Products};

use super::attention::{AttentionModel, Element, Logit, SMALLEST, Sum, judged};
use super::{Arithmetic, Judgement, U};

/// The error bounds of the gradients of one attention; the module's text derives them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GradientModel {
    pub(crate) forward: AttentionModel,
    arithmetic: Arithmetic,
    dtype: DType,
    /// a(D) of values.
    values: f64,
    value_width: usize,
    keys: usize,
}

/// What is known of a row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RowGradient {
    /// Δ.
    pub(crate) delta: f64,
    /// What it may be off by.
    pub(crate) delta_error: f64,
    /// The row's sum.
    pub(crate) sum: Sum,
}

/// A row and a key: each number with what it may be off by, as an operand of products.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PairGradient {
    /// p.
    pub(crate) weight: [f64; 2],
    /// ds.
    pub(crate) score: [f64; 2],
}

/// A product dy·v: itself, and the sum of magnitudes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ValueProduct {
    pub(crate) product: f64,
    pub(crate) magnitude: f64,
}

/// A sum of products of one operand that may be off and one that is exact.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct GradientSum {
    /// The sum.
    pub(crate) exact: f64,
    error: f64,
    magnitude: f64,
}

impl GradientSum {
    pub(crate) fn add(&mut self, [number, error]: [f64; 2], factor: f64) {
        self.exact += number * factor;
        self.error += error * factor.abs();
        self.magnitude += (number.abs() + error) * factor.abs();
    }

    /// Adds what another sum has.
    pub(crate) fn join(&mut self, other: Self) {
        self.exact += other.exact;
        self.error += other.error;
        self.magnitude += other.magnitude;
    }
}

impl GradientModel {
    /// The bounds for so many elements of a query and of a value, and keys.
    pub(crate) fn new(
        arithmetic: Arithmetic,
        dtype: DType,
        [width, value_width]: [usize; 2],
        keys: usize,
    ) -> Self {
        let forward = AttentionModel::new(arithmetic, dtype, width, keys);
        let model = Self { forward, arithmetic, dtype, values: 0.0, value_width, keys };
        let lanes = value_width.min(value_width / LANES + 2 * LANES);
        let values = if model.is_on_cpu() { (lanes as f64 + 1.0) * U } else { model.sums(value_width) };
        Self { values, ..model }
    }

    fn is_on_cpu(&self) -> bool {
        self.arithmetic == Arithmetic::Cpu
    }

    /// a(n).
    fn sums(&self, count: usize) -> f64 {
        if self.is_on_cpu() {
            return (count as f64 + 1.0) * U;
        }
        Products::choose(self.dtype, count, Precision::Full, true).error(count)
    }

    /// e.
    fn weight_error(&self, of: Logit, sum: Sum) -> f64 {
        let of_lse = self.forward.lse_error(sum).exp() * (1.0 + 2.0 * U);
        (1.0 + self.forward.weight_error(of, sum.lse)) * of_lse - 1.0
    }

    /// What is known of a row with these elements, of which `dy` are the gradients; each of its keys has a weight, without errors, and a product dy·v.
    pub(crate) fn row(
        &self,
        dy: &[f64],
        elements: &[Element],
        sum: Sum,
        pairs: impl Iterator<Item = (Logit, f64, ValueProduct)>,
    ) -> RowGradient {
        let of_y = || dy.iter().zip(elements);
        let delta = of_y().map(|(dy, element)| dy * element.y).sum();
        let delta_error = if self.is_on_cpu() {
            let (mut error, mut magnitude) = (0.0, 0.0);
            for (of, weight, ValueProduct { magnitude: of_product, .. }) in pairs {
                let factor = (1.0 + self.weight_error(of, sum)) * (1.0 + self.values);
                error += weight * of_product * (factor - 1.0);
                magnitude += weight * of_product * factor;
            }
            error + (self.keys as f64 + 2.0) * U * magnitude
        } else {
            let bounds =
                of_y().map(|(dy, element)| dy.abs() * self.forward.judge(element.y, *element, sum).bound);
            let error: f64 = bounds.sum();
            let magnitude: f64 = of_y().map(|(dy, element)| (dy * element.y).abs()).sum();
            error + (self.value_width as f64 + 6.0) * U * (magnitude + error)
        };
        RowGradient { delta, delta_error, sum }
    }

    /// The weight and the gradient of the score of a row and a key, with this weight, product dy·v and argument of the soft cap's slope.
    pub(crate) fn pair(
        &self,
        row: RowGradient,
        of: Logit,
        weight: f64,
        product: ValueProduct,
        slope: f64,
    ) -> PairGradient {
        let e = self.weight_error(of, row.sum);
        let x = product.product - row.delta;
        let before = self.values * product.magnitude + row.delta_error;
        let x_error = before + U * (x.abs() + before);
        let slope_error = if of.cap > 0.0 {
            2.0 * (16.0 * U + (self.forward.products + 4.0 * U) * of.size / of.cap) + 4.0 * U
        } else {
            0.0
        };
        let score = weight * x * slope;
        let largest = weight * (1.0 + e) * (x.abs() + x_error) * (slope + slope_error) * (1.0 + 3.0 * U);
        PairGradient {
            weight: self.operand(weight, weight * e),
            score: self.operand(score, largest - score.abs()),
        }
    }

    /// A number that is off by so much, as an operand.
    fn operand(&self, number: f64, error: f64) -> [f64; 2] {
        let rounding = self
            .forward
            .of_weight
            .map_or(0.0, |rounding| (rounding.relative * (number.abs() + error)).max(rounding.absolute));
        [number, error + rounding + SMALLEST]
    }

    /// The weight of the sink of a row, and Δ: what the row adds to the gradient, and what that may be off by.
    pub(crate) fn of_sink(&self, row: RowGradient, sink: f64) -> [f64; 2] {
        let of = Logit { logit: sink, ..Logit::default() };
        let (weight, e) = ((sink - row.sum.lse).exp(), self.weight_error(of, row.sum));
        let largest = weight * (1.0 + e) * (row.delta.abs() + row.delta_error) * (1.0 + U) + SMALLEST;
        [-weight * row.delta, largest - weight * row.delta.abs()]
    }

    /// Compares a gradient with the sum of so many products, times `factor`.
    pub(crate) fn judge(&self, got: f64, sum: GradientSum, count: usize, factor: f64) -> Judgement {
        let exact = sum.exact * factor;
        let error = factor.abs() * (sum.error + self.sums(count) * sum.magnitude);
        let before = error + U * (exact.abs() + error) + SMALLEST;
        let rounding = self.forward.rounding;
        let bound = before + (rounding.relative * (exact.abs() + before)).max(rounding.absolute);
        judged(got, exact, bound)
    }

    /// Compares the gradient of a sink with the sum of what so many rows add.
    pub(crate) fn judge_sink(&self, got: f64, sum: GradientSum, rows: usize) -> Judgement {
        judged(got, sum.exact, sum.error + (rows as f64 + 2.0) * U * sum.magnitude)
    }
}

#[cfg(test)]
mod tests {
    use warpsmith::DType;

    use super::super::Arithmetic;
    use super::{Element, GradientModel, GradientSum, Logit, Sum, ValueProduct};

    const SUM: Sum = Sum { lse: 1.0, largest: 0.5, error: 0.0 };
    const PLAIN: Logit = Logit { logit: 0.25, size: 2.0, cap: 0.0, added: 0.0 };

    fn model(arithmetic: Arithmetic, dtype: DType) -> GradientModel {
        GradientModel::new(arithmetic, dtype, [64, 64], 128)
    }

    #[test]
    fn gradients_of_scores_are_rounded_where_kernels_do_it() {
        let element = Element { y: 0.5, magnitude: 0.5, weighted: 0.0, plain: 1.0 };
        let product = ValueProduct { product: 1.0, magnitude: 1.0 };
        let error = |arithmetic, dtype| {
            let model = model(arithmetic, dtype);
            let weight = (PLAIN.logit - SUM.lse).exp();
            let row = model.row(&[1.0], &[element], SUM, [(PLAIN, weight, product)].into_iter());
            let pair = model.pair(row, PLAIN, weight, product, 1.0);
            assert_eq!(pair.score[0], weight * 0.5);
            pair.score[1] / pair.score[0]
        };
        // The rounded y is what the difference is off by, too.
        let of_bf16 = error(Arithmetic::TensorCore, DType::Bf16);
        assert!(of_bf16 > 2f64.powi(-8) && of_bf16 < 6.0 * 2f64.powi(-8), "{of_bf16}");
        let of_f16 = error(Arithmetic::TensorCore, DType::F16);
        assert!(of_f16 > 2f64.powi(-11) && of_f16 < 6.0 * 2f64.powi(-11), "{of_f16}");
        assert!(error(Arithmetic::Cpu, DType::Bf16) < 2f64.powi(-14));
    }

    #[test]
    fn more_than_a_rounding_is_not_allowed() {
        let model = model(Arithmetic::Cpu, DType::Bf16);
        let mut sum = GradientSum::default();
        sum.add([0.5, 0.0], 2.0);
        let once = 2f64.powi(-8);
        assert!(model.judge(1.0 + 0.9 * once, sum, 1, 1.0).within);
        assert!(!model.judge(1.0 + 1.1 * once, sum, 1, 1.0).within);
        assert!(!model.judge(f64::NAN, sum, 1, 1.0).within);
        assert!(model.judge(-4.0, sum, 1, -4.0).within);
        assert!(!model.judge_sink(1.001, sum, 1).within && model.judge_sink(1.0, sum, 1).within);
    }
}
