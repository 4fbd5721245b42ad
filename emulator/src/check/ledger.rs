//! Races in global memory between the clusters of a launch.
//!
//! Clusters run in any order and at the same time: whatever two of them touched and one wrote is a race, unless they order it
//! themselves. A cluster counts as one here: it has a *time*, which goes on with each release, and it knows of each other cluster up to
//! which time it has learnt what that one did. Locks, grid barriers, flags behind fences and the last block of a reduction are
//! followed so. Only releases and acquires for all of the GPU get here. What one warp learns its whole cluster knows: that hides
//! mistakes at worst, and makes none up.
//!
//! Clusters that do not communicate run on many threads. Nothing orders them, so the ledger is looked through at the end, in the order of
//! addresses and clusters: the same race is reported whatever thread ran which cluster when.

use std::collections::HashMap;

use super::global::{GRANULES, Key, Log, Map, PAGE, place_of};
use super::order::{self, Order};
use super::shadow::{Access, GRANULE};

/// What a cluster did to a page between two moments at which it learnt or passed on something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Entry {
    pub(super) cluster: u64,
    pub(super) kind: Kind,
    pub(super) granules: u64,
    /// For a single granule: its bytes.
    pub(super) bytes: u16,
    /// The actor and the instruction.
    pub(super) actor: order::Actor,
    pub(super) at: u32,
    pub(super) time: u32,
    /// A plain write behind an atomic operation of its warp on the same bytes.
    pub(super) after_atomic: bool,
}

/// What is done, as far as other clusters are concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Read,
    /// Of what nobody may write as long as the launch lasts.
    Constant,
    /// A strong read.
    Poll,
    Atomic,
    Write,
}

impl Kind {
    const ALL: [Self; 5] = [Self::Read, Self::Constant, Self::Poll, Self::Atomic, Self::Write];

    /// Whether accesses of two clusters race if nothing orders them.
    fn races(self, other: Self) -> bool {
        match (self.min(other), self.max(other)) {
            (Self::Read | Self::Constant, kind) => kind >= Self::Atomic,
            (_, kind) => kind == Self::Write,
        }
    }

    /// Whether they do even if something orders them.
    fn excludes(self, other: Self) -> bool {
        self.min(other) == Self::Constant && self.max(other) >= Self::Atomic
    }

    fn access(self) -> Access {
        match self {
            Self::Read => Access::Read,
            Self::Constant => Access::Constant,
            Self::Poll => Access::Poll,
            Self::Atomic => Access::Atomic,
            Self::Write => Access::Write,
        }
    }
}

/// A race between two clusters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Race {
    pub(crate) allocation: usize,
    /// The first byte in the allocation that both touch.
    pub(crate) offset: u64,
    /// The later one of the two clusters, and the other.
    pub(crate) here: Party,
    pub(crate) other: Party,
}

/// One side of a race.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Party {
    pub(crate) cluster: u64,
    pub(crate) actor: order::Actor,
    pub(crate) at: u32,
    pub(crate) access: Access,
}

impl Entry {
    fn party(&self) -> Party {
        Party { cluster: self.cluster, actor: self.actor, at: self.at, access: self.kind.access() }
    }

    /// The first granule and the bytes of it that two clusters touch, one of them in a way that races.
    fn meets(&self, other: &Self) -> Option<(u32, u16)> {
        let (granules, bytes) = (self.granules & other.granules, self.bytes & other.bytes);
        let follows = |write: &Self, other: &Self| {
            write.after_atomic && matches!(other.kind, Kind::Atomic | Kind::Poll)
        };
        let meet = self.cluster != other.cluster
            && granules != 0
            && bytes != 0
            && self.kind.races(other.kind)
            && !follows(self, other)
            && !follows(other, self);
        meet.then_some((granules.trailing_zeros(), bytes))
    }
}

/// Entries among which one is looked for that another can be joined with.
const NEAR: usize = 8;

/// What all clusters of a launch did.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    pages: Map<Page>,
}

#[derive(Debug, Default)]
struct Page {
    entries: Vec<Entry>,
    /// For each kind, the granules of all entries that have it.
    granules: [u64; Kind::ALL.len()],
}

