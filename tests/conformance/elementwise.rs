//! Element-wise operations against their definitions in f64, drawn by proptest: shapes, types, alignments, in place and into halves of one tensor.

use half::{bf16, f16};
use libtest_mimic::Failed;
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use warpsmith::cpu::Elementwise;
use warpsmith::ops::elementwise::ElementwiseElement;
use warpsmith::ops::{self, Activation};
use warpsmith::{Device, Tensor};
use warpsmith_lab::bound::elementwise::elementwise as bounded;

use crate::{Case, cases, drawn};

pub(crate) const CASES: &[(&str, Case)] = cases![
    functions_drawn_are_what_their_definitions_say,
    gradients_take_the_place_of_gates_and_values,
    conversions_of_all_numbers_of_a_type_are_exact_or_rounded_to_even,
    a_captured_sum_runs_again_on_what_is_there_then,
];

/// A type of elements.
pub(crate) trait Number: ElementwiseElement {
    fn round(number: f64) -> Self;
    fn widen(self) -> f64;
}

macro_rules! numbers {
    ($($number:ty),*) => {$(
        impl Number for $number {
            fn round(number: f64) -> Self {
                Self::from_f64(number)
            }
            fn widen(self) -> f64 {
                self.into()
            }
        }
    )*};
}
numbers!(f16, bf16);
impl Number for f32 {
    fn round(number: f64) -> Self {
        number as f32
    }
    fn widen(self) -> f64 {
        self.into()
    }
}

