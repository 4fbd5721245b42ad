//! A step's plan, which is committed once its copies are under way, or else undone.

use super::{NONE, RowCache};

/// A row that is to be copied to a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// The row.
    pub row: u32,
    /// The slot that it is copied to.
    pub slot: u32,
    /// The row that was there. It has no slot any more.
    pub evicted: Option<u32>,
}

/// What has to be copied before a step's rows can be read from their slots. See [`RowCache::plan`].
///
/// Dropping it without committing it, or [`cancel`](Self::cancel), takes its pins back and leaves the slots that it took empty, whatever part
/// of the copies may have been done: the rows that it would have loaded have no slot then, and neither have those that were there.
#[derive(Debug)]
#[must_use = "a plan that is dropped is undone"]
pub struct Plan<'a> {
    cache: &'a mut RowCache,
    /// Every slot that this plan has pinned, once.
    slots: Vec<u32>,
    unique: Vec<u32>,
    loads: Vec<Load>,
    missing: Vec<u32>,
    hits: u64,
    misses: u64,
    done: bool,
}

/// The slots that a step in flight reads. See [`RowCache::release`].
#[derive(Debug, PartialEq, Eq)]
#[must_use = "pins that are not released keep their rows in the cache for good"]
pub struct Pins {
    pub(super) generation: u64,
    pub(super) slots: Vec<u32>,
}

impl<'a> Plan<'a> {
    /// The plan for `ids`, all of which are rows of the cache's table.
    pub(super) fn new(cache: &'a mut RowCache, ids: &[u32]) -> Self {
        cache.step = cache.step.checked_add(1).unwrap_or_else(|| {
            cache.seen.fill(0);
            1
        });
        let (mut slots, mut unique, mut without_slot) = (Vec::new(), Vec::new(), Vec::new());
        let (mut hits, mut misses) = (0, 0);
        // All rows that have a slot are pinned before the first one is evicted.
        for &id in ids {
            let row = id as usize;
            let slot = cache.slot_of[row];
            if slot == NONE {
                misses += 1;
            } else {
                hits += 1;
            }
            if std::mem::replace(&mut cache.seen[row], cache.step) == cache.step {
                continue;
            }
            unique.push(id);
            if slot == NONE {
                without_slot.push(id);
            } else {
                cache.referenced[slot as usize] = true;
                cache.pin(slot);
                slots.push(slot);
            }
        }
        let mut plan =
            Self { cache, slots, unique, loads: Vec::new(), missing: Vec::new(), hits, misses, done: false };
        for row in without_slot {
            match plan.cache.take_slot() {
                Some((slot, evicted)) => {
                    plan.cache.slot_of[row as usize] = slot;
                    plan.cache.owner_of[slot as usize] = row;
                    plan.slots.push(slot);
                    plan.loads.push(Load { row, slot, evicted });
                }
                None => plan.missing.push(row),
            }
        }
        plan
    }

    /// The rows to copy, each to a slot of its own. Work that reads the slots' former rows has to be over before.
    #[must_use]
    pub fn loads(&self) -> &[Load] {
        &self.loads
    }

    /// The rows that are read from host memory, since all slots are in use by this step and those in flight.
    #[must_use]
    pub fn missing(&self) -> &[u32] {
        &self.missing
    }

    /// The rows that the step reads, each once.
    #[must_use]
    pub fn unique(&self) -> &[u32] {
        &self.unique
    }

    /// The slot of every row once the plan is committed, [`NONE`] for those without.
    #[must_use]
    pub fn slot_of(&self) -> &[u32] {
        &self.cache.slot_of
    }

    /// Lets the loaded rows keep their slots, and counts the step.
    pub fn commit(mut self) -> Pins {
        self.done = true;
        let cache = &mut *self.cache;
        for load in &self.loads {
            cache.referenced[load.slot as usize] = true;
        }
        for &row in &self.unique {
            let heat = &mut cache.heat[row as usize];
            *heat = heat.saturating_add(1);
        }
        let (loaded, row_bytes) = (self.loads.len() as u64, cache.row_bytes);
        let statistics = &mut cache.statistics;
        statistics.steps += 1;
        statistics.requests += self.hits + self.misses;
        statistics.hits += self.hits;
        statistics.misses += self.misses;
        statistics.unique += self.unique.len() as u64;
        statistics.bytes_in += loaded.saturating_mul(row_bytes);
        statistics.residents += loaded;
        statistics.pin_failures += self.missing.len() as u64;
        Pins { generation: cache.generation, slots: std::mem::take(&mut self.slots) }
    }

    /// Undoes the plan: what dropping it does, in words.
    pub fn cancel(self) {
        drop(self);
    }
}

impl Drop for Plan<'_> {
    fn drop(&mut self) {
        if self.done {
            return;
        }
        self.slots.iter().for_each(|&slot| self.cache.unpin(slot));
        for load in &self.loads {
            self.cache.slot_of[load.row as usize] = NONE;
            self.cache.owner_of[load.slot as usize] = NONE;
            self.cache.empty.push(load.slot);
        }
    }
}
