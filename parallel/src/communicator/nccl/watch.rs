//! What NCCL has to do, watched by a thread: an error, a rank that is gone or work that takes too long ends the communicator,
//! and with it the kernels that would wait for ever.

use std::cell::Cell;
use std::collections::VecDeque;
use std::ffi::{c_int, c_void};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use cudarc::nccl::sys::{ncclComm_t, ncclConfig_t, ncclUniqueId};
use parking_lot::Mutex;
use warpsmith::{Device, Event};

use super::library::{IN_PROGRESS, Library, SUCCESS};
use super::{PAUSE, is_error};
use crate::communicator::backend::Backend;
use crate::communicator::call::{Call, Operation};
use crate::communicator::host::HostRank;
use crate::communicator::inbox::{Partners, Traffic};
use crate::error::{Failure, Result, io};

/// How long a poll does not pause.
const SPIN: Duration = Duration::from_micros(200);
/// How often the thread looks.
const INTERVAL: Duration = Duration::from_millis(10);
/// How long work may still take after another rank has ended without a word: that rank's part of it may be done earlier.
const GRACE: Duration = Duration::from_secs(2);

/// A communicator of NCCL's.
pub(super) struct Comm {
    library: &'static Library,
    raw: ncclComm_t,
}

// SAFETY: NCCL lets any thread use a communicator, one at a time; a mutex holds it.
unsafe impl Send for Comm {}

impl Comm {
    pub(super) fn create(
        library: &'static Library,
        [rank, size]: [usize; 2],
        id: ncclUniqueId,
        mut config: ncclConfig_t,
        limit: Duration,
        interruption: &dyn Fn() -> Option<Failure>,
    ) -> std::result::Result<Self, Failure> {
        const OPERATION: &str = "ncclCommInitRankConfig";
        let number = |number: usize| c_int::try_from(number).unwrap_or(c_int::MAX);
        let mut raw = std::ptr::null_mut();
        // SAFETY: the handle is written to a local variable, and the configuration is read during the call.
        let code =
            unsafe { (library.init_rank)(&raw mut raw, number(size), id, number(rank), &raw mut config) };
        let comm = Self { library, raw };
        if is_error(code) || raw.is_null() {
            return Err(library.failure(OPERATION, code, std::ptr::null_mut()));
        }
        match comm.settle(&OPERATION, limit, interruption) {
            Ok(()) => Ok(comm),
            Err(failure) => {
                comm.abort();
                Err(failure)
            }
        }
    }

    pub(super) fn raw(&self) -> ncclComm_t {
        self.raw
    }

    /// What NCCL says of work that is under way.
    fn code(&self) -> c_int {
        let mut code = SUCCESS;
        // SAFETY: the code is written to a local variable.
        let asked = unsafe { (self.library.async_error)(self.raw, &raw mut code) };
        if asked == SUCCESS { code } else { asked }
    }

    /// Waits until the last call is no longer under way. The first call between two ranks connects them, so that it waits for the other
    /// one; `interruption` says why there is no more use in that.
    fn settle(
        &self,
        operation: &dyn fmt::Display,
        limit: Duration,
        interruption: &dyn Fn() -> Option<Failure>,
    ) -> std::result::Result<(), Failure> {
        let start = Instant::now();
        loop {
            match self.code() {
                SUCCESS => return Ok(()),
                // Mostly it takes a few microseconds.
                IN_PROGRESS if start.elapsed() < SPIN => std::hint::spin_loop(),
                IN_PROGRESS if start.elapsed() < limit => {
                    if let Some(failure) = interruption() {
                        return Err(failure);
                    }
                    std::thread::sleep(PAUSE);
                }
                IN_PROGRESS => return Err(Failure::TimeLimit { call: operation.to_string(), limit }),
                code => return Err(self.library.failure(&operation.to_string(), code, self.raw)),
            }
        }
    }

    /// Ends the communicator and its kernels.
    fn abort(self) {
        // SAFETY: nobody uses the communicator after this.
        unsafe { (self.library.abort)(self.raw) };
    }

    /// Ends the communicator once its work is done; whether it was.
    fn end(self, limit: Duration) -> bool {
        // SAFETY: nobody enqueues anything after this.
        let code = unsafe { (self.library.finalize)(self.raw) };
        if is_error(code) || self.settle(&"ncclCommFinalize", limit, &|| None).is_err() {
            self.abort();
            return false;
        }
        // SAFETY: nobody uses the communicator after this.
        unsafe { (self.library.destroy)(self.raw) };
        true
    }
}

/// Work that has been enqueued. What it is called is only put into words when it fails.
struct Pending {
    call: Call,
    partners: Partners,
    done: Event,
}

