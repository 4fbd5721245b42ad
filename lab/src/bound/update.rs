//! How far generated low-rank updates may be from the exact ones; see [`bound`](super) for the sums, and for the names.
//!
//! Let h be an element of `X V`, g = h · code · scaling what it becomes, and c the magnitude of code · scaling. Of one element of the output let
//! `E = Σ |g uᵣ|` over the ranks, `Σ |uᵣ|` the magnitudes of U alone, and `D = Σ c Sₕ |uᵣ|` with Sₕ the sum of the magnitudes of
//! the products in h.
//!
//! **H.** h is a sum of K products: off by at most `a(K) · Sₕ`, with a(K) the error of such sums. Code times scaling, and its
//! product with h, are rounded: 2u each at most, together less than 3u of |g| ≤ c Sₕ.
//!
//! **Rounding to the operands' type.** Kernels round g to the type T of the operands, to nearest: at most `t · |g|`, or η where g is subnormal
//! in T, with t = 2⁻¹¹ (f16), 2⁻⁸ (bf16) or 2⁻²⁴ (f32). The CPU does not, and its bound does not allow it.
//!
//! So the terms of the second sum are off by at most `inner = (1 + t)(a(K) + 3u) · D + t · E + η · Σ |uᵣ|`, together.
//!
//! **The second sum** begins where that of the linear operation ends, whose terms have the magnitude S: a sum of K + R products of magnitude
//! `S + E + inner`, with a group that K leaves incomplete, which counts as 8 more. Alone it is one of R products. On the CPU each of the R
//! products is rounded, and added with a rounding.
//!
//! **One kernel after the other.** The update is rounded to T before the linear operation adds it: t · (E + inner), or η. With a residual it is
//! the sum of both. If |beta| < 1, `beta · r` is rounded first, at most `e = max(t · |beta · r|, η)`, and then the sum, at most
//! `max(t · (E + inner + |beta · r| + e), η)`. Else the sum is divided by beta: t · (E + inner + |beta · r|), or |beta| · η, and what g
//! may be off by where it is subnormal is multiplied with |beta|, too.
//!
//! **The claim for f32** is that of linear operations, for K up to 4096: within 10⁻⁵ of the magnitudes, which are S + D here.

use warpsmith::DType;
use warpsmith::ops::{Activation, Precision, Products};

use super::{Arithmetic, ErrorModel, Expected, Rounding, U};

/// The error bound of one update; the module's text derives it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UpdateModel {
    arithmetic: Arithmetic,
    dtype: DType,
    k: usize,
    rank: usize,
    /// Of h.
    first: f64,
    /// Of g, relative and where it is subnormal.
    rounded: f64,
    step: f64,
    /// What an update that is rounded before the linear operation adds it is then multiplied with.
    between: Option<f64>,
}

/// The magnitudes of an element's terms; the module's text says which.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Magnitudes {
    /// S.
    pub(crate) base: f64,
    /// E.
    pub(crate) update: f64,
    /// D.
    pub(crate) size: f64,
    /// `Σ |uᵣ|`.
    pub(crate) sum_of_u: f64,
    /// `|beta · r|`.
    pub(crate) residual: f64,
}

/// The error of a sum of `k` products of `dtype`, relative to its magnitude.
fn sum(arithmetic: Arithmetic, dtype: DType, k: usize) -> f64 {
    match arithmetic {
        Arithmetic::Cpu => {
            let block = warpsmith::cpu::SUM_BLOCK;
            (k.min(block) + k.div_ceil(block) + 1) as f64 * U
        }
        _ => Products::choose(dtype, k, Precision::Full, true).error(k),
    }
}

impl UpdateModel {
    pub(crate) fn new(
        arithmetic: Arithmetic,
        dtype: DType,
        k: usize,
        rank: usize,
        between: Option<f64>,
    ) -> Self {
        let rounding = Rounding::of(dtype);
        let on_cpu = arithmetic == Arithmetic::Cpu;
        Self {
            arithmetic,
            dtype,
            k,
            rank,
            first: sum(arithmetic, dtype, k) + 3.0 * U,
            rounded: if on_cpu { 0.0 } else { rounding.relative },
            step: if on_cpu { 0.0 } else { rounding.absolute },
            between,
        }
    }

    /// The bound for the second sum, which may begin where that of a linear operation ends.
    pub(crate) fn of_sum(&self, linear: bool, activation: Activation) -> ErrorModel {
        let k = if linear { self.k } else { 0 };
        let accumulation = match self.arithmetic {
            Arithmetic::Cpu => sum(self.arithmetic, self.dtype, k) + (2 * self.rank) as f64 * U,
            _ => sum(self.arithmetic, self.dtype, k + 8 + self.rank),
        };
        // The claim is one for sums of the length that the operands have.
        ErrorModel::new(self.arithmetic, self.dtype, self.dtype, self.k, 1.0, activation)
            .with_accumulation(accumulation)
    }

