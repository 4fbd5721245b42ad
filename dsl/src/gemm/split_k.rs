//! A main loop for products with few rows of A, whose time is that of reading B, and for products of few tiles; sm_90a.
//!
//! It computes the transposed product `B Aᵀ`: 64 rows of B are the rows of a `wgmma`, and the few rows of A its
//! columns, of which it may have as few as 16. One warp of the block has the copy engine fill two rings, one for each
//! operand. That of B is the deeper one and holds most of the shared memory. What is under way there has to cover the
//! time that the GPU's memory takes to answer. A, which all blocks read, comes from the level-2 cache.
//!
//! The blocks of a cluster may share the sum over K of one tile. At its end each block has the sums of some rows of the
//! output to complete. The others send it their parts, as they are in their registers, to a place of its own in its
//! shared memory. It adds them in the order of the blocks, so that the result does not depend on which came first.

mod transposed;

pub use transposed::{TransposedTile, TransposedUpdate, URegisters};

use crate::epilogue::{Epilogue, FusedLinear};
use crate::float::Element;
use crate::gemm::Layouts;
use crate::launch::TensorMap;
use crate::layout::{Coord, TileIndex};
use crate::ptx::{Accumulators, Wgmma};
use crate::tile::Output;

/// Columns that a lane transforms and stores at a time.
pub const COLUMNS: usize = 4;

/// Groups of eight rows that a block completes at most.
pub const MOST_GROUPS: usize = 8;

/// What a block does: the steps along K that it sums for a tile of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// The tile.
    pub tile: TileIndex,
    /// The first step.
    pub first: u32,
    /// How many steps; there may be none.
    pub steps: u32,
}

impl Share {
    /// The share of block `block`, where each `split` blocks have the `steps` steps of a tile, matrices have `tiles_m` · `tiles_n` tiles,
    /// and tiles that are neighbours along M follow each other. There are fewer than 2³² / `split` steps.
    #[inline(always)]
    #[must_use]
    pub fn of_block(block: u32, split: u32, [tiles_m, tiles_n]: [u32; 2], steps: u32) -> Self {
        let (tile, rank) = (block / split, block % split);
        // A division by what might be zero could trap.
        let (tiles_m, tiles_n) = (tiles_m.max(1), tiles_n.max(1));
        let column = tile / tiles_m;
        let first = rank * steps / split;
        Self {
            tile: TileIndex { batch: column / tiles_n, m: tile % tiles_m, n: column % tiles_n },
            first,
            steps: (rank + 1) * steps / split - first,
        }
    }
}

