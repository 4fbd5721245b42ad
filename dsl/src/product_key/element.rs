//! Few rows of f32 numbers as the left operand of products at their own accuracy, whatever the right operand's type.
//!
//! With a right operand of 16-bit numbers a number is the sum of two of them, which multiply one after the other. They stand in shared
//! memory in panels of 32 rows of 128 bytes, swizzled: those of the upper parts, and behind each of these that of the lower parts.

use crate::float::{Bf16, F16, HalfElement, Stored};
use crate::gemm::{MmaElement, MmaProducts};
use crate::layout::{ChunkIndex, a_fragment_chunk, swizzled_chunk};
use crate::ptx;
use crate::warp;

/// Rows of a panel.
pub(super) const QUERY_ROWS: u32 = 32;
/// Bytes of a row of a panel.
const ROW_BYTES: u32 = 128;
/// Bytes of a panel.
const PANEL_BYTES: u32 = QUERY_ROWS * ROW_BYTES;
/// Rows of a fragment.
const FRAGMENT_ROWS: u32 = 16;
/// Fragments of a panel's rows.
pub(super) const QUERY_FRAGMENTS: usize = (QUERY_ROWS / FRAGMENT_ROWS) as usize;

/// A type of right operands.
pub trait QueryElement: MmaElement {
    /// A fragment of the left operand.
    type Parts: Copy;

    /// Panels of which each row has the same numbers.
    const PARTS: u32;

    /// Whether rows are multiplied by a power of two that brings them into the middle of the type's range, which is far smaller than that
    /// of f32.
    const IS_SCALED: bool;

    /// Elements of a row of a panel.
    const PANEL_ELEMENTS: u32 = ROW_BYTES / Self::BYTES;

    /// Bytes of `elements` columns, a multiple of [`PANEL_ELEMENTS`](Self::PANEL_ELEMENTS).
    #[must_use]
    fn query_bytes(elements: u32) -> u32 {
        elements / Self::PANEL_ELEMENTS * Self::PARTS * PANEL_BYTES
    }

    /// Puts two neighbouring numbers of row `row` in their places, of which the first has an even column.
    ///
    /// # Safety
    ///
    /// The panels at `query` are shared memory, and nothing else touches the places.
    unsafe fn put_query(query: u32, row: u32, column: u32, values: [f32; 2]);

    /// Fragment `fragment` (0 or 1) of k-step `step`, counted from the first column on.
    ///
    /// # Safety
    ///
    /// All lanes of the warp call it; the panels are shared memory, written and visible to the warp.
    unsafe fn load_query(query: u32, step: u32, fragment: u32) -> Self::Parts;

    /// `c += a · b` over one k-step, for each of `a` and `N` fragments of right operands.
    ///
    /// # Safety
    ///
    /// All lanes of the warp call it.
    unsafe fn multiply_query<const M: usize, const N: usize>(
        c: &mut [[[f32; 4]; N]; M],
        a: &[Self::Parts; M],
        b: &[Self::B; N],
    );
}

/// Where a number is, in panels of a single part.
#[inline(always)]
const fn place(bytes: u32, parts: u32, row: u32, column: u32) -> u32 {
    let of_row = ROW_BYTES / bytes;
    let (panel, offset) = (column / of_row, column % of_row * bytes);
    panel * parts * PANEL_BYTES + swizzled_chunk(ROW_BYTES, row, offset / 16) + offset % 16
}

/// Where this lane's chunk of a fragment of a step is.
#[inline(always)]
fn place_of_fragment(parts: u32, step: u32, fragment: u32) -> u32 {
    let ChunkIndex { row, chunk } = a_fragment_chunk(warp::lane_id());
    // The swizzle makes a k-step an exclusive or: see `layout`.
    let in_panel = swizzled_chunk(ROW_BYTES, row, chunk) ^ (step % 4 * 32);
    step / 4 * parts * PANEL_BYTES + fragment * FRAGMENT_ROWS * ROW_BYTES + in_panel
}

