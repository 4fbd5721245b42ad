//! Loops over lanes. An operation is written for one lane; here it becomes a loop that the compiler turns into vector
//! code, once for each level of the host's instruction set.

use super::code::{Core, Flow, Handler, Inst, Level};
use super::registers::Slot;

/// A type that a lane's value is read or written as.
pub(crate) trait Lane: Copy {
    /// The register's own integer.
    type Bits: Copy + Default;
    fn from_bits(bits: Self::Bits) -> Self;
    fn to_bits(self) -> Self::Bits;
    fn read<'a>(core: &'a Core<'_>, slot: Slot) -> &'a [Self::Bits; 32];
    fn written(core: &Core<'_>, slot: Slot) -> u32;
    fn write(core: &mut Core<'_>, slot: Slot, values: &[Self::Bits; 32], written: u32);
}

macro_rules! lane {
    ($bits:ty, $read:ident, $written:ident, $write:ident; $($ty:ty: |$in:ident| $from:expr, |$out:ident| $to:expr;)*) => {$(
        impl Lane for $ty {
            type Bits = $bits;
            #[inline(always)]
            fn from_bits($in: $bits) -> $ty { $from }
            #[inline(always)]
            fn to_bits(self) -> $bits { let $out = self; $to }
            #[inline(always)]
            fn read<'a>(core: &'a Core<'_>, slot: Slot) -> &'a [$bits; 32] {
                core.warp.registers.$read(core.constants, slot)
            }
            #[inline(always)]
            fn written(core: &Core<'_>, slot: Slot) -> u32 { core.warp.registers.$written(slot) }
            #[inline(always)]
            fn write(core: &mut Core<'_>, slot: Slot, values: &[$bits; 32], written: u32) {
                let mask = core.warp.mask;
                core.warp.registers.$write(slot, values, mask, written);
            }
        }
    )*};
}
lane! { u32, word, word_written, set_word;
    u8: |x| x as u8, |x| u32::from(x);
    u16: |x| x as u16, |x| u32::from(x);
    i16: |x| x as i16, |x| u32::from(x.cast_unsigned());
    u32: |x| x, |x| x;
    i32: |x| x.cast_signed(), |x| x.cast_unsigned();
    f32: |x| f32::from_bits(x), |x| f32::to_bits(x);
}
lane! { u64, double, double_written, set_double;
    u64: |x| x, |x| x;
    i64: |x| x.cast_signed(), |x| x.cast_unsigned();
    f64: |x| f64::from_bits(x), |x| f64::to_bits(x);
}

/// An instruction's work on a warp.
pub(crate) trait Execute {
    fn execute(core: &mut Core<'_>, inst: &Inst) -> Flow;
}

fn plain<E: Execute>(core: &mut Core<'_>, inst: &Inst) -> Flow {
    E::execute(core, inst)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,bmi1,bmi2,popcnt,lzcnt,f16c")]
fn avx2<E: Execute>(core: &mut Core<'_>, inst: &Inst) -> Flow {
    E::execute(core, inst)
}

/// The function that runs `E` on this host.
pub(crate) fn handler<E: Execute>(level: Level) -> Handler {
    match level {
        Level::Plain => plain::<E>,
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 | Level::Avx512 => avx2::<E>,
    }
}

/// An operation with one operand in each lane.
pub(crate) trait Map1 {
    type A: Lane;
    type D: Lane;
    fn apply(a: Self::A) -> Self::D;
}

/// An operation with two operands in each lane.
pub(crate) trait Map2 {
    type A: Lane;
    type B: Lane;
    type D: Lane;
    fn apply(a: Self::A, b: Self::B) -> Self::D;
}

/// An operation with three operands in each lane.
pub(crate) trait Map3 {
    type A: Lane;
    type B: Lane;
    type C: Lane;
    type D: Lane;
    fn apply(a: Self::A, b: Self::B, c: Self::C) -> Self::D;
}

/// Runs a [`Map1`] over the lanes.
pub(crate) struct Run1<M>(std::marker::PhantomData<M>);
/// Runs a [`Map2`] over the lanes.
pub(crate) struct Run2<M>(std::marker::PhantomData<M>);
/// Runs a [`Map3`] over the lanes.
pub(crate) struct Run3<M>(std::marker::PhantomData<M>);

impl<M: Map1> Execute for Run1<M> {
    #[inline(always)]
    fn execute(core: &mut Core<'_>, inst: &Inst) -> Flow {
        let mut out = [<M::D as Lane>::Bits::default(); 32];
        let a = M::A::read(core, inst.slots[1]);
        for lane in 0..32 {
            out[lane] = M::apply(M::A::from_bits(a[lane])).to_bits();
        }
        let written = M::A::written(core, inst.slots[1]);
        M::D::write(core, inst.slots[0], &out, written);
        Flow::Next
    }
}

impl<M: Map2> Execute for Run2<M> {
    #[inline(always)]
    fn execute(core: &mut Core<'_>, inst: &Inst) -> Flow {
        let mut out = [<M::D as Lane>::Bits::default(); 32];
        let (a, b) = (M::A::read(core, inst.slots[1]), M::B::read(core, inst.slots[2]));
        for lane in 0..32 {
            out[lane] = M::apply(M::A::from_bits(a[lane]), M::B::from_bits(b[lane])).to_bits();
        }
        let written = M::A::written(core, inst.slots[1]) & M::B::written(core, inst.slots[2]);
        M::D::write(core, inst.slots[0], &out, written);
        Flow::Next
    }
}

impl<M: Map3> Execute for Run3<M> {
    #[inline(always)]
    fn execute(core: &mut Core<'_>, inst: &Inst) -> Flow {
        let mut out = [<M::D as Lane>::Bits::default(); 32];
        let [_, sa, sb, sc, ..] = inst.slots;
        let (a, b, c) = (M::A::read(core, sa), M::B::read(core, sb), M::C::read(core, sc));
        for lane in 0..32 {
            let (a, b, c) = (M::A::from_bits(a[lane]), M::B::from_bits(b[lane]), M::C::from_bits(c[lane]));
            out[lane] = M::apply(a, b, c).to_bits();
        }
        let written = M::A::written(core, sa) & M::B::written(core, sb) & M::C::written(core, sc);
        M::D::write(core, inst.slots[0], &out, written);
        Flow::Next
    }
}

/// The handler of an operation that is written for one lane: `lanes!(level, |a: u32, b: u32| -> u32 { a ^ b })`.
macro_rules! lanes {
    ($level:expr, |$a:ident: $A:ty| -> $D:ty $body:block) => {{
        struct M;
        impl $crate::exec::lane::Map1 for M {
            type A = $A;
            type D = $D;
            #[inline(always)]
            fn apply($a: $A) -> $D $body
        }
        $crate::exec::lane::handler::<$crate::exec::lane::Run1<M>>($level)
    }};
    ($level:expr, |$a:ident: $A:ty, $b:ident: $B:ty| -> $D:ty $body:block) => {{
        struct M;
        impl $crate::exec::lane::Map2 for M {
            type A = $A;
            type B = $B;
            type D = $D;
            #[inline(always)]
            fn apply($a: $A, $b: $B) -> $D $body
        }
        $crate::exec::lane::handler::<$crate::exec::lane::Run2<M>>($level)
    }};
    ($level:expr, |$a:ident: $A:ty, $b:ident: $B:ty, $c:ident: $C:ty| -> $D:ty $body:block) => {{
        struct M;
        impl $crate::exec::lane::Map3 for M {
            type A = $A;
            type B = $B;
            type C = $C;
            type D = $D;
            #[inline(always)]
            fn apply($a: $A, $b: $B, $c: $C) -> $D $body
        }
        $crate::exec::lane::handler::<$crate::exec::lane::Run3<M>>($level)
    }};
}
pub(crate) use lanes;

/// The handler of an operation on a whole warp: `warp!(level, |core, inst| { … })`.
macro_rules! warp {
    ($level:expr, |$core:ident, $inst:ident| $body:block) => {{
        struct E;
        impl $crate::exec::lane::Execute for E {
            #[inline(always)]
            fn execute(
                $core: &mut $crate::exec::code::Core<'_>,
                $inst: &$crate::exec::code::Inst,
            ) -> $crate::exec::code::Flow $body
        }
        $crate::exec::lane::handler::<E>($level)
    }};
}
pub(crate) use warp;
