//! Rotations against their definition in f64, drawn; public cases; in place and back; what is refused; edges.

use half::{bf16, f16};
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use super::{Pairing, RotaryTable};
use crate::error::{Error, Result};
use crate::ops::elementwise::tests::{Rounding, bound, numbers};
use crate::ops::rotary::RotaryElement;
use crate::ops::rows::widened;
use crate::ops::{self, Implementation};
use crate::{Device, Tensor};

const U: f64 = 1.0 / (1u64 << 24) as f64;

/// The layout of heads: without gaps, heads before tokens, among other heads, in wider heads.
#[derive(Clone, Copy, Debug)]
enum Lies {
    Dense,
    HeadsFirst,
    Packed,
    Wide(usize),
}

#[derive(Clone, Debug)]
struct Drawn {
    /// Sequences, tokens, heads, elements.
    shape: [usize; 4],
    rotary: usize,
    pairing: Pairing,
    lies: [Lies; 2],
    /// From an offset, or a position for each token.
    offset: Option<usize>,
    is_inverse: bool,
    seed: u64,
}

/// A tensor of zeros with the layout that is asked for, whose rows hold `numbers` in the order of its axes.
fn placed<T: RotaryElement>(
    device: &Device,
    shape: [usize; 4],
    lies: Lies,
    numbers: &[f32],
) -> Result<Tensor<T>> {
    let [batch, length, heads, width] = shape;
    let mut view = match lies {
        Lies::Dense => Tensor::zeros(device, shape)?,
        Lies::HeadsFirst => Tensor::zeros(device, [batch, heads, length, width])?.swap_axes(1, 2)?,
        Lies::Packed => Tensor::zeros(device, [batch, length, heads + 3, width])?.slice(2, 1..heads + 1)?,
        Lies::Wide(by) => {
            Tensor::zeros(device, [batch, length, heads, width + 2 * by])?.slice(3, by..by + width)?
        }
    };
    let elements: Vec<T> = numbers.iter().map(|&number| T::from_accumulator(number)).collect();
    view.write_slice(&elements)?;
    Ok(view)
}

const BASE: f64 = 10_000.0;
const POSITIONS: usize = 300;

/// Cosine and sine by which a pair is turned.
fn angle(position: usize, pair: usize, rotary: usize, is_inverse: bool) -> [f64; 2] {
    let angle = position as f64 * BASE.powf(-((2 * pair) as f64) / rotary as f64);
    [angle.cos(), if is_inverse { -angle.sin() } else { angle.sin() }]
}

fn fail(error: Error) -> TestCaseError {
    TestCaseError::fail(error.to_string())
}

fn check<T: RotaryElement + Rounding>(device: &Device, drawn: &Drawn) -> Result<(), TestCaseError> {
    let Drawn { shape, rotary, pairing, lies, offset, is_inverse, seed } = drawn.clone();
    let [batch, length, heads, width] = shape;
    let table = RotaryTable::new(device, BASE, rotary, POSITIONS).map_err(fail)?;
    let x = placed::<T>(device, shape, lies[0], &numbers(seed, shape.iter().product())).map_err(fail)?;
    let mut y = placed::<T>(device, shape, lies[1], &vec![1.0; shape.iter().product()]).map_err(fail)?;
    // Some positions are none of the table's.
    let positions: Vec<u32> = (0..batch * length)
        .map(|token| (seed.rotate_left(token as u32) % (POSITIONS as u64 + 20)) as u32)
        .collect();
    let given = Tensor::from_slice(device, &positions, [batch, length]).map_err(fail)?;
    let mut op = ops::rotary(&x, &table).pairing(pairing);
    op = match offset {
        Some(offset) => op.offset(offset),
        None => op.positions(&given),
    };
    if is_inverse {
        op = op.inverse();
    }
    op.run_into(&mut y).map_err(fail)?;
    let new = op.run().map_err(fail)?;
    let mut in_place = x.clone();
    let before = widened(&x).map_err(fail)?;
    op.run_into(&mut in_place).map_err(fail)?;
    let after = widened(&y).map_err(fail)?;
    for (at, other) in [&new, &in_place].into_iter().enumerate() {
        let other = widened(other).map_err(fail)?;
        let same = |(a, b): (&f32, &f32)| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan();
        prop_assert!(after.iter().zip(&other).all(same), "{at}: {drawn:?}");
    }
    for (token, &position) in positions.iter().enumerate() {
        let position = offset.map_or(position as usize, |offset| offset + token % length);
        for head in 0..heads {
            let start = (token * heads + head) * width;
            let (x, y) = (&before[start..start + width], &after[start..start + width]);
            for pair in 0..rotary / 2 {
                let [first, second] = pairing.elements(pair, rotary / 2);
                if position >= POSITIONS {
                    prop_assert!(y[first].is_nan() && y[second].is_nan());
                    continue;
                }
                let [cosine, sine] = angle(position, pair, rotary, is_inverse);
                let [a, b] = [x[first], x[second]].map(f64::from);
                for (got, exact) in [(y[first], a * cosine - b * sine), (y[second], b * cosine + a * sine)] {
                    // Of each product: the table's rounding and its own. Then that of the sum.
                    let error = U * (2.0 * (a.abs() + b.abs()) * (1.0 + U) + exact.abs());
                    let allowed = bound::<T>(exact, error);
                    prop_assert!(
                        (f64::from(got) - exact).abs() <= allowed,
                        "{got}, expected {exact} to {allowed}, of pair {pair} of token {token}: {drawn:?}"
                    );
                }
            }
            prop_assert!(x[rotary..].iter().zip(&y[rotary..]).all(|(x, y)| x.to_bits() == y.to_bits()));
        }
    }
    Ok(())
}

