//! Gradients against their definitions in f64, drawn: every kind of scale, type and layout; those against finite differences; what is refused.

use float8::{F8E4M3, F8E5M2};
use half::{bf16, f16};
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use super::{
    AnyGradient, ScaledBackwardOp, ScaledGradient, ScaledGradientOutputs, ScaledInput, ScaledOutput,
};
use crate::cpu::{FromAccumulator, Operand};
use crate::device::DeviceKind;
use crate::error::{Error, Result};
use crate::ops::column_sums::SumElement;
use crate::ops::elementwise::tests::{Rounding, bound, numbers};
use crate::ops::linear::LinearTypes;
use crate::ops::linear::backward::tests::{Near, near, product, sums_error};
use crate::ops::rows::{rounded, widened};
use crate::ops::{self, Scale};
use crate::tensor::Element;
use crate::{Device, Tensor};

const U: f64 = 1.0 / (1u64 << 24) as f64;

/// Which scale an operand has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    One,
    Host,
    Device,
    Rows,
}

const KINDS: [Kind; 4] = [Kind::One, Kind::Host, Kind::Device, Kind::Rows];

#[derive(Clone, Debug)]
struct Drawn {
    leading: Vec<usize>,
    n: usize,
    k: usize,
    /// Of x, w and dy.
    scales: [Kind; 3],
    alpha: f32,
    adds: [bool; 2],
    /// Whether x, w and dy are columns of larger matrices, or stored across.
    lies: [usize; 3],
    seed: u64,
}

fn cases() -> impl Strategy<Value = Drawn> {
    let leading = prop_oneof![
        1 => Just(vec![]),
        4 => (1usize..40).prop_map(|rows| vec![rows]),
        1 => prop::sample::select(vec![0usize, 64, 130]).prop_map(|rows| vec![rows]),
        2 => [1usize..5, 1usize..9].prop_map(|both| both.to_vec()),
    ];
    let side = || prop_oneof![4 => 1usize..40, 2 => prop::sample::select(vec![0usize, 16, 32, 64, 144])];
    let kind = || prop::sample::select(KINDS.to_vec());
    let alpha = prop::sample::select(vec![1.0f32, 0.5, -1.75]);
    (
        leading,
        side(),
        side(),
        [kind(), kind(), kind()],
        alpha,
        any::<[bool; 2]>(),
        [0usize..3, 0..3, 0..3],
        any::<u64>(),
    )
        .prop_map(|(leading, n, k, scales, alpha, adds, lies, seed)| Drawn {
            leading,
            n,
            k,
            scales,
            alpha,
            adds,
            lies,
            seed,
        })
}

fn fail(error: Error) -> TestCaseError {
    TestCaseError::fail(error.to_string())
}

/// A type of operands that tests draw.
trait Number: Operand {
    fn of(number: f32) -> Self;
    /// The smallest normal number of an 8-bit type: what tensor cores take for anything smaller but zero.
    const LEAST: f64;
}
impl Number for F8E4M3 {
    fn of(number: f32) -> Self {
        Self::from_f32(number)
    }
    const LEAST: f64 = 1.0 / 64.0;
}
impl Number for F8E5M2 {
    fn of(number: f32) -> Self {
        Self::from_f32(number)
    }
    const LEAST: f64 = 1.0 / 16384.0;
}
macro_rules! wide_numbers {
    ($($element:ty),*) => {
        $(
            impl Number for $element {
                fn of(number: f32) -> Self {
                    Self::from_accumulator(number)
                }
                const LEAST: f64 = 0.0;
            }
        )*
    };
}
wide_numbers!(f16, bf16, f32);

fn drawn<T: Number>(seed: u64, count: usize) -> Vec<f32> {
    numbers(seed, count).into_iter().map(|number| T::of(number / 4.0).to_f32()).collect()
}

