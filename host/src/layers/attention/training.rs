//! Training of an attention layer: a forward pass that keeps what the backward pass needs, and that one.

use super::forward::Attended;
use super::{Attention, AttentionForward, Projection};
use crate::error::{Error, Result};
use crate::ops;
use crate::ops::attention::{AttentionGradientOutputs, AttentionInput};
use crate::ops::linear::{LinearGradientElement, LinearGradientOutputs, LinearInput};
use crate::stream::Stream;
use crate::tensor::{Element, Tensor};

/// The operation's name in errors.
const OPERATION: &str = "Attention::forward_train";

/// What [`Attention::forward_train`] keeps for [`Attention::backward`].
///
/// It shares the memory of x, and of lengths or offsets, which have to hold the same numbers until then.
#[derive(Clone, Debug)]
pub struct AttentionSaved<T: Element> {
    x: Tensor<T>,
    /// Queries, keys and values, turned if the layer turns them.
    operands: [Tensor<T>; 3],
    positions: Option<Tensor<u32>>,
    /// The results of heads `[.., H, Dv]`, and the logarithms of their sums.
    y: Tensor<T>,
    lse: Tensor<f32>,
    lengths: Option<Tensor<u32>>,
    offsets: Option<Tensor<u32>>,
}

impl<T: Element> AttentionSaved<T> {
    /// The layer's input.
    #[must_use]
    pub fn x(&self) -> &Tensor<T> {
        &self.x
    }

    /// The bytes of its elements, those of x among them.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let elements: usize = [&self.x, &self.y].into_iter().chain(&self.operands).map(Tensor::len).sum();
        let vectors = [&self.positions, &self.lengths, &self.offsets];
        let numbers = self.lse.len() + vectors.into_iter().flatten().map(Tensor::len).sum::<usize>();
        elements * size_of::<T>() + numbers * size_of::<f32>()
    }
}

/// The gradients of a layer's weights: of the weight, and of the bias, whether there is one or not.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ProjectionGradients {
    /// Of the weight, of its shape.
    pub dw: Tensor<f32>,
    /// Of the bias.
    pub db: Tensor<f32>,
}

impl ProjectionGradients {
    pub(in crate::layers) fn new<T: LinearInput>(
        layer: &crate::layers::Linear<T>,
        stream: &Stream,
    ) -> Result<Self> {
        let shape = layer.weight().shape();
        Ok(Self { dw: Tensor::uninit_on(stream, shape)?, db: Tensor::uninit_on(stream, &shape[..1])? })
    }
}

/// The gradients of an attention layer.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct AttentionLayerGradients<T: Element> {
    /// Of x, of its shape.
    pub dx: Tensor<T>,
    /// Of the projections of queries, of keys and of values, or of the one of all three, as [`Attention::projections`] has them.
    pub projections: Vec<ProjectionGradients>,
    /// Of the projection of the results.
    pub output: ProjectionGradients,
    /// Of the sinks `[H]`, if there are some.
    pub dsinks: Option<Tensor<f32>>,
}

impl<T: AttentionInput + LinearInput> AttentionForward<'_, T> {
    /// As [`run`](Self::run), with what [`Attention::backward`] needs.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run); [`Error::Argument`] with a cache, whose keys have no gradients; [`Error::UnsupportedDevice`] for heads whose gradients no kernel of
    /// the device computes: of more than 256 columns, or more than it has shared memory for.
    pub fn run_train(self) -> Result<(Tensor<T>, AttentionSaved<T>)> {
        if self.cache.is_some() {
            let (expected, actual) = ("none in training".into(), "a cache of keys and values".into());
            return Err(Error::Argument { operation: OPERATION, argument: "cache", expected, actual });
        }
        let stream = self.stream.cloned().unwrap_or_else(|| self.layer.device().default_stream());
        self.check(&stream)?;
        let Attended { operands, positions } = self.prepare(&stream)?;
        let [q, k, v] = &operands;
        let attention = self.attention(q, [k, v]).on(&stream);
        // Who trains would find out only in the backward pass.
        attention.expect_gradients()?;
        let (y, lse) = attention.run_with_lse()?;
        let layer = self.layer;
        let output = layer.output.forward_on(&layer.of_rows(&y)?, &stream)?;
        let (lengths, offsets) = (self.lengths.cloned(), self.offsets.cloned());
        Ok((output, AttentionSaved { x: self.x.clone(), operands, positions, y, lse, lengths, offsets }))
    }
}

