//! The launches of the kernels that compute a linear operation with its updates on Hopper.
//!
//! There are four tiles, one of them for few rows of X and updates of few ranks. Of the others: where the updates have a rank of at most
//! 8, each tile may compute H for itself, and one of them can do nothing else. Otherwise some tiles compute it for all, 8 ranks each, and
//! exchange it through a workspace: that costs less arithmetic, and the time until the last of them has what it waits for. The launch is
//! then cooperative, since blocks that wait for each other have to be on the GPU at the same time.

use half::{bf16, f16};
use warpsmith_dsl::epilogue::LinearEpilogue;
use warpsmith_dsl::float::{Bf16, F16};
use warpsmith_dsl::gemm::split_k::TransposedUpdate;
use warpsmith_dsl::gemm::wgmma::{CHUNK, Exchange, PART, U_BOX_COLUMNS, UpdateTile};
use warpsmith_dsl::launch::{Declaration, Global, GlobalMut, Kernel, TensorMap};
use warpsmith_dsl::layout::RASTER_GROUP;
use warpsmith_kernels::codes::Codes;
use warpsmith_kernels::linear_update_hopper::{
    UpdateCooperative128x192, UpdateFewRowsParams, UpdateHopperParams, UpdateOwn128x128,
    UpdatePingPong128x192, linear_update_few_rows, linear_update_hopper,
};

use super::operands::{BoltOn, Problem};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::kernel::is_built;
use crate::ops::gemm::{self, Access, Limits};
use crate::ops::matrix::row_stride;
use crate::stream::Stream;
use crate::tensor::{DType, Element, Swizzle, Tensor, TensorMapOptions};

/// The operation's name in errors.
const OPERATION: &str = "linear_with_update";
/// The compute capability that these kernels run on.
const HOPPER: (u32, u32) = (9, 0);
/// Rows of Y that a warp has the copy engine store at a time, and that a warp has of H.
const WARP_ROWS: u32 = 16;

/// The tile of the output that a block, or one of its two consumers, computes at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tile {
    /// 128 × 192 by each consumer in turn, in clusters of two blocks; for outputs that the copy engine stores.
    PingPong128x192,
    /// 128 × 192 by both consumers together, in clusters of two blocks; for outputs that the copy engine stores.
    Cooperative128x192,
    /// 128 × 128 by each consumer in turn, for at most 8 ranks, of which each tile computes all for itself; for outputs that the copy engine stores.
    Own128x128,
    /// 16 × 64, for few rows and at most 8 ranks: a block for each.
    FewRows16x64,
}

/// What the choice knows of a tile.
#[derive(Clone, Copy)]
struct Facts {
    rows: u32,
    columns: u32,
    cluster: u32,
    shared_bytes: u32,
    needs_boxes: bool,
    /// Whether a tile always computes H for itself.
    is_own: bool,
    /// The tile of the linear operation that multiplies as it does.
    linear: gemm::Tile,
    /// What a tile takes beside its products, in picoseconds on an H100.
    tile: u64,
    /// How much sooner a launch of a tile for each block is done than that of the linear operation's tile.
    sooner: u64,
}

impl Tile {
    const ALL: [Self; 4] =
        [Self::PingPong128x192, Self::Cooperative128x192, Self::Own128x128, Self::FewRows16x64];

    const fn facts(self) -> Facts {
        const fn of<S: UpdateTile>(linear: gemm::Tile, [tile, sooner]: [u64; 2]) -> Facts {
            Facts {
                rows: S::BLOCK_M,
                columns: S::BLOCK_N,
                cluster: S::CLUSTER_M,
                shared_bytes: S::SHARED_BYTES,
                needs_boxes: !S::STORES_ROWS,
                is_own: S::IS_OWN,
                linear,
                tile,
                sooner,
            }
        }
        // What a tile takes beside was fitted to measurements of 768 and 4096 columns.
        let (wide, square) = (gemm::Tile::HopperPingPong128x192, gemm::Tile::HopperPingPong128x128);
        match self {
            Self::PingPong128x192 => of::<UpdatePingPong128x192>(wide, [1_100_000, 0]),
            Self::Cooperative128x192 => of::<UpdateCooperative128x192>(wide, [2_000_000, 5_000_000]),
            Self::Own128x128 => of::<UpdateOwn128x128>(square, [0, 0]),
            // Its time follows from that of the linear operation's kernel.
            Self::FewRows16x64 => Facts {
                rows: TransposedUpdate::BLOCK_M,
                columns: TransposedUpdate::BLOCK_N,
                cluster: 1,
                shared_bytes: TransposedUpdate::SHARED_BYTES,
                needs_boxes: false,
                is_own: true,
                linear: gemm::Tile::Skinny16x64,
                tile: 0,
                sooner: 0,
            },
        }
    }
}

