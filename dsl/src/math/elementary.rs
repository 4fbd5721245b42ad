//! Exponentials, logarithms, powers and trigonometric functions of f32, for all arguments.
//!
//! Errors are relative, in u = 2⁻²⁴, of results that are normal numbers; smaller results are off by less than their last
//! place besides. Infinities, NaN and zeros give what IEEE 754 says.

use crate::ptx;

/// ln 2 as a sum of two f32.
const LN_2: [f32; 2] = [core::f32::consts::LN_2, -1.904_654_2e-9];

/// The nearest integer, ties to even, of a number below 2²².
#[inline(always)]
fn nearest_integer(x: f32) -> f32 {
    /// 1.5 · 2²³, next to which numbers are integers.
    const INTEGERS: f32 = 12_582_912.0;
    (x + INTEGERS) - INTEGERS
}

/// 2 to the power of an integer from −126 to 127.
#[inline(always)]
fn power_of_two(n: i32) -> f32 {
    f32::from_bits(((n + 127) as u32) << 23)
}

/// `x`, or the bound that it is beyond; NaN stays NaN.
#[inline(always)]
fn clamped(x: f32, [least, most]: [f32; 2]) -> f32 {
    let x = if x < least { least } else { x };
    if x > most { most } else { x }
}

/// 2 to the power of `n + r`, for an integer n between −160 and 160 and |r| ≤ 0.51: the scaling is exact unless the result
/// is subnormal.
#[inline(always)]
fn scaled_power(n: f32, r: f32) -> f32 {
    let n = n as i32;
    let half = n >> 1;
    ptx::ex2_approx_ftz(r) * power_of_two(half) * power_of_two(n - half)
}

/// 2 to the power of x, to 6 u.
///
/// The fraction of x is exact. `ex2` is off by 4 u.
#[inline(always)]
#[must_use]
pub fn exp2(x: f32) -> f32 {
    let x = clamped(x, [-160.0, 160.0]);
    let n = nearest_integer(x);
    scaled_power(n, x - n)
}

/// e to the power of x, to 8 u.
///
/// x = n ln 2 + r with |r| ≤ 0.35. Two roundings of r are 0.7 u, its product with log₂ e 0.5 u, `ex2` 4 u.
#[inline(always)]
#[must_use]
pub fn exp(x: f32) -> f32 {
    let x = clamped(x, [-110.0, 110.0]);
    let n = nearest_integer(x * core::f32::consts::LOG2_E);
    let r = ptx::fma(-n, LN_2[1], ptx::fma(-n, LN_2[0], x));
    scaled_power(n, r * core::f32::consts::LOG2_E)
}

/// A positive number as 2ᵉ · (1 + f) with 1 + f from √½ to √2: e, and the logarithm of 1 + f.
///
/// With s = f / (2 + f) the logarithm is 2 s + s R(s²) = f − s (f − R). The sum of R ends before 2 s¹⁰ / 11, which is under
/// 0.03 u.
#[inline(always)]
fn exponent_and_logarithm(x: f32) -> (f32, f32) {
    /// The bits of √½.
    const ROOT: u32 = 0x3f35_04f3;
    let is_subnormal = x < f32::MIN_POSITIVE;
    let x = if is_subnormal { x * power_of_two(23) } else { x };
    let bits = x.to_bits().wrapping_sub(ROOT);
    let e = ((bits as i32) >> 23) - if is_subnormal { 23 } else { 0 };
    let f = f32::from_bits((bits & 0x007f_ffff) + ROOT) - 1.0;
    let s = f / (2.0 + f);
    let z = s * s;
    let mut r = 2.0 / 9.0;
    r = ptx::fma(r, z, 2.0 / 7.0);
    r = ptx::fma(r, z, 2.0 / 5.0);
    r = ptx::fma(r, z, 2.0 / 3.0);
    (e as f32, ptx::fma(-s, ptx::fma(-r, z, f), f))
}

/// A logarithm of what is no positive number: −∞ of zero, ∞ of ∞, else NaN.
#[inline(always)]
fn with_limits(x: f32, logarithm: f32) -> f32 {
    if x > 0.0 && x < f32::INFINITY {
        logarithm
    } else if x == 0.0 {
        f32::NEG_INFINITY
    } else if x > 0.0 {
        x
    } else {
        f32::NAN
    }
}

/// The natural logarithm, to 5 u.
#[inline(always)]
#[must_use]
pub fn ln(x: f32) -> f32 {
    let (e, logarithm) = exponent_and_logarithm(x);
    with_limits(x, ptx::fma(e, LN_2[0], ptx::fma(e, LN_2[1], logarithm)))
}

