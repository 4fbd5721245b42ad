//! Races in shared memory between the lanes of a warp.
//!
//! The lanes of a warp need not run in step: what one of them writes, another may read only behind something that orders the two,
//! such as `bar.warp.sync`. Every two bytes have an entry with the lanes that have written and read them since the last such
//! point. An entry whose epoch is over is empty. Accesses of single bytes are not followed.
//!
//! A proxy fence counts for the lanes that execute it. So an entry also has the lanes that have not executed one since.

use std::collections::VecDeque;

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

/// The accesses of a warp's lanes since they were last ordered.
#[derive(Debug)]
pub(crate) struct LaneLog {
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
}

impl Default for LaneLog {
    fn default() -> Self {
        Self {
            entries: Entries::default(),
            touched: Vec::new(),
            epoch: 1,
            wrote: 0,
            read: 0,
            written: false,
            fences: 0,
            together: VecDeque::new(),
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
        self.epoch += 1;
        self.touched.clear();
        self.together.clear();
        self.written = false;
    }

    /// Some lanes pass on what they have done. What others have done since lanes were last ordered, and have not passed on themselves,
    /// is no part of it: `other` is told of it, by pairs of bytes.
    pub(crate) fn pass_on(&mut self, lanes: u32, mut other: impl FnMut(LaneAccess)) {
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
        if live & !lanes == 0 {
            self.fences += 1;
            self.together.clear();
            return;
        }
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

    /// Notes what lanes read or write at one instruction.
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
                *unfenced |= 1 << lane;
            }
        }
        if write {
            (self.wrote, self.written) = (at, true);
        } else {
            self.read = at;
        }
        race
    }

    /// Whether lanes read together, as a whole warp, what one of them has written.
    #[inline(always)]
    pub(crate) fn together(&self, lanes: u32, addresses: &[u64; 32], bytes: u32) -> Option<LaneRace> {
        if self.written { self.look(lanes, addresses, bytes) } else { None }
    }

    #[cold]
    fn look(&self, lanes: u32, addresses: &[u64; 32], bytes: u32) -> Option<LaneRace> {
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
        assert!(log.together(1, &addresses(16), 16).is_some());
        log.settle();
        assert_eq!(log.access(u32::MAX, &reversed, 4, false, 9), None);
        assert_eq!(log.together(1, &addresses(16), 16), None);
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
