//! Traces of ids through the cache, beside a model that looks at everything every time.

use std::collections::{BTreeSet, VecDeque};

use proptest::prelude::*;

use super::{CacheStatistics, Load, NONE, Pins, RowCache};

/// CLOCK as it is described: a circle of rows, those in slots with a reference and the steps that use them.
#[derive(Default)]
struct Model {
    slots: Vec<Slot>,
    /// The row that the hand looks at next.
    hand: usize,
    /// The row that comes first when slots are given out.
    first: u32,
    statistics: CacheStatistics,
    heat: Vec<u32>,
}

#[derive(Clone, Default)]
struct Slot {
    row: Option<u32>,
    referenced: bool,
    users: BTreeSet<u64>,
}

impl Model {
    fn new(rows: usize, slots: usize) -> Self {
        let slots = vec![Slot::default(); slots.min(rows)];
        Self { slots, heat: vec![0; rows], ..Self::default() }
    }

    fn find(&self, row: u32) -> Option<usize> {
        self.slots.iter().position(|slot| slot.row == Some(row))
    }

    /// The loads and the missing rows of a step.
    fn step(&mut self, number: u64, ids: &[u32], row_bytes: u64) -> (Vec<Load>, Vec<u32>) {
        let resident: BTreeSet<u32> = self.slots.iter().filter_map(|slot| slot.row).collect();
        let hits = ids.iter().filter(|id| resident.contains(id)).count() as u64;
        let unique: BTreeSet<u32> = ids.iter().copied().collect();
        for &row in &unique {
            self.heat[row as usize] += 1;
            if let Some(slot) = self.find(row) {
                self.slots[slot].referenced = true;
                self.slots[slot].users.insert(number);
            }
        }
        let (mut loads, mut missing) = (Vec::new(), Vec::new());
        let mut first = None;
        let in_turn = unique.range(self.first..).chain(unique.range(..self.first));
        for &row in in_turn.filter(|row| !resident.contains(row)) {
            if let Some(slot) = self.victim() {
                let evicted = self.slots[slot].row.unwrap_or(NONE);
                self.slots[slot] = Slot { row: Some(row), referenced: true, users: [number].into() };
                loads.push(Load { row, slot: slot as u32, evicted });
            } else {
                first.get_or_insert(row);
                missing.push(row);
            }
        }
        self.first = first.unwrap_or(self.first);
        missing.sort_unstable();
        let statistics = &mut self.statistics;
        statistics.steps += 1;
        statistics.requests += ids.len() as u64;
        statistics.hits += hits;
        statistics.misses += ids.len() as u64 - hits;
        statistics.unique += unique.len() as u64;
        statistics.evictions += loads.iter().filter(|load| load.evicted != NONE).count() as u64;
        statistics.bytes_in += loads.len() as u64 * row_bytes;
        statistics.pin_failures += missing.len() as u64;
        statistics.residents = self.slots.iter().filter(|slot| slot.row.is_some()).count() as u64;
        (loads, missing)
    }

    fn victim(&mut self) -> Option<usize> {
        if let Some(empty) = self.slots.iter().position(|slot| slot.row.is_none()) {
            return Some(empty);
        }
        if self.slots.iter().all(|slot| !slot.users.is_empty()) {
            return None;
        }
        loop {
            let row = self.hand as u32;
            self.hand = (self.hand + 1) % self.heat.len();
            let Some(slot) = self.find(row).filter(|&slot| self.slots[slot].users.is_empty()) else {
                continue;
            };
            if !self.slots[slot].referenced {
                return Some(slot);
            }
            self.slots[slot].referenced = false;
        }
    }

    fn release(&mut self, number: u64) {
        self.slots.iter_mut().for_each(|slot| {
            slot.users.remove(&number);
        });
    }
}

