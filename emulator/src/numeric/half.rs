//! f16, bf16 and TF32 as bits, to and from f32. Branch-free, so that loops over lanes become vector code.

/// NaN, as the GPU writes it in both 16-bit formats.
pub(crate) const NAN16: u16 = 0x7fff;
/// NaN, as the GPU writes it in f32.
pub(crate) const NAN32: u32 = 0x7fff_ffff;

/// f16 to f32, exact.
#[inline(always)]
pub(crate) fn f16_to_f32(half: u16) -> f32 {
    let half = u32::from(half);
    let sign = (half & 0x8000) << 16;
    let magnitude = half & 0x7fff;
    // Normal numbers: move the fields and correct the exponent's bias. Subnormal ones: an integer times 2^-24.
    let normal = (magnitude << 13) + ((127 - 15) << 23);
    let subnormal = (magnitude as f32 * f32::from_bits((127 - 24) << 23)).to_bits();
    let special = (magnitude << 13) | 0x7f80_0000;
    let bits = if magnitude >= 0x7c00 { special } else { normal };
    let bits = if magnitude < 0x0400 { subnormal } else { bits };
    f32::from_bits(bits | sign)
}

/// f32 to f16, to nearest, ties to even.
#[inline(always)]
pub(crate) fn f32_to_f16(value: f32) -> u16 {
    let bits = value.to_bits();
    let sign = (bits >> 16) & 0x8000;
    let magnitude = bits & 0x7fff_ffff;
    // Adding 0.5 moves a subnormal result's bits to the bottom of the significand, rounding on the way.
    let subnormal = (f32::from_bits(magnitude) + 0.5).to_bits().wrapping_sub(0.5f32.to_bits());
    let odd = (magnitude >> 13) & 1;
    let normal = magnitude.wrapping_sub((127 - 15) << 23).wrapping_add(0xfff + odd) >> 13;
    let result = if magnitude < (113 << 23) { subnormal } else { normal };
    let result = if magnitude >= 0x4780_0000 { 0x7c00 } else { result };
    if magnitude > 0x7f80_0000 { NAN16 } else { (result | sign) as u16 }
}

/// bf16 to f32, exact.
#[inline(always)]
pub(crate) fn bf16_to_f32(half: u16) -> f32 {
    f32::from_bits(u32::from(half) << 16)
}

/// f32 to bf16, to nearest, ties to even.
#[inline(always)]
pub(crate) fn f32_to_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
    if bits & 0x7fff_ffff > 0x7f80_0000 { NAN16 } else { rounded as u16 }
}

/// f32 to TF32, to nearest, ties away from zero; the low 13 bits are zeros. A NaN is cut, and may so become an infinity.
#[inline(always)]
pub(crate) fn f32_to_tf32(value: f32) -> u32 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x1000) & !0x1fff;
    match bits & 0x7fff_ffff {
        // A NaN is cut.
        0x7f80_0000.. => bits & !0x1fff,
        _ => rounded,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_f16_and_bf16_widens_exactly() {
        for bits in 0..=u16::MAX {
            let (ours, theirs) = (f16_to_f32(bits), half::f16::from_bits(bits).to_f32());
            assert!(ours.to_bits() == theirs.to_bits() || ours.is_nan() && theirs.is_nan(), "{bits:#x}");
            let (ours, theirs) = (bf16_to_f32(bits), half::bf16::from_bits(bits).to_f32());
            assert!(ours.to_bits() == theirs.to_bits() || ours.is_nan() && theirs.is_nan(), "{bits:#x}");
        }
    }

    #[test]
    fn narrowing_rounds_to_nearest_even() {
        // Every 16-bit value, its neighbours and the midpoints between them, and a walk through all exponents.
        let check = |value: f32| {
            if value.is_nan() {
                assert_eq!((f32_to_f16(value), f32_to_bf16(value)), (NAN16, NAN16));
                return;
            }
            assert_eq!(f32_to_f16(value), half::f16::from_f32(value).to_bits(), "{value:e}");
            assert_eq!(f32_to_bf16(value), half::bf16::from_f32(value).to_bits(), "{value:e}");
        };
        for bits in 0..=u16::MAX {
            for delta in [0u32, 1, 0x0fff, 0x1000, 0x1001, 0x1fff, u32::MAX] {
                check(f32::from_bits(f16_to_f32(bits).to_bits().wrapping_add(delta)));
            }
            for delta in [0u32, 1, 0x7fff, 0x8000, 0x8001, 0xffff] {
                check(f32::from_bits((u32::from(bits) << 16).wrapping_add(delta)));
            }
        }
    }

    #[test]
    fn tf32_rounds_ties_away_from_zero() {
        assert_eq!(f32_to_tf32(f32::from_bits(0x3f80_1000)), 0x3f80_2000);
        assert_eq!(f32_to_tf32(f32::from_bits(0xbf80_1000)), 0xbf80_2000);
        assert_eq!(f32_to_tf32(f32::from_bits(0x3f80_0fff)), 0x3f80_0000);
        assert_eq!(f32_to_tf32(f32::INFINITY), f32::INFINITY.to_bits());
        assert_eq!(f32_to_tf32(f32::from_bits(0x7fc0_0000)), 0x7fc0_0000);
        assert_eq!(f32_to_tf32(f32::from_bits(0x7f80_0001)), 0x7f80_0000);
    }
}
