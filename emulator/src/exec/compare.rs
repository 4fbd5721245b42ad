//! `setp` and `set`.

use super::arithmetic::logic;
use super::code::{Core, Flow, Handler, Inst, Level};
use super::lane::{Execute, Lane, handler, warp};
use crate::ir::op::{Combine, Compare, Op, Relation};
use crate::ir::types::Ty;
use crate::numeric::float::flush;
use crate::numeric::half::{bf16_to_f32, f16_to_f32};

/// Compares the lanes of two registers: a mask for each relation.
trait Comparable: Lane {
    /// The type in which the comparison is made.
    type Value: PartialOrd + Copy;
    fn value(self) -> Self::Value;
}

macro_rules! comparable {
    ($($ty:ty => $value:ty: |$x:ident| $e:expr;)*) => {$(
        impl Comparable for $ty {
            type Value = $value;
            #[inline(always)]
            fn value(self) -> $value { let $x = self; $e }
        }
    )*};
}
comparable! {
    u16 => u16: |x| x;
    i16 => i16: |x| x;
    u32 => u32: |x| x;
    i32 => i32: |x| x;
    u64 => u64: |x| x;
    i64 => i64: |x| x;
    f32 => f32: |x| x;
    f64 => f64: |x| x;
    Flushed => f32: |x| flush(x.0);
    Half => f32: |x| f16_to_f32(x.0);
    FlushedHalf => f32: |x| f16_to_f32(if x.0 & 0x7c00 == 0 { x.0 & 0x8000 } else { x.0 });
    Brain => f32: |x| bf16_to_f32(x.0);
}

/// An f32 whose subnormal values count as zeros.
#[derive(Clone, Copy)]
struct Flushed(f32);
/// An f16.
#[derive(Clone, Copy)]
struct Half(u16);
/// An f16 whose subnormal values count as zeros.
#[derive(Clone, Copy)]
struct FlushedHalf(u16);
/// A bf16.
#[derive(Clone, Copy)]
struct Brain(u16);

