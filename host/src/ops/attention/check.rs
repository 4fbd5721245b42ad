//! What an attention takes: every operand and option is checked before anything runs.

use super::launch;
use super::operands::Operands;
use super::problem::{Paging, Problem};
use super::{AttentionInput, AttentionKeys, OPERATION};
use crate::device::DeviceKind;
use crate::error::{Error, Result};
use crate::ops::{SIDE_LIMIT, expect_result};
use crate::stream::Stream;
use crate::tensor::{Element, Tensor};

/// Operands that have been checked, the problem that they make, and the stream to run on.
pub(super) struct Checked<'c, 'a, T: Element, K: Element> {
    pub(super) operands: &'c Operands<'a, T, K>,
    pub(super) problem: Problem,
    pub(super) stream: Stream,
}

/// How many axes operands have: packed sequences have none of sequences.
struct Form {
    is_packed: bool,
}

impl<'a, T: AttentionInput, K: AttentionKeys<T>> Operands<'a, T, K> {
    /// The checked operands, or the first error.
    pub(super) fn check(&self, stream: Option<&Stream>) -> Result<Checked<'_, 'a, T, K>> {
        let device = self.q.device();
        for input in self.inputs() {
            device.expect_same(OPERATION, input.name, input.device)?;
        }
        if let Some(stream) = stream {
            device.expect_same(OPERATION, "stream", stream.device())?;
        }
        let problem = self.problem()?;
        self.check_rotary()?;
        let stream = stream.cloned().unwrap_or_else(|| device.default_stream());
        Ok(Checked { operands: self, problem, stream })
    }

    fn problem(&self) -> Result<Problem> {
        let form = Form { is_packed: self.packing.is_some() };
        self.expect_none_packed()?;
        let [dense_k, dense_v] = match self.pages {
            Some(_) => ["[P, page size, Hk, D]", "[P, page size, Hk, Dv]"],
            None => ["[B, Sk, Hk, D]", "[B, Sk, Hk, Dv]"],
        };
        let [of_q, of_k, of_v] = [
            form.axes("q", self.q, "[B, Sq, H, D]", "[Tq, H, D]")?,
            form.axes("k", self.k, dense_k, "[Tk, Hk, D]")?,
            form.axes("v", self.v, dense_v, "[Tk, Hk, Dv]")?,
        ];
        let ([b, rows, heads, width], [pages, in_order, key_heads, _]) = (of_q, of_k);
        let value_width = of_v[3];
        let matrices = if self.pages.is_some() { pages } else { b };
        form.expect("k", self.k, [matrices, in_order, key_heads, width], "q")?;
        form.expect("v", self.v, [matrices, in_order, key_heads, value_width], "k")?;
        let (paging, keys) = self.checked_pages(b, [pages, in_order])?;
        let no_element = "at least one element in the last axis";
        if width == 0 {
            return Err(shape("q", no_element.into(), self.q));
        }
        if value_width == 0 {
            return Err(shape("v", no_element.into(), self.v));
        }
        if heads != 0 && (key_heads == 0 || heads % key_heads != 0) {
            return Err(shape("k", format!("a number of heads that divides the {heads} of q"), self.k));
        }
        let batch = match self.packing {
            Some(packing) => {
                let Some(batch) = packing.q.len().checked_sub(1).filter(|_| packing.q.rank() == 1) else {
                    return Err(shape("offsets_q", "[B + 1], at least one offset".into(), packing.q));
                };
                expect_vector("offsets_q", packing.q, &[batch + 1], "its own length")?;
                expect_vector("offsets_k", packing.k, &[batch + 1], "offsets_q")?;
                batch
            }
            None => b,
        };
        let sizes = [
            ("q", "number of sequences", batch),
            ("q", "number of rows", rows),
            ("q", "number of heads", heads),
            ("q", "number of columns", width),
            ("k", "number of pages", paging.map_or(0, |paging| paging.pages)),
            ("k", "number of keys of a page", paging.map_or(0, |paging| paging.size)),
            ("k", "number of keys", keys),
            ("k", "number of heads", key_heads),
            ("v", "number of columns", value_width),
        ];
        for (operand, quantity, size) in sizes {
            if size as u64 >= SIDE_LIMIT {
                let (limit, actual) = (format!("less than {SIDE_LIMIT}"), size.to_string());
                return Err(Error::SizeLimit { operation: OPERATION, operand, quantity, limit, actual });
            }
        }
        let full = [batch, heads, rows, keys];
        for (operand, lengths) in ["lengths_q", "lengths_k"].into_iter().zip(self.lengths) {
            lengths.map_or(Ok(()), |lengths| expect_vector(operand, lengths, &[batch], "q"))?;
        }
        self.sinks.map_or(Ok(()), |sinks| expect_vector("sinks", sinks, &[heads], "q"))?;
        let [k_scale, v_scale] = self.scales;
        let scales_per_head = [
            self.checked_scales("k_scale", k_scale, key_heads)?,
            self.checked_scales("v_scale", v_scale, key_heads)?,
        ];
        Ok(Problem {
            batch,
            heads,
            key_heads,
            rows,
            keys,
            width,
            value_width,
            is_packed: form.is_packed,
            pages: paging,
            q_strides: form.strides("q", self.q)?,
            k_strides: form.strides("k", self.k)?,
            v_strides: form.strides("v", self.v)?,
            scale: self.checked_scale(width)?,
            soft_cap: self.checked_soft_cap()?,
            window: self.window,
            mask_strides: self.mask.map(|mask| broadcast("mask", mask, full, 4)).transpose()?,
            bias_strides: self.bias.map(|bias| broadcast("bias", bias, full, 4)).transpose()?,
            block_mask: self.checked_block_mask(full)?,
            slopes_stride: self.checked_slopes([batch, heads])?,
            scales_per_head,
        })
    }

