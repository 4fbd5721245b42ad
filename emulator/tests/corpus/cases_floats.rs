//! What the kernels of `floats.cu` must leave: exactly, or within the bound that NVIDIA's manual states for a
//! function.

use half::{bf16, f16};

use crate::harness::{Case, Expected, N, each, input};

const FILE: &str = "floats";

/// A multiple of 1/16 between -64 and 64.
fn value(word: u32) -> f64 {
    f64::from(word % 2049) / 16.0 - 64.0
}

/// A case whose element i is the float that `f` gives, to so many units in the last place of f32.
fn floats(kernel: &'static str, ulp: f64, f: impl Fn(f64) -> f64) -> Case {
    let x = input();
    let near = |i: usize| {
        let exact = f(value(x[i]));
        (exact, ulp * ulp_of(exact))
    };
    Case::new(FILE, kernel, N as u32, Expected::Floats((0..N).map(near).collect()))
}

/// The distance of the f32 around a value; no less than that of subnormal ones.
fn ulp_of(value: f64) -> f64 {
    let exponent = value.abs().max(f64::from(f32::MIN_POSITIVE)).log2().floor();
    2f64.powi(exponent as i32 - 23)
}

/// The same in f64; the reference's own error is below one unit.
fn doubles(kernel: &'static str, ulp: f64, f: impl Fn(f64) -> f64) -> Case {
    let x = input();
    let near = |i: usize| {
        let exact = f(value(x[i]));
        (exact, (ulp + 1.0) * exact.abs() * f64::EPSILON)
    };
    Case::new(FILE, kernel, N as u32, Expected::Doubles((0..N).map(near).collect()))
}

fn exact(kernel: &'static str, n: usize, values: Vec<f64>) -> Case {
    Case::new(FILE, kernel, n as u32, Expected::Floats(values.into_iter().map(|v| (v, 0.0)).collect()))
}

fn halves(x: u32) -> u32 {
    let f = |v: f64| f16::from_f64(v);
    let (a, b) = ([f(value(x) * 0.25), f(value(x >> 7) * 0.25)], f(0.5));
    let one = |a: f16| {
        // All are multiples of 1/64 below 32, products of 1/128: one rounding an operation.
        let less = f(b.to_f64() - a.to_f64());
        let r = f(a.to_f64() * b.to_f64() + less.to_f64());
        (r, a.to_f64().max(b.to_f64()))
    };
    let parts: Vec<(f16, f64)> = a.iter().map(|&a| one(a)).collect();
    let greater = a[0].to_f64() > 0.5;
    let signed = |r: f16| if greater { r } else { -r };
    let word = |i: usize| u32::from(f(signed(parts[i].0).to_f64() + parts[i].1).to_bits());
    let both = a.iter().all(|a| a.to_f64() > 0.5);
    (word(1) << 16 | word(0)).wrapping_add(u32::from(both)).wrapping_add(if a[0] < a[1] { 2 } else { 0 })
}

/// A rounding of the exact result of an operation, whose nearest result is given with the sign of what it misses.
fn moved32(near: f32, missing: f64, up: bool) -> u32 {
    match (up, missing) {
        (true, m) if m > 0.0 => near.next_up().to_bits(),
        (false, m) if m < 0.0 => near.next_down().to_bits(),
        _ => near.to_bits(),
    }
}

fn moved64(near: f64, missing: f64, up: bool) -> u64 {
    match (up, missing) {
        (true, m) if m > 0.0 => near.next_up().to_bits(),
        (false, m) if m < 0.0 => near.next_down().to_bits(),
        _ => near.to_bits(),
    }
}

