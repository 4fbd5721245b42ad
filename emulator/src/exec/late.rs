//! Loads that read as late as they may: in the mode [`Completion::Latest`], behind the arrival that gives back what they read.
//!
//! Which loads may do so says the text ([`crate::ir::late`]). From the first one of them on a warp keeps its registers as they were, and a
//! list of what it has executed since. When it arrives at an mbarrier, or starts a copy into shared memory, it rests until nothing else
//! gets on and all copies have landed. If one of these has overwritten what was read, and no proxy fence is on the way from the
//! read to that copy, the list is executed again, from the registers of then. The loads get the new bytes, and so does what
//! follows from them.
//!
//! So a kernel that lacks a fence has a wrong result here, as it may have on a GPU; whether the check for it is on does not matter.

use super::code::{Core, Flow, Inst};
use super::registers::Registers;
use super::warp::Warp;
use crate::check::order::{Memory, Order};
use crate::config::Completion;
use crate::ir::late::OnReads;
use crate::ir::program::{Instruction, Operand, Register};

/// An instruction that a warp has executed.
#[derive(Clone, Copy, Debug)]
struct Step {
    pc: u32,
    mask: u32,
    active: u32,
}

/// Bytes of a block's shared memory.
#[derive(Clone, Copy, Debug)]
struct Range {
    rank: u32,
    offset: u32,
    bytes: u32,
}

/// What a warp has done since its first load that may still be in flight.
pub(crate) struct Late {
    registers: Registers,
    carry: u32,
    steps: Vec<Step>,
    reads: Vec<Range>,
    /// The stamp of the last read.
    stamp: u32,
    /// The registers that hold what was loaded, or what follows from it.
    results: Vec<Register>,
    /// What was read has been given back: the warp rests.
    given: bool,
    /// A copy that has started since overwrites some of it.
    refilled: bool,
}

impl Late {
    /// Whether an instruction needs one of the results, be it in lanes that are off.
    fn is_needed_by(&self, instruction: &Instruction) -> bool {
        let guard = instruction.guard.iter().map(|(register, _)| *register);
        let operands = instruction.operands[instruction.destinations..].iter().filter_map(register);
        guard.chain(operands).any(|register| self.results.contains(&register))
    }
}

fn register(operand: &Operand) -> Option<Register> {
    match operand {
        Operand::Register(register) => Some(*register),
        _ => None,
    }
}

/// The handler of a load that may still be in flight when its bytes are given back.
pub(super) fn load(core: &mut Core<'_>, inst: &Inst) -> Flow {
    let Some(run) = inst.late else { return Flow::Next };
    if core.warp.late.is_none() && core.launch.completion == Completion::Latest {
        core.warp.late = Some(Box::new(Late {
            registers: core.warp.registers.clone(),
            carry: core.warp.carry,
            steps: Vec::new(),
            reads: Vec::new(),
            stamp: core.order.now(),
            results: Vec::new(),
            given: false,
            refilled: false,
        }));
    }
    // SAFETY: the handler was bound for this host's level, as this one was.
    unsafe { run(core, inst) }
}

impl Warp {
    /// Whether it rests until its late loads have to read.
    pub(super) fn rests(&self) -> bool {
        self.late.as_ref().is_some_and(|late| late.given)
    }
}

