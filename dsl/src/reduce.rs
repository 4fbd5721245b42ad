//! Sums and maxima over lanes.

use crate::ptx;

/// The value that `f` makes of the four values of a quad: the lanes 4 · i to 4 · i + 3, which share rows of a fragment.
///
/// # Safety
///
/// All lanes of the warp call it.
#[inline(always)]
unsafe fn over_quad(value: f32, f: impl Fn(f32, f32) -> f32) -> f32 {
    // SAFETY: the caller's promise.
    let other = |value: f32, mask| f32::from_bits(unsafe { ptx::shfl_sync_bfly(value.to_bits(), mask) });
    let pair = f(value, other(value, 1));
    f(pair, other(pair, 2))
}

/// The largest of a quad's values that are numbers.
///
/// # Safety
///
/// All lanes of the warp call it.
#[inline(always)]
#[must_use]
pub unsafe fn quad_max(value: f32) -> f32 {
    // SAFETY: the caller's promise.
    unsafe { over_quad(value, f32::max) }
}

/// The sum of a quad's values, the same bits in all four lanes.
///
/// # Safety
///
/// All lanes of the warp call it.
#[inline(always)]
#[must_use]
pub unsafe fn quad_sum(value: f32) -> f32 {
    // SAFETY: the caller's promise.
    unsafe { over_quad(value, |a, b| a + b) }
}
