//! Training of a transformer block: what its forward pass keeps, and its backward pass.

use super::{BlockNorm, TransformerBlock, TransformerInput};
use crate::error::{Error, Result};
use crate::layers::{AttentionLayerGradients, AttentionSaved, MlpGradients, MlpSaved, NormSaved};
use crate::ops::linear::LinearInput;
use crate::ops::norm::{NormElement, NormGradientOp, NormGradientOutputs, NormGradients};
use crate::tensor::{Element, Tensor};

/// What [`TransformerBlock::forward_train`] keeps for [`TransformerBlock::backward`].
///
/// It shares the memory of x, which has to hold the same numbers until then.
#[derive(Clone, Debug)]
pub struct BlockSaved<T: Element> {
    pub(super) input_norm: NormSaved<T>,
    pub(super) attention: AttentionSaved<T>,
    pub(super) mlp_norm: NormSaved<T>,
    pub(super) mlp: MlpSaved<T>,
}

impl<T: LinearInput + NormElement> BlockSaved<T> {
    /// The block's input.
    #[must_use]
    pub fn x(&self) -> &Tensor<T> {
        self.input_norm.x()
    }

    /// The bytes of its elements, those of x among them.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.input_norm.bytes() + self.attention.bytes() + self.mlp_norm.bytes() + self.mlp.bytes()
    }
}

/// The gradients of a transformer block.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct BlockGradients<T: Element> {
    /// Of the norm before the attention. Its gradient of x is the block's: that of the residual is added to it.
    pub input_norm: NormGradients<T>,
    /// Of the attention.
    pub attention: AttentionLayerGradients<T>,
    /// Of the norm before the multilayer perceptron.
    pub mlp_norm: NormGradients<T>,
    /// Of the multilayer perceptron.
    pub mlp: MlpGradients<T>,
}

impl<T: Element> BlockGradients<T> {
    /// Of x, of its shape.
    #[must_use]
    pub fn dx(&self) -> &Tensor<T> {
        &self.input_norm.dx
    }
}

impl<T: NormElement> BlockNorm<T> {
    fn backward_operation<'a>(&'a self, saved: &'a NormSaved<T>, dy: &'a Tensor<T>) -> NormGradientOp<'a, T> {
        match self {
            Self::Layer(norm) => norm.backward_operation(saved, dy),
            Self::Rms(norm) => norm.backward_operation(saved, dy),
        }
    }
}

/// Where gradients of a norm are added.
fn added<T: Element>(gradients: &mut NormGradients<T>) -> NormGradientOutputs<'_, T, f32> {
    let NormGradients { dx, dweight, dbias } = gradients;
    NormGradientOutputs { dx: Some(dx), dweight: Some(dweight), dbias: Some(dbias), adds: true }
}

impl<T: TransformerInput> TransformerBlock<T> {
    /// As [`forward`](Self::forward), with what [`backward`](Self::backward) needs: what each layer keeps. For sequences of different lengths there is
    /// [`BlockForward::run_train`](super::BlockForward::run_train).
    ///
    /// # Errors
    ///
    /// As [`forward`](Self::forward).
    pub fn forward_train(&self, x: &Tensor<T>) -> Result<(Tensor<T>, BlockSaved<T>)> {
        self.operation(x).run_train()
    }

    /// The gradients of x and of all weights, these in f32, for the gradient of the output.
    ///
    /// # Errors
    ///
    /// As [`Attention::backward`](crate::layers::Attention::backward), [`Mlp::backward`](crate::layers::Mlp::backward) and [`NormGradientOp::run`].
    pub fn backward(&self, saved: &BlockSaved<T>, dy: &Tensor<T>) -> Result<BlockGradients<T>> {
        let mlp = self.mlp.backward(&saved.mlp, dy)?;
        let mlp_norm = self.mlp_norm.backward_operation(&saved.mlp_norm, &mlp.dx).dsum(dy).run()?;
        let attention = self.attention.backward(&saved.attention, &mlp_norm.dx)?;
        let input_norm = self.input_norm.backward_operation(&saved.input_norm, &attention.dx);
        let input_norm = input_norm.dsum(&mlp_norm.dx).run()?;
        Ok(BlockGradients { input_norm, attention, mlp_norm, mlp })
    }

    /// As [`backward`](Self::backward), adding to the existing gradients of the weights. That of x is written over.
    ///
    /// # Errors
    ///
    /// As [`backward`](Self::backward); [`Error::Argument`] for gradients of another block.
    pub fn accumulate(
        &self,
        saved: &BlockSaved<T>,
        dy: &Tensor<T>,
        gradients: &mut BlockGradients<T>,
    ) -> Result<()> {
        self.expect_gradients(saved, dy, gradients)?;
        let BlockGradients { input_norm, attention, mlp_norm, mlp } = gradients;
        self.mlp.accumulate(&saved.mlp, dy, mlp)?;
        let operation = self.mlp_norm.backward_operation(&saved.mlp_norm, &mlp.dx).dsum(dy);
        operation.run_into(added(mlp_norm))?;
        self.attention.accumulate(&saved.attention, &mlp_norm.dx, attention)?;
        let operation = self.input_norm.backward_operation(&saved.input_norm, &attention.dx);
        operation.dsum(&mlp_norm.dx).run_into(added(input_norm))
    }

    /// The error for a dy or gradients that are not this block's: what is refused half way could not be taken back.
    fn expect_gradients(
        &self,
        saved: &BlockSaved<T>,
        dy: &Tensor<T>,
        gradients: &BlockGradients<T>,
    ) -> Result<()> {
        const OPERATION: &str = "TransformerBlock::accumulate";
        let shape = saved.x().shape();
        if dy.shape() != shape {
            return Err(Error::Shape {
                operation: OPERATION,
                operand: "dy",
                expected: format!("{shape:?}, as x has"),
                actual: dy.shape().to_vec(),
            });
        }
        self.mlp.expect_gradients(OPERATION, &saved.mlp, &gradients.mlp)?;
        self.attention.expect_gradients(OPERATION, &saved.attention, &gradients.attention)?;
        let columns = self.attention.input();
        for norm in [&gradients.input_norm, &gradients.mlp_norm] {
            let actual = [norm.dx.shape(), norm.dweight.shape(), norm.dbias.shape()];
            let expected = [shape, &[columns], &[columns]];
            if actual != expected {
                return Err(Error::Argument {
                    operation: OPERATION,
                    argument: "gradients",
                    expected: format!("those of a norm, of shapes {expected:?}"),
                    actual: format!("shapes {actual:?}"),
                });
            }
        }
        Ok(())
    }
}
