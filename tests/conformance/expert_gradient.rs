//! Gradients of experts: against their f64 reference, exact where they have to be, bit by bit the same wherever rows are, and
//! what is refused.

use half::bf16;
use libtest_mimic::Failed;
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use warpsmith::ops::peer::{ExpertFormat, ExpertLayout, ExpertMlpGradients, ExpertTable, ExpertVectors};
use warpsmith::ops::{self, Activation};
use warpsmith::optim::{AdamW, AdamWOptions, Gradient};
use warpsmith::stream::Stream;
use warpsmith::{DType, Device, DeviceKind, Error, Tensor};
use warpsmith_lab::cases::{Data, ExpertCase, Residence};
use warpsmith_lab::validate;

use crate::expert_mlp::{expert_case, numbers, routing, runner, table};
use crate::{Case, cases, drawn};

pub(crate) const CASES: &[(&str, Case)] = cases![
    gradients_drawn_stay_within_their_bound,
    gradients_of_integers_drawn_are_exact,
    gradients_are_the_same_bits_wherever_rows_are,
    rows_at_addresses_give_the_bits_of_a_table,
    gradients_with_ids_of_no_expert_count_for_none,
    gradients_without_experts_are_zeros,
    gradients_are_rounded_once_and_those_of_frozen_experts_are_left_out,
    captured_gradients_are_the_same_bits,
    a_captured_step_moves_the_experts_that_are_used_then,
    gradients_of_any_layout_are_those_of_copies,
    gradients_of_parts_add_up_to_those_of_the_table,
    gradients_of_very_many_hidden_units_are_right,
    gradients_that_do_not_fit_are_refused,
];

/// Whether the gradients were exact.
fn check_gradients(device: &Device, case: &ExpertCase) -> Result<bool, TestCaseError> {
    let what = format!("gradients of {} x {} {}: {}", case.format, case.dtype, case.shape(), case.options());
    let outcome = validate::expert_gradients(device, case);
    // dx, the gates' gradients, and whole rows of the experts in use, of which there is one or more if there are tokens.
    let vectors = case.d * if case.gated { 2 } else { 1 } + case.o;
    let (uses, row) = (case.tokens * case.heads * case.k, case.hidden * vectors);
    let compared = outcome.as_ref().map_or(0, |outcome| outcome.compared);
    let of_rows = compared.checked_sub(case.tokens * case.d + uses);
    let rows = of_rows.map(|of_rows| of_rows.checked_div(row).unwrap_or(0));
    let is_whole = rows.is_some_and(|rows| rows <= uses && (row == 0 || (rows > 0) == (uses > 0)));
    let outcome = drawn::passed(outcome, &what, compared)?;
    prop_assert!(is_whole, "{what}: not every element was compared, but {compared}");
    Ok(outcome.exact)
}

fn gradient_case(data: Data) -> impl Strategy<Value = ExpertCase> {
    expert_case(data).prop_map(|case| ExpertCase { blocks: None, ..case })
}

fn gradients_drawn_stay_within_their_bound(device: &Device) -> Result<(), Failed> {
    Ok(runner(device)?
        .run(&gradient_case(Data::Uniform), |case| check_gradients(device, &case).map(|_| ()))?)
}

/// As few units as for outputs. Codes of 8 bits are too large for the products of three of them.
fn gradients_of_integers_drawn_are_exact(device: &Device) -> Result<(), Failed> {
    let exact = gradient_case(Data::Integers).prop_map(|case| ExpertCase {
        activation: if case.gated { Activation::Relu } else { Activation::None },
        hidden: 1,
        heads: case.heads.min(2),
        k: case.k.min(3),
        gated: case.gated && case.format != ExpertFormat::Int8,
        ..case
    });
    Ok(runner(device)?.run(&exact, |case| {
        let exact = check_gradients(device, &case)?;
        prop_assert!(exact || case.format == ExpertFormat::Int8, "not exact");
        Ok(())
    })?)
}

