//! Work recorded from a stream, to be enqueued again as a whole with one call of the driver.

use std::ptr;
use std::sync::Arc;

use super::GpuContext;
use super::raw::CudaStream;
use crate::driver::{self, sys as cuda};
use crate::error::Result;

/// Recorded work, ready to be enqueued.
#[derive(Debug)]
pub(crate) struct CudaGraph {
    executable: cuda::CUgraphExec,
    context: Arc<GpuContext>,
}

/// Records what `work` enqueues on `stream` instead of doing it, when no other thread waits for the context. The context is current.
pub(super) fn record(
    context: &Arc<GpuContext>,
    stream: &CudaStream,
    work: &mut dyn FnMut() -> Result<()>,
) -> Result<CudaGraph> {
    let recording = context.recordings.begin();
    let thread_local = cuda::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
    // SAFETY: the stream is alive.
    driver::check("recording work", unsafe { cuda::cuStreamBeginCapture_v2(stream.raw(), thread_local) })?;
    let graph = between(work, || {
        let mut graph = ptr::null_mut();
        // SAFETY: as above; the handle is written to a local variable.
        let ended = unsafe { cuda::cuStreamEndCapture(stream.raw(), &raw mut graph) };
        let ended = driver::check("ending a recording", ended);
        // What an invalid recording has left is to be freed as well.
        let graph = Graph(graph);
        ended.map(|()| graph)
    })?;
    drop(recording);
    instantiate(context, graph.0)
}

/// Runs `work`, then `end`, which follows whether the work succeeds, fails or panics: a stream that is left recording does nothing
/// more, and neither do those that wait for it.
fn between<G>(work: &mut dyn FnMut() -> Result<()>, mut end: impl FnMut() -> Result<G>) -> Result<G> {
    /// Calls what it holds when it is dropped: by a panic.
    struct InPanic<F: FnMut()>(F);

    impl<F: FnMut()> Drop for InPanic<F> {
        fn drop(&mut self) {
            (self.0)();
        }
    }

    let guard = InPanic(|| {
        // An error has nowhere to go.
        let _ = end();
    });
    let outcome = work();
    std::mem::forget(guard);
    let graph = end();
    outcome.and(graph)
}

/// A recording as the driver gives it.
struct Graph(cuda::CUgraph);

impl Drop for Graph {
    fn drop(&mut self) {
        if !self.0.is_null() {
            // SAFETY: the handle is alive and not used again. What was instantiated does not need the graph that it came from.
            let _ = unsafe { cuda::cuGraphDestroy(self.0) };
        }
    }
}

fn instantiate(context: &Arc<GpuContext>, graph: cuda::CUgraph) -> Result<CudaGraph> {
    let mut executable = ptr::null_mut();
    // SAFETY: the graph is alive and the handle is written to a local variable.
    let made = unsafe { cuda::cuGraphInstantiateWithFlags(&raw mut executable, graph, 0) };
    driver::check("preparing recorded work", made)?;
    Ok(CudaGraph { executable, context: context.clone() })
}

impl CudaGraph {
    /// Enqueues the work on `stream`. The context is current.
    ///
    /// # Safety
    ///
    /// What the recorded work uses is valid until the work on `stream` is done.
    pub(super) unsafe fn launch(&self, stream: &CudaStream) -> Result<()> {
        // SAFETY: both handles are alive; the caller answers for the work.
        let launched = unsafe { cuda::cuGraphLaunch(self.executable, stream.raw()) };
        driver::check("enqueueing recorded work", launched)
    }
}

impl Drop for CudaGraph {
    fn drop(&mut self) {
        if let Ok(_bound) = self.context.bind() {
            // SAFETY: the handle is alive and not used again. The driver frees it once its work is done.
            let _ = unsafe { cuda::cuGraphExecDestroy(self.executable) };
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::between;
    use crate::error::{Error, Result};

    fn failure(operation: &'static str) -> Error {
        Error::Emulator { operation, reason: String::new() }
    }

    /// What `between` gives, `None` for a panic, and how often the end was reached.
    fn run(mut work: impl FnMut() -> Result<()>, end: fn() -> Result<u32>) -> (Option<Result<u32>>, u32) {
        let ends = Cell::new(0);
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            between(&mut work, || {
                ends.set(ends.get() + 1);
                end()
            })
        }));
        (outcome.ok(), ends.get())
    }

    #[test]
    fn a_recording_is_ended_once_whatever_the_work_does() {
        assert!(matches!(run(|| Ok(()), || Ok(7)), (Some(Ok(7)), 1)));
        let of_work = || Err(failure("work"));
        let of_end = || Err(failure("end"));
        assert!(matches!(run(of_work, || Ok(7)), (Some(Err(Error::Emulator { operation: "work", .. })), 1)));
        assert!(matches!(run(|| Ok(()), of_end), (Some(Err(Error::Emulator { operation: "end", .. })), 1)));
        assert!(matches!(run(of_work, of_end), (Some(Err(Error::Emulator { operation: "work", .. })), 1)));
        assert!(matches!(run(|| panic!("in the work"), || Ok(7)), (None, 1)));
    }
}
