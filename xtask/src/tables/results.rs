//! What the rows of a file say together: each operation once, beside the peers that matter.

use crate::measurement::Measurement;

/// The operation of rows that compare the two ways to measure, rather than ours with a peer's.
pub(crate) const CONTROL: &str = "control product";

/// One operation of one type and size, as the library chose to run it.
pub(crate) struct Entry<'a> {
    pub(crate) ours: &'a Measurement,
    /// The row of the fastest peer that computes the same.
    pub(crate) best: Option<&'a Measurement>,
    /// The row of the fastest plain product.
    pub(crate) product: Option<&'a Measurement>,
}

/// An entry for each operation, type and size, in the order in which they come; only what the library chooses by itself.
pub(crate) fn chosen<'a>(rows: &[&'a Measurement]) -> Vec<Entry<'a>> {
    let mut entries: Vec<Entry<'a>> = Vec::new();
    for &row in rows.iter().filter(|row| row.variant == "chosen" && row.operation != CONTROL) {
        let same = |entry: &Entry<'a>| {
            let ours = entry.ours;
            (&ours.operation, &ours.dtype, &ours.shape) == (&row.operation, &row.dtype, &row.shape)
        };
        let index = entries.iter().position(same).unwrap_or_else(|| {
            entries.push(Entry { ours: row, best: None, product: None });
            entries.len() - 1
        });
        let entry = &mut entries[index];
        if row.peer_us.is_none() {
            continue;
        }
        let faster = |than: Option<&Measurement>| than.is_none_or(|than| row.peer_us < than.peer_us);
        if Measurement::is_like_for_like(&row.operation, &row.peer) && faster(entry.best) {
            entry.best = Some(row);
        }
        if row.peer.ends_with("-product") && faster(entry.product) {
            entry.product = Some(row);
        }
    }
    entries
}

#[cfg(test)]
mod tests {
    use super::chosen;
    use crate::measurement::Measurement;

    fn row(operation: &str, variant: &str, peer: &str, peer_us: f64) -> Measurement {
        Measurement {
            operation: operation.into(),
            dtype: "bf16".into(),
            shape: "1x2x3".into(),
            variant: variant.into(),
            median_us: 2.0,
            peer: peer.into(),
            peer_us: Some(peer_us),
            ratio: Some(peer_us / 2.0),
            suite: "main".into(),
            ..Measurement::default()
        }
    }

    #[test]
    fn the_fastest_peer_that_computes_the_same_is_the_best() {
        let rows = [
            row("linear bias relu", "chosen", "cublaslt-fused", 3.0),
            row("linear bias relu", "chosen", "cublaslt-product", 1.0),
            row("linear bias relu", "chosen", "torch-eager", 2.5),
            row("linear bias relu", "64x64", "cublaslt-fused", 0.5),
            row("linear", "chosen", "cublaslt-product", 4.0),
            row("control product", "cublas", "torch-matmul", 0.1),
        ];
        let entries = chosen(&rows.iter().collect::<Vec<_>>());
        assert_eq!(entries.len(), 2);
        let peer = |row: Option<&Measurement>| row.map(|row| row.peer.clone()).unwrap_or_default();
        assert_eq!(peer(entries[0].best), "torch-eager");
        assert_eq!(peer(entries[0].product), "cublaslt-product");
        // Where the operation is the product, the product is its peer.
        assert_eq!(peer(entries[1].best), "cublaslt-product");
    }
}