fn gradients_are_the_same_bits_wherever_rows_are(device: &Device) -> Result<(), Failed> {
    Ok(runner(device)?.run(&gradient_case(Data::Uniform), |case| {
        let bits = |residence| {
            validate::expert_gradient_bits(device, &ExpertCase { residence, ..case.clone() })
                .map_err(|error| TestCaseError::fail(error.to_string()))
        };
        let resident = bits(Residence::Resident)?;
        prop_assert_eq!(&resident, &bits(Residence::Slots)?);
        prop_assert_eq!(&resident, &bits(Residence::Mixed)?);
        Ok(())
    })?)
}

/// Of some experts in slots, and of the others where all rows are, in memory that the table does not keep.
fn rows_at_addresses_give_the_bits_of_a_table(device: &Device) -> Result<(), Failed> {
    const COUNT: usize = 6;
    let layout = ExpertLayout::new(ExpertFormat::Bf16, 16, 1, 8, false)?;
    let (u, v) = (numbers(COUNT * 16, 4), numbers(COUNT * 8, 5));
    let mut bytes = vec![0u8; COUNT * layout.row_bytes()];
    for ((u, v), row) in u.chunks(16).zip(v.chunks(8)).zip(bytes.chunks_mut(layout.row_bytes())) {
        layout.pack(ExpertVectors { u, w: &[], v }, row)?;
    }
    let all = Tensor::from_slice(device, &bytes, [COUNT, layout.row_bytes()])?;
    // Expert 4 is in slot 0, expert 1 in slot 1.
    let row = |expert: usize| &bytes[expert * layout.row_bytes()..][..layout.row_bytes()];
    let slots = Tensor::from_slice(device, &[row(4), row(1)].concat(), [2, layout.row_bytes()])?;
    let slot_of = Tensor::from_slice(device, &[u32::MAX, 1, u32::MAX, u32::MAX, 0, u32::MAX], [COUNT])?;
    // What is in a slot is read there and nowhere else.
    let mut others = bytes.clone();
    for expert in [1, 4] {
        others[expert * layout.row_bytes()..][..layout.row_bytes()].fill(0xff);
    }
    let others = Tensor::from_slice(device, &others, [COUNT, layout.row_bytes()])?;
    let addresses = [slots.device_address(), others.device_address(), slot_of.device_address()];
    // SAFETY: the three tensors are of these sizes and alive until the results have been read, and nothing writes them.
    let foreign = unsafe { ExpertTable::foreign(device, layout, COUNT, 2, addresses) };
    if device.kind() == DeviceKind::Cpu {
        assert!(matches!(foreign, Err(Error::UnsupportedDevice { .. })));
        return Ok(());
    }
    let [x, dy] = rows(device, 3)?;
    let routing = routing(device, &[0, 1, 4, 5, 1, 4], &[3, 1, 2])?;
    let bits = |table: &ExpertTable| -> Result<[Vec<u32>; 6], Failed> {
        let y = ops::expert_mlp(&x, &routing, table).run()?.to_vec()?;
        let ExpertMlpGradients { dx, dgates, experts, .. } =
            ops::expert_mlp_backward(&x, &routing, table, &dy).run()?;
        let (ids, [u, _, v]) = experts.expect("they are not frozen").read()?;
        let of = |numbers: Vec<f32>| numbers.into_iter().map(f32::to_bits).collect::<Vec<_>>();
        Ok([of(y), of(dx.to_vec()?), of(dgates.to_vec()?), ids, of(u), of(v)])
    };
    assert_eq!(bits(&foreign?)?, bits(&ExpertTable::from_rows(layout, &all)?)?);
    Ok(())
}

