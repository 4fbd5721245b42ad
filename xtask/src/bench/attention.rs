//! `xtask bench --operation attention`: beside the framework's kernels for attention, and a copy's bandwidth.
//!
//! The framework's samples alternate with ours: long attentions run at the power limit, whose clock depends on what ran before.

mod case;

use std::process::ExitCode;

use anyhow::{Result, bail};
use comfy_table::{Table, presets};
use serde::Serialize;
use warpsmith::DeviceKind;
use warpsmith_lab::benchmark::{self, AttentionSubject, Subject};

use super::clocks::{Mean, Monitor};
use super::draw::AttentionSizes;
use super::report::Verdict;
use super::rows::rounded;
use super::session::{Beside, Session};
use super::{Args, judged, microseconds, present, torch};
use crate::measurement::Measurement;
use crate::spread;
use case::{Case, Extra, cases, suite_name};

#[derive(Serialize)]
struct Request<'a> {
    precision: &'a str,
    #[serde(flatten)]
    sizes: AttentionSizes,
    extra: &'a str,
    /// Whether the gradients are measured, without the forward pass.
    backward: bool,
    window: Option<u32>,
    soft_cap: Option<f32>,
    lengths: &'a [usize],
    /// Of one set of operands.
    bytes: f64,
    /// The mode to compile in, if compiled variants are wanted.
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

    /// 10¹² operations a second.
    fn tflops(&self) -> f64 {
        self.flops / self.microseconds * 1e-6
    }

    fn measurements(&self, session: &Session) -> Vec<Measurement> {
        let state = self.state.map(|mean| mean.state);
        let row = Measurement {
            operation: self.case.operation(),
            dtype: self.case.dtype.to_string(),
            shape: self.case.shape("x"),
            variant: "chosen".into(),
            kernel: self.kernel.clone(),
            tflops: Some(rounded(self.tflops(), 1e3)),
            share: Some(rounded(self.share, 1e4)),
            bytes: Some(self.bytes),
            sm_clock_mhz: state.map(|state| rounded(state.clock, 1.0)),
            power_w: state.and_then(|state| state.power).map(|power| rounded(power, 1.0)),
            power_capped: state.and_then(|state| state.capped).map(|capped| rounded(capped, 1e2)),
            clock_samples: self.state.map(|mean| mean.samples),
            ..session.measurement(suite_name(self.case.suite))
        };
        row.timed(self.microseconds).beside_each(self.microseconds, &self.peers)
    }
}

pub(super) fn run(args: &Args) -> Result<ExitCode> {
    let cases = cases(args)?;
    if cases.is_empty() {
        bail!("nothing to measure: no attention is of these suites, types and sizes");
    }
    let mut session = Session::open(args, Some(torch::ATTENTION))?;
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
    let of_lab = case.to_lab();
    let AttentionSubject { mut operation, implementation, flops, bytes } = if case.is_backward() {
        benchmark::attention_backward_subject(&stream, &of_lab)?
    } else {
        benchmark::attention_subject(&stream, &of_lab)?
    };
    // Before the clock is watched: what loads a kernel is no part of its state.
    operation.enqueue(0)?;
    stream.synchronize()?;
    let has_options = !matches!(case.extra, Extra::None | Extra::Causal | Extra::Decode);
    let request = Request {
        precision: case.dtype.name(),
        sizes: AttentionSizes { causal: case.extra.is_causal(), ..case.sizes },
        extra: case.extra.name(),
        backward: case.is_backward(),
        window: case.extra.window(),
        soft_cap: case.extra.soft_cap(),
        lengths: case.extra.lengths(),
        bytes,
        compile: has_options.then_some(args.torch_compile.as_str()),
    };
    let mut subjects: [&mut dyn Subject; 1] = [&mut *operation];
    let Beside { timings, peers, state } = session.beside(&mut subjects, &request, clocks)?;
    let [timing] = timings[..] else { bail!("no time of {case}") };
    let row = Row {
        case: *case,
        kernel: implementation.to_string(),
        microseconds: microseconds(&timing),
        flops,
        bytes,
        share: bytes / session.bandwidth / timing.median.as_secs_f64(),
        peers,
        state,
    };
    let times: Vec<_> = row.peers.iter().map(|(name, time)| format!("{name} {time:.2}")).collect();
    eprintln!("  {:.2} µs, {:.0} TFLOP/s, {}", row.microseconds, row.tflops(), times.join(", "));
    Ok(row)
}

