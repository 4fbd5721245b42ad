//! A row of `docs/bench/*.csv`: one measurement, with where it comes from.

use serde::{Deserialize, Serialize};

/// One measurement of one variant of an operation, beside its peer's in the same run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
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
    /// What it is compared with; empty if it was absent.
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
    /// The highest clock of the GPU's multiprocessors in MHz; absent if the driver does not tell it, and in older files.
    pub clock_mhz: Option<u32>,
    /// 10¹² floating-point operations a second; absent in older files.
    pub tflops: Option<f64>,
    /// The least time that the GPU's measured ceilings allow, as a share of ours; absent in older files.
    pub share: Option<f64>,
}
