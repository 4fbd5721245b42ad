//! How tensor cores add.
//!
//! The products of a step and the accumulator are aligned to the largest exponent among them, cut to a few bits behind
//! the point, added without loss, and cut to f32. The constants were found by others and agree bit for bit with results
//! recorded on an H100, which the tests replay.

use super::Matrices;
use crate::ir::op::Mma;
use crate::ir::types::Ty;
use crate::numeric::float::{Round, round_to_f32};

/// The tensor cores of a generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Model {
    /// Compute capability 8: steps of 8 (4 for TF32) products.
    Ampere,
    /// Compute capability 9: all products of an instruction at once.
    Hopper,
}

impl Model {
    /// Products in a step, and bits behind the point.
    fn step(self, input: Ty) -> (usize, i32) {
        match self {
            Self::Ampere => (if input == Ty::Tf32 { 4 } else { 8 }, 24),
            Self::Hopper => (if input == Ty::Tf32 { 8 } else { 16 }, 25),
        }
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

#[inline(always)]
fn smallest_exponent(input: Ty) -> i32 {
    if input == Ty::F16 { -14 } else { -126 }
}

/// Two to a power that a normal f64 has.
#[inline(always)]
fn power(exponent: i32) -> f64 {
    f64::from_bits(((1023 + exponent) as u64) << 52)
}

/// D = A·B + C, eight columns at a time.
#[inline(always)]
pub(super) fn product(m: &Matrices, shape: Mma, model: Model) -> [[f32; 8]; 16] {
    let k_size = usize::from(shape.k);
    let (step, fraction) = model.step(shape.input);
    let smallest = smallest_exponent(shape.input);
    let finite = m.a.iter().flatten().all(|x| x.is_finite())
        && m.b.iter().chain(&m.c).flatten().all(|x| x.is_finite());
    let mut d = m.c;
    if !finite {
        for (row, sums) in d.iter_mut().enumerate() {
            for (column, sum) in sums.iter_mut().enumerate() {
                let b: [f32; 16] = std::array::from_fn(|k| m.b[k][column]);
                *sum = dot(&m.a[row][..k_size], &b[..k_size], *sum, shape.input, model);
            }
        }
        return d;
    }
    let mut b_exponents = [[0i32; 8]; 16];
    for (exponents, row) in b_exponents.iter_mut().zip(&m.b) {
        for (e, &value) in exponents.iter_mut().zip(row) {
            *e = exponent(value, smallest);
        }
    }
    for (row, sums) in d.iter_mut().enumerate() {
        for first in (0..k_size).step_by(step) {
            let mut largest = [NOTHING; 8];
            for (l, &sum) in largest.iter_mut().zip(&*sums) {
                *l = exponent(sum, -126);
            }
            let steps = first..(first + step).min(k_size);
            for k in steps.clone() {
                let own = exponent(m.a[row][k], smallest);
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
                sums[n] =
                    if zero { signed_zero(m, row, n, first, step, sums[n]) } else { cut(total[n] / unit[n]) };
            }
        }
    }
    d
}

/// The sum of zeros, whose sign follows the usual rules.
#[cold]
fn signed_zero(m: &Matrices, row: usize, column: usize, first: usize, step: usize, c: f32) -> f32 {
    (first..(first + step).min(16)).map(|k| m.a[row][k] * m.b[k][column]).sum::<f32>() + c
}

/// Cuts to f32.
#[inline(always)]
fn cut(value: f64) -> f32 {
    let size = value.abs();
    if (2f64.powi(-126)..2f64.powi(128)).contains(&size) {
        // The bits that f32 has no room for are dropped, which makes the conversion exact.
        return f64::from_bits(value.to_bits() & !((1 << 29) - 1)) as f32;
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

/// One element of the product, for operands that need not be finite.
fn dot(a: &[f32], b: &[f32], c: f32, input: Ty, model: Model) -> f32 {
    let (step, fraction) = model.step(input);
    let smallest = smallest_exponent(input);
    let mut sum = c;
    for (a, b) in a.chunks(step).zip(b.chunks(step)) {
        let exact = |(x, y): (&f32, &f32)| f64::from(*x) * f64::from(*y);
        if !a.iter().chain(b).all(|x| x.is_finite()) || !sum.is_finite() {
            // Infinities and NaN follow the usual rules.
            sum = (a.iter().zip(b).map(exact).sum::<f64>() + f64::from(sum)) as f32;
            continue;
        }
        let exponents = a.iter().zip(b).map(|(x, y)| exponent(*x, smallest) + exponent(*y, smallest));
        let largest = exponents.fold(exponent(sum, -126), i32::max);
        if largest <= NOTHING / 2 {
            sum += a.iter().zip(b).map(|(x, y)| x * y).sum::<f32>();
            continue;
        }
        let unit = power(fraction - largest);
        let total = a.iter().zip(b).map(|pair| (exact(pair) * unit).trunc()).sum::<f64>();
        sum = cut((total + (f64::from(sum) * unit).trunc()) / unit);
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_terms_are_cut_at_the_largest_exponent() {
        // 2^-25 is kept beside 1 on Hopper, lost on Ampere; cut to f32, the sum shows it once there are enough of them.
        let a = [1.0; 16];
        let mut b = [2f32.powi(-25); 16];
        b[0] = 1.0;
        b[15] = 0.0;
        assert_eq!(dot(&a, &b, 0.0, Ty::Bf16, Model::Hopper), 1.0 + 3.0 * 2f32.powi(-23));
        assert_eq!(dot(&a, &b, 0.0, Ty::Bf16, Model::Ampere), 1.0);
        assert_eq!(dot(&a, &b, -1.0, Ty::Bf16, Model::Hopper), 14.0 * 2f32.powi(-25));
    }

    #[test]
    fn integers_are_exact_in_every_model() {
        let a: Vec<f32> = (0..16).map(|i| (i * 7 % 11) as f32 - 5.0).collect();
        let b: Vec<f32> = (0..16).map(|i| (i * 5 % 13) as f32 - 6.0).collect();
        let expected = a.iter().zip(&b).map(|(x, y)| x * y).sum::<f32>() + 17.0;
        for model in [Model::Ampere, Model::Hopper] {
            assert_eq!(dot(&a, &b, 17.0, Ty::F16, model), expected);
        }
    }

    #[test]
    fn special_values_follow_the_usual_rules() {
        assert_eq!(dot(&[f32::INFINITY], &[1.0], 0.0, Ty::F16, Model::Hopper), f32::INFINITY);
        assert!(dot(&[f32::INFINITY], &[0.0], 0.0, Ty::F16, Model::Ampere).is_nan());
        assert_eq!(dot(&[0.0], &[1.0], 0.0, Ty::F16, Model::Hopper), 0.0);
    }
}
