//! `xtask validate`: runs every operation at many sizes, types and options, and compares each result with the f64 reference.
//!
//! It needs nothing but this program: on a GPU it runs the kernels there, without one in the emulator.

mod cases;

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context;
use comfy_table::{Cell, Color, Table, presets};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use warpsmith::validate::{self, LinearCase, Outcome};
use warpsmith::{Device, DeviceKind};

use cases::Level;

/// Compare every operation with its reference, on a GPU or in the emulator.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Where to run: auto (the first GPU, else the emulator), cuda:N, emulator or cpu.
    #[arg(long, default_value = "auto")]
    device: String,
    /// Only this operation.
    #[arg(long, value_enum)]
    op: Option<Operation>,
    /// Fewer cases: a minute's worth at most.
    #[arg(long, conflicts_with = "full")]
    quick: bool,
    /// More and larger cases; on a GPU also compares it with the emulator, bit by bit, on integers.
    #[arg(long)]
    full: bool,
    /// Write the results as JSON to this file, or to standard output for `-`.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Decides the random inputs.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Operation {
    Linear,
}

/// One line of the report.
#[derive(Debug, Serialize)]
struct Row {
    operation: &'static str,
    types: String,
    shape: String,
    options: String,
    implementation: String,
    max_absolute_error: f64,
    max_relative_error: f64,
    /// The error allowed at the element that comes closest to it.
    bound: f64,
    /// The largest error in units of its bound.
    ratio: f64,
    compared: usize,
    exact: bool,
    seconds: f64,
    passed: bool,
    note: String,
}

#[derive(Debug, Serialize)]
struct Report<'a> {
    device: String,
    device_name: &'a str,
    level: Level,
    seed: u64,
    cases: usize,
    failures: usize,
    seconds: f64,
    rows: &'a [Row],
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let device = open_device(&args.device)?;
    let level = match (args.quick, args.full) {
        (true, _) => Level::Quick,
        (_, true) => Level::Full,
        _ => Level::Default,
    };
    eprintln!("Validating on {device}: {}", device.name());

    let start = Instant::now();
    let mut rows = Vec::new();
    if args.op.is_none_or(|op| op == Operation::Linear) {
        let on_gpu = matches!(device.kind(), DeviceKind::Cuda(_));
        let cases = cases::linear(level, on_gpu, args.seed);
        let compared_bits =
            if on_gpu && level == Level::Full { cases::compared_bits(args.seed) } else { vec![] };
        let progress = progress_bar(cases.len() + compared_bits.len());
        for case in &cases {
            progress.set_message(format!("linear {} {}", case.types(), case.shape()));
            rows.push(validate_linear(&device, case));
            progress.inc(1);
        }
        let emulator = Device::emulator();
        for case in &compared_bits {
            progress.set_message(format!("GPU = emulator {} {}", case.types(), case.shape()));
            rows.push(compare_with_emulator(&device, &emulator, case));
            progress.inc(1);
        }
        progress.finish_and_clear();
    }

    let failures = rows.iter().filter(|row| !row.passed).count();
    let report = Report {
        device: device.to_string(),
        device_name: device.name(),
        level,
        seed: args.seed,
        cases: rows.len(),
        failures,
        seconds: start.elapsed().as_secs_f64(),
        rows: &rows,
    };
    let json_on_stdout = args.json.as_ref().is_some_and(|path| path.as_os_str() == "-");
    if !json_on_stdout {
        println!("{}", table(&rows));
        summarise(&report);
    }
    if let Some(path) = &args.json {
        write_json(path, json_on_stdout, &report)?;
    }
    Ok(if failures == 0 && !rows.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The device of that name; `auto` is the first GPU, else the emulator, and says which.
fn open_device(name: &str) -> anyhow::Result<Device> {
    if name != "auto" {
        return name.parse().with_context(|| format!("opening device `{name}`"));
    }
    Ok(Device::cuda(0).unwrap_or_else(|error| {
        eprintln!("No GPU ({error}); the kernels run in the emulator.");
        Device::emulator()
    }))
}

fn progress_bar(cases: usize) -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {elapsed} {wide_msg}")
        .unwrap_or_else(|_| ProgressStyle::default_bar());
    let progress = ProgressBar::new(cases as u64).with_style(style);
    progress.enable_steady_tick(Duration::from_millis(200));
    progress
}

fn validate_linear(device: &Device, case: &LinearCase) -> Row {
    let start = Instant::now();
    let result = validate::linear(device, case);
    let seconds = start.elapsed().as_secs_f64();
    match result {
        Ok(outcome) => Row { note: note(&outcome), seconds, ..row_of(case, &outcome) },
        Err(error) => failed_row(case, seconds, error.to_string()),
    }
}

