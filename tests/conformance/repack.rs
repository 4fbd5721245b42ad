//! Repacked matrices hold what their source holds, whatever its strides: drawn by proptest, compared with copies by the host.

use std::fmt::Debug;

use half::{bf16, f16};
use libtest_mimic::Failed;
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use warpsmith::ops::Implementation;
use warpsmith::{Device, DeviceKind, Element, Error, Tensor, ops};

use crate::{Case, cases, drawn};

pub(crate) const CASES: &[(&str, Case)] = cases![
    drawn_matrices_hold_the_same_elements_in_aligned_rows,
    a_tensor_without_gaps_is_one_matrix,
    many_matrices_are_all_copied,
    what_cannot_be_repacked_is_refused,
    results_that_do_not_fit_are_refused,
    a_copy_of_nothing_is_empty,
];

/// A view of a tensor: the lengths of its memory's axes, what is cut off both ends of each, and the axes exchanged last.
#[derive(Clone, Debug)]
struct View {
    lengths: Vec<usize>,
    cuts: Vec<(usize, usize)>,
    swaps: Vec<(usize, usize)>,
    seed: u32,
}

fn view() -> impl Strategy<Value = View> {
    let side = || {
        prop_oneof![
            2 => Just(1usize),
            4 => 2usize..12,
            4 => (prop::sample::select(vec![16usize, 32, 64, 128]), 0usize..3).prop_map(|(at, off)| at + off - 1),
            2 => prop::sample::select(vec![33usize, 70, 96, 150]),
        ]
    };
    let cut = || prop_oneof![3 => Just(0usize), 1 => 1usize..9, 1 => Just(16)];
    let leading = prop::collection::vec(1usize..4, 0..=3);
    (leading, [side(), side()]).prop_flat_map(move |(mut lengths, sides)| {
        lengths.extend(sides);
        let rank = lengths.len();
        let cuts = prop::collection::vec((cut(), cut()), rank);
        let swaps = prop::collection::vec((0..rank, 0..rank), 0..=2);
        (Just(lengths), cuts, swaps, any::<u32>()).prop_map(|(lengths, cuts, swaps, seed)| View {
            lengths,
            cuts,
            swaps,
            seed,
        })
    })
}

impl View {
    /// The view, over elements of `T` with random bits.
    fn make<T: Element>(&self, device: &Device, element: fn(u32) -> T) -> warpsmith::Result<Tensor<T>> {
        let memory: Vec<usize> =
            self.lengths.iter().zip(&self.cuts).map(|(length, cut)| cut.0 + length + cut.1).collect();
        let mut state = self.seed;
        let elements: Vec<T> = (0..memory.iter().product())
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                element(state >> 8)
            })
            .collect();
        let mut tensor = Tensor::from_slice(device, &elements, &memory)?;
        for (axis, (&length, cut)) in self.lengths.iter().zip(&self.cuts).enumerate() {
            tensor = tensor.slice(axis, cut.0..cut.0 + length)?;
        }
        for &(first, second) in &self.swaps {
            tensor = tensor.swap_axes(first, second)?;
        }
        Ok(tensor)
    }
}

fn check<T: Element + Debug>(
    device: &Device,
    view: &View,
    element: fn(u32) -> T,
) -> Result<(), TestCaseError> {
    let failed = |error: Error| TestCaseError::fail(error.to_string());
    let x = view.make(device, element).map_err(failed)?;
    let y = ops::repack(&x).run().map_err(failed)?;
    prop_assert_eq!(y.shape(), x.shape());
    let (&last, rest) = y.strides().split_last().expect("there are two axes");
    prop_assert_eq!(last, 1);
    prop_assert!(rest.iter().all(|stride| (stride * size_of::<T>()).is_multiple_of(16)), "{:?}", y.strides());
    prop_assert!(y.arg().address().is_multiple_of(16));
    let (got, expected) = (y.to_vec().map_err(failed)?, x.to_vec().map_err(failed)?);
    prop_assert!(got == expected, "{:?} of strides {:?}", x.shape(), x.strides());

    // Into memory that holds something else: a tensor's rows before and behind the copy remain, and what follows each row is zero.
    let columns = x.shape()[x.rank() - 1];
    let mut padded = x.shape().to_vec();
    padded[x.rank() - 1] = columns.next_multiple_of(16 / size_of::<T>());
    let (length, pitch) = (padded.iter().product::<usize>(), padded[x.rank() - 1]);
    let old: Vec<T> = (0..length + 2 * pitch).map(|index| element(index as u32 + 1)).collect();
    let memory = Tensor::from_slice(device, &old, [old.len()]).map_err(failed)?;
    let place =
        memory.slice(0, pitch..pitch + length).and_then(|place| place.reshape(&padded)).map_err(failed)?;
    let mut y = place.slice(x.rank() - 1, 0..columns).map_err(failed)?;
    ops::repack(&x).run_into(&mut y).map_err(failed)?;
    let all = memory.to_vec().map_err(failed)?;
    prop_assert!(all[..pitch] == old[..pitch] && all[pitch + length..] == old[pitch + length..]);
    let zero = T::zeroed();
    for (row, expected) in
        all[pitch..pitch + length].chunks(pitch.max(1)).zip(expected.chunks(columns.max(1)))
    {
        prop_assert!(row[..columns] == *expected && row[columns..].iter().all(|&element| element == zero));
    }
    Ok(())
}

