//! Video instructions: on bytes and halves of words, with saturation and a second operation.
//!
//! Those on several parts at a time do what the PTX ISA says. Scalar ones do what an H100 does: NVIDIA's compiler makes
//! sequences of other instructions of them. Its sequences differ from the ISA in these ways.
//!
//! - `vadd`, `vsub` and `vabsdiff` with `.u32` and `.sat` clamp below 0 only. Above the largest number they wrap.
//! - `.sat` into a part of the destination compares unsigned numbers: a negative result becomes the largest number of the part.
//!   Shifts clamp to 32 bits instead.
//! - `vshl.sat` looks at 34 bits of the shifted value.
//! - A destination of `.h1` gets the upper half of the result. The ISA gives it the lower one.
//! - `.min` and `.max` compare 64 bits. The results of `vadd` and `vsub`, and of shifts with `.sat`, are first cut to 32 bits and
//!   extended by their sign, even for an unsigned comparison.
//! - `vset` with `.min` or `.max` takes the last operand for signed if the first one is.
//! - `vmad` takes its operands for signed whatever their types are. The types say whether the sum is shifted and clamped as a
//!   signed number.

use super::code::{Flow, Handler, Level};
use super::definedness::Bits;
use super::lane::{Lane, warp};
use crate::ir::op::{Op, Relation, Select, Video, VideoKind, VideoMerge, VideoSimd};

/// The bits of a part, in place.
fn field((first, bits): Select) -> u32 {
    (((1u64 << bits) - 1) as u32) << first
}

/// A part of a word, extended by its sign or by zeros.
fn part(word: u32, (first, bits): Select, signed: bool) -> i64 {
    let value = i64::from(word >> first) & ((1 << bits) - 1);
    if signed { value << (64 - bits) >> (64 - bits) } else { value }
}

/// Clamps a result to the range of so many bits.
fn clamped(value: i64, bits: u8, signed: bool) -> i64 {
    match signed {
        true => value.clamp(-1 << (bits - 1), (1 << (bits - 1)) - 1),
        false => value.clamp(0, (1 << bits) - 1),
    }
}

