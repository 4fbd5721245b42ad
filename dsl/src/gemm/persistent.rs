//! What a kernel sees of a main loop whose warps have different work, in a persistent launch.

use crate::epilogue::Epilogue;
use crate::float::Element;
use crate::gemm::{BoxOutput, ColumnCache, OutputElement, PersistentTiles, TilePart};
use crate::launch::{KernelParam, TensorMap};
use crate::ptx::{Accumulators, Wgmma};
use crate::tile::Output;

/// The layout in memory of the operands of a product, chosen when the kernel is launched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct Layouts(u32);

impl Layouts {
    const A_MN: u32 = 1;
    const B_MN: u32 = 2;
    const A_SHARED: u32 = 4;
    const B_SHARED: u32 = 8;
    /// Where the number of parts begins.
    const PARTS_AT: u32 = 8;

    /// Each row of A and of B is contiguous along K, and each matrix of a batch has operands of its own.
    pub const K_MAJOR: Self = Self(0);

    /// With A contiguous along M instead ("MN-major").
    #[must_use]
    pub const fn with_a_mn(self, is_mn: bool) -> Self {
        self.with(Self::A_MN, is_mn)
    }

    /// With B contiguous along N instead.
    #[must_use]
    pub const fn with_b_mn(self, is_mn: bool) -> Self {
        self.with(Self::B_MN, is_mn)
    }

    /// With both operands contiguous along K.
    #[inline(always)]
    #[must_use]
    pub const fn without_mn(self) -> Self {
        self.with(Self::A_MN | Self::B_MN, false)
    }

    /// With one A for all matrices of a batch.
    #[must_use]
    pub const fn with_shared_a(self, is_shared: bool) -> Self {
        self.with(Self::A_SHARED, is_shared)
    }

    /// With one B for all matrices of a batch.
    #[must_use]
    pub const fn with_shared_b(self, is_shared: bool) -> Self {
        self.with(Self::B_SHARED, is_shared)
    }

    /// With the sums along K in `parts` parts, fewer than 2²⁴, which are matrices of the output of their own: matrix `b` is part `b % parts` of product
    /// `b / parts`. All parts are of as many steps; what those of the last one have beyond K are zeros.
    #[must_use]
    pub const fn with_parts(self, parts: u32) -> Self {
        Self(self.0 & ((1 << Self::PARTS_AT) - 1) | parts << Self::PARTS_AT)
    }

    /// Which product matrix `batch` of the output is of, and which part of its sums.
    #[inline(always)]
    #[must_use]
    pub const fn product_and_part(self, batch: u32) -> [u32; 2] {
        let parts = self.0 >> Self::PARTS_AT;
        if parts > 1 { [batch / parts, batch % parts] } else { [batch, 0] }
    }

    const fn with(self, bit: u32, set: bool) -> Self {
        Self(if set { self.0 | bit } else { self.0 & !bit })
    }

    /// Whether A is contiguous along M.
    #[inline(always)]
    #[must_use]
    pub const fn a_is_mn(self) -> bool {
        self.0 & Self::A_MN != 0
    }

    /// Whether B is contiguous along N.
    #[inline(always)]
    #[must_use]
    pub const fn b_is_mn(self) -> bool {
        self.0 & Self::B_MN != 0
    }

    /// Which matrix of A product `batch` takes.
    #[inline(always)]
    #[must_use]
    pub const fn matrix_of_a(self, batch: u32) -> u32 {
        if self.0 & Self::A_SHARED != 0 { 0 } else { batch }
    }

    /// Which matrix of B product `batch` takes.
    #[inline(always)]
    #[must_use]
    pub const fn matrix_of_b(self, batch: u32) -> u32 {
        if self.0 & Self::B_SHARED != 0 { 0 } else { batch }
    }
}

// SAFETY: transparent over a `u32`.
unsafe impl KernelParam for Layouts {}

