//! Integer arithmetic and bits.

use super::code::{Flow, Handler, Level};
use super::lane::{Lane, lanes, warp};
use crate::ir::op::{Binary, Mode, Permute, Ternary, Unary};
use crate::ir::types::Ty;
use crate::numeric::float::flush;

/// The handler of a unary operation on integers or bits; `None` for floating point.
pub(crate) fn unary(op: Unary, ty: Ty, level: Level) -> Option<Handler> {
    use Ty::{B16, B32, B64, Pred, S16, S32, S64, U32, U64};
    Some(match (op, ty) {
        (Unary::Mov, Pred) => warp!(level, |core, inst| {
            let value = core.warp.registers.predicate(core.constants, inst.slots[1]);
            let written = core.warp.registers.predicate_written(inst.slots[1]);
            let mask = core.warp.mask;
            core.warp.registers.set_predicate(inst.slots[0], value, mask, written);
            Flow::Next
        }),
        (Unary::Not, Pred) => warp!(level, |core, inst| {
            let value = !core.warp.registers.predicate(core.constants, inst.slots[1]);
            let written = core.warp.registers.predicate_written(inst.slots[1]);
            let mask = core.warp.mask;
            core.warp.registers.set_predicate(inst.slots[0], value, mask, written);
            Flow::Next
        }),
        (Unary::Mov, U64) => lanes!(level, |a: u64| -> u64 { a }),
        (Unary::Mov, _) => lanes!(level, |a: u32| -> u32 { a }),
        (Unary::Not, B16) => lanes!(level, |a: u16| -> u16 { !a }),
        (Unary::Not, B32) => lanes!(level, |a: u32| -> u32 { !a }),
        (Unary::Not, B64) => lanes!(level, |a: u64| -> u64 { !a }),
        (Unary::Cnot, B16) => lanes!(level, |a: u16| -> u16 { u16::from(a == 0) }),
        (Unary::Cnot, B32) => lanes!(level, |a: u32| -> u32 { u32::from(a == 0) }),
        (Unary::Cnot, B64) => lanes!(level, |a: u64| -> u64 { u64::from(a == 0) }),
        (Unary::Neg, S16) => lanes!(level, |a: i16| -> i16 { a.wrapping_neg() }),
        (Unary::Neg, S32) => lanes!(level, |a: i32| -> i32 { a.wrapping_neg() }),
        (Unary::Neg, S64) => lanes!(level, |a: i64| -> i64 { a.wrapping_neg() }),
        (Unary::Abs, S16) => lanes!(level, |a: i16| -> i16 { a.wrapping_abs() }),
        (Unary::Abs, S32) => lanes!(level, |a: i32| -> i32 { a.wrapping_abs() }),
        (Unary::Abs, S64) => lanes!(level, |a: i64| -> i64 { a.wrapping_abs() }),
        (Unary::Popc, B32) => lanes!(level, |a: u32| -> u32 { a.count_ones() }),
        (Unary::Popc, B64) => lanes!(level, |a: u64| -> u32 { a.count_ones() }),
        (Unary::Clz, B32) => lanes!(level, |a: u32| -> u32 { a.leading_zeros() }),
        (Unary::Clz, B64) => lanes!(level, |a: u64| -> u32 { a.leading_zeros() }),
        (Unary::Brev, B32) => lanes!(level, |a: u32| -> u32 { a.reverse_bits() }),
        (Unary::Brev, B64) => lanes!(level, |a: u64| -> u64 { a.reverse_bits() }),
        // The top bit that differs from the sign; all ones if there is none.
        (Unary::Bfind { shift }, U32) => match shift {
            true => lanes!(level, |a: u32| -> u32 { if a == 0 { u32::MAX } else { a.leading_zeros() } }),
            false => lanes!(level, |a: u32| -> u32 { 31u32.wrapping_sub(a.leading_zeros()) }),
        },
        (Unary::Bfind { shift }, S32) => match shift {
            true => lanes!(level, |a: i32| -> u32 {
                let a = (a ^ (a >> 31)).cast_unsigned();
                if a == 0 { u32::MAX } else { a.leading_zeros() }
            }),
            false => {
                lanes!(level, |a: i32| -> u32 { 31u32.wrapping_sub((a ^ (a >> 31)).leading_zeros()) })
            }
        },
        (Unary::Bfind { shift }, U64) => match shift {
            true => lanes!(level, |a: u64| -> u32 { if a == 0 { u32::MAX } else { a.leading_zeros() } }),
            false => lanes!(level, |a: u64| -> u32 { 63u32.wrapping_sub(a.leading_zeros()) }),
        },
        (Unary::Bfind { shift }, S64) => match shift {
            true => lanes!(level, |a: i64| -> u32 {
                let a = (a ^ (a >> 63)).cast_unsigned();
                if a == 0 { u32::MAX } else { a.leading_zeros() }
            }),
            false => {
                lanes!(level, |a: i64| -> u32 { 63u32.wrapping_sub((a ^ (a >> 63)).leading_zeros()) })
            }
        },
        _ => return None,
    })
}