/// How tiles get at H.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sharing {
    /// Each computes all of it.
    Own,
    /// Some compute 8 ranks each, and all exchange them.
    Exchanged,
}

/// A kernel and its launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Choice {
    /// Blocks of the launch.
    pub(super) blocks: u32,
    tile: Tile,
    sharing: Sharing,
    /// Clusters' tiles along M that the order visits before it steps along N.
    height: u32,
}

/// Until a block has what another one has published, in picoseconds on an H100: a fence, a number, and the data, all by way of the
/// level-2 cache, from the slowest of those that it waits for.
const EXCHANGE: u64 = 6_000_000;
/// From a tile's own H to its sums: an estimate from the latencies of its instructions.
const OWN: u64 = 300_000;

/// Bytes that a multiprocessor gets from the GPU's memory in a microsecond.
const BLOCK_RATE: u128 = 28_000;

/// More blocks than any of these launches has.
const MAX_BLOCKS: u32 = 1 << 31;

/// The kernel that computes a linear operation with updates on Hopper, and its time in picoseconds by the model; `None` if none can.
pub(super) fn choose(problem: &Problem, limits: &Limits) -> Option<(Choice, u128)> {
    let timed = candidates(problem, limits).map(|choice| (choice, picoseconds(choice, problem, limits)));
    timed.min_by_key(|&(_, time)| time).filter(|_| {
        limits.compute_capability == HOPPER
            && is_built("linear_update_hopper")
            && problem.dtype != DType::F32
            && problem.access == Access::Aligned
            && problem.u_is_chunked
    })
}

/// Every launch that would do on a Hopper GPU, for operands that the copy engine can read.
fn candidates(problem: &Problem, limits: &Limits) -> impl Iterator<Item = Choice> {
    // What each tile can compute for itself is worth no waiting.
    let ways: &[_] = if problem.rank <= CHUNK { &[Sharing::Own] } else { &[Sharing::Exchanged] };
    let of_tile = |tile| ways.iter().map(move |&sharing| (tile, sharing));
    let all = Tile::ALL.into_iter().flat_map(of_tile);
    all.filter_map(|(tile, sharing)| plan(tile, sharing, problem, limits))
}

/// The launch with a tile, if there is one.
fn plan(tile: Tile, sharing: Sharing, problem: &Problem, limits: &Limits) -> Option<Choice> {
    let facts = tile.facts();
    if problem.k == 0 || facts.shared_bytes > limits.max_shared_per_block {
        return None;
    }
    if facts.needs_boxes && !stores_boxes(problem) || facts.is_own && sharing != Sharing::Own {
        return None;
    }
    let (clusters_m, tiles_n) = tiles(facts, problem);
    if tile == Tile::FewRows16x64 {
        let blocks = u32::try_from(clusters_m * tiles_n).ok().filter(|&blocks| blocks < MAX_BLOCKS)?;
        let computes = problem.rank <= CHUNK && blocks > 0;
        return computes.then_some(Choice { blocks, tile, sharing, height: 1 });
    }
    let most = u64::from(limits.multiprocessors / facts.cluster);
    let clusters = (clusters_m * tiles_n).min(most);
    // The order of the tiles counts them in 32 bits.
    if clusters == 0 || (clusters_m * tiles_n).checked_add(most)? > u64::from(u32::MAX) {
        return None;
    }
    let chunks = u64::from(problem.rank.div_ceil(CHUNK));
    let height = match sharing {
        Sharing::Own if chunks > 1 => return None,
        // The blocks of a few tiles beside each other then read the same rows of X at the same time, the earliest from memory and the others
        // from the level-2 cache: on an H100, 1 % less for six tiles.
        Sharing::Own if facts.cluster == 1 && tiles_n <= u64::from(RASTER_GROUP) => 1,
        Sharing::Own => u64::from(RASTER_GROUP),
        // A cluster that computed two chunks of the same rows would wait for itself.
        Sharing::Exchanged => u64::from(RASTER_GROUP).min(clusters / chunks),
    };
    if height == 0 || sharing == Sharing::Exchanged && tiles_n < chunks {
        return None;
    }
    let blocks = u32::try_from(clusters).ok()? * facts.cluster;
    Some(Choice { blocks, tile, sharing, height: height as u32 })
}

