//! What every device must do: one suite, run on the CPU implementation, in the emulator, and on a GPU where there is one.
//!
//! Without a GPU its cases are listed as ignored and the reason is printed. `WARPSMITH_TEST_DEVICE=cuda:1` picks another GPU than
//! the first, `WARPSMITH_TEST_SEED=n` draws other properties than usual. The program needs nothing but itself, so it can be built
//! on one machine and run on another.

mod errors;
mod linear;
mod mutants;
mod properties;
mod weights;

use libtest_mimic::{Arguments, Failed, Trial};
use warpsmith::Device;

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
const ON_EVERY_DEVICE: [&[(&str, Case)]; 3] = [properties::CASES, linear::CASES, errors::CASES];

fn main() {
    let arguments = Arguments::from_args();
    let gpu = std::env::var("WARPSMITH_TEST_DEVICE").unwrap_or_else(|_| "cuda:0".into());
    let missing = gpu.parse::<Device>().err().map(|error| error.to_string());

    let mut trials = Vec::new();
    for spec in ["cpu", "emulator", gpu.as_str()] {
        for &(name, case) in ON_EVERY_DEVICE.into_iter().flatten() {
            let device = spec.to_owned();
            let trial = Trial::test(format!("{spec}::{name}"), move || case(&device.parse::<Device>()?));
            trials.push(trial.with_ignored_flag(spec == gpu && missing.is_some()));
        }
    }
    trials.extend(mutants::trials());
    trials.extend(weights::trials());

    let conclusion = libtest_mimic::run(&arguments, trials);
    if let Some(reason) = missing
        && !arguments.list
    {
        println!("NOT RUN on {gpu}: {reason}");
    }
    conclusion.exit();
}
