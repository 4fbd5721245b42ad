//! Random bits by counter, and rounding by them: pure functions, the same on the host and on the device.

use super::KIND_BF16;

/// Philox4x32-10: 128 random bits of a counter and a key (Salmon, Moraes, Dror, Shaw: Parallel Random Numbers: As Easy as 1, 2, 3, 2011).
#[inline(always)]
#[must_use]
pub const fn philox_4x32(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    let ([mut a, mut b, mut c, mut d], [mut first, mut second]) = (counter, key);
    let mut round = 0;
    while round < 10 {
        let (left, right) = (0xd251_1f53 * a as u64, 0xcd9e_8d57 * c as u64);
        [a, b, c, d] =
            [(right >> 32) as u32 ^ b ^ first, right as u32, (left >> 32) as u32 ^ d ^ second, left as u32];
        first = first.wrapping_add(0x9e37_79b9);
        second = second.wrapping_add(0xbb67_ae85);
        round += 1;
    }
    [a, b, c, d]
}

/// The bits of one of the two numbers of a 16-bit type next to `value`: of the upper one, of larger magnitude, with the probability that makes the mean `value`.
///
/// `kind` says f16 or bf16. Numbers of the type stay as they are; above the largest, the next is infinity. A NaN stays one.
///
/// For bf16, and for f16 from 2⁻¹⁴ on, the probability is exact. Below, it is to 2⁻³¹.
#[inline(always)]
#[must_use]
pub const fn round_randomly(value: f32, kind: u32, random: u32) -> u16 {
    let bits = value.to_bits();
    let (sign, magnitude) = (bits >> 16 & 0x8000, bits & 0x7fff_ffff);
    let is_nan = magnitude > 0x7f80_0000;
    if kind == KIND_BF16 {
        // Infinity has none of the bits that are dropped.
        let rounded = (magnitude + (random & 0xffff)) >> 16;
        return (sign | if is_nan { 0x7fff } else { rounded }) as u16;
    }
    let exponent = magnitude >> 23;
    let is_normal = exponent != 0;
    let significand = magnitude & 0x007f_ffff | if is_normal { 1 << 23 } else { 0 };
    // Below 2⁻¹⁴, whose exponent is 113, the numbers are as far apart as there.
    let below = if exponent < 113 { 113 - if is_normal { exponent } else { 1 } } else { 0 };
    let above = exponent.saturating_sub(113);
    let dropped = 13 + below;
    // The significand has 24 bits: what is shifted out here is less than 2⁻³¹ of the distance of two numbers.
    let (shift, excess) = if dropped > 31 { (31, dropped - 31) } else { (dropped, 0) };
    let significand = if excess > 24 { 0 } else { significand >> excess };
    let rounded = (significand + (random & ((1 << shift) - 1))) >> shift;
    // What is carried goes into the exponent.
    let finite = rounded + (above << 10);
    let number = if above > 30 || finite > 0x7c00 { 0x7c00 } else { finite };
    (sign | if is_nan { 0x7fff } else { number }) as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::adamw::KIND_F16;

    #[test]
    fn philox_gives_the_published_numbers() {
        // Known answers of Random123.
        assert_eq!(philox_4x32([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(
            philox_4x32([u32::MAX; 4], [u32::MAX; 2]),
            [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]
        );
        assert_eq!(
            philox_4x32([0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344], [0xa409_3822, 0x299f_31d0]),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }

    /// The number of f16's bits.
    fn of_f16(bits: u16) -> f64 {
        let (sign, exponent, fraction) =
            (if bits & 0x8000 == 0 { 1.0 } else { -1.0 }, (bits >> 10 & 31) as i32, (bits & 0x3ff) as f64);
        let two = |power: i32| f64::from_bits(((1023 + power) as u64) << 52);
        match exponent {
            31 if fraction == 0.0 => sign * f64::INFINITY,
            31 => f64::NAN,
            0 => sign * fraction * two(-24),
            _ => sign * (1024.0 + fraction) * two(exponent - 25),
        }
    }

    #[test]
    fn numbers_of_the_type_stay_and_others_go_to_a_neighbour() {
        let randoms = [0, 1, 0x1fff, 0x8000_0000, 0x7fff_ffff, u32::MAX];
        for bits in 0..=u16::MAX {
            let (half, brain) = (of_f16(bits) as f32, f32::from_bits((bits as u32) << 16));
            for random in randoms {
                for (value, kind) in [(half, KIND_F16), (brain, KIND_BF16)] {
                    let rounded = round_randomly(value, kind, random);
                    if value.is_nan() {
                        assert_eq!(rounded & 0x7fff, 0x7fff);
                    } else {
                        assert_eq!(rounded, bits, "{value} of kind {kind}");
                    }
                }
            }
            // Between it and the next: least random bits give it, most the next.
            let next = bits.wrapping_add(1);
            if bits & 0x7fff < 0x7bff {
                let middle = (of_f16(bits) * 0.75 + of_f16(next) * 0.25) as f32;
                let one_in = |random| round_randomly(middle, KIND_F16, random);
                assert_eq!((one_in(0), one_in(u32::MAX)), (bits, next), "{middle}");
            }
        }
    }

    #[test]
    fn the_probability_is_the_distance() {
        // A quarter of the way, exactly: a quarter of all random bits go up.
        for (value, kind, bits) in [
            (1.0 + 0.25 / 1024.0, KIND_F16, 13),
            (3.25 / 16_777_216.0, KIND_F16, 24),
            (1.0 + 0.25 / 128.0, KIND_BF16, 16),
        ] {
            let base = round_randomly(value, kind, 0);
            let up = (0..1u32 << 12)
                .filter(|step| round_randomly(value, kind, step << (bits - 12)) != base)
                .count();
            assert_eq!(up, 1 << 10, "{value}");
        }
    }

    #[test]
    fn what_is_too_large_or_too_small_goes_to_infinity_and_zero() {
        for random in [0, u32::MAX] {
            assert_eq!(round_randomly(1e30, KIND_F16, random), 0x7c00);
            assert_eq!(round_randomly(f32::NEG_INFINITY, KIND_F16, random), 0xfc00);
            assert_eq!(round_randomly(f32::INFINITY, KIND_BF16, random), 0x7f80);
            assert_eq!(round_randomly(f32::from_bits(1), KIND_F16, random), 0);
        }
        assert_eq!(round_randomly(65_519.0, KIND_F16, u32::MAX), 0x7c00);
        assert_eq!(round_randomly(65_519.0, KIND_F16, 0), 0x7bff);
        assert_eq!(round_randomly(f32::MAX, KIND_BF16, u32::MAX), 0x7f80);
        assert_eq!(round_randomly(f32::MAX, KIND_BF16, 0), 0x7f7f);
    }
}
