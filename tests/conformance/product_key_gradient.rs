//! Gradients of product-key retrieval: against their f64 reference, exact where they have to be, bit by bit the same every time, and what
//! is refused.

use half::bf16;
use libtest_mimic::Failed;
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use warpsmith::ops::peer::{Gate, ProductKeyGradientOutputs, QueryNorm, Routing};
use warpsmith::{Device, DeviceKind, Error, Tensor, ops};
use warpsmith_lab::cases::{Data, RoutingCase};
use warpsmith_lab::validate;

use crate::product_key::retrieval;
use crate::{Case, cases, drawn};

pub(crate) const CASES: &[(&str, Case)] = cases![
    gradients_drawn_stay_within_their_bound,
    gradients_of_integers_drawn_are_exact,
    gradients_are_the_same_bits_every_time,
    terms_of_many_parts_are_all_added_up,
    gradients_are_added_to_what_is_there,
    gradients_of_many_parts_are_added_to_what_is_there,
    some_gradients_are_those_of_all,
    ids_of_no_expert_make_a_query_no_number,
    gradients_for_no_tokens_are_zeros,
    gradients_of_any_layout_are_those_of_copies,
    captured_gradients_are_the_same_bits,
    gradients_that_do_not_fit_are_refused,
];

/// How many numbers a case has to compare.
fn numbers(case: &RoutingCase) -> usize {
    let (projected, width) = (case.heads * 2 * case.half, 2 * case.half);
    let groups = if case.per_head { case.heads } else { 1 };
    let of_norm = if !case.affine {
        0
    } else if case.per_head_norm {
        case.heads
    } else {
        1
    };
    case.tokens * case.columns
        + projected * (case.columns + usize::from(case.bias))
        + groups * case.n * width
        + 2 * of_norm * width
}

/// Whether the gradients were exact.
fn check(device: &Device, case: &RoutingCase) -> Result<bool, TestCaseError> {
    let what = format!("gradients of {} {} {}", case.dtype, case.shape(), case.options());
    let outcome = validate::product_key_topk_backward(device, case);
    Ok(drawn::passed(outcome, &what, numbers(case))?.exact)
}

fn gradients_drawn_stay_within_their_bound(device: &Device) -> Result<(), Failed> {
    Ok(drawn::runner(device, [60, 200])?
        .run(&retrieval(Data::Uniform), |case| check(device, &case).map(|_| ()))?)
}

fn gradients_of_integers_drawn_are_exact(device: &Device) -> Result<(), Failed> {
    let mut seen = 0;
    let cases = retrieval(Data::Integers).prop_map(|case| RoutingCase { k: case.k.min(16), ..case });
    drawn::runner(device, [60, 200])?.run(&cases, |case| {
        let exact = check(device, &case)?;
        // Where no sum can be too large.
        let is_small = case.k <= 8 && !case.skewed && case.tokens * case.k + case.heads * case.half < 1000;
        prop_assert!(exact || !case.is_exact() || !is_small, "not exact");
        Ok(())
    })?;
    for dtype in [warpsmith::DType::F16, warpsmith::DType::Bf16, warpsmith::DType::F32] {
        let case = RoutingCase {
            data: Data::Integers,
            norm: warpsmith_lab::cases::NormKind::None,
            gate: Gate::Relu,
            temperature: 0.5,
            bias: true,
            per_head: true,
            ..RoutingCase::new(dtype, [40, 30], [35, 17], 9)
        };
        seen += usize::from(check(device, &case).map_err(|error| error.to_string())?);
    }
    assert_eq!(seen, 3);
    Ok(())
}

fn gradients_are_the_same_bits_every_time(device: &Device) -> Result<(), Failed> {
    Ok(drawn::runner(device, [10, 40])?.run(&retrieval(Data::Uniform), |case| {
        let bits = || {
            validate::product_key_gradient_bits(device, &case)
                .map_err(|error| TestCaseError::fail(error.to_string()))
        };
        prop_assert_eq!(bits()?, bits()?);
        Ok(())
    })?)
}

