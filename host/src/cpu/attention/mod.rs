//! Scaled dot-product attention on the CPU.
//!
//! The output is cut into tiles of a few rows of one head, each the work of one thread, so a result does not depend on how many threads
//! there are. A tile holds the scores of its rows; of keys and values it widens a block at a time.

mod gradient;
mod tile;
mod window;

use std::ops::Range;

use ndarray::{ArrayView1, ArrayView2, ArrayView3, ArrayView4, ArrayViewMut2, ArrayViewMut3, ArrayViewMut4};
use ndarray::{Axis, Dimension, s};
use rayon::prelude::*;

use super::number::{Accumulator, FromAccumulator, Operand};
use crate::device::cpu::out_of_memory;
use crate::error::{Error, Result};

pub use gradient::{attention_gradient, packed_attention_gradient};
pub use tile::LANES;
use tile::{Rows, Scratch, Tile};
pub use window::{Alignment, Window};

/// The operation's name in errors.
const OPERATION: &str = "cpu::attention";
/// Rows of a tile.
const TILE_ROWS: usize = 16;

/// What [`attention`] does to the scores.
///
/// With the score `t = scale · q·k`, the logit is `s = c(t) + bias − slope · |i + offset − j|`, where `c(t) = soft_cap · tanh(t / soft_cap)`, or t
/// without a soft cap. The masks and the window take logits away.
#[derive(Clone, Debug)]
pub struct AttentionTerms<'a, T> {
    /// Multiplies the products of queries and keys.
    pub scale: f32,
    /// The keys that each row attends to.
    pub window: Window,
    /// Bounds the scores' magnitude.
    pub soft_cap: Option<f32>,
    /// `[B, H, Sq, Sk]`, each axis also of length 1: nonzero where a row attends to a key.
    pub mask: Option<ArrayView4<'a, u8>>,
    /// The same shapes: is added to the scores.
    pub bias: Option<ArrayView4<'a, T>>,
    /// `[B, H, ⌈Sq / rows⌉, ⌈Sk / keys⌉]`, the first two axes also of length 1, and the sizes `[rows, keys]` of a block: nonzero where the rows of a block
    /// attend to its keys.
    pub block_mask: Option<(ArrayView4<'a, u8>, [usize; 2])>,
    /// `[B, H]`, the first axis also of length 1: the slopes of the distances.
    pub slopes: Option<ArrayView2<'a, f32>>,
    /// `[H]`: a logit of each head that has no value.
    pub sinks: Option<ArrayView1<'a, f32>>,
    /// `[B]`: the rows of each sequence that count; what is beyond Sq counts for Sq.
    pub lengths_q: Option<ArrayView1<'a, u32>>,
    /// `[B]`: the keys of each sequence that count; what is beyond Sk counts for Sk.
    pub lengths_k: Option<ArrayView1<'a, u32>>,
    /// `[B, pages of a sequence]`: which pages of `k` and `v` each sequence has. A number beyond the last page counts for the last page.
    pub pages: Option<ArrayView2<'a, u32>>,
    /// `[Hk]` or `[1]`: what the stored keys of each head, or of all, are multiplied with.
    pub k_scale: Option<ArrayView1<'a, f32>>,
    /// The same of the stored values.
    pub v_scale: Option<ArrayView1<'a, f32>>,
}

impl<T> AttentionTerms<'_, T> {
    /// No terms but the scale: each row attends to every key.
    #[must_use]
    pub fn new(scale: f32) -> Self {
        Self {
            scale,
            window: Window::default(),
            soft_cap: None,
            mask: None,
            bias: None,
            block_mask: None,
            slopes: None,
            sinks: None,
            lengths_q: None,
            lengths_k: None,
            pages: None,
            k_scale: None,
            v_scale: None,
        }
    }
}

