//! Element types, by words of four bytes.

// Loops over registers index arrays by constants: an iterator by value would be an array in local memory.
#![allow(clippy::needless_range_loop, clippy::manual_memcpy)]

use crate::float::{Bf16, Element, F16, HalfElement};
use crate::ptx;
use crate::rows::Kind;

/// An element type of rows. `PER` is always the number of elements in 16 bytes.
pub trait RowElement: Element {
    /// The type as a kernel is told it.
    const KIND: Kind;

    /// A word of −∞.
    const LEAST: u32;

    /// A word of the larger elements of two; NaN where either is NaN.
    fn max_of(a: u32, b: u32) -> u32;

    /// The largest element of some chunks of four words, NaN if any is NaN.
    #[inline(always)]
    fn max_of_all<const PER: usize, const CHUNKS: usize>(chunks: &[[u32; 4]; CHUNKS]) -> f32 {
        let words = PER * Self::BYTES as usize / 4;
        let mut max = chunks[0];
        for c in 1..CHUNKS {
            for word in 0..words {
                max[word] = Self::max_of(max[word], chunks[c][word]);
            }
        }
        for word in 1..words {
            max[0] = Self::max_of(max[0], max[word]);
        }
        Self::max_in(max[0])
    }

    /// The largest element of a word; NaN if any is NaN.
    fn max_in(word: u32) -> f32;

    /// Makes element `j` of four words −∞ unless the condition holds.
    #[inline(always)]
    fn keep_if(words: &mut [u32; 4], j: usize, condition: bool) {
        let (word, own) = if Self::BYTES == 2 { (j / 2, 0xffff << (j % 2 * 16)) } else { (j, u32::MAX) };
        let without = words[word] & !own | Self::LEAST & own;
        words[word] = if condition { words[word] } else { without };
    }

    /// The elements of four words in f32.
    fn unpack<const PER: usize>(words: [u32; 4]) -> [f32; PER];

    /// Numbers rounded to the nearest elements, ties to even.
    fn pack<const PER: usize>(values: [f32; PER]) -> [u32; 4];

    /// The bits of the element at an address if `condition` holds, else 0.
    ///
    /// # Safety
    ///
    /// If `condition` holds, the address is one of an element, which no other thread writes.
    unsafe fn load_bits_if(address: u64, condition: bool) -> u32;

    /// As [`load_bits_if`](Self::load_bits_if), with the bits of −∞ unless the condition holds.
    ///
    /// # Safety
    ///
    /// As [`load_bits_if`](Self::load_bits_if).
    unsafe fn load_bits_or_least(address: u64, condition: bool) -> u32;

    /// Four words of elements with these bits.
    fn join<const PER: usize>(bits: [u32; PER]) -> [u32; 4];
}

macro_rules! half {
    ($element:ident, $kind:ident, $least:literal, $max:ident) => {
        impl RowElement for $element {
            const KIND: Kind = Kind::$kind;
            const LEAST: u32 = $least;

            #[inline(always)]
            fn max_of(a: u32, b: u32) -> u32 {
                ptx::$max(a, b)
            }

            #[inline(always)]
            fn max_in(word: u32) -> f32 {
                let [low, high] = <$element as HalfElement>::unpack(word);
                ptx::max_nan(low, high)
            }

            #[inline(always)]
            fn unpack<const PER: usize>(words: [u32; 4]) -> [f32; PER] {
                let mut values = [0.0; PER];
                for pair in 0..PER / 2 {
                    let [low, high] = <$element as HalfElement>::unpack(words[pair]);
                    values[2 * pair] = low;
                    values[2 * pair + 1] = high;
                }
                values
            }

            #[inline(always)]
            fn pack<const PER: usize>(values: [f32; PER]) -> [u32; 4] {
                let mut words = [0; 4];
                for pair in 0..PER / 2 {
                    words[pair] = <$element as HalfElement>::pack([values[2 * pair], values[2 * pair + 1]]);
                }
                words
            }

            #[inline(always)]
            unsafe fn load_bits_if(address: u64, condition: bool) -> u32 {
                // SAFETY: the caller's promise.
                unsafe { ptx::ld_global_b16_in_order_if(address, condition) as u32 }
            }

            #[inline(always)]
            unsafe fn load_bits_or_least(address: u64, condition: bool) -> u32 {
                // SAFETY: the caller's promise.
                unsafe { ptx::ld_global_b16_in_order_or(address, condition, Self::LEAST as u16) as u32 }
            }

            #[inline(always)]
            fn join<const PER: usize>(bits: [u32; PER]) -> [u32; 4] {
                let mut words = [0; 4];
                for pair in 0..PER / 2 {
                    words[pair] = ptx::word_of(bits[2 * pair] as u16, bits[2 * pair + 1] as u16);
                }
                words
            }
        }
    };
}
half!(F16, F16, 0xfc00_fc00, max_nan_f16x2);
half!(Bf16, BF16, 0xff80_ff80, max_nan_bf16x2);

impl RowElement for f32 {
    const KIND: Kind = Kind::F32;
    const LEAST: u32 = 0xff80_0000;

    #[inline(always)]
    fn max_of(a: u32, b: u32) -> u32 {
        ptx::max_nan(f32::from_bits(a), f32::from_bits(b)).to_bits()
    }

    #[inline(always)]
    fn max_in(word: u32) -> f32 {
        f32::from_bits(word)
    }

    #[inline(always)]
    fn unpack<const PER: usize>(words: [u32; 4]) -> [f32; PER] {
        let mut values = [0.0; PER];
        for i in 0..PER {
            values[i] = f32::from_bits(words[i]);
        }
        values
    }

    #[inline(always)]
    fn pack<const PER: usize>(values: [f32; PER]) -> [u32; 4] {
        let mut words = [0; 4];
        for i in 0..PER {
            words[i] = values[i].to_bits();
        }
        words
    }

    #[inline(always)]
    unsafe fn load_bits_if(address: u64, condition: bool) -> u32 {
        // SAFETY: the caller's promise.
        unsafe { ptx::ld_global_b32_in_order_if(address, condition) }
    }

    #[inline(always)]
    unsafe fn load_bits_or_least(address: u64, condition: bool) -> u32 {
        // SAFETY: the caller's promise.
        let bits = unsafe { ptx::ld_global_b32_in_order_if(address, condition) };
        if condition { bits } else { Self::LEAST }
    }

    #[inline(always)]
    fn join<const PER: usize>(bits: [u32; PER]) -> [u32; 4] {
        let mut words = [0; 4];
        for i in 0..PER {
            words[i] = bits[i];
        }
        words
    }
}