    /// The pages, if there are any, and the keys of each sequence, of operands with these two axes before the heads.
    fn checked_pages(&self, batch: usize, [pages, in_order]: [usize; 2]) -> Result<(Option<Paging>, usize)> {
        let Some(table) = self.pages else { return Ok((None, in_order)) };
        let &[sequences, columns] = table.shape() else {
            return Err(shape("page_table", "[B, pages of a sequence], two axes".into(), table));
        };
        if sequences != batch {
            return Err(shape("page_table", format!("[{batch}, pages of a sequence], as q gives"), table));
        }
        expect_contiguous_rows("page_table", table)?;
        for (size, what) in [(pages, "at least one page"), (in_order, "at least one key in a page")] {
            if size == 0 && columns != 0 {
                return Err(shape("k", format!("{what}, since sequences have {columns} pages"), self.k));
            }
        }
        let table_stride = table.strides()[0] as u64;
        let paging = Paging { pages, size: in_order, table_stride };
        Ok((Some(paging), columns.saturating_mul(in_order)))
    }

    /// The error for what packed sequences do not have.
    fn expect_none_packed(&self) -> Result<()> {
        if self.packing.is_none() {
            return Ok(());
        }
        let [lengths_q, lengths_k] = self.lengths;
        let refused = [
            ("mask", self.mask.map(Tensor::shape)),
            ("bias", self.bias.map(Tensor::shape)),
            ("block_mask", self.block_mask.map(|blocks| blocks.mask.shape())),
            ("lengths_q", lengths_q.map(Tensor::shape)),
            ("lengths_k", lengths_k.map(Tensor::shape)),
            ("page_table", self.pages.map(Tensor::shape)),
        ];
        for (argument, shape) in refused {
            if let Some(shape) = shape {
                return Err(Error::Argument {
                    operation: OPERATION,
                    argument,
                    expected: "none with packed sequences, which offsets describe".into(),
                    actual: format!("a tensor of shape {shape:?}"),
                });
            }
        }
        Ok(())
    }

    fn checked_scale(&self, width: usize) -> Result<f32> {
        match self.scale {
            Some(scale) if scale.is_finite() => Ok(scale),
            Some(scale) => Err(argument("scale", "a finite number", scale)),
            None => Ok((1.0 / (width as f64).sqrt()) as f32),
        }
    }

    fn checked_soft_cap(&self) -> Result<Option<f32>> {
        match self.soft_cap {
            Some(cap) if !(cap.is_finite() && cap > 0.0) => {
                Err(argument("soft_cap", "a finite number above 0", cap))
            }
            cap => Ok(cap),
        }
    }

    fn checked_block_mask(
        &self,
        [batch, heads, rows, keys]: [usize; 4],
    ) -> Result<Option<([u64; 4], [u32; 2])>> {
        let Some(blocks) = self.block_mask else { return Ok(None) };
        let [of_rows, of_keys] = blocks.sizes;
        if of_rows == 0 || of_keys == 0 {
            let expected = "at least one row and one key".to_owned();
            let actual = format!("{of_rows} × {of_keys}");
            return Err(Error::Argument { operation: OPERATION, argument: "block size", expected, actual });
        }
        let full = [batch, heads, rows.div_ceil(of_rows as usize), keys.div_ceil(of_keys as usize)];
        Ok(Some((broadcast("block_mask", blocks.mask, full, 2)?, blocks.sizes)))
    }

