//! Which lanes of a warp run next.
//!
//! Lanes that are at the same instruction run together. Where they part, the group with the lowest program counter goes
//! first, so that groups meet again as early as the code allows. A group that waits for lanes of another one (a loop
//! that polls what its neighbour will write) would never let that one run: so after a while the others get a turn.

use super::agent::BulkGroups;
use super::call::Calls;
use super::cluster::ClusterArrivals;
use super::copy::Copies;
use super::late::Late;
use super::registers::Registers;
use super::strong::Fences;
use super::wgmma::Products;
use crate::check::global_lanes::GlobalLanes;
use crate::check::lanes::LaneLog;
use crate::memory::local::Bytes;

/// Instructions that one group may run while others are ready, before these get a turn.
const PATIENCE: u32 = 4096;

/// A warp.
pub(crate) struct Warp {
    pub(crate) number: u32,
    /// Its number among the warps of the cluster.
    pub(crate) actor: u32,
    pub(crate) registers: Registers,
    /// The carry flag of each lane.
    pub(crate) carry: u32,
    /// The lanes that have not exited.
    pub(crate) live: u32,
    /// The lanes that may not touch global memory yet: they have not waited for the grids before this one. None where that is not
    /// checked, or the kernel depends on no grid.
    pub(crate) early: u32,
    /// The program counter and the lanes of the group that runs.
    pub(crate) pc: u32,
    pub(crate) active: u32,
    /// The lanes for which the instruction at hand is on.
    pub(crate) mask: u32,
    /// The lanes that the group at hand must meet, after [`Flow::Converge`](super::code::Flow::Converge).
    pub(crate) wanted: u32,
    /// What the group at hand waits for, after [`Flow::Wait`](super::code::Flow::Wait).
    pub(crate) waiting: State,
    pub(crate) others: Vec<Group>,
    patience: u32,
    /// The running group has its turn out of order.
    turn: bool,
    turns: u64,
    /// Position of the allocation that was accessed last.
    pub(crate) allocation: usize,
    pub(crate) copies: Copies,
    pub(crate) bulk: BulkGroups,
    pub(crate) cluster: ClusterArrivals,
    pub(crate) products: Products,
    pub(crate) fences: Fences,
    /// What its lanes did to shared memory since they were last ordered.
    pub(crate) lanes: LaneLog,
    /// And to global memory.
    pub(crate) global_lanes: GlobalLanes,
    /// Registers that a thread has, as far as `setmaxnreg` is concerned.
    pub(crate) budget: u32,
    pub(crate) local: Bytes,
    /// The stacks of its lanes, if the kernel has calls or `alloca`.
    pub(crate) calls: Option<Box<Calls>>,
    /// What it has done since it began to read late, if it has.
    pub(crate) late: Option<Box<Late>>,
    /// It has failed, and others go on.
    pub(crate) halted: bool,
    /// The mbarrier that its last wait found in a phase that goes on: the block's rank, and the offset.
    pub(crate) polled: Option<(u32, u32)>,
    /// Its last instruction that read what nothing had written.
    pub(crate) unwritten: Option<(&'static str, u32)>,
}

/// Lanes that do not run at the moment.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    pub(crate) pc: u32,
    pub(crate) lanes: u32,
    pub(crate) state: State,
    last_turn: u64,
}

impl Group {
    /// Lanes that are at an instruction and could run.
    pub(crate) fn at(pc: u32, lanes: u32) -> Self {
        Self { pc, lanes, state: State::Ready, last_turn: 0 }
    }
}

/// Why a group does not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Ready,
    /// It waits for these lanes to come to the same instruction.
    Converging(u32),
    /// It waits at a barrier of the block.
    Barrier(u8),
    /// It waits at an mbarrier for the end of a phase of this parity.
    Mbarrier {
        rank: u32,
        offset: u32,
        parity: u32,
    },
    /// It waits at the barrier of the cluster.
    Cluster,
    /// It waits until the block has registers for it.
    Registers,
    /// It waits for the other warps of its warpgroup.
    Warpgroup,
}

/// What a warp can do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    Run,
    /// All groups wait, some for what other warps or agents do.
    Blocked,
    /// All groups wait for each other.
    Stuck,
    Finished,
}

