//! Rows of a table that ids name, and the gradient of the table.

mod order;
#[cfg(test)]
mod tests;
mod weighted;

use std::collections::BTreeMap;

use warpsmith_dsl::embedding::{GatherParams, GradientParams, Ids, WeightedParams};
use warpsmith_dsl::launch::{Global, GlobalMut, Kernel};
use warpsmith_dsl::rows::AnyRows;
use warpsmith_kernels::embedding::{embedding as embedding_kernel, embedding_gradient, embedding_weighted};

pub(in crate::ops) use order::Order;
pub(in crate::ops) use weighted::{Weights, add_weighted, order_kernels, weighted_kernel};

use super::elementwise::grid;
use crate::cpu;
use crate::device::DeviceKind;
use crate::error::{Error, Result};
use crate::ops::rows::{
    RowElement, Shares, Sizes, as_result_rows, as_rows, expect_shape, is_copied, kind, rounded, rows_of,
    widened,
};
use crate::ops::{Implementation, SIDE_LIMIT};
use crate::stream::{Operand, Stream};
use crate::tensor::{Element, Tensor};
use crate::trace;

/// The names of the operations in errors.
const OPERATION: &str = "embedding";
const BACKWARD: &str = "embedding_backward";
/// Chunks of a thread that are loaded together: of rows that are copied, and of rows that are added up.
const CHUNKS: u32 = 4;
const GRADIENT_CHUNKS: u32 = 1;

/// A type of ids: u32 or i64.
pub trait EmbeddingId: Element {
    /// The row of a table of `rows` rows that the id names, if it is one.
    #[doc(hidden)]
    fn row(self, rows: usize) -> Option<usize>;
}

impl EmbeddingId for u32 {
    fn row(self, rows: usize) -> Option<usize> {
        Some(self as usize).filter(|&row| row < rows)
    }
}

impl EmbeddingId for i64 {
    fn row(self, rows: usize) -> Option<usize> {
        usize::try_from(self).ok().filter(|&row| row < rows)
    }
}

/// An element type of tables and of their rows' gradients.
pub trait EmbeddingElement: RowElement {
    /// The type of an element's bits in kernels that copy.
    #[doc(hidden)]
    type Bits: 'static;
    /// The kernels that copy rows, of aligned rows and of any.
    #[doc(hidden)]
    type Gather: Kernel<Args = (GatherParams<Self::Bits>,)>;
    #[doc(hidden)]
    type GatherAny: Kernel<Args = (GatherParams<Self::Bits>,)>;
    /// The kernels that add up rows.
    #[doc(hidden)]
    type Gradient: Kernel<Args = (GradientParams<Self::Device>,)>;
    #[doc(hidden)]
    type GradientAny: Kernel<Args = (GradientParams<Self::Device>,)>;
    /// The kernels that add up rows times weights.
    #[doc(hidden)]
    type Weighted: Kernel<Args = (WeightedParams<Self::Device>,)>;
    #[doc(hidden)]
    type WeightedAny: Kernel<Args = (WeightedParams<Self::Device>,)>;
}

macro_rules! elements {
    ($($element:ty, $bits:ty, $chunk:literal;)*) => {$(
        impl EmbeddingElement for $element {
            type Bits = $bits;
            type Gather = embedding_kernel<$bits, $chunk, 4, true>;
            type GatherAny = embedding_kernel<$bits, $chunk, 4, false>;
            type Gradient = embedding_gradient<<Self as Element>::Device, $chunk, 1, true>;
            type GradientAny = embedding_gradient<<Self as Element>::Device, $chunk, 1, false>;
            type Weighted = embedding_weighted<<Self as Element>::Device, $chunk, 1, true>;
            type WeightedAny = embedding_weighted<<Self as Element>::Device, $chunk, 1, false>;
        }
    )*};
}
elements! {
    half::f16, warpsmith_dsl::float::F16, 8;
    half::bf16, warpsmith_dsl::float::F16, 8;
    f32, f32, 4;
}

