//! Sizes of PEER layers.

use warpsmith::DType;
use warpsmith::ops::peer::ExpertFormat;

/// The sizes of a layer, and how many tokens go through it at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerSizes {
    /// Tokens.
    pub tokens: usize,
    /// Columns of the tokens.
    pub input: usize,
    /// Columns of the outputs.
    pub output: usize,
    /// Heads, each with sub-keys of its own.
    pub heads: usize,
    /// Experts of a token and head.
    pub top_k: usize,
    /// Columns of a head's query.
    pub query: usize,
    /// Sub-keys of a half: of n of them there are n² experts.
    pub sub_keys: usize,
    /// Element type of the tokens, the projection and the sub-keys: f16, bf16 or f32.
    pub dtype: DType,
    /// The format of the experts' rows.
    pub format: ExpertFormat,
}

impl PeerSizes {
    /// The layer that PEER is measured by: 1024 inputs and outputs, 1 048 576 experts of one hidden unit, 8 heads of 16 each, queries of
    /// 256; all bf16.
    #[must_use]
    pub const fn reference(tokens: usize) -> Self {
        Self {
            tokens,
            input: 1024,
            output: 1024,
            heads: 8,
            top_k: 16,
            query: 256,
            sub_keys: 1024,
            dtype: DType::Bf16,
            format: ExpertFormat::Bf16,
        }
    }

    /// Experts.
    #[must_use]
    pub const fn experts(&self) -> usize {
        self.sub_keys.saturating_mul(self.sub_keys)
    }

    /// Floating-point operations of projection, scores and experts.
    #[must_use]
    pub fn flops(&self) -> f64 {
        let projection = self.heads * self.query * self.input;
        let scores = self.heads * self.query * self.sub_keys;
        let experts = self.heads * self.top_k * (self.input + self.output);
        2.0 * self.tokens as f64 * (projection + scores + experts) as f64
    }
}
