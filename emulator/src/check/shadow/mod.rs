//! Races in shared memory.
//!
//! Every 16 bytes have a cell with the last write and the reads since. Time is counted in *stamps*: the number of
//! barriers that the block has completed. An access of warp a is ordered before one of warp b if a barrier that both
//! took part in, directly or through others, completed in between: `seen[b][a]` is the stamp up to which b knows what a
//! did. Where warps touch different bytes of a cell without order, it is split into cells of one byte.
//!
//! Most accesses are of whole granules that nobody touched since the last barrier of the whole block. They are decided
//! for up to 64 granules (a *region*) at a time, with a bit for each: which were written since, which each warp read.
//!
//! The lanes of one warp count as one. Where several warps read the same bytes at different times, with only some of
//! the times known to each other, the oldest is kept: a race may go unseen then, but none is made up.

mod cell;

use cell::{Actor, Cell, Outcome, bits};

/// The bytes that a cell stands for.
pub(crate) const GRANULE: u32 = 16;

/// What is done to shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    Write,
    Atomic,
    /// The start of an asynchronous write.
    Asynchronous,
}

/// Two accesses that are not ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Conflict {
    /// The other warp.
    pub(crate) warp: u32,
    /// The index of its instruction.
    pub(crate) at: u32,
    /// What it did.
    pub(crate) access: Access,
}

/// 64 granules.
#[derive(Clone, Copy, Default)]
struct Region {
    /// What the bits below count from: the last barrier of the whole block at that time.
    since: u32,
    /// The warps that have read whole granules; see `reads`.
    readers: u32,
    /// Granules that were written.
    written: u64,
    /// Granules whose cells say more about reads than `reads` does.
    read: u64,
    /// Granules that no barrier settles: written by a copy that was not waited for, or split.
    open: u64,
}

/// A warp's reads of whole granules in a region.
#[derive(Clone, Copy, Default)]
struct Reads {
    granules: u64,
    stamp: u32,
    at: u32,
}

/// The granules of a region.
pub(crate) const REGION: u32 = 64;

/// The shadow of a block's shared memory.
pub(crate) struct Shadow {
    cells: Vec<Cell>,
    /// Cells of one byte, for cells that are split, and where each of those has them.
    splits: Vec<[Cell; 16]>,
    split: std::collections::HashMap<u32, usize>,
    regions: Vec<Region>,
    /// For each region, the reads of each warp.
    reads: Vec<Reads>,
    warps: usize,
    now: u32,
    /// The stamp of the last barrier of the whole block: accesses before it are ordered before everything.
    settled: u32,
    seen: Vec<u32>,
}

impl Shadow {
    /// A shadow of `bytes` bytes, for a block of `warps` warps.
    pub(crate) fn new(bytes: u32, warps: u32) -> Self {
        let warps = warps as usize;
        let regions = bytes.div_ceil(GRANULE * REGION) as usize;
        Self {
            cells: vec![Cell::default(); regions * REGION as usize],
            splits: Vec::new(),
            split: std::collections::HashMap::new(),
            regions: vec![Region::default(); regions],
            reads: vec![Reads::default(); regions * warps],
            warps,
            // Stamp 0 is before everything, so that an untouched cell is always known.
            now: 1,
            settled: 1,
            seen: vec![1; warps * warps],
        }
    }

    /// The region's bits, counted from the last barrier of the whole block.
    #[inline(always)]
    fn region(&mut self, region: usize) -> &mut Region {
        let settled = self.settled;
        let region = &mut self.regions[region];
        if region.since != settled {
            *region = Region { since: settled, written: region.open, open: region.open, ..Region::default() };
        }
        region
    }