/// The rows of `table` `[V, D]` that `ids` `[..]` name: `[.., D]`.
///
/// Rows are copied as they are. An id that is negative, or V or more, gives a row of NaN.
///
/// ```
/// use ndarray::array;
/// use warpsmith::{Device, Tensor, ops};
///
/// let device = Device::emulator();
/// let table = Tensor::from_array(&device, &array![[1.0f32, 2.0], [3.0, 4.0]])?;
/// let ids = Tensor::from_slice(&device, &[1u32, 0, 1], [3])?;
/// let y = ops::embedding(&table, &ids).run()?;
/// assert_eq!(y.shape(), [3, 2]);
/// assert_eq!(y.to_vec()?, [3.0, 4.0, 1.0, 2.0, 3.0, 4.0]);
/// # Ok::<(), warpsmith::Error>(())
/// ```
pub fn embedding<'a, T: EmbeddingElement, I: EmbeddingId>(
    table: &'a Tensor<T>,
    ids: &'a Tensor<I>,
) -> EmbeddingOp<'a, T, I> {
    EmbeddingOp { table, ids, stream: None }
}

/// A look-up that has yet to be made; see [`embedding`](fn@embedding).
#[derive(Debug)]
#[must_use = "an operation does nothing until `run`"]
pub struct EmbeddingOp<'a, T: Element, I: Element> {
    table: &'a Tensor<T>,
    ids: &'a Tensor<I>,
    stream: Option<&'a Stream>,
}

impl<'a, T: EmbeddingElement, I: EmbeddingId> EmbeddingOp<'a, T, I> {
    /// Runs on `stream` instead of the device's default stream.
    pub fn on(self, stream: &'a Stream) -> Self {
        Self { stream: Some(stream), ..self }
    }

    /// The rows. On a GPU the work may still be under way when this returns.
    ///
    /// # Errors
    ///
    /// [`Error::Shape`] if the table is no matrix. [`Error::SizeLimit`] if it, or the result, has 2³¹ rows or columns or more.
    /// [`Error::DeviceMismatch`] if the ids or the stream are another device's. Otherwise whatever allocating the result,
    /// loading the kernel and launching it may return.
    pub fn run(&self) -> Result<Tensor<T>> {
        let _range = trace::operation(OPERATION);
        let (sizes, stream) = self.checked()?;
        let mut y = Tensor::uninit_on(&stream, self.shape())?;
        self.write(sizes, &stream, &mut y)?;
        Ok(y)
    }

    /// Writes the rows into `y` `[.., D]`, whose rows are contiguous, so that the work can be [captured](Stream::capture) with its result kept.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run); [`Error::Shape`], [`Error::Stride`], [`Error::DeviceMismatch`] and [`Error::ReadOnly`] if `y` does not fit, [`Error::Overlap`] if it
    /// shares memory with the table or the ids.
    pub fn run_into(&self, y: &mut Tensor<T>) -> Result<()> {
        let _range = trace::operation(OPERATION);
        let (operation, operand) = (OPERATION, "y");
        let (sizes, stream) = self.checked()?;
        self.table.device().expect_same(operation, operand, y.device())?;
        y.expect_writable(operation, operand)?;
        expect_shape(operation, operand, y.shape(), &self.shape(), "ids and a row of the table")?;
        as_result_rows(operation, operand, y)?;
        for (other, is_shared) in [("table", y.shares_memory(self.table)), ("ids", y.shares_memory(self.ids))]
        {
            if is_shared {
                return Err(Error::Overlap { operation, operand, other });
            }
        }
        self.write(sizes, &stream, y)
    }

    /// Which implementation [`run`](Self::run) would take.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run).
    pub fn implementation(&self) -> Result<Implementation> {
        let (sizes, _) = self.checked()?;
        let device = self.table.device();
        if sizes.are_none() {
            return Ok(Implementation::Empty);
        }
        if device.kind() == DeviceKind::Cpu {
            return Ok(Implementation::Cpu);
        }
        let dense = AnyRows { base: 1 << 8, stride: sizes.columns as u64, kind: kind::<T>(), offset: 0.0 };
        let table = if is_copied(self.table) { dense } else { rows_of(self.table) };
        let shares = Shares::of::<T>(sizes.columns, &[table, dense], CHUNKS);
        let (_, grid) = grid(sizes.rows as u64, sizes.columns as u64, shares);
        let name = if shares.vector { T::Gather::DECLARATION.name } else { T::GatherAny::DECLARATION.name };
        let copies = usize::from(is_copied(self.table)) + usize::from(!self.ids.is_contiguous());
        Ok(Implementation::kernel(device, name, grid[0] * grid[1]).with_copies(copies))
    }

    fn shape(&self) -> Vec<usize> {
        let mut shape = self.ids.shape().to_vec();
        shape.push(self.table.shape()[1]);
        shape
    }

