//! Streams, events, and the order between work on different streams.
//!
//! Work on one stream is done in order. Every tensor has a *home stream*, the one that its memory was allocated on.
//! Using it there needs nothing else; using it on another stream goes through [`Stream::with_operands`], which makes
//! that stream wait for the home stream before, and the home stream wait for it after. So all uses of a tensor are
//! ordered with its home stream, on which it is also freed.

use std::cell::RefCell;
use std::ffi::c_void;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use warpsmith_dsl::launch::GlobalMut;

use crate::device::Device;
use crate::device::backend::{EventHandle, StreamHandle};
use crate::error::{Error, Result};
use crate::graph;
use crate::memory::Buffer;
use crate::tensor::{Element, Tensor};

/// How soon a stream's work begins where several streams have work that could.
///
/// What runs already goes on: blocks of a stream of high priority come before those of others that have yet to begin. What an
/// operation enqueues on a stream of its own beside this one has normal priority, unless it asks for another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StreamPriority {
    /// That of all streams that are given none.
    #[default]
    Normal,
    /// The highest that the device has.
    High,
}

/// An ordered queue of a device's work. Clones stand for the same queue.
#[derive(Clone, Debug)]
pub struct Stream {
    device: Device,
    handle: Arc<StreamHandle>,
    /// Whether it is a [branch](Stream::beside) of another one, which is ordered with the operands' home streams for both.
    is_branch: bool,
    /// How many multiprocessors persistent launches fill at most, if there is a limit.
    limit: Option<u32>,
}

/// Memory for one launch; see [`Stream::scratch`].
pub(crate) struct Scratch {
    zeros: GlobalMut<u32>,
    numbers: GlobalMut<f32>,
    /// Where the stream keeps none.
    _own: Option<(Tensor<u32>, Tensor<f32>)>,
}

impl Scratch {
    /// The words that are zero, as an argument; valid for the launch while this lives.
    pub(crate) fn zeros(&self) -> GlobalMut<u32> {
        self.zeros
    }

    /// The numbers, in the same way.
    pub(crate) fn numbers(&self) -> GlobalMut<f32> {
        self.numbers
    }
}

impl Stream {
    pub(crate) fn new(device: Device, handle: Arc<StreamHandle>) -> Self {
        Self { device, handle, is_branch: false, limit: None }
    }

