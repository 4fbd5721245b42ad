//! `wgmma` for 8-bit floating-point types, in all four combinations; PTX ISA 8.0, sm_90a.
//!
//! Both operands are K-major: for types of 8 bits the instruction knows no other order. What [`wgmma`](super::wgmma) says of fences,
//! groups and accumulators holds here, too.
//!
//! The tensor cores keep fewer bits of these sums than f32 has: terms and sum are aligned to the largest of them and cut to 13
//! bits behind its leading one.

use super::wgmma::{Accumulators, MatrixDescriptor, for_columns, product};
use crate::float::{F8E4M3, F8E5M2};

/// An 8-bit type of A whose products with the 8-bit type `B` `wgmma` adds up in accumulators `C`.
pub trait WgmmaFp8<B, C: Accumulators>: 'static {
    /// `c = a bᵀ`, or with `ACCUMULATE` `c += a bᵀ`, over the next 32 elements along K of 64 rows of `a` and as many rows of `b` as
    /// `c` has columns.
    ///
    /// # Safety
    ///
    /// All lanes of the four warps of an aligned warpgroup execute it with the same descriptors, which differ from one another in the
    /// address only, of shared memory that is written and visible to the async proxy. Nothing writes it, and nothing touches `c` but further products of this
    /// shape, before a wait for the product's group.
    unsafe fn wgmma<const ACCUMULATE: bool>(c: &mut C, a: MatrixDescriptor, b: MatrixDescriptor);
}

macro_rules! wgmma_fp8 {
    ($columns:literal, $registers:literal, $indices:tt) => {
        wgmma_fp8!($columns, $registers, $indices F8E4M3 "e4m3", F8E4M3 "e4m3");
        wgmma_fp8!($columns, $registers, $indices F8E4M3 "e4m3", F8E5M2 "e5m2");
        wgmma_fp8!($columns, $registers, $indices F8E5M2 "e5m2", F8E4M3 "e4m3");
        wgmma_fp8!($columns, $registers, $indices F8E5M2 "e5m2", F8E5M2 "e5m2");
    };
    ($columns:literal, $registers:literal, $indices:tt $a:ident $a_type:literal, $b:ident $b_type:literal) => {
        #[doc = concat!("`wgmma.mma_async.sync.aligned.m64n", $columns, "k32.f32.", $a_type, ".", $b_type, "`, both operands in shared memory.")]
        impl WgmmaFp8<$b, [f32; $registers]> for $a {
            // The descriptors are put together here: they differ in the lower halves only, and additions to these need no carry.
            #[inline(always)]
            unsafe fn wgmma<const ACCUMULATE: bool>(
                c: &mut [f32; $registers],
                a: MatrixDescriptor,
                b: MatrixDescriptor,
            ) {
                // SAFETY: the caller's promise is the instruction's.
                unsafe {
                    product!(
                        @ $columns, $indices c, ["k32.f32." $a_type "." $b_type], "a, b, {accumulate}, 1, 1",
                        "{{ .reg .b64 a, b; mov.b64 a, {{{a}, {high}}}; mov.b64 b, {{{b}, {high}}}; ", " }}",
                        a = in(reg32) a.low(), b = in(reg32) b.low(), high = in(reg32) a.high(),
                        accumulate = const ACCUMULATE as u32,
                    )
                }
            }
        }
    };
}

for_columns!(64, wgmma_fp8!);
for_columns!(128, wgmma_fp8!);
for_columns!(192, wgmma_fp8!);