macro_rules! half_query {
    ($element:ident, $is_scaled:literal) => {
        impl QueryElement for $element {
            type Parts = [[u32; 4]; 2];
            const PARTS: u32 = 2;
            const IS_SCALED: bool = $is_scaled;

            #[inline(always)]
            unsafe fn put_query(query: u32, row: u32, column: u32, values: [f32; 2]) {
                let upper = Self::pack(values);
                let [a, b] = Self::unpack(upper);
                let lower = Self::pack([values[0] - a, values[1] - b]);
                let at = query + place(Self::BYTES, Self::PARTS, row, column);
                // SAFETY: the caller's promise.
                unsafe {
                    ptx::st_shared_b32(at, upper);
                    ptx::st_shared_b32(at + PANEL_BYTES, lower);
                }
            }

            #[inline(always)]
            unsafe fn load_query(query: u32, step: u32, fragment: u32) -> Self::Parts {
                let at = query + place_of_fragment(Self::PARTS, step, fragment);
                // SAFETY: the caller's promise.
                unsafe { [ptx::ldmatrix_x4(at), ptx::ldmatrix_x4(at + PANEL_BYTES)] }
            }

            #[inline(always)]
            unsafe fn multiply_query<const M: usize, const N: usize>(
                c: &mut [[[f32; 4]; N]; M],
                a: &[Self::Parts; M],
                b: &[Self::B; N],
            ) {
                // A product waits for the one before it of the same sums: as many others as there are stand between them.
                for part in (0..2).rev() {
                    for (c, a) in c.iter_mut().zip(a) {
                        for (c, &b) in c.iter_mut().zip(b) {
                            // SAFETY: the caller's promise.
                            unsafe { Self::multiply_add(c, a[part], b) }
                        }
                    }
                }
            }
        }
    };
}
half_query!(F16, true);
half_query!(Bf16, false);

impl QueryElement for f32 {
    type Parts = <f32 as MmaProducts>::A;
    const PARTS: u32 = 1;
    const IS_SCALED: bool = false;

    #[inline(always)]
    unsafe fn put_query(query: u32, row: u32, column: u32, values: [f32; 2]) {
        let at = query + place(Self::BYTES, Self::PARTS, row, column);
        // SAFETY: the caller's promise.
        unsafe { ptx::st_shared_v2_f32(at, values) }
    }

    #[inline(always)]
    unsafe fn load_query(query: u32, step: u32, fragment: u32) -> Self::Parts {
        let at = query + place_of_fragment(Self::PARTS, step, fragment);
        // SAFETY: the caller's promise.
        Self::prepare_a(unsafe { ptx::ldmatrix_x4(at) })
    }

    #[inline(always)]
    unsafe fn multiply_query<const M: usize, const N: usize>(
        c: &mut [[[f32; 4]; N]; M],
        a: &[Self::Parts; M],
        b: &[Self::B; N],
    ) {
        for (c, &a) in c.iter_mut().zip(a) {
            for (c, &b) in c.iter_mut().zip(b) {
                // SAFETY: the caller's promise.
                unsafe { Self::multiply_add(c, a, b) }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::collections::HashSet;

    use super::{PANEL_BYTES, QUERY_ROWS, place};

    #[test]
    fn every_number_of_a_query_has_a_place_of_its_own() {
        for (bytes, parts, columns) in [(2, 2, 128), (4, 1, 128)] {
            let places: HashSet<u32> = (0..QUERY_ROWS)
                .flat_map(|row| (0..columns).map(move |column| place(bytes, parts, row, column)))
                .collect();
            assert_eq!(places.len() as u32, QUERY_ROWS * columns);
            assert!(places.iter().all(|at| at.is_multiple_of(bytes)));
            // Panels of the second part lie between those of the first.
            assert!(places.iter().all(|at| (at / PANEL_BYTES).is_multiple_of(parts)));
        }
    }
}
