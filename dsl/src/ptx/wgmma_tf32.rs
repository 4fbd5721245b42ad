//! `wgmma` on f32 operands, of which it multiplies what TF32 keeps: the sign, the exponent and the upper 10 bits of the fraction.
//!
//! The other 13 bits do not count, so a number is cut off towards zero unless it has been rounded before, by the copy engine
//! for one. A row's 32 bytes are eight numbers. TF32 operands are K-major: no form transposes them.

use super::wgmma::{Accumulators, MatrixDescriptor, Wgmma};

/// A type of inputs whose products `wgmma` adds to accumulators `C` with A in registers.
pub trait WgmmaRegisters<C: Accumulators>: Sized {
    /// `c = a bᵀ`, or with `ACCUMULATE` `c += a bᵀ`, over the next 32 bytes along K of 64 rows of A and as many rows of `b` as `c` has
    /// columns.
    ///
    /// Each warp has 16 rows of A, as `ldmatrix.x4` loads them: register 0 is row `lane / 4`, word `lane % 4` of the 32 bytes;
    /// register 1 the row eight further on; registers 2 and 3 the same rows' words four further on.
    ///
    /// # Safety
    ///
    /// As [`Wgmma::wgmma`]. A [`wgmma_fence`](super::wgmma_fence) orders the product after what wrote `a`, and nothing writes
    /// `a` before a wait for the product's group.
    unsafe fn wgmma_registers<const ACCUMULATE: bool>(c: &mut C, a: [u32; 4], b: MatrixDescriptor);
}

macro_rules! wgmma_tf32 {
    ($columns:literal, $registers:literal, [$first:literal $($index:literal)*]) => {
        #[doc = concat!("`wgmma.mma_async.sync.aligned.m64n", $columns, "k8.f32.tf32.tf32`, both operands in shared memory.")]
        impl Wgmma<[f32; $registers]> for f32 {
            const TRANSPOSES: bool = false;

            #[inline(always)]
            unsafe fn wgmma<const A_MN: bool, const B_MN: bool>(
                c: &mut [f32; $registers],
                a: MatrixDescriptor,
                b: MatrixDescriptor,
            ) {
                // SAFETY: the caller's promise is the instruction's.
                unsafe {
                    instruction!(
                        concat!(
                            "wgmma.mma_async.sync.aligned.m64n", $columns, "k8.f32.tf32.tf32 {{{", $first, "}"
                            $(, ", {", $index, "}")*, "}}, {a}, {b}, 1, 1, 1;"
                        ),
                        inout(reg32) c[$first], $(inout(reg32) c[$index],)*
                        a = in(reg64) a.bits(), b = in(reg64) b.bits(),
                        options(nostack)
                    )
                }
            }

            #[inline(always)]
            unsafe fn wgmma_from_zero<const A_MN: bool, const B_MN: bool>(
                c: &mut [f32; $registers],
                a: MatrixDescriptor,
                b: MatrixDescriptor,
            ) {
                // SAFETY: the caller's promise is the instruction's.
                unsafe {
                    instruction!(
                        concat!(
                            "wgmma.mma_async.sync.aligned.m64n", $columns, "k8.f32.tf32.tf32 {{{", $first, "}"
                            $(, ", {", $index, "}")*, "}}, {a}, {b}, 0, 1, 1;"
                        ),
                        out(reg32) c[$first], $(out(reg32) c[$index],)*
                        a = in(reg64) a.bits(), b = in(reg64) b.bits(),
                        options(nostack)
                    )
                }
            }
        }
    };
}

macro_rules! wgmma_tf32_registers {
    ($columns:literal, $registers:literal, [$first:literal $($index:literal)*]) => {
        #[doc = concat!("`wgmma.mma_async.sync.aligned.m64n", $columns, "k8.f32.tf32.tf32`, A in registers.")]
        impl WgmmaRegisters<[f32; $registers]> for f32 {
            #[inline(always)]
            unsafe fn wgmma_registers<const ACCUMULATE: bool>(
                c: &mut [f32; $registers],
                a: [u32; 4],
                b: MatrixDescriptor,
            ) {
                // SAFETY: the caller's promise is the instruction's.
                unsafe {
                    if ACCUMULATE {
                        instruction!(
                            concat!(
                                "wgmma.mma_async.sync.aligned.m64n", $columns, "k8.f32.tf32.tf32 {{{", $first, "}"
                                $(, ", {", $index, "}")*, "}}, {{{a0}, {a1}, {a2}, {a3}}}, {b}, 1, 1, 1;"
                            ),
                            inout(reg32) c[$first], $(inout(reg32) c[$index],)*
                            a0 = in(reg32) a[0], a1 = in(reg32) a[1], a2 = in(reg32) a[2], a3 = in(reg32) a[3],
                            b = in(reg64) b.bits(),
                            options(nostack)
                        )
                    } else {
                        instruction!(
                            concat!(
                                "wgmma.mma_async.sync.aligned.m64n", $columns, "k8.f32.tf32.tf32 {{{", $first, "}"
                                $(, ", {", $index, "}")*, "}}, {{{a0}, {a1}, {a2}, {a3}}}, {b}, 0, 1, 1;"
                            ),
                            out(reg32) c[$first], $(out(reg32) c[$index],)*
                            a0 = in(reg32) a[0], a1 = in(reg32) a[1], a2 = in(reg32) a[2], a3 = in(reg32) a[3],
                            b = in(reg64) b.bits(),
                            options(nostack)
                        )
                    }
                }
            }
        }
    };
}

wgmma_tf32!(
    128, 64,
    [
        0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 33
            34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59 60 61 62
            63
    ]
);
wgmma_tf32!(
    256, 128,
    [
        0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 33
            34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59 60 61 62
            63 64 65 66 67 68 69 70 71 72 73 74 75 76 77 78 79 80 81 82 83 84 85 86 87 88 89 90 91
            92 93 94 95 96 97 98 99 100 101 102 103 104 105 106 107 108 109 110 111 112 113 114 115
            116 117 118 119 120 121 122 123 124 125 126 127
    ]
);
wgmma_tf32_registers!(
    64, 32,
    [
        0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31
    ]
);
wgmma_tf32_registers!(
    128, 64,
    [
        0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 33
            34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59 60 61 62
            63
    ]
);
