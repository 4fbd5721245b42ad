//! What strong accesses and fences pass on.
//!
//! A release leaves what its warp did and knows at the place that it writes; an acquire takes what it finds at the place that it
//! reads. A fence makes releases of the relaxed writes behind it, and acquires of the relaxed reads before it. Scopes are told apart
//! only between clusters, and places keep all that was ever left there: both hide mistakes at worst, and make none up.

use std::collections::HashMap;

use super::access::ones;
use super::code::{Core, Flow, Handler, Level};
use super::lane::warp;
use crate::check::order::Clock;
use crate::ir::op::{Op, Strength};

/// What was left at places that strong accesses touch: those of global memory by address, those of shared memory by rank and
/// offset, with the highest bit set.
pub(crate) type Locations = HashMap<u64, Clock>;

/// A warp's part in it.
#[derive(Debug, Default)]
pub(crate) struct Fences {
    /// What the warp had done and known at its last fence.
    released: Option<Clock>,
    /// What its relaxed reads have found since.
    found: Clock,
    /// What it had done at its last `fence.mbarrier_init`, and what it knows behind such fences of others: initialisations of
    /// mbarriers, which relaxed arrivals at the cluster's barrier pass on.
    pub(super) published: Clock,
    pub(super) inits: Clock,
}

impl Fences {
    /// What a relaxed write passes on.
    pub(super) fn released(&self) -> Clock {
        self.released.clone().unwrap_or_default()
    }

    /// A relaxed read has found what was passed on.
    pub(super) fn find(&mut self, clock: &Clock) {
        self.found.join(clock);
    }
}

/// The place of an offset in a block's shared memory.
pub(crate) fn shared_place(rank: u32, offset: u64) -> u64 {
    1 << 63 | u64::from(rank) << 32 | offset
}

impl Core<'_> {
    /// A strong access of some lanes, which reads, writes or both; `place` gives each lane's.
    pub(crate) fn synchronise(
        &mut self,
        strength: Strength,
        (reads, writes): (bool, bool),
        lanes: u32,
        place: impl Fn(usize) -> u64,
    ) {
        if strength == Strength::Weak || self.log.is_none() && self.launch.kernel.late.is_empty() {
            return;
        }
        if reads {
            let mut learnt = false;
            for lane in ones(lanes) {
                let Some(clock) = self.locations.get(&place(lane)) else { continue };
                if strength.acquires() {
                    self.order.acquire(self.warp.actor, clock);
                    learnt = true;
                } else {
                    self.warp.fences.found.join(clock);
                }
            }
            if learnt {
                // A lane of the warp may have been the one that left it.
                self.warp.settle_lanes();
            }
            self.find_in_turns(strength, lanes, &place);
        }
        if writes {
            self.leave_in_turns(strength, lanes, &place);
            let released = match strength.releases() {
                true => {
                    let released = self.order.release(self.warp.actor);
                    self.pass_on_lanes(lanes);
                    Some(released)
                }
                false => self.warp.fences.released.clone(),
            };
            let Some(released) = released else { return };
            for lane in ones(lanes) {
                self.locations.entry(place(lane)).or_default().join(&released);
            }
        }
    }
}

/// The places of strong accesses to global memory.
fn global_places(lanes: u32, place: impl Fn(usize) -> u64) -> impl Iterator<Item = u64> {
    let mut last = None;
    ones(lanes)
        .map(place)
        .filter(|place| place >> 63 == 0)
        // All lanes of a warp mostly ask for one word.
        .filter(move |&place| last.replace(place) != Some(place))
}

impl Core<'_> {
    /// The same between clusters, for a read.
    fn find_in_turns(&mut self, strength: Strength, lanes: u32, place: impl Fn(usize) -> u64) {
        let (Some(turns), Some(log)) = (&mut self.turns, &mut self.log) else { return };
        if !strength.is_far() {
            return;
        }
        for place in global_places(lanes, place) {
            turns.find(self.number, place, strength.acquires(), log, &mut self.order);
        }
    }

    /// And for a write.
    fn leave_in_turns(&mut self, strength: Strength, lanes: u32, place: impl Fn(usize) -> u64) {
        let (Some(turns), Some(log)) = (&mut self.turns, &mut self.log) else { return };
        if !strength.is_far() {
            return;
        }
        for place in global_places(lanes, place) {
            turns.leave(self.number, place, strength.releases(), log, &mut self.order);
        }
    }
}

/// The handler of fences between threads.
pub(crate) fn fence(level: Level) -> Handler {
    warp!(level, |core, inst| {
        let actor = core.warp.actor;
        if let (Op::Fence { gpu: true }, Some(turns), Some(log)) = (inst.op, &mut core.turns, &mut core.log) {
            turns.fence(core.number, log, &mut core.order);
        }
        let found = std::mem::take(&mut core.warp.fences.found);
        core.order.acquire(actor, &found);
        core.warp.fences.released = Some(core.order.release(actor));
        core.warp.settle_lanes();
        Flow::Next
    })
}
