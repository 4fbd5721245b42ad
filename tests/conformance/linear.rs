//! What a bound does not cover: shapes with leading dimensions, views, streams, infinities, layers.

use half::{bf16, f16};
use libtest_mimic::Failed;
use ndarray::{Array1, Array2, Array3};
use warpsmith::layers::Linear;
use warpsmith::ops::gemm::Tile;
use warpsmith::ops::{self, Activation, Implementation, Precision};
use warpsmith::{Device, DeviceKind, Error, Tensor};

use crate::{Case, cases};

pub(crate) const CASES: &[(&str, Case)] = cases![
    leading_dimensions_are_rows,
    a_view_of_a_batch_is_read_in_place,
    a_result_is_the_same_on_every_stream_and_every_time,
    a_non_finite_input_shows_in_its_row_and_nowhere_else,
    results_beyond_f16_become_infinite,
    activations_hold_for_every_kind_of_number,
    what_would_run_is_told_of_an_output_that_is_there,
    a_layer_is_its_operation,
    a_layer_runs_on_any_stream_and_into_any_output,
    a_layer_is_as_exact_as_it_was_told,
];

fn ramp(rows: usize, columns: usize, step: usize) -> Array2<f32> {
    Array2::from_shape_fn((rows, columns), |(i, j)| ((i * step + j * 7) % 13) as f32 * 0.125 - 0.75)
}

fn leading_dimensions_are_rows(device: &Device) -> Result<(), Failed> {
    let (flat, w) = (ramp(30, 20, 3), Tensor::from_array(device, &ramp(9, 20, 5))?);
    let x = Tensor::from_array(device, &flat)?;
    let expected = ops::linear(&x, &w).run()?.to_vec()?;
    let y = ops::linear(&x.reshape([5, 2, 3, 20])?, &w).run()?;
    assert_eq!(y.shape(), [5, 2, 3, 9]);
    assert_eq!(y.to_vec()?, expected);
    let row = ops::linear(&x.slice(0, 4..5)?.reshape([20])?, &w).run()?;
    assert_eq!(row.shape(), [9]);
    assert_eq!(row.to_vec()?, expected[36..45]);
    Ok(())
}

fn a_view_of_a_batch_is_read_in_place(device: &Device) -> Result<(), Failed> {
    let batch = Array3::from_shape_fn((4, 6, 24), |(i, j, k)| ((i + 3 * j + 5 * k) % 11) as f32 - 5.0);
    let w = Tensor::from_array(device, &ramp(10, 16, 2))?;
    let part = Tensor::from_array(device, &batch)?.slice(2, 8..24)?;
    let copied = Tensor::from_array(device, &batch.slice(ndarray::s![.., .., 8..24]))?;
    let (viewed, copied) = (ops::linear(&part, &w).run()?, ops::linear(&copied, &w).run()?);
    assert_eq!(viewed.to_vec()?, copied.to_vec()?);
    Ok(())
}

fn a_result_is_the_same_on_every_stream_and_every_time(device: &Device) -> Result<(), Failed> {
    let (x, w) =
        (Tensor::from_array(device, &ramp(70, 100, 3))?, Tensor::from_array(device, &ramp(90, 100, 5))?);
    let op = ops::linear(&x, &w).activation(Activation::GeluErf);
    let expected = op.run()?.to_vec()?;
    let stream = device.new_stream()?;
    for _ in 0..3 {
        let y = ops::linear(&x, &w).activation(Activation::GeluErf).on(&stream).run()?;
        assert_eq!(y.to_vec()?, expected);
    }
    Ok(())
}

