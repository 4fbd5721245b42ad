//! Races in global memory.
//!
//! While a cluster runs, its *log* has its accesses by pages of 1 KiB: an access that is not ordered with another of the same
//! cluster, one of them a write, is found at once. When the cluster is done, what it read and wrote goes to the launch's
//! *ledger*. Clusters of a launch are not ordered with each other (unless they communicate, which the ledger does not follow):
//! once all have run, whatever two of them touched and one wrote is a race. The ledger is looked through in the order of addresses
//! and clusters, so that the same race is reported whatever thread ran which cluster when.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::{Mutex, PoisonError};

use super::order::{self, Memory, Order};
use super::shadow::{Access, Conflict, GRANULE, REGION, Who, granules};

/// Bytes of a page.
pub(crate) const PAGE: u64 = (GRANULE * REGION) as u64;

/// A page: the allocation's position in the launch's table, and the page's in the allocation.
type Key = u64;

fn key(allocation: usize, page: u64) -> Key {
    (allocation as u64) << 40 | page
}

/// Mixes keys well enough for a table.
#[derive(Default)]
struct Mix(u64);

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

type Map<V> = HashMap<Key, V, BuildHasherDefault<Mix>>;

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
}

#[derive(Debug)]
struct Page {
    reads: Vec<Reads>,
    /// How many reads there may be before it is worth looking for those that no longer count.
    room: usize,
    part_reads: Vec<Part>,
    /// Granules that were written.
    written: u64,
    /// The last writes, and earlier ones of other bytes or other warps.
    writes: Vec<Part>,
}

/// What a cluster did to global memory so far.
#[derive(Debug, Default)]
pub(crate) struct Log {
    index: Map<usize>,
    pages: Vec<(Key, Page)>,
    last: Option<(Key, usize)>,
}

impl Log {
    #[inline(always)]
    fn page(&mut self, key: Key) -> &mut Page {
        let index = match self.last {
            Some((last, index)) if last == key => index,
            _ => self.find(key),
        };
        &mut self.pages[index].1
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
        page.check_writes(order, granule, bytes, who, atomic, fenced)?;
        if access == Access::Poll {
            return Ok(());
        }
        let part = Part { actor, stamp: now, at: who.at, granule: granule as u8, bytes, atomic, agent };
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
        page.note_write(part);
        Ok(())
    }
}

impl Default for Page {
    fn default() -> Self {
        Self { reads: Vec::new(), room: ROOM, part_reads: Vec::new(), written: 0, writes: Vec::new() }
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

    fn note_write(&mut self, part: Part) {
        self.written |= 1 << part.granule;
        let same = |w: &Part| {
            (w.granule, w.actor, w.stamp, w.atomic, w.agent)
                == (part.granule, part.actor, part.stamp, part.atomic, part.agent)
        };
        if let Some(write) = self.writes.iter_mut().rev().take(16).find(|w| same(w)) {
            write.bytes |= part.bytes;
            return;
        }
        // A write that covers an earlier one, and knows of it, stands for both; among atomic ones it may not know.
        if !part.atomic {
            self.writes.retain(|w| w.granule != part.granule || w.bytes & !part.bytes != 0);
        } else if self
            .writes
            .iter()
            .any(|w| w.granule == part.granule && w.actor == part.actor && w.bytes == part.bytes)
        {
            return;
        }
        self.writes.push(part);
    }
}

/// What a cluster did to a page, for the ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Entry {
    cluster: u64,
    access: u8,
    granules: u64,
    /// For a single granule: its bytes.
    bytes: u16,
    /// The actor and the instruction.
    actor: order::Actor,
    at: u32,
}

const READ: u8 = 0;
const ATOMIC: u8 = 1;
const WRITE: u8 = 2;

/// What all clusters of a launch did.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    pages: Mutex<Map<Vec<Entry>>>,
}

/// A race between two clusters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Race {
    pub(crate) allocation: usize,
    /// The first byte in the allocation that both touch.
    pub(crate) offset: u64,
    /// The later one of the two clusters, and the other.
    pub(crate) here: Party,
    pub(crate) other: Party,
}

/// One side of a race.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Party {
    pub(crate) cluster: u64,
    pub(crate) actor: order::Actor,
    pub(crate) at: u32,
    pub(crate) access: Access,
}

