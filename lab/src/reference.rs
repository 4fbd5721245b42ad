//! The f64 reference of a linear operation: the CPU implementation with f64 sums, on all of the output or a part of it.

pub(crate) mod attention;
pub(crate) mod attention_gradient;

use ndarray::{Array1, Array2, ArrayView1, ArrayView2, Axis};
use warpsmith::cpu::{self, LinearTerms, Operand};
use warpsmith::error::Result;
use warpsmith::ops::Activation;

use crate::bound::Expected;
use crate::cases::filled;

/// Multiply–adds above which only some rows and columns of the output are compared.
const FULL_WORK: u64 = 1 << 31;
/// Rows, and columns, compared where not all are.
const SAMPLED_LINES: usize = 32;

/// What is done to the product, for all rows and columns.
#[derive(Clone, Debug)]
pub(crate) struct ReferenceTerms<'a, B> {
    pub(crate) alpha: f32,
    pub(crate) row_scale: Option<ArrayView1<'a, f32>>,
    pub(crate) column_scale: Option<ArrayView1<'a, f32>>,
    pub(crate) bias: Option<ArrayView1<'a, B>>,
    pub(crate) beta: f32,
    pub(crate) residual: Option<ArrayView2<'a, f32>>,
    pub(crate) activation: Activation,
    /// What an element of x and of w counts for in the sum of magnitudes.
    pub(crate) sizes: [fn(f32) -> f32; 2],
    /// What each factor may be off by near zero.
    pub(crate) lost: f64,
}

impl<B> Default for ReferenceTerms<'_, B> {
    fn default() -> Self {
        Self {
            alpha: 1.0,
            row_scale: None,
            column_scale: None,
            bias: None,
            beta: 0.0,
            residual: None,
            activation: Activation::None,
            sizes: [f32::abs; 2],
            lost: 0.0,
        }
    }
}

/// The reference of some rows and all columns, or of all rows and some columns.
pub(crate) struct Reference {
    z: Array2<f64>,
    magnitude: Array2<f64>,
    /// What is added to the product, in magnitude.
    added: Array2<f64>,
    row_scale: Option<Array1<f32>>,
    column_scale: Option<Array1<f32>>,
    /// The sums of the sizes of each row of x and of w.
    sizes: [Array1<f64>; 2],
    /// What each factor may be off by near zero.
    lost: f64,
    activation: Activation,
    rows: Vec<usize>,
    columns: Vec<usize>,
}

impl Reference {
    /// The references that together cover what is to be compared: everything, or sampled rows and sampled columns.
    pub(crate) fn cover<T: Operand, B: Operand>(
        x: ArrayView2<'_, T>,
        w: ArrayView2<'_, T>,
        terms: &ReferenceTerms<'_, B>,
    ) -> Result<Vec<Self>> {
        let (m, n, k) = (x.nrows(), w.nrows(), x.ncols());
        let all = |count: usize| (0..count).collect::<Vec<_>>();
        if m == 0 || n == 0 {
            return Ok(Vec::new());
        }
        // Where K is 0 the elements are work, too.
        let work = (m as u64).saturating_mul(n as u64).saturating_mul(k.max(1) as u64);
        if work <= FULL_WORK {
            return Ok(vec![Self::new(x, w, terms, all(m), all(n))?]);
        }
        Ok(vec![Self::new(x, w, terms, sampled(m), all(n))?, Self::new(x, w, terms, all(m), sampled(n))?])
    }

