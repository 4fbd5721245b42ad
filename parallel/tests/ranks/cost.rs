//! The cost model, beside measured times.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use warpsmith_parallel::cost::{Collective, Line, Model, Point, Step};

/// How far the model may be from a measured time, over that time. Between latency and bandwidth NCCL changes its algorithm more than
/// once, which a single line does not follow.
const MOST_APART: f64 = 0.2;

/// A row of a file of measurements.
#[derive(Deserialize)]
struct Row {
    operation: String,
    shape: String,
    variant: String,
    median_us: f64,
    ranks: usize,
}

/// The rows of a file that are of collectives.
fn rows(path: &Path) -> Vec<Row> {
    let rows = csv::Reader::from_path(path).expect("the file is there").into_deserialize();
    let rows: Vec<Row> = rows.map(|row| row.expect("the columns are there")).collect();
    rows.into_iter().filter(|row| row.variant == "bytes a rank").collect()
}

fn points(rows: &[Row], collective: Collective) -> Vec<Point> {
    let of = rows.iter().filter(|row| row.operation == collective.name());
    of.map(|row| Point {
        bytes: row.shape.parse().expect("it is a number of bytes"),
        seconds: row.median_us / 1e6,
    })
    .collect()
}

/// The committed measurements, and those that this test brings.
fn files() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = vec![root.join("tests/data/two-h200.csv")];
    let committed = std::fs::read_dir(root.join("../docs/measured")).into_iter().flatten().flatten();
    let is_ours =
        |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("parallel"));
    files.extend(committed.map(|entry| entry.path()).filter(is_ours));
    files
}

#[test]
fn the_model_reproduces_the_measured_times() {
    for path in files() {
        let rows = rows(&path);
        let ranks = rows.first().expect("collectives are measured").ranks;
        assert!(rows.iter().all(|row| row.ranks == ranks), "{}", path.display());
        let model = Model::fit(ranks, |collective| points(&rows, collective)).expect("there are points");
        for collective in Collective::ALL {
            let points = points(&rows, collective);
            assert!(points.len() >= 4, "{} {collective:?}", path.display());
            let apart = model.line(collective, ranks).largest_error(&points);
            assert!(apart <= MOST_APART, "{} {collective:?}: {apart}", path.display());
            // A line that knew nothing of bytes would not do.
            let flat = Line { per_byte: 0.0, ..model.line(collective, ranks) };
            assert!(flat.largest_error(&points) > MOST_APART);
        }
    }
}

/// A step of the page's table: its name, its time on one rank and how much of that may run beside calls in µs, its calls, whether
/// its work is split over the ranks, and what was measured with two.
struct Example {
    name: &'static str,
    alone: f64,
    beside: f64,
    calls: [(Collective, f64); 4],
    is_split: bool,
    measured: f64,
}

const MIB: f64 = (1 << 20) as f64;

/// Those of the first run on two GPUs. The first layer's gradients wait for its backward pass, so that three quarters of four
/// layers run beside averages.
const EXAMPLES: [Example; 2] = [
    Example {
        name: "backward pass of 4 layers 4096\u{a0}×\u{a0}4096, 4096 rows a rank, averages in f32",
        alone: 1378.0,
        beside: 1033.5,
        calls: [(Collective::AllReduce, 64.0 * MIB); 4],
        is_split: false,
        measured: 2066.0,
    },
    Example {
        name: "MLP 8192\u{a0}×\u{a0}8192\u{a0}×\u{a0}8192, split, forward and backward, in 2 pieces each",
        alone: 8648.0,
        beside: 8648.0,
        calls: [(Collective::AllReduce, 64.0 * MIB); 4],
        is_split: true,
        measured: 5146.0,
    },
];

/// The tables of the page, as they follow from the measured points.
fn tables() -> String {
    let rows = rows(&files()[0]);
    let model = Model::fit(2, |collective| points(&rows, collective)).expect("there are points");
    let mut text = String::from(
        "| operation | at least, µs | latency, µs | GB/s | off by at most |\n|---|---|---|---|---|\n",
    );
    for collective in Collective::ALL {
        let line = model.line(collective, 2);
        text += &format!(
            "| `{}` | {:.0} | {:.0} | {:.0} | {:.0} % |\n",
            collective.name(),
            line.least * 1e6,
            line.latency * 1e6,
            1e-9 / line.per_byte,
            100.0 * line.largest_error(&points(&rows, collective))
        );
    }
    text += "\n| step, µs | 1 rank, measured | 2 ranks, measured | 2 ranks | 8 ranks, extrapolated | 64 ranks, extrapolated |\n\
             |---|---|---|---|---|---|\n";
    for example in EXAMPLES {
        let bounds = |ranks: usize| {
            let share = if example.is_split { 1.0 / ranks as f64 } else { 1.0 };
            let (work, beside) = (example.alone * share / 1e6, example.beside * share / 1e6);
            let step = Step { work, beside, calls: &example.calls };
            step.bounds(&model, ranks).map(|seconds| seconds * 1e6)
        };
        let of = |ranks| {
            let [least, most] = bounds(ranks);
            format!("{least:.0} to {most:.0}")
        };
        let [least, most] = bounds(2);
        assert!(least <= example.measured && example.measured <= most, "{}: {least} {most}", example.name);
        let Example { name, alone, measured, .. } = example;
        text += &format!("| {name} | {alone:.0} | {measured:.0} | {} | {} | {} |\n", of(2), of(8), of(64));
    }
    text
}

#[test]
fn the_page_has_what_the_model_says_and_measured_steps_are_within_its_bounds() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/src/several-gpus.md");
    let page = std::fs::read_to_string(path).expect("the page is there");
    let tables = tables();
    assert!(page.contains(&tables), "the page lacks these tables:\n{tables}");
}
