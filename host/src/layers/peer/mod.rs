//! The PEER layer: tokens find a few of very many small experts by product keys, and are the sum of what those make of them.

mod config;
mod training;
mod weights;

use std::fmt;
use std::ops::Range;

pub use config::{Norm, PeerConfig};
pub use training::{PeerGradients, PeerSaved};
pub use weights::PeerRouter;

use super::Experts;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::ops::peer::{
    ExpertFormat, ExpertInput, ExpertLayout, ProductKeyOp, Routing, RoutingInput, peer, peer_is_in_parts,
};
use crate::ops::{Implementation, product_key_topk};
use crate::peer::CacheStatistics;
use crate::stream::Stream;
use crate::tensor::Tensor;
use crate::weights::{FloatElement, Weights};

/// What a layer is called in errors about its operands.
const OPERATION: &str = "Peer::forward";

/// An element type of PEER layers: [`f16`](struct@half::f16), [`bf16`](half::bf16) or `f32`.
pub trait PeerInput: RoutingInput + ExpertInput + FloatElement {}

impl<T: RoutingInput + ExpertInput + FloatElement> PeerInput for T {}

/// A layer of n² experts, of which each token uses k for each of H heads: parameter-efficient expert retrieval.
///
/// `q = norm(x W_q + b)`; the k experts i · n + j with the highest scores `q¹ · c_i + q² · c'_j` for each head;
/// `y = Σ gate(score) · act(x · u) · v` over all of them.
///
/// ```
/// use warpsmith::layers::{Peer, PeerConfig, PeerRouter};
/// use warpsmith::peer::{CacheOptions, ExpertMemory};
/// use warpsmith::{Device, Tensor};
///
/// # fn main() -> warpsmith::Result<()> {
/// let device = Device::cpu();
/// let config = PeerConfig::default()
///     .input(4).output(3).sub_keys(10).heads(2).experts_per_head(2).query(4)
///     .memory(ExpertMemory::Cached)
///     .cache(CacheOptions::default().slots(20));
/// let numbers = |count: usize| (0..count).map(|i| (i * 37 % 19) as f32 / 19.0 - 0.5).collect::<Vec<_>>();
/// let query = Tensor::from_slice(&device, &numbers(2 * 4 * 4), [8, 4])?;
/// let keys = Tensor::from_slice(&device, &numbers(10 * 2), [10, 2])?;
/// let layer = Peer::new(&device, &config, PeerRouter::new(query, [keys.clone(), keys]), |range| {
///     Ok([numbers(range.len() * 4), Vec::new(), numbers(range.len() * 3)])
/// })?;
/// let x = Tensor::from_slice(&device, &numbers(5 * 4), [5, 4])?;
/// assert_eq!(layer.forward(&x)?.shape(), [5, 3]);
/// println!("{}", layer.implementation(&x)?);
/// println!("{}", layer.statistics().expect("there is a cache"));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Peer<T: PeerInput> {
    config: PeerConfig,
    router: PeerRouter<T>,
    experts: Experts,
}

impl<T: PeerInput> Peer<T> {
    /// A layer with this router, and experts as `part` gives them: see [`Experts::new`].
    ///
    /// # Errors
    ///
    /// [`Error::Shape`], [`Error::Argument`] and [`Error::DeviceMismatch`] if the router does not fit the configuration, or that makes no layer; otherwise
    /// as [`Experts::new`].
    pub fn new(
        device: &Device,
        config: &PeerConfig,
        router: PeerRouter<T>,
        part: impl FnMut(Range<usize>) -> Result<[Vec<f32>; 3]>,
    ) -> Result<Self> {
        config.check()?;
        let router = router.prepared(config, device)?;
        let layout = layout::<T>(config)?;
        // Without tokens a retrieval is checked and nothing else; experts take long.
        retrieval(&Tensor::zeros(device, [0, config.input])?, &router, config).run()?;
        let experts = Experts::of("Peer::new", device, layout, config.expert_count(), &config.experts, part)?;
        Ok(Self { config: *config, router, experts })
    }

    /// A layer with the tensors of a file whose names begin with `{prefix}.`, those of the router of type `T`:
    ///
    /// | name | shape | |
    /// |---|---|---|
    /// | `query.weight`, `query.bias` | `[H · d, D]`, `[H · d]` | the bias may be missing |
    /// | `keys_1`, `keys_2` | `[n, d / 2]` or `[H, n, d / 2]` | |
    /// | `query_norm.weight`, `query_norm.bias` | `[d]` or `[H, d]` | may be missing; any floating-point type |
    /// | `query_norm.running_mean`, `query_norm.running_var` | `[d]` or `[H, d]` | for [`Norm::Batch`]; any floating-point type |
    /// | `key_norm.weight`, `key_norm.bias` | `[d / 2]` | may be missing; any floating-point type |
    /// | `experts.u`, `experts.w` | `[n², hidden, D]`, or `[n², D]` for one hidden unit | w for gated units; any floating-point type |
    /// | `experts.v` | `[n², hidden, O]`, or `[n², O]` for one hidden unit | any floating-point type |
    ///
    /// # Errors
    ///
    /// [`Error::Weights`] if a tensor is missing or has another type or, of the experts, another shape; otherwise as [`new`](Self::new).
    pub fn from_safetensors(
        weights: &Weights,
        prefix: &str,
        device: &Device,
        config: &PeerConfig,
    ) -> Result<Self> {
        Self::load(weights, prefix, device, config, |name| weights.tensor(name, device))
    }

