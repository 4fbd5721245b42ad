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

/// [`sigmoid`] of −`t`·ln 2, 1 / (1 + 2^`t`), of two arguments by one reciprocal, to 8 u with what [`silu_2`] and [`gelu_tanh_2`] do.
///
/// Results below 2⁻⁶¹ are taken as zero, that of NaN too: it is the caller's product with its argument that is NaN then, and what
/// the two have in common stays a number.
#[inline(always)]
fn sigmoid_2(t: [f32; 2]) -> [f32; 2] {
    /// The largest exponent of which the product of two powers is far from overflowing.
    const MOST: f32 = 62.0;
    /// More than what an exponent of `MOST` gives, so that it gives zero.
    const LEAST: f32 = 1.0 / (1u64 << 61) as f32;
    // The smaller one that is a number.
    let [a, b] = t.map(|t| 1.0 + ptx::ex2_approx_ftz(t.min(MOST)));
    let reciprocal = ptx::rcp_approx_ftz(a * b);
    [ptx::fma_sat(reciprocal, b, -LEAST), ptx::fma_sat(reciprocal, a, -LEAST)]
}

/// `x · sigmoid(x)`, to 8 u · |x|.
#[inline(always)]
#[must_use]
pub fn silu(x: f32) -> f32 {
    x * sigmoid(x)
}

/// [`silu`] of two arguments, for less than twice its cost.
#[inline(always)]
#[must_use]
pub fn silu_2(x: [f32; 2]) -> [f32; 2] {
    let [a, b] = sigmoid_2(x.map(|x| x * -core::f32::consts::LOG2_E));
    [x[0] * a, x[1] * b]
}

/// GELU by its definition, `x · Φ(x)` with the normal distribution's Φ, to 8 u · |x|; 0 for −∞.
///
/// `max(x, 0) − |x| · Φ(−|x|)`. For t ≥ 0, Φ(−t) is 2^(−t²·log₂e / 2) · q·P(q) with q = 1/(1 + 0.39 t), P the polynomial of degree 5 that
/// fits the scaled complementary error function to 1.6·10⁻⁸ of Φ's range, about a quarter of u, and to a thousandth of Φ(−t) itself up to
/// t = 7.
#[inline(always)]
#[must_use]
pub fn gelu_erf(x: f32) -> f32 {
    /// More than what the power is zero from on; no larger argument is needed, nor NaN.
    const MOST: f32 = 16.0;
    /// Of −P.
    const P: [f32; 6] =
        [-0.053_846_348, 0.258_241_15, -0.375_164_45, 0.016_632_482, -0.194_435_63, -0.151_427_21];
    let t = x.abs().min(MOST);
    let q = ptx::rcp_approx_ftz(ptx::fma(0.39, t, 1.0));
    let mut p = P[0];
    p = ptx::fma(p, q, P[1]);
    p = ptx::fma(p, q, P[2]);
    p = ptx::fma(p, q, P[3]);
    p = ptx::fma(p, q, P[4]);
    p = ptx::fma(p, q, P[5]);
    let minus_tail = q * p * ptx::ex2_approx_ftz(t * t * (-0.5 * core::f32::consts::LOG2_E));
    ptx::fma(t, minus_tail, relu(x))
}

/// Minus the binary logarithm of e to the power of 2√(2/π)(x + 0.044715 x³).
#[inline(always)]
fn gelu_tanh_exponent(x: f32) -> f32 {
    /// −2√(2/π) · log₂e.
    const LINEAR: f32 = -2.302_208_2;
    /// As much times 0.044715.
    const CUBIC: f32 = -0.102_943_24;
    x * ptx::fma(x * x, CUBIC, LINEAR)
}

/// GELU's tanh approximation, `x/2 · (1 + tanh(√(2/π)(x + 0.044715 x³)))`, to 8 u · |x|.
///
/// Written as `x · sigmoid(2√(2/π)(x + 0.044715 x³))`, which equals it and does not cancel.
#[inline(always)]
#[must_use]
pub fn gelu_tanh(x: f32) -> f32 {
    x * ptx::rcp_approx_ftz(1.0 + ptx::ex2_approx_ftz(gelu_tanh_exponent(x)))
}

/// [`gelu_tanh`] of two arguments, for less than twice its cost.
#[inline(always)]
#[must_use]
pub fn gelu_tanh_2(x: [f32; 2]) -> [f32; 2] {
    let [a, b] = sigmoid_2(x.map(gelu_tanh_exponent));
    [x[0] * a, x[1] * b]
}
