//! Elementary functions in f32, made from the GPU's approximations and accurate to a few units in the last place.
//!
//! Each states its error against the real-valued function; u is 2⁻²⁴, half a unit in the last place of 1. Powers and reciprocals
//! below 2⁻¹²⁶ are taken as zero, which is less than that.

use crate::ptx;

/// `max(x, 0)`; NaN stays NaN.
#[inline(always)]
#[must_use]
pub fn relu(x: f32) -> f32 {
    ptx::max_nan(x, 0.0)
}

/// The logistic function, 1 / (1 + 2^(−x·log₂e)), to 8 u.
#[inline(always)]
#[must_use]
pub fn sigmoid(x: f32) -> f32 {
    ptx::rcp_approx_ftz(1.0 + ptx::ex2_approx_ftz(x * -core::f32::consts::LOG2_E))
}

/// 1 / √x for x ≥ 0, to 4 u; infinity for x below 2⁻¹²⁶, NaN for infinity.
#[inline(always)]
#[must_use]
pub fn rsqrt(x: f32) -> f32 {
    let root = ptx::rsqrt_approx_ftz(x);
    // One step of Newton's method.
    let refined = root * ptx::fma(-0.5 * x * root, root, 1.5);
    if x < f32::MIN_POSITIVE { root } else { refined }
}

/// `x · sigmoid(x)`, to 8 u · |x|.
#[inline(always)]
#[must_use]
pub fn silu(x: f32) -> f32 {
    x * sigmoid(x)
}

/// GELU by its definition, `x · Φ(x)` with the normal distribution's Φ, to 8 u · |x|.
///
/// Φ(−t) for t ≥ 0 is 2^(−t²·log₂e / 2) · q·P(q) with q = 1/(1 + 0.33 t), P the polynomial of degree 8 that fits the
/// scaled complementary error function to 7·10⁻¹⁰ of Φ's range; Φ(t) = 1 − Φ(−t).
#[inline(always)]
#[must_use]
pub fn gelu_erf(x: f32) -> f32 {
    const P: [f32; 9] = [
        -0.023_965_234,
        0.137_552_71,
        -0.294_979_84,
        0.253_630_34,
        -0.074_345_67,
        0.128_347_4,
        0.109_692_31,
        0.132_452_18,
        0.131_615_85,
    ];
    let t = f32::from_bits(x.to_bits() & 0x7fff_ffff);
    let q = ptx::rcp_approx_ftz(ptx::fma(0.33, t, 1.0));
    let mut p = P[0];
    p = ptx::fma(p, q, P[1]);
    p = ptx::fma(p, q, P[2]);
    p = ptx::fma(p, q, P[3]);
    p = ptx::fma(p, q, P[4]);
    p = ptx::fma(p, q, P[5]);
    p = ptx::fma(p, q, P[6]);
    p = ptx::fma(p, q, P[7]);
    p = ptx::fma(p, q, P[8]);
    let tail = q * p * ptx::ex2_approx_ftz(t * t * (-0.5 * core::f32::consts::LOG2_E));
    x * if x < 0.0 { tail } else { 1.0 - tail }
}

/// GELU's tanh approximation, `x/2 · (1 + tanh(√(2/π)(x + 0.044715 x³)))`, to 8 u · |x|.
///
/// Written as `x · sigmoid(2√(2/π)(x + 0.044715 x³))`, which equals it and does not cancel.
#[inline(always)]
#[must_use]
pub fn gelu_tanh(x: f32) -> f32 {
    const TWO_SQRT_2_OVER_PI: f32 = 1.595_769;
    x * sigmoid(TWO_SQRT_2_OVER_PI * x * ptx::fma(0.044_715 * x, x, 1.0))
}
