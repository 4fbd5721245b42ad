//! How the rows of a table of experts hold their numbers, and how a kernel makes f32 of them.

use crate::float::{Bf16, F8E4M3, F16, HalfElement};
use crate::ptx;

/// A format of rows: how many numbers a word of 32 bits holds, and which.
pub trait RowFormat: 'static {
    /// Numbers of a word: 1, 2, 4 or 8.
    const WORD: usize;
    /// Whether the numbers of a vector are codes, to be multiplied with a scale and to have a bias added.
    const IS_SCALED: bool;
    /// Units of half a set, of whose v a thread has a chunk each on their way: as many as its registers hold beside its sums.
    const HALF: usize = 4;

    /// Number `index` of a word, or its code: exactly, in f32.
    fn number(word: u32, index: usize) -> f32;

    /// The scale and the bias that this word stands for.
    #[inline(always)]
    #[must_use]
    fn scale_and_bias(word: u32) -> [f32; 2] {
        // Two f16, the scale in the lower half.
        F16::unpack(word)
    }
}

impl RowFormat for f32 {
    const WORD: usize = 1;
    const IS_SCALED: bool = false;

    #[inline(always)]
    fn number(word: u32, _: usize) -> f32 {
        f32::from_bits(word)
    }
}

impl RowFormat for F16 {
    const WORD: usize = 2;
    const IS_SCALED: bool = false;

    #[inline(always)]
    fn number(word: u32, index: usize) -> f32 {
        ptx::cvt_f32_f16((word >> (16 * index)) as u16)
    }
}

impl RowFormat for Bf16 {
    const WORD: usize = 2;
    const IS_SCALED: bool = false;

    #[inline(always)]
    fn number(word: u32, index: usize) -> f32 {
        f32::from_bits(if index == 0 { word << 16 } else { word & 0xffff_0000 })
    }
}

/// 2²³: added to an integer below it, it is a number whose lowest bits are the integer.
const TWO_23: f32 = 8_388_608.0;

/// Codes of 8 bits, from 0 to 255.
pub enum Int8 {}

impl RowFormat for Int8 {
    const WORD: usize = 4;
    const IS_SCALED: bool = true;

    #[inline(always)]
    fn number(word: u32, index: usize) -> f32 {
        f32::from_bits(ptx::prmt(word, TWO_23.to_bits(), 0x7650 | index as u32)) - TWO_23
    }
}

/// Codes of 4 bits, from 0 to 15; the lowest bits are the first one's.
pub enum Int4 {}

impl RowFormat for Int4 {
    const WORD: usize = 8;
    const IS_SCALED: bool = true;
    const HALF: usize = 2;

    /// A code stays where it is in its half of the word: so it is a multiple of a power of 16.
    #[inline(always)]
    fn number(word: u32, index: usize) -> f32 {
        let (half, place) = (word >> (index / 4 * 16), index % 4 * 4);
        let multiple = f32::from_bits(ptx::lop3_and_or(half, 0xf << place, TWO_23.to_bits()));
        let unit = 1.0 / (1u32 << place) as f32;
        if place == 0 { multiple - TWO_23 } else { ptx::fma(multiple, unit, -TWO_23 * unit) }
    }
}

impl RowFormat for F8E4M3 {
    const WORD: usize = 4;
    const IS_SCALED: bool = true;

    /// Sign, exponent and fraction move to where an f32 has them, which is 120 exponents too low. Rows hold no NaN.
    #[inline(always)]
    fn number(word: u32, index: usize) -> f32 {
        const REBIAS: f32 = f32::from_bits((127 + 127 - 7) << 23);
        let spread = ((word << (24 - 8 * index)) as i32 >> 4) as u32;
        f32::from_bits(spread & 0x87f0_0000) * REBIAS
    }

    /// An f32, the scale.
    #[inline(always)]
    fn scale_and_bias(word: u32) -> [f32; 2] {
        [f32::from_bits(word), 0.0]
    }
}

#[cfg(test)]
mod tests {
    use super::{RowFormat, TWO_23};
    use crate::float::{Bf16, F8E4M3, Float8};

    #[test]
    fn eight_bit_floats_are_widened_exactly() {
        for byte in (0..=255u32).filter(|byte| byte & 0x7f != 0x7f) {
            for index in 0..4 {
                let got = F8E4M3::number(byte << (8 * index) | !(0xff << (8 * index)) & 0xa5a5_a5a5, index);
                assert_eq!(got.to_bits(), <F8E4M3 as Float8>::to_f32(byte as u8).to_bits(), "{byte:#x}");
            }
        }
    }

    #[test]
    fn halves_of_a_word_are_its_two_numbers() {
        assert_eq!(Bf16::number(0xc040_3fc0, 0), 1.5);
        assert_eq!(Bf16::number(0xc040_3fc0, 1), -3.0);
        assert_eq!(f32::number(0x3fc0_0000, 0), 1.5);
    }

    /// What the conversion of codes of 4 bits relies on.
    #[test]
    fn multiples_of_powers_of_16_stand_in_the_lowest_bits_of_a_number() {
        for place in [0, 4, 8, 12] {
            for code in 0..16u32 {
                let multiple = f32::from_bits(code << place | TWO_23.to_bits());
                let unit = 1.0 / (1u32 << place) as f32;
                assert_eq!(multiple.mul_add(unit, -TWO_23 * unit), code as f32);
            }
        }
    }
}