impl Page {
    fn push(&mut self, entry: Entry) {
        self.granules[entry.kind as usize] |= entry.granules;
        self.entries.push(entry);
    }

    /// Whether an entry may race with an existing one.
    fn may_race(&self, entry: &Entry) -> bool {
        Kind::ALL
            .iter()
            .any(|&kind| kind.races(entry.kind) && self.granules[kind as usize] & entry.granules != 0)
    }
}

impl Ledger {
    /// Takes in what a cluster that nothing orders did.
    pub(crate) fn enter(&mut self, cluster: u64, log: &mut Log) {
        log.recent_pages(|key, touched| {
            let page = self.pages.entry(key).or_default();
            let (first, alone) = (page.entries.len(), touched.reads_rows_only());
            touched.tell(cluster, 0, 0, |entry| {
                // In a loop, one instruction reads many granules, each once.
                let same = |e: &&mut Entry| (e.kind, e.actor, e.at) == (entry.kind, entry.actor, entry.at);
                let mut last = page.entries[first..].iter_mut().rev().take(NEAR);
                if alone
                    && entry.kind == Kind::Read
                    && let Some(other) = last.find(same)
                {
                    other.granules |= entry.granules;
                    page.granules[Kind::Read as usize] |= entry.granules;
                } else {
                    page.push(entry);
                }
            });
        });
    }

    /// The first race by address, if nothing orders the clusters.
    pub(crate) fn race(self) -> Option<Race> {
        let racing = self.pages.into_iter().filter_map(|(key, page)| {
            let mut written = page.entries.iter().filter(|e| e.kind >= Kind::Atomic).map(|e| e.cluster);
            let first = written.next()?;
            // Most pages that are written belong to one cluster.
            if page.entries.iter().all(|e| e.cluster == first) || !may_race(&page.entries) {
                return None;
            }
            race_in(key, page.entries)
        });
        racing.min_by_key(|race| (race.allocation, race.offset))
    }
}

/// Whether clusters touch the same granules of a page in ways that race. Each cluster's entries stand together.
fn may_race(entries: &[Entry]) -> bool {
    let (mut others, mut own) = ([0u64; Kind::ALL.len()], [0u64; Kind::ALL.len()]);
    let mut cluster = None;
    entries.iter().any(|entry| {
        if cluster.replace(entry.cluster) != Some(entry.cluster) {
            others.iter_mut().zip(std::mem::take(&mut own)).for_each(|(all, granules)| *all |= granules);
        }
        own[entry.kind as usize] |= entry.granules;
        let meets = |&kind: &Kind| kind.races(entry.kind) && others[kind as usize] & entry.granules != 0;
        Kind::ALL.iter().any(meets)
    })
}

/// The first race in a page: one pass over the entries for each granule.
fn race_in(page: Key, mut entries: Vec<Entry>) -> Option<Race> {
    entries.sort_unstable();
    for granule in 0..GRANULES {
        // For each kind and byte, the first entry. The entries ascend by cluster, so that one of another cluster than the entry at hand
        // is there if and only if the first one is.
        let mut first: [[Option<usize>; GRANULE as usize]; Kind::ALL.len()] = Default::default();
        let mut touched = [0u16; Kind::ALL.len()];
        for (index, entry) in entries.iter().enumerate().filter(|(_, e)| e.granules >> granule & 1 == 1) {
            let against = Kind::ALL.iter().filter(|kind| kind.races(entry.kind));
            let met = against.flat_map(|&kind| {
                let first = &first[kind as usize];
                bits16(touched[kind as usize] & entry.bytes).filter_map(|byte| first[byte])
            });
            let other = met.filter(|&other| entries[other].cluster != entry.cluster).min();
            if let Some(other) = other.map(|other| &entries[other]) {
                return Some(race_of(page, granule, entry, other));
            }
            for byte in bits16(entry.bytes & !touched[entry.kind as usize]) {
                first[entry.kind as usize][byte] = Some(index);
            }
            touched[entry.kind as usize] |= entry.bytes;
        }
    }
    None
}

fn race_of(page: Key, granule: u32, here: &Entry, other: &Entry) -> Race {
    let (allocation, page) = place_of(page);
    let byte = (here.bytes & other.bytes).trailing_zeros();
    let offset = page * PAGE + u64::from(granule * GRANULE + byte);
    Race { allocation, offset, here: here.party(), other: other.party() }
}

