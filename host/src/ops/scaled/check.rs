//! Everything that is checked before a scaled linear operation runs, and its plan.

use super::{OPERATION, Scale, ScaledInput, ScaledLinearOp, ScaledOutput};
use crate::error::{Error, Result};
use crate::ops::Precision;
use crate::ops::gemm::fp8::Kernels;
use crate::ops::gemm::{FlatTerms, Fused, Planned, Request, TermsOf};
use crate::ops::matrix::{as_matrix, expect_contiguous, expect_unit_stride};
use crate::tensor::{DType, Element, Tensor, View};

/// A checked operation.
pub(super) struct Checked<O: Element> {
    pub(super) m: usize,
    pub(super) n: usize,
    pub(super) output_shape: Vec<usize>,
    /// What is added and what else is stored.
    pub(super) terms: FlatTerms<O>,
    /// What runs.
    pub(super) planned: Planned<Kernels<O>>,
}

impl<O: ScaledOutput> Checked<O> {
    pub(super) fn new<X: ScaledInput, W: ScaledInput>(op: &ScaledLinearOp<'_, X, W, O>) -> Result<Self> {
        let device = op.x.device();
        device.expect_same(OPERATION, "w", op.w.device())?;
        for (name, scale) in [("x_scale", op.x_scale), ("w_scale", op.w_scale)] {
            if let Some(scale) = scale.tensor() {
                device.expect_same(OPERATION, name, scale.device())?;
            }
        }
        if let Some(stream) = op.stream {
            device.expect_same(OPERATION, "stream", stream.device())?;
        }

        let Some((&k, leading)) = op.x.shape().split_last() else {
            return Err(shape("x", "[.., K], at least one axis", op.x));
        };
        let &[n, w_k] = op.w.shape() else { return Err(shape("w", format!("[N, {k}], two axes"), op.w)) };
        if w_k != k {
            return Err(shape("w", format!("[N, {k}], since x has {k} columns"), op.w));
        }
        // Leading axes without a common stride are copied.
        match as_matrix(OPERATION, "x", op.x) {
            Ok(_) | Err(Error::Stride { .. }) => {}
            Err(error) => return Err(error),
        }
        // `as_matrix` has refused axes whose product is no number.
        let m = leading.iter().product();
        // A vector is a matrix of one row.
        let x = if leading.is_empty() { op.x.reshape([1, k])? } else { op.x.clone() };
        check_scale(OPERATION, "x_scale", op.x_scale, "x", leading)?;
        check_scale(OPERATION, "w_scale", op.w_scale, "w", &[n])?;
        if let Some(bias) = op.bias {
            device.expect_same(OPERATION, "bias", bias.device())?;
            if bias.shape() != [n] {
                return Err(shape("bias", format!("[{n}], since w has {n} rows"), bias));
            }
            expect_unit_stride(OPERATION, "bias", bias)?;
        }

        let mut output_shape = leading.to_vec();
        output_shape.push(n);
        op.terms.check(&terms_of(op, &output_shape))?;
        let terms = op.terms.flattened(OPERATION)?;
        // The choice depends neither on the 8-bit types nor on the layout of y, and is the same for any terms.
        let planned = Planned::of(&Request {
            operation: OPERATION,
            names: ["x", "w"],
            device,
            input: DType::F8E4M3,
            output: O::DTYPE,
            operands: [View::of(&x), View::of(op.w)],
            leading: &x.shape()[..x.rank() - 2],
            y: None,
            row_scale: None,
            residual: None,
            adds_y: false,
            mask: None,
            preactivation: None,
            fused: if op.terms.is_empty() { Fused::Floor } else { Fused::Terms },
            precision: Precision::Full,
            tile: op.tile,
            parts: op.parts,
            has_hopper: true,
        })?;
        Ok(Self { m, n, output_shape, terms, planned })
    }

    /// Checks a tensor that is to take the result.
    pub(super) fn check_output<X: ScaledInput, W: ScaledInput>(
        &self,
        op: &ScaledLinearOp<'_, X, W, O>,
        y: &Tensor<O>,
    ) -> Result<()> {
        op.terms.check_output(&terms_of(op, &self.output_shape), y)?;
        as_matrix(OPERATION, "y", y).map(drop)
    }
}

/// What the terms are checked with.
fn terms_of<'s, X: ScaledInput, W: ScaledInput, O: ScaledOutput>(
    op: &'s ScaledLinearOp<'_, X, W, O>,
    output_shape: &'s [usize],
) -> TermsOf<'s> {
    let inputs = [
        Some(("x", op.x.span())),
        Some(("w", op.w.span())),
        op.x_scale.tensor().map(|scale| ("x_scale", scale.span())),
        op.w_scale.tensor().map(|scale| ("w_scale", scale.span())),
        op.bias.map(|bias| ("bias", bias.span())),
    ];
    let inputs = inputs.into_iter().flatten().collect();
    TermsOf { operation: OPERATION, names: ["x", "w"], device: op.x.device(), output_shape, inputs }
}

/// Checks the scale of an operand whose axes but the last are `leading`: all of them together are its rows.
pub(super) fn check_scale(
    operation: &'static str,
    name: &'static str,
    scale: Scale<'_>,
    operand: &str,
    leading: &[usize],
) -> Result<()> {
    let (tensor, expected) = match scale {
        Scale::One | Scale::Tensor(_) => return Ok(()),
        Scale::Device(tensor) if tensor.shape() == [1] => return Ok(()),
        Scale::Device(tensor) => (tensor, "[1], one number for all".to_owned()),
        Scale::Rows(tensor) => {
            let rows: usize = leading.iter().product();
            if tensor.shape() == leading || tensor.shape() == [rows] {
                return expect_contiguous(operation, name, tensor);
            }
            let flat = if leading == [rows] { String::new() } else { format!("{leading:?} or ") };
            (tensor, format!("{flat}[{rows}], since {operand} has {rows} rows"))
        }
    };
    Err(Error::Shape { operation, operand: name, expected, actual: tensor.shape().to_vec() })
}

fn shape<T: Element>(operand: &'static str, expected: impl Into<String>, tensor: &Tensor<T>) -> Error {
    Error::Shape { operation: OPERATION, operand, expected: expected.into(), actual: tensor.shape().to_vec() }
}
