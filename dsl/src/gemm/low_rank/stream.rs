//! The ring that the operands of a block's tiles come through.
//!
//! A block's X always does. V and U do where they are too large to stay. Where they stay, they are copied once, U too.
//! Then the ring is of X alone, and the rows of the next tiles are on their way at once.
//!
//! Where the warps of a block have different parts of K and of the columns, each copies what it reads itself, and waits for nobody else.

use core::marker::PhantomData;

use super::copy::Source;
use super::{LowRankElement, LowRankShape};
use crate::layout::{CHUNK_BYTES, panel_chunk, swizzled_chunk};
use crate::ptx;
use crate::shared::SharedAddress;
use crate::thread;
use crate::tile::Operand;
use crate::warp;

/// Chunks of 128 bytes.
const ROW_CHUNKS: u32 = 8;
/// Bytes of a row that a warp multiplies in a stage.
const ROW_BYTES: u32 = ROW_CHUNKS * CHUNK_BYTES;

/// Rows of X of which a thread copies a chunk for a stage: 16 rows for each 32 threads, who have 128 bytes of a row.
const X_PASSES: u32 = 4;
/// Rows of X of which a warp copies chunks at a time.
const PASS_ROWS: u32 = warp::SIZE / ROW_CHUNKS;

/// What is computed: `X [M, K1]`, `V [K1, R]`, `U [R, K2]`, and how the columns of Y are shared.
#[derive(Clone, Copy)]
pub struct Problem<T> {
    /// X.
    pub x: Operand<T>,
    /// V.
    pub v: Operand<T>,
    /// U.
    pub u: Operand<T>,
    /// Columns of Y that a block computes of a tile: a multiple of 128 bytes' worth.
    pub slice: u32,
}

/// A stage that has arrived.
#[derive(Clone, Copy)]
pub struct Stage {
    /// Rows of X, if it is a stage of the first product.
    pub x: SharedAddress,
    /// Rows of V or of U, in panels.
    pub panels: SharedAddress,
    /// The tile's first row.
    pub row: u32,
    /// The first column of the stage's part of Y, if it is a stage of the second product.
    pub column: u32,
    /// Where the block's columns end.
    pub columns: u32,
    /// Whether the tile is the block's second, fourth, …: 0 or 1.
    pub odd: u32,
    /// Its number among the tile's.
    index: u32,
    /// How many of these are stages of the first product.
    projections: u32,
}

impl Stage {
    /// Whether a tile begins with it.
    #[inline(always)]
    #[must_use]
    pub fn is_first(&self) -> bool {
        self.index == 0
    }

    /// Whether it is one of the first product.
    #[inline(always)]
    #[must_use]
    pub fn is_of_first_product(&self) -> bool {
        self.index < self.projections
    }

    /// Whether it completes the first product.
    #[inline(always)]
    #[must_use]
    pub fn completes_first_product(&self) -> bool {
        self.index + 1 == self.projections
    }
}

/// A tile whose codes are due.
#[derive(Clone, Copy)]
pub struct Due {
    /// Its first row.
    pub row: u32,
    /// Whether it is the block's first.
    pub is_first: bool,
}

/// Where the ring is filled, or read.
#[derive(Clone, Copy)]
struct Position {
    /// The block's tile, among those of all blocks.
    tile: u32,
    /// The stage of the tile.
    stage: u32,
    /// The place in the ring.
    slot: u32,
}

/// The stages of all tiles of a block, one after the other. The blocks of the grid take turns with the tiles, or the clusters do.
pub struct LowRankStream<T, S> {
    x: Source,
    v: Source,
    u: Source,
    /// Bytes of a row of X before the block's part of the sum.
    first_byte: u32,
    /// The element there: a row of V.
    first: u32,
    slice: u32,
    /// Slices of Y for each tile of rows; of a cluster's blocks together.
    slices: u32,
    /// The number of tiles, and how many further on the block's next is.
    tiles: u32,
    turn: u32,
    /// Stages of a tile of each product.
    projections: u32,
    expansions: u32,
    /// Whether V and U stay in shared memory after the block's first tile.
    resident: bool,
    first_tile: u32,
    /// Whether the tile that is read is the block's second, fourth, …
    odd: u32,
    /// Stages that are filled or on their way.
    ahead: u32,
    fill: Position,
    read: Position,
    kind: PhantomData<(T, S)>,
}

