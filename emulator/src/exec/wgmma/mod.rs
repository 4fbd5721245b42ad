//! `wgmma`: matrix products that the four warps of a warpgroup start together and wait for later.
//!
//! The product begins once all four warps have executed it, and is computed for all of them at once: at the first wait
//! that requires it, or where it began; [`Completion`] says which. Until a warp has waited, nobody may write what the
//! product reads from shared memory, and the warp must not touch the product's registers (`watch`).

mod watch;

use std::collections::VecDeque;

use super::block::Block;
use super::code::{Core, Flow, Handler, Inst, Level};
use super::lane::{Lane, warp};
use super::registers::Slot;
use super::warp::{State, Warp};
use crate::check::FindingKind;
use crate::check::order::Clock;
use crate::check::shadow::Lock;
use crate::config::{Completion, Numerics};
use crate::ir::op::{Op, Wgmma};
use crate::ir::types::Ty;
use crate::numeric::mma::Model;
use crate::numeric::wgmma::descriptor::{Descriptor, runs};
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
    warp!(level, |core, inst| { execute(core, inst).err().unwrap_or(Flow::Next) })
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

fn execute(core: &mut Core<'_>, inst: &Inst) -> Result<(), Flow> {
    let Op::Wgmma(shape) = inst.op else { return Ok(()) };
    core.whole_warp("wgmma.mma_async")?;
    let operands = Operands::new(inst, shape);
    let index = core.warpgroup()?;
    let a = operands.a.map(|slot| core.uniform_double(slot, "the descriptor of A")).transpose()?;
    let b = core.uniform_double(operands.b, "the descriptor of B")?;
    let keep = core.uniform_predicate(operands.keep, "the predicate of `wgmma`")?;
    let ranges = core.matrix_ranges(shape, a, b)?;
    core.check_product_registers(operands.registers, shape)?;

    let number = core.warp.products.executed;
    if number - core.block.warpgroups[index].first >= MOST {
        core.complete_products(index, number - MOST + 1)?;
    }
    let own = 1 << (core.warp.number % 4);
    let operation = Operation {
        at: core.warp.pc,
        descriptors: (a, b),
        fresh: !keep,
        warps: own,
        locks: Vec::with_capacity(4),
    };
    core.join_product(index, number, operation)?;
    let lock = core.lock_reads(&ranges, "a matrix product (`wgmma`)")?;
    let group = &mut core.block.warpgroups[index];
    let place = (number - group.first) as usize;
    group.operations[place].locks.push(lock);
    let everyone = group.operations[place].warps == 0xf;

    let at = core.warp.pc;
    core.warp.products.registers.start(operands.registers, shape.accumulators(), number, at);
    core.warp.products.executed += 1;
    for warp in &mut core.block.parked[4 * index..4 * index + 4] {
        warp.wake(|state| state == State::Warpgroup);
    }
    let now = match core.launch.completion {
        Completion::Eager => true,
        Completion::Latest => false,
        Completion::Random => {
            let seed = core.launch.seed ^ core.block.number << 20 ^ index as u64;
            super::copy::mix(seed.wrapping_add(number << 32)) & 1 == 0
        }
    };
    if now && everyone { core.complete_products(index, number + 1) } else { Ok(()) }
}

