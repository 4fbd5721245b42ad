//! A forward pass of an attention layer.

use super::cache::{First, KvCache, Step, Stored, of_stored};
use super::{Attention, OPERATION, Projection};
use crate::error::{Error, Result};
use crate::ops;
use crate::ops::attention::{Alignment, AttentionInput, AttentionKeys, AttentionOp};
use crate::ops::linear::LinearInput;
use crate::ops::rotary::positions;
use crate::stream::Stream;
use crate::tensor::{Element, Tensor};

/// A forward pass that has yet to run; see [`Attention::operation`].
#[derive(Debug)]
#[must_use = "a forward pass does nothing until `run` or `run_into`"]
pub struct AttentionForward<'a, T: AttentionInput + LinearInput> {
    pub(super) layer: &'a Attention<T>,
    pub(super) x: &'a Tensor<T>,
    pub(super) lengths: Option<&'a Tensor<u32>>,
    pub(super) offsets: Option<&'a Tensor<u32>>,
    pub(super) cache: Option<&'a mut KvCache<T>>,
    rows: Option<&'a [usize]>,
    pub(super) stream: Option<&'a Stream>,
}

impl<'a, T: AttentionInput + LinearInput> AttentionForward<'a, T> {
    pub(super) fn new(layer: &'a Attention<T>, x: &'a Tensor<T>) -> Self {
        Self { layer, x, lengths: None, offsets: None, cache: None, rows: None, stream: None }
    }

    /// Only the first `lengths[b]` rows of sequence b count, of padded sequences: `[B]`. With a cache only if [it has lengths on the
    /// device](super::KvCacheConfig::lengths_on_device): as many are appended.
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
    /// steps while each step appends the same rows of 0 or 1, else in each step. Not with a cache that has lengths on the device.
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
    /// [`Error::Shape`] if x, the lengths, the offsets, the rows or the cache do not fit the layer. [`Error::DeviceMismatch`]
    /// if one is another device's. [`Error::Argument`] for what does not go together. [`Error::SizeLimit`] if a sequence would
    /// be longer than the cache's capacity. Otherwise as [`LinearOp::run`](ops::linear::LinearOp::run) and
    /// [`AttentionOp::run`]. After an error the cache has the lengths that it had.
    pub fn run(self) -> Result<Tensor<T>> {
        let output = &self.layer.output;
        self.run_with(|attended, stream| output.forward_on(attended, stream))
    }

    /// As [`run`](Self::run), into `y`, whose last axis is contiguous. Without a cache, or with one that has lengths on the device, the work can be
    /// [captured](Stream::capture).
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
        self.check(&stream)?;
        let mut cache = self.cache.take();
        let (attended, step) = self.attend(cache.as_deref_mut(), &stream)?;
        let finished = finish(&attended, &stream)?;
        if let Some((cache, step)) = cache.zip(step) {
            cache.commit(&step, &stream)?;
        }
        Ok(finished)
    }

    /// The error for an x that does not fit the layer, or one of another device.
    pub(super) fn check(&self, stream: &Stream) -> Result<()> {
        let &Self { layer, x, offsets, .. } = self;
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
        if let (Some(lengths), Some(_)) = (self.lengths, offsets) {
            return Err(Error::Argument {
                operation: OPERATION,
                argument: "lengths",
                expected: "none of packed sequences, whose offsets say the same".into(),
                actual: format!("a tensor of shape {:?}", lengths.shape()),
            });
        }
        if self.cache.is_none()
            && let Some(rows) = self.rows
        {
            return Err(Error::Argument {
                operation: OPERATION,
                argument: "rows",
                expected: "none without a cache".into(),
                actual: format!("{} of them", rows.len()),
            });
        }
        Ok(())
    }

    /// The results of all heads: `[.., H · Dv]`, and a step that a cache has to commit.
    fn attend(&self, cache: Option<&mut KvCache<T>>, stream: &Stream) -> Result<(Tensor<T>, Option<Step>)> {
        let &Self { layer, x, lengths, offsets, rows, .. } = self;
        let refused = |argument, expected: &str, shape: &[usize]| {
            let (expected, actual) = (expected.into(), format!("a tensor of shape {shape:?}"));
            Err(Error::Argument { operation: OPERATION, argument, expected, actual })
        };
        let (attended, step) = match cache {
            Some(cache) => {
                if let Some(offsets) = offsets {
                    return refused(
                        "offsets",
                        "none with a cache, which has lengths of its own",
                        offsets.shape(),
                    );
                }
                let rows = match (rows, lengths) {
                    (Some(_), Some(lengths)) => {
                        return refused("lengths", "none with `rows`, which say the same", lengths.shape());
                    }
                    (Some(rows), None) => Rows::OnHost(rows),
                    (None, Some(lengths)) => Rows::OnDevice(lengths),
                    (None, None) => Rows::All,
                };
                let (attended, step) = layer.attend_cached(x, rows, cache, stream)?;
                (attended, Some(step))
            }
            None => {
                let Attended { operands: [q, k, v], .. } = self.prepare(stream)?;
                (self.attention(&q, [&k, &v]).on(stream).run()?, None)
            }
        };
        Ok((layer.of_rows(&attended)?, step))
    }

    /// What sequences without a cache attend with.
    pub(super) fn prepare(&self, stream: &Stream) -> Result<Attended<T>> {
        let &Self { layer, x, lengths, offsets, .. } = self;
        let projected = layer.project(x, stream)?;
        let positions = match (offsets, lengths) {
            (Some(offsets), _) => {
                expect_offsets(offsets)?;
                match &layer.rotary {
                    Some(_) => Some(positions(&x.shape()[..1], None, Some(offsets), stream)?),
                    None => None,
                }
            }
            (None, Some(lengths)) => {
                expect_lengths(lengths, x.shape()[0])?;
                None
            }
            (None, None) => None,
        };
        let operands = layer.rotate_at(projected, positions.as_ref(), 0, stream)?;
        Ok(Attended { operands, positions })
    }

    /// The attention of these operands, of sequences without a cache.
    pub(super) fn attention<'t>(
        &'t self,
        q: &'t Tensor<T>,
        [k, v]: [&'t Tensor<T>; 2],
    ) -> AttentionOp<'t, T> {
        let attention = self.layer.attention(q, [k, v]);
        match self.offsets {
            Some(offsets) => attention.packed(offsets, offsets),
            None => attention.lengths(self.lengths, self.lengths),
        }
    }
}

