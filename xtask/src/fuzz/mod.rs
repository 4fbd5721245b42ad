//! `xtask fuzz`: random PTX programs on a GPU and in the emulator, compared bit for bit.
//!
//! `scalar` draws instructions from the emulator's own table, `generate` makes programs of them, `program` writes these as
//! PTX, `compare` runs them, `shrink` finds the few instructions of a failing program that matter.

mod compare;
mod generate;
mod program;
mod scalar;
mod shrink;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

use anyhow::{Context as _, Result};

use crate::provenance::Provenance;
use compare::{Failure, Machines, Sample};
use generate::Style;
use scalar::Table;

/// Run random PTX programs on a GPU and in the emulator, and compare all that they leave, bit for bit.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// How many programs.
    #[arg(long, default_value_t = 1000)]
    programs: usize,
    /// The seed of the first program; the next ones have the seeds that follow.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// The GPU. `emulator` compares the emulator with itself in other modes, and needs none.
    #[arg(long, default_value = "cuda:0")]
    device: String,
    /// Statements of a program, about.
    #[arg(long, default_value_t = 24)]
    statements: usize,
    /// Let programs have matrix products.
    #[arg(long)]
    mma: bool,
    /// Programs of a module, which a machine loads at a time.
    #[arg(long, default_value_t = 50)]
    batch: usize,
    /// Processes that share the programs; by default as many as this machine has cores. (The driver compiles one module of a
    /// process at a time.)
    #[arg(long)]
    jobs: Option<usize>,
    /// Failing programs that are shrunk and printed.
    #[arg(long, default_value_t = 5)]
    show: usize,
    /// Write each program's PTX and what the emulator leaves to this folder; compares nothing.
    #[arg(long, value_name = "DIR")]
    emit: Option<PathBuf>,
    /// Write a summary to this file.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// The commit to note in the summary; by default the one that `git` reports here.
    #[arg(long)]
    commit: Option<String>,
}

/// What was compared, and what failed.
#[derive(Clone, Copy, Default, serde::Deserialize)]
struct Counts {
    instructions: usize,
    differing: usize,
    refused: usize,
}

/// What a run of the fuzzer found.
#[derive(serde::Serialize)]
struct Summary {
    gpu: String,
    driver: String,
    commit: String,
    command: String,
    first_seed: u64,
    programs: usize,
    instructions: usize,
    differing: usize,
    refused: usize,
    seconds: f64,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let table = Table::new();
    let style = Style { statements: args.statements, products: args.mma };
    let sample = |i: usize| {
        let seed = args.seed.wrapping_add(i as u64);
        Sample { seed, program: generate::program(seed, &table, style) }
    };
    if let Some(folder) = &args.emit {
        return emit(folder, args.programs, args.batch, sample);
    }
    let machines = Machines::open(&args.device)?;
    let start = Instant::now();
    let jobs = args.jobs.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
    let jobs = jobs.min(args.programs.div_ceil(args.batch.max(1))).max(1);
    let counts = if jobs > 1 { share(args, jobs)? } else { compare_all(args, &machines, sample) };
    let seconds = start.elapsed().as_secs_f64();
    let Provenance { gpu, driver, commit, command, .. } =
        Provenance::collect(&machines.judge, args.commit.clone());
    let summary = Summary {
        gpu,
        driver,
        commit,
        command,
        first_seed: args.seed,
        programs: args.programs,
        instructions: counts.instructions,
        differing: counts.differing,
        refused: counts.refused,
        seconds,
    };
    if let Some(path) = &args.json {
        let text = serde_json::to_string_pretty(&summary)?;
        std::fs::write(path, text + "\n").with_context(|| format!("writing {}", path.display()))?;
    }
    println!(
        "{} programs of {} instructions on {} against {}: {} differ, {} refused; {seconds:.1} s",
        summary.programs,
        summary.instructions,
        summary.gpu,
        machines.others.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", "),
        summary.differing,
        summary.refused,
    );
    Ok(if summary.differing + summary.refused == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Compares the programs, one batch after the other, and prints what fails.
fn compare_all(args: &Args, machines: &Machines, sample: impl Fn(usize) -> Sample) -> Counts {
    let mut counts = Counts::default();
    let mut shown = 0;
    for first in (0..args.programs).step_by(args.batch.max(1)) {
        let last = (first + args.batch.max(1)).min(args.programs);
        let samples: Vec<Sample> = (first..last).map(&sample).collect();
        counts.instructions += samples.iter().map(|sample| sample.program.len()).sum::<usize>();
        for (sample, failure) in compare::failures(machines, &samples) {
            match failure {
                Failure::Refused { .. } => counts.refused += 1,
                Failure::Differs { .. } => counts.differing += 1,
            }
            shown += 1;
            if shown <= args.show {
                report(machines, &sample, &failure);
            } else {
                println!("seed {}: {failure}", sample.seed);
            }
        }
    }
    counts
}

/// Has processes compare a part of the programs each.
fn share(args: &Args, jobs: usize) -> Result<Counts> {
    let folder = tempfile::tempdir()?;
    let part = args.programs.div_ceil(jobs);
    let mut processes = Vec::new();
    for job in 0..jobs {
        let first = (job * part).min(args.programs);
        let programs = part.min(args.programs - first);
        let summary = folder.path().join(format!("{job}.json"));
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["fuzz", "--jobs", "1", "--device", &args.device, "--commit", "-"]);
        command.arg(format!("--programs={programs}"));
        command.arg(format!("--seed={}", args.seed.wrapping_add(first as u64)));
        command.arg(format!("--statements={}", args.statements)).arg(format!("--batch={}", args.batch));
        command.arg(format!("--show={}", args.show.div_ceil(jobs))).arg("--json").arg(&summary);
        command.args(args.mma.then_some("--mma")).stdout(Stdio::piped());
        processes.push((command.spawn().context("starting a process")?, summary));
    }
    let mut counts = Counts::default();
    for (process, summary) in processes {
        let output = process.wait_with_output()?;
        let text = String::from_utf8_lossy(&output.stdout);
        // The last line is the process's own summary.
        let lines: Vec<&str> = text.lines().collect();
        lines.iter().take(lines.len().saturating_sub(1)).for_each(|line| println!("{line}"));
        let summary = std::fs::read_to_string(&summary).context("a process ended without a summary")?;
        let summary: Counts = serde_json::from_str(&summary)?;
        counts.instructions += summary.instructions;
        counts.differing += summary.differing;
        counts.refused += summary.refused;
    }
    Ok(counts)
}