    /// The device whose work this is.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.device
    }

    pub(crate) fn handle(&self) -> &Arc<StreamHandle> {
        &self.handle
    }

    /// The driver's handle of a GPU's stream, for libraries that enqueue work of their own; `None` on other devices. It is
    /// valid as long as this stream or a clone of it is.
    #[must_use]
    pub fn cuda_handle(&self) -> Option<*mut c_void> {
        match &*self.handle {
            StreamHandle::Cuda(stream) => Some(stream.raw().cast()),
            StreamHandle::Immediate => None,
        }
    }

    /// The same stream, on which persistent kernels leave multiprocessors to other streams: their launches have blocks for `multiprocessors`
    /// at most, at least 1. `None`: for all that the device has.
    ///
    /// A persistent kernel's blocks work on tile after tile, so that they hold their multiprocessors until all is done. What another
    /// stream has to do meanwhile waits for that, unless there is a limit: an exchange between GPUs, say. Launches whose blocks have one
    /// tile each are not limited, since each of them ends soon.
    ///
    /// A limit changes no result: which kernel runs, and how its sums are divided, is chosen for the whole device. It is of this value and its
    /// clones, also as a thread's [default stream](Self::as_default), and of what they capture.
    ///
    /// Of kernels of which a multiprocessor holds several blocks, a launch has as many for each multiprocessor of the limit; these may
    /// be spread over more of them.
    #[must_use]
    pub fn with_multiprocessors(&self, multiprocessors: impl Into<Option<u32>>) -> Self {
        Self { limit: multiprocessors.into().map(|most| most.max(1)), ..self.clone() }
    }

    /// How many multiprocessors persistent launches on this stream fill at most.
    #[must_use]
    pub fn multiprocessors(&self) -> u32 {
        let all = self.device.properties().multiprocessors;
        self.limit.map_or(all, |limit| limit.min(all))
    }

    /// The blocks of a persistent launch that has been planned for the whole device, with `planned` blocks for `tiles` tiles: on a stream
    /// [with a limit](Self::with_multiprocessors) no more than `at_once` says that the multiprocessors hold, unless each has one tile.
    pub(crate) fn persistent_blocks(
        &self,
        planned: u32,
        tiles: u64,
        at_once: impl FnOnce(u32) -> u32,
    ) -> u32 {
        if self.limit.is_none() || u64::from(planned) >= tiles {
            return planned;
        }
        planned.min(at_once(self.multiprocessors()))
    }

    /// A stream of another library's, by the driver's handle (`CUstream`, `cudaStream_t`): what is enqueued here follows what that library has
    /// enqueued, and precedes what it enqueues later. It is never destroyed here. `owner` is dropped when nothing uses it any more.
    ///
    /// The handles 0 and 1 stand for the legacy default stream, 2 for the calling thread's default stream. The latter can be used by that thread
    /// alone: others get [`Error::Argument`].
    ///
    /// # Errors
    ///
    /// [`Error::UnsupportedDevice`] on the CPU and the emulator, [`Error::DeviceMismatch`] if the stream is of another GPU or another context than
    /// the primary one.
    ///
    /// # Safety
    ///
    /// The handle is a stream's, and valid until `owner` is dropped.
    pub unsafe fn borrow(
        device: &Device,
        handle: *mut c_void,
        owner: impl Send + Sync + 'static,
    ) -> Result<Self> {
        // SAFETY: the caller's promise.
        let handle = unsafe { device.backend().borrow_stream(handle, Box::new(owner))? };
        Ok(Self::new(device.clone(), Arc::new(handle)))
    }

    /// Waits until all work on this stream is done.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`] if any of the work failed.
    pub fn synchronize(&self) -> Result<()> {
        self.device.backend().synchronize(&self.handle)
    }

    /// Marks this point in the stream's work.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`] if the driver refuses.
    pub fn record(&self) -> Result<Event> {
        let handle = self.device.backend().record(&self.handle)?;
        Ok(Event { device: self.device.clone(), handle })
    }

    /// Makes later work on this stream wait for `event`. The host does not wait.
    ///
    /// # Errors
    ///
    /// [`Error::DeviceMismatch`] if the event is another device's, [`Error::Driver`] if the driver refuses.
    pub fn wait(&self, event: &Event) -> Result<()> {
        self.device.expect_same("Stream::wait", "event", &event.device)?;
        self.device.backend().wait(&self.handle, &event.handle)
    }

    /// Memory for a kernel that is launched on this stream next: `zeros` words, which it finds zero and leaves so, and `numbers` numbers of any value.
    pub(crate) fn scratch(&self, zeros: usize, numbers: usize) -> Result<Scratch> {
        let bytes = numbers.saturating_mul(size_of::<f32>());
        if let Some([zeros, numbers]) =
            self.device.backend().kept(&self.handle, self.is_capturing(), zeros, bytes)?
        {
            let (zeros, numbers) = (GlobalMut::new(zeros), GlobalMut::new(numbers));
            return Ok(Scratch { zeros, numbers, _own: None });
        }
        let mut zeros = Tensor::zeros_on(self, [zeros])?;
        let mut numbers = Tensor::uninit_on(self, [numbers])?;
        Ok(Scratch { zeros: zeros.arg_mut(), numbers: numbers.arg_mut(), _own: Some((zeros, numbers)) })
    }

    /// A matrix of any values for two launches on this stream, of which the first writes it and the second reads it.
    ///
    /// Within a capture it is in what the stream keeps, if there is room: the driver lets a launch of a graph begin early only where the graph allocates nothing
    /// around it.
    pub(crate) fn between_launches<T: Element>(&self, shape: [usize; 2]) -> Result<Tensor<T>> {
        let bytes = shape[0].saturating_mul(shape[1]).saturating_mul(size_of::<T>());
        let is_capturing = self.is_capturing();
        // Also outside of a capture, so that a later one finds the memory.
        match self.device.backend().kept(&self.handle, is_capturing, 0, bytes)? {
            // SAFETY: the memory is the stream's, for all work that is enqueued on it, and a graph holds its stream. Launches between the two do not use it.
            Some([_, address]) if is_capturing => unsafe {
                Tensor::from_foreign_mut(self, address, shape, [shape[1], 1], ())
            },
            _ => Tensor::uninit_on(self, shape),
        }
    }

    /// Enqueues `work` on this stream so that it is ordered with every other use of `operands`.
    ///
    /// Operands whose home stream is this one cost nothing. Of each other home stream, its work so far is waited for by
    /// this stream before `work`, and its later work waits for `work`. That also holds where `work` fails or
    /// panics, since it may have enqueued a part.
    ///
    /// # Errors
    ///
    /// [`Error::DeviceMismatch`] if an operand is on another device; otherwise whatever `work` returns.
    pub fn with_operands<R>(&self, operands: &[&dyn Operand], work: impl FnOnce() -> Result<R>) -> Result<R> {
        let order = self.order_of(operands)?;
        let result = work();
        order.map_or(Ok(()), Order::finish)?;
        result
    }

    /// Lets this stream wait for other uses of `operands`, if those are ordered with its own work. Without the type of the work, so that programs
    /// have this once.
    fn order_of<'a>(&'a self, operands: &[&'a dyn Operand]) -> Result<Option<Order<'a>>> {
        let mut buffers = Vec::with_capacity(operands.len());
        for operand in operands {
            let buffer = operand.buffer();
            self.device.expect_same("Stream::with_operands", "operand", buffer.device())?;
            buffers.push(buffer);
        }
        if self.is_branch || graph::keep(&self.handle, &buffers) {
            // The graph is ordered with the other streams whenever it is launched, a branch by the stream that it is of.
            return Ok(None);
        }
        self.order_of_buffers(&buffers).map(Some)
    }

    /// Lets this stream wait for other uses of `buffers`, which are this device's. They wait for it when what is returned is
    /// [finished](Order::finish) or dropped.
    pub(crate) fn order_of_buffers<'a>(&'a self, buffers: &[&'a Arc<Buffer>]) -> Result<Order<'a>> {
        let mut homes: Vec<&Arc<StreamHandle>> = Vec::new();
        for home in buffers.iter().map(|buffer| buffer.home()) {
            if !Arc::ptr_eq(home, &self.handle) && !homes.iter().any(|seen| Arc::ptr_eq(seen, home)) {
                homes.push(home);
            }
        }
        let backend = self.device.backend();
        for home in &homes {
            backend.wait(&self.handle, &backend.record(home)?)?;
        }
        Ok(Order { stream: self, homes })
    }

    /// Calls `work` with a branch of this stream: what is enqueued there follows what this stream has so far, and runs beside what this stream gets
    /// meanwhile. What it gets later waits for both. That also holds where `work` fails or panics.
    ///
    /// Within `work` [`record`](Self::record) and [`wait`](Self::wait) order the two streams more finely: nothing else does, since no use of an operand on the
    /// branch waits for its other uses.
    ///
    /// All that `work` uses on the branch is among the `operands`, which are ordered with other streams as those of
    /// [`with_operands`](Self::with_operands) are, or has this stream as its home. It allocates nothing on the branch: the home of that would be a stream
    /// which is nobody's afterwards.
    ///
    /// # Errors
    ///
    /// As [`with_operands`](Self::with_operands), and [`Error::Driver`] if the driver refuses another stream.
    pub fn beside<R>(&self, operands: &[&dyn Operand], work: impl FnOnce(&Self) -> Result<R>) -> Result<R> {
        self.beside_with_priority(StreamPriority::Normal, operands, work)
    }

    /// As [`beside`](Self::beside), with a branch of this priority: one of high priority has its work begin before what else this stream gets
    /// meanwhile.
    ///
    /// # Errors
    ///
    /// As [`beside`](Self::beside).
    pub fn beside_with_priority<R>(
        &self,
        priority: StreamPriority,
        operands: &[&dyn Operand],
        work: impl FnOnce(&Self) -> Result<R>,
    ) -> Result<R> {
        self.with_operands(operands, || {
            let handle = match self.device.idle_branches().take(&self.handle, priority) {
                Some(handle) => handle,
                None => Arc::new(self.device.backend().new_stream(priority)?),
            };
            let stream = Self { device: self.device.clone(), handle, is_branch: true, limit: self.limit };
            stream.wait(&self.record()?)?;
            let branch = Branch { of: self, stream, priority, is_joined: false };
            let result = work(&branch.stream);
            let joined = branch.finish();
            // Where both fail the work is why: it may have spoilt a capture, say.
            result.and_then(|value| joined.map(|()| value))
        })
    }

    /// Calls `work` with this stream as its device's default stream for the calling thread: operations that name no stream run on it, and tensors that
    /// name no stream have it as their home.
    ///
    /// So threads that prepare the same operands, each with a stream of its own, share no home stream, by which their work would be ordered.
    pub fn as_default<R>(&self, work: impl FnOnce() -> R) -> R {
        DEFAULTS.with_borrow_mut(|defaults| defaults.push(self.clone()));
        let _popped = PopDefault;
        work()
    }

    /// The stream that the calling thread has taken [as the default](Self::as_default) of `device` last, if it has.
    pub(crate) fn thread_default(device: &Device) -> Option<Self> {
        DEFAULTS
            .with_borrow(|defaults| defaults.iter().rev().find(|stream| stream.device == *device).cloned())
    }

    fn order_after(&self, homes: &[&Arc<StreamHandle>]) -> Result<()> {
        let backend = self.device.backend();
        let done = backend.record(&self.handle)?;
        homes.iter().try_for_each(|home| backend.wait(home, &done))
    }
}

thread_local! {
    /// The streams that this thread has taken as their devices' default streams, the last one last.
    static DEFAULTS: RefCell<Vec<Stream>> = const { RefCell::new(Vec::new()) };
}

/// Ends [`Stream::as_default`], also when it is dropped by a panic.
struct PopDefault;

impl Drop for PopDefault {
    fn drop(&mut self) {
        // The stream is dropped after the borrow: that may end a device, whose parts ask for default streams.
        let _stream = DEFAULTS.with_borrow_mut(Vec::pop);
    }
}

/// Makes the home streams wait for a stream, also when it is dropped by a panic.
#[must_use = "other uses of the operands wait for the work from when this is finished or dropped"]
pub(crate) struct Order<'a> {
    stream: &'a Stream,
    homes: Vec<&'a Arc<StreamHandle>>,
}

