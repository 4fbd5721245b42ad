//! What the kernels of `language.cu` must leave.

use crate::harness::{Case, N, each, input, words};

const FILE: &str = "language";

/// The low bits of a word, with the sign of the last of them.
fn signed(v: u32, bits: u32) -> u32 {
    ((v << (32 - bits)).cast_signed() >> (32 - bits)).cast_unsigned()
}

fn fields(v: u32) -> u32 {
    let (a, d) = (v & 7, (u64::from(v) * 1000) & 0xff_ffff_ffff);
    let c = signed(signed((v.cast_signed() >> 9).cast_unsigned(), 5).wrapping_add(a), 5);
    let b = (v >> 7 ^ c) & 0x1fff;
    a.wrapping_add(b * 8)
        .wrapping_add(c.wrapping_mul(3))
        .wrapping_add((d >> 8) as u32)
        .wrapping_add(v >> 6 & 1)
}

fn unions(x: &[u32], i: usize) -> u32 {
    let mut w = [x[i], ((x[i] >> 12) as f32).to_bits(), 0];
    w[2] = w[i % 2].swap_bytes();
    let at = x[i] as usize % 3;
    w[at] = w[at] & 0xffff | 77 << 16;
    w[0].wrapping_add(w[1].wrapping_mul(3)).wrapping_add((w[2] & 0xfff) * 5).wrapping_add(w[2] >> 12)
}

fn wide(x: &[u32], i: usize) -> u32 {
    let n = x.len();
    let a = u128::from(x[i]) << 77 | u128::from(x[(i + 1) % n]);
    let b = u128::from(x[(i + 2) % n]) << 20 | 1;
    let c = a.cast_signed().wrapping_neg();
    let (q, r, p) = (a / b, a % b, a.wrapping_mul(b));
    let s = (c / 12345).wrapping_add(c >> 50);
    q as u32
        ^ (r >> 13) as u32
        ^ ((p >> 90) as u32).wrapping_mul(3)
        ^ ((s >> 33) as u32).wrapping_mul(5)
        ^ u32::from(a > b)
}

fn tables(x: &[u32], i: usize) -> u32 {
    const TABLE: [u32; 16] = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3];
    let square = (x[i] >> 31) * 8 + (x[i] >> 4 & 7);
    let name = ["alpha", "be", "gamma"][x[i] as usize % 3];
    let v = TABLE[x[i] as usize % 16] * 100 + square * square;
    let v = name.bytes().fold(v, |v, c| v.wrapping_mul(31).wrapping_add(u32::from(c)));
    v.wrapping_add([1 + 10 - 3, 23u32][i % 2])
}

fn step(which: u32, a: u32, b: u32) -> u32 {
    match which {
        0 | 3 => a.wrapping_add(b),
        1 => a ^ b.wrapping_mul(3),
        _ => (0..b % 5).fold(a, |a, k| a.wrapping_mul(5).wrapping_add(k)),
    }
}

fn bases(x: &[u32], i: usize) -> u32 {
    let (box_id, crate_id) = ((i % 8) as u32, (i % 5) as u32);
    let name = if x[i] & 1 == 1 { box_id } else { crate_id } * 100;
    let v = x[i] >> 3;
    let weight = |id: u32| v.wrapping_mul(7).wrapping_add(id);
    let weight = if x[i] & 2 == 2 { weight(box_id) } else { weight(crate_id).wrapping_add(x[i] >> (v % 3)) };
    name.wrapping_add(weight)
}

fn hints(x: &[u32], i: usize) -> u32 {
    let n = N;
    let byte = x[i / 4].to_le_bytes()[i % 4];
    x[i].wrapping_add(x[(i + 1) % n].wrapping_mul(3))
        .wrapping_add(x[(i + 2) % n].wrapping_mul(5))
        .wrapping_add(x[(i + 3) % n].wrapping_mul(7))
        .wrapping_add(x[i / 2 * 2 + 1])
        .wrapping_add(x[i / 4 * 4 + 2].wrapping_mul(9))
        .wrapping_add(u32::from(byte))
}

fn arrays(x: &[u32], n: usize, i: usize) -> u32 {
    let v = x[(i / 128 * 128 + 127 - i % 128) % n];
    let f: u32 = v.to_le_bytes().iter().zip(1..).map(|(b, k)| u32::from(*b) * k).sum();
    (v / 2).wrapping_add(f).wrapping_add(v >> 5 & 0xffff).wrapping_add(if v & 8 == 8 { 1000 } else { 0 })
}

fn packed(x: &[u32], i: usize) -> u32 {
    let mut bytes = Vec::new();
    for k in 0..3 {
        bytes.push((x[i] >> k) as u8);
        bytes.extend(x[(i + k) % x.len()].to_le_bytes());
        bytes.extend((k as u16 * 1000).to_le_bytes());
    }
    let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    let q = x[i] as usize % 3;
    u32::from(bytes[q * 7]).wrapping_add(word(q * 7 + 1)).wrapping_add(q as u32 * 1000).wrapping_add(word(3))
}

