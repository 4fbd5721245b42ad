//! What the gradients of an attention take, and how queries and keys are turned for them, and back.

use super::{AttentionGradientOp, AttentionGradientOutputs, AttentionInput, OPERATION, launch};
use crate::device::DeviceKind;
use crate::error::{Error, Result};
use crate::ops::attention::check::Checked;
use crate::ops::attention::operands::Operands;
use crate::ops::expect_result;
use crate::tensor::{Element, Span, Tensor};

impl<T: AttentionInput> AttentionGradientOp<'_, T> {
    /// The checked operands, or the first error.
    pub(super) fn check(&self) -> Result<Checked<'_, '_, T, T>> {
        let operands = &self.attention.operands;
        let checked = operands.check(self.attention.stream)?;
        if let Some(pages) = operands.pages {
            return Err(Error::Argument {
                operation: OPERATION,
                argument: "page_table",
                expected: "none where there are gradients".into(),
                actual: format!("a tensor of shape {:?}", pages.shape()),
            });
        }
        let device = operands.q.device();
        let y_shape = checked.problem.output_shape();
        for (operand, tensor) in [("y", self.y), ("dy", self.dy)] {
            device.expect_same(OPERATION, operand, tensor.device())?;
            expect_shape(operand, tensor, &y_shape, "q and v")?;
            expect_contiguous_rows(operand, tensor)?;
        }
        device.expect_same(OPERATION, "lse", self.lse.device())?;
        expect_shape("lse", self.lse, &checked.problem.lse_shape(), "q")?;
        if !self.lse.is_contiguous() {
            let (expected, actual) = ("elements without gaps".into(), self.lse.strides().to_vec());
            return Err(Error::Stride { operation: OPERATION, operand: "lse", expected, actual });
        }
        Ok(checked)
    }

    /// The error for outputs that do not fit, or share memory with what is read or written.
    pub(super) fn check_outputs(
        &self,
        checked: &Checked<'_, '_, T, T>,
        outputs: &AttentionGradientOutputs<'_, T>,
    ) -> Result<()> {
        let operands = checked.operands;
        let device = operands.q.device();
        let own = [("y", self.y.span()), ("dy", self.dy.span()), ("lse", self.lse.span())];
        let inputs: Vec<(&'static str, Span<'_>)> =
            operands.inputs().map(|input| (input.name, input.span)).chain(own).collect();
        let expect_apart = |operand, span: &Span<'_>| match inputs.iter().find(|(_, input)| span.meets(input))
        {
            Some((other, _)) => Err(Error::Overlap { operation: OPERATION, operand, other }),
            None => Ok(()),
        };
        let mut written: Vec<(&'static str, &Tensor<T>)> = Vec::new();
        for (operand, output, like, origin) in [
            ("dq", &outputs.dq, operands.q, "q"),
            ("dk", &outputs.dk, operands.k, "k"),
            ("dv", &outputs.dv, operands.v, "v"),
        ] {
            let Some(output) = output.as_deref() else { continue };
            device.expect_same(OPERATION, operand, output.device())?;
            output.expect_writable(OPERATION, operand)?;
            expect_shape(operand, output, like.shape(), origin)?;
            expect_contiguous_rows(operand, output)?;
            expect_apart(operand, &output.span())?;
            for &(other, before) in &written {
                if output.shares_memory(before) {
                    return Err(Error::Overlap { operation: OPERATION, operand, other });
                }
            }
            written.push((operand, output));
        }
        let Some(dsinks) = outputs.dsinks.as_deref() else { return Ok(()) };
        let Some(sinks) = operands.sinks else {
            return Err(Error::Argument {
                operation: OPERATION,
                argument: "dsinks",
                expected: "none without sinks".into(),
                actual: format!("a tensor of shape {:?}", dsinks.shape()),
            });
        };
        expect_result(OPERATION, "dsinks", dsinks, device, sinks.shape(), "the sinks")?;
        expect_apart("dsinks", &dsinks.span())?;
        match written.iter().find(|(_, before)| dsinks.shares_memory(before)) {
            Some(&(other, _)) => Err(Error::Overlap { operation: OPERATION, operand: "dsinks", other }),
            None => Ok(()),
        }
    }

    /// Computes into outputs that have been checked, or are new.
    pub(super) fn write(
        &self,
        checked: &Checked<'_, '_, T, T>,
        mut outputs: AttentionGradientOutputs<'_, T>,
    ) -> Result<()> {
        let Some(rotary) = &checked.operands.rotary else { return self.compute(checked, outputs) };
        let (q, k) = checked.operands.turned(rotary, &checked.stream)?;
        let operands = Operands { q: &q, k: &k, rotary: None, ..*checked.operands };
        let again = AttentionGradientOutputs {
            dq: outputs.dq.as_deref_mut(),
            dk: outputs.dk.as_deref_mut(),
            dv: outputs.dv,
            dsinks: outputs.dsinks,
            adds: outputs.adds,
        };
        self.compute(&operands.check(Some(&checked.stream))?, again)?;
        checked.operands.turn_back(rotary, [outputs.dq, outputs.dk], &checked.stream)
    }

    /// The same of queries and keys that are turned.
    fn compute(
        &self,
        checked: &Checked<'_, '_, T, T>,
        mut outputs: AttentionGradientOutputs<'_, T>,
    ) -> Result<()> {
        if let Some(dsinks) = outputs.dsinks.take_if(|_| checked.problem.is_empty())
            && !outputs.adds
        {
            // The sum over no rows.
            dsinks.fill_zero_on(&checked.stream)?;
        }
        if launch::is_nothing(&checked.problem) {
            return Ok(());
        }
        match self.dy.device().kind() {
            DeviceKind::Cpu => self.run_on_cpu(checked, outputs),
            _ => self.launch(checked, outputs),
        }
    }
}

fn expect_shape<U: Element>(
    operand: &'static str,
    tensor: &Tensor<U>,
    expected: &[usize],
    origin: &str,
) -> Result<()> {
    if tensor.shape() == expected {
        return Ok(());
    }
    let (expected, actual) = (format!("{expected:?}, as {origin} gives"), tensor.shape().to_vec());
    Err(Error::Shape { operation: OPERATION, operand, expected, actual })
}

/// The error for a tensor whose last axis is not contiguous.
fn expect_contiguous_rows<U: Element>(operand: &'static str, tensor: &Tensor<U>) -> Result<()> {
    let last = tensor.rank() - 1;
    if tensor.is_empty() || tensor.shape()[last] == 1 || tensor.strides()[last] == 1 {
        return Ok(());
    }
    let expected = "1 for the last axis (see `contiguous`)".into();
    let actual = tensor.strides().to_vec();
    Err(Error::Stride { operation: OPERATION, operand, expected, actual })
}
