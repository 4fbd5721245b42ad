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

#[kernel(block = [32, 1, 1], source = 1)]
pub fn of_another() {}

fn main() {}