impl<T: LowRankElement, S: LowRankShape> LowRankStream<T, S> {
    /// Elements along K of a stage, and columns of Y.
    const EXTENT: u32 = S::STAGE_ROW_BYTES / T::BYTES;
    const X_BYTES: u32 = S::BLOCK_M * S::STAGE_ROW_BYTES;
    const PANEL_BYTES: u32 = S::STAGE_ROW_BYTES * S::MAX_RANK;
    const PANELS_AT: u32 = S::STAGES * Self::X_BYTES;

    /// The stream of this block.
    #[inline(always)]
    #[must_use]
    pub fn new(problem: Problem<T>) -> Self {
        let Problem { x, v, u, slice } = problem;
        let slice = slice.max(1);
        let columns = u.k;
        let (rank, unit, turn) = if S::SPLIT > 1 {
            let split = S::SPLIT;
            (ptx::cluster_ctarank(), thread::block_idx_x() / split, thread::grid_dim_x() / split)
        } else {
            (0, thread::block_idx_x(), thread::grid_dim_x())
        };
        // The blocks of a cluster share the sum, by 128 bytes of a row.
        let lines = (x.k * T::BYTES).div_ceil(ROW_BYTES);
        let (begin, end) = (rank * lines / S::SPLIT, (rank + 1) * lines / S::SPLIT);
        let line = ROW_BYTES / T::BYTES;
        let end_k = x.k.min(end * line);
        let slices = columns.div_ceil(slice).div_ceil(S::SPLIT).max(1);
        let projections = (end - begin).div_ceil(S::STAGE_ROW_BYTES / ROW_BYTES).max(1);
        let expansions = slice.min(columns).div_ceil(Self::EXTENT);
        let at = Position { tile: unit, stage: 0, slot: 0 };
        Self {
            x: Source::new(Operand { k: end_k, ..x }),
            v: Source::new(Operand { rows: end_k, ..v }),
            u: Source::new(u),
            first_byte: begin * ROW_BYTES,
            first: begin * line,
            slice,
            slices,
            tiles: x.rows.div_ceil(S::BLOCK_M) * slices,
            turn,
            projections,
            expansions,
            resident: slices == 1 && projections + expansions <= S::PANELS,
            first_tile: unit,
            odd: 1,
            ahead: 0,
            fill: at,
            read: at,
            kind: PhantomData,
        }
    }

    /// The tile's first row, and the block's columns of it.
    #[inline(always)]
    fn place(&self, tile: u32) -> [u32; 3] {
        // Most launches have one slice: a division less.
        let (row, slice) =
            if self.slices == 1 { (tile, 0) } else { (tile / self.slices, tile % self.slices) };
        let slice = if S::SPLIT > 1 { slice * S::SPLIT + ptx::cluster_ctarank() } else { slice };
        let columns = self.u.row_bytes / T::BYTES;
        // Those of a cluster may be past the end, at a multiple of what is copied at a time.
        let end = if S::SPLIT > 1 { columns.next_multiple_of(ROW_BYTES / T::BYTES) } else { columns };
        let first = (slice * self.slice).min(end);
        [row * S::BLOCK_M, first, (first + self.slice).min(columns)]
    }

    /// Where panels number `stage` of a tile are, those of V and then those of U, in the ring at `at`.
    #[inline(always)]
    fn panels(&self, at: Position, stage: u32) -> SharedAddress {
        let slot = if self.resident { stage } else { at.slot };
        SharedAddress::dynamic().offset(Self::PANELS_AT + slot * Self::PANEL_BYTES)
    }

