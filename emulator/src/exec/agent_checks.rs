//! What is checked before an agent (the copy engine, a matrix unit) is let loose on memory: who else uses it, and whether what was
//! written there is visible to it.

use super::agent::{Piece, Place, Signal, Transfer};
use super::code::{Core, Flow};
use crate::check::FindingKind;
use crate::check::order::Actor;
use crate::check::shadow::{Access, Conflict, GRANULE, Lock, Overtaken, Who};

impl Core<'_> {
    /// Notes what pieces do to global memory. Where those of a load follow each other, they are noted as one.
    pub(super) fn note_all_global(&mut self, lane: usize, pieces: &[Piece]) -> Result<(), Flow> {
        let mut rest = pieces;
        while let Some((piece, mut others)) = rest.split_first() {
            let source = piece.loaded().filter(|_| self.engine.stores == 0);
            let Some((allocation, offset, mut bytes)) = source else {
                self.note_global(lane, piece)?;
                rest = others;
                continue;
            };
            while let Some((next, behind)) = others.split_first()
                && let Some((same, from, more)) = next.loaded()
                && (same, from) == (allocation, offset + u64::from(bytes))
                && let Some(all) = bytes.checked_add(more)
            {
                (bytes, others) = (all, behind);
            }
            self.note_global_range(lane, allocation, offset, bytes, Access::Read)?;
            rest = others;
        }
        Ok(())
    }

    /// Notes what a piece does to global memory.
    pub(super) fn note_global(&mut self, lane: usize, piece: &Piece) -> Result<(), Flow> {
        let (from, to, bytes) = piece.parts();
        let write = if matches!(piece, Piece::Reduce { .. }) { Access::Atomic } else { Access::Write };
        for (place, access) in from.map(|from| (from, Access::Read)).into_iter().chain([(to, write)]) {
            if let Place::Global { allocation, offset } = place {
                self.note_global_range(lane, allocation, offset, bytes, access)?;
            }
        }
        Ok(())
    }

    /// Whether bytes of global memory are those that a transfer is going to write: nobody may touch them before its group was
    /// waited for.
    #[cold]
    pub(super) fn check_in_flight(
        &mut self,
        lane: usize,
        allocation: usize,
        offset: u64,
        bytes: u32,
        access: Access,
    ) -> Result<(), Flow> {
        let found = self.engine.in_flight(allocation, offset, bytes, access);
        let Some((what, who)) = found.filter(|_| self.launch.checks.asynchronous) else { return Ok(()) };
        let table = self.launch.table;
        let place = table.get(allocation).map_or(String::new(), |a| table.describe(a.base + offset));
        let party = self.actor_name(who.actor as Actor);
        let message =
            format!("{} of {place}, where {what} of {party} has not been waited for", access.name());
        let hint = "the thread that started it waits for its group (`cp.async.bulk.wait_group`, without `.read`), then passes \
                    a barrier";
        self.fail(FindingKind::AsynchronousCopy, 1 << lane, message, Some(hint));
        if let Some(fault) = &mut self.fault {
            fault.related.push((format!("{what} of {party}"), who.at));
        }
        Err(Flow::Fault)
    }

    /// Notes what the copy engine does to a range of an allocation.
    pub(super) fn note_global_range(
        &mut self,
        lane: usize,
        allocation: usize,
        offset: u64,
        bytes: u32,
        access: Access,
    ) -> Result<(), Flow> {
        if self.engine.stores != 0 {
            self.check_in_flight(lane, allocation, offset, bytes, access)?;
        }
        let Some(log) = &mut self.log else { return Ok(()) };
        let who = Who { actor: self.warp.actor, at: self.warp.pc };
        match log.agent(&self.order, allocation, (offset, bytes), who, access) {
            Ok(()) => Ok(()),
            Err((granule, conflict)) => {
                let offset = granule * u64::from(GRANULE);
                Err(self.raced_global(allocation, 1 << lane, offset, access.name(), conflict))
            }
        }
    }

    /// The barrier that is to hear of a transfer.
    pub(super) fn check_signal(&mut self, lane: usize, rank: u32, offset: u32) -> Result<(), Flow> {
        let barrier = self.peer(rank).and_then(|block| block.mbarriers.get(offset));
        let fenced = barrier.map(|barrier| barrier.fenced);
        let place = self.launch.describe_shared(offset);
        match fenced {
            None => {
                let message = format!("there is no mbarrier at {place}, which a copy is to tell of its end");
                let hint = "`mbarrier.init` comes first, and a barrier of the threads between it and any use";
                Err(self.fail(FindingKind::BarrierMisuse, 1 << lane, message, Some(hint)))
            }
            Some(false) if self.launch.checks.asynchronous => {
                let message = format!(
                    "the initialisation of the mbarrier at {place} is not visible to the copy engine"
                );
                let hint = "after `mbarrier.init`, the same thread needs `fence.mbarrier_init.release.cluster` or \
                            `fence.proxy.async`";
                Err(self.fail(FindingKind::ProxyFence, 1 << lane, message, Some(hint)))
            }
            Some(_) => Ok(()),
        }
    }

    /// Shared memory that a transfer will read.
    pub(super) fn check_source(
        &mut self,
        lane: usize,
        transfer: &Transfer,
        rank: u32,
        offset: u32,
        bytes: u32,
        into_memory: bool,
    ) -> Result<(), Flow> {
        self.check_agent_reads(rank, &[(offset, bytes)], 1 << lane, transfer.what)?;
        let uninitialised = self.launch.checks.uninitialised && into_memory;
        let Some(block) = self.peer(rank) else { return Ok(()) };
        let missing = uninitialised
            .then(|| (offset..offset + bytes).find(|&at| block.shared.written(at as usize, 1) == 0))
            .flatten();
        if let Some(at) = missing {
            let place = self.launch.describe_shared(at);
            return Err(self.uninitialised(1 << lane, &format!("{place}, which {} stores,", transfer.what)));
        }
        Ok(())
    }

    /// Whether an agent that works for the warp may read ranges of a block's shared memory.
    pub(super) fn check_agent_reads(
        &mut self,
        rank: u32,
        ranges: &[(u32, u32)],
        lanes: u32,
        what: &str,
    ) -> Result<(), Flow> {
        let who = Who { actor: self.warp.actor, at: self.warp.pc };
        self.in_block(rank, |core| {
            let Core { block, order, .. } = core;
            let Some(shadow) = &block.shadow else { return Ok(()) };
            let failed = shadow.check_agent(order, ranges, who).err();
            core.conflicts(lanes, what, false, failed)
        })
    }

    /// Marks ranges of a block's shared memory as the destination of a transfer.
    pub(super) fn claim(
        &mut self,
        lane: usize,
        transfer: &Transfer,
        rank: u32,
        ranges: &[(u32, u32)],
    ) -> Result<(), Flow> {
        let own = |signal: &&Signal| matches!(signal, Signal::Barrier { rank: r, .. } if *r == rank);
        let signal = transfer.signals.iter().find(own).or(transfer.signals.first());
        let channel = match signal {
            Some(&Signal::Barrier { rank, offset }) => {
                self.peer(rank).and_then(|block| block.mbarriers.get(offset)).map(|barrier| barrier.channel)
            }
            _ => None,
        };
        let Some(channel) = channel else { return Ok(()) };
        let who = Who { actor: self.warp.actor, at: self.warp.pc };
        let proxy = transfer.clock.is_none();
        self.in_block(rank, |core| {
            let Core { block, order, .. } = core;
            let Some(shadow) = &mut block.shadow else { return Ok(()) };
            let failed = shadow.start_copy(order, ranges, who, channel, proxy).err();
            core.conflicts(1 << lane, transfer.what, true, failed)?;
            if proxy { core.check_overtaken(1 << lane, transfer.what, ranges) } else { Ok(()) }
        })
    }

    /// Whether a transfer to ranges of the running block's shared memory may overtake reads of these bytes.
    fn check_overtaken(&mut self, lanes: u32, what: &str, ranges: &[(u32, u32)]) -> Result<(), Flow> {
        let who = Who { actor: self.warp.actor, at: self.warp.pc };
        let Core { block, order, .. } = self;
        let Some(shadow) = &mut block.shadow else { return Ok(()) };
        let mut found = None;
        for &range in ranges {
            found = found.or(shadow.overtakes(order, range, who));
        }
        let Some((granule, overtaken)) = found else { return Ok(()) };
        let Overtaken { actor, stamp, at, ordered } = overtaken;
        if !ordered {
            let conflict = Conflict { actor, at, access: Access::Read, unfenced: false };
            return self.conflicts(lanes, what, true, Some((granule, conflict)));
        }
        let place = self.launch.describe_shared(granule * GRANULE);
        let party = self.actor_name(actor);
        let arrival = self.order.arrival_behind(who.actor, actor, stamp);
        let message = format!(
            "{what} overwrites shared memory at {place}, which {party} has read and given back without a proxy fence: the write \
             may overtake the read"
        );
        let hint = match u32::from(actor) == who.actor {
            true => {
                "`fence.proxy.async` belongs behind the read, before the copy; if other lanes of the warp read, behind the \
                 `bar.warp.sync` that the copying lane waits at"
            }
            false => {
                "each reading thread needs `fence.proxy.async` behind the read, before the arrival or barrier that lets the copy \
                 go on; a fence counts for the lanes that execute it"
            }
        };
        self.fail(FindingKind::UnfencedRead, lanes, message, Some(hint));
        if let Some(fault) = &mut self.fault {
            fault.related.push((format!("the read by {party}"), at));
            fault
                .related
                .extend(arrival.map(|at| (format!("the first arrival of {party} behind the read"), at)));
        }
        Err(Flow::Fault)
    }

    /// Does something while a block of the cluster has the place of the one that runs.
    fn in_block<R>(&mut self, rank: u32, work: impl FnOnce(&mut Self) -> R) -> R {
        let home = self.block.rank;
        self.select(rank);
        let result = work(self);
        self.select(home);
        result
    }

    /// Reports what an agent's access to the running block's shared memory has run into, if it has.
    fn conflicts(
        &mut self,
        lanes: u32,
        what: &str,
        writes: bool,
        failed: Option<(u32, Conflict)>,
    ) -> Result<(), Flow> {
        let Some((granule, conflict)) = failed else { return Ok(()) };
        if !conflict.unfenced {
            let access = format!("the {} by {what}", if writes { "write" } else { "read" });
            return match self.raced_by(lanes, granule, &access, conflict) {
                Flow::Fault => Err(Flow::Fault),
                _ => Ok(()),
            };
        }
        if !self.launch.checks.asynchronous {
            return Ok(());
        }
        let verb = if writes { "writes" } else { "reads" };
        let place = self.launch.describe_shared(granule * GRANULE);
        let party = self.actor_name(conflict.actor);
        let message = format!(
            "{what} {verb} shared memory at {place}, where a write by {party} is not visible to the engine that runs it"
        );
        let hint = "the writing thread needs `fence.proxy.async` behind the write, before the barrier that lets the other go on";
        self.fail(FindingKind::ProxyFence, lanes, message, Some(hint));
        if let Some(fault) = &mut self.fault {
            fault.related.push((format!("the write by {party}"), conflict.at));
        }
        Err(Flow::Fault)
    }

    /// Locks shared memory of the own block that a matrix unit reads for the warp.
    pub(crate) fn lock_reads(
        &mut self,
        ranges: &[(u32, u32)],
        what: &'static str,
    ) -> Result<Option<Lock>, Flow> {
        let rank = self.block.rank;
        self.check_agent_reads(rank, ranges, u32::MAX, what)?;
        let who = Who { actor: self.warp.actor, at: self.warp.pc };
        Ok(self.block.shadow.as_mut().map(|shadow| shadow.lock(ranges, who, what)))
    }

    /// The reads of a lock are over: they become the warp's own.
    pub(crate) fn unlock_reads(&mut self, lock: Option<Lock>) {
        if let (Some(shadow), Some(lock)) = (&mut self.block.shadow, lock) {
            shadow.unlock(&self.order, lock);
        }
    }
}
