//! Video instructions, and the rarer ones on integers, halves and doubles.

use crate::common::evaluate;
use crate::harness::{check, doubles, floats, inputs, word};

fn clamp(value: i64, bits: u32, signed: bool) -> i64 {
    if signed {
        value.clamp(-1 << (bits - 1), (1 << (bits - 1)) - 1)
    } else {
        value.clamp(0, (1 << bits) - 1)
    }
}

#[test]
fn scalar_video_instructions() {
    let i = inputs();
    let s = |x: u32| i64::from(x.cast_signed());
    let u = |x: u32| i64::from(x);
    word! { i;
        "vadd.s32.s32.s32 %d32, %a32, %b32;": |a, b, c| a.wrapping_add(b);
        "vsub.s32.u32.u32.sat %d32, %a32, %b32;": |a, b, c| clamp(u(a) - u(b), 32, true);
        "vabsdiff.u32.s32.s32.add %d32, %a32, %b32, %c32;": |a, b, c| ((s(a) - s(b)).unsigned_abs() as u32).wrapping_add(c);
        "vmin.s32.s32.u32 %d32, %a32, %b32;": |a, b, c| s(a).min(u(b));
        "vmax.u32.u32.u32.min %d32, %a32, %b32, %c32;": |a, b, c| a.max(b).min(c);
        "vmax.s32.s32.s32.max %d32, %a32, %b32, %c32;": |a, b, c| s(a).max(s(b)).max(s(c));
        "vadd.s32.s32.s32 %d32, %a32.b3, %b32.h1;": |a, b, c|
            i64::from((a >> 24) as u8 as i8) + i64::from((b >> 16) as u16 as i16);
        "vadd.u32.u32.u32.sat %d32.b1, %a32.b0, %b32.b2, %c32;":
            |a, b, c| c & !0xff00 | ((a & 0xff) + (b >> 16 & 0xff)).min(255) << 8;
        "vshl.u32.u32.u32.clamp %d32, %a32, %b32;": |a, b, c| if b > 31 { 0 } else { a << b };
        "vshl.u32.u32.u32.wrap.add %d32, %a32, %b32, %c32;": |a, b, c| (a << (b & 31)).wrapping_add(c);
        "vshr.s32.s32.u32.clamp %d32, %a32, %b32;": |a, b, c| s(a) >> b.min(32);
        "vshr.u32.u32.u32.wrap %d32, %a32.h1, %b32;": |a, b, c| (a >> 16) >> (b & 31);
        "vmad.s32.s32.s32 %d32, %a32, %b32, %c32;": |a, b, c| a.wrapping_mul(b).wrapping_add(c);
        "vmad.s32.s32.s32.po.shr15 %d32, %a32.h0, %b32.h0, %c32;":
            |a, b, c| (i64::from(a as i16) * i64::from(b as i16) + s(c) + 1) >> 15;
        "vset.s32.u32.lt %d32, %a32, %b32;": |a, b, c| u32::from(s(a) < u(b));
        "vset.u32.u32.ge.add %d32, %a32.b0, %b32.b0, %c32;": |a, b, c| u32::from(a & 0xff >= b & 0xff).wrapping_add(c);
    }
}

