//! What every device must do: one suite, run on the CPU implementation, in the emulator, and on a GPU where there is one.
//!
//! Without a GPU its cases are listed as ignored and the reason is printed. Likewise the cases that are for GPUs as large as an H100 on another one.
//! `WARPSMITH_TEST_DEVICE=cuda:1` picks another GPU than the first, and then it has to be there; `WARPSMITH_TEST_SEED=n` draws other properties and orders of warps than usual, and
//! `WARPSMITH_TEST_SHARE=n` one of n of them. Tests whose names begin with `slow::` take most of the time: `--skip slow::` leaves them out. The program needs nothing but itself, so it can be built
//! on one machine and run on another.

mod attention;
mod attention_layer;
mod backward;
mod batches;
mod cross_entropy;
mod drawn;
mod edges;
mod elementwise;
mod embedding;
mod errors;
mod expert_gradient;
mod expert_mlp;
mod kv_cache;
mod linear;
mod linear_update;
mod modes;
mod mutants;
mod norm;
mod peer;
mod product_key;
mod product_key_gradient;
mod properties;
mod repack;
mod rotary;
mod rows;
mod scaled;
mod softmax;
mod timed;
mod topk;
mod update;
mod weights;

use std::env::VarError;
use std::process::ExitCode;

use libtest_mimic::{Arguments, Failed};
use warpsmith::{Device, DeviceKind, Error};

/// A case: a device in, a reason for failure out.
type Case = fn(&Device) -> Result<(), Failed>;

/// The functions of a list, with their names.
macro_rules! cases {
    ($($case:path),* $(,)?) => {
        &[$((stringify!($case), $case as crate::Case)),*]
    };
}
use cases;

/// Cases that are run on every device.
const ON_EVERY_DEVICE: [&[(&str, Case)]; 25] = [
    properties::CASES,
    linear::CASES,
    batches::CASES,
    backward::CASES,
    repack::CASES,
    scaled::CASES,
    update::CASES,
    topk::CASES,
    elementwise::CASES,
    kv_cache::CASES,
    rotary::CASES,
    embedding::CASES,
    softmax::CASES,
    cross_entropy::CASES,
    product_key::CASES,
    product_key_gradient::CASES,
    expert_mlp::CASES,
    expert_gradient::CASES,
    peer::CASES,
    attention::CASES,
    attention_layer::CASES,
    norm::CASES,
    errors::CASES,
    edges::CASES,
    edges::RETRIEVALS,
];

/// Cases that are run on a Turing GPU too, whose kernels are others.
const ON_TURING: [&[(&str, Case)]; 8] = [
    properties::CASES,
    linear::CASES,
    batches::CASES,
    repack::CASES,
    scaled::CASES,
    update::CASES,
    expert_mlp::CASES,
    edges::CASES,
];

/// Cases that are run on an Ada GPU too, whose kernels for 8-bit operands are others.
const ON_ADA: [&[(&str, Case)]; 1] = [scaled::CASES];

/// Names another GPU than the first to test on.
const DEVICE_VARIABLE: &str = "WARPSMITH_TEST_DEVICE";

/// The GPU to test on.
struct Gpu {
    name: String,
    /// Why it cannot be had.
    missing: Option<String>,
    /// Why the cases for GPUs as large as an H100 do not run there.
    unlike_h100: Option<String>,
}

/// Compute capability and multiprocessors of an H100.
const H100: ((u32, u32), u32) = ((9, 0), 132);

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
            let properties = device.properties();
            let (major, minor) = properties.compute_capability;
            let count = properties.multiprocessors;
            let ((of_major, of_minor), of_count) = H100;
            let other = format!(
                "it has {count} multiprocessors of compute capability {major}.{minor}, some cases are for {of_count} of {of_major}.{of_minor}"
            );
            let unlike_h100 = Some(other).filter(|_| ((major, minor), count) != H100);
            Ok(Gpu { name, missing: None, unlike_h100 })
        }
        (Ok(device), _) => Err(format!("{DEVICE_VARIABLE} is `{name}`, expected a GPU, not {device}")),
        (Err(error @ (Error::NoDriver { .. } | Error::NoSuchDevice { .. })), None) => {
            let missing = Some(error.to_string());
            Ok(Gpu { name, unlike_h100: missing.clone(), missing })
        }
        (Err(error), _) => Err(format!("no tests on `{name}`: {error}")),
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let Gpu { name: gpu, missing, unlike_h100 } = match gpu() {
        Ok(found) => found,
        Err(reason) => {
            eprintln!("error: {reason}");
            return ExitCode::FAILURE;
        }
    };

    let mut trials = Vec::new();
    for spec in ["cpu", "emulator", "emulator:9.0", gpu.as_str()] {
        for &(name, case) in ON_EVERY_DEVICE.into_iter().flatten() {
            let device = spec.to_owned();
            let trial = timed::trial(format!("{spec}::{name}"), move || case(&device.parse::<Device>()?));
            trials.push(trial.with_ignored_flag(spec == gpu && missing.is_some()));
        }
    }
    for &(name, case) in peer::H100_CASES {
        let device = gpu.clone();
        let trial = timed::trial(format!("{gpu}::{name}"), move || case(&device.parse::<Device>()?));
        trials.push(trial.with_ignored_flag(unlike_h100.is_some()));
    }
    for &(name, case) in ON_TURING.into_iter().flatten() {
        trials.push(timed::trial(format!("emulator:7.5::{name}"), move || case(&"emulator:7.5".parse()?)));
    }
    for &(name, case) in ON_ADA.into_iter().flatten() {
        trials.push(timed::trial(format!("emulator:8.9::{name}"), move || case(&"emulator:8.9".parse()?)));
    }
    trials.extend(mutants::trials());
    trials.extend(modes::trials());
    trials.extend(product_key::trials());
    trials.extend(scaled::trials());
    trials.extend(linear_update::trials());
    trials.extend(weights::trials());

    let conclusion = libtest_mimic::run(&arguments, trials);
    timed::print_slowest();
    if let Some(reason) = missing.or(unlike_h100)
        && !arguments.list
    {
        println!("NOT RUN on {gpu}: {reason}");
    }
    conclusion.exit_code()
}
