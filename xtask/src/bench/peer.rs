//! `xtask bench --operation peer`: PEER layers, beside the framework's ways to compute them.
//!
//! A layer is measured whole, and so is its routing. Where experts are not quantised it is measured with its gradients, too, and so is a step of AdamW by these: that
//! moves the rows in use, and its limit is what it has to read and write. The limit is the time that a copy's bandwidth takes for the rows of the
//! experts that tokens use. Each use counted, as if no row were read twice for one read of memory, and each row once, as if all
//! were. Experts in
//! host memory are measured last, by the share of them that is resident.

use std::process::ExitCode;

use anyhow::{Result, bail};
use comfy_table::{Table, presets};
use serde::Serialize;
use warpsmith::ops::peer::ExpertFormat;
use warpsmith_lab::benchmark::{self, PeerMeasurement, Timing};
use warpsmith_lab::cases::PeerSizes;

use super::report::Verdict;
use super::rows::rounded;
use super::session::Session;
use super::{Args, judged, microseconds, profile, residency, torch};
use crate::measurement::Measurement;

/// Tokens.
const TOKENS: [usize; 5] = [1, 16, 256, 2048, 16384];
/// Formats of rows that are measured beside bf16, with bf16 tokens.
const QUANTISED: [ExpertFormat; 3] = [ExpertFormat::Int8, ExpertFormat::Int4, ExpertFormat::F8E4M3];
/// How many times longer the best baseline is to take: tokens, the ratio.
const GOALS: [(usize, f64); 3] = [(1, 4.0), (256, 5.0), (2048, 5.0)];
/// The same of the layer with its gradients.
const TRAINING_GOALS: [(usize, f64); 2] = [(256, 5.0), (2048, 5.0)];
/// The same of the routing alone.
const ROUTING_GOAL: (usize, f64) = (2048, 5.0);

#[derive(Serialize)]
struct Request<'a> {
    part: &'a str,
    precision: &'a str,
    tokens: usize,
    input: usize,
    output: usize,
    heads: usize,
    top_k: usize,
    query: usize,
    sub_keys: usize,
}

/// A part of a layer, measured.
struct Row {
    sizes: PeerSizes,
    part: Part,
    kernel: String,
    microseconds: f64,
    flops: f64,
    /// Bytes of rows, counted for each use and once, and what share of the time a copy takes for them. Of the optimiser, what it has to read and write.
    bytes: [f64; 2],
    shares: [f64; 2],
    /// Names and microseconds.
    peers: Vec<(String, f64)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Layer,
    Routing,
    Experts,
    Training,
    Optimizer,
}

impl Part {
    fn operation(self) -> &'static str {
        match self {
            Self::Layer => "peer",
            Self::Routing => "peer routing",
            Self::Experts => "peer experts",
            Self::Training => "peer training",
            Self::Optimizer => "peer optimizer",
        }
    }
}

impl Row {
    /// None if the part has not been measured.
    fn new(sizes: PeerSizes, part: Part, measured: &PeerMeasurement, bandwidth: f64) -> Option<Self> {
        let [routing, experts] = &measured.implementations;
        let (timing, kernel): (&Timing, String) = match part {
            Part::Layer if measured.in_parts => {
                (&measured.layer, format!("{routing}; {experts}; two parts at the same time"))
            }
            Part::Layer => (&measured.layer, format!("{routing}; {experts}")),
            Part::Routing => (&measured.routing, routing.to_string()),
            Part::Experts => (&measured.experts, experts.to_string()),
            Part::Training => {
                let [of_experts, of_retrieval] = measured.gradients.as_ref()?;
                let kernels = format!("{routing}; {experts}; {of_experts}; {of_retrieval}");
                (measured.training.as_ref()?, kernels)
            }
            Part::Optimizer => {
                let (timing, ran, _) = measured.optimizer.as_ref()?;
                (timing, ran.to_string())
            }
        };
        let bytes = match (part, &measured.optimizer) {
            (Part::Layer | Part::Experts, _) => [measured.gathered, measured.distinct],
            (Part::Optimizer, Some((_, _, bytes))) => [*bytes, 0.0],
            _ => [0.0; 2],
        };
        Some(Self {
            sizes,
            part,
            kernel,
            microseconds: microseconds(timing),
            flops: sizes.flops(),
            bytes,
            shares: bytes.map(|bytes| bytes / bandwidth / timing.median.as_secs_f64()),
            peers: Vec::new(),
        })
    }