impl Warp {
    pub(crate) fn new(number: u32, actor: u32, lanes: u32, registers: Registers, local: Bytes) -> Self {
        Self {
            number,
            actor,
            registers,
            carry: 0,
            live: lanes,
            early: 0,
            pc: 0,
            active: lanes,
            mask: lanes,
            wanted: 0,
            waiting: State::Ready,
            others: Vec::new(),
            patience: PATIENCE,
            turn: false,
            turns: 0,
            allocation: 0,
            copies: Copies::default(),
            bulk: BulkGroups::default(),
            cluster: ClusterArrivals::default(),
            products: Products::default(),
            fences: Fences::default(),
            lanes: LaneLog::default(),
            global_lanes: GlobalLanes::default(),
            budget: 0,
            local,
            calls: None,
            late: None,
            halted: false,
            polled: None,
            unwritten: None,
        }
    }

    /// All lanes are ordered: what each has done, the others may touch.
    #[inline(always)]
    pub(crate) fn settle_lanes(&mut self) {
        self.lanes.settle();
        self.global_lanes.settle();
    }

    /// Parts lanes from the group that runs.
    pub(crate) fn part(&mut self, lanes: u32, pc: u32, state: State) {
        self.active &= !lanes;
        self.turns += 1;
        self.others.push(Group { pc, lanes, state, last_turn: self.turns });
    }

    /// Before an instruction: joins groups that have met, and decides which one runs.
    #[inline(always)]
    pub(crate) fn schedule(&mut self) -> Next {
        if self.others.is_empty() {
            return if self.active == 0 { Next::Finished } else { Next::Run };
        }
        self.choose()
    }

    fn choose(&mut self) -> Next {
        if self.active != 0 {
            self.patience -= 1;
            let lowest = self.ready().map(|(_, g)| g.pc).min();
            let expired = self.patience == 0;
            match lowest {
                // Out of turn, a group runs until its patience ends or it meets the others.
                Some(lowest) if expired || lowest < self.pc && !self.turn => {
                    if expired {
                        self.turn = !self.turn;
                    }
                    let pc = self.pc;
                    self.part(self.active, pc, State::Ready);
                }
                _ => {
                    if expired {
                        self.patience = PATIENCE;
                        self.turn = false;
                    }
                    self.join();
                    return Next::Run;
                }
            }
        }
        let next = if self.turn {
            self.ready().min_by_key(|(_, g)| g.last_turn)
        } else {
            self.ready().min_by_key(|(_, g)| g.pc)
        };
        let Some((index, _)) = next else {
            if self.others.is_empty() {
                return Next::Finished;
            }
            let stuck = self.others.iter().all(|g| matches!(g.state, State::Converging(_)));
            return if stuck { Next::Stuck } else { Next::Blocked };
        };
        let group = self.others.swap_remove(index);
        (self.pc, self.active, self.patience) = (group.pc, group.lanes, PATIENCE);
        self.join();
        Next::Run
    }

    fn ready(&self) -> impl Iterator<Item = (usize, &Group)> {
        self.others.iter().enumerate().filter(|(_, g)| g.state == State::Ready)
    }

    /// Takes in the groups that are at the same instruction.
    fn join(&mut self) {
        let (pc, mut active) = (self.pc, self.active);
        self.others.retain(|group| {
            let meets = group.pc == pc && matches!(group.state, State::Ready | State::Converging(_));
            if meets {
                active |= group.lanes;
            }
            !meets
        });
        self.active = active;
    }

    /// Lets the groups that wait at a barrier go on.
    pub(crate) fn release(&mut self, barrier: u8) {
        for group in &mut self.others {
            if group.state == State::Barrier(barrier) {
                group.state = State::Ready;
                group.pc += 1;
            }
        }
    }

    /// Lets groups try again what they wait for.
    pub(crate) fn wake(&mut self, awaited: impl Fn(State) -> bool) {
        for group in self.others.iter_mut().filter(|g| awaited(g.state)) {
            group.state = State::Ready;
        }
    }

    /// Whether some group can run.
    pub(crate) fn is_ready(&self) -> bool {
        (self.active != 0 || self.others.iter().any(|g| g.state == State::Ready))
            && !self.rests()
            && !self.halted
    }
}
