//! Times the eight steps of `hopper.rs` on a GPU, beside the library's product: `cargo run --release --features library
//! --bin hopper_ladder`.
//!
//! Each row is a median of 21 launches, with events around ten at a time; the sizes are M × N × K.

use std::time::Duration;

use half::bf16;
use warpsmith::{Device, Result, Stream, Tensor, ops};
use warpsmith_examples::hopper::host::{Ladder, STEPS};

const ROUNDS: usize = 21;
const LAUNCHES: u32 = 10;

fn main() -> Result<()> {
    let device = Device::cuda(0)?;
    let ladder = Ladder::new(&device)?;
    println!("{} – bf16, M × N × K; TFLOP/s and the part of the library's", device.name());
    for [m, n, k] in [[2048, 2048, 2048], [4096, 4096, 4096], [8192, 8192, 8192]] {
        let x = filled(&device, [m, k])?;
        let w = filled(&device, [n, k])?;
        let mut y = Tensor::<bf16>::zeros(&device, [m, n])?;
        let stream = x.home_stream();
        let flops = 2.0 * m as f64 * n as f64 * k as f64;
        let rate = |time: Duration| flops / time.as_secs_f64() / 1e12;
        let across = w.swap_axes(0, 1)?;
        let library = rate(median(&stream, || ops::matmul(&x, &across).run_into(&mut y))?);
        println!("\n{m} × {n} × {k}");
        for step in 1..=STEPS {
            let own = rate(median(&stream, || ladder.run(step, &x, &w, &mut y))?);
            println!("step {step}   {own:7.1}   {:5.2}", own / library);
        }
        println!("library  {library:7.1}   {:5.2}", 1.0);
    }
    Ok(())
}

/// A matrix of numbers between −1 and 1.
fn filled(device: &Device, [rows, columns]: [usize; 2]) -> Result<Tensor<bf16>> {
    let number = |i: usize| bf16::from_f32((i.wrapping_mul(2_654_435_761) >> 7 & 0xff) as f32 / 128.0 - 1.0);
    Tensor::from_slice(device, &(0..rows * columns).map(number).collect::<Vec<_>>(), [rows, columns])
}

/// The time of one launch.
fn median(stream: &Stream, mut launch: impl FnMut() -> Result<()>) -> Result<Duration> {
    launch()?;
    let mut times = Vec::with_capacity(ROUNDS);
    for _ in 0..ROUNDS {
        let start = stream.record()?;
        for _ in 0..LAUNCHES {
            launch()?;
        }
        let end = stream.record()?;
        end.synchronize()?;
        times.push(end.elapsed_since(&start)? / LAUNCHES);
    }
    times.sort_unstable();
    Ok(times[ROUNDS / 2])
}
