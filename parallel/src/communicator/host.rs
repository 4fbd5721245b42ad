//! Collectives over host memory: ranks exchange messages and add up in the order of the ranks.
//!
//! How messages travel is a [`Carrier`]'s business: between threads ([`local`](super::local)) or processes
//! ([`tcp`](super::tcp)). Each message says which call it belongs to, so that ranks that disagree find out.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use warpsmith::{DType, Stream};

use super::backend::{Backend, Buffer, PointToPoint};
use super::call::{Call, Operation, Reduction};
use super::inbox::{Inbox, Message, Traffic};
use super::reduce::reduce;
use crate::digest::digest;
use crate::error::{Error, Failure, Result};
use crate::ranges::even_range;

/// Brings messages to other ranks, whose inboxes take them.
pub(crate) trait Carrier: Send + Sync {
    /// Sends without waiting for the other rank's call.
    fn send(&self, to: usize, message: &Message) -> std::result::Result<(), Failure>;
    /// Tells all other ranks why the communicator cannot be used any more.
    fn fail(&self, failure: &Failure);
    fn name(&self) -> &'static str;
}

/// One rank of a communicator over host memory.
pub(crate) struct HostRank {
    rank: usize,
    /// The number of each rank in the communicator that was split first, by which messages go.
    members: Vec<usize>,
    group: u64,
    limit: Duration,
    inbox: Arc<Inbox>,
    carrier: Arc<dyn Carrier>,
    /// Collectives so far. Who holds it makes the next one.
    number: Mutex<u64>,
}

impl HostRank {
    pub(crate) fn new(
        rank: usize,
        size: usize,
        limit: Duration,
        inbox: Arc<Inbox>,
        carrier: Arc<dyn Carrier>,
    ) -> Self {
        let members = (0..size).collect();
        Self { rank, members, group: 0, limit, inbox, carrier, number: Mutex::new(0) }
    }

    /// The ranks that give the same color, as a communicator of their own.
    pub(crate) fn split(&self, color: u64) -> Result<Self> {
        let number = *self.number.lock();
        let colors = self.agree(color.to_le_bytes().to_vec())?;
        let own = color.to_le_bytes();
        let (mut members, mut rank) = (Vec::new(), 0);
        for (other, _) in colors.iter().enumerate().filter(|(_, color)| color.as_slice() == own) {
            if other == self.rank {
                rank = members.len();
            }
            members.push(self.members[other]);
        }
        let name = [self.group, number, color].map(u64::to_le_bytes).concat();
        let Self { limit, inbox, carrier, .. } = self;
        Ok(Self {
            rank,
            members,
            group: digest(&name),
            limit: *limit,
            inbox: inbox.clone(),
            carrier: carrier.clone(),
            number: Mutex::new(0),
        })
    }

    pub(crate) fn inbox(&self) -> &Arc<Inbox> {
        &self.inbox
    }

    pub(crate) fn limit(&self) -> Duration {
        self.limit
    }

    /// The ranks of this group, as the whole communicator counts them.
    pub(crate) fn members(&self) -> &[usize] {
        &self.members
    }

    fn others(&self) -> Vec<usize> {
        (0..self.members.len()).filter(|&rank| rank != self.rank).collect()
    }

    /// Ends the communicator for all ranks.
    pub(crate) fn fail(&self, failure: Failure) -> Error {
        let failure = self.inbox.fail(failure);
        self.carrier.fail(&failure);
        failure.into()
    }

    /// Tells the others that this rank has done its part of the first `number` collectives of a group, and of so many messages
    /// with each rank. It makes no more calls there.
    pub(crate) fn tell_end(&self, group: u64, number: u64, traffic: impl Fn(usize) -> Traffic) {
        let call = Call { group, number, operation: Operation::End, dtype: DType::U8, count: 0 };
        for to in self.others() {
            let bytes = Arc::new(traffic(to).encode());
            // Who is gone need not know.
            let _ = self.carrier.send(self.members[to], &Message { call, bytes });
        }
    }

    fn send(&self, to: usize, message: &Message) -> Result<()> {
        self.carrier.send(self.members[to], message).map_err(|failure| self.fail(failure))
    }