/// What the PTX ISA says otherwise, or leaves open.
#[test]
fn scalar_video_instructions_do_what_an_h100_does() {
    let i = inputs();
    let s = |x: u32| i64::from(x.cast_signed());
    let u = |x: u32| i64::from(x);
    // Of these the smaller or larger is taken as unsigned numbers of 64 bits, or signed ones.
    let unsigned = |value: i64, c: u32| (value.cast_unsigned(), u64::from(c));
    word! { i;
        // Sums wrap above the largest unsigned number.
        "vadd.u32.u32.u32.sat %d32, %a32, %b32;": |a, b, c| a.wrapping_add(b);
        "vadd.u32.s32.u32.sat %d32, %a32, %b32;": |a, b, c| (s(a) + u(b)).max(0);
        "vsub.u32.u32.s32.sat.add %d32, %a32, %b32, %c32;": |a, b, c| (u(a) - s(b)).max(0) + u(c);
        "vabsdiff.u32.s32.u32.sat %d32, %a32, %b32;": |a, b, c| (s(a) - u(b)).unsigned_abs();
        "vabsdiff.s32.s32.u32.sat %d32, %a32, %b32;": |a, b, c| (s(a) - u(b)).abs().min(0x7fff_ffff);
        // Negative results become the largest number of a part.
        "vsub.u32.u32.u32.sat %d32.b2, %a32, %b32, %c32;":
            |a, b, c| c & !0xff_0000 | if a < b { 0xff } else { (a - b).min(0xff) } << 16;
        "vmin.s32.s32.s32.sat %d32.h0, %a32, %b32, %c32;": |a, b, c|
            c & !0xffff | a.cast_signed().min(b.cast_signed()).cast_unsigned().min(0x7fff);
        // Shifts clamp to 32 bits, of 34 to the left.
        "vshr.s32.s32.u32.sat.clamp %d32.b1, %a32, %b32, %c32;":
            |a, b, c| c & !0xff00 | ((s(a) >> b.min(32)) as u32 & 0xff) << 8;
        "vshl.u32.u32.u32.sat.wrap %d32, %a32, %b32;": |a, b, c| match (u64::from(a) << (b & 31)) >> 32 & 3 {
            0 => a << (b & 31),
            1 => u32::MAX,
            _ => 0,
        };
        "vshl.s32.s32.u32.sat.clamp %d32, %a32, %b32;":
            |a, b, c| clamp((s(a) << b.min(32)) << 30 >> 30, 32, true);
        // The upper half of a result goes to the upper half.
        "vadd.s32.u32.u32 %d32.h1, %a32, %b32.h0, %c32;":
            |a, b, c| c & 0xffff | a.wrapping_add(b & 0xffff) & 0xffff_0000;
        "vset.u32.u32.ge %d32.h1, %a32, %b32, %c32;": |a, b, c| c & 0xffff;
        "vsub.s32.s32.s32.sat %d32.h1, %a32, %b32, %c32;": |a, b, c| c & 0xffff;
        "vshl.s32.s32.u32.sat.clamp %d32.h1, %a32, %b32, %c32;":
            |a, b, c| c & 0xffff | clamp((s(a) << b.min(32)) << 30 >> 30, 32, true) as u32 & 0xffff_0000;
        // Comparisons with the last operand have 64 bits.
        "vadd.u32.u32.u32.min %d32, %a32, %b32, %c32;": |a, b, c| {
            let (sum, c) = unsigned(s(a.wrapping_add(b)), c);
            sum.min(c)
        };
        "vadd.s32.u32.u32.max %d32, %a32, %b32, %c32;": |a, b, c| s(a.wrapping_add(b)).max(s(c));
        "vsub.u32.s32.s32.sat.max %d32, %a32, %b32, %c32;": |a, b, c| {
            let (difference, c) = unsigned(s((s(a) - s(b)).max(0) as u32), c);
            difference.max(c)
        };
        "vabsdiff.u32.u32.s32.min %d32, %a32, %b32, %c32;": |a, b, c| (u(a) - s(b)).abs().min(u(c));
        "vmax.s32.u32.u32.min %d32, %a32, %b32, %c32;": |a, b, c| u(a.max(b)).min(s(c));
        "vmin.u32.s32.s32.max %d32, %a32, %b32, %c32;": |a, b, c| {
            let (smaller, c) = unsigned(s(a).min(s(b)), c);
            smaller.max(c)
        };
        "vshl.s32.u32.u32.clamp.min %d32, %a32, %b32, %c32;":
            |a, b, c| (u64::from(a) << b.min(32)).cast_signed().min(s(c));
        "vshl.u32.s32.u32.wrap.max %d32, %a32, %b32, %c32;": |a, b, c| {
            let (shifted, c) = unsigned(s(a) << (b & 31), c);
            shifted.max(c)
        };
        "vshr.u32.u32.u32.sat.wrap.min %d32, %a32, %b32, %c32;": |a, b, c| {
            let (shifted, c) = unsigned(s(a >> (b & 31)), c);
            shifted.min(c)
        };
        // The type of the first operand says how.
        "vset.s32.u32.lt.min %d32, %a32, %b32, %c32;": |a, b, c| i64::from(s(a) < u(b)).min(s(c));
        "vset.u32.s32.lt.max %d32, %a32, %b32, %c32;": |a, b, c| i64::from(u(a) < s(b)).max(u(c));
        // All operands are signed.
        "vmad.u32.u32.u32.sat %d32, %a32, %b32, %c32;": |a, b, c| clamp(s(a) * s(b) + s(c), 32, false);
        "vmad.u32.u32.u32.sat.shr7 %d32, %a32, %b32, %c32;":
            |a, b, c| ((s(a) * s(b) + s(c)).cast_unsigned() >> 7).min(u64::from(u32::MAX));
        "vmad.s32.u32.u32.po.shr15 %d32, %a32.h1, %b32.b0, %c32;":
            |a, b, c| (u(a >> 16) * u(b & 0xff) + s(c) + 1) >> 15;
        "vmad.u32.s32.u32.po.sat.shr15 %d32, %a32, %b32, %c32;":
            |a, b, c| clamp((s(a) * s(b) + s(c) + 1) >> 15, 32, true);
    }
}

