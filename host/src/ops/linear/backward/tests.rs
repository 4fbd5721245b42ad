//! Gradients against their definitions in f64, drawn; those against finite differences; what is refused; edges.

mod parts;

use half::{bf16, f16};
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use super::{LinearGradientOutputs, Plan};
use crate::cpu::{self, FromAccumulator, Slopes};
use crate::device::DeviceKind;
use crate::error::{Error, Result};
use crate::ops::column_sums::SumElement;
use crate::ops::elementwise::tests::{Rounding, bound, numbers, placed};
use crate::ops::linear::{LinearGradientElement, LinearInput, LinearTypes};
use crate::ops::rows::{Sizes, rounded, widened};
use crate::ops::{self, Activation, Implementation, Precision, Products};
use crate::{Device, Tensor};

const U: f64 = 1.0 / (1u64 << 24) as f64;
const TINY: f64 = f32::MIN_POSITIVE as f64;

/// Where slopes are known from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    Preactivation,
    Mask,
    Output,
}

#[derive(Clone, Debug)]
struct Drawn {
    leading: Vec<usize>,
    n: usize,
    k: usize,
    activation: Activation,
    source: Source,
    /// Of rows and columns: none, one, one for each, or, of rows, one for each of a matrix.
    scales: [usize; 2],
    alpha: f32,
    beta: f32,
    adds: bool,
    adds_dx: bool,
    /// Whether dZ is wanted, and written over dY if its type allows that.
    dz: [bool; 2],
    /// How dY, z, the residual's gradient and X are.
    places: [[usize; 2]; 4],
    seed: u64,
}

impl Drawn {
    fn rows(&self) -> usize {
        self.leading.iter().product()
    }
}

fn cases() -> impl Strategy<Value = Drawn> {
    let small = 1usize..40;
    let leading = prop_oneof![
        1 => Just(vec![]),
        3 => small.clone().prop_map(|rows| vec![rows]),
        1 => prop::sample::select(vec![0usize, 64, 65, 127, 200]).prop_map(|rows| vec![rows]),
        2 => [1usize..5, 1usize..9].prop_map(|both| both.to_vec()),
    ];
    let n =
        prop_oneof![3 => small.clone(), 3 => prop::sample::select(vec![0usize, 32, 64, 96, 257, 264, 520])];
    let k = prop_oneof![4 => small, 1 => prop::sample::select(vec![0usize, 8, 64])];
    let sources = prop::sample::select(vec![Source::Preactivation, Source::Mask, Source::Output]);
    let place = prop_oneof![2 => Just([0, 0]), 1 => Just([8, 16]), 1 => [0usize..9, 0usize..9]];
    let factor = prop::sample::select(vec![1.0f32, 0.5, -1.75]);
    (
        (leading, n, k, prop::sample::select(Activation::ALL.to_vec()), sources),
        ([0usize..4, 0usize..3], factor.clone(), factor, any::<[bool; 2]>(), any::<[bool; 2]>()),
        (prop::array::uniform4(place), any::<u64>()),
    )
        .prop_map(
            |((leading, n, k, activation, source), (scales, alpha, beta, adds, dz), (places, seed))| Drawn {
                leading,
                n,
                k,
                activation,
                source: if activation == Activation::Relu { source } else { Source::Preactivation },
                scales,
                alpha,
                beta,
                adds: adds[0],
                adds_dx: adds[1],
                dz,
                places,
                seed,
            },
        )
}

fn fail(error: Error) -> TestCaseError {
    TestCaseError::fail(error.to_string())
}

/// A number, and how far off a result may be before it is rounded.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Near {
    pub(crate) exact: f64,
    pub(crate) error: f64,
}

/// Σ a · b over some pairs, of which the first are off, on a device that adds up with errors of so much of Σ |a · b|.
pub(crate) fn product(pairs: impl Iterator<Item = (Near, f64)>, alpha: f32, sums: f64, before: f64) -> Near {
    let (mut exact, mut inner, mut magnitude) = (0.0, 0.0, 0.0);
    let mut count = 0.0;
    for (a, b) in pairs {
        exact += a.exact * b;
        inner += a.error * b.abs();
        magnitude += (a.exact.abs() + a.error) * b.abs();
        count += 1.0;
    }
    let alpha = f64::from(alpha);
    let size = (magnitude * alpha).abs() + before.abs();
    // Near zero a part of an f32 is lost, and products of small numbers.
    let tiny = (TINY + 2f64.powi(-130)) * (count + 4.0);
    Near {
        exact: alpha * exact + before,
        error: alpha.abs() * (inner + sums * magnitude) + 5.0 * U * size + tiny,
    }
}

