//! Generated low-rank updates, alone and onto linear operations and layers: against their f64 reference, exact where they have to be,
//! and what they refuse.

use half::{bf16, f16};
use libtest_mimic::Failed;
use ndarray::{Array1, Array2, ArrayD, IxDyn};
use proptest::prelude::*;
use proptest::test_runner::{TestCaseError, TestRunner};
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use warpsmith::layers::{GeneratedUpdate, Linear};
use warpsmith::ops::update::{MAX_UPDATES, Way};
use warpsmith::ops::{self, Activation, Implementation};
use warpsmith::{DType, Device, DeviceKind, Error, Tensor, Weights};
use warpsmith_lab::cases::{CodesPer, Data, Placement, UpdateCase};
use warpsmith_lab::validate;

use crate::{Case, cases, drawn};

pub(crate) const CASES: &[(&str, Case)] = cases![
    updates_drawn_stay_within_their_bound,
    integer_updates_drawn_are_exact,
    many_tiles_are_shared_by_the_blocks_that_there_are,
    errors_on_unit_scaled_inputs_are_what_the_types_allow,
    residuals_of_any_factor_are_added_by_two_kernels_too,
    captured_updates_read_their_residual_each_time,
    codes_are_those_of_the_rows_that_share_them,
    updates_that_run_together_are_the_sum_of_each,
    what_is_attached_adds_its_update_and_detached_leaves_nothing,
    layers_read_their_weights_from_safetensors,
    updates_of_single_rows_are_vectors,
    updates_that_do_not_fit_are_refused,
    updates_onto_shared_memory_are_refused,
];

const TYPES: [DType; 3] = [DType::F16, DType::Bf16, DType::F32];

pub(crate) fn check(device: &Device, case: &UpdateCase) -> Result<(), TestCaseError> {
    let what = format!("{} {} {} {}", case.operation(), case.dtype, case.shape(), case.options());
    let outcome = drawn::passed(validate::generated_update(device, case), &what, case.m * case.n)?;
    let rounds_between = case.rounds_between(&outcome.implementation);
    prop_assert_eq!(outcome.exact, case.is_exact() && !rounds_between);
    Ok(())
}

fn side(most: usize) -> impl Strategy<Value = usize> {
    drawn::side(most, &[8, 16, 64, 128, 192, 256], &[37, 61, 97, 136, 257, 400])
}

fn runner(device: &Device) -> Result<TestRunner, Failed> {
    drawn::runner(device, [96, 300])
}

/// More tiles than a GPU for which any kernel is has multiprocessors: blocks have several, and keep what they made for the first.
fn many_tiles_are_shared_by_the_blocks_that_there_are(device: &Device) -> Result<(), Failed> {
    for dtype in TYPES {
        for (n, rank) in [(1000, 9), (2000, 100)] {
            let case = UpdateCase { data: Data::Integers, ..UpdateCase::new(dtype, 131, 40, n, rank) };
            for case in [case.clone().alone(true), case] {
                check(device, &case).map_err(|error| error.to_string())?;
            }
        }
    }
    Ok(())
}

/// One rank, or several of at most 128 together.
fn ranks() -> impl Strategy<Value = Vec<usize>> {
    let rank = prop_oneof![
        3 => prop::sample::select(vec![8usize, 16, 32, 64]),
        2 => 1usize..17,
        1 => 1usize..=128,
    ];
    prop_oneof![
        3 => rank.prop_map(|rank| vec![rank]),
        2 => prop::collection::vec(1usize..=16, 2..=MAX_UPDATES),
    ]
}

