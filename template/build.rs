fn main() -> Result<(), warpsmith_builder::Error> {
    warpsmith_builder::KernelFiles::new().file("src/kernels.rs").build()
}