    fn new<T: Operand, B: Operand>(
        x: ArrayView2<'_, T>,
        w: ArrayView2<'_, T>,
        terms: &ReferenceTerms<'_, B>,
        rows: Vec<usize>,
        columns: Vec<usize>,
    ) -> Result<Self> {
        let (x, w) = (x.select(Axis(0), &rows), w.select(Axis(0), &columns));
        let row_scale = terms.row_scale.map(|scale| scale.select(Axis(0), &rows));
        let column_scale = terms.column_scale.map(|scale| scale.select(Axis(0), &columns));
        let bias = terms.bias.as_ref().map(|bias| bias.select(Axis(0), &columns));
        let residual =
            terms.residual.map(|residual| residual.select(Axis(0), &rows).select(Axis(1), &columns));
        let shape = (rows.len(), columns.len());
        let (mut z, mut magnitude) = (filled(shape, 0f64)?, filled(shape, 0f64)?);
        let product = LinearTerms {
            alpha: terms.alpha,
            row_scale: row_scale.as_ref().map(|scale| scale.view()),
            column_scale: column_scale.as_ref().map(|scale| scale.view()),
            bias: bias.as_ref().map(|bias| bias.view()),
            beta: terms.beta,
            residual: residual.as_ref().map(|residual| residual.view()),
            ..LinearTerms::default()
        };
        cpu::linear::<f64, _, _, _, _>(x.view(), w.view(), product, z.view_mut())?;
        let [x_size, w_size] = terms.sizes;
        let (x, w) = (x.mapv(|v| x_size(v.to_f32())), w.mapv(|v| w_size(v.to_f32())));
        let plain = LinearTerms::<f32, f32, f64>::default();
        cpu::linear::<f64, _, _, _, _>(x.view(), w.view(), plain, magnitude.view_mut())?;
        let sizes = [&x, &w].map(|operand| operand.mapv(f64::from).sum_axis(Axis(1)));
        let mut added = filled(shape, 0f64)?;
        for ((i, j), added) in added.indexed_iter_mut() {
            *added = bias.as_ref().map_or(0.0, |bias| f64::from(bias[j].to_f32()).abs())
                + residual.as_ref().map_or(0.0, |r| (f64::from(terms.beta) * f64::from(r[[i, j]])).abs());
        }
        let activation = terms.activation;
        Ok(Self {
            z,
            magnitude,
            added,
            row_scale,
            column_scale,
            sizes,
            lost: terms.lost,
            activation,
            rows,
            columns,
        })
    }

    /// Every compared element: its row and column in the output, and what is expected there.
    pub(crate) fn elements(&self) -> impl Iterator<Item = (usize, usize, Expected)> {
        self.z.indexed_iter().map(|((i, j), &z)| {
            let expected = Expected {
                z,
                y: self.activation.apply(z),
                magnitude: self.magnitude[[i, j]],
                factor: self.row_scale.as_ref().map_or(1.0, |scale| f64::from(scale[i]))
                    * self.column_scale.as_ref().map_or(1.0, |scale| f64::from(scale[j])),
                added: self.added[[i, j]],
                inner: 0.0,
                lost: self.lost * (self.sizes[0][i] + self.sizes[1][j]),
            };
            (self.rows[i], self.columns[j], expected)
        })
    }
}

/// Some of `count` lines: the first and the last, the ones around multiples of 128, and others spread between.
pub(crate) fn sampled(count: usize) -> Vec<usize> {
    let spread = (0..SAMPLED_LINES).map(|i| i * count.saturating_sub(1) / (SAMPLED_LINES - 1));
    let mut lines: Vec<_> = spread.chain([127, 128, 129, 255, 256]).filter(|&line| line < count).collect();
    lines.sort_unstable();
    lines.dedup();
    lines
}

#[cfg(test)]
mod tests {
    use ndarray::Array2;

    use super::{Reference, ReferenceTerms, sampled};

    #[test]
    fn samples_include_both_ends_and_no_line_twice() {
        for count in [1, 2, 31, 128, 1000, 8192] {
            let lines = sampled(count);
            assert_eq!((lines[0], lines[lines.len() - 1]), (0, count - 1));
            assert!(lines.windows(2).all(|pair| pair[0] < pair[1]));
        }
        assert!(sampled(0).is_empty());
    }

    #[test]
    fn a_large_case_is_covered_by_whole_rows_and_whole_columns() {
        let (x, w) = (Array2::from_elem((1500, 1000), 1f32), Array2::from_elem((1500, 1000), -2f32));
        let terms = ReferenceTerms::<f32>::default();
        let cover = Reference::cover(x.view(), w.view(), &terms).expect("the shapes fit");
        let shapes: Vec<_> = cover.iter().map(|part| part.z.dim()).collect();
        assert!(shapes.len() == 2 && shapes[0].1 == 1500 && shapes[1].0 == 1500 && shapes[0].0 < 50);
        let (row, column, expected) = cover[1].elements().last().expect("it is not empty");
        assert_eq!((row, column), (1499, 1499));
        assert_eq!((expected.y, expected.magnitude), (-2000.0, 2000.0));
    }
}
