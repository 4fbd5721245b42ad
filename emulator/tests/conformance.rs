//! Instructions, one at a time, against the same computation written in Rust.

mod common;

use common::evaluate;
use half::{bf16, f16};

/// Interesting 64-bit operands: small, extreme, and spread by a generator.
fn inputs() -> Vec<[u64; 4]> {
    let mut values: Vec<u64> = vec![0, 1, 2, 3, 7, 15, 16, 17, 31, 32, 33, 63, 64, 65, 255, 0x8000, 0xffff];
    values.extend([0x7fff_ffff, 0x8000_0000, 0xffff_ffff, u64::MAX, 1 << 63, (1 << 63) - 1]);
    let mut state = 0x1234_5678_9abc_def0u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let mut inputs: Vec<[u64; 4]> =
        values.iter().flat_map(|&a| values.iter().map(move |&b| [a, b, a ^ b, b >> 3])).collect();
    inputs.extend((0..400).map(|i| [next(), next() >> (i % 60), next() >> (i % 7), next() >> 58]));
    inputs
}

/// f32 operands in the low half of each value: special ones and many exponents.
fn floats() -> Vec<[u64; 4]> {
    let special = [
        0.0f32,
        -0.0,
        1.0,
        -1.0,
        0.5,
        1.5,
        2.5,
        -2.5,
        3.0,
        1e-40,
        -1e-40,
        f32::MIN_POSITIVE,
        f32::MAX,
        f32::MIN,
        1e10,
        -1e10,
        65504.0,
        65520.0,
        1e-8,
        0.1,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
        255.5,
        2147483648.0,
    ];
    let bits = |v: f32| u64::from(v.to_bits());
    let mut inputs: Vec<[u64; 4]> = special
        .iter()
        .flat_map(|&a| special.iter().map(move |&b| [bits(a), bits(b), bits(a - b * 0.5), bits(b)]))
        .collect();
    let mut state = 77u64;
    inputs.extend((0..400).map(|_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let value = |shift: u32| {
            let bits = (state >> shift) as u32;
            u64::from(bits & 0x83ff_ffff | 0x3c00_0000)
        };
        [value(0), value(9), value(17), value(30)]
    }));
    inputs
}

fn check(body: &str, result: &str, inputs: &[[u64; 4]], expected: impl Fn([u64; 4]) -> u64) {
    for (input, got) in inputs.iter().zip(evaluate(body, result, inputs)) {
        let expected = expected(*input);
        assert_eq!(got, expected, "`{body}` of {input:x?} gave {got:#x}, expected {expected:#x}");
    }
}

macro_rules! word {
    ($inputs:expr; $($body:literal: |$a:ident, $b:ident, $c:ident| $e:expr;)*) => {$(
        check($body, "32", &$inputs, |[$a, $b, $c, _]| {
            let ($a, $b, $c) = ($a as u32, $b as u32, $c as u32);
            let _ = ($a, $b, $c);
            u64::from(($e) as u32)
        });
    )*};
}

macro_rules! double {
    ($inputs:expr; $($body:literal: |$a:ident, $b:ident, $c:ident| $e:expr;)*) => {$(
        check($body, "64", &$inputs, |[$a, $b, $c, _]| { let _ = ($a, $b, $c); ($e) as u64 });
    )*};
}

macro_rules! short {
    ($inputs:expr; $($body:literal: |$a:ident, $b:ident, $c:ident| $e:expr;)*) => {$(
        check($body, "16", &$inputs, |[$a, $b, $c, _]| {
            let ($a, $b, $c) = ($a as u16, $b as u16, $c as u16);
            let _ = ($a, $b, $c);
            u64::from(($e) as u16)
        });
    )*};
}

