//! Races in global memory between the lanes of a warp.
//!
//! As in shared memory, the lanes need not run in step. What a lane has written since the lanes were last ordered is kept by words; of
//! what lanes have read, the last instructions are. Words of which several lanes have written parts are not followed.

use std::collections::HashMap;
use std::collections::VecDeque;
use std::hash::BuildHasherDefault;

use super::global::Mix;
use super::lanes::LaneRace;

/// Bytes of a word.
const WORD: u64 = 4;
/// Words that are kept before all are forgotten.
const MOST_WORDS: usize = 1 << 16;
/// Reads that are kept.
const MOST_READS: usize = 32;

/// Whose a word is: the last writer, and when and where it wrote.
#[derive(Clone, Copy, Debug)]
struct Written {
    epoch: u32,
    at: u32,
    /// `None` if several lanes have written it.
    lane: Option<u8>,
}

/// What lanes have read by one instruction.
#[derive(Clone, Debug)]
struct Read {
    lanes: u32,
    addresses: [u64; 32],
    bytes: u64,
    /// All of it lies from here to there.
    range: (u64, u64),
    at: u32,
}

/// What the lanes of a warp have done to global memory since they were last ordered.
#[derive(Debug, Default)]
pub(crate) struct GlobalLanes {
    epoch: u32,
    written: HashMap<u64, Written, BuildHasherDefault<Mix>>,
    /// All that was written in this epoch lies from here to there.
    range: Option<(u64, u64)>,
    reads: VecDeque<Read>,
}

impl GlobalLanes {
    /// All lanes are ordered.
    #[inline(always)]
    pub(crate) fn settle(&mut self) {
        self.epoch += 1;
        self.range = None;
        self.reads.clear();
    }

    /// Notes what lanes read or write by one instruction. The offset of a race is the address.
    #[inline(always)]
    pub(crate) fn access(
        &mut self,
        lanes: u32,
        addresses: &[u64; 32],
        bytes: u32,
        write: bool,
        at: u32,
    ) -> Option<(LaneRace, u64)> {
        let (mut first, mut last) = (u64::MAX, 0);
        for lane in 0..32 {
            if lanes >> lane & 1 == 1 {
                (first, last) = (first.min(addresses[lane]), last.max(addresses[lane]));
            }
        }
        let range = (first, last + u64::from(bytes));
        if write {
            return self.write(lanes, addresses, bytes, range, at);
        }
        let race = match self.range {
            Some(written) if meet(written, range) => self.read_of_written(lanes, addresses, bytes),
            _ => None,
        };
        if self.reads.len() == MOST_READS {
            self.reads.pop_front();
        }
        self.reads.push_back(Read { lanes, addresses: *addresses, bytes: bytes.into(), range, at });
        race
    }

    fn words(address: u64, bytes: u32) -> impl Iterator<Item = u64> {
        address / WORD..=(address + u64::from(bytes) - 1) / WORD
    }

    /// A word that another lane has written.
    fn other_writer(&self, lane: usize, word: u64) -> Option<(LaneRace, u64)> {
        let written = self.written.get(&word).filter(|written| written.epoch == self.epoch)?;
        let other = u32::from(written.lane?);
        let race = LaneRace { lane: lane as u32, other, offset: 0, wrote: true, at: written.at };
        (other != lane as u32).then_some((race, word * WORD))
    }

    fn read_of_written(&self, lanes: u32, addresses: &[u64; 32], bytes: u32) -> Option<(LaneRace, u64)> {
        (0..32).filter(|lane| lanes >> lane & 1 == 1).find_map(|lane| {
            Self::words(addresses[lane], bytes).find_map(|word| self.other_writer(lane, word))
        })
    }

