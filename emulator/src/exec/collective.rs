//! Operations across the lanes of a warp.

use super::access::ones;
use super::code::{Core, Flow, Handler, Inst, Level};
use super::control::lanes_where;
use super::lane::{Lane, warp};
use super::warp::State;
use crate::check::FindingKind;
use crate::ir::op::{Atomic, Op, Shuffle, Vote};
use crate::ir::types::Ty;

impl Core<'_> {
    /// The lanes that an instruction's mask operand names.
    #[inline(always)]
    pub(crate) fn members(&mut self, inst: &Inst, operand: usize) -> Result<u32, Flow> {
        let slot = inst.slots[operand];
        let mask = self.warp.mask;
        let missing = mask & !u32::written(self, slot);
        if missing != 0 && self.launch.checks.uninitialised {
            return Err(self.uninitialised(missing, "the mask of lanes"));
        }
        let values = u32::read(self, slot);
        let members = values[mask.trailing_zeros() as usize & 31];
        if lanes_where(mask, |lane| values[lane] != members) != 0 {
            return self.one_of(*values);
        }
        if mask & !members != 0 {
            let message = format!("a lane executes this, but the mask {members:#010x} does not name it");
            let hint = "the mask must name every lane that comes here";
            return Err(self.fail(FindingKind::Divergence, mask & !members, message, Some(hint)));
        }
        Ok(members)
    }

    /// Lanes that have come together with different masks: those whose mask names no lane that is missing go on, the others
    /// come after them.
    #[cold]
    fn one_of(&mut self, masks: [u32; 32]) -> Result<u32, Flow> {
        let (here, live) = (self.warp.mask, self.warp.live);
        let mut wanted = 0;
        for lane in ones(here) {
            let members = masks[lane];
            let same = lanes_where(here, |other| masks[other] == members);
            let strangers = same & !members;
            if strangers != 0 {
                let message = format!("a lane executes this, but the mask {members:#010x} does not name it");
                return Err(self.fail(FindingKind::Divergence, strangers, message, None));
            }
            if members & live & !same == 0 {
                let pc = self.warp.pc;
                self.warp.part(here & !same, pc, State::Ready);
                self.warp.mask = same;
                return Ok(members);
            }
            wanted |= members & live;
        }
        self.warp.wanted = wanted;
        Err(Flow::Converge)
    }

    /// The value of an operand that must be the same in all lanes.
    #[inline(always)]
    pub(crate) fn uniform(&mut self, inst: &Inst, operand: usize, what: &str) -> Result<u32, Flow> {
        let slot = inst.slots[operand];
        let mask = self.warp.mask;
        let missing = mask & !u32::written(self, slot);
        if missing != 0 && self.launch.checks.uninitialised {
            return Err(self.uninitialised(missing, what));
        }
        let values = u32::read(self, slot);
        let value = values[mask.trailing_zeros() as usize & 31];
        let mut differs = 0;
        for lane in 0..32 {
            differs |= u32::from(values[lane] != value) << lane;
        }
        if differs & mask == 0 {
            return Ok(value);
        }
        let message = format!("{what} is not the same in all lanes");
        Err(self.fail(FindingKind::Divergence, differs & mask, message, None))
    }

    /// The lanes of an instruction with a mask operand, once they are all here.
    #[inline(always)]
    fn together(&mut self, inst: &Inst, operand: usize) -> Result<(), Flow> {
        let members = self.members(inst, operand)?;
        if self.converged(members) { Ok(()) } else { Err(Flow::Converge) }
    }
}

/// The handler of `shfl`.
pub(crate) fn shuffle(_: Shuffle, level: Level) -> Handler {
    warp!(level, |core, inst| {
        let Op::Shuffle { mode, sync } = inst.op else { return Flow::Next };
        let [to, predicate, from, sb, sc, ..] = inst.slots;
        if sync && let Err(flow) = core.together(inst, 5) {
            return flow;
        }
        let mask = core.warp.mask;
        let (values, b, c) = (*u32::read(core, from), *u32::read(core, sb), *u32::read(core, sc));
        let known = u32::written(core, from);
        let missing = mask & !(u32::written(core, sb) & u32::written(core, sc));
        if missing != 0 && core.launch.checks.uninitialised {
            return core.uninitialised(missing, "the source lane of a shuffle");
        }
        let (mut out, mut valid, mut written, mut strangers) = ([0u32; 32], 0u32, 0u32, 0u32);
        for lane in 0..32u32 {
            let (b, c) = (b[lane as usize] & 31, c[lane as usize]);
            let (clamp, segments) = (c & 31, c >> 8 & 31);
            let max = (lane & segments) | (clamp & !segments);
            let min = lane & segments;
            let (source, inside) = match mode {
                Shuffle::Up => (lane.wrapping_sub(b), lane as i32 - b as i32 >= max as i32),
                Shuffle::Down => (lane + b, lane + b <= max),
                Shuffle::Butterfly => (lane ^ b, lane ^ b <= max),
                Shuffle::Index => (min | (b & !segments), min | (b & !segments) <= max),
            };
            let source = if inside { source & 31 } else { lane };
            valid |= u32::from(inside) << lane;
            strangers |= u32::from(mask >> source & 1 == 0) << lane;
            written |= (known >> source & 1) << lane;
            out[lane as usize] = values[source as usize];
        }
        // A lane that does not take part has nothing to give: its value is undefined.
        u32::write(core, to, &out, written & !strangers);
        core.warp.registers.set_predicate(predicate, valid, mask, u32::MAX);
        Flow::Next
    })
}

