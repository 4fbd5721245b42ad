//! Races in shared memory between the lanes of a warp.
//!
//! The lanes of a warp need not run in step: what one of them writes, another may read only behind something that orders the two,
//! such as `bar.warp.sync`. Every two bytes have an entry with the lanes that have written and read them since the last such
//! point. An entry whose epoch is over is empty. Accesses of single bytes are not followed.
//!
//! A proxy fence counts for the lanes that execute it. So an entry also has the lanes that have not executed one since.
//!
//! Mostly no two instructions between two such points touch the same bytes, but for reads. So accesses are first only put down, with a
//! bit for each 16 bytes that were read or written; entries are made of them once an access meets such a bit that matters to it.

use std::collections::VecDeque;

use super::granules::{Granules, Rows};
use super::shadow::GRANULE;

/// The lanes that have touched two bytes.
#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    epoch: u32,
    writers: u32,
    readers: u32,
    /// Those that have passed it on.
    passed: u32,
    /// Those that have executed no proxy fence since they read or wrote, unless all lanes have executed one: then the count of such
    /// fences is another.
    unfenced_readers: u32,
    unfenced_writers: u32,
    fences: u32,
}

/// What a warp has read as a whole: rows of 16 bytes.
#[derive(Debug)]
struct Together {
    rows: u32,
    offsets: [u32; 32],
    at: u32,
    /// The lanes that have executed no proxy fence since.
    unfenced: u32,
}

/// Reads by whole warps that are remembered.
const MOST_TOGETHER: usize = 256;

/// Entries of a page.
const PAGE: usize = 256;

/// The entries of shared memory, in pages that are made when they are first touched: a warp's lanes share little of it.
#[derive(Debug, Default)]
struct Entries {
    pages: Vec<Option<Box<[Entry; PAGE]>>>,
}

impl Entries {
    /// What is known of a pair of bytes.
    fn get(&self, index: usize) -> Entry {
        let page = self.pages.get(index / PAGE).and_then(Option::as_ref);
        page.map_or(Entry::default(), |page| page[index % PAGE])
    }

    fn entry(&mut self, index: usize) -> &mut Entry {
        let page = index / PAGE;
        if page >= self.pages.len() {
            self.pages.resize_with(page + 1, || None);
        }
        let page = self.pages[page].get_or_insert_with(|| Box::new([Entry::default(); PAGE]));
        &mut page[index % PAGE]
    }
}

/// What lanes did by one instruction.
#[derive(Clone, Debug, Default)]
struct Noted {
    lanes: u32,
    bytes: u32,
    write: bool,
    at: u32,
    offsets: [u32; 32],
    /// Proxy fences of all lanes before it.
    fences: u32,
}

/// Accesses that are only put down before entries are made of them in any case.
const MOST_NOTED: usize = 512;

/// The accesses of a warp's lanes since they were last ordered.
#[derive(Debug)]
pub(crate) struct LaneLog {
    /// Those of which no entries were made, and what they have touched. What was read counts once something was written.
    /// Room for those that come later is behind them.
    noted: Vec<Noted>,
    count: usize,
    read_granules: Granules,
    written_granules: Granules,
    /// Entries are made at once.
    exact: bool,
    entries: Entries,
    /// The entries that are not empty.
    touched: Vec<u32>,
    epoch: u32,
    /// The instruction of the last write.
    wrote: u32,
    read: u32,
    written: bool,
    /// Proxy fences that all lanes have executed together.
    fences: u32,
    together: VecDeque<Together>,
    /// Counts the points that change what is known of accesses that were noted.
    points: u64,
}

impl Default for LaneLog {
    fn default() -> Self {
        Self {
            noted: Vec::new(),
            count: 0,
            read_granules: Granules::default(),
            written_granules: Granules::default(),
            exact: false,
            entries: Entries::default(),
            touched: Vec::new(),
            epoch: 1,
            wrote: 0,
            read: 0,
            written: false,
            fences: 0,
            together: VecDeque::new(),
            points: 0,
        }
    }
}

