//! Races in global memory.
//!
//! While a cluster runs, its *log* has its accesses by pages of 1 KiB: an access that is not ordered with another of the same
//! cluster, one of them a write, is found at once. What it read and wrote then goes to the launch's [ledger](super::ledger), where races
//! with other clusters are found.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use super::ledger::{Entry, Kind};
use super::order::{self, Memory, Order};
use super::shadow::{Access, Conflict, GRANULE, REGION, Who, granules};

/// Bytes of a page.
pub(crate) const PAGE: u64 = (GRANULE * REGION) as u64;

/// Granules of a page.
pub(super) const GRANULES: u32 = REGION;

/// A page: the allocation's position in the launch's table, and the page's in the allocation.
pub(super) type Key = u64;

fn key(allocation: usize, page: u64) -> Key {
    (allocation as u64) << 40 | page
}

/// The allocation and the page that a key names.
pub(super) fn place_of(key: Key) -> (usize, u64) {
    ((key >> 40) as usize, key & ((1 << 40) - 1))
}

/// Mixes keys well enough for a table.
#[derive(Debug, Default)]
pub(super) struct Mix(u64);

impl Hasher for Mix {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(u64::from(byte)));
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = (self.0.rotate_left(5) ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(26);
    }
}

pub(super) type Map<V> = HashMap<Key, V, BuildHasherDefault<Mix>>;

/// Reads that a page keeps before it looks for some to leave out.
const ROOM: usize = 128;

/// Accesses of a warp at one time: whole granules, a bit each.
#[derive(Clone, Copy, Debug)]
struct Reads {
    actor: order::Actor,
    stamp: u32,
    at: u32,
    granules: u64,
}

/// An access to some bytes of a granule.
#[derive(Clone, Copy, Debug)]
struct Part {
    actor: order::Actor,
    stamp: u32,
    at: u32,
    granule: u8,
    bytes: u16,
    atomic: bool,
    /// By the copy engine.
    agent: bool,
    /// A plain write behind an atomic operation of its warp on the same bytes: it may follow those of others that count down to it, as the
    /// last block of a reduction does.
    after_atomic: bool,
}

#[derive(Debug)]
struct Page {
    reads: Vec<Reads>,
    /// How many reads there may be before it is worth looking for those that no longer count.
    room: usize,
    part_reads: Vec<Part>,
    /// Strong reads, which may meet atomic operations.
    polls: Vec<Part>,
    /// Reads of what nobody may write as long as the launch lasts: whole granules, with one who did, and parts.
    constant: u64,
    constant_by: Who,
    constants: Vec<Part>,
    /// Granules that were written.
    written: u64,
    /// The last writes, and earlier ones of other bytes or other warps.
    writes: Vec<Part>,
    /// It was touched since the log was last looked at.
    recent: bool,
}

/// What a cluster did to global memory so far.
#[derive(Debug, Default)]
pub(crate) struct Log {
    index: Map<usize>,
    pages: Vec<(Key, Page)>,
    last: Option<(Key, usize)>,
    /// The pages that were touched since the log was last looked at.
    recent: Vec<usize>,
}

impl Log {
    #[inline(always)]
    fn page(&mut self, key: Key) -> &mut Page {
        let index = match self.last {
            Some((last, index)) if last == key => index,
            _ => self.find(key),
        };
        let page = &mut self.pages[index].1;
        if !page.recent {
            page.recent = true;
            self.recent.push(index);
        }
        page
    }

    fn find(&mut self, key: Key) -> usize {
        let pages = &mut self.pages;
        let index = *self.index.entry(key).or_insert_with(|| {
            pages.push((key, Page::default()));
            pages.len() - 1
        });
        self.last = Some((key, index));
        index
    }

    /// Notes reads of whole granules of a page, a bit each.
    #[inline(always)]
    pub(crate) fn read_whole(
        &mut self,
        order: &Order,
        (allocation, page): (usize, u64),
        granules: u64,
        who: Who,
        agent: bool,
    ) -> Result<(), (u32, Conflict)> {
        let (actor, now) = (who.actor as order::Actor, order.now());
        let fenced = agent.then(|| order.fenced(who.actor, Memory::Global));
        let page = self.page(key(allocation, page));
        if page.written & granules != 0 {
            for granule in bits(page.written & granules) {
                page.check_writes(order, granule, u16::MAX, who, false, fenced)
                    .map_err(|conflict| (granule, conflict))?;
            }
        }
        // The entries of this moment are the last ones, at most one for each warp.
        for reads in page.reads.iter_mut().rev().take_while(|reads| reads.stamp == now) {
            if reads.actor == actor {
                reads.granules |= granules;
                return Ok(());
            }
        }
        page.reads.push(Reads { actor, stamp: now, at: who.at, granules });
        if page.reads.len() > page.room {
            page.prune();
        }
        Ok(())
    }

