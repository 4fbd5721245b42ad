//! The kernels' bodies. Each is `y = epilogue(X Wᵀ)`, by another main loop.

use core::num::NonZeroU32;

use super::{HopperParams, LinearParams, SkinnyParams, SumsParams};
use crate::epilogue::Epilogue;
use crate::float::Element;
use crate::gemm::parts::{Part, Parts};
use crate::gemm::{BoxOutput, MmaElement, OutputElement, PersistentTile, Rule, SplitKTile, TileShape, again};
use crate::launch::{Global, GlobalMut, TensorMap};
use crate::layout::{self, Coord};
use crate::ptx::Wgmma;
use crate::shared::SharedAddress;
use crate::tile::{Access, Aligned, Operand, Output};
use crate::{grid, ptx, thread, warp};

/// Threads of a block of [`add_parts`].
pub const SUMS_THREADS: u32 = 128;
/// Warps of a block of [`add_parts`].
const SUMS_WARPS: u32 = SUMS_THREADS / warp::SIZE;
/// Neighbouring columns of a lane of [`add_parts`].
pub const LANE_COLUMNS: u32 = 4;
/// Columns of a warp of [`add_parts`], all of one row.
pub const WARP_COLUMNS: u32 = LANE_COLUMNS * warp::SIZE;
/// Parts that a lane loads together: what hides the memory's latency.
const AT_ONCE: u32 = 4;

/// On sm_80 and every later architecture: a block for each tile of each matrix, or `parts.count` of them where the tile
/// [shares](TileShape::SHARES). `epilogue` gives that of a matrix.
///
/// # Safety
///
/// All threads of a one-dimensional grid of as many blocks call it, with the threads and the shared memory that `S` asks for. The pointers,
/// those of the epilogue too, are valid for the matrices that `p` describes. Y and what else is written overlap nothing else, but that Y
/// may be what the epilogue adds; the memory of `parts` is this launch's alone. The addresses and the strides of X and W are multiples of
/// what the access `A` asks for.
#[inline(always)]
pub unsafe fn portable<T: MmaElement, O: Element, S: TileShape, A: Access, E: Epilogue>(
    x: Global<T>,
    w: Global<T>,
    y: GlobalMut<O>,
    epilogue: impl FnOnce(u32) -> E,
    parts: Parts,
    p: LinearParams,
) {
    let parts = if S::SHARES { parts } else { Parts::WHOLE };
    let part = parts.of_block(thread::block_idx_x());
    let tile = layout::raster(part.tile, p.m.div_ceil(S::BLOCK_M), p.n.div_ceil(S::BLOCK_N));
    let batch = tile.batch as u64;
    let first = [x, w];
    let x = Operand { base: x.offset(batch * p.batch_x), stride: p.stride_x, rows: p.m, k: p.k };
    let w = Operand { base: w.offset(batch * p.batch_w), stride: p.stride_w, rows: p.n, k: p.k };
    let y = Output { base: y.offset(batch * p.batch_y), stride: p.stride_y, rows: p.m, columns: p.n };
    let epilogue = epilogue(tile.batch);

    // SAFETY: the whole block is here, with the threads and the shared memory that the tile asks for; the caller vouches for
    // the pointers, and each tile of Y is stored by one block.
    unsafe {
        let [x, w] = [x, w].map(|operand| of_part::<T, S>(operand, &parts, part));
        // Turing's main loop reads chunks only.
        let mut accumulators = if cfg!(feature = "turing") || A::are_aligned(&x, &w) {
            S::multiply::<T, Aligned>(x, w, tile)
        } else {
            S::multiply::<T, A>(x, w, tile)
        };
        if parts.count > 1 {
            // No warp may read the ring any more, where the blocks' word is.
            thread::sync_threads();
            if !parts.combine(&mut accumulators, part, S::THREADS, SharedAddress::dynamic()) {
                return;
            }
        }
        let sums = again::of_rows::<T, <S::Rule as Rule>::Of<T>>(move || {
            // Not those above, which would take registers while the products run.
            let (batch, [x, w]) = (ptx::opaque(tile.batch) as u64, first);
            let x = Operand { base: x.offset(batch * p.batch_x), stride: p.stride_x, rows: p.m, k: p.k };
            [x, Operand { base: w.offset(batch * p.batch_w), stride: p.stride_w, rows: p.n, k: p.k }]
        });
        S::store(accumulators, &sums, epilogue, y, tile);
    }
}