macro_rules! integers {
    ($level:expr, $ty:expr, |$a:ident, $b:ident| $body:expr) => {
        match $ty {
            Ty::U16 | Ty::B16 => lanes!($level, |$a: u16, $b: u16| -> u16 { $body }),
            Ty::S16 => lanes!($level, |$a: i16, $b: i16| -> i16 { $body }),
            Ty::U32 | Ty::B32 => lanes!($level, |$a: u32, $b: u32| -> u32 { $body }),
            Ty::S32 => lanes!($level, |$a: i32, $b: i32| -> i32 { $body }),
            Ty::U64 | Ty::B64 => lanes!($level, |$a: u64, $b: u64| -> u64 { $body }),
            Ty::S64 => lanes!($level, |$a: i64, $b: i64| -> i64 { $body }),
            _ => return None,
        }
    };
    ($level:expr, $ty:expr, |$a:ident, $b:ident, $c:ident| $body:expr) => {
        match $ty {
            Ty::U16 | Ty::B16 => lanes!($level, |$a: u16, $b: u16, $c: u16| -> u16 { $body }),
            Ty::S16 => lanes!($level, |$a: i16, $b: i16, $c: i16| -> i16 { $body }),
            Ty::U32 | Ty::B32 => lanes!($level, |$a: u32, $b: u32, $c: u32| -> u32 { $body }),
            Ty::S32 => lanes!($level, |$a: i32, $b: i32, $c: i32| -> i32 { $body }),
            Ty::U64 | Ty::B64 => lanes!($level, |$a: u64, $b: u64, $c: u64| -> u64 { $body }),
            Ty::S64 => lanes!($level, |$a: i64, $b: i64, $c: i64| -> i64 { $body }),
            _ => return None,
        }
    };
}

/// A bitwise function of two predicates, each with the lanes in which it is written, and where the result is: also
/// where the one that is written decides, as `false` does in `and`.
#[inline(always)]
pub(crate) fn logic(
    (a, known_a): (u32, u32),
    (b, known_b): (u32, u32),
    f: impl Fn(u32, u32) -> u32,
) -> (u32, u32) {
    let value = f(a, b);
    let (flipped_a, flipped_b) = (a ^ !known_a, b ^ !known_b);
    let open = (value ^ f(flipped_a, b)) | (value ^ f(a, flipped_b)) | (value ^ f(flipped_a, flipped_b));
    (value, !open)
}

macro_rules! bits {
    ($level:expr, $ty:expr, |$a:ident, $b:ident| $body:expr) => {
        match $ty {
            Ty::Pred => warp!($level, |core, inst| {
                let registers = &core.warp.registers;
                let [to, sa, sb, ..] = inst.slots;
                let a = (registers.predicate(core.constants, sa), registers.predicate_written(sa));
                let b = (registers.predicate(core.constants, sb), registers.predicate_written(sb));
                let (value, written) = logic(a, b, |$a, $b| $body);
                let mask = core.warp.mask;
                core.warp.registers.set_predicate(to, value, mask, written);
                Flow::Next
            }),
            Ty::B16 => lanes!($level, |$a: u16, $b: u16| -> u16 { $body }),
            Ty::B32 => lanes!($level, |$a: u32, $b: u32| -> u32 { $body }),
            Ty::B64 => lanes!($level, |$a: u64, $b: u64| -> u64 { $body }),
            _ => return None,
        }
    };
}