/// All numbers are positive here, so that towards zero is down. What an operation misses comes from fused
/// multiply-adds, which are
/// exact for these, and from sums of two, likewise.
fn roundings(x: u32, next: u32) -> u32 {
    let a = f32::from_bits(x & 0x007f_ffff | 0x3f80_0000);
    let b = f32::from_bits(next & 0x007f_ffff | 0x3f00_0000);
    let (p, q) = (f64::from(a), f64::from(b));
    let wide = |exact: f64, up: bool| moved32(exact as f32, exact - f64::from(exact as f32), up);
    // A sum of three f32 products may take more than 53 bits: the low part decides with the high one.
    let product = p * q;
    let sum = product + p;
    let low = (product - (sum - p)) + (p - (sum - (sum - p)));
    let near = sum as f32;
    let fused = moved32(near, if f64::from(near) == sum { low } else { sum - f64::from(near) }, false);
    let quotient = a / b;
    let root = b.sqrt();
    let reciprocal = 1.0 / a;
    let r = wide(p + q, false)
        ^ wide(p * q, true).wrapping_mul(3)
        ^ fused.wrapping_mul(5)
        ^ moved32(quotient, p - f64::from(quotient) * q, false).wrapping_mul(7)
        ^ moved32(root, q - f64::from(root) * f64::from(root), true).wrapping_mul(9)
        ^ moved32(reciprocal, 1.0 - f64::from(reciprocal) * p, false).wrapping_mul(11);
    // In the kernel, `a * 1.1` is a product of doubles.
    let (c, d) = (p * 1.1, q * 0.3);
    let two_sum = |a: f64, b: f64| {
        let s = a + b;
        let t = s - a;
        (s, (a - (s - t)) + (b - t))
    };
    let (s, missing) = two_sum(c, d);
    let product = c * d;
    let product_low = c.mul_add(d, -product);
    let fused = c.mul_add(d, c);
    // What the fused sum misses: c·d + c - fused, of which the parts are exact.
    let (high, low) = two_sum(product, c);
    let fused_missing = (high - fused) + (low + product_low);
    let quotient = c / d;
    let root = d.sqrt();
    let w = moved64(s, missing, true)
        ^ moved64(product, product_low, false).wrapping_mul(3)
        ^ moved64(fused, fused_missing, false).wrapping_mul(5)
        ^ moved64(quotient, -quotient.mul_add(d, -c), true).wrapping_mul(7)
        ^ moved64(root, -root.mul_add(root, -d), false).wrapping_mul(9);
    r ^ w as u32 ^ (w >> 32) as u32
}

fn conversions(x: u32) -> u32 {
    let v = value(x) as f32 * 1.37;
    let int = |v: f32| (v as i32).cast_unsigned();
    // Towards zero, to f32 and to f16.
    let toward = |x: i32| {
        let near = x as f32;
        if f64::from(near).abs() > f64::from(x).abs() { f32::from_bits(near.to_bits() - 1) } else { near }
    };
    let half = {
        let near = f16::from_f32(v);
        if near.to_f32().abs() > v.abs() { f16::from_bits(near.to_bits() - 1) } else { near }
    };
    int(v.round_ties_even())
        .wrapping_add(int(v.trunc()).wrapping_mul(3))
        .wrapping_add(int(v.ceil()).wrapping_mul(5))
        .wrapping_add(int(v.floor()).wrapping_mul(7))
        .wrapping_add((v * 1e6) as i64 as u32)
        .wrapping_add(toward(x.cast_signed()).to_bits())
        .wrapping_add(((f64::from(v) * 0.5).round_ties_even() as i32).cast_unsigned())
        .wrapping_add(u32::from(v.abs() as u8))
        .wrapping_add((u64::from(x) as f32).to_bits())
        .wrapping_add(u32::from(half.to_bits()))
        .wrapping_add(int(v.round_ties_even()))
        .wrapping_add(int(v.floor()))
        .wrapping_add(int(v.ceil()))
        .wrapping_add(int(v.trunc()))
        .wrapping_add(int(v.round()))
}

fn classes(x: u32) -> u32 {
    let v = f32::from_bits(x << 1 ^ (x & 3).wrapping_mul(0x7f80_0000));
    let flags = [
        v.is_nan(),
        v.is_infinite(),
        v.is_finite(),
        v.is_sign_negative(),
        v.is_nan(),
        v.min(1.0) < 0.5,
        v.max(-1.0) > 0.5,
        v.is_sign_negative(),
        !v.is_nan(),
    ];
    flags.iter().enumerate().fold(0, |word, (i, &flag)| word | u32::from(flag) << i)
}

