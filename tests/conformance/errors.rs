//! Bad input is an error that names the operand, and never a panic.

use libtest_mimic::Failed;
use ndarray::{Array1, Array2};
use warpsmith::benchmark::{self, Options};
use warpsmith::layers::Linear;
use warpsmith::ops::{self, Activation, linear::Tile};
use warpsmith::validate::{self, LinearCase, Placement};
use warpsmith::{DType, Device, DeviceKind, Error, Tensor};

use crate::{Case, cases};

pub(crate) const CASES: &[(&str, Case)] = cases![
    shapes_that_do_not_fit_are_named,
    tensors_and_streams_of_another_device_are_named,
    an_output_is_written_in_rows,
    options_that_do_not_fit_are_named,
    matrices_that_do_not_fit_are_named,
    an_output_that_shares_memory_is_refused,
    absurd_sizes_are_refused_before_anything_is_allocated,
    absurd_cases_are_neither_validated_nor_measured,
    a_tile_without_a_kernel_is_refused,
    ptx_that_is_none_is_refused,
    a_device_that_is_not_there_is_an_error,
];

fn zeros(device: &Device, rows: usize, columns: usize) -> warpsmith::Result<Tensor<f32>> {
    Tensor::from_array(device, &Array2::zeros((rows, columns)))
}

/// Asserts that a call failed with a variant, and that its message names the operand.
macro_rules! assert_error {
    ($call:expr, $variant:ident, $operand:literal) => {{
        match $call {
            Err(error @ Error::$variant { .. }) => {
                let text = error.to_string();
                assert!(text.contains($operand), "`{text}` does not name `{}`", $operand);
            }
            Err(other) => return Err(format!("expected {}, got {other:?}", stringify!($variant)).into()),
            Ok(_) => return Err(format!("{} succeeded", stringify!($call)).into()),
        }
    }};
}

fn shapes_that_do_not_fit_are_named(device: &Device) -> Result<(), Failed> {
    let (x, w) = (zeros(device, 4, 6)?, zeros(device, 5, 6)?);
    let vector = |length: usize| Tensor::from_array(device, &Array1::<f32>::zeros(length));
    assert_error!(ops::linear(&zeros(device, 4, 7)?, &w).run(), Shape, "`w`");
    assert_error!(ops::linear(&x, &vector(6)?).run(), Shape, "`w`");
    assert_error!(ops::linear(&x, &w.reshape([5, 2, 3])?).run(), Shape, "`w`");
    assert_error!(ops::linear(&x, &w).bias(&vector(4)?).run(), Shape, "`bias`");
    assert_error!(ops::linear(&vector(1)?.reshape([])?, &w).run(), Shape, "`x`");
    assert_error!(ops::linear(&x, &w).run_into(&mut zeros(device, 5, 4)?), Shape, "`y`");
    assert_error!(ops::linear(&x, &w).run_into(&mut zeros(device, 1, 20)?), Shape, "`y`");
    assert_error!(Linear::new(vector(6)?, None, Activation::None), Shape, "`weight`");
    assert_error!(Linear::new(w, Some(vector(6)?), Activation::None), Shape, "`bias`");
    Ok(())
}

fn tensors_and_streams_of_another_device_are_named(device: &Device) -> Result<(), Failed> {
    let other = if device.kind() == DeviceKind::Cpu { Device::emulator() } else { Device::cpu() };
    let (x, w) = (zeros(device, 4, 6)?, zeros(device, 5, 6)?);
    let b = Tensor::from_array(&other, &Array1::<f32>::zeros(5))?;
    assert_error!(ops::linear(&x, &zeros(&other, 5, 6)?).run(), DeviceMismatch, "`w`");
    assert_error!(ops::linear(&x, &w).bias(&b).run(), DeviceMismatch, "`bias`");
    assert_error!(ops::linear(&x, &w).run_into(&mut zeros(&other, 4, 5)?), DeviceMismatch, "`y`");
    assert_error!(ops::linear(&x, &w).on(&other.default_stream()).run(), DeviceMismatch, "`stream`");
    assert_error!(Linear::new(w, Some(b), Activation::None), DeviceMismatch, "`bias`");
    Ok(())
}

fn an_output_is_written_in_rows(device: &Device) -> Result<(), Failed> {
    let (x, w) = (zeros(device, 4, 6)?, zeros(device, 5, 6)?);
    let turned = |rows: usize, columns: usize| zeros(device, columns, rows)?.swap_axes(0, 1);
    assert_error!(ops::linear(&x, &w).run_into(&mut turned(4, 5)?), Stride, "`y`");
    assert_error!(ops::linear(&x, &w).residual(&turned(4, 5)?, 1.0).run(), Stride, "`residual`");
    assert_error!(ops::linear(&x, &w).preactivation(&mut turned(4, 5)?).run(), Stride, "`preactivation`");
    // Inputs may lie in any way.
    assert_eq!(ops::linear(&turned(4, 6)?, &turned(5, 6)?).run()?.shape(), [4, 5]);
    let batch = zeros(device, 12, 6)?.reshape([3, 4, 6])?.slice(1, 0..3)?;
    assert_eq!(ops::linear(&batch, &w).run()?.shape(), [3, 3, 5]);
    Ok(())
}