    /// Where the rows of X of the stage at `at` are.
    #[inline(always)]
    fn rows(at: Position) -> SharedAddress {
        SharedAddress::dynamic().offset(at.slot * Self::X_BYTES)
    }

    /// The next position in the ring.
    #[inline(always)]
    fn next_in_ring(&self, at: Position) -> Position {
        let slot = if at.slot + 1 == S::STAGES { 0 } else { at.slot + 1 };
        let stages = self.projections + if self.resident { 0 } else { self.expansions };
        if at.stage + 1 == stages {
            Position { tile: at.tile + self.turn, stage: 0, slot }
        } else {
            Position { stage: at.stage + 1, slot, ..at }
        }
    }

    /// The thread's group of warps, and the number of its warp in it: which 128 bytes of a row it has.
    #[inline(always)]
    fn place_of_warp() -> (u32, u32) {
        (warp::warp_id() / S::WARPS_K, warp::warp_id() % S::WARPS_K)
    }

    /// Waits for what the thread reads of the ring: for its own warp, or for all.
    #[inline(always)]
    unsafe fn synchronize() {
        // SAFETY: the caller's promise: all threads of the block are here.
        unsafe {
            if S::IS_PRIVATE {
                warp::sync_warp();
            } else {
                thread::sync_threads();
            }
        }
    }

    /// Has the next stage copied, if there is one, and closes the group of the copies even if there is not.
    #[inline(always)]
    unsafe fn fill(&mut self) {
        let at = self.fill;
        let (group, part) = Self::place_of_warp();
        let lane = warp::lane_id();
        let [row, first_column, end_column] = self.place(at.tile);
        let is_there = at.tile < self.tiles;
        if is_there && at.stage < self.projections {
            // A thread has the same chunk of several rows.
            let step = const { S::BLOCK_M / X_PASSES };
            let (first, chunk) = (group * PASS_ROWS + lane / ROW_CHUNKS, lane % ROW_CHUNKS);
            let to = Self::rows(at).offset(part * (S::BLOCK_M * ROW_BYTES)).get();
            let place = |pass: u32| to + swizzled_chunk(ROW_BYTES, first + pass * step, chunk);
            let offset =
                self.first_byte + at.stage * S::STAGE_ROW_BYTES + part * ROW_BYTES + chunk * CHUNK_BYTES;
            // SAFETY: no warp reads this slot any more; the caller vouches for X.
            unsafe {
                if self.x.is_aligned() {
                    self.x.copy_aligned::<X_PASSES>(place, [row + first, step], offset);
                } else {
                    for pass in 0..ptx::opaque(X_PASSES) {
                        self.x.copy_chunk::<T>(place(pass), row + first + pass * step, offset);
                    }
                }
            }
        }
        // What stays comes after the first rows of X, which have a longer way: with the last stage before the first is waited for.
        let (mut panel, panels) = if self.resident {
            (0, if self.ahead == S::STAGES - 2 { self.projections + self.expansions } else { 0 })
        } else {
            (at.stage, if is_there { at.stage + 1 } else { 0 })
        };
        while panel < panels {
            // V has a row for each element along K, and the rank's columns; U has the rank's rows: as many chunks.
            let is_of_v = panel < self.projections;
            let along = panel - if is_of_v { 0 } else { self.projections };
            let (source, first_row, first_byte, rows, per_row) = if is_of_v {
                let rows = const { ROW_BYTES / T::BYTES };
                let first_row = self.first + (along * S::WARPS_K + part) * rows;
                (self.v, first_row, 0, rows, S::MAX_RANK * T::BYTES / CHUNK_BYTES)
            } else {
                let first_byte = first_column * T::BYTES + along * S::STAGE_ROW_BYTES + part * ROW_BYTES;
                (self.u.up_to(end_column * T::BYTES), 0, first_byte, S::MAX_RANK, ROW_CHUNKS)
            };
            let shift = ptx::opaque(31 - per_row.leading_zeros());
            let passes = ptx::opaque(Self::PANEL_BYTES / CHUNK_BYTES / S::THREADS);
            let to = self.panels(at, panel).offset(part * const { Self::PANEL_BYTES / S::WARPS_K });
            for pass in 0..passes {
                let index = group * warp::SIZE + lane + pass * const { S::THREADS / S::WARPS_K };
                let (of_row, chunk) = (index >> shift, index & ((1 << shift) - 1));
                let place = panel_chunk(T::BYTES, rows, of_row, chunk, !is_of_v);
                let offset = first_byte + chunk * CHUNK_BYTES;
                // SAFETY: as above, of V and of U.
                unsafe { source.copy_chunk::<T>(to.offset(place).get(), first_row + of_row, offset) }
            }
            panel += 1;
        }
        if is_there {
            self.fill = self.next_in_ring(at);
        }
        ptx::cp_async_commit_group();
    }