/// The logarithm to base 2, to 5 u; exact of powers of two.
#[inline(always)]
#[must_use]
pub fn log2(x: f32) -> f32 {
    let (e, logarithm) = exponent_and_logarithm(x);
    with_limits(x, ptx::fma(logarithm, core::f32::consts::LOG2_E, e))
}

/// The logarithm to base 10, to 7 u.
#[inline(always)]
#[must_use]
pub fn log10(x: f32) -> f32 {
    ln(x) * core::f32::consts::LOG10_E
}

/// The square root, rounded to the nearest.
#[inline(always)]
#[must_use]
pub fn sqrt(x: f32) -> f32 {
    ptx::sqrt_rn(x)
}

/// x to the power of y, to 1.01 u, with IEEE 754's cases for zeros, infinities and NaN.
///
/// It is computed in f64, of which many GPUs have few units.
#[inline(always)]
#[must_use]
pub fn pow(x: f32, y: f32) -> f32 {
    if y == 0.0 || x == 1.0 {
        return 1.0;
    }
    let is_integer = y.abs() >= 16_777_216.0 || y as i32 as f32 == y;
    let is_odd = is_integer && y.abs() < 16_777_216.0 && y as i32 & 1 == 1;
    let negative = x.to_bits() >> 31 == 1;
    let magnitude = if x.is_nan() || y.is_nan() || (x < 0.0 && !is_integer && x != f32::NEG_INFINITY) {
        f32::NAN
    } else if x == 0.0 || x.is_infinite() {
        if (x == 0.0) == (y > 0.0) { 0.0 } else { f32::INFINITY }
    } else if x == -1.0 {
        1.0
    } else {
        power(x.abs(), y)
    };
    if negative && is_odd { -magnitude } else { magnitude }
}

/// [`pow`] of a positive finite x.
///
/// The sum of the logarithm ends before z⁹ / 19, under 2⁻⁵⁰ of it, that of the exponential before (r ln 2)¹² / 12!.
#[inline(always)]
fn power(x: f32, y: f32) -> f32 {
    let x = x as f64;
    // Every f32 is a normal f64.
    let bits = x.to_bits().wrapping_sub(0x3fe6_a09e_667f_3bcd);
    let e = ((bits as i64) >> 52) as i32;
    let m = f64::from_bits((bits & 0x000f_ffff_ffff_ffff) + 0x3fe6_a09e_667f_3bcd);
    let s = (m - 1.0) / (m + 1.0);
    let z = s * s;
    let mut sum = 1.0 / 17.0;
    sum = sum * z + 1.0 / 15.0;
    sum = sum * z + 1.0 / 13.0;
    sum = sum * z + 1.0 / 11.0;
    sum = sum * z + 1.0 / 9.0;
    sum = sum * z + 1.0 / 7.0;
    sum = sum * z + 1.0 / 5.0;
    sum = sum * z + 1.0 / 3.0;
    let log2 = 2.0 * core::f64::consts::LOG2_E * (s + s * z * sum) + e as f64;
    let t = y as f64 * log2;
    // Beyond, the result is zero or infinite.
    let t = if t < -300.0 { -300.0 } else { t };
    let t = if t > 300.0 { 300.0 } else { t };
    let n = if t < 0.0 { t - 0.5 } else { t + 0.5 } as i32;
    let r = (t - n as f64) * core::f64::consts::LN_2;
    let mut p = 1.0 / 39_916_800.0;
    p = p * r + 1.0 / 3_628_800.0;
    p = p * r + 1.0 / 362_880.0;
    p = p * r + 1.0 / 40_320.0;
    p = p * r + 1.0 / 5_040.0;
    p = p * r + 1.0 / 720.0;
    p = p * r + 1.0 / 120.0;
    p = p * r + 1.0 / 24.0;
    p = p * r + 1.0 / 6.0;
    p = p * r + 0.5;
    p = p * r + 1.0;
    p = p * r + 1.0;
    (p * f64::from_bits(((n + 1023) as u64) << 52)) as f32
}

/// x as q quarter turns, of which two bits count, and an angle of at most an eighth of a turn, to 2 u.
#[inline(always)]
fn quarter_turns(x: f32) -> (u32, f32) {
    /// π / 2 as a sum of three f32.
    const QUARTER: [f32; 3] = [core::f32::consts::FRAC_PI_2, -4.371_139e-8, -1.715_124_5e-15];
    /// Below, q is less than 2¹⁶, and the first difference exact.
    const FEW_TURNS: f32 = 100_000.0;
    if x.abs() < FEW_TURNS {
        let q = nearest_integer(x * core::f32::consts::FRAC_2_PI);
        let r = ptx::fma(-q, QUARTER[1], ptx::fma(-q, QUARTER[0], x));
        (q as i32 as u32, ptx::fma(-q, QUARTER[2], r))
    } else {
        many_quarter_turns(x)
    }
}

