//! Which rows of a table in host memory are in the slots of a device: a cache with CLOCK replacement, without the memory itself.
//!
//! Work comes in steps, each with the ids of the rows that it reads. [`RowCache::plan`] pins the rows of a step that have a slot, and gives
//! the others one: an empty slot, or that of a row that the CLOCK hand finds unpinned and not used since its last turn. Whoever owns the
//! memory copies what the [`Plan`] says and then commits it; a plan that is dropped leaves the slots that it took empty. So no failure in
//! between can make a row appear where it is not. A row for which there is no slot, because all are pinned, stays where it is in host
//! memory: that is slower, never an error.
//!
//! The pins that a committed plan gives out keep its rows in their slots until [`RowCache::release`], so that a plan made meanwhile, for
//! the step after it, evicts nothing that either of them reads.
//!
//! A step is a set: a bit for each row of the table. So are the rows with a slot, those used since the hand came by, and the rows that each
//! step in flight pins. A plan works on 64 rows at a time, and only rows that have no slot cost something each. In which order a step names
//! its rows, and how often each, makes no difference to where they go.

mod place;
mod plan;
mod statistics;
#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicU64, Ordering};

pub(crate) use place::{Draft, Noted, stray_id};
pub use plan::{Load, Pins, Plan};
pub use statistics::CacheStatistics;

use crate::device::cpu::out_of_memory;
use crate::error::{Error, Result};

/// Stands for no slot in [`RowCache::slot_of`], and for no row in [`RowCache::owner_of`] and in [`Load::evicted`].
pub const NONE: u32 = u32::MAX;

/// A cache of some of a table's rows, with CLOCK replacement. Rows and slots are numbers: the memory is somebody else's.
///
/// ```
/// use warpsmith::peer::RowCache;
///
/// # fn main() -> warpsmith::Result<()> {
/// let mut cache = RowCache::new(1000, 2, 4096)?; // 1000 rows of 4 KiB, two slots
/// let plan = cache.plan(&[7, 3, 7])?;
/// for load in plan.loads() {
///     println!("copy row {} to slot {}", load.row, load.slot);
/// }
/// let pins = plan.commit(); // once the copies are under way
/// assert!(cache.slot(7).is_some() && cache.slot(3).is_some());
/// cache.release(pins); // once the rows have been read
/// assert_eq!(cache.statistics().misses, 3);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct RowCache {
    row_bytes: u64,
    /// The slot of each row, or [`NONE`].
    slot_of: Vec<u32>,
    /// The row in each slot, or [`NONE`].
    owner_of: Vec<u32>,
    /// The rows that have a slot.
    resident: Vec<u64>,
    /// Those of them that have been used since the hand last came by.
    referenced: Vec<u64>,
    /// What steps in flight pin.
    flights: Vec<Flight>,
    /// Sets that no step uses any more, of any contents.
    spare: Vec<Vec<u64>>,
    /// Slots that hold no row and that no plan has taken.
    empty: Vec<u32>,
    /// The row that the hand looks at next.
    hand: usize,
    /// The row that comes first when not all get a slot.
    first: usize,
    /// Steps that used each row, of those that were planned from ids.
    heat: Vec<u32>,
    /// Whose pins are this cache's, and of what it held since it was last cleared.
    generation: u64,
    /// How often it has changed which rows have a slot.
    changes: u64,
    /// How many steps have been committed.
    flown: u64,
    statistics: CacheStatistics,
    /// Words that the hand has looked at.
    #[cfg(test)]
    looked_at: u64,
}

/// A step in flight.
#[derive(Debug)]
struct Flight {
    number: u64,
    /// The rows that it reads from their slots.
    rows: Vec<u64>,
}

/// A number that no other cache and no other state of this one has.
fn new_generation() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// `length` times `value`, or the error if the host has no memory for them.
fn filled<T: Clone>(length: usize, value: T) -> Result<Vec<T>> {
    let mut values = Vec::new();
    values
        .try_reserve_exact(length)
        .map_err(|_| out_of_memory("RowCache::new", length.saturating_mul(size_of::<T>())))?;
    values.resize(length, value);
    Ok(values)
}

impl RowCache {
    /// A cache of a table of `rows` rows of `row_bytes` bytes, with `slots` slots, all of them empty. More slots than rows are as good as
    /// one for each row. Without slots every row stays in host memory.
    ///
    /// # Errors
    ///
    /// [`Error::SizeLimit`] if there are more than 2³² - 1 rows, [`Error::OutOfMemory`] if the host has too little memory.
    pub fn new(rows: usize, slots: usize, row_bytes: u64) -> Result<Self> {
        Self::expect_rows(rows)?;
        let slots = slots.min(rows);
        let mut empty = filled(slots, 0u32)?;
        number_downwards(&mut empty);
        let words = rows.div_ceil(64);
        Ok(Self {
            row_bytes,
            slot_of: filled(rows, NONE)?,
            owner_of: filled(slots, NONE)?,
            resident: filled(words, 0)?,
            referenced: filled(words, 0)?,
            flights: Vec::new(),
            spare: Vec::new(),
            empty,
            hand: 0,
            first: 0,
            heat: filled(rows, 0)?,
            generation: new_generation(),
            changes: 0,
            flown: 0,
            statistics: CacheStatistics::default(),
            #[cfg(test)]
            looked_at: 0,
        })
    }

