//! The copy engine: copies of ranges and tensors that run beside the warps.
//!
//! A *transfer* is what one lane of one instruction starts: pieces of contiguous bytes, and who hears of their end. From the start
//! on, nobody may touch its destination in shared memory nor write its source there; [`Completion`] says when the bytes move.
//! Transfers that an mbarrier counts end on their own; those of a bulk group, when their thread waits for the group.

use super::access::ones;
use super::code::{Core, Fault, Flow, Handler, Level};
use super::lane::warp;
use crate::check::FindingKind;
use crate::check::order::{Clock, Memory};
use crate::check::shadow::{Access, Lock, Who, granules};
use crate::config::Completion;
use crate::ir::op::{Atomic, Op, ProxyFence};
use crate::ir::types::Ty;

/// What one lane of a copy instruction starts. All its bytes are inside their block's shared memory or their allocation.
#[derive(Clone, Debug)]
pub(crate) struct Transfer {
    /// The instruction, for findings: "a tensor copy".
    pub(crate) what: &'static str,
    pub(crate) pieces: Vec<Piece>,
    pub(crate) signals: Vec<Signal>,
    /// What each barrier counts.
    pub(crate) bytes: u32,
    /// If it writes as its thread would, not through the async proxy: what that has done and knows, which those that wait learn with it.
    pub(crate) clock: Option<Clock>,
}

/// Contiguous bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Piece {
    /// The first of these bytes.
    Write {
        to: Place,
        bytes: u32,
        data: [u8; 16],
        /// Which of them were written, as bits.
        written: u16,
    },
    /// The same 16 bits throughout.
    Fill {
        to: Place,
        bytes: u32,
        pattern: u16,
    },
    Load {
        from: Place,
        to: Place,
        bytes: u32,
    },
    /// f32 numbers, rounded to TF32.
    LoadRounded {
        from: Place,
        to: Place,
        bytes: u32,
    },
    /// Combines elements of the source with those of the destination.
    Reduce {
        op: Atomic,
        ty: Ty,
        /// Subnormal numbers of f32 count as zeros.
        flush: bool,
        from: Place,
        to: Place,
        bytes: u32,
    },
}

impl Piece {
    pub(super) fn parts(self) -> (Option<Place>, Place, u32) {
        match self {
            Self::Fill { to, bytes, .. } | Self::Write { to, bytes, .. } => (None, to, bytes),
            Self::Load { from, to, bytes }
            | Self::LoadRounded { from, to, bytes }
            | Self::Reduce { from, to, bytes, .. } => (Some(from), to, bytes),
        }
    }

    /// The bytes of global memory that it does nothing with but load them: allocation, offset and count.
    pub(super) fn loaded(&self) -> Option<(usize, u64, u32)> {
        match *self {
            Self::Load {
                from: Place::Global { allocation, offset },
                to: Place::Shared { .. },
                bytes,
                ..
            } => Some((allocation, offset, bytes)),
            _ => None,
        }
    }

    /// How many bytes it writes.
    pub(super) fn bytes(self) -> u32 {
        self.parts().2
    }

    /// Makes another block of the cluster the one whose shared memory it writes.
    pub(super) fn send_to(&mut self, block: u32) {
        let (Self::Fill { to, .. }
        | Self::Write { to, .. }
        | Self::Load { to, .. }
        | Self::LoadRounded { to, .. }
        | Self::Reduce { to, .. }) = self;
        if let Place::Shared { rank, .. } = to {
            *rank = block;
        }
    }
}

impl Store {
    /// What a piece writes of global memory.
    fn of(piece: &Piece) -> Option<Self> {
        let (_, to, bytes) = piece.parts();
        let Place::Global { allocation, offset } = to else { return None };
        let reduces = matches!(piece, Piece::Reduce { .. });
        Some(Self { allocation, offset, end: offset + u64::from(bytes), reduces })
    }
}

/// Where bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// In the shared memory of a block of the cluster.
    Shared { rank: u32, offset: u32 },
    /// In an allocation, by its position in the launch's table.
    Global { allocation: usize, offset: u64 },
}

/// Who hears that a transfer has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Signal {
    /// An mbarrier, which counts the bytes.
    Barrier { rank: u32, offset: u32 },
    /// The bulk group that the lane commits next.
    Group,
}

/// A transfer on its way.
#[derive(Debug)]
struct Pending {
    transfer: Transfer,
    who: Who,
    /// The block and warp that started it, and the lane.
    rank: u32,
    warp: u32,
    lane: usize,
    /// The lane's group.
    group: u32,
    locks: Vec<(u32, Lock)>,
    /// What it writes of global memory, ascending.
    stores: Vec<Store>,
    /// Its source was read, and its bytes have moved.
    read: bool,
}

