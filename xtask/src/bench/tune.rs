//! `xtask tune`: measures every kernel for the bench's cases on the GPU at hand – all operations, types, layouts and batches –, says how
//! good the cost model's choices are, and keeps the fastest for programs that ask for them.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use comfy_table::{Table, presets};
use serde::Serialize;
use warpsmith::Device;
use warpsmith::ops::gemm::Tile;
use warpsmith::tune::{Found, Store};
use warpsmith_lab::benchmark::{Options, Timing};
use warpsmith_lab::tune::{self, Tuned};

use super::case::{Case, Precision, Tunable, parse_shape};
use super::draw::Draw;
use super::suites::{self, Suite};
use super::{microseconds, open_gpu, rows};
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
    #[command(flatten)]
    draw: Draw,
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

/// The same with the candidate of this name alone, which therefore is the one that a store keeps.
fn with_only(tuned: &Tuned, tile: &str) -> Tuned {
    let mut tuned = tuned.clone();
    tuned.candidates.retain(|(candidate, _)| candidate.name() == tile);
    tuned
}

/// What was measured of one case.
struct Measured {
    case: Case,
    /// What it is kept under.
    key: String,
    /// The model's choice.
    model: String,
    /// Every candidate, and its microseconds.
    candidates: Vec<(String, f64)>,
}

impl Measured {
    fn new(case: Case, tuned: &Tuned) -> Self {
        let named = |(tile, timing): &(Tile, Timing)| (tile.to_string(), microseconds(timing));
        let candidates = tuned.candidates.iter().map(named).collect();
        Self { case, key: tuned.key.clone(), model: tuned.model.to_string(), candidates }
    }

    fn time(&self, tile: &str) -> Option<f64> {
        self.candidates.iter().find(|(name, _)| name == tile).map(|(_, time)| *time)
    }

    fn best(&self) -> Option<(&str, f64)> {
        let best = self.candidates.iter().min_by(|(_, a), (_, b)| a.total_cmp(b));
        best.map(|(name, time)| (name.as_str(), *time))
    }

    /// The time of a tile over that of the fastest; infinite if it did not run.
    fn ratio(&self, tile: &str) -> f64 {
        let ratio = self.time(tile).zip(self.best()).map(|(time, (_, best))| time / best);
        ratio.unwrap_or(f64::INFINITY)
    }
}

/// What was measured, what there is nothing to measure of, and what failed; and why.
#[derive(Default)]
struct Findings {
    measured: Vec<(Measured, Tuned)>,
    skipped: Vec<(Case, String)>,
    failed: Vec<(Case, String)>,
}

impl Findings {
    /// Measures `cases`, telling of each which number it is.
    fn of(device: &Device, cases: &[Case], options: &Options, told: impl Fn(usize, &Case)) -> Self {
        let mut findings = Self::default();
        for (number, case) in cases.iter().enumerate() {
            let Some(tunable) = case.tunable() else {
                findings.skipped.push((*case, "there is no operation for batches of this type".into()));
                continue;
            };
            told(number + 1, case);
            let tuned = match tunable {
                Tunable::Product(case) => tune::matmul(device, &case, options),
                Tunable::Scaled(case) => tune::linear_scaled(device, &case, options),
            };
            match tuned {
                Ok(Some(tuned)) => findings.measured.push((Measured::new(*case, &tuned), tuned)),
                Ok(None) => findings.skipped.push((*case, "no kernel runs for it".into())),
                // What was measured before is worth keeping.
                Err(error) => findings.failed.push((*case, error.to_string())),
            }
            if let Err(error) = device.release_memory() {
                findings.failed.push((*case, format!("releasing its memory: {error}")));
            }
        }
        findings
    }

    /// Why there is nothing to keep, if nothing was measured.
    fn nothing(&self) -> Option<String> {
        let (skipped, failed) = (self.skipped.len(), self.failed.len());
        match (self.measured.len(), skipped, failed) {
            (0, 0, 0) => Some("no case is of these suites, types and sizes".into()),
            (0, _, 0) => Some(format!("all {skipped} cases were skipped")),
            (0, ..) => Some(format!("{skipped} cases were skipped, and {failed} failed")),
            _ => None,
        }
    }