pub(crate) fn near<Y: Rounding>(got: &[f32], expected: &[Near], what: &str) -> Result<(), TestCaseError> {
    prop_assert_eq!(got.len(), expected.len());
    for (at, (&got, expected)) in got.iter().zip(expected).enumerate() {
        // What a product loses by its last rounding is that of f32, too.
        let error = expected.error + U * (expected.exact.abs() + expected.error);
        let bound = bound::<Y>(expected.exact, error);
        let distance = (f64::from(got) - expected.exact).abs();
        prop_assert!(distance <= bound, "{what}: {got} at {at}, expected {expected:?} to {bound}");
    }
    Ok(())
}

/// How far off sums of so many products may be on a device, relative to the sum of their magnitudes.
pub(crate) fn sums_error<T: Rounding>(device: &Device, length: usize) -> f64 {
    if device.kind() == DeviceKind::Cpu {
        return (length.min(cpu::SUM_BLOCK) + length.div_ceil(cpu::SUM_BLOCK) + 1) as f64 * U;
    }
    Products::choose(T::DTYPE, length, Precision::Full, true).error(length)
}

/// Numbers rounded to T, near 1 or below.
pub(crate) fn drawn<T: Rounding>(seed: u64, count: usize) -> Vec<f32> {
    let numbers: Vec<f32> = numbers(seed, count).into_iter().map(|number| number / 8.0).collect();
    rounded::<T>(&numbers).into_iter().map(T::to_f32).collect()
}

/// What a vector of fewer numbers than there are places has at one.
fn cycled(scale: Option<&Vec<f32>>, at: usize) -> f64 {
    scale.map_or(1.0, |scale| f64::from(scale[at % scale.len()]))
}

