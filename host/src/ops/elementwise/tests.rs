//! Operations on elements against their definitions in f64, drawn; in place, into halves of one tensor; what is refused; edges.

use half::{bf16, f16};
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use warpsmith_dsl::rows::THREADS;

use super::{ElementwiseElement, Launch, launches, parts};
use crate::cpu::Elementwise;
use crate::error::{Error, Result};
use crate::ops::Implementation;
use crate::ops::rows::{RowElement, Sizes, widened};
use crate::ops::{self, Activation};
use crate::{Device, DeviceKind, Tensor};

/// Half a unit in the last place of 1 in f32.
const U: f64 = 1.0 / (1u64 << 24) as f64;
/// What powers, reciprocals and products of f32 lose near zero.
const TINY: f64 = f32::MIN_POSITIVE as f64;

/// A type's relative rounding error, and half the distance of its smallest numbers.
pub(crate) trait Rounding: ElementwiseElement {
    const RELATIVE: f64;
    const SMALLEST: f64;
}
impl Rounding for f16 {
    const RELATIVE: f64 = 1.0 / 2048.0;
    const SMALLEST: f64 = 1.0 / (1u64 << 25) as f64;
}
impl Rounding for bf16 {
    const RELATIVE: f64 = 1.0 / 256.0;
    const SMALLEST: f64 = TINY;
}
impl Rounding for f32 {
    const RELATIVE: f64 = 0.0;
    const SMALLEST: f64 = 0.0;
}

/// How far a result that is computed in f32 with an error of `error` and rounded to T may be from `exact`.
pub(crate) fn bound<T: Rounding>(exact: f64, error: f64) -> f64 {
    let rounding = (exact.abs() + error) * T::RELATIVE;
    // A number is rounded relatively or, near zero, absolutely.
    error + rounding.max(T::SMALLEST) + TINY
}

/// How far the results of an operation on elements may be from the definition, before they are rounded to their types.
fn errors(function: Elementwise, [a, b, c]: [f64; 3], [y, z]: [f64; 2]) -> [f64; 2] {
    // A product has a rounding, of which the factor's error changes no more than another TINY times the other factors.
    let value = |activation: Activation| activation.evaluation_ulps() * U * a.abs() + TINY;
    let slope = |activation: Activation| activation.derivative_ulps() * U + TINY;
    match function {
        Elementwise::Activation(activation) => [value(activation), 0.0],
        Elementwise::Add | Elementwise::Multiply => [y.abs() * U, 0.0],
        Elementwise::Gated(activation) => {
            let error = value(activation) * b.abs();
            [error + (y.abs() + error) * U, 0.0]
        }
        Elementwise::ActivationGradient(activation) => {
            let error = slope(activation) * b.abs();
            [error + (y.abs() + error) * U, 0.0]
        }
        Elementwise::GatedGradient(activation) => {
            let (of_gate, of_value) = (slope(activation) * (b * c).abs(), value(activation) * c.abs());
            // Two products, the second of which has the first one's error, too.
            let gate = of_gate + (y.abs() + of_gate) * (2.0 * U + U * U) + TINY * (1.0 + c.abs());
            [gate, of_value + (z.abs() + of_value) * U]
        }
    }
}

/// Numbers that a seed decides: most of them near 0, some where activations are flat, few special.
pub(crate) fn numbers(seed: u64, count: usize) -> Vec<f32> {
    let mut state = seed | 1;
    (0..count)
        .map(|_| {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            let bits = state >> 24;
            let uniform = (bits % (1 << 20)) as f32 / (1 << 19) as f32 - 1.0;
            match bits >> 20 & 15 {
                0 => uniform * 64.0,
                1 => uniform * 1e-4,
                2 => uniform.signum() * 0.0,
                _ => uniform * 6.0,
            }
        })
        .collect()
}

/// A matrix of numbers, rounded to T, that begins `before` elements into rows with `after` more elements: beside them are ones.
pub(crate) fn placed<T: RowElement>(
    device: &Device,
    numbers: &[f32],
    [rows, columns]: [usize; 2],
    [before, after]: [usize; 2],
) -> Result<Tensor<T>> {
    let pitch = before + columns + after;
    let mut all = vec![T::from_accumulator(1.0); rows * pitch];
    for row in 0..rows {
        for column in 0..columns {
            all[row * pitch + before + column] = T::from_accumulator(numbers[row * columns + column]);
        }
    }
    Tensor::from_slice(device, &all, [rows, pitch])?.slice(1, before..before + columns)
}