/// Two lanes that nothing orders: the one at hand, the other, and what that did and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LaneRace {
    pub(crate) lane: u32,
    pub(crate) other: u32,
    pub(crate) offset: u32,
    pub(crate) wrote: bool,
    pub(crate) at: u32,
}

/// What lanes have done to two bytes: whether one wrote, and the last instruction of that kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LaneAccess {
    pub(crate) offset: u32,
    pub(crate) wrote: bool,
    pub(crate) at: u32,
}

impl LaneLog {
    /// All lanes are ordered.
    #[inline(always)]
    pub(crate) fn settle(&mut self) {
        self.points += 1;
        self.count = 0;
        if self.written {
            self.read_granules.clear();
            self.written_granules.clear();
        }
        self.exact = false;
        self.epoch += 1;
        self.touched.clear();
        self.together.clear();
        self.written = false;
    }

    /// Some lanes pass on what they have done. What others have done since lanes were last ordered, and have not passed on themselves,
    /// is no part of it: `other` is told of it, by pairs of bytes.
    pub(crate) fn pass_on(&mut self, lanes: u32, mut other: impl FnMut(LaneAccess)) {
        self.points += 1;
        self.make_entries();
        for &index in &self.touched {
            let entry = self.entries.entry(index as usize);
            entry.passed |= lanes;
            let wrote = entry.writers & !entry.passed != 0;
            if wrote || entry.readers & !entry.passed != 0 {
                let at = if wrote { self.wrote } else { self.read };
                other(LaneAccess { offset: 2 * index, wrote, at });
            }
        }
        // What a warp reads as a whole, any lane passes on.
        self.together.clear();
    }

    /// Some of the lanes that have not exited execute a proxy fence. What others have done since lanes were last ordered is not behind
    /// it, unless they have executed one themselves or have passed it on already: `other` is told of it.
    pub(crate) fn fence(&mut self, lanes: u32, live: u32, mut other: impl FnMut(LaneAccess)) {
        self.points += 1;
        if live & !lanes == 0 {
            self.fences += 1;
            self.together.clear();
            return;
        }
        self.make_entries();
        for &index in &self.touched {
            let entry = self.entries.entry(index as usize);
            if entry.fences != self.fences {
                continue;
            }
            entry.unfenced_readers &= !lanes;
            entry.unfenced_writers &= !lanes;
            let wrote = entry.unfenced_writers & !entry.passed != 0;
            if wrote || entry.unfenced_readers & !entry.passed != 0 {
                other(LaneAccess {
                    offset: 2 * index,
                    wrote,
                    at: if wrote { self.wrote } else { self.read },
                });
            }
        }
        for Together { rows, offsets, at, unfenced } in &mut self.together {
            *unfenced &= !lanes;
            if *unfenced != 0 {
                for (_, &offset) in offsets.iter().enumerate().filter(|(row, _)| *rows >> row & 1 == 1) {
                    other(LaneAccess { offset, wrote: false, at: *at });
                }
            }
        }
    }

    /// Notes that lanes read rows of 16 bytes as a whole.
    pub(crate) fn read_together(&mut self, lanes: u32, rows: u32, addresses: &[u64; 32], at: u32) {
        if self.together.len() == MOST_TOGETHER {
            self.together.pop_front();
        }
        let offsets = addresses.map(|address| address as u32);
        self.together.push_back(Together { rows, offsets, at, unfenced: lanes });
    }

    /// Changes whenever lanes are ordered, pass something on or execute a proxy fence. Until then, to note a write again says
    /// nothing new.
    pub(crate) fn points(&self) -> u64 {
        self.points
    }

    /// Notes what lanes read or write at one instruction.
    #[inline(always)]
    pub(crate) fn access(
        &mut self,
        lanes: u32,
        addresses: &[u64; 32],
        bytes: u32,
        write: bool,
        at: u32,
    ) -> Option<LaneRace> {
        if bytes < 2 {
            return None;
        }
        self.access_as(lanes, addresses, bytes, (write, at), None)
    }

