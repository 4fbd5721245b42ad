//! Where gradients go.

use crate::attention::portable::Strided;
use crate::attention::work::Work;
use crate::float::Element;
use crate::launch::GlobalMut;
use crate::layout::accumulator_coord;
use crate::ptx::Accumulators;
use crate::tile::registers::{Fragment, ROWS};
use crate::warp;

/// Stores a warp's rows of a gradient from row `first` of the sequence on, times `scale`: zeros of those that do not count. Nothing if `to` is null.
///
/// The sums are those of columns from the first of `columns` on; the second is the number of all columns.
///
/// # Safety
///
/// All lanes of the warp call it. What is written is valid for writes, and no other warp has these rows.
#[inline(always)]
pub(super) unsafe fn store<T: Element, C: Accumulators>(
    sums: &Fragment<C>,
    to: Strided,
    [first_column, columns]: [u32; 2],
    scale: f32,
    work: &Work,
    first: u32,
) {
    if to.base.is_null() {
        return;
    }
    let at = accumulator_coord(warp::lane_id(), 0);
    let row = first + at.row;
    for half in 0..ROWS {
        let row = row + 8 * half as u32;
        let first = work.place.batch as u64 * to.sequence
            + (work.place.row + row) as u64 * to.row
            + work.head as u64 * to.head;
        let to: GlobalMut<T> = to.first::<T>().offset(first);
        for fragment in 0..C::COLUMNS / 8 {
            let column = first_column + fragment * 8 + at.column;
            let all = sums.0.fragment(fragment as usize);
            // Not a product with zero: rows that do not count may be no numbers.
            let value = |index: usize| {
                if row < work.rows { all[2 * half + index] * scale } else { 0.0 }
            };
            let to = to.offset(column as u64);
            if row < work.written && column < columns {
                let has_next = column + 1 < columns;
                // SAFETY: the caller's promise.
                unsafe {
                    if has_next && to.address().is_multiple_of(2 * T::BYTES as u64) {
                        T::store_rounded_2(to, [value(0), value(1)]);
                    } else {
                        T::store_rounded(to, value(0));
                        if has_next {
                            T::store_rounded(to.offset(1), value(1));
                        }
                    }
                }
            }
        }
    }
}