fn bits16(mask: u16) -> impl Iterator<Item = usize> {
    (0..16).filter(move |byte| mask >> byte & 1 == 1)
}

/// Up to which time a cluster, or whoever comes to a place, knows of each cluster what it did.
#[derive(Clone, Debug, Default)]
struct Known(Vec<u32>);

impl Known {
    fn of(&self, cluster: u64) -> u32 {
        self.0.get(cluster as usize).copied().unwrap_or(0)
    }

    fn learn(&mut self, cluster: u64, time: u32) {
        let index = cluster as usize;
        if self.0.len() <= index {
            self.0.resize(index + 1, 0);
        }
        self.0[index] = self.0[index].max(time);
    }

    fn join(&mut self, other: &Self) {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        for (to, &from) in self.0.iter_mut().zip(&other.0) {
            *to = from.max(*to);
        }
    }

    /// Whether there is nothing to learn from another.
    fn covers(&self, other: &Self) -> bool {
        other.0.iter().enumerate().all(|(cluster, &time)| time <= self.of(cluster as u64))
    }
}

/// A cluster that runs.
#[derive(Debug)]
struct Member {
    /// Its own time, from 1.
    time: u32,
    known: Known,
    /// What it knew at its last fence, and what its relaxed reads have found since.
    released: Option<Known>,
    found: Known,
    /// The stamp from which on its log has not been looked at.
    since: u32,
}

impl Default for Member {
    fn default() -> Self {
        Self { time: 1, known: Known::default(), released: None, found: Known::default(), since: 0 }
    }
}

/// Times that places may keep together.
const MOST_KEPT: u64 = 1 << 27;
/// Clusters from which on all places are one: what is passed on at any is learnt at all.
const MOST_PLACES: u64 = 1 << 12;

/// The clusters of a launch that communicate, and what they did. They take turns on one thread.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    clusters: u64,
    ledger: Ledger,
    running: HashMap<u64, Member>,
    /// What was left at the places that strong accesses touch.
    places: HashMap<u64, Known>,
    /// The first race.
    race: Option<Race>,
}

impl Turns {
    pub(crate) fn new(clusters: u64) -> Self {
        Self { clusters, ..Self::default() }
    }

    /// The first race that was found.
    pub(crate) fn race(&self) -> Option<Race> {
        self.race
    }

    fn place(&self, address: u64) -> u64 {
        if self.clusters > MOST_PLACES { 0 } else { address }
    }

    fn member(&mut self, cluster: u64) -> &mut Member {
        self.running.entry(cluster).or_default()
    }

    /// A strong read finds what was left at a place. `acquires`: its cluster learns it at once, not at its next fence.
    pub(crate) fn find(
        &mut self,
        cluster: u64,
        address: u64,
        acquires: bool,
        log: &mut Log,
        order: &mut Order,
    ) {
        let place = self.place(address);
        let Some(left) = self.places.remove(&place) else { return };
        if acquires {
            self.learn(cluster, &left, log, order);
        } else {
            self.member(cluster).found.join(&left);
        }
        self.places.insert(place, left);
    }

    fn learn(&mut self, cluster: u64, left: &Known, log: &mut Log, order: &mut Order) {
        if !self.member(cluster).known.covers(left) {
            self.look(cluster, log, Some(order));
            self.member(cluster).known.join(left);
        }
    }

    /// A strong write leaves at a place what its cluster did and knows: up to now if it releases, or else up to its last fence.
    pub(crate) fn leave(
        &mut self,
        cluster: u64,
        address: u64,
        releases: bool,
        log: &mut Log,
        order: &mut Order,
    ) {
        if releases {
            self.release(cluster, log, order);
        }
        let place = self.place(address);
        let member = self.running.entry(cluster).or_default();
        let left = if releases { Some(&member.known) } else { member.released.as_ref() };
        if let Some(left) = left {
            self.places.entry(place).or_default().join(left);
            self.fold_places();
        }
    }

