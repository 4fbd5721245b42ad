//! Keys and values that are appended to a cache.

use warpsmith::DType;
use warpsmith::layers::CacheFormat;

use super::attention::KeyScales;

/// Two steps that append to one cache.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KvCacheCase {
    /// The type of new keys and values: f16, bf16 or f32.
    pub dtype: DType,
    /// What the cache stores.
    pub format: CacheFormat,
    /// Whether lengths are on the device.
    pub on_device: bool,
    /// Sequences.
    pub batch: usize,
    /// The most tokens of each.
    pub capacity: usize,
    /// Tokens that each step appends to each sequence; what is beyond the capacity is left out, where lengths are on the device.
    pub tokens: [usize; 2],
    /// Heads of keys and values.
    pub key_heads: usize,
    /// Columns of keys and of values.
    pub widths: [usize; 2],
    /// Elements between heads of new ones.
    pub gap: usize,
    /// Scales of keys; values have one of all if there are some.
    pub scales: Option<KeyScales>,
    /// Decides the elements.
    pub seed: u64,
}

impl KvCacheCase {
    /// A cache of one type with lengths on the device.
    #[must_use]
    pub fn new(
        dtype: DType,
        format: CacheFormat,
        [batch, capacity]: [usize; 2],
        tokens: [usize; 2],
        widths: [usize; 2],
    ) -> Self {
        Self {
            dtype,
            format,
            on_device: true,
            batch,
            capacity,
            tokens,
            key_heads: 3,
            widths,
            gap: 0,
            scales: None,
            seed: 0,
        }
    }

    /// The sizes in short.
    #[must_use]
    pub fn shape(&self) -> String {
        let Self { batch, capacity, tokens: [first, second], key_heads, widths: [keys, values], .. } = self;
        format!("{batch}×{capacity} {first}+{second} {key_heads} heads of {keys}/{values}")
    }

    /// The options in short.
    #[must_use]
    pub fn options(&self) -> String {
        let mut told = format!("{:?}", self.format);
        for (is_so, what) in [
            (self.on_device, " on device"),
            (self.gap > 0, " gaps"),
            (self.scales == Some(KeyScales::OfTensor), " scaled"),
            (self.scales == Some(KeyScales::OfHeads), " scaled heads"),
        ] {
            told.push_str(if is_so { what } else { "" });
        }
        told
    }
}
