//! Sums and maxima over lanes.

use crate::{ptx, warp};

/// Lanes that share rows of a fragment.
const QUAD: u32 = 4;

/// The value that `f` makes of the values of `lanes` neighbouring lanes, a power of two; the same bits in all of them, for an `f` that takes its operands in either order.
///
/// # Safety
///
/// All lanes of the warp call it.
#[inline(always)]
unsafe fn over_lanes(value: f32, lanes: u32, f: impl Fn(f32, f32) -> f32) -> f32 {
    let (mut all, mut mask) = (value, 1);
    while mask < lanes {
        // SAFETY: the caller's promise.
        let other = f32::from_bits(unsafe { ptx::shfl_sync_bfly(all.to_bits(), mask) });
        all = f(all, other);
        mask *= 2;
    }
    all
}

/// The largest of a quad's values that are numbers: of the lanes 4 · i to 4 · i + 3, which share rows of a fragment.
///
/// # Safety
///
/// All lanes of the warp call it.
#[inline(always)]
#[must_use]
pub unsafe fn quad_max(value: f32) -> f32 {
    // SAFETY: the caller's promise.
    unsafe { over_lanes(value, QUAD, f32::max) }
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
    unsafe { over_lanes(value, QUAD, |a, b| a + b) }
}

/// The sum of the values of `lanes` neighbouring lanes, a power of two; the same bits in all of them.
///
/// # Safety
///
/// All lanes of the warp call it.
#[inline(always)]
#[must_use]
pub unsafe fn sum_of_lanes(value: f32, lanes: u32) -> f32 {
    // SAFETY: the caller's promise.
    unsafe { over_lanes(value, lanes, |a, b| a + b) }
}

/// The largest of a warp's values that are numbers.
///
/// # Safety
///
/// All lanes of the warp call it.
#[inline(always)]
#[must_use]
pub unsafe fn warp_max(value: f32) -> f32 {
    // SAFETY: the caller's promise.
    unsafe { over_lanes(value, warp::SIZE, f32::max) }
}

/// The sum of a warp's values, the same bits in all lanes.
///
/// # Safety
///
/// All lanes of the warp call it.
#[inline(always)]
#[must_use]
pub unsafe fn warp_sum(value: f32) -> f32 {
    // SAFETY: the caller's promise.
    unsafe { over_lanes(value, warp::SIZE, |a, b| a + b) }
}
