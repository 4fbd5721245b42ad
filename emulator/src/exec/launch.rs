//! The clusters of a grid, over threads or in turn; a block that is in no cluster is one of its own.
//!
//! Clusters that do not communicate run in parallel, each to its end. If some fail, the one with the lowest number is
//! reported: those above a failed one need not run, those below must. Clusters that communicate take turns on one
//! thread, in an order that the seed gives.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rayon::prelude::*;

use super::agent::Engine;
use super::block::{BarrierState, Block, Turn};
use super::call::Calls;
use super::cluster::Cluster;
use super::code::{Core, Fault, Inst, Level};
use super::mbarrier::Mbarriers;
use super::registers::{Constants, Registers};
use super::strong::Locations;
use super::trace::Tracer;
use super::warp::Warp;
use crate::check::global::Log;
use crate::check::ledger::{Ledger, Race, Turns};
use crate::check::order::Order;
use crate::check::shadow::{Access, Shadow};
use crate::check::{Finding, FindingKind, Related};
use crate::config::{Checks, Completion, Numerics};
use crate::ir::op::{Op, Reserved};
use crate::ir::program::Kernel;
use crate::machine::LaunchConfig;
use crate::memory::global::Table;
use crate::memory::heap::Heap;
use crate::memory::local::Bytes;
use crate::module::Text;

/// Bytes of local memory of all clusters that take turns.
const RESIDENT_LOCAL: u64 = 4 << 30;
const HINT_BUDGET: &str = "the limits of the machine can be raised";
/// What helps against writes to what `ld.global.nc` reads.
pub(super) const HINT_CONSTANT: &str =
    "`ld.global.nc` is for memory that nobody writes as long as the kernel runs: read it by `ld.global`";
/// Warp-instructions that a block counts as at least, for the work of setting it up.
const LEAST_WORK: u64 = 64;
/// Clusters that are given out to the threads at a time.
const PART: u64 = 1 << 16;

impl Core<'_> {
    /// What to say if the launch has run for too long. First tells the launch what the cluster has run, so that all clusters that
    /// run at the same time count.
    pub(crate) fn over_budget(&mut self) -> Option<String> {
        let ran = self.cluster_instructions();
        self.launch.done.fetch_add(ran - self.told, Relaxed);
        self.told = ran;
        self.launch.over_budget()
    }
}

/// Everything that the blocks of a launch share.
pub(crate) struct Launch<'l> {
    pub(crate) name: &'l str,
    pub(crate) text: &'l Text,
    pub(crate) kernel: &'l Kernel,
    pub(crate) code: &'l [Inst],
    pub(crate) config: LaunchConfig,
    /// Counts the machine's launches from 1.
    pub(crate) number: u64,
    pub(crate) checks: Checks,
    pub(crate) numerics: Numerics,
    /// What the host can do; the code is bound for it.
    pub(crate) level: Level,
    pub(crate) completion: Completion,
    pub(crate) seed: u64,
    /// Where steps of this kernel go, if they are wanted.
    pub(crate) trace: Option<&'l Tracer>,
    /// The machine has the tensor cores of compute capability 9.
    pub(crate) hopper: bool,
    pub(crate) parameters: Vec<u8>,
    pub(crate) table: &'l Table,
    pub(crate) threads: u32,
    pub(crate) warps: u32,
    pub(crate) shared_bytes: u32,
    /// Where the barrier of the grid is, if the kernel asks for it.
    pub(crate) workspace: u64,
    pub(crate) instruction_limit: u64,
    /// What all blocks may run together, how long that may take, and when it began.
    pub(crate) launch_limit: u64,
    pub(crate) time_limit: Duration,
    pub(crate) started: Instant,
    /// Warp-instructions that all clusters have run, as far as they have told.
    pub(crate) done: AtomicU64,
    pub(crate) resident_blocks: u32,
    /// What a thread has before the first `setmaxnreg`: as many as a multiprocessor's allow.
    pub(crate) registers_per_thread: u32,
    /// The heap of the machine, and where what kernels print goes: by cluster.
    pub(crate) heap: &'l Heap,
    pub(crate) printed: Mutex<BTreeMap<u64, String>>,
    /// Logs of clusters that have ended, for the memory they have.
    pub(crate) logs: Mutex<Vec<Log>>,
    /// Address ranges of the module's constant variables: first and length.
    pub(crate) constant_ranges: Vec<(u64, u64)>,
}

