//! Gradients of linear layers, of scaled ones, of products and of generated updates are within their bounds of f64, whatever is drawn: sizes, types, layouts, options.

use libtest_mimic::Failed;
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use warpsmith::ops::linear::LinearGradientOutputs;
use warpsmith::ops::update::{UpdateGradientOutputs, UpdateGradientPlaces};
use warpsmith::ops::{self, Activation};
use warpsmith::{DType, Device, Tensor};
use warpsmith_lab::cases::{
    CodesPer, Data, LinearBackwardCase, LinearCase, MatmulBackwardCase, MatmulCase, ScaleKind,
    ScaledBackwardCase, ScaledCase, Scales, SlopesFrom, UpdateBackwardCase, UpdateCase,
};
use warpsmith_lab::validate;

use crate::rows::{matrix, placement, random};
use crate::{Case, cases, drawn};

pub(crate) const CASES: &[(&str, Case)] = cases![
    gradients_of_layers_drawn_are_those_of_f64,
    gradients_of_products_drawn_are_those_of_f64,
    gradients_of_strips_are_those_of_f64,
    masks_outputs_and_preactivations_of_a_layer_give_the_same_gradients,
    a_captured_backward_pass_runs_again_on_what_is_there_then,
    gradients_of_updates_drawn_are_those_of_f64,
    gradients_of_scaled_layers_drawn_are_those_of_f64,
    gradients_of_groups_are_those_of_f64,
    gradients_of_codes_may_be_columns_of_a_larger_matrix,
];

/// Types of operands, of the layer's output, and of the gradients of weights.
const TYPES: [[DType; 3]; 9] = [
    [DType::F16, DType::F16, DType::F16],
    [DType::F16, DType::F16, DType::F32],
    [DType::F16, DType::F32, DType::F16],
    [DType::F16, DType::F32, DType::F32],
    [DType::Bf16, DType::Bf16, DType::Bf16],
    [DType::Bf16, DType::Bf16, DType::F32],
    [DType::Bf16, DType::F32, DType::Bf16],
    [DType::Bf16, DType::F32, DType::F32],
    [DType::F32, DType::F32, DType::F32],
];

fn sizes() -> impl Strategy<Value = [usize; 3]> {
    let rows = drawn::side(140, &[32, 64, 128], &[7, 97, 133]);
    let columns = drawn::side(270, &[8, 32, 64, 128, 256], &[31, 97, 263]);
    (rows, drawn::side(70, &[8, 16, 64], &[7, 37]), columns).prop_map(|(m, k, n)| [m, k, n])
}

fn any_layer() -> impl Strategy<Value = LinearBackwardCase> {
    let slopes = prop::sample::select(vec![SlopesFrom::Preactivation, SlopesFrom::Mask, SlopesFrom::Output]);
    let activations = prop::sample::select(Activation::ALL.to_vec());
    let scales = || prop::sample::select(vec![Scales::None, Scales::None, Scales::One, Scales::Each]);
    let data = prop_oneof![3 => Just(Data::Uniform), 1 => Just(Data::Integers)];
    let factor = || prop::sample::select(vec![1.0f32, 0.5, -2.0]);
    let types = prop::sample::select(TYPES.to_vec());
    (
        (sizes(), types, activations, slopes),
        ([scales(), scales()], [factor(), factor()], any::<[bool; 2]>()),
        (placement(), data, any::<u64>()),
    )
        .prop_map(
            |((size, types, activation, slopes), (scales, factors, [adds, dz]), (placement, data, seed))| {
                let ([input, output, gradient], [alpha, beta]) = (types, factors);
                let slopes = if activation == Activation::Relu { slopes } else { SlopesFrom::Preactivation };
                let plain = LinearBackwardCase::new(input, activation, size);
                let plain = LinearBackwardCase { output, gradient, slopes, scales, alpha, beta, ..plain };
                LinearBackwardCase { adds, dz, placement, data, seed, ..plain }
            },
        )
}

fn check_layer(device: &Device, case: &LinearBackwardCase) -> Result<(), TestCaseError> {
    let what = format!("{} {} {}", case.types(), case.shape(), case.options());
    let &LinearBackwardCase { m, k, n, dz, .. } = case;
    let compared = m * n * (1 + usize::from(dz)) + n + m * k + n * k;
    drawn::passed(validate::linear_backward(device, case), &what, compared).map(drop)
}

fn gradients_of_layers_drawn_are_those_of_f64(device: &Device) -> Result<(), Failed> {
    Ok(drawn::runner(device, [100, 600])?.run(&any_layer(), |case| check_layer(device, &case))?)
}

