//! The softmax of rows.

use candle_core::{DType, Tensor};
use warpsmith::ops;
use warpsmith::ops::rows::RowElement;
use warpsmith::ops::softmax::SoftmaxElement;

use crate::error::Result;
use crate::graph::attach;
use crate::memory::{Call, Shared, with_element};

/// The operation's name in errors.
const OPERATION: &str = "softmax";

/// The softmax of each row of `x` `[.., N]`, over the last axis: `y = exp(scale · x) / Σ exp(scale · x)`.
///
/// It is computed in f32 and rounded once. x has a gradient.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use warpsmith_candle::softmax;
///
/// let x = Tensor::new(&[[0.0f32, 0.0, 9.0], [2.0, 2.0, 2.0]], &Device::Cpu)?;
/// let mask = Tensor::new(&[[1u8, 1, 0], [0, 0, 1]], &Device::Cpu)?;
/// let y = softmax(&x).mask(&mask).run()?;
/// assert_eq!(y.to_vec2::<f32>()?, [[0.5, 0.5, 0.0], [0.0, 0.0, 1.0]]);
/// # Ok::<(), candle_core::Error>(())
/// ```
pub fn softmax(x: &Tensor) -> SoftmaxOp<'_> {
    SoftmaxOp { x, scale: 1.0, mask: None }
}

/// A softmax that has yet to run; see [`softmax`].
#[derive(Clone, Copy, Debug)]
#[must_use = "an operation does nothing until `run`"]
pub struct SoftmaxOp<'a> {
    x: &'a Tensor,
    scale: f32,
    mask: Option<&'a Tensor>,
}

impl<'a> SoftmaxOp<'a> {
    /// Multiplies x by `scale` first, a number from 2⁻¹⁰⁰ to 2¹⁰⁰; by 1 unless it is set.
    pub fn scale(mut self, scale: f32) -> Self {
        self.scale = scale;
        self
    }

    /// Leaves out the columns where `mask`, of type u8, is 0. It has the shape of x, or `[N]` for all rows.
    pub fn mask(mut self, mask: impl Into<Option<&'a Tensor>>) -> Self {
        self.mask = mask.into();
        self
    }

    /// Takes the softmax.
    ///
    /// # Errors
    ///
    /// [`Error::Type`] if x is not f32, f16 or bf16, or the mask not u8; [`Error::DeviceMismatch`] if they are on
    /// different devices; [`Error::Warpsmith`] if a shape does
    /// not fit or the scale is out of its range.
    ///
    /// [`Error::Type`]: crate::Error::Type
    /// [`Error::DeviceMismatch`]: crate::Error::DeviceMismatch
    /// [`Error::Warpsmith`]: crate::Error::Warpsmith
    pub fn run(&self) -> Result<Tensor> {
        let mut call = Call::new(OPERATION, &[("x", self.x)])?;
        if let Some(mask) = self.mask {
            call = call.with(("mask", mask), &[DType::U8])?;
        }
        with_element!(call, T => self.run_as::<T>(call))
    }

    fn run_as<T: Shared + SoftmaxElement + RowElement>(&self, call: Call) -> Result<Tensor> {
        let mut y = call.fresh::<T>(self.x.shape())?;
        {
            let locked = call.lock();
            let x = locked.view::<T>(0)?;
            let mask = self.mask.map(|_| locked.view::<u8>(1)).transpose()?;
            let operation = ops::softmax(&x).scale(self.scale).mask(mask.as_deref()).on(call.stream());
            operation.run_into(&mut *y.open()?)?;
        }
        let scale = self.scale;
        attach(OPERATION, y.finish(), &[self.x], move |y, dy| {
            let call = Call::new("softmax_gradient", &[("y", y), ("dy", dy)])?;
            let mut dx = call.fresh::<T>(y.shape())?;
            {
                let locked = call.lock();
                let (y, dy) = (locked.view::<T>(0)?, locked.view::<T>(1)?);
                let operation = ops::softmax_gradient(&y, &dy).scale(scale).on(call.stream());
                operation.run_into(&mut *dx.open()?)?;
            }
            Ok(vec![Some(dx.finish().detached())])
        })
    }
}