    fn write(
        &mut self,
        lanes: u32,
        addresses: &[u64; 32],
        bytes: u32,
        range: (u64, u64),
        at: u32,
    ) -> Option<(LaneRace, u64)> {
        let mut race = self.reads.iter().rev().filter(|read| meet(read.range, range)).find_map(|read| {
            let (lane, other) = read.meets(lanes, addresses, bytes.into())?;
            let race = LaneRace { lane, other, offset: 0, wrote: false, at: read.at };
            Some((race, addresses[lane as usize]))
        });
        let overlaps = self.range.is_some_and(|written| meet(written, range));
        if self.written.len() > MOST_WORDS {
            self.written.clear();
        }
        let epoch = self.epoch;
        // Whole words first: lanes that meet in one instruction are a matter of their own.
        for lane in (0..32).filter(|lane| lanes >> lane & 1 == 1) {
            if bytes < WORD as u32 {
                let word = addresses[lane] / WORD;
                let now = Written { epoch, at, lane: Some(lane as u8) };
                let entry = self.written.entry(word).or_insert(now);
                let same = entry.epoch != epoch || entry.lane == Some(lane as u8);
                *entry = Written { lane: now.lane.filter(|_| same), ..now };
                continue;
            }
            for word in Self::words(addresses[lane], bytes) {
                if overlaps && race.is_none() {
                    race = self.other_writer(lane, word).filter(|(race, _)| race.at != at);
                }
                self.written.insert(word, Written { epoch, at, lane: Some(lane as u8) });
            }
        }
        self.range = Some(self.range.map_or(range, |(from, to)| (from.min(range.0), to.max(range.1))));
        race
    }
}

impl Read {
    /// A lane that writes what another one has read: both.
    fn meets(&self, lanes: u32, addresses: &[u64; 32], bytes: u64) -> Option<(u32, u32)> {
        // Mostly every lane writes what it has read itself.
        if self.bytes == bytes && self.lanes == lanes && self.addresses == *addresses && self.is_apart() {
            return None;
        }
        for lane in (0..32).filter(|lane| lanes >> lane & 1 == 1) {
            let mut others = 0;
            for other in 0..32 {
                let inside = addresses[lane] < self.addresses[other] + self.bytes
                    && self.addresses[other] < addresses[lane] + bytes;
                others |= u32::from(inside) << other;
            }
            let others = others & self.lanes & !(1 << lane);
            if others != 0 {
                return Some((lane as u32, others.trailing_zeros()));
            }
        }
        None
    }

    /// Whether the lanes' addresses ascend, so that no two read the same.
    fn is_apart(&self) -> bool {
        self.addresses
            .windows(2)
            .all(|pair| pair[1].wrapping_sub(pair[0]).wrapping_sub(self.bytes) >> 63 == 0)
    }
}

fn meet(a: (u64, u64), b: (u64, u64)) -> bool {
    a.0 < b.1 && b.0 < a.1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(first: u64, step: u64) -> [u64; 32] {
        std::array::from_fn(|lane| first + lane as u64 * step)
    }

    #[test]
    fn lanes_race_until_they_are_ordered() {
        let mut log = GlobalLanes::default();
        let mut access = |first: u64, write| {
            log.access(u32::MAX, &addresses(first, 4), 4, write, 7)
                .map(|(race, at)| (race.lane, race.other, race.wrote, at))
        };
        assert_eq!(access(4096, true), None);
        assert_eq!(access(4096, false), None, "each its own");
        assert_eq!(access(4100, false), Some((0, 1, true, 4100)));
        assert_eq!(access(4096 + 128, false), None, "but for the neighbours'");
        assert_eq!(access(4096 + 124, true), Some((1, 0, false, 4096 + 128)));
        log.settle();
        assert!(log.access(u32::MAX, &addresses(4100, 4), 4, false, 8).is_none());
        assert!(
            log.access(u32::MAX, &addresses(4096, 4), 4, true, 9).is_some(),
            "a write of what others have read"
        );
    }

    #[test]
    fn lanes_that_write_after_each_other_race() {
        let mut log = GlobalLanes::default();
        assert!(log.access(u32::MAX, &addresses(4096, 8), 8, true, 1).is_none());
        assert!(log.access(u32::MAX, &addresses(4096, 8), 8, true, 2).is_none());
        let (race, at) = log.access(1, &addresses(4096 + 16, 8), 4, true, 3).unwrap();
        assert_eq!((race.lane, race.other, race.at, at), (0, 2, 2, 4096 + 16));
        // Parts of a word are not followed.
        log.settle();
        assert!(log.access(u32::MAX, &addresses(4096, 2), 2, true, 4).is_none());
        assert!(log.access(u32::MAX, &addresses(4096, 4), 4, false, 5).is_none());
    }
}
