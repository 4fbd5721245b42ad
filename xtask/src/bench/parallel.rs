//! `xtask bench --operation parallel`: collectives through communicators and by NCCL directly, and steps that several ranks share beside one
//! rank's: replicas, split layers, pipelines and split experts.
//!
//! Results are checked before anything is timed. Where there is no GPU, ranks are threads on the CPU, with small layers.

use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use warpsmith::Device;
use warpsmith_parallel::measure::{self, Options};

use super::Args;
use crate::provenance::Provenance;

/// What ranks on the CPU or in the emulator have: the side of a layer, and the MiB of the largest tensor.
const SMALL: [usize; 2] = [64, 4];

pub(super) fn run(args: &Args) -> Result<ExitCode> {
    if args.ptx.is_some() {
        bail!("--ptx is of one device: several ranks take the built-in kernels");
    }
    let device = match args.device.split(':').next() {
        Some("cuda") if Device::cuda(0).is_ok() => "cuda",
        Some("cuda") => {
            eprintln!("There is no GPU: the ranks are threads on the CPU.");
            "cpu"
        }
        _ => args.device.as_str(),
    };
    let wanted = |part: &&str| args.filter.as_ref().is_none_or(|filter| part.contains(filter.as_str()));
    let parts: Vec<_> = measure::parts().into_iter().filter(wanted).map(String::from).collect();
    if parts.is_empty() {
        bail!("nothing to measure: the parts are {}", measure::parts().join(", "));
    }
    let Provenance { commit, command, .. } = Provenance::collect(&Device::cpu(), args.commit.clone());
    let sizes = Options::default();
    let [side, largest] = if device == "cuda" { [sizes.side, sizes.largest] } else { SMALL };
    measure::run(&Options {
        ranks: args.ranks,
        device: device.into(),
        largest,
        side,
        parts,
        csv: args.csv.clone(),
        svg: args.svg.clone(),
        commit,
        command,
        ..sizes
    })
    .context("several ranks")?;
    Ok(ExitCode::SUCCESS)
}
