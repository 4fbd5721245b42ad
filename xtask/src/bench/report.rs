//! Results: a table for the terminal, rows for the CSV, and whether the goals are met.

use comfy_table::{Table, presets};

use super::case::Case;
use super::ceilings::Ceilings;
use super::clocks::Mean;
use super::rows::rounded;
use super::suites::Suite;
use crate::goals::{self, FLOOR, Floor, Judged};
use crate::measurement::Measurement;
use crate::provenance::Provenance;
use crate::spread::{self, Spread};

/// What a peer took.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Peer {
    pub(super) name: String,
    pub(super) microseconds: f64,
}

/// What ran of ours, and its time.
#[derive(Clone, Debug)]
pub(super) struct Ours {
    pub(super) kernel: String,
    pub(super) microseconds: f64,
}

/// One variant of ours beside its baselines.
pub(super) struct Row {
    pub(super) case: Case,
    pub(super) variant: String,
    /// `None` where we have no such operation.
    pub(super) ours: Option<Ours>,
    pub(super) peers: Vec<Peer>,
    /// What the GPU was at meanwhile, if that is known.
    pub(super) state: Option<Mean>,
}

/// cuBLAS's own choice beside PyTorch's time of the same product.
pub(super) struct Control {
    pub(super) case: Case,
    pub(super) ours: f64,
    pub(super) peer: Peer,
}

impl Row {
    fn microseconds(&self) -> Option<f64> {
        self.ours.as_ref().map(|ours| ours.microseconds)
    }

    /// The fastest peer that computes what ours does.
    fn best(&self) -> Option<&Peer> {
        let (operation, dtype) = (self.case.operation.to_string(), self.case.precision.name());
        let same = |peer: &&Peer| Measurement::is_like_for_like(&operation, dtype, &peer.name);
        self.peers.iter().filter(same).min_by(|a, b| a.microseconds.total_cmp(&b.microseconds))
    }

    /// The microseconds of ours and of the baselines that say how fast products of this type can be.
    pub(super) fn times_of_products(&self) -> impl Iterator<Item = f64> {
        let (operation, dtype) = (self.case.operation.to_string(), self.case.precision.name());
        let same = move |peer: &&Peer| Measurement::makes_the_products(&operation, dtype, &peer.name);
        self.microseconds().into_iter().chain(self.peers.iter().filter(same).map(|peer| peer.microseconds))
    }

    /// The share of our time that the ceilings allow at the least.
    fn share(&self, ceilings: &Ceilings) -> Option<f64> {
        Some(ceilings.least_seconds(&self.case) / (self.microseconds()? * 1e-6))
    }

    fn peer(&self, name: &str) -> Option<f64> {
        self.peers.iter().find(|peer| peer.name == name).map(|peer| peer.microseconds)
    }

    fn ratio(&self, peer: Option<f64>) -> Option<f64> {
        Some(peer? / self.microseconds()?)
    }

    fn measurement(
        &self,
        peer: Option<&Peer>,
        ceilings: &Ceilings,
        provenance: &Provenance,
    ) -> Option<Measurement> {
        let ours = self.ours.as_ref()?;
        let seconds = ours.microseconds * 1e-6;
        Some(Measurement {
            kernel: ours.kernel.clone(),
            tflops: Some(rounded(self.case.flops() / seconds * 1e-12, 1e3)),
            share: self.share(ceilings).map(|share| rounded(share, 1e4)),
            ceiling_tflops: ceilings.flops(self.case.precision).map(|rate| rounded(rate * 1e-12, 1e3)),
            sm_clock_mhz: self.state.map(|mean| rounded(mean.state.clock, 1.0)),
            power_w: self.state.and_then(|mean| mean.state.power).map(|power| rounded(power, 1.0)),
            power_capped: self.state.and_then(|mean| mean.state.capped).map(|capped| rounded(capped, 1e2)),
            clock_samples: self.state.map(|mean| mean.samples),
            ..measurement(&self.case, &self.variant, ours.microseconds, peer, provenance)
        })
    }
}

fn measurement(
    case: &Case,
    variant: &str,
    ours: f64,
    peer: Option<&Peer>,
    provenance: &Provenance,
) -> Measurement {
    let row = Measurement {
        operation: case.operation.to_string(),
        dtype: case.precision.name().into(),
        shape: case.sides("x"),
        variant: variant.into(),
        bytes: Some(case.bytes()),
        ..Measurement::of(provenance, &case.suite.name())
    };
    let row = row.timed(ours);
    match peer {
        Some(peer) => row.beside(ours, &peer.name, peer.microseconds),
        None => row,
    }
}