/// A number in [−6, 6), or zero.
pub(crate) fn number(seed: u64, at: usize) -> f64 {
    let mut z = seed ^ (at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z ^= z >> 27;
    if z.is_multiple_of(16) { 0.0 } else { ((z >> 20) % (1 << 24)) as f64 / f64::from(1 << 21) * 1.5 - 6.0 }
}

/// A matrix of drawn numbers, `before` columns from the left of a wider one.
pub(crate) fn matrix<T: Number>(
    device: &Device,
    seed: u64,
    [rows, columns]: [usize; 2],
    [before, after]: [usize; 2],
) -> warpsmith::Result<Tensor<T>> {
    let pitch = before + columns + after;
    let elements: Vec<T> = (0..rows * pitch).map(|at| T::round(number(seed, at))).collect();
    Tensor::from_slice(device, &elements, [rows, pitch])?.slice(1, before..before + columns)
}

pub(crate) fn widened<T: Number>(tensor: &Tensor<T>) -> warpsmith::Result<Vec<f64>> {
    Ok(tensor.to_vec()?.into_iter().map(Number::widen).collect())
}

/// The two results of a case's function, the second empty where there is one, beside their bounds' inputs.
fn check<T: Number, B: Number>(
    device: &Device,
    function: Elementwise,
    shape: [usize; 2],
    places: [[usize; 2]; 2],
    seed: u64,
) -> warpsmith::Result<Option<String>> {
    let a = matrix::<T>(device, seed, shape, places[0])?;
    let b = matrix::<B>(device, seed ^ 11, shape, places[1])?;
    let c = matrix::<T>(device, seed ^ 22, shape, places[0])?;
    let (ys, zs) = match function {
        Elementwise::Activation(of) => (widened(&ops::activation(&a, of).run()?)?, Vec::new()),
        Elementwise::Add => (widened(&ops::add(&a, &b).run()?)?, Vec::new()),
        Elementwise::Multiply => (widened(&ops::mul(&a, &b).run()?)?, Vec::new()),
        Elementwise::Gated(of) => (widened(&ops::gated(&a, &b, of).run()?)?, Vec::new()),
        Elementwise::ActivationGradient(of) => {
            (widened(&ops::activation_backward(&a, &b, of).run()?)?, Vec::new())
        }
        Elementwise::GatedGradient(of) => {
            let (dgate, dvalue) = ops::gated_backward(&a, &b, &c, of).run()?;
            (widened(&dgate)?, widened(&dvalue)?)
        }
    };
    let (a, b, c) = (widened(&a)?, widened(&b)?, widened(&c)?);
    for at in 0..ys.len() {
        let elements = [a[at], b[at], c[at]];
        let [first, second] = bounded(function, elements, [T::DTYPE, B::DTYPE]);
        let allowed = [Some((ys[at], first)), zs.get(at).map(|&z| (z, second))];
        let is_wrong =
            |&(got, (exact, bound)): &(f64, (f64, f64))| got.is_nan() || (got - exact).abs() > bound;
        if let Some((got, (exact, bound))) = allowed.into_iter().flatten().find(is_wrong) {
            return Ok(Some(format!("{function:?} of {elements:?}: {got}, expected {exact} to {bound}")));
        }
    }
    Ok(None)
}

fn functions_drawn_are_what_their_definitions_say(device: &Device) -> Result<(), Failed> {
    let activations = prop::sample::select(Activation::ALL.to_vec());
    let sizes = (
        drawn::side(70, &[32, 64], &[37]),
        drawn::side(9001, &[64, 256, 1024, 2048, 4096], &[131, 509, 9001]),
    );
    let place = || prop_oneof![Just([0, 0]), Just([8, 8]), [0usize..9, 0usize..9]];
    let strategy = (0u8..6, activations, sizes, [place(), place()], 0u8..4, any::<u64>());
    Ok(drawn::runner(device, [80, 300])?.run(
        &strategy,
        |(which, of, (rows, columns), places, types, seed)| {
            let function = match which {
                0 => Elementwise::Activation(of),
                1 => Elementwise::Add,
                2 => Elementwise::Multiply,
                3 => Elementwise::Gated(of),
                4 => Elementwise::ActivationGradient(of),
                _ => Elementwise::GatedGradient(of),
            };
            let shape = [rows, columns];
            let outcome = match types {
                0 => check::<f16, f16>(device, function, shape, places, seed),
                1 => check::<bf16, bf16>(device, function, shape, places, seed),
                2 => check::<f32, f32>(device, function, shape, places, seed),
                _ => check::<bf16, f32>(device, function, shape, places, seed),
            };
            match outcome {
                Ok(None) => Ok(()),
                Ok(Some(wrong)) => Err(TestCaseError::fail(wrong)),
                Err(error) => Err(TestCaseError::fail(error.to_string())),
            }
        },
    )?)
}

fn gradients_take_the_place_of_gates_and_values(device: &Device) -> Result<(), Failed> {
    for columns in [256, 100, 33] {
        let h = matrix::<bf16>(device, 3, [70, 2 * columns], [0, 0])?;
        let dy = matrix::<bf16>(device, 4, [70, columns], [0, 0])?;
        let (mut gate, mut value) = (h.slice(1, 0..columns)?, h.slice(1, columns..2 * columns)?);
        let (gate_there, value_there) = (gate.clone(), value.clone());
        let backward = ops::gated_backward(&gate_there, &value_there, &dy, Activation::Silu);
        let (dgate, dvalue) = backward.run()?;
        backward.run_into(&mut gate, &mut value)?;
        assert_eq!((gate.to_vec()?, value.to_vec()?), (dgate.to_vec()?, dvalue.to_vec()?));
    }
    Ok(())
}

fn conversions_of_all_numbers_of_a_type_are_exact_or_rounded_to_even(device: &Device) -> Result<(), Failed> {
    let all: Vec<f32> = (0..=u16::MAX)
        .flat_map(|bits| {
            let bits = u32::from(bits) << 16;
            [bits, bits + 0x8000, bits + 0x8001, bits + 0x7fff, bits + 0x1000]
        })
        .map(f32::from_bits)
        .collect();
    let x = Tensor::from_slice(device, &all, [all.len()])?;
    let (to_f16, to_bf16) = (ops::cast::<f16>(&x).run()?, ops::cast::<bf16>(&x).run()?);
    let back = ops::cast::<f32>(&to_f16).run()?.to_vec()?;
    for (((x, a), b), back) in all.iter().zip(to_f16.to_vec()?).zip(to_bf16.to_vec()?).zip(back) {
        let same = |got: f32, expected: f32| {
            got.to_bits() == expected.to_bits() || got.is_nan() && expected.is_nan()
        };
        assert!(
            same(a.to_f32(), f16::from_f32(*x).to_f32()) && same(b.to_f32(), bf16::from_f32(*x).to_f32()),
            "{x}"
        );
        assert!(same(back, a.to_f32()), "{x}");
    }
    Ok(())
}

fn a_captured_sum_runs_again_on_what_is_there_then(device: &Device) -> Result<(), Failed> {
    let stream = device.new_stream()?;
    let mut x = Tensor::<f32>::zeros_on(&stream, [30, 200])?;
    let y = Tensor::<f32>::zeros_on(&stream, [30, 200])?;
    let (read, mut to) = (x.clone(), y.clone());
    // SAFETY: the work borrows the tensors that it uses.
    let mut graph = unsafe { stream.capture(|| ops::add(&read, &read).on(&stream).run_into(&mut to))? };
    for seed in 1..4 {
        let next = matrix::<f32>(device, seed, [30, 200], [0, 0])?.to_vec()?;
        x.write_slice(&next)?;
        graph.launch()?;
        assert_eq!(y.to_vec()?, next.iter().map(|x| x + x).collect::<Vec<_>>());
    }
    Ok(())
}
