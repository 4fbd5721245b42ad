//! The bytecode: instructions bound to the functions that run them.

use super::agent::Engine;
use super::block::Block;
use super::cluster::Cluster;
use super::held::Held;
use super::launch::Launch;
use super::registers::{Constants, Slot, slot_of};
use super::strong::Locations;
use super::warp::Warp;
use super::wgmma::Watch;
use crate::check::FindingKind;
use crate::check::global::Log;
use crate::check::ledger::Turns;
use crate::check::order::Order;
use crate::ir::op::Op;
use crate::ir::program::{Kernel, Operand};

/// The host's instruction sets that code is generated for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Level {
    /// Whatever the target guarantees.
    Plain,
    /// AVX2, FMA and F16C.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// The same and AVX-512, which only matrix products have code for.
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

impl Level {
    /// The best that this host has.
    pub(crate) fn detect() -> Self {
        #[cfg(target_arch = "x86_64")]
        if ["avx2", "fma", "bmi1", "bmi2", "popcnt", "lzcnt", "f16c"].iter().all(|f| detected(f)) {
            let wide = ["avx512f", "avx512vl", "avx512dq", "avx512bw"].iter().all(|f| detected(f));
            return if wide { Self::Avx512 } else { Self::Avx2 };
        }
        Self::Plain
    }

    /// The levels that this host has.
    #[cfg(test)]
    pub(crate) fn all() -> Vec<Self> {
        match Self::detect() {
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => vec![Self::Plain, Self::Avx2, Self::Avx512],
            Self::Plain => vec![Self::Plain],
            best => vec![Self::Plain, best],
        }
    }
}

#[cfg(target_arch = "x86_64")]
fn detected(feature: &str) -> bool {
    match feature {
        "avx2" => is_x86_feature_detected!("avx2"),
        "fma" => is_x86_feature_detected!("fma"),
        "bmi1" => is_x86_feature_detected!("bmi1"),
        "bmi2" => is_x86_feature_detected!("bmi2"),
        "popcnt" => is_x86_feature_detected!("popcnt"),
        "lzcnt" => is_x86_feature_detected!("lzcnt"),
        "f16c" => is_x86_feature_detected!("f16c"),
        "avx512f" => is_x86_feature_detected!("avx512f"),
        "avx512vl" => is_x86_feature_detected!("avx512vl"),
        "avx512dq" => is_x86_feature_detected!("avx512dq"),
        "avx512bw" => is_x86_feature_detected!("avx512bw"),
        _ => false,
    }
}

/// What running an instruction leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    /// On to the next instruction.
    Next,
    /// The handler has set the program counter, or the lanes that run.
    Jumped,
    /// The lanes must wait for other lanes of the warp, which [`Warp::wanted`] names.
    Converge,
    /// The lanes wait for what [`Warp::waiting`] says.
    Wait,
    /// On to the next instruction; but the lanes poll for what others do, which should have a turn.
    Yield,
    /// A check failed: [`Core::fault`] says what.
    Fault,
}

/// Runs one instruction for the lanes in the warp's mask.
///
/// It is unsafe to call because it may use instructions that only hosts of its [`Level`] have.
pub(crate) type Handler = unsafe fn(&mut Core<'_>, &Inst) -> Flow;

/// A bound instruction.
pub(crate) struct Inst {
    pub(crate) run: Handler,
    /// The slot of the guard.
    pub(crate) guard: Guard,
    pub(crate) op: Op,
    pub(crate) slots: [Slot; 16],
    /// All slots, where there are more than fit above.
    pub(crate) all: Box<[Slot]>,
    /// What comes before its work, if it names registers of asynchronous products.
    pub(crate) watch: Option<Box<Watch>>,
    /// What runs it, if it is a load that may be in flight when its bytes are given back.
    pub(crate) late: Option<Handler>,
    pub(crate) immediates: [i64; 3],
    pub(crate) targets: Box<[u32]>,
}

/// The predicate that an instruction depends on.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Guard {
    Always,
    If(Slot),
    Unless(Slot),
}

