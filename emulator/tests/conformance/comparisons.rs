//! `setp` and `set`.

use half::f16;

use crate::harness::{check, floats, inputs};

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
