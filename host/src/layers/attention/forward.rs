//! A forward pass of an attention layer.

use super::{Attention, KvCache, OPERATION, Projection};
use crate::error::{Error, Result};
use crate::ops;
use crate::ops::attention::{Alignment, AttentionInput, AttentionOp};
use crate::ops::linear::LinearInput;
use crate::stream::Stream;
use crate::tensor::Tensor;

/// A forward pass that has yet to run; see [`Attention::operation`].
#[derive(Debug)]
#[must_use = "a forward pass does nothing until `run` or `run_into`"]
pub struct AttentionForward<'a, T: AttentionInput + LinearInput> {
    layer: &'a Attention<T>,
    x: &'a Tensor<T>,
    lengths: Option<&'a Tensor<u32>>,
    offsets: Option<&'a Tensor<u32>>,
    cache: Option<&'a mut KvCache<T>>,
    rows: Option<&'a [usize]>,
    stream: Option<&'a Stream>,
}

impl<'a, T: AttentionInput + LinearInput> AttentionForward<'a, T> {
    pub(super) fn new(layer: &'a Attention<T>, x: &'a Tensor<T>) -> Self {
        Self { layer, x, lengths: None, offsets: None, cache: None, rows: None, stream: None }
    }

    /// Only the first `lengths[b]` rows of sequence b count, of padded sequences: `[B]`. Not with a cache.
    ///
    /// The rows beyond have the output's bias, or zeros.
    pub fn lengths(mut self, lengths: impl Into<Option<&'a Tensor<u32>>>) -> Self {
        self.lengths = lengths.into();
        self
    }

    /// Sequences follow each other in x `[T, in]`: sequence b has the rows `offsets[b]..offsets[b + 1]`, with `offsets` `[B + 1]`. Not with a cache.
    ///
    /// Offsets are read as [`AttentionOp::packed`] reads them. Rows of no sequence have the output's bias, or zeros.
    pub fn packed(mut self, offsets: impl Into<Option<&'a Tensor<u32>>>) -> Self {
        self.offsets = offsets.into();
        self
    }

    /// The rows follow the keys that `cache` has: their keys and values are appended to it, and they attend to all of them.
    pub fn cache(mut self, cache: impl Into<Option<&'a mut KvCache<T>>>) -> Self {
        self.cache = cache.into();
        self
    }

    /// With a cache, only the first `rows[b]` rows of sequence b count and are appended: prompts of different lengths, or sequences that pause.
    ///
    /// The rows beyond have the output's bias, or zeros. Where sequences differ, their lengths are uploaded, for which the host waits for the stream: once in 64
    /// steps while each step appends the same rows of 0 or 1, else in each step.
    pub fn rows(mut self, rows: impl Into<Option<&'a [usize]>>) -> Self {
        self.rows = rows.into();
        self
    }

    /// Runs on `stream` instead of the device's default stream.
    pub fn on(mut self, stream: &'a Stream) -> Self {
        self.stream = Some(stream);
        self
    }

    /// Computes the layer's output `[B, S, out]`, or `[T, out]` of packed sequences. On a GPU the work may still be under way when this returns.
    ///
    /// # Errors
    ///
    /// [`Error::Shape`] if x, the lengths, the offsets, the rows or the cache do not fit the layer, [`Error::DeviceMismatch`] if one is another device's,
    /// [`Error::Argument`] for what does not go together, [`Error::SizeLimit`] if a sequence would be longer than the cache's capacity; otherwise as
    /// [`LinearOp::run`](ops::linear::LinearOp::run) and [`AttentionOp::run`]. After an error the cache has the lengths that it had.
    pub fn run(self) -> Result<Tensor<T>> {
        let output = &self.layer.output;
        self.run_with(|attended, stream| output.forward_on(attended, stream))
    }

