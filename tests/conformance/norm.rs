//! Norms of rows and their gradients: drawn shapes, types and options against the exact ones, the public reports of what others get wrong, and what is refused.

use half::bf16;
use libtest_mimic::Failed;
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use warpsmith::ops::norm::{NormGradientOutputs, NormOutputs};
use warpsmith::{DType, Device, DeviceKind, Tensor, ops};
use warpsmith_lab::cases::{Data, NormCase, Placement};
use warpsmith_lab::validate;

use crate::{Case, cases, drawn};

pub(crate) const CASES: &[(&str, Case)] = cases![
    norms_drawn_are_within_their_bounds,
    normed_rows_of_two_sizes_are_exact,
    a_mean_far_from_zero_cancels_nothing,
    a_row_of_one_element_is_the_bias,
    a_row_does_not_depend_on_the_others,
    norms_go_where_they_are_wanted,
    gradients_are_added_to_what_is_there,
    norms_of_nothing_are_empty,
    a_captured_norm_runs_again_on_what_is_there_then,
    what_does_not_fit_a_norm_is_refused,
];

/// The types of rows.
const TYPES: [DType; 3] = [DType::F16, DType::Bf16, DType::F32];

fn check(device: &Device, case: &NormCase) -> Result<(), TestCaseError> {
    let what = format!("{} {}→{} {}", case.shape(), case.dtype, case.output, case.options());
    drawn::passed(validate::norm(device, case), &what, case.rows * case.columns).map(drop)
}

fn checked(device: &Device, case: &NormCase) -> Result<(), Failed> {
    Ok(check(device, case).map_err(|error| error.to_string())?)
}

/// Any norm that a device does soon.
fn any_norm(is_emulated: bool) -> impl Strategy<Value = NormCase> {
    let most = if is_emulated { 9000 } else { 40_000 };
    let columns = prop_oneof![0usize..=40, 1usize..=most, (1usize..=most / 8).prop_map(|eighth| 8 * eighth)];
    let dtype = || prop::sample::select(&TYPES[..]);
    let vector = move || prop::option::of(prop::sample::select(&TYPES[..]));
    let sizes = (columns, any::<u32>()).prop_map(move |(columns, seed)| {
        let rows = seed as usize % (1 + 40_000 / (columns + 200));
        [rows, columns]
    });
    let placement = prop_oneof![
        3 => Just((0, 0)),
        1 => (0usize..9, 0usize..9),
        1 => Just((8, 8)),
    ];
    let options = (any::<bool>(), any::<bool>(), prop::sample::select(&[0.0f32, 0.0, 1.0][..]));
    let mean = prop::sample::select(&[0.0f32, 0.0, 3.0, -50.0][..]);
    (sizes, [dtype(), dtype()], [vector(), vector()], options, mean, placement, any::<u32>()).prop_map(
        |([rows, columns], [dtype, output], [weight, bias], options, mean, (before, after), seed)| {
            let (is_centered, residual, weight_offset) = options;
            NormCase {
                output,
                weight,
                bias,
                is_centered,
                residual,
                weight_offset,
                mean,
                placement: Placement { before, after },
                seed: seed.into(),
                ..NormCase::new(dtype, rows, columns)
            }
        },
    )
}

fn norms_drawn_are_within_their_bounds(device: &Device) -> Result<(), Failed> {
    let strategy = any_norm(device.kind() == DeviceKind::Emulator);
    Ok(drawn::runner(device, [60, 150])?.run(&strategy, |case| check(device, &case))?)
}

fn normed_rows_of_two_sizes_are_exact(device: &Device) -> Result<(), Failed> {
    for dtype in TYPES {
        for [rows, columns] in [[9, 2], [5, 64], [3, 1022], [2, 9000]] {
            let case = NormCase {
                data: Data::Integers,
                weight: Some(dtype),
                bias: Some(dtype),
                ..NormCase::new(dtype, rows, columns)
            };
            checked(device, &case)?;
            checked(device, &NormCase { is_centered: false, bias: None, output: DType::F32, ..case })?;
        }
    }
    Ok(())
}

