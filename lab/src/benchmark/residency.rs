//! Measuring experts in host memory, by the share of them that a cache on the device holds.
//!
//! A step evaluates a layer's experts for a set of tokens, from the ids on the device to the outputs. The ids are new in every step, so that what a
//! cache of a share of the rows holds is what its replacement keeps of an unending sequence of such steps. The host takes part in a
//! step, by deciding which rows are copied: steps are timed one by one by the host's clock.

use std::time::{Duration, Instant};

use half::{bf16, f16};
use rayon::prelude::*;
use warpsmith::device::Device;
use warpsmith::error::{Error, Result};
use warpsmith::layers::Experts;
use warpsmith::memory::PinnedBuffer;
use warpsmith::ops::Implementation;
use warpsmith::ops::peer::{ExpertInput, ExpertLayout, Routing};
use warpsmith::peer::{CacheOptions, CachedRows};
use warpsmith::stream::Stream;
use warpsmith::tensor::{DType, Tensor};
use warpsmith::weights::FloatElement;

use super::peer::for_drawn_rows;
use super::{Options, Timing};
use crate::cases::PeerSizes;
use crate::cases::{Data, split_mix};

/// The operation's name in errors.
const OPERATION: &str = "benchmark::residency";
/// Bytes of a copy that measures the link, at most.
const LINK_BYTES: usize = 256 << 20;
/// Such copies.
const LINK_COPIES: usize = 7;
/// Steps before the first one that counts, at least.
const FEWEST_STEPS: usize = 2;

/// How often experts are used.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Popularity {
    /// Each as often as any other.
    Uniform,
    /// The one in place r, from 1 on, in proportion to r to the power of minus this exponent. Places have nothing to do with ids.
    Zipf(f64),
}

/// What to measure: a share of the experts that are resident, and how often each is used.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ResidencyPoint {
    /// The share of the experts that the cache holds, above 0 and at most 1.
    pub share: f64,
    /// How often experts are used.
    pub popularity: Popularity,
}

/// What was found for a point.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ResidencyMeasurement {
    /// The time of a step.
    pub timing: Timing,
    /// How many experts the cache holds.
    pub slots: usize,
    /// Uses of experts that the cache held, over all.
    pub hit_rate: f64,
    /// Bytes of rows that the link carries in a step: those that are copied, and those that are read where they are, each once.
    pub missed: f64,
    /// Bytes that the link carries in a second, as measured by copies from pinned memory.
    pub link: f64,
    /// What evaluates the experts, once for each chunk of tokens.
    pub implementation: Implementation,
}

impl ResidencyMeasurement {
    /// The time that the link takes for what it carries in a step.
    #[must_use]
    pub fn link_time(&self) -> Duration {
        Duration::try_from_secs_f64(self.missed / self.link).unwrap_or_default()
    }
}

/// Measures a layer's experts in pinned host memory for each of `points`: `sizes.tokens` tokens a step, of `sizes.dtype`. An error of a point is its
/// result, and those after it are measured all the same.
///
/// The host's memory holds all rows, that of the device as many as the two largest caches. Samples are `options.samples` steps for each point, after
/// `options.warm_up` of others.
///
/// # Errors
///
/// [`Error::Type`] if the element type is not f16, bf16 or f32, [`Error::OutOfMemory`] if the host cannot hold the experts; otherwise
/// whatever allocating and copying return.
pub fn residency(
    device: &Device,
    sizes: &PeerSizes,
    points: &[ResidencyPoint],
    options: &Options,
) -> Result<Vec<Result<ResidencyMeasurement>>> {
    match sizes.dtype {
        DType::F16 => measure::<f16>(device, sizes, points, options),
        DType::Bf16 => measure::<bf16>(device, sizes, points, options),
        DType::F32 => measure::<f32>(device, sizes, points, options),
        actual => Err(Error::Type {
            operation: OPERATION,
            operand: "x",
            expected: "f16, bf16 or f32".into(),
            actual,
        }),
    }
}