#[derive(Clone, Debug)]
struct Drawn {
    shape: [usize; 2],
    /// The layout of the operands and results.
    places: [[usize; 2]; 5],
    function: Elementwise,
    is_row: bool,
    seed: u64,
}

fn functions() -> impl Strategy<Value = Elementwise> {
    let activations = prop::sample::select(Activation::ALL.to_vec());
    (0u8..6, activations).prop_map(|(which, activation)| match which {
        0 => Elementwise::Activation(activation),
        1 => Elementwise::Add,
        2 => Elementwise::Multiply,
        3 => Elementwise::Gated(activation),
        4 => Elementwise::ActivationGradient(activation),
        _ => Elementwise::GatedGradient(activation),
    })
}

fn cases() -> impl Strategy<Value = Drawn> {
    let columns = prop_oneof![
        2 => 1usize..40,
        3 => prop::sample::select(vec![64usize, 96, 127, 128, 129, 509, 1024, 2048, 4104, 9001]),
    ];
    let rows = prop_oneof![4 => 0usize..6, 1 => prop::sample::select(vec![31usize, 64])];
    // Without gaps, in whole chunks, or anyhow.
    let place = prop_oneof![Just([0, 0]), Just([8, 16]), Just([8, 0]), [0usize..9, 0usize..9]];
    let places =
        prop_oneof![2 => place.clone().prop_map(|place| [place; 5]), 1 => prop::array::uniform5(place)];
    (rows, columns, places, functions(), any::<bool>(), any::<u64>()).prop_map(
        |(rows, columns, places, function, is_row, seed)| Drawn {
            shape: [rows, columns],
            places,
            function,
            is_row: is_row && matches!(function, Elementwise::Add | Elementwise::Multiply),
            seed,
        },
    )
}

fn fail(error: Error) -> TestCaseError {
    TestCaseError::fail(error.to_string())
}

/// Runs a case, and compares each element with the definition at f64.
fn check<T: Rounding, B: Rounding, Y: Rounding>(device: &Device, drawn: &Drawn) -> Result<(), TestCaseError> {
    let Drawn { shape, places, function, is_row, seed } = drawn.clone();
    let count = shape[0] * shape[1];
    let of_b = if is_row { [1, shape[1]] } else { shape };
    let a = placed::<T>(device, &numbers(seed, count), shape, places[0]).map_err(fail)?;
    let mut b = placed::<B>(device, &numbers(seed ^ 77, of_b[0] * of_b[1]), of_b, places[1]).map_err(fail)?;
    if is_row {
        b = b.reshape([shape[1]]).map_err(fail)?;
    }
    let c = placed::<Y>(device, &numbers(seed ^ 99, count), shape, places[2]).map_err(fail)?;
    let ones = vec![1.0; count];
    let mut y = placed::<Y>(device, &ones, shape, places[3]).map_err(fail)?;
    let mut z = placed::<B>(device, &ones, shape, places[4]).map_err(fail)?;
    let has_two = matches!(function, Elementwise::GatedGradient(_));
    match function {
        Elementwise::Activation(activation) => ops::activation(&a, activation).run_into(&mut y),
        Elementwise::Add => ops::add(&a, &b).run_into(&mut y),
        Elementwise::Multiply => ops::mul(&a, &b).run_into(&mut y),
        Elementwise::Gated(activation) => ops::gated(&a, &b, activation).run_into(&mut y),
        Elementwise::ActivationGradient(activation) => {
            ops::activation_backward(&a, &b, activation).run_into(&mut y)
        }
        Elementwise::GatedGradient(activation) => {
            ops::gated_backward(&a, &b, &c, activation).run_into(&mut y, &mut z)
        }
    }
    .map_err(fail)?;
    let (a, b, c) = (widened(&a).map_err(fail)?, widened(&b).map_err(fail)?, widened(&c).map_err(fail)?);
    let (ys, zs) = (widened(&y).map_err(fail)?, widened(&z).map_err(fail)?);
    for at in 0..count {
        let [a, b, c] = [a[at], b[if is_row { at % shape[1] } else { at }], c[at]].map(f64::from);
        let exact = function.apply(a, b, c);
        let allowed = errors(function, [a, b, c], exact);
        let near = |got: f32, exact: f64, bound: f64| (f64::from(got) - exact).abs() <= bound;
        let bounds = [bound::<Y>(exact[0], allowed[0]), bound::<B>(exact[1], allowed[1])];
        prop_assert!(
            near(ys[at], exact[0], bounds[0]) && (!has_two || near(zs[at], exact[1], bounds[1])),
            "{function:?} of {a}, {b}, {c} is {} and {}, expected {exact:?} to {bounds:?}",
            ys[at],
            zs[at]
        );
    }
    // Nothing beside the rows is written.
    for (whole, place) in [(beside(&y, places[3]), 3), (beside(&z, places[4]), 4)] {
        prop_assert!(whole.map_err(fail)?, "the surroundings of result {place} have changed");
    }
    Ok(())
}

