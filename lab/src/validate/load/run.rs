//! The course of a load: works in groups, and each group through all phases.

use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use warpsmith::device::{Device, DeviceKind};
use warpsmith::error::{Error, Result};
use warpsmith::stream::Stream;
use warpsmith::tensor::Tensor;

use super::Options;
use super::compare::{Comparer, Reference};
use super::report::{Failure, Phase, PhaseOutcome, Report, WorkOutcome};
use super::work::{Prepared, Work};
use super::worker::{Blamed, Findings, GRAPHS, Lane, Random, Worker, difference, launches};

/// The operation's name in errors.
const OPERATION: &str = "validate::load";
/// Bytes that no device has.
const TOO_MANY_BYTES: usize = 1 << 50;
/// Parts in which the memory of a GPU is taken.
const PARTS: usize = 4;
/// Runs of each work alone.
const ALONE: u64 = 3;

/// How far a load has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Progress {
    /// The phase under way.
    pub phase: Phase,
    /// Phases of groups that are over, and how many there are of them.
    pub step: usize,
    /// How many steps there are.
    pub steps: usize,
    /// Runs that have just been compared.
    pub runs: u64,
}

/// Runs `works` on `device` under load, and compares the bits of every result with those of a run alone. `progress` is called from several threads.
///
/// Works are mixed at random, [`Options::together`] at a time, and each group goes through all phases. A work that cannot be prepared is reported and
/// left out; after an error of a run nothing else runs.
///
/// # Errors
///
/// [`Error::Argument`] for options that make no load; whatever making streams and loading the kernel that compares return. Errors of works are in the
/// report.
pub fn run(
    device: &Device,
    works: &[Work],
    options: &Options,
    progress: &(dyn Fn(Progress) + Sync),
) -> Result<Report> {
    options.check()?;
    let outcome = |work: &Work| WorkOutcome {
        name: work.name().to_owned(),
        implementation: String::new(),
        runs: 0,
        differing: 0,
        first: None,
        failure: None,
    };
    let mut phases = vec![Phase::Alone];
    phases.extend(options.phases.iter().filter(|&&phase| phase != Phase::Alone));
    let phase = |&phase: &Phase| PhaseOutcome { phase, runs: 0, differing: 0, seconds: 0.0 };
    let mut report = Report {
        works: works.iter().map(outcome).collect(),
        phases: phases.iter().map(phase).collect(),
        failures: Vec::new(),
    };
    let mut order: Vec<usize> = (0..works.len()).collect();
    Random::new(options.seed, u64::MAX).shuffle(&mut order);
    let comparer = Arc::new(Comparer::new(device)?);
    let streams = (0..options.threads).map(|_| device.new_stream()).collect::<Result<Vec<_>>>()?;
    let groups: Vec<_> = order.chunks(options.together).collect();
    let steps = groups.len() * phases.len();
    for (number, numbers) in groups.into_iter().enumerate() {
        let told = |index: usize, runs: u64| {
            progress(Progress { phase: phases[index], step: number * phases.len() + index, steps, runs });
        };
        let load = Load { device, options, comparer: &comparer, streams: &streams, seed: number as u64 };
        let members: Vec<&Work> = numbers.iter().map(|&number| &works[number]).collect();
        if !load.group(&members, numbers, &mut report, &told) {
            break;
        }
    }
    Ok(report)
}

/// What the groups of a load have in common.
struct Load<'a> {
    device: &'a Device,
    options: &'a Options,
    comparer: &'a Arc<Comparer>,
    streams: &'a [Stream],
    seed: u64,
}

/// Waits for a device when dropped: what others read without order is freed only after that.
struct Waits<'a>(&'a Device);

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        // Where the driver's context is broken it reads no more either.
        let _ = self.0.synchronize();
    }
}

