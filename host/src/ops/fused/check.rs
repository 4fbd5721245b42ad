//! Results of a product with an epilogue of a program's own against its function on the CPU.

use std::fmt;

use warpsmith_dsl::gemm::product::ProductKernels;

use super::product::{FusedProductOp, OperandsOf};
use crate::DType;
use crate::error::Result;
use crate::kernel::LaunchArgs;
use crate::ops::gemm::LinearTypes;
use crate::ops::{Precision, Products};
use crate::tensor::Element;

/// A sum of products, as the function of an epilogue takes it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sum {
    /// The row.
    pub row: usize,
    /// The column.
    pub column: usize,
    /// `Σ x w`, in f64.
    pub value: f64,
    /// How far a kernel's f32 sum may be from it.
    pub error: f64,
}

/// A row, as the function of an operation on rows takes it.
#[derive(Clone, Copy, Debug)]
pub struct RowOf<'a> {
    /// Its number among all rows.
    pub index: usize,
    /// Its elements, exactly.
    pub x: &'a [f64],
    /// How often a pass has added to each of its terms at most: its sum is off by this times 2⁻²⁴ times the sum of their magnitudes, and by what the terms are.
    pub additions: f64,
}

/// The element that uses most of what it may be off by; see [`FusedProductOp::check`] and [`FusedRowsOp::check`](super::FusedRowsOp::check).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Worst {
    /// The element's row.
    pub row: usize,
    /// Its column.
    pub column: usize,
    /// What the kernel has stored.
    pub actual: f64,
    /// What the function says.
    pub expected: f64,
    /// How far they may be apart.
    pub bound: f64,
}

impl Worst {
    /// Makes `worst` the element at a row and column if it uses more of what it may be off by: the error of its evaluation, and its rounding to the output's type.
    pub(super) fn raise(
        worst: &mut Option<Self>,
        (row, column): (usize, usize),
        actual: f64,
        (expected, error): (f64, f64),
        output: DType,
    ) {
        let (relative, absolute) = rounding(output);
        let bound = error + (relative * (expected.abs() + error)).max(absolute);
        let found = Self { row, column, actual, expected, bound };
        if worst.is_none_or(|worst| found.used() > worst.used()) {
            *worst = Some(found);
        }
    }

    /// Whether the result is within the bound, and with it all others.
    #[must_use]
    pub fn is_within(&self) -> bool {
        self.used() <= 1.0
    }

    /// The part of the bound that the error is; more than 1 is beyond it.
    #[must_use]
    pub fn used(&self) -> f64 {
        // Equal infinities are no error; what is no number is none that is expected.
        if self.actual == self.expected || (self.actual.is_nan() && self.expected.is_nan()) {
            return 0.0;
        }
        let error = (self.actual - self.expected).abs();
        if !error.is_finite() || self.bound.is_nan() { f64::INFINITY } else { error / self.bound }
    }
}

impl fmt::Display for Worst {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { row, column, actual, expected, bound } = self;
        write!(formatter, "at row {row}, column {column}: {actual:e}, expected {expected:e} within {bound:e}")
    }
}

impl<F, T, O, A> FusedProductOp<'_, F, T, O, A>
where
    F: ProductKernels,
    T: LinearTypes<f32> + Element<Device = F::Input> + Into<f64>,
    O: Element<Device = F::Output> + Into<f64>,
    A: LaunchArgs<OperandsOf<F>>,
{
    /// Runs the product and compares every element with `reference`, which gives of a sum the exact result, and how far an f32 evaluation of a
    /// sum that is off by [`Sum::error`] may be from it. The rounding to the output's type is added here. `None` of a product without elements.
    ///
    /// The sums are computed in f64 on the calling thread: M · N · K products.
    ///
    /// # Errors
    ///
    /// As for [`run`](Self::run), and of copies to the host.
    pub fn check(self, mut reference: impl FnMut(&Sum) -> (f64, f64)) -> Result<Option<Worst>> {
        let [m, n] = self.check_inputs()?;
        let k = self.x.shape()[1];
        let numbers = |tensor: Vec<T>| tensor.into_iter().map(Into::into).collect::<Vec<f64>>();
        let (x, w) = (numbers(self.x.to_vec()?), numbers(self.w.to_vec()?));
        let accumulation = Products::choose(T::DTYPE, k, Precision::Full, true).error(k);
        let y = self.run()?.to_vec()?;
        let mut worst: Option<Worst> = None;
        for (index, actual) in y.into_iter().enumerate().take(m * n) {
            let (row, column) = (index / n, index % n);
            let products = x[row * k..][..k].iter().zip(&w[column * k..][..k]).map(|(x, w)| x * w);
            let (value, size) = products.fold((0.0, 0.0), |(sum, size), x| (sum + x, size + f64::abs(x)));
            let error = accumulation * size + k as f64 * f64::from(f32::MIN_POSITIVE);
            let (expected, error) = reference(&Sum { row, column, value, error });
            Worst::raise(&mut worst, (row, column), actual.into(), (expected, error), O::DTYPE);
        }
        Ok(worst)
    }
}

/// How far rounding to nearest moves a number: relatively, and of subnormal ones.
fn rounding(output: DType) -> (f64, f64) {
    match output {
        DType::F16 => (2f64.powi(-11), 2f64.powi(-25)),
        DType::Bf16 => (2f64.powi(-8), 2f64.powi(-134)),
        _ => (2f64.powi(-24), f64::from(f32::MIN_POSITIVE)),
    }
}

#[cfg(test)]
mod tests {
    use super::Worst;

    fn worst(actual: f64, expected: f64, bound: f64) -> Worst {
        Worst { row: 0, column: 0, actual, expected, bound }
    }

    #[test]
    fn what_is_no_number_or_beyond_the_bound_is_not_within() {
        assert!(worst(1.0, 1.5, 0.5).is_within() && worst(2.0, 2.0, 0.0).is_within());
        assert!(worst(f64::INFINITY, f64::INFINITY, f64::NAN).is_within());
        for (actual, expected, bound) in [
            (1.0, 1.6, 0.5),
            (f64::NAN, 1.0, 9.0),
            (1.0, f64::NAN, 9.0),
            (1.0, 1.1, f64::NAN),
            (f64::INFINITY, 1.0, 9.0),
            (f64::INFINITY, 1.0, f64::INFINITY),
        ] {
            assert!(!worst(actual, expected, bound).is_within(), "{actual} {expected} {bound}");
        }
    }
}