    fn checked(&self) -> Result<(Sizes, Stream)> {
        let (operation, table) = (OPERATION, self.table);
        let device = table.device();
        if table.rank() != 2 {
            let expected = "[V, D]".into();
            return Err(Error::Shape {
                operation,
                operand: "table",
                expected,
                actual: table.shape().to_vec(),
            });
        }
        Sizes::of(operation, "table", table.shape())?;
        let sizes = Sizes::of(operation, "ids", &self.shape())?;
        device.expect_same(operation, "ids", self.ids.device())?;
        if let Some(stream) = self.stream {
            device.expect_same(operation, "stream", stream.device())?;
        }
        Ok((sizes, self.stream.cloned().unwrap_or_else(|| device.default_stream())))
    }

    fn write(&self, sizes: Sizes, stream: &Stream, y: &mut Tensor<T>) -> Result<()> {
        let device = self.table.device();
        if sizes.are_none() {
            return Ok(());
        }
        let vocabulary = self.table.shape()[0];
        if device.kind() == DeviceKind::Cpu {
            let (table, columns) = (self.table.to_vec()?, sizes.columns);
            let missing = vec![T::from_accumulator(f32::NAN); columns];
            let rows = self.ids.to_vec()?.into_iter().flat_map(|id| {
                let row = id.row(vocabulary).map_or(&missing[..], |row| &table[row * columns..][..columns]);
                row.iter().copied()
            });
            return y.write_slice(&rows.collect::<Vec<T>>());
        }
        let (table, ids) = (as_rows(self.table, stream)?, self.ids.contiguous_on(stream)?);
        let rows = as_result_rows(OPERATION, "y", y)?;
        let (from, to) = (rows_of(&table), rows_of(&rows));
        let shares = Shares::of::<T>(sizes.columns, &[from, to], CHUNKS);
        let (threads, grid) = grid(sizes.rows as u64, sizes.columns as u64, shares);
        let params = GatherParams {
            table: Global::new(from.base),
            table_stride: from.stride,
            ids: ids_arg(&ids, vocabulary),
            y: GlobalMut::new(to.base),
            y_stride: to.stride,
            tokens: sizes.rows as u32,
            columns: sizes.columns as u32,
            threads,
            missing: missing::<T>(),
        };
        // SAFETY: the sizes and strides are those of the tensors; y is new, or shares no memory with what is read. Tensors are freed in the order of their home streams,
        // which `with_operands` makes wait for this work.
        stream.with_operands(&[&table, &ids, &rows], || unsafe {
            if shares.vector {
                device.kernel::<T::Gather>()?.launch(stream, grid, (params,))
            } else {
                device.kernel::<T::GatherAny>()?.launch(stream, grid, (params,))
            }
        })
    }
}

/// Ids without gaps as a kernel takes them.
fn ids_arg<I: EmbeddingId>(ids: &Tensor<I>, vocabulary: usize) -> Ids {
    Ids { base: ids.device_address(), is_wide: u32::from(size_of::<I>() == 8), limit: vocabulary as u32 }
}

/// A NaN in all elements of a word.
fn missing<T: RowElement>() -> u32 {
    let nan = T::from_accumulator(f32::NAN);
    match *bytemuck::bytes_of(&nan) {
        [a, b] => u32::from_le_bytes([a, b, a, b]),
        [a, b, c, d] => u32::from_le_bytes([a, b, c, d]),
        _ => f32::NAN.to_bits(),
    }
}

/// The gradient of a table of `vocabulary` rows, of which [`embedding`](fn@embedding) has read those that `ids` `[..]` name, from the gradient of its result, `dy`
/// `[.., D]`.
///
/// The rows of dy with equal ids are added up in f32, in the order of the ids, so the sums are the same every time. Ids out of range count for nothing.
///
/// ```
/// use warpsmith::{Device, Tensor, ops};
///
/// let device = Device::emulator();
/// let dy = Tensor::from_slice(&device, &[1.0f32, 2.0, 4.0, 8.0], [4, 1])?;
/// let ids = Tensor::from_slice(&device, &[7i64, 2, 7, -1], [4])?;
/// let gradient = ops::embedding_backward(&dy, &ids, 10).run()?;
/// let (ids, rows) = gradient.read()?;
/// assert_eq!((ids, rows), (vec![2, 7], vec![2.0, 5.0]));
/// # Ok::<(), warpsmith::Error>(())
/// ```
pub fn embedding_backward<'a, T: EmbeddingElement, I: EmbeddingId>(
    dy: &'a Tensor<T>,
    ids: &'a Tensor<I>,
    vocabulary: usize,
) -> EmbeddingBackwardOp<'a, T, I> {
    EmbeddingBackwardOp { dy, ids, vocabulary, stream: None }
}

