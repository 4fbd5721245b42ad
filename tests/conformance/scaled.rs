//! The scaled linear operation on 8-bit operands: against its f64 reference, exact where it has to be, and what it refuses.

use float8::{F8E4M3, F8E5M2};
use half::{bf16, f16};
use libtest_mimic::{Failed, Trial};
use ndarray::Array2;
use proptest::prelude::*;
use proptest::test_runner::{TestCaseError, TestRunner};
use warpsmith::emulator::{Completion, Numerics};
use warpsmith::ops::gemm::Tile;
use warpsmith::ops::{self, Activation, Implementation, Scale};
use warpsmith::{DType, Device, DeviceKind, EmulatorOptions, Error, Tensor};
use warpsmith_lab::cases::{Data, Placement, ScaleKind, ScaledCase, Scales, Terms};
use warpsmith_lab::validate;

use crate::{Case, cases, drawn};

pub(crate) const CASES: &[(&str, Case)] = cases![
    scaled_draws_stay_within_their_bound,
    scaled_integer_draws_are_exact,
    scaled_products_of_every_pair_of_types_are_right,
    scaled_sums_of_one_sign_keep_what_is_added_to_them,
    scaled_results_show_infinities_and_nan,
    scaled_operands_may_have_any_strides,
    scaled_products_are_added_to_what_the_output_holds,
    scaled_terms_that_do_not_fit_are_refused,
    scaled_rows_have_scales_along_any_leading_axes,
    scaled_products_take_a_bias_of_the_outputs_type,
    scaled_operands_that_do_not_fit_are_refused,
    scaled_outputs_that_share_memory_are_refused,
    scaled_products_run_the_same_for_every_output,
];

const TYPES: [DType; 2] = [DType::F8E4M3, DType::F8E5M2];
const OUTPUTS: [DType; 3] = [DType::F16, DType::Bf16, DType::F32];

fn check(device: &Device, case: &ScaledCase) -> Result<(), TestCaseError> {
    let what = format!("{} {} {}", case.types(), case.shape(), case.options());
    let outcome = drawn::passed(validate::linear_scaled(device, case), &what, case.m * case.n)?;
    prop_assert_eq!(outcome.exact, case.is_exact());
    Ok(())
}

fn side(most: usize) -> impl Strategy<Value = usize> {
    drawn::side(most, &[16, 48, 64, 128, 192, 256], &[37, 61, 97, 130, 257, 400])
}

fn runner(device: &Device) -> Result<TestRunner, Failed> {
    drawn::runner(device, [64, 300])
}

/// No terms half of the time, so that what fits the registers of Hopper's kernels is drawn as well.
fn terms() -> impl Strategy<Value = Terms> {
    let beta = prop_oneof![2 => Just(0.0f32), 1 => Just(1.0), 1 => Just(-2.0), 1 => Just(0.6)];
    let all = (beta, any::<[bool; 3]>(), drawn::placement(8)).prop_map(
        |(beta, [in_place, mask, preactivation], beside)| Terms {
            beta,
            in_place,
            mask,
            preactivation,
            beside,
            ..Terms::default()
        },
    );
    prop_oneof![Just(Terms::default()), all]
}

fn scaled_case(device: &Device, data: Data) -> impl Strategy<Value = ScaledCase> {
    let capability = device.properties().compute_capability;
    let scale = || prop::sample::select(ScaleKind::ALL.to_vec());
    let types = (prop::sample::select(TYPES.to_vec()), prop::sample::select(TYPES.to_vec()));
    let options = (
        prop::sample::select(OUTPUTS.to_vec()),
        prop::sample::select(Activation::ALL.to_vec()),
        any::<bool>(),
        prop::sample::select(vec![1.0f32, 0.5, -0.37]),
        prop::option::weighted(0.4, prop::sample::select(Tile::of_input(DType::F8E4M3).collect::<Vec<_>>())),
        any::<u64>(),
    );
    let places = (drawn::placement(16), drawn::placement(16), drawn::placement(16));
    let across = [prop::bool::weighted(0.25), prop::bool::weighted(0.25)];
    let places = (places, across, terms());
    ((side(131), side(520), side(257)), types, (scale(), scale()), places, options).prop_map(
        move |((m, k, n), (x_type, w_type), (x_scale, w_scale), places, options)| {
            let (output, activation, bias, alpha, tile, seed) = options;
            let ((x, w, y), across, terms) = places;
            let runs = |tile: &Tile| {
                capability == (0, 0) || tile.runs_on(capability) && (k > 0 || !tile.is_hopper())
            };
            let case = ScaledCase { x_type, w_type, output, x_scale, w_scale, ..ScaledCase::new(m, k, n) };
            let case = ScaledCase { alpha, bias, activation, terms, across, ..case };
            let case = ScaledCase { x, w, y, data, seed, ..case };
            ScaledCase { tile: tile.filter(runs), ..case }
        },
    )
}