impl<T: AttentionInput + LinearInput + LinearGradientElement> Attention<T> {
    /// As [`forward`](Self::forward), with what [`backward`](Self::backward) needs: x, queries, keys and values, the results of heads and a number for each of them.
    /// Scores are not among them. For sequences of different lengths there is [`AttentionForward::run_train`].
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
    /// let layer = Attention::fused(AttentionConfig::new(2).causal(), linear(3 * 2 * 8, 16)?, linear(16, 2 * 8)?)?;
    /// let x = tensor(&[3, 10, 16])?;
    /// let (y, saved) = layer.forward_train(&x)?;
    /// assert_eq!(y.to_vec()?, layer.forward(&x)?.to_vec()?);
    /// let mut gradients = layer.backward(&saved, &tensor(&[3, 10, 16])?)?;
    /// assert_eq!(gradients.dx.shape(), x.shape());
    /// assert_eq!(gradients.projections[0].dw.shape(), [3 * 2 * 8, 16]);
    ///
    /// // Another pass, whose gradients of the weights are added.
    /// layer.accumulate(&saved, &tensor(&[3, 10, 16])?, &mut gradients)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`forward`](Self::forward), and [`Error::UnsupportedDevice`] as for [`AttentionForward::run_train`].
    pub fn forward_train(&self, x: &Tensor<T>) -> Result<(Tensor<T>, AttentionSaved<T>)> {
        self.operation(x).run_train()
    }

    /// The gradients of x, of the projections and of the sinks, all but the first in f32, for the gradient of the output.
    ///
    /// # Errors
    ///
    /// As [`LinearBackwardOp::run`](ops::linear::LinearBackwardOp::run) and [`AttentionGradientOp::run`](ops::attention::AttentionGradientOp::run).
    pub fn backward(&self, saved: &AttentionSaved<T>, dy: &Tensor<T>) -> Result<AttentionLayerGradients<T>> {
        let stream = self.device().default_stream();
        let new = |layer| ProjectionGradients::new(layer, &stream);
        let dsinks = self.sinks.as_ref().map(|sinks| Tensor::uninit_on(&stream, sinks.shape()));
        let mut gradients = AttentionLayerGradients {
            dx: Tensor::uninit_on(&stream, saved.x.shape())?,
            projections: self.projections().iter().map(new).collect::<Result<_>>()?,
            output: new(&self.output)?,
            dsinks: dsinks.transpose()?,
        };
        self.write_gradients(saved, dy, &mut gradients, false, &stream)?;
        Ok(gradients)
    }

    /// As [`backward`](Self::backward), adding to the existing gradients of projections and sinks. That of x is written over.
    ///
    /// # Errors
    ///
    /// As [`backward`](Self::backward); [`Error::Argument`] for gradients of another layer.
    pub fn accumulate(
        &self,
        saved: &AttentionSaved<T>,
        dy: &Tensor<T>,
        gradients: &mut AttentionLayerGradients<T>,
    ) -> Result<()> {
        // Before anything is added: what is refused half way could not be taken back.
        self.expect_gradients("Attention::accumulate", saved, gradients)?;
        self.write_gradients(saved, dy, gradients, true, &self.device().default_stream())
    }

    /// The error for gradients that are not this layer's.
    pub(in crate::layers) fn expect_gradients(
        &self,
        operation: &'static str,
        saved: &AttentionSaved<T>,
        gradients: &AttentionLayerGradients<T>,
    ) -> Result<()> {
        let (count, expected) = (gradients.projections.len(), self.projections().len());
        if count != expected || gradients.dsinks.is_some() != self.sinks.is_some() {
            return Err(Error::Argument {
                operation,
                argument: "gradients",
                expected: format!("those of {expected} projections, with sinks as the layer has them"),
                actual: format!("those of {count}"),
            });
        }
        for (name, shape, expected) in [
            ("dx", gradients.dx.shape(), saved.x.shape()),
            ("output.dw", gradients.output.dw.shape(), self.output.weight().shape()),
        ] {
            if shape != expected {
                return Err(Error::Argument {
                    operation,
                    argument: "gradients",
                    expected: format!("`{name}` of shape {expected:?}"),
                    actual: format!("one of shape {shape:?}"),
                });
            }
        }
        for (layer, of) in self.projections().iter().zip(&gradients.projections) {
            if of.dw.shape() != layer.weight().shape() {
                return Err(Error::Argument {
                    operation,
                    argument: "gradients",
                    expected: format!("a projection's `dw` of shape {:?}", layer.weight().shape()),
                    actual: format!("one of shape {:?}", of.dw.shape()),
                });
            }
        }
        Ok(())
    }