#[test]
fn word_arithmetic() {
    let i = inputs();
    word! { i;
        "add.u32 %d32, %a32, %b32;": |a, b, c| a.wrapping_add(b);
        "add.sat.s32 %d32, %a32, %b32;": |a, b, c| (a as i32).saturating_add(b as i32);
        "sub.s32 %d32, %a32, %b32;": |a, b, c| a.wrapping_sub(b);
        "sub.sat.s32 %d32, %a32, %b32;": |a, b, c| (a as i32).saturating_sub(b as i32);
        "mul.lo.s32 %d32, %a32, %b32;": |a, b, c| a.wrapping_mul(b);
        "mul.hi.u32 %d32, %a32, %b32;": |a, b, c| (u64::from(a) * u64::from(b)) >> 32;
        "mul.hi.s32 %d32, %a32, %b32;": |a, b, c| (i64::from(a as i32) * i64::from(b as i32)) >> 32;
        "mul24.lo.u32 %d32, %a32, %b32;": |a, b, c| (a & 0xff_ffff).wrapping_mul(b & 0xff_ffff);
        "mad.lo.u32 %d32, %a32, %b32, %c32;": |a, b, c| a.wrapping_mul(b).wrapping_add(c);
        "mad.hi.u32 %d32, %a32, %b32, %c32;": |a, b, c| (((u64::from(a) * u64::from(b)) >> 32) as u32).wrapping_add(c);
        "sad.u32 %d32, %a32, %b32, %c32;": |a, b, c| a.abs_diff(b).wrapping_add(c);
        "sad.s32 %d32, %a32, %b32, %c32;": |a, b, c| (a as i32).abs_diff(b as i32).wrapping_add(c);
        "div.u32 %d32, %a32, %b32;": |a, b, c| a.checked_div(b).unwrap_or(u32::MAX);
        "rem.u32 %d32, %a32, %b32;": |a, b, c| a.checked_rem(b).unwrap_or(u32::MAX);
        "abs.s32 %d32, %a32;": |a, b, c| (a as i32).wrapping_abs();
        "neg.s32 %d32, %a32;": |a, b, c| (a as i32).wrapping_neg();
        "min.u32 %d32, %a32, %b32;": |a, b, c| a.min(b);
        "min.s32 %d32, %a32, %b32;": |a, b, c| (a as i32).min(b as i32);
        "max.u32 %d32, %a32, %b32;": |a, b, c| a.max(b);
        "max.s32 %d32, %a32, %b32;": |a, b, c| (a as i32).max(b as i32);
        "dp4a.u32.u32 %d32, %a32, %b32, %c32;": |a, b, c|
            a.to_le_bytes().iter().zip(b.to_le_bytes()).fold(c, |s, (&x, y)| s.wrapping_add(u32::from(x) * u32::from(y)));
        "dp4a.s32.s32 %d32, %a32, %b32, %c32;": |a, b, c| a.to_le_bytes().iter().zip(b.to_le_bytes())
            .fold(c as i32, |s, (&x, y)| s.wrapping_add(i32::from(x as i8) * i32::from(y as i8)));
    }
}

#[test]
fn word_bits() {
    let i = inputs();
    word! { i;
        "and.b32 %d32, %a32, %b32;": |a, b, c| a & b;
        "or.b32 %d32, %a32, %b32;": |a, b, c| a | b;
        "xor.b32 %d32, %a32, %b32;": |a, b, c| a ^ b;
        "not.b32 %d32, %a32;": |a, b, c| !a;
        "cnot.b32 %d32, %a32;": |a, b, c| a == 0;
        "shl.b32 %d32, %a32, %b32;": |a, b, c| if b > 31 { 0 } else { a << b };
        "shr.u32 %d32, %a32, %b32;": |a, b, c| if b > 31 { 0 } else { a >> b };
        "shr.s32 %d32, %a32, %b32;": |a, b, c| (a as i32) >> b.min(31);
        "shf.l.wrap.b32 %d32, %a32, %b32, %c32;": |a, b, c| (((u64::from(b) << 32 | u64::from(a)) << (c % 32)) >> 32);
        "shf.r.wrap.b32 %d32, %a32, %b32, %c32;": |a, b, c| (u64::from(b) << 32 | u64::from(a)) >> (c % 32);
        "shf.l.clamp.b32 %d32, %a32, %b32, %c32;":
            |a, b, c| (((u128::from(b) << 32 | u128::from(a)) << c.min(32)) >> 32) as u64;
        "shf.r.clamp.b32 %d32, %a32, %b32, %c32;": |a, b, c| (u64::from(b) << 32 | u64::from(a)) >> c.min(32);
        "popc.b32 %d32, %a32;": |a, b, c| a.count_ones();
        "clz.b32 %d32, %a32;": |a, b, c| a.leading_zeros();
        "brev.b32 %d32, %a32;": |a, b, c| a.reverse_bits();
        "bfind.u32 %d32, %a32;": |a, b, c| a.checked_ilog2().map_or(u32::MAX, |x| x);
        "bfind.s32 %d32, %a32;": |a, b, c| (if (a as i32) < 0 { !a } else { a }).checked_ilog2().unwrap_or(u32::MAX);
        "bfind.shiftamt.u32 %d32, %a32;": |a, b, c| a.checked_ilog2().map_or(u32::MAX, |x| 31 - x);
        "lop3.b32 %d32, %a32, %b32, %c32, 0xe8;": |a, b, c| a & b | a & c | b & c;
        "lop3.b32 %d32, %a32, %b32, %c32, 0x96;": |a, b, c| a ^ b ^ c;
        "lop3.b32 %d32, %a32, %b32, %c32, 0xb4;": |a, b, c| a ^ (b & !c);
        "bmsk.clamp.b32 %d32, %a32, %b32;":
            |a, b, c| (0..32).filter(|&i| i >= a && u64::from(i) < u64::from(a) + u64::from(b)).fold(0, |m, i| m | 1 << i);
        "bfe.u32 %d32, %a32, %b32, %c32;": |a, b, c| {
            let (p, l) = (b & 0xff, c & 0xff);
            (0..l.min(32)).filter(|i| p + i < 32).fold(0, |r, i| r | (a >> (p + i) & 1) << i)
        };
        "bfe.s32 %d32, %a32, %b32, %c32;": |a, b, c| {
            // The definition of the PTX ISA, bit by bit.
            let (p, l) = (b & 0xff, c & 0xff);
            let sign = if l == 0 { 0 } else { a >> (p + l - 1).min(31) & 1 };
            (0..32).fold(0, |r, i| r | (if i < l && p + i <= 31 { a >> (p + i) & 1 } else { sign }) << i)
        };
    }
    check("bfi.b32 %d32, %a32, %b32, %c32, %e32;", "32", &i, |[a, b, c, e]| {
        let (a, b, p, l) = (a as u32, b as u32, c as u32 & 0xff, e as u32 & 0xff);
        u64::from((0..l).filter(|i| p + i < 32).fold(b, |r, i| r & !(1 << (p + i)) | (a >> i & 1) << (p + i)))
    });
    check("prmt.b32 %d32, %a32, %b32, %c32;", "32", &i, |[a, b, c, _]| {
        let bytes = [(a as u32).to_le_bytes(), (b as u32).to_le_bytes()].concat();
        let pick = |n: u32| {
            let selector = c as u32 >> (4 * n) & 0xf;
            let byte = bytes[selector as usize & 7];
            u32::from(if selector & 8 == 0 { byte } else { ((byte as i8) >> 7) as u8 }) << (8 * n)
        };
        u64::from(pick(0) | pick(1) | pick(2) | pick(3))
    });
}