/// The results as a table, ours beside the fastest like-for-like peer and the plain product.
pub(super) fn table(rows: &[Row], ceilings: &Ceilings) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED).set_header([
        "suite",
        "operation",
        "type",
        "M×K×N",
        "tile",
        "µs",
        "TFLOP/s",
        "of ceiling",
        "best baseline",
        "its µs",
        "/ ours",
        "product µs",
        "/ ours",
        "unfused / ours",
        "MHz",
        "W",
        "ran",
    ]);
    let number = |value: Option<f64>, digits: usize| {
        value.map_or_else(|| "–".into(), |value| format!("{value:.digits$}"))
    };
    for row in rows {
        let (best, product) = (row.best(), row.peer("cublaslt-product"));
        let seconds = row.microseconds().map(|time| time * 1e-6);
        table.add_row([
            row.case.suite.name(),
            row.case.operation.to_string(),
            row.case.precision.name().into(),
            row.case.sides("×"),
            row.variant.clone(),
            number(row.microseconds(), 2),
            number(seconds.map(|seconds| row.case.flops() / seconds * 1e-12), 1),
            row.share(ceilings).map_or_else(|| "–".into(), |share| format!("{:.0} %", share * 100.0)),
            best.map_or_else(|| "–".into(), |peer| peer.name.clone()),
            number(best.map(|peer| peer.microseconds), 2),
            number(row.ratio(best.map(|peer| peer.microseconds)), 3),
            number(product, 2),
            number(row.ratio(product), 3),
            number(row.ratio(row.peer("cublaslt-unfused")), 3),
            number(row.state.map(|mean| mean.state.clock), 0),
            number(row.state.and_then(|mean| mean.state.power), 0),
            row.ours.as_ref().map_or_else(|| "–".into(), |ours| ours.kernel.clone()),
        ]);
    }
    table
}

/// The controls as lines.
pub(super) fn print_controls(controls: &[Control]) {
    for Control { case, ours, peer } in controls {
        println!(
            "Control {case}: cuBLAS's own choice {ours:.2} µs here, {:.2} µs by {} ({:.3})",
            peer.microseconds,
            peer.name,
            peer.microseconds / ours
        );
    }
}

/// A row for every peer, and one for a variant without any.
pub(super) fn measurements(
    rows: &[Row],
    controls: &[Control],
    ceilings: &Ceilings,
    provenance: &Provenance,
) -> Vec<Measurement> {
    let mut measurements = Vec::new();
    for row in rows {
        let peers: Vec<Option<&Peer>> =
            if row.peers.is_empty() { vec![None] } else { row.peers.iter().map(Some).collect() };
        measurements.extend(peers.into_iter().filter_map(|peer| row.measurement(peer, ceilings, provenance)));
    }
    for Control { case, ours, peer } in controls {
        let row = measurement(case, "cublas", *ours, Some(peer), provenance);
        measurements.push(Measurement { operation: "control product".into(), ..row });
    }
    measurements
}

/// A goal, and what was measured of it.
pub(super) struct Verdict {
    pub(super) goal: String,
    pub(super) measured: String,
    /// `None` if nothing was measured that could tell.
    pub(super) met: Option<bool>,
}

impl Verdict {
    /// What became of the goal of drawn sizes.
    pub(super) fn of_spread(spread: Spread) -> Self {
        Self { goal: spread.asked(), measured: spread.to_string(), met: spread.is_met() }
    }
}

/// Prints what became of each goal; whether one was missed.
pub(super) fn print_verdicts(verdicts: Vec<Verdict>) -> bool {
    let mut missed = false;
    for Verdict { goal, measured, met } in verdicts {
        let word = match met {
            Some(true) => "met",
            Some(false) => "MISSED",
            None => "open",
        };
        missed |= met == Some(false);
        println!("{word}: {goal}: {measured}");
    }
    missed
}

/// What became of the goals, by what the library chooses.
pub(super) fn verdicts(rows: &[Measurement]) -> Vec<Verdict> {
    let mut verdicts: Vec<Verdict> = goals::judge(rows)
        .iter()
        .map(|judged| {
            let Judged { goal, row } = judged;
            let said = |row: &Measurement| Some(format!("{} {:.3}", row.peer, row.ratio?));
            Verdict {
                goal: format!(
                    "{} {} at least {} × {}",
                    goal.dtype,
                    goal.shape.replace('x', "×"),
                    goal.ratio,
                    goal.against.name()
                ),
                measured: row.and_then(said).unwrap_or_else(|| "not measured".into()),
                met: judged.reached(),
            }
        })
        .collect();
    let Floor { all, below } = goals::floor(rows);
    let said: Vec<_> = below
        .iter()
        .map(|row| {
            let ratio = row.ratio.unwrap_or(f64::NAN);
            format!("{} {} {} {ratio:.3} of {}", row.operation, row.dtype, row.shape, row.peer)
        })
        .collect();
    verdicts.push(Verdict {
        goal: format!("nothing in bf16 or f16 below {FLOOR} × the best baseline"),
        measured: match (all, said.len()) {
            (0, _) => "not measured".into(),
            (all, 0) => format!("none of {all}"),
            (all, some) => format!("{some} of {all}: {}", said.join("; ")),
        },
        met: (all > 0).then_some(below.is_empty()),
    });
    verdicts.extend(spread::spreads(rows).into_iter().map(Verdict::of_spread));
    verdicts
}

