//! `xtask mutants`: breaks every shipped kernel in every known way, one at a time, and writes what the emulator found to
//! `emulator/reports/mutants.csv`.

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use indicatif::{ParallelProgressIterator, ProgressBar, ProgressStyle};
use rayon::prelude::*;
use warpsmith_tests::mutants::equivalents::sources;
use warpsmith_tests::mutants::report::{Row, Table, hash};
use warpsmith_tests::mutants::{Subject, Verdict, shipped, subjects};

/// Run all mutants of the shipped kernels in the emulator; about ten minutes on two cores.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Only the entries whose names contain this; the table keeps its rows of the others.
    #[arg(long, value_name = "NAME", default_value = "")]
    kernel: String,
    /// Run so many mutants at a time; as many as there are cores if not given.
    #[arg(long, value_name = "N")]
    jobs: Option<usize>,
    /// Run nothing: say whether the committed table is of the PTX that ships and explains every row.
    #[arg(long)]
    check: bool,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    if args.check {
        return Ok(report(&Table::read()?));
    }
    let pool = rayon::ThreadPoolBuilder::new().num_threads(args.jobs.unwrap_or(0)).build()?;
    let table = pool.install(|| run_mutants(&args.kernel))?;
    let path = Table::path();
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    std::fs::write(&path, table.text()?).with_context(|| format!("writing {}", path.display()))?;
    Ok(report(&table))
}

/// Says what the table has and what is wrong with it.
fn report(table: &Table) -> ExitCode {
    let mut verdicts: Vec<&str> = table.rows.iter().map(|row| row.verdict.as_str()).collect();
    verdicts.sort_unstable();
    println!("{} mutants of {} kernels", table.rows.len(), table.entries.len());
    for group in verdicts.chunk_by(|a, b| a == b) {
        println!("  {:>6} {}", group.len(), group[0]);
    }
    let complaints = table.complaints();
    for complaint in &complaints {
        println!("error: {complaint}");
    }
    if complaints.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The table with the entries named run anew, and the others as they were as far as they are up to date.
fn run_mutants(pattern: &str) -> Result<Table> {
    let old = if pattern.is_empty() { Table::default() } else { Table::read().unwrap_or_default() };
    let chosen = subjects(pattern)?;
    if chosen.is_empty() {
        bail!("no shipped kernel has a name with `{pattern}`");
    }
    let work: Vec<(&Arc<Subject>, usize)> =
        chosen.iter().flat_map(|subject| (0..subject.mutants.len()).map(move |i| (subject, i))).collect();
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} mutants {elapsed}, {eta} left")
        .unwrap_or_else(|_| ProgressStyle::default_bar());
    let progress = ProgressBar::new(work.len() as u64).with_style(style);
    let new: Vec<Row> = work
        .par_iter()
        .progress_with(progress.clone())
        .map(|&(subject, index)| {
            let mutant = &subject.mutants[index];
            let verdict = subject.verdict(mutant)?;
            if verdict == Verdict::Missed {
                let (entry, line) = (&subject.entry, subject.line(mutant));
                let sources = sources(entry, mutant).join("\n        from ");
                progress.suspend(|| {
                    eprintln!(
                        "missed: `{}`, line {line}: {}\n        from {sources}",
                        entry.name, mutant.description
                    );
                });
            }
            Ok(Row::new(&subject.entry, mutant, verdict))
        })
        .collect::<Result<_>>()?;
    progress.finish_and_clear();

    let mut table = Table::default();
    for (_, _, entry) in shipped() {
        let source = if entry.name.contains(pattern) {
            new.iter().filter(|row| row.kernel == entry.name).cloned().collect()
        } else if old.is_of(&entry) {
            old.of(&entry).cloned().collect::<Vec<_>>()
        } else {
            continue;
        };
        table.entries.insert(entry.name.clone(), hash(&entry));
        table.rows.extend(source);
    }
    Ok(table)
}
