//! Video instructions: on bytes and halves of words, with saturation and a second operation.

use super::code::{Flow, Handler, Level};
use super::lane::{Lane, warp};
use crate::ir::op::{Op, Relation, Video, VideoKind, VideoMerge, VideoSimd};

/// A part of a word, extended by its sign or by zeros.
fn part(word: u32, first: u8, bits: u8, signed: bool) -> i64 {
    let value = i64::from(word >> first) & ((1 << bits) - 1);
    if signed { value << (64 - bits) >> (64 - bits) } else { value }
}

/// A result cut or clamped to so many bits.
fn fitted(value: i64, bits: u8, signed: bool, sat: bool) -> i64 {
    if !sat {
        return value;
    }
    match signed {
        true => value.clamp(-1 << (bits - 1), (1 << (bits - 1)) - 1),
        false => value.clamp(0, (1 << bits) - 1),
    }
}

fn compute(kind: VideoKind, a: i64, b: i64, c: i64) -> i64 {
    match kind {
        VideoKind::Add => a + b,
        VideoKind::Sub => a - b,
        VideoKind::AbsDiff => (a - b).abs(),
        VideoKind::Min => a.min(b),
        VideoKind::Max => a.max(b),
        VideoKind::Shl => a << b,
        VideoKind::Shr => a >> b,
        VideoKind::Average => (a + b + i64::from(a + b >= 0)) >> 1,
        VideoKind::Mad { shift, plus_one, .. } => {
            // The sum has up to 66 bits.
            let sum = i128::from(a) * i128::from(b) + i128::from(c) + i128::from(plus_one);
            (sum >> shift).clamp(i128::from(i64::MIN), i128::from(i64::MAX)) as i64
        }
        VideoKind::Set(relation) => i64::from(match relation {
            Relation::Equal => a == b,
            Relation::Less => a < b,
            Relation::LessEqual => a <= b,
            Relation::Greater => a > b,
            Relation::GreaterEqual => a >= b,
            _ => a != b,
        }),
    }
}

fn scalar_result(v: Video, a: u32, b: u32, c: u32) -> u32 {
    let [signed, a_signed, b_signed] = v.signed;
    let x = part(a, v.select[0].0, v.select[0].1, a_signed);
    let mut y = part(b, v.select[1].0, v.select[1].1, b_signed);
    if matches!(v.kind, VideoKind::Shl | VideoKind::Shr) {
        y = if v.wrap { y & 31 } else { y.clamp(0, 32) };
    }
    let is_mad = matches!(v.kind, VideoKind::Mad { .. });
    let z = if is_mad { part(c, 0, 32, a_signed || b_signed) } else { 0 };
    let bits = if let VideoMerge::Insert(_, bits) = v.merge { bits } else { 32 };
    let result = fitted(compute(v.kind, x, y, z), bits, signed, v.sat);
    let word = result as u32;
    let other = part(c, 0, 32, signed);
    let result = part(word, 0, 32, signed);
    match v.merge {
        VideoMerge::None => word,
        VideoMerge::Add => word.wrapping_add(c),
        VideoMerge::Min => result.min(other) as u32,
        VideoMerge::Max => result.max(other) as u32,
        VideoMerge::Insert(first, bits) => {
            let field = (((1u64 << bits) - 1) as u32) << first;
            c & !field | word << first & field
        }
    }
}

fn simd_result(v: VideoSimd, a: u32, b: u32, c: u32) -> u32 {
    let bits = 32 / v.lanes;
    let [signed, a_signed, b_signed] = v.signed;
    let pick = |number: u8, signed: bool| {
        let word = if number < v.lanes { a } else { b };
        part(word, number % v.lanes * bits, bits, signed)
    };
    let field = ((1u64 << bits) - 1) as u32;
    let mut result = c;
    for lane in 0..v.lanes {
        if v.mask >> lane & 1 == 0 {
            continue;
        }
        let x = pick(v.select[0][usize::from(lane)], a_signed);
        let y = pick(v.select[1][usize::from(lane)], b_signed);
        let value = fitted(compute(v.kind, x, y, 0), bits, signed, v.sat);
        if v.add {
            result = result.wrapping_add(part(value as u32, 0, bits, signed) as u32);
        } else {
            let first = lane * bits;
            result = result & !(field << first) | (value as u32 & field) << first;
        }
    }
    result
}

/// The handler of scalar video instructions.
pub(crate) fn scalar(level: Level) -> Handler {
    warp!(level, |core, inst| {
        let Op::Video(video) = inst.op else { return Flow::Next };
        let [to, sa, sb, sc, ..] = inst.slots;
        let (a, b) = (*u32::read(core, sa), *u32::read(core, sb));
        let third = video.merge != VideoMerge::None || matches!(video.kind, VideoKind::Mad { .. });
        let c = if third { *u32::read(core, sc) } else { [0; 32] };
        let mut written = u32::written(core, sa) & u32::written(core, sb);
        if third {
            written &= u32::written(core, sc);
        }
        let out = std::array::from_fn(|lane| scalar_result(video, a[lane], b[lane], c[lane]));
        u32::write(core, to, &out, written);
        Flow::Next
    })
}

/// The handler of those on several parts at a time.
pub(crate) fn simd(level: Level) -> Handler {
    warp!(level, |core, inst| {
        let Op::VideoSimd(video) = inst.op else { return Flow::Next };
        let [to, sa, sb, sc, ..] = inst.slots;
        let (a, b, c) = (*u32::read(core, sa), *u32::read(core, sb), *u32::read(core, sc));
        let mut written = u32::written(core, sa) & u32::written(core, sb);
        // What is written over in all its parts need not have been written.
        if video.add || video.mask != (1 << video.lanes) - 1 {
            written &= u32::written(core, sc);
        }
        let out = std::array::from_fn(|lane| simd_result(video, a[lane], b[lane], c[lane]));
        u32::write(core, to, &out, written);
        Flow::Next
    })
}
