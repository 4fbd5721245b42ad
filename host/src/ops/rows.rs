//! What operations on rows share: operands of any floating-point type, and how many threads and blocks have a row.

#[cfg(test)]
mod tests;

use std::any::Any;

use half::{bf16, f16};
use warpsmith_dsl::launch::{Global, GlobalMut, Kernel};
use warpsmith_dsl::rows::{AnyRows, Kind, RowElement as DeviceElement, THREADS};

use super::matrix::{as_matrix, has_unit_stride, row_stride};
use super::{CHUNK_BYTES, SIDE_LIMIT};
use crate::cpu::{FromAccumulator, Operand as CpuOperand};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::stream::{Operand, Stream};
use crate::tensor::{DType, Element, Span, Tensor};

/// An element type of rows: f16, bf16 or f32.
pub trait RowElement: Element<Device: DeviceElement> + CpuOperand + FromAccumulator<f32> {
    /// The tensor as one of any of these types.
    #[doc(hidden)]
    fn any(tensor: &Tensor<Self>) -> AnyTensor<'_>;
}

/// A tensor of f16, bf16 or f32.
#[derive(Clone, Copy, Debug)]
pub enum AnyTensor<'a> {
    /// Of f16.
    F16(&'a Tensor<f16>),
    /// Of bf16.
    Bf16(&'a Tensor<bf16>),
    /// Of f32.
    F32(&'a Tensor<f32>),
}

macro_rules! row_elements {
    ($($element:ty, $variant:ident;)*) => {
        $(
            impl RowElement for $element {
                fn any(tensor: &Tensor<Self>) -> AnyTensor<'_> {
                    AnyTensor::$variant(tensor)
                }
            }
        )*
    };
}
row_elements! {
    f16, F16;
    bf16, Bf16;
    f32, F32;
}

impl<'a, T: RowElement> From<&'a Tensor<T>> for AnyTensor<'a> {
    fn from(tensor: &'a Tensor<T>) -> Self {
        T::any(tensor)
    }
}

/// Does the same with the tensor of whichever type.
macro_rules! with_tensor {
    ($any:expr, $tensor:ident => $body:expr) => {
        match $any {
            $crate::ops::rows::AnyTensor::F16($tensor) => $body,
            $crate::ops::rows::AnyTensor::Bf16($tensor) => $body,
            $crate::ops::rows::AnyTensor::F32($tensor) => $body,
        }
    };
}
pub(crate) use with_tensor;

impl<'a> AnyTensor<'a> {
    /// The element type.
    #[must_use]
    pub fn dtype(&self) -> DType {
        with_tensor!(self, tensor => tensor.dtype())
    }

    /// The length of each axis.
    #[must_use]
    pub fn shape(&self) -> &'a [usize] {
        with_tensor!(*self, tensor => tensor.shape())
    }

    /// The device that has it.
    #[must_use]
    pub fn device(&self) -> &'a Device {
        with_tensor!(*self, tensor => tensor.device())
    }

    pub(crate) fn span(&self) -> Span<'a> {
        with_tensor!(*self, tensor => tensor.span())
    }

    pub(crate) fn operand(&self) -> &'a dyn Operand {
        with_tensor!(*self, tensor => tensor)
    }

    /// Its numbers in the order of its axes.
    pub(crate) fn to_f32(self) -> Result<Vec<f32>> {
        with_tensor!(self, tensor => widened(tensor))
    }

    /// A vector as a row that all rows have.
    pub(crate) fn as_row(&self) -> AnyRows {
        with_tensor!(self, tensor => AnyRows { stride: 0, ..rows_of(tensor) })
    }
}

/// The numbers of a tensor in the order of its axes.
pub(crate) fn widened<T: RowElement>(tensor: &Tensor<T>) -> Result<Vec<f32>> {
    let elements = tensor.to_vec()?;
    let mut numbers = vec![0.0; elements.len()];
    T::widen(&elements, &mut numbers);
    Ok(numbers)
}

/// Numbers rounded to elements.
pub(crate) fn rounded<T: RowElement>(numbers: &[f32]) -> Vec<T> {
    numbers.iter().map(|&number| T::from_accumulator(number)).collect()
}