    /// What to keep: one outcome for each key, and of that one tile. Of operations whose kernel is chosen alike, as those with a residual and
    /// with a mask, it is the tile that takes least for all of them together, each relative to its fastest.
    fn kept(&self) -> impl Iterator<Item = Tuned> {
        let mut by_key: BTreeMap<&str, Vec<&(Measured, Tuned)>> = BTreeMap::new();
        for entry in &self.measured {
            by_key.entry(&entry.0.key).or_default().push(entry);
        }
        by_key.into_values().filter_map(|alike| {
            // One that did not run for some is behind all that ran for more of them.
            let cost = |tile: &str| {
                let ratios: Vec<f64> = alike.iter().map(|(measured, _)| measured.ratio(tile)).collect();
                let ran = ratios.iter().filter(|ratio| ratio.is_finite());
                (alike.len() - ran.clone().count(), ran.sum::<f64>())
            };
            let tiles =
                alike.iter().flat_map(|entry| entry.0.candidates.iter().map(move |(tile, _)| (tile, entry)));
            let least = tiles.min_by(|(a, _), (b, _)| {
                let ((missing_a, a), (missing_b, b)) = (cost(a), cost(b));
                missing_a.cmp(&missing_b).then(a.total_cmp(&b))
            });
            least.map(|(tile, (_, tuned))| with_only(tuned, tile))
        })
    }
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

    let cases = suites::cases(&args.suite, &args.dtype, &args.shape, args.draw);
    let mut store = if args.report { None } else { Some(Store::open(&device)?) };
    if let Some(store) = &store {
        println!("Results are kept in {}{}", store.path().display(), found(store.found()));
    }
    let findings = Findings::of(&device, &cases, &options, |number, case| {
        eprintln!("[{:3} s, {number}/{}] {case}", start.elapsed().as_secs(), cases.len());
    });
    for (case, reason) in &findings.skipped {
        println!("skipped: {case}: {reason}");
    }
    for (case, reason) in &findings.failed {
        println!("failed: {case}: {reason}");
    }
    let all: Vec<&Measured> = findings.measured.iter().map(|(measured, _)| measured).collect();
    if let Some(reason) = findings.nothing() {
        bail!("nothing to tune: {reason}");
    }
    if let Some(store) = &mut store {
        for tuned in findings.kept() {
            tuned.keep_in(store);
        }
        store.save()?;
    }
    if let Some(path) = &args.csv {
        rows::write(path, rows_of(&all, &provenance))?;
    }
    println!("{}", table(&all));
    let good = all.iter().filter(|measured| measured.ratio(&measured.model) <= ALLOWED).count();
    let verdict = if good == all.len() { "met" } else { "MISSED" };
    println!("{verdict}: the model's choice takes at most {ALLOWED} × the fastest: {good} of {}", all.len());
    if !findings.failed.is_empty() {
        bail!("{} failures in {} cases", findings.failed.len(), cases.len());
    }
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
fn table(all: &[&Measured]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED).set_header([
        "operation",
        "type",
        "M×K×N",
        "model",
        "µs",
        "fastest",
        "µs",
        "model / fastest",
    ]);
    let ratio = |measured: &Measured| measured.ratio(&measured.model);
    let mut sorted = all.to_vec();
    sorted.sort_by(|a, b| ratio(b).total_cmp(&ratio(a)));
    for measured in sorted {
        let told = |time: Option<f64>| time.map_or("–".into(), |time| format!("{time:.2}"));
        let best = measured.best();
        table.add_row([
            measured.case.operation.to_string(),
            measured.case.precision.name().to_owned(),
            measured.case.sides("×"),
            measured.model.clone(),
            told(measured.time(&measured.model)),
            best.map_or("–", |(tile, _)| tile).to_owned(),
            told(best.map(|(_, time)| time)),
            format!("{:.3}", ratio(measured)),
        ]);
    }
    table
}

