//! The launches of the kernels that compute an update alone.
//!
//! A kernel is a shape: for how large a rank, how many rows a block works on, and whether a cluster of blocks shares the first product's
//! sums. [`choose`] takes the one for which a model of bytes and latencies gives the shortest time, and says into how many
//! slices Y's columns are cut. For few rows, blocks that would have nothing to do compute the first product once more and other
//! columns.

use half::{bf16, f16};
use warpsmith_dsl::gemm::low_rank::{LowRankShape, RowsShape};
use warpsmith_dsl::launch::{Declaration, Global, GlobalMut, Kernel};
use warpsmith_dsl::layout::CHUNK_BYTES;
use warpsmith_kernels::codes::Codes;
use warpsmith_kernels::generated_update::{Rank8, Rows768, generated_update, generated_update_rows};
use warpsmith_kernels::generated_update_cluster::{Cluster16, generated_update_cluster};
use warpsmith_kernels::update::{SLICE_BYTES, UpdateParams};

use super::operands::{Alone, Problem};
use crate::device::Device;
use crate::error::Result;
use crate::kernel::is_built;
use crate::ops::gemm::{Access, Limits};
use crate::ops::matrix::row_stride;
use crate::stream::Stream;
use crate::tensor::{DType, Element};

/// A kernel of the update alone, but for the type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// Ranks up to 8: 16 rows a block.
    Rank8,
    /// Ranks up to 8 and few columns, of 16-bit types: V and U in registers.
    Rows768,
    /// Ranks up to 16 by clusters of eight blocks: 16 rows a cluster.
    Cluster16,
}

impl Shape {
    const ALL: [Self; 3] = [Self::Rows768, Self::Rank8, Self::Cluster16];
}

/// The kernels of an element type.
pub trait Kernels: Element {
    /// The kernel of a shape.
    #[doc(hidden)]
    #[allow(private_interfaces, reason = "nothing outside this crate implements or calls it")]
    fn instance(shape: Shape) -> Instance<Self>;
}

/// A kernel and how it is launched.
#[doc(hidden)]
pub struct Instance<T: Element> {
    sizes: Sizes,
    launch: Launch<T>,
}

type Launch<T> = unsafe fn(&Device, &Stream, Choice, &Alone<'_, T>) -> Result<()>;

/// What a kernel declares.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    declaration: Declaration,
    block_m: u32,
    max_rank: u32,
    panels: u32,
    stage_row_bytes: u32,
    split: u32,
    /// The largest K and number of columns, if there is one: the rows of X, U and Y are then whole chunks.
    most_columns: Option<u32>,
}

impl Sizes {
    const fn of<S: LowRankShape>(declaration: Declaration) -> Self {
        Self {
            declaration,
            block_m: S::BLOCK_M,
            max_rank: S::MAX_RANK,
            panels: S::PANELS,
            stage_row_bytes: S::STAGE_ROW_BYTES,
            split: S::SPLIT,
            most_columns: None,
        }
    }

    const fn of_rows<S: RowsShape>(declaration: Declaration) -> Self {
        Self {
            declaration,
            block_m: S::BLOCK_M,
            max_rank: S::MAX_RANK,
            // All of V and U stay.
            panels: u32::MAX,
            stage_row_bytes: S::MAX_COLUMNS * 2,
            split: 1,
            most_columns: Some(S::MAX_COLUMNS),
        }
    }
}

/// The arguments of a kernel.
type Args<T> = (
    Global<<T as Element>::Device>,
    Global<<T as Element>::Device>,
    Codes<<T as Element>::Device>,
    Global<<T as Element>::Device>,
    GlobalMut<<T as Element>::Device>,
    UpdateParams,
);

impl<T: Element> Instance<T> {
    fn of<K: Kernel<Args = Args<T>>, S: LowRankShape>() -> Self {
        Self { sizes: Sizes::of::<S>(K::DECLARATION), launch: launch_kernel::<T, K> }
    }

    fn of_rows<K: Kernel<Args = Args<T>>, S: RowsShape>() -> Self {
        Self { sizes: Sizes::of_rows::<S>(K::DECLARATION), launch: launch_kernel::<T, K> }
    }
}