fn a_non_finite_input_shows_in_its_row_and_nowhere_else(device: &Device) -> Result<(), Failed> {
    let w = Tensor::from_array(device, &ramp(20, 40, 5).mapv(|v| if v == 0.0 { 1.0 } else { v }))?;
    // A NaN whose payload lies in the bits that TF32 lacks; it must not pass for an infinity either.
    let low_payload = f32::from_bits(0x7f80_0001);
    let values = [
        (0, 0, f32::NAN),
        (17, 39, f32::INFINITY),
        (5, 20, f32::NEG_INFINITY),
        (9, 7, low_payload),
        (10, 8, -low_payload),
    ];
    for (row, column, value) in values {
        let mut x = ramp(18, 40, 3);
        x[[row, column]] = value;
        let y = ops::linear(&Tensor::from_array(device, &x)?, &w).run()?.to_vec()?;
        for (index, y) in y.iter().enumerate() {
            assert_eq!(y.is_finite(), index / 20 != row, "{value} at [{row}, {column}]: y[{index}] is {y}");
            assert!(
                !value.is_nan() || y.is_nan() == (index / 20 == row),
                "a NaN stays one: y[{index}] is {y}"
            );
        }
    }
    Ok(())
}

fn results_beyond_f16_become_infinite(device: &Device) -> Result<(), Failed> {
    let of = |value: f32, shape: (usize, usize)| {
        Tensor::from_array(device, &Array2::from_elem(shape, f16::from_f32(value)))
    };
    let (x, w) = (of(256.0, (3, 64))?, of(16.0, (5, 64))?);
    assert!(ops::linear(&x, &w).run()?.to_vec()?.iter().all(|&y| y == f16::INFINITY));
    assert!(ops::linear(&x, &w).alpha(-1.0).run()?.to_vec()?.iter().all(|&y| y == f16::NEG_INFINITY));
    assert!(ops::linear(&x, &w).output::<f32>().run()?.to_vec()?.iter().all(|&y| y == 262_144.0));
    Ok(())
}

/// Each number stands at even columns and at odd ones, beside others of which some are not finite: kernels compute two at a time.
fn activations_hold_for_every_kind_of_number(device: &Device) -> Result<(), Failed> {
    let kinds =
        [0.0, 1e-45, 1e-40, 1e-30, 3e-5, 0.3, 1.0, 2.5, 42.5, 44.0, 88.0, 1e3, 3e9, 1e19, 3e19, 1e30, 3e38];
    let sweep = (0..64).map(|i| i as f32 * 0.23);
    let finite = kinds.into_iter().chain(sweep).flat_map(|z| [z, -z]);
    let numbers = finite.chain([f32::INFINITY, f32::NAN, f32::NEG_INFINITY, -f32::NAN, 1.0]);
    let once: Vec<f32> = numbers.flat_map(|z| [z, -0.75, z]).collect();
    assert_eq!(once.len() % 2, 1, "what is even in the first copy is odd in the second");
    let mut numbers = once.repeat(2);
    numbers.resize(numbers.len().next_multiple_of(8), f32::NAN);
    for activation in Activation::ALL {
        let check = |z: f64, y: f64, unit: f64| {
            let exact = activation.apply(z);
            let bound = activation.evaluation_ulps() * 2f64.powi(-24) * z.abs() + unit * exact.abs() + 1e-37;
            let holds = match z {
                _ if z.is_nan() => y.is_nan(),
                // These two are products of −∞ and zero there, which may stand for the limit.
                f64::NEG_INFINITY => {
                    let is_product = matches!(activation, Activation::GeluTanh | Activation::Silu);
                    y == exact || is_product && y.is_nan()
                }
                f64::INFINITY => y == exact,
                _ => (y - exact).abs() <= bound,
            };
            assert!(holds, "{activation}({z}) is {exact}, not {y}");
        };
        let (x, w) = (Array2::<f32>::zeros((70, 64)), Array2::<f32>::zeros((numbers.len(), 64)));
        let bias = Array1::from_vec(numbers.clone());
        let y = ops::linear(&Tensor::from_array(device, &x)?, &Tensor::from_array(device, &w)?)
            .bias(&Tensor::from_array(device, &bias)?)
            .activation(activation)
            .run()?;
        for (i, y) in y.to_vec()?.into_iter().enumerate() {
            let (z, y) = (f64::from(numbers[i % numbers.len()]), f64::from(y));
            check(z, y, 2f64.powi(-24));
            if activation == Activation::GeluErf && (-7.0..0.0).contains(&z) {
                // The tail is near zero, but not lost: a power times what is fitted to a thousandth.
                let exact = activation.apply(z);
                let holds = (y - exact).abs() <= 2e-3 * exact.abs() + 1e-37;
                assert!(holds, "{activation}({z}) is {exact}, and {y} is farther from it than 2 thousandths");
            }
        }
        let halves = bias.mapv(bf16::from_f32);
        let y = ops::linear(
            &Tensor::from_array(device, &x.mapv(bf16::from_f32))?,
            &Tensor::from_array(device, &w.mapv(bf16::from_f32))?,
        )
        .bias(&Tensor::from_array(device, &halves)?)
        .activation(activation)
        .run()?;
        for (i, y) in y.to_vec()?.into_iter().enumerate() {
            check(halves[i % numbers.len()].to_f64(), y.to_f64(), 2f64.powi(-8));
        }
    }
    Ok(())
}