/// The columns of an operand that a part has.
#[inline(always)]
fn of_part<T: Element, S: TileShape>(operand: Operand<T>, parts: &Parts, part: Part) -> Operand<T> {
    if parts.count <= 1 {
        return operand;
    }
    let columns = const { S::ROW_BYTES / T::BYTES };
    let [first, steps] = parts.steps(part.index, operand.k.div_ceil(columns));
    let begin = first * columns;
    let left = operand.k.saturating_sub(begin);
    let own = steps * columns;
    let k = if own < left { own } else { left };
    Operand { base: operand.base.offset(begin as u64), k, ..operand }
}

/// On Hopper: any number of clusters, whose blocks work through several tiles of one matrix.
///
/// # Safety
///
/// All threads of a one-dimensional grid call it, with the threads, the shared memory and the clusters that `S` asks for. `x` and `w` describe
/// X and W as [`PersistentTile`] asks, `y_boxes` Y if `p.has_boxes` is not 0; `y` and the pointers of `epilogue` are valid for what `p`
/// describes: one matrix, whole tiles. Y overlaps nothing else.
#[inline(always)]
pub unsafe fn persistent<T: Wgmma<S::Fragment>, O: OutputElement, S: PersistentTile, E: Epilogue>(
    x: &TensorMap,
    w: &TensorMap,
    y_boxes: &TensorMap,
    y: GlobalMut<O>,
    epilogue: E,
    p: HopperParams,
) {
    let steps = (p.k * T::BYTES).div_ceil(S::ROW_BYTES);
    let products = (p.k * T::BYTES).div_ceil(S::PRODUCT_BYTES);
    // Opaque: what follows from the sizes is computed where it is needed, rather than kept in registers by all warps.
    let tiles = || S::tiles(ptx::opaque(p.m), ptx::opaque(p.n), p.batch);
    // SAFETY: the whole grid is here, with the threads, the shared memory and the clusters that the tile asks for; the caller
    // vouches for maps and pointers, and each tile of Y belongs to one block.
    unsafe {
        S::start();
        if S::is_producer() {
            let mut tiles = tiles();
            if let Some(mut producer) = S::producer() {
                let mut next = S::next_part(&mut tiles);
                grid::wait_for_earlier_launches();
                while let Some(part) = next {
                    S::load::<T>(&mut producer, x, w, p.layouts, steps, part);
                    next = S::next_part(&mut tiles);
                }
                S::finish(producer);
            } else {
                // Before earlier launches have ended, and whatever they write.
                S::prefetch::<T>(x, w, p.layouts, steps, &mut tiles);
            }
        } else {
            let mut consumer = S::consumer();
            let mut tiles = tiles();
            let mut next = S::next_tile(&mut consumer, &mut tiles, steps);
            grid::wait_for_earlier_launches();
            while let Some(part) = next {
                let columns = S::columns(&epilogue, part);
                let accumulators = S::multiply::<T>(&mut consumer, p.layouts, products);
                let base = y.offset(part.tile.batch as u64 * p.batch_y);
                let y = Output { base, stride: p.stride_y, rows: p.m, columns: p.n };
                if !S::STORES_ROWS || p.has_boxes != 0 {
                    let by_lanes = S::LANES_STORE && p.has_boxes == HopperParams::LANES_STORE;
                    let boxes = BoxOutput { map: y_boxes, rows: by_lanes.then_some(y) };
                    S::store_boxes::<O, _, false>(&accumulators, &epilogue, &columns, &boxes, part);
                } else {
                    S::store_rows(&accumulators, &epilogue, &y, part);
                }
                next = S::next_tile(&mut consumer, &mut tiles, steps);
            }
            S::finish_stores();
        }
    }
}