#[test]
fn double_arithmetic_and_bits() {
    let i = inputs();
    double! { i;
        "add.s64 %d64, %a64, %b64;": |a, b, c| a.wrapping_add(b);
        "sub.u64 %d64, %a64, %b64;": |a, b, c| a.wrapping_sub(b);
        "mul.lo.u64 %d64, %a64, %b64;": |a, b, c| a.wrapping_mul(b);
        "mul.hi.u64 %d64, %a64, %b64;": |a, b, c| (u128::from(a) * u128::from(b)) >> 64;
        "mul.hi.s64 %d64, %a64, %b64;": |a, b, c| (i128::from(a as i64) * i128::from(b as i64)) >> 64;
        "mul.wide.u32 %d64, %a32, %b32;": |a, b, c| u64::from(a as u32) * u64::from(b as u32);
        "mul.wide.s32 %d64, %a32, %b32;": |a, b, c| i64::from(a as i32) * i64::from(b as i32);
        "mad.lo.s64 %d64, %a64, %b64, %c64;": |a, b, c| a.wrapping_mul(b).wrapping_add(c);
        "mad.wide.u32 %d64, %a32, %b32, %c64;": |a, b, c| (u64::from(a as u32) * u64::from(b as u32)).wrapping_add(c);
        "div.u64 %d64, %a64, %b64;": |a, b, c| a.checked_div(b).unwrap_or(u64::MAX);
        "rem.u64 %d64, %a64, %b64;": |a, b, c| a.checked_rem(b).unwrap_or(u64::MAX);
        "min.s64 %d64, %a64, %b64;": |a, b, c| (a as i64).min(b as i64);
        "max.u64 %d64, %a64, %b64;": |a, b, c| a.max(b);
        "abs.s64 %d64, %a64;": |a, b, c| (a as i64).wrapping_abs();
        "and.b64 %d64, %a64, %b64;": |a, b, c| a & b;
        "not.b64 %d64, %a64;": |a, b, c| !a;
        "shl.b64 %d64, %a64, %b32;": |a, b, c| if b as u32 > 63 { 0 } else { a << (b as u32) };
        "shr.u64 %d64, %a64, %b32;": |a, b, c| if b as u32 > 63 { 0 } else { a >> (b as u32) };
        "shr.s64 %d64, %a64, %b32;": |a, b, c| (a as i64) >> (b as u32).min(63);
        "brev.b64 %d64, %a64;": |a, b, c| a.reverse_bits();
        "bfe.u64 %d64, %a64, %b32, %c32;": |a, b, c| {
            let (p, l) = (b & 0xff, c & 0xff);
            (0..l.min(64)).filter(|i| p + i < 64).fold(0, |r, i| r | (a >> (p + i) & 1) << i)
        };
        "bfe.s64 %d64, %a64, %b32, %c32;": |a, b, c| {
            let (p, l) = (b & 0xff, c & 0xff);
            let sign = if l == 0 { 0 } else { a >> (p + l - 1).min(63) & 1 };
            (0..64).fold(0, |r, i| r | (if i < l && p + i <= 63 { a >> (p + i) & 1 } else { sign }) << i)
        };
        "mov.b64 %d64, {%a32, %b32};": |a, b, c| (b & 0xffff_ffff) << 32 | a & 0xffff_ffff;
        "mov.b64 %d64, {%a16, %b16, %c16, %a16};":
            |a, b, c| (a & 0xffff) | (b & 0xffff) << 16 | (c & 0xffff) << 32 | (a & 0xffff) << 48;
        "mov.b64 {%d32, %a32}, %b64;\nmov.b64 %d64, {%a32, %d32};": |a, b, c| b.rotate_left(32);
        "selp.b64 %d64, %a64, %b64, %cp;": |a, b, c| if c != 0 { a } else { b };
        "slct.u64.s32 %d64, %a64, %b64, %c32;": |a, b, c| if c as i32 >= 0 { a } else { b };
    }
    check("popc.b64 %d32, %a64;", "32", &i, |[a, ..]| u64::from(a.count_ones()));
    check("clz.b64 %d32, %a64;", "32", &i, |[a, ..]| u64::from(a.leading_zeros()));
    check("bfind.u64 %d32, %a64;", "32", &i, |[a, ..]| u64::from(a.checked_ilog2().unwrap_or(u32::MAX)));
    check("bfi.b64 %d64, %a64, %b64, %c32, %e32;", "64", &i, |[a, b, c, e]| {
        let (p, l) = (c & 0xff, e & 0xff);
        (0..l.min(64)).filter(|i| p + i < 64).fold(b, |r, i| r & !(1 << (p + i)) | (a >> i & 1) << (p + i))
    });
}