/// The shape of a block's tile where the blocks of a cluster share the sum over K.
///
/// Each operand has a tensor map of three dimensions, K, the rows and the matrices, with the 128-byte swizzle. Boxes
/// have [`ROW_BYTES`](Self::ROW_BYTES) bytes × [`A_BOX_ROWS`](Self::A_BOX_ROWS) or [`B_BOX_ROWS`](Self::B_BOX_ROWS)
/// rows. The map of an MN-major B has the rows, K and the matrices, with boxes of 64 × 64 elements.
pub trait SplitKTile: 'static {
    /// Rows of the output tile.
    const BLOCK_M: u32;
    /// Columns of the output tile.
    const BLOCK_N: u32;
    /// Blocks of a cluster that share the sum over K of a tile.
    const SPLIT: u32;
    /// Threads of a block.
    const THREADS: u32;
    /// Blocks that a multiprocessor holds at a time.
    const MIN_BLOCKS: u32;
    /// Dynamic shared memory of a block, in bytes.
    const SHARED_BYTES: u32;
    /// Bytes of each row that are copied at a time.
    const ROW_BYTES: u32;
    /// Bytes of each row that a step takes.
    const STEP_BYTES: u32;
    /// Whether B may be MN-major, of types for which [`Wgmma::TRANSPOSES`] holds.
    const TRANSPOSES: bool;
    /// Rows of A that a block copies at a time.
    const A_BOX_ROWS: u32;
    /// Rows of B that are copied at a time.
    const B_BOX_ROWS: u32;

    /// A warpgroup's accumulators: each thread's share, in registers.
    type Accumulators: Accumulators;

    /// This block's share of outputs of `rows` × `columns`, for operands whose rows have `row_bytes` bytes, fewer than 2³¹.
    fn share(rows: u32, columns: u32, row_bytes: u32) -> Share;

    /// Prepares the block's shared memory, and fetches the maps.
    ///
    /// # Safety
    ///
    /// All threads of the grid call it once, before anything else, in blocks of `THREADS` threads with `SHARED_BYTES` bytes of
    /// dynamic shared memory, and in clusters of `SPLIT` blocks along x.
    unsafe fn start(a: &TensorMap, b: &TensorMap);

    /// Whether this thread belongs to the warp that has the operands copied, rather than to one that multiplies them.
    fn is_producer() -> bool;

    /// Copies the block's share of the rows of A and of B.
    ///
    /// # Safety
    ///
    /// All threads for which [`is_producer`](Self::is_producer) holds call it once, after [`start`](Self::start), and then end. The
    /// maps describe tensors of type `T` as the trait says, valid for reads, and nothing writes them while the kernel runs.
    /// `share` is what [`share`](Self::share) returned; A is K-major, and so is B unless [`TRANSPOSES`](Self::TRANSPOSES) says otherwise.
    unsafe fn load<T: Element>(a: &TensorMap, b: &TensorMap, layouts: Layouts, share: Share);

    /// As [`load`](Self::load), where the steps from `first` on are of the matrices `more`, from their first step on; all are K-major. Before it copies
    /// those it [waits](crate::grid::wait) for the launch before this one.
    ///
    /// # Safety
    ///
    /// As [`load`](Self::load), for both pairs of operands.
    unsafe fn load_joined<T: Element>(
        operands: [&TensorMap; 2],
        more: [&TensorMap; 2],
        first: u32,
        share: Share,
    );

    /// What `epilogue` knows of the columns that this thread will store, to be read before the products.
    ///
    /// # Safety
    ///
    /// `epilogue` may be asked for every column of the output.
    unsafe fn columns<E: Epilogue>(epilogue: &E, tile: TileIndex) -> [E::Column; COLUMNS];

    /// The product of the rows that are copied, transposed.
    ///
    /// # Safety
    ///
    /// All threads for which [`is_producer`](Self::is_producer) does not hold call it once, after [`start`](Self::start), with the
    /// layouts and the share that [`load`](Self::load) is called with.
    unsafe fn multiply<T: Wgmma<Self::Accumulators>>(layouts: Layouts, share: Share) -> Self::Accumulators;

    /// Gives each block what those of its cluster have summed for its rows of a tile, and each lane what it will store.
    ///
    /// # Safety
    ///
    /// All threads that called [`multiply`](Self::multiply) call it once, with what it returned.
    unsafe fn exchange(accumulators: Self::Accumulators);

    /// Applies `epilogue` to the block's rows of the sums, rounds them, and stores those that are within the output.
    ///
    /// # Safety
    ///
    /// All threads that called [`exchange`](Self::exchange) call it once, for the share's tile; the output is valid
    /// for writes and no other cluster touches this tile of it; so is what `epilogue` reads and writes; `columns` is what
    /// [`columns`](Self::columns) returned.
    unsafe fn store<O: Element, E: Epilogue>(
        epilogue: &E,
        columns: [E::Column; COLUMNS],
        output: &Output<O>,
        tile: TileIndex,
    );

    /// The first of the four columns that this thread stores.
    fn column(tile: TileIndex) -> u32;

    /// What `factor` says of the four columns that this thread will store of each of its rows, from the place of the first on: to be read before the
    /// products.
    fn factors(tile: TileIndex, factor: impl Fn(Coord) -> [f32; COLUMNS]) -> [[f32; COLUMNS]; MOST_GROUPS];

    /// Multiplies the block's rows of the sums by their [`factors`](Self::factors), rounds them, and stores those that are within the output.
    ///
    /// # Safety
    ///
    /// As [`store`](Self::store).
    unsafe fn store_multiplied<O: Element>(
        factors: &[[f32; COLUMNS]; MOST_GROUPS],
        output: &Output<O>,
        tile: TileIndex,
    );

    /// As [`store`](Self::store), for an epilogue that is short enough to stand once for every row of a warp: what it waits for is waited for once.
    ///
    /// # Safety
    ///
    /// As [`store`](Self::store); the output is [aligned](Output::is_vector_aligned) and has a multiple of four columns.
    unsafe fn store_at_once<O: Element, E: Epilogue>(
        epilogue: &E,
        columns: [E::Column; COLUMNS],
        output: &Output<O>,
        tile: TileIndex,
    );

    /// As [`store`](Self::store), for the epilogue of a linear operation: [at once](Self::store_at_once) where that will do.
    ///
    /// # Safety
    ///
    /// As [`store`](Self::store).
    #[inline(always)]
    unsafe fn store_linear<B: Element, O: Element>(
        epilogue: &FusedLinear<'_, B, O>,
        columns: [(f32, f32); COLUMNS],
        output: &Output<O>,
        tile: TileIndex,
    ) {
        let is_whole = output.is_vector_aligned() && output.columns.is_multiple_of(COLUMNS as u32);
        // SAFETY: the caller's promise, and the output is as `store_at_once` asks.
        unsafe {
            match epilogue.in_registers().with_floor() {
                Some(simple) if is_whole && epilogue.fits_registers() => {
                    let columns = columns.map(|(_, bias)| bias);
                    Self::store_at_once(&simple, columns, output, tile);
                }
                _ => Self::store(epilogue, columns, output, tile),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn the_blocks_of_a_tile_share_its_steps_and_every_tile_has_its_blocks() {
        for split in [1, 2, 3, 8] {
            for (matrices, tiles) in [(1, [1, 1]), (1, [1, 7]), (2, [3, 5])] {
                for steps in [0, 1, 3, 64, 1000] {
                    let all = matrices * tiles[0] * tiles[1];
                    let mut summed = HashSet::new();
                    for block in 0..all * split {
                        let Share { tile, first, steps: own } = Share::of_block(block, split, tiles, steps);
                        assert!(tile.batch < matrices && tile.m < tiles[0] && tile.n < tiles[1]);
                        assert!(own <= steps.div_ceil(split));
                        for step in first..first + own {
                            assert!(step < steps && summed.insert((tile.batch, tile.m, tile.n, step)));
                        }
                    }
                    assert_eq!(summed.len() as u32, all * steps);
                }
            }
        }
    }
}