/// Launches the kernel `K`.
///
/// # Safety
///
/// As [`launch`].
unsafe fn launch_kernel<T: Element, K: Kernel<Args = Args<T>>>(
    device: &Device,
    stream: &Stream,
    choice: Choice,
    operands: &Alone<'_, T>,
) -> Result<()> {
    let &Alone { x, v, u, y, y_arg, codes, m, k, n, add } = operands;
    let params = UpdateParams {
        stride_x: row_stride(x),
        stride_v: row_stride(v),
        stride_u: row_stride(u),
        stride_y: row_stride(y),
        m,
        k1: k,
        k2: n,
        slice: choice.slice,
        add: add.into(),
        reserved: 0,
    };
    let kernel = device.kernel::<K>()?;
    // SAFETY: the caller's promise is the kernel's.
    unsafe { kernel.launch(stream, [choice.blocks, 1, 1], (x.arg(), v.arg(), codes, u.arg(), y_arg, params)) }
}

macro_rules! kernels {
    ($($element:ident: $($shape:ident = $of:ident $kernel:ident<$tile:ident>),*;)*) => {
        $(
            impl Kernels for $element {
                #[allow(private_interfaces, reason = "nothing outside this crate implements or calls it")]
                fn instance(shape: Shape) -> Instance<Self> {
                    match shape {
                        $(Shape::$shape => Instance::$of::<$kernel<<Self as Element>::Device, $tile>, $tile>(),)*
                    }
                }
            }
        )*
    };
}
kernels! {
    f16: Rows768 = of_rows generated_update_rows<Rows768>, Rank8 = of generated_update<Rank8>,
        Cluster16 = of generated_update_cluster<Cluster16>;
    bf16: Rows768 = of_rows generated_update_rows<Rows768>, Rank8 = of generated_update<Rank8>,
        Cluster16 = of generated_update_cluster<Cluster16>;
    f32: Rows768 = of generated_update<Rank8>, Rank8 = of generated_update<Rank8>,
        Cluster16 = of generated_update_cluster<Cluster16>;
}

/// A kernel and its launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Choice {
    /// The kernel.
    pub(super) shape: Shape,
    /// Columns of Y that a block computes of its rows.
    pub(super) slice: u32,
    /// Blocks of the launch.
    pub(super) blocks: u32,
}

/// Bytes that a multiprocessor gets from the level-2 cache, or gives it, in a microsecond, on an H100.
const CACHE_RATE: u64 = 40_000;
/// Bytes that the GPU's memory reads or writes in a microsecond.
const MEMORY_RATE: u64 = 3_000_000;
/// What a launch takes beside.
const START: u64 = 2_500;
/// What a stage of a ring that nothing else keeps busy takes at least, in nanoseconds.
const STAGE: u64 = 150;
/// What the first bytes of a tile, or of the other blocks' sums, take to arrive, in nanoseconds.
const LATENCY: u64 = 1_000;

/// The kernel that computes the update alone, and its time in picoseconds by the model; `None` if none can.
pub(super) fn choose(problem: &Problem, limits: &Limits) -> Option<(Choice, u128)> {
    Shape::ALL
        .into_iter()
        .flat_map(|shape| choices(shape, problem, limits))
        // Where it fits, the kernel that keeps V and U in registers is the fastest for any number of rows: on an H100 it takes 0.77 of the
        // next one's time for 16384 rows of 768, half for 1024.
        .min_by_key(|&(choice, time)| (choice.shape != Shape::Rows768, time))
        .map(|(choice, nanoseconds)| (choice, u128::from(nanoseconds) * 1_000))
}

/// What is known of the kernel of a shape for a type.
fn sizes(shape: Shape, dtype: DType) -> Option<Sizes> {
    match dtype {
        // The instance is another kernel's: there is none.
        DType::F32 if shape == Shape::Rows768 => None,
        DType::F16 => Some(f16::instance(shape).sizes),
        DType::Bf16 => Some(bf16::instance(shape).sizes),
        DType::F32 => Some(f32::instance(shape).sizes),
        _ => None,
    }
}

