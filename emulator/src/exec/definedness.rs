//! Which bits of a register were written, where not all were.
//!
//! A register's mask says in which lanes it is written as a whole; that is all that most instructions look at. Structures with padding, bit
//! fields and loads of which a part is used make registers that are written in part. Their bits are kept beside the registers, and the
//! instructions that move bits about carry them on. What arithmetic makes of them counts as not written.

use super::code::{Core, Inst};
use super::registers::{DOUBLE, Registers, Slot};
use super::video;
use crate::ir::op::{Binary, Op, Permute, Ternary, Unary};

/// A bit for each bit of each lane; those beyond the register's width are set.
pub(crate) type Bits = [u64; 32];

/// The bits of bytes, of which a mask has one each.
pub(crate) fn spread(bytes: u32) -> u64 {
    (0..8).filter(|byte| bytes >> byte & 1 == 1).fold(0, |bits, byte| bits | 0xff << (8 * byte))
}

/// The bytes of which bits are set. In memory, which keeps a bit for each byte, those count as written: the fields of a byte are mostly
/// written one after the other.
pub(crate) fn touched_bytes(bits: u64) -> u32 {
    (0..8).filter(|byte| bits >> (8 * byte) & 0xff != 0).fold(0, |bytes, byte| bytes | 1 << byte)
}

impl Core<'_> {
    /// An instruction has written registers whose lanes are not written as a whole: finds out which bits are.
    #[cold]
    pub(super) fn refine(&mut self, inst: &Inst) {
        let before = self.warp.registers.take_overwritten();
        if !self.launch.checks.uninitialised {
            return;
        }
        match inst.op {
            Op::Load { .. } => {
                self.warp.unwritten =
                    Some(("the warp's last load of what nothing had written", self.warp.pc));
            }
            Op::Shuffle { .. } => {
                let what = "the warp's last shuffle that gave lanes nothing: what they read from did not take part, or had nothing";
                self.warp.unwritten = Some((what, self.warp.pc));
            }
            _ => {}
        }
        let registers = &self.warp.registers;
        let of = |slot: Slot| match before.iter().find(|(overwritten, ..)| *overwritten == slot) {
            Some((_, values, bits)) => (*values, *bits),
            None => (registers.values_of(self.constants, slot), registers.bits_of(slot)),
        };
        let predicate = |slot: Slot| registers.predicate(self.constants, slot);
        let results: Vec<(Slot, Bits)> = before
            .iter()
            .filter_map(|&(slot, ..)| Some((slot, bits_of_result(inst, slot, &of, &predicate)?)))
            .collect();
        for (slot, bits) in results {
            self.warp.registers.set_bits(slot, self.warp.mask, &bits);
        }
    }
}