/// The handler of a binary operation on integers or bits; `None` for floating point.
pub(crate) fn binary(op: Binary, ty: Ty, mode: Mode, level: Level) -> Option<Handler> {
    Some(match (op, ty) {
        (Binary::Add, Ty::U16x2 | Ty::S16x2) => {
            lanes!(level, |a: u32, b: u32| -> u32 { halves(a, b, |a, b| a.wrapping_add(b)) })
        }
        (Binary::Min, Ty::U16x2) => lanes!(level, |a: u32, b: u32| -> u32 { halves(a, b, |a, b| a.min(b)) }),
        (Binary::Max, Ty::U16x2) => lanes!(level, |a: u32, b: u32| -> u32 { halves(a, b, |a, b| a.max(b)) }),
        (Binary::Min, Ty::S16x2) => signed_halves(mode.relu, level, false),
        (Binary::Max, Ty::S16x2) => signed_halves(mode.relu, level, true),
        (Binary::Min, Ty::S32) if mode.relu => lanes!(level, |a: i32, b: i32| -> i32 { a.min(b).max(0) }),
        (Binary::Max, Ty::S32) if mode.relu => lanes!(level, |a: i32, b: i32| -> i32 { a.max(b).max(0) }),
        (Binary::Mul24High, Ty::U32) => lanes!(level, |a: u32, b: u32| -> u32 { high24(a, b) }),
        (Binary::Mul24High, Ty::S32) => lanes!(level, |a: i32, b: i32| -> i32 { high24_signed(a, b) }),
        (Binary::Szext { wrap }, Ty::U32) => match wrap {
            true => lanes!(level, |a: u32, b: u32| -> u32 { a & ones(b & 31) }),
            false => lanes!(level, |a: u32, b: u32| -> u32 { a & ones(b) }),
        },
        (Binary::Szext { wrap }, Ty::S32) => match wrap {
            true => {
                lanes!(level, |a: i32, b: u32| -> i32 { extract_signed(i64::from(a), 0, b & 31, 31) as i32 })
            }
            false => lanes!(level, |a: i32, b: u32| -> i32 {
                if b > 31 { a } else { extract_signed(i64::from(a), 0, b, 31) as i32 }
            }),
        },
        (Binary::Add, Ty::S32) if mode.sat => lanes!(level, |a: i32, b: i32| -> i32 { a.saturating_add(b) }),
        (Binary::Sub, Ty::S32) if mode.sat => lanes!(level, |a: i32, b: i32| -> i32 { a.saturating_sub(b) }),
        (Binary::Add, _) => integers!(level, ty, |a, b| a.wrapping_add(b)),
        (Binary::Sub, _) => integers!(level, ty, |a, b| a.wrapping_sub(b)),
        (Binary::Mul, _) => integers!(level, ty, |a, b| a.wrapping_mul(b)),
        (Binary::MulHi, _) => match ty {
            Ty::U16 => {
                lanes!(level, |a: u16, b: u16| -> u16 { ((u32::from(a) * u32::from(b)) >> 16) as u16 })
            }
            Ty::S16 => {
                lanes!(level, |a: i16, b: i16| -> i16 { ((i32::from(a) * i32::from(b)) >> 16) as i16 })
            }
            Ty::U32 => {
                lanes!(level, |a: u32, b: u32| -> u32 { ((u64::from(a) * u64::from(b)) >> 32) as u32 })
            }
            Ty::S32 => {
                lanes!(level, |a: i32, b: i32| -> i32 { ((i64::from(a) * i64::from(b)) >> 32) as i32 })
            }
            Ty::U64 => lanes!(level, |a: u64, b: u64| -> u64 { high_unsigned(a, b) }),
            Ty::S64 => lanes!(level, |a: i64, b: i64| -> i64 { high_signed(a, b) }),
            _ => return None,
        },
        (Binary::MulWide, Ty::U16) => lanes!(level, |a: u16, b: u16| -> u32 { u32::from(a) * u32::from(b) }),
        (Binary::MulWide, Ty::S16) => lanes!(level, |a: i16, b: i16| -> i32 { i32::from(a) * i32::from(b) }),
        (Binary::MulWide, Ty::U32) => lanes!(level, |a: u32, b: u32| -> u64 { u64::from(a) * u64::from(b) }),
        (Binary::MulWide, Ty::S32) => lanes!(level, |a: i32, b: i32| -> i64 { i64::from(a) * i64::from(b) }),
        (Binary::Mul24, Ty::U32) => {
            lanes!(level, |a: u32, b: u32| -> u32 { (a & 0xff_ffff).wrapping_mul(b & 0xff_ffff) })
        }
        (Binary::Mul24, Ty::S32) => {
            lanes!(level, |a: i32, b: i32| -> i32 { (a << 8 >> 8).wrapping_mul(b << 8 >> 8) })
        }
        // Division by zero gives all ones, for the quotient and for the remainder.
        (Binary::Div, _) => match ty {
            Ty::U16 => lanes!(level, |a: u16, b: u16| -> u16 { a.checked_div(b).unwrap_or(u16::MAX) }),
            Ty::U32 => lanes!(level, |a: u32, b: u32| -> u32 { a.checked_div(b).unwrap_or(u32::MAX) }),
            Ty::U64 => lanes!(level, |a: u64, b: u64| -> u64 { a.checked_div(b).unwrap_or(u64::MAX) }),
            Ty::S16 => lanes!(level, |a: i16, b: i16| -> i16 { if b == 0 { -1 } else { a.wrapping_div(b) } }),
            Ty::S32 => lanes!(level, |a: i32, b: i32| -> i32 { if b == 0 { -1 } else { a.wrapping_div(b) } }),
            Ty::S64 => lanes!(level, |a: i64, b: i64| -> i64 { if b == 0 { -1 } else { a.wrapping_div(b) } }),
            _ => return None,
        },
        (Binary::Rem, _) => match ty {
            Ty::U16 => lanes!(level, |a: u16, b: u16| -> u16 { a.checked_rem(b).unwrap_or(u16::MAX) }),
            Ty::U32 => lanes!(level, |a: u32, b: u32| -> u32 { a.checked_rem(b).unwrap_or(u32::MAX) }),
            Ty::U64 => lanes!(level, |a: u64, b: u64| -> u64 { a.checked_rem(b).unwrap_or(u64::MAX) }),
            Ty::S16 => lanes!(level, |a: i16, b: i16| -> i16 { if b == 0 { -1 } else { a.wrapping_rem(b) } }),
            Ty::S32 => lanes!(level, |a: i32, b: i32| -> i32 { if b == 0 { -1 } else { a.wrapping_rem(b) } }),
            Ty::S64 => lanes!(level, |a: i64, b: i64| -> i64 { if b == 0 { -1 } else { a.wrapping_rem(b) } }),
            _ => return None,
        },
        (Binary::Min, _) => integers!(level, ty, |a, b| a.min(b)),
        (Binary::Max, _) => integers!(level, ty, |a, b| a.max(b)),
        (Binary::And, _) => bits!(level, ty, |a, b| a & b),
        (Binary::Or, _) => bits!(level, ty, |a, b| a | b),
        (Binary::Xor, _) => bits!(level, ty, |a, b| a ^ b),
        // Shifts clamp at the width.
        (Binary::Shl, Ty::B16) => lanes!(level, |a: u16, b: u32| -> u16 { if b > 15 { 0 } else { a << b } }),
        (Binary::Shl, Ty::B32) => lanes!(level, |a: u32, b: u32| -> u32 { if b > 31 { 0 } else { a << b } }),
        (Binary::Shl, Ty::B64) => lanes!(level, |a: u64, b: u32| -> u64 { if b > 63 { 0 } else { a << b } }),
        (Binary::Shr, Ty::B16 | Ty::U16) => {
            lanes!(level, |a: u16, b: u32| -> u16 { if b > 15 { 0 } else { a >> b } })
        }
        (Binary::Shr, Ty::B32 | Ty::U32) => {
            lanes!(level, |a: u32, b: u32| -> u32 { if b > 31 { 0 } else { a >> b } })
        }
        (Binary::Shr, Ty::B64 | Ty::U64) => {
            lanes!(level, |a: u64, b: u32| -> u64 { if b > 63 { 0 } else { a >> b } })
        }
        (Binary::Shr, Ty::S16) => lanes!(level, |a: i16, b: u32| -> i16 { a >> b.min(15) }),
        (Binary::Shr, Ty::S32) => lanes!(level, |a: i32, b: u32| -> i32 { a >> b.min(31) }),
        (Binary::Shr, Ty::S64) => lanes!(level, |a: i64, b: u32| -> i64 { a >> b.min(63) }),
        (Binary::Bmsk { wrap: true }, _) => {
            lanes!(level, |a: u32, b: u32| -> u32 { ones(b & 31).wrapping_shl(a & 31) })
        }
        (Binary::Bmsk { wrap: false }, _) => {
            lanes!(level, |a: u32, b: u32| -> u32 { if a > 31 { 0 } else { ones(b) << a } })
        }
        _ => return None,
    })
}