/// Whether the copy engine stores Y.
fn stores_boxes(problem: &Problem) -> bool {
    let is_chunked = problem.y_is_chunked;
    problem.fits_registers
        && is_chunked
        && (u64::from(problem.n) * problem.dtype.size() as u64).is_multiple_of(16)
}

/// The clusters' tiles along M, and the tiles along N.
fn tiles(facts: Facts, problem: &Problem) -> (u64, u64) {
    let (rows, columns) = (facts.rows * facts.cluster, facts.columns);
    (problem.m.div_ceil(rows).into(), problem.n.div_ceil(columns).into())
}

/// How long a launch takes by a model, in picoseconds on an H100. What the linear operation takes with such tiles, of which the
/// columns of V and the products with U are a part more, and what is waited for.
fn picoseconds(choice: Choice, problem: &Problem, limits: &Limits) -> u128 {
    if choice.tile == Tile::FewRows16x64 {
        return few_rows_picoseconds(problem, limits);
    }
    let facts = choice.tile.facts();
    let product = linear_problem(problem, limits);
    let Some(linear) = gemm::estimate_of_launch(facts.linear, &product, limits) else { return u128::MAX };
    let (clusters_m, tiles_n) = tiles(facts, problem);
    let rounds = (clusters_m * tiles_n).div_ceil(u64::from(choice.blocks / facts.cluster));
    let chunks = u64::from(problem.rank.div_ceil(CHUNK));
    // Of the columns of V, what a tile has to multiply, and when it is waited for.
    let (multiplied, waits) = match choice.sharing {
        Sharing::Own => (u64::from(CHUNK * 1024), OWN),
        Sharing::Exchanged => (u64::from(CHUNK * 1024) * chunks / tiles_n, EXCHANGE),
    };
    let ridden = linear * u128::from(multiplied) / u128::from(facts.columns * 1024);
    let added = linear * u128::from(problem.rank.next_multiple_of(PART)) / u128::from(problem.k.max(PART));
    let of_tiles = u128::from(rounds) * u128::from(facts.tile);
    let mut time = linear + ridden + added + of_tiles;
    if clusters_m == 1 {
        // No other block reads these rows of W.
        let bytes = u128::from(facts.columns) * u128::from(problem.k) * problem.dtype.size() as u128;
        time = time.max(u128::from(rounds) * bytes * 1_000_000 / BLOCK_RATE);
    }
    // Nothing here reads and stores faster than the linear operation alone.
    let alone = gemm::estimate(None, &product, limits).unwrap_or(0);
    let sooner = if rounds == 1 { u128::from(facts.sooner) } else { 0 };
    u128::from(waits) + time.saturating_sub(sooner).max(alone + alone / 32)
}

/// The same of the tile for few rows: the linear operation's time with that tile, of which the rows of V are a part more, and what the
/// warps wait for H'.
fn few_rows_picoseconds(problem: &Problem, limits: &Limits) -> u128 {
    let product = linear_problem(problem, limits);
    let rows = u128::from(TransposedUpdate::BLOCK_M + TransposedUpdate::BLOCK_N);
    gemm::estimate_of_launch(gemm::Tile::Skinny16x64, &product, limits)
        .map_or(u128::MAX, |time| time * (rows + u128::from(CHUNK)) / rows + u128::from(OWN))
}

/// The linear operation without the updates.
fn linear_problem(problem: &Problem, limits: &Limits) -> gemm::Problem {
    gemm::Problem { stores_boxes: stores_boxes(problem), ..problem.linear(limits) }
}

/// The arguments of these kernels.
type Args<T> = (
    TensorMap,
    TensorMap,
    TensorMap,
    TensorMap,
    TensorMap,
    GlobalMut<<T as Element>::Device>,
    LinearEpilogue<<T as Element>::Device, <T as Element>::Device>,
    Codes<<T as Element>::Device>,
    Exchange,
    UpdateHopperParams,
);

/// The arguments of the kernels for few rows.
type FewRowsArgs<T> = (
    TensorMap,
    TensorMap,
    TensorMap,
    Global<<T as Element>::Device>,
    GlobalMut<<T as Element>::Device>,
    LinearEpilogue<<T as Element>::Device, <T as Element>::Device>,
    Codes<<T as Element>::Device>,
    UpdateFewRowsParams,
);

/// A kernel and how it is launched.
#[doc(hidden)]
pub struct Instance<T: Element> {
    declaration: Declaration,
    launch: unsafe fn(&Device, &Stream, Choice, &BoltOn<'_, T>) -> Result<()>,
}

impl<T: Element> Instance<T> {
    fn of<K: Kernel<Args = Args<T>>, S: UpdateTile>() -> Self {
        Self { declaration: K::DECLARATION, launch: launch_as::<T, K, S> }
    }

