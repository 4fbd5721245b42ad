//! `xtask mutants`: breaks every shipped kernel in every known way, one at a time, and writes what the emulator found to
//! `emulator/reports/mutants.csv`.

use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use indicatif::{ProgressBar, ProgressStyle};
use rayon::prelude::*;
use warpsmith_tests::mutants::equivalents::sources;
use warpsmith_tests::mutants::identity::hash;
use warpsmith_tests::mutants::report::{Row, Table};
use warpsmith_tests::mutants::{Shipped, Subject, Verdict, shipped};

/// Run the mutants of the shipped kernels in the emulator, those of kernels that have not changed since the table was made left out;
/// all of them take a quarter of an hour on two cores.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Only the entries whose names contain this, or the one entry that has this name; the table keeps its rows of the others.
    #[arg(long, value_name = "NAME", default_value = "")]
    kernel: String,
    /// Run all mutants anew, also of kernels that have not changed: after changes to the emulator's checks or the kernels' problems.
    #[arg(long)]
    all: bool,
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
    Ok(report(&pool.install(|| run_mutants(&args.kernel, args.all))?))
}

/// Says what the table has and what is wrong with it.
fn report(table: &Table) -> ExitCode {
    let mut verdicts: Vec<&str> = table.rows.iter().map(|row| row.verdict.as_str()).collect();
    verdicts.sort_unstable();
    let (kernels, twins) = (table.entries.len(), table.twins.len());
    println!("{} mutants of {kernels} kernels, which stand for {twins} more", table.rows.len());
    for group in verdicts.chunk_by(|a, b| a == b) {
        println!("  {:>6} {}", group.len(), group[0]);
    }
    if !table.pending.is_empty() {
        println!("Not in the table yet: {}", table.pending.iter().cloned().collect::<Vec<_>>().join(", "));
    }
    let complaints = table.complaints();
    for complaint in &complaints {
        println!("error: {complaint}");
    }
    if complaints.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The table for what ships. What the old one knows of entries that have not changed is kept, unless `all` is to be run. The
/// table is written after each entry, so that what has been run is not lost when the command is stopped.
fn run_mutants(pattern: &str, all: bool) -> Result<Table> {
    let old = Table::read().unwrap_or_default();
    let shipped = shipped();
    let is_whole_name = shipped.iter().any(|shipped| shipped.entry.name == pattern);
    let is_of = |name: &String| if is_whole_name { name == pattern } else { name.contains(pattern) };
    let is_chosen = |shipped: &Shipped| shipped.twin.is_none() && is_of(&shipped.entry.name);
    if !shipped.iter().any(is_chosen) {
        bail!("no shipped kernel that stands for itself has a name with `{pattern}`");
    }
    let rows: Vec<Option<Vec<Row>>> = shipped
        .iter()
        .map(|shipped| {
            let known = shipped.twin.is_none() && old.is_of(&shipped.entry);
            known.then(|| old.of(&shipped.entry).cloned().collect())
        })
        .collect();
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} mutants {elapsed}, {eta} left")
        .unwrap_or_else(|_| ProgressStyle::default_bar());
    let progress = ProgressBar::new(0).with_style(style);
    let rows = Mutex::new(rows);
    // Several entries at a time: the last mutants of one leave threads to the next.
    let chosen: Vec<usize> = (0..shipped.len()).filter(|&at| is_chosen(&shipped[at])).collect();
    chosen.into_par_iter().with_max_len(1).try_for_each(|at| -> Result<()> {
        let new = run_entry(&shipped[at], &old, all, &progress)?;
        let mut rows = rows.lock().unwrap_or_else(PoisonError::into_inner);
        rows[at] = Some(new);
        write(&table(&shipped, &rows))
    })?;
    progress.finish_and_clear();
    Ok(table(&shipped, &rows.into_inner().unwrap_or_else(PoisonError::into_inner)))
}

/// The table of the entries that have rows, and of twins.
fn table(shipped: &[Shipped], rows: &[Option<Vec<Row>>]) -> Table {
    let mut table = Table::default();
    for (Shipped { entry, twin, .. }, rows) in shipped.iter().zip(rows) {
        if let Some(twin) = twin {
            table.twins.insert(entry.name.clone(), twin.clone());
        } else if let Some(rows) = rows {
            table.entries.insert(entry.name.clone(), hash(entry));
            table.rows.extend_from_slice(rows);
        } else {
            table.pending.insert(entry.name.clone());
        }
    }
    table
}

fn write(table: &Table) -> Result<()> {
    let path = Table::path();
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    std::fs::write(&path, table.text()?).with_context(|| format!("writing {}", path.display()))
}

/// The rows of an entry. Those that the old table has are kept as far as they are explained, an equivalent mutant's by a proof or
/// a reason that is still there; the other mutants are run.
fn run_entry(shipped: &Shipped, old: &Table, all: bool, progress: &ProgressBar) -> Result<Vec<Row>> {
    let name = &shipped.entry.name;
    let mut subject = Subject::unchecked(shipped.clone())?;
    let known = old.known(&shipped.entry, &subject.mutants);
    let kept: Vec<Option<Row>> = subject
        .mutants
        .par_iter()
        .zip(&known)
        .map(|(mutant, known)| {
            let row = (*known).filter(|row| !all && row.is_explained())?;
            if row.is_found() {
                return Some(row.clone());
            }
            let reason = subject.explanation(mutant)?;
            Some(Row::new(&subject.entry, mutant, Verdict::Equivalent(reason)))
        })
        .collect();
    let open = kept.iter().filter(|row| row.is_none()).count();
    if open == 0 {
        return Ok(kept.into_iter().flatten().collect());
    }
    subject.check()?;
    progress.inc_length(open as u64);
    let start = Instant::now();
    let rows = subject
        .mutants
        .par_iter()
        .zip(kept)
        .map(|(mutant, kept)| {
            if let Some(row) = kept {
                return Ok(row);
            }
            let verdict = subject.verdict(mutant)?;
            if verdict == Verdict::Missed {
                let line = subject.line(mutant);
                let sources = sources(&subject.entry, mutant).join("\n        from ");
                progress.suspend(|| {
                    eprintln!(
                        "missed: `{name}`, line {line}: {}\n        from {sources}",
                        mutant.description
                    );
                });
            }
            progress.inc(1);
            Ok(Row::new(&subject.entry, mutant, verdict))
        })
        .collect::<Result<_>>();
    let seconds = start.elapsed().as_secs_f64();
    progress.suspend(|| println!("`{name}`: {open} mutants run in {seconds:.0} s"));
    rows
}
