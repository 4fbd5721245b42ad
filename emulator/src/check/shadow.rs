//! Races in shared memory.
//!
//! Every 16 bytes have a cell with the last write and the reads since. Time is counted in *stamps*: the number of
//! barriers that the block has completed. An access of warp a is ordered before one of warp b if a barrier that both
//! took part in, directly or through others, completed in between: `seen[b][a]` is the stamp up to which b knows what a
//! did. Where warps touch different bytes of a cell without order, it is split into cells of one byte.
//!
//! The lanes of one warp count as one. Where several warps read the same bytes at different times, with only some of
//! the times known to each other, the oldest is kept: a race may go unseen then, but none is made up.

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

#[derive(Clone, Copy, Default)]
struct Cell {
    written_at: u32,
    write_stamp: u32,
    read_at: u32,
    read_stamp: u32,
    readers: u32,
    written_bytes: u16,
    read_bytes: u16,
    writer: u8,
    atomic: bool,
    pending: bool,
}

/// The part of a cell that decides most accesses. Kept apart from the rest, so that it stays in the cache.
#[derive(Clone, Copy, Default)]
struct Hot {
    write_stamp: u32,
    read_stamp: u32,
    readers: u32,
    writer: u8,
    flags: u8,
}

/// The write is asynchronous and was not waited for.
const PENDING: u8 = 1;
/// The write was atomic.
const ATOMIC: u8 = 2;
/// The reads were of all bytes.
const READ_WHOLE: u8 = 4;
/// The cell is split.
const SPLIT: u8 = 8;

/// The other part.
#[derive(Clone, Copy, Default)]
struct Cold {
    written_bytes: u16,
    read_bytes: u16,
    /// Index into `splits`, if the cell is split.
    split: u32,
}

enum Outcome {
    Done,
    Split,
    Conflict(Conflict),
}

/// The access at hand, and what its warp knows of the others.
struct Actor<'s> {
    warp: u32,
    at: u32,
    now: u32,
    /// Accesses before this stamp are ordered before everything.
    settled: u32,
    seen: &'s [u32],
}

impl Actor<'_> {
    #[inline(always)]
    fn knows(&self, warp: u32, stamp: u32) -> bool {
        warp == self.warp || stamp < self.seen[warp as usize]
    }
}

impl Cell {
    #[inline(always)]
    fn write_conflict(&self) -> Outcome {
        let access = match (self.pending, self.atomic) {
            (true, _) => Access::Asynchronous,
            (_, true) => Access::Atomic,
            _ => Access::Write,
        };
        Outcome::Conflict(Conflict { warp: u32::from(self.writer), at: self.written_at, access })
    }

    #[inline(always)]
    fn read(&mut self, bytes: u16, actor: &Actor<'_>) -> Outcome {
        if self.written_bytes & bytes != 0
            && (self.pending || !actor.knows(u32::from(self.writer), self.write_stamp))
        {
            return self.write_conflict();
        }
        self.note_read(bytes, actor)
    }

    #[inline(always)]
    fn note_read(&mut self, bytes: u16, actor: &Actor<'_>) -> Outcome {
        let own = 1u32 << actor.warp;
        if self.readers == 0 || self.read_stamp < actor.settled {
            (self.readers, self.read_stamp, self.read_bytes) = (own, actor.now, bytes);
        } else if self.read_stamp == actor.now && (self.read_bytes == bytes || self.readers == own) {
            self.readers |= own;
            self.read_bytes |= bytes;
        } else if self.read_bytes != bytes {
            return Outcome::Split;
        } else {
            // Reads at different times: those that this one is ordered behind need not be kept.
            let mut kept = 0;
            for other in bits(self.readers) {
                if !actor.knows(other, self.read_stamp) {
                    kept |= 1 << other;
                }
            }
            self.readers = kept | own;
            if kept == 0 {
                self.read_stamp = actor.now;
            }
        }
        self.read_at = actor.at;
        Outcome::Done
    }

