//! Ranks as processes, each with a connection to each other.
//!
//! A thread reads from each connection and puts messages into the inbox, so that sending never waits for the other rank's call.
//! A connection that ends without a farewell is that of a process that has ended.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::call::Call;
use super::host::{Carrier, HostRank};
use super::inbox::{Inbox, Message};
use crate::error::{Error, Failure, Result, io};
use crate::launch::{Launch, rendezvous};

/// A frame's first byte.
const MESSAGE: u8 = 0;
const FAILURE: u8 = 1;
const FAREWELL: u8 = 2;
/// The kind, a call, and the number of bytes that follow.
const HEADER: usize = 1 + Call::BYTES + 8;
/// Bytes of a frame at most.
const LARGEST: u64 = 1 << 40;

/// Writes to the connections.
struct Connections {
    /// None for this rank.
    streams: Vec<Option<Mutex<TcpStream>>>,
}

fn header(kind: u8, call: Option<&Call>, bytes: usize) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    header[0] = kind;
    if let Some(call) = call {
        header[1..1 + Call::BYTES].copy_from_slice(&call.encode());
    }
    header[1 + Call::BYTES..].copy_from_slice(&(bytes as u64).to_le_bytes());
    header
}

impl Connections {
    fn write(&self, to: usize, header: &[u8], bytes: &[u8]) -> std::io::Result<()> {
        let Some(stream) = &self.streams[to] else { return Ok(()) };
        let mut stream = stream.lock();
        stream.write_all(header)?;
        stream.write_all(bytes)
    }
}

impl Carrier for Connections {
    fn send(&self, to: usize, message: &Message) -> std::result::Result<(), Failure> {
        let header = header(MESSAGE, Some(&message.call), message.bytes.len());
        self.write(to, &header, &message.bytes).map_err(|error| Failure::Lost {
            call: message.call.to_string(),
            rank: to,
            reason: format!("sending to it failed: {error}"),
        })
    }

    fn fail(&self, failure: &Failure) {
        let bytes = serde_json::to_vec(failure).unwrap_or_default();
        for to in 0..self.streams.len() {
            // A rank that cannot be told notices that this one ends.
            let _ = self.write(to, &header(FAILURE, None, bytes.len()), &bytes);
        }
    }

    fn name(&self) -> &'static str {
        "tcp"
    }
}

impl Drop for Connections {
    fn drop(&mut self) {
        let reason: &[u8] = match std::thread::panicking() {
            true => b"it panicked",
            false => b"it has dropped its communicator",
        };
        for (to, stream) in self.streams.iter().enumerate() {
            let _ = self.write(to, &header(FAREWELL, None, reason.len()), reason);
            if let Some(stream) = stream {
                // The other direction stays open until the other rank is done, so that nothing on its way is lost.
                let _ = stream.lock().shutdown(Shutdown::Write);
            }
        }
    }
}

/// Reads frames until the connection ends.
fn read_frames(mut stream: TcpStream, from: usize, inbox: &Inbox) {
    let reason = loop {
        match read_frame(&mut stream) {
            Ok(Frame::Message(message)) => inbox.put(from, message),
            Ok(Frame::Failure(failure)) => drop(inbox.fail(failure)),
            Ok(Frame::Farewell(reason)) => break reason,
            Err(error) => break format!("its connection ended: {error}"),
        }
    };
    inbox.set_gone(from, &reason);
}

enum Frame {
    Message(Message),
    Failure(Failure),
    Farewell(String),
}

fn read_frame(stream: &mut TcpStream) -> std::io::Result<Frame> {
    let damaged = |what: &str| std::io::Error::new(std::io::ErrorKind::InvalidData, what.to_owned());
    let mut header = [0; HEADER];
    stream.read_exact(&mut header)?;
    let mut call = [0; Call::BYTES];
    call.copy_from_slice(&header[1..1 + Call::BYTES]);
    let mut length = [0; 8];
    length.copy_from_slice(&header[1 + Call::BYTES..]);
    let length = u64::from_le_bytes(length);
    if length > LARGEST {
        return Err(damaged("a frame is too long"));
    }
    let mut bytes = Vec::new();
    stream.take(length).read_to_end(&mut bytes)?;
    if bytes.len() as u64 != length {
        return Err(std::io::ErrorKind::UnexpectedEof.into());
    }
    match header[0] {
        MESSAGE => {
            let call = Call::decode(&call).ok_or_else(|| damaged("a frame has no call"))?;
            Ok(Frame::Message(Message { call, bytes: Arc::new(bytes) }))
        }
        FAILURE => serde_json::from_slice(&bytes).map(Frame::Failure).map_err(std::io::Error::other),
        FAREWELL => Ok(Frame::Farewell(String::from_utf8_lossy(&bytes).into_owned())),
        _ => Err(damaged("a frame is of no kind")),
    }
}

/// Meets the other ranks, and connects to each of them.
pub(crate) fn connect(launch: &Launch, limit: Duration) -> Result<HostRank> {
    let deadline = Instant::now() + limit;
    let (rank, size) = (launch.rank, launch.size);
    let (listener, addresses) = rendezvous::meet(launch, limit)?;
    let port = listener.local_addr().map_err(io("listening on", "any port"))?.port();
    let mut streams: Vec<Option<TcpStream>> = (0..size).map(|_| None).collect();
    // Each pair has one connection, which the higher rank makes.
    for (to, address) in addresses.iter().enumerate().take(rank) {
        let mut stream = rendezvous::dial(address, deadline)?;
        stream.write_all(&(rank as u64).to_le_bytes()).map_err(io("writing to", address))?;
        streams[to] = Some(stream);
    }
    let missing = |streams: &[Option<TcpStream>]| -> Vec<usize> {
        (rank + 1..size).filter(|&other| streams[other].is_none()).collect()
    };
    while !missing(&streams).is_empty() {
        let late =
            |ranks| Error::MissingRanks { address: format!("port {port} of rank {rank}"), ranks, limit };
        let Some((mut stream, _)) = rendezvous::accept(&listener, deadline)? else {
            return Err(late(missing(&streams)));
        };
        let mut other = [0; 8];
        let is_known = stream.read_exact(&mut other).is_ok();
        let other = usize::try_from(u64::from_le_bytes(other)).unwrap_or(usize::MAX);
        // Whoever else connects is not one of the ranks.
        if is_known && other > rank && other < size && streams[other].is_none() {
            streams[other] = Some(stream);
        }
    }
    rank_of(rank, limit, streams)
}

fn rank_of(rank: usize, limit: Duration, streams: Vec<Option<TcpStream>>) -> Result<HostRank> {
    let size = streams.len();
    let inbox = Arc::new(Inbox::new(rank, size));
    let mut writers = Vec::with_capacity(size);
    for (from, stream) in streams.into_iter().enumerate() {
        let Some(stream) = stream else {
            writers.push(None);
            continue;
        };
        let failed = || io("setting up the connection to", format!("rank {from}"));
        stream.set_nodelay(true).map_err(failed())?;
        stream.set_read_timeout(None).map_err(failed())?;
        stream.set_write_timeout(Some(limit)).map_err(failed())?;
        let (reader, inbox) = (stream.try_clone().map_err(failed())?, inbox.clone());
        let thread = std::thread::Builder::new().name(format!("from rank {from}"));
        thread.spawn(move || read_frames(reader, from, &inbox)).map_err(io("starting", "a thread"))?;
        writers.push(Some(Mutex::new(stream)));
    }
    Ok(HostRank::new(rank, size, limit, inbox, Arc::new(Connections { streams: writers })))
}
