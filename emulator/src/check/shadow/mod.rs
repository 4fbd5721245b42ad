//! Races in shared memory.
//!
//! Every 16 bytes have a cell with the last write and the reads since, with their stamps (see [`order`](super::order)). Where
//! warps touch different bytes of a cell without order, it is split into cells of one byte.
//!
//! Most accesses are of whole granules that nobody touched since the last barrier of the whole block. They are decided
//! for up to 64 granules (a *region*) at a time, with a bit for each: which were written since, which each warp read.
//!
//! What warps have read and an agent's write may overtake for want of a proxy fence is a list of its own: see [`reads`].
//!
//! Agents (the copy engine, the matrix unit of a warpgroup) read memory over a time, from the instruction that starts them to the
//! one that waits for them. Such reads are *locks*: nobody may write there until the lock is taken away. Reads by warps of other
//! blocks of the cluster are kept in a list of their own.
//!
//! The lanes of one warp count as one. Where several warps read the same bytes at different times, with only some of
//! the times known to each other, the oldest is kept: a race may go unseen then, but none is made up.

mod agents;
mod cell;

mod locks;

mod reads;

use std::collections::HashMap;

use cell::{Actor, Cell, Outcome, bits};
pub(crate) use locks::Lock;
use locks::Locks;
pub(crate) use reads::Overtaken;
use reads::Reads as UnfencedReads;

use super::order::{self, Order};

/// The bytes that a cell stands for.
pub(crate) const GRANULE: u32 = 16;

/// What is done to shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    Write,
    Atomic,
    /// A strong read, which may meet atomic operations.
    Poll,
    /// A read of global memory that nobody may write as long as the launch lasts.
    Constant,
    /// The start of an asynchronous write.
    Asynchronous,
    /// A read by an agent that is still under way; only ever the other party of a conflict.
    Locked,
}

impl Access {
    /// Whether it reads memory through the generic proxy.
    #[inline(always)]
    fn reads(self) -> bool {
        matches!(self, Self::Read | Self::Poll | Self::Atomic)
    }
}

/// Two accesses that are not ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Conflict {
    /// The other warp, or the channel of a copy.
    pub(crate) actor: order::Actor,
    /// The index of its instruction.
    pub(crate) at: u32,
    /// What it did.
    pub(crate) access: Access,
    /// They are ordered, but the access at hand is an agent's, and no proxy fence is in between.
    pub(crate) unfenced: bool,
}

/// Whose access it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Who {
    /// The warp.
    pub(crate) actor: u32,
    /// The index of its instruction.
    pub(crate) at: u32,
}

/// A read by a warp of another block.
#[derive(Clone, Copy, Debug)]
struct Remote {
    actor: order::Actor,
    stamp: u32,
    at: u32,
    bytes: u16,
}

/// 64 granules.
#[derive(Clone, Copy, Default)]
struct Region {
    /// What the bits below count from: the last barrier of the whole block at that time.
    since: u32,
    /// The warps that have read whole granules; see `reads`.
    readers: u32,
    /// Granules that were written.
    written: u64,
    /// Granules whose cells say more about reads than `reads` does.
    read: u64,
    /// Granules that no barrier settles: written by a copy that was not waited for, or split.
    open: u64,
}

/// A warp's reads of whole granules in a region.
#[derive(Clone, Copy, Default)]
struct Reads {
    granules: u64,
    stamp: u32,
    at: u32,
}

/// The granules of a region.
pub(crate) const REGION: u32 = 64;

/// The shadow of a block's shared memory.
pub(crate) struct Shadow {
    cells: Vec<Cell>,
    /// Cells of one byte, for cells that are split, and where each of those has them.
    splits: Vec<[Cell; 16]>,
    split: HashMap<u32, usize>,
    regions: Vec<Region>,
    /// For each region, the reads of each warp.
    reads: Vec<Reads>,
    /// Reads of granules by warps of other blocks.
    remote: HashMap<u32, Vec<Remote>>,
    /// Reads that agents may overtake.
    unfenced: UnfencedReads,
    locks: Locks,
    /// The block's first warp among the cluster's, and how many it has.
    first: u32,
    warps: usize,
    /// The stamp of the last barrier of the whole block: its warps' accesses before are ordered before each other's.
    settled: u32,
}

