//! Operations in f64 and f32 rounded in any direction: from the result to nearest, and the sign of what it misses.
//!
//! That sign comes from a sum of products that is kept whole, so that overflow and subnormal numbers need no rules of
//! their own. It is slow, and few programs ask for it.

use super::float::Round;

/// Limbs of a sum: products of two f64 have bits from 2^-2148 to 2^2048.
const LIMBS: usize = 68;
/// The exponent of the lowest bit.
const LOWEST: i32 = -2176;

/// The sign of a sum of products of finite numbers: -1, 0 or 1.
fn sign_of(products: &[(f64, f64)]) -> i32 {
    let mut limbs = [0u64; LIMBS + 1];
    for &(a, b) in products {
        let ((ma, ea), (mb, eb)) = (parts(a), parts(b));
        let product = u128::from(ma) * u128::from(mb);
        let shift = (ea + eb - LOWEST) as usize;
        let (limb, bit) = (shift / 64, shift % 64);
        let low = product << bit;
        let high = if bit == 0 { 0 } else { (product >> (128 - bit)) as u64 };
        add(
            &mut limbs,
            limb,
            [low as u64, (low >> 64) as u64, high],
            a.is_sign_negative() != b.is_sign_negative(),
        );
    }
    if limbs[LIMBS] >> 63 == 1 { -1 } else { i32::from(limbs.iter().any(|&limb| limb != 0)) }
}

/// Adds or subtracts three limbs at a position, in two's complement.
fn add(limbs: &mut [u64; LIMBS + 1], at: usize, value: [u64; 3], negative: bool) {
    let mut carry = negative;
    for (i, limb) in limbs.iter_mut().enumerate() {
        let part = i.checked_sub(at).and_then(|i| value.get(i)).copied().unwrap_or(0);
        let part = if negative { !part } else { part };
        let (sum, first) = limb.overflowing_add(part);
        let (sum, second) = sum.overflowing_add(u64::from(carry));
        (*limb, carry) = (sum, first | second);
    }
}

/// A number's digits and the exponent of the lowest.
fn parts(value: f64) -> (u64, i32) {
    let bits = value.to_bits();
    let (exponent, fraction) = ((bits >> 52 & 0x7ff) as i32, bits & ((1 << 52) - 1));
    if exponent == 0 { (fraction, -1074) } else { (fraction | 1 << 52, exponent - 1075) }
}

/// What directed rounding needs of a type.
pub(crate) trait Directed: Copy + PartialOrd {
    fn wide(self) -> f64;
    fn up(self) -> Self;
    fn down(self) -> Self;
}

impl Directed for f64 {
    fn wide(self) -> f64 {
        self
    }
    fn up(self) -> Self {
        self.next_up()
    }
    fn down(self) -> Self {
        self.next_down()
    }
}

impl Directed for f32 {
    fn wide(self) -> f64 {
        f64::from(self)
    }
    fn up(self) -> Self {
        self.next_up()
    }
    fn down(self) -> Self {
        self.next_down()
    }
}

/// The nearest result moved as the direction asks; `missing` is the sign of the exact value minus it.
fn moved<T: Directed>(nearest: T, missing: i32, round: Round) -> T {
    let negative = nearest.wide().is_sign_negative();
    match (round, missing) {
        (Round::Up, 1) => nearest.up(),
        (Round::Down, -1) => nearest.down(),
        (Round::Zero, 1) if negative => nearest.up(),
        (Round::Zero, -1) if !negative => nearest.down(),
        _ => nearest,
    }
}

/// Whether the direction or the numbers leave nothing to do.
fn is_plain(round: Round, operands: &[f64]) -> bool {
    matches!(round, Round::Nearest | Round::Away) || operands.iter().any(|x| !x.is_finite())
}

/// `a · b + c` in f64.
pub(crate) fn fma64(a: f64, b: f64, c: f64, round: Round) -> f64 {
    let nearest = a.mul_add(b, c);
    if is_plain(round, &[a, b, c]) {
        return nearest;
    }
    if nearest.is_infinite() {
        return moved(nearest, if nearest > 0.0 { -1 } else { 1 }, round);
    }
    let missing = sign_of(&[(a, b), (c, 1.0), (-nearest, 1.0)]);
    if nearest == 0.0 && missing == 0 {
        // An exact zero of parts with different signs is minus zero only when rounding down.
        let product = a.is_sign_negative() != b.is_sign_negative();
        let differ = product != c.is_sign_negative();
        return if differ && round == Round::Down { -0.0 } else { nearest };
    }
    moved(nearest, missing, round)
}

