//! `wgmma` for 8-bit floating-point types, in all four combinations; PTX ISA 8.0, sm_90a.
//!
//! Both operands are K-major: for types of 8 bits the instruction knows no other order. What [`wgmma`](super::wgmma) says of fences,
//! groups and accumulators holds here, too.
//!
//! The tensor cores keep fewer bits of these sums than f32 has: terms and sum are aligned to the largest of them and cut to 13
//! bits behind its leading one.

use super::wgmma::{Accumulators, MatrixDescriptor};
use crate::float::{F8E4M3, F8E5M2};

/// An 8-bit type of A whose products with the 8-bit type `B` `wgmma` adds up in accumulators `C`.
pub trait WgmmaFp8<B, C: Accumulators>: 'static {
    /// `c = a bᵀ`, or with `ACCUMULATE` `c += a bᵀ`, over the next 32 elements along K of 64 rows of `a` and as many rows of `b` as
    /// `c` has columns.
    ///
    /// # Safety
    ///
    /// All lanes of the four warps of an aligned warpgroup execute it with the same descriptors, of shared memory that is
    /// written and visible to the async proxy. Nothing writes it, and nothing touches `c` but further products of this
    /// shape, before a wait for the product's group.
    unsafe fn wgmma<const ACCUMULATE: bool>(c: &mut C, a: MatrixDescriptor, b: MatrixDescriptor);
}

macro_rules! products {
    ($columns:literal, $registers:literal, $indices:tt) => {
        products!(@pair $columns, $registers, F8E4M3 "e4m3", F8E4M3 "e4m3", $indices);
        products!(@pair $columns, $registers, F8E4M3 "e4m3", F8E5M2 "e5m2", $indices);
        products!(@pair $columns, $registers, F8E5M2 "e5m2", F8E4M3 "e4m3", $indices);
        products!(@pair $columns, $registers, F8E5M2 "e5m2", F8E5M2 "e5m2", $indices);
    };
    (@pair $columns:literal, $registers:literal, $a:ident $a_type:literal, $b:ident $b_type:literal, [$first:literal $($index:literal)*]) => {
        #[doc = concat!("`wgmma.mma_async.sync.aligned.m64n", $columns, "k32.f32.", $a_type, ".", $b_type, "`, both operands in shared memory.")]
        impl WgmmaFp8<$b, [f32; $registers]> for $a {
            #[inline(always)]
            unsafe fn wgmma<const ACCUMULATE: bool>(
                c: &mut [f32; $registers],
                a: MatrixDescriptor,
                b: MatrixDescriptor,
            ) {
                // SAFETY: the caller's promise is the instruction's.
                unsafe {
                    instruction!(
                        concat!(
                            "wgmma.mma_async.sync.aligned.m64n", $columns, "k32.f32.", $a_type, ".", $b_type,
                            " {{{", $first, "}" $(, ", {", $index, "}")*, "}}, {a}, {b}, {accumulate}, 1, 1;"
                        ),
                        inout(reg32) c[$first], $(inout(reg32) c[$index],)*
                        a = in(reg64) a.bits(), b = in(reg64) b.bits(), accumulate = const ACCUMULATE as u32,
                        options(nostack)
                    )
                }
            }
        }
    };
}

products!(
    64, 32,
    [
        0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31
    ]
);
products!(
    128, 64,
    [
        0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32
        33 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59 60 61
        62 63
    ]
);
products!(
    192, 96,
    [
        0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59 60 61 62 63 64 65 66 67 68 69 70 71 72 73 74 75 76 77 78 79 80 81 82 83 84 85 86 87 88 89 90 91 92 93 94 95
    ]
);
