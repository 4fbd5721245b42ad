//! Races in global memory between the lanes of a warp.
//!
//! As in shared memory, the lanes need not run in step. Of what they have done since they were last ordered, the last instructions are kept.

use super::lanes::LaneRace;

/// Reads that are kept, and writes: a bit of a mask each.
const MOST: usize = 32;

/// What lanes have done by one instruction.
#[derive(Clone, Debug)]
struct Access {
    lanes: u32,
    addresses: [u64; 32],
    bytes: u64,
    /// All of it is from here to there.
    range: (u64, u64),
    /// The distance between all neighbours, if there is one.
    stride: Option<i64>,
    at: u32,
}

/// The last accesses of a kind. Their ranges stand together, so that those that are near another are found at once.
#[derive(Debug)]
struct Kept {
    first: [u64; MOST],
    end: [u64; MOST],
    accesses: Vec<Access>,
    /// Where the next one goes.
    next: usize,
}

impl Default for Kept {
    fn default() -> Self {
        Self { first: [u64::MAX; MOST], end: [0; MOST], accesses: Vec::new(), next: 0 }
    }
}

impl Kept {
    fn clear(&mut self) {
        if !self.accesses.is_empty() {
            (self.first, self.end, self.next) = ([u64::MAX; MOST], [0; MOST], 0);
            self.accesses.clear();
        }
    }

    #[inline(always)]
    fn push(&mut self, access: Access) {
        (self.first[self.next], self.end[self.next]) = access.range;
        match self.accesses.get_mut(self.next) {
            Some(old) => *old = access,
            None => self.accesses.push(access),
        }
        self.next = (self.next + 1) % MOST;
    }

    /// The accesses whose range meets another, the last ones first.
    #[inline(always)]
    fn near(&self, (first, end): (u64, u64)) -> impl Iterator<Item = &Access> {
        let mut near = 0u32;
        for index in 0..MOST {
            near |= u32::from((self.first[index] < end) & (first < self.end[index])) << index;
        }
        // The last one comes to stand highest.
        let mut rest = near.rotate_right(self.next as u32);
        std::iter::from_fn(move || {
            let highest = rest.checked_ilog2()?;
            rest &= !(1 << highest);
            self.accesses.get((highest as usize + self.next) % MOST)
        })
    }
}

/// What the lanes of a warp have done to global memory since they were last ordered.
#[derive(Debug, Default)]
pub(crate) struct GlobalLanes {
    /// Absent until there is one.
    kept: Option<Box<Both>>,
}

#[derive(Debug, Default)]
struct Both {
    reads: Kept,
    writes: Kept,
}

impl GlobalLanes {
    /// All lanes are ordered.
    #[inline(always)]
    pub(crate) fn settle(&mut self) {
        if let Some(kept) = &mut self.kept {
            kept.reads.clear();
            kept.writes.clear();
        }
    }

    /// Notes what lanes read or write by one instruction: a race comes with the address.
    #[inline(always)]
    pub(crate) fn access(
        &mut self,
        lanes: u32,
        addresses: &[u64; 32],
        bytes: u32,
        write: bool,
        at: u32,
    ) -> Option<(LaneRace, u64)> {
        let kept = self.kept.get_or_insert_default();
        let own = Access::new(lanes, addresses, bytes.into(), at);
        let mut race = own.races_with(&kept.writes, true);
        if write && race.is_none() {
            race = own.races_with(&kept.reads, false);
        }
        if write { &mut kept.writes } else { &mut kept.reads }.push(own);
        race
    }
}

impl Access {
    #[inline(always)]
    fn new(lanes: u32, addresses: &[u64; 32], bytes: u64, at: u32) -> Self {
        let (first, last) = limits(lanes, addresses);
        let stride = addresses[1].wrapping_sub(addresses[0]);
        let mut even = true;
        for lane in 2..32 {
            even &= addresses[lane].wrapping_sub(addresses[lane - 1]) == stride;
        }
        let stride = (even && lanes == u32::MAX).then_some(stride.cast_signed());
        Self { lanes, addresses: *addresses, bytes, range: (first, last + bytes), stride, at }
    }

