//! The operation: its options, its results, and what is refused.

use super::{IGNORED, LabelElement, LogitElement, OPERATION, Reduction};
use crate::cpu::CrossEntropy;
use crate::device::DeviceKind;
use crate::error::{Error, Result};
use crate::ops::expect_result;
use crate::ops::rows::{RowElement, Sizes, expect_apart, expect_rows, expect_shape, is_in_place};
use crate::stream::Stream;
use crate::tensor::{Element, Tensor};
use crate::trace;

/// The largest cap, and 1 over the smallest: a logit over the cap is a number then.
const MOST_CAP: f32 = (1u64 << 60) as f32;

/// A cross-entropy that has yet to be computed; see [`cross_entropy`](super::cross_entropy()).
#[derive(Clone, Copy, Debug)]
#[must_use = "an operation does nothing until `run`"]
pub struct CrossEntropyOp<'a, T: Element, L: Element> {
    pub(super) logits: &'a Tensor<T>,
    pub(super) labels: &'a Tensor<L>,
    pub(super) options: CrossEntropy,
    pub(super) ignored: Option<i64>,
    pub(super) reduction: Reduction,
    pub(super) gradient_scale: f32,
    pub(super) device_scale: Option<&'a Tensor<f32>>,
    pub(super) stream: Option<&'a Stream>,
}

/// What [`CrossEntropyOp::run_with_gradient`] returns.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Losses<G: Element> {
    /// The loss: `[1]`, or of the labels' shape if it is not reduced.
    pub loss: Tensor<f32>,
    /// The gradient of the loss with respect to the logits, of their shape.
    pub gradient: Tensor<G>,
}

/// Where [`CrossEntropyOp::run_into`] writes results; what is none is not computed.
#[derive(Debug)]
pub struct CrossEntropyOutputs<'o, G: Element> {
    /// The loss: `[1]`, or of the labels' shape if it is not reduced; without gaps.
    pub loss: Option<&'o mut Tensor<f32>>,
    /// ln Σ exp(z) of each row, also of those that do not count: of the labels' shape, without gaps.
    pub lse: Option<&'o mut Tensor<f32>>,
    /// The gradient of the loss with respect to the logits, of their shape; any strides with contiguous rows. It may be the logits themselves: the same view.
    pub gradient: Option<&'o mut Tensor<G>>,
}

// A derived one would ask for it of the element type.
impl<G: Element> Default for CrossEntropyOutputs<'_, G> {
    fn default() -> Self {
        Self { loss: None, lse: None, gradient: None }
    }
}

impl<'a, T: LogitElement, L: LabelElement> CrossEntropyOp<'a, T, L> {
    pub(super) fn new(logits: &'a Tensor<T>, labels: &'a Tensor<L>) -> Self {
        Self {
            logits,
            labels,
            options: CrossEntropy::default(),
            ignored: Some(IGNORED),
            reduction: Reduction::default(),
            gradient_scale: 1.0,
            device_scale: None,
            stream: None,
        }
    }

    /// Gives all columns together the part ε of the label's probability, from 0 to 1; 0 unless it is set.
    pub fn label_smoothing(mut self, smoothing: f32) -> Self {
        self.options.smoothing = smoothing;
        self
    }

    /// Adds ζ · lse² to each row's loss, which keeps sums of exponentials near 1; a finite number, 0 unless it is set.
    pub fn z_loss(mut self, z_loss: f32) -> Self {
        self.options.z_loss = z_loss;
        self
    }

    /// Takes cap · tanh(x / cap) for logits x, also for −∞; a number from 2⁻⁶⁰ to 2⁶⁰. Without it logits are taken as they are.
    pub fn soft_cap(mut self, cap: impl Into<Option<f32>>) -> Self {
        self.options.soft_cap = cap.into();
        self
    }

    /// The label of rows that do not count, −100 unless it is set; none if there is no such label. It may be a column.
    pub fn ignored_label(mut self, label: impl Into<Option<i64>>) -> Self {
        self.ignored = label.into();
        self
    }

