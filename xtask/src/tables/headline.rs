//! A few rows of all files together, and what became of sizes drawn at random: for the README and the overview of the book.

use std::fmt::Write as _;

use anyhow::{Result, bail};

use super::markdown::number;
use super::results::{Entry, chosen};
use crate::measurement::Measurement;
use crate::spread::{LOST, spreads};

/// The name that stands for all files in a table's mark.
pub(super) const NAME: &str = "all";

/// A row of the overview.
struct Line {
    /// The file.
    file: &'static str,
    operation: &'static str,
    dtype: &'static str,
    shape: &'static str,
    /// The variant that the row is of.
    variant: &'static str,
    /// What it is, in words.
    words: &'static str,
    /// Whether the README shows it too.
    in_readme: bool,
}

const fn line(
    file: &'static str,
    [operation, dtype, shape, variant]: [&'static str; 4],
    words: &'static str,
    in_readme: bool,
) -> Line {
    Line { file, operation, dtype, shape, variant, words, in_readme }
}

const LAYER: &str = "linear bias relu";
const LINES: [Line; 10] = [
    line("linear-h100", [LAYER, "bf16", "4096x4096x4096", "chosen"], "linear layer, bias and ReLU", true),
    line("linear-h100", [LAYER, "f32", "4096x4096x4096", "chosen"], "the same at f32 accuracy", true),
    line("linear-h100", [LAYER, "f8e4m3", "8192x4096x4096", "chosen"], "the same in FP8", true),
    line(
        "attention-h100",
        ["attention causal", "bf16", "4x16x4096x128", "chosen"],
        "causal attention (B × H × S × D)",
        true,
    ),
    line(
        "attention-h100",
        ["attention decode", "bf16", "16x32/8x1/4096x128", "chosen"],
        "attention, decoding one token",
        false,
    ),
    line(
        "training-h100",
        ["linear-relu-training", "bf16", "8192x4096x4096", "chosen"],
        "linear layer, forward and backward",
        false,
    ),
    line("rows-h100", ["rms-norm", "bf16", "8192x4096", "chosen"], "RMS norm", true),
    line(
        "rows-h100",
        ["cross-entropy-training", "bf16", "4096x128256", "chosen"],
        "cross-entropy with its gradient",
        false,
    ),
    line("topk-h100", ["topk", "bf16", "4096x32000 k=50", "chosen"], "top-k", false),
    line("peer-h100", ["peer", "bf16", "T=2048", "bf16"], "PEER layer of 1 048 576 experts", true),
];

/// What stands at the part of this name, of the files that `read` gives.
pub(super) fn text(
    part: &str,
    files: &[String],
    read: impl Fn(&str) -> Result<Vec<Measurement>>,
) -> Result<String> {
    match part {
        "headline" => lines(LINES.iter(), read),
        "headline short" => lines(LINES.iter().filter(|line| line.in_readme), read),
        "random" => random(files, read),
        _ => bail!("`{NAME}` has no part `{part}`"),
    }
}

/// The rows, each beside its best baseline of the same run.
fn lines(
    shown: impl Iterator<Item = &'static Line>,
    read: impl Fn(&str) -> Result<Vec<Measurement>>,
) -> Result<String> {
    let mut text = String::from(
        "| operation | type | size | µs | fastest baseline | its µs | baseline / ours |\n|---|---|---|---|---|---|---|\n",
    );
    let mut runs: Vec<(String, String)> = Vec::new();
    for line in shown {
        let rows = read(line.file)?;
        let Some((ours, best)) = found(line, &rows) else {
            bail!("docs/bench/{}.csv has no {} {} {}", line.file, line.operation, line.dtype, line.shape);
        };
        writeln!(
            text,
            "| {} | {} | {} | {} | {} | {} | {} |",
            line.words,
            line.dtype,
            line.shape.replace('x', " × ").replace('/', " / "),
            number(Some(ours.median_us), 1),
            best.peer,
            number(best.peer_us, 1),
            number(best.ratio, 2),
        )?;
        let run = (format!("{}, driver {}", ours.gpu, ours.driver), ours.commit.clone());
        if !runs.contains(&run) {
            runs.push(run);
        }
    }
    let machines: Vec<&str> = distinct(runs.iter().map(|(machine, _)| machine.as_str()));
    let commits: Vec<&str> = distinct(runs.iter().map(|(_, commit)| commit.as_str()));
    writeln!(text, "\n{}; commits {}.", machines.join(" and "), commits.join(", "))?;
    Ok(text)
}

/// Each of them once.
fn distinct<'a>(all: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut seen = Vec::new();
    for one in all {
        if !seen.contains(&one) {
            seen.push(one);
        }
    }
    seen
}

/// Our row for a line, and the one of its best baseline.
fn found<'a>(line: &Line, rows: &'a [Measurement]) -> Option<(&'a Measurement, &'a Measurement)> {
    let is_of = |row: &&Measurement| {
        (row.operation.as_str(), row.dtype.as_str(), row.shape.as_str(), row.variant.as_str())
            == (line.operation, line.dtype, line.shape, line.variant)
    };
    let of: Vec<&Measurement> = rows.iter().filter(is_of).collect();
    if let Some(&Entry { ours, best, .. }) = chosen(&of).first() {
        return Some((ours, best?));
    }
    let timed = of.iter().filter(|row| row.peer_us.is_some());
    let best = timed.min_by(|a, b| a.peer_us.unwrap_or(0.0).total_cmp(&b.peer_us.unwrap_or(0.0)))?;
    Some((of.first()?, best))
}

/// The model of a GPU, without what all names have and without its memory: `H100` of `NVIDIA H100 80GB HBM3`.
fn short_name(gpu: &str) -> &str {
    gpu.strip_prefix("NVIDIA ").unwrap_or(gpu).split(' ').next().unwrap_or(gpu)
}

