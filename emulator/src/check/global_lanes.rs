//! Races in global memory between the lanes of a warp.
//!
//! As in shared memory, the lanes need not run in step. Of what they have done since they were last ordered, the last instructions are kept.

use std::collections::VecDeque;

use super::lanes::LaneRace;

/// Reads that are kept, and writes.
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

/// What the lanes of a warp have done to global memory since they were last ordered.
#[derive(Debug, Default)]
pub(crate) struct GlobalLanes {
    reads: VecDeque<Access>,
    writes: VecDeque<Access>,
}

impl GlobalLanes {
    /// All lanes are ordered.
    #[inline(always)]
    pub(crate) fn settle(&mut self) {
        self.reads.clear();
        self.writes.clear();
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
        let own = Access::new(lanes, addresses, bytes.into(), at);
        let mut race = own.races_with(&self.writes, true);
        if write && race.is_none() {
            race = own.races_with(&self.reads, false);
        }
        let list = if write { &mut self.writes } else { &mut self.reads };
        if list.len() == MOST {
            list.pop_front();
        }
        list.push_back(own);
        race
    }
}

impl Access {
    #[inline(always)]
    fn new(lanes: u32, addresses: &[u64; 32], bytes: u64, at: u32) -> Self {
        let (mut first, mut last) = (u64::MAX, 0);
        for (lane, &address) in addresses.iter().enumerate() {
            let on = lanes >> lane & 1 == 1;
            first = first.min(if on { address } else { u64::MAX });
            last = last.max(if on { address } else { 0 });
        }
        let stride = addresses[1].wrapping_sub(addresses[0]);
        let mut even = true;
        for lane in 2..32 {
            even &= addresses[lane].wrapping_sub(addresses[lane - 1]) == stride;
        }
        let stride = (even && lanes == u32::MAX).then_some(stride.cast_signed());
        Self { lanes, addresses: *addresses, bytes, range: (first, last + bytes), stride, at }
    }

    #[inline(always)]
    fn races_with(&self, others: &VecDeque<Self>, wrote: bool) -> Option<(LaneRace, u64)> {
        others
            .iter()
            .rev()
            .filter(|other| other.range.0 < self.range.1 && self.range.0 < other.range.1)
            .find_map(|other| {
                let (lane, meets) = self.meets(other)?;
                let race = LaneRace { lane, other: meets, offset: 0, wrote, at: other.at };
                Some((race, self.addresses[lane as usize]))
            })
    }

    /// Two different lanes that touch the same bytes, if there are such: the one here, and the other.
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
}
