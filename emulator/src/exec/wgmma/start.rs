//! Where a product starts: its operands, and that all warps of the warpgroup execute the same one.

use std::ops::Range;
use std::sync::Arc;

use super::super::code::{Core, Flow, Inst};
use super::super::control::lanes_where;
use super::super::copy::mix;
use super::super::lane::Lane;
use super::super::registers::Slot;
use super::super::warp::State;
use super::{MOST, Operands, Operation, Warpgroup};
use crate::check::FindingKind;
use crate::config::Completion;
use crate::exec::access::HINT_RED_ZONE;
use crate::ir::op::Op;
use crate::numeric::wgmma::descriptor::{Descriptor, runs};

pub(super) fn execute(core: &mut Core<'_>, inst: &Inst) -> Result<(), Flow> {
    let Op::Wgmma(shape) = inst.op else { return Ok(()) };
    core.whole_warp("wgmma.mma_async")?;
    let operands = Operands::new(inst, shape);
    let index = core.warpgroup()?;
    let a = operands.a.map(|slot| core.uniform_double(slot, "the descriptor of A")).transpose()?;
    let b = core.uniform_double(operands.b, "the descriptor of B")?;
    let keep = core.uniform_predicate(operands.keep, "the predicate of `wgmma`")?;
    core.check_product_registers(operands.registers, shape)?;

    let number = core.warp.products.executed;
    if number - core.block.warpgroups[index].first >= MOST {
        core.complete_products(index, number - MOST + 1)?;
    }
    let quarter = core.warp.number % 4;
    let mut ranges = match a {
        Some(a) => core.matrix_ranges("A", a, 16 * quarter..16 * quarter + 16, shape.transpose[0])?,
        None => Vec::new(),
    };
    let group = &core.block.warpgroups[index];
    let known =
        group.operations.get((number - group.first) as usize).filter(|other| other.descriptors.1 == b);
    let columns = match known {
        Some(other) => Arc::clone(&other.columns),
        None => core.matrix_ranges("B", b, 0..shape.n.into(), shape.transpose[1])?.into(),
    };
    let operation = Operation {
        at: core.warp.pc,
        descriptors: (a, b),
        fresh: !keep,
        warps: 1 << quarter,
        columns: Arc::clone(&columns),
        locks: Vec::with_capacity(4),
    };
    const WHAT: &str = "a matrix product (`wgmma`)";
    if core.join_product(index, number, operation)? {
        // B is read once for all four warps; each of them must know what was written there.
        let rank = core.block.rank;
        core.check_agent_reads(rank, &columns, u32::MAX, WHAT)?;
    } else {
        ranges.extend(&*columns);
    }
    let lock = core.lock_reads(&ranges, WHAT)?;
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
            mix(seed.wrapping_add(number << 32)) & 1 == 0
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
        let differs = lanes_where(u32::MAX, |lane| values[lane] != value);
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

    /// The bytes of shared memory that some rows of a matrix (columns, of B) take.
    fn matrix_ranges(
        &mut self,
        name: &str,
        bits: u64,
        rows: Range<u32>,
        transpose: bool,
    ) -> Result<Vec<(u32, u32)>, Flow> {
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
        let mut units = Vec::new();
        descriptor.units(rows, transpose, &mut units);
        let size = self.block.shared.len() as u32;
        let inside = |unit: &u32| *unit + 16 <= size;
        if let Some(stray) = units.iter().find_map(|&unit| self.launch.in_red_zone(unit, 16))
            && self.launch.checks.bounds
        {
            let place = self.launch.describe_red_zone(stray);
            let message =
                format!("`wgmma` reads {name} from shared memory {place}: its descriptor is {bits:#018x}");
            return Err(self.fail(FindingKind::OutOfBounds, u32::MAX, message, Some(HINT_RED_ZONE)));
        }
        if let Some(unit) = units.iter().find(|unit| !inside(unit))
            && self.launch.checks.bounds
        {
            let message = format!(
                "`wgmma` reads {name} at offset {unit:#x} of shared memory, which has {size} bytes: its descriptor is \
                 {bits:#018x}"
            );
            return Err(self.fail(FindingKind::OutOfBounds, u32::MAX, message, None));
        }
        units.retain(inside);
        Ok(runs(&units))
    }

    /// Makes the warp's product one with that of the other warps of its warpgroup; says whether one was there before.
    fn join_product(&mut self, index: usize, number: u64, own: Operation) -> Result<bool, Flow> {
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
            return Ok(false);
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
            return Ok(true);
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
    pub(in crate::exec) fn check_products_at_exit(&mut self) -> Result<(), Flow> {
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
}
