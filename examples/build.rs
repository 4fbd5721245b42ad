//! Compiles the kernels of every example.

use warpsmith_builder::{Arch, Error, KernelFiles};

const EXAMPLES: [&str; 10] = [
    "vector_add",
    "saxpy",
    "reduction",
    "softmax",
    "transpose",
    "histogram",
    "tiled_product",
    "mma_sync",
    "attention",
    "fused",
];

fn main() -> Result<(), Error> {
    let files = EXAMPLES.iter().fold(KernelFiles::new(), |files, name| files.file(format!("src/{name}.rs")));
    let files = files.file_for("src/hopper.rs", [Arch::SM_90A]);
    // The variants for Hopper, and those for all later architectures.
    let of_both = ["own_product", "own_rows"].into_iter();
    let files = of_both
        .fold(files, |files, name| files.file_for(format!("src/{name}.rs"), [Arch::SM_80, Arch::SM_90A]));
    files.file("tests/device_library/kernels.rs").build()
}