    fn write_gradients(
        &self,
        saved: &AttentionSaved<T>,
        dy: &Tensor<T>,
        gradients: &mut AttentionLayerGradients<T>,
        adds: bool,
        stream: &Stream,
    ) -> Result<()> {
        let AttentionLayerGradients { dx, projections, output, dsinks } = gradients;
        let of_rows = self.of_rows(&saved.y)?;
        let mut attended = Tensor::uninit_on(stream, of_rows.shape())?;
        ops::linear_backward(&of_rows, self.output.weight(), dy)
            .precision(self.output.precision())
            .run_into(LinearGradientOutputs {
                dx: Some(&mut attended),
                dw: Some(&mut output.dw),
                db: Some(&mut output.db),
                adds,
                ..LinearGradientOutputs::default()
            })?;
        let of_heads = attended.reshape(saved.y.shape())?;
        let of_projections = self.operand_gradients(saved, &of_heads, (dsinks.as_mut(), adds), stream)?;
        let layers = self.projections().iter().zip(of_projections).zip(projections);
        for (index, ((layer, dz), to)) in layers.enumerate() {
            let operation = ops::linear_backward(&saved.x, layer.weight(), &dz).precision(layer.precision());
            operation.run_into(LinearGradientOutputs {
                dx: Some(&mut *dx),
                dw: Some(&mut to.dw),
                db: Some(&mut to.db),
                adds,
                adds_dx: index > 0,
                ..LinearGradientOutputs::default()
            })?;
        }
        Ok(())
    }

    /// The gradients of what each projection returns, `[.., out]`, for those of the results of heads.
    fn operand_gradients(
        &self,
        saved: &AttentionSaved<T>,
        dy: &Tensor<T>,
        (dsinks, adds): (Option<&mut Tensor<f32>>, bool),
        stream: &Stream,
    ) -> Result<Vec<Tensor<T>>> {
        let [q, k, v] = &saved.operands;
        let axis = q.rank() - 2;
        let leading = &q.shape()[..axis];
        // Zeros: packed sequences may leave rows out.
        let new =
            |heads: usize, width: usize| Tensor::<T>::zeros_on(stream, [leading, &[heads, width]].concat());
        let (heads, key_heads) = (self.config.heads, self.config.key_heads);
        let (all, [mut dq, mut dk, mut dv], turned) = match &self.projection {
            Projection::Fused(_) => {
                let all = new(heads + 2 * key_heads, self.width)?;
                let (end_k, end_v) = (heads + key_heads, heads + 2 * key_heads);
                let of = |range| all.slice(axis, range);
                let parts = [of(0..heads)?, of(heads..end_k)?, of(end_k..end_v)?];
                let turned = vec![of(0..end_k)?];
                (vec![all.clone()], parts, turned)
            }
            Projection::Separate(_) => {
                let parts =
                    [new(heads, self.width)?, new(key_heads, self.width)?, new(key_heads, self.value_width)?];
                (parts.to_vec(), parts.clone(), parts[..2].to_vec())
            }
        };
        let attention = self.attention(q, [k, v]);
        let attention = match (&saved.offsets, &saved.lengths) {
            (Some(offsets), _) => attention.packed(offsets, offsets),
            (None, lengths) => attention.lengths(lengths.as_ref(), lengths.as_ref()),
        };
        attention.backward(&saved.y, &saved.lse, dy).on(stream).run_into(AttentionGradientOutputs {
            dq: Some(&mut dq),
            dk: Some(&mut dk),
            dv: Some(&mut dv),
            dsinks,
            adds,
        })?;
        if let Some((table, pairing)) = &self.rotary {
            for mut gradient in turned {
                let from = gradient.clone();
                let operation = ops::rotary(&from, table).pairing(*pairing).backward().on(stream);
                match &saved.positions {
                    Some(positions) => operation.positions(positions).run_into(&mut gradient)?,
                    None => operation.run_into(&mut gradient)?,
                }
            }
        }
        all.into_iter().map(|gradient| self.of_rows(&gradient)).collect()
    }
}

#[cfg(test)]
mod tests;
