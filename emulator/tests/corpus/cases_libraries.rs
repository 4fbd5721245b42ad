//! What the kernels of `groups.cu`, `standard.cu`, `matrices.cu` and `matrices80.cu` must leave.

use crate::harness::{Case, Expected, N, each, input, words};

const GROUPS: &str = "groups";
const STANDARD: &str = "standard";

fn sum(x: &[u32]) -> u32 {
    x.iter().fold(0, |s, &v| s.wrapping_add(v))
}

/// The elements of a group of threads; those beyond the end are zeros.
fn group(x: &[u32], i: usize, size: usize) -> Vec<u32> {
    (0..size).map(|l| x.get(i / size * size + l).copied().unwrap_or(0)).collect()
}

fn groups() -> Vec<Case> {
    let x = input();
    let thirds = x[..N].iter().filter(|v| **v % 3 == 0).count();
    let mut ones = vec![1; thirds + 1];
    ones[0] = thirds as u32;
    let blocks = |i: usize| {
        let (block, t) = (i / 128, i % 128);
        x[(block * 128 + 127 - t) % 300].wrapping_add(block as u32 * 7 + 128)
    };
    vec![
        each(GROUPS, "sums_of_tiles", |x, i| {
            sum(&group(x, i, 8)).wrapping_add(i as u32 % 8).wrapping_add(100 * (i as u32 % 128 / 8))
        }),
        each(GROUPS, "reductions_of_tiles", |x, i| {
            let g = group(x, i, 32);
            sum(&g) ^ g.iter().copied().max().unwrap_or(0)
        }),
        each(GROUPS, "scans_of_tiles", |x, i| {
            let g = group(x, i, 16);
            let before = g[..i % 16].iter().fold(0, |a, v| a ^ v);
            sum(&g[..=i % 16]).wrapping_add(before.wrapping_mul(3))
        }),
        words(GROUPS, "one_atomic_for_a_group", N, ones),
        each(GROUPS, "labelled_groups", |x, i| {
            let own = x[i] % 4;
            let peers: Vec<u32> = group(x, i, 32).into_iter().filter(|v| v % 4 == own).collect();
            sum(&peers).wrapping_add(peers.len() as u32)
        }),
        words(GROUPS, "synchronised_blocks", 300, (0..384).map(blocks).collect()),
    ]
}

fn standard() -> Vec<Case> {
    let x = input();
    let most = x[..N].iter().copied().max().unwrap_or(0);
    let bits = x[..N].iter().fold(0, |a, v| a ^ v);
    let low = x[..N].iter().map(|v| v & 0xff).sum::<u32>();
    let mut ring: Vec<u32> = (0..128).map(|t| x[t % 100]).collect();
    for _ in 0..3 {
        ring = (0..128).map(|t| ring[t].wrapping_mul(3).wrapping_add(ring[(t + 1) % 128])).collect();
    }
    let staged = |t: usize| {
        (0..5).fold(0u32, |s, step| s.wrapping_mul(3).wrapping_add(x[step * 128 + (t * 5 + step) % 128]))
    };
    let locked = 3 * (0..64).map(|t| x[t] % 7).sum::<u32>();
    vec![
        words(STANDARD, "atomic_references", N, vec![sum(&x[..N]), most, bits, 2 * N as u32]),
        words(STANDARD, "atomics_of_blocks", N, vec![low]).shape([1, 1], [128, 1]),
        words(STANDARD, "spin_lock", 200, vec![0, locked]).shape([3, 1], [64, 1]),
        words(STANDARD, "barriers", 100, ring).shape([1, 1], [128, 1]),
        words(STANDARD, "pipelines", 640, (0..128).map(staged).collect()).shape([1, 1], [128, 1]),
        words(
            STANDARD,
            "copies_of_a_thread",
            256,
            (0..64).map(|t| x[4 * (63 - t)].wrapping_add(x[4 * (63 - t) + 3])).collect(),
        )
        .shape([1, 1], [64, 1]),
        each(STANDARD, "library_types", |x, i| {
            let mut a: Vec<u32> = (0..6).map(|k| x[(i + k) % N] >> 16).collect();
            a.sort_unstable();
            let (re, im) = ((i % 16) as i32, 2i32);
            a[2].wrapping_add(3 * x[i].count_ones())
                .wrapping_add(x[i].rotate_left(7))
                .wrapping_add(if x[i] & 1 == 1 { a[5] } else { 17 })
                .wrapping_add((re * re - im * im).cast_unsigned())
                .wrapping_add((2 * re * im).cast_unsigned())
        }),
    ]
}

/// Sums of products of small numbers, which are exact.
fn matrices() -> Vec<Case> {
    let x = input();
    let n = 32;
    let small = |w: u32| f64::from(w % 5) - 2.0;
    let half = |i: usize| {
        let (row, column) = (i / n, i % n);
        let terms = (0..n).map(|k| small(x[row * n + k]) * small(x[n * n + column * n + k]));
        2.0 * (terms.sum::<f64>() + 1.0)
    };
    let byte = |w: u32| i32::from(w as u8 as i8);
    let bytes = |kernel, m: usize, n: usize| {
        let at = |i: usize| {
            let (row, column) = (i % m, i / m);
            (0..16).map(|k| byte(x[row * 16 + k]) * byte(x[m * 16 + k * n + column] >> 8)).sum::<i32>() - 3
        };
        words("matrices", kernel, m * n, (0..m * n).map(|i| at(i).cast_unsigned()).collect())
            .shape([1, 1], [32, 1])
    };
    let nine = |w: u32| f64::from(w % 9) - 4.0;
    let exact = |values: Vec<f64>| values.into_iter().map(|v| (v, 0.0)).collect::<Vec<_>>();
    let brain = |i: usize| (0..16).map(|k| nine(x[k * 16 + i / 16]) * nine(x[256 + k * 16 + i % 16])).sum();
    let tf32 = |i: usize| {
        (0..8).map(|k| nine(x[i / 16 * 8 + k]) * nine(x[128 + k * 16 + i % 16])).sum::<f64>() + 0.5
    };
    let double =
        |i: usize| (0..4).map(|k| nine(x[i / 8 * 4 + k]) * 1e3 * (nine(x[32 + i % 8 * 4 + k]) + 0.25)).sum();
    let one = |kernel, expected| Case::new("matrices80", kernel, 1, expected).shape([1, 1], [32, 1]);
    vec![
        Case::new(
            "matrices",
            "wmma_of_halves",
            n as u32,
            Expected::Floats(exact((0..n * n).map(half).collect())),
        )
        .shape([2, 2], [32, 1]),
        bytes("wmma_of_bytes", 16, 16),
        bytes("wmma_of_bytes_wide", 8, 32),
        bytes("wmma_of_bytes_tall", 32, 8),
        one("wmma_of_brains", Expected::Floats(exact((0..256).map(brain).collect()))),
        // What is added to A is rounded away by its conversion, but for zeros: the products then differ by
        // 4·2^-20 each.
        one(
            "wmma_of_tf32",
            Expected::Floats((0..256).map(|i| (tf32(i), 8.0 * 4.0 * 2f64.powi(-20))).collect()),
        ),
        one("wmma_of_doubles", Expected::Doubles(exact((0..64).map(double).collect()))),
    ]
}

pub(crate) fn cases() -> Vec<Case> {
    [groups(), standard(), matrices()].into_iter().flatten().collect()
}
