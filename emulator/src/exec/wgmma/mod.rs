//! `wgmma`: matrix products that the four warps of a warpgroup start together and wait for later.
//!
//! The product begins once all four warps have executed it, and is computed for all of them at once: at the first wait
//! that requires it, or where it began; [`Completion`] says which. Until a warp has waited, nobody may write what the
//! product reads from shared memory, and the warp must not touch the product's registers (`watch`).

mod start;
mod watch;

use std::collections::VecDeque;
use std::sync::Arc;

use super::block::Block;
use super::code::{Core, Flow, Handler, Inst, Level};
use super::lane::warp;
use super::registers::Slot;
use super::warp::{State, Warp};
use crate::check::order::Clock;
use crate::check::shadow::Lock;
use crate::config::Numerics;
use crate::ir::op::{Op, Wgmma};
use crate::ir::types::Ty;
use crate::numeric::mma::Model;
use crate::numeric::wgmma::descriptor::Descriptor;
use crate::numeric::wgmma::operand::{Columns, Number, Raw, Rows, known_results};
use crate::numeric::wgmma::product;

pub(crate) use watch::{Watch, watch};

/// Products that a warpgroup may have under way before the oldest is computed, whoever waits.
const MOST: u64 = 256;

/// The products of a warpgroup that are under way.
#[derive(Default)]
pub(crate) struct Warpgroup {
    /// The number of the first of them, which counts from the start of the block.
    first: u64,
    operations: VecDeque<Operation>,
    /// When the last product was complete.
    stamp: u32,
}

/// A product.
struct Operation {
    /// The instruction.
    at: u32,
    /// The descriptor of A, unless that is in registers, and that of B.
    descriptors: (Option<u64>, u64),
    /// The old result does not count.
    fresh: bool,
    /// The warps that have executed it, a bit each.
    warps: u32,
    /// The bytes of shared memory that B takes.
    columns: Arc<[(u32, u32)]>,
    locks: Vec<Option<Lock>>,
}

/// What a warp has to do with products.
#[derive(Clone, Debug, Default)]
pub(crate) struct Products {
    /// How many it has executed, and how many of those it has waited for.
    executed: u64,
    complete: u64,
    /// `executed` at each commit that was not waited for.
    commits: VecDeque<u64>,
    registers: watch::Touched,
}

impl Products {
    /// The warp waits until the warps of its warpgroup have executed what it waits for.
    pub(super) const WAITS: &str = "waits for the other warps of its warpgroup to execute the same `wgmma`";
}

/// The handler of `wgmma.mma_async`.
pub(crate) fn start(level: Level) -> Handler {
    warp!(level, |core, inst| { start::execute(core, inst).err().unwrap_or(Flow::Next) })
}

/// The slots of an instruction, however many.
fn slots_of(inst: &Inst) -> &[Slot] {
    if inst.all.is_empty() { &inst.slots } else { &inst.all }
}

/// Where the operands of a product stand: its registers (the result, then A), the descriptors, the predicate.
struct Operands<'i> {
    registers: &'i [Slot],
    a: Option<Slot>,
    b: Slot,
    keep: Slot,
}

impl<'i> Operands<'i> {
    fn new(inst: &'i Inst, shape: Wgmma) -> Self {
        let slots = slots_of(inst);
        let (registers, rest) = slots.split_at(shape.accumulators() + if shape.registers { 4 } else { 0 });
        let (a, rest) = if shape.registers { (None, rest) } else { (Some(rest[0]), &rest[1..]) };
        Self { registers, a, b: rest[0], keep: rest[1] }
    }
}

