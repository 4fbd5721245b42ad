//! A launch with a pointer to the wrong element type.
use warpsmith_dsl::float::{Bf16, F16};
use warpsmith_dsl::kernel;
use warpsmith_dsl::launch::{Global, GlobalMut, Kernel};

#[kernel(family = scaling, block = [32, 1, 1], instances = [scale_f16 = <F16>])]
unsafe fn scale<T: 'static>(x: Global<T>, y: GlobalMut<T>, n: u32) {
    let _ = (x, y, n);
}

fn launch<K: Kernel>(_: K::Args) {}

fn main() {
    let x = Global::<Bf16>::new(0);
    let y = GlobalMut::<F16>::new(0);
    launch::<scale<F16>>((x, y, 1));
    launch::<scale<F16>>((Global::new(0), y));
    launch::<scale<f32>>((Global::new(0), GlobalMut::new(0), 1));
}
