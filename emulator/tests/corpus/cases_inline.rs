//! What the kernels of `inline.cu` must leave.

use half::{bf16, f16};

use crate::harness::{Case, Expected, N, each, input, words};

const FILE: &str = "inline";

fn small(word: u32) -> f64 {
    f64::from(word % 5) - 2.0
}

/// A scalar of 8 bits: so many of them for the exponent. Nearest, ties to even, and largest where it does not fit.
fn narrow(v: f32, exponent_bits: i32, most: f32) -> f32 {
    if v == 0.0 {
        return v;
    }
    let mantissa = 7 - exponent_bits;
    let bias = (1 << (exponent_bits - 1)) - 1;
    let e = (v.abs().log2().floor() as i32).max(1 - bias);
    let unit = 2f32.powi(e - mantissa);
    ((v / unit).round_ties_even() * unit).clamp(-most, most)
}

fn narrow_floats(word: u32) -> u32 {
    let v = ((word % 513).cast_signed() - 256) as f32 / 8.0;
    let eight = narrow(v, 4, 448.0) + narrow(v * 3.0, 5, 57344.0);
    let brain = |v: f64| bf16::from_f64(v);
    let (mut both, mut same) = (0, 0);
    for (k, v) in [v, v + 1.0].into_iter().enumerate() {
        let p = brain(f64::from(v)).to_f64();
        let q = brain(p * p + 0.5).to_f64();
        let fused = brain((p * q + p).max(0.0)).to_f64();
        both |= u32::from(brain(fused.max(-q)).to_bits()) << (16 * k);
        same = 1;
    }
    let (half, h) = (|v: f64| f16::from_f64(v), f64::from(v) / 64.0);
    let h = half((half(h).to_f64() * 0.5 + 0.25).clamp(0.0, 1.0)).to_f64();
    let m = u32::from(half(h * half(h + h).to_f64()).to_bits()) * 0x1_0001;
    let root = half(half(f64::from(v.abs()).sqrt()).to_f64().round_ties_even());
    let cut = (v * 1.01).to_bits() >> 16;
    eight
        .to_bits()
        .wrapping_add(both >> 3)
        .wrapping_add(m.wrapping_mul(3))
        .wrapping_add(same)
        .wrapping_add(root.to_f32() as u32)
        .wrapping_add((f16::from_f32(v).to_f32() as i32).cast_unsigned().wrapping_mul(7))
        .wrapping_add(cut)
}

/// Each byte by a function.
fn bytes(a: u32, b: u32, f: impl Fn(u8, u8) -> u8) -> u32 {
    let (a, b) = (a.to_le_bytes(), b.to_le_bytes());
    u32::from_le_bytes(std::array::from_fn(|k| f(a[k], b[k])))
}

/// Each half by a function.
fn halves(a: u32, b: u32, f: impl Fn(i16, i16) -> i16) -> u32 {
    let of = |at: u32| u32::from(f((a >> at) as i16, (b >> at) as i16).cast_unsigned()) << at;
    of(0) | of(16)
}

fn integers(x: &[u32], i: usize) -> u32 {
    let n = x.len();
    let (a, b, c) = (x[i], x[(i + 1) % n], x[(i + 2) % n]);
    let four = a
        .to_le_bytes()
        .into_iter()
        .zip(b.to_le_bytes())
        .map(|(a, b)| i32::from(a as i8) * i32::from(b as i8));
    let mut r = four.sum::<i32>().cast_unsigned().wrapping_add(c);
    let ub = b.to_le_bytes().map(u32::from);
    r = r.wrapping_add((a & 0xffff) * ub[0]).wrapping_add((a >> 16) * ub[1]).wrapping_add(c);
    let sb = b.to_le_bytes().map(|v| i32::from(v as i8));
    let high = i32::from(a as i16) * sb[2] + i32::from((a >> 16) as i16) * sb[3];
    r = r.wrapping_add(high.wrapping_add(c.cast_signed()).cast_unsigned().wrapping_mul(3));
    let wide = u64::from(b) << 32 | u64::from(a);
    let left = (wide << (c % 32) >> 32) as u32;
    let right = (wide >> (c >> 20).min(32)) as u32;
    let both = wide.to_le_bytes();
    let permuted: [u8; 4] = std::array::from_fn(|k| {
        // The sign of a byte is not to be had by this function.
        both[(c >> (4 * k)) as usize & 7]
    });
    r ^= left ^ right.wrapping_mul(3) ^ u32::from_le_bytes(permuted);
    for v in [
        bytes(a, b, u8::saturating_add),
        halves(a, b, i16::saturating_sub),
        bytes(a, b, |a, b| (i32::from(a as i8) - i32::from(b as i8)).unsigned_abs() as u8),
        bytes(a, b, |a, b| if a > b { 255 } else { 0 }),
        bytes(b, c, |a, b| (u32::from(a) + u32::from(b)).div_ceil(2) as u8),
        halves(a, c, i16::max),
        a.to_le_bytes().iter().zip(b.to_le_bytes()).map(|(a, b)| u32::from(a.abs_diff(b))).sum(),
    ] {
        r = r.wrapping_add(v);
    }
    let warp: Vec<usize> = (i / 32 * 32..n.min(i / 32 * 32 + 32)).collect();
    let sum = warp.iter().fold(0u32, |s, l| s.wrapping_add(x[*l] >> 3));
    let bits = warp.iter().fold(0, |s, l| s ^ x[(l + 1) % n]);
    let least = warp.iter().map(|l| x[(l + 2) % n].cast_signed()).min().unwrap_or(0);
    r = r.wrapping_add(sum).wrapping_add(bits.wrapping_mul(3)).wrapping_add(least.cast_unsigned());
    let signed24 = |v: u32| (v << 8).cast_signed() >> 8;
    r = r
        .wrapping_add(((i64::from(a.cast_signed()) * i64::from(b.cast_signed())) >> 32) as u32)
        .wrapping_add((a & 0xff_ffff).wrapping_mul(b & 0xff_ffff))
        .wrapping_add(signed24(a).wrapping_mul(signed24(b)).cast_unsigned())
        .wrapping_add(a.abs_diff(b).wrapping_add(c));
    let first = (b & 0xff0).checked_ilog2().map_or(0, |_| (b & 0xff0).trailing_zeros() + 1);
    let zeros = (u64::from(a) << 13 | 1).leading_zeros();
    r.wrapping_add(a.reverse_bits()).wrapping_add(zeros).wrapping_add(first)
}

