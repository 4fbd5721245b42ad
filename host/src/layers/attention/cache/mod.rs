//! Keys and values of the tokens so far, for decoding.

mod append;
mod config;
mod lengths;

use std::any::Any;

use float8::{F8E4M3, F8E5M2};

pub use config::{CacheFormat, KvCacheConfig};

use super::forward::Rows;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::ops::SIDE_LIMIT;
use crate::ops::attention::AttentionInput;
use crate::stream::{Operand, Stream};
use crate::tensor::{Element, Tensor};
use lengths::Lengths;
pub(super) use lengths::{First, Step};

/// The operation's name in errors.
const OPERATION: &str = "KvCache::append";

/// A cache of keys `[B, capacity, Hk, D]` and values `[B, capacity, Hk, Dv]`, of which each sequence has used a length of its own.
///
/// The memory is that of the whole capacity from the beginning. Keys and values stay on the device, as they are or [in 8 bits](KvCacheConfig::format). Lengths are kept
/// by the host, so that an append beyond the capacity is an error, or [by the device](KvCacheConfig::lengths_on_device).
///
/// ```
/// use warpsmith::layers::KvCache;
/// use warpsmith::{Device, Tensor};
///
/// # fn main() -> warpsmith::Result<()> {
/// let device = Device::cpu();
/// // Two sequences of up to 100 keys, for 4 heads of 16 columns.
/// let mut cache = KvCache::<f32>::new(&device, 2, 100, 4, 16)?;
/// // Prompts of 7 and 5 tokens, in tensors of 7.
/// let k = Tensor::zeros(&device, [2, 7, 4, 16])?;
/// cache.append_rows(&k, &k, &[7, 5])?;
/// // A token more of each.
/// let k = Tensor::zeros(&device, [2, 1, 4, 16])?;
/// cache.append(&k, &k)?;
/// assert_eq!(cache.lengths()?, [8, 6]);
/// // The second sequence has ended: another one takes its place.
/// cache.truncate(1, 0)?;
/// assert_eq!(cache.lengths()?, [8, 0]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct KvCache<T: AttentionInput> {
    config: KvCacheConfig,
    stored: Stored<T>,
    /// Of keys and of values of 8 bits.
    scales: [Option<Tensor<f32>>; 2],
    lengths: Lengths,
}

/// Keys and values in their type.
#[derive(Debug)]
pub(super) enum Stored<T: Element> {
    Same([Tensor<T>; 2]),
    E4m3([Tensor<F8E4M3>; 2]),
    E5m2([Tensor<F8E5M2>; 2]),
}

/// Runs `$use` on the tensors of whichever type.
macro_rules! of_stored {
    ($stored:expr, $tensors:ident => $use:expr) => {
        match $stored {
            Stored::Same($tensors) => $use,
            Stored::E4m3($tensors) => $use,
            Stored::E5m2($tensors) => $use,
        }
    };
}
pub(super) use of_stored;

impl<T: Element> Stored<T> {
    fn addresses(&mut self) -> [u64; 2] {
        of_stored!(self, tensors => tensors.each_mut().map(|tensor| tensor.arg_mut().address()))
    }

    fn operands(&self) -> [&dyn Operand; 2] {
        of_stored!(self, tensors => tensors.each_ref().map(|tensor| tensor as &dyn Operand))
    }

    fn device(&self) -> &Device {
        of_stored!(self, tensors => tensors[0].device())
    }
}

impl<T: AttentionInput> KvCache<T> {
    /// An empty cache for `batch` sequences of at most `capacity` keys, with keys and values of `key_heads` heads and `width` columns.
    ///
    /// # Errors
    ///
    /// As [`with_config`](Self::with_config).
    pub fn new(
        device: &Device,
        batch: usize,
        capacity: usize,
        key_heads: usize,
        width: usize,
    ) -> Result<Self> {
        Self::with_config(device, KvCacheConfig::new(batch, capacity, key_heads, width))
    }