/// The bits of a result that are written; `of` gives the values of an operand, and which of their bits are.
fn bits_of_result(
    inst: &Inst,
    result: Slot,
    of: &dyn Fn(Slot) -> (Bits, Bits),
    predicate: &dyn Fn(Slot) -> u32,
) -> Option<Bits> {
    let [to, sa, sb, sc, sd, ..] = inst.slots;
    if result != to && !matches!(inst.op, Op::Unpack(..)) {
        return None;
    }
    let width = if result & DOUBLE == 0 { 32 } else { 64 };
    let each = |f: &dyn Fn(usize) -> u64| Some(std::array::from_fn(|lane| f(lane) | beyond(width)));
    // Known where the amount of a shift or the like is.
    let amount = |slot: Slot| {
        let (values, bits) = of(slot);
        move |lane: usize| (bits[lane] == u64::MAX).then_some(values[lane] as u32)
    };
    match inst.op {
        Op::Unary(Unary::Mov | Unary::Not, ..) => Some(of(sa).1),
        Op::Unary(Unary::Brev, ..) => {
            let a = of(sa).1;
            each(&|lane| a[lane].reverse_bits() >> (64 - width))
        }
        Op::Binary(Binary::Xor | Binary::Sub, ty, _) if sa == sb && !ty.is_float() => Some([u64::MAX; 32]),
        Op::Binary(Binary::And | Binary::Or | Binary::Xor, ..) => {
            let ((a, da), (b, db)) = (of(sa), of(sb));
            let table = match inst.op {
                Op::Binary(Binary::And, ..) => 0xc0,
                Op::Binary(Binary::Or, ..) => 0xfc,
                _ => 0x3c,
            };
            each(&|lane| logic(table, [a[lane], b[lane], 0], [da[lane], db[lane], u64::MAX]))
        }
        Op::Lop3 => {
            let ((a, da), (b, db), (c, dc)) = (of(sa), of(sb), of(sc));
            let table = inst.immediates[0] as u8;
            each(&|lane| logic(table, [a[lane], b[lane], c[lane]], [da[lane], db[lane], dc[lane]]))
        }
        // A carry goes up only.
        Op::Binary(Binary::Add | Binary::Sub | Binary::Mul, ty, _) if !ty.is_float() => {
            let (da, db) = (of(sa).1, of(sb).1);
            each(&|lane| {
                let first = (da[lane] & db[lane]).trailing_ones();
                1u64.checked_shl(first).map_or(u64::MAX, |bit| bit - 1)
            })
        }
        Op::Binary(Binary::Shl, ty, _) => {
            let (a, by, above) = (of(sa).1, amount(sb), beyond(8 * ty.bytes()));
            each(&|lane| by(lane).map_or(0, |by| !(!a[lane]).checked_shl(by).unwrap_or(0) | above))
        }
        Op::Binary(Binary::Shr, ty, _) => {
            let (a, by, size) = (of(sa).1, amount(sb), 8 * ty.bytes());
            each(&|lane| by(lane).map_or(0, |by| shifted_right(a[lane], by, size, ty.is_signed())))
        }
        Op::Ternary(Ternary::Selp, ..) => {
            let (a, b, which) = (of(sa).1, of(sb).1, predicate(sc));
            each(&|lane| if which >> lane & 1 == 1 { a[lane] } else { b[lane] })
        }
        Op::Ternary(Ternary::Bfe, ty, ..) => {
            let (a, start, length, size) = (of(sa).1, amount(sb), amount(sc), 8 * ty.bytes());
            each(&|lane| {
                let (Some(start), Some(length)) = (start(lane), length(lane)) else { return 0 };
                let (start, length) = (start & 0xff, length & 0xff);
                let moved = shifted_right(a[lane], start, size, ty.is_signed());
                let field = if length > 63 { u64::MAX } else { (1 << length) - 1 };
                let sign = !ty.is_signed() || length == 0 || moved >> (length - 1).min(63) & 1 == 1;
                moved & field | if sign { !field } else { 0 }
            })
        }
        Op::Ternary(Ternary::Shf { left, wrap }, ..) => {
            let (low, high, by) = (of(sa).1, of(sb).1, amount(sc));
            each(&|lane| {
                let Some(by) = by(lane) else { return 0 };
                let by = if wrap { by & 31 } else { by.min(32) };
                let both = high[lane] << 32 | low[lane] & 0xffff_ffff;
                if left { ((u128::from(both) << by) >> 32) as u64 } else { both >> by }
            })
        }
        Op::Ternary(Ternary::Prmt(Permute::Index), ..) => {
            let (low, high, select) = (of(sa).1, of(sb).1, amount(sc));
            each(&|lane| {
                let Some(select) = select(lane) else { return 0 };
                let both = high[lane] << 32 | low[lane] & 0xffff_ffff;
                (0..4).fold(0, |bits, byte| {
                    let nibble = select >> (4 * byte);
                    let from = both >> (8 * (nibble & 7)) & 0xff;
                    // A sign is one bit.
                    let from = if nibble & 8 == 0 { from } else { 0xff * (from >> 7) };
                    bits | from << (8 * byte)
                })
            })
        }
        Op::Bfi(_) => {
            let (insert, into, start, length) = (of(sa).1, of(sb).1, amount(sc), amount(sd));
            each(&|lane| {
                let (Some(start), Some(length)) = (start(lane), length(lane)) else { return 0 };
                let (start, length) = (start & 0xff, length & 0xff);
                let ones = if length > 63 { u64::MAX } else { (1 << length) - 1 };
                let field = ones.checked_shl(start).unwrap_or(0);
                into[lane] & !field | insert[lane].checked_shl(start).unwrap_or(0) & field
            })
        }
        Op::Convert(c) if !c.from.is_float() && !c.to.is_float() && !c.sat => {
            let (a, from, to) = (of(sa).1, 8 * c.from.bytes(), 8 * c.to.bytes());
            each(&|lane| {
                let sign = !c.from.is_signed() || a[lane] >> (from - 1) & 1 == 1;
                let wide = a[lane] & !beyond(from) | if sign { beyond(from) } else { 0 };
                wide | beyond(to)
            })
        }
        Op::Pack(count, ty) => {
            let bits = 8 * ty.bytes() / u32::from(count);
            let parts: Vec<Bits> = (0..usize::from(count)).map(|part| of(inst.slots[1 + part]).1).collect();
            each(&|lane| {
                let part = |part: usize| (parts[part][lane] & !beyond(bits)) << (part as u32 * bits);
                (0..parts.len()).fold(0, |all, i| all | part(i))
            })
        }
        Op::Video(v) => Some(video::scalar_bits(v, &of(sa).1, &of(sb).1, &of(sc).1)),
        Op::VideoSimd(v) => Some(video::simd_bits(v, &of(sa).1, &of(sb).1, &of(sc).1)),
        Op::Unpack(count, ty) => {
            let bits = 8 * ty.bytes() / u32::from(count);
            let part = inst.slots[..usize::from(count)].iter().position(|&slot| slot == result)?;
            let from = of(inst.slots[usize::from(count)]).1;
            each(&|lane| from[lane] >> (part as u32 * bits) & !beyond(bits) | beyond(bits))
        }
        _ => None,
    }
}