fn scaled_draws_stay_within_their_bound(device: &Device) -> Result<(), Failed> {
    Ok(runner(device)?.run(&scaled_case(device, Data::Uniform), |case| check(device, &case))?)
}

fn scaled_integer_draws_are_exact(device: &Device) -> Result<(), Failed> {
    let exact = scaled_case(device, Data::Integers).prop_map(|case| ScaledCase {
        activation: if case.bias { Activation::Relu } else { Activation::None },
        alpha: if case.alpha < 0.0 { 1.0 } else { case.alpha },
        terms: Terms { beta: case.terms.beta.round(), ..case.terms },
        ..case
    });
    Ok(runner(device)?.run(&exact, |case| {
        prop_assert!(case.is_exact());
        check(device, &case)
    })?)
}

fn scaled_products_of_every_pair_of_types_are_right(device: &Device) -> Result<(), Failed> {
    for x_type in TYPES {
        for w_type in TYPES {
            for output in OUTPUTS {
                for data in [Data::Uniform, Data::Integers] {
                    for (m, k, n) in [(65, 130, 70), (3, 16, 5), (150, 48, 200)] {
                        let case = ScaledCase { x_type, w_type, output, data, ..ScaledCase::new(m, k, n) };
                        check(device, &case)?;
                    }
                }
            }
        }
    }
    Ok(())
}

/// The tensor cores for 8-bit numbers cut terms to 13 bits behind the leading one of the sum: from 2¹³ on, a sum of nothing but 81/64 would take
/// each for 1, from 2¹⁴ on for 0.
fn scaled_sums_of_one_sign_keep_what_is_added_to_them(device: &Device) -> Result<(), Failed> {
    let (m, k, n) = (3, 1 << 15, 5);
    let x = Tensor::from_array(device, &Array2::from_elem((m, k), F8E4M3::from_f32(1.125)))?;
    let w = Tensor::from_array(device, &Array2::from_elem((n, k), F8E4M3::from_f32(1.125)))?;
    let expected = k as f32 * 1.125 * 1.125;
    for y in ops::linear_scaled(&x, &w).output::<f32>().run()?.to_vec()? {
        assert!((y - expected).abs() <= 1e-3 * expected, "{y} for {expected}");
    }
    Ok(())
}

fn scaled_results_show_infinities_and_nan(device: &Device) -> Result<(), Failed> {
    let ones = |rows| Array2::from_elem((rows, 40), F8E5M2::from_f32(1.0));
    let w = Tensor::from_array(device, &ones(6))?;
    for value in [f32::NAN, f32::INFINITY] {
        let mut x = ones(9);
        x[[4, 33]] = F8E5M2::from_bits(if value.is_nan() { 0x7f } else { 0x7c });
        let y = ops::linear_scaled(&Tensor::from_array(device, &x)?, &w).output::<f32>().run()?.to_vec()?;
        for (index, y) in y.iter().enumerate() {
            let right =
                if index / 6 != 4 { *y == 40.0 } else { y.is_nan() == value.is_nan() && !y.is_finite() };
            assert!(right, "{value}: y[{index}] is {y}");
        }
    }
    Ok(())
}

