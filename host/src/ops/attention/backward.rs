//! The gradients of attention: of q, k, v and the sinks. Scores are computed again, and never stored.

mod check;
mod launch;
mod on_cpu;
#[cfg(test)]
mod tests;

pub(super) use launch::Kernels;

use super::{AttentionInput, AttentionOp};
use crate::device::DeviceKind;
use crate::error::Result;
use crate::ops::Implementation;
use crate::stream::Stream;
use crate::tensor::{Element, Tensor};
use crate::trace;

/// The operation's name in errors.
const OPERATION: &str = "attention_backward";

/// Gradients of an attention that have yet to be computed; see [`AttentionOp::backward`].
#[derive(Debug)]
#[must_use = "an operation does nothing until `run`"]
pub struct AttentionGradientOp<'a, T: Element> {
    attention: AttentionOp<'a, T>,
    y: &'a Tensor<T>,
    lse: &'a Tensor<f32>,
    dy: &'a Tensor<T>,
}

/// The gradients of an attention.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct AttentionGradients<T: Element> {
    /// Of the queries; with [`rotary`](AttentionOp::rotary), before they are turned.
    pub dq: Tensor<T>,
    /// Of the keys; with [`rotary`](AttentionOp::rotary), before they are turned, if they are.
    pub dk: Tensor<T>,
    /// Of the values.
    pub dv: Tensor<T>,
    /// Of the sinks `[H]`, if there are some.
    pub dsinks: Option<Tensor<f32>>,
}

/// Where [`AttentionGradientOp::run_into`] writes gradients; what is none is not computed.
///
/// `dq`, `dk` and `dv` have the shapes of q, k and v, and contiguous elements of the last axis; other strides are any. They may be heads of one tensor.
#[derive(Debug)]
pub struct AttentionGradientOutputs<'o, T: Element> {
    /// Of the queries.
    pub dq: Option<&'o mut Tensor<T>>,
    /// Of the keys.
    pub dk: Option<&'o mut Tensor<T>>,
    /// Of the values.
    pub dv: Option<&'o mut Tensor<T>>,
    /// Of the sinks `[H]`, without gaps.
    pub dsinks: Option<&'o mut Tensor<f32>>,
    /// Whether the gradient of the sinks is added to what is there.
    pub adds: bool,
}

// A derived one would ask for it of the element type.
impl<T: Element> Default for AttentionGradientOutputs<'_, T> {
    fn default() -> Self {
        Self { dq: None, dk: None, dv: None, dsinks: None, adds: false }
    }
}

impl<'a, T: AttentionInput> AttentionOp<'a, T> {
    /// The gradients of `q`, `k`, `v` and the sinks for `dy`, that of `y`; `y` and `lse` are what [`run_with_lse`](Self::run_with_lse) has returned.
    ///
    /// With the weights `pᵢⱼ = exp(sᵢⱼ − lseᵢ)` and, of each row, `Δᵢ = Σ dyᵢ · yᵢ`, the gradient of a score is `dsᵢⱼ = pᵢⱼ (dyᵢ·vⱼ − Δᵢ)`. Weights are computed again
    /// from `q`, `k` and `lse`; the CPU computes `y` and `lse` again, too. GPUs round weights and gradients of scores to the type of `q` before they multiply with
    /// them. Sums are in f32, in an order that depends on the sizes only. Rows and keys that do not count have zeros.
    ///
    /// All options of the attention apply, but keys in pages and of 8 bits, which have no gradients. A bias, slopes and masks are taken as constants.
    ///
    /// GPUs and the emulator take at most 256 columns of q and of v, from compute capability 8.0 on; the CPU takes any number. Wide heads need more shared memory, in f32 above
    /// 128 columns as much as Hopper has.
    ///
    /// ```
    /// use ndarray::Array;
    /// use warpsmith::ops::attention::Alignment;
    /// use warpsmith::{Device, Tensor, ops};
    ///
    /// let device = Device::cpu();
    /// let tensor = |heads: usize, from: f32| {
    ///     let element = |(_, i, h, d): (usize, usize, usize, usize)| (from + (i * 5 + h * 3 + d) as f32).sin();
    ///     Tensor::from_array(&device, &Array::from_shape_fn((1, 3, heads, 8), element))
    /// };
    /// let (q, k, v, dy) = (tensor(2, 0.0)?, tensor(1, 1.0)?, tensor(1, 2.0)?, tensor(2, 3.0)?);
    /// let attention = || ops::attention(&q, &k, &v).causal(Alignment::TopLeft);
    /// let (y, lse) = attention().run_with_lse()?;
    /// let gradients = attention().backward(&y, &lse, &dy).run()?;
    /// assert_eq!(gradients.dk.shape(), k.shape());
    /// // The first row has one key, which has all the weight, whatever its score.
    /// assert!(gradients.dq.to_vec()?[..16].iter().all(|dq| dq.abs() < 1e-6));
    /// # Ok::<(), warpsmith::Error>(())
    /// ```
    pub fn backward(
        self,
        y: &'a Tensor<T>,
        lse: &'a Tensor<f32>,
        dy: &'a Tensor<T>,
    ) -> AttentionGradientOp<'a, T> {
        AttentionGradientOp { attention: self, y, lse, dy }
    }

    /// The error of [`AttentionGradientOp::run`] for sizes that no kernel of the device takes, before the forward pass runs.
    pub(crate) fn expect_gradients(&self) -> Result<()> {
        launch::expect_kernels(&self.operands.check(self.stream)?)
    }
}

