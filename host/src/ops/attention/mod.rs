//! Scaled dot-product attention: `y = softmax(scale · q kᵀ) v`, with everything that is done to the scores on the way.
//!
//! [`attention`] starts a builder. [`AttentionOp::run`] and the like check everything first (`check`), which gives a `Problem`: sizes, strides
//! and options as plain numbers. `launch` makes a launch of it; the CPU runs its own implementation (`on_cpu`).

mod backward;
mod check;
mod keys;
mod launch;
mod on_cpu;
mod operands;
mod problem;
mod rotary;

use half::{bf16, f16};

pub use crate::cpu::{Alignment, Window};
pub use backward::{AttentionGradientOp, AttentionGradientOutputs, AttentionGradients};
pub use keys::AttentionKeys;
#[doc(hidden)]
pub use launch::Way;
pub use rotary::Rotary;

use crate::cpu::{FromAccumulator, Operand as CpuOperand};
use crate::device::DeviceKind;
use crate::error::Result;
use crate::ops::Implementation;
use crate::ops::rotary::RotaryElement;
use crate::stream::Stream;
use crate::tensor::{Element, Tensor};
use crate::trace;

use operands::{BlockMask, Operands, Packing};

/// The operation's name in errors.
const OPERATION: &str = "attention";

/// An element type of queries, keys and values.
pub trait AttentionInput:
    Element + CpuOperand + FromAccumulator<f32> + launch::Kernels + RotaryElement
{
}

impl AttentionInput for f16 {}
impl AttentionInput for bf16 {}
impl AttentionInput for f32 {}

/// The attention of queries `q` `[B, Sq, H, D]` to keys `k` `[B, Sk, Hk, D]` with values `v` `[B, Sk, Hk, Dv]`: `y` `[B, Sq, H, Dv]`.
///
/// H is a multiple of Hk: head h has the keys and values of head `h / (H / Hk)`. With [`packed`](AttentionOp::packed), sequences of different
/// lengths follow each other in `q` `[Tq, H, D]`, `k` `[Tk, Hk, D]` and `v` `[Tk, Hk, Dv]`. With [`pages`](AttentionOp::pages), keys and values are in pages.
///
/// Of row i and key j, with `t = scale · qᵢ·kⱼ`:
///
/// ```text
/// s = soft_cap · tanh(t / soft_cap) + bias − slope · |i + offset − j|      where row i attends to key j, else −∞
/// lse = ln (exp(sink) + Σⱼ exp(sⱼ))
/// y = Σⱼ exp(sⱼ − lse) vⱼ
/// ```
///
/// What was not asked for is not there. Sums and exponentials are in f32; GPUs round the weights to the type of `v` before they multiply values; the
/// result is rounded once. A row that attends to nothing has zeros in `y`, and −∞ or its sink in `lse`.
///
/// `k` and `v` may be of 8 bits where `q` is f16 or bf16: e4m3 or e5m2, with [scales](AttentionOp::k_scale). They are widened exactly, to the type of `q`, where they
/// are multiplied.
///
/// `q`, `k` and `v` are read in place, with any strides, if the elements of the last axis are contiguous.
///
/// ```
/// use ndarray::Array;
/// use warpsmith::ops::attention::Alignment;
/// use warpsmith::{Device, Tensor, ops};
///
/// let device = Device::cpu();
/// // One sequence of 3 rows and keys, two heads that share one of keys and values.
/// let q = Tensor::from_array(&device, &Array::from_elem((1, 3, 2, 8), 1.0f32))?;
/// let k = Tensor::from_array(&device, &Array::from_elem((1, 3, 1, 8), 1.0f32))?;
/// let v = Tensor::from_array(&device, &Array::from_shape_fn((1, 3, 1, 1), |(_, j, ..)| j as f32))?;
/// let (y, lse) = ops::attention(&q, &k, &v).causal(Alignment::BottomRight).run_with_lse()?;
/// assert_eq!(y.shape(), [1, 3, 2, 1]);
/// assert_eq!(y.to_vec()?, [0.0, 0.0, 0.5, 0.5, 1.0, 1.0]);
/// assert_eq!(lse.shape(), [1, 2, 3]);
/// # Ok::<(), warpsmith::Error>(())
/// ```
pub fn attention<'a, T: AttentionInput, K: AttentionKeys<T>>(
    q: &'a Tensor<T>,
    k: &'a Tensor<K>,
    v: &'a Tensor<K>,
) -> AttentionOp<'a, T, K> {
    AttentionOp { operands: Operands::new(q, k, v), stream: None }
}

