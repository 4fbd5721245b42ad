//! A program of the crate `cust` that uses this one beside it: an operation on cust's memory and stream, then a kernel of this project's, loaded and
//! launched by cust.
//!
//! The first gives sums, and the second finds the largest of each row of them, on one stream without waiting in between.
//!
//! ```sh
//! export CUDA_LIBRARY_PATH=/usr/local/cuda      # its lib64 or lib64/stubs has libcuda.so, to which the program is linked
//! cargo run --release --features cust --example cust
//! ```

use std::process::ExitCode;
use std::sync::Arc;

use cust::launch;
use cust::memory::{CopyDestination, DeviceBuffer, DeviceCopy, DevicePointer};
use cust::module::Module;
use cust::stream::{Stream as CustStream, StreamFlags};
use warpsmith::{Device, Error, Result, Stream, Tensor, ops};
// A program of its own has `warpsmith-kernels` among its dependencies for this.
use warpsmith_kernels::MODULES;
use warpsmith_kernels::topk::{THREADS, TopkParams, WARPS};

/// Rows of X and Y.
const ROWS: usize = 64;
/// Columns of Y, and rows of W.
const OUTPUTS: usize = 512;
/// Columns of X and W.
const INPUTS: usize = 256;
/// How many are the largest.
const K: usize = 8;

/// The kernel's sizes as an argument of `launch!`.
#[derive(Clone, Copy)]
#[repr(transparent)]
struct Sizes(TopkParams);

// SAFETY: they are numbers.
unsafe impl DeviceCopy for Sizes {}

/// The PTX of a kernel of this project's, which is a module of its own.
fn ptx(family: &str, entry: &str) -> Result<String> {
    let module = MODULES.iter().find(|module| module.family == family);
    let found = module.and_then(|module| module.entry(entry));
    found.map(|entry| entry.text()).ok_or_else(|| Error::MissingKernel {
        kernel: entry.to_owned(),
        module: module.map_or_else(|| family.to_owned(), |module| module.name()),
        available: "no kernel of that name".into(),
    })
}

/// `count` whole numbers from -8 to 8: so small that all sums are exact in f32.
fn numbers(count: usize, seed: u32) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 16) % 17
    };
    (0..count).map(|_| next() as f32 - 8.0).collect()
}

/// x·wᵀ on the host.
fn product(x: &[f32], w: &[f32]) -> Vec<f32> {
    let sum = |row: &[f32], column: &[f32]| std::iter::zip(row, column).map(|(&a, &b)| a * b).sum::<f32>();
    x.chunks(INPUTS).flat_map(|row| w.chunks(INPUTS).map(move |column| sum(row, column))).collect()
}

/// The largest of each row and where they are, of equal ones the first, on the host.
fn largest(sums: &[f32]) -> (Vec<f32>, Vec<u32>) {
    sums.chunks(OUTPUTS)
        .flat_map(|row| {
            let mut places: Vec<usize> = (0..row.len()).collect();
            places.sort_by(|&a, &b| row[b].total_cmp(&row[a]));
            places.truncate(K);
            places.into_iter().map(|at| (row[at], at as u32)).collect::<Vec<_>>()
        })
        .unzip()
}

/// How many of the values are not what they should be.
fn different<T: PartialEq>(actual: &[T], expected: &[T]) -> usize {
    std::iter::zip(actual, expected).filter(|(actual, expected)| actual != expected).count()
}

fn main() -> Result<ExitCode> {
    let context = cust::quick_init()?;
    let device = Device::from_cust_context(&context)?;
    let stream = Arc::new(CustStream::new(StreamFlags::DEFAULT, None)?);
    let shared = Stream::from_cust(&device, stream.clone())?;

    let (x, w) = (numbers(ROWS * INPUTS, 1), numbers(OUTPUTS * INPUTS, 2));
    let x_buffer = DeviceBuffer::from_slice(&x)?;
    let w_buffer = DeviceBuffer::from_slice(&w)?;
    let sums = Arc::new(DeviceBuffer::from_slice(&[f32::NAN; ROWS * OUTPUTS])?);
    let ids = DeviceBuffer::from_slice(&[u32::MAX; ROWS * K])?;

    // cust's memory and cust's stream: x·wᵀ by an operation of this crate's.
    {
        // SAFETY: until the stream has been waited for, nothing but its work uses the buffers.
        let (x, w, mut y) = unsafe {
            (
                Tensor::<f32>::from_cust(&shared, x_buffer, [ROWS, INPUTS])?,
                Tensor::<f32>::from_cust(&shared, w_buffer, [OUTPUTS, INPUTS])?,
                Tensor::<f32>::from_cust_mut(&shared, sums.clone(), [ROWS, OUTPUTS])?,
            )
        };
        ops::linear(&x, &w).on(&shared).run_into(&mut y)?;
    }

    // cust's module and launch of a kernel that ships, into a tensor of this crate's and a buffer of cust's.
    let module = Module::from_ptx(ptx("topk", "topk_f32_32")?, &[])?;
    let mut values = Tensor::<f32>::uninit_on(&shared, [ROWS, K])?;
    let to_values = values.to_cust_pointer_mut()?;
    let sizes = Sizes(TopkParams {
        row_stride: OUTPUTS as u64,
        rows: ROWS as u32,
        columns: OUTPUTS as u32,
        parts: 1,
        k: K as u32,
    });
    let blocks = (ROWS as u32).div_ceil(WARPS);
    // SAFETY: the arguments are those of `warpsmith_kernels::topk::topk`: the sums, no ids of their own, a place for ROWS · K values and ids, the sizes.
    unsafe {
        launch!(module.topk_f32_32<<<blocks, THREADS, 0, stream>>>(
            sums.as_device_ptr(),
            DevicePointer::<u32>::null(),
            to_values,
            ids.as_device_ptr(),
            sizes
        ))?;
    }
    stream.synchronize()?;

    let mut sums_here = vec![0.0f32; ROWS * OUTPUTS];
    sums.copy_to(&mut sums_here)?;
    let mut ids_here = vec![0u32; ROWS * K];
    ids.copy_to(&mut ids_here)?;
    let values_here = values.to_vec()?;

    let expected = product(&x, &w);
    let (expected_values, expected_ids) = largest(&expected);
    let wrong = [
        different(&sums_here, &expected),
        different(&values_here, &expected_values),
        different(&ids_here, &expected_ids),
    ];
    if wrong != [0; 3] {
        eprintln!("{}: wrong sums, values, ids: {wrong:?}", device.name());
        return Ok(ExitCode::FAILURE);
    }
    println!(
        "{}: {ROWS} x {OUTPUTS} sums by ops::linear on cust's memory and stream, and the {K} largest of each row by cust's launch! of topk_f32_32: all exact",
        device.name()
    );
    Ok(ExitCode::SUCCESS)
}