/// What a handler works on: the warp that runs, its block and cluster, and the launch.
pub(crate) struct Core<'l> {
    pub(crate) warp: Warp,
    pub(crate) block: Block,
    pub(crate) cluster: Cluster,
    /// Counts the launch's clusters from 0.
    pub(crate) number: u64,
    /// The warp-instructions that the launch has been told of.
    pub(crate) told: u64,
    pub(crate) order: Order,
    pub(crate) engine: Engine,
    /// The cluster's accesses to global memory; absent if races are not checked.
    pub(crate) log: Option<Log>,
    /// What orders it with other clusters, where they communicate and races are checked.
    pub(crate) turns: Option<Box<Turns>>,
    pub(crate) locations: Locations,
    pub(crate) constants: &'l Constants,
    pub(crate) launch: &'l Launch<'l>,
    pub(crate) fault: Option<Box<Fault>>,
    /// A fault that waits for whether a race turns up.
    pub(crate) held: Option<Held>,
    /// What the cluster's threads have printed.
    pub(crate) printed: String,
}

/// A failed check, before it is made into a finding.
#[derive(Clone, Debug)]
pub(crate) struct Fault {
    pub(crate) kind: FindingKind,
    pub(crate) message: String,
    pub(crate) lanes: u32,
    /// Other places: what happened there, and the index of the instruction.
    pub(crate) related: Vec<(String, u32)>,
    pub(crate) hint: Option<String>,
    /// Where it happened, if not at the warp's program counter.
    pub(crate) at: Option<u32>,
}

impl Core<'_> {
    /// Ends the launch with a finding.
    #[cold]
    pub(crate) fn fail(
        &mut self,
        kind: FindingKind,
        lanes: u32,
        message: String,
        hint: Option<&str>,
    ) -> Flow {
        let hint = hint.map(str::to_owned);
        self.fault = Some(Box::new(Fault { kind, message, lanes, related: Vec::new(), hint, at: None }));
        Flow::Fault
    }
}

/// Binds the instructions of a kernel.
pub(crate) fn bind(kernel: &Kernel, level: Level) -> Vec<Inst> {
    // The destinations that nobody wants have the slot behind the last register.
    let mut code: Vec<Inst> = kernel
        .instructions
        .iter()
        .map(|instruction| {
            let every = instruction.operands.iter().map(|&operand| slot_of(operand, &kernel.registers));
            let mut slots = [0; 16];
            slots.iter_mut().zip(every.clone()).for_each(|(to, slot)| *to = slot);
            let all = if instruction.operands.len() > slots.len() { every.collect() } else { Box::default() };
            let guard = match instruction.guard {
                None => Guard::Always,
                Some((register, false)) => Guard::If(slot_of(Operand::Register(register), &kernel.registers)),
                Some((register, true)) => {
                    Guard::Unless(slot_of(Operand::Register(register), &kernel.registers))
                }
            };
            Inst {
                run: handler_of(instruction.op, level),
                guard,
                op: instruction.op,
                slots,
                all,
                watch: None,
                late: None,
                immediates: instruction.immediates,
                targets: instruction.targets.clone().into(),
            }
        })
        .collect();
    super::wgmma::watch(kernel, &mut code);
    for (inst, _) in code.iter_mut().zip(&kernel.late).filter(|(_, late)| **late) {
        inst.late = Some(inst.run);
        inst.run = super::late::load;
    }
    code
}