/// An attention that has yet to run; see [`attention`](fn@attention).
#[derive(Debug)]
#[must_use = "an operation does nothing until `run` or `run_into`"]
pub struct AttentionOp<'a, T: Element, K: Element = T> {
    operands: Operands<'a, T, K>,
    stream: Option<&'a Stream>,
}

impl<'a, T: AttentionInput, K: AttentionKeys<T>> AttentionOp<'a, T, K> {
    /// Multiplies the products of queries and keys by `scale`, which is 1/√D unless it is set.
    pub fn scale(mut self, scale: f32) -> Self {
        self.operands.scale = Some(scale);
        self
    }

    /// Row i attends to the keys `j ≤ i + offset`: it is [`window`](Self::window) with no keys to the right and all to the left.
    pub fn causal(self, alignment: Alignment) -> Self {
        self.window(None, Some(0), alignment)
    }

    /// Row i attends to the keys `i + offset − left ≤ j ≤ i + offset + right`; `None` is all of them to that side.
    ///
    /// The offset is 0 with [`Alignment::TopLeft`], and the sequence's keys less its rows with [`Alignment::BottomRight`]. So `left` and `right` keys beside
    /// the one at `i + offset` count: `window(Some(511), Some(0), …)` is the last 512 keys. The last call of this and [`causal`](Self::causal) holds.
    pub fn window(mut self, left: Option<u32>, right: Option<u32>, alignment: Alignment) -> Self {
        self.operands.window = Window::new(left, right, alignment);
        self
    }

    /// Rows attend to keys where `mask` is not 0: `[B, H, Sq, Sk]`, each axis also of length 1, any strides. Not for packed sequences.
    pub fn mask(mut self, mask: impl Into<Option<&'a Tensor<u8>>>) -> Self {
        self.operands.mask = mask.into();
        self
    }

    /// Adds `bias` to the scores, after the soft cap: `[B, H, Sq, Sk]`, each axis also of length 1, any strides. Not for packed sequences.
    ///
    /// Where it is −∞ the row does not attend to the key.
    pub fn bias(mut self, bias: impl Into<Option<&'a Tensor<T>>>) -> Self {
        self.operands.bias = bias.into();
        self
    }

    /// The rows of a block attend to its keys where `mask` is not 0: `[B, H, ⌈Sq / rows⌉, ⌈Sk / keys⌉]`, the first two axes also of length 1, any strides, in
    /// blocks of the sizes `[rows, keys]`. Not for packed sequences.
    pub fn block_mask(mut self, mask: &'a Tensor<u8>, [rows, keys]: [u32; 2]) -> Self {
        self.operands.block_mask = Some(BlockMask { mask, sizes: [rows, keys] });
        self
    }

    /// Subtracts `slope · |i + offset − j|` from the score of row i and key j, with the slopes `[H]` of heads, or `[B, H]` (ALiBi; Press, Smith and Lewis,
    /// 2022).
    ///
    /// The offset is that of [`window`](Self::window), and of [`Alignment::BottomRight`] if there is none.
    pub fn alibi(mut self, slopes: impl Into<Option<&'a Tensor<f32>>>) -> Self {
        self.operands.slopes = slopes.into();
        self
    }