/// What sequences without a cache attend with: queries, keys and values, which are turned, if the layer turns them, and the positions where tokens do not stand as in
/// their tensor.
pub(super) struct Attended<T: Element> {
    pub(super) operands: [Tensor<T>; 3],
    pub(super) positions: Option<Tensor<u32>>,
}

/// The error for offsets that are none.
fn expect_offsets(offsets: &Tensor<u32>) -> Result<()> {
    if offsets.rank() != 1 || offsets.is_empty() {
        let (expected, actual) = ("[B + 1], at least one offset".into(), offsets.shape().to_vec());
        return Err(Error::Shape { operation: OPERATION, operand: "offsets", expected, actual });
    }
    if !offsets.is_contiguous() {
        let (expected, actual) = ("elements without gaps".into(), offsets.strides().to_vec());
        return Err(Error::Stride { operation: OPERATION, operand: "offsets", expected, actual });
    }
    Ok(())
}

impl<T: AttentionInput + LinearInput> Attention<T> {
    /// Queries `[.., H, D]`, keys `[.., Hk, D]` and values `[.., Hk, Dv]` of x `[.., in]`.
    pub(super) fn project(&self, x: &Tensor<T>, stream: &Stream) -> Result<Projected<T>> {
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
                Ok(Projected {
                    q: qkv.slice(axis, 0..heads)?,
                    k: qkv.slice(axis, heads..end_k)?,
                    v: qkv.slice(axis, end_k..end_v)?,
                    turned: vec![qkv.slice(axis, 0..end_k)?],
                })
            }
            Projection::Separate(projections) => {
                let [q, k, v] = &**projections;
                let q = of_heads(q.forward_on(x, stream)?, heads, self.width)?;
                let k = of_heads(k.forward_on(x, stream)?, key_heads, self.width)?;
                let v = of_heads(v.forward_on(x, stream)?, key_heads, self.value_width)?;
                Ok(Projected { turned: vec![q.clone(), k.clone()], q, k, v })
            }
        }
    }

    /// Queries and keys that are turned in place, if the layer turns them; tokens begin where `first` says.
    fn rotate(&self, projected: Projected<T>, first: &First, stream: &Stream) -> Result<[Tensor<T>; 3]> {
        match (&self.rotary, first) {
            (None, _) => Ok([projected.q, projected.k, projected.v]),
            (_, First::All(offset)) => self.rotate_at(projected, None, *offset, stream),
            (_, First::Each(first)) => {
                let tokens = &projected.q.shape()[..2];
                let positions = positions(tokens, Some(first), None, stream)?;
                self.rotate_at(projected, Some(&positions), 0, stream)
            }
        }
    }

    /// The same of these positions, or from `offset` on. Those of one projection are turned by one launch.
    fn rotate_at(
        &self,
        Projected { q, k, v, turned }: Projected<T>,
        positions: Option<&Tensor<u32>>,
        offset: usize,
        stream: &Stream,
    ) -> Result<[Tensor<T>; 3]> {
        let Some((table, pairing)) = &self.rotary else { return Ok([q, k, v]) };
        let length = q.shape()[q.rank() - 3];
        if positions.is_none() && offset.saturating_add(length) > table.positions() && !q.is_empty() {
            return Err(Error::SizeLimit {
                operation: OPERATION,
                operand: "x",
                quantity: "number of positions",
                limit: format!("at most {}, those of the rotary table", table.positions()),
                actual: format!("{offset} and {length} more"),
            });
        }
        for mut x in turned {
            let from = x.clone();
            let operation = ops::rotary(&from, table).pairing(*pairing).offset(offset).on(stream);
            match positions {
                Some(positions) => operation.positions(positions).run_into(&mut x)?,
                None => operation.run_into(&mut x)?,
            }
        }
        Ok([q, k, v])
    }

    /// Heads of rows, as the columns of rows.
    pub(super) fn of_rows(&self, heads: &Tensor<T>) -> Result<Tensor<T>> {
        let (leading, of_row) = heads.shape().split_at(heads.rank() - 2);
        heads.reshape([leading, &[of_row[0] * of_row[1]]].concat())
    }

    /// The layer's attention of these operands.
    pub(super) fn attention<'t, K: AttentionKeys<T>>(
        &'t self,
        q: &'t Tensor<T>,
        [k, v]: [&'t Tensor<K>; 2],
    ) -> AttentionOp<'t, T, K> {
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

    /// The results of rows that follow a cache's keys, and the step that the cache has to commit.
    fn attend_cached(
        &self,
        x: &Tensor<T>,
        rows: Rows<'_>,
        cache: &mut KvCache<T>,
        stream: &Stream,
    ) -> Result<(Tensor<T>, Step)> {
        let (batch, in_order) = (x.shape()[0], x.shape()[1]);
        self.device().expect_same(OPERATION, "cache", cache.device())?;
        let capacity = cache.capacity();
        let [expected, actual] =
            [self.cache_config(batch, capacity), *cache.config()].map(|config| config.shapes());
        if let Some((expected, actual)) = expected.into_iter().zip(actual).find(|(a, b)| a != b) {
            let expected = format!("{expected:?}, as x and the layer give");
            return Err(Error::Shape { operation: OPERATION, operand: "cache", expected, actual });
        }
        if let Rows::OnDevice(rows) = rows {
            expect_lengths(rows, batch)?;
        }
        let step = cache.begin(OPERATION, in_order, rows, stream)?;
        let projected = self.project(x, stream)?;
        let [q, k, v] = self.rotate(projected, &step.first, stream)?;
        cache.append_step([&k, &v], &step, stream)?;
        let attended = of_stored!(cache.stored_as_it_is(), stored => {
            self.attend_stored(&q, stored, cache.scales(), &step, stream)
        })?;
        Ok((attended, step))
    }

    /// The results of queries with what a cache has stored, after a step has been appended.
    fn attend_stored<K: AttentionKeys<T>>(
        &self,
        q: &Tensor<T>,
        [k, v]: &[Tensor<K>; 2],
        [k_scale, v_scale]: [Option<&Tensor<f32>>; 2],
        step: &Step,
        stream: &Stream,
    ) -> Result<Tensor<T>> {
        let [k, v] = [k.slice(1, 0..step.keys)?, v.slice(1, 0..step.keys)?];
        let [of_rows, of_keys] = &step.lengths;
        let attention = self.attention(q, [&k, &v]).k_scale(k_scale).v_scale(v_scale);
        attention.lengths(of_rows.as_ref(), of_keys.as_ref()).on(stream).run()
    }
}

