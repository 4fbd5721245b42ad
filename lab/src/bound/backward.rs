//! How far the gradients of linear layers may be off.
//!
//! u is 2⁻²⁴. A slope is off by [`Activation::derivative_ulps`] · u, and dZ = dY · slope by that of |dY| and one rounding. Two more factors, the scales, are
//! two more roundings; the residual's factor is one. What the products read is rounded to the operands' type, where it is not dY itself.
//!
//! A gradient of the bias is a sum over M rows. Whatever their order, a term passes through at most M − 1 additions, and one more onto what is there: M · u of the
//! sum of magnitudes. Sums of products are bounded as those of a linear layer, with what their terms are off by
//! ([`Expected::inner`](super::Expected::inner)).

use warpsmith::DType;
use warpsmith::ops::Activation;

use super::{Judgement, Rounding, U};

/// What is lost near zero.
const TINY: f64 = f32::MIN_POSITIVE as f64;

/// A number, and how far off a result may be before it is rounded to its type.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Near {
    /// The number.
    pub exact: f64,
    /// How far off.
    pub error: f64,
}

impl Near {
    /// dY · slope, in f32.
    #[must_use]
    pub fn gradient(dy: f64, slope: f64, activation: Activation) -> Self {
        let exact = dy * slope;
        if activation == Activation::None {
            return Self { exact, error: 0.0 };
        }
        let error = (activation.derivative_ulps() * U + TINY) * dy.abs();
        Self { exact, error: error + (exact.abs() + error) * U + TINY }
    }

    /// The same times a factor that is exact, or the product of two, with so many roundings.
    #[must_use]
    pub fn times(self, factor: f64, roundings: f64) -> Self {
        let (exact, error) = (self.exact * factor, self.error * factor.abs());
        if roundings == 0.0 {
            return Self { exact, error };
        }
        Self { exact, error: error + (exact.abs() + error) * (roundings + U) * U + TINY * (1.0 + roundings) }
    }

    /// The product with another, rounded.
    #[must_use]
    pub fn by(self, other: Self) -> Self {
        let exact = self.exact * other.exact;
        let error = self.error * other.exact.abs() + (self.exact.abs() + self.error) * other.error;
        Self { exact, error: error + (exact.abs() + error) * U + TINY }
    }

    /// The sum of numbers, and of one that is exact.
    #[must_use]
    pub fn sum(numbers: impl Iterator<Item = Self>, before: f64) -> Self {
        let (mut exact, mut error, mut magnitude, mut count) = (before, 0.0, before.abs(), 0.0);
        for number in numbers {
            exact += number.exact;
            error += number.error;
            magnitude += number.exact.abs() + number.error;
            count += 1.0;
        }
        Self { exact, error: error + count * U * magnitude * (1.0 + count * U) }
    }

    /// How far off it may be once it has been rounded to a type.
    #[must_use]
    pub fn rounded(self, dtype: DType) -> Self {
        Self { error: self.bound(dtype), ..self }
    }

    fn bound(self, dtype: DType) -> f64 {
        let Rounding { relative, absolute, .. } = Rounding::of(dtype);
        // What is an f32 already, with its error, is not rounded again.
        let of_type = if dtype == DType::F32 {
            0.0
        } else {
            ((self.exact.abs() + self.error) * relative).max(absolute)
        };
        self.error + of_type
    }

    /// Compares a result of a type with it.
    #[must_use]
    pub fn judge(self, got: f64, dtype: DType) -> Judgement {
        let bound = self.bound(dtype);
        let error = if got == self.exact { 0.0 } else { (got - self.exact).abs() };
        Judgement { error, bound, within: error <= bound }
    }
}

#[cfg(test)]
mod tests {
    use warpsmith::DType;
    use warpsmith::ops::Activation;

    use super::Near;

    #[test]
    fn what_is_not_changed_is_exact_and_more_than_a_rounding_is_not_allowed() {
        let dy = Near::gradient(0.75, 1.0, Activation::None);
        assert_eq!(dy, Near { exact: 0.75, error: 0.0 });
        assert!(dy.judge(0.75, DType::F32).within && !dy.judge(0.750_000_1, DType::F32).within);
        assert!(dy.judge(0.75 + 0.75 / 512.0, DType::Bf16).within);
        assert!(!dy.judge(0.75 + 0.75 / 128.0, DType::Bf16).within);
        assert!(!dy.judge(f64::NAN, DType::F16).within);
        let slope = Near::gradient(2.0, 0.5, Activation::Silu);
        assert!(slope.error > 24.0 * 2f64.powi(-24) && slope.error < 26.0 * 2f64.powi(-24));
    }

    #[test]
    fn sums_are_off_by_a_rounding_for_each_number() {
        let ones = || (0..1000).map(|_| Near { exact: 1.0, error: 0.0 });
        let sum = Near::sum(ones(), 0.0);
        assert_eq!(sum.exact, 1000.0);
        assert!(sum.error > 1e6 * 2f64.powi(-24) && sum.error < 1.001e6 * 2f64.powi(-24));
        assert_eq!(Near::sum(std::iter::empty(), 3.0), Near { exact: 3.0, error: 0.0 });
    }
}
