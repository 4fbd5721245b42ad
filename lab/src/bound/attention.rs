//! How far attention may be from the exact one; see [`bound`](super) for the sums, and for u.
//!
//! K is the number of keys. Of one row let `sⱼ` be the logits of the keys that it attends to, m the largest of them and the sink, `pⱼ = exp(sⱼ − m)`, l the sum of these and the
//! sink's, and `y = Σ pⱼ vⱼ / l`. Hats mark what is computed.
//!
//! **Logits.** Let `Sⱼ = |scale| · Σ |qₓ kⱼₓ|`. The product is off by `a(D) · Sⱼ`, with a(D) the error of such sums; the scale, and the factor that makes
//! exponentials powers of two, add 3u · Sⱼ. A soft cap has a slope of at most 1. Its quotient is rounded, 2u · Sⱼ, and the hyperbolic tangent is within 16u, and
//! within 128u of itself, which the cap multiplies. Bias and distance are added to what is at most Sⱼ: with their own product, 3u · (Sⱼ + |bias| + |slope · distance|).
//!
//! A scale of keys is multiplied with the scale: one rounding more, u · Sⱼ, with the keys in S that stored numbers stand for. Stored numbers are widened exactly.
//!
//! **Weights.** The difference to the largest logit is rounded, in units of either: 4u · (|sⱼ| + |m|). An exponential is within 2⁻²¹ of itself (`ex2.approx`: 2⁻²²).
//! Where keys come in blocks of at least 16, the weights before are multiplied by the exponential of the difference of two maxima each time. What is rounded of these
//! differences adds up to at most 2u · (|sⱼ| + |m|), since maxima only rise; where a maximum stays, the factor is exactly 1. Each exponential and product loses 2⁻²¹. So an exponent is off by δⱼ, the sum of all this, and the weight by `eⱼ ≤ exp(δⱼ) − 1` of itself, in the sum of values as in that of weights:
//!
//! ```text
//! Σ p̂ⱼ vⱼ / Σ p̂ⱼ − y = Σ pⱼ eⱼ (vⱼ − y) / Σ p̂ⱼ, at most (Σ pⱼ eⱼ |vⱼ| + |y| Σ pⱼ eⱼ) / (l (1 − ε)) with ε = Σ pⱼ eⱼ / l
//! ```
//!
//! On the CPU a product of a row and a key is added up in 8 sums: each of its terms passes through at most `⌊D / 8⌋ + 17` roundings, and no more than D + 1.
//! All keys are one block, and the exponential is within 2u of itself. Weights and values are added up in turn, with K + 1 roundings each.
//!
//! **Sums.** GPUs round weights to the type T of the values before they multiply: t · pⱼ, or η where it is subnormal in T. Below 2⁻¹²⁶ a weight may
//! become 0. The sum of values is off by `a(K) · Σ pⱼ |vⱼ|`, with the factors of later blocks one rounding for each more; that of weights by (K + 8) · 2u of
//! itself. The quotient has two roundings, a product with a scale of values one more, and the result is
//! rounded to T.
//!
//! **The logarithm** of l̂ is off by `−ln(1 − ε − …)` for the errors of the weights and of their sum. Its own evaluation, the product that makes it natural, and the
//! sum with m add 4u · (|m| + |ln l| + |lse|) + 2⁻²¹.

use warpsmith::DType;
use warpsmith::cpu::PRODUCT_LANES as LANES;
use warpsmith::ops::{Precision, Products};

use super::{Arithmetic, Judgement, Rounding, U};

/// The relative error of an exponential, and of a factor of earlier blocks.
const EXPONENTIAL: f64 = 1.0 / (1u64 << 21) as f64;
/// The fewest keys of a block.
const BLOCK: usize = 16;
/// Below this a weight may become 0.
pub(super) const SMALLEST: f64 = f32::MIN_POSITIVE as f64;

