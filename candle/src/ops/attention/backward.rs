//! The gradients of attention, of whole matrices of scores in f32.

use candle_core::{D, DType, Device, Tensor};
use warpsmith::ops::attention::Alignment;

use super::Options;
use crate::error::Result;
use crate::ops::matmul;

/// What the gradients are computed from.
pub(super) struct Backward {
    /// q, k and v.
    pub(super) operands: [Tensor; 3],
    pub(super) bias: Option<Tensor>,
    pub(super) mask: Option<Tensor>,
    pub(super) slopes: Option<Tensor>,
    pub(super) sinks: Option<Tensor>,
    pub(super) options: Options,
}

/// The weights of keys, and what else of the forward pass the gradients need; all `[B, Hk, G, Sq, ..]`, of the G
/// heads of queries that share a head of keys.
struct Weights {
    /// `[B, Hk, G, Sq, Sk]`.
    p: Tensor,
    /// The weight of the sink, `[B, Hk, G, Sq, 1]`.
    sink: Option<Tensor>,
    /// The slopes of the soft cap, of the shape of p.
    cap_slopes: Option<Tensor>,
}

/// Sizes of an attention.
#[derive(Clone, Copy)]
struct Sizes {
    b: usize,
    sq: usize,
    sk: usize,
    h: usize,
    hk: usize,
}

impl Backward {
    /// The gradients of q, k, v, the bias and the sinks, where they are there.
    pub(super) fn run(&self, dy: &Tensor) -> Result<Vec<Option<Tensor>>> {
        let [q, k, v] = &self.operands;
        let (b, sq, h, d) = q.dims4()?;
        let (_, sk, hk, dv) = v.dims4()?;
        let sizes = Sizes { b, sq, sk, h, hk };
        if [b, sq, sk, h, hk].contains(&0) || d == 0 || dv == 0 {
            return self.of_nothing();
        }
        // Heads before tokens, those of queries in groups.
        let rows = |x: &Tensor, width: usize| -> Result<Tensor> {
            Ok(x.to_dtype(DType::F32)?.transpose(1, 2)?.reshape((b, hk, h / hk, sq, width))?)
        };
        let keys =
            |x: &Tensor| -> Result<Tensor> { Ok(x.to_dtype(DType::F32)?.transpose(1, 2)?.unsqueeze(2)?) };
        let (q, dy, k, v) = (rows(q, d)?, rows(dy, dv)?, keys(k)?, keys(v)?);
        let scale = self.options.scale.unwrap_or(1.0 / (d as f32).sqrt());
        let Weights { p, sink, cap_slopes } = self.weights(sizes, matmul(&q, &k.t()?).alpha(scale).run()?)?;

        // The rows of a group are those of one product: sums over the group are sums over rows.
        let grouped = |x: &Tensor, width: usize| x.contiguous()?.reshape((b, hk, h / hk * sq, width));
        let gradient_v = matmul(&grouped(&p, sk)?.t()?, &grouped(&dy, dv)?).run()?;
        let dp = matmul(&dy, &v.t()?).run()?;
        let along = (&dp * &p)?.sum_keepdim(D::Minus1)?;
        let ds = (&p * dp.broadcast_sub(&along)?)?;
        let dt = match &cap_slopes {
            Some(slopes) => (&ds * slopes)?,
            None => ds.clone(),
        };
        let gradient_q = matmul(&dt, &k).alpha(scale).run()?;
        let gradient_k = matmul(&grouped(&dt, sk)?.t()?, &grouped(&q, d)?).alpha(scale).run()?;

        let dtype = self.operands[0].dtype();
        let back = |x: Tensor| -> Result<Option<Tensor>> {
            Ok(Some(x.transpose(1, 2)?.to_dtype(dtype)?.contiguous()?))
        };
        let mut all = vec![back(gradient_q.reshape((b, h, sq, d))?)?, back(gradient_k)?, back(gradient_v)?];
        if let Some(bias) = &self.bias {
            let gradient = summed_to(&ds.reshape((b, h, sq, sk))?, bias.dims())?;
            all.push(Some(gradient.to_dtype(dtype)?));
        }
        if let Some(sink) = sink {
            let gradient = (sink * along)?.reshape((b, h, sq))?.sum((0, 2))?.neg()?;
            all.push(Some(gradient));
        }
        Ok(all)
    }

    /// Zeros: there are no rows, keys or columns.
    fn of_nothing(&self) -> Result<Vec<Option<Tensor>>> {
        let operands = self.operands.iter().chain(&self.bias).chain(&self.sinks);
        operands.map(|operand| Ok(Some(operand.zeros_like()?))).collect()
    }

