//! What a tile does with elements of 16 and of 32 bits: how weights and values become operands of a product.

use crate::float::{Bf16, F16, HalfElement, Stored};
use crate::gemm::MmaElement;
use crate::layout::{CHUNK_BYTES, ChunkIndex, accumulator_coord, across_chunk};
use crate::ptx::{self, Accumulators};
use crate::shared::SharedAddress;
use crate::tile::registers::Fragment;

/// An element type of tiles.
pub trait PortableElement: MmaElement {
    /// Indices along K that a product takes: 32 bytes.
    const STEP: u32 = 32 / Self::BYTES;

    /// The weights of a step's keys as an operand A. Which index along K a key has is that of [`values`](Self::values).
    fn weights<C: Accumulators>(weights: &Fragment<C>, step: usize) -> [u32; 4];

    /// The values of a step's keys in 16 columns from `column` on: two operands B, of eight columns each. `at` says where a key has a byte.
    ///
    /// # Safety
    ///
    /// All lanes of the warp call it, each with its number. The values have come.
    unsafe fn values(at: impl Fn(u32, u32) -> SharedAddress, lane: u32, column: u32) -> [u32; 4];
}

/// Of a product of 16 indices, accumulators of two fragments are an operand A as they are.
macro_rules! half {
    ($($element:ident),*) => {
        $(
            impl PortableElement for $element {
                #[inline(always)]
                fn weights<C: Accumulators>(weights: &Fragment<C>, step: usize) -> [u32; 4] {
                    let all = weights.0.as_ref();
                    core::array::from_fn(|register| {
                        let first = 8 * step + 2 * register;
                        Self::pack([all[first], all[first + 1]])
                    })
                }

                #[inline(always)]
                unsafe fn values(
                    at: impl Fn(u32, u32) -> SharedAddress,
                    lane: u32, column: u32
                ) -> [u32; 4] {
                    let of_lane: ChunkIndex = across_chunk(lane);
                    let byte = column * Self::BYTES + of_lane.chunk * CHUNK_BYTES;
                    // SAFETY: the caller's promise.
                    unsafe { ptx::ldmatrix_x4_trans(at(of_lane.row, byte).get()) }
                }
            }
        )*
    };
}
half!(F16, Bf16);

/// Of a product of eight indices, a lane has weights of the keys 2 · i and 2 · i + 1 of a fragment, and an operand A has indices i and i + 4. So these keys have these
/// indices: the order of keys is nobody's concern, if values have it too.
impl PortableElement for f32 {
    #[inline(always)]
    fn weights<C: Accumulators>(weights: &Fragment<C>, step: usize) -> [u32; 4] {
        let [a, b, c, d] = weights.0.fragment(step);
        [a, c, b, d].map(f32::to_bits)
    }

    #[inline(always)]
    unsafe fn values(at: impl Fn(u32, u32) -> SharedAddress, lane: u32, column: u32) -> [u32; 4] {
        // A lane's columns of a fragment are its keys, and its row is its column.
        let own = accumulator_coord(lane, 0);
        // SAFETY: the caller's promise.
        let load = |key: u32, group: u32| unsafe {
            let column = column + 8 * group + own.row;
            ptx::ld_shared_b32(at(own.column + key, column * Self::BYTES).get())
        };
        [load(0, 0), load(1, 0), load(0, 1), load(1, 1)]
    }
}
