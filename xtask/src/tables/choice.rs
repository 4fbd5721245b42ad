//! How good the cost model's choices are beside the fastest kernels, as Markdown, from what `xtask tune --csv` wrote.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::{Context as _, Result, bail};
use serde::Deserialize;

/// The part of a file that the page shows.
pub(super) const PART: &str = "choice";
/// What the names of the tuner's files begin with, whose rows are not those of the bench.
pub(super) const NAME: &str = "tune-";
/// The cases that are shown: those whose choice is furthest from the fastest.
const SHOWN: usize = 12;
/// What a choice may take of the fastest kernel's time, and less, of which the page says how many choices keep to it.
const WITHIN: [f64; 3] = [1.001, 1.02, 1.05];

/// One kernel's time for one case.
#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct Row {
    operation: String,
    dtype: String,
    shape: String,
    tile: String,
    median_us: f64,
    is_model: bool,
    gpu: String,
    driver: String,
    commit: String,
    command: String,
}

impl Row {
    fn run(&self) -> [&str; 4] {
        [&self.gpu, &self.driver, &self.commit, &self.command]
    }
}

/// What the model chose for a case, and what was fastest.
struct Choice<'a> {
    chosen: &'a Row,
    fastest: &'a Row,
}

impl Choice<'_> {
    fn ratio(&self) -> f64 {
        self.chosen.median_us / self.fastest.median_us
    }
}

/// Those of all cases, the ones furthest from the fastest first.
fn choices(rows: &[Row]) -> Result<Vec<Choice<'_>>> {
    let mut cases: BTreeMap<[&str; 3], Vec<&Row>> = BTreeMap::new();
    for row in rows {
        cases.entry([&row.operation, &row.dtype, &row.shape]).or_default().push(row);
    }
    let mut choices = Vec::new();
    for (case, kernels) in cases {
        let chosen = kernels.iter().find(|row| row.is_model);
        let chosen =
            chosen.with_context(|| format!("{}: the model's choice is not there", case.join(" ")))?;
        if kernels.iter().any(|row| row.run() != chosen.run()) {
            bail!("{}: rows of different runs: their times are not to be compared", case.join(" "));
        }
        let fastest = kernels.iter().min_by(|a, b| a.median_us.total_cmp(&b.median_us)).unwrap_or(chosen);
        choices.push(Choice { chosen, fastest });
    }
    choices.sort_by(|a, b| b.ratio().total_cmp(&a.ratio()));
    Ok(choices)
}

/// How many choices are how near to the fastest, and the furthest.
pub(super) fn text(name: &str, rows: &[Row]) -> Result<String> {
    if rows.is_empty() {
        return Ok(format!("`docs/bench/{name}.csv` has no rows.\n"));
    }
    let choices = choices(rows)?;
    let mut text = format!(
        "Of {} cases, all kernels that compute them measured, in {} rows:\n\n| the choice takes at most | cases |\n|---|---|\n",
        choices.len(),
        rows.len()
    );
    for within in WITHIN {
        let good = choices.iter().filter(|choice| choice.ratio() <= within).count();
        writeln!(text, "| {within} × the fastest | {good} |")?;
    }
    text.push_str(
        "\nThe furthest:\n\n| operation | type | M × K × N | choice | µs | fastest | µs | choice / fastest |\n|---|---|---|---|---|---|---|---|\n",
    );
    for choice in choices.iter().take(SHOWN) {
        let Choice { chosen, fastest } = choice;
        writeln!(
            text,
            "| {} | {} | {} | `{}` | {:.1} | `{}` | {:.1} | {:.3} |",
            chosen.operation,
            chosen.dtype,
            chosen.shape.replace('x', " × "),
            chosen.tile,
            chosen.median_us,
            fastest.tile,
            fastest.median_us,
            choice.ratio(),
        )?;
    }
    let mut runs: BTreeMap<[&str; 4], usize> = BTreeMap::new();
    for choice in &choices {
        *runs.entry(choice.chosen.run()).or_default() += 1;
    }
    for ([gpu, driver, commit, command], cases) in runs {
        writeln!(text, "\n{cases} cases: {gpu}, driver {driver}, commit {commit}, `{command}`.")?;
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::{Row, WITHIN, choices, text};
    use crate::tables::read;

    fn row(shape: &str, tile: &str, median_us: f64, is_model: bool) -> Row {
        Row { shape: shape.into(), tile: tile.into(), median_us, is_model, ..Row::default() }
    }

    #[test]
    fn choices_stand_beside_the_fastest_and_the_furthest_come_first() {
        let mut rows = [
            row("1x2x3", "a", 2.0, true),
            row("1x2x3", "b", 2.1, false),
            row("4x5x6", "a", 1.04, true),
            row("4x5x6", "b", 1.0, false),
        ];
        let made = text("tune-x", &rows).expect("one run");
        assert!(made.contains("Of 2 cases") && made.contains("| 1.02 × the fastest | 1 |"), "{made}");
        assert!(made.contains("| 1.05 × the fastest | 2 |"), "{made}");
        let (far, near) = (made.find("| 4 × 5 × 6 | `a` | 1.0 | `b` |"), made.find("| 1 × 2 × 3 | `a` |"));
        assert!(far.is_some() && far < near, "{made}");
        rows[1].commit.push('0');
        assert!(text("tune-x", &rows).is_err(), "two runs");
        assert!(choices(&[row("1x2x3", "a", 2.0, false)]).is_err(), "no choice");
    }

    /// What is committed is of a commit of its own; that the choice has not become worse since is for the tests beside the model.
    #[test]
    fn every_choice_was_within_a_twentieth_of_the_fastest_when_it_was_measured() {
        let rows: Vec<Row> = read("tune-h100").expect("committed data");
        let choices = choices(&rows).expect("complete data");
        assert!(choices.len() > 150, "{}", choices.len());
        let worst = choices.first().expect("choices");
        assert!(worst.ratio() <= WITHIN[2], "{} {}", worst.chosen.operation, worst.chosen.shape);
    }
}
