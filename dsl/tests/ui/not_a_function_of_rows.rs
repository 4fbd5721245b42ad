//! Structs and attributes that make no function of rows, or no epilogue.
use warpsmith_dsl::prelude::*;

#[row_kernels]
pub struct NoTypes {}

#[row_kernels(of_any: F16 -> F16)]
pub struct Generic<T> {
    value: T,
}

#[product_kernels()]
pub struct NoProduct {}

#[product_kernels(of_nothing: F16 -> f32)]
pub fn without_a_sum() -> f32 {
    0.0
}

#[product_kernels(of_bits: F16 -> f32)]
pub fn bits(sum: f32, #[row] mask: u32) -> f32 {
    sum
}

#[product_kernels(of_late: F16 -> f32)]
pub fn late(sum: f32, floor: f32, #[column] bias: f32) -> f32 {
    sum
}

#[product_kernels(of_two: F16 -> f32)]
pub fn two(sum: f32, #[row] #[column] scale: f32) -> f32 {
    sum
}

#[product_kernels(of_pairs: F16 -> f32)]
pub fn pairs(sum: f32) -> [f32; 2] {
    [sum, sum]
}

#[product_kernels(of_types: F16 -> f32)]
pub fn generic<T>(sum: f32) -> f32 {
    sum
}

#[kernel(block = [32, 1, 1], source = 1)]
pub fn of_another() {}

fn main() {}