/// A range of an allocation that a transfer writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Store {
    allocation: usize,
    offset: u64,
    end: u64,
    /// It is a reduction, with which atomic operations may go on at the same time.
    reduces: bool,
}

impl Pending {
    /// Whether it will write any of the bytes of an allocation, and not in a way that goes together with the access.
    fn writes(&self, allocation: usize, offset: u64, bytes: u32, access: Access) -> bool {
        let behind = self.stores.partition_point(|s| (s.allocation, s.end) <= (allocation, offset));
        self.stores[behind..]
            .iter()
            .take_while(|s| s.allocation == allocation && s.offset < offset + u64::from(bytes))
            .any(|s| !(s.reduces && access == Access::Atomic))
    }

    fn of_group(&self) -> bool {
        self.transfer.signals.contains(&Signal::Group)
    }
}

/// Transfers of a cluster that are under way at a time, of groups that nobody waits for.
const MOST_PENDING: usize = 1 << 10;

/// The transfers of a cluster.
#[derive(Debug)]
pub(crate) struct Engine {
    pending: Vec<Pending>,
    draws: u64,
    /// How many of the transfers under way write global memory.
    pub(super) stores: u32,
}

impl Engine {
    /// The engine of a cluster, by its number, which decides its draws with the seed.
    pub(super) fn new(cluster: u64) -> Self {
        Self { pending: Vec::new(), draws: cluster << 32, stores: 0 }
    }

    /// Whether no transfer is under way.
    pub(super) fn is_idle(&self) -> bool {
        self.pending.is_empty()
    }

    /// The transfer that is going to write bytes of an allocation: what it is, and who started it.
    pub(super) fn in_flight(
        &self,
        allocation: usize,
        offset: u64,
        bytes: u32,
        access: Access,
    ) -> Option<(&'static str, Who)> {
        let found = self.pending.iter().find(|p| p.writes(allocation, offset, bytes, access))?;
        Some((found.transfer.what, found.who))
    }

    /// A number that the seed and the run so far decide.
    pub(super) fn draw(&mut self, seed: u64) -> u64 {
        self.draws += 1;
        super::copy::mix(seed ^ self.draws.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }
}

/// The bulk groups of a warp's lanes: the number of the group that the next transfer belongs to.
#[derive(Clone, Debug, Default)]
pub(crate) struct BulkGroups {
    next: [u32; 32],
}

/// Ranges of shared memory, first byte and length, by the rank of the block.
#[derive(Default)]
struct Ranges(Vec<(u32, Vec<(u32, u32)>)>);

impl Ranges {
    fn add(&mut self, rank: u32, range: (u32, u32)) {
        match self.0.iter_mut().rev().find(|(r, _)| *r == rank) {
            Some((_, ranges)) => ranges.push(range),
            None => self.0.push((rank, vec![range])),
        }
    }
}

impl Core<'_> {
    /// Starts a transfer for a lane.
    pub(crate) fn start(&mut self, lane: usize, transfer: Transfer) -> Result<(), Flow> {
        let who = Who { actor: self.warp.actor, at: self.warp.pc };
        for &signal in &transfer.signals {
            if let Signal::Barrier { rank, offset } = signal {
                self.check_signal(lane, rank, offset)?;
            }
        }
        if transfer.pieces.iter().all(|piece| piece.parts().2 == 0) {
            // Nothing is copied, and nobody is told.
            return Ok(());
        }
        let mut locks = Vec::new();
        let (mut sources, mut targets) = (Ranges::default(), Ranges::default());
        let shared = |piece: &Piece| matches!(piece.parts().0, Some(Place::Shared { .. }));
        let from_shared = transfer.pieces.iter().any(shared);
        if !from_shared {
            self.note_all_global(lane, &transfer.pieces)?;
        }
        for piece in &transfer.pieces {
            let (from, to, bytes) = piece.parts();
            if let Some(Place::Shared { rank, offset }) = from {
                let into_memory = matches!(to, Place::Global { .. });
                self.check_source(lane, &transfer, rank, offset, bytes, into_memory)?;
                self.read_by_lane(lane, rank, offset, bytes)?;
                sources.add(rank, (offset, bytes));
            }
            if from_shared {
                self.note_global(lane, piece)?;
            }
            if let Place::Shared { rank, offset } = to {
                targets.add(rank, (offset, bytes));
            }
        }
        for (rank, ranges) in targets.0 {
            self.check_alive(rank, 1 << lane, transfer.what)?;
            self.claim(lane, &transfer, rank, &ranges)?;
            self.refill(rank, &ranges);
        }
        for (rank, ranges) in sources.0 {
            let lock = self.peer(rank).and_then(|block| block.shadow.as_mut());
            locks.extend(lock.map(|shadow| (rank, shadow.lock(&ranges, who, transfer.what))));
        }
        let (rank, warp, group) = (self.block.rank, self.warp.number, self.warp.bulk.next[lane]);
        let mut stores: Vec<Store> = transfer.pieces.iter().filter_map(Store::of).collect();
        stores.sort_unstable();
        self.engine.stores += u32::from(!stores.is_empty());
        self.engine.pending.push(Pending {
            transfer,
            who,
            rank,
            warp,
            lane,
            group,
            locks,
            stores,
            read: false,
        });
        self.make_room();
        let now = match self.launch.completion {
            Completion::Eager => true,
            Completion::Latest => false,
            Completion::Random => self.engine.draw(self.launch.seed) & 3 == 0,
        };
        // What a group has under way stays so until it is waited for, as far as others can see.
        let index = self.engine.pending.len() - 1;
        if now && !self.engine.pending[index].of_group() && !self.finish(index) {
            return Err(Flow::Fault);
        }
        Ok(())
    }