impl<'l> Launch<'l> {
    /// Up to 8 bytes of the parameters.
    #[inline(always)]
    pub(crate) fn parameter(&self, offset: u64, bytes: usize) -> Option<[u8; 8]> {
        let start = usize::try_from(offset).ok()?;
        let from = self.parameters.get(start..start.checked_add(bytes)?)?;
        let mut out = [0; 8];
        out[..bytes].copy_from_slice(from);
        Some(out)
    }

    pub(crate) fn is_constant(&self, address: u64) -> bool {
        self.constant_ranges.iter().any(|&(first, bytes)| address.wrapping_sub(first) < bytes)
    }

    pub(crate) fn is_warp_barrier(&self, pc: u32) -> bool {
        self.code.get(pc as usize).is_some_and(|inst| matches!(inst.op, Op::BarrierWarp))
    }

    /// The first byte of a range that is between the variables of shared memory.
    pub(crate) fn in_red_zone(&self, offset: u32, bytes: u64) -> Option<u32> {
        let (first, last) = (u64::from(offset), u64::from(offset) + bytes);
        let zones = &self.kernel.red_zones;
        let zone = zones.iter().find(|zone| first < u64::from(zone.1) && u64::from(zone.0) < last)?;
        Some(offset.max(zone.0))
    }

    /// What is before an offset between the variables of shared memory, in words.
    pub(crate) fn describe_red_zone(&self, offset: u32) -> String {
        let before = self.kernel.shared.iter().rev().find(|(_, start, _)| *start <= offset);
        before.map_or(format!("offset {offset:#x}"), |(name, start, bytes)| {
            format!(
                "{} bytes past the end of `{name}` ({bytes} bytes)",
                (offset - start).saturating_sub(*bytes)
            )
        })
    }

    /// An offset in shared memory, in words.
    pub(crate) fn describe_shared(&self, offset: u32) -> String {
        let variable =
            self.kernel.shared.iter().find(|(_, start, bytes)| offset.wrapping_sub(*start) < (*bytes).max(1));
        match variable {
            Some((name, start, _)) => format!("byte {} of `{name}` (offset {offset:#x})", offset - start),
            None if offset >= self.kernel.shared_span => {
                format!("byte {} of the dynamic part (offset {offset:#x})", offset - self.kernel.shared_span)
            }
            None => format!("offset {offset:#x}"),
        }
    }

    /// Blocks of a cluster along an axis.
    pub(crate) fn cluster(&self, axis: u8) -> u32 {
        self.config.cluster[usize::from(axis)]
    }

    /// How many blocks a cluster has.
    #[inline(always)]
    pub(crate) fn ranks(&self) -> u32 {
        let [x, y, z] = self.config.cluster;
        x * y * z
    }

    /// Runs all clusters; gives the number of warp-instructions.
    pub(crate) fn run(&self, constants: &Constants) -> Result<u64, Box<Finding>> {
        let clusters =
            self.config.grid.iter().map(|&n| u64::from(n)).product::<u64>() / u64::from(self.ranks());
        if self.kernel.communicates {
            return self.in_turns(constants, clusters);
        }
        let ledger = Mutex::new(Ledger::default());
        let instructions = self.in_parallel(constants, clusters, &ledger)?;
        match ledger.into_inner().unwrap_or_else(PoisonError::into_inner).race() {
            None => Ok(instructions),
            Some(race) => Err(self.race(constants, &race)),
        }
    }

    /// Gives up a grid that is too large, after its first clusters.
    fn check_grid(&self, constants: &Constants, clusters: u64) -> Result<(), Box<Finding>> {
        let least = clusters.saturating_mul(u64::from(self.ranks())).saturating_mul(LEAST_WORK);
        if least <= self.launch_limit {
            return Ok(());
        }
        let message = format!(
            "the grid's blocks count as {least} warp-instructions at least, more than the limit of {}",
            self.launch_limit
        );
        let mut core = self.core(constants, 0);
        core.warp.number = 0;
        core.fail(FindingKind::Budget, 0, message, Some(HINT_BUDGET));
        Err(self.finding(&mut core))
    }

