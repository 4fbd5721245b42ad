//! The types that instructions name.

use crate::syntax::ast::Class;

/// A type in an instruction's modifiers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Ty {
    Pred,
    B8,
    U8,
    S8,
    E4m3,
    E5m2,
    B16,
    U16,
    S16,
    F16,
    Bf16,
    E4m3x2,
    E5m2x2,
    B32,
    U32,
    S32,
    F32,
    Tf32,
    F16x2,
    Bf16x2,
    U16x2,
    S16x2,
    B64,
    U64,
    S64,
    F64,
}

impl Ty {
    /// The type that a modifier names.
    pub(crate) fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "pred" => Self::Pred,
            "b8" => Self::B8,
            "u8" => Self::U8,
            "s8" => Self::S8,
            "e4m3" => Self::E4m3,
            "e5m2" => Self::E5m2,
            "e4m3x2" => Self::E4m3x2,
            "e5m2x2" => Self::E5m2x2,
            "b16" => Self::B16,
            "u16" => Self::U16,
            "s16" => Self::S16,
            "f16" => Self::F16,
            "bf16" => Self::Bf16,
            "b32" => Self::B32,
            "u32" => Self::U32,
            "s32" => Self::S32,
            "f32" => Self::F32,
            "tf32" => Self::Tf32,
            "f16x2" => Self::F16x2,
            "bf16x2" => Self::Bf16x2,
            "u16x2" => Self::U16x2,
            "s16x2" => Self::S16x2,
            "b64" => Self::B64,
            "u64" => Self::U64,
            "s64" => Self::S64,
            "f64" => Self::F64,
            _ => return None,
        })
    }

    /// The size in bytes; predicates have none.
    pub(crate) const fn bytes(self) -> u32 {
        match self {
            Self::Pred => 0,
            Self::B8 | Self::U8 | Self::S8 | Self::E4m3 | Self::E5m2 => 1,
            Self::B16 | Self::U16 | Self::S16 | Self::F16 | Self::Bf16 | Self::E4m3x2 | Self::E5m2x2 => 2,
            Self::B32
            | Self::U32
            | Self::S32
            | Self::F32
            | Self::Tf32
            | Self::F16x2
            | Self::Bf16x2
            | Self::U16x2
            | Self::S16x2 => 4,
            Self::B64 | Self::U64 | Self::S64 | Self::F64 => 8,
        }
    }

    /// Whether it is a signed integer.
    pub(crate) const fn is_signed(self) -> bool {
        matches!(self, Self::S8 | Self::S16 | Self::S32 | Self::S64)
    }

    /// Whether it is a floating-point type.
    pub(crate) const fn is_float(self) -> bool {
        matches!(
            self,
            Self::F16
                | Self::Bf16
                | Self::F32
                | Self::Tf32
                | Self::F16x2
                | Self::Bf16x2
                | Self::F64
                | Self::E4m3
                | Self::E5m2
                | Self::E4m3x2
                | Self::E5m2x2
        )
    }

    /// The class of a register that holds it.
    pub(crate) const fn class(self) -> Class {
        match self.bytes() {
            0 => Class::Predicate,
            1 | 2 => Class::Half,
            4 => Class::Word,
            _ => Class::Double,
        }
    }
}