    /// What is expected of an element with terms of these magnitudes, but for the numbers themselves and what is added.
    pub(crate) fn expected(&self, of: Magnitudes) -> Expected {
        let beta = self.between.map(f64::abs);
        let step = self.step * beta.unwrap_or(1.0).max(1.0);
        let mut inner =
            (1.0 + self.rounded) * self.first * of.size + self.rounded * of.update + step * of.sum_of_u;
        let of_sum = of.update + inner;
        if let Some(beta) = beta {
            let rounding = Rounding::of(self.dtype);
            let at =
                |magnitude: f64, unit: f64| (rounding.relative * magnitude).max(rounding.absolute * unit);
            let of_residual = if beta < 1.0 { at(of.residual, 1.0) } else { 0.0 };
            inner += of_residual + at(of_sum + of.residual + of_residual, beta.max(1.0));
        }
        // f32 is held to a claim, which is one of all magnitudes.
        let magnitude = of.base + if self.dtype == DType::F32 { of.size } else { of_sum };
        Expected { z: 0.0, y: 0.0, magnitude, factor: 1.0, added: 0.0, inner, lost: 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use warpsmith::DType;
    use warpsmith::ops::Activation;

    use super::{Magnitudes, UpdateModel};
    use crate::bound::{Arithmetic, Expected};

    fn of(base: f64, update: f64, size: f64) -> Magnitudes {
        Magnitudes { base, update, size, sum_of_u: 1.0, residual: 0.0 }
    }

    /// One product after the other, each of powers of two, so that the only error is the one that is put in.
    #[test]
    fn rounding_h_once_is_allowed_and_twice_is_not() {
        for (dtype, bits) in [(DType::F16, 11), (DType::Bf16, 8)] {
            let model = UpdateModel::new(Arithmetic::TensorCore, dtype, 1, 1, None);
            let expected = model.expected(of(0.0, 1.0, 1.0));
            let at = |z: f64| Expected { z, y: z, ..expected };
            let judge = model.of_sum(false, Activation::None);
            let step = 2f64.powi(-bits);
            // H and the output may each be half a unit off.
            assert!(judge.judge(1.0 + 2.0 * step, at(1.0)).within, "{dtype}");
            assert!(!judge.judge(1.0 + 4.0 * step, at(1.0)).within, "{dtype}");
            let on_cpu = UpdateModel::new(Arithmetic::Cpu, dtype, 1, 1, None);
            let expected = on_cpu.expected(of(0.0, 1.0, 1.0));
            let at = Expected { z: 1.0, y: 1.0, ..expected };
            assert!(!on_cpu.of_sum(false, Activation::None).judge(1.0 + 2.0 * step, at).within, "{dtype}");
        }
    }

    #[test]
    fn a_sequence_may_round_once_more() {
        let one = UpdateModel::new(Arithmetic::TensorCore, DType::Bf16, 64, 8, None);
        let two = UpdateModel { between: Some(1.0), ..one };
        let difference = two.expected(of(4.0, 2.0, 3.0)).inner - one.expected(of(4.0, 2.0, 3.0)).inner;
        assert!((difference / 2f64.powi(-7) - 1.0).abs() < 0.01, "{difference}");
    }

    /// By the roundings of each way, with powers of two.
    #[test]
    fn a_residual_is_rounded_with_the_update_and_before_it_if_its_factor_is_small() {
        let one = UpdateModel::new(Arithmetic::TensorCore, DType::F16, 64, 8, None);
        let of = Magnitudes { base: 4.0, update: 2.0, size: 0.0, sum_of_u: 0.0, residual: 4.0 };
        let more =
            |beta| UpdateModel { between: Some(beta), ..one }.expected(of).inner - one.expected(of).inner;
        let unit = 2f64.powi(-11);
        for (beta, magnitude) in [(2.0, 6.0), (-1.0, 6.0), (0.5, 10.0), (-1e-4, 10.0)] {
            assert!((more(beta) / (magnitude * unit) - 1.0).abs() < 0.01, "{beta}: {}", more(beta));
        }
        // Where g is subnormal, which is multiplied with a large factor and not divided by a small one.
        let of = Magnitudes { base: 0.0, update: 0.0, size: 0.0, sum_of_u: 3.0, residual: 0.0 };
        let inner = |beta| UpdateModel { between: Some(beta), ..one }.expected(of).inner;
        let step = 2f64.powi(-25);
        for (beta, steps) in [(1.0, 3.0 + 1.0), (8.0, 8.0 * 3.0 + 8.0), (0.125, 3.0 + 2.0)] {
            assert!((inner(beta) / (steps * step) - 1.0).abs() < 0.01, "{beta}: {}", inner(beta));
        }
    }

    #[test]
    fn the_f32_claim_is_of_all_magnitudes() {
        let model = UpdateModel::new(Arithmetic::TensorCore, DType::F32, 4096, 64, None);
        let expected = Expected { z: 0.0, y: 0.0, ..model.expected(of(2.0, 0.1, 3.0)) };
        let bound = model.of_sum(true, Activation::None).bound(expected);
        assert!((bound / 5e-5 - 1.0).abs() < 1e-4, "{bound}");
    }
}
