//! Memory that is somebody else's, whose owner is dropped when the GPU no longer uses it.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use super::context::GpuContext;
use super::raw::{CudaEvent, CudaStream};
use crate::memory::Owner;

/// Owners of memory that nothing will use any more, once the work before an event is done.
///
/// Whoever adds one, and whoever waits for a stream, drops those whose events have come: a callback of the driver could not, since an owner
/// may call the driver.
#[derive(Default)]
pub(super) struct Leaving {
    owners: Mutex<Vec<(CudaEvent, Owner)>>,
    /// Whether there are any, for those who only ask.
    any: AtomicBool,
}

impl Leaving {
    /// Drops `owner` when the work on `stream` so far is done.
    pub(super) fn add(&self, context: &Arc<GpuContext>, stream: &CudaStream, owner: Owner) {
        let Ok(_bound) = context.bind() else { return std::mem::forget(owner) };
        // While the stream is captured there is no work to wait for: that of the graph is its user's to keep memory for.
        if stream.is_of_this_thread() && stream.is_capturing().is_ok_and(|is| is) {
            return drop(owner);
        }
        let event = match stream.is_of_this_thread() {
            true => CudaEvent::record(context, stream).ok(),
            // The handle stands for another stream on this thread.
            false => None,
        };
        match event {
            Some(event) => {
                self.owners.lock().push((event, owner));
                self.any.store(true, Ordering::Release);
                self.release();
            }
            // Without an event the whole GPU is waited for. Where not even that can be done, the memory may be in use for ever.
            None if context.when_done(|| ()).is_ok() => drop(owner),
            None => std::mem::forget(owner),
        }
    }

    /// Drops the owners whose memory is no longer used.
    pub(super) fn release(&self) {
        if !self.any.load(Ordering::Acquire) {
            return;
        }
        let mut owners = self.owners.lock();
        let mut done = Vec::new();
        let mut index = 0;
        while index < owners.len() {
            // An event that cannot be asked for is of a context that is lost: nothing runs there.
            match owners[index].0.is_done() {
                Ok(false) => index += 1,
                Ok(true) | Err(_) => done.push(owners.swap_remove(index)),
            }
        }
        self.any.store(!owners.is_empty(), Ordering::Release);
        drop(owners);
        // Outside of the lock: an owner may be anything, a tensor of this device among others.
        drop(done);
    }
}

impl Drop for Leaving {
    fn drop(&mut self) {
        for (event, owner) in self.owners.get_mut().drain(..) {
            match event.synchronize() {
                Ok(()) => drop(owner),
                Err(_) => std::mem::forget(owner),
            }
        }
    }
}

impl fmt::Debug for Leaving {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leaving").field("owners", &self.owners.lock().len()).finish()
    }
}
