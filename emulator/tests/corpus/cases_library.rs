//! What the kernels of `library.cu` must leave.

use crate::harness::{Case, Expected, N, each, input, words};

const FILE: &str = "library";

fn pair(v: u64) -> [u32; 2] {
    [v as u32, (v >> 32) as u32]
}

fn sizes(x: &[u32]) -> Vec<u32> {
    let bits = x.iter().fold(0, |a, v| a ^ v & 0xffff);
    let real: f64 = x.iter().map(|v| f64::from(v % 1024) * 0.25).sum();
    let most = x.iter().map(|v| (v >> 8) as f32).fold(0.0, f32::max);
    let wide = x.iter().fold(0i64, |s, v| s + i64::from(v.cast_signed()));
    let mut left = vec![x.len() as u32 & 255 | bits << 16, 0];
    left.extend(pair(real.to_bits()));
    left.extend([most.to_bits(), 0]);
    left.extend(pair(wide.cast_unsigned()));
    left.push(x.iter().map(|v| v | 1).min().unwrap_or(0));
    left
}

type Complex = (f64, f64);

fn product(a: Complex, b: Complex) -> Complex {
    (a.0 * b.0 - a.1 * b.1, a.0 * b.1 + a.1 * b.0)
}

fn complex(word: u32) -> [f64; 2] {
    let z = (f64::from(word % 65) / 16.0 - 2.0, f64::from(word % 33) / 16.0 - 1.0);
    let (length, angle) = (z.0.hypot(z.1), z.1.atan2(z.0));
    let exp = (z.0.exp() * z.1.cos(), z.0.exp() * z.1.sin());
    let square = product(z, z);
    let by = (square.0 + 7.0, square.1 + 1.0);
    let norm = by.0 * by.0 + by.1 * by.1;
    let quotient = product(exp, (by.0 / norm, -by.1 / norm));
    let root = (length.sqrt() * (angle / 2.0).cos(), length.sqrt() * (angle / 2.0).sin());
    let last = product(root, (z.0, -z.1));
    [quotient.0 + last.0, quotient.1 + last.1 + length + z.1.atan2(z.0 + 3.0)]
}

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}

fn views(x: &[u32], i: usize) -> u32 {
    let mut local: Vec<u32> = (0..12).map(|k| x[(i + k) % x.len()] % 1000).collect();
    let mut r = local[9] * 3 + local[i % 3 * 4 + i % 4];
    local.sort_unstable();
    r += 13 * local.iter().filter(|v| **v < 500).count() as u32 + local[..5].iter().sum::<u32>();
    let v = x[i];
    r = r.wrapping_add(if v & 1 == 1 { (v >> 3) * 2 } else { (v >> 20) * 2 });
    let bits = (u128::from(v) << 40 ^ 1 << 50) & ((1 << 96) - 1);
    r.wrapping_add(bits.count_ones() * 9)
        .wrapping_add((bits >> 41) as u32 & 1)
        .wrapping_add(gcd(v | 1, 9999))
        .wrapping_add(32767)
}

pub(crate) fn cases() -> Vec<Case> {
    let x = input();
    let queued = x[..60].iter().fold(0u32, |s, v| s.wrapping_mul(3).wrapping_add(*v));
    let staged = |t: usize| (0..7).fold(0u32, |s, k| s.wrapping_mul(3).wrapping_add(x[k * 64 + 63 - t]));
    // Each value has an error of some roundings of what is up to 32.
    let complex: Vec<(f64, f64)> = x[..N].iter().flat_map(|v| complex(*v)).map(|v| (v, 1e-13)).collect();
    vec![
        words(FILE, "atomics_of_all_sizes", N, sizes(&x[..N])).begins_with(&[
            0,
            0,
            0,
            0,
            0,
            0,
            0,
            0,
            u32::MAX,
        ]),
        words(FILE, "queue_between_blocks", 60, vec![queued]).shape([2, 1], [32, 1]),
        words(FILE, "messages", 5, vec![x[5].wrapping_add(1)]).shape([1, 1], [64, 1]),
        words(FILE, "latches_and_semaphores", 5, (0..64).map(|t| x[63 - t].wrapping_add(6)).collect())
            .shape([1, 1], [64, 1]),
        words(FILE, "partitioned_pipeline", 7, (0..64).map(staged).collect()).shape([1, 1], [128, 1]),
        words(
            FILE,
            "barriers_with_a_function",
            5,
            (0..192).map(|i| x[i % 64].wrapping_add(5 + 5 + i as u32 / 64 * 10)).collect(),
        )
        .shape([1, 1], [64, 1]),
        Case::new(FILE, "functions_of_complex_numbers", N as u32, Expected::Doubles(complex)),
        each(FILE, "views_and_algorithms", views),
    ]
}
