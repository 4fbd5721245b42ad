//! What a cache is: its sizes, what its keys and values are stored as, and who knows how long sequences are.

/// What a cache stores keys and values as.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum CacheFormat {
    /// As they are.
    #[default]
    Same,
    /// In 8 bits, as e4m3: up to 448 times the scale.
    F8E4M3,
    /// In 8 bits, as e5m2: up to 57344 times the scale.
    F8E5M2,
}

/// The sizes and options of a [`KvCache`](super::KvCache).
///
/// ```
/// use half::bf16;
/// use warpsmith::layers::{CacheFormat, KvCache, KvCacheConfig};
/// use warpsmith::{Device, Tensor};
///
/// # fn main() -> warpsmith::Result<()> {
/// let device = Device::cpu();
/// let config = KvCacheConfig::new(2, 100, 4, 16).format(CacheFormat::F8E4M3);
/// let scale = Tensor::from_slice(&device, &[0.25f32], [1])?;
/// let mut cache = KvCache::<bf16>::with_config(&device, config)?.with_scales(scale.clone(), scale)?;
/// let k = Tensor::from_slice(&device, &[bf16::from_f32(112.0); 2 * 3 * 4 * 16], [2, 3, 4, 16])?;
/// cache.append(&k, &k)?;
/// // 448 is the largest e4m3 number.
/// let [stored, _] = cache.stored::<float8::F8E4M3>().expect("this is what it stores");
/// assert_eq!(stored.to_vec()?[0].to_f32(), 448.0);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvCacheConfig {
    pub(super) batch: usize,
    pub(super) capacity: usize,
    pub(super) key_heads: usize,
    pub(super) widths: [usize; 2],
    pub(super) format: CacheFormat,
    pub(super) lengths_on_device: bool,
}

impl KvCacheConfig {
    /// For `batch` sequences of at most `capacity` keys, with keys and values of `key_heads` heads and `width` columns.
    #[must_use]
    pub const fn new(batch: usize, capacity: usize, key_heads: usize, width: usize) -> Self {
        Self {
            batch,
            capacity,
            key_heads,
            widths: [width; 2],
            format: CacheFormat::Same,
            lengths_on_device: false,
        }
    }

    /// Columns of a value, if they are not those of a key.
    #[must_use]
    pub const fn value_width(self, width: usize) -> Self {
        Self { widths: [self.widths[0], width], ..self }
    }

    /// What keys and values are stored as.
    #[must_use]
    pub const fn format(self, format: CacheFormat) -> Self {
        Self { format, ..self }
    }

    /// Lengths of sequences are on the device, and no pass waits for the host: a pass can be [captured](crate::Stream::capture) and its graph launched while the
    /// cache grows. To capture a pass runs it once: it is a step like those of its launches.
    ///
    /// What is appended beyond the capacity is left out, and the results of its rows are unspecified, since the device can refuse nothing. Attention is planned for
    /// the whole capacity.
    #[must_use]
    pub const fn lengths_on_device(self) -> Self {
        Self { lengths_on_device: true, ..self }
    }

    /// The shapes of keys and of values.
    pub(in super::super) fn shapes(&self) -> [Vec<usize>; 2] {
        self.widths.map(|width| vec![self.batch, self.capacity, self.key_heads, width])
    }
}