/// Rows about numbers of which f32 has few digits left: <https://github.com/tracel-ai/burn/issues/5607> and others.
fn a_mean_far_from_zero_cancels_nothing(device: &Device) -> Result<(), Failed> {
    for (mean, expected) in [(100.0f32, -1.3415f32), (10_000.0, -1.3313)] {
        let x: Vec<f32> = (0..16).map(|i| mean + i as f32 * 1e-3).collect();
        let y = ops::layer_norm(&Tensor::from_slice(device, &x, [1, 16])?).run()?.to_vec()?;
        assert!((y[0] - expected).abs() < 2e-3, "{mean}: {}", y[0]);
    }
    for columns in [256, 1024] {
        for (base, spread) in [(1e6f32, 1e-3f32), (1e7, 1e-2), (1e15, 1.0)] {
            let x: Vec<f32> = (0..columns).map(|i| base + (i % 5) as f32 * spread).collect();
            let y = ops::layer_norm(&Tensor::from_slice(device, &x, [1, columns])?).run()?.to_vec()?;
            assert!(y.iter().all(|y| y.is_finite() && y.abs() < 40.0), "{base} {spread}");
        }
        let case = NormCase { mean: 1e6, weight: Some(DType::F32), ..NormCase::new(DType::F32, 3, columns) };
        checked(device, &case)?;
    }
    Ok(())
}

/// <https://github.com/pytorch/pytorch/issues/188372>: what is left of a single element is the bias, and nothing of the weight's gradient.
fn a_row_of_one_element_is_the_bias(device: &Device) -> Result<(), Failed> {
    let x = Tensor::from_slice(device, &[1e6f32, -3.0, 0.0], [3, 1])?;
    let (weight, bias) =
        (Tensor::from_slice(device, &[3.0f32], [1])?, Tensor::from_slice(device, &[0.25f32], [1])?);
    let norm = ops::layer_norm(&x).weight(&weight).bias(&bias);
    assert_eq!(norm.run()?.to_vec()?, [0.25; 3]);
    let dy = Tensor::from_slice(device, &[1.0f32, 2.0, 4.0], [3, 1])?;
    let gradients = norm.backward(&dy).run()?;
    assert_eq!(gradients.dx.to_vec()?, [0.0; 3]);
    assert_eq!((gradients.dweight.to_vec()?, gradients.dbias.to_vec()?), (vec![0.0], vec![7.0]));
    Ok(())
}

fn rows_of(device: &Device, rows: usize, columns: usize) -> Result<Tensor<bf16>, Failed> {
    let number = |at: usize| bf16::from_f32(((at * 7919) % 251) as f32 / 64.0 - 2.0);
    Ok(Tensor::from_slice(device, &(0..rows * columns).map(number).collect::<Vec<_>>(), [rows, columns])?)
}

fn a_row_does_not_depend_on_the_others(device: &Device) -> Result<(), Failed> {
    for columns in [40, 768, 8200] {
        let x = rows_of(device, 37, columns)?;
        let all = ops::layer_norm(&x).run()?;
        for row in [0, 5, 36] {
            let alone = ops::layer_norm(&x.slice(0, row..row + 1)?).run()?;
            assert!(
                alone.to_vec()? == all.slice(0, row..row + 1)?.to_vec()?,
                "row {row} of {columns} columns"
            );
        }
        // A row that is no number stays alone.
        let mut numbers = x.to_vec()?;
        numbers[columns + 3] = bf16::NAN;
        let y = ops::rms_norm(&Tensor::from_slice(device, &numbers, [37, columns])?).run()?.to_vec()?;
        let wrong = |row: usize| y[row * columns..(row + 1) * columns].iter().filter(|y| y.is_nan()).count();
        assert_eq!((wrong(0), wrong(1), wrong(2)), (0, columns, 0));
    }
    Ok(())
}