/// An operation on both halves of words.
#[inline(always)]
fn halves(a: u32, b: u32, f: impl Fn(u16, u16) -> u16) -> u32 {
    u32::from(f((a >> 16) as u16, (b >> 16) as u16)) << 16 | u32::from(f(a as u16, b as u16))
}

/// The smaller or the larger of signed halves, perhaps not below 0.
fn signed_halves(relu: bool, level: Level, larger: bool) -> Handler {
    macro_rules! pick {
        ($f:ident, $($least:expr)?) => {
            lanes!(level, |a: u32, b: u32| -> u32 {
                halves(a, b, |a, b| a.cast_signed().$f(b.cast_signed())$(.max($least))?.cast_unsigned())
            })
        };
    }
    match (larger, relu) {
        (false, false) => pick!(min,),
        (false, true) => pick!(min, 0),
        (true, false) => pick!(max,),
        (true, true) => pick!(max, 0),
    }
}

/// The upper 32 of the 48 bits of a product of 24-bit numbers.
#[inline(always)]
fn high24(a: u32, b: u32) -> u32 {
    ((u64::from(a & 0xff_ffff) * u64::from(b & 0xff_ffff)) >> 16) as u32
}

#[inline(always)]
fn high24_signed(a: i32, b: i32) -> i32 {
    ((i64::from(a << 8 >> 8) * i64::from(b << 8 >> 8)) >> 16) as i32
}