impl Load<'_> {
    /// Runs a group of works through all phases; whether there was no error.
    fn group(
        &self,
        works: &[&Work],
        numbers: &[usize],
        report: &mut Report,
        told: &(dyn Fn(usize, u64) + Sync),
    ) -> bool {
        let start = Instant::now();
        let fail = |report: &mut Report, phase, Blamed { at, error }: Blamed| {
            let outcome = at.and_then(|at| report.works.get_mut(*numbers.get(at)?));
            let failure = Failure { phase, error };
            match outcome {
                Some(outcome) if outcome.failure.is_none() => outcome.failure = Some(failure),
                Some(_) => {}
                None => report.failures.push(failure),
            }
        };
        // The first thread's works tell which can be prepared at all.
        let first = self.prepare(works, &self.streams[0]);
        let mut prepared = Vec::new();
        for (at, result) in first.into_iter().enumerate() {
            match result {
                Ok(work) => {
                    report.works[numbers[at]].implementation = work.implementation().to_owned();
                    prepared.push((at, work));
                }
                Err(error) => fail(report, None, Blamed { at: Some(at), error }),
            }
        }
        let mut lanes = Vec::new();
        for (at, work) in prepared {
            match self.alone((at, works[at]), work, numbers[at], report) {
                Ok(lane) => lanes.push(lane),
                Err(error) => fail(report, Some(Phase::Alone), Blamed { at: Some(at), error }),
            }
        }
        // After an error of a run the device may do nothing more.
        if lanes.len() < works.len() && report.works.iter().any(failed_alone) {
            return false;
        }
        let mut workers = match self.workers(works, lanes) {
            Ok(workers) => workers,
            Err(blamed) => {
                fail(report, None, blamed);
                return false;
            }
        };
        let waits = Waits(self.device);
        report.phases[0].seconds += start.elapsed().as_secs_f64();
        told(0, 0);
        for index in 1..report.phases.len() {
            let (phase, start) = (report.phases[index].phase, Instant::now());
            let errors = self.phase(phase, &mut workers, &|runs| told(index, runs));
            for worker in &mut workers {
                let count = worker.findings.runs.len();
                let empty = Findings { runs: vec![(0, 0); count], first: Vec::new() };
                let Findings { runs, first } = std::mem::replace(&mut worker.findings, empty);
                for (&number, (runs, differing)) in numbers.iter().zip(runs) {
                    let outcome = &mut report.works[number];
                    outcome.runs += runs;
                    outcome.differing += differing;
                    report.phases[index].runs += runs;
                    report.phases[index].differing += differing;
                }
                for (at, difference) in first {
                    report.works[numbers[at]].first.get_or_insert(difference);
                }
            }
            report.phases[index].seconds += start.elapsed().as_secs_f64();
            if !errors.is_empty() {
                errors.into_iter().for_each(|blamed| fail(report, Some(phase), blamed));
                return false;
            }
        }
        drop(waits);
        true
    }

    /// Prepares works for a thread.
    fn prepare(&self, works: &[&Work], stream: &Stream) -> Vec<Result<Prepared>> {
        stream.as_default(|| works.iter().map(|work| work.prepare(self.device)).collect())
    }

    /// Runs a work alone, which tells what is expected of it.
    fn alone(
        &self,
        (at, work): (usize, &Work),
        mut prepared: Prepared,
        number: usize,
        report: &mut Report,
    ) -> Result<Lane> {
        let stream = &self.streams[0];
        let read = |prepared: &Prepared| {
            let outputs = prepared.outputs().first().map_or(&[][..], Vec::as_slice);
            outputs.iter().map(|output| output.read()).collect::<Result<Vec<_>>>()
        };
        let initial = read(&prepared)?;
        let mut references: Vec<Arc<Reference>> = Vec::new();
        for round in 1..=ALONE {
            stream.as_default(|| prepared.run(0))?;
            stream.synchronize()?;
            let results = read(&prepared)?;
            if round == 1 {
                for (index, (initial, result)) in initial.iter().zip(&results).enumerate() {
                    let output = &prepared.outputs()[0][index];
                    let reference = Reference::new(self.device, output, initial.clone(), result.clone())?;
                    references.push(Arc::new(reference));
                }
            }
            let found = references.iter().zip(&results).map(|(reference, result)| {
                let record = reference.compare(result);
                (record.different > 0).then(|| difference(reference, record, (Phase::Alone, 0, round)))
            });
            let (outcome, phase) = (&mut report.works[number], &mut report.phases[0]);
            let found = found.flatten().next();
            outcome.runs += 1;
            phase.runs += 1;
            if let Some(found) = found {
                outcome.differing += 1;
                phase.differing += 1;
                outcome.first.get_or_insert(found);
            }
            for (output, initial) in prepared.outputs_mut()[0].iter_mut().zip(&initial) {
                output.write(initial)?;
            }
        }
        Ok(self.lane((at, work), prepared, references))
    }

    fn lane(&self, (at, work): (usize, &Work), prepared: Prepared, references: Vec<Arc<Reference>>) -> Lane {
        Lane::new(at, prepared, references, work.is_capturable(), work.rounds_of(self.options.rounds))
    }

    /// The threads' works: those of the first as they are, and the same for each other one.
    fn workers(&self, works: &[&Work], lanes: Vec<Lane>) -> Result<Vec<Worker>, Blamed> {
        let count = works.len();
        let kept: Vec<_> = lanes.iter().map(|lane| (lane.at, lane.references.clone())).collect();
        let worker = |number: usize, lanes: Vec<Lane>| {
            let stream = self.streams[number].clone();
            let seed = self.options.seed.wrapping_add(self.seed << 32);
            stream.clone().as_default(|| {
                Worker::new(number, stream, lanes, self.comparer.clone(), seed, count).map_err(Blamed::from)
            })
        };
        let kept = &kept;
        let worker = &worker;
        let others: Vec<Result<Worker, Blamed>> = in_threads((1..self.options.threads).map(|number| {
            move || {
                let members: Vec<&Work> = kept.iter().map(|(at, _)| works[*at]).collect();
                let prepared = self.prepare(&members, &self.streams[number]);
                let mut lanes = Vec::with_capacity(prepared.len());
                for (prepared, (at, references)) in prepared.into_iter().zip(kept) {
                    let prepared = prepared.map_err(|error| Blamed { at: Some(*at), error })?;
                    lanes.push(self.lane((*at, works[*at]), prepared, references.clone()));
                }
                worker(number, lanes)
            }
        }));
        let mut all = vec![worker(0, lanes)?];
        for other in others {
            all.push(other?);
        }
        // What was uploaded for all is there before anybody reads it without order.
        self.device.synchronize()?;
        Ok(all)
    }

    /// Runs a phase; its errors.
    fn phase(&self, phase: Phase, workers: &mut [Worker], told: &(dyn Fn(u64) + Sync)) -> Vec<Blamed> {
        let threads = workers.len();
        workers.iter_mut().for_each(|worker| worker.begin(phase));
        if phase == Phase::OutOfMemory
            && let Err(error) = self.exhaust()
        {
            return vec![error.into()];
        }
        let count = if phase == Phase::Queue { 1 } else { threads };
        // How many threads have yet to end what the first one disturbs.
        let others = &AtomicUsize::new(count - 1);
        let results = in_threads(workers.iter_mut().take(count).map(|worker| {
            move || {
                let (stream, is_first) = (worker.stream.clone(), worker.number == 0);
                let _ended = (!is_first).then(|| Ends(others));
                stream.as_default(|| match phase {
                    Phase::Alone => Ok(()),
                    Phase::Queue => worker.repeat(told),
                    Phase::Streams => worker.mix(threads, told, || Ok(())),
                    Phase::Graphs => worker.graphs(GRAPHS, |lanes| launches(threads, lanes), told),
                    Phase::Captures if is_first => loop {
                        worker.graphs(1, |_| 2, told)?;
                        if others.load(Ordering::Acquire) == 0 {
                            return Ok(());
                        }
                    },
                    Phase::Captures => worker.mix(threads, told, || Ok(())),
                    Phase::OutOfMemory => worker.mix(threads, told, || match is_first {
                        true => self.fail_to_allocate(TOO_MANY_BYTES),
                        false => Ok(()),
                    }),
                })
            }
        }));
        results.into_iter().filter_map(Result::err).collect()
    }

    /// Takes the memory that a GPU has, until there is none, and gives it back; elsewhere it asks for more than there is.
    fn exhaust(&self) -> Result<()> {
        // What is pooled would be given out beside what is free.
        self.device.release_memory()?;
        let mut taken: Vec<Tensor<u8>> = Vec::new();
        if let DeviceKind::Cuda(_) = self.device.kind() {
            let bytes = self.device.memory_stats()?.free / PARTS as u64;
            let bytes = usize::try_from(bytes).unwrap_or(TOO_MANY_BYTES);
            loop {
                match Tensor::uninit(self.device, [bytes]) {
                    Ok(memory) if taken.len() < 2 * PARTS => taken.push(memory),
                    Err(Error::OutOfMemory { .. }) => break,
                    other => return Err(no_failure(bytes, other)),
                }
            }
        }
        self.fail_to_allocate(TOO_MANY_BYTES)?;
        drop(taken);
        self.device.release_memory()
    }

    /// Makes an allocation that has to fail.
    fn fail_to_allocate(&self, bytes: usize) -> Result<()> {
        match Tensor::uninit(self.device, [bytes]) {
            Err(Error::OutOfMemory { .. }) => Ok(()),
            other => Err(no_failure(bytes, other)),
        }
    }
}

/// The error for an allocation that had to fail for want of memory and did not.
fn no_failure(bytes: usize, outcome: Result<Tensor<u8>>) -> Error {
    Error::Argument {
        operation: OPERATION,
        argument: "allocation",
        expected: "the error that memory is out".into(),
        actual: match outcome {
            Ok(_) => format!("{bytes} bytes of memory"),
            Err(error) => error.to_string(),
        },
    }
}

/// Whether a run alone ended with an error.
fn failed_alone(work: &WorkOutcome) -> bool {
    work.failure.as_ref().is_some_and(|failure| failure.phase == Some(Phase::Alone))
}

/// Counts down when dropped.
struct Ends<'a>(&'a AtomicUsize);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Calls each function in a thread of its own; a panic of one is that of the caller.
fn in_threads<R: Send, F: FnOnce() -> R + Send>(functions: impl Iterator<Item = F>) -> Vec<R> {
    thread::scope(|scope| {
        let threads: Vec<_> = functions.map(|function| scope.spawn(function)).collect();
        let results = threads.into_iter().map(|thread| thread.join());
        results.map(|result| result.unwrap_or_else(|panic| resume_unwind(panic))).collect()
    })
}
