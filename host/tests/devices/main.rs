//! One suite for all devices: every case is run on each device that it applies to.
//!
//! On a machine without a GPU the GPU's cases are listed as ignored and the reason is printed, so that a run never looks
//! as if it had tested what it did not. Likewise the cases for compute capability 9.0 on another GPU. `WARPSMITH_TEST_DEVICE=cuda:1` picks another GPU than the first, and then
//! it has to be there. The program needs nothing but itself, so it can be built on one machine and run on another.

mod foreign;
mod hopper;
mod kernels;
mod memory;
mod ptx;
mod rows;
mod stages;
mod streams;
mod tensors;

use std::env::VarError;
use std::process::ExitCode;

use libtest_mimic::{Arguments, Failed, Trial};
use warpsmith::{Device, DeviceKind, Error};

/// A case: a device in, a reason for failure out.
type Case = fn(&Device) -> Result<(), Failed>;

/// The devices that a case applies to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum On {
    /// All three kinds.
    All,
    /// Those that run PTX.
    Kernels,
    /// The emulator.
    Emulator,
    /// Those of compute capability 9.0.
    Hopper,
    /// A GPU.
    Cuda,
}

/// The names of functions, as the cases that they are.
macro_rules! cases {
    ($on:expr => $($case:path),* $(,)?) => {
        [$((stringify!($case), $on, $case as crate::Case)),*]
    };
}
use cases;

fn all_cases() -> impl Iterator<Item = (&'static str, On, Case)> {
    tensors::CASES
        .iter()
        .chain(memory::CASES)
        .chain(streams::CASES)
        .chain(foreign::CASES)
        .chain(foreign::CUDA_CASES)
        .chain(kernels::CASES)
        .chain(hopper::CASES)
        .chain(rows::CASES)
        .chain(stages::CASES)
        .chain(kernels::EMULATOR_CASES)
        .chain(kernels::CUDA_CASES)
        .copied()
}

/// Names another GPU than the first to test on.
const DEVICE_VARIABLE: &str = "WARPSMITH_TEST_DEVICE";

/// The GPU to test on.
struct Gpu {
    name: String,
    /// Why it cannot be had.
    missing: Option<String>,
    /// Why the cases for compute capability 9.0 do not run there.
    no_hopper: Option<String>,
}

/// The GPU to test on, and why it cannot be had if that is no fault: a GPU that was asked for by name has to be there.
fn gpu() -> Result<Gpu, String> {
    let named = match std::env::var(DEVICE_VARIABLE) {
        Ok(name) => Some(name),
        Err(VarError::NotPresent) => None,
        Err(error) => return Err(format!("{DEVICE_VARIABLE}: {error}")),
    };
    let name = named.clone().unwrap_or_else(|| "cuda:0".into());
    match (name.parse::<Device>(), named) {
        (Ok(device), _) if matches!(device.kind(), DeviceKind::Cuda(_)) => {
            let (major, minor) = device.properties().compute_capability;
            let other = format!("its compute capability is {major}.{minor}, some cases are for 9.0");
            let no_hopper = Some(other).filter(|_| (major, minor) != (9, 0));
            Ok(Gpu { name, missing: None, no_hopper })
        }
        (Ok(device), _) => Err(format!("{DEVICE_VARIABLE} is `{name}`, expected a GPU, not {device}")),
        (Err(error @ (Error::NoDriver { .. } | Error::NoSuchDevice { .. })), None) => {
            let missing = Some(error.to_string());
            Ok(Gpu { name, no_hopper: missing.clone(), missing })
        }
        (Err(error), _) => Err(format!("no tests on `{name}`: {error}")),
    }
}

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // Some cases fill a device's memory, others compare how much of it is in use.
    arguments.test_threads.get_or_insert(1);

    let Gpu { name: gpu, missing, no_hopper } = match gpu() {
        Ok(found) => found,
        Err(reason) => {
            eprintln!("error: {reason}");
            return ExitCode::FAILURE;
        }
    };
    let devices = [
        ("cpu".to_owned(), &[On::All][..]),
        ("emulator".to_owned(), &[On::All, On::Kernels, On::Emulator]),
        ("emulator:9.0".to_owned(), &[On::Kernels, On::Hopper]),
        (gpu.clone(), &[On::All, On::Kernels, On::Hopper, On::Cuda]),
    ];

    let mut trials = Vec::new();
    for (spec, kinds) in devices {
        for (name, on, case) in all_cases().filter(|(_, on, _)| kinds.contains(on)) {
            let device = spec.clone();
            let trial = Trial::test(format!("{spec}::{name}"), move || case(&device.parse::<Device>()?));
            let ignored = missing.is_some() || on == On::Hopper && no_hopper.is_some();
            trials.push(trial.with_ignored_flag(spec == gpu && ignored));
        }
    }
    let conclusion = libtest_mimic::run(&arguments, trials);
    if let Some(reason) = missing.or(no_hopper)
        && !arguments.list
    {
        println!("NOT RUN on {gpu}: {reason}");
    }
    conclusion.exit_code()
}