fn any_product() -> impl Strategy<Value = MatmulBackwardCase> {
    let types = prop::sample::select(vec![
        [DType::F16, DType::F16],
        [DType::F16, DType::F32],
        [DType::Bf16, DType::Bf16],
        [DType::Bf16, DType::F32],
        [DType::F32, DType::F32],
    ]);
    let batch = prop::sample::select(vec![[1, 1], [3, 3], [3, 1], [1, 4], [0, 1]]);
    let data = prop_oneof![3 => Just(Data::Uniform), 1 => Just(Data::Integers)];
    let factor = prop::sample::select(vec![1.0f32, 0.5]);
    let side = || drawn::side(70, &[8, 16, 32, 64], &[7, 37]);
    (
        ([side(), side(), side()], types, batch, any::<[bool; 2]>()),
        ([placement(), placement(), placement()], data, factor, any::<bool>(), any::<u64>()),
    )
        .prop_map(
            |(([m, k, n], [input, output], batch, across), ([x, w, y], data, scale, adds, seed))| {
                let product = LinearCase { output, bias: false, ..LinearCase::new(input, m, k, n) };
                let activation = Activation::None;
                let product = LinearCase { x, w, y, data, scale, activation, seed, ..product };
                MatmulBackwardCase { product: MatmulCase { product, batch, across }, adds }
            },
        )
}

fn gradients_of_products_drawn_are_those_of_f64(device: &Device) -> Result<(), Failed> {
    let mut runner = drawn::runner(device, [100, 600])?;
    Ok(runner.run(&any_product(), |case| {
        let what = format!("{} {} {}", case.product.product.types(), case.product.shape(), case.options());
        let LinearCase { m, k, n, .. } = case.product.product;
        let [of_a, of_b] = case.product.batch;
        let compared = (of_a * m + of_b * n) * k;
        drawn::passed(validate::matmul_backward(device, &case), &what, compared).map(drop)
    })?)
}

/// Rows of one strip, of several, and of many that threads of which few share a row walk down.
fn gradients_of_strips_are_those_of_f64(device: &Device) -> Result<(), Failed> {
    for (number, [input, output, gradient]) in TYPES.into_iter().enumerate() {
        let many = [[300, 8, 521], [1500, 8, 8], [5000, 3, 3]][number % 3];
        for size in [[64, 8, 256], [65, 8, 256], many] {
            let activation = [Activation::None, Activation::GeluErf][(number + size[0]) % 2];
            let case = LinearBackwardCase::new(input, activation, size);
            let case = LinearBackwardCase { output, gradient, adds: size[0] == 65, ..case };
            check_layer(device, &case).map_err(|error| error.to_string())?;
        }
    }
    Ok(())
}

/// What the forward pass stores, whichever it is, tells the same slopes of ReLU.
fn masks_outputs_and_preactivations_of_a_layer_give_the_same_gradients(
    device: &Device,
) -> Result<(), Failed> {
    let [m, k, n] = [70, 24, 136];
    let x = matrix::<f32>(device, [m, k], (0, 0), |at| random(1, at))?;
    let w = matrix::<f32>(device, [n, k], (0, 0), |at| random(2, at))?;
    let dy = matrix::<f32>(device, [m, n], (0, 0), |at| random(3, at))?;
    let mut z = Tensor::<f32>::zeros(device, [m, n])?;
    let mut mask = Tensor::<u32>::zeros(device, [m, n.div_ceil(32)])?;
    let forward = ops::linear(&x, &w).activation(Activation::Relu);
    let y = forward.preactivation(&mut z).relu_mask(&mut mask).run()?;
    let backward = ops::linear_backward(&x, &w, &dy).activation(Activation::Relu);
    let all =
        [backward.preactivation(&z).run()?, backward.relu_mask(&mask).run()?, backward.output(&y).run()?];
    for other in &all[1..] {
        assert_eq!(other.dx.to_vec()?, all[0].dx.to_vec()?);
        assert_eq!(other.dw.to_vec()?, all[0].dw.to_vec()?);
        assert_eq!(other.db.to_vec()?, all[0].db.to_vec()?);
    }
    Ok(())
}