#[inline(always)]
fn high_unsigned(a: u64, b: u64) -> u64 {
    ((u128::from(a) * u128::from(b)) >> 64) as u64
}

#[inline(always)]
fn high_signed(a: i64, b: i64) -> i64 {
    ((i128::from(a) * i128::from(b)) >> 64) as i64
}

/// `count` ones, all of them from 32 on.
#[inline(always)]
fn ones(count: u32) -> u32 {
    if count > 31 { u32::MAX } else { (1 << count) - 1 }
}

/// The handler of a ternary operation on integers or bits; `None` for floating point.
pub(crate) fn ternary(op: Ternary, ty: Ty, level: Level) -> Option<Handler> {
    Some(match (op, ty) {
        (Ternary::Mad, _) => integers!(level, ty, |a, b, c| a.wrapping_mul(b).wrapping_add(c)),
        (Ternary::MadHi, _) => match ty {
            Ty::U16 => lanes!(level, |a: u16, b: u16, c: u16| -> u16 {
                (((u32::from(a) * u32::from(b)) >> 16) as u16).wrapping_add(c)
            }),
            Ty::S16 => lanes!(level, |a: i16, b: i16, c: i16| -> i16 {
                (((i32::from(a) * i32::from(b)) >> 16) as i16).wrapping_add(c)
            }),
            Ty::U32 => lanes!(level, |a: u32, b: u32, c: u32| -> u32 {
                (((u64::from(a) * u64::from(b)) >> 32) as u32).wrapping_add(c)
            }),
            Ty::S32 => lanes!(level, |a: i32, b: i32, c: i32| -> i32 {
                (((i64::from(a) * i64::from(b)) >> 32) as i32).wrapping_add(c)
            }),
            Ty::U64 => lanes!(level, |a: u64, b: u64, c: u64| -> u64 { high_unsigned(a, b).wrapping_add(c) }),
            Ty::S64 => lanes!(level, |a: i64, b: i64, c: i64| -> i64 { high_signed(a, b).wrapping_add(c) }),
            _ => return None,
        },
        (Ternary::MadWide, Ty::U16) => {
            lanes!(level, |a: u16, b: u16, c: u32| -> u32 { (u32::from(a) * u32::from(b)).wrapping_add(c) })
        }
        (Ternary::MadWide, Ty::S16) => {
            lanes!(level, |a: i16, b: i16, c: i32| -> i32 { (i32::from(a) * i32::from(b)).wrapping_add(c) })
        }
        (Ternary::MadWide, Ty::U32) => {
            lanes!(level, |a: u32, b: u32, c: u64| -> u64 { (u64::from(a) * u64::from(b)).wrapping_add(c) })
        }
        (Ternary::MadWide, Ty::S32) => {
            lanes!(level, |a: i32, b: i32, c: i64| -> i64 { (i64::from(a) * i64::from(b)).wrapping_add(c) })
        }
        (Ternary::Mad24, Ty::U32) => lanes!(level, |a: u32, b: u32, c: u32| -> u32 {
            (a & 0xff_ffff).wrapping_mul(b & 0xff_ffff).wrapping_add(c)
        }),
        (Ternary::Mad24, Ty::S32) => lanes!(level, |a: i32, b: i32, c: i32| -> i32 {
            (a << 8 >> 8).wrapping_mul(b << 8 >> 8).wrapping_add(c)
        }),
        (Ternary::Mad24High { .. }, Ty::U32) => {
            lanes!(level, |a: u32, b: u32, c: u32| -> u32 { high24(a, b).wrapping_add(c) })
        }
        (Ternary::Mad24High { sat: false }, Ty::S32) => {
            lanes!(level, |a: i32, b: i32, c: i32| -> i32 { high24_signed(a, b).wrapping_add(c) })
        }
        (Ternary::Mad24High { sat: true }, Ty::S32) => {
            lanes!(level, |a: i32, b: i32, c: i32| -> i32 { high24_signed(a, b).saturating_add(c) })
        }
        (Ternary::MadHiSat, _) => lanes!(level, |a: i32, b: i32, c: i32| -> i32 {
            (((i64::from(a) * i64::from(b)) >> 32) as i32).saturating_add(c)
        }),
        (Ternary::Fns, _) => lanes!(level, |a: u32, b: u32, c: i32| -> u32 { find_nth(a, b, c) }),
        (Ternary::Dp2a { a_signed, b_signed, high }, _) => {
            macro_rules! dot {
                ($a:literal, $b:literal, $high:literal) => {
                    lanes!(level, |a: u32, b: u32, c: u32| -> u32 { dot2(a, b, c, [$a, $b, $high]) })
                };
            }
            match (a_signed, b_signed, high) {
                (false, false, false) => dot!(false, false, false),
                (false, false, true) => dot!(false, false, true),
                (false, true, false) => dot!(false, true, false),
                (false, true, true) => dot!(false, true, true),
                (true, false, false) => dot!(true, false, false),
                (true, false, true) => dot!(true, false, true),
                (true, true, false) => dot!(true, true, false),
                (true, true, true) => dot!(true, true, true),
            }
        }
        (Ternary::Sad, _) => integers!(level, ty, |a, b, c| {
            c.wrapping_add(if a < b { b.wrapping_sub(a) } else { a.wrapping_sub(b) })
        }),
        (Ternary::Bfe, Ty::U32) => lanes!(level, |a: u32, b: u32, c: u32| -> u32 {
            let (start, length) = (b & 0xff, c & 0xff);
            if start > 31 { 0 } else { a >> start & ones(length) }
        }),
        (Ternary::Bfe, Ty::U64) => lanes!(level, |a: u64, b: u32, c: u32| -> u64 {
            let (start, length) = (b & 0xff, c & 0xff);
            let field = if length > 63 { u64::MAX } else { (1 << length) - 1 };
            if start > 63 { 0 } else { a >> start & field }
        }),
        (Ternary::Bfe, Ty::S32) => {
            lanes!(level, |a: i32, b: u32, c: u32| -> i32 { extract_signed(i64::from(a), b, c, 31) as i32 })
        }
        (Ternary::Bfe, Ty::S64) => {
            lanes!(level, |a: i64, b: u32, c: u32| -> i64 { extract_signed(a, b, c, 63) })
        }
        (Ternary::Shf { left: true, wrap: true }, _) => {
            lanes!(level, |a: u32, b: u32, c: u32| -> u32 { (join(a, b) << (c & 31) >> 32) as u32 })
        }
        (Ternary::Shf { left: true, wrap: false }, _) => {
            lanes!(level, |a: u32, b: u32, c: u32| -> u32 { (join(a, b) << c.min(32) >> 32) as u32 })
        }
        (Ternary::Shf { left: false, wrap: true }, _) => {
            lanes!(level, |a: u32, b: u32, c: u32| -> u32 { (join(a, b) >> (c & 31)) as u32 })
        }
        (Ternary::Shf { left: false, wrap: false }, _) => {
            lanes!(level, |a: u32, b: u32, c: u32| -> u32 { (join(a, b) >> c.min(32)) as u32 })
        }
        (Ternary::Prmt(permute), _) => match permute {
            Permute::Index => lanes!(level, |a: u32, b: u32, c: u32| -> u32 { permute_bytes(a, b, c) }),
            Permute::Forward4 => {
                lanes!(level, |a: u32, b: u32, c: u32| -> u32 { (join(a, b) >> (8 * (c & 3))) as u32 })
            }
            Permute::Backward4 => lanes!(level, |a: u32, b: u32, c: u32| -> u32 {
                let n = c & 3;
                let pick = |i: u32| (n.wrapping_sub(i) & 7) << (4 * i);
                permute_bytes(a, b, pick(0) | pick(1) | pick(2) | pick(3))
            }),
            Permute::Replicate8 => lanes!(level, |a: u32, b: u32, c: u32| -> u32 {
                let _ = b;
                (a >> (8 * (c & 3)) & 0xff) * 0x0101_0101
            }),
            Permute::EdgeClampLeft => lanes!(level, |a: u32, b: u32, c: u32| -> u32 {
                let n = c & 3;
                permute_bytes(a, b, n | n.max(1) << 4 | n.max(2) << 8 | 3 << 12)
            }),
            Permute::EdgeClampRight => lanes!(level, |a: u32, b: u32, c: u32| -> u32 {
                let n = c & 3;
                permute_bytes(a, b, n.min(1) << 4 | n.min(2) << 8 | n << 12)
            }),
            Permute::Replicate16 => lanes!(level, |a: u32, b: u32, c: u32| -> u32 {
                let _ = b;
                (a >> (16 * (c & 1)) & 0xffff) * 0x0001_0001
            }),
        },
        (Ternary::Dp4a { a_signed, b_signed }, _) => match (a_signed, b_signed) {
            (false, false) => lanes!(level, |a: u32, b: u32, c: u32| -> u32 { dot4(a, b, c, false, false) }),
            (false, true) => lanes!(level, |a: u32, b: u32, c: u32| -> u32 { dot4(a, b, c, false, true) }),
            (true, false) => lanes!(level, |a: u32, b: u32, c: u32| -> u32 { dot4(a, b, c, true, false) }),
            (true, true) => lanes!(level, |a: u32, b: u32, c: u32| -> u32 { dot4(a, b, c, true, true) }),
        },
        (Ternary::Selp, _) if ty.bytes() == 8 => select::<u64>(level),
        (Ternary::Selp, _) => select::<u32>(level),
        (Ternary::Slct { float: false, .. }, _) if ty.bytes() == 8 => {
            lanes!(level, |a: u64, b: u64, c: i32| -> u64 { if c >= 0 { a } else { b } })
        }
        (Ternary::Slct { float: false, .. }, _) => {
            lanes!(level, |a: u32, b: u32, c: i32| -> u32 { if c >= 0 { a } else { b } })
        }
        (Ternary::Slct { ftz: false, .. }, _) if ty.bytes() == 8 => {
            lanes!(level, |a: u64, b: u64, c: f32| -> u64 { if c >= 0.0 { a } else { b } })
        }
        (Ternary::Slct { ftz: false, .. }, _) => {
            lanes!(level, |a: u32, b: u32, c: f32| -> u32 { if c >= 0.0 { a } else { b } })
        }
        (Ternary::Slct { .. }, _) if ty.bytes() == 8 => {
            lanes!(level, |a: u64, b: u64, c: f32| -> u64 { if flush(c) >= 0.0 { a } else { b } })
        }
        (Ternary::Slct { .. }, _) => {
            lanes!(level, |a: u32, b: u32, c: f32| -> u32 { if flush(c) >= 0.0 { a } else { b } })
        }
        _ => return None,
    })
}