/// More uses than a part has, of few sub-keys.
fn terms_of_many_parts_are_all_added_up(device: &Device) -> Result<(), Failed> {
    for per_head in [false, true] {
        let case = RoutingCase {
            per_head,
            skewed: true,
            heads: 2,
            ..RoutingCase::new(warpsmith::DType::Bf16, [150, 16], [9, 5], 8)
        };
        check(device, &case).map_err(|error| error.to_string())?;
    }
    Ok(())
}

/// Operands of five tokens and two heads with sub-keys of their own.
struct Operands {
    x: Tensor<f32>,
    w: Tensor<f32>,
    bias: Tensor<f32>,
    keys: [Tensor<f32>; 2],
    weight: Tensor<f32>,
    routing: Routing,
    dgates: Tensor<f32>,
}

fn drawn_numbers(device: &Device, seed: usize, shape: &[usize]) -> warpsmith::Result<Tensor<f32>> {
    let count = shape.iter().product();
    let number = |at: usize| ((at * 7919 + seed * 104_729) % 1009) as f32 / 504.5 - 1.0;
    Tensor::from_slice(device, &(0..count).map(number).collect::<Vec<_>>(), shape)
}

impl Operands {
    fn new(device: &Device) -> warpsmith::Result<Self> {
        let new = |seed, shape: &[usize]| drawn_numbers(device, seed, shape);
        let mut all = Self {
            x: new(1, &[5, 8])?,
            w: new(2, &[12, 8])?,
            bias: new(3, &[12])?,
            keys: [new(4, &[2, 7, 3])?, new(5, &[2, 7, 3])?],
            weight: new(6, &[2, 6])?,
            routing: Routing { ids: Tensor::zeros(device, [0])?, gates: Tensor::zeros(device, [0])? },
            dgates: new(7, &[5, 2, 3])?,
        };
        all.routing = all.retrieval().run()?;
        Ok(all)
    }

    fn retrieval(&self) -> ops::peer::ProductKeyOp<'_, f32> {
        ops::product_key_topk(&self.x, &self.w, &self.keys[0], &self.keys[1], 2, 3)
            .bias(&self.bias)
            .query_norm(QueryNorm::layer(1e-5).weight(&self.weight).bias(&self.weight))
    }

    fn gradients(&self) -> warpsmith::Result<ops::peer::ProductKeyGradients<f32>> {
        self.retrieval().backward(&self.routing, &self.dgates).run()
    }
}

fn sums(of: &ops::peer::ProductKeyGradients<f32>) -> Vec<&Tensor<f32>> {
    let mut all = vec![&of.dw_q, &of.dkeys_1, &of.dkeys_2];
    all.extend([&of.dbias, &of.dnorm_weight, &of.dnorm_bias].into_iter().flatten());
    all
}

fn bits(tensor: &Tensor<f32>) -> warpsmith::Result<Vec<u32>> {
    Ok(tensor.to_vec()?.into_iter().map(f32::to_bits).collect())
}

fn gradients_are_added_to_what_is_there(device: &Device) -> Result<(), Failed> {
    let operands = Operands::new(device)?;
    let (mut twice, once) = (operands.gradients()?, operands.gradients()?);
    operands.retrieval().backward(&operands.routing, &operands.dgates).run_into(
        ProductKeyGradientOutputs {
            dx: Some(&mut twice.dx),
            dw_q: Some(&mut twice.dw_q),
            dbias: twice.dbias.as_mut(),
            dkeys_1: Some(&mut twice.dkeys_1),
            dkeys_2: Some(&mut twice.dkeys_2),
            dnorm_weight: twice.dnorm_weight.as_mut(),
            dnorm_bias: twice.dnorm_bias.as_mut(),
            adds: true,
            adds_dx: false,
        },
    )?;
    assert_eq!(bits(&twice.dx)?, bits(&once.dx)?);
    assert_eq!(sums(&once).len(), 6);
    for (twice, once) in sums(&twice).into_iter().zip(sums(&once)) {
        let sums = twice.to_vec()?.into_iter().zip(once.to_vec()?);
        assert!(once.to_vec()?.iter().any(|&sum| sum != 0.0));
        for (twice, once) in sums {
            // Terms are added one by one onto what is there: a sum in another order.
            assert!((twice - 2.0 * once).abs() <= 1e-5 * (1.0 + once.abs()), "{twice} {once}");
        }
    }
    Ok(())
}

