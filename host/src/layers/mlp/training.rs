//! Training of a multilayer perceptron: a forward pass that keeps what the backward pass needs, and that one.

use super::{Mlp, Up, halves};
use crate::error::{Error, Result};
use crate::layers::{Linear, LinearSaved, ProjectionGradients};
use crate::ops;
use crate::ops::elementwise::ElementwiseElement;
use crate::ops::linear::{LinearBackwardOp, LinearGradientElement, LinearGradientOutputs, LinearInput};
use crate::stream::Stream;
use crate::tensor::{Element, Tensor};

/// What [`Mlp::forward_train`] keeps for [`Mlp::backward`].
///
/// It shares the memory of x, which has to hold the same numbers until then.
#[derive(Clone, Debug)]
pub struct MlpSaved<T: Element> {
    x: Tensor<T>,
    up: SavedUp<T>,
    /// What the last product reads.
    hidden: Tensor<T>,
}

#[derive(Clone, Debug)]
enum SavedUp<T: Element> {
    Plain(LinearSaved<T>),
    /// Gates and values.
    Gated([Tensor<T>; 2]),
}

impl<T: LinearInput> MlpSaved<T> {
    /// The layer's input.
    #[must_use]
    pub fn x(&self) -> &Tensor<T> {
        &self.x
    }

    /// The bytes of its elements, those of x among them.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let bytes = |tensor: &Tensor<T>| tensor.len() * size_of::<T>();
        let up = match &self.up {
            SavedUp::Plain(saved) => saved.bytes(),
            SavedUp::Gated([gate, value]) => bytes(&self.x) + bytes(gate) + bytes(value),
        };
        up + bytes(&self.hidden)
    }
}

/// The gradients of a multilayer perceptron.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct MlpGradients<T: Element> {
    /// Of x, of its shape.
    pub dx: Tensor<T>,
    /// Of the layers that make hidden numbers, as [`Mlp::projections`] has them.
    pub projections: Vec<ProjectionGradients>,
    /// Of the layer that makes the output.
    pub down: ProjectionGradients,
}

impl<T: LinearInput + LinearGradientElement + ElementwiseElement> Mlp<T> {
    /// As [`forward`](Self::forward), with what [`backward`](Self::backward) needs: x, the hidden numbers, and what the slopes of the activation are known from.
    ///
    /// # Errors
    ///
    /// As [`forward`](Self::forward).
    pub fn forward_train(&self, x: &Tensor<T>) -> Result<(Tensor<T>, MlpSaved<T>)> {
        self.forward_train_onto(x, None)
    }

    /// The same, added to `residual` by the last product, if there is one.
    pub(in crate::layers) fn forward_train_onto(
        &self,
        x: &Tensor<T>,
        residual: Option<&Tensor<T>>,
    ) -> Result<(Tensor<T>, MlpSaved<T>)> {
        let stream = self.device().default_stream();
        let gated = |[gate, value]: [Tensor<T>; 2], activation| -> Result<_> {
            let hidden = ops::gated(&gate, &value, activation).run()?;
            Ok((hidden, SavedUp::Gated([gate, value])))
        };
        let (hidden, up) = match &self.up {
            Up::Plain(up) => {
                let (hidden, saved) = up.forward_train(x)?;
                (hidden, SavedUp::Plain(saved))
            }
            Up::Fused(up, activation) => gated(halves(&up.forward(x)?)?, *activation)?,
            Up::Separate(both, activation) => {
                let [gate, up] = &**both;
                gated([gate.forward(x)?, up.forward(x)?], *activation)?
            }
        };
        let y = self.finish(&hidden, residual, &stream)?;
        Ok((y, MlpSaved { x: x.clone(), up, hidden }))
    }

    /// The gradients of x and of the layers, these in f32, for the gradient of the output.
    ///
    /// # Errors
    ///
    /// As [`LinearBackwardOp::run`] and [`ElementwiseOp::run`](ops::elementwise::ElementwiseOp::run).
    pub fn backward(&self, saved: &MlpSaved<T>, dy: &Tensor<T>) -> Result<MlpGradients<T>> {
        let stream = self.device().default_stream();
        let new = |layer| ProjectionGradients::new(layer, &stream);
        let mut gradients = MlpGradients {
            dx: Tensor::uninit_on(&stream, saved.x.shape())?,
            projections: self.projections().iter().map(new).collect::<Result<_>>()?,
            down: new(&self.down)?,
        };
        self.write_gradients(saved, dy, &mut gradients, false, &stream)?;
        Ok(gradients)
    }

    /// As [`backward`](Self::backward), adding to the existing gradients of the layers. That of x is written over.
    ///
    /// # Errors
    ///
    /// As [`backward`](Self::backward); [`Error::Argument`] for gradients of another layer, of which nothing has changed then.
    pub fn accumulate(
        &self,
        saved: &MlpSaved<T>,
        dy: &Tensor<T>,
        gradients: &mut MlpGradients<T>,
    ) -> Result<()> {
        const OPERATION: &str = "Mlp::accumulate";
        self.expect_gradients(OPERATION, saved, gradients)?;
        self.write_gradients(saved, dy, gradients, true, &self.device().default_stream())
    }

