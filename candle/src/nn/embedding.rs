//! Embedding tables.

use candle_core::{Module, Result, Tensor};
use candle_nn::VarBuilder;

/// A table of vectors, looked up by ids.
#[derive(Clone, Debug)]
pub struct Embedding {
    embeddings: Tensor,
    hidden_size: usize,
}

impl Embedding {
    /// A layer with the table `[V, hidden_size]`.
    #[must_use]
    pub fn new(embeddings: Tensor, hidden_size: usize) -> Self {
        Self { embeddings, hidden_size }
    }

    /// The table.
    #[must_use]
    pub fn embeddings(&self) -> &Tensor {
        &self.embeddings
    }

    /// The length of a vector.
    #[must_use]
    pub fn hidden_size(&self) -> usize {
        self.hidden_size
    }
}

impl Module for Embedding {
    fn forward(&self, indexes: &Tensor) -> Result<Tensor> {
        Ok(crate::embedding(&self.embeddings, indexes)?)
    }
}

/// A layer whose table `vb` has as `weight`, or initialises as [`candle_nn::embedding()`] does.
///
/// # Errors
///
/// If `vb` has no such tensor of this shape.
pub fn embedding(in_size: usize, out_size: usize, vb: VarBuilder) -> Result<Embedding> {
    let layer = candle_nn::embedding(in_size, out_size, vb)?;
    Ok(Embedding::new(layer.embeddings().clone(), layer.hidden_size()))
}
