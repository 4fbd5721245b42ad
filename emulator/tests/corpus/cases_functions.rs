//! What the kernels of `functions.cu` must leave.

use crate::harness::{Case, each, each_of, input};

const FILE: &str = "functions";

fn fibonacci(n: u32) -> u32 {
    (0..n).fold((0, 1), |(a, b), _| (b, a + b)).0
}

fn ackermann(m: u32, n: u32) -> u32 {
    match (m, n) {
        (0, n) => n + 1,
        (m, 0) => ackermann(m - 1, 1),
        (m, n) => ackermann(m - 1, ackermann(m, n - 1)),
    }
}

fn hanoi(n: u32, from: u32, to: u32, hash: &mut u32) {
    if n > 0 {
        hanoi(n - 1, from, 3 - from - to, hash);
        *hash = hash.wrapping_mul(31).wrapping_add(from * 3 + to);
        hanoi(n - 1, 3 - from - to, to, hash);
    }
}

fn shapes(x: u32) -> u32 {
    let (side, height) = (x & 0xff, x >> 8 & 0xff);
    let areas = [1, side * side, side * side * 2 + 4 * side * height];
    (0..3u32).fold(0u32, |sum, k| sum.wrapping_mul(3).wrapping_add(areas[(k.wrapping_add(x) % 3) as usize]))
}

fn records(x: u32) -> u32 {
    let mut tag: [u8; 5] = std::array::from_fn(|k| (x >> k) as u8);
    let (mut key, mut weight) = (x, f64::from(x & 0xffff));
    for by in [7i32, -300] {
        key = key.wrapping_add_signed(by);
        tag[key as usize % 5] ^= by as u8;
        weight *= 0.5;
    }
    let tags = [1, 3, 5, 7, 11].iter().zip(tag).map(|(f, t)| f * u32::from(t)).sum::<u32>();
    key.wrapping_add(tags).wrapping_add((weight * 4.0) as u32)
}

fn templates(x: u32, i: usize) -> u32 {
    let a: [u32; 5] = std::array::from_fn(|k| x >> k);
    let both = (0..5).map(|k| a[k].wrapping_add((i * k) as u32));
    let folded = both.reduce(|p, q| p.wrapping_mul(x & 7).wrapping_add(q)).unwrap_or(0);
    [folded, a[0], 3].iter().fold(0u32, |sum, v| sum.wrapping_mul(5).wrapping_add(*v))
}

fn queens(size: usize) -> u32 {
    fn place(rows: &mut Vec<usize>, size: usize) -> u32 {
        if rows.len() == size {
            return 1;
        }
        let mut found = 0;
        for column in 0..size {
            let row = rows.len();
            if rows.iter().enumerate().all(|(k, &c)| c != column && c.abs_diff(column) != row - k) {
                rows.push(column);
                found += place(rows, size);
                rows.pop();
            }
        }
        found
    }
    place(&mut Vec::new(), size)
}

fn texts(x: u32) -> u32 {
    let mut text: Vec<u8> = b"the quick brown fox jumps over the lazy dog".iter().rev().copied().collect();
    let mut words = 0;
    for (k, c) in text.iter_mut().enumerate() {
        if *c == b' ' {
            words += 1;
        } else if (k as u32).wrapping_add(x).is_multiple_of(3) {
            *c -= 32;
        }
    }
    text.iter().fold(words, |hash: u32, &c| hash.wrapping_mul(131).wrapping_add(u32::from(c)))
}

fn edit_distance(p: u32, q: u32) -> u32 {
    let letters = |v: u32| -> [u32; 8] { std::array::from_fn(|k| v >> (4 * k) & 3) };
    let (a, b) = (letters(p), letters(q));
    let mut row: Vec<u32> = (0..9).collect();
    for (p, x) in (1..).zip(a) {
        let mut next = vec![p];
        for (q, y) in (1..).zip(b) {
            next.push((row[q] + 1).min(next[q - 1] + 1).min(row[q - 1] + u32::from(x != y)));
        }
        row = next;
    }
    row[8]
}