    #[inline(always)]
    fn races_with(&self, others: &Kept, wrote: bool) -> Option<(LaneRace, u64)> {
        others.near(self.range).find_map(|other| {
            let (lane, meets) = self.meets(other)?;
            let race = LaneRace { lane, other: meets, offset: 0, wrote, at: other.at };
            Some((race, self.addresses[lane as usize]))
        })
    }

    /// Two different lanes that touch the same bytes, if there are such: the one here, and the other.
    #[inline(always)]
    fn meets(&self, other: &Self) -> Option<(u32, u32)> {
        if let (Some(stride), Some(same)) = (self.stride, other.stride)
            && stride == same
            && stride != 0
        {
            // Lanes that are `n` apart meet if `n` strides are what the two are apart, but for less than their bytes.
            let apart = self.addresses[0].wrapping_sub(other.addresses[0]).cast_signed();
            let near = |n: i64| {
                let rest = i128::from(apart) - i128::from(n) * i128::from(stride);
                n != 0 && n.abs() < 32 && rest < i128::from(other.bytes) && -rest < i128::from(self.bytes)
            };
            let n = apart / stride;
            if !(n - 1..=n + 1).any(near) {
                return None;
            }
        }
        let start = self.range.0.min(other.range.0);
        let span = self.range.1.max(other.range.1) - start;
        if span > u64::from(u32::MAX) {
            return self.meets_far(other);
        }
        // From the first byte of both on, 32 bits do. Two touch if the other begins less than its own bytes before and less than these bytes
        // behind.
        let (mut here, mut there) = ([0u32; 32], [0u32; 32]);
        for lane in 0..32 {
            here[lane] = self.addresses[lane].wrapping_sub(start) as u32;
            there[lane] = other.addresses[lane].wrapping_sub(start) as u32;
        }
        let (before, both) = (other.bytes as u32 - 1, (self.bytes + other.bytes) as u32 - 1);
        for lane in (0..32).filter(|lane| self.lanes >> lane & 1 == 1) {
            let mut others = 0;
            for (index, there) in there.iter().enumerate() {
                let touches = there.wrapping_sub(here[lane]).wrapping_add(before) < both;
                others |= u32::from(touches) << index;
            }
            let others = others & other.lanes & !(1 << lane);
            if others != 0 {
                return Some((lane as u32, others.trailing_zeros()));
            }
        }
        None
    }

    /// The same of lanes that are far apart.
    #[cold]
    fn meets_far(&self, other: &Self) -> Option<(u32, u32)> {
        for lane in (0..32).filter(|lane| self.lanes >> lane & 1 == 1) {
            let mut others = 0;
            for (index, address) in other.addresses.iter().enumerate() {
                let inside = self.addresses[lane] < address.wrapping_add(other.bytes)
                    && *address < self.addresses[lane] + self.bytes;
                others |= u32::from(inside) << index;
            }
            let others = others & other.lanes & !(1 << lane);
            if others != 0 {
                return Some((lane as u32, others.trailing_zeros()));
            }
        }
        None
    }
}

