//! The products of `mma.sync`, from and to the fragments that a warp's registers hold.
//!
//! With g = lane / 4 and t = lane % 4, a register of A holds, in all its lanes together, a matrix of 8 rows (g) by 8
//! halves or 4 words (t): register r has rows from 8·(r mod 2) and columns from its width times r / 2. A register of B
//! is the same with n for the row. The accumulator's register i holds row g + 8·(i / 2), column 2t + i mod 2.

#[cfg(target_arch = "x86_64")]
mod avx2;

use super::half::{NAN32, bf16_to_f32, f16_to_f32, f32_to_f16};
use crate::exec::code::Level;
use crate::ir::op::Mma;
use crate::ir::types::Ty;

/// The registers of A, B and C; those that a shape does not have are zeros.
pub(crate) struct Fragments<'r> {
    pub(crate) a: [&'r [u32; 32]; 4],
    pub(crate) b: [&'r [u32; 32]; 2],
    pub(crate) c: [&'r [u32; 32]; 4],
}

/// How products are added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Model {
    /// Fused multiply-adds in f32, in ascending order of k.
    Plain,
    /// The tensor cores of compute capability 8: steps of 8 (4 for TF32) products.
    Ampere,
    /// The tensor cores of compute capability 9: all products at once.
    Hopper,
}

/// A product in f32: D = A·B + C for a 16×K A and a K×8 B.
#[inline(always)]
fn multiply<const K: usize>(
    a: &[[f32; K]; 16],
    b: &[[f32; 8]; K],
    c: &[&[u32; 32]; 4],
    out: &mut [[u32; 32]; 4],
) {
    for half in 0..2 {
        // Eight rows at a time: their sums stay in the processor's registers.
        let mut sums = [[0f32; 8]; 8];
        for g in 0..8 {
            for t in 0..4 {
                sums[g][2 * t] = f32::from_bits(c[2 * half][4 * g + t]);
                sums[g][2 * t + 1] = f32::from_bits(c[2 * half + 1][4 * g + t]);
            }
        }
        for k in 0..K {
            for g in 0..8 {
                let x = a[8 * half + g][k];
                for n in 0..8 {
                    sums[g][n] = x.mul_add(b[k][n], sums[g][n]);
                }
            }
        }
        for g in 0..8 {
            for t in 0..4 {
                out[2 * half][4 * g + t] = sums[g][2 * t].to_bits();
                out[2 * half + 1][4 * g + t] = sums[g][2 * t + 1].to_bits();
            }
        }
    }
    for register in out {
        for value in register {
            *value = if *value & 0x7fff_ffff > 0x7f80_0000 { NAN32 } else { *value };
        }
    }
}

/// The halves of a register, widened, as 8 rows.
#[inline(always)]
fn widen(register: &[u32; 32], convert: impl Fn(u16) -> f32) -> [[f32; 8]; 8] {
    let mut rows = [[0f32; 8]; 8];
    for lane in 0..32 {
        let value = register[lane];
        rows[lane / 4][2 * (lane % 4)] = convert(value as u16);
        rows[lane / 4][2 * (lane % 4) + 1] = convert((value >> 16) as u16);
    }
    rows
}

#[inline(always)]
fn halves(f: &Fragments<'_>, k: u8, convert: impl Fn(u16) -> f32 + Copy, out: &mut [[u32; 32]; 4]) {
    if k == 16 {
        let mut a = [[0f32; 16]; 16];
        let mut b = [[0f32; 8]; 16];
        for r in 0..4 {
            let part = widen(f.a[r], convert);
            for (g, row) in part.iter().enumerate() {
                a[8 * (r % 2) + g][8 * (r / 2)..][..8].copy_from_slice(row);
            }
        }
        for r in 0..2 {
            let part = widen(f.b[r], convert);
            for (n, row) in part.iter().enumerate() {
                for (k, &value) in row.iter().enumerate() {
                    b[8 * r + k][n] = value;
                }
            }
        }
        multiply::<16>(&a, &b, &f.c, out);
    } else {
        let mut a = [[0f32; 8]; 16];
        let mut b = [[0f32; 8]; 8];
        for r in 0..2 {
            a[8 * r..8 * r + 8].copy_from_slice(&widen(f.a[r], convert));
        }
        for (n, row) in widen(f.b[0], convert).iter().enumerate() {
            for (k, &value) in row.iter().enumerate() {
                b[k][n] = value;
            }
        }
        multiply::<8>(&a, &b, &f.c, out);
    }
}

/// The low 13 bits of a TF32 operand do not count.
#[inline(always)]
fn tf32(bits: u32) -> f32 {
    f32::from_bits(bits & !0x1fff)
}

#[inline(always)]
fn words(f: &Fragments<'_>, k: u8, out: &mut [[u32; 32]; 4]) {
    let mut a = [[0f32; 8]; 16];
    let mut b = [[0f32; 8]; 8];
    let steps = if k == 8 { 2 } else { 1 };
    for r in 0..2 * steps {
        for lane in 0..32 {
            a[8 * (r % 2) + lane / 4][4 * (r / 2) + lane % 4] = tf32(f.a[r][lane]);
        }
    }
    for r in 0..steps {
        for lane in 0..32 {
            b[4 * r + lane % 4][lane / 4] = tf32(f.b[r][lane]);
        }
    }
    multiply::<8>(&a, &b, &f.c, out);
}

/// A product with f32 sums, in plain f32.
pub(crate) fn fast(f: &Fragments<'_>, shape: Mma, level: Level, out: &mut [[u32; 32]; 4]) {
    #[cfg(target_arch = "x86_64")]
    if level == Level::Avx2 {
        use avx2::{BF16, F16, TF32};
        let product = match (shape.input, shape.k) {
            (Ty::F16, 16) => Some(avx2::multiply::<F16, 2> as unsafe fn(&Fragments<'_>, &mut [[u32; 32]; 4])),
            (Ty::F16, _) => Some(avx2::multiply::<F16, 1> as _),
            (Ty::Bf16, 16) => Some(avx2::multiply::<BF16, 2> as _),
            (Ty::Bf16, _) => Some(avx2::multiply::<BF16, 1> as _),
            (Ty::Tf32, 8) => Some(avx2::multiply::<TF32, 1> as _),
            _ => None,
        };
        if let Some(product) = product {
            // SAFETY: `Level::Avx2` says that the host has AVX2, FMA and F16C.
            return unsafe { product(f, out) };
        }
    }
    let _ = level;
    portable(f, shape, out);
}

fn portable(f: &Fragments<'_>, shape: Mma, out: &mut [[u32; 32]; 4]) {
    match shape.input {
        Ty::Tf32 => words(f, shape.k, out),
        Ty::Bf16 => halves(f, shape.k, bf16_to_f32, out),
        _ => halves(f, shape.k, f16_to_f32, out),
    }
}

/// Any shape, in any model.
pub(crate) fn general(f: &Fragments<'_>, shape: Mma, model: Model, out: &mut [[u32; 32]; 4]) {
    let k_size = usize::from(shape.k);
    let widen = |bits: u16| if shape.input == Ty::Bf16 { bf16_to_f32(bits) } else { f16_to_f32(bits) };
    // Element k of the row or column `line` of a register pair's matrices.
    let element = |registers: &[&[u32; 32]], line: usize, k: usize, parts: usize| {
        if shape.input == Ty::Tf32 {
            let register = registers[k / 4 * parts + line / 8];
            tf32(register[line % 8 * 4 + k % 4])
        } else {
            let register = registers[k / 8 * parts + line / 8];
            let word = register[line % 8 * 4 + k % 8 / 2];
            widen((word >> (16 * (k % 2))) as u16)
        }
    };
    let half_sums = shape.accumulator == Ty::F16;
    for row in 0..16 {
        for column in 0..8 {
            let lane = row % 8 * 4 + column / 2;
            let c = if half_sums {
                f16_to_f32((f.c[row / 8][lane] >> (16 * (column % 2))) as u16)
            } else {
                f32::from_bits(f.c[row / 8 * 2 + column % 2][lane])
            };
            let mut a = [0f32; 16];
            let mut b = [0f32; 16];
            for k in 0..k_size {
                a[k] = element(&f.a, row, k, 2);
                b[k] = element(&f.b, column, k, 1);
            }
            let sum = dot(&a[..k_size], &b[..k_size], c, shape.input, model);
            if half_sums {
                let half = u32::from(f32_to_f16(sum)) << (16 * (column % 2));
                out[row / 8][lane] |= half;
            } else {
                out[row / 8 * 2 + column % 2][lane] = super::float::canonical(sum).to_bits();
            }
        }
    }
}

/// The sum of products and `c` in a model.
pub(crate) fn dot(a: &[f32], b: &[f32], c: f32, input: Ty, model: Model) -> f32 {
    let (step, fraction) = match model {
        Model::Plain => return a.iter().zip(b).fold(c, |sum, (x, y)| x.mul_add(*y, sum)),
        Model::Ampere => (if input == Ty::Tf32 { 4 } else { 8 }, 24),
        Model::Hopper => (if input == Ty::Tf32 { 8 } else { 16 }, 25),
    };
    let mut sum = c;
    for (a, b) in a.chunks(step).zip(b.chunks(step)) {
        // A subnormal f16 counts with the smallest exponent of its format, not with that of its value.
        let smallest = if input == Ty::F16 { -14 } else { -126 };
        sum = aligned_sum(a, b, sum, fraction, smallest);
    }
    sum
}

/// One step of a tensor core: products and `c` are aligned to the largest exponent, cut to `fraction` bits behind the
/// point, added, and cut to f32.
fn aligned_sum(a: &[f32], b: &[f32], c: f32, fraction: i32, smallest: i32) -> f32 {
    let exact = |x: &f32, y: &f32| f64::from(*x) * f64::from(*y);
    let special: f64 = a.iter().zip(b).map(|(x, y)| exact(x, y)).sum::<f64>() + f64::from(c);
    let inputs_finite = a.iter().chain(b).all(|x| x.is_finite()) && c.is_finite();
    if !inputs_finite {
        // Infinities and NaN follow the usual rules.
        return special as f32;
    }
    // A product's exponent is the sum of its factors', before any carry of the significands.
    let exponent = |x: f32| (x.to_bits() >> 23 & 0xff).cast_signed() - 127;
    let mut largest = i32::MIN;
    for (x, y) in a.iter().zip(b) {
        if *x != 0.0 && *y != 0.0 {
            largest = largest.max(exponent(*x).max(smallest) + exponent(*y).max(smallest));
        }
    }
    if c != 0.0 {
        largest = largest.max(exponent(c).max(-126));
    }
    if largest == i32::MIN {
        return if special == 0.0 { special as f32 } else { 0.0 };
    }
    let unit = 2f64.powi(fraction - largest);
    let cut = |value: f64| (value * unit).trunc() as i64;
    let total = a.iter().zip(b).map(|(x, y)| cut(exact(x, y))).sum::<i64>() + cut(f64::from(c));
    // Exact: fewer than 53 bits.
    let value = total as f64 / unit;
    let result = super::float::round_to_f32(value, 0.0, super::float::Round::Zero);
    match value.abs() {
        // Beyond the largest f32 there is infinity, although rounding is towards zero.
        beyond if beyond >= 2f64.powi(128) => f32::INFINITY.copysign(result),
        // What is cut to nothing has no sign.
        _ if result == 0.0 => 0.0,
        _ => result,
    }
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
    fn vector_code_gives_what_the_portable_code_gives() {
        let mut state = 1u32;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            state >> 8
        };
        // Small positive and negative halves, and sums of any size.
        let small = |bits: u32| (bits & 0x8fff_8fff) | 0x3000_3000;
        let a: [[u32; 32]; 4] = std::array::from_fn(|_| std::array::from_fn(|_| small(next() << 8 ^ next())));
        let b: [[u32; 32]; 2] = std::array::from_fn(|_| std::array::from_fn(|_| small(next() << 8 ^ next())));
        let c: [[u32; 32]; 4] =
            std::array::from_fn(|_| std::array::from_fn(|_| ((next() as f32) / 1e6 - 8.0).to_bits()));
        let f = Fragments { a: a.each_ref(), b: b.each_ref(), c: c.each_ref() };
        for (input, k) in [(Ty::F16, 16), (Ty::F16, 8), (Ty::Bf16, 16), (Ty::Bf16, 8), (Ty::Tf32, 8)] {
            let shape = Mma { k, input, accumulator: Ty::F32 };
            let (mut vector, mut plain, mut scalar) = ([[0; 32]; 4], [[0; 32]; 4], [[0; 32]; 4]);
            fast(&f, shape, Level::detect(), &mut vector);
            portable(&f, shape, &mut plain);
            general(&f, shape, Model::Plain, &mut scalar);
            assert_eq!(vector, plain, "{input:?}, k = {k}");
            assert_eq!(scalar, plain, "{input:?}, k = {k}");
        }
    }

    #[test]
    fn integers_are_exact_in_every_model() {
        let a: Vec<f32> = (0..16).map(|i| (i * 7 % 11) as f32 - 5.0).collect();
        let b: Vec<f32> = (0..16).map(|i| (i * 5 % 13) as f32 - 6.0).collect();
        let expected = a.iter().zip(&b).map(|(x, y)| x * y).sum::<f32>() + 17.0;
        for model in [Model::Plain, Model::Ampere, Model::Hopper] {
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
