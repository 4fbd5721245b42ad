//! Bad input is an error that names the operand, and never a panic.

use libtest_mimic::Failed;
use ndarray::{Array1, Array2};
use warpsmith::layers::Linear;
use warpsmith::ops::{self, Activation, gemm::Tile, peer::QueryNorm};
use warpsmith::{DType, Device, DeviceKind, Error, Tensor};
use warpsmith_lab::benchmark::{self, Options};
use warpsmith_lab::cases::{LinearCase, Placement};
use warpsmith_lab::validate;

use crate::{Case, cases};

pub(crate) const CASES: &[(&str, Case)] = cases![
    shapes_that_do_not_fit_are_named,
    tensors_and_streams_of_another_device_are_named,
    an_output_is_written_in_rows,
    options_that_do_not_fit_are_named,
    matrices_that_do_not_fit_are_named,
    an_output_that_shares_memory_is_refused,
    absurd_sizes_are_refused_before_anything_is_allocated,
    selections_that_do_not_fit_say_what_would,
    retrievals_that_do_not_fit_say_what_would,
    options_of_retrievals_that_do_not_fit_say_what_would,
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
    assert_error!(ops::linear(&x, &w).beta(1.0).run(), Argument, "beta");
    let mut y = zeros(device, 4, 5)?;
    let both = ops::linear(&x, &w).beta(1.0).residual(&residual, 1.0).run_into(&mut y);
    assert_error!(both, Argument, "beta");
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

/// Asserts that a call failed with exactly this message.
fn expect_message<R>(result: warpsmith::Result<R>, message: &str) -> Result<(), Failed> {
    match result {
        Err(error) if error.to_string() == message => Ok(()),
        Err(error) => Err(format!("expected `{message}`, got `{error}`").into()),
        Ok(_) => Err(format!("expected `{message}`, but the call succeeded").into()),
    }
}

fn selections_that_do_not_fit_say_what_would(device: &Device) -> Result<(), Failed> {
    let x = Tensor::<f32>::zeros(device, [3, 70])?;
    let many = "expected 1 to 64, and at most the 70 columns of x";
    for k in [0, 65, usize::MAX] {
        expect_message(ops::topk(&x, k).run(), &format!("topk: k is {k}, {many}"))?;
        expect_message(ops::topk(&x, k).implementation(), &format!("topk: k is {k}, {many}"))?;
    }
    let few = "topk: k is 6, expected 1 to 64, and at most the 5 columns of x";
    expect_message(ops::topk(&x.slice(1, 0..5)?, 6).run(), few)?;
    let none = "topk: k is 1, expected 1 to 64, and at most the 0 columns of x";
    expect_message(ops::topk(&x.slice(1, 0..0)?, 1).run(), none)?;
    let point = Tensor::<f32>::zeros(device, [])?;
    let message = "topk: `x` has shape [], expected [.., N], at least one axis";
    expect_message(ops::topk(&point, 1).run(), message)?;
    let other = if device.kind() == DeviceKind::Cpu { Device::emulator() } else { Device::cpu() };
    let message = format!("topk: `stream` is on {other}, expected {device}");
    expect_message(ops::topk(&x, 1).on(&other.default_stream()).run(), &message)?;

    let into = |values: &mut Tensor<f32>, ids: &mut Tensor<u32>, message: &str| {
        expect_message(ops::topk(&x, 2).run_into(values, ids), &format!("topk: {message}"))
    };
    let floats = |shape: &[usize]| Tensor::<f32>::zeros(device, shape);
    let words = |shape: &[usize]| Tensor::<u32>::zeros(device, shape);
    let fits: &[usize] = &[3, 2];
    let wanted = "expected [3, 2], as x and k give";
    into(&mut floats(&[2, 3])?, &mut words(fits)?, &format!("`values` has shape [2, 3], {wanted}"))?;
    into(&mut floats(fits)?, &mut words(&[3])?, &format!("`ids` has shape [3], {wanted}"))?;
    let mut gaps = floats(&[3, 4])?.slice(1, 0..2)?;
    into(&mut gaps, &mut words(fits)?, "`values` has strides [4, 1], expected elements without gaps")?;
    let mut there = floats(fits)?.to_device(&other)?;
    into(&mut there, &mut words(fits)?, &format!("`values` is on {other}, expected {device}"))?;
    let mut own = x.reshape([210])?.slice(0, 0..6)?.reshape(fits)?;
    into(&mut own, &mut words(fits)?, "`values` shares memory with `x`, expected separate memory")
}

/// One operand at a time is not as in a retrieval that runs.
fn retrievals_that_do_not_fit_say_what_would(device: &Device) -> Result<(), Failed> {
    let zeros = |shape: &[usize]| Tensor::<f32>::zeros(device, shape);
    let (x, w, keys) = (zeros(&[5, 7])?, zeros(&[12, 7])?, zeros(&[9, 3])?);
    let with = |x: &Tensor<f32>, w: &Tensor<f32>, keys: [&Tensor<f32>; 2], heads, k| {
        ops::product_key_topk(x, w, keys[0], keys[1], heads, k).run()
    };
    with(&x, &w, [&keys; 2], 2, 9)?;
    let refuse = |result: warpsmith::Result<_>, message: &str| {
        expect_message(result, &format!("product_key_topk: {message}"))
    };
    refuse(with(&x, &w, [&keys; 2], 0, 9), "heads is 0, expected at least 1")?;
    let message = "`x` has shape [], expected [.., D], at least one axis";
    refuse(with(&zeros(&[])?, &w, [&keys; 2], 2, 9), message)?;
    for shape in [&[9][..], &[3, 9, 3], &[2, 9, 3, 1]] {
        let message = "expected [n, d / 2], or [2, n, d / 2], for each of 2 heads";
        let message = format!("`keys_1` has shape {shape:?}, {message}");
        refuse(with(&x, &w, [&zeros(shape)?, &keys], 2, 9), &message)?;
    }
    for shape in [&[8, 3][..], &[9, 4], &[2, 9, 3]] {
        let message = format!("`keys_2` has shape {shape:?}, expected [9, 3], as keys_1 has");
        refuse(with(&x, &w, [&keys, &zeros(shape)?], 2, 9), &message)?;
    }
    let narrow = zeros(&[9, 0])?;
    let message = "`keys_1` has shape [9, 0], expected at least one column";
    refuse(with(&x, &w, [&narrow; 2], 2, 9), message)?;
    for shape in [&[11, 7][..], &[12, 8], &[12]] {
        let message = "expected [12, 7]: 2 heads of 6, and x has 7 columns";
        refuse(with(&x, &zeros(shape)?, [&keys; 2], 2, 9), &format!("`w_q` has shape {shape:?}, {message}"))?;
    }
    for (k, n) in [(0, 9), (10, 9), (65, 100)] {
        let keys = zeros(&[n, 3])?;
        let message = format!("k is {k}, expected 1 to 64, and at most the {n} sub-keys of a half");
        refuse(with(&x, &w, [&keys; 2], 2, k), &message)?;
    }
    // Sizes that take no memory.
    let (much, flat) = (zeros(&[1 << 30, 0])?, zeros(&[12, 0])?);
    let message = "number of tokens times heads of `x` is 2147483648, expected less than 2147483648";
    refuse(with(&much, &flat, [&keys; 2], 2, 9), message)?;
    let (single, two, many) = (zeros(&[1, 0])?, zeros(&[2, 0])?, zeros(&[65_537, 1])?);
    let message = "number of sub-keys of `keys_1` is 65537, expected less than 65537";
    refuse(with(&single, &two, [&many; 2], 1, 9), message)?;
    let heads = zeros(&[65_536, 1, 1])?;
    if device.kind() != DeviceKind::Cpu {
        let message = "number of heads of `keys_1` is 65536, expected at most 65535";
        refuse(with(&single, &zeros(&[131_072, 0])?, [&heads; 2], 65_536, 1), message)?;
    }

    let other = if device.kind() == DeviceKind::Cpu { Device::emulator() } else { Device::cpu() };
    let there = |tensor: &Tensor<f32>| tensor.to_device(&other);
    let elsewhere = |operand: &str| format!("`{operand}` is on {other}, expected {device}");
    refuse(with(&x, &there(&w)?, [&keys; 2], 2, 9), &elsewhere("w_q"))?;
    refuse(with(&x, &w, [&there(&keys)?, &keys], 2, 9), &elsewhere("keys_1"))?;
    refuse(with(&x, &w, [&keys, &there(&keys)?], 2, 9), &elsewhere("keys_2"))?;
    let op = || ops::product_key_topk(&x, &w, &keys, &keys, 2, 9);
    refuse(op().on(&other.default_stream()).run(), &elsewhere("stream"))?;
    let (bias, short) = (zeros(&[12])?, zeros(&[11])?);
    op().bias(&bias).run()?;
    refuse(op().bias(&there(&bias)?).run(), &elsewhere("bias"))?;
    refuse(op().bias(&short).run(), "`bias` has shape [11], expected [12]")
}

fn options_of_retrievals_that_do_not_fit_say_what_would(device: &Device) -> Result<(), Failed> {
    let zeros = |shape: &[usize]| Tensor::<f32>::zeros(device, shape);
    let (x, w, keys) = (zeros(&[5, 7])?, zeros(&[12, 7])?, zeros(&[9, 3])?);
    let op = || ops::product_key_topk(&x, &w, &keys, &keys, 2, 9);
    let refuse = |result: warpsmith::Result<_>, message: &str| {
        expect_message(result, &format!("product_key_topk: {message}"))
    };
    for temperature in [0.0, -1.5, f32::NAN, f32::INFINITY, 1e-40] {
        let message = "expected above 0, and a number as its reciprocal is";
        let message = format!("temperature is {temperature}, {message}");
        refuse(op().temperature(temperature).run(), &message)?;
    }
    for epsilon in [-1.0, f32::NAN, f32::INFINITY] {
        for norm in [QueryNorm::layer(epsilon), QueryNorm::rms(epsilon), QueryNorm::l2(epsilon)] {
            let message = format!("epsilon is {epsilon}, expected 0 or above");
            refuse(op().query_norm(norm).run(), &message)?;
        }
    }
    let (shared, each, wrong) = (zeros(&[6])?, zeros(&[2, 6])?, zeros(&[3, 6])?);
    let other = if device.kind() == DeviceKind::Cpu { Device::emulator() } else { Device::cpu() };
    let there = shared.to_device(&other)?;
    let plain = QueryNorm::layer(0.1);
    let norms = |tensor| {
        [
            ("weight of the norm", plain.weight(tensor)),
            ("bias of the norm", plain.bias(tensor)),
            ("mean", QueryNorm::batch(tensor, &shared, 0.1)),
            ("variance", QueryNorm::batch(&shared, tensor, 0.1)),
        ]
    };
    for tensor in [&shared, &each] {
        op().query_norm(plain.weight(tensor).bias(tensor)).run()?;
        op().query_norm(QueryNorm::batch(tensor, tensor, 0.1)).run()?;
    }
    for (operand, norm) in norms(&wrong) {
        let message = format!("`{operand}` has shape [3, 6], expected [6], or [2, 6]");
        refuse(op().query_norm(norm).run(), &message)?;
    }
    for (operand, norm) in norms(&there) {
        let message = format!("`{operand}` is on {other}, expected {device}");
        refuse(op().query_norm(norm).run(), &message)?;
    }
    let message = "`bias of the norm` has shape [2, 6], expected [6], as its weight has";
    refuse(op().query_norm(plain.weight(&shared).bias(&each)).run(), message)?;
    let message = "`variance` has shape [6], expected [2, 6], as the mean has";
    refuse(op().query_norm(QueryNorm::batch(&each, &shared, 0.1)).run(), message)
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
    let mut entries = warpsmith_kernels::MODULES.iter().flat_map(|module| module.entries);
    let product = entries.find(|entry| entry.name == "linear_f16_f16_128x128").ok_or("it does not ship")?;
    let shipped = product.text();
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
