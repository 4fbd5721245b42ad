//! One granule's last write, and the reads since.

use super::{Access, Conflict};

/// The state of some bytes.
#[derive(Clone, Copy, Default)]
pub(super) struct Cell {
    pub(super) written_at: u32,
    pub(super) write_stamp: u32,
    pub(super) read_at: u32,
    pub(super) read_stamp: u32,
    pub(super) readers: u32,
    /// Warps whose atomic writes the last one, atomic too, is not ordered behind, and the oldest stamp of these.
    pub(super) atomics: u32,
    pub(super) atomic_stamp: u32,
    pub(super) written_bytes: u16,
    pub(super) read_bytes: u16,
    pub(super) writer: u8,
    pub(super) atomic: bool,
    pub(super) pending: bool,
}

/// What became of an access to a cell.
pub(super) enum Outcome {
    Done,
    Split,
    Conflict(Conflict),
}

/// The access at hand, and what its warp knows of the others.
pub(super) struct Actor<'s> {
    pub(super) warp: u32,
    pub(super) at: u32,
    pub(super) now: u32,
    /// Accesses before this stamp are ordered before everything.
    pub(super) settled: u32,
    pub(super) seen: &'s [u32],
}

impl Actor<'_> {
    #[inline(always)]
    pub(super) fn knows(&self, warp: u32, stamp: u32) -> bool {
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
        if self.atomics != 0
            && self.written_bytes & bytes != 0
            && let Some(conflict) = self.atomic_conflict(actor)
        {
            return conflict;
        }
        self.note_read(bytes, actor)
    }

    /// With an atomic write before the last one.
    #[cold]
    fn atomic_conflict(&self, actor: &Actor<'_>) -> Option<Outcome> {
        let warp = bits(self.atomics).find(|&warp| !actor.knows(warp, self.atomic_stamp))?;
        Some(Outcome::Conflict(Conflict { warp, at: self.written_at, access: Access::Atomic }))
    }

    /// The atomic writes that one more is not ordered behind, and their oldest stamp.
    fn unordered_atomics(&self, actor: &Actor<'_>) -> (u32, u32) {
        let unknown = |warps: u32, stamp: u32| {
            bits(warps).filter(|&warp| !actor.knows(warp, stamp)).fold(0, |all, warp| all | 1 << warp)
        };
        let before = unknown(self.atomics, self.atomic_stamp);
        let last = unknown(1 << self.writer, self.write_stamp);
        (before | last, if before == 0 { self.write_stamp } else { self.atomic_stamp })
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
        let mut atomics = (0, 0);
        if both_atomic && self.written_bytes != 0 {
            atomics = self.unordered_atomics(actor);
            if atomics.0 != 0 && self.written_bytes != bytes {
                return Outcome::Split;
            }
        } else if overlap
            && self.atomics != 0
            && let Some(conflict) = self.atomic_conflict(actor)
        {
            return conflict;
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
        (self.atomics, self.atomic_stamp) = atomics;
        Outcome::Done
    }

    #[inline(always)]
    pub(super) fn touch(&mut self, bytes: u16, access: Access, actor: &Actor<'_>) -> Outcome {
        if access == Access::Read { self.read(bytes, actor) } else { self.write(bytes, access, actor) }
    }

    /// The cell of one byte of this one.
    pub(super) fn part(&self, byte: u32) -> Self {
        let keep = |bytes: u16| bytes >> byte & 1;
        let readers = if keep(self.read_bytes) == 1 { self.readers } else { 0 };
        Self {
            written_bytes: keep(self.written_bytes),
            read_bytes: keep(self.read_bytes),
            readers,
            atomics: if keep(self.written_bytes) == 1 { self.atomics } else { 0 },
            pending: self.pending && keep(self.written_bytes) == 1,
            ..*self
        }
    }
}

/// The positions of the bits that are set.
pub(super) fn bits(mask: u32) -> impl Iterator<Item = u32> {
    let mut rest = mask;
    std::iter::from_fn(move || {
        let bit = rest.trailing_zeros();
        (rest != 0).then(|| {
            rest &= rest - 1;
            bit
        })
    })
}
