//! The table of opcode forms: every instruction that the emulator knows. How rows are written is said in
//! [`form`](super::form). An instruction that no row allows is an error when the module is parsed.

use super::form::{Chosen, Form};
use super::op::{
    Atomic, Barrier, Binary as B, Carry, ClusterBarrier, Combine, Compare, LaneMask, Mbarrier, Mma, Mode, Op,
    Permute, Property, ProxyFence, Relation, Reserved, Shuffle, Special, Strength, Ternary as T, Unary as U,
    Vote, Wgmma,
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
    let (ftz, nan, relu, xorsign) = (c.has("ftz"), c.has("NaN"), c.has("relu"), c.has("xorsign"));
    Mode { round: round(c), ftz, sat, nan, relu, xorsign }
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
        ("shared::cluster", Space::Cluster),
        ("local", Space::Local),
        ("const", Space::Const),
        ("param", Space::Param),
        ("param::entry", Space::Param),
        ("param::func", Space::Param),
    ];
    c.pick(&spaces, Space::Generic)
}

/// Whether the access is meant to be seen by other threads while they run.
fn strength(c: &Chosen<'_>, otherwise: Strength) -> Strength {
    let names = [
        ("volatile", Strength::Relaxed),
        ("relaxed", Strength::Relaxed),
        ("acquire", Strength::Acquire),
        ("release", Strength::Release),
        ("acq_rel", Strength::AcquireRelease),
    ];
    let strength = c.pick(&names, otherwise);
    // Where no scope is named, it is the GPU's or the system's.
    if c.has("cta") || c.has("cluster") { strength.near() } else { strength }
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

/// A comparison whose result is a number; `operand` is the position of the operands' type.
fn set(c: &Chosen<'_>, operand: usize, combined: bool) -> Op {
    Op::Set(compare(c, c.ty(operand), combined), c.ty(0))
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
            let to = match conversion.to {
                Ty::F16x2 => Ty::F16,
                Ty::E4m3x2 => Ty::E4m3,
                Ty::E5m2x2 => Ty::E5m2,
                _ => Ty::Bf16,
            };
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
    Op::Atomic {
        op: c.pick(&names, Atomic::Add),
        space: space(c),
        ty: c.ty(0),
        result,
        strength: strength(c, Strength::Relaxed),
    }
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

/// A fence that names no space is for all.
fn async_fence(c: &Chosen<'_>) -> Op {
    let global = c.has("global");
    let shared = c.has("shared::cta") || c.has("shared::cluster");
    Op::ProxyFence(ProxyFence::Async { shared: shared || !global, global: global || !shared })
}

fn barrier(c: &Chosen<'_>, kind: Barrier, plain: usize) -> Op {
    // `bar` is always aligned; `barrier` only if it says so.
    Op::Barrier { kind, aligned: true, counted: c.operands > plain }
}

fn barrier_any(c: &Chosen<'_>, kind: Barrier, plain: usize) -> Op {
    Op::Barrier { kind, aligned: c.has("aligned"), counted: c.operands > plain }
}

fn mbarrier(c: &Chosen<'_>, what: Mbarrier) -> Op {
    Op::Mbarrier { what, space: space(c), relaxed: c.has("relaxed") }
}

fn arrive(c: &Chosen<'_>) -> Op {
    let (expect, no_complete) = (c.has("expect_tx"), c.has("noComplete"));
    let counted = !expect && c.operands > 2;
    mbarrier(c, Mbarrier::Arrive { drop: c.has("arrive_drop"), expect, no_complete, counted })
}

fn mbarrier_wait(c: &Chosen<'_>) -> Op {
    mbarrier(c, Mbarrier::Wait { parity: c.has("parity"), suspend: c.has("try_wait") })
}

fn mma(c: &Chosen<'_>) -> Op {
    let k = c.pick(&[("m16n8k32", 32), ("m16n8k16", 16), ("m16n8k8", 8), ("m16n8k4", 4)], 16);
    Op::Mma(Mma { k, a: c.ty(1), b: c.ty(2), accumulator: c.ty(0), satfinite: c.has("satfinite") })
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

mod matrix;
mod memory;
mod scalar;
mod sync;
mod tensor;
mod video;
mod wmma;

pub(crate) use wmma::per_lane as wmma_per_lane;

/// All rows, part by part. Of several rows for one opcode, the first that fits is taken.
pub(crate) static FORMS: [&[Form]; 7] =
    [scalar::ROWS, memory::ROWS, sync::ROWS, matrix::ROWS, tensor::ROWS, video::ROWS, wmma::ROWS];

/// Modifier lists of comparisons: of `setp`, of `setp` with a predicate to combine with, and of `set` likewise.
mod relations {
    macro_rules! lists {
        ($relations:literal, $operands:literal, $results:literal) => {
            [
                concat!($relations, " ", $operands),
                concat!($relations, " and|or|xor ", $operands),
                concat!($relations, " ", $results),
                concat!($relations, " and|or|xor ", $results),
            ]
        };
    }
    macro_rules! floats {
        ($operands:literal, $results:literal) => {
            lists!("eq|ne|lt|le|gt|ge|equ|neu|ltu|leu|gtu|geu|num|nan", $operands, $results)
        };
    }
    type Lists = [&'static str; 4];
    pub(super) const BITS: Lists = lists!("eq|ne", "b16|b32|b64", "u32|s32|f32 b16|b32|b64");
    pub(super) const UNSIGNED: Lists =
        lists!("eq|ne|lt|le|gt|ge|lo|ls|hi|hs", "u16|u32|u64", "u32|s32|f32 u16|u32|u64");
    pub(super) const SIGNED: Lists = lists!("eq|ne|lt|le|gt|ge", "s16|s32|s64", "u32|s32|f32 s16|s32|s64");
    pub(super) const SINGLES: Lists = floats!("ftz? f32", "ftz? u32|s32|f32 f32");
    pub(super) const DOUBLES: Lists = floats!("f64", "u32|s32|f32 f64");
    pub(super) const HALVES: Lists = floats!("ftz? f16", "ftz? u32|s32 f16");
    pub(super) const BRAINS: Lists = floats!("bf16", "u32|s32 bf16");
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
        ("%clusterid", Some(axis)) => (Special::ClusterIndex(axis), Ty::U32),
        ("%nclusterid", Some(axis)) => (Special::ClusterCount(axis), Ty::U32),
        ("%cluster_ctaid", Some(axis)) => (Special::ClusterBlockIndex(axis), Ty::U32),
        ("%cluster_nctaid", Some(axis)) => (Special::ClusterSize(axis), Ty::U32),
        ("%cluster_ctarank", None) => (Special::ClusterBlockRank, Ty::U32),
        ("%cluster_nctarank", None) => (Special::ClusterBlockCount, Ty::U32),
        ("%is_explicit_cluster", None) => (Special::IsExplicitCluster, Ty::Pred),
        ("%total_smem_size", None) => (Special::TotalShared, Ty::U32),
        ("%aggr_smem_size", None) => (Special::AggregateShared, Ty::U32),
        ("%reserved_smem_offset_begin", None) => (Special::ReservedShared(Reserved::Begin), Ty::U32),
        ("%reserved_smem_offset_end", None) => (Special::ReservedShared(Reserved::End), Ty::U32),
        ("%reserved_smem_offset_cap", None) => (Special::ReservedShared(Reserved::Size), Ty::U32),
        ("%reserved_smem_offset_0", None) => (Special::ReservedShared(Reserved::Part(0)), Ty::U32),
        ("%reserved_smem_offset_1", None) => (Special::ReservedShared(Reserved::Part(1)), Ty::U32),
        ("WARP_SZ", None) => (Special::WarpSize, Ty::U32),
        (name, None) => {
            let number =
                name.strip_prefix("%envreg").filter(|digits| !digits.starts_with('0') || *digits == "0")?;
            (Special::Environment(number.parse().ok().filter(|number| *number < 32)?), Ty::U32)
        }
        _ => return None,
    })
}
