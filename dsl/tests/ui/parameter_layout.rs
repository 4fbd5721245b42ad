//! Structs whose layout the host and the device might not agree on.
use warpsmith_dsl::KernelParam;

#[derive(Clone, Copy, KernelParam)]
struct NoRepr {
    a: u32,
}

#[derive(Clone, Copy, KernelParam)]
#[repr(C)]
struct Padded {
    a: u32,
    b: u64,
}

#[derive(Clone, Copy, KernelParam)]
#[repr(C)]
struct NotAParameter {
    a: &'static u32,
}

fn main() {}
