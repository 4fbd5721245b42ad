//! The block of a transformer: norm, attention, norm, multilayer perceptron, each pair with a residual.

mod config;
mod forward;
mod training;

pub use config::{BlockConfig, BlockNames};
pub use forward::BlockForward;
pub use training::{BlockGradients, BlockSaved};

use super::{Attention, KvCache, LayerNorm, Mlp, RmsNorm};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::ops::attention::AttentionInput;
use crate::ops::elementwise::ElementwiseElement;
use crate::ops::linear::{LinearGradientElement, LinearInput};
use crate::ops::norm::{NormElement, NormOp};
use crate::tensor::{Element, Tensor};

/// An element type of transformer blocks: [`f16`](struct@half::f16), [`bf16`](half::bf16) or `f32`.
pub trait TransformerInput:
    AttentionInput + LinearInput + LinearGradientElement + NormElement + ElementwiseElement
{
}

impl<T: AttentionInput + LinearInput + LinearGradientElement + NormElement + ElementwiseElement>
    TransformerInput for T
{
}

/// A norm of either kind.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum BlockNorm<T: Element> {
    /// By mean and variance.
    Layer(LayerNorm<T>),
    /// By the mean square.
    Rms(RmsNorm<T>),
}

impl<T: Element> From<LayerNorm<T>> for BlockNorm<T> {
    fn from(norm: LayerNorm<T>) -> Self {
        Self::Layer(norm)
    }
}

impl<T: Element> From<RmsNorm<T>> for BlockNorm<T> {
    fn from(norm: RmsNorm<T>) -> Self {
        Self::Rms(norm)
    }
}

impl<T: NormElement> BlockNorm<T> {
    /// The weight `[N]`.
    #[must_use]
    pub fn weight(&self) -> &Tensor<T> {
        match self {
            Self::Layer(norm) => norm.weight(),
            Self::Rms(norm) => norm.weight(),
        }
    }

    /// The norm's operation on `x`.
    pub fn operation<'a>(&'a self, x: &'a Tensor<T>) -> NormOp<'a, T> {
        match self {
            Self::Layer(norm) => norm.operation(x),
            Self::Rms(norm) => norm.operation(x),
        }
    }
}

/// A block of a transformer that norms before its layers: `h = x + attention(norm(x))` and `y = h + mlp(norm(h))`.
///
/// No sum has a launch of its own: the second norm adds the first residual, the last product the second.
///
/// ```
/// use warpsmith::layers::{Attention, AttentionConfig, Linear, Mlp, Parameters, RmsNorm, TransformerBlock};
/// use warpsmith::ops::{Activation, Pairing, RotaryTable};
/// use warpsmith::optim::{AdamW, AdamWOptions};
/// use warpsmith::{Device, Tensor};
///
/// # fn main() -> warpsmith::Result<()> {
/// let device = Device::cpu();
/// let numbers = |count: usize| (0..count).map(|i| (i * 37 % 101) as f32 / 202.0 - 0.25).collect::<Vec<_>>();
/// let tensor = |shape: &[usize]| Tensor::from_slice(&device, &numbers(shape.iter().product()), shape);
/// let linear = |out, columns| Linear::new(tensor(&[out, columns])?, None, Activation::None);
/// let norm = || RmsNorm::new(Tensor::from_slice(&device, &[1.0f32; 16], [16])?);
///
/// // Two heads of eight columns, and a gated perceptron with 24 hidden numbers.
/// let attention = Attention::fused(AttentionConfig::new(2).causal(), linear(3 * 16, 16)?, linear(16, 16)?)?;
/// let attention = attention.with_rotary(RotaryTable::new(&device, 10_000.0, 8, 64)?, Pairing::Halves)?;
/// let mlp = Mlp::gated_fused(linear(2 * 24, 16)?, linear(16, 24)?, Activation::Silu)?;
/// let block = TransformerBlock::new(norm()?, attention, norm()?, mlp)?;
///
/// let mut optimizer = AdamW::new(&device, AdamWOptions::default())?;
/// for (name, weights) in block.parameters("blocks.0") {
///     optimizer.add(name, weights)?;
/// }
/// let x = tensor(&[2, 10, 16])?;
/// let (y, saved) = block.forward_train(&x)?;
/// let gradients = block.backward(&saved, &y)?;
/// optimizer.step(&block.gradients(&gradients))?;
/// assert_eq!(gradients.dx().shape(), x.shape());
///
/// // One token after the other.
/// let mut cache = block.new_cache(2, 64)?;
/// block.forward_with_cache(&x.slice(1, 0..9)?, &mut cache)?;
/// assert_eq!(block.forward_with_cache(&x.slice(1, 9..10)?, &mut cache)?.shape(), [2, 1, 16]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct TransformerBlock<T: TransformerInput> {
    input_norm: BlockNorm<T>,
    attention: Attention<T>,
    mlp_norm: BlockNorm<T>,
    mlp: Mlp<T>,
}