#[test]
fn results_recorded_of_video_instructions() {
    for (body, [a, b, c], expected) in [
        ("vadd.u32.u32.u32.sat %d32, %a32, %b32;", [0xffff_ffff, 0xffff_ffff, 0], 0xffff_fffe),
        ("vadd.s32.s32.s32.sat %d32.b2, %a32.h1, %b32, %c32;", [2, 0xffd0_f3a3, 0x14], 0x7f_0014),
        ("vadd.u32.u32.s32 %d32.h1, %a32.b0, %b32.b1, %c32;", [0, 0x5_f6f5, 0x72_5be8], 0xffff_5be8),
        ("vadd.u32.u32.u32.min %d32, %a32, %b32, %c32;", [0x20, 0x8d17_3639, 0xffff_fff8], 0xffff_fff8),
        ("vmax.s32.u32.u32.min %d32, %a32, %b32, %c32;", [2, 0xffd0_f3a3, 0x14], 0x14),
        ("vshl.u32.s32.u32.sat.clamp %d32, %a32, %b32;", [2, 0xffd0_f3a3, 0x14], 0),
        ("vmad.u32.u32.u32.sat.shr15 %d32, %a32, %b32, %c32;", [1, 0x3811_6a47, 0xaad2_eea1], 0xffff_ffff),
        ("vset.s32.s32.ne.min %d32, %a32, %b32, %c32;", [1, 0x3811_6a47, 0xaad2_eea1], 0xaad2_eea1),
        ("vadd4.u32.s32.s32.add %d32, %a32, %b32, %c32;", [0x80, 0x80, 0], 0xffff_ff00),
        ("fns.b32 %d32, %a32, %b32, %c32;", [0x7f, 0x7f, 0x8000_0000], 0),
        ("fns.b32 %d32, %a32, %b32, %c32;", [0x8000_0000, 0x54fb_f746, 0x8000_0000], 0),
        ("fns.b32 %d32, %a32, %b32, %c32;", [0x8000_0000, 0x54fb_f746, 0x8000_0001], 0xffff_ffff),
        ("fns.b32 %d32, %a32, %b32, %c32;", [0xffff_ffff, 32, 1], 0xffff_ffff),
        ("fns.b32 %d32, %a32, %b32, %c32;", [0xffff_ffff, 31, 0], 31),
        ("fns.b32 %d32, %a32, %b32, %c32;", [0x7fff_ffff, 31, 0], 0xffff_ffff),
        ("fns.b32 %d32, %a32, %b32, %c32;", [0xffff_ffff, 31, 0xffff_ffe0], 0),
        ("fns.b32 %d32, %a32, %b32, %c32;", [0xffff_ffff, 31, 0xffff_ffdf], 0xffff_ffff),
    ] {
        check(body, "32", &[[a, b, c, 0]], |_| expected);
    }
}