impl Shadow {
    /// A shadow of `bytes` bytes, for a block of `warps` warps, the first of which is the cluster's warp `first`. `fills`: agents
    /// may write it, so that reads that they may overtake are to be followed.
    pub(crate) fn new(bytes: u32, first: u32, warps: u32, fills: bool) -> Self {
        let warps = warps as usize;
        let regions = bytes.div_ceil(GRANULE * REGION) as usize;
        Self {
            cells: vec![Cell::default(); regions * REGION as usize],
            splits: Vec::new(),
            split: HashMap::new(),
            regions: vec![Region::default(); regions],
            reads: vec![Reads::default(); regions * warps],
            remote: HashMap::new(),
            unfenced: if fills { UnfencedReads::new(regions) } else { UnfencedReads::default() },
            locks: Locks::new(regions),
            first,
            warps,
            settled: 1,
        }
    }

    /// A barrier of the whole block has completed: the stamp after it.
    pub(crate) fn settle(&mut self, stamp: u32) {
        self.settled = stamp;
    }

    fn actor<'o>(&self, order: &'o Order, who: Who) -> Actor<'o> {
        Actor {
            id: who.actor as order::Actor,
            first: self.first as order::Actor,
            warps: self.warps as u32,
            at: who.at,
            now: order.now(),
            settled: self.settled,
            seen: order.seen(who.actor),
            fenced: None,
        }
    }

    /// The region's bits, counted from the last barrier of the whole block.
    #[inline(always)]
    fn region(&mut self, region: usize) -> &mut Region {
        let settled = self.settled;
        let region = &mut self.regions[region];
        if region.since != settled {
            *region = Region { since: settled, written: region.open, open: region.open, ..Region::default() };
        }
        region
    }

    /// Notes an access to whole granules of a region, a bit each. A conflict comes with the granule.
    #[inline(always)]
    pub(crate) fn access_whole(
        &mut self,
        order: &Order,
        region: u32,
        granules: u64,
        who: Who,
        access: Access,
    ) -> Result<(), (u32, Conflict)> {
        if access.reads() {
            self.unfenced.note(order, region, granules, who);
        }
        let now = order.now();
        if access == Access::Poll {
            return self.access_each(order, region, granules, who, access);
        }
        let warp = who.actor.wrapping_sub(self.first);
        let index = region as usize;
        if warp as usize >= self.warps || access != Access::Read && self.locks.any(index) {
            return self.access_each(order, region, granules, who, access);
        }
        let own = 1u32 << warp;
        let state = *self.region(index);
        let row = index * self.warps;
        if access == Access::Read {
            let reads = &mut self.reads[row + warp as usize];
            let first = state.readers & own == 0;
            if state.written & granules == 0 && (first || reads.stamp == now) {
                *reads = Reads {
                    granules: if first { granules } else { reads.granules | granules },
                    stamp: now,
                    at: who.at,
                };
                self.regions[index].readers |= own;
                return Ok(());
            }
        } else if access != Access::Atomic && (state.written | state.read) & granules == 0 {
            let others = state.readers & !own;
            if bits(others).all(|other| self.reads[row + other as usize].granules & granules == 0) {
                let cell = Cell {
                    writer: who.actor as order::Actor,
                    write_stamp: now,
                    written_at: who.at,
                    written_bytes: u16::MAX,
                    pending: access == Access::Asynchronous,
                    ..Cell::default()
                };
                let mut rest = granules;
                while rest != 0 {
                    self.cells[index * REGION as usize + rest.trailing_zeros() as usize] = cell;
                    rest &= rest - 1;
                }
                let state = &mut self.regions[index];
                state.written |= granules;
                state.open |= if cell.pending { granules } else { 0 };
                return Ok(());
            }
        }
        self.access_each(order, region, granules, who, access)
    }

    #[cold]
    fn access_each(
        &mut self,
        order: &Order,
        region: u32,
        granules: u64,
        who: Who,
        access: Access,
    ) -> Result<(), (u32, Conflict)> {
        for granule in (0..REGION).filter(|i| granules >> i & 1 == 1).map(|i| region * REGION + i) {
            self.access_by(order, granule, u16::MAX, who, access).map_err(|conflict| (granule, conflict))?;
        }
        Ok(())
    }

    /// Notes that a warp has read a granule again as far as agents are concerned: no proxy fence stands behind it.
    pub(crate) fn read_again(&mut self, order: &Order, granule: u32, who: Who) {
        self.unfenced.note(order, granule / REGION, 1 << (granule % REGION), who);
    }

    /// Notes a warp's access to some bytes of a granule.
    #[inline(always)]
    pub(crate) fn access(
        &mut self,
        order: &Order,
        granule: u32,
        bytes: u16,
        who: Who,
        access: Access,
    ) -> Result<(), Conflict> {
        if access.reads() {
            self.unfenced.note(order, granule / REGION, 1 << (granule % REGION), who);
        }
        self.access_by(order, granule, bytes, who, access)
    }

    /// The same for an agent that works for the warp, or for an access that has been noted before and counts as done later: what agents
    /// may overtake stays as it is.
    pub(crate) fn access_by(
        &mut self,
        order: &Order,
        granule: u32,
        bytes: u16,
        who: Who,
        access: Access,
    ) -> Result<(), Conflict> {
        let actor = self.actor(order, who);
        if access == Access::Poll {
            return self.check_cells(
                granule,
                |cell| cell.check_poll(bytes, &actor),
                |cell| cell.check_poll(1, &actor),
                bytes,
            );
        }
        self.check_others(granule, bytes, &actor, access)?;
        self.touch(granule, bytes, &actor, access)?;
        if access == Access::Read && actor.bit().is_none() {
            let read = Remote { actor: actor.id, stamp: actor.now, at: actor.at, bytes };
            let reads = self.remote.entry(granule).or_default();
            reads.retain(|r| r.actor != read.actor || r.bytes & !bytes != 0);
            reads.push(read);
        }
        Ok(())
    }

    /// Checks the cell of a granule, or those of its bytes.
    fn check_cells(
        &self,
        granule: u32,
        whole: impl Fn(&Cell) -> Outcome,
        part: impl Fn(&Cell) -> Outcome,
        bytes: u16,
    ) -> Result<(), Conflict> {
        match self.parts_of(granule) {
            None => outcome(whole(&self.cells[granule as usize])),
            Some(parts) => {
                bits(u32::from(bytes)).try_for_each(|byte| outcome(part(&self.splits[parts][byte as usize])))
            }
        }
    }

    /// Conflicts that the cell does not know of: locks, reads noted with their region, reads from other blocks.
    #[inline(always)]
    fn check_others(
        &mut self,
        granule: u32,
        bytes: u16,
        actor: &Actor<'_>,
        access: Access,
    ) -> Result<(), Conflict> {
        if access == Access::Read {
            return Ok(());
        }
        let (index, bit) = ((granule / REGION) as usize, 1u64 << (granule % REGION));
        if self.locks.any(index)
            && let Some((who, _)) = self.locks.find(granule, bytes)
        {
            let actor = who.actor as order::Actor;
            return Err(Conflict { actor, at: who.at, access: Access::Locked, unfenced: false });
        }
        let state = *self.region(index);
        let own = actor.bit().unwrap_or(0);
        for other in bits(state.readers & !own) {
            let reads = self.reads[index * self.warps + other as usize];
            if reads.granules & bit != 0 && !actor.knows_warp(other, reads.stamp) {
                let actor = (self.first + other) as order::Actor;
                return Err(Conflict { actor, at: reads.at, access: Access::Read, unfenced: false });
            }
        }
        if !self.remote.is_empty()
            && let Some(reads) = self.remote.get_mut(&granule)
        {
            let unknown = reads.iter().find(|r| r.bytes & bytes != 0 && !actor.knows(r.actor, r.stamp));
            if let Some(read) = unknown {
                return Err(Conflict {
                    actor: read.actor,
                    at: read.at,
                    access: Access::Read,
                    unfenced: false,
                });
            }
            reads.retain(|r| r.bytes & !bytes != 0);
            if reads.is_empty() {
                self.remote.remove(&granule);
            }
        }
        Ok(())
    }

    #[inline(always)]
    fn touch(&mut self, granule: u32, bytes: u16, actor: &Actor<'_>, access: Access) -> Result<(), Conflict> {
        let (index, bit) = ((granule / REGION) as usize, 1u64 << (granule % REGION));
        self.region(index);
        let mut parts = self.parts_of(granule);
        if parts.is_none() {
            match self.cells[granule as usize].touch(bytes, access, actor) {
                Outcome::Split => parts = Some(self.cut(granule)),
                outcome => self::outcome(outcome)?,
            }
        }
        if let Some(parts) = parts {
            for byte in bits(u32::from(bytes)) {
                // A cell of one byte is never split further: everything that touches it overlaps.
                outcome(self.splits[parts][byte as usize].touch(1, access, actor))?;
            }
        }
        let state = &mut self.regions[index];
        if access == Access::Read {
            state.read |= bit;
        } else {
            state.written |= bit;
        }
        if parts.is_some() || access == Access::Asynchronous || actor.bit().is_none() {
            state.written |= bit;
            state.open |= bit;
        }
        Ok(())
    }

    /// Where the cells of a granule's bytes are, if it is split. Mostly none is.
    #[inline(always)]
    fn parts_of(&self, granule: u32) -> Option<usize> {
        if self.splits.is_empty() { None } else { self.split.get(&granule).copied() }
    }

    /// Cuts a cell into cells of one byte; gives where they are.
    fn cut(&mut self, granule: u32) -> usize {
        let cell = self.cells[granule as usize];
        self.split.insert(granule, self.splits.len());
        self.splits.push(std::array::from_fn(|i| cell.part(i as u32)));
        self.splits.len() - 1
    }

    /// Cuts a pending cell of which only some bytes have arrived.
    fn part(&mut self, granule: u32, bytes: u16) {
        let cell = &self.cells[granule as usize];
        if self.parts_of(granule).is_none() && cell.pending && cell.written_bytes & !bytes != 0 {
            self.cut(granule);
        }
    }

    fn each_cell(&mut self, granule: u32, bytes: u16, mut change: impl FnMut(&mut Cell)) {
        match self.parts_of(granule) {
            None => change(&mut self.cells[granule as usize]),
            Some(parts) => {
                for byte in bits(u32::from(bytes)) {
                    change(&mut self.splits[parts][byte as usize]);
                }
            }
        }
    }

    fn open(&mut self, granule: u32) {
        let state = self.region((granule / REGION) as usize);
        state.written |= 1 << (granule % REGION);
        state.open |= 1 << (granule % REGION);
    }

    /// An asynchronous write has been waited for: from now on it is a write of its warp.
    #[inline(always)]
    pub(crate) fn complete(&mut self, granule: u32, bytes: u16, now: u32) {
        let bit = 1u64 << (granule % REGION);
        let state = self.region((granule / REGION) as usize);
        state.written |= bit;
        let mut parts = self.parts_of(granule);
        let cell = &self.cells[granule as usize];
        if parts.is_none() && cell.pending && cell.written_bytes & !bytes != 0 {
            // Copies to other bytes of the granule may still be on their way.
            parts = Some(self.cut(granule));
        }
        let Some(parts) = parts else {
            let cell = &mut self.cells[granule as usize];
            (cell.pending, cell.write_stamp) = (false, now);
            self.regions[(granule / REGION) as usize].open &= !bit;
            return;
        };
        for byte in bits(u32::from(bytes)) {
            let part = &mut self.splits[parts][byte as usize];
            (part.pending, part.write_stamp) = (false, now);
        }
    }

    /// The same of whole granules of a region, a bit each.
    #[inline(always)]
    pub(crate) fn complete_whole(&mut self, region: u32, granules: u64, now: u32) {
        let first = region * REGION;
        let mut rest = granules;
        if !self.splits.is_empty() {
            while rest != 0 {
                self.complete(first + rest.trailing_zeros(), u16::MAX, now);
                rest &= rest - 1;
            }
            return;
        }
        let state = self.region(region as usize);
        (state.written, state.open) = (state.written | granules, state.open & !granules);
        let cells = &mut self.cells[first as usize..][..REGION as usize];
        while rest != 0 {
            let cell = &mut cells[rest.trailing_zeros() as usize];
            (cell.pending, cell.write_stamp) = (false, now);
            rest &= rest - 1;
        }
    }
}

fn outcome(outcome: Outcome) -> Result<(), Conflict> {
    match outcome {
        Outcome::Conflict(conflict) => Err(conflict),
        _ => Ok(()),
    }
}

/// The granules of a range of bytes, with a bit for each byte of theirs that is in it.
pub(crate) fn granules(offset: u32, bytes: u32) -> impl Iterator<Item = (u32, u16)> {
    let end = offset + bytes;
    (offset / GRANULE..end.div_ceil(GRANULE)).map(move |granule| {
        let (first, last) = (granule * GRANULE, (granule + 1) * GRANULE);
        let (from, to) = (offset.max(first) - first, end.min(last) - first);
        (granule, (((1u32 << to) - 1) & !((1u32 << from) - 1)) as u16)
    })
}

#[cfg(test)]
mod tests;
