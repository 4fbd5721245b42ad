//! Learning rates that change: pure functions of the step, which counts from 0.
//!
//! Each gives a factor of the learning rate, so that they can be multiplied with each other.
//!
//! ```
//! use warpsmith::optim::schedule;
//!
//! let (steps, warmup) = (1000, 100);
//! let factor = |step| schedule::linear_warmup(step, warmup) * schedule::cosine(step, warmup, steps, 0.1);
//! assert_eq!((factor(49), factor(100), factor(1000)), (0.5, 1.0, 0.1));
//! ```

/// 1, whatever the step is.
#[must_use]
pub const fn constant(_step: u64) -> f64 {
    1.0
}

/// From 1/`warmup` in step 0 to 1 in step `warmup` − 1, and 1 from there on. Without steps of warm-up it is 1.
#[must_use]
pub fn linear_warmup(step: u64, warmup: u64) -> f64 {
    if step >= warmup { 1.0 } else { (step as f64 + 1.0) / warmup as f64 }
}

/// Half a period of a cosine: 1 up to step `start`, `last` from step `end` on.
#[must_use]
pub fn cosine(step: u64, start: u64, end: u64, last: f64) -> f64 {
    match progress(step, start, end) {
        0.0 => 1.0,
        1.0 => last,
        part => last + (1.0 - last) * 0.5 * (1.0 + (std::f64::consts::PI * part).cos()),
    }
}

/// A straight line: 1 up to step `start`, `last` from step `end` on.
#[must_use]
pub fn linear(step: u64, start: u64, end: u64, last: f64) -> f64 {
    match progress(step, start, end) {
        0.0 => 1.0,
        1.0 => last,
        part => 1.0 + (last - 1.0) * part,
    }
}

/// √(`start` / step) from step `start` on, 1 before. Of `start` 0 it is as of 1.
#[must_use]
pub fn inverse_square_root(step: u64, start: u64) -> f64 {
    let start = start.max(1);
    if step <= start { 1.0 } else { (start as f64 / step as f64).sqrt() }
}

/// `factor` to the power of step / `every`, rounded down. Of `every` 0 it is 1.
#[must_use]
pub fn exponential(step: u64, every: u64, factor: f64) -> f64 {
    step.checked_div(every).map_or(1.0, |times| factor.powf(times as f64))
}

/// The part of the way from `start` to `end`, 0 to 1.
fn progress(step: u64, start: u64, end: u64) -> f64 {
    if step >= end {
        1.0
    } else if step <= start {
        0.0
    } else {
        (step - start) as f64 / (end - start) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schedules_begin_and_end_where_they_say() {
        assert_eq!(constant(7), 1.0);
        assert_eq!([0, 1, 3, 4, 100].map(|step| linear_warmup(step, 4)), [0.25, 0.5, 1.0, 1.0, 1.0]);
        assert_eq!(linear_warmup(0, 0), 1.0);
        assert_eq!([0, 10, 20, 30].map(|step| linear(step, 10, 30, 0.2)), [1.0, 1.0, 0.6, 0.2]);
        assert_eq!([0, 10, 30, 99].map(|step| cosine(step, 10, 30, 0.2)), [1.0, 1.0, 0.2, 0.2]);
        assert!((cosine(20, 10, 30, 0.2) - 0.6).abs() < 1e-15);
        assert_eq!([0, 4, 16, 64].map(|step| inverse_square_root(step, 4)), [1.0, 1.0, 0.5, 0.25]);
        assert_eq!([0, 9, 10, 25].map(|step| exponential(step, 10, 0.5)), [1.0, 1.0, 0.5, 0.25]);
    }

    #[test]
    fn any_steps_give_a_factor() {
        for step in [0, 1, u64::MAX] {
            for (start, end) in [(0, 0), (5, 5), (9, 3), (0, u64::MAX), (u64::MAX, u64::MAX)] {
                for factor in [cosine(step, start, end, 0.5), linear(step, start, end, 0.5)] {
                    assert!((0.5..=1.0).contains(&factor), "{step} {start} {end}: {factor}");
                }
                assert!((0.0..=1.0).contains(&inverse_square_root(step, start)));
                assert!((0.0..=1.0).contains(&exponential(step, end, 0.5)));
            }
        }
    }
}
