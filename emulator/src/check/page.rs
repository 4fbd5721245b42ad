//! What a cluster did to one page of global memory.

use std::collections::HashMap;

use super::ledger::{Entry, Kind};
use super::order::{self, Order};
use super::shadow::{Access, Conflict, Who};

/// Reads that a page keeps before it looks for some to leave out.
const ROOM: usize = 128;

/// Accesses of a warp at one time: whole granules, a bit each.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reads {
    pub(super) actor: order::Actor,
    pub(super) stamp: u32,
    pub(super) at: u32,
    pub(super) granules: u64,
}

/// An access to some bytes of granules: a bit for each granule, and the bytes of each of them. Reads have one granule.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    pub(super) actor: order::Actor,
    pub(super) stamp: u32,
    pub(super) at: u32,
    pub(super) granules: u64,
    pub(super) bytes: u16,
    pub(super) atomic: bool,
    /// By the copy engine.
    pub(super) agent: bool,
    /// A plain write behind an atomic operation of its warp on the same bytes: it may follow those of others that count down to it, as the
    /// last block of a reduction does.
    pub(super) after_atomic: bool,
}

/// What a cluster did to a page.
#[derive(Debug)]
pub(super) struct Page {
    reads: Vec<Reads>,
    /// How many reads there may be before it is worth looking for those that no longer count.
    room: usize,
    part_reads: Vec<Part>,
    /// Strong reads, which may meet atomic operations.
    polls: Vec<Part>,
    /// Reads of what nobody may write as long as the launch lasts: whole granules, with one who did, and parts.
    pub(super) constant: u64,
    pub(super) constant_by: Who,
    constants: Vec<Part>,
    /// Granules that were written.
    pub(super) written: u64,
    /// The last writes, and earlier ones of other bytes or other warps.
    writes: Vec<Part>,
    /// It was touched since the log was last looked at.
    pub(super) recent: bool,
}

impl Default for Page {
    fn default() -> Self {
        Self {
            reads: Vec::new(),
            room: ROOM,
            part_reads: Vec::new(),
            polls: Vec::new(),
            constant: 0,
            constant_by: Who { actor: 0, at: 0 },
            constants: Vec::new(),
            written: 0,
            writes: Vec::new(),
            recent: false,
        }
    }
}

impl Page {
    /// Forgets everything but the memory it has.
    pub(super) fn clear(&mut self) {
        let Self { reads, part_reads, polls, constants, writes, .. } = std::mem::take(self);
        *self = Self { reads, part_reads, polls, constants, writes, ..Self::default() };
        self.reads.clear();
        for parts in [&mut self.part_reads, &mut self.polls, &mut self.constants, &mut self.writes] {
            parts.clear();
        }
    }

    /// Notes reads of whole granules.
    #[inline(always)]
    pub(super) fn note_reads(&mut self, new: Reads) {
        // The entries of this moment are the last ones, at most one for each warp.
        for reads in self.reads.iter_mut().rev().take_while(|reads| reads.stamp == new.stamp) {
            if reads.actor == new.actor {
                reads.granules |= new.granules;
                return;
            }
        }
        self.reads.push(new);
        if self.reads.len() > self.room {
            self.prune();
        }
    }

    /// Leaves out reads that the same warp has done again: who is ordered behind the last is behind all.
    #[cold]
    fn prune(&mut self) {
        let mut later: HashMap<order::Actor, u64> = HashMap::new();
        for reads in self.reads.iter_mut().rev() {
            let seen = later.entry(reads.actor).or_default();
            reads.granules &= !*seen;
            *seen |= reads.granules;
        }
        self.reads.retain(|reads| reads.granules != 0);
        let mut seen: HashMap<(order::Actor, u64), u16> = HashMap::new();
        for part in self.part_reads.iter_mut().rev() {
            let later = seen.entry((part.actor, part.granules)).or_default();
            part.bytes &= !*later;
            *later |= part.bytes;
        }
        self.part_reads.retain(|part| part.bytes != 0);
        self.room = ROOM.max(2 * self.reads.len()).max(2 * self.part_reads.len());
    }

    /// The granules that are written plainly behind an atomic operation of the same warp on the same bytes.
    pub(super) fn after_atomic(&self, part: &Part) -> u64 {
        let covers = |w: &&Part| {
            w.actor == part.actor && w.bytes & part.bytes == part.bytes && (w.atomic || w.after_atomic)
        };
        self.writes.iter().filter(covers).fold(0, |all, write| all | write.granules) & part.granules
    }