fn large(x: &[u32], i: usize) -> u32 {
    let mut a: Vec<u32> = (0..40).map(|k| x[(i + k) % x.len()]).collect();
    let by = x[i] as usize % 40;
    for k in 0..40 {
        a[k] = a[(k * 7 + by) % 40].wrapping_add(k as u32);
    }
    a[x[i] as usize >> 5 & 31].wrapping_add(a[39])
}

fn gotos(mut v: u32) -> u32 {
    let mut r = 0u32;
    let (seven, rest) = (|r: u32| r.wrapping_add(3 * r.count_ones()), 17);
    loop {
        match v % 11 {
            0 => r = r.wrapping_add(1),
            1 => r = r.wrapping_add(5) ^ v,
            2 => r ^= v,
            3 => {
                v /= 3;
                continue;
            }
            4 => {
                v = v.wrapping_add(7);
                r = r.wrapping_add(1);
                if r <= 9 {
                    continue;
                }
            }
            5 => r = r.wrapping_mul(3).wrapping_add(1),
            6 => r = seven(r.wrapping_sub(2)),
            7 => r = seven(r),
            8 if v > 100 => {
                v = (v - 99) / 2;
                continue;
            }
            _ => r = r.wrapping_add(rest),
        }
        return r.wrapping_add(v);
    }
}

/// Six pairs of words and some single ones, as `other_atomics` has them.
fn atomics(x: &[u32]) -> Vec<u32> {
    let n = x.len() as u32;
    let pair = |v: u64| [v as u32, (v >> 32) as u32];
    let total = x.iter().map(|v| u64::from(*v)).sum::<u64>();
    let most = x.iter().map(|v| i64::from(v.cast_signed()) * 3).max().unwrap_or(0).max(0);
    let least = x.iter().map(|v| v.cast_signed()).min().unwrap_or(0).min(0);
    let bits = x.iter().fold(0u64, |m, v| m | 1 << (v % 64));
    let mut left = Vec::new();
    left.extend(pair(total));
    left.extend(pair(most.cast_unsigned()));
    left.extend([n % 100, (50 - n % 50) % 50, 9, n, 2 * n, (3 * n).wrapping_neg()]);
    left.extend([least.cast_unsigned(), 0]);
    left.extend(pair(bits));
    left.push(2.5f32.to_bits());
    left
}

fn warp_sums(x: &[u32], n: usize, i: usize) -> u32 {
    let at = |i: usize| x[i % n];
    let warp: Vec<usize> = (i / 32 * 32..i / 32 * 32 + 32).collect();
    let block: Vec<u32> = (i / 128 * 128..i / 128 * 128 + 128).map(at).collect();
    let v = at(i);
    let mut r = 0;
    if v & 1 == 1 {
        r = u32::from(warp.iter().any(|l| at(*l) & 3 == 3));
    }
    let from = warp[v as usize % 32];
    let wide = u64::from(at(from)) << 20 | from as u64;
    let peers = warp.iter().filter(|l| at(**l) % 3 == v % 3).count() as u32;
    let down = if i % 8 + 3 < 8 { at(i + 3) } else { v } % 100;
    r += 3 * block.iter().filter(|v| **v & 4 == 4).count() as u32;
    r += u32::from(block.contains(&5)) + 7 * u32::from(!block.contains(&5));
    r.wrapping_add((wide >> 13) as u32).wrapping_add(at(i ^ 5)).wrapping_add(peers * 11 + 32 + 1 + down + 1)
}

fn formats() -> String {
    let first = format!(
        "  -42|17    |0000beef|+3.142|1.234568e+04|0.0001|q|text|%|{}|{}\n",
        -1_234_567_890_123i64,
        u64::MAX
    );
    format!("{first}     6 2.72 -3 010 5 ABC\n7\n7\n")
}

pub(crate) fn cases() -> Vec<Case> {
    let x = input();
    let tickets: Vec<u32> = (0..6).collect();
    let locked = tickets.iter().fold(0u32, |s, t| s.wrapping_mul(3).wrapping_add(*t));
    let added = (0..6).map(|w| x[w * 32] % 100 + 5).sum();
    vec![
        each(FILE, "bit_fields", |x, i| fields(x[i])),
        each(FILE, "unions", unions),
        each(FILE, "wide_integers", wide),
        each(FILE, "tables_of_constants", tables),
        each(FILE, "table_of_functions", |x, i| {
            (0..6).fold(x[i], |v, k| step(v >> (k * 3) & 3, v, x[(i + k) % N]))
        }),
        each(FILE, "two_bases", bases),
        words(FILE, "hints_for_caches", N, (0..N).map(|i| hints(&x, i)).collect()),
        words(FILE, "many_arrays_at_once", 300, (0..384).map(|i| arrays(&x, 300, i)).collect())
            .shared(128 * 27),
        each(FILE, "packed_structs", packed),
        each(FILE, "large_structs", large),
        each(FILE, "gotos_and_fall_through", |x, i| gotos(x[i])),
        words(FILE, "other_atomics", N, atomics(&x[..N])),
        words(FILE, "sums_of_the_warp", 300, (0..384).map(|i| warp_sums(&x, 300, i)).collect()),
        words(FILE, "ticket_lock", 5, vec![locked, added]).shape([3, 1], [64, 1]),
        words(FILE, "printed_formats", 6, vec![1, 1]).shape([1, 1], [64, 1]).prints(formats()),
    ]
}