    /// Tells of what the cluster did since this was last asked, which was at a stamp; `time` is the cluster's own.
    pub(super) fn recent(&mut self, cluster: u64, time: u32, since: u32, mut tell: impl FnMut(Key, Entry)) {
        for index in self.recent.drain(..) {
            let (key, page) = &mut self.pages[index];
            page.recent = false;
            page.tell(cluster, time, since, |entry| tell(*key, entry));
        }
    }

    /// Notes reads of whole granules of a page that nobody may write as long as the launch lasts.
    #[inline(always)]
    pub(crate) fn constant_whole(
        &mut self,
        (allocation, page): (usize, u64),
        granules: u64,
        who: Who,
    ) -> Result<(), (u32, Conflict)> {
        let page = self.page(key(allocation, page));
        if page.constant & granules == granules {
            return Ok(());
        }
        if let Some(granule) = bits(page.written & granules).next()
            && let Some(conflict) = page.written_at(granule, u16::MAX)
        {
            return Err((granule, conflict));
        }
        page.constant |= granules;
        page.constant_by = who;
        Ok(())
    }

    /// Notes an agent's access to a range of an allocation. A conflict comes with the granule of the allocation.
    pub(crate) fn agent(
        &mut self,
        order: &Order,
        allocation: usize,
        (offset, bytes): (u64, u32),
        who: Who,
        access: Access,
    ) -> Result<(), (u64, Conflict)> {
        let (mut at, end) = (offset, offset + u64::from(bytes));
        while at < end {
            let (page, last) = (at / PAGE, end.min((at / PAGE + 1) * PAGE));
            let first = page * u64::from(REGION);
            let mut whole = 0;
            for (granule, bytes) in granules((at % PAGE) as u32, (last - at) as u32) {
                if access == Access::Read && bytes == u16::MAX {
                    whole |= 1 << granule;
                } else {
                    self.access(order, (allocation, page), granule, bytes, who, (access, true))
                        .map_err(|conflict| (first + u64::from(granule), conflict))?;
                }
            }
            if whole != 0 {
                self.read_whole(order, (allocation, page), whole, who, true)
                    .map_err(|(granule, conflict)| (first + u64::from(granule), conflict))?;
            }
            at = last;
        }
        Ok(())
    }

