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

/// The logistic function, 1 / (1 + e⁻ˣ): to 8 u, and for x < 0 to (8 + 2 |x|) u of the result too. Results below 2⁻¹²⁶ are taken as zero.
///
/// Written as 1 / (1 + 2^(−x·log₂e)). The constant and the product have a relative error of u each. So the power has one of 2 |x| u, and 4 u of its
/// own. The result has these times σ(−x), 1 u of the sum and 2 u of the reciprocal. For x ≥ 0, σ(−x) is at most 1/2 and x σ(−x) at most 0.279.
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

/// The hyperbolic tangent, to 8 u.
///
/// Up to 5/8 it is x + x³·P(x²), with P the polynomial of degree 4 that fits to 0.3 u of the result. Beyond it is 1 − 2 / (1 + e²ˣ), of whose
/// error 2 / (1 + e²ˣ) is a factor.
#[inline(always)]
#[must_use]
pub fn tanh(x: f32) -> f32 {
    const P: [f32; 5] = [-0.006_096_714, 0.020_997_18, -0.053_850_908, 0.133_327_7, -0.333_333_28];
    let (a, s) = (x.abs(), x * x);
    let mut p = P[0];
    p = ptx::fma(p, s, P[1]);
    p = ptx::fma(p, s, P[2]);
    p = ptx::fma(p, s, P[3]);
    p = ptx::fma(p, s, P[4]);
    let near = ptx::opaque(ptx::fma(x * s, p, x).to_bits());
    let power = ptx::ex2_approx_ftz(a * (2.0 * core::f32::consts::LOG2_E));
    let far = ptx::fma(-2.0, ptx::rcp_approx_ftz(1.0 + power), 1.0);
    let signed = ptx::opaque(far.to_bits() | x.to_bits() & 0x8000_0000);
    // Both are opaque, so that it is a choice and no branch.
    f32::from_bits(if a < 0.625 { near } else { signed })
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
/// `max(x, 0) − |x| · Φ(−|x|)`. For t ≥ 0, Φ(−t) is 2^(−t²·log₂e / 2) · q·P(q) with q = 1/(1 + 0.39 t). P is the
/// polynomial of degree 5 that fits the scaled complementary error function. It fits to 1.6·10⁻⁸ of Φ's range, about a
/// quarter of u, and to a thousandth of Φ(−t) itself up to t = 7.
#[inline(always)]
#[must_use]
pub fn gelu_erf(x: f32) -> f32 {
    // No larger argument is needed, nor NaN.
    let t = x.abs().min(GELU_ERF_MOST);
    let minus_tail = gelu_erf_minus_tail(t) * gelu_erf_power(t);
    ptx::fma(t, minus_tail, relu(x))
}

/// More than what the power of [`gelu_erf`] is zero from on.
const GELU_ERF_MOST: f32 = 16.0;

/// −q·P(q) of [`gelu_erf`], of t ≥ 0.
#[inline(always)]
fn gelu_erf_minus_tail(t: f32) -> f32 {
    /// Of −P.
    const P: [f32; 6] =
        [-0.053_846_348, 0.258_241_15, -0.375_164_45, 0.016_632_482, -0.194_435_63, -0.151_427_21];
    let q = ptx::rcp_approx_ftz(ptx::fma(0.39, t, 1.0));
    let mut p = P[0];
    p = ptx::fma(p, q, P[1]);
    p = ptx::fma(p, q, P[2]);
    p = ptx::fma(p, q, P[3]);
    p = ptx::fma(p, q, P[4]);
    p = ptx::fma(p, q, P[5]);
    q * p
}

/// 2^(−t²·log₂e / 2).
#[inline(always)]
fn gelu_erf_power(t: f32) -> f32 {
    ptx::ex2_approx_ftz(t * t * (-0.5 * core::f32::consts::LOG2_E))
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

/// `x`, or `most` if it is more; NaN stays NaN.
#[inline(always)]
fn at_most(x: f32, most: f32) -> f32 {
    if x > most { most } else { x }
}

/// The slope of `x · sigmoid(v(x))` for an odd function v with v(x) ≥ 0 for x ≥ 0, `sigmoid(v) + x·v′·sigmoid(v)·sigmoid(−v)`.
///
/// `exponent` is −|v|·log₂e and `weight` |x|·v′. The power is at most 1, so nothing overflows, and of the two values of the logistic function neither is a
/// difference.
#[inline(always)]
fn slope_by_sigmoid(x: f32, exponent: f32, weight: f32) -> f32 {
    let power = ptx::ex2_approx_ftz(exponent);
    let large = ptx::rcp_approx_ftz(1.0 + power);
    let small = power * large;
    let product = weight * small;
    if x < 0.0 { ptx::fma(-product, large, small) } else { ptx::fma(product, large, large) }
}

/// The derivative of [`relu`]: 1 above 0, else 0; NaN stays NaN.
#[inline(always)]
#[must_use]
pub fn relu_slope(x: f32) -> f32 {
    if x > 0.0 {
        1.0
    } else if x <= 0.0 {
        0.0
    } else {
        x
    }
}

/// The derivative of [`silu`], to 12 u; its limits at the infinities.
///
/// With t = |x|, the logistic function's s = σ(t) and q = σ(−t): s + t q s for x ≥ 0, else q − t q s. The power has a relative error of 4 u from `ex2` and 2 t u
/// from the exponent, which s has `q` of and q has s of. So s is off by at most 3 + 2 + 2 · 0.279 = 5.6 u, where 0.279 bounds t q, and q by 8 u + 2 t u relatively.
/// The product t q s, under 0.279, is off by 15.6 u relatively and 2 t u more, where t² q is under 0.49: 5.4 u. The last rounding is 1 u.
#[inline(always)]
#[must_use]
pub fn silu_slope(x: f32) -> f32 {
    /// More than what the power is zero from on.
    const MOST: f32 = 128.0;
    let t = at_most(x.abs(), MOST);
    slope_by_sigmoid(x, t * -core::f32::consts::LOG2_E, t)
}

/// The derivative of [`gelu_tanh`], to 16 u; its limits at the infinities.
///
/// As [`silu_slope`] with v = 2√(2/π)(t + 0.044715 t³) in place of t, and t v′ in place of the factor t. The exponent has a relative error of 4 u, so the power one of
/// 4 u + 4 v u: σ(v) is off by 6.1 u at most. The factor has 4 u relatively; t v′ σ(−v) is under 0.296 and v times that under 0.56. So the product is off by
/// 0.296 · 20.1 + 4 · 0.56 = 8.2 u, and the last rounding is 1.13 u: together 15.5 u.
#[inline(always)]
#[must_use]
pub fn gelu_tanh_slope(x: f32) -> f32 {
    /// More than what the power is zero from on.
    const MOST: f32 = 16.0;
    /// 2√(2/π).
    const LINEAR: f32 = 1.595_769_2;
    /// Three times as much times 0.044715.
    const CUBIC: f32 = 0.214_064_45;
    let t = at_most(x.abs(), MOST);
    slope_by_sigmoid(x, gelu_tanh_exponent(t), t * ptx::fma(t * t, CUBIC, LINEAR))
}

/// The derivative of [`gelu_erf`], Φ(x) + x φ(x) with the normal distribution's Φ and its density φ, to 12 u; its limits at the infinities.
///
/// With t = |x| it is 1 + g for x ≥ 0, else −g, where g = 2^(−t²·log₂e / 2) · (t/√(2π) − q·P(q)), which has the tail's polynomial of [`gelu_erf`]. The tail, 1/2 at
/// 0, is off by 15.4 u relatively there. That is 4 from the power, 8.4 from q, 2 from the polynomial and 1 from the product. The exponent adds 1.5 t² u to that. All
/// this is 7.9 u at most, since the tail falls faster than the relative error rises. At 0, t φ(t) is 0; further on it is off by 6 u + 1.5 t² u relatively, less than
/// the tail's error has fallen by. The distance of the polynomial from what it fits is 0.3 u, two roundings of g 1 u, the last one 1.13 u: together under 11 u.
#[inline(always)]
#[must_use]
pub fn gelu_erf_slope(x: f32) -> f32 {
    /// 1/√(2π).
    const DENSITY: f32 = 0.398_942_3;
    let t = at_most(x.abs(), GELU_ERF_MOST);
    let minus_tail = gelu_erf_minus_tail(t);
    let g = ptx::fma(t, DENSITY, minus_tail) * gelu_erf_power(t);
    if x < 0.0 { -g } else { 1.0 + g }
}

mod elementary;
pub use self::elementary::{cos, exp, exp2, ln, log2, log10, pow, sin, sin_cos, sqrt, tan};