/// Computes `y = softmax(s) v` as [`AttentionTerms`] says, and `lse = ln Σ exp(s)`, adding up in `A` and rounding once.
///
/// `q` is `[B, Sq, H, D]`, `k` `[B, Sk, Hk, D]`, `v` `[B, Sk, Hk, Dv]`, `y` `[B, Sq, H, Dv]`, `lse` `[B, H, Sq]`; any strides, any sizes. H is a multiple of Hk:
/// head h has the keys and values of head `h / (H / Hk)`. With pages, `k` is `[P, page size, Hk, D]`, `v` `[P, page size, Hk, Dv]`, and Sk the pages of a sequence
/// times the page size. What `k` and `v` hold is multiplied with the scales, if there are some. A row without keys, or beyond its sequence's length, has zeros in `y` and −∞ in
/// `lse`; a row of a sequence whose head has a sink has the sink in `lse`. Keys whose logit is −∞ are skipped.
///
/// # Errors
///
/// [`Error::Shape`] if the shapes do not fit together, [`Error::OutOfMemory`] if the host has too little memory for the scores of a few rows.
pub fn attention<A, T, K, O, L>(
    q: ArrayView4<'_, T>,
    k: ArrayView4<'_, K>,
    v: ArrayView4<'_, K>,
    terms: &AttentionTerms<'_, T>,
    y: ArrayViewMut4<'_, O>,
    lse: Option<ArrayViewMut3<'_, L>>,
) -> Result<()>
where
    A: Accumulator,
    T: Operand,
    K: Operand,
    O: FromAccumulator<A>,
    L: FromAccumulator<A>,
{
    let (batch, rows, heads, width) = q.dim();
    let (matrices, in_order, key_heads, value_width) = v.dim();
    let (expected, keys) = match &terms.pages {
        Some(table) => (matrices, expect_pages(table, batch, v.shape())?),
        None => (batch, in_order),
    };
    expect_shape("k", k.shape(), &[expected, in_order, key_heads, width])?;
    expect_shape("v", v.shape(), &[expected, in_order, key_heads, value_width])?;
    expect_shape("y", y.shape(), &[batch, rows, heads, value_width])?;
    if let Some(lse) = &lse {
        expect_shape("lse", lse.shape(), &[batch, heads, rows])?;
    }
    if heads != 0 && (key_heads == 0 || heads % key_heads != 0) {
        let expected = format!("a number of heads that divides the {heads} of q");
        return Err(Error::Shape {
            operation: OPERATION,
            operand: "k",
            expected,
            actual: k.shape().to_vec(),
        });
    }
    let options = Options::new(terms, [batch, heads, rows, keys], key_heads)?;
    let work = pieces(y, lse)?;
    work.into_par_iter().try_for_each_init(Scratch::default, |scratch, mut piece| {
        let ([b, first, h], key_head) = (piece.at, piece.at[2] / (heads / key_heads.max(1)).max(1));
        let of_rows = first..first + piece.y.dim().1;
        let of_keys = [&k, &v].map(|operand| of_head(operand, b, key_head, terms.pages.as_ref()));
        let tile = options.tile([b, h, key_head], first, q.slice(s![b, of_rows, h, ..]), of_keys);
        tile.compute(OPERATION, scratch, piece.y.slice_mut(s![0, .., 0, ..]), piece.lse)
    })
}