fn measure<T: ExpertInput + FloatElement>(
    device: &Device,
    sizes: &PeerSizes,
    points: &[ResidencyPoint],
    options: &Options,
) -> Result<Vec<Result<ResidencyMeasurement>>> {
    let stream = device.default_stream();
    let layout = ExpertLayout::new(sizes.format, sizes.input, 1, sizes.output, false)?;
    let cache = CacheOptions::default().slots(1).managed(false);
    let mut rows = CachedRows::new(device, sizes.experts(), layout.row_bytes(), &cache)?;
    for_drawn_rows(layout, sizes, |first, values| rows.write(first, values))?;
    let x = Data::Uniform.draw(0, 0, (sizes.tokens, sizes.input), 1, f64::from)?;
    let shape = [sizes.tokens, sizes.heads, sizes.top_k];
    let gates = vec![1.0 / sizes.top_k.max(1) as f32; shape.iter().product()];
    let table = Table {
        experts: Experts::in_rows(layout, rows)?,
        x: Tensor::from_array(device, &x.mapv(T::round))?,
        gates: Tensor::from_slice(device, &gates, shape)?,
        link: link_bandwidth(&stream, sizes.experts().saturating_mul(layout.row_bytes()))?,
        stream,
    };
    let numbered = (0u64..).zip(points);
    Ok(numbered.map(|(number, point)| table.measure(point, split_mix(1, number), options)).collect())
}

/// Experts in host memory, and tokens.
struct Table<T: ExpertInput> {
    experts: Experts,
    x: Tensor<T>,
    gates: Tensor<f32>,
    link: f64,
    stream: Stream,
}

impl<T: ExpertInput> Table<T> {
    fn measure(&self, point: &ResidencyPoint, seed: u64, options: &Options) -> Result<ResidencyMeasurement> {
        let (experts, count) = (&self.experts, self.experts.count());
        let sampler = Sampler::new(point.popularity, count)?;
        experts.resize_cache(slots(point.share, count)?)?;
        let mut seeds = (0..).map(|step| split_mix(seed, step));
        let mut step = || self.step(&sampler, seeds.next().unwrap_or_default());
        let (start, mut warm) = (Instant::now(), 0);
        while warm < FEWEST_STEPS || start.elapsed() < options.warm_up {
            step()?;
            warm += 1;
        }
        let before = experts.statistics().unwrap_or_default();
        let samples = (0..options.samples.max(1)).map(|_| step()).collect::<Result<Vec<_>>>()?;
        let after = experts.statistics().unwrap_or_default();
        let requests = after.requests - before.requests;
        let directly = (after.pin_failures - before.pin_failures) * experts.layout().row_bytes() as u64;
        let carried = after.bytes_in - before.bytes_in + directly;
        Ok(ResidencyMeasurement {
            slots: experts.capacity(),
            hit_rate: (after.hits - before.hits) as f64 / requests.max(1) as f64,
            missed: carried as f64 / samples.len() as f64,
            link: self.link,
            implementation: experts.implementation(&self.x, &self.routing(&sampler, seed)?)?,
            timing: Timing::of(samples, 1),
        })
    }

    fn routing(&self, sampler: &Sampler, seed: u64) -> Result<Routing> {
        let ids = sampler.draw(seed, self.gates.len());
        let ids = Tensor::from_slice(self.gates.device(), &ids, self.gates.shape())?;
        Ok(Routing { ids, gates: self.gates.clone() })
    }

    /// The time of one step.
    fn step(&self, sampler: &Sampler, seed: u64) -> Result<Duration> {
        let routing = self.routing(sampler, seed)?;
        self.stream.synchronize()?;
        let start = Instant::now();
        let y = self.experts.forward_on(&self.x, &routing, &self.stream)?;
        self.stream.synchronize()?;
        let elapsed = start.elapsed();
        drop(y);
        Ok(elapsed)
    }
}

/// How many of `count` experts are a share of them: at least one.
fn slots(share: f64, count: usize) -> Result<usize> {
    if !(share > 0.0 && share <= 1.0) {
        return Err(Error::Argument {
            operation: OPERATION,
            argument: "share",
            expected: "above 0 and at most 1".into(),
            actual: share.to_string(),
        });
    }
    Ok(((share * count as f64).round() as usize).max(1))
}

