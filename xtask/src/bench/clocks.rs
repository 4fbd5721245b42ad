//! The GPU's clock and power while it is measured: a thread asks the driver's management library (NVML) for them many times a case.
//!
//! The thread sleeps between samples and asks for what the library answers within a fraction of a millisecond, so that neither the host's
//! launches nor the GPU have to wait for it.

use std::ffi::{c_int, c_longlong, c_uint, c_ulonglong, c_void};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use libloading::Library;

/// Between two samples: a case that is timed for a third of a second has about thirty.
const INTERVAL: Duration = Duration::from_millis(10);

/// What the GPU was at, at one time or on average.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct State {
    /// The multiprocessors' clock in MHz.
    pub(super) clock: f64,
    /// Power in watts.
    pub(super) power: f64,
    /// 1 if the clock was held down to keep to the power limit, 0 if not.
    pub(super) capped: f64,
}

/// The mean of some samples.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Mean {
    pub(super) state: State,
    pub(super) samples: u32,
}

/// A thread that samples one GPU until this is dropped.
pub(super) struct Monitor {
    samples: Arc<Mutex<Vec<(Instant, State)>>>,
    /// Ends the thread when it is dropped.
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Monitor {
    /// Begins to sample the GPU of this number.
    pub(super) fn open(gpu: usize) -> Result<Self> {
        let library = Nvml::open(gpu)?;
        // One that does not answer is an error here, rather than a column without numbers.
        library.sample()?;
        Ok(Self::start(move || library.sample().ok()))
    }

    /// Begins to sample what `sample` gives.
    fn start(sample: impl Fn() -> Option<State> + Send + 'static) -> Self {
        let samples = Arc::new(Mutex::new(Vec::new()));
        let kept = samples.clone();
        let (end, ended) = channel();
        let thread = std::thread::spawn(move || {
            while ended.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
                let at = Instant::now();
                if let Some(state) = sample() {
                    kept.lock().unwrap_or_else(PoisonError::into_inner).push((at, state));
                }
            }
        });
        Self { samples, end: Some(end), thread: Some(thread) }
    }

    /// The mean of the samples since `start`; `None` if there are none. Earlier ones are forgotten.
    pub(super) fn since(&self, start: Instant) -> Option<Mean> {
        let mut samples = self.samples.lock().unwrap_or_else(PoisonError::into_inner);
        samples.retain(|(at, _)| *at >= start);
        mean(&samples)
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        self.end = None;
        // A thread that has panicked has nothing more to say.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn mean(samples: &[(Instant, State)]) -> Option<Mean> {
    let count = u32::try_from(samples.len()).ok().filter(|&count| count > 0)?;
    let mean = |value: fn(&State) -> f64| {
        samples.iter().map(|(_, state)| value(state)).sum::<f64>() / f64::from(count)
    };
    let state = State {
        clock: mean(|state| state.clock),
        power: mean(|state| state.power),
        capped: mean(|state| state.capped),
    };
    Some(Mean { state, samples: count })
}

/// A device as the library knows it.
type Handle = *mut c_void;

/// The library, opened for one GPU. Names, numbers and types are those of `nvml.h`.
struct Nvml {
    device: Handle,
    shutdown: unsafe extern "C" fn() -> c_int,
    clock_info: unsafe extern "C" fn(Handle, c_uint, *mut c_uint) -> c_int,
    field_values: unsafe extern "C" fn(Handle, c_int, *mut FieldValue) -> c_int,
    clock_reasons: unsafe extern "C" fn(Handle, *mut c_ulonglong) -> c_int,
    /// Where the functions are.
    _library: Library,
}

/// `nvmlFieldValue_t`.
#[repr(C)]
#[derive(Default)]
struct FieldValue {
    field: c_uint,
    scope: c_uint,
    timestamp: c_longlong,
    latency: c_longlong,
    value_type: c_int,
    status: c_int,
    /// A union of numbers of up to eight bytes.
    value: [u8; 8],
}

/// `NVML_CLOCK_SM`.
const CLOCK_SM: c_uint = 1;
/// `NVML_FI_DEV_POWER_INSTANT`, in milliwatts, and the type that it is of: `NVML_VALUE_TYPE_UNSIGNED_INT`.
const POWER_INSTANT: c_uint = 186;
const UNSIGNED_INT: c_int = 1;
/// `nvmlClocksEventReasonSwPowerCap`.
const POWER_CAP: c_ulonglong = 4;

// SAFETY: the library may be used from any thread, and its handles as well.
unsafe impl Send for Nvml {}

impl Nvml {
    /// Opens the library for the GPU of this number, which is the driver's: of a machine's GPUs, some that a process does not see count, too.
    fn open(gpu: usize) -> Result<Self> {
        // SAFETY: the library's initialisers have no requirements.
        let library = unsafe { Library::new("libnvidia-ml.so.1") }.context("libnvidia-ml.so.1")?;
        // SAFETY: the functions are of the types that the library's header gives them. The pointers are copied out of their symbols and
        // are used no longer than the library is open, which is at least as long as `self`.
        let (init, by_index, mut opened) = unsafe {
            let init: unsafe extern "C" fn() -> c_int = *library.get(c"nvmlInit_v2")?;
            let by_index: unsafe extern "C" fn(c_uint, *mut Handle) -> c_int =
                *library.get(c"nvmlDeviceGetHandleByIndex_v2")?;
            let opened = Self {
                device: std::ptr::null_mut(),
                shutdown: *library.get(c"nvmlShutdown")?,
                clock_info: *library.get(c"nvmlDeviceGetClockInfo")?,
                field_values: *library.get(c"nvmlDeviceGetFieldValues")?,
                // Its name since before reasons were called events; later drivers have both.
                clock_reasons: *library.get(c"nvmlDeviceGetCurrentClocksThrottleReasons")?,
                _library: library,
            };
            (init, by_index, opened)
        };
        // SAFETY: the function has no requirements. From here on, dropping `opened` shuts the library down; where it could not be
        // initialised it says that it was not.
        check("nvmlInit_v2", unsafe { init() })?;
        let index = c_uint::try_from(gpu).context("the GPU's number")?;
        // SAFETY: the library is open; the handle is written to a live variable.
        check("nvmlDeviceGetHandleByIndex_v2", unsafe { by_index(index, &raw mut opened.device) })?;
        Ok(opened)
    }

