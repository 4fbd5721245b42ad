//! The warps of a block: who runs, and the block's barriers.

use super::code::{Core, Flow, Guard};
use super::control::reduction;
use super::mbarrier::Mbarriers;
use super::registers::Slot;
use super::warp::{Next, State, Warp};
use super::wgmma::Warpgroup;
use crate::check::FindingKind;
use crate::check::order::{Actor, Clock};
use crate::check::shadow::Shadow;
use crate::config::Completion;
use crate::ir::op::Barrier;
use crate::memory::local::Bytes;

/// Instructions that a warp runs before the next warp of the block has its turn; in the random mode, any number up to that.
const QUANTUM: u32 = 1 << 14;

/// Turns of warps after which a block looks whether the launch has run for too long.
const TURNS_BETWEEN_LOOKS: u32 = 64;

/// The state of a block that its warps share.
pub(crate) struct Block {
    /// Counts blocks along x, then y, then z.
    pub(crate) number: u64,
    pub(crate) index: [u32; 3],
    /// Its number in the cluster.
    pub(crate) rank: u32,
    pub(crate) shared: Bytes,
    /// Absent if races are not checked.
    pub(crate) shadow: Option<Shadow>,
    /// Warp-instructions run so far.
    pub(crate) instructions: u64,
    /// Turns that its warps have had.
    pub(crate) turns: u32,
    pub(crate) barriers: [BarrierState; 16],
    pub(crate) last_phases: [Option<LastPhase>; 16],
    pub(crate) mbarriers: Mbarriers,
    /// Registers that `setmaxnreg` has given back and nobody has taken.
    pub(crate) spare_registers: u32,
    pub(crate) warpgroups: Vec<Warpgroup>,
    /// All warps; a placeholder stands for the one that runs.
    pub(crate) parked: Vec<Warp>,
}

/// A barrier that some warps have arrived at.
#[derive(Clone, Debug, Default)]
pub(crate) struct BarrierState {
    pub(super) count: Option<u32>,
    /// Threads whose predicate held, and threads asked.
    votes: u32,
    asked: u32,
    arrivals: Vec<Arrival>,
    /// Where the result of a reduction goes: warp, lanes, slot.
    results: Vec<(u32, u32, Slot, Barrier)>,
}

/// Lanes of a warp that have arrived.
#[derive(Clone, Debug)]
struct Arrival {
    warp: u32,
    lanes: u32,
    /// What the warp passed on, if it does not wait.
    clock: Option<Clock>,
}

impl BarrierState {
    /// The threads that have arrived. A warp that arrives with all its lanes counts as 32, even if some have exited or never
    /// existed, and once more each time that it does.
    pub(super) fn arrived<'w>(&self, warps: impl Iterator<Item = &'w Warp>) -> u32 {
        warps.map(|warp| self.arrived_of(warp)).sum()
    }

    fn arrived_of(&self, warp: &Warp) -> u32 {
        let own = || self.arrivals.iter().filter(|a| a.warp == warp.number).map(|a| a.lanes);
        let (lanes, again) = own().fold((0, 0), |(all, again), lanes| (all | lanes, again | all & lanes));
        if again == 0 {
            return if warp.live != 0 && lanes & warp.live == warp.live { 32 } else { lanes.count_ones() };
        }
        let times = |lane: u32| own().filter(|lanes| lanes >> lane & 1 == 1).count() as u32;
        let live = (0..32).filter(|lane| warp.live >> lane & 1 == 1);
        let whole = live.map(times).min().unwrap_or(0);
        32 * whole + (0..32).map(|lane| times(lane).saturating_sub(whole)).sum::<u32>()
    }
}

/// The last phase of a barrier.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LastPhase {
    /// The warps that waited, a bit each.
    waited: u32,
    stamp: u32,
    /// The instruction that ended it.
    at: u32,
}

impl BarrierState {
    fn is_waited_for_by(&self, warp: u32) -> bool {
        self.arrivals.iter().any(|a| a.warp == warp && a.clock.is_none())
    }
}

/// What became of a block's turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    Finished,
    /// It can go on, or waits for others.
    Paused,
    Failed,
}

/// How a warp's turn ended.
enum End {
    /// It waits, has ended, or its quantum is used up.
    Over,
    /// It polls.
    Polling,
    Failed,
}

