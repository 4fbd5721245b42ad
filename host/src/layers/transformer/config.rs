//! Transformer blocks from files: what a block is beside its weights, and the names of those.

use std::cell::RefCell;
use std::collections::BTreeSet;

use super::super::parameters::joined;
use super::super::{Attention, AttentionConfig, AttentionNames, LayerNorm, Linear, Mlp, MlpNames, RmsNorm};
use super::{BlockNorm, TransformerBlock, TransformerInput};
use crate::device::Device;
use crate::error::Result;
use crate::ops::{Activation, Pairing, RotaryTable};
use crate::tensor::Tensor;
use crate::weights::{FloatElement, Weights};

/// What a [`TransformerBlock`] is beside its weights: its attention, the kind of its norms, its activation, its positions.
///
/// ```
/// use warpsmith::layers::{AttentionConfig, BlockConfig};
/// use warpsmith::ops::{Activation, Pairing, RotaryTable};
/// use warpsmith::Device;
///
/// # fn main() -> warpsmith::Result<()> {
/// let attention = AttentionConfig::new(32).key_heads(8).causal();
/// let table = RotaryTable::new(&Device::cpu(), 10_000.0, 128, 4096)?;
/// // RMS norms and SiLU, as Llama has them.
/// let llama = BlockConfig::new(attention).rms_norm(1e-5).rotary(table, Pairing::Halves);
/// // Layer norms and a GELU, no positions.
/// let other = BlockConfig::new(attention).layer_norm(1e-5).activation(Activation::GeluTanh);
/// # let _ = (llama, other);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct BlockConfig {
    attention: AttentionConfig,
    norm: NormKind,
    activation: Activation,
    rotary: Option<(RotaryTable, Pairing)>,
}

#[derive(Clone, Copy, Debug)]
enum NormKind {
    Layer { epsilon: f32 },
    Rms { epsilon: f32, weight_offset: f32 },
}

impl BlockConfig {
    /// A block with this attention, RMS norms with an ε of 10⁻⁵, [`Activation::Silu`], and no rotary position embedding.
    #[must_use]
    pub const fn new(attention: AttentionConfig) -> Self {
        let norm = NormKind::Rms { epsilon: 1e-5, weight_offset: 0.0 };
        Self { attention, norm, activation: Activation::Silu, rotary: None }
    }

    /// RMS norms with this ε. The last call that names a kind of norm holds.
    #[must_use]
    pub fn rms_norm(self, epsilon: f32) -> Self {
        self.rms_norm_with_offset(epsilon, 0.0)
    }

    /// RMS norms with this ε, and so much added to each weight: 1 where weights are stored as differences to 1.
    #[must_use]
    pub fn rms_norm_with_offset(self, epsilon: f32, weight_offset: f32) -> Self {
        Self { norm: NormKind::Rms { epsilon, weight_offset }, ..self }
    }

    /// Layer norms with this ε.
    #[must_use]
    pub fn layer_norm(self, epsilon: f32) -> Self {
        Self { norm: NormKind::Layer { epsilon }, ..self }
    }

    /// The activation of the perceptron.
    #[must_use]
    pub fn activation(self, activation: Activation) -> Self {
        Self { activation, ..self }
    }

    /// Queries and keys are turned by their positions: see [`Attention::with_rotary`].
    #[must_use]
    pub fn rotary(self, table: RotaryTable, pairing: Pairing) -> Self {
        Self { rotary: Some((table, pairing)), ..self }
    }
}

/// What follows a block's prefix and a dot in the names of its tensors.
///
/// ```
/// use warpsmith::layers::{BlockNames, MlpNames};
///
/// // As Llama, Mistral and Qwen2 have them, with the prefix `model.layers.0`.
/// let names = BlockNames::default();
/// assert_eq!((names.input_norm, names.attention), ("input_layernorm", "self_attn"));
/// // As Phi-3 has its perceptron.
/// let phi = BlockNames { in_mlp: MlpNames::GatedFused { gate_up: "gate_up_proj", down: "down_proj" }, ..names };
/// assert_ne!(phi, names);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockNames<'a> {
    /// The norm before the attention.
    pub input_norm: &'a str,
    /// The attention.
    pub attention: &'a str,
    /// What follows the attention's name and a dot.
    pub in_attention: AttentionNames<'a>,
    /// The norm before the perceptron.
    pub mlp_norm: &'a str,
    /// The perceptron.
    pub mlp: &'a str,
    /// What follows the perceptron's name and a dot.
    pub in_mlp: MlpNames<'a>,
    /// Tensors that may be there and are not read: their names, or what stands before a dot in them. Any other tensor after the block's prefix is an
    /// error, since a block with more tensors is another one.
    pub ignored: &'a [&'a str],
}

impl Default for BlockNames<'_> {
    /// `input_layernorm`, `self_attn`, `post_attention_layernorm` and `mlp`, and the defaults of the names in them. The frequencies of a rotary embedding,
    /// `self_attn.rotary_emb`, are ignored.
    fn default() -> Self {
        Self {
            input_norm: "input_layernorm",
            attention: "self_attn",
            in_attention: AttentionNames::default(),
            mlp_norm: "post_attention_layernorm",
            mlp: "mlp",
            in_mlp: MlpNames::default(),
            ignored: &["self_attn.rotary_emb"],
        }
    }
}

