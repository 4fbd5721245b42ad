//! Softmax and its gradient are within their bounds of f64, whatever is drawn: sizes, types, layouts, masks, scales, in place or not.

use half::{bf16, f16};
use libtest_mimic::Failed;
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use warpsmith::ops::softmax::SoftmaxElement;
use warpsmith::{Device, Tensor, cpu, ops};
use warpsmith_lab::bound::softmax as bound;

use crate::rows::{Gaps, Rounded, gaps, matrix, numbers, random, sizes};
use crate::{Case, cases, drawn};

pub(crate) const CASES: &[(&str, Case)] = cases![
    shares_drawn_are_those_of_f64,
    gradients_of_shares_drawn_are_those_of_f64,
    wide_rows_have_all_their_shares,
    a_softmax_of_a_row_is_the_same_among_others,
    a_captured_softmax_runs_again_on_what_is_there_then,
];

#[derive(Clone, Debug)]
struct Drawn {
    sizes: [usize; 2],
    gaps: [Gaps; 3],
    /// Of numbers.
    range: f32,
    scale: f32,
    /// 0: none, 1: of one row, 2: of all.
    mask: u8,
    in_place: bool,
    infinities: bool,
    seed: u64,
}

impl Drawn {
    fn number(&self, at: usize) -> f32 {
        if self.infinities && random(self.seed ^ 5, at) > 0.8 {
            return f32::NEG_INFINITY;
        }
        random(self.seed, at) * self.range
    }
}

fn all() -> impl Strategy<Value = Drawn> {
    let range = prop::sample::select(vec![0.0f32, 1.0, 30.0, 1000.0]);
    let scale = prop::sample::select(vec![1.0f32, 0.125, 1.7, 60.0]);
    let switches = (0u8..3, any::<bool>(), any::<bool>());
    (sizes(), [gaps(), gaps(), gaps()], range, scale, switches, any::<u64>()).prop_map(
        |(sizes, gaps, range, scale, (mask, in_place, infinities), seed)| Drawn {
            sizes,
            gaps,
            range,
            scale,
            mask,
            in_place,
            infinities,
            seed,
        },
    )
}

fn expect(found: &[f32], expected: &[bound::Bounded], what: &str) -> Result<(), Failed> {
    assert_eq!(found.len(), expected.len());
    for (at, (&found, &expected)) in found.iter().zip(expected).enumerate() {
        if !bound::is_within(found, expected) {
            let (number, error) = expected;
            return Err(format!("{what}: {at} is {found}, expected {number} to {error}").into());
        }
    }
    Ok(())
}

/// Compares a softmax of `T` to `Y`.
fn compare<T: SoftmaxElement + Rounded, Y: Rounded>(device: &Device, drawn: &Drawn) -> Result<(), Failed> {
    let Drawn { sizes, gaps, scale, .. } = *drawn;
    let [rows, columns] = sizes;
    let x = matrix::<T>(device, sizes, gaps[0], |at| drawn.number(at))?;
    let counts = |at: usize| u8::from(random(drawn.seed ^ 7, at) > -0.5);
    let (mask_rows, gap) = (if drawn.mask == 1 { 1 } else { rows }, gaps[1].0);
    let bytes: Vec<u8> = (0..mask_rows * (columns + gap)).map(counts).collect();
    let mask =
        Tensor::from_slice(device, &bytes, [mask_rows, columns + gap])?.slice(1, gap..columns + gap)?;
    let (of_x, of_mask) = (numbers(&x)?, mask.to_vec()?);
    let operation = ops::softmax(&x).scale(scale).mask((drawn.mask > 0).then_some(&mask));
    let y = if drawn.in_place && T::DTYPE == Y::DTYPE {
        let mut y = x.clone();
        operation.run_into(&mut y)?;
        numbers(&y)?
    } else {
        let mut y = matrix::<Y>(device, sizes, gaps[2], |_| 9.0)?;
        operation.run_into(&mut y)?;
        numbers(&y)?
    };
    for row in 0..rows {
        let of_row = row * columns..(row + 1) * columns;
        let mask = match drawn.mask {
            0 => None,
            1 => Some(&of_mask[..columns]),
            _ => Some(&of_mask[of_row.clone()]),
        };
        let expected = bound::softmax(&of_x[of_row.clone()], mask, scale, Y::DTYPE);
        expect(&y[of_row], &expected, &format!("{drawn:?}: row {row}"))?;
    }
    Ok(())
}

