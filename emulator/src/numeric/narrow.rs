//! The 8-bit floats e4m3 and e5m2 as bits, to and from f32.
//!
//! e5m2 is the upper half of an f16. e4m3 has no infinities: its largest exponent is one of numbers, but for the largest
//! significand, which is NaN.

use super::half::f16_to_f32;

/// NaN, as the GPU writes it in both formats.
pub(crate) const NAN8: u8 = 0x7f;

/// e4m3 to f32, exact.
#[inline(always)]
pub(crate) const fn e4m3_to_f32(bits: u8) -> f32 {
    let sign = (bits as u32 & 0x80) << 24;
    let magnitude = bits as u32 & 0x7f;
    let value = match magnitude {
        0x7f => 0x7fff_ffff,
        0..8 => (magnitude as f32 * f32::from_bits((127 - 9) << 23)).to_bits(),
        _ => (magnitude << 20) + ((127 - 7) << 23),
    };
    f32::from_bits(value | sign)
}

/// e5m2 to f32, exact.
#[inline(always)]
pub(crate) fn e5m2_to_f32(bits: u8) -> f32 {
    f16_to_f32(u16::from(bits) << 8)
}

/// Every value of e4m3.
pub(crate) static E4M3: [f32; 256] = {
    let mut table = [0.0; 256];
    let mut bits = 0;
    while bits < 256 {
        table[bits] = e4m3_to_f32(bits as u8);
        bits += 1;
    }
    table
};

/// Rounds the magnitude of an f32 to a format of `significand` bits behind the point whose smallest normal exponent is
/// `smallest`, to nearest, ties to even. The result counts in units of the format's smallest subnormal number, as its bits do.
#[inline(always)]
fn round_to_bits(value: f32, significand: u32, smallest: i32) -> u32 {
    let bits = value.to_bits() & 0x7fff_ffff;
    let exponent = (bits >> 23).cast_signed() - 127;
    if exponent < smallest {
        // The value in units of the smallest subnormal number, rounded by the host.
        let unit = f32::from_bits(((127 - smallest + significand.cast_signed()).cast_unsigned()) << 23);
        return (f32::from_bits(bits) * unit).round_ties_even() as u32;
    }
    let dropped = 23 - significand;
    let odd = bits >> dropped & 1;
    let rounded = (bits + (1 << (dropped - 1)) - 1 + odd) >> dropped;
    rounded - (((126 + smallest).cast_unsigned()) << significand)
}

/// f32 to e4m3, to nearest, ties to even; what is too large becomes the largest number.
#[inline(always)]
pub(crate) fn f32_to_e4m3(value: f32) -> u8 {
    if value.is_nan() {
        return NAN8;
    }
    let sign = (value.to_bits() >> 24) as u8 & 0x80;
    sign | round_to_bits(value.clamp(-448.0, 448.0), 3, -6).min(0x7e) as u8
}

/// f32 to e5m2, to nearest, ties to even; what is too large becomes the largest number.
#[inline(always)]
pub(crate) fn f32_to_e5m2(value: f32) -> u8 {
    if value.is_nan() {
        return NAN8;
    }
    let sign = (value.to_bits() >> 24) as u8 & 0x80;
    sign | round_to_bits(value.clamp(-57344.0, 57344.0), 2, -14).min(0x7b) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_comes_back() {
        for bits in 0..=255u8 {
            let value = e4m3_to_f32(bits);
            let expected = if value.is_nan() { NAN8 } else { bits };
            assert_eq!(f32_to_e4m3(value), expected, "{bits:#x}");
            let value = e5m2_to_f32(bits);
            let expected = match bits & 0x7f {
                0x7d.. => NAN8,
                0x7c => bits & 0x80 | 0x7b,
                _ => bits,
            };
            assert_eq!(f32_to_e5m2(value), expected, "{bits:#x}");
        }
        assert_eq!((e4m3_to_f32(0x38), e4m3_to_f32(0x7e), e4m3_to_f32(1)), (1.0, 448.0, 2f32.powi(-9)));
        assert_eq!((e5m2_to_f32(0x3c), e5m2_to_f32(0x7b), e5m2_to_f32(1)), (1.0, 57344.0, 2f32.powi(-16)));
    }

    #[test]
    fn midpoints_round_to_even_and_what_is_near_them_to_its_side() {
        for bits in 0..0x7du8 {
            let (low, high) = (e4m3_to_f32(bits), e4m3_to_f32(bits + 1));
            let middle = (low + high) / 2.0;
            assert_eq!(f32_to_e4m3(middle), bits + (bits & 1), "{bits:#x}");
            assert_eq!(f32_to_e4m3(middle.next_down()), bits);
            assert_eq!(f32_to_e4m3(-middle.next_up()), 0x80 | (bits + 1));
        }
        for bits in 0..0x7au8 {
            let middle = (e5m2_to_f32(bits) + e5m2_to_f32(bits + 1)) / 2.0;
            assert_eq!(f32_to_e5m2(middle), bits + (bits & 1), "{bits:#x}");
            assert_eq!(f32_to_e5m2(middle.next_down()), bits);
            assert_eq!(f32_to_e5m2(-middle.next_up()), 0x80 | (bits + 1));
        }
        assert_eq!((f32_to_e4m3(1e9), f32_to_e5m2(f32::NEG_INFINITY)), (0x7e, 0xfb));
    }
}
