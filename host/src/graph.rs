//! Graphs: work that is captured from a stream once, and enqueued again with one call of the driver.
//!
//! The host's part in an operation – checking operands, choosing a kernel, allocating what is needed in between – is done when work is captured.
//! A launch is one call, however many kernels the work is; it matters where they are so short that the host is what takes time.
//!
//! Devices that do work at once have no graphs of their own: a launch there is the work itself, with the same results.

use std::cell::RefCell;
use std::fmt;
use std::sync::Arc;

use crate::device::backend::{GraphHandle, StreamHandle};
use crate::error::{Error, Result};
use crate::memory::Buffer;
use crate::stream::Stream;

/// Work that was captured from a stream; see [`Stream::capture`].
pub struct Graph<'a> {
    /// `None` on devices that do work at once.
    recorded: Option<Recording>,
    stream: Stream,
    /// What it owns and borrows is what the recording uses.
    work: Box<dyn FnMut() -> Result<()> + 'a>,
}

impl Graph<'_> {
    /// Enqueues the work on the stream that it was captured from, ordered with every other use of the tensors.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`] if the stream is being captured, [`Error::Driver`] if the driver refuses; on devices that do work at once, whatever the work
    /// returns.
    pub fn launch(&mut self) -> Result<()> {
        self.stream.expect_no_capture("Graph::launch")?;
        let Some(recorded) = &self.recorded else { return (self.work)() };
        // SAFETY: `capture`'s caller has promised that what the work owns and borrows is all that it uses, which is there as long as the
        // graph is. Those tensors are freed in the order of their home streams: this one, or one that waits for the work.
        unsafe { recorded.launch(&self.stream) }
    }

    /// The stream that the work was captured from.
    #[must_use]
    pub fn stream(&self) -> &Stream {
        &self.stream
    }
}

impl fmt::Debug for Graph<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_recorded = self.recorded.is_some();
        formatter
            .debug_struct("Graph")
            .field("stream", &self.stream)
            .field("is_recorded", &is_recorded)
            .finish()
    }
}

impl Stream {
    /// Captures what `work` enqueues on this stream, to be enqueued again by [`Graph::launch`].
    ///
    /// On a GPU the work is called twice: first as it is, which loads the kernels that it needs and leaves its results, then to be recorded, which
    /// runs nothing. On other devices it is called once, and then by each launch.
    ///
    /// The graph works on the memory that the work was captured with. So inputs are written into the tensors that it reads, and results read from
    /// those that it writes; both are made before. What is enqueued on other streams is not captured, such as copies into tensors whose home stream is
    /// another. The host can wait for nothing within the work: not for results, nor for experts [behind a cache](crate::layers::Experts).
    /// GPUs that do not allocate in the order of streams capture only work that allocates nothing.
    ///
    /// Threads may capture work at the same time, each from a stream of its own. While work is recorded, other threads that call
    /// [`Device::synchronize`](crate::Device::synchronize) on its GPU wait for the end of that, as do those that drop modules or find the GPU's memory full.
    /// So the work waits for nothing that such a thread has yet to do, such as unlocking a mutex.
    ///
    /// ```
    /// use warpsmith::{Device, Tensor, ops};
    ///
    /// # fn main() -> warpsmith::Result<()> {
    /// let device = Device::auto();
    /// let stream = device.new_stream()?;
    /// let w = Tensor::from_slice(&device, &[1.0f32, 2.0, 3.0, 4.0], [2, 2])?;
    /// let mut x = Tensor::<f32>::zeros(&device, [1, 2])?;
    /// let y = Tensor::<f32>::zeros(&device, [1, 2])?;
    /// let (input, mut output) = (x.clone(), y.clone()); // views of the same memory
    /// let work = || ops::linear(&input, &w).on(&stream).run_into(&mut output);
    /// // SAFETY: nobody else has the stream; the work borrows every tensor that it uses, and makes and drops none.
    /// let mut graph = unsafe { stream.capture(work)? };
    /// for number in [1.0, 2.0] {
    ///     x.write_slice(&[number, 0.0])?;
    ///     graph.launch()?;
    ///     assert_eq!(y.to_vec()?, [number, 3.0 * number]);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Argument`] if the stream is being captured, [`Error::Driver`] if the work does what cannot be captured; otherwise whatever the work
    /// returns.
    ///
    /// # Safety
    ///
    /// No other thread uses this stream until this returns, since what it enqueues would be captured, too. The default stream is everybody's: better take a
    /// [stream of your own](crate::Device::new_stream).
    ///
    /// The memory that the work uses is valid as long as the graph is. For tensors that is so if the work owns or borrows those that it uses – itself, or
    /// within a layer – and keeps them, and drops before it returns what it makes meanwhile. Whoever calls unsafe functions within the work, of
    /// [kernels](crate::TypedKernel::launch) or of [tables](crate::ops::peer::ExpertTable::foreign), answers for the graph's launches too; modules that
    /// the program has loaded are owned or borrowed as tensors are.
    pub unsafe fn capture<'a>(&self, mut work: impl FnMut() -> Result<()> + 'a) -> Result<Graph<'a>> {
        self.expect_no_capture("Stream::capture")?;
        let recorded = match &**self.handle() {
            StreamHandle::Cuda(_) => {
                work()?;
                record(self, &mut work)?
            }
            StreamHandle::Immediate => {
                let _capture = Capturing::start(self.handle());
                work()?;
                None
            }
        };
        Ok(Graph { recorded, stream: self.clone(), work: Box::new(work) })
    }

    /// Whether the calling thread is capturing this stream's work.
    #[must_use]
    pub fn is_capturing(&self) -> bool {
        CAPTURES.with_borrow(|captures| captures.iter().any(|capture| capture.is_of(self.handle())))
    }

    /// The error for a stream that is being captured, if it is.
    pub(crate) fn expect_no_capture(&self, operation: &'static str) -> Result<()> {
        if !self.is_capturing() {
            return Ok(());
        }
        Err(Error::Argument {
            operation,
            argument: "stream",
            expected: "one that is not being captured".into(),
            actual: "in a capture".into(),
        })
    }
}

