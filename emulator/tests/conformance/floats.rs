//! Floating-point arithmetic, from 16 to 64 bits.

use half::{bf16, f16};

use crate::harness::{bits, check, doubles, floats, flushed};

#[test]
fn single_precision() {
    let i = floats();
    let check = |body: &str, f: &dyn Fn(f32, f32, f32) -> f32| {
        check(body, "32", &i, |[a, b, c, _]| {
            bits(f(f32::from_bits(a as u32), f32::from_bits(b as u32), f32::from_bits(c as u32)))
        });
    };
    check("add.rn.f32 %d32, %a32, %b32;", &|a, b, _| a + b);
    check("sub.f32 %d32, %a32, %b32;", &|a, b, _| a - b);
    check("mul.rn.f32 %d32, %a32, %b32;", &|a, b, _| a * b);
    check("mul.ftz.f32 %d32, %a32, %b32;", &|a, b, _| flushed(flushed(a) * flushed(b)));
    check("fma.rn.f32 %d32, %a32, %b32, %c32;", &f32::mul_add);
    check("div.rn.f32 %d32, %a32, %b32;", &|a, b, _| a / b);
    check("rcp.rn.f32 %d32, %a32;", &|a, _, _| 1.0 / a);
    check("sqrt.rn.f32 %d32, %a32;", &|a, _, _| a.sqrt());
    check("ex2.approx.f32 %d32, %a32;", &|a, _, _| f64::from(a).exp2() as f32);
    check("ex2.approx.ftz.f32 %d32, %a32;", &|a, _, _| flushed(f64::from(flushed(a)).exp2() as f32));
    check("lg2.approx.f32 %d32, %a32;", &|a, _, _| f64::from(a).log2() as f32);
    check("tanh.approx.f32 %d32, %a32;", &|a, _, _| f64::from(a).tanh() as f32);
    check("rsqrt.approx.f32 %d32, %a32;", &|a, _, _| (1.0 / f64::from(a).sqrt()) as f32);
    check("add.sat.f32 %d32, %a32, %b32;", &|a, b, _| {
        if (a + b).is_nan() { 0.0 } else { (a + b).clamp(0.0, 1.0) + 0.0 }
    });
    check("fma.rn.sat.f32 %d32, %a32, %b32, %c32;", &|a, b, c| {
        let sum = a.mul_add(b, c);
        if sum.is_nan() { 0.0 } else { sum.clamp(0.0, 1.0) + 0.0 }
    });
    check("min.NaN.f32 %d32, %a32, %b32;", &|a, b, _| {
        if a.is_nan() || b.is_nan() {
            f32::NAN
        } else if a == b {
            f32::from_bits(a.to_bits() | b.to_bits())
        } else {
            a.min(b)
        }
    });
    check("max.f32 %d32, %a32, %b32;", &|a, b, _| match (a.is_nan(), b.is_nan()) {
        (true, _) => b,
        (_, true) => a,
        _ if a == b => f32::from_bits(a.to_bits() & b.to_bits()),
        _ => a.max(b),
    });
    check("min.f32 %d32, %a32, %b32;", &|a, b, _| match (a.is_nan(), b.is_nan()) {
        (true, _) => b,
        (_, true) => a,
        _ if a == b => f32::from_bits(a.to_bits() | b.to_bits()),
        _ => a.min(b),
    });
    check("slct.f32.f32 %d32, %a32, %b32, %c32;\nadd.f32 %d32, %d32, 0f80000000;", &|a, b, c| {
        (if c >= 0.0 { a } else { b }) + -0.0
    });
    // The sign of the first operand, the magnitude of the second.
    common_sign(&i);
}

fn common_sign(i: &[[u64; 4]]) {
    check("copysign.f32 %d32, %a32, %b32;", "32", i, |[a, b, ..]| a & 0x8000_0000 | b & 0x7fff_ffff);
    check("neg.f32 %d32, %a32;", "32", i, |[a, ..]| bits(-f32::from_bits(a as u32)));
    check("abs.f32 %d32, %a32;", "32", i, |[a, ..]| bits(f32::from_bits(a as u32).abs()));
    check("testp.subnormal.f32 %dp, %a32;", "p", i, |[a, ..]| {
        u64::from(f32::from_bits(a as u32).is_subnormal())
    });
    check("testp.notanumber.f32 %dp, %a32;", "p", i, |[a, ..]| u64::from(f32::from_bits(a as u32).is_nan()));
}

#[test]
fn directed_rounding_agrees_with_a_wider_type() {
    let i: Vec<_> =
        floats().into_iter().filter(|v| v.iter().all(|&b| f32::from_bits(b as u32).is_finite())).collect();
    // Products and sums of f32 in f64, rounded down or up by stepping from the nearest.
    let step = |exact: f64, down: bool| {
        let near = exact as f32;
        match () {
            () if down && f64::from(near) > exact => near.next_down(),
            () if !down && f64::from(near) < exact => near.next_up(),
            () => near,
        }
    };
    for (mode, down) in [("rm", true), ("rp", false)] {
        check(&format!("mul.{mode}.f32 %d32, %a32, %b32;"), "32", &i, |[a, b, ..]| {
            let exact = f64::from(f32::from_bits(a as u32)) * f64::from(f32::from_bits(b as u32));
            u64::from(step(exact, down).to_bits())
        });
        check(&format!("cvt.{mode}.f32.f64 %d32, %a64;"), "32", &doubles(), |[a, ..]| {
            bits(step(f64::from_bits(a), down))
        });
    }
}

