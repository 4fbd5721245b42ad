//! Generated low-rank updates on the CPU: `((X V) ⊙ codes) U · scaling`, alone and added to a linear operation.
//!
//! H = (X V) ⊙ codes · scaling is small, and is computed first, as a product of its own, in the type that is added up in. The tiles of
//! the output then take their part of H U beside their part of X Wᵀ.

use ndarray::{Array2, ArrayView2, ArrayViewMut2, s};
use rayon::prelude::*;

use super::linear::{LinearTerms, linear, linear_and};
use super::number::{Accumulator, FromAccumulator, Operand};
use crate::error::{Error, Result};
use crate::memory::zeros;

/// The operation's name in errors.
const OPERATION: &str = "cpu::generated_update";
/// That of linear layers with updates.
const LINEAR_WITH_UPDATE: &str = "cpu::linear_with_update";

/// A generated low-rank update.
#[derive(Clone, Copy, Debug)]
pub struct Update<'a, T> {
    /// V, `[K, R]`.
    pub v: ArrayView2<'a, T>,
    /// A row of codes, `[R]`, for each `rows` neighbouring rows of X.
    pub codes: ArrayView2<'a, T>,
    /// Rows of X that share a row of codes, at least 1.
    pub rows: usize,
    /// U, `[R, N]`.
    pub u: ArrayView2<'a, T>,
    /// What the update is multiplied with.
    pub scaling: f32,
}

/// A product that is added to another: `h` `[M, R]` and `u` `[R, N]`, row-major.
pub(super) struct LowRank<A> {
    pub(super) h: Vec<A>,
    pub(super) u: Vec<A>,
    pub(super) rank: usize,
}

impl<A: Accumulator> LowRank<A> {
    /// Adds the part of it at `row`, from `column` of `n` on, to `sums`.
    pub(super) fn add_to(&self, row: usize, column: usize, n: usize, sums: &mut [A]) {
        let h = &self.h[row * self.rank..][..self.rank];
        for (&h, u) in h.iter().zip(self.u.chunks_exact(n)) {
            for (sum, &u) in sums.iter_mut().zip(&u[column..]) {
                *sum += h * u;
            }
        }
    }
}

/// `(X V) ⊙ codes · scaling` of all updates, one beside the other: `[M, R]`, R the sum of their ranks.
///
/// # Errors
///
/// [`Error::Shape`] if the shapes do not fit together, [`Error::OutOfMemory`] if the host has too little memory.
pub fn rank_coordinates<A, T>(x: ArrayView2<'_, T>, updates: &[Update<'_, T>]) -> Result<Array2<A>>
where
    A: Accumulator + FromAccumulator<A>,
    T: Operand,
{
    let m = x.nrows();
    let rank: usize = updates.iter().map(|update| update.v.ncols()).sum();
    let h = zeros::<A>(OPERATION, m.saturating_mul(rank))?;
    let mut h = Array2::from_shape_vec((m, rank), h).map_err(|error| Error::Argument {
        operation: OPERATION,
        argument: "shape",
        expected: format!("{m} × {rank} elements"),
        actual: error.to_string(),
    })?;
    let mut begin = 0;
    for &Update { v, codes, rows, scaling, .. } in updates {
        let (rank, rows) = (v.ncols(), rows.max(1));
        expect_shape("codes", codes.shape(), &[m.div_ceil(rows), rank])?;
        let mut part = h.slice_mut(s![.., begin..begin + rank]);
        linear::<A, T, f32, f32, A>(x, v.reversed_axes(), LinearTerms::default(), part.view_mut())?;
        for (i, mut row) in part.rows_mut().into_iter().enumerate() {
            for (h, code) in row.iter_mut().zip(codes.row(i / rows)) {
                *h = *h * (A::from_f32(code.to_f32()) * A::from_f32(scaling));
            }
        }
        begin += rank;
    }
    Ok(h)
}