    /// The error for more rows than their numbers tell apart.
    pub(super) fn expect_rows(rows: usize) -> Result<()> {
        let limit = NONE as usize;
        if rows <= limit {
            return Ok(());
        }
        Err(Error::SizeLimit {
            operation: "RowCache::new",
            operand: "table",
            quantity: "number of rows",
            limit: format!("at most {limit}"),
            actual: rows.to_string(),
        })
    }

    /// Plans a step that reads the rows `ids`, in any order and any number of times. See [`Plan`].
    ///
    /// # Errors
    ///
    /// [`Error::Argument`] if there is no row of one of the ids; the cache is then as it was. [`Error::OutOfMemory`] if the host has too little memory
    /// for the plan.
    pub fn plan(&mut self, ids: &[u32]) -> Result<Plan<'_>> {
        Plan::new(self, ids)
    }

    /// Takes back the pins of a step whose rows have been read, or will be read before anything that is asked for from now on is
    /// copied. Pins of another cache, or from before [`clear`](Self::clear), change nothing.
    pub fn release(&mut self, pins: Pins) {
        if !self.owns(&pins) {
            return;
        }
        if let Some(index) = self.flights.iter().position(|flight| flight.number == pins.number) {
            let flight = self.flights.swap_remove(index);
            self.give_back(flight.rows);
        }
    }

    /// Whether the pins are this cache's, and not from before it was last cleared.
    #[must_use]
    pub fn owns(&self, pins: &Pins) -> bool {
        pins.generation == self.generation
    }

    /// Forgets where rows are, and all pins: every slot is empty. For when the contents of the slots are lost. Heat and statistics
    /// stay.
    pub fn clear(&mut self) {
        self.slot_of.fill(NONE);
        self.owner_of.fill(NONE);
        self.resident.fill(0);
        self.referenced.fill(0);
        while let Some(flight) = self.flights.pop() {
            self.give_back(flight.rows);
        }
        self.empty.resize(self.owner_of.len(), 0);
        number_downwards(&mut self.empty);
        (self.hand, self.first) = (0, 0);
        self.generation = new_generation();
        self.changes += 1;
        self.statistics.residents = 0;
    }

    /// The slot of a row; `None` if it has none, or there is no such row.
    #[must_use]
    pub fn slot(&self, row: u32) -> Option<u32> {
        self.slot_of.get(row as usize).copied().filter(|&slot| slot != NONE)
    }

    /// The slot of every row, [`NONE`] for those without.
    #[must_use]
    pub fn slot_of(&self) -> &[u32] {
        &self.slot_of
    }

    /// The row in every slot, [`NONE`] for empty ones.
    #[must_use]
    pub fn owner_of(&self) -> &[u32] {
        &self.owner_of
    }

    /// For every row, how many steps planned by [`plan`](Self::plan) have used it; no more than 2³² - 1 are counted.
    #[must_use]
    pub fn heat(&self) -> &[u32] {
        &self.heat
    }

    /// How many rows the table has.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.slot_of.len()
    }

    /// How many slots there are.
    #[must_use]
    pub fn slots(&self) -> usize {
        self.owner_of.len()
    }

    /// How many slots steps in flight use.
    #[must_use]
    pub fn pinned(&self) -> usize {
        let pinned = |word| self.flights.iter().fold(0u64, |rows, flight| rows | flight.rows[word]);
        (0..self.resident.len()).map(|word| pinned(word).count_ones() as usize).sum()
    }

    /// What has happened so far.
    #[must_use]
    pub fn statistics(&self) -> CacheStatistics {
        self.statistics
    }

    /// Counts a step that had to wait for its rows.
    pub fn count_stall(&mut self) {
        self.statistics.stalls += 1;
    }

    /// The rows that have a slot: bit `row % 64` of word `row / 64` is set for them.
    pub(crate) fn resident(&self) -> &[u64] {
        &self.resident
    }

    /// A number that is another one whenever [`resident`](Self::resident) is.
    pub(crate) fn changes(&self) -> u64 {
        self.changes
    }

    /// A set of rows, of any contents.
    fn set(&mut self) -> Result<Vec<u64>> {
        match self.spare.pop() {
            Some(set) => Ok(set),
            None => crate::memory::zeros("RowCache::plan", self.resident.len()),
        }
    }

    /// Keeps a set for a later step; as many as a few steps need.
    fn give_back(&mut self, set: Vec<u64>) {
        if self.spare.len() < 4 && set.len() == self.resident.len() {
            self.spare.push(set);
        }
    }
}

/// The numbers of the slots, so that the last is 0: empty slots are taken from the end.
fn number_downwards(slots: &mut [u32]) {
    for (slot, number) in slots.iter_mut().rev().zip(0..) {
        *slot = number;
    }
}