macro_rules! through {
    ($($ty:ident($inner:ty);)*) => {$(
        impl Lane for $ty {
            type Bits = u32;
            #[inline(always)]
            fn from_bits(bits: u32) -> Self { $ty(<$inner as Lane>::from_bits(bits)) }
            #[inline(always)]
            fn to_bits(self) -> u32 { Lane::to_bits(self.0) }
            #[inline(always)]
            fn read<'a>(core: &'a Core<'_>, slot: u32) -> &'a [u32; 32] { u32::read(core, slot) }
            #[inline(always)]
            fn written(core: &Core<'_>, slot: u32) -> u32 { u32::written(core, slot) }
            #[inline(always)]
            fn write(core: &mut Core<'_>, slot: u32, values: &[u32; 32], written: u32) {
                u32::write(core, slot, values, written);
            }
        }
    )*};
}
through! { Flushed(f32); Half(u16); FlushedHalf(u16); Brain(u16); }

#[inline(always)]
fn mask_of<T: Comparable>(
    a: &[T::Bits; 32],
    b: &[T::Bits; 32],
    f: impl Fn(T::Value, T::Value) -> bool,
) -> u32 {
    let mut flags = [0u32; 32];
    for lane in 0..32 {
        flags[lane] = u32::from(f(T::from_bits(a[lane]).value(), T::from_bits(b[lane]).value())) << lane;
    }
    flags.iter().fold(0, |mask, flag| mask | flag)
}

/// The lanes in which the comparison holds.
#[inline(always)]
fn compare<T: Comparable>(core: &Core<'_>, inst: &Inst, first: usize, c: Compare) -> (u32, u32) {
    let (sa, sb) = (inst.slots[first], inst.slots[first + 1]);
    let (a, b) = (T::read(core, sa), T::read(core, sb));
    #[expect(clippy::double_comparisons, reason = "a NaN is neither less nor greater, and not `!=` here")]
    let mut mask = match c.relation {
        Relation::Equal => mask_of::<T>(a, b, |a, b| a == b),
        Relation::NotEqual => mask_of::<T>(a, b, |a, b| a < b || a > b),
        Relation::Less => mask_of::<T>(a, b, |a, b| a < b),
        Relation::LessEqual => mask_of::<T>(a, b, |a, b| a <= b),
        Relation::Greater => mask_of::<T>(a, b, |a, b| a > b),
        Relation::GreaterEqual => mask_of::<T>(a, b, |a, b| a >= b),
        Relation::Ordered => mask_of::<T>(a, b, |a, b| a.partial_cmp(&b).is_some()),
        Relation::Unordered => mask_of::<T>(a, b, |a, b| a.partial_cmp(&b).is_none()),
    };
    if c.unordered {
        mask |= mask_of::<T>(a, b, |a, b| a.partial_cmp(&b).is_none());
    }
    (mask, T::written(core, sa) & T::written(core, sb))
}

/// Combines with the predicate after the operands, if the form has one. Gives the combined mask, and the one whose
/// comparison is negated, each with the lanes in which it is written.
#[inline(always)]
fn combine(
    core: &Core<'_>,
    inst: &Inst,
    slot: usize,
    c: Compare,
    (mask, written): (u32, u32),
) -> [(u32, u32); 2] {
    let Some(combine) = c.combine else { return [(mask, written), (!mask, written)] };
    let registers = &core.warp.registers;
    let other = (
        registers.predicate(core.constants, inst.slots[slot]),
        registers.predicate_written(inst.slots[slot]),
    );
    [mask, !mask].map(|mask| match combine {
        Combine::And => logic((mask, written), other, |a, b| a & b),
        Combine::Or => logic((mask, written), other, |a, b| a | b),
        Combine::Xor => logic((mask, written), other, |a, b| a ^ b),
    })
}

struct Setp<T>(std::marker::PhantomData<T>);

impl<T: Comparable> Execute for Setp<T> {
    #[inline(always)]
    fn execute(core: &mut Core<'_>, inst: &Inst) -> Flow {
        let Op::Setp(c) = inst.op else { return Flow::Next };
        let result = compare::<T>(core, inst, 2, c);
        let [(mask, written), (negated, negated_written)] = combine(core, inst, 4, c, result);
        let lanes = core.warp.mask;
        core.warp.registers.set_predicate(inst.slots[1], negated, lanes, negated_written);
        core.warp.registers.set_predicate(inst.slots[0], mask, lanes, written);
        Flow::Next
    }
}

struct Set<T>(std::marker::PhantomData<T>);

impl<T: Comparable> Execute for Set<T> {
    #[inline(always)]
    fn execute(core: &mut Core<'_>, inst: &Inst) -> Flow {
        let Op::Set(c, to) = inst.op else { return Flow::Next };
        let result = compare::<T>(core, inst, 1, c);
        let [(mask, written), _] = combine(core, inst, 3, c, result);
        let yes = yes(to);
        let mut out = [0u32; 32];
        for lane in 0..32 {
            out[lane] = if mask >> lane & 1 == 1 { yes } else { 0 };
        }
        u32::write(core, inst.slots[0], &out, written);
        Flow::Next
    }
}

/// A comparison of both halves of the operands: masks for the lower and the upper ones.
fn compare_halves(core: &Core<'_>, slots: [u32; 2], c: Compare) -> ([u32; 2], u32) {
    let (a, b) = (u32::read(core, slots[0]), u32::read(core, slots[1]));
    let value = |word: u32, half: usize| {
        let bits = (word >> (16 * half)) as u16;
        match c.ty {
            Ty::Bf16x2 => bf16_to_f32(bits),
            _ if c.ftz && bits & 0x7c00 == 0 => f16_to_f32(bits & 0x8000),
            _ => f16_to_f32(bits),
        }
    };
    let mut masks = [0; 2];
    for (half, mask) in masks.iter_mut().enumerate() {
        for lane in 0..32 {
            let order = value(a[lane], half).partial_cmp(&value(b[lane], half));
            let holds = match order {
                None => c.unordered || c.relation == Relation::Unordered,
                Some(order) => match c.relation {
                    Relation::Equal => order.is_eq(),
                    Relation::NotEqual => order.is_ne(),
                    Relation::Less => order.is_lt(),
                    Relation::LessEqual => order.is_le(),
                    Relation::Greater => order.is_gt(),
                    Relation::GreaterEqual => order.is_ge(),
                    Relation::Ordered => true,
                    Relation::Unordered => false,
                },
            };
            *mask |= u32::from(holds) << lane;
        }
    }
    (masks, u32::written(core, slots[0]) & u32::written(core, slots[1]))
}

/// The handler of `setp` on both halves of words.
pub(crate) fn setp_halves(level: Level) -> Handler {
    warp!(level, |core, inst| {
        let Op::SetpHalves(c) = inst.op else { return Flow::Next };
        let [low, high, a, b, ..] = inst.slots;
        let (masks, written) = compare_halves(core, [a, b], c);
        let lanes = core.warp.mask;
        core.warp.registers.set_predicate(high, masks[1], lanes, written);
        core.warp.registers.set_predicate(low, masks[0], lanes, written);
        Flow::Next
    })
}

/// The handler of `set` on both halves of words.
pub(crate) fn set_halves(level: Level) -> Handler {
    warp!(level, |core, inst| {
        let Op::SetHalves(c, to) = inst.op else { return Flow::Next };
        let (masks, written) = compare_halves(core, [inst.slots[1], inst.slots[2]], c);
        let yes = yes(to) & 0xffff;
        let half = |mask: u32, lane: usize| if mask >> lane & 1 == 1 { yes } else { 0 };
        let out = std::array::from_fn(|lane| half(masks[1], lane) << 16 | half(masks[0], lane));
        u32::write(core, inst.slots[0], &out, written);
        Flow::Next
    })
}

/// What a comparison that holds gives in a type.
fn yes(to: Ty) -> u32 {
    match to {
        Ty::F32 => 1f32.to_bits(),
        Ty::F16 | Ty::F16x2 => 0x3c00,
        Ty::Bf16 | Ty::Bf16x2 => 0x3f80,
        to if to.bytes() == 2 => 0xffff,
        _ => u32::MAX,
    }
}

macro_rules! by_type {
    ($run:ident, $c:expr, $level:expr) => {
        match $c.ty {
            Ty::U16 | Ty::B16 => handler::<$run<u16>>($level),
            Ty::S16 => handler::<$run<i16>>($level),
            Ty::S32 => handler::<$run<i32>>($level),
            Ty::U64 | Ty::B64 => handler::<$run<u64>>($level),
            Ty::S64 => handler::<$run<i64>>($level),
            Ty::F32 if $c.ftz => handler::<$run<Flushed>>($level),
            Ty::F32 => handler::<$run<f32>>($level),
            Ty::F64 => handler::<$run<f64>>($level),
            Ty::F16 if $c.ftz => handler::<$run<FlushedHalf>>($level),
            Ty::F16 => handler::<$run<Half>>($level),
            Ty::Bf16 => handler::<$run<Brain>>($level),
            _ => handler::<$run<u32>>($level),
        }
    };
}

/// The handler of `setp`.
pub(crate) fn setp(c: Compare, level: Level) -> Handler {
    by_type!(Setp, c, level)
}

/// The handler of `set`.
pub(crate) fn set(c: Compare, _: Ty, level: Level) -> Handler {
    by_type!(Set, c, level)
}
