//! What this GPU reaches at best, measured before anything is compared with it.

use std::rc::Rc;

use anyhow::{Context, Result};
use warpsmith::benchmark::{self, Options};
use warpsmith::{Device, Stream};

use super::case::{Case, Operation, Precision};
use super::cublaslt::CublasLt;
use super::operands::Operands;
use super::suites::Suite;

/// A GPU's ceilings.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ceilings {
    /// Bytes a second, read and written, of a copy within the GPU's memory.
    pub(super) bandwidth: f64,
    /// Floating-point operations a second of the library's largest bf16 product, if the library is there.
    pub(super) flops: Option<f64>,
}

impl Ceilings {
    pub(super) fn measure(
        device: &Device,
        library: Option<&Rc<CublasLt>>,
        options: &Options,
    ) -> Result<Self> {
        let bandwidth = benchmark::copy_bandwidth(device, options).context("measuring the bandwidth")?;
        device.release_memory()?;
        let stream = device.default_stream();
        let flops = library.map(|library| product(&stream, library, options)).transpose()?.flatten();
        device.release_memory()?;
        Ok(Self { bandwidth, flops })
    }

    /// The least time that the ceilings allow for a case.
    pub(super) fn least_seconds(&self, case: &Case) -> f64 {
        let computing = self.flops.map_or(0.0, |rate| case.flops() * case.precision.slowdown() / rate);
        computing.max(case.bytes() / self.bandwidth)
    }
}

/// The rate of a large product.
fn product(stream: &Stream, library: &Rc<CublasLt>, options: &Options) -> Result<Option<f64>> {
    const SIDE: usize = 8192;
    let case = Case {
        suite: Suite::Main,
        operation: Operation::PRODUCT,
        precision: Precision::Bf16,
        shape: [SIDE; 3],
    };
    let operands = Rc::new(Operands::new(stream, case)?);
    let Some(mut product) = library.fastest(&operands, Operation::PRODUCT)? else { return Ok(None) };
    let timing = benchmark::interleaved(stream, &mut [&mut product], options)?[0];
    Ok(Some(case.flops() / timing.median.as_secs_f64()))
}

#[cfg(test)]
mod tests {
    use super::{Case, Ceilings, Operation, Precision, Suite};

    #[test]
    fn the_tighter_ceiling_counts() {
        let ceilings = Ceilings { bandwidth: 1e12, flops: Some(2e12) };
        let case =
            |precision, shape| Case { suite: Suite::Main, operation: Operation::PRODUCT, precision, shape };
        assert_eq!(ceilings.least_seconds(&case(Precision::Bf16, [1000; 3])), 1e-3);
        assert_eq!(ceilings.least_seconds(&case(Precision::F32, [1000; 3])), 6e-3);
        assert_eq!(ceilings.least_seconds(&case(Precision::F8, [1000; 3])), 5e-4);
        let bytes = 2.0 * (1.0 + 1e6 + 1e6);
        assert_eq!(ceilings.least_seconds(&case(Precision::Bf16, [1, 1, 1_000_000])), (bytes) / 1e12);
    }
}
