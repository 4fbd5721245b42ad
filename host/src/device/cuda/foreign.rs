//! What may be dropped only when the GPU no longer uses it: owners of foreign memory, and tensors that another library uses.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use super::context::GpuContext;
use super::raw::{CudaEvent, CudaStream, Relaxed};
use crate::device::backend::StreamHandle;
use crate::error::Result;
use crate::memory::Owner;

/// Owners of memory that nothing will use any more, once the work before an event is done.
///
/// Whoever adds one, and whoever waits for a stream, drops those whose events have come: a callback of the driver could not, since an owner
/// may call the driver.
#[derive(Default)]
pub(super) struct Leaving {
    queue: Mutex<Queue>,
    /// Whether there are any, for those who only ask.
    any: AtomicBool,
}

#[derive(Default)]
struct Queue {
    owners: Vec<Entry>,
    /// How many have been added.
    added: u64,
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
    /// The work of a stream before it was captured, on which no event can be recorded until that ends.
    Capture(Arc<StreamHandle>),
    /// All work of the GPU: nothing less can be waited for.
    Everything,
}

impl After {
    /// The work on `stream` so far.
    fn now(context: &Arc<GpuContext>, handle: &Arc<StreamHandle>) -> Self {
        let StreamHandle::Cuda(stream) = &**handle else { return Self::Everything };
        // The handle of a thread's default stream stands for another stream on another thread.
        if !stream.is_of_this_thread() {
            return CudaStream::after_all_threads(context)
                .and_then(|legacy| CudaEvent::record(context, &legacy).ok())
                .map_or(Self::Everything, Self::Event);
        }
        if stream.is_capturing().is_ok_and(|is| is) {
            return Self::Capture(handle.clone());
        }
        CudaEvent::record(context, stream).map_or(Self::Everything, Self::Event)
    }

    /// Nothing if it is over; else what has to be asked for next time.
    fn asked(self, context: &Arc<GpuContext>) -> std::result::Result<(), Self> {
        match self {
            // An event that cannot be asked for now may be later.
            Self::Event(event) => {
                if event.is_done().unwrap_or(false) {
                    Ok(())
                } else {
                    Err(Self::Event(event))
                }
            }
            Self::Capture(handle) => match Self::now(context, &handle) {
                Self::Event(event) => Self::Event(event).asked(context),
                other => Err(other),
            },
            Self::Everything => Err(Self::Everything),
        }
    }
}

impl Leaving {
    /// Drops `owner` when the work on `stream` so far is done.
    pub(super) fn add(&self, context: &Arc<GpuContext>, stream: &Arc<StreamHandle>, owner: Owner) {
        let Ok(_bound) = context.bind() else { return std::mem::forget(owner) };
        let is_everything = {
            let _relaxed = Relaxed::new();
            let after = After::now(context, stream);
            let is_everything = matches!(after, After::Everything);
            let mut queue = self.queue.lock();
            let number = queue.added;
            queue.added += 1;
            queue.owners.push(Entry { number, after, owner });
            self.any.store(true, Ordering::Release);
            is_everything
        };
        // Where the GPU cannot be waited for, as while this thread captures, whoever waits for it next drops the owner.
        if is_everything {
            let _ = self.when_done(context);
        }
        self.release(context);
    }

    /// Drops the owners whose memory is no longer used.
    pub(super) fn release(&self, context: &Arc<GpuContext>) {
        if !self.any.load(Ordering::Acquire) {
            return;
        }
        let Ok(_bound) = context.bind() else { return };
        let mut done = Vec::new();
        {
            let _relaxed = Relaxed::new();
            let mut queue = self.queue.lock();
            for Entry { number, after, owner } in std::mem::take(&mut queue.owners) {
                match after.asked(context) {
                    Ok(()) => done.push(owner),
                    Err(after) => queue.owners.push(Entry { number, after, owner }),
                }
            }
            self.any.store(!queue.owners.is_empty(), Ordering::Release);
        }
        // Outside of the lock: an owner may be anything, a tensor of this device among others.
        drop(done);
    }

    /// Waits for all work of the GPU, and drops the owners that there were before: whatever they wait for is done.
    pub(super) fn when_done(&self, context: &Arc<GpuContext>) -> Result<()> {
        let added = self.queue.lock().added;
        context.when_done(|| ())?;
        let done = {
            let mut queue = self.queue.lock();
            let (done, kept): (Vec<_>, Vec<_>) =
                std::mem::take(&mut queue.owners).into_iter().partition(|entry| entry.number < added);
            queue.owners = kept;
            self.any.store(!queue.owners.is_empty(), Ordering::Release);
            done
        };
        drop(done);
        Ok(())
    }

    /// The same where there is nobody left to add any. If the GPU cannot be waited for, the owners are kept for ever.
    pub(super) fn close(&self, context: &Arc<GpuContext>) {
        if self.any.load(Ordering::Acquire) && self.when_done(context).is_err() {
            std::mem::forget(std::mem::take(&mut *self.queue.lock()));
        }
    }
}

impl fmt::Debug for Leaving {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leaving").field("owners", &self.queue.lock().owners.len()).finish()
    }
}
