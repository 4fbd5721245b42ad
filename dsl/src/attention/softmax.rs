//! The softmax of rows whose scores come in parts.

use crate::ptx::{self, Accumulators};
use crate::reduce::quad_sum;
use crate::tile::registers::{Fragment, ROWS};

/// Log₂ e.
pub const LOG2_E: f32 = core::f32::consts::LOG2_E;
const LN_2: f32 = core::f32::consts::LN_2;
/// From this exponent on the rounding of a product shows in the difference to it.
const LARGE: f32 = (1u32 << 20) as f32;

/// What scores are relative to, of which this is the largest. If it is −∞, the difference would be no number.
#[inline(always)]
fn reference(largest: f32) -> f32 {
    if largest == f32::NEG_INFINITY { 0.0 } else { largest }
}

/// What is known of a thread's two rows so far. Scores are in units of `factor` · log 2, as [`weigh`](Self::weigh) is told.
#[derive(Clone, Copy)]
pub struct OnlineSoftmax {
    /// The largest score of each row; −∞ if there is none but −∞.
    largest: [f32; ROWS],
    /// The sum of this thread's weights of each row, which are relative to that of the largest score.
    sum: [f32; ROWS],
}

/// What a row's weighted sum is divided by, and the logarithm of what its weights add up to.
#[derive(Clone, Copy)]
pub struct Total {
    /// The reciprocal of the sum of weights; 0 if there are none.
    pub scale: f32,
    /// The natural logarithm of the sum of the exponentials of scores; −∞ if there are none.
    pub lse: f32,
}

impl OnlineSoftmax {
    /// No scores.
    #[inline(always)]
    #[must_use]
    pub fn empty() -> Self {
        Self { largest: [f32::NEG_INFINITY; ROWS], sum: [0.0; ROWS] }
    }

    /// Makes scores weights, `2^(factor · (score − largest))`, and returns what sums over earlier weights are multiplied by. `factor` is positive.
    ///
    /// # Safety
    ///
    /// All lanes of the warp call it.
    #[inline(always)]
    pub unsafe fn weigh<C: Accumulators>(&mut self, scores: &mut Fragment<C>, factor: f32) -> [f32; ROWS] {
        // SAFETY: the caller's promise.
        let largest = unsafe { scores.max_of_rows(self.largest) };
        let mut scales = [0.0; ROWS];
        for row in 0..ROWS {
            // Of a difference, so that sums of a row whose largest score stays are not touched.
            scales[row] = ptx::ex2_approx_ftz((self.largest[row] - reference(largest[row])) * factor);
        }
        let mut base = [reference(largest[0]) * factor, reference(largest[1]) * factor];
        // A product is rounded, but the fused difference to it is not. Where its error is no small exponent, scores are made small before.
        if base[0].abs().max(base[1].abs()) >= LARGE {
            scores.map(|score, row, _| score - reference(largest[row]));
            base = [0.0; ROWS];
        }
        scores.map(|score, row, _| ptx::ex2_approx_ftz(ptx::fma(score, factor, -base[row])));
        let sums = scores.partial_sums();
        for row in 0..ROWS {
            self.sum[row] = ptx::fma(self.sum[row], scales[row], sums[row]);
        }
        self.largest = largest;
        scales
    }

    /// The largest score of each row.
    #[inline(always)]
    #[must_use]
    pub fn largest(&self) -> [f32; ROWS] {
        self.largest
    }

    /// Makes weights relative to other scores, none of which is below those so far; returns what sums over the weights are multiplied by.
    #[inline(always)]
    pub fn rebase(&mut self, largest: [f32; ROWS], factor: f32) -> [f32; ROWS] {
        let mut scales = [0.0; ROWS];
        for row in 0..ROWS {
            scales[row] = ptx::ex2_approx_ftz((self.largest[row] - reference(largest[row])) * factor);
            self.sum[row] *= scales[row];
        }
        self.largest = largest;
        scales
    }

    /// The sum of the weights of each row, the same in all lanes of a quad.
    ///
    /// # Safety
    ///
    /// All lanes of the warp call it.
    #[inline(always)]
    #[must_use]
    pub unsafe fn row_sums(&self) -> [f32; ROWS] {
        // SAFETY: the caller's promise.
        self.sum.map(|sum| unsafe { quad_sum(sum) })
    }

    /// Has these sums instead, of the lane of a quad that `has_them`.
    #[inline(always)]
    pub fn set_row_sums(&mut self, sums: [f32; ROWS], has_them: bool) {
        self.sum = sums.map(|sum| if has_them { sum } else { 0.0 });
    }

    /// The totals of both rows, of scores in units of `factor` · log 2, where each row may have one more score without a value, in natural units.
    ///
    /// # Safety
    ///
    /// All lanes of the warp call it.
    #[inline(always)]
    #[must_use]
    pub unsafe fn finish(self, factor: f32, sinks: Option<[f32; ROWS]>) -> [Total; ROWS] {
        core::array::from_fn(|row| {
            // SAFETY: the caller's promise.
            let sum = unsafe { quad_sum(self.sum[row]) };
            // In natural units.
            let largest = self.largest[row] * (factor * LN_2);
            let (base, scale, sum) = match sinks.map(|sinks| sinks[row]) {
                None => (largest, 1.0, sum),
                Some(sink) => {
                    let base = largest.max(sink);
                    let [scale, of_sink] =
                        [largest, sink].map(|score| ptx::ex2_approx_ftz((score - reference(base)) * LOG2_E));
                    (base, scale, ptx::fma(sum, scale, of_sink))
                }
            };
            if sum == 0.0 {
                Total { scale: 0.0, lse: f32::NEG_INFINITY }
            } else {
                let lse = ptx::fma(ptx::lg2_approx_ftz(sum), LN_2, base);
                Total { scale: scale / sum, lse }
            }
        })
    }
}
