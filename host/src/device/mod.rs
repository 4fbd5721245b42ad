//! Devices: an NVIDIA GPU, the emulator that runs the same PTX on the CPU, and the CPU itself.
//!
//! All three stand behind one interface (`backend::Backend`); what is above it asks a device for its kind only to
//! choose between a kernel and an operation's CPU implementation.

pub(crate) mod backend;
pub(crate) mod cpu;
pub(crate) mod cuda;
mod current;
pub(crate) mod decisions;
pub(crate) mod emulator;
mod properties;
pub(crate) mod tuning;

use std::fmt;
use std::str::FromStr;
use std::sync::{Arc, OnceLock};

pub use current::CurrentDevice;
pub use emulator::EmulatorOptions;
pub use properties::{MemoryStats, Properties};

use crate::error::{Error, Result};
use crate::kernel;
use crate::stream::{IdleBranches, Stream, StreamPriority};
use backend::{Backend, StreamHandle};
use decisions::Decisions;

/// What a [`Device`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DeviceKind {
    /// An NVIDIA GPU, by its number.
    Cuda(usize),
    /// The emulator: runs PTX on the CPU and checks it as it runs.
    Emulator,
    /// The CPU: runs no kernels, but each operation's plain implementation.
    Cpu,
}

impl fmt::Display for DeviceKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeviceKind::Cuda(ordinal) => write!(formatter, "cuda:{ordinal}"),
            DeviceKind::Emulator => formatter.write_str("emulator"),
            DeviceKind::Cpu => formatter.write_str("cpu"),
        }
    }
}

/// A device that holds tensors and runs operations. Clones stand for the same device.
#[derive(Clone)]
pub struct Device(Arc<Inner>);

struct Inner {
    kernels: kernel::Cache,
    tuning: tuning::State,
    decisions: Decisions,
    default_stream: Arc<StreamHandle>,
    idle_branches: IdleBranches,
    backend: Box<dyn Backend>,
}

impl Device {
    /// The GPU number `ordinal`, in the driver's order. Two calls with one number give the same device.
    ///
    /// # Errors
    ///
    /// [`Error::NoDriver`] if the machine has no NVIDIA driver, [`Error::NoSuchDevice`] if it has no such GPU,
    /// [`Error::Driver`] if the GPU cannot be used.
    pub fn cuda(ordinal: usize) -> Result<Self> {
        cuda::open(ordinal)
    }

    /// An emulated GPU of compute capability 8.0, with memory of its own, on which all checks are on.
    #[must_use]
    pub fn emulator() -> Self {
        Self::emulator_with(EmulatorOptions::default())
    }

    /// An emulated GPU as `options` say, with memory of its own.
    #[must_use]
    pub fn emulator_with(options: EmulatorOptions) -> Self {
        Self::from_backend(Box::new(emulator::Emulator::new(options)), StreamHandle::Immediate)
    }

    /// The CPU. All calls give the same device.
    #[must_use]
    pub fn cpu() -> Self {
        static CPU: OnceLock<Device> = OnceLock::new();
        CPU.get_or_init(|| Self::from_backend(Box::new(cpu::Cpu::new()), StreamHandle::Immediate)).clone()
    }

    /// The first GPU that this project's kernels run on, given its compute capability and the driver; without one the CPU.
    /// [`Device::cuda`] says why a GPU cannot be used, and loading a kernel there why it does not run.
    #[must_use]
    pub fn auto() -> Self {
        (0..Self::cuda_count().unwrap_or(0))
            .filter_map(|ordinal| Self::cuda(ordinal).ok())
            .find(|device| {
                let properties = device.properties();
                kernel::runs_built_in(properties.compute_capability, properties.driver_version)
            })
            .unwrap_or_else(Self::cpu)
    }

    /// How many GPUs the driver offers.
    ///
    /// # Errors
    ///
    /// [`Error::NoDriver`] if the machine has no NVIDIA driver.
    pub fn cuda_count() -> Result<usize> {
        cuda::count()
    }

    pub(crate) fn from_backend(backend: Box<dyn Backend>, default_stream: StreamHandle) -> Self {
        Self(Arc::new(Inner {
            kernels: kernel::Cache::default(),
            tuning: tuning::State::default(),
            decisions: Decisions::default(),
            default_stream: Arc::new(default_stream),
            idle_branches: IdleBranches::default(),
            backend,
        }))
    }

    /// What kind of device this is.
    #[must_use]
    pub fn kind(&self) -> DeviceKind {
        self.0.backend.kind()
    }

    /// The device's name, e.g. `NVIDIA H100 80GB HBM3`.
    #[must_use]
    pub fn name(&self) -> &str {
        self.0.backend.name()
    }

    /// The device's limits and sizes.
    #[must_use]
    pub fn properties(&self) -> &Properties {
        self.0.backend.properties()
    }

    /// Waits until all work on all of the device's streams is done.
    ///
    /// A GPU cannot be waited for while its work is [captured](Stream::capture). So this first waits for the captures that other threads have under way, and
    /// captures that are to begin meanwhile wait for this. Who calls it holds no mutex that captured work locks.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`] if any of the work failed, or on a GPU within work that is being captured.
    pub fn synchronize(&self) -> Result<()> {
        self.0.backend.synchronize_all()
    }

    /// Gives the memory that is pooled but unused back to the system. Waits for the device's work as [`synchronize`](Self::synchronize) does, since
    /// memory that is freed in stream order is free only when the work before it is done.
    ///
    /// # Errors
    ///
    /// As [`synchronize`](Self::synchronize).
    pub fn release_memory(&self) -> Result<()> {
        self.0.backend.release_memory()
    }

    /// How much of the device's memory is in use.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`] if the driver cannot say.
    pub fn memory_stats(&self) -> Result<MemoryStats> {
        self.0.backend.memory_stats()
    }