pub(crate) fn update_case(data: Data) -> impl Strategy<Value = UpdateCase> {
    let codes =
        vec![CodesPer::Token, CodesPer::Token, CodesPer::Sequence, CodesPer::Operation, CodesPer::Mixed];
    let sizes = (side(131), side(257), side(257), ranks(), prop::sample::select(vec![0usize, 1, 2, 8, 17]));
    let places = (drawn::placement(8), drawn::placement(8), drawn::placement(8), drawn::placement(8));
    let options = (
        prop::sample::select(TYPES.to_vec()),
        prop::sample::select(codes),
        prop::sample::select(Activation::ALL.to_vec()),
        prop::sample::select(vec![1.0f32, 2.0, -0.37]),
        prop::sample::select(vec![0.0f32, 0.0, 1.0, -2.0, 0.3]),
        any::<[bool; 6]>(),
        any::<u64>(),
        prop_oneof![1 => Just(None), 2 => prop::sample::select(Way::all()).prop_map(Some)],
    );
    (sizes, places, options).prop_map(move |((m, k, n, ranks, sequence), (x, w, factors, y), options)| {
        let (dtype, codes, activation, scaling, beta, flags, seed, way) = options;
        let [linear, bias, in_place, stores, v_across, add] = flags;
        // A whole number of sequences, if there are any.
        let m = if sequence > 0 && seed & 2 == 0 { m / sequence * sequence } else { m };
        let case = UpdateCase {
            ranks,
            codes,
            sequence,
            scaling,
            bias,
            activation,
            beta,
            in_place,
            mask: stores,
            preactivation: stores && add,
            v_across,
            x,
            w,
            factors,
            y,
            way,
            data,
            seed,
            ..UpdateCase::new(dtype, m, k, n, 1)
        };
        if linear { case } else { case.alone(add) }
    })
}

fn updates_drawn_stay_within_their_bound(device: &Device) -> Result<(), Failed> {
    Ok(runner(device)?.run(&update_case(Data::Uniform), |case| check(device, &case))?)
}

fn integer_updates_drawn_are_exact(device: &Device) -> Result<(), Failed> {
    let exact = update_case(Data::Integers).prop_map(|case| UpdateCase {
        activation: if case.bias { Activation::Relu } else { Activation::None },
        scaling: if case.scaling < 0.0 { -1.0 } else { case.scaling },
        beta: case.beta.round(),
        ..case
    });
    Ok(runner(device)?.run(&exact, |case| {
        prop_assert!(case.is_exact());
        check(device, &case)
    })?)
}

/// On inputs of variance 1 the bound is not all that is asked for: f32 is right to 10⁻⁵ of the largest result, as the 16-bit types are to
/// what their roundings give.
fn errors_on_unit_scaled_inputs_are_what_the_types_allow(device: &Device) -> Result<(), Failed> {
    for (dtype, allowed) in [(DType::F16, 1e-3), (DType::Bf16, 1e-2), (DType::F32, 1e-5)] {
        for [m, k, n, rank] in [[64, 768, 128, 8], [40, 1000, 72, 64], [3, 2048, 264, 16]] {
            let case = UpdateCase { unit_scaled: true, ..UpdateCase::new(dtype, m, k, n, rank) };
            for case in [case.clone().alone(false), case] {
                let outcome = validate::generated_update(device, &case)?;
                let error = outcome.max_relative_error;
                assert!(error <= allowed, "{} {dtype} {}: {error}", case.operation(), case.shape());
            }
        }
    }
    Ok(())
}

/// Rows of x that are not aligned take two kernels: neither a quotient by a small factor nor a product with a large one leaves the type's
/// numbers in between.
fn residuals_of_any_factor_are_added_by_two_kernels_too(device: &Device) -> Result<(), Failed> {
    for dtype in TYPES {
        for beta in [1e-40f32, -1e-4, 0.03, -1.0, 2.0, -300.0] {
            for in_place in [false, true] {
                let plain = UpdateCase::new(dtype, 37, 72, 56, 5);
                let x = Placement { before: 1, after: 0 };
                let case = UpdateCase {
                    x,
                    beta,
                    in_place,
                    scaling: 20.0,
                    unit_scaled: true,
                    preactivation: true,
                    ..plain
                };
                let outcome = validate::generated_update(device, &case)?;
                let what = format!("{dtype} {}", case.options());
                assert!(outcome.passed(), "{what}: {outcome:?}");
                if device.kind() != DeviceKind::Cpu {
                    let ran = &outcome.implementation;
                    assert!(matches!(ran, Implementation::Sequence { .. }), "{what}: {ran}");
                }
            }
        }
    }
    Ok(())
}

