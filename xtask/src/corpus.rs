//! `xtask corpus`: kernels in CUDA C++ and in Triton's language, compiled by NVIDIA's and Triton's compilers and run in the emulator.
//!
//! The compilers are wheels of PyPI and need no GPU. The sources are in `emulator/tests/corpus`, the PTX goes to `target/corpus`.

use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result};

use crate::{cargo, conclude, step, workspace_root};

/// Compile the emulator's corpus of kernels, run it in the emulator and write the table of what is accepted and right.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// The Python that has the compilers.
    #[arg(long, default_value = "target/ci/bin/python")]
    python: PathBuf,
}

/// The packages that compile, as CI installs them.
const PACKAGES: &str = "nvidia-cuda-nvrtc==13.0.88 nvidia-cuda-runtime==13.0.88 nvidia-cuda-crt==13.0.88 \
                        nvidia-cuda-cccl==13.0.85 triton==3.5.0 setuptools==80.9.0";

const COMPILE: &str = "The corpus is compiled";
const RUN: &str = "It runs in the emulator";

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let root = workspace_root();
    let python = root.join(&args.python);
    let has_all = Command::new(&python)
        .args(["-c", "import triton, nvidia"])
        .current_dir(root.join("target"))
        .output()
        .is_ok_and(|output| output.status.success());
    if !has_all {
        println!("{} has not the compilers. In the repository's root:", python.display());
        println!("    python3 -m venv target/ci");
        println!("    target/ci/bin/pip install --no-deps {PACKAGES}");
        return Ok(ExitCode::FAILURE);
    }
    let mut compile = Command::new(&python);
    compile.current_dir(&root).args(["emulator/tests/corpus/compile.py", "target/corpus"]);
    // Triton keeps what it has compiled: not in the home of whoever runs this.
    compile.env("TRITON_CACHE_DIR", root.join("target/triton"));
    if !step(COMPILE, &mut compile)? {
        return Ok(conclude(&[COMPILE]));
    }
    let report = root.join("emulator/reports/corpus.txt");
    let mut test = cargo();
    test.args(["test", "--release", "-p", "warpsmith-emulator", "--test", "corpus", "--", "--ignored"]);
    test.env("WARPSMITH_CORPUS_REPORT", &report);
    let passed = step(RUN, &mut test)?;
    let table =
        std::fs::read_to_string(&report).with_context(|| format!("cannot read {}", report.display()))?;
    println!("{table}");
    Ok(conclude(if passed { &[] } else { &[RUN] }))
}