/// A tensor `[.., columns]`: dense, columns of a larger one, or stored across, if it has two axes.
fn placed<T: Element + Number>(
    device: &Device,
    numbers: &[f32],
    shape: &[usize],
    lies: usize,
) -> Result<Tensor<T>> {
    let elements = |numbers: &[f32]| numbers.iter().map(|&number| T::of(number)).collect::<Vec<_>>();
    match (lies, shape) {
        (1, &[.., columns]) => {
            let (rows, pitch) = (shape[..shape.len() - 1].iter().product::<usize>(), columns + 5);
            let mut all = vec![1.0f32; rows * pitch];
            for (at, &number) in numbers.iter().enumerate() {
                all[at / columns * pitch + 2 + at % columns] = number;
            }
            let last = shape.len() - 1;
            let all = Tensor::from_slice(device, &elements(&all), [&shape[..last], &[pitch]].concat())?;
            all.slice(last, 2..2 + columns)
        }
        (2, &[rows, columns]) => {
            let across: Vec<f32> =
                (0..rows * columns).map(|at| numbers[at % rows * columns + at / rows]).collect();
            Tensor::from_slice(device, &elements(&across), [columns, rows])?.swap_axes(0, 1)
        }
        _ => Tensor::from_slice(device, &elements(numbers), shape),
    }
}

