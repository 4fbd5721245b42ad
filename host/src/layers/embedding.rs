//! The embedding layer: rows of a table that ids name.

use crate::device::Device;
use crate::error::{Error, Result};
use crate::ops;
use crate::ops::embedding::{EmbeddingElement, EmbeddingId, EmbeddingOp};
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

    /// The table `[V, N]`.
    #[must_use]
    pub fn table(&self) -> &Tensor<T> {
        &self.table
    }
}
