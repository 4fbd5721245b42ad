//! Where a measurement comes from: GPU, its clock, driver, commit, command.

use std::fmt;
use std::process::Command;

use warpsmith::Device;

/// What a row of results carries beside its numbers.
#[derive(Default)]
pub(crate) struct Provenance {
    pub(crate) gpu: String,
    pub(crate) driver: String,
    pub(crate) commit: String,
    pub(crate) command: String,
    /// The highest clock of the multiprocessors.
    pub(crate) clock_mhz: Option<u32>,
    /// A copy within the GPU's memory, as it was measured in this run, if it was: 10¹² bytes a second.
    pub(crate) ceiling_tbps: Option<f64>,
    /// The baselines' libraries, with versions.
    pub(crate) libraries: Vec<String>,
}

impl Provenance {
    /// What this machine says; `commit` where it cannot ask `git`.
    pub(crate) fn collect(device: &Device, commit: Option<String>) -> Self {
        let commit = commit.or_else(git_commit).unwrap_or_else(|| "unknown".into());
        let command = std::env::args().skip(1).collect::<Vec<_>>().join(" ");
        Self {
            gpu: device.name().to_owned(),
            driver: driver_version(device),
            commit,
            command: format!("cargo xtask {command}"),
            clock_mhz: Some(device.properties().clock_khz / 1000).filter(|&clock| clock > 0),
            ceiling_tbps: None,
            libraries: Vec::new(),
        }
    }
}

impl fmt::Display for Provenance {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { gpu, driver, commit, command, clock_mhz, .. } = self;
        let clock = clock_mhz.map_or_else(String::new, |clock| format!(" at up to {clock} MHz"));
        write!(formatter, "{gpu}{clock}, driver {driver}, commit {commit}: {command}")
    }
}

/// The driver's own version where the system tells it, and the CUDA version that it offers.
fn driver_version(device: &Device) -> String {
    let cuda = device.properties().driver_version;
    let cuda = cuda.map_or_else(String::new, |(major, minor)| format!("CUDA {major}.{minor}"));
    let version = std::fs::read_to_string("/sys/module/nvidia/version").ok();
    match version.map(|version| version.trim().to_owned()).filter(|version| !version.is_empty()) {
        Some(version) => format!("{version} ({cuda})"),
        None => cuda,
    }
}

fn git_commit() -> Option<String> {
    let git = |arguments: &[&str]| {
        let output = Command::new("git").args(arguments).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let commit = git(&["rev-parse", "--short=12", "HEAD"])?;
    let changed =
        git(&["status", "--porcelain", "--untracked-files=no"]).is_some_and(|changes| !changes.is_empty());
    Some(if changed { format!("{commit} with changes") } else { commit })
}