    /// What becomes of the rows' losses; their mean unless it is set.
    pub fn reduction(mut self, reduction: Reduction) -> Self {
        self.reduction = reduction;
        self
    }

    /// Multiplies the gradient by `scale`: the gradient of what the loss goes into with respect to the loss, where that is known before; a finite number, 1 unless it is
    /// set. Of losses that are not reduced it is that of each.
    pub fn gradient_scale(mut self, scale: f32) -> Self {
        self.gradient_scale = scale;
        self
    }

    /// Multiplies the gradient by a number on the device as well, `[1]`: a [loss scale](crate::optim::AdamW::loss_scale), which the host need not know. No result may
    /// share memory with it.
    pub fn gradient_scale_on_device(mut self, scale: impl Into<Option<&'a Tensor<f32>>>) -> Self {
        self.device_scale = scale.into();
        self
    }

    /// Runs on `stream` instead of the device's default stream.
    pub fn on(self, stream: &'a Stream) -> Self {
        Self { stream: Some(stream), ..self }
    }

    /// Computes the loss. On a GPU the work may still be under way when this returns.
    ///
    /// # Errors
    ///
    /// [`Error::Shape`] if the logits have no axis, or the labels another shape than that without the last axis.
    /// [`Error::Argument`] if an option is out of its range. [`Error::SizeLimit`] if there are 2³¹ rows or more, or as many
    /// columns. [`Error::DeviceMismatch`] if the labels or the stream are another device's. Otherwise whatever allocating
    /// results, loading kernels and launching them may return.
    pub fn run(&self) -> Result<Tensor<f32>> {
        let (_, stream) = self.check()?;
        let mut loss = Tensor::uninit_on(&stream, self.loss_shape())?;
        self.run_into::<T>(CrossEntropyOutputs { loss: Some(&mut loss), ..Default::default() })?;
        Ok(loss)
    }

    /// Computes the loss, and ln Σ exp(z) of each row, of the labels' shape.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run).
    pub fn run_with_lse(&self) -> Result<(Tensor<f32>, Tensor<f32>)> {
        let (_, stream) = self.check()?;
        let mut loss = Tensor::uninit_on(&stream, self.loss_shape())?;
        let mut lse = Tensor::uninit_on(&stream, self.labels.shape())?;
        self.run_into::<T>(CrossEntropyOutputs {
            loss: Some(&mut loss),
            lse: Some(&mut lse),
            gradient: None,
        })?;
        Ok((loss, lse))
    }

    /// Computes the loss and its gradient with respect to the logits, of their type.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run).
    pub fn run_with_gradient(&self) -> Result<Losses<T>> {
        self.run_with_gradient_as()
    }

    /// Computes the loss and its gradient with respect to the logits, of elements of type `G`.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run).
    pub fn run_with_gradient_as<G: RowElement>(&self) -> Result<Losses<G>> {
        let (_, stream) = self.check()?;
        let mut loss = Tensor::uninit_on(&stream, self.loss_shape())?;
        let mut gradient = Tensor::uninit_on(&stream, self.logits.shape())?;
        self.run_into(CrossEntropyOutputs {
            loss: Some(&mut loss),
            lse: None,
            gradient: Some(&mut gradient),
        })?;
        Ok(Losses { loss, gradient })
    }

    /// Computes results into tensors of the caller's, so that the work can be [captured](Stream::capture) with its results kept.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run); [`Error::Shape`], [`Error::Stride`], [`Error::DeviceMismatch`], [`Error::ReadOnly`] and [`Error::Overlap`] if a result does not fit, or
    /// shares memory with another tensor whose elements it does not replace.
    pub fn run_into<G: RowElement>(&self, outputs: CrossEntropyOutputs<'_, G>) -> Result<()> {
        let _range = trace::operation(OPERATION);
        let (sizes, stream) = self.check()?;
        self.check_outputs(&outputs)?;
        if sizes.rows == 0 {
            // The sum over no rows, and their mean.
            let Some(loss) = outputs.loss else { return Ok(()) };
            return loss.fill_zero_on(&stream);
        }
        if self.logits.device().kind() == DeviceKind::Cpu {
            return self.run_on_cpu(sizes, outputs);
        }
        self.launch(sizes, &stream, outputs)
    }