/// Each launch of a captured operation begins with the residual as it is then, and not with what the last one left in y.
fn captured_updates_read_their_residual_each_time(device: &Device) -> Result<(), Failed> {
    let (m, k, rank, n) = (19, 24, 3, 40);
    // Rows of x at odd places take two kernels.
    let wide = tensor(device, &[m, k + 1], 1)?;
    let x = wide.slice(1, 1..k + 1)?;
    let w = tensor(device, &[n, k], 2)?;
    let (v, codes, u) =
        (tensor(device, &[k, rank], 3)?, tensor(device, &[m, rank], 4)?, tensor(device, &[rank, n], 5)?);
    for beta in [0.5, 1.0, 2.0] {
        let mut residual = tensor(device, &[m, n], 6)?;
        let stream = device.new_stream()?;
        // Of the default stream.
        let y = Tensor::<f32>::zeros(device, [m, n])?;
        let (read, mut written) = (residual.clone(), y.clone());
        let work = || {
            let op = ops::linear_with_update(&x, &w, &v, &codes, &u, 1.0).residual(&read, beta);
            op.on(&stream).run_into(&mut written)
        };
        // SAFETY: the work borrows the tensors that it uses; what it makes it drops.
        let mut graph = unsafe { stream.capture(work)? };
        for seed in 7..10 {
            residual.write_slice(&tensor(device, &[m, n], seed)?.to_vec()?)?;
            let op = ops::linear_with_update(&x, &w, &v, &codes, &u, 1.0).residual(&residual, beta);
            let expected = op.run()?.to_vec()?;
            graph.launch()?;
            assert_eq!(y.to_vec()?, expected, "beta {beta}, residual {seed}");
        }
    }
    Ok(())
}

fn tensor(device: &Device, shape: &[usize], seed: usize) -> warpsmith::Result<Tensor<f32>> {
    let element = |index: usize| ((index * 37 + seed * 11) % 7) as f32 - 3.0;
    let array = ArrayD::from_shape_vec(IxDyn(shape), (0..shape.iter().product()).map(element).collect());
    Tensor::from_array(device, &array.expect("as many as the shape has"))
}

/// Small integers, so that any two ways to the same result are equal.
fn codes_are_those_of_the_rows_that_share_them(device: &Device) -> Result<(), Failed> {
    let (batch, sequence, k, rank, n) = (3, 5, 16, 4, 8);
    let x = tensor(device, &[batch, sequence, k], 1)?;
    let (v, u) = (tensor(device, &[k, rank], 2)?, tensor(device, &[rank, n], 3)?);
    for shape in
        [vec![rank], vec![1, rank], vec![batch, rank], vec![batch, 1, rank], vec![batch, sequence, rank]]
    {
        let codes = tensor(device, &shape, 4)?;
        let got = ops::generated_update(&x, &v, &codes, &u, 0.5).run()?;
        assert_eq!(got.shape(), [batch, sequence, n]);
        // The same codes, repeated for each row.
        let own = codes.to_vec()?;
        let all: Vec<f32> = (0..batch * sequence)
            .flat_map(|row| {
                let at = row * (own.len() / rank) / (batch * sequence) * rank;
                own[at..at + rank].to_vec()
            })
            .collect();
        let all = Tensor::from_slice(device, &all, [batch, sequence, rank])?;
        let expected = ops::generated_update(&x, &v, &all, &u, 0.5).run()?;
        assert_eq!(got.to_vec()?, expected.to_vec()?, "codes {shape:?}");
    }
    Ok(())
}