fn a_captured_backward_pass_runs_again_on_what_is_there_then(device: &Device) -> Result<(), Failed> {
    let stream = device.new_stream()?;
    let [m, k, n] = [90, 16, 264];
    let x = matrix::<f32>(device, [m, k], (0, 0), |at| random(1, at))?;
    let w = matrix::<f32>(device, [n, k], (0, 0), |at| random(2, at))?;
    let z = matrix::<f32>(device, [m, n], (0, 0), |at| random(3, at) * 4.0)?;
    let mut dy = Tensor::<f32>::zeros_on(&stream, [m, n])?;
    let mut dx = Tensor::<f32>::zeros_on(&stream, [m, k])?;
    let mut dw = Tensor::<f32>::zeros_on(&stream, [n, k])?;
    let mut db = Tensor::<f32>::zeros_on(&stream, [n])?;
    // Views of the same memory.
    let (read, mut to) = (dy.clone(), (dx.clone(), dw.clone(), db.clone()));
    let operation = || ops::linear_backward(&x, &w, &read).activation(Activation::Silu).preactivation(&z);
    // SAFETY: the work borrows the tensors that it uses.
    let mut graph = unsafe {
        stream.capture(|| {
            operation().on(&stream).run_into(LinearGradientOutputs {
                dx: Some(&mut to.0),
                dw: Some(&mut to.1),
                db: Some(&mut to.2),
                ..Default::default()
            })
        })?
    };
    for seed in 4..7 {
        let next = matrix::<f32>(device, [m, n], (0, 0), |at| random(seed, at))?;
        dy.write_slice(&next.to_vec()?)?;
        graph.launch()?;
        let expected =
            ops::linear_backward(&x, &w, &next).activation(Activation::Silu).preactivation(&z).run()?;
        assert_eq!(dx.to_vec()?, expected.dx.to_vec()?);
        assert_eq!(dw.to_vec()?, expected.dw.to_vec()?);
        assert_eq!(db.to_vec()?, expected.db.to_vec()?);
        for tensor in [&mut dx, &mut dw, &mut db] {
            tensor.write_slice(&vec![f32::NAN; tensor.len()])?;
        }
    }
    Ok(())
}

fn any_updates() -> impl Strategy<Value = UpdateBackwardCase> {
    let rank = prop_oneof![3 => 1usize..10, 1 => prop::sample::select(vec![8usize, 16, 33, 40])];
    let codes =
        prop::sample::select(vec![CodesPer::Token, CodesPer::Sequence, CodesPer::Operation, CodesPer::Mixed]);
    let activations = prop::sample::select(Activation::ALL.to_vec());
    let slopes = prop::sample::select(vec![SlopesFrom::Preactivation, SlopesFrom::Mask, SlopesFrom::Output]);
    let data = prop_oneof![2 => Just(Data::Uniform), 1 => Just(Data::Integers)];
    let types = prop::sample::select(TYPES.to_vec());
    let rows = prop_oneof![4 => [1usize..6, 1usize..20], 1 => [1usize..3, 200usize..300]];
    (
        (rows, drawn::side(70, &[8, 64], &[7, 37]), drawn::side(90, &[8, 32, 64], &[31, 97])),
        (prop::collection::vec(rank, 1..4), codes, types, activations, slopes),
        (any::<[bool; 3]>(), prop::sample::select(vec![1.0f32, 2.0, -0.75])),
        (prop::array::uniform4(placement()), data, any::<u64>()),
    )
        .prop_map(
            |(
                ([batch, sequence], k, n),
                (ranks, codes, [dtype, of_codes, gradient], activation, slopes),
                ([linear, adds, v_across], scaling),
                ([x, w, factors, y], data, seed),
            )| {
                let update = UpdateCase {
                    ranks,
                    codes,
                    sequence,
                    scaling,
                    v_across,
                    activation,
                    bias: false,
                    beta: 1.0,
                    x,
                    w,
                    factors,
                    y,
                    data,
                    seed,
                    ..UpdateCase::new(dtype, batch * sequence, k, n, 1)
                };
                let slopes =
                    if linear && activation == Activation::Relu { slopes } else { SlopesFrom::Preactivation };
                let update = if linear { update } else { update.alone(false) };
                let plain = UpdateBackwardCase::new(update);
                UpdateBackwardCase { gradient, of_codes, slopes, adds, ..plain }
            },
        )
}

fn check_updates(device: &Device, case: &UpdateBackwardCase) -> Result<(), TestCaseError> {
    let UpdateCase { m, k, n, linear, ref ranks, codes, sequence, .. } = case.update;
    let what = format!("{} {} {} {}", case.operation(), case.types(), case.update.shape(), case.options());
    let groups = |index: usize| match (codes, index % 3) {
        (CodesPer::Token, _) | (CodesPer::Mixed, 0) => m,
        (CodesPer::Sequence, _) | (CodesPer::Mixed, 1) => m / sequence,
        _ => 1,
    };
    let of_updates: usize =
        ranks.iter().enumerate().map(|(index, rank)| rank * (k + n + groups(index))).sum();
    let compared = m * k + of_updates + if linear { m * n + n } else { 0 };
    drawn::passed(validate::update_backward(device, case), &what, compared).map(drop)
}

fn gradients_of_updates_drawn_are_those_of_f64(device: &Device) -> Result<(), Failed> {
    Ok(drawn::runner(device, [80, 500])?.run(&any_updates(), |case| check_updates(device, &case))?)
}

