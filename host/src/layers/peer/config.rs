//! What a PEER layer is: its sizes, and the variants that published implementations have.

use crate::error::{Error, Result};
use crate::layers::ExpertOptions;
use crate::ops::Activation;
use crate::ops::peer::{ExpertFormat, Gate};
use crate::peer::{CacheOptions, ExpertMemory};

/// How vectors are normalised.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Norm {
    /// Not at all.
    None,
    /// By mean and variance of the vector: `(q − mean) / √(variance + epsilon)`.
    Layer {
        /// What is added to the variance.
        epsilon: f32,
    },
    /// By the mean square of the vector: `q / √(mean square + epsilon)`.
    Rms {
        /// What is added to the mean square.
        epsilon: f32,
    },
    /// By the length of the vector: `q / max(length, epsilon)`.
    L2 {
        /// The least length.
        epsilon: f32,
    },
    /// By mean and variance of each feature as training has left them: `(q − mean) / √(variance + epsilon)`. Of queries only.
    Batch {
        /// What is added to the variance.
        epsilon: f32,
    },
}

impl Norm {
    fn epsilon(self) -> Option<f32> {
        match self {
            Self::None => None,
            Self::Layer { epsilon }
            | Self::Rms { epsilon }
            | Self::L2 { epsilon }
            | Self::Batch { epsilon } => Some(epsilon),
        }
    }
}

/// A PEER layer's sizes and variants. By default they are those of the paper ("Mixture of A Million Experts", He, 2024). 1024
/// inputs and outputs, 1024² experts of one hidden unit, 8 heads with 16 experts each, queries of 256 numbers with layer norm,
/// sub-keys that the heads share, a softmax over the experts of a head, and the GELU.
///
/// ```
/// use warpsmith::layers::PeerConfig;
/// use warpsmith::ops::peer::Gate;
///
/// let config = PeerConfig::default().input(512).output(512).sub_keys(256).gate(Gate::Relu);
/// assert_eq!(config.expert_count(), 65_536);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PeerConfig {
    pub(super) input: usize,
    pub(super) output: usize,
    pub(super) sub_keys: usize,
    pub(super) heads: usize,
    pub(super) experts_per_head: usize,
    pub(super) query: usize,
    pub(super) hidden: usize,
    pub(super) gated: bool,
    pub(super) query_norm: Norm,
    pub(super) key_norm: Norm,
    pub(super) gate: Gate,
    pub(super) temperature: f32,
    pub(super) format: Option<ExpertFormat>,
    pub(super) experts: ExpertOptions,
}

impl Default for PeerConfig {
    fn default() -> Self {
        Self {
            input: 1024,
            output: 1024,
            sub_keys: 1024,
            heads: 8,
            experts_per_head: 16,
            query: 256,
            hidden: 1,
            gated: false,
            query_norm: Norm::Layer { epsilon: 1e-5 },
            key_norm: Norm::None,
            gate: Gate::Softmax,
            temperature: 1.0,
            format: None,
            experts: ExpertOptions::default(),
        }
    }
}

macro_rules! setters {
    ($($(#[$doc:meta])* $name:ident: $type:ty;)*) => {
        $(
            $(#[$doc])*
            #[must_use]
            pub fn $name(self, $name: $type) -> Self {
                Self { $name, ..self }
            }
        )*
    };
}

impl PeerConfig {
    setters! {
        /// Columns of x, D.
        input: usize;
        /// Columns of y, O.
        output: usize;
        /// Sub-keys of a half, n: there are n² experts.
        sub_keys: usize;
        /// Heads, H.
        heads: usize;
        /// Experts that a head finds, k: 1 to 64.
        experts_per_head: usize;
        /// Numbers of a head's query, an even number.
        query: usize;
        /// Hidden units of an expert.
        hidden: usize;
        /// Whether hidden units are gated: `act(x·u) · (x·w)`.
        gated: bool;
        /// How a head's query is normalised.
        query_norm: Norm;
        /// How sub-keys are normalised, each by itself, when the layer is made.
        key_norm: Norm;
        /// What experts count, of their scores.
        gate: Gate;
        /// What scores are divided by before the gate.
        temperature: f32;
    }

    /// What hidden units do to x·u.
    #[must_use]
    pub fn activation(self, activation: Activation) -> Self {
        Self { experts: self.experts.activation(activation), ..self }
    }

    /// How the experts' numbers are held; as the layer's element type unless it is set.
    #[must_use]
    pub fn format(self, format: ExpertFormat) -> Self {
        Self { format: Some(format), ..self }
    }

    /// Where the experts are.
    #[must_use]
    pub fn memory(self, memory: ExpertMemory) -> Self {
        Self { experts: self.experts.memory(memory), ..self }
    }

    /// The cache before experts in host memory; its capacity also says what fits on the device.
    #[must_use]
    pub fn cache(self, cache: CacheOptions) -> Self {
        Self { experts: self.experts.cache(cache), ..self }
    }

    /// How many tokens are worked at a time with experts behind a cache; as many as is good unless it is set.
    #[must_use]
    pub fn chunk_tokens(self, tokens: usize) -> Self {
        Self { experts: self.experts.chunk_tokens(tokens), ..self }
    }

    /// How many experts there are: n².
    #[must_use]
    pub fn expert_count(&self) -> usize {
        self.sub_keys.saturating_mul(self.sub_keys)
    }

    /// The error for numbers that make no layer.
    pub(super) fn check(&self) -> Result<()> {
        let argument = |argument, expected: &str, actual: String| {
            Err(Error::Argument { operation: "Peer::new", argument, expected: expected.into(), actual })
        };
        if self.heads == 0 {
            return argument("heads", "at least 1", "0".into());
        }
        if self.query == 0 || !self.query.is_multiple_of(2) {
            return argument("query", "an even number, at least 2", self.query.to_string());
        }
        if self.sub_keys == 0 || self.sub_keys > MOST_SUB_KEYS {
            return argument("sub_keys", "1 to 65535", self.sub_keys.to_string());
        }
        let most = MOST_EXPERTS.min(self.sub_keys);
        if !(1..=most).contains(&self.experts_per_head) {
            return argument("experts_per_head", &format!("1 to {most}"), self.experts_per_head.to_string());
        }
        if matches!(self.key_norm, Norm::Batch { .. }) {
            let expected = "a norm of each sub-key by itself";
            return argument("key_norm", expected, format!("{:?}", self.key_norm));
        }
        let temperature = self.temperature;
        if !(temperature > 0.0 && temperature.is_finite() && (1.0 / temperature).is_finite()) {
            let expected = "above 0, and a number as its reciprocal is";
            return argument("temperature", expected, temperature.to_string());
        }
        for (name, norm) in [("query_norm", self.query_norm), ("key_norm", self.key_norm)] {
            if norm.epsilon().is_some_and(|epsilon| !(epsilon >= 0.0 && epsilon.is_finite())) {
                return argument(name, "an epsilon of 0 or above", format!("{norm:?}"));
            }
        }
        Ok(())
    }
}

/// Numbers of experts, and one that is none, are of 32 bits.
const MOST_SUB_KEYS: usize = 65_535;
/// Experts that a head finds, at most.
const MOST_EXPERTS: usize = crate::ops::topk::MAX_K;