impl Core<'_> {
    /// The position of the warp's warpgroup, which must have four whole warps.
    fn warpgroup(&mut self) -> Result<usize, Flow> {
        let index = self.warp.number as usize / 4;
        if self.launch.threads < (index as u32 + 1) * 128 {
            let message = format!(
                "`wgmma` needs a warpgroup of 4 warps; the block has {} threads, so that warp {} is in none",
                self.launch.threads, self.warp.number
            );
            return Err(self.fail(FindingKind::WarpgroupMisuse, u32::MAX, message, None));
        }
        if self.block.warpgroups.len() <= index {
            self.block.warpgroups.resize_with(index + 1, Warpgroup::default);
        }
        Ok(index)
    }

    /// The value of a 64-bit operand that must be the same in all lanes.
    fn uniform_double(&mut self, slot: Slot, what: &str) -> Result<u64, Flow> {
        let missing = !u64::written(self, slot);
        if missing != 0 && self.launch.checks.uninitialised {
            return Err(self.uninitialised(missing, what));
        }
        let values = u64::read(self, slot);
        let value = values[0];
        let differs = super::control::lanes_where(u32::MAX, |lane| values[lane] != value);
        if differs == 0 {
            return Ok(value);
        }
        Err(self.fail(FindingKind::Divergence, differs, format!("{what} is not the same in all lanes"), None))
    }

    /// The value of a predicate that must be the same in all lanes.
    fn uniform_predicate(&mut self, slot: Slot, what: &str) -> Result<bool, Flow> {
        let missing = !self.warp.registers.predicate_written(slot);
        if missing != 0 && self.launch.checks.uninitialised {
            return Err(self.uninitialised(missing, what));
        }
        match self.warp.registers.predicate(self.constants, slot) {
            0 => Ok(false),
            u32::MAX => Ok(true),
            lanes => {
                let message = format!("{what} is not the same in all lanes");
                Err(self.fail(FindingKind::Divergence, lanes, message, None))
            }
        }
    }

    /// The bytes of shared memory that the warp's part of a product reads.
    fn matrix_ranges(&mut self, shape: Wgmma, a: Option<u64>, b: u64) -> Result<Vec<(u32, u32)>, Flow> {
        let first = self.warp.number % 4 * 16;
        let mut all = Vec::new();
        let mut units = Vec::new();
        let matrices = [
            a.map(|a| ("A", a, first..first + 16, shape.transpose[0])),
            Some(("B", b, 0..shape.n.into(), shape.transpose[1])),
        ];
        for (name, bits, rows, transpose) in matrices.into_iter().flatten() {
            let descriptor = match Descriptor::parse(bits) {
                Ok(descriptor) => descriptor,
                Err(reserved) => {
                    let message = format!(
                        "the descriptor of {name}, {bits:#018x}, has bits {reserved:#x} set, which must be zeros"
                    );
                    let hint = "addresses and distances are in units of 16 bytes, 14 bits each: cut them";
                    return Err(self.fail(FindingKind::WarpgroupMisuse, u32::MAX, message, Some(hint)));
                }
            };
            descriptor.units(rows, transpose, &mut units);
            let size = self.block.shared.len() as u32;
            if let Some(unit) = units.iter().find(|&unit| unit + 16 > size)
                && self.launch.checks.bounds
            {
                let message = format!(
                    "`wgmma` reads {name} at offset {unit:#x} of shared memory, which has {size} bytes: its descriptor is \
                     {bits:#018x}"
                );
                return Err(self.fail(FindingKind::OutOfBounds, u32::MAX, message, None));
            }
            all.extend(units.iter().filter(|&unit| unit + 16 <= size));
        }
        Ok(runs(&all))
    }

    /// Makes the warp's product one with that of the other warps of its warpgroup.
    fn join_product(&mut self, index: usize, number: u64, own: Operation) -> Result<(), Flow> {
        let mask = self.warp.mask;
        // A warp that is gone will not execute it.
        let absent = self.block.parked[4 * index..4 * index + 4]
            .iter()
            .find(|warp| warp.number != u32::MAX && warp.live == 0 && warp.products.executed <= number);
        if let Some(number) = absent.map(|warp| warp.number) {
            return Err(self.left_short(number, own.at));
        }
        let group = &mut self.block.warpgroups[index];
        let place = (number - group.first) as usize;
        let Some(other) = group.operations.get_mut(place) else {
            group.operations.push_back(own);
            return Ok(());
        };
        let differs = if other.at != own.at {
            Some("another `wgmma`")
        } else if other.descriptors.0 != own.descriptors.0 {
            Some("another descriptor of A")
        } else if other.descriptors.1 != own.descriptors.1 {
            Some("another descriptor of B")
        } else if other.fresh != own.fresh {
            Some("another scale-d")
        } else {
            None
        };
        let Some(what) = differs else {
            other.warps |= own.warps;
            return Ok(());
        };
        let (at, peer) = (other.at, other.warps.trailing_zeros() + 4 * index as u32);
        let message = format!(
            "the warps of a warpgroup must execute the same `wgmma`; warp {peer} executed {what} than warp {}",
            self.warp.number
        );
        self.fail(FindingKind::WarpgroupMisuse, mask, message, None);
        if let Some(fault) = &mut self.fault {
            fault.related.push((format!("what warp {peer} executed"), at));
        }
        Err(Flow::Fault)
    }

    #[cold]
    fn left_short(&mut self, warp: u32, at: u32) -> Flow {
        let message = format!(
            "the warps of a warpgroup must execute the same `wgmma`; warp {warp} exits without executing this one"
        );
        let hint = "all four warps (from a multiple of 4 on) must take the same branches up to here";
        self.fail(FindingKind::WarpgroupMisuse, u32::MAX, message, Some(hint));
        if let Some(fault) = &mut self.fault {
            fault.at = Some(at);
        }
        Flow::Fault
    }

    /// When all lanes of the warp exit: no warp of its warpgroup may have executed more products.
    pub(super) fn check_products_at_exit(&mut self) -> Result<(), Flow> {
        let executed = self.warp.products.executed;
        let group = self.block.warpgroups.get(self.warp.number as usize / 4);
        let missed = group.and_then(|group| {
            let place = executed.checked_sub(group.first)?;
            group.operations.get(place as usize).map(|operation| operation.at)
        });
        match missed {
            Some(at) => Err(self.left_short(self.warp.number, at)),
            None => Ok(()),
        }
    }

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
        // The product is complete, so that all four warps have executed it: what they did before is over.
        let first = core.warp.actor - core.warp.number % 4;
        let stamp = core.block.warpgroups[index].stamp;
        let mut clock = Clock::default();
        for actor in (first..first + 4).filter(|&actor| actor != core.warp.actor) {
            clock.learn(actor as u16, stamp);
        }
        core.order.acquire(core.warp.actor, &clock);
        core.warp.products.complete = target;
    }
    core.warp.products.commits.drain(..=last);
    Ok(())
}
