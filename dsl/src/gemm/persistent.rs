//! What a kernel sees of a main loop whose warps have different work, in a persistent launch.

use crate::epilogue::Epilogue;
use crate::float::Element;
use crate::gemm::{ColumnCache, OutputElement, PersistentTiles};
use crate::launch::TensorMap;
use crate::layout::TileIndex;
use crate::ptx::{Accumulators, Wgmma};
use crate::tile::Output;

/// The shape of a block's tile where warps have different work, and how shared memory, clusters and main loop are arranged.
///
/// Each operand is described by a tensor map of two dimensions, K and the rows, with the 128-byte swizzle and boxes of
/// [`ROW_BYTES`](Self::ROW_BYTES) bytes × [`A_BOX_ROWS`](Self::A_BOX_ROWS) or [`B_BOX_ROWS`](Self::B_BOX_ROWS) rows.
pub trait PersistentTile: 'static {
    /// Rows of the output tile.
    const BLOCK_M: u32;
    /// Columns of the output tile.
    const BLOCK_N: u32;
    /// Blocks of a cluster, whose tiles are neighbours along M.
    const CLUSTER_M: u32;
    /// Threads of a block.
    const THREADS: u32;
    /// Blocks that a multiprocessor holds at a time.
    const MIN_BLOCKS: u32;
    /// Dynamic shared memory of a block, in bytes.
    const SHARED_BYTES: u32;
    /// Bytes of each row that are copied at a time.
    const ROW_BYTES: u32;
    /// Rows of A that are copied at a time.
    const A_BOX_ROWS: u32;
    /// Rows of B that are copied at a time.
    const B_BOX_ROWS: u32;

    /// A warpgroup's accumulators: each thread's share, in registers.
    type Accumulators: Accumulators;
    /// What the producer knows.
    type Producer;
    /// What a consumer knows.
    type Consumer;

    /// The tiles that this block works on, of an output of `rows` × `columns`.
    fn tiles(rows: u32, columns: u32) -> PersistentTiles {
        PersistentTiles::new(rows.div_ceil(Self::BLOCK_M), columns.div_ceil(Self::BLOCK_N), Self::CLUSTER_M)
    }

    /// Prepares the block's shared memory.
    ///
    /// # Safety
    ///
    /// All threads of the grid call it once, before anything else that uses shared memory, in blocks of `THREADS` threads with
    /// `SHARED_BYTES` bytes of dynamic shared memory and in clusters of `CLUSTER_M` blocks along x.
    unsafe fn start();

    /// Whether this thread belongs to the warpgroup that has the operands copied, rather than to one that multiplies them.
    fn is_producer() -> bool;

    /// The producer: one thread of its warpgroup; the others have nothing to do.
    ///
    /// # Safety
    ///
    /// All threads of the warpgroup for which [`is_producer`](Self::is_producer) holds call it once, after
    /// [`start`](Self::start).
    unsafe fn producer() -> Option<Self::Producer>;

    /// The consumer that this thread belongs to.
    ///
    /// # Safety
    ///
    /// All threads of a warpgroup for which [`is_producer`](Self::is_producer) does not hold call it once, after
    /// [`start`](Self::start).
    unsafe fn consumer() -> Self::Consumer;

    /// Copies the rows of A and of B that output tile `tile` needs, `steps` × `ROW_BYTES` bytes of each.
    ///
    /// # Safety
    ///
    /// The producers of all blocks of the cluster call it, each for its own tile, and for each call the block's consumers
    /// call [`multiply`](Self::multiply) with the same number of steps. The maps describe tensors of type `T` as the trait
    /// says, valid for reads, and nothing writes them while the kernel runs.
    unsafe fn load<T: Element>(
        producer: &mut Self::Producer,
        a: &TensorMap,
        b: &TensorMap,
        steps: u32,
        tile: TileIndex,
    );

    /// The product of the rows that [`load`](Self::load) has copied.
    ///
    /// # Safety
    ///
    /// All consumers of the block call it, for each of the producer's calls of `load` and with as many steps.
    unsafe fn multiply<T: Wgmma<Self::Accumulators>>(
        consumer: &mut Self::Consumer,
        steps: u32,
    ) -> Self::Accumulators;

    /// What `epilogue` knows of the columns of a tile, to be read before the products whose results need it.
    ///
    /// # Safety
    ///
    /// All threads of a consumer's warpgroup call it; `epilogue` may be asked for every column of the output.
    unsafe fn columns<E: Epilogue>(epilogue: &E, tile: TileIndex) -> ColumnCache<E::Column>;

    /// Whether [`store_whole`](Self::store_whole) can store the tile.
    fn is_whole<O: OutputElement>(output: &Output<O>, tile: TileIndex) -> bool;

    /// Applies `epilogue` to the accumulators in their registers, rounds them, and stores them. The epilogue's code stands once
    /// for every two accumulators.
    ///
    /// # Safety
    ///
    /// As [`store`](Self::store), for a tile that [`is_whole`](Self::is_whole); `columns` is what
    /// [`columns`](Self::columns) returned for it.
    unsafe fn store_whole<O: OutputElement, E: Epilogue>(
        accumulators: Self::Accumulators,
        epilogue: &E,
        columns: &ColumnCache<E::Column>,
        output: &Output<O>,
        tile: TileIndex,
    );

    /// Applies `epilogue` to the accumulators, rounds them, and stores those that lie within the output.
    ///
    /// # Safety
    ///
    /// All threads of a consumer's warpgroup call it with what [`multiply`](Self::multiply) returned for `tile`; the output is
    /// valid for writes and no other block touches this tile of it; `epilogue` may be asked for every column of the output.
    unsafe fn store<O: Element, E: Epilogue>(
        accumulators: Self::Accumulators,
        epilogue: &E,
        output: &Output<O>,
        tile: TileIndex,
    );

    /// Ends the producer's work, when no block of the cluster needs this one any more.
    ///
    /// # Safety
    ///
    /// The producer calls it after its last [`load`](Self::load), and ends its thread after it.
    unsafe fn finish(producer: Self::Producer);
}
