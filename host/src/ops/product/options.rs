//! The options that linear layers and matrix products share: what is done to the product, and how it is run.

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
    pub(crate) residual: Option<(&'a Tensor<O>, f32)>,
    /// Adds so much of what the output holds.
    pub(crate) beta: f32,
    pub(crate) activation: Activation,
    pub(crate) mask: Option<&'a mut Tensor<u32>>,
    pub(crate) preactivation: Option<&'a mut Tensor<O>>,
    pub(crate) stream: Option<&'a Stream>,
    pub(crate) tile: Option<Tile>,
    pub(crate) precision: Precision,
    /// An operand of the output's type that was given before the output's type was changed.
    pub(crate) of_another_output: Option<&'static str>,
}

impl<'a, T: Element, O: Element> Options<'a, T, O> {
    /// What is done to the product.
    pub(crate) fn fused(&self) -> Fused {
        let has_scales = self.row_scale.is_some() || self.column_scale.is_some();
        let adds = self.residual.is_some() || self.beta != 0.0;
        let stores = self.mask.is_some() || self.preactivation.is_some();
        match self.activation {
            _ if has_scales || adds || stores => Fused::Terms,
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
            residual: None,
            beta: 0.0,
            activation: Activation::None,
            mask: None,
            preactivation: None,
            stream: None,
            tile: None,
            precision: Precision::default(),
            of_another_output: None,
        }
    }

    /// The same for an output of type `P`, without the operands that have the output's type.
    pub(crate) fn output<P: Element>(self) -> Options<'a, T, P> {
        let lost = self.residual.map(|_| "residual").or(self.preactivation.map(|_| "preactivation"));
        Options {
            alpha: self.alpha,
            row_scale: self.row_scale,
            column_scale: self.column_scale,
            bias: self.bias,
            residual: None,
            beta: self.beta,
            activation: self.activation,
            mask: self.mask,
            preactivation: None,
            stream: self.stream,
            tile: self.tile,
            precision: self.precision,
            of_another_output: self.of_another_output.or(lost),
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

        /// Adds `beta · residual`, of the output's shape and type. With `beta` = 0 it is not read.
        ///
        /// It may be the very output of `run_into`, but not otherwise share memory with it.
        pub fn residual(mut self, residual: &'a Tensor<O>, beta: f32) -> Self {
            self.options.residual = Some((residual, beta));
            self
        }

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

        /// Also stores where the activation's argument is above 0, as bits: column n of the output is bit n mod 32 of word
        /// ⌊n / 32⌋ of its row in `mask`, which has the output's shape but ⌈N / 32⌉ words for the last axis. The bits past
        /// column N become 0. The backward pass of a ReLU needs no more.
        pub fn relu_mask(mut self, mask: &'a mut Tensor<u32>) -> Self {
            self.options.mask = Some(mask);
            self
        }

        /// Also stores the activation's argument, rounded to the output's type: what a backward pass needs.
        pub fn preactivation(mut self, preactivation: &'a mut Tensor<O>) -> Self {
            self.options.preactivation = Some(preactivation);
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