#[inline(always)]
fn join(low: u32, high: u32) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}

/// The field of `length` bits at `start`, extended by its own top bit, or by that of the value where the field reaches
/// beyond it.
#[inline(always)]
fn extract_signed(value: i64, start: u32, length: u32, top: u32) -> i64 {
    let (start, length) = (start & 0xff, length & 0xff);
    if length == 0 {
        return 0;
    }
    let sign = value >> top.min(start + length - 1) & 1;
    let field = value >> start.min(63);
    let field = if start > top { 0 } else { field };
    // Bits of the field above the value are the sign too.
    let inside = if start > top { 0 } else { top - start + 1 };
    let count = length.min(inside);
    let kept = if count > 63 { -1 } else { ((1u64 << count) - 1).cast_signed() };
    field & kept | if sign == 1 { !kept } else { 0 }
}

/// `prmt`: each nibble of the selector picks a byte, or its sign eight times.
#[inline(always)]
fn permute_bytes(a: u32, b: u32, selector: u32) -> u32 {
    let bytes = join(a, b);
    let mut result = 0;
    for i in 0..4 {
        let nibble = selector >> (4 * i) & 0xf;
        let byte = (bytes >> (8 * (nibble & 7)) & 0xff) as u32;
        let byte = if nibble & 8 == 0 { byte } else { (byte >> 7) * 0xff };
        result |= byte << (8 * i);
    }
    result
}

