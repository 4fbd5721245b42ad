//! Floating-point operations with the GPU's NaN, its flush to zero and its rounding modes.

use super::half::{NAN32, bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};

/// The direction of rounding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub(crate) enum Round {
    /// To nearest, ties to even.
    #[default]
    Nearest,
    /// Towards zero.
    Zero,
    /// Towards minus infinity.
    Down,
    /// Towards plus infinity.
    Up,
    /// To nearest, ties away from zero.
    Away,
}

/// The result with the one NaN that the GPU writes in f32.
#[inline(always)]
pub(crate) fn canonical(value: f32) -> f32 {
    // On the bits: as a float, one NaN is as good as another to the optimiser.
    let bits = value.to_bits();
    f32::from_bits(if bits & 0x7fff_ffff > 0x7f80_0000 { NAN32 } else { bits })
}

/// Subnormal numbers become zeros of the same sign.
#[inline(always)]
pub(crate) fn flush(value: f32) -> f32 {
    let bits = value.to_bits();
    if bits & 0x7f80_0000 == 0 { f32::from_bits(bits & 0x8000_0000) } else { value }
}

/// Clamps to [0, 1]; NaN becomes 0.
#[inline(always)]
pub(crate) fn saturate(value: f32) -> f32 {
    // The comparisons are false for NaN, which so becomes 0; minus zero becomes plus zero.
    if value > 0.0 { if value < 1.0 { value } else { 1.0 } } else { 0.0 }
}

/// `min` and `max` for f32: a NaN loses against a number, and -0 is less than +0.
#[inline(always)]
pub(crate) fn minimum(a: f32, b: f32) -> f32 {
    let smaller = if a < b { a } else { b };
    let zeros = f32::from_bits(a.to_bits() | b.to_bits());
    let result = if a == b { zeros } else { smaller };
    let result = if a.is_nan() { b } else { result };
    canonical(if b.is_nan() { a } else { result })
}

/// See [`minimum`].
#[inline(always)]
pub(crate) fn maximum(a: f32, b: f32) -> f32 {
    -minimum_keep(-a, -b)
}

#[inline(always)]
fn minimum_keep(a: f32, b: f32) -> f32 {
    let result = minimum(a, b);
    // `maximum` negates: the canonical NaN must come out positive.
    if result.is_nan() { -result } else { result }
}

/// NaN, as the GPU makes it in f64 where no operand is one.
const NAN64: u64 = 0xfff8_0000_0000_0000;

/// An f64 NaN with the bit that makes it quiet.
#[inline(always)]
pub(crate) fn quiet64(nan: f64) -> f64 {
    f64::from_bits(nan.to_bits() | 1 << 51)
}

/// A result in f64 with the NaN that the GPU gives: the first of `operands` that is one, made quiet.
#[inline(always)]
pub(crate) fn propagate64<const N: usize>(result: f64, operands: [f64; N]) -> f64 {
    // On the bits: which NaN comes out of the host's own operation is not said.
    match operands.into_iter().find(|operand| operand.is_nan()) {
        Some(nan) => quiet64(nan),
        None if result.is_nan() => f64::from_bits(NAN64),
        None => result,
    }
}

/// f32 to f64, exact; a NaN keeps its sign and its payload, and is made quiet.
#[inline(always)]
pub(crate) fn widen(value: f32) -> f64 {
    if value.is_nan() {
        let bits = u64::from(value.to_bits());
        let sign = (bits & 0x8000_0000) << 32;
        return f64::from_bits(sign | 0x7ff8_0000_0000_0000 | (bits & 0x007f_ffff) << 29);
    }
    f64::from(value)
}

/// [`minimum`] in f64.
#[inline(always)]
pub(crate) fn minimum64(a: f64, b: f64) -> f64 {
    if a.is_nan() && b.is_nan() {
        quiet64(b)
    } else if a.is_nan() {
        b
    } else if b.is_nan() {
        a
    } else if a == b {
        f64::from_bits(a.to_bits() | b.to_bits())
    } else {
        a.min(b)
    }
}