/// The error bound of one attention; the module's text derives it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AttentionModel {
    /// a(D).
    pub(super) products: f64,
    /// What a scale of keys adds to that.
    key_scale: f64,
    /// What a scale of values changes a result by.
    value_scale: f64,
    /// a(K), with one more for each block.
    values: f64,
    /// The error of the sum of weights.
    weights: f64,
    /// The error of an exponential, and of what becomes of it when later blocks have larger maxima.
    exponential: f64,
    /// What rounding a weight does, where it is rounded.
    pub(super) of_weight: Option<Rounding>,
    pub(super) rounding: Rounding,
}

/// A key's logit, with what it is made of.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Logit {
    /// s.
    pub(crate) logit: f64,
    /// S, the sum of the products' magnitudes, with the scale.
    pub(crate) size: f64,
    /// The soft cap; 0 if there is none.
    pub(crate) cap: f64,
    /// What is added, in magnitude.
    pub(crate) added: f64,
}

/// One element of the reference.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Element {
    /// The result.
    pub(crate) y: f64,
    /// `Σ p |v| / l`.
    pub(crate) magnitude: f64,
    /// `Σ p e |v| / l`.
    pub(crate) weighted: f64,
    /// `Σ |v| / l`.
    pub(crate) plain: f64,
}

/// The sum of a row of the reference.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sum {
    /// The logarithm of the sum of exponentials.
    pub(crate) lse: f64,
    /// m.
    pub(crate) largest: f64,
    /// ε.
    pub(crate) error: f64,
}

impl AttentionModel {
    /// The bound for so many elements of a query, and keys.
    pub(crate) fn new(arithmetic: Arithmetic, dtype: DType, width: usize, keys: usize) -> Self {
        let on_cpu = arithmetic == Arithmetic::Cpu;
        let in_turn = |count: usize| (count as f64 + 1.0) * U;
        let sums = |count: usize| Products::choose(dtype, count, Precision::Full, true).error(count);
        let rescales = if on_cpu { 0.0 } else { keys.div_ceil(BLOCK) as f64 };
        Self {
            products: if on_cpu { in_turn(width.min(width / LANES + 2 * LANES)) } else { sums(width) },
            key_scale: 0.0,
            value_scale: 0.0,
            values: if on_cpu { in_turn(keys) } else { sums(keys) + 2.0 * U * rescales },
            weights: if on_cpu { in_turn(keys) } else { (keys as f64 + 8.0 + rescales) * 2.0 * U },
            exponential: if on_cpu { 2.0 * U } else { (1.0 + rescales) * EXPONENTIAL },
            of_weight: (!on_cpu).then(|| Rounding::of(dtype)),
            rounding: Rounding::of(dtype),
        }
    }

    /// With scales of keys, and of values.
    pub(crate) fn with_scales(self, [of_keys, of_values]: [bool; 2]) -> Self {
        let rounding = |is_there: bool| if is_there { U } else { 0.0 };
        Self { key_scale: rounding(of_keys), value_scale: rounding(of_values), ..self }
    }

    /// e, what a weight may be off by of itself, in a row whose largest logit is `largest`.
    pub(crate) fn weight_error(&self, of: Logit, largest: f64) -> f64 {
        let cap = if of.cap > 0.0 { 16.0 * U * of.cap.min(8.0 * of.size) + 2.0 * U * of.size } else { 0.0 };
        let logit =
            (self.products + self.key_scale + 3.0 * U) * of.size + cap + 3.0 * U * (of.size + of.added);
        let exponent = 6.0 * U * (of.logit.abs() + largest.abs());
        (logit + exponent + self.exponential).exp_m1()
    }

    /// Compares a result with its reference, in a row whose sum is `sum`.
    pub(crate) fn judge(&self, got: f64, expected: Element, sum: Sum) -> Judgement {
        let Element { y, magnitude, weighted, plain } = expected;
        let rounded = self.of_weight.map_or([0.0; 2], |rounding| [rounding.relative, rounding.absolute]);
        let of_weights = weighted + y.abs() * sum.error;
        let of_sums = (self.values + rounded[0]) * magnitude + (rounded[1] + SMALLEST) * plain;
        let of_quotient = (self.weights + self.value_scale + 2.0 * U) * y.abs();
        let before = (of_weights + of_sums * (1.0 + sum.error) + of_quotient) / self.kept(sum);
        let bound = before + (self.rounding.relative * (y.abs() + before)).max(self.rounding.absolute);
        judged(got, y, bound)
    }

