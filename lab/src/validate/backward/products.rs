//! Products in f64 of numbers that are off themselves: all of their elements, or those of some rows and columns.

use ndarray::{Array1, Array2, ArrayView2, Axis};
use warpsmith::tensor::DType;

use crate::bound::backward::Near;
use crate::bound::{ErrorModel, Expected, Rounding, U, lost_near_zero};
use crate::validate::tally::Tally;

/// Multiply–adds above which only some rows and columns are compared.
const FULL_WORK: usize = 1 << 30;
/// Rows, and columns, compared where not all are.
const SAMPLED_LINES: usize = 16;

/// A gradient that is a product.
pub(in crate::validate) struct Gradient<'a> {
    /// `[rows, sums]`, as far off as each says.
    pub(in crate::validate) left: ArrayView2<'a, Near>,
    /// `[columns, sums]`.
    pub(in crate::validate) right: ArrayView2<'a, f64>,
    /// How far off these are, if they are.
    pub(in crate::validate) right_errors: Option<ArrayView2<'a, f64>>,
    /// What the sums are multiplied with.
    pub(in crate::validate) alpha: f32,
    /// What those of each row are multiplied with beside it; 1 if there is nothing.
    pub(in crate::validate) factors: Option<&'a [f64]>,
    /// The smallest normal numbers of both sides' types, where tensor cores take smaller ones, but for zero, for as large; else 0.
    pub(in crate::validate) least: [f64; 2],
    /// What they are added to.
    pub(in crate::validate) before: Option<&'a Array2<f64>>,
    /// What that is rounded to before it is added, with the first terms, which are as far off as it makes them.
    pub(in crate::validate) between: Option<DType>,
    /// The operands' type.
    pub(in crate::validate) input: DType,
    pub(in crate::validate) model: ErrorModel,
    /// Rounds to the gradient's type.
    pub(in crate::validate) round: fn(f64) -> f64,
}

impl Gradient<'_> {
    /// Compares results with it; their rows are told from `first` on.
    pub(in crate::validate) fn judge(&self, tally: &mut Tally, got: ArrayView2<'_, f64>, first: usize) {
        let [rows, columns] = [self.left.nrows(), self.right.nrows()];
        let all = |count: usize| (0..count).collect::<Vec<_>>();
        let work = rows.saturating_mul(columns).saturating_mul(self.left.ncols());
        if work <= FULL_WORK {
            return self.judge_some(tally, got, first, [all(rows), all(columns)]);
        }
        self.judge_some(tally, got, first, [sampled(rows), all(columns)]);
        self.judge_some(tally, got, first, [all(rows), sampled(columns)]);
    }

    fn judge_some(
        &self,
        tally: &mut Tally,
        got: ArrayView2<'_, f64>,
        first: usize,
        [rows, columns]: [Vec<usize>; 2],
    ) {
        let (left, right) = (self.left.select(Axis(0), &rows), self.right.select(Axis(0), &columns));
        let [of_left, of_right] = self.least;
        let (right, mut right_sizes) = (right.t(), right.mapv(|number| at_least(number.abs(), of_right)));
        let right_errors = self.right_errors.map(|errors| errors.select(Axis(0), &columns));
        let exact = left.mapv(|left| left.exact).dot(&right);
        let errors = left.mapv(|left| left.error);
        let mut inner = errors.dot(&right_sizes.t());
        let left_sizes = left.mapv(|left| at_least(left.exact.abs() + left.error, of_left));
        if let Some(right_errors) = &right_errors {
            inner += &left_sizes.dot(&right_errors.t());
            right_sizes += right_errors;
        }
        let magnitude = left_sizes.dot(&right_sizes.t());
        let sums = |of: &Array2<f64>| -> Array1<f64> { of.sum_axis(Axis(1)) };
        let (of_rows, of_columns) = (sums(&left_sizes), sums(&right_sizes));
        let alpha = f64::from(self.alpha);
        for (i, &row) in rows.iter().enumerate() {
            for (j, &column) in columns.iter().enumerate() {
                let before = self.before.map_or(0.0, |before| before[[row, column]]);
                let of_before = self.between.map_or(0.0, |dtype| {
                    let Rounding { relative, absolute, .. } = Rounding::of(dtype);
                    before.abs() * (relative + 5.0 * U) + absolute
                });
                let factor = self.factors.map_or(1.0, |factors| factors[row]);
                let y = alpha * factor * exact[[i, j]] + before;
                let expected = Expected {
                    z: y,
                    y,
                    magnitude: magnitude[[i, j]],
                    factor,
                    added: before.abs(),
                    inner: inner[[i, j]] + of_before / alpha.abs(),
                    lost: lost_near_zero(self.input) * (of_rows[i] + of_columns[j]),
                };
                let judge = |got| self.model.judge(got, expected);
                tally.add([first + row, column], got[[row, column]], [y, (self.round)(y)], judge);
                tally.outcome.compared += 1;
            }
        }
    }
}

/// A size, made as large as the smallest normal number unless it is zero.
fn at_least(size: f64, least: f64) -> f64 {
    if size == 0.0 { 0.0 } else { size.max(least) }
}

/// Some of so many lines: the first, the last, and others evenly apart.
fn sampled(count: usize) -> Vec<usize> {
    let mut lines: Vec<usize> =
        (0..SAMPLED_LINES).map(|line| line * count.saturating_sub(1) / (SAMPLED_LINES - 1)).collect();
    lines.dedup();
    lines
}
