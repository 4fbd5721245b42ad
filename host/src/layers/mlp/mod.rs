//! The multilayer perceptron of a transformer: plain or gated.

mod names;
mod training;

pub use names::MlpNames;
pub use training::{MlpGradients, MlpSaved};

use super::Linear;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::ops::elementwise::ElementwiseElement;
use crate::ops::linear::LinearInput;
use crate::ops::{self, Activation};
use crate::stream::Stream;
use crate::tensor::{Element, Tensor};

/// The constructors' name in errors.
const NEW: &str = "Mlp::new";

/// Two linear layers with an activation between, or with a gate: `y = act(x Wᵤᵀ + bᵤ) Wᵈᵀ + bᵈ`, or `y = (act(x Wᵍᵀ + bᵍ) ⊙ (x Wᵤᵀ + bᵤ)) Wᵈᵀ + bᵈ`.
///
/// ```
/// use warpsmith::layers::{Linear, Mlp};
/// use warpsmith::ops::Activation;
/// use warpsmith::{Device, Tensor};
///
/// # fn main() -> warpsmith::Result<()> {
/// let device = Device::cpu();
/// let linear = |numbers: &[f32], shape: [usize; 2]| {
///     Linear::new(Tensor::from_slice(&device, numbers, shape)?, None, Activation::None)
/// };
/// // One hidden number: relu(x₀) · x₁, twice.
/// let layer = Mlp::gated_fused(linear(&[1.0, 0.0, 0.0, 1.0], [2, 2])?, linear(&[2.0], [1, 1])?, Activation::Relu)?;
/// let x = Tensor::from_slice(&device, &[3.0f32, 5.0, -3.0, 5.0], [2, 2])?;
/// assert_eq!(layer.forward(&x)?.to_vec()?, [30.0, 0.0]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Mlp<T: LinearInput> {
    up: Up<T>,
    down: Linear<T>,
}

/// What makes hidden numbers of x.
#[derive(Clone, Debug)]
enum Up<T: LinearInput> {
    /// A layer, with its activation.
    Plain(Box<Linear<T>>),
    /// One layer of gates and then of values.
    Fused(Box<Linear<T>>, Activation),
    /// One of gates and one of values.
    Separate(Box<[Linear<T>; 2]>, Activation),
}

impl<T: LinearInput> Mlp<T> {
    /// A plain one: the weights of `up` are `[hidden, in]`, of `down` `[out, hidden]`. The activation is that of `up`.
    ///
    /// # Errors
    ///
    /// [`Error::Shape`] or [`Error::DeviceMismatch`] if the two do not fit together, [`Error::Argument`] if `down` has an activation.
    pub fn new(up: Linear<T>, down: Linear<T>) -> Result<Self> {
        let hidden = up.weight().shape()[0];
        Self::with(Up::Plain(Box::new(up)), &["up"], hidden, down)
    }

    /// A gated one: the weights of `gate` and `up` are `[hidden, in]`, of `down` `[out, hidden]`. With [`Activation::Silu`] it is SwiGLU, with a GELU GEGLU.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new); none of the three has an activation of its own.
    pub fn gated(gate: Linear<T>, up: Linear<T>, down: Linear<T>, activation: Activation) -> Result<Self> {
        let &[hidden, input] = gate.weight().shape() else { unreachable!("a weight has two axes") };
        expect_weight("up", &up, format!("[{hidden}, {input}], as the gate's"), [hidden, input])?;
        Self::with(Up::Separate(Box::new([gate, up]), activation), &["gate", "up"], hidden, down)
    }

    /// A gated one whose gates and values are one product: the weight of `gate_up` is `[2 · hidden, in]`, the rows of all gates and then those of all values.
    ///
    /// # Errors
    ///
    /// As [`gated`](Self::gated).
    pub fn gated_fused(gate_up: Linear<T>, down: Linear<T>, activation: Activation) -> Result<Self> {
        let &[rows, input] = gate_up.weight().shape() else { unreachable!("a weight has two axes") };
        if !rows.is_multiple_of(2) {
            let expected = format!("[2 · hidden, {input}], gates and values");
            return Err(shape("gate_up", expected, gate_up.weight()));
        }
        Self::with(Up::Fused(Box::new(gate_up), activation), &["gate_up"], rows / 2, down)
    }