#[test]
fn short_arithmetic() {
    let i = inputs();
    short! { i;
        "add.s16 %d16, %a16, %b16;": |a, b, c| a.wrapping_add(b);
        "mul.lo.u16 %d16, %a16, %b16;": |a, b, c| a.wrapping_mul(b);
        "mul.hi.s16 %d16, %a16, %b16;": |a, b, c| (i32::from(a as i16) * i32::from(b as i16)) >> 16;
        "mad.lo.u16 %d16, %a16, %b16, %c16;": |a, b, c| a.wrapping_mul(b).wrapping_add(c);
        "div.u16 %d16, %a16, %b16;": |a, b, c| a.checked_div(b).unwrap_or(u16::MAX);
        "min.s16 %d16, %a16, %b16;": |a, b, c| (a as i16).min(b as i16);
        "max.u16 %d16, %a16, %b16;": |a, b, c| a.max(b);
        "neg.s16 %d16, %a16;": |a, b, c| (a as i16).wrapping_neg();
        "xor.b16 %d16, %a16, %b16;": |a, b, c| a ^ b;
        "selp.b16 %d16, %a16, %b16, %cp;": |a, b, c| if c != 0 { a } else { b };
    }
    check(
        "shl.b16 %d16, %a16, %b32;",
        "16",
        &i,
        |[a, b, ..]| {
            if b as u32 > 15 { 0 } else { (a << (b as u32)) & 0xffff }
        },
    );
    // The width of a shift's second operand is 32 bits, whatever the first one's is.
    check("shr.s16 %d16, %a16, %b32;", "16", &i, |[a, b, ..]| {
        u64::from(((a as i16) >> (b as u32).min(15)) as u16)
    });
    check("mul.wide.s16 %d32, %a16, %b16;", "32", &i, |[a, b, ..]| {
        u64::from((i32::from(a as i16) * i32::from(b as i16)) as u32)
    });
}

#[test]
fn carries_go_through_chains() {
    let i = inputs();
    check(
        "{ .reg .b32 %l, %h, %m, %n, %x, %y; mov.b64 {%l, %h}, %a64; mov.b64 {%m, %n}, %b64;\n\
         add.cc.u32 %x, %l, %m; addc.u32 %y, %h, %n; mov.b64 %d64, {%x, %y}; }",
        "64",
        &i,
        |[a, b, ..]| a.wrapping_add(b),
    );
    check(
        "{ .reg .b32 %l, %h, %m, %n, %x, %y; mov.b64 {%l, %h}, %a64; mov.b64 {%m, %n}, %b64;\n\
         sub.cc.u32 %x, %l, %m; subc.u32 %y, %h, %n; mov.b64 %d64, {%x, %y}; }",
        "64",
        &i,
        |[a, b, ..]| a.wrapping_sub(b),
    );
    check("add.cc.u64 %d64, %a64, %b64; addc.u64 %d64, 0, 0;", "64", &i, |[a, b, ..]| {
        u64::from(a.checked_add(b).is_none())
    });
    check(
        "sub.cc.s64 %d64, %a64, %b64; subc.s64 %d64, 0, 0;",
        "64",
        &i,
        |[a, b, ..]| if a < b { u64::MAX } else { 0 },
    );
    check(
        "mad.lo.cc.u64 %d64, %a64, %b64, %c64; madc.hi.u64 %d64, %a64, %b64, %c64;",
        "64",
        &i,
        |[a, b, c, _]| {
            let product = u128::from(a) * u128::from(b);
            let carry = (product as u64).checked_add(c).is_none();
            ((product >> 64) as u64).wrapping_add(c).wrapping_add(u64::from(carry))
        },
    );
    check("mad.hi.cc.s32 %d32, %a32, %b32, %c32; addc.u32 %d32, 0, 0;", "32", &i, |[a, b, c, _]| {
        let high = ((i64::from(a as i32) * i64::from(b as i32)) >> 32) as u32;
        u64::from(high.checked_add(c as u32).is_none())
    });
}

