//! A product that a generated low-rank update is added to, `A Bᵀ + ((A V) ⊙ codes) U`, at a few percent over the product alone.
//!
//! Eight columns of V, a *chunk*, ride along in the products of a tile: behind the tile's rows of B a stage has eight
//! rows of Vᵀ, and the instructions are eight columns wider. That reads A once for both. The eight columns' sums,
//! multiplied by the codes and rounded, are H'. In their registers they have the layout of an operand A of `wgmma`. One
//! product more, of H' and rows of U, adds the update to the tile's sums before the epilogue.
//!
//! With one chunk each tile may compute its own H'. Else each chunk is computed by one tile of every row of tiles, the
//! one whose index along N is the chunk's. The tiles of the row exchange them through global memory. Each warp needs
//! the H' of its own rows only, and each lane just the registers that the same lane of another block had. A counter for
//! each warp's rows says how many chunks are there.
//!
//! The tiles that compute chunks come first in their group of the raster order. A tile waits for the chunks of its own
//! row of tiles only. Let there be at least as many clusters as chunks of a group of rows, all on the chip at once.
//! Then no cluster has two tiles that compute chunks of a group: by induction over the order, every chunk is computed.
//!
//! The rows of U come by way of the copy engine to where a consumer stages its outputs later, or, in tiles that always compute H for themselves, to a
//! place beside.

mod tile;

pub use tile::WgmmaUpdateTile;

use crate::epilogue::Epilogue;
use crate::float::{Element, HalfElement};
use crate::gemm::{BoxOutput, ColumnCache, OutputElement, PersistentTiles};
use crate::launch::{GlobalMut, KernelParam, TensorMap};
use crate::layout::TileIndex;
use crate::ptx::{Accumulators, EXTRA_COLUMNS, WgmmaUpdate};
use crate::shared::SharedAddress;
use crate::tile::Output;
use crate::warp;

/// Columns of V in a chunk.
pub const CHUNK: u32 = EXTRA_COLUMNS;
/// Ranks that a product of H' and U takes, two chunks: a *part*.
pub const PART: u32 = 16;
/// Columns of U in a box of the copy engine.
pub const U_BOX_COLUMNS: u32 = 64;
/// Words of a lane's share of a part of H': the registers of an operand A.
const RECORD_WORDS: u32 = 4;

/// How the blocks of a launch exchange H'.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Exchange {
    /// Room for H', [`record_words`](Self::record_words) words, aligned to 16 bytes. Not read if `is_own` is 1.
    pub records: GlobalMut<u32>,
    /// A word for every 16 rows of the tiles, zero when the launch begins. Not read if `is_own` is 1.
    pub counters: GlobalMut<u32>,
    /// Chunks of V, at least 1.
    pub chunks: u32,
    /// 1 if each tile computes the only chunk for itself, else 0.
    pub is_own: u32,
}

// SAFETY: a fixed layout of kernel parameters without padding.
unsafe impl KernelParam for Exchange {}

impl Exchange {
    /// Words of `records` for `strips` strips of 16 rows and `chunks` chunks.
    #[must_use]
    pub const fn record_words(strips: u64, chunks: u32) -> u64 {
        strips * chunks.div_ceil(2) as u64 * (RECORD_WORDS * warp::SIZE) as u64
    }

    /// Parts of H'.
    #[inline(always)]
    fn parts(&self) -> u32 {
        self.chunks.div_ceil(PART / CHUNK)
    }

    /// This exchange, which the compiler knows to be none for tiles `S` that always compute H for themselves.
    #[inline(always)]
    #[must_use]
    pub fn of_tiles<S: UpdateTile>(self) -> Self {
        if S::IS_OWN { Self { is_own: 1, ..self } } else { self }
    }

    /// The chunk that a tile computes, if it computes one.
    #[inline(always)]
    #[must_use]
    pub fn chunk_of(&self, tile: TileIndex) -> Option<u32> {
        if self.is_own != 0 {
            Some(0)
        } else if tile.n < self.chunks {
            Some(tile.n)
        } else {
            None
        }
    }

    /// The place of a lane's share of a part of H', of a strip of 16 rows.
    #[inline(always)]
    fn record(&self, strip: u32, part: u32, lane: u32) -> GlobalMut<u32> {
        let record = (strip as u64 * self.parts() as u64 + part as u64) * warp::SIZE as u64 + lane as u64;
        self.records.offset(record * RECORD_WORDS as u64)
    }
}

