//! Multi-head attention as a layer: projections, attention, a cache of keys and values.

mod cache;
mod config;
mod forward;
mod training;

pub use cache::{CacheFormat, KvCache, KvCacheConfig};
pub use config::{AttentionConfig, AttentionNames};
pub use forward::AttentionForward;
pub use training::{AttentionLayerGradients, AttentionSaved, ProjectionGradients};

use super::Linear;
use super::parameters::joined;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::ops::attention::AttentionInput;
use crate::ops::linear::LinearInput;
use crate::ops::{Activation, Pairing, RotaryTable};
use crate::stream::Stream;
use crate::tensor::{Element, Tensor};
use crate::weights::{FloatElement, Weights};

/// The forward pass's name in errors.
const OPERATION: &str = "Attention::forward";
/// The constructors' name in errors.
const NEW: &str = "Attention::new";

/// Multi-head attention: `y = concat(attention(Q, K, V)) Wₒᵀ + bₒ` with Q, K and V = `x Wᵀ + b`, for H heads of queries and Hk of keys and values.
///
/// It is three operations, or five with separate projections. No data is copied between them: heads are views of what the projections return. It is
/// what [`ops::linear`](crate::ops::linear()) and [`ops::attention`](crate::ops::attention()) compute, with their types and devices. Positions are encoded by
/// [rotary position embedding](Self::with_rotary) or [ALiBi](Self::with_alibi), if asked for.
///
/// ```
/// use warpsmith::layers::{Attention, AttentionConfig, Linear};
/// use warpsmith::ops::Activation;
/// use warpsmith::{Device, Tensor};
///
/// # fn main() -> warpsmith::Result<()> {
/// let device = Device::cpu();
/// let numbers = |count: usize| (0..count).map(|i| (i * 37 % 101) as f32 / 101.0 - 0.5).collect::<Vec<_>>();
/// let tensor = |shape: &[usize]| Tensor::from_slice(&device, &numbers(shape.iter().product()), shape);
/// let linear = |out, columns| Linear::new(tensor(&[out, columns])?, None, Activation::None);
///
/// // Four heads of queries and two of keys and values, of 16 columns each; 64 numbers in and out.
/// let config = AttentionConfig::new(4).key_heads(2).causal();
/// let layer = Attention::fused(config, linear((4 + 2 + 2) * 16, 64)?, linear(64, 4 * 16)?)?;
/// let prompts = tensor(&[3, 10, 64])?;
/// let all = layer.forward(&prompts)?;
/// assert_eq!(all.shape(), [3, 10, 64]);
///
/// // The same in two steps: nine tokens, and one that follows them.
/// let mut cache = layer.new_cache(3, 100)?;
/// layer.forward_with_cache(&prompts.slice(1, 0..9)?, &mut cache)?;
/// let last = layer.forward_with_cache(&prompts.slice(1, 9..10)?, &mut cache)?;
/// assert_eq!(cache.lengths()?, [10, 10, 10]);
/// let expected = all.slice(1, 9..10)?.to_vec()?;
/// assert!(last.to_vec()?.iter().zip(expected).all(|(y, expected)| (y - expected).abs() < 1e-5));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Attention<T: AttentionInput + LinearInput> {
    config: AttentionConfig,
    projection: Projection<T>,
    output: Linear<T>,
    /// Columns of a query and a key.
    width: usize,
    /// Columns of a value.
    value_width: usize,
    slopes: Option<Tensor<f32>>,
    sinks: Option<Tensor<f32>>,
    rotary: Option<(RotaryTable, Pairing)>,
}

/// What makes queries, keys and values of tokens.
#[derive(Clone, Debug)]
enum Projection<T: LinearInput> {
    /// Of all three, one after the other.
    Fused(Box<Linear<T>>),
    /// Of queries, keys and values.
    Separate(Box<[Linear<T>; 3]>),
}

