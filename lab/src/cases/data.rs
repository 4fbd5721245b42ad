//! Inputs for validation: reproducible from a seed on every platform, and independent of the number of threads.

use ndarray::Array2;
use rayon::prelude::*;
use warpsmith::Device;
use warpsmith::error::{Error, Result};

/// What the inputs of a validation are drawn from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Data {
    /// Evenly from [−1, 1), rounded to the input type. Results are compared with a derived bound.
    #[default]
    Uniform,
    /// Integers small enough that every partial sum is exact in f32. Results must be exactly right.
    Integers,
    /// As `Uniform`, but some numbers are zero, and few are infinite or NaN. Results must be infinite and NaN where the exact ones are.
    Infinities,
    /// Numbers of every size from the smallest subnormal one to 2⁵⁷, as many of each power of two. Results are compared with the bound.
    Exponents,
}

/// A 64-bit hash of `index`, the `index`-th value of the SplitMix64 sequence from `seed` (Steele, Lea and Flood, 2014).
pub(crate) fn split_mix(seed: u64, index: u64) -> u64 {
    let mut z = seed.wrapping_add(index.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Data {
    /// The largest magnitude of an integer input for sums of `k` products.
    ///
    /// `k` products of two such integers, and an integer bias, stay below 2²³, so each partial sum (and half of it) is an exact
    /// f32. They are at most 8, so that they are exact in every input type, with nothing left for a small part.
    fn largest_integer(k: usize) -> u64 {
        (1..=8u64).rev().find(|&a| (k as u64).saturating_mul(a * a) < (1 << 22)).unwrap_or(1)
    }

    /// `rows` × `columns` elements for sums of `k` products; `stream` keeps the operands of one case apart.
    pub(crate) fn draw<T: Send>(
        self,
        seed: u64,
        stream: u64,
        (rows, columns): (usize, usize),
        k: usize,
        convert: fn(f32) -> T,
    ) -> Result<Array2<T>> {
        let seed = split_mix(seed, stream);
        let largest = Self::largest_integer(k);
        let element = |index: usize| {
            let bits = split_mix(seed, index as u64);
            convert(match self {
                // 24 random bits, so that an f32 holds each value exactly.
                Self::Uniform => ((bits >> 40) as f32 - 8_388_608.0) / 8_388_608.0,
                Self::Integers => ((bits >> 32) % (2 * largest + 1)) as f32 - largest as f32,
                Self::Infinities => with_infinities(bits, k),
                Self::Exponents => of_every_size(bits),
            })
        };
        let mut values = reserved((rows, columns))?;
        values.par_extend((0..rows * columns).into_par_iter().map(element));
        array((rows, columns), values)
    }
}

/// A number of [`Data::Infinities`]: one in a few sums of `k` products has one that is not finite.
fn with_infinities(bits: u64, k: usize) -> f32 {
    let uniform = ((bits >> 40) as f32 - 8_388_608.0) / 8_388_608.0;
    let rare = (bits & 0xff_ffff) as f64 / f64::from(1 << 24) * (4 * k + 16) as f64;
    match (rare as u64, bits >> 28 & 7) {
        (0, 0) => f32::NAN,
        // What TF32 keeps of it is an infinity.
        (0, 1) => f32::from_bits(0x7f80_0001),
        (0, 2..=4) => f32::INFINITY,
        (0, _) => f32::NEG_INFINITY,
        // Infinity times zero is NaN, too.
        (_, 0) if bits >> 24 & 15 < 4 => 0.0,
        _ => uniform,
    }
}

/// A number of [`Data::Exponents`].
fn of_every_size(bits: u64) -> f32 {
    let exponent = (bits & 0xffff) % 206;
    // Significands of 24 bits times powers of two from 2⁻¹⁷²; what is too small becomes subnormal, or zero.
    let significand = ((bits >> 40) | 1 << 23) as f64;
    let sign = if bits >> 32 & 1 == 1 { -1.0 } else { 1.0 };
    (sign * significand * 2f64.powi(exponent as i32 - 172)) as f32
}

/// An array of `shape` with every element `value`.
pub(crate) fn filled<T: Clone>(shape: (usize, usize), value: T) -> Result<Array2<T>> {
    let mut values = reserved(shape)?;
    values.resize(shape.0 * shape.1, value);
    array(shape, values)
}

/// An empty vector with room for the elements of `shape`, whose product does not overflow after this.
fn reserved<T>((rows, columns): (usize, usize)) -> Result<Vec<T>> {
    let bytes = rows.saturating_mul(columns).saturating_mul(size_of::<T>());
    let mut values = Vec::new();
    values.try_reserve_exact(rows.saturating_mul(columns)).map_err(|_| out_of_memory(bytes))?;
    Ok(values)
}

/// The error for bytes that the host does not have.
fn out_of_memory(bytes: usize) -> Error {
    let memory = Device::cpu().memory_stats().ok();
    Error::OutOfMemory {
        operation: "drawing a case's operands",
        device: "the host".into(),
        requested: bytes as u64,
        free: memory.map_or(0, |memory| memory.free),
        total: memory.map_or(0, |memory| memory.total),
    }
}

fn array<T>((rows, columns): (usize, usize), values: Vec<T>) -> Result<Array2<T>> {
    Array2::from_shape_vec((rows, columns), values).map_err(|error| Error::SizeLimit {
        operation: "drawing a case's operands",
        operand: "matrix",
        quantity: "shape",
        limit: error.to_string(),
        actual: format!("{rows} × {columns}"),
    })
}

#[cfg(test)]
mod tests {
    use super::Data;

    #[test]
    fn uniform_data_fills_its_range_evenly() {
        let drawn = Data::Uniform.draw(7, 0, (1000, 100), 100, |v| v).expect("it fits");
        assert!(drawn.iter().all(|v| (-1.0..1.0).contains(v)));
        assert!(drawn.mean().is_some_and(|mean| mean.abs() < 0.01));
        let variance = drawn.iter().map(|v| f64::from(v * v)).sum::<f64>() / 1e5;
        assert!((variance - 1.0 / 3.0).abs() < 0.01, "{variance}");
    }

    #[test]
    fn integer_sums_stay_exact_for_every_length() {
        for k in [0, 1, 1000, 65_536, 1 << 20, 1 << 21] {
            let largest = Data::largest_integer(k);
            assert!(largest >= 1 && k as u64 * largest * largest + largest < 1 << 23, "{k}");
        }
        let drawn = Data::Integers.draw(7, 1, (100, 100), 64, |v| v).expect("it fits");
        assert!(drawn.iter().all(|v| v.fract() == 0.0 && v.abs() <= 8.0));
        assert!(drawn.iter().any(|&v| v == 8.0) && drawn.iter().any(|&v| v == -8.0));
    }

    #[test]
    fn infinities_are_few_and_sizes_are_all() {
        let drawn = Data::Infinities.draw(3, 0, (1000, 100), 4, |v| v).expect("it fits");
        let count = |is: fn(&&f32) -> bool| drawn.iter().filter(is).count();
        assert!(count(|v| v.is_nan()) > 300 && count(|v| **v == f32::INFINITY) > 300);
        assert!(count(|v| **v == f32::NEG_INFINITY) > 300 && count(|v| **v == 0.0) > 300);
        assert!(count(|v| v.is_finite()) > 90_000);
        let drawn = Data::Exponents.draw(3, 0, (1000, 100), 4, |v| v).expect("it fits");
        assert!(
            drawn.iter().all(|v| v.abs() < 2f32.powi(57)) && drawn.iter().any(|v| v.abs() > 2f32.powi(55))
        );
        assert!(drawn.iter().any(|v| v.is_subnormal()) && drawn.iter().any(|v| v.abs() == f32::from_bits(1)));
    }

    #[test]
    fn streams_and_seeds_differ_and_repeat() {
        let draw = |seed, stream| Data::Uniform.draw(seed, stream, (4, 4), 4, |v| v).expect("it fits");
        assert_eq!(draw(1, 0), draw(1, 0));
        assert_ne!(draw(1, 0), draw(1, 1));
        assert_ne!(draw(1, 0), draw(2, 0));
    }
}