    /// What to say if the launch has run for too long.
    fn over_budget(&self) -> Option<String> {
        let all = self.done.load(Relaxed);
        if all > self.launch_limit {
            let limit = self.launch_limit;
            return Some(format!(
                "the launch has run {all} warp-instructions, more than the limit of {limit}"
            ));
        }
        let time = self.started.elapsed();
        (time > self.time_limit).then(|| {
            format!(
                "the launch has run for {} s, more than the limit of {} s",
                time.as_secs(),
                self.time_limit.as_secs()
            )
        })
    }

    /// Makes a finding of a race between clusters.
    fn race(&self, constants: &Constants, race: &Race) -> Box<Finding> {
        let name = |rank: u32, cluster: u64| {
            let [x, y, z] = self.block_index(cluster, rank);
            format!("block ({x}, {y}, {z})")
        };
        let rank = |actor: u16| u32::from(actor) / self.warps;
        let mut core = self.core(constants, race.here.cluster);
        core.select(rank(race.here.actor));
        core.warp.number = u32::from(race.here.actor) % self.warps;
        let other = name(rank(race.other.actor), race.other.cluster);
        let place = self
            .table
            .get(race.allocation)
            .map_or(String::new(), |a| self.table.describe(a.base + race.offset));
        let access = race.other.access.name();
        let message = format!("{} of {place} races with the {access} by {other}", race.here.access.name());
        let hint = match (race.here.access, race.other.access) {
            (Access::Constant, _) | (_, Access::Constant) => HINT_CONSTANT,
            _ if self.kernel.communicates => {
                "blocks of a launch run in any order and at the same time: what one writes for another needs a release behind the write \
                 and an acquire before the read, or fences around relaxed accesses (`fence.acq_rel.gpu`, `__threadfence`)"
            }
            _ => {
                "blocks of a launch run in any order and at the same time: give each its own bytes, or use atomic operations"
            }
        };
        core.fault = Some(Box::new(Fault {
            kind: FindingKind::GlobalRace,
            message,
            lanes: 0,
            related: vec![(format!("the {access} by {other}"), race.other.at)],
            hint: Some(hint.to_owned()),
            at: Some(race.here.at),
        }));
        self.finding(&mut core)
    }

    fn in_parallel(
        &self,
        constants: &Constants,
        clusters: u64,
        ledger: &Mutex<Ledger>,
    ) -> Result<u64, Box<Finding>> {
        let failed = AtomicU64::new(u64::MAX);
        // In parts, so that a failure ends the launch without going through the numbers of all clusters above it.
        let mut first = 0;
        while first < clusters {
            let end = clusters.min(first + PART);
            let finding = (first..end)
                .into_par_iter()
                .filter_map(|number| {
                    if number > failed.load(Relaxed) {
                        return None;
                    }
                    let mut core = self.core(constants, number);
                    // Another cluster may have found it already, above this one.
                    let turn = match self.over_budget() {
                        Some(message) => {
                            core.warp.number = 0;
                            core.fail(FindingKind::Budget, 0, message, Some(HINT_BUDGET));
                            Turn::Failed
                        }
                        None => loop {
                            match core.run_cluster() {
                                Turn::Paused => {}
                                turn => break turn,
                            }
                        },
                    };
                    let turn = self.account(&mut core, turn);
                    if let Some(mut log) = core.log.take() {
                        ledger.lock().unwrap_or_else(PoisonError::into_inner).enter(number, &mut log);
                        log.clear();
                        self.logs.lock().unwrap_or_else(PoisonError::into_inner).push(log);
                    }
                    self.keep_printed(number, &mut core);
                    (turn == Turn::Failed).then(|| {
                        failed.fetch_min(number, Relaxed);
                        (number, self.finding(&mut core))
                    })
                })
                .min_by_key(|(number, _)| *number);
            if let Some((number, finding)) = finding {
                // Clusters above may have run or not.
                self.printed.lock().unwrap_or_else(PoisonError::into_inner).split_off(&(number + 1));
                return Err(finding);
            }
            if first == 0 && end < clusters {
                self.check_grid(constants, clusters)?;
            }
            first = end;
        }
        Ok(self.done.load(Relaxed))
    }

