//! A GPU's primary context, the one that the CUDA runtime and other libraries use too.

use std::ptr;

use parking_lot::Mutex;

use super::event::IdleEvents;
use super::recordings::Recordings;
use crate::driver::sys::{self as cuda, CUcontext, CUdevice};
use crate::driver::{self, code};
use crate::error::Result;
use crate::stream::StreamPriority;

/// A GPU's primary context. There is one a GPU and process at a time: who waits for it has to know of everybody who records its work.
#[derive(Debug)]
pub(crate) struct GpuContext {
    raw: CUcontext,
    device: CUdevice,
    pub(super) recordings: Recordings,
    pub(super) idle_events: Mutex<IdleEvents>,
}

// SAFETY: the driver's handles may be used from any thread.
unsafe impl Send for GpuContext {}
// SAFETY: as above.
unsafe impl Sync for GpuContext {}

/// Until it is dropped, a context is the calling thread's current one. Then the one before is so again.
#[derive(Debug)]
#[must_use = "the context is current only as long as this lives"]
pub(crate) struct Bound {
    /// `None` where it was the same.
    before: Option<CUcontext>,
}

impl Drop for Bound {
    fn drop(&mut self) {
        if let Some(before) = self.before {
            // SAFETY: the context was current before, or none was. An error has nowhere to go.
            let _ = unsafe { cuda::cuCtxSetCurrent(before) };
        }
    }
}

impl GpuContext {
    /// That of a GPU.
    pub(super) fn new(device: CUdevice) -> Result<Self> {
        let mut raw = ptr::null_mut();
        // SAFETY: the handle is written to a local variable.
        driver::check(super::OPENING, unsafe { cuda::cuDevicePrimaryCtxRetain(&raw mut raw, device) })?;
        Ok(Self { raw, device, recordings: Recordings::default(), idle_events: Mutex::default() })
    }

    /// The driver's number of a stream's priority. The driver's range ends with the highest, which is the least number; streams that are given none
    /// have 0.
    pub(super) fn priority(&self, priority: StreamPriority) -> Result<i32> {
        if priority == StreamPriority::Normal {
            return Ok(0);
        }
        let _bound = self.bind()?;
        let [mut least, mut greatest] = [0; 2];
        // SAFETY: the context is current; both numbers are written to local variables.
        driver::check("asking for priorities", unsafe {
            cuda::cuCtxGetStreamPriorityRange(&raw mut least, &raw mut greatest)
        })?;
        Ok(greatest)
    }

    /// The driver's handle of the GPU.
    pub(super) fn device(&self) -> CUdevice {
        self.device
    }

    /// Whether the driver's handle is this context's.
    pub(super) fn is(&self, raw: CUcontext) -> bool {
        self.raw == raw
    }

    /// Makes this the calling thread's current context as long as what it returns lives.
    pub(super) fn bind(&self) -> Result<Bound> {
        bind(self.raw)
    }

    /// Waits for other threads' recordings and all work of the context, then calls `next`; meanwhile no recording begins.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`](crate::Error::Driver) if any of the work failed, or this thread is recording work itself: then with the driver's code for that, but without
    /// asking the driver, which would have all recordings fail.
    pub(super) fn when_done<R>(&self, next: impl FnOnce() -> R) -> Result<R> {
        const OPERATION: &str = "waiting for a GPU";
        let Some(_alone) = self.recordings.wait() else {
            return Err(driver::error(OPERATION, code::STREAM_CAPTURE_UNSUPPORTED));
        };
        let _bound = self.bind()?;
        // SAFETY: the context is current.
        driver::check(OPERATION, unsafe { cuda::cuCtxSynchronize() })?;
        Ok(next())
    }
}

/// Makes a context the calling thread's current one as long as what it returns lives.
fn bind(raw: CUcontext) -> Result<Bound> {
    const OPERATION: &str = "selecting a GPU";
    let mut before = ptr::null_mut();
    // SAFETY: the handle is written to a local variable.
    driver::check(OPERATION, unsafe { cuda::cuCtxGetCurrent(&raw mut before) })?;
    if before == raw {
        return Ok(Bound { before: None });
    }
    // SAFETY: the context is alive: this crate's are retained, and others come from who has them.
    driver::check(OPERATION, unsafe { cuda::cuCtxSetCurrent(raw) })?;
    Ok(Bound { before: Some(before) })
}

/// The driver's handle of the GPU that a context is of, which may be one of another library's.
#[cfg(feature = "cust")]
pub(super) fn gpu_of(raw: CUcontext) -> Result<CUdevice> {
    let _bound = bind(raw)?;
    let mut device = 0;
    // SAFETY: the context is current; the handle is written to a local variable.
    driver::check("asking for a context's GPU", unsafe { cuda::cuCtxGetDevice(&raw mut device) })?;
    Ok(device)
}

impl Drop for GpuContext {
    fn drop(&mut self) {
        if let Ok(_bound) = self.bind() {
            self.idle_events.get_mut().destroy();
        }
        // SAFETY: everything that the driver gave out in it holds it, so nothing of it is in use.
        let _ = unsafe { cuda::cuDevicePrimaryCtxRelease_v2(self.device) };
    }
}