impl Core<'_> {
    /// Notes what a warp with late loads reads.
    #[cold]
    pub(super) fn read_late(&mut self, lanes: u32, addresses: &[u64; 32], bytes: u32) {
        let (rank, stamp) = (self.block.rank, self.order.now());
        let Some(late) = &mut self.warp.late else { return };
        late.stamp = stamp;
        for lane in super::access::ones(lanes) {
            late.reads.push(Range { rank, offset: addresses[lane] as u32, bytes });
        }
    }

    /// A warp with late loads has executed an instruction. Whether it rests now.
    #[cold]
    pub(super) fn follow(&mut self, pc: u32, (mask, active): (u32, u32), flow: Flow) -> bool {
        let launch = self.launch;
        let Some(instruction) = launch.kernel.instructions.get(pc as usize) else { return false };
        let Some(late) = &mut self.warp.late else { return false };
        let what = instruction.on_reads();
        let needed = late.is_needed_by(instruction);
        let written = instruction.operands[..instruction.destinations].iter().filter_map(register);
        let writes = written.clone().next().is_some();
        match what {
            OnReads::Follows if flow == Flow::Next => {
                late.steps.push(Step { pc, mask, active });
                let is_result = needed || launch.code[pc as usize].late.is_some();
                for register in written {
                    let at = late.results.iter().position(|&other| other == register);
                    match (at, is_result) {
                        (None, true) => late.results.push(register),
                        // Where some lanes are off, they still hold what they did.
                        (Some(at), false) if mask == u32::MAX => {
                            late.results.swap_remove(at);
                        }
                        _ => {}
                    }
                }
            }
            // It comes again when what it waits for is there.
            OnReads::Follows => {}
            // Its results would be lost, if what came before were executed again.
            _ if needed || what == OnReads::Waits || writes => self.warp.late = None,
            OnReads::Gives if flow == Flow::Next => {
                late.given = true;
                return true;
            }
            _ => {}
        }
        false
    }

    /// A warp with late loads has come to an instruction that is off in all its lanes, which may depend on what was loaded.
    #[cold]
    pub(super) fn follow_none(&mut self, pc: u32) {
        let Some(instruction) = self.launch.kernel.instructions.get(pc as usize) else { return };
        let guard = instruction.guard.map(|(register, _)| register);
        self.warp.late.take_if(|late| guard.is_some_and(|guard| late.results.contains(&guard)));
    }

    /// A copy that starts is to overwrite ranges of a block's shared memory.
    pub(super) fn refill(&mut self, rank: u32, ranges: &[(u32, u32)]) {
        if self.launch.kernel.late.is_empty() {
            return;
        }
        let issuer = self.warp.actor;
        let order = &self.order;
        let overlaps = |read: &Range| {
            let end = read.offset + read.bytes;
            read.rank == rank && ranges.iter().any(|&(to, bytes)| read.offset < to + bytes && to < end)
        };
        let blocks = self.cluster.others.iter_mut().flatten().chain([&mut self.block]);
        for warp in blocks.flat_map(|block| &mut block.parked).chain([&mut self.warp]) {
            let actor = warp.actor;
            let Some(late) = &mut warp.late else { continue };
            late.refilled |= !is_fenced(order, issuer, actor, late.stamp) && late.reads.iter().any(overlaps);
        }
    }

    /// Nothing gets on, and all copies have landed: warps that rest read what they are late to read. Whether there were any.
    pub(super) fn read_at_last(&mut self) -> bool {
        let mut any = false;
        for rank in 0..self.launch.ranks() {
            self.select(rank);
            for index in 0..self.block.parked.len() {
                if !self.block.parked[index].rests() || self.fault.is_some() {
                    continue;
                }
                any = true;
                std::mem::swap(&mut self.warp, &mut self.block.parked[index]);
                self.read_again();
                std::mem::swap(&mut self.warp, &mut self.block.parked[index]);
            }
        }
        any
    }

    /// Executes again what the warp has executed since its first late load, if what it read was overwritten.
    fn read_again(&mut self) {
        let Some(late) = self.warp.late.take().filter(|late| late.refilled) else { return };
        let code = self.launch.code;
        let (pc, mask, active) = (self.warp.pc, self.warp.mask, self.warp.active);
        // What is wrong with these reads was to be reported before, if anybody wants to know.
        let shadow = self.block.shadow.take();
        (self.warp.registers, self.warp.carry) = (late.registers, late.carry);
        for step in late.steps {
            let Some(inst) = code.get(step.pc as usize) else { continue };
            (self.warp.pc, self.warp.mask, self.warp.active) = (step.pc, step.mask, step.active);
            // The first one would begin anew.
            let run = inst.late.unwrap_or(inst.run);
            // SAFETY: the launch bound its code for the level that `Level::detect` found on this host.
            if unsafe { run(self, inst) } == Flow::Fault {
                break;
            }
        }
        self.block.shadow = shadow;
        (self.warp.pc, self.warp.mask, self.warp.active) = (pc, mask, active);
    }
}

/// Whether a proxy fence is on the way from what an actor did at a stamp to what the issuer does now.
fn is_fenced(order: &Order, issuer: u32, actor: u32, stamp: u32) -> bool {
    order.fenced(issuer, Memory::Shared).get(actor as usize).is_some_and(|&fenced| stamp < fenced)
}