    #[inline(always)]
    fn write(&mut self, bytes: u16, access: Access, actor: &Actor<'_>) -> Outcome {
        let overlap = self.written_bytes & bytes != 0;
        let both_atomic = self.atomic && access == Access::Atomic;
        let write_known = !self.pending && actor.knows(u32::from(self.writer), self.write_stamp);
        if overlap && !write_known && !both_atomic {
            return self.write_conflict();
        }
        let others = self.readers & !(1 << actor.warp);
        if others != 0 && self.read_stamp >= actor.settled {
            for other in bits(others) {
                if !actor.knows(other, self.read_stamp) {
                    if self.read_bytes & bytes == 0 {
                        return Outcome::Split;
                    }
                    let at = self.read_at;
                    return Outcome::Conflict(Conflict { warp: other, at, access: Access::Read });
                }
            }
        }
        let same = u32::from(self.writer) == actor.warp && self.write_stamp == actor.now;
        let pending = access == Access::Asynchronous;
        let atomic = access == Access::Atomic;
        let rest = self.written_bytes & !bytes;
        if rest == 0 || (self.write_stamp < actor.settled && !self.pending) {
            self.written_bytes = bytes;
        } else if same && self.pending == pending && self.atomic == atomic {
            self.written_bytes |= bytes;
        } else {
            return Outcome::Split;
        }
        if self.read_bytes & !bytes == 0 || self.read_stamp < actor.settled {
            self.readers = 0;
        }
        (self.writer, self.write_stamp, self.written_at) = (actor.warp as u8, actor.now, actor.at);
        (self.pending, self.atomic) = (pending, atomic);
        Outcome::Done
    }

    #[inline(always)]
    fn touch(&mut self, bytes: u16, access: Access, actor: &Actor<'_>) -> Outcome {
        if access == Access::Read { self.read(bytes, actor) } else { self.write(bytes, access, actor) }
    }

    /// The cell of one byte of this one.
    fn part(&self, byte: u32) -> Self {
        let keep = |bytes: u16| bytes >> byte & 1;
        let readers = if keep(self.read_bytes) == 1 { self.readers } else { 0 };
        Self {
            written_bytes: keep(self.written_bytes),
            read_bytes: keep(self.read_bytes),
            readers,
            pending: self.pending && keep(self.written_bytes) == 1,
            ..*self
        }
    }
}

fn bits(mask: u32) -> impl Iterator<Item = u32> {
    let mut rest = mask;
    std::iter::from_fn(move || {
        let bit = rest.trailing_zeros();
        (rest != 0).then(|| {
            rest &= rest - 1;
            bit
        })
    })
}

/// The shadow of a block's shared memory.
pub(crate) struct Shadow {
    hot: Vec<Hot>,
    cold: Vec<Cold>,
    /// The instruction of the last write and of the last read of each cell.
    written_at: Vec<u32>,
    read_at: Vec<u32>,
    splits: Vec<[Cell; 16]>,
    warps: usize,
    now: u32,
    settled: u32,
    seen: Vec<u32>,
}

impl Shadow {
    /// A shadow of `bytes` bytes, for a block of `warps` warps.
    pub(crate) fn new(bytes: u32, warps: u32) -> Self {
        let warps = warps as usize;
        let cells = bytes.div_ceil(GRANULE) as usize;
        Self {
            hot: vec![Hot::default(); cells],
            cold: vec![Cold::default(); cells],
            written_at: vec![0; cells],
            read_at: vec![0; cells],
            splits: Vec::new(),
            warps,
            // Stamp 0 is before everything, so that an untouched cell is always known.
            now: 1,
            settled: 1,
            seen: vec![1; warps * warps],
        }
    }

    fn cell(&self, index: usize) -> Cell {
        let (hot, cold) = (&self.hot[index], &self.cold[index]);
        Cell {
            written_at: self.written_at[index],
            write_stamp: hot.write_stamp,
            read_at: self.read_at[index],
            read_stamp: hot.read_stamp,
            readers: hot.readers,
            written_bytes: cold.written_bytes,
            read_bytes: cold.read_bytes,
            writer: hot.writer,
            atomic: hot.flags & ATOMIC != 0,
            pending: hot.flags & PENDING != 0,
        }
    }

    fn set_cell(&mut self, index: usize, cell: &Cell) {
        let flag = |on: bool, flag: u8| if on { flag } else { 0 };
        self.hot[index] = Hot {
            write_stamp: cell.write_stamp,
            read_stamp: cell.read_stamp,
            readers: cell.readers,
            writer: cell.writer,
            flags: flag(cell.pending, PENDING)
                | flag(cell.atomic, ATOMIC)
                | flag(cell.read_bytes == u16::MAX, READ_WHOLE),
        };
        (self.cold[index].written_bytes, self.cold[index].read_bytes) = (cell.written_bytes, cell.read_bytes);
        (self.written_at[index], self.read_at[index]) = (cell.written_at, cell.read_at);
    }

