//! Chunks of operands of any type as they lie, so that a thread can load all of them before it waits for one.

// Registers are indexed by constants: an iterator over several arrays at once might put them in memory.
#![allow(clippy::needless_range_loop, clippy::manual_memcpy)]

use crate::float::{Bf16, F16, HalfElement};
use crate::ptx;
use crate::rows::{AnyRows, Columns, Kind};

impl<const PER: usize, const VECTOR: bool> Columns<PER, VECTOR> {
    /// The chunks from `first` on of row `row` of an operand, for [`unpack_any`]: zeros where there is no column.
    ///
    /// # Safety
    ///
    /// As [`load_words`](Self::load_words).
    #[inline(always)]
    #[must_use]
    pub unsafe fn load_any<const CHUNKS: usize>(
        &self,
        of: &AnyRows,
        row: u32,
        first: u32,
    ) -> [[u32; PER]; CHUNKS] {
        let (at, mut chunks) = (of.row(row), [[0; PER]; CHUNKS]);
        // One branch for all chunks, in which nothing waits.
        if of.kind == Kind::F32 {
            for c in 0..CHUNKS {
                for j in 0..PER {
                    let chunk = first + c as u32;
                    let (place, is_there) = (at + self.column(chunk, j) as u64 * 4, self.has(chunk, j));
                    if VECTOR && j % 4 == 0 {
                        // SAFETY: the caller's promise.
                        let four = unsafe { ptx::ld_global_v4_b32_if(place, is_there) };
                        for i in 0..4 {
                            chunks[c][j + i] = four[i];
                        }
                    } else if !VECTOR {
                        // SAFETY: as above.
                        chunks[c][j] = unsafe { ptx::ld_global_f32_if(place, is_there) }.to_bits();
                    }
                }
            }
            return chunks;
        }
        for c in 0..CHUNKS {
            for j in 0..PER {
                let chunk = first + c as u32;
                let (place, is_there) = (at + self.column(chunk, j) as u64 * 2, self.has(chunk, j));
                if VECTOR && PER == 4 && j == 0 {
                    // SAFETY: the caller's promise.
                    let two = unsafe { ptx::ld_global_v2_b32_if(place, is_there) };
                    for i in 0..2 {
                        chunks[c][i] = two[i];
                    }
                } else if VECTOR && j == 0 {
                    // SAFETY: as above.
                    let four = unsafe { ptx::ld_global_v4_b32_if(place, is_there) };
                    for i in 0..4 {
                        chunks[c][i] = four[i];
                    }
                } else if !VECTOR {
                    // SAFETY: as above.
                    chunks[c][j] = unsafe { ptx::ld_global_b16_if(place, is_there) } as u32;
                }
            }
        }
        chunks
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
