//! `xtask bench --operation training`: layers with their gradients, optimiser steps and whole steps of networks, beside the framework as it is and as it
//! compiles.

mod case;

use std::process::ExitCode;

use anyhow::{Result, bail};
use comfy_table::{Table, presets};
use serde::Serialize;
use warpsmith::DeviceKind;
use warpsmith_lab::benchmark::{self, Subject, TrainingSubject};

use super::clocks::{Mean, Monitor};
use super::report::Verdict;
use super::rows::rounded;
use super::session::{Beside, Session};
use super::suites::Suite;
use super::{Args, judged, microseconds, present, torch};
use crate::goals::training::{Goal, OPTIMIZER, goal};
use crate::measurement::Measurement;
use crate::spread;
use case::{Case, cases};

#[derive(Serialize)]
struct Request<'a> {
    precision: &'a str,
    /// `linear`, `adamw` or `mlp`.
    work: &'a str,
    activation: &'a str,
    /// M, K and N; the lengths of vectors; or rows and widths.
    shape: Vec<usize>,
    /// Of one set of operands.
    bytes: f64,
    /// The mode to compile in, if the compiled variant is wanted.
    compile: Option<&'a str>,
}

/// One case, measured.
struct Row {
    case: Case,
    kernel: String,
    microseconds: f64,
    flops: f64,
    bytes: f64,
    /// The time that a copy's bandwidth takes for the bytes, as a share of ours.
    share: f64,
    /// Names and microseconds.
    peers: Vec<(String, f64)>,
    /// What the GPU was at meanwhile, if that is known.
    state: Option<Mean>,
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

    /// 10¹² operations a second of products, if there are any.
    fn tflops(&self) -> Option<f64> {
        (self.flops > 0.0).then(|| self.flops / self.microseconds * 1e-6)
    }

    /// What is asked; of drawn sizes nothing is asked one by one.
    fn goal(&self) -> Option<Goal> {
        let Case { suite, dtype, .. } = &self.case;
        if *suite == Suite::Random {
            return None;
        }
        goal(&self.case.operation(), dtype.name(), &self.case.shape("x"))
    }

    fn measurements(&self, session: &Session) -> Vec<Measurement> {
        let state = self.state.map(|mean| mean.state);
        let suite = if self.case.suite == Suite::Random { spread::TRAINING } else { "training" };
        let row = Measurement {
            operation: self.case.operation(),
            dtype: self.case.dtype.to_string(),
            shape: self.case.shape("x"),
            variant: "chosen".into(),
            kernel: self.kernel.clone(),
            tflops: self.tflops().map(|tflops| rounded(tflops, 1e3)),
            share: Some(rounded(self.share, 1e4)),
            bytes: Some(self.bytes),
            sm_clock_mhz: state.map(|state| rounded(state.clock, 1.0)),
            power_w: state.and_then(|state| state.power).map(|power| rounded(power, 1.0)),
            power_capped: state.and_then(|state| state.capped).map(|capped| rounded(capped, 1e2)),
            clock_samples: self.state.map(|mean| mean.samples),
            ..session.measurement(suite)
        };
        row.timed(self.microseconds).beside_each(self.microseconds, &self.peers)
    }
}

pub(super) fn run(args: &Args) -> Result<ExitCode> {
    let cases = cases(args);
    if cases.is_empty() {
        bail!("nothing to measure: no training is of these suites, types and sizes");
    }
    let mut session = Session::open(args, Some(torch::TRAINING))?;
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

fn request<'a>(case: &'a Case, bytes: f64, compile: Option<&'a str>) -> Request<'a> {
    Request {
        precision: case.dtype.name(),
        work: case.work_name(),
        activation: case.activation(),
        shape: case.numbers(),
        bytes,
        compile,
    }
}

fn measure(session: &mut Session, case: &Case, args: &Args, clocks: Option<&Monitor>) -> Result<Row> {
    let stream = session.device.default_stream();
    let TrainingSubject { mut operation, implementation, flops, bytes } =
        benchmark::training_subject(&stream, &case.work, case.dtype)?;
    // Before the clock is watched: what loads a kernel is no part of its state.
    operation.enqueue(0)?;
    stream.synchronize()?;
    let request = request(case, bytes, Some(args.torch_compile.as_str()).filter(|_| !args.quick));
    let mut subjects: [&mut dyn Subject; 1] = [&mut *operation];
    let Beside { timings, peers, state } = session.beside(&mut subjects, &request, clocks)?;
    let [timing] = timings[..] else { bail!("no time of {case}") };
    let row = Row {
        case: case.clone(),
        kernel: implementation.to_string(),
        microseconds: microseconds(&timing),
        flops,
        bytes,
        share: bytes / session.bandwidth / timing.median.as_secs_f64(),
        peers,
        state,
    };
    let times: Vec<_> = row.peers.iter().map(|(name, time)| format!("{name} {time:.2}")).collect();
    let rate = number(row.tflops(), 0);
    let of_copy = row.share * 100.0;
    eprintln!("  {:.2} µs, {rate} TFLOP/s, {of_copy:.0} % of a copy, {}", row.microseconds, times.join(", "));
    Ok(row)
}

fn number(value: Option<f64>, digits: usize) -> String {
    value.map_or_else(|| "–".into(), |value| format!("{value:.digits$}"))
}

fn table(rows: &[Row]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED).set_header([
        "operation",
        "type",
        "size",
        "µs",
        "TFLOP/s",
        "of copy",
        "best baseline",
        "its µs",
        "/ ours",
        "goal",
        "MHz",
        "W",
        "ran",
    ]);
    for row in rows {
        let (best, state) = (row.best(), row.state.map(|mean| mean.state));
        table.add_row([
            row.case.operation(),
            row.case.dtype.to_string(),
            row.case.shape("×"),
            format!("{:.2}", row.microseconds),
            number(row.tflops(), 1),
            format!("{:.0} %", row.share * 100.0),
            best.map_or_else(|| "–".into(), |(name, _)| name.clone()),
            number(best.map(|(_, time)| *time), 2),
            number(row.ratio(), 3),
            row.goal().map_or_else(|| "–".into(), |goal| goal.to_string()),
            number(state.map(|state| state.clock), 0),
            number(state.and_then(|state| state.power), 0),
            row.kernel.clone(),
        ]);
    }
    table
}