fn low_rank<A, T>(x: ArrayView2<'_, T>, updates: &[Update<'_, T>], n: usize) -> Result<LowRank<A>>
where
    A: Accumulator + FromAccumulator<A>,
    T: Operand,
{
    for update in updates {
        expect_shape("u", update.u.shape(), &[update.v.ncols(), n])?;
    }
    let h = rank_coordinates(x, updates)?;
    let rank = h.ncols();
    let mut u = zeros::<A>(OPERATION, rank.saturating_mul(n))?;
    if n > 0 {
        let rows: Vec<_> = updates.iter().flat_map(|update| update.u.rows()).collect();
        u.par_chunks_mut(n).zip(rows).for_each(|(target, source)| {
            for (target, source) in target.iter_mut().zip(source) {
                *target = A::from_f32(source.to_f32());
            }
        });
    }
    Ok(LowRank { h: h.into_raw_vec_and_offset().0, u, rank })
}

/// Computes `y = Σ ((x v) ⊙ codes) u · scaling + added` over the updates, adding up in `A` and rounding once to `O`.
///
/// `x` is `[M, K]`, `y` and `added` `[M, N]`; any strides, any sizes.
///
/// # Errors
///
/// [`Error::Shape`] if the shapes do not fit together, [`Error::OutOfMemory`] if the host has too little memory.
pub fn generated_update<A, T, R, O>(
    x: ArrayView2<'_, T>,
    updates: &[Update<'_, T>],
    added: Option<ArrayView2<'_, R>>,
    y: ArrayViewMut2<'_, O>,
) -> Result<()>
where
    A: Accumulator + FromAccumulator<A>,
    T: Operand,
    R: Operand,
    O: FromAccumulator<A>,
{
    let (m, n) = y.dim();
    expect_shape("x", x.shape(), &[m, x.ncols()])?;
    let low_rank = low_rank(x, updates, n)?;
    // A product of no columns, to which the update is added.
    let (none, w) = (Array2::<f32>::default((m, 0)), Array2::default((n, 0)));
    let terms = LinearTerms::<f32, R, O> { residual: added, ..LinearTerms::default() };
    linear_and::<A, f32, f32, R, O>(OPERATION, none.view(), w.view(), terms, Some(&low_rank), y)
}

/// Computes `y = act(z)` as [`LinearTerms`] says, of the sum of `x wᵀ` and the updates, adding up in `A` and rounding once to `O`.
///
/// `x` is `[M, K]`, `w` `[N, K]`, `y` `[M, N]`; any strides, any sizes.
///
/// # Errors
///
/// [`Error::Shape`] if the shapes do not fit together, [`Error::OutOfMemory`] if the host has too little memory.
pub fn linear_with_update<A, T, B, R, O>(
    x: ArrayView2<'_, T>,
    w: ArrayView2<'_, T>,
    updates: &[Update<'_, T>],
    terms: LinearTerms<'_, B, R, O>,
    y: ArrayViewMut2<'_, O>,
) -> Result<()>
where
    A: Accumulator + FromAccumulator<A>,
    T: Operand,
    B: Operand,
    R: Operand,
    O: FromAccumulator<A>,
{
    let low_rank = low_rank(x, updates, w.nrows())?;
    linear_and::<A, T, B, R, O>(LINEAR_WITH_UPDATE, x, w, terms, Some(&low_rank), y)
}

fn expect_shape(operand: &'static str, actual: &[usize], expected: &[usize]) -> Result<()> {
    if actual == expected {
        return Ok(());
    }
    let expected = format!("{expected:?}, as the other operands give");
    Err(Error::Shape { operation: OPERATION, operand, expected, actual: actual.to_vec() })
}

#[cfg(test)]
mod tests {
    use half::f16;
    use ndarray::{Array2, array};

    use super::{Update, generated_update, linear_with_update};
    use crate::cpu::Activation;
    use crate::cpu::LinearTerms;
    use crate::error::Error;

    fn pattern(rows: usize, columns: usize, seed: usize) -> Array2<f32> {
        Array2::from_shape_fn((rows, columns), |(i, j)| ((i * 31 + j * 17 + seed) % 7) as f32 - 3.0)
    }

    /// Small integers, so that every sum is exact, at sizes on both sides of every tile's and block's edge.
    #[test]
    fn updates_are_the_sums_that_define_them() {
        for (m, k, n, ranks) in
            [(1, 1, 1, vec![1]), (6, 130, 257, vec![8, 1]), (98, 7, 33, vec![3, 16, 5]), (5, 0, 3, vec![2])]
        {
            for rows in [1, 2, m] {
                let x = pattern(m, k, 1);
                let parts: Vec<_> = ranks
                    .iter()
                    .enumerate()
                    .map(|(i, &rank)| {
                        let codes = pattern(m.div_ceil(rows), rank, 2 + i);
                        (pattern(k, rank, 3 + i), codes, pattern(rank, n, 4 + i), 0.5 * (i + 1) as f32)
                    })
                    .collect();
                let updates: Vec<_> = parts
                    .iter()
                    .map(|(v, codes, u, scaling)| Update {
                        v: v.view(),
                        codes: codes.view(),
                        rows,
                        u: u.view(),
                        scaling: *scaling,
                    })
                    .collect();
                let mut expected = Array2::<f64>::zeros((m, n));
                for ((i, j), expected) in expected.indexed_iter_mut() {
                    for (v, codes, u, scaling) in &parts {
                        for r in 0..u.nrows() {
                            let h: f32 = (0..k).map(|l| x[[i, l]] * v[[l, r]]).sum();
                            *expected += f64::from(h * codes[[i / rows, r]] * u[[r, j]] * scaling);
                        }
                    }
                }
                let mut y = Array2::<f64>::zeros((m, n));
                generated_update::<f64, f32, f32, f64>(x.view(), &updates, None, y.view_mut())
                    .expect("the shapes fit");
                assert_eq!(y, expected, "alone, {m} {k} {n}");
                let (held, mut y) = (pattern(m, n, 9), Array2::<f32>::zeros((m, n)));
                generated_update::<f32, f32, f32, f32>(x.view(), &updates, Some(held.view()), y.view_mut())
                    .expect("the shapes fit");
                assert_eq!(y.mapv(f64::from), &expected + &held.mapv(f64::from), "added, {m} {k} {n}");
                let w = pattern(n, k, 10);
                let terms =
                    LinearTerms::<f32, f32, f64> { activation: Activation::Relu, ..LinearTerms::default() };
                let mut y = Array2::<f64>::zeros((m, n));
                linear_with_update::<f64, f32, f32, f32, f64>(
                    x.view(),
                    w.view(),
                    &updates,
                    terms,
                    y.view_mut(),
                )
                .expect("the shapes fit");
                let sum = (x.dot(&w.t()).mapv(f64::from) + &expected).mapv(|z| z.max(0.0));
                assert_eq!(y, sum, "onto a linear operation, {m} {k} {n}");
            }
        }
    }

    #[test]
    fn shapes_that_do_not_fit_are_errors() {
        let zeros = |shape: (usize, usize)| Array2::from_elem(shape, f16::ZERO);
        let run = |v: (usize, usize), codes: (usize, usize), u: (usize, usize)| {
            let (x, v, codes, u) = (zeros((4, 3)), zeros(v), zeros(codes), zeros(u));
            let update = Update { v: v.view(), codes: codes.view(), rows: 2, u: u.view(), scaling: 1.0 };
            let mut y = Array2::<f32>::zeros((4, 5));
            generated_update::<f32, f16, f32, f32>(x.view(), &[update], None, y.view_mut())
        };
        run((3, 2), (2, 2), (2, 5)).expect("these fit");
        for (v, codes, u) in [
            ((4, 2), (2, 2), (2, 5)),
            ((3, 2), (4, 2), (2, 5)),
            ((3, 2), (2, 2), (3, 5)),
            ((3, 2), (2, 2), (2, 4)),
        ] {
            assert!(matches!(run(v, codes, u), Err(Error::Shape { .. })), "{v:?} {codes:?} {u:?}");
        }
        let mut y = array![[7.0f32]];
        generated_update::<f32, f32, f32, f32>(array![[1.0f32]].view(), &[], None, y.view_mut())
            .expect("no updates are none");
        assert_eq!(y, array![[0.0]]);
    }
}