/// Where that is not what would run for a new one, and where it is; and what `run_into` would refuse.
fn what_would_run_is_told_of_an_output_that_is_there(device: &Device) -> Result<(), Failed> {
    let zeros = |shape: &[usize]| Tensor::<bf16>::zeros(device, shape);
    let (x, w) = (zeros(&[128, 64])?, zeros(&[128, 64])?);
    let (linear, matmul) = (ops::linear(&x, &w), ops::matmul(&x, &w).transpose_b());
    let of_new = linear.implementation()?;
    for y in [zeros(&[128, 128])?, zeros(&[128, 136])?.slice(1, 0..128)?] {
        assert_eq!((linear.implementation_into(&y)?, matmul.implementation_into(&y)?), (of_new, of_new));
    }
    // Rows that the copy engine does not store.
    let mut apart = zeros(&[128, 130])?.slice(1, 0..128)?;
    let is_hopper = device.properties().compute_capability == (9, 0);
    let of_apart = linear.implementation_into(&apart)?;
    assert_eq!(matmul.implementation_into(&apart)?, of_apart);
    assert_eq!(of_apart != of_new, is_hopper, "{of_new}; {of_apart}");
    let tile = Tile::HopperCooperative64x128;
    if is_hopper {
        let op = ops::linear(&x, &w).tile(tile);
        assert!(op.implementation().is_ok());
        let (told, ran) = (op.implementation_into(&apart), op.run_into(&mut apart));
        assert_eq!(told.map_err(|error| error.to_string()), Err(ran.expect_err("a tile").to_string()));
    }

    // Leading axes that are not evenly spaced are no rows of one matrix.
    let batch = x.slice(0, 0..32)?.reshape([4, 8, 64])?;
    let op = ops::linear(&batch, &w);
    let (new, gaps) = (op.implementation()?, zeros(&[4, 9, 128])?.slice(1, 0..8)?);
    let blocks = |ran: Implementation| ran.launches().iter().map(|launch| launch.blocks).sum::<u32>();
    let has_kernels = device.kind() != DeviceKind::Cpu;
    let of_gaps = op.implementation_into(&gaps)?;
    assert_eq!(blocks(of_gaps) > blocks(new), has_kernels, "{new}; {of_gaps}");

    let shared = ops::linear(&apart.slice(1, 0..64)?, &w).implementation_into(&apart);
    assert!(matches!(shared, Err(Error::Overlap { operand: "y", other: "x", .. })), "{shared:?}");
    for mut wrong in [zeros(&[128, 127])?, zeros(&[128, 128])?.swap_axes(0, 1)?] {
        let refused = linear.run_into(&mut wrong).expect_err("an output that does not fit").to_string();
        for told in [linear.implementation_into(&wrong), matmul.implementation_into(&wrong)] {
            let told = told.expect_err("an output that does not fit").to_string();
            assert_eq!(told.replace("matmul:", "linear:").replace("a and b", "x and w"), refused);
        }
    }
    Ok(())
}