fn mandelbrot(x: u32) -> u32 {
    let (cr, ci) = (f64::from(x % 257) / 128.0 - 1.5, f64::from(x / 257 % 129) / 64.0 - 1.0);
    let (mut r, mut m, mut steps) = (0.0, 0.0, 0);
    while steps < 50 && r * r + m * m < 4.0 {
        (r, m) = (r * r - m * m + cr, 2.0 * r * m + ci);
        steps += 1;
    }
    steps
}

/// Each force is a sum of n terms of three factors d·r³: u is f32's rounding. A term has 2 ulp of `rsqrtf` and
/// about 6 roundings
/// before them, cubed, and 3 products; the sum n roundings of what is added up by then.
fn n_body(n: usize) -> Case {
    let x = input();
    let u = 2f64.powi(-24);
    let mut expected = Vec::new();
    for i in 0..n {
        let (px, py) = (value(x[i]), value(x[i] >> 4));
        let (mut force, mut size) = ([0.0; 2], [0.0; 2]);
        for &other in &x[..n] {
            let d = [value(other) - px, value(other >> 4) - py];
            let r = 1.0 / (d[0] * d[0] + d[1] * d[1] + 1.0).sqrt();
            for axis in 0..2 {
                force[axis] += d[axis] * r * r * r;
                size[axis] += (d[axis] * r * r * r).abs();
            }
        }
        expected
            .extend([0, 1].map(|axis| (force[axis], (n as f64 + 3.0 * 10.0 + 3.0) * u * size[axis] * 1.01)));
    }
    Case::new(FILE, "n_body", n as u32, Expected::Floats(expected))
        .shape([n.div_ceil(128) as u32, 1], [128, 1])
}

/// The solution by the same elimination. The matrix is dominated by its diagonal, so that no element grows
/// beyond twice its size and the
/// error of each unknown is below 8·n²·u times the largest.
fn elimination(n: usize) -> Case {
    let (x, w) = (input(), n + 1);
    let mut a: Vec<f64> = (0..n * w)
        .map(|k| f64::from(x[k] % 17) - 8.0 + if k / w == k % w { 16.0 * n as f64 } else { 0.0 })
        .collect();
    for p in 0..n {
        for r in (0..n).filter(|&r| r != p) {
            let f = a[r * w + p] / a[p * w + p];
            (p..w).for_each(|c| a[r * w + c] -= f * a[p * w + c]);
        }
    }
    let solution: Vec<f64> = (0..n).map(|r| a[r * w + n] / a[r * w + r]).collect();
    let largest = solution.iter().fold(0.0f64, |m, v| m.max(v.abs()));
    let bound = 8.0 * (n * n) as f64 * f64::EPSILON * largest;
    Case::new(
        FILE,
        "elimination",
        n as u32,
        Expected::Doubles(solution.into_iter().map(|v| (v, bound)).collect()),
    )
    .shape([1, 1], [64, 1])
    .shared((n * w * 8) as u32)
}

fn cholesky() -> Case {
    let x = input();
    let at = |r: usize, c: usize| match r.cmp(&c) {
        std::cmp::Ordering::Less => 0.0,
        std::cmp::Ordering::Equal => 4.0,
        std::cmp::Ordering::Greater => f64::from(x[r * 16 + c] % 7) - 3.0,
    };
    let values = (0..256).map(|k| (at(k / 16, k % 16), 0.0)).collect();
    Case::new(FILE, "cholesky", 16, Expected::Doubles(values)).shape([1, 1], [16, 16])
}

/// Each step rounds once, and what it rounds shrinks by |v| ≤ 1 for each later one.
fn horner() -> Case {
    let x = input();
    let near = |i: usize| {
        let v = value(x[i]) / 64.0;
        let exact = (0..8).rev().fold(0.0, |r, k| r * v + f64::from(k * k - 9));
        let size: f64 = (0..8).map(|k| f64::from(k * k - 9i32).abs()).sum();
        (exact, 8.0 * 2f64.powi(-24) * size)
    };
    Case::new(FILE, "horner", N as u32, Expected::Floats((0..N).map(near).collect()))
}

