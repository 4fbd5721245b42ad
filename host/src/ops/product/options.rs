//! The options that linear layers and matrix products share: what is done to the product, and how it is run.

use super::Terms;
use crate::ops::linear::Tile;
use crate::ops::linear::select::Fused;
use crate::ops::{Activation, Precision};
use crate::stream::Stream;
use crate::tensor::{Element, Tensor};

/// What an operation's builder has been told beside its operands.
#[derive(Debug)]
pub(crate) struct Options<'a, T: Element, O: Element> {
    pub(crate) alpha: f32,
    pub(crate) row_scale: Option<&'a Tensor<f32>>,
    pub(crate) column_scale: Option<&'a Tensor<f32>>,
    pub(crate) bias: Option<&'a Tensor<T>>,
    pub(crate) terms: Terms<'a, O>,
    pub(crate) activation: Activation,
    pub(crate) stream: Option<&'a Stream>,
    pub(crate) tile: Option<Tile>,
    pub(crate) precision: Precision,
}

impl<'a, T: Element, O: Element> Options<'a, T, O> {
    /// What is done to the product.
    pub(crate) fn fused(&self) -> Fused {
        let has_scales = self.row_scale.is_some() || self.column_scale.is_some();
        match self.activation {
            _ if has_scales || !self.terms.is_empty() => Fused::Terms,
            Activation::None | Activation::Relu => Fused::Floor,
            _ => Fused::Activation,
        }
    }

    pub(crate) fn new() -> Self {
        Self {
            alpha: 1.0,
            row_scale: None,
            column_scale: None,
            bias: None,
            terms: Terms::default(),
            activation: Activation::None,
            stream: None,
            tile: None,
            precision: Precision::default(),
        }
    }

    /// The same for an output of type `P`, without the operands that have the output's type.
    pub(crate) fn output<P: Element>(self) -> Options<'a, T, P> {
        Options {
            alpha: self.alpha,
            row_scale: self.row_scale,
            column_scale: self.column_scale,
            bias: self.bias,
            terms: self.terms.output(),
            activation: self.activation,
            stream: self.stream,
            tile: self.tile,
            precision: self.precision,
        }
    }
}

/// The methods of a builder that set its options.
macro_rules! option_methods {
    () => {
        /// Adds `bias` `[N]` to every row; `None` adds nothing.
        pub fn bias(mut self, bias: impl Into<Option<&'a Tensor<T>>>) -> Self {
            self.options.bias = bias.into();
            self
        }

        $crate::ops::product::term_methods!(options.terms);

        /// Multiplies the product's rows by these numbers before anything is added: one for all, `[1]`, one for each row of a matrix,
        /// `[M]`, or one for each row of the output, of its shape but for the last axis. The last are a launch for each matrix of a batch,
        /// unless its matrices can be one of more rows, as those of a linear layer's leading axes can.
        pub fn row_scale(mut self, scale: impl Into<Option<&'a Tensor<f32>>>) -> Self {
            self.options.row_scale = scale.into();
            self
        }

        /// Multiplies the product's columns by these numbers, `[N]` or one for all, before anything is added.
        pub fn column_scale(mut self, scale: impl Into<Option<&'a Tensor<f32>>>) -> Self {
            self.options.column_scale = scale.into();
            self
        }

        /// Applies `activation` last, before rounding.
        pub fn activation(mut self, activation: Activation) -> Self {
            self.options.activation = activation;
            self
        }

        /// Runs on `stream` instead of the device's default stream.
        pub fn on(mut self, stream: &'a Stream) -> Self {
            self.options.stream = Some(stream);
            self
        }

        /// How exact the product has to be; the accuracy of the operands' type unless it is set.
        pub fn precision(mut self, precision: Precision) -> Self {
            self.options.precision = precision;
            self
        }

        /// Takes this tile instead of the one that [`select`](crate::ops::linear::select::select) chooses; it must run on the
        /// device and be as exact as `precision` asks. What it cannot read where it lies is copied first. The CPU implementation has no such tiles and ignores it.
        pub fn tile(mut self, tile: impl Into<Option<Tile>>) -> Self {
            self.options.tile = tile.into();
            self
        }
    };
}
pub(crate) use option_methods;
