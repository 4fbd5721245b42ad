//! Branches, exits and barriers.

use super::code::{Core, Flow, Handler, Inst, Level};
use super::lane::{Lane, warp};
use super::warp::State;
use crate::check::FindingKind;
use crate::ir::op::{Barrier, Op, Vote};

/// The handler of instructions that do nothing here.
pub(crate) fn nop(level: Level) -> Handler {
    warp!(level, |_core, _inst| { Flow::Next })
}

/// The handler of `griddepcontrol.wait`: launches do not overlap here, so that there is nothing to wait for.
pub(crate) fn wait_for_grids(level: Level) -> Handler {
    warp!(level, |core, _inst| {
        core.warp.early &= !core.warp.mask;
        Flow::Next
    })
}

/// The handler of `bra`.
pub(crate) fn branch(level: Level) -> Handler {
    warp!(level, |core, inst| {
        let warp = &mut core.warp;
        let staying = warp.active & !warp.mask;
        if staying != 0 {
            let next = warp.pc + 1;
            warp.part(staying, next, State::Ready);
        }
        warp.pc = inst.immediates[0] as u32;
        Flow::Jumped
    })
}

/// The handler of `brx.idx`.
pub(crate) fn branch_indexed(level: Level) -> Handler {
    warp!(level, |core, inst| {
        let mask = core.warp.mask;
        let missing = mask & !u32::written(core, inst.slots[0]);
        if missing != 0 && core.launch.checks.uninitialised {
            return core.uninitialised(missing, "the index of a branch");
        }
        let indices = *u32::read(core, inst.slots[0]);
        let outside = lanes_where(mask, |lane| indices[lane] as usize >= inst.targets.len());
        if outside != 0 {
            let index = indices[outside.trailing_zeros() as usize];
            let message = format!("the index {index} of a branch is not below {}", inst.targets.len());
            return core.fail(FindingKind::OutOfBounds, outside, message, None);
        }
        let target = |index: u32| inst.targets.get(index as usize).copied().unwrap_or(0);
        core.scatter(mask, &indices.map(target))
    })
}

/// The lanes of `mask` for which `f` holds.
#[inline(always)]
pub(crate) fn lanes_where(mask: u32, f: impl Fn(usize) -> bool) -> u32 {
    (0..32).filter(|&lane| mask >> lane & 1 == 1 && f(lane)).fold(0, |lanes, lane| lanes | 1 << lane)
}

/// The handler of `exit` and `ret`.
pub(crate) fn exit(level: Level) -> Handler {
    warp!(level, |core, _inst| {
        if let Err(flow) = core.check_copies_at_exit() {
            return flow;
        }
        let warp = &mut core.warp;
        if warp.live == warp.mask
            && let Err(flow) = core.check_products_at_exit()
        {
            return flow;
        }
        let warp = &mut core.warp;
        let last = warp.live == warp.mask && core.block.parked.iter().all(|warp| warp.live == 0);
        if last && let Err(flow) = core.check_exit() {
            return flow;
        }
        let warp = &mut core.warp;
        warp.live &= !warp.mask;
        warp.active &= !warp.mask;
        core.lanes_exited();
        if core.warp.active == 0 { Flow::Jumped } else { Flow::Next }
    })
}

/// The handler of `elect`.
pub(crate) fn elect(level: Level) -> Handler {
    warp!(level, |core, inst| {
        let members = match core.members(inst, 2) {
            Ok(members) => members,
            Err(flow) => return flow,
        };
        if !core.converged(members) {
            return Flow::Converge;
        }
        let mask = core.warp.mask;
        let leader = mask.trailing_zeros();
        u32::write(core, inst.slots[0], &[leader; 32], u32::MAX);
        core.warp.registers.set_predicate(inst.slots[1], 1 << leader, mask, u32::MAX);
        Flow::Next
    })
}

/// The handler of `trap`.
pub(crate) fn trap(level: Level) -> Handler {
    warp!(level, |core, _inst| {
        let lanes = core.warp.mask;
        let message = "the kernel stopped itself with `trap`".to_owned();
        let hint = "in Rust this is a panic: an index out of bounds, an overflow, an `unwrap`";
        core.fail(FindingKind::Trap, lanes, message, Some(hint))
    })
}

