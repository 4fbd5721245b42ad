//! Operations under load: enqueued without waiting, by many threads on streams of their own, one between others. The bits of every result are
//! compared with those of a run alone.
//!
//! A run alone finds what a kernel computes wrongly. It does not find what goes wrong between kernels. Memory that one still
//! reads when another writes it, or a stage of a ring that is filled again before it was read, which takes a neighbour on the
//! multiprocessor to show. Every
//! operation of this crate promises the same bits on every run, so that one bit is enough to find it by.
//!
//! [`run`] takes [`Work`]s: the cases of the other validations, or [a program's own](Work::new).

mod compare;
mod report;
mod run;
mod work;
mod worker;

#[cfg(test)]
mod tests;

pub use report::{Difference, Failure, Phase, PhaseOutcome, Report, WorkOutcome};
pub use run::{Progress, run};
pub(super) use work::Step;
pub use work::{Output, Prepared, Work};

use warpsmith::error::{Error, Result};

/// The most threads of a load.
const MOST_THREADS: usize = 1024;

/// How much load there is.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Options {
    /// Threads, each with a stream and operands of its own: 1 to 1024.
    pub threads: usize,
    /// How often each work runs in each phase, by all threads together; more often where the threads do not share that evenly. At least 1.
    pub rounds: usize,
    /// How many works are mixed at a time, whose operands all threads hold on the device. At least 1.
    pub together: usize,
    /// Decides the order of the works.
    pub seed: u64,
    /// What is done, in this order. The runs alone come before, always.
    pub phases: Vec<Phase>,
}

impl Default for Options {
    fn default() -> Self {
        Self { threads: 16, rounds: 1000, together: 32, seed: 1, phases: Phase::ALL.to_vec() }
    }
}

impl Options {
    /// The error for options that make no load.
    fn check(&self) -> Result<()> {
        let refuse = |argument, expected: String, actual: usize| {
            Err(Error::Argument {
                operation: "validate::load",
                argument,
                expected,
                actual: actual.to_string(),
            })
        };
        if !(1..=MOST_THREADS).contains(&self.threads) {
            return refuse("threads", format!("1 to {MOST_THREADS}"), self.threads);
        }
        for (argument, number) in [("rounds", self.rounds), ("together", self.together)] {
            if number == 0 {
                return refuse(argument, "at least 1".into(), number);
            }
        }
        Ok(())
    }
}