    /// So many places that what is kept of them is too much become one.
    fn fold_places(&mut self) {
        if self.places.len() as u64 * self.clusters > MOST_KEPT {
            self.clusters = u64::MAX;
            let all = self.places.drain().fold(Known::default(), |mut all, (_, known)| {
                all.join(&known);
                all
            });
            self.places.insert(self.place(0), all);
        }
    }

    /// What a cluster did and knows; what it does from now on is not part of it.
    fn release(&mut self, cluster: u64, log: &mut Log, order: &mut Order) {
        self.look(cluster, log, Some(order));
        let member = self.member(cluster);
        member.time += 1;
        let time = member.time;
        member.known.learn(cluster, time);
    }

    /// A fence: relaxed reads before it acquire, relaxed writes behind it release.
    pub(crate) fn fence(&mut self, cluster: u64, log: &mut Log, order: &mut Order) {
        let found = std::mem::take(&mut self.member(cluster).found);
        self.learn(cluster, &found, log, order);
        self.release(cluster, log, order);
        let member = self.member(cluster);
        member.found = found;
        member.released = Some(member.known.clone());
    }

    /// A cluster has run to its end.
    pub(crate) fn end(&mut self, cluster: u64, log: &mut Log) {
        self.look(cluster, log, None);
        self.running.remove(&cluster);
    }

    /// Takes in what a cluster did since its log was last looked at, and looks for races. What it knows, and its time, were the same for
    /// all of that.
    fn look(&mut self, cluster: u64, log: &mut Log, order: Option<&mut Order>) {
        let now = order.map_or(0, Order::tick);
        let member = self.member(cluster);
        let (time, since) = (member.time, std::mem::replace(&mut member.since, now));
        let known = std::mem::take(&mut member.known);
        let (ledger, race) = (&mut self.ledger, &mut self.race);
        log.recent(cluster, time, since, |key, entry| {
            let page = ledger.pages.entry(key).or_default();
            if race.is_none() && page.may_race(&entry) {
                let unordered = |other: &&Entry| {
                    other.meets(&entry).is_some()
                        && (other.time >= known.of(other.cluster) || other.kind.excludes(entry.kind))
                };
                if let Some(other) = page.entries.iter().find(unordered)
                    && let Some((granule, _)) = other.meets(&entry)
                {
                    *race = Some(race_of(key, granule, &entry, other));
                }
            }
            // What the cluster did before to the same bytes in the same way is behind whatever is behind this.
            let first = since == 0;
            let keep = |other: &mut Entry| {
                if other.cluster == cluster && other.kind == entry.kind && other.bytes & !entry.bytes == 0 {
                    other.granules &= !entry.granules;
                }
                other.granules != 0
            };
            if !first {
                page.entries.retain_mut(keep);
            }
            page.push(entry);
        });
        self.member(cluster).known = known;
    }
}

#[cfg(test)]
mod tests {
    use super::super::shadow::Who;
    use super::*;

    const PLACE: (usize, u64) = (3, 5);
    use Access::{Atomic, Constant, Read, Write};

    fn note(log: &mut Log, order: &Order, granule: u32, bytes: u16, at: u32, access: Access) {
        log.access(order, PLACE, 1 << granule, bytes, Who { actor: 0, at }, (access, false)).unwrap();
    }

