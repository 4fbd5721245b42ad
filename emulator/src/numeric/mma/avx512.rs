//! `mma.sync` in plain f32, written for AVX-512: the sums stay where the warp's registers have them.
//!
//! Sixteen lanes are four rows of four lanes each. A step of k multiplies each row's element of A, spread over its four
//! lanes, by the four even or the four odd columns of B, repeated for all rows.

use std::arch::x86_64::{
    __m512, __m512i, _CMP_UNORD_Q, _mm_loadu_ps, _mm256_storeu_ps, _mm512_and_si512, _mm512_broadcast_f32x4,
    _mm512_castps512_ps256, _mm512_castsi512_ps, _mm512_cmp_ps_mask, _mm512_cvtepi32_epi16, _mm512_cvtph_ps,
    _mm512_extractf32x8_ps, _mm512_fmadd_ps, _mm512_loadu_si512, _mm512_mask_mov_ps, _mm512_permute_ps,
    _mm512_permutex2var_ps, _mm512_set1_epi32, _mm512_setr_epi32, _mm512_slli_epi32, _mm512_srli_epi32,
    _mm512_storeu_ps,
};

use super::Fragments;
use super::avx2::{BF16, TF32};
use crate::numeric::half::NAN32;

/// Lanes 0 to 15 of a register, or 16 to 31.
#[inline]
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw")]
fn words(register: &[u32; 32], half: usize) -> __m512i {
    let part = &register.as_chunks::<16>().0[half];
    // SAFETY: the array has the 64 bytes that are read; the load needs no alignment.
    unsafe { _mm512_loadu_si512(part.as_ptr().cast()) }
}

/// The values of a register's lower halves, then of its upper ones. A register of whole words has only the first.
#[inline]
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw")]
fn widen<const FORMAT: u8>(register: &[u32; 32]) -> [[__m512; 2]; 2] {
    let (low, high) = (words(register, 0), words(register, 1));
    match FORMAT {
        TF32 => {
            let keep = _mm512_set1_epi32(!0x1fff);
            let cut = |words| _mm512_castsi512_ps(_mm512_and_si512(words, keep));
            [[cut(low), cut(high)]; 2]
        }
        BF16 => {
            let keep = _mm512_set1_epi32(!0xffff);
            let lower = |words| _mm512_castsi512_ps(_mm512_slli_epi32::<16>(words));
            let upper = |words| _mm512_castsi512_ps(_mm512_and_si512(words, keep));
            [[lower(low), lower(high)], [upper(low), upper(high)]]
        }
        _ => {
            let lower = |words| _mm512_cvtph_ps(_mm512_cvtepi32_epi16(words));
            let upper = |words| lower(_mm512_srli_epi32::<16>(words));
            [[lower(low), lower(high)], [upper(low), upper(high)]]
        }
    }
}

/// The k of what lane t of a block's registers holds. `part` is the half of a word, or of TF32 the register.
#[inline(always)]
const fn k_of<const FORMAT: u8>(block: usize, part: usize, t: usize) -> usize {
    if FORMAT == TF32 { 4 * part + t } else { 8 * block + 2 * t + part }
}

