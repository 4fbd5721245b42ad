//! Slices, matrices and shared memory that a safe function makes of nothing.
use warpsmith_dsl::prelude::*;
use warpsmith_dsl::shared::{InShared, SharedAddress};

shared_memory! {
    struct Shared {
        counts: SharedArray<u32, 256>,
    }
}

#[kernel(block = [32, 1, 1])]
fn makes() {
    let _ = GlobalSlice::<f32>::new(Global::new(0), 1);
    let _ = GlobalSliceMut::<f32>::new(GlobalMut::new(0), 1);
    let _ = GlobalMatrix::<f32>::new(Global::new(0), 1, 1, 1);
    let _ = GlobalMatrixMut::<f32>::new(GlobalMut::new(0), 1, 1, 1);
    let _ = GlobalAtomics::<u32>::new(GlobalMut::new(0), 1);
    let _ = Shared::new();
    let _ = SharedArray::<u32, 256>::at(SharedAddress::dynamic());
}

fn main() {}