fn check<T, O, W>(device: &Device, case: &Drawn) -> Result<(), TestCaseError>
where
    T: LinearInput + LinearTypes<O> + LinearTypes<W> + Rounding,
    O: LinearGradientElement + Rounding,
    W: SumElement + FromAccumulator<f32> + Rounding,
{
    let Drawn { leading, n, k, activation, source, alpha, beta, adds, adds_dx, seed, .. } = case.clone();
    let rows = case.rows();
    let shape = |columns: usize| [&leading[..], &[columns]].concat();
    let count = |columns: usize| rows * columns;
    let (x, w) = (drawn::<T>(seed, count(k)), drawn::<T>(seed ^ 1, n * k));
    let (dy, z) = (drawn::<O>(seed ^ 2, count(n)), numbers(seed ^ 3, count(n)));
    let z: Vec<f32> = rounded::<O>(&z).into_iter().map(O::to_f32).collect();
    let put = |tensor: Result<Tensor<O>>, columns| tensor.and_then(|tensor| tensor.reshape(shape(columns)));
    let of_dy = put(placed::<O>(device, &dy, [rows, n], case.places[0]), n).map_err(fail)?;
    let of_x = placed::<T>(device, &x, [rows, k], case.places[3]);
    let of_x = of_x.and_then(|x| x.reshape(shape(k))).map_err(fail)?;
    let of_w = placed::<T>(device, &w, [n, k], [0, 0]).map_err(fail)?;
    // The output of ReLU, where it is that which is known.
    let told: Vec<f32> =
        if source == Source::Output { z.iter().map(|z| z.max(0.0)).collect() } else { z.clone() };
    let of_z = put(placed::<O>(device, &told, [rows, n], case.places[1]), n).map_err(fail)?;
    let words = n.div_ceil(32);
    let mut bits = vec![0u32; rows * words];
    for (at, &z) in z.iter().enumerate() {
        bits[at / n * words + at % n / 32] |= u32::from(z > 0.0) << (at % n % 32);
    }
    let mask = Tensor::from_slice(device, &bits, shape(words)).map_err(fail)?;
    let m = leading.last().copied().unwrap_or(1);
    let vector = |seed, shape: Option<Vec<usize>>| {
        shape.map(|shape| (drawn::<f32>(seed, shape.iter().product()), shape))
    };
    let of_rows =
        vector(seed ^ 4, [None, Some(vec![1]), Some(leading.clone()), Some(vec![m])][case.scales[0]].clone());
    let of_columns = vector(seed ^ 5, [None, Some(vec![1]), Some(vec![n])][case.scales[1]].clone());
    let scale = |of: &Option<(Vec<f32>, Vec<usize>)>| {
        of.as_ref()
            .map(|(numbers, shape)| Tensor::from_slice(device, numbers, shape))
            .transpose()
            .map_err(fail)
    };
    let (row_scale, column_scale) = (scale(&of_rows)?, scale(&of_columns)?);

    let operation = ops::linear_backward(&of_x, &of_w, &of_dy)
        .activation(activation)
        .alpha(alpha)
        .residual(beta)
        .row_scale(&row_scale)
        .column_scale(&column_scale);
    let operation = match source {
        _ if activation == Activation::None => operation.preactivation(&of_z),
        Source::Preactivation => operation.preactivation(&of_z),
        Source::Mask => operation.relu_mask(&mask),
        Source::Output => operation.output(&of_z),
    };

    // NaNs where nothing is added, which must not show.
    let before = |adds: bool, seed: u64, count: usize| match adds {
        true => drawn::<W>(seed, count),
        false => vec![f32::NAN; count],
    };
    let (dx0, dw0, db0) = (
        if adds_dx { drawn::<T>(seed ^ 6, count(k)) } else { vec![f32::NAN; count(k)] },
        before(adds, seed ^ 7, n * k),
        before(adds, seed ^ 8, n),
    );
    let mut dx =
        placed::<T>(device, &dx0, [rows, k], [0, 0]).and_then(|dx| dx.reshape(shape(k))).map_err(fail)?;
    let mut dw = placed::<W>(device, &dw0, [n, k], [0, 0]).map_err(fail)?;
    let mut db = Tensor::from_slice(device, &rounded::<W>(&db0), [n]).map_err(fail)?;
    let nans = vec![f32::NAN; count(n)];
    let mut dresidual = put(placed::<O>(device, &nans, [rows, n], case.places[2]), n).map_err(fail)?;
    let [has_dz, over_dy] = case.dz;
    let mut dz = if !has_dz {
        None
    } else if over_dy && T::DTYPE == O::DTYPE {
        (&of_dy as &dyn std::any::Any).downcast_ref::<Tensor<T>>().cloned()
    } else {
        Some(Tensor::uninit(device, shape(n)).map_err(fail)?)
    };
    operation
        .run_into(LinearGradientOutputs {
            dx: Some(&mut dx),
            dw: Some(&mut dw),
            db: Some(&mut db),
            dresidual: Some(&mut dresidual),
            dz: dz.as_mut(),
            adds,
            adds_dx,
        })
        .map_err(fail)?;

    // The slopes' errors, and those of the products with them.
    let slopes = if activation == Activation::None { Slopes::Ones } else { Slopes::At(activation, &z) };
    let (mut exact, mut sums) = (vec![0.0f64; count(n)], vec![0.0f64; n]);
    cpu::linear_gradient(n, &dy, slopes, &mut exact, &mut sums);
    let slope = activation.derivative_ulps() * U + TINY;
    let gradient: Vec<Near> = exact
        .iter()
        .zip(&dy)
        .map(|(&exact, &dy)| {
            let error = slope * f64::from(dy).abs();
            Near { exact, error: error + (exact.abs() + error) * U + TINY }
        })
        .collect();
    let scaled = |factor: f64, Near { exact, error }: Near, roundings: f64| {
        let (exact, error) = (exact * factor, error * factor.abs());
        Near { exact, error: error + (exact.abs() + error) * roundings * U + 2.0 * TINY }
    };
    let of_residual: Vec<Near> = gradient.iter().map(|&dz| scaled(f64::from(beta), dz, 1.0)).collect();
    near::<O>(&widened(&dresidual).map_err(fail)?, &of_residual, "dresidual")?;
    let of_bias: Vec<Near> = (0..n)
        .map(|column| {
            let of_column = (0..rows).map(|row| gradient[row * n + column]);
            let (error, magnitude) = of_column
                .fold((0.0, 0.0), |(error, sum), dz| (error + dz.error, sum + dz.exact.abs() + dz.error));
            let before = if adds { f64::from(db0[column]) } else { 0.0 };
            let size = magnitude + before.abs();
            Near { exact: sums[column] + before, error: error + (rows as f64 + 1.0) * U * size }
        })
        .collect();
    near::<W>(&widened(&db).map_err(fail)?, &of_bias, "db")?;

    let (of_rows, of_columns) = (of_rows.map(|(scale, _)| scale), of_columns.map(|(scale, _)| scale));
    let of_dz: Vec<Near> = gradient
        .iter()
        .enumerate()
        .map(|(at, &dz)| {
            scaled(cycled(of_rows.as_ref(), at / n) * cycled(of_columns.as_ref(), at % n), dz, 2.0)
        })
        .collect();
    if let Some(dz) = &dz {
        near::<T>(&widened(dz).map_err(fail)?, &of_dz, "dz")?;
    }
    // What the products read has been rounded once more.
    let read: Vec<Near> = of_dz
        .iter()
        .map(|dz| Near { error: bound::<T>(dz.exact, dz.error + U * dz.exact.abs()), ..*dz })
        .collect();
    let sums = |length: usize| sums_error::<T>(device, length);
    let of_x: Vec<Near> = (0..count(k))
        .map(|at| {
            let pairs = (0..n).map(|j| (read[at / k * n + j], f64::from(w[j * k + at % k])));
            product(pairs, alpha, sums(n), if adds_dx { f64::from(dx0[at]) } else { 0.0 })
        })
        .collect();
    near::<T>(&widened(&dx).map_err(fail)?, &of_x, "dx")?;
    let of_w: Vec<Near> = (0..n * k)
        .map(|at| {
            let pairs = (0..rows).map(|row| (read[row * n + at / k], f64::from(x[row * k + at % k])));
            product(pairs, alpha, sums(rows), if adds { f64::from(dw0[at]) } else { 0.0 })
        })
        .collect();
    near::<W>(&widened(&dw).map_err(fail)?, &of_w, "dw")
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn kernels_compute_what_the_definitions_say(case in cases()) {
        let device: Device = ["emulator:9.0", "emulator:8.0"][case.seed as usize % 2].parse().expect("a device");
        check::<f16, f16, f16>(&device, &case)?;
        check::<bf16, f32, f32>(&device, &case)?;
        check::<f32, f32, f32>(&device, &case)?;
        check::<bf16, bf16, f32>(&device, &case)?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn the_cpu_computes_what_the_definitions_say(case in cases()) {
        check::<f16, f16, f32>(&Device::cpu(), &case)?;
        check::<bf16, f32, bf16>(&Device::cpu(), &case)?;
        check::<f32, f32, f32>(&Device::cpu(), &case)?;
    }
}

/// Σ y · dy of a layer in f64, whose gradients are asked for.
fn loss(
    [x, w, bias, residual]: [&[f64]; 4],
    dy: &[f64],
    activation: Activation,
    [m, n, k]: [usize; 3],
) -> f64 {
    let mut sum = 0.0;
    for at in 0..m * n {
        let (row, column) = (at / n, at % n);
        let product: f64 = (0..k).map(|i| x[row * k + i] * w[column * k + i]).sum();
        let z = 0.75 * (1.0 + row as f64) * (2.0 - column as f64 / 4.0) * product + bias[column]
            - 1.5 * residual[at];
        sum += activation.apply(z) * dy[at];
    }
    sum
}

/// What the drawn tests compare with, by the functions that they take.
#[test]
fn definitions_are_those_of_finite_differences() {
    let [m, n, k] = [3, 5, 4];
    // Multiples of an eighth, of which f32 has every sum of products.
    let of = |seed: u64, count: usize| -> Vec<f64> {
        numbers(seed, count)
            .into_iter()
            .map(|number| f64::from((number * 4.0).round() / 8.0).clamp(-2.0, 2.0))
            .collect()
    };
    let (x, w, residual, dy) = (of(1, m * k), of(2, n * k), of(4, m * n), of(5, m * n));
    // No z is near 0, where ReLU has no slope.
    let bias: Vec<f64> = of(3, n).into_iter().map(|bias| bias + 1.0 / 1024.0).collect();
    let single = |numbers: &[f64]| -> Vec<f32> { numbers.iter().map(|&number| number as f32).collect() };
    let factor = |at: usize| (1.0 + (at / n) as f64) * (2.0 - (at % n) as f64 / 4.0);
    let z: Vec<f64> = (0..m * n)
        .map(|at| {
            let product: f64 = (0..k).map(|i| x[at / n * k + i] * w[at % n * k + i]).sum();
            0.75 * factor(at) * product + bias[at % n] - 1.5 * residual[at]
        })
        .collect();
    for activation in Activation::ALL {
        let (mut dz, mut sums) = (vec![0.0f64; m * n], vec![0.0f64; n]);
        cpu::linear_gradient(n, &single(&dy), Slopes::At(activation, &single(&z)), &mut dz, &mut sums);
        let scaled = |at: usize| Near { exact: factor(at) * dz[at], error: 0.0 };
        let sum = |pairs: &mut dyn Iterator<Item = (Near, f64)>| product(pairs, 0.75, 0.0, 0.0).exact;
        let of_x = |at: usize| sum(&mut (0..n).map(|j| (scaled(at / k * n + j), w[j * k + at % k])));
        let of_w = |at: usize| sum(&mut (0..m).map(|i| (scaled(i * n + at / k), x[i * k + at % k])));
        let gradients: [(usize, &dyn Fn(usize) -> f64); 4] =
            [(0, &of_x), (1, &of_w), (2, &|at| sums[at]), (3, &|at| -1.5 * dz[at])];
        for (operand, gradient) in gradients {
            for at in 0..[m * k, n * k, n, m * n][operand] {
                let moved = |by: f64| {
                    let mut operands = [x.clone(), w.clone(), bias.clone(), residual.clone()];
                    operands[operand][at] += by;
                    loss(operands.each_ref().map(Vec::as_slice), &dy, activation, [m, n, k])
                };
                // A step that moves no z across 0.
                let step = 1e-5;
                let difference = (moved(step) - moved(-step)) / (2.0 * step);
                // Third derivatives are below 2, and moves of z below 16 steps each, of 15 numbers at most; and rounded sums of up to 200 over a step of 2e-5.
                let error = (difference - gradient(at)).abs();
                assert!(
                    error <= 1e-6,
                    "{activation}, operand {operand} at {at}: {difference}, {}",
                    gradient(at)
                );
            }
        }
    }
}

fn matrix(device: &Device, shape: [usize; 2]) -> Tensor<f32> {
    Tensor::from_slice(device, &drawn::<f32>(7, shape[0] * shape[1]), shape).expect("it fits")
}

#[test]
fn products_run_later_from_the_same_dz() {
    for device in [Device::cpu(), Device::emulator()] {
        let [x, w, dy, z] = [[9, 16], [24, 16], [9, 24], [9, 24]].map(|shape| matrix(&device, shape));
        let scale = Tensor::from_slice(&device, &drawn::<f32>(8, 9), [9]).expect("it fits");
        let backward = ops::linear_backward(&x, &w, &dy)
            .activation(Activation::Silu)
            .preactivation(&z)
            .row_scale(&scale)
            .alpha(0.5);
        let all = backward.run().expect("it runs");
        let dz = backward.dz().expect("it runs");
        let later = ops::linear_backward(&x, &w, &dz).alpha(0.5);
        let bits = |tensor: &Tensor<f32>| tensor.to_vec().expect("it is read");
        assert_eq!(bits(&later.dx().expect("it runs")), bits(&all.dx));
        assert_eq!(bits(&later.dw::<f32>().expect("it runs")), bits(&all.dw));
        assert_eq!(bits(&backward.dx().expect("it runs")), bits(&all.dx));
        assert!(all.dresidual.is_none());
    }
}

/// Nothing runs but what is needed for what is wanted.
#[test]
fn implementations_name_what_runs() {
    let device: Device = "emulator:9.0".parse().expect("a device");
    let names = |implementation: Result<Implementation>| -> Vec<&'static str> {
        implementation.expect("it is known").launches().iter().map(|launch| launch.kernel).collect()
    };
    let [x, w, dy] = [[300, 64], [264, 64], [300, 264]].map(|shape| matrix(&device, shape));
    let plain = ops::linear_backward(&x, &w, &dy);
    assert_eq!(names(plain.implementation())[..2], ["linear_gradient_f32", "column_sums_f32"]);
    let few = ops::linear_backward(&x, &w, &dy);
    let only_products = super::Wanted { dx: true, dw: true, ..Default::default() };
    let products = names(few.implementation_of::<f32>(only_products));
    assert!(!products.is_empty() && products.iter().all(|name| !name.contains("gradient")), "{products:?}");
    let scaled = Tensor::from_slice(&device, &[2.0f32], [1]).expect("it fits");
    let scaled = few.row_scale(&scaled);
    assert_eq!(names(scaled.implementation_of::<f32>(only_products))[0], "linear_gradient_f32");
    // One strip has all rows: its sums are the result.
    let (x, dy) = (x.slice(0, 0..64).expect("rows"), dy.slice(0, 0..64).expect("rows"));
    let names_of_few = names(ops::linear_backward(&x, &w, &dy).implementation());
    assert_eq!(names_of_few[0], "linear_gradient_f32");
    assert!(!names_of_few.contains(&"column_sums_f32"), "{names_of_few:?}");
    let columns = dy.slice(1, 1..263).expect("columns");
    let w = w.slice(0, 0..262).expect("rows");
    let of_any = names(ops::linear_backward(&x, &w, &columns).implementation());
    assert_eq!(of_any[0], "linear_gradient_any_f32");
    let cpu = Device::cpu();
    let [x, w, dy] = [[3, 4], [5, 4], [3, 5]].map(|shape| matrix(&cpu, shape));
    assert_eq!(ops::linear_backward(&x, &w, &dy).implementation().expect("it is known"), Implementation::Cpu);
}

