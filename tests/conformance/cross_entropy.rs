//! Losses, their logarithms of sums and their gradients are within their bounds of f64, whatever is drawn: sizes, types, layouts, options, labels, results.

use half::{bf16, f16};
use libtest_mimic::Failed;
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use warpsmith::cpu::{CrossEntropy, Target};
use warpsmith::ops::cross_entropy::{CrossEntropyOutputs, LabelElement, LogitElement, Reduction};
use warpsmith::{Device, Tensor, ops};
use warpsmith_lab::bound::softmax as bound;

use crate::rows::{Gaps, Rounded, gaps, matrix, numbers, random, sizes};
use crate::{Case, cases, drawn};

pub(crate) const CASES: &[(&str, Case)] = cases![
    losses_drawn_are_those_of_f64,
    vocabularies_of_any_size_have_all_their_mass_and_no_more,
    a_loss_of_a_row_is_the_same_among_others,
    a_captured_loss_runs_again_on_what_is_there_then,
];

#[derive(Clone, Debug)]
struct Drawn {
    sizes: [usize; 2],
    gaps: [Gaps; 2],
    /// Of logits.
    range: f32,
    options: CrossEntropy,
    reduction: Reduction,
    in_place: bool,
    wants_lse: bool,
    /// Whether there are labels that are neither columns nor ignored.
    outside: bool,
    gradient_scale: f32,
    seed: u64,
}

fn all() -> impl Strategy<Value = Drawn> {
    let range = prop::sample::select(vec![0.0f32, 1.0, 30.0, 1000.0]);
    let options = (
        prop::sample::select(vec![0.0f32, 0.1, 1.0]),
        prop::sample::select(vec![0.0f32, 1e-4, 0.5]),
        prop::sample::select(vec![None, Some(30.0f32), Some(1.5)]),
    );
    let reduction = prop::sample::select(vec![Reduction::Mean, Reduction::Sum, Reduction::None]);
    let switches = (any::<bool>(), any::<bool>(), prop::bool::weighted(0.2));
    let scale = prop::sample::select(vec![1.0f32, -0.37, 1024.0]);
    (sizes(), [gaps(), gaps()], range, options, reduction, switches, scale, any::<u64>()).prop_map(
        |(sizes, gaps, range, options, reduction, switches, gradient_scale, seed)| {
            let (smoothing, z_loss, soft_cap) = options;
            let (in_place, wants_lse, outside) = switches;
            let options = CrossEntropy { smoothing, z_loss, soft_cap };
            Drawn {
                sizes,
                gaps,
                range,
                options,
                reduction,
                in_place,
                wants_lse,
                outside,
                gradient_scale,
                seed,
            }
        },
    )
}

impl Drawn {
    /// The label of a row; the ignored one may be a column.
    fn label(&self, row: usize, ignored: i64) -> i64 {
        let number = (f64::from(random(self.seed ^ 9, row)) + 1.0) / 2.0;
        match number {
            _ if number < 0.2 => ignored,
            _ if number < 0.3 && self.outside => (self.sizes[1] + row) as i64,
            _ => ((number * 1e6) as usize % self.sizes[1]) as i64,
        }
    }
}