    /// The weights of scores t.
    fn weights(&self, sizes: Sizes, t: Tensor) -> Result<Weights> {
        let Sizes { b, sq, sk, h, hk } = sizes;
        let device = t.device().clone();
        let (s, cap_slopes) = match self.options.soft_cap {
            None => (t, None),
            Some(cap) => {
                let tanh = (t / f64::from(cap))?.tanh()?;
                let slopes = tanh.sqr()?.affine(-1.0, 1.0)?;
                ((tanh * f64::from(cap))?, Some(slopes))
            }
        };
        let mut s = s.reshape((b, h, sq, sk))?;
        if let Some(bias) = &self.bias {
            s = s.broadcast_add(&bias.to_dtype(DType::F32)?)?;
        }
        let Options { window, alignment, .. } = self.options;
        let offset = if alignment == Alignment::TopLeft { 0 } else { sk as i64 - sq as i64 };
        if let Some(slopes) = &self.slopes {
            let distances: Vec<f32> =
                places(sq, sk, offset).map(|(row, key)| (row - key).unsigned_abs() as f32).collect();
            let distances = Tensor::from_vec(distances, (1, 1, sq, sk), &device)?;
            let slopes = slopes.reshape((slopes.elem_count() / h, h, 1, 1))?;
            s = s.broadcast_sub(&slopes.broadcast_mul(&distances)?)?;
        }
        if window != [None; 2] {
            s = masked(&s, &in_window(window, (sq, sk), offset, &device)?)?;
        }
        if let Some(mask) = &self.mask {
            s = masked(&s, mask)?;
        }
        let sinks = self.sinks.as_ref().map(|sinks| sinks.reshape((1, h, 1, 1))).transpose()?;
        let (p, sink) = softmax(&s, sinks.as_ref())?;
        let (groups, sink_groups) = ((b, hk, h / hk, sq, sk), (b, hk, h / hk, sq, 1));
        let sink = sink.map(|sink| sink.reshape(sink_groups)).transpose()?;
        Ok(Weights { p: p.reshape(groups)?, sink, cap_slopes })
    }
}

/// The row's place among the keys, and the key's, of all pairs.
fn places(rows: usize, keys: usize, offset: i64) -> impl Iterator<Item = (i64, i64)> {
    (0..rows as i64).flat_map(move |row| (0..keys as i64).map(move |key| (row + offset, key)))
}

/// A mask `[1, 1, Sq, Sk]` of the keys that are in a window.
fn in_window(
    [left, right]: [Option<u32>; 2],
    (rows, keys): (usize, usize),
    offset: i64,
    device: &Device,
) -> Result<Tensor> {
    let is_in = |(row, key): (i64, i64)| {
        let is_right_of_start = left.is_none_or(|left| key >= row - i64::from(left));
        let is_left_of_end = right.is_none_or(|right| key <= row + i64::from(right));
        u8::from(is_right_of_start && is_left_of_end)
    };
    let mask: Vec<u8> = places(rows, keys, offset).map(is_in).collect();
    Ok(Tensor::from_vec(mask, (1, 1, rows, keys), device)?)
}

/// −∞ where the mask is 0.
fn masked(s: &Tensor, mask: &Tensor) -> Result<Tensor> {
    let nothing = Tensor::full(f32::NEG_INFINITY, s.shape(), s.device())?;
    Ok(mask.broadcast_as(s.shape())?.contiguous()?.where_cond(s, &nothing)?)
}

/// The softmax of the last axis, with a logit more if there are sinks, and the weight of that. Rows of −∞ have zeros.
fn softmax(s: &Tensor, sinks: Option<&Tensor>) -> Result<(Tensor, Option<Tensor>)> {
    let mut most = s.max_keepdim(D::Minus1)?;
    if let Some(sinks) = sinks {
        most = most.broadcast_maximum(sinks)?;
    }
    // So that a row of −∞ is not subtracted from itself.
    let most = most.maximum(f64::from(f32::MIN))?;
    let exponentials = s.broadcast_sub(&most)?.exp()?;
    let mut sum = exponentials.sum_keepdim(D::Minus1)?;
    let sink = sinks.map(|sinks| sinks.broadcast_sub(&most)?.exp()).transpose()?;
    if let Some(sink) = &sink {
        sum = (sum + sink)?;
    }
    // The largest has the exponential 1: only rows of nothing have less.
    let sum = sum.maximum(f64::from(f32::MIN_POSITIVE))?;
    let sink = sink.map(|sink| sink / &sum).transpose()?;
    Ok((exponentials.broadcast_div(&sum)?, sink))
}

/// The sums over the axes that were broadcast from length 1.
fn summed_to(x: &Tensor, dims: &[usize]) -> Result<Tensor> {
    let mut sums = x.clone();
    for (axis, (&length, &target)) in x.dims().iter().zip(dims).enumerate() {
        if length != target {
            sums = sums.sum_keepdim(axis)?;
        }
    }
    Ok(sums)
}
