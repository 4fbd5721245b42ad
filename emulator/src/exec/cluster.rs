//! The blocks of a cluster: whose turn it is, their common barrier, each other's shared memory, and the registers that warps
//! of a block hand to each other.
//!
//! A block that is in no cluster is a cluster of one.

use super::access::{SHARED_WINDOW, ones};
use super::block::{Block, Turn};
use super::code::{Core, Flow, Handler, Inst, Level};
use super::lane::{Lane, warp};
use super::warp::State;
use crate::check::FindingKind;
use crate::check::order::Clock;
use crate::ir::op::{ClusterBarrier, Op};

/// The low bits of an address in the cluster's shared memory: the offset in a block's. Above them stands the block's rank
/// plus one, or 0 for the own block.
pub(crate) const OFFSET_BITS: u32 = 24;

/// Rounds in which all that run poll and nothing changes, before that counts as a deadlock.
const IDLE_ROUNDS: u32 = 4096;

/// What the blocks of a cluster share, and those that do not run at the moment.
pub(crate) struct Cluster {
    /// By rank; `None` stands for the one that runs.
    pub(super) others: Vec<Option<Block>>,
    /// In this round, a warp got on; or one polls.
    pub(super) progress: bool,
    pub(super) polling: bool,
    idle: u32,
    /// What those have passed on that arrived at the cluster's barrier, and what the last phase passed on.
    arrived: Clock,
    complete: Clock,
    /// The same for initialisations of mbarriers, which relaxed arrivals pass on, too.
    publishing: Clock,
    published: Clock,
}

impl Cluster {
    /// All blocks of a cluster but the first, which runs.
    pub(crate) fn new(others: impl Iterator<Item = Block>) -> Self {
        Self {
            others: [None].into_iter().chain(others.map(Some)).collect(),
            progress: false,
            polling: false,
            idle: 0,
            arrived: Clock::default(),
            complete: Clock::default(),
            publishing: Clock::default(),
            published: Clock::default(),
        }
    }
}

/// A warp at the cluster's barrier.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ClusterArrivals {
    /// Lanes that have arrived in the phase that goes on.
    arrived: u32,
    /// Lanes that have arrived and not waited yet.
    owing: u32,
}

