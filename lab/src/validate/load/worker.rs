//! A thread of a load: its stream, its works, and what it has found.

use std::cell::Cell;
use std::sync::Arc;

use warpsmith::device::Device;
use warpsmith::error::{Error, Result};
use warpsmith::stream::Stream;

use super::compare::{Comparer, Ledger, Record, Reference};
use super::report::{Difference, Phase};
use super::work::Prepared;
use crate::cases::split_mix;

/// Comparisons between two waits for the stream.
const COMPARISONS: usize = 512;
/// Works of a graph.
const OF_A_GRAPH: usize = 8;
/// Runs of each work in a graph, where it has outputs for as many.
const RUNS_IN_A_GRAPH: usize = 2;
/// Graphs of a thread at a time.
pub(super) const GRAPHS: usize = 4;
/// Launches of a graph between two waits for the stream.
const LAUNCHES: usize = 64;

/// An error, and the work that it is of if that is known, by its number in the group.
#[derive(Debug)]
pub(super) struct Blamed {
    pub(super) at: Option<usize>,
    pub(super) error: Error,
}

impl From<Error> for Blamed {
    fn from(error: Error) -> Self {
        Self { at: None, error }
    }
}

/// Blames a work for an error.
fn blame(at: usize) -> impl Fn(Error) -> Blamed {
    move |error| Blamed { at: Some(at), error }
}

/// A work as a thread has it.
pub(super) struct Lane {
    /// Its number in the group.
    pub(super) at: usize,
    pub(super) prepared: Prepared,
    pub(super) references: Vec<Arc<Reference>>,
    pub(super) is_capturable: bool,
    /// How often it runs in a phase, by all threads together.
    pub(super) times: usize,
    /// Of each slot, the run whose result is there and has yet to be compared.
    waiting: Vec<Option<u64>>,
    next: usize,
    rounds: u64,
}

impl Lane {
    pub(super) fn new(
        at: usize,
        prepared: Prepared,
        references: Vec<Arc<Reference>>,
        is_capturable: bool,
        times: usize,
    ) -> Self {
        let waiting = vec![None; prepared.outputs().len()];
        Self { at, prepared, references, is_capturable, times, waiting, next: 0, rounds: 0 }
    }
}

/// Numbers that a seed decides.
pub(super) struct Random {
    seed: u64,
    next: u64,
}

impl Random {
    pub(super) fn new(seed: u64, stream: u64) -> Self {
        Self { seed: split_mix(seed, stream), next: 0 }
    }

    fn below(&mut self, bound: usize) -> usize {
        self.next += 1;
        (split_mix(self.seed, self.next) % bound.max(1) as u64) as usize
    }

    pub(super) fn shuffle<T>(&mut self, values: &mut [T]) {
        for last in (1..values.len()).rev() {
            values.swap(last, self.below(last + 1));
        }
    }
}

/// A comparison that is under way.
#[derive(Clone, Copy)]
struct Pending {
    lane: usize,
    output: usize,
    round: u64,
}

/// What a thread has found of a phase.
#[derive(Default)]
pub(super) struct Findings {
    /// Runs that were compared and runs that differed, of each work of the group.
    pub(super) runs: Vec<(u64, u64)>,
    /// The first difference of each work that has one.
    pub(super) first: Vec<(usize, Difference)>,
}

/// A thread of a load.
pub(super) struct Worker {
    pub(super) number: usize,
    pub(super) stream: Stream,
    pub(super) lanes: Vec<Lane>,
    comparer: Arc<Comparer>,
    random: Random,
    ledger: Ledger,
    pending: Vec<Pending>,
    phase: Phase,
    pub(super) findings: Findings,
}

impl Worker {
    /// The thread `number`, on its stream as the default stream, with `lanes` of a group of `count` works.
    pub(super) fn new(
        number: usize,
        stream: Stream,
        lanes: Vec<Lane>,
        comparer: Arc<Comparer>,
        seed: u64,
        count: usize,
    ) -> Result<Self> {
        let most = lanes.iter().map(|lane| lane.references.len()).max().unwrap_or(0);
        let ledger = Ledger::new(stream.device(), COMPARISONS.max(most), 1)?;
        Ok(Self {
            number,
            stream,
            lanes,
            comparer,
            random: Random::new(seed, number as u64),
            ledger,
            pending: Vec::new(),
            phase: Phase::Alone,
            findings: Findings { runs: vec![(0, 0); count], first: Vec::new() },
        })
    }

    /// Begins a phase: runs are counted from 1.
    pub(super) fn begin(&mut self, phase: Phase) {
        self.phase = phase;
        self.lanes.iter_mut().for_each(|lane| lane.rounds = 0);
    }

    fn device(&self) -> &Device {
        self.stream.device()
    }

    /// Enqueues every work as often as all threads together do, one after the other with all its runs.
    pub(super) fn repeat(&mut self, told: &dyn Fn(u64)) -> Result<(), Blamed> {
        let mut order: Vec<_> = (0..self.lanes.len()).collect();
        self.random.shuffle(&mut order);
        for lane in order {
            for _ in 0..self.lanes[lane].times {
                self.enqueue(lane, told)?;
            }
        }
        self.finish(told)
    }