/// Drawn sizes that a line stands for at least: of fewer there is no spread to tell.
const FEWEST: usize = 5;

/// What suites and operations are called in data, and in words.
const WORDS: [(&str, &str); 17] = [
    ("random-training linear-relu-training", "linear layer with ReLU, forward and backward,"),
    ("random-update linear with update", "linear layer with a generated update,"),
    ("random-update generated update", "generated update alone,"),
    ("random-rows layer-norm-training", "layer norm, forward and backward,"),
    ("random-rows rms-norm-training", "RMS norm, forward and backward,"),
    ("random-rows softmax-training", "softmax, forward and backward,"),
    ("random-rows cross-entropy-training", "cross-entropy with its gradient,"),
    ("random-rows rms-norm-residual", "RMS norm of a sum,"),
    ("random-rows layer-norm", "layer norm,"),
    ("random-rows rms-norm", "RMS norm,"),
    ("random-rows gated-silu", "SwiGLU,"),
    ("random-rows softmax", "softmax,"),
    ("random-rows add", "addition,"),
    ("random-attention attention", "attention,"),
    ("random-layout ", "product in another layout, "),
    ("random-batch ", "batch of products, "),
    // The suite of linear layers has no name but that.
    ("random ", "linear layer, "),
];

/// The sizes of a spread in words.
fn words(name: &str) -> String {
    let found = WORDS.iter().find_map(|(of, words)| Some((words, name.strip_prefix(of)?)));
    match found {
        Some((words, rest)) => format!("{words}{rest}"),
        None => name.trim_start_matches("random-").replace("rows ", ""),
    }
}

/// A row for each kind of sizes drawn at random, of all files.
fn random(files: &[String], read: impl Fn(&str) -> Result<Vec<Measurement>>) -> Result<String> {
    let mut text = format!(
        "| sizes drawn at random | GPU | with a baseline | mean | 5th percentile | lowest | below {LOST} |\n|---|---|---|---|---|---|---|\n"
    );
    let mut lines = Vec::new();
    for name in files.iter().filter(|name| name.starts_with("random")) {
        let rows = read(name)?;
        let gpu = rows.first().map_or("", |row| short_name(&row.gpu)).to_owned();
        for spread in spreads(&rows).into_iter().filter(|spread| spread.count() >= FEWEST) {
            let [mean, low, lowest] = spread.statistics();
            let words = words(&spread.name);
            let numbers =
                format!("{} | {mean:.2} | {low:.2} | {lowest:.2} | {}", spread.count(), spread.lost());
            lines.push((words, gpu.clone(), numbers));
        }
    }
    // What is alike stands together.
    lines.sort();
    for (words, gpu, numbers) in lines {
        writeln!(text, "| {words} | {gpu} | {numbers} |")?;
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::{LINES, found, text, words};
    use crate::measurement::Measurement;
    use crate::tables::read;

    fn row(peer: &str, peer_us: f64) -> Measurement {
        let first = &LINES[0];
        Measurement {
            variant: "chosen".into(),
            ..Measurement::against(first.operation, first.dtype, first.shape, [10.0, peer_us], peer)
        }
    }

    #[test]
    fn a_line_stands_beside_the_fastest_baseline_that_computes_the_same() {
        let rows = [row("torch-eager", 14.0), row("cublaslt-fused", 12.0), row("cublaslt-product", 9.0)];
        let (ours, best) = found(&LINES[0], &rows).expect("rows of this line");
        assert_eq!((ours.median_us, best.peer.as_str()), (10.0, "cublaslt-fused"));
        assert!(found(&LINES[1], &rows).is_none());
    }

    #[test]
    fn the_readme_has_six_of_the_ten_rows() {
        let rows = |part| {
            let text = text(part, &[], read).expect("committed data");
            text.lines().filter(|line| line.starts_with('|')).count() - 2
        };
        assert_eq!((rows("headline"), rows("headline short")), (10, 6));
    }

    #[test]
    fn drawn_sizes_are_of_all_files_of_such() {
        let files = ["linear-h100".to_owned(), "random-a".into(), "random-b".into()];
        let drawn = |name: &str| {
            assert!(name.starts_with("random"), "{name}");
            // Of the second file there are too few to tell a spread.
            let count = if name == "random-a" { 5 } else { 4 };
            let of = |i: usize| Measurement {
                suite: "random".into(),
                gpu: "NVIDIA H100 80GB HBM3".into(),
                shape: format!("{}x64x64", i + 1),
                ..row("cublaslt-fused", 9.0)
            };
            Ok((0..count).map(of).collect())
        };
        let text = text("random", &files, drawn).expect("rows");
        let line = "| linear layer, bf16, K and N multiples of 8 | H100 | 5 | 0.90 | 0.90 | 0.90 | 5 |";
        assert_eq!(text.lines().filter(|other| *other == line).count(), 1, "{text}");
        assert_eq!(text.lines().count(), 3, "{text}");
    }

    #[test]
    fn drawn_sizes_are_told_in_words() {
        assert_eq!(words("random-rows layer-norm-training bf16"), "layer norm, forward and backward, bf16");
        assert_eq!(words("random-rows layer-norm bf16"), "layer norm, bf16");
        assert_eq!(words("random f32"), "linear layer, f32");
        assert_eq!(words("random-batch bf16, other K and N"), "batch of products, bf16, other K and N");
        assert_eq!(words("random-other thing bf16"), "other thing bf16");
    }

    #[test]
    fn an_unknown_part_is_an_error() {
        assert!(text("nothing", &[], |_| Ok(Vec::new())).is_err());
    }
}