    /// Counts what a cluster that has ended has run: too much fails the launch.
    fn account(&self, core: &mut Core<'_>, turn: Turn) -> Turn {
        if turn != Turn::Finished {
            return turn;
        }
        match core.over_budget() {
            None => turn,
            Some(message) => {
                core.fail(FindingKind::Budget, 0, message, Some(HINT_BUDGET));
                Turn::Failed
            }
        }
    }

    fn in_turns(&self, constants: &Constants, clusters: u64) -> Result<u64, Box<Finding>> {
        let mut next = 0;
        let mut resident: Vec<Core<'_>> = Vec::new();
        let mut turns = self.checks.races.then(|| Box::new(Turns::new(clusters)));
        let mut round = self.seed;
        let local = u64::from(self.kernel.local) * u64::from(self.threads) * u64::from(self.ranks());
        let fitting = u32::try_from(RESIDENT_LOCAL / local.max(1)).unwrap_or(u32::MAX);
        let room = (self.resident_blocks / self.ranks()).min(fitting).max(1) as usize;
        loop {
            while next < clusters && resident.len() < room {
                resident.push(self.core(constants, next));
                next += 1;
                if next == PART {
                    self.check_grid(constants, clusters)?;
                }
            }
            if resident.is_empty() {
                return Ok(self.done.load(Relaxed));
            }
            // Who begins is up to the seed; the others follow in turn.
            round = super::copy::mix(round.wrapping_add(1));
            let count = resident.len();
            resident.rotate_left(round as usize % count);
            let mut index = 0;
            while index < resident.len() {
                let core = &mut resident[index];
                core.turns = turns.take();
                let turn = core.run_cluster();
                let turn = self.account(core, turn);
                turns = core.turns.take();
                if let (Turn::Finished, Some(turns), Some(log)) = (turn, &mut turns, &mut core.log) {
                    turns.end(core.number, log);
                }
                if let Some(race) = turns.as_ref().and_then(|turns| turns.race()) {
                    self.keep_all_printed(&mut resident);
                    return Err(self.race(constants, &race));
                }
                match turn {
                    Turn::Paused => index += 1,
                    Turn::Finished => {
                        let mut core = resident.remove(index);
                        self.keep_printed(core.number, &mut core);
                    }
                    Turn::Failed => {
                        self.keep_all_printed(&mut resident);
                        if let Some(race) = race_instead(&mut resident, index, turns) {
                            return Err(self.race(constants, &race));
                        }
                        return Err(self.finding(&mut resident[index]));
                    }
                }
            }
        }
    }

    /// Keeps what a cluster has printed.
    fn keep_printed(&self, cluster: u64, core: &mut Core<'_>) {
        if !core.printed.is_empty() {
            let text = std::mem::take(&mut core.printed);
            self.printed.lock().unwrap_or_else(PoisonError::into_inner).insert(cluster, text);
        }
    }