/// Slots and rows name each other, and nothing else is in use.
fn assert_consistent(cache: &RowCache) {
    let mut owned = 0;
    for (slot, &row) in cache.owner_of().iter().enumerate() {
        if row != NONE {
            assert_eq!(cache.slot_of()[row as usize], slot as u32, "the slot of the row in slot {slot}");
            owned += 1;
        }
    }
    let mapped = cache.slot_of().iter().filter(|&&slot| slot != NONE).count();
    assert_eq!(mapped, owned, "rows with slots, slots with rows");
    let statistics = cache.statistics();
    assert_eq!(statistics.residents, owned as u64);
    assert_eq!(statistics.hits + statistics.misses, statistics.requests);
    assert!(statistics.unique <= statistics.requests && statistics.pin_failures <= statistics.misses);
    let empty: BTreeSet<_> = cache.empty.iter().collect();
    assert_eq!(empty.len(), cache.empty.len(), "an empty slot is listed once");
    assert_eq!(empty.len() + owned, cache.slots(), "slots are empty or have a row");
    let has_slot = |row: usize| cache.slot_of()[row] != NONE;
    let is_in = |set: &[u64], row: usize| set[row / 64] >> (row % 64) & 1 != 0;
    for row in 0..cache.rows() {
        assert_eq!(is_in(&cache.resident, row), has_slot(row), "row {row} has a slot");
        assert!(has_slot(row) || !is_in(&cache.referenced, row), "row {row} is used, and nowhere");
        let is_pinned = cache.flights.iter().any(|flight| is_in(&flight.rows, row));
        assert!(has_slot(row) || !is_pinned, "row {row} is pinned, and nowhere");
    }
    let bits = |set: &[u64]| set.iter().map(|word| word.count_ones() as usize).sum::<usize>();
    assert_eq!(bits(&cache.resident), owned, "no row beyond the last has a slot");
}

/// The slots of some rows.
type Places = Vec<(u32, Option<u32>)>;

/// How the ids of a trace are spread over the rows.
#[derive(Clone, Copy, Debug)]
enum Skew {
    Uniform,
    /// The rank-th row with a probability of about 1 / rank.
    Zipf,
    /// One row after the other, again and again: nothing that CLOCK keeps is used again in time.
    Cyclic,
}

fn trace(skew: Skew, rows: usize, steps: usize, ids_a_step: usize, seed: u64) -> Vec<Vec<u32>> {
    let mut state = seed | 1;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as f64 / (1u64 << 53) as f64
    };
    let mut next = 0;
    let mut id = || {
        let row = match skew {
            Skew::Uniform => (random() * rows as f64) as usize,
            Skew::Zipf => (rows as f64).powf(random()) as usize - 1,
            Skew::Cyclic => {
                next += 1;
                (next - 1) % rows
            }
        };
        row.min(rows - 1) as u32
    };
    (0..steps).map(|_| (0..ids_a_step).map(|_| id()).collect()).collect()
}

fn skews() -> impl Strategy<Value = Skew> {
    prop_oneof![Just(Skew::Uniform), Just(Skew::Zipf), Just(Skew::Cyclic)]
}