/// Views that no kernel reads in place give what their contiguous copies give, bit by bit.
fn scaled_operands_may_have_any_strides(device: &Device) -> Result<(), Failed> {
    let values = |shape: &[usize], factor: usize| -> Result<Tensor<F8E4M3>, Error> {
        let elements: Vec<_> = (0..shape.iter().product())
            .map(|i| F8E4M3::from_f32((i * factor % 61) as f32 / 16.0 - 1.9))
            .collect();
        Tensor::from_slice(device, &elements, shape)
    };
    let batch = values(&[3, 5, 48], 7)?;
    let x = [
        // Leading axes without a common stride.
        batch.slice(1, 1..4)?,
        // The same, and rows at odd addresses.
        batch.slice(1, 1..4)?.slice(2, 3..36)?,
        // Neighbours along K are apart.
        batch.swap_axes(1, 2)?,
        batch.swap_axes(0, 2)?.slice(1, 0..2)?,
        // A vector of one column's numbers.
        batch.slice(0, 1..2)?.slice(2, 5..6)?.reshape([5])?,
    ];
    for x in x {
        let k = x.shape()[x.rank() - 1];
        let w = values(&[k, 20], 11)?.swap_axes(0, 1)?;
        let of = |x: &Tensor<F8E4M3>, w: &Tensor<F8E4M3>| -> Result<Vec<f32>, Error> {
            ops::linear_scaled(x, w).output::<f32>().alpha(0.5).run()?.to_vec()
        };
        let context = format!("{:?} of strides {:?}", x.shape(), x.strides());
        assert_eq!(of(&x, &w)?, of(&x.contiguous()?, &w.contiguous()?)?, "{context}");
        let ran = ops::linear_scaled(&x, &w).implementation()?;
        let copied = if device.kind() == DeviceKind::Cpu { 0 } else { 2 };
        assert_eq!(ran.copies(), copied, "{context}: {ran}");
    }
    let (x, w) = operands(device)?;
    let ran = ops::linear_scaled(&x, &w).implementation()?;
    let multiplies_bytes = device.properties().compute_capability >= (8, 9);
    assert_eq!(ran.copies() == 0, multiplies_bytes || device.kind() == DeviceKind::Cpu, "{ran}");
    Ok(())
}

fn operands(device: &Device) -> Result<(Tensor<F8E4M3>, Tensor<F8E4M3>), Error> {
    Ok((Tensor::zeros(device, [4, 32])?, Tensor::zeros(device, [6, 32])?))
}

/// By `beta` and as a residual; leading axes are rows of all terms.
fn scaled_products_are_added_to_what_the_output_holds(device: &Device) -> Result<(), Failed> {
    let of = |value: f32, rows: usize| Array2::from_elem((rows, 16), F8E4M3::from_f32(value));
    let x = Tensor::from_array(device, &of(1.0, 6))?.reshape([2, 3, 16])?;
    let w = Tensor::from_array(device, &of(-0.5, 40))?;
    let held: Vec<f32> = (0..240).map(|i| (i % 7) as f32).collect();
    let expected: Vec<f32> = held.iter().map(|held| (2.0 * held - 8.0).max(0.0)).collect();
    let words: Vec<u32> = held
        .chunks(40)
        .flat_map(|row| row.chunks(32))
        .map(|columns| columns.iter().rev().fold(0, |word, held| word << 1 | u32::from(2.0 * held > 8.0)))
        .collect();
    for is_residual in [false, true] {
        let mut y = Tensor::from_slice(device, &held, [2, 3, 40])?;
        let (itself, mut mask) = (y.clone(), Tensor::<u32>::zeros(device, [2, 3, 2])?);
        let op = ops::linear_scaled(&x, &w).output::<f32>().activation(Activation::Relu);
        let op = if is_residual { op.residual(&itself, 2.0) } else { op.beta(2.0) };
        op.relu_mask(&mut mask).run_into(&mut y)?;
        assert_eq!(y.to_vec()?, expected, "residual: {is_residual}");
        assert_eq!(mask.to_vec()?, words, "residual: {is_residual}");
    }
    Ok(())
}