    /// Notes an access to some bytes of a granule.
    #[inline(always)]
    pub(crate) fn access(
        &mut self,
        granule: u32,
        bytes: u16,
        warp: u32,
        access: Access,
        at: u32,
    ) -> Result<(), Conflict> {
        let index = granule as usize;
        let mut cell = self.cell(index);
        let row = warp as usize * self.warps;
        let actor =
            Actor { warp, at, now: self.now, settled: self.settled, seen: &self.seen[row..row + self.warps] };
        if self.hot[index].flags & SPLIT == 0 {
            match cell.touch(bytes, access, &actor) {
                Outcome::Done => {
                    self.set_cell(index, &cell);
                    return Ok(());
                }
                Outcome::Conflict(conflict) => return Err(conflict),
                Outcome::Split => {
                    self.hot[index].flags |= SPLIT;
                    self.cold[index].split = self.splits.len() as u32;
                    self.splits.push(std::array::from_fn(|i| cell.part(i as u32)));
                }
            }
        }
        Self::access_parts(&mut self.splits[self.cold[index].split as usize], bytes, access, &actor)
    }

    /// [`access`](Self::access) to a whole granule. The common cases are decided here.
    #[inline(always)]
    pub(crate) fn access_whole(
        &mut self,
        granule: u32,
        warp: u32,
        access: Access,
        at: u32,
    ) -> Result<(), Conflict> {
        let (now, settled) = (self.now, self.settled);
        let own = 1u32 << warp;
        let index = granule as usize;
        let cell = &mut self.hot[index];
        let known = cell.write_stamp < settled || u32::from(cell.writer) == warp;
        if cell.flags & (PENDING | SPLIT) == 0 && known {
            if access == Access::Read && cell.read_stamp == now && cell.flags & READ_WHOLE != 0 {
                cell.readers |= own;
                self.read_at[index] = at;
                return Ok(());
            }
            if cell.read_stamp < settled || cell.readers & !own == 0 {
                if access == Access::Read {
                    (cell.readers, cell.read_stamp) = (own, now);
                    cell.flags |= READ_WHOLE;
                    self.cold[index].read_bytes = u16::MAX;
                    self.read_at[index] = at;
                } else {
                    (cell.readers, cell.write_stamp, cell.writer) = (0, now, warp as u8);
                    cell.flags = match access {
                        Access::Asynchronous => PENDING,
                        Access::Atomic => ATOMIC,
                        _ => 0,
                    } | cell.flags & READ_WHOLE;
                    self.cold[index].written_bytes = u16::MAX;
                    self.written_at[index] = at;
                }
                return Ok(());
            }
        }
        self.access_uncommon(granule, warp, access, at)
    }

    #[cold]
    fn access_uncommon(&mut self, granule: u32, warp: u32, access: Access, at: u32) -> Result<(), Conflict> {
        self.access(granule, u16::MAX, warp, access, at)
    }

    #[cold]
    fn access_parts(
        parts: &mut [Cell; 16],
        bytes: u16,
        access: Access,
        actor: &Actor<'_>,
    ) -> Result<(), Conflict> {
        for byte in bits(u32::from(bytes)) {
            // A cell of one byte is never split further: everything that touches it overlaps.
            if let Outcome::Conflict(conflict) = parts[byte as usize].touch(1, access, actor) {
                return Err(conflict);
            }
        }
        Ok(())
    }

    /// An asynchronous write has been waited for: from now on it is a write of its warp.
    #[inline(always)]
    pub(crate) fn complete(&mut self, granule: u32, bytes: u16) {
        let (now, index) = (self.now, granule as usize);
        let cell = &mut self.hot[index];
        if cell.flags & SPLIT == 0 {
            cell.flags &= !PENDING;
            cell.write_stamp = now;
        } else {
            for byte in bits(u32::from(bytes)) {
                let part = &mut self.splits[self.cold[index].split as usize][byte as usize];
                (part.pending, part.write_stamp) = (false, now);
            }
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
    fn atomics_do_not_race_with_each_other() {
        let mut s = Shadow::new(16, 2);
        s.access(0, 0xf, 0, Access::Atomic, 0).unwrap();
        assert!(s.access(0, 0xf, 1, Access::Atomic, 1).is_ok());
        assert!(s.access(0, 0xf, 0, Access::Read, 2).is_err());
    }
}