    /// Bounds the scores: t becomes `cap · tanh(t / cap)`, before anything is added.
    pub fn soft_cap(mut self, cap: impl Into<Option<f32>>) -> Self {
        self.operands.soft_cap = cap.into();
        self
    }

    /// Each head has one more logit, of `sinks` `[H]`, which takes weight and has no value.
    pub fn sinks(mut self, sinks: impl Into<Option<&'a Tensor<f32>>>) -> Self {
        self.operands.sinks = sinks.into();
        self
    }

    /// Only so many rows, and keys, of each sequence count: `[B]` each. Not for packed sequences.
    ///
    /// The rows beyond have zeros in the result and −∞ in `lse`. Offsets of alignments are those of these lengths. A length beyond Sq, or Sk, counts
    /// for it: lengths are read on the device, where nothing can be refused.
    pub fn lengths(mut self, q: Option<&'a Tensor<u32>>, k: Option<&'a Tensor<u32>>) -> Self {
        self.operands.lengths = [q, k];
        self
    }

    /// Keys and values are in pages: `k` is `[P, page size, Hk, D]`, `v` `[P, page size, Hk, Dv]`, and key j of sequence b is key `j % page size` of the page
    /// `table[b][j / page size]`. Not for packed sequences.
    ///
    /// The table is `[B, pages of a sequence]`; its rows may be those of a wider table. A page has at least one key, and sequences may share pages. Sk is
    /// the pages of a sequence times the page size, unless [`lengths`](Self::lengths) says less. What of the table is behind a sequence's length is not read.
    ///
    /// A number beyond the last page counts for the last page: tables are read on the device, where nothing can be refused.
    ///
    /// ```
    /// use ndarray::{Array, array};
    /// use warpsmith::{Device, Tensor, ops};
    ///
    /// let device = Device::cpu();
    /// // Five pages of two keys, of which the sequence has pages 4 and 1: three keys.
    /// let q = Tensor::from_array(&device, &Array::from_elem((1, 1, 1, 8), 1.0f32))?;
    /// let k = Tensor::from_array(&device, &Array::from_elem((5, 2, 1, 8), 1.0f32))?;
    /// let v = Tensor::from_array(&device, &Array::from_shape_fn((5, 2, 1, 1), |(page, row, ..)| (2 * page + row) as f32))?;
    /// let table = Tensor::from_array(&device, &array![[4u32, 1]])?;
    /// let lengths = Tensor::from_array(&device, &array![3u32])?;
    /// let y = ops::attention(&q, &k, &v).pages(&table).lengths(None, Some(&lengths)).run()?;
    /// assert_eq!(y.to_vec()?, [(8.0 + 9.0 + 2.0) / 3.0]);
    /// # Ok::<(), warpsmith::Error>(())
    /// ```
    pub fn pages(mut self, table: impl Into<Option<&'a Tensor<u32>>>) -> Self {
        self.operands.pages = table.into();
        self
    }

    /// What the numbers of 8 bits in `k` are multiplied with to be keys: one number `[1]`, or one for each head `[Hk]`. They are keys as they are without it.
    ///
    /// Scales are read on the device. `k` and `v` of 16 or 32 bits have none.
    ///
    /// ```
    /// use float8::F8E4M3;
    /// use half::bf16;
    /// use ndarray::{Array, array};
    /// use warpsmith::{Device, Tensor, ops};
    ///
    /// let device = Device::cpu();
    /// let q = Tensor::from_array(&device, &Array::from_elem((1, 1, 2, 8), bf16::ONE))?;
    /// let k = Tensor::from_array(&device, &Array::from_elem((1, 3, 2, 8), F8E4M3::from_f32(0.5)))?;
    /// let v = Tensor::from_array(&device, &Array::from_elem((1, 3, 2, 1), F8E4M3::from_f32(1.5)))?;
    /// let scales = Tensor::from_array(&device, &array![2.0f32, 4.0])?;
    /// let y = ops::attention(&q, &k, &v).k_scale(&scales).v_scale(&scales).run()?;
    /// assert_eq!(y.to_vec()?, [bf16::from_f32(3.0), bf16::from_f32(6.0)]);
    /// # Ok::<(), warpsmith::Error>(())
    /// ```
    pub fn k_scale(mut self, scale: impl Into<Option<&'a Tensor<f32>>>) -> Self {
        self.operands.scales[0] = scale.into();
        self
    }

