//! What video instructions do.

use super::op::Relation;

/// What a video instruction computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum VideoKind {
    Add,
    Sub,
    AbsDiff,
    Min,
    Max,
    Shl,
    Shr,
    /// The mean, rounded away from zero.
    Average,
    /// A product and a sum, shifted right so many bits; the mode has the signs of product and addend.
    Mad {
        shift: u8,
        negate: [bool; 2],
        plus_one: bool,
    },
    Set(Relation),
}

/// What becomes of a video instruction's result together with its last operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum VideoMerge {
    None,
    Add,
    Min,
    Max,
    /// Into these bits of it: the first, and how many.
    Insert(u8, u8),
}

/// A byte or a half of an operand: the first bit, and how many.
pub(crate) type Select = (u8, u8);

/// A scalar video instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Video {
    pub(crate) kind: VideoKind,
    /// Whether result and operands are signed; the result of a comparison counts as signed if the first operand is.
    pub(crate) signed: [bool; 3],
    pub(crate) sat: bool,
    /// Shifts: the count wraps, it is not clamped.
    pub(crate) wrap: bool,
    pub(crate) select: [Select; 3],
    pub(crate) merge: VideoMerge,
}

/// A video instruction on two halves or four bytes at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct VideoSimd {
    pub(crate) kind: VideoKind,
    pub(crate) lanes: u8,
    pub(crate) signed: [bool; 3],
    pub(crate) sat: bool,
    /// All results are added to the last operand.
    pub(crate) add: bool,
    /// The parts that are written, a bit each; the others are those of the last operand.
    pub(crate) mask: u8,
    /// For each part of the result, the parts of both operands that it takes: below `lanes` of the first, then of the second.
    pub(crate) select: [[u8; 4]; 2],
}
