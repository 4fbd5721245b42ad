//! Operations on rows as Markdown.

use std::fmt::Write as _;

use anyhow::Result;

use super::markdown::number;
use super::results::Entry;

/// The suite of these rows.
pub(super) const SUITE: &str = "rows";

/// A row for each operation, type and size.
pub(super) fn table(entries: &[Entry<'_>]) -> Result<String> {
    let mut text = String::from(
        "| operation | type | rows × columns | µs | of a copy's bandwidth | best baseline | its µs | baseline / ours |\n\
         |---|---|---|---|---|---|---|---|\n",
    );
    for Entry { ours, best, .. } in entries {
        let share = ours.share.map_or_else(|| "–".to_owned(), |share| format!("{:.0} %", share * 100.0));
        writeln!(
            text,
            "| {} | {} | {} | {:.1} | {share} | {} | {} | {} |",
            ours.operation,
            ours.dtype,
            ours.shape.replace('x', " × "),
            ours.median_us,
            best.map_or("–", |best| best.peer.as_str()),
            number(best.and_then(|best| best.peer_us), 1),
            number(best.and_then(|best| best.ratio), 2),
        )?;
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::super::results::chosen;
    use super::table;
    use crate::measurement::Measurement;

    #[test]
    fn a_row_says_what_ran_and_how_fast() {
        let row = Measurement {
            operation: "softmax".into(),
            dtype: "bf16".into(),
            shape: "4x100".into(),
            variant: "chosen".into(),
            median_us: 2.0,
            peer: "torch".into(),
            peer_us: Some(5.0),
            ratio: Some(2.5),
            share: Some(0.25),
            ..Measurement::default()
        };
        let text = table(&chosen(&[&row])).expect("a table");
        assert!(text.ends_with("| softmax | bf16 | 4 × 100 | 2.0 | 25 % | torch | 5.0 | 2.50 |\n"), "{text}");
    }
}
