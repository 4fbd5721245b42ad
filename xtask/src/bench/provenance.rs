//! Where a measurement comes from: GPU, driver, commit, command.

use std::fmt;
use std::process::Command;

use warpsmith::Device;

/// What a row of results carries beside its numbers.
pub(super) struct Provenance {
    gpu: String,
    driver: String,
    commit: String,
    command: String,
}

impl Provenance {
    /// What this machine says; `commit` where it cannot ask `git`.
    pub(super) fn collect(device: &Device, commit: Option<String>) -> Self {
        let commit = commit.or_else(git_commit).unwrap_or_else(|| "unknown".into());
        let command = std::env::args().skip(1).collect::<Vec<_>>().join(" ");
        Self {
            gpu: device.name().to_owned(),
            driver: driver_version(device),
            commit,
            command: format!("cargo xtask {command}"),
        }
    }

    /// The columns gpu, driver, commit and command of a CSV file.
    pub(super) fn csv_fields(&self) -> String {
        [&self.gpu, &self.driver, &self.commit, &self.command].map(|field| quoted(field)).join(",")
    }
}

impl fmt::Display for Provenance {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { gpu, driver, commit, command } = self;
        write!(formatter, "{gpu}, driver {driver}, commit {commit}: {command}")
    }
}

fn quoted(field: &str) -> String {
    if field.contains([',', '"', '\n']) {
        format!("\"{}\"", field.replace('"', "\"\""))
    } else {
        field.into()
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

#[cfg(test)]
mod tests {
    use super::quoted;

    #[test]
    fn fields_with_commas_stay_one_field() {
        assert_eq!(quoted("bench --shape 1x1x1,2x2x2"), "\"bench --shape 1x1x1,2x2x2\"");
        assert_eq!(quoted("plain"), "plain");
        assert_eq!(quoted("a\"b"), "\"a\"\"b\"");
    }
}
