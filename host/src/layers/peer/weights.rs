//! A PEER layer's router: the tensors that experts are found with.

use super::config::{Norm, PeerConfig};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::ops::peer::{QueryNorm, RoutingInput, normalized_keys};
use crate::tensor::{Element, Tensor};
use crate::weights::{FloatElement, Weights};

/// The tensors that a PEER layer finds experts with, for H heads, n sub-keys a half, queries of d numbers, and D inputs.
#[derive(Clone, Debug)]
pub struct PeerRouter<T: Element> {
    /// The projection to queries, `[H · d, D]`.
    pub query: Tensor<T>,
    /// Is added to queries, `[H · d]`.
    pub query_bias: Option<Tensor<T>>,
    /// The sub-keys of both halves, `[n, d / 2]` shared by the heads, or `[H, n, d / 2]`.
    pub keys: [Tensor<T>; 2],
    /// Multiplies normalised queries, `[d]` or `[H, d]`.
    pub query_norm_weight: Option<Tensor<f32>>,
    /// Is added to normalised queries, likewise.
    pub query_norm_bias: Option<Tensor<f32>>,
    /// Mean and variance of each feature, likewise, if queries are normalised by them.
    pub query_norm_statistics: Option<[Tensor<f32>; 2]>,
    /// Multiplies normalised sub-keys, `[d / 2]`, or `[H, d / 2]` for sub-keys of each head.
    pub key_norm_weight: Option<Tensor<f32>>,
    /// Is added to normalised sub-keys, likewise.
    pub key_norm_bias: Option<Tensor<f32>>,
}

impl<T: RoutingInput> PeerRouter<T> {
    /// A router without bias, and norms without weight and bias.
    #[must_use]
    pub fn new(query: Tensor<T>, keys: [Tensor<T>; 2]) -> Self {
        Self {
            query,
            query_bias: None,
            keys,
            query_norm_weight: None,
            query_norm_bias: None,
            query_norm_statistics: None,
            key_norm_weight: None,
            key_norm_bias: None,
        }
    }

    /// The router of a file, its own tensors made by `tensor`.
    pub(super) fn load(
        weights: &Weights,
        prefix: &str,
        device: &Device,
        norm: Norm,
        tensor: impl Fn(&str) -> Result<Tensor<T>>,
    ) -> Result<Self> {
        let name = |name: &str| format!("{prefix}.{name}");
        let optional = |suffix: &str| {
            let name = name(suffix);
            weights.contains(&name).then(|| weights.tensor_converted::<f32>(&name, device)).transpose()
        };
        let bias = name("query.bias");
        let statistics = match norm {
            Norm::Batch { .. } => {
                let of = |suffix| weights.tensor_converted::<f32>(&name(suffix), device);
                Some([of("query_norm.running_mean")?, of("query_norm.running_var")?])
            }
            _ => None,
        };
        Ok(Self {
            query: tensor(&name("query.weight"))?,
            query_bias: weights.contains(&bias).then(|| tensor(&bias)).transpose()?,
            keys: [tensor(&name("keys_1"))?, tensor(&name("keys_2"))?],
            query_norm_weight: optional("query_norm.weight")?,
            query_norm_bias: optional("query_norm.bias")?,
            query_norm_statistics: statistics,
            key_norm_weight: optional("key_norm.weight")?,
            key_norm_bias: optional("key_norm.bias")?,
        })
    }

