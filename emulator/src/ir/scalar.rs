//! Operations inside a lane: what they are, and their modifiers.

use super::types::Ty;
use crate::numeric::float::Round;

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
    /// `min`/`max`: of the magnitudes; the sign is that of the operands' product.
    pub(crate) xorsign: bool,
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
    /// Of an f64, from its upper 32 bits and to such: `.approx.ftz`.
    RcpCoarse,
    RsqrtCoarse,
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
    Mul24High,
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
    /// Extends the sign, or zeros, from a bit on.
    Szext {
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
    Mad24High {
        sat: bool,
    },
    MadHiSat,
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
    /// Two products of 16 bits by 8, which are in the lower or the upper half of the second operand.
    Dp2a {
        a_signed: bool,
        b_signed: bool,
        high: bool,
    },
    /// The place of the n-th bit that is set, from a base on.
    Fns,
    /// Select by a predicate.
    Selp,
    /// Select by the sign of the third operand, whose type is f32 or s32.
    Slct {
        float: bool,
        ftz: bool,
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