/// The sums of several parts are added to what is there, too.
fn gradients_of_many_parts_are_added_to_what_is_there(device: &Device) -> Result<(), Failed> {
    let new = |seed, shape: &[usize]| drawn_numbers(device, seed, shape);
    let (x, w) = (new(1, &[150, 4])?, new(2, &[12, 4])?);
    let (keys_1, keys_2) = (new(3, &[9, 3])?, new(4, &[9, 3])?);
    let retrieval = ops::product_key_topk(&x, &w, &keys_1, &keys_2, 2, 8);
    let (routing, dgates) = (retrieval.run()?, new(5, &[150, 2, 8])?);
    let backward = retrieval.backward(&routing, &dgates);
    if device.kind() != DeviceKind::Cpu {
        // 2400 experts of all tokens are three parts.
        assert!(backward.implementation()?.to_string().contains("column_sums"));
    }
    let once = backward.run()?;
    let before = 1000.0f32;
    let mut sums = Tensor::from_slice(device, &[before; 27], [9, 3])?;
    let outputs = ProductKeyGradientOutputs { dkeys_1: Some(&mut sums), adds: true, ..Default::default() };
    backward.run_into(outputs)?;
    let once = once.dkeys_1.to_vec()?;
    assert!(once.iter().any(|sum| sum.abs() > 0.01));
    for (sum, once) in sums.to_vec()?.into_iter().zip(once) {
        // A rounding for each part, of numbers of that size.
        assert!((sum - before - once).abs() <= 4.0 * f32::EPSILON * before, "{sum} {once}");
    }
    Ok(())
}

fn some_gradients_are_those_of_all(device: &Device) -> Result<(), Failed> {
    let operands = Operands::new(device)?;
    let all = operands.gradients()?;
    let backward = || operands.retrieval().backward(&operands.routing, &operands.dgates);
    let mut dx = Tensor::zeros(device, [5, 8])?;
    backward().run_into(ProductKeyGradientOutputs { dx: Some(&mut dx), ..Default::default() })?;
    assert_eq!(bits(&dx)?, bits(&all.dx)?);
    let mut dkeys = Tensor::zeros(device, [2, 7, 3])?;
    backward().run_into(ProductKeyGradientOutputs { dkeys_2: Some(&mut dkeys), ..Default::default() })?;
    assert_eq!(bits(&dkeys)?, bits(&all.dkeys_2)?);
    let mut dweight = Tensor::zeros(device, [2, 6])?;
    let outputs = ProductKeyGradientOutputs { dnorm_weight: Some(&mut dweight), ..Default::default() };
    backward().run_into(outputs)?;
    assert_eq!(Some(bits(&dweight)?), all.dnorm_weight.as_ref().map(bits).transpose()?);
    backward().run_into(ProductKeyGradientOutputs::default())?;
    Ok(())
}

fn ids_of_no_expert_make_a_query_no_number(device: &Device) -> Result<(), Failed> {
    let mut operands = Operands::new(device)?;
    let good = operands.gradients()?;
    // The second expert of the last token's first head.
    let mut ids = operands.routing.ids.to_vec()?;
    let at = (4 * 2) * 3 + 1;
    ids[at] = 49;
    operands.routing.ids = Tensor::from_slice(device, &ids, [5, 2, 3])?;
    let bad = operands.gradients();
    if device.kind() == DeviceKind::Cpu {
        let message = bad.map(|_| ()).map_err(|error| error.to_string());
        assert!(message.is_err_and(|message| message.contains("an id") && message.contains("49")));
        return Ok(());
    }
    let bad = bad?;
    let (of_bad, of_good) = (bad.dx.to_vec()?, good.dx.to_vec()?);
    assert_eq!(of_bad[..4 * 8], of_good[..4 * 8]);
    assert!(of_bad[4 * 8..].iter().all(|number| number.is_nan()));
    // Those of the other head's projection have no such term.
    let (of_bad, of_good) = (bad.dw_q.to_vec()?, good.dw_q.to_vec()?);
    assert!(of_bad[..6 * 8].iter().all(|number| number.is_nan()));
    assert_eq!(of_bad[6 * 8..], of_good[6 * 8..]);
    assert!(bad.dkeys_1.to_vec()?.iter().chain(&bad.dkeys_2.to_vec()?).all(|number| number.is_finite()));
    Ok(())
}