/// What is done to the scores of so many sequences, heads, rows and keys, with axes of length 1 repeated.
struct Options<'v, 't, T> {
    terms: &'v AttentionTerms<'t, T>,
    /// Rows and keys.
    most: [usize; 2],
    mask: Option<ArrayView4<'v, u8>>,
    bias: Option<ArrayView4<'v, T>>,
    block_mask: Option<(ArrayView4<'v, u8>, [usize; 2])>,
    slopes: Option<ArrayView2<'v, f32>>,
    k_scale: Option<ArrayView1<'v, f32>>,
    v_scale: Option<ArrayView1<'v, f32>>,
}

impl<'v, 't, T: Operand> Options<'v, 't, T> {
    fn new(
        terms: &'v AttentionTerms<'t, T>,
        [batch, heads, rows, keys]: [usize; 4],
        key_heads: usize,
    ) -> Result<Self> {
        let full = (batch, heads, rows, keys);
        let block_mask = match &terms.block_mask {
            Some((mask, sizes)) => {
                let [of_rows, of_keys] = sizes.map(|size| size.max(1));
                let blocks = [rows.div_ceil(of_rows), keys.div_ceil(of_keys)];
                expect_shape("block_mask", &mask.shape()[2..], &blocks)?;
                let full = (batch, heads, blocks[0], blocks[1]);
                Some((broadcast("block_mask", mask, full)?, [of_rows, of_keys]))
            }
            None => None,
        };
        let expect_length = |operand, vector: &Option<ArrayView1<'_, _>>, length| {
            vector.as_ref().map_or(Ok(()), |vector| expect_shape(operand, vector.shape(), &[length]))
        };
        expect_length("lengths_q", &terms.lengths_q, batch)?;
        expect_length("lengths_k", &terms.lengths_k, batch)?;
        if let Some(sinks) = &terms.sinks {
            expect_shape("sinks", sinks.shape(), &[heads])?;
        }
        let slopes = terms.slopes.as_ref();
        Ok(Self {
            terms,
            most: [rows, keys],
            mask: terms.mask.as_ref().map(|mask| broadcast("mask", mask, full)).transpose()?,
            bias: terms.bias.as_ref().map(|bias| broadcast("bias", bias, full)).transpose()?,
            block_mask,
            slopes: slopes.map(|slopes| broadcast("slopes", slopes, (batch, heads))).transpose()?,
            k_scale: of_key_heads("k_scale", &terms.k_scale, key_heads)?,
            v_scale: of_key_heads("v_scale", &terms.v_scale, key_heads)?,
        })
    }

    /// The tile of a sequence's and a head's rows from `first` on, with the keys and values of a head of theirs.
    fn tile<'o, A: Accumulator, K>(
        &'o self,
        [b, h, key_head]: [usize; 3],
        first: usize,
        q: ArrayView2<'o, T>,
        [k, v]: [Rows<'o, K>; 2],
    ) -> Tile<'o, A, T, K> {
        let terms = self.terms;
        let length = |lengths: &Option<ArrayView1<'_, u32>>, most: usize| {
            lengths.as_ref().map_or(most, |lengths| most.min(lengths[b] as usize))
        };
        let lengths = [length(&terms.lengths_q, self.most[0]), length(&terms.lengths_k, self.most[1])];
        let block_mask = self.block_mask.as_ref();
        Tile {
            q,
            k,
            v,
            first,
            lengths,
            offset: terms.window.alignment().offset(lengths),
            window: terms.window,
            scale: A::from_f32(terms.scale),
            k_scale: self.k_scale.map(|scales| A::from_f32(scales[key_head])),
            v_scale: self.v_scale.map(|scales| A::from_f32(scales[key_head])),
            soft_cap: terms.soft_cap.map(A::from_f32),
            mask: self.mask.as_ref().map(|mask| mask.slice(s![b, h, .., ..])),
            bias: self.bias.as_ref().map(|bias| bias.slice(s![b, h, .., ..])),
            block_mask: block_mask.map(|(mask, sizes)| (mask.slice(s![b, h, .., ..]), *sizes)),
            slope: self.slopes.as_ref().map(|slopes| A::from_f32(slopes[[b, h]])),
            sink: terms.sinks.as_ref().map(|sinks| A::from_f32(sinks[h])),
        }
    }
}

/// A scale for each head of keys, if there are scales.
fn of_key_heads<'v>(
    operand: &'static str,
    scales: &'v Option<ArrayView1<'_, f32>>,
    key_heads: usize,
) -> Result<Option<ArrayView1<'v, f32>>> {
    scales.as_ref().map(|scales| broadcast(operand, scales, key_heads)).transpose()
}

/// The keys or values of a head of sequence `b`.
fn of_head<'v, T>(
    operand: &'v ArrayView4<'_, T>,
    b: usize,
    head: usize,
    table: Option<&'v ArrayView2<'_, u32>>,
) -> Rows<'v, T> {
    match table {
        Some(table) => Rows { pages: operand.slice(s![.., .., head, ..]), table: Some(table.row(b)) },
        None => Rows { pages: operand.slice(s![b..b + 1, .., head, ..]), table: None },
    }
}

