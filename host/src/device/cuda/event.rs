//! Events: points in a stream's work, which are asked for, waited for, and measured between.
//!
//! Every function expects the caller to have made the context current.

use std::ptr;
use std::sync::Arc;
use std::time::Duration;

use super::GpuContext;
use super::raw::CudaStream;
use crate::driver::sys as cuda;
use crate::driver::{self, Failure, code};
use crate::error::Result;
use crate::stream::negative_interval;

/// A point in a stream's work.
#[derive(Debug)]
pub(crate) struct CudaEvent {
    raw: cuda::CUevent,
    context: Arc<GpuContext>,
}

// SAFETY: the driver's handles may be used from any thread.
unsafe impl Send for CudaEvent {}
// SAFETY: as above.
unsafe impl Sync for CudaEvent {}

impl CudaEvent {
    pub(super) fn record(context: &Arc<GpuContext>, stream: &CudaStream) -> Result<Self> {
        Self::record_with(0, context, stream)
    }

    /// One that is asked for, and that no time is measured by: the driver has less to do for it.
    pub(super) fn record_untimed(context: &Arc<GpuContext>, stream: &CudaStream) -> Result<Self> {
        /// `CU_EVENT_DISABLE_TIMING`.
        const DISABLE_TIMING: u32 = 2;
        Self::record_with(DISABLE_TIMING, context, stream)
    }

    fn record_with(flags: u32, context: &Arc<GpuContext>, stream: &CudaStream) -> Result<Self> {
        let mut raw = ptr::null_mut();
        // SAFETY: the handle is written to a local variable.
        driver::check("creating an event", unsafe { cuda::cuEventCreate(&raw mut raw, flags) })?;
        let event = Self { raw, context: context.clone() };
        // SAFETY: event and stream are alive.
        driver::check("recording an event", unsafe { cuda::cuEventRecord(event.raw, stream.raw()) })?;
        Ok(event)
    }

    /// The driver's handle; valid as long as `self` is.
    pub(super) fn raw(&self) -> cuda::CUevent {
        self.raw
    }

    pub(super) fn synchronize(&self) -> Result<()> {
        // SAFETY: the event is alive.
        driver::check("waiting for an event", unsafe { cuda::cuEventSynchronize(self.raw) })
    }

    pub(super) fn is_done(&self) -> Result<bool> {
        // SAFETY: the event is alive.
        match unsafe { cuda::cuEventQuery(self.raw) } {
            Err(Failure::Code(code::NOT_READY)) => Ok(false),
            other => driver::check("asking for an event", other).map(|()| true),
        }
    }

    pub(super) fn elapsed_since(&self, start: &CudaEvent) -> Result<Duration> {
        let mut milliseconds = 0.0f32;
        // SAFETY: both events are alive; the time is written to a local variable.
        driver::check("measuring time", unsafe {
            cuda::cuEventElapsedTime(&raw mut milliseconds, start.raw, self.raw)
        })?;
        Duration::try_from_secs_f64(f64::from(milliseconds) / 1e3)
            .map_err(|_| negative_interval(-f64::from(milliseconds)))
    }
}

impl Drop for CudaEvent {
    fn drop(&mut self) {
        if let Ok(_bound) = self.context.bind() {
            // SAFETY: the event is alive and not used again.
            let _ = unsafe { cuda::cuEventDestroy_v2(self.raw) };
        }
    }
}
