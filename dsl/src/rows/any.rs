//! Chunks of operands of any type as memory holds them, so that a thread can load all of them before it waits for one.

// Registers are indexed by constants: an iterator over several arrays at once might put them in memory.
#![allow(clippy::needless_range_loop, clippy::manual_memcpy)]

use crate::float::{Bf16, Element, F16, HalfElement};
use crate::ptx;
use crate::rows::{AnyRows, Columns, Kind};

impl<const PER: usize, const VECTOR: bool> Columns<PER, VECTOR> {
    /// A chunk of row `row` of an operand, for [`unpack_any`]: zeros where there is no column. Nothing waits for it.
    ///
    /// # Safety
    ///
    /// As [`load_words`](Self::load_words).
    #[inline(always)]
    #[must_use]
    pub unsafe fn load_any(&self, of: &AnyRows, row: u32, chunk: u32) -> [u32; PER] {
        let (at, mut words) = (of.row(row), [0; PER]);
        if of.kind == Kind::F32 {
            for j in 0..PER {
                let (place, is_there) = (self.at(at, 4, chunk, j), self.has(chunk, j));
                if VECTOR && j % 4 == 0 {
                    // SAFETY: the caller's promise.
                    let four = unsafe { ptx::ld_global_v4_b32_if(place, is_there) };
                    for i in 0..4 {
                        words[j + i] = four[i];
                    }
                } else if !VECTOR {
                    // SAFETY: as above.
                    words[j] = unsafe { ptx::ld_global_f32_if(place, is_there) }.to_bits();
                }
            }
            return words;
        }
        for j in 0..PER {
            let (place, is_there) = (self.at(at, 2, chunk, j), self.has(chunk, j));
            if VECTOR && PER == 4 && j == 0 {
                // SAFETY: the caller's promise.
                let two = unsafe { ptx::ld_global_v2_b32_if(place, is_there) };
                for i in 0..2 {
                    words[i] = two[i];
                }
            } else if VECTOR && j == 0 {
                // SAFETY: as above.
                let four = unsafe { ptx::ld_global_v4_b32_if(place, is_there) };
                for i in 0..4 {
                    words[i] = four[i];
                }
            } else if !VECTOR {
                // SAFETY: as above.
                words[j] = unsafe { ptx::ld_global_b16_if(place, is_there) } as u32;
            }
        }
        words
    }

    /// Whether the row has all neighbours of this thread's chunk `chunk`, if it has the first.
    #[inline(always)]
    #[must_use]
    pub fn is_whole(&self, chunk: u32) -> bool {
        self.column(chunk, 0) + PER as u32 <= self.columns
    }

    /// A chunk of neighbours in a row of a type at `row`, of which some are missing: zeros in their place.
    ///
    /// # Safety
    ///
    /// As [`load_words`](Self::load_words).
    #[inline(always)]
    #[must_use]
    pub unsafe fn load_cut(&self, kind: Kind, row: u64, chunk: u32) -> [f32; PER] {
        let (first, mut values) = (self.column(chunk, 0), [0.0; PER]);
        for j in 0..PER {
            let column = first + j as u32;
            let (at, is_there) = (row + column as u64 * kind.bytes() as u64, column < self.columns);
            // SAFETY: the caller's promise.
            unsafe {
                if kind == Kind::F32 {
                    values[j] = ptx::ld_global_f32_if(at, is_there);
                } else {
                    let bits = ptx::ld_global_b16_if(at, is_there);
                    values[j] = if kind == Kind::F16 { F16(bits).to_f32() } else { Bf16(bits).to_f32() };
                }
            }
        }
        values
    }

    /// Rounds numbers to the type of an operand, and stores those that there are of a chunk of neighbours in its row `row`.
    ///
    /// # Safety
    ///
    /// As [`store_words`](Self::store_words).
    #[inline(always)]
    pub unsafe fn store_cut(&self, to: &AnyRows, row: u32, chunk: u32, values: [f32; PER]) {
        let first = self.column(chunk, 0);
        for j in 0..PER {
            if first + (j as u32) < self.columns {
                // SAFETY: the caller's promise.
                unsafe { to.store(row, first + j as u32, values[j]) };
            }
        }
    }
}

/// A chunk that [`load_any`](Columns::load_any) has loaded, in f32.
#[inline(always)]
#[must_use]
pub fn unpack_any<const PER: usize, const VECTOR: bool>(kind: Kind, words: [u32; PER]) -> [f32; PER] {
    let mut values = [0.0; PER];
    if kind == Kind::F32 {
        for j in 0..PER {
            values[j] = f32::from_bits(words[j]);
        }
    } else if kind == Kind::F16 {
        unpack_half::<F16, PER, VECTOR>(&words, &mut values, F16);
    } else {
        unpack_half::<Bf16, PER, VECTOR>(&words, &mut values, Bf16);
    }
    values
}

#[inline(always)]
fn unpack_half<H: HalfElement, const PER: usize, const VECTOR: bool>(
    words: &[u32; PER],
    values: &mut [f32; PER],
    of_bits: impl Fn(u16) -> H,
) {
    for j in 0..PER {
        if !VECTOR {
            values[j] = of_bits(words[j] as u16).to_f32();
        } else if j % 2 == 0 {
            let [low, high] = H::unpack(words[j / 2]);
            values[j] = low;
            values[j + 1] = high;
        }
    }
}