    /// Whether scales are those of heads, if there are some.
    fn checked_scales(
        &self,
        operand: &'static str,
        scales: Option<&Tensor<f32>>,
        key_heads: usize,
    ) -> Result<bool> {
        let Some(scales) = scales else { return Ok(false) };
        if !K::IS_FP8 {
            return Err(Error::Argument {
                operation: OPERATION,
                argument: operand,
                expected: format!("none, since k and v are {}", K::DTYPE),
                actual: format!("a tensor of shape {:?}", scales.shape()),
            });
        }
        if scales.shape() != [1] && scales.shape() != [key_heads] {
            let expected = format!("[1], or [{key_heads}] for the heads of k");
            return Err(shape(operand, expected, scales));
        }
        expect_gapless(operand, scales)?;
        Ok(scales.shape() != [1])
    }

    fn checked_slopes(&self, [batch, heads]: [usize; 2]) -> Result<Option<u64>> {
        let Some(slopes) = self.slopes else { return Ok(None) };
        let of_sequences = slopes.shape() == [batch, heads];
        if !of_sequences && slopes.shape() != [heads] {
            return Err(shape("slopes", format!("[{heads}] or [{batch}, {heads}], as q gives"), slopes));
        }
        expect_gapless("slopes", slopes)?;
        Ok(Some(if of_sequences { heads as u64 } else { 0 }))
    }
}

impl<T: AttentionInput, K: AttentionKeys<T>> Checked<'_, '_, T, K> {
    /// A new result: zeros if there may be rows of no sequence.
    pub(super) fn new_output(&self) -> Result<Tensor<T>> {
        let shape = self.problem.output_shape();
        if self.problem.is_packed {
            return Tensor::zeros_on(&self.stream, shape);
        }
        Tensor::uninit_on(&self.stream, shape)
    }

    /// A new `lse`: −∞ if there may be rows of no sequence.
    pub(super) fn new_lse(&self) -> Result<Tensor<f32>> {
        let shape = self.problem.lse_shape();
        if !self.problem.is_packed {
            return Tensor::uninit_on(&self.stream, shape);
        }
        let nothing = vec![f32::NEG_INFINITY; shape.iter().product()];
        self.stream.as_default(|| Tensor::from_slice(self.stream.device(), &nothing, shape))
    }

    /// The error for a `y` that does not fit, or shares memory with an operand.
    pub(super) fn expect_output(&self, y: &Tensor<T>) -> Result<()> {
        let (operation, operand) = (OPERATION, "y");
        self.operands.q.device().expect_same(operation, operand, y.device())?;
        y.expect_writable(operation, operand)?;
        let expected = self.problem.output_shape();
        if y.shape() != expected {
            return Err(shape(operand, format!("{expected:?}, as q and v give"), y));
        }
        expect_contiguous_rows(operand, y)?;
        self.expect_apart(operand, y)
    }

    /// The same for `lse`, which may not share memory with `y` either.
    pub(super) fn expect_lse(&self, lse: &Tensor<f32>, y: &Tensor<T>) -> Result<()> {
        let (operation, operand, device) = (OPERATION, "lse", self.operands.q.device());
        expect_result(operation, operand, lse, device, &self.problem.lse_shape(), "q and k")?;
        if lse.shares_memory(y) {
            return Err(Error::Overlap { operation, operand, other: "y" });
        }
        self.expect_apart(operand, lse)
    }

    fn expect_apart<U: Element>(&self, operand: &'static str, output: &Tensor<U>) -> Result<()> {
        let span = output.span();
        match self.operands.inputs().find(|input| span.meets(&input.span)) {
            Some(input) => Err(Error::Overlap { operation: OPERATION, operand, other: input.name }),
            None => Ok(()),
        }
    }

    /// Computes into results that have been checked, or are new.
    pub(super) fn write(&self, y: &mut Tensor<T>, lse: Option<&mut Tensor<f32>>) -> Result<()> {
        if self.problem.is_empty() {
            return Ok(());
        }
        let Some(rotary) = &self.operands.rotary else { return self.compute(y, lse) };
        let (q, k) = self.operands.turned(rotary, &self.stream)?;
        let operands = Operands { q: &q, k: &k, rotary: None, ..*self.operands };
        operands.check(Some(&self.stream))?.compute(y, lse)
    }

    /// The same of queries and keys that are turned.
    fn compute(&self, y: &mut Tensor<T>, lse: Option<&mut Tensor<f32>>) -> Result<()> {
        match self.operands.q.device().kind() {
            DeviceKind::Cpu => self.run_on_cpu(y, lse),
            _ => launch::launch(self, y, lse),
        }
    }
}

