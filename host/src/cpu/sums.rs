//! Sums of many numbers.

use std::ops::Range;

use super::number::Accumulator;

/// Numbers that are added one after the other.
const BLOCK: usize = 32;

/// The sum of f(i): halves are summed first, so that the error grows with the logarithm of their number.
pub(crate) fn pairwise<A: Accumulator>(range: Range<usize>, f: &impl Fn(usize) -> A) -> A {
    if range.len() <= BLOCK {
        return range.map(f).fold(A::zero(), |sum, number| sum + number);
    }
    let middle = range.start + range.len() / 2;
    pairwise(range.start..middle, f) + pairwise(middle..range.end, f)
}

/// The larger number; NaN if either is NaN.
pub(crate) fn max_nan<A: Accumulator>(a: A, b: A) -> A {
    if a.is_nan() || a > b { a } else { b }
}

#[cfg(test)]
mod tests {
    use super::{max_nan, pairwise};

    #[test]
    fn every_number_is_added_once_and_few_errors_add_up() {
        for n in [0, 1, 31, 32, 33, 1000] {
            let sum: f64 = pairwise(0..n, &|i| i as f64);
            assert_eq!(sum, (n * n.saturating_sub(1) / 2) as f64);
        }
        // One after the other they would stop to rise at 2²⁴.
        let ones: f32 = pairwise(0..1 << 25, &|_| 1.0);
        assert_eq!(ones, 33_554_432.0);
    }

    #[test]
    fn the_largest_is_nan_if_any_is() {
        assert!(max_nan(f32::NAN, 1.0).is_nan() && max_nan(1.0, f32::NAN).is_nan());
        assert_eq!((max_nan(1.0f32, 2.0), max_nan(2.0f32, 1.0)), (2.0, 2.0));
    }
}
