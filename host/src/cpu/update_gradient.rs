//! What the gradients of a generated update have between their products, on the CPU.

use rayon::prelude::*;

use super::number::Accumulator;
use super::sums::pairwise;

/// Operands of the gradients of one update `s · (H ⊙ codes) U` with H = X V, all without gaps.
#[derive(Clone, Copy, Debug)]
pub struct UpdateGradient<'a, A> {
    /// H, `[M, R]`.
    pub h: &'a [A],
    /// P = dY Uᵀ, `[M, R]`.
    pub p: &'a [A],
    /// A row of codes, `[R]`, for each `rows` neighbouring rows.
    pub codes: &'a [f32],
    /// Rows that share a row of codes, at least 1.
    pub rows: usize,
    /// R, at least 1.
    pub rank: usize,
    /// s.
    pub scaling: f32,
}

impl<A: Accumulator> UpdateGradient<'_, A> {
    /// s · Q ⊙ codes for Q of H or P: A, of which dU = Aᵀ dY, or dH, of which dV = Xᵀ dH and dX = dH Vᵀ.
    #[must_use]
    pub fn modulated(&self, q: &[A]) -> Vec<A> {
        let code = |at: usize| self.codes[at / self.rank / self.rows * self.rank + at % self.rank];
        let scaling = A::from_f32(self.scaling);
        q.par_iter().enumerate().map(|(at, &q)| q * (scaling * A::from_f32(code(at)))).collect()
    }

    /// The gradient of the codes, s · P ⊙ H summed over the rows that share them.
    #[must_use]
    pub fn of_codes(&self) -> Vec<A> {
        let scaling = A::from_f32(self.scaling);
        let of = |at: usize| self.p[at] * self.h[at] * scaling;
        (0..self.codes.len())
            .into_par_iter()
            .map(|at| {
                let (group, column) = (at / self.rank, at % self.rank);
                let of_group = group * self.rows..(group + 1) * self.rows;
                pairwise(of_group, &|row| of(row * self.rank + column))
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::UpdateGradient;

    #[test]
    fn rows_that_share_codes_add_to_the_same_gradient() {
        let h = [1.0f64, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0];
        let p = [1.0f64, 1.0, 2.0, 2.0, 3.0, 3.0, -1.0, 0.0];
        let of = UpdateGradient {
            h: &h,
            p: &p,
            codes: &[10.0, 100.0, 1000.0, 0.0],
            rows: 2,
            rank: 2,
            scaling: 0.5,
        };
        assert_eq!(of.modulated(&h), [5.0, 100.0, 15.0, 200.0, 2500.0, 0.0, 3500.0, 0.0]);
        assert_eq!(of.of_codes(), [3.5, 5.0, 4.0, 9.0]);
        let own = UpdateGradient { codes: &[1.0; 8], rows: 1, ..of };
        assert_eq!(own.of_codes(), [0.5, 1.0, 3.0, 4.0, 7.5, 9.0, -3.5, 0.0]);
        // Of no rows, as of a batch of empty sequences.
        let none = UpdateGradient { h: &[], p: &[], codes: &[1.0, 2.0], rows: 0, ..of };
        assert_eq!((none.of_codes(), none.modulated(&[])), (vec![0.0; 2], vec![]));
    }
}