fn norms_go_where_they_are_wanted(device: &Device) -> Result<(), Failed> {
    let x = rows_of(device, 6, 72)?;
    let residual = rows_of(device, 12, 72)?.slice(0, 6..12)?;
    let norm = ops::rms_norm(&x).residual(&residual);
    let saved = norm.run_saving::<f32>()?;
    let sum = saved.sum.as_ref().ok_or("there is a residual")?;
    assert!(saved.mean.is_none() && ops::rms_norm(sum).run_as::<f32>()?.to_vec()? == saved.y.to_vec()?);
    // Over x and over the residual, which nothing else holds.
    let (mut in_x, mut in_residual) = (x.deep_clone()?, residual.deep_clone()?);
    let (of_x, of_residual) = (in_x.clone(), in_residual.clone());
    let outputs = NormOutputs { y: Some(&mut in_x), sum: Some(&mut in_residual), ..NormOutputs::default() };
    ops::rms_norm(&of_x).residual(&of_residual).run_into(outputs)?;
    assert!(in_residual.to_vec()? == sum.to_vec()? && in_x.to_vec()? == norm.run()?.to_vec()?);
    // Axes in another order are copied first.
    let swapped = x.reshape([2, 3, 72])?.swap_axes(0, 1)?;
    let y = ops::layer_norm(&swapped).run()?;
    assert_eq!(y.shape(), [3, 2, 72]);
    let rows = ops::layer_norm(&x).run()?.reshape([2, 3, 72])?.swap_axes(0, 1)?;
    assert!(y.to_vec()? == rows.to_vec()?);
    // A vector is one row.
    let one = x.slice(0, 0..1)?.reshape([72])?;
    let saved = ops::layer_norm(&one).run_saving::<bf16>()?;
    assert_eq!((saved.y.shape(), saved.inverse_deviation.shape()), (&[72][..], &[][..]));
    Ok(())
}

fn gradients_are_added_to_what_is_there(device: &Device) -> Result<(), Failed> {
    let (x, dy) = (rows_of(device, 50, 96)?, rows_of(device, 50, 96)?);
    let gradient = ops::layer_norm(&x).backward(&dy);
    let once = gradient.run()?;
    let mut dweight = Tensor::from_slice(device, &[1.0f32; 96], [96])?;
    let mut dbias = Tensor::from_slice(device, &[2.0f32; 96], [96])?;
    let outputs =
        NormGradientOutputs { dx: None, dweight: Some(&mut dweight), dbias: Some(&mut dbias), adds: true };
    gradient.run_into(outputs)?;
    for (sums, once, before) in [(dweight, once.dweight, 1.0f32), (dbias, once.dbias, 2.0)] {
        for (sum, once) in sums.to_vec()?.into_iter().zip(once.to_vec()?) {
            assert_eq!(sum, once + before);
        }
    }
    // Only one, in 16 bits, and dx over dy.
    let mut of_weight = Tensor::<bf16>::uninit(device, [96])?;
    let mut dx = dy.deep_clone()?;
    let over = dx.clone();
    let outputs =
        NormGradientOutputs { dx: Some(&mut dx), dweight: Some(&mut of_weight), dbias: None, adds: false };
    ops::layer_norm(&x).backward(&over).run_into(outputs)?;
    assert!(dx.to_vec()? == once.dx.to_vec()?);
    Ok(())
}

fn norms_of_nothing_are_empty(device: &Device) -> Result<(), Failed> {
    for shape in [[0, 9], [4, 0]] {
        let x = Tensor::<f32>::zeros(device, shape)?;
        assert!(ops::layer_norm(&x).run()?.is_empty());
        let gradients = ops::layer_norm(&x).backward(&x).run()?;
        assert!(gradients.dx.is_empty() && gradients.dweight.to_vec()?.iter().all(|&sum| sum == 0.0));
        assert_eq!(gradients.dbias.shape(), [shape[1]]);
    }
    Ok(())
}