#[inline(always)]
fn dot4(a: u32, b: u32, c: u32, a_signed: bool, b_signed: bool) -> u32 {
    let mut sum = c;
    for i in 0..4 {
        let part = |x: u32, signed: bool| {
            let byte = (x >> (8 * i)) as u8;
            if signed { i32::from(byte.cast_signed()) } else { i32::from(byte) }
        };
        sum = sum.wrapping_add_signed(part(a, a_signed) * part(b, b_signed));
    }
    sum
}

/// `dp2a`: two products of halves of `a` and bytes of a half of `b`.
#[inline(always)]
fn dot2(a: u32, b: u32, c: u32, [a_signed, b_signed, high]: [bool; 3]) -> u32 {
    let mut sum = c;
    for i in 0..2 {
        let (half, byte) = ((a >> (16 * i)) as u16, (b >> (8 * i + if high { 16 } else { 0 })) as u8);
        let half = if a_signed { i32::from(half.cast_signed()) } else { i32::from(half) };
        let byte = if b_signed { i32::from(byte.cast_signed()) } else { i32::from(byte) };
        sum = sum.wrapping_add_signed(half.wrapping_mul(byte));
    }
    sum
}

/// `fns`: the place of the n-th bit of `mask` that is set, counted from bit `base`, upwards or downwards; all
/// ones if there is none, or no such base. For the least n an H100 gives 0, as its code negates n.
#[inline(always)]
fn find_nth(mask: u32, base: u32, n: i32) -> u32 {
    if n == i32::MIN {
        return 0;
    }
    if base > 31 {
        return u32::MAX;
    }
    if n == 0 {
        return if mask >> base & 1 == 1 { base } else { u32::MAX };
    }
    let (mut place, mut left) = (base, n.unsigned_abs());
    loop {
        if mask >> place & 1 == 1 {
            left -= 1;
            if left == 0 {
                return place;
            }
        }
        match n > 0 {
            true if place < 31 => place += 1,
            false if place > 0 => place -= 1,
            _ => return u32::MAX,
        }
    }
}