const ROW_BYTES: u64 = 48;

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn every_trace_goes_as_clock_says(
        skew in skews(), rows in 1usize..40, slots in 0usize..44, ids in 0usize..24, in_flight in 0usize..3,
        seed: u64,
    ) {
        let mut cache = RowCache::new(rows, slots, ROW_BYTES).expect("a small cache");
        let mut model = Model::new(rows, slots);
        let mut flying = VecDeque::new();
        for (number, ids) in trace(skew, rows, 30, ids, seed).iter().enumerate() {
            let plan = cache.plan(ids).expect("all ids are rows");
            let (loads, missing) = model.step(number as u64, ids, ROW_BYTES);
            prop_assert_eq!(plan.loads(), loads);
            prop_assert_eq!(plan.missing().collect::<Vec<_>>(), missing);
            let unique: BTreeSet<u32> = ids.iter().copied().collect();
            prop_assert!(plan.unique().eq(unique));
            flying.push_back((number as u64, plan.commit()));
            assert_consistent(&cache);
            if flying.len() > in_flight {
                let (number, pins) = flying.pop_front().expect("one more than none");
                cache.release(pins);
                model.release(number);
            }
            let owners: Vec<_> = model.slots.iter().map(|slot| slot.row.unwrap_or(NONE)).collect();
            prop_assert_eq!(cache.owner_of(), owners);
        }
        prop_assert_eq!(cache.statistics(), model.statistics);
        prop_assert_eq!(cache.heat(), model.heat);
        flying.into_iter().for_each(|(_, pins)| cache.release(pins));
        prop_assert_eq!(cache.pinned(), 0);
        prop_assert!(cache.flights.is_empty());
    }

    #[test]
    fn the_order_of_ids_and_how_often_each_is_named_change_nothing_but_counts(
        skew in skews(), rows in 1usize..200, slots in 0usize..200, ids in 0usize..60, seed: u64,
    ) {
        let [mut some, mut others] =
            [0; 2].map(|_| RowCache::new(rows, slots, ROW_BYTES).expect("a small cache"));
        let mut before: Option<[Pins; 2]> = None;
        for ids in trace(skew, rows, 20, ids, seed) {
            let plan = some.plan(&ids).expect("all ids are rows");
            let mut reordered: Vec<u32> = ids.iter().rev().chain(&ids).copied().collect();
            let length = reordered.len();
            reordered.rotate_left(seed as usize % length.max(1));
            let other = others.plan(&reordered).expect("all ids are rows");
            prop_assert_eq!(plan.loads(), other.loads());
            prop_assert!(plan.missing().eq(other.missing()) && plan.unique().eq(other.unique()));
            if let Some([pins, others_pins]) = before.replace([plan.commit(), other.commit()]) {
                some.release(pins);
                others.release(others_pins);
            }
            prop_assert_eq!(some.slot_of(), others.slot_of());
        }
        let CacheStatistics { requests, hits, misses, .. } = some.statistics();
        let twice = CacheStatistics { requests: 2 * requests, hits: 2 * hits, misses: 2 * misses, ..some.statistics() };
        prop_assert_eq!(others.statistics(), twice);
        prop_assert_eq!(some.heat(), others.heat());
    }

    #[test]
    fn a_step_evicts_nothing_that_it_or_a_step_in_flight_reads(
        skew in skews(), rows in 1usize..60, slots in 1usize..60, ids in 1usize..20, in_flight in 1usize..4,
        seed: u64,
    ) {
        let mut cache = RowCache::new(rows, slots, ROW_BYTES).expect("a small cache");
        let mut flying: VecDeque<(Pins, Places)> = VecDeque::new();
        for ids in trace(skew, rows, 40, ids, seed) {
            let pins = cache.plan(&ids).expect("all ids are rows").commit();
            let found = ids.iter().map(|&id| (id, cache.slot(id))).collect();
            flying.push_back((pins, found));
            for (id, slot) in flying.iter().flat_map(|(_, found)| found).filter(|(_, slot)| slot.is_some()) {
                prop_assert_eq!(cache.slot(*id), *slot, "row {} has moved", id);
            }
            if flying.len() > in_flight {
                cache.release(flying.pop_front().expect("one more than none").0);
            }
        }
    }

    #[test]
    fn a_plan_that_is_dropped_leaves_no_trace_but_evictions(
        skew in skews(), rows in 1usize..40, slots in 1usize..40, ids in 0usize..20, seed: u64, dropped: u64,
    ) {
        let mut cache = RowCache::new(rows, slots, ROW_BYTES).expect("a small cache");
        let mut before: Option<Pins> = None;
        for (number, ids) in trace(skew, rows, 40, ids, seed).iter().enumerate() {
            let (statistics, owners) = (cache.statistics(), cache.owner_of().to_vec());
            let pinned = cache.pinned();
            let plan = cache.plan(ids).expect("all ids are rows");
            let (loads, missing) = (plan.loads().to_vec(), plan.missing().collect::<Vec<_>>());
            let row_of = |row: u32| loads.iter().any(|load| load.row == row);
            if dropped >> number & 1 == 0 {
                let pins = plan.commit();
                prop_assert!(ids.iter().all(|&id| cache.slot(id).is_none() == missing.contains(&id)));
                if let Some(pins) = before.replace(pins) {
                    cache.release(pins);
                }
            } else {
                plan.cancel();
                prop_assert_eq!(cache.pinned(), pinned);
                let evicted = loads.iter().filter(|load| load.evicted != NONE).count() as u64;
                prop_assert_eq!(
                    cache.statistics(),
                    CacheStatistics {
                        evictions: statistics.evictions + evicted,
                        residents: statistics.residents - evicted,
                        ..statistics
                    }
                );
                for (slot, &row) in owners.iter().enumerate() {
                    let taken = loads.iter().any(|load| load.slot == slot as u32);
                    prop_assert_eq!(cache.owner_of()[slot], if taken { NONE } else { row });
                }
                prop_assert!((0..rows as u32).all(|row| !row_of(row) || cache.slot(row).is_none()));
            }
            assert_consistent(&cache);
        }
        if let Some(pins) = before {
            cache.release(pins);
        }
        prop_assert_eq!(cache.pinned(), 0);
    }

    #[test]
    fn the_hand_goes_around_twice_at_most_and_not_at_all_while_nothing_is_missing(
        skew in skews(), rows in 1usize..400, slots in 1usize..400, ids in 1usize..50, in_flight in 0usize..3,
        seed: u64,
    ) {
        let mut cache = RowCache::new(rows, slots, ROW_BYTES).expect("a small cache");
        let mut flying = VecDeque::new();
        for ids in trace(skew, rows, 60, ids, seed) {
            let (before, evicted) = (cache.looked_at, cache.statistics().evictions);
            let is_missing = ids.iter().any(|&id| cache.slot(id).is_none());
            flying.push_back(cache.plan(&ids).expect("all ids are rows").commit());
            let looked_at = cache.looked_at - before;
            // The word that it starts in is looked at before and after the others.
            prop_assert!(looked_at <= 2 * (rows as u64).div_ceil(64) + 2, "{} words", looked_at);
            prop_assert!(is_missing || looked_at == 0);
            prop_assert!(looked_at != 0 || cache.statistics().evictions == evicted);
            if flying.len() > in_flight {
                cache.release(flying.pop_front().expect("one more than none"));
            }
        }
    }
}

