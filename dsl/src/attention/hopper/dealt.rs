//! Tiles of few rows, whose keys are dealt to several blocks: rows of the heads that have the same keys alternate, so that keys are read once.
//!
//! Such rows are no box of the copy engine's. So each warpgroup's lanes copy their rows of Q, and store their sums: those of a part in f32, for another kernel to
//! add up, or the result where there is one part.

use super::{
    Attended, AttentionElement, AttentionShape, Consumer, KeyMaps, Producer, Queries, Scoring, Tile,
};
use crate::attention::portable::copies::copy_by_warpgroup;
use crate::attention::portable::output::OutputRow;
use crate::attention::portable::{Parts, Tensors};
use crate::attention::softmax::Total;
use crate::attention::work::{Sizes, Work};
use crate::float::HalfElement;
use crate::launch::GlobalMut;
use crate::layout::accumulator_coord;
use crate::pipeline::Operand;
use crate::ptx::{self, Accumulators};
use crate::tile::registers::ROWS;
use crate::warpgroup::{self, Boxed, WARP_ROWS};
use crate::{thread, warp};

/// Rows of Q that a warpgroup's lanes copy, of elements `T`.
pub struct OwnQueries<'a, T> {
    tensors: &'a Tensors,
    sizes: &'a Sizes,
    of: core::marker::PhantomData<T>,
}

impl<'a, T> OwnQueries<'a, T> {
    /// Those of a launch.
    #[inline(always)]
    #[must_use]
    pub const fn new(tensors: &'a Tensors, sizes: &'a Sizes) -> Self {
        Self { tensors, sizes, of: core::marker::PhantomData }
    }
}

impl<T: HalfElement> Queries for OwnQueries<'_, T> {
    const ALTERNATE: bool = true;

    type Held = ();

    #[inline(always)]
    unsafe fn begin<S: AttentionShape, const CHANGES: bool>(
        &self,
        _: &mut Consumer,
        index: u32,
        work: &Work,
    ) -> (Boxed, ()) {
        let (to, rows) = (Tile::<S, CHANGES>::queries(index), self.tensors.q);
        let first = work.row + index * warpgroup::ROWS;
        let count = (work.rows * self.sizes.pack.max(1)).saturating_sub(first);
        // SAFETY: all warps of the warpgroup are here. Behind the first barrier each has seen the products complete that read the rows before. Each lane then waits for
        // its own copies and fences them for the tensor cores, and the second barrier orders those of all lanes before any product. The rows are the sequence's.
        unsafe {
            warpgroup::sync_own(index, S::WARPGROUPS);
            copy_by_warpgroup::<T>(
                to,
                Tile::<S, CHANGES>::K_BOXES,
                warpgroup::ROWS,
                count,
                self.tensors.columns,
                |row| {
                    let [row, head] = self.sizes.row_and_head(work, first + row);
                    let to_row =
                        work.place.batch as u64 * rows.sequence + (work.place.row + row) as u64 * rows.row;
                    rows.first().offset(to_row + head as u64 * rows.head)
                },
            );
            ptx::cp_async_wait_all();
            ptx::fence_proxy_async_shared();
            warpgroup::sync_own(index, S::WARPGROUPS);
        }
        (Boxed::at(Operand::written(to), warpgroup::ROWS), ())
    }

    #[inline(always)]
    unsafe fn end(_: &mut Consumer, (): ()) {}
}

impl<S: AttentionShape> Tile<S, false> {
    /// The same work with the keys of part `part` alone, of those that `parts` has.
    #[inline(always)]
    #[must_use]
    pub fn part_of(work: &Work, parts: &Parts, part: u32) -> Work {
        let [first, end] = work.within;
        let [from, to] = parts.keys_of(part, work.keys, Self::BLOCK_KEYS);
        let (first, end) = (first.max(from), end.min(to));
        Work { within: if first < end { [first, end] } else { [0, 0] }, ..*work }
    }

    /// Has the work's keys and values copied.
    ///
    /// # Safety
    ///
    /// As [`load`](Self::load).
    #[inline(always)]
    pub unsafe fn load_keys_of(
        producer: &mut Producer,
        maps: KeyMaps<'_>,
        scoring: &Scoring,
        key_head: u32,
        work: &Work,
    ) {
        // SAFETY: the caller's promise.
        unsafe { Self::load_blocks(producer, maps, scoring, key_head, work, |_| ()) }
    }

    /// Stores the rows, or their part `part`, and what [`lse`](Parts::lse) or `lse` has of each.
    ///
    /// # Safety
    ///
    /// All warps of the warpgroup call it; what is written is valid for writes, and no other warp has these rows, or this part of them.
    #[inline(always)]
    pub unsafe fn store_dealt<T: AttentionElement<S>>(
        attended: &Attended<S::Sums>,
        tensors: &Tensors,
        sizes: &Sizes,
        lse: GlobalMut<f32>,
        (parts, part): (&Parts, u32),
        work: &Work,
    ) {
        let lane = warp::lane_id();
        let at = accumulator_coord(lane, 0);
        let warp = thread::thread_idx_x() / warp::SIZE - 4;
        let first = work.row + warp * WARP_ROWS + at.row;
        let rows = [first, first + 8].map(|row| OutputRow::of(tensors, sizes, parts, part, work, row));
        // SAFETY: the caller's promise.
        unsafe {
            for half in 0..ROWS {
                let total = if rows[half].counts {
                    attended.totals[half]
                } else {
                    let lse = if parts.count > 1 { Parts::NO_ROW } else { f32::NEG_INFINITY };
                    Total { scale: 0.0, lse }
                };
                if lane.is_multiple_of(4) {
                    rows[half].store_lse(lse, parts, part, total.lse);
                }
                for fragment in 0..S::Sums::COLUMNS / 8 {
                    let sums = attended.sums.0.fragment(fragment as usize);
                    let pair = [sums[2 * half], sums[2 * half + 1]];
                    rows[half].store::<T>(tensors, parts, fragment * 8 + at.column, pair, total.scale);
                }
            }
        }
    }
}
