//! Events: points in a stream's work, which are asked for, waited for, and measured between.
//!
//! The driver's events are kept when they are no longer used, and recorded again: making and destroying them takes longer than that.
//! What waits for an event waits for the point that it stood for when the wait was enqueued, so that a later recording is none of its concern.
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
    timing: Timing,
    context: Arc<GpuContext>,
}

/// Whether time can be measured by an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Timing {
    On,
    Off,
}

impl Timing {
    /// The driver's flags.
    fn flags(self) -> u32 {
        /// `CU_EVENT_DISABLE_TIMING`.
        const DISABLE_TIMING: u32 = 2;
        match self {
            Self::On => 0,
            Self::Off => DISABLE_TIMING,
        }
    }
}

/// The driver's events that nobody uses, with and without timing.
#[derive(Debug, Default)]
pub(super) struct IdleEvents {
    timed: Vec<cuda::CUevent>,
    untimed: Vec<cuda::CUevent>,
}

impl IdleEvents {
    /// The most that are kept of each kind.
    const MOST: usize = 1024;

    fn of(&mut self, timing: Timing) -> &mut Vec<cuda::CUevent> {
        match timing {
            Timing::On => &mut self.timed,
            Timing::Off => &mut self.untimed,
        }
    }

    fn take(&mut self, timing: Timing) -> Option<cuda::CUevent> {
        self.of(timing).pop()
    }

    /// Whether there was room for it.
    fn keep(&mut self, timing: Timing, event: cuda::CUevent) -> bool {
        let kept = self.of(timing);
        let has_room = kept.len() < Self::MOST;
        if has_room {
            kept.push(event);
        }
        has_room
    }

    /// Destroys all of them, in the current context.
    pub(super) fn destroy(&mut self) {
        for event in self.timed.drain(..).chain(self.untimed.drain(..)) {
            // SAFETY: the event is alive, and nobody has it.
            let _ = unsafe { cuda::cuEventDestroy_v2(event) };
        }
    }
}

// SAFETY: the driver's handles may be used from any thread.
unsafe impl Send for CudaEvent {}
// SAFETY: as above.
unsafe impl Sync for CudaEvent {}

impl CudaEvent {
    pub(super) fn record(context: &Arc<GpuContext>, stream: &CudaStream) -> Result<Self> {
        Self::record_with(Timing::On, context, stream)
    }

    /// One that is asked for, and that no time is measured by: the driver has less to do for it.
    pub(super) fn record_untimed(context: &Arc<GpuContext>, stream: &CudaStream) -> Result<Self> {
        Self::record_with(Timing::Off, context, stream)
    }

    fn record_with(timing: Timing, context: &Arc<GpuContext>, stream: &CudaStream) -> Result<Self> {
        let idle = context.idle_events.lock().take(timing);
        let raw = match idle {
            Some(raw) => raw,
            None => {
                let mut raw = ptr::null_mut();
                // SAFETY: the handle is written to a local variable.
                let created = unsafe { cuda::cuEventCreate(&raw mut raw, timing.flags()) };
                driver::check("creating an event", created)?;
                raw
            }
        };
        let event = Self { raw, timing, context: context.clone() };
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
        if self.context.idle_events.lock().keep(self.timing, self.raw) {
            return;
        }
        if let Ok(_bound) = self.context.bind() {
            // SAFETY: the event is alive and not used again.
            let _ = unsafe { cuda::cuEventDestroy_v2(self.raw) };
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ptr;

    use super::{IdleEvents, Timing};

    #[test]
    fn idle_events_are_kept_by_kind_up_to_a_limit() {
        let event = |number: usize| ptr::without_provenance_mut(number);
        let mut idle = IdleEvents::default();
        for number in 1..=IdleEvents::MOST {
            assert!(idle.keep(Timing::On, event(number)));
        }
        assert!(!idle.keep(Timing::On, event(9999)));
        assert_eq!(idle.take(Timing::Off), None);
        assert!(idle.keep(Timing::Off, event(7777)));
        assert_eq!(idle.take(Timing::On), Some(event(IdleEvents::MOST)));
        assert_eq!(idle.take(Timing::Off), Some(event(7777)));
        assert_eq!(idle.take(Timing::Off), None);
    }
}
