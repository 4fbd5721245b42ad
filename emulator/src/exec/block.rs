//! The warps of a block: who runs, the block's barriers, and when nothing can go on.

use super::code::{Core, Fault, Flow, Guard};
use super::control::reduction;
use super::registers::Slot;
use super::warp::{Next, State, Warp};
use crate::check::FindingKind;
use crate::check::shadow::Shadow;
use crate::ir::op::Barrier;
use crate::memory::local::Bytes;

/// Instructions that a warp runs before the next warp of the block has its turn.
const QUANTUM: u32 = 1 << 14;

/// The state of a block that its warps share.
pub(crate) struct Block {
    /// Counts blocks along x, then y, then z.
    pub(crate) number: u64,
    pub(crate) index: [u32; 3],
    pub(crate) shared: Bytes,
    /// Absent if races are not checked.
    pub(crate) shadow: Option<Shadow>,
    /// Warp-instructions run so far.
    pub(crate) instructions: u64,
    pub(crate) barriers: [BarrierState; 16],
    /// The barrier of the last [`Flow::Barrier`].
    pub(crate) waiting_at: u8,
    /// All warps; a placeholder stands for the one that runs.
    pub(crate) parked: Vec<Warp>,
}

/// A barrier that some warps have arrived at.
#[derive(Clone, Debug, Default)]
pub(crate) struct BarrierState {
    arrived: u32,
    count: Option<u32>,
    /// Threads whose predicate held, and threads asked.
    votes: u32,
    asked: u32,
    /// Each warp that arrived, with the stamp of its arrival if it does not wait.
    arrivals: Vec<(u32, Option<u32>)>,
    /// Where the result of a reduction goes: warp, lanes, slot.
    results: Vec<(u32, u32, Slot, Barrier)>,
}

/// What became of a block's turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    Finished,
    /// It can go on.
    Paused,
    Failed,
}