    fn few_rows<K: Kernel<Args = FewRowsArgs<T>>>() -> Self {
        Self { declaration: K::DECLARATION, launch: launch_few_rows::<T, K> }
    }
}

/// The kernels of an element type.
pub trait Kernels: Element {
    /// The kernel with a tile; `None` if the type has none.
    #[doc(hidden)]
    fn instance(tile: Tile) -> Option<Instance<Self>>;
}

macro_rules! kernels {
    ($element:ident, $device:ident) => {
        impl Kernels for $element {
            fn instance(tile: Tile) -> Option<Instance<Self>> {
                Some(match tile {
                    Tile::PingPong128x192 => kernels!(@of $device, UpdatePingPong128x192),
                    Tile::Cooperative128x192 => kernels!(@of $device, UpdateCooperative128x192),
                    Tile::Own128x128 => kernels!(@of $device, UpdateOwn128x128),
                    Tile::FewRows16x64 => Instance::few_rows::<linear_update_few_rows<$device>>(),
                })
            }
        }
    };
    (@of $device:ident, $tile:ident) => { Instance::of::<linear_update_hopper<$device, $tile>, $tile>() };
}
kernels!(f16, F16);
kernels!(bf16, Bf16);

impl Kernels for f32 {
    fn instance(_: Tile) -> Option<Instance<Self>> {
        None
    }
}

/// The entry point of a choice.
pub(super) fn kernel<T: Kernels>(choice: Choice) -> &'static str {
    T::instance(choice.tile).map_or("", |instance| instance.declaration.name)
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
    operands: &BoltOn<'_, T>,
) -> Result<()> {
    let Some(instance) = T::instance(choice.tile) else {
        return Err(Error::Type {
            operation: OPERATION,
            operand: "x",
            expected: format!(
                "one that the tile {:?} has a kernel for: {} or {}",
                choice.tile,
                DType::F16,
                DType::Bf16
            ),
            actual: T::DTYPE,
        });
    };
    // SAFETY: the caller's promise.
    unsafe { (instance.launch)(device, stream, choice, operands) }
}

/// The error for updates without the linear operation that these kernels add them to.
fn without_weight() -> Error {
    Error::Argument {
        operation: OPERATION,
        argument: "w",
        expected: "a matrix, which the kernels for Hopper multiply X with".into(),
        actual: "none".into(),
    }
}

/// A matrix as kernels see it, with one matrix as a third axis, in boxes of `rows` × `columns`.
fn map<T: Element>(matrix: &Tensor<T>, rows: u32, columns: u32) -> Result<TensorMap> {
    let options = TensorMapOptions { swizzle: Swizzle::B128, ..TensorMapOptions::default() };
    let (shape, strides) = (matrix.shape(), matrix.strides());
    let (shape, strides) = ([1, shape[0], shape[1]], [0, strides[0], strides[1]]);
    matrix.encode_as(OPERATION, &shape, &strides, &[1, rows as usize, columns as usize], &options)
}

