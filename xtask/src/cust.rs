//! `xtask cust`: the feature `cust` of `warpsmith`, on a machine without CUDA.
//!
//! The crate `cust` asks for a folder of CUDA's when it is built, and for the driver's library when a program is linked. Here both are a stand-in: the driver
//! that does nothing of `host/tests/calls/driver.rs`, built as `libcuda.so` into a folder of `target/`. A program that is linked to it asks for
//! `libcuda.so.1` when it starts, so on a machine with a GPU the same program gets NVIDIA's.
//!
//! Nothing else in the workspace has the feature on: with it, the workspace could not be built without that folder.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result, ensure};

use crate::{cargo, conclude, step, workspace_root};

/// Lint, build and test the feature `cust` against a stand-in for the driver; needs no GPU and no CUDA.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {}

/// The name by which the driver is found when a program starts.
const SONAME: &str = "libcuda.so.1";
/// Has the stand-in find no GPU.
const NO_GPU: &str = "WARPSMITH_STAND_IN_NO_GPU";

const CLIPPY: &str = "Clippy, with the feature `cust`";
const DOCUMENTATION: &str = "Documentation, with the feature `cust`";
const TESTS: &str = "Conversions, and the program in their documentation";
const EXAMPLE: &str = "The example";
const NO_GPU_IS_SAID: &str = "The example without a GPU";

pub(crate) fn run(_: &Args) -> Result<ExitCode> {
    let cuda = workspace_root().join("target/cuda-stand-in");
    let libraries = cuda.join("lib64");
    build_driver(&libraries)?;
    let with_feature = |arguments: &[&str]| {
        let mut cargo = cargo();
        cargo.args(arguments).args(["--release", "-p", "warpsmith", "--features", "cust"]);
        // A folder whose `lib64` has the driver: all that cust's build scripts look for on Linux.
        cargo.env("CUDA_LIBRARY_PATH", &cuda);
        cargo
    };

    let mut failed = Vec::new();
    let clippy = &mut with_feature(&["clippy"]);
    if !step(CLIPPY, clippy.args(["--all-targets", "--", "-D", "warnings"]))? {
        failed.push(CLIPPY);
    }
    let documentation = &mut with_feature(&["doc", "--no-deps"]);
    if !step(DOCUMENTATION, documentation.env("RUSTDOCFLAGS", "-D warnings"))? {
        failed.push(DOCUMENTATION);
    }
    let path = with_stand_in(&libraries)?;
    let conversions = &mut with_feature(&["test", "--test", "cust"]);
    let program = &mut with_feature(&["test", "--doc"]);
    if !step(TESTS, conversions.env(SEARCH_PATH, &path))?
        || !step(TESTS, program.args(["--", "src/cust.rs"]).env(SEARCH_PATH, &path))?
    {
        failed.push(TESTS);
    }
    if step(EXAMPLE, &mut with_feature(&["build", "--example", "cust"]))? {
        println!("\n── {NO_GPU_IS_SAID}");
        if !says_that_there_is_no_gpu(&path)? {
            failed.push(NO_GPU_IS_SAID);
        }
    } else {
        failed.push(EXAMPLE);
    }
    Ok(conclude(&failed))
}

/// The variable by which the system's loader is told of folders.
const SEARCH_PATH: &str = "LD_LIBRARY_PATH";

/// That variable's value with the stand-in's folder before the others.
fn with_stand_in(libraries: &Path) -> Result<OsString> {
    let before = std::env::var_os(SEARCH_PATH).unwrap_or_default();
    let folders = std::iter::once(PathBuf::from(libraries)).chain(std::env::split_paths(&before));
    std::env::join_paths(folders).context("the path of the workspace has a colon in it")
}

/// Builds the stand-in for the driver: as the linker looks for it, and as a program does when it starts.
fn build_driver(libraries: &Path) -> Result<()> {
    std::fs::create_dir_all(libraries).with_context(|| format!("cannot make {}", libraries.display()))?;
    let library = libraries.join("libcuda.so");
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let status = Command::new(&rustc)
        .current_dir(workspace_root())
        .args(["--edition", "2024", "-O", "--crate-type", "cdylib"])
        .arg(format!("-Clink-arg=-Wl,-soname,{SONAME}"))
        .arg("-o")
        .args([&library, Path::new("host/tests/calls/driver.rs")])
        .status()
        .with_context(|| format!("cannot start `{}`", rustc.display()))?;
    ensure!(status.success(), "the stand-in for the driver was not built");
    let started = libraries.join(SONAME);
    std::fs::copy(&library, &started).with_context(|| format!("cannot write {}", started.display()))?;
    Ok(())
}

/// Whether the example ends with an error in words where the driver finds no GPU.
fn says_that_there_is_no_gpu(path: &OsString) -> Result<bool> {
    let program = workspace_root().join("target/release/examples/cust");
    let output = Command::new(&program)
        .env(SEARCH_PATH, path)
        .env(NO_GPU, "1")
        .output()
        .with_context(|| format!("cannot start {}", program.display()))?;
    let said = String::from_utf8_lossy(&output.stderr);
    print!("{said}");
    Ok(output.status.code() == Some(1) && said.contains("CUDA_ERROR_NO_DEVICE"))
}