impl Order<'_> {
    pub(crate) fn finish(mut self) -> Result<()> {
        self.restore()
    }

    fn restore(&mut self) -> Result<()> {
        let homes = std::mem::take(&mut self.homes);
        if homes.is_empty() || self.stream.order_after(&homes).is_ok() {
            return Ok(());
        }
        // The homes do not wait for this stream, so the host has to: memory freed on a home stream must not be in use here.
        self.stream.synchronize()
    }
}

impl Drop for Order<'_> {
    fn drop(&mut self) {
        // After `finish` nothing is left to do. In a panic an error has nowhere to go; the driver repeats it later.
        let _ = self.restore();
    }
}

/// Makes a stream wait for its branch, also when it is dropped by a panic.
struct Branch<'a> {
    of: &'a Stream,
    stream: Stream,
    priority: StreamPriority,
    is_joined: bool,
}

impl Branch<'_> {
    fn finish(mut self) -> Result<()> {
        self.join()
    }

    fn join(&mut self) -> Result<()> {
        if std::mem::replace(&mut self.is_joined, true) {
            return Ok(());
        }
        let handle = &self.stream.handle;
        if self.stream.record().and_then(|done| self.of.wait(&done)).is_err() {
            // As where homes cannot be made to wait: see `Order`.
            return self.stream.synchronize();
        }
        self.of.device.idle_branches().keep(&self.of.handle, self.priority, handle.clone());
        Ok(())
    }
}

