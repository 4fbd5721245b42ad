//! What is checked of arguments, whatever carries the elements.

use warpsmith::{DType, Element, Stream, Tensor};

use super::call::Reduction;
use crate::error::{Result, argument};

/// A tensor is contiguous, and on the device of the stream.
pub(super) fn expect_tensor<T: Element>(
    operation: &'static str,
    operand: &'static str,
    tensor: &Tensor<T>,
    stream: &Stream,
) -> Result<()> {
    if !tensor.is_contiguous() {
        let actual = format!("of strides {:?}", tensor.strides());
        return Err(argument(operation, operand, "a contiguous tensor", actual));
    }
    if tensor.device() != stream.device() {
        let expected = format!("on {}, as the stream is", stream.device());
        return Err(argument(operation, operand, expected, format!("on {}", tensor.device())));
    }
    Ok(())
}

/// Both are, and they share no memory.
pub(super) fn expect_pair<T: Element>(
    operation: &'static str,
    input: &Tensor<T>,
    output: &Tensor<T>,
    stream: &Stream,
) -> Result<()> {
    expect_tensor(operation, "input", input, stream)?;
    expect_tensor(operation, "output", output, stream)?;
    if input.shares_memory(output) {
        return Err(argument(operation, "output", "memory of its own", "shared with input"));
    }
    Ok(())
}

pub(super) fn expect_count(
    operation: &'static str,
    operand: &'static str,
    actual: usize,
    expected: usize,
) -> Result<()> {
    if actual == expected {
        return Ok(());
    }
    Err(argument(operation, operand, format!("{expected} elements"), format!("of {actual} elements")))
}

pub(super) fn expect_rank(
    operation: &'static str,
    name: &'static str,
    rank: usize,
    size: usize,
) -> Result<()> {
    if rank < size {
        return Ok(());
    }
    Err(argument(operation, name, format!("a rank below {size}"), rank))
}

pub(super) fn expect_reducible(operation: &'static str, dtype: DType, reduction: Reduction) -> Result<()> {
    if reduction == Reduction::Mean && !dtype.is_float() {
        return Err(argument(operation, "reduction", format!("sum, max or min for {dtype}"), reduction));
    }
    Ok(())
}