fn updates_that_run_together_are_the_sum_of_each(device: &Device) -> Result<(), Failed> {
    let (m, k, n) = (20, 24, 40);
    let (x, w) = (tensor(device, &[m, k], 1)?, tensor(device, &[n, k], 2)?);
    let parts = (0..MAX_UPDATES)
        .map(|i| {
            let rank = 1 + 2 * i;
            let codes = if i % 2 == 0 { vec![m, rank] } else { vec![rank] };
            Ok((
                tensor(device, &[k, rank], 3 + i)?,
                tensor(device, &codes, 4 + i)?,
                tensor(device, &[rank, n], 5 + i)?,
                if i % 3 == 0 { 1.0 } else { -2.0 },
            ))
        })
        .collect::<warpsmith::Result<Vec<_>>>()?;
    let (v, codes, u, scaling) = &parts[0];
    let mut alone = ops::generated_update(&x, v, codes, u, *scaling);
    let mut together = ops::linear_with_update(&x, &w, v, codes, u, *scaling);
    for (v, codes, u, scaling) in &parts[1..] {
        alone = alone.and(v, codes, u, *scaling);
        together = together.and(v, codes, u, *scaling);
    }
    let mut sum = Array1::<f32>::zeros(m * n);
    for (v, codes, u, scaling) in &parts {
        sum += &Array1::from(ops::generated_update(&x, v, codes, u, *scaling).run()?.to_vec()?);
    }
    assert_eq!(alone.run()?.to_vec()?, sum.to_vec());
    let mut y = ops::linear(&x, &w).run()?;
    sum += &Array1::from(y.to_vec()?);
    assert_eq!(together.run()?.to_vec()?, sum.to_vec());
    alone.add_to(&mut y)?;
    assert_eq!(y.to_vec()?, sum.to_vec());
    Ok(())
}

fn what_is_attached_adds_its_update_and_detached_leaves_nothing(device: &Device) -> Result<(), Failed> {
    let (m, k, n) = (9, 33, 17);
    let x = tensor(device, &[m, k], 1)?;
    let bias = tensor(device, &[n], 2)?;
    let base = Linear::new(tensor(device, &[n, k], 3)?, Some(bias), Activation::Relu)?;
    let plain = base.forward(&x)?.to_vec()?;
    let update = |i: usize, rank: usize| -> warpsmith::Result<_> {
        let (v, u) = (tensor(device, &[k, rank], i)?, tensor(device, &[rank, n], i + 1)?);
        GeneratedUpdate::new(v, u, 2.0 * rank as f32)
    };
    let (first, second) = (update(4, 3)?, update(5, 8)?);
    assert_eq!((second.rank(), second.alpha(), second.scaling()), (8, 16.0, 2.0));
    let (a, b) = (tensor(device, &[m, 3], 6)?, tensor(device, &[8], 7)?);

    let mut layer = base.attach([first.clone()])?;
    let expected = |with: &[(&GeneratedUpdate<f32>, &Tensor<f32>)]| -> warpsmith::Result<Vec<f32>> {
        let mut z = ops::linear(&x, base.weight()).bias(base.bias()).run()?;
        for (update, codes) in with {
            update.add_to(&x, codes, &mut z)?;
        }
        Ok(z.to_vec()?.into_iter().map(|z| z.max(0.0)).collect())
    };
    assert_eq!(layer.forward(&x, &[&a])?.to_vec()?, expected(&[(&first, &a)])?);
    layer.attach(second.clone())?;
    assert_eq!(layer.forward(&x, &[&a, &b])?.to_vec()?, expected(&[(&first, &a), (&second, &b)])?);
    assert_eq!(layer.updates().len(), 2);
    // On a stream of the caller's and into memory of the caller's the layers give the same.
    let stream = device.new_stream()?;
    device.synchronize()?;
    let both = layer.forward(&x, &[&a, &b])?.to_vec()?;
    assert_eq!(layer.forward_on(&x, &[&a, &b], &stream)?.to_vec()?, both);
    let mut y = Tensor::zeros_on(&stream, [m, n])?;
    layer.forward_into(&x, &[&a, &b], &mut y, &stream)?;
    assert_eq!(y.to_vec()?, both);
    let alone = first.forward(&x, &a)?.to_vec()?;
    assert_eq!(first.forward_on(&x, &a, &stream)?.to_vec()?, alone);
    first.forward_into(&x, &a, &mut y, &stream)?;
    assert_eq!(y.to_vec()?, alone);
    assert!(matches!(layer.forward(&x, &[&a]), Err(Error::Argument { .. })), "codes of one are missing");
    assert!(matches!(layer.detach(2), Err(Error::Argument { .. })));
    let detached = layer.detach(0)?;
    assert_eq!(detached.v().to_vec()?, first.v().to_vec()?);
    assert_eq!(layer.forward(&x, &[&b])?.to_vec()?, expected(&[(&second, &b)])?);
    layer.detach(0)?;
    assert_eq!(layer.forward(&x, &[])?.to_vec()?, plain);
    assert_eq!(layer.implementation(&x, &[])?, base.implementation(&x)?);
    assert_eq!(base.forward(&x)?.to_vec()?, plain, "the base layer is as it was");

    let wide = GeneratedUpdate::new(tensor(device, &[k, 120], 1)?, tensor(device, &[120, n], 1)?, 1.0)?;
    let mut layer = base.attach([second.clone()])?;
    assert!(matches!(layer.attach(wide.clone()), Ok(())), "128 ranks together");
    assert!(matches!(layer.attach(first.clone()), Err(Error::SizeLimit { .. })), "131 ranks together");
    assert_eq!(layer.updates().len(), 2, "a layer that refuses an update is as it was");
    let one = update(4, 1)?;
    let nine = std::iter::repeat_n(one, MAX_UPDATES + 1);
    assert!(matches!(base.attach(nine), Err(Error::Argument { .. })));
    let narrow = GeneratedUpdate::new(tensor(device, &[k, 2], 1)?, tensor(device, &[2, n + 1], 1)?, 1.0)?;
    assert!(matches!(base.attach([narrow]), Err(Error::Shape { operand: "u", .. })));
    let short = GeneratedUpdate::new(tensor(device, &[k - 1, 2], 1)?, tensor(device, &[2, n], 1)?, 1.0)?;
    assert!(matches!(base.attach([short]), Err(Error::Shape { operand: "v", .. })));
    Ok(())
}

