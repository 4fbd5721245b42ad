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

/// How many messages have gone between this rank and another one, to it and from it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Traffic {
    pub(crate) sent: u64,
    pub(crate) received: u64,
}

impl Traffic {
    /// Of what is not counted: nobody is held to it.
    pub(crate) const UNCOUNTED: Self = Self { sent: u64::MAX, received: u64::MAX };

    pub(crate) fn encode(self) -> Vec<u8> {
        [self.sent, self.received].map(u64::to_le_bytes).concat()
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (sent, received) = bytes.split_first_chunk()?;
        let [sent, received] = [*sent, received.try_into().ok()?].map(u64::from_le_bytes);
        Some(Self { sent, received })
    }
}

/// What a call waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Partners {
    /// The rank that a message goes to, and how many went there before.
    pub(crate) to: Option<(usize, u64)>,
    /// The rank that one comes from, and how many came from there before.
    pub(crate) from: Option<(usize, u64)>,
}

/// What a rank has done of a group that it has ended.
#[derive(Clone, Copy, Debug)]
struct Ended {
    collectives: u64,
    /// As that rank counts.
    traffic: Traffic,
}

impl Ended {
    /// Whether the rank has not done its part of a call.
    fn lacks(&self, call: &Call, rank: usize, partners: &Partners) -> bool {
        let is_beyond = |partner: Option<(usize, u64)>, count| {
            partner.is_some_and(|(other, before)| other == rank && before >= count)
        };
        match call.operation {
            Operation::PointToPoint => {
                is_beyond(partners.from, self.traffic.sent) || is_beyond(partners.to, self.traffic.received)
            }
            _ => call.number >= self.collectives,
        }
    }
}

/// How a rank went that has ended a group, and may still be there for others.
const ENDED: &str = "it has dropped its communicator";

/// What a rank knows of another.
#[derive(Debug, Default)]
struct Peer {
    lanes: HashMap<Lane, VecDeque<Message>>,
    /// The groups that it has ended.
    ended: HashMap<u64, Ended>,
    /// How it went, if it is gone.
    gone: Option<String>,
}

impl Peer {
    /// Why it sends and takes nothing more in a group.
    fn left(&self, group: u64) -> Option<String> {
        self.gone.clone().or_else(|| self.ended.contains_key(&group).then(|| ENDED.to_owned()))
    }
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
            Operation::End => {
                let traffic = Traffic::decode(&message.bytes).unwrap_or(Traffic::UNCOUNTED);
                peer.ended.insert(call.group, Ended { collectives: call.number, traffic });
            }
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

    /// Why a rank takes no more messages in a group.
    pub(crate) fn left(&self, rank: usize, group: u64) -> Option<String> {
        self.state.lock().peers[rank].left(group)
    }

    /// A rank of the call's group, `members`, that is gone or has ended the group, and without which `call` cannot be done, or
    /// may not: how it went, and whether that is certain. One of which it is certain comes first.
    ///
    /// Who has ended the call's group has done its part of the collectives and messages until then, and of no later ones.
    pub(crate) fn gone_before(
        &self,
        call: &Call,
        partners: &Partners,
        members: &[usize],
    ) -> Option<(usize, String, bool)> {
        let state = self.state.lock();
        let gone = |&rank: &usize| {
            let peer = state.peers.get(rank)?;
            let reason = peer.left(call.group)?;
            match peer.ended.get(&call.group) {
                None => Some((rank, reason, false)),
                Some(ended) => ended.lacks(call, rank, partners).then_some((rank, reason, true)),
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
            // What a rank has sent before it left has come already.
            let gone = ranks.iter().find_map(|&rank| Some((rank, state.peers[rank].left(call.group)?)));
            if let Some((rank, reason)) = gone {
                let failure = Failure::Lost { call: call.to_string(), rank, reason };
                return Err(state.failure.insert(failure).clone());
            }
            if self.changed.wait_until(&mut state, deadline).timed_out() && !missing(&state).is_empty() {
                let ranks = missing(&state);
                if state.failure.is_none()
                    && ranks.iter().all(|&rank| state.peers[rank].left(call.group).is_none())
                {
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

    use super::{Call, ENDED, Inbox, Message, Operation, Partners, Traffic};

    #[test]
    fn a_rank_that_has_done_its_part_is_not_missed() {
        let inbox = Inbox::new(0, 3);
        let call = |operation, group, number| Call { group, number, operation, dtype: DType::F32, count: 1 };
        let end = call(Operation::End, 7, 5);
        inbox.put(2, Message { call: end, bytes: Arc::new(Traffic::UNCOUNTED.encode()) });
        let of_members = |members: &[usize], operation, group, number| {
            inbox.gone_before(&call(operation, group, number), &Partners::default(), members)
        };
        let of = |operation, group, number| of_members(&[0, 1, 2], operation, group, number);
        // It may still be there for other groups.
        assert_eq!(of(Operation::AllGather, 7, 4), None);
        assert_eq!(of(Operation::AllGather, 7, 5), Some((2, ENDED.to_owned(), true)));
        assert_eq!(of(Operation::AllGather, 8, 5), None);
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

    #[test]
    fn only_messages_that_a_rank_has_not_sent_or_taken_are_missed() {
        let inbox = Inbox::new(0, 3);
        let call = |operation| Call { group: 7, number: 0, operation, dtype: DType::F32, count: 1 };
        let traffic = Traffic { sent: 3, received: 1 };
        inbox.put(2, Message { call: call(Operation::End), bytes: Arc::new(traffic.encode()) });
        let is_missed = |to, from| {
            let found = inbox.gone_before(&call(Operation::PointToPoint), &Partners { to, from }, &[0, 1, 2]);
            assert!(
                found.as_ref().is_none_or(|(rank, _, is_certain)| *rank == 2 && *is_certain),
                "{found:?}"
            );
            found.is_some()
        };
        for before in 0..6 {
            assert_eq!(is_missed(None, Some((2, before))), before >= 3);
            assert_eq!(is_missed(Some((2, before)), None), before >= 1);
            assert_eq!(is_missed(Some((2, before)), Some((2, before))), before >= 1);
            // Messages of others have nothing to do with it.
            assert!(!is_missed(Some((1, before)), Some((1, before))));
        }
    }
}