/// The suites that rows are of, in words.
pub(super) fn suites_of(cases: &[Case]) -> String {
    let mut names: Vec<String> = Vec::new();
    for name in cases.iter().map(|case: &Case| Suite::name(case.suite)) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use super::{Case, Ceilings, Ours, Peer, Row, Suite, Verdict, measurements, verdicts};
    use crate::bench::case::{Operation, Precision};
    use crate::bench::clocks::{Mean, State};
    use crate::provenance::Provenance;

    fn row(shape: [usize; 3], ours: f64, peers: &[(&str, f64)]) -> Row {
        Row {
            case: Case {
                suite: Suite::Main,
                operation: Operation::BIAS_RELU,
                precision: Precision::Bf16,
                shape,
            },
            variant: "chosen".into(),
            ours: Some(Ours { kernel: "kernel".into(), microseconds: ours }),
            peers: peers
                .iter()
                .map(|&(name, microseconds)| Peer { name: name.into(), microseconds })
                .collect(),
            state: None,
        }
    }

    #[test]
    fn what_is_written_is_what_goals_are_judged_by() {
        let met =
            |verdicts: &[Verdict]| verdicts.iter().filter_map(|verdict| verdict.met).collect::<Vec<_>>();
        assert!(met(&verdicts(&[])).is_empty());
        let written = |rows: &[Row]| measurements(rows, &[], &Ceilings::new(1e12), &Provenance::default());
        let rows = [
            row([256, 256, 512], 10.0, &[("cublaslt-fused", 12.0), ("torch-eager", 9.9)]),
            row([7, 8, 9], 10.0, &[("torch-eager", 9.4), ("cublaslt-product", 1.0)]),
        ];
        let judged = verdicts(&written(&rows));
        // The best baseline of the first is the slower sequence, too.
        assert_eq!(met(&judged), [false, false, false]);
        let rows = [row([256, 256, 512], 10.0, &[("cublaslt-fused", 12.0), ("torch-eager", 13.0)])];
        let judged = verdicts(&written(&rows));
        assert_eq!(met(&judged), [true, true, true]);
        assert_eq!(judged[0].measured, "cublaslt-fused 1.200");
    }

    #[test]
    fn the_best_peer_computes_the_same() {
        let row = row([1, 2, 3], 10.0, &[("cublaslt-product", 1.0), ("a", 3.0), ("b", 2.0)]);
        assert_eq!(row.best().map(|peer| peer.name.as_str()), Some("b"));
    }

    #[test]
    fn sums_that_keep_fewer_bits_are_told_apart() {
        let name = "torch-scaled-mm-fast-accumulation";
        let mut row =
            row([1, 2, 3], 10.0, &[(name, 1.0), ("cublaslt-product", 2.0), ("cublaslt-fused", 3.0)]);
        let best = |row: &Row| row.best().map(|peer| peer.name.clone()).unwrap_or_default();
        assert_eq!(best(&row), name, "no other type has such sums");
        row.case.precision = Precision::F8;
        assert_eq!(best(&row), "cublaslt-fused");
        assert_eq!(row.times_of_products().collect::<Vec<_>>(), [10.0, 2.0, 3.0]);
        let written = measurements(&[row], &[], &Ceilings::new(1e12), &Provenance::default());
        assert!(written.iter().any(|row| row.peer == name), "but they are written");
    }

    #[test]
    fn what_is_written_lies_below_the_ceilings_of_its_type() {
        let state = State { clock: 1500.4, power: Some(700.0), capped: None };
        let fast = row([1000; 3], 10.0, &[("cublaslt-product", 4.0)]);
        let slow = Row { state: Some(Mean { state, samples: 40 }), ..row([500, 500, 500], 10.0, &[]) };
        let mut ceilings = Ceilings::new(1e15);
        for row in [&fast, &slow] {
            row.times_of_products().for_each(|time| ceilings.note(&row.case, time * 1e-6));
        }
        let written = measurements(&[fast, slow], &[], &ceilings, &Provenance::default());
        // 2 · 10⁹ operations in 4 µs.
        assert!(written.iter().all(|row| row.ceiling_tflops == Some(500.0)));
        let shares: Vec<_> = written.iter().map(|row| row.share).collect();
        assert_eq!(shares, [Some(0.4), Some(0.05)]);
        assert_eq!((written[1].sm_clock_mhz, written[1].clock_samples), (Some(1500.0), Some(40)));
        assert_eq!((written[1].power_w, written[1].power_capped), (Some(700.0), None));
    }
}