impl<T: TransformerInput> TransformerBlock<T> {
    /// A block with the tensors that `names` gives after `prefix` and a dot, which are of type `T`. Each bias may be missing. With an empty prefix the file is that
    /// of the block alone.
    ///
    /// ```
    /// # use std::collections::BTreeMap;
    /// use warpsmith::layers::{AttentionConfig, BlockConfig, BlockNames, TransformerBlock};
    /// use warpsmith::{Device, Tensor, Weights};
    ///
    /// # fn main() -> warpsmith::Result<()> {
    /// # let shapes = [("input_layernorm", vec![8]), ("self_attn.q_proj", vec![8, 8]), ("self_attn.k_proj", vec![4, 8]),
    /// #     ("self_attn.v_proj", vec![4, 8]), ("self_attn.o_proj", vec![8, 8]), ("post_attention_layernorm", vec![8]),
    /// #     ("mlp.gate_proj", vec![12, 8]), ("mlp.up_proj", vec![12, 8]), ("mlp.down_proj", vec![8, 12])];
    /// # let zeros = vec![0u8; 4 * 96];
    /// # let file: BTreeMap<_, _> = shapes.iter().map(|(name, shape)| {
    /// #     let bytes = &zeros[..4 * shape.iter().product::<usize>()];
    /// #     let view = safetensors::tensor::TensorView::new(safetensors::Dtype::F32, shape.clone(), bytes).unwrap();
    /// #     (format!("model.layers.0.{name}.weight"), view)
    /// # }).collect();
    /// # let weights = Weights::from_bytes(safetensors::serialize(file, None).unwrap())?;
    /// // `let weights = Weights::load("model.safetensors")?;`
    /// let device = Device::cpu();
    /// let config = BlockConfig::new(AttentionConfig::new(2).key_heads(1).causal()).rms_norm(1e-6);
    /// let block = TransformerBlock::<f32>::from_safetensors(
    ///     &weights,
    ///     "model.layers.0",
    ///     &device,
    ///     &config,
    ///     BlockNames::default(),
    /// )?;
    /// let x = Tensor::from_slice(&device, &[1.0f32; 3 * 8], [1, 3, 8])?;
    /// assert_eq!(block.forward(&x)?.shape(), [1, 3, 8]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Weights`](crate::Error::Weights) if a weight is missing, a tensor has another type, or there is one after the prefix that the block does not read and
    /// `names` does not ignore. Otherwise as the layers' constructors, as [`new`](Self::new) and for copying to the device.
    pub fn from_safetensors(
        weights: &Weights,
        prefix: &str,
        device: &Device,
        config: &BlockConfig,
        names: BlockNames<'_>,
    ) -> Result<Self> {
        Self::load(weights, prefix, config, names, |name| weights.tensor(name, device))
    }

    /// As [`from_safetensors`](Self::from_safetensors), with weights of any floating-point type rounded to `T`.
    ///
    /// # Errors
    ///
    /// As [`from_safetensors`](Self::from_safetensors); a tensor must be of a floating-point type.
    pub fn from_safetensors_converted(
        weights: &Weights,
        prefix: &str,
        device: &Device,
        config: &BlockConfig,
        names: BlockNames<'_>,
    ) -> Result<Self>
    where
        T: FloatElement,
    {
        Self::load(weights, prefix, config, names, |name| weights.tensor_converted(name, device))
    }

    fn load(
        weights: &Weights,
        prefix: &str,
        config: &BlockConfig,
        names: BlockNames<'_>,
        tensor: impl Fn(&str) -> Result<Tensor<T>>,
    ) -> Result<Self> {
        let read = RefCell::new(BTreeSet::new());
        let tensor = |name: &str| {
            read.borrow_mut().insert(name.to_owned());
            tensor(name)
        };
        let linear = |layer: &str, name: &str, activation| {
            let name = joined(&joined(prefix, layer), name);
            Linear::load(weights, &name, activation, tensor)
        };
        let norm = |name: &str| -> Result<BlockNorm<T>> {
            let name = joined(prefix, name);
            Ok(match config.norm {
                NormKind::Layer { epsilon } => {
                    LayerNorm::load(weights, &name, tensor)?.with_epsilon(epsilon).into()
                }
                NormKind::Rms { epsilon, weight_offset } => RmsNorm::new(tensor(&joined(&name, "weight"))?)?
                    .with_epsilon(epsilon)
                    .with_weight_offset(weight_offset)
                    .into(),
            })
        };
        let attention = Attention::load(config.attention, names.in_attention, |name| {
            linear(names.attention, name, Activation::None)
        })?;
        let attention = match &config.rotary {
            Some((table, pairing)) => attention.with_rotary(table.clone(), *pairing)?,
            None => attention,
        };
        let mlp = Mlp::load(config.activation, names.in_mlp, |name, activation| {
            linear(names.mlp, name, activation)
        })?;
        let block = Self::new(norm(names.input_norm)?, attention, norm(names.mlp_norm)?, mlp)?;
        let (read, ignored) = (read.borrow(), names.ignored.iter().map(|name| joined(prefix, name)));
        let ignored: Vec<String> = ignored.collect();
        let is_ignored = |name: &str| {
            let is_of = |ignored: &String| {
                name.strip_prefix(ignored.as_str())
                    .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
            };
            ignored.iter().any(is_of)
        };
        weights.expect_known(prefix, |name| read.contains(name) || is_ignored(name))?;
        Ok(block)
    }
}

#[cfg(test)]
mod tests;
