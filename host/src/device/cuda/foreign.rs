//! What may be dropped only when the GPU no longer uses it: owners of foreign memory, and tensors that another library uses.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use super::context::GpuContext;
use super::raw::{CudaEvent, Relaxed};
use crate::device::backend::StreamHandle;
use crate::memory::Owner;

/// Owners of memory that nothing will use any more, once the work before an event is done.
///
/// Whoever adds one, and whoever waits for a stream, drops those whose events have come: a callback of the driver could not, since an owner
/// may call the driver.
#[derive(Default)]
pub(super) struct Leaving {
    owners: Mutex<Vec<(After, Owner)>>,
    /// Whether there are any, for those who only ask.
    any: AtomicBool,
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
            return Self::Everything;
        }
        if stream.is_capturing().is_ok_and(|is| is) {
            return Self::Capture(handle.clone());
        }
        CudaEvent::record(context, stream).map_or(Self::Everything, Self::Event)
    }

    /// Whether it is over; what has to be asked for next time, if it is not.
    fn is_over(self, context: &Arc<GpuContext>) -> Result<(), Self> {
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
                Self::Event(event) => Self::Event(event).is_over(context),
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
        let _relaxed = Relaxed::new();
        let after = After::now(context, stream);
        let is_everything = matches!(after, After::Everything);
        self.owners.lock().push((after, owner));
        self.any.store(true, Ordering::Release);
        // Where the GPU cannot be waited for, as while this thread captures, whoever waits for it next drops the owner.
        if is_everything && context.when_done(|| ()).is_ok() {
            self.all_is_done();
        }
        self.release(context);
    }

    /// Drops the owners whose memory is no longer used.
    pub(super) fn release(&self, context: &Arc<GpuContext>) {
        if !self.any.load(Ordering::Acquire) {
            return;
        }
        let Ok(_bound) = context.bind() else { return };
        let _relaxed = Relaxed::new();
        let mut done = Vec::new();
        let mut owners = self.owners.lock();
        for (after, owner) in std::mem::take(&mut *owners) {
            match after.is_over(context) {
                Ok(()) => done.push(owner),
                Err(after) => owners.push((after, owner)),
            }
        }
        self.any.store(!owners.is_empty(), Ordering::Release);
        drop(owners);
        // Outside of the lock: an owner may be anything, a tensor of this device among others.
        drop(done);
    }

    /// Drops the owners that wait for all work of the GPU, which is done.
    pub(super) fn all_is_done(&self) {
        let mut owners = self.owners.lock();
        let (done, kept) = std::mem::take(&mut *owners)
            .into_iter()
            .partition(|(after, _)| matches!(after, After::Everything));
        *owners = kept;
        drop(owners);
        let done: Vec<_> = done;
        drop(done);
    }

    /// Waits for what has to be over, and drops all owners. Those for which nothing can be waited for are kept for ever.
    pub(super) fn close(&self, context: &Arc<GpuContext>) {
        let owners = std::mem::take(&mut *self.owners.lock());
        if owners.is_empty() {
            return;
        }
        match context.when_done(|| ()) {
            Ok(()) => drop(owners),
            Err(_) => std::mem::forget(owners),
        }
    }
}

impl fmt::Debug for Leaving {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leaving").field("owners", &self.owners.lock().len()).finish()
    }
}