    /// The same for rows of 16 bytes.
    #[inline(always)]
    pub(crate) fn access_rows(
        &mut self,
        lanes: u32,
        addresses: &[u64; 32],
        rows: &Rows,
        write: bool,
        at: u32,
    ) -> Option<LaneRace> {
        self.access_as(lanes, addresses, GRANULE, (write, at), Some(rows))
    }

    #[inline(always)]
    fn access_as(
        &mut self,
        lanes: u32,
        addresses: &[u64; 32],
        bytes: u32,
        (write, at): (bool, u32),
        rows: Option<&Rows>,
    ) -> Option<LaneRace> {
        if self.exact || !self.put_down(lanes, addresses, bytes, (write, at), rows) {
            return self.access_exactly(lanes, addresses, bytes, (write, at), false);
        }
        None
    }

    /// Puts down an access, if it meets none that matters to it.
    #[inline(always)]
    fn put_down(
        &mut self,
        lanes: u32,
        addresses: &[u64; 32],
        bytes: u32,
        (write, at): (bool, u32),
        rows: Option<&Rows>,
    ) -> bool {
        let meets = |granules: &Granules| match rows {
            Some(rows) => granules.meets_rows(rows),
            None => granules.meets(lanes, addresses, bytes),
        };
        if self.count == MOST_NOTED || meets(&self.written_granules) {
            self.make_entries();
            return false;
        }
        if write {
            if !self.written {
                for read in &self.noted[..self.count] {
                    self.read_granules.set(read.lanes, &read.offsets, read.bytes);
                }
            }
            if meets(&self.read_granules) {
                self.make_entries();
                return false;
            }
            (self.wrote, self.written) = (at, true);
        } else {
            self.read = at;
        }
        // In its place at once, not by a copy.
        if self.count == self.noted.len() {
            self.noted.push(Noted::default());
        }
        let noted = &mut self.noted[self.count];
        self.count += 1;
        (noted.lanes, noted.bytes, noted.write, noted.at) = (lanes, bytes, write, at);
        noted.fences = self.fences;
        for (offset, &address) in noted.offsets.iter_mut().zip(addresses) {
            *offset = address as u32;
        }
        let granules = if write { &mut self.written_granules } else { &mut self.read_granules };
        if self.written {
            match rows {
                Some(rows) => granules.set_rows(rows),
                None => granules.set(lanes, &noted.offsets, bytes),
            }
        }
        true
    }

    /// Makes entries of all that was only put down. From now on they are made at once.
    #[cold]
    fn make_entries(&mut self) {
        self.exact = true;
        let mut all = std::mem::take(&mut self.noted);
        for noted in all.drain(..std::mem::take(&mut self.count)) {
            let addresses = noted.offsets.map(u64::from);
            let fenced = noted.fences != self.fences;
            // Those that were put down do not race.
            let _ =
                self.access_exactly(noted.lanes, &addresses, noted.bytes, (noted.write, noted.at), fenced);
        }
        self.noted = all;
    }

