//! How far element-wise operations, and pairs that are turned, may be off.
//!
//! u is 2⁻²⁴. A function of one number is off by [`Activation::evaluation_ulps`] · u of it, a slope by [`Activation::derivative_ulps`] · u. The other factors multiply
//! that, and each product or sum is rounded once: u of what it is. A result is rounded to its type at last; one of f32 has been. What is below 2⁻¹²⁶ may be lost, of a
//! product before another factor multiplies it.
//!
//! Of a pair, each of the two products has the rounding of its cosine or sine and its own, and the sum has one.

use warpsmith::DType;
use warpsmith::cpu::Elementwise;
use warpsmith::ops::Activation;

use super::{Rounding, U};

/// What is lost near zero.
const TINY: f64 = f32::MIN_POSITIVE as f64;

/// A number, and what a result may differ from it by.
pub type Bounded = (f64, f64);

/// A number of an error, rounded to a type.
fn rounded(exact: f64, error: f64, dtype: DType) -> Bounded {
    let Rounding { relative, absolute, .. } = Rounding::of(dtype);
    let of_type = if dtype == DType::F32 { 0.0 } else { ((exact.abs() + error) * relative).max(absolute) };
    (exact, error + of_type + TINY)
}

/// What a function makes of three elements, of two types; the second is zero where there is one result. See [`Elementwise::apply`].
#[must_use]
pub fn elementwise(function: Elementwise, [a, b, c]: [f64; 3], [y, z]: [DType; 2]) -> [Bounded; 2] {
    let exact = function.apply(a, b, c);
    let value = |of: Activation| of.evaluation_ulps() * U * a.abs() + TINY;
    let slope = |of: Activation| of.derivative_ulps() * U + TINY;
    // The function's error, the other factors, and roundings.
    let [error, others, roundings] = match function {
        Elementwise::Activation(of) => [value(of), 1.0, 0.0],
        Elementwise::Add | Elementwise::Multiply => [0.0, 0.0, 1.0],
        Elementwise::Gated(of) => [value(of), b.abs(), 1.0],
        Elementwise::ActivationGradient(of) => [slope(of), b.abs(), 1.0],
        Elementwise::GatedGradient(of) => [slope(of), (b * c).abs(), 2.0],
    };
    let error = error * others;
    let error = error + (exact[0].abs() + error) * roundings * U * (1.0 + U) + TINY * (1.0 + c.abs());
    let first = rounded(exact[0], error, y);
    let Elementwise::GatedGradient(of) = function else { return [first, (0.0, 0.0)] };
    let error = value(of) * c.abs();
    [first, rounded(exact[1], error + (exact[1].abs() + error) * U, z)]
}

/// A pair, turned by an angle of which the cosine and the sine are given, of a type.
#[must_use]
pub fn rotated([a, b]: [f64; 2], [cosine, sine]: [f64; 2], dtype: DType) -> [Bounded; 2] {
    [a * cosine - b * sine, b * cosine + a * sine]
        .map(|exact| rounded(exact, U * (2.0 * (a.abs() + b.abs()) * (1.0 + U) + exact.abs()) + TINY, dtype))
}