#[test]
fn strips_have_all_rows_and_do_not_depend_on_the_gpu() {
    for columns in [1, 7, 8, 64, 257, 768, 4096, 50_257, 1 << 20] {
        for rows in [1, 2, 63, 64, 65, 1000, 1024, 8192, 1 << 20, (1 << 31) - 1] {
            for base in [256, 258] {
                let of = warpsmith_dsl::rows::AnyRows {
                    base,
                    stride: columns as u64,
                    kind: crate::ops::rows::kind::<bf16>(),
                    offset: 0.0,
                };
                let plan = Plan::new::<bf16>(Sizes { rows, columns }, &[of]);
                let case = format!("{rows} × {columns}: {plan:?}");
                let (strip, strips) = (plan.strip as usize, plan.strips as usize);
                assert!(strip * strips >= rows && strip * (strips - 1) < rows, "{case}");
                assert!(plan.threads.is_power_of_two() && plan.threads <= 32 && strips <= 1024, "{case}");
                assert!(plan.vector || plan.threads == 32, "{case}");
                let per_block = plan.threads as usize * if plan.vector { 8 } else { 4 };
                let across = plan.across as usize;
                assert!(across * per_block >= columns && (across - 1) * per_block < columns, "{case}");
            }
        }
    }
    // Enough blocks for every multiprocessor of a small matrix.
    let of = warpsmith_dsl::rows::AnyRows {
        base: 256,
        stride: 2048,
        kind: crate::ops::rows::kind::<bf16>(),
        offset: 0.0,
    };
    assert_eq!(Plan::new::<bf16>(Sizes { rows: 1024, columns: 2048 }, &[of]).blocks(), 256);
}

