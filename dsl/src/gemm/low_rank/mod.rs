//! Low-rank updates: `Y (+)= ((X V) ⊙ codes) U`, where the product of X and V never leaves the multiprocessor.
//!
//! A block works through tiles of a few rows. All that it copies goes through one ring of `cp.async` stages, tile after tile: slices of X and
//! of V along K, then slices of U along the columns of Y. So the next tile's rows are on their way while this tile's are
//! stored. The accumulators of the first product, times the codes, are the A fragments of the second as their registers hold them.
//!
//! Where V and U fit the ring's room for them, they are copied once, after the first rows of X, and stay.
//!
//! [`RowsTile`] is for few columns, of which a block's registers hold V and U.
//!
//! [`LowRankStream`] is the ring: it hands out [`Stage`]s. [`LowRankTile`] is what the warps do with them.

mod chunks;
mod codes;
mod copy;
mod element;
mod rows;
mod stream;
mod tile;

pub use codes::{RankCodes, RankColumn};
pub use element::LowRankElement;
pub use rows::{RowsProblem, RowsShape, RowsTile};
pub use stream::{Due, LowRankStream, Problem, Stage};
pub use tile::LowRankTile;

use crate::tile::Output;

/// The sizes of a [`LowRankTile`], and its parts of a kernel.
pub trait LowRankShape: 'static {
    /// Rows of a tile.
    const BLOCK_M: u32;
    /// The largest rank.
    const MAX_RANK: u32;
    /// Threads of a block.
    const THREADS: u32;
    /// Blocks that a multiprocessor holds at a time.
    const MIN_BLOCKS: u32;
    /// Warps that have different parts of K and of the columns.
    const WARPS_K: u32;
    /// Whether each warp has parts of V and of U that no other reads.
    const IS_PRIVATE: bool;
    /// Blocks of a cluster, which share a tile's sums.
    const SPLIT: u32;
    /// Stages of the ring.
    const STAGES: u32;
    /// Stages whose parts of V and U shared memory has room for.
    const PANELS: u32;
    /// Bytes of a row of X, and of a row of Y, that a block works on at a time.
    const STAGE_ROW_BYTES: u32;
    /// Codes that shared memory holds, after the first [`BASE_BYTES`](Self::BASE_BYTES) bytes of it.
    const CODES: u32;
    /// Dynamic shared memory of a block but for the codes, in bytes.
    const BASE_BYTES: u32;
    /// Whether a thread's codes stay in its registers: a tile's are then asked for while the last tile's columns are computed.
    const HELD: bool;

    /// The accumulators of the first product: each thread's share, in registers.
    type Accumulators: Copy;
    /// The codes of these, where they are few enough for registers.
    type Codes: Copy;

    /// Prepares the block's shared memory, and waits until all threads have.
    ///
    /// # Safety
    ///
    /// All threads of the grid call it once, before anything else, in blocks of `THREADS` threads with `BASE_BYTES` bytes and the codes'
    /// of dynamic shared memory, in clusters of `SPLIT` blocks along x.
    unsafe fn start<C: RankCodes>(codes: &C);

    /// Accumulators that are zero.
    fn zero() -> Self::Accumulators;

    /// No codes.
    fn no_codes() -> Self::Codes;

    /// Has the codes of the tile whose first row is `row` fetched.
    ///
    /// # Safety
    ///
    /// All threads of the block call it when the stream says so, after [`start`](Self::start); the codes can be read for `rows` rows,
    /// and nothing writes them while the kernel runs.
    unsafe fn fetch<T: LowRankElement>(rows: u32, row: u32) -> Self::Codes;

    /// Adds the stage's part of `X V`.
    ///
    /// # Safety
    ///
    /// All threads of the block call it, with a stage of the first product that the stream gave last.
    unsafe fn project<T: LowRankElement>(h: &mut Self::Accumulators, stage: &Stage);

    /// Completes the sums of a tile, and multiplies them with the codes; beyond the problem's rank they become zero. Sums of parts of f32
    /// numbers that are not finite are [added up again](super::again) before.
    ///
    /// # Safety
    ///
    /// All threads of the block, and of its cluster, call it after a tile's last [`project`](Self::project), with its stage, and what
    /// [`fetch`](Self::fetch) returned.
    unsafe fn modulate<T: LowRankElement>(
        h: &mut Self::Accumulators,
        codes: Self::Codes,
        problem: &Problem<T>,
        stage: &Stage,
    );

    /// Computes the stage's columns of the product with U, adds what Y holds if `add`, rounds, and stores what is within Y. Sums of
    /// parts of f32 numbers that are not finite are added up again before.
    ///
    /// # Safety
    ///
    /// All threads of the block call it, with a stage of the second product that the stream gave last, and what
    /// [`modulate`](Self::modulate) left; Y is valid for what is done with it, and nothing else touches these rows and columns.
    unsafe fn expand<T: LowRankElement>(
        h: &Self::Accumulators,
        problem: &Problem<T>,
        y: &Output<T>,
        add: bool,
        stage: &Stage,
    );
}