fn a_layer_is_its_operation(device: &Device) -> Result<(), Failed> {
    let (x, w) = (Tensor::from_array(device, &ramp(7, 12, 3))?, Tensor::from_array(device, &ramp(5, 12, 5))?);
    let b = Tensor::from_array(device, &Array1::from_vec(vec![0.5f32, -1.0, 0.0, 2.0, -3.0]))?;
    let layer = Linear::new(w.clone(), Some(b.clone()), Activation::Silu)?;
    let expected = ops::linear(&x, &w).bias(&b).activation(Activation::Silu).run()?.to_vec()?;
    assert_eq!(layer.forward(&x)?.to_vec()?, expected);
    let ran = layer.implementation(&x)?;
    let fits = match device.kind() {
        DeviceKind::Cpu => ran == Implementation::Cpu,
        DeviceKind::Emulator => {
            matches!(ran, Implementation::Emulator { kernel, .. } if kernel.contains("f32"))
        }
        _ => matches!(ran, Implementation::Cuda { kernel, .. } if kernel.contains("f32")),
    };
    assert!(fits, "{ran}");
    Ok(())
}

fn a_layer_runs_on_any_stream_and_into_any_output(device: &Device) -> Result<(), Failed> {
    let tensor = |matrix: Array2<f32>| Tensor::from_array(device, &matrix.mapv(bf16::from_f32));
    let (x, w) = (tensor(ramp(70, 100, 3))?, tensor(ramp(90, 100, 5))?);
    let layer = Linear::new(w.clone(), None, Activation::GeluErf)?;
    let expected = layer.forward(&x)?.to_vec()?;
    let stream = device.new_stream()?;
    assert_eq!(layer.forward_on(&x, &stream)?.to_vec()?, expected);
    // Columns of a larger matrix, whose others stay as they are.
    let all = Tensor::from_array(device, &Array2::from_elem((70, 100), bf16::ONE))?;
    layer.forward_into(&x, &mut all.slice(1, 4..94)?, &stream)?;
    let all = all.to_vec()?;
    let (mut y, mut beside) = (Vec::new(), Vec::new());
    for row in all.chunks(100) {
        y.extend_from_slice(&row[4..94]);
        beside.extend(row[..4].iter().chain(&row[94..]));
    }
    assert_eq!(y, expected);
    assert!(beside.len() == 70 * 10 && beside.into_iter().all(|&y| y == bf16::ONE));
    let mut exact = Tensor::<f32>::zeros(device, [70, 90])?;
    layer.forward_into(&x, &mut exact, &stream)?;
    assert_eq!(exact.to_vec()?, layer.forward_as::<f32>(&x)?.to_vec()?);
    // With what the output holds.
    let held = layer.forward_as::<f32>(&x)?;
    layer.operation(&x).output::<f32>().beta(1.0).run_into(&mut exact)?;
    let twice = ops::linear(&x, &w).output::<f32>().residual(&held, 1.0);
    assert!(exact.to_vec()? == twice.activation(Activation::GeluErf).run()?.to_vec()?);
    let other = Device::emulator().new_stream()?;
    assert!(matches!(layer.forward_on(&x, &other), Err(Error::DeviceMismatch { .. })));
    Ok(())
}

fn a_layer_is_as_exact_as_it_was_told(device: &Device) -> Result<(), Failed> {
    let thirds = |rows, step| ramp(rows, 136, step).mapv(|value| value / 3.0);
    let (x, w) = (Tensor::from_array(device, &thirds(70, 3))?, Tensor::from_array(device, &thirds(96, 5))?);
    let layer = Linear::new(w.clone(), None, Activation::None)?;
    assert_eq!(layer.precision(), Precision::Full);
    let rounding = layer.clone().with_precision(Precision::Tf32);
    assert_eq!(rounding.precision(), Precision::Tf32);
    let expected = ops::linear(&x, &w).precision(Precision::Tf32).run()?.to_vec()?;
    assert_eq!(rounding.forward(&x)?.to_vec()?, expected);
    if device.kind() == DeviceKind::Cpu
        || !Tile::HopperPingPong128x128.runs_on(device.properties().compute_capability)
    {
        return Ok(());
    }
    // A kernel that rounds is for the layer that may alone.
    let run = |layer: &Linear<f32>| layer.operation(&x).tile(Tile::HopperPingPong128x128).run();
    assert!(matches!(run(&layer), Err(Error::Argument { argument: "tile", .. })));
    assert!(run(&rounding)?.to_vec()? != layer.forward(&x)?.to_vec()?);
    Ok(())
}
