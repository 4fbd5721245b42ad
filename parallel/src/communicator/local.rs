//! Ranks as threads of one process.

use std::sync::Arc;
use std::time::Duration;

use super::host::{Carrier, HostRank};
use super::inbox::{Inbox, Message};
use crate::error::Failure;

/// Puts messages into the inboxes of the process.
struct Threads {
    rank: usize,
    inboxes: Arc<Vec<Arc<Inbox>>>,
}

impl Threads {
    fn others(&self) -> impl Iterator<Item = &Arc<Inbox>> {
        self.inboxes.iter().enumerate().filter(|(rank, _)| *rank != self.rank).map(|(_, inbox)| inbox)
    }
}

impl Carrier for Threads {
    fn send(&self, to: usize, message: &Message) -> std::result::Result<(), Failure> {
        self.inboxes[to].put(self.rank, message.clone());
        Ok(())
    }

    fn fail(&self, failure: &Failure) {
        for inbox in self.others() {
            inbox.fail(failure.clone());
        }
    }

    fn name(&self) -> &'static str {
        "local"
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        let reason = match std::thread::panicking() {
            true => "its thread panicked",
            false => "it has dropped its communicator",
        };
        for inbox in self.others() {
            inbox.set_gone(self.rank, reason);
        }
    }
}

/// The ranks of a communicator of `size` threads.
pub(crate) fn ranks(size: usize, limit: Duration) -> Vec<HostRank> {
    let inboxes: Arc<Vec<_>> = Arc::new((0..size).map(|rank| Arc::new(Inbox::new(rank, size))).collect());
    let ranks = (0..size).map(|rank| {
        let carrier = Arc::new(Threads { rank, inboxes: inboxes.clone() });
        HostRank::new(rank, size, limit, inboxes[rank].clone(), carrier)
    });
    ranks.collect()
}