fn sums() -> Vec<Case> {
    let x = input();
    let sum: f64 = x[..N].iter().map(|&w| value(w)).sum();
    let double: f64 = x[..N].iter().map(|&w| value(w) * 1_048_576.0 + 0.125).sum();
    let count = |bit: u32| x[..N].iter().filter(|w| *w >> bit & 1 == 1).count() as f64;
    let halves = [count(0), count(1), count(2), 0.0].map(|v| (v, 0.0)).to_vec();
    vec![
        Case::new(FILE, "sum_of_floats", N as u32, Expected::Floats(vec![(sum, 0.0)]))
            .shape([1, 1], [256, 1]),
        Case::new(FILE, "sum_of_doubles", N as u32, Expected::Doubles(vec![(double, 0.0)]))
            .shape([1, 1], [256, 1]),
        Case::new(FILE, "atomics_on_halves", N as u32, Expected::Halves(halves)),
    ]
}

pub(crate) fn cases() -> Vec<Case> {
    let x = input();
    let next = |i: usize| value(x[(i + 1) % N]);
    let axpy = (0..N).map(|i| 2.5 * value(x[i]) + next(i)).collect();
    let axpy64 = (0..N).map(|i| (2.5 * value(x[i]) - 1e9 * next(i), 0.0)).collect();
    let complex = |i: usize| {
        let (a, b) = ([value(x[i]), value(x[i] >> 5)], [value(x[i] >> 9), 0.5]);
        [a[0] * b[0] - a[1] * b[1] + a[0], a[0] * b[1] + a[1] * b[0] - a[1]]
    };
    let mut cases = vec![
        exact("axpy_of_floats", N, axpy),
        Case::new(FILE, "axpy_of_doubles", N as u32, Expected::Doubles(axpy64)),
        each(FILE, "halves", |x, i| halves(x[i])),
        each(FILE, "brains", |x, i| {
            let a = bf16::from_f64(value(x[i]));
            u32::from(bf16::from_f64((a.to_f64() + 1.5) * 3.0).to_bits())
        }),
        each(FILE, "roundings", |x, i| roundings(x[i], x[(i + 1) % N])),
        each(FILE, "conversions", |x, i| conversions(x[i])),
        each(FILE, "classes_of_floats", |x, i| classes(x[i])),
        exact("complex_products", N, (0..N).flat_map(complex).collect()),
        each(FILE, "mandelbrot", |x, i| mandelbrot(x[i])),
        n_body(150),
        elimination(20),
        cholesky(),
        horner(),
        floats("sine", 2.0, f64::sin),
        floats("cosine", 2.0, f64::cos),
        floats("tangent", 4.0, |v| (v / 64.0).tan()),
        floats("exponential", 2.0, |v| (v / 4.0).exp()),
        floats("logarithm", 1.0, |v| (v.abs() + 0.0625).ln()),
        floats("power", 4.0, |v| (v.abs() + 0.5).powf(1.75)),
        floats("cube_root", 1.0, f64::cbrt),
        floats("error_function", 2.0, |v| libm::erf(v / 16.0)),
        floats("gamma_function", 5.0, |v| libm::tgamma(v.abs() / 8.0 + 0.5)),
        floats("arc_tangent", 3.0, |v| v.atan2(3.0)),
        floats("hyperbolic", 2.0, |v| (v / 16.0).tanh()),
        // The manual's bound: 2 + ⌊|1.173·x|⌋ for |x| ≤ 4.
        floats("fast_exponential", 6.0, |v| (v / 16.0).exp()),
        floats("remainder_of", 0.0, |v| v % 2.75),
        doubles("sine_of_double", 2.0, f64::sin),
        doubles("exponential_of_double", 1.0, |v| (v / 4.0).exp()),
        doubles("logarithm_of_double", 1.0, |v| (v.abs() + 0.0625).ln()),
        doubles("power_of_double", 2.0, |v| (v.abs() + 0.5).powf(-1.75)),
        doubles("reciprocal_root_of_double", 1.0, |v| 1.0 / (v.abs() + 0.5).sqrt()),
        doubles("hypotenuse_of_double", 2.0, |v| v.hypot(3.0)),
    ];
    cases.extend(sums());
    cases
}
