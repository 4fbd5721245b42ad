//! Checks and times what ranks do together, on the GPUs of this machine or on the CPU.
//!
//! `cargo run --release -p warpsmith-parallel --example check_gpus [-- --ranks N] [--device cuda|cpu|emulator] [--time PART]`
//!
//! On GPUs, NCCL carries the tensors; `NCCL_NVLS_ENABLE=0` has to be set. Ranks are threads of this process, or the processes
//! that `cargo xtask spawn N --` starts. First every collective is compared with what it should give, in every type; then
//! layers and steps on several ranks are compared with one rank; then failures are provoked, each of which has to be an error
//! in time. At last collectives are timed beside NCCL called directly, and layers and steps beside one rank's. `--csv FILE` writes
//! the times, `--svg FOLDER` draws timelines.

mod checks;
mod failures;
mod pipelines;
mod replicas;
mod rows;
mod steps;
mod timeline;
mod timing;

use std::cell::RefCell;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use warpsmith::{Device, DeviceKind};
use warpsmith_parallel::{Communicator, Launch, NcclOptions, Result, launch};

use rows::Row;

/// How long a rank waits for the others.
const LIMIT: Duration = Duration::from_secs(60);

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
    #[arg(long = "time", value_parser = timing::PARTS.map(|part| part.0))]
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

/// A rank, as the checks take it.
struct Rank {
    host: Communicator,
    communicator: Communicator,
    device: Device,
    rows: RefCell<Vec<Row>>,
}

impl Rank {
    fn new(arguments: &Arguments, host: Communicator, local_rank: usize) -> Result<Self> {
        let device = match arguments.device.as_str() {
            "cuda" => Device::cuda(local_rank)?,
            other => other.parse()?,
        };
        let communicator = match device.kind() {
            DeviceKind::Cuda(_) => Communicator::nccl(&host, &device, NcclOptions::default())?,
            _ => host.clone(),
        };
        Ok(Self { host, communicator, device, rows: RefCell::default() })
    }

    /// Keeps a time in µs, and that of what it is compared with.
    fn row(
        &self,
        operation: &'static str,
        dtype: &'static str,
        shape: &str,
        variant: &str,
        time: f64,
        peer: Option<(&'static str, f64)>,
    ) {
        let (shape, variant) = (shape.to_owned(), variant.to_owned());
        self.rows.borrow_mut().push(Row { operation, dtype, shape, variant, time, peer });
    }

    /// Says something, once for all ranks.
    fn say(&self, text: &str) {
        if self.host.rank() == 0 {
            println!("{text}");
        }
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let outcome = match std::env::var_os("RANK") {
        Some(_) => as_process(&arguments),
        None => as_threads(&arguments),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn as_process(arguments: &Arguments) -> Result<()> {
    let launch = Launch::from_environment()?;
    let rank = Rank::new(arguments, Communicator::connect(&launch, LIMIT)?, launch.local_rank)?;
    check_and_time(arguments, &rank)
}

fn as_threads(arguments: &Arguments) -> Result<()> {
    launch::threads_within(LIMIT, arguments.ranks, |host| {
        let local_rank = host.rank();
        check_and_time(arguments, &Rank::new(arguments, host, local_rank)?)
    })?;
    if arguments.no_checks { Ok(()) } else { failures::all(arguments) }
}

fn check_and_time(arguments: &Arguments, rank: &Rank) -> Result<()> {
    if !arguments.no_checks {
        checks::all(rank)?;
    }
    if !arguments.no_timing {
        timing::all(arguments, rank)?;
    }
    if let Some(folder) = &arguments.svg {
        timeline::draw(folder, arguments, rank)?;
    }
    match &arguments.csv {
        Some(path) if rank.host.rank() == 0 => rows::write(path, &arguments.commit, rank),
        _ => Ok(()),
    }
}
