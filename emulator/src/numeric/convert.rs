//! `cvt`: every conversion between two types, on single values.

use super::float::{Round, canonical, flush, quiet64, round_to_f32, saturate, widen};
use super::half::{NAN16, NAN32, bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16, f32_to_tf32};
use super::narrow::{e4m3_to_f32, e5m2_to_f32, f32_to_e4m3, f32_to_e5m2};
use crate::ir::types::Ty;

/// A conversion of one value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Conversion {
    pub(crate) to: Ty,
    pub(crate) from: Ty,
    /// The rounding; none is given where the conversion is exact.
    pub(crate) round: Round,
    /// The rounding is one to an integral value (`rni` and its like).
    pub(crate) integral: bool,
    pub(crate) ftz: bool,
    pub(crate) sat: bool,
    /// Negative results become 0; NaN stays.
    pub(crate) relu: bool,
    /// Results beyond the largest finite value become that.
    pub(crate) satfinite: bool,
}

impl Conversion {
    /// Converts the low bits of `bits`; the result stands in the low bits, extended to 64 by its sign if it is a signed
    /// integer.
    pub(crate) fn apply(&self, bits: u64) -> u64 {
        if self.to == Ty::Tf32 {
            return u64::from(self.narrow_tf32(bits as u32));
        }
        match (self.from.is_float(), self.to.is_float()) {
            (false, false) => self.integer_to_integer(bits),
            (false, true) => self.integer_to_float(bits),
            (true, false) => self.float_to_integer(bits),
            (true, true) => self.float_to_float(bits),
        }
    }

    fn integer(&self, bits: u64) -> i128 {
        match self.from {
            Ty::U8 | Ty::B8 => i128::from(bits as u8),
            Ty::S8 => i128::from(bits as i8),
            Ty::U16 | Ty::B16 => i128::from(bits as u16),
            Ty::S16 => i128::from(bits as i16),
            Ty::U32 | Ty::B32 => i128::from(bits as u32),
            Ty::S32 => i128::from(bits as i32),
            Ty::S64 => i128::from(bits.cast_signed()),
            _ => i128::from(bits),
        }
    }

    /// The smallest and the largest value of the integer type `to`.
    fn range(&self) -> (i128, i128) {
        let bits = self.to.bytes() * 8;
        if self.to.is_signed() { (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) } else { (0, (1 << bits) - 1) }
    }

    fn integer_to_integer(&self, bits: u64) -> u64 {
        let value = self.integer(bits);
        let (low, high) = self.range();
        let value = if self.sat { value.clamp(low, high) } else { value };
        self.narrow(value as u64)
    }

    /// Cuts to the size of `to`, and extends again by its sign.
    fn narrow(&self, value: u64) -> u64 {
        let unused = 64 - self.to.bytes() * 8;
        if self.to.is_signed() {
            ((value << unused).cast_signed() >> unused).cast_unsigned()
        } else {
            (value << unused) >> unused
        }
    }

    fn integer_to_float(&self, bits: u64) -> u64 {
        let value = self.integer(bits);
        if self.to == Ty::F64 {
            let near = value as f64;
            return directed(near, value.cmp(&(near as i128)), self.round).to_bits();
        }
        // Rounding to odd in f64 first, so that the second rounding is the only one that counts.
        let near = value as f64;
        let residue = match value.cmp(&(near as i128)) {
            std::cmp::Ordering::Less => -1.0,
            std::cmp::Ordering::Equal => 0.0,
            std::cmp::Ordering::Greater => 1.0,
        };
        match self.to {
            Ty::F32 if self.round == Round::Nearest => u64::from((value as f32).to_bits()),
            Ty::F32 => u64::from(round_to_f32(near, residue, self.round).to_bits()),
            _ => self.narrow_float(odd64(near, residue)),
        }
    }

