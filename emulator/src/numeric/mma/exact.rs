//! How tensor cores add.
//!
//! The products of a step and the accumulator are aligned to the largest exponent among them, cut to a few bits behind
//! the point, added without loss, and cut to f32. The constants were found by others; Hopper's agree bit for bit with results
//! recorded on an H100, which the tests replay. Those of Ada's 8-bit floats are the ones of MMA-Sim (arXiv:2511.10909).

use super::Matrices;
use crate::ir::types::Ty;
use crate::numeric::float::{Round, round_to_f32};
use crate::numeric::half::f32_to_f16;

/// The tensor cores of a generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Model {
    /// Compute capability 8: steps of 8 (4 for TF32, 16 for 8-bit floats) products.
    Ampere,
    /// Compute capability 9: all products of an instruction at once.
    Hopper,
}

/// How a product adds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    /// Products in a step.
    step: usize,
    /// Bits behind the point that terms are cut to.
    fraction: i32,
    /// The bits of a sum that are kept.
    kept: u32,
    /// The smallest exponents of A's, of B's and of the sums' format.
    smallest: [i32; 3],
    /// Whether the sum is rounded again, to f16, which needs to know of bits that f32 has no room for.
    rounded: bool,
}

impl Rules {
    pub(crate) fn new(model: Model, a: Ty, b: Ty, accumulator: Ty) -> Self {
        let (step, fraction) = match (a.bytes(), model) {
            (4, Model::Ampere) => (4, 24),
            (4, Model::Hopper) => (8, 25),
            (1, Model::Ampere) => (16, 13),
            (1, Model::Hopper) => (32, 13),
            (_, Model::Ampere) => (8, 24),
            (_, Model::Hopper) => (16, 25),
        };
        // Sums of 8-bit floats have no more bits in f32 than their terms are cut to.
        let kept = if a.bytes() == 1 && accumulator == Ty::F32 { !0 << (23 - 13) } else { !0 };
        let smallest = [a, b, accumulator].map(|ty| match ty {
            Ty::F16 | Ty::E5m2 => -14,
            Ty::E4m3 => -6,
            _ => -126,
        });
        Self { step, fraction, kept, smallest, rounded: accumulator == Ty::F16 }
    }
}

/// The exponent of zero: below that of every product.
const NOTHING: i32 = -10_000;

/// The exponent that aligns a factor. A subnormal number has the smallest one of its format, not that of its value.
#[inline(always)]
fn exponent(value: f32, smallest: i32) -> i32 {
    let exponent = ((value.to_bits() >> 23 & 0xff).cast_signed() - 127).max(smallest);
    if value == 0.0 { NOTHING } else { exponent }
}

/// Two to a power that a normal f64 has.
#[inline(always)]
fn power(exponent: i32) -> f64 {
    f64::from_bits(((1023 + exponent) as u64) << 52)
}

/// D = A·B + C, eight columns at a time.
#[inline(always)]
pub(crate) fn exact_product<const K: usize>(m: &Matrices<K>, k_size: usize, rules: Rules) -> [[f32; 8]; 16] {
    let Rules { step, fraction, kept, smallest, rounded } = rules;
    let finite = m.a.iter().flatten().all(|x| x.is_finite())
        && m.b.iter().chain(&m.c).flatten().all(|x| x.is_finite());
    let mut d = m.c;
    if !finite {
        for (row, sums) in d.iter_mut().enumerate() {
            for (column, sum) in sums.iter_mut().enumerate() {
                let b: [f32; K] = std::array::from_fn(|k| m.b[k][column]);
                *sum = dot(&m.a[row][..k_size], &b[..k_size], *sum, rules);
            }
        }
        return d;
    }
    let mut b_exponents = [[0i32; 8]; K];
    for (exponents, row) in b_exponents.iter_mut().zip(&m.b) {
        for (e, &value) in exponents.iter_mut().zip(row) {
            *e = exponent(value, smallest[1]);
        }
    }
    for (row, sums) in d.iter_mut().enumerate() {
        for first in (0..k_size).step_by(step) {
            let trace = rounded && first + step >= k_size;
            let mut largest = [NOTHING; 8];
            for (l, &sum) in largest.iter_mut().zip(&*sums) {
                *l = exponent(sum, smallest[2]);
            }
            let steps = first..(first + step).min(k_size);
            for k in steps.clone() {
                let own = exponent(m.a[row][k], smallest[0]);
                for (l, e) in largest.iter_mut().zip(&b_exponents[k]) {
                    *l = (*l).max(own + e);
                }
            }
            // Where everything is zero the unit does not matter, as long as it is a number.
            let unit = largest.map(|l| power(fraction - l.max(-300)));
            let mut total = [0f64; 8];
            for (t, (&sum, u)) in total.iter_mut().zip(sums.iter().zip(&unit)) {
                *t = (f64::from(sum) * u).trunc();
            }
            for k in steps {
                let a = f64::from(m.a[row][k]);
                for n in 0..8 {
                    total[n] += (a * f64::from(m.b[k][n]) * unit[n]).trunc();
                }
            }
            for n in 0..8 {
                let zero = total[n] == 0.0 && largest[n] <= NOTHING / 2;
                sums[n] = if zero {
                    signed_zero(m, row, n, first..(first + step).min(k_size), sums[n]) + padding(k_size, step)
                } else {
                    f32::from_bits(cut(total[n] / unit[n], trace).to_bits() & kept)
                };
            }
        }
    }
    d
}