/// Parts of a word.
fn parts(word: u32, lanes: u32, signed: bool) -> Vec<i64> {
    let bits = 32 / lanes;
    let part = |i: u32| {
        let value = i64::from(word) >> (i * bits) & ((1 << bits) - 1);
        if signed { value << (64 - bits) >> (64 - bits) } else { value }
    };
    (0..lanes).map(part).collect()
}

fn joined(values: &[i64]) -> u64 {
    let bits = 32 / values.len();
    values.iter().rev().fold(0, |word, &v| word << bits | v.cast_unsigned() & ((1 << bits) - 1))
}

type Function = fn(i64, i64) -> i64;

#[test]
fn video_instructions_on_halves_and_bytes() {
    let functions: [(&str, Function); 6] = [
        ("vadd", |a, b| a + b),
        ("vsub", |a, b| a - b),
        ("vavrg", |a, b| (a + b + i64::from(a + b >= 0)) >> 1),
        ("vabsdiff", |a, b| (a - b).abs()),
        ("vmin", i64::min),
        ("vmax", i64::max),
    ];
    let i = inputs();
    for (name, f) in functions {
        for lanes in [2, 4] {
            for (ty, signed) in [("u32", false), ("s32", true)] {
                let both = |a: u64, b: u64| {
                    let pairs =
                        parts(a as u32, lanes, signed).into_iter().zip(parts(b as u32, lanes, signed));
                    pairs.map(|(a, b)| f(a, b)).collect::<Vec<_>>()
                };
                let form = |rest: &str| format!("{name}{lanes}.{ty}.{ty}.{ty}{rest} %d32, %a32, %b32, %c32;");
                check(&form(""), "32", &i, |[a, b, ..]| joined(&both(a, b)));
                check(&form(".sat"), "32", &i, |[a, b, ..]| {
                    let clamped: Vec<_> = both(a, b).iter().map(|&v| clamp(v, 32 / lanes, signed)).collect();
                    joined(&clamped)
                });
                // A sum takes the results with the bits that have no place in a part.
                check(&form(".add"), "32", &i, |[a, b, c, _]| {
                    u64::from(both(a, b).iter().fold(c as u32, |sum, &v| sum.wrapping_add(v as u32)))
                });
            }
        }
    }
    word! { i;
        "vadd2.u32.u32.u32 %d32.h1, %a32.h32, %b32.h01, %c32;":
            |a, b, c| c & 0xffff | ((b >> 16).wrapping_add(a & 0xffff) & 0xffff) << 16;
        "vsub4.u32.u32.u32 %d32.b20, %a32.b0123, %b32.b7654, %c32;": |a, b, c| {
            let (x, y) = (a.swap_bytes().to_le_bytes(), b.to_le_bytes());
            c & 0xff00_ff00 | u32::from(x[0].wrapping_sub(y[0])) | u32::from(x[2].wrapping_sub(y[2])) << 16
        };
        "vset4.s32.s32.lt.add %d32, %a32, %b32, %c32;": |a, b, c|
            parts(a, 4, true).iter().zip(parts(b, 4, true)).fold(c, |n, (&a, b)| n.wrapping_add(u32::from(a < b)));
        "vset2.u32.u32.ne %d32, %a32, %b32, %c32;": |a, b, c|
            u32::from(a & 0xffff != b & 0xffff) | u32::from(a >> 16 != b >> 16) << 16;
    }
}

