//! Sets of granules of shared memory: those that lanes touch together, and those that a warp has touched.

use super::shadow::{GRANULE, REGION};

/// The granules that lanes touch as a whole, an aligned one each: in the order of the lanes, with a bit for each granule of a region.
/// Neighbouring lanes in one region are one part.
pub(crate) struct Rows {
    count: usize,
    regions: [u32; 32],
    granules: [u64; 32],
}

impl Rows {
    #[inline(always)]
    pub(crate) fn new(lanes: u32, offset: impl Fn(usize) -> u32) -> Self {
        const BYTES: u32 = GRANULE * REGION;
        let mut rows = Self { count: 0, regions: [0; 32], granules: [0; 32] };
        if lanes == u32::MAX {
            // Mostly all lanes are in one region.
            let (first, mut apart, mut granules) = (offset(0) / BYTES, 0, 0);
            for lane in 0..32 {
                apart |= (offset(lane) / BYTES) ^ first;
                granules |= 1u64 << (offset(lane) / GRANULE % REGION);
            }
            if apart == 0 {
                rows.push(first, granules);
                return rows;
            }
        }
        let (mut region, mut granules) = (0, 0u64);
        for lane in 0..32 {
            if lanes >> lane & 1 == 0 {
                continue;
            }
            let granule = offset(lane) / GRANULE;
            if granule / REGION != region && granules != 0 {
                rows.push(region, granules);
                granules = 0;
            }
            region = granule / REGION;
            granules |= 1 << (granule % REGION);
        }
        if granules != 0 {
            rows.push(region, granules);
        }
        rows
    }

    #[inline(always)]
    fn push(&mut self, region: u32, granules: u64) {
        // There are no more parts than lanes.
        (self.regions[self.count % 32], self.granules[self.count % 32]) = (region, granules);
        self.count += 1;
    }

    /// The regions, and the granules of each.
    #[inline(always)]
    pub(crate) fn parts(&self) -> impl Iterator<Item = (u32, u64)> {
        self.regions.iter().copied().zip(self.granules).take(self.count)
    }
}

/// A bit for each granule of shared memory, in a word for each region.
#[derive(Debug, Default)]
pub(super) struct Granules {
    bits: Vec<u64>,
    /// The words that have bits set are among those from here to there.
    first: usize,
    end: usize,
}

impl Granules {
    /// Calls with each word of bits that lanes touch, until it says that this is enough. Neighbouring lanes mostly share a word
    /// and one call.
    #[inline(always)]
    fn words(
        lanes: u32,
        offset: impl Fn(usize) -> u32,
        bytes: u32,
        mut each: impl FnMut(usize, u64) -> bool,
    ) -> bool {
        let (mut word, mut mask) = (0, 0u64);
        for lane in (0..32).filter(|lane| lanes >> lane & 1 == 1) {
            let first = offset(lane);
            for granule in first / GRANULE..=(first + bytes - 1) / GRANULE {
                let here = (granule / REGION) as usize;
                if here != word {
                    if mask != 0 && each(word, mask) {
                        return true;
                    }
                    (word, mask) = (here, 0);
                }
                mask |= 1 << (granule % REGION);
            }
        }
        mask != 0 && each(word, mask)
    }

    #[inline(always)]
    fn set_word(&mut self, word: usize, mask: u64) {
        if word >= self.bits.len() {
            self.bits.resize(word + 64, 0);
        }
        self.bits[word] |= mask;
        (self.first, self.end) =
            if self.end == 0 { (word, word + 1) } else { (self.first.min(word), self.end.max(word + 1)) };
    }

    /// Adds what lanes touch.
    #[inline(always)]
    pub(super) fn set(&mut self, lanes: u32, offsets: &[u32; 32], bytes: u32) {
        Self::words(
            lanes,
            |lane| offsets[lane],
            bytes,
            |word, mask| {
                self.set_word(word, mask);
                false
            },
        );
    }

    /// Adds rows.
    #[inline(always)]
    pub(super) fn set_rows(&mut self, rows: &Rows) {
        rows.parts().for_each(|(region, granules)| self.set_word(region as usize, granules));
    }

