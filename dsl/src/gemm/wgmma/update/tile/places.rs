//! Where a block's stages, parts of U, codes and barriers are in shared memory, and a warp's rows in the output.

use super::{PANEL_BYTES, RESIDENT_PARTS, WgmmaUpdateTile};
use crate::barrier::Barrier;
use crate::gemm::fragments::{BOX_ROW_BYTES, STAGED_BOXES, STAGING_BYTES, WarpRows};
use crate::gemm::wgmma::update::{CHUNK, U_BOX_COLUMNS, UpdateTile};
use crate::gemm::wgmma::{BLOCK_ROWS, ROW_BYTES, Schedule, WARP_ROWS, WARPGROUP};
use crate::layout::TileIndex;
use crate::pipeline::Pipeline;
use crate::ptx::{self, Accumulators};
use crate::shared::SharedAddress;
use crate::thread;
use crate::warp;

impl<
    C: Accumulators,
    const BLOCKS: usize,
    S: Schedule,
    const STAGES: u32,
    const CLUSTER: u32,
    const IS_OWN: bool,
> WgmmaUpdateTile<C, BLOCKS, S, STAGES, CLUSTER, IS_OWN>
{
    /// Rows of a consumer.
    pub(super) const CONSUMER_ROWS: u32 = BLOCKS as u32 * BLOCK_ROWS;
    /// Bytes of a stage's rows of A, which its rows of B follow.
    pub(super) const A_BYTES: u32 = Self::BLOCK_M * ROW_BYTES;
    /// Bytes of a stage without those of Vᵀ, which follow.
    pub(super) const STAGE_BYTES: u32 = Self::A_BYTES + C::COLUMNS * ROW_BYTES;
    /// Bytes of a stage's rows of Vᵀ.
    pub(super) const V_BYTES: u32 = CHUNK * ROW_BYTES;
    /// Bytes from one stage to the next.
    pub(super) const STAGE_PITCH: u32 = Self::STAGE_BYTES + Self::V_BYTES;
    /// Panels of U that are as wide as the tile.
    pub(super) const PANELS: u32 = {
        assert!(C::COLUMNS.is_multiple_of(U_BOX_COLUMNS), "panels cover the tile exactly");
        C::COLUMNS / U_BOX_COLUMNS
    };
    /// Bytes of a part of U.
    pub(super) const PART_BYTES: u32 = Self::PANELS * PANEL_BYTES;
    /// Bytes of the place in which a consumer has parts of U and then stages its outputs, or stages its outputs and behind them has the
    /// only part.
    pub(super) const AREA_BYTES: u32 = {
        let (parts, staging) = (RESIDENT_PARTS * Self::PART_BYTES, 4 * STAGING_BYTES);
        if IS_OWN {
            Self::ONLY_PART_AT + Self::PART_BYTES
        } else if parts > staging {
            parts
        } else {
            staging
        }
    };
    /// Where the only part of U is in it.
    pub(super) const ONLY_PART_AT: u32 = 4 * STAGING_BYTES;
    /// Where these places follow the ring.
    pub(super) const AREAS_AT: u32 = STAGES * Self::STAGE_PITCH;
    /// Bytes of a thread's scaling of two columns, which its codes follow.
    pub(super) const SCALING_BYTES: u32 = 2 * 4;
    /// Bytes of a consumer's codes, a word for each of a thread's rows, and of their scaling.
    pub(super) const CODES_BYTES: u32 = (Self::SCALING_BYTES + BLOCKS as u32 * 2 * 4) * WARPGROUP;
    /// Where the consumers' codes follow the areas.
    pub(super) const CODES_AT: u32 = Self::AREAS_AT + S::CONSUMERS * Self::AREA_BYTES;
    /// Where the ring's barriers follow them.
    pub(super) const BARRIERS_AT: u32 = Self::CODES_AT + S::CONSUMERS * Self::CODES_BYTES;
    /// Where the barriers at which U arrives, one for each consumer, follow them.
    pub(super) const ARRIVALS_AT: u32 = Self::BARRIERS_AT + Pipeline::<STAGES, CLUSTER>::BYTES;
    /// Where the barriers of the consumers' turns follow them.
    pub(super) const TURNS_AT: u32 = Self::ARRIVALS_AT + S::CONSUMERS * Barrier::BYTES;
    /// Whether consumers take turns.
    pub(super) const TAKES_TURNS: bool = S::CONSUMERS > S::CONSUMERS_OF_TILE;
    /// Whether the producer's warpgroup hands registers to the consumers.
    pub(super) const HANDS_OVER_REGISTERS: bool = S::CONSUMERS == 2;
    /// Whether a consumer's accumulators leave it few other registers.
    pub(super) const IS_WIDE: bool = BLOCKS as u32 * C::COLUMNS > 256;

    #[inline(always)]
    pub(super) fn pipeline() -> Pipeline<STAGES, CLUSTER> {
        Pipeline::at(SharedAddress::dynamic().offset(Self::BARRIERS_AT))
    }

    /// The barrier that completes a phase when consumer `index` may multiply again.
    #[inline(always)]
    pub(super) fn turn_of(index: u32) -> Barrier {
        Barrier::at(SharedAddress::dynamic().offset(Self::TURNS_AT + index * Barrier::BYTES))
    }

    /// The barrier at which the rows of U for consumer `index` arrive.
    #[inline(always)]
    pub(super) fn arrival_of(index: u32) -> Barrier {
        Barrier::at(SharedAddress::dynamic().offset(Self::ARRIVALS_AT + index * Barrier::BYTES))
    }

    /// The place of a stage.
    #[inline(always)]
    pub(super) fn stage(index: u32) -> SharedAddress {
        SharedAddress::dynamic().offset(index * Self::STAGE_PITCH)
    }

    /// The place of consumer `index` for parts of U and for staging.
    #[inline(always)]
    pub(super) fn area(index: u32) -> SharedAddress {
        SharedAddress::dynamic().offset(Self::AREAS_AT + index * Self::AREA_BYTES)
    }

    /// The place of the scaling of this thread's codes.
    #[inline(always)]
    pub(super) fn scaling(index: u32) -> SharedAddress {
        let own = thread::thread_idx_x() % WARPGROUP * Self::SCALING_BYTES;
        SharedAddress::dynamic().offset(Self::CODES_AT + index * Self::CODES_BYTES + own)
    }

    /// The place of this thread's codes of row `row` of its rows.
    #[inline(always)]
    pub(super) fn codes(index: u32, row: u32) -> SharedAddress {
        let first = Self::CODES_AT + index * Self::CODES_BYTES + Self::SCALING_BYTES * WARPGROUP;
        SharedAddress::dynamic().offset(first + (row * WARPGROUP + thread::thread_idx_x() % WARPGROUP) * 4)
    }

    /// This consuming warp's place in the output.
    #[inline(always)]
    pub(super) fn own_rows(tile: TileIndex) -> WarpRows {
        // Opaque: what follows from it is worth no register while the products run.
        let thread = ptx::opaque(thread::thread_idx_x());
        let (warp, lane) = (thread / warp::SIZE - 4, thread % warp::SIZE);
        let first = if Self::TAKES_TURNS { 0 } else { warp / 4 * Self::CONSUMER_ROWS };
        WarpRows {
            lane,
            batch: 0,
            row: tile.m * Self::BLOCK_M + first + warp % 4 * WARP_ROWS,
            column: tile.n * C::COLUMNS,
            columns: C::COLUMNS,
            staging: Self::area(warp / 4).offset(warp % 4 * STAGING_BYTES),
            staged_boxes: STAGED_BOXES,
            box_row_bytes: BOX_ROW_BYTES,
            has_registers: !Self::IS_WIDE,
        }
    }
}