/// The function that runs an operation.
fn handler_of(op: Op, level: Level) -> Handler {
    use super::{
        agent, arithmetic, atomic, bits, bulk, call, cluster, collective, compare, control, convert, copy,
        data, floating, matrix, mbarrier, memory, store_async, strong, tensor, video, wgmma, wmma,
    };
    match op {
        Op::Unary(unary, ty, mode) => match arithmetic::unary(unary, ty, level) {
            Some(handler) => handler,
            None => floating::unary(unary, ty, mode, level),
        },
        Op::Binary(binary, ty, mode) => match arithmetic::binary(binary, ty, mode, level) {
            Some(handler) => handler,
            None => floating::binary(binary, ty, mode, level),
        },
        Op::Ternary(ternary, ty, mode) => match arithmetic::ternary(ternary, ty, level) {
            Some(handler) => handler,
            None => floating::ternary(ternary, ty, mode, level),
        },
        Op::Bfi(ty) => bits::bfi(ty, level),
        Op::Lop3 => bits::lop3(level),
        Op::Lop3Test(_) => bits::lop3_test(level),
        Op::SetpHalves(_) => compare::setp_halves(level),
        Op::SetHalves(..) => compare::set_halves(level),
        Op::Video(_) => video::scalar(level),
        Op::VideoSimd(_) => video::simd(level),
        Op::WmmaAddress(_) => wmma::address(level),
        Op::Wmma(_) => wmma::product(level),
        Op::SmallMma { .. } => wmma::small(level),
        Op::Carry(carry, ty, set) => bits::carry(carry, ty, set, level),
        Op::Setp(comparison) => compare::setp(comparison, level),
        Op::Set(comparison, to) => compare::set(comparison, to, level),
        Op::Convert(conversion) => convert::convert(conversion, level),
        Op::ConvertPack(conversion) => convert::pack(conversion, level),
        Op::Pack(count, ty) => data::pack(count, ty, level),
        Op::Unpack(count, ty) => data::unpack(count, ty, level),
        Op::ReadSpecial(..) => data::special(level),
        Op::Cvta { space, to_space } => data::cvta(space, to_space, level),
        Op::IsSpace(space) => data::is_space(space, level),
        Op::Load { space, ty, count, .. } => memory::load(space, ty, count, level),
        Op::Store { space, ty, count, .. } => memory::store(space, ty, count, level),
        Op::Atomic { .. } => atomic::atomic(level),
        Op::Branch => control::branch(level),
        Op::BranchIndexed => control::branch_indexed(level),
        Op::Exit => control::exit(level),
        Op::Call => call::call(level),
        Op::Return => call::leave(level),
        Op::FrameAddress => call::frame_address(level),
        Op::Alloca { .. } => call::alloca(level),
        Op::StackSave(_) => call::stack_save(level),
        Op::StackRestore(_) => call::stack_restore(level),
        Op::Trap => control::trap(level),
        Op::Barrier { .. } => control::barrier(level),
        Op::BarrierWarp => control::barrier_warp(level),
        Op::Grids { wait: true } => control::wait_for_grids(level),
        Op::Grids { wait: false } | Op::Nop => control::nop(level),
        Op::Fence { .. } => strong::fence(level),
        Op::ProxyFence(_) => agent::fence(level),
        Op::Mbarrier { what, .. } => mbarrier::handler_of(what, level),
        Op::CopyArrive { .. } => mbarrier::copy_arrive(level),
        Op::ClusterBarrier { .. } => cluster::barrier(level),
        Op::MapAddress { .. } => cluster::map_address(level),
        Op::AddressRank { .. } => cluster::address_rank(level),
        Op::Elect => control::elect(level),
        Op::SetRegisters { .. } => cluster::set_registers(level),
        Op::Shuffle { mode, .. } => collective::shuffle(mode, level),
        Op::Vote { vote, .. } => collective::vote(vote, level),
        Op::Match { all, ty } => collective::matching(all, ty, level),
        Op::ActiveMask => collective::active_mask(level),
        Op::Redux(..) => collective::redux(level),
        Op::Mma(shape) => matrix::mma(shape, level),
        Op::Wgmma(_) => wgmma::start(level),
        Op::WgmmaFence => wgmma::fence(level),
        Op::WgmmaCommit => wgmma::commit(level),
        Op::WgmmaWait => wgmma::wait(level),
        Op::LoadMatrix { count, transpose, .. } => matrix::load(count, transpose, level),
        Op::StoreMatrix { .. } => matrix::store(level),
        Op::CopyAsync { .. } => copy::start(level),
        Op::TensorCopy { .. } => tensor::copy(level),
        Op::PrefetchMap(_) => tensor::prefetch(level),
        Op::BulkCopy(_) => bulk::copy(level),
        Op::StoreAsync { .. } => store_async::store(level),
        Op::BulkCommit => bulk::commit(level),
        Op::BulkWait { .. } => bulk::wait(level),
        Op::CreatePolicy => bulk::create_policy(level),
        Op::CopyCommit => copy::commit(level),
        Op::CopyWait { .. } => copy::wait(level),
    }
}
