//! What the kernels of `warps.cu` must leave.

use crate::harness::{Case, N, each, input, words};

const FILE: &str = "warps";

fn sum(x: &[u32]) -> u32 {
    x.iter().fold(0, |s, &v| s.wrapping_add(v))
}

/// Sums of all elements up to each, in groups of `width`.
fn scan(x: &[u32], width: usize) -> Vec<u32> {
    let mut sums = Vec::new();
    for group in x.chunks(width) {
        let mut s = 0u32;
        sums.extend(group.iter().map(|&v| {
            s = s.wrapping_add(v);
            s
        }));
    }
    sums
}

/// The lane of another thread of the warp, whose value counts as `missing` beyond the end.
fn lanes(x: &[u32], i: usize, missing: u32) -> [u32; 32] {
    std::array::from_fn(|lane| x.get(i / 32 * 32 + lane).copied().unwrap_or(missing))
}

fn shuffles(x: &[u32], i: usize) -> u32 {
    let lane = i % 32;
    // Threads beyond the end take the first elements again.
    let v: [u32; 32] = std::array::from_fn(|l| x[(i / 32 * 32 + l) % x.len()]);
    let up = if lane % 8 >= 3 { v[lane - 3] } else { v[lane] };
    let down = if lane % 16 + 2 < 16 { v[lane + 2] } else { v[lane] };
    let own = |l: usize| u64::from(v[l]).wrapping_mul(u64::from(v[l]));
    v[lane * 7 % 32]
        .wrapping_add(v[lane ^ 5])
        .wrapping_add(up)
        .wrapping_add(down)
        .wrapping_add(v[lane / 4 * 4 + 3])
        .wrapping_add((own(lane ^ 9) >> 11) as u32)
}

fn convolution(x: &[u32], n: usize, i: usize) -> u32 {
    let weights = [1, -2, 1, 3, 7, 3, -1, 2, -1];
    let (row, column) = ((i / n) as i32, (i % n) as i32);
    let mut sum = 0i32;
    for (k, weight) in (0i32..).zip(weights) {
        let (r, c) = (row + k / 3 - 1, column + k % 3 - 1);
        if (0..n as i32).contains(&r) && (0..n as i32).contains(&c) {
            sum += weight * (x[r as usize * n + c as usize] & 0xff) as i32;
        }
    }
    sum.cast_unsigned()
}

fn game_of_life(x: &[u32], n: usize) -> Vec<u32> {
    let mut cells: Vec<u32> = x.iter().take(n * n).map(|v| v & 1).collect();
    for _ in 0..5 {
        let alive = |i: usize| {
            let near = (0..9).filter(|k| *k != 4);
            near.map(|k| cells[(i / n + k / 3 + n - 1) % n * n + (i % n + k % 3 + n - 1) % n]).sum::<u32>()
        };
        cells = (0..n * n).map(|i| u32::from(alive(i) == 3 || alive(i) == 2 && cells[i] == 1)).collect();
    }
    cells
}

fn breadth_first(x: &[u32], n: usize) -> Vec<u32> {
    let mut level = vec![u32::MAX; n];
    level[0] = 0;
    for now in 0.. {
        let mut changed = false;
        for i in (0..n).filter(|&i| level[i] == now).collect::<Vec<_>>() {
            for edge in [2 * i + 1, 2 * i + 2, x[i] as usize % n] {
                if edge < n && level[edge] == u32::MAX {
                    level[edge] = now + 1;
                    changed = true;
                }
            }
        }
        if !changed {
            break;
        }
    }
    level
}

fn atomics(x: &[u32]) -> Vec<u32> {
    let wide = x.iter().fold(0u64, |s, &v| s.wrapping_add(u64::from(v) << 8));
    let least = x.iter().map(|v| v.cast_signed()).min().unwrap_or(0).min(0);
    let most = x.iter().map(|v| v.cast_signed()).max().unwrap_or(0).max(0);
    // 0 is counted down to 1000 first.
    let down = (0..x.len()).fold(0u32, |v, _| if v == 0 || v > 1000 { 1000 } else { v - 1 });
    vec![
        sum(x),
        sum(x).wrapping_neg(),
        least.cast_unsigned(),
        most.cast_unsigned(),
        x.iter().fold(u32::MAX, |a, v| a & (v | 0xff)),
        x.iter().fold(0, |a, v| a | v & 0xff00),
        x.iter().fold(0, |a, v| a ^ v),
        x.len() as u32 % 101,
        down,
        0,
        wide as u32,
        (wide >> 32) as u32,
        x.iter().copied().min().unwrap_or(0),
        x.iter().copied().max().unwrap_or(0),
        x.len() as u32,
        2 * x.len() as u32,
    ]
}

fn sorted(x: &[u32]) -> Vec<u32> {
    let mut x = x.to_vec();
    x.sort_unstable();
    x
}