fn scaled_terms_that_do_not_fit_are_refused(device: &Device) -> Result<(), Failed> {
    let (x, w) = operands(device)?;
    let zeros = |rows, columns| Tensor::<f32>::zeros(device, [rows, columns]);
    let words = |rows, columns| Tensor::<u32>::zeros(device, [rows, columns]);
    let op = || ops::linear_scaled(&x, &w).output::<f32>();
    let says = |result: warpsmith::Result<()>, message: &str| match result {
        Err(error) if error.to_string() == format!("linear_scaled: {message}") => Ok(()),
        other => Err(Failed::from(format!("`{message}` is not {other:?}"))),
    };
    let (short, mut y) = (zeros(4, 5)?, zeros(4, 6)?);
    let message = "`residual` has shape [4, 5], expected [4, 6], as x and w give";
    says(op().residual(&short, 1.0).run().map(drop), message)?;
    let message = "`preactivation` has shape [4, 5], expected [4, 6], as x and w give";
    says(op().preactivation(&mut short.clone()).run().map(drop), message)?;
    let message = "`relu_mask` has shape [4, 2], expected [4, 1], a word for every 32 columns of the output";
    says(op().relu_mask(&mut words(4, 2)?).run().map(drop), message)?;
    let message = "beta is 1, expected 0 for `run`, whose output is new: `run_into` adds to an existing one";
    says(op().beta(1.0).run().map(drop), message)?;
    let message = "beta is 1, expected 0 beside a residual, which is added instead of what the output holds";
    says(op().beta(1.0).residual(&zeros(4, 6)?, 1.0).run_into(&mut y), message)?;
    let message = "residual is one given before the output's type was set, expected no tensor of the output's type before `output`, but one of bf16 after it";
    says(op().residual(&y.clone(), 1.0).output::<bf16>().run().map(drop), message)?;

    let turned = zeros(6, 4)?.swap_axes(0, 1)?;
    let wrong = op().residual(&turned, 1.0).run();
    assert!(matches!(wrong, Err(Error::Stride { operand: "residual", .. })), "{wrong:?}");
    // Every second row, in pairs that are further apart.
    let apart = Tensor::<f32>::zeros(device, [2, 3, 6])?.slice(1, 0..2)?;
    let (x_in_pairs, fits) = (x.reshape([2, 2, 32])?, zeros(4, 6)?.reshape([2, 2, 6])?);
    let in_pairs = || ops::linear_scaled(&x_in_pairs, &w).output::<f32>();
    assert!(in_pairs().residual(&fits, 1.0).run().is_ok());
    let wrong = in_pairs().residual(&apart, 1.0).run();
    assert!(matches!(wrong, Err(Error::Stride { operand: "residual", .. })), "{wrong:?}");

    let shared = |result: warpsmith::Result<()>, operand: &str, other: &str| match result {
        Err(Error::Overlap { operand: a, other: b, .. }) if (a, b) == (operand, other) => Ok(()),
        result => Err(Failed::from(format!("{operand} shares memory with {other}, but: {result:?}"))),
    };
    let memory = zeros(7, 6)?;
    let (first, mut next) = (memory.slice(0, 0..4)?, memory.slice(0, 3..7)?);
    shared(op().residual(&first, 1.0).run_into(&mut next), "y", "residual")?;
    assert!(op().residual(&next.clone(), 1.0).run_into(&mut next).is_ok());
    shared(op().preactivation(&mut first.clone()).run_into(&mut next), "y", "preactivation")?;
    shared(op().residual(&first, 1.0).preactivation(&mut next).run().map(drop), "preactivation", "residual")?;
    let scales = memory.slice(0, 0..1)?.reshape([6])?;
    let scaled = op().w_scale(Scale::Rows(&scales));
    shared(scaled.preactivation(&mut first.clone()).run().map(drop), "preactivation", "w_scale")?;
    Ok(())
}

