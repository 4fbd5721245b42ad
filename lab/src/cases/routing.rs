//! What to validate: one product-key retrieval.

use warpsmith::DType;
use warpsmith::ops::peer::{Gate, RetrievalBlocks};

use super::data::Data;

/// How queries are normalised.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum NormKind {
    /// Not at all.
    None,
    /// By mean and variance.
    #[default]
    Layer,
    /// By the mean square.
    Rms,
    /// By the length.
    L2,
    /// By the length, where some queries are shorter than what is divided by at least.
    ShortL2,
    /// By given means and variances.
    Batch,
}

impl NormKind {
    /// Every kind.
    pub const ALL: [Self; 6] = [Self::None, Self::Layer, Self::Rms, Self::L2, Self::ShortL2, Self::Batch];

    /// The epsilon that cases have.
    pub(crate) fn epsilon(self) -> f32 {
        match self {
            Self::None => 0.0,
            Self::L2 => 1e-12,
            Self::ShortL2 => 2.0,
            _ => 1e-5,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::None => "no norm",
            Self::Layer => "layer",
            Self::Rms => "rms",
            Self::L2 => "l2",
            Self::ShortL2 => "l2 from 2 up",
            Self::Batch => "batch",
        }
    }
}

/// One product-key retrieval to validate.
#[derive(Clone, Debug, PartialEq)]
pub struct RoutingCase {
    /// The type of all operands: f16, bf16 or f32.
    pub dtype: DType,
    /// Tokens.
    pub tokens: usize,
    /// Columns of a token.
    pub columns: usize,
    /// Heads.
    pub heads: usize,
    /// Sub-keys of a half.
    pub n: usize,
    /// Columns of a half of a query.
    pub half: usize,
    /// Experts that each head finds.
    pub k: usize,
    /// Whether each head has sub-keys of its own.
    pub per_head: bool,
    /// Whether the projection has a bias.
    pub bias: bool,
    /// How queries are normalised.
    pub norm: NormKind,
    /// Whether the norm has weight and bias.
    pub affine: bool,
    /// Whether the norm's tensors have numbers for each head.
    pub per_head_norm: bool,
    /// What gates are of scores.
    pub gate: Gate,
    /// What scores are divided by before the gate.
    pub temperature: f32,
    /// Whether the second half of the sub-keys are those of the first once more.
    pub duplicates: bool,
    /// Whether a few sub-keys are four times as long, so that most tokens use them.
    pub skewed: bool,
    /// Whether the sub-keys are in rows that are not chunks of 16 bytes.
    pub unaligned: bool,
    /// The blocks that find the experts; what would be chosen if none are named.
    pub blocks: Option<RetrievalBlocks>,
    /// What the inputs are drawn from.
    pub data: Data,
    /// Decides the inputs.
    pub seed: u64,
}

impl RoutingCase {
    /// A retrieval of `k` of n² experts by 8 heads, with shared sub-keys, layer norm and softmax, on uniform data; `half` is half the width
    /// of a query.
    #[must_use]
    pub fn new(dtype: DType, [tokens, columns]: [usize; 2], [n, half]: [usize; 2], k: usize) -> Self {
        Self {
            dtype,
            tokens,
            columns,
            heads: 8,
            n,
            half,
            k,
            per_head: false,
            bias: false,
            norm: NormKind::Layer,
            affine: false,
            per_head_norm: false,
            gate: Gate::Softmax,
            temperature: 1.0,
            duplicates: false,
            skewed: false,
            unaligned: false,
            blocks: None,
            data: Data::Uniform,
            seed: 0,
        }
    }

    /// Whether every score is exact, so that there is one right result, ties included.
    #[must_use]
    pub fn has_exact_ids(&self) -> bool {
        self.data == Data::Integers && self.norm == NormKind::None && !self.affine
    }

    /// Whether gates are exact as well.
    #[must_use]
    pub fn is_exact(&self) -> bool {
        self.has_exact_ids()
            && matches!(self.gate, Gate::Relu | Gate::Identity)
            && matches!(self.temperature, 0.5 | 1.0 | 2.0)
    }

    /// The sizes in short.
    #[must_use]
    pub fn shape(&self) -> String {
        let Self { tokens, columns, heads, n, half, k, .. } = *self;
        format!("T={tokens} D={columns} H={heads} n={n} d={} k={k}", 2 * half)
    }

    /// The options in short.
    #[must_use]
    pub fn options(&self) -> String {
        let mut options = format!("{} {}", self.norm.name(), self.gate);
        for (is_there, name) in [
            (self.bias, " bias"),
            (self.affine, " affine"),
            (self.per_head_norm, " norm per head"),
            (self.per_head, " keys per head"),
            (self.duplicates, " duplicates"),
            (self.skewed, " skewed"),
            (self.unaligned, " unaligned keys"),
            (self.data == Data::Integers, " integers"),
        ] {
            if is_there {
                options.push_str(name);
            }
        }
        if self.temperature != 1.0 {
            options.push_str(&format!(" temperature {}", self.temperature));
        }
        if let Some(blocks) = self.blocks {
            options.push_str(&format!(" {blocks}"));
        }
        options
    }
}