    /// The router with normalised sub-keys, once everything has been found to fit.
    pub(super) fn prepared(mut self, config: &PeerConfig, device: &Device) -> Result<Self>
    where
        T: FloatElement,
    {
        let half = config.query / 2;
        let wrong = |operand, expected: String, actual: &[usize]| {
            Err(Error::Shape { operation: OPERATION, operand, expected, actual: actual.to_vec() })
        };
        let rows = config.heads.saturating_mul(config.query);
        if self.query.shape() != [rows, config.input] {
            return wrong("query", format!("[{rows}, {}]", config.input), self.query.shape());
        }
        for (operand, keys) in [("keys_1", &self.keys[0]), ("keys_2", &self.keys[1])] {
            if !matches!(*keys.shape(), [n, d] if [n, d] == [config.sub_keys, half])
                && *keys.shape() != [config.heads, config.sub_keys, half]
            {
                let (heads, n) = (config.heads, config.sub_keys);
                return wrong(operand, format!("[{n}, {half}] or [{heads}, {n}, {half}]"), keys.shape());
            }
            device.expect_same(OPERATION, operand, keys.device())?;
        }
        let [first, second] = &self.keys;
        if first.shape() != second.shape() {
            return wrong("keys_2", format!("{:?}, as keys_1 has", first.shape()), second.shape());
        }
        device.expect_same(OPERATION, "query", self.query.device())?;
        if let Some(bias) = &self.query_bias {
            if bias.shape() != [rows] {
                return wrong("query_bias", format!("[{rows}]"), bias.shape());
            }
            device.expect_same(OPERATION, "query_bias", bias.device())?;
        }
        let mut pairs = vec![[
            ("query_norm_weight", self.query_norm_weight.as_ref()),
            ("query_norm_bias", self.query_norm_bias.as_ref()),
        ]];
        if let (Norm::Batch { .. }, Some([mean, variance])) = (config.query_norm, &self.query_norm_statistics)
        {
            pairs.push([
                ("mean of query_norm_statistics", Some(mean)),
                ("variance of query_norm_statistics", Some(variance)),
            ]);
        }
        for pair in pairs {
            for (operand, tensor) in pair {
                expect_features(operand, tensor, [config.heads, config.query], device)?;
            }
            if let [(of_first, Some(first)), (operand, Some(second))] = pair
                && first.shape() != second.shape()
            {
                let expected = format!("{:?}, as the {of_first} has", first.shape());
                return wrong(operand, expected, second.shape());
            }
        }
        // Sub-keys that all heads share are normalised once.
        let groups = if first.rank() == 3 { config.heads } else { 1 };
        for (operand, tensor) in
            [("key_norm_weight", &self.key_norm_weight), ("key_norm_bias", &self.key_norm_bias)]
        {
            expect_features(operand, tensor.as_ref(), [groups, half], device)?;
        }
        if matches!(config.query_norm, Norm::Batch { .. }) && self.query_norm_statistics.is_none() {
            return Err(Error::Argument {
                operation: OPERATION,
                argument: "query_norm_statistics",
                expected: "mean and variance, for a batch norm".into(),
                actual: "none".into(),
            });
        }
        if config.key_norm != Norm::None || self.key_norm_weight.is_some() || self.key_norm_bias.is_some() {
            let (weight, bias) = (self.key_norm_weight.as_ref(), self.key_norm_bias.as_ref());
            let norm = with_tensors(config.key_norm, None, weight, bias);
            let [first, second] = &self.keys;
            self.keys = [normalized_keys(first, norm)?, normalized_keys(second, norm)?];
        }
        Ok(self)
    }

    /// How queries are normalised.
    pub(super) fn query_norm(&self, norm: Norm) -> QueryNorm<'_> {
        let statistics = self.query_norm_statistics.as_ref();
        with_tensors(norm, statistics, self.query_norm_weight.as_ref(), self.query_norm_bias.as_ref())
    }
}

/// What the errors of this module are about.
const OPERATION: &str = "Peer::new";

/// Refuses a tensor of a norm that is neither `[features]` nor `[groups, features]`, or is elsewhere.
fn expect_features(
    operand: &'static str,
    tensor: Option<&Tensor<f32>>,
    [groups, features]: [usize; 2],
    device: &Device,
) -> Result<()> {
    let Some(tensor) = tensor else { return Ok(()) };
    if tensor.shape() != [features] && tensor.shape() != [groups, features] {
        return Err(Error::Shape {
            operation: OPERATION,
            operand,
            expected: format!("[{features}] or [{groups}, {features}]"),
            actual: tensor.shape().to_vec(),
        });
    }
    device.expect_same(OPERATION, operand, tensor.device())
}

/// A norm with what it multiplies with and adds.
fn with_tensors<'a>(
    norm: Norm,
    statistics: Option<&'a [Tensor<f32>; 2]>,
    weight: Option<&'a Tensor<f32>>,
    bias: Option<&'a Tensor<f32>>,
) -> QueryNorm<'a> {
    let mut of_vectors = match (norm, statistics) {
        (Norm::Layer { epsilon }, _) => QueryNorm::layer(epsilon),
        (Norm::Rms { epsilon }, _) => QueryNorm::rms(epsilon),
        (Norm::L2 { epsilon }, _) => QueryNorm::l2(epsilon),
        (Norm::Batch { epsilon }, Some([mean, variance])) => QueryNorm::batch(mean, variance, epsilon),
        // A batch norm without statistics has been refused.
        (Norm::None | Norm::Batch { .. }, _) => QueryNorm::none(),
    };
    if let Some(weight) = weight {
        of_vectors = of_vectors.weight(weight);
    }
    if let Some(bias) = bias {
        of_vectors = of_vectors.bias(bias);
    }
    of_vectors
}