/// Prints the smallest program that fails in the way that this one does.
fn report(machines: &Machines, sample: &Sample, failure: &Failure) {
    println!("seed {}: {failure}", sample.seed);
    let same_kind = |other: &Failure| {
        matches!(
            (failure, other),
            (Failure::Differs { .. }, Failure::Differs { .. })
                | (Failure::Refused { .. }, Failure::Refused { .. })
        )
    };
    let fails = |program: &program::Program| {
        let sample = Sample { program: program.clone(), ..sample.clone() };
        compare::failures(machines, &[sample]).into_iter().map(|(_, failure)| failure).find(same_kind)
    };
    let small = shrink::shrink(&sample.program, 400, |program| fails(program).is_some());
    let Some(failure) = fails(&small) else {
        println!(
            "  it does not fail a second time: the program is not deterministic\n{}",
            sample.program.listing()
        );
        return;
    };
    println!("  {} of {} instructions are enough: {failure}", small.len(), sample.program.len());
    if let Failure::Differs { index, .. } = failure {
        let thread = index / program::OUTPUTS;
        if let Some(inputs) = sample.inputs().chunks(program::INPUTS).nth(thread) {
            let inputs: Vec<String> = inputs.iter().map(|value| format!("{value:016x}")).collect();
            println!("  the thread's inputs: {}", inputs.join(" "));
        }
    }
    for line in small.listing().lines() {
        println!("    {line}");
    }
}

/// Writes programs, and what the emulator leaves.
fn emit(folder: &Path, programs: usize, batch: usize, sample: impl Fn(usize) -> Sample) -> Result<ExitCode> {
    std::fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
    let emulator = crate::launch::open("emulator")?;
    let mut failed = false;
    for first in (0..programs).step_by(batch.max(1)) {
        let samples: Vec<Sample> = (first..(first + batch.max(1)).min(programs)).map(&sample).collect();
        std::fs::write(folder.join(format!("programs{first:06}.ptx")), compare::module(&samples))?;
        let mut text = String::new();
        for (sample, result) in samples.iter().zip(compare::results(&emulator, &samples)) {
            text += &format!("seed {}:", sample.seed);
            match result {
                Ok(values) => values.iter().for_each(|value| text += &format!(" {value:x}")),
                Err(reason) => {
                    failed = true;
                    text += &format!(" {reason}");
                }
            }
            text.push('\n');
        }
        std::fs::write(folder.join(format!("programs{first:06}.txt")), text)?;
    }
    println!("{programs} programs written to {}", folder.display());
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