    /// Notes an access in the entries. `fenced`: all lanes have executed a proxy fence since.
    fn access_exactly(
        &mut self,
        lanes: u32,
        addresses: &[u64; 32],
        bytes: u32,
        (write, at): (bool, u32),
        fenced: bool,
    ) -> Option<LaneRace> {
        let mut race = None;
        for lane in (0..32u32).filter(|lane| lanes >> lane & 1 == 1) {
            let own = 1 << lane;
            let offset = addresses[lane as usize] as usize;
            for index in offset / 2..(offset + bytes as usize) / 2 {
                let entry = self.entries.get(index);
                let current = entry.epoch == self.epoch;
                let others = if write { entry.writers | entry.readers } else { entry.writers } & !own;
                if current && others != 0 {
                    let wrote = entry.writers & !own != 0;
                    let other = if wrote { entry.writers & !own } else { others }.trailing_zeros();
                    let at = if wrote { self.wrote } else { self.read };
                    race = race.or(Some(LaneRace { lane, other, offset: offset as u32, wrote, at }));
                }
            }
        }
        // Noted afterwards: lanes that meet in one instruction are a matter of their own.
        for lane in (0..32u32).filter(|lane| lanes >> lane & 1 == 1) {
            let offset = addresses[lane as usize] as usize;
            for index in offset / 2..(offset + bytes as usize) / 2 {
                let entry = self.entries.entry(index);
                if entry.epoch != self.epoch {
                    *entry = Entry { epoch: self.epoch, ..Entry::default() };
                    self.touched.push(index as u32);
                }
                let mask = if write { &mut entry.writers } else { &mut entry.readers };
                *mask |= 1 << lane;
                entry.passed &= !(1 << lane);
                if entry.fences != self.fences {
                    (entry.unfenced_readers, entry.unfenced_writers) = (0, 0);
                    entry.fences = self.fences;
                }
                let unfenced = if write { &mut entry.unfenced_writers } else { &mut entry.unfenced_readers };
                *unfenced |= u32::from(!fenced) << lane;
            }
        }
        if write {
            (self.wrote, self.written) = (at, true);
        } else {
            self.read = at;
        }
        race
    }

    /// Whether lanes read together, as a whole warp, what one of them has written. `rows`: what they touch, if that is whole rows.
    #[inline(always)]
    pub(crate) fn together(
        &mut self,
        lanes: u32,
        addresses: &[u64; 32],
        bytes: u32,
        rows: Option<&Rows>,
    ) -> Option<LaneRace> {
        let meets = |granules: &Granules| match rows {
            Some(rows) => granules.meets_rows(rows),
            None => granules.meets(lanes, addresses, bytes),
        };
        if !self.written || !self.exact && !meets(&self.written_granules) {
            return None;
        }
        self.look(lanes, addresses, bytes)
    }