    /// Whether an access to some bytes of granules races with a write. The conflict is with the last write of the first granule that has one.
    #[inline(always)]
    pub(super) fn check_writes(
        &self,
        order: &Order,
        granules: u64,
        bytes: u16,
        who: Who,
        atomic: bool,
        fenced: Option<&[u32]>,
    ) -> Result<(), (u32, Conflict)> {
        if self.written & granules == 0 {
            return Ok(());
        }
        let mut first = First(None);
        for write in self.writes.iter().rev() {
            let both = write.granules & granules;
            if both == 0 || write.bytes & bytes == 0 || atomic && write.atomic {
                continue;
            }
            let access = if write.atomic { Access::Atomic } else { Access::Write };
            let conflict = Conflict { actor: write.actor, at: write.at, access, unfenced: false };
            // What the engine has written it sees without a fence.
            let fenced = fenced.filter(|_| !write.agent);
            if !order.knows(who.actor, write.actor, write.stamp) {
                first.found(both, conflict);
            } else if fenced
                .is_some_and(|f| f.get(usize::from(write.actor)).is_some_and(|&f| write.stamp >= f))
            {
                first.found(both, Conflict { unfenced: true, ..conflict });
            }
        }
        first.0.map_or(Ok(()), Err)
    }

    /// Whether a write races with a read.
    #[inline(always)]
    pub(super) fn check_reads(&self, order: &Order, part: &Part, who: Who) -> Result<(), (u32, Conflict)> {
        let (granules, bytes) = (part.granules, part.bytes);
        let conflict = |actor, at, access| Conflict { actor, at, access, unfenced: false };
        let mut first = First(None);
        for reads in self.reads.iter().filter(|reads| reads.granules & granules != 0) {
            if !order.knows(who.actor, reads.actor, reads.stamp) {
                first.found(reads.granules & granules, conflict(reads.actor, reads.at, Access::Read));
            }
        }
        let meets = |other: &&Part| other.granules & granules != 0 && other.bytes & bytes != 0;
        for read in self.part_reads.iter().filter(meets) {
            if !order.knows(who.actor, read.actor, read.stamp) {
                first.found(read.granules & granules, conflict(read.actor, read.at, Access::Read));
            }
        }
        let plain = !part.atomic && !part.after_atomic;
        for poll in self.polls.iter().filter(|poll| plain && meets(poll)) {
            if !order.knows(who.actor, poll.actor, poll.stamp) {
                first.found(poll.granules & granules, conflict(poll.actor, poll.at, Access::Poll));
            }
        }
        for read in self.constants.iter().filter(meets) {
            first.found(read.granules & granules, conflict(read.actor, read.at, Access::Constant));
        }
        if self.constant & granules != 0 {
            let Who { actor, at } = self.constant_by;
            first.found(self.constant & granules, conflict(actor as order::Actor, at, Access::Constant));
        }
        first.0.map_or(Ok(()), Err)
    }

    /// A write to some bytes of a granule, whatever orders it.
    pub(super) fn written_at(&self, granule: u32, bytes: u16) -> Option<Conflict> {
        let write = self.writes.iter().find(|w| w.granules >> granule & 1 == 1 && w.bytes & bytes != 0)?;
        let access = if write.atomic { Access::Atomic } else { Access::Write };
        Some(Conflict { actor: write.actor, at: write.at, access, unfenced: false })
    }

    /// Notes a read of some bytes of one granule.
    pub(super) fn note_read(&mut self, part: Part, access: Access) -> Result<(), Conflict> {
        match access {
            Access::Constant => return self.note_constant(part),
            Access::Poll => {
                // The last one of a warp stands for those before.
                self.polls
                    .retain(|p| (p.granules, p.actor, p.bytes) != (part.granules, part.actor, part.bytes));
                self.polls.push(part);
                return Ok(());
            }
            _ => {}
        }
        for other in self.part_reads.iter_mut().rev().take(8) {
            if (other.actor, other.stamp, other.granules) == (part.actor, part.stamp, part.granules) {
                other.bytes |= part.bytes;
                return Ok(());
            }
        }
        self.part_reads.push(part);
        if self.part_reads.len() > self.room {
            self.prune();
        }
        Ok(())
    }

