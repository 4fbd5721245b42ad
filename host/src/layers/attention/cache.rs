//! Keys and values of the tokens so far, for decoding.

use crate::device::Device;
use crate::error::{Error, Result};
use crate::ops::SIDE_LIMIT;
use crate::stream::Stream;
use crate::tensor::{Element, Tensor};

/// The operation's name in errors.
const OPERATION: &str = "KvCache::append";
/// Steps whose lengths are uploaded at once: an upload waits for the stream.
const STEPS_AHEAD: usize = 64;

/// A cache of keys `[B, capacity, Hk, D]` and values `[B, capacity, Hk, Dv]`, of which each sequence has used a length of its own.
///
/// The memory is that of the whole capacity from the beginning. Lengths are kept by the host, so that an append beyond the capacity is an error. Keys and
/// values stay on the device.
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
/// assert_eq!(cache.lengths(), [8, 6]);
/// // The second sequence has ended: another one takes its place.
/// cache.truncate(1, 0)?;
/// assert_eq!(cache.lengths(), [8, 0]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct KvCache<T: Element> {
    k: Tensor<T>,
    v: Tensor<T>,
    lengths: Vec<usize>,
    ahead: Option<Ahead>,
}

/// Lengths on the device, of steps that append as many rows each.
#[derive(Debug)]
struct Ahead {
    /// Rows that a step appends to each sequence.
    rows: Vec<usize>,
    /// The lengths after the first step.
    first: Vec<usize>,
    /// `[B]`: the rows of a step.
    of_rows: Tensor<u32>,
    /// `[steps, B]`: the lengths after each step.
    of_keys: Tensor<u32>,
}

impl Ahead {
    /// Which step has these lengths behind it, if one has.
    fn step(&self, rows: &[usize], lengths: &[usize]) -> Option<usize> {
        if self.rows != rows {
            return None;
        }
        let moved = (0..rows.len()).find(|&b| rows[b] > 0);
        let step = match moved {
            Some(b) => lengths[b].checked_sub(self.first[b])? / rows[b],
            None => 0,
        };
        let is_of_all = (0..rows.len()).all(|b| self.first[b] + step * rows[b] == lengths[b]);
        (step < self.of_keys.shape()[0] && is_of_all).then_some(step)
    }
}

/// What attention reads of a cache, after a step has been appended.
pub(super) struct Cached<T: Element> {
    pub(super) k: Tensor<T>,
    pub(super) v: Tensor<T>,
    /// Of the step's rows and of the keys, where sequences differ.
    pub(super) lengths: [Option<Tensor<u32>>; 2],
}

impl<T: Element> KvCache<T> {
    /// An empty cache for `batch` sequences of at most `capacity` keys, with keys and values of `key_heads` heads and `width` columns.
    ///
    /// # Errors
    ///
    /// [`Error::SizeLimit`] if the capacity or the cache is too large, [`Error::OutOfMemory`] if the device has too little memory.
    pub fn new(
        device: &Device,
        batch: usize,
        capacity: usize,
        key_heads: usize,
        width: usize,
    ) -> Result<Self> {
        Self::with_widths(device, batch, capacity, key_heads, [width, width])
    }

    /// As [`new`](Self::new), with keys and values of different widths.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new).
    pub fn with_widths(
        device: &Device,
        batch: usize,
        capacity: usize,
        key_heads: usize,
        [width, value_width]: [usize; 2],
    ) -> Result<Self> {
        if capacity as u64 >= SIDE_LIMIT {
            return Err(Error::SizeLimit {
                operation: "KvCache::new",
                operand: "cache",
                quantity: "capacity",
                limit: format!("less than {SIDE_LIMIT}"),
                actual: capacity.to_string(),
            });
        }
        // Kernels may read what is behind a length, without effect.
        let zeros = |width| Tensor::zeros(device, [batch, capacity, key_heads, width]);
        Ok(Self { k: zeros(width)?, v: zeros(value_width)?, lengths: vec![0; batch], ahead: None })
    }

