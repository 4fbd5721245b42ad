//! Reads that an agent's later write may overtake.
//!
//! A warp reads shared memory through the generic proxy, the copy engine writes it through the async proxy. Order alone, by
//! program or by an mbarrier, does not keep such a write behind the read. There has to be a proxy fence between the two, by the
//! reading thread or by any other on the way from one to the other.
//!
//! Each region has the last read of each granule by each warp of the cluster. Of one warp, a later read stands for an earlier one. Of
//! different warps, each is kept: what a fence covers of one says nothing of another. Only an asynchronous write takes reads
//! away: behind an ordinary write they do no harm, since the fence that this needs covers them, too.
//!
//! Copies write whole granules, so bytes are not told apart.

use super::Who;
use crate::check::order::{self, Memory, Order};

/// A read that an agent's write may overtake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Overtaken {
    /// The warp that has read, when, and at which instruction.
    pub(crate) actor: order::Actor,
    pub(crate) stamp: u32,
    pub(crate) at: u32,
    /// It is ordered before the write, only with no proxy fence in between.
    pub(crate) ordered: bool,
}

/// Reads of granules by a warp at one stamp.
#[derive(Clone, Copy, Debug)]
struct Note {
    granules: u64,
    stamp: u32,
    /// The last instruction that read one of them at that time.
    at: u32,
    actor: order::Actor,
}

/// The reads of a block's shared memory, by regions.
#[derive(Default)]
pub(super) struct Reads {
    /// Oldest first; empty if nobody wants to know.
    regions: Vec<Vec<Note>>,
}

impl Reads {
    /// Reads of so many regions.
    pub(super) fn new(regions: usize) -> Self {
        Self { regions: vec![Vec::new(); regions] }
    }

    /// Notes that a warp reads granules of a region.
    #[inline(always)]
    pub(super) fn note(&mut self, order: &Order, region: u32, granules: u64, who: Who) {
        let Some(notes) = self.regions.get_mut(region as usize) else { return };
        let (actor, stamp) = (who.actor as order::Actor, order.now());
        // Mostly, the warp has just read in the same region.
        match notes.last_mut() {
            Some(last) if (last.actor, last.stamp) == (actor, stamp) => {
                (last.granules, last.at) = (last.granules | granules, who.at);
            }
            _ => replace(notes, Note { granules, stamp, at: who.at, actor }),
        }
    }

    /// An agent that works for a warp is about to write granules of a region. Gives a read that it may overtake, and the granule's number
    /// in the region. Whatever comes of it, the reads are forgotten.
    ///
    /// `is_settled` says whether a barrier of the whole block orders a warp's read of some stamp before what the block's warps do now.
    pub(super) fn take(
        &mut self,
        order: &Order,
        region: u32,
        granules: u64,
        who: Who,
        is_settled: impl Fn(order::Actor, u32) -> bool,
    ) -> Option<(u32, Overtaken)> {
        let notes = self.regions.get_mut(region as usize).filter(|notes| !notes.is_empty())?;
        let mut found = None;
        for note in notes.iter_mut().filter(|note| note.granules & granules != 0) {
            let &mut Note { stamp, at, actor, .. } = note;
            let ordered = order.knows(who.actor, actor, stamp);
            let fenced =
                order.fenced(who.actor, Memory::Shared).get(usize::from(actor)).is_some_and(|&f| stamp < f);
            // A barrier of the whole block also settles what warps did that have exited since: nobody can tell what they fenced.
            let unknown = !ordered && is_settled(actor, stamp);
            if found.is_none() && !unknown && !(ordered && fenced) {
                let granule = (note.granules & granules).trailing_zeros();
                found = Some((granule, Overtaken { actor, stamp, at, ordered }));
            }
            note.granules &= !granules;
        }
        notes.retain(|note| note.granules != 0);
        found
    }
}

/// Adds a note in the place of older ones of the same warp.
fn replace(notes: &mut Vec<Note>, new: Note) {
    for note in notes.iter_mut().filter(|note| note.actor == new.actor) {
        if note.stamp == new.stamp {
            (note.granules, note.at) = (note.granules | new.granules, new.at);
            return;
        }
        note.granules &= !new.granules;
    }
    notes.retain(|note| note.granules != 0);
    notes.push(new);
}
