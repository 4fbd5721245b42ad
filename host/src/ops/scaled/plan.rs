//! Everything that is checked and decided before a scaled linear operation runs.

use half::f16;

use super::launch::{Launch, ScaledInput, ScaledOutput};
use super::{OPERATION, Scale, ScaledLinearOp};
use crate::device::DeviceKind;
use crate::error::{Error, Result};
use crate::ops::gemm::{FlatTerms, TermsOf};
use crate::ops::matrix::{as_matrix, expect_contiguous, expect_unit_stride, has_unit_stride};
use crate::ops::{CHUNK_BYTES, Implementation, ROW_LIMIT, SIDE_LIMIT, repack};
use crate::stream::Stream;
use crate::tensor::{Element, Tensor};

/// An operand as a matrix of contiguous rows, its leading axes as rows.
pub(super) struct Matrix<T: Element> {
    /// The operand; a matrix, unless that takes a copy.
    tensor: Tensor<T>,
    /// Whether no view of it is such a matrix.
    must_copy: bool,
}

impl<T: Element> Matrix<T> {
    fn of(operand: &'static str, tensor: &Tensor<T>) -> Result<Self> {
        match as_matrix(OPERATION, operand, tensor) {
            Ok(matrix) => {
                let must_copy = !has_unit_stride(&matrix);
                Ok(Self { tensor: matrix, must_copy })
            }
            // Its leading axes have no common stride.
            Err(Error::Stride { .. }) => Ok(Self { tensor: tensor.clone(), must_copy: true }),
            Err(error) => Err(error),
        }
    }

    /// A view that is read where it lies, if it is as a kernel asks.
    pub(super) fn in_place(&self, is_readable: impl FnOnce(&Tensor<T>) -> bool) -> Option<Tensor<T>> {
        (!self.must_copy && is_readable(&self.tensor)).then(|| self.tensor.clone())
    }

    /// A copy whose rows start at multiples of 16 bytes, with zeros up to the next such multiple behind them.
    pub(super) fn copy(&self, stream: &Stream) -> Result<Tensor<T>> {
        repack(&self.tensor).on(stream).run()?.flatten_leading()
    }
}

/// A checked operation.
pub(super) struct Plan<X: Element, W: Element, O: Element> {
    pub(super) x: Matrix<X>,
    pub(super) w: Matrix<W>,
    pub(super) m: usize,
    pub(super) n: usize,
    pub(super) output_shape: Vec<usize>,
    /// What is added and what else is stored.
    pub(super) terms: FlatTerms<O>,
    /// The kernels to launch; none on the CPU, and none if y has no elements.
    pub(super) launch: Option<Launch<O>>,
    pub(super) implementation: Implementation,
}

impl<X: ScaledInput, W: ScaledInput, O: ScaledOutput> Plan<X, W, O> {
    pub(super) fn new(op: &ScaledLinearOp<'_, X, W, O>) -> Result<Self> {
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
        let (x, w) = (Matrix::of("x", op.x)?, Matrix::of("w", op.w)?);
        // `as_matrix` has refused axes whose product is no number.
        let m = leading.iter().product();
        check_scale("x_scale", op.x_scale, "x", leading)?;
        check_scale("w_scale", op.w_scale, "w", &[n])?;
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
        let (launch, implementation) = if m == 0 || n == 0 {
            (None, Implementation::Empty)
        } else if device.kind() == DeviceKind::Cpu {
            (None, Implementation::Cpu)
        } else {
            let sides = [side("x", m)?, side("w", n)?];
            // Of the copies in f16 that devices without 8-bit products get, too.
            let row_bytes = (k.next_multiple_of(CHUNK_BYTES) as u64).saturating_mul(size_of::<f16>() as u64);
            if row_bytes >= ROW_LIMIT {
                let limit = format!("at most {}", ROW_LIMIT / size_of::<f16>() as u64 - CHUNK_BYTES as u64);
                return Err(size_limit("x", "number of columns", limit, k));
            }
            let launch = Launch::new(op, sides, k as u32)?;
            let implementation = launch.implementation(device, &x, &w);
            (Some(launch), implementation)
        };
        Ok(Self { x, w, m, n, output_shape, terms, launch, implementation })
    }

    /// Checks a tensor that is to take the result.
    pub(super) fn check_output(&self, op: &ScaledLinearOp<'_, X, W, O>, y: &Tensor<O>) -> Result<()> {
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
fn check_scale(name: &'static str, scale: Scale<'_>, operand: &str, leading: &[usize]) -> Result<()> {
    let (tensor, expected) = match scale {
        Scale::One | Scale::Tensor(_) => return Ok(()),
        Scale::Device(tensor) if tensor.shape() == [1] => return Ok(()),
        Scale::Device(tensor) => (tensor, "[1], one number for all".to_owned()),
        Scale::Rows(tensor) => {
            let rows: usize = leading.iter().product();
            if tensor.shape() == leading || tensor.shape() == [rows] {
                return expect_contiguous(OPERATION, name, tensor);
            }
            let flat = if leading == [rows] { String::new() } else { format!("{leading:?} or ") };
            (tensor, format!("{flat}[{rows}], since {operand} has {rows} rows"))
        }
    };
    Err(shape(name, expected, tensor))
}

fn side(operand: &'static str, size: usize) -> Result<u32> {
    match u32::try_from(size) {
        Ok(side) if u64::from(side) < SIDE_LIMIT => Ok(side),
        _ => Err(size_limit(operand, "number of rows", format!("less than {SIDE_LIMIT}"), size)),
    }
}

fn shape<T: Element>(operand: &'static str, expected: impl Into<String>, tensor: &Tensor<T>) -> Error {
    Error::Shape { operation: OPERATION, operand, expected: expected.into(), actual: tensor.shape().to_vec() }
}

pub(super) fn size_limit(
    operand: &'static str,
    quantity: &'static str,
    limit: String,
    actual: impl ToString,
) -> Error {
    Error::SizeLimit { operation: OPERATION, operand, quantity, limit, actual: actual.to_string() }
}
