//! What the kernels that retrieve experts are told: sizes, strides, and how queries are normalised.

use crate::launch::{Global, KernelParam};

/// The gates are a softmax over the k scores.
pub const GATE_SOFTMAX: u32 = 0;
/// Each is the logistic function of its score.
pub const GATE_SIGMOID: u32 = 1;
/// Each is its score, or 0 if that is negative.
pub const GATE_RELU: u32 = 2;
/// Each is its score.
pub const GATE_IDENTITY: u32 = 3;

/// No normalisation.
pub const NORM_NONE: u32 = 0;
/// By mean and variance of the row.
pub const NORM_LAYER: u32 = 1;
/// By the mean square of the row.
pub const NORM_RMS: u32 = 2;
/// By the length of the row.
pub const NORM_L2: u32 = 3;
/// By mean and variance of the feature, which are given.
pub const NORM_BATCH: u32 = 4;

/// The sizes of a retrieval, in elements. A kernel parameter.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ProductKeyParams {
    /// From one sub-key of the first half to the next: a multiple of 16 bytes.
    pub key_stride_1: u64,
    /// The same of the second half.
    pub key_stride_2: u64,
    /// From the sub-keys of one head to those of the next, of the first half, where the grid has an axis for heads: a multiple of 16 bytes.
    pub head_stride_1: u64,
    /// The same of the second half.
    pub head_stride_2: u64,
    /// Rows of queries that share sub-keys.
    pub rows: u32,
    /// From one of them to the next: 1, or the number of heads where each has sub-keys of its own.
    pub row_step: u32,
    /// Heads, at least 1: row r of all queries is one of head r mod `heads`.
    pub heads: u32,
    /// Sub-keys of a half.
    pub n: u32,
    /// Columns of a half.
    pub half: u32,
    /// How many are kept: 1 to what the kernel keeps at most, and at most n.
    pub k: u32,
    /// [`pairs`] of k.
    pub pairs: u32,
    /// One of the `GATE_` constants.
    pub gate: u32,
    /// What scores are multiplied with before the gate.
    pub inverse_temperature: f32,
    /// The binary logarithm of how many blocks share rows: 0 for a kernel without clusters, else 1 to that of a cluster's most.
    pub cluster_log2: u32,
}

// SAFETY: a fixed layout of kernel parameters, without padding: four fields of eight bytes, then ten of four.
unsafe impl KernelParam for ProductKeyParams {}

/// How queries are normalised. Of each pointer, there are numbers for a head's features, or for those of all heads, one head after the
/// other. A kernel parameter.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct QueryNormParams {
    /// What is multiplied with, if it is not null.
    pub weight: Global<f32>,
    /// What is added then, if it is not null.
    pub bias: Global<f32>,
    /// For [`NORM_BATCH`], the means.
    pub mean: Global<f32>,
    /// For [`NORM_BATCH`], the variances.
    pub variance: Global<f32>,
    /// One of the `NORM_` constants.
    pub kind: u32,
    /// What is added to a variance or mean square; for [`NORM_L2`] the largest factor.
    pub epsilon: f32,
    /// Elements of weight and bias from the features of one head to those of the next: 0 if all heads have the same.
    pub weight_stride: u32,
    /// The same of means and variances.
    pub mean_stride: u32,
}

// SAFETY: a fixed layout of kernel parameters, without padding: four fields of eight bytes, then four of four.
unsafe impl KernelParam for QueryNormParams {}

/// Pairs of ranks of both halves whose sum can be among the `k` best: those that at most k − 1 others are at least as good as.
#[must_use]
pub const fn pairs(k: u32) -> u32 {
    let (mut pairs, mut rank) = (0, 1);
    while rank <= k {
        pairs += k / rank;
        rank += 1;
    }
    pairs
}

#[cfg(test)]
mod tests {
    use super::pairs;

    #[test]
    fn pairs_are_those_whose_ranks_multiply_to_at_most_k() {
        for k in 1..=64 {
            let counted = (1..=k).flat_map(|a| (1..=k).map(move |b| a * b)).filter(|&product| product <= k);
            assert_eq!(pairs(k), counted.count() as u32, "{k}");
        }
        assert_eq!([16, 32, 64].map(pairs), [50, 119, 280]);
    }
}