    fn take(&self, call: &Call, from: &[usize]) -> Result<Vec<Message>> {
        let from: Vec<usize> = from.iter().map(|&rank| self.members[rank]).collect();
        self.inbox.take(call, &from, self.limit).map_err(|failure| self.fail(failure))
    }

    /// Sends a part to each rank and returns the part from each, this rank's own among them. All ranks have to make the same
    /// call.
    fn exchange(&self, call: &Call, parts: Vec<Arc<Vec<u8>>>) -> Result<Vec<Arc<Vec<u8>>>> {
        if let Some(failure) = self.inbox.failure() {
            return Err(failure.into());
        }
        let others = self.others();
        for &to in &others {
            self.send(to, &Message { call: *call, bytes: parts[to].clone() })?;
        }
        let messages = self.take(call, &others)?;
        let mut received = parts;
        for (from, message) in others.into_iter().zip(messages) {
            if message.call != *call {
                return Err(self.disagree(call, from, message.call.to_string()));
            }
            received[from] = message.bytes;
        }
        Ok(received)
    }

    pub(crate) fn disagree(&self, call: &Call, other: usize, others_call: String) -> Error {
        // Every rank says the same: the lower one comes first.
        let [rank, other] = [self.rank, other].map(|rank| self.members[rank]);
        let mut calls = [(rank, call.to_string()), (other, others_call)];
        calls.sort();
        let [(rank, expected), (other, actual)] = calls;
        self.fail(Failure::Mismatch { rank, expected, other, actual })
    }

    /// Numbers the call and makes it; no other thread of this rank makes one meanwhile.
    fn numbered<R>(&self, mut call: Call, work: impl FnOnce(&Call) -> Result<R>) -> Result<R> {
        let mut number = self.number.lock();
        (call.group, call.number) = (self.group, *number);
        *number += 1;
        work(&call)
    }

    /// The bytes that each rank gives.
    pub(crate) fn agree(&self, bytes: Vec<u8>) -> Result<Vec<Arc<Vec<u8>>>> {
        let call = Call { group: 0, number: 0, operation: Operation::Agreement, dtype: DType::U8, count: 0 };
        self.numbered(call, |call| self.exchange(call, self.to_all(bytes)))
    }

    fn reduced(&self, call: &Call, reduction: Reduction, parts: &[Arc<Vec<u8>>]) -> Result<Vec<u8>> {
        let parts: Vec<&[u8]> = parts.iter().map(|part| part.as_slice()).collect();
        reduce(call.dtype, reduction, &parts)
            .ok_or_else(|| crate::error::argument("reduce", "type", "a type of numbers", call.dtype))
    }

    /// The bytes of some elements.
    fn bytes_of(bytes: &[u8], dtype: DType, elements: Range<usize>) -> Arc<Vec<u8>> {
        Arc::new(bytes[elements.start * dtype.size()..elements.end * dtype.size()].to_vec())
    }

    /// The same bytes for each rank.
    fn to_all(&self, bytes: Vec<u8>) -> Vec<Arc<Vec<u8>>> {
        let bytes = Arc::new(bytes);
        (0..self.members.len()).map(|_| bytes.clone()).collect()
    }

    fn equal_parts(&self, bytes: &[u8], call: &Call) -> Vec<Arc<Vec<u8>>> {
        let part = |rank: usize| rank * call.count..(rank + 1) * call.count;
        (0..self.members.len()).map(|rank| Self::bytes_of(bytes, call.dtype, part(rank))).collect()
    }
}

impl Drop for HostRank {
    /// The others may still have this rank in groups of theirs, and wait for it in this one.
    fn drop(&mut self) {
        if !std::thread::panicking() && self.inbox.failure().is_none() {
            self.tell_end(self.group, *self.number.lock(), |_| Traffic::UNCOUNTED);
        }
    }
}

/// All parts in a row.
fn joined(parts: &[Arc<Vec<u8>>]) -> Vec<u8> {
    parts.iter().flat_map(|part| part.iter().copied()).collect()
}