/// The upper 32 of the 48 bits of a product of 24-bit numbers.
fn unsigned24(a: u32, b: u32) -> u32 {
    ((u64::from(a & 0xff_ffff) * u64::from(b & 0xff_ffff)) >> 16) as u32
}

fn signed24(a: u32, b: u32) -> i32 {
    ((i64::from((a as i32) << 8 >> 8) * i64::from((b as i32) << 8 >> 8)) >> 16) as i32
}

#[test]
fn rarer_instructions_on_integers() {
    let i = inputs();
    let halves = |a: u32, b: u32, f: fn(i16, i16) -> i16| {
        let half =
            |shift: u32| u32::from(f((a >> shift) as i16, (b >> shift) as i16).cast_unsigned()) << shift;
        half(0) | half(16)
    };
    word! { i;
        "add.u16x2 %d32, %a32, %b32;": |a, b, c| halves(a, b, i16::wrapping_add);
        "add.s16x2 %d32, %a32, %b32;": |a, b, c| halves(a, b, i16::wrapping_add);
        "min.s16x2 %d32, %a32, %b32;": |a, b, c| halves(a, b, i16::min);
        "max.relu.s16x2 %d32, %a32, %b32;": |a, b, c| halves(a, b, |a, b| a.max(b).max(0));
        "min.relu.s16x2 %d32, %a32, %b32;": |a, b, c| halves(a, b, |a, b| a.min(b).max(0));
        "max.s16x2 %d32, %a32, %b32;": |a, b, c| halves(a, b, i16::max);
        "min.u16x2 %d32, %a32, %b32;": |a, b, c| (a & 0xffff).min(b & 0xffff) | (a >> 16).min(b >> 16) << 16;
        "max.u16x2 %d32, %a32, %b32;": |a, b, c| (a & 0xffff).max(b & 0xffff) | (a >> 16).max(b >> 16) << 16;
        "min.relu.s32 %d32, %a32, %b32;": |a, b, c| (a as i32).min(b as i32).max(0);
        "max.relu.s32 %d32, %a32, %b32;": |a, b, c| (a as i32).max(b as i32).max(0);
        "mul24.hi.u32 %d32, %a32, %b32;": |a, b, c| unsigned24(a, b);
        "mul24.hi.s32 %d32, %a32, %b32;": |a, b, c| signed24(a, b);
        "mad24.hi.u32 %d32, %a32, %b32, %c32;":
            |a, b, c| unsigned24(a, b).wrapping_add(c);
        "mad24.hi.sat.s32 %d32, %a32, %b32, %c32;": |a, b, c|
            signed24(a, b).saturating_add(c as i32);
        "mad24.hi.s32 %d32, %a32, %b32, %c32;": |a, b, c|
            signed24(a, b).wrapping_add(c as i32);
        "mad.hi.sat.s32 %d32, %a32, %b32, %c32;":
            |a, b, c| (((i64::from(a as i32) * i64::from(b as i32)) >> 32) as i32).saturating_add(c as i32);
        "szext.clamp.u32 %d32, %a32, %b32;": |a, b, c| if b > 31 { a } else { a & ((1 << b) - 1) };
        "szext.wrap.u32 %d32, %a32, %b32;": |a, b, c| a & ((1 << (b & 31)) - 1);
        "szext.clamp.s32 %d32, %a32, %b32;":
            |a, b, c| if b > 31 { a as i32 } else if b == 0 { 0 } else { (a as i32) << (32 - b) >> (32 - b) };
        "szext.wrap.s32 %d32, %a32, %b32;":
            |a, b, c| if b & 31 == 0 { 0 } else { (a as i32) << (32 - (b & 31)) >> (32 - (b & 31)) };
        "and.b32 %b32, %b32, 31; and.b32 %c32, %c32, 15; sub.s32 %c32, %c32, 7; \
            fns.b32 %d32, %a32, %b32, %c32;": |a, b, c| {
            let (base, n) = (b & 31, (c & 15) as i32 - 7);
            let set: Vec<u32> = match n {
                0 => (base..=base).collect(),
                1.. => (base..32).collect(),
                _ => (0..=base).rev().collect(),
            };
            let mut set = set.into_iter().filter(|&bit| a >> bit & 1 == 1);
            set.nth(n.unsigned_abs().saturating_sub(1) as usize).unwrap_or(u32::MAX)
        };
        "lop3.or.b32 %d32|%qp, %a32, %b32, %c32, 0x80, 0; \
            selp.b32 %d32, 1, 0, %qp;": |a, b, c| u32::from(a & b & c != 0);
        "setp.lt.u32 %ep, %a32, %b32; lop3.and.b32 %d32|%qp, %a32, %b32, %c32, 0xfe, %ep;
         selp.b32 %e32, 1, 0, %qp; add.u32 %d32, %d32, %e32;":
            |a, b, c| (a | b | c).wrapping_add(u32::from(a < b && a | b | c != 0));
    }
    for (a_signed, b_signed, high) in (0..8).map(|n| (n & 1 == 1, n & 2 == 2, n & 4 == 4)) {
        let name = |signed| if signed { "s32" } else { "u32" };
        let half = if high { "hi" } else { "lo" };
        let body = format!("dp2a.{half}.{}.{} %d32, %a32, %b32, %c32;", name(a_signed), name(b_signed));
        check(&body, "32", &i, |[a, b, c, _]| {
            let (a, b) = (parts(a as u32, 2, a_signed), parts(b as u32, 4, b_signed));
            let first = if high { 2 } else { 0 };
            let sum = i64::from(c as u32) + a[0] * b[first] + a[1] * b[first + 1];
            u64::from(sum as u32)
        });
    }
}