    /// Notes an access to some bytes of a granule. `agent`: it is the copy engine's, which sees only what is behind a proxy fence.
    pub(crate) fn access(
        &mut self,
        order: &Order,
        (allocation, page): (usize, u64),
        granule: u32,
        bytes: u16,
        who: Who,
        (access, agent): (Access, bool),
    ) -> Result<(), Conflict> {
        let (actor, now) = (who.actor as order::Actor, order.now());
        let page = self.page(key(allocation, page));
        let atomic = matches!(access, Access::Atomic | Access::Poll);
        let fenced = agent.then(|| order.fenced(who.actor, Memory::Global));
        let after_atomic = access == Access::Write
            && page.writes.iter().any(|w| {
                let covers = u32::from(w.granule) == granule && w.bytes & bytes == bytes;
                covers && w.actor == actor && (w.atomic || w.after_atomic)
            });
        page.check_writes(order, granule, bytes, who, atomic || after_atomic, fenced)?;
        let part = Part {
            actor,
            stamp: now,
            at: who.at,
            granule: granule as u8,
            bytes,
            atomic,
            agent,
            after_atomic,
        };
        match access {
            Access::Constant => return page.note_constant(part),
            Access::Poll => {
                // The last one of a warp stands for those before.
                page.polls
                    .retain(|p| (p.granule, p.actor, p.bytes) != (part.granule, part.actor, part.bytes));
                page.polls.push(part);
                return Ok(());
            }
            _ => {}
        }
        if access == Access::Read {
            for other in page.part_reads.iter_mut().rev().take(8) {
                if (other.actor, other.stamp, other.granule) == (actor, now, part.granule) {
                    other.bytes |= bytes;
                    return Ok(());
                }
            }
            page.part_reads.push(part);
            if page.part_reads.len() > page.room {
                page.prune();
            }
            return Ok(());
        }
        let (bit, conflict) =
            (1u64 << granule, |actor, at| Conflict { actor, at, access: Access::Read, unfenced: false });
        for reads in page.reads.iter().filter(|reads| reads.granules & bit != 0) {
            if !order.knows(who.actor, reads.actor, reads.stamp) {
                return Err(conflict(reads.actor, reads.at));
            }
        }
        for read in page.part_reads.iter().filter(|r| u32::from(r.granule) == granule && r.bytes & bytes != 0)
        {
            if !order.knows(who.actor, read.actor, read.stamp) {
                return Err(conflict(read.actor, read.at));
            }
        }
        let plain = !atomic && !after_atomic;
        let polls =
            page.polls.iter().filter(|p| plain && u32::from(p.granule) == granule && p.bytes & bytes != 0);
        if let Some(poll) = polls.into_iter().find(|poll| !order.knows(who.actor, poll.actor, poll.stamp)) {
            return Err(Conflict { access: Access::Poll, ..conflict(poll.actor, poll.at) });
        }
        let known = page.constants.iter().find(|r| u32::from(r.granule) == granule && r.bytes & bytes != 0);
        let whole = (page.constant & bit != 0).then_some(page.constant_by);
        if let Some(read) = known.map(|r| Who { actor: u32::from(r.actor), at: r.at }).or(whole) {
            return Err(Conflict {
                access: Access::Constant,
                ..conflict(read.actor as order::Actor, read.at)
            });
        }
        page.note_write(part);
        Ok(())
    }
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
        let mut seen: HashMap<(order::Actor, u8), u16> = HashMap::new();
        for part in self.part_reads.iter_mut().rev() {
            let later = seen.entry((part.actor, part.granule)).or_default();
            part.bytes &= !*later;
            *later |= part.bytes;
        }
        self.part_reads.retain(|part| part.bytes != 0);
        self.room = ROOM.max(2 * self.reads.len()).max(2 * self.part_reads.len());
    }

    #[inline(always)]
    fn check_writes(
        &self,
        order: &Order,
        granule: u32,
        bytes: u16,
        who: Who,
        atomic: bool,
        fenced: Option<&[u32]>,
    ) -> Result<(), Conflict> {
        if self.written >> granule & 1 == 0 {
            return Ok(());
        }
        for write in self.writes.iter().rev() {
            if u32::from(write.granule) != granule || write.bytes & bytes == 0 || atomic && write.atomic {
                continue;
            }
            let access = if write.atomic { Access::Atomic } else { Access::Write };
            let conflict = Conflict { actor: write.actor, at: write.at, access, unfenced: false };
            if !order.knows(who.actor, write.actor, write.stamp) {
                return Err(conflict);
            }
            // What the engine has written it sees without a fence.
            let fenced = fenced.filter(|_| !write.agent);
            if fenced.is_some_and(|f| f.get(usize::from(write.actor)).is_some_and(|&f| write.stamp >= f)) {
                return Err(Conflict { unfenced: true, ..conflict });
            }
        }
        Ok(())
    }

    /// A write to some bytes of a granule, whatever orders it.
    fn written_at(&self, granule: u32, bytes: u16) -> Option<Conflict> {
        let write = self.writes.iter().find(|w| u32::from(w.granule) == granule && w.bytes & bytes != 0)?;
        let access = if write.atomic { Access::Atomic } else { Access::Write };
        Some(Conflict { actor: write.actor, at: write.at, access, unfenced: false })
    }

    /// Notes a read of what nobody may write. That nobody has yet is checked apart from order.
    fn note_constant(&mut self, part: Part) -> Result<(), Conflict> {
        if let Some(conflict) = self.written_at(u32::from(part.granule), part.bytes) {
            return Err(conflict);
        }
        if let Some(known) = self.constants.iter_mut().find(|other| other.granule == part.granule) {
            known.bytes |= part.bytes;
        } else {
            self.constants.push(part);
        }
        Ok(())
    }

    /// What was done from a stamp on.
    fn tell(&self, cluster: u64, time: u32, since: u32, mut tell: impl FnMut(Entry)) {
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
        // Neighbours that one instruction wrote are one entry.
        let mut last: Option<Entry> = None;
        for write in self.writes.iter().filter(|write| write.stamp >= since) {
            let kind = if write.atomic { Kind::Atomic } else { Kind::Write };
            match &mut last {
                Some(last)
                    if (last.kind, last.at, last.after_atomic, last.bytes, write.bytes)
                        == (kind, write.at, write.after_atomic, u16::MAX, u16::MAX) =>
                {
                    last.granules |= 1 << write.granule;
                }
                _ => {
                    if let Some(last) = last.replace(write.entry(cluster, kind, time)) {
                        tell(last);
                    }
                }
            }
        }
        if let Some(last) = last {
            tell(last);
        }
    }

    fn note_write(&mut self, part: Part) {
        self.written |= 1 << part.granule;
        let same = |w: &Part| {
            (w.granule, w.actor, w.stamp, w.atomic, w.agent, w.after_atomic)
                == (part.granule, part.actor, part.stamp, part.atomic, part.agent, part.after_atomic)
        };
        if let Some(write) = self.writes.iter_mut().rev().take(16).find(|w| same(w)) {
            write.bytes |= part.bytes;
            return;
        }
        // A write that covers an earlier one, and knows of it, stands for both; among atomic ones it may not know.
        if !part.atomic {
            self.writes.retain(|w| w.granule != part.granule || w.bytes & !part.bytes != 0);
        } else {
            // The last one of a warp stands for those before.
            self.writes.retain(|w| {
                (w.granule, w.actor, w.bytes, w.atomic) != (part.granule, part.actor, part.bytes, true)
            });
        }
        self.writes.push(part);
    }
}