impl<T: AttentionInput + LinearInput> Attention<T> {
    /// A layer with a projection each: the weights of `q` are `[H · D, in]`, of `k` `[Hk · D, in]`, of `v` `[Hk · Dv, in]`, of `output` `[out, H · Dv]`.
    ///
    /// The rows of a head follow each other. D and Dv follow from the shapes.
    ///
    /// # Errors
    ///
    /// [`Error::Shape`] or [`Error::DeviceMismatch`] if the weights do not fit together. [`Error::Argument`] if one has an
    /// activation, or the heads are none or not a multiple of those of keys, or the scale or soft cap is not finite, or the
    /// soft cap not above 0.
    pub fn new(
        config: AttentionConfig,
        q: Linear<T>,
        k: Linear<T>,
        v: Linear<T>,
        output: Linear<T>,
    ) -> Result<Self> {
        config.check(NEW)?;
        let (heads, key_heads) = (config.heads, config.key_heads);
        let input = q.weight().shape()[1];
        let width = width_of_heads("q", &q, heads, input)?;
        let value_width = width_of_heads("v", &v, key_heads, input)?;
        expect_weight("k", &k, [key_heads * width, input])?;
        let (projection, widths) = (Projection::Separate(Box::new([q, k, v])), [width, value_width]);
        Self::with_projection(config, projection, widths, output)
    }

    /// A layer with one projection, whose weight is `[(H + 2 Hk) · D, in]`: the rows of all heads of queries, then of keys, then of values.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new).
    pub fn fused(config: AttentionConfig, qkv: Linear<T>, output: Linear<T>) -> Result<Self> {
        config.check(NEW)?;
        let input = qkv.weight().shape()[1];
        let heads = config.key_heads.saturating_mul(2).saturating_add(config.heads);
        let width = width_of_heads("qkv", &qkv, heads, input)?;
        Self::with_projection(config, Projection::Fused(Box::new(qkv)), [width, width], output)
    }