    /// As [`from_safetensors`](Self::from_safetensors), with all tensors of any floating-point type, rounded to `T` or the experts' format.
    ///
    /// # Errors
    ///
    /// As [`from_safetensors`](Self::from_safetensors); a tensor must be of a floating-point type.
    pub fn from_safetensors_converted(
        weights: &Weights,
        prefix: &str,
        device: &Device,
        config: &PeerConfig,
    ) -> Result<Self> {
        Self::load(weights, prefix, device, config, |name| weights.tensor_converted(name, device))
    }

    fn load(
        weights: &Weights,
        prefix: &str,
        device: &Device,
        config: &PeerConfig,
        tensor: impl Fn(&str) -> Result<Tensor<T>>,
    ) -> Result<Self> {
        config.check()?;
        let router = PeerRouter::load(weights, prefix, device, config.query_norm, tensor)?;
        let [u, w, v] = ["u", "w", "v"].map(|name| format!("{prefix}.experts.{name}"));
        let expect = |name: &str, columns: usize| {
            let (count, hidden) = (config.expert_count(), config.hidden);
            let shape = weights.expect_shape(name)?;
            if shape == [count, hidden, columns] || hidden == 1 && shape == [count, columns] {
                return Ok(());
            }
            Err(weights.unexpected_shape(name, format!("shape [{count}, {hidden}, {columns}]")))
        };
        expect(&u, config.input)?;
        expect(&v, config.output)?;
        if config.gated {
            expect(&w, config.input)?;
        }
        Self::new(device, config, router, |range| {
            let part = |name: &str| weights.rows_converted::<f32>(name, range.clone());
            Ok([part(&u)?, if config.gated { part(&w)? } else { Vec::new() }, part(&v)?])
        })
    }

    /// The layer's output for `x` [.., D]: [.., O], for any number of tokens.
    ///
    /// With all experts on the device nothing is waited for; otherwise the host waits for the experts' numbers, and for copies as far as the work
    /// that is under way allows.
    ///
    /// # Errors
    ///
    /// [`Error::Shape`] and [`Error::DeviceMismatch`] if `x` does not fit the layer; otherwise as [`ProductKeyOp::run`] and [`Experts::forward`].
    pub fn forward(&self, x: &Tensor<T>) -> Result<Tensor<T>> {
        self.forward_on(x, &self.experts.device().default_stream())
    }

    /// As [`forward`](Self::forward), on `stream`.
    ///
    /// # Errors
    ///
    /// As [`forward`](Self::forward), and [`Error::DeviceMismatch`] if the stream is another device's.
    pub fn forward_on(&self, x: &Tensor<T>, stream: &Stream) -> Result<Tensor<T>> {
        self.experts.device().expect_same(OPERATION, "stream", stream.device())?;
        let mut shape = x.shape().to_vec();
        if let Some(columns) = shape.last_mut() {
            *columns = self.config.output;
        }
        // What does not fit is found below.
        let mut y = Tensor::uninit_on(stream, shape)?;
        self.forward_into(x, &mut y, stream)?;
        Ok(y)
    }

    /// As [`forward`](Self::forward), on `stream` and into `y` [.., O], a tensor without gaps.
    ///
    /// With all experts on the device the work can be [captured](Stream::capture), to be enqueued again with one call.
    ///
    /// # Errors
    ///
    /// [`Error::Shape`] and [`Error::DeviceMismatch`] if `x` does not fit the layer; otherwise as [`ProductKeyOp::run`] and [`Experts::forward_into`].
    pub fn forward_into(&self, x: &Tensor<T>, y: &mut Tensor<T>, stream: &Stream) -> Result<()> {
        let retrieval = self.retrieval(x)?.on(stream);
        match self.experts.resident() {
            Some((table, activation)) => peer(&retrieval, table, activation, y),
            None => self.experts.forward_into(x, &retrieval.run()?, y, stream),
        }
    }

    /// The experts that the layer takes for `x`, and what they count.
    ///
    /// # Errors
    ///
    /// [`Error::Shape`] and [`Error::DeviceMismatch`] if `x` does not fit the layer; otherwise as [`ProductKeyOp::run`].
    pub fn route(&self, x: &Tensor<T>) -> Result<Routing> {
        self.retrieval(x)?.run()
    }