    fn keep_all_printed(&self, resident: &mut [Core<'_>]) {
        resident.iter_mut().for_each(|core| self.keep_printed(core.number, core));
    }

    /// A cluster before its first instruction.
    fn core<'c>(&'c self, constants: &'c Constants, number: u64) -> Core<'c> {
        let actors = self.warps * self.ranks();
        let placeholder = Warp::new(u32::MAX, u32::MAX, 0, Registers::new(&[0; 3]), Bytes::new(0));
        Core {
            warp: placeholder,
            block: self.block(number, 0),
            cluster: Cluster::new((1..self.ranks()).map(|rank| self.block(number, rank))),
            order: Order::new(actors, self.kernel.engine),
            number,
            told: 0,
            turns: None,
            engine: Engine::new(number),
            log: self.checks.races.then(|| {
                let log = self.logs.lock().unwrap_or_else(PoisonError::into_inner).pop();
                log.unwrap_or_default()
            }),
            locations: Locations::default(),
            constants,
            launch: self,
            fault: None,
            held: None,
            printed: String::new(),
        }
    }

    fn block_index(&self, cluster: u64, rank: u32) -> [u32; 3] {
        let [x, y, _] =
            std::array::from_fn(|axis| u64::from(self.config.grid[axis] / self.config.cluster[axis]));
        let cluster = [cluster % x, cluster / x % y, cluster / x / y];
        let [cx, cy, _] = self.config.cluster;
        let place = [rank % cx, rank / cx % cy, rank / cx / cy];
        std::array::from_fn(|axis| cluster[axis] as u32 * self.config.cluster[axis] + place[axis])
    }

    /// A block of a cluster before its first instruction.
    fn block(&self, cluster: u64, rank: u32) -> Block {
        let index = self.block_index(cluster, rank);
        let [gx, gy, _] = self.config.grid.map(u64::from);
        let [bx, by, bz] = index.map(u64::from);
        let local = self.kernel.local as usize * 32;
        let first = rank * self.warps;
        let parked = (0..self.warps)
            .map(|warp| {
                let threads = self.threads - warp * 32;
                let lanes = if threads >= 32 { u32::MAX } else { (1 << threads) - 1 };
                let registers = Registers::new(&self.kernel.registers);
                let mut warp = Warp::new(warp, first + warp, lanes, registers, Bytes::new(local));
                warp.pc = self.kernel.start;
                if self.kernel.uses_stack() {
                    warp.calls = Some(Box::new(Calls::new(self.kernel.frame)));
                }
                warp.budget = self.registers_per_thread;
                warp.early = if self.checks.dependencies && self.kernel.dependent { lanes } else { 0 };
                warp
            })
            .collect();
        let watched = self.checks.races || self.checks.asynchronous;
        let fills = self.checks.asynchronous && self.kernel.fills;
        let shadow = (watched && self.shared_bytes > 0)
            .then(|| Shadow::new(self.shared_bytes, first, self.warps, fills));
        let mut shared = Bytes::new(self.shared_bytes as usize);
        if self.kernel.uses_reserved_shared() {
            // Libraries clear the bits that they use, and leave the others as the driver made them.
            let bytes = Reserved::BYTES as usize;
            shared.write(self.kernel.reserved_shared as usize, &vec![0; bytes], &vec![true; bytes]);
        }
        Block {
            number: (bz * gy + by) * gx + bx,
            index,
            rank,
            shared,
            shadow,
            instructions: 0,
            turns: 0,
            barriers: std::array::from_fn(|_| BarrierState::default()),
            last_phases: [None; 16],
            mbarriers: Mbarriers::default(),
            spare_registers: 0,
            warpgroups: Vec::new(),
            parked,
        }
    }

    /// Makes a finding of a block's fault.
    fn finding(&self, core: &mut Core<'_>) -> Box<Finding> {
        let pc = core.warp.pc;
        let fault = core.fault.take().unwrap_or_else(|| {
            Box::new(Fault {
                kind: FindingKind::Divergence,
                message: "no lane of the block can go on".to_owned(),
                lanes: 0,
                related: Vec::new(),
                hint: None,
                at: None,
            })
        });
        let place = |pc: u32| {
            let instruction = self.kernel.instructions.get(pc as usize);
            let line = instruction.map_or(0, |i| i.line);
            (
                line,
                self.text.line(line),
                instruction.and_then(|i| i.location).and_then(|l| self.text.source(l)),
            )
        };
        let (line, text, source) = place(fault.at.unwrap_or(pc));
        let related = fault
            .related
            .into_iter()
            .map(|(message, at)| {
                let (line, text, source) = place(at);
                Related { message, line, text, source }
            })
            .collect();
        Box::new(Finding {
            kind: fault.kind,
            message: fault.message,
            kernel: self.name.to_owned(),
            file: self.text.file.clone(),
            line,
            text,
            source,
            block: core.block.index,
            warp: core.warp.number,
            lanes: fault.lanes,
            related,
            hint: fault.hint,
        })
    }
}

/// A cluster has met what nothing wrote. If another one has written that since, what is missing is an order of the two.
fn race_instead(resident: &mut [Core<'_>], failed: usize, turns: Option<Box<Turns>>) -> Option<Race> {
    let is_unwritten = |fault: &Fault| fault.kind == FindingKind::Uninitialised;
    let mut turns = turns.filter(|_| resident[failed].fault.as_deref().is_some_and(is_unwritten))?;
    for core in resident {
        turns.end(core.number, core.log.as_mut()?);
    }
    turns.race()
}