fn sha256(words: [u32; 16]) -> u32 {
    let primes = (2u32..).filter(|p| (2..*p).take_while(|d| d * d <= *p).all(|d| p % d != 0));
    let k: Vec<u32> = primes
        .take(64)
        .map(|p| {
            let mut root = 0u64;
            for bit in (0..35).rev() {
                let t = u128::from(root | 1 << bit);
                if t * t * t <= u128::from(p) << 96 {
                    root |= 1 << bit;
                }
            }
            root as u32
        })
        .collect();
    let mut w = words.to_vec();
    for t in 16..64 {
        let (p, q) = (w[t - 15], w[t - 2]);
        let s0 = p.rotate_right(7) ^ p.rotate_right(18) ^ p >> 3;
        let s1 = q.rotate_right(17) ^ q.rotate_right(19) ^ q >> 10;
        w.push(w[t - 16].wrapping_add(s0).wrapping_add(w[t - 7]).wrapping_add(s1));
    }
    let h = [
        0x6a09_e667u32,
        0xbb67_ae85,
        0x3c6e_f372,
        0xa54f_f53a,
        0x510e_527f,
        0x9b05_688c,
        0x1f83_d9ab,
        0x5be0_cd19,
    ];
    let mut s = h;
    for t in 0..64 {
        let (a, e) = (s[0], s[4]);
        let one = s[7]
            .wrapping_add(e.rotate_right(6) ^ e.rotate_right(11) ^ e.rotate_right(25))
            .wrapping_add(e & s[5] ^ !e & s[6])
            .wrapping_add(k[t])
            .wrapping_add(w[t]);
        let two = (a.rotate_right(2) ^ a.rotate_right(13) ^ a.rotate_right(22))
            .wrapping_add(a & s[1] ^ a & s[2] ^ s[1] & s[2]);
        s = [one.wrapping_add(two), s[0], s[1], s[2], s[3].wrapping_add(one), s[4], s[5], s[6]];
    }
    h.iter().zip(s).fold(0, |hash, (h, s)| hash ^ h.wrapping_add(s))
}

pub(crate) fn cases() -> Vec<Case> {
    let x = input();
    let line = |i: usize| {
        let word = if i == 1 { "one" } else { "other" };
        format!("{i}: {} {word} {:5.2} -5000000000!\n", x[i], i as f64 * 0.5)
    };
    let from = |x: &[u32], i: usize, k: usize| x[(i + k) % x.len()];
    vec![
        each_of(FILE, "fibonacci", 67, |x, i| fibonacci(x[i] % 12)),
        each_of(FILE, "ackermann", 67, |x, i| ackermann(x[i] % 3, x[i] / 3 % 4)),
        each_of(FILE, "mutual_recursion", 67, |x, i| u32::from(x[i] % 30 % 2 == 0)),
        each_of(FILE, "hanoi", 67, |x, i| {
            let mut hash = 7;
            hanoi(x[i] % 6, 0, 2, &mut hash);
            hash
        }),
        each_of(FILE, "quicksort", 67, |x, i| {
            let mut a: Vec<u32> = (0..12).map(|k| from(x, i, k) >> 20).collect();
            a.sort_unstable();
            a.iter().fold(0u32, |hash, v| hash.wrapping_mul(4099).wrapping_add(*v))
        }),
        each(FILE, "pointers_to_functions", |x, i| match x[i] % 3 {
            0 => x[i].wrapping_mul(2),
            1 => x[i].wrapping_add(9),
            _ => !x[i],
        }),
        each(FILE, "virtual_functions", |x, i| shapes(x[i])),
        each(FILE, "structs_by_value", |x, i| records(x[i])),
        each(FILE, "templates_and_lambdas", |x, i| templates(x[i], i)),
        each(FILE, "local_arrays", |x, i| {
            let mut a: Vec<u32> = (0..16).map(|k| x[(i * 3 + k) % x.len()] & 0xff).collect();
            a.sort_unstable();
            a[x[i] as usize & 15] + 256 * a[8]
        }),
        each_of(FILE, "eight_queens", 67, |x, i| queens(4 + x[i] as usize % 3)),
        each_of(FILE, "texts", 67, |x, i| texts(x[i])),
        each_of(FILE, "edit_distance", 67, |x, i| edit_distance(x[i], from(x, i, 1))),
        each_of(FILE, "sha256_block", 40, |x, i| sha256(std::array::from_fn(|t| from(x, i, t)))),
        each(FILE, "variables_of_the_module", |_, i| 3 + i as u32),
        each(FILE, "printing", |_, i| i as u32).prints((0..3).map(line).collect()),
        each(FILE, "asserting", |_, _| 1),
        each_of(FILE, "lists_on_the_heap", 67, |x, i| {
            x[i].to_be_bytes().iter().fold(1u32, |hash, b| hash.wrapping_mul(257).wrapping_add(u32::from(*b)))
        }),
        each_of(FILE, "objects_on_the_heap", 67, |x, i| if x[i] & 1 == 1 { (x[i] & 0xf).pow(2) } else { 1 }),
        each(FILE, "binary_search", |x, i| {
            let wanted = x[i] % 1_000_000;
            (0..1000).find(|k| k * k >= wanted).unwrap_or(1000)
        }),
    ]
}