    /// An empty cache as `config` says.
    ///
    /// # Errors
    ///
    /// [`Error::SizeLimit`] if the capacity or the cache is too large, [`Error::OutOfMemory`] if the device has too little memory, [`Error::UnsupportedDevice`] for a cache
    /// of 8 bits of f32 on a GPU.
    pub fn with_config(device: &Device, config: KvCacheConfig) -> Result<Self> {
        const OPERATION: &str = "KvCache::with_config";
        let KvCacheConfig { batch, capacity, key_heads, widths, format, lengths_on_device } = config;
        if capacity as u64 >= SIDE_LIMIT {
            return Err(Error::SizeLimit {
                operation: OPERATION,
                operand: "cache",
                quantity: "capacity",
                limit: format!("less than {SIDE_LIMIT}"),
                actual: capacity.to_string(),
            });
        }
        if format != CacheFormat::Same && !append::has_narrowing::<T>(device) {
            return Err(Error::UnsupportedDevice {
                operation: OPERATION,
                device: device.to_string(),
                expected: "f16 or bf16 for a cache of 8 bits, or the CPU".into(),
                actual: T::DTYPE.to_string(),
            });
        }
        let shape = |width| [batch, capacity, key_heads, width];
        // Kernels may read what is behind a length, without effect.
        fn zeros<K: Element>(device: &Device, shapes: [[usize; 4]; 2]) -> Result<[Tensor<K>; 2]> {
            Ok([Tensor::zeros(device, shapes[0])?, Tensor::zeros(device, shapes[1])?])
        }
        let shapes = widths.map(shape);
        let stored = match format {
            CacheFormat::Same => Stored::Same(zeros(device, shapes)?),
            CacheFormat::F8E4M3 => Stored::E4m3(zeros(device, shapes)?),
            CacheFormat::F8E5M2 => Stored::E5m2(zeros(device, shapes)?),
        };
        let lengths = if lengths_on_device {
            let zeros = || Tensor::zeros(device, [batch]);
            Lengths::Device { now: zeros()?, next: zeros()?, none: zeros()? }
        } else {
            Lengths::Host { lengths: vec![0; batch], ahead: None }
        };
        Ok(Self { config, stored, scales: [None, None], lengths })
    }

    /// The cache with scales of keys and of values, which are of 8 bits: `[1]`, or `[Hk]` of heads. What is appended is divided by its scale and rounded to the nearest
    /// number of 8 bits, at most the largest.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`] if keys and values are not of 8 bits, [`Error::Shape`], [`Error::Stride`] or [`Error::DeviceMismatch`] if a scale does not fit.
    pub fn with_scales(
        self,
        k: impl Into<Option<Tensor<f32>>>,
        v: impl Into<Option<Tensor<f32>>>,
    ) -> Result<Self> {
        const OPERATION: &str = "KvCache::with_scales";
        let (operation, heads, scales) = (OPERATION, self.config.key_heads, [k.into(), v.into()]);
        for (operand, scales) in ["k", "v"].into_iter().zip(&scales) {
            let Some(scales) = scales else { continue };
            if self.config.format == CacheFormat::Same {
                return Err(Error::Argument {
                    operation,
                    argument: operand,
                    expected: "none for a cache that keeps numbers as they are".into(),
                    actual: format!("a tensor of shape {:?}", scales.shape()),
                });
            }
            self.device().expect_same(operation, operand, scales.device())?;
            if scales.shape() != [1] && scales.shape() != [heads] {
                let (expected, actual) =
                    (format!("[1], or [{heads}] for the heads"), scales.shape().to_vec());
                return Err(Error::Shape { operation, operand, expected, actual });
            }
            if !scales.is_contiguous() {
                let (expected, actual) = ("elements without gaps".into(), scales.strides().to_vec());
                return Err(Error::Stride { operation, operand, expected, actual });
            }
        }
        Ok(Self { scales, ..self })
    }

    /// Appends the keys `k` `[B, S, Hk, D]` and values `v` `[B, S, Hk, Dv]`, with any strides.
    ///
    /// # Errors
    ///
    /// [`Error::Shape`] or [`Error::DeviceMismatch`] if the operands do not fit the cache. [`Error::SizeLimit`] if a sequence
    /// would be longer than the capacity. [`Error::Overlap`] if an operand is a part of the cache. [`Error::Argument`] if the
    /// stream is being captured and lengths are the host's. Nothing
    /// is appended then.
    pub fn append(&mut self, k: &Tensor<T>, v: &Tensor<T>) -> Result<()> {
        self.append_on(k, v, &self.device().default_stream())
    }

    /// As [`append`](Self::append), on `stream`. Where lengths are on the device, the work can be [captured](Stream::capture).
    ///
    /// # Errors
    ///
    /// As [`append`](Self::append), and [`Error::DeviceMismatch`] if the stream is another device's.
    pub fn append_on(&mut self, k: &Tensor<T>, v: &Tensor<T>, stream: &Stream) -> Result<()> {
        self.append_counted(k, v, Rows::All, stream)
    }

    /// As [`append`](Self::append), but of sequence b only the first `rows[b]` keys and values.
    ///
    /// # Errors
    ///
    /// As [`append`](Self::append); [`Error::Shape`] or [`Error::Argument`] if `rows` are not one number for each sequence, of S at most, or lengths are on the
    /// device.
    pub fn append_rows(&mut self, k: &Tensor<T>, v: &Tensor<T>, rows: &[usize]) -> Result<()> {
        self.append_counted(k, v, Rows::OnHost(rows), &self.device().default_stream())
    }