/// For each k the even columns of B, then the odd ones.
#[inline]
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw")]
fn columns<const FORMAT: u8, const BLOCKS: usize>(f: &Fragments<'_>) -> [[f32; 8]; 16] {
    let mut b = [[0f32; 8]; 16];
    for block in 0..BLOCKS {
        let parts = if FORMAT == TF32 {
            [widen::<FORMAT>(f.b[0])[0], widen::<FORMAT>(f.b[1])[0]]
        } else {
            widen::<FORMAT>(f.b[block])
        };
        for (part, [low, high]) in parts.into_iter().enumerate() {
            // Lane 4n + t holds column n: of those, the same t of all columns, for two t at a time.
            for first in [0, 2] {
                let t = first as i32;
                #[rustfmt::skip]
                let lanes = _mm512_setr_epi32(
                    t, t + 8, t + 16, t + 24, t + 4, t + 12, t + 20, t + 28,
                    t + 1, t + 9, t + 17, t + 25, t + 5, t + 13, t + 21, t + 29,
                );
                let both = _mm512_permutex2var_ps(low, lanes, high);
                let (here, next) = (_mm512_castps512_ps256(both), _mm512_extractf32x8_ps::<1>(both));
                for (k, eight) in [(first, here), (first + 1, next)] {
                    let to = &mut b[k_of::<FORMAT>(block, part, k)];
                    // SAFETY: the array has the 32 bytes that are written; the store needs no alignment.
                    unsafe { _mm256_storeu_ps(to.as_mut_ptr(), eight) };
                }
            }
        }
    }
    b
}

/// Adds the products of one k. `a` has the rows of each half of the result, in two vectors each; `SELECT` names the lane of
/// each four that has the k, four times.
#[inline]
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw")]
fn step<const SELECT: i32>(a: &[[__m512; 2]; 2], column: &[f32; 8], sums: &mut [__m512; 8]) {
    // SAFETY: the array has twice the 16 bytes that are read; the loads need no alignment.
    let (even, odd) = unsafe { (_mm_loadu_ps(column.as_ptr()), _mm_loadu_ps(column.as_ptr().add(4))) };
    let (even, odd) = (_mm512_broadcast_f32x4(even), _mm512_broadcast_f32x4(odd));
    for half in 0..2 {
        for part in 0..2 {
            let row = _mm512_permute_ps::<SELECT>(a[half][part]);
            sums[4 * half + part] = _mm512_fmadd_ps(row, even, sums[4 * half + part]);
            sums[4 * half + 2 + part] = _mm512_fmadd_ps(row, odd, sums[4 * half + 2 + part]);
        }
    }
}

/// D = A·B + C with `BLOCKS` times 8 columns of A.
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw")]
pub(super) fn multiply<const FORMAT: u8, const BLOCKS: usize>(f: &Fragments<'_>, out: &mut [[u32; 32]; 4]) {
    let b = columns::<FORMAT, BLOCKS>(f);
    let mut sums = [_mm512_castsi512_ps(words(f.c[0], 0)); 8];
    for (i, sum) in sums.iter_mut().enumerate() {
        *sum = _mm512_castsi512_ps(words(f.c[i / 2], i % 2));
    }
    for block in 0..BLOCKS {
        let (top, bottom) = (widen::<FORMAT>(f.a[2 * block]), widen::<FORMAT>(f.a[2 * block + 1]));
        let mut a = [[top[0], bottom[0]], [top[1], bottom[1]]];
        if FORMAT == TF32 {
            a[1] = [widen::<FORMAT>(f.a[2])[0], widen::<FORMAT>(f.a[3])[0]];
        }
        // In ascending order of k.
        for i in 0..8 {
            let (part, t) = if FORMAT == TF32 { (i / 4, i % 4) } else { (i % 2, i / 2) };
            let column = &b[k_of::<FORMAT>(block, part, t)];
            match t {
                0 => step::<0x00>(&a[part], column, &mut sums),
                1 => step::<0x55>(&a[part], column, &mut sums),
                2 => step::<0xaa>(&a[part], column, &mut sums),
                _ => step::<0xff>(&a[part], column, &mut sums),
            }
        }
    }
    let nan = _mm512_castsi512_ps(_mm512_set1_epi32(NAN32.cast_signed()));
    for (to, sum) in out.as_flattened_mut().as_chunks_mut::<16>().0.iter_mut().zip(sums) {
        let sum = _mm512_mask_mov_ps(sum, _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(sum, sum), nan);
        // SAFETY: the array has the 64 bytes that are written; the store needs no alignment.
        unsafe { _mm512_storeu_ps(to.as_mut_ptr().cast(), sum) };
    }
}