impl Core<'_> {
    /// Lets another block of the cluster run.
    pub(super) fn select(&mut self, rank: u32) {
        if rank != self.block.rank
            && let Some(next) = self.cluster.others[rank as usize].take()
        {
            let old = std::mem::replace(&mut self.block, next);
            let place = old.rank as usize;
            self.cluster.others[place] = Some(old);
        }
    }

    /// Whether the block that is selected is the running warp's own.
    #[inline(always)]
    pub(crate) fn is_home(&self) -> bool {
        self.warp.actor / self.launch.warps == self.block.rank
    }

    /// A block of the cluster.
    pub(crate) fn peer(&mut self, rank: u32) -> Option<&mut Block> {
        if rank == self.block.rank {
            return Some(&mut self.block);
        }
        self.cluster.others.get_mut(rank as usize)?.as_mut()
    }

    /// The same, to look at.
    pub(crate) fn look(&self, rank: u32) -> Option<&Block> {
        if rank == self.block.rank {
            return Some(&self.block);
        }
        self.cluster.others.get(rank as usize)?.as_ref()
    }

    /// Runs every block of the cluster, once around.
    pub(crate) fn run_cluster(&mut self) -> Turn {
        let turn = self.run_blocks();
        if self.held.is_some() { self.settle_held(turn) } else { turn }
    }

    fn run_blocks(&mut self) -> Turn {
        (self.cluster.progress, self.cluster.polling) = (false, false);
        let mut finished = true;
        for rank in 0..self.launch.ranks() {
            self.select(rank);
            match self.run_block() {
                Turn::Finished => {}
                Turn::Paused => finished = false,
                Turn::Failed => return Turn::Failed,
            }
        }
        if finished {
            return Turn::Finished;
        }
        self.engine_turn();
        let completed = !self.cluster.progress && self.engine_completes_one();
        if self.fault.is_some() {
            return Turn::Failed;
        }
        if self.cluster.progress || completed {
            self.cluster.idle = 0;
            return Turn::Paused;
        }
        if self.read_at_last() {
            self.cluster.idle = 0;
            return if self.fault.is_some() { Turn::Failed } else { Turn::Paused };
        }
        self.cluster.idle += 1;
        // Other blocks may write what is polled.
        let hopeless = self.cluster.idle > IDLE_ROUNDS && !self.launch.kernel.communicates;
        if !self.cluster.polling || hopeless {
            self.deadlock();
            return Turn::Failed;
        }
        Turn::Paused
    }

    /// Warp-instructions that the cluster's blocks have run.
    pub(crate) fn cluster_instructions(&self) -> u64 {
        let others = self.cluster.others.iter().flatten().map(|block| block.instructions);
        self.block.instructions + others.sum::<u64>()
    }

    /// The offset of an address in the cluster's shared memory, if it is in the own block's.
    #[inline(always)]
    pub(crate) fn own_shared(&self, address: u64) -> Option<u64> {
        let offset = address & ((1 << OFFSET_BITS) - 1);
        match address >> OFFSET_BITS {
            0 => Some(offset),
            rank => (rank - 1 == u64::from(self.block.rank)).then_some(offset),
        }
    }

    /// The rank and offset of an address in the cluster's shared memory. Fails where there is no such block.
    pub(crate) fn place_of(&mut self, address: u64, lane: usize, what: &str) -> Result<(u32, u32), Flow> {
        if let Some(offset) = self.own_shared(address) {
            return Ok((self.block.rank, offset as u32));
        }
        let rank = ((address >> OFFSET_BITS) - 1).min(u64::from(u32::MAX)) as u32;
        let ranks = self.launch.ranks();
        if rank >= ranks {
            let message = format!("{what} in the shared memory of block {rank} of a cluster of {ranks}");
            return Err(self.fail(FindingKind::OutOfBounds, 1 << lane, message, None));
        }
        self.check_alive(rank, 1 << lane, what)?;
        Ok((rank, (address & ((1 << OFFSET_BITS) - 1)) as u32))
    }

    /// The shared memory of a block that has exited is no longer there.
    pub(crate) fn check_alive(&mut self, rank: u32, lanes: u32, what: &str) -> Result<(), Flow> {
        let exited = |block: &Block| block.parked.iter().all(|warp| warp.live == 0);
        if rank == self.block.rank || !self.look(rank).is_some_and(exited) || !self.launch.checks.bounds {
            return Ok(());
        }
        let message = format!("{what} in the shared memory of block {rank} of the cluster, which has exited");
        let hint = "let all blocks of the cluster wait for each other before they exit (`barrier.cluster`)";
        Err(self.fail(FindingKind::UseAfterFree, lanes, message, Some(hint)))
    }

    /// Completes the cluster's barrier if all that live have arrived.
    pub(super) fn cluster_barrier_check(&mut self) {
        let missing =
            |block: &Block| block.parked.iter().any(|warp| warp.cluster.arrived & warp.live != warp.live);
        let waiting = self.warp.cluster.arrived & self.warp.live != self.warp.live
            || missing(&self.block)
            || self.cluster.others.iter().flatten().any(missing);
        if waiting {
            return;
        }
        self.cluster.complete = std::mem::take(&mut self.cluster.arrived);
        self.cluster.published = std::mem::take(&mut self.cluster.publishing);
        self.warp.cluster.arrived = 0;
        let blocks = self.cluster.others.iter_mut().flatten().chain([&mut self.block]);
        for warp in blocks.flat_map(|block| &mut block.parked).chain([&mut self.warp]) {
            warp.cluster.arrived = 0;
            warp.wake(|state| state == State::Cluster);
        }
    }
}

/// The handler of `barrier.cluster`.
pub(crate) fn barrier(level: Level) -> Handler {
    warp!(level, |core, inst| {
        let Op::ClusterBarrier { what, relaxed } = inst.op else { return Flow::Next };
        let mask = core.warp.mask;
        let state = core.warp.cluster;
        match what {
            ClusterBarrier::Arrive => {
                let twice = state.owing & mask;
                if twice != 0 {
                    let message = "`barrier.cluster.arrive` again before `barrier.cluster.wait`".to_owned();
                    return core.fail(FindingKind::BarrierMisuse, twice, message, None);
                }
                core.warp.cluster.owing |= mask;
                core.warp.cluster.arrived |= mask;
                let clock = match relaxed {
                    true => core.warp.fences.released(),
                    false => core.order.release(core.warp.actor),
                };
                core.cluster.arrived.join(&clock);
                core.cluster.publishing.join(&core.warp.fences.published);
                core.cluster_barrier_check();
                Flow::Next
            }
            ClusterBarrier::Wait => {
                let absent = mask & !state.owing;
                if absent != 0 {
                    let message = "`barrier.cluster.wait` without `barrier.cluster.arrive`".to_owned();
                    return core.fail(FindingKind::BarrierMisuse, absent, message, None);
                }
                if state.arrived & mask != 0 {
                    core.warp.waiting = State::Cluster;
                    return Flow::Wait;
                }
                core.warp.cluster.owing &= !mask;
                core.order.acquire(core.warp.actor, &core.cluster.complete);
                core.warp.fences.inits.join(&core.cluster.published);
                core.warp.settle_lanes();
                Flow::Next
            }
        }
    })
}

