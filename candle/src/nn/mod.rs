//! Layers with the names and signatures of [`candle_nn`]'s: a model's layers are replaced by changing the `use` line.
//!
//! Weights come from the same [`VarBuilder`](candle_nn::VarBuilder), by the same names.
//!
//! ```
//! use candle_core::{DType, Device, Module, Tensor};
//! use candle_nn::{VarBuilder, VarMap};
//! // Before: use candle_nn::{layer_norm, linear};
//! use warpsmith_candle::nn::{layer_norm, linear};
//!
//! let variables = VarMap::new();
//! let vb = VarBuilder::from_varmap(&variables, DType::F32, &Device::Cpu);
//! let norm = layer_norm(8, 1e-5, vb.pp("norm"))?;
//! let project = linear(8, 3, vb.pp("project"))?;
//! let x = Tensor::ones((2, 8), DType::F32, &Device::Cpu)?;
//! assert_eq!(project.forward(&norm.forward(&x)?)?.dims(), [2, 3]);
//! # Ok::<(), candle_core::Error>(())
//! ```

mod attention;
mod embedding;
mod linear;
mod norm;
mod update;

pub use attention::{Attention, AttentionConfig, attention};
pub use candle_nn::LayerNormConfig;
pub use embedding::{Embedding, embedding};
pub use linear::{Linear, linear, linear_b, linear_no_bias};
pub use norm::{LayerNorm, RmsNorm, layer_norm, layer_norm_no_bias, rms_norm};
pub use update::{GeneratedUpdate, generated_update};

pub mod ops {
    //! Functions with the names and signatures of [`candle_nn::ops`]'s.

    use candle_core::{D, Result, Tensor, shape::Dim};

    /// The softmax over the axis `dim`; other axes than the last one are made the last for it.
    ///
    /// # Errors
    ///
    /// As [`SoftmaxOp::run`](crate::SoftmaxOp::run), and if there is no such axis.
    pub fn softmax<A: Dim>(xs: &Tensor, dim: A) -> Result<Tensor> {
        let axis = dim.to_index(xs.shape(), "softmax")?;
        if axis + 1 == xs.rank() {
            return softmax_last_dim(xs);
        }
        softmax_last_dim(&xs.transpose(axis, D::Minus1)?)?.transpose(axis, D::Minus1)
    }

    /// The softmax over the last axis.
    ///
    /// # Errors
    ///
    /// As [`SoftmaxOp::run`](crate::SoftmaxOp::run).
    pub fn softmax_last_dim(xs: &Tensor) -> Result<Tensor> {
        Ok(crate::softmax(xs).run()?)
    }

    /// The layer norm of rows.
    ///
    /// # Errors
    ///
    /// As [`NormOp::run`](crate::NormOp::run).
    pub fn layer_norm(xs: &Tensor, alpha: &Tensor, beta: &Tensor, eps: f32) -> Result<Tensor> {
        Ok(crate::layer_norm(xs).weight(alpha).bias(beta).epsilon(eps).run()?)
    }

    /// The RMS norm of rows.
    ///
    /// # Errors
    ///
    /// As [`NormOp::run`](crate::NormOp::run).
    pub fn rms_norm(xs: &Tensor, alpha: &Tensor, eps: f32) -> Result<Tensor> {
        Ok(crate::rms_norm(xs).weight(alpha).epsilon(eps).run()?)
    }
}

pub mod loss {
    //! Functions with the names and signatures of [`candle_nn::loss`]'s.

    use candle_core::{Result, Tensor};

    /// The mean cross-entropy of logits `[N, C]` with labels `[N]` of type u32 or i64, in the logits' type.
    ///
    /// # Errors
    ///
    /// As [`CrossEntropyOp::run`](crate::CrossEntropyOp::run).
    pub fn cross_entropy(inp: &Tensor, target: &Tensor) -> Result<Tensor> {
        crate::cross_entropy(inp, target).ignored_label(None).run()?.to_dtype(inp.dtype())
    }
}
