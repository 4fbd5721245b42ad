//! What the kernels of `blocks.cu` must leave.

use crate::harness::{Case, N, input, words};

const FILE: &str = "blocks";

fn sum(x: &[u32]) -> u32 {
    x.iter().fold(0, |s, &v| s.wrapping_add(v))
}

fn most(x: &[u32]) -> u32 {
    x.iter().copied().max().unwrap_or(0)
}

fn reductions(x: &[u32]) -> Vec<u32> {
    let of = |block: &[u32]| {
        let most = most(block);
        let place = block.iter().position(|v| *v == most).unwrap_or(0);
        [sum(block), most, sum(block), place as u32]
    };
    x.chunks(128).flat_map(of).collect()
}

fn scans(x: &[u32]) -> Vec<u32> {
    let mut left = Vec::new();
    for (base, tile) in x.chunks(256).enumerate() {
        for i in 0..tile.len() {
            let before = sum(&x[..base * 256 + i]);
            let evens = (0..=i / 2).fold(0u32, |s, t| s.wrapping_add(tile[2 * t]));
            left.push(
                before
                    .wrapping_add(most(&tile[..=i]).wrapping_mul(3))
                    .wrapping_add(most(tile).wrapping_mul(5))
                    .wrapping_add(evens.wrapping_mul(7)),
            );
        }
    }
    left
}

/// Keys in striped order, then floats from the largest down.
fn sorted(x: &[u32]) -> Vec<u32> {
    let mut keys: Vec<(u32, u32)> = x.iter().copied().zip(0..).collect();
    keys.sort_by_key(|(key, _)| key >> 4 & 0xffff);
    let mut floats: Vec<f32> = x.iter().map(|v| v.cast_signed() as f32).collect();
    floats.sort_by(|a, b| b.total_cmp(a));
    keys.iter().map(|(key, at)| key ^ at).chain(floats.iter().map(|f| f.to_bits())).collect()
}

fn loaded(x: &[u32], n: usize) -> Vec<u32> {
    let at = |i: usize| {
        let mirrored = i / 4 * 4 + 3 - i % 4;
        x[i].wrapping_add(x[i + 1].wrapping_mul(3)).wrapping_add(x[mirrored].wrapping_mul(5))
    };
    (0..n).map(at).collect()
}

fn heads(x: &[u32]) -> Vec<u32> {
    let n = x.len();
    let at = |i: usize| {
        let difference = if i == 0 { x[0] } else { x[i].wrapping_sub(x[i - 1]) };
        let head = i == 0 || (x[i] ^ x[i - 1]) & 1 == 1;
        let tail = i == n - 1 || (x[i] ^ x[i + 1]) & 1 == 1;
        difference.wrapping_mul(4).wrapping_add(u32::from(head) * 2 + u32::from(tail))
    };
    (0..n).map(at).collect()
}

fn merged(x: &[u32], n: usize) -> Vec<u32> {
    let mut pairs: Vec<(u32, u32)> = x[..n].iter().map(|v| v % 64).zip(0..).collect();
    pairs.sort_by_key(|(key, _)| *key);
    let mut left: Vec<u32> = pairs.iter().map(|(key, at)| key * 1000 + at).collect();
    left.resize(384, 0);
    for chunk in x[..512].chunks(64) {
        let mut chunk = chunk.to_vec();
        chunk.sort_unstable();
        left.extend(chunk);
    }
    left
}

fn shuffled(x: &[u32]) -> Vec<u32> {
    // In `w`, 4 elements a thread: element t * 4 + k of the block is what thread t has at k.
    let striped: Vec<u32> = (0..512).map(|i| x[i % 4 * 128 + i / 4]).collect();
    let mut scattered = vec![0; 512];
    for (i, v) in striped.iter().enumerate() {
        scattered[i * 5 % 512] = *v;
    }
    let w: Vec<u32> = (0..512)
        .map(|i| {
            let (warp, lane, k) = (i / 128, i / 4 % 32, i % 4);
            let at = lane * 4 + k;
            scattered[warp * 128 + at % 32 * 4 + at / 32]
        })
        .collect();
    (0..512)
        .map(|i| {
            let up = if i == 0 { 0 } else { w[i - 1] };
            up.wrapping_add(w[(i / 4 + 7) % 128 * 4 + 1].wrapping_mul(3))
        })
        .collect()
}

fn of_warps(x: &[u32], n: usize, threads: usize) -> Vec<u32> {
    let v: Vec<u32> = (0..threads).map(|i| x[i % n]).collect();
    let at = |i: usize| {
        let (warp, half) = (&v[i / 32 * 32..][..32], &v[i / 16 * 16..][..16]);
        let lane = i % 32;
        let mut r = sum(&warp[..lane]).wrapping_add(sum(warp).wrapping_mul(3));
        if i.is_multiple_of(16) {
            r = r.wrapping_add(sum(half).wrapping_mul(5));
        }
        if i.is_multiple_of(16) || v[i].is_multiple_of(5) {
            let end = (i % 16 + 1..16).find(|k| half[*k] % 5 == 0).unwrap_or(16);
            r = r.wrapping_add(most(&half[i % 16..end]).wrapping_mul(7));
        }
        if lane == 0 {
            r = r.wrapping_add(sum(&warp[..11]).wrapping_mul(9));
        }
        r
    };
    (0..threads).map(at).collect()
}

fn runs(x: &[u32]) -> Vec<u32> {
    x.iter().flat_map(|v| (0..v % 4 + 1).map(|k| v.wrapping_mul(4).wrapping_add(k))).collect()
}

pub(crate) fn cases() -> Vec<Case> {
    let x = input();
    let bins = |f: fn(u32) -> u32| {
        let x = &x;
        (0..64).map(move |bin| x[..512].iter().filter(|v| f(**v) == bin).count() as u32)
    };
    let one = |kernel, n, expected| words(FILE, kernel, n, expected).shape([1, 1], [128, 1]);
    let sorted = sorted(&x[..512]);
    vec![
        words(FILE, "reductions_of_blocks", N, reductions(&x[..N])),
        one("scans_of_blocks", N, scans(&x[..N])),
        one("sorts_by_digits", 512, sorted),
        one("histograms_of_blocks", 512, bins(|v| v & 63).chain(bins(|v| v >> 26)).collect()),
        words(FILE, "loads_and_stores", N, loaded(&x, N)).shape([2, 1], [128, 1]),
        one("heads_and_differences", 512, heads(&x[..512])),
        one("sorts_by_merging", 381, merged(&x, 381)),
        one("shuffles_and_exchanges", 512, shuffled(&x)),
        words(FILE, "primitives_of_warps", 300, of_warps(&x, 300, 384)),
        one("runs_of_equal_values", 256, runs(&x[..256])),
        words(
            FILE,
            "scan_by_looking_back",
            N,
            x[..N]
                .iter()
                .scan(0u32, |s, v| {
                    *s = s.wrapping_add(*v);
                    Some(*s)
                })
                .collect(),
        ),
    ]
}
