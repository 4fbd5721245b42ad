//! The kernels. This file is compiled twice: to PTX by `build.rs`, and as a module of the program, which launches are
//! checked against.

use warpsmith_dsl::prelude::*;

/// `y[i] = a · x[i] + y[i]`
#[kernel(block = [256, 1, 1])]
pub fn saxpy(a: f32, x: GlobalSlice<f32>, mut y: GlobalSliceMut<f32>) {
    let i = thread::index_1d();
    if let Some(mut y) = y.get_mut(i) {
        y.write(a * x.at(i.get()) + y.read());
    }
}
