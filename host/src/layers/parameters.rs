//! The weights of layers by name, and their gradients in the same order.

use super::{
    Attention, AttentionLayerGradients, BlockGradients, BlockNorm, Embedding, LayerNorm, Linear, Mlp,
    MlpGradients, ProjectionGradients, RmsNorm, TransformerBlock, TransformerInput,
};
use crate::ops::attention::AttentionInput;
use crate::ops::elementwise::ElementwiseElement;
use crate::ops::embedding::EmbeddingElement;
use crate::ops::linear::{LinearGradientElement, LinearGradients, LinearInput};
use crate::ops::norm::{NormElement, NormGradients};
use crate::ops::rows::RowElement;
use crate::optim::{AnyWeights, Gradient};
use crate::tensor::Tensor;

/// A layer's weights by name, and their gradients in the same order: what an [optimiser](crate::optim::AdamW) is told.
///
/// A bias that the layer does not have is in neither list, though `backward` gives its gradient.
///
/// ```
/// use warpsmith::layers::{Linear, Parameters};
/// use warpsmith::ops::Activation;
/// use warpsmith::optim::{AdamW, AdamWOptions};
/// use warpsmith::{Device, Tensor};
///
/// # fn main() -> warpsmith::Result<()> {
/// let device = Device::cpu();
/// let layer = Linear::new(Tensor::from_slice(&device, &[1.0f32; 6], [2, 3])?, None, Activation::Relu)?;
/// let mut optimizer = AdamW::new(&device, AdamWOptions::default())?;
/// for (name, weights) in layer.parameters("layers.0") {
///     optimizer.add(name, weights)?;
/// }
/// assert_eq!(optimizer.names().collect::<Vec<_>>(), ["layers.0.weight"]);
///
/// let x = Tensor::from_slice(&device, &[1.0f32; 12], [4, 3])?;
/// let (y, saved) = layer.forward_train(&x)?;
/// let gradients = layer.backward(&saved, &y)?;
/// optimizer.step(&layer.gradients(&gradients))?;
/// # Ok(())
/// # }
/// ```
pub trait Parameters {
    /// What the layer's `backward` returns.
    type Gradients;

    /// The weights, which share the layer's memory, each with its name after `prefix` and a dot. An empty prefix has no dot.
    fn parameters(&self, prefix: &str) -> Vec<(String, AnyWeights<'_>)>;

    /// The gradients of the same weights, in the same order.
    fn gradients<'g>(&self, gradients: &'g Self::Gradients) -> Vec<Gradient<'g>>;
}

/// A name after a prefix.
pub(super) fn joined(prefix: &str, name: &str) -> String {
    if prefix.is_empty() { name.to_owned() } else { format!("{prefix}.{name}") }
}

/// A weight, and a bias if there is one.
fn weight_and_bias<'t, T: RowElement>(
    prefix: &str,
    weight: &'t Tensor<T>,
    bias: Option<&'t Tensor<T>>,
) -> Vec<(String, AnyWeights<'t>)> {
    let weight = (joined(prefix, "weight"), weight.into());
    std::iter::once(weight).chain(bias.map(|bias| (joined(prefix, "bias"), bias.into()))).collect()
}

/// Their gradients.
fn both<'g>(weight: &'g Tensor<f32>, bias: &'g Tensor<f32>, has_bias: bool) -> Vec<Gradient<'g>> {
    std::iter::once(weight).chain(has_bias.then_some(bias)).map(Gradient::from).collect()
}

/// The weights of one linear layer among others.
fn of_linear<'t, T: LinearInput + RowElement>(
    prefix: &str,
    name: &str,
    layer: &'t Linear<T>,
) -> Vec<(String, AnyWeights<'t>)> {
    weight_and_bias(&joined(prefix, name), layer.weight(), layer.bias())
}

/// Their gradients.
fn of_projection<'g, T: LinearInput>(
    layer: &Linear<T>,
    gradients: &'g ProjectionGradients,
) -> Vec<Gradient<'g>> {
    both(&gradients.dw, &gradients.db, layer.bias().is_some())
}

impl<T: LinearInput + LinearGradientElement> Parameters for Linear<T> {
    type Gradients = LinearGradients<T, T>;

    fn parameters(&self, prefix: &str) -> Vec<(String, AnyWeights<'_>)> {
        weight_and_bias(prefix, self.weight(), self.bias())
    }

    fn gradients<'g>(&self, gradients: &'g Self::Gradients) -> Vec<Gradient<'g>> {
        both(&gradients.dw, &gradients.db, self.bias().is_some())
    }
}

impl<T: NormElement> Parameters for LayerNorm<T> {
    type Gradients = NormGradients<T>;

    fn parameters(&self, prefix: &str) -> Vec<(String, AnyWeights<'_>)> {
        weight_and_bias(prefix, self.weight(), self.bias())
    }

    fn gradients<'g>(&self, gradients: &'g Self::Gradients) -> Vec<Gradient<'g>> {
        both(&gradients.dweight, &gradients.dbias, self.bias().is_some())
    }
}

impl<T: NormElement> Parameters for RmsNorm<T> {
    type Gradients = NormGradients<T>;