fn check<X, W, D, A, B>(device: &Device, case: &Drawn) -> Result<(), TestCaseError>
where
    X: ScaledInput + Number,
    W: ScaledInput + Number,
    D: ScaledGradient + Number,
    bf16: LinearTypes<A> + LinearTypes<B>,
    A: ScaledOutput + FromAccumulator<f32> + Rounding,
    B: ScaledOutput + SumElement + Rounding,
{
    let Drawn { ref leading, n, k, alpha, adds: [adds, adds_dx], seed, .. } = *case;
    let m: usize = leading.iter().product();
    let shape = |columns: usize| [&leading[..], &[columns]].concat();
    let (x, w, dy) = (drawn::<X>(seed, m * k), drawn::<W>(seed ^ 1, n * k), drawn::<D>(seed ^ 2, m * n));
    let of_x = placed::<X>(device, &x, &shape(k), case.lies[0]).map_err(fail)?;
    let of_w = placed::<W>(device, &w, &[n, k], case.lies[1]).map_err(fail)?;
    let of_dy = placed::<D>(device, &dy, &shape(n), case.lies[2]).map_err(fail)?;
    let has_8_bits = matches!(D::any(&of_dy), AnyGradient::E4M3(_) | AnyGradient::E5M2(_));
    let mut kinds = case.scales;
    if !has_8_bits {
        kinds[2] = Kind::One;
    }
    // Their numbers, one for each row.
    let counts = [m, n, m];
    let scales: Vec<Vec<f32>> = (0..3)
        .map(|which| {
            let all = drawn::<f32>(seed ^ (4 + which as u64), counts[which].max(1));
            match kinds[which] {
                Kind::One => vec![1.0; counts[which]],
                Kind::Host | Kind::Device => vec![all[0]; counts[which]],
                Kind::Rows => all[..counts[which]].to_vec(),
            }
        })
        .collect();
    let firsts: Vec<f32> =
        (0..3).map(|which| drawn::<f32>(seed ^ (4 + which as u64), counts[which].max(1))[0]).collect();
    let tensors: Vec<Tensor<f32>> = (0..3)
        .map(|which| match kinds[which] {
            Kind::Rows if which == 1 => Tensor::from_slice(device, &scales[1], [n]),
            // As the leading axes, or as one axis.
            Kind::Rows if seed & 1 == 0 => Tensor::from_slice(device, &scales[which], leading),
            Kind::Rows => Tensor::from_slice(device, &scales[which], [m]),
            _ => Tensor::from_slice(device, &firsts[which..=which], [1]),
        })
        .collect::<Result<_>>()
        .map_err(fail)?;
    let scale = |which: usize| match kinds[which] {
        Kind::One => Scale::One,
        Kind::Host => Scale::Tensor(firsts[which]),
        Kind::Device => Scale::Device(&tensors[which]),
        Kind::Rows => Scale::Rows(&tensors[which]),
    };
    let operation: ScaledBackwardOp<'_, X, W, D> = ops::linear_scaled_backward(&of_x, &of_w, &of_dy)
        .x_scale(scale(0))
        .w_scale(scale(1))
        .dy_scale(scale(2))
        .alpha(alpha);
    fn before<Y: Rounding>(adds: bool, seed: u64, count: usize) -> Vec<f32> {
        let of = |number: f32| Y::from_accumulator(number).to_f32();
        if adds { numbers(seed, count).into_iter().map(of).collect() } else { vec![f32::NAN; count] }
    }
    let (dx0, dw0, db0) = (
        before::<A>(adds_dx, seed ^ 7, m * k),
        before::<B>(adds, seed ^ 8, n * k),
        before::<B>(adds, seed ^ 9, n),
    );
    let mut dx = Tensor::from_slice(device, &rounded::<A>(&dx0), shape(k)).map_err(fail)?;
    let mut dw = Tensor::from_slice(device, &rounded::<B>(&dw0), [n, k]).map_err(fail)?;
    let mut db = Tensor::from_slice(device, &rounded::<B>(&db0), [n]).map_err(fail)?;
    operation.implementation().map_err(fail)?;
    operation
        .run_into(ScaledGradientOutputs {
            dx: Some(&mut dx),
            dw: Some(&mut dw),
            db: (!has_8_bits).then_some(&mut db),
            adds,
            adds_dx,
        })
        .map_err(fail)?;

    // What is known on the host, is in the device's memory for all, and for each row.
    let known = |which: usize| if kinds[which] == Kind::Host { f64::from(firsts[which]) } else { 1.0 };
    let on_device = |which: usize, at: usize| match kinds[which] {
        Kind::Device | Kind::Rows => f64::from(scales[which][at]),
        Kind::One | Kind::Host => 1.0,
    };
    let promoted = |length: usize| match device.kind() {
        DeviceKind::Cpu => sums_error::<f32>(device, length),
        _ => 143.0 / 8192.0 + (length.div_ceil(128) + 2) as f64 * U,
    };
    // Σ a · b of so many pairs times a factor.
    let scaled = |pairs: &[(f32, f32)], least: [f64; 2], factor: f64, before: f64| {
        let size = |number: f32, least: f64| match f64::from(number).abs() {
            0.0 => 0.0,
            size => size.max(least),
        };
        let exact: f64 = pairs.iter().map(|&(a, b)| f64::from(a) * f64::from(b)).sum();
        let magnitude: f64 = pairs.iter().map(|&(a, b)| size(a, least[0]) * size(b, least[1])).sum();
        let all = (factor * magnitude).abs() + before.abs();
        let error = factor.abs() * promoted(pairs.len()) * magnitude + 6.0 * U * all + 1e-36;
        Near { exact: factor * exact + before, error }
    };
    // dy with the scales that tensors have, as a product of bf16 reads it.
    let read = |at: usize, others: f64, are_there: bool| {
        let exact = f64::from(dy[at]) * on_device(2, at / n.max(1)) * others;
        let is_there = are_there || matches!(kinds[2], Kind::Device | Kind::Rows);
        let error = if is_there { 3.0 * U * exact.abs() + 1e-37 } else { 0.0 };
        let is_exact = !is_there && (has_8_bits || D::DTYPE == bf16::DTYPE);
        Near { exact, error: if is_exact { 0.0 } else { bound::<bf16>(exact, error) } }
    };
    let has_tensor = |which: usize| matches!(kinds[which], Kind::Device | Kind::Rows);
    let host = |of: usize| (f64::from(alpha) * known(of) * known(2)) as f32;
    let sums = |length: usize| sums_error::<bf16>(device, length);

    let of_x: Vec<Near> = (0..m * k)
        .map(|at| {
            let (row, i) = (at / k, at % k);
            let before = if adds_dx { f64::from(dx0[at]) } else { 0.0 };
            if has_8_bits && kinds[1] != Kind::Rows {
                let pairs: Vec<_> = (0..n).map(|j| (dy[row * n + j], w[j * k + i])).collect();
                let one = if kinds[1] == Kind::Device { f64::from(firsts[1]) } else { 1.0 };
                let factor = f64::from(host(1)) * on_device(2, row) * one;
                return scaled(&pairs, [D::LEAST, W::LEAST], factor, before);
            }
            let pairs =
                (0..n).map(|j| (read(row * n + j, on_device(1, j), has_tensor(1)), f64::from(w[j * k + i])));
            product(pairs, host(1), sums(n), before)
        })
        .collect();
    near::<A>(&widened(&dx).map_err(fail)?, &of_x, "dx")?;
    let of_w: Vec<Near> = (0..n * k)
        .map(|at| {
            let (j, i) = (at / k, at % k);
            let before = if adds { f64::from(dw0[at]) } else { 0.0 };
            if has_8_bits && kinds[0] != Kind::Rows && kinds[2] != Kind::Rows {
                let pairs: Vec<_> = (0..m).map(|row| (dy[row * n + j], x[row * k + i])).collect();
                let one =
                    |which: usize| if kinds[which] == Kind::Device { f64::from(firsts[which]) } else { 1.0 };
                let factor = f64::from(host(0)) * one(0) * one(2);
                return scaled(&pairs, [D::LEAST, X::LEAST], factor, before);
            }
            let pairs = (0..m)
                .map(|row| (read(row * n + j, on_device(0, row), has_tensor(0)), f64::from(x[row * k + i])));
            product(pairs, host(0), sums(m), before)
        })
        .collect();
    near::<B>(&widened(&dw).map_err(fail)?, &of_w, "dw")?;
    if !has_8_bits {
        let of_bias: Vec<Near> = (0..n)
            .map(|j| {
                let before = if adds { f64::from(db0[j]) } else { 0.0 };
                let of = (0..m).map(|row| f64::from(dy[row * n + j]));
                let (exact, size) =
                    of.fold((before, before.abs()), |(sum, size), dy| (sum + dy, size + dy.abs()));
                Near { exact, error: (m as f64 + 1.0) * U * size }
            })
            .collect();
        near::<B>(&widened(&db).map_err(fail)?, &of_bias, "db")?;
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn kernels_compute_what_the_definitions_say(case in cases()) {
        let name = ["emulator:9.0", "emulator:8.9", "emulator:8.0"][case.seed as usize % 3];
        let device: Device = name.parse().expect("a device");
        check::<F8E4M3, F8E4M3, F8E5M2, bf16, f32>(&device, &case)?;
        check::<F8E5M2, F8E4M3, F8E4M3, f32, bf16>(&device, &case)?;
        check::<F8E4M3, F8E4M3, bf16, bf16, f32>(&device, &case)?;
        check::<F8E4M3, F8E5M2, f16, f32, f32>(&device, &case)?;
        check::<F8E4M3, F8E4M3, f32, bf16, bf16>(&device, &case)?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn the_cpu_computes_what_the_definitions_say(case in cases()) {
        check::<F8E4M3, F8E4M3, F8E5M2, bf16, f32>(&Device::cpu(), &case)?;
        check::<F8E4M3, F8E5M2, f32, f32, f32>(&Device::cpu(), &case)?;
        check::<F8E4M3, F8E4M3, bf16, bf16, bf16>(&Device::cpu(), &case)?;
    }
}

fn tensor<T: Element + Number>(device: &Device, seed: u64, shape: &[usize]) -> Tensor<T> {
    let numbers = drawn::<T>(seed, shape.iter().product());
    placed(device, &numbers, shape, 0).expect("it fits")
}

/// Scales that are along no sum leave products of 8-bit numbers, others do not.
#[test]
fn scales_along_the_sums_widen_operands() {
    let device: Device = "emulator:9.0".parse().expect("a device");
    let (x, w) = (tensor::<F8E4M3>(&device, 1, &[64, 32]), tensor::<F8E4M3>(&device, 2, &[48, 32]));
    let dy = tensor::<F8E5M2>(&device, 3, &[64, 48]);
    let (of_rows, of_w) = (tensor::<f32>(&device, 4, &[64]), tensor::<f32>(&device, 5, &[48]));
    let names = |operation: ScaledBackwardOp<'_, F8E4M3, F8E4M3, F8E5M2>| -> Vec<bool> {
        let launches = operation.implementation().expect("it is known").launches();
        launches.iter().map(|launch| launch.kernel.contains("fp8")).collect()
    };
    let plain = ops::linear_scaled_backward(&x, &w, &dy);
    let is_8_bit = |names: Vec<bool>| (names[0], names[names.len() - 1]);
    assert_eq!(is_8_bit(names(plain)), (true, true));
    assert_eq!(is_8_bit(names(plain.dy_scale(Scale::Rows(&of_rows)))), (true, false));
    assert_eq!(is_8_bit(names(plain.x_scale(Scale::Rows(&of_rows)))), (true, false));
    assert_eq!(is_8_bit(names(plain.w_scale(Scale::Rows(&of_w)))), (false, true));
    let wide = tensor::<bf16>(&device, 3, &[64, 48]);
    let implementation = ops::linear_scaled_backward(&x, &w, &wide).implementation().expect("it is known");
    assert!(implementation.launches().iter().all(|launch| !launch.kernel.contains("fp8")));
}

#[test]
fn operands_that_do_not_fit_are_refused() {
    let (device, other) = (Device::cpu(), Device::emulator());
    let (x, w) = (tensor::<F8E4M3>(&device, 1, &[6, 4]), tensor::<F8E4M3>(&device, 2, &[5, 4]));
    let dy = tensor::<F8E5M2>(&device, 3, &[6, 5]);
    let shape_of = |result: Result<_>| match result.map(|_: super::ScaledGradients| ()) {
        Err(Error::Shape { operation: "linear_scaled_backward", operand, .. }) => operand,
        other => panic!("{other:?}"),
    };
    let of_5 = tensor::<f32>(&device, 4, &[5]);
    assert_eq!(shape_of(ops::linear_scaled_backward(&x, &x, &dy).run()), "dy");
    assert_eq!(shape_of(ops::linear_scaled_backward(&dy, &w, &dy).run()), "w");
    let backward = ops::linear_scaled_backward(&x, &w, &dy);
    assert_eq!(shape_of(backward.x_scale(Scale::Rows(&of_5)).run()), "x_scale");
    assert_eq!(shape_of(backward.w_scale(Scale::Device(&of_5)).run()), "w_scale");
    assert_eq!(shape_of(backward.dy_scale(Scale::Rows(&of_5)).run()), "dy_scale");
    let wide = tensor::<bf16>(&device, 3, &[6, 5]);
    let scaled = ops::linear_scaled_backward(&x, &w, &wide).dy_scale(Scale::Tensor(2.0)).run();
    assert!(matches!(scaled, Err(Error::Argument { argument: "dy_scale", .. })), "{scaled:?}");
    let elsewhere = tensor::<F8E5M2>(&other, 3, &[6, 5]);
    for result in
        [ops::linear_scaled_backward(&x, &w, &elsewhere).run(), backward.on(&other.default_stream()).run()]
    {
        assert!(matches!(result, Err(Error::DeviceMismatch { .. })), "{result:?}");
    }

    type Outputs<'o> = ScaledGradientOutputs<'o, f32, f32>;
    let (mut dx, mut dw, mut db) = (
        tensor::<f32>(&device, 5, &[6, 4]),
        tensor::<f32>(&device, 6, &[5, 4]),
        tensor::<f32>(&device, 7, &[5]),
    );
    let wrong = backward.run_into(Outputs { db: Some(&mut db), ..Default::default() });
    assert!(matches!(wrong, Err(Error::Argument { argument: "db", .. })), "{wrong:?}");
    let wrong = backward.run_into(Outputs { dx: Some(&mut dw), ..Default::default() });
    assert!(matches!(wrong, Err(Error::Shape { operand: "dx", .. })), "{wrong:?}");
    let wrong = backward.run_into(Outputs { dw: Some(&mut dx), ..Default::default() });
    assert!(matches!(wrong, Err(Error::Shape { operand: "dw", .. })), "{wrong:?}");
    let mut over = of_5.clone();
    let wrong = ops::linear_scaled_backward(&x, &w, &wide).w_scale(Scale::Rows(&of_5));
    let wrong = wrong.run_into(Outputs { db: Some(&mut over), ..Default::default() });
    assert!(matches!(wrong, Err(Error::Overlap { operand: "db", other: "w_scale", .. })), "{wrong:?}");
    let mut across = tensor::<f32>(&device, 6, &[4, 5]).swap_axes(0, 1).expect("two axes");
    let wrong = backward.run_into(Outputs { dw: Some(&mut across), ..Default::default() });
    assert!(matches!(wrong, Err(Error::Stride { operand: "dw", .. })), "{wrong:?}");
}

/// What the drawn tests compare with: dequantised operands are moved, since those of 8 bits have no neighbours near enough.
#[test]
fn gradients_are_those_of_finite_differences() -> Result<()> {
    let device = Device::cpu();
    let [m, n, k] = [3, 5, 4];
    let (x, w) = (tensor::<F8E4M3>(&device, 1, &[m, k]), tensor::<F8E4M3>(&device, 2, &[n, k]));
    let dy = tensor::<F8E5M2>(&device, 3, &[m, n]);
    let (x_scale, dy_scale) = (tensor::<f32>(&device, 4, &[m]), tensor::<f32>(&device, 5, &[m]));
    let w_scale = tensor::<f32>(&device, 6, &[n]);
    let mut dx = Tensor::<f32>::zeros(&device, [m, k])?;
    let mut dw = Tensor::<f32>::zeros(&device, [n, k])?;
    let operation = ops::linear_scaled_backward(&x, &w, &dy)
        .x_scale(Scale::Rows(&x_scale))
        .w_scale(Scale::Rows(&w_scale))
        .dy_scale(Scale::Rows(&dy_scale))
        .alpha(0.5);
    operation.run_into(ScaledGradientOutputs {
        dx: Some(&mut dx),
        dw: Some(&mut dw),
        ..Default::default()
    })?;
    fn wide<T: Element + Number>(of: &Tensor<T>, scale: &Tensor<f32>) -> Result<Vec<f64>> {
        let (scale, columns) = (scale.to_vec()?, of.shape()[1]);
        let numbers = of.to_vec()?.into_iter().enumerate();
        Ok(numbers.map(|(at, of)| f64::from(of.to_f32()) * f64::from(scale[at / columns])).collect())
    }
    let (x, w, dy) = (wide(&x, &x_scale)?, wide(&w, &w_scale)?, wide(&dy, &dy_scale)?);
    let loss = |x: &[f64], w: &[f64]| -> f64 {
        let element = |at: usize| (0..k).map(|i| x[at / n * k + i] * w[at % n * k + i]).sum::<f64>();
        (0..m * n).map(|at| 0.5 * element(at) * dy[at]).sum()
    };
    let largest = |of: &[f64]| of.iter().fold(0.0f64, |largest, of| largest.max(of.abs()));
    // A product with bf16 for dy with its scales, of up to n or m terms; the loss is linear in each operand.
    let [of_x, of_w] =
        [(n, &w), (m, &x)].map(|(terms, of)| terms as f64 * largest(of) * largest(&dy) / 128.0);
    for (at, gradient) in dx.to_vec()?.into_iter().enumerate() {
        let moved = |by: f64| {
            let mut x = x.clone();
            x[at] += by;
            loss(&x, &w)
        };
        let difference = (moved(0.5) - moved(-0.5)) - f64::from(gradient);
        assert!(difference.abs() <= of_x, "dx at {at}: {difference}");
    }
    for (at, gradient) in dw.to_vec()?.into_iter().enumerate() {
        let moved = |by: f64| {
            let mut w = w.clone();
            w[at] += by;
            loss(&x, &w)
        };
        let difference = (moved(0.5) - moved(-0.5)) - f64::from(gradient);
        assert!(difference.abs() <= of_w, "dw at {at}: {difference}");
    }
    Ok(())
}
