//! Gradients of layers, compared with differences of what they are gradients of.

use crate::{Device, Tensor};

pub(super) fn numbers(count: usize, seed: usize) -> Vec<f32> {
    (0..count).map(|i| ((i * 7919 + seed * 131) % 1009) as f32 / 1000.0 - 0.5).collect()
}

pub(super) fn tensor(device: &Device, shape: &[usize], seed: usize) -> Tensor<f32> {
    Tensor::from_slice(device, &numbers(shape.iter().product(), seed), shape).expect("it fits")
}

pub(super) fn bits(tensor: &Tensor<f32>) -> Vec<f32> {
    tensor.to_vec().expect("it is there")
}

/// Checks a derivative along `direction` against differences. They may be off by what halving the step changes, and by 64 roundings of y: it is made of sums of some tens
/// of terms. The roundings add up to so much of `size`, the sum of |dy ∘ y|.
pub(super) fn along(direction: &[f32], gradient: &[f32], size: f64, value: impl Fn(f32) -> f64) {
    let exact: f64 = gradient.iter().zip(direction).map(|(g, d)| f64::from(*g) * f64::from(*d)).sum();
    let difference = |step: f32| (value(step) - value(-step)) / (2.0 * f64::from(step));
    let (step, half) = (1.0 / 16.0, 1.0 / 32.0);
    let (whole, halved) = (difference(step), difference(half));
    let allowed = (whole - halved).abs() + 32.0 * f64::from(f32::EPSILON) * size / f64::from(half);
    assert!((exact - halved).abs() <= allowed, "{exact} {whole} {halved} {allowed}");
    assert!(exact.abs() > 4.0 * allowed, "the test says something: {exact} {allowed}");
}

pub(super) fn moved(numbers: &mut [f32], direction: &[f32], step: f32) {
    for (number, direction) in numbers.iter_mut().zip(direction) {
        *number += step * direction;
    }
}

/// A direction that the gradient has a part of, and that moves every number, so that a gradient which is 0 where it should not be shows.
pub(super) fn direction(gradient: &[f32]) -> Vec<f32> {
    let largest = gradient.iter().fold(f32::MIN_POSITIVE, |largest, g| largest.max(g.abs()));
    gradient.iter().zip(numbers(gradient.len(), 29)).map(|(g, other)| g / largest + 0.5 * other).collect()
}

/// Whether numbers are those of another kernel, which adds up to 64 products in another order: what is done to sums decides which one it is. Either is off by
/// at most 64 roundings of the largest.
pub(super) fn expect_near(got: &[f32], expected: &[f32]) {
    let largest = expected.iter().fold(0.0f32, |largest, number| largest.max(number.abs()));
    assert_eq!(got.len(), expected.len());
    for (got, expected) in got.iter().zip(expected) {
        assert!((got - expected).abs() <= 64.0 * f32::EPSILON * largest, "{got}, {expected}");
    }
}
