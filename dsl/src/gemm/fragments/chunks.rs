//! The chunks of 32 columns in which a warp stores its accumulators, and what an epilogue knows of their columns.

use super::BOX_ROW_BYTES;
use crate::epilogue::{ColumnState, Epilogue};
use crate::layout::FRAGMENT_COLUMNS;
use crate::warp;

/// Columns that the lanes of a warp have one each of.
pub(super) const WARP_COLUMNS: u32 = warp::SIZE;
/// The most chunks of as many columns, by 16 rows, that a warp stores in a loop.
pub(super) const MAX_CHUNKS: u32 = 12;
/// Columns that a warp stores together, in one box or in two.
pub(super) const GROUP_COLUMNS: u32 = BOX_ROW_BYTES / 2;
/// Chunks of that.
pub(super) const GROUP_CHUNKS: u32 = GROUP_COLUMNS / WARP_COLUMNS;
/// Fragments of as many columns.
pub(super) const CHUNK_FRAGMENTS: usize = (WARP_COLUMNS / FRAGMENT_COLUMNS) as usize;

/// Chunks in which a warp stores 16 rows of `columns` columns, which are a multiple of 8 and at least a group.
pub(super) const fn chunks(columns: u32) -> u32 {
    assert!(
        columns >= GROUP_COLUMNS && columns.is_multiple_of(FRAGMENT_COLUMNS),
        "columns that groups cover"
    );
    columns.div_ceil(GROUP_COLUMNS) * GROUP_CHUNKS
}

/// The first column of chunk `index` of `columns` columns. Where the last group would reach beyond them, it begins as much sooner, and
/// shares columns with the group before.
pub(super) const fn first_of_chunk(columns: u32, index: u32) -> u32 {
    let (group, last) = (index / GROUP_CHUNKS, columns / GROUP_COLUMNS);
    if groups_overlap(columns) && group == last {
        columns - GROUP_COLUMNS + index % GROUP_CHUNKS * WARP_COLUMNS
    } else {
        index * WARP_COLUMNS
    }
}

/// Whether the last two groups of `columns` columns share some.
pub(super) const fn groups_overlap(columns: u32) -> bool {
    !columns.is_multiple_of(GROUP_COLUMNS)
}

/// Which chunk of `blocks` blocks of `columns` columns is stored as number `turn`, counted through all blocks. Where groups share
/// columns, the last one of each block comes first: when the other is stored, it has long been in its place.
#[inline(always)]
pub(super) const fn chunk_in_turn(columns: u32, blocks: u32, turn: u32) -> u32 {
    if !groups_overlap(columns) {
        return turn;
    }
    let (chunks, others) = (chunks(columns), chunks(columns) - GROUP_CHUNKS);
    if turn < blocks * GROUP_CHUNKS {
        turn / GROUP_CHUNKS * chunks + others + turn % GROUP_CHUNKS
    } else {
        let turn = turn - blocks * GROUP_CHUNKS;
        turn / others * chunks + turn % others
    }
}

/// What an epilogue knows of up to 256 columns, spread over the lanes of a warp: lane l has column l of each chunk.
pub struct ColumnCache<K>(pub(super) [K; 8]);

impl<K: ColumnState> ColumnCache<K> {
    /// What `epilogue` knows of the `columns` columns from `first` on: as many as accumulators have, a constant after inlining.
    ///
    /// # Safety
    ///
    /// As [`Epilogue::column`].
    #[inline(always)]
    pub unsafe fn load<E: Epilogue<Column = K>>(epilogue: &E, first: u32, columns: u32) -> Self {
        let lane = warp::lane_id();
        let mut cache = [K::default(); 8];
        for (i, state) in cache.iter_mut().enumerate() {
            if (i as u32) < chunks(columns) {
                // SAFETY: the caller's promise.
                *state = unsafe { epilogue.column(first + first_of_chunk(columns, i as u32) + lane) };
            }
        }
        Self(cache)
    }
}