    /// Enqueues one of `threads` shares of the runs of every work in random order, most of them several times in succession; calls `between` now and
    /// then.
    pub(super) fn mix(
        &mut self,
        threads: usize,
        told: &dyn Fn(u64),
        mut between: impl FnMut() -> Result<()>,
    ) -> Result<(), Blamed> {
        let mut order = Vec::new();
        for (index, lane) in self.lanes.iter().enumerate() {
            let mut left = lane.times.div_ceil(threads);
            while left > 0 {
                let burst = (1 + self.random.below(lane.waiting.len())).min(left);
                order.push((index, burst));
                left -= burst;
            }
        }
        self.random.shuffle(&mut order);
        for (number, (lane, burst)) in order.into_iter().enumerate() {
            for _ in 0..burst {
                self.enqueue(lane, told)?;
            }
            if number % COMPARISONS == 0 {
                between()?;
            }
        }
        self.finish(told)
    }

    /// Enqueues a run, after the comparison of what is where its result goes.
    fn enqueue(&mut self, index: usize, told: &dyn Fn(u64)) -> Result<(), Blamed> {
        let slot = self.lanes[index].next;
        self.check(index, slot, told)?;
        let lane = &mut self.lanes[index];
        lane.prepared.run(slot).map_err(blame(lane.at))?;
        lane.next = (slot + 1) % lane.waiting.len();
        lane.rounds += 1;
        lane.waiting[slot] = Some(lane.rounds);
        Ok(())
    }

    /// Enqueues the comparison of what is in a slot, if that is something.
    fn check(&mut self, index: usize, slot: usize, told: &dyn Fn(u64)) -> Result<(), Blamed> {
        let Some(round) = self.lanes[index].waiting[slot].take() else { return Ok(()) };
        if self.pending.len() + self.lanes[index].references.len() > self.ledger.capacity() {
            self.settle(told)?;
        }
        let lane = &mut self.lanes[index];
        let outputs = &mut lane.prepared.outputs_mut()[slot];
        let first = self.pending.len();
        self.comparer
            .check(&self.stream, outputs, &lane.references, &self.ledger, first)
            .map_err(blame(lane.at))?;
        let outputs = 0..lane.references.len();
        self.pending.extend(outputs.map(|output| Pending { lane: index, output, round }));
        Ok(())
    }

    /// Compares all that has yet to be compared.
    fn finish(&mut self, told: &dyn Fn(u64)) -> Result<(), Blamed> {
        for index in 0..self.lanes.len() {
            for slot in 0..self.lanes[index].waiting.len() {
                self.check(index, slot, told)?;
            }
        }
        self.settle(told)
    }

    /// Waits for the comparisons that are under way.
    fn settle(&mut self, told: &dyn Fn(u64)) -> Result<(), Blamed> {
        if self.pending.is_empty() {
            return Ok(());
        }
        self.ledger.keep(0)?;
        let rows = self.ledger.read(1)?;
        let pending = std::mem::take(&mut self.pending);
        for row in &rows {
            told(self.note(&pending, row));
        }
        Ok(())
    }

    /// Takes down what comparisons have found; gives the number of runs.
    fn note(&mut self, pending: &[Pending], records: &[Record]) -> u64 {
        let (phase, thread, findings) = (self.phase, self.number, &mut self.findings);
        let (mut compared, mut differing) = (0, None);
        for (&Pending { lane: index, output, round }, record) in pending.iter().zip(records) {
            let lane = &self.lanes[index];
            let Some((runs, different)) = findings.runs.get_mut(lane.at) else { continue };
            if output == 0 {
                *runs += 1;
                compared += 1;
            }
            if record.different == 0 {
                continue;
            }
            // The outputs of a run follow each other.
            if differing != Some((index, round)) {
                differing = Some((index, round));
                *different += 1;
            }
            if findings.first.iter().any(|(at, _)| *at == lane.at) {
                continue;
            }
            findings
                .first
                .push((lane.at, difference(&lane.references[output], *record, (phase, thread, round))));
        }
        compared
    }

    /// Captures graphs of all works that can be captured, `at_once` of them at a time, and launches each as often as `launches` says of the
    /// works in them.
    pub(super) fn graphs(
        &mut self,
        at_once: usize,
        launches: impl Fn(&[&Lane]) -> usize,
        told: &dyn Fn(u64),
    ) -> Result<(), Blamed> {
        let mut order: Vec<_> =
            (0..self.lanes.len()).filter(|&lane| self.lanes[lane].is_capturable).collect();
        self.random.shuffle(&mut order);
        for members in order.chunks(OF_A_GRAPH * at_once) {
            let lanes: Vec<_> = members.iter().map(|&member| &self.lanes[member]).collect();
            let launches = launches(&lanes);
            self.graphs_of(members, launches, told)?;
        }
        Ok(())
    }