/// The rate of copies from pinned memory, in bytes a second: the median's.
fn link_bandwidth(stream: &Stream, most: usize) -> Result<f64> {
    let bytes = most.clamp(1 << 16, LINK_BYTES);
    let mut from = PinnedBuffer::<u8>::zeros(stream.device(), bytes)?;
    let mut to = Tensor::<u8>::zeros_on(stream, [bytes])?;
    let mut times = Vec::new();
    for _ in 0..LINK_COPIES {
        let start = stream.record()?;
        let copy = to.copy_from_pinned(from, stream)?;
        let end = stream.record()?;
        from = copy.wait()?;
        times.push(end.elapsed_since(&start)?);
    }
    Ok(bytes as f64 / Timing::of(times, 1).median.as_secs_f64().max(1e-9))
}

/// Draws experts.
#[derive(Debug)]
struct Sampler {
    count: u64,
    /// For popularities that differ: sums of the weights of the first places, and whose places they are.
    places: Option<(Vec<f64>, Vec<u32>)>,
}

impl Sampler {
    fn new(popularity: Popularity, count: usize) -> Result<Self> {
        let places = match popularity {
            Popularity::Uniform => None,
            Popularity::Zipf(exponent) if exponent.is_finite() && exponent >= 0.0 => {
                let mut sum = 0.0;
                let weights = (1..=count).map(|place| (place as f64).powf(-exponent));
                let sums = weights.map(|weight| {
                    sum += weight;
                    sum
                });
                Some((sums.collect(), permutation(count)))
            }
            Popularity::Zipf(exponent) => {
                return Err(Error::Argument {
                    operation: OPERATION,
                    argument: "exponent",
                    expected: "a number of at least 0".into(),
                    actual: exponent.to_string(),
                });
            }
        };
        Ok(Self { count: count as u64, places })
    }

    /// The expert that 64 random bits stand for.
    fn expert(&self, bits: u64) -> u32 {
        let Some((sums, experts)) = &self.places else {
            // The upper half of the product: below the count, which has 32 bits.
            return ((u128::from(bits) * u128::from(self.count)) >> 64) as u32;
        };
        let total = sums.last().copied().unwrap_or_default();
        let at = (bits >> 11) as f64 / (1u64 << 53) as f64 * total;
        let place = sums.partition_point(|&sum| sum <= at).min(experts.len().saturating_sub(1));
        experts.get(place).copied().unwrap_or_default()
    }

    fn draw(&self, seed: u64, length: usize) -> Vec<u32> {
        (0..length as u64).into_par_iter().map(|index| self.expert(split_mix(seed, index))).collect()
    }
}