/// The positions of the bits that are set.
pub(crate) fn bits(mask: u64) -> impl Iterator<Item = u32> {
    let mut rest = mask;
    std::iter::from_fn(move || {
        let bit = rest.trailing_zeros();
        (rest != 0).then(|| {
            rest &= rest - 1;
            bit
        })
    })
}

impl Part {
    fn entry(&self, cluster: u64, kind: Kind, time: u32) -> Entry {
        let (granules, bytes) = (1 << self.granule, self.bytes);
        let after_atomic = self.after_atomic;
        Entry { cluster, kind, granules, bytes, actor: self.actor, at: self.at, time, after_atomic }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACE: (usize, u64) = (3, 5);

    #[test]
    fn warps_of_a_cluster_need_order() {
        let (mut log, mut order) = (Log::default(), Order::new(2, true));
        let (first, second) = (Who { actor: 0, at: 1 }, Who { actor: 1, at: 2 });
        log.read_whole(&order, PLACE, 0b11, first, false).unwrap();
        assert!(log.read_whole(&order, PLACE, 0b10, second, false).is_ok());
        let race = log.access(&order, PLACE, 1, 1, second, (Access::Write, false)).unwrap_err();
        assert_eq!((race.actor, race.access), (0, Access::Read));
        assert!(log.access(&order, PLACE, 2, 1, second, (Access::Write, false)).is_ok());
        assert!(log.access(&order, PLACE, 2, 2, first, (Access::Write, false)).is_ok());
        assert!(log.access(&order, PLACE, 2, 3, first, (Access::Read, false)).is_err());
        assert!(log.read_whole(&order, PLACE, 0b100, first, false).is_err());
        order.barrier(&[(0, None), (1, None)]);
        assert!(log.read_whole(&order, PLACE, 0b100, first, false).is_ok());
        assert!(log.access(&order, PLACE, 1, 1, second, (Access::Write, false)).is_ok());
        // Atomic operations do not race with each other.
        assert!(log.access(&order, PLACE, 9, 15, first, (Access::Atomic, false)).is_ok());
        assert!(log.access(&order, PLACE, 9, 15, second, (Access::Atomic, false)).is_ok());
        assert!(log.access(&order, PLACE, 9, 15, second, (Access::Read, false)).is_err());
    }

    #[test]
    fn the_copy_engine_needs_a_fence() {
        let (mut log, mut order) = (Log::default(), Order::new(1, true));
        let who = Who { actor: 0, at: 1 };
        log.access(&order, PLACE, 0, 1, who, (Access::Write, false)).unwrap();
        assert!(log.access(&order, PLACE, 0, 1, who, (Access::Read, false)).is_ok());
        assert!(log.access(&order, PLACE, 0, 1, who, (Access::Read, true)).unwrap_err().unfenced);
        order.fence(0, &[Memory::Global]);
        assert!(log.access(&order, PLACE, 0, 1, who, (Access::Read, true)).is_ok());
    }
}