    /// Notes an access to whole granules of a region, a bit each. A conflict comes with the granule.
    #[inline(always)]
    pub(crate) fn access_whole(
        &mut self,
        region: u32,
        granules: u64,
        warp: u32,
        access: Access,
        at: u32,
    ) -> Result<(), (u32, Conflict)> {
        let (now, own) = (self.now, 1u32 << warp);
        let index = region as usize;
        let state = *self.region(index);
        let row = index * self.warps;
        if access == Access::Read {
            let reads = &mut self.reads[row + warp as usize];
            let first = state.readers & own == 0;
            if state.written & granules == 0 && (first || reads.stamp == now) {
                *reads = Reads {
                    granules: if first { granules } else { reads.granules | granules },
                    stamp: now,
                    at,
                };
                self.regions[index].readers |= own;
                return Ok(());
            }
        } else if access != Access::Atomic && (state.written | state.read) & granules == 0 {
            let others = state.readers & !own;
            if bits(others).all(|other| self.reads[row + other as usize].granules & granules == 0) {
                let cell = Cell {
                    writer: warp as u8,
                    write_stamp: now,
                    written_at: at,
                    written_bytes: u16::MAX,
                    pending: access == Access::Asynchronous,
                    ..Cell::default()
                };
                let mut rest = granules;
                while rest != 0 {
                    self.cells[index * REGION as usize + rest.trailing_zeros() as usize] = cell;
                    rest &= rest - 1;
                }
                let state = &mut self.regions[index];
                state.written |= granules;
                state.open |= if cell.pending { granules } else { 0 };
                return Ok(());
            }
        }
        self.access_each(region, granules, warp, access, at)
    }

    #[cold]
    fn access_each(
        &mut self,
        region: u32,
        granules: u64,
        warp: u32,
        access: Access,
        at: u32,
    ) -> Result<(), (u32, Conflict)> {
        for granule in (0..REGION).filter(|i| granules >> i & 1 == 1).map(|i| region * REGION + i) {
            self.access(granule, u16::MAX, warp, access, at).map_err(|conflict| (granule, conflict))?;
        }
        Ok(())
    }

    /// Notes an access to some bytes of a granule.
    pub(crate) fn access(
        &mut self,
        granule: u32,
        bytes: u16,
        warp: u32,
        access: Access,
        at: u32,
    ) -> Result<(), Conflict> {
        let (index, bit) = ((granule / REGION) as usize, 1u64 << (granule % REGION));
        let state = *self.region(index);
        let row = warp as usize * self.warps;
        let actor =
            Actor { warp, at, now: self.now, settled: self.settled, seen: &self.seen[row..row + self.warps] };
        if access != Access::Read {
            for other in bits(state.readers & !(1 << warp)) {
                let reads = self.reads[index * self.warps + other as usize];
                if reads.granules & bit != 0 && !actor.knows(other, reads.stamp) {
                    return Err(Conflict { warp: other, at: reads.at, access: Access::Read });
                }
            }
        }
        let cell = &mut self.cells[granule as usize];
        let mut parts = self.split.get(&granule).copied();
        if parts.is_none() {
            match cell.touch(bytes, access, &actor) {
                Outcome::Done => {}
                Outcome::Conflict(conflict) => return Err(conflict),
                Outcome::Split => {
                    parts = Some(self.splits.len());
                    self.split.insert(granule, self.splits.len());
                    self.splits.push(std::array::from_fn(|i| cell.part(i as u32)));
                }
            }
        }
        if let Some(parts) = parts {
            for byte in bits(u32::from(bytes)) {
                // A cell of one byte is never split further: everything that touches it overlaps.
                if let Outcome::Conflict(conflict) =
                    self.splits[parts][byte as usize].touch(1, access, &actor)
                {
                    return Err(conflict);
                }
            }
        }
        let state = &mut self.regions[index];
        if access == Access::Read {
            state.read |= bit;
        } else {
            state.written |= bit;
        }
        if parts.is_some() || access == Access::Asynchronous {
            state.written |= bit;
            state.open |= bit;
        }
        Ok(())
    }

