//! What is checked of a product's operands before anything runs.

use super::{LinearTypes, Product, TermsOf};
use crate::cpu::FromAccumulator;
use crate::error::{Error, Result};
use crate::ops::matrix::{expect_contiguous, expect_unit_stride};
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
            expect_unit_stride(operation, "bias", bias)?;
        }
        if let Some(scale) = options.column_scale {
            same("column_scale", scale.device())?;
            if scale.shape() != [n] && scale.shape() != [1] {
                return Err(self.shape("column_scale", format!("[{n}], or [1] for all columns"), scale));
            }
            expect_unit_stride(operation, "column_scale", scale)?;
        }
        if let Some(scale) = options.row_scale {
            same("row_scale", scale.device())?;
            let (m, all) = (self.m(), &self.output_shape[..self.output_shape.len() - 1]);
            if scale.shape() != all && scale.shape() != [m] && scale.shape() != [1] {
                let expected = format!("{all:?} or [{m}], or [1] for all rows");
                return Err(self.shape("row_scale", expected, scale));
            }
            expect_contiguous(operation, "row_scale", scale)?;
        }
        options.terms.check(&self.terms_of())
    }

    /// Checks a tensor that is to take the result.
    pub(crate) fn check_output(&self, y: &Tensor<O>) -> Result<()> {
        self.options.terms.check_output(&self.terms_of(), y)
    }

    /// What its terms are checked with.
    fn terms_of(&self) -> TermsOf<'_> {
        let options = self.options;
        let inputs = [
            Some((self.names[0], self.a.span())),
            Some((self.names[1], self.b.span())),
            options.bias.map(|bias| ("bias", bias.span())),
            options.row_scale.map(|scale| ("row_scale", scale.span())),
            options.column_scale.map(|scale| ("column_scale", scale.span())),
        ];
        TermsOf {
            operation: self.operation,
            names: self.names,
            device: self.a.device(),
            output_shape: &self.output_shape,
            inputs: inputs.into_iter().flatten().collect(),
        }
    }

    /// What B calls the output's columns.
    fn columns_are_called(&self) -> &'static str {
        if self.names[1] == "w" { "rows" } else { "columns" }
    }

    fn shape<U: Element>(&self, operand: &'static str, expected: String, tensor: &Tensor<U>) -> Error {
        Error::Shape { operation: self.operation, operand, expected, actual: tensor.shape().to_vec() }
    }
}