/// The handler of `mapa`.
pub(crate) fn map_address(level: Level) -> Handler {
    warp!(level, |core, inst| { map(core, inst).err().unwrap_or(Flow::Next) })
}

fn map(core: &mut Core<'_>, inst: &Inst) -> Result<(), Flow> {
    let Op::MapAddress { generic } = inst.op else { return Ok(()) };
    let mask = core.warp.mask;
    let addresses = core.addresses(inst.slots[1], 0)?;
    let ranks = *u32::read(core, inst.slots[2]);
    let known = u32::written(core, inst.slots[2]);
    let count = core.launch.ranks();
    let base = if generic { SHARED_WINDOW } else { 0 };
    let mut out = [0; 32];
    for lane in ones(mask & known) {
        if ranks[lane] >= count {
            let message = format!("`mapa` to block {} of a cluster of {count}", ranks[lane]);
            return Err(core.fail(FindingKind::OutOfBounds, 1 << lane, message, None));
        }
        let offset = addresses[lane].wrapping_sub(base) & ((1 << OFFSET_BITS) - 1);
        out[lane] = base + (u64::from(ranks[lane] + 1) << OFFSET_BITS) + offset;
    }
    if inst.slots[0] & super::registers::DOUBLE == 0 {
        u32::write(core, inst.slots[0], &out.map(|a| a as u32), known);
    } else {
        u64::write(core, inst.slots[0], &out, known);
    }
    Ok(())
}

/// The handler of `getctarank`.
pub(crate) fn address_rank(level: Level) -> Handler {
    warp!(level, |core, inst| {
        let Op::AddressRank { generic } = inst.op else { return Flow::Next };
        let addresses = match core.addresses(inst.slots[1], 0) {
            Ok(addresses) => addresses,
            Err(flow) => return flow,
        };
        let base = if generic { SHARED_WINDOW } else { 0 };
        let own = core.block.rank;
        let out = addresses.map(|address| match address.wrapping_sub(base) >> OFFSET_BITS {
            0 => own,
            rank => rank as u32 - 1,
        });
        u32::write(core, inst.slots[0], &out, u32::MAX);
        Flow::Next
    })
}

/// The handler of `setmaxnreg`.
pub(crate) fn set_registers(level: Level) -> Handler {
    warp!(level, |core, inst| {
        let Op::SetRegisters { more } = inst.op else { return Flow::Next };
        if let Err(flow) = core.whole_warp("setmaxnreg") {
            return flow;
        }
        let (now, wanted) = (core.warp.budget, inst.immediates[0].clamp(0, 1 << 20) as u32);
        let allowed = wanted.is_multiple_of(8)
            && (24..=256).contains(&wanted)
            && if more { wanted >= now } else { wanted <= now };
        if !allowed {
            let (verb, relation) = if more { ("raises", "at least") } else { ("lowers", "at most") };
            let message = format!(
                "`setmaxnreg` {verb} a thread's registers from {now} to {wanted}: expected a multiple of 8 from 24 to 256, \
                 {relation} {now}"
            );
            return core.fail(FindingKind::Registers, u32::MAX, message, None);
        }
        if more {
            if core.block.spare_registers < (wanted - now) * 32 {
                core.warp.waiting = State::Registers;
                return Flow::Wait;
            }
            core.block.spare_registers -= (wanted - now) * 32;
        } else {
            core.block.spare_registers += (now - wanted) * 32;
            for warp in &mut core.block.parked {
                warp.wake(|state| state == State::Registers);
            }
        }
        core.warp.budget = wanted;
        Flow::Next
    })
}