    #[test]
    fn clusters_race_wherever_one_writes_what_another_touches() {
        let order = Order::new(1, false);
        let run = |accesses: &[(u64, u32, u16, Access)]| {
            let mut ledger = Ledger::default();
            for (i, &(cluster, granule, bytes, access)) in accesses.iter().enumerate() {
                let mut log = Log::default();
                note(&mut log, &order, granule, bytes, i as u32, access);
                ledger.enter(cluster, &mut log);
            }
            ledger.race()
        };
        assert_eq!(run(&[(0, 7, 3, Write), (1, 7, 12, Write), (2, 8, 1, Read), (3, 8, 1, Read)]), None);
        assert_eq!(run(&[(0, 7, 3, Atomic), (1, 7, 3, Atomic)]), None);
        assert_eq!(run(&[(0, 7, 3, Constant), (1, 7, 3, Read)]), None);
        for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0]] {
            let all = [(0, 7, 3, Read), (1, 7, 2, Write), (2, 9, 1, Write)];
            let race = run(&order.map(|i| all[i])).unwrap();
            assert_eq!((race.allocation, race.offset), (3, 5 * PAGE + 7 * 16 + 1));
            assert_eq!((race.here.cluster, race.other.cluster, race.other.access), (1, 0, Read));
        }
        assert!(run(&[(4, 7, 3, Atomic), (1, 7, 2, Read)]).is_some());
        assert!(run(&[(4, 7, 3, Constant), (1, 7, 2, Write)]).is_some());
    }

    #[test]
    fn a_page_that_very_many_clusters_read_takes_one_pass() {
        let (order, mut ledger) = (Order::new(1, false), Ledger::default());
        for cluster in 0..100_000 {
            let mut log = Log::default();
            note(&mut log, &order, 7, 15, 1, Read);
            if cluster == 0 {
                note(&mut log, &order, 7, 15 << 4, 2, Write);
            }
            ledger.enter(cluster, &mut log);
        }
        // Comparing each with each would take minutes.
        assert_eq!(ledger.race(), None);
    }

    /// Two clusters and their logs.
    struct Two {
        turns: Turns,
        logs: [Log; 2],
        orders: [Order; 2],
    }

    impl Two {
        fn new() -> Self {
            Self {
                turns: Turns::new(2),
                logs: Default::default(),
                orders: [Order::new(1, false), Order::new(1, false)],
            }
        }

        fn touch(&mut self, cluster: usize, granule: u32, access: Access) {
            note(&mut self.logs[cluster], &self.orders[cluster], granule, 15, granule, access);
        }

        fn leave(&mut self, cluster: usize, releases: bool) {
            self.turns.leave(
                cluster as u64,
                64,
                releases,
                &mut self.logs[cluster],
                &mut self.orders[cluster],
            );
        }

        fn find(&mut self, cluster: usize, acquires: bool) {
            self.turns.find(cluster as u64, 64, acquires, &mut self.logs[cluster], &mut self.orders[cluster]);
        }

        fn fence(&mut self, cluster: usize) {
            self.turns.fence(cluster as u64, &mut self.logs[cluster], &mut self.orders[cluster]);
        }

        fn race(mut self) -> Option<Race> {
            for cluster in [0, 1] {
                self.turns.end(cluster, &mut self.logs[cluster as usize]);
            }
            self.turns.race()
        }
    }

    #[test]
    fn what_is_released_before_it_is_acquired_is_in_order() {
        let ordered = |releases, acquires, write_late: bool| {
            let mut two = Two::new();
            if !write_late {
                two.touch(0, 1, Write);
            }
            two.leave(0, releases);
            if write_late {
                two.touch(0, 1, Write);
            }
            two.find(1, acquires);
            two.touch(1, 1, Read);
            two.race().is_none()
        };
        assert!(ordered(true, true, false));
        assert!(!ordered(false, true, false), "a relaxed write passes nothing on");
        assert!(!ordered(true, false, false), "a relaxed read learns nothing");
        assert!(!ordered(true, true, true), "what comes behind the release is not part of it");
    }

    #[test]
    fn fences_order_relaxed_accesses_around_them() {
        for (first, second) in [(true, true), (false, true), (true, false)] {
            let mut two = Two::new();
            two.touch(0, 1, Write);
            if first {
                two.fence(0);
            }
            two.leave(0, false);
            two.find(1, false);
            if second {
                two.fence(1);
            }
            two.touch(1, 1, Write);
            assert_eq!(two.race().is_none(), first && second);
        }
    }

    #[test]
    fn atomic_operations_hide_no_plain_write_of_the_same_kernel() {
        let mut two = Two::new();
        for cluster in [0, 1] {
            two.touch(cluster, 2, Atomic);
            two.touch(cluster, 1, Write);
        }
        let race = two.race().unwrap();
        assert_eq!((race.offset, race.here.cluster), (5 * PAGE + 16, 1));
    }

    #[test]
    fn what_counts_as_constant_must_not_be_written_at_any_time() {
        let mut two = Two::new();
        two.touch(0, 1, Write);
        two.leave(0, true);
        two.find(1, true);
        two.touch(1, 1, Constant);
        assert!(two.race().is_some());
    }
}
