//! The gradients of attention on the CPU.
//!
//! A thread has a head of keys of a sequence, and the rows of all heads that share it, in order. So results do not depend on how many threads there are.

use ndarray::{ArrayView1, ArrayView2, ArrayView3, ArrayView4, Axis, s};
use ndarray::{ArrayViewMut1, ArrayViewMut2, ArrayViewMut3, ArrayViewMut4};
use rayon::prelude::*;

use super::tile::{BLOCK, Scratch, Tile, dot, fill, softmax, union, widen};
use super::{
    AttentionTerms, Options, TILE_ROWS, broadcast, expect_shape, of_head, one, packed_batch, sequence,
};
use crate::cpu::number::{Accumulator, FromAccumulator, Operand};
use crate::error::{Error, Result};

/// The operation's name in errors.
const OPERATION: &str = "cpu::attention_gradient";

/// Computes the gradients of [`attention`](super::attention)'s q, k and v for `dy`, that of its y, adding up in `A` and rounding once. Weights are computed again.
///
/// `dq`, `dk` and `dv` have the shapes of q, k and v; any strides, any sizes. What the sinks' gradient is, `[H]`, is added to `dsinks`. Rows and keys that do not count, and
/// those that no weight joins, have zeros.
///
/// # Errors
///
/// As [`attention`](super::attention); [`Error::Argument`] for pages and for scales of keys and values, and for `dsinks` without sinks.
pub fn attention_gradient<A, T, O>(
    [q, k, v]: [ArrayView4<'_, T>; 3],
    dy: ArrayView4<'_, T>,
    terms: &AttentionTerms<'_, T>,
    [mut dq, mut dk, mut dv]: [ArrayViewMut4<'_, O>; 3],
    dsinks: Option<ArrayViewMut1<'_, A>>,
) -> Result<()>
where
    A: Accumulator,
    T: Operand,
    O: FromAccumulator<A>,
{
    let (batch, rows, heads, width) = q.dim();
    let (_, keys, key_heads, value_width) = v.dim();
    expect_shape("k", k.shape(), &[batch, keys, key_heads, width])?;
    expect_shape("v", v.shape(), &[batch, keys, key_heads, value_width])?;
    expect_shape("dy", dy.shape(), &[batch, rows, heads, value_width])?;
    expect_shape("dq", dq.shape(), q.shape())?;
    expect_shape("dk", dk.shape(), k.shape())?;
    expect_shape("dv", dv.shape(), v.shape())?;
    if heads != 0 && (key_heads == 0 || heads % key_heads != 0) {
        let expected = format!("a number of heads that divides the {heads} of q");
        let actual = k.shape().to_vec();
        return Err(Error::Shape { operation: OPERATION, operand: "k", expected, actual });
    }
    expect_differentiable(terms)?;
    if let Some(dsinks) = &dsinks {
        expect_shape("dsinks", dsinks.shape(), &[heads])?;
        if terms.sinks.is_none() {
            let (expected, actual) = ("none without sinks".into(), "an array".into());
            return Err(Error::Argument { operation: OPERATION, argument: "dsinks", expected, actual });
        }
    }
    let options = Options::new(terms, [batch, heads, rows, keys], key_heads)?;
    let group = heads / key_heads.max(1);
    if group == 0 {
        dk.fill(O::from_accumulator(A::zero()));
        dv.fill(O::from_accumulator(A::zero()));
        return Ok(());
    }
    let mut work = Vec::new();
    let matrices = dq.axis_iter_mut(Axis(0)).zip(dk.axis_iter_mut(Axis(0))).zip(dv.axis_iter_mut(Axis(0)));
    for (b, ((mut dq, mut dk), mut dv)) in matrices.enumerate() {
        for head in 0..key_heads {
            let of_head;
            (of_head, dq) = dq.split_at(Axis(1), group);
            let (of_key, of_value);
            (of_key, dk) = dk.split_at(Axis(1), 1);
            (of_value, dv) = dv.split_at(Axis(1), 1);
            let [dk, dv] = [of_key, of_value].map(|gradient| gradient.index_axis_move(Axis(1), 0));
            work.push((b, head, of_head, dk, dv));
        }
    }
    let of_sinks: Vec<Vec<A>> = work
        .into_par_iter()
        .map_init(GradientScratch::default, |scratch, (b, key_head, mut dq, dk, dv)| {
            fill(OPERATION, &mut scratch.dk, keys.saturating_mul(width))?;
            fill(OPERATION, &mut scratch.dv, keys.saturating_mul(value_width))?;
            let mut of_sinks = vec![A::zero(); group];
            for (of_group, of_sink) in of_sinks.iter_mut().enumerate() {
                let h = key_head * group + of_group;
                for first in (0..rows).step_by(TILE_ROWS) {
                    let of_rows = first..rows.min(first + TILE_ROWS);
                    let of_keys = [&k, &v].map(|operand| of_head(operand, b, key_head, None));
                    let q = q.slice(s![b, of_rows.clone(), h, ..]);
                    let tile = options.tile([b, h, key_head], first, q, of_keys);
                    let dy = dy.slice(s![b, of_rows.clone(), h, ..]);
                    let dq = dq.slice_mut(s![of_rows, of_group, ..]);
                    *of_sink += tile.differentiate(scratch, dy, dq)?;
                }
            }
            let scale = A::from_f32(terms.scale);
            for (mut to, (sums, factor)) in
                [dk, dv].into_iter().zip([(&scratch.dk, scale), (&scratch.dv, A::one())])
            {
                for (to, &sum) in to.iter_mut().zip(sums) {
                    *to = O::from_accumulator(factor * sum);
                }
            }
            Ok(of_sinks)
        })
        .collect::<Result<_>>()?;
    if let Some(mut dsinks) = dsinks {
        // Of one sequence after the other.
        for (index, of_sink) in of_sinks.iter().flatten().enumerate() {
            dsinks[index % heads] += *of_sink;
        }
    }
    Ok(())
}

/// The error for terms that have no gradients.
fn expect_differentiable<T>(terms: &AttentionTerms<'_, T>) -> Result<()> {
    let refused = [
        ("pages", terms.pages.is_some()),
        ("k_scale", terms.k_scale.is_some()),
        ("v_scale", terms.v_scale.is_some()),
    ];
    match refused.into_iter().find(|(_, is_there)| *is_there) {
        Some((argument, _)) => {
            let (expected, actual) = ("none where there are gradients".into(), "an array".into());
            Err(Error::Argument { operation: OPERATION, argument, expected, actual })
        }
        None => Ok(()),
    }
}

/// As [`attention_gradient`] of each of several sequences, as [`packed_attention`](super::packed_attention) has them. Rows and keys of no sequence stay as they are.
///
/// # Errors
///
/// As [`packed_attention`](super::packed_attention) and [`attention_gradient`].
pub fn packed_attention_gradient<A, T, O>(
    [q, k, v]: [ArrayView3<'_, T>; 3],
    dy: ArrayView3<'_, T>,
    offsets: [ArrayView1<'_, u32>; 2],
    terms: &AttentionTerms<'_, T>,
    [mut dq, mut dk, mut dv]: [ArrayViewMut3<'_, O>; 3],
    mut dsinks: Option<ArrayViewMut1<'_, A>>,
) -> Result<()>
where
    A: Accumulator,
    T: Operand,
    O: FromAccumulator<A>,
{
    let ((rows, heads, _), keys) = (q.dim(), k.dim().0);
    for (operand, actual, expected) in [
        ("v", v.shape(), keys),
        ("dy", dy.shape(), rows),
        ("dq", dq.shape(), rows),
        ("dk", dk.shape(), keys),
        ("dv", dv.shape(), keys),
    ] {
        expect_shape(operand, &actual[..1], &[expected])?;
    }
    let batch = packed_batch(&offsets, terms)?;
    let slopes = terms.slopes.as_ref();
    let slopes = slopes.map(|slopes| broadcast("slopes", slopes, (batch, heads))).transpose()?;
    for b in 0..batch {
        let (of_rows, of_keys) = (sequence(&offsets[0], b, rows), sequence(&offsets[1], b, keys));
        let terms = AttentionTerms {
            slopes: slopes.as_ref().map(|slopes| slopes.slice(s![b..b + 1, ..])),
            ..terms.clone()
        };
        let operands = [one(&q, &of_rows), one(&k, &of_keys), one(&v, &of_keys)];
        let gradients = [
            dq.slice_mut(s![of_rows.clone(), .., ..]).insert_axis(Axis(0)),
            dk.slice_mut(s![of_keys.clone(), .., ..]).insert_axis(Axis(0)),
            dv.slice_mut(s![of_keys.clone(), .., ..]).insert_axis(Axis(0)),
        ];
        let dsinks = dsinks.as_mut().map(|dsinks| dsinks.view_mut());
        attention_gradient(operands, one(&dy, &of_rows), &terms, gradients, dsinks)?;
    }
    Ok(())
}

/// A thread's buffers, kept from tile to tile, and the sums of a head of keys.
#[derive(Default)]
struct GradientScratch<A> {
    /// Of its scores and rows of q.
    forward: Scratch<A>,
    dy: Vec<A>,
    /// The gradient of each score.
    ds: Vec<A>,
    dq: Vec<A>,
    dk: Vec<A>,
    dv: Vec<A>,
}

impl<A: Accumulator, T: Operand> Tile<'_, A, T, T> {
    /// Writes the gradient of the tile's rows, adds those of keys and values, without the scale of keys, and returns what its rows add to that of the sink.
    fn differentiate<O: FromAccumulator<A>>(
        &self,
        scratch: &mut GradientScratch<A>,
        dy: ArrayView2<'_, T>,
        mut dq: ArrayViewMut2<'_, O>,
    ) -> Result<A> {
        let (rows, width) = self.q.dim();
        let spans: Vec<_> = (0..rows).map(|row| self.span(row)).collect();
        let keys = union(&spans);
        if keys.is_empty() {
            dq.fill(O::from_accumulator(A::zero()));
            return Ok(A::zero());
        }
        let GradientScratch { forward, dy: wide_dy, ds, dq: sums, dk, dv } = scratch;
        self.score(OPERATION, forward, &spans, &keys)?;
        let Scratch { q, block, narrow, scores, .. } = forward;
        widen(OPERATION, dy.ncols(), (0..rows).map(|row| dy.row(row)), narrow, wide_dy)?;

        // Weights take the place of scores.
        let mut of_sink = vec![A::zero(); rows];
        for (scores, of_sink) in scores.chunks_exact_mut(keys.len()).zip(&mut of_sink) {
            let total = softmax(scores, self.sink);
            if total.sum != A::zero() {
                scores.iter_mut().for_each(|weight| *weight = *weight / total.sum);
                *of_sink = self.sink.map_or(A::zero(), |sink| (sink - total.lse).exp());
            }
        }

        fill(OPERATION, ds, rows.saturating_mul(keys.len()))?;
        let mut of_row = vec![A::zero(); rows];
        let blocks = || keys.clone().step_by(BLOCK).map(|start| start..keys.end.min(start + BLOCK));
        for of_block in blocks() {
            let values = of_block.clone().map(|key| self.v.row(key));
            widen(OPERATION, self.v.columns(), values, narrow, block)?;
            let values = self.v.columns();
            for row in 0..rows {
                let dy = &wide_dy[row * values..][..values];
                for key in of_block.clone() {
                    let at = row * keys.len() + key - keys.start;
                    // What a row does not attend to must not show, even if it is NaN.
                    if scores[at] != A::zero() {
                        ds[at] = dot(dy, &block[(key - of_block.start) * values..][..values]);
                        of_row[row] += scores[at] * ds[at];
                        add(&mut dv[key * values..][..values], scores[at], dy);
                    }
                }
            }
        }
        fill(OPERATION, sums, rows.saturating_mul(width))?;
        for of_block in blocks() {
            let of_keys = of_block.clone().map(|key| self.k.row(key));
            widen(OPERATION, width, of_keys, narrow, block)?;
            for row in 0..rows {
                let q = &q[row * width..][..width];
                for key in of_block.clone() {
                    let at = row * keys.len() + key - keys.start;
                    if scores[at] != A::zero() {
                        let k = &block[(key - of_block.start) * width..][..width];
                        let slope = self.slope_of_cap(|| dot(q, k));
                        let ds = scores[at] * (ds[at] - of_row[row]) * slope;
                        add(&mut sums[row * width..][..width], ds, k);
                        add(&mut dk[key * width..][..width], ds, q);
                    }
                }
            }
        }
        for (to, &sum) in dq.iter_mut().zip(&*sums) {
            *to = O::from_accumulator(self.scale * sum);
        }
        Ok(of_sink.into_iter().zip(of_row).fold(A::zero(), |sum, (weight, of_row)| sum - weight * of_row))
    }

    /// The slope of the soft cap where a query and a key have this product; 1 without one.
    fn slope_of_cap(&self, product: impl FnOnce() -> A) -> A {
        self.soft_cap.map_or(A::one(), |cap| {
            let capped = (product() * self.scale / cap).tanh();
            (A::one() - capped) * (A::one() + capped)
        })
    }
}

/// Adds `weight` times a row.
fn add<A: Accumulator>(sums: &mut [A], weight: A, row: &[A]) {
    for (sum, &element) in sums.iter_mut().zip(row) {
        *sum += weight * element;
    }
}

#[cfg(test)]
mod tests;
