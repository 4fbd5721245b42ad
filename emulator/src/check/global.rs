//! Races in global memory.
//!
//! While a cluster runs, its *log* has its accesses by pages of 1 KiB: an access that is not ordered with another of the same
//! cluster, one of them a write, is found at once. What it read and wrote then goes to the launch's [ledger](super::ledger), where races
//! with other clusters are found.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use super::ledger::Entry;
use super::order::{self, Memory, Order};
use super::page::{Page, Part, Reads};
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

/// Where pages that were found last are: the rows of a tile have a page each.
#[derive(Debug)]
struct Found([(Key, u32); 64]);

impl Found {
    #[inline(always)]
    fn place(key: Key) -> usize {
        (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58) as usize
    }
}

impl Default for Found {
    fn default() -> Self {
        // No page has this key.
        Self([(Key::MAX, 0); 64])
    }
}

/// What a cluster did to global memory so far.
#[derive(Debug, Default)]
pub(crate) struct Log {
    index: Map<usize>,
    /// Behind those that are in use are empty ones.
    pages: Vec<(Key, Page)>,
    count: usize,
    found: Found,
    /// The pages that were touched since the log was last looked at.
    recent: Vec<usize>,
}

impl Log {
    #[inline(always)]
    fn page(&mut self, key: Key) -> &mut Page {
        let index = match self.found.0[Found::place(key)] {
            (found, index) if found == key => index as usize,
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
        let (pages, count) = (&mut self.pages, &mut self.count);
        let index = *self.index.entry(key).or_insert_with(|| {
            match pages.get_mut(*count) {
                Some(page) => page.0 = key,
                None => pages.push((key, Page::default())),
            }
            *count += 1;
            *count - 1
        });
        self.found.0[Found::place(key)] = (key, index as u32);
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
            page.check_writes(order, granules, u16::MAX, who, false, fenced)?;
        }
        page.note_reads(Reads { actor, stamp: now, at: who.at, granules });
        Ok(())
    }

    /// Tells of what the cluster did since this was last asked, which was at a stamp; `time` is the cluster's own.
    pub(super) fn recent(&mut self, cluster: u64, time: u32, since: u32, mut tell: impl FnMut(Key, Entry)) {
        self.recent_pages(|key, page| page.tell(cluster, time, since, |entry| tell(key, entry)));
    }

    /// Calls with each page that was touched since this was last asked.
    pub(super) fn recent_pages(&mut self, mut each: impl FnMut(Key, &Page)) {
        for index in self.recent.drain(..) {
            let (key, page) = &mut self.pages[index];
            page.recent = false;
            each(*key, page);
        }
    }

    /// Forgets everything but the memory it has.
    pub(crate) fn clear(&mut self) {
        self.index.clear();
        self.found = Found::default();
        self.recent.clear();
        self.pages[..std::mem::take(&mut self.count)].iter_mut().for_each(|(_, page)| page.clear());
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
                if bytes == u16::MAX {
                    whole |= 1 << granule;
                } else {
                    self.access(order, (allocation, page), 1 << granule, bytes, who, (access, true))
                        .map_err(|(granule, conflict)| (first + u64::from(granule), conflict))?;
                }
            }
            if whole != 0 {
                let place = (allocation, page);
                let noted = match access {
                    Access::Read => self.read_whole(order, place, whole, who, true),
                    _ => self.access(order, place, whole, u16::MAX, who, (access, true)),
                };
                noted.map_err(|(granule, conflict)| (first + u64::from(granule), conflict))?;
            }
            at = last;
        }
        Ok(())
    }

    /// Notes an access to some bytes of each of a page's granules, a bit each. A conflict comes with the granule. `agent`: it is the copy
    /// engine's, which sees only what is behind a proxy fence.
    pub(crate) fn access(
        &mut self,
        order: &Order,
        place: (usize, u64),
        granules: u64,
        bytes: u16,
        who: Who,
        (access, agent): (Access, bool),
    ) -> Result<(), (u32, Conflict)> {
        let (actor, now) = (who.actor as order::Actor, order.now());
        let page = self.page(key(place.0, place.1));
        let atomic = matches!(access, Access::Atomic | Access::Poll);
        let fenced = agent.then(|| order.fenced(who.actor, Memory::Global));
        let mut part =
            Part { actor, stamp: now, at: who.at, granules, bytes, atomic, agent, after_atomic: false };
        if access != Access::Write && access != Access::Atomic {
            for granule in bits(granules) {
                let part = Part { granules: 1 << granule, ..part };
                page.check_writes(order, part.granules, bytes, who, atomic, fenced)?;
                page.note_read(part, access).map_err(|conflict| (granule, conflict))?;
            }
            return Ok(());
        }
        // Mostly nobody has touched the page's granules before.
        if page.written & granules != 0 {
            if access == Access::Write {
                let after = page.after_atomic(&part);
                if after != 0 && after != granules {
                    for granules in [after, granules & !after] {
                        self.access(order, place, granules, bytes, who, (access, agent))?;
                    }
                    return Ok(());
                }
                part.after_atomic = after != 0;
            }
            page.check_writes(order, granules, bytes, who, atomic || part.after_atomic, fenced)?;
        }
        page.check_reads(order, &part, who)?;
        page.note_write(part);
        Ok(())
    }
}