/// As one axis of all rows, or along X's own: whatever a quantiser of X gives.
fn scaled_rows_have_scales_along_any_leading_axes(device: &Device) -> Result<(), Failed> {
    let values: Vec<_> = (0..6 * 48).map(|i| F8E4M3::from_f32((i * 7 % 61) as f32 / 16.0 - 1.9)).collect();
    let x = Tensor::from_slice(device, &values, [2, 3, 48])?;
    let w = Tensor::from_slice(device, &values[..5 * 48], [5, 48])?;
    let flat = Tensor::from_slice(device, &[0.5f32, 1.0, 1.5, -2.0, 0.0, 4.0], [6])?;
    let of = |x: &Tensor<F8E4M3>, scales: &Tensor<f32>| {
        ops::linear_scaled(x, &w).output::<f32>().x_scale(Scale::Rows(scales)).run()
    };
    let plain = ops::linear_scaled(&x, &w).output::<f32>().run()?.to_vec()?;
    let factors = flat.to_vec()?;
    let expected: Vec<f32> = plain.iter().enumerate().map(|(i, y)| y * factors[i / 5]).collect();
    for scales in [flat.clone(), flat.reshape([2, 3])?] {
        let y = of(&x, &scales)?;
        assert_eq!((y.shape(), y.to_vec()?), (&[2, 3, 5][..], expected.clone()), "{:?}", scales.shape());
    }
    let one = x.slice(0, 0..1)?.slice(1, 1..2)?.reshape([48])?;
    for scales in [flat.slice(0, 2..3)?, flat.slice(0, 2..3)?.reshape([0; 0])?] {
        let y = of(&one, &scales)?.to_vec()?;
        assert!(y.iter().zip(&plain[5..10]).all(|(y, plain)| *y == plain * 1.5), "{:?}", scales.shape());
    }

    let says = |scales: &Tensor<f32>, message: &str| {
        let error = of(&x, scales).map(drop).map_err(|error| error.to_string());
        assert_eq!(error, Err(format!("linear_scaled: `x_scale` has {message}")));
    };
    let expected = "expected [2, 3] or [6], since x has 6 rows";
    says(&flat.reshape([3, 2])?, &format!("shape [3, 2], {expected}"));
    says(&flat.slice(0, 0..5)?, &format!("shape [5], {expected}"));
    says(&flat.reshape([2, 3, 1])?, &format!("shape [2, 3, 1], {expected}"));
    let turned = flat.reshape([3, 2])?.swap_axes(0, 1)?;
    let wrong = of(&x, &turned);
    assert!(matches!(wrong, Err(Error::Stride { operand: "x_scale", .. })), "{wrong:?}");
    let wrong = ops::linear_scaled(&x, &w).w_scale(Scale::Rows(&flat)).run();
    let message = "linear_scaled: `w_scale` has shape [6], expected [5], since w has 5 rows";
    assert_eq!(wrong.map(drop).map_err(|error| error.to_string()), Err(message.to_owned()));
    Ok(())
}

/// Of the output's type, and there or not, as that of `ops::linear`.
fn scaled_products_take_a_bias_of_the_outputs_type(device: &Device) -> Result<(), Failed> {
    let (x, w) = operands(device)?;
    let values = [-2.0, -1.0, 0.0, 0.5, 1.0, 3.0];
    let half = Some(Tensor::from_slice(device, &values.map(f16::from_f32), [6])?);
    let brain = Tensor::from_slice(device, &values.map(bf16::from_f32), [6])?;
    let op = || ops::linear_scaled(&x, &w);
    assert_eq!(op().bias(&brain).run()?.to_vec()?, brain.to_vec()?.repeat(4));
    assert_eq!(op().output::<f16>().bias(&half).run()?.to_vec()?, values.map(f16::from_f32).repeat(4));
    assert_eq!(op().bias(&brain).bias(None).run()?.to_vec()?, [bf16::ZERO; 24]);
    let wrong = op().bias(&brain).output::<f16>().run();
    let message = "linear_scaled: bias is one given before the output's type was set, expected no tensor of the output's type before `output`, but one of f16 after it";
    assert_eq!(wrong.map(drop).map_err(|error| error.to_string()), Err(message.to_owned()));
    assert!(op().bias(&brain).output::<f16>().bias(&half).run().is_err());
    assert!(op().bias(None).output::<f32>().run().is_ok());
    Ok(())
}

fn scaled_operands_that_do_not_fit_are_refused(device: &Device) -> Result<(), Failed> {
    let (x, w) = operands(device)?;
    let wrong = ops::linear_scaled(&x, &w).bias(&Tensor::<bf16>::zeros(device, [4])?).run();
    assert!(matches!(wrong, Err(Error::Shape { operand: "bias", .. })), "{wrong:?}");
    let four = Tensor::<f32>::zeros(device, [4])?;
    assert!(ops::linear_scaled(&x, &w).x_scale(Scale::Rows(&four)).run().is_ok());
    let wrong = ops::linear_scaled(&x, &w).w_scale(Scale::Rows(&four)).run();
    assert!(matches!(wrong, Err(Error::Shape { operand: "w_scale", .. })), "{wrong:?}");
    let wrong = ops::linear_scaled(&x, &w).x_scale(Scale::Device(&four)).run();
    assert!(matches!(wrong, Err(Error::Shape { operand: "x_scale", .. })), "{wrong:?}");
    Ok(())
}