fn gradients_for_no_tokens_are_zeros(device: &Device) -> Result<(), Failed> {
    let zeros = |shape: &[usize]| Tensor::<bf16>::zeros(device, shape);
    let (x, w, keys) = (zeros(&[2, 0, 7])?, zeros(&[12, 7])?, zeros(&[9, 3])?);
    let weight = Tensor::zeros(device, [6])?;
    let operation =
        ops::product_key_topk(&x, &w, &keys, &keys, 2, 4).query_norm(QueryNorm::rms(1e-5).weight(&weight));
    let (routing, dgates) = (operation.run()?, Tensor::zeros(device, [2, 0, 2, 4])?);
    let gradients = operation.backward(&routing, &dgates).run()?;
    assert_eq!(gradients.dx.shape(), [2, 0, 7]);
    let sums = [&gradients.dw_q, &gradients.dkeys_1, &gradients.dkeys_2];
    for sum in sums.into_iter().chain(&gradients.dnorm_weight) {
        assert!(sum.to_vec()?.iter().all(|&number| number.to_bits() == 0));
    }
    assert!(gradients.dbias.is_none() && gradients.dnorm_bias.is_none());
    Ok(())
}

fn gradients_of_any_layout_are_those_of_copies(device: &Device) -> Result<(), Failed> {
    let mut operands = Operands::new(device)?;
    let expected = operands.gradients()?;
    let Operands { keys, routing, dgates, weight, .. } = &operands;
    // The same numbers in other places: sub-keys as columns, tokens last, and every second number.
    let turned = |of: &Tensor<f32>| of.swap_axes(1, 2)?.contiguous()?.swap_axes(1, 2);
    let keys = [turned(&keys[0])?, turned(&keys[1])?];
    let routing = Routing {
        ids: routing.ids.swap_axes(0, 2)?.contiguous()?.swap_axes(0, 2)?,
        gates: routing.gates.swap_axes(0, 2)?.contiguous()?.swap_axes(0, 2)?,
    };
    let dgates = dgates.swap_axes(0, 1)?.contiguous()?.swap_axes(0, 1)?;
    let weight = weight.swap_axes(0, 1)?.contiguous()?.swap_axes(0, 1)?;
    operands = Operands { keys, routing, dgates, weight, ..operands };
    let backward = operands.retrieval().backward(&operands.routing, &operands.dgates);
    if device.kind() != DeviceKind::Cpu {
        assert!(backward.implementation()?.copies() >= 5, "{}", backward.implementation()?);
    }
    let gradients = backward.run()?;
    assert_eq!(bits(&gradients.dx)?, bits(&expected.dx)?);
    for (got, expected) in sums(&gradients).into_iter().zip(sums(&expected)) {
        assert_eq!(bits(got)?, bits(expected)?);
    }
    Ok(())
}

