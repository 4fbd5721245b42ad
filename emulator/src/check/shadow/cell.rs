//! One granule's last write, and the reads since.

use super::{Access, Conflict};
use crate::check::order;

/// The state of some bytes.
#[derive(Clone, Copy, Default)]
pub(super) struct Cell {
    pub(super) written_at: u32,
    pub(super) write_stamp: u32,
    pub(super) read_at: u32,
    pub(super) read_stamp: u32,
    pub(super) readers: u32,
    /// Warps of the block whose atomic writes the last one, atomic too, is not ordered behind, and the oldest stamp of these.
    pub(super) atomics: u32,
    pub(super) atomic_stamp: u32,
    /// The last plain write, where atomic ones have followed it.
    pub(super) plain_at: u32,
    pub(super) plain_stamp: u32,
    pub(super) plain: order::Actor,
    pub(super) written_bytes: u16,
    pub(super) read_bytes: u16,
    pub(super) writer: order::Actor,
    pub(super) atomic: bool,
    pub(super) pending: bool,
    /// The writer is no warp of this block (the copy engine, or a warp of another block): no barrier of the block settles it.
    pub(super) foreign: bool,
    /// The copy engine or a matrix unit wrote it: no proxy fence is needed before these touch it again.
    pub(super) proxy: bool,
}

/// What became of an access to a cell.
pub(super) enum Outcome {
    Done,
    Split,
    Conflict(Conflict),
}

/// The access at hand, and what its warp knows of the others.
pub(super) struct Actor<'s> {
    pub(super) id: order::Actor,
    /// The first warp of the block whose memory this is.
    pub(super) first: order::Actor,
    /// How many warps it has.
    pub(super) warps: u32,
    pub(super) at: u32,
    pub(super) now: u32,
    /// Accesses of the block's warps before this stamp are ordered before each other.
    pub(super) settled: u32,
    pub(super) seen: &'s [u32],
    /// The access is by an agent that works for the warp: ordinary writes must be behind a proxy fence, as this says.
    pub(super) fenced: Option<&'s [u32]>,
}

