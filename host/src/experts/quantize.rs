//! Quantisation of a vector: the scale and the bias that its numbers ask for, and their codes.

use float8::F8E4M3;
use half::f16;

use crate::error::{Error, Result};

/// The largest number of [`F8E4M3`].
const LARGEST_FLOAT: f64 = 448.0;
/// The least exponent of a scale of 8-bit floats: an f32 holds every number in units of 2⁻⁹ of it.
const LEAST_EXPONENT: i32 = -126;

/// How the numbers of a vector become codes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Codes {
    /// Integers from 0 to `most`.
    Integers { scale: f16, bias: f16, most: u8 },
    /// 8-bit floats.
    Floats { scale: f32 },
}

impl Codes {
    /// For integers from 0 to `most`: the bias is the smallest number rounded down, the scale what it takes from there to the
    /// largest, rounded up.
    pub(super) fn of_integers(values: &[f32], most: u8) -> Result<Self> {
        let (mut smallest, mut largest) = match values.first() {
            Some(&first) => (first, first),
            None => (0.0, 0.0),
        };
        for &value in values {
            expect(value.is_finite(), value)?;
            (smallest, largest) = (smallest.min(value), largest.max(value));
        }
        let bias = rounded_down(smallest.into());
        expect(bias.is_finite(), smallest)?;
        // The opposite of what is rounded down is rounded up.
        let scale = -rounded_down((f64::from(bias) - f64::from(largest)) / f64::from(most));
        expect(scale.is_finite(), largest)?;
        Ok(Self::Integers { scale, bias, most })
    }

    /// For 8-bit floats: the scale is the smallest power of two with which all numbers are within their range.
    pub(super) fn of_floats(values: &[f32]) -> Result<Self> {
        let mut largest = 0f32;
        for &value in values {
            expect(value.is_finite(), value)?;
            largest = largest.max(value.abs());
        }
        if largest == 0.0 {
            return Ok(Self::Floats { scale: 1.0 });
        }
        let mut exponent = (f64::from(largest) / LARGEST_FLOAT).log2().ceil() as i32;
        // A logarithm may be rounded to the wrong side of an integer.
        while LARGEST_FLOAT * 2f64.powi(exponent) < largest.into() {
            exponent += 1;
        }
        while LARGEST_FLOAT * 2f64.powi(exponent - 1) >= largest.into() {
            exponent -= 1;
        }
        Ok(Self::Floats { scale: 2f32.powi(exponent.max(LEAST_EXPONENT)) })
    }

    /// The code of a number of the vector.
    pub(super) fn code(self, value: f32) -> u8 {
        match self {
            Self::Integers { scale, bias, most } => {
                if scale == f16::ZERO {
                    return 0;
                }
                let steps = (f64::from(value) - f64::from(bias)) / f64::from(scale);
                steps.round_ties_even().clamp(0.0, most.into()) as u8
            }
            Self::Floats { scale } => F8E4M3::from_f64(f64::from(value) / f64::from(scale)).to_bits(),
        }
    }

    /// The word that stands for scale and bias.
    pub(super) fn word(self) -> u32 {
        match self {
            Self::Integers { scale, bias, .. } => {
                u32::from(scale.to_bits()) | u32::from(bias.to_bits()) << 16
            }
            Self::Floats { scale } => scale.to_bits(),
        }
    }
}

fn expect(holds: bool, value: f32) -> Result<()> {
    if holds {
        return Ok(());
    }
    Err(Error::Argument {
        operation: "ExpertLayout::pack",
        argument: "a number",
        expected: "finite, and within what scale and bias of the format hold".into(),
        actual: value.to_string(),
    })
}

/// The largest f16 that is not above `value`; −∞ if there is none.
fn rounded_down(value: f64) -> f16 {
    let nearest = f16::from_f64(value);
    if nearest.to_f64() <= value {
        return nearest;
    }
    let bits = nearest.to_bits();
    f16::from_bits(match bits {
        // Below both zeros is the smallest negative number.
        0 | 0x8000 => 0x8001,
        _ if bits & 0x8000 == 0 => bits - 1,
        _ => bits + 1,
    })
}

#[cfg(test)]
mod tests {
    use half::f16;

