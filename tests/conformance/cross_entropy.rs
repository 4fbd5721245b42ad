//! Losses, their logarithms of sums and their gradients are within their bounds of f64, whatever is drawn: sizes, types, layouts, options, labels, results.

use half::bf16;
use libtest_mimic::Failed;
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use warpsmith::cpu::{CrossEntropy, Target};
use warpsmith::ops::cross_entropy::{CrossEntropyOutputs, Reduction};
use warpsmith::{DType, Device, Tensor, ops};
use warpsmith_lab::bound::softmax as bound;
use warpsmith_lab::cases::{CrossEntropyCase, Placement};
use warpsmith_lab::validate;

use crate::rows::{matrix, numbers, placement, random, sizes};
use crate::{Case, cases, drawn};

pub(crate) const CASES: &[(&str, Case)] = cases![
    losses_drawn_are_those_of_f64,
    losses_beside_gradients_of_other_alignment_are_those_of_f64,
    vocabularies_of_any_size_have_all_their_mass_and_no_more,
    a_loss_of_a_row_is_the_same_among_others,
    a_captured_loss_runs_again_on_what_is_there_then,
];

/// The types of logits and of gradients, and those of labels with the one that is ignored.
const TYPES: [DType; 3] = [DType::F16, DType::Bf16, DType::F32];
const LABELS: [(DType, i64); 4] =
    [(DType::I64, -100), (DType::I64, 0), (DType::U32, u32::MAX as i64), (DType::I32, -1)];

fn any_losses() -> impl Strategy<Value = CrossEntropyCase> {
    let dtype = || prop::sample::select(&TYPES[..]);
    let types = (dtype(), dtype(), prop::sample::select(&LABELS[..]));
    let range = prop::sample::select(&[0.0f32, 1.0, 30.0, 1000.0][..]);
    let options = (
        prop::sample::select(&[0.0f32, 0.1, 1.0][..]),
        prop::sample::select(&[0.0f32, 1e-4, 0.5][..]),
        prop::sample::select(&[None, Some(30.0f32), Some(1.5)][..]),
    );
    let reduction = prop::sample::select(&[Reduction::Mean, Reduction::Sum, Reduction::None][..]);
    let switches = (any::<bool>(), prop::bool::weighted(0.2));
    let scale = prop::sample::select(&[1.0f32, -0.37, 1024.0][..]);
    let of_results = (reduction, switches, scale);
    (sizes(), types, [placement(), placement()], range, options, of_results, any::<u64>()).prop_map(
        |([rows, columns], types, placements, range, options, of_results, seed)| {
            let ((dtype, output, (labels, ignored)), (smoothing, z_loss, soft_cap)) = (types, options);
            let (reduction, (in_place, outside), gradient_scale) = of_results;
            // f16 has nothing for larger ones.
            let (z_loss, gradient_scale) = match output {
                DType::F16 => (z_loss.min(1e-4), gradient_scale.min(0.5)),
                _ => (z_loss, gradient_scale),
            };
            CrossEntropyCase {
                output,
                labels,
                range,
                options: CrossEntropy { smoothing, z_loss, soft_cap },
                reduction,
                ignored,
                outside,
                gradient_scale,
                in_place,
                placements,
                seed,
                ..CrossEntropyCase::new(dtype, rows, columns)
            }
        },
    )
}

fn check(device: &Device, case: &CrossEntropyCase) -> Result<(), TestCaseError> {
    let what = format!("{}→{} {} {}", case.dtype, case.output, case.shape(), case.options());
    drawn::passed(validate::cross_entropy(device, case), &what, case.rows * case.columns).map(drop)
}

fn losses_drawn_are_those_of_f64(device: &Device) -> Result<(), Failed> {
    Ok(drawn::runner(device, [240, 1200])?.run(&any_losses(), |case| check(device, &case))?)
}

/// Sums have another order then, and the loss may have another last bit with the gradient than alone.
fn losses_beside_gradients_of_other_alignment_are_those_of_f64(device: &Device) -> Result<(), Failed> {
    let case = CrossEntropyCase {
        output: DType::F16,
        range: 1.0,
        options: CrossEntropy { smoothing: 0.1, z_loss: 0.0, soft_cap: Some(1.5) },
        gradient_scale: 0.5,
        placements: [Placement::default(), Placement { before: 0, after: 1 }],
        seed: 17_165_620_652_132_561_549,
        ..CrossEntropyCase::new(DType::Bf16, 3, 2048)
    };
    // A row that is alone has no distance to the next one.
    let one = [Placement { before: 0, after: 1 }, Placement { before: 1, after: 0 }];
    for (rows, placements) in [(3, case.placements), (1, one)] {
        for reduction in [Reduction::Mean, Reduction::Sum, Reduction::None] {
            let case = CrossEntropyCase { rows, placements, reduction, ..case };
            check(device, &case).map_err(|error| error.to_string())?;
        }
    }
    Ok(())
}