    /// Notes that a transfer reads shared memory as an access of the lane that starts it, or has waited for it: the other lanes
    /// need not run in step with that one.
    fn read_by_lane(&mut self, lane: usize, rank: u32, offset: u32, bytes: u32) -> Result<(), Flow> {
        if rank != self.block.rank {
            return Ok(());
        }
        self.race_lanes(1 << lane, &[u64::from(offset); 32], bytes, false)
    }

    /// A lane has waited until the source of a transfer was read.
    fn waited_for_sources(&mut self, index: usize) -> Result<(), Flow> {
        let pending = &self.engine.pending[index];
        if pending.read {
            return Ok(());
        }
        let (lane, pieces) = (pending.lane, pending.transfer.pieces.clone());
        for piece in pieces {
            if let (Some(Place::Shared { rank, offset }), _, bytes) = piece.parts() {
                self.read_by_lane(lane, rank, offset, bytes)?;
            }
        }
        Ok(())
    }

    /// Moves the bytes of a transfer: its source is free from then on.
    fn read_sources(&mut self, index: usize) {
        let pending = &mut self.engine.pending[index];
        pending.read = true;
        let locks = std::mem::take(&mut pending.locks);
        let pieces = std::mem::take(&mut pending.transfer.pieces);
        for &piece in &pieces {
            self.carry_out(piece);
        }
        self.engine.pending[index].transfer.pieces = pieces;
        let home = self.block.rank;
        for (rank, lock) in locks {
            self.select(rank);
            if let Some(shadow) = &mut self.block.shadow {
                shadow.unlock(&self.order, lock);
            }
        }
        self.select(home);
    }

    /// Lets the oldest group's transfers end where more are under way than anybody follows.
    fn make_room(&mut self) {
        if self.engine.pending.len() > MOST_PENDING
            && let Some(index) = self.engine.pending.iter().position(Pending::of_group)
        {
            self.finish(index);
        }
    }

    /// Moves the bytes of a transfer and tells those that wait. `false` if that was wrong, with the fault set.
    fn finish(&mut self, index: usize) -> bool {
        if !self.engine.pending[index].read {
            self.read_sources(index);
        }
        let pending = self.engine.pending.remove(index);
        self.engine.stores -= u32::from(!pending.stores.is_empty());
        for &piece in &pending.transfer.pieces {
            let (_, to, bytes) = piece.parts();
            if let Place::Shared { rank, offset } = to {
                let stamp = self.order.now();
                if let Some(shadow) = self.peer(rank).and_then(|block| block.shadow.as_mut()) {
                    granules(offset, bytes).for_each(|(granule, bytes)| shadow.arrive(granule, bytes, stamp));
                }
            }
        }
        let stamp = self.order.tick();
        for &signal in &pending.transfer.signals {
            let Signal::Barrier { rank, offset } = signal else { continue };
            let Some(barrier) = self.peer(rank).and_then(|block| block.mbarriers.get(offset)) else {
                continue;
            };
            let mut clock = pending.transfer.clock.clone().unwrap_or_default();
            clock.learn(barrier.channel, stamp);
            if let Some(message) = self.bytes_came(rank, offset, pending.transfer.bytes, &clock) {
                self.select(pending.rank);
                self.warp.number = pending.warp;
                self.fault = Some(Box::new(Fault {
                    kind: FindingKind::BarrierMisuse,
                    message,
                    lanes: 1 << pending.lane,
                    related: Vec::new(),
                    hint: None,
                    at: Some(pending.who.at),
                }));
                return false;
            }
        }
        self.cluster.progress = true;
        true
    }

    /// In the random mode, transfers may end at any time.
    pub(super) fn engine_turn(&mut self) {
        while self.launch.completion == Completion::Random && self.fault.is_none() {
            let draw = self.engine.draw(self.launch.seed);
            if draw & 3 != 0 || !self.end_some((draw >> 8) as usize) {
                return;
            }
        }
    }