    fn with(up: Up<T>, names: &[&'static str], hidden: usize, down: Linear<T>) -> Result<Self> {
        let out = down.weight().shape()[0];
        let expected = format!("[{out}, {hidden}], for so many hidden numbers");
        expect_weight("down", &down, expected, [out, hidden])?;
        let layer = Self { up, down };
        let plain = matches!(layer.up, Up::Plain(_));
        let up = names.iter().copied().zip(layer.projections());
        for (operand, linear) in up.chain([("down", &layer.down)]) {
            layer.device().expect_same(NEW, operand, linear.weight().device())?;
            if linear.activation() != Activation::None && (operand == "down" || !plain) {
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

    /// The layer that makes hidden numbers; with a gate that of gates and values, or both.
    #[must_use]
    pub fn projections(&self) -> &[Linear<T>] {
        match &self.up {
            Up::Plain(up) | Up::Fused(up, _) => std::slice::from_ref(&**up),
            Up::Separate(both, _) => &**both,
        }
    }

    /// The layer that makes the output.
    #[must_use]
    pub fn down(&self) -> &Linear<T> {
        &self.down
    }

    /// The activation of gates; none without a gate.
    #[must_use]
    pub fn gate(&self) -> Option<Activation> {
        match &self.up {
            Up::Plain(_) => None,
            Up::Fused(_, activation) | Up::Separate(_, activation) => Some(*activation),
        }
    }

    /// Columns of x.
    #[must_use]
    pub fn input(&self) -> usize {
        self.projections()[0].weight().shape()[1]
    }

    /// The device that holds the weights.
    #[must_use]
    pub fn device(&self) -> &Device {
        self.down.weight().device()
    }
}

impl<T: LinearInput + ElementwiseElement> Mlp<T> {
    /// The output `[.., out]` for x `[.., in]`.
    ///
    /// # Errors
    ///
    /// As [`LinearOp::run`](ops::linear::LinearOp::run) and [`ElementwiseOp::run`](ops::elementwise::ElementwiseOp::run).
    pub fn forward(&self, x: &Tensor<T>) -> Result<Tensor<T>> {
        self.forward_on(x, &self.device().default_stream())
    }

    /// As [`forward`](Self::forward), on `stream`.
    ///
    /// # Errors
    ///
    /// As [`forward`](Self::forward), and [`Error::DeviceMismatch`] if the stream is another device's.
    pub fn forward_on(&self, x: &Tensor<T>, stream: &Stream) -> Result<Tensor<T>> {
        self.forward_onto(x, None, stream)
    }

    /// The same, added to `residual` `[.., out]` by the last product, if there is one.
    pub(super) fn forward_onto(
        &self,
        x: &Tensor<T>,
        residual: Option<&Tensor<T>>,
        stream: &Stream,
    ) -> Result<Tensor<T>> {
        let hidden = match &self.up {
            Up::Plain(up) => up.forward_on(x, stream)?,
            Up::Fused(up, activation) => {
                let [gate, value] = halves(&up.forward_on(x, stream)?)?;
                ops::gated(&gate, &value, *activation).on(stream).run()?
            }
            Up::Separate(both, activation) => {
                let [gate, up] = &**both;
                let (gate, value) = (gate.forward_on(x, stream)?, up.forward_on(x, stream)?);
                ops::gated(&gate, &value, *activation).on(stream).run()?
            }
        };
        self.finish(&hidden, residual, stream)
    }

    /// The output for hidden numbers.
    fn finish(&self, hidden: &Tensor<T>, residual: Option<&Tensor<T>>, stream: &Stream) -> Result<Tensor<T>> {
        let operation = self.down.operation(hidden).on(stream);
        match residual {
            Some(residual) => operation.residual(residual, 1.0).run(),
            None => operation.run(),
        }
    }
}

/// Gates and values of one tensor, as views.
fn halves<T: Element>(both: &Tensor<T>) -> Result<[Tensor<T>; 2]> {
    let axis = both.rank().saturating_sub(1);
    let columns = both.shape().get(axis).copied().unwrap_or(0);
    Ok([both.slice(axis, 0..columns / 2)?, both.slice(axis, columns / 2..columns)?])
}

fn expect_weight<T: LinearInput>(
    operand: &'static str,
    linear: &Linear<T>,
    expected: String,
    sizes: [usize; 2],
) -> Result<()> {
    if linear.weight().shape() == sizes {
        return Ok(());
    }
    Err(shape(operand, expected, linear.weight()))
}

fn shape<T: Element>(operand: &'static str, expected: String, tensor: &Tensor<T>) -> Error {
    Error::Shape { operation: NEW, operand, expected, actual: tensor.shape().to_vec() }
}

#[cfg(test)]
mod tests;