impl Form {
    /// The lengths [batch, rows, heads, columns], where packed sequences are a batch of 1.
    fn axes<U: Element>(
        &self,
        operand: &'static str,
        tensor: &Tensor<U>,
        dense: &str,
        packed: &str,
    ) -> Result<[usize; 4]> {
        match (tensor.shape(), self.is_packed) {
            (&[rows, heads, columns], true) => Ok([1, rows, heads, columns]),
            (&[batch, rows, heads, columns], false) => Ok([batch, rows, heads, columns]),
            (_, true) => Err(shape(operand, format!("{packed}, three axes for packed sequences"), tensor)),
            (_, false) => Err(shape(operand, format!("{dense}, four axes"), tensor)),
        }
    }

    /// The error for other lengths than these, which `origin` gives.
    fn expect<U: Element>(
        &self,
        operand: &'static str,
        tensor: &Tensor<U>,
        lengths: [usize; 4],
        origin: &str,
    ) -> Result<()> {
        let lengths = &lengths[usize::from(self.is_packed)..];
        if tensor.shape() == lengths {
            return Ok(());
        }
        Err(shape(operand, format!("{lengths:?}, as {origin} gives"), tensor))
    }

    /// The strides of [batch, row, head].
    fn strides<U: Element>(&self, operand: &'static str, tensor: &Tensor<U>) -> Result<[u64; 3]> {
        expect_contiguous_rows(operand, tensor)?;
        Ok(leading_strides(tensor))
    }
}

/// The strides of [batch, row, head], where packed sequences have no batch axis.
pub(super) fn leading_strides<U: Element>(tensor: &Tensor<U>) -> [u64; 3] {
    match *tensor.strides() {
        [batch, row, head, _] => [batch as u64, row as u64, head as u64],
        [row, head, _] => [0, row as u64, head as u64],
        _ => [0; 3],
    }
}

/// The strides with which `tensor` fits `shape`, any of whose first `free` axes it may have only one of.
fn broadcast<U: Element>(
    operand: &'static str,
    tensor: &Tensor<U>,
    full: [usize; 4],
    free: usize,
) -> Result<[u64; 4]> {
    let fits = |axis: usize, length: usize| length == full[axis] || length == 1 && axis < free;
    let is_right = tensor.rank() == full.len();
    if !is_right || !tensor.shape().iter().enumerate().all(|(axis, &length)| fits(axis, length)) {
        let which = if free == full.len() { "each axis" } else { "each of the first two axes" };
        return Err(shape(operand, format!("{full:?}, as q and k give, or 1 for {which}"), tensor));
    }
    let mut strides = [0; 4];
    for (axis, stride) in strides.iter_mut().enumerate() {
        if tensor.shape()[axis] > 1 {
            *stride = tensor.strides()[axis] as u64;
        }
    }
    Ok(strides)
}

/// The error for a tensor of another shape, or with gaps.
fn expect_vector<U: Element>(
    operand: &'static str,
    tensor: &Tensor<U>,
    expected: &[usize],
    origin: &str,
) -> Result<()> {
    if tensor.shape() != expected {
        return Err(shape(operand, format!("{expected:?}, as {origin} gives"), tensor));
    }
    expect_gapless(operand, tensor)
}

fn expect_gapless<U: Element>(operand: &'static str, tensor: &Tensor<U>) -> Result<()> {
    if tensor.is_contiguous() {
        return Ok(());
    }
    let (expected, actual) = ("elements without gaps".into(), tensor.strides().to_vec());
    Err(Error::Stride { operation: OPERATION, operand, expected, actual })
}

/// The error for a tensor whose last axis is not contiguous.
fn expect_contiguous_rows<U: Element>(operand: &'static str, tensor: &Tensor<U>) -> Result<()> {
    let last = tensor.rank() - 1;
    if tensor.is_empty() || tensor.shape()[last] == 1 || tensor.strides()[last] == 1 {
        return Ok(());
    }
    let expected = "1 for the last axis (see `contiguous`)".into();
    Err(Error::Stride { operation: OPERATION, operand, expected, actual: tensor.strides().to_vec() })
}

fn shape<U: Element>(operand: &'static str, expected: String, tensor: &Tensor<U>) -> Error {
    Error::Shape { operation: OPERATION, operand, expected, actual: tensor.shape().to_vec() }
}

fn argument(argument: &'static str, expected: &str, actual: f32) -> Error {
    let (expected, actual) = (expected.into(), actual.to_string());
    Error::Argument { operation: OPERATION, argument, expected, actual }
}
