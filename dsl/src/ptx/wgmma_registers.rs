//! `wgmma` with A in registers. PTX ISA 8.0, sm_90a.
//!
//! What [`wgmma`](super::wgmma) says of fences, groups and accumulators holds here, too. A matrix A in registers is
//! held as `mma` holds it, 16 rows by each warp. With g = lane / 4 and t = lane mod 4, register 0 has columns 2t and
//! 2t + 1 of row g. Register 1 has those of row g + 8. Registers 2 and 3 have the columns eight further on. The
//! accumulators of eight columns, rounded and packed in pairs, have the layout of registers 0 and 1 or 2 and 3.

use super::wgmma::{Accumulators, MatrixDescriptor, Wgmma, for_columns, product};
use crate::float::{Bf16, F16};

/// A 16-bit type whose products with accumulators `C` can have A in registers.
pub trait WgmmaHalfRegisters<C: Accumulators>: Wgmma<C> {
    /// `c += a bᵀ` over 16 indices along K, with `a` in registers and `b` MN-major.
    ///
    /// # Safety
    ///
    /// As [`Wgmma::wgmma`]. Nothing touches `a` before a wait for the product's group, either.
    unsafe fn wgmma_registers(c: &mut C, a: &[u32; 4], b: MatrixDescriptor);
}

/// No instruction: to the compiler, a use and a change of every register of `a`.
///
/// It stands between what computes a matrix A in registers and the [fence](super::wgmma::wgmma_fence) before its products.
#[inline(always)]
pub fn hold_registers(a: &mut [u32; 4]) {
    // SAFETY: a comment.
    unsafe {
        instruction!(
            "// {0} {1} {2} {3}",
            inout(reg32) a[0], inout(reg32) a[1], inout(reg32) a[2], inout(reg32) a[3],
            options(nostack)
        )
    }
}

macro_rules! wgmma_registers {
    ($columns:literal, $registers:literal, $indices:tt $element:ident $type:literal) => {
        impl WgmmaHalfRegisters<[f32; $registers]> for $element {
            #[doc = concat!("`wgmma.mma_async.sync.aligned.m64n", $columns, "k16.f32.", $type, ".", $type, "`, A in registers, B transposed.")]
            #[inline(always)]
            unsafe fn wgmma_registers(c: &mut [f32; $registers], a: &[u32; 4], b: MatrixDescriptor) {
                // SAFETY: the caller's promise is the instruction's.
                unsafe {
                    product!(
                        $columns, $indices c, ["k16.f32." $type "." $type],
                        "{{{a0}, {a1}, {a2}, {a3}}}, {b}, 1, 1, 1, 1",
                        a0 = in(reg32) a[0], a1 = in(reg32) a[1], a2 = in(reg32) a[2], a3 = in(reg32) a[3],
                        b = in(reg64) b.bits(),
                    )
                }
            }
        }
    };
}

for_columns!(64, wgmma_registers! F16 "f16");
for_columns!(96, wgmma_registers! F16 "f16");
for_columns!(128, wgmma_registers! F16 "f16");
for_columns!(192, wgmma_registers! F16 "f16");
for_columns!(256, wgmma_registers! F16 "f16");
for_columns!(64, wgmma_registers! Bf16 "bf16");
for_columns!(96, wgmma_registers! Bf16 "bf16");
for_columns!(128, wgmma_registers! Bf16 "bf16");
for_columns!(192, wgmma_registers! Bf16 "bf16");
for_columns!(256, wgmma_registers! Bf16 "bf16");

#[cfg(test)]
mod tests {
    use crate::layout::accumulator_coord;

    /// Packed accumulators of columns 0 to 7 and of columns 8 to 15 are A's registers 0, 1 and 2, 3.
    #[test]
    fn packed_accumulators_lie_as_a_in_registers() {
        for lane in 0..32 {
            let (g, t) = (lane / 4, lane % 4);
            for register in 0..4 {
                let half = register / 2;
                for i in 0..2 {
                    let at = accumulator_coord(lane, 2 * (register % 2) + i);
                    assert_eq!(
                        (at.row, at.column + 8 * half),
                        (g + 8 * (register % 2), 2 * t + i + 8 * half)
                    );
                }
            }
        }
    }
}
