//! The embedding layer: rows of a table that ids name.

use super::Linear;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::ops::embedding::{EmbeddingElement, EmbeddingId, EmbeddingOp};
use crate::ops::linear::LinearInput;
use crate::ops::{self, Activation};
use crate::tensor::{Element, Tensor};
use crate::weights::{FloatElement, Weights};

/// The rows of a table `[V, N]` that ids name; see [`ops::embedding()`].
///
/// ```
/// use warpsmith::layers::Embedding;
/// use warpsmith::{Device, Tensor};
///
/// # fn main() -> warpsmith::Result<()> {
/// let device = Device::cpu();
/// let layer = Embedding::new(Tensor::from_slice(&device, &[1.0f32, 2.0, 3.0, 4.0], [2, 2])?)?;
/// let ids = Tensor::from_slice(&device, &[1u32, 0, 1], [3])?;
/// assert_eq!(layer.forward(&ids)?.to_vec()?, [3.0, 4.0, 1.0, 2.0, 3.0, 4.0]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Embedding<T: Element> {
    table: Tensor<T>,
}

impl<T: EmbeddingElement> Embedding<T> {
    /// A layer with the table `[V, N]`.
    ///
    /// # Errors
    ///
    /// [`Error::Shape`] if the table has other than two axes.
    pub fn new(table: Tensor<T>) -> Result<Self> {
        if table.rank() != 2 {
            return Err(Error::Shape {
                operation: "Embedding::new",
                operand: "table",
                expected: "[V, N], two axes".into(),
                actual: table.shape().to_vec(),
            });
        }
        Ok(Self { table })
    }

    /// The layer with the table `PREFIX.weight`, of type `T`.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new) and [`Weights::tensor`].
    pub fn from_safetensors(weights: &Weights, prefix: &str, device: &Device) -> Result<Self> {
        Self::new(weights.tensor(&format!("{prefix}.weight"), device)?)
    }

    /// As [`from_safetensors`](Self::from_safetensors), with a table of any floating-point type rounded to `T`.
    ///
    /// # Errors
    ///
    /// As [`from_safetensors`](Self::from_safetensors); the tensor must be of a floating-point type.
    pub fn from_safetensors_converted(weights: &Weights, prefix: &str, device: &Device) -> Result<Self>
    where
        T: FloatElement,
    {
        Self::new(weights.tensor_converted(&format!("{prefix}.weight"), device)?)
    }

    /// The rows for `ids` `[..]`: `[.., N]`.
    ///
    /// # Errors
    ///
    /// As [`EmbeddingOp::run`].
    pub fn forward<I: EmbeddingId>(&self, ids: &Tensor<I>) -> Result<Tensor<T>> {
        self.operation(ids).run()
    }

    /// The layer's operation on `ids`.
    pub fn operation<'a, I: EmbeddingId>(&'a self, ids: &'a Tensor<I>) -> EmbeddingOp<'a, T, I> {
        ops::embedding(&self.table, ids)
    }

    /// The layer that gives logits `[.., V]` by the same table, whose memory it shares: tied embeddings.
    ///
    /// The table's gradient is that of both uses: the `dw` of this layer, which [`accumulate`](Self::accumulate) adds that of the rows to. An optimiser is told the
    /// table once.
    ///
    /// ```
    /// use warpsmith::layers::Embedding;
    /// use warpsmith::{Device, Tensor};
    ///
    /// # fn main() -> warpsmith::Result<()> {
    /// let device = Device::cpu();
    /// let embedding = Embedding::new(Tensor::from_slice(&device, &[1.0f32, 2.0, 3.0, 4.0], [2, 2])?)?;
    /// let output = embedding.tied_output()?;
    /// let ids = Tensor::from_slice(&device, &[1u32], [1])?;
    ///
    /// let (x, of_ids) = embedding.forward_train(&ids)?;
    /// let (logits, of_output) = output.forward_train(&x)?;
    /// assert_eq!(logits.to_vec()?, [11.0, 25.0]);
    /// let dlogits = Tensor::from_slice(&device, &[1.0f32, 0.0], [1, 2])?;
    /// let mut gradients = output.backward(&of_output, &dlogits)?;
    /// assert_eq!(gradients.dw.to_vec()?, [3.0, 4.0, 0.0, 0.0]);
    /// embedding.accumulate(&of_ids, &gradients.dx, &mut gradients.dw)?;
    /// assert_eq!(gradients.dw.to_vec()?, [3.0, 4.0, 1.0, 2.0]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// None that a program can cause.
    pub fn tied_output(&self) -> Result<Linear<T>>
    where
        T: LinearInput,
    {
        Linear::new(self.table.clone(), None, Activation::None)
    }

    /// The table `[V, N]`.
    #[must_use]
    pub fn table(&self) -> &Tensor<T> {
        &self.table
    }
}
