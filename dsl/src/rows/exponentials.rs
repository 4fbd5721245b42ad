//! Sums of exponentials of rows, relative to their largest.

// Loops over registers index arrays by constants: an iterator by value would be an array in local memory.
#![allow(clippy::needless_range_loop)]

use crate::ptx;

/// The largest of some numbers z, and the sum of 2^((z − largest) · factor) over them.
///
/// Numbers are subtracted before the factor is applied: the exponent's error is a few units in the last place of the exponent itself, however large the numbers
/// are. As the largest only rises, exponents of one number to several largest ones add up to that to the last.
#[derive(Clone, Copy)]
pub struct Exponentials {
    /// The largest so far: −∞ before the first number, NaN if any is NaN.
    pub max: f32,
    /// The sum. It is 0 if all numbers are −∞, and NaN if any is NaN or ∞.
    pub sum: f32,
}

/// What is taken off numbers of which `max` is the largest: −∞ off −∞ would be NaN.
#[inline(always)]
fn base(max: f32) -> f32 {
    if max == f32::NEG_INFINITY { 0.0 } else { max }
}

impl Exponentials {
    /// Of no numbers.
    pub const NONE: Self = Self { max: f32::NEG_INFINITY, sum: 0.0 };
    /// Partial sums, so that additions do not wait for each other.
    const PARTS: usize = 4;

    /// The exponential of a number relative to the largest, which may be this one's or a larger one.
    #[inline(always)]
    #[must_use]
    pub fn of(z: f32, max: f32, factor: f32) -> f32 {
        ptx::ex2_approx_ftz((z - base(max)) * factor)
    }

    /// Makes this relative to the largest of its numbers and of others, `max`, which are to be added.
    #[inline(always)]
    pub fn raise(&mut self, max: f32, factor: f32) {
        let max = ptx::max_nan(self.max, max);
        self.sum *= Self::of(self.max, max, factor);
        self.max = max;
    }

    /// Adds numbers, which this has been raised for: −∞ adds nothing.
    #[inline(always)]
    pub fn add<const PER: usize>(&mut self, z: &[f32; PER], factor: f32) {
        let mut sums = [0.0; Self::PARTS];
        for j in 0..PER {
            sums[j % Self::PARTS] += Self::of(z[j], self.max, factor);
        }
        self.sum += (sums[0] + sums[1]) + (sums[2] + sums[3]);
    }
}
