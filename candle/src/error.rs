//! Everything that can go wrong, one variant a cause.

use std::fmt;

use candle_core::DType;

/// The result of every fallible call of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a call failed.
///
/// `?` makes a [`candle_core::Error`] of it, in which [`Error::find`] finds it again. `Debug` says the same as
/// `Display`.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An operand's element type does not fit.
    #[error("{operation}: `{operand}` has elements of type {}, expected {expected}", .actual.as_str())]
    Type {
        /// The operation that was asked for.
        operation: &'static str,
        /// The operand at fault.
        operand: &'static str,
        /// What the operation takes.
        expected: String,
        /// The operand's element type.
        actual: DType,
    },

    /// An operand's shape does not fit the operation or the other operands.
    #[error("{operation}: `{operand}` has shape {actual:?}, expected {expected}")]
    Shape {
        /// The operation that was asked for.
        operation: &'static str,
        /// The operand at fault.
        operand: &'static str,
        /// What the operation takes.
        expected: String,
        /// The operand's shape.
        actual: Vec<usize>,
    },

    /// Operands are on different devices.
    #[error("{operation}: `{operand}` is on {actual}, expected {expected}")]
    DeviceMismatch {
        /// The operation that was asked for.
        operation: &'static str,
        /// The operand at fault.
        operand: &'static str,
        /// The device that it should be on, and which operand is there.
        expected: String,
        /// The operand's device.
        actual: String,
    },

    /// The tensors are on a device that has no kernels here.
    #[error("{operation}: `{operand}` is on {actual}, expected the CPU or a CUDA device")]
    UnsupportedDevice {
        /// The operation that was asked for.
        operation: &'static str,
        /// The operand at fault.
        operand: &'static str,
        /// The operand's device.
        actual: String,
    },

    /// The operation has no gradient with respect to an operand that needs one.
    #[error("{operation}: no gradient of `{operand}`, expected an operand that is not tracked: {reason}")]
    NoGradient {
        /// The operation whose gradient was asked for.
        operation: &'static str,
        /// The operand that is tracked.
        operand: &'static str,
        /// What there is instead.
        reason: &'static str,
    },

    /// The operation itself refused its operands, or its launch failed.
    #[error(transparent)]
    Warpsmith(#[from] warpsmith::Error),

    /// A call of candle's failed.
    #[error(transparent)]
    Candle(Box<candle_core::Error>),
}

impl Error {
    /// The error of this crate that a candle error was made of, if it was.
    ///
    /// ```
    /// use candle_core::{DType, Device, Tensor};
    /// use warpsmith_candle::{Error, linear};
    ///
    /// fn model(x: &Tensor) -> candle_core::Result<Tensor> {
    ///     Ok(linear(x, x).run()?)
    /// }
    /// let x = Tensor::zeros((2, 2), DType::F64, &Device::Cpu)?;
    /// let error = model(&x).unwrap_err();
    /// assert!(matches!(Error::find(&error), Some(Error::Type { operand: "x", .. })));
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    #[must_use]
    pub fn find(error: &candle_core::Error) -> Option<&Self> {
        match error {
            candle_core::Error::WrappedContext { wrapped, .. } => wrapped.downcast_ref(),
            candle_core::Error::Context { inner, .. }
            | candle_core::Error::WithBacktrace { inner, .. }
            | candle_core::Error::WithPath { inner, .. } => Self::find(inner),
            _ => None,
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

impl From<candle_core::Error> for Error {
    fn from(error: candle_core::Error) -> Self {
        Self::Candle(Box::new(error))
    }
}

impl From<Error> for candle_core::Error {
    fn from(error: Error) -> Self {
        match error {
            Error::Candle(error) => *error,
            error => {
                let context = "an operation of warpsmith".into();
                candle_core::Error::WrappedContext { wrapped: Box::new(error), context }
            }
        }
    }
}