pub(crate) fn cases() -> Vec<Case> {
    let x = input();
    let exact = |values: Vec<f64>| values.into_iter().map(|v| (v, 0.0)).collect::<Vec<_>>();
    let half = |i: usize| {
        let terms = (0..16).map(|k| small(x[i / 8 * 16 + k]) * small(x[256 + k * 8 + i % 8]));
        terms.sum::<f64>() + (1 + i % 2 + i / 64 * 2) as f64
    };
    let byte = |i: usize| {
        let of = |k: usize| {
            let a = x[i / 8 * 8 + k / 4].to_le_bytes()[k % 4] as i8;
            i32::from(a) * i32::from(x[128 + i % 8 * 8 + k / 4].to_le_bytes()[k % 4])
        };
        (0..32).map(of).sum::<i32>().cast_unsigned()
    };
    let double = |i: usize| {
        let terms = (0..4).map(|k| small(x[i / 8 * 4 + k]) * small(x[32 + i % 8 * 4 + k]));
        terms.sum::<f64>() + [0.5, 0.25][i % 2]
    };
    let one = |kernel, expected| Case::new(FILE, kernel, 1, expected).shape([1, 1], [32, 1]);
    let taken = |t: usize| (0..7).fold(0u32, |s, k| s.wrapping_mul(3).wrapping_add(x[k * 64 + 63 - t]));
    let staged = |t: usize| {
        let at = |k: usize, j: usize| {
            let at = k * 256 + (t * 5 + j * 64) % 256;
            if at < N { x[at] } else { 0 }
        };
        (0..16).fold(0u32, |s, i| s.wrapping_mul(3).wrapping_add(at(i / 4, i % 4)))
    };
    let policies = |i: usize| {
        let terms = [(x[4 * i], 1), (x[4 * i + 1], 3), (x[4 * i + 2], 5), (x[4 * i + 3], 7), (x[i], 9)];
        let sum = terms.iter().fold(0u32, |s, (v, f)| s.wrapping_add(v.wrapping_mul(*f)));
        sum.wrapping_add(x[i + 1]).wrapping_add(512)
    };
    let machine = |i: usize| {
        let lane = i as u32 % 32;
        x[i].wrapping_add(lane)
            .wrapping_add(((1u32 << lane) - 1).wrapping_mul(3))
            .wrapping_add(2 * 5 + 64 * 7 + 1 + 256)
    };
    vec![
        one("products_of_halves", Expected::Floats(exact((0..128).map(half).collect()))),
        one("products_of_bytes", Expected::Words((0..128).map(byte).collect())),
        one("products_of_doubles", Expected::Doubles(exact((0..64).map(double).collect()))),
        words(FILE, "barriers_with_numbers", 7, (0..64).map(taken).collect()).shape([1, 1], [128, 1]),
        words(FILE, "stages_of_copies", N, (0..64).map(staged).collect()).shape([1, 1], [64, 1]).shared(4096),
        words(
            FILE,
            "copies_by_primitives",
            3,
            (0..64).map(|t| x[2 * (63 - t)].wrapping_add(x[2 * (t ^ 5) + 1]).wrapping_add(3)).collect(),
        )
        .shape([1, 1], [64, 1]),
        words(FILE, "loads_with_policies", 512, (0..512).map(policies).collect()),
        words(FILE, "registers_of_the_machine", 256, (0..256).map(machine).collect()).shared(64),
        each(FILE, "narrow_floats", |x, i| narrow_floats(x[i])),
        each(FILE, "integers_of_all_kinds", integers),
    ]
}
