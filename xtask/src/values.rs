//! Operands worth trying: the edges of each type, and random values of all magnitudes.

use crate::random::Random;

/// f32 values by their bits: zeros, subnormal numbers, infinities, NaN of several kinds, powers of two and their
/// neighbours, the ends of the integers' ranges, and values halfway between two of a narrower type.
const SINGLES: [u32; 56] = [
    0x0000_0000,
    0x8000_0000,
    0x0000_0001,
    0x8000_0001,
    0x007f_ffff,
    0x0080_0000,
    0x8080_0000,
    0x0080_0001,
    0x7f7f_ffff,
    0xff7f_ffff,
    0x7f80_0000,
    0xff80_0000,
    0x7fc0_0000,
    0x7f80_0001,
    0xffc1_2345,
    0xff80_0001,
    0x3f80_0000,
    0xbf80_0000,
    0x3f80_0001,
    0x3f7f_ffff,
    0x3f00_0000,
    0xbf00_0000,
    0x3fc0_0000,
    0x4020_0000,
    0xc020_0000,
    0x4060_0000,
    0x3eff_ffff,
    0x4b80_0000,
    0x4b7f_ffff,
    0x4b00_0001,
    0xcb00_0001,
    0x4eff_ffff,
    0x4f00_0000,
    0xcf00_0000,
    0x4f7f_ffff,
    0x4f80_0000,
    0x5eff_ffff,
    0x5f00_0000,
    0xdf00_0000,
    0x5f80_0000,
    0x42ff_0000,
    0x437f_8000,
    0xc300_8000,
    0x46ff_ffff,
    0x477f_e000,
    0x477f_f000,
    0x3300_0000,
    0x3380_0000,
    0x3880_0000,
    0x387f_e000,
    0x3f80_1000,
    0x3f80_3000,
    0x3f80_8000,
    0x3f81_8000,
    0x3eaa_aaab,
    0x4049_0fdb,
];

/// 16-bit floats that are worth trying in both formats.
const HALVES: [u16; 30] = [
    0x0000, 0x8000, 0x0001, 0x8001, 0x03ff, 0x0400, 0x007f, 0x0080, 0x7bff, 0xfbff, 0x7c00, 0xfc00, 0x7c01,
    0x7e00, 0xfe12, 0x7f7f, 0x7f80, 0xff80, 0x7f81, 0x7fc0, 0xffc1, 0x3c00, 0xbc00, 0x3c01, 0x3bff, 0x3f80,
    0xbf80, 0x3800, 0x6400, 0x4e00,
];

/// Integers by their bits; cut to their width.
const INTEGERS: [u64; 30] = [
    0,
    1,
    2,
    3,
    7,
    8,
    15,
    16,
    17,
    31,
    32,
    33,
    63,
    64,
    65,
    127,
    128,
    255,
    256,
    0x7fff,
    0x8000,
    0xffff,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    1 << 32,
    (1 << 63) - 1,
    1 << 63,
    u64::MAX - 1,
    u64::MAX,
];

/// An f32 as f64; the payload of a NaN stays, in the upper bits.
fn widened(bits: u32) -> u64 {
    let value = f32::from_bits(bits);
    if value.is_nan() {
        return u64::from(bits & 0x8000_0000) << 32
            | 0x7ff0_0000_0000_0000
            | u64::from(bits & 0x7f_ffff) << 29;
    }
    f64::from(value).to_bits()
}

/// The edges of a type, as bits.
pub(crate) fn edges(ty: &str) -> Vec<u64> {
    match ty {
        "f32" | "tf32" => SINGLES.iter().map(|&bits| u64::from(bits)).collect(),
        "f64" => {
            let extremes = [1, 0x000f_ffff_ffff_ffff, 1 << 52, f64::MAX.to_bits(), 0x7ff0_0000_0000_0001];
            SINGLES.iter().map(|&bits| widened(bits)).chain(extremes).collect()
        }
        "f16" | "bf16" => HALVES.iter().map(|&bits| u64::from(bits)).collect(),
        "f16x2" | "bf16x2" => {
            let lower = HALVES.iter().cycle().skip(7);
            HALVES
                .iter()
                .zip(lower)
                .map(|(&upper, &lower)| u64::from(upper) << 16 | u64::from(lower))
                .collect()
        }
        _ => INTEGERS.to_vec(),
    }
}

/// A random value of a type: an edge, or one of any magnitude.
pub(crate) fn random(ty: &str, random: &mut Random) -> u64 {
    let bits = random.next();
    match (ty, random.below(8)) {
        (_, 0 | 1) => *random.pick(&edges(ty)),
        // Of moderate size, so that sums neither vanish nor overflow.
        ("f32" | "tf32", 2..=5) => bits & 0x83ff_ffff | 0x3c00_0000,
        ("f64", 2..=5) => bits & 0x801f_ffff_ffff_ffff | 0x3fe0_0000_0000_0000 | bits & 0x003,
        ("f16" | "f16x2", 2..=5) => bits & 0x8fff_8fff | 0x3000_3000,
        ("bf16" | "bf16x2", 2..=5) => bits & 0x83ff_83ff | 0x3c00_3c00,
        // Integers: of any length.
        (_, 2..=4) if !ty.contains('f') => bits >> random.below(64),
        (_, 5) if !ty.contains('f') => !(bits >> random.below(64)),
        _ => bits,
    }
}
