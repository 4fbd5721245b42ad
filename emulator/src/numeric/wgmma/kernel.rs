//! The product in plain f32, in ascending order of k, and that of integers.
//!
//! The sums stay where the warp's registers have them. Of A, each lane's own row is there for every k, so that a step is
//! one multiplication of A's lanes by four values of B, repeated for every row.

use super::operand::{Columns, Number, Rows};
use crate::exec::code::Level;

/// Adds the product to the result's registers.
pub(super) fn product<T: Number>(
    a: &Rows<T>,
    b: &Columns<T>,
    satfinite: bool,
    level: Level,
    registers: &mut [[u32; 32]],
) {
    if satfinite {
        return saturating(a, b, registers);
    }
    #[cfg(target_arch = "x86_64")]
    if level != Level::Plain {
        use std::any::Any;
        if let (Some(a), Some(b)) =
            ((a as &dyn Any).downcast_ref::<Rows<f32>>(), (b as &dyn Any).downcast_ref::<Columns<f32>>())
        {
            // SAFETY: the level says that the host has these instructions.
            return unsafe { singles(a, b, registers) };
        }
        // SAFETY: as above.
        return unsafe { vector(a, b, registers) };
    }
    let _ = level;
    portable(a, b, registers);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn vector<T: Number>(a: &Rows<T>, b: &Columns<T>, registers: &mut [[u32; 32]]) {
    portable(a, b, registers);
}

#[inline(always)]
fn portable<T: Number>(a: &Rows<T>, b: &Columns<T>, registers: &mut [[u32; 32]]) {
    for (sums, columns) in registers.as_chunks_mut::<4>().0.iter_mut().zip(b.values.chunks_exact(b.k)) {
        for (i, sums) in sums.iter_mut().enumerate() {
            let (half, odd) = (i / 2, i % 2);
            let mut total = sums.map(T::from_bits);
            for (a, column) in a.values.iter().zip(columns) {
                for lane in 0..32 {
                    total[lane] = a[half][lane].multiply_add(column[4 * odd + lane % 4], total[lane]);
                }
            }
            *sums = total.map(T::to_bits);
        }
    }
}

/// The product of integers whose sums stop at the ends of their range.
fn saturating<T: Number>(a: &Rows<T>, b: &Columns<T>, registers: &mut [[u32; 32]]) {
    for (i, register) in registers.iter_mut().enumerate() {
        let columns = &b.values[i / 4 * b.k..][..b.k];
        let (half, odd) = (i / 2 % 2, i % 2);
        for (lane, sum) in register.iter_mut().enumerate() {
            let product = |a: T, b: T| i64::from(a.multiply_add(b, T::default()).to_bits().cast_signed());
            let terms = a.values.iter().zip(columns);
            let total = terms.map(|(a, c)| product(a[half][lane], c[4 * odd + lane % 4])).sum::<i64>();
            let total = total + i64::from(sum.cast_signed());
            *sum = (total.clamp(i64::from(i32::MIN), i64::from(i32::MAX)) as i32).cast_unsigned();
        }
    }
}

/// [`portable`] for f32, with the sums of eight columns' half in vector registers.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn singles(a: &Rows<f32>, b: &Columns<f32>, registers: &mut [[u32; 32]]) {
    use std::arch::x86_64::{
        _mm_loadu_ps, _mm256_fmadd_ps, _mm256_loadu_ps, _mm256_set_m128, _mm256_storeu_ps,
    };
    let k_size = a.values.len().min(b.k);
    for (sums, columns) in registers.as_chunks_mut::<4>().0.iter_mut().zip(b.values.chunks_exact(b.k)) {
        for half in 0..2 {
            // SAFETY: eight lanes from a multiple of 8 are inside of the 32; loads and stores need no alignment.
            let mut totals: [_; 8] = std::array::from_fn(|i| unsafe {
                _mm256_loadu_ps(sums[2 * half + i / 4].as_ptr().cast::<f32>().add(i % 4 * 8))
            });
            for k in 0..k_size {
                let (rows, column) = (&a.values[k][half], &columns[k]);
                // SAFETY: as above, and a column's eight values are two times four.
                let (even, odd) = unsafe {
                    let (even, odd) = (_mm_loadu_ps(column.as_ptr()), _mm_loadu_ps(column.as_ptr().add(4)));
                    (_mm256_set_m128(even, even), _mm256_set_m128(odd, odd))
                };
                for part in 0..4 {
                    // SAFETY: as above.
                    let row = unsafe { _mm256_loadu_ps(rows.as_ptr().add(part * 8)) };
                    totals[part] = _mm256_fmadd_ps(row, even, totals[part]);
                    totals[4 + part] = _mm256_fmadd_ps(row, odd, totals[4 + part]);
                }
            }
            for (i, total) in totals.into_iter().enumerate() {
                let to = &mut sums[2 * half + i / 4][i % 4 * 8..i % 4 * 8 + 8];
                // SAFETY: the slice has the 32 bytes that are written.
                unsafe { _mm256_storeu_ps(to.as_mut_ptr().cast(), total) };
            }
        }
    }
}
