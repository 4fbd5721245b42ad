//! A forward pass of a transformer block.

use super::{BlockSaved, TransformerBlock, TransformerInput};
use crate::error::{Error, Result};
use crate::layers::{AttentionForward, KvCache, NormSaved};
use crate::ops::norm::NormOutputs;
use crate::stream::Stream;
use crate::tensor::Tensor;

/// The operation's name in errors.
const OPERATION: &str = "TransformerBlock::forward";

/// A forward pass that has yet to run; see [`TransformerBlock::operation`].
#[derive(Debug)]
#[must_use = "a forward pass does nothing until `run`"]
pub struct BlockForward<'a, T: TransformerInput> {
    block: &'a TransformerBlock<T>,
    x: &'a Tensor<T>,
    lengths: Option<&'a Tensor<u32>>,
    offsets: Option<&'a Tensor<u32>>,
    cache: Option<&'a mut KvCache<T>>,
    rows: Option<&'a [usize]>,
    stream: Option<&'a Stream>,
}

impl<'a, T: TransformerInput> BlockForward<'a, T> {
    pub(super) fn new(block: &'a TransformerBlock<T>, x: &'a Tensor<T>) -> Self {
        Self { block, x, lengths: None, offsets: None, cache: None, rows: None, stream: None }
    }

    /// Attention has only the first `lengths[b]` rows of sequence b; see [`AttentionForward::lengths`]. The others go through the rest of the block, and their
    /// results are those of rows without attention: where they are not to count, give them a gradient of zeros.
    pub fn lengths(mut self, lengths: impl Into<Option<&'a Tensor<u32>>>) -> Self {
        self.lengths = lengths.into();
        self
    }

    /// Sequences follow each other in x `[T, N]`; see [`AttentionForward::packed`]. Of rows of no sequence the same holds as of those beyond
    /// [`lengths`](Self::lengths).
    pub fn packed(mut self, offsets: impl Into<Option<&'a Tensor<u32>>>) -> Self {
        self.offsets = offsets.into();
        self
    }

    /// The rows follow the keys that `cache` has; see [`AttentionForward::cache`].
    pub fn cache(mut self, cache: impl Into<Option<&'a mut KvCache<T>>>) -> Self {
        self.cache = cache.into();
        self
    }

    /// With a cache, only the first `rows[b]` rows of sequence b count; see [`AttentionForward::rows`].
    pub fn rows(mut self, rows: impl Into<Option<&'a [usize]>>) -> Self {
        self.rows = rows.into();
        self
    }

    /// Runs on `stream` instead of the device's default stream. Not with [`run_train`](Self::run_train).
    pub fn on(mut self, stream: &'a Stream) -> Self {
        self.stream = Some(stream);
        self
    }

    /// Computes the block's output, of the shape of x. On a GPU the work may still be under way when this returns.
    ///
    /// # Errors
    ///
    /// As [`AttentionForward::run`], [`NormOp::run`](crate::ops::norm::NormOp::run) and [`Mlp::forward`](crate::layers::Mlp::forward). A cache has appended keys
    /// if the attention had no error.
    pub fn run(self) -> Result<Tensor<T>> {
        let (block, x) = (self.block, self.x);
        let stream = self.stream.cloned().unwrap_or_else(|| block.device().default_stream());
        let normed = block.input_norm.operation(x).on(&stream).run()?;
        let attended = self.attention(&normed).on(&stream).run()?;
        let (mut sum, mut normed) =
            (Tensor::uninit_on(&stream, x.shape())?, Tensor::uninit_on(&stream, x.shape())?);
        block.mlp_norm.operation(&attended).on(&stream).residual(x).run_into(NormOutputs {
            y: Some(&mut normed),
            sum: Some(&mut sum),
            ..NormOutputs::default()
        })?;
        block.mlp.forward_onto(&normed, Some(&sum), &stream)
    }

    /// As [`run`](Self::run), with what [`TransformerBlock::backward`] needs.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run); [`Error::Argument`] with a cache, whose keys have no gradients, or a stream.
    pub fn run_train(self) -> Result<(Tensor<T>, BlockSaved<T>)> {
        if self.stream.is_some() {
            let (expected, actual) = ("none in training".into(), "a stream".into());
            return Err(Error::Argument { operation: OPERATION, argument: "stream", expected, actual });
        }
        let (block, x) = (self.block, self.x);
        let (normed, input_norm) = NormSaved::of(x, block.input_norm.operation(x))?;
        let (attended, attention) = self.attention(&normed).run_train()?;
        let (normed, mlp_norm) = NormSaved::of(&attended, block.mlp_norm.operation(&attended).residual(x))?;
        let (y, mlp) = block.mlp.forward_train_onto(&normed, Some(mlp_norm.x()))?;
        Ok((y, BlockSaved { input_norm, attention, mlp_norm, mlp }))
    }

    /// The attention of normed rows.
    fn attention<'t>(self, normed: &'t Tensor<T>) -> AttentionForward<'t, T>
    where
        'a: 't,
    {
        let attention = self.block.attention.operation(normed).lengths(self.lengths).packed(self.offsets);
        attention.cache(self.cache).rows(self.rows)
    }
}
