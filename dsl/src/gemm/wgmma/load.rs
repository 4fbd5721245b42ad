//! What the producer has copied, stage by stage: the rows of a whole tile, or those of half of its columns.

use super::{BLOCK_ROWS, PANEL_BYTES, ROW_BYTES, Schedule, WgmmaTile};
use crate::gemm::{Extent, Layouts, PersistentTile, PersistentTiles, TilePart};
use crate::launch::TensorMap;
use crate::layout::TileIndex;
use crate::pipeline;
use crate::ptx::{self, Accumulators};
use crate::shared::SharedAddress;
use crate::{thread, warp};

/// Steps along K whose columns are [prefetched](PersistentTile::prefetch), measured with 2, 4, 8 and 16: where rows do not start at the cache's
/// lines, more of them delay the copies of the launch before.
const PREFETCHED_STEPS: u32 = 4;

impl<C: Accumulators, const BLOCKS: usize, S: Schedule, const STAGES: u32, const CLUSTER: u32>
    WgmmaTile<C, BLOCKS, S, STAGES, CLUSTER>
{
    /// The boxes of a part of an operand, `rows` rows of it: one, or one for each panel if the operand is MN-major. `one` is told where a box
    /// is in the operand, and how many bytes behind the first it belongs.
    #[inline(always)]
    fn boxes(is_mn: bool, [k, row, batch]: [u32; 3], rows: u32, one: impl Fn([i32; 3], u32)) {
        let one = |at: [u32; 3], behind| one(at.map(|index| index as i32), behind);
        if is_mn {
            for panel in 0..rows / BLOCK_ROWS {
                one([row + panel * BLOCK_ROWS, k, batch], panel * PANEL_BYTES);
            }
        } else {
            one([k, row, batch], 0);
        }
    }

    /// Copies a part of an operand, `rows` rows of it, to `to`.
    ///
    /// # Safety
    ///
    /// As [`PersistentTile::load`].
    #[inline(always)]
    unsafe fn copy(
        map: &TensorMap,
        is_mn: bool,
        at: [u32; 3],
        rows: u32,
        to: SharedAddress,
        full: u32,
        blocks: u16,
    ) {
        Self::boxes(is_mn, at, rows, |at, behind| {
            let to = to.offset(behind).get();
            // SAFETY: the caller's promise.
            unsafe {
                if blocks > 1 {
                    ptx::tma_load_3d_multicast(to, map.address(), at, full, blocks);
                } else {
                    ptx::tma_load_3d(to, map.address(), at, full);
                }
            }
        });
    }

    /// [`prefetch`](PersistentTile::prefetch), where a step takes `elements` elements of each row.
    ///
    /// # Safety
    ///
    /// As [`PersistentTile::prefetch`].
    #[inline(always)]
    pub(super) unsafe fn prefetch_first(
        a: &TensorMap,
        b: &TensorMap,
        layouts: Layouts,
        elements: u32,
        steps: u32,
        tiles: &mut PersistentTiles,
    ) {
        if Self::PREFETCHES
            && steps <= Self::EARLY_STEPS
            && thread::thread_idx_x() == warp::SIZE
            && let Some((tile, clusters)) = tiles.only_tile()
        {
            // SAFETY: the caller's promise.
            unsafe { Self::prefetch_rows(a, b, layouts, elements, steps, tile, clusters) }
        }
    }

    /// [`prefetch`](PersistentTile::prefetch) of this block's part of the first columns: of its share of the rows of A for `tile` those of every
    /// `clusters[0]`-th step, and of its share of the rows of B those of every `clusters[1]`-th.
    ///
    /// # Safety
    ///
    /// As [`PersistentTile::prefetch`].
    #[inline(always)]
    unsafe fn prefetch_rows(
        a: &TensorMap,
        b: &TensorMap,
        layouts: Layouts,
        elements: u32,
        steps: u32,
        tile: TileIndex,
        clusters: [u32; 2],
    ) {
        let [product, part] = layouts.product_and_part(tile.batch);
        let fetch = |map: &TensorMap, is_mn, [first, every]: [u32; 2], [row, rows, batch]: [u32; 3]| {
            let mut step = first;
            while step < steps.min(PREFETCHED_STEPS) {
                Self::boxes(is_mn, [(part * steps + step) * elements, row, batch], rows, |at, _| {
                    // SAFETY: the caller's promise.
                    unsafe { ptx::tma_prefetch_3d(map.address(), at) }
                });
                // Opaque: copies of the loop are worth nothing.
                step = ptx::opaque(step + every);
            }
        };
        let [every_a, every_b] = clusters;
        let row_a = tile.m * Self::BLOCK_M + tile.n % Self::CLUSTER_N * Self::A_BOX_ROWS;
        let rows_a = [row_a, Self::A_BOX_ROWS, layouts.matrix_of_a(product)];
        fetch(a, layouts.a_is_mn(), [tile.n / Self::CLUSTER_N, every_a], rows_a);
        let row_b = tile.n * Self::BLOCK_N + tile.m % Self::CLUSTER_M * Self::B_BOX_ROWS;
        let rows_b = [row_b, Self::B_BOX_ROWS, layouts.matrix_of_b(product)];
        fetch(b, layouts.b_is_mn(), [tile.m / Self::CLUSTER_M, every_b], rows_b);
    }

    /// [`load`](PersistentTile::load), where a stage has `elements` elements of each row.
    ///
    /// # Safety
    ///
    /// As [`PersistentTile::load`].
    #[inline(always)]
    pub(super) unsafe fn load_rows(
        producer: &mut pipeline::Producer<STAGES, CLUSTER>,
        a: &TensorMap,
        b: &TensorMap,
        layouts: Layouts,
        elements: u32,
        steps: u32,
        tile: TileIndex,
    ) {
        let (row_a, row_b) = (tile.m * Self::BLOCK_M, tile.n * Self::BLOCK_N);
        let [product, part] = layouts.product_and_part(tile.batch);
        let (batch_a, batch_b) = (layouts.matrix_of_a(product), layouts.matrix_of_b(product));
        let (a_is_mn, b_is_mn) = (layouts.a_is_mn(), layouts.b_is_mn());
        let first = part * steps;
        for step in 0..steps {
            let k = (first + step) * elements;
            // SAFETY: a stage's bytes come from the boxes of A and of B, in a cluster the shares of all blocks, which are
            // all at the same step; nothing touches the stage before it is full. The rest is the caller's promise.
            unsafe {
                let stage = producer.acquire(Self::STAGE_BYTES);
                let (mut to_a, full) = (Self::stage(stage.index), stage.full.address());
                let mut to_b = to_a.offset(Self::A_BYTES);
                let ([mut row_a, mut row_b], [mut blocks_a, mut blocks_b]) = ([row_a, row_b], [1, 1]);
                let rank = ptx::cluster_ctarank();
                let (rank_m, rank_n) = if Self::CLUSTER_N == 1 {
                    (rank, 0)
                } else {
                    (rank % Self::CLUSTER_M, rank / Self::CLUSTER_M)
                };
                if Self::CLUSTER_M > 1 {
                    let share = rank_m * Self::B_BOX_ROWS;
                    to_b = to_b.offset(share * ROW_BYTES);
                    row_b += share;
                    blocks_b = (Self::BLOCKS_ALONG_M << (rank_n * Self::CLUSTER_M)) as u16;
                }
                if Self::CLUSTER_N > 1 {
                    let share = rank_n * Self::A_BOX_ROWS;
                    to_a = to_a.offset(share * ROW_BYTES);
                    row_a += share;
                    blocks_a = (Self::BLOCKS_ALONG_N << rank_m) as u16;
                }
                Self::copy(a, a_is_mn, [k, row_a, batch_a], Self::A_BOX_ROWS, to_a, full, blocks_a);
                Self::copy(b, b_is_mn, [k, row_b, batch_b], Self::B_BOX_ROWS, to_b, full, blocks_b);
            }
        }
    }

    /// [`load`](PersistentTile::load) of half a tile's columns. The blocks of the cluster share the rows of one operand, which they
    /// fetch in turn, a stage each, and send to all.
    ///
    /// # Safety
    ///
    /// As [`PersistentTile::load`].
    #[inline(always)]
    pub(super) unsafe fn load_half(
        producer: &mut pipeline::Producer<STAGES, CLUSTER>,
        a: &TensorMap,
        b: &TensorMap,
        layouts: Layouts,
        elements: u32,
        steps: u32,
        part: TilePart,
    ) {
        let tile = part.tile;
        let (row_a, row_b) = (tile.m * Self::BLOCK_M, Self::first_column(part));
        let [product, part_of_k] = layouts.product_and_part(tile.batch);
        let (batch_a, batch_b) = (layouts.matrix_of_a(product), layouts.matrix_of_b(product));
        let (a_is_mn, b_is_mn) = (layouts.a_is_mn(), layouts.b_is_mn());
        let all = ((1u32 << CLUSTER) - 1) as u16;
        let (to_blocks_a, to_blocks_b) = if part.extent == Extent::Half { (all, 1) } else { (1, all) };
        let rank = ptx::cluster_ctarank();
        let first = part_of_k * steps;
        for step in 0..steps {
            let k = (first + step) * elements;
            let is_turn = step % CLUSTER == rank;
            // SAFETY: a stage's bytes come from one box of each operand; of the operand that all share from the block whose turn it
            // is, and all are at the same step. Nothing touches the stage before it is full. The rest is the caller's promise.
            unsafe {
                let stage = producer.acquire(Self::A_BYTES + C::Half::COLUMNS * ROW_BYTES);
                let (to, full) = (Self::stage(stage.index), stage.full.address());
                if to_blocks_a == 1 || is_turn {
                    let at = [k, row_a, batch_a];
                    Self::copy(a, a_is_mn, at, Self::A_BOX_ROWS, to, full, to_blocks_a);
                }
                if to_blocks_b == 1 || is_turn {
                    let (at, to) = ([k, row_b, batch_b], to.offset(Self::A_BYTES));
                    Self::copy(b, b_is_mn, at, Self::B_BOX_ROWS, to, full, to_blocks_b);
                }
            }
        }
    }
}