    /// Ends a transfer that mbarriers wait for, if there is one.
    pub(super) fn engine_completes_one(&mut self) -> bool {
        let choice = match self.launch.completion {
            Completion::Random => self.engine.draw(self.launch.seed) as usize,
            _ => 0,
        };
        self.end_some(choice)
    }

    fn end_some(&mut self, choice: usize) -> bool {
        let count = self.engine.pending.iter().filter(|p| !p.of_group()).count();
        if count == 0 {
            return false;
        }
        let mut candidates = self.engine.pending.iter().enumerate().filter(|(_, p)| !p.of_group());
        match candidates.nth(choice % count).map(|(index, _)| index) {
            Some(index) => self.finish(index),
            None => false,
        }
    }

    /// The handler's part of `cp.async.bulk.commit_group`.
    pub(crate) fn commit_bulk_group(&mut self, lanes: u32) {
        for lane in ones(lanes) {
            self.warp.bulk.next[lane] += 1;
        }
    }

    /// The handler's part of `cp.async.bulk.wait_group`: at most `allowed` of the last groups may still be under way then.
    /// `read_only`: it is their sources that are waited for; what they write stays in flight.
    pub(crate) fn wait_bulk_group(&mut self, lanes: u32, allowed: u32, read_only: bool) -> Result<(), Flow> {
        let (rank, warp) = (self.block.rank, self.warp.number);
        let next = self.warp.bulk.next;
        let done = |p: &Pending| {
            p.of_group()
                && (p.rank, p.warp) == (rank, warp)
                && lanes >> p.lane & 1 == 1
                && p.group.saturating_add(allowed) < next[p.lane]
        };
        if read_only {
            for index in 0..self.engine.pending.len() {
                if done(&self.engine.pending[index]) && !self.engine.pending[index].read {
                    self.waited_for_sources(index)?;
                    self.read_sources(index);
                }
            }
            return Ok(());
        }
        while let Some(index) = self.engine.pending.iter().position(done) {
            self.waited_for_sources(index)?;
            if !self.finish(index) {
                return Err(Flow::Fault);
            }
        }
        Ok(())
    }

    /// What a block that exits must not leave behind.
    pub(super) fn check_exit(&mut self) -> Result<(), Flow> {
        let rank = self.block.rank;
        let here = |place: Place| matches!(place, Place::Shared { rank: r, .. } if r == rank);
        let left = self.engine.pending.iter().find(|p| {
            p.transfer.pieces.iter().any(|piece| {
                let (from, to, bytes) = piece.parts();
                bytes != 0 && (!p.read && from.is_some_and(here) || here(to))
            })
        });
        let Some(left) = left.filter(|_| self.launch.checks.asynchronous) else { return Ok(()) };
        let (what, at) = (left.transfer.what, left.who.at);
        let message = format!("the block exits while {what} from or to its shared memory is on its way");
        let hint = "wait for every copy: at its mbarrier, or with `cp.async.bulk.wait_group`";
        let lanes = self.warp.mask;
        self.fail(FindingKind::AsynchronousCopy, lanes, message, Some(hint));
        if let Some(fault) = &mut self.fault {
            fault.related.push(("the copy".to_owned(), at));
        }
        Err(Flow::Fault)
    }
}

/// The handler of fences between proxies.
pub(crate) fn fence(level: Level) -> Handler {
    warp!(level, |core, inst| {
        let Op::ProxyFence(fence) = inst.op else { return Flow::Next };
        if fence == ProxyFence::Alias {
            return Flow::Next;
        }
        let (actor, lanes) = (core.warp.actor, core.warp.mask);
        if fence == ProxyFence::MbarrierInit {
            core.warp.fences.published = core.order.release(actor);
        }
        let memories: &[Memory] = match fence {
            ProxyFence::Async { shared: true, global: true } => &Memory::ALL,
            ProxyFence::Async { shared: true, .. } => &[Memory::Shared],
            // Tensor maps are in global memory.
            ProxyFence::Async { .. } | ProxyFence::TensorMap => &[Memory::Global],
            ProxyFence::MbarrierInit | ProxyFence::Alias => &[],
        };
        let shared = memories.contains(&Memory::Shared);
        let Core { block, order, .. } = core;
        if shared || fence == ProxyFence::MbarrierInit {
            block.mbarriers.all().for_each(|barrier| barrier.fenced |= barrier.is_known(order, actor));
        }
        if !memories.is_empty() {
            order.fence(actor, memories);
        }
        if shared {
            core.fence_lanes(lanes);
        }
        Flow::Next
    })
}

impl Access {
    /// What it is called in findings.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Poll => "strong read",
            Self::Constant => "`ld.global.nc`",
            Self::Atomic => "atomic operation",
            Self::Asynchronous => "asynchronous copy",
            Self::Locked => "read that is under way",
        }
    }
}