/// The accumulators of a product instruction for half the columns of tile `S`.
pub type HalfFragment<S> = <<S as PersistentTile>::Fragment as Accumulators>::Half;

/// The shape of a block's tile where warps have different work, and how shared memory, clusters and main loop are arranged.
///
/// Each operand is described by a tensor map of three dimensions with the 128-byte swizzle: K, rows, matrices. Boxes
/// have [`ROW_BYTES`](Self::ROW_BYTES) bytes × [`A_BOX_ROWS`](Self::A_BOX_ROWS) or [`B_BOX_ROWS`](Self::B_BOX_ROWS)
/// rows × 1. For an MN-major one they are rows, K, matrices, with boxes of 64 × 64 × 1 elements.
pub trait PersistentTile: 'static {
    /// Rows of the output tile.
    const BLOCK_M: u32;
    /// Columns of the output tile.
    const BLOCK_N: u32;
    /// Blocks of a cluster whose tiles are neighbours along M, but for the last ones that they may have halves of.
    const CLUSTER_M: u32;
    /// Blocks of a cluster whose tiles are neighbours along N.
    const CLUSTER_N: u32;
    /// Blocks of a cluster: first those along M.
    const CLUSTER: u32 = Self::CLUSTER_M * Self::CLUSTER_N;
    /// Threads of a block.
    const THREADS: u32;
    /// Blocks that a multiprocessor holds at a time.
    const MIN_BLOCKS: u32;
    /// Dynamic shared memory of a block, in bytes.
    const SHARED_BYTES: u32;
    /// Bytes of each row that are copied at a time.
    const ROW_BYTES: u32;
    /// Bytes of each row that one product takes.
    const PRODUCT_BYTES: u32;
    /// Bytes of each row of the output that are stored at a time: 128, or for 16-bit outputs 64.
    const STORED_ROW_BYTES: u32;
    /// Rows of A that are copied at a time.
    const A_BOX_ROWS: u32;
    /// Rows of B that are copied at a time.
    const B_BOX_ROWS: u32;

    /// Whether operands may be MN-major, of types for which [`Wgmma::TRANSPOSES`] holds.
    const TRANSPOSES: bool;

    /// Whether a kernel may call [`store_rows`](Self::store_rows): of a tile whose accumulators leave few other registers it may not.
    const STORES_ROWS: bool;

    /// Whether [`store_boxes`](Self::store_boxes) takes epilogues with an input, or that store more than the output, in a loop.
    const PASSES_BOXES: bool;

    /// Whether [`store_boxes`](Self::store_boxes) may be asked to have lanes store. They are sooner done than the copy engine, where nothing
    /// else is to be done meanwhile.
    const LANES_STORE: bool;

    /// Whether a cheap epilogue should stand once for every accumulator: its instructions then run beside each other, where a loop over
    /// a few accumulators waits for each round's. Where few registers are left, a loop needs fewer.
    const UNROLLS: bool;

    /// Whether the columns that are stored at a time are whole words of a mask.
    const STORES_MASKS: bool = Self::BLOCK_N.is_multiple_of(u32::BITS);

    /// How many clusters' tiles along M the order of a launch's tiles visits before it steps along N.
    const RASTER_GROUP: u32;

    /// The same where no cluster of a launch has more than one tile for each of its blocks.
    const ONLY_RASTER_GROUP: u32;

    /// Steps along K up to which a launch of one tile for each block is sooner done if its blocks begin before earlier launches have ended, and
    /// [`prefetch`](Self::prefetch) meanwhile. 0 for never. With more steps they do not prefetch, whenever they begin.
    const EARLY_STEPS: u32;

    /// The same of a launch of several tiles for a block, which does not prefetch.
    const EARLY_STEPS_OF_SEVERAL: u32;

    /// Whether a launch may have [halves](PersistentTiles::with_halves) of tiles.
    const HALVES: bool;

    /// The accumulators of one product instruction: each thread's share, in registers.
    type Fragment: Accumulators;
    /// A consumer's accumulators.
    type Accumulators;
    /// What the producer knows.
    type Producer;
    /// What a consumer knows.
    type Consumer;

    /// The tiles that this block works on, of an output of `matrices` matrices of `rows` × `columns`.
    fn tiles(rows: u32, columns: u32, matrices: u32) -> PersistentTiles {
        let (tiles_m, tiles_n) = (rows.div_ceil(Self::BLOCK_M), columns.div_ceil(Self::BLOCK_N));
        let tiles = PersistentTiles::new(tiles_m, tiles_n, matrices, [Self::CLUSTER_M, Self::CLUSTER_N]);
        let are_only = Self::ONLY_RASTER_GROUP != Self::RASTER_GROUP && tiles.are_only();
        tiles.in_groups_of(if are_only { Self::ONLY_RASTER_GROUP } else { Self::RASTER_GROUP })
    }

    /// Prepares the block's shared memory.
    ///
    /// # Safety
    ///
    /// All threads of the grid call it once, before anything else that uses shared memory, in blocks of `THREADS` threads with
    /// `SHARED_BYTES` bytes of dynamic shared memory and in clusters of `CLUSTER` blocks along x.
    unsafe fn start();

    /// Whether this thread belongs to the warpgroup that has the operands copied, rather than to one that multiplies them.
    fn is_producer() -> bool;

    /// The producer: one thread of its warpgroup; the others have nothing to do but to [`prefetch`](Self::prefetch).
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

    /// The next of the block's `tiles`, or a half if the tile has them.
    #[inline(always)]
    fn next_part(tiles: &mut PersistentTiles) -> Option<TilePart> {
        if Self::HALVES { tiles.next_part() } else { tiles.next_tile().map(TilePart::whole) }
    }

    /// The next tile or half of this consumer, of the block's `tiles`, each of which takes `steps` steps.
    fn next_tile(consumer: &mut Self::Consumer, tiles: &mut PersistentTiles, steps: u32) -> Option<TilePart>;

    /// Copies the rows of A and of B that `part` of the output needs, `steps` × `ROW_BYTES` bytes of each; of a [part](Layouts::with_parts) of
    /// the sums, those that come after as many for each part before it.
    ///
    /// # Safety
    ///
    /// The producers of all blocks of the cluster call it for every part of their own, in order, and for each call a consumer of
    /// the block calls [`multiply`](Self::multiply) with the products of as many steps, at least one. Without
    /// [`HALVES`](Self::HALVES) there are none. The maps describe tensors of type `T` as
    /// the trait and `layouts` say, valid for reads, and nothing writes them while the kernel runs.
    unsafe fn load<T: Wgmma<Self::Fragment>>(
        producer: &mut Self::Producer,
        a: &TensorMap,
        b: &TensorMap,
        layouts: Layouts,
        steps: u32,
        part: TilePart,
    );

    /// Has the level-2 cache get what a launch of one tile for each block begins with, while it waits for earlier launches: of the operands'
    /// first columns, each block a part. Those launches may still write them, since what is in that cache is what all see.
    ///
    /// # Safety
    ///
    /// Threads for which [`producer`](Self::producer) returned `None` call it. The maps describe tensors of type `T` as the trait and `layouts`
    /// say, `tiles` are the block's, and they take `steps` steps.
    unsafe fn prefetch<T: Wgmma<Self::Fragment>>(
        a: &TensorMap,
        b: &TensorMap,
        layouts: Layouts,
        steps: u32,
        tiles: &mut PersistentTiles,
    );

    /// The product of the rows that [`load`](Self::load) has copied for a whole tile, `products` × [`PRODUCT_BYTES`](Self::PRODUCT_BYTES) bytes of
    /// each.
    ///
    /// # Safety
    ///
    /// All warps of a consumer call it, for each tile that [`next_tile`](Self::next_tile) gave it; for a half
    /// [`multiply_half`](Self::multiply_half). `products` is as many as are in the steps of `load`, but for up to all but one of the last step's.
    unsafe fn multiply<T: Wgmma<Self::Fragment>>(
        consumer: &mut Self::Consumer,
        layouts: Layouts,
        products: u32,
    ) -> Self::Accumulators;

    /// As [`multiply`](Self::multiply), for half of a tile: the first half of the accumulators' columns.
    ///
    /// # Safety
    ///
    /// As [`multiply`](Self::multiply).
    unsafe fn multiply_half<T: Wgmma<HalfFragment<Self>>>(
        consumer: &mut Self::Consumer,
        layouts: Layouts,
        products: u32,
    ) -> Self::Accumulators;

    /// What `epilogue` knows of the columns of `part`, to be read before the products whose results need it.
    ///
    /// # Safety
    ///
    /// All threads of a consumer's warpgroup call it; `epilogue` may be asked for every column of the output.
    unsafe fn columns<E: Epilogue>(epilogue: &E, part: TilePart) -> ColumnCache<E::Column>;

    /// Applies `epilogue` to the accumulators in their registers, rounds them, and stores those that are within the output, or has the copy
    /// engine do so. The epilogue's code stands once for every accumulator if `UNROLLED`, else once in a loop.
    ///
    /// # Safety
    ///
    /// As [`store_rows`](Self::store_rows), after [`fetch_boxes`](Self::fetch_boxes) if the epilogue has an input, with `columns` as [`columns`](Self::columns) returned it for the part; `output` has
    /// boxes of [`STORED_ROW_BYTES`](Self::STORED_ROW_BYTES) bytes × 16 rows × 1.
    unsafe fn store_boxes<O: OutputElement, E: Epilogue, const UNROLLED: bool>(
        accumulators: &Self::Accumulators,
        epilogue: &E,
        columns: &ColumnCache<E::Column>,
        output: &BoxOutput<O>,
        part: TilePart,
    );

    /// Has the [input](Epilogue::input) of `epilogue`, if it has one, copied to where [`store_boxes`](Self::store_boxes) takes it from, while the products of
    /// `part` run.
    ///
    /// # Safety
    ///
    /// All threads of a consumer's warpgroup call it before the products, if `store_boxes` comes after them with this epilogue and an output of type
    /// `O`; the input is valid for reads.
    unsafe fn fetch_boxes<O: OutputElement, E: Epilogue>(epilogue: &E, part: TilePart);

    /// Has the level-2 cache get what `epilogue` reads of a consumer's places in `part` of an output of type `O`, while the products of it run,
    /// if a kernel [may](Self::STORES_ROWS) read it in [`store_rows`](Self::store_rows).
    fn prefetch_rows<O: Element, E: Epilogue>(epilogue: &E, part: TilePart);

    /// Applies `epilogue` to the accumulators, rounds them, and stores those that are within the output.
    ///
    /// # Safety
    ///
    /// All threads of a consumer's warpgroup call it with what [`multiply`](Self::multiply) returned for `part`. The output is
    /// valid for writes and no other block touches this part of it. `epilogue` may be asked for every row and column of the output.
    unsafe fn store_rows<O: Element, E: Epilogue>(
        accumulators: &Self::Accumulators,
        epilogue: &E,
        output: &Output<O>,
        part: TilePart,
    );

    /// Ends the producer's work, when no block of the cluster needs this one any more.
    ///
    /// # Safety
    ///
    /// The producer calls it after its last [`load`](Self::load), and ends its thread after it.
    unsafe fn finish(producer: Self::Producer);

    /// Ends a consumer's work, when its stores need the block's shared memory no more.
    ///
    /// # Safety
    ///
    /// All threads of a consumer call it after their last tile.
    unsafe fn finish_stores();
}