    fn parameters(&self, prefix: &str) -> Vec<(String, AnyWeights<'_>)> {
        weight_and_bias(prefix, self.weight(), None)
    }

    fn gradients<'g>(&self, gradients: &'g Self::Gradients) -> Vec<Gradient<'g>> {
        both(&gradients.dweight, &gradients.dbias, false)
    }
}

impl<T: NormElement> Parameters for BlockNorm<T> {
    type Gradients = NormGradients<T>;

    fn parameters(&self, prefix: &str) -> Vec<(String, AnyWeights<'_>)> {
        match self {
            Self::Layer(norm) => norm.parameters(prefix),
            Self::Rms(norm) => norm.parameters(prefix),
        }
    }

    fn gradients<'g>(&self, gradients: &'g Self::Gradients) -> Vec<Gradient<'g>> {
        match self {
            Self::Layer(norm) => norm.gradients(gradients),
            Self::Rms(norm) => norm.gradients(gradients),
        }
    }
}

impl<T: EmbeddingElement> Parameters for Embedding<T> {
    /// The gradient of the whole table, `[V, N]`, which [`Embedding::accumulate`] adds to.
    type Gradients = Tensor<f32>;

    fn parameters(&self, prefix: &str) -> Vec<(String, AnyWeights<'_>)> {
        weight_and_bias(prefix, self.table(), None)
    }

    fn gradients<'g>(&self, gradients: &'g Self::Gradients) -> Vec<Gradient<'g>> {
        vec![gradients.into()]
    }
}

/// The names are `q_proj`, `k_proj`, `v_proj` and `o_proj`, as [`AttentionNames`](super::AttentionNames) has them by default, with `qkv_proj` for a fused projection, and
/// `sinks`.
impl<T: AttentionInput + LinearInput + LinearGradientElement> Parameters for Attention<T> {
    type Gradients = AttentionLayerGradients<T>;

    fn parameters(&self, prefix: &str) -> Vec<(String, AnyWeights<'_>)> {
        let projections = self.projections();
        let names: &[&str] =
            if projections.len() == 1 { &["qkv_proj"] } else { &["q_proj", "k_proj", "v_proj"] };
        let all = names.iter().copied().zip(projections).chain([("o_proj", self.output())]);
        let sinks = self.sinks().map(|sinks| (joined(prefix, "sinks"), sinks.into()));
        all.flat_map(|(name, layer)| of_linear(prefix, name, layer)).chain(sinks).collect()
    }

    fn gradients<'g>(&self, gradients: &'g Self::Gradients) -> Vec<Gradient<'g>> {
        let projections = self.projections().iter().zip(&gradients.projections);
        let all = projections.chain([(self.output(), &gradients.output)]);
        let sinks = self.sinks().and(gradients.dsinks.as_ref()).map(Gradient::from);
        all.flat_map(|(layer, gradients)| of_projection(layer, gradients)).chain(sinks).collect()
    }
}

/// The names are `up_proj` and `down_proj`, with a gate `gate_proj`, `up_proj` and `down_proj`, or `gate_up_proj` and `down_proj`.
impl<T: LinearInput + LinearGradientElement + ElementwiseElement> Parameters for Mlp<T> {
    type Gradients = MlpGradients<T>;

    fn parameters(&self, prefix: &str) -> Vec<(String, AnyWeights<'_>)> {
        let projections = self.projections();
        let names: &[&str] = match (projections.len(), self.gate()) {
            (1, None) => &["up_proj"],
            (1, Some(_)) => &["gate_up_proj"],
            _ => &["gate_proj", "up_proj"],
        };
        let all = names.iter().copied().zip(projections).chain([("down_proj", self.down())]);
        all.flat_map(|(name, layer)| of_linear(prefix, name, layer)).collect()
    }

    fn gradients<'g>(&self, gradients: &'g Self::Gradients) -> Vec<Gradient<'g>> {
        let projections = self.projections().iter().zip(&gradients.projections);
        let all = projections.chain([(self.down(), &gradients.down)]);
        all.flat_map(|(layer, gradients)| of_projection(layer, gradients)).collect()
    }
}

/// The names of the parts are `input_norm`, `attention`, `mlp_norm` and `mlp`.
impl<T: TransformerInput> Parameters for TransformerBlock<T> {
    type Gradients = BlockGradients<T>;

    fn parameters(&self, prefix: &str) -> Vec<(String, AnyWeights<'_>)> {
        let of = |name| joined(prefix, name);
        let mut all = self.input_norm().parameters(&of("input_norm"));
        all.extend(self.attention().parameters(&of("attention")));
        all.extend(self.mlp_norm().parameters(&of("mlp_norm")));
        all.extend(self.mlp().parameters(&of("mlp")));
        all
    }

    fn gradients<'g>(&self, gradients: &'g Self::Gradients) -> Vec<Gradient<'g>> {
        let mut all = self.input_norm().gradients(&gradients.input_norm);
        all.extend(self.attention().gradients(&gradients.attention));
        all.extend(self.mlp_norm().gradients(&gradients.mlp_norm));
        all.extend(self.mlp().gradients(&gradients.mlp));
        all
    }
}
