//! warpsmith's development commands: `cargo xtask <command>`.

#[allow(dead_code)]
mod ptx;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Develops, checks and measures warpsmith.
#[derive(Parser, Debug)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Compile the kernels to the PTX files that ship, or check those.
    Ptx(ptx::Args),
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Ptx(args) => ptx::run(&args),
    };
    result.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}

/// The repository's root.
fn workspace_root() -> PathBuf {
    let own = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    own.parent().map_or(own.clone(), PathBuf::from)
}
