//! `xtask bench --operation rows`: norms and the like, beside the framework as it is and as it compiles, and a copy's bandwidth.

use std::fmt;
use std::process::ExitCode;

use anyhow::{Result, bail};
use comfy_table::{Table, presets};
use serde::Serialize;
use warpsmith::{DType, DeviceKind};
use warpsmith_lab::benchmark::{self, RowOperation, RowSubject, Subject};

use super::case::Precision;
use super::clocks::Monitor;
use super::report::Verdict;
use super::rows::rounded;
use super::session::{Beside, Session};
use super::suites::Suite;
use super::{Args, judged, microseconds, present, torch};
use crate::measurement::Measurement;
use crate::spread;

/// Rows and columns.
const SHAPES: [[usize; 2]; 5] = [[8192, 4096], [16384, 768], [4096, 16384], [64, 4096], [131_072, 128]];
/// Those of logits.
const LOGITS: [[usize; 2]; 2] = [[8192, 32_768], [4096, 128_256]];
/// From so many bytes on a copy's bandwidth is the measure.
const MANY_BYTES: f64 = (16 << 20) as f64;
/// What of it is to be reached.
const SHARE: f64 = 0.92;

#[derive(Serialize)]
struct Request<'a> {
    precision: &'a str,
    operation: &'a str,
    rows: usize,
    columns: usize,
    /// Of one set of operands.
    bytes: f64,
    /// The mode to compile in, if the compiled variant is wanted.
    compile: Option<&'a str>,
}

/// An operation, a type and a size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Case {
    suite: Suite,
    operation: RowOperation,
    dtype: DType,
    shape: [usize; 2],
}

impl fmt::Display for Case {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [rows, columns] = self.shape;
        write!(formatter, "{} {} {rows}×{columns}", self.operation.name(), self.dtype)
    }
}

/// One case, measured.
struct Row {
    case: Case,
    kernel: String,
    microseconds: f64,
    bytes: f64,
    /// The time that a copy's bandwidth takes for the bytes, as a share of ours.
    share: f64,
    /// Names and microseconds.
    peers: Vec<(String, f64)>,
}

impl Row {
    /// The fastest peer.
    fn best(&self) -> Option<&(String, f64)> {
        self.peers.iter().min_by(|a, b| a.1.total_cmp(&b.1))
    }

    /// How many times longer the best baseline takes.
    fn ratio(&self) -> Option<f64> {
        Some(self.best()?.1 / self.microseconds)
    }

    fn measurements(&self, session: &Session) -> Vec<Measurement> {
        let [rows, columns] = self.case.shape;
        let suite = if self.case.suite == Suite::Random { spread::ROWS } else { "rows" };
        let row = Measurement {
            operation: self.case.operation.name().into(),
            dtype: self.case.dtype.to_string(),
            shape: format!("{rows}x{columns}"),
            variant: "chosen".into(),
            kernel: self.kernel.clone(),
            share: Some(rounded(self.share, 1e4)),
            bytes: Some(self.bytes),
            ..session.measurement(suite)
        };
        row.timed(self.microseconds).beside_each(self.microseconds, &self.peers)
    }
}

/// The cases that the arguments leave.
fn cases(args: &Args) -> Vec<Case> {
    let is_wanted = |suite| args.suite.is_empty() && suite == Suite::Main || args.suite.contains(&suite);
    let types = match args.dtype[..] {
        [] => vec![DType::Bf16],
        _ => [DType::F16, DType::Bf16, DType::F32]
            .into_iter()
            .filter(|dtype| args.dtype.iter().any(|precision: &Precision| precision.name() == dtype.name()))
            .collect(),
    };
    let mut shapes = Vec::new();
    if is_wanted(Suite::Random) {
        shapes.extend(args.draw.row_shapes().into_iter().map(|shape| (Suite::Random, shape)));
    }
    let mut cases = Vec::new();
    for operation in RowOperation::ALL {
        let mut shapes = shapes.clone();
        if is_wanted(Suite::Main) {
            let of_suite = match operation {
                RowOperation::CrossEntropyTraining => &LOGITS[..],
                _ => &SHAPES[..],
            };
            shapes.extend(of_suite.iter().map(|&shape| (Suite::Main, shape)));
        }
        for &dtype in &types {
            let shapes = shapes.iter().filter(|(_, [_, columns])| operation.takes(*columns));
            cases.extend(shapes.map(|&(suite, shape)| Case { suite, operation, dtype, shape }));
        }
    }
    if let Some(filter) = &args.filter {
        let times = filter.replace('x', "×");
        cases.retain(|case| {
            let told = case.to_string();
            told.contains(filter) || told.contains(&times)
        });
    }
    cases
}