/// The shape of a block's tile, as that of a [`PersistentTile`](crate::gemm::PersistentTile), of a product that an update is added to.
///
/// The maps of A and B are as that trait says, both K-major. That of Vᵀ is as B's, with boxes of [`CHUNK`] rows. U has ranks as
/// rows; its map has three dimensions, the columns, the ranks and 1, boxes of [`U_BOX_COLUMNS`] × [`PART`] × 1 and the 128-byte swizzle.
pub trait UpdateTile: 'static {
    /// Rows of the output tile.
    const BLOCK_M: u32;
    /// Columns of the output tile.
    const BLOCK_N: u32;
    /// Blocks of a cluster, whose tiles are neighbours along M.
    const CLUSTER_M: u32;
    /// Threads of a block.
    const THREADS: u32;
    /// Dynamic shared memory of a block, in bytes.
    const SHARED_BYTES: u32;
    /// Bytes of each row that are copied at a time.
    const ROW_BYTES: u32;
    /// Rows of A that are copied at a time.
    const A_BOX_ROWS: u32;
    /// Rows of B that are copied at a time.
    const B_BOX_ROWS: u32;
    /// As [`PersistentTile::STORES_ROWS`](crate::gemm::PersistentTile::STORES_ROWS).
    const STORES_ROWS: bool;
    /// As [`PersistentTile::UNROLLS`](crate::gemm::PersistentTile::UNROLLS).
    const UNROLLS: bool;
    /// Whether a tile always computes the only chunk for itself.
    const IS_OWN: bool;

    /// The accumulators of one product instruction.
    type Fragment: Accumulators;
    /// A consumer's accumulators.
    type Accumulators;
    /// What the producer knows.
    type Producer;
    /// What a consumer knows.
    type Consumer;
    /// A chunk of H' in registers.
    type Chunk: Copy;

    /// The tiles that this block works on, of an output of `rows` × `columns`, `height` clusters' tiles along M before the order steps
    /// along N.
    fn tiles(rows: u32, columns: u32, height: u32) -> PersistentTiles {
        let (tiles_m, tiles_n) = (rows.div_ceil(Self::BLOCK_M), columns.div_ceil(Self::BLOCK_N));
        PersistentTiles::new(tiles_m, tiles_n, 1, [Self::CLUSTER_M, 1]).in_groups_of(height)
    }

    /// As [`PersistentTile::start`](crate::gemm::PersistentTile::start).
    ///
    /// # Safety
    ///
    /// As there.
    unsafe fn start();

    /// As [`PersistentTile::is_producer`](crate::gemm::PersistentTile::is_producer).
    fn is_producer() -> bool;

    /// As [`PersistentTile::producer`](crate::gemm::PersistentTile::producer).
    ///
    /// # Safety
    ///
    /// As there.
    unsafe fn producer() -> Option<Self::Producer>;

    /// As [`PersistentTile::consumer`](crate::gemm::PersistentTile::consumer).
    ///
    /// # Safety
    ///
    /// As there.
    unsafe fn consumer() -> Self::Consumer;

    /// As [`PersistentTile::next_tile`](crate::gemm::PersistentTile::next_tile).
    fn next_tile(consumer: &mut Self::Consumer, tiles: &mut PersistentTiles, steps: u32)
    -> Option<TileIndex>;

    /// Copies the rows of A and of B that output tile `tile` needs, and those of Vᵀ that `chunk` needs, `steps` × `ROW_BYTES` bytes
    /// of each.
    ///
    /// # Safety
    ///
    /// As [`PersistentTile::load`](crate::gemm::PersistentTile::load), with [`multiply`](Self::multiply) of this trait, for the same chunk.
    unsafe fn load<T: WgmmaUpdate<Self::Fragment>>(
        producer: &mut Self::Producer,
        a: &TensorMap,
        b: &TensorMap,
        vt: &TensorMap,
        steps: u32,
        tile: TileIndex,
        chunk: Option<u32>,
    );

    /// Begins to copy the rows of U that the tile needs first.
    ///
    /// # Safety
    ///
    /// All threads of a consumer call it once for each tile, before [`multiply`](Self::multiply), and then [`update`](Self::update).
    /// The map describes U as the trait says, of 16-bit elements, valid for reads, and nothing writes them while the kernel runs.
    unsafe fn fetch(consumer: &Self::Consumer, u: &TensorMap, exchange: &Exchange, tile: TileIndex);

    /// The first of the two columns of a chunk that this thread has sums of.
    fn chunk_column() -> u32;

    /// Has the codes of a chunk put where [`scale`](Self::scale) finds them: `put` is told a row and a word of shared memory, for the
    /// row's codes in the thread's two columns, the first in the lower half. It may leave `cp.async` copies of them under way.
    /// `scaling` is what all of either column are multiplied with.
    ///
    /// # Safety
    ///
    /// All threads of a consumer call it, before [`multiply`](Self::multiply) and after [`scale`](Self::scale) of the tile before.
    unsafe fn put_codes(
        consumer: &Self::Consumer,
        tile: TileIndex,
        scaling: [f32; 2],
        put: impl Fn(u32, SharedAddress),
    );

    /// The product of the rows that [`load`](Self::load) has copied, with those of Vᵀ if `has_chunk` holds.
    ///
    /// # Safety
    ///
    /// As [`PersistentTile::multiply`](crate::gemm::PersistentTile::multiply).
    unsafe fn multiply<T: WgmmaUpdate<Self::Fragment>>(
        consumer: &mut Self::Consumer,
        steps: u32,
        has_chunk: bool,
    ) -> Self::Accumulators;

    /// H' of the chunk that was multiplied: its sums times the codes, rounded; zero in the columns that are not `inside`.
    ///
    /// # Safety
    ///
    /// All threads of a consumer call it after [`multiply`](Self::multiply) with a chunk, whose codes [were kept](Self::put_codes).
    unsafe fn scale<T: HalfElement>(
        consumer: &Self::Consumer,
        accumulators: &Self::Accumulators,
        inside: [bool; 2],
    ) -> Self::Chunk;

    /// Zeros, in place of a chunk.
    fn no_chunk() -> Self::Chunk;

    /// Gives a chunk of H' to the other tiles with the same rows.
    ///
    /// # Safety
    ///
    /// All threads of a consumer call it, once for each chunk and tile; `exchange` is valid for reads and writes.
    unsafe fn publish(
        consumer: &Self::Consumer,
        exchange: &Exchange,
        tile: TileIndex,
        chunk: u32,
        own: Self::Chunk,
    );

    /// Adds the product of H' and U to the accumulators.
    ///
    /// # Safety
    ///
    /// All threads of a consumer call it, after [`fetch`](Self::fetch) with the same map. If H' is exchanged, every chunk of the tile's
    /// rows [is published](Self::publish) by some block, this or another one, without waiting for this call; else `own` is it.
    unsafe fn update<T: WgmmaUpdate<Self::Fragment>>(
        consumer: &mut Self::Consumer,
        accumulators: &mut Self::Accumulators,
        u: &TensorMap,
        exchange: &Exchange,
        tile: TileIndex,
        own: Self::Chunk,
    );

    /// As [`PersistentTile::columns`](crate::gemm::PersistentTile::columns).
    ///
    /// # Safety
    ///
    /// As there.
    unsafe fn columns<E: Epilogue>(epilogue: &E, tile: TileIndex) -> ColumnCache<E::Column>;

    /// As [`PersistentTile::store_boxes`](crate::gemm::PersistentTile::store_boxes).
    ///
    /// # Safety
    ///
    /// As there.
    unsafe fn store_boxes<O: OutputElement, E: Epilogue, const UNROLLED: bool>(
        accumulators: &Self::Accumulators,
        epilogue: &E,
        columns: &ColumnCache<E::Column>,
        output: &BoxOutput<O>,
        tile: TileIndex,
    );

    /// As [`PersistentTile::store_rows`](crate::gemm::PersistentTile::store_rows).
    ///
    /// # Safety
    ///
    /// As there.
    unsafe fn store_rows<O: Element, E: Epilogue>(
        accumulators: &Self::Accumulators,
        epilogue: &E,
        output: &Output<O>,
        tile: TileIndex,
    );

    /// As [`PersistentTile::finish`](crate::gemm::PersistentTile::finish).
    ///
    /// # Safety
    ///
    /// As there.
    unsafe fn finish(producer: Self::Producer);

    /// As [`PersistentTile::finish_stores`](crate::gemm::PersistentTile::finish_stores).
    ///
    /// # Safety
    ///
    /// As there.
    unsafe fn finish_stores();
}