    /// Notes a read of what nobody may write. That nobody has yet is checked apart from order.
    fn note_constant(&mut self, part: Part) -> Result<(), Conflict> {
        if let Some(conflict) = self.written_at(part.granules.trailing_zeros(), part.bytes) {
            return Err(conflict);
        }
        if let Some(known) = self.constants.iter_mut().find(|other| other.granules == part.granules) {
            known.bytes |= part.bytes;
        } else {
            self.constants.push(part);
        }
        Ok(())
    }

    /// Whether no granule was read in parts, so that each is told of by one read at most.
    pub(super) fn reads_rows_only(&self) -> bool {
        self.part_reads.is_empty()
    }

    /// What was done from a stamp on.
    pub(super) fn tell(&self, cluster: u64, time: u32, since: u32, mut tell: impl FnMut(Entry)) {
        let mut reads = 0;
        for read in self.reads.iter().filter(|read| read.stamp >= since) {
            let (granules, actor, at) = (read.granules & !reads, read.actor, read.at);
            if granules != 0 {
                tell(Entry {
                    cluster,
                    kind: Kind::Read,
                    granules,
                    bytes: u16::MAX,
                    actor,
                    at,
                    time,
                    after_atomic: false,
                });
            }
            reads |= granules;
        }
        for part in self.part_reads.iter().filter(|part| part.stamp >= since) {
            tell(part.entry(cluster, Kind::Read, time));
        }
        for part in self.polls.iter().filter(|part| part.stamp >= since) {
            tell(part.entry(cluster, Kind::Poll, time));
        }
        if self.constant != 0 {
            let Who { actor, at } = self.constant_by;
            let (kind, granules, actor) = (Kind::Constant, self.constant, actor as order::Actor);
            tell(Entry { cluster, kind, granules, bytes: u16::MAX, actor, at, time, after_atomic: false });
        }
        for part in &self.constants {
            tell(part.entry(cluster, Kind::Constant, time));
        }
        for write in self.writes.iter().filter(|write| write.stamp >= since) {
            let kind = if write.atomic { Kind::Atomic } else { Kind::Write };
            tell(write.entry(cluster, kind, time));
        }
    }

    pub(super) fn note_write(&mut self, part: Part) {
        let again = self.written & part.granules != 0;
        self.written |= part.granules;
        let kind = |w: &Part| (w.actor, w.stamp, w.atomic, w.agent, w.after_atomic);
        let mut joined = None;
        for (index, write) in self.writes.iter_mut().enumerate().rev().take(16) {
            if kind(write) != kind(&part) {
                continue;
            }
            if write.granules == part.granules {
                write.bytes |= part.bytes;
                return;
            }
            if write.granules & part.granules == part.granules && write.bytes & part.bytes == part.bytes {
                return;
            }
            // What one instruction writes is one entry.
            if write.bytes == part.bytes && write.at == part.at {
                write.granules |= part.granules;
                joined = Some(index);
                break;
            }
        }
        if again {
            for (index, write) in self.writes.iter_mut().enumerate() {
                // A write that covers an earlier one, and knows of it, stands for both; among atomic ones it may not know, and the last
                // one of a warp stands for those before.
                let covered = if part.atomic {
                    (write.actor, write.bytes, write.atomic) == (part.actor, part.bytes, true)
                } else {
                    write.bytes & !part.bytes == 0
                };
                if covered && joined != Some(index) {
                    write.granules &= !part.granules;
                }
            }
            self.writes.retain(|write| write.granules != 0);
        }
        if joined.is_none() {
            self.writes.push(part);
        }
    }
}

/// The first granule that has a conflict, and the first that was found there.
struct First(Option<(u32, Conflict)>);

impl First {
    fn found(&mut self, granules: u64, conflict: Conflict) {
        let granule = granules.trailing_zeros();
        if self.0.is_none_or(|(first, _)| granule < first) {
            self.0 = Some((granule, conflict));
        }
    }
}

impl Part {
    fn entry(&self, cluster: u64, kind: Kind, time: u32) -> Entry {
        let (granules, bytes) = (self.granules, self.bytes);
        let after_atomic = self.after_atomic;
        Entry { cluster, kind, granules, bytes, actor: self.actor, at: self.at, time, after_atomic }
    }
}