impl Ledger {
    /// Takes in what a cluster did.
    pub(crate) fn enter(&self, cluster: u64, log: &mut Log) {
        let mut pages = self.pages.lock().unwrap_or_else(PoisonError::into_inner);
        log.index.clear();
        log.last = None;
        for (key, page) in log.pages.drain(..) {
            let entries = pages.entry(key).or_default();
            let mut reads = 0;
            for read in &page.reads {
                let new = read.granules & !reads;
                if new != 0 {
                    let (actor, at) = (read.actor, read.at);
                    entries.push(Entry { cluster, access: READ, granules: new, bytes: u16::MAX, actor, at });
                }
                reads |= new;
            }
            for part in &page.part_reads {
                entries.push(part.entry(cluster, READ));
            }
            for write in &page.writes {
                let access = if write.atomic { ATOMIC } else { WRITE };
                // Neighbours that one instruction wrote are one entry.
                if let Some(last) = entries.last_mut()
                    && (last.cluster, last.access, last.at, last.bytes)
                        == (cluster, access, write.at, u16::MAX)
                    && write.bytes == u16::MAX
                {
                    last.granules |= 1 << write.granule;
                    continue;
                }
                entries.push(write.entry(cluster, access));
            }
        }
    }

    /// The first race by address.
    pub(crate) fn race(self) -> Option<Race> {
        let pages = self.pages.into_inner().unwrap_or_else(PoisonError::into_inner);
        let racing = pages.into_iter().filter_map(|(key, entries)| {
            let mut written = entries.iter().filter(|e| e.access != READ).map(|e| e.cluster);
            let first = written.next()?;
            // Most pages that are written belong to one cluster.
            if entries.iter().all(|e| e.cluster == first) {
                return None;
            }
            race_in(key, entries)
        });
        racing.min_by_key(|race| (race.allocation, race.offset))
    }
}

impl Part {
    fn entry(&self, cluster: u64, access: u8) -> Entry {
        let (granules, bytes) = (1 << self.granule, self.bytes);
        Entry { cluster, access, granules, bytes, actor: self.actor, at: self.at }
    }
}

/// The first race in a page.
fn race_in(page: Key, mut entries: Vec<Entry>) -> Option<Race> {
    entries.sort_unstable();
    for granule in 0..REGION {
        let here: Vec<&Entry> = entries.iter().filter(|e| e.granules >> granule & 1 == 1).collect();
        if here.iter().all(|e| e.access == READ) {
            continue;
        }
        for (i, second) in here.iter().enumerate() {
            let against = |first: &&&Entry| {
                first.cluster != second.cluster
                    && first.bytes & second.bytes != 0
                    && first.access.max(second.access) != READ
                    && (first.access.min(second.access), first.access.max(second.access)) != (ATOMIC, ATOMIC)
            };
            if let Some(first) = here[..i].iter().find(against) {
                let byte = (first.bytes & second.bytes).trailing_zeros();
                let (allocation, page) = ((page >> 40) as usize, page & ((1 << 40) - 1));
                let offset = page * PAGE + u64::from(granule * GRANULE + byte);
                return Some(Race { allocation, offset, here: second.party(), other: first.party() });
            }
        }
    }
    None
}

impl Entry {
    fn party(&self) -> Party {
        let access = [Access::Read, Access::Atomic, Access::Write][usize::from(self.access)];
        Party { cluster: self.cluster, actor: self.actor, at: self.at, access }
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

    #[test]
    fn clusters_race_wherever_one_writes_what_another_touches() {
        let order = Order::new(1, false);
        let who = |at| Who { actor: 0, at };
        let run = |accesses: &[(u64, u32, u16, Access)]| {
            let ledger = Ledger::default();
            for (i, &(cluster, granule, bytes, access)) in accesses.iter().enumerate() {
                let mut log = Log::default();
                log.access(&order, PLACE, granule, bytes, who(i as u32), (access, false)).unwrap();
                ledger.enter(cluster, &mut log);
            }
            ledger.race()
        };
        use Access::{Atomic, Read, Write};
        assert_eq!(run(&[(0, 7, 3, Write), (1, 7, 12, Write), (2, 8, 1, Read), (3, 8, 1, Read)]), None);
        assert_eq!(run(&[(0, 7, 3, Atomic), (1, 7, 3, Atomic)]), None);
        for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0]] {
            let all = [(0, 7, 3, Read), (1, 7, 2, Write), (2, 9, 1, Write)];
            let race = run(&order.map(|i| all[i])).unwrap();
            assert_eq!((race.allocation, race.offset), (3, 5 * PAGE + 7 * 16 + 1));
            assert_eq!((race.here.cluster, race.other.cluster, race.other.access), (1, 0, Read));
        }
        assert!(run(&[(4, 7, 3, Atomic), (1, 7, 2, Read)]).is_some());
    }
}