/// Whether what surrounds the rows of a tensor that [`placed`] made is still one.
fn beside<T: RowElement>(tensor: &Tensor<T>, [before, after]: [usize; 2]) -> Result<bool> {
    let (rows, columns) = (tensor.shape()[0], tensor.shape()[1]);
    if rows == 0 || before != 0 {
        // What is before the first row is not reachable from the view.
        return Ok(true);
    }
    let pitch = columns + after;
    let whole = tensor.dense_from_start("test", "y", &[rows, pitch])?;
    Ok(widened(&whole)?.iter().enumerate().all(|(at, number)| at % pitch < columns || *number == 1.0))
}

fn devices() -> impl Iterator<Item = Device> {
    ["emulator:9.0", "emulator:8.0"].into_iter().map(|name| name.parse().expect("a device"))
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 80, ..ProptestConfig::default() })]

    #[test]
    fn kernels_compute_what_the_definitions_say(drawn in cases()) {
        for device in devices() {
            check::<f16, f16, f16>(&device, &drawn)?;
            check::<bf16, bf16, bf16>(&device, &drawn)?;
            check::<f32, f32, f32>(&device, &drawn)?;
        }
        let device = Device::emulator();
        check::<bf16, f32, bf16>(&device, &drawn)?;
        check::<f32, f16, bf16>(&device, &drawn)?;
        check::<f16, bf16, f32>(&device, &drawn)?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn the_cpu_computes_what_the_definitions_say(drawn in cases()) {
        check::<f16, f16, f16>(&Device::cpu(), &drawn)?;
        check::<bf16, f32, bf16>(&Device::cpu(), &drawn)?;
        check::<f32, f16, f32>(&Device::cpu(), &drawn)?;
    }
}

/// Every argument of f16, and as many of f32, close together where functions bend.
#[test]
fn functions_and_slopes_stay_within_their_ulps_everywhere() {
    let mut arguments: Vec<f32> = (0..=u16::MAX).map(|bits| f16::from_bits(bits).to_f32()).collect();
    arguments.extend((0..40_000).map(|i| (i as f32 - 20_000.0) * 7.3e-4));
    arguments.extend([f32::MAX, -f32::MAX, f32::MIN_POSITIVE, 1e-42, 88.7, -88.7, -104.0, 127.9, -128.1]);
    for device in [Device::emulator(), Device::cpu()] {
        let x = Tensor::from_slice(&device, &arguments, [arguments.len()]).expect("it fits");
        let dy =
            Tensor::from_slice(&device, &vec![1.0f32; arguments.len()], [arguments.len()]).expect("it fits");
        for activation in Activation::ALL {
            let values = ops::activation(&x, activation).run().and_then(|y| y.to_vec()).expect("it runs");
            let slopes = ops::activation_backward(&x, &dy, activation).run().and_then(|y| y.to_vec());
            let slopes = slopes.expect("it runs");
            for ((&x, value), slope) in arguments.iter().zip(values).zip(slopes) {
                let exact = [activation.apply(f64::from(x)), activation.derivative(f64::from(x))];
                if exact.iter().any(|exact| !exact.is_finite()) || !x.is_finite() {
                    let same =
                        |got: f32, exact: f64| f64::from(got) == exact || got.is_nan() && exact.is_nan();
                    assert!(
                        same(value, exact[0]) && same(slope, exact[1]),
                        "{activation}({x}): {value}, {slope}"
                    );
                    continue;
                }
                let allowed = activation.evaluation_ulps() * U * f64::from(x).abs() + TINY;
                let error = (f64::from(value) - exact[0]).abs();
                assert!(error <= allowed, "{activation}({x}) is {value}, expected {}", exact[0]);
                let allowed = activation.derivative_ulps() * U + TINY;
                let error = (f64::from(slope) - exact[1]).abs();
                assert!(error <= allowed, "{activation}′({x}) is {slope}, expected {}", exact[1]);
            }
        }
    }
}