/// Queries `[.., H, D]`, keys `[.., Hk, D]` and values `[.., Hk, Dv]`.
pub(super) struct Projected<T: Element> {
    pub(super) q: Tensor<T>,
    pub(super) k: Tensor<T>,
    pub(super) v: Tensor<T>,
    /// Queries and keys, as views that can be turned by a launch each.
    turned: Vec<Tensor<T>>,
}

/// The error for lengths that are not one for each sequence.
fn expect_lengths(lengths: &Tensor<u32>, batch: usize) -> Result<()> {
    if lengths.shape() != [batch] {
        let (expected, actual) = (format!("[{batch}], one for each sequence of x"), lengths.shape().to_vec());
        return Err(Error::Shape { operation: OPERATION, operand: "lengths", expected, actual });
    }
    if !lengths.is_contiguous() {
        let (expected, actual) = ("elements without gaps".into(), lengths.strides().to_vec());
        return Err(Error::Stride { operation: OPERATION, operand: "lengths", expected, actual });
    }
    Ok(())
}

/// Rows of a step that count.
#[derive(Clone, Copy, Debug)]
pub(super) enum Rows<'a> {
    /// All.
    All,
    /// Of each sequence the first ones, as many as the host says.
    OnHost(&'a [usize]),
    /// `[B]`: as many as the device says.
    OnDevice(&'a Tensor<u32>),
}