/// A matrix, or a vector, as a kernel takes it.
pub(crate) fn rows_of<T: RowElement>(matrix: &Tensor<T>) -> AnyRows {
    let stride = if matrix.rank() == 2 { row_stride(matrix) } else { 0 };
    AnyRows { base: matrix.device_address(), stride, kind: kind::<T>(), offset: 0.0 }
}

/// The type as kernels are told it.
pub(crate) fn kind<T: RowElement>() -> Kind {
    <T::Device as DeviceElement>::KIND
}

/// A tensor `[.., N]` as a matrix with contiguous rows: a view, or a copy where there is none.
pub(crate) fn as_rows<T: RowElement>(tensor: &Tensor<T>, stream: &Stream) -> Result<Tensor<T>> {
    match tensor.flatten_leading() {
        Ok(matrix) if has_unit_stride(&matrix) => Ok(matrix),
        _ => tensor.contiguous_on(stream)?.flatten_leading(),
    }
}

/// Whether [`as_rows`] makes a copy.
pub(crate) fn is_copied<T: RowElement>(tensor: &Tensor<T>) -> bool {
    !tensor.flatten_leading().is_ok_and(|matrix| has_unit_stride(&matrix))
}

/// A result as a matrix with contiguous rows, which may be apart; the error for one that is none.
pub(crate) fn as_result_rows<T: Element>(
    operation: &'static str,
    operand: &'static str,
    result: &Tensor<T>,
) -> Result<Tensor<T>> {
    let matrix = as_matrix(operation, operand, result)?;
    super::matrix::expect_unit_stride(operation, operand, &matrix)?;
    let [rows, columns] = [matrix.shape()[0], matrix.shape()[1]];
    if rows > 1 && columns > 0 && matrix.strides()[0] < columns {
        let (expected, actual) = ("rows that do not overlap".into(), result.strides().to_vec());
        return Err(Error::Stride { operation, operand, expected, actual });
    }
    Ok(matrix)
}

/// Whether two tensors are the same view of the same memory: a kernel may write one where it has read the other.
pub(crate) fn is_in_place<T: Element, U: Element>(tensor: &Tensor<T>, other: &Tensor<U>) -> bool {
    let other = (other as &dyn Any).downcast_ref::<Tensor<T>>();
    other.is_some_and(|other| tensor.is_same_view(other))
}

/// The error for an operand of another shape.
pub(crate) fn expect_shape(
    operation: &'static str,
    operand: &'static str,
    actual: &[usize],
    shape: &[usize],
    origin: &str,
) -> Result<()> {
    if actual == shape {
        return Ok(());
    }
    let expected = format!("{shape:?}, as {origin} has");
    Err(Error::Shape { operation, operand, expected, actual: actual.to_vec() })
}

/// The error for a result `[.., N]` that does not fit: another device's, read-only, of another shape, or without contiguous rows.
pub(crate) fn expect_rows<T: Element>(
    operation: &'static str,
    operand: &'static str,
    result: &Tensor<T>,
    device: &Device,
    (shape, origin): (&[usize], &str),
) -> Result<()> {
    device.expect_same(operation, operand, result.device())?;
    result.expect_writable(operation, operand)?;
    expect_shape(operation, operand, result.shape(), shape, origin)?;
    as_result_rows(operation, operand, result).map(drop)
}