/// The bits from a width on.
fn beyond(width: u32) -> u64 {
    u64::MAX.checked_shl(width).unwrap_or(0)
}

/// The bits of a bitwise function that do not depend on bits that were not written.
fn logic(table: u8, values: [u64; 3], written: [u64; 3]) -> u64 {
    let apply = |[a, b, c]: [u64; 3]| {
        (0..8u32).filter(|term| table >> term & 1 == 1).fold(0, |all, term| {
            let of = |value: u64, bit: u32| if term >> bit & 1 == 1 { value } else { !value };
            all | of(a, 2) & of(b, 1) & of(c, 0)
        })
    };
    let first = apply(values);
    let changed = (1..8u32).fold(0, |changed, which| {
        let flip = |i: usize| if which >> i & 1 == 1 { values[i] ^ !written[i] } else { values[i] };
        changed | first ^ apply([flip(0), flip(1), flip(2)])
    });
    !changed
}

/// What is written of a value of some size that is shifted right: zeros, or copies of the sign, come in.
fn shifted_right(bits: u64, by: u32, size: u32, signed: bool) -> u64 {
    let by = by.min(size);
    let comes = !signed || bits >> (size - 1) & 1 == 1;
    let inside = (bits & !beyond(size)).checked_shr(by).unwrap_or(0);
    let new = beyond(size - by);
    inside & !new | if comes { new } else { beyond(size) }
}

impl Registers {
    /// Which bits of a register are written in each lane.
    pub(crate) fn bits_of(&self, slot: Slot) -> Bits {
        let written = if slot & DOUBLE == 0 { self.word_written(slot) } else { self.double_written(slot) };
        let partial = self.partial.get(&slot);
        std::array::from_fn(|lane| match partial {
            _ if written >> lane & 1 == 1 => u64::MAX,
            Some(bits) => bits[lane],
            None => {
                if slot & DOUBLE == 0 {
                    beyond(32)
                } else {
                    0
                }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bit_counts_where_it_does_not_depend_on_what_was_not_written() {
        // a & 0x0f, of which nothing of a is known: the upper bits are.
        assert_eq!(logic(0xc0, [0, 0x0f, 0], [0, u64::MAX, u64::MAX]), !0x0f);
        assert_eq!(logic(0xfc, [0, 0x0f, 0], [0, u64::MAX, u64::MAX]), 0x0f);
        assert_eq!(logic(0x3c, [0, 0x0f, 0], [0xf0, u64::MAX, u64::MAX]), 0xf0);
    }

    #[test]
    fn shifts_bring_in_what_is_written() {
        assert_eq!(shifted_right(0x00ff, 4, 16, false), 0xffff_ffff_ffff_f00f);
        assert_eq!(shifted_right(0x00ff, 4, 16, true), 0xffff_ffff_ffff_000f);
        assert_eq!(shifted_right(0xff00, 4, 16, true), 0xffff_ffff_ffff_fff0);
        assert_eq!(shifted_right(0, 32, 32, false), u64::MAX);
    }

    #[test]
    fn bytes_and_bits_name_each_other() {
        for bytes in 0..256 {
            assert_eq!(touched_bytes(spread(bytes)), bytes);
        }
        assert_eq!(touched_bytes(0xff00_7f00), 0b1010);
    }
}