fn any_scaled() -> impl Strategy<Value = ScaledBackwardCase> {
    let types = prop::sample::select(vec![
        DType::F8E5M2,
        DType::F8E5M2,
        DType::F8E4M3,
        DType::Bf16,
        DType::F16,
        DType::F32,
    ]);
    let kind = || prop::sample::select(ScaleKind::ALL.to_vec());
    let data = prop_oneof![2 => Just(Data::Uniform), 1 => Just(Data::Integers)];
    let side = || drawn::side(140, &[16, 32, 64, 128], &[7, 37, 133]);
    (
        ([side(), side(), side()], types, [kind(), kind(), kind()], any::<[bool; 5]>()),
        (prop::array::uniform3(placement()), prop::sample::select(vec![1.0f32, 0.5]), data, any::<u64>()),
    )
        .prop_map(
            |(
                ([m, k, n], dy_type, [x_scale, w_scale, dy_scale], [adds, e5m2, wide, x_across, w_across]),
                ([x, w, y], alpha, data, seed),
            )| {
                let case = ScaledBackwardCase::new(m, k, n);
                let product = ScaledCase {
                    x_type: if e5m2 { DType::F8E5M2 } else { DType::F8E4M3 },
                    output: if wide { DType::F32 } else { DType::Bf16 },
                    x_scale,
                    w_scale,
                    alpha,
                    x,
                    w,
                    y,
                    across: [x_across, w_across],
                    data,
                    seed,
                    ..case.product.clone()
                };
                ScaledBackwardCase { product, dy_type, dy_scale, adds }
            },
        )
}

fn gradients_of_scaled_layers_drawn_are_those_of_f64(device: &Device) -> Result<(), Failed> {
    Ok(drawn::runner(device, [80, 500])?.run(&any_scaled(), |case| {
        let what = format!("{} {} {}", case.types(), case.product.shape(), case.options());
        let ScaledCase { m, k, n, .. } = case.product;
        let compared = m * k + n * k + if case.has_8_bits() { 0 } else { n };
        drawn::passed(validate::scaled_backward(device, &case), &what, compared).map(drop)
    })?)
}

/// Groups of one row and of several, of one strip and of several, and several to a block.
fn gradients_of_groups_are_those_of_f64(device: &Device) -> Result<(), Failed> {
    for (number, [dtype, of_codes, gradient]) in TYPES.into_iter().enumerate() {
        for (sequence, rank) in [(2, 8), (13, 3), (257, 8), (300, 33), (1030, 1)] {
            let update = UpdateCase {
                ranks: vec![rank, 4],
                codes: [CodesPer::Sequence, CodesPer::Mixed][number % 2],
                sequence,
                ..UpdateCase::new(dtype, 2 * sequence, 9, 8, rank)
            };
            let case = UpdateBackwardCase::new(update.alone(false));
            let case = UpdateBackwardCase { gradient, of_codes, adds: number % 3 == 0, ..case };
            check_updates(device, &case).map_err(|error| error.to_string())?;
        }
    }
    Ok(())
}

/// Those of several updates side by side, as a network that generates all codes takes them.
fn gradients_of_codes_may_be_columns_of_a_larger_matrix(device: &Device) -> Result<(), Failed> {
    let [m, k, n] = [600, 16, 24];
    let x = matrix::<f32>(device, [m, k], (0, 0), |at| random(1, at))?.reshape([2, 300, k])?;
    let dy = matrix::<f32>(device, [m, n], (0, 0), |at| random(2, at))?.reshape([2, 300, n])?;
    let v = matrix::<f32>(device, [k, 4], (0, 0), |at| random(3, at))?;
    let u = matrix::<f32>(device, [4, n], (0, 0), |at| random(4, at))?;
    let codes = matrix::<f32>(device, [2, 8], (0, 0), |at| random(5, at))?;
    let (first, second) = (codes.slice(1, 0..4)?, codes.slice(1, 4..8)?);
    let operation = ops::generated_update_backward(&x, &v, &first, &u, 1.0, &dy).and(&v, &second, &u, -0.5);
    let expected = operation.run()?;
    for adds_dcodes in [false, true] {
        let all = matrix::<f32>(device, [2, 8], (0, 0), |_| 1.0)?;
        let (mut of_first, mut of_second) = (all.slice(1, 0..4)?, all.slice(1, 4..8)?);
        let places = [&mut of_first, &mut of_second];
        let updates = places
            .map(|dcodes| UpdateGradientPlaces { dcodes: Some(dcodes), ..UpdateGradientPlaces::default() });
        operation.run_into(UpdateGradientOutputs::<f32, f32, f32> {
            updates: updates.into(),
            adds_dcodes,
            ..UpdateGradientOutputs::default()
        })?;
        for (got, expected) in [of_first, of_second].iter().zip(&expected.updates) {
            let added = if adds_dcodes { 1.0 } else { 0.0 };
            let expected: Vec<f32> = expected.dcodes.to_vec()?.into_iter().map(|of| of + added).collect();
            assert_eq!(got.to_vec()?, expected);
        }
    }
    Ok(())
}