struct Shared {
    comm: Mutex<Option<Comm>>,
    pending: Mutex<VecDeque<Pending>>,
    failure: Mutex<Option<Failure>>,
    is_over: AtomicBool,
    /// What the ranks call this communicator.
    group: u64,
    /// Collectives so far.
    count: AtomicU64,
    /// Messages so far, with each rank.
    traffic: Mutex<Vec<Traffic>>,
    /// Whether the two say all that this rank does: graphs may do it again.
    is_counted: AtomicBool,
    host: Arc<dyn Backend>,
    limit: Duration,
}

/// A communicator and the thread that watches it.
pub(super) struct Watched {
    shared: Arc<Shared>,
    device: Device,
    thread: Option<JoinHandle<()>>,
}

impl Watched {
    pub(super) fn start(
        comm: Comm,
        group: u64,
        host: Arc<dyn Backend>,
        device: Device,
        limit: Duration,
    ) -> Result<Self> {
        let traffic = vec![Traffic::default(); host.size()];
        let shared = Arc::new(Shared {
            comm: Mutex::new(Some(comm)),
            pending: Mutex::default(),
            failure: Mutex::default(),
            is_over: AtomicBool::new(false),
            group,
            count: AtomicU64::new(0),
            traffic: Mutex::new(traffic),
            is_counted: AtomicBool::new(true),
            host,
            limit,
        });
        let (watched, on) = (shared.clone(), device.clone());
        let thread = std::thread::Builder::new().name("nccl watch".into());
        let thread = thread.spawn(move || watched.run(&on)).map_err(io("starting", "a thread"))?;
        Ok(Self { shared, device, thread: Some(thread) })
    }

    /// The call as one of this communicator: collectives are numbered, and messages to one rank and from one.
    pub(super) fn numbered(&self, call: &Call, [to, from]: [Option<usize>; 2]) -> (Call, Partners) {
        let shared = &self.shared;
        let number = match call.operation {
            Operation::PointToPoint => 0,
            _ => shared.count.fetch_add(1, Ordering::Relaxed),
        };
        let call = Call { group: shared.group, number, ..*call };
        let Some(host) = shared.host.host() else { return (call, Partners::default()) };
        let mut traffic = shared.traffic.lock();
        let mut counted = |rank: usize, count: fn(&mut Traffic) -> &mut u64| {
            let count = count(&mut traffic[rank]);
            *count += 1;
            (host.members()[rank], *count - 1)
        };
        let to = to.map(|rank| counted(rank, |traffic| &mut traffic.sent));
        let from = from.map(|rank| counted(rank, |traffic| &mut traffic.received));
        (call, Partners { to, from })
    }

    /// Notes that this rank may do more than what is counted.
    pub(super) fn count_no_longer(&self) {
        self.shared.is_counted.store(false, Ordering::Relaxed);
    }

    /// Lets `work` enqueue something, and waits until NCCL has taken it.
    pub(super) fn enqueue(
        &self,
        call: &Call,
        partners: &Partners,
        work: impl FnOnce(&Comm) -> c_int,
    ) -> Result<()> {
        let result = {
            let comm = self.shared.comm.lock();
            match &*comm {
                None => Err(self.shared.failure_or(call)),
                Some(comm) => {
                    let code = work(comm);
                    match is_error(code) {
                        true => Err(comm.library.failure(&call.to_string(), code, comm.raw)),
                        false => {
                            let gone_since = Cell::new(None);
                            comm.settle(call, self.shared.limit, &|| {
                                self.shared.interruption(call, partners, &gone_since)
                            })
                        }
                    }
                }
            }
        };
        Ok(result.map_err(|failure| self.shared.fail(failure))?)
    }

    /// NCCL's handle, unless the communicator has ended.
    pub(super) fn handle(&self) -> Option<*mut c_void> {
        self.shared.comm.lock().as_ref().map(|comm| comm.raw.cast())
    }

    pub(super) fn watch(&self, call: Call, partners: Partners, done: Event) {
        self.shared.pending.lock().push_back(Pending { call, partners, done });
    }

    /// Waits for an event, or a failure.
    pub(super) fn wait(&self, event: Event) -> Result<()> {
        loop {
            if let Some(failure) = self.shared.failure.lock().clone() {
                return Err(failure.into());
            }
            if event.is_done()? {
                return Ok(());
            }
            std::thread::sleep(PAUSE);
        }
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            // A panic there has been printed.
            let _ = thread.join();
        }
        let comm = self.shared.comm.lock().take();
        if let (Some(comm), Ok(_current)) = (comm, self.device.make_current()) {
            match std::thread::panicking() {
                true => comm.abort(),
                false => {
                    let is_done = comm.end(self.shared.limit);
                    if let (true, Some(host)) = (is_done, self.shared.host.host()) {
                        self.shared.tell_end(host);
                    }
                }
            }
        }
    }
}

