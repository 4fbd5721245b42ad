//! What the kernels of `integers.cu` must leave.

use crate::harness::{Case, N, each, words};

const FILE: &str = "integers";

/// An operation on the parts of two words.
pub(crate) fn parts(a: u32, b: u32, bits: u32, f: impl Fn(u32, u32) -> u32) -> u32 {
    let mask = if bits == 32 { u32::MAX } else { (1 << bits) - 1 };
    (0..32 / bits)
        .fold(0, |word, i| word | (f(a >> (i * bits) & mask, b >> (i * bits) & mask) & mask) << (i * bits))
}

fn next(x: &[u32], i: usize, by: usize) -> u32 {
    x[(i + by) % x.len()]
}

fn signed(x: u32) -> i64 {
    i64::from(x.cast_signed())
}

fn joined(low: u32, high: u32) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}

fn switches(x: u32, i: usize) -> u32 {
    match x % 11 {
        0 => x.wrapping_add(5),
        1 => x.wrapping_mul(3) ^ 0x55,
        2 => x ^ 0x55,
        3 => x.rotate_right(3),
        4 => x.wrapping_sub(i as u32),
        5 => !x,
        6 => x.count_ones(),
        7 => x.wrapping_mul(x),
        8 => x / 3,
        _ => 42,
    }
}

fn collatz(x: u32) -> u32 {
    let (mut v, mut steps) = (u64::from(x % 5000 + 1), 0);
    while v != 1 {
        v = if v % 2 == 1 { 3 * v + 1 } else { v / 2 };
        steps += 1;
    }
    steps
}

fn greatest_divisor(mut a: u32, mut b: u32) -> u32 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

fn modular_power(x: u32, e: u32) -> u32 {
    let (mut base, mut result) = (u64::from(x % 1_000_000_007), 1u64);
    for bit in 0..16 {
        if e >> bit & 1 == 1 {
            result = result * base % 1_000_000_007;
        }
        base = base * base % 1_000_000_007;
    }
    result as u32
}

fn philox(x: u32, i: usize) -> u32 {
    let (mut c, mut k) = ([x, i as u32, 0, 0], [0x1234_5678u32, 0x9abc_def0]);
    for _ in 0..10 {
        let (a, b) = (0xD251_1F53u64 * u64::from(c[0]), 0xCD9E_8D57u64 * u64::from(c[2]));
        c = [(b >> 32) as u32 ^ c[1] ^ k[0], b as u32, (a >> 32) as u32 ^ c[3] ^ k[1], a as u32];
        k = [k[0].wrapping_add(0x9E37_79B9), k[1].wrapping_add(0xBB67_AE85)];
    }
    c[0] ^ c[1] ^ c[2] ^ c[3]
}

fn checksums(x: u32) -> u32 {
    let bytes = x.to_le_bytes();
    let crc = bytes.iter().fold(!0u32, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |c, _| c >> 1 ^ if c & 1 == 1 { 0xEDB8_8320 } else { 0 })
    });
    let hash = bytes.iter().fold(2_166_136_261u32, |h, &b| (h ^ u32::from(b)).wrapping_mul(16_777_619));
    !crc ^ hash
}

fn products128(a: u32, b: u32) -> u32 {
    let a = (u128::from(a) << 64) + u128::from(b);
    let p = a.wrapping_mul(a).wrapping_add(a >> 3).wrapping_sub(1 << 100);
    (0..4).fold(0, |r, i| r ^ (p >> (32 * i)) as u32)
}

fn bytes_at_once(a: u32, b: u32) -> u32 {
    let s16 = |v: u32| i32::from(v as u16 as i16);
    parts(a, b, 8, |p, q| p + q)
        ^ parts(a, b, 16, |p, q| p.wrapping_sub(q))
        ^ parts(a, b, 8, u32::abs_diff)
        ^ parts(a, b, 16, |p, q| s16(p).max(s16(q)).cast_unsigned())
        ^ parts(a, b, 8, u32::min)
        ^ parts(a, b, 8, |p, q| (p + q + 1) >> 1)
        ^ parts(a, b, 8, |p, q| if p > q { 0xff } else { 0 })
        ^ parts(a, b, 16, |p, q| (p + q).min(0xffff))
        ^ a.to_le_bytes().iter().zip(b.to_le_bytes()).map(|(&p, q)| u32::from(p.abs_diff(q))).sum::<u32>()
        ^ parts(a, b, 8, |p, _| u32::from((p as u8 as i8).saturating_abs().cast_unsigned()))
        ^ parts(a, b, 16, |p, q| u32::from(p <= q))
}

