//! `Y = act(alpha · x_scale · w_scale · X Wᵀ + …)` on the CPU, for operands of any two types.
//!
//! The product is [`linear`](super::linear())'s on operands widened to f32, and so is all that is done to it.

use ndarray::{Array2, ArrayView2, ArrayViewMut2};
use rayon::prelude::*;

use super::linear::{LinearTerms, linear_and};
use super::number::{Accumulator, FromAccumulator, Operand};
use crate::error::{Error, Result};
use crate::memory::zeros;

/// The operation's name in errors.
const OPERATION: &str = "cpu::linear_scaled";

/// Computes `y = act(z)` as [`LinearTerms`] says, adding up in `A` and rounding once to `O`. A scale for each row of x is a row scale, one
/// for each row of w a column scale.
///
/// `x` is `[M, K]`, `w` `[N, K]`, `y` `[M, N]`; any strides, any sizes. With K = 0 the product is zero.
///
/// # Errors
///
/// [`Error::Shape`] if the shapes do not fit together, [`Error::OutOfMemory`] if the host has too little memory for the widened
/// operands.
pub fn linear_scaled<A, X, W, B, R, O>(
    x: ArrayView2<'_, X>,
    w: ArrayView2<'_, W>,
    terms: LinearTerms<'_, B, R, O>,
    y: ArrayViewMut2<'_, O>,
) -> Result<()>
where
    A: Accumulator,
    X: Operand,
    W: Operand,
    B: Operand,
    R: Operand,
    O: FromAccumulator<A>,
{
    linear_and::<A, f32, B, R, O>(OPERATION, widened(x)?.view(), widened(w)?.view(), terms, None, y)
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
    Array2::from_shape_vec((rows, columns), wide).map_err(|error| Error::SizeLimit {
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
    use ndarray::{Array2, array};

    use super::linear_scaled;
    use crate::cpu::Activation;
    use crate::cpu::LinearTerms;

    #[test]
    fn scales_are_factors_of_rows_and_columns() {
        let x = array![[1.0f32, 2.0], [3.0, -4.0]].mapv(F8E4M3::from_f32);
        let w = array![[1.0f32, 1.0], [0.5, -2.0], [0.0, 8.0]].mapv(F8E5M2::from_f32);
        let (bias, residual) = (array![0.5f32, 0.0, -1.0], array![[0.0f32, 1.0, 2.0], [-7.0, 1.0, 0.0]]);
        let (x_scale, w_scale) = (array![0.5f32, 3.0], array![1.0f32, 2.0, 0.25]);
        let terms = LinearTerms {
            alpha: 2.0,
            row_scale: Some(x_scale.view()),
            column_scale: Some(w_scale.view()),
            bias: Some(bias.view()),
            beta: -1.0,
            residual: Some(residual.view()),
            activation: Activation::Relu,
            ..LinearTerms::default()
        };
        let mut y = Array2::<f64>::zeros((2, 3));
        linear_scaled::<f64, _, _, f32, f32, f64>(x.view(), w.view(), terms, y.view_mut())
            .expect("the shapes fit");
        assert_eq!(y, array![[3.5, 0.0, 1.0], [1.5, 113.0, 0.0]]);
    }

    #[test]
    fn shapes_that_do_not_fit_are_refused_in_its_name() {
        let (x, w) = (Array2::<F8E4M3>::default((2, 3)), Array2::<F8E4M3>::default((4, 3)));
        let mut y = Array2::<f32>::zeros((2, 5));
        let terms = LinearTerms::<f32, f32, f32>::default();
        let refused = linear_scaled::<f32, _, _, f32, f32, f32>(x.view(), w.view(), terms, y.view_mut());
        let said = refused.expect_err("five columns for four rows of w").to_string();
        assert!(
            said.contains("cpu::linear_scaled") && said.contains("y") && said.contains("[2, 4]"),
            "{said}"
        );
    }
}