/// The keys of each of so many sequences, with pages as the axes of `v` say.
fn expect_pages(table: &ArrayView2<'_, u32>, batch: usize, v: &[usize]) -> Result<usize> {
    let columns = table.ncols();
    expect_shape("pages", table.shape(), &[batch, columns])?;
    if columns != 0 && (v[0] == 0 || v[1] == 0) {
        let expected = format!("pages with keys, since sequences have {columns} pages");
        return Err(Error::Shape { operation: OPERATION, operand: "v", expected, actual: v.to_vec() });
    }
    Ok(columns.saturating_mul(v[1]))
}

/// As [`attention`] of each of several sequences whose rows follow each other, and whose keys do.
///
/// `q` is `[Tq, H, D]`, `k` `[Tk, Hk, D]`, `v` `[Tk, Hk, Dv]`, `y` `[Tq, H, Dv]`, `lse` `[H, Tq]`, and each of `offsets` `[B + 1]`: sequence b has the rows from
/// `offsets[0][b]` to `offsets[0][b + 1]` and the keys from `offsets[1][b]` to `offsets[1][b + 1]`. An offset beyond the rows or keys counts for their number, and a
/// sequence that would end before it starts is empty. Rows of no sequence stay as they are.
///
/// # Errors
///
/// As [`attention`]; [`Error::Argument`] for a mask, a bias, a block mask, lengths or pages.
pub fn packed_attention<A, T, K, O, L>(
    q: ArrayView3<'_, T>,
    k: ArrayView3<'_, K>,
    v: ArrayView3<'_, K>,
    offsets: [ArrayView1<'_, u32>; 2],
    terms: &AttentionTerms<'_, T>,
    mut y: ArrayViewMut3<'_, O>,
    mut lse: Option<ArrayViewMut2<'_, L>>,
) -> Result<()>
where
    A: Accumulator,
    T: Operand,
    K: Operand,
    O: FromAccumulator<A>,
    L: FromAccumulator<A>,
{
    let ((rows, heads, _), (keys, _, value_width)) = (q.dim(), v.dim());
    expect_shape("k", &k.shape()[..1], &[keys])?;
    expect_shape("y", y.shape(), &[rows, heads, value_width])?;
    if let Some(lse) = &lse {
        expect_shape("lse", lse.shape(), &[heads, rows])?;
    }
    let batch = packed_batch(&offsets, terms)?;
    let [offsets_q, offsets_k] = &offsets;
    let slopes =
        terms.slopes.as_ref().map(|slopes| broadcast("slopes", slopes, (batch, heads))).transpose()?;
    for b in 0..batch {
        let (of_rows, of_keys) = (sequence(offsets_q, b, rows), sequence(offsets_k, b, keys));
        let terms = AttentionTerms {
            slopes: slopes.as_ref().map(|slopes| slopes.slice(s![b..b + 1, ..])),
            ..terms.clone()
        };
        let lse = lse.as_mut().map(|lse| lse.slice_mut(s![.., of_rows.clone()]).insert_axis(Axis(0)));
        let y = y.slice_mut(s![of_rows.clone(), .., ..]).insert_axis(Axis(0));
        attention(one(&q, &of_rows), one(&k, &of_keys), one(&v, &of_keys), &terms, y, lse)?;
    }
    Ok(())
}

/// How many sequences are packed; the error for what they do not have.
fn packed_batch<T>(
    [offsets_q, offsets_k]: &[ArrayView1<'_, u32>; 2],
    terms: &AttentionTerms<'_, T>,
) -> Result<usize> {
    let Some(batch) = offsets_q.len().checked_sub(1) else {
        let (expected, actual) = ("[B + 1], at least one offset".into(), vec![0]);
        return Err(Error::Shape { operation: OPERATION, operand: "offsets_q", expected, actual });
    };
    expect_shape("offsets_k", offsets_k.shape(), &[batch + 1])?;
    let refused = [
        ("mask", terms.mask.is_some()),
        ("bias", terms.bias.is_some()),
        ("block_mask", terms.block_mask.is_some()),
        ("lengths_q", terms.lengths_q.is_some()),
        ("lengths_k", terms.lengths_k.is_some()),
        ("pages", terms.pages.is_some()),
    ];
    if let Some((argument, _)) = refused.into_iter().find(|(_, is_there)| *is_there) {
        let (expected, actual) = ("none for packed sequences".into(), "an array".into());
        return Err(Error::Argument { operation: OPERATION, argument, expected, actual });
    }
    Ok(batch)
}

/// A range of rows or keys, as a batch of one sequence.
fn one<'v, T>(operand: &'v ArrayView3<'_, T>, range: &Range<usize>) -> ArrayView4<'v, T> {
    operand.slice(s![range.clone(), .., ..]).insert_axis(Axis(0))
}

/// The rows or keys of sequence `b`, of `most` altogether.
fn sequence(offsets: &ArrayView1<'_, u32>, b: usize, most: usize) -> Range<usize> {
    let start = most.min(offsets[b] as usize);
    start..most.min(offsets[b + 1] as usize).max(start)
}

/// A tile's part of the results.
struct Piece<'y, O, L> {
    /// The sequence, the first row, the head.
    at: [usize; 3],
    y: ArrayViewMut4<'y, O>,
    lse: Option<ArrayViewMut3<'y, L>>,
}

/// Cuts the results into disjoint pieces of one head and at most [`TILE_ROWS`] rows.
fn pieces<'y, O, L>(
    y: ArrayViewMut4<'y, O>,
    lse: Option<ArrayViewMut3<'y, L>>,
) -> Result<Vec<Piece<'y, O, L>>> {
    let (batch, rows, heads, _) = y.dim();
    let count = batch.saturating_mul(heads).saturating_mul(rows.div_ceil(TILE_ROWS));
    let mut pieces = Vec::new();
    pieces
        .try_reserve_exact(count)
        .map_err(|_| out_of_memory(OPERATION, count.saturating_mul(size_of::<Piece<'_, O, L>>())))?;
    for (b, y, lse) in parts(y, lse, 1, [0, 0]) {
        for (h, y, lse) in parts(y, lse, 1, [2, 1]) {
            let tiles = parts(y, lse, TILE_ROWS, [1, 2]);
            pieces.extend(tiles.map(|(first, y, lse)| Piece { at: [b, first, h], y, lse }));
        }
    }
    Ok(pieces)
}

/// Parts of at most `length` along an axis of y and one of lse, each with where it starts.
fn parts<'y, O: 'y, L: 'y>(
    y: ArrayViewMut4<'y, O>,
    lse: Option<ArrayViewMut3<'y, L>>,
    length: usize,
    [y_axis, lse_axis]: [usize; 2],
) -> impl Iterator<Item = (usize, ArrayViewMut4<'y, O>, Option<ArrayViewMut3<'y, L>>)> {
    let (mut rest, mut start) = (Some((y, lse)), 0);
    std::iter::from_fn(move || {
        let (y, lse) = rest.take()?;
        let take = length.min(y.len_of(Axis(y_axis)));
        if take == 0 {
            return None;
        }
        let (part, y) = y.split_at(Axis(y_axis), take);
        let (lse_part, lse) = lse.map(|lse| lse.split_at(Axis(lse_axis), take)).unzip();
        rest = Some((y, lse));
        let at = start;
        start += take;
        Some((at, part, lse_part))
    })
}

fn expect_shape(operand: &'static str, actual: &[usize], expected: &[usize]) -> Result<()> {
    if actual == expected {
        return Ok(());
    }
    let expected = format!("{expected:?}, as the other operands give");
    Err(Error::Shape { operation: OPERATION, operand, expected, actual: actual.to_vec() })
}

/// `view` with its axes of length 1 repeated to fit `shape`.
fn broadcast<'v, T, D, S>(
    operand: &'static str,
    view: &'v ndarray::ArrayView<'_, T, D>,
    shape: S,
) -> Result<ndarray::ArrayView<'v, T, D>>
where
    D: Dimension,
    S: ndarray::IntoDimension<Dim = D>,
{
    let shape = shape.into_dimension();
    let expected = format!("{:?}, each axis also 1", shape.slice());
    let actual = view.shape().to_vec();
    view.broadcast(shape).ok_or(Error::Shape { operation: OPERATION, operand, expected, actual })
}

#[cfg(test)]
mod tests;
