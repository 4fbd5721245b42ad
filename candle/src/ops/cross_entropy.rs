//! The cross-entropy of logits with labels.

use candle_core::{DType, Shape, Tensor};
use warpsmith::ops;
use warpsmith::ops::cross_entropy::{CrossEntropyOutputs, LabelElement, LogitElement, Reduction};
use warpsmith::ops::rows::RowElement;

use crate::error::Result;
use crate::graph::attach;
use crate::memory::{Call, Computed, Shared, with_element};

/// The operation's name in errors.
const OPERATION: &str = "cross_entropy";

/// The cross-entropy of each row of `logits` `[.., V]` with the labels `[..]`, of type u32 or i64, and their mean
/// unless another
/// [reduction](CrossEntropyOp::reduction) is set.
///
/// The loss is f32, of shape `[]`, or `[..]` if it is not reduced. The logits have a gradient; nothing of their size
/// is saved for it. A row whose label is neither a
/// column nor [ignored](CrossEntropyOp::ignored_label) has NaN.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use warpsmith_candle::cross_entropy;
///
/// let logits = Tensor::new(&[[1.0f32, 1.0], [5.0, 5.0]], &Device::Cpu)?;
/// let labels = Tensor::new(&[0u32, 1], &Device::Cpu)?;
/// let loss = cross_entropy(&logits, &labels).run()?.to_scalar::<f32>()?;
/// assert!((loss - 2f32.ln()).abs() < 1e-6);
/// # Ok::<(), candle_core::Error>(())
/// ```
pub fn cross_entropy<'a>(logits: &'a Tensor, labels: &'a Tensor) -> CrossEntropyOp<'a> {
    let options = Options {
        smoothing: 0.0,
        z_loss: 0.0,
        soft_cap: None,
        ignored: Some(-100),
        reduction: Reduction::default(),
    };
    CrossEntropyOp { logits, labels, options }
}

/// A cross-entropy that has yet to be computed; see [`cross_entropy`].
#[derive(Clone, Copy, Debug)]
#[must_use = "an operation does nothing until `run`"]
pub struct CrossEntropyOp<'a> {
    logits: &'a Tensor,
    labels: &'a Tensor,
    options: Options,
}

#[derive(Clone, Copy, Debug)]
struct Options {
    smoothing: f32,
    z_loss: f32,
    soft_cap: Option<f32>,
    ignored: Option<i64>,
    reduction: Reduction,
}

impl CrossEntropyOp<'_> {
    /// Gives all columns together the part ε of the label's probability, from 0 to 1; 0 unless it is set.
    pub fn label_smoothing(mut self, smoothing: f32) -> Self {
        self.options.smoothing = smoothing;
        self
    }

    /// Adds ζ · lse² to each row's loss; 0 unless it is set.
    pub fn z_loss(mut self, z_loss: f32) -> Self {
        self.options.z_loss = z_loss;
        self
    }

    /// Takes cap · tanh(x / cap) for logits x.
    pub fn soft_cap(mut self, cap: impl Into<Option<f32>>) -> Self {
        self.options.soft_cap = cap.into();
        self
    }

    /// The label of rows that do not count, −100 unless it is set; none if there is no such label.
    pub fn ignored_label(mut self, label: impl Into<Option<i64>>) -> Self {
        self.options.ignored = label.into();
        self
    }

    /// What becomes of the rows' losses; their mean unless it is set.
    pub fn reduction(mut self, reduction: Reduction) -> Self {
        self.options.reduction = reduction;
        self
    }

    /// Computes the loss.
    ///
    /// # Errors
    ///
    /// [`Error::Type`] if the logits are not f32, f16 or bf16, or the labels neither u32 nor i64;
    /// [`Error::DeviceMismatch`] if they are on different devices;
    /// [`Error::Warpsmith`] if a shape does not fit or an option is out of its range.
    ///
    /// [`Error::Type`]: crate::Error::Type
    /// [`Error::DeviceMismatch`]: crate::Error::DeviceMismatch
    /// [`Error::Warpsmith`]: crate::Error::Warpsmith
    pub fn run(&self) -> Result<Tensor> {
        let types = [DType::U32, DType::I64];
        let call = Call::new(OPERATION, &[("logits", self.logits)])?.with(("labels", self.labels), &types)?;
        let options = self.options;
        with_element!(call, T => {
            let loss = match self.labels.dtype() {
                DType::I64 => options.loss::<T, i64>(&call)?,
                _ => options.loss::<T, u32>(&call)?,
            };
            attach(OPERATION, loss, &[self.logits], move |_, dy| {
                let gradient = match call.operand(1).dtype() {
                    DType::I64 => options.gradient::<T, i64>(&call, dy)?,
                    _ => options.gradient::<T, u32>(&call, dy)?,
                };
                Ok(vec![Some(gradient)])
            })
        })
    }
}

