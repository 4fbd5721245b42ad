//! `Y = act(factor · x_scale · w_scale · X Wᵀ + b)` on the CPU, for operands of any two types.
//!
//! The product is [`linear`]'s on operands widened to f32; scales, bias and activation are applied to its sums.

use ndarray::{Array2, ArrayView1, ArrayView2, ArrayViewMut2};
use rayon::prelude::*;

use super::linear::{LinearTerms, linear};
use super::number::{Accumulator, FromAccumulator, Operand};
use crate::error::{Error, Result};
use crate::memory::zeros;
use crate::ops::Activation;

/// The operation's name in errors.
const OPERATION: &str = "cpu::linear_scaled";

/// What the numbers of an operand are multiplied with.
#[derive(Clone, Debug, PartialEq)]
pub enum Scales {
    /// All with one.
    All(f32),
    /// Those of each row with its own.
    Rows(Vec<f32>),
}

impl Default for Scales {
    fn default() -> Self {
        Self::All(1.0)
    }
}

impl Scales {
    fn of_row(&self, row: usize) -> f32 {
        match self {
            Self::All(scale) => *scale,
            Self::Rows(scales) => scales.get(row).copied().unwrap_or(1.0),
        }
    }

    fn check(&self, operand: &'static str, rows: usize) -> Result<()> {
        match self {
            Self::Rows(scales) if scales.len() != rows => Err(Error::Shape {
                operation: OPERATION,
                operand,
                expected: format!("[{rows}], one for each row"),
                actual: vec![scales.len()],
            }),
            _ => Ok(()),
        }
    }
}

/// What [`linear_scaled`] does to the product.
#[derive(Clone, Debug, PartialEq)]
pub struct ScaledOptions {
    /// Multiplies every product.
    pub factor: f32,
    /// Multiplies the rows of x.
    pub x_scale: Scales,
    /// Multiplies the rows of w.
    pub w_scale: Scales,
    /// Applied last, before rounding.
    pub activation: Activation,
}

impl Default for ScaledOptions {
    fn default() -> Self {
        let (x_scale, w_scale) = Default::default();
        Self { factor: 1.0, x_scale, w_scale, activation: Activation::None }
    }
}

/// Computes `y = act(factor · x_scale · w_scale · x wᵀ + bias)`, adding up in `A` and rounding once to `O`.
///
/// `x` is `[M, K]`, `w` `[N, K]`, `bias` `[N]`, `y` `[M, N]`; any strides, any sizes. With K = 0 the product is zero.
///
/// # Errors
///
/// [`Error::Shape`] if the shapes do not fit together, [`Error::OutOfMemory`] if the host has too little memory for the widened
/// operands and the sums.
pub fn linear_scaled<X, W, B, A, O>(
    x: ArrayView2<'_, X>,
    w: ArrayView2<'_, W>,
    bias: Option<ArrayView1<'_, B>>,
    options: &ScaledOptions,
    mut y: ArrayViewMut2<'_, O>,
) -> Result<()>
where
    X: Operand,
    W: Operand,
    B: Operand,
    A: Accumulator + FromAccumulator<A>,
    O: FromAccumulator<A>,
{
    let (m, n) = (x.nrows(), w.nrows());
    let shape = |operand, actual: &[usize], expected: &[usize]| {
        if actual == expected {
            return Ok(());
        }
        let expected = format!("{expected:?}, as the other operands give");
        Err(Error::Shape { operation: OPERATION, operand, expected, actual: actual.to_vec() })
    };
    shape("y", y.shape(), &[m, n])?;
    bias.as_ref().map_or(Ok(()), |bias| shape("bias", bias.shape(), &[n]))?;
    options.x_scale.check("x_scale", m)?;
    options.w_scale.check("w_scale", n)?;

    let (x, w) = (widened(x)?, widened(w)?);
    let mut sums = array((m, n), zeros::<A>(OPERATION, m.saturating_mul(n))?)?;
    linear::<A, _, f32, f32, A>(x.view(), w.view(), LinearTerms::default(), sums.view_mut())?;
    let columns: Vec<(A, A)> = (0..n)
        .map(|column| {
            let bias = bias.as_ref().map_or(0.0, |bias| bias[column].to_f32());
            (A::from_f32(options.w_scale.of_row(column)), A::from_f32(bias))
        })
        .collect();
    let rows = y.rows_mut().into_iter().zip(sums.rows());
    rows.enumerate().par_bridge().for_each(|(row, (mut y, sums))| {
        let row_scale = A::from_f32(options.factor) * A::from_f32(options.x_scale.of_row(row));
        for ((y, &sum), &(scale, bias)) in y.iter_mut().zip(sums).zip(&columns) {
            *y = O::from_accumulator(options.activation.apply(sum * row_scale * scale + bias));
        }
    });
    Ok(())
}