fn captured_gradients_are_the_same_bits(device: &Device) -> Result<(), Failed> {
    let mut operands = Operands::new(device)?;
    let result = operands.gradients()?;
    let (stream, mut written) = (device.new_stream()?, result.clone());
    let dgates = operands.dgates.clone();
    let read = Operands { dgates: dgates.clone(), ..Operands::new(device)? };
    let work = || {
        read.retrieval().backward(&read.routing, &read.dgates).on(&stream).run_into(
            ProductKeyGradientOutputs {
                dx: Some(&mut written.dx),
                dw_q: Some(&mut written.dw_q),
                dkeys_1: Some(&mut written.dkeys_1),
                dkeys_2: Some(&mut written.dkeys_2),
                dnorm_weight: written.dnorm_weight.as_mut(),
                ..Default::default()
            },
        )
    };
    // SAFETY: the work borrows the tensors that it uses; what it makes it drops.
    let mut graph = unsafe { stream.capture(work)? };
    for seed in 0..3 {
        operands.dgates.write_slice(&drawn_numbers(device, seed, &[5, 2, 3])?.to_vec()?)?;
        let expected = operands.gradients()?;
        graph.launch()?;
        let norms = [&result, &expected].map(|of| of.dnorm_weight.as_ref().map(bits));
        let [got, of_norm] = norms;
        assert_eq!(got.transpose()?, of_norm.transpose()?, "seed {seed}");
        for (got, expected) in [
            (&result.dx, &expected.dx),
            (&result.dw_q, &expected.dw_q),
            (&result.dkeys_1, &expected.dkeys_1),
            (&result.dkeys_2, &expected.dkeys_2),
        ] {
            assert_eq!(bits(got)?, bits(expected)?, "seed {seed}");
        }
    }
    Ok(())
}

fn gradients_that_do_not_fit_are_refused(device: &Device) -> Result<(), Failed> {
    let operands = Operands::new(device)?;
    let zeros = |shape: &[usize]| Tensor::<f32>::zeros(device, shape);
    let retrieval = operands.retrieval();
    let message =
        |result: warpsmith::Result<()>| result.map_or_else(|error| error.to_string(), |()| "none".into());
    let wrong = zeros(&[5, 3, 2])?;
    let refused = retrieval.backward(&operands.routing, &wrong).run();
    assert!(matches!(refused, Err(Error::Shape { operand: "dgates", .. })));
    let routing = Routing { gates: zeros(&[5, 2])?, ..operands.routing.clone() };
    let refused = retrieval.backward(&routing, &operands.dgates).run();
    assert!(matches!(refused, Err(Error::Shape { operand: "gates", .. })));
    let other = if device.kind() == DeviceKind::Cpu { Device::emulator() } else { Device::cpu() };
    let elsewhere = Tensor::zeros(&other, [5, 2, 3])?;
    let refused = retrieval.backward(&operands.routing, &elsewhere).run();
    assert!(matches!(refused, Err(Error::DeviceMismatch { operand: "dgates", .. })));

    let backward = retrieval.backward(&operands.routing, &operands.dgates);
    let mut dx = zeros(&[5, 7])?;
    let refused = backward.run_into(ProductKeyGradientOutputs { dx: Some(&mut dx), ..Default::default() });
    assert!(matches!(refused, Err(Error::Shape { operand: "dx", .. })));
    let mut dx = operands.x.clone();
    let refused = backward.run_into(ProductKeyGradientOutputs { dx: Some(&mut dx), ..Default::default() });
    assert!(matches!(refused, Err(Error::Overlap { operand: "dx", other: "x", .. })));
    let (mut one, mut same) = (zeros(&[2, 7, 3])?, None);
    same.replace(one.clone());
    let refused = backward.run_into(ProductKeyGradientOutputs {
        dkeys_1: Some(&mut one),
        dkeys_2: same.as_mut(),
        ..Default::default()
    });
    assert!(matches!(refused, Err(Error::Overlap { operand: "dkeys_2", other: "dkeys_1", .. })));
    let plain = ops::product_key_topk(&operands.x, &operands.w, &operands.keys[0], &operands.keys[1], 2, 3);
    let mut dbias = zeros(&[12])?;
    let outputs = ProductKeyGradientOutputs { dbias: Some(&mut dbias), ..Default::default() };
    let refused = message(plain.backward(&operands.routing, &operands.dgates).run_into(outputs));
    assert!(refused.contains("dbias") && refused.contains("no such operand"), "{refused}");
    Ok(())
}
