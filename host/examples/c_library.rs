//! A library for programs in C and other languages: built as a `cdylib`, it exports its own functions and nothing of the driver's.
//!
//! ```sh
//! cargo build --release --example c_library      # target/release/examples/libc_library.so
//! ```

use ndarray::ArrayView2;
use warpsmith::ops;
use warpsmith::{Device, Tensor};

/// Computes y = x·wᵀ on the first GPU, else on the CPU: x is `rows` × `inputs`, w `outputs` × `inputs`, y `rows` × `outputs`, each row
/// after the other. Returns 0, or 1 and a line on the standard error stream.
///
/// # Safety
///
/// The pointers are of as many numbers, to be read and, for `y`, to be written; nothing else uses them meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn example_linear(
    x: *const f32,
    w: *const f32,
    y: *mut f32,
    rows: usize,
    inputs: usize,
    outputs: usize,
) -> i32 {
    // SAFETY: the caller's promise.
    let (x, w, y) = unsafe {
        (
            ArrayView2::from_shape_ptr((rows, inputs), x),
            ArrayView2::from_shape_ptr((outputs, inputs), w),
            std::slice::from_raw_parts_mut(y, rows * outputs),
        )
    };
    match linear(&x, &w, y) {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("{error}");
            1
        }
    }
}

fn linear(x: &ArrayView2<'_, f32>, w: &ArrayView2<'_, f32>, y: &mut [f32]) -> warpsmith::Result<()> {
    let device = Device::auto();
    let (x, w) = (Tensor::from_array(&device, x)?, Tensor::from_array(&device, w)?);
    let result = ops::linear(&x, &w).run()?.to_array()?;
    y.iter_mut().zip(&result).for_each(|(y, value)| *y = *value);
    Ok(())
}