/// The result before saturation; the product, of a multiply-add.
fn compute(kind: VideoKind, a: i64, b: i64) -> i64 {
    match kind {
        VideoKind::Add => a + b,
        VideoKind::Sub => a - b,
        VideoKind::AbsDiff => (a - b).abs(),
        VideoKind::Min => a.min(b),
        VideoKind::Max => a.max(b),
        VideoKind::Shl => a << b,
        VideoKind::Shr => a >> b,
        VideoKind::Average => (a + b + i64::from(a + b >= 0)) >> 1,
        VideoKind::Mad { .. } => a * b,
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

/// The result of `vmad` from its product. The sum has less than 64 bits.
fn multiply_add(v: Video, product: i64, c: u32, shift: u8, plus_one: bool) -> u32 {
    let sum = product + i64::from(c.cast_signed()) + i64::from(plus_one);
    let signed = v.signed[1] || v.signed[2];
    let shifted = if signed { sum >> shift } else { (sum.cast_unsigned() >> shift).cast_signed() };
    (if v.sat { clamped(shifted, 32, signed) } else { shifted }) as u32
}

/// Whether something is done with the last operand.
fn has_third(v: Video) -> bool {
    v.merge != VideoMerge::None || matches!(v.kind, VideoKind::Mad { .. })
}

fn is_shift(v: Video) -> bool {
    matches!(v.kind, VideoKind::Shl | VideoKind::Shr)
}

/// A result clamped to 32 bits. What is above the largest unsigned number may stay there, to wrap later.
fn saturated(v: Video, value: i64) -> i64 {
    let signed = v.signed[0];
    match v.kind {
        VideoKind::Add | VideoKind::Sub | VideoKind::AbsDiff if !signed => value.max(0),
        VideoKind::Shl => clamped(value << 30 >> 30, 32, signed),
        _ => clamped(value, 32, signed),
    }
}

/// The smaller or larger one of a result and the last operand.
fn second(v: Video, value: i64, c: u32, smaller: bool) -> u32 {
    let value = if v.sat { saturated(v, value) } else { value };
    let cut = matches!(v.kind, VideoKind::Add | VideoKind::Sub) || v.sat && is_shift(v);
    let value = if cut { i64::from(value as i32) } else { value };
    let takes_value = if v.signed[0] {
        (value < i64::from(c.cast_signed())) == smaller
    } else {
        (value.cast_unsigned() < u64::from(c)) == smaller
    };
    // Where they are equal, so are their lower 32 bits.
    if takes_value { value as u32 } else { c }
}

/// The last operand with the result in one of its parts.
fn inserted(v: Video, value: i64, c: u32, to: Select) -> u32 {
    let (first, bits) = to;
    let word = if !v.sat {
        value as u32
    } else if is_shift(v) {
        saturated(v, value) as u32
    } else {
        let largest = (1u64 << (bits - u8::from(v.signed[0]))) - 1;
        value.cast_unsigned().min(largest) as u32
    };
    let in_place = if to == (16, 16) { word } else { word << first };
    c & !field(to) | in_place & field(to)
}

fn scalar_result(v: Video, a: u32, b: u32, c: u32) -> u32 {
    let [_, a_signed, b_signed] = v.signed;
    let x = part(a, v.select[0], a_signed);
    let mut y = part(b, v.select[1], b_signed);
    if let VideoKind::Mad { shift, plus_one, .. } = v.kind {
        let product = compute(v.kind, i64::from(x as i32), i64::from(y as i32));
        return multiply_add(v, product, c, shift, plus_one);
    }
    if is_shift(v) {
        y = if v.wrap { y & 31 } else { y.min(32) };
    }
    let value = compute(v.kind, x, y);
    match v.merge {
        VideoMerge::None | VideoMerge::Add => {
            let word = if v.sat { saturated(v, value) } else { value } as u32;
            if v.merge == VideoMerge::Add { word.wrapping_add(c) } else { word }
        }
        VideoMerge::Min => second(v, value, c, true),
        VideoMerge::Max => second(v, value, c, false),
        VideoMerge::Insert(first, bits) => inserted(v, value, c, (first, bits)),
    }
}

/// A part of a result on several parts: which bits it has.
fn lane_field(v: VideoSimd, lane: u8) -> Select {
    let bits = 32 / v.lanes;
    (lane * bits, bits)
}

/// The part that an operand selects for a part of the result: whether it is one of the second operand, and which.
fn selected(v: VideoSimd, operand: usize, lane: u8) -> (usize, Select) {
    let number = v.select[operand][usize::from(lane)];
    (usize::from(number / v.lanes), lane_field(v, number % v.lanes))
}

/// The parts that are written.
fn lanes(v: VideoSimd) -> impl Iterator<Item = u8> {
    (0..v.lanes).filter(move |lane| v.mask >> lane & 1 == 1)
}

fn simd_result(v: VideoSimd, a: u32, b: u32, c: u32) -> u32 {
    let [signed, a_signed, b_signed] = v.signed;
    let pick = |operand, lane, signed| {
        let (word, select) = selected(v, operand, lane);
        part([a, b][word], select, signed)
    };
    lanes(v).fold(c, |result, lane| {
        let to = lane_field(v, lane);
        let value = compute(v.kind, pick(0, lane, a_signed), pick(1, lane, b_signed));
        let value = if v.sat { clamped(value, to.1, signed) } else { value } as u32;
        // A sum takes what has more bits than a part as a whole.
        if v.add { result.wrapping_add(value) } else { result & !field(to) | value << to.0 & field(to) }
    })
}

/// The bits of a scalar result that are written, from those of its operands.
pub(super) fn scalar_bits(v: Video, a: &Bits, b: &Bits, c: &Bits) -> Bits {
    let is_known = |bits: u64, select: Select| !(bits as u32) & field(select) == 0;
    let third = has_third(v);
    std::array::from_fn(|lane| {
        let known = is_known(a[lane], v.select[0]) && is_known(b[lane], v.select[1]);
        let result = match v.merge {
            VideoMerge::Insert(first, bits) => {
                let field = field((first, bits));
                c[lane] as u32 & !field | if known { field } else { 0 }
            }
            _ if known && (!third || is_known(c[lane], (0, 32))) => u32::MAX,
            _ => 0,
        };
        u64::from(result) | !0 << 32
    })
}

/// The bits of a result on several parts that are written, from those of its operands.
pub(super) fn simd_bits(v: VideoSimd, a: &Bits, b: &Bits, c: &Bits) -> Bits {
    std::array::from_fn(|at| {
        let is_known = |lane: u8| {
            (0..2).all(|operand| {
                let (word, select) = selected(v, operand, lane);
                !([a, b][word][at] as u32) & field(select) == 0
            })
        };
        let c = c[at] as u32;
        let result = if v.add {
            if c == u32::MAX && lanes(v).all(is_known) { u32::MAX } else { 0 }
        } else {
            lanes(v).fold(c, |bits, lane| {
                let field = field(lane_field(v, lane));
                if is_known(lane) { bits | field } else { bits & !field }
            })
        };
        u64::from(result) | !0 << 32
    })
}

/// The handler of scalar video instructions.
pub(crate) fn scalar(level: Level) -> Handler {
    warp!(level, |core, inst| {
        let Op::Video(video) = inst.op else { return Flow::Next };
        let [to, sa, sb, sc, ..] = inst.slots;
        let (a, b) = (*u32::read(core, sa), *u32::read(core, sb));
        let third = has_third(video);
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
