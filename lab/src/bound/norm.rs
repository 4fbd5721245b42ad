//! How far norms of rows, and their gradients, may be from the exact ones.
//!
//! Let u be 2⁻²⁴, N the columns, and L the most additions that an element passes through in a sum over a row: N in turn on the CPU, and no more than
//! 48 + N/256 where a block shares it. A sum of terms tᵢ is off by at most `L u Σ |tᵢ|`.
//!
//! **Differences.** The mean is first rounded: m is off by at most `e = (L + 2) u X`, with X the largest |x|. Then `dᵢ = xᵢ − m` is rounded to within u |dᵢ|, and
//! no |dᵢ| is above `A = max |x − μ| + e`. What remains of m's error, δ, is off by at most `(L + 3) u A`. So `zᵢ = dᵢ − δ` is off by at most
//! `ζ = (L + 10) u A`, with the roundings of what follows. Where a cluster shares a row, each block takes differences to its own mean first, which are no larger than 2 A, and
//! its sums are moved to the row's mean: a few roundings of as much. An RMS norm has d = x, δ = 0 and no error of z.
//!
//! **Deviation.** The mean of d² less δ² is off by at most `(2 L + 20) u A²`, and with ε added by as much relative to `v = variance + ε`: ρ. The root halves
//! it, and its own error is 4 u: `r` is off by `(ρ/2 + 6 u)` of itself, times 1.5 for what is of second order where ρ is below 1/2. Beyond that the
//! rows say nothing, and any result is accepted.
//!
//! **Result.** `y = z r w + b` is off by `|w| (ζ r + |z| r (r's error + 4 u)) + 2 u (|z r w| + |b|)`, and rounded once.
//!
//! **Gradients.** x̂ is computed from the mean as it is kept in f32, so it is off by `χ = r (ζ + u |μ|) + |x̂| (r's error + 3 u)`. With `g = dy w`, c the mean of
//! `g x̂` and a that of g, c is off by `mean |g χ| + (L + 4) u mean |g x̂|`, a by `(L + 4) u mean |g|`, and `dx = r (g − a − x̂ c) + dsum` by what these add up to. The weight's
//! gradient is off by `Σ |dy| χ` over the rows and by its sum over M rows, `(M + 16) u Σ |dy x̂|`; the bias's by `(M + 16) u Σ |dy|`.

use warpsmith::DType;

use super::{Judgement, Rounding, U};

/// What is known of one row of the reference.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NormRow {
    /// ζ.
    pub(crate) difference: f64,
    /// r.
    pub(crate) inverse_deviation: f64,
    /// The relative error of r; infinite where nothing is known.
    pub(crate) of_deviation: f64,
    /// μ.
    pub(crate) mean: f64,
}

/// The additions that an element passes through.
pub(crate) fn chain(columns: usize, on_cpu: bool) -> f64 {
    if on_cpu { columns as f64 } else { (columns as f64).min(48.0 + columns as f64 / 256.0) }
}

impl NormRow {
    /// Of the exact mean and inverse deviation of a row `x`.
    pub(crate) fn new(
        x: &[f32],
        [mean, inverse_deviation]: [f64; 2],
        is_centered: bool,
        on_cpu: bool,
    ) -> Self {
        let l = chain(x.len(), on_cpu);
        let largest = |of: &dyn Fn(f64) -> f64| x.iter().map(|&x| of(f64::from(x))).fold(0.0, f64::max);
        let spread = largest(&|x| (x - mean).abs());
        let (differences, difference) = if is_centered {
            let all = spread + (l + 2.0) * U * largest(&f64::abs);
            (all, (l + 10.0) * U * all)
        } else {
            (spread, 0.0)
        };
        let of_variance = (2.0 * l + 20.0) * U * (differences * inverse_deviation).powi(2);
        let of_deviation =
            if of_variance < 0.5 { 1.5 * (of_variance / 2.0 + 6.0 * U) } else { f64::INFINITY };
        Self { difference, inverse_deviation, of_deviation, mean }
    }

    /// χ of a normed element.
    pub(crate) fn of_normed(&self, normed: f64) -> f64 {
        (self.difference + U * self.mean.abs()) * self.inverse_deviation
            + normed.abs() * (self.of_deviation + 3.0 * U)
    }

    /// Compares a result with its reference: of the normed element, the weight, the bias and their result.
    pub(crate) fn judge(&self, got: f64, [normed, weight, bias, y]: [f64; 4], output: DType) -> Judgement {
        let of_normed =
            self.difference * self.inverse_deviation + normed.abs() * (self.of_deviation + 4.0 * U);
        let before = weight.abs() * of_normed + 2.0 * U * ((normed * weight).abs() + bias.abs());
        judged(got, y, before, output)
    }