impl<'a, T: AttentionInput> AttentionGradientOp<'a, T> {
    /// Runs on `stream` instead of the device's default stream.
    pub fn on(mut self, stream: &'a Stream) -> Self {
        self.attention.stream = Some(stream);
        self
    }

    /// Computes all gradients. On a GPU the work may still be under way when this returns.
    ///
    /// Rows and keys of no sequence, of packed ones, have zeros.
    ///
    /// # Errors
    ///
    /// As [`AttentionOp::run`], also for `y`, `lse` and `dy`; [`Error::Argument`] for keys in pages. [`Error::UnsupportedDevice`] if no kernel of the device takes the
    /// sizes: more than 256 columns, or more than it has shared memory for.
    ///
    /// [`Error::Argument`]: crate::Error::Argument
    /// [`Error::UnsupportedDevice`]: crate::Error::UnsupportedDevice
    pub fn run(&self) -> Result<AttentionGradients<T>> {
        let _range = trace::operation(OPERATION);
        let checked = self.check()?;
        let operands = &self.attention.operands;
        let new = |like: &Tensor<T>| match checked.problem.is_packed {
            true => Tensor::zeros_on(&checked.stream, like.shape()),
            false => Tensor::uninit_on(&checked.stream, like.shape()),
        };
        let (mut dq, mut dk, mut dv) = (new(operands.q)?, new(operands.k)?, new(operands.v)?);
        let dsinks = operands.sinks.map(|sinks| Tensor::uninit_on(&checked.stream, sinks.shape()));
        let mut dsinks = dsinks.transpose()?;
        self.write(
            &checked,
            AttentionGradientOutputs {
                dq: Some(&mut dq),
                dk: Some(&mut dk),
                dv: Some(&mut dv),
                dsinks: dsinks.as_mut(),
                adds: false,
            },
        )?;
        Ok(AttentionGradients { dq, dk, dv, dsinks })
    }

    /// Computes gradients into tensors of the caller's. Rows and keys of no sequence, of packed ones, stay as they are, unless they are turned.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run), also for the outputs; [`Error::ReadOnly`] if one may not be written, [`Error::Overlap`] if one shares memory with another tensor,
    /// [`Error::Argument`] for a gradient of sinks that are not there.
    ///
    /// [`Error::ReadOnly`]: crate::Error::ReadOnly
    /// [`Error::Overlap`]: crate::Error::Overlap
    /// [`Error::Argument`]: crate::Error::Argument
    pub fn run_into(&self, outputs: AttentionGradientOutputs<'_, T>) -> Result<()> {
        let _range = trace::operation(OPERATION);
        let checked = self.check()?;
        self.check_outputs(&checked, &outputs)?;
        self.write(&checked, outputs)
    }

    /// Which implementation [`run`](Self::run) would take.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run), but for what the device may refuse.
    pub fn implementation(&self) -> Result<Implementation> {
        let checked = self.check()?;
        if launch::is_nothing(&checked.problem) {
            return Ok(Implementation::Empty);
        }
        match self.dy.device().kind() {
            DeviceKind::Cpu => Ok(Implementation::Cpu),
            _ => self.launches(&checked),
        }
    }
}