#[test]
fn with_a_slot_for_every_row_each_is_loaded_once() {
    for extra in [0, 5] {
        let mut cache = RowCache::new(50, 50 + extra, ROW_BYTES).expect("a small cache");
        for ids in trace(Skew::Zipf, 50, 200, 30, 3) {
            let pins = cache.plan(&ids).expect("all ids are rows").commit();
            cache.release(pins);
        }
        let CacheStatistics { evictions, pin_failures, residents, bytes_in, .. } = cache.statistics();
        assert_eq!((evictions, pin_failures, bytes_in), (0, 0, residents * ROW_BYTES));
    }
}

#[test]
fn a_cycle_longer_than_the_cache_never_hits_and_a_skewed_trace_does() {
    let hit_rate = |skew| {
        let mut cache = RowCache::new(1000, 100, ROW_BYTES).expect("a small cache");
        for ids in trace(skew, 1000, 500, 20, 11) {
            let pins = cache.plan(&ids).expect("all ids are rows").commit();
            cache.release(pins);
        }
        cache.statistics().hit_rate()
    };
    assert_eq!(hit_rate(Skew::Cyclic), 0.0);
    // A tenth of the rows has two thirds of the uses: log 100 / log 1000.
    let (uniform, zipf) = (hit_rate(Skew::Uniform), hit_rate(Skew::Zipf));
    assert!(uniform < 0.2 && zipf > 0.5, "uniform {uniform}, skewed {zipf}");
}