/// Every kernel's time for every case.
fn rows_of<'a>(all: &'a [&Measured], provenance: &'a Provenance) -> impl Iterator<Item = Row<'a>> {
    let of_case = move |measured: &'a &Measured| {
        measured.candidates.iter().map(move |(tile, time)| Row {
            operation: measured.case.operation.to_string(),
            dtype: measured.case.precision.name(),
            shape: measured.case.sides("x"),
            tile,
            median_us: rows::rounded(*time, 1e3),
            is_model: *tile == measured.model,
            gpu: &provenance.gpu,
            driver: &provenance.driver,
            commit: &provenance.commit,
            command: &provenance.command,
        })
    };
    all.iter().flat_map(of_case)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::ValueEnum;
    use warpsmith::{EmulatorOptions, ops::Activation};

    use super::*;
    use crate::bench::case::{Extra, Layout, Operation};

    fn case(operation: Operation, precision: Precision) -> Case {
        Case { suite: Suite::Main, operation, precision, shape: [8, 32, 16] }
    }

    fn shortly() -> Options {
        let mut options = Options::default();
        (options.samples, options.warm_up, options.batch) = (1, Duration::ZERO, Duration::ZERO);
        options
    }

    #[test]
    fn every_case_of_the_suites_is_measured() {
        for suite in Suite::value_variants() {
            for case in suites::cases(&[*suite], &[], &[], Draw { seed: 1, count: 20 }) {
                assert!(case.tunable().is_some(), "{case}");
            }
        }
    }

    #[test]
    fn results_are_kept_for_every_kind_of_problem_and_what_is_skipped_is_told() {
        let options = EmulatorOptions { compute_capability: (9, 0), ..EmulatorOptions::default() };
        let device = Device::emulator_with(options);
        let with = |extra, activation| Operation { extra, activation, ..Operation::PRODUCT };
        let kinds = [
            case(Operation::BIAS_RELU, Precision::Bf16),
            case(with(Extra::None, Activation::Silu), Precision::Bf16),
            case(with(Extra::Residual, Activation::None), Precision::Bf16),
            case(with(Extra::Mask, Activation::Relu), Precision::Bf16),
            case(Operation::product(Layout::Tn), Precision::Bf16),
            case(Operation { batch: 3, ..Operation::PRODUCT }, Precision::Bf16),
            case(Operation { batch: 3, ..Operation::product(Layout::Nn) }, Precision::Bf16),
            case(Operation::PRODUCT, Precision::Bf16ToF32),
            case(Operation::PRODUCT, Precision::Tf32),
            case(Operation::PRODUCT, Precision::F8),
            case(with(Extra::Residual, Activation::None), Precision::F8),
        ];
        let alike = [
            // What follows is of the same kind, or the other layouts are read alike.
            case(Operation::PRODUCT, Precision::Bf16),
            case(with(Extra::Preactivation, Activation::Relu), Precision::Bf16),
            case(Operation::product(Layout::Tt), Precision::Bf16),
            case(with(Extra::Scales, Activation::None), Precision::F8),
            case(Operation::PRODUCT, Precision::F8Mixed),
            case(Operation::product(Layout::Nn), Precision::F8),
        ];
        let skipped = [case(Operation { batch: 3, ..Operation::PRODUCT }, Precision::F8)];
        let all: Vec<Case> = kinds.iter().chain(&alike).chain(&skipped).copied().collect();
        let findings = Findings::of(&device, &all, &shortly(), |_, _| {});
        let keys: BTreeSet<&str> = findings.measured.iter().map(|(measured, _)| &*measured.key).collect();
        assert_eq!(keys.len(), kinds.len(), "{keys:#?}");
        assert_eq!(findings.kept().count(), kinds.len());
        assert_eq!(findings.measured.len(), kinds.len() + alike.len());
        let told: Vec<Case> = findings.skipped.iter().map(|(case, _)| *case).collect();
        assert_eq!(told, skipped);
        assert!(findings.failed.is_empty() && findings.nothing().is_none(), "{:?}", findings.failed);
        for (measured, _) in &findings.measured {
            assert!(measured.candidates.len() > 1 && measured.ratio(&measured.model).is_finite());
        }
    }

    #[test]
    fn a_case_that_fails_is_told_and_what_was_measured_is_kept() {
        let device = Device::emulator_with(EmulatorOptions { memory: 1 << 20, ..EmulatorOptions::default() });
        let fits = case(Operation::PRODUCT, Precision::Bf16);
        let large = Case { shape: [8, 4096, 1024], ..fits };
        let findings = Findings::of(&device, &[fits, large, fits], &shortly(), |_, _| {});
        assert_eq!(findings.measured.len(), 2, "{:?}", findings.failed);
        assert_eq!(findings.kept().count(), 1);
        let [(failed, reason)] = &findings.failed[..] else { panic!("{:?}", findings.failed) };
        assert_eq!(*failed, large);
        assert!(reason.contains("memory"), "{reason}");
        assert_eq!(findings.nothing(), None);
        let nothing = |cases: &[Case]| Findings::of(&device, cases, &shortly(), |_, _| {}).nothing();
        assert_eq!(nothing(&[large]).as_deref(), Some("0 cases were skipped, and 1 failed"));
    }

    #[test]
    fn nothing_asked_for_and_nothing_there_to_measure_are_told_apart() {
        let device = Device::emulator();
        let nothing = |cases: &[Case]| Findings::of(&device, cases, &shortly(), |_, _| {}).nothing();
        assert_eq!(nothing(&[]).as_deref(), Some("no case is of these suites, types and sizes"));
        let batch = case(Operation { batch: 3, ..Operation::PRODUCT }, Precision::F8);
        assert_eq!(nothing(&[batch, batch]).as_deref(), Some("all 2 cases were skipped"));
    }

    /// Of operations that are chosen alike, the tile is kept that loses least over all of them.
    #[test]
    fn one_tile_is_kept_for_operations_that_are_chosen_alike() {
        let device = Device::emulator();
        let all = [Extra::Residual, Extra::Scales, Extra::Preactivation]
            .map(|extra| case(Operation { extra, ..Operation::PRODUCT }, Precision::Bf16));
        let mut findings = Findings::of(&device, &all, &shortly(), |_, _| {});
        let names: Vec<String> =
            findings.measured[0].0.candidates.iter().take(3).map(|(name, _)| name.clone()).collect();
        let mut kept = |times: [[Option<f64>; 3]; 3]| {
            for ((measured, _), times) in findings.measured.iter_mut().zip(times) {
                let named = names.iter().cloned().zip(times);
                measured.candidates = named.filter_map(|(name, time)| Some((name, time?))).collect();
            }
            let kept: Vec<Tuned> = findings.kept().collect();
            let [tuned] = &kept[..] else { panic!("one result for the key") };
            let kept = tuned.best().expect("a candidate").0.to_string();
            names.iter().position(|name| *name == kept).expect("one of these")
        };
        // The first loses 0 + 1.1 + 0.1, the second 1 + 0 + 0.
        let mut times = [[10.0, 20.0, 90.0], [21.0, 10.0, 90.0], [11.0, 10.0, 90.0]].map(|of| of.map(Some));
        assert_eq!(kept(times), 1);
        times[0][1] = Some(30.0);
        assert_eq!(kept(times), 0);
        // One that is the fastest nowhere.
        times = [[10.0, 10.5, 15.0], [15.0, 10.5, 10.0], [10.0, 10.5, 15.0]].map(|of| of.map(Some));
        assert_eq!(kept(times), 1);
        // One that does not run for all.
        times[2][1] = None;
        assert_eq!(kept(times), 0);
        times[0][0] = None;
        assert_eq!(kept(times), 2);
    }
}