/// Compares everything that logits of `T` and labels of `L` give.
fn compare<T: LogitElement + Rounded, L: LabelElement, G: Rounded>(
    device: &Device,
    drawn: &Drawn,
    ignored: i64,
    to_label: impl Fn(i64) -> L,
) -> Result<(), Failed> {
    let Drawn { sizes: [rows, columns], gaps, options, reduction, .. } = *drawn;
    let logits = matrix::<T>(device, drawn.sizes, gaps[0], |at| random(drawn.seed, at) * drawn.range)?;
    let labels: Vec<i64> = (0..rows).map(|row| drawn.label(row, ignored)).collect();
    let on_device: Vec<L> = labels.iter().map(|&label| to_label(label)).collect();
    let on_device = Tensor::from_slice(device, &on_device, [rows])?;
    let x = numbers(&logits)?;
    let operation = ops::cross_entropy(&logits, &on_device)
        .label_smoothing(options.smoothing)
        .z_loss(options.z_loss)
        .soft_cap(options.soft_cap)
        .ignored_label(ignored)
        .reduction(reduction)
        .gradient_scale(drawn.gradient_scale);
    let of_losses = if reduction == Reduction::None { rows } else { 1 };
    let mut loss = Tensor::<f32>::uninit(device, [of_losses])?;
    let mut lse = Tensor::<f32>::zeros(device, [rows])?;
    let alone = operation.run()?.to_vec()?;
    let lse_wanted = drawn.wants_lse.then_some(&mut lse);
    let gradient = if drawn.in_place && T::DTYPE == G::DTYPE {
        let mut gradient = logits.clone();
        let to = Some(&mut gradient);
        operation.run_into(CrossEntropyOutputs { loss: Some(&mut loss), lse: lse_wanted, gradient: to })?;
        numbers(&gradient)?
    } else {
        let mut gradient = matrix::<G>(device, drawn.sizes, gaps[1], |_| 9.0)?;
        let to = Some(&mut gradient);
        operation.run_into(CrossEntropyOutputs { loss: Some(&mut loss), lse: lse_wanted, gradient: to })?;
        numbers(&gradient)?
    };
    let (loss, lse) = (loss.to_vec()?, lse.to_vec()?);
    let is_same = |(a, b): (&f32, &f32)| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan();
    assert!(alone.iter().zip(&loss).all(is_same), "{drawn:?}: the gradient changes the loss");
    let count = labels.iter().filter(|label| **label != ignored).count();
    let divisor = if reduction == Reduction::Mean { count.max(1) as f64 } else { 1.0 };
    let expect = |found: f32, expected: bound::Bounded, what: &str, row: usize| -> Result<(), Failed> {
        if bound::is_within(found, expected) {
            return Ok(());
        }
        let (number, error) = expected;
        Err(format!("{drawn:?}: {what} of row {row} is {found}, expected {number} to {error}").into())
    };
    let mut losses = Vec::new();
    for row in 0..rows {
        let target = match labels[row] {
            label if label == ignored => Target::Ignored,
            label if label < columns as i64 => Target::Column(label as usize),
            _ => Target::Outside,
        };
        let of_row = row * columns..(row + 1) * columns;
        let factor = f64::from(drawn.gradient_scale) / divisor;
        let expected = bound::loss(&x[of_row.clone()], target, options, factor, G::DTYPE);
        losses.push(expected.loss);
        if reduction == Reduction::None {
            expect(loss[row], expected.loss, "the loss", row)?;
        }
        if drawn.wants_lse {
            expect(lse[row], expected.lse, "lse", row)?;
        }
        for (&found, expected) in gradient[of_row].iter().zip(expected.gradient) {
            expect(found, expected, "the gradient", row)?;
        }
    }
    if reduction != Reduction::None {
        expect(loss[0], bound::total(&losses, divisor), "the loss", rows)?;
    }
    Ok(())
}

fn failed(error: Failed) -> TestCaseError {
    TestCaseError::fail(error.message().unwrap_or("failed").to_owned())
}

fn losses_drawn_are_those_of_f64(device: &Device) -> Result<(), Failed> {
    Ok(drawn::runner(device, [60, 300])?.run(&all(), |drawn| {
        compare::<f32, i64, f32>(device, &drawn, -100, |label| label).map_err(failed)?;
        compare::<bf16, i64, bf16>(device, &drawn, 0, |label| label).map_err(failed)?;
        let (ignored, to_u32) = (i64::from(u32::MAX), |label| label as u32);
        compare::<f16, u32, f32>(device, &drawn, ignored, to_u32).map_err(failed)?;
        // f16 has nothing for larger ones.
        let drawn =
            Drawn { gradient_scale: 0.5, options: CrossEntropy { z_loss: 1e-4, ..drawn.options }, ..drawn };
        compare::<f32, i32, f16>(device, &drawn, -1, |label| label as i32).map_err(failed)
    })?)
}

/// Of vocabularies that are not a multiple of what threads have: what is beyond their end has no part in the sum, which a soft cap would give it.
fn vocabularies_of_any_size_have_all_their_mass_and_no_more(device: &Device) -> Result<(), Failed> {
    for (columns, gap) in [(129_920, 0), (65_537, 0), (65_537, 1)] {
        let options = CrossEntropy { soft_cap: Some(30.0), ..CrossEntropy::default() };
        let drawn = Drawn {
            sizes: [2, columns],
            gaps: [(gap, 0), (0, 0)],
            range: 40.0,
            options,
            reduction: Reduction::None,
            in_place: true,
            wants_lse: true,
            outside: false,
            gradient_scale: 1.0,
            seed: 2,
        };
        compare::<bf16, i64, bf16>(device, &drawn, -100, |label| label)?;
        compare::<f32, i64, f32>(device, &drawn, -100, |label| label)?;
        // Equal logits far below 0: anything that is no column would have the mass.
        let logits = matrix::<f32>(device, [1, columns], (gap, 0), |_| -200.0)?;
        let labels = Tensor::from_slice(device, &[columns as i64 - 1], [1])?;
        let losses = ops::cross_entropy(&logits, &labels).soft_cap(30.0).run_with_gradient()?;
        let expected = bound::loss(
            &vec![-200.0; columns],
            Target::Column(columns - 1),
            options,
            1.0,
            warpsmith::DType::F32,
        );
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