/// The handler of `vote`.
pub(crate) fn vote(_: Vote, level: Level) -> Handler {
    warp!(level, |core, inst| {
        let Op::Vote { vote, sync } = inst.op else { return Flow::Next };
        if sync && let Err(flow) = core.together(inst, 2) {
            return flow;
        }
        let mask = core.warp.mask;
        let value = core.warp.registers.predicate(core.constants, inst.slots[1]) & mask;
        let known = core.warp.registers.predicate_written(inst.slots[1]) & mask == mask;
        let written = if known { u32::MAX } else { 0 };
        let all = |holds: bool| if holds { u32::MAX } else { 0 };
        match vote {
            Vote::Ballot => u32::write(core, inst.slots[0], &[value; 32], written),
            Vote::All => core.warp.registers.set_predicate(inst.slots[0], all(value == mask), mask, written),
            Vote::Any => core.warp.registers.set_predicate(inst.slots[0], all(value != 0), mask, written),
            Vote::Uniform => {
                let uniform = value == mask || value == 0;
                core.warp.registers.set_predicate(inst.slots[0], all(uniform), mask, written);
            }
        }
        Flow::Next
    })
}

/// The handler of `match`.
pub(crate) fn matching(_: bool, _: Ty, level: Level) -> Handler {
    warp!(level, |core, inst| {
        let Op::Match { all, ty } = inst.op else { return Flow::Next };
        let first = if all { 2 } else { 1 };
        if let Err(flow) = core.together(inst, first + 1) {
            return flow;
        }
        let mask = core.warp.mask;
        let slot = inst.slots[first];
        let (values, written) = match ty.bytes() {
            8 => (*u64::read(core, slot), u64::written(core, slot)),
            _ => (u32::read(core, slot).map(u64::from), u32::written(core, slot)),
        };
        let written = if written & mask == mask { u32::MAX } else { 0 };
        let mut out = [0u32; 32];
        for lane in ones(mask) {
            out[lane] = lanes_where(mask, |other| values[other] == values[lane]);
        }
        if all {
            let equal = ones(mask).all(|lane| out[lane] == mask);
            let (lanes, holds) = if equal { (mask, u32::MAX) } else { (0, 0) };
            u32::write(core, inst.slots[0], &[lanes; 32], written);
            core.warp.registers.set_predicate(inst.slots[1], holds, mask, written);
        } else {
            u32::write(core, inst.slots[0], &out, written);
        }
        Flow::Next
    })
}

/// The handler of `activemask`.
pub(crate) fn active_mask(level: Level) -> Handler {
    warp!(level, |core, inst| {
        let active = core.warp.mask;
        u32::write(core, inst.slots[0], &[active; 32], u32::MAX);
        Flow::Next
    })
}

/// The handler of `redux`.
pub(crate) fn redux(level: Level) -> Handler {
    warp!(level, |core, inst| {
        let Op::Redux(op, ty) = inst.op else { return Flow::Next };
        if let Err(flow) = core.together(inst, 2) {
            return flow;
        }
        let mask = core.warp.mask;
        let values = *u32::read(core, inst.slots[1]);
        let written = if u32::written(core, inst.slots[1]) & mask == mask { u32::MAX } else { 0 };
        let signed = ty.is_signed();
        let result = ones(mask).map(|lane| values[lane]).reduce(|a, b| match op {
            Atomic::Add => a.wrapping_add(b),
            Atomic::Min if signed => a.cast_signed().min(b.cast_signed()).cast_unsigned(),
            Atomic::Max if signed => a.cast_signed().max(b.cast_signed()).cast_unsigned(),
            Atomic::Min => a.min(b),
            Atomic::Max => a.max(b),
            Atomic::And => a & b,
            Atomic::Or => a | b,
            _ => a ^ b,
        });
        u32::write(core, inst.slots[0], &[result.unwrap_or(0); 32], written);
        Flow::Next
    })
}
