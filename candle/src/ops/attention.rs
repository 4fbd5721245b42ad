//! Scaled dot-product attention.

mod backward;

use candle_core::{DType, Tensor};
use warpsmith::ops;
use warpsmith::ops::attention::{Alignment, AttentionInput};

use crate::error::{Error, Result};
use crate::graph::attach;
use crate::memory::{Call, Shared, with_element};

use backward::Backward;

/// The operation's name in errors.
pub(super) const OPERATION: &str = "attention";

/// The attention of queries `q` `[B, Sq, H, D]` to keys `k` `[B, Sk, Hk, D]` with values `v` `[B, Sk, Hk, Dv]`: `y`
/// `[B, Sq, H, Dv]`.
///
/// H is a multiple of Hk: head h has the keys and values of head `h / (H / Hk)`. Of row i and key j, with `t = scale
/// · qᵢ·kⱼ`:
///
/// ```text
/// s = soft_cap · tanh(t / soft_cap) + bias − slope · |i + offset − j|      where row i attends to key j, else −∞
/// lse = ln (exp(sink) + Σⱼ exp(sⱼ))
/// y = Σⱼ exp(sⱼ − lse) vⱼ
/// ```
///
/// What was not asked for is not there. A row that attends to nothing has zeros. Operands have any strides; those
/// whose last axis has gaps are copied. Heads before tokens,
/// `[B, H, S, D]`, are a `transpose(1, 2)`, which costs nothing.
///
/// # Gradients
///
/// The gradients of q, k, v, the bias and the sinks are computed in f32 by matrix products of this crate and
/// element-wise operations of candle's. For that the scores of all rows and keys are in memory at once,
/// `B · H · Sq · Sk` numbers, several times over. The library has kernels for those of q, k, v and the sinks,
/// which store no scores; this crate does not use them yet. ALiBi's slopes have no gradient.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use warpsmith_candle::{Alignment, attention};
///
/// // One sequence of 3 rows and keys, two heads that share one of keys and values.
/// let q = Tensor::ones((1, 3, 2, 8), candle_core::DType::F32, &Device::Cpu)?;
/// let k = q.narrow(2, 0, 1)?;
/// let v = Tensor::arange(0f32, 3.0, &Device::Cpu)?.reshape((1, 3, 1, 1))?;
/// let y = attention(&q, &k, &v).causal(Alignment::BottomRight).run()?;
/// assert_eq!(y.flatten_all()?.to_vec1::<f32>()?, [0.0, 0.0, 0.5, 0.5, 1.0, 1.0]);
/// # Ok::<(), candle_core::Error>(())
/// ```
pub fn attention<'a>(q: &'a Tensor, k: &'a Tensor, v: &'a Tensor) -> AttentionOp<'a> {
    let options =
        Options { scale: None, window: [None; 2], alignment: Alignment::BottomRight, soft_cap: None };
    AttentionOp { q, k, v, mask: None, bias: None, slopes: None, sinks: None, options }
}

/// An attention that has yet to run; see [`attention`].
#[derive(Clone, Copy, Debug)]
#[must_use = "an operation does nothing until `run`"]
pub struct AttentionOp<'a> {
    q: &'a Tensor,
    k: &'a Tensor,
    v: &'a Tensor,
    mask: Option<&'a Tensor>,
    bias: Option<&'a Tensor>,
    slopes: Option<&'a Tensor>,
    sinks: Option<&'a Tensor>,
    options: Options,
}

/// What is done to the scores, apart from operands.
#[derive(Clone, Copy, Debug)]
struct Options {
    scale: Option<f32>,
    /// Keys to the left and to the right that a row attends to.
    window: [Option<u32>; 2],
    alignment: Alignment,
    soft_cap: Option<f32>,
}

impl<'a> AttentionOp<'a> {
    /// Multiplies the products of queries and keys by `scale`, which is 1/√D unless it is set.
    pub fn scale(mut self, scale: impl Into<Option<f32>>) -> Self {
        self.options.scale = scale.into();
        self
    }

    /// Row i attends to the keys `j ≤ i + offset`: it is [`window`](Self::window) with no keys to the right and all
    /// to the left.
    pub fn causal(self, alignment: Alignment) -> Self {
        self.window(None, Some(0), alignment)
    }

    /// Row i attends to the keys `i + offset − left ≤ j ≤ i + offset + right`; `None` is all of them to that side.
    ///
    /// The offset is 0 with [`Alignment::TopLeft`], and Sk − Sq with [`Alignment::BottomRight`]. The last call of
    /// this and [`causal`](Self::causal) holds.
    pub fn window(mut self, left: Option<u32>, right: Option<u32>, alignment: Alignment) -> Self {
        self.options.window = [left, right];
        self.options.alignment = alignment;
        self
    }

    /// Rows attend to keys where `mask`, of type u8, is not 0: `[B, H, Sq, Sk]`, each axis also of length 1.
    pub fn mask(mut self, mask: impl Into<Option<&'a Tensor>>) -> Self {
        self.mask = mask.into();
        self
    }