/// Compares a gradient for results of type `Y` and gradients of type `D`.
fn compare_gradient<Y: SoftmaxElement + Rounded, D: Rounded>(
    device: &Device,
    drawn: &Drawn,
) -> Result<(), Failed> {
    let Drawn { sizes, gaps, scale, seed, .. } = *drawn;
    let [rows, columns] = sizes;
    let mut shares = vec![0.0f32; rows * columns];
    for (row, y) in shares.chunks_mut(columns).enumerate() {
        let x: Vec<f32> = (0..columns).map(|column| drawn.number(row * columns + column)).collect();
        cpu::softmax(&x, None, scale, y);
    }
    let y = matrix::<Y>(device, sizes, gaps[0], |at| shares[at])?;
    // Where y is 0 anything may be.
    let dy = matrix::<D>(device, sizes, gaps[1], |at| match random(seed ^ 3, at) {
        number if number > 0.9 && shares[at] == 0.0 => f32::NAN,
        number => number * drawn.range,
    })?;
    let (of_y, of_dy) = (numbers(&y)?, numbers(&dy)?);
    let operation = ops::softmax_gradient(&y, &dy).scale(scale);
    let dx = if drawn.in_place {
        let mut dx = dy.clone();
        operation.run_into(&mut dx)?;
        numbers(&dx)?
    } else {
        let mut dx = matrix::<D>(device, sizes, gaps[2], |_| 9.0)?;
        operation.run_into(&mut dx)?;
        numbers(&dx)?
    };
    for row in 0..rows {
        let of_row = row * columns..(row + 1) * columns;
        let expected =
            bound::softmax_gradient(&of_y[of_row.clone()], &of_dy[of_row.clone()], scale, D::DTYPE);
        expect(&dx[of_row], &expected, &format!("{drawn:?}: row {row}"))?;
    }
    Ok(())
}

fn failed(error: Failed) -> TestCaseError {
    TestCaseError::fail(error.message().unwrap_or("failed").to_owned())
}

fn shares_drawn_are_those_of_f64(device: &Device) -> Result<(), Failed> {
    Ok(drawn::runner(device, [40, 200])?.run(&all(), |drawn| {
        compare::<f32, f32>(device, &drawn).map_err(failed)?;
        compare::<bf16, bf16>(device, &drawn).map_err(failed)?;
        compare::<f16, f32>(device, &drawn).map_err(failed)?;
        compare::<f32, f16>(device, &drawn).map_err(failed)
    })?)
}

fn gradients_of_shares_drawn_are_those_of_f64(device: &Device) -> Result<(), Failed> {
    Ok(drawn::runner(device, [40, 200])?.run(&all(), |drawn| {
        compare_gradient::<f32, f32>(device, &drawn).map_err(failed)?;
        compare_gradient::<bf16, bf16>(device, &drawn).map_err(failed)?;
        compare_gradient::<f16, f32>(device, &drawn).map_err(failed)?;
        compare_gradient::<f32, f16>(device, &drawn).map_err(failed)
    })?)
}

/// Rows of several rounds, of clusters, and of both.
fn wide_rows_have_all_their_shares(device: &Device) -> Result<(), Failed> {
    let drawn = |columns, gap| Drawn {
        sizes: [2, columns],
        gaps: [(gap, gap), (0, 0), (gap, 0)],
        range: 20.0,
        scale: 1.0,
        mask: 0,
        in_place: true,
        infinities: false,
        seed: 11,
    };
    for (columns, gap) in [(16_400, 0), (16_400, 1), (140_000, 0)] {
        compare::<bf16, bf16>(device, &drawn(columns, gap))?;
        compare_gradient::<bf16, f32>(device, &drawn(columns, gap))?;
        compare_gradient::<f16, f16>(device, &drawn(columns, gap))?;
    }
    compare::<f32, f32>(device, &Drawn { mask: 1, ..drawn(65_537, 0) })?;
    compare::<f32, f32>(device, &Drawn { mask: 2, ..drawn(129_920, 0) })
}

/// Bit by bit.
fn a_softmax_of_a_row_is_the_same_among_others(device: &Device) -> Result<(), Failed> {
    for columns in [5, 8, 100, 1024, 9000] {
        let rows = 3000 / columns + 5;
        let x = matrix::<f32>(device, [rows, columns], (0, 0), |at| random(4, at) * 9.0)?;
        let all = numbers(&ops::softmax(&x).run()?)?;
        for row in [0, rows / 2, rows - 1] {
            let alone = numbers(&ops::softmax(&x.slice(0, row..row + 1)?.deep_clone()?).run()?)?;
            let among = &all[row * columns..][..columns];
            let same = alone.iter().zip(among).all(|(a, b)| a.to_bits() == b.to_bits());
            assert!(same, "{columns} columns, row {row}");
        }
        assert_eq!(all, numbers(&ops::softmax(&x).run()?)?, "the same bits each time");
    }
    Ok(())
}

fn a_captured_softmax_runs_again_on_what_is_there_then(device: &Device) -> Result<(), Failed> {
    let stream = device.new_stream()?;
    let mut x = Tensor::<f32>::zeros_on(&stream, [7, 300])?;
    let mut y = Tensor::<f32>::zeros_on(&stream, [7, 300])?;
    // Views of the same memory.
    let (read, mut to) = (x.clone(), y.clone());
    // SAFETY: the work borrows the tensors that it uses.
    let mut graph = unsafe { stream.capture(|| ops::softmax(&read).on(&stream).run_into(&mut to))? };
    for seed in 1..4 {
        let next = matrix::<f32>(device, [7, 300], (0, 0), |at| random(seed, at))?;
        x.write_slice(&next.to_vec()?)?;
        graph.launch()?;
        assert_eq!(y.to_vec()?, ops::softmax(&next).run()?.to_vec()?);
        y.write_slice(&vec![f32::NAN; y.len()])?;
    }
    Ok(())
}
