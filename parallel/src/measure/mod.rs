//! Checks and times of what ranks do together, on the GPUs of this machine or on the CPU.
//!
//! First every collective is compared with what it should give, in every type. Then layers and steps on several ranks are
//! compared with one rank. Then failures are provoked, each of which has to be an error in time. At last collectives are timed
//! beside NCCL called directly, and layers and steps beside one rank's. Times are CSV, and timelines SVG.
//!
//! The example `check_gpus` and `cargo xtask bench --operation parallel` are its programs.

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
use std::time::Duration;

use warpsmith::{Device, DeviceKind};

use crate::{Communicator, Launch, NcclOptions, Result, launch};
use rows::Row;

/// How long a rank waits for the others.
const LIMIT: Duration = Duration::from_secs(60);

/// What is checked and timed, and where.
#[derive(Clone, Debug)]
pub struct Options {
    /// How many ranks, where no launcher says.
    pub ranks: usize,
    /// `cuda` for a GPU of each rank, `cpu` or `emulator`.
    pub device: String,
    /// The largest tensor that is timed, in MiB.
    pub largest: usize,
    /// The side of the layers that are timed.
    pub side: usize,
    /// Whether results are checked, and failures provoked.
    pub checks: bool,
    /// Whether anything is timed.
    pub times: bool,
    /// What is timed, of [`parts`]: all of it where none is named.
    pub parts: Vec<String>,
    /// A file for the times, as CSV.
    pub csv: Option<PathBuf>,
    /// A folder for timelines of a pipeline's step and of a backward pass with averages.
    pub svg: Option<PathBuf>,
    /// The commit that the file names.
    pub commit: String,
    /// The command that the file names.
    pub command: String,
}

impl Default for Options {
    /// Everything on two GPUs, without files.
    fn default() -> Self {
        Self {
            ranks: 2,
            device: "cuda".into(),
            largest: 1024,
            side: 8192,
            checks: true,
            times: true,
            parts: Vec::new(),
            csv: None,
            svg: None,
            commit: "unknown".into(),
            command: "unknown".into(),
        }
    }
}

/// The names of what can be timed.
#[must_use]
pub fn parts() -> [&'static str; timing::PARTS.len()] {
    timing::PARTS.map(|(name, _)| name)
}

/// Checks and times what the options say. Ranks are threads of this process, or the processes that a launcher has started.
///
/// # Errors
///
/// The first check that fails, or whatever prevents a rank from working.
pub fn run(options: &Options) -> Result<()> {
    if let Some(part) = options.parts.iter().find(|part| !parts().contains(&part.as_str())) {
        return Err(crate::error::argument("measure", "parts", format!("of {}", parts().join(", ")), part));
    }
    match std::env::var_os("RANK") {
        Some(_) => as_process(options),
        None => as_threads(options),
    }
}

/// How calls and the products beside them share a GPU.
#[derive(Clone, Copy, Debug)]
struct Sharing {
    /// Thread blocks of NCCL's kernels at most.
    max_ctas: Option<u32>,
    /// Multiprocessors that products leave.
    free: u32,
}

impl Sharing {
    /// Without anything shared, what is usual, and fewer thread blocks.
    const ALL: [Self; 4] = [
        Self { max_ctas: None, free: 0 },
        Self { max_ctas: None, free: 16 },
        Self { max_ctas: Some(16), free: 16 },
        Self { max_ctas: Some(8), free: 8 },
    ];

    fn options(self) -> NcclOptions {
        NcclOptions::default().with_max_ctas(self.max_ctas).with_multiprocessors(self.free)
    }

    fn name(self) -> String {
        let ctas = self.max_ctas.map_or_else(|| "NCCL's".into(), |ctas| ctas.to_string());
        format!("CTAs {ctas}, {} SMs free", self.free)
    }
}

/// A rank, as the checks take it.
struct Rank {
    host: Communicator,
    communicator: Communicator,
    device: Device,
    rows: RefCell<Vec<Row>>,
}

impl Rank {
    fn new(options: &Options, host: Communicator, local_rank: usize) -> Result<Self> {
        let device = match options.device.as_str() {
            "cuda" => Device::cuda(local_rank)?,
            other => other.parse()?,
        };
        let communicator = match device.kind() {
            DeviceKind::Cuda(_) => Communicator::nccl(&host, &device, NcclOptions::default())?,
            _ => host.clone(),
        };
        Ok(Self { host, communicator, device, rows: RefCell::default() })
    }

    /// The ways to share a GPU that are timed. Ranks over host memory have no kernels: one way is enough.
    fn sharings(&self) -> &'static [Sharing] {
        match self.device.kind() {
            DeviceKind::Cuda(_) => &Sharing::ALL,
            _ => &Sharing::ALL[..1],
        }
    }

    /// A communicator of the same ranks that shares the GPU like that.
    fn sharing(&self, sharing: Sharing) -> Result<Communicator> {
        match self.device.kind() {
            DeviceKind::Cuda(_) => Communicator::nccl(&self.host, &self.device, sharing.options()),
            _ => Ok(self.host.with_multiprocessors(sharing.free)),
        }
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

fn as_process(options: &Options) -> Result<()> {
    let launch = Launch::from_environment()?;
    let rank = Rank::new(options, Communicator::connect(&launch, LIMIT)?, launch.local_rank)?;
    check_and_time(options, &rank)
}

fn as_threads(options: &Options) -> Result<()> {
    launch::threads_within(LIMIT, options.ranks, |host| {
        let local_rank = host.rank();
        check_and_time(options, &Rank::new(options, host, local_rank)?)
    })?;
    if options.checks { failures::all(options) } else { Ok(()) }
}

fn check_and_time(options: &Options, rank: &Rank) -> Result<()> {
    if options.checks {
        checks::all(rank)?;
    }
    if options.times {
        timing::all(options, rank)?;
    }
    if let Some(folder) = &options.svg {
        timeline::draw(folder, options, rank)?;
    }
    match &options.csv {
        Some(path) if rank.host.rank() == 0 => rows::write(path, options, rank),
        _ => Ok(()),
    }
}