/// The error for a result that shares memory with something else.
pub(crate) fn expect_apart(
    operation: &'static str,
    operand: &'static str,
    others: &[(&'static str, bool)],
) -> Result<()> {
    match others.iter().find(|(_, shares)| *shares) {
        Some(&(other, _)) => Err(Error::Overlap { operation, operand, other }),
        None => Ok(()),
    }
}

/// Rows and columns of an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sizes {
    pub(crate) rows: usize,
    pub(crate) columns: usize,
}

impl Sizes {
    /// Those of `shape`, which is `[.., N]`.
    pub(crate) fn of(operation: &'static str, operand: &'static str, shape: &[usize]) -> Result<Self> {
        let Some((&columns, leading)) = shape.split_last() else {
            let expected = "[.., N], at least one axis".into();
            return Err(Error::Shape { operation, operand, expected, actual: Vec::new() });
        };
        let rows = leading.iter().try_fold(1usize, |product, &length| product.checked_mul(length));
        let rows = rows.unwrap_or(usize::MAX);
        for (quantity, size) in [("number of rows", rows), ("number of columns", columns)] {
            if size as u64 >= SIDE_LIMIT {
                let (limit, actual) = (format!("less than {SIDE_LIMIT}"), size.to_string());
                return Err(Error::SizeLimit { operation, operand, quantity, limit, actual });
            }
        }
        Ok(Self { rows, columns })
    }

    /// Whether there are no elements.
    pub(crate) fn are_none(self) -> bool {
        self.rows == 0 || self.columns == 0
    }
}

/// The most blocks of a grid along x.
pub(crate) const MOST_BLOCKS: u32 = i32::MAX as u32;

#[cfg(test)]
thread_local! {
    /// What this thread's plans take for [`MOST_BLOCKS`], so that few rows have several launches.
    pub(crate) static FEWER_BLOCKS: std::cell::Cell<u32> = const { std::cell::Cell::new(MOST_BLOCKS) };
}

/// The most blocks of a launch, where each has rows at most once: those that wait for a multiprocessor begin where others end, which keeps them out of step.
fn most_blocks() -> u32 {
    #[cfg(test)]
    return FEWER_BLOCKS.get();
    #[cfg(not(test))]
    MOST_BLOCKS
}

/// How a kernel has the columns of a row: elements of a chunk, and chunks of a thread.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shares {
    /// Whether chunks are aligned neighbours.
    pub(crate) vector: bool,
    pub(crate) chunk: u32,
    pub(crate) chunks: u32,
}

impl Shares {
    /// Of elements of type `T`, of which all operands `rows` have `columns` columns: 16 bytes to a chunk, of which a thread has `chunks`.
    pub(crate) fn of<T: Element>(columns: usize, rows: &[AnyRows], chunks: u32) -> Self {
        let vector = Self::vector::<T>();
        let is_aligned = |of: &AnyRows| {
            let bytes = u64::from(of.kind.bytes());
            let unit = (bytes * u64::from(vector)).min(CHUNK_BYTES as u64);
            of.base.is_multiple_of(unit) && (of.stride * bytes).is_multiple_of(unit)
        };
        let are_aligned = columns.is_multiple_of(vector as usize) && rows.iter().all(is_aligned);
        Self { vector: are_aligned, chunk: vector, chunks }
    }

    /// The fewest threads that share a row of so many chunks, where they are to read `neighbours` chunks. Chunks that are not aligned are those of a warp's lanes. If
    /// a warp has all of them at once, they are those of as many lanes as [`Columns`](warpsmith_dsl::rows::Columns) allows.
    pub(crate) fn least_threads(self, all: u64, neighbours: u32) -> u64 {
        if self.vector {
            return all.next_power_of_two().min(u64::from(neighbours));
        }
        debug_assert!(self.chunks.is_power_of_two() && self.chunks <= LANES, "{self:?}");
        u64::from(if all <= u64::from(LANES) { LANES / self.chunks } else { LANES })
    }

    /// Elements in 16 bytes.
    pub(crate) fn vector<T: Element>() -> u32 {
        CHUNK_BYTES as u32 / size_of::<T>() as u32
    }
}

/// How many threads and blocks have a row, and how many blocks there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    /// Threads of a block that share a row.
    pub(crate) threads: u32,
    /// How often they load their chunks of it.
    pub(crate) rounds: u32,
    /// Blocks of a cluster that share a row; 1 if there are no clusters.
    pub(crate) cluster: u32,
    /// Blocks of a launch.
    pub(crate) blocks: u32,
}

/// Rows that a launch has, where each team has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    /// Rows before the first.
    before: u64,
    pub(crate) rows: u32,
    blocks: u32,
}

impl Piece {
    /// These rows of an operand.
    pub(crate) fn of(self, rows: AnyRows) -> AnyRows {
        let bytes = self.before * rows.stride * u64::from(rows.kind.bytes());
        AnyRows { base: rows.base + bytes, ..rows }
    }