/// x and dy for so many tokens of [`table`]'s experts.
fn rows(device: &Device, tokens: usize) -> warpsmith::Result<[Tensor<f32>; 2]> {
    Ok([
        Tensor::from_slice(device, &numbers(tokens * 16, 6), [tokens, 16])?,
        Tensor::from_slice(device, &numbers(tokens * 8, 7), [tokens, 8])?,
    ])
}

fn gradients_with_ids_of_no_expert_count_for_none(device: &Device) -> Result<(), Failed> {
    let table = table(device, 5, 16, 8)?;
    let [x, dy] = rows(device, 3)?;
    for bad in [5, 6, u32::MAX] {
        let routing = routing(device, &[0, 1, 4, bad, 2, 0], &[3, 1, 2])?;
        let result = ops::expert_mlp_backward(&x, &routing, &table, &dy).run();
        if device.kind() == DeviceKind::Cpu {
            assert!(matches!(result, Err(Error::Argument { argument: "an id", .. })));
            continue;
        }
        let gradients = result?;
        let dx = gradients.dx.to_vec()?;
        assert!(dx[..16].iter().chain(&dx[32..]).all(|dx| dx.is_finite()));
        assert!(dx[16..32].iter().all(|dx| dx.is_nan()));
        let is_nan: Vec<bool> = gradients.dgates.to_vec()?.iter().map(|dgate| dgate.is_nan()).collect();
        assert_eq!(is_nan, [false, false, false, true, false, false]);
        let (ids, vectors) = gradients.experts.expect("they are not frozen").read()?;
        assert_eq!(ids, [0, 1, 2, 4]);
        assert!(vectors.iter().flatten().all(|number| number.is_finite()));
    }
    Ok(())
}

fn gradients_without_experts_are_zeros(device: &Device) -> Result<(), Failed> {
    let [x, dy] = rows(device, 2)?;
    for count in [0, 3] {
        let table = table(device, count, 16, 8)?;
        let gradients =
            ops::expert_mlp_backward(&x, &routing(device, &[], &[2, 4, 0])?, &table, &dy).run()?;
        assert_eq!(gradients.dx.to_vec()?, [0.0; 32]);
        let (ids, [u, w, v]) = gradients.experts.expect("they are not frozen").read()?;
        assert_eq!((ids.len(), u.len(), w.len(), v.len()), (0, 0, 0, 0));
    }
    // On another stream than the results'.
    let (table, nowhere) = (table(device, 3, 16, 8)?, routing(device, &[], &[2, 4, 0])?);
    let mut result = ops::expert_mlp_backward(&x, &nowhere, &table, &dy).run()?;
    result.experts.as_mut().expect("they are not frozen").count.write_slice(&[7])?;
    let stream = device.new_stream()?;
    ops::expert_mlp_backward(&x, &nowhere, &table, &dy).on(&stream).run_into(&mut result)?;
    assert_eq!(result.experts.expect("they are not frozen").count.to_vec()?, [0]);
    let none = Tensor::<f32>::zeros(device, [0, 16])?;
    let no_dy = Tensor::<f32>::zeros(device, [0, 8])?;
    let nowhere = routing(device, &[], &[0, 1, 2])?;
    let gradients = ops::expert_mlp_backward(&none, &nowhere, &table, &no_dy).run()?;
    assert_eq!((gradients.dx.shape(), gradients.dgates.shape()), (&[0, 16][..], &[0, 1, 2][..]));
    Ok(())
}

fn gradients_are_rounded_once_and_those_of_frozen_experts_are_left_out(
    device: &Device,
) -> Result<(), Failed> {
    let table = table(device, 5, 16, 8)?;
    let [x, dy] = rows(device, 3)?;
    let routing = routing(device, &[0, 1, 4, 1, 2, 0], &[3, 1, 2])?;
    let backward = ops::expert_mlp_backward(&x, &routing, &table, &dy);
    let whole = backward.run()?;
    let (ids, vectors) = whole.experts.expect("they are not frozen").read()?;
    let narrow = backward.run_as::<bf16>()?.experts.expect("they are not frozen").read()?;
    assert_eq!(ids, narrow.0);
    for (wide, narrow) in vectors.iter().zip(&narrow.1) {
        assert!(wide.iter().copied().map(bf16::from_f32).eq(narrow.iter().copied()));
    }
    let frozen = ops::expert_mlp_backward(&x, &routing, &table, &dy).frozen().run()?;
    assert!(frozen.experts.is_none());
    assert_eq!(frozen.dx.to_vec()?, whole.dx.to_vec()?);
    assert_eq!(frozen.dgates.to_vec()?, whole.dgates.to_vec()?);
    Ok(())
}

