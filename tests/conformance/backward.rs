//! Gradients of linear layers and of products are within their bounds of f64, whatever is drawn: sizes, types, layouts, options.

use libtest_mimic::Failed;
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use warpsmith::ops::linear::LinearGradientOutputs;
use warpsmith::ops::{self, Activation};
use warpsmith::{DType, Device, Tensor};
use warpsmith_lab::cases::{
    Data, LinearBackwardCase, LinearCase, MatmulBackwardCase, MatmulCase, Scales, SlopesFrom,
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
