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
use warpsmith_tests::mutants::report::{Row, Sample, Table, sample_of};
use warpsmith_tests::mutants::{Shipped, Subject, Verdict, shipped};

/// Run mutants of the shipped kernels in the emulator, those of kernels that have not changed since the table was made left out: every mutant
/// of the kernels that the table has whole, and a sample of the others'.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Only the entries whose names contain this, or the one entry that has this name; the table keeps its rows of the others.
    #[arg(long, value_name = "NAME", default_value = "")]
    kernel: String,
    /// Run every mutant of the chosen kernels, and have them in the table whole: those that nothing finds need an explanation.
    #[arg(long)]
    whole: bool,
    /// Run mutants anew, also of kernels that have not changed: after changes to the emulator's checks or the kernels' problems.
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
    Ok(report(&pool.install(|| run_mutants(args))?))
}

/// Says what the table has and what is wrong with it.
fn report(table: &Table) -> ExitCode {
    table.summary().iter().for_each(|line| println!("{line}"));
    println!("The kernels stand for {} more, which are the same but for a type.", table.twins.len());
    let complaints = table.complaints();
    for complaint in &complaints {
        println!("error: {complaint}");
    }
    if complaints.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The table for what ships. What the old one knows of entries that have not changed is kept, unless `all` is to be run. The
/// table is written after each entry, so that what has been run is not lost when the command is stopped.
fn run_mutants(args: &Args) -> Result<Table> {
    let old = Table::read().unwrap_or_default();
    let pattern = args.kernel.as_str();
    let shipped = shipped();
    let is_whole_name = shipped.iter().any(|shipped| shipped.entry.name == pattern);
    let is_of = |name: &String| if is_whole_name { name == pattern } else { name.contains(pattern) };
    let is_chosen = |shipped: &Shipped| shipped.twin.is_none() && is_of(&shipped.entry.name);
    if !shipped.iter().any(is_chosen) {
        bail!("no shipped kernel that stands for itself has a name with `{pattern}`");
    }
    let rows: Vec<Option<Rows>> = shipped
        .iter()
        .map(|Shipped { entry, twin, .. }| {
            let rows = || old.of(entry).cloned().collect();
            if twin.is_some() {
                None
            } else if old.is_of(entry) {
                Some(Rows { of: None, rows: rows() })
            } else if old.samples(entry) {
                Some(Rows { of: Some(old.samples[&entry.name].mutants), rows: rows() })
            } else {
                None
            }
        })
        .collect();
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} mutants {elapsed}, {eta} left")
        .unwrap_or_else(|_| ProgressStyle::default_bar());
    let progress = ProgressBar::new(0).with_style(style);
    let rows = Mutex::new(rows);
    // Several entries at a time: the last mutants of one leave threads to the next.
    let chosen: Vec<usize> = (0..shipped.len()).filter(|&at| is_chosen(&shipped[at])).collect();
    chosen.into_par_iter().with_max_len(1).try_for_each(|at| -> Result<()> {
        let new = run_entry(&shipped[at], &old, args, &progress)?;
        let mut rows = rows.lock().unwrap_or_else(PoisonError::into_inner);
        rows[at] = Some(new);
        write(&table(&shipped, &rows))
    })?;
    progress.finish_and_clear();
    Ok(table(&shipped, &rows.into_inner().unwrap_or_else(PoisonError::into_inner)))
}

/// What is known of an entry.
struct Rows {
    /// How many mutants it has, if the rows are of a sample of them.
    of: Option<usize>,
    rows: Vec<Row>,
}

/// The table of the entries that have rows, and of twins.
fn table(shipped: &[Shipped], rows: &[Option<Rows>]) -> Table {
    let mut table = Table::default();
    for (Shipped { entry, twin, .. }, rows) in shipped.iter().zip(rows) {
        if let Some(twin) = twin {
            table.twins.insert(entry.name.clone(), twin.clone());
        } else if let Some(Rows { of, rows }) = rows {
            match *of {
                Some(mutants) => {
                    table.samples.insert(entry.name.clone(), Sample { hash: hash(entry), mutants });
                }
                None => {
                    table.entries.insert(entry.name.clone(), hash(entry));
                }
            }
            table.rows.extend_from_slice(rows);
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
fn run_entry(shipped: &Shipped, old: &Table, args: &Args, progress: &ProgressBar) -> Result<Rows> {
    let name = &shipped.entry.name;
    let mut subject = Subject::unchecked(shipped.clone())?;
    let is_whole = args.whole || old.entries.contains_key(name);
    let chosen: Vec<usize> = match is_whole {
        true => (0..subject.mutants.len()).collect(),
        false => sample_of(&subject.entry, &subject.mutants),
    };
    let of = (!is_whole).then_some(subject.mutants.len());
    let known = old.known(&shipped.entry, &subject.mutants);
    let kept: Vec<Option<Row>> = chosen
        .par_iter()
        .map(|&at| {
            // Nothing new is to be had of what a sample has missed already.
            let is_done = |row: &Row| row.is_explained() || (!is_whole && row.verdict == "missed");
            let row = known[at].filter(|row| !args.all && is_done(row))?;
            if row.is_found() {
                return Some(row.clone());
            }
            let verdict = subject.explanation(&subject.mutants[at]).map(Verdict::Equivalent);
            let is_missed = !is_whole && row.verdict == "missed";
            let verdict = verdict.or(is_missed.then_some(Verdict::Missed))?;
            Some(Row::new(&subject.entry, &subject.mutants[at], verdict))
        })
        .collect();
    let open = kept.iter().filter(|row| row.is_none()).count();
    if open == 0 {
        return Ok(Rows { of, rows: kept.into_iter().flatten().collect() });
    }
    subject.check()?;
    progress.inc_length(open as u64);
    let start = Instant::now();
    let rows = chosen
        .par_iter()
        .zip(kept)
        .map(|(&at, kept)| {
            if let Some(row) = kept {
                return Ok(row);
            }
            let mutant = &subject.mutants[at];
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
        .collect::<Result<_>>()?;
    let seconds = start.elapsed().as_secs_f64();
    progress.suspend(|| println!("`{name}`: {open} mutants run in {seconds:.0} s"));
    Ok(Rows { of, rows })
}