#[test]
fn comparisons_of_halves_give_predicates_and_numbers() {
    let inputs: Vec<[u64; 4]> = [0x3c00_4000u64, 0x4000_3c00, 0x7e00_3c00, 0xbc00_0000, 0x3c00_3c00]
        .iter()
        .flat_map(|&a| [0x3c00_3c00u64, 0x8000_4000, 0x7e00_7e00].map(|b| [a, b, 0, 0]))
        .collect();
    let value = |word: u64, half: u32| half::f16::from_bits((word >> (16 * half)) as u16).to_f32();
    let holds = |a, b, half| value(a, half) < value(b, half);
    let both = |a, b, yes: u64| (u64::from(holds(a, b, 0)) * yes) | ((u64::from(holds(a, b, 1)) * yes) << 16);
    check("set.lt.f16x2.f16x2 %d32, %a32, %b32;", "32", &inputs, |[a, b, ..]| both(a, b, 0x3c00));
    check("set.lt.u32.f16x2 %d32, %a32, %b32;", "32", &inputs, |[a, b, ..]| both(a, b, 0xffff));
    check(
        "setp.lt.f16x2 %ep|%qp, %a32, %b32; selp.b32 %d32, 1, 0, %ep; selp.b32 %e32, 2, 0, %qp; or.b32 %d32, %d32, %e32;",
        "32",
        &inputs,
        |[a, b, ..]| u64::from(holds(a, b, 0)) | u64::from(holds(a, b, 1)) << 1,
    );
    check("setp.geu.f16x2 %ep|%qp, %a32, %b32; selp.b32 %d32, 1, 0, %ep;", "32", &inputs, |[a, b, ..]| {
        u64::from(!holds(a, b, 0))
    });
    check("set.lt.f16.f16 %d16, %a16, %b16;", "16", &inputs, |[a, b, ..]| u64::from(holds(a, b, 0)) * 0x3c00);
    check("set.lt.u16.f16 %d16, %a16, %b16;", "16", &inputs, |[a, b, ..]| u64::from(holds(a, b, 0)) * 0xffff);
    let brain = |word: u64, half: u32| half::bf16::from_bits((word >> (16 * half)) as u16).to_f32();
    check("set.ltu.bf16x2.bf16x2 %d32, %a32, %b32;", "32", &inputs, |[a, b, ..]| {
        let yes = |half| {
            u64::from(brain(a, half).partial_cmp(&brain(b, half)).is_none_or(std::cmp::Ordering::is_lt))
                * 0x3f80
        };
        yes(0) | yes(1) << 16
    });
}

