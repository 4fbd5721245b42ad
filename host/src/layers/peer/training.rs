//! Forward passes of PEER layers that keep what the backward pass needs, and the backward passes.

use super::{Peer, PeerInput};
use crate::error::{Error, Result};
use crate::layers::Parameters;
use crate::layers::parameters::joined;
use crate::ops::Activation;
use crate::ops::peer::{
    ExpertGradients, ExpertTable, ProductKeyGradientOutputs, Routing, expert_mlp, expert_mlp_backward,
};
use crate::optim::{AnyWeights, Gradient};
use crate::stream::Stream;
use crate::tensor::{Element, Tensor};

/// What the passes are called in errors.
const FORWARD: &str = "Peer::forward_train";
const BACKWARD: &str = "Peer::backward";

/// What [`Peer::forward_train`] keeps for [`Peer::backward`].
///
/// It shares the memory of x, which has to hold the same numbers until then.
#[derive(Clone, Debug)]
pub struct PeerSaved<T: Element> {
    x: Tensor<T>,
    routing: Routing,
}

impl<T: Element> PeerSaved<T> {
    /// The layer's input.
    #[must_use]
    pub fn x(&self) -> &Tensor<T> {
        &self.x
    }

    /// The experts that tokens have used, and their gates.
    #[must_use]
    pub fn routing(&self) -> &Routing {
        &self.routing
    }

    /// The bytes of its elements, those of x among them.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let Routing { ids, gates } = &self.routing;
        self.x.len() * size_of::<T>() + ids.len() * size_of::<u32>() + gates.len() * size_of::<f32>()
    }
}

/// The gradients of a PEER layer.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PeerGradients<T: Element> {
    /// Of x, of its shape.
    pub dx: Tensor<T>,
    /// Of the projection to queries, `[H · d, D]`.
    pub dquery: Tensor<f32>,
    /// Of its bias, if there is one.
    pub dquery_bias: Option<Tensor<f32>>,
    /// Of the sub-keys of both halves, of their shapes.
    pub dkeys: [Tensor<f32>; 2],
    /// Of the norm's weight, if there is one.
    pub dquery_norm_weight: Option<Tensor<f32>>,
    /// Of the norm's bias, if there is one.
    pub dquery_norm_bias: Option<Tensor<f32>>,
    /// Of the experts that tokens have used. All others are zero.
    pub experts: ExpertGradients<f32>,
}

impl<T: PeerInput> Peer<T> {
    /// As [`forward`](Self::forward), with what [`backward`](Self::backward) needs: x, the experts' numbers and their gates.
    ///
    /// ```
    /// use warpsmith::layers::{Parameters, Peer, PeerConfig, PeerRouter};
    /// use warpsmith::optim::{AdamW, AdamWOptions};
    /// use warpsmith::{Device, Tensor};
    ///
    /// # fn main() -> warpsmith::Result<()> {
    /// let device = Device::cpu();
    /// let config =
    ///     PeerConfig::default().input(4).output(3).sub_keys(10).heads(2).experts_per_head(2).query(4);
    /// let numbers = |count: usize| (0..count).map(|i| (i * 37 % 19) as f32 / 19.0 - 0.5).collect::<Vec<_>>();
    /// let query = Tensor::from_slice(&device, &numbers(2 * 4 * 4), [8, 4])?;
    /// let keys = [1, 2].map(|_| Tensor::from_slice(&device, &numbers(10 * 2), [10, 2]));
    /// let [first, second] = keys;
    /// let layer = Peer::new(&device, &config, PeerRouter::new(query, [first?, second?]), |range| {
    ///     Ok([numbers(range.len() * 4), Vec::new(), numbers(range.len() * 3)])
    /// })?;
    /// let mut optimizer = AdamW::new(&device, AdamWOptions::default())?;
    /// for (name, weights) in layer.parameters("peer") {
    ///     optimizer.add(name, weights)?;
    /// }
    /// let names: Vec<_> = optimizer.names().collect();
    /// assert_eq!(names, ["peer.query.weight", "peer.keys_1", "peer.keys_2", "peer.experts"]);
    ///
    /// let x = Tensor::from_slice(&device, &numbers(5 * 4), [5, 4])?;
    /// let (y, saved) = layer.forward_train(&x)?;
    /// let gradients = layer.backward(&saved, &y)?;
    /// // Of the experts, it moves those that tokens have used.
    /// optimizer.step(&layer.gradients(&gradients))?;
    /// let (ids, [du, _, dv]) = gradients.experts.read()?;
    /// assert_eq!([du.len(), dv.len()], [ids.len() * 4, ids.len() * 3]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`forward`](Self::forward); [`Error::Argument`] if experts are behind a cache, or sub-keys have been normalised when the layer was made.
    pub fn forward_train(&self, x: &Tensor<T>) -> Result<(Tensor<T>, PeerSaved<T>)> {
        self.forward_train_on(x, &self.experts.device().default_stream())
    }