/// The lowest and the highest of the lanes' addresses.
#[inline(always)]
fn limits(lanes: u32, addresses: &[u64; 32]) -> (u64, u64) {
    let high = addresses[0] >> 32 << 32;
    if lanes != 0 && addresses.iter().fold(0, |apart, address| apart | (address ^ high) >> 32) == 0 {
        // Mostly they differ in the lower halves only, which vector instructions compare.
        let (mut first, mut last) = (u32::MAX, 0);
        for (lane, &address) in addresses.iter().enumerate() {
            let (low, on) = (address as u32, lanes >> lane & 1 == 1);
            first = first.min(if on { low } else { u32::MAX });
            last = last.max(if on { low } else { 0 });
        }
        return (high | u64::from(first), high | u64::from(last));
    }
    let (mut first, mut last) = (u64::MAX, 0);
    for (lane, &address) in addresses.iter().enumerate() {
        let on = lanes >> lane & 1 == 1;
        first = first.min(if on { address } else { u64::MAX });
        last = last.max(if on { address } else { 0 });
    }
    (first, last)
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
        assert_eq!(access(4096 + 124, true), Some((0, 31, true, 4096 + 124)));
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
        log.settle();
        assert!(log.access(u32::MAX, &addresses(4096, 2), 2, true, 4).is_none());
        assert!(log.access(u32::MAX, &addresses(4096, 4), 4, false, 5).is_some());
    }

    #[test]
    fn rows_of_lanes_are_apart_and_their_columns_meet_only_in_one_lane() {
        let mut log = GlobalLanes::default();
        for column in 0..30 {
            assert!(log.access(u32::MAX, &addresses(4096 + 4 * column, 400), 4, true, 1).is_none());
        }
        assert!(
            log.access(u32::MAX, &addresses(4096 + 400 + 116, 400), 4, false, 2).is_some(),
            "the next lane's"
        );
        assert!(log.access(u32::MAX, &addresses(4096 + 398, 400), 4, false, 2).is_some(), "in part");
    }

    #[test]
    fn the_last_accesses_are_kept_and_the_latest_is_told_of() {
        let mut log = GlobalLanes::default();
        for at in 0..40 {
            assert!(log.access(1, &addresses(4096 + 64 * u64::from(at), 0), 8, true, at).is_none());
        }
        let mut read =
            |number: u64, bytes| log.access(2, &addresses(4096 + 64 * number, 0), bytes, false, 99);
        for number in 0..40u32 {
            let race = read(number.into(), 8).map(|(race, _)| (race.lane, race.other, race.at));
            assert_eq!(race, (number >= 8).then_some((1, 0, number)), "32 of 40 are kept");
        }
        assert_eq!(read(30, 64 * 5).map(|(race, _)| race.at), Some(34), "the latest of several");
    }

    #[test]
    fn limits_are_those_of_the_lanes_that_are_on() {
        let mut all = addresses(7 << 32, 48);
        for far in [false, true] {
            if far {
                all[9] = 1 << 50;
            }
            for lanes in [u32::MAX, 0b1010_0100, 1 << 31, 1 << 9, 1] {
                let on = || (0..32).filter(|lane| lanes >> lane & 1 == 1).map(|lane| all[lane]);
                assert_eq!(limits(lanes, &all), (on().min().unwrap(), on().max().unwrap()));
            }
            assert_eq!(limits(0, &all), (u64::MAX, 0));
        }
    }

    #[test]
    fn lanes_that_are_far_apart_meet_as_near_ones_do() {
        let mut log = GlobalLanes::default();
        for (far, distance) in [(false, 1u64 << 20), (true, 1 << 40)] {
            log.settle();
            let mut first = addresses(4096, 16);
            first[7] += distance;
            assert!(log.access(u32::MAX, &first, 16, true, 1).is_none());
            let mut second = addresses(1 << 60, 16);
            second[9] = first[7] + 15;
            let lanes = 1 << 9;
            let race = log.access(lanes, &second, 1, false, 2).map(|(race, at)| (race.lane, race.other, at));
            assert_eq!(race, Some((9, 7, first[7] + 15)), "far: {far}");
            second[9] = first[7] + 16;
            assert!(log.access(lanes, &second, 1, false, 3).is_none(), "far: {far}");
            second[9] = first[7] - 1;
            assert!(log.access(lanes, &second, 1, false, 3).is_none(), "far: {far}");
            assert!(log.access(lanes, &second, 2, false, 3).is_some(), "far: {far}");
        }
    }
}
