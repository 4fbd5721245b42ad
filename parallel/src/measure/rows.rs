//! Times as rows of a file, in the columns that the repository's measurements have.

use std::path::Path;

use crate::Result;
use crate::communicator::nccl_version;
use warpsmith::Device;

use super::checks::wrong;
use super::{Options, Rank};

/// A time, and what it is compared with.
pub(super) struct Row {
    pub(super) operation: &'static str,
    pub(super) dtype: &'static str,
    pub(super) shape: String,
    pub(super) variant: String,
    /// In µs.
    pub(super) time: f64,
    pub(super) peer: Option<(&'static str, f64)>,
}

/// The names of the columns.
const HEADER: [&str; 14] = [
    "operation",
    "dtype",
    "shape",
    "variant",
    "median_us",
    "peer",
    "peer_us",
    "ratio",
    "gpu",
    "driver",
    "commit",
    "command",
    "ranks",
    "libraries",
];

/// Writes the rank's rows.
pub(super) fn write(path: &Path, options: &Options, rank: &Rank) -> Result<()> {
    let libraries = match rank.communicator.nccl_handle() {
        Some(_) => format!("NCCL {}", nccl_version()?),
        None => String::new(),
    };
    let ends = [
        rank.device.name(),
        &driver(&rank.device),
        &options.commit,
        &options.command,
        &rank.communicator.size().to_string(),
        &libraries,
    ];
    let written = || -> csv::Result<()> {
        let mut writer = csv::Writer::from_path(path)?;
        writer.write_record(HEADER)?;
        for row in rank.rows.borrow().iter() {
            let (peer, peer_time, ratio) = match row.peer {
                Some((peer, time)) => (peer, format!("{time:.3}"), format!("{:.4}", time / row.time)),
                None => ("", String::new(), String::new()),
            };
            let time = format!("{:.3}", row.time);
            let numbers =
                [row.operation, row.dtype, &row.shape, &row.variant, &time, peer, &peer_time, &ratio];
            writer.write_record(numbers.into_iter().chain(ends))?;
        }
        Ok(writer.flush()?)
    };
    written().map_err(|error| {
        wrong("csv", "a file that can be written".into(), format!("{}: {error}", path.display()))
    })
}

/// The driver's own version where the system tells it, and the CUDA version that it offers.
fn driver(device: &Device) -> String {
    let cuda = device.properties().driver_version;
    let cuda = cuda.map_or_else(String::new, |(major, minor)| format!("CUDA {major}.{minor}"));
    match std::fs::read_to_string("/sys/module/nvidia/version") {
        Ok(version) => format!("{} ({cuda})", version.trim()),
        Err(_) => cuda,
    }
}