    fn float(&self, bits: u64) -> f64 {
        match self.from {
            Ty::F16 => widen(f16_to_f32(bits as u16)),
            Ty::Bf16 => widen(bf16_to_f32(bits as u16)),
            Ty::E4m3 => f64::from(e4m3_to_f32(bits as u8)),
            Ty::E5m2 => f64::from(e5m2_to_f32(bits as u8)),
            Ty::F64 => f64::from_bits(bits),
            _ => {
                let value = f32::from_bits(bits as u32);
                // To f16, what is subnormal in f32 rounds as it is.
                widen(if self.ftz && self.to != Ty::F16 { flush(value) } else { value })
            }
        }
    }

    fn float_to_integer(&self, bits: u64) -> u64 {
        let value = self.float(bits);
        let (low, high) = self.range();
        if value.is_nan() {
            // From f64, or to 64 bits, NaN becomes the value with only the top bit set.
            let indefinite = self.from == Ty::F64 || self.to.bytes() == 8;
            return if indefinite { self.narrow(1 << (self.to.bytes() * 8 - 1)) } else { 0 };
        }
        let rounded = integral(value, self.round);
        // The cast saturates at 128 bits, far outside every range.
        self.narrow((rounded as i128).clamp(low, high) as u64)
    }

    fn float_to_float(&self, bits: u64) -> u64 {
        let moves = !(self.integral || self.ftz || self.sat || self.relu || self.satfinite);
        if moves && self.to == self.from {
            return bits;
        }
        if self.to == Ty::Tf32 {
            return u64::from(self.narrow_tf32(bits as u32));
        }
        let mut value = self.float(bits);
        if value.is_nan() && !self.sat && self.to.bytes() > 1 {
            return self.nan(value);
        }
        if self.integral {
            value = integral(value, self.round);
        }
        // Minus zero counts as negative.
        if self.relu && value <= 0.0 {
            value = 0.0;
        }
        match self.to {
            Ty::F64 => {
                let value = match (self.sat, self.from) {
                    (true, _) => {
                        if value > 0.0 {
                            value.min(1.0)
                        } else {
                            0.0
                        }
                    }
                    _ => value,
                };
                value.to_bits()
            }
            // What is below the smallest normal number before it is rounded counts as zero.
            Ty::F32 if self.ftz && value.abs() < f64::from(f32::MIN_POSITIVE) => {
                u64::from(if self.sat { 0.0 } else { 0f32.copysign(value as f32) }.to_bits())
            }
            Ty::F32 => {
                let round = if self.integral { Round::Nearest } else { self.round };
                let narrow = canonical(round_to_f32(value, 0.0, round));
                let narrow = if self.ftz { flush(narrow) } else { narrow };
                u64::from(if self.sat { saturate(narrow) } else { narrow }.to_bits())
            }
            _ => {
                if self.sat {
                    value = if value > 0.0 { value.min(1.0) } else { 0.0 };
                }
                self.narrow_float(value)
            }
        }
    }

    /// From f32 to TF32.
    fn narrow_tf32(&self, bits: u32) -> u32 {
        let value = f32::from_bits(bits);
        if self.relu && value <= 0.0 {
            return 0;
        }
        let nan = value.is_nan();
        let result = match self.round {
            Round::Nearest | Round::Zero if nan => NAN32 & !0x1fff,
            Round::Nearest => bits.wrapping_add(0xfff + (bits >> 13 & 1)) & !0x1fff,
            Round::Zero => bits & !0x1fff,
            _ => f32_to_tf32(value),
        };
        // The GPU steps back from NaN as it does from infinity.
        let beyond = self.satfinite && result & 0x7fff_ffff >= 0x7f80_0000;
        if beyond { result - 0x2000 } else { result }
    }

