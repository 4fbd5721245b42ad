//! The precision policy: how exact a product has to be, and which arithmetic of the tensor cores that asks for.
//!
//! | products | for | error of a sum of K products, relative to Σ \|xₖwₖ\| |
//! |---|---|---|
//! | [`Products::Direct`] | f16, bf16 | the products are exact; 2⁻²³ · (K + 8) from adding them in f32 |
//! | [`Products::ThreeTf32`] | f32 | 2⁻¹⁹ + 2⁻²⁴ · (42 + ⌈K/8⌉); validated to be below 10⁻⁵ for K up to 4096 |
//! | [`Products::Tf32`] | f32 | 2⁻¹⁰ + 2⁻²¹ from rounding the inputs to 11 significant bits, and 2⁻²³ · (K + 8) |
//!
//! The module `warpsmith_lab::bound` derives these errors. [`Products::choose`] is the policy, a pure function.

use crate::DType;

/// How exact the product of an operation has to be.
///
/// Whatever is asked for, an operation may be more exact, and is where the device has no faster arithmetic that would do.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub enum Precision {
    /// The accuracy of the operands' type: f32 operands are multiplied at f32 accuracy.
    #[default]
    Full,
    /// f32 operands may be rounded to TF32, which has f32's range and 11 significant bits, before they are multiplied. Sums stay
    /// in f32. The error is about 2⁻¹⁰ of the sum of the products' magnitudes. No change for 16-bit operands.
    Tf32,
    /// Any arithmetic whose error is known to be at most so much of the sum of the products' magnitudes, |A| |B|.
    ///
    /// If no arithmetic is that exact, it is as [`Precision::Full`]; so is a number that is negative or NaN.
    Within(f64),
}

/// How numbers are multiplied on tensor cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Products {
    /// As they are: the products of 16-bit numbers are exact.
    Direct,
    /// f32, rounded to TF32.
    Tf32,
    /// f32, as the sums of two TF32 numbers: three products for each.
    ThreeTf32,
}

impl Products {
    /// The fastest arithmetic for inputs of type `input` and sums of `k` products that is as exact as `precision` asks.
    ///
    /// `has_tf32` tells whether the device has kernels for [`Products::Tf32`] and these operands. Where it does not, the choice is more
    /// exact, never less.
    #[must_use]
    pub fn choose(input: DType, k: usize, precision: Precision, has_tf32: bool) -> Self {
        if input != DType::F32 {
            return Self::Direct;
        }
        let tf32_will_do = match precision {
            Precision::Full => false,
            Precision::Tf32 => true,
            Precision::Within(allowed) => Self::Tf32.error(k) <= allowed,
        };
        if has_tf32 && tf32_will_do { Self::Tf32 } else { Self::ThreeTf32 }
    }

    /// Whether it is as exact as `other`, for the same inputs.
    #[must_use]
    pub fn is_at_least(self, other: Self) -> bool {
        self == other || (self, other) == (Self::ThreeTf32, Self::Tf32)
    }

    /// The largest error of a sum of `k` products, relative to the sum of their magnitudes; see `warpsmith_lab::bound`.
    #[must_use]
    pub fn error(self, k: usize) -> f64 {
        /// Half a unit in the last place of an f32 near 1.
        const U: f64 = 1.0 / (1u64 << 24) as f64;
        let sums = (k as f64 + 8.0) * 2.0 * U;
        match self {
            Self::Direct => sums,
            Self::Tf32 => 2f64.powi(-10) + 2f64.powi(-21) + sums,
            Self::ThreeTf32 => 2f64.powi(-19) + (42 + k.div_ceil(8)) as f64 * U,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Precision, Products};
    use crate::DType;

    const POLICIES: [Precision; 6] = [
        Precision::Full,
        Precision::Tf32,
        Precision::Within(1e-2),
        Precision::Within(1e-6),
        Precision::Within(-1.0),
        Precision::Within(f64::NAN),
    ];

    #[test]
    fn operands_of_16_bits_are_multiplied_as_they_are_whatever_is_asked_for() {
        for input in [DType::F16, DType::Bf16] {
            for precision in POLICIES {
                assert_eq!(Products::choose(input, 4096, precision, true), Products::Direct);
            }
        }
    }

    #[test]
    fn f32_is_multiplied_at_f32_accuracy_unless_less_is_asked_for() {
        let choose = |precision| Products::choose(DType::F32, 4096, precision, true);
        assert_eq!(
            POLICIES.map(choose).map(|products| products == Products::Tf32),
            [false, true, true, false, false, false]
        );
        assert_eq!(choose(Precision::default()), Products::ThreeTf32);
    }

    #[test]
    fn a_device_without_tf32_kernels_is_never_less_exact() {
        for precision in POLICIES {
            assert_eq!(Products::choose(DType::F32, 64, precision, false), Products::ThreeTf32);
        }
    }

    #[test]
    fn an_allowed_error_is_kept_for_every_length() {
        for k in [0, 1, 784, 4096, 1 << 20, 1 << 29] {
            for allowed in [1e-6, 1e-4, 9.7e-4, 1e-3, 2e-3, 1.0] {
                let products = Products::choose(DType::F32, k, Precision::Within(allowed), true);
                if products == Products::Tf32 {
                    assert!(products.error(k) <= allowed, "{k} {allowed}");
                } else {
                    assert!(Products::Tf32.error(k) > allowed, "{k} {allowed}");
                }
            }
        }
    }
}