/// The launches of a shape that compute `problem`, with their times in nanoseconds.
fn choices(shape: Shape, problem: &Problem, limits: &Limits) -> Vec<(Choice, u64)> {
    let &Problem { m, k, n, rank, dtype, .. } = problem;
    let Some(sizes) = sizes(shape, dtype) else { return Vec::new() };
    let shared = sizes.declaration.shared_bytes;
    let chunk = CHUNK_BYTES / size_of_type(dtype);
    let fits_columns = sizes.most_columns.is_none_or(|most| {
        let is_whole = |columns: u32| columns <= most && columns.is_multiple_of(chunk);
        let is_chunked = problem.access == Access::Aligned && problem.u_is_chunked && problem.y_is_chunked;
        is_chunked && is_whole(k) && is_whole(n)
    });
    let fits = is_built(sizes.declaration.family)
        && rank <= sizes.max_rank
        && fits_columns
        && shared <= limits.max_shared_per_block
        && limits.compute_capability >= if sizes.split > 1 { (9, 0) } else { (8, 0) };
    if !fits {
        return Vec::new();
    }
    let per_multiprocessor = (limits.shared_per_multiprocessor / (shared + 1024))
        .clamp(1, sizes.declaration.min_blocks_per_sm.max(1));
    let at_once = per_multiprocessor.saturating_mul(limits.multiprocessors).max(sizes.split);
    let unit = SLICE_BYTES / size_of_type(dtype);
    let units = n.div_ceil(unit).max(1);
    let tiles = m.div_ceil(sizes.block_m).max(1);
    // Slices of one, two, four … parts of the columns, as long as they give blocks something to do.
    let mut all = Vec::new();
    let mut parts = sizes.split;
    loop {
        let slice = units.div_ceil(parts) * unit;
        let slices = n.div_ceil(slice).max(1).next_multiple_of(sizes.split);
        let jobs = tiles.saturating_mul(slices);
        // Clusters do not take turns.
        let blocks = if sizes.split > 1 { jobs } else { jobs.min(at_once) };
        if blocks.is_multiple_of(sizes.split) {
            let choice = Choice { shape, slice, blocks };
            all.push((choice, nanoseconds(choice, &sizes, problem, limits, at_once)));
        }
        if parts >= units || jobs >= at_once || sizes.most_columns.is_some() {
            return all;
        }
        parts *= 2;
    }
}

/// Bytes of an element.
fn size_of_type(dtype: DType) -> u32 {
    if dtype == DType::F32 { 4 } else { 2 }
}

/// The time of a launch, of which `at_once` blocks run at a time: that of its bytes and stages, as often as launches were measured to take on an H100, at sizes
/// drawn at random.
fn nanoseconds(choice: Choice, sizes: &Sizes, problem: &Problem, limits: &Limits, at_once: u32) -> u64 {
    let least = least_nanoseconds(choice, sizes, problem, limits, at_once);
    let (percent, aligned_percent) = match choice.shape {
        Shape::Rows768 => (100, 100),
        Shape::Rank8 => (700, 150),
        Shape::Cluster16 => (500, 270),
    };
    let percent = if problem.x_is_chunked { aligned_percent } else { percent };
    START + least * percent / 100
}

/// The time that a launch's bytes and stages take at least.
fn least_nanoseconds(choice: Choice, sizes: &Sizes, problem: &Problem, limits: &Limits, at_once: u32) -> u64 {
    let bytes = u64::from(size_of_type(problem.dtype));
    let [m, k, n, rank] = [problem.m, problem.k, problem.n, problem.rank].map(u64::from);
    let [block_m, slice, split] = [sizes.block_m, choice.slice, sizes.split].map(u64::from);
    let stage = u64::from(sizes.stage_row_bytes);
    let k_bytes = (k * bytes).div_ceil(split);
    let slices = n.div_ceil(slice).next_multiple_of(split);
    let jobs = m.div_ceil(block_m) * slices;
    let stages = k_bytes.div_ceil(stage) + (slice.min(n) * bytes).div_ceil(stage);
    let resident = slices == 1 && stages <= u64::from(sizes.panels);
    // What a block moves for a tile; V and U only once if they stay.
    let factors = rank * (k_bytes + slice.min(n) * bytes);
    let rows = block_m * (k_bytes + slice.min(n) * bytes);
    let per_multiprocessor = jobs.div_ceil(u64::from(limits.multiprocessors.max(1)));
    let moved = per_multiprocessor * rows + if resident { factors } else { per_multiprocessor * factors };
    let turns = jobs.div_ceil(u64::from(at_once.max(1)));
    let latency = LATENCY * (1 + u64::from(split > 1)) + turns * stages * STAGE;
    let memory = m * (k + n) * bytes * 1_000 / MEMORY_RATE;
    latency + memory.max(moved * 1_000 / CACHE_RATE)
}

/// The entry point of a choice.
pub(super) fn kernel<T: Kernels>(choice: Choice) -> &'static str {
    T::instance(choice.shape).sizes.declaration.name
}

/// Launches a choice for `operands`, for which it was made.
///
/// # Safety
///
/// The operands are valid for what the kernel does with them, and live until the stream's work is done.
pub(super) unsafe fn launch<T: Kernels>(
    device: &Device,
    stream: &Stream,
    choice: Choice,
    operands: &Alone<'_, T>,
) -> Result<()> {
    // SAFETY: the caller's promise is the kernel's.
    unsafe { (T::instance(choice.shape).launch)(device, stream, choice, operands) }
}

#[cfg(test)]
mod tests;
