//! Measuring the selection of top-k.

use half::{bf16, f16};
use warpsmith::device::Device;
use warpsmith::error::{Error, Result};
use warpsmith::ops::topk::TopkElement;
use warpsmith::ops::{self, Implementation};
use warpsmith::tensor::{DType, Tensor};
use warpsmith::weights::FloatElement;

use super::{Options, Timing, interleaved, sets_beyond_cache};
use crate::cases::TopkCase;

/// The operation's name in errors.
const OPERATION: &str = "benchmark::topk";

/// What a measurement of a selection found.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TopkMeasurement {
    /// What ran.
    pub implementation: Implementation,
    /// The time of the operation.
    pub timing: Timing,
    /// Bytes that it must read and write.
    pub bytes: f64,
}

/// Measures one selection on `device`; the rows rotate, so that every launch reads others.
///
/// # Errors
///
/// [`Error::Type`] if the case's type is not f16, bf16 or f32, [`Error::OutOfMemory`] if the host or the device cannot hold the rows;
/// otherwise whatever the operation returns.
pub fn topk(device: &Device, case: &TopkCase, options: &Options) -> Result<TopkMeasurement> {
    match case.dtype {
        DType::F16 => measure::<f16>(device, case, options),
        DType::Bf16 => measure::<bf16>(device, case, options),
        DType::F32 => measure::<f32>(device, case, options),
        actual => Err(Error::Type {
            operation: OPERATION,
            operand: "x",
            expected: "f16, bf16 or f32".into(),
            actual,
        }),
    }
}

fn measure<T: TopkElement + FloatElement>(
    device: &Device,
    case: &TopkCase,
    options: &Options,
) -> Result<TopkMeasurement> {
    let TopkCase { rows, columns, k, .. } = *case;
    let read = rows.saturating_mul(columns).saturating_mul(size_of::<T>());
    let written = rows.saturating_mul(k).saturating_mul(size_of::<T>() + size_of::<u32>());
    let bytes = read.saturating_add(written);
    let draw = |set: usize| -> Result<Tensor<T>> {
        let drawn = case.data.draw(case.seed, set as u64, (rows, columns), 1, f64::from)?;
        Tensor::from_array(device, &drawn.mapv(T::round))
    };
    let count = sets_beyond_cache(device, bytes as u64);
    let sets = (0..count).map(draw).collect::<Result<Vec<_>>>()?;
    let implementation = ops::topk(&sets[0], k).implementation()?;
    let stream = device.default_stream();
    let mut launch =
        |index: usize| ops::topk(&sets[index % sets.len()], k).on(&stream).run().map(|_results| ());
    let timings = interleaved(&stream, &mut [&mut launch], options)?;
    Ok(TopkMeasurement { implementation, timing: timings[0], bytes: bytes as f64 })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use warpsmith::ops::Implementation;
    use warpsmith::{DType, Device};

    use super::topk;
    use crate::benchmark::Options;
    use crate::cases::{Data, TopkCase};

    #[test]
    fn a_measurement_counts_what_is_read_and_written() {
        let options = Options { warm_up: Duration::ZERO, samples: 1, batch: Duration::ZERO };
        let case = TopkCase { dtype: DType::Bf16, rows: 5, columns: 40, k: 3, data: Data::Uniform, seed: 1 };
        let measured = topk(&Device::cpu(), &case, &options).expect("it fits");
        assert_eq!(measured.implementation, Implementation::Cpu);
        assert_eq!(measured.bytes, 5.0 * (40.0 * 2.0 + 3.0 * 6.0));
        assert!(topk(&Device::cpu(), &TopkCase { dtype: DType::U8, ..case }, &options).is_err());
    }
}
