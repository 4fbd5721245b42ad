//! `xtask test`: the tests of the workspace, with the installed stable compiler and nothing else.
//!
//! Everything is built in one profile, release: the emulator and the references are tight loops. Tests that need a GPU
//! are listed as ignored where there is none.

use std::process::ExitCode;

use anyhow::Result;

use crate::ptx::{self, Complaint};
use crate::{cargo, conclude, step};

/// Run the tests; needs no GPU, no device toolchain and no CUDA.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// All of them, and all drawn cases: half an hour on two cores. Without it, a few minutes.
    #[arg(long)]
    full: bool,
    /// Arguments for `cargo test`, e.g. `-p warpsmith-emulator` or a part of a test's name.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    cargo: Vec<String>,
}

/// What the names of tests that take long begin with.
const SLOW: &str = "slow::";
/// Has one of so many drawn cases run.
const SHARE: (&str, &str) = ("WARPSMITH_TEST_SHARE", "8");

const PTX: &str = "PTX files and their sources";
const TESTS: &str = "Unit and integration tests";
const EXAMPLES: &str = "Examples in the documentation";

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    if !args.cargo.is_empty() {
        let passed = step("cargo test", cargo().args(["test", "--release"]).args(&args.cargo))?;
        return Ok(conclude(if passed { &[] } else { &["cargo test"] }));
    }
    let mut failed = Vec::new();

    println!("── {PTX}");
    let (current, complaints) = ptx::check_hashes()?;
    let mut stale = 0;
    for complaint in &complaints {
        match complaint {
            Complaint::Stale(text) => {
                stale += 1;
                println!("warning: {text}");
            }
            Complaint::Wrong(text) => println!("error: {text}"),
        }
    }
    let wrong = complaints.len() - stale;
    println!("{current} up to date, {stale} stale, {wrong} wrong");
    if stale > 0 {
        println!(
            "The tests below run the committed PTX, not the changed sources. `cargo xtask ptx` compiles those; before a \
             merge, `cargo xtask ptx --check` must pass."
        );
    }
    if wrong > 0 {
        failed.push(PTX);
    }
    // `--all-targets` would build benchmarks too; documentation examples are a target of their own.
    let tests =
        ["test", "--workspace", "--release", "--no-fail-fast", "--lib", "--bins", "--tests", "--examples"];
    let mut command = cargo();
    command.args(tests);
    if !args.full {
        command.env(SHARE.0, SHARE.1).args(["--", "--skip", SLOW]);
    }
    if !step(TESTS, &mut command)? {
        failed.push(TESTS);
    }
    if !step(EXAMPLES, cargo().args(["test", "--workspace", "--release", "--no-fail-fast", "--doc"]))? {
        failed.push(EXAMPLES);
    }
    println!("\n── GPU");
    println!("{}", gpu());
    if !args.full {
        println!(
            "Left out: tests named `{SLOW}…`, which are every mode of the emulator and the broken kernels of all but a sample, and {} of {} \
             drawn cases. `cargo xtask test --full` runs them.",
            SHARE.1.parse::<u32>()? - 1,
            SHARE.1
        );
    }
    Ok(conclude(&failed))
}

/// The GPU that the tests were run on: the one that they open too.
#[cfg(feature = "host")]
fn gpu() -> String {
    let name = std::env::var("WARPSMITH_TEST_DEVICE").unwrap_or_else(|_| "cuda:0".into());
    match name.parse::<warpsmith::Device>() {
        Ok(device) => format!("Tests on a GPU were run on {device}: {}", device.name()),
        Err(error) => format!("Tests on a GPU were NOT run: {error}"),
    }
}

#[cfg(not(feature = "host"))]
fn gpu() -> String {
    "This xtask was built without the feature `host` and has not looked for one.".into()
}
