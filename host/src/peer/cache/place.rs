//! Which rows of a step get which slots: sets of rows, 64 of them at a time.

use std::ops::Range;

use super::{Flight, Load, NONE, Pins, RowCache};
use crate::error::{Error, Result};

/// What a step reads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Noted<'a> {
    /// Its rows: bit `row % 64` of word `row / 64` is set for each of them.
    pub(crate) rows: &'a [u64],
    /// Its ids.
    pub(crate) requests: u64,
    /// Those of them whose rows have a slot.
    pub(crate) hits: u64,
}

/// A step on its way to being committed.
#[derive(Debug, Default)]
pub(crate) struct Draft {
    /// The rows that it reads from their slots.
    pins: Vec<u64>,
    requests: u64,
    hits: u64,
    /// Its rows, each once.
    unique: u64,
    /// Those of them that have no slot yet.
    missing: u64,
    /// How many rows it copies.
    loads: usize,
}

/// The words of a set with the bits of each that are looked at, from row `start` on and around to before it: once for every row.
fn around(start: usize, words: usize) -> [(Range<usize>, u64); 4] {
    let (first, from) = (start / 64, u64::MAX << (start % 64));
    let (here, behind) = (first..words.min(first + 1), words.min(first + 1)..words);
    [(here.clone(), from), (behind, u64::MAX), (0..first, u64::MAX), (here, !from)]
}

/// The rows of a set, from the first on.
pub(super) fn rows_of(set: impl Iterator<Item = u64>) -> impl Iterator<Item = u32> {
    (0u32..).zip(set).flat_map(|(word, mut bits)| {
        std::iter::from_fn(move || {
            let row = (bits != 0).then(|| 64 * word + bits.trailing_zeros())?;
            bits &= bits - 1;
            Some(row)
        })
    })
}

impl RowCache {
    /// Notes the ids of a step: its rows, and how many ids are of rows with a slot.
    pub(crate) fn note(&mut self, ids: &[u32]) -> Result<(Vec<u64>, u64)> {
        if let Some(position) = ids.iter().position(|&id| id as usize >= self.rows()) {
            return Err(stray_id("RowCache::plan", self.rows(), ids[position], position));
        }
        let mut noted = self.set()?;
        noted.fill(0);
        let mut hits = 0;
        for &id in ids {
            let (word, bit) = (id as usize / 64, id % 64);
            noted[word] |= 1 << bit;
            hits += self.resident[word] >> bit & 1;
        }
        Ok((noted, hits))
    }

    /// Begins a step: its rows that have a slot are used, and will be pinned.
    pub(crate) fn draft(&mut self, noted: Noted<'_>) -> Result<Draft> {
        let Noted { rows, requests, hits } = noted;
        let mut pins = self.set()?;
        let (mut unique, mut without) = (0, 0);
        let here = self.resident.iter().zip(&mut self.referenced);
        for ((&row, pin), (&resident, referenced)) in rows.iter().zip(&mut pins).zip(here) {
            *pin = row & resident;
            *referenced |= *pin;
            unique += u64::from(row.count_ones());
            without |= row & !resident;
        }
        // Mostly none is missing once a cache is warm, and then there is nothing to count.
        let missing = match without {
            0 => 0,
            _ => {
                rows.iter().zip(&self.resident).map(|(row, here)| u64::from((row & !here).count_ones())).sum()
            }
        };
        Ok(Draft { pins, requests, hits, unique, missing, loads: 0 })
    }

    /// How many rows a step copies at most.
    pub(crate) fn most_loads(&self, draft: &Draft) -> usize {
        usize::try_from(draft.missing).unwrap_or(usize::MAX).min(self.slots())
    }

    /// Gives slots to the rows of `noted` that have none, as far as there are slots and loads, and says in the first `loads` how many that are.
    /// `noted` is what the draft was made for.
    pub(crate) fn place(&mut self, noted: &[u64], draft: &mut Draft, loads: &mut [Load]) -> usize {
        let most = self.most_loads(draft).min(loads.len());
        let loads = &mut loads[..most];
        let mut found = 0;
        for load in &mut *loads {
            let Some(slot) = self.empty.pop() else { break };
            *load = Load { row: NONE, slot, evicted: NONE };
            found += 1;
        }
        found += self.evict(&draft.pins, &mut loads[found..]);
        if draft.missing != 0 {
            self.enter(noted, draft, &mut loads[..found]);
        }
        self.changes += u64::from(found != 0);
        draft.loads = found;
        found
    }