    /// Appends the keys `k` `[B, S, Hk, D]` and values `v` `[B, S, Hk, Dv]`, with any strides.
    ///
    /// # Errors
    ///
    /// [`Error::Shape`] or [`Error::DeviceMismatch`] if the operands do not fit the cache, [`Error::SizeLimit`] if a sequence would be longer than the
    /// capacity, [`Error::Overlap`] if an operand is a part of the cache, [`Error::Argument`] if the stream is being captured: lengths are the host's. Nothing
    /// is appended then.
    pub fn append(&mut self, k: &Tensor<T>, v: &Tensor<T>) -> Result<()> {
        self.append_on(k, v, None, &self.k.device().default_stream())
    }

    /// As [`append`](Self::append), but of sequence b only the first `rows[b]` keys and values.
    ///
    /// # Errors
    ///
    /// As [`append`](Self::append); [`Error::Shape`] or [`Error::Argument`] if `rows` are not one number for each sequence, of S at most.
    pub fn append_rows(&mut self, k: &Tensor<T>, v: &Tensor<T>, rows: &[usize]) -> Result<()> {
        self.append_on(k, v, Some(rows), &self.k.device().default_stream())
    }

    pub(super) fn append_on(
        &mut self,
        k: &Tensor<T>,
        v: &Tensor<T>,
        rows: Option<&[usize]>,
        stream: &Stream,
    ) -> Result<()> {
        for (operand, cached, tensor) in [("k", &self.k, k), ("v", &self.v, v)] {
            cached.device().expect_same(OPERATION, operand, tensor.device())?;
            let &[batch, _, heads, width] = cached.shape() else { continue };
            let in_order = k.shape().get(1).copied().unwrap_or(0);
            if tensor.shape() != [batch, in_order, heads, width] {
                return Err(Error::Shape {
                    operation: OPERATION,
                    operand,
                    expected: format!(
                        "[{batch}, S, {heads}, {width}], as the cache is, with the same S of k and v"
                    ),
                    actual: tensor.shape().to_vec(),
                });
            }
            if cached.shares_memory(tensor) {
                return Err(Error::Overlap { operation: OPERATION, operand, other: "cache" });
            }
        }
        let rows = self.checked_rows(OPERATION, k.shape()[1], rows)?;
        stream.expect_no_capture(OPERATION)?;
        // Sequences that are alike are copied together.
        let mut first = 0;
        while first < rows.len() {
            let (length, count) = (self.lengths[first], rows[first]);
            let is_alike = |&b: &usize| self.lengths[b] == length && rows[b] == count;
            let end = (first..rows.len()).take_while(is_alike).last().unwrap_or(first) + 1;
            for (cached, new) in [(&self.k, k), (&self.v, v)] {
                let mut to = cached.slice(0, first..end)?.slice(1, length..length + count)?;
                if !to.is_empty() {
                    to.copy_from_on(&new.slice(0, first..end)?.slice(1, 0..count)?, stream)?;
                }
            }
            first = end;
        }
        self.lengths.iter_mut().zip(&rows).for_each(|(length, rows)| *length += rows);
        Ok(())
    }

    /// How many of `in_order` rows each sequence gets, if the cache has room for them.
    pub(super) fn checked_rows(
        &self,
        operation: &'static str,
        in_order: usize,
        rows: Option<&[usize]>,
    ) -> Result<Vec<usize>> {
        let (batch, capacity) = (self.batch(), self.capacity());
        let rows = rows.map_or_else(|| vec![in_order; batch], <[usize]>::to_vec);
        if rows.len() != batch {
            let (expected, actual) = (format!("[{batch}], one for each sequence"), vec![rows.len()]);
            return Err(Error::Shape { operation, operand: "rows", expected, actual });
        }
        for (b, (&length, &rows)) in self.lengths.iter().zip(&rows).enumerate() {
            if rows > in_order {
                let (expected, actual) = (format!("at most {in_order}"), format!("{rows} of sequence {b}"));
                return Err(Error::Argument { operation, argument: "rows", expected, actual });
            }
            if rows > capacity - length {
                return Err(Error::SizeLimit {
                    operation,
                    operand: "cache",
                    quantity: "number of keys",
                    limit: format!("at most {capacity}, the capacity"),
                    actual: format!("{length} and {rows} more of sequence {b}"),
                });
            }
        }
        Ok(rows)
    }