fn layers_read_their_weights_from_safetensors(device: &Device) -> Result<(), Failed> {
    let numbers =
        |count: usize| -> Vec<u8> { (0..count).flat_map(|i| (i as f32 - 2.0).to_le_bytes()).collect() };
    let (v, u) = (numbers(3 * 2), numbers(2 * 4));
    let view = |shape: &[usize], bytes| TensorView::new(Dtype::F32, shape.to_vec(), bytes);
    let tensors = [("expert.v", view(&[3, 2], &v)?), ("expert.u", view(&[2, 4], &u)?)];
    let weights = Weights::from_bytes(safetensors::serialize(tensors, None)?)?;
    let update = GeneratedUpdate::<f32>::from_safetensors(&weights, "expert", device, 4.0)?;
    assert_eq!((update.v().shape(), update.u().shape(), update.scaling()), (&[3, 2][..], &[2, 4][..], 2.0));
    let rounded = GeneratedUpdate::<bf16>::from_safetensors_converted(&weights, "expert", device, 4.0)?;
    assert_eq!(
        rounded.u().to_vec()?,
        update.u().to_vec()?.into_iter().map(bf16::from_f32).collect::<Vec<_>>()
    );
    let x = Tensor::from_array(device, &Array2::from_elem((1, 3), 1f32))?;
    let codes = Tensor::from_slice(device, &[1f32, 0.0], [2])?;
    // x v is [0, 3], and the second rank has no part.
    assert_eq!(update.forward(&x, &codes)?.to_vec()?, [0.0; 4]);
    let codes = Tensor::from_slice(device, &[0f32, 1.0], [2])?;
    assert_eq!(update.forward(&x, &codes)?.to_vec()?, [12.0, 18.0, 24.0, 30.0]);
    assert!(matches!(
        GeneratedUpdate::<f16>::from_safetensors(&weights, "expert", device, 4.0),
        Err(Error::Weights { .. })
    ));
    assert!(matches!(
        GeneratedUpdate::<f32>::from_safetensors(&weights, "nobody", device, 4.0),
        Err(Error::Weights { .. })
    ));
    Ok(())
}