fn options_that_do_not_fit_are_named(device: &Device) -> Result<(), Failed> {
    let (x, w) = (zeros(device, 4, 6)?, zeros(device, 5, 6)?);
    let vector = |length: usize| Tensor::from_array(device, &Array1::<f32>::zeros(length));
    let words = |rows: usize, columns: usize| Tensor::<u32>::zeros(device, [rows, columns]);
    assert_error!(ops::linear(&x, &w).residual(&zeros(device, 5, 4)?, 1.0).run(), Shape, "`residual`");
    assert_error!(ops::linear(&x, &w).row_scale(&vector(5)?).run(), Shape, "`row_scale`");
    assert_error!(ops::linear(&x, &w).column_scale(&vector(4)?).run(), Shape, "`column_scale`");
    assert_error!(ops::linear(&x, &w).relu_mask(&mut words(4, 2)?).run(), Shape, "`relu_mask`");
    assert_error!(
        ops::linear(&x, &w).preactivation(&mut zeros(device, 4, 4)?).run(),
        Shape,
        "`preactivation`"
    );
    let residual = zeros(device, 4, 5)?;
    assert_error!(ops::linear(&x, &w).residual(&residual, 1.0).output::<f32>().run(), Argument, "residual");
    assert_error!(ops::matmul(&x, &w).transpose_b().beta(1.0).run(), Argument, "beta");
    let mut y = zeros(device, 4, 5)?;
    let both = ops::matmul(&x, &w).transpose_b().beta(1.0).residual(&residual, 1.0).run_into(&mut y);
    assert_error!(both, Argument, "beta");
    // What is written is apart from all else.
    let mut z = y.clone();
    assert_error!(ops::linear(&x, &w).preactivation(&mut z).run_into(&mut y), Overlap, "`preactivation`");
    let mut part = x.slice(1, 0..5)?;
    assert_error!(ops::linear(&x, &w).preactivation(&mut part).run(), Overlap, "`x`");
    // A residual may be the output itself, but no other view of its memory.
    let rows = zeros(device, 5, 5)?;
    let above = rows.slice(0, 0..4)?;
    ops::linear(&x, &w).residual(&above, 1.0).run_into(&mut rows.slice(0, 0..4)?)?;
    let below = ops::linear(&x, &w).residual(&above, 1.0).run_into(&mut rows.slice(0, 1..5)?);
    assert_error!(below, Overlap, "`residual`");
    Ok(())
}

fn matrices_that_do_not_fit_are_named(device: &Device) -> Result<(), Failed> {
    let of = |shape: &[usize]| Tensor::<f32>::zeros(device, shape);
    assert_error!(ops::matmul(&of(&[4, 6])?, &of(&[5, 6])?).run(), Shape, "`b`");
    assert_error!(ops::matmul(&of(&[4, 6])?, &of(&[6, 5])?).transpose_b().run(), Shape, "`b`");
    assert_error!(ops::matmul(&of(&[6])?, &of(&[6, 5])?).run(), Shape, "`a`");
    assert_error!(ops::matmul(&of(&[4, 6])?, &of(&[6])?).run(), Shape, "`b`");
    assert_error!(ops::matmul(&of(&[2, 4, 6])?, &of(&[3, 6, 5])?).run(), Shape, "`b`");
    let (a, b) = (of(&[2, 4, 6])?, of(&[2, 6, 5])?);
    assert_error!(ops::matmul(&a, &b).run_into(&mut of(&[4, 5])?), Shape, "`y`");
    assert_error!(ops::matmul(&a, &b).bias(&of(&[4])?).run(), Shape, "`bias`");
    Ok(())
}

fn an_output_that_shares_memory_is_refused(device: &Device) -> Result<(), Failed> {
    let (x, w) = (zeros(device, 8, 6)?, zeros(device, 6, 6)?);
    assert_error!(ops::linear(&x, &w).run_into(&mut x.clone()), Overlap, "`x`");
    assert_error!(ops::linear(&x.slice(0, 0..4)?, &w).run_into(&mut x.slice(0, 3..7)?), Overlap, "`x`");
    let square = zeros(device, 6, 6)?;
    assert_error!(ops::linear(&square, &w).run_into(&mut w.clone()), Overlap, "`w`");
    ops::linear(&x.slice(0, 0..4)?, &w).run_into(&mut x.slice(0, 4..8)?)?;
    Ok(())
}