/// On Hopper, for few rows of X: a cluster for each tile of each matrix.
///
/// # Safety
///
/// All threads of a one-dimensional grid call it, with the threads, the shared memory and the clusters that `S` asks for. `x` and `w` describe
/// X and W as [`SplitKTile`] asks; `y` and the pointers of `epilogue` are valid for what `p` describes. Y overlaps nothing else.
#[inline(always)]
pub unsafe fn few_rows<T: Wgmma<S::Accumulators>, O: Element, S: SplitKTile, E: Epilogue>(
    x: &TensorMap,
    w: &TensorMap,
    y: GlobalMut<O>,
    epilogue: E,
    p: SkinnyParams,
) {
    // SAFETY: the whole grid is here, with the threads, the shared memory and the clusters that the tile asks for; the caller
    // vouches for maps and pointers, and each tile of Y belongs to one cluster.
    unsafe {
        S::start(x, w);
        // Behind the start, under which its divisions run, and before what else waits for other launches.
        let share = S::share(p.m, p.n, p.k * T::BYTES);
        let tile = share.tile;
        grid::wait_for_earlier_launches();
        if S::is_producer() {
            S::load::<T>(x, w, p.layouts, share);
        } else {
            let columns = S::columns(&epilogue, tile);
            let accumulators = S::multiply::<T>(p.layouts, share);
            S::exchange(accumulators);
            let base = y.offset(tile.batch as u64 * p.batch_y);
            let y = Output { base, stride: p.stride_y, rows: p.m, columns: p.n };
            S::store(&epilogue, columns, &y, tile);
        }
    }
}

/// The second pass of a product that is split along K, on sm_90 and later: adds the parts of each sum, in order. A warp has
/// [`WARP_COLUMNS`] columns of a row. `epilogue` gives that of a matrix.
///
/// # Safety
///
/// All threads of a one-dimensional grid of blocks of [`SUMS_THREADS`] threads call it. `sums` is aligned to 16 bytes and valid for reads of
/// whole groups of four columns; `y` and the pointers of the epilogue are valid for what `p` describes. Y and what else is written overlap
/// nothing else, but that Y may be what the epilogue adds. `p.m` and `p.n` are not 0.
#[inline(always)]
pub unsafe fn add_parts<O: Element, E: Epilogue>(
    sums: Global<f32>,
    y: GlobalMut<O>,
    epilogue: impl FnOnce(u32) -> E,
    p: SumsParams,
) {
    // SAFETY: the caller's promise.
    let (m, groups) =
        unsafe { (NonZeroU32::new_unchecked(p.m), NonZeroU32::new_unchecked(p.n.div_ceil(WARP_COLUMNS))) };
    let item = thread::block_idx_x() * SUMS_WARPS + warp::warp_id();
    let (row, group) = (item / groups, item % groups);
    let (batch, row) = (row / m, row % m);
    let column = group * WARP_COLUMNS + warp::lane_id() * LANE_COLUMNS;
    grid::wait_for_earlier_launches();
    if batch >= p.batch {
        return;
    }
    let epilogue = epilogue(batch);
    let first = sums.offset(batch as u64 * p.parts as u64 * p.part + row as u64 * p.stride + column as u64);
    // The sum of no numbers: it leaves the sign of a zero as it is.
    let mut total = [-0.0; LANE_COLUMNS as usize];
    let mut begin = 0;
    loop {
        let mut parts = [[0; LANE_COLUMNS as usize]; AT_ONCE as usize];
        for (index, part) in (begin..).zip(&mut parts) {
            let at = first.offset(index as u64 * p.part);
            // SAFETY: within a part, or not read.
            *part = unsafe { ptx::ld_global_v4_b32_if(at.address(), index < p.parts && column < p.n) };
        }
        for (index, part) in (begin..).zip(&parts) {
            for (total, &part) in total.iter_mut().zip(part) {
                *total = if index < p.parts { *total + f32::from_bits(part) } else { *total };
            }
        }
        begin += AT_ONCE;
        if begin >= p.parts {
            break;
        }
    }
    let y = Output { base: y.offset(batch as u64 * p.batch_y), stride: p.stride_y, rows: p.m, columns: p.n };
    let at = Coord { row, column };
    // SAFETY: all lanes of the warp are here, with neighbouring columns of a row, which belong to no other; the rest is the caller's promise.
    unsafe {
        let columns = [0, 1, 2, 3].map(|index| epilogue.column(column + index));
        let result = epilogue.apply(at, epilogue.row(row), columns, total);
        y.store_4(row, column, result, y.is_vector_aligned());
    }
}