impl Core<'_> {
    /// Computes the products below a number, or lets the warp wait if not all warps have executed them.
    fn complete_products(&mut self, index: usize, until: u64) -> Result<(), Flow> {
        let group = &self.block.warpgroups[index];
        let count = until.saturating_sub(group.first) as usize;
        if group.operations.iter().take(count).any(|operation| operation.warps != 0xf) {
            self.warp.waiting = State::Warpgroup;
            return Err(Flow::Wait);
        }
        for _ in 0..count {
            let group = &mut self.block.warpgroups[index];
            let Some(operation) = group.operations.pop_front() else { break };
            group.first += 1;
            let code = self.launch.code;
            let Op::Wgmma(shape) = code[operation.at as usize].op else { continue };
            if shape.accumulator == Ty::S32 {
                self.multiply::<i32>(index, &operation, shape);
            } else {
                self.multiply::<f32>(index, &operation, shape);
            }
            for lock in operation.locks {
                self.unlock_reads(lock);
            }
        }
        if count != 0 {
            self.block.warpgroups[index].stamp = self.order.tick();
        }
        Ok(())
    }

    /// The product of all four warps.
    fn multiply<T: Number>(&mut self, index: usize, operation: &Operation, shape: Wgmma) {
        let model = (self.launch.numerics == Numerics::Exact).then_some(Model::Hopper);
        let level = self.launch.level;
        let code = self.launch.code;
        let operands = Operands::new(&code[operation.at as usize], shape);
        let (results, fragments) = operands.registers.split_at(shape.accumulators());
        let Block { shared, parked, .. } = &mut self.block;
        let (mut raw, mut units) = (Raw::default(), Vec::new());
        let parse = |bits| Descriptor::parse(bits).ok();
        let Some(descriptor) = parse(operation.descriptors.1) else { return };
        descriptor.units(0..shape.n.into(), shape.transpose[1], &mut units);
        raw.read(shared, &units, shape.transpose[1]);
        let b = Columns::<T>::new(&raw, shape.b, shape.negate[1]);
        let mut sums = Vec::new();
        for i in 0..4u32 {
            let number = 4 * index as u32 + i;
            let warp: &mut Warp =
                if number == self.warp.number { &mut self.warp } else { &mut parked[number as usize] };
            let registers = &mut warp.registers;
            match (operation.descriptors.0.and_then(parse), fragments) {
                (Some(descriptor), _) => {
                    descriptor.units(16 * i..16 * i + 16, shape.transpose[0], &mut units);
                    raw.read(shared, &units, shape.transpose[0]);
                }
                (None, &[a, b, c, d]) => raw.gather(
                    [a, b, c, d].map(|s| (registers.word(self.constants, s), registers.word_written(s))),
                ),
                _ => return,
            }
            let a = Rows::<T>::new(&raw, shape.a, shape.negate[0]);
            sums.clear();
            sums.extend(results.iter().map(|&slot| *registers.word(self.constants, slot)));
            product(&a, &b, shape, operation.fresh, model, level, &mut sums);
            let halves = shape.accumulator == Ty::F16;
            for (i, (&slot, sums)) in results.iter().zip(&sums).enumerate() {
                let old = if operation.fresh { u32::MAX } else { registers.word_written(slot) };
                registers.set_word(slot, sums, u32::MAX, old & known_results(&a, &b, halves, i));
            }
        }
    }
}

/// The handler of `wgmma.fence`.
pub(crate) fn fence(level: Level) -> Handler {
    warp!(level, |core, _inst| {
        if let Err(flow) = core.whole_warp("wgmma.fence") {
            return flow;
        }
        let words = core.launch.kernel.registers[1] as usize;
        core.warp.products.registers.fence(words);
        Flow::Next
    })
}

/// The handler of `wgmma.commit_group`.
pub(crate) fn commit(level: Level) -> Handler {
    warp!(level, |core, _inst| {
        if let Err(flow) = core.whole_warp("wgmma.commit_group") {
            return flow;
        }
        let products = &mut core.warp.products;
        // Groups that nobody waits for would add up; those in the middle can be told by the next.
        if products.commits.len() < 1 << 16 {
            products.commits.push_back(products.executed);
        } else if let Some(last) = products.commits.back_mut() {
            *last = products.executed;
        }
        Flow::Next
    })
}

/// The handler of `wgmma.wait_group`.
pub(crate) fn wait(level: Level) -> Handler {
    warp!(level, |core, inst| { await_products(core, inst).err().unwrap_or(Flow::Next) })
}

fn await_products(core: &mut Core<'_>, inst: &Inst) -> Result<(), Flow> {
    core.whole_warp("wgmma.wait_group")?;
    let allowed = usize::try_from(inst.immediates[0]).unwrap_or(0);
    let commits = &core.warp.products.commits;
    let Some(last) = commits.len().checked_sub(allowed + 1) else { return Ok(()) };
    let target = commits[last];
    let index = core.warp.number as usize / 4;
    if target > core.warp.products.complete {
        core.complete_products(index, target)?;
        // The product is complete, so that all four warps have executed it: what they did before is over. No proxy fence is behind it.
        let first = core.warp.actor - core.warp.number % 4;
        let stamp = core.block.warpgroups[index].stamp;
        let mut clock = Clock::default();
        for actor in (first..first + 4).filter(|&actor| actor != core.warp.actor) {
            clock.see(actor as u16, stamp);
        }
        core.order.acquire(core.warp.actor, &clock);
        core.warp.products.complete = target;
    }
    core.warp.products.commits.drain(..=last);
    Ok(())
}