    fn label(&self) -> String {
        format!("{} {} T={}", self.part.operation(), self.sizes.format, self.sizes.tokens)
    }

    /// How many times longer the best baseline takes.
    fn ratio(&self) -> Option<f64> {
        let best = self.peers.iter().map(|(_, time)| *time).min_by(f64::total_cmp)?;
        Some(best / self.microseconds)
    }

    fn measurements(&self, session: &Session) -> Vec<Measurement> {
        let seconds = self.microseconds * 1e-6;
        let of = |variant: String, bytes: f64, share: f64| {
            let row = Measurement {
                operation: self.part.operation().into(),
                dtype: self.sizes.dtype.to_string(),
                shape: format!("T={}", self.sizes.tokens),
                variant,
                kernel: self.kernel.clone(),
                tflops: (self.part == Part::Layer).then(|| rounded(self.flops / seconds * 1e-12, 1e3)),
                share: (bytes > 0.0).then(|| rounded(share, 1e4)),
                bytes: (bytes > 0.0).then_some(bytes),
                ..session.measurement("peer")
            };
            row.timed(self.microseconds)
        };
        let format = self.sizes.format.name();
        let row = of(format.into(), self.bytes[0], self.shares[0]);
        let mut rows = row.beside_each(self.microseconds, &self.peers);
        if self.bytes[1] > 0.0 {
            rows.push(of(format!("{format}, each row once"), self.bytes[1], self.shares[1]));
        }
        rows
    }
}

/// The layers that the arguments leave.
fn cases(args: &Args) -> Vec<PeerSizes> {
    let mut cases: Vec<_> = TOKENS.map(PeerSizes::reference).into();
    for format in QUANTISED {
        cases.extend(TOKENS.map(|tokens| PeerSizes { format, ..PeerSizes::reference(tokens) }));
    }
    let wanted = |sizes: &PeerSizes| {
        let name = format!("peer {} T={}", sizes.format, sizes.tokens);
        args.filter.as_ref().is_none_or(|filter| name.contains(filter))
    };
    cases.retain(wanted);
    cases
}