    /// Takes a slot for each load from a row that no step pins, as the hand finds them, and tells how many it found.
    ///
    /// The hand goes over the rows in the order of their numbers, past those that have no slot or are pinned. One that was used since it last came by has
    /// its second chance, the others lose their slots. After two turns nothing is left to be found.
    fn evict(&mut self, pins: &[u64], loads: &mut [Load]) -> usize {
        let (start, words) = (self.hand, self.resident.len());
        let (mut found, mut last) = (0, None);
        let mut second_chances = 0;
        for turn in 0..2 {
            if found == loads.len() || (turn == 1 && second_chances == 0) {
                break;
            }
            'turn: for (range, mask) in around(start, words) {
                for word in range {
                    #[cfg(test)]
                    {
                        self.looked_at += 1;
                    }
                    let pinned =
                        self.flights.iter().fold(pins[word], |rows, flight| rows | flight.rows[word]);
                    let candidates = self.resident[word] & !pinned & mask;
                    let referenced = candidates & self.referenced[word];
                    let (mut victims, mut passed) = (candidates & !referenced, candidates);
                    let mut taken = 0;
                    while victims != 0 {
                        let bit = victims & victims.wrapping_neg();
                        let row = 64 * word + victims.trailing_zeros() as usize;
                        let slot = std::mem::replace(&mut self.slot_of[row], NONE);
                        loads[found] = Load { row: NONE, slot, evicted: row as u32 };
                        found += 1;
                        last = Some(row);
                        taken |= bit;
                        victims ^= bit;
                        if found == loads.len() {
                            passed &= bit - 1;
                            break;
                        }
                    }
                    self.resident[word] &= !taken;
                    self.referenced[word] &= !passed;
                    second_chances |= referenced & passed;
                    if found == loads.len() {
                        break 'turn;
                    }
                }
            }
        }
        if let Some(last) = last {
            self.hand = if last + 1 < self.slot_of.len() { last + 1 } else { 0 };
        }
        self.statistics.evictions += found as u64;
        self.statistics.residents -= found as u64;
        found
    }

    /// Gives the slots of the loads to rows of `noted` that have none, in the order of their numbers, from the one on that was last left without.
    fn enter(&mut self, noted: &[u64], draft: &mut Draft, loads: &mut [Load]) {
        let mut loads = loads.iter_mut();
        for (range, mask) in around(self.first, noted.len()) {
            for word in range {
                let mut missing = noted[word] & !self.resident[word] & mask;
                if missing == 0 {
                    continue;
                }
                let mut entered = 0;
                while missing != 0 {
                    let row = 64 * word + missing.trailing_zeros() as usize;
                    let Some(load) = loads.next() else {
                        self.first = row;
                        break;
                    };
                    load.row = row as u32;
                    self.slot_of[row] = load.slot;
                    self.owner_of[load.slot as usize] = load.row;
                    entered |= missing & missing.wrapping_neg();
                    missing &= missing - 1;
                }
                self.resident[word] |= entered;
                self.referenced[word] |= entered;
                draft.pins[word] |= entered;
                if missing != 0 {
                    return;
                }
            }
        }
    }
}

impl RowCache {
    /// Counts a step whose copies are under way, and keeps its rows where they are until the pins come back.
    pub(crate) fn commit(&mut self, draft: Draft) -> Pins {
        let Draft { pins, requests, hits, unique, missing, loads } = draft;
        let loads = loads as u64;
        let statistics = &mut self.statistics;
        statistics.steps += 1;
        statistics.requests += requests;
        statistics.hits += hits;
        statistics.misses += requests - hits;
        statistics.unique += unique;
        statistics.bytes_in += loads.saturating_mul(self.row_bytes);
        statistics.residents += loads;
        statistics.pin_failures += missing - loads;
        self.flown += 1;
        self.flights.push(Flight { number: self.flown, rows: pins });
        Pins { generation: self.generation, number: self.flown }
    }

    /// Counts a use of each row that was noted here.
    pub(crate) fn heat_up(&mut self, noted: &[u64]) {
        for row in rows_of(noted.iter().copied()) {
            let heat = &mut self.heat[row as usize];
            *heat = heat.saturating_add(1);
        }
    }

    /// Takes a set back that [`note`](Self::note) gave out.
    pub(crate) fn forget_notes(&mut self, noted: Vec<u64>) {
        self.give_back(noted);
    }

    /// Undoes a step that was not committed: the slots of its loads are empty, and what was in them has none.
    pub(super) fn undo(&mut self, draft: Draft, loads: &[Load]) {
        for load in loads {
            let (word, bit) = (load.row as usize / 64, 1 << (load.row % 64));
            self.slot_of[load.row as usize] = NONE;
            self.owner_of[load.slot as usize] = NONE;
            self.resident[word] &= !bit;
            self.referenced[word] &= !bit;
            self.empty.push(load.slot);
        }
        self.changes += 1;
        self.give_back(draft.pins);
    }
}

/// The error for an id of no row.
pub(crate) fn stray_id(operation: &'static str, rows: usize, id: u32, position: usize) -> Error {
    Error::Argument {
        operation,
        argument: "an id",
        expected: format!("less than {rows}, the number of rows"),
        actual: format!("{id}, at {position}"),
    }
}
