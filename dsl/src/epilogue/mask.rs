//! How the lanes of a warp put the bits of a mask together.
//!
//! Of accumulators in the layout of `mma`, four lanes have a row's columns: each two neighbours out of eight. So a word of the mask, of 32
//! columns, has two bits of every eight from each of them.

use crate::ptx;

/// What a byte is counted up from: an f32 from which on a step is 1, so that the bits of the sum end with the byte.
const BYTE: f32 = (1 << 23) as f32;

/// Whether each number is above 0, as bits from the lowest on. There is a byte for the upper row of the first `N`
/// fragments, one for their lower row, and so on for the next `N`. There are one or two times `N` fragments.
#[inline(always)]
pub(super) fn bits_above_zero<const N: usize>(fragments: &[[[f32; 4]; N]]) -> u32 {
    const { assert!(2 * N as u32 == u8::BITS, "a byte for each row") };
    let mut bytes = [[0; 2]; 2];
    for (bytes, fragments) in bytes.iter_mut().zip(fragments) {
        for (half, byte) in bytes.iter_mut().enumerate() {
            let mut sum = BYTE;
            for (f, fragment) in fragments.iter().enumerate() {
                for c in 0..2 {
                    // 1 if the number is above 0, else 0: infinity times zero is no number, and saturates to zero. Multiplications, because there
                    // are twice as many units for them as for comparisons and shifts.
                    let is_above = ptx::fma_sat(fragment[2 * half + c], f32::INFINITY, 0.0);
                    sum = ptx::fma(is_above, (1 << (2 * f + c)) as f32, sum);
                }
            }
            *byte = sum.to_bits();
        }
    }
    let [first, second] = bytes.map(|[upper, lower]| ptx::prmt(upper, lower, 0x0040));
    if fragments.len() > 1 { ptx::prmt(first, second, 0x5410) } else { first }
}

/// The word number `own` of those whose bits four lanes have. `bits[d]` are those of the lane whose number differs from
/// `own` by the exclusive or with `d`. There is a byte for each word, in which the pairs of bits follow each other.
#[inline(always)]
pub(super) fn word(own: u32, bits: [u32; 4]) -> u32 {
    word_by(own, bits, ptx::prmt)
}

/// As [`word`], by a function that picks bytes as `prmt` does.
#[inline(always)]
fn word_by(own: u32, bits: [u32; 4], pick: impl Fn(u32, u32, u32) -> u32) -> u32 {
    // Byte `own` of the lane `own` and of its neighbour, in the order of the lanes.
    let pair = own * 0x11 + if own.is_multiple_of(2) { 0x40 } else { 0x04 };
    let (near, far) = (pick(bits[0], bits[1], pair), pick(bits[2], bits[3], pair));
    transposed(pick(near, far, if own < 2 { 0x5410 } else { 0x1054 }))
}

/// A matrix of four rows of four pairs of bits, transposed.
#[inline(always)]
const fn transposed(matrix: u32) -> u32 {
    // The quarters beside the diagonal take each other's places, then the same within each quarter.
    swapped::<12>(swapped::<6>(matrix, 0x00cc_00cc), 0x0000_f0f0)
}

/// The bits of `low` in the places of those `DISTANCE` above, and the other way round.
#[inline(always)]
const fn swapped<const DISTANCE: u32>(bits: u32, low: u32) -> u32 {
    let differing = (bits ^ bits >> DISTANCE) & low;
    bits ^ differing ^ differing << DISTANCE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transposing_exchanges_rows_and_columns() {
        for row in 0..4 {
            for column in 0..4 {
                for bit in 0..2 {
                    let at = |row: u32, column: u32| 1 << (8 * row + 2 * column + bit);
                    assert_eq!(transposed(at(row, column)), at(column, row));
                }
            }
        }
    }

    fn pick(a: u32, b: u32, selector: u32) -> u32 {
        let bytes = (u64::from(b) << 32 | u64::from(a)).to_le_bytes();
        u32::from_le_bytes([0, 4, 8, 12].map(|at| bytes[(selector >> at & 7) as usize]))
    }

    /// Each lane has two of eight columns of four words.
    #[test]
    fn four_lanes_put_their_words_together() {
        let words = [0x0123_4567, 0x89ab_cdef, 0xdead_beef, 0x5555_aaaa];
        let of_lane = |lane: u32| {
            let byte = |word: u32| (0..4).fold(0, |all, i| all | (word >> (8 * i + 2 * lane) & 3) << (2 * i));
            words.iter().enumerate().fold(0, |all, (i, &word)| all | byte(word) << (8 * i))
        };
        for (own, &expected) in words.iter().enumerate() {
            let own = own as u32;
            let bits = [0, 1, 2, 3].map(|distance| of_lane(own ^ distance));
            assert_eq!(word_by(own, bits, pick), expected);
        }
    }
}