    /// An asynchronous write has been waited for: from now on it is a write of its warp.
    #[inline(always)]
    pub(crate) fn complete(&mut self, granule: u32, bytes: u16) {
        let now = self.now;
        let bit = 1u64 << (granule % REGION);
        let state = self.region((granule / REGION) as usize);
        state.written |= bit;
        let cell = &mut self.cells[granule as usize];
        let mut parts = None;
        if !self.splits.is_empty() {
            parts = self.split.get(&granule).copied();
        }
        if parts.is_none() && cell.pending && cell.written_bytes & !bytes != 0 {
            // Copies to other bytes of the granule may still be on their way.
            parts = Some(self.splits.len());
            self.split.insert(granule, self.splits.len());
            self.splits.push(std::array::from_fn(|i| cell.part(i as u32)));
        }
        let Some(parts) = parts else {
            (cell.pending, cell.write_stamp) = (false, now);
            self.regions[(granule / REGION) as usize].open &= !bit;
            return;
        };
        for byte in bits(u32::from(bytes)) {
            let part = &mut self.splits[parts][byte as usize];
            (part.pending, part.write_stamp) = (false, now);
        }
    }

    /// The stamp of an arrival that does not wait: what the warp does from now on is after it.
    pub(crate) fn arrive(&mut self) -> u32 {
        self.now += 1;
        self.now
    }