    fn sample(&self) -> Result<State> {
        let (mut clock, mut reasons) = (0, 0);
        let mut power = FieldValue { field: POWER_INSTANT, ..FieldValue::default() };
        // SAFETY: the handle is of this library, which is open; the results are written to live variables, of which the second is one
        // field, as is said.
        let [clock_status, power_status, reasons_status] = unsafe {
            [
                (self.clock_info)(self.device, CLOCK_SM, &raw mut clock),
                (self.field_values)(self.device, 1, &raw mut power),
                (self.clock_reasons)(self.device, &raw mut reasons),
            ]
        };
        check("nvmlDeviceGetClockInfo", clock_status)?;
        check("nvmlDeviceGetFieldValues", power_status)?;
        check("nvmlDeviceGetCurrentClocksThrottleReasons", reasons_status)?;
        Ok(State {
            clock: clock.into(),
            power: f64::from(power.unsigned()?) * 1e-3,
            capped: if reasons & POWER_CAP == 0 { 0.0 } else { 1.0 },
        })
    }
}

impl Drop for Nvml {
    fn drop(&mut self) {
        // SAFETY: the function has no requirements. Nothing can be done about an error.
        let _ = unsafe { (self.shutdown)() };
    }
}

impl FieldValue {
    /// The value of a field that is an unsigned number of 32 bits.
    fn unsigned(&self) -> Result<u32> {
        check("a field", self.status)?;
        if self.value_type != UNSIGNED_INT {
            bail!("a field of type {}, where unsigned numbers are expected", self.value_type);
        }
        let [a, b, c, d, ..] = self.value;
        Ok(u32::from_ne_bytes([a, b, c, d]))
    }
}

fn check(call: &str, status: c_int) -> Result<()> {
    if status == 0 { Ok(()) } else { bail!("{call} returned {status}") }
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::sync::{Arc, PoisonError};
    use std::time::{Duration, Instant};

    use super::{FieldValue, INTERVAL, Mean, Monitor, State, mean};

    const STATE: State = State { clock: 1500.0, power: 100.0, capped: 0.5 };

    #[test]
    fn the_mean_is_of_all_samples_and_says_how_many() {
        let at = Instant::now();
        let sample = |clock, power, capped| (at, State { clock, power, capped });
        assert_eq!(mean(&[]), None);
        let samples = [sample(1000.0, 150.0, 1.0), sample(2000.0, 50.0, 0.0)];
        assert_eq!(mean(&samples), Some(Mean { state: STATE, samples: 2 }));
    }

    #[test]
    fn a_monitor_samples_until_it_is_dropped_and_forgets_what_was_before() {
        let asked = Arc::new(AtomicU32::new(0));
        let counted = asked.clone();
        let monitor = Monitor::start(move || {
            // Every other sample fails.
            counted.fetch_add(1, Ordering::SeqCst).is_multiple_of(2).then_some(STATE)
        });
        let start = Instant::now();
        let mut found = None;
        while found.is_none_or(|mean: Mean| mean.samples < 4) && start.elapsed() < Duration::from_secs(20) {
            std::thread::sleep(INTERVAL);
            found = monitor.since(start);
        }
        let Mean { state, samples } = found.expect("a sample in twenty seconds");
        assert!(state == STATE && samples >= 4, "{samples}");
        // Samples are a period apart, not as many as fit.
        assert!(f64::from(2 * samples) <= 3.0 + start.elapsed().as_secs_f64() / INTERVAL.as_secs_f64());
        let later = Instant::now();
        let after = monitor.since(later).map_or(0, |mean| mean.samples);
        assert!(after < samples);
        let kept = monitor.samples.clone();
        drop(monitor);
        assert!(kept.lock().unwrap_or_else(PoisonError::into_inner).iter().all(|(at, _)| *at >= later));
        // The thread has ended and let go of what it had.
        assert_eq!((Arc::strong_count(&asked), Arc::strong_count(&kept)), (1, 1));
    }

    #[test]
    fn a_field_lies_as_the_library_writes_it() {
        assert_eq!((size_of::<FieldValue>(), align_of::<FieldValue>()), (40, 8));
        assert_eq!((offset_of!(FieldValue, value_type), offset_of!(FieldValue, value)), (24, 32));
        let milliwatts = 698_520u32.to_ne_bytes();
        let [a, b, c, d] = milliwatts;
        let value = [a, b, c, d, 0, 0, 0, 0];
        let field = FieldValue { value_type: 1, value, ..FieldValue::default() };
        assert_eq!(field.unsigned().expect("an unsigned number"), 698_520);
        for (status, value_type) in [(3, 1), (0, 0), (0, 2)] {
            assert!(FieldValue { status, value_type, ..FieldValue::default() }.unsigned().is_err());
        }
    }
}
