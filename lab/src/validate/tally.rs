//! Judgements of many results, added up to an outcome.

use warpsmith::ops::Implementation;

use super::{Outcome, Worst};
use crate::bound::Judgement;

/// Judgements, added up.
pub(super) struct Tally {
    pub(super) outcome: Outcome,
    /// The largest finite reference, in magnitude.
    largest: f64,
}

impl Tally {
    pub(super) fn new(implementation: Implementation, exact: bool) -> Self {
        let outcome = Outcome {
            implementation,
            compared: 0,
            max_absolute_error: 0.0,
            max_relative_error: 0.0,
            worst: None,
            exact,
            failures: 0,
            stray_writes: 0,
        };
        Self { outcome, largest: 0.0 }
    }

    /// Compares a number with what is expected, exactly and rounded.
    pub(super) fn add(
        &mut self,
        [row, column]: [usize; 2],
        got: f64,
        [expected, rounded]: [f64; 2],
        judge: impl FnOnce(f64) -> Judgement,
    ) {
        let outcome = &mut self.outcome;
        let (error, bound, within) = if outcome.exact {
            ((got - rounded).abs(), 0.0, got == rounded)
        } else {
            let judgement = judge(got);
            (judgement.error, judgement.bound, judgement.within)
        };
        // A NaN is as wrong as can be; `f64::max` would pass over it.
        let error = if error.is_nan() { f64::INFINITY } else { error };
        outcome.failures += usize::from(!within);
        outcome.max_absolute_error = outcome.max_absolute_error.max(error);
        if expected.is_finite() {
            self.largest = self.largest.max(expected.abs());
        }
        let ratio = match (error, within) {
            (0.0, true) => 0.0,
            (_, true) => (error / bound).min(1.0),
            // Both infinite: a bound that overflowed is no bound.
            (_, false) if error == f64::INFINITY => f64::INFINITY,
            (_, false) => (error / bound).max(1.0 + f64::EPSILON),
        };
        if outcome.worst.is_none_or(|worst| ratio > worst.ratio) {
            outcome.worst = Some(Worst { row, column, got, expected, bound, ratio });
        }
    }

    pub(super) fn finish(self) -> Outcome {
        let error = self.outcome.max_absolute_error;
        let max_relative_error = if error == 0.0 { 0.0 } else { error / self.largest };
        Outcome { max_relative_error, ..self.outcome }
    }
}
