//! What the kernels of `kernels_triton_more.py` must leave. Each is a file of its own.

use half::bf16;

use crate::harness::{Case, Expected, N, each_of, input, words};

/// A launch by 4 warps, with more shared memory than any of them takes.
fn launched(case: Case, programs: [u32; 2]) -> Case {
    case.shape(programs, [128, 1]).shared(96 << 10).triton()
}

fn tiny(word: u32) -> f64 {
    f64::from(word % 5) - 2.0
}

/// Causal attention over n rows of 32 columns. The weights are rounded to halves, of 11 bits, and sums of positive
/// terms divide sums of at most twice as much; the exponentials' errors are far below those.
fn attention(x: &[u32], n: usize) -> Vec<(f64, f64)> {
    let (q, k) = (|i: usize| tiny(x[i]) * 0.25, |i: usize| tiny(x[n * 32 + i]));
    let v = |i: usize| tiny(x[2 * n * 32 + i]);
    let mut out = Vec::new();
    for row in 0..n {
        let score = |at: usize| (0..32).map(|d| q(row * 32 + d) * k(at * 32 + d)).sum::<f64>();
        let scores: Vec<f64> = (0..=row).map(score).collect();
        let most = scores.iter().copied().fold(f64::MIN, f64::max);
        let weights: Vec<f64> = scores.iter().map(|s| (s - most).exp()).collect();
        let total: f64 = weights.iter().sum();
        for d in 0..32 {
            let sum: f64 = weights.iter().enumerate().map(|(at, w)| w * v(at * 32 + d)).sum();
            out.push((sum / total, 2.0 * 2f64.powi(-11) * 1.01));
        }
    }
    out
}

fn product(x: &[u32], n: usize) -> Expected {
    let at = |i: usize| (0..n).map(|k| tiny(x[i / n * n + k]) * tiny(x[n * n + k * n + i % n])).sum::<f64>();
    Expected::Floats((0..n * n).map(|i| (at(i), 0.0)).collect())
}

fn recurrence(x: &[u32]) -> Vec<u32> {
    let scan = |order: Vec<usize>| {
        let mut sums = vec![0; order.len()];
        let mut last = 0u32;
        for i in order {
            last = last.wrapping_mul(x[i] % 7).wrapping_add(x[i] >> 3);
            sums[i] = last;
        }
        sums
    };
    let (there, back) = (scan((0..x.len()).collect()), scan((0..x.len()).rev().collect()));
    there.iter().zip(back).map(|(a, b)| a.wrapping_add(b.wrapping_mul(3))).collect()
}

fn largest(x: &[u32]) -> Vec<u32> {
    let v: Vec<u32> = x.iter().map(|v| v >> 1).collect();
    let mut left = Vec::new();
    for row in v.chunks(64) {
        let most = row.iter().copied().max().unwrap_or(0);
        left.push(most + row.iter().position(|v| *v == most).unwrap_or(0) as u32);
    }
    for c in 0..64 {
        let column: Vec<u32> = (0..16).map(|r| v[r * 64 + c]).collect();
        let least = column.iter().min();
        let place = column.iter().position(|v| Some(v) == least).unwrap_or(0) as u32;
        left.push(place.wrapping_add(column.iter().fold(0, |a, v| a ^ v)));
    }
    left
}

fn narrow(x: &[u32], i: usize) -> (f64, f64) {
    let v = x[i];
    let f = ((v % 513).cast_signed() - 256) as f32 / 8.0 + 1.0 / 3.0;
    // Two bits behind the first one.
    let unit = 2f32.powi(f.abs().log2().floor() as i32 - 2);
    let a = f64::from((f / unit).round() * unit);
    let c = f64::from(v as u8 as i8);
    let d = f64::from(x[i * 3 / 4].to_le_bytes()[i * 3 % 4]);
    (a + bf16::from_f32(f).to_f64() * 2.0 + c * 4.0 + d * 0.5, 0.0)
}

pub(crate) fn cases() -> Vec<Case> {
    let x = input();
    let programs = [N.div_ceil(256) as u32, 1];
    let bytes: Vec<u8> = x.iter().flat_map(|v| v.to_le_bytes()).collect();
    let n = 128;
    let in_stages = |i: usize| {
        let byte = |i: usize| i32::from(bytes[i] as i8);
        let terms = (0..n).map(|k| byte(i / n * n + k) * byte(n * n + k * n + i % n));
        terms.sum::<i32>().cast_unsigned()
    };
    let gathered = |x: &[u32], i: usize| {
        let at = |i: usize| x.get(i).copied().unwrap_or(0);
        let base = i / 256 * 256;
        at(base + at(i) as usize % 256).wrapping_add(at(base + 255 - i % 256))
    };
    let mut selected = Vec::new();
    for chunk in x[..1024].chunks(256) {
        let mut chunk = chunk.to_vec();
        chunk.sort_unstable_by(|a, b| b.cmp(a));
        selected.extend(&chunk[..16]);
    }
    let float = |name, n, values| Case::new(name, name, n, Expected::Floats(values));
    let mut locked = vec![0; 144];
    for row in x[..5 * 128].chunks(128) {
        for (s, v) in locked[16..].iter_mut().zip(row) {
            *s = u32::wrapping_add(*s, *v);
        }
    }
    vec![
        launched(float("triton_attention", 64, attention(&x, 64)), [2, 1]).repeats(),
        launched(
            Case::new("triton_product_of_8_bits", "triton_product_of_8_bits", 64, product(&x, 64)),
            [2, 2],
        ),
        launched(Case::new("triton_product_in_tf32", "triton_product_in_tf32", 64, product(&x, 64)), [2, 2]),
        launched(
            words(
                "triton_product_in_stages",
                "triton_product_in_stages",
                n,
                (0..n * n).map(in_stages).collect(),
            ),
            [2, 2],
        ),
        launched(each_of("triton_gather", "triton_gather", N, gathered), programs),
        launched(words("triton_recurrence", "triton_recurrence", 512, recurrence(&x[..512])), [1, 1]),
        launched(words("triton_largest", "triton_largest", 64, largest(&x[..1024])), [1, 1]).repeats(),
        launched(words("triton_locks", "triton_locks", 128, locked), [5, 1]),
        launched(words("triton_selected", "triton_selected", 256, selected), [4, 1]),
        launched(float("triton_narrow_types", N as u32, (0..N).map(|i| narrow(&x, i)).collect()), programs),
    ]
}
