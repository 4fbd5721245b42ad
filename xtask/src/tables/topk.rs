//! Selections of top-k as Markdown.

use std::fmt::Write as _;

use anyhow::{Context as _, Result};

use super::markdown::number;
use super::results::Entry;

/// The suite of these rows.
pub(super) const SUITE: &str = "topk";

/// A row for each type and size.
pub(super) fn table(entries: &[Entry<'_>]) -> Result<String> {
    let mut text = String::from(
        "| type | rows × columns | k | µs | of a copy's bandwidth | best baseline | its µs | baseline / ours |\n\
         |---|---|---|---|---|---|---|---|\n",
    );
    for Entry { ours, best, .. } in entries {
        let (sides, k) = ours.shape.split_once(" k=").with_context(|| format!("shape `{}`", ours.shape))?;
        let share = ours.share.map_or_else(|| "–".to_owned(), |share| format!("{:.0} %", share * 100.0));
        writeln!(
            text,
            "| {} | {} | {k} | {:.1} | {share} | {} | {} | {} |",
            ours.dtype,
            sides.replace('x', " × "),
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
    fn a_row_says_what_was_selected_and_how_fast() {
        let row = Measurement {
            operation: "topk".into(),
            dtype: "f32".into(),
            shape: "4x100 k=7".into(),
            variant: "chosen".into(),
            median_us: 2.0,
            peer: "torch-topk".into(),
            peer_us: Some(5.0),
            ratio: Some(2.5),
            share: Some(0.25),
            ..Measurement::default()
        };
        let text = table(&chosen(&[&row])).expect("the shape has a k");
        assert!(text.ends_with("| f32 | 4 × 100 | 7 | 2.0 | 25 % | torch-topk | 5.0 | 2.50 |\n"), "{text}");
    }
}
