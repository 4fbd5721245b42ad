//! Tensors of the caller's that an operation's results go to.

use crate::device::Device;
use crate::error::{Error, Result};
use crate::tensor::{Element, Tensor};

/// The error for a result that is not on `device`, may only be read, has another shape than `shape`, which `origin` says the reason of, or has gaps.
pub(crate) fn expect_result<T: Element>(
    operation: &'static str,
    operand: &'static str,
    result: &Tensor<T>,
    device: &Device,
    shape: &[usize],
    origin: &str,
) -> Result<()> {
    device.expect_same(operation, operand, result.device())?;
    result.expect_writable(operation, operand)?;
    if result.shape() != shape {
        let expected = format!("{shape:?}, as {origin} give");
        let actual = result.shape().to_vec();
        return Err(Error::Shape { operation, operand, expected, actual });
    }
    if !result.is_contiguous() {
        let (expected, actual) = ("elements without gaps".into(), result.strides().to_vec());
        return Err(Error::Stride { operation, operand, expected, actual });
    }
    Ok(())
}