    fn retrieval<'a>(&'a self, x: &'a Tensor<T>) -> Result<ProductKeyOp<'a, T>> {
        // The retrieval takes x as given and would find fault with the projection, which whoever has the layer did not pass.
        if x.shape().last() != Some(&self.config.input) {
            return Err(Error::Shape {
                operation: OPERATION,
                operand: "x",
                expected: format!("[.., {}]", self.config.input),
                actual: x.shape().to_vec(),
            });
        }
        self.experts.device().expect_same(OPERATION, "x", x.device())?;
        Ok(retrieval(x, &self.router, &self.config))
    }

    /// What [`forward`](Self::forward) runs for `x`.
    ///
    /// # Errors
    ///
    /// As [`forward`](Self::forward), for the operands.
    pub fn implementation(&self, x: &Tensor<T>) -> Result<PeerImplementation> {
        let retrieval = self.retrieval(x)?;
        let routing = retrieval.implementation()?;
        let mut shape = x.shape().to_vec();
        shape.pop();
        shape.extend([self.config.heads, self.config.experts_per_head]);
        let device = self.experts.device();
        // Only shapes are asked for.
        let routed = Routing { ids: Tensor::uninit(device, &shape)?, gates: Tensor::uninit(device, &shape)? };
        let experts = self.experts.implementation(x, &routed)?;
        let (resident, count) = (self.experts.capacity(), self.experts.count());
        let in_parts = match self.experts.resident() {
            Some((table, _)) => peer_is_in_parts(&retrieval, table)?,
            None => false,
        };
        let cached = !self.experts.is_resident();
        Ok(PeerImplementation { routing, experts, in_parts, cached, resident, count })
    }

    /// What has happened in the cache before the experts; `None` if all are on the device.
    #[must_use]
    pub fn statistics(&self) -> Option<CacheStatistics> {
        self.experts.statistics()
    }

    /// The layer's experts.
    #[must_use]
    pub fn experts(&self) -> &Experts {
        &self.experts
    }

    /// The layer's router, its sub-keys normalised as the configuration says.
    #[must_use]
    pub fn router(&self) -> &PeerRouter<T> {
        &self.router
    }

    /// The layer's configuration.
    #[must_use]
    pub fn config(&self) -> &PeerConfig {
        &self.config
    }
}

/// The layout of the experts' rows.
fn layout<T: PeerInput>(config: &PeerConfig) -> Result<ExpertLayout> {
    let format = config.format.or(ExpertFormat::of(T::DTYPE)).ok_or_else(|| Error::Type {
        operation: "Peer::new",
        operand: "router",
        expected: "f16, bf16 or f32".into(),
        actual: T::DTYPE,
    })?;
    ExpertLayout::new(format, config.input, config.hidden, config.output, config.gated)
}

/// What a PEER layer runs, and where its experts are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PeerImplementation {
    /// What finds the experts of all tokens at once. [In parts](Self::in_parts) its retrieval is launched for the first tokens only; for the others another
    /// kernel finds the same.
    pub routing: Implementation,
    /// What evaluates them; once for each chunk of tokens if they are behind a cache, and once for each of two [parts](Self::in_parts).
    pub experts: Implementation,
    /// Whether tokens are worked in two parts, of which the second one's experts are found while those of the first are evaluated.
    pub in_parts: bool,
    /// Whether they are in host memory, behind a cache.
    pub cached: bool,
    /// How many experts the device holds at a time.
    pub resident: usize,
    /// How many there are.
    pub count: usize,
}

impl fmt::Display for PeerImplementation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { routing, experts, in_parts, cached, resident, count } = self;
        write!(formatter, "routing: {routing}; experts: {experts}; ")?;
        if *in_parts {
            write!(formatter, "two parts at the same time; ")?;
        }
        if *cached {
            write!(formatter, "{count} experts in host memory behind a cache of {resident}")
        } else {
            write!(formatter, "{count} experts on the device")
        }
    }
}

/// The retrieval of the experts for `x`.
fn retrieval<'a, T: PeerInput>(
    x: &'a Tensor<T>,
    router: &'a PeerRouter<T>,
    config: &PeerConfig,
) -> ProductKeyOp<'a, T> {
    let [keys_1, keys_2] = &router.keys;
    let retrieval = product_key_topk(x, &router.query, keys_1, keys_2, config.heads, config.experts_per_head)
        .query_norm(router.query_norm(config.query_norm))
        .gate(config.gate)
        .temperature(config.temperature);
    match &router.query_bias {
        Some(bias) => retrieval.bias(bias),
        None => retrieval,
    }
}

#[cfg(test)]
mod tests;