/// What work has enqueued while it was recorded.
pub(crate) struct Recording {
    graph: GraphHandle,
    /// Memory of other home streams that the work uses, with which launches are ordered.
    kept: Vec<Arc<Buffer>>,
}

impl Recording {
    /// Enqueues the work on `stream`, from which it was recorded, ordered with every other use of the tensors.
    ///
    /// # Safety
    ///
    /// What the work uses is valid until the work on `stream` is done.
    pub(crate) unsafe fn launch(&self, stream: &Stream) -> Result<()> {
        let kept: Vec<_> = self.kept.iter().collect();
        let backend = stream.device().backend();
        let order = stream.order_of_buffers(&kept)?;
        // SAFETY: the caller's promise.
        let launched = unsafe { backend.launch_graph(&self.graph, stream.handle()) };
        order.finish()?;
        launched
    }
}

/// Records what `work` enqueues on `stream` instead of doing it; `None` from a device that has no recordings, which then has not called `work`.
///
/// # Errors
///
/// [`Error::Driver`] if the work does what cannot be recorded; otherwise whatever the work returns.
pub(crate) fn record(stream: &Stream, work: &mut dyn FnMut() -> Result<()>) -> Result<Option<Recording>> {
    let capture = Capturing::start(stream.handle());
    let graph = stream.device().backend().record_graph(stream.handle(), work)?;
    let kept = capture.finish();
    Ok(graph.map(|graph| Recording { graph, kept }))
}

thread_local! {
    /// What this thread is capturing: the driver's captures are a thread's, too.
    static CAPTURES: RefCell<Vec<Capture>> = const { RefCell::new(Vec::new()) };
}

/// A stream that is being captured.
struct Capture {
    stream: Arc<StreamHandle>,
    kept: Vec<Arc<Buffer>>,
}

impl Capture {
    fn is_of(&self, stream: &Arc<StreamHandle>) -> bool {
        Arc::ptr_eq(&self.stream, stream)
    }
}

/// Has the graph that is being captured from `stream` keep those of `buffers` that have other home streams. False if none is.
///
/// What has this home stream is the work's own, or made and freed within it, which are parts of the graph. Foreign memory is kept in any case.
pub(crate) fn keep(stream: &Arc<StreamHandle>, buffers: &[&Arc<Buffer>]) -> bool {
    CAPTURES.with_borrow_mut(|captures| {
        let Some(capture) = captures.iter_mut().find(|capture| capture.is_of(stream)) else { return false };
        for &buffer in
            buffers.iter().filter(|buffer| buffer.is_foreign() || !Arc::ptr_eq(buffer.home(), stream))
        {
            if !capture.kept.iter().any(|kept| Arc::ptr_eq(kept, buffer)) {
                capture.kept.push(buffer.clone());
            }
        }
        true
    })
}

/// Has a stream be captured until it is finished, or dropped by an error or a panic.
struct Capturing<'a>(&'a Arc<StreamHandle>);

impl<'a> Capturing<'a> {
    fn start(stream: &'a Arc<StreamHandle>) -> Self {
        let capture = Capture { stream: stream.clone(), kept: Vec::new() };
        CAPTURES.with_borrow_mut(|captures| captures.push(capture));
        Self(stream)
    }

    /// What the graph keeps.
    fn finish(self) -> Vec<Arc<Buffer>> {
        self.end()
    }

    fn end(&self) -> Vec<Arc<Buffer>> {
        let capture = CAPTURES.with_borrow_mut(|captures| {
            let position = captures.iter().position(|capture| capture.is_of(self.0))?;
            Some(captures.swap_remove(position))
        });
        capture.map(|capture| capture.kept).unwrap_or_default()
    }
}

impl Drop for Capturing<'_> {
    fn drop(&mut self) {
        self.end();
    }
}
