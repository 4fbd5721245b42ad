//! Integer arithmetic and bits.

use crate::harness::{check, double, inputs, short, word};

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