    /// As [`forward_train`](Self::forward_train), on `stream`.
    ///
    /// # Errors
    ///
    /// As [`forward_train`](Self::forward_train), and [`Error::DeviceMismatch`] if the stream is another device's.
    pub fn forward_train_on(&self, x: &Tensor<T>, stream: &Stream) -> Result<(Tensor<T>, PeerSaved<T>)> {
        self.experts.device().expect_same(FORWARD, "stream", stream.device())?;
        let (table, activation) = self.trained(FORWARD)?;
        let routing = self.retrieval(x)?.on(stream).run()?;
        let y = expert_mlp(x, &routing, table).activation(activation).on(stream).run()?;
        Ok((y, PeerSaved { x: x.clone(), routing }))
    }

    /// The gradients of x, of the router and of the experts in use, for `dy` `[.., O]`, the gradient of the output. Those of weights are in f32.
    ///
    /// The choice of experts has no gradient. That of the gates goes to the scores of the experts that were chosen.
    ///
    /// # Errors
    ///
    /// As [`forward_train`](Self::forward_train); as [`ExpertMlpBackwardOp::run`](crate::ops::peer::ExpertMlpBackwardOp::run) and
    /// [`ProductKeyBackwardOp::run`](crate::ops::peer::ProductKeyBackwardOp::run).
    pub fn backward(&self, saved: &PeerSaved<T>, dy: &Tensor<T>) -> Result<PeerGradients<T>> {
        self.backward_on(saved, dy, &self.experts.device().default_stream())
    }

    /// As [`backward`](Self::backward), on `stream`.
    ///
    /// # Errors
    ///
    /// As [`backward`](Self::backward), and [`Error::DeviceMismatch`] if the stream is another device's.
    pub fn backward_on(
        &self,
        saved: &PeerSaved<T>,
        dy: &Tensor<T>,
        stream: &Stream,
    ) -> Result<PeerGradients<T>> {
        let router = &self.router;
        let new = |of: &[usize]| Tensor::<f32>::uninit_on(stream, of);
        self.experts.device().expect_same(BACKWARD, "stream", stream.device())?;
        let optional = |of: Option<&[usize]>| of.map(new).transpose();
        let (of_weight, of_bias) = (router.query_norm_weight.as_ref(), router.query_norm_bias.as_ref());
        let (dquery, dquery_bias) =
            (new(router.query.shape())?, optional(router.query_bias.as_ref().map(Tensor::shape))?);
        let dkeys = [new(router.keys[0].shape())?, new(router.keys[1].shape())?];
        let (dquery_norm_weight, dquery_norm_bias) =
            (optional(of_weight.map(Tensor::shape))?, optional(of_bias.map(Tensor::shape))?);
        let (dx, experts, dgates) = self.of_experts(saved, dy, stream)?;
        let mut gradients =
            PeerGradients { dx, dquery, dquery_bias, dkeys, dquery_norm_weight, dquery_norm_bias, experts };
        self.of_router(saved, &dgates, &mut gradients, false, stream)?;
        Ok(gradients)
    }

    /// As [`backward`](Self::backward), adding to the existing gradients of the router. Those of x and of the experts are written over, as other tokens use other experts:
    /// what the pass before gave of them has to be used, or kept, before this one.
    ///
    /// # Errors
    ///
    /// As [`backward`](Self::backward), and as [`ProductKeyBackwardOp::run_into`](crate::ops::peer::ProductKeyBackwardOp::run_into).
    pub fn accumulate(
        &self,
        saved: &PeerSaved<T>,
        dy: &Tensor<T>,
        gradients: &mut PeerGradients<T>,
    ) -> Result<()> {
        self.accumulate_on(saved, dy, gradients, &self.experts.device().default_stream())
    }

    /// As [`accumulate`](Self::accumulate), on `stream`.
    ///
    /// # Errors
    ///
    /// As [`accumulate`](Self::accumulate), and [`Error::DeviceMismatch`] if the stream is another device's.
    pub fn accumulate_on(
        &self,
        saved: &PeerSaved<T>,
        dy: &Tensor<T>,
        gradients: &mut PeerGradients<T>,
        stream: &Stream,
    ) -> Result<()> {
        self.experts.device().expect_same(BACKWARD, "stream", stream.device())?;
        let (dx, experts, dgates) = self.of_experts(saved, dy, stream)?;
        let before = std::mem::replace(&mut gradients.dx, dx);
        match self.of_router(saved, &dgates, gradients, true, stream) {
            Ok(()) => gradients.experts = experts,
            Err(error) => {
                gradients.dx = before;
                return Err(error);
            }
        }
        Ok(())
    }

