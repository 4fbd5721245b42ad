//! `xtask lint`: what must hold of the sources before a commit – format, clippy, documentation, features, layers, language,
//! rows of tables, tables of measurements.

mod features;
mod layers;
mod prose;
mod rows;

use std::process::ExitCode;

use anyhow::Result;

use crate::{cargo, conclude, step, tables, workspace_root};

/// Check formatting, clippy's lints, the documentation's links and language, crates' layers, and that nothing is built twice; warnings are errors.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {}

const FORMAT: &str = "Formatting";
const CLIPPY: &str = "Clippy";
const DOCUMENTATION: &str = "Documentation";
const FEATURES: &str = "Features that crates are built with";
const LAYERS: &str = "Layers of modules";
const PROSE: &str = "Language";
const ROWS: &str = "Rows of tables";
const TABLES: &str = "Tables of measurements";

pub(crate) fn run(_: &Args) -> Result<ExitCode> {
    let mut failed = Vec::new();
    if !step(FORMAT, cargo().args(["fmt", "--all", "--check"]))? {
        failed.push(FORMAT);
    }
    let clippy =
        ["clippy", "--workspace", "--all-targets", "--release", "--keep-going", "--", "-D", "warnings"];
    if !step(CLIPPY, cargo().args(clippy))? {
        failed.push(CLIPPY);
    }
    let documentation = ["doc", "--workspace", "--no-deps", "--release"];
    if !step(DOCUMENTATION, cargo().args(documentation).env("RUSTDOCFLAGS", "-D warnings"))? {
        failed.push(DOCUMENTATION);
    }
    println!("\n── {FEATURES}");
    let differing = features::complaints()?;
    differing.iter().for_each(|complaint| println!("{complaint}"));
    if !differing.is_empty() {
        failed.push(FEATURES);
    }
    println!("\n── {LAYERS}");
    let crossed = layers::complaints(&workspace_root())?;
    crossed.iter().for_each(|complaint| println!("{complaint}"));
    if !crossed.is_empty() {
        failed.push(LAYERS);
    }
    println!("\n── {PROSE}");
    let complaints = prose::complaints(&workspace_root())?;
    complaints.iter().for_each(|complaint| println!("{complaint}"));
    if !complaints.is_empty() {
        failed.push(PROSE);
    }
    println!("\n── {ROWS}");
    let broken = rows::complaints(&workspace_root())?;
    broken.iter().for_each(|complaint| println!("{complaint}"));
    if !broken.is_empty() {
        failed.push(ROWS);
    }
    println!("\n── {TABLES}");
    let stale = tables::stale()?;
    for path in &stale {
        println!("{} is not what docs/bench says: run `cargo xtask tables`", path.display());
    }
    if !stale.is_empty() {
        failed.push(TABLES);
    }
    Ok(conclude(&failed))
}