    /// The next stage, for all threads of the block, once it has arrived; `None` after the last. The one before it may be filled
    /// again. Where the block's warps have different parts, it has arrived for each warp's own.
    ///
    /// `fetch` is called where a tile's codes are best asked for: before the block's first stage is waited for, and from then on while a
    /// tile's second product begins, for the next tile, if [`HELD`](LowRankShape::HELD), else at the tile's beginning.
    ///
    /// # Safety
    ///
    /// All threads of the block call it alike. The problem's operands are valid for reads, and nothing writes them while the kernel
    /// runs.
    #[inline(always)]
    pub unsafe fn next(&mut self, mut fetch: impl FnMut(Due)) -> Option<Stage> {
        let at = self.read;
        if at.tile >= self.tiles {
            return None;
        }
        let is_first = at.tile == self.first_tile && at.stage == 0;
        let is_due = if S::HELD { is_first || at.stage == self.projections } else { at.stage == 0 };
        let in_ring = !(self.resident && at.stage >= self.projections);
        loop {
            let full = !in_ring || self.ahead == S::STAGES - 1;
            if full && is_due {
                let tile = if at.stage == 0 { at.tile } else { at.tile + self.turn };
                fetch(Due { row: self.place(tile)[0], is_first });
            }
            if in_ring {
                if full {
                    // The oldest stage that is on its way has arrived, and the one before it has been read. What stays has arrived with
                    // the first.
                    if self.resident && is_first {
                        ptx::cp_async_wait_all();
                    } else {
                        ptx::cp_async_wait_group(const { S::STAGES - 2 });
                    }
                    // SAFETY: all threads of the block are here.
                    unsafe { Self::synchronize() };
                }
                // SAFETY: the caller's promise.
                unsafe { self.fill() };
            }
            // Opaque: two loops would each have all of the copies' code.
            if ptx::opaque(full.into()) != 0 {
                break;
            }
            self.ahead += 1;
        }
        // Here, not at the tile's end: one register holds what the stage and the stream know.
        if at.stage == 0 {
            self.odd ^= 1;
        }
        let [row, first_column, columns] = self.place(at.tile);
        let stage = Stage {
            x: Self::rows(at),
            panels: self.panels(at, at.stage),
            row,
            column: first_column + at.stage.saturating_sub(self.projections) * Self::EXTENT,
            columns,
            odd: self.odd,
            index: at.stage,
            projections: self.projections,
        };
        // What stays is not in the ring.
        let slot = if in_ring { self.next_in_ring(at).slot } else { at.slot };
        self.read = if at.stage + 1 == self.projections + self.expansions {
            Position { tile: at.tile + self.turn, stage: 0, slot }
        } else {
            Position { stage: at.stage + 1, slot, ..at }
        };
        Some(stage)
    }
}
