//! The blocked matrix product under the CPU implementations: packing and register-blocked micro-kernels.
//!
//! The scheme is the usual one (Goto and van de Geijn, *Anatomy of High-Performance Matrix Multiplication*, 2008). Both
//! operands are copied into panels that the innermost loop reads in order, `MR` rows of A against `NR` rows of B, and the `MR ×
//! NR` sums stay in registers over a block of [`K_BLOCK`] products. The compiler vectorises the innermost loop;
//! the instruction set is chosen at run time.
//!
//! Rounding: the sums of one block of K start from zero and are then added to the running total, so an element passes
//! through at most `K_BLOCK + ⌈K / K_BLOCK⌉` roundings, not `K`.

use ndarray::ArrayView2;

use super::number::{Accumulator, Operand};

/// Products that are added up in registers before they join the running total.
pub const K_BLOCK: usize = 128;

/// Adds the product of one packed A panel and one packed B panel to a tile of `C`.
///
/// `a` is `k × mr`, `b` is `k × nr`, both with k outermost; `c` is `mr` rows of `nr` elements, `ld_c` apart.
type Run<A> = unsafe fn(a: &[A], b: &[A], c: &mut [A], ld_c: usize);

/// A register-blocked inner loop, with the panel sizes it wants.
#[derive(Clone, Copy)]
pub struct MicroKernel<A> {
    /// Rows of A that it takes at a time.
    pub(crate) mr: usize,
    /// Rows of B that it takes at a time.
    pub(crate) nr: usize,
    run: Run<A>,
}

impl<A> MicroKernel<A> {
    /// Adds the product of two packed panels to a tile of C; see [`Run`].
    pub(crate) fn run(&self, a: &[A], b: &[A], c: &mut [A], ld_c: usize) {
        // SAFETY: the only constructors are `micro_kernel_*`, which pick a function whose instruction set they have
        // found on this machine.
        unsafe { (self.run)(a, b, c, ld_c) }
    }
}

#[inline(always)]
fn multiply_panels<A: Accumulator, const MR: usize, const NR: usize, const FUSED: bool>(
    a: &[A],
    b: &[A],
    c: &mut [A],
    ld_c: usize,
) {
    let mut sums = [[A::zero(); NR]; MR];
    for (a, b) in a.as_chunks::<MR>().0.iter().zip(b.as_chunks::<NR>().0) {
        for i in 0..MR {
            for j in 0..NR {
                sums[i][j] = if FUSED { a[i].mul_add(b[j], sums[i][j]) } else { sums[i][j] + a[i] * b[j] };
            }
        }
    }
    for (i, sums) in sums.iter().enumerate() {
        for (c, &sum) in c[i * ld_c..][..NR].iter_mut().zip(sums) {
            *c += sum;
        }
    }
}

macro_rules! micro_kernels {
    ($choose:ident, $scalar:ty, avx512: $avx512:ident $mr512:literal x $nr512:literal, avx2: $avx2:ident $mr256:literal x $nr256:literal,
     portable: $portable:ident $mr:literal x $nr:literal) => {
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx512f")]
        fn $avx512(a: &[$scalar], b: &[$scalar], c: &mut [$scalar], ld_c: usize) {
            multiply_panels::<$scalar, $mr512, $nr512, true>(a, b, c, ld_c);
        }

        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx2,fma")]
        fn $avx2(a: &[$scalar], b: &[$scalar], c: &mut [$scalar], ld_c: usize) {
            multiply_panels::<$scalar, $mr256, $nr256, true>(a, b, c, ld_c);
        }

        fn $portable(a: &[$scalar], b: &[$scalar], c: &mut [$scalar], ld_c: usize) {
            // Without hardware support `mul_add` is a slow library call; on 64-bit Arm it is always an instruction.
            multiply_panels::<$scalar, $mr, $nr, { cfg!(target_arch = "aarch64") }>(a, b, c, ld_c);
        }

        /// The fastest of the micro-kernels that this machine can run.
        pub(crate) fn $choose() -> MicroKernel<$scalar> {
            #[cfg(target_arch = "x86_64")]
            {
                if std::arch::is_x86_feature_detected!("avx512f") {
                    return MicroKernel { mr: $mr512, nr: $nr512, run: $avx512 };
                }
                if std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("fma") {
                    return MicroKernel { mr: $mr256, nr: $nr256, run: $avx2 };
                }
            }
            MicroKernel { mr: $mr, nr: $nr, run: $portable }
        }
    };
}
micro_kernels!(micro_kernel_f32, f32, avx512: f32_avx512 12 x 32, avx2: f32_avx2 6 x 16, portable: f32_portable 4 x 8);
micro_kernels!(micro_kernel_f64, f64, avx512: f64_avx512 12 x 16, avx2: f64_avx2 6 x 8, portable: f64_portable 4 x 4);

/// Copies columns `k .. k + depth` of `rows` into panels of `panel` rows each, k outermost within a panel; rows past the
/// end are zeros.
///
/// `packed` holds `⌈rows / panel⌉ · panel · depth` elements.
pub(crate) fn pack<T: Operand, A: Accumulator>(
    rows: ArrayView2<'_, T>,
    k: usize,
    depth: usize,
    panel: usize,
    packed: &mut [A],
) {
    let mut line = [0f32; K_BLOCK];
    let line = &mut line[..depth];
    let count = rows.nrows();
    for (index, packed) in packed.chunks_exact_mut(panel * depth).enumerate() {
        for lane in 0..panel {
            let row = index * panel + lane;
            if row < count {
                let source = rows.row(row);
                match source.as_slice() {
                    Some(source) => T::widen(&source[k..k + depth], line),
                    None => {
                        for (offset, value) in line.iter_mut().enumerate() {
                            *value = source[k + offset].to_f32();
                        }
                    }
                }
            } else {
                line.fill(0.0);
            }
            for (group, &value) in packed.chunks_exact_mut(panel).zip(line.iter()) {
                group[lane] = A::from_f32(value);
            }
        }
    }
}
