//! Scaled dot-product attention.

mod backward;

use candle_core::{DType, Tensor};
use warpsmith::ops;
use warpsmith::ops::attention::{Alignment, AttentionGradientOutputs, AttentionInput};

use super::tracked;
use crate::error::{Error, Result};
use crate::graph::attach;
use crate::memory::{Call, Locked, Shared, View, finished, open, with_element};

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
/// The gradients of q, k, v and the sinks come from kernels that store no scores: a row's logarithm of its sum is
/// kept, and its weights are computed again. GPUs round weights and gradients of scores to the type of q.
///
/// The gradient of a bias is that of the scores. Where a bias is tracked, or a GPU has no kernel for the sizes, all
/// gradients are computed in f32 from whole matrices of scores: `B · H · Sq · Sk` numbers, several times over.
/// ALiBi's slopes have no gradient.
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
        let kind = Kind {
            has_bias: self.bias.is_some(),
            has_mask: self.mask.is_some(),
            has_slopes: self.slopes.is_some(),
            has_sinks: self.sinks.is_some(),
            options: self.options,
            wanted: tracked([Some(self.q), Some(self.k), Some(self.v), self.sinks]),
        };
        let is_bias_tracked = self.bias.is_some_and(Tensor::track_op);
        let by_kernels = kind.wanted != [false; 4] && !is_bias_tracked;
        let mut y =
            call.fresh::<T>(super::with_columns(self.q, self.v.dims().last().copied().unwrap_or_default()))?;
        let of_rows = match *self.q.dims() {
            [b, rows, heads, _] => vec![b, heads, rows],
            // It is refused below.
            _ => vec![0],
        };
        let mut lse = call.wanted::<f32>(by_kernels, of_rows)?;
        {
            let locked = call.lock();
            let operands = Operands::<T>::new(&locked, kind)?;
            let operation = operands.attention().on(call.stream());
            let (mut y, mut lse) = (y.open()?, open(&mut lse)?);
            match lse.as_deref_mut() {
                Some(lse) => operation.run_into_with_lse(&mut y, lse)?,
                None => operation.run_into(&mut y)?,
            }
        }
        let lse = finished(lse);
        let mut operands = vec![self.q, self.k, self.v];
        operands.extend(self.bias);
        operands.extend(self.sinks);
        attach(OPERATION, y.finish(), &operands, move |y, dy| {
            if let Some(lse) = &lse {
                match backward_by_kernels::<T>(&call, kind, [y, lse], dy) {
                    Err(Error::Warpsmith(warpsmith::Error::UnsupportedDevice { .. })) => {}
                    result => return result,
                }
            }
            kind.backward(&call).run(dy)
        })
    }
}

/// What an attention is, apart from its operands.
#[derive(Clone, Copy)]
struct Kind {
    has_bias: bool,
    has_mask: bool,
    has_slopes: bool,
    has_sinks: bool,
    options: Options,
    /// Whether q, k, v and the sinks are tracked.
    wanted: [bool; 4],
}

impl Kind {
    /// The places of the bias, the mask, the slopes and the sinks among a call's operands, where they are there, and how many operands there are.
    fn places(self) -> ([Option<usize>; 4], usize) {
        let mut next = 3;
        let places = [self.has_bias, self.has_mask, self.has_slopes, self.has_sinks].map(|is_there| {
            let place = is_there.then_some(next);
            next += usize::from(is_there);
            place
        });
        (places, next)
    }

    /// The gradients from whole matrices of scores.
    fn backward(self, call: &Call) -> Backward {
        let ([bias, mask, slopes, sinks], _) = self.places();
        let operand = |place: Option<usize>| place.map(|place| call.operand(place).clone());
        Backward {
            operands: [0, 1, 2].map(|place| call.operand(place).clone()),
            bias: operand(bias),
            mask: operand(mask),
            slopes: operand(slopes),
            sinks: operand(sinks),
            options: self.options,
        }
    }
}

/// The operands here.
struct Operands<'g, T: Shared> {
    kind: Kind,
    q: View<'g, T>,
    k: View<'g, T>,
    v: View<'g, T>,
    bias: Option<View<'g, T>>,
    mask: Option<View<'g, u8>>,
    slopes: Option<View<'g, f32>>,
    sinks: Option<View<'g, f32>>,
}

impl<'g, T: Shared + AttentionInput> Operands<'g, T> {
    fn new(locked: &'g Locked<'_>, kind: Kind) -> Result<Self> {
        let ([bias, mask, slopes, sinks], _) = kind.places();
        Ok(Self {
            kind,
            q: locked.view(0)?,
            k: locked.view(1)?,
            v: locked.view(2)?,
            bias: bias.map(|place| locked.view(place)).transpose()?,
            mask: mask.map(|place| locked.view(place)).transpose()?,
            slopes: slopes.map(|place| locked.view(place)).transpose()?,
            sinks: sinks.map(|place| locked.view(place)).transpose()?,
        })
    }

    fn attention(&self) -> ops::attention::AttentionOp<'_, T> {
        let Options { scale, window: [left, right], alignment, soft_cap } = self.kind.options;
        let operation = ops::attention(&self.q, &self.k, &self.v)
            .window(left, right, alignment)
            .mask(self.mask.as_deref())
            .bias(self.bias.as_deref())
            .alibi(self.slopes.as_deref())
            .soft_cap(soft_cap)
            .sinks(self.sinks.as_deref());
        match scale {
            Some(scale) => operation.scale(scale),
            None => operation,
        }
    }
}

/// The gradients of q, k, v and the sinks, without stored scores. That of a bias is not asked for.
fn backward_by_kernels<T: Shared + AttentionInput>(
    forward: &Call,
    kind: Kind,
    [y, lse]: [&Tensor; 2],
    dy: &Tensor,
) -> Result<Vec<Option<Tensor>>> {
    let (_, count) = kind.places();
    let types = [forward.dtype];
    let call = forward.clone().with(("y", y), &types)?.with(("dy", dy), &types)?;
    let call = call.with(("lse", lse), &[DType::F32])?.with_contiguous_rows()?;
    let [has_dq, has_dk, has_dv, has_dsinks] = kind.wanted;
    let shape = |place: usize| call.operand(place).shape();
    let mut dq = call.wanted::<T>(has_dq, shape(0))?;
    let mut dk = call.wanted::<T>(has_dk, shape(1))?;
    let mut dv = call.wanted::<T>(has_dv, shape(2))?;
    let heads = call.operand(0).dims().get(2).copied().unwrap_or_default();
    let mut dsinks = call.wanted::<f32>(has_dsinks, heads)?;
    {
        let locked = call.lock();
        let operands = Operands::<T>::new(&locked, kind)?;
        let (y, dy) = (locked.view::<T>(count)?, locked.view::<T>(count + 1)?);
        let lse = locked.view::<f32>(count + 2)?;
        let (mut dq, mut dk, mut dv) = (open(&mut dq)?, open(&mut dk)?, open(&mut dv)?);
        let mut dsinks = open(&mut dsinks)?;
        operands.attention().backward(&y, &lse, &dy).on(call.stream()).run_into(
            AttentionGradientOutputs {
                dq: dq.as_deref_mut(),
                dk: dk.as_deref_mut(),
                dv: dv.as_deref_mut(),
                dsinks: dsinks.as_deref_mut(),
                adds: false,
            },
        )?;
    }
    let mut all = vec![finished(dq), finished(dk), finished(dv)];
    all.extend(kind.has_bias.then_some(None));
    all.extend(kind.has_sinks.then(|| finished(dsinks)));
    Ok(all)
}
