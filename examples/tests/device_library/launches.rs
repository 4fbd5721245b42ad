//! Launches without `unsafe`: what they refuse, by which names, and what they take.

use warpsmith::{Device, Error, Result, Tensor};

use crate::{kernels, module, vector};

/// Kernels of the names, and with the parameters, of others.
mod others {
    use warpsmith_dsl::prelude::*;

    /// Reads what the other one writes.
    #[kernel(block = [64, 1, 1])]
    pub fn exchanges(x: GlobalSlice<u32>, y: GlobalAtomics<u32>) {
        let _ = (x, y);
    }

    /// # Safety
    ///
    /// Never launched without a promise.
    #[kernel(block = [8, 4, 1])]
    pub unsafe fn doubled(x: GlobalMatrix<f32>, y: GlobalMatrixMut<f32>) {
        let _ = (x, y);
    }
}

#[test]
fn a_safe_kernel_is_of_its_own_source() -> Result<()> {
    let (_, module) = module()?;
    module.kernel::<kernels::exchanges>()?;
    match module.kernel::<others::exchanges>() {
        Err(Error::KernelMismatch { kernel, quantity, .. }) => {
            assert_eq!((kernel.as_str(), quantity), ("exchanges", "the fingerprint of the source"));
        }
        other => panic!("expected a mismatch, got {other:?}"),
    }
    // Its launches are unsafe: who launches it answers for what it is.
    module.kernel::<others::doubled>()?;
    Ok(())
}

/// A matrix whose elements are their places.
fn places(device: &Device, [rows, columns]: [usize; 2]) -> Result<Tensor<f32>> {
    let elements: Vec<f32> = (0..rows * columns).map(|i| i as f32).collect();
    Tensor::from_slice(device, &elements, [rows, columns])
}

#[test]
fn parts_of_a_tensor_that_have_nothing_in_common_are_taken() -> Result<()> {
    let (device, module) = module()?;
    let kernel = module.kernel::<kernels::doubled>()?;
    let whole = places(&device, [6, 14])?;
    let columns = |range| whole.slice(1, range);
    let rows = |range| whole.slice(0, range);
    // Side by side, in either order; above each other; a row, and columns beside it.
    for (x, mut y) in [
        (columns(0..7)?, columns(7..14)?),
        (columns(9..14)?, columns(4..9)?),
        (rows(0..3)?, rows(3..6)?),
        (rows(2..3)?.slice(1, 3..5)?, columns(5..14)?.slice(0, 2..3)?.slice(1, 0..2)?),
        (columns(5..6)?, columns(0..5)?.slice(1, 4..5)?),
    ] {
        let expected: Vec<f32> = x.to_vec()?.iter().map(|x| 2.0 * x).collect();
        let extent = [x.shape()[0], x.shape()[1]];
        kernel.run_over(&device.default_stream(), extent, (&x, &mut y))?;
        assert_eq!(y.to_vec()?, expected, "{x:?} to {y:?}");
    }
    Ok(())
}

#[test]
fn parts_of_a_tensor_that_share_an_element_are_refused_by_the_names_of_kernel_and_parameters() -> Result<()> {
    let (device, module) = module()?;
    let kernel = module.kernel::<kernels::doubled>()?;
    let whole = places(&device, [6, 14])?;
    let columns = |range| whole.slice(1, range);
    for (x, mut y) in [
        (columns(0..7)?, columns(6..13)?),
        (columns(7..14)?, columns(1..8)?),
        (whole.slice(0, 0..3)?, whole.slice(0, 2..5)?),
        (whole.clone(), columns(3..4)?),
        (whole.slice(0, 2..3)?, columns(3..7)?),
        // Rows that are further apart in one than in the other.
        (columns(2..4)?, whole.reshape([12, 7])?.slice(1, 3..5)?),
    ] {
        match kernel.run_over(&device.default_stream(), [1, 1], (&x, &mut y)) {
            Err(Error::Overlap { operation, operand, other }) => {
                assert_eq!((operation, operand, other), ("doubled", "y", "x"));
            }
            other => panic!("expected a refusal, got {other:?}"),
        }
    }
    Ok(())
}

#[test]
fn errors_of_a_launch_name_the_kernel() -> Result<()> {
    let (device, module) = module()?;
    let kernel = module.kernel::<kernels::doubled>()?;
    let stream = device.default_stream();
    let (x, mut y) = (places(&device, [4, 4])?, places(&device, [4, 4])?);
    let refused = |result: Result<()>, expected: &str| {
        let error = result.unwrap_err().to_string();
        assert!(error.starts_with(expected), "{error}");
    };
    let flat = x.reshape([16])?;
    refused(kernel.run_over(&stream, [4, 4], (&flat, &mut y)), "doubled: `x` has shape [16]");
    let columns = x.swap_axes(0, 1)?;
    refused(kernel.run_over(&stream, [4, 4], (&columns, &mut y)), "doubled: `x` has strides [1, 4]");
    let other = Device::emulator();
    let mut elsewhere = places(&other, [4, 4])?;
    refused(kernel.run_over(&stream, [4, 4], (&x, &mut elsewhere)), "doubled: `y` is on");
    refused(kernel.run_over(&other.default_stream(), [4, 4], (&x, &mut y)), "doubled: `stream` is on");
    let gaps = vector(&device, &[0u32; 8])?.reshape([2, 4])?.slice(1, 0..2)?;
    let mut counts = vector(&device, &[0u32; 3])?;
    let exchanges = module.kernel::<kernels::exchanges>()?;
    refused(exchanges.run_over(&stream, 4, (&gaps, &mut counts)), "exchanges: `x` has strides [4, 1]");
    Ok(())
}

#[test]
fn a_grid_whose_threads_have_no_numbers_is_refused() -> Result<()> {
    let (device, module) = module()?;
    let (x, mut y) = (places(&device, [1, 1])?, places(&device, [1, 1])?);
    let grid = [i32::MAX as u32, 65_535, 65_535];
    match module.kernel::<kernels::doubled>()?.run(&device.default_stream(), grid, (&x, &mut y)) {
        Err(Error::LaunchLimit { kernel, quantity, .. }) => {
            assert_eq!((kernel.as_str(), quantity), ("doubled", "the grid"));
        }
        other => panic!("expected a refusal, got {other:?}"),
    }
    Ok(())
}