    /// What attention reads after `rows` of `in_order` rows have been appended to each sequence.
    pub(super) fn read(&mut self, in_order: usize, rows: &[usize], stream: &Stream) -> Result<Cached<T>> {
        let longest = self.lengths.iter().copied().max().unwrap_or(0);
        let has_equal_keys = self.lengths.iter().all(|&length| length == longest);
        let has_all_rows = rows.iter().all(|&rows| rows == in_order);
        // Few lengths of the axis, so that what a sequence's sums are made of seldom depends on the others.
        let room = longest.checked_next_power_of_two().unwrap_or(longest).min(self.capacity());
        let keys = if has_equal_keys { longest } else { room };
        let [k, v] = [self.k.slice(1, 0..keys)?, self.v.slice(1, 0..keys)?];
        if has_equal_keys && has_all_rows {
            return Ok(Cached { k, v, lengths: [None, None] });
        }
        let known = self.ahead.take().and_then(|ahead| Some((ahead.step(rows, &self.lengths)?, ahead)));
        let (step, ahead) = match known {
            Some(known) => known,
            None => (0, self.upload(rows, stream)?),
        };
        let batch = self.batch();
        let of_keys = ahead.of_keys.slice(0, step..step + 1)?.reshape([batch])?;
        let of_rows = ahead.of_rows.clone();
        self.ahead = Some(ahead);
        Ok(Cached { k, v, lengths: [(!has_all_rows).then_some(of_rows), Some(of_keys)] })
    }

    /// Uploads the lengths; where tokens are decoded one by one, also those after the next steps.
    fn upload(&self, rows: &[usize], stream: &Stream) -> Result<Ahead> {
        let steps = if rows.iter().all(|&rows| rows <= 1) { STEPS_AHEAD } else { 1 };
        let after = |step: usize| {
            self.lengths.iter().zip(rows).map(move |(length, rows)| (length + step * rows) as u32)
        };
        let of_keys: Vec<u32> = (0..steps).flat_map(after).collect();
        let of_rows: Vec<u32> = rows.iter().map(|&rows| rows as u32).collect();
        let (device, batch) = (self.k.device(), rows.len());
        stream.as_default(|| {
            Ok(Ahead {
                rows: rows.to_vec(),
                first: self.lengths.clone(),
                of_rows: Tensor::from_slice(device, &of_rows, [batch])?,
                of_keys: Tensor::from_slice(device, &of_keys, [steps, batch])?,
            })
        })
    }

    /// Puts back lengths that were there before, after a step that failed.
    pub(super) fn restore(&mut self, lengths: Vec<usize>) {
        self.lengths = lengths;
    }

    /// Shortens a sequence to `length` keys. A sequence of 0 keys can be begun anew.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`] if there is no such sequence, or it is shorter.
    pub fn truncate(&mut self, sequence: usize, length: usize) -> Result<()> {
        const OPERATION: &str = "KvCache::truncate";
        let batch = self.batch();
        let error = |argument, expected, actual: usize| {
            let actual = actual.to_string();
            Err(Error::Argument { operation: OPERATION, argument, expected, actual })
        };
        match self.lengths.get_mut(sequence) {
            None => error("sequence", format!("less than {batch}, the number of sequences"), sequence),
            Some(now) if *now < length => {
                error("length", format!("at most {now}, the keys of sequence {sequence}"), length)
            }
            Some(now) => {
                *now = length;
                Ok(())
            }
        }
    }

    /// Empties the cache.
    pub fn reset(&mut self) {
        self.lengths.fill(0);
    }

    /// The keys of each sequence.
    #[must_use]
    pub fn lengths(&self) -> &[usize] {
        &self.lengths
    }

    /// Sequences.
    #[must_use]
    pub fn batch(&self) -> usize {
        self.lengths.len()
    }

    /// The most keys of a sequence.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.k.shape()[1]
    }

    /// The keys, `[B, capacity, Hk, D]`; what is behind a sequence's length is unspecified.
    #[must_use]
    pub fn k(&self) -> &Tensor<T> {
        &self.k
    }

    /// The values, `[B, capacity, Hk, Dv]`, likewise.
    #[must_use]
    pub fn v(&self) -> &Tensor<T> {
        &self.v
    }

    /// The device that holds the cache.
    #[must_use]
    pub fn device(&self) -> &Device {
        self.k.device()
    }
}