fn drawn_matrices_hold_the_same_elements_in_aligned_rows(device: &Device) -> Result<(), Failed> {
    Ok(drawn::runner(device, [150, 400])?.run(&view(), |view| {
        match view.seed % 4 {
            0 => check(device, &view, |bits| bits as u8),
            // No NaN, which would not equal itself.
            1 => check(device, &view, |bits| f16::from_f32((bits % 2048) as f32)),
            2 => check(device, &view, |bits| bf16::from_f32((bits % 256) as f32)),
            _ => check(device, &view, |bits| bits as f32),
        }
    })?)
}

/// A tensor without gaps is one long matrix, of whatever rank: a small one takes one block, not one for each of its matrices.
fn a_tensor_without_gaps_is_one_matrix(device: &Device) -> Result<(), Failed> {
    let elements: Vec<f32> = (0..2 * 3 * 4 * 5 * 7).map(|i| i as f32).collect();
    let x = Tensor::from_slice(device, &elements, [2, 3, 4, 5, 7])?;
    let y = ops::repack(&x);
    match y.implementation()? {
        Implementation::Cuda { blocks, .. } | Implementation::Emulator { blocks, .. } => {
            assert_eq!(blocks, 1)
        }
        ran => assert_eq!(ran, Implementation::Cpu),
    }
    assert_eq!(y.run()?.to_vec()?, elements);
    let turned = x.swap_axes(3, 4)?;
    assert_eq!(ops::repack(&turned).run()?.to_vec()?, turned.to_vec()?);
    Ok(())
}

/// More matrices than a grid has blocks along one axis.
fn many_matrices_are_all_copied(device: &Device) -> Result<(), Failed> {
    let count = 70_000;
    let elements: Vec<u8> = (0..count * 6).map(|i| (i % 251) as u8).collect();
    let x = Tensor::from_slice(device, &elements, [count, 3, 2])?;
    // As one long matrix.
    assert_eq!(ops::repack(&x).run()?.to_vec()?, elements);
    let cut = x.slice(1, 0..2)?;
    assert_eq!(ops::repack(&cut).run()?.to_vec()?, cut.to_vec()?);
    let turned = x.swap_axes(1, 2)?;
    assert_eq!(ops::repack(&turned).run()?.to_vec()?, turned.to_vec()?);
    Ok(())
}

fn what_cannot_be_repacked_is_refused(device: &Device) -> Result<(), Failed> {
    let wide = Tensor::<f64>::zeros(device, [4, 4])?;
    assert!(matches!(ops::repack(&wide).run(), Err(Error::Type { operand: "x", .. })));
    let vector = Tensor::<f32>::zeros(device, [4])?;
    assert!(matches!(ops::repack(&vector).run(), Err(Error::Shape { operand: "x", .. })));
    let other = if device.kind() == DeviceKind::Cpu { Device::emulator() } else { Device::cpu() };
    let (x, stream) = (Tensor::<f32>::zeros(device, [4, 4])?, other.default_stream());
    assert!(matches!(
        ops::repack(&x).on(&stream).run(),
        Err(Error::DeviceMismatch { operand: "stream", .. })
    ));
    Ok(())
}

/// A result that does not have the layout of a new copy, or shares memory with the source, the zeros behind the rows included.
fn results_that_do_not_fit_are_refused(device: &Device) -> Result<(), Failed> {
    let zeros = |shape: &[usize]| Tensor::<f32>::zeros(device, shape);
    let x = zeros(&[3, 6])?;
    let refused = |mut y: Tensor<f32>| ops::repack(&x).run_into(&mut y).expect_err("it does not fit");
    assert!(matches!(refused(zeros(&[3, 8])?), Error::Shape { operand: "y", .. }));
    assert!(matches!(refused(zeros(&[3, 6])?), Error::Stride { operand: "y", .. }));
    assert!(matches!(refused(zeros(&[3, 12])?.slice(1, 0..6)?), Error::Stride { operand: "y", .. }));
    assert!(matches!(
        refused(zeros(&[3, 8])?.slice(1, 2..8)?),
        Error::Stride { .. } | Error::SizeLimit { .. }
    ));
    assert!(matches!(refused(zeros(&[6, 3])?.swap_axes(0, 1)?), Error::Stride { operand: "y", .. }));
    // Behind the last row there is no place for the zeros.
    let short = zeros(&[22])?;
    let single = zeros(&[1, 6])?;
    let mut last = short.slice(0, 16..22)?.reshape([1, 6])?;
    let error = ops::repack(&single).run_into(&mut last).expect_err("it ends too early");
    assert!(matches!(error, Error::SizeLimit { operand: "y", .. }), "{error}");
    // The zeros would overwrite x.
    let memory = zeros(&[14])?;
    let (mut y, x) = (memory.slice(0, 0..6)?.reshape([1, 6])?, memory.slice(0, 7..13)?.reshape([1, 6])?);
    let error = ops::repack(&x).run_into(&mut y).expect_err("they share memory");
    assert!(matches!(error, Error::Overlap { operand: "y", other: "x", .. }), "{error}");
    let other = if device.kind() == DeviceKind::Cpu { Device::emulator() } else { Device::cpu() };
    let error = ops::repack(&single).run_into(&mut Tensor::zeros(&other, [1, 8])?.slice(1, 0..6)?);
    assert!(matches!(error, Err(Error::DeviceMismatch { operand: "y", .. })));
    Ok(())
}

fn a_copy_of_nothing_is_empty(device: &Device) -> Result<(), Failed> {
    for shape in [[0, 3, 4], [2, 0, 4], [2, 3, 0]] {
        let y = ops::repack(&Tensor::<f32>::zeros(device, shape)?).run()?;
        assert_eq!((y.shape(), y.len()), (&shape[..], 0));
        ops::repack(&Tensor::<f32>::zeros(device, shape)?).run_into(&mut Tensor::zeros(device, shape)?)?;
    }
    Ok(())
}