    /// The gradients of the experts: those of x, of the table and of the gates.
    fn of_experts(
        &self,
        saved: &PeerSaved<T>,
        dy: &Tensor<T>,
        stream: &Stream,
    ) -> Result<(Tensor<T>, ExpertGradients<f32>, Tensor<f32>)> {
        let (table, activation) = self.trained(BACKWARD)?;
        let operation = expert_mlp_backward(&saved.x, &saved.routing, table, dy);
        let gradients = operation.activation(activation).on(stream).run()?;
        // They are not frozen.
        let experts =
            gradients.experts.ok_or_else(|| untrained(BACKWARD, "experts that are trained", "none"))?;
        Ok((gradients.dx, experts, gradients.dgates))
    }

    /// Adds the gradient of the retrieval to dx, and writes those of the router, or adds them to what is there.
    fn of_router(
        &self,
        saved: &PeerSaved<T>,
        dgates: &Tensor<f32>,
        gradients: &mut PeerGradients<T>,
        adds: bool,
        stream: &Stream,
    ) -> Result<()> {
        let PeerGradients { dx, dquery, dquery_bias, dkeys, dquery_norm_weight, dquery_norm_bias, .. } =
            gradients;
        let [dkeys_1, dkeys_2] = dkeys;
        let operation = self.retrieval(&saved.x)?.on(stream).backward(&saved.routing, dgates);
        operation.run_into(ProductKeyGradientOutputs {
            dx: Some(dx),
            dw_q: Some(dquery),
            dbias: dquery_bias.as_mut(),
            dkeys_1: Some(dkeys_1),
            dkeys_2: Some(dkeys_2),
            dnorm_weight: dquery_norm_weight.as_mut(),
            dnorm_bias: dquery_norm_bias.as_mut(),
            adds,
            adds_dx: true,
        })
    }

    /// The experts, if the layer can be trained.
    fn trained(&self, operation: &'static str) -> Result<(&ExpertTable, Activation)> {
        if self.has_normalised_keys() {
            return Err(untrained(operation, "sub-keys as they are", "sub-keys that were normalised"));
        }
        let resident = self.experts.resident();
        resident.ok_or_else(|| untrained(operation, "all experts on the device", "experts behind a cache"))
    }

    /// The experts, if an optimiser can move them.
    fn moved_experts(&self) -> Option<&ExpertTable> {
        let (table, _) = self.experts.resident()?;
        (!table.layout().format().is_scaled()).then_some(table)
    }

    fn has_normalised_keys(&self) -> bool {
        let router = &self.router;
        self.config.key_norm != super::Norm::None
            || router.key_norm_weight.is_some()
            || router.key_norm_bias.is_some()
    }
}

/// The error for a layer that cannot be trained.
fn untrained(operation: &'static str, expected: &str, actual: &str) -> Error {
    Error::Argument { operation, argument: "layer", expected: expected.into(), actual: actual.into() }
}

/// The names are those of [`Peer::from_safetensors`], and `experts` of the table, if that has all its rows on the device and its numbers are not quantised: an optimiser
/// moves no other. It wants both sets of sub-keys in memory of their own.
impl<T: PeerInput> Parameters for Peer<T> {
    type Gradients = PeerGradients<T>;

    fn parameters(&self, prefix: &str) -> Vec<(String, AnyWeights<'_>)> {
        let router = &self.router;
        let mut all: Vec<(&str, AnyWeights<'_>)> = vec![("query.weight", (&router.query).into())];
        all.extend(router.query_bias.as_ref().map(|bias| ("query.bias", bias.into())));
        all.extend([("keys_1", (&router.keys[0]).into()), ("keys_2", (&router.keys[1]).into())]);
        all.extend(router.query_norm_weight.as_ref().map(|weight| ("query_norm.weight", weight.into())));
        all.extend(router.query_norm_bias.as_ref().map(|bias| ("query_norm.bias", bias.into())));
        all.extend(self.moved_experts().map(|table| ("experts", table.into())));
        all.into_iter().map(|(name, tensor)| (joined(prefix, name), tensor)).collect()
    }

    fn gradients<'g>(&self, gradients: &'g Self::Gradients) -> Vec<Gradient<'g>> {
        let PeerGradients {
            dquery, dquery_bias, dkeys, dquery_norm_weight, dquery_norm_bias, experts, ..
        } = gradients;
        let mut all: Vec<&Tensor<f32>> = vec![dquery];
        all.extend(dquery_bias.as_ref());
        all.extend(dkeys);
        all.extend(dquery_norm_weight.as_ref());
        all.extend(dquery_norm_bias.as_ref());
        let experts = self.moved_experts().map(|_| experts.into());
        all.into_iter().map(Gradient::from).chain(experts).collect()
    }
}

#[cfg(test)]
mod tests;