#[test]
fn comparisons_of_integers() {
    let i = inputs();
    for (name, f) in [
        ("eq", (|a, b| a == b) as fn(i128, i128) -> bool),
        ("ne", |a, b| a != b),
        ("lt", |a, b| a < b),
        ("le", |a, b| a <= b),
        ("gt", |a, b| a > b),
        ("ge", |a, b| a >= b),
    ] {
        check(&format!("setp.{name}.u32 %dp, %a32, %b32;"), "p", &i, |[a, b, ..]| {
            u64::from(f(i128::from(a as u32), i128::from(b as u32)))
        });
        check(&format!("setp.{name}.s32 %dp, %a32, %b32;"), "p", &i, |[a, b, ..]| {
            u64::from(f(i128::from(a as i32), i128::from(b as i32)))
        });
        check(&format!("setp.{name}.u64 %dp, %a64, %b64;"), "p", &i, |[a, b, ..]| {
            u64::from(f(i128::from(a), i128::from(b)))
        });
        check(&format!("setp.{name}.s64 %dp, %a64, %b64;"), "p", &i, |[a, b, ..]| {
            u64::from(f(i128::from(a as i64), i128::from(b as i64)))
        });
        check(&format!("setp.{name}.s16 %dp, %a16, %b16;"), "p", &i, |[a, b, ..]| {
            u64::from(f(i128::from(a as i16), i128::from(b as i16)))
        });
        check(&format!("set.{name}.u32.u32 %d32, %a32, %b32;"), "32", &i, |[a, b, ..]| {
            if f(i128::from(a as u32), i128::from(b as u32)) { 0xffff_ffff } else { 0 }
        });
    }
    check("setp.lt.and.u32 %dp|%qp, %a32, %b32, %cp;", "p", &i, |[a, b, c, _]| {
        u64::from((a as u32) < b as u32 && c != 0)
    });
    check("setp.lt.and.u32 %qp|%dp, %a32, %b32, %cp;", "p", &i, |[a, b, c, _]| {
        u64::from((a as u32) >= b as u32 && c != 0)
    });
    check("setp.lt.or.u32 %dp, %a32, %b32, !%cp;", "p", &i, |[a, b, c, _]| {
        u64::from((a as u32) < b as u32 || c == 0)
    });
    check("setp.eq.xor.u32 %dp, %a32, %b32, %cp;", "p", &i, |[a, b, c, _]| {
        u64::from((a as u32 == b as u32) ^ (c != 0))
    });
    check("xor.pred %dp, %ap, %bp;\nnot.pred %dp, %dp;", "p", &i, |[a, b, ..]| {
        u64::from((a != 0) == (b != 0))
    });
}

#[test]
fn comparisons_of_floats() {
    let i = floats();
    let value = |bits: u64| f32::from_bits(bits as u32);
    for (name, f) in [
        ("eq", (|a, b| a == b) as fn(f32, f32) -> bool),
        ("ne", |a, b| a.partial_cmp(&b).is_some_and(|order| order.is_ne())),
        ("lt", |a, b| a < b),
        ("ge", |a, b| a >= b),
        ("equ", |a, b| a.is_nan() || b.is_nan() || a == b),
        ("neu", |a, b| a != b),
        ("ltu", |a, b| a.partial_cmp(&b).is_none_or(|o| o.is_lt())),
        ("geu", |a, b| a.partial_cmp(&b).is_none_or(|o| o.is_ge())),
        ("num", |a, b| !a.is_nan() && !b.is_nan()),
        ("nan", |a, b| a.is_nan() || b.is_nan()),
    ] {
        check(&format!("setp.{name}.f32 %dp, %a32, %b32;"), "p", &i, |[a, b, ..]| {
            u64::from(f(value(a), value(b)))
        });
        let half = |bits: u64| f16::from_f32(value(bits));
        check(
            &format!(
                "cvt.rn.f16.f32 %a16, %a32;\ncvt.rn.f16.f32 %b16, %b32;\nsetp.{name}.f16 %dp, %a16, %b16;"
            ),
            "p",
            &i,
            |[a, b, ..]| u64::from(f(half(a).to_f32(), half(b).to_f32())),
        );
    }
    check("setp.eq.ftz.f32 %dp, %a32, 0f00000000;", "p", &i, |[a, ..]| {
        u64::from(!value(a).is_nan() && value(a).abs() < f32::MIN_POSITIVE)
    });
}

/// The bits of an f32 as the GPU writes it.
fn bits(value: f32) -> u64 {
    if value.is_nan() { 0x7fff_ffff } else { u64::from(value.to_bits()) }
}

fn flushed(value: f32) -> f32 {
    if value.is_subnormal() { 0f32.copysign(value) } else { value }
}

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

