//! What may be dropped only when the GPU no longer uses it: owners of foreign memory, tensors that another library uses, and memory that cannot be
//! freed in the order of its stream now.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use super::context::GpuContext;
use super::event::CudaEvent;
use super::raw::{CudaStream, Relaxed};
use crate::device::backend::StreamHandle;
use crate::error::Result;
use crate::memory::Owner;

/// Owners of memory that nothing will use any more, once the work before an event is done.
///
/// Whoever adds one, and whoever waits for a stream, drops those whose events have come: a callback of the driver could not, since an owner
/// may call the driver. Nobody waits for them.
#[derive(Default)]
pub(super) struct Leaving {
    queues: Mutex<Queues>,
    /// Whether there are any, for those who only ask.
    any: AtomicBool,
}

#[derive(Default)]
struct Queues {
    /// One for each stream that memory is homed on.
    of_streams: Vec<Queue>,
    /// How many owners have been added.
    added: u64,
}

/// Owners in the order in which a stream is done with them.
struct Queue {
    stream: Arc<StreamHandle>,
    owners: VecDeque<Entry>,
}

struct Entry {
    /// How many had been added before.
    number: u64,
    after: After,
    owner: Owner,
}

/// What has to be over.
enum After {
    /// The work before an event.
    Event(CudaEvent),
    /// The work of the stream so far. No event of it can be recorded now: it is captured, or another stream is that it would wait for.
    NotRecorded,
}

impl After {
    /// The work on `stream` so far.
    fn now(context: &Arc<GpuContext>, handle: &StreamHandle) -> Self {
        let StreamHandle::Cuda(stream) = handle else { return Self::NotRecorded };
        // The handle of a thread's default stream stands for another stream on another thread.
        let legacy;
        let stream = if stream.is_of_this_thread() {
            stream
        } else {
            match CudaStream::after_all_threads(context) {
                Some(stream) => {
                    legacy = stream;
                    &legacy
                }
                None => return Self::NotRecorded,
            }
        };
        // An error too says that something is captured. To record an event then would end that.
        if !matches!(stream.is_capturing(), Ok(false)) {
            return Self::NotRecorded;
        }
        CudaEvent::record_untimed(context, stream).map_or(Self::NotRecorded, Self::Event)
    }

    /// Nothing if it is over; else what has to be asked for next time.
    fn asked(self, context: &Arc<GpuContext>, handle: &StreamHandle) -> std::result::Result<(), Self> {
        let event = match self {
            Self::Event(event) => event,
            Self::NotRecorded => match Self::now(context, handle) {
                Self::Event(event) => event,
                Self::NotRecorded => return Err(Self::NotRecorded),
            },
        };
        // An event that cannot be asked for now may be later.
        if event.is_done().unwrap_or(false) { Ok(()) } else { Err(Self::Event(event)) }
    }
}

impl Queue {
    /// Takes those out that the stream is done with, up to the first that it is not.
    fn take_done(&mut self, context: &Arc<GpuContext>, done: &mut Vec<Owner>) {
        while let Some(Entry { number, after, owner }) = self.owners.pop_front() {
            match after.asked(context, &self.stream) {
                Ok(()) => done.push(owner),
                Err(after) => return self.owners.push_front(Entry { number, after, owner }),
            }
        }
    }
}

impl Leaving {
    /// Drops `owner` when the work on `stream` so far is done.
    pub(super) fn add(&self, context: &Arc<GpuContext>, stream: &Arc<StreamHandle>, owner: Owner) {
        let Ok(_bound) = context.bind() else { return std::mem::forget(owner) };
        {
            let _relaxed = Relaxed::new();
            let after = After::now(context, stream);
            let mut queues = self.queues.lock();
            let number = queues.added;
            queues.added += 1;
            let entry = Entry { number, after, owner };
            match queues.of_streams.iter_mut().find(|queue| Arc::ptr_eq(&queue.stream, stream)) {
                Some(queue) => queue.owners.push_back(entry),
                None => {
                    queues.of_streams.push(Queue { stream: stream.clone(), owners: VecDeque::from([entry]) });
                }
            }
            self.any.store(true, Ordering::Release);
        }
        self.release(context);
    }

    /// Drops the owners whose memory is no longer used, unless work is being recorded: what an owner does may end a recording, as freeing memory on
    /// the recorded stream does.
    pub(super) fn release(&self, context: &Arc<GpuContext>) {
        if !self.any.load(Ordering::Acquire) || context.recordings.are_under_way() {
            return;
        }
        let Ok(_bound) = context.bind() else { return };
        let mut done = Vec::new();
        let idle = {
            let _relaxed = Relaxed::new();
            let mut queues = self.queues.lock();
            queues.of_streams.iter_mut().for_each(|queue| queue.take_done(context, &mut done));
            let all = std::mem::take(&mut queues.of_streams);
            let (idle, waiting): (Vec<_>, Vec<_>) =
                all.into_iter().partition(|queue| queue.owners.is_empty());
            queues.of_streams = waiting;
            self.any.store(!queues.of_streams.is_empty(), Ordering::Release);
            idle
        };
        // Outside of the lock: an owner may be anything, a tensor of this device among others, and so may that of a stream.
        drop((done, idle));
    }

    /// Waits for all work of the GPU, and drops the owners that there were before: whatever they wait for is done.
    pub(super) fn when_done(&self, context: &Arc<GpuContext>) -> Result<()> {
        let added = self.queues.lock().added;
        context.when_done(|| ())?;
        let (mut done, mut idle) = (Vec::new(), Vec::new());
        {
            let mut queues = self.queues.lock();
            for mut queue in std::mem::take(&mut queues.of_streams) {
                let (before, kept): (VecDeque<_>, VecDeque<_>) =
                    queue.owners.into_iter().partition(|entry| entry.number < added);
                done.extend(before);
                queue.owners = kept;
                if queue.owners.is_empty() { &mut idle } else { &mut queues.of_streams }.push(queue);
            }
            self.any.store(!queues.of_streams.is_empty(), Ordering::Release);
        }
        drop((done, idle));
        Ok(())
    }

    /// The same where there is nobody left to add any. If the GPU cannot be waited for, the owners are kept for ever.
    pub(super) fn close(&self, context: &Arc<GpuContext>) {
        if self.any.load(Ordering::Acquire) && self.when_done(context).is_err() {
            std::mem::forget(std::mem::take(&mut *self.queues.lock()));
        }
    }
}

impl fmt::Debug for Leaving {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let owners: usize = self.queues.lock().of_streams.iter().map(|queue| queue.owners.len()).sum();
        f.debug_struct("Leaving").field("owners", &owners).finish()
    }
}