/// `a · b` in f64.
pub(crate) fn mul64(a: f64, b: f64, round: Round) -> f64 {
    let nearest = a * b;
    if is_plain(round, &[a, b]) {
        return nearest;
    }
    if nearest.is_infinite() {
        return moved(nearest, if nearest > 0.0 { -1 } else { 1 }, round);
    }
    moved(nearest, sign_of(&[(a, b), (-nearest, 1.0)]), round)
}

/// `a / b`, of which `nearest` is the quotient to nearest.
pub(crate) fn div<T: Directed>(a: T, b: T, nearest: T, round: Round) -> T {
    let (wide_a, wide_b, q) = (a.wide(), b.wide(), nearest.wide());
    if is_plain(round, &[wide_a, wide_b]) || wide_b == 0.0 {
        return nearest;
    }
    if q.is_infinite() {
        return moved(nearest, if q > 0.0 { -1 } else { 1 }, round);
    }
    let sign = sign_of(&[(wide_a, 1.0), (-q, wide_b)]);
    moved(nearest, if wide_b < 0.0 { -sign } else { sign }, round)
}

/// The square root of `a`, of which `nearest` is that to nearest.
pub(crate) fn sqrt<T: Directed>(a: T, nearest: T, round: Round) -> T {
    let (wide, root) = (a.wide(), nearest.wide());
    if is_plain(round, &[wide, root]) || wide <= 0.0 {
        return nearest;
    }
    moved(nearest, sign_of(&[(wide, 1.0), (-root, root)]), round)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directions_bracket_the_exact_value_and_meet_where_it_is_exact() {
        let values = [1.0, 3.0, -7.5, 0.1, 1e300, -1e-300, 5e-324, f64::MAX, 2.5e-308, -0.0];
        for (a, b) in values.iter().flat_map(|&a| values.iter().map(move |&b| (a, b))) {
            for c in values {
                let [down, up, zero] = [Round::Down, Round::Up, Round::Zero].map(|r| fma64(a, b, c, r));
                assert!(down <= up && (zero == down || zero == up), "{a} {b} {c}: {down} {up} {zero}");
                assert!(up == down || up == down.next_up(), "{a} {b} {c}: {down} {up}");
                assert!(zero.abs() <= down.abs() && zero.abs() <= up.abs());
                if up != down && down.is_finite() {
                    assert_eq!(sign_of(&[(a, b), (c, 1.0), (-down, 1.0)]), 1);
                }
            }
            let [down, up] = [Round::Down, Round::Up].map(|r| mul64(a, b, r));
            assert!(up == down || up == down.next_up(), "{a} {b}: {down} {up}");
            if b != 0.0 {
                let [down, up] = [Round::Down, Round::Up].map(|r| div(a, b, a / b, r));
                assert!(up == down || up == down.next_up(), "{a} {b}: {down} {up}");
            }
            let (x, y) = (a as f32, b as f32);
            if y != 0.0 && x.is_finite() && y.is_finite() {
                let [down, up] = [Round::Down, Round::Up].map(|r| div(x, y, x / y, r));
                assert!(up == down || up == down.next_up(), "{x} {y}: {down} {up}");
            }
        }
        assert_eq!(fma64(1.0, 1.0, -1.0, Round::Down).to_bits(), (-0.0f64).to_bits());
        assert_eq!(fma64(1.0, 1.0, -1.0, Round::Up).to_bits(), 0);
        assert_eq!(fma64(f64::MAX, 2.0, 0.0, Round::Zero), f64::MAX);
        assert_eq!(fma64(5e-324, 0.25, 0.0, Round::Up), 5e-324);
        assert_eq!(fma64(5e-324, -0.25, 0.0, Round::Zero).to_bits(), (-0.0f64).to_bits());
        assert_eq!(sqrt(2.0, 2f64.sqrt(), Round::Up), 2f64.sqrt());
        assert_eq!(sqrt(2.0, 2f64.sqrt(), Round::Down), 2f64.sqrt().next_down());
        assert_eq!(sqrt(4.0f32, 2.0, Round::Up), 2.0);
    }
}