fn scaled_outputs_that_share_memory_are_refused(device: &Device) -> Result<(), Failed> {
    let (x, w) = operands(device)?;
    let memory = Tensor::<f32>::zeros(device, [4, 6])?;
    let scales = memory.slice(1, 0..1)?.reshape([4])?;
    let mut y = memory.clone();
    let op = ops::linear_scaled(&x, &w).output::<f32>();
    let wrong = op.w_scale(Scale::Device(&memory.reshape([24])?.slice(0, 3..4)?)).run_into(&mut y);
    assert!(matches!(wrong, Err(Error::Overlap { other: "w_scale", .. })), "{wrong:?}");
    let op = ops::linear_scaled(&x, &w).output::<f32>();
    let wrong = op.x_scale(Scale::Rows(&scales)).run_into(&mut y);
    assert!(matches!(wrong, Err(Error::Stride { operand: "x_scale", .. })), "{wrong:?}");
    Ok(())
}

/// Also what is told of one that `run_into` would refuse is what that says.
fn scaled_products_run_the_same_for_every_output(device: &Device) -> Result<(), Failed> {
    let (x, w) = operands(device)?;
    let op = ops::linear_scaled(&x, &w).output::<f32>();
    let y = Tensor::<f32>::zeros(device, [4, 7])?;
    assert_eq!(op.implementation_into(&y.slice(1, 1..7)?)?, op.implementation()?);
    for mut wrong in [y.clone(), Tensor::zeros(device, [6, 4])?.swap_axes(0, 1)?] {
        let refused = op.run_into(&mut wrong).map_err(|error| error.to_string());
        assert!(refused.is_err(), "{:?}", wrong.shape());
        assert_eq!(op.implementation_into(&wrong).map(drop).map_err(|error| error.to_string()), refused);
    }
    Ok(())
}

/// Emulated H100s that complete copies and products late, at once and at random, and let warps take turns at random, too.
fn modes() -> Result<Vec<EmulatorOptions>, Failed> {
    let options = |completion, seed, threads| EmulatorOptions {
        compute_capability: (9, 0),
        completion,
        seed,
        threads: Some(threads),
        ..EmulatorOptions::default()
    };
    let drawn = options(Completion::Random, crate::properties::seed()?, 2);
    Ok(vec![options(Completion::Latest, 0, 1), options(Completion::Eager, 0, 2), drawn])
}

/// More than two tiles for each block that a GPU of six multiprocessors has room for: rings come round, and they and the turns of two consumers go on from tile to tile.
fn blocks_that_work_through_several_tiles_are_right_in_every_mode() -> Result<(), Failed> {
    for options in modes()? {
        let options = EmulatorOptions { multiprocessors: Some(6), ..options };
        let device = Device::emulator_with(options.clone());
        for tile in Tile::of_input(DType::F8E4M3).filter(|tile| tile.is_hopper()) {
            let (rows, columns) = tile.shape();
            let m = match rows * columns {
                24_576.. => 1_100,
                16_384.. => 530,
                _ => 400,
            };
            let (k, n) = (272, 384);
            let data = Data::Integers;
            let case = ScaledCase { tile: Some(tile), bias: false, data, ..ScaledCase::new(m, k, n) };
            assert!(tile.tiles(m as u32, n as u32) > 2 * tile.blocks(m as u32, n as u32, 1, 6));
            check(&device, &case).map_err(|error| format!("{options:?}: {error}"))?;
        }
    }
    Ok(())
}

/// Every term that there is, with the residual where y is.
const ALL_TERMS: Terms = Terms {
    row_scale: Scales::None,
    column_scale: Scales::None,
    beta: -0.5,
    in_place: true,
    mask: true,
    preactivation: true,
    beside: Placement { before: 0, after: 0 },
};