#[test]
fn conversions_are_those_of_the_types_bit_by_bit() {
    let all: Vec<f16> = (0..=u16::MAX).map(f16::from_bits).collect();
    let halves: Vec<bf16> = (0..=u16::MAX).map(bf16::from_bits).collect();
    // Neighbours of numbers of both types, and of the middles between two.
    let singles: Vec<f32> = (0..=u16::MAX)
        .flat_map(|bits| {
            let (of_f16, of_bf16) = (f16::from_bits(bits).to_f32().to_bits(), u32::from(bits) << 16);
            [of_f16, of_f16 + 0x1000, of_f16 + 0x1001, of_bf16, of_bf16 + 0x8000, of_bf16 + 0x7fff]
        })
        .map(f32::from_bits)
        .collect();
    let same = |got: &[f32], expected: Vec<f32>| {
        for (&got, expected) in got.iter().zip(expected) {
            assert!(
                got.to_bits() == expected.to_bits() || got.is_nan() && expected.is_nan(),
                "{got} {expected}"
            );
        }
    };
    for device in [Device::emulator(), Device::cpu()] {
        let of = |x: &[f32]| Tensor::from_slice(&device, x, [x.len()]).expect("it fits");
        let x = of(&singles);
        let y = ops::cast::<f16>(&x).run().expect("it runs");
        same(
            &widened(&y).expect("it is there"),
            singles.iter().map(|&x| f16::from_f32(x).to_f32()).collect(),
        );
        let y = ops::cast::<bf16>(&x).run().expect("it runs");
        same(
            &widened(&y).expect("it is there"),
            singles.iter().map(|&x| bf16::from_f32(x).to_f32()).collect(),
        );
        let x = Tensor::from_slice(&device, &all, [256, 256]).expect("it fits");
        let y = ops::cast::<f32>(&x).run().and_then(|y| y.to_vec()).expect("it runs");
        same(&y, all.iter().map(|x| x.to_f32()).collect());
        let x = Tensor::from_slice(&device, &halves, [256, 256]).expect("it fits");
        let y = ops::cast::<f32>(&x).run().and_then(|y| y.to_vec()).expect("it runs");
        same(&y, halves.iter().map(|x| x.to_f32()).collect());
        let y = ops::cast::<f16>(&x).run().expect("it runs");
        let expected = halves.iter().map(|x| f16::from_f32(x.to_f32()).to_f32()).collect();
        same(&widened(&y).expect("it is there"), expected);
    }
}

/// Sums and products are rounded to f32 and to the result, so they are the same bits everywhere.
#[test]
fn sums_and_products_are_the_same_on_every_device() {
    let run = |device: &Device| -> Result<(Vec<bf16>, Vec<f32>)> {
        let a = placed::<bf16>(device, &numbers(3, 7 * 333), [7, 333], [0, 3])?;
        let b = placed::<f32>(device, &numbers(4, 7 * 333), [7, 333], [1, 0])?;
        Ok((ops::add(&a, &b).run()?.to_vec()?, ops::mul(&a, &b).run_as::<f32>()?.to_vec()?))
    };
    let of_cpu = run(&Device::cpu()).expect("it runs");
    for device in devices() {
        assert_eq!(run(&device).expect("it runs"), of_cpu);
    }
}

#[test]
fn results_may_take_the_place_of_operands_of_their_type() -> Result<()> {
    for device in [Device::emulator(), Device::cpu()] {
        for place in [[0, 0], [8, 8], [3, 2]] {
            let make = |seed| placed::<f16>(&device, &numbers(seed, 5 * 200), [5, 200], place);
            let (a, b) = (make(1)?, make(2)?);
            let expected = ops::add(&a, &b).run()?.to_vec()?;
            let mut y = b.clone();
            ops::add(&a, &b).run_into(&mut y)?;
            assert_eq!(y.to_vec()?, expected);
            let expected = ops::activation(&a, Activation::Silu).run()?.to_vec()?;
            let mut y = a.clone();
            ops::activation(&a, Activation::Silu).run_into(&mut y)?;
            assert_eq!(y.to_vec()?, expected);
        }
    }
    Ok(())
}