impl Options {
    fn loss<T: Shared + LogitElement + RowElement, L: Shared + LabelElement>(
        &self,
        call: &Call,
    ) -> Result<Computed> {
        let is_reduced = self.reduction != Reduction::None;
        let shape = if is_reduced { vec![1] } else { call.operand(1).dims().to_vec() };
        let mut loss = call.fresh::<f32>(shape)?;
        {
            let locked = call.lock();
            let (logits, labels) = (locked.view::<T>(0)?, locked.view::<L>(1)?);
            let mut loss = loss.open()?;
            let outputs = CrossEntropyOutputs::<T> { loss: Some(&mut loss), lse: None, gradient: None };
            self.operation(&logits, &labels).on(call.stream()).run_into(outputs)?;
        }
        let mut computed = loss.finish();
        if is_reduced {
            computed.shape = Shape::from(());
        }
        Ok(computed)
    }

    /// The gradient of the logits, for `dy`, that of the loss.
    fn gradient<T: Shared + LogitElement + RowElement, L: Shared + LabelElement>(
        &self,
        forward: &Call,
        dy: &Tensor,
    ) -> Result<Tensor> {
        let (logits, labels) = (forward.operand(0), forward.operand(1));
        let dy = dy.contiguous()?;
        let is_reduced = self.reduction != Reduction::None;
        let scale = if is_reduced { dy.reshape(1)? } else { dy.clone() };
        let call = Call::new("cross_entropy_backward", &[("logits", logits)])?
            .with(("labels", labels), &[DType::U32, DType::I64])?
            .with(("dy", &scale), &[DType::F32])?;
        if is_reduced {
            return self.scaled_gradient::<T, T, L>(&call);
        }
        // Each row has a factor of its own: in f32, rounded once.
        let gradient = self.scaled_gradient::<T, f32, L>(&call)?;
        let scale = dy.unsqueeze(candle_core::D::Minus1)?;
        Ok(gradient.broadcast_mul(&scale)?.to_dtype(logits.dtype())?)
    }

    /// The gradient of the losses, multiplied by operand number 2 if they are reduced.
    fn scaled_gradient<T, G, L>(&self, call: &Call) -> Result<Tensor>
    where
        T: Shared + LogitElement,
        G: Shared + RowElement,
        L: Shared + LabelElement,
    {
        let mut gradient = call.fresh::<G>(call.operand(0).shape())?;
        {
            let locked = call.lock();
            let (logits, labels, dy) = (locked.view::<T>(0)?, locked.view::<L>(1)?, locked.view::<f32>(2)?);
            let mut gradient = gradient.open()?;
            let scale = (self.reduction != Reduction::None).then_some(&*dy);
            let outputs = CrossEntropyOutputs { loss: None, lse: None, gradient: Some(&mut *gradient) };
            let operation = self.operation(&logits, &labels).gradient_scale_on_device(scale);
            operation.on(call.stream()).run_into(outputs)?;
        }
        Ok(gradient.finish().detached())
    }

    fn operation<'a, T: LogitElement, L: LabelElement>(
        &self,
        logits: &'a warpsmith::Tensor<T>,
        labels: &'a warpsmith::Tensor<L>,
    ) -> ops::cross_entropy::CrossEntropyOp<'a, T, L> {
        ops::cross_entropy(logits, labels)
            .label_smoothing(self.smoothing)
            .z_loss(self.z_loss)
            .soft_cap(self.soft_cap)
            .ignored_label(self.ignored)
            .reduction(self.reduction)
    }
}
