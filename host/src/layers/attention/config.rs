//! What an attention layer is: its heads, what is done to the scores, and the names of its weights.

use crate::error::{Error, Result};
use crate::ops::SIDE_LIMIT;

/// Heads and options of an [`Attention`](super::Attention) layer.
///
/// By default each head of queries has keys and values of its own, and each row attends to every key.
///
/// ```
/// use warpsmith::layers::AttentionConfig;
///
/// // 32 heads of queries, four of which share one of keys and values, and a sliding window of 4096 keys.
/// let config = AttentionConfig::new(32).key_heads(8).window(Some(4095), Some(0));
/// assert_eq!(config, AttentionConfig::new(32).key_heads(8).causal().window(Some(4095), Some(0)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionConfig {
    pub(super) heads: usize,
    pub(super) key_heads: usize,
    /// Keys to the left and to the right that a row attends to, beside its own.
    pub(super) window: [Option<u32>; 2],
    pub(super) scale: Option<f32>,
    pub(super) soft_cap: Option<f32>,
}

impl AttentionConfig {
    /// So many heads, of queries as of keys and values.
    #[must_use]
    pub const fn new(heads: usize) -> Self {
        Self { heads, key_heads: heads, window: [None; 2], scale: None, soft_cap: None }
    }

    /// Heads of keys and values, a divisor of those of queries: grouped-query attention, or multi-query attention with one.
    #[must_use]
    pub const fn key_heads(self, key_heads: usize) -> Self {
        Self { key_heads, ..self }
    }

    /// Rows attend to no key after their own. It is [`window`](Self::window) with all keys to the left and none to the right.
    #[must_use]
    pub const fn causal(self) -> Self {
        self.window(None, Some(0))
    }

    /// Rows attend to so many keys before and after their own; `None` is all of them. The last call of this and [`causal`](Self::causal) holds.
    ///
    /// The last row of a sequence stands beside its last key, so that rows which follow a cache's keys continue them.
    #[must_use]
    pub const fn window(self, left: Option<u32>, right: Option<u32>) -> Self {
        Self { window: [left, right], ..self }
    }

    /// What products of queries and keys are multiplied with: 1/√D unless it is set.
    #[must_use]
    pub const fn scale(self, scale: f32) -> Self {
        Self { scale: Some(scale), ..self }
    }

    /// Bounds the scores: t becomes `cap · tanh(t / cap)`.
    #[must_use]
    pub const fn soft_cap(self, cap: f32) -> Self {
        Self { soft_cap: Some(cap), ..self }
    }

    /// The error for what no attention has.
    pub(super) fn check(&self, operation: &'static str) -> Result<()> {
        let error = |argument, expected: String, actual: String| {
            Err(Error::Argument { operation, argument, expected, actual })
        };
        if self.heads == 0 || self.heads as u64 >= SIDE_LIMIT {
            let expected = format!("at least 1 and less than {SIDE_LIMIT}");
            return error("heads", expected, self.heads.to_string());
        }
        if self.key_heads == 0 || !self.heads.is_multiple_of(self.key_heads) {
            let expected = format!("a divisor of the {} heads", self.heads);
            return error("key_heads", expected, self.key_heads.to_string());
        }
        match (self.scale, self.soft_cap) {
            (Some(scale), _) if !scale.is_finite() => {
                error("scale", "a finite number".into(), scale.to_string())
            }
            (_, Some(cap)) if !(cap.is_finite() && cap > 0.0) => {
                error("soft_cap", "a finite number above 0".into(), cap.to_string())
            }
            _ => Ok(()),
        }
    }
}

/// What follows a layer's prefix and a dot in the names of its tensors; `.weight` and `.bias` follow.
///
/// ```
/// use warpsmith::layers::AttentionNames;
///
/// assert_eq!(
///     AttentionNames::default(),
///     AttentionNames::Separate { q: "q_proj", k: "k_proj", v: "v_proj", output: "o_proj" }
/// );
/// // As BERT has them, with the prefix `encoder.layer.0.attention`.
/// let bert = AttentionNames::Separate { q: "self.query", k: "self.key", v: "self.value", output: "output.dense" };
/// assert_ne!(bert, AttentionNames::default());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttentionNames<'a> {
    /// A projection each.
    Separate {
        /// That of queries.
        q: &'a str,
        /// That of keys.
        k: &'a str,
        /// That of values.
        v: &'a str,
        /// That of the results.
        output: &'a str,
    },
    /// One projection of queries, keys and values.
    Fused {
        /// That one.
        qkv: &'a str,
        /// That of the results.
        output: &'a str,
    },
}

impl Default for AttentionNames<'_> {
    /// Separate projections with the names `q_proj`, `k_proj`, `v_proj` and `o_proj`.
    fn default() -> Self {
        Self::Separate { q: "q_proj", k: "k_proj", v: "v_proj", output: "o_proj" }
    }
}
