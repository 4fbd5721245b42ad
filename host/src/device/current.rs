use std::fmt;
use std::marker::PhantomData;

use super::Device;
use super::cuda::Bound;

/// Keeps a device's context the calling thread's current one until it is dropped: what [`Device::make_current`] gives.
#[must_use = "the context is current only as long as this lives"]
pub struct CurrentDevice<'a> {
    /// `None` on devices that have no context.
    _bound: Option<Bound>,
    device: &'a Device,
    /// A context is current on one thread.
    on_this_thread: PhantomData<*const ()>,
}

impl<'a> CurrentDevice<'a> {
    pub(super) fn new(device: &'a Device, bound: Option<Bound>) -> Self {
        Self { _bound: bound, device, on_this_thread: PhantomData }
    }
}

impl fmt::Debug for CurrentDevice<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("CurrentDevice").field(self.device).finish()
    }
}