    /// A barrier has completed. `arrivals` has each warp that took part, with the stamp of its arrival if it did not
    /// wait; `everyone` says that these are all the warps that still run.
    pub(crate) fn barrier(&mut self, arrivals: &[(u32, Option<u32>)], everyone: bool) {
        self.now += 1;
        let mut joined = vec![0; self.warps];
        for &(warp, stamp) in arrivals {
            let row = &self.seen[warp as usize * self.warps..][..self.warps];
            for (j, &s) in joined.iter_mut().zip(row) {
                *j = s.max(*j);
            }
            let own = &mut joined[warp as usize];
            *own = (*own).max(stamp.unwrap_or(self.now));
        }
        let mut waiting = true;
        for &(warp, stamp) in arrivals {
            waiting &= stamp.is_none();
            if stamp.is_none() {
                self.seen[warp as usize * self.warps..][..self.warps].copy_from_slice(&joined);
            }
        }
        if everyone && waiting {
            self.settled = self.now;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(shadow: &mut Shadow, warps: u32) {
        let arrivals: Vec<_> = (0..warps).map(|w| (w, None)).collect();
        shadow.barrier(&arrivals, true);
    }

    #[test]
    fn a_barrier_orders_and_nothing_else_does() {
        let mut s = Shadow::new(64, 2);
        assert!(s.access(0, 0xffff, 0, Access::Write, 1).is_ok());
        assert!(s.access(0, 0x000f, 0, Access::Read, 2).is_ok());
        let race = s.access(0, 0x000f, 1, Access::Read, 3).unwrap_err();
        assert_eq!(race, Conflict { warp: 0, at: 1, access: Access::Write });
        all(&mut s, 2);
        assert!(s.access(0, 0x000f, 1, Access::Read, 4).is_ok());
        let race = s.access(0, 0xffff, 0, Access::Write, 5).unwrap_err();
        assert_eq!(race, Conflict { warp: 1, at: 4, access: Access::Read });
        all(&mut s, 2);
        assert!(s.access(0, 0xffff, 0, Access::Write, 6).is_ok());
    }

    #[test]
    fn neighbours_in_a_granule_do_not_race() {
        let mut s = Shadow::new(64, 4);
        for warp in 0..4 {
            assert!(s.access(1, 0xf << (4 * warp), warp, Access::Read, 0).is_ok());
            assert!(s.access(1, 0xf << (4 * warp), warp, Access::Write, 1).is_ok());
        }
        assert!(s.access(1, 0x1, 1, Access::Read, 2).is_err());
        all(&mut s, 4);
        assert!(s.access(1, 0xffff, 1, Access::Read, 3).is_ok());
    }

    #[test]
    fn a_barrier_of_some_orders_only_them() {
        let mut s = Shadow::new(16, 3);
        s.access(0, 1, 0, Access::Write, 0).unwrap();
        s.barrier(&[(0, None), (1, None)], false);
        assert!(s.access(0, 1, 1, Access::Read, 1).is_ok());
        assert!(s.access(0, 1, 2, Access::Read, 2).is_err());
        // Order is passed on: 1 and 2 meet, and 2 then knows what 0 did before.
        s.barrier(&[(1, None), (2, None)], false);
        assert!(s.access(0, 1, 2, Access::Read, 3).is_ok());
    }

    #[test]
    fn an_arrival_orders_what_was_before_it_only() {
        let mut s = Shadow::new(32, 2);
        s.access(0, 1, 0, Access::Write, 0).unwrap();
        let stamp = s.arrive();
        s.access(1, 1, 0, Access::Write, 1).unwrap();
        s.barrier(&[(0, Some(stamp)), (1, None)], true);
        assert!(s.access(0, 1, 1, Access::Read, 2).is_ok());
        assert!(s.access(1, 1, 1, Access::Read, 3).is_err());
    }

    #[test]
    fn a_pending_copy_must_not_be_touched_by_anyone() {
        let mut s = Shadow::new(16, 2);
        s.access(0, 0xffff, 0, Access::Asynchronous, 0).unwrap();
        assert_eq!(s.access(0, 1, 0, Access::Read, 1).unwrap_err().access, Access::Asynchronous);
        s.complete(0, 0xffff);
        assert!(s.access(0, 1, 0, Access::Read, 2).is_ok());
        assert!(s.access(0, 1, 1, Access::Read, 3).is_err(), "a wait orders the own warp only");
        all(&mut s, 2);
        assert!(s.access(0, 1, 1, Access::Read, 4).is_ok());
    }

    #[test]
    fn whole_granules_are_checked_like_their_bytes() {
        let mut s = Shadow::new(4096, 3);
        let write = |s: &mut Shadow, warp| s.access_whole(1, 0b110, warp, Access::Write, 7);
        let read = |s: &mut Shadow, warp, granules| s.access_whole(1, granules, warp, Access::Read, 8);
        write(&mut s, 0).unwrap();
        assert_eq!(
            read(&mut s, 1, 0b010).unwrap_err(),
            (65, Conflict { warp: 0, at: 7, access: Access::Write })
        );
        assert!(read(&mut s, 1, 0b001).is_ok() && read(&mut s, 0, 0b100).is_ok());
        all(&mut s, 3);
        assert!(read(&mut s, 1, 0b010).is_ok() && read(&mut s, 2, 0b100).is_ok());
        assert_eq!(write(&mut s, 0).unwrap_err(), (65, Conflict { warp: 1, at: 8, access: Access::Read }));
        assert!(s.access_whole(1, 0b001, 0, Access::Write, 9).is_ok());
        // A single byte conflicts with the read of its granule.
        assert!(s.access(66, 1, 0, Access::Write, 10).is_err());
        assert!(s.access(66, 1, 2, Access::Write, 11).is_ok());
        // Readers that a barrier of some has ordered do not count.
        s.barrier(&[(0, None), (1, None)], false);
        assert!(s.access_whole(1, 0b010, 0, Access::Write, 12).is_ok());
    }

    #[test]
    fn copies_stay_pending_across_barriers() {
        let mut s = Shadow::new(2048, 2);
        s.access_whole(0, 1, 0, Access::Asynchronous, 0).unwrap();
        all(&mut s, 2);
        assert_eq!(s.access_whole(0, 1, 1, Access::Read, 1).unwrap_err().1.access, Access::Asynchronous);
        s.complete(0, u16::MAX);
        assert!(s.access_whole(0, 1, 0, Access::Read, 2).is_ok());
        assert!(s.access_whole(0, 1, 1, Access::Read, 3).is_err());
        all(&mut s, 2);
        assert!(s.access_whole(0, 1, 1, Access::Read, 4).is_ok());
    }

    #[test]
    fn atomics_do_not_race_with_each_other() {
        let mut s = Shadow::new(16, 2);
        s.access(0, 0xf, 0, Access::Atomic, 0).unwrap();
        assert!(s.access(0, 0xf, 1, Access::Atomic, 1).is_ok());
        assert!(s.access(0, 0xf, 0, Access::Read, 2).is_err());
    }
}