    /// Compares the logarithm of a sum with its reference.
    pub(crate) fn judge_lse(&self, got: f64, sum: Sum) -> Judgement {
        judged(got, sum.lse, self.lse_error(sum))
    }

    /// How far the logarithm of a sum may be off.
    pub(super) fn lse_error(&self, sum: Sum) -> f64 {
        let Sum { lse, largest, .. } = sum;
        let own = 4.0 * U * (largest.abs() + (lse - largest).abs() + lse.abs()) + EXPONENTIAL;
        own - self.kept(sum).ln()
    }

    /// The least part of a sum of weights that is left; never nothing, so that bounds are finite.
    fn kept(&self, sum: Sum) -> f64 {
        (1.0 - sum.error - self.weights).max(f64::MIN_POSITIVE)
    }
}

pub(super) fn judged(got: f64, expected: f64, bound: f64) -> Judgement {
    let error = if got == expected { 0.0 } else { (got - expected).abs() };
    let error = if error.is_nan() { f64::INFINITY } else { error };
    Judgement { error, bound, within: error <= bound }
}

#[cfg(test)]
mod tests {
    use warpsmith::DType;

    use super::super::Arithmetic;
    use super::{AttentionModel, Element, Logit, Sum};

    const SUM: Sum = Sum { lse: 2.0, largest: 1.0, error: 0.0 };

    fn bound(arithmetic: Arithmetic, dtype: DType, expected: Element) -> f64 {
        AttentionModel::new(arithmetic, dtype, 64, 256).judge(expected.y, expected, SUM).bound
    }

    #[test]
    fn rounding_weights_is_allowed_where_kernels_do_it() {
        let expected = Element { y: 0.0, magnitude: 1.0, weighted: 0.0, plain: 16.0 };
        for (dtype, rounding) in [(DType::F16, 2f64.powi(-11)), (DType::Bf16, 2f64.powi(-8))] {
            assert!(bound(Arithmetic::TensorCore, dtype, expected) > rounding);
            assert!(bound(Arithmetic::TensorCore, dtype, expected) < 1.2 * rounding);
            assert!(bound(Arithmetic::Cpu, dtype, expected) < 0.1 * rounding);
        }
    }

    #[test]
    fn a_result_is_rounded_once() {
        let expected = Element { y: 1.0, magnitude: 1.0, weighted: 0.0, plain: 1.0 };
        let once = 2f64.powi(-8);
        assert!((once..1.05 * once).contains(&bound(Arithmetic::Cpu, DType::Bf16, expected)));
    }

    #[test]
    fn errors_of_logits_grow_with_what_they_are_made_of() {
        let model = AttentionModel::new(Arithmetic::TensorCore, DType::Bf16, 64, 64);
        let plain = Logit { logit: 1.0, size: 4.0, cap: 0.0, added: 0.0 };
        let error = |of| model.weight_error(of, 2.0);
        let least = error(plain);
        assert!(least > 0.0 && least < 1e-4);
        assert!(error(Logit { size: 8.0, ..plain }) > 1.5 * least);
        assert!(error(Logit { cap: 50.0, ..plain }) > 1.5 * least);
        assert!(error(Logit { added: 1000.0, ..plain }) > 1.5 * least);
        assert!(error(Logit { logit: -1000.0, ..plain }) > 1.5 * least);
    }

    #[test]
    fn nan_is_never_within_a_bound() {
        let model = AttentionModel::new(Arithmetic::Cpu, DType::F32, 8, 8);
        let expected = Element { y: 1.0, magnitude: 1.0, weighted: 0.0, plain: 1.0 };
        assert!(!model.judge(f64::NAN, expected, SUM).within);
        assert!(!model.judge_lse(f64::NEG_INFINITY, SUM).within);
        assert!(model.judge(1.0, expected, SUM).within && model.judge_lse(2.0, SUM).within);
    }
}
