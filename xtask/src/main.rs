//! warpsmith's development commands: `cargo xtask <command>`.

#[cfg(feature = "host")]
mod bench;
mod corpus;
mod cust;
mod doctor;
#[cfg(feature = "host")]
mod emulate;
mod examples;
#[cfg(feature = "host")]
mod forms;
#[cfg(feature = "host")]
mod fuzz;
mod goals;
#[cfg(feature = "host")]
mod launch;
mod lint;
mod machine_code;
mod measurement;
#[cfg(feature = "host")]
mod mutants;
mod new;
mod outside;
#[cfg(feature = "host")]
mod provenance;
mod ptx;
#[cfg(feature = "host")]
mod random;
#[cfg(feature = "host")]
mod record;
mod spawn;
#[cfg(feature = "host")]
mod spell;
#[cfg_attr(not(feature = "host"), expect(dead_code, reason = "verdicts are the bench's alone"))]
mod spread;
mod tables;
mod test;
#[cfg(feature = "host")]
mod validate;
#[cfg(feature = "host")]
mod values;

use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result};
use clap::{Parser, Subcommand};

/// Develops, checks and measures warpsmith.
#[derive(Parser, Debug)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand, Debug)]
enum Task {
    #[cfg(feature = "host")]
    Validate(validate::Args),
    #[cfg(feature = "host")]
    Bench(bench::Args),
    #[cfg(feature = "host")]
    Tune(bench::tune::Args),
    #[cfg(feature = "host")]
    Mutants(mutants::Args),
    #[cfg(feature = "host")]
    Emulate(emulate::Args),
    #[cfg(feature = "host")]
    Forms(forms::Args),
    #[cfg(feature = "host")]
    Fuzz(fuzz::Args),
    #[cfg(feature = "host")]
    Record(record::Args),
    New(new::Args),
    Examples(examples::Args),
    Test(test::Args),
    Ptx(ptx::Args),
    MachineCode(machine_code::Args),
    Corpus(corpus::Args),
    Cust(cust::Args),
    Outside(outside::Args),
    Doctor(doctor::Args),
    Spawn(spawn::Args),
    Lint(lint::Args),
    Tables(tables::Args),
}

fn main() -> ExitCode {
    let result = match Cli::parse().task {
        #[cfg(feature = "host")]
        Task::Validate(args) => validate::run(&args),
        #[cfg(feature = "host")]
        Task::Bench(args) => bench::run(&args),
        #[cfg(feature = "host")]
        Task::Tune(args) => bench::tune::run(&args),
        #[cfg(feature = "host")]
        Task::Mutants(args) => mutants::run(&args),
        #[cfg(feature = "host")]
        Task::Emulate(args) => emulate::run(&args),
        #[cfg(feature = "host")]
        Task::Forms(args) => forms::run(&args),
        #[cfg(feature = "host")]
        Task::Fuzz(args) => fuzz::run(&args),
        #[cfg(feature = "host")]
        Task::Record(args) => record::run(&args),
        Task::New(args) => new::run(&args),
        Task::Examples(args) => examples::run(&args),
        Task::Test(args) => test::run(&args),
        Task::Ptx(args) => ptx::run(&args),
        Task::MachineCode(args) => machine_code::run(&args),
        Task::Corpus(args) => corpus::run(&args),
        Task::Cust(args) => cust::run(&args),
        Task::Outside(args) => outside::run(&args),
        Task::Doctor(args) => doctor::run(&args),
        Task::Spawn(args) => spawn::run(&args),
        Task::Lint(args) => lint::run(&args),
        Task::Tables(args) => tables::run(&args),
    };
    result.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}

/// The repository's root.
fn workspace_root() -> PathBuf {
    let own = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    own.parent().map_or_else(|| own.clone(), PathBuf::from)
}

/// The cargo that runs this command, to be run in the repository's root.
fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(workspace_root());
    command
}

/// Runs one step of a longer command under a headline, its output shown as it comes; whether it succeeded.
fn step(headline: &str, command: &mut Command) -> Result<bool> {
    println!("\n── {headline}");
    let status =
        command.status().with_context(|| format!("cannot start `{}`", command.get_program().display()))?;
    Ok(status.success())
}

/// Says which of the steps failed.
fn conclude(failed: &[&str]) -> ExitCode {
    if failed.is_empty() {
        println!("\nAll passed.");
        ExitCode::SUCCESS
    } else {
        println!("\nFAILED: {}", failed.join(", "));
        ExitCode::FAILURE
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn commands_and_their_options_fit_together() {
        super::Cli::command().debug_assert();
    }
}