pub(crate) fn cases() -> Vec<Case> {
    let all = input();
    let x = &all[..N];
    let tiles = |n: usize| [n.div_ceil(16) as u32; 2];
    let kept: Vec<u32> = x[..300].iter().copied().filter(|v| v % 3 == 0).collect();
    let mut compact = vec![0; 301];
    compact[0] = kept.len() as u32;
    compact[1..=kept.len()].copy_from_slice(&kept);
    let largest = x.iter().copied().max().unwrap_or(0);
    let place = x.iter().position(|&v| v == largest).unwrap_or(0) as u32;
    let bins = (0..64).map(|bin| x.iter().filter(|v| **v % 64 == bin).count() as u32).collect();
    let blocks: Vec<u32> = x.chunks(128).map(sum).collect();
    let last: Vec<u32> = [sum(x), blocks.len() as u32].into_iter().chain(blocks.iter().copied()).collect();
    let exclusive: Vec<u32> = [0].into_iter().chain(scan(&x[..199], 1024)).collect();
    let product = |n: usize| {
        let at = move |i: usize| (i / n, i % n);
        let all = all.clone();
        (0..n * n)
            .map(move |i| {
                (0..n).fold(0u32, |s, k| {
                    s.wrapping_add(all[at(i).0 * n + k].wrapping_mul(all[k * n + at(i).1]))
                })
            })
            .collect()
    };
    let barrier = {
        let odd = (0..128).filter(|t| x[t % 100] & 1 == 1).count() as u32;
        let (both, any) = (x[..100].iter().all(|v| *v != 0), x[..100].iter().any(|v| v % 101 == 0));
        odd + 1000 * u32::from(both) + 2000 * u32::from(any)
    };
    let halves = x.iter().fold(0u32, |s, v| s.wrapping_add(v & 0xff));
    vec![
        words(FILE, "sum_by_shuffles", N, vec![sum(x)]).shape([3, 1], [256, 1]),
        words(FILE, "sum_by_tree", N, x.chunks(256).map(sum).collect()).shape([4, 1], [256, 1]),
        words(FILE, "largest_and_place", N, vec![largest, place]).shape([1, 1], [96, 1]),
        words(FILE, "scan_of_warps", N, scan(x, 32)),
        words(FILE, "scan_of_block", 777, scan(&x[..777], 1024)).shape([1, 1], [1024, 1]),
        words(FILE, "scan_by_sweeps", 200, exclusive).shape([1, 1], [128, 1]).shared(1024),
        words(FILE, "histogram", N, bins).shape([3, 1], [128, 1]),
        each(FILE, "votes", |x, i| {
            let v = lanes(x, i, 0);
            let odd = v.iter().enumerate().fold(0, |m, (l, v)| m | (v & 1) << l);
            let (any, all) = (v.iter().any(|v| v % 97 == 0), v.iter().all(|v| *v > 1000));
            u32::wrapping_add(odd, 3 * u32::from(any) + 5 * u32::from(all))
        }),
        each(FILE, "equal_lanes", |x, i| {
            let lane = |l: usize| x.get(i / 32 * 32 + l).map_or(9, |v| v % 5);
            let peers = (0..32).filter(|&l| lane(l) == lane(i % 32)).fold(0u32, |m, l| m | 1 << l);
            let same = (0..32).all(|l| lane(l) / 8 == lane(0) / 8);
            peers.wrapping_add(if same { 33 } else { 0 })
        }),
        words(FILE, "compaction", 300, compact).shape([1, 1], [32, 1]),
        each(FILE, "shuffles", shuffles),
        words(FILE, "atomics_of_all_kinds", N, atomics(x)).shape([3, 1], [96, 1]).begins_with(&[
            0,
            0,
            0,
            0,
            u32::MAX,
            0,
            0,
            0,
            0,
            0,
            0,
            0,
            u32::MAX,
        ]),
        words(FILE, "compare_and_swap", N, vec![halves, N as u32]).shape([2, 1], [64, 1]),
        words(FILE, "last_block_sums", N, last),
        words(FILE, "transpose", 45, (0..45 * 45).map(|i| all[i % 45 * 45 + i / 45]).collect())
            .shape(tiles(45), [256, 1]),
        words(FILE, "product_of_tiles", 37, product(37)).shape(tiles(37), [16, 16]),
        each(FILE, "stencil", |x, i| {
            (0..7).fold(0u32, |s, d| {
                let v = (i + d).checked_sub(3).and_then(|j| x.get(j)).copied().unwrap_or(0);
                s.wrapping_add(v.wrapping_mul(4 - (d as i32 - 3).unsigned_abs()))
            })
        })
        .shape([4, 1], [256, 1]),
        words(FILE, "convolution", 41, (0..41 * 41).map(|i| convolution(&all, 41, i)).collect())
            .shape(tiles(41), [16, 16]),
        words(FILE, "game_of_life", 23, game_of_life(&all, 23)).shape([1, 1], [160, 1]).shared(2 * 23 * 23),
        words(FILE, "bitonic_sort", 500, sorted(&x[..500])).shape([1, 1], [512, 1]),
        words(FILE, "odd_even_sort", 101, sorted(&x[..101])).shape([1, 1], [128, 1]).shared(404),
        words(FILE, "rank_sort", 333, sorted(&x[..333])),
        words(FILE, "barrier_reductions", 100, vec![barrier; 128]).shape([1, 1], [128, 1]),
        words(FILE, "breadth_first", 700, breadth_first(x, 700)).shape([1, 1], [128, 1]),
    ]
}