    /// Where the elements of these rows are in a vector with one for each row.
    pub(crate) fn of_vector<T>(self, vector: GlobalMut<T>) -> GlobalMut<T> {
        if vector.is_null() { vector } else { vector.offset(self.before) }
    }

    /// Where these rows begin in memory that has `stride` elements for each.
    pub(crate) fn from<T>(self, base: Global<T>, stride: u64) -> Global<T> {
        if base.is_null() { base } else { base.offset(self.before * stride) }
    }
}

/// Lanes of a warp.
pub(crate) const LANES: u32 = 32;
/// Threads that keep a multiprocessor busy: more would have too little to do each.
const BUSY_THREADS: u32 = 512;
/// Threads that share a row, where it has chunks for as many: fewer would read too few neighbours at a time.
const LEAST_THREADS: u32 = 4;

impl Plan {
    /// For a kernel whose teams have one row each, on a GPU with so large clusters. There is a launch for each of the [`pieces`](Self::pieces).
    pub(crate) fn new(sizes: Sizes, shares: Shares, max_cluster: u32) -> Self {
        Self::in_blocks(sizes, shares, max_cluster, most_blocks())
    }

    /// The same with clusters of a power of two, for kernels that ask [whose a column is](warpsmith_dsl::rows::Columns::has_column).
    pub(crate) fn in_powers(sizes: Sizes, shares: Shares, max_cluster: u32) -> Self {
        let most = 1 << max_cluster.max(1).ilog2();
        Self::with(sizes, shares, |blocks| blocks.next_power_of_two().min(most), most_blocks())
    }

    /// For as many rows as `sizes` says, of which the threads of a GPU with so large clusters have shares, and at most `most_blocks` blocks. Where these have too few
    /// teams, a team has several rows, or there are several launches. The sums of a row depend on its columns and the largest cluster only.
    pub(crate) fn in_blocks(sizes: Sizes, shares: Shares, max_cluster: u32, most_blocks: u32) -> Self {
        Self::with(sizes, shares, |blocks| blocks.min(u64::from(max_cluster.max(1))), most_blocks)
    }

    /// The same, with the size of a cluster by how many blocks have threads for a whole row.
    fn with(sizes: Sizes, shares: Shares, cluster: impl Fn(u64) -> u64, most_blocks: u32) -> Self {
        let (rows, columns) = (sizes.rows as u64, sizes.columns as u64);
        let all = columns.div_ceil(u64::from(shares.chunk)).max(1);
        let per_thread = u64::from(shares.chunks);
        let least = shares.least_threads(all, LEAST_THREADS);
        let threads = all.div_ceil(per_thread).next_power_of_two().max(least).min(u64::from(THREADS));
        let of_block = threads * per_thread;
        let cluster = cluster(all.div_ceil(of_block));
        let rounds = all.div_ceil(of_block * cluster);
        let teams = u64::from(THREADS) / threads;
        let wanted = if cluster > 1 { rows } else { rows.div_ceil(teams) };
        let most = (u64::from(most_blocks) / cluster).max(1);
        Self {
            threads: threads as u32,
            rounds: rounds as u32,
            cluster: cluster as u32,
            blocks: (wanted.min(most).max(1) * cluster) as u32,
        }
    }

    /// The same with more threads for each row, and fewer chunks for each thread, where rows are too few to keep so many multiprocessors busy.
    ///
    /// The results of a row are the same bits if its kernel adds up as [`Team::sum`](warpsmith_dsl::rows::Team::sum) does.
    pub(crate) fn spread(self, sizes: Sizes, shares: Shares, multiprocessors: u32) -> Self {
        let most = u64::from(multiprocessors) * u64::from(BUSY_THREADS);
        let chunks = (sizes.columns as u64).div_ceil(u64::from(shares.chunk));
        // Chunks of elements lie between each other's up to a warp.
        let least = if shares.vector { 1 } else { LANES };
        let has_room = |threads: u32| {
            threads <= THREADS
                && u64::from(threads / 2) < chunks
                && (sizes.rows as u64).saturating_mul(u64::from(threads)) <= most
        };
        let has_all = self.rows() >= sizes.rows as u64;
        if self.cluster > 1 || self.rounds > 1 || !has_all {
            return self;
        }
        let mut threads = self.threads;
        while has_room((2 * threads).max(least)) {
            threads = (2 * threads).max(least);
        }
        if threads == self.threads {
            return self;
        }
        // No more than the threads that keep the multiprocessors busy.
        let blocks = (sizes.rows as u64).div_ceil(u64::from(THREADS / threads)) as u32;
        Self { threads, blocks: blocks.max(1), ..self }
    }

