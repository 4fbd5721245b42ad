//! Bytes that agents read, from the instruction that starts them to the one that waits for them.

use super::{GRANULE, REGION, Who, granules};

/// Names a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lock(u32);

struct Entry {
    ranges: Vec<(u32, u32)>,
    who: Who,
    what: &'static str,
}

/// The locks of a block.
pub(super) struct Locks {
    entries: Vec<Option<Entry>>,
    /// How many locks reach into each region.
    counts: Vec<u32>,
}

impl Locks {
    pub(super) fn new(regions: usize) -> Self {
        Self { entries: Vec::new(), counts: vec![0; regions] }
    }

    /// Whether some lock reaches into a region.
    #[inline(always)]
    pub(super) fn any(&self, region: usize) -> bool {
        self.counts[region] != 0
    }

    fn count(&mut self, ranges: &[(u32, u32)], step: impl Fn(u32) -> u32) {
        for &(offset, bytes) in ranges.iter().filter(|(_, bytes)| *bytes != 0) {
            let region = |offset| (offset / (GRANULE * REGION)) as usize;
            for count in &mut self.counts[region(offset)..=region(offset + bytes - 1)] {
                *count = step(*count);
            }
        }
    }

    pub(super) fn add(&mut self, ranges: &[(u32, u32)], who: Who, what: &'static str) -> Lock {
        self.count(ranges, |count| count + 1);
        let entry = Entry { ranges: ranges.to_vec(), who, what };
        let free = self.entries.iter().position(Option::is_none);
        let index = free.unwrap_or(self.entries.len());
        match free {
            Some(index) => self.entries[index] = Some(entry),
            None => self.entries.push(Some(entry)),
        }
        Lock(index as u32)
    }

    pub(super) fn remove(&mut self, lock: Lock) -> Option<(Vec<(u32, u32)>, Who)> {
        let entry = self.entries.get_mut(lock.0 as usize)?.take()?;
        self.count(&entry.ranges, |count| count - 1);
        Some((entry.ranges, entry.who))
    }

    /// The lock on some bytes of a granule.
    pub(super) fn find(&self, granule: u32, bytes: u16) -> Option<(Who, &'static str)> {
        let holds = |&(offset, length): &(u32, u32)| {
            let end = offset + length;
            (offset < (granule + 1) * GRANULE && granule * GRANULE < end)
                && granules(offset, length).any(|(g, b)| g == granule && b & bytes != 0)
        };
        self.entries.iter().flatten().find(|e| e.ranges.iter().any(holds)).map(|e| (e.who, e.what))
    }
}
