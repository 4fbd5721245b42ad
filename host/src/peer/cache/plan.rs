//! A step's plan, which is committed once its copies are under way, or else undone.

use super::place::rows_of;
use super::{Draft, NONE, Noted, RowCache};
use crate::device::cpu::out_of_memory;
use crate::error::Result;

/// A row that is to be copied to a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Load {
    /// The row.
    pub row: u32,
    /// The slot that it is copied to.
    pub slot: u32,
    /// The row that was there, which has no slot any more; [`NONE`] if the slot was empty.
    pub evicted: u32,
}

// SAFETY: three numbers, of which zeros are some.
unsafe impl bytemuck::Zeroable for Load {}
// SAFETY: any bits are three numbers, there are no gaps between them, and nothing else is in it.
unsafe impl bytemuck::Pod for Load {}

/// What has to be copied before a step's rows can be read from their slots. See [`RowCache::plan`].
///
/// Rows get slots in the order of their numbers, whatever the order of the ids. If there are not enough for all, the first one is the one that the last step
/// with too few left out first, and the order goes around.
///
/// Dropping it without committing it, or [`cancel`](Self::cancel), takes its pins back and leaves the slots that it took empty,
/// whatever part of the copies may have been done. The rows that it would have loaded have no slot then, and neither have those
/// that were there.
#[derive(Debug)]
#[must_use = "a plan that is dropped is undone"]
pub struct Plan<'a> {
    cache: &'a mut RowCache,
    noted: Vec<u64>,
    draft: Draft,
    loads: Vec<Load>,
    done: bool,
}

/// The slots that a step in flight reads. See [`RowCache::release`].
#[derive(Debug, PartialEq, Eq)]
#[must_use = "pins that are not released keep their rows in the cache for good"]
pub struct Pins {
    pub(super) generation: u64,
    pub(super) number: u64,
}

impl<'a> Plan<'a> {
    pub(super) fn new(cache: &'a mut RowCache, ids: &[u32]) -> Result<Self> {
        let (noted, hits) = cache.note(ids)?;
        let mut draft = cache.draft(Noted { rows: &noted, requests: ids.len() as u64, hits })?;
        let mut loads = Vec::new();
        let most = cache.most_loads(&draft);
        loads
            .try_reserve_exact(most)
            .map_err(|_| out_of_memory("RowCache::plan", most.saturating_mul(size_of::<Load>())))?;
        loads.resize(most, Load { row: NONE, slot: NONE, evicted: NONE });
        let found = cache.place(&noted, &mut draft, &mut loads);
        loads.truncate(found);
        Ok(Self { cache, noted, draft, loads, done: false })
    }

    /// The rows to copy, each to a slot of its own. Work that reads the slots' former rows has to be over before.
    #[must_use]
    pub fn loads(&self) -> &[Load] {
        &self.loads
    }

    /// The rows that are read from host memory, since all slots are in use by this step and those in flight, from the first to the last.
    pub fn missing(&self) -> impl Iterator<Item = u32> {
        rows_of(self.noted.iter().zip(self.cache.resident()).map(|(noted, here)| noted & !here))
    }

    /// The rows that the step reads, each once, from the first to the last.
    pub fn unique(&self) -> impl Iterator<Item = u32> {
        rows_of(self.noted.iter().copied())
    }

    /// The slot of every row once the plan is committed, [`NONE`] for those without.
    #[must_use]
    pub fn slot_of(&self) -> &[u32] {
        &self.cache.slot_of
    }

    /// Lets the loaded rows keep their slots, and counts the step.
    pub fn commit(mut self) -> Pins {
        self.done = true;
        self.cache.heat_up(&self.noted);
        self.cache.commit(std::mem::take(&mut self.draft))
    }

    /// Undoes the plan: what dropping it does, in words.
    pub fn cancel(self) {
        drop(self);
    }
}

impl Drop for Plan<'_> {
    fn drop(&mut self) {
        if !self.done {
            self.cache.undo(std::mem::take(&mut self.draft), &self.loads);
        }
        self.cache.forget_notes(std::mem::take(&mut self.noted));
    }
}