fn table(rows: &[Row]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED).set_header([
        "operation",
        "type",
        "B×H×S×D",
        "µs",
        "TFLOP/s",
        "of copy",
        "best baseline",
        "its µs",
        "/ ours",
        "MHz",
        "W",
        "ran",
    ]);
    let number = |value: Option<f64>, digits: usize| {
        value.map_or_else(|| "–".into(), |value| format!("{value:.digits$}"))
    };
    for row in rows {
        let (best, state) = (row.best(), row.state.map(|mean| mean.state));
        table.add_row([
            row.case.operation(),
            row.case.dtype.to_string(),
            row.case.shape("×"),
            format!("{:.2}", row.microseconds),
            format!("{:.1}", row.tflops()),
            format!("{:.0} %", row.share * 100.0),
            best.map_or_else(|| "–".into(), |(name, _)| name.clone()),
            number(best.map(|(_, time)| *time), 2),
            number(row.ratio(), 3),
            number(state.map(|state| state.clock), 0),
            number(state.and_then(|state| state.power), 0),
            row.kernel.clone(),
        ]);
    }
    table
}

/// Whether each case reaches its own goal.
fn verdicts(rows: &[Row]) -> Vec<Verdict> {
    let reached = rows.iter().filter_map(|row| {
        let (goal, ratio) = (row.case.goal?, row.ratio()?);
        Some((format!("{} (at least {goal})", row.case), ratio, ratio >= goal))
    });
    let goal = "every attention with a goal is so many times as fast as its best baseline".into();
    if rows.iter().all(|row| row.case.goal.is_none()) { Vec::new() } else { vec![judged(goal, reached)] }
}

#[cfg(test)]
mod tests {
    use warpsmith::DType;

    use super::case::{Case, Extra};
    use super::{Request, Row, verdicts};
    use crate::bench::draw::AttentionSizes;
    use crate::bench::suites::Suite;

    fn row(goal: Option<f64>, peers: &[f64]) -> Row {
        let sizes = AttentionSizes::equal([2, 4, 2, 8, 16]);
        Row {
            case: Case { suite: Suite::Main, dtype: DType::Bf16, sizes, extra: Extra::Causal, goal },
            kernel: "kernel".into(),
            microseconds: 10.0,
            flops: 4e7,
            bytes: 1.0,
            share: 0.5,
            peers: peers.iter().map(|&time| (format!("torch-{time}"), time)).collect(),
            state: None,
        }
    }

    #[test]
    fn each_case_is_judged_by_its_own_goal_and_its_best_peer() {
        let met = |rows: &[Row]| verdicts(rows).first().and_then(|verdict| verdict.met);
        assert!(verdicts(&[row(None, &[11.0])]).is_empty());
        assert_eq!(met(&[row(Some(1.1), &[])]), None);
        assert_eq!(met(&[row(Some(1.1), &[11.0, 30.0]), row(None, &[1.0])]), Some(true));
        assert_eq!(met(&[row(Some(1.15), &[30.0, 11.0])]), Some(false));
        assert_eq!(row(None, &[30.0, 11.0]).best().map(|(name, _)| name.as_str()), Some("torch-11"));
        assert_eq!(row(None, &[]).tflops(), 4.0);
    }

    #[test]
    fn a_request_says_every_size() {
        let request = Request {
            precision: "bf16",
            sizes: AttentionSizes::equal([2, 4, 2, 8, 16]),
            extra: "",
            backward: false,
            window: None,
            soft_cap: None,
            lengths: &[],
            bytes: 1.0,
            compile: None,
        };
        let said = serde_json::to_value(&request).expect("an object");
        for (name, value) in [("batch", 2), ("heads", 4), ("key_heads", 2), ("rows", 8), ("keys", 8)] {
            assert_eq!(said[name], value, "{name}");
        }
        assert_eq!((&said["width"], &said["causal"]), (&16.into(), &false.into()));
    }
}
