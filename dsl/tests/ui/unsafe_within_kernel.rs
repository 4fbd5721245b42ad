//! Safe kernels that do what is unsafe.
use warpsmith_dsl::launch::EntryToken;
use warpsmith_dsl::prelude::*;

#[kernel(block = [32, 1, 1])]
fn writes(y: GlobalSliceMut<f32>) {
    y.write(0, 1.0);
}

#[kernel(block = [32, 1, 1])]
fn calls_with_a_token_of_its_own(y: GlobalSliceMut<f32>) {
    writes(EntryToken::new(), y);
}

fn main() {}
