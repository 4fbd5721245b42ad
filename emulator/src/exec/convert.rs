//! `cvt`: the frequent conversions as vector loops, the others one lane at a time.

use super::code::{Core, Flow, Handler, Level};
use super::lane::{Lane, lanes, warp};
use super::registers::Slot;
use crate::ir::op::Op;
use crate::ir::types::Ty;
use crate::numeric::convert::{Conversion, pack_bf16, pack_f16};
use crate::numeric::float::{Round, canonical};
use crate::numeric::half::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16, f32_to_tf32};

/// The handler of `cvt`.
pub(crate) fn convert(c: Conversion, level: Level) -> Handler {
    let plain = !(c.ftz || c.sat || c.relu || c.satfinite);
    let nearest = plain && c.round == Round::Nearest && !c.integral;
    match (c.to, c.from) {
        (Ty::U64 | Ty::S64, Ty::U32) if plain => lanes!(level, |a: u32| -> u64 { u64::from(a) }),
        (Ty::U64 | Ty::S64, Ty::S32) if plain => lanes!(level, |a: i32| -> i64 { i64::from(a) }),
        (Ty::U32 | Ty::S32, Ty::U64 | Ty::S64) if plain => lanes!(level, |a: u64| -> u32 { a as u32 }),
        (Ty::U32 | Ty::S32, Ty::U16) if plain => lanes!(level, |a: u16| -> u32 { u32::from(a) }),
        (Ty::U32 | Ty::S32, Ty::S16) if plain => lanes!(level, |a: i16| -> i32 { i32::from(a) }),
        (Ty::U16, Ty::U32 | Ty::S32) if plain => lanes!(level, |a: u32| -> u16 { a as u16 }),
        (Ty::F32, Ty::F16) if nearest => lanes!(level, |a: u16| -> f32 { canonical(f16_to_f32(a)) }),
        (Ty::F32, Ty::Bf16) if nearest => lanes!(level, |a: u16| -> f32 { bf16_to_f32(a) }),
        (Ty::F16, Ty::F32) if nearest => lanes!(level, |a: f32| -> u16 { f32_to_f16(a) }),
        (Ty::Bf16, Ty::F32) if nearest => lanes!(level, |a: f32| -> u16 { f32_to_bf16(a) }),
        (Ty::Tf32, Ty::F32) if plain && c.round == Round::Away => {
            lanes!(level, |a: f32| -> u32 { f32_to_tf32(a) })
        }
        (Ty::F32, Ty::S32) if nearest => lanes!(level, |a: i32| -> f32 { a as f32 }),
        (Ty::F32, Ty::U32) if nearest => lanes!(level, |a: u32| -> f32 { a as f32 }),
        (Ty::S32, Ty::F32) if plain && c.round == Round::Zero => lanes!(level, |a: f32| -> i32 { a as i32 }),
        // Pairs of one width to pairs of the other.
        (Ty::E4m3x2 | Ty::E5m2x2, _) | (_, Ty::E4m3x2 | Ty::E5m2x2) => warp!(level, |core, inst| {
            let Op::Convert(pair) = inst.op else { return Flow::Next };
            let [to, from, ..] = inst.slots;
            let c = Conversion { to: element(pair.to), from: element(pair.from), ..pair };
            let (wide, narrow) = (8 * c.from.bytes(), 8 * c.to.bytes());
            let values = u32::read(core, from);
            let half = |value: u32| c.apply(u64::from(value & ((1 << wide) - 1))) as u32;
            let out = values.map(|pair| half(pair >> wide) << narrow | half(pair));
            let written = u32::written(core, from);
            u32::write(core, to, &out, written);
            Flow::Next
        }),
        _ => warp!(level, |core, inst| {
            let Op::Convert(c) = inst.op else { return Flow::Next };
            let [to, from, ..] = inst.slots;
            let (values, written) = read(core, from, c.from);
            let mut out = [0u64; 32];
            for lane in 0..32 {
                if core.warp.mask >> lane & 1 == 1 {
                    out[lane] = c.apply(values[lane]);
                }
            }
            write(core, to, c.to, &out, written);
            Flow::Next
        }),
    }
}

/// The type of one of a pair.
fn element(pair: Ty) -> Ty {
    match pair {
        Ty::E4m3x2 => Ty::E4m3,
        Ty::E5m2x2 => Ty::E5m2,
        _ => Ty::F16,
    }
}

/// The handler of `cvt` with two operands.
pub(crate) fn pack(c: Conversion, level: Level) -> Handler {
    let plain = !(c.relu || c.satfinite) && c.round == Round::Nearest;
    match c.to {
        Ty::F16 if plain => lanes!(level, |a: f32, b: f32| -> u32 { pack_f16(a, b) }),
        Ty::Bf16 if plain => lanes!(level, |a: f32, b: f32| -> u32 { pack_bf16(a, b) }),
        _ => warp!(level, |core, inst| {
            let Op::ConvertPack(c) = inst.op else { return Flow::Next };
            let [to, sa, sb, ..] = inst.slots;
            let (a, b) = (u32::read(core, sa), u32::read(core, sb));
            let mut out = [0u32; 32];
            for lane in 0..32 {
                let half = |x: u32| c.apply(u64::from(x)) as u32;
                out[lane] = half(a[lane]) << (8 * c.to.bytes()) | half(b[lane]);
            }
            let written = u32::written(core, sa) & u32::written(core, sb);
            u32::write(core, to, &out, written);
            Flow::Next
        }),
    }
}

/// A register's lanes as 64 bits each, and which were written.
fn read(core: &Core<'_>, slot: Slot, ty: Ty) -> ([u64; 32], u32) {
    if ty.bytes() == 8 {
        (*u64::read(core, slot), u64::written(core, slot))
    } else {
        (u32::read(core, slot).map(u64::from), u32::written(core, slot))
    }
}

fn write(core: &mut Core<'_>, slot: Slot, ty: Ty, values: &[u64; 32], written: u32) {
    if ty.bytes() == 8 {
        u64::write(core, slot, values, written);
    } else {
        u32::write(core, slot, &values.map(|v| v as u32), written);
    }
}