fn captured_gradients_are_the_same_bits(device: &Device) -> Result<(), Failed> {
    let table = table(device, 5, 16, 8)?;
    let [x, dy] = rows(device, 3)?;
    let mut routing = routing(device, &[0; 6], &[3, 1, 2])?;
    let result = ops::expert_mlp_backward(&x, &routing, &table, &dy).run()?;
    let (stream, mut written, read) = (device.new_stream()?, result.clone(), routing.clone());
    let work = || ops::expert_mlp_backward(&x, &read, &table, &dy).on(&stream).run_into(&mut written);
    // SAFETY: the work borrows the tensors that it uses; what it makes it drops.
    let mut graph = unsafe { stream.capture(work)? };
    for first in 0..3u32 {
        routing.ids.write_slice(&(first..first + 6).map(|id| id * id % 5).collect::<Vec<_>>())?;
        let expected = ops::expert_mlp_backward(&x, &routing, &table, &dy).run()?;
        graph.launch()?;
        assert_eq!(result.dx.to_vec()?, expected.dx.to_vec()?, "ids from {first} on");
        assert_eq!(result.dgates.to_vec()?, expected.dgates.to_vec()?, "ids from {first} on");
        let read = |of: &ops::peer::ExpertMlpGradients<f32>| of.experts.as_ref().map(|of| of.read());
        assert_eq!(read(&result).transpose()?, read(&expected).transpose()?, "ids from {first} on");
    }
    Ok(())
}

/// The gradients and a step of AdamW by them in one graph, which moves others with each launch.
fn a_captured_step_moves_the_experts_that_are_used_then(device: &Device) -> Result<(), Failed> {
    let [x, dy] = rows(device, 3)?;
    let mut routing = routing(device, &[0, 1, 2, 3, 4, 0], &[3, 1, 2])?;
    let make = || -> Result<(ExpertTable, AdamW), Failed> {
        let table = table(device, 5, 16, 8)?;
        let mut optimizer = AdamW::new(device, AdamWOptions { learning_rate: 0.1, ..Default::default() })?;
        optimizer.add("experts", &table)?;
        optimizer.set_max_norm(Some(0.5))?;
        Ok((table, optimizer))
    };
    let ((table, mut optimizer), (expected, mut other)) = (make()?, make()?);
    let (stream, read) = (device.new_stream()?, routing.clone());
    let mut written = ops::expert_mlp_backward(&x, &routing, &table, &dy).run()?;
    let of = |gradients: &ExpertMlpGradients<f32>, optimizer: &mut AdamW, stream: &Stream| {
        let experts = gradients.experts.as_ref().map(Gradient::from);
        optimizer.step_on(stream, &[experts])
    };
    // The first step makes the tables.
    of(&written, &mut optimizer, &stream)?;
    let step = |other: &mut AdamW, routing: &ops::peer::Routing| {
        let gradients = ops::expert_mlp_backward(&x, routing, &expected, &dy).run()?;
        of(&gradients, other, &device.default_stream())
    };
    step(&mut other, &routing)?;
    let work = || {
        ops::expert_mlp_backward(&x, &read, &table, &dy).on(&stream).run_into(&mut written)?;
        of(&written, &mut optimizer, &stream)
    };
    // SAFETY: the work borrows the tensors that it uses; what it makes it drops.
    let mut graph = unsafe { stream.capture(work)? };
    // What is captured has run once.
    step(&mut other, &routing)?;
    for first in 0..4u32 {
        routing.ids.write_slice(&(first..first + 6).map(|id| id * id % 5).collect::<Vec<_>>())?;
        graph.launch()?;
        step(&mut other, &routing)?;
        assert_eq!(table.read_rows(0..5)?, expected.read_rows(0..5)?, "ids from {first} on");
    }
    Ok(())
}

