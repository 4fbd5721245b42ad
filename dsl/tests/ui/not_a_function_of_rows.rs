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

#[product_kernels(of_private: F16 -> f32)]
fn private(sum: f32) -> f32 {
    sum
}

#[product_kernels(of_other: F16 -> f32)]
pub fn other(sum: f32, #[plane] scale: f32) -> f32 {
    sum
}

#[product_kernels(of_unsafe: F16 -> f32)]
pub unsafe fn unsafe_one(sum: f32) -> f32 {
    sum
}

#[product_kernels(of_many: F16 -> f32)]
pub fn many(sum: f32, a: f32, b: f32, c: f32, d: f32, e: f32, f: f32, g: f32, h: f32, i: f32) -> f32 {
    sum
}

#[product_kernels(of_no_name: F16 -> f32)]
pub fn _1(sum: f32) -> f32 {
    sum
}

#[product_kernels(Same: F16 -> f32)]
pub fn same(sum: f32) -> f32 {
    sum
}

#[kernel(block = [32, 1, 1], source = 1)]
pub fn of_another() {}

fn main() {}