fn narrow_types(x: u32) -> u32 {
    let (a, b, c) = (x as u8, (x >> 8) as u16 as i16, (x >> 16) as u8);
    let a = a.wrapping_add(c).cast_signed();
    let b = b.wrapping_mul(i16::from(a)).wrapping_sub(3);
    let c = c << 1 | u8::from(b < 0);
    i32::from(a / 3)
        .cast_unsigned()
        .wrapping_add(i32::from(b >> 2).cast_unsigned().wrapping_mul(31))
        .wrapping_add(u32::from(c) * 977)
}

fn dots(a: u32, b: u32) -> u32 {
    let sb = |v: u32, i: u32| i64::from((v >> (8 * i)) as u8 as i8);
    let ub = |v: u32, i: u32| i64::from((v >> (8 * i)) as u8);
    let sh = |v: u32, i: u32| i64::from((v >> (16 * i)) as u16 as i16);
    let uh = |v: u32, i: u32| i64::from((v >> (16 * i)) as u16);
    let s4: i64 = (0..4).map(|i| sb(a, i) * sb(b, i)).sum();
    let u4: i64 = (0..4).map(|i| ub(a, i) * ub(b, i)).sum();
    let s2: i64 = (0..2).map(|i| sh(a, i) * sb(b, i)).sum();
    let u2: i64 = (0..2).map(|i| uh(a, i) * ub(b, i + 2)).sum();
    (s4 + 1 + u4 + 2 + s2 + 3 + u2 + 4) as u32
}

fn distances(a: u32, b: u32) -> u32 {
    let (s, t) = (signed(a), signed(b));
    let narrow = |v: u32| i64::from(v.cast_signed() << 8 >> 8);
    let sum = i128::from(a.abs_diff(b))
        + 5
        + i128::from(s.abs_diff(t))
        + 9
        + i128::from((s + t) >> 1)
        + i128::from((s + t + 1) >> 1);
    let (u, v) = (u64::from(a), u64::from(b));
    let sum =
        sum + i128::from((u + v) >> 1) + i128::from((u + v + 1) >> 1) + i128::from(narrow(a) * narrow(b));
    (sum + i128::from((u & 0xff_ffff) * (v & 0xff_ffff))) as u32
}

fn picking_bytes(a: u32, b: u32, i: usize) -> u32 {
    let (both, k, c) = (joined(a, b), i as u32 % 32, (i as u32 % 40).min(32));
    let byte = |n: u32| (both >> (8 * n)) as u32 & 0xff;
    let permuted = byte(7) | byte(3) << 8 | byte(5) << 16 | byte(2) << 24;
    permuted
        .wrapping_add((both << k >> 32) as u32)
        .wrapping_add((both >> k) as u32)
        .wrapping_add((u128::from(both) << c >> 32) as u32)
        .wrapping_add((both >> c) as u32)
}

fn counting_bits(x: u32) -> u32 {
    let wide = u64::from(x) << 20;
    let ffs = |v: u64| if v == 0 { 0 } else { v.trailing_zeros() + 1 };
    x.count_ones()
        .wrapping_add(100 * (x >> (x & 31)).leading_zeros())
        .wrapping_add(10_000 * ffs(u64::from(x)))
        .wrapping_add(x.reverse_bits())
        .wrapping_add(wide.count_ones() + wide.leading_zeros() + ffs(wide))
        .wrapping_add((wide.reverse_bits() >> 40) as u32)
}

