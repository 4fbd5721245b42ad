//! Validation of caches of keys and values: what is stored is exactly what the format's nearest numbers are, where it belongs, and nothing else.

use float8::{F8E4M3, F8E5M2};
use half::{bf16, f16};
use ndarray::Array2;
use warpsmith::cpu::Operand;
use warpsmith::device::Device;
use warpsmith::error::{Error, Result};
use warpsmith::layers::{CacheFormat, KvCache, KvCacheConfig};
use warpsmith::ops::Implementation;
use warpsmith::ops::attention::AttentionInput;
use warpsmith::tensor::{DType, Tensor};
use warpsmith::weights::FloatElement;

use super::Outcome;
use super::elementwise::drawn;
use super::load::{Output, Prepared, Step};
use super::tally::Tally;
use crate::bound::Judgement;
use crate::cases::{KeyScales, KvCacheCase};

/// The operation's name in errors.
const OPERATION: &str = "validate::kv_cache";
/// What new numbers are multiplied with, so that some are beyond the largest of e4m3.
const SPREAD: f64 = 300.0;

/// A type of new keys and values.
trait New: AttentionInput + FloatElement {}
impl<T: AttentionInput + FloatElement> New for T {}

/// Calls a function of the type of new keys and of stored ones with these arguments.
macro_rules! of_types {
    ($case:ident, $function:ident, $arguments:tt) => {
        match ($case.dtype, $case.format) {
            (DType::F16, CacheFormat::F8E4M3) => of_types!(@call $function::<f16, F8E4M3> $arguments),
            (DType::F16, CacheFormat::F8E5M2) => of_types!(@call $function::<f16, F8E5M2> $arguments),
            (DType::F16, _) => of_types!(@call $function::<f16, f16> $arguments),
            (DType::Bf16, CacheFormat::F8E4M3) => of_types!(@call $function::<bf16, F8E4M3> $arguments),
            (DType::Bf16, CacheFormat::F8E5M2) => of_types!(@call $function::<bf16, F8E5M2> $arguments),
            (DType::Bf16, _) => of_types!(@call $function::<bf16, bf16> $arguments),
            (DType::F32, CacheFormat::F8E4M3) => of_types!(@call $function::<f32, F8E4M3> $arguments),
            (DType::F32, CacheFormat::F8E5M2) => of_types!(@call $function::<f32, F8E5M2> $arguments),
            (DType::F32, _) => of_types!(@call $function::<f32, f32> $arguments),
            (actual, _) => {
                let expected = "f16, bf16 or f32".into();
                Err(Error::Type { operation: OPERATION, operand: "k", expected, actual })
            }
        }
    };
    (@call $function:ident::<$new:ty, $stored:ty> ($($argument:expr),*)) => {
        $function::<$new, $stored>($($argument),*)
    };
}

/// Appends twice and compares all that is stored.
///
/// # Errors
///
/// [`Error::Type`] if the case's type is not f16, bf16 or f32; otherwise whatever the cache returns.
pub fn kv_cache(device: &Device, case: &KvCacheCase) -> Result<Outcome> {
    of_types!(case, check, (device, case))
}

/// The bits of what is stored, keys first, and of the lengths: to compare one device, or mode, with another.
///
/// # Errors
///
/// As [`kv_cache`].
pub fn kv_cache_bits(device: &Device, case: &KvCacheCase) -> Result<Vec<u32>> {
    of_types!(case, bits, (device, case))
}

/// Prepares a case to be run again and again into one of `slots` caches.
pub(super) fn prepare(device: &Device, case: &KvCacheCase, slots: usize) -> Result<Prepared> {
    of_types!(case, prepared, (device, case, slots))
}

/// The new keys and values of both steps, and the scales of keys and values.
struct Inputs<T: New> {
    /// Of each step, keys and values: their rows, and views without what is beside them.
    new: [[(Array2<T>, Tensor<T>); 2]; 2],
    scales: [Vec<f32>; 2],
}

impl<T: New> Inputs<T> {
    fn new(device: &Device, case: &KvCacheCase) -> Result<Self> {
        let of = |step: usize, which: usize| -> Result<(Array2<T>, Tensor<T>)> {
            let (tokens, width) = (case.tokens[step], case.widths[which]);
            let rows = case.batch * tokens * case.key_heads;
            let wide: Array2<T> =
                drawn(case.seed, (2 * step + which) as u64, (rows, width + case.gap), SPREAD)?;
            let shape = [case.batch, tokens, case.key_heads, width + case.gap];
            let all = Tensor::from_array(device, &wide)?.reshape(shape)?;
            Ok((wide.slice(ndarray::s![.., ..width]).to_owned(), all.slice(3, 0..width)?))
        };
        let heads = |count: usize| (0..count).map(|head| 0.5 + head as f32 * 0.7).collect::<Vec<_>>();
        let scales = match case.scales {
            None => [Vec::new(), Vec::new()],
            Some(KeyScales::OfTensor) => [heads(1), heads(1)],
            Some(KeyScales::OfHeads) => [heads(case.key_heads), heads(1)],
        };
        Ok(Self { new: [[of(0, 0)?, of(0, 1)?], [of(1, 0)?, of(1, 1)?]], scales })
    }

