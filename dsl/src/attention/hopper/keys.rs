//! The key blocks of a tile, and the keys that a thread's rows attend to.

use super::{AttentionShape, Scoring, Tile};
use crate::attention::scores::ScoreOperands;
use crate::attention::work::Work;
use crate::layout::accumulator_coord;
use crate::tile::registers::ROWS;
use crate::warpgroup::{self, WARP_ROWS};
use crate::{ptx, thread, warp};

/// The key blocks of a tile, the last one first.
pub(super) struct KeyBlocks {
    first: u32,
    end: u32,
}

impl KeyBlocks {
    #[inline(always)]
    pub(super) fn of<S: AttentionShape, const CHANGES: bool>(work: &Work) -> Self {
        let [first, end] = work.within;
        let keys = Tile::<S, CHANGES>::BLOCK_KEYS;
        Self { first: first / keys, end: end.div_ceil(keys) }
    }

    /// The next block that any row attends to.
    ///
    /// # Safety
    ///
    /// The operands' pointers are valid, and nothing writes there.
    #[inline(always)]
    pub(super) unsafe fn next<S: AttentionShape, const CHANGES: bool>(
        &mut self,
        operands: &ScoreOperands,
        work: &Work,
    ) -> Option<u32> {
        let (rows, keys) = (Tile::<S, CHANGES>::BLOCK_ROWS, Tile::<S, CHANGES>::BLOCK_KEYS);
        while self.end > self.first {
            self.end -= 1;
            let first = self.end * keys;
            let keys = [first, work.keys.min(first + keys)];
            let rows = [work.row, work.rows.min(work.row + rows)];
            // SAFETY: the caller's promise.
            if !CHANGES || unsafe { operands.has_any(work, [work.head, work.head + 1], rows, keys) } {
                return Some(self.end);
            }
        }
        None
    }
}

/// What a thread knows of its rows.
#[derive(Clone, Copy)]
pub(super) struct OwnRows {
    /// The thread's two rows of the sequence.
    pub(super) rows: [u32; ROWS],
    /// The thread's first column.
    pub(super) column: u32,
    /// The keys that all rows of the warpgroup attend to by their places: the first, and the one behind the last.
    pub(super) common: [i32; 2],
}

impl OwnRows {
    #[inline(always)]
    pub(super) fn of(index: u32, scoring: &Scoring, work: &Work) -> Self {
        let pack = scoring.pack;
        let first = work.row + index * warpgroup::ROWS;
        let last = (first + warpgroup::ROWS).min(work.rows * pack).max(1) - 1;
        let [begin, _] = scoring.window.keys_of(last / pack, work.offset, work.keys);
        let [_, end] = scoring.window.keys_of(first / pack, work.offset, work.keys);
        let thread = ptx::opaque(thread::thread_idx_x());
        let (warp, own) = (thread / warp::SIZE % 4, accumulator_coord(thread % warp::SIZE, 0));
        let row = first + warp * WARP_ROWS + own.row;
        let rows = [row / pack, (row + 8) / pack];
        Self { rows, column: own.column, common: [begin, end] }
    }
}