/// Whether `down` and `up` are neighbours, or the same, and `zero` is the one nearer to 0.
fn brackets(down: f64, up: f64, zero: f64, next: impl Fn(f64) -> f64) -> bool {
    if down.is_nan() || up.is_nan() {
        return down.is_nan() && up.is_nan() && zero.is_nan();
    }
    let near = if down.abs() < up.abs() { down } else { up };
    (down == up || next(down) == up) && zero == near
}

#[test]
fn directed_roundings_bracket_the_exact_value() {
    let of = |form: &str, direction: &str, suffix: &str, inputs: &[[u64; 4]]| {
        evaluate(&form.replace("ROUND", direction), suffix, inputs)
    };
    for form in [
        "add.ROUND.f64 %d64, %a64, %b64;",
        "sub.ROUND.f64 %d64, %a64, %b64;",
        "mul.ROUND.f64 %d64, %a64, %b64;",
        "div.ROUND.f64 %d64, %a64, %b64;",
        "rcp.ROUND.f64 %d64, %a64;",
        "sqrt.ROUND.f64 %d64, %a64;",
        "fma.ROUND.f64 %d64, %a64, %b64, %c64;",
        "mad.ROUND.f64 %d64, %a64, %b64, %c64;",
    ] {
        let inputs = doubles();
        let [down, up, zero, near] = ["rm", "rp", "rz", "rn"].map(|d| of(form, d, "64", &inputs));
        let mut inexact = 0;
        for i in 0..inputs.len() {
            let [d, u, z, n] = [down[i], up[i], zero[i], near[i]].map(f64::from_bits);
            assert!(brackets(d, u, z, f64::next_up), "{form} of {:x?}: {d:e} {u:e} {z:e}", inputs[i]);
            assert!(n == d || n == u || n.is_nan(), "{form} of {:x?}: {n:e}", inputs[i]);
            inexact += usize::from(d != u);
        }
        assert!(inexact > 50, "{form}: {inexact}");
    }
    for form in
        ["div.ROUND.f32 %d32, %a32, %b32;", "rcp.ROUND.f32 %d32, %a32;", "sqrt.ROUND.ftz.f32 %d32, %a32;"]
    {
        let inputs = floats();
        let [down, up, zero] = ["rm", "rp", "rz"].map(|d| of(form, d, "32", &inputs));
        for i in 0..inputs.len() {
            let [d, u, z] = [down[i], up[i], zero[i]].map(|bits| f64::from(f32::from_bits(bits as u32)));
            let next = |x: f64| f64::from((x as f32).next_up());
            assert!(brackets(d, u, z, next), "{form} of {:x?}: {d:e} {u:e} {z:e}", inputs[i]);
        }
    }
}

#[test]
fn coarse_reciprocals_of_doubles_are_within_their_bound() {
    let inputs = doubles();
    for (form, f) in [
        ("rcp.approx.ftz.f64 %d64, %a64;", (|x: f64| 1.0 / x) as fn(f64) -> f64),
        ("rsqrt.approx.ftz.f64 %d64, %a64;", |x: f64| 1.0 / x.sqrt()),
    ] {
        for (input, got) in inputs.iter().zip(evaluate(form, "64", &inputs)) {
            let (x, got) = (f64::from_bits(input[0]), f64::from_bits(got));
            let exact = f(x);
            // 20 bits of both are kept: two errors of 2^-20.
            let close =
                (got - exact).abs() <= exact.abs() * 2f64.powi(-19) || !exact.is_normal() || x.is_subnormal();
            assert!(
                close && got.to_bits() << 32 == 0 || got.is_nan() == exact.is_nan(),
                "{form} of {x:e}: {got:e}"
            );
        }
    }
}