    /// As [`run`](Self::run), into `y`, whose last axis is contiguous. Without a cache the work can be [captured](Stream::capture).
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run), and [`LinearOp::run_into`](ops::linear::LinearOp::run_into) for `y`.
    pub fn run_into(self, y: &mut Tensor<T>) -> Result<()> {
        let output = &self.layer.output;
        self.run_with(|attended, stream| output.forward_into(attended, y, stream))
    }

    /// Computes what `finish` makes of the results of all heads. After an error the cache has the lengths that it had.
    fn run_with<R>(mut self, finish: impl FnOnce(&Tensor<T>, &Stream) -> Result<R>) -> Result<R> {
        let stream = self.stream.cloned().unwrap_or_else(|| self.layer.device().default_stream());
        let mut cache = self.cache.take();
        let before = cache.as_ref().map(|cache| cache.lengths().to_vec());
        let attended = self.attend(cache.as_deref_mut(), &stream);
        let finished = attended.and_then(|attended| finish(&attended, &stream));
        if finished.is_err()
            && let Some((cache, before)) = cache.zip(before)
        {
            cache.restore(before);
        }
        finished
    }

    /// The results of all heads: `[.., H · Dv]`.
    fn attend(&self, cache: Option<&mut KvCache<T>>, stream: &Stream) -> Result<Tensor<T>> {
        let &Self { layer, x, lengths, offsets, rows, .. } = self;
        layer.device().expect_same(OPERATION, "x", x.device())?;
        layer.device().expect_same(OPERATION, "stream", stream.device())?;
        let columns = layer.input();
        let (rank, expected) = match offsets {
            Some(_) => (2, format!("[T, {columns}], two axes for packed sequences")),
            None => (3, format!("[B, S, {columns}], three axes")),
        };
        if x.rank() != rank || x.shape()[rank - 1] != columns {
            let actual = x.shape().to_vec();
            return Err(Error::Shape { operation: OPERATION, operand: "x", expected, actual });
        }
        let refused = |argument, expected: &str, shape: &[usize]| {
            let (expected, actual) = (expected.into(), format!("a tensor of shape {shape:?}"));
            Err(Error::Argument { operation: OPERATION, argument, expected, actual })
        };
        let attended = match cache {
            Some(cache) => {
                let none = "none with a cache, which has lengths of its own";
                if let Some(lengths) = lengths {
                    return refused("lengths", none, lengths.shape());
                }
                if let Some(offsets) = offsets {
                    return refused("offsets", none, offsets.shape());
                }
                layer.attend_cached(x, rows, cache, stream)?
            }
            None => {
                if let Some(rows) = rows {
                    return Err(Error::Argument {
                        operation: OPERATION,
                        argument: "rows",
                        expected: "none without a cache".into(),
                        actual: format!("{} of them", rows.len()),
                    });
                }
                let [q, k, v] = layer.project(x, stream)?;
                let attention = layer.attention([&q, &k, &v]).lengths(lengths, lengths).on(stream);
                match offsets {
                    Some(offsets) => attention.packed(offsets, offsets).run()?,
                    None => attention.run()?,
                }
            }
        };
        let shape = [&x.shape()[..rank - 1], &[layer.heads() * layer.value_width]].concat();
        attended.reshape(shape)
    }
}

impl<T: AttentionInput + LinearInput> Attention<T> {
    /// Queries `[.., H, D]`, keys `[.., Hk, D]` and values `[.., Hk, Dv]` of x `[.., in]`.
    fn project(&self, x: &Tensor<T>, stream: &Stream) -> Result<[Tensor<T>; 3]> {
        let axis = x.rank() - 1;
        let leading = &x.shape()[..axis];
        let of_heads = |projected: Tensor<T>, heads: usize, width: usize| {
            projected.reshape([leading, &[heads, width]].concat())
        };
        let (heads, key_heads) = (self.config.heads, self.config.key_heads);
        match &self.projection {
            Projection::Fused(qkv) => {
                let qkv = of_heads(qkv.forward_on(x, stream)?, heads + 2 * key_heads, self.width)?;
                let (end_k, end_v) = (heads + key_heads, heads + 2 * key_heads);
                Ok([
                    qkv.slice(axis, 0..heads)?,
                    qkv.slice(axis, heads..end_k)?,
                    qkv.slice(axis, end_k..end_v)?,
                ])
            }
            Projection::Separate(projections) => {
                let [q, k, v] = &**projections;
                Ok([
                    of_heads(q.forward_on(x, stream)?, heads, self.width)?,
                    of_heads(k.forward_on(x, stream)?, key_heads, self.width)?,
                    of_heads(v.forward_on(x, stream)?, key_heads, self.value_width)?,
                ])
            }
        }
    }

    /// The layer's attention of these operands.
    fn attention<'t>(&'t self, [q, k, v]: [&'t Tensor<T>; 3]) -> AttentionOp<'t, T> {
        let config = &self.config;
        let mut attention = ops::attention(q, k, v)
            .soft_cap(config.soft_cap)
            .alibi(self.slopes.as_ref())
            .sinks(self.sinks.as_ref());
        if let Some(scale) = config.scale {
            attention = attention.scale(scale);
        }
        let [left, right] = config.window;
        attention.window(left, right, Alignment::BottomRight)
    }

    /// The results of rows that follow a cache's keys.
    fn attend_cached(
        &self,
        x: &Tensor<T>,
        rows: Option<&[usize]>,
        cache: &mut KvCache<T>,
        stream: &Stream,
    ) -> Result<Tensor<T>> {
        let (batch, in_order) = (x.shape()[0], x.shape()[1]);
        self.device().expect_same(OPERATION, "cache", cache.device())?;
        let capacity = cache.capacity();
        for (cached, width) in [(cache.k(), self.width), (cache.v(), self.value_width)] {
            let expected = [batch, capacity, self.config.key_heads, width];
            if cached.shape() != expected {
                let expected = format!("{expected:?}, as x and the layer give");
                let actual = cached.shape().to_vec();
                return Err(Error::Shape { operation: OPERATION, operand: "cache", expected, actual });
            }
        }
        let rows = cache.checked_rows(OPERATION, in_order, rows)?;
        stream.expect_no_capture(OPERATION)?;
        let [q, k, v] = self.project(x, stream)?;
        cache.append_on(&k, &v, Some(&rows), stream)?;
        let cached = cache.read(in_order, &rows, stream)?;
        let [of_rows, of_keys] = &cached.lengths;
        let attention = self.attention([&q, &cached.k, &cached.v]);
        attention.lengths(of_rows.as_ref(), of_keys.as_ref()).on(stream).run()
    }
}