/// A copy in f32.
fn widened<T: Operand>(matrix: ArrayView2<'_, T>) -> Result<Array2<f32>> {
    let (rows, columns) = matrix.dim();
    let mut wide = zeros::<f32>(OPERATION, rows.saturating_mul(columns))?;
    wide.par_chunks_mut(columns.max(1)).zip(0..rows).for_each(|(wide, row)| {
        for (wide, value) in wide.iter_mut().zip(matrix.row(row)) {
            *wide = value.to_f32();
        }
    });
    array((rows, columns), wide)
}

fn array<T>((rows, columns): (usize, usize), elements: Vec<T>) -> Result<Array2<T>> {
    Array2::from_shape_vec((rows, columns), elements).map_err(|error| Error::SizeLimit {
        operation: OPERATION,
        operand: "matrix",
        quantity: "shape",
        limit: error.to_string(),
        actual: format!("{rows} × {columns}"),
    })
}

#[cfg(test)]
mod tests {
    use float8::{F8E4M3, F8E5M2};
    use ndarray::{Array1, Array2, ArrayView1, array};

    use super::{ScaledOptions, Scales, linear_scaled};
    use crate::error::Error;
    use crate::ops::Activation;

    #[test]
    fn scales_are_factors_of_rows_and_columns() {
        let x = array![[1.0f32, 2.0], [3.0, -4.0]].mapv(F8E4M3::from_f32);
        let w = array![[1.0f32, 1.0], [0.5, -2.0], [0.0, 8.0]].mapv(F8E5M2::from_f32);
        let bias = array![0.5f32, 0.0, -1.0];
        let options = ScaledOptions {
            factor: 2.0,
            x_scale: Scales::Rows(vec![0.5, 3.0]),
            w_scale: Scales::Rows(vec![1.0, 2.0, 0.25]),
            activation: Activation::Relu,
        };
        let mut y = Array2::<f64>::zeros((2, 3));
        linear_scaled::<_, _, f32, f64, f64>(x.view(), w.view(), Some(bias.view()), &options, y.view_mut())
            .expect("the shapes fit");
        assert_eq!(y, array![[3.5, 0.0, 3.0], [0.0, 114.0, 0.0]]);
    }

    #[test]
    fn shapes_that_do_not_fit_are_named() {
        let (x, w) = (Array2::<f32>::zeros((2, 3)), Array2::<f32>::zeros((4, 3)));
        let run = |options: &ScaledOptions, bias: Option<ArrayView1<'_, f32>>| {
            let mut y = Array2::<f32>::zeros((2, 4));
            linear_scaled::<_, _, f32, f32, f32>(x.view(), w.view(), bias, options, y.view_mut())
        };
        let rows = Scales::Rows(vec![1.0; 3]);
        for (name, options) in [
            ("x_scale", ScaledOptions { x_scale: rows.clone(), ..Default::default() }),
            ("w_scale", ScaledOptions { w_scale: rows, ..Default::default() }),
        ] {
            assert!(matches!(run(&options, None), Err(Error::Shape { operand, .. }) if operand == name));
        }
        let bias = Array1::zeros(3);
        let wrong = run(&ScaledOptions::default(), Some(bias.view()));
        assert!(matches!(wrong, Err(Error::Shape { operand: "bias", .. })));
    }
}
