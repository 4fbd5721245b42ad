//! Perceptrons from files: the names of their weights.

use super::super::Linear;
use super::super::parameters::joined;
use super::Mlp;
use crate::device::Device;
use crate::error::Result;
use crate::ops::Activation;
use crate::ops::linear::LinearInput;
use crate::weights::{FloatElement, Weights};

/// What follows a perceptron's prefix and a dot in the names of its tensors; `.weight` and `.bias` follow.
///
/// ```
/// use warpsmith::layers::MlpNames;
///
/// assert_eq!(MlpNames::default(), MlpNames::Gated { gate: "gate_proj", up: "up_proj", down: "down_proj" });
/// // As OPT has them.
/// let opt = MlpNames::Plain { up: "fc1", down: "fc2" };
/// assert_ne!(opt, MlpNames::default());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MlpNames<'a> {
    /// Two layers, see [`Mlp::new`].
    Plain {
        /// That of hidden numbers.
        up: &'a str,
        /// That of the output.
        down: &'a str,
    },
    /// With a gate, see [`Mlp::gated`].
    Gated {
        /// That of gates.
        gate: &'a str,
        /// That of values.
        up: &'a str,
        /// That of the output.
        down: &'a str,
    },
    /// With gates and values in one layer, see [`Mlp::gated_fused`].
    GatedFused {
        /// That of gates and then of values.
        gate_up: &'a str,
        /// That of the output.
        down: &'a str,
    },
}

impl Default for MlpNames<'_> {
    /// A gated perceptron with the names `gate_proj`, `up_proj` and `down_proj`.
    fn default() -> Self {
        Self::Gated { gate: "gate_proj", up: "up_proj", down: "down_proj" }
    }
}

impl<T: LinearInput> Mlp<T> {
    /// A layer with the tensors that `names` gives after `prefix` and a dot, which are of type `T`. Each bias may be missing. The activation is that of gates, or
    /// without a gate that of hidden numbers.
    ///
    /// # Errors
    ///
    /// [`Error::Weights`](crate::Error::Weights) if a weight is missing or a tensor has another type; otherwise as [`new`](Self::new) and for copying to the device.
    pub fn from_safetensors(
        weights: &Weights,
        prefix: &str,
        device: &Device,
        activation: Activation,
        names: MlpNames<'_>,
    ) -> Result<Self> {
        Self::load(activation, names, |name, activation| {
            Linear::from_safetensors(weights, &joined(prefix, name), device, activation)
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
        activation: Activation,
        names: MlpNames<'_>,
    ) -> Result<Self>
    where
        T: FloatElement,
    {
        Self::load(activation, names, |name, activation| {
            Linear::from_safetensors_converted(weights, &joined(prefix, name), device, activation)
        })
    }

    pub(in crate::layers) fn load(
        activation: Activation,
        names: MlpNames<'_>,
        linear: impl Fn(&str, Activation) -> Result<Linear<T>>,
    ) -> Result<Self> {
        let plain = |name| linear(name, Activation::None);
        match names {
            MlpNames::Plain { up, down } => Self::new(linear(up, activation)?, plain(down)?),
            MlpNames::Gated { gate, up, down } => {
                Self::gated(plain(gate)?, plain(up)?, plain(down)?, activation)
            }
            MlpNames::GatedFused { gate_up, down } => {
                Self::gated_fused(plain(gate_up)?, plain(down)?, activation)
            }
        }
    }
}