    /// Whether lanes touch a granule that is in the set.
    #[inline(always)]
    pub(super) fn meets(&self, lanes: u32, addresses: &[u64; 32], bytes: u32) -> bool {
        if self.end == 0 {
            return false;
        }
        let (mut first, mut last) = (u32::MAX, 0);
        for (lane, &address) in addresses.iter().enumerate() {
            let (offset, on) = (address as u32, lanes >> lane & 1 == 1);
            first = first.min(if on { offset } else { u32::MAX });
            last = last.max(if on { offset } else { 0 });
        }
        let word = |offset: u32| (offset / GRANULE / REGION) as usize;
        if word(first) >= self.end || word(last.saturating_add(bytes - 1)) < self.first {
            return false;
        }
        Self::words(lanes, |lane| addresses[lane] as u32, bytes, |word, mask| self.has(word, mask))
    }

    /// Whether rows have a granule that is in the set.
    #[inline(always)]
    pub(super) fn meets_rows(&self, rows: &Rows) -> bool {
        self.end != 0 && rows.parts().any(|(region, granules)| self.has(region as usize, granules))
    }

    #[inline(always)]
    fn has(&self, word: usize, mask: u64) -> bool {
        self.bits.get(word).is_some_and(|bits| bits & mask != 0)
    }

    pub(super) fn clear(&mut self) {
        if self.end != 0 {
            self.bits[self.first..self.end].fill(0);
            (self.first, self.end) = (0, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(lanes: u32, offset: impl Fn(u32) -> u32) -> Vec<(u32, u64)> {
        Rows::new(lanes, |lane| offset(lane as u32)).parts().collect()
    }

    #[test]
    fn neighbouring_lanes_in_one_region_are_one_part() {
        assert_eq!(parts(u32::MAX, |lane| 2048 + 16 * lane), [(2, 0xffff_ffff)]);
        assert_eq!(parts(u32::MAX, |lane| 2048 + 32 * lane), [(2, 0x5555_5555_5555_5555)]);
        assert_eq!(parts(u32::MAX, |_| 1008), [(0, 1 << 63)]);
        let halves = u64::from(u16::MAX);
        assert_eq!(parts(u32::MAX, |lane| 1024 - 256 + 16 * lane), [(0, halves << 48), (1, halves)]);
        // To and fro.
        let there = |lane| 1024 * (lane / 8 % 2) + 16 * lane;
        assert_eq!(parts(u32::MAX, there), [(0, 0xff), (1, 0xff00), (0, 0xff_0000), (1, 0xff00_0000)]);
        assert_eq!(parts(0x0101_0101, there), [(0, 1), (1, 1 << 8), (0, 1 << 16), (1, 1 << 24)]);
        let apart: Vec<_> = (0..32).map(|lane| (3 * lane, 1)).collect();
        assert_eq!(parts(u32::MAX, |lane| 3072 * lane), apart);
        assert_eq!(parts(0, |_| 0), []);
    }

    #[test]
    fn rows_are_in_a_set_as_their_bytes_are() {
        let mut state = 1u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as u32
        };
        for round in 0..2000u32 {
            let (mut by_rows, mut by_bytes) = (Granules::default(), Granules::default());
            let spread = 64 << (round % 8);
            let mut draw = || -> (u32, [u32; 32]) {
                (next() | next() << 16, std::array::from_fn(|_| next() % spread * 16))
            };
            let ((lanes, offsets), (others, there)) = (draw(), draw());
            by_rows.set_rows(&Rows::new(lanes, |lane| offsets[lane]));
            by_bytes.set(lanes, &offsets, 16);
            assert_eq!((by_rows.first, by_rows.end), (by_bytes.first, by_bytes.end));
            assert_eq!(by_rows.bits, by_bytes.bits);
            let meets = by_rows.meets_rows(&Rows::new(others, |lane| there[lane]));
            assert_eq!(meets, by_bytes.meets(others, &there.map(u64::from), 16));
            by_rows.clear();
            assert!(by_rows.bits.iter().all(|&bits| bits == 0));
        }
    }
}
