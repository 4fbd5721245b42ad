//! Everything that can go wrong between ranks, one variant a cause.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The result of every fallible call of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a communicator can no longer be used. Every rank gets the same one, if it can be told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// Ranks did not make a call that others wait in.
    #[error(
        "{call}: {} did not come, expected within {limit:?}; seen by rank {seen_by}",
        ranks_in_words(ranks)
    )]
    Late {
        /// The call that was waited in.
        call: String,
        /// The ranks that are missing.
        ranks: Vec<usize>,
        /// The time limit.
        limit: Duration,
        /// The rank whose limit was over first.
        seen_by: usize,
    },
    /// A rank has ended, or can no longer be reached.
    #[error("{call}: rank {rank} is gone, expected all ranks to make this call: {reason}")]
    Lost {
        /// The call that was waited in.
        call: String,
        /// The rank that is gone.
        rank: usize,
        /// How it went.
        reason: String,
    },
    /// Two ranks made different calls.
    #[error("rank {rank} calls {expected}, rank {other} calls {actual}, expected the same call of all ranks")]
    Mismatch {
        /// The rank that compared.
        rank: usize,
        /// What it called.
        expected: String,
        /// The rank that differs.
        other: usize,
        /// What that called.
        actual: String,
    },
    /// Work on a GPU did not end.
    #[error("{call}: not done, expected within {limit:?}")]
    TimeLimit {
        /// The call.
        call: String,
        /// The time limit.
        limit: Duration,
    },
    /// NCCL reported an error.
    #[error("{operation}: NCCL reports {name} ({code}): {message}")]
    Nccl {
        /// What was asked for.
        operation: String,
        /// NCCL's code.
        code: u32,
        /// Its name.
        name: String,
        /// What it means, and what NCCL added.
        message: String,
    },
}

/// Why a call failed.
///
/// `Debug` says the same as `Display`: it is what a `main` or a test that returns an error prints.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The ranks can no longer work together.
    #[error("{0}")]
    Failure(#[from] Failure),

    /// An operation on one rank's device failed.
    #[error("{0}")]
    Device(#[from] warpsmith::Error),

    /// An argument is out of its range.
    #[error("{operation}: {argument} is {actual}, expected {expected}")]
    Argument {
        /// The operation that was asked for.
        operation: &'static str,
        /// The argument at fault.
        argument: &'static str,
        /// What the operation takes.
        expected: String,
        /// What came.
        actual: String,
    },

    /// A variable of the environment is missing, or has a value that means nothing.
    #[error("reading the environment: {variable} is {actual}, expected {expected}")]
    Environment {
        /// The variable.
        variable: String,
        /// What it should be.
        expected: String,
        /// What it is.
        actual: String,
    },

    /// A rank was started for another number of ranks than rank 0.
    #[error("rendezvous: rank {rank} was started for {actual} ranks, expected {expected} as rank 0 was")]
    WorldSize {
        /// The rank at fault.
        rank: usize,
        /// How many ranks rank 0 was started for.
        expected: usize,
        /// How many it was started for.
        actual: usize,
    },

    /// Two processes have the same rank.
    #[error("rendezvous: rank {rank} came twice, expected each of {size} ranks once")]
    DuplicateRank {
        /// The rank.
        rank: usize,
        /// How many ranks there are.
        size: usize,
    },

    /// Ranks did not come to the rendezvous.
    #[error("rendezvous at {address}: {} did not come, expected within {limit:?}", ranks_in_words(ranks))]
    MissingRanks {
        /// Where was waited.
        address: String,
        /// The ranks that are missing.
        ranks: Vec<usize>,
        /// The time limit.
        limit: Duration,
    },

    /// Two ranks of a NCCL communicator have the same GPU.
    #[error("NCCL: ranks {} and {} both have {device}, expected a GPU each", ranks[0], ranks[1])]
    SharedDevice {
        /// Two of the ranks.
        ranks: [usize; 2],
        /// The GPU.
        device: String,
    },

    /// A library is missing, or lacks a function.
    #[error("loading {library}: {reason}; expected one of {tried}: {hint}")]
    Library {
        /// The library.
        library: &'static str,
        /// What went wrong.
        reason: String,
        /// Where it was looked for.
        tried: String,
        /// How to get it.
        hint: &'static str,
    },

    /// A rank that was started as a thread panicked.
    #[error("rank {rank} panicked: {message}")]
    Panicked {
        /// The rank.
        rank: usize,
        /// What it said.
        message: String,
    },

    /// A checkpoint is damaged, or of another model.
    #[error("checkpoint {}: {subject}: expected {expected}, {actual}", path.display())]
    Checkpoint {
        /// The file or folder.
        path: PathBuf,
        /// The tensor or the part at fault.
        subject: String,
        /// What is needed.
        expected: String,
        /// What is there.
        actual: String,
    },

    /// A file or a connection could not be used.
    #[error("{operation} {subject}: {source}")]
    Io {
        /// The operation that was asked for.
        operation: &'static str,
        /// The file or address.
        subject: String,
        /// What the operating system said.
        source: std::io::Error,
    },
}

impl fmt::Debug for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

/// The error of an argument.
pub(crate) fn argument(
    operation: &'static str,
    argument: &'static str,
    expected: impl Into<String>,
    actual: impl fmt::Display,
) -> Error {
    Error::Argument { operation, argument, expected: expected.into(), actual: actual.to_string() }
}

/// The error of a file or a connection.
pub(crate) fn io(
    operation: &'static str,
    subject: impl fmt::Display,
) -> impl FnOnce(std::io::Error) -> Error {
    let subject = subject.to_string();
    move |source| Error::Io { operation, subject, source }
}

/// `rank 3`, or `ranks 1, 2 and 5`.
fn ranks_in_words(ranks: &[usize]) -> String {
    match ranks {
        [] => "no rank".into(),
        [rank] => format!("rank {rank}"),
        [first @ .., last] => {
            let first: Vec<_> = first.iter().map(usize::to_string).collect();
            format!("ranks {} and {last}", first.join(", "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::ranks_in_words;

    #[test]
    fn ranks_are_listed_as_one_would_say_them() {
        assert_eq!(ranks_in_words(&[3]), "rank 3");
        assert_eq!(ranks_in_words(&[1, 2, 5]), "ranks 1, 2 and 5");
    }
}
