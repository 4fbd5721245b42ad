//! `xtask bench --operation update`: generated low-rank updates, with a linear layer and alone.
//!
//! The generated update is measured beside our own linear layer without it, of which its cost is a fraction. It is also
//! measured beside that layer followed by the update in a kernel of its own, and beside the framework's same sequence, eager
//! and compiled.

use std::process::ExitCode;

use anyhow::{Result, bail};
use comfy_table::{Table, presets};
use serde::Serialize;
use warpsmith::DType;
use warpsmith::ops::update::Way;
use warpsmith_lab::benchmark::{self, UpdateMeasurement};
use warpsmith_lab::cases::UpdateCase;

use super::case::Precision;
use super::report::Verdict;
use super::rows::rounded;
use super::session::Session;
use super::suites::Suite;
use super::{Args, judged, microseconds, torch};
use crate::measurement::Measurement;
use crate::spread;

/// M, K, N, R.
const SHAPES: [[usize; 4]; 5] = [
    [128, 768, 768, 8],
    [4096, 768, 768, 8],
    [16384, 768, 768, 8],
    [16384, 4096, 4096, 16],
    [16384, 4096, 4096, 64],
];
/// Of updates alone.
const ALONE: [[usize; 4]; 1] = [[16384, 768, 768, 8]];
/// The ranks of sizes that are asked for.
const RANKS: [usize; 2] = [8, 16];
const TYPES: [DType; 2] = [DType::F16, DType::Bf16];
/// The most that the generated update may cost, as a fraction of the linear layer: everywhere, and at the sizes that have a goal of their own.
const MOST: f64 = 0.15;
/// Columns of Y from which on it may cost less, as a fraction of the linear layer.
const WIDE: usize = 4096;
const WIDE_MOST: f64 = 0.07;
const GOALS: [([usize; 4], f64); 3] =
    [([16384, 768, 768, 8], 0.07), ([16384, 4096, 4096, 16], 0.03), ([16384, 4096, 4096, 64], 0.05)];
/// The share of a copy's bandwidth that an update alone is to reach: of the framework's elementwise copy of the same size, where there is one, else of
/// a large one.
const SHARE: f64 = 0.9;
const COPY: &str = "torch-copy";
/// The name of our own linear layer among the baselines, and of the sequence of two kernels.
const BASE: &str = "warpsmith-base";
const SEQUENCE: &str = "warpsmith-sequence";

#[derive(Serialize)]
struct Request<'a> {
    precision: &'a str,
    m: usize,
    k: usize,
    n: usize,
    rank: usize,
    linear: bool,
    scaling: f32,
    compile: Option<&'a str>,
}

/// One case, measured.
struct Row {
    case: UpdateCase,
    kernel: String,
    microseconds: f64,
    flops: f64,
    bytes: f64,
    overhead: Option<f64>,
    /// What a copy's bandwidth and the product's rate allow at least, as a share of the time.
    share: f64,
    /// Names and microseconds.
    peers: Vec<(String, f64)>,
}

impl Row {
    fn new(
        case: UpdateCase,
        measured: &UpdateMeasurement,
        bandwidth: f64,
        torch: Vec<(String, f64)>,
    ) -> Self {
        let timing = |name: &str, timing: Option<benchmark::Timing>| {
            timing.map(|timing| (name.to_owned(), microseconds(&timing)))
        };
        let ours = [timing(BASE, measured.base), timing(SEQUENCE, measured.unfused)];
        Self {
            case,
            kernel: measured.implementation.to_string(),
            microseconds: microseconds(&measured.timing),
            flops: measured.flops,
            bytes: measured.bytes,
            overhead: measured.overhead(),
            share: measured.bytes / bandwidth / measured.timing.median.as_secs_f64(),
            peers: ours.into_iter().flatten().chain(torch).collect(),
        }
    }

    fn shape(&self) -> [usize; 4] {
        [self.case.m, self.case.k, self.case.n, self.case.rank()]
    }

    fn label(&self) -> String {
        let [m, k, n, rank] = self.shape();
        format!("{} {} {m}×{k}×{n} R={rank}", self.case.operation(), self.case.dtype)
    }

    /// How many times longer a peer takes.
    fn ratio(&self, name: &str) -> Option<f64> {
        let peer = self.peers.iter().find(|(peer, _)| peer == name)?;
        Some(peer.1 / self.microseconds)
    }