pub(super) fn run(args: &Args) -> Result<ExitCode> {
    let cases = cases(args);
    if cases.is_empty() {
        bail!("nothing to measure: no operation on rows is of these suites and types");
    }
    let mut session = Session::open(args, Some(torch::ROWS))?;
    let clocks = match session.device.kind() {
        DeviceKind::Cuda(gpu) => present("The clock", Monitor::open(gpu)),
        _ => None,
    };
    let measure = |session: &mut Session, case: &Case| measure(session, case, args, clocks.as_ref());
    let rows = session.measure(&cases, ToString::to_string, measure)?;
    let measurements: Vec<_> = rows.iter().flat_map(|row| row.measurements(&session)).collect();
    let mut all = verdicts(&rows);
    all.extend(spread::spreads(&measurements).into_iter().map(Verdict::of_spread));
    session.finish(&[table(&rows)], measurements, all)
}

fn measure(session: &mut Session, case: &Case, args: &Args, clocks: Option<&Monitor>) -> Result<Row> {
    let stream = session.device.default_stream();
    let Case { operation, dtype, shape, .. } = *case;
    let RowSubject { operation: mut subject, implementation, bytes } =
        benchmark::row_subject(&stream, operation, dtype, shape)?;
    stream.synchronize()?;
    let [rows, columns] = shape;
    let request = Request {
        precision: dtype.name(),
        operation: operation.name(),
        rows,
        columns,
        bytes,
        compile: Some(args.torch_compile.as_str()).filter(|_| !args.quick),
    };
    let mut subjects: [&mut dyn Subject; 1] = [&mut *subject];
    let Beside { timings, peers, .. } = session.beside(&mut subjects, &request, clocks)?;
    let [timing] = timings[..] else { bail!("no time of {case}") };
    let row = Row {
        case: *case,
        kernel: implementation.to_string(),
        microseconds: microseconds(&timing),
        bytes,
        share: bytes / session.bandwidth / timing.median.as_secs_f64(),
        peers,
    };
    let times: Vec<_> = row.peers.iter().map(|(name, time)| format!("{name} {time:.2}")).collect();
    eprintln!("  {:.2} µs, {:.0} % of a copy, {}", row.microseconds, row.share * 100.0, times.join(", "));
    Ok(row)
}

fn table(rows: &[Row]) -> Table {
    let mut table = Table::new();
    let header =
        ["operation", "type", "rows × columns", "µs", "of copy", "best baseline", "its µs", "/ ours", "ran"];
    table.load_style(presets::UTF8_FULL_CONDENSED).set_header(header);
    let number = |value: Option<f64>, digits: usize| {
        value.map_or_else(|| "–".into(), |value| format!("{value:.digits$}"))
    };
    for row in rows {
        let (best, [of_rows, columns]) = (row.best(), row.case.shape);
        table.add_row([
            row.case.operation.name().to_owned(),
            row.case.dtype.to_string(),
            format!("{of_rows}×{columns}"),
            format!("{:.2}", row.microseconds),
            format!("{:.0} %", row.share * 100.0),
            best.map_or_else(|| "–".into(), |(name, _)| name.clone()),
            number(best.map(|(_, time)| *time), 2),
            number(row.ratio(), 3),
            row.kernel.clone(),
        ]);
    }
    table
}

/// Whether the goals are met.
fn verdicts(rows: &[Row]) -> Vec<Verdict> {
    let many = rows.iter().filter(|row| row.bytes > MANY_BYTES);
    let of_copy = many.map(|row| (row.case.to_string(), row.share, row.share >= SHARE));
    let goal = format!("{:.0} % of a copy's bandwidth where more than 16 MiB move", SHARE * 100.0);
    vec![judged(goal, of_copy)]
}

#[cfg(test)]
mod tests {
    use warpsmith::DType;
    use warpsmith_lab::benchmark::RowOperation;

    use super::{Case, Row, verdicts};
    use crate::bench::suites::Suite;

    #[test]
    fn bandwidth_is_judged_where_much_moves() {
        let row = |bytes: f64, share: f64| Row {
            case: Case {
                suite: Suite::Main,
                operation: RowOperation::LayerNorm,
                dtype: DType::Bf16,
                shape: [2, 8],
            },
            kernel: "kernel".into(),
            microseconds: 10.0,
            bytes,
            share,
            peers: vec![("a".into(), 12.0), ("b".into(), 11.0)],
        };
        let met = |rows: &[Row]| verdicts(rows)[0].met;
        assert_eq!(met(&[row(1e3, 0.1)]), None);
        assert_eq!(met(&[row(1e3, 0.1), row(1e8, 0.93)]), Some(true));
        assert_eq!(met(&[row(1e8, 0.91)]), Some(false));
        assert_eq!(row(1.0, 1.0).ratio(), Some(1.1));
    }
}
