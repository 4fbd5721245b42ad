//! Linear layers with a generated low-rank update.

use candle_core::{Module, Result, Tensor};
use candle_nn::VarBuilder;

use super::{Linear, linear_b};
use crate::Activation;

/// A linear layer with a generated low-rank update: `y = x Wᵀ + ((x V) ⊙ codes) U · scaling + bias`, whose codes
/// come with each call.
#[derive(Clone, Debug)]
pub struct GeneratedUpdate {
    base: Linear,
    v: Tensor,
    u: Tensor,
    scaling: f32,
}

impl GeneratedUpdate {
    /// The layer `base` with the update's v `[in, R]` and u `[R, out]`. An activation of the layer is left out.
    #[must_use]
    pub fn new(base: Linear, v: Tensor, u: Tensor, scaling: f32) -> Self {
        Self { base: base.with_activation(Activation::None), v, u, scaling }
    }

    /// The layer without its update.
    #[must_use]
    pub fn base(&self) -> &Linear {
        &self.base
    }

    /// The layer's output for `xs` `[.., in]` with `codes` `[.., R]`, a row for each row of `xs` or for all rows
    /// with the same first indices.
    ///
    /// # Errors
    ///
    /// As [`UpdateOp::run`](crate::UpdateOp::run).
    pub fn forward(&self, xs: &Tensor, codes: &Tensor) -> Result<Tensor> {
        let operation =
            crate::linear_with_update(xs, self.base.weight(), &self.v, codes, &self.u, self.scaling);
        Ok(operation.bias(self.base.bias()).run()?)
    }
}

impl Module for GeneratedUpdate {
    /// The layer's output without the update.
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        self.base.forward(xs)
    }
}

/// A layer whose tensors `vb` has as `weight`, `bias`, `v` and `u`; what it initialises has the update 0 at first.
///
/// # Errors
///
/// If `vb` has no such tensors of these shapes.
pub fn generated_update(
    [in_dim, out_dim]: [usize; 2],
    rank: usize,
    scaling: f32,
    bias: bool,
    vb: VarBuilder,
) -> Result<GeneratedUpdate> {
    let v = vb.get_with_hints((in_dim, rank), "v", candle_nn::init::DEFAULT_KAIMING_NORMAL)?;
    let u = vb.get_with_hints((rank, out_dim), "u", candle_nn::Init::Const(0.0))?;
    Ok(GeneratedUpdate::new(linear_b(in_dim, out_dim, bias, vb)?, v, u, scaling))
}
