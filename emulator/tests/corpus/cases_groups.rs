//! What the kernels of `groups80.cu` must leave.

use crate::harness::{Case, N, each, input, words};

const FILE: &str = "groups80";

fn sum(x: &[u32]) -> u32 {
    x.iter().fold(0, |s, &v| s.wrapping_add(v))
}

/// The lanes of a warp of n threads that are in a group.
fn lanes(x: &[u32], i: usize, inside: impl Fn(u32) -> bool) -> Vec<usize> {
    let first = i / 32 * 32;
    (first..(first + 32).min(x.len())).filter(|at| inside(x[*at])).collect()
}

fn mask(lanes: &[usize], of: impl Fn(usize) -> bool) -> u32 {
    lanes.iter().enumerate().filter(|(_, at)| of(**at)).fold(0, |m, (rank, _)| m | 1 << rank)
}

fn diverged(x: &[u32], i: usize) -> u32 {
    let v = x[i];
    if v & 1 == 0 {
        let part = lanes(x, i, |w| w & 1 == 0 && (w ^ v) & 2 == 0);
        let least = part.iter().map(|at| x[*at]).min().unwrap_or(0);
        return least ^ part.len() as u32;
    }
    let group = lanes(x, i, |w| w & 1 == 1);
    let rank = group.iter().position(|at| *at == i).unwrap_or(0);
    let down = group.get(rank + 1).map_or(v, |at| x[*at]);
    let up = if rank < 2 { v } else { x[group[rank - 2]] };
    let mut r = down
        .wrapping_add(mask(&group, |at| x[at] & 2 != 0).wrapping_mul(3))
        .wrapping_add(up)
        .wrapping_add(u32::from(group.iter().any(|at| x[*at].is_multiple_of(7))))
        .wrapping_add(sum(&group.iter().map(|at| x[*at] & 0xffff).collect::<Vec<_>>()))
        .wrapping_add(mask(&group, |at| (x[at] ^ v) >> 1 & 3 == 0));
    if v & 4 != 0 {
        let inner = group.iter().filter(|at| **at < i && x[**at] & 4 != 0);
        r = inner.fold(r, |r, at| r.wrapping_add(x[*at] >> 8));
    }
    r
}

fn of_two_warps(x: &[u32], i: usize) -> u32 {
    let tile: Vec<u32> = (0..64).map(|l| x.get(i / 64 * 64 + l).copied().unwrap_or(0)).collect();
    sum(&tile)
        .wrapping_add(tile[3].wrapping_mul(3))
        .wrapping_add(5 * u32::from(tile.iter().any(|v| v % 64 == 0)))
        .wrapping_add(7 * u32::from(tile.iter().all(|v| *v != 1)))
        .wrapping_add(sum(&tile[..=i % 64]).wrapping_mul(9))
}

fn other_types(x: &[u32], n: usize, i: usize) -> u32 {
    let warp: Vec<u32> = (0..32).map(|l| x[(i / 32 * 32 + l) % n]).collect();
    let real = |w: u32| (w % 2049) as f32 / 16.0;
    let total: f64 = warp.iter().map(|w| f64::from(real(*w)) * 0.5).sum();
    let most = warp.iter().map(|w| real(*w)).fold(0.0f32, f32::max);
    let wide: i64 = warp.iter().map(|w| i64::from(w.cast_signed())).sum();
    let bits = warp.iter().fold(u32::MAX, |a, w| a & w) | warp.iter().fold(0, |a, w| a | w & 0xff00);
    let place = warp.iter().position(|w| real(*w) == most).unwrap_or(0) as u32;
    ((total as f32).round_ties_even() as u32)
        .wrapping_add(most.to_bits().wrapping_mul(3))
        .wrapping_add(((wide >> 4) as u32).wrapping_mul(5))
        .wrapping_add(bits.wrapping_mul(7))
        .wrapping_add(place * 9)
}

pub(crate) fn cases() -> Vec<Case> {
    let x = input();
    let copied = |t: usize| {
        (0..5).fold(0u32, |s, step| s.wrapping_mul(3).wrapping_add(x[step * 128 + (t * 7 + step) % 128]))
    };
    let reserved = sum(&x[..128].iter().map(|v| v % 8).collect::<Vec<_>>());
    let mut updated = vec![1; reserved as usize];
    updated.resize(1024, 0);
    updated[1023] = reserved + 128 + 6;
    // What the grid's barrier leaves in its word depends on the number of rounds alone.
    let (blocks, threads) = (4, 64);
    let mut rounds: Vec<Vec<u32>> = vec![x[..blocks * threads].to_vec()];
    for r in 0..2 {
        let last = &rounds[r];
        let next = |i: usize| last[(i + threads) % (blocks * threads)].wrapping_mul(3).wrapping_add(1);
        rounds.push((0..blocks * threads).map(next).collect());
    }
    let mut synchronised = vec![0x8000_0000];
    synchronised.extend(&rounds[2]);
    synchronised.extend(&rounds[1]);
    let grid = blocks * threads;
    let (mut of_grid, mut held) = (x[..grid].to_vec(), Vec::new());
    for _ in 0..4 {
        held = of_grid.clone();
        let next = |i: usize| held[i].wrapping_mul(3).wrapping_add(held[(i + 77) % grid]);
        of_grid = (0..grid).map(next).collect();
    }
    let ends = of_grid.iter().map(|v| v.wrapping_add(1)).chain(held).collect();
    vec![
        words(FILE, "sync_of_the_grid", 4, ends).shape([4, 1], [64, 1]),
        words(FILE, "copies_of_groups", 5, (0..128).map(copied).collect())
            .shape([1, 1], [128, 1])
            .shared(1024),
        words(
            FILE,
            "copies_that_are_not_aligned",
            5,
            (0..148).map(|i: usize| x[i / 37 * 37 + 36 - i % 37 + 1].wrapping_add(5)).collect(),
        )
        .shape([1, 1], [128, 1]),
        each(FILE, "groups_of_diverged_lanes", diverged),
        each(FILE, "tiles_of_two_warps", of_two_warps),
        words(FILE, "reductions_of_other_types", 300, (0..384).map(|i| other_types(&x, 300, i)).collect()),
        words(FILE, "scans_that_update", 6, updated).shape([1, 1], [128, 1]),
        words(FILE, "sync_of_the_grid_by_hand", N, synchronised).shape([4, 1], [64, 1]),
    ]
}