    fn measurements(&self, session: &Session, suite: &str) -> Vec<Measurement> {
        let [m, k, n, rank] = self.shape();
        let seconds = self.microseconds * 1e-6;
        let row = Measurement {
            operation: self.case.operation().replace('_', " "),
            dtype: self.case.dtype.to_string(),
            shape: format!("{m}x{k}x{n}x{rank}"),
            variant: "chosen".into(),
            kernel: self.kernel.clone(),
            tflops: Some(rounded(self.flops / seconds * 1e-12, 1e3)),
            share: Some(rounded(self.share, 1e4)),
            bytes: Some(self.bytes),
            overhead: self.overhead.map(|overhead| rounded(overhead, 1e4)),
            ..session.measurement(suite)
        };
        row.timed(self.microseconds).beside_each(self.microseconds, &self.peers)
    }
}

/// The cases that the arguments leave.
fn cases(args: &Args) -> Vec<UpdateCase> {
    let mut cases = Vec::new();
    for dtype in TYPES {
        let case = |[m, k, n, rank]: [usize; 4]| UpdateCase::new(dtype, m, k, n, rank);
        if args.suite.contains(&Suite::Random) {
            let drawn = args.draw.updates();
            cases.extend(drawn.iter().map(|&shape| case(shape)));
            cases.extend(drawn.iter().map(|&shape| case(shape).alone(false)));
        } else if args.shape.is_empty() {
            cases.extend(SHAPES.map(case));
            cases.extend(ALONE.map(|shape| case(shape).alone(false)));
        }
        for [m, k, n] in &args.shape {
            cases.extend(RANKS.map(|rank| case([*m, *k, *n, rank])));
        }
    }
    let wanted = |case: &UpdateCase| {
        let name = format!("{} {} {}", case.operation(), case.dtype, case.shape());
        let of_type = |precision: &Precision| precision.name() == case.dtype.name();
        args.filter.as_ref().is_none_or(|filter| name.contains(&filter.replace('x', "×")))
            && (args.dtype.is_empty() || args.dtype.iter().any(of_type))
    };
    cases.retain(wanted);
    cases
}

pub(super) fn run(args: &Args) -> Result<ExitCode> {
    let cases = cases(args);
    if cases.is_empty() {
        bail!("nothing to measure: no update is of these types and sizes");
    }
    let mut session = Session::open(args, Some(torch::UPDATE))?;
    let name = |case: &UpdateCase| format!("{} {} {}", case.operation(), case.dtype, case.shape());
    let rows = session.measure(&cases, name, |session, case| measure(session, case, args))?;
    let suite = if args.suite.contains(&Suite::Random) { spread::UPDATES } else { "update" };
    let measurements: Vec<_> = rows.iter().flat_map(|row| row.measurements(&session, suite)).collect();
    let mut all = verdicts(&rows);
    all.extend(spread::spreads(&measurements).into_iter().map(Verdict::of_spread));
    session.finish(&[table(&rows)], measurements, all)
}

fn measure(session: &mut Session, case: &UpdateCase, args: &Args) -> Result<Row> {
    let measured = benchmark::generated_update(&session.device, case, &session.options)?;
    // The framework's process needs the memory.
    session.device.release_memory()?;
    let peers = session.framework(&Request {
        precision: case.dtype.name(),
        m: case.m,
        k: case.k,
        n: case.n,
        rank: case.rank(),
        linear: case.linear,
        scaling: case.scaling,
        // Compiling takes longer than measuring.
        compile: (!args.suite.contains(&Suite::Random)).then_some(args.torch_compile.as_str()),
    });
    let mut row = Row::new(case.clone(), &measured, session.bandwidth, peers);
    if args.variants {
        let ways = benchmark::ways_of_update(&session.device, case, &session.options)?;
        let name = |way: Option<_>| way.map_or_else(|| "chosen".into(), |way: Way| way.to_string());
        row.peers.extend(
            ways.iter().map(|(way, timing)| (format!("warpsmith-{}", name(*way)), microseconds(timing))),
        );
    }
    let times: Vec<_> = row.peers.iter().map(|(name, time)| format!("{name} {time:.2}")).collect();
    eprintln!("  {:.2} µs, {}", row.microseconds, times.join(", "));
    Ok(row)
}