/// Some rows of a matrix: a gradient whose other rows are zero.
///
/// How many there are is known on the device; nothing waits for it.
#[derive(Clone, Debug)]
pub struct SparseRows<R: Element> {
    /// The rows' places, different and ascending, `[n]` with room for as many as there can be. Behind the first `count` they are unspecified.
    pub ids: Tensor<u32>,
    /// The rows, `[n, D]`. Behind the first `count` they are unspecified.
    pub rows: Tensor<R>,
    /// How many there are, `[1]`.
    pub count: Tensor<u32>,
}

impl<R: Element> SparseRows<R> {
    /// The places and the rows that there are. Waits for the device.
    ///
    /// # Errors
    ///
    /// As [`Tensor::to_vec`].
    pub fn read(&self) -> Result<(Vec<u32>, Vec<R>)> {
        let count = self.count.to_vec()?.first().map_or(0, |&count| count as usize).min(self.ids.len());
        Ok((self.ids.slice(0, 0..count)?.to_vec()?, self.rows.slice(0, 0..count)?.to_vec()?))
    }
}

/// A gradient that has yet to be computed; see [`embedding_backward`].
#[derive(Debug)]
#[must_use = "an operation does nothing until `run`"]
pub struct EmbeddingBackwardOp<'a, T: Element, I: Element> {
    dy: &'a Tensor<T>,
    ids: &'a Tensor<I>,
    vocabulary: usize,
    stream: Option<&'a Stream>,
}

impl<'a, T: EmbeddingElement, I: EmbeddingId> EmbeddingBackwardOp<'a, T, I> {
    /// Runs on `stream` instead of the device's default stream.
    pub fn on(self, stream: &'a Stream) -> Self {
        Self { stream: Some(stream), ..self }
    }

    /// The rows of the gradient that are not zero, in f32. On a GPU the work may still be under way when this returns.
    ///
    /// # Errors
    ///
    /// [`Error::Shape`] if `dy` does not have the shape of the ids and one more axis. [`Error::SizeLimit`] if it has 2³¹ rows
    /// or columns or more, or the table as many. [`Error::DeviceMismatch`] if the ids or the stream are another device's.
    /// Otherwise whatever allocating results, loading kernels and launching them may return.
    pub fn run(&self) -> Result<SparseRows<f32>> {
        self.run_as::<f32>()
    }

    /// As [`run`](Self::run), where each sum is rounded to type `R` once.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run).
    pub fn run_as<R: RowElement>(&self) -> Result<SparseRows<R>> {
        let _range = trace::operation(BACKWARD);
        let (sizes, stream) = self.checked()?;
        let room = sizes.rows.min(self.vocabulary);
        let mut result = SparseRows {
            ids: Tensor::uninit_on(&stream, [room])?,
            rows: Tensor::uninit_on(&stream, [room, sizes.columns])?,
            count: Tensor::uninit_on(&stream, [1])?,
        };
        self.write(sizes, &stream, &mut result)?;
        Ok(result)
    }

    /// Writes the rows into `result`, whose tensors have the shapes and no more gaps than those of [`run`](Self::run), so that the work can be
    /// [captured](Stream::capture) with its result kept.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run); [`Error::Shape`], [`Error::Stride`], [`Error::DeviceMismatch`] and [`Error::ReadOnly`] if a tensor does not fit, [`Error::Overlap`] if it
    /// shares memory with dy, the ids or another one.
    pub fn run_into<R: RowElement>(&self, result: &mut SparseRows<R>) -> Result<()> {
        let _range = trace::operation(BACKWARD);
        let (operation, device, origin) = (BACKWARD, self.dy.device(), "dy and the table");
        let (sizes, stream) = self.checked()?;
        let room = sizes.rows.min(self.vocabulary);
        let SparseRows { ids, rows, count } = &*result;
        super::expect_result(operation, "ids of the result", ids, device, &[room], origin)?;
        super::expect_result(operation, "rows", rows, device, &[room, sizes.columns], origin)?;
        super::expect_result(operation, "count", count, device, &[1], origin)?;
        let shared = [
            ("rows", "dy", rows.shares_memory(self.dy)),
            ("rows", "ids", rows.shares_memory(self.ids)),
            ("ids of the result", "dy", ids.shares_memory(self.dy)),
            ("ids of the result", "ids", ids.shares_memory(self.ids)),
            ("count", "dy", count.shares_memory(self.dy)),
            ("count", "ids", count.shares_memory(self.ids)),
            ("rows", "ids of the result", rows.shares_memory(ids)),
            ("rows", "count", rows.shares_memory(count)),
            ("ids of the result", "count", ids.shares_memory(count)),
        ];
        if let Some((operand, other, _)) = shared.into_iter().find(|(_, _, is_shared)| *is_shared) {
            return Err(Error::Overlap { operation, operand, other });
        }
        self.write(sizes, &stream, result)
    }