    /// What the numbers of 8 bits in `v` are multiplied with to be values, as [`k_scale`](Self::k_scale) says of keys.
    pub fn v_scale(mut self, scale: impl Into<Option<&'a Tensor<f32>>>) -> Self {
        self.operands.scales[1] = scale.into();
        self
    }

    /// Sequences follow each other: sequence b has the rows `offsets_q[b]..offsets_q[b + 1]` and the keys `offsets_k[b]..offsets_k[b + 1]`. Both are `[B + 1]`.
    ///
    /// An offset beyond the rows, or keys, counts for their number: offsets are read on the device, where nothing can be refused. Where an
    /// offset is less than one before, what rows hold is unspecified. Rows of no sequence have zeros, and −∞ in `lse`, in what [`run`](Self::run) returns;
    /// [`run_into`](Self::run_into) leaves them as they are. What rows of two sequences hold is unspecified.
    pub fn packed(mut self, offsets_q: &'a Tensor<u32>, offsets_k: &'a Tensor<u32>) -> Self {
        self.operands.packing = Some(Packing { q: offsets_q, k: offsets_k });
        self
    }

    /// Turns queries and keys by rotary position embedding before their products, as [`ops::rotary`](crate::ops::rotary()) does.
    ///
    /// They are turned into tensors of their own by a launch each, rounded to their type, and the result has the bits that it has of these. A key is turned once,
    /// however many queries attend to it. With [`queries_only`](Rotary::queries_only) keys are as they are.
    ///
    /// ```
    /// use ndarray::Array;
    /// use warpsmith::ops::attention::{Alignment, Rotary};
    /// use warpsmith::ops::{self, RotaryTable};
    /// use warpsmith::{Device, Tensor};
    ///
    /// let device = Device::cpu();
    /// let table = RotaryTable::new(&device, 10_000.0, 8, 100)?;
    /// let q = Tensor::from_array(&device, &Array::from_shape_fn((1, 3, 2, 8), |(_, i, h, d)| (i + h * d) as f32))?;
    /// let k = Tensor::from_array(&device, &Array::from_shape_fn((1, 3, 1, 8), |(_, j, _, d)| (j * d) as f32))?;
    /// let y = ops::attention(&q, &k, &k).rotary(Rotary::new(&table)).causal(Alignment::TopLeft).run()?;
    /// let (q, turned) = (ops::rotary(&q, &table).run()?, ops::rotary(&k, &table).run()?);
    /// let expected = ops::attention(&q, &turned, &k).causal(Alignment::TopLeft).run()?;
    /// assert_eq!(y.to_vec()?, expected.to_vec()?);
    /// # Ok::<(), warpsmith::Error>(())
    /// ```
    pub fn rotary(mut self, rotary: impl Into<Option<Rotary<'a>>>) -> Self {
        self.operands.rotary = rotary.into();
        self
    }

    /// Computes it in this way, where it can be computed so.
    #[doc(hidden)]
    pub fn way(mut self, way: impl Into<Option<Way>>) -> Self {
        self.operands.way = way.into();
        self
    }

    /// Runs on `stream` instead of the device's default stream.
    pub fn on(mut self, stream: &'a Stream) -> Self {
        self.stream = Some(stream);
        self
    }

