//! A row of `docs/bench/*.csv`: one measurement beside one peer's, with where it comes from.

use serde::{Deserialize, Serialize};

use crate::goals::training::OPTIMIZER;

/// One measurement of one variant of an operation, beside one peer's in the same run. A variant has a row for each peer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Measurement {
    /// The operation and its options.
    pub operation: String,
    /// The inputs' type.
    pub dtype: String,
    /// Its sizes, M x K x N for products.
    pub shape: String,
    /// What was forced; `chosen` if nothing was.
    pub variant: String,
    /// Our time in microseconds, the median of the samples.
    pub median_us: f64,
    /// What it is compared with; empty if there was nothing. Baselines named `torch-…` ran in a process of their own.
    pub peer: String,
    /// The peer's time in microseconds, likewise.
    pub peer_us: Option<f64>,
    /// `peer_us` / `median_us`: above 1, ours is faster.
    pub ratio: Option<f64>,
    /// The GPU's name.
    pub gpu: String,
    /// The driver's version.
    pub driver: String,
    /// The commit that was measured.
    pub commit: String,
    /// The command that measured.
    pub command: String,
    /// The set of sizes that this one belongs to.
    pub suite: String,
    /// What ran; empty for a control, in which nothing of ours does.
    pub kernel: String,
    /// The highest clock of the GPU's multiprocessors in MHz; absent if the driver does not tell it.
    pub clock_mhz: Option<u32>,
    /// 10¹² floating-point operations a second.
    pub tflops: Option<f64>,
    /// The least time that the ceilings of this run allow, as a share of ours.
    pub share: Option<f64>,
    /// Bytes that must be read and written.
    pub bytes: Option<f64>,
    /// The highest rate of this run in this type, in 10¹² floating-point operations a second: ours or a peer's, of whatever size. In
    /// `docs/bench/linear-h100.csv` it is another, in all types that of one bf16 product of 8192³ by cuBLASLt, and `share` is by it.
    pub ceiling_tflops: Option<f64>,
    /// 10¹² bytes a second, read and written, of a copy within the GPU's memory in this run.
    pub ceiling_tbps: Option<f64>,
    /// What generated updates cost beside our own linear operation without them, as a fraction of it; absent for all else.
    #[serde(default)]
    pub overhead: Option<f64>,
    /// Of experts behind a cache, the uses of rows that it held over all; absent for all else.
    #[serde(default)]
    pub hit_rate: Option<f64>,
    /// The clock of the GPU's multiprocessors in MHz while ours, the baselines and the copies between them were timed, on average; absent if
    /// nothing told it.
    #[serde(default)]
    pub sm_clock_mhz: Option<f64>,
    /// The GPU's power in watts, likewise; absent, too, where a GPU tells its clock alone.
    #[serde(default)]
    pub power_w: Option<f64>,
    /// The share of that time in which the clock was held down to keep to the power limit, likewise.
    #[serde(default)]
    pub power_capped: Option<f64>,
    /// How many samples these are the means of; absent where nobody counted.
    #[serde(default)]
    pub clock_samples: Option<u32>,
    /// The baselines' libraries and their versions; empty where nobody told.
    #[serde(default)]
    pub libraries: String,
}

impl Measurement {
    /// Whether a peer computes what the operation does, as exactly, rather than a part of it. Fused operations stand beside the
    /// plain product, too, which has less to do, and generated updates beside the linear operation without them, or a copy.
    /// Those of 8-bit types beside products with [fast accumulation](Self::is_fast_accumulation).
    pub(crate) fn is_like_for_like(operation: &str, dtype: &str, peer: &str) -> bool {
        let whole = operation == "linear"
            || operation.starts_with("matmul ")
            || !["-product", "-base", "-copy"].iter().any(|part| peer.ends_with(part));
        whole && !Self::is_fast_accumulation(dtype, peer)
    }

    /// Whether a peer leaves sums of 8-bit products to the tensor cores, which keep few bits of them: neither ours nor cuBLASLt as it is
    /// asked here does.
    pub(crate) fn is_fast_accumulation(dtype: &str, peer: &str) -> bool {
        dtype.starts_with("f8") && peer.ends_with("-fast-accumulation")
    }

    /// Whether there are products in an operation, so that it has a rate.
    pub(crate) fn has_products(&self) -> bool {
        self.operation != OPTIMIZER
    }

    /// Whether a peer's time says how fast products of a type can be: it makes all of the operation's products, and as exactly.
    pub(crate) fn makes_the_products(operation: &str, dtype: &str, peer: &str) -> bool {
        peer.ends_with("-product") || Self::is_like_for_like(operation, dtype, peer)
    }

    /// What was chosen for an operation, and a peer, which took so many microseconds each: for tests.
    #[cfg(test)]
    pub(crate) fn against(
        operation: &str,
        dtype: &str,
        shape: &str,
        [ours, peer_us]: [f64; 2],
        peer: &str,
    ) -> Self {
        Self {
            operation: operation.into(),
            dtype: dtype.into(),
            shape: shape.into(),
            variant: "chosen".into(),
            median_us: ours,
            peer: peer.into(),
            peer_us: Some(peer_us),
            ratio: Some(peer_us / ours),
            ..Self::default()
        }
    }
}

/// A row of `docs/bench/*-error-*.csv`: how exact a result is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Accuracy {
    /// The operation and its options.
    pub operation: String,
    /// The inputs' type.
    pub dtype: String,
    /// M x K x N.
    pub shape: String,
    /// Whose result it is.
    pub variant: String,
    /// The largest error of the elements that were compared, over the root mean square of the right ones.
    pub max_error: f64,
    /// The root mean square of their errors, likewise.
    pub rms_error: f64,
    /// The GPU's name.
    pub gpu: String,
    /// The driver's version.
    pub driver: String,
    /// The commit that was measured.
    pub commit: String,
    /// The command that measured.
    pub command: String,
}

#[cfg(test)]
mod tests {
    use super::Measurement;

    #[test]
    fn a_peer_computes_the_same_unless_its_name_says_less() {
        let same = Measurement::is_like_for_like;
        assert!(same("linear bias relu", "bf16", "torch-eager"));
        assert!(!same("linear bias relu", "bf16", "cublaslt-product"));
        // Where the operation is the product, the product is its peer.
        assert!(same("linear", "bf16", "cublaslt-product") && same("matmul tn", "bf16", "cublaslt-product"));
        assert!(!same("linear with update", "bf16", "warpsmith-base"));
    }

    #[test]
    fn fast_accumulation_is_not_the_same() {
        let same = |peer| Measurement::is_like_for_like("linear", "f8e4m3-by-e5m2", peer);
        assert!(same("cublaslt-fused") && same("torch-scaled-mm") && same("torch-scaled-mm-compiled"));
        let fast = ["torch-scaled-mm-fast-accumulation", "torch-scaled-mm-compiled-fast-accumulation"];
        assert!(!fast.into_iter().any(same));
        let products = |dtype, peer| Measurement::makes_the_products("linear bias", dtype, peer);
        assert!(products("f8e4m3", "cublaslt-product") && products("f16", "torch-eager"));
        assert!(!products("f8e4m3", fast[0]) && !products("bf16", "warpsmith-base"));
    }
}