/// [`quarter_turns`] of a large number, by the bits of 2 / π that count: 2 before the point of the product, 62 behind it.
/// No f32 is so close to a multiple of π / 2 that fewer than 30 of them would be left.
#[inline(always)]
fn many_quarter_turns(x: f32) -> (u32, f32) {
    /// 2 / π · 2¹⁹², the lowest word first.
    const TWO_OVER_PI: [u32; 6] =
        [0x3c43_9041, 0xdb62_9599, 0xf534_ddc0, 0xfc27_57d1, 0x4e44_1529, 0xa2f9_836e];
    let bits = x.to_bits();
    let exponent = (bits >> 23 & 0xff).wrapping_sub(127);
    let significand = (bits << 8 | 0x8000_0000) as u64;
    let mut carry = 0;
    let words = TWO_OVER_PI.map(|word| {
        let sum = word as u64 * significand + carry;
        carry = sum >> 32;
        sum as u32
    });
    let [_, a, b, c, d, e] = words;
    let f = carry as u32;
    // The product is to be shifted by so many bits: whole words, and some bits of three words.
    let shift = 161u32.wrapping_sub(exponent);
    let (low, middle, high) = match shift >> 5 {
        4 => (d, e, f),
        3 => (c, d, e),
        2 => (b, c, d),
        _ => (a, b, c),
    };
    let join = |high: u32, low: u32| ((high as u64) << 32 | low as u64) >> (shift & 31);
    let window = (join(high, middle) as u32 as u64) << 32 | join(middle, low) as u32 as u64;
    let fraction = (window << 2) as i64;
    let q = ((window >> 62) as u32).wrapping_add((fraction < 0) as u32);
    // π / 2 · 2⁻⁶⁴.
    let r = (fraction as f64 * (core::f64::consts::FRAC_PI_2 / 18_446_744_073_709_551_616.0)) as f32;
    if !x.is_finite() {
        (0, f32::NAN)
    } else if x < 0.0 {
        (q.wrapping_neg(), -r)
    } else {
        (q, r)
    }
}

/// Sine and cosine of an angle of at most an eighth of a turn: Taylor's sums, which end before r¹¹ / 11! and r¹² / 12!.
#[inline(always)]
fn sin_cos_of_eighth(r: f32) -> (f32, f32) {
    let z = r * r;
    let mut s = 1.0 / 362_880.0;
    s = ptx::fma(s, z, -1.0 / 5_040.0);
    s = ptx::fma(s, z, 1.0 / 120.0);
    s = ptx::fma(s, z, -1.0 / 6.0);
    let mut c = -1.0 / 3_628_800.0;
    c = ptx::fma(c, z, 1.0 / 40_320.0);
    c = ptx::fma(c, z, -1.0 / 720.0);
    c = ptx::fma(c, z, 1.0 / 24.0);
    c = ptx::fma(c, z, -0.5);
    (ptx::fma(r * z, s, r), ptx::fma(c, z, 1.0))
}

/// Sine and cosine of an angle in radians, each to 5 u; NaN of an infinity.
#[inline(always)]
#[must_use]
pub fn sin_cos(x: f32) -> (f32, f32) {
    let (q, r) = quarter_turns(x);
    let (sine, cosine) = sin_cos_of_eighth(r);
    let (s, c) = if q & 1 == 0 { (sine, cosine) } else { (cosine, sine) };
    let s = if q & 2 == 0 { s } else { -s };
    // A zero keeps its sign.
    (if x == 0.0 { x } else { s }, if q.wrapping_add(1) & 2 == 0 { c } else { -c })
}

/// The sine of an angle in radians, to 5 u; NaN of an infinity.
#[inline(always)]
#[must_use]
pub fn sin(x: f32) -> f32 {
    sin_cos(x).0
}

/// The cosine of an angle in radians, to 5 u; NaN of an infinity.
#[inline(always)]
#[must_use]
pub fn cos(x: f32) -> f32 {
    sin_cos(x).1
}

/// The tangent of an angle in radians, to 12 u; NaN of an infinity.
#[inline(always)]
#[must_use]
pub fn tan(x: f32) -> f32 {
    let (sine, cosine) = sin_cos(x);
    sine / cosine
}
