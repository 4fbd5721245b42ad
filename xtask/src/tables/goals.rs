//! What became of the goals, as Markdown.

use std::fmt::Write as _;

use anyhow::Result;

use super::markdown::{flops, number, provenance};
use super::results::fastest;
use crate::goals::{FLOOR, Floor, Judged, OPERATION, floor, judge};
use crate::measurement::Measurement;

/// The part of a file that the page shows.
pub(super) const PART: &str = "goals";
/// The same of a file of which only the floor is shown.
pub(super) const FLOOR_PART: &str = "floor";

/// A row for each goal: what was measured, the rate that it would take, and the fastest of the run; then what became of the floor.
pub(super) fn text(name: &str, rows: &[Measurement]) -> Result<String> {
    let judged = judge(rows);
    let shown: Vec<&Measurement> = judged.iter().filter_map(|judged| judged.row).collect();
    let Some(first) = shown.first() else {
        return Ok(format!("`docs/bench/{name}.csv` has no rows that goals are about.\n"));
    };
    let mut text = String::from(
        "| type | M × K × N | against | its µs | goal | measured | | TFLOP/s | the goal takes | the fastest of the run |\n\
         |---|---|---|---|---|---|---|---|---|---|\n",
    );
    for Judged { goal, row } in &judged {
        let verdict = match (Judged { goal, row: *row }).reached() {
            Some(true) => "reached",
            Some(false) => "missed",
            None => "not measured",
        };
        let flops = flops(OPERATION, goal.shape)?;
        let rate = |microseconds: f64| flops / microseconds * 1e-6;
        let theirs = row.and_then(|row| row.peer_us);
        // A goal is not always about the fastest peer, but it is said which one it is about.
        let against = row.map_or(goal.against.name(), |row| row.peer.as_str());
        writeln!(
            text,
            "| {} | {} | {against} | {} | {:.2} | {} | {verdict} | {} | {} | {} |",
            goal.dtype,
            goal.shape.replace('x', " × "),
            number(theirs, 1),
            goal.ratio,
            number(row.and_then(|row| row.ratio), 3),
            number(row.map(|row| rate(row.median_us)), 0),
            number(theirs.map(|time| rate(time / goal.ratio)), 0),
            number(fastest(rows, goal.dtype)?, 0),
        )?;
    }
    write!(text, "\n{}", floor_words(rows)?)?;
    Ok(format!("{text}\n{}", provenance(&shown, first)?))
}

/// What became of the floor.
pub(super) fn floor_text(name: &str, rows: &[Measurement]) -> Result<String> {
    let shown: Vec<&Measurement> = rows.iter().collect();
    let Some(first) = shown.first() else { return Ok(format!("`docs/bench/{name}.csv` has no rows.\n")) };
    Ok(format!("{}\n{}", floor_words(rows)?, provenance(&shown, first)?))
}

fn floor_words(rows: &[Measurement]) -> Result<String> {
    let Floor { all, below } = floor(rows);
    let mut text = format!(
        "The {all} operations and sizes in bf16 and f16 of this run are to be at least {FLOOR} × their best baselines: "
    );
    let below: Vec<_> = below
        .iter()
        .map(|row| {
            let shape = row.shape.replace('x', " × ");
            format!("`{}` {} {shape} ({} of {})", row.operation, row.dtype, number(row.ratio, 3), row.peer)
        })
        .collect();
    match below.len() {
        0 => writeln!(text, "all are.")?,
        some => {
            writeln!(text, "all are but {some}:\n")?;
            below.iter().try_for_each(|row| writeln!(text, "- {row}"))?;
        }
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::text;
    use crate::measurement::Measurement;

    #[test]
    fn a_goal_says_what_it_takes_beside_the_fastest_of_its_type() {
        let row = |dtype: &str, shape: &str, ours: f64, peer: &str, peer_us: f64| {
            Measurement::against("linear bias relu", dtype, shape, [ours, peer_us], peer)
        };
        // 2 · 8192 · 4096 · 4096 operations are 0.2749 · 10¹².
        let rows = [
            row("bf16", "8192x4096x4096", 400.0, "cublaslt-fused", 360.0),
            row("bf16", "8192x4096x4096", 400.0, "torch-eager", 472.0),
            row("bf16", "4096x4096x4096", 180.0, "cublaslt-product", 170.0),
        ];
        let text = text("name", &rows).expect("shapes");
        let line = |start: &str| text.lines().find(|line| line.starts_with(start)).expect(start);
        assert_eq!(
            line("| bf16 | 8192 × 4096 × 4096 | cublaslt-fused"),
            "| bf16 | 8192 × 4096 × 4096 | cublaslt-fused | 360.0 | 1.05 | 0.900 | missed | 687 | 802 | 808 |"
        );
        assert_eq!(
            line("| bf16 | 8192 × 4096 × 4096 | torch-eager"),
            "| bf16 | 8192 × 4096 × 4096 | torch-eager | 472.0 | 1.18 | 1.180 | reached | 687 | 687 | 808 |"
        );
        assert!(line("| tf32").contains("not measured"));
        assert!(
            text.contains(
                "all are but 1:\n\n- `linear bias relu` bf16 8192 × 4096 × 4096 (0.900 of cublaslt-fused)\n"
            ),
            "{text}"
        );
        let floor = super::floor_text("name", &rows).expect("rows of one run");
        assert!(floor.starts_with("The 1 operations and sizes"), "{floor}");
        assert!(super::text("name", &[]).expect("no shapes").contains("no rows"));
    }
}