fn table(rows: &[Row]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED).set_header([
        "operation",
        "type",
        "M×K×N, R",
        "µs",
        "overhead",
        "of copy",
        "sequence / ours",
        "eager / ours",
        "compiled / ours",
        "ran",
    ]);
    let number = |value: Option<f64>| value.map_or_else(|| "–".into(), |value| format!("{value:.3}"));
    for row in rows {
        let overhead = row.overhead.map(|overhead| format!("{:.1} %", overhead * 100.0));
        table.add_row([
            row.case.operation().replace('_', " "),
            row.case.dtype.to_string(),
            row.case.shape(),
            format!("{:.2}", row.microseconds),
            overhead.unwrap_or_else(|| "–".into()),
            format!("{:.0} %", row.share * 100.0),
            number(row.ratio(SEQUENCE)),
            number(row.ratio("torch-eager")),
            number(row.ratio("torch-compiled")),
            row.kernel.clone(),
        ]);
    }
    table
}

/// Whether the goals are met.
fn verdicts(rows: &[Row]) -> Vec<Verdict> {
    let bolted: Vec<_> = rows.iter().filter_map(|row| Some((row, row.overhead?))).collect();
    let mut verdicts = vec![judged(
        format!("every bolt-on costs less than {:.0} % of the linear layer", MOST * 100.0),
        bolted.iter().map(|(row, overhead)| (row.label(), *overhead, *overhead < MOST)),
    )];
    let wide = bolted.iter().filter(|(row, _)| row.case.n >= WIDE);
    verdicts.push(judged(
        format!("from {WIDE} columns of Y on it costs at most {:.0} %", WIDE_MOST * 100.0),
        wide.map(|(row, overhead)| (row.label(), *overhead, *overhead <= WIDE_MOST)),
    ));
    for (shape, most) in GOALS {
        let [m, k, n, rank] = shape;
        let of_shape = bolted.iter().filter(|(row, _)| row.shape() == shape);
        verdicts.push(judged(
            format!("at {m}×{k}×{n} R={rank} it costs at most {:.0} %", most * 100.0),
            of_shape.map(|(row, overhead)| (row.label(), *overhead, *overhead <= most)),
        ));
    }
    let faster = rows.iter().flat_map(|row| {
        ["torch-eager", "torch-compiled"].into_iter().filter_map(|name| {
            let ratio = row.ratio(name)?;
            Some((format!("{} of {name}", row.label()), ratio, ratio > 1.0))
        })
    });
    verdicts.push(judged("always faster than the framework".into(), faster));
    let alone = rows.iter().filter(|row| !row.case.linear);
    verdicts.push(judged(
        format!("an update alone reaches {:.0} % of a copy's bandwidth", SHARE * 100.0),
        alone.map(|row| {
            let share = row.ratio(COPY).unwrap_or(row.share);
            (row.label(), share, share >= SHARE)
        }),
    ));
    verdicts
}

#[cfg(test)]
mod tests {
    use warpsmith::DType;
    use warpsmith_lab::cases::UpdateCase;

    use super::{COPY, Row, SEQUENCE, verdicts};

    fn row(shape: [usize; 4], overhead: Option<f64>, share: f64, eager: f64) -> Row {
        let [m, k, n, rank] = shape;
        let case = UpdateCase::new(DType::Bf16, m, k, n, rank);
        Row {
            case: if overhead.is_some() { case } else { case.alone(false) },
            kernel: "kernel".into(),
            microseconds: 10.0,
            flops: 1.0,
            bytes: 1.0,
            overhead,
            share,
            peers: vec![(SEQUENCE.into(), 15.0), ("torch-eager".into(), eager)],
        }
    }

    #[test]
    fn each_goal_is_judged_by_its_own_rows() {
        let met = |rows: &[Row]| verdicts(rows).into_iter().map(|verdict| verdict.met).collect::<Vec<_>>();
        assert_eq!(met(&[]), [None; 7]);
        let large = [16384, 768, 768, 8];
        let rows = [row(large, Some(0.08), 0.5, 20.0), row(large, None, 0.95, 30.0)];
        assert_eq!(met(&rows), [Some(true), None, Some(false), None, None, Some(true), Some(true)]);
        let rows = [row([128, 768, 768, 8], Some(0.2), 0.5, 9.0), row(large, None, 0.85, 30.0)];
        assert_eq!(met(&rows), [Some(false), None, None, None, None, Some(false), Some(false)]);
        let mut beside_a_copy = row(large, None, 0.85, 30.0);
        beside_a_copy.peers.push((COPY.into(), 9.1));
        assert_eq!(met(&[beside_a_copy])[6], Some(true));
    }

    #[test]
    fn a_row_says_how_it_stands_to_the_sequence() {
        let row = row([1, 2, 3, 4], Some(0.1), 0.5, 9.0);
        assert_eq!(row.ratio(SEQUENCE), Some(1.5));
        assert_eq!(row.ratio("nobody"), None);
    }
}