impl Core<'_> {
    /// Whether all lanes that `members` names and that have not exited are here. If not, the group has to wait.
    #[inline(always)]
    pub(crate) fn converged(&mut self, members: u32) -> bool {
        let needed = members & self.warp.live;
        self.warp.wanted = needed;
        needed & !self.warp.mask == 0
    }

    /// For instructions that the whole warp executes: lets the lanes wait for the others, or fails if some are gone.
    #[inline(always)]
    pub(crate) fn whole_warp(&mut self, what: &str) -> Result<(), Flow> {
        if self.warp.mask == u32::MAX {
            return Ok(());
        }
        self.partial_warp(what)
    }

    #[cold]
    fn partial_warp(&mut self, what: &str) -> Result<(), Flow> {
        let live = self.warp.live;
        if !self.converged(live) {
            return Err(Flow::Converge);
        }
        let message = format!("`{what}` needs all 32 lanes of the warp; some have exited or never existed");
        Err(self.fail(
            FindingKind::Divergence,
            !self.warp.mask,
            message,
            Some("let all lanes of the warp reach it"),
        ))
    }
}

/// The handler of `bar.warp.sync`.
pub(crate) fn barrier_warp(level: Level) -> Handler {
    warp!(level, |core, inst| {
        let members = match core.members(inst, 0) {
            Ok(members) => members,
            Err(flow) => return flow,
        };
        if core.converged(members) {
            core.warp.settle_lanes();
            return Flow::Next;
        }
        // Lanes of the warp may wait at different instructions, as long as they name the same lanes.
        let here = core.warp.mask;
        let waiting: u32 = core
            .warp
            .others
            .iter()
            .filter(|g| g.state == State::Converging(core.warp.wanted) && core.launch.is_warp_barrier(g.pc))
            .fold(0, |lanes, g| lanes | g.lanes);
        if core.warp.wanted & !(here | waiting) != 0 {
            return Flow::Converge;
        }
        for group in &mut core.warp.others {
            if group.state == State::Converging(core.warp.wanted) && core.launch.is_warp_barrier(group.pc) {
                group.state = State::Ready;
                group.pc += 1;
            }
        }
        core.warp.settle_lanes();
        Flow::Next
    })
}

/// The handler of `bar` and `barrier`.
pub(crate) fn barrier(level: Level) -> Handler {
    warp!(level, |core, inst| {
        let Op::Barrier { kind, aligned, counted } = inst.op else { return Flow::Next };
        if aligned {
            let live = core.warp.live;
            if !core.converged(live) {
                return Flow::Converge;
            }
        }
        match arrive(core, inst, kind, counted) {
            Ok(flow) | Err(flow) => flow,
        }
    })
}

fn arrive(core: &mut Core<'_>, inst: &Inst, kind: Barrier, counted: bool) -> Result<Flow, Flow> {
    let mask = core.warp.mask;
    let destinations = usize::from(matches!(kind, Barrier::Reduce(_) | Barrier::Count));
    let id = core.uniform(inst, destinations, "the number of a barrier")?;
    if id > 15 {
        let message = format!("there is no barrier {id}: they are numbered 0 to 15");
        return Err(core.fail(FindingKind::BarrierMisuse, mask, message, None));
    }
    let count = if counted {
        Some(core.uniform(inst, destinations + 1, "the thread count of a barrier")?)
    } else {
        None
    };
    if let Some(count) = count
        && (count == 0 || count % 32 != 0 || count > core.launch.warps * 32)
    {
        let message = format!(
            "a barrier of {count} threads in a block of {}: expected a multiple of 32 up to the size of the block",
            core.launch.threads
        );
        return Err(core.fail(FindingKind::BarrierMisuse, mask, message, None));
    }
    let vote = if destinations == 1 {
        let slot = inst.slots[3];
        let missing = mask & !core.warp.registers.predicate_written(slot);
        if missing != 0 && core.launch.checks.uninitialised {
            return Err(core.uninitialised(missing, "the predicate of a barrier"));
        }
        core.warp.registers.predicate(core.constants, slot) & mask
    } else {
        0
    };
    core.arrive_at(id as u8, kind, count, vote, inst.slots[0])
}

/// What a completed reduction gives every thread.
pub(crate) fn reduction(kind: Barrier, votes: u32, threads: u32) -> u32 {
    match kind {
        Barrier::Count => votes,
        Barrier::Reduce(Vote::All) => u32::from(votes == threads),
        _ => u32::from(votes != 0),
    }
}