    #[cold]
    fn look(&mut self, lanes: u32, addresses: &[u64; 32], bytes: u32) -> Option<LaneRace> {
        self.make_entries();
        (0..32u32).filter(|lane| lanes >> lane & 1 == 1).find_map(|lane| {
            let offset = addresses[lane as usize] as usize;
            let mut entries =
                (offset / 2..(offset + bytes as usize) / 2).map(|index| self.entries.get(index));
            let entry = entries.find(|e| e.epoch == self.epoch && e.writers != 0)?;
            let (other, offset) = (entry.writers.trailing_zeros(), offset as u32);
            Some(LaneRace { lane, other, offset, wrote: true, at: self.wrote })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(step: u64) -> [u64; 32] {
        std::array::from_fn(|lane| lane as u64 * step)
    }

    #[test]
    fn lanes_race_until_they_are_ordered() {
        let mut log = LaneLog::default();
        assert_eq!(log.access(u32::MAX, &addresses(4), 4, true, 7), None);
        assert_eq!(log.access(u32::MAX, &addresses(4), 4, false, 8), None);
        let reversed = std::array::from_fn(|lane| 4 * (31 - lane as u64));
        let race = log.access(u32::MAX, &reversed, 4, false, 9);
        assert_eq!(race, Some(LaneRace { lane: 0, other: 31, offset: 124, wrote: true, at: 7 }));
        assert!(log.together(1, &addresses(16), 16, None).is_some());
        log.settle();
        assert_eq!(log.access(u32::MAX, &reversed, 4, false, 9), None);
        assert_eq!(log.together(1, &addresses(16), 16, None), None);
        let race = log.access(2, &addresses(4), 4, true, 10);
        assert_eq!(race, Some(LaneRace { lane: 1, other: 30, offset: 4, wrote: false, at: 9 }));
        // Halves of a word are apart.
        log.settle();
        assert_eq!(log.access(3, &addresses(2), 2, true, 11), None);
        assert_eq!(log.access(3, &addresses(2), 2, false, 12), None);
    }

    #[test]
    fn lanes_pass_on_what_they_have_done_themselves() {
        let mut log = LaneLog::default();
        let passed_on = |log: &mut LaneLog, lanes: u32| {
            let mut others = Vec::new();
            log.pass_on(lanes, |access| others.push((access.offset, access.wrote, access.at)));
            others
        };
        assert_eq!(log.access(0b111, &addresses(2), 2, false, 7), None);
        assert_eq!(log.access(0b010, &addresses(2), 2, true, 8), None);
        assert_eq!(passed_on(&mut log, 0b001), [(2, true, 8), (4, false, 7)]);
        assert_eq!(passed_on(&mut log, 0b010), [(4, false, 7)], "lane 0 has passed on its own before");
        assert_eq!(log.access(0b001, &addresses(2), 2, false, 9), None);
        assert_eq!(passed_on(&mut log, 0b100), [(0, false, 9)], "but not what it has done since");
        log.settle();
        assert_eq!(passed_on(&mut log, 0b001), []);
    }

    #[test]
    fn what_was_only_put_down_is_known_when_it_matters() {
        let mut log = LaneLog::default();
        let at = |first: u64| addresses(4).map(|address| address + first);
        // Reads, then a write elsewhere, then one of what another lane has read.
        assert_eq!(log.access(u32::MAX, &at(0), 4, false, 1), None);
        assert_eq!(log.access(u32::MAX, &at(4096), 4, true, 2), None);
        assert_eq!(log.access(u32::MAX, &at(8192), 4, false, 3), None);
        assert!(!log.exact);
        let race = log.access(u32::MAX, &at(8196), 4, true, 4);
        assert_eq!(race, Some(LaneRace { lane: 0, other: 1, offset: 8196, wrote: false, at: 3 }));
        assert!(log.exact && log.access(u32::MAX, &at(4), 4, true, 5).is_some(), "and of the first reads");
        log.settle();
        assert!(!log.exact && log.access(u32::MAX, &at(4), 4, true, 6).is_none());
        // A fence between is remembered.
        log.settle();
        assert_eq!(log.access(0b11, &at(0), 4, false, 7), None);
        log.fence(0b11, 0b11, |_| panic!("all have executed it"));
        let mut told = Vec::new();
        log.fence(0b01, 0b11, |access| told.push(access.offset));
        assert_eq!(told, []);
    }

    #[test]
    fn a_proxy_fence_counts_for_the_lanes_that_execute_it() {
        let mut log = LaneLog::default();
        let unfenced = |log: &mut LaneLog, lanes: u32| {
            let mut others = Vec::new();
            log.fence(lanes, 0b111, |access| others.push((access.offset, access.wrote, access.at)));
            others
        };
        assert_eq!(log.access(0b111, &addresses(2), 2, false, 7), None);
        assert_eq!(log.access(0b010, &addresses(2), 2, true, 8), None);
        assert_eq!(unfenced(&mut log, 0b001), [(2, true, 8), (4, false, 7)]);
        assert_eq!(unfenced(&mut log, 0b010), [(4, false, 7)], "lane 0 has executed one before");
        assert_eq!(unfenced(&mut log, 0b111), []);
        assert_eq!(unfenced(&mut log, 0b001), [], "all have executed one");
        assert_eq!(log.access(0b011, &addresses(2), 2, false, 9), None);
        assert_eq!(unfenced(&mut log, 0b001), [(2, false, 9)], "but none since");
        log.pass_on(0b010, |_| {});
        assert_eq!(unfenced(&mut log, 0b001), [], "what was passed on is out of reach");
        log.read_together(0b111, 0b11, &addresses(16), 10);
        assert_eq!(unfenced(&mut log, 0b011), [(0, false, 10), (16, false, 10)]);
        assert_eq!(unfenced(&mut log, 0b100), []);
        log.read_together(0b111, 0b11, &addresses(16), 11);
        log.settle();
        assert_eq!(unfenced(&mut log, 0b001), [], "what lanes were told of, each may fence");
    }
}