    /// Computes `y`. On a GPU the work may still be under way when this returns.
    ///
    /// # Errors
    ///
    /// [`Error::Shape`] if the operands' shapes do not fit together. [`Error::Stride`] if elements of the last axis of `q`,
    /// `k`, `v` or a table of pages are not contiguous, or lengths, offsets, slopes, sinks or scales have gaps.
    /// [`Error::DeviceMismatch`] if an operand or the stream is another device's. [`Error::Argument`] for a scale that is not
    /// finite, a soft cap that is not finite and above 0, and blocks of no rows or keys. The same for what packed sequences do
    /// not have, scales of keys that are not of 8 bits, and rotations of keys that cannot be turned or of positions that the
    /// table lacks.
    /// [`Error::SizeLimit`] for axes of 2³¹ and more. [`Error::UnsupportedDevice`] if no kernel of the device takes the sizes.
    /// Otherwise whatever allocating the result, loading the kernel and launching it may return.
    ///
    /// [`Error::Shape`]: crate::Error::Shape
    /// [`Error::Stride`]: crate::Error::Stride
    /// [`Error::DeviceMismatch`]: crate::Error::DeviceMismatch
    /// [`Error::Argument`]: crate::Error::Argument
    /// [`Error::SizeLimit`]: crate::Error::SizeLimit
    /// [`Error::UnsupportedDevice`]: crate::Error::UnsupportedDevice
    pub fn run(&self) -> Result<Tensor<T>> {
        let _range = trace::operation(OPERATION);
        let checked = self.operands.check(self.stream)?;
        let mut y = checked.new_output()?;
        checked.write(&mut y, None)?;
        Ok(y)
    }

    /// As [`run`](Self::run), with the natural logarithms of the sums of exponentials: `[B, H, Sq]`, or `[H, Tq]` of packed sequences.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run).
    pub fn run_with_lse(&self) -> Result<(Tensor<T>, Tensor<f32>)> {
        let _range = trace::operation(OPERATION);
        let checked = self.operands.check(self.stream)?;
        let (mut y, mut lse) = (checked.new_output()?, checked.new_lse()?);
        checked.write(&mut y, Some(&mut lse))?;
        Ok((y, lse))
    }

    /// Computes into `y`, so that the work can be [captured](Stream::capture) with its result kept. Elements of its last axis are contiguous; other
    /// strides are any.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run), also for `y`; [`Error::ReadOnly`] if it may not be written, [`Error::Overlap`] if it shares memory with an operand.
    ///
    /// [`Error::ReadOnly`]: crate::Error::ReadOnly
    /// [`Error::Overlap`]: crate::Error::Overlap
    pub fn run_into(&self, y: &mut Tensor<T>) -> Result<()> {
        let _range = trace::operation(OPERATION);
        let checked = self.operands.check(self.stream)?;
        checked.expect_output(y)?;
        checked.write(y, None)
    }

    /// As [`run_into`](Self::run_into), with `lse`, a tensor without gaps of the shape that [`run_with_lse`](Self::run_with_lse) returns.
    ///
    /// # Errors
    ///
    /// As [`run_into`](Self::run_into), also for `lse`.
    pub fn run_into_with_lse(&self, y: &mut Tensor<T>, lse: &mut Tensor<f32>) -> Result<()> {
        let _range = trace::operation(OPERATION);
        let checked = self.operands.check(self.stream)?;
        checked.expect_output(y)?;
        checked.expect_lse(lse, y)?;
        checked.write(y, Some(lse))
    }

    /// Which implementation [`run`](Self::run) would take.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run), but for what the device may refuse.
    pub fn implementation(&self) -> Result<Implementation> {
        let checked = self.operands.check(self.stream)?;
        if checked.problem.is_empty() {
            return Ok(Implementation::Empty);
        }
        match (checked.operands.q.device().kind(), &self.operands.rotary) {
            (DeviceKind::Cpu, _) => Ok(Implementation::Cpu),
            (_, Some(rotary)) => {
                Ok(checked.operands.rotary_implementation(rotary)?.then(launch::implementation(&checked)?))
            }
            (_, None) => launch::implementation(&checked),
        }
    }
}

#[cfg(test)]
mod tests;
