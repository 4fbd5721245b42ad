//! Safe kernels that are called as functions and that are wrong: errors are those of any function.
use warpsmith_dsl::prelude::*;

#[kernel(block = [64, 1, 1])]
fn add_up(x: GlobalSlice<f32>, mut y: GlobalSliceMut<f32>) {
    let own = thread::index_1d();
    if let Some(mut y) = y.get_mut(own) {
        y.write(x.at(own.get()));
    }
}

#[kernel(block = [32, 1, 1])]
fn calls(x: GlobalSlice<f32>, y: GlobalSliceMut<f32>) {
    if thread::thread_idx_x() < 7 {
        add_up(x, y);
    }
}

#[kernel(block = [32, 1, 1])]
fn calls_itself(n: u32) {
    if n > 0 {
        calls_itself(n - 1);
    }
}

#[kernel(block = [32, 1, 1])]
fn is_wrong(mut y: GlobalSliceMut<f32>) {
    if let Some(mut y) = y.get_mut(7) {
        y.write(1u32);
    }
}

fn function(_: fn(u32)) {}

fn main() {
    function(calls_itself);
}