/// Launches the kernel `K` of tile `S`.
///
/// # Safety
///
/// As [`launch`].
unsafe fn launch_as<T: Element, K: Kernel<Args = Args<T>>, S: UpdateTile>(
    device: &Device,
    stream: &Stream,
    choice: Choice,
    operands: &BoltOn<'_, T>,
) -> Result<()> {
    let &BoltOn { x, w: Some(w), vt, u, y, y_arg, codes, epilogue, m, n, k } = operands else {
        return Err(without_weight());
    };
    let size = size_of::<T>() as u32;
    let columns = S::ROW_BYTES / size;
    let strides = row_stride(y) * u64::from(size);
    let has_boxes =
        (y_arg.address() | strides).is_multiple_of(16) && (u64::from(n) * u64::from(size)).is_multiple_of(16);
    let y_boxes = if has_boxes { map(y, WARP_ROWS, columns)? } else { TensorMap::from_words([0; 16]) };
    let chunks = (vt.shape()[0] as u32).div_ceil(CHUNK);
    let mut workspace = match choice.sharing {
        Sharing::Own => None,
        Sharing::Exchanged => {
            // Tiles write all of their rows, those outside of Y too.
            let rows = u64::from(m).next_multiple_of(u64::from(S::BLOCK_M * S::CLUSTER_M));
            let strips = rows / u64::from(WARP_ROWS);
            let words = Exchange::record_words(strips, chunks) as usize;
            let counters = Tensor::<u32>::zeros_on(stream, [strips as usize])?;
            Some((Tensor::<u32>::uninit_on(stream, [words])?, counters))
        }
    };
    let [records, counters] = match &mut workspace {
        Some((records, counters)) => [records.arg_mut(), counters.arg_mut()],
        None => [GlobalMut::new(0); 2],
    };
    let clusters_m = m.div_ceil(S::BLOCK_M * S::CLUSTER_M);
    let tiles = u64::from(clusters_m * S::CLUSTER_M) * u64::from(n.div_ceil(S::BLOCK_N));
    let choice = within_limit(stream, choice, tiles, chunks, S::CLUSTER_M);
    let exchange = Exchange { records, counters, chunks, is_own: (choice.sharing == Sharing::Own).into() };
    let params = UpdateHopperParams {
        stride_y: row_stride(y),
        m,
        n,
        k,
        has_boxes: has_boxes.into(),
        height: choice.height,
        reserved: 0,
    };
    let args = (
        map(x, S::A_BOX_ROWS, columns)?,
        map(w, S::B_BOX_ROWS, columns)?,
        map(vt, CHUNK, columns)?,
        map(u, PART, U_BOX_COLUMNS)?,
        y_boxes,
        y_arg,
        epilogue,
        codes,
        exchange,
        params,
    );
    let kernel = device.kernel::<K>()?;
    // SAFETY: the maps are of matrices of `T`, with the boxes that the tile asks for. The workspace belongs to this launch, and is freed in
    // the order of its stream. The rest is the caller's promise.
    unsafe {
        match choice.sharing {
            // Early blocks lie on whichever multiprocessors are free: only those of a cluster stay beside others that read the same.
            Sharing::Own if S::CLUSTER_M > 1 && gemm::has_only_tiles(tiles, choice.blocks) => {
                kernel.launch_early(stream, [choice.blocks, 1, 1], args)
            }
            Sharing::Own => kernel.launch(stream, [choice.blocks, 1, 1], args),
            Sharing::Exchanged => kernel.launch_cooperative(stream, [choice.blocks, 1, 1], args),
        }
    }
}

/// A choice for `tiles` tiles and `chunks` chunks of the codes, on a stream that may leave multiprocessors to others, in clusters of `cluster` blocks.
///
/// Clusters that exchange products are as many as the rows that are worked on at the same time have chunks, at least: otherwise a cluster would wait for itself.
fn within_limit(stream: &Stream, choice: Choice, tiles: u64, chunks: u32, cluster: u32) -> Choice {
    let blocks = stream.persistent_blocks(choice.blocks, tiles, |multiprocessors| {
        let clusters = (multiprocessors / cluster).max(1);
        clusters.max(if choice.sharing == Sharing::Exchanged { chunks } else { 1 }) * cluster
    });
    match choice.sharing {
        Sharing::Own => Choice { blocks, ..choice },
        Sharing::Exchanged => {
            Choice { blocks, height: choice.height.min(blocks / cluster / chunks.max(1)).max(1), ..choice }
        }
    }
}

/// Launches the kernel `K`, which is for few rows.
///
/// # Safety
///
/// As [`launch`].
unsafe fn launch_few_rows<T: Element, K: Kernel<Args = FewRowsArgs<T>>>(
    device: &Device,
    stream: &Stream,
    choice: Choice,
    operands: &BoltOn<'_, T>,
) -> Result<()> {
    type S = TransposedUpdate;
    let &BoltOn { x, w: Some(w), vt, u, y, y_arg, codes, epilogue, m, n, k } = operands else {
        return Err(without_weight());
    };
    let columns = S::ROW_BYTES / size_of::<T>() as u32;
    let params =
        UpdateFewRowsParams { stride_y: row_stride(y), stride_u: row_stride(u), m, n, k, reserved: 0 };
    let args = (
        map(x, S::A_BOX_ROWS, columns)?,
        map(w, S::B_BOX_ROWS, columns)?,
        map(vt, CHUNK, columns)?,
        u.arg(),
        y_arg,
        epilogue,
        codes,
        params,
    );
    let kernel = device.kernel::<K>()?;
    // SAFETY: the maps are of matrices of `T`, with the boxes that the tile asks for; the rest is the caller's promise.
    unsafe {
        // Early blocks that share a multiprocessor take longer than they gain: 128 rows of 768 took an H100 3.98 us not early,
        // 4.02 early, 3.54 apart.
        if choice.blocks <= device.properties().multiprocessors {
            kernel.launch_early_apart(stream, [choice.blocks, 1, 1], args)
        } else {
            kernel.launch(stream, [choice.blocks, 1, 1], args)
        }
    }
}

#[cfg(test)]
mod tests;