#[test]
fn operands_that_do_not_fit_are_refused() {
    let (device, other) = (Device::cpu(), Device::emulator());
    let [x, w, dy, z] = [[3, 4], [5, 4], [3, 5], [3, 5]].map(|shape| matrix(&device, shape));
    let mask = Tensor::<u32>::zeros(&device, [3, 1]).expect("it fits");
    let shape_of = |result: Result<_>| match result.map(|_: super::LinearGradients<f32, f32>| ()) {
        Err(Error::Shape { operation: "linear_backward", operand, .. }) => operand,
        other => panic!("{other:?}"),
    };
    let argument_of = |result: Result<_>| match result.map(|_: super::LinearGradients<f32, f32>| ()) {
        Err(Error::Argument { operation: "linear_backward", argument, .. }) => argument,
        other => panic!("{other:?}"),
    };
    let vector = Tensor::<f32>::zeros(&device, [4]).expect("it fits");
    assert_eq!(shape_of(ops::linear_backward(&x, &vector, &dy).run()), "w");
    assert_eq!(shape_of(ops::linear_backward(&x, &dy, &dy).run()), "w");
    assert_eq!(shape_of(ops::linear_backward(&x, &w, &x).run()), "dy");
    let scalar = Tensor::<f32>::zeros(&device, []).expect("it fits");
    assert_eq!(shape_of(ops::linear_backward(&scalar, &w, &dy).run()), "x");
    let backward = ops::linear_backward(&x, &w, &dy);
    assert_eq!(shape_of(backward.preactivation(&x).run()), "preactivation");
    assert_eq!(shape_of(backward.output(&x).run()), "output");
    let narrow = Tensor::<u32>::zeros(&device, [3, 2]).expect("it fits");
    assert_eq!(shape_of(backward.relu_mask(&narrow).run()), "relu_mask");
    assert_eq!(shape_of(backward.row_scale(&vector).run()), "row_scale");
    assert_eq!(shape_of(backward.column_scale(&vector).run()), "column_scale");

    assert_eq!(argument_of(backward.activation(Activation::Silu).run()), "activation");
    assert_eq!(argument_of(backward.activation(Activation::Relu).run()), "activation");
    assert_eq!(argument_of(backward.activation(Activation::Silu).relu_mask(&mask).run()), "relu_mask");
    assert_eq!(argument_of(backward.output(&z).run()), "output");
    let relu = backward.activation(Activation::Relu);
    assert_eq!(argument_of(relu.output(&z).relu_mask(&mask).run()), "activation");

    let elsewhere = matrix(&other, [3, 5]);
    for result in [
        ops::linear_backward(&x, &w, &elsewhere).run(),
        backward.preactivation(&elsewhere).run(),
        backward.on(&other.default_stream()).run(),
    ] {
        assert!(matches!(result, Err(Error::DeviceMismatch { .. })), "{result:?}");
    }

    type Outputs<'o> = LinearGradientOutputs<'o, f32, f32, f32>;
    let (mut dx, mut dw) = (matrix(&device, [3, 4]), matrix(&device, [5, 4]));
    let wrong = backward.run_into(Outputs { dx: Some(&mut dw), ..Default::default() });
    assert!(matches!(wrong, Err(Error::Shape { operand: "dx", .. })), "{wrong:?}");
    let wrong = backward.run_into(Outputs { dw: Some(&mut dx), ..Default::default() });
    assert!(matches!(wrong, Err(Error::Shape { operand: "dw", .. })), "{wrong:?}");
    let wrong = backward.run_into(Outputs { db: Some(&mut dx), ..Default::default() });
    assert!(matches!(wrong, Err(Error::Shape { operand: "db", .. })), "{wrong:?}");
    let [mut over_x, mut over_dy] = [x.clone(), dy.clone()];
    let wrong = backward.run_into(Outputs { dx: Some(&mut over_x), ..Default::default() });
    assert!(matches!(wrong, Err(Error::Overlap { operand: "dx", other: "x", .. })), "{wrong:?}");
    let wrong = backward.run_into(Outputs { dresidual: Some(&mut over_dy), ..Default::default() });
    assert!(matches!(wrong, Err(Error::Overlap { operand: "dresidual", other: "dy", .. })), "{wrong:?}");
    let mut across = matrix(&device, [4, 5]).swap_axes(0, 1).expect("two axes");
    let wrong = backward.run_into(Outputs { dw: Some(&mut across), ..Default::default() });
    assert!(matches!(wrong, Err(Error::Stride { operand: "dw", .. })), "{wrong:?}");
}