fn select<T: Lane>(level: Level) -> Handler {
    struct Select<T>(std::marker::PhantomData<T>);
    impl<T: Lane> super::lane::Execute for Select<T> {
        #[inline(always)]
        fn execute(core: &mut super::code::Core<'_>, inst: &super::code::Inst) -> Flow {
            let [_, sa, sb, sp, ..] = inst.slots;
            let predicate = core.warp.registers.predicate(core.constants, sp);
            let mut out = [T::Bits::default(); 32];
            let (a, b) = (T::read(core, sa), T::read(core, sb));
            for lane in 0..32 {
                out[lane] = if predicate >> lane & 1 == 1 { a[lane] } else { b[lane] };
            }
            // Only the chosen operand counts.
            let chosen = T::written(core, sa) & predicate | T::written(core, sb) & !predicate;
            let written = chosen & core.warp.registers.predicate_written(sp);
            T::write(core, inst.slots[0], &out, written);
            Flow::Next
        }
    }
    super::lane::handler::<Select<T>>(level)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_permuted_with_their_signs() {
        assert_eq!(permute_bytes(0x0302_0100, 0x0706_0504, 0x7531), 0x0705_0301);
        assert_eq!(permute_bytes(0x0000_0080, 0, 0x0008), 0x8080_80ff);
    }

    #[test]
    fn signed_fields_are_extended() {
        assert_eq!(extract_signed(0b1010_0000, 4, 4, 31), -6);
        assert_eq!(extract_signed(0b0101_0000, 4, 4, 31), 5);
        assert_eq!(extract_signed(i64::from(i32::MIN), 30, 10, 31), -2);
        assert_eq!(extract_signed(i64::from(i32::MIN), 40, 8, 31), -1);
        assert_eq!(extract_signed(7, 0, 0, 31), 0);
        assert_eq!(extract_signed(i64::MIN, 63, 1, 63), -1);
    }
}