/// [`maximum`] in f64.
#[inline(always)]
pub(crate) fn maximum64(a: f64, b: f64) -> f64 {
    if a.is_nan() && b.is_nan() {
        quiet64(b)
    } else if a.is_nan() {
        b
    } else if b.is_nan() {
        a
    } else if a == b {
        f64::from_bits(a.to_bits() & b.to_bits())
    } else {
        a.max(b)
    }
}

/// Rounds an f64 to f32; `residue` says where the exact value is: its sign is that of exact minus `value`.
pub(crate) fn round_to_f32(value: f64, residue: f64, round: Round) -> f32 {
    let nearest = value as f32;
    if !value.is_finite() {
        return nearest;
    }
    if nearest.is_infinite() {
        // The exact value is finite and beyond the largest f32.
        return match (round, nearest > 0.0) {
            (Round::Zero, _) | (Round::Down, true) | (Round::Up, false) => f32::MAX.copysign(nearest),
            _ => nearest,
        };
    }
    let back = f64::from(nearest);
    // The exact value is below or above the nearest f32, or is that.
    let exact = if value == back { residue } else { value - back };
    let (below, above) = (exact < 0.0, exact > 0.0);
    match round {
        Round::Zero if nearest.is_sign_positive() && below => nearest.next_down(),
        Round::Zero if nearest.is_sign_negative() && above => nearest.next_up(),
        Round::Down if below => nearest.next_down(),
        Round::Up if above => nearest.next_up(),
        _ => nearest,
    }
}

/// `a + b` in f64 and what the rounding lost.
#[inline(always)]
fn two_sum(a: f64, b: f64) -> (f64, f64) {
    let sum = a + b;
    let t = sum - a;
    (sum, (a - (sum - t)) + (b - t))
}

/// `a · b + c` for f32 in a rounding mode. `Nearest` is the fused operation of the host.
pub(crate) fn fma32(a: f32, b: f32, c: f32, round: Round) -> f32 {
    if round == Round::Nearest {
        return a.mul_add(b, c);
    }
    let product = f64::from(a) * f64::from(b);
    let (sum, residue) = two_sum(product, f64::from(c));
    if sum == 0.0 && residue == 0.0 {
        // An exact zero takes the sign of its parts, and minus zero where they differ only when rounding down.
        let (p, q) = (product, f64::from(c));
        let negative = if p.is_sign_negative() == q.is_sign_negative() {
            p.is_sign_negative()
        } else {
            round == Round::Down
        };
        return if negative { -0.0 } else { 0.0 };
    }
    round_to_f32(sum, residue, round)
}

/// `a + b` for f32 in a rounding mode.
#[inline(always)]
pub(crate) fn add32(a: f32, b: f32, round: Round) -> f32 {
    if round == Round::Nearest { a + b } else { fma32(a, 1.0, b, round) }
}

/// `a · b` for f32 in a rounding mode.
#[inline(always)]
pub(crate) fn mul32(a: f32, b: f32, round: Round) -> f32 {
    if round == Round::Nearest { a * b } else { round_to_f32(f64::from(a) * f64::from(b), 0.0, round) }
}

/// `a · b + c` in f64, rounded to odd where inexact, so that rounding it again to 16 bits is right.
#[inline(always)]
fn fma_odd(a: f32, b: f32, c: f32) -> f64 {
    let (sum, residue) = two_sum(f64::from(a) * f64::from(b), f64::from(c));
    let inexact = sum.is_finite() && residue != 0.0 && sum.to_bits() & 1 == 0;
    if !inexact {
        sum
    } else if (residue > 0.0) == (sum > 0.0) {
        f64::from_bits(sum.to_bits() + 1)
    } else {
        f64::from_bits(sum.to_bits() - 1)
    }
}

