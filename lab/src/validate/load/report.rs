//! What a load has found.

use std::fmt;

use warpsmith::device::DeviceKind;
use warpsmith::error::Error;

/// A part of a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Phase {
    /// Three runs of each work with nothing beside them. The first decides what is expected. Not one of [`ALL`](Self::ALL), since it always comes
    /// first.
    Alone,
    /// One thread enqueues each work again and again on one stream, without waiting.
    Queue,
    /// All threads do so, each on a stream of its own and with the works in an order of its own.
    Streams,
    /// All threads capture graphs of several works, of which each has several, and launch them again and again.
    Graphs,
    /// As `Streams`, while the first thread captures graphs, launches them and drops them.
    Captures,
    /// As `Streams`, after allocations have failed for want of memory and the pool was released; the first thread goes on with such allocations.
    OutOfMemory,
}

impl Phase {
    /// Every phase that can be asked for, in the usual order.
    pub const ALL: [Self; 5] = [Self::Queue, Self::Streams, Self::Graphs, Self::Captures, Self::OutOfMemory];

    /// Its name in reports and on command lines.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Alone => "alone",
            Self::Queue => "queue",
            Self::Streams => "streams",
            Self::Graphs => "graphs",
            Self::Captures => "captures",
            Self::OutOfMemory => "out-of-memory",
        }
    }

    /// What a device of this kind has not got that the phase is about; `None` if it has all.
    #[must_use]
    pub const fn lacks(self, device: DeviceKind) -> Option<&'static str> {
        match (self, device) {
            (_, DeviceKind::Cuda(_)) | (Self::Alone | Self::OutOfMemory, _) => None,
            (Self::Queue, _) => Some("no queues: the device does work at once"),
            (Self::Streams, _) => {
                Some("no queues: the device does the work of a thread at once, beside that of others")
            }
            (Self::Graphs, _) => Some("no graphs: a launch calls the captured work again"),
            (Self::Captures, _) => Some("no recordings: a capture is a run"),
        }
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.name())
    }
}

/// A run whose result had other bits than the run alone.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Difference {
    /// When.
    pub phase: Phase,
    /// Whose: threads are counted from 0.
    pub thread: usize,
    /// Which run of the work by this thread in this phase, counted from 1.
    pub round: u64,
    /// Which output.
    pub output: &'static str,
    /// How many elements of it differ; of elements of 8 bytes how many halves.
    pub different: u64,
    /// How many there are.
    pub elements: u64,
    /// The coordinates of the first one that differs, in the memory that is compared.
    pub index: Vec<usize>,
    /// Its value with its bits.
    pub got: String,
    /// The value of the run alone.
    pub expected: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { phase, thread, round, output, different, elements, index, got, expected } = self;
        write!(
            formatter,
            "{phase}, thread {thread}, run {round}: {different} of {elements} elements of {output} differ, first \
             {index:?}: {got} instead of {expected}"
        )
    }
}

/// An error that ended a part of a load.
#[derive(Debug)]
#[non_exhaustive]
pub struct Failure {
    /// When; `None` if a work could not be prepared.
    pub phase: Option<Phase>,
    /// What went wrong.
    pub error: Error,
}

impl fmt::Display for Failure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.phase {
            Some(phase) => write!(formatter, "{phase}: {}", self.error),
            None => write!(formatter, "preparing: {}", self.error),
        }
    }
}

/// What became of a work.
#[derive(Debug)]
#[non_exhaustive]
pub struct WorkOutcome {
    /// Its name.
    pub name: String,
    /// What it runs; empty if it could not be prepared.
    pub implementation: String,
    /// Runs that were compared, of all phases.
    pub runs: u64,
    /// Runs that differed.
    pub differing: u64,
    /// The first of those that was found.
    pub first: Option<Difference>,
    /// The first error of it.
    pub failure: Option<Failure>,
}

impl WorkOutcome {
    /// Whether it ran, and no run differed or failed.
    #[must_use]
    pub fn passed(&self) -> bool {
        self.runs > 0 && self.differing == 0 && self.failure.is_none()
    }
}

/// What became of a phase.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct PhaseOutcome {
    /// Which one.
    pub phase: Phase,
    /// Runs that were compared.
    pub runs: u64,
    /// Runs that differed.
    pub differing: u64,
    /// The time that it took.
    pub seconds: f64,
}

/// What a load has found.
#[derive(Debug)]
#[non_exhaustive]
pub struct Report {
    /// Each work, in the order in which they were given.
    pub works: Vec<WorkOutcome>,
    /// Each phase.
    pub phases: Vec<PhaseOutcome>,
    /// Errors that belong to no work, as of waiting for a stream. What comes after an error does not run.
    pub failures: Vec<Failure>,
}

impl Report {
    /// Whether every work ran, and nothing differed or failed.
    #[must_use]
    pub fn passed(&self) -> bool {
        self.failures.is_empty() && !self.works.is_empty() && self.works.iter().all(WorkOutcome::passed)
    }

    /// Runs that were compared.
    #[must_use]
    pub fn runs(&self) -> u64 {
        self.works.iter().map(|work| work.runs).sum()
    }

    /// Runs that differed.
    #[must_use]
    pub fn differing(&self) -> u64 {
        self.works.iter().map(|work| work.differing).sum()
    }
}
