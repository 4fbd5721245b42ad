//! Multi-head attention with its projections.

use candle_core::{Module, Result, Tensor};
use candle_nn::VarBuilder;

use super::{Linear, linear_b};
use crate::ops::RotaryTable;
use crate::{Alignment, Error};

/// Heads and options of an [`Attention`] layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionConfig {
    /// Heads of queries, at least 1.
    pub heads: usize,
    /// Heads of keys and values, a divisor of those of queries.
    pub key_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Whether rows attend to no key after their own.
    pub is_causal: bool,
    /// With causal attention, how many keys before its own a row attends to; `None` is all of them.
    pub left: Option<u32>,
    /// What products of queries and keys are multiplied with: 1/√D unless it is set.
    pub scale: Option<f32>,
    /// Bounds the scores: t becomes `cap · tanh(t / cap)`.
    pub soft_cap: Option<f32>,
    /// Whether the projections have biases.
    pub has_bias: bool,
}

impl AttentionConfig {
    /// So many heads, of queries as of keys and values, each of so many elements. Rows attend to all keys;
    /// projections have no biases.
    #[must_use]
    pub const fn new(heads: usize, head_dim: usize) -> Self {
        Self {
            heads,
            key_heads: heads,
            head_dim,
            is_causal: false,
            left: None,
            scale: None,
            soft_cap: None,
            has_bias: false,
        }
    }

    /// Rows attend to no key after their own.
    #[must_use]
    pub const fn causal(self) -> Self {
        Self { is_causal: true, ..self }
    }
}

/// Multi-head attention: `y = concat(attention(Q, K, V)) Wₒᵀ` with Q, K and V = `x Wᵀ`, and biases if they are there.
///
/// No data is copied between the operations: heads are views of what the projections return.
#[derive(Clone, Debug)]
pub struct Attention {
    config: AttentionConfig,
    q: Linear,
    k: Linear,
    v: Linear,
    output: Linear,
    rotary: Option<RotaryTable>,
}

impl Attention {
    /// A layer with these projections: the weights of `q` are `[H · D, in]`, of `k` and `v` `[Hk · D, in]`, of
    /// `output` `[out, H · D]`.
    ///
    /// # Errors
    ///
    /// [`Error::Shape`] if a weight has other rows or columns.
    pub fn new(config: AttentionConfig, q: Linear, k: Linear, v: Linear, output: Linear) -> Result<Self> {
        let operation = "Attention::new";
        let AttentionConfig { heads, key_heads, head_dim, .. } = config;
        for (operand, layer, rows) in [("q", &q, heads), ("k", &k, key_heads), ("v", &v, key_heads)] {
            let actual = layer.weight().dims();
            if actual.len() != 2 || actual[0] != rows * head_dim {
                let expected = format!("[{}, in]", rows * head_dim);
                return Err(Error::Shape { operation, operand, expected, actual: actual.to_vec() }.into());
            }
        }
        let actual = output.weight().dims();
        if actual.len() != 2 || actual[1] != heads * head_dim {
            let expected = format!("[out, {}]", heads * head_dim);
            return Err(
                Error::Shape { operation, operand: "output", expected, actual: actual.to_vec() }.into()
            );
        }
        Ok(Self { config, q, k, v, output, rotary: None })
    }

    /// The layer with queries and keys turned by rotary position embedding first.
    #[must_use]
    pub fn with_rotary(self, table: RotaryTable) -> Self {
        Self { rotary: Some(table), ..self }
    }

    /// The output for `xs` `[B, S, in]`, where rows attend to keys only where `mask`, `[B, H, S, S]` of type u8,
    /// each axis also of length 1, is not 0.
    ///
    /// # Errors
    ///
    /// As [`AttentionOp::run`](crate::AttentionOp::run), and [`Error::Shape`] if `xs` has other than three axes.
    pub fn forward_masked(&self, xs: &Tensor, mask: Option<&Tensor>) -> Result<Tensor> {
        let &[b, s, _] = xs.dims() else {
            let (expected, actual) = ("[B, S, in]".into(), xs.dims().to_vec());
            return Err(
                Error::Shape { operation: "Attention::forward", operand: "xs", expected, actual }.into()
            );
        };
        let AttentionConfig { heads, key_heads, head_dim, .. } = self.config;
        let project = |layer: &Linear, heads| layer.forward(xs)?.reshape((b, s, heads, head_dim));
        let (q, k, v) =
            (project(&self.q, heads)?, project(&self.k, key_heads)?, project(&self.v, key_heads)?);
        let (q, k) = match &self.rotary {
            Some(table) => (crate::rotary(&q, table).run()?, crate::rotary(&k, table).run()?),
            None => (q, k),
        };
        let mut operation =
            crate::attention(&q, &k, &v).mask(mask).scale(self.config.scale).soft_cap(self.config.soft_cap);
        if self.config.is_causal {
            operation = operation.window(self.config.left, Some(0), Alignment::BottomRight);
        }
        self.output.forward(&operation.run()?.reshape((b, s, heads * head_dim))?)
    }
}

impl Module for Attention {
    /// The output for `xs` `[B, S, in]`.
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        self.forward_masked(xs, None)
    }
}

/// A layer on rows of `size` elements whose projections `vb` has as `q_proj`, `k_proj`, `v_proj` and `o_proj`.
///
/// # Errors
///
/// If `vb` has no such tensors of these shapes.
pub fn attention(size: usize, config: AttentionConfig, vb: VarBuilder) -> Result<Attention> {
    let AttentionConfig { heads, key_heads, head_dim, has_bias, .. } = config;
    let project = |heads: usize, name: &str| linear_b(size, heads * head_dim, has_bias, vb.pp(name));
    let output = linear_b(heads * head_dim, size, has_bias, vb.pp("o_proj"))?;
    let (q, k, v) = (project(heads, "q_proj")?, project(key_heads, "k_proj")?, project(key_heads, "v_proj")?);
    Attention::new(config, q, k, v, output)
}