impl<T: TransformerInput> TransformerBlock<T> {
    /// A block of these layers, all of which have rows of the same length.
    ///
    /// # Errors
    ///
    /// [`Error::Shape`] if a weight is for rows of another length, [`Error::DeviceMismatch`] if one is another device's.
    pub fn new(
        input_norm: impl Into<BlockNorm<T>>,
        attention: Attention<T>,
        mlp_norm: impl Into<BlockNorm<T>>,
        mlp: Mlp<T>,
    ) -> Result<Self> {
        const OPERATION: &str = "TransformerBlock::new";
        let block = Self { input_norm: input_norm.into(), attention, mlp_norm: mlp_norm.into(), mlp };
        let columns = block.attention.input();
        let weights = [
            ("input_norm", block.input_norm.weight(), 0),
            ("attention.output", block.attention.output().weight(), 0),
            ("mlp_norm", block.mlp_norm.weight(), 0),
            ("mlp.up", block.mlp.projections()[0].weight(), 1),
            ("mlp.down", block.mlp.down().weight(), 0),
        ];
        for (operand, weight, axis) in weights {
            block.device().expect_same(OPERATION, operand, weight.device())?;
            if weight.shape()[axis] != columns {
                return Err(Error::Shape {
                    operation: OPERATION,
                    operand,
                    expected: format!("axis {axis} of {columns}, as the attention's projections take"),
                    actual: weight.shape().to_vec(),
                });
            }
        }
        Ok(block)
    }

    /// The block's output for x `[B, S, N]`: `[B, S, N]`.
    ///
    /// # Errors
    ///
    /// As [`BlockForward::run`].
    pub fn forward(&self, x: &Tensor<T>) -> Result<Tensor<T>> {
        self.operation(x).run()
    }

    /// The block's output for x `[B, S, N]`, rows that follow the keys which `cache` has; see [`Attention::forward_with_cache`].
    ///
    /// # Errors
    ///
    /// As [`BlockForward::run`].
    pub fn forward_with_cache(&self, x: &Tensor<T>, cache: &mut KvCache<T>) -> Result<Tensor<T>> {
        self.operation(x).cache(cache).run()
    }

    /// The forward pass of x `[B, S, N]`, or `[T, N]` of packed sequences, for what else it can do: sequences of different lengths, a cache, a stream.
    pub fn operation<'a>(&'a self, x: &'a Tensor<T>) -> BlockForward<'a, T> {
        BlockForward::new(self, x)
    }

    /// An empty cache for the block's attention, for `batch` sequences of at most `capacity` keys.
    ///
    /// # Errors
    ///
    /// As [`KvCache::new`].
    pub fn new_cache(&self, batch: usize, capacity: usize) -> Result<KvCache<T>> {
        self.attention.new_cache(batch, capacity)
    }

    /// The norm before the attention.
    #[must_use]
    pub fn input_norm(&self) -> &BlockNorm<T> {
        &self.input_norm
    }

    /// The attention.
    #[must_use]
    pub fn attention(&self) -> &Attention<T> {
        &self.attention
    }

    /// The norm before the multilayer perceptron.
    #[must_use]
    pub fn mlp_norm(&self) -> &BlockNorm<T> {
        &self.mlp_norm
    }

    /// The multilayer perceptron.
    #[must_use]
    pub fn mlp(&self) -> &Mlp<T> {
        &self.mlp
    }

    /// The device that holds the weights.
    #[must_use]
    pub fn device(&self) -> &Device {
        self.attention.device()
    }
}

#[cfg(test)]
mod tests;
