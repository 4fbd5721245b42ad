//! What the rows of a file say together: each operation once, beside the baselines that matter, and the highest rates.

use anyhow::Result;

use super::markdown::flops;
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
        if Measurement::is_like_for_like(&row.operation, &row.dtype, &row.peer) && faster(entry.best) {
            entry.best = Some(row);
        }
        if row.peer.ends_with("-product") && faster(entry.product) {
            entry.product = Some(row);
        }
    }
    entries
}

/// The rate at which a row's operation is done in so many microseconds, in 10¹² operations a second.
pub(crate) fn rate(row: &Measurement, microseconds: f64) -> Result<f64> {
    // What the bench counted, where it says so: not all that is done is a product of the shape's sides.
    let counted = row.tflops.map_or_else(
        || Ok(flops(&row.operation, &row.shape)? * 1e-6),
        |tflops| anyhow::Ok(tflops * row.median_us),
    );
    Ok(counted? / microseconds)
}

/// The highest rate of the run in this type, ours or that of a peer whose arithmetic is ours, of whatever size.
pub(crate) fn fastest(rows: &[Measurement], dtype: &str) -> Result<Option<f64>> {
    let mut fastest: Option<f64> = None;
    let has_a_rate =
        |row: &&Measurement| row.dtype == dtype && row.operation != CONTROL && row.has_products();
    for row in rows.iter().filter(has_a_rate) {
        let counts = Measurement::makes_the_products(&row.operation, &row.dtype, &row.peer);
        for time in [Some(row.median_us), row.peer_us.filter(|_| counts)].into_iter().flatten() {
            let rate = rate(row, time)?;
            fastest = Some(fastest.map_or(rate, |fastest| fastest.max(rate)));
        }
    }
    Ok(fastest)
}

#[cfg(test)]
mod tests {
    use super::{chosen, fastest, rate};
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

    #[test]
    fn the_highest_rate_is_of_any_size_and_of_the_same_arithmetic() {
        let of = |dtype: &str, shape: &str, peer: &str, peer_us| {
            Measurement::against("linear bias", dtype, shape, [10.0, peer_us], peer)
        };
        let rows = [
            of("f8e4m3", "1000x1000x1000", "cublaslt-product", 4.0),
            of("f8e4m3", "1000x1000x1000", "torch-scaled-mm-fast-accumulation", 2.0),
            of("bf16", "1000x1000x500", "torch-eager", 2.0),
            row("control product", "cublas", "torch-matmul", 1e-9),
        ];
        // 2 · 10⁹ operations in 4 µs, half as many in 2 µs.
        assert_eq!(fastest(&rows, "f8e4m3").expect("shapes"), Some(500.0));
        assert_eq!(fastest(&rows, "bf16").expect("shapes"), Some(500.0));
        assert_eq!(fastest(&rows, "f16").expect("shapes"), None);
    }

    #[test]
    fn what_has_no_products_has_no_rate() {
        let steps = ["134217728", "1048576 in 200"]
            .map(|shape| Measurement::against("adamw", "f32", shape, [10.0, 10.0], "torch-fused"));
        assert_eq!(fastest(&steps, "f32").expect("no shape is read"), None);
    }

    #[test]
    fn what_the_bench_counted_goes_before_the_sides() {
        let update =
            Measurement { tflops: Some(3.0), ..row("generated update", "chosen", "torch-copy", 1.0) };
        assert_eq!(rate(&update, 1.0).expect("counted"), 6.0);
        assert_eq!(fastest(&[update], "bf16").expect("counted"), Some(3.0), "a copy makes no products");
    }
}
