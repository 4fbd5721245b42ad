//! `cvt`.

use half::{bf16, f16};

use crate::harness::{bits, check, doubles, floats, flushed, inputs};

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