    /// Teams of a block, or of a cluster.
    fn teams(self) -> u32 {
        if self.cluster > 1 { 1 } else { THREADS / self.threads }
    }

    /// Rows of a launch in which a team has one.
    fn rows(self) -> u64 {
        u64::from(self.blocks / self.cluster) * u64::from(self.teams())
    }

    /// The launches for so many rows, where a team has one.
    pub(crate) fn pieces(self, rows: usize) -> impl Iterator<Item = Piece> {
        let (rows, most) = (rows as u64, self.rows());
        (0..rows.div_ceil(most)).map(move |piece| {
            let before = piece * most;
            let rows = most.min(rows - before) as u32;
            Piece { before, rows, blocks: rows.div_ceil(self.teams()) * self.cluster }
        })
    }

    /// The error for more rows than one launch has, where a team has one.
    pub(crate) fn expect_one_launch(
        self,
        operation: &'static str,
        operand: &'static str,
        rows: usize,
    ) -> Result<()> {
        if rows as u64 <= self.rows() {
            return Ok(());
        }
        let limit = format!("at most {}, of which each has {} blocks", self.rows(), self.cluster);
        let actual = rows.to_string();
        Err(Error::SizeLimit { operation, operand, quantity: "number of rows", limit, actual })
    }
}

/// Launches a kernel for all rows, of which a team has one, with the arguments for the rows of each launch.
///
/// # Safety
///
/// As for [`launch`].
pub(crate) unsafe fn launch_rows<K: Kernel>(
    stream: &Stream,
    plan: Plan,
    rows: usize,
    args: impl Fn(Piece) -> K::Args,
) -> Result<()> {
    plan.pieces(rows).try_for_each(|piece| {
        // SAFETY: the caller's promise.
        unsafe { launch::<K>(stream, Plan { blocks: piece.blocks, ..plan }, args(piece)) }
    })
}

/// Launches a kernel in the clusters of its plan, before earlier launches have ended if it waits for them.
///
/// # Safety
///
/// The arguments are valid for what the kernel does with them. A kernel that waits for earlier launches reads nothing as memory that no launch writes.
pub(crate) unsafe fn launch<K: Kernel>(stream: &Stream, plan: Plan, args: K::Args) -> Result<()> {
    let (kernel, grid) = (stream.device().kernel::<K>()?, [plan.blocks, 1, 1]);
    // SAFETY: the caller's promise.
    unsafe {
        match plan.cluster {
            1 => kernel.launch_early(stream, grid, args),
            cluster => kernel.launch_early_clusters(stream, grid, [cluster, 1, 1], args),
        }
    }
}

/// Which kernel of four a plan asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Variant {
    Block,
    BlockAny,
    Cluster,
    ClusterAny,
}

impl Variant {
    pub(crate) fn of(shares: Shares, plan: Plan) -> Self {
        match (plan.cluster > 1, shares.vector) {
            (false, true) => Self::Block,
            (false, false) => Self::BlockAny,
            (true, true) => Self::Cluster,
            (true, false) => Self::ClusterAny,
        }
    }

    /// The name of the kernel among the four.
    pub(crate) fn of_four<A: Kernel, B: Kernel, C: Kernel, D: Kernel>(self) -> &'static str {
        match self {
            Self::Block => A::DECLARATION.name,
            Self::BlockAny => B::DECLARATION.name,
            Self::Cluster => C::DECLARATION.name,
            Self::ClusterAny => D::DECLARATION.name,
        }
    }
}
