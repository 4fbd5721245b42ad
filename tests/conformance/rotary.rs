//! Rotary position embedding against its definition in f64, drawn by proptest: sizes, pairings, parts of heads, positions, layouts, in place.

use half::{bf16, f16};
use libtest_mimic::Failed;
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use warpsmith::ops::rotary::RotaryElement;
use warpsmith::ops::{self, Pairing, RotaryTable};
use warpsmith::{Device, Tensor};
use warpsmith_lab::bound::elementwise::rotated;

use crate::elementwise::{Number, number, widened};
use crate::{Case, cases, drawn};

pub(crate) const CASES: &[(&str, Case)] =
    cases![rotations_drawn_are_what_their_definition_says, queries_and_keys_are_turned_where_they_lie];

const BASE: f64 = 500_000.0;
const POSITIONS: usize = 5000;

#[derive(Clone, Debug)]
struct Drawn {
    /// Sequences, tokens, heads, elements.
    shape: [usize; 4],
    rotary: usize,
    pairing: Pairing,
    /// Without gaps, heads before tokens, among other heads, or so many elements beside each head.
    lies: usize,
    offset: Option<usize>,
    is_inverse: bool,
    seed: u64,
}

fn placed<T: Number>(device: &Device, drawn: &Drawn) -> warpsmith::Result<Tensor<T>> {
    let [batch, length, heads, width] = drawn.shape;
    let mut view = match drawn.lies {
        0 => Tensor::zeros(device, drawn.shape)?,
        1 => Tensor::zeros(device, [batch, heads, length, width])?.swap_axes(1, 2)?,
        2 => Tensor::zeros(device, [batch, length, heads + 2, width])?.slice(2, 1..heads + 1)?,
        by => Tensor::zeros(device, [batch, length, heads, width + by])?.slice(3, by..by + width)?,
    };
    let elements: Vec<T> = (0..view.len()).map(|at| T::round(number(drawn.seed, at))).collect();
    view.write_slice(&elements)?;
    Ok(view)
}

fn check<T: RotaryElement + Number>(
    device: &Device,
    table: &RotaryTable,
    drawn: &Drawn,
) -> warpsmith::Result<Option<String>> {
    let [batch, length, heads, width] = drawn.shape;
    let (rotary, pairs) = (drawn.rotary, drawn.rotary / 2);
    let mut x = placed::<T>(device, drawn)?;
    let before = widened(&x)?;
    let positions: Vec<u32> = (0..batch * length)
        .map(|token| (drawn.seed.rotate_left(token as u32) % (POSITIONS as u64 + 100)) as u32)
        .collect();
    let given = Tensor::from_slice(device, &positions, [batch, length])?;
    let there = x.clone();
    let mut op = ops::rotary(&there, table).pairing(drawn.pairing);
    op = match drawn.offset {
        Some(offset) => op.offset(offset),
        None => op.positions(&given),
    };
    if drawn.is_inverse {
        op = op.inverse();
    }
    let after = widened(&op.run()?)?;
    op.run_into(&mut x)?;
    let same = |(a, b): (&f64, &f64)| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan();
    if !after.iter().zip(&widened(&x)?).all(same) {
        return Ok(Some("in place it is another result".into()));
    }
    for (token, &position) in positions.iter().enumerate() {
        let position = drawn.offset.map_or(position as usize, |offset| offset + token % length);
        for head in 0..heads {
            let start = (token * heads + head) * width;
            let (x, y) = (&before[start..start + width], &after[start..start + width]);
            for pair in 0..pairs {
                let [first, second] = drawn.pairing.elements(pair, pairs);
                let angle = position as f64 * BASE.powf(-2.0 * pair as f64 / rotary as f64);
                let (sine, cosine) = if drawn.is_inverse { (-angle).sin_cos() } else { angle.sin_cos() };
                let expected = rotated([x[first], x[second]], [cosine, sine], T::DTYPE);
                for (got, (exact, allowed)) in [y[first], y[second]].into_iter().zip(expected) {
                    let is_right =
                        if position < POSITIONS { (got - exact).abs() <= allowed } else { got.is_nan() };
                    if !is_right {
                        return Ok(Some(format!("{got}, expected {exact} to {allowed}, at {position}")));
                    }
                }
            }
            if x[rotary..] != y[rotary..] {
                return Ok(Some("what is not turned has changed".into()));
            }
        }
    }
    Ok(None)
}

fn rotations_drawn_are_what_their_definition_says(device: &Device) -> Result<(), Failed> {
    let widths = prop::sample::select(vec![
        (2usize, 2usize),
        (6, 4),
        (64, 64),
        (64, 16),
        (80, 80),
        (96, 96),
        (128, 128),
        (128, 64),
        (128, 72),
        (256, 64),
        (40, 38),
    ]);
    let strategy = (
        (0usize..4, 1usize..30, prop_oneof![1usize..9, Just(33usize)]),
        widths,
        prop_oneof![Just(Pairing::Halves), Just(Pairing::Neighbours)],
        prop_oneof![0usize..3, Just(8), Just(3)],
        prop::option::of(0usize..4900),
        any::<bool>(),
        0u8..3,
        any::<u64>(),
    );
    Ok(drawn::runner(device, [60, 200])?.run(&strategy, |drawn| {
        let ((batch, length, heads), (width, rotary), pairing, lies, offset, is_inverse, of, seed) = drawn;
        let drawn =
            Drawn { shape: [batch, length, heads, width], rotary, pairing, lies, offset, is_inverse, seed };
        let outcome = RotaryTable::new(device, BASE, rotary, POSITIONS).and_then(|table| match of {
            0 => check::<f16>(device, &table, &drawn),
            1 => check::<bf16>(device, &table, &drawn),
            _ => check::<f32>(device, &table, &drawn),
        });
        match outcome {
            Ok(None) => Ok(()),
            Ok(Some(wrong)) => Err(TestCaseError::fail(format!("{wrong}: {drawn:?}"))),
            Err(error) => Err(TestCaseError::fail(error.to_string())),
        }
    })?)
}

/// Those of a packed tensor of q, k and v, in one launch; the values stay as they are.
fn queries_and_keys_are_turned_where_they_lie(device: &Device) -> Result<(), Failed> {
    let (of_q, of_k, width) = (6, 2, 128);
    let all = of_q + 2 * of_k;
    let elements: Vec<bf16> = (0..3 * 7 * all * width).map(|at| bf16::from_f64(number(5, at))).collect();
    let packed = Tensor::from_slice(device, &elements, [3, 7, all, width])?;
    let table = RotaryTable::new(device, BASE, 72, 64)?;
    let turn = |x: &Tensor<bf16>| ops::rotary(x, &table).pairing(Pairing::Neighbours).offset(3).run();
    let (q, k, v) =
        (packed.slice(2, 0..of_q)?, packed.slice(2, of_q..of_q + of_k)?, packed.slice(2, of_q + of_k..all)?);
    let expected = (turn(&q)?.to_vec()?, turn(&k)?.to_vec()?, v.to_vec()?);
    let both = packed.slice(2, 0..of_q + of_k)?;
    ops::rotary(&both, &table).pairing(Pairing::Neighbours).offset(3).run_into(&mut both.clone())?;
    assert_eq!((q.to_vec()?, k.to_vec()?, v.to_vec()?), expected);
    Ok(())
}