/// With every term, in rows of y that start at multiples of 16 bytes and in rows that do not.
fn every_term_has_the_same_bits_in_every_mode() -> Result<(), Failed> {
    for tile in Tile::of_input(DType::F8E4M3) {
        for (output, (m, k, n)) in OUTPUTS.into_iter().zip([(300, 300, 264), (136, 200, 136), (72, 40, 133)])
        {
            let case = ScaledCase { output, terms: ALL_TERMS, ..ScaledCase::new(m, k, n) };
            let case = ScaledCase { tile: Some(tile), activation: Activation::Silu, ..case };
            let what = format!("{} {} {}", case.types(), case.shape(), case.options());
            let mut first: Option<Vec<u32>> = None;
            for options in modes()? {
                let device = Device::emulator_with(options.clone());
                check(&device, &case).map_err(|error| format!("{options:?}: {error}"))?;
                let bits = validate::linear_scaled_bits(&device, &case)?;
                assert_eq!(bits.len(), 2 * m * n + m * n.div_ceil(32), "y, z and the mask of {what}");
                match &first {
                    None => first = Some(bits),
                    Some(first) if *first == bits => {}
                    Some(_) => return Err(format!("{what}: {options:?} differs").into()),
                }
            }
        }
    }
    Ok(())
}

/// Every kernel gives the same bits whenever its copies and products complete, and whichever warp is first.
fn every_kernel_gives_the_same_bits_in_every_mode() -> Result<(), Failed> {
    let modes = modes()?;
    for tile in Tile::of_input(DType::F8E4M3) {
        for (m, k, n) in [(300, 1100, 260), (65, 40, 72)] {
            let mut first: Option<Vec<bf16>> = None;
            for options in &modes {
                let device = Device::emulator_with(options.clone());
                let values = |rows: usize, factor: usize| {
                    Array2::from_shape_fn((rows, k), |(i, j)| {
                        F8E4M3::from_f32(((i * factor + j * 7) % 61) as f32 / 16.0 - 1.9)
                    })
                };
                let x = Tensor::from_array(&device, &values(m, 3))?;
                let w = Tensor::from_array(&device, &values(n, 5))?;
                let scales = Tensor::from_slice(&device, &vec![0.3f32; m], [m])?;
                let op = ops::linear_scaled(&x, &w).x_scale(Scale::Rows(&scales)).tile(tile).parts(1);
                let Implementation::Emulator { kernel, .. } = op.implementation()? else {
                    return Err(format!("no kernel for {tile}").into());
                };
                let y = op.run().map_err(|error| format!("{kernel}, {options:?}: {error}"))?.to_vec()?;
                match &first {
                    None => first = Some(y),
                    Some(first) if *first == y => {}
                    Some(_) => return Err(format!("{kernel}, {m}×{k}×{n}: {options:?} differs").into()),
                }
            }
        }
    }
    Ok(())
}

/// With the sums of Ada's and of Hopper's tensor cores, bit by bit.
fn sums_as_tensor_cores_add_them_stay_within_their_bound() -> Result<(), Failed> {
    let numerics = Numerics::Exact;
    for compute_capability in [(8, 9), (9, 0)] {
        let options = EmulatorOptions { compute_capability, numerics, ..EmulatorOptions::default() };
        let device = Device::emulator_with(options);
        scaled_products_of_every_pair_of_types_are_right(&device)?;
        scaled_sums_of_one_sign_keep_what_is_added_to_them(&device)?;
        for tile in Tile::of_input(DType::F8E4M3).filter(|tile| tile.runs_on(compute_capability)) {
            let case = ScaledCase { output: DType::F32, tile: Some(tile), ..ScaledCase::new(40, 3000, 70) };
            check(&device, &case)?;
        }
    }
    Ok(())
}

pub(crate) fn trials() -> Vec<Trial> {
    let modes = "slow::emulator::scaled::every_kernel_gives_the_same_bits_in_every_mode";
    let terms = "slow::emulator::scaled::every_term_has_the_same_bits_in_every_mode";
    let persistent = "slow::emulator::scaled::blocks_that_work_through_several_tiles_are_right_in_every_mode";
    let sums = "slow::emulator::scaled::sums_as_tensor_cores_add_them_stay_within_their_bound";
    vec![
        crate::timed::trial(modes, every_kernel_gives_the_same_bits_in_every_mode),
        crate::timed::trial(terms, every_term_has_the_same_bits_in_every_mode),
        crate::timed::trial(persistent, blocks_that_work_through_several_tiles_are_right_in_every_mode),
        crate::timed::trial(sums, sums_as_tensor_cores_add_them_stay_within_their_bound),
    ]
}
