//! Generated low-rank updates as Markdown: what they cost beside the linear layer that has them.

use std::fmt::Write as _;

use anyhow::{Context as _, Result};

use super::markdown::number;
use crate::measurement::Measurement;

/// The suite of these rows.
pub(super) const SUITE: &str = "update";

/// A row for each operation, type and size.
pub(super) fn table(rows: &[&Measurement]) -> Result<String> {
    let mut text = String::from(
        "| operation | type | M × K × N | R | µs | linear layer alone, µs | overhead | linear layer, then update / ours | PyTorch / ours | PyTorch compiled / ours | of a copy's bandwidth | a copy of the same bytes / ours |\n\
         |---|---|---|---|---|---|---|---|---|---|---|---|\n",
    );
    let key = |row: &Measurement| (row.operation.clone(), row.dtype.clone(), row.shape.clone());
    let mut done = Vec::new();
    for &row in rows {
        if done.contains(&key(row)) {
            continue;
        }
        done.push(key(row));
        let peer = |name: &str| rows.iter().find(|other| key(other) == key(row) && other.peer == name);
        let ratio = |name| number(peer(name).and_then(|row| row.ratio), 2);
        let (sides, rank) = row.shape.rsplit_once('x').with_context(|| format!("shape `{}`", row.shape))?;
        let base = peer("warpsmith-base");
        let percent = |share: Option<f64>| {
            share.map_or_else(|| "–".to_owned(), |share| format!("{:.0} %", share * 100.0))
        };
        writeln!(
            text,
            "| {} | {} | {} | {rank} | {:.1} | {} | {} | {} | {} | {} | {} | {} |",
            row.operation,
            row.dtype,
            sides.replace('x', " × "),
            row.median_us,
            number(base.and_then(|row| row.peer_us), 1),
            percent(row.overhead),
            ratio("warpsmith-sequence"),
            ratio("torch-eager"),
            ratio("torch-compiled"),
            percent(row.share.filter(|_| base.is_none())),
            ratio("torch-copy"),
        )?;
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::table;
    use crate::measurement::Measurement;

    #[test]
    fn every_size_is_a_row_with_its_own_peers() {
        let row = |operation: &str, peer: &str, peer_us: f64, overhead| Measurement {
            operation: operation.into(),
            dtype: "bf16".into(),
            shape: "16x32x64x8".into(),
            median_us: 10.0,
            peer: peer.into(),
            peer_us: Some(peer_us),
            ratio: Some(peer_us / 10.0),
            overhead,
            share: Some(0.5),
            ..Measurement::default()
        };
        let rows = [
            row("linear with update", "warpsmith-base", 8.0, Some(0.25)),
            row("linear with update", "torch-eager", 30.0, Some(0.25)),
            row("generated update", "torch-copy", 9.0, None),
        ];
        let text = table(&rows.iter().collect::<Vec<_>>()).expect("shapes have ranks");
        let lines: Vec<&str> = text.lines().skip(2).collect();
        assert_eq!(
            lines,
            [
                "| linear with update | bf16 | 16 × 32 × 64 | 8 | 10.0 | 8.0 | 25 % | – | 3.00 | – | – | – |",
                "| generated update | bf16 | 16 × 32 × 64 | 8 | 10.0 | – | – | – | – | – | 50 % | 0.90 |",
            ]
        );
    }
}
