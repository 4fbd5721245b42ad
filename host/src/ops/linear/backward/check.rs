//! What is checked of a layer's gradients before anything runs.

use super::{Checked, LinearBackwardOp, LinearGradientElement, LinearGradientOutputs};
use crate::error::{Error, Result};
use crate::ops::column_sums::SumElement;
use crate::ops::linear::{LinearInput, LinearTypes};
use crate::ops::matrix::{expect_contiguous, expect_unit_stride};
use crate::ops::rows::{RowElement, Sizes, expect_rows, expect_shape};
use crate::ops::{Activation, expect_result};
use crate::tensor::Span;

impl<T, O> LinearBackwardOp<'_, T, O>
where
    T: LinearInput + LinearTypes<O> + RowElement,
    O: LinearGradientElement,
{
    /// Checks devices, shapes and strides of all operands.
    pub(crate) fn check(&self) -> Result<Checked> {
        let (x, w, dy) = (self.x, self.w, self.dy);
        let device = dy.device();
        let shape = |operand, expected: String, actual: &[usize]| Error::Shape {
            operation: self.operation,
            operand,
            expected,
            actual: actual.to_vec(),
        };
        let Some((&k, leading)) = x.shape().split_last() else {
            return Err(shape("x", "[.., K], at least one axis".into(), x.shape()));
        };
        let &[n, w_k] = w.shape() else {
            return Err(shape("w", format!("[N, {k}], two axes"), w.shape()));
        };
        if w_k != k {
            return Err(shape("w", format!("[N, {k}], since x has {k} columns"), w.shape()));
        }
        let full = [leading, &[n]].concat();
        expect_shape(self.operation, "dy", dy.shape(), &full, "the layer's output")?;
        let sizes = Sizes::of(self.operation, "dy", &full)?;
        device.expect_same(self.operation, "x", x.device())?;
        device.expect_same(self.operation, "w", w.device())?;
        if let Some(stream) = self.stream {
            device.expect_same(self.operation, "stream", stream.device())?;
        }
        for (operand, tensor) in [("preactivation", self.preactivation), ("output", self.output)] {
            let Some(tensor) = tensor else { continue };
            device.expect_same(self.operation, operand, tensor.device())?;
            expect_shape(self.operation, operand, tensor.shape(), &full, "dy")?;
        }
        if let Some(mask) = self.mask {
            device.expect_same(self.operation, "relu_mask", mask.device())?;
            let words = [leading, &[n.div_ceil(32)]].concat();
            if mask.shape() != words {
                let expected = format!("{words:?}, a word for every 32 columns of dy");
                return Err(shape("relu_mask", expected, mask.shape()));
            }
        }
        if let Some(scale) = self.column_scale {
            device.expect_same(self.operation, "column_scale", scale.device())?;
            if scale.shape() != [n] && scale.shape() != [1] {
                let expected = format!("[{n}], or [1] for all columns");
                return Err(shape("column_scale", expected, scale.shape()));
            }
            expect_unit_stride(self.operation, "column_scale", scale)?;
        }
        if let Some(scale) = self.row_scale {
            device.expect_same(self.operation, "row_scale", scale.device())?;
            let m = leading.last().copied().unwrap_or(1);
            if scale.shape() != leading && scale.shape() != [m] && scale.shape() != [1] {
                let expected = format!("{leading:?} or [{m}], or [1] for all rows");
                return Err(shape("row_scale", expected, scale.shape()));
            }
            expect_contiguous(self.operation, "row_scale", scale)?;
        }
        self.check_slopes()?;
        Ok(Checked { sizes, stream: self.stream.cloned().unwrap_or_else(|| device.default_stream()) })
    }

    /// The error for slopes that nothing tells, or several operands.
    fn check_slopes(&self) -> Result<()> {
        let is_relu = self.activation == Activation::Relu;
        let of_relu = [("relu_mask", self.mask.is_some()), ("output", self.output.is_some())];
        let argument = |argument, expected: &str, actual: String| Error::Argument {
            operation: self.operation,
            argument,
            expected: expected.into(),
            actual,
        };
        if let Some((operand, _)) = of_relu.into_iter().find(|&(_, is_there)| is_there && !is_relu) {
            let expected = "the activation relu beside it: another one's slopes need the preactivation";
            return Err(argument(operand, expected, format!("the activation {}", self.activation)));
        }
        if self.activation == Activation::None {
            return Ok(());
        }
        let told = of_relu.into_iter().chain([("preactivation", self.preactivation.is_some())]);
        let told: Vec<&str> = told.filter(|&(_, is_there)| is_there).map(|(operand, _)| operand).collect();
        match told[..] {
            [_] => Ok(()),
            [] => {
                let expected = match is_relu {
                    true => "a relu_mask, a preactivation or an output, which its slopes are known from",
                    false => "a preactivation, at which its slopes are taken",
                };
                Err(argument("activation", expected, format!("{} and none", self.activation)))
            }
            _ => Err(argument("activation", "one operand that tells its slopes", told.join(" and "))),
        }
    }

    pub(crate) fn check_outputs<W: SumElement>(
        &self,
        sizes: Sizes,
        outputs: &LinearGradientOutputs<'_, T, O, W>,
    ) -> Result<()> {
        let device = self.dy.device();
        let LinearGradientOutputs { dx, dw, db, dresidual, dz, .. } = outputs;
        let mut others: Vec<(&'static str, Span<'_>)> = vec![("x", self.x.span()), ("w", self.w.span())];
        others.extend(self.mask.map(|mask| ("relu_mask", mask.span())));
        others.extend(self.row_scale.map(|scale| ("row_scale", scale.span())));
        others.extend(self.column_scale.map(|scale| ("column_scale", scale.span())));
        let rows = [("dy", Some(self.dy)), ("preactivation", self.preactivation), ("output", self.output)];
        let rows = || rows.iter().filter_map(|&(name, tensor)| Some((name, tensor?)));
        let apart = |operand, span: &Span<'_>, others: &[(&'static str, Span<'_>)]| match others
            .iter()
            .find(|(_, other)| span.meets(other))
        {
            Some(&(other, _)) => Err(Error::Overlap { operation: self.operation, operand, other }),
            None => Ok(()),
        };
        if let Some(dz) = dz {
            expect_rows(self.operation, "dz", *dz, device, (self.dy.shape(), "dy"))?;
            for (other, tensor) in rows() {
                if dz.shares_memory(tensor) && !dz.is_same_view_as(tensor) {
                    return Err(Error::Overlap { operation: self.operation, operand: "dz", other });
                }
            }
            apart("dz", &dz.span(), &others)?;
            others.push(("dz", dz.span()));
        }
        others.extend(rows().map(|(name, tensor)| (name, tensor.span())));
        if let Some(dresidual) = dresidual {
            expect_rows(self.operation, "dresidual", *dresidual, device, (self.dy.shape(), "dy"))?;
            apart("dresidual", &dresidual.span(), &others)?;
            others.push(("dresidual", dresidual.span()));
        }
        if let Some(db) = db {
            expect_result(self.operation, "db", *db, device, &[sizes.columns], "w")?;
            apart("db", &db.span(), &others)?;
            others.push(("db", db.span()));
        }
        if let Some(dx) = dx {
            expect_rows(self.operation, "dx", *dx, device, (self.x.shape(), "x"))?;
            apart("dx", &dx.span(), &others)?;
            others.push(("dx", dx.span()));
        }
        if let Some(dw) = dw {
            expect_rows(self.operation, "dw", *dw, device, (self.w.shape(), "w"))?;
            apart("dw", &dw.span(), &others)?;
        }
        Ok(())
    }
}