/// Gate and value are halves of one tensor, as the result of one product is, and their gradients take their places.
#[test]
fn gates_and_values_are_halves_of_one_tensor() -> Result<()> {
    for device in [Device::emulator(), Device::cpu()] {
        for columns in [128, 72, 33] {
            let h = placed::<bf16>(&device, &numbers(8, 6 * 2 * columns), [6, 2 * columns], [0, 0])?;
            let dy = placed::<bf16>(&device, &numbers(9, 6 * columns), [6, columns], [0, 0])?;
            let halves = |h: &Tensor<bf16>| -> Result<_> {
                Ok((h.slice(1, 0..columns)?, h.slice(1, columns..2 * columns)?))
            };
            let (gate, value) = halves(&h)?;
            let backward = ops::gated_backward(&gate, &value, &dy, Activation::GeluTanh);
            let (dgate, dvalue) = backward.run()?;
            let apart = (dgate.to_vec()?, dvalue.to_vec()?);
            let (mut into_gate, mut into_value) = halves(&Tensor::zeros(&device, [6, 2 * columns])?)?;
            backward.run_into(&mut into_gate, &mut into_value)?;
            assert_eq!((into_gate.to_vec()?, into_value.to_vec()?), apart);
            let (mut into_gate, mut into_value) = (gate.clone(), value.clone());
            backward.run_into(&mut into_gate, &mut into_value)?;
            assert_eq!((into_gate.to_vec()?, into_value.to_vec()?), apart);
            // Halves that overlap by a column.
            let mut shifted = h.slice(1, columns - 1..2 * columns - 1)?;
            let refused = backward.run_into(&mut into_gate, &mut shifted);
            assert!(matches!(refused, Err(Error::Overlap { .. })), "{refused:?}");
        }
    }
    Ok(())
}

#[test]
fn views_without_contiguous_rows_are_copied_first() -> Result<()> {
    let device = Device::emulator();
    let a = placed::<f32>(&device, &numbers(5, 40 * 24), [40, 24], [0, 0])?;
    let turned = a.swap_axes(0, 1)?;
    let op = ops::add(&turned, &turned);
    assert_eq!(op.implementation()?.copies(), 2);
    let expected: Vec<f32> = turned.to_vec()?.iter().map(|x| x + x).collect();
    assert_eq!(op.run()?.to_vec()?, expected);
    let deep = a.reshape([2, 20, 24])?.slice(1, 3..19)?;
    let expected: Vec<f32> = deep.to_vec()?.iter().map(|x| x + x).collect();
    assert_eq!(ops::add(&deep, &deep).run()?.to_vec()?, expected);
    Ok(())
}

#[test]
fn what_does_not_fit_is_refused() -> Result<()> {
    let device = Device::emulator();
    let a = Tensor::<f32>::zeros(&device, [4, 6])?;
    let of = |shape: &[usize]| Tensor::<f16>::zeros(&device, shape);
    for shape in [&[4, 5][..], &[6, 4], &[4], &[24], &[1, 6]] {
        let refused = ops::add(&a, &of(shape)?).run();
        assert!(matches!(refused, Err(Error::Shape { operand: "b", .. })), "{refused:?}");
    }
    // Only sums and products take a row.
    let refused = ops::gated(&a, &of(&[6])?, Activation::Silu).run();
    assert!(matches!(refused, Err(Error::Shape { operand: "value", .. })));
    let refused = ops::activation(&Tensor::<f32>::zeros(&device, [])?, Activation::Relu).run();
    assert!(matches!(refused, Err(Error::Shape { operand: "x", .. })));
    let elsewhere = Tensor::<f32>::zeros(&Device::cpu(), [4, 6])?;
    assert!(matches!(ops::add(&a, &elsewhere).run(), Err(Error::DeviceMismatch { operand: "b", .. })));
    let stream = Device::cpu().default_stream();
    let refused = ops::add(&a, &a).on(&stream).run();
    assert!(matches!(refused, Err(Error::DeviceMismatch { operand: "stream", .. })));
    // Another part of the operand's memory.
    let long = Tensor::<f32>::zeros(&device, [30])?;
    let (x, mut y) = (long.slice(0, 0..20)?, long.slice(0, 1..21)?);
    let refused = ops::activation(&x, Activation::Relu).run_into(&mut y);
    assert!(matches!(refused, Err(Error::Overlap { operand: "y", other: "x", .. })));
    // The row that all rows are added to.
    let row = a.slice(0, 0..1)?.reshape([6])?;
    let refused = ops::add(&a, &row).run_into(&mut a.clone());
    assert!(matches!(refused, Err(Error::Overlap { operand: "y", other: "b", .. })));
    let refused = ops::add(&a, &a).run_into(&mut Tensor::<f32>::zeros(&device, [6, 4])?.swap_axes(0, 1)?);
    assert!(matches!(refused, Err(Error::Stride { operand: "y", .. })), "{refused:?}");
    Ok(())
}

