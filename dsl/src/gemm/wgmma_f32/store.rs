//! How a warp stores its rows: strip by strip through shared memory, where each lane gets four neighbouring columns of a row.

use super::{Parts, WARP_ROWS};
use crate::epilogue::Epilogue;
use crate::float::Element;
use crate::gemm::again::{Seen, Staged, Sums};
use crate::layout::{Coord, accumulator_coord};
use crate::ptx::{self, Accumulators};
use crate::shared::SharedAddress;
use crate::tile::Output;
use crate::warp;

/// Columns of an accumulator fragment.
const FRAGMENT_COLUMNS: u32 = 8;
/// Columns of a strip, which a warp stores at a time: 128 bytes of a row.
const STRIP_COLUMNS: u32 = 32;
/// Fragments of a strip.
const STRIP_FRAGMENTS: usize = (STRIP_COLUMNS / FRAGMENT_COLUMNS) as usize;
/// Bytes of a warp's staging buffer.
pub(super) const STAGING_BYTES: u32 = WARP_ROWS * STRIP_COLUMNS * 4;
/// Columns that a lane transforms and stores at a time.
const COLUMNS: usize = 4;
/// Lanes that store a row of a strip.
const LANES_PER_ROW: u32 = STRIP_COLUMNS / COLUMNS as u32;
/// Rows that a warp stores at a time.
const ROWS_PER_PASS: u32 = warp::SIZE / LANES_PER_ROW;

/// The word offset of `(row, column)` in a staging buffer. The rows that a half-warp writes at a time are kept apart by
/// exchanging 32-byte parts of a row by the row's number.
#[inline(always)]
const fn staging_word(row: u32, column: u32) -> u32 {
    row * STRIP_COLUMNS + (column ^ ((row % 4) * 8))
}

/// Applies `epilogue` to the accumulators of a warp, whose first row and column are `first`, rounds them, and stores those that are
/// within the output. Those that are not finite are added up again before, as `sums` says.
///
/// # Safety
///
/// All lanes of the warp call it, each with its own `lane`. `staging` is [`STAGING_BYTES`] bytes of shared memory that no other warp
/// touches, aligned to 16. No other warp has these places of the output, which is valid for writes; `epilogue` may be asked for
/// every row and column of it, `sums` for every element.
#[inline(always)]
pub(super) unsafe fn store<C: Accumulators, const PARTS: usize, O: Element, E: Epilogue>(
    accumulators: &Parts<C, PARTS>,
    sums: &impl Sums,
    epilogue: &E,
    output: &Output<O>,
    first: Coord,
    lane: u32,
    staging: SharedAddress,
) {
    // Strips of a part.
    let strips = const {
        assert!(C::COLUMNS.is_multiple_of(STRIP_COLUMNS), "strips cover the columns");
        C::COLUMNS / STRIP_COLUMNS
    };
    let place = |row: u32, column: u32| staging.offset(4 * staging_word(row, column)).get();
    let own = accumulator_coord(lane, 0);
    let (first_row, column) = (lane / LANES_PER_ROW, (lane % LANES_PER_ROW) * COLUMNS as u32);
    let vector_aligned = output.is_vector_aligned();
    let mut seen = Seen::nothing();
    for part in &accumulators.0 {
        for fragment in 0..const { (C::COLUMNS / FRAGMENT_COLUMNS) as usize } {
            seen.fragment(part.fragment(fragment));
        }
    }
    // SAFETY: all lanes of the warp are here.
    let has_infinities = unsafe { seen.has_infinities() };
    // Opaque numbers keep the loops as they are: the epilogue's code is larger than their overhead.
    let count = ptx::opaque(PARTS as u32 * strips);
    let mut strip = 0;
    while strip < count {
        for candidate in 0..PARTS as u32 * strips {
            // Registers have no index: each strip has its own stores.
            if strip == ptx::opaque(candidate) {
                let (part, of_part) = (candidate / strips, candidate % strips);
                for fragment in 0..STRIP_FRAGMENTS {
                    let of_part = of_part as usize * STRIP_FRAGMENTS + fragment;
                    let [c0, c1, c2, c3] = accumulators.0[part as usize].fragment(of_part);
                    let column = fragment as u32 * FRAGMENT_COLUMNS + own.column;
                    // SAFETY: within this warp's staging buffer, which no other warp touches.
                    unsafe {
                        ptx::st_shared_v2_f32(place(own.row, column), [c0, c1]);
                        ptx::st_shared_v2_f32(place(own.row + WARP_ROWS / 2, column), [c2, c3]);
                    }
                }
            }
        }
        let output_column = first.column + strip * STRIP_COLUMNS + column;
        // SAFETY: all lanes of the warp are here; the rest is the caller's promise.
        let columns = unsafe {
            warp::sync_warp();
            if has_infinities {
                let part = Staged {
                    first: Coord { column: first.column + strip * STRIP_COLUMNS, ..first },
                    end: Coord { row: output.rows, column: output.columns },
                    own: Coord { row: first_row, column },
                    rows: [ROWS_PER_PASS, WARP_ROWS],
                    columns: COLUMNS as u32,
                };
                part.mend(sums, place);
            }
            epilogue.columns::<COLUMNS>(output_column)
        };
        // The same number for all lanes, or ptxas would take the lanes for apart from here to the next tile's products.
        let passes = ptx::opaque(WARP_ROWS / ROWS_PER_PASS);
        let mut pass = 0;
        while pass < passes {
            let row = first_row + pass * ROWS_PER_PASS;
            let at = Coord { row: first.row + row, column: output_column };
            // SAFETY: written before the barrier, by this warp; the caller's promise. Every element of the tile belongs to
            // one lane of one warp, and the lanes of a row have four neighbouring columns each.
            unsafe {
                let staged = ptx::ld_shared_v4_f32(place(row, column));
                let result = epilogue.apply(at, epilogue.row(at.row), columns, staged);
                output.store_4(at.row, at.column, result, vector_aligned);
            }
            pass += 1;
        }
        // SAFETY: all lanes of the warp are here.
        unsafe { warp::sync_warp() };
        strip += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::{STRIP_COLUMNS, WARP_ROWS, staging_word};
    use crate::layout::accumulator_coord;
    use std::collections::HashSet;

    #[test]
    fn staging_is_a_bijection() {
        let words: HashSet<u32> = (0..WARP_ROWS)
            .flat_map(|row| (0..STRIP_COLUMNS).map(move |column| staging_word(row, column)))
            .collect();
        assert_eq!(words.len() as u32, WARP_ROWS * STRIP_COLUMNS);
        assert!(words.iter().all(|&word| word < WARP_ROWS * STRIP_COLUMNS));
    }

    /// Stores of eight bytes are served a half-warp at a time, loads of sixteen a quarter-warp.
    #[test]
    fn staging_has_no_bank_conflicts() {
        let banks =
            |words: &mut dyn Iterator<Item = u32>| words.map(|word| word % 32).collect::<HashSet<_>>().len();
        for fragment in 0..4 {
            for half in 0..2 {
                let mut words = (16 * half..16 * half + 16).flat_map(|lane| {
                    let at = accumulator_coord(lane, 0);
                    let word = staging_word(at.row, fragment * 8 + at.column);
                    [word, word + 1]
                });
                assert_eq!(banks(&mut words), 32);
            }
        }
        for row in 0..WARP_ROWS {
            let mut words = (0..8).flat_map(|lane| (0..4).map(move |i| staging_word(row, 4 * lane) + i));
            assert_eq!(banks(&mut words), 32);
        }
    }
}