fn absurd_sizes_are_refused_before_anything_is_allocated(device: &Device) -> Result<(), Failed> {
    assert_error!(Tensor::<f32>::zeros(device, [usize::MAX / 2, 3]), SizeLimit, "shape");
    let empty = |rows: usize| Tensor::<f32>::zeros(device, [rows, 0]);
    let w = empty(4)?;
    assert_error!(w.reshape([0, usize::MAX, 2]), SizeLimit, "shape");
    let wide = empty((1 << 31) - 1)?;
    if device.kind() == DeviceKind::Cpu {
        // The CPU has no limit but its memory, which no inputs need here.
        assert_error!(ops::linear(&empty(1 << 46)?, &w).run(), OutOfMemory, "1125899906842624 bytes");
        assert_error!(ops::linear(&w, &empty(1 << 46)?).run(), OutOfMemory, "1125899906842624 bytes");
        assert_error!(ops::linear(&wide, &wide).run(), SizeLimit, "shape");
    } else {
        assert_error!(ops::linear(&empty(1 << 31)?, &w).run(), SizeLimit, "`x`");
        assert_error!(ops::linear(&w, &empty(1 << 40)?).run(), SizeLimit, "`w`");
        assert_error!(ops::linear(&wide, &wide).run(), SizeLimit, "`y`");
    }
    Ok(())
}

fn absurd_cases_are_neither_validated_nor_measured(device: &Device) -> Result<(), Failed> {
    let case = |m, k, n| LinearCase::new(DType::F32, m, k, n);
    let beside = Placement { before: usize::MAX, after: 1 };
    for case in [
        case(usize::MAX, 2, 2),
        case(2, usize::MAX, 2),
        case(2, 2, usize::MAX),
        LinearCase { x: beside, ..case(2, 2, 2) },
        LinearCase { w: beside, ..case(2, 2, 2) },
        LinearCase { y: beside, ..case(2, 2, 2) },
    ] {
        assert_error!(validate::linear(device, &case), SizeLimit, "validate::linear");
        assert_error!(validate::linear_bits(device, &case), SizeLimit, "validate::linear");
        assert_error!(benchmark::linear(device, &case, &Options::default()), SizeLimit, "benchmark::linear");
    }
    // Its operands can be addressed, but no machine holds them.
    let large = case(1 << 34, 1 << 14, 2);
    assert_error!(validate::linear(device, &large), OutOfMemory, "out of memory");
    assert_error!(benchmark::linear(device, &large, &Options::default()), OutOfMemory, "out of memory");
    Ok(())
}

fn a_tile_without_a_kernel_is_refused(device: &Device) -> Result<(), Failed> {
    let (x, w) = (zeros(device, 4, 8)?, zeros(device, 5, 8)?);
    let forced = ops::linear(&x, &w).tile(Tile::T128x128);
    if device.kind() == DeviceKind::Cpu {
        forced.run()?; // Documented: the CPU implementation has no tiles to choose from.
        return Ok(());
    }
    assert_error!(forced.run(), Argument, "128x128");
    Ok(())
}

fn ptx_that_is_none_is_refused(device: &Device) -> Result<(), Failed> {
    let shipped = warpsmith_kernels::MODULES[0].text;
    let corrupt = shipped.replacen("mma.sync", "mma.synk", 1);
    let truncated = &shipped[..shipped.len() / 2];
    for text in ["", "this is no PTX", &corrupt, truncated] {
        let refused = match device.load_ptx("broken.ptx", text) {
            Err(Error::UnsupportedDevice { .. }) => device.kind() == DeviceKind::Cpu,
            Err(error @ Error::InvalidPtx { .. }) => error.to_string().contains("broken.ptx"),
            Err(error) => return Err(format!("an unexpected error: {error:?}").into()),
            Ok(_) => false,
        };
        assert!(refused, "text that starts with {:?} was not refused as it should be", text.get(..20));
    }
    Ok(())
}

fn a_device_that_is_not_there_is_an_error(_: &Device) -> Result<(), Failed> {
    match Device::cuda(4096) {
        Err(Error::NoDriver { reason, .. }) => assert!(!reason.is_empty()),
        Err(Error::NoSuchDevice { requested, .. }) => assert!(requested.contains("4096"), "{requested}"),
        other => return Err(format!("there is no GPU 4096: {other:?}").into()),
    }
    assert_error!("gpu".parse::<Device>(), NoSuchDevice, "gpu");
    assert_error!("cuda:x".parse::<Device>(), NoSuchDevice, "cuda:x");
    Ok(())
}