    use super::{Codes, rounded_down};

    #[test]
    fn numbers_are_rounded_down_to_the_next_f16() {
        for bits in (0..0x7c00u16).step_by(7) {
            for sign in [0, 0x8000] {
                let number = f16::from_bits(bits | sign);
                assert_eq!(rounded_down(number.to_f64()), number);
                let above = rounded_down(number.to_f64().next_up());
                assert_eq!(above, number, "just above {number}");
                let below = rounded_down(number.to_f64().next_down());
                assert!(below < number, "just below {number}: {below}");
                assert!(rounded_down(below.to_f64().next_up()) == below);
            }
        }
        assert_eq!(rounded_down(1e9), f16::MAX);
        assert_eq!(rounded_down(-1e9), f16::NEG_INFINITY);
    }

    fn numbers(count: usize, spread: f32, middle: f32) -> Vec<f32> {
        (0..count).map(|i| ((i * 7919 + 13) % 1009) as f32 / 1009.0 * spread + middle).collect()
    }

    #[test]
    fn integer_codes_are_within_half_a_scale_and_scales_are_what_the_range_asks_for() {
        for most in [255, 15] {
            for (spread, middle) in
                [(2.0, -1.0), (1e-3, 5.0), (3e4, -1e4), (0.0, 0.1), (1e-9, 0.0), (0.5, -64.0)]
            {
                for count in [0, 1, 2, 300] {
                    let values = numbers(count, spread, middle);
                    let codes = Codes::of_integers(&values, most).expect("they are within range");
                    let Codes::Integers { scale, bias, .. } = codes else { panic!("integers") };
                    let (scale, bias) = (scale.to_f64(), bias.to_f64());
                    for &value in &values {
                        let got = bias + scale * f64::from(codes.code(value));
                        let error = (got - f64::from(value)).abs();
                        assert!(error <= scale / 2.0 * (1.0 + 1e-12), "{value} became {got}");
                    }
                    // The range grows by the bias' rounding, the scale by its own.
                    let (most, spread, middle) = (f64::from(most), f64::from(spread), f64::from(middle));
                    let size = middle.abs().max((spread + middle).abs());
                    let range = spread + size * 2f64.powi(-10) + 2f64.powi(-24);
                    assert!(scale <= range / most * (1.0 + 2f64.powi(-10)) + 2f64.powi(-24), "{scale}");
                }
            }
        }
    }

    #[test]
    fn integers_with_the_range_of_the_codes_are_exact() {
        let values: Vec<f32> = (0..256).map(|code| code as f32 - 64.0).collect();
        let codes = Codes::of_integers(&values, 255).expect("they are within range");
        assert_eq!(
            codes.word(),
            u32::from(f16::ONE.to_bits()) | u32::from(f16::from_f32(-64.0).to_bits()) << 16
        );
        assert!(values.iter().enumerate().all(|(code, &value)| usize::from(codes.code(value)) == code));
    }

    #[test]
    fn float_codes_are_within_a_sixteenth_or_the_least_step() {
        for size in [1.0f32, 448.0, 448.1, 3e-30, 7e37, 1e-44, f32::MAX] {
            let values: Vec<f32> = numbers(500, 2.0, -1.0).iter().map(|number| number * size).collect();
            let codes = Codes::of_floats(&values).expect("they are finite");
            let Codes::Floats { scale } = codes else { panic!("floats") };
            for &value in &values {
                let code = float8::F8E4M3::from_bits(codes.code(value)).to_f64();
                let error = (code * f64::from(scale) - f64::from(value)).abs();
                let allowed = (f64::from(value).abs() / 16.0).max(2f64.powi(-10) * f64::from(scale));
                assert!(error <= allowed, "{value} at scale {scale}");
            }
        }
    }

    #[test]
    fn numbers_that_no_code_stands_for_are_refused() {
        for bad in [f32::NAN, f32::INFINITY, -1e6] {
            assert!(Codes::of_integers(&[0.0, bad], 15).is_err(), "{bad}");
        }
        assert!(Codes::of_integers(&[0.0, 3e7], 255).is_err());
        assert!(Codes::of_floats(&[f32::NEG_INFINITY]).is_err());
    }
}
