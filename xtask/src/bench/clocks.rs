//! The GPU's clock and power while it is measured: a thread asks the driver's management library (NVML) for them many times a case.
//!
//! The thread sleeps between samples and asks for what the library answers within a fraction of a millisecond, so that neither the host's
//! launches nor the GPU have to wait for it.

use std::ffi::{c_char, c_int, c_longlong, c_uint, c_ulonglong, c_void};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use libloading::Library;

use super::present;

/// Between two samples: a case that is timed for a third of a second has about thirty.
const INTERVAL: Duration = Duration::from_millis(10);

/// What the GPU was at, at one time or on average.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct State {
    /// The multiprocessors' clock in MHz.
    pub(super) clock: f64,
    /// Power in watts; not every GPU tells it.
    pub(super) power: Option<f64>,
    /// 1 if the clock was held down to keep to the power limit, 0 if not; not every GPU tells it.
    pub(super) capped: Option<f64>,
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
    /// Begins to sample the GPU that CUDA gives this number in this process, which must have begun to use it.
    pub(super) fn open(gpu: usize) -> Result<Self> {
        let library = Nvml::open(&PciId::of(gpu)?)?;
        // A GPU that does not answer is an error here, rather than a column without numbers; one that tells its clock alone is said to.
        library.sample()?;
        present("The power", library.power());
        present("Whether the power limit holds the clock down", library.capped());
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
    let mean = |value: fn(&State) -> Option<f64>| {
        let told: Vec<f64> = samples.iter().filter_map(|(_, state)| value(state)).collect();
        let count = u32::try_from(told.len()).ok().filter(|&count| count > 0)?;
        Some(told.iter().sum::<f64>() / f64::from(count))
    };
    let state = State {
        clock: mean(|state| Some(state.clock))?,
        power: mean(|state| state.power),
        capped: mean(|state| state.capped),
    };
    Some(Mean { state, samples: u32::try_from(samples.len()).ok()? })
}

/// Where a GPU is on the PCI bus, as text that ends with a zero. CUDA and NVML number GPUs differently where a process sees only some
/// (`CUDA_VISIBLE_DEVICES`) or they are not all alike, but agree on this.
struct PciId([c_char; 32]);

impl PciId {
    /// Asks CUDA's driver, which must be initialised.
    fn of(gpu: usize) -> Result<Self> {
        let ordinal = c_int::try_from(gpu).context("the GPU's number")?;
        // SAFETY: the library's initialisers have no requirements.
        let library = unsafe { Library::new("libcuda.so.1") }.context("libcuda.so.1")?;
        let (mut device, mut id) = (0, [0; 32]);
        // SAFETY: the functions are of the types that `cuda.h` gives them, and are used while the library is open. A device is a number
        // that is written to a live variable; of the text no more is written than there is place for, as is said, with a zero at the end.
        unsafe {
            let by_ordinal: unsafe extern "C" fn(*mut c_int, c_int) -> c_int =
                *library.get(c"cuDeviceGet")?;
            let pci_id: unsafe extern "C" fn(*mut c_char, c_int, c_int) -> c_int =
                *library.get(c"cuDeviceGetPCIBusId")?;
            check("cuDeviceGet", by_ordinal(&raw mut device, ordinal))?;
            check("cuDeviceGetPCIBusId", pci_id(id.as_mut_ptr(), 32, device))?;
        }
        Ok(Self(id))
    }
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
    /// Opens the library for one GPU.
    fn open(gpu: &PciId) -> Result<Self> {
        // SAFETY: the library's initialisers have no requirements.
        let library = unsafe { Library::new("libnvidia-ml.so.1") }.context("libnvidia-ml.so.1")?;
        // SAFETY: the functions are of the types that the library's header gives them. The pointers are copied out of their symbols and
        // are used no longer than the library is open, which is at least as long as `self`.
        let (init, by_pci_id, mut opened) = unsafe {
            let init: unsafe extern "C" fn() -> c_int = *library.get(c"nvmlInit_v2")?;
            let by_pci_id: unsafe extern "C" fn(*const c_char, *mut Handle) -> c_int =
                *library.get(c"nvmlDeviceGetHandleByPciBusId_v2")?;
            let opened = Self {
                device: std::ptr::null_mut(),
                shutdown: *library.get(c"nvmlShutdown")?,
                clock_info: *library.get(c"nvmlDeviceGetClockInfo")?,
                field_values: *library.get(c"nvmlDeviceGetFieldValues")?,
                // Its name since before reasons were called events; later drivers have both.
                clock_reasons: *library.get(c"nvmlDeviceGetCurrentClocksThrottleReasons")?,
                _library: library,
            };
            (init, by_pci_id, opened)
        };
        // SAFETY: the function has no requirements. From here on, dropping `opened` shuts the library down; where it could not be
        // initialised it says that it was not.
        check("nvmlInit_v2", unsafe { init() })?;
        // SAFETY: the library is open; the text ends with a zero, and the handle is written to a live variable.
        let found = unsafe { by_pci_id(gpu.0.as_ptr(), &raw mut opened.device) };
        check("nvmlDeviceGetHandleByPciBusId_v2", found)?;
        Ok(opened)
    }

    fn sample(&self) -> Result<State> {
        let mut clock = 0;
        // SAFETY: the handle is of this library, which is open; the result is written to a live variable.
        let status = unsafe { (self.clock_info)(self.device, CLOCK_SM, &raw mut clock) };
        check("nvmlDeviceGetClockInfo", status)?;
        Ok(State { clock: clock.into(), power: self.power().ok(), capped: self.capped().ok() })
    }

    /// See [`State::power`].
    fn power(&self) -> Result<f64> {
        let mut power = FieldValue { field: POWER_INSTANT, ..FieldValue::default() };
        // SAFETY: the handle is of this library, which is open; the result is written to a live variable, which is one field, as is said.
        let status = unsafe { (self.field_values)(self.device, 1, &raw mut power) };
        check("nvmlDeviceGetFieldValues", status)?;
        Ok(f64::from(power.unsigned()?) * 1e-3)
    }

    /// See [`State::capped`].
    fn capped(&self) -> Result<f64> {
        let mut reasons = 0;
        // SAFETY: the handle is of this library, which is open; the result is written to a live variable.
        let status = unsafe { (self.clock_reasons)(self.device, &raw mut reasons) };
        check("nvmlDeviceGetCurrentClocksThrottleReasons", status)?;
        Ok(if reasons & POWER_CAP == 0 { 0.0 } else { 1.0 })
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

    const STATE: State = State { clock: 1500.0, power: Some(100.0), capped: Some(0.5) };

    #[test]
    fn the_mean_is_of_all_samples_and_says_how_many() {
        let at = Instant::now();
        let sample = |clock, power, capped| (at, State { clock, power, capped });
        assert_eq!(mean(&[]), None);
        let samples = [sample(1000.0, Some(150.0), Some(1.0)), sample(2000.0, Some(50.0), Some(0.0))];
        assert_eq!(mean(&samples), Some(Mean { state: STATE, samples: 2 }));
        // What some samples lack is the mean of the others, and what all lack is absent beside the clock.
        let samples = [sample(1000.0, Some(100.0), None), sample(2000.0, None, None)];
        let state = State { capped: None, ..STATE };
        assert_eq!(mean(&samples), Some(Mean { state, samples: 2 }));
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
