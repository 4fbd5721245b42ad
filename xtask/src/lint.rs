//! `xtask lint`: what must hold of the sources before a commit – format, features, layers, language, rows of tables, tables of
//! measurements, hashes of the PTX, clippy, documentation.

mod features;
mod layers;
mod prose;
mod rows;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;

use crate::ptx::{self, Complaint};
use crate::{cargo, conclude, step, tables, workspace_root};

/// Check formatting, clippy's lints, the documentation's links and language, crates' layers, the hashes of the PTX, and that nothing is built twice; warnings are errors.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {}

/// What holds or does not by the sources alone, with its headline.
type Check = fn(&Path) -> Result<Vec<String>>;

/// The cheap ones are first: what fails, fails soon.
const CHECKS: [(&str, Check); 6] = [
    ("Features that crates are built with", |_| features::complaints()),
    ("Layers of modules", layers::complaints),
    ("Language", prose::complaints),
    ("Rows of tables", rows::complaints),
    ("Tables of measurements", stale_tables),
    ("PTX files and their sources", stale_ptx),
];

pub(crate) fn run(_: &Args) -> Result<ExitCode> {
    let mut failed = Vec::new();
    if !step("Formatting", cargo().args(["fmt", "--all", "--check"]))? {
        failed.push("Formatting");
    }
    let root = workspace_root();
    for (headline, check) in CHECKS {
        println!("\n── {headline}");
        let complaints = check(&root)?;
        complaints.iter().for_each(|complaint| println!("{complaint}"));
        if !complaints.is_empty() {
            failed.push(headline);
        }
    }
    let clippy =
        ["clippy", "--workspace", "--all-targets", "--release", "--keep-going", "--", "-D", "warnings"];
    if !step("Clippy", cargo().args(clippy))? {
        failed.push("Clippy");
    }
    let documentation = ["doc", "--workspace", "--no-deps", "--release"];
    if !step("Documentation", cargo().args(documentation).env("RUSTDOCFLAGS", "-D warnings"))? {
        failed.push("Documentation");
    }
    Ok(conclude(&failed))
}

fn stale_tables(_: &Path) -> Result<Vec<String>> {
    let tell = |path: PathBuf| format!("{} is not what `cargo xtask tables` makes: run it", path.display());
    Ok(tables::stale()?.into_iter().map(tell).collect())
}

/// By the hashes of the sources alone: `cargo xtask ptx --check` compiles them.
fn stale_ptx(_: &Path) -> Result<Vec<String>> {
    let (_, complaints) = ptx::check_hashes()?;
    let tell = |complaint: &Complaint| match complaint {
        Complaint::Stale(text) => format!("{text}: run `cargo xtask ptx`"),
        Complaint::Wrong(text) => text.clone(),
    };
    Ok(complaints.iter().map(tell).collect())
}