/// What a step of fewer products than the unit adds at a time has in the place of the others: plus zero.
#[inline(always)]
fn padding(products: usize, step: usize) -> f32 {
    if products < step { 0.0 } else { -0.0 }
}

/// The sum of zeros, whose sign follows the usual rules.
#[cold]
fn signed_zero<const K: usize>(
    m: &Matrices<K>,
    row: usize,
    column: usize,
    steps: std::ops::Range<usize>,
    c: f32,
) -> f32 {
    steps.map(|k| m.a[row][k] * m.b[k][column]).sum::<f32>() + c
}

/// Cuts to f32. With `trace`, the last bit is set where bits were lost, so that what rounds the result once more does not
/// take it for a tie.
#[inline(always)]
fn cut(value: f64, trace: bool) -> f32 {
    let size = value.abs();
    if (2f64.powi(-126)..2f64.powi(128)).contains(&size) {
        // The bits that f32 has no room for are dropped, which makes the conversion exact.
        let lost = (1 << 29) - 1;
        let odd = u32::from(trace && value.to_bits() & lost != 0);
        return f32::from_bits((f64::from_bits(value.to_bits() & !lost) as f32).to_bits() | odd);
    }
    match size {
        // Beyond the largest f32 there is infinity, although rounding is towards zero.
        beyond if beyond >= 2f64.powi(128) => f32::INFINITY.copysign(value as f32),
        // What is cut to nothing has no sign.
        _ => match round_to_f32(value, 0.0, Round::Zero) {
            0.0 => 0.0,
            subnormal => subnormal,
        },
    }
}

/// A sum as f16: rounded to nearest; what is too small for it has no sign.
#[inline(always)]
pub(crate) fn exact_half(sum: f32) -> u16 {
    let half = f32_to_f16(sum);
    if half & 0x7fff == 0 && sum != 0.0 { 0 } else { half }
}

