//! Bit fields, tables of three inputs, and arithmetic through the carry flag.

use super::arithmetic::logic;
use super::code::{Flow, Handler, Level};
use super::lane::{Lane, warp};
use crate::ir::op::{Carry, Combine, Op};
use crate::ir::types::Ty;

/// The handler of `bfi`.
pub(crate) fn bfi(ty: Ty, level: Level) -> Handler {
    macro_rules! insert {
        ($t:ty) => {
            warp!(level, |core, inst| {
                let [to, sa, sb, sc, sd, ..] = inst.slots;
                let mut out = [0; 32];
                let (a, b) = (<$t>::read(core, sa), <$t>::read(core, sb));
                let (c, d) = (u32::read(core, sc), u32::read(core, sd));
                for lane in 0..32 {
                    let (start, length) = (c[lane] & 0xff, d[lane] & 0xff);
                    let ones = if length >= <$t>::BITS { <$t>::MAX } else { ((1 as $t) << length) - 1 };
                    let field = if start >= <$t>::BITS { 0 } else { ones << start };
                    let value = if start >= <$t>::BITS { 0 } else { a[lane] << start };
                    out[lane] = b[lane] & !field | value & field;
                }
                let written = <$t>::written(core, sa)
                    & <$t>::written(core, sb)
                    & u32::written(core, sc)
                    & u32::written(core, sd);
                <$t>::write(core, to, &out, written);
                Flow::Next
            })
        };
    }
    if ty == Ty::B64 { insert!(u64) } else { insert!(u32) }
}

/// What a table of three inputs gives in each lane.
#[inline(always)]
fn looked_up(table: u32, [a, b, c]: [&[u32; 32]; 3]) -> [u32; 32] {
    let mut out = [0u32; 32];
    // Each bit of the table is one product of the inputs or their complements.
    for term in 0..8 {
        let on = |bit: u32| if term >> bit & 1 == 1 { 0 } else { u32::MAX };
        let (na, nb, nc) = (on(2), on(1), on(0));
        let used = if table >> term & 1 == 1 { u32::MAX } else { 0 };
        for lane in 0..32 {
            out[lane] |= (a[lane] ^ na) & (b[lane] ^ nb) & (c[lane] ^ nc) & used;
        }
    }
    out
}

/// The handler of `lop3` with a predicate.
pub(crate) fn lop3_test(level: Level) -> Handler {
    warp!(level, |core, inst| {
        let Op::Lop3Test(combine) = inst.op else { return Flow::Next };
        let [to, predicate, sa, sb, sc, sp, ..] = inst.slots;
        let out = looked_up(
            inst.immediates[0] as u32,
            [u32::read(core, sa), u32::read(core, sb), u32::read(core, sc)],
        );
        let written = u32::written(core, sa) & u32::written(core, sb) & u32::written(core, sc);
        let mut holds = 0;
        for lane in 0..32 {
            holds |= u32::from(out[lane] != 0) << lane;
        }
        let registers = &core.warp.registers;
        let other = (registers.predicate(core.constants, sp), registers.predicate_written(sp));
        let (holds, known) = match combine {
            Combine::And => logic((holds, written), other, |a, b| a & b),
            _ => logic((holds, written), other, |a, b| a | b),
        };
        let mask = core.warp.mask;
        u32::write(core, to, &out, written);
        core.warp.registers.set_predicate(predicate, holds, mask, known);
        Flow::Next
    })
}

/// The handler of `lop3`.
pub(crate) fn lop3(level: Level) -> Handler {
    warp!(level, |core, inst| {
        let [to, sa, sb, sc, ..] = inst.slots;
        let out = looked_up(
            inst.immediates[0] as u32,
            [u32::read(core, sa), u32::read(core, sb), u32::read(core, sc)],
        );
        let written = u32::written(core, sa) & u32::written(core, sb) & u32::written(core, sc);
        u32::write(core, to, &out, written);
        Flow::Next
    })
}

/// The handler of arithmetic through the carry flag.
pub(crate) fn carry(_: Carry, ty: Ty, _: bool, level: Level) -> Handler {
    macro_rules! chain {
        ($t:ty, $wide:ty) => {
            warp!(level, |core, inst| {
                let Op::Carry(carry, _, set) = inst.op else { return Flow::Next };
                let [to, sa, sb, sc, ..] = inst.slots;
                let mut out = [0; 32];
                let (a, b) = (<$t>::read(core, sa), <$t>::read(core, sb));
                let mut flags = 0u32;
                let mut written = <$t>::written(core, sa) & <$t>::written(core, sb);
                let third = matches!(carry, Carry::Mad { .. });
                for lane in 0..32 {
                    let flag = core.warp.carry >> lane & 1;
                    let (x, y) = (a[lane], b[lane]);
                    let (result, flag) = match carry {
                        Carry::Add { carry_in } => {
                            let (sum, first) = x.overflowing_add(y);
                            let (sum, second) = sum.overflowing_add(if carry_in { flag as $t } else { 0 });
                            (sum, first | second)
                        }
                        Carry::Sub { carry_in } => {
                            // The flag is off where something is borrowed.
                            let (sum, first) = x.overflowing_sub(y);
                            let (sum, second) =
                                sum.overflowing_sub(if carry_in { (flag ^ 1) as $t } else { 0 });
                            (sum, !(first | second))
                        }
                        Carry::Mad { high, carry_in } => {
                            let product = if ty_is_signed(inst.op) {
                                (<$wide>::from(x.cast_signed()) * <$wide>::from(y.cast_signed()))
                                    .cast_unsigned()
                            } else {
                                (<$wide>::from(x))
                                    .cast_unsigned()
                                    .wrapping_mul((<$wide>::from(y)).cast_unsigned())
                            };
                            let half = if high { (product >> <$t>::BITS) as $t } else { product as $t };
                            let (sum, first) = half.overflowing_add(<$t>::read(core, sc)[lane]);
                            let (sum, second) = sum.overflowing_add(if carry_in { flag as $t } else { 0 });
                            (sum, first | second)
                        }
                    };
                    out[lane] = result;
                    flags |= u32::from(flag) << lane;
                }
                if third {
                    written &= <$t>::written(core, sc);
                }
                <$t>::write(core, to, &out, written);
                if set {
                    let mask = core.warp.mask;
                    core.warp.carry = core.warp.carry & !mask | flags & mask;
                }
                Flow::Next
            })
        };
    }
    if ty.bytes() == 8 { chain!(u64, i128) } else { chain!(u32, i64) }
}

fn ty_is_signed(op: Op) -> bool {
    matches!(op, Op::Carry(_, ty, _) if ty.is_signed())
}
