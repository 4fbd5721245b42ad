//! The table of opcode forms: every instruction that the emulator knows. How rows are written is said in
//! [`form`](super::form). An instruction that no row allows is an error when the module is parsed.

use super::form::{Chosen, Form};
use super::op::{
    Atomic, Barrier, Binary as B, Carry, Combine, Compare, LaneMask, Mma, Mode, Op, Permute, Property,
    Relation, Shuffle, Special, Ternary as T, Unary as U, Vote,
};
use super::types::Ty;
use crate::numeric::convert::Conversion;
use crate::numeric::float::Round;
use crate::syntax::ast::Space;

const fn form(
    opcode: &'static str,
    modifiers: &'static str,
    operands: &'static str,
    build: fn(&Chosen<'_>) -> Op,
) -> Form {
    Form { opcode, modifiers, operands, build }
}

fn round(c: &Chosen<'_>) -> Round {
    use Round::{Away, Down, Nearest, Up, Zero};
    let names = [("rn", Nearest), ("rz", Zero), ("rm", Down), ("rp", Up), ("rna", Away)];
    let integral = [("rni", Nearest), ("rzi", Zero), ("rmi", Down), ("rpi", Up)];
    c.pick(&names, c.pick(&integral, Nearest))
}

fn mode(c: &Chosen<'_>) -> Mode {
    let sat = c.has("sat") || c.has("satfinite");
    Mode { round: round(c), ftz: c.has("ftz"), sat, nan: c.has("NaN"), relu: c.has("relu") }
}

fn unary(c: &Chosen<'_>, op: U) -> Op {
    Op::Unary(op, c.ty(0), mode(c))
}

fn binary(c: &Chosen<'_>, op: B) -> Op {
    Op::Binary(op, c.ty(0), mode(c))
}

fn ternary(c: &Chosen<'_>, op: T) -> Op {
    Op::Ternary(op, c.ty(0), mode(c))
}

fn space(c: &Chosen<'_>) -> Space {
    let spaces = [
        ("global", Space::Global),
        ("shared", Space::Shared),
        ("shared::cta", Space::Shared),
        ("local", Space::Local),
        ("const", Space::Const),
        ("param", Space::Param),
        ("param::entry", Space::Param),
    ];
    c.pick(&spaces, Space::Generic)
}

/// Whether the access is meant to be seen by other threads while they run.
fn strong(c: &Chosen<'_>) -> bool {
    ["volatile", "relaxed", "acquire", "release"].iter().any(|m| c.has(m))
}

fn carry(c: &Chosen<'_>, op: Carry) -> Op {
    Op::Carry(op, c.ty(0), c.has("cc"))
}

fn compare(c: &Chosen<'_>, ty: Ty, combined: bool) -> Compare {
    use Relation::{Equal, Greater, GreaterEqual, Less, LessEqual, NotEqual, Ordered, Unordered};
    let names = [
        ("eq", (Equal, false)),
        ("ne", (NotEqual, false)),
        ("lt", (Less, false)),
        ("le", (LessEqual, false)),
        ("gt", (Greater, false)),
        ("ge", (GreaterEqual, false)),
        ("lo", (Less, false)),
        ("ls", (LessEqual, false)),
        ("hi", (Greater, false)),
        ("hs", (GreaterEqual, false)),
        ("equ", (Equal, true)),
        ("neu", (NotEqual, true)),
        ("ltu", (Less, true)),
        ("leu", (LessEqual, true)),
        ("gtu", (Greater, true)),
        ("geu", (GreaterEqual, true)),
        ("num", (Ordered, false)),
        ("nan", (Unordered, false)),
    ];
    let (relation, unordered) = c.pick(&names, (Equal, false));
    let combine =
        c.pick(&[("and", Some(Combine::And)), ("or", Some(Combine::Or)), ("xor", Some(Combine::Xor))], None);
    Compare { relation, unordered, ty, ftz: c.has("ftz"), combine: combine.filter(|_| combined) }
}

fn convert(c: &Chosen<'_>) -> Op {
    let integral = ["rni", "rzi", "rmi", "rpi"].iter().any(|m| c.has(m));
    Op::Convert(Conversion {
        to: c.ty(0),
        from: c.ty(1),
        round: round(c),
        integral,
        ftz: c.has("ftz"),
        sat: c.has("sat"),
        relu: c.has("relu"),
        satfinite: c.has("satfinite"),
    })
}

fn convert_pack(c: &Chosen<'_>) -> Op {
    match convert(c) {
        Op::Convert(conversion) => {
            let to = if conversion.to == Ty::F16x2 { Ty::F16 } else { Ty::Bf16 };
            Op::ConvertPack(Conversion { to, ..conversion })
        }
        other => other,
    }
}

fn atomic(c: &Chosen<'_>, result: bool) -> Op {
    let names = [
        ("add", Atomic::Add),
        ("min", Atomic::Min),
        ("max", Atomic::Max),
        ("and", Atomic::And),
        ("or", Atomic::Or),
        ("xor", Atomic::Xor),
        ("inc", Atomic::Inc),
        ("dec", Atomic::Dec),
        ("exch", Atomic::Exchange),
        ("cas", Atomic::CompareExchange),
    ];
    Op::Atomic { op: c.pick(&names, Atomic::Add), space: space(c), ty: c.ty(0), result }
}

fn redux(c: &Chosen<'_>) -> Op {
    match atomic(c, true) {
        Op::Atomic { op, ty, .. } => Op::Redux(op, ty),
        other => other,
    }
}

fn vote(c: &Chosen<'_>) -> Vote {
    let names = [("all", Vote::All), ("any", Vote::Any), ("uni", Vote::Uniform), ("ballot", Vote::Ballot)];
    c.pick(&[("and", Vote::All), ("or", Vote::Any)], c.pick(&names, Vote::All))
}

fn barrier(c: &Chosen<'_>, kind: Barrier, plain: usize) -> Op {
    // `bar` is always aligned; `barrier` only if it says so.
    Op::Barrier { kind, aligned: true, counted: c.operands > plain }
}

fn barrier_any(c: &Chosen<'_>, kind: Barrier, plain: usize) -> Op {
    Op::Barrier { kind, aligned: c.has("aligned"), counted: c.operands > plain }
}

fn mma(c: &Chosen<'_>) -> Op {
    let k = c.pick(&[("m16n8k16", 16), ("m16n8k8", 8), ("m16n8k4", 4)], 16);
    Op::Mma(Mma { k, input: c.ty(1), accumulator: c.ty(0) })
}

fn copy_async(c: &Chosen<'_>) -> Op {
    // The number of bytes is an operand, which `lower` puts here.
    Op::CopyAsync { bytes: 0, with_source_size: c.operands > 3 }
}

macro_rules! rows {
    ($($opcode:literal, $modifiers:expr, $operands:literal, $build:expr;)*) => {
        &[$(form($opcode, $modifiers, $operands, $build)),*]
    };
}

/// All rows. Of several rows for one opcode, the first that fits is taken.
pub(crate) static FORMS: &[Form] = rows! {
    // Integer arithmetic.
    "add", "u16|s16|u32|s32|u64|s64|b32|b64|b16", "=t t t", |c| binary(c, B::Add);
    "add", "sat s32", "=t t t", |c| binary(c, B::Add);
    "add", "cc u32|s32|u64|s64|b32|b64", "=t t t", |c| carry(c, Carry::Add { carry_in: false });
    "addc", "cc? u32|s32|u64|s64|b32|b64", "=t t t", |c| carry(c, Carry::Add { carry_in: true });
    "sub", "u16|s16|u32|s32|u64|s64|b32|b64|b16", "=t t t", |c| binary(c, B::Sub);
    "sub", "sat s32", "=t t t", |c| binary(c, B::Sub);
    "sub", "cc u32|s32|u64|s64|b32|b64", "=t t t", |c| carry(c, Carry::Sub { carry_in: false });
    "subc", "cc? u32|s32|u64|s64|b32|b64", "=t t t", |c| carry(c, Carry::Sub { carry_in: true });
    "mul", "lo u16|s16|u32|s32|u64|s64|b32|b64|b16", "=t t t", |c| binary(c, B::Mul);
    "mul", "hi u16|s16|u32|s32|u64|s64", "=t t t", |c| binary(c, B::MulHi);
    "mul", "wide u16|s16|u32|s32", "=w t t", |c| binary(c, B::MulWide);
    "mul24", "lo u32|s32", "=t t t", |c| binary(c, B::Mul24);
    "mad", "lo u16|s16|u32|s32|u64|s64", "=t t t t", |c| ternary(c, T::Mad);
    "mad", "hi u16|s16|u32|s32|u64|s64", "=t t t t", |c| ternary(c, T::MadHi);
    "mad", "wide u16|s16|u32|s32", "=w t t w", |c| ternary(c, T::MadWide);
    "mad24", "lo u32|s32", "=t t t t", |c| ternary(c, T::Mad24);
    "mad", "lo cc u32|s32|u64|s64", "=t t t t", |c| carry(c, Carry::Mad { high: false, carry_in: false });
    "mad", "hi cc u32|s32|u64|s64", "=t t t t", |c| carry(c, Carry::Mad { high: true, carry_in: false });
    "madc", "lo cc? u32|s32|u64|s64", "=t t t t", |c| carry(c, Carry::Mad { high: false, carry_in: true });
    "madc", "hi cc? u32|s32|u64|s64", "=t t t t", |c| carry(c, Carry::Mad { high: true, carry_in: true });
    "sad", "u16|s16|u32|s32|u64|s64", "=t t t t", |c| ternary(c, T::Sad);
    "div", "u16|s16|u32|s32|u64|s64", "=t t t", |c| binary(c, B::Div);
    "rem", "u16|s16|u32|s32|u64|s64", "=t t t", |c| binary(c, B::Rem);
    "abs", "s16|s32|s64", "=t t", |c| unary(c, U::Abs);
    "neg", "s16|s32|s64", "=t t", |c| unary(c, U::Neg);
    "min", "u16|s16|u32|s32|u64|s64", "=t t t", |c| binary(c, B::Min);
    "max", "u16|s16|u32|s32|u64|s64", "=t t t", |c| binary(c, B::Max);
    "dp4a", "u32|s32 u32|s32", "=b32 b32 b32 b32",
        |c| ternary(c, T::Dp4a { a_signed: c.ty(0).is_signed(), b_signed: c.ty(1).is_signed() });

    // Bits.
    "and", "pred|b16|b32|b64", "=t t t", |c| binary(c, B::And);
    "or", "pred|b16|b32|b64", "=t t t", |c| binary(c, B::Or);
    "xor", "pred|b16|b32|b64", "=t t t", |c| binary(c, B::Xor);
    "not", "pred|b16|b32|b64", "=t t", |c| unary(c, U::Not);
    "cnot", "b16|b32|b64", "=t t", |c| unary(c, U::Cnot);
    "shl", "b16|b32|b64", "=t t b32", |c| binary(c, B::Shl);
    "shr", "b16|b32|b64|u16|u32|u64|s16|s32|s64", "=t t b32", |c| binary(c, B::Shr);
    "shf", "l|r wrap|clamp b32", "=b32 b32 b32 b32",
        |c| ternary(c, T::Shf { left: c.has("l"), wrap: c.has("wrap") });
    "popc", "b32|b64", "=b32 t", |c| unary(c, U::Popc);
    "clz", "b32|b64", "=b32 t", |c| unary(c, U::Clz);
    "brev", "b32|b64", "=t t", |c| unary(c, U::Brev);
    "bfind", "shiftamt? u32|s32|u64|s64", "=b32 t", |c| unary(c, U::Bfind { shift: c.has("shiftamt") });
    "bfe", "u32|s32|u64|s64", "=t t b32 b32", |c| ternary(c, T::Bfe);
    "bfi", "b32|b64", "=t t t b32 b32", |c| Op::Bfi(c.ty(0));
    "bmsk", "clamp|wrap b32", "=b32 b32 b32", |c| binary(c, B::Bmsk { wrap: c.has("wrap") });
    "lop3", "b32", "=b32 b32 b32 b32 #", |_| Op::Lop3;
    "prmt", "b32", "=b32 b32 b32 b32", |c| ternary(c, T::Prmt(Permute::Index));
    "prmt", "b32 f4e|b4e|rc8|ecl|ecr|rc16", "=b32 b32 b32 b32", |c| {
        let modes = [
            ("f4e", Permute::Forward4),
            ("b4e", Permute::Backward4),
            ("rc8", Permute::Replicate8),
            ("ecl", Permute::EdgeClampLeft),
            ("ecr", Permute::EdgeClampRight),
            ("rc16", Permute::Replicate16),
        ];
        ternary(c, T::Prmt(c.pick(&modes, Permute::Index)))
    };

    // Floating point.
    "add", "rn|rz|rm|rp? ftz? sat? f32", "=t t t", |c| binary(c, B::Add);
    "sub", "rn|rz|rm|rp? ftz? sat? f32", "=t t t", |c| binary(c, B::Sub);
    "mul", "rn|rz|rm|rp? ftz? sat? f32", "=t t t", |c| binary(c, B::Mul);
    "fma", "rn|rz|rm|rp ftz? sat? f32", "=t t t t", |c| ternary(c, T::Fma);
    "mad", "rn|rz|rm|rp ftz? sat? f32", "=t t t t", |c| ternary(c, T::Fma);
    "add", "rn? f64", "=t t t", |c| binary(c, B::Add);
    "sub", "rn? f64", "=t t t", |c| binary(c, B::Sub);
    "mul", "rn? f64", "=t t t", |c| binary(c, B::Mul);
    "fma", "rn f64", "=t t t t", |c| ternary(c, T::Fma);
    "mad", "rn f64", "=t t t t", |c| ternary(c, T::Fma);
    "add", "rn? ftz? sat? f16|f16x2|bf16|bf16x2", "=t t t", |c| binary(c, B::Add);
    "sub", "rn? ftz? sat? f16|f16x2|bf16|bf16x2", "=t t t", |c| binary(c, B::Sub);
    "mul", "rn? ftz? sat? f16|f16x2|bf16|bf16x2", "=t t t", |c| binary(c, B::Mul);
    "fma", "rn ftz? sat|relu? f16|f16x2|bf16|bf16x2", "=t t t t", |c| ternary(c, T::Fma);
    "div", "rn|approx|full ftz? f32", "=t t t", |c| binary(c, B::Div);
    "div", "rn f64", "=t t t", |c| binary(c, B::Div);
    "rcp", "rn|approx ftz? f32", "=t t", |c| unary(c, U::Rcp);
    "rcp", "rn f64", "=t t", |c| unary(c, U::Rcp);
    "sqrt", "rn|approx ftz? f32", "=t t", |c| unary(c, U::Sqrt);
    "sqrt", "rn f64", "=t t", |c| unary(c, U::Sqrt);
    "rsqrt", "approx ftz? f32|f64", "=t t", |c| unary(c, U::Rsqrt);
    "sin", "approx ftz? f32", "=t t", |c| unary(c, U::Sin);
    "cos", "approx ftz? f32", "=t t", |c| unary(c, U::Cos);
    "lg2", "approx ftz? f32", "=t t", |c| unary(c, U::Lg2);
    "ex2", "approx ftz? f32|f16|f16x2|bf16|bf16x2", "=t t", |c| unary(c, U::Ex2);
    "tanh", "approx f32|f16|f16x2|bf16|bf16x2", "=t t", |c| unary(c, U::Tanh);
    "neg", "ftz? f32|f64|f16|f16x2|bf16|bf16x2", "=t t", |c| unary(c, U::Neg);
    "abs", "ftz? f32|f64|f16|f16x2|bf16|bf16x2", "=t t", |c| unary(c, U::Abs);
    "min", "ftz? NaN? f32|f64|f16|f16x2|bf16|bf16x2", "=t t t", |c| binary(c, B::Min);
    "max", "ftz? NaN? f32|f64|f16|f16x2|bf16|bf16x2", "=t t t", |c| binary(c, B::Max);
    "copysign", "f32|f64", "=t t t", |c| binary(c, B::Copysign);
    "testp", "finite|infinite|number|notanumber|normal|subnormal f32|f64", "=pred t", |c| {
        let names = [
            ("finite", Property::Finite),
            ("infinite", Property::Infinite),
            ("number", Property::Number),
            ("notanumber", Property::NotANumber),
            ("normal", Property::Normal),
            ("subnormal", Property::Subnormal),
        ];
        unary(c, U::Testp(c.pick(&names, Property::Finite)))
    };

    // Comparison and selection.
    "setp", relations::PLAIN, "=pred|pred t t", |c| Op::Setp(compare(c, c.ty(0), false));
    "setp", relations::COMBINED, "=pred|pred t t pred", |c| Op::Setp(compare(c, c.ty(0), true));
    "set", relations::SET, "=t u u", |c| Op::Set(compare(c, c.ty(1), false), c.ty(0));
    "set", relations::SET_COMBINED, "=t u u pred", |c| Op::Set(compare(c, c.ty(1), true), c.ty(0));
    "selp", "b16|b32|b64|u16|u32|u64|s16|s32|s64|f32|f64|f16|bf16", "=t t t pred", |c| ternary(c, T::Selp);
    "slct", "ftz? b16|b32|b64|u16|u32|u64|s16|s32|s64|f32|f64 s32|f32", "=t t t u",
        |c| ternary(c, T::Slct { float: c.ty(1) == Ty::F32 });

    // Conversion.
    "cvt", "sat? u8|s8|u16|s16|u32|s32|u64|s64 u8|s8|u16|s16|u32|s32|u64|s64", "=~t ~u", convert;
    "cvt", "rn|rz|rm|rp f16|bf16|f32|f64 u8|s8|u16|s16|u32|s32|u64|s64", "=~t ~u", convert;
    "cvt", "rni|rzi|rmi|rpi ftz? sat? u8|s8|u16|s16|u32|s32|u64|s64 f16|bf16|f32|f64", "=~t ~u", convert;
    "cvt", "rni|rzi|rmi|rpi ftz? sat? f32 f32", "=t u", convert;
    "cvt", "rni|rzi|rmi|rpi sat? f64 f64", "=t u", convert;
    "cvt", "rni|rzi|rmi|rpi sat? f16 f16", "=t u", convert;
    "cvt", "rni|rzi|rmi|rpi sat? bf16 bf16", "=t u", convert;
    "cvt", "ftz? sat? f32 f16|f32|bf16", "=t u", convert;
    "cvt", "ftz? sat? f64 f16|f32|f64|bf16", "=t u", convert;
    "cvt", "rn|rz|rm|rp ftz? sat? f32 f64", "=t u", convert;
    "cvt", "rn|rz|rm|rp ftz? sat? f16 f32|f64", "=t u", convert;
    "cvt", "rn|rz relu satfinite? f16|bf16 f32", "=t u", convert;
    "cvt", "rn|rz|rm|rp satfinite? bf16 f32|f64", "=t u", convert;
    "cvt", "rna satfinite? tf32 f32", "=b32 u", convert;
    "cvt", "rn|rz relu? satfinite? f16x2|bf16x2 f32", "=t u u", convert_pack;

    // Moving data.
    "mov", "pred|b16|b32|b64|u16|u32|u64|s16|s32|s64|f16|f32|f64|bf16", "any", |c| unary(c, U::Mov);
    "ld", "volatile|relaxed|acquire|weak? cta|gpu|sys|cluster? param|param::entry|global|shared|shared::cta|local|const? \
        ca|cg|cs|lu|cv|nc? L1::evict_normal|L1::evict_unchanged|L1::evict_first|L1::evict_last|L1::no_allocate? \
        L2::64B|L2::128B|L2::256B? v2|v4? b8|u8|s8|b16|u16|s16|f16|bf16|b32|u32|s32|f32|f16x2|bf16x2|b64|u64|s64|f64",
        "=~t*v []", |c| Op::Load { space: space(c), ty: c.ty(0), count: c.vector(), strong: strong(c) };
    "st", "volatile|relaxed|release|weak? cta|gpu|sys|cluster? global|shared|shared::cta|local? wb|cg|cs|wt? \
        L1::evict_normal|L1::evict_unchanged|L1::evict_first|L1::evict_last|L1::no_allocate? v2|v4? \
        b8|u8|s8|b16|u16|s16|f16|bf16|b32|u32|s32|f32|f16x2|bf16x2|b64|u64|s64|f64",
        "[] ~t*v", |c| Op::Store { space: space(c), ty: c.ty(0), count: c.vector(), strong: strong(c) };
    "prefetch", "global|local? L1|L2", "[]", |_| Op::Nop;
    "prefetchu", "L1", "[]", |_| Op::Nop;
    "cvta", "global|shared|shared::cta|local|const|param u64|b64", "=t t",
        |c| Op::Cvta { space: space(c), to_space: false };
    "cvta", "to global|shared|shared::cta|local|const|param u64|b64", "=t t",
        |c| Op::Cvta { space: space(c), to_space: true };
    "isspacep", "global|shared|shared::cta|local|const|param", "=pred b64", |c| Op::IsSpace(space(c));

    // Control.
    "bra", "uni?", "label", |_| Op::Branch;
    "brx", "idx uni?", "b32 targets", |_| Op::BranchIndexed;
    "ret", "uni?", "", |_| Op::Exit;
    "exit", "", "", |_| Op::Exit;
    "trap", "", "", |_| Op::Trap;
    "brkpt", "", "", |_| Op::Nop;
    "pmevent", "", "#", |_| Op::Nop;
    "nanosleep", "u32", "b32", |_| Op::Nop;

    // Synchronisation.
    "bar", "cta? sync", "b32 b32?", |c| barrier(c, Barrier::Sync, 1);
    "bar", "cta? arrive", "b32 b32", |c| barrier(c, Barrier::Arrive, 1);
    "bar", "cta? red and|or pred", "=pred b32 b32? pred", |c| barrier(c, Barrier::Reduce(vote(c)), 3);
    "bar", "cta? red popc u32", "=b32 b32 b32? pred", |c| barrier(c, Barrier::Count, 3);
    "bar", "warp sync", "b32", |_| Op::BarrierWarp;
    "barrier", "cta? sync aligned?", "b32 b32?", |c| barrier_any(c, Barrier::Sync, 1);
    "barrier", "cta? arrive aligned?", "b32 b32", |c| barrier_any(c, Barrier::Arrive, 1);
    "barrier", "cta? red and|or aligned? pred", "=pred b32 b32? pred",
        |c| barrier_any(c, Barrier::Reduce(vote(c)), 3);
    "barrier", "cta? red popc aligned? u32", "=b32 b32 b32? pred", |c| barrier_any(c, Barrier::Count, 3);
    "membar", "cta|gl|sys", "", |c| Op::Fence { gpu: !c.has("cta") };
    "fence", "sc|acq_rel? cta|cluster|gpu|sys", "", |c| Op::Fence { gpu: !c.has("cta") };

    // The warp.
    "shfl", "sync up|down|bfly|idx b32", "=b32|pred b32 b32 b32 b32", |c| {
        let names = [("up", Shuffle::Up), ("down", Shuffle::Down), ("bfly", Shuffle::Butterfly)];
        Op::Shuffle(c.pick(&names, Shuffle::Index))
    };
    "vote", "sync all|any|uni pred", "=pred pred b32", |c| Op::Vote(vote(c));
    "vote", "sync ballot b32", "=b32 pred b32", |c| Op::Vote(vote(c));
    "match", "any sync b32|b64", "=b32 t b32", |c| Op::Match { all: false, ty: c.ty(0) };
    "match", "all sync b32|b64", "=b32|pred t b32", |c| Op::Match { all: true, ty: c.ty(0) };
    "activemask", "b32", "=b32", |_| Op::ActiveMask;
    "redux", "sync add|min|max u32|s32", "=t t b32", redux;
    "redux", "sync and|or|xor b32", "=t t b32", redux;

    // Atomic operations.
    "atom", "relaxed|acquire|release|acq_rel? cta|cluster|gpu|sys? global|shared|shared::cta? exch b32|b64",
        "=t [] t", |c| atomic(c, true);
    "atom", "relaxed|acquire|release|acq_rel? cta|cluster|gpu|sys? global|shared|shared::cta? cas b32|b64",
        "=t [] t t", |c| atomic(c, true);
    "atom", "relaxed|acquire|release|acq_rel? cta|cluster|gpu|sys? global|shared|shared::cta? and|or|xor b32|b64",
        "=t [] t", |c| atomic(c, true);
    "atom", "relaxed|acquire|release|acq_rel? cta|cluster|gpu|sys? global|shared|shared::cta? add|min|max \
        u32|s32|u64|s64", "=t [] t", |c| atomic(c, true);
    "atom", "relaxed|acquire|release|acq_rel? cta|cluster|gpu|sys? global|shared|shared::cta? inc|dec u32",
        "=t [] t", |c| atomic(c, true);
    "atom", "relaxed|acquire|release|acq_rel? cta|cluster|gpu|sys? global|shared|shared::cta? add f32|f64",
        "=t [] t", |c| atomic(c, true);
    "atom", "relaxed|acquire|release|acq_rel? cta|cluster|gpu|sys? global|shared|shared::cta? add noftz \
        f16|f16x2|bf16|bf16x2", "=t [] t", |c| atomic(c, true);
    "red", "relaxed|release? cta|cluster|gpu|sys? global|shared|shared::cta? and|or|xor b32|b64",
        "[] t", |c| atomic(c, false);
    "red", "relaxed|release? cta|cluster|gpu|sys? global|shared|shared::cta? add|min|max u32|s32|u64|s64",
        "[] t", |c| atomic(c, false);
    "red", "relaxed|release? cta|cluster|gpu|sys? global|shared|shared::cta? inc|dec u32", "[] t", |c| atomic(c, false);
    "red", "relaxed|release? cta|cluster|gpu|sys? global|shared|shared::cta? add f32|f64", "[] t", |c| atomic(c, false);
    "red", "relaxed|release? cta|cluster|gpu|sys? global|shared|shared::cta? add noftz f16|f16x2|bf16|bf16x2",
        "[] t", |c| atomic(c, false);

    // Matrices and asynchronous copies.
    "mma", "sync aligned m16n8k16 row col f32 f16 f16 f32", "=f32*4 b32*4 b32*2 f32*4", mma;
    "mma", "sync aligned m16n8k16 row col f32 bf16 bf16 f32", "=f32*4 b32*4 b32*2 f32*4", mma;
    "mma", "sync aligned m16n8k8 row col f32 f16 f16 f32", "=f32*4 b32*2 b32*1 f32*4", mma;
    "mma", "sync aligned m16n8k8 row col f32 bf16 bf16 f32", "=f32*4 b32*2 b32*1 f32*4", mma;
    "mma", "sync aligned m16n8k16 row col f16 f16 f16 f16", "=b32*2 b32*4 b32*2 b32*2", mma;
    "mma", "sync aligned m16n8k8 row col f16 f16 f16 f16", "=b32*2 b32*2 b32*1 b32*2", mma;
    "mma", "sync aligned m16n8k8 row col f32 tf32 tf32 f32", "=f32*4 b32*4 b32*2 f32*4", mma;
    "mma", "sync aligned m16n8k4 row col f32 tf32 tf32 f32", "=f32*4 b32*2 b32*1 f32*4", mma;
    "ldmatrix", "sync aligned m8n8 x1 trans? shared|shared::cta? b16", "=b32*1 []",
        |c| Op::LoadMatrix { count: 1, transpose: c.has("trans") };
    "ldmatrix", "sync aligned m8n8 x2 trans? shared|shared::cta? b16", "=b32*2 []",
        |c| Op::LoadMatrix { count: 2, transpose: c.has("trans") };
    "ldmatrix", "sync aligned m8n8 x4 trans? shared|shared::cta? b16", "=b32*4 []",
        |c| Op::LoadMatrix { count: 4, transpose: c.has("trans") };
    "cp", "async ca shared|shared::cta global L2::64B|L2::128B|L2::256B?", "[] [] # b32?", copy_async;
    "cp", "async cg shared|shared::cta global L2::64B|L2::128B|L2::256B?", "[] [] # b32?", copy_async;
    "cp", "async commit_group", "", |_| Op::CopyCommit;
    "cp", "async wait_group", "#", |_| Op::CopyWait { all: false };
    "cp", "async wait_all", "", |_| Op::CopyWait { all: true };
};

/// Modifier lists of comparisons, which share the list of relations.
mod relations {
    macro_rules! cmp {
        ($before:literal, $after:literal) => {
            concat!($before, "eq|ne|lt|le|gt|ge|lo|ls|hi|hs|equ|neu|ltu|leu|gtu|geu|num|nan", $after)
        };
    }
    pub(super) const PLAIN: &str = cmp!("", " ftz? b16|b32|b64|u16|u32|u64|s16|s32|s64|f32|f64|f16|bf16");
    pub(super) const COMBINED: &str =
        cmp!("", " and|or|xor ftz? b16|b32|b64|u16|u32|u64|s16|s32|s64|f32|f64|f16|bf16");
    pub(super) const SET: &str =
        cmp!("", " ftz? u32|s32|f32 b16|b32|b64|u16|u32|u64|s16|s32|s64|f32|f64|f16|bf16");
    pub(super) const SET_COMBINED: &str =
        cmp!("", " and|or|xor ftz? u32|s32|f32 b16|b32|b64|u16|u32|u64|s16|s32|s64|f32|f64|f16|bf16");
}

/// The special register of a name and a component.
pub(crate) fn special(name: &str, component: Option<&str>) -> Option<(Special, Ty)> {
    let axis = match component {
        Some("x") => Some(0),
        Some("y") => Some(1),
        Some("z") => Some(2),
        Some(_) => return None,
        None => None,
    };
    Some(match (name, axis) {
        ("%tid", Some(axis)) => (Special::ThreadIndex(axis), Ty::U32),
        ("%ntid", Some(axis)) => (Special::BlockSize(axis), Ty::U32),
        ("%ctaid", Some(axis)) => (Special::BlockIndex(axis), Ty::U32),
        ("%nctaid", Some(axis)) => (Special::GridSize(axis), Ty::U32),
        ("%laneid", None) => (Special::LaneId, Ty::U32),
        ("%warpid", None) => (Special::WarpId, Ty::U32),
        ("%nwarpid", None) => (Special::WarpCount, Ty::U32),
        ("%smid", None) => (Special::MultiprocessorId, Ty::U32),
        ("%nsmid", None) => (Special::MultiprocessorCount, Ty::U32),
        ("%gridid", None) => (Special::GridId, Ty::U64),
        ("%lanemask_eq", None) => (Special::LaneMask(LaneMask::Equal), Ty::U32),
        ("%lanemask_lt", None) => (Special::LaneMask(LaneMask::Less), Ty::U32),
        ("%lanemask_le", None) => (Special::LaneMask(LaneMask::LessEqual), Ty::U32),
        ("%lanemask_gt", None) => (Special::LaneMask(LaneMask::Greater), Ty::U32),
        ("%lanemask_ge", None) => (Special::LaneMask(LaneMask::GreaterEqual), Ty::U32),
        ("%clock", None) => (Special::Clock, Ty::U32),
        ("%clock_hi", None) => (Special::ClockHigh, Ty::U32),
        ("%clock64", None) => (Special::Clock, Ty::U64),
        ("%globaltimer", None) => (Special::GlobalTimer, Ty::U64),
        ("%globaltimer_lo", None) => (Special::GlobalTimer, Ty::U32),
        ("%globaltimer_hi", None) => (Special::GlobalTimerHigh, Ty::U32),
        ("%dynamic_smem_size", None) => (Special::DynamicShared, Ty::U32),
        ("%total_smem_size", None) => (Special::TotalShared, Ty::U32),
        ("WARP_SZ", None) => (Special::WarpSize, Ty::U32),
        _ => return None,
    })
}
