//! Selections are exactly what sorting gives, drawn by proptest: ties, NaN, duplicates, every layout; and what is refused.

use half::{bf16, f16};
use libtest_mimic::Failed;
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use warpsmith::ops::topk::{MAX_K, TopkElement};
use warpsmith::{Device, DeviceKind, Error, Tensor, ops};

use crate::{Case, cases, drawn};

pub(crate) const CASES: &[(&str, Case)] = cases![
    selections_drawn_are_what_sorting_gives,
    rows_in_worst_order_and_of_equal_elements_are_sorted,
    nan_is_the_largest_and_zeros_are_equal,
    a_few_long_rows_are_selected_in_parts,
    views_of_any_layout_are_read,
    what_cannot_be_selected_is_refused,
    a_selection_of_no_rows_is_empty,
    results_go_where_they_are_wanted,
    a_captured_selection_runs_again_on_what_is_there_then,
];

/// The order of selections, from the greatest on: NaN, then numbers, then the lowest place.
fn before(a: (f32, usize), b: (f32, usize)) -> std::cmp::Ordering {
    let numbers = match (a.0.is_nan(), b.0.is_nan()) {
        (true, true) => std::cmp::Ordering::Equal,
        (a_is, b_is) if a_is || b_is => b_is.cmp(&a_is),
        _ => b.0.partial_cmp(&a.0).expect("neither is NaN"),
    };
    numbers.then(a.1.cmp(&b.1))
}

/// A type of elements, with what it has of an f32, and its bits.
trait Number: TopkElement {
    fn round(number: f32) -> Self;
    fn widen(self) -> f32;
    fn bits(self) -> u32;
}

impl Number for f16 {
    fn round(number: f32) -> Self {
        Self::from_f32(number)
    }
    fn widen(self) -> f32 {
        self.to_f32()
    }
    fn bits(self) -> u32 {
        self.to_bits().into()
    }
}

impl Number for bf16 {
    fn round(number: f32) -> Self {
        Self::from_f32(number)
    }
    fn widen(self) -> f32 {
        self.to_f32()
    }
    fn bits(self) -> u32 {
        self.to_bits().into()
    }
}

impl Number for f32 {
    fn round(number: f32) -> Self {
        number
    }
    fn widen(self) -> f32 {
        self
    }
    fn bits(self) -> u32 {
        self.to_bits()
    }
}

/// Runs a selection and compares it with what sorting each row gives, bit by bit: those of a NaN too.
fn check<T: Number>(x: &Tensor<T>, k: usize) -> Result<(), Failed> {
    let n = *x.shape().last().ok_or("x has an axis")?;
    let (values, ids) = ops::topk(x, k).run()?;
    let mut shape = x.shape().to_vec();
    shape[x.rank() - 1] = k;
    assert_eq!((values.shape(), ids.shape()), (&shape[..], &shape[..]));
    let (elements, values, ids) = (x.to_vec()?, values.to_vec()?, ids.to_vec()?);
    for (row, elements) in elements.chunks(n).enumerate() {
        let mut sorted: Vec<usize> = (0..n).collect();
        sorted.sort_by(|&a, &b| before((elements[a].widen(), a), (elements[b].widen(), b)));
        for (place, &at) in sorted[..k].iter().enumerate() {
            let (value, id) = (values[row * k + place].bits(), ids[row * k + place]);
            let expected = elements[at].bits();
            if id as usize != at || value != expected {
                let found = format!("element {id} with bits {value:x}");
                return Err(
                    format!("row {row}, place {place}: {found}, expected {at} with {expected:x}").into()
                );
            }
        }
    }
    Ok(())
}

/// What rows are made of.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Random,
    /// Few different numbers, so that most are ties.
    Ties,
    /// As random, with different NaN, infinities, zeros of both signs and subnormal numbers between.
    Special,
    Rising,
    Falling,
    Equal,
}