/// Several leading axes, dy with its axes exchanged, x within wider rows, ids and gates with gaps.
fn gradients_of_any_layout_are_those_of_copies(device: &Device) -> Result<(), Failed> {
    let table = table(device, 5, 16, 8)?;
    let wide = Tensor::from_slice(device, &numbers(6 * 19, 6), [2, 3, 19])?;
    let dy = Tensor::from_slice(device, &numbers(48, 7), [3, 8, 2])?.swap_axes(0, 2)?.swap_axes(1, 2)?;
    let ids: Vec<u32> = (0..36).map(|at| at * at % 5).collect();
    let whole = routing(device, &ids, &[2, 3, 2, 3])?;
    let (ids, gates) = (whole.ids.slice(3, 1..3)?, whole.gates.slice(3, 1..3)?);
    let x = wide.slice(2, 1..17)?;
    let views = ops::peer::Routing { ids, gates };
    let copies = ops::peer::Routing { ids: views.ids.contiguous()?, gates: views.gates.contiguous()? };
    let (x_copy, dy_copy) = (x.contiguous()?, dy.contiguous()?);
    let of_views = ops::expert_mlp_backward(&x, &views, &table, &dy);
    let of_copies = ops::expert_mlp_backward(&x_copy, &copies, &table, &dy_copy);
    if device.kind() != DeviceKind::Cpu {
        let [views, copies] = [&of_views, &of_copies].map(|op| op.implementation());
        let [views, copies] = [views?.to_string(), copies?.to_string()];
        assert!(views.contains("embedding_weighted_any_f32") && views.contains("embedding_order"), "{views}");
        assert!(!copies.contains("embedding_weighted_any_f32"), "{copies}");
    }
    let (got, expected) = (of_views.run()?, of_copies.run()?);
    assert_eq!((got.dx.shape(), got.dgates.shape()), (&[2, 3, 16][..], &[2, 3, 2, 2][..]));
    assert_eq!(got.dx.to_vec()?, expected.dx.to_vec()?);
    assert_eq!(got.dgates.to_vec()?, expected.dgates.to_vec()?);
    let read = |of: &ops::peer::ExpertMlpGradients<f32>| of.experts.as_ref().map(|of| of.read());
    assert_eq!(read(&got).transpose()?, read(&expected).transpose()?);
    Ok(())
}

