//! The options that linear layers and matrix products share: what is done to the product, and how it is run.

use super::{Fused, Terms, Tile};
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
    /// How many blocks share the sums of a tile, where the tile's kernels can do that.
    pub(crate) parts: Option<u32>,
    pub(crate) precision: Precision,
}

impl<'a, T: Element, O: Element> Options<'a, T, O> {
    /// What is done to the product.
    pub(crate) fn fused(&self) -> Fused {
        let has_scales = self.row_scale.is_some() || self.column_scale.is_some();
        match self.activation {
            _ if has_scales || self.terms.has_more_than_mask() => Fused::Terms,
            _ if self.terms.mask.is_some() => Fused::Mask,
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
            parts: None,
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
            parts: self.parts,
            precision: self.precision,
        }
    }
}

/// The methods of a builder that say what else is done to a product, with a bias of type `$bias` and an output of type `$output`, and on
/// which stream. What they set are fields of `self`, or of its `$options`.
macro_rules! epilogue_methods {
    ($bias:ty, $output:ty $(, $options:ident)?) => {
        /// Adds `bias` `[N]` to every row; `None` adds nothing.
        pub fn bias(mut self, bias: impl Into<Option<&'a Tensor<$bias>>>) -> Self {
            self.$($options.)?bias = bias.into();
            self
        }

        /// Adds `beta · residual`, of the output's shape and type. With `beta` = 0 it is not read.
        ///
        /// It may be the very output of `run_into`, as a clone, which shares its memory; but not otherwise share memory with it.
        pub fn residual(mut self, residual: &'a Tensor<$output>, beta: f32) -> Self {
            self.$($options.)?terms.residual = Some((residual, beta));
            self
        }

        /// Also stores where the activation's argument is above 0, as bits. Column n of the output is bit n mod 32 of word ⌊n /
        /// 32⌋ of its row in `mask`, which has the output's shape but ⌈N / 32⌉ words for the last axis. The bits past
        /// column N become 0. The backward pass of a ReLU needs no more.
        pub fn relu_mask(mut self, mask: &'a mut Tensor<u32>) -> Self {
            self.$($options.)?terms.mask = Some(mask);
            self
        }

        /// Also stores the activation's argument, rounded to the output's type: what a backward pass needs.
        pub fn preactivation(mut self, preactivation: &'a mut Tensor<$output>) -> Self {
            self.$($options.)?terms.preactivation = Some(preactivation);
            self
        }

        /// Applies `activation` last, before rounding.
        pub fn activation(mut self, activation: Activation) -> Self {
            self.$($options.)?activation = activation;
            self
        }

        /// Runs on `stream` instead of the device's default stream.
        pub fn on(mut self, stream: &'a Stream) -> Self {
            self.$($options.)?stream = Some(stream);
            self
        }
    };
}
pub(crate) use epilogue_methods;

/// The methods of a builder that set the factors of the product and of what the output holds: fields of `self`, or of its `$options`.
macro_rules! factor_methods {
    ($($options:ident)?) => {
        /// Multiplies the product by `alpha`, beside any scales, before anything is added. 1 unless it is set.
        pub fn alpha(mut self, alpha: f32) -> Self {
            self.$($options.)?alpha = alpha;
            self
        }

        /// Adds `beta` times what the output of [`run_into`](Self::run_into) holds. With 0, as it is unless it is set, the output is not
        /// read. [`residual`](Self::residual) adds another tensor instead.
        pub fn beta(mut self, beta: f32) -> Self {
            self.$($options.)?terms.beta = beta;
            self
        }
    };
}
pub(crate) use factor_methods;

/// The methods of `$op`, a builder of operands and [`Options`] that makes a [`Product`](super::Product) with an output of shape `$shape`.
macro_rules! product_methods {
    ($op:ident { $($operand:ident),* }, $shape:literal) => {
        $crate::ops::gemm::factor_methods!(options);
        $crate::ops::gemm::epilogue_methods!(T, O, options);

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

        /// Rounds the result to `P` instead of the inputs' type; `f32` is the alternative. It comes before the options that take tensors
        /// of the output's type.
        pub fn output<P>(self) -> $op<'a, T, P>
        where
            T: LinearTypes<P>,
            P: Element + FromAccumulator<f32>,
        {
            $op { $($operand: self.$operand,)* options: self.options.output() }
        }

        /// How exact the product has to be; the accuracy of the operands' type unless it is set.
        pub fn precision(mut self, precision: Precision) -> Self {
            self.options.precision = precision;
            self
        }

        /// Takes this tile instead of the one that [`select`](crate::ops::gemm::select) chooses; it must run on the
        /// device and be as exact as `precision` asks. What it cannot read in place is copied first. The CPU implementation has no such tiles and ignores it.
        pub fn tile(mut self, tile: impl Into<Option<Tile>>) -> Self {
            self.options.tile = tile.into();
            self
        }

        /// Has so many blocks share the sums of a tile, at least 1, instead of as many as the model says: for tests and measurements. Tiles whose kernels
        /// cannot share ignore it.
        #[doc(hidden)]
        pub fn parts(mut self, parts: impl Into<Option<u32>>) -> Self {
            self.options.parts = parts.into();
            self
        }

        #[doc = concat!("Runs the operation into a new tensor of shape ", $shape, ". On a GPU the work may still be under way when this returns.")]
        ///
        /// # Errors
        ///
        /// [`Error::Shape`], [`Error::Stride`], [`Error::DeviceMismatch`], [`Error::Overlap`] and [`Error::SizeLimit`] if an
        /// operand does not fit. [`Error::Argument`] if [`beta`](Self::beta) was set, if the [tile](Self::tile) that was asked
        /// for does not serve it, or if an operand of the output's type was given before [`output`](Self::output) changed that.
        /// Otherwise whatever allocating the output, loading the kernel and launching it may return.
        pub fn run(&self) -> Result<Tensor<O>> {
            self.product()?.run()
        }

        /// Runs the operation into `y`, which may be a view whose last axis is contiguous.
        ///
        /// # Errors
        ///
        /// As [`run`](Self::run), but that [`beta`](Self::beta) may be set, if there is no residual; and [`Error::Overlap`] if `y` shares memory
        /// with another operand: if the spans from first to last element of the two meet, even if their elements alternate. Only a residual may be
        /// the same tensor.
        pub fn run_into(&self, y: &mut Tensor<O>) -> Result<()> {
            self.product()?.run_into(y)
        }

        /// Which implementation [`run`](Self::run) would take. [`implementation_into`](Self::implementation_into) says it for
        /// an existing output.
        ///
        /// # Errors
        ///
        /// As [`run`](Self::run), for the operands.
        pub fn implementation(&self) -> Result<Implementation> {
            self.product()?.implementation()
        }

        /// Which implementation [`run_into`](Self::run_into) would take for `y`, after the checks that `run_into` makes of it. It
        /// differs from that for a new output, which has no gaps, where `y` is a view. A view that the copy engine cannot
        /// store, since rows do not start at multiples of 16 bytes, may take another tile. Leading axes that are not evenly
        /// spaced are no rows of one matrix, but a batch or launches of their own.
        ///
        /// # Errors
        ///
        /// As [`run_into`](Self::run_into), for the operands and `y`.
        pub fn implementation_into(&self, y: &Tensor<O>) -> Result<Implementation> {
            self.product()?.implementation_into(y)
        }
    };
}
pub(crate) use product_methods;