#[test]
fn nothing_runs_for_no_elements() -> Result<()> {
    for device in [Device::emulator(), Device::cpu()] {
        for shape in [[0, 7], [7, 0]] {
            let a = Tensor::<f16>::zeros(&device, shape)?;
            assert_eq!(ops::mul(&a, &a).implementation()?, Implementation::Empty);
            assert_eq!(ops::mul(&a, &a).run()?.shape(), shape);
            let (dgate, dvalue) = ops::gated_backward(&a, &a, &a, Activation::Silu).run()?;
            assert_eq!((dgate.shape(), dvalue.shape()), (&shape[..], &shape[..]));
        }
    }
    Ok(())
}

#[test]
fn tensors_without_gaps_are_read_in_chunks_of_which_the_last_may_be_cut() -> Result<()> {
    for (device, count) in [(Device::emulator(), 5000 + 5), (Device::emulator(), 3), (Device::cpu(), 5005)] {
        let x = placed::<f16>(&device, &numbers(5, count), [1, count], [0, 0])?;
        let expected: Vec<f16> = x.to_vec()?.iter().map(|x| f16::from_f32(x.to_f32() + x.to_f32())).collect();
        assert_eq!(ops::add(&x, &x).run()?.to_vec()?, expected);
        if device.kind() == DeviceKind::Emulator {
            let launch = format!("{:?}", ops::add(&x, &x).implementation()?);
            assert!(!launch.contains("any"), "{launch}");
        }
    }
    Ok(())
}

#[test]
fn parts_are_all_elements_once() {
    let rows = |stride| warpsmith_dsl::rows::AnyRows {
        base: 256,
        stride,
        kind: warpsmith_dsl::rows::Kind::F16,
        offset: 0.0,
    };
    for [count, columns] in
        [[1usize, 1], [3, 5], [1, 1 << 20], [1 << 20, 4096], [(1 << 31) - 1, 3], [7, (1 << 31) - 1]]
    {
        let sizes = Sizes { rows: count, columns };
        let parts_of = parts(sizes, &[rows(columns as u64); 2], false);
        let mut next = 0;
        for part in &parts_of {
            assert_eq!(part.before * part.stride.unwrap(), next, "{count} × {columns}");
            assert!(part.rows < 1 << 31 && part.columns < 1 << 31);
            next += part.rows * part.columns;
        }
        assert_eq!(next, count as u64 * columns as u64);
        assert!(parts_of.len() <= 2);
        let strided = parts(sizes, &[rows(columns as u64), rows(columns as u64 + 1)], false);
        assert!(count == 1 || strided.len() == 1 && strided[0].stride.is_none());
        // Every grid is one, and the launches have each row once.
        let all = launches::<f16>(sizes, &[rows(columns as u64), rows(columns as u64 + 1)], 1, false);
        let mut next = 0;
        for Launch { part, threads, grid, rows: of, .. } in &all {
            let teams = u64::from(THREADS / threads);
            assert!(grid[1] <= 65_535 && u64::from(grid[1]) * teams >= part.rows);
            assert!(u64::from(grid[0] * threads * 8) >= part.columns);
            assert_eq!(part.before, next);
            if count > 1 {
                let bases = [columns as u64, columns as u64 + 1].map(|stride| 256 + part.before * stride * 2);
                assert_eq!([of[0].base, of[1].base], bases);
            }
            next += part.rows;
        }
        assert!(count == 1 || next == count as u64);
    }
}