impl Core<'_> {
    /// Runs every warp of the block until it waits, once around.
    pub(crate) fn run_block(&mut self) -> Turn {
        let mut finished = true;
        let mut progress = false;
        for index in 0..self.block.parked.len() {
            if self.block.parked[index].live == 0 {
                continue;
            }
            finished = false;
            if !self.block.parked[index].is_ready() {
                continue;
            }
            progress = true;
            std::mem::swap(&mut self.warp, &mut self.block.parked[index]);
            let ran = self.run_warp();
            let failed = ran.is_err();
            if self.warp.live == 0 && !failed {
                self.warp_exited();
            }
            if failed {
                return Turn::Failed;
            }
            std::mem::swap(&mut self.warp, &mut self.block.parked[index]);
        }
        if finished {
            return Turn::Finished;
        }
        if !progress {
            self.deadlock();
            return Turn::Failed;
        }
        Turn::Paused
    }

    /// Runs the warp until it waits, ends, or its quantum is used up.
    fn run_warp(&mut self) -> Result<(), ()> {
        let code = self.launch.code;
        let mut left = QUANTUM;
        let result = loop {
            match self.warp.schedule() {
                Next::Run => {}
                Next::Finished | Next::Blocked => break Ok(()),
                Next::Stuck => {
                    self.stuck();
                    break Err(());
                }
            }
            if left == 0 {
                break Ok(());
            }
            left -= 1;
            let Some(inst) = code.get(self.warp.pc as usize) else { break Ok(()) };
            let active = self.warp.active;
            let mask = match inst.guard {
                Guard::Always => active,
                Guard::If(slot) | Guard::Unless(slot) => {
                    let registers = &self.warp.registers;
                    let value = registers.predicate(self.constants, slot);
                    let missing = active & !registers.predicate_written(slot);
                    if missing != 0 && self.launch.checks.uninitialised {
                        self.uninitialised(missing, "the predicate of an instruction");
                        break Err(());
                    }
                    active & if matches!(inst.guard, Guard::If(_)) { value } else { !value }
                }
            };
            self.warp.mask = mask;
            if mask == 0 {
                self.warp.pc += 1;
                continue;
            }
            // SAFETY: the launch bound its code for the level that `Level::detect` found on this host.
            let flow = unsafe { (inst.run)(self, inst) };
            match flow {
                Flow::Next => self.warp.pc += 1,
                Flow::Jumped => {}
                Flow::Converge | Flow::Barrier => {
                    let warp = &mut self.warp;
                    let (mask, pc, passing) = (warp.mask, warp.pc, warp.active & !warp.mask);
                    let id = self.block.waiting_at;
                    let state = match flow {
                        Flow::Converge => State::Converging(warp.wanted),
                        _ => State::Barrier(id),
                    };
                    warp.part(mask, pc, state);
                    if passing != 0 {
                        warp.part(passing, pc + 1, State::Ready);
                    }
                }
                Flow::Fault => break Err(()),
            }
        };
        self.block.instructions += u64::from(QUANTUM - left);
        if result.is_ok() && self.block.instructions > self.launch.instruction_limit {
            let message = format!(
                "the block has run {} warp-instructions, more than the limit of {}",
                self.block.instructions, self.launch.instruction_limit
            );
            let lanes = self.warp.active;
            let hint = "an endless loop, or a wait for something that never comes; the limit can be raised";
            self.fail(FindingKind::Budget, lanes, message, Some(hint));
            return Err(());
        }
        result
    }

    /// Arrives at a barrier; see [`reduction`] for what reductions give.
    pub(crate) fn arrive_at(
        &mut self,
        id: u8,
        kind: Barrier,
        count: Option<u32>,
        threads: u32,
        vote: u32,
        result: Slot,
    ) -> Result<Flow, Flow> {
        let (warp, mask) = (self.warp.number, self.warp.mask);
        let barrier = &mut self.block.barriers[usize::from(id)];
        if barrier.arrived != 0 && barrier.count != count {
            let show = |count: Option<u32>| count.map_or("all".to_owned(), |c| c.to_string());
            let message = format!(
                "barrier {id} is for {} threads here, but a warp that already waits said {}",
                show(count),
                show(barrier.count)
            );
            return Err(self.fail(FindingKind::BarrierMisuse, mask, message, None));
        }
        barrier.count = count;
        barrier.arrived += threads;
        barrier.votes += vote.count_ones();
        barrier.asked += mask.count_ones();
        let waits = kind != Barrier::Arrive;
        let stamp = match &mut self.block.shadow {
            Some(shadow) if !waits => Some(shadow.arrive()),
            _ if !waits => Some(0),
            _ => None,
        };
        barrier.arrivals.push((warp, stamp));
        if matches!(kind, Barrier::Reduce(_) | Barrier::Count) {
            barrier.results.push((warp, mask, result, kind));
        }
        if self.complete(id) {
            Ok(Flow::Next)
        } else if waits {
            self.block.waiting_at = id;
            Ok(Flow::Barrier)
        } else {
            Ok(Flow::Next)
        }
    }

    /// Completes a barrier if enough threads have arrived.
    fn complete(&mut self, id: u8) -> bool {
        let running: Vec<u32> = self
            .block
            .parked
            .iter()
            .chain([&self.warp])
            .filter(|warp| warp.live != 0)
            .map(|warp| warp.number)
            .collect();
        let barrier = &mut self.block.barriers[usize::from(id)];
        let expected = barrier.count.unwrap_or(running.len() as u32 * 32);
        if barrier.arrived == 0 || barrier.arrived < expected {
            return false;
        }
        let barrier = std::mem::take(barrier);
        if let Some(shadow) = &mut self.block.shadow {
            let everyone = running.iter().all(|warp| barrier.arrivals.iter().any(|(w, _)| w == warp));
            shadow.barrier(&barrier.arrivals, everyone);
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
        self.warp.release(id);
        for warp in &mut self.block.parked {
            warp.release(id);
        }
        true
    }

    /// A warp that is gone is not waited for any more.
    fn warp_exited(&mut self) {
        for id in 0..16 {
            if self.block.barriers[usize::from(id)].count.is_none() {
                self.complete(id);
            }
        }
    }

    /// All groups of the warp wait for lanes that will not come.
    fn stuck(&mut self) {
        let Some(first) = self.warp.others.first().cloned() else { return };
        let State::Converging(wanted) = first.state else { return };
        let related = self
            .warp
            .others
            .iter()
            .skip(1)
            .map(|g| (format!("lanes {:#010x} wait here", g.lanes), g.pc))
            .collect();
        let message = format!(
            "lanes {:#010x} wait for lanes {:#010x}, which do not come here",
            first.lanes,
            wanted & !first.lanes
        );
        let hint = "every lane that the mask names must execute the same instruction; instructions with `.aligned` \
                    need the whole warp";
        self.fault = Some(Box::new(Fault {
            kind: FindingKind::Divergence,
            message,
            lanes: first.lanes,
            related,
            hint: Some(hint.to_owned()),
            at: Some(first.pc),
        }));
    }

    /// No warp of the block can go on.
    fn deadlock(&mut self) {
        let mut places = Vec::new();
        for warp in self.block.parked.iter().filter(|warp| warp.live != 0) {
            for group in &warp.others {
                let State::Barrier(id) = group.state else { continue };
                let barrier = &self.block.barriers[usize::from(id)];
                let expected = barrier.count.map_or("all".to_owned(), |count| count.to_string());
                places.push((
                    warp.number,
                    group.clone(),
                    format!("waits at barrier {id}, which has {} of {expected} threads", barrier.arrived),
                ));
            }
        }
        let Some((number, group, text)) = places.first().cloned() else { return };
        let gone: Vec<_> =
            self.block.parked.iter().filter(|w| w.live == 0).map(|w| w.number.to_string()).collect();
        let gone =
            if gone.is_empty() { String::new() } else { format!("; exited: warps {}", gone.join(", ")) };
        self.warp.number = number;
        let related = places.iter().skip(1).map(|(w, g, text)| (format!("warp {w} {text}"), g.pc)).collect();
        self.fault = Some(Box::new(Fault {
            kind: FindingKind::BarrierDeadlock,
            message: format!("no warp of the block can go on: warp {number} {text}{gone}"),
            lanes: group.lanes,
            related,
            hint: Some("every warp must reach the same barriers, the same number of times".to_owned()),
            at: Some(group.pc),
        }));
    }
}