    fn cache(&self, device: &Device, case: &KvCacheCase) -> Result<KvCache<T>> {
        let [width, value_width] = case.widths;
        let config = KvCacheConfig::new(case.batch, case.capacity, case.key_heads, width);
        let config = config.value_width(value_width).format(case.format);
        let config = if case.on_device { config.lengths_on_device() } else { config };
        let tensor = |scales: &Vec<f32>| {
            let is_there = !scales.is_empty();
            is_there.then(|| Tensor::from_slice(device, scales, [scales.len()])).transpose()
        };
        let (k, v) = (tensor(&self.scales[0])?, tensor(&self.scales[1])?);
        KvCache::with_config(device, config)?.with_scales(k, v)
    }

    fn append(&self, cache: &mut KvCache<T>) -> Result<()> {
        self.new.iter().try_for_each(|[(_, k), (_, v)]| cache.append(k, v))
    }

    fn implementation(&self, cache: &KvCache<T>) -> Implementation {
        let [[(_, k), (_, v)], _] = &self.new;
        cache.append_implementation(k, v)
    }
}

/// What a cache has stored, as it is told.
fn stored<T: New, K: FloatElement>(cache: &KvCache<T>) -> Result<[&Tensor<K>; 2]> {
    cache.stored().ok_or_else(|| Error::Type {
        operation: OPERATION,
        operand: "cache",
        expected: "what its format says".into(),
        actual: K::DTYPE,
    })
}

fn bits<T: New, K: FloatElement + Operand>(device: &Device, case: &KvCacheCase) -> Result<Vec<u32>> {
    let inputs = Inputs::<T>::new(device, case)?;
    let mut cache = inputs.cache(device, case)?;
    inputs.append(&mut cache)?;
    let [k, v] = stored::<T, K>(&cache)?;
    let mut bits: Vec<u32> = k.to_vec()?.into_iter().map(|number| number.to_f32().to_bits()).collect();
    bits.extend(v.to_vec()?.into_iter().map(|number| number.to_f32().to_bits()));
    bits.extend(cache.lengths()?.into_iter().map(|length| length as u32));
    Ok(bits)
}

fn check<T: New, K: FloatElement + Operand>(device: &Device, case: &KvCacheCase) -> Result<Outcome> {
    let inputs = Inputs::<T>::new(device, case)?;
    let mut cache = inputs.cache(device, case)?;
    let mut tally = Tally::new(inputs.implementation(&cache), true);
    inputs.append(&mut cache)?;
    let largest = match case.format {
        CacheFormat::F8E4M3 => 448.0,
        CacheFormat::F8E5M2 => 57_344.0,
        _ => f64::INFINITY,
    };
    let exactly = |got: f64| Judgement { error: got.abs(), bound: 0.0, within: false };
    for (which, stored) in stored::<T, K>(&cache)?.into_iter().enumerate() {
        let (got, width, heads) = (stored.to_vec()?, case.widths[which], case.key_heads);
        for (at, got) in got.into_iter().enumerate() {
            let (column, head) = (at % width, at / width % heads);
            let (place, b) = (at / width / heads % case.capacity, at / width / heads / case.capacity);
            let (step, token) = if place < case.tokens[0] { (0, place) } else { (1, place - case.tokens[0]) };
            let expected = if token < case.tokens[step] {
                let row = (b * case.tokens[step] + token) * heads + head;
                let number = inputs.new[step][which].0[[row, column]].to_f32();
                let scales = &inputs.scales[which];
                let scale = scales.get(head).or(scales.first()).copied().unwrap_or(1.0);
                let number = f64::from(if scales.is_empty() { number } else { number / scale });
                f64::from(K::round(number.clamp(-largest, largest)).to_f32())
            } else {
                // What was there before.
                0.0
            };
            tally.outcome.compared += 1;
            tally.add([at / width, column], f64::from(got.to_f32()), [expected; 2], exactly);
        }
    }
    let length = case.capacity.min(case.tokens[0] + case.tokens[1]);
    let wrong = cache.lengths()?.into_iter().filter(|&of_sequence| of_sequence != length).count();
    tally.outcome.failures += wrong;
    Ok(tally.finish())
}

fn prepared<T: New, K: FloatElement + Operand>(
    device: &Device,
    case: &KvCacheCase,
    slots: usize,
) -> Result<Prepared> {
    let inputs = Inputs::<T>::new(device, case)?;
    let of_slots = (0..slots).map(|_| inputs.cache(device, case)).collect::<Result<Vec<_>>>()?;
    let memory = |cache: &KvCache<T>| {
        let [k, v] = stored::<T, K>(cache)?;
        Ok(vec![Output::new("k", k)?, Output::new("v", v)?])
    };
    Prepared::of_slots(of_slots, memory, move |cache, step| match step {
        Step::Ask => Ok(inputs.implementation(cache)),
        Step::Run => {
            cache.reset()?;
            inputs.append(cache).map(|()| Implementation::Empty)
        }
    })
}