fn a_captured_norm_runs_again_on_what_is_there_then(device: &Device) -> Result<(), Failed> {
    let stream = device.new_stream()?;
    let mut x = rows_of(device, 9, 104)?;
    let mut y = Tensor::<bf16>::zeros(device, [9, 104])?;
    // Views of the same memory.
    let (read, mut to) = (x.clone(), y.clone());
    let work = || {
        let outputs = NormOutputs { y: Some(&mut to), ..NormOutputs::default() };
        ops::layer_norm(&read).on(&stream).run_into(outputs)
    };
    // SAFETY: the work borrows the tensors that it uses; what it makes it drops.
    let mut graph = unsafe { stream.capture(work)? };
    for by in [1.0, -2.0] {
        let next: Vec<bf16> = x
            .to_vec()?
            .iter()
            .enumerate()
            .map(|(at, x)| bf16::from_f32(x.to_f32() * by + (at % 3) as f32))
            .collect();
        x.write_slice(&next)?;
        graph.launch()?;
        let expected = ops::layer_norm(&x).run()?.to_vec()?;
        assert!(y.to_vec()? == expected);
        y.write_slice(&vec![bf16::NAN; 9 * 104])?;
    }
    Ok(())
}

fn what_does_not_fit_a_norm_is_refused(device: &Device) -> Result<(), Failed> {
    let x = rows_of(device, 4, 16)?;
    let message =
        |result: warpsmith::Result<Tensor<bf16>>| result.map(drop).expect_err("it does not fit").to_string();
    let short = Tensor::<f32>::zeros(device, [15])?;
    assert_eq!(
        message(ops::layer_norm(&x).weight(&short).run()),
        "layer_norm: `weight` has shape [15], expected [16], as x has"
    );
    assert_eq!(
        message(ops::rms_norm(&x).bias(&short).run()),
        "rms_norm: `bias` has shape [15], expected [16], as x has"
    );
    assert_eq!(
        message(ops::rms_norm(&x).epsilon(-1.0).run()),
        "rms_norm: epsilon is -1, expected a number that is not negative"
    );
    let residual = x.slice(0, 0..3)?;
    assert_eq!(
        message(ops::layer_norm(&x).residual(&residual).run()),
        "layer_norm: `residual` has shape [3, 16], expected [4, 16], as x has"
    );
    let point = Tensor::<bf16>::zeros(device, [])?;
    assert_eq!(
        message(ops::layer_norm(&point).run()),
        "layer_norm: `x` has shape [], expected [.., N], at least one axis"
    );
    let into = |outputs: NormOutputs<'_, bf16, bf16>| {
        ops::layer_norm(&x).run_into(outputs).expect_err("it does not fit").to_string()
    };
    let whole = rows_of(device, 5, 16)?;
    let (of_others, mut shifted) = (whole.slice(0, 0..4)?, whole.slice(0, 1..5)?);
    let outputs = NormOutputs { y: Some(&mut shifted), ..NormOutputs::default() };
    let error = ops::layer_norm(&of_others).run_into(outputs).expect_err("it overlaps").to_string();
    assert_eq!(error, "layer_norm: `y` shares memory with `x`, expected separate memory");
    let mut wide = Tensor::<bf16>::zeros(device, [4, 17])?;
    assert_eq!(
        into(NormOutputs { y: Some(&mut wide), ..NormOutputs::default() }),
        "layer_norm: `y` has shape [4, 17], expected [4, 16], as x has"
    );
    let mut sum = Tensor::<bf16>::zeros(device, [4, 16])?;
    assert_eq!(
        into(NormOutputs { sum: Some(&mut sum), ..NormOutputs::default() }),
        "layer_norm: outputs.sum is a place for it, expected none, as there is no residual"
    );
    let gradient = ops::layer_norm(&x).residual(&x).backward(&x).run().map(drop);
    assert_eq!(
        gradient.expect_err("there is a residual").to_string(),
        "layer_norm: residual is a residual, expected none: x is the sum that was normed"
    );
    let mean = Tensor::<f32>::zeros(device, [4])?;
    let gradient = ops::rms_norm(&x).backward(&x).statistics(&mean, &mean).run().map(drop);
    assert_eq!(
        gradient.expect_err("there is a mean").to_string(),
        "rms_norm: statistics is a mean, expected no mean, of which an RMS norm has none"
    );
    Ok(())
}