impl Drop for Branch<'_> {
    fn drop(&mut self) {
        // As that of `Order`.
        let _ = self.join();
    }
}

/// Branches that have been joined, each with the stream that it is of and its priority.
///
/// That stream alone gets them again: on one that had others before, work would wait for what those had left there. And where the stream is
/// being captured, a branch of it is captured too until that ends.
#[derive(Debug, Default)]
pub(crate) struct IdleBranches(Mutex<Vec<IdleBranch>>);

#[derive(Debug)]
struct IdleBranch {
    of: Weak<StreamHandle>,
    priority: StreamPriority,
    handle: Arc<StreamHandle>,
}

impl IdleBranches {
    fn take(&self, of: &Arc<StreamHandle>, priority: StreamPriority) -> Option<Arc<StreamHandle>> {
        let mut all = self.0.lock();
        let is_asked_for =
            |idle: &IdleBranch| idle.priority == priority && std::ptr::eq(idle.of.as_ptr(), Arc::as_ptr(of));
        let position = all.iter().position(is_asked_for)?;
        Some(all.swap_remove(position).handle)
    }

    fn keep(&self, of: &Arc<StreamHandle>, priority: StreamPriority, branch: Arc<StreamHandle>) {
        let mut all = self.0.lock();
        // Nobody asks again for those of streams that are gone.
        all.retain(|idle| idle.of.strong_count() > 0);
        all.push(IdleBranch { of: Arc::downgrade(of), priority, handle: branch });
    }
}

