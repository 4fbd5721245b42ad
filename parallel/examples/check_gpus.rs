//! Checks and times what ranks do together, on the GPUs of this machine or on the CPU.
//!
//! `cargo run --release -p warpsmith-parallel --features measure --example check_gpus [-- --ranks N] [--device cuda|cpu|emulator] [--time PART]`
//!
//! On GPUs, NCCL carries the tensors; `NCCL_NVLS_ENABLE=0` has to be set. Ranks are threads of this process, or the processes
//! that `cargo xtask spawn N --` starts. `--csv FILE` writes the times, `--svg FOLDER` draws timelines.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use warpsmith_parallel::measure::{self, Options};

/// Check and time several ranks.
#[derive(Clone, Debug, Parser)]
struct Arguments {
    /// How many ranks, where no launcher says.
    #[arg(long, default_value_t = 2)]
    ranks: usize,
    /// Where: `cuda` for a GPU of each rank, `cpu` or `emulator`.
    #[arg(long, default_value = "cuda")]
    device: String,
    /// The largest tensor that is timed, in MiB.
    #[arg(long, default_value_t = 1024)]
    largest: usize,
    /// The side of the layers that are timed.
    #[arg(long, default_value_t = 8192)]
    side: usize,
    /// Check only.
    #[arg(long)]
    no_timing: bool,
    /// Time only.
    #[arg(long)]
    no_checks: bool,
    /// What is timed: all of it where none is named.
    #[arg(long = "time", value_parser = measure::parts())]
    parts: Vec<String>,
    /// A file for the times, as CSV.
    #[arg(long)]
    csv: Option<PathBuf>,
    /// A folder for timelines of a pipeline's step and of a backward pass with averages.
    #[arg(long)]
    svg: Option<PathBuf>,
    /// The commit that the file names.
    #[arg(long, default_value = "unknown")]
    commit: String,
}

fn main() -> ExitCode {
    let Arguments { ranks, device, largest, side, no_timing, no_checks, parts, csv, svg, commit } =
        Arguments::parse();
    let words: Vec<_> = std::env::args().skip(1).collect();
    let command = format!("check_gpus {}", words.join(" "));
    let (checks, times) = (!no_checks, !no_timing);
    match measure::run(&Options {
        ranks,
        device,
        largest,
        side,
        checks,
        times,
        parts,
        csv,
        svg,
        commit,
        command,
    }) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
