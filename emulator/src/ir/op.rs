//! The typed operations: what an instruction does, once its modifiers are understood.

use super::types::Ty;
use crate::numeric::convert::Conversion;
use crate::numeric::float::Round;
use crate::syntax::ast::Space;

/// What a floating-point instruction's modifiers ask for beside its type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub(crate) struct Mode {
    pub(crate) round: Round,
    pub(crate) ftz: bool,
    pub(crate) sat: bool,
    /// `min`/`max`: a NaN operand makes the result NaN.
    pub(crate) nan: bool,
    /// `fma`: negative results become 0.
    pub(crate) relu: bool,
}

/// One operand, one result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Unary {
    Mov,
    Not,
    Cnot,
    Neg,
    Abs,
    Popc,
    Clz,
    Brev,
    Bfind {
        shift: bool,
    },
    Rcp,
    Sqrt,
    Rsqrt,
    Sin,
    Cos,
    Lg2,
    Ex2,
    Tanh,
    /// `testp`: the property to test.
    Testp(Property),
}

/// What `testp` asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Property {
    Finite,
    Infinite,
    Number,
    NotANumber,
    Normal,
    Subnormal,
}

/// Two operands, one result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Binary {
    Add,
    Sub,
    /// The product's low half for integers, the product for floats.
    Mul,
    MulHi,
    MulWide,
    Mul24,
    Div,
    Rem,
    Min,
    Max,
    And,
    Or,
    Xor,
    Shl,
    Shr,
    Copysign,
    Bmsk {
        wrap: bool,
    },
}

/// Three operands, one result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Ternary {
    Mad,
    MadHi,
    MadWide,
    Mad24,
    Fma,
    Sad,
    Bfe,
    Shf {
        left: bool,
        wrap: bool,
    },
    Prmt(Permute),
    Dp4a {
        a_signed: bool,
        b_signed: bool,
    },
    /// Select by a predicate.
    Selp,
    /// Select by the sign of the third operand, whose type is f32 or s32.
    Slct {
        float: bool,
    },
}

/// The modes of `prmt`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Permute {
    Index,
    Forward4,
    Backward4,
    Replicate8,
    EdgeClampLeft,
    EdgeClampRight,
    Replicate16,
}

/// Arithmetic through the carry flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Carry {
    Add { carry_in: bool },
    Sub { carry_in: bool },
    Mad { high: bool, carry_in: bool },
}

/// A comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Compare {
    pub(crate) relation: Relation,
    /// Floats: true where an operand is NaN.
    pub(crate) unordered: bool,
    pub(crate) ty: Ty,
    pub(crate) ftz: bool,
    /// The result is combined with another predicate.
    pub(crate) combine: Option<Combine>,
}

/// What is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Relation {
    Equal,
    NotEqual,
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
    /// Both are numbers.
    Ordered,
    /// One is NaN.
    Unordered,
}

/// How a comparison is combined with a predicate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Combine {
    And,
    Or,
    Xor,
}

/// A reduction or an atomic operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Atomic {
    Add,
    Min,
    Max,
    And,
    Or,
    Xor,
    Inc,
    Dec,
    Exchange,
    CompareExchange,
}

/// How `shfl` finds its source lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Shuffle {
    Up,
    Down,
    Butterfly,
    Index,
}

/// What `vote` asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Vote {
    All,
    Any,
    Uniform,
    Ballot,
}

/// What a barrier does beside waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Barrier {
    Sync,
    Arrive,
    /// Reduces a predicate over the threads.
    Reduce(Vote),
    /// Counts the threads whose predicate holds.
    Count,
}

/// The operand types of a matrix product.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Mma {
    pub(crate) k: u8,
    pub(crate) input: Ty,
    /// f32 or f16.
    pub(crate) accumulator: Ty,
}

/// Special registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Special {
    ThreadIndex(u8),
    BlockSize(u8),
    BlockIndex(u8),
    GridSize(u8),
    LaneId,
    WarpId,
    WarpCount,
    MultiprocessorId,
    MultiprocessorCount,
    GridId,
    LaneMask(LaneMask),
    Clock,
    ClockHigh,
    GlobalTimer,
    GlobalTimerHigh,
    DynamicShared,
    TotalShared,
    WarpSize,
}

/// The lanes that a lane-mask register names, relative to the own lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum LaneMask {
    Equal,
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
}

/// An operation. Operands stand beside it, destinations first, in the order of the table of forms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Op {
    Unary(Unary, Ty, Mode),
    Binary(Binary, Ty, Mode),
    Ternary(Ternary, Ty, Mode),
    Bfi(Ty),
    /// The table stands in the immediate.
    Lop3,
    Carry(Carry, Ty, bool),
    Setp(Compare),
    /// A comparison whose result is a number: all ones, or 1.0.
    Set(Compare, Ty),
    Convert(Conversion),
    /// Two values to one register; the first operand is the upper half.
    ConvertPack(Conversion),
    /// Joins parts to a whole: number of parts, type of the whole.
    Pack(u8, Ty),
    /// Cuts a whole into parts.
    Unpack(u8, Ty),
    ReadSpecial(Special, Ty),
    Load {
        space: Space,
        ty: Ty,
        count: u8,
        strong: bool,
    },
    Store {
        space: Space,
        ty: Ty,
        count: u8,
        strong: bool,
    },
    /// To or from a generic address.
    Cvta {
        space: Space,
        to_space: bool,
    },
    IsSpace(Space),
    Branch,
    BranchIndexed,
    Exit,
    Trap,
    Barrier {
        kind: Barrier,
        aligned: bool,
        counted: bool,
    },
    BarrierWarp,
    Shuffle(Shuffle),
    Vote(Vote),
    Match {
        all: bool,
        ty: Ty,
    },
    ActiveMask,
    Redux(Atomic, Ty),
    /// Atomic operation; `result` unless it is `red`.
    Atomic {
        op: Atomic,
        space: Space,
        ty: Ty,
        result: bool,
    },
    Fence {
        gpu: bool,
    },
    Nop,
    Mma(Mma),
    LoadMatrix {
        count: u8,
        transpose: bool,
    },
    /// Bytes of each lane's copy.
    CopyAsync {
        bytes: u8,
        with_source_size: bool,
    },
    CopyCommit,
    CopyWait {
        all: bool,
    },
}

impl Op {
    /// Whether it can order or carry data between blocks, so that blocks must not run in parallel.
    pub(crate) fn communicates(self) -> bool {
        matches!(
            self,
            Self::Atomic { space: Space::Global | Space::Generic, .. }
                | Self::Load { space: Space::Global | Space::Generic, strong: true, .. }
                | Self::Store { space: Space::Global | Space::Generic, strong: true, .. }
                | Self::Fence { gpu: true }
        )
    }
}