pub(super) fn run(args: &Args) -> Result<ExitCode> {
    let (cases, points) = (cases(args), residency::points(args));
    if cases.is_empty() && points.is_empty() {
        bail!("nothing to measure: no layer has this format and so many tokens");
    }
    if let Some(launches) = args.profile {
        let device = args.open_gpu()?;
        for sizes in &cases {
            let subjects = benchmark::peer_subjects(&device, sizes)?.into_iter();
            let named = subjects.map(|(name, subject)| (format!("{} {name}", sizes.tokens), subject));
            profile::launch(&device.default_stream(), launches, named)?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let mut session = Session::open(args, (!cases.is_empty()).then_some(torch::PEER))?;
    let name = |sizes: &PeerSizes| format!("peer {} T={}", sizes.format, sizes.tokens);
    let rows = session.measure(&cases, name, |session, sizes| measure(session, *sizes))?;
    let rows: Vec<Row> = rows.into_iter().flatten().collect();
    let resident = residency::measure(&mut session, &points)?;
    let measurements = rows.iter().flat_map(|row| row.measurements(&session));
    let measurements = measurements.chain(resident.iter().map(|row| row.measurement(&session)));
    session.finish(&[table(&rows), residency::table(&resident)], measurements, verdicts(&rows))
}

fn measure(session: &mut Session, sizes: PeerSizes) -> Result<Vec<Row>> {
    let measured = benchmark::peer(&session.device, &sizes, &session.options)?;
    // The framework's process needs the memory.
    session.device.release_memory()?;
    let mut rows = Vec::new();
    let parts = [
        (Part::Layer, "layer"),
        (Part::Routing, "routing"),
        (Part::Experts, ""),
        (Part::Training, "training"),
        (Part::Optimizer, ""),
    ];
    for (part, name) in parts {
        let Some(mut row) = Row::new(sizes, part, &measured, session.bandwidth) else { continue };
        // The routing of quantised experts is that of all others; the framework has none.
        if part == Part::Routing && sizes.format != ExpertFormat::Bf16 {
            continue;
        }
        if sizes.format == ExpertFormat::Bf16 && !name.is_empty() {
            row.peers = session.framework(&Request {
                part: name,
                precision: sizes.dtype.name(),
                tokens: sizes.tokens,
                input: sizes.input,
                output: sizes.output,
                heads: sizes.heads,
                top_k: sizes.top_k,
                query: sizes.query,
                sub_keys: sizes.sub_keys,
            });
        }
        let times: Vec<_> = row.peers.iter().map(|(name, time)| format!("{name} {time:.2}")).collect();
        eprintln!("  {} {:.2} µs {}", row.part.operation(), row.microseconds, times.join(", "));
        rows.push(row);
    }
    Ok(rows)
}

fn table(rows: &[Row]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED).set_header([
        "part",
        "rows",
        "T",
        "µs",
        "of the gather",
        "each row once",
        "best baseline / ours",
        "ran",
    ]);
    let percent = |share: f64| if share > 0.0 { format!("{:.0} %", share * 100.0) } else { "–".into() };
    for row in rows {
        table.add_row([
            row.part.operation().to_owned(),
            row.sizes.format.to_string(),
            row.sizes.tokens.to_string(),
            format!("{:.2}", row.microseconds),
            percent(row.shares[0]),
            percent(row.shares[1]),
            row.ratio().map_or_else(|| "–".into(), |ratio| format!("{ratio:.2}")),
            row.kernel.clone(),
        ]);
    }
    table
}

/// Whether the goals are met.
fn verdicts(rows: &[Row]) -> Vec<Verdict> {
    let goals = GOALS.map(|(tokens, least)| (Part::Layer, tokens, least));
    let of_training = TRAINING_GOALS.map(|(tokens, least)| (Part::Training, tokens, least));
    let all = goals.into_iter().chain(of_training).chain([(Part::Routing, ROUTING_GOAL.0, ROUTING_GOAL.1)]);
    all.map(|(part, tokens, least)| {
        let of = rows.iter().filter(|row| row.part == part && row.sizes.tokens == tokens);
        let ratios = of.filter_map(|row| Some((row.label(), row.ratio()?)));
        judged(
            format!("{} at T={tokens} takes a peer at least {least} times as long", part.operation()),
            ratios.map(|(label, ratio)| (label, ratio, ratio >= least)),
        )
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use warpsmith_lab::cases::PeerSizes;

    use super::{Part, Row, verdicts};

    fn row(part: Part, tokens: usize, best: f64) -> Row {
        Row {
            sizes: PeerSizes::reference(tokens),
            part,
            kernel: "kernel".into(),
            microseconds: 10.0,
            flops: 1.0,
            bytes: [2.0, 1.0],
            shares: [0.5, 0.25],
            peers: vec![("slow".into(), 2.0 * best), ("best".into(), best)],
        }
    }

    #[test]
    fn each_goal_is_judged_by_the_best_peer_of_its_own_row() {
        let met = |rows: &[Row]| verdicts(rows).into_iter().map(|verdict| verdict.met).collect::<Vec<_>>();
        assert_eq!(met(&[]), [None; 6]);
        let rows = [
            row(Part::Layer, 1, 41.0),
            row(Part::Layer, 2048, 49.0),
            row(Part::Training, 256, 49.0),
            row(Part::Training, 2048, 51.0),
            row(Part::Routing, 2048, 51.0),
        ];
        assert_eq!(met(&rows), [Some(true), None, Some(false), Some(false), Some(true), Some(true)]);
    }
}