    fn append_counted(
        &mut self,
        k: &Tensor<T>,
        v: &Tensor<T>,
        rows: Rows<'_>,
        stream: &Stream,
    ) -> Result<()> {
        self.device().expect_same(OPERATION, "stream", stream.device())?;
        let in_order = k.shape().get(1).copied().unwrap_or(0);
        let KvCacheConfig { batch, key_heads, widths, .. } = self.config;
        for ((operand, tensor), width) in [("k", k), ("v", v)].into_iter().zip(widths) {
            self.device().expect_same(OPERATION, operand, tensor.device())?;
            if tensor.shape() != [batch, in_order, key_heads, width] {
                return Err(Error::Shape {
                    operation: OPERATION,
                    operand,
                    expected: format!(
                        "[{batch}, S, {key_heads}, {width}], as the cache is, with the same S of k and v"
                    ),
                    actual: tensor.shape().to_vec(),
                });
            }
            let is_own =
                of_stored!(&self.stored, stored => stored.iter().any(|own| own.shares_memory(tensor)));
            if is_own {
                return Err(Error::Overlap { operation: OPERATION, operand, other: "cache" });
            }
        }
        let step = self.begin(OPERATION, in_order, rows, stream)?;
        self.append_step([k, v], &step, stream)?;
        self.commit(&step, stream)
    }

    /// Shortens a sequence to `length` keys. A sequence of 0 keys can be begun anew.
    ///
    /// Where lengths are on the device, it waits for the device's default stream.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`] if there is no such sequence, or it is shorter; whatever copying lengths may return.
    pub fn truncate(&mut self, sequence: usize, length: usize) -> Result<()> {
        const OPERATION: &str = "KvCache::truncate";
        let (batch, mut all) = (self.batch(), self.lengths()?);
        let error = |argument, expected, actual: usize| {
            let actual = actual.to_string();
            Err(Error::Argument { operation: OPERATION, argument, expected, actual })
        };
        match all.get_mut(sequence) {
            None => {
                return error("sequence", format!("less than {batch}, the number of sequences"), sequence);
            }
            Some(now) if *now < length => {
                return error("length", format!("at most {now}, the keys of sequence {sequence}"), length);
            }
            Some(now) => *now = length,
        }
        self.set_lengths(all)
    }

    /// Empties the cache. The host waits for nothing, so that it can be [captured](crate::Stream::capture).
    ///
    /// # Errors
    ///
    /// Whatever copying lengths may return, where they are on the device.
    pub fn reset(&mut self) -> Result<()> {
        match &mut self.lengths {
            Lengths::Host { lengths, .. } => {
                lengths.fill(0);
                Ok(())
            }
            Lengths::Device { now, none, .. } => now.copy_from(none),
        }
    }

    fn set_lengths(&mut self, all: Vec<usize>) -> Result<()> {
        match &mut self.lengths {
            Lengths::Host { lengths, .. } => {
                *lengths = all;
                Ok(())
            }
            Lengths::Device { now, .. } => {
                now.write_slice(&all.into_iter().map(|length| length as u32).collect::<Vec<_>>())
            }
        }
    }

    /// The keys of each sequence. Where lengths are on the device, the host waits for them.
    ///
    /// # Errors
    ///
    /// Whatever copying lengths may return, where they are on the device.
    pub fn lengths(&self) -> Result<Vec<usize>> {
        match &self.lengths {
            Lengths::Host { lengths, .. } => Ok(lengths.clone()),
            Lengths::Device { now, .. } => {
                Ok(now.to_vec()?.into_iter().map(|length| length as usize).collect())
            }
        }
    }

    /// The keys of each sequence `[B]`, where they are on the device.
    #[must_use]
    pub fn device_lengths(&self) -> Option<&Tensor<u32>> {
        match &self.lengths {
            Lengths::Host { .. } => None,
            Lengths::Device { now, .. } => Some(now),
        }
    }

    /// Sequences.
    #[must_use]
    pub fn batch(&self) -> usize {
        self.config.batch
    }

    /// The most keys of a sequence.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.config.capacity
    }

    /// Sizes and options.
    #[must_use]
    pub fn config(&self) -> &KvCacheConfig {
        &self.config
    }

    /// The keys, `[B, capacity, Hk, D]`, and the values, `[B, capacity, Hk, Dv]`, if they are stored as `K`; what is behind a sequence's length is unspecified.
    #[must_use]
    pub fn stored<K: Element>(&self) -> Option<[&Tensor<K>; 2]> {
        let [k, v] = of_stored!(&self.stored, stored => stored.each_ref().map(|tensor| tensor as &dyn Any));
        Some([k.downcast_ref()?, v.downcast_ref()?])
    }

    /// The scales of keys and of values.
    #[must_use]
    pub fn scales(&self) -> [Option<&Tensor<f32>>; 2] {
        self.scales.each_ref().map(Option::as_ref)
    }

    pub(super) fn stored_as_it_is(&self) -> &Stored<T> {
        &self.stored
    }

    /// The device that holds the cache.
    #[must_use]
    pub fn device(&self) -> &Device {
        self.stored.device()
    }
}