    /// The shape of the loss.
    fn loss_shape(&self) -> &'a [usize] {
        if self.reduction == Reduction::None { self.labels.shape() } else { &[1] }
    }

    /// The sizes and the stream, or the first error of the operands and options.
    pub(super) fn check(&self) -> Result<(Sizes, Stream)> {
        let (operation, device) = (OPERATION, self.logits.device());
        let sizes = Sizes::of(operation, "logits", self.logits.shape())?;
        let leading = &self.logits.shape()[..self.logits.rank() - 1];
        device.expect_same(operation, "labels", self.labels.device())?;
        expect_shape(operation, "labels", self.labels.shape(), leading, "logits without their last axis")?;
        if let Some(scale) = self.device_scale {
            device.expect_same(operation, "gradient_scale_on_device", scale.device())?;
            if scale.shape() != [1] {
                let (operand, expected) = ("gradient_scale_on_device", "[1], one number for all rows".into());
                let actual = scale.shape().to_vec();
                return Err(Error::Shape { operation, operand, expected, actual });
            }
        }
        let CrossEntropy { smoothing, z_loss, soft_cap } = self.options;
        let cap = soft_cap.unwrap_or(1.0);
        let options = [
            ("label_smoothing", smoothing, (0.0..=1.0).contains(&smoothing), "a number from 0 to 1"),
            ("z_loss", z_loss, z_loss.is_finite(), "a finite number"),
            ("soft_cap", cap, (1.0 / MOST_CAP..=MOST_CAP).contains(&cap), "a number from 2⁻⁶⁰ to 2⁶⁰"),
            ("gradient_scale", self.gradient_scale, self.gradient_scale.is_finite(), "a finite number"),
        ];
        if let Some((argument, value, _, expected)) = options.into_iter().find(|(_, _, fits, _)| !fits) {
            let (expected, actual) = (expected.into(), value.to_string());
            return Err(Error::Argument { operation, argument, expected, actual });
        }
        if let Some(stream) = self.stream {
            device.expect_same(operation, "stream", stream.device())?;
        }
        Ok((sizes, self.stream.cloned().unwrap_or_else(|| device.default_stream())))
    }

    fn check_outputs<G: RowElement>(&self, outputs: &CrossEntropyOutputs<'_, G>) -> Result<()> {
        let (operation, device) = (OPERATION, self.logits.device());
        if let Some(gradient) = &outputs.gradient {
            expect_rows(operation, "gradient", gradient, device, (self.logits.shape(), "logits"))?;
            let others = [
                ("logits", gradient.shares_memory(self.logits) && !is_in_place(gradient, self.logits)),
                ("labels", gradient.shares_memory(self.labels)),
                ("gradient_scale_on_device", self.device_scale.is_some_and(|of| gradient.shares_memory(of))),
            ];
            expect_apart(operation, "gradient", &others)?;
        }
        let of_rows = [
            ("loss", &outputs.loss, self.loss_shape(), "labels and reduction"),
            ("lse", &outputs.lse, self.labels.shape(), "labels"),
        ];
        for (operand, result, shape, origin) in of_rows {
            let Some(result) = result else { continue };
            expect_result(operation, operand, result, device, shape, origin)?;
            let of_gradient =
                outputs.gradient.as_ref().is_some_and(|gradient| result.shares_memory(gradient));
            let others = [
                ("logits", result.shares_memory(self.logits)),
                ("labels", result.shares_memory(self.labels)),
                ("gradient_scale_on_device", self.device_scale.is_some_and(|of| result.shares_memory(of))),
                ("gradient", of_gradient),
            ];
            expect_apart(operation, operand, &others)?;
        }
        match (&outputs.loss, &outputs.lse) {
            (Some(loss), Some(lse)) => expect_apart(operation, "loss", &[("lse", loss.shares_memory(lse))]),
            _ => Ok(()),
        }
    }
}