    /// The error for what another layer's forward pass has kept.
    fn expect_saved(&self, operation: &'static str, saved: &MlpSaved<T>) -> Result<()> {
        let refused = |expected: String, actual| {
            Err(Error::Argument { operation, argument: "saved", expected, actual })
        };
        let with = |is_plain: bool| if is_plain { "no gate" } else { "a gate" };
        let (own, other) = (matches!(self.up, Up::Plain(_)), matches!(saved.up, SavedUp::Plain(_)));
        if own != other {
            let actual = format!("what a layer with {} has kept", with(other));
            return refused(format!("what a layer with {} has kept", with(own)), actual);
        }
        let columns = |layer: &Linear<T>| layer.weight().shape()[1];
        let sizes = [(columns(&self.projections()[0]), &saved.x), (columns(&self.down), &saved.hidden)];
        for (expected, kept) in sizes {
            if kept.shape().last() != Some(&expected) {
                let actual = format!("a tensor of shape {:?}", kept.shape());
                return refused(format!("a tensor of {expected} columns"), actual);
            }
        }
        Ok(())
    }

    /// The error for gradients that are not this layer's.
    pub(in crate::layers) fn expect_gradients(
        &self,
        operation: &'static str,
        saved: &MlpSaved<T>,
        gradients: &MlpGradients<T>,
    ) -> Result<()> {
        let refused =
            |expected, actual| Err(Error::Argument { operation, argument: "gradients", expected, actual });
        self.expect_saved(operation, saved)?;
        let (expected, actual) = (self.projections().len(), gradients.projections.len());
        if expected != actual {
            return refused(format!("those of {expected} projections"), format!("those of {actual}"));
        }
        let projections = self.projections().iter().zip(&gradients.projections);
        let weights = projections.chain([(&self.down, &gradients.down)]);
        let weights = weights.map(|(layer, of)| (of.dw.shape(), layer.weight().shape()));
        for (actual, expected) in weights.chain([(gradients.dx.shape(), saved.x.shape())]) {
            if expected != actual {
                return refused(format!("one of shape {expected:?}"), format!("one of shape {actual:?}"));
            }
        }
        Ok(())
    }

    fn write_gradients(
        &self,
        saved: &MlpSaved<T>,
        dy: &Tensor<T>,
        gradients: &mut MlpGradients<T>,
        adds: bool,
        stream: &Stream,
    ) -> Result<()> {
        let MlpGradients { dx, projections, down } = gradients;
        let mut dhidden = Tensor::uninit_on(stream, saved.hidden.shape())?;
        product(&self.down, &saved.hidden, dy).run_into(outputs(&mut dhidden, down, adds, false))?;
        match (&self.up, &saved.up) {
            (Up::Plain(up), SavedUp::Plain(saved)) => {
                let operation = up.backward_operation(saved, &dhidden);
                operation.run_into(outputs(dx, &mut projections[0], adds, false))
            }
            (Up::Fused(up, activation), SavedUp::Gated([gate, value])) => {
                let leading = &gate.shape()[..gate.rank() - 1];
                let rows = up.weight().shape()[0];
                let both = Tensor::uninit_on(stream, [leading, &[rows]].concat())?;
                let [mut dgate, mut dvalue] = halves(&both)?;
                ops::gated_backward(gate, value, &dhidden, *activation)
                    .on(stream)
                    .run_into(&mut dgate, &mut dvalue)?;
                product(up, &saved.x, &both).run_into(outputs(dx, &mut projections[0], adds, false))
            }
            (Up::Separate(both, activation), SavedUp::Gated([gate, value])) => {
                let (dgate, dvalue) =
                    ops::gated_backward(gate, value, &dhidden, *activation).on(stream).run()?;
                let layers = both.iter().zip([dgate, dvalue]).zip(projections);
                for (index, ((layer, dz), to)) in layers.enumerate() {
                    product(layer, &saved.x, &dz).run_into(outputs(dx, to, adds, index > 0))?;
                }
                Ok(())
            }
            (Up::Plain(_), SavedUp::Gated(_)) | (_, SavedUp::Plain(_)) => Err(Error::Argument {
                operation: "Mlp::backward",
                argument: "saved",
                expected: "what this layer's forward pass has kept".into(),
                actual: "that of a layer with another kind of gate".into(),
            }),
        }
    }
}

/// The gradients of a layer without an activation.
fn product<'a, T: LinearInput + LinearGradientElement>(
    layer: &'a Linear<T>,
    x: &'a Tensor<T>,
    dz: &'a Tensor<T>,
) -> LinearBackwardOp<'a, T, T> {
    ops::linear_backward(x, layer.weight(), dz).precision(layer.precision())
}

fn outputs<'o, T: Element>(
    dx: &'o mut Tensor<T>,
    to: &'o mut ProjectionGradients,
    adds: bool,
    adds_dx: bool,
) -> LinearGradientOutputs<'o, T, T, f32> {
    LinearGradientOutputs {
        dx: Some(dx),
        dw: Some(&mut to.dw),
        db: Some(&mut to.db),
        adds,
        adds_dx,
        ..LinearGradientOutputs::default()
    }
}
