//! Products of 8-bit floating-point types by `mma.sync`, whose sums keep f32's accuracy; sm_89 and later.
//!
//! The main loop is that of [`mma_sync`](super::mma_sync). A k-step of 32 bytes is 32 elements along K, and the fragments are the same
//! bytes as those of 16-bit types.
//!
//! Ada's tensor cores keep 13 bits of such a sum, as [Hopper's](super::wgmma) do. So they add up no more than a slot of the ring at a
//! time, 128 elements along K, each time from zero. Ordinary additions add that to accumulators in f32 (*promotion*).

use core::marker::PhantomData;

use super::element::products_of_words;
use super::mma_sync::MmaTile;
use super::{MmaProducts, Rule, TileShape};
use crate::float::{F8E4M3, F8E5M2};
use crate::layout::TileIndex;
use crate::ptx;
use crate::tile::{Aligned, Operand};

/// Elements along K that the tensor cores add up before their sums are promoted.
const PROMOTED: u32 = 128;

/// Products of numbers of type `A` with numbers of type `B`: [`F8E4M3`] or [`F8E5M2`] each.
#[derive(Clone, Copy, Debug)]
pub struct Fp8Products<A, B>(PhantomData<(A, B)>);

products_of_words!(Fp8Products<F8E4M3, F8E4M3>, mma_m16n8k32_e4m3_e4m3, is_promoted = true);
products_of_words!(Fp8Products<F8E4M3, F8E5M2>, mma_m16n8k32_e4m3_e5m2, is_promoted = true);
products_of_words!(Fp8Products<F8E5M2, F8E4M3>, mma_m16n8k32_e5m2_e4m3, is_promoted = true);
products_of_words!(Fp8Products<F8E5M2, F8E5M2>, mma_m16n8k32_e5m2_e5m2, is_promoted = true);

/// A tile whose products are of 8-bit types, the bytes of each operand of a type of their own.
pub trait Fp8Shape: TileShape {
    /// The product of the rows of `a` and of `b` that output tile `tile` needs, multiplied as `Q` says.
    ///
    /// # Safety
    ///
    /// As [`TileShape::multiply`], for bytes at addresses and with strides that are multiples of 16.
    unsafe fn multiply_bytes<Q: MmaProducts>(
        a: Operand<u8>,
        b: Operand<u8>,
        tile: TileIndex,
    ) -> Self::Accumulators;
}

impl<
    const MI: usize,
    const NI: usize,
    const WM: u32,
    const WN: u32,
    const STAGES: u32,
    const ROW_BYTES: u32,
    P: Rule,
> Fp8Shape for MmaTile<MI, NI, WM, WN, STAGES, ROW_BYTES, P>
{
    #[inline(always)]
    unsafe fn multiply_bytes<Q: MmaProducts>(
        a: Operand<u8>,
        b: Operand<u8>,
        tile: TileIndex,
    ) -> Self::Accumulators {
        const { assert!(ROW_BYTES == PROMOTED, "a slot has what the tensor cores add up") };
        // SAFETY: the caller's promise.
        unsafe { Self::multiply_rows::<u8, Aligned, Q>(a, b, tile) }
    }
}
