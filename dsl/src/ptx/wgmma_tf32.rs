//! `wgmma` on f32 operands, of which it multiplies what TF32 keeps: the sign, the exponent and the upper 10 bits of the fraction.
//!
//! The other 13 bits do not count, so a number is cut off towards zero unless it has been rounded before, by the copy engine
//! for one. A row's 32 bytes are eight numbers. TF32 operands are K-major: no form transposes them.

use super::wgmma::{Accumulators, MatrixDescriptor, Wgmma, for_columns, product};

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
    ($columns:literal, $registers:literal, $indices:tt) => {
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
                    product!(
                        $columns, $indices c, ["k8.f32.tf32.tf32"], "{a}, {b}, 1, 1, 1",
                        a = in(reg64) a.bits(), b = in(reg64) b.bits(),
                    )
                }
            }

            #[inline(always)]
            unsafe fn wgmma_if<const A_MN: bool, const B_MN: bool>(
                c: &mut [f32; $registers],
                a: MatrixDescriptor,
                b: MatrixDescriptor,
                keep: u32,
            ) {
                // SAFETY: the caller's promise is the instruction's.
                unsafe {
                    product!(
                        $columns, $indices c, ["k8.f32.tf32.tf32"], "{a}, {b}, keep, 1, 1",
                        keep = keep, a = in(reg64) a.bits(), b = in(reg64) b.bits(),
                    )
                }
            }
        }
    };
}

macro_rules! wgmma_tf32_registers {
    ($columns:literal, $registers:literal, $indices:tt) => {
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
                    product!(
                        $columns, $indices c, ["k8.f32.tf32.tf32"], "{{{a0}, {a1}, {a2}, {a3}}}, {b}, {accumulate}, 1, 1",
                        a0 = in(reg32) a[0], a1 = in(reg32) a[1], a2 = in(reg32) a[2], a3 = in(reg32) a[3],
                        b = in(reg64) b.bits(), accumulate = const ACCUMULATE as u32,
                    )
                }
            }
        }
    };
}

for_columns!(16, wgmma_tf32!);
for_columns!(32, wgmma_tf32!);
for_columns!(64, wgmma_tf32!);
for_columns!(128, wgmma_tf32!);
for_columns!(256, wgmma_tf32!);
for_columns!(64, wgmma_tf32_registers!);
for_columns!(128, wgmma_tf32_registers!);