/// Whether each case reaches its own goal: those beside a peer, and those beside a copy, where there are any.
fn verdicts(rows: &[Row]) -> Vec<Verdict> {
    let (optimizers, others): (Vec<_>, Vec<_>) = rows
        .iter()
        .filter_map(|row| Some((row, row.goal()?)))
        .partition(|(row, _)| row.case.operation() == OPTIMIZER);
    let verdict = |text: &str, rows: Vec<(&Row, Goal)>| {
        let told = rows.iter().filter_map(|(row, goal)| {
            let (measured, reached) =
                (goal.measured(row.ratio(), Some(row.share))?, goal.reached(row.ratio(), Some(row.share))?);
            Some((format!("{} (at least {goal})", row.case), measured, reached))
        });
        (!rows.is_empty()).then(|| judged(text.to_owned(), told))
    };
    let beside_peers = "every layer and network with a goal is so many times as fast as its best baseline";
    let of_copy = "steps of the optimiser reach their share of a copy's bandwidth";
    [verdict(beside_peers, others), verdict(of_copy, optimizers)].into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use warpsmith::DType;
    use warpsmith::ops::Activation;
    use warpsmith_lab::benchmark::TrainingWork;

    use super::case::Case;
    use super::{Row, request, verdicts};
    use crate::bench::suites::Suite;

    fn row(suite: Suite, work: TrainingWork, dtype: DType, share: f64, peers: &[f64]) -> Row {
        Row {
            case: Case { suite, work, dtype },
            kernel: "kernel".into(),
            microseconds: 10.0,
            flops: 4e7,
            bytes: 1.0,
            share,
            peers: peers.iter().map(|&time| (format!("torch-{time}"), time)).collect(),
            state: None,
        }
    }

    fn linear(shape: [usize; 3]) -> TrainingWork {
        TrainingWork::Linear { activation: Activation::Relu, shape }
    }

    #[test]
    fn each_case_is_judged_by_its_own_goal() {
        let met = |rows: &[Row]| verdicts(rows).iter().map(|verdict| verdict.met).collect::<Vec<_>>();
        let layer = |shape, peers: &[f64]| row(Suite::Main, linear(shape), DType::Bf16, 0.1, peers);
        let goal = [1024, 784, 2048];
        assert!(met(&[layer([1, 2, 3], &[20.0])]).is_empty());
        assert_eq!(met(&[layer(goal, &[])]), [None]);
        assert_eq!(met(&[layer(goal, &[30.0, 15.0]), layer([1, 2, 3], &[1.0])]), [Some(true)]);
        assert_eq!(met(&[layer(goal, &[30.0, 14.9])]), [Some(false)]);
        assert!(met(&[row(Suite::Random, linear(goal), DType::Bf16, 0.1, &[1.0])]).is_empty());
        let adamw = |share| {
            let work = TrainingWork::AdamW { lengths: vec![1 << 27] };
            row(Suite::Main, work, DType::F32, share, &[1.0])
        };
        assert_eq!(met(&[adamw(0.93)]), [Some(true)]);
        assert_eq!(met(&[layer(goal, &[15.0]), adamw(0.91)]), [Some(true), Some(false)]);
    }

    #[test]
    fn a_request_says_every_size() {
        let said = |work| {
            let case = Case { suite: Suite::Main, work, dtype: DType::Bf16 };
            serde_json::to_value(request(&case, 8.0, Some("default"))).expect("an object")
        };
        let layer = said(linear([2, 3, 5]));
        assert_eq!((&layer["work"], &layer["activation"]), (&"linear".into(), &"relu".into()));
        assert_eq!((&layer["shape"], &layer["precision"]), (&vec![2, 3, 5].into(), &"bf16".into()));
        let network = said(TrainingWork::Mlp { batch: 7, widths: vec![4, 9, 2] });
        assert_eq!((&network["work"], &network["shape"]), (&"mlp".into(), &vec![7, 4, 9, 2].into()));
        let steps = said(TrainingWork::AdamW { lengths: vec![6, 1] });
        assert_eq!((&steps["work"], &steps["shape"]), (&"adamw".into(), &vec![6, 1].into()));
    }
}