    /// Adds the gradient to that of the whole table, `[V, D]`, whose rows are contiguous. Each row is what it was, then its tokens' rows one after the other.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run); [`Error::Shape`], [`Error::Stride`], [`Error::DeviceMismatch`] and [`Error::ReadOnly`] if the gradient does not fit, [`Error::Overlap`] if
    /// it shares memory with dy or the ids.
    pub fn accumulate(&self, gradient: &mut Tensor<f32>) -> Result<()> {
        let (operation, operand, device) = (BACKWARD, "gradient", self.dy.device());
        let (sizes, stream) = self.checked()?;
        device.expect_same(operation, operand, gradient.device())?;
        gradient.expect_writable(operation, operand)?;
        let shape = [self.vocabulary, sizes.columns];
        expect_shape(operation, operand, gradient.shape(), &shape, "the table")?;
        let rows = as_result_rows(operation, operand, gradient)?;
        for (other, is_shared) in
            [("dy", gradient.shares_memory(self.dy)), ("ids", gradient.shares_memory(self.ids))]
        {
            if is_shared {
                return Err(Error::Overlap { operation, operand, other });
            }
        }
        if sizes.are_none() || self.vocabulary == 0 {
            return Ok(());
        }
        if device.kind() == DeviceKind::Cpu {
            let (dy, mut sums) = (widened(self.dy)?, gradient.to_vec()?);
            for (id, tokens) in self.tokens_of_ids()? {
                cpu::add_rows(&dy, &tokens, &mut sums[id * sizes.columns..][..sizes.columns]);
            }
            return gradient.write_slice(&sums);
        }
        let order = Order::of(self.ids, self.vocabulary, &stream)?;
        self.add(sizes, &stream, &order, None, (rows_of(&rows), &rows))
    }

    /// Which implementation [`run`](Self::run) would take.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run).
    pub fn implementation(&self) -> Result<Implementation> {
        let (sizes, _) = self.checked()?;
        let device = self.dy.device();
        if device.kind() == DeviceKind::Cpu {
            return Ok(Implementation::Cpu);
        }
        if sizes.are_none() || self.vocabulary == 0 {
            return Ok(Implementation::Empty);
        }
        let dense = |kind| AnyRows { base: 1 << 8, stride: sizes.columns as u64, kind, offset: 0.0 };
        let dy = if is_copied(self.dy) { dense(kind::<T>()) } else { rows_of(&self.dy.flatten_leading()?) };
        let rows = sizes.rows.min(self.vocabulary) as u64;
        let plan = GradientPlan::new::<T>(sizes, rows, [dy, dense(kind::<f32>())]);
        let sums = (plan.name::<T>(), plan.grid[0] * plan.grid[1]);
        let launches = order_kernels(sizes.rows).into_iter().chain([sums]);
        let all = launches.fold(Implementation::Empty, |all, (name, blocks)| {
            all.then(Implementation::kernel(device, name, blocks))
        });
        Ok(all.with_copies(usize::from(is_copied(self.dy)) + usize::from(!self.ids.is_contiguous())))
    }

    fn checked(&self) -> Result<(Sizes, Stream)> {
        let (operation, dy) = (BACKWARD, self.dy);
        let device = dy.device();
        let sizes = Sizes::of(operation, "dy", dy.shape())?;
        let shape = &dy.shape()[..dy.rank() - 1];
        if self.ids.shape() != shape {
            let (expected, actual) =
                (format!("{shape:?}, as dy without its last axis has"), self.ids.shape().to_vec());
            return Err(Error::Shape { operation, operand: "ids", expected, actual });
        }
        if self.vocabulary as u64 >= SIDE_LIMIT {
            let (limit, actual) = (format!("less than {SIDE_LIMIT}"), self.vocabulary.to_string());
            let quantity = "number of rows";
            return Err(Error::SizeLimit { operation, operand: "table", quantity, limit, actual });
        }
        device.expect_same(operation, "ids", self.ids.device())?;
        if let Some(stream) = self.stream {
            device.expect_same(operation, "stream", stream.device())?;
        }
        Ok((sizes, self.stream.cloned().unwrap_or_else(|| device.default_stream())))
    }

