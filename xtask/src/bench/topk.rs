//! `xtask bench --operation topk`: top-k, beside the framework's selection and a copy's bandwidth.

use std::process::ExitCode;

use anyhow::{Result, bail};
use comfy_table::{Table, presets};
use serde::Serialize;
use warpsmith::DType;
use warpsmith_lab::benchmark;
use warpsmith_lab::cases::{Data, TopkCase};

use super::case::Precision;
use super::report::Verdict;
use super::rows::rounded;
use super::session::Session;
use super::{Args, judged, microseconds, torch};
use crate::measurement::Measurement;

/// Rows, columns, k: scores of routing to experts, of one sentence and of many; a vocabulary's logits, of few tokens and of many; one long
/// row; many short ones.
const SHAPES: [[usize; 3]; 8] = [
    [256, 1024, 16],
    [32768, 1024, 16],
    [1, 131_072, 50],
    [64, 131_072, 50],
    [4096, 32_000, 50],
    [1, 1 << 24, 64],
    [65536, 256, 8],
    [8192, 4096, 32],
];
const TYPES: [DType; 2] = [DType::Bf16, DType::F32];

#[derive(Serialize)]
struct Request<'a> {
    precision: &'a str,
    rows: usize,
    columns: usize,
    k: usize,
}

/// One case, measured.
struct Row {
    case: TopkCase,
    kernel: String,
    microseconds: f64,
    bytes: f64,
    /// The time that a copy's bandwidth takes for the bytes, as a share of ours.
    share: f64,
    /// Names and microseconds.
    peers: Vec<(String, f64)>,
}

fn label(case: &TopkCase) -> String {
    format!("topk {} {}", case.dtype, case.shape())
}

impl Row {
    /// How many times longer the best baseline takes.
    fn ratio(&self) -> Option<f64> {
        let best = self.peers.iter().map(|(_, time)| *time).min_by(f64::total_cmp)?;
        Some(best / self.microseconds)
    }

    fn measurements(&self, session: &Session) -> Vec<Measurement> {
        let TopkCase { rows, columns, k, .. } = self.case;
        let row = Measurement {
            operation: "topk".into(),
            dtype: self.case.dtype.to_string(),
            shape: format!("{rows}x{columns} k={k}"),
            variant: "chosen".into(),
            kernel: self.kernel.clone(),
            share: Some(rounded(self.share, 1e4)),
            bytes: Some(self.bytes),
            ..session.measurement("topk")
        };
        row.timed(self.microseconds).beside_each(self.microseconds, &self.peers)
    }
}

/// The cases that the arguments leave.
fn cases(args: &Args) -> Vec<TopkCase> {
    let case = |dtype, [rows, columns, k]: [usize; 3]| TopkCase {
        dtype,
        rows,
        columns,
        k,
        data: Data::Uniform,
        seed: 1,
    };
    let mut cases: Vec<_> =
        TYPES.into_iter().flat_map(|dtype| SHAPES.map(|shape| case(dtype, shape))).collect();
    let wanted = |case: &TopkCase| {
        let of_type = |precision: &Precision| precision.name() == case.dtype.name();
        args.filter.as_ref().is_none_or(|filter| label(case).contains(&filter.replace('x', "×")))
            && (args.dtype.is_empty() || args.dtype.iter().any(of_type))
            && (args.shape.is_empty() || args.shape.contains(&[case.rows, case.columns, case.k]))
    };
    cases.retain(wanted);
    cases
}

pub(super) fn run(args: &Args) -> Result<ExitCode> {
    let cases = cases(args);
    if cases.is_empty() {
        bail!("nothing to measure: no selection is of these types and sizes");
    }
    let mut session = Session::open(args, Some(torch::TOPK))?;
    let rows = session.measure(&cases, label, measure)?;
    let measurements = rows.iter().flat_map(|row| row.measurements(&session));
    session.finish(&[table(&rows)], measurements, verdicts(&rows))
}

fn measure(session: &mut Session, case: &TopkCase) -> Result<Row> {
    let measured = benchmark::topk(&session.device, case, &session.options)?;
    // The framework's process needs the memory.
    session.device.release_memory()?;
    let TopkCase { rows, columns, k, .. } = *case;
    let peers = session.framework(&Request { precision: case.dtype.name(), rows, columns, k });
    let row = Row {
        case: *case,
        kernel: measured.implementation.to_string(),
        microseconds: microseconds(&measured.timing),
        bytes: measured.bytes,
        share: measured.bytes / session.bandwidth / measured.timing.median.as_secs_f64(),
        peers,
    };
    let times: Vec<_> = row.peers.iter().map(|(name, time)| format!("{name} {time:.2}")).collect();
    eprintln!("  {:.2} µs, {}", row.microseconds, times.join(", "));
    Ok(row)
}

fn table(rows: &[Row]) -> Table {
    let mut table = Table::new();
    let header = ["type", "rows × columns, k", "µs", "of copy", "best baseline / ours", "ran"];
    table.load_style(presets::UTF8_FULL_CONDENSED).set_header(header);
    for row in rows {
        table.add_row([
            row.case.dtype.to_string(),
            row.case.shape(),
            format!("{:.2}", row.microseconds),
            format!("{:.0} %", row.share * 100.0),
            row.ratio().map_or_else(|| "–".into(), |ratio| format!("{ratio:.2}")),
            row.kernel.clone(),
        ]);
    }
    table
}

/// Whether the goal is met.
fn verdicts(rows: &[Row]) -> Vec<Verdict> {
    let ratios = rows.iter().filter_map(|row| Some((label(&row.case), row.ratio()?)));
    let goal = "every selection is faster than the framework's".into();
    vec![judged(goal, ratios.map(|(label, ratio)| (label, ratio, ratio > 1.0)))]
}

#[cfg(test)]
mod tests {
    use warpsmith::DType;
    use warpsmith_lab::cases::{Data, TopkCase};

    use super::{Row, verdicts};

    #[test]
    fn the_goal_is_judged_by_the_best_peer_of_every_row() {
        let case = TopkCase { dtype: DType::F32, rows: 2, columns: 9, k: 3, data: Data::Uniform, seed: 1 };
        let row = |peers: &[f64]| Row {
            case,
            kernel: "kernel".into(),
            microseconds: 10.0,
            bytes: 1.0,
            share: 0.5,
            peers: peers.iter().map(|&time| ("peer".into(), time)).collect(),
        };
        let met = |rows: &[Row]| verdicts(rows)[0].met;
        assert_eq!(met(&[row(&[])]), None);
        assert_eq!(met(&[row(&[11.0]), row(&[30.0, 12.0])]), Some(true));
        assert_eq!(met(&[row(&[11.0]), row(&[30.0, 9.0])]), Some(false));
    }
}