    /// What a NaN becomes. Where f64 takes part, it keeps its sign and what has room of its payload.
    fn nan(&self, value: f64) -> u64 {
        let bits = quiet64(value).to_bits();
        let sign = bits >> 63;
        match (self.to, self.from) {
            (Ty::F64, Ty::F32) if self.ftz => widen(f32::from_bits(NAN32)).to_bits(),
            (Ty::F64, _) => bits,
            (Ty::F32, Ty::F64) => sign << 31 | 0x7f80_0000 | bits >> 29 & 0x007f_ffff,
            (Ty::F16, Ty::F64) => sign << 15 | 0x7c00 | bits >> 42 & 0x3ff,
            (Ty::Bf16, Ty::F64) => sign << 15 | 0x7f80 | bits >> 45 & 0x7f,
            (Ty::F32, Ty::Bf16) if !self.ftz => sign << 31 | 0x7f80_0000 | bits >> 29 & 0x007f_ffff,
            (Ty::F32, _) => u64::from(NAN32),
            _ => u64::from(NAN16),
        }
    }

    /// To one of the narrow types, from a value that is exact or rounded to odd.
    fn narrow_float(&self, value: f64) -> u64 {
        match self.to {
            Ty::E4m3 => return u64::from(f32_to_e4m3(value as f32)),
            Ty::E5m2 => return u64::from(f32_to_e5m2(value as f32)),
            _ => {}
        }
        let brain = self.to == Ty::Bf16;
        let from_f32 = |x| if brain { f32_to_bf16(x) } else { f32_to_f16(x) };
        let to_f32 = |x| if brain { bf16_to_f32(x) } else { f16_to_f32(x) };
        let largest = if brain { 0x7f7f } else { 0x7bff };
        if value.is_nan() {
            return u64::from(NAN16);
        }
        let mut result = from_f32(super::float::odd_f32(value));
        let infinite = to_f32(result).is_infinite();
        let sign = result & 0x8000;
        let back = f64::from(to_f32(result));
        match self.round {
            _ if infinite && value.is_infinite() => {}
            Round::Zero if back.abs() > value.abs() => result -= 1,
            Round::Down if back > value => result = if sign == 0 { step_down(result) } else { result + 1 },
            Round::Up if back < value => result = if sign == 0 { result + 1 } else { step_down(result) },
            _ => {}
        }
        if self.satfinite && to_f32(result).is_infinite() {
            result = sign | largest;
        }
        u64::from(result)
    }
}

/// The next value towards zero, by the bits of a magnitude that is not zero.
fn step_down(bits: u16) -> u16 {
    if bits & 0x7fff == 0 { bits ^ 0x8000 | 1 } else { bits - 1 }
}

/// The value rounded to an integral one.
fn integral(value: f64, round: Round) -> f64 {
    match round {
        Round::Nearest => value.round_ties_even(),
        Round::Zero => value.trunc(),
        Round::Down => value.floor(),
        Round::Up => value.ceil(),
        Round::Away => value.round(),
    }
}

/// Steps from the nearest f64 to the one that the rounding mode asks for.
fn directed(near: f64, exact: std::cmp::Ordering, round: Round) -> f64 {
    use std::cmp::Ordering::{Greater, Less};
    match (round, exact) {
        (Round::Down, Less) => near.next_down(),
        (Round::Up, Greater) => near.next_up(),
        (Round::Zero, Less) if near > 0.0 => near.next_down(),
        (Round::Zero, Greater) if near < 0.0 => near.next_up(),
        _ => near,
    }
}

/// `near` rounded to odd, where `residue` has the sign of what rounding to nearest lost.
fn odd64(near: f64, residue: f64) -> f64 {
    if residue == 0.0 || near.to_bits() & 1 == 1 {
        near
    } else if residue > 0.0 {
        near.next_up()
    } else {
        near.next_down()
    }
}

/// Two f32 to a packed pair of f16; the first operand is the upper half.
#[inline(always)]
pub(crate) fn pack_f16(upper: f32, lower: f32) -> u32 {
    u32::from(f32_to_f16(upper)) << 16 | u32::from(f32_to_f16(lower))
}

/// Two f32 to a packed pair of bf16; the first operand is the upper half.
#[inline(always)]
pub(crate) fn pack_bf16(upper: f32, lower: f32) -> u32 {
    u32::from(f32_to_bf16(upper)) << 16 | u32::from(f32_to_bf16(lower))
}
