//! A library for Python programs that have tensors of NumPy's, PyTorch's or another library with DLPack. `dlpack.py` beside this uses it.
//!
//! ```sh
//! cargo build --release --features dlpack --example dlpack      # target/release/examples/libdlpack.so
//! python host/examples/dlpack.py target/release/examples/libdlpack.so
//! ```

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::{Mutex, PoisonError};

use warpsmith::dlpack::ManagedTensor;
use warpsmith::dlpack::ffi::DLManagedTensorVersioned;
use warpsmith::{Device, Result, Stream, Tensor, ops};

/// The device of this number, -1 for the CPU. A GPU stays open, with the kernels that it has loaded.
fn device(number: i32) -> Result<Device> {
    static GPUS: Mutex<BTreeMap<usize, Device>> = Mutex::new(BTreeMap::new());
    let Ok(number) = usize::try_from(number) else { return Ok(Device::cpu()) };
    let mut gpus = GPUS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(device) = gpus.get(&number) {
        return Ok(device.clone());
    }
    let device = Device::cuda(number)?;
    gpus.insert(number, device.clone());
    Ok(device)
}

/// Two tensors of `f32` and the stream that they are used on.
///
/// # Safety
///
/// The tensors are as they say, the stream is valid until the work is done.
unsafe fn operands(
    number: i32,
    stream: *mut c_void,
    tensors: [*mut DLManagedTensorVersioned; 2],
) -> Result<(Stream, [Tensor<f32>; 2])> {
    // Both are taken, whatever becomes of one, so that both are given back.
    // SAFETY: the caller's promise.
    let [first, second] = tensors.map(|tensor| unsafe { ManagedTensor::from_raw(tensor) });
    let device = device(number)?;
    let stream = match number {
        // SAFETY: the caller's promise.
        0.. => unsafe { Stream::borrow(&device, stream, ())? },
        _ => device.default_stream(),
    };
    // SAFETY: the caller's promise.
    let operands = unsafe { [first?.into_tensor(&stream)?, second?.into_tensor(&stream)?] };
    Ok((stream, operands))
}

/// 0, or 1 and a line on the standard error stream.
fn told(result: Result<()>) -> i32 {
    match result {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("{error}");
            1
        }
    }
}

/// Gives x·wᵀ, on the GPU `number` and its `stream`, or on the CPU for -1: x is rows × inputs, w outputs × inputs, all are of `f32`. Returns 0, or 1
/// and a line on the standard error stream.
///
/// # Safety
///
/// The tensors are as they say, and are taken. What writes them is ordered with the stream's work. `y` is the place for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn example_linear(
    number: i32,
    stream: *mut c_void,
    x: *mut DLManagedTensorVersioned,
    w: *mut DLManagedTensorVersioned,
    y: *mut *mut DLManagedTensorVersioned,
) -> i32 {
    let run = || {
        // SAFETY: the caller's promise.
        let (stream, [x, w]) = unsafe { operands(number, stream, [x, w])? };
        let mut result = ops::linear(&x, &w).on(&stream).run()?;
        let given = match number {
            0.. => result.to_dlpack_mut(None)?,
            _ => result.to_dlpack(None)?,
        };
        // SAFETY: the caller's promise.
        unsafe { y.write(given.into_raw()) };
        Ok(())
    };
    told(run())
}

/// Adds x·wᵀ to y. Otherwise as [`example_linear`].
///
/// # Safety
///
/// As there, and y is taken too, and may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn example_linear_add(
    number: i32,
    stream: *mut c_void,
    x: *mut DLManagedTensorVersioned,
    w: *mut DLManagedTensorVersioned,
    y: *mut DLManagedTensorVersioned,
) -> i32 {
    // SAFETY: the caller's promise.
    let y = unsafe { ManagedTensor::from_raw(y) };
    let run = || {
        // SAFETY: the caller's promise.
        let (stream, [x, w]) = unsafe { operands(number, stream, [x, w])? };
        // SAFETY: the caller's promise.
        let mut y: Tensor<f32> = unsafe { y?.into_tensor(&stream)? };
        ops::linear(&x, &w).beta(1.0).on(&stream).run_into(&mut y)
    };
    told(run())
}