impl Shared {
    /// This rank, as failures name it: as one of the communicator that was split first.
    fn rank(&self) -> usize {
        let rank = self.host.rank();
        self.host.host().map_or(rank, |host| host.members()[rank])
    }

    /// Why there is no communicator.
    fn failure_or(&self, call: &Call) -> Failure {
        let ended = || Failure::Lost {
            call: call.to_string(),
            rank: self.rank(),
            reason: "its NCCL communicator has ended".into(),
        };
        self.failure.lock().clone().unwrap_or_else(ended)
    }

    /// Ends the communicator for all ranks. Returns why it ended, which may have been known before.
    fn fail(&self, failure: Failure) -> Failure {
        let failure = match self.host.host() {
            // Another rank may have said why.
            Some(host) => match host.fail(failure.clone()) {
                crate::Error::Failure(first) => first,
                _ => failure,
            },
            None => failure,
        };
        let failure = self.failure.lock().get_or_insert(failure).clone();
        // Not while the lock is held: others find out meanwhile.
        let comm = self.comm.lock().take();
        if let Some(comm) = comm {
            comm.abort();
        }
        failure
    }

    fn run(&self, device: &Device) {
        let _current = device.make_current();
        let (mut oldest_since, mut gone_since) = (Instant::now(), None);
        while !self.is_over.load(Ordering::Acquire) {
            std::thread::sleep(INTERVAL);
            match self.look(&mut oldest_since, &mut gone_since) {
                Ok(()) => {}
                Err(failure) => {
                    self.fail(failure);
                    return;
                }
            }
        }
    }

    fn look(
        &self,
        oldest_since: &mut Instant,
        gone_since: &mut Option<Instant>,
    ) -> std::result::Result<(), Failure> {
        // Who holds it is in a call, which polls for itself.
        if let Some(comm) = self.comm.try_lock()
            && let Some(comm) = &*comm
        {
            let code = comm.code();
            if is_error(code) {
                return Err(comm.library.failure("work that was enqueued", code, comm.raw));
            }
        }
        // The lock is not held while the driver is asked: a rank that enqueues work does not wait for that. Only this thread
        // takes from the front.
        let (call, partners) = loop {
            let first = self.pending.lock().pop_front();
            let Some(first) = first else {
                (*oldest_since, *gone_since) = (Instant::now(), None);
                return Ok(());
            };
            let failed = |error: warpsmith::Error| Failure::Lost {
                call: first.call.to_string(),
                rank: self.rank(),
                reason: error.to_string(),
            };
            if !first.done.is_done().map_err(failed)? {
                let waited_for = (first.call, first.partners);
                self.pending.lock().push_front(first);
                break waited_for;
            }
            *oldest_since = Instant::now();
        };
        if oldest_since.elapsed() > self.limit {
            return Err(Failure::TimeLimit { call: call.to_string(), limit: self.limit });
        }
        let since = Cell::new(*gone_since);
        let interruption = self.interruption(&call, &partners, &since);
        *gone_since = since.get();
        interruption.map_or(Ok(()), Err)
    }

    /// Tells the others what this rank has done, all of which is done.
    fn tell_end(&self, host: &HostRank) {
        let is_counted = self.is_counted.load(Ordering::Relaxed);
        let count = if is_counted { self.count.load(Ordering::Relaxed) } else { u64::MAX };
        let traffic = self.traffic.lock().clone();
        host.tell_end(self.group, count, |rank| match is_counted {
            true => traffic[rank],
            false => Traffic::UNCOUNTED,
        });
    }

    /// Why a call that other ranks have a part in will not end: one has failed, has ended before, or has been gone for long.
    fn interruption(
        &self,
        call: &Call,
        partners: &Partners,
        gone_since: &Cell<Option<Instant>>,
    ) -> Option<Failure> {
        let host = self.host.host()?;
        let inbox = host.inbox();
        if let Some(failure) = inbox.failure() {
            return Some(failure);
        }
        let (rank, reason, is_certain) = inbox.gone_before(call, partners, host.members())?;
        // Of what this rank has done the counts say too much: what it has captured may have been launched less often.
        if is_certain && !self.is_counted.load(Ordering::Relaxed) {
            return None;
        }
        let since = gone_since.get().unwrap_or_else(Instant::now);
        gone_since.set(Some(since));
        (is_certain || since.elapsed() > GRACE).then(|| Failure::Lost {
            call: call.to_string(),
            rank,
            reason,
        })
    }
}
