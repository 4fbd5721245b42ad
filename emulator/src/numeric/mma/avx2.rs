//! `mma.sync` in plain f32, written for AVX2 and FMA: the instruction that matrix kernels spend their time in.
//!
//! The loops of the portable version, with the operands where vector registers want them: eight sums of a row of C side
//! by side, B transposed once, A's elements spread one at a time.

use std::arch::x86_64::{
    __m128i, __m256, _CMP_UNORD_Q, _mm_and_si128, _mm_castsi128_ps, _mm_loadu_si128, _mm_set1_epi32,
    _mm_storeu_ps, _mm_unpackhi_ps, _mm_unpacklo_ps, _mm256_blendv_ps, _mm256_castps256_ps128,
    _mm256_castsi256_ps, _mm256_cmp_ps, _mm256_cvtepu16_epi32, _mm256_cvtph_ps, _mm256_extractf128_ps,
    _mm256_fmadd_ps, _mm256_permute2f128_ps, _mm256_permutevar8x32_ps, _mm256_set_m128, _mm256_set1_epi32,
    _mm256_set1_ps, _mm256_setr_epi32, _mm256_setzero_ps, _mm256_shuffle_ps, _mm256_slli_epi32,
    _mm256_storeu_ps, _mm256_unpackhi_ps, _mm256_unpacklo_ps,
};

use super::Fragments;
use crate::numeric::half::NAN32;

/// The formats of A and B.
pub(super) const F16: u8 = 0;
/// See [`F16`].
pub(super) const BF16: u8 = 1;
/// See [`F16`].
pub(super) const TF32: u8 = 2;

/// Four words of a register, from lane `at`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn words(register: &[u32; 32], at: usize) -> __m128i {
    let part = &register[at..at + 4];
    // SAFETY: the slice has the 16 bytes that are read; the load needs no alignment.
    unsafe { _mm_loadu_si128(part.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn store(row: __m256, to: &mut [f32; 8]) {
    // SAFETY: the array has the 32 bytes that are written; the store needs no alignment.
    unsafe { _mm256_storeu_ps(to.as_mut_ptr(), row) }
}

/// Eight consecutive elements of a row. `high` is the register with the second four, for TF32.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn row<const FORMAT: u8>(low: &[u32; 32], high: &[u32; 32], at: usize) -> __m256 {
    match FORMAT {
        F16 => _mm256_cvtph_ps(words(low, at)),
        BF16 => _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(words(low, at)))),
        _ => {
            let keep = _mm_set1_epi32(!0x1fff);
            let cut = |register| _mm_castsi128_ps(_mm_and_si128(words(register, at), keep));
            _mm256_set_m128(cut(high), cut(low))
        }
    }
}

/// An 8×8 matrix, transposed.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn transpose(r: [__m256; 8]) -> [__m256; 8] {
    let pairs: [__m256; 8] = std::array::from_fn(|i| {
        let (a, b) = (r[i / 2 * 2], r[i / 2 * 2 + 1]);
        if i % 2 == 0 { _mm256_unpacklo_ps(a, b) } else { _mm256_unpackhi_ps(a, b) }
    });
    let quads: [__m256; 8] = std::array::from_fn(|i| {
        let (a, b) = (pairs[i / 4 * 4 + i / 2 % 2], pairs[i / 4 * 4 + i / 2 % 2 + 2]);
        if i % 2 == 0 { _mm256_shuffle_ps::<0x44>(a, b) } else { _mm256_shuffle_ps::<0xee>(a, b) }
    });
    std::array::from_fn(|i| {
        let (a, b) = (quads[i % 4], quads[i % 4 + 4]);
        if i < 4 { _mm256_permute2f128_ps::<0x20>(a, b) } else { _mm256_permute2f128_ps::<0x31>(a, b) }
    })
}

/// D = A·B + C with `BLOCKS` times 8 columns of A.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn multiply<const FORMAT: u8, const BLOCKS: usize>(f: &Fragments<'_>, out: &mut [[u32; 32]; 4]) {
    let mut b = [[_mm256_setzero_ps(); 8]; BLOCKS];
    let mut a = [[[0f32; 8]; 16]; BLOCKS];
    for block in 0..BLOCKS {
        let (low, high) = if FORMAT == TF32 { (f.b[0], f.b[1]) } else { (f.b[block], f.b[block]) };
        b[block] = transpose(std::array::from_fn(|n| row::<FORMAT>(low, high, 4 * n)));
        for half in 0..2 {
            let low = f.a[2 * block + half];
            let high = if FORMAT == TF32 { f.a[2 + half] } else { low };
            for g in 0..8 {
                store(row::<FORMAT>(low, high, 4 * g), &mut a[block][8 * half + g]);
            }
        }
    }
    let nan = _mm256_castsi256_ps(_mm256_set1_epi32(NAN32.cast_signed()));
    let split = _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7);
    for half in 0..2 {
        let mut sums: [__m256; 8] = std::array::from_fn(|g| {
            let even = _mm_castsi128_ps(words(f.c[2 * half], 4 * g));
            let odd = _mm_castsi128_ps(words(f.c[2 * half + 1], 4 * g));
            _mm256_set_m128(_mm_unpackhi_ps(even, odd), _mm_unpacklo_ps(even, odd))
        });
        for block in 0..BLOCKS {
            for k in 0..8 {
                let column = b[block][k];
                for g in 0..8 {
                    sums[g] = _mm256_fmadd_ps(_mm256_set1_ps(a[block][8 * half + g][k]), column, sums[g]);
                }
            }
        }
        for (g, &sum) in sums.iter().enumerate() {
            let sum = _mm256_blendv_ps(sum, nan, _mm256_cmp_ps::<_CMP_UNORD_Q>(sum, sum));
            let parts = _mm256_permutevar8x32_ps(sum, split);
            let at = 4 * g..4 * g + 4;
            let even = out[2 * half][at.clone()].as_mut_ptr().cast::<f32>();
            // SAFETY: the slice has the 16 bytes that are written; the store needs no alignment.
            unsafe { _mm_storeu_ps(even, _mm256_castps256_ps128(parts)) };
            let odd = out[2 * half + 1][at].as_mut_ptr().cast::<f32>();
            // SAFETY: as above.
            unsafe { _mm_storeu_ps(odd, _mm256_extractf128_ps::<1>(parts)) };
        }
    }
}
