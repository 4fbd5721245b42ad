//! Attentions as Markdown.

use std::fmt::Write as _;

use anyhow::Result;

use super::markdown::number;
use super::results::Entry;

/// What names of files of attention have.
pub(super) const NAME: &str = "attention";
/// The suites of these rows.
pub(super) const SUITES: [&str; 4] = ["attention", "attention-options", DECODE, "attention-backward"];
/// That of single rows, which the memory's bandwidth limits.
const DECODE: &str = "attention-decode";

/// A row for each operation, type and size; where the suite is the first, below the plot of all of the file `name`.
pub(super) fn table(name: &str, entries: &[Entry<'_>]) -> Result<String> {
    let is_decode = entries.iter().all(|entry| entry.ours.suite == DECODE);
    let rate = if is_decode { "of a copy's bandwidth" } else { "TFLOP/s" };
    let clocked = entries.iter().any(|entry| entry.ours.sm_clock_mhz.is_some());
    let (clock_titles, clock_rules) = if clocked { (" MHz | W |", "---|---|") } else { ("", "") };
    let is_first = entries.iter().all(|entry| entry.ours.suite == SUITES[0]);
    let plot = format!("![Ratio to the best baseline by size](plots/{name}-ratio.svg)\n\n");
    let plot = if is_first { plot.as_str() } else { "" };
    let mut text = format!(
        "{plot}| operation | type | B × H × S × D | µs | {rate} | best baseline | its µs | baseline / ours |{clock_titles}\n\
         |---|---|---|---|---|---|---|---|{clock_rules}\n"
    );
    for Entry { ours, best, .. } in entries {
        let percent = || ours.share.map_or_else(|| "–".to_owned(), |share| format!("{:.0} %", share * 100.0));
        write!(
            text,
            "| {} | {} | {} | {:.1} | {} | {} | {} | {} |",
            ours.operation,
            ours.dtype,
            ours.shape.replace('x', " × "),
            ours.median_us,
            if is_decode { percent() } else { number(ours.tflops, 0) },
            best.map_or("–", |best| best.peer.as_str()),
            number(best.and_then(|best| best.peer_us), 1),
            number(best.and_then(|best| best.ratio), 2),
        )?;
        if clocked {
            write!(text, " {} | {} |", number(ours.sm_clock_mhz, 0), number(ours.power_w, 0))?;
        }
        text.push('\n');
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::super::results::chosen;
    use super::{DECODE, SUITES, table};
    use crate::measurement::Measurement;

    fn row(suite: &str, shape: &str, peer: &str, ratio: f64) -> Measurement {
        Measurement {
            suite: suite.into(),
            tflops: Some(600.4),
            share: Some(0.25),
            ..Measurement::against("attention causal", "bf16", shape, [20.0, 20.0 * ratio], peer)
        }
    }

    fn last(rows: &[Measurement]) -> String {
        let text = table("name", &chosen(&rows.iter().collect::<Vec<_>>())).expect("rows");
        text.lines().last().expect("a row").to_owned()
    }

    #[test]
    fn products_have_a_rate_and_single_rows_the_share_of_a_copy() {
        let main = [
            row(SUITES[0], "4x32/8x100x64", "torch-flash", 2.0),
            row(SUITES[0], "4x32/8x100x64", "torch-cudnn", 1.5),
        ];
        let head = "| attention causal | bf16 | 4 × 32/8 × 100 × 64 | 20.0";
        assert!(table("name", &chosen(&[&main[0]])).expect("rows").contains("(plots/name-ratio.svg)"));
        assert_eq!(last(&main), format!("{head} | 600 | torch-cudnn | 30.0 | 1.50 |"));
        let decode = [row(DECODE, "4x32/8x100x64", "torch-cudnn", 1.5)];
        assert_eq!(last(&decode), format!("{head} | 25 % | torch-cudnn | 30.0 | 1.50 |"));
    }

    #[test]
    fn rows_that_say_at_what_clock_they_ran_have_it() {
        let clocked = Measurement {
            sm_clock_mhz: Some(1650.0),
            power_w: Some(690.0),
            ..row(SUITES[1], "4x16x100x64", "torch-flex", 1.0)
        };
        assert!(last(&[clocked]).ends_with("| 1.00 | 1650 | 690 |"));
    }
}