/// Rows that stand in a larger tensor so that no view has them as a matrix, and a mask and an output of every other row.
#[test]
fn operands_without_rows_of_their_own_are_copied() {
    for device in [Device::cpu(), Device::emulator()] {
        let all = |columns: usize, seed: u64| -> Tensor<f32> {
            let elements = drawn::<f32>(seed, 5 * 4 * columns);
            Tensor::from_slice(&device, &elements, [5, 4, columns]).expect("it fits")
        };
        let some = |tensor: Tensor<f32>| tensor.slice(1, 1..3).expect("an axis");
        let [x, dy, y] = [(6, 1), (8, 2), (8, 3)].map(|(columns, seed)| some(all(columns, seed)));
        let w = matrix(&device, [8, 6]);
        let dense = |tensor: &Tensor<f32>| tensor.contiguous().expect("a copy");
        let [dense_x, dense_dy, dense_y] = [&x, &dy, &y].map(dense);
        let run = |x, dy, y| {
            let backward = ops::linear_backward(x, &w, dy).activation(Activation::Relu).output(y);
            backward.run().expect("it runs")
        };
        let (got, expected) = (run(&x, &dy, &y), run(&dense_x, &dense_dy, &dense_y));
        for (got, expected) in [(&got.dx, &expected.dx), (&got.dw, &expected.dw), (&got.db, &expected.db)] {
            assert_eq!(got.to_vec().expect("read"), expected.to_vec().expect("read"));
        }
    }
}