impl Backend for HostRank {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.members.len()
    }

    fn name(&self) -> &'static str {
        self.carrier.name()
    }

    fn host(&self) -> Option<&HostRank> {
        Some(self)
    }

    fn all_reduce(
        &self,
        call: Call,
        reduction: Reduction,
        tensor: &mut dyn Buffer,
        _: &Stream,
    ) -> Result<()> {
        self.numbered(call, |call| {
            let bytes = tensor.read()?;
            // Each rank adds up its part of the elements, and all get the same bits.
            let size = self.members.len();
            let parts =
                (0..size).map(|rank| Self::bytes_of(&bytes, call.dtype, even_range(call.count, size, rank)));
            let own = self.exchange(call, parts.collect())?;
            let all = self.exchange(call, self.to_all(self.reduced(call, reduction, &own)?))?;
            Ok(tensor.write(&joined(&all))?)
        })
    }

    fn reduce_scatter(
        &self,
        call: Call,
        reduction: Reduction,
        input: &dyn Buffer,
        output: &mut dyn Buffer,
        _: &Stream,
    ) -> Result<()> {
        self.numbered(call, |call| {
            let parts = self.exchange(call, self.equal_parts(&input.read()?, call))?;
            Ok(output.write(&self.reduced(call, reduction, &parts)?)?)
        })
    }

    fn all_gather(&self, call: Call, input: &dyn Buffer, output: &mut dyn Buffer, _: &Stream) -> Result<()> {
        self.numbered(call, |call| {
            let parts = self.exchange(call, self.to_all(input.read()?))?;
            Ok(output.write(&joined(&parts))?)
        })
    }

    fn broadcast(&self, call: Call, root: usize, tensor: &mut dyn Buffer, _: &Stream) -> Result<()> {
        self.numbered(call, |call| {
            let bytes = if self.rank == root { tensor.read()? } else { Vec::new() };
            let parts = self.exchange(call, self.to_all(bytes))?;
            if self.rank == root { Ok(()) } else { Ok(tensor.write(&parts[root])?) }
        })
    }

    fn all_to_all(
        &self,
        call: Call,
        [sends, receives]: [&[usize]; 2],
        input: &dyn Buffer,
        output: &mut dyn Buffer,
        _: &Stream,
    ) -> Result<()> {
        self.numbered(call, |call| {
            let bytes = input.read()?;
            let mut start = 0;
            let parts = sends.iter().map(|&count| {
                start += count;
                Self::bytes_of(&bytes, call.dtype, start - count..start)
            });
            let parts = self.exchange(call, parts.collect())?;
            for (from, (part, &expected)) in parts.iter().zip(receives).enumerate() {
                let actual = part.len() / call.dtype.size();
                if actual != expected {
                    let [rank, other] = [self.rank, from].map(|rank| self.members[rank]);
                    let expected = format!("{call}, receiving {expected} elements from rank {other}");
                    let actual = format!("{call}, sending {actual} elements to rank {rank}");
                    return Err(self.fail(Failure::Mismatch { rank, expected, other, actual }));
                }
            }
            Ok(output.write(&joined(&parts))?)
        })
    }

    fn point_to_point(&self, transfers: PointToPoint<'_>, _: &Stream) -> Result<()> {
        if let Some(failure) = self.inbox.failure() {
            return Err(failure.into());
        }
        if let Some((mut call, tensor, to)) = transfers.send {
            call.group = self.group;
            if let Some(reason) = self.inbox.left(self.members[to], self.group) {
                let rank = self.members[to];
                return Err(self.fail(Failure::Lost { call: call.to_string(), rank, reason }));
            }
            self.send(to, &Message { call, bytes: Arc::new(tensor.read()?) })?;
        }
        if let Some((mut call, tensor, from)) = transfers.receive {
            call.group = self.group;
            for message in self.take(&call, &[from])? {
                if message.call != call {
                    return Err(self.disagree(&call, from, message.call.to_string()));
                }
                tensor.write(&message.bytes)?;
            }
        }
        Ok(())
    }

    fn barrier(&self, call: Call, _: &Stream) -> Result<()> {
        self.numbered(call, |call| self.exchange(call, self.to_all(Vec::new())).map(drop))
    }

    fn synchronize(&self, stream: &Stream) -> Result<()> {
        // What was called is done.
        Ok(stream.synchronize()?)
    }
}