fn gradients_of_parts_add_up_to_those_of_the_table(device: &Device) -> Result<(), Failed> {
    let (u, v) = (numbers(4 * 16, 4), numbers(4 * 8, 5));
    let of = |u: &[f32], v: &[f32]| -> warpsmith::Result<ExpertTable> {
        let count = u.len() / 16;
        let u = Tensor::from_slice(device, u, [count, 16])?;
        ExpertTable::from_tensors(ExpertFormat::F32, &u, None, &Tensor::from_slice(device, v, [count, 8])?)
    };
    // Each part has two of the experts, and zeros.
    let part = |first: usize| -> warpsmith::Result<ExpertTable> {
        let (u, v) = (&u[first * 16..][..32], &v[first * 8..][..16]);
        let rows = of(&[u, &[0.0; 16]].concat(), &[v, &[0.0; 8]].concat())?;
        let slots: Vec<u32> =
            (0..4).map(|id: usize| id.checked_sub(first).map_or(2, |slot| slot.min(2) as u32)).collect();
        ExpertTable::part(&rows, &slots)
    };
    let [x, dy] = rows(device, 3)?;
    let routing = routing(device, &[0, 1, 3, 1, 2, 0], &[3, 1, 2])?;
    let run = |table: &ExpertTable| -> warpsmith::Result<_> {
        let gradients =
            ops::expert_mlp_backward(&x, &routing, table, &dy).activation(Activation::Relu).run()?;
        let (ids, [u, _, v]) = gradients.experts.expect("they are not frozen").read()?;
        Ok((ids, [gradients.dx.to_vec()?, gradients.dgates.to_vec()?, u, v]))
    };
    let (ids, whole) = run(&of(&u, &v)?)?;
    let parts = [run(&part(0)?)?, run(&part(2)?)?];
    assert!(parts.iter().all(|(of_part, _)| *of_part == ids));
    for (index, whole) in whole.iter().enumerate() {
        // Multiples of 1/8 each, of which sums of products of three are exact.
        let sum = parts[0].1[index].iter().zip(&parts[1].1[index]).map(|(one, other)| one + other);
        assert!(sum.eq(whole.iter().copied()), "gradient {index}");
    }
    Ok(())
}

/// More sums than a grid has blocks along z.
fn gradients_of_very_many_hidden_units_are_right(device: &Device) -> Result<(), Failed> {
    let case = ExpertCase {
        hidden: 1 << 16,
        experts: 2,
        activation: Activation::Relu,
        data: Data::Uniform,
        ..ExpertCase::new(DType::F32, ExpertFormat::F32, 1, 2, [1, 2])
    };
    check_gradients(device, &case)?;
    Ok(())
}

fn gradients_that_do_not_fit_are_refused(device: &Device) -> Result<(), Failed> {
    let experts = table(device, 5, 16, 8)?;
    let [x, dy] = rows(device, 2)?;
    let good = routing(device, &[0, 1], &[2, 1, 1])?;
    let backward = ops::expert_mlp_backward(&x, &good, &experts, &dy);
    let mut result = backward.run()?;
    backward.run_into(&mut result)?;
    let message = |refused: warpsmith::Result<()>| refused.expect_err("it does not fit").to_string();
    let narrow = dy.slice(1, 0..7)?;
    let refused = ops::expert_mlp_backward(&x, &good, &experts, &narrow).run();
    assert!(matches!(refused, Err(Error::Shape { operation: "expert_mlp_backward", operand: "dy", .. })));
    let refused = ops::expert_mlp_backward(&x.slice(1, 1..16)?, &good, &experts, &dy).run();
    assert!(matches!(refused, Err(Error::Shape { operation: "expert_mlp_backward", operand: "x", .. })));

    let frozen = ops::expert_mlp_backward(&x, &good, &experts, &dy).frozen();
    assert!(message(frozen.run_into(&mut result)).contains("no experts of the result"));
    let mut without = frozen.run()?;
    assert!(message(backward.run_into(&mut without)).contains("there is no experts"));
    let own = result.experts.as_mut().expect("they are not frozen");
    let u = own.u.clone();
    own.w = Some(u.clone());
    assert!(message(backward.run_into(&mut result)).contains("no w of the result"));
    result.experts.as_mut().expect("they are not frozen").w = None;
    let dx = std::mem::replace(&mut result.dx, x.clone());
    let refused = backward.run_into(&mut result);
    assert!(matches!(refused, Err(Error::Overlap { operand: "dx", other: "x", .. })));
    result.dx = u.slice(1, 0..1)?.reshape([2, 16])?;
    let refused = backward.run_into(&mut result);
    assert!(matches!(refused, Err(Error::Overlap { operand: "u of the result", other: "dx", .. })));
    result.dx = dx;
    result.dgates = Tensor::zeros(device, [2, 1])?;
    assert!(matches!(backward.run_into(&mut result), Err(Error::Shape { operand: "dgates", .. })));
    Ok(())
}