    /// Makes the GPU's primary context the calling thread's current one until what this returns is dropped. Then the one before is current again.
    ///
    /// Nothing needs this. Without it each call selects the context and restores the one before, which costs the caller time. On other
    /// devices it does nothing.
    ///
    /// ```
    /// # fn main() -> warpsmith::Result<()> {
    /// # use warpsmith::{Device, Tensor, ops};
    /// # let device = Device::cpu();
    /// # let (x, w) = (Tensor::<f32>::zeros(&device, [4, 8])?, Tensor::<f32>::zeros(&device, [2, 8])?);
    /// # let mut y = Tensor::<f32>::zeros(&device, [4, 2])?;
    /// let _current = device.make_current()?;
    /// for _ in 0..100 {
    ///     ops::linear(&x, &w).run_into(&mut y)?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Driver`] if the driver refuses.
    pub fn make_current(&self) -> Result<CurrentDevice<'_>> {
        Ok(CurrentDevice::new(self, self.0.backend.make_current()?))
    }

    /// The stream that work goes to where none is named.
    #[must_use]
    pub fn default_stream(&self) -> Stream {
        Stream::thread_default(self)
            .unwrap_or_else(|| Stream::new(self.clone(), self.0.default_stream.clone()))
    }

    /// A further stream, whose work may run beside that of the others.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`] if the driver refuses.
    pub fn new_stream(&self) -> Result<Stream> {
        self.new_stream_with_priority(StreamPriority::Normal)
    }

    /// As [`new_stream`](Self::new_stream), with a priority. Devices other than GPUs, which do their work at once, ignore it.
    ///
    /// # Errors
    ///
    /// As [`new_stream`](Self::new_stream).
    pub fn new_stream_with_priority(&self, priority: StreamPriority) -> Result<Stream> {
        Ok(Stream::new(self.clone(), Arc::new(self.0.backend.new_stream(priority)?)))
    }

    pub(crate) fn backend(&self) -> &dyn Backend {
        &*self.0.backend
    }

    /// The [branches](Stream::beside) of the device's streams that have nothing to do at present.
    pub(crate) fn idle_branches(&self) -> &IdleBranches {
        &self.0.idle_branches
    }

    pub(crate) fn tuning(&self) -> &tuning::State {
        &self.0.tuning
    }

    pub(crate) fn decisions(&self) -> &Decisions {
        &self.0.decisions
    }

    pub(crate) fn kernels(&self) -> &kernel::Cache {
        &self.0.kernels
    }

    /// The error for an operand on another device than this one, if it is.
    pub(crate) fn expect_same(
        &self,
        operation: &'static str,
        operand: &'static str,
        other: &Device,
    ) -> Result<()> {
        if self == other {
            return Ok(());
        }
        let actual = match (self.kind(), other.kind()) {
            (DeviceKind::Emulator, DeviceKind::Emulator) => {
                format!("another {other}: what is of two emulators does not mix, clone the device instead")
            }
            (own, others) if own == others => format!("another {other}"),
            _ => other.to_string(),
        };
        Err(Error::DeviceMismatch { operation, operand, expected: self.to_string(), actual })
    }
}

impl PartialEq for Device {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Device {}

/// The name that [`str::parse`] takes: an emulator's with its compute capability.
impl fmt::Display for Device {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0.backend.label())
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Device({self}, {})", self.name())
    }
}

/// The compute capabilities that GPUs have and kernels of this crate are for.
const EMULATED: [(u32, u32); 13] = [
    (7, 5),
    (8, 0),
    (8, 6),
    (8, 7),
    (8, 8),
    (8, 9),
    (9, 0),
    (10, 0),
    (10, 1),
    (10, 3),
    (11, 0),
    (12, 0),
    (12, 1),
];

impl FromStr for Device {
    type Err = Error;

    /// Opens the device that is named `auto`, `cuda` (the first GPU), `cuda:N`, `emulator`, `emulator:9.0` (of that compute
    /// capability) or `cpu`.
    fn from_str(text: &str) -> Result<Self> {
        let unknown = || Error::NoSuchDevice {
            requested: text.to_owned(),
            available: format!(
                "`auto`, `cuda`, `cuda:N`, `emulator`, `cpu`, or `emulator:` and one of {}",
                EMULATED.map(|(major, minor)| format!("{major}.{minor}")).join(", ")
            ),
        };
        match text {
            "auto" => Ok(Self::auto()),
            "cuda" => Self::cuda(0),
            "emulator" => Ok(Self::emulator()),
            "cpu" => Ok(Self::cpu()),
            _ => {
                if let Some(capability) = text.strip_prefix("emulator:") {
                    let capability = capability
                        .split_once('.')
                        .and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)))
                        .filter(|capability| EMULATED.contains(capability))
                        .ok_or_else(unknown)?;
                    let options = EmulatorOptions { compute_capability: capability, ..Default::default() };
                    return Ok(Self::emulator_with(options));
                }
                let ordinal = text.strip_prefix("cuda:").ok_or_else(unknown)?;
                Self::cuda(ordinal.parse().map_err(|_| unknown())?)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Device;

    #[test]
    fn only_compute_capabilities_of_gpus_are_emulated() {
        for name in ["emulator:7.5", "emulator:9.0", "emulator:12.1"] {
            assert_eq!(name.parse::<Device>().unwrap().to_string(), name);
        }
        for name in ["emulator:7.0", "emulator:8.1", "emulator:42.0", "emulator:9", "emulator:"] {
            let error = name.parse::<Device>().unwrap_err().to_string();
            assert!(error.contains(name) && error.contains("8.9, 9.0, 10.0"), "{error}");
        }
    }
}