impl Actor<'_> {
    #[inline(always)]
    pub(super) fn knows(&self, actor: order::Actor, stamp: u32) -> bool {
        actor == self.id || stamp < self.seen[usize::from(actor)]
    }

    /// The same for a warp of the block, by its number.
    #[inline(always)]
    pub(super) fn knows_warp(&self, warp: u32, stamp: u32) -> bool {
        self.knows(self.first + warp as order::Actor, stamp)
    }

    /// The bit of the warp among those of its block; `None` for a warp of another block.
    #[inline(always)]
    pub(super) fn bit(&self) -> Option<u32> {
        let warp = u32::from(self.id.wrapping_sub(self.first));
        (warp < self.warps).then(|| 1 << warp)
    }

    /// The stamp that settles: nothing is settled for warps of other blocks.
    #[inline(always)]
    fn settled(&self) -> u32 {
        if self.bit().is_some() { self.settled } else { 0 }
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
        Outcome::Conflict(Conflict { actor: self.writer, at: self.written_at, access, unfenced: false })
    }

    /// An agent meets an ordinary write that no proxy fence stands behind.
    #[inline(always)]
    pub(super) fn unfenced(&self, actor: &Actor<'_>) -> Option<Outcome> {
        let fenced = actor.fenced?;
        let hidden =
            !self.proxy && fenced.get(usize::from(self.writer)).is_some_and(|&f| self.write_stamp >= f);
        hidden.then_some(Outcome::Conflict(Conflict {
            actor: self.writer,
            at: self.written_at,
            access: Access::Write,
            unfenced: true,
        }))
    }

    /// Whether the bytes may be read; does not note that they are.
    #[inline(always)]
    pub(super) fn check_read(&self, bytes: u16, actor: &Actor<'_>) -> Outcome {
        if self.written_bytes & bytes == 0 {
            return Outcome::Done;
        }
        if self.pending || !actor.knows(self.writer, self.write_stamp) {
            return self.write_conflict();
        }
        self.unfenced(actor).unwrap_or(Outcome::Done)
    }

    /// The same for a strong read, which may meet atomic operations.
    pub(super) fn check_poll(&self, bytes: u16, actor: &Actor<'_>) -> Outcome {
        if self.atomic && !self.pending {
            return if self.written_bytes & bytes == 0 { Outcome::Done } else { self.check_plain(actor) };
        }
        self.check_read(bytes, actor)
    }

    /// An atomic access must be ordered behind the plain write that others like it have followed.
    fn check_plain(&self, actor: &Actor<'_>) -> Outcome {
        if actor.knows(self.plain, self.plain_stamp) {
            return Outcome::Done;
        }
        let (actor, at) = (self.plain, self.plain_at);
        Outcome::Conflict(Conflict { actor, at, access: Access::Write, unfenced: false })
    }

    #[inline(always)]
    fn read(&mut self, bytes: u16, actor: &Actor<'_>) -> Outcome {
        if let conflict @ Outcome::Conflict(_) = self.check_read(bytes, actor) {
            return conflict;
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
        let warp = bits(self.atomics).find(|&warp| !actor.knows_warp(warp, self.atomic_stamp))?;
        let actor = actor.first + warp as order::Actor;
        Some(Outcome::Conflict(Conflict {
            actor,
            at: self.written_at,
            access: Access::Atomic,
            unfenced: false,
        }))
    }

    /// The atomic writes that one more is not ordered behind, and their oldest stamp.
    fn unordered_atomics(&self, actor: &Actor<'_>) -> (u32, u32) {
        let unknown = |warps: u32, stamp: u32| {
            bits(warps).filter(|&warp| !actor.knows_warp(warp, stamp)).fold(0, |all, warp| all | 1 << warp)
        };
        let before = unknown(self.atomics, self.atomic_stamp);
        // Atomic writes of other blocks' warps are not kept behind later ones.
        let writer = self.writer.wrapping_sub(actor.first);
        let last = if self.foreign { 0 } else { unknown(1 << writer, self.write_stamp) };
        (before | last, if before == 0 { self.write_stamp } else { self.atomic_stamp })
    }

    #[inline(always)]
    fn note_read(&mut self, bytes: u16, actor: &Actor<'_>) -> Outcome {
        // Reads of other blocks' warps are kept beside the cells.
        let Some(own) = actor.bit() else { return Outcome::Done };
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
                if !actor.knows_warp(other, self.read_stamp) {
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
        let write_known = !self.pending && actor.knows(self.writer, self.write_stamp);
        // A plain write may follow atomic ones of other warps that count down to its own before.
        let counted = self.atomic
            && !self.pending
            && access == Access::Write
            && (self.writer == actor.id || actor.bit().is_some_and(|own| self.atomics & own != 0));
        if overlap && !write_known && !both_atomic && !counted {
            return self.write_conflict();
        }
        if overlap && let Some(conflict) = self.unfenced(actor) {
            return conflict;
        }
        if overlap
            && both_atomic
            && let conflict @ Outcome::Conflict(_) = self.check_plain(actor)
        {
            return conflict;
        }
        let mut atomics = (0, 0);
        if both_atomic && self.written_bytes != 0 {
            atomics = self.unordered_atomics(actor);
            if atomics.0 != 0 && self.written_bytes != bytes {
                return Outcome::Split;
            }
        } else if overlap
            && self.atomics != 0
            && !counted
            && let Some(conflict) = self.atomic_conflict(actor)
        {
            return conflict;
        }
        let others = self.readers & !actor.bit().unwrap_or(0);
        if others != 0 && self.read_stamp >= actor.settled() {
            for other in bits(others) {
                if !actor.knows_warp(other, self.read_stamp) {
                    if self.read_bytes & bytes == 0 {
                        return Outcome::Split;
                    }
                    return Outcome::Conflict(Conflict {
                        actor: actor.first + other as order::Actor,
                        at: self.read_at,
                        access: Access::Read,
                        unfenced: false,
                    });
                }
            }
        }
        let same = self.writer == actor.id && self.write_stamp == actor.now;
        let pending = access == Access::Asynchronous;
        let atomic = access == Access::Atomic;
        let rest = self.written_bytes & !bytes;
        if rest == 0 || (self.write_stamp < actor.settled() && !self.pending && !self.foreign) {
            self.written_bytes = bytes;
        } else if same && self.pending == pending && self.atomic == atomic {
            self.written_bytes |= bytes;
        } else {
            return Outcome::Split;
        }
        if self.read_bytes & !bytes == 0 || self.read_stamp < actor.settled() {
            self.readers = 0;
        }
        if !atomic || !overlap && rest == 0 {
            self.plain_stamp = 0;
        } else if overlap && !self.atomic {
            (self.plain, self.plain_stamp, self.plain_at) = (self.writer, self.write_stamp, self.written_at);
        }
        (self.writer, self.write_stamp, self.written_at) = (actor.id, actor.now, actor.at);
        (self.pending, self.atomic) = (pending, atomic);
        (self.foreign, self.proxy) = (actor.bit().is_none(), false);
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