#[test]
fn double_precision() {
    let i: Vec<_> = doubles();
    let check = |body: &str, f: &dyn Fn(f64, f64, f64) -> f64| {
        let finite: Vec<_> = i
            .iter()
            .copied()
            .filter(|[a, b, c, _]| !f(f64::from_bits(*a), f64::from_bits(*b), f64::from_bits(*c)).is_nan())
            .collect();
        check(body, "64", &finite, |[a, b, c, _]| {
            f(f64::from_bits(a), f64::from_bits(b), f64::from_bits(c)).to_bits()
        });
    };
    check("add.rn.f64 %d64, %a64, %b64;", &|a, b, _| a + b);
    check("sub.f64 %d64, %a64, %b64;", &|a, b, _| a - b);
    check("mul.f64 %d64, %a64, %b64;", &|a, b, _| a * b);
    check("fma.rn.f64 %d64, %a64, %b64, %c64;", &f64::mul_add);
    check("div.rn.f64 %d64, %a64, %b64;", &|a, b, _| a / b);
    check("sqrt.rn.f64 %d64, %a64;", &|a, _, _| a.sqrt());
    check("neg.f64 %d64, %a64;", &|a, _, _| -a);
    check("min.f64 %d64, %a64, %b64;", &|a, b, _| {
        if a == b { f64::from_bits(a.to_bits() | b.to_bits()) } else { a.min(b) }
    });
    check("cvt.rzi.f64.f64 %d64, %a64;", &|a, _, _| a.trunc());
    check("cvt.rni.f64.f64 %d64, %a64;", &|a, _, _| a.round_ties_even());
}

#[test]
fn a_tiny_result_in_f16_is_flushed_even_where_it_rounds_to_a_normal_number() {
    // 2^-14 - 1.26 · 2^-26, of which an H100 makes zero; the same with the other sign; and 2^-14 - 0.94 · 2^-26.
    let i = [[0x0400, 0x8d08, 0x0400, 0], [0x8400, 0x8d08, 0x8400, 0], [0x0400, 0x8b80, 0x0400, 0]];
    let expect = |results: [u64; 3]| {
        move |operands: [u64; 4]| results[i.iter().position(|input| *input == operands).unwrap()]
    };
    check("fma.rn.f16 %d16, %a16, %b16, %c16;", "16", &i, expect([0x0400, 0x8400, 0x0400]));
    check("fma.rn.ftz.f16 %d16, %a16, %b16, %c16;", "16", &i, expect([0, 0x8000, 0x0400]));
    check("fma.rn.ftz.relu.f16 %d16, %a16, %b16, %c16;", "16", &i, expect([0, 0, 0x0400]));
}

#[test]
fn half_precision() {
    let f = floats();
    let a16 = |v: u64| f16::from_bits(v as u16);
    let b16 = |v: u64| bf16::from_bits(v as u16);
    let h = |v: f64| if v.is_nan() { 0x7fff } else { u64::from(f16::from_f64(v).to_bits()) };
    let b = |v: f64| if v.is_nan() { 0x7fff } else { u64::from(bf16::from_f64(v).to_bits()) };
    // Values of all exponents, from the middle bits of the inputs.
    let i: Vec<[u64; 4]> =
        f.iter().map(|v| [v[0] >> 12 & 0xffff, v[1] >> 15 & 0xffff, v[2] >> 16, 0]).collect();
    check("add.f16 %d16, %a16, %b16;", "16", &i, |[x, y, ..]| h(a16(x).to_f64() + a16(y).to_f64()));
    check("mul.f16 %d16, %a16, %b16;", "16", &i, |[x, y, ..]| h(a16(x).to_f64() * a16(y).to_f64()));
    check("sub.bf16 %d16, %a16, %b16;", "16", &i, |[x, y, ..]| b((b16(x).to_f32() - b16(y).to_f32()).into()));
    check("fma.rn.f16 %d16, %a16, %b16, %c16;", "16", &i, |[x, y, z, _]| {
        h(a16(x).to_f64().mul_add(a16(y).to_f64(), a16(z).to_f64()))
    });
    check("add.f16x2 %d32, %a32, %b32;", "32", &f, |[x, y, ..]| {
        let sum = |s: u32| h(a16(x >> s).to_f64() + a16(y >> s).to_f64()) << s;
        sum(0) | sum(16)
    });
    check("mul.bf16x2 %d32, %a32, %b32;", "32", &f, |[x, y, ..]| {
        let product = |s: u32| b((b16(x >> s).to_f32() * b16(y >> s).to_f32()).into()) << s;
        product(0) | product(16)
    });
    check("neg.f16x2 %d32, %a32;", "32", &f, |[x, ..]| {
        let negated = |s: u32| h(-a16(x >> s).to_f64()) << s;
        negated(0) | negated(16)
    });
    check("max.f16 %d16, %a16, %b16;", "16", &i, |[x, y, ..]| {
        let (p, q) = (a16(x), a16(y));
        match (p.is_nan(), q.is_nan()) {
            (true, true) => 0x7fff,
            (true, _) => y & 0xffff,
            (_, true) => x & 0xffff,
            _ if p == q => u64::from(p.to_bits() & q.to_bits()),
            _ => u64::from(if p > q { p } else { q }.to_bits()),
        }
    });
    check("tanh.approx.f16 %d16, %a16;", "16", &i, |[x, ..]| h(f64::from(a16(x).to_f64().tanh() as f32)));
}