impl PartialEq for Stream {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.handle, &other.handle)
    }
}

impl Eq for Stream {}

/// Something that work on a stream reads or writes: a tensor.
pub trait Operand: sealed::HasBuffer {}

impl<T: Element> Operand for Tensor<T> {}

pub(crate) mod sealed {
    use super::{Arc, Buffer, Element, Tensor};

    pub trait HasBuffer {
        #[allow(private_interfaces, reason = "the trait is sealed: nothing outside the crate calls this")]
        fn buffer(&self) -> &Arc<Buffer>;
    }

    impl<T: Element> HasBuffer for Tensor<T> {
        #[allow(private_interfaces, reason = "the trait is sealed: nothing outside the crate calls this")]
        fn buffer(&self) -> &Arc<Buffer> {
            self.shared_storage()
        }
    }
}

/// A point in a stream's work, to wait for and to measure time with.
#[derive(Debug)]
pub struct Event {
    device: Device,
    handle: EventHandle,
}

impl Event {
    /// As it were if its work were done so much later, on a device that works immediately.
    #[cfg(test)]
    pub(crate) fn later(&self, by: Duration) -> Self {
        let EventHandle::Immediate(time) = self.handle else {
            panic!("a GPU's work is done when it is done")
        };
        Self { device: self.device.clone(), handle: EventHandle::Immediate(time + by) }
    }

    /// The device whose work it is about.
    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    /// Waits until the work before this point is done.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`] if any of the work failed.
    pub fn synchronize(&self) -> Result<()> {
        self.device.backend().synchronize_event(&self.handle)
    }

    /// Whether the work before this point is done.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`] if any of the work failed.
    pub fn is_done(&self) -> Result<bool> {
        self.device.backend().is_done(&self.handle)
    }

    /// The time between `start` and this event; waits for both. Half a microsecond is resolved on a GPU.
    ///
    /// # Errors
    ///
    /// [`Error::DeviceMismatch`] if `start` is another device's, [`Error::Argument`] if it comes later than this event,
    /// [`Error::Driver`] if any of the work failed.
    pub fn elapsed_since(&self, start: &Event) -> Result<Duration> {
        self.device.expect_same("Event::elapsed_since", "start", &start.device)?;
        start.synchronize()?;
        self.synchronize()?;
        self.device.backend().elapsed(&start.handle, &self.handle)
    }
}

/// The error for an interval whose start comes after its end.
pub(crate) fn negative_interval(milliseconds: f64) -> Error {
    Error::Argument {
        operation: "Event::elapsed_since",
        argument: "start",
        expected: "an event before this one".into(),
        actual: format!("one {milliseconds} ms after it"),
    }
}

#[cfg(test)]
mod tests;