fn number(kind: Kind, seed: u64, at: usize) -> f32 {
    let mut z = seed ^ (at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^= z >> 31;
    let random = (z >> 40) as f32 / 8_388_608.0 - 1.0;
    // Of the 23 bits of a NaN's payload those that 16-bit types have, too.
    let payload = (z >> 20) as u32 & 0x003f_e000;
    match kind {
        Kind::Random => random,
        Kind::Ties => (z % 5) as f32 - 2.0,
        Kind::Special => match z % 16 {
            0 => f32::from_bits(0x7fc0_0000 | payload),
            1 => f32::from_bits(0xffc0_0000 | payload),
            2 => f32::INFINITY,
            3 => f32::NEG_INFINITY,
            4 => 0.0,
            5 => -0.0,
            6 => f32::from_bits((z >> 32) as u32 & 0x8000_00ff),
            _ => random,
        },
        Kind::Rising => at as f32,
        Kind::Falling => -(at as f32),
        Kind::Equal => 1.0,
    }
}

fn make<T: Number>(device: &Device, kind: Kind, seed: u64, shape: &[usize]) -> warpsmith::Result<Tensor<T>> {
    let n = shape[shape.len() - 1].max(1);
    let elements: Vec<T> = (0..shape.iter().product())
        .map(|at: usize| match kind {
            Kind::Rising | Kind::Falling => T::round(number(kind, seed, at % n)),
            _ => T::round(number(kind, seed, at)),
        })
        .collect();
    Tensor::from_slice(device, &elements, shape)
}

fn check_kind(
    device: &Device,
    kind: Kind,
    seed: u64,
    shape: &[usize],
    k: usize,
    dtype: u8,
) -> Result<(), Failed> {
    match dtype % 3 {
        0 => check(&make::<f32>(device, kind, seed, shape)?, k),
        1 => check(&make::<f16>(device, kind, seed, shape)?, k),
        _ => check(&make::<bf16>(device, kind, seed, shape)?, k),
    }
}

fn selections_drawn_are_what_sorting_gives(device: &Device) -> Result<(), Failed> {
    let kinds = prop::sample::select(vec![
        Kind::Random,
        Kind::Random,
        Kind::Ties,
        Kind::Special,
        Kind::Rising,
        Kind::Falling,
        Kind::Equal,
    ]);
    let columns = prop_oneof![
        2 => 1usize..40,
        3 => prop::sample::select(vec![31usize, 32, 33, 63, 64, 65, 127, 128, 129, 255, 257, 1000, 2047, 3000]),
    ];
    let rows = prop_oneof![2 => 1usize..4, 1 => 4usize..20, 1 => prop::sample::select(vec![33usize, 131])];
    let k = prop_oneof![2 => 1usize..=64, 3 => prop::sample::select(vec![1usize, 8, 16, 31, 32, 33, 63, 64])];
    let strategy = (kinds, rows, columns, k, any::<u8>(), any::<u64>());
    Ok(drawn::runner(device, [80, 300])?.run(&strategy, |(kind, rows, columns, k, dtype, seed)| {
        check_kind(device, kind, seed, &[rows, columns], k.min(columns), dtype)
            .map_err(|error| TestCaseError::fail(error.message().unwrap_or("failed").to_owned()))
    })?)
}

fn rows_in_worst_order_and_of_equal_elements_are_sorted(device: &Device) -> Result<(), Failed> {
    for kind in [Kind::Rising, Kind::Falling, Kind::Equal, Kind::Ties] {
        for k in [1, 32, 64] {
            for dtype in 0..3 {
                // Numbers up to 256 are exact in every type.
                check_kind(device, kind, 1, &[3, 200], k, dtype)?;
            }
            check_kind(device, kind, 1, &[2, 1500], k, 0)?;
        }
    }
    Ok(())
}

fn nan_is_the_largest_and_zeros_are_equal(device: &Device) -> Result<(), Failed> {
    let row = [-0.0, 0.0, f32::NEG_INFINITY, f32::INFINITY, f32::NAN, -f32::NAN, -1.0, 1.0];
    let x = Tensor::from_slice(device, &row, [8])?;
    let (values, ids) = ops::topk(&x, 8).run()?;
    assert_eq!(ids.shape(), [8]);
    assert_eq!(ids.to_vec()?, [4, 5, 3, 7, 0, 1, 6, 2]);
    let values: Vec<u32> = values.to_vec()?.into_iter().map(f32::to_bits).collect();
    let expected: Vec<u32> = [4, 5, 3, 7, 0, 1, 6, 2].map(|at: usize| row[at].to_bits()).to_vec();
    assert_eq!(values, expected, "elements are copied as they are");
    for dtype in 0..3 {
        check_kind(device, Kind::Special, 3, &[4, 333], 64, dtype)?;
    }
    Ok(())
}

/// Enough columns that a row is cut: the result of the parts goes through the kernel once more.
fn a_few_long_rows_are_selected_in_parts(device: &Device) -> Result<(), Failed> {
    let shape = [2, 40_000];
    for (kind, k, dtype) in
        [(Kind::Random, 64, 0), (Kind::Ties, 33, 1), (Kind::Special, 16, 2), (Kind::Equal, 5, 0)]
    {
        check_kind(device, kind, 5, &shape, k, dtype)?;
    }
    let x = make::<f32>(device, Kind::Random, 5, &shape)?;
    let implementation = ops::topk(&x, 16).implementation()?;
    let expected = if device.kind() == DeviceKind::Cpu { "CPU" } else { "kernels" };
    assert!(implementation.to_string().starts_with(expected), "{implementation}");
    Ok(())
}

fn views_of_any_layout_are_read(device: &Device) -> Result<(), Failed> {
    let x = make::<f32>(device, Kind::Ties, 9, &[3, 5, 70])?;
    check(&x, 7)?;
    check(&x.slice(2, 3..60)?, 40)?;
    check(&x.slice(1, 1..4)?, 33)?;
    check(&x.swap_axes(0, 2)?, 3)?;
    check(&x.swap_axes(0, 1)?, 64)?;
    let column = make::<bf16>(device, Kind::Random, 9, &[90, 4])?.slice(1, 1..2)?.reshape([90])?;
    check(&column, 20)?;
    let single = make::<f16>(device, Kind::Random, 9, &[40, 4])?.slice(1, 3..4)?;
    check(&single, 1)
}

fn what_cannot_be_selected_is_refused(device: &Device) -> Result<(), Failed> {
    let x = Tensor::<f32>::zeros(device, [4, 100])?;
    for k in [0, MAX_K + 1, 1000] {
        assert!(matches!(ops::topk(&x, k).run(), Err(Error::Argument { argument: "k", .. })), "{k}");
    }
    let short = x.slice(1, 0..5)?;
    assert!(matches!(ops::topk(&short, 6).run(), Err(Error::Argument { argument: "k", .. })));
    let point = Tensor::<f32>::zeros(device, [])?;
    assert!(matches!(ops::topk(&point, 1).run(), Err(Error::Shape { operand: "x", .. })));
    let other = if device.kind() == DeviceKind::Cpu { Device::emulator() } else { Device::cpu() };
    let stream = other.default_stream();
    let refused = ops::topk(&x, 1).on(&stream).run();
    assert!(matches!(refused, Err(Error::DeviceMismatch { operand: "stream", .. })));
    Ok(())
}

fn a_selection_of_no_rows_is_empty(device: &Device) -> Result<(), Failed> {
    let x = Tensor::<f16>::zeros(device, [0, 3, 40])?;
    let (values, ids) = ops::topk(&x, 40).run()?;
    assert_eq!((values.shape(), ids.shape()), (&[0, 3, 40][..], &[0, 3, 40][..]));
    Ok(())
}

fn results_go_where_they_are_wanted(device: &Device) -> Result<(), Failed> {
    // One row that is cut into parts, and some that are not.
    for shape in [[1, 40_000], [6, 70]] {
        let x = make::<bf16>(device, Kind::Ties, 4, &shape)?;
        let (values, ids) = ops::topk(&x, 9).run()?;
        let mut values_there = Tensor::from_slice(device, &vec![bf16::ONE; shape[0] * 9], [shape[0], 9])?;
        let mut ids_there = Tensor::from_slice(device, &vec![7u32; shape[0] * 9], [shape[0], 9])?;
        ops::topk(&x, 9).run_into(&mut values_there, &mut ids_there)?;
        assert_eq!((values.to_vec()?, ids.to_vec()?), (values_there.to_vec()?, ids_there.to_vec()?));
    }
    Ok(())
}

/// The results of each launch are those of the elements that it finds.
fn a_captured_selection_runs_again_on_what_is_there_then(device: &Device) -> Result<(), Failed> {
    let stream = device.new_stream()?;
    for (shape, k) in [([5, 3000], 12), ([1, 40_000], 33)] {
        let mut x = Tensor::<f32>::zeros_on(&stream, shape)?;
        let mut values = Tensor::<f32>::zeros_on(&stream, [shape[0], k])?;
        let mut ids = Tensor::<u32>::zeros_on(&stream, [shape[0], k])?;
        // Views of the same memory.
        let (read, mut to_values, mut to_ids) = (x.clone(), values.clone(), ids.clone());
        let work = || ops::topk(&read, k).on(&stream).run_into(&mut to_values, &mut to_ids);
        // SAFETY: the work borrows the tensors that it uses; what it makes it drops.
        let mut graph = unsafe { stream.capture(work)? };
        for seed in 1..4 {
            let next = make::<f32>(device, Kind::Random, seed, &shape)?;
            x.write_slice(&next.to_vec()?)?;
            graph.launch()?;
            let expected = ops::topk(&next, k).run()?;
            assert_eq!((values.to_vec()?, ids.to_vec()?), (expected.0.to_vec()?, expected.1.to_vec()?));
            values.write_slice(&vec![f32::NAN; values.len()])?;
            ids.write_slice(&vec![u32::MAX; ids.len()])?;
        }
    }
    Ok(())
}