    /// Adds `bias` to the scores, after the soft cap: `[B, H, Sq, Sk]`, each axis also of length 1. Where it is −∞
    /// the row does not attend to the key.
    pub fn bias(mut self, bias: impl Into<Option<&'a Tensor>>) -> Self {
        self.bias = bias.into();
        self
    }

    /// Subtracts `slope · |i + offset − j|` from the score of row i and key j, with the slopes `[H]` of heads, or
    /// `[B, H]`, in f32 (ALiBi).
    ///
    /// The offset is that of [`window`](Self::window), and of [`Alignment::BottomRight`] if there is none.
    pub fn alibi(mut self, slopes: impl Into<Option<&'a Tensor>>) -> Self {
        self.slopes = slopes.into();
        self
    }

    /// Bounds the scores: t becomes `cap · tanh(t / cap)`, before anything is added.
    pub fn soft_cap(mut self, cap: impl Into<Option<f32>>) -> Self {
        self.options.soft_cap = cap.into();
        self
    }

    /// Each head has one more logit, of `sinks` `[H]` in f32, which takes weight and has no value.
    pub fn sinks(mut self, sinks: impl Into<Option<&'a Tensor>>) -> Self {
        self.sinks = sinks.into();
        self
    }

    /// Computes `y`.
    ///
    /// # Errors
    ///
    /// - [`Error::Type`] unless q, k, v and the bias are of the same type, f32, f16 or bf16, the mask u8, slopes and
    ///   sinks f32.
    /// - [`Error::DeviceMismatch`] if they are on different devices.
    /// - [`Error::NoGradient`] if the slopes are tracked.
    /// - [`Error::Warpsmith`] if a shape does not fit or an option is out of its range.
    pub fn run(&self) -> Result<Tensor> {
        if self.slopes.is_some_and(Tensor::track_op) {
            let reason = "detach the slopes";
            return Err(Error::NoGradient { operation: OPERATION, operand: "slopes", reason });
        }
        let mut operands = vec![("q", self.q), ("k", self.k), ("v", self.v)];
        operands.extend(self.bias.map(|bias| ("bias", bias)));
        let mut call = Call::new(OPERATION, &operands)?;
        if let Some(mask) = self.mask {
            call = call.with(("mask", mask), &[DType::U8])?;
        }
        for (name, operand) in [("slopes", self.slopes), ("sinks", self.sinks)] {
            if let Some(operand) = operand {
                call = call.with((name, &operand.contiguous()?), &[DType::F32])?;
            }
        }
        let call = call.with_contiguous_rows()?;
        with_element!(call, T => self.run_as::<T>(call))
    }

    fn run_as<T: Shared + AttentionInput>(&self, call: Call) -> Result<Tensor> {
        let shape = super::with_columns(self.q, self.v.dims().last().copied().unwrap_or_default());
        let mut y = call.fresh::<T>(shape)?;
        // The place of an operand that is there behind those before it.
        let at = |before: &[bool]| 3 + before.iter().filter(|is_there| **is_there).count();
        let (has_bias, has_mask, has_slopes) =
            (self.bias.is_some(), self.mask.is_some(), self.slopes.is_some());
        {
            let locked = call.lock();
            let (q, k, v) = (locked.view::<T>(0)?, locked.view::<T>(1)?, locked.view::<T>(2)?);
            let bias = self.bias.map(|_| locked.view::<T>(3)).transpose()?;
            let mask = self.mask.map(|_| locked.view::<u8>(at(&[has_bias]))).transpose()?;
            let slopes = self.slopes.map(|_| locked.view::<f32>(at(&[has_bias, has_mask]))).transpose()?;
            let sinks =
                self.sinks.map(|_| locked.view::<f32>(at(&[has_bias, has_mask, has_slopes]))).transpose()?;
            let Options { scale, window: [left, right], alignment, soft_cap } = self.options;
            let mut operation = ops::attention(&q, &k, &v)
                .window(left, right, alignment)
                .mask(mask.as_deref())
                .bias(bias.as_deref())
                .alibi(slopes.as_deref())
                .soft_cap(soft_cap)
                .sinks(sinks.as_deref());
            if let Some(scale) = scale {
                operation = operation.scale(scale);
            }
            operation.on(call.stream()).run_into(&mut *y.open()?)?;
        }
        let mut operands = vec![self.q, self.k, self.v];
        operands.extend(self.bias);
        operands.extend(self.sinks);
        let backward = Backward {
            operands: [self.q, self.k, self.v].map(Tensor::detach),
            bias: self.bias.map(Tensor::detach),
            mask: self.mask.map(Tensor::detach),
            slopes: self.slopes.map(Tensor::detach),
            sinks: self.sinks.map(Tensor::detach),
            options: self.options,
        };
        attach(OPERATION, y.finish(), &operands, move |_, dy| backward.run(dy))
    }
}