fn updates_of_single_rows_are_vectors(device: &Device) -> Result<(), Failed> {
    let (k, rank, n) = (32, 5, 24);
    let (x, codes) = (tensor(device, &[k], 1)?, tensor(device, &[rank], 2)?);
    let (v, u) = (tensor(device, &[k, rank], 3)?, tensor(device, &[rank, n], 4)?);
    let y = ops::generated_update(&x, &v, &codes, &u, 1.0).run()?;
    assert_eq!(y.shape(), [n]);
    let row = x.reshape([1, k])?;
    assert_eq!(ops::generated_update(&row, &v, &codes, &u, 1.0).run()?.to_vec()?, y.to_vec()?);
    let w = tensor(device, &[n, k], 5)?;
    let both = ops::linear_with_update(&x, &w, &v, &codes, &u, 1.0).run()?;
    let base = ops::linear(&x, &w).run()?;
    let sum: Vec<_> = base.to_vec()?.iter().zip(y.to_vec()?).map(|(a, b)| a + b).collect();
    assert_eq!((both.shape(), both.to_vec()?), (&[n][..], sum));
    Ok(())
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

fn updates_that_do_not_fit_are_refused(device: &Device) -> Result<(), Failed> {
    let of = |shape: &[usize]| tensor(device, shape, 1);
    let (x, w, v, codes, u) = (of(&[2, 3, 8])?, of(&[6, 8])?, of(&[8, 4])?, of(&[2, 3, 4])?, of(&[4, 6])?);
    let alone = |x: &Tensor<f32>, v: &Tensor<f32>, codes: &Tensor<f32>, u: &Tensor<f32>| {
        ops::generated_update(x, v, codes, u, 1.0).run()
    };
    alone(&x, &v, &codes, &u)?;
    assert_error!(alone(&of(&[])?, &v, &codes, &u), Shape, "`x`");
    assert_error!(alone(&x, &of(&[9, 4])?, &codes, &u), Shape, "`v`");
    assert_error!(alone(&x, &of(&[8])?, &codes, &u), Shape, "`v`");
    assert_error!(alone(&x, &v, &codes, &of(&[5, 6])?), Shape, "`u`");
    for shape in [&[2, 3, 5][..], &[3, 4], &[6, 4], &[2, 4, 4], &[2, 3, 1, 4], &[]] {
        assert_error!(alone(&x, &v, &of(shape)?, &u), Shape, "`codes`");
    }
    assert_error!(alone(&x, &of(&[8, 0])?, &of(&[0])?, &of(&[0, 6])?), SizeLimit, "rank");
    assert_error!(alone(&x, &of(&[8, 129])?, &of(&[129])?, &of(&[129, 6])?), SizeLimit, "rank");
    assert_error!(alone(&x.swap_axes(0, 1)?, &v, &of(&[4])?, &u), Stride, "`x`");
    assert_error!(alone(&of(&[8, 5])?.swap_axes(0, 1)?, &v, &of(&[4])?, &u), Stride, "`x`");
    assert_error!(alone(&x, &v, &of(&[4, 2])?.swap_axes(0, 1)?, &u), Stride, "`codes`");
    let wide = [of(&[8, 64])?, of(&[64])?, of(&[64, 6])?];
    let op = ops::generated_update(&x, &wide[0], &wide[1], &wide[2], 1.0);
    let op = op.and(&wide[0], &wide[1], &wide[2], 1.0);
    op.run()?;
    assert_error!(op.and(&v, &codes, &u, 1.0).run(), SizeLimit, "ranks");
    let op = ops::generated_update(&x, &v, &codes, &u, 1.0);
    assert_error!(op.and(&v, &codes, &of(&[4, 7])?, 1.0).run(), Shape, "u of update 2");
    let mut op = ops::generated_update(&x, &v, &codes, &u, 1.0);
    for _ in 0..MAX_UPDATES {
        op = op.and(&v, &codes, &u, 1.0);
    }
    assert_error!(op.run(), Argument, "number of updates is 9");

    let onto = |w: &Tensor<f32>| ops::linear_with_update(&x, w, &v, &codes, &u, 1.0).run();
    onto(&w)?;
    assert_error!(onto(&of(&[5, 8])?), Shape, "`w`");
    assert_error!(onto(&of(&[6, 9])?), Shape, "`w`");
    let op = ops::linear_with_update(&x, &w, &v, &codes, &u, 1.0);
    assert_error!(op.bias(&of(&[5])?).run(), Shape, "linear_with_update: `bias`");
    let op = ops::linear_with_update(&x, &w, &v, &codes, &u, 1.0);
    assert_error!(op.residual(&of(&[2, 3, 7])?, 1.0).run(), Shape, "`residual`");
    let other = if device.kind() == DeviceKind::Cpu { Device::emulator() } else { Device::cpu() };
    let there = |tensor: &Tensor<f32>| tensor.to_device(&other);
    assert_error!(alone(&x, &there(&v)?, &codes, &u), DeviceMismatch, "`v`");
    assert_error!(alone(&x, &v, &there(&codes)?, &u), DeviceMismatch, "`codes`");
    assert_error!(alone(&x, &v, &codes, &there(&u)?), DeviceMismatch, "`u`");
    assert_error!(onto(&there(&w)?), DeviceMismatch, "`w`");
    let op = ops::generated_update(&x, &v, &codes, &u, 1.0);
    assert_error!(op.on(&other.default_stream()).run(), DeviceMismatch, "`stream`");
    assert_error!(GeneratedUpdate::new(v.clone(), there(&u)?, 1.0), DeviceMismatch, "`u`");
    assert_error!(GeneratedUpdate::new(of(&[8, 3])?, u, 1.0), Shape, "`u`");
    Ok(())
}

fn updates_onto_shared_memory_are_refused(device: &Device) -> Result<(), Failed> {
    let of = |shape: &[usize]| tensor(device, shape, 1);
    let (x, w, v, codes, u) = (of(&[6, 6])?, of(&[6, 6])?, of(&[6, 6])?, of(&[6, 6])?, of(&[6, 6])?);
    for (operand, name) in [(&x, "`x`"), (&v, "`v`"), (&codes, "`codes`"), (&u, "`u`")] {
        for add in [false, true] {
            let op = ops::generated_update(&x, &v, &codes, &u, 1.0);
            let mut y = operand.clone();
            let result = if add { op.add_to(&mut y) } else { op.run_into(&mut y) };
            match result {
                Err(error @ Error::Overlap { .. }) => assert!(error.to_string().contains(name), "{error}"),
                other => return Err(format!("{name}: {other:?}").into()),
            }
        }
        let op = ops::linear_with_update(&x, &w, &v, &codes, &u, 1.0);
        assert_error!(op.run_into(&mut operand.clone()), Overlap, "`y`");
        let mut stored = operand.clone();
        let op = ops::linear_with_update(&x, &w, &v, &codes, &u, 1.0).preactivation(&mut stored);
        assert_error!(op.run(), Overlap, "`preactivation`");
    }
    // A residual may be the output itself.
    let mut y = of(&[6, 6])?;
    let held = y.clone();
    let expected: Vec<_> = {
        let plain = ops::linear_with_update(&x, &w, &v, &codes, &u, 1.0).run()?.to_vec()?;
        plain.iter().zip(y.to_vec()?).map(|(a, b)| a - 2.0 * b).collect()
    };
    ops::linear_with_update(&x, &w, &v, &codes, &u, 1.0).residual(&held, -2.0).run_into(&mut y)?;
    assert_eq!(y.to_vec()?, expected);
    Ok(())
}
