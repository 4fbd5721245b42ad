//! Parts of training as Markdown.

use std::fmt::Write as _;

use anyhow::Result;

use super::markdown::number;
use super::results::Entry;
use crate::goals::training::goal;

/// What names of files of training have.
pub(super) const NAME: &str = "training";
/// The suite of these rows.
pub(super) const SUITE: &str = "training";

/// A row for each operation, type and size.
pub(super) fn table(entries: &[Entry<'_>]) -> Result<String> {
    let mut text = String::from(
        "| operation | type | size | µs | TFLOP/s | of a copy's bandwidth | best baseline | its µs | baseline / ours | goal | |\n\
         |---|---|---|---|---|---|---|---|---|---|---|\n",
    );
    for Entry { ours, best, .. } in entries {
        let share = ours.share.map_or_else(|| "–".to_owned(), |share| format!("{:.0} %", share * 100.0));
        let ratio = best.and_then(|best| best.ratio);
        let asked = goal(&ours.operation, &ours.dtype, &ours.shape);
        let verdict = asked.map_or("", |asked| match asked.reached(ratio, ours.share) {
            Some(true) => "reached",
            Some(false) => "missed",
            None => "not measured",
        });
        writeln!(
            text,
            "| {} | {} | {} | {:.1} | {} | {share} | {} | {} | {} | {} | {verdict} |",
            ours.operation,
            ours.dtype,
            ours.shape.replace('x', " × "),
            ours.median_us,
            number(ours.tflops, 0),
            best.map_or("–", |best| best.peer.as_str()),
            number(best.and_then(|best| best.peer_us), 1),
            number(ratio, 2),
            asked.map_or_else(|| "–".to_owned(), |asked| asked.to_string()),
        )?;
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::super::results::chosen;
    use super::table;
    use crate::goals::training::OPTIMIZER;
    use crate::measurement::Measurement;

    #[test]
    fn a_row_says_what_became_of_its_goal() {
        let row = |operation: &str, dtype: &str, shape: &str, ratio: f64| Measurement {
            share: Some(0.925),
            tflops: (operation != OPTIMIZER).then_some(600.4),
            ..Measurement::against(operation, dtype, shape, [20.0, 20.0 * ratio], "torch")
        };
        let rows = [
            row("linear-relu-training", "bf16", "8192x4096x4096", 1.0),
            row("linear-relu-training", "bf16", "1x2x3", 1.0),
            row(OPTIMIZER, "f32", "134217728", 0.5),
        ];
        let text = table(&chosen(&rows.iter().collect::<Vec<_>>())).expect("rows");
        let lines: Vec<_> = text.lines().skip(2).collect();
        assert_eq!(
            lines,
            [
                "| linear-relu-training | bf16 | 8192 × 4096 × 4096 | 20.0 | 600 | 92 % | torch | 20.0 | 1.00 | 1.08 | missed |",
                "| linear-relu-training | bf16 | 1 × 2 × 3 | 20.0 | 600 | 92 % | torch | 20.0 | 1.00 | – |  |",
                "| adamw | f32 | 134217728 | 20.0 | – | 92 % | torch | 10.0 | 0.50 | 92 % | reached |",
            ]
        );
    }
}
