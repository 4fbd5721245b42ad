//! The products of `mma.sync`, from and to the fragments that a warp's registers hold.
//!
//! With g = lane / 4 and t = lane % 4, a register of A holds, in all its lanes together, a matrix of 8 rows (g) by 8 halves or
//! 4 words (t). Register r has rows from 8·(r mod 2) and columns from its width times r / 2. Of bytes, a row has 16. A register
//! of B is the same with n for the row. The accumulator's register i holds row g + 8·(i / 2), column
//! 2t + i mod 2; of f16 accumulators, register i holds row g + 8·i, columns 2t and 2t + 1.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod exact;

pub(crate) use exact::{Model, Rules, exact_half, exact_product};

use super::half::{NAN32, bf16_to_f32, f16_to_f32, f32_to_f16};
use super::narrow::{E4M3, e5m2_to_f32};
use crate::exec::code::Level;
use crate::ir::op::Mma;
use crate::ir::types::Ty;

/// The registers of A, B and C; those that a shape does not have are zeros.
pub(crate) struct Fragments<'r> {
    pub(crate) a: [&'r [u32; 32]; 4],
    pub(crate) b: [&'r [u32; 32]; 2],
    pub(crate) c: [&'r [u32; 32]; 4],
}

/// The operands as matrices of f32, which holds every value of the narrower types. Columns of A beyond the shape's k
/// are not used.
pub(crate) struct Matrices<const K: usize> {
    pub(crate) a: [[f32; K]; 16],
    pub(crate) b: [[f32; 8]; K],
    pub(crate) c: [[f32; 8]; 16],
}

/// An element of a register's line of 16 bytes.
#[inline(always)]
fn element(register: &[u32; 32], line: usize, k: usize, ty: Ty) -> u32 {
    let bits = 8 * ty.bytes() as usize;
    let word = register[4 * line + k * bits / 32];
    word >> (k * bits % 32)
}

/// The value of an operand's bits; those above its type do not count.
#[inline(always)]
fn value(bits: u32, ty: Ty) -> f32 {
    match ty {
        Ty::F16 => f16_to_f32(bits as u16),
        Ty::Bf16 => bf16_to_f32(bits as u16),
        Ty::E4m3 => E4M3[(bits & 0xff) as usize],
        Ty::E5m2 => e5m2_to_f32(bits as u8),
        // The low 13 bits of a TF32 operand do not count.
        _ => f32::from_bits(bits & !0x1fff),
    }
}

impl<const K: usize> Matrices<K> {
    #[inline(always)]
    fn gather(f: &Fragments<'_>, shape: Mma) -> Self {
        let mut m = Self { a: [[0.0; K]; 16], b: [[0.0; 8]; K], c: [[0.0; 8]; 16] };
        // The columns of A that a register has.
        let width = 16 / shape.a.bytes() as usize;
        for k in 0..usize::from(shape.k).min(K) {
            let block = k / width;
            for row in 0..16 {
                m.a[row][k] = value(element(f.a[2 * block + row / 8], row % 8, k % width, shape.a), shape.a);
            }
            for column in 0..8 {
                m.b[k][column] = value(element(f.b[block], column, k % width, shape.b), shape.b);
            }
        }
        for (row, sums) in m.c.iter_mut().enumerate() {
            for (column, sum) in sums.iter_mut().enumerate() {
                let lane = row % 8 * 4 + column / 2;
                *sum = if shape.accumulator == Ty::F16 {
                    f16_to_f32((f.c[row / 8][lane] >> (16 * (column % 2))) as u16)
                } else {
                    f32::from_bits(f.c[row / 8 * 2 + column % 2][lane])
                };
            }
        }
        m
    }
}

/// The fragments of a result.
#[inline(always)]
fn scatter(d: &[[f32; 8]; 16], shape: Mma, exact: bool, out: &mut [[u32; 32]; 4]) {
    for (row, sums) in d.iter().enumerate() {
        for (column, &sum) in sums.iter().enumerate() {
            let lane = row % 8 * 4 + column / 2;
            if shape.accumulator == Ty::F16 {
                let half = if exact { exact_half(sum) } else { f32_to_f16(sum) };
                out[row / 8][lane] |= u32::from(half) << (16 * (column % 2));
            } else {
                let bits = sum.to_bits();
                let nan = bits & 0x7fff_ffff > 0x7f80_0000;
                out[row / 8 * 2 + column % 2][lane] = if nan { NAN32 } else { bits };
            }
        }
    }
}

/// D = A·B + C. `model` says how tensor cores add; without one, fused multiply-adds in f32 in ascending order of k.
#[inline(always)]
pub(crate) fn product(
    f: &Fragments<'_>,
    shape: Mma,
    model: Option<Model>,
    level: Level,
    out: &mut [[u32; 32]; 4],
) {
    #[cfg(target_arch = "x86_64")]
    if level != Level::Plain && model.is_none() && shape.accumulator == Ty::F32 {
        use avx2::{BF16, F16, TF32};
        type Product = unsafe fn(&Fragments<'_>, &mut [[u32; 32]; 4]);
        let [narrow, wide]: [Option<Product>; 2] = match (shape.a, shape.k) {
            (Ty::F16, 16) => [Some(avx2::multiply::<F16, 2>), Some(avx512::multiply::<F16, 2>)],
            (Ty::F16, _) => [Some(avx2::multiply::<F16, 1>), Some(avx512::multiply::<F16, 1>)],
            (Ty::Bf16, 16) => [Some(avx2::multiply::<BF16, 2>), Some(avx512::multiply::<BF16, 2>)],
            (Ty::Bf16, _) => [Some(avx2::multiply::<BF16, 1>), Some(avx512::multiply::<BF16, 1>)],
            (Ty::Tf32, 8) => [Some(avx2::multiply::<TF32, 1>), Some(avx512::multiply::<TF32, 1>)],
            _ => [None, None],
        };
        if let Some(product) = if level == Level::Avx512 { wide } else { narrow } {
            // SAFETY: the level says that the host has these instructions.
            return unsafe { product(f, out) };
        }
    }
    let _ = level;
    if shape.accumulator == Ty::S32 {
        integers(f, shape, out);
    } else if shape.k == 32 {
        portable::<32>(f, shape, model, out);
    } else {
        portable::<16>(f, shape, model, out);
    }
}

/// D = A·B + C in integers.
#[inline(always)]
fn integers(f: &Fragments<'_>, shape: Mma, out: &mut [[u32; 32]; 4]) {
    let value = |bits: u32, ty: Ty| match ty {
        Ty::S8 => i64::from(bits as i8),
        _ => i64::from(bits as u8),
    };
    for row in 0..16 {
        for column in 0..8 {
            let (register, lane) = (row / 8 * 2 + column % 2, row % 8 * 4 + column / 2);
            let terms = (0..usize::from(shape.k)).map(|k| {
                let a = element(f.a[2 * (k / 16) + row / 8], row % 8, k % 16, shape.a);
                let b = element(f.b[k / 16], column, k % 16, shape.b);
                value(a, shape.a) * value(b, shape.b)
            });
            let sum = terms.sum::<i64>() + i64::from(f.c[register][lane].cast_signed());
            let limits = (i64::from(i32::MIN), i64::from(i32::MAX));
            let sum = if shape.satfinite { sum.clamp(limits.0, limits.1) } else { sum };
            out[register][lane] = sum as u32;
        }
    }
}

/// The product of 8-bit floats, which a warp on Hopper does as one of f16: first the lower two of each four bytes, then the
/// upper two on top, and then an ordinary addition of C.
#[inline(always)]
fn exact_bytes<const K: usize>(m: &Matrices<K>) -> [[f32; 8]; 16] {
    let mut halves = Matrices::<K> { a: [[0.0; K]; 16], b: [[0.0; 8]; K], c: [[0.0; 8]; 16] };
    for k in 0..K {
        let place = k / 4 * 2 + k % 2 + k % 4 / 2 * (K / 2);
        halves.b[place] = m.b[k];
        for row in 0..16 {
            halves.a[row][place] = m.a[row][k];
        }
    }
    let mut d = exact_product(&halves, K, Rules::new(Model::Hopper, Ty::F16, Ty::F16, Ty::F32));
    for (sum, c) in d.as_flattened_mut().iter_mut().zip(m.c.as_flattened()) {
        *sum += c;
    }
    d
}

#[inline(always)]
fn portable<const K: usize>(f: &Fragments<'_>, shape: Mma, model: Option<Model>, out: &mut [[u32; 32]; 4]) {
    let m = Matrices::<K>::gather(f, shape);
    let d = match model {
        Some(Model::Hopper) if shape.a.bytes() == 1 => exact_bytes(&m),
        Some(model) => {
            let rules = Rules::new(model, shape.a, shape.b, shape.accumulator);
            exact_product(&m, usize::from(shape.k), rules)
        }
        None => {
            let mut d = m.c;
            for (row, sums) in d.iter_mut().enumerate() {
                for k in 0..usize::from(shape.k) {
                    for (sum, b) in sums.iter_mut().zip(&m.b[k]) {
                        *sum = m.a[row][k].mul_add(*b, *sum);
                    }
                }
            }
            d
        }
    };
    scatter(&d, shape, model.is_some(), out);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vector_code_gives_what_the_portable_code_gives() {
        let mut state = 1u32;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            state >> 8
        };
        // Small positive and negative halves, and sums of any size.
        let small = |bits: u32| (bits & 0x8fff_8fff) | 0x3000_3000;
        let mut a: [[u32; 32]; 4] =
            std::array::from_fn(|_| std::array::from_fn(|_| small((next() << 8) ^ next())));
        // Infinity and NaN in every format, in two of the rows.
        (a[0][5], a[1][9]) = (0x7f80_7c00, 0x7fc0_7e00);
        let b: [[u32; 32]; 2] =
            std::array::from_fn(|_| std::array::from_fn(|_| small((next() << 8) ^ next())));
        let c: [[u32; 32]; 4] =
            std::array::from_fn(|_| std::array::from_fn(|_| ((next() as f32) / 1e6 - 8.0).to_bits()));
        let f = Fragments { a: a.each_ref(), b: b.each_ref(), c: c.each_ref() };
        for (input, k) in [(Ty::F16, 16), (Ty::F16, 8), (Ty::Bf16, 16), (Ty::Bf16, 8), (Ty::Tf32, 8)] {
            let shape = Mma { k, a: input, b: input, accumulator: Ty::F32, satfinite: false };
            let mut plain = [[0; 32]; 4];
            portable::<16>(&f, shape, None, &mut plain);
            for level in Level::all() {
                let mut vector = [[0; 32]; 4];
                product(&f, shape, None, level, &mut vector);
                assert_eq!(vector, plain, "{input:?}, k = {k}, {level:?}");
            }
        }
    }
}
