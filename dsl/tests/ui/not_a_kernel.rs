//! Functions that are not kernels, and attributes that do not say enough.
use warpsmith_dsl::kernel;
use warpsmith_dsl::launch::GlobalMut;

#[kernel(family = fill, block = [32, 1, 1])]
fn has_lifetime(y: &'static GlobalMut<f32>) {}

#[kernel(family = fill, block = [32, 1, 1])]
unsafe fn returns(y: GlobalMut<f32>) -> u32 {
    0
}

#[kernel(family = fill)]
unsafe fn no_block(y: GlobalMut<f32>) {}

#[kernel(family = fill, block = [32, 1])]
unsafe fn flat_block(y: GlobalMut<f32>) {}

#[kernel(family = fill, block = [32, 1, 1])]
unsafe fn no_instances<T>(y: GlobalMut<T>) {}

#[kernel(family = fill, block = [32, 1, 1], instances = [few = <f32>])]
unsafe fn few_arguments<T, U>(y: GlobalMut<T>, z: GlobalMut<U>) {}

#[kernel(family = fill, block = [32, 1, 1], threads = 32)]
unsafe fn unknown_key(y: GlobalMut<f32>) {}

fn main() {}