fn cases() -> impl Strategy<Value = Drawn> {
    let widths = prop::sample::select(vec![
        (2usize, 2usize),
        (8, 8),
        (13, 6),
        (32, 16),
        (64, 64),
        (64, 32),
        (80, 80),
        (96, 24),
        (128, 128),
        (128, 64),
        (128, 72),
        (256, 64),
        (40, 38),
        (600, 600),
    ]);
    let lies = prop_oneof![
        Just(Lies::Dense),
        Just(Lies::HeadsFirst),
        Just(Lies::Packed),
        Just(Lies::Wide(8)),
        Just(Lies::Wide(3)),
    ];
    let pairing = prop_oneof![Just(Pairing::Halves), Just(Pairing::Neighbours)];
    let offset = prop::option::of(0usize..200);
    let sizes =
        (0usize..4, prop_oneof![Just(1usize), 1usize..20], prop_oneof![Just(1usize), 1usize..9, Just(33)]);
    (sizes, widths, pairing, [lies.clone(), lies], offset, any::<bool>(), any::<u64>()).prop_map(
        |((batch, length, heads), (width, rotary), pairing, lies, offset, is_inverse, seed)| Drawn {
            shape: [batch, length, heads, width],
            rotary,
            pairing,
            lies,
            offset,
            is_inverse,
            seed,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn rotations_are_what_their_definition_says(drawn in cases()) {
        for device in ["emulator:9.0", "emulator:8.0", "cpu"] {
            let device: Device = device.parse().expect("a device");
            check::<f16>(&device, &drawn)?;
            check::<bf16>(&device, &drawn)?;
            check::<f32>(&device, &drawn)?;
        }
    }
}

/// Cases that implementations have been wrong in.
#[test]
fn parts_of_heads_are_turned_by_the_frequencies_of_what_is_turned() {
    let case = |shape, rotary, pairing, lies| Drawn {
        shape,
        rotary,
        pairing,
        lies: [lies; 2],
        offset: Some(5),
        is_inverse: false,
        seed: 12,
    };
    for device in [Device::emulator(), Device::cpu()] {
        for drawn in [
            case([3, 7, 4, 128], 72, Pairing::Neighbours, Lies::Packed),
            case([3, 7, 4, 128], 72, Pairing::Halves, Lies::Packed),
            case([1, 7, 2, 128], 64, Pairing::Halves, Lies::Dense),
            // More tokens than blocks have at a time, and more heads than a thread.
            case([5, 150, 2, 64], 64, Pairing::Halves, Lies::HeadsFirst),
            case([1, 3, 130, 64], 64, Pairing::Neighbours, Lies::Dense),
        ] {
            check::<bf16>(&device, &drawn).expect("it is what the definition says");
        }
    }
    let table = RotaryTable::new(&Device::cpu(), BASE, 64, 2).expect("it fits");
    let angles = table.angles().to_vec().expect("it is there");
    assert_eq!(angles[64 + 2], (BASE.powf(-2.0 / 64.0).cos()) as f32, "64 elements are turned, not 128");
}

#[test]
fn turning_back_is_the_gradient_and_the_inverse() -> Result<()> {
    let device = Device::emulator();
    let table = RotaryTable::with_frequencies(&device, &[0.5, 0.25, 0.125], 40)?;
    let x = placed::<f32>(&device, [2, 9, 3, 8], Lies::Dense, &numbers(3, 2 * 9 * 3 * 8))?;
    let y = ops::rotary(&x, &table).offset(7).run()?;
    let back = ops::rotary(&y, &table).offset(7).backward().run()?;
    for (x, back) in x.to_vec()?.iter().zip(back.to_vec()?) {
        // Each way errors of 3 U for each of two elements of at most 64, which turn into one another.
        assert!((f64::from(*x) - f64::from(back)).abs() <= 2.0 * 3.0 * U * 2.0 * 64.0, "{x} {back}");
    }
    let twice = ops::rotary(&y, &table).offset(7).inverse().inverse().run()?;
    assert_eq!(twice.to_vec()?, ops::rotary(&y, &table).offset(7).run()?.to_vec()?);
    Ok(())
}

#[test]
fn what_does_not_fit_is_refused() -> Result<()> {
    let (device, cpu) = (Device::emulator(), Device::cpu());
    for (base, rotary) in [(0.0, 4), (-1.0, 4), (f64::NAN, 4), (f64::INFINITY, 4), (1e4, 0), (1e4, 3)] {
        assert!(matches!(RotaryTable::new(&device, base, rotary, 4), Err(Error::Argument { .. })));
    }
    assert!(matches!(RotaryTable::with_frequencies(&device, &[], 4), Err(Error::Argument { .. })));
    assert!(matches!(RotaryTable::with_frequencies(&device, &[f64::NAN], 4), Err(Error::Argument { .. })));
    let table = RotaryTable::new(&device, BASE, 8, 10)?;
    assert_eq!((table.positions(), table.rotary_dim()), (10, 8));
    let of = |shape: &[usize]| Tensor::<f16>::zeros(&device, shape);
    let x = of(&[2, 4, 3, 8])?;
    for shape in [&[3, 8][..], &[4, 3, 6]] {
        let refused = ops::rotary(&of(shape)?, &table).run();
        assert!(matches!(refused, Err(Error::Shape { operand: "x", .. })), "{refused:?}");
    }
    for offset in [7, usize::MAX] {
        let refused = ops::rotary(&x, &table).offset(offset).run();
        assert!(matches!(refused, Err(Error::Argument { argument: "offset", .. })), "{refused:?}");
    }
    let positions = Tensor::<u32>::zeros(&device, [4, 2])?;
    let refused = ops::rotary(&x, &table).positions(&positions).run();
    assert!(matches!(refused, Err(Error::Shape { operand: "positions", .. })));
    let elsewhere = RotaryTable::new(&cpu, BASE, 8, 10)?;
    assert!(matches!(ops::rotary(&x, &elsewhere).run(), Err(Error::DeviceMismatch { operand: "table", .. })));
    let stream = cpu.default_stream();
    let refused = ops::rotary(&x, &table).on(&stream).run();
    assert!(matches!(refused, Err(Error::DeviceMismatch { operand: "stream", .. })));
    let refused = ops::rotary(&x, &table).run_into(&mut of(&[2, 4, 3, 9])?);
    assert!(matches!(refused, Err(Error::Shape { operand: "y", .. })));
    let mut turned = of(&[2, 4, 8, 3])?.swap_axes(2, 3)?;
    assert!(matches!(ops::rotary(&x, &table).run_into(&mut turned), Err(Error::Stride { operand: "y", .. })));
    let long = of(&[2, 5, 3, 8])?;
    let (x, mut y) = (long.slice(1, 0..4)?, long.slice(1, 1..5)?);
    let refused = ops::rotary(&x, &table).run_into(&mut y);
    assert!(matches!(refused, Err(Error::Overlap { operand: "y", other: "x", .. })));
    Ok(())
}

#[test]
fn nothing_runs_for_no_heads_and_other_layouts_are_copied() -> Result<()> {
    let device = Device::emulator();
    let table = RotaryTable::new(&device, BASE, 4, 10)?;
    for shape in [[0, 3, 2, 8], [3, 0, 2, 8], [3, 2, 0, 8]] {
        let x = Tensor::<f32>::zeros(&device, shape)?;
        assert_eq!(ops::rotary(&x, &table).implementation()?, Implementation::Empty);
        assert_eq!(ops::rotary(&x, &table).run()?.shape(), shape);
    }
    let x = placed::<f32>(&device, [2, 5, 8, 6], Lies::Dense, &numbers(1, 480))?.swap_axes(2, 3)?;
    let op = ops::rotary(&x, &table);
    assert_eq!(op.implementation()?.copies(), 1);
    let copy = x.contiguous()?;
    assert_eq!(op.run()?.to_vec()?, ops::rotary(&copy, &table).run()?.to_vec()?);
    // More axes before the tokens.
    let deep = copy.reshape([1, 2, 5, 6, 8])?;
    assert_eq!(ops::rotary(&deep, &table).run()?.to_vec()?, ops::rotary(&copy, &table).run()?.to_vec()?);
    Ok(())
}