    /// The same of some works, all graphs at a time.
    fn graphs_of(&mut self, members: &[usize], launches: usize, told: &dyn Fn(u64)) -> Result<(), Blamed> {
        let device = self.device().clone();
        let plans: Vec<Vec<Pending>> = members.chunks(OF_A_GRAPH).map(|members| self.plan(members)).collect();
        let ledgers = plans.iter().map(|plan| Ledger::new(&device, plan.len(), LAUNCHES));
        let ledgers = ledgers.collect::<Result<Vec<_>>>()?;
        // One launch more for the capture, in which the work runs, too.
        let mut done = vec![0; plans.len()];
        let mut kept: Vec<(usize, u64, Vec<Vec<Record>>)> = Vec::new();
        {
            let (stream, comparer) = (&self.stream, &self.comparer);
            let mut lanes: Vec<Option<&mut Lane>> = self.lanes.iter_mut().map(Some).collect();
            let at_fault = Cell::new(None);
            let blamed = |error| Blamed { at: at_fault.get(), error };
            let mut graphs = Vec::with_capacity(plans.len());
            for (members, ledger) in members.chunks(OF_A_GRAPH).zip(&ledgers) {
                let mut of_graph: Vec<&mut Lane> =
                    members.iter().filter_map(|&member| lanes.get_mut(member)?.take()).collect();
                let at_fault = &at_fault;
                let work = move || {
                    for lane in &mut of_graph {
                        at_fault.set(Some(lane.at));
                        (0..runs_in_a_graph(lane)).try_for_each(|slot| lane.prepared.run(slot))?;
                    }
                    let mut first = 0;
                    for lane in &mut of_graph {
                        at_fault.set(Some(lane.at));
                        for slot in 0..runs_in_a_graph(lane) {
                            let outputs = &mut lane.prepared.outputs_mut()[slot];
                            comparer.check(stream, outputs, &lane.references, ledger, first)?;
                            first += lane.references.len();
                        }
                    }
                    at_fault.set(None);
                    Ok(())
                };
                // SAFETY: this thread alone has the stream. The work owns its lanes, with operands and outputs, and borrows what it compares with, which
                // lives longer than the graph; `Prepared` has been made of work that can be captured, which keeps its operands likewise.
                graphs.push(unsafe { stream.capture(work) }.map_err(blamed)?);
            }
            for graph in 0..graphs.len() {
                ledgers[graph].keep(0)?;
                done[graph] = 1;
            }
            for _ in 0..launches {
                let mut order: Vec<_> = (0..graphs.len()).collect();
                self.random.shuffle(&mut order);
                for index in order {
                    let row = done[index] % LAUNCHES;
                    if row == 0 && done[index] > 0 {
                        kept.push((index, (done[index] - LAUNCHES) as u64, ledgers[index].read(LAUNCHES)?));
                    }
                    graphs[index].launch().map_err(blamed)?;
                    ledgers[index].keep(row)?;
                    done[index] += 1;
                }
            }
            for (index, ledger) in ledgers.iter().enumerate() {
                let rows = (done[index] - 1) % LAUNCHES + 1;
                kept.push((index, (done[index] - rows) as u64, ledger.read(rows)?));
            }
        }
        for (index, first, rows) in kept {
            for (launch, row) in (first..).zip(&rows) {
                let plan: Vec<Pending> = plans[index]
                    .iter()
                    .map(|&pending| Pending {
                        round: pending.round + launch * runs_in_a_graph(&self.lanes[pending.lane]) as u64,
                        ..pending
                    })
                    .collect();
                told(self.note(&plan, row));
            }
        }
        Ok(())
    }

    /// The comparisons of a graph.
    fn plan(&self, members: &[usize]) -> Vec<Pending> {
        let of = |&lane: &usize| {
            let outputs = self.lanes[lane].references.len();
            (1..=runs_in_a_graph(&self.lanes[lane]) as u64)
                .flat_map(move |round| (0..outputs).map(move |output| Pending { lane, output, round }))
        };
        members.iter().flat_map(of).collect()
    }
}

/// How often each of `threads` threads launches graphs of some works so that each runs as often as it is to.
pub(super) fn launches(threads: usize, lanes: &[&Lane]) -> usize {
    let of = |lane: &&Lane| lane.times.div_ceil(threads).div_ceil(runs_in_a_graph(lane).max(1));
    lanes.iter().map(of).max().unwrap_or(0)
}

fn runs_in_a_graph(lane: &Lane) -> usize {
    lane.waiting.len().min(RUNS_IN_A_GRAPH)
}

/// A run that differs.
pub(super) fn difference(
    reference: &Reference,
    record: Record,
    (phase, thread, round): (Phase, usize, u64),
) -> Difference {
    let (index, expected, got) = reference.locate(record.first);
    Difference {
        phase,
        thread,
        round,
        output: reference.name,
        different: record.different.into(),
        elements: reference.shape.iter().product::<usize>() as u64,
        index,
        got,
        expected,
    }
}
