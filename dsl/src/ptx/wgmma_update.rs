//! `wgmma` for products that carry a low-rank update with them: with eight columns more. PTX ISA 8.0, sm_90a.
//!
//! What [`wgmma`](super::wgmma) says of fences, groups and accumulators holds here, too.

use super::wgmma::{Accumulators, MatrixDescriptor, for_columns};
use super::wgmma_registers::WgmmaHalfRegisters;
use crate::float::{Bf16, F16};

/// Columns by which a product may be wider than its accumulators `C`.
pub const EXTRA_COLUMNS: u32 = 8;

/// A 16-bit type whose products with accumulators `C` can be wider, and can have A in registers.
pub trait WgmmaUpdate<C: Accumulators>: WgmmaHalfRegisters<C> {
    /// As [`wgmma_if`](super::wgmma::Wgmma::wgmma_if) with both operands K-major, and with eight rows of `b` more, whose sums are `extra`.
    ///
    /// # Safety
    ///
    /// As [`wgmma_if`](super::wgmma::Wgmma::wgmma_if).
    unsafe fn wgmma_wider_if(
        c: &mut C,
        extra: &mut [f32; 4],
        a: MatrixDescriptor,
        b: MatrixDescriptor,
        keep: u32,
    );
}

/// As [`Accumulators::hold`], of the four sums of eight columns more.
#[inline(always)]
pub fn hold_sums(sums: &mut [f32; 4]) {
    // SAFETY: a comment.
    unsafe {
        instruction!(
            "// {0} {1} {2} {3}",
            inout(reg32) sums[0], inout(reg32) sums[1], inout(reg32) sums[2], inout(reg32) sums[3],
            options(nostack)
        )
    }
}

macro_rules! wgmma_update {
    ($columns:literal, $registers:literal, [$first:literal $($index:literal)*] $wider:literal $element:ident $type:literal) => {
        impl WgmmaUpdate<[f32; $registers]> for $element {
            #[doc = concat!("`wgmma.mma_async.sync.aligned.m64n", $wider, "k16.f32.", $type, ".", $type, "`, both operands in shared memory.")]
            #[inline(always)]
            unsafe fn wgmma_wider_if(
                c: &mut [f32; $registers],
                extra: &mut [f32; 4],
                a: MatrixDescriptor,
                b: MatrixDescriptor,
                keep: u32,
            ) {
                // SAFETY: the caller's promise is the instruction's.
                unsafe {
                    instruction!(
                        concat!(
                            "{{ .reg .pred keep; setp.ne.b32 keep, {keep}, 0; ",
                            "wgmma.mma_async.sync.aligned.m64n", $wider, "k16.f32.", $type, ".", $type,
                            " {{{", $first, "}" $(, ", {", $index, "}")*, ", {e0}, {e1}, {e2}, {e3}}}, ",
                            "{a}, {b}, keep, 1, 1, 0, 0; }}"
                        ),
                        inout(reg32) c[$first], $(inout(reg32) c[$index],)*
                        e0 = inout(reg32) extra[0], e1 = inout(reg32) extra[1],
                        e2 = inout(reg32) extra[2], e3 = inout(reg32) extra[3],
                        a = in(reg64) a.bits(), b = in(reg64) b.bits(), keep = in(reg32) keep,
                        options(nostack)
                    )
                }
            }
        }
    };
}

for_columns!(128, wgmma_update! 136 F16 "f16");
for_columns!(192, wgmma_update! 200 F16 "f16");
for_columns!(128, wgmma_update! 136 Bf16 "bf16");
for_columns!(192, wgmma_update! 200 Bf16 "bf16");
