//! What the kernels of `clusters.cu` must leave.

use crate::harness::{Case, N, each, input, words};

const FILE: &str = "clusters";

/// Both halves of a word by a function of signed halves.
fn halves(a: u32, b: u32, c: u32, f: fn([i32; 3]) -> i32) -> u32 {
    let half = |v: u32, at: u32| i32::from((v >> at) as u16 as i16);
    let of = |at| f([half(a, at), half(b, at), half(c, at)]) as u16;
    u32::from(of(0)) | u32::from(of(16)) << 16
}

fn maxima(x: &[u32], i: usize) -> u32 {
    let n = x.len();
    let (a, b, c) = (x[i], x[(i + 1) % n], x[(i + 2) % n]);
    let (sa, sb, sc) = (a.cast_signed(), b.cast_signed(), c.cast_signed());
    let most = (sa >> 1).wrapping_add(sb >> 1).max(sc).cast_unsigned();
    let three = sa.max(sb).max(sc).max(0).cast_unsigned();
    let both = sa.max(sb).cast_unsigned();
    let first = if sa >= sb { 5 } else { 9 };
    let sums = halves(a, b, c, |[a, b, c]| i32::from((a + b) as i16).min(c).max(0));
    let least = halves(a, b, c, |[a, b, c]| (a & 0xffff).min(b & 0xffff).min(c & 0xffff));
    (most ^ three ^ both ^ first).wrapping_add(sums ^ least ^ a.wrapping_add(b).max(c))
}

pub(crate) fn cases() -> Vec<Case> {
    let x = input();
    let bins = (0..128).map(|bin| x[..N].iter().filter(|v| **v % 128 == bin).count() as u32);
    let ring = |i: usize| {
        let (block, t) = (i / 64, i % 64);
        let other = block ^ 1;
        x[i].wrapping_mul(3).wrapping_add(x[other * 64 + 63 - t]).wrapping_add(other as u32 % 2 + 2)
    };
    let stored = |i: usize| x[((i / 64) ^ 1) * 64 + 63 - i % 64].wrapping_add(7);
    let sums = |t: usize| (0..5).fold(0u32, |s, block| s.wrapping_add(x[block * 128 + t] & 0xffff));
    let staged = |t: usize| {
        let step = |s: u32, k: usize| {
            s.wrapping_mul(3).wrapping_add(x[k * 256 + t]).wrapping_add(x[k * 256 + 255 - t])
        };
        (0..10).fold(0, step)
    };
    vec![
        words(FILE, "histogram_of_a_cluster", N, bins.collect()).shape([8, 1], [64, 1]),
        words(FILE, "ring_of_blocks", 256, (0..256).map(ring).collect()).shape([4, 1], [64, 1]),
        words(
            FILE,
            "bulk_copies",
            9,
            (0..768).map(|i| x[i / 256 * 256 + 255 - i % 256].wrapping_add(9)).collect(),
        )
        .shape([3, 1], [64, 1]),
        words(FILE, "bulk_reductions", 0, (0..128).map(sums).collect()).shape([5, 1], [128, 1]),
        words(FILE, "producer_and_consumers", 10, (0..128).map(staged).collect()).shape([1, 1], [256, 1]),
        words(FILE, "stores_that_tell", 7, (0..256).map(stored).collect()).shape([4, 1], [64, 1]),
        words(
            FILE,
            "copies_to_all_blocks",
            3,
            (0..1024).map(|i: usize| x[255 - i % 256].wrapping_mul(3).wrapping_add(i as u32 / 256)).collect(),
        )
        .shape([4, 1], [64, 1]),
        each(FILE, "maxima_of_sums", maxima),
        words(FILE, "one_lane_of_the_warp", 4, (0..8).map(|w| x[w * 32].wrapping_add(4)).collect())
            .shape([2, 1], [128, 1]),
    ]
}