/// Of vocabularies that are not a multiple of what threads have: what is beyond their end has no part in the sum, which a soft cap would give it.
fn vocabularies_of_any_size_have_all_their_mass_and_no_more(device: &Device) -> Result<(), Failed> {
    for (columns, gap) in [(129_920, 0), (65_537, 0), (65_537, 1)] {
        let options = CrossEntropy { soft_cap: Some(30.0), ..CrossEntropy::default() };
        for dtype in [DType::Bf16, DType::F32] {
            let case = CrossEntropyCase {
                range: 40.0,
                options,
                reduction: Reduction::None,
                in_place: true,
                placements: [Placement { before: gap, after: 0 }, Placement::default()],
                seed: 2,
                ..CrossEntropyCase::new(dtype, 2, columns)
            };
            check(device, &case).map_err(|error| error.to_string())?;
        }
        // Equal logits far below 0: anything that is no column would have the mass.
        let logits = matrix::<f32>(device, [1, columns], (gap, 0), |_| -200.0)?;
        let labels = Tensor::from_slice(device, &[columns as i64 - 1], [1])?;
        let losses = ops::cross_entropy(&logits, &labels).soft_cap(30.0).run_with_gradient()?;
        let expected =
            bound::loss(&vec![-200.0; columns], Target::Column(columns - 1), options, 1.0, DType::F32);
        let loss = losses.loss.to_vec()?[0];
        assert!((expected.loss.0 - (columns as f64).ln()).abs() < 1e-9);
        assert!(bound::is_within(loss, expected.loss), "{columns}: {loss}, expected {:?}", expected.loss);
    }
    Ok(())
}

/// Bit by bit.
fn a_loss_of_a_row_is_the_same_among_others(device: &Device) -> Result<(), Failed> {
    for columns in [8, 100, 1024, 9000] {
        let rows = 3000 / columns + 5;
        let logits = matrix::<bf16>(device, [rows, columns], (0, 0), |at| random(4, at) * 9.0)?;
        let labels: Vec<i64> = (0..rows).map(|row| (row * 7 % columns) as i64).collect();
        let labels = Tensor::from_slice(device, &labels, [rows])?;
        let all = ops::cross_entropy(&logits, &labels).reduction(Reduction::None).run_with_gradient()?;
        let (losses, gradients) = (all.loss.to_vec()?, numbers(&all.gradient)?);
        for row in [0, rows / 2, rows - 1] {
            let one = logits.slice(0, row..row + 1)?.deep_clone()?;
            let label = labels.slice(0, row..row + 1)?.deep_clone()?;
            let alone = ops::cross_entropy(&one, &label).reduction(Reduction::None).run_with_gradient()?;
            assert_eq!(alone.loss.to_vec()?, [losses[row]], "{columns} columns, row {row}");
            assert_eq!(numbers(&alone.gradient)?, gradients[row * columns..][..columns]);
        }
        let again = ops::cross_entropy(&logits, &labels).run()?.to_vec()?;
        assert_eq!(ops::cross_entropy(&logits, &labels).run()?.to_vec()?, again, "the same bits each time");
    }
    Ok(())
}

fn a_captured_loss_runs_again_on_what_is_there_then(device: &Device) -> Result<(), Failed> {
    let stream = device.new_stream()?;
    let mut logits = Tensor::<f32>::zeros_on(&stream, [70, 300])?;
    let mut labels = Tensor::<i64>::zeros_on(&stream, [70])?;
    let mut loss = Tensor::<f32>::zeros_on(&stream, [1])?;
    let mut gradient = Tensor::<f32>::zeros_on(&stream, [70, 300])?;
    // Views of the same memory.
    let (read, read_labels) = (logits.clone(), labels.clone());
    let (mut to_loss, mut to_gradient) = (loss.clone(), gradient.clone());
    let work = || {
        let outputs =
            CrossEntropyOutputs { loss: Some(&mut to_loss), lse: None, gradient: Some(&mut to_gradient) };
        ops::cross_entropy(&read, &read_labels).on(&stream).run_into(outputs)
    };
    // SAFETY: the work borrows the tensors that it uses; what it makes it drops.
    let mut graph = unsafe { stream.capture(work)? };
    for seed in 1..4 {
        let next = matrix::<f32>(device, [70, 300], (0, 0), |at| random(seed, at))?;
        let next_labels: Vec<i64> =
            (0..70).map(|row| if row % (seed + 1) == 0 { -100 } else { row as i64 }).collect();
        logits.write_slice(&next.to_vec()?)?;
        labels.write_slice(&next_labels)?;
        graph.launch()?;
        let next_labels = Tensor::from_slice(device, &next_labels, [70])?;
        let expected = ops::cross_entropy(&next, &next_labels).run_with_gradient()?;
        assert_eq!(loss.to_vec()?, expected.loss.to_vec()?);
        assert_eq!(gradient.to_vec()?, expected.gradient.to_vec()?);
        loss.write_slice(&[f32::NAN])?;
        gradient.write_slice(&vec![f32::NAN; gradient.len()])?;
    }
    Ok(())
}
