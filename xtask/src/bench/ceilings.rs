//! What this GPU reaches at best, by this very run: the bytes of a copy, which is measured first, and each type's fastest product.

use super::case::{Case, Precision};

/// A GPU's ceilings.
#[derive(Clone, Debug)]
pub(super) struct Ceilings {
    /// Bytes a second, read and written, of a copy within the GPU's memory.
    pub(super) bandwidth: f64,
    /// The highest rates so far in operations a second, ours and the baselines' of all sizes.
    rates: Vec<(Precision, f64)>,
}

impl Ceilings {
    pub(super) const fn new(bandwidth: f64) -> Self {
        Self { bandwidth, rates: Vec::new() }
    }

    /// Notes what a case took, or the products of one.
    pub(super) fn note(&mut self, case: &Case, seconds: f64) {
        let rate = case.flops() / seconds;
        match self.rates.iter_mut().find(|(precision, _)| *precision == case.precision) {
            Some((_, highest)) => *highest = highest.max(rate),
            None => self.rates.push((case.precision, rate)),
        }
    }

    /// The highest rate in a type, in operations a second, if there was any.
    pub(super) fn flops(&self, precision: Precision) -> Option<f64> {
        self.rates.iter().find(|(noted, _)| *noted == precision).map(|&(_, rate)| rate)
    }

    /// The least time that the ceilings allow for a case.
    pub(super) fn least_seconds(&self, case: &Case) -> f64 {
        let computing = self.flops(case.precision).map_or(0.0, |rate| case.flops() / rate);
        computing.max(case.bytes() / self.bandwidth)
    }

    /// The types' rates, in words.
    pub(super) fn print(&self) {
        let rates =
            self.rates.iter().map(|(precision, rate)| format!("{} {:.0}", precision.name(), rate * 1e-12));
        println!("Highest rates of this run in TFLOP/s: {}", rates.collect::<Vec<_>>().join(", "));
    }
}

#[cfg(test)]
mod tests {
    use super::{Case, Ceilings, Precision};
    use crate::bench::case::Operation;
    use crate::bench::suites::Suite;

    fn case(precision: Precision, shape: [usize; 3]) -> Case {
        Case { suite: Suite::Main, operation: Operation::PRODUCT, precision, shape }
    }

    #[test]
    fn the_tighter_ceiling_counts() {
        let mut ceilings = Ceilings::new(1e12);
        let square = case(Precision::Bf16, [1000; 3]);
        assert_eq!(ceilings.least_seconds(&square), 6e6 / 1e12, "bytes alone, until a rate is known");
        ceilings.note(&square, 1e-3);
        assert_eq!(ceilings.least_seconds(&square), 1e-3);
        let bytes = 2.0 * (1.0 + 1e6 + 1e6);
        assert_eq!(ceilings.least_seconds(&case(Precision::Bf16, [1, 1, 1_000_000])), (bytes) / 1e12);
    }

    #[test]
    fn each_type_has_the_highest_of_its_own_rates() {
        let mut ceilings = Ceilings::new(1e12);
        for (precision, side, seconds) in
            [(Precision::Bf16, 1000, 1e-3), (Precision::Bf16, 100, 1e-8), (Precision::Bf16, 1000, 1e-2)]
        {
            ceilings.note(&case(precision, [side; 3]), seconds);
        }
        ceilings.note(&case(Precision::F32, [1000; 3]), 4e-3);
        // Nothing of the run lies above its ceiling.
        assert_eq!(ceilings.flops(Precision::Bf16), Some(2e6 / 1e-8));
        assert_eq!(ceilings.flops(Precision::F32), Some(2e9 / 4e-3));
        assert_eq!(ceilings.flops(Precision::F8), None);
    }
}