fn doubles() -> Vec<[u64; 4]> {
    let special =
        [0.0, -0.0, 1.0, -1.5, 0.1, 1e300, -1e300, 1e-310, 2.5, -3.5, 4e9, -4e9, 1e19, f64::INFINITY];
    let mut inputs: Vec<[u64; 4]> = special
        .iter()
        .flat_map(|a: &f64| {
            special.iter().map(move |b: &f64| [a.to_bits(), b.to_bits(), (a * 0.7 + b).to_bits(), 0])
        })
        .collect();
    inputs.extend((1..300u64).map(|n| {
        let bits = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let value = |b: u64| b & 0x8fff_ffff_ffff_ffff | 0x3000_0000_0000_0000 | (n % 16) << 52;
        [value(bits), value(bits.rotate_left(17)), value(bits.rotate_left(31)), 0]
    }));
    inputs
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
fn conversions_between_integers() {
    let i = inputs();
    check("cvt.u32.u8 %d32, %a32;", "32", &i, |[a, ..]| a & 0xff);
    check("cvt.s32.s8 %d32, %a32;", "32", &i, |[a, ..]| u64::from(i32::from(a as i8) as u32));
    check("cvt.s64.s32 %d64, %a32;", "64", &i, |[a, ..]| i64::from(a as i32) as u64);
    check("cvt.u64.u32 %d64, %a32;", "64", &i, |[a, ..]| a & 0xffff_ffff);
    check("cvt.s32.s16 %d32, %a16;", "32", &i, |[a, ..]| u64::from(i32::from(a as i16) as u32));
    check("cvt.u16.u32 %d16, %a32;", "16", &i, |[a, ..]| a & 0xffff);
    check("cvt.sat.u8.s32 %d32, %a32;", "32", &i, |[a, ..]| (a as i32).clamp(0, 255) as u64);
    check("cvt.sat.s16.s64 %d16, %a64;", "16", &i, |[a, ..]| {
        u64::from((a as i64).clamp(-32768, 32767) as u16)
    });
    check("cvt.sat.u32.s64 %d32, %a64;", "32", &i, |[a, ..]| (a as i64).clamp(0, 0xffff_ffff) as u64);
    // A register may be wider than the type: the value is extended.
    check("cvt.s8.s64 %d64, %a64;", "64", &i, |[a, ..]| i64::from(a as i8) as u64);
}

#[test]
fn conversions_between_integers_and_floats() {
    let i = inputs();
    check("cvt.rn.f32.u32 %d32, %a32;", "32", &i, |[a, ..]| bits(a as u32 as f32));
    check("cvt.rn.f32.s64 %d32, %a64;", "32", &i, |[a, ..]| bits(a as i64 as f32));
    check("cvt.rn.f64.u64 %d64, %a64;", "64", &i, |[a, ..]| (a as f64).to_bits());
    check("cvt.rz.f32.u32 %d32, %a32;", "32", &i, |[a, ..]| {
        let near = a as u32 as f32;
        bits(if f64::from(near) > f64::from(a as u32) { near.next_down() } else { near })
    });
    check("cvt.rn.f16.s32 %d16, %a32;", "16", &i, |[a, ..]| {
        u64::from(f16::from_f64(f64::from(a as i32)).to_bits())
    });
    let f = floats();
    let value = |b: u64| f32::from_bits(b as u32);
    check("cvt.rzi.s32.f32 %d32, %a32;", "32", &f, |[a, ..]| u64::from(value(a) as i32 as u32));
    check("cvt.rzi.u32.f32 %d32, %a32;", "32", &f, |[a, ..]| u64::from(value(a) as u32));
    check("cvt.rni.s32.f32 %d32, %a32;", "32", &f, |[a, ..]| {
        u64::from(value(a).round_ties_even() as i32 as u32)
    });
    check("cvt.rmi.s32.f32 %d32, %a32;", "32", &f, |[a, ..]| u64::from(value(a).floor() as i32 as u32));
    check("cvt.rpi.u8.f32 %d32, %a32;", "32", &f, |[a, ..]| u64::from(value(a).ceil() as u8));
    check("cvt.rzi.s64.f32 %d64, %a32;", "64", &f, |[a, ..]| {
        // To 64 bits, NaN is the value with only the top bit set.
        if value(a).is_nan() { 1 << 63 } else { value(a) as i64 as u64 }
    });
    check("cvt.rzi.s32.f64 %d32, %a64;", "32", &doubles(), |[a, ..]| {
        u64::from(f64::from_bits(a) as i32 as u32)
    });
}

#[test]
fn conversions_between_floats() {
    let f = floats();
    let value = |b: u64| f32::from_bits(b as u32);
    let half = |v: f32| if v.is_nan() { 0x7fff } else { u64::from(f16::from_f32(v).to_bits()) };
    let brain = |v: f32| if v.is_nan() { 0x7fff } else { u64::from(bf16::from_f32(v).to_bits()) };
    check("cvt.rn.f16.f32 %d16, %a32;", "16", &f, |[a, ..]| half(value(a)));
    check("cvt.rn.bf16.f32 %d16, %a32;", "16", &f, |[a, ..]| brain(value(a)));
    check("cvt.rn.f16x2.f32 %d32, %a32, %b32;", "32", &f, |[a, b, ..]| half(value(a)) << 16 | half(value(b)));
    check("cvt.rn.bf16x2.f32 %d32, %a32, %b32;", "32", &f, |[a, b, ..]| {
        brain(value(a)) << 16 | brain(value(b))
    });
    check(
        "cvt.rz.bf16.f32 %d16, %a32;",
        "16",
        &f,
        |[a, ..]| if value(a).is_nan() { 0x7fff } else { a >> 16 },
    );
    check("cvt.rn.relu.f16x2.f32 %d32, %a32, %b32;", "32", &f, |[a, b, ..]| {
        // NaN stays; minus zero and negative numbers become zero.
        let relu = |v: f32| {
            if v.is_nan() {
                0x7fff
            } else if v > 0.0 {
                half(v)
            } else {
                0
            }
        };
        relu(value(a)) << 16 | relu(value(b))
    });
    check("cvt.f32.f16 %d32, %a16;", "32", &f, |[a, ..]| bits(f16::from_bits(a as u16).to_f32()));
    check("cvt.f32.bf16 %d32, %a16;", "32", &f, |[a, ..]| (a & 0xffff) << 16);
    check(
        "cvt.f64.f32 %d64, %a32;",
        "64",
        &f.iter().copied().filter(|v| !value(v[0]).is_nan()).collect::<Vec<_>>(),
        |[a, ..]| f64::from(value(a)).to_bits(),
    );
    check("cvt.rna.tf32.f32 %d32, %a32;", "32", &f, |[a, ..]| {
        if value(a).is_nan() || value(a).is_infinite() { a } else { (a + 0x1000) & 0xffff_e000 }
    });
    check("cvt.rni.f32.f32 %d32, %a32;", "32", &f, |[a, ..]| bits(value(a).round_ties_even()));
    check("cvt.rmi.ftz.f32.f32 %d32, %a32;", "32", &f, |[a, ..]| bits(flushed(value(a)).floor()));
    check("cvt.sat.f32.f32 %d32, %a32;", "32", &f, |[a, ..]| {
        let v = value(a);
        bits(if v > 0.0 { v.min(1.0) } else { 0.0 })
    });
    check("cvt.rn.f16.f64 %d16, %a64;", "16", &doubles(), |[a, ..]| {
        u64::from(f16::from_f64(f64::from_bits(a)).to_bits())
    });
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

#[test]
fn lanes_exchange_values() {
    // One warp: inputs carry the lane in the low bits.
    let i: Vec<[u64; 4]> = (0..32).map(|lane| [100 + lane, lane * 7 % 32, lane % 3, lane]).collect();
    let value = |lane: u64| 100 + lane;
    check("shfl.sync.bfly.b32 %d32, %a32, 5, 31, -1;", "32", &i, |[.., lane]| value(lane ^ 5));
    check("shfl.sync.idx.b32 %d32, %a32, %b32, 31, -1;", "32", &i, |[_, source, ..]| value(source));
    check("shfl.sync.up.b32 %d32|%dp, %a32, 3, 0, -1;", "32", &i, |[.., lane]| {
        value(if lane >= 3 { lane - 3 } else { lane })
    });
    check("shfl.sync.up.b32 %d32|%dp, %a32, 3, 0, -1;", "p", &i, |[.., lane]| u64::from(lane >= 3));
    check("shfl.sync.down.b32 %d32|%dp, %a32, 4, 31, -1;", "p", &i, |[.., lane]| u64::from(lane < 28));
    // Segments of 8 lanes.
    check("shfl.sync.down.b32 %d32, %a32, 4, 0x181f, -1;", "32", &i, |[.., lane]| {
        value(if lane % 8 < 4 { lane + 4 } else { lane })
    });
    check("vote.sync.ballot.b32 %d32, %cp, -1;", "32", &i, |_| {
        (0..32).filter(|l| l % 3 != 0).fold(0, |m, l| m | 1 << l)
    });
    check("vote.sync.any.pred %dp, %cp, -1;", "p", &i, |_| 1);
    check("vote.sync.all.pred %dp, %cp, -1;", "p", &i, |_| 0);
    check("vote.sync.uni.pred %dp, !%cp, -1;", "p", &i, |_| 0);
    check("match.any.sync.b32 %d32, %c32, -1;", "32", &i, |[_, _, c, _]| {
        (0..32).filter(|l| l % 3 == c).fold(0, |m, l| m | 1 << l)
    });
    check("match.all.sync.b32 %d32|%dp, %c32, -1;", "p", &i, |_| 0);
    check("redux.sync.add.u32 %d32, %a32, -1;", "32", &i, |_| (0..32).map(value).sum());
    check("redux.sync.max.s32 %d32, %a32, -1;", "32", &i, |_| 131);
    check("activemask.b32 %d32;", "32", &i, |_| 0xffff_ffff);
    check("mov.u32 %d32, %laneid;", "32", &i, |[.., lane]| lane);
    check("mov.u32 %d32, %lanemask_lt;", "32", &i, |[.., lane]| (1 << lane) - 1);
    check("bar.red.popc.u32 %d32, 0, %cp;", "32", &i, |_| 21);
    check("bar.red.or.pred %dp, 0, 32, %cp;", "p", &i, |_| 1);
}

#[test]
fn ldmatrix_gives_each_lane_its_elements() {
    // Shared memory holds halves that count up; row r of each matrix is row r of an 8-column array.
    let prelude = "{ .shared .align 16 .b8 s[512]; .reg .b32 %x, %y; .reg .b16 %h;\nmad.lo.u32 %x, %t, 16, 0;\n\
                   mov.u32 %y, s;\nadd.u32 %y, %y, %x;\nshl.b32 %x, %t, 3;\n";
    let fill: String = (0..8)
        .map(|i| {
            format!("add.u32 %b32, %x, {i};\ncvt.u16.u32 %h, %b32;\nst.shared.b16 [%y+{}], %h;\n", 2 * i)
        })
        .collect();
    let run = |trans: &str, register: usize| {
        let body = format!(
            "{prelude}{fill}bar.sync 0;\n{{ .reg .b32 %m<4>;\n\
             ldmatrix.sync.aligned.m8n8.x4{trans}.shared.b16 {{%m0, %m1, %m2, %m3}}, [%y];\nmov.b32 %d32, %m{register}; }} }}"
        );
        evaluate(&body, "32", &[[0; 4]; 32])
    };
    for register in 0..4 {
        for lane in 0..32u64 {
            let (g, t) = (lane / 4, lane % 4);
            let element = |row: u64, column: u64| register as u64 * 64 + row * 8 + column;
            let plain = element(g, 2 * t) | element(g, 2 * t + 1) << 16;
            assert_eq!(run("", register)[lane as usize], plain);
            let transposed = element(2 * t, g) | element(2 * t + 1, g) << 16;
            assert_eq!(run(".trans", register)[lane as usize], transposed);
        }
    }
}

/// A matrix product through one `mma`: every fragment element at its place in the layout of the PTX ISA.
fn mma(shape: &str, registers: [usize; 3], half_bits: &dyn Fn(i32) -> u64, k: usize, tf32: bool) {
    let a = |row: usize, q: usize| (row * 5 + q * 3) as i32 % 7 - 3;
    let b = |q: usize, column: usize| (q * 2 + column * 5) as i32 % 9 - 4;
    let c = |row: usize, column: usize| (row * 8 + column) as i32 - 60;
    let words = |f: &dyn Fn(usize, usize, usize) -> i32, register: usize, lane: usize| {
        if tf32 {
            u64::from((f(register, lane, 0) as f32).to_bits() | 0x1abc)
        } else {
            half_bits(f(register, lane, 0)) | half_bits(f(register, lane, 1)) << 16
        }
    };
    let width = if tf32 { 1 } else { 2 };
    let fa = |r: usize, lane: usize, h: usize| {
        a(lane / 4 + 8 * (r % 2), width * (lane % 4) + h + 4 * width * (r / 2))
    };
    let fb = |r: usize, lane: usize, h: usize| b(width * (lane % 4) + h + 4 * width * r, lane / 4);
    let [na, nb, nc] = registers;
    let mut body = String::from("{ .reg .b32 %ma<4>, %mb<2>, %mc<4>, %md<4>;\n.reg .pred %is;\n");
    for (name, count) in [("ma", na), ("mb", nb), ("mc", nc)] {
        for r in 0..count {
            body += &format!("mov.b32 %{name}{r}, 0;\n");
        }
    }
    for lane in 0..32 {
        body += &format!("setp.eq.u32 %is, %t, {lane};\n");
        for r in 0..na {
            body += &format!("@%is mov.b32 %ma{r}, {};\n", words(&fa, r, lane));
        }
        for r in 0..nb {
            body += &format!("@%is mov.b32 %mb{r}, {};\n", words(&fb, r, lane));
        }
        for r in 0..nc {
            let value = |half: usize| c(lane / 4 + 8 * r, 2 * (lane % 4) + half);
            let word = if nc == 2 {
                half_bits(value(0)) | half_bits(value(1)) << 16
            } else {
                u64::from((c(lane / 4 + 8 * (r / 2), 2 * (lane % 4) + r % 2) as f32).to_bits())
            };
            body += &format!("@%is mov.b32 %mc{r}, {word};\n");
        }
    }
    let list =
        |name: &str, count: usize| (0..count).map(|i| format!("%{name}{i}")).collect::<Vec<_>>().join(", ");
    body += &format!(
        "mma.sync.aligned.{shape} {{{}}}, {{{}}}, {{{}}}, {{{}}};\n",
        list("md", nc),
        list("ma", na),
        list("mb", nb),
        list("mc", nc)
    );
    let expected =
        |row: usize, column: usize| c(row, column) + (0..k).map(|q| a(row, q) * b(q, column)).sum::<i32>();
    for r in 0..nc {
        let got = evaluate(&format!("{body}mov.b32 %d32, %md{r}; }}"), "32", &[[0; 4]; 32]);
        for (lane, &got) in got.iter().enumerate() {
            let want = if nc == 2 {
                let value = |half: usize| half_bits(expected(lane / 4 + 8 * r, 2 * (lane % 4) + half));
                value(0) | value(1) << 16
            } else {
                u64::from((expected(lane / 4 + 8 * (r / 2), 2 * (lane % 4) + r % 2) as f32).to_bits())
            };
            assert_eq!(got, want, "{shape}, register {r}, lane {lane}");
        }
    }
}

#[test]
fn mma_multiplies_in_every_shape() {
    let half = |v: i32| u64::from(f16::from_f32(v as f32).to_bits());
    let brain = |v: i32| u64::from(bf16::from_f32(v as f32).to_bits());
    mma("m16n8k16.row.col.f32.f16.f16.f32", [4, 2, 4], &half, 16, false);
    mma("m16n8k16.row.col.f32.bf16.bf16.f32", [4, 2, 4], &brain, 16, false);
    mma("m16n8k8.row.col.f32.f16.f16.f32", [2, 1, 4], &half, 8, false);
    mma("m16n8k8.row.col.f32.bf16.bf16.f32", [2, 1, 4], &brain, 8, false);
    mma("m16n8k16.row.col.f16.f16.f16.f16", [4, 2, 2], &half, 16, false);
    mma("m16n8k8.row.col.f16.f16.f16.f16", [2, 1, 2], &half, 8, false);
    // The low 13 bits of TF32 operands are set, and must not count.
    mma("m16n8k8.row.col.f32.tf32.tf32.f32", [4, 2, 4], &half, 8, true);
    mma("m16n8k4.row.col.f32.tf32.tf32.f32", [2, 1, 4], &half, 4, true);
}
