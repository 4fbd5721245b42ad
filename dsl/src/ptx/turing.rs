//! Instructions that sm_75 lacks, made of those that it has. They take the places of their namesakes in a build with the feature `turing`.

use super::cvt_f16_f32;

/// The larger number; NaN if either is NaN.
#[inline(always)]
#[must_use]
pub fn max_nan(a: f32, b: f32) -> f32 {
    let larger = if a > b { a } else { b };
    if a.is_nan() { a } else { larger }
}

/// Both rounded to half precision, `a` in the upper half of the result.
#[inline(always)]
#[must_use]
pub fn cvt_f16x2_f32(a: f32, b: f32) -> u32 {
    (cvt_f16_f32(a) as u32) << 16 | cvt_f16_f32(b) as u32
}

/// Rounds to the nearest bfloat16, ties to even: a carry into the upper half of the bits.
#[inline(always)]
#[must_use]
pub fn cvt_bf16_f32(value: f32) -> u16 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
    if value.is_nan() { 0x7fff } else { rounded as u16 }
}

/// Both rounded to bfloat16, `a` in the upper half of the result.
#[inline(always)]
#[must_use]
pub fn cvt_bf16x2_f32(a: f32, b: f32) -> u32 {
    (cvt_bf16_f32(a) as u32) << 16 | cvt_bf16_f32(b) as u32
}

#[cfg(test)]
mod tests {
    use super::{cvt_bf16_f32, max_nan};

    #[test]
    fn numbers_are_rounded_to_the_nearest_bfloat16_and_ties_to_even() {
        for bits in [0u32, 0x8000, 0x3f80, 0x3f81, 0x0001, 0x7f7e, 0xbf81] {
            let (low, high) = (f32::from_bits(bits << 16), f32::from_bits((bits + 1) << 16));
            let between = |part: u32| f32::from_bits((bits << 16) + part);
            assert_eq!(cvt_bf16_f32(low), bits as u16);
            assert_eq!(cvt_bf16_f32(between(0x7fff)), bits as u16);
            assert_eq!(cvt_bf16_f32(between(0x8001)), bits as u16 + 1);
            assert_eq!(cvt_bf16_f32(between(0x8000)), bits as u16 + (bits & 1) as u16, "{low} and {high}");
        }
        assert_eq!(cvt_bf16_f32(f32::MAX), 0x7f80, "too large");
        assert_eq!(cvt_bf16_f32(f32::NEG_INFINITY), 0xff80);
        for nan in [f32::NAN, f32::from_bits(0x7f80_0001), f32::from_bits(0xffff_ffff)] {
            assert_eq!(cvt_bf16_f32(nan), 0x7fff);
        }
    }

    #[test]
    fn the_larger_number_is_nan_if_either_is() {
        assert_eq!(
            (max_nan(1.0, 2.0), max_nan(2.0, 1.0), max_nan(-1.0, f32::INFINITY)),
            (2.0, 2.0, f32::INFINITY)
        );
        assert!(max_nan(f32::NAN, 0.0).is_nan() && max_nan(0.0, f32::NAN).is_nan());
    }
}
