//! Runs the kernel of `kernels.rs` on the first GPU, or in the emulator where there is none.

mod kernels;

use warpsmith::{Device, KernelFile, Tensor};

const KERNELS: KernelFile = warpsmith::include_kernels!("kernels");

fn saxpy(device: &Device, a: f32, x: &[f32], y: &[f32]) -> warpsmith::Result<Vec<f32>> {
    let kernel = device.load_kernels(&KERNELS)?.kernel::<kernels::saxpy>()?;
    let x = Tensor::from_slice(device, x, [x.len()])?;
    let mut y = Tensor::from_slice(device, y, [y.len()])?;
    kernel.run_over(&device.default_stream(), y.len(), (a, &x, &mut y))?;
    y.to_vec()
}

fn main() -> warpsmith::Result<()> {
    // A program that must not run elsewhere names its device: `Device::cuda(0)?`.
    let device = Device::cuda(0).unwrap_or_else(|_| Device::emulator());
    println!("{:?} on {}", saxpy(&device, 2.0, &[1.0, 2.0, 3.0], &[10.0, 20.0, 30.0])?, device.name());
    Ok(())
}

#[test]
fn every_element_is_computed_whatever_the_length() -> warpsmith::Result<()> {
    for length in [0, 1, 255, 256, 1009] {
        let x: Vec<f32> = (0..length).map(|i| i as f32).collect();
        let expected: Vec<f32> = x.iter().map(|x| 2.0 * x + 1.0).collect();
        assert_eq!(saxpy(&Device::emulator(), 2.0, &x, &vec![1.0; length])?, expected);
    }
    Ok(())
}