impl Core<'_> {
    /// All warps of the block that runs.
    pub(super) fn warps(&self) -> impl Iterator<Item = &Warp> {
        // The placeholder has no lanes.
        self.block.parked.iter().chain([&self.warp])
    }

    /// Runs every warp of the block until it waits, once around. Notes in the cluster whether one of them got on.
    pub(crate) fn run_block(&mut self) -> Turn {
        let mut finished = true;
        let warps = self.block.parked.len();
        let first = if self.launch.completion == Completion::Random {
            self.engine.draw(self.launch.seed) as usize % warps
        } else {
            0
        };
        for turn in 0..warps {
            let index = (first + turn) % warps;
            if self.block.parked[index].live == 0 {
                continue;
            }
            finished = false;
            if !self.block.parked[index].is_ready() {
                continue;
            }
            std::mem::swap(&mut self.warp, &mut self.block.parked[index]);
            match self.run_warp() {
                End::Over => self.cluster.progress = true,
                End::Polling => self.cluster.polling = true,
                End::Failed if self.hold() => self.cluster.progress = true,
                End::Failed => return Turn::Failed,
            }
            std::mem::swap(&mut self.warp, &mut self.block.parked[index]);
        }
        if finished { Turn::Finished } else { Turn::Paused }
    }

    /// Runs the warp until it waits, polls, ends, or its quantum is used up.
    fn run_warp(&mut self) -> End {
        let code = self.launch.code;
        let quantum = if self.launch.completion == Completion::Random {
            1 << (self.engine.draw(self.launch.seed) % 15)
        } else {
            QUANTUM
        };
        let mut left = quantum;
        let end = loop {
            match self.warp.schedule() {
                Next::Run => {}
                Next::Finished | Next::Blocked => break End::Over,
                Next::Stuck => {
                    self.stuck();
                    break End::Failed;
                }
            }
            if left == 0 {
                break End::Over;
            }
            left -= 1;
            let Some(inst) = code.get(self.warp.pc as usize) else { break End::Over };
            let active = self.warp.active;
            let mask = match inst.guard {
                Guard::Always => active,
                Guard::If(slot) | Guard::Unless(slot) => {
                    let registers = &self.warp.registers;
                    let value = registers.predicate(self.constants, slot);
                    let missing = active & !registers.predicate_written(slot);
                    if missing != 0 && self.launch.checks.uninitialised {
                        self.uninitialised(missing, "the predicate of an instruction");
                        break End::Failed;
                    }
                    active & if matches!(inst.guard, Guard::If(_)) { value } else { !value }
                }
            };
            self.warp.mask = mask;
            if mask == 0 {
                if self.warp.late.is_some() {
                    self.follow_none(self.warp.pc);
                }
                self.warp.pc += 1;
                continue;
            }
            let pc = self.warp.pc;
            let step = if self.launch.trace.is_some() { self.trace_before(inst) } else { None };
            // SAFETY: the launch bound its code for the level that `Level::detect` found on this host.
            let flow = unsafe { (inst.run)(self, inst) };
            if self.warp.registers.has_overwritten() {
                self.refine(inst);
            }
            if let Some(step) = step {
                self.trace_after(inst, step, pc);
            }
            let rests = self.warp.late.is_some() && self.follow(pc, (mask, active), flow);
            match flow {
                Flow::Next => {
                    self.warp.pc += 1;
                    if rests {
                        break End::Over;
                    }
                }
                Flow::Jumped => {}
                Flow::Yield => {
                    self.warp.pc += 1;
                    break End::Polling;
                }
                Flow::Converge | Flow::Wait => {
                    let warp = &mut self.warp;
                    let (mask, pc, passing) = (warp.mask, warp.pc, warp.active & !warp.mask);
                    let state = match flow {
                        Flow::Converge => State::Converging(warp.wanted),
                        _ => warp.waiting,
                    };
                    warp.part(mask, pc, state);
                    if passing != 0 {
                        warp.part(passing, pc + 1, State::Ready);
                    }
                }
                Flow::Fault => break End::Failed,
            }
        };
        self.block.instructions += u64::from(quantum - left);
        self.block.turns += 1;
        if matches!(end, End::Failed) {
            return end;
        }
        let (ran, limit) = (self.block.instructions, self.launch.instruction_limit);
        let over = if ran > limit {
            Some(format!("the block has run {ran} warp-instructions, more than the limit of {limit}"))
        } else if self.block.turns.is_multiple_of(TURNS_BETWEEN_LOOKS) {
            self.over_budget()
        } else {
            None
        };
        if let Some(message) = over {
            let lanes = self.warp.active;
            let hint = "an endless loop, or a wait for something that never comes; the limit can be raised";
            self.fail(FindingKind::Budget, lanes, message, Some(hint));
            return End::Failed;
        }
        end
    }

    /// Arrives at a barrier; see [`reduction`] for what reductions give.
    pub(crate) fn arrive_at(
        &mut self,
        id: u8,
        kind: Barrier,
        count: Option<u32>,
        vote: u32,
        result: Slot,
    ) -> Result<Flow, Flow> {
        let (warp, mask) = (self.warp.number, self.warp.mask);
        self.check_phase(id)?;
        let barrier = &mut self.block.barriers[usize::from(id)];
        if !barrier.arrivals.is_empty() && barrier.count != count {
            let show = |count: Option<u32>| count.map_or("all".to_owned(), |c| c.to_string());
            let message = format!(
                "barrier {id} is for {} threads here, but a warp that already waits said {}",
                show(count),
                show(barrier.count)
            );
            return Err(self.fail(FindingKind::BarrierMisuse, mask, message, None));
        }
        barrier.count = count;
        barrier.votes += vote.count_ones();
        barrier.asked += mask.count_ones();
        let waits = kind != Barrier::Arrive;
        let clock = (!waits).then(|| self.order.release(self.warp.actor));
        barrier.arrivals.push(Arrival { warp, lanes: mask, clock });
        if matches!(kind, Barrier::Reduce(_) | Barrier::Count) {
            barrier.results.push((warp, mask, result, kind));
        }
        if self.complete(id) {
            Ok(Flow::Next)
        } else if waits {
            self.warp.waiting = State::Barrier(id);
            Ok(Flow::Wait)
        } else {
            Ok(Flow::Next)
        }
    }

    /// A warp that comes to a barrier in whose last phase it did not wait must know that this phase is over: with another timing it would
    /// have counted for that.
    fn check_phase(&mut self, id: u8) -> Result<(), Flow> {
        let Some(last) = self.block.last_phases[usize::from(id)] else { return Ok(()) };
        let first = self.launch.warps * self.block.rank;
        let waited = |warp: u32| last.waited >> warp & 1 == 1;
        let knows = |warp: u32| self.order.knows(self.warp.actor, (first + warp) as Actor, last.stamp);
        if !self.launch.checks.races
            || self.launch.kernel.orders_quietly
            || waited(self.warp.number)
            || (0..self.launch.warps).any(|warp| waited(warp) && knows(warp))
        {
            return Ok(());
        }
        let message = format!(
            "nothing orders this arrival at barrier {id} behind its last phase, in which warp {} did not wait: the arrival might have \
             counted for that phase",
            self.warp.number
        );
        let hint = "give each group of warps a barrier of its own, or let the group that comes later wait for the other";
        self.fail(FindingKind::BarrierMisuse, self.warp.mask, message, Some(hint));
        if let Some(fault) = &mut self.fault {
            fault.related.push((format!("the end of the last phase of barrier {id}"), last.at));
        }
        Err(Flow::Fault)
    }

    /// Completes a barrier if enough threads have arrived.
    fn complete(&mut self, id: u8) -> bool {
        let barrier = &self.block.barriers[usize::from(id)];
        let running = self.warps().filter(|warp| warp.live != 0).count() as u32;
        let expected = barrier.count.unwrap_or(running * 32);
        if barrier.arrivals.is_empty() || barrier.arrived(self.warps()) < expected {
            return false;
        }
        let everyone = self
            .warps()
            .filter(|warp| warp.live != 0)
            .all(|warp| barrier.arrivals.iter().any(|a| a.warp == warp.number && a.clock.is_none()));
        let barrier = std::mem::take(&mut self.block.barriers[usize::from(id)]);
        let first = self.launch.warps * self.block.rank;
        let arrivals: Vec<_> = barrier.arrivals.iter().cloned().map(|a| (first + a.warp, a.clock)).collect();
        if self.log.is_some() || self.block.shadow.is_some() || !self.launch.kernel.late.is_empty() {
            self.order.barrier(&arrivals);
        }
        let waited =
            barrier.arrivals.iter().filter(|a| a.clock.is_none()).fold(0, |all, a| all | 1 << a.warp);
        let last = LastPhase { waited, stamp: self.order.now(), at: self.warp.pc };
        self.block.last_phases[usize::from(id)] = (waited != 0).then_some(last);
        if let Some(shadow) = &mut self.block.shadow
            && everyone
        {
            shadow.settle(self.order.now());
        }
        for &(number, lanes, slot, kind) in &barrier.results {
            let value = reduction(kind, barrier.votes, barrier.asked);
            let warp = if number == self.warp.number {
                &mut self.warp
            } else {
                &mut self.block.parked[number as usize]
            };
            if kind == Barrier::Count {
                warp.registers.set_word(slot, &[value; 32], lanes, lanes);
            } else {
                let predicate = if value == 0 { 0 } else { u32::MAX };
                warp.registers.set_predicate(slot, predicate, lanes, lanes);
            }
        }
        for warp in self.block.parked.iter_mut().chain([&mut self.warp]) {
            if barrier.is_waited_for_by(warp.number) {
                warp.settle_lanes();
            }
            warp.release(id);
        }
        true
    }

    /// Lanes that are gone are not waited for any more.
    pub(super) fn lanes_exited(&mut self) {
        for id in 0..16 {
            if !self.block.barriers[usize::from(id)].arrivals.is_empty() {
                self.complete(id);
            }
        }
        // What waits for lanes of its warp counts them anew.
        self.warp.wake(|state| matches!(state, State::Converging(_)));
        self.cluster_barrier_check();
    }
}
