//! `xtask tune`: measures every kernel for the bench's sizes on the GPU at hand, says how good the cost model's choices are, and keeps
//! the fastest for programs that ask for them.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use comfy_table::{Table, presets};
use serde::Serialize;
use warpsmith::benchmark::{Options, Timing};
use warpsmith::tune::{self, Found, Store, Tuned};

use super::case::{Case, Precision, parse_shape};
use super::suites::{self, Suite};
use super::{microseconds, open_gpu};
use crate::provenance::Provenance;

/// Measure which kernel is fastest for each size on this GPU, and keep the results.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// The GPU: cuda or cuda:N.
    #[arg(long, default_value = "cuda:0")]
    device: String,
    /// Only these sets of sizes, separated by commas.
    #[arg(long, value_delimiter = ',')]
    suite: Vec<Suite>,
    /// Only these types instead of each set's own, separated by commas.
    #[arg(long, value_delimiter = ',')]
    dtype: Vec<Precision>,
    /// Only these sizes, as MxKxN separated by commas.
    #[arg(long, value_delimiter = ',', value_parser = parse_shape)]
    shape: Vec<[usize; 3]>,
    /// Samples of each kernel.
    #[arg(long, default_value_t = 7)]
    samples: usize,
    /// Seconds to run before the first sample of each size.
    #[arg(long, default_value_t = 0.2)]
    warm_up: f64,
    /// Only say how the model's choices compare with the fastest; keep nothing.
    #[arg(long)]
    report: bool,
    /// Write every kernel's time to this file.
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// The commit to note in the results; by default the one that `git` reports here.
    #[arg(long)]
    commit: Option<String>,
    /// Fail if a choice takes more than a twentieth longer than the fastest.
    #[arg(long)]
    check: bool,
}

/// How much longer than the fastest a choice of the model may take.
const ALLOWED: f64 = 1.05;

/// One kernel's time for one case.
#[derive(Serialize)]
struct Row<'a> {
    operation: String,
    dtype: &'a str,
    shape: String,
    tile: &'a str,
    median_us: f64,
    is_model: bool,
    gpu: &'a str,
    driver: &'a str,
    commit: &'a str,
    command: &'a str,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let start = Instant::now();
    let device = open_gpu(&args.device)?;
    let mut options = Options::default();
    options.samples = args.samples;
    options.warm_up = Duration::try_from_secs_f64(args.warm_up).context("--warm-up")?;
    options.batch = Duration::from_millis(2);
    let provenance = Provenance::collect(&device, args.commit.clone());
    println!("{provenance}");

    let mut cases = suites::cases(&args.suite, &args.dtype, &args.shape);
    // The choice does not depend on what follows the product.
    if args.suite.is_empty() {
        cases.retain(|case| case.suite != Suite::Epilogue);
    }
    let mut store = if args.report { None } else { Some(Store::open(&device)?) };
    if let Some(store) = &store {
        println!("Results are kept in {}{}", store.path().display(), found(store.found()));
    }
    let mut all: Vec<(Case, Tuned)> = Vec::new();
    for (number, case) in cases.iter().enumerate() {
        let Some(linear) = case.ours() else { continue };
        eprintln!("[{:3} s, {}/{}] {case}", start.elapsed().as_secs(), number + 1, cases.len());
        let tuned = tune::linear(&device, &linear, &options).with_context(|| format!("measuring {case}"))?;
        device.release_memory()?;
        let Some(tuned) = tuned else { continue };
        if let Some(store) = &mut store {
            store.keep(&tuned);
        }
        all.push((*case, tuned));
    }
    if all.is_empty() {
        bail!("nothing to tune: no case is of these suites, types and sizes");
    }
    if let Some(store) = &mut store {
        store.save()?;
    }
    if let Some(path) = &args.csv {
        write_csv(path, &all, &provenance).with_context(|| format!("writing {}", path.display()))?;
    }
    println!("{}", table(&all));
    let within = |(_, tuned): &&(Case, Tuned)| tuned.model_over_best().is_some_and(|ratio| ratio <= ALLOWED);
    let good = all.iter().filter(within).count();
    let verdict = if good == all.len() { "met" } else { "MISSED" };
    println!("{verdict}: the model's choice takes at most {ALLOWED} × the fastest: {good} of {}", all.len());
    Ok(if good < all.len() && args.check { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// What a store was found to hold, if that is worth a word.
fn found(found: &Found) -> String {
    match found {
        Found::Stale(origin) => format!(", whose results are of another origin and are replaced: {origin:?}"),
        Found::Foreign(reason) => format!(", which is damaged or foreign and is replaced: {reason}"),
        _ => String::new(),
    }
}

/// The cases with the model's choice and the fastest, the worst choices first.
fn table(all: &[(Case, Tuned)]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED).set_header([
        "type",
        "M×K×N",
        "model",
        "µs",
        "fastest",
        "µs",
        "model / fastest",
    ]);
    let ratio = |tuned: &Tuned| tuned.model_over_best().unwrap_or(f64::INFINITY);
    let mut sorted: Vec<_> = all.iter().collect();
    sorted.sort_by(|(_, a), (_, b)| ratio(b).total_cmp(&ratio(a)));
    for (case, tuned) in sorted {
        let [m, k, n] = case.shape;
        let time = |timing: &Timing| format!("{:.2}", microseconds(timing));
        let model = tuned.candidates.iter().find(|(tile, _)| *tile == tuned.model);
        let best = tuned.best();
        let name = |tile: Option<String>| tile.unwrap_or_else(|| "–".into());
        table.add_row([
            case.precision.name().to_owned(),
            format!("{m}×{k}×{n}"),
            tuned.model.to_string(),
            name(model.map(|(_, timing)| time(timing))),
            name(best.map(|(tile, _)| tile.to_string())),
            name(best.map(|(_, timing)| time(&timing))),
            format!("{:.3}", ratio(tuned)),
        ]);
    }
    table
}

fn write_csv(path: &std::path::Path, all: &[(Case, Tuned)], provenance: &Provenance) -> Result<()> {
    let mut writer = csv::Writer::from_path(path)?;
    for (case, tuned) in all {
        let [m, k, n] = case.shape;
        for (tile, timing) in &tuned.candidates {
            writer.serialize(Row {
                operation: case.operation.to_string(),
                dtype: case.precision.name(),
                shape: format!("{m}x{k}x{n}"),
                tile: tile.name(),
                median_us: (microseconds(timing) * 1e3).round() / 1e3,
                is_model: *tile == tuned.model,
                gpu: &provenance.gpu,
                driver: &provenance.driver,
                commit: &provenance.commit,
                command: &provenance.command,
            })?;
        }
    }
    Ok(writer.flush()?)
}
