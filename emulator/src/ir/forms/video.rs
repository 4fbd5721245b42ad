//! Video instructions. `lower` reads the parts of operands that they select.

use super::*;
use crate::ir::op::{Video, VideoKind as K, VideoMerge, VideoSimd};

fn relation(c: &Chosen<'_>) -> Relation {
    compare(c, Ty::U32, false).relation
}

fn scalar(c: &Chosen<'_>, kind: K) -> Op {
    let has_result = !matches!(kind, K::Set(_));
    let first = usize::from(has_result);
    let signed = [
        c.ty(0).is_signed(),
        c.ty(first).is_signed(),
        c.ty(first + 1).is_signed() && !matches!(kind, K::Shl | K::Shr),
    ];
    let merges = [("add", VideoMerge::Add), ("min", VideoMerge::Min), ("max", VideoMerge::Max)];
    Op::Video(Video {
        kind,
        signed,
        sat: c.has("sat"),
        wrap: c.has("wrap"),
        select: [(0, 32); 3],
        merge: c.pick(&merges, VideoMerge::None),
    })
}

fn mad(c: &Chosen<'_>) -> Op {
    let shift = c.pick(&[("shr7", 7), ("shr15", 15)], 0);
    scalar(c, K::Mad { shift, negate: [false; 2], plus_one: c.has("po") })
}

fn simd(c: &Chosen<'_>, kind: K, lanes: u8) -> Op {
    let has_result = !matches!(kind, K::Set(_));
    let first = usize::from(has_result);
    Op::VideoSimd(VideoSimd {
        kind,
        lanes,
        signed: [has_result && c.ty(0).is_signed(), c.ty(first).is_signed(), c.ty(first + 1).is_signed()],
        sat: c.has("sat"),
        add: c.has("add"),
        mask: (1 << lanes) - 1,
        select: [[0, 1, 2, 3], [lanes, lanes + 1, lanes + 2, lanes + 3]],
    })
}

/// The types of result and operands, and what may follow.
macro_rules! typed {
    ($rest:literal) => {
        concat!("u32|s32 u32|s32 u32|s32 ", $rest)
    };
}

pub(super) static ROWS: &[Form] = rows! {
    "vadd", typed!("sat? add|min|max?"), "=b32 b32 b32 b32?", |c| scalar(c, K::Add);
    "vsub", typed!("sat? add|min|max?"), "=b32 b32 b32 b32?", |c| scalar(c, K::Sub);
    "vabsdiff", typed!("sat? add|min|max?"), "=b32 b32 b32 b32?", |c| scalar(c, K::AbsDiff);
    "vmin", typed!("sat? add|min|max?"), "=b32 b32 b32 b32?", |c| scalar(c, K::Min);
    "vmax", typed!("sat? add|min|max?"), "=b32 b32 b32 b32?", |c| scalar(c, K::Max);
    "vshl", "u32|s32 u32|s32 u32 sat? clamp|wrap add|min|max?", "=b32 b32 b32 b32?", |c| scalar(c, K::Shl);
    "vshr", "u32|s32 u32|s32 u32 sat? clamp|wrap add|min|max?", "=b32 b32 b32 b32?", |c| scalar(c, K::Shr);
    "vmad", typed!("po? sat? shr7|shr15?"), "=b32 b32 b32 b32", mad;
    "vset", "u32|s32 u32|s32 eq|ne|lt|le|gt|ge add|min|max?", "=b32 b32 b32 b32?", |c| scalar(c, K::Set(relation(c)));
    "vadd2", typed!("sat|add?"), "=b32 b32 b32 b32", |c| simd(c, K::Add, 2);
    "vsub2", typed!("sat|add?"), "=b32 b32 b32 b32", |c| simd(c, K::Sub, 2);
    "vavrg2", typed!("sat|add?"), "=b32 b32 b32 b32", |c| simd(c, K::Average, 2);
    "vabsdiff2", typed!("sat|add?"), "=b32 b32 b32 b32", |c| simd(c, K::AbsDiff, 2);
    "vmin2", typed!("sat|add?"), "=b32 b32 b32 b32", |c| simd(c, K::Min, 2);
    "vmax2", typed!("sat|add?"), "=b32 b32 b32 b32", |c| simd(c, K::Max, 2);
    "vset2", "u32|s32 u32|s32 eq|ne|lt|le|gt|ge add?", "=b32 b32 b32 b32", |c| simd(c, K::Set(relation(c)), 2);
    "vadd4", typed!("sat|add?"), "=b32 b32 b32 b32", |c| simd(c, K::Add, 4);
    "vsub4", typed!("sat|add?"), "=b32 b32 b32 b32", |c| simd(c, K::Sub, 4);
    "vavrg4", typed!("sat|add?"), "=b32 b32 b32 b32", |c| simd(c, K::Average, 4);
    "vabsdiff4", typed!("sat|add?"), "=b32 b32 b32 b32", |c| simd(c, K::AbsDiff, 4);
    "vmin4", typed!("sat|add?"), "=b32 b32 b32 b32", |c| simd(c, K::Min, 4);
    "vmax4", typed!("sat|add?"), "=b32 b32 b32 b32", |c| simd(c, K::Max, 4);
    "vset4", "u32|s32 u32|s32 eq|ne|lt|le|gt|ge add?", "=b32 b32 b32 b32", |c| simd(c, K::Set(relation(c)), 4);
};
