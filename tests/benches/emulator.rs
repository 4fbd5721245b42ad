//! How long the emulator takes for a linear layer, with all checks on: `cargo bench -p warpsmith-tests`.
//!
//! The same product on an emulated A100 (`mma.sync`) and an emulated H100 (`wgmma` and the copy engine), on all threads.

use std::time::Instant;

use half::bf16;
use ndarray::Array2;
use warpsmith::{Device, EmulatorOptions, Tensor, ops};

const SHAPE: (usize, usize, usize) = (1024, 784, 2048);

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (m, k, n) = SHAPE;
    println!("linear, bf16, M, K, N = {m}, {k}, {n}");
    for capability in [(8, 0), (9, 0)] {
        let options = EmulatorOptions { compute_capability: capability, ..EmulatorOptions::default() };
        let device = Device::emulator_with(options);
        let values = |rows, step| {
            Array2::from_shape_fn((rows, k), |(i, j)| {
                bf16::from_f32(((i * step + j * 7) % 13) as f32 * 0.125 - 0.75)
            })
        };
        let (x, w) =
            (Tensor::from_array(&device, &values(m, 3))?, Tensor::from_array(&device, &values(n, 5))?);
        let mut best = f64::INFINITY;
        for _ in 0..3 {
            let start = Instant::now();
            ops::linear(&x, &w).run()?;
            best = best.min(start.elapsed().as_secs_f64());
        }
        println!("compute capability {}.{}: {best:.2} s", capability.0, capability.1);
    }
    Ok(())
}