/// The numbers below `count` in a random order.
fn permutation(count: usize) -> Vec<u32> {
    let mut numbers: Vec<u32> = (0..count as u32).collect();
    for last in (1..count).rev() {
        let other = (u128::from(split_mix(2, last as u64)) * (last as u128 + 1)) >> 64;
        numbers.swap(last, other as usize);
    }
    numbers
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use warpsmith::ops::peer::{ExpertFormat, ExpertLayout};
    use warpsmith::{DType, Device, Error};

    use super::{Popularity, ResidencyPoint, Sampler, permutation, residency, slots};
    use crate::benchmark::Options;
    use crate::cases::PeerSizes;

    const UNIFORM: Popularity = Popularity::Uniform;
    const OPTIONS: Options = Options { warm_up: Duration::ZERO, samples: 3, batch: Duration::ZERO };

    /// 64 experts, of which a step uses 24.
    fn sizes() -> PeerSizes {
        let mut sizes = PeerSizes { sub_keys: 8, heads: 3, top_k: 4, ..PeerSizes::reference(2) };
        (sizes.input, sizes.output) = (24, 40);
        sizes
    }

    #[test]
    fn fewer_residents_are_more_bytes_over_the_link() {
        for (device, format) in
            [(Device::cpu(), ExpertFormat::Bf16), (Device::emulator(), ExpertFormat::Int8)]
        {
            let point = |share| ResidencyPoint { share, popularity: UNIFORM };
            let sizes = PeerSizes { format, ..sizes() };
            let points = [1.0, 0.5, 0.1].map(point);
            let measured = residency(&device, &sizes, &points, &OPTIONS).expect("the sizes fit");
            let [all, half, tenth] = measured.try_into().expect("a result for each point");
            let [all, half, tenth] = [all, half, tenth].map(|point| point.expect("the caches fit"));
            assert_eq!([all.slots, half.slots, tenth.slots], [64, 32, 6]);
            assert_eq!((all.hit_rate, all.missed), (1.0, 0.0));
            assert!(half.hit_rate < 1.0 && tenth.hit_rate < half.hit_rate, "{half:?} {tenth:?}");
            assert!(half.missed > 0.0 && tenth.missed > half.missed, "{half:?} {tenth:?}");
            // No more than each row once a step, all tokens being one chunk.
            let layout = ExpertLayout::new(format, 24, 1, 40, false).expect("a layout");
            assert!(tenth.missed <= 24.0 * layout.row_bytes() as f64, "{tenth:?}");
            for point in [all, half, tenth] {
                assert!(point.timing.median > Duration::ZERO && point.timing.samples == 3);
                assert!(point.link > 0.0 && point.link_time() < Duration::from_secs(1), "{point:?}");
            }
        }
    }

    #[test]
    fn a_point_that_cannot_be_measured_leaves_the_others() {
        let point = |share, popularity| ResidencyPoint { share, popularity };
        let bad = [point(0.0, UNIFORM), point(f64::NAN, UNIFORM), point(0.5, Popularity::Zipf(f64::NAN))];
        let points = [bad[0], bad[1], point(1.0, Popularity::Zipf(1.0)), bad[2], point(0.2, UNIFORM)];
        let measured = residency(&Device::cpu(), &sizes(), &points, &OPTIONS).expect("the sizes fit");
        let is_ok: Vec<_> = measured.iter().map(Result::is_ok).collect();
        assert_eq!(is_ok, [false, false, true, false, true]);
        let other = PeerSizes { dtype: DType::U8, ..sizes() };
        assert!(matches!(residency(&Device::cpu(), &other, &points, &OPTIONS), Err(Error::Type { .. })));
    }

    #[test]
    fn experts_are_used_as_often_as_their_popularity_says() {
        let count = 1000;
        let uses = |popularity| {
            let sampler = Sampler::new(popularity, count).expect("a good exponent");
            let mut uses = vec![0u32; count];
            sampler.draw(7, 1_000_000).into_iter().for_each(|id| uses[id as usize] += 1);
            uses
        };
        // 1000 are expected of each, with a standard deviation of 32.
        for uniform in [uses(UNIFORM), uses(Popularity::Zipf(0.0))] {
            assert!(uniform.iter().all(|uses| (800..1200).contains(uses)), "{uniform:?}");
        }
        let mut skewed = uses(Popularity::Zipf(1.0));
        assert!(skewed.windows(2).any(|pair| pair[0] < pair[1]), "places have nothing to do with ids");
        skewed.sort_unstable_by(|a, b| b.cmp(a));
        // The sum of the first 1000 reciprocals is 7.485: of a million uses the first has 133,600, the tenth 13,360.
        assert!(
            (132_000..135_500).contains(&skewed[0]) && (12_700..14_000).contains(&skewed[9]),
            "{skewed:?}"
        );
    }

    #[test]
    fn a_permutation_has_every_number_once() {
        for count in [0, 1, 2, 1000] {
            let mut numbers = permutation(count);
            assert!(count < 1000 || !numbers.is_sorted());
            numbers.sort_unstable();
            assert!(numbers.into_iter().eq(0..count as u32));
        }
    }

    #[test]
    fn a_share_is_rounded_and_never_nothing() {
        assert_eq!(slots(0.1, 1 << 20).expect("a share"), 104_858);
        assert_eq!(slots(1e-9, 100).expect("a share"), 1);
        assert!(slots(1.1, 10).is_err() && slots(-0.5, 10).is_err());
    }
}