/// Cuts a range of bytes at the borders of pages, and of granules that are touched in part. Calls with the page, its granules
/// and the bytes of each.
#[inline(always)]
pub(crate) fn pieces(offset: u64, total: u32, mut each: impl FnMut(u64, u64, u16)) {
    let (mut at, end, granule) = (offset, offset + u64::from(total), u64::from(GRANULE));
    while at < end {
        let page = at / PAGE;
        let (from, to) = (at % PAGE, (end - page * PAGE).min(PAGE));
        let (first, inside) = (from / granule, from % granule);
        let whole = (to - from) / granule;
        if inside != 0 || whole == 0 {
            let last = (to - first * granule).min(granule);
            let bytes = ((1u32 << last) - 1) & !((1u32 << inside) - 1);
            each(page, 1 << first, bytes as u16);
            at += last - inside;
        } else {
            each(page, (u64::MAX >> (64 - whole)) << first, u16::MAX);
            at += whole * granule;
        }
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
        let (granule, race) =
            log.access(&order, PLACE, 1 << 1, 1, second, (Access::Write, false)).unwrap_err();
        assert_eq!((granule, race.actor, race.access), (1, 0, Access::Read));
        assert!(log.access(&order, PLACE, 1 << 2, 1, second, (Access::Write, false)).is_ok());
        assert!(log.access(&order, PLACE, 1 << 2, 2, first, (Access::Write, false)).is_ok());
        assert!(log.access(&order, PLACE, 1 << 2, 3, first, (Access::Read, false)).is_err());
        assert!(log.read_whole(&order, PLACE, 0b100, first, false).is_err());
        order.barrier(&[(0, None), (1, None)]);
        assert!(log.read_whole(&order, PLACE, 0b100, first, false).is_ok());
        assert!(log.access(&order, PLACE, 1 << 1, 1, second, (Access::Write, false)).is_ok());
        // Atomic operations do not race with each other.
        assert!(log.access(&order, PLACE, 1 << 9, 15, first, (Access::Atomic, false)).is_ok());
        assert!(log.access(&order, PLACE, 1 << 9, 15, second, (Access::Atomic, false)).is_ok());
        assert!(log.access(&order, PLACE, 1 << 9, 15, second, (Access::Read, false)).is_err());
    }

    #[test]
    fn the_copy_engine_needs_a_fence() {
        let (mut log, mut order) = (Log::default(), Order::new(1, true));
        let who = Who { actor: 0, at: 1 };
        log.access(&order, PLACE, 1 << 0, 1, who, (Access::Write, false)).unwrap();
        assert!(log.access(&order, PLACE, 1 << 0, 1, who, (Access::Read, false)).is_ok());
        assert!(log.access(&order, PLACE, 1 << 0, 1, who, (Access::Read, true)).unwrap_err().1.unfenced);
        order.fence(0, &[Memory::Global]);
        assert!(log.access(&order, PLACE, 1 << 0, 1, who, (Access::Read, true)).is_ok());
    }
}