pub(crate) fn cases() -> Vec<Case> {
    let x = crate::harness::input();
    let fours = |i: usize| x[i / 4 * 4 + 3 - i % 4];
    vec![
        each(FILE, "axpy", |x, i| x[i].wrapping_mul(3).wrapping_add(7)),
        words(FILE, "copy_by_fours", 1000, (0..1000).map(fours).collect()),
        each(FILE, "reverse", |x, i| x[N - 1 - i]),
        each(FILE, "gather", |x, i| x[x[i] as usize % N]),
        each(FILE, "quotients", |x, i| {
            let b = next(x, i, 1) % 1000 + 1;
            let (s, t) = (x[i].cast_signed(), b.cast_signed());
            (x[i] / b)
                .wrapping_add(x[i] % b)
                .wrapping_add((s / t).cast_unsigned())
                .wrapping_add((s % 7).cast_unsigned())
        }),
        each(FILE, "quotients64", |x, i| {
            let (a, b) = (joined(next(x, i, 1), x[i]), u64::from(next(x, i, 2) | 1));
            let c = a.cast_signed();
            (a / b) as u32 ^ (a % b) as u32 ^ (c / 1_000_003) as u32 ^ (c % 1_000_003) as u32
        }),
        each(FILE, "products64", |x, i| {
            let a = u64::from(x[i]) * u64::from(next(x, i, 1));
            let high = |p: i128, by: u32| (p >> by) as u64;
            let square = high((u128::from(a) * u128::from(a)).cast_signed(), 64);
            (a >> 32) as u32
                ^ a as u32
                ^ high(i128::from(x[i]) * 12345, 32) as u32
                ^ high(i128::from(signed(x[i])) * -77, 32) as u32
                ^ (square >> 7) as u32
                ^ high(i128::from(a.cast_signed()) * -3, 64) as u32
        }),
        each(FILE, "products128", |x, i| products128(x[i], next(x, i, 1))),
        each(FILE, "counting_bits", |x, i| counting_bits(x[i])),
        each(FILE, "picking_bytes", |x, i| picking_bytes(x[i], next(x, i, 1), i)),
        each(FILE, "distances", |x, i| distances(x[i], next(x, i, 1))),
        each(FILE, "dot_of_bytes", |x, i| dots(x[i], next(x, i, 1))),
        each(FILE, "bytes_at_once", |x, i| bytes_at_once(x[i], next(x, i, 1))),
        each(FILE, "narrow_types", |x, i| narrow_types(x[i])),
        each(FILE, "shifts", |x, i| {
            let k = next(x, i, 1) & 31;
            x[i] << k
                ^ x[i] >> k
                ^ (x[i].cast_signed() >> k).cast_unsigned()
                ^ ((signed(x[i]) << 16) >> k) as u32
        }),
        each(FILE, "choices", |x, i| {
            let (a, b) = (x[i].cast_signed(), next(x, i, 1).cast_signed());
            let (p, q) = (a < b, (a ^ b) & 4 != 0);
            let v = if p && q {
                a.max(b)
            } else if p || q {
                a.min(b)
            } else {
                (a >> 1).abs() + i32::from(p != q)
            };
            v.cast_unsigned()
        }),
        each(FILE, "switches", |x, i| switches(x[i], i)),
        each(FILE, "collatz", |x, i| collatz(x[i])),
        each(FILE, "greatest_divisor", |x, i| greatest_divisor(x[i], next(x, i, 1))),
        each(FILE, "modular_power", |x, i| modular_power(x[i], next(x, i, 1) & 0xffff)),
        each(FILE, "square_roots", |x, i| x[i].isqrt()),
        each(FILE, "primes", |x, i| {
            let v = x[i] % 100_000;
            u32::from(v > 1 && (2..).take_while(|d| d * d <= v).all(|d| v % d != 0))
        }),
        each(FILE, "gray_and_morton", |x, i| {
            let bit = |from: u32, to: u32| (x[i] >> from & 1) << to;
            (0..16).fold(0, |m, b| m | bit(b, 2 * b) | bit(16 + b, 2 * b + 1)) ^ (x[i] ^ x[i] >> 1)
        }),
        each(FILE, "xorshift", |x, i| {
            (0..20).fold(x[i] | 1, |v, _| {
                let v = v ^ v << 13;
                let v = v ^ v >> 17;
                v ^ v << 5
            })
        }),
        each(FILE, "philox", |x, i| philox(x[i], i)),
        each(FILE, "checksums", |x, i| checksums(x[i])),
    ]
}