    fn with_projection(
        config: AttentionConfig,
        projection: Projection<T>,
        [width, value_width]: [usize; 2],
        output: Linear<T>,
    ) -> Result<Self> {
        let out = output.weight().shape()[0];
        expect_weight("output", &output, [out, config.heads.saturating_mul(value_width)])?;
        let layer =
            Self { config, projection, output, width, value_width, slopes: None, sinks: None, rotary: None };
        let device = layer.device();
        let projections = layer.projections();
        let names: &[&'static str] = if projections.len() == 1 { &["qkv"] } else { &["q", "k", "v"] };
        let of_projection = names.iter().copied().zip(projections);
        for (operand, linear) in of_projection.chain([("output", &layer.output)]) {
            device.expect_same(NEW, operand, linear.weight().device())?;
            if linear.activation() != Activation::None {
                return Err(Error::Argument {
                    operation: NEW,
                    argument: operand,
                    expected: "a linear layer without an activation".into(),
                    actual: format!("one with {:?}", linear.activation()),
                });
            }
        }
        Ok(layer)
    }

    /// The layer with slopes `[H]` of heads: a score loses the slope times the distance of its row and key (ALiBi).
    ///
    /// # Errors
    ///
    /// [`Error::Shape`], [`Error::Stride`] or [`Error::DeviceMismatch`] if the slopes do not fit.
    pub fn with_alibi(self, slopes: Tensor<f32>) -> Result<Self> {
        self.expect_of_heads("Attention::with_alibi", "slopes", &slopes)?;
        Ok(Self { slopes: Some(slopes), ..self })
    }

    /// The layer with one more logit of each head, of `sinks` `[H]`, which takes weight and has no value.
    ///
    /// # Errors
    ///
    /// [`Error::Shape`], [`Error::Stride`] or [`Error::DeviceMismatch`] if the sinks do not fit.
    pub fn with_sinks(self, sinks: Tensor<f32>) -> Result<Self> {
        self.expect_of_heads("Attention::with_sinks", "sinks", &sinks)?;
        Ok(Self { sinks: Some(sinks), ..self })
    }

    /// The layer with rotary position embedding: queries and keys are turned by the angles of `table` before they are multiplied, and before keys are put into a
    /// cache.
    ///
    /// A token's position is its place in its sequence, with a cache behind the existing keys. Queries and keys of a [fused](Self::fused) projection are turned by
    /// one launch, in place, else by two. Where sequences begin at different positions, one launch more counts them.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`] if the table turns more elements than a head has, [`Error::DeviceMismatch`] if it is another device's.
    pub fn with_rotary(self, table: RotaryTable, pairing: Pairing) -> Result<Self> {
        const OPERATION: &str = "Attention::with_rotary";
        self.device().expect_same(OPERATION, "table", table.angles().device())?;
        if table.rotary_dim() > self.width {
            return Err(Error::Argument {
                operation: OPERATION,
                argument: "table",
                expected: format!("one that turns at most {} elements, those of a head", self.width),
                actual: format!("one that turns {}", table.rotary_dim()),
            });
        }
        Ok(Self { rotary: Some((table, pairing)), ..self })
    }

    fn expect_of_heads(
        &self,
        operation: &'static str,
        operand: &'static str,
        tensor: &Tensor<f32>,
    ) -> Result<()> {
        self.device().expect_same(operation, operand, tensor.device())?;
        if tensor.shape() != [self.config.heads] {
            let expected = format!("[{}], one for each head", self.config.heads);
            return Err(Error::Shape { operation, operand, expected, actual: tensor.shape().to_vec() });
        }
        if !tensor.is_contiguous() {
            let (expected, actual) = ("elements without gaps".into(), tensor.strides().to_vec());
            return Err(Error::Stride { operation, operand, expected, actual });
        }
        Ok(())
    }

    /// A layer with the tensors that `names` gives after `prefix` and a dot, which are of type `T`. Each projection's bias may be missing. Other tensors
    /// are not read, such as norms of queries and keys.
    ///
    /// # Errors
    ///
    /// [`Error::Weights`] if a weight is missing or a tensor has another type; otherwise as [`new`](Self::new) and for copying to the device.
    pub fn from_safetensors(
        weights: &Weights,
        prefix: &str,
        device: &Device,
        config: AttentionConfig,
        names: AttentionNames<'_>,
    ) -> Result<Self> {
        Self::load(config, names, |name| {
            Linear::from_safetensors(weights, &joined(prefix, name), device, Activation::None)
        })
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
        config: AttentionConfig,
        names: AttentionNames<'_>,
    ) -> Result<Self>
    where
        T: FloatElement,
    {
        Self::load(config, names, |name| {
            Linear::from_safetensors_converted(weights, &joined(prefix, name), device, Activation::None)
        })
    }

    pub(in crate::layers) fn load(
        config: AttentionConfig,
        names: AttentionNames<'_>,
        linear: impl Fn(&str) -> Result<Linear<T>>,
    ) -> Result<Self> {
        match names {
            AttentionNames::Separate { q, k, v, output } => {
                Self::new(config, linear(q)?, linear(k)?, linear(v)?, linear(output)?)
            }
            AttentionNames::Fused { qkv, output } => Self::fused(config, linear(qkv)?, linear(output)?),
        }
    }

    /// The layer's output for x `[B, S, in]`: `[B, S, out]`. Rows attend to the keys of their own sequence.
    ///
    /// # Errors
    ///
    /// As [`AttentionForward::run`].
    pub fn forward(&self, x: &Tensor<T>) -> Result<Tensor<T>> {
        self.operation(x).run()
    }

    /// As [`forward`](Self::forward), on `stream`.
    ///
    /// # Errors
    ///
    /// As [`forward`](Self::forward), and [`Error::DeviceMismatch`] if the stream is another device's.
    pub fn forward_on(&self, x: &Tensor<T>, stream: &Stream) -> Result<Tensor<T>> {
        self.operation(x).on(stream).run()
    }

    /// As [`forward`](Self::forward), on `stream` and into `y` `[B, S, out]`; it may be a view whose last axis is contiguous.
    ///
    /// # Errors
    ///
    /// As [`AttentionForward::run_into`].
    pub fn forward_into(&self, x: &Tensor<T>, y: &mut Tensor<T>, stream: &Stream) -> Result<()> {
        self.operation(x).on(stream).run_into(y)
    }

    /// The layer's output for x `[B, S, in]`, rows that follow the keys which `cache` has: a prompt, or the next tokens.
    ///
    /// Keys and values of x are appended to the cache.
    ///
    /// # Errors
    ///
    /// As [`AttentionForward::run`].
    pub fn forward_with_cache(&self, x: &Tensor<T>, cache: &mut KvCache<T>) -> Result<Tensor<T>> {
        self.operation(x).cache(cache).run()
    }

    /// The forward pass of x `[B, S, in]`, or `[T, in]` of packed sequences, for what else it can do: sequences of different lengths, streams, an output
    /// that exists.
    pub fn operation<'a>(&'a self, x: &'a Tensor<T>) -> AttentionForward<'a, T> {
        AttentionForward::new(self, x)
    }

    /// An empty cache for this layer, for `batch` sequences of at most `capacity` keys.
    ///
    /// # Errors
    ///
    /// As [`KvCache::new`].
    pub fn new_cache(&self, batch: usize, capacity: usize) -> Result<KvCache<T>> {
        KvCache::with_config(self.device(), self.cache_config(batch, capacity))
    }

    /// The sizes of a cache for this layer, for `batch` sequences of at most `capacity` keys: to choose what it stores, and where it has lengths.
    #[must_use]
    pub fn cache_config(&self, batch: usize, capacity: usize) -> KvCacheConfig {
        KvCacheConfig::new(batch, capacity, self.config.key_heads, self.width).value_width(self.value_width)
    }

    /// Heads of queries.
    #[must_use]
    pub fn heads(&self) -> usize {
        self.config.heads
    }

    /// Heads and options.
    #[must_use]
    pub fn config(&self) -> &AttentionConfig {
        &self.config
    }

    /// Columns of a query and a key, D, and of a value, Dv.
    #[must_use]
    pub fn widths(&self) -> [usize; 2] {
        [self.width, self.value_width]
    }

    /// Columns of x.
    #[must_use]
    pub fn input(&self) -> usize {
        self.projections()[0].weight().shape()[1]
    }

    /// The projections of queries, of keys and of values, or the one of all three.
    #[must_use]
    pub fn projections(&self) -> &[Linear<T>] {
        match &self.projection {
            Projection::Fused(qkv) => std::slice::from_ref(&**qkv),
            Projection::Separate(all) => &**all,
        }
    }

    /// The projection of the results.
    #[must_use]
    pub fn output(&self) -> &Linear<T> {
        &self.output
    }

    /// The sinks `[H]`, if there are some.
    #[must_use]
    pub fn sinks(&self) -> Option<&Tensor<f32>> {
        self.sinks.as_ref()
    }

    /// The device that holds the weights.
    #[must_use]
    pub fn device(&self) -> &Device {
        self.output.weight().device()
    }
}

/// The columns of each of so many heads that a projection of so many inputs makes.
fn width_of_heads<T: LinearInput>(
    operand: &'static str,
    linear: &Linear<T>,
    heads: usize,
    input: usize,
) -> Result<usize> {
    let weight = linear.weight();
    let rows = weight.shape()[0];
    if rows == 0 || !rows.is_multiple_of(heads) {
        return Err(shape(operand, format!("[a multiple of {heads}, {input}], for so many heads"), weight));
    }
    expect_weight(operand, linear, [rows, input])?;
    Ok(rows / heads)
}

fn expect_weight<T: LinearInput>(
    operand: &'static str,
    linear: &Linear<T>,
    expected: [usize; 2],
) -> Result<()> {
    if linear.weight().shape() == expected {
        return Ok(());
    }
    Err(shape(operand, format!("{expected:?}, as the other weights and the heads give"), linear.weight()))
}

fn shape<U: Element>(operand: &'static str, expected: String, tensor: &Tensor<U>) -> Error {
    Error::Shape { operation: NEW, operand, expected, actual: tensor.shape().to_vec() }
}

#[cfg(test)]
mod tests;