    fn tokens_of_ids(&self) -> Result<BTreeMap<usize, Vec<usize>>> {
        let ids: Vec<Option<usize>> =
            self.ids.to_vec()?.into_iter().map(|id| id.row(self.vocabulary)).collect();
        Ok(cpu::tokens_of_ids(&ids))
    }

    fn write<R: RowElement>(&self, sizes: Sizes, stream: &Stream, result: &mut SparseRows<R>) -> Result<()> {
        let device = self.dy.device();
        let SparseRows { ids, rows, count } = result;
        if device.kind() == DeviceKind::Cpu {
            let (dy, tokens) = (widened(self.dy)?, self.tokens_of_ids()?);
            let mut sums = vec![0.0f32; rows.len()];
            let mut places = vec![0; ids.len()];
            for (number, (id, tokens)) in tokens.iter().enumerate() {
                places[number] = *id as u32;
                cpu::add_rows(&dy, tokens, &mut sums[number * sizes.columns..][..sizes.columns]);
            }
            ids.write_slice(&places)?;
            rows.write_slice(&rounded(&sums))?;
            return count.write_slice(&[tokens.len() as u32]);
        }
        if ids.is_empty() {
            return count.fill_zero_on(stream);
        }
        let order = Order::of(self.ids, self.vocabulary, stream)?;
        let starts = order.distinct(self.vocabulary, stream, ids, count)?;
        if rows.is_empty() {
            return Ok(());
        }
        self.add(sizes, stream, &order, Some((&starts, count)), (rows_of(rows), rows))
    }

    /// Adds up the rows of equal ids: of those that begin where `distinct` says, and are so many, or into the rows that they name.
    fn add<R: Element>(
        &self,
        sizes: Sizes,
        stream: &Stream,
        order: &Order,
        distinct: Option<(&Tensor<u32>, &Tensor<u32>)>,
        (to, result): (AnyRows, &Tensor<R>),
    ) -> Result<()> {
        let device = stream.device();
        let dy = as_rows(self.dy, stream)?;
        let from = rows_of(&dy);
        let rows = distinct.map_or(sizes.rows, |(starts, _)| starts.len() - 1);
        let plan = GradientPlan::new::<T>(sizes, rows as u64, [from, to]);
        let pointer = |of: Option<&Tensor<u32>>| of.map_or(Global::new(0), Tensor::arg);
        let params = GradientParams {
            dy: Global::new(from.base),
            dy_stride: from.stride,
            keys: order.keys.arg(),
            tokens: order.tokens.arg(),
            starts: pointer(distinct.map(|(starts, _)| starts)),
            distinct: pointer(distinct.map(|(_, count)| count)),
            to,
            count: sizes.rows as u32,
            columns: sizes.columns as u32,
            threads: plan.threads,
            limit: self.vocabulary as u32,
        };
        let mut operands: Vec<&dyn Operand> = vec![&dy, &order.keys, &order.tokens, result];
        if let Some((starts, count)) = distinct {
            operands.extend([starts as &dyn Operand, count]);
        }
        // SAFETY: the sizes and strides are those of the tensors; the result shares no memory with what is read. As above for when they are freed.
        stream.with_operands(&operands, || unsafe {
            if plan.vector {
                device.kernel::<T::Gradient>()?.launch(stream, plan.grid, (params,))
            } else {
                device.kernel::<T::GradientAny>()?.launch(stream, plan.grid, (params,))
            }
        })
    }
}

/// Blocks that add up rows: about as many as the largest GPUs hold at a time.
const MOST_BLOCKS: u32 = 4 * 160;

/// How rows are added up.
struct GradientPlan {
    vector: bool,
    threads: u32,
    grid: [u32; 3],
}

impl GradientPlan {
    fn new<T: Element>(sizes: Sizes, rows: u64, operands: [AnyRows; 2]) -> Self {
        let shares = Shares::of::<T>(sizes.columns, &operands, GRADIENT_CHUNKS);
        let (threads, mut grid) = grid(rows, sizes.columns as u64, shares);
        // Blocks that go through several ids load what comes next before they need it.
        grid[1] = grid[1].min(MOST_BLOCKS.div_ceil(grid[0]));
        Self { vector: shares.vector, threads, grid }
    }

    fn name<T: EmbeddingElement>(&self) -> &'static str {
        if self.vector { T::Gradient::DECLARATION.name } else { T::GradientAny::DECLARATION.name }
    }
}
