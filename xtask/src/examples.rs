//! `xtask examples`: the examples of `examples/`, and a fresh package from the template, built, run in the emulator and linted.

use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result};

use crate::{conclude, new, step, workspace_root};

/// Build, test and lint the examples, and a package from the template; needs the device toolchain.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {}

const TESTS: &str = "Examples: tests in the emulator";
const CLIPPY: &str = "Examples: clippy";
const FORMAT: &str = "Examples: formatting";
const TEMPLATE: &str = "A package from the template: its test";
const TEMPLATE_CLIPPY: &str = "A package from the template: clippy";
const PROGRAM: &str = "A package from the template: its program";
/// What that prints.
const PRINTED: &str = "[12.0, 24.0, 36.0] on ";

pub(crate) fn run(_: &Args) -> Result<ExitCode> {
    let root = workspace_root();
    let mut failed = Vec::new();
    // One target folder, so that both have the same dependencies compiled.
    let target = root.join("target/examples");
    let cargo = |folder: &std::path::Path, arguments: &[&str]| {
        let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        command.current_dir(folder).args(arguments).env("CARGO_TARGET_DIR", &target);
        command
    };
    let examples = root.join("examples");
    if !step(FORMAT, &mut cargo(&examples, &["fmt", "--check"]))? {
        failed.push(FORMAT);
    }
    if !step(TESTS, &mut cargo(&examples, &["test", "--no-fail-fast"]))? {
        failed.push(TESTS);
    }
    if !step(
        CLIPPY,
        &mut cargo(&examples, &["clippy", "--all-targets", "--features", "library", "--", "-D", "warnings"]),
    )? {
        failed.push(CLIPPY);
    }
    let folder = tempfile::tempdir().context("cannot make a folder for the package")?;
    let package = folder.path().join("own-kernels");
    new::make("own-kernels", &package, Some(&root), &root.join("template"))?;
    if !step(TEMPLATE, &mut cargo(&package, &["test"]))? {
        failed.push(TEMPLATE);
    }
    if !step(TEMPLATE_CLIPPY, &mut cargo(&package, &["clippy", "--all-targets", "--", "-D", "warnings"]))? {
        failed.push(TEMPLATE_CLIPPY);
    }
    println!("\n── {PROGRAM}");
    let output = cargo(&package, &["run", "--quiet"]).output().context("cannot start cargo")?;
    let said = String::from_utf8_lossy(&output.stdout);
    print!("{said}{}", String::from_utf8_lossy(&output.stderr));
    if !said.starts_with(PRINTED) {
        println!("expected {PRINTED}…");
        failed.push(PROGRAM);
    }
    Ok(conclude(&failed))
}