#[test]
fn a_row_used_since_the_hand_came_by_outlives_one_that_was_not() {
    let mut cache = RowCache::new(10, 3, ROW_BYTES).expect("a small cache");
    let mut use_rows = |ids: &[u32]| {
        let pins = cache.plan(ids).expect("all ids are rows").commit();
        cache.release(pins);
        cache.owner_of().to_vec()
    };
    assert_eq!(use_rows(&[0, 1, 2]), [0, 1, 2]);
    // All are referenced: the hand goes round once and takes the first.
    assert_eq!(use_rows(&[3]), [3, 1, 2]);
    assert_eq!(use_rows(&[1]), [3, 1, 2]);
    // Row 1 has a second chance, row 2 has not.
    assert_eq!(use_rows(&[4]), [3, 1, 4]);
}

#[test]
fn rows_for_which_there_is_no_slot_stay_missing_and_are_no_error() {
    let mut cache = RowCache::new(10, 2, ROW_BYTES).expect("a small cache");
    let first = cache.plan(&[0, 1, 2, 1]).expect("all ids are rows");
    assert!(first.missing().eq([2]));
    let first = first.commit();
    let second = cache.plan(&[3, 1]).expect("all ids are rows");
    assert!(second.loads().is_empty());
    assert!(second.missing().eq([3]));
    let second = second.commit();
    cache.release(first);
    cache.release(second);
    assert_eq!(cache.statistics().pin_failures, 2);
    assert_eq!(cache.pinned(), 0);

    let mut none = RowCache::new(10, 0, ROW_BYTES).expect("a small cache");
    let plan = none.plan(&[4, 4]).expect("all ids are rows");
    assert!(plan.loads().is_empty() && plan.missing().eq([4]));
    drop(plan);
}

#[test]
fn an_id_that_is_no_row_is_an_error_that_changes_nothing() {
    let mut cache = RowCache::new(3, 2, ROW_BYTES).expect("a small cache");
    let error = cache.plan(&[0, 3]).expect_err("there are three rows").to_string();
    assert!(error.contains('3') && error.contains("at 1"), "{error}");
    assert_eq!(cache.statistics(), CacheStatistics::default());
    assert_consistent(&cache);
}

#[test]
fn a_cleared_cache_is_empty_and_pins_from_before_have_no_effect() {
    let mut cache = RowCache::new(10, 4, ROW_BYTES).expect("a small cache");
    let old = cache.plan(&[1, 2, 3]).expect("all ids are rows").commit();
    cache.clear();
    assert_consistent(&cache);
    assert_eq!((cache.slot(1), cache.pinned()), (None, 0));
    let new = cache.plan(&[1, 2, 3]).expect("all ids are rows").commit();
    cache.release(old);
    assert_eq!(cache.pinned(), 3);
    let mut other = RowCache::new(10, 4, ROW_BYTES).expect("a small cache");
    other.release(new);
    assert_eq!((other.pinned(), cache.pinned()), (0, 3));
}

#[test]
fn rows_without_a_slot_come_first_in_the_next_step() {
    let mut cache = RowCache::new(200, 2, ROW_BYTES).expect("a small cache");
    let mut loaded = Vec::new();
    for _ in 0..4 {
        let plan = cache.plan(&[150, 3, 70, 90, 4]).expect("all ids are rows");
        loaded.push(plan.loads().iter().map(|load| load.row).collect::<Vec<_>>());
        let pins = plan.commit();
        cache.release(pins);
        // Another step takes the slots.
        let pins = cache.plan(&[10, 11]).expect("all ids are rows").commit();
        cache.release(pins);
    }
    assert_eq!(loaded, [[3, 4], [70, 90], [150, 3], [4, 70]]);
}

#[test]
fn statistics_are_a_table() {
    let statistics = CacheStatistics { requests: 4, hits: 3, misses: 1, ..CacheStatistics::default() };
    let table = statistics.to_string();
    let widths: BTreeSet<_> = table.lines().map(str::len).collect();
    assert_eq!(widths.len(), 1, "columns are aligned:\n{table}");
    assert!(table.lines().any(|line| line.starts_with("hit rate") && line.ends_with("75.00 %")), "{table}");
    assert_eq!(table.lines().count(), 11);
}