/// One element of the product, for operands that need not be finite.
fn dot(a: &[f32], b: &[f32], c: f32, rules: Rules) -> f32 {
    let Rules { step, fraction, kept, smallest, rounded } = rules;
    let mut sum = c;
    let steps = a.len().div_ceil(step);
    for (i, (a, b)) in a.chunks(step).zip(b.chunks(step)).enumerate() {
        let exact = |(x, y): (&f32, &f32)| f64::from(*x) * f64::from(*y);
        if !a.iter().chain(b).all(|x| x.is_finite()) || !sum.is_finite() {
            // Infinities and NaN follow the usual rules.
            sum = (a.iter().zip(b).map(exact).sum::<f64>() + f64::from(sum)) as f32;
            continue;
        }
        let exponents = a.iter().zip(b).map(|(x, y)| exponent(*x, smallest[0]) + exponent(*y, smallest[1]));
        let largest = exponents.fold(exponent(sum, smallest[2]), i32::max);
        if largest <= NOTHING / 2 {
            sum += a.iter().zip(b).map(|(x, y)| x * y).sum::<f32>() + padding(a.len(), step);
            continue;
        }
        let unit = power(fraction - largest);
        let total = a.iter().zip(b).map(|pair| (exact(pair) * unit).trunc()).sum::<f64>();
        let value = cut((total + (f64::from(sum) * unit).trunc()) / unit, rounded && i + 1 == steps);
        sum = f32::from_bits(value.to_bits() & kept);
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(ty: Ty, model: Model) -> Rules {
        Rules::new(model, ty, ty, Ty::F32)
    }

    #[test]
    fn small_terms_are_cut_at_the_largest_exponent() {
        // 2^-25 is kept beside 1 on Hopper, lost on Ampere; cut to f32, the sum shows it once there are enough of them.
        let a = [1.0; 16];
        let mut b = [2f32.powi(-25); 16];
        b[0] = 1.0;
        b[15] = 0.0;
        assert_eq!(dot(&a, &b, 0.0, rules(Ty::Bf16, Model::Hopper)), 1.0 + 3.0 * 2f32.powi(-23));
        assert_eq!(dot(&a, &b, 0.0, rules(Ty::Bf16, Model::Ampere)), 1.0);
        assert_eq!(dot(&a, &b, -1.0, rules(Ty::Bf16, Model::Hopper)), 14.0 * 2f32.powi(-25));
    }

    #[test]
    fn eight_bit_terms_are_cut_to_13_bits_behind_the_largest() {
        let rules = |model| rules(Ty::E4m3, model);
        let mut b = [0.0; 32];
        b[0] = 1.0;
        b[15] = 2f32.powi(-13);
        b[16] = 2f32.powi(-14);
        assert_eq!(dot(&[1.0; 32], &b, 0.0, rules(Model::Ampere)), 1.0 + 2f32.powi(-13));
        // Ada's second step sees what the first has left: one of 16 terms that are cut beside the sum, not beside one another.
        let mut b = [2f32.powi(-9); 32];
        b[..16].fill(0.0);
        b[0] = 16.0;
        assert_eq!(dot(&[1.0; 32], &b, 0.0, rules(Model::Ampere)), 16.0 + 2f32.powi(-5));
        b[16..].fill(2f32.powi(-10));
        for model in [Model::Ampere, Model::Hopper] {
            assert_eq!(dot(&[1.0; 32], &b, 0.0, rules(model)), 16.0);
        }
        // The second step begins with a sum that is smaller than the first's largest term.
        b[1] = -16.0;
        assert_eq!(dot(&[1.0; 32], &b, 0.0, rules(Model::Ampere)), 2f32.powi(-6));
        assert_eq!(dot(&[1.0; 32], &b, 0.0, rules(Model::Hopper)), 0.0);
    }

    #[test]
    fn a_sum_in_f16_is_rounded_once() {
        // Halfway between two of f16 and a little more, which f32 has no room for.
        let terms = [1.0, 2f32.powi(-11), 2f32.powi(-24)];
        let rules = Rules::new(Model::Hopper, Ty::F16, Ty::F16, Ty::F16);
        for sign in [1.0, -1.0] {
            let rounded =
                |terms: &[f32]| exact_half(dot(&vec![sign; terms.len()], terms, 0.0, rules)) & 0x7fff;
            assert_eq!((rounded(&terms), rounded(&terms[..2])), (0x3c01, 0x3c00));
        }
        let mut m = Matrices::<16> { a: [[1.0; 16]; 16], b: [[0.0; 8]; 16], c: [[0.0; 8]; 16] };
        for (row, term) in m.b.iter_mut().zip(terms) {
            *row = [term; 8];
        }
        assert_eq!(exact_half(exact_product(&m, 16, rules)[3][5]), 0x3c01);
        // A sum that stays f32 is cut.
        let rules = Rules::new(Model::Hopper, Ty::F16, Ty::F16, Ty::F32);
        assert_eq!(exact_product(&m, 16, rules)[3][5], 1.0 + 2f32.powi(-11));
    }

    #[test]
    fn integers_are_exact_in_every_model() {
        let a: Vec<f32> = (0..16).map(|i| (i * 7 % 11) as f32 - 5.0).collect();
        let b: Vec<f32> = (0..16).map(|i| (i * 5 % 13) as f32 - 6.0).collect();
        let expected = a.iter().zip(&b).map(|(x, y)| x * y).sum::<f32>() + 17.0;
        for model in [Model::Ampere, Model::Hopper] {
            assert_eq!(dot(&a, &b, 17.0, rules(Ty::F16, model)), expected);
        }
    }

    #[test]
    fn special_values_follow_the_usual_rules() {
        assert_eq!(dot(&[f32::INFINITY], &[1.0], 0.0, rules(Ty::F16, Model::Hopper)), f32::INFINITY);
        assert!(dot(&[f32::INFINITY], &[0.0], 0.0, rules(Ty::F16, Model::Ampere)).is_nan());
        assert_eq!(dot(&[0.0], &[1.0], 0.0, rules(Ty::F16, Model::Hopper)), 0.0);
    }
}