    /// Compares the mean with its reference.
    pub(crate) fn judge_mean(&self, got: f64) -> Judgement {
        judged(got, self.mean, self.difference, DType::F32)
    }

    /// Compares the inverse deviation with its reference.
    pub(crate) fn judge_deviation(&self, got: f64) -> Judgement {
        judged(got, self.inverse_deviation, self.inverse_deviation * self.of_deviation, DType::F32)
    }
}

/// The exact gradients of one row, and how far they may be off.
#[derive(Clone, Debug)]
pub(crate) struct GradientRow {
    row: NormRow,
    l: f64,
    /// Means over the row: |g|, |g x̂|, |g χ|, and c in magnitude.
    means: [f64; 4],
}

impl GradientRow {
    /// Of the row's exact g and x̂.
    pub(crate) fn new(row: NormRow, gradient: &[f64], normed: &[f64], on_cpu: bool) -> Self {
        let count = gradient.len() as f64;
        let mean = |of: &dyn Fn(f64, f64) -> f64| {
            gradient.iter().zip(normed).map(|(&g, &x)| of(g, x)).sum::<f64>() / count
        };
        let means = [
            mean(&|g, _| g.abs()),
            mean(&|g, x| (g * x).abs()),
            mean(&|g, x| g.abs() * row.of_normed(x)),
            mean(&|g, x| g * x).abs(),
        ];
        Self { row, l: chain(gradient.len(), on_cpu), means }
    }

    /// Compares an element of dx with its reference: of g, x̂, dsum and dx.
    pub(crate) fn judge(&self, got: f64, [gradient, normed, dsum, dx]: [f64; 4], dtype: DType) -> Judgement {
        let [of_g, of_product, of_error, c] = self.means;
        let sums = (self.l + 4.0) * U;
        let of_c = of_error + sums * of_product;
        let rest = 4.0 * U * (gradient.abs() + of_g + normed.abs() * c)
            + sums * of_g
            + normed.abs() * of_c
            + self.row.of_normed(normed) * (c + of_c);
        let size = gradient.abs() + of_g + normed.abs() * c;
        let r = self.row.inverse_deviation;
        let before = r * rest * (1.0 + self.row.of_deviation)
            + r * size * (self.row.of_deviation + 2.0 * U)
            + U * dsum.abs();
        judged(got, dx, before, dtype)
    }
}

/// Compares the gradient of a weight or a bias with its reference: what its terms are off by, and what they add up to in magnitude over so many rows.
pub(crate) fn judge_sum(got: f64, expected: f64, [of_terms, magnitude]: [f64; 2], rows: usize) -> Judgement {
    judged(got, expected, of_terms + (rows as f64 + 16.0) * U * magnitude, DType::F32)
}

fn judged(got: f64, expected: f64, before: f64, output: DType) -> Judgement {
    let rounding = Rounding::of(output);
    let bound = before + (rounding.relative * (expected.abs() + before)).max(rounding.absolute);
    let error = if got == expected { 0.0 } else { (got - expected).abs() };
    // A bound that is not finite says nothing, of any result.
    let within = error <= bound || bound == f64::INFINITY;
    Judgement { error: if error.is_nan() { f64::INFINITY } else { error }, bound, within }
}

#[cfg(test)]
mod tests {
    use warpsmith::DType;

    use super::{NormRow, chain};

    #[test]
    fn a_bound_grows_with_the_mean_only_where_differences_are_rounded() {
        let row = |mean: f32| {
            let x: Vec<f32> = (0..64).map(|i| mean + if i % 2 == 0 { 1.0 } else { -1.0 }).collect();
            NormRow::new(&x, [f64::from(mean), 1.0], true, false)
        };
        let bound = |mean| row(mean).judge(1.0, [1.0, 1.0, 0.0, 1.0], DType::F32).bound;
        assert!(bound(0.0) < 1e-4 && bound(100.0) < 1.1 * bound(0.0), "{} {}", bound(0.0), bound(100.0));
        assert!(bound(1e6) > 2.0 * bound(0.0));
        assert!(row(0.0).judge(f64::NAN, [1.0, 1.0, 0.0, 1.0], DType::F32).error == f64::INFINITY);
        assert!(!row(0.0).judge(f64::NAN, [1.0, 1.0, 0.0, 1.0], DType::F32).within);
        assert!(chain(10, false) == 10.0 && chain(1 << 20, false) < chain(1 << 20, true));
    }
}
