//! What has come for a rank from the others, and what is known of them.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::call::{Call, Operation};
use crate::error::Failure;

/// A call of another rank, with what it sends in it.
#[derive(Clone, Debug)]
pub(crate) struct Message {
    pub(crate) call: Call,
    pub(crate) bytes: Arc<Vec<u8>>,
}

/// Messages of one pair of ranks that keep their order: those of collectives, and those between two ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Lane {
    group: u64,
    is_pair: bool,
}

impl Lane {
    fn of(call: &Call) -> Self {
        Self { group: call.group, is_pair: call.operation == Operation::PointToPoint }
    }
}

/// What a rank knows of another.
#[derive(Debug, Default)]
struct Peer {
    lanes: HashMap<Lane, VecDeque<Message>>,
    /// How it went, if it is gone.
    gone: Option<String>,
}

#[derive(Debug)]
struct State {
    peers: Vec<Peer>,
    failure: Option<Failure>,
}

/// The messages for one rank.
#[derive(Debug)]
pub(crate) struct Inbox {
    rank: usize,
    state: Mutex<State>,
    changed: Condvar,
}

impl Inbox {
    pub(crate) fn new(rank: usize, size: usize) -> Self {
        let peers = (0..size).map(|_| Peer::default()).collect();
        Self { rank, state: Mutex::new(State { peers, failure: None }), changed: Condvar::new() }
    }

    pub(crate) fn put(&self, from: usize, message: Message) {
        let lane = Lane::of(&message.call);
        self.state.lock().peers[from].lanes.entry(lane).or_default().push_back(message);
        self.changed.notify_all();
    }

    /// Notes that a rank sends nothing more. What it has sent before can still be taken.
    pub(crate) fn set_gone(&self, from: usize, reason: &str) {
        self.state.lock().peers[from].gone.get_or_insert_with(|| reason.to_owned());
        self.changed.notify_all();
    }

    /// Notes why the communicator cannot be used any more, unless that is known already. Returns why.
    pub(crate) fn fail(&self, failure: Failure) -> Failure {
        let failure = self.state.lock().failure.get_or_insert(failure).clone();
        self.changed.notify_all();
        failure
    }

    pub(crate) fn failure(&self) -> Option<Failure> {
        self.state.lock().failure.clone()
    }

    /// A rank that is gone, and how it went.
    pub(crate) fn any_gone(&self) -> Option<(usize, String)> {
        let state = self.state.lock();
        let mut peers = state.peers.iter().enumerate();
        peers.find_map(|(rank, peer)| Some((rank, peer.gone.clone()?)))
    }

    /// The next message of each of the ranks `from`, which all have to come within the limit.
    pub(crate) fn take(
        &self,
        call: &Call,
        from: &[usize],
        limit: Duration,
    ) -> std::result::Result<Vec<Message>, Failure> {
        let lane = Lane::of(call);
        let deadline = Instant::now() + limit;
        let mut state = self.state.lock();
        loop {
            if let Some(failure) = &state.failure {
                return Err(failure.clone());
            }
            let missing = |state: &State| -> Vec<usize> {
                let has_none =
                    |rank: &usize| state.peers[*rank].lanes.get(&lane).is_none_or(VecDeque::is_empty);
                from.iter().copied().filter(has_none).collect()
            };
            let ranks = missing(&state);
            if ranks.is_empty() {
                let messages = from
                    .iter()
                    .filter_map(|&rank| state.peers[rank].lanes.get_mut(&lane).and_then(VecDeque::pop_front));
                return Ok(messages.collect());
            }
            let gone = ranks.iter().find_map(|&rank| Some((rank, state.peers[rank].gone.clone()?)));
            if let Some((rank, reason)) = gone {
                let failure = Failure::Lost { call: call.to_string(), rank, reason };
                return Err(state.failure.insert(failure).clone());
            }
            if self.changed.wait_until(&mut state, deadline).timed_out() && !missing(&state).is_empty() {
                let ranks = missing(&state);
                if state.failure.is_none() && ranks.iter().all(|&rank| state.peers[rank].gone.is_none()) {
                    let failure = Failure::Late { call: call.to_string(), ranks, limit, seen_by: self.rank };
                    return Err(state.failure.insert(failure).clone());
                }
            }
        }
    }
}
