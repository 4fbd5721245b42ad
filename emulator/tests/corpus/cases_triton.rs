//! What the kernels of `kernels_triton.py` must leave. Each is a file of its own.

use crate::harness::{Case, Expected, N, each_of, input, words};

/// A launch of one program for each 256 elements, by 4 warps.
fn launched(case: Case, programs: [u32; 2]) -> Case {
    // More shared memory than any of them takes.
    case.shape(programs, [128, 1]).shared(32 << 10).triton()
}

fn sum(x: &[u32]) -> u32 {
    x.iter().fold(0, |s, &v| s.wrapping_add(v))
}

fn collatz(x: u32) -> u32 {
    let (mut v, mut steps) = (u64::from(x % 1000 + 1), 0);
    while v != 1 {
        v = if v % 2 == 1 { 3 * v + 1 } else { v / 2 };
        steps += 1;
    }
    steps
}

fn philox(seed: u64, i: u32) -> u32 {
    let (mut c, mut k) = ([i, 0, 0, 0], [seed as u32, (seed >> 32) as u32]);
    for _ in 0..10 {
        let (a, b) = (0xD251_1F53u64 * u64::from(c[0]), 0xCD9E_8D57u64 * u64::from(c[2]));
        c = [(b >> 32) as u32 ^ c[1] ^ k[0], b as u32, (a >> 32) as u32 ^ c[3] ^ k[1], a as u32];
        k = [k[0].wrapping_add(0x9E37_79B9), k[1].wrapping_add(0xBB67_AE85)];
    }
    c.iter().fold(0, |a, b| a ^ b)
}

/// Rows of n elements. An exponential is within 2 ulp of `ex2.approx` of an argument with one rounding, up to
/// 17·log2(e), which counts for that
/// many ulp; a sum of positive terms has log2(n) + 3 roundings, and a quotient 2 ulp.
fn softmax(n: usize, rows: usize) -> Case {
    let x = input();
    let mut expected = Vec::new();
    for row in x[..n * rows].chunks(n) {
        let values: Vec<f64> = row.iter().map(|w| f64::from(w % 17)).collect();
        let most = values.iter().fold(0.0f64, |m, v| m.max(*v));
        let total: f64 = values.iter().map(|v| (v - most).exp()).sum();
        let bound = (2.0 * (2.0 + 25.0) + (n as f64).log2() + 3.0 + 2.0) * 2f64.powi(-23);
        expected.extend(values.iter().map(|v| ((v - most).exp() / total, (v - most).exp() / total * bound)));
    }
    launched(
        Case::new("triton_softmax", "triton_softmax", n as u32, Expected::Floats(expected)),
        [rows as u32, 1],
    )
}

/// The mean of n values up to 16 has n roundings at most of what is exact but for the last division; so the
/// differences are within 16·2u, and
/// the root of their squares' mean, which is at least 1, likewise.
fn layer_norm(n: usize, rows: usize) -> Case {
    let x = input();
    let mut expected = Vec::new();
    for row in x[..n * rows].chunks(n) {
        let values: Vec<f64> = row.iter().map(|w| f64::from(w % 17)).collect();
        let mean = values.iter().sum::<f64>() / n as f64;
        let spread = (values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / n as f64 + 1.0).sqrt();
        let u = 2f64.powi(-24);
        let bound = 16.0 * (2.0 + 4.0) * u + 16.0 * ((n as f64).log2() + 16.0) * u;
        expected.extend(values.iter().map(|v| ((v - mean) / spread, bound)));
    }
    launched(
        Case::new("triton_layer_norm", "triton_layer_norm", n as u32, Expected::Floats(expected)),
        [rows as u32, 1],
    )
}

pub(crate) fn cases() -> Vec<Case> {
    let x = input();
    let programs = [N.div_ceil(256) as u32, 1];
    let scan = (0..N).map(|i| sum(&x[i / 256 * 256..=i])).collect();
    let mut sorted = x[..256].to_vec();
    sorted.sort_unstable();
    let bins = (0..64).map(|bin| x[..1024].iter().filter(|v| **v & 63 == bin).count() as u32).collect();
    let small = |w: u32| f64::from(w % 5) - 2.0;
    let n = 64;
    let product =
        |i: usize| (0..n).map(|k| small(x[i / n * n + k]) * small(x[n * n + k * n + i % n])).sum::<f64>();
    vec![
        launched(
            each_of("triton_axpy", "triton_axpy", N, |x, i| x[i].wrapping_mul(3).wrapping_add(7)),
            programs,
        ),
        launched(words("triton_sums", "triton_sums", N, x[..N].chunks(256).map(sum).collect()), programs),
        launched(words("triton_atomic_sum", "triton_atomic_sum", N, vec![sum(&x[..N])]), programs),
        launched(words("triton_scan", "triton_scan", N, scan), programs),
        launched(words("triton_sort", "triton_sort", 256, sorted), [1, 1]),
        launched(
            words(
                "triton_transpose",
                "triton_transpose",
                45,
                (0..2025).map(|i| x[i % 45 * 45 + i / 45]).collect(),
            ),
            [2, 2],
        ),
        // Its warps clear the same bins, each on its own.
        launched(words("triton_histogram", "triton_histogram", 1024, bins), [4, 1]).repeats(),
        launched(each_of("triton_collatz", "triton_collatz", N, |x, i| collatz(x[i])), programs),
        softmax(200, 7),
        layer_norm(200, 7),
        launched(
            Case::new(
                "triton_product",
                "triton_product",
                n as u32,
                Expected::Floats((0..n * n).map(|i| (product(i), 0.0)).collect()),
            ),
            [2, 2],
        ),
        launched(each_of("triton_random", "triton_random", N, |_, i| philox(1234, i as u32)), programs),
    ]
}
