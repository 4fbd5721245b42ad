//! The f64 reference of a linear operation: the CPU implementation with f64 sums, on all of the output or a part of it.

use ndarray::{Array1, Array2, ArrayView1, ArrayView2, Axis};

use super::bound::Expected;
use super::data::filled;
use crate::cpu::{self, LinearOptions, Operand};
use crate::error::Result;
use crate::ops::Activation;

/// Multiply–adds above which only some rows and columns of the output are compared.
const FULL_WORK: u64 = 1 << 31;
/// Rows, and columns, compared where not all are.
const SAMPLED_LINES: usize = 32;

/// The reference of some rows and all columns, or of all rows and some columns.
pub(crate) struct Reference {
    z: Array2<f64>,
    magnitude: Array2<f64>,
    bias: Option<Array1<f64>>,
    activation: Activation,
    rows: Vec<usize>,
    columns: Vec<usize>,
}

impl Reference {
    /// The references that together cover what is to be compared: everything, or sampled rows and sampled columns.
    pub(crate) fn cover<T: Operand>(
        x: ArrayView2<'_, T>,
        w: ArrayView2<'_, T>,
        bias: Option<ArrayView1<'_, T>>,
        options: LinearOptions,
    ) -> Result<Vec<Self>> {
        let (m, n, k) = (x.nrows(), w.nrows(), x.ncols());
        let all = |count: usize| (0..count).collect::<Vec<_>>();
        if m == 0 || n == 0 {
            return Ok(Vec::new());
        }
        // Where K is 0 the elements are work, too.
        let work = (m as u64).saturating_mul(n as u64).saturating_mul(k.max(1) as u64);
        if work <= FULL_WORK {
            return Ok(vec![Self::new(x, w, bias, options, all(m), all(n))?]);
        }
        Ok(vec![
            Self::new(x, w, bias, options, sampled(m), all(n))?,
            Self::new(x, w, bias, options, all(m), sampled(n))?,
        ])
    }

    fn new<T: Operand>(
        x: ArrayView2<'_, T>,
        w: ArrayView2<'_, T>,
        bias: Option<ArrayView1<'_, T>>,
        options: LinearOptions,
        rows: Vec<usize>,
        columns: Vec<usize>,
    ) -> Result<Self> {
        let (x, w) = (x.select(Axis(0), &rows), w.select(Axis(0), &columns));
        let bias = bias.map(|bias| bias.select(Axis(0), &columns));
        let shape = (rows.len(), columns.len());
        let (mut z, mut magnitude) = (filled(shape, 0f64)?, filled(shape, 0f64)?);
        let product = LinearOptions { scale: options.scale, activation: Activation::None };
        let bias_view = bias.as_ref().map(|b| b.view());
        cpu::linear::<T, f64, f64>(x.view(), w.view(), bias_view, product, z.view_mut())?;
        let (x, w) = (x.mapv(|v| v.to_f32().abs()), w.mapv(|v| v.to_f32().abs()));
        let plain = LinearOptions::default();
        cpu::linear::<f32, f64, f64>(x.view(), w.view(), None, plain, magnitude.view_mut())?;
        let bias = bias.map(|bias| bias.mapv(|b| f64::from(b.to_f32())));
        Ok(Self { z, magnitude, bias, activation: options.activation, rows, columns })
    }

    /// Every compared element: its row and column in the output, and what is expected there.
    pub(crate) fn elements(&self) -> impl Iterator<Item = (usize, usize, Expected)> {
        self.z.indexed_iter().map(|((i, j), &z)| {
            let expected = Expected {
                z,
                y: self.activation.apply(z),
                magnitude: self.magnitude[[i, j]],
                bias: self.bias.as_ref().map_or(0.0, |bias| bias[j]),
            };
            (self.rows[i], self.columns[j], expected)
        })
    }
}

/// Some of `count` lines: the first and the last, the ones around multiples of 128, and others spread between.
pub(super) fn sampled(count: usize) -> Vec<usize> {
    let spread = (0..SAMPLED_LINES).map(|i| i * count.saturating_sub(1) / (SAMPLED_LINES - 1));
    let mut lines: Vec<_> = spread.chain([127, 128, 129, 255, 256]).filter(|&line| line < count).collect();
    lines.sort_unstable();
    lines.dedup();
    lines
}

#[cfg(test)]
mod tests {
    use ndarray::Array2;

    use super::{Reference, sampled};
    use crate::cpu::LinearOptions;

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
        let cover =
            Reference::cover(x.view(), w.view(), None, LinearOptions::default()).expect("the shapes fit");
        let shapes: Vec<_> = cover.iter().map(|part| part.z.dim()).collect();
        assert!(shapes.len() == 2 && shapes[0].1 == 1500 && shapes[1].0 == 1500 && shapes[0].0 < 50);
        let (row, column, expected) = cover[1].elements().last().expect("it is not empty");
        assert_eq!((row, column), (1499, 1499));
        assert_eq!((expected.y, expected.magnitude), (-2000.0, 2000.0));
    }
}
