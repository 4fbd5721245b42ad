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
    /// The groups that it has ended, each with the number of its collectives.
    ended: HashMap<u64, u64>,
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
        let Message { call, .. } = &message;
        let mut state = self.state.lock();
        let peer = &mut state.peers[from];
        match call.operation {
            Operation::End => drop(peer.ended.insert(call.group, call.number)),
            _ => peer.lanes.entry(Lane::of(call)).or_default().push_back(message),
        }
        drop(state);
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

    /// A rank of the call's group, `members`, that is gone and without which `call` cannot be done, or may not: how it went, and whether that is certain. One of
    /// which it is certain comes first.
    ///
    /// Who has ended the call's group before has done its part of the collectives until then, and of all messages.
    pub(crate) fn gone_before(&self, call: &Call, members: &[usize]) -> Option<(usize, String, bool)> {
        let state = self.state.lock();
        let gone = |&rank: &usize| {
            let peer = state.peers.get(rank)?;
            let reason = peer.gone.clone()?;
            match peer.ended.get(&call.group) {
                None => Some((rank, reason, false)),
                Some(_) if call.operation == Operation::PointToPoint => None,
                Some(&count) => (call.number >= count).then_some((rank, reason, true)),
            }
        };
        let certain = members.iter().filter_map(gone).find(|(.., is_certain)| *is_certain);
        certain.or_else(|| members.iter().find_map(gone))
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use warpsmith::DType;

    use super::{Call, Inbox, Message, Operation};

    #[test]
    fn a_rank_that_has_done_its_part_is_not_missed() {
        let inbox = Inbox::new(0, 3);
        let call = |operation, group, number| Call { group, number, operation, dtype: DType::F32, count: 1 };
        let end = call(Operation::End, 7, 5);
        inbox.put(2, Message { call: end, bytes: Arc::default() });
        let of_members = |members: &[usize], operation, group, number| {
            inbox.gone_before(&call(operation, group, number), members)
        };
        let of = |operation, group, number| of_members(&[0, 1, 2], operation, group, number);
        // While it is there, nothing is certain.
        assert_eq!(of(Operation::AllGather, 7, 5), None);
        inbox.set_gone(2, "as a test");
        let gone = |is_certain| Some((2, "as a test".to_owned(), is_certain));
        assert_eq!(of(Operation::AllGather, 7, 4), None);
        assert_eq!(of(Operation::AllGather, 7, 5), gone(true));
        assert_eq!(of(Operation::PointToPoint, 7, 0), None);
        // Of another group nothing is known.
        assert_eq!(of(Operation::AllGather, 8, 0), gone(false));
        assert_eq!(of(Operation::PointToPoint, 8, 0), gone(false));
        // A rank that ends without a word may be missed in every call.
        inbox.set_gone(1, "as a test");
        assert!(of(Operation::AllGather, 7, 4).is_some_and(|(rank, _, is_certain)| rank == 1 && !is_certain));
        // The one that is missed for certain is named, and nobody of another group.
        assert_eq!(of(Operation::AllGather, 7, 5), gone(true));
        assert_eq!(of_members(&[0, 2], Operation::AllGather, 7, 4), None);
    }
}