/// Runs a case on a GPU and in the emulator; the results must be the same bits.
fn compare_with_emulator(device: &Device, emulator: &Device, case: &LinearCase) -> Row {
    let start = Instant::now();
    let both = validate::linear_bits(device, case)
        .and_then(|ours| Ok((ours, validate::linear_bits(emulator, case)?)));
    let seconds = start.elapsed().as_secs_f64();
    match both {
        Ok((gpu, emulated)) => {
            let different = gpu.iter().zip(&emulated).filter(|(a, b)| a != b).count();
            Row {
                implementation: "GPU and emulator, bit by bit".into(),
                compared: gpu.len(),
                exact: true,
                passed: different == 0 && gpu.len() == emulated.len(),
                ..failed_row(case, seconds, format!("{different} elements differ"))
            }
        }
        Err(error) => failed_row(case, seconds, error.to_string()),
    }
}

fn row_of(case: &LinearCase, outcome: &Outcome) -> Row {
    Row {
        implementation: outcome.implementation.to_string(),
        max_absolute_error: outcome.max_absolute_error,
        max_relative_error: outcome.max_relative_error,
        bound: outcome.worst.map_or(0.0, |worst| worst.bound),
        ratio: outcome.worst_ratio(),
        compared: outcome.compared,
        exact: outcome.exact,
        passed: outcome.passed(),
        ..failed_row(case, 0.0, String::new())
    }
}

fn failed_row(case: &LinearCase, seconds: f64, note: String) -> Row {
    Row {
        operation: "linear",
        types: case.types(),
        shape: case.shape(),
        options: case.options(),
        implementation: String::new(),
        max_absolute_error: 0.0,
        max_relative_error: 0.0,
        bound: 0.0,
        ratio: 0.0,
        compared: 0,
        exact: false,
        seconds,
        passed: false,
        note,
    }
}

fn note(outcome: &Outcome) -> String {
    match (outcome.passed(), outcome.worst) {
        (true, _) => String::new(),
        (false, _) if outcome.stray_writes > 0 => {
            format!("{} elements beside the output were written", outcome.stray_writes)
        }
        (false, Some(worst)) => format!(
            "{} of {} elements; the worst is {} at [{}, {}], expected {} ± {:.3e}",
            outcome.failures,
            outcome.compared,
            worst.got,
            worst.row,
            worst.column,
            worst.expected,
            worst.bound
        ),
        (false, None) => "nothing was compared".into(),
    }
}

fn table(rows: &[Row]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED).set_header([
        "operation",
        "type",
        "M×K×N",
        "options",
        "max error",
        "relative",
        "bound there",
        "error/bound",
        "verdict",
    ]);
    for row in rows {
        let error = |value: f64| if value == 0.0 { "0".into() } else { format!("{value:.2e}") };
        let verdict = match (row.passed, row.exact) {
            (true, true) => Cell::new("exact").fg(Color::Green),
            (true, false) => Cell::new("ok").fg(Color::Green),
            (false, _) => Cell::new(format!("FAILED: {}", row.note)).fg(Color::Red),
        };
        table.add_row(vec![
            Cell::new(row.operation),
            Cell::new(&row.types),
            Cell::new(&row.shape),
            Cell::new(&row.options),
            Cell::new(error(row.max_absolute_error)),
            Cell::new(error(row.max_relative_error)),
            Cell::new(error(row.bound)),
            Cell::new(format!("{:.3}", row.ratio)),
            verdict,
        ]);
    }
    table
}

fn summarise(report: &Report<'_>) {
    let largest = report.rows.iter().filter(|row| row.passed).map(|row| row.ratio).fold(0.0, f64::max);
    println!(
        "{} of {} cases passed on {} ({}) in {:.1} s; the largest error is {:.2} of its bound",
        report.cases - report.failures,
        report.cases,
        report.device,
        report.device_name,
        report.seconds,
        largest
    );
    let mut kernels: Vec<_> = report.rows.iter().map(|row| kernel_of(&row.implementation)).collect();
    kernels.sort_unstable();
    kernels.dedup();
    kernels.retain(|kernel| !kernel.is_empty());
    println!("What ran: {}", kernels.join(", "));
}

/// The kernel that an implementation's description names, without the size of its launch.
fn kernel_of(implementation: &str) -> &str {
    implementation.split(',').next().unwrap_or_default().trim_start_matches("kernel ")
}

fn write_json(path: &PathBuf, on_stdout: bool, report: &Report<'_>) -> anyhow::Result<()> {
    let text = serde_json::to_string_pretty(report).context("writing the report as JSON")?;
    if on_stdout {
        writeln!(std::io::stdout(), "{text}").context("writing to standard output")
    } else {
        std::fs::write(path, text + "\n").with_context(|| format!("writing {}", path.display()))
    }
}
