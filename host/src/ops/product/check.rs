//! What is checked of a product's operands before anything runs.

use super::Product;
use crate::cpu::FromAccumulator;
use crate::error::{Error, Result};
use crate::ops::linear::LinearTypes;
use crate::tensor::{Element, Tensor};

impl<T, O> Product<'_, T, O>
where
    T: LinearTypes<O>,
    O: Element + FromAccumulator<f32>,
{
    /// Checks devices, shapes and strides of all operands but the output.
    pub(crate) fn check(&self) -> Result<()> {
        let (operation, options, device) = (self.operation, self.options, self.a.device());
        let same = |operand, other| device.expect_same(operation, operand, other);
        same(self.names[1], self.b.device())?;
        if let Some(argument) = options.of_another_output {
            return Err(Error::Argument {
                operation,
                argument,
                expected: format!("a tensor of {}, given after `output`", O::DTYPE),
                actual: "one given before the output's type was set".into(),
            });
        }
        if options.residual.is_some() && options.beta != 0.0 {
            return Err(Error::Argument {
                operation,
                argument: "beta",
                expected: "0 beside a residual, which is added instead of what the output holds".into(),
                actual: options.beta.to_string(),
            });
        }
        if let Some(stream) = options.stream {
            same("stream", stream.device())?;
        }

        let n = self.n();
        if let Some(bias) = options.bias {
            same("bias", bias.device())?;
            if bias.shape() != [n] {
                let expected =
                    format!("[{n}], since {} has {n} {}", self.names[1], self.columns_are_called());
                return Err(self.shape("bias", expected, bias));
            }
            self.expect_unit_stride("bias", bias)?;
        }
        if let Some(scale) = options.column_scale {
            same("column_scale", scale.device())?;
            if scale.shape() != [n] && scale.shape() != [1] {
                return Err(self.shape("column_scale", format!("[{n}], or [1] for all columns"), scale));
            }
            self.expect_unit_stride("column_scale", scale)?;
        }
        if let Some(scale) = options.row_scale {
            same("row_scale", scale.device())?;
            let (m, all) = (self.m(), &self.output_shape[..self.output_shape.len() - 1]);
            if scale.shape() != all && scale.shape() != [m] && scale.shape() != [1] {
                let expected = format!("{all:?} or [{m}], or [1] for all rows");
                return Err(self.shape("row_scale", expected, scale));
            }
            if !scale.is_contiguous() {
                let expected = "elements without gaps (`contiguous` makes a copy that has none)".into();
                let actual = scale.strides().to_vec();
                return Err(Error::Stride { operation, operand: "row_scale", expected, actual });
            }
        }
        if let Some((residual, _)) = options.residual {
            same("residual", residual.device())?;
            self.expect_output_shape("residual", residual)?;
            self.expect_unit_stride("residual", residual)?;
        }
        if let Some(preactivation) = options.preactivation.as_deref() {
            same("preactivation", preactivation.device())?;
            self.expect_output_shape("preactivation", preactivation)?;
            self.expect_unit_stride("preactivation", preactivation)?;
            self.expect_apart("preactivation", preactivation, None)?;
        }
        if let Some(mask) = options.mask.as_deref() {
            same("relu_mask", mask.device())?;
            let mut words = self.output_shape.clone();
            if let Some(last) = words.last_mut() {
                *last = n.div_ceil(32);
            }
            if mask.shape() != words {
                let expected = format!("{words:?}, a word for every 32 columns of the output");
                return Err(self.shape("relu_mask", expected, mask));
            }
            self.expect_unit_stride("relu_mask", mask)?;
            self.expect_apart("relu_mask", mask, None)?;
            if options.preactivation.as_deref().is_some_and(|other| mask.shares_memory(other)) {
                return Err(Error::Overlap { operation, operand: "relu_mask", other: "preactivation" });
            }
        }
        Ok(())
    }

    /// Checks a tensor that is to take the result.
    pub(crate) fn check_output(&self, y: &Tensor<O>) -> Result<()> {
        let (operation, options) = (self.operation, self.options);
        self.a.device().expect_same(operation, "y", y.device())?;
        self.expect_output_shape("y", y)?;
        self.expect_unit_stride("y", y)?;
        // An element of the residual is read by who then writes its place in y, so they may be the same tensor.
        let residual = options.residual.map(|(residual, _)| residual);
        let same = residual.filter(|residual| residual.is_same_view(y));
        self.expect_apart("y", y, same)?;
        for (other, written) in [
            ("preactivation", options.preactivation.as_deref().is_some_and(|other| y.shares_memory(other))),
            ("relu_mask", options.mask.as_deref().is_some_and(|other| y.shares_memory(other))),
        ] {
            if written {
                return Err(Error::Overlap { operation, operand: "y", other });
            }
        }
        Ok(())
    }

    /// The error for a written operand that shares memory with one that is read, other than `except`.
    fn expect_apart<U: Element>(
        &self,
        operand: &'static str,
        written: &Tensor<U>,
        except: Option<&Tensor<O>>,
    ) -> Result<()> {
        let options = self.options;
        let residual = options.residual.map(|(residual, _)| residual).filter(|_| except.is_none());
        let read = [
            (self.names[0], written.shares_memory(&self.a)),
            (self.names[1], written.shares_memory(&self.b)),
            ("bias", options.bias.is_some_and(|bias| written.shares_memory(bias))),
            ("residual", residual.is_some_and(|residual| written.shares_memory(residual))),
            ("row_scale", options.row_scale.is_some_and(|scale| written.shares_memory(scale))),
            ("column_scale", options.column_scale.is_some_and(|scale| written.shares_memory(scale))),
        ];
        match read.into_iter().find(|(_, shared)| *shared) {
            Some((other, _)) => Err(Error::Overlap { operation: self.operation, operand, other }),
            None => Ok(()),
        }
    }

    /// What B calls the output's columns.
    fn columns_are_called(&self) -> &'static str {
        if self.names[1] == "w" { "rows" } else { "columns" }
    }

    fn expect_output_shape(&self, operand: &'static str, tensor: &Tensor<O>) -> Result<()> {
        if tensor.shape() == self.output_shape {
            return Ok(());
        }
        let [a, b] = self.names;
        Err(self.shape(operand, format!("{:?}, as {a} and {b} give", self.output_shape), tensor))
    }

    fn expect_unit_stride<U: Element>(&self, operand: &'static str, tensor: &Tensor<U>) -> Result<()> {
        let last = tensor.rank() - 1;
        if tensor.is_empty() || tensor.shape()[last] == 1 || tensor.strides()[last] == 1 {
            return Ok(());
        }
        Err(Error::Stride {
            operation: self.operation,
            operand,
            expected: "1 along the last axis (`contiguous` makes a copy that has it)".into(),
            actual: tensor.strides().to_vec(),
        })
    }

    fn shape<U: Element>(&self, operand: &'static str, expected: String, tensor: &Tensor<U>) -> Error {
        Error::Shape { operation: self.operation, operand, expected, actual: tensor.shape().to_vec() }
    }
}
