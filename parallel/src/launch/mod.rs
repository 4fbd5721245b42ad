//! Starting ranks: as threads of this process, or as processes that a launcher has started.

pub(crate) mod rendezvous;
mod variables;

use std::path::PathBuf;
use std::time::Duration;

use crate::communicator::{Communicator, DEFAULT_LIMIT};
use crate::error::{Error, Result, argument};

/// Where ranks meet.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Meeting {
    /// Rank 0 listens at this address, `host:port`. An IPv6 address is in brackets, a link-local one with the zone by which the
    /// other ranks reach it: the name or the number of an interface, as `[fe80::1%eth0]:29500`. Names are known on Linux.
    Address(String),
    /// Rank 0 listens at any port, and writes its address into this file, which all ranks see. The file is removed when all
    /// have come.
    File(PathBuf),
}

/// Which of how many ranks a process is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    /// The rank, below `size`.
    pub rank: usize,
    /// How many ranks there are, on all hosts.
    pub size: usize,
    /// The rank among those of the same host: the number of the GPU that it takes.
    pub local_rank: usize,
    /// Where the ranks meet.
    pub meeting: Meeting,
}

impl Launch {
    /// The rank that a launcher has made this process, by the variables of the environment:
    ///
    /// - `RANK`, `WORLD_SIZE`, `LOCAL_RANK`, as `torchrun` and `cargo xtask spawn` set them, or
    /// - `OMPI_COMM_WORLD_RANK`, `…_SIZE`, `…_LOCAL_RANK`, as Open MPI sets them, or
    /// - `SLURM_PROCID`, `SLURM_NTASKS`, `SLURM_LOCALID`, as Slurm sets them.
    ///
    /// Ranks meet at `MASTER_ADDR` and `MASTER_PORT`. Where `torchrun` has the port itself they meet at the next one. Without
    /// an address Slurm's first host is taken, and otherwise this host if all ranks are on it; without a port 29500.
    ///
    /// # Errors
    ///
    /// [`Error::Environment`] if no launcher has started this process, or a variable means nothing.
    pub fn from_environment() -> Result<Self> {
        variables::launch(&|name| std::env::var(name).ok())
    }

    /// A rank of `size` that meet at an address or in a file; its GPU is the one of its number.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`] if there is no such rank.
    pub fn new(rank: usize, size: usize, meeting: Meeting) -> Result<Self> {
        if rank >= size {
            return Err(argument("Launch::new", "rank", format!("below {size}"), rank));
        }
        Ok(Self { rank, size, local_rank: rank, meeting })
    }
}

/// Calls `work` on a thread for each of `size` ranks, and returns what it returned, in the order of the ranks. A rank waits for
/// the others for 300 seconds.
///
/// # Errors
///
/// As [`threads_within`].
pub fn threads<R: Send>(size: usize, work: impl Fn(Communicator) -> Result<R> + Sync) -> Result<Vec<R>> {
    threads_within(DEFAULT_LIMIT, size, work)
}

/// As [`threads`], where a rank waits for the others for at most `limit`.
///
/// # Errors
///
/// [`Error::Argument`] if `size` is 0; [`Error::Panicked`] if `work` panicked, else the error of the lowest rank that failed.
pub fn threads_within<R: Send>(
    limit: Duration,
    size: usize,
    work: impl Fn(Communicator) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    let results = all_threads(limit, size, work)?;
    // The others' errors are of its making.
    let (mut panics, others): (Vec<_>, Vec<_>) =
        results.into_iter().partition(|result| matches!(result, Err(Error::Panicked { .. })));
    match panics.pop() {
        Some(panic) => panic.map(|_| Vec::new()),
        None => others.into_iter().collect(),
    }
}

/// As [`threads_within`], with the result of each rank, whichever failed.
///
/// # Errors
///
/// [`Error::Argument`] if `size` is 0.
pub fn all_threads<R: Send>(
    limit: Duration,
    size: usize,
    work: impl Fn(Communicator) -> Result<R> + Sync,
) -> Result<Vec<Result<R>>> {
    let communicators = Communicator::local(size, limit)?;
    let work = &work;
    Ok(std::thread::scope(|scope| {
        let threads: Vec<_> =
            communicators.into_iter().map(|communicator| scope.spawn(move || work(communicator))).collect();
        let results = threads.into_iter().enumerate().map(|(rank, thread)| {
            thread.join().unwrap_or_else(|panic| Err(Error::Panicked { rank, message: said(&*panic) }))
        });
        results.collect()
    }))
}

fn said(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".into())
}
