//! Tensors as matrices, their leading axes as rows: what kernels without batches read and write.

use crate::error::{Error, Result};
use crate::tensor::{Element, Tensor};

/// The tensor as a matrix, or the error that names it.
pub(crate) fn as_matrix<T: Element>(
    operation: &'static str,
    operand: &'static str,
    tensor: &Tensor<T>,
) -> Result<Tensor<T>> {
    tensor.flatten_leading().map_err(|error| match error {
        Error::Stride { expected, actual, .. } => Error::Stride { operation, operand, expected, actual },
        Error::SizeLimit { quantity, limit, actual, .. } => {
            Error::SizeLimit { operation, operand, quantity, limit, actual }
        }
        Error::Shape { expected, actual, .. } => Error::Shape { operation, operand, expected, actual },
        other => other,
    })
}

/// Elements from one row of a matrix to the next; 0 for a single row, which keeps the addresses of rows that it lacks aligned.
pub(crate) fn row_stride<T: Element>(matrix: &Tensor<T>) -> u64 {
    if matrix.shape()[0] <= 1 { 0 } else { matrix.strides()[0] as u64 }
}

/// Whether neighbours along the last axis are neighbours in memory.
pub(crate) fn has_unit_stride<T: Element>(tensor: &Tensor<T>) -> bool {
    let last = tensor.rank() - 1;
    tensor.is_empty() || tensor.shape()[last] == 1 || tensor.strides()[last] == 1
}

/// The error for a tensor where they are not.
pub(crate) fn expect_unit_stride<T: Element>(
    operation: &'static str,
    operand: &'static str,
    tensor: &Tensor<T>,
) -> Result<()> {
    if has_unit_stride(tensor) {
        return Ok(());
    }
    Err(Error::Stride {
        operation,
        operand,
        expected: "1 along the last axis (`contiguous` makes a copy that has it)".into(),
        actual: tensor.strides().to_vec(),
    })
}

/// The error for a tensor with gaps, or whose elements do not follow in the order of its axes.
pub(crate) fn expect_contiguous<T: Element>(
    operation: &'static str,
    operand: &'static str,
    tensor: &Tensor<T>,
) -> Result<()> {
    if tensor.is_contiguous() {
        return Ok(());
    }
    Err(Error::Stride {
        operation,
        operand,
        expected: "elements without gaps (`contiguous` makes a copy that has none)".into(),
        actual: tensor.strides().to_vec(),
    })
}
