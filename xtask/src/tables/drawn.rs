//! Speeds at drawn sizes, as Markdown.

use std::fmt::Write as _;

use anyhow::Result;

use super::markdown::provenance;
use crate::measurement::Measurement;
use crate::spread::{LOST, spreads};

/// The part of a file that the page shows.
pub(super) const PART: &str = "drawn";

/// A row for each type and kind of sizes; then where those of each type come from.
pub(super) fn text(name: &str, rows: &[Measurement]) -> Result<String> {
    let spreads = spreads(rows);
    if spreads.is_empty() {
        return Ok(format!("`docs/bench/{name}.csv` has no rows of drawn sizes.\n"));
    }
    let mut text = format!(
        "| suite, type and sizes | with a baseline | mean | goal | 5th percentile | goal | lowest | goal | below {LOST} |\n\
         |---|---|---|---|---|---|---|---|---|\n",
    );
    for spread in &spreads {
        write!(text, "| {} | {}", spread.name, spread.count())?;
        for (index, measured) in spread.statistics().into_iter().enumerate() {
            // A goal of nothing is none.
            let goal = spread.goals().map(|goals| goals[index]).filter(|&goal| goal > 0.0);
            let goal = goal.map_or_else(|| "–".to_owned(), |goal| format!("{goal:.2}"));
            write!(text, " | {measured:.3} | {goal}")?;
        }
        writeln!(text, " | {} |", spread.lost())?;
    }
    let mut commands: Vec<&str> = Vec::new();
    for row in rows {
        if !commands.contains(&row.command.as_str()) {
            commands.push(&row.command);
            let of_run: Vec<_> = rows.iter().filter(|other| other.command == row.command).collect();
            write!(text, "\n{}", provenance(&of_run, row)?)?;
        }
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::text;
    use crate::measurement::Measurement;

    #[test]
    fn each_kind_has_a_row_with_its_goals_and_each_run_its_line() {
        let row = |dtype: &str, command: &str| Measurement {
            suite: "random".into(),
            command: command.into(),
            ..Measurement::against("linear bias relu", dtype, "1x8x16", [10.0, 9.0], "cublaslt-fused")
        };
        let told = text("random-test", &[row("f32", "one"), row("bf16", "two")]).expect("two runs");
        assert!(told.contains("| random f32 | 1 | 0.900 | 1.30 | 0.900 | 0.95 | 0.900 | – | 1 |"), "{told}");
        assert!(told.contains("| random bf16, K and N multiples of 8 | 1 | 0.900 | 1.08 |"), "{told}");
        assert!(told.contains("`one`") && told.contains("`two`"), "{told}");
        let none = text("random-test", &[]).expect("no rows");
        assert_eq!(none, "`docs/bench/random-test.csv` has no rows of drawn sizes.\n");
    }
}