/// Narrows an f64 to f32, rounding to odd, so that rounding it again to 16 bits is right.
#[inline(always)]
pub(crate) fn odd_f32(value: f64) -> f32 {
    let near = value as f32;
    let back = f64::from(near);
    if back == value || near.is_nan() || near.to_bits() & 1 == 1 && near.is_finite() {
        return near;
    }
    if !near.is_finite() && value.is_finite() {
        return f32::MAX.copysign(near);
    }
    // The nearest f32 is even and not exact: its odd neighbour is on the exact value's side.
    if (value > back) == (back > 0.0 || back == 0.0 && value > 0.0) {
        f32::from_bits(near.to_bits() + 1)
    } else {
        f32::from_bits(near.to_bits() - 1)
    }
}

/// `a · b + c` in f16, rounded once.
#[inline(always)]
pub(crate) fn fma_f16(a: u16, b: u16, c: u16) -> u16 {
    f32_to_f16(odd_f32(fma_odd(f16_to_f32(a), f16_to_f32(b), f16_to_f32(c))))
}

/// `a · b + c` in bf16, rounded once.
#[inline(always)]
pub(crate) fn fma_bf16(a: u16, b: u16, c: u16) -> u16 {
    f32_to_bf16(odd_f32(fma_odd(bf16_to_f32(a), bf16_to_f32(b), bf16_to_f32(c))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn minimum_and_maximum_drop_nan_and_order_zeros() {
        assert_eq!(minimum(f32::NAN, 2.0), 2.0);
        assert_eq!(maximum(2.0, f32::NAN), 2.0);
        assert_eq!(minimum(f32::NAN, f32::NAN).to_bits(), NAN32);
        assert_eq!(maximum(f32::NAN, f32::NAN).to_bits(), NAN32);
        assert_eq!(minimum(0.0, -0.0).to_bits(), (-0.0f32).to_bits());
        assert_eq!(maximum(-0.0, 0.0).to_bits(), 0);
        assert_eq!((minimum(-1.0, 3.0), maximum(-1.0, 3.0)), (-1.0, 3.0));
    }

    #[test]
    fn directed_rounding_brackets_the_exact_value() {
        let (a, b) = (1.0f32, 1e-12f32);
        assert_eq!(add32(a, b, Round::Down), 1.0);
        assert_eq!(add32(a, b, Round::Up), 1.0f32.next_up());
        assert_eq!(add32(a, -b, Round::Zero), 1.0f32.next_down());
        assert_eq!(add32(-a, b, Round::Zero), (-1.0f32).next_up());
        let third = f32::from_bits(0x3eaa_aaab);
        assert!(f64::from(mul32(third, third, Round::Down)) < f64::from(third) * f64::from(third));
        assert!(f64::from(mul32(third, third, Round::Up)) > f64::from(third) * f64::from(third));
        assert_eq!(mul32(f32::MAX, 2.0, Round::Zero), f32::MAX);
        assert_eq!(add32(1.0, -1.0, Round::Down).to_bits(), (-0.0f32).to_bits());
    }

    #[test]
    fn narrow_fma_rounds_once() {
        // 1 + 2^-11 lies halfway between two f16; the addend decides, however small.
        let one_ulp = |x: f32| f32_to_f16(x);
        let a = one_ulp(1.0 + 1.0 / 32.0);
        let b = one_ulp(1.0 - 1.0 / 32.0 + 1.0 / 1024.0);
        let exact = f64::from(f16_to_f32(a)) * f64::from(f16_to_f32(b)) + 2f64.powi(-24);
        let got = f64::from(f16_to_f32(fma_f16(a, b, 1)));
        assert!((got - exact).abs() <= 2f64.powi(-11), "{got} {exact}");
        // bf16: the product is exactly halfway, and a subnormal addend breaks the tie.
        let x = f32_to_bf16(1.0 + 1.0 / 128.0);
        let y = f32_to_bf16(1.5);
        assert_eq!(fma_bf16(x, y, 0), f32_to_bf16(1.5 * (1.0 + 1.0 / 128.0)));
        assert_eq!(fma_bf16(x, y, 1), f32_to_bf16((1.5f32 * (1.0 + 1.0 / 128.0)).next_up()));
        assert_eq!(fma_bf16(x, y, 0x8001), f32_to_bf16((1.5f32 * (1.0 + 1.0 / 128.0)).next_down()));
    }
}
