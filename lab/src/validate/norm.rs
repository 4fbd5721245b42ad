//! Validation of norms of rows, and of their gradients.

use half::{bf16, f16};
use ndarray::Array2;
use warpsmith::cpu::{self, Norm, Operand as CpuOperand};
use warpsmith::device::{Device, DeviceKind};
use warpsmith::error::{Error, Result};
use warpsmith::ops::column_sums::SumElement;
use warpsmith::ops::norm::{NormElement, NormGradientOp, NormOp, NormOutputs};
use warpsmith::ops::rows::AnyTensor;
use warpsmith::ops::{self, Implementation};
use warpsmith::tensor::{DType, Tensor};
use warpsmith::weights::FloatElement;

use super::Outcome;
use super::load::{Output, Prepared, Step};
use super::placed::Placed;
use super::tally::Tally;
use crate::bound::norm::{GradientRow, NormRow, judge_sum};
use crate::cases::{Data, NormCase, Placement};

/// The operation's name in errors.
const OPERATION: &str = "validate::norm";

/// A type of rows.
trait Rows: NormElement + SumElement + FloatElement {}
impl<T: NormElement + SumElement + FloatElement> Rows for T {}

/// Runs `$f::<T, Y>` with the types of a case.
macro_rules! of_types {
    ($case:expr, $f:ident($($argument:expr),*)) => {
        match ($case.dtype, $case.output) {
            (DType::F16, DType::F16) => $f::<f16, f16>($($argument),*),
            (DType::F16, DType::Bf16) => $f::<f16, bf16>($($argument),*),
            (DType::F16, DType::F32) => $f::<f16, f32>($($argument),*),
            (DType::Bf16, DType::F16) => $f::<bf16, f16>($($argument),*),
            (DType::Bf16, DType::Bf16) => $f::<bf16, bf16>($($argument),*),
            (DType::Bf16, DType::F32) => $f::<bf16, f32>($($argument),*),
            (DType::F32, DType::F16) => $f::<f32, f16>($($argument),*),
            (DType::F32, DType::Bf16) => $f::<f32, bf16>($($argument),*),
            (DType::F32, DType::F32) => $f::<f32, f32>($($argument),*),
            (dtype, output) => {
                let actual = if dtype.is_float() && dtype.size() != 8 && dtype.size() != 1 { output } else { dtype };
                Err(Error::Type { operation: OPERATION, operand: "x", expected: "f16, bf16 or f32".into(), actual })
            }
        }
    };
}

/// Runs one case on `device`, the norm and its gradients, and compares every result with the exact one.
///
/// # Errors
///
/// [`Error::Type`] if the case's types are not f16, bf16 or f32; otherwise whatever the operations return.
pub fn norm(device: &Device, case: &NormCase) -> Result<Outcome> {
    of_types!(case, check(device, case))
}

/// The bits of every result: to compare one device, or mode, with another.
///
/// # Errors
///
/// As [`norm`].
pub fn norm_bits(device: &Device, case: &NormCase) -> Result<Vec<u8>> {
    of_types!(case, bits(device, case))
}

/// Prepares a case to be run again and again into one of `slots` outputs.
pub(super) fn prepare(device: &Device, case: &NormCase, slots: usize) -> Result<Prepared> {
    of_types!(case, prepared(device, case, slots))
}

/// A vector of any type.
enum Vector {
    F16(Tensor<f16>),
    Bf16(Tensor<bf16>),
    F32(Tensor<f32>),
}

impl Vector {
    fn new(device: &Device, dtype: DType, numbers: &[f32]) -> Result<Self> {
        fn of<T: FloatElement>(device: &Device, numbers: &[f32]) -> Result<Tensor<T>> {
            let rounded: Vec<T> = numbers.iter().map(|&number| T::round(f64::from(number))).collect();
            Tensor::from_slice(device, &rounded, [numbers.len()])
        }
        Ok(match dtype {
            DType::F16 => Self::F16(of(device, numbers)?),
            DType::Bf16 => Self::Bf16(of(device, numbers)?),
            _ => Self::F32(of(device, numbers)?),
        })
    }

    fn any(&self) -> AnyTensor<'_> {
        match self {
            Self::F16(tensor) => tensor.into(),
            Self::Bf16(tensor) => tensor.into(),
            Self::F32(tensor) => tensor.into(),
        }
    }

    fn numbers(&self) -> Result<Vec<f32>> {
        Ok(match self {
            Self::F16(tensor) => widened(&tensor.to_vec()?),
            Self::Bf16(tensor) => widened(&tensor.to_vec()?),
            Self::F32(tensor) => tensor.to_vec()?,
        })
    }
}

fn widened<T: CpuOperand>(elements: &[T]) -> Vec<f32> {
    elements.iter().map(|&element| element.to_f32()).collect()
}

/// What a case reads.
struct Operands<T: Rows, Y: Rows> {
    x: Array2<T>,
    /// x where there is a residual, which then is `x`.
    before: Option<Array2<Y>>,
    dy: Array2<T>,
    dsum: Option<Array2<T>>,
    weight: Option<Vector>,
    bias: Option<Vector>,
}

fn draw<T: Rows>(case: &NormCase, stream: u64, mean: f32) -> Result<Array2<T>> {
    let shape = (case.rows, case.columns);
    let drawn = Data::Uniform.draw(case.seed, stream, shape, 1, |number| number)?;
    Ok(drawn.mapv(|number| T::round(f64::from(mean + number))))
}

fn vector(case: &NormCase, device: &Device, dtype: Option<DType>, stream: u64) -> Result<Option<Vector>> {
    let Some(dtype) = dtype else { return Ok(None) };
    let data = if case.data == Data::Integers { Data::Integers } else { Data::Uniform };
    let drawn = data.draw(case.seed, stream, (1, case.columns), 64, |number| number)?;
    Vector::new(device, dtype, drawn.as_slice().unwrap_or_default()).map(Some)
}

impl<T: Rows, Y: Rows> Operands<T, Y> {
    fn new(device: &Device, case: &NormCase) -> Result<Self> {
        let weight = vector(case, device, case.weight, 4)?;
        let bias = vector(case, device, case.bias, 5)?;
        let dsum = case.residual.then(|| draw(case, 3, 0.0)).transpose()?;
        let dy = draw(case, 2, 0.0)?;
        if case.data == Data::Integers {
            let size = |row: usize| f32::powi(2.0, (row % 7) as i32 - 3);
            let sign =
                |column: usize| if (column + case.seed as usize).is_multiple_of(2) { 1.0 } else { -1.0 };
            let element = |(row, column)| T::round(f64::from(size(row) * sign(column)));
            let x = Array2::from_shape_fn((case.rows, case.columns), element);
            return Ok(Self { x, before: None, dy, dsum: None, weight, bias });
        }
        let x = draw(case, 0, case.mean)?;
        let before = case.residual.then(|| draw(case, 1, 0.0)).transpose()?;
        Ok(Self { x, before, dy, dsum, weight, bias })
    }
}

/// Tensors of a case on a device, as wide as they are placed.
struct Held<T: Rows, Y: Rows> {
    x: Placed<T>,
    before: Option<Placed<Y>>,
    dy: Placed<T>,
    dsum: Option<Placed<T>>,
}

fn full(rows: usize) -> impl Fn(usize) -> Vec<usize> {
    move |columns| vec![rows, columns]
}

impl<T: Rows, Y: Rows> Held<T, Y> {
    fn new(device: &Device, case: &NormCase, operands: &Operands<T, Y>) -> Result<Self> {
        fn place<U: Rows>(device: &Device, case: &NormCase, held: &Array2<U>) -> Result<Placed<U>> {
            Placed::new(device, Some(held), held.dim(), U::round(f64::NAN), case.placement)
        }
        Ok(Self {
            x: place(device, case, &operands.x)?,
            before: operands.before.as_ref().map(|x| place(device, case, x)).transpose()?,
            dy: place(device, case, &operands.dy)?,
            dsum: operands.dsum.as_ref().map(|dsum| place(device, case, dsum)).transpose()?,
        })
    }
}

/// The norm of a case, of a type of x and one of rows.
fn options<'a, X: NormElement, T: NormElement>(
    case: &NormCase,
    norm: NormOp<'a, X, T>,
    [weight, bias]: [Option<&'a Vector>; 2],
) -> NormOp<'a, X, T> {
    let mut norm = norm.weight_offset(case.weight_offset).epsilon(epsilon(case));
    if let Some(weight) = weight {
        norm = norm.weight(weight.any());
    }
    if let Some(bias) = bias {
        norm = norm.bias(bias.any());
    }
    norm
}

fn start<'a, X: NormElement>(case: &NormCase, x: &'a Tensor<X>) -> NormOp<'a, X> {
    if case.is_centered { ops::layer_norm(x) } else { ops::rms_norm(x) }
}

fn epsilon(case: &NormCase) -> f32 {
    if case.data == Data::Integers { 0.0 } else { 1e-5 }
}

/// Every result of a case.
struct Results<T: Rows, Y: Rows> {
    y: Tensor<Y>,
    sum: Option<Tensor<T>>,
    mean: Option<Tensor<f32>>,
    inverse_deviation: Tensor<f32>,
    dx: Tensor<T>,
    dweight: Tensor<f32>,
    dbias: Tensor<f32>,
}

/// Runs a case: the results, what ran, and stray writes beside y.
fn run<T: Rows, Y: Rows>(
    device: &Device,
    case: &NormCase,
    operands: &Operands<T, Y>,
) -> Result<(Results<T, Y>, Implementation, usize)> {
    let held = Held::new(device, case, operands)?;
    let full = full(case.rows);
    let x = held.x.tensor(&full)?;
    let vectors = [operands.weight.as_ref(), operands.bias.as_ref()];
    let shape = (case.rows, case.columns);
    let placed = Placed::new(device, None, shape, Y::round(77.0), case.placement)?;
    let mut y = placed.tensor(&full)?;
    let mut mean = case.is_centered.then(|| Tensor::uninit(device, [case.rows])).transpose()?;
    let mut inverse_deviation = Tensor::uninit(device, [case.rows])?;
    let mut sum = None;
    let ran = if let Some(before) = &held.before {
        let before = before.tensor(&full)?;
        let mut both = Tensor::<T>::uninit(device, [case.rows, case.columns])?;
        let norm = options(case, start(case, &before).residual(&x), vectors);
        norm.run_into(NormOutputs {
            y: Some(&mut y),
            sum: Some(&mut both),
            mean: mean.as_mut(),
            inverse_deviation: Some(&mut inverse_deviation),
        })?;
        sum = Some(both);
        norm.implementation()?
    } else {
        let norm = options(case, start(case, &x), vectors);
        norm.run_into(NormOutputs::<Y, T> {
            y: Some(&mut y),
            sum: None,
            mean: mean.as_mut(),
            inverse_deviation: Some(&mut inverse_deviation),
        })?;
        norm.implementation()?
    };
    let normed = sum.as_ref().unwrap_or(&x);
    let dy = held.dy.tensor(&full)?;
    let dsum = held.dsum.as_ref().map(|dsum| dsum.tensor(&full)).transpose()?;
    let backward = |norm: NormOp<'_, T>| -> Result<_> {
        let gradient: NormGradientOp<'_, T> = norm.backward(&dy).dsum(dsum.as_ref());
        // Half of the cases compute the statistics again.
        let gradient = if case.seed.is_multiple_of(2) {
            gradient.statistics(mean.as_ref(), &inverse_deviation)
        } else {
            gradient
        };
        Ok((gradient.run()?, gradient.implementation()?))
    };
    let (gradients, of_gradients) = backward(options(case, start(case, normed), vectors))?;
    let implementation = match ran {
        Implementation::Cpu | Implementation::Empty => ran,
        _ => ran.then(of_gradients),
    };
    let y_written = placed.read()?;
    let stray = y_written.strays();
    let y = Tensor::from_array(device, &y_written.inside().to_owned())?;
    let (dx, dweight, dbias) = (gradients.dx, gradients.dweight, gradients.dbias);
    Ok((Results { y, sum, mean, inverse_deviation, dx, dweight, dbias }, implementation, stray))
}

fn bits<T: Rows, Y: Rows>(device: &Device, case: &NormCase) -> Result<Vec<u8>> {
    let operands = Operands::<T, Y>::new(device, case)?;
    let (results, ..) = run(device, case, &operands)?;
    let mut all = bytemuck::cast_slice(&results.y.to_vec()?).to_vec();
    if let Some(sum) = &results.sum {
        all.extend_from_slice(bytemuck::cast_slice(&sum.to_vec()?));
    }
    for vector in [results.mean.as_ref(), Some(&results.inverse_deviation)].into_iter().flatten() {
        all.extend_from_slice(bytemuck::cast_slice(&vector.to_vec()?));
    }
    all.extend_from_slice(bytemuck::cast_slice(&results.dx.to_vec()?));
    for vector in [&results.dweight, &results.dbias] {
        all.extend_from_slice(bytemuck::cast_slice(&vector.to_vec()?));
    }
    Ok(all)
}

fn check<T: Rows, Y: Rows>(device: &Device, case: &NormCase) -> Result<Outcome> {
    let operands = Operands::<T, Y>::new(device, case)?;
    let (results, implementation, stray) = run(device, case, &operands)?;
    let exact = case.data == Data::Integers;
    let mut tally = Tally::new(implementation, exact);
    let on_cpu = device.kind() == DeviceKind::Cpu;
    let columns = case.columns;
    let numbers = |vector: &Option<Vector>| vector.as_ref().map(Vector::numbers).transpose();
    let (weight, bias) = (numbers(&operands.weight)?, numbers(&operands.bias)?);
    let norm = Norm {
        weight: weight.as_deref(),
        bias: bias.as_deref(),
        weight_offset: case.weight_offset,
        epsilon: epsilon(case),
        is_centered: case.is_centered,
    };
    let factor = |column: usize| {
        weight.as_ref().map_or(1.0, |weight| f64::from(weight[column]) + f64::from(case.weight_offset))
    };
    let y = widened(&results.y.to_vec()?);
    let dx = widened(&results.dx.to_vec()?);
    let sum = results.sum.as_ref().map(Tensor::to_vec).transpose()?;
    let mean = results.mean.as_ref().map(Tensor::to_vec).transpose()?;
    let deviation = results.inverse_deviation.to_vec()?;
    // Of the columns' gradients: the exact ones, what terms are off by, and magnitudes.
    let mut of_columns = vec![[0.0f64; 3]; columns];
    let mut exact_sums = [vec![0.0f64; columns], vec![0.0f64; columns]];
    tally.outcome.stray_writes += stray;
    for row in 0..case.rows {
        let mut x = widened(&operands.x.row(row).to_vec());
        if let Some(before) = &operands.before {
            for (column, x) in x.iter_mut().enumerate() {
                *x = T::round(f64::from(*x + before[[row, column]].to_f32())).to_f32();
            }
        }
        if let Some(sum) = &sum {
            let sum = widened(&sum[row * columns..(row + 1) * columns]);
            tally.outcome.failures += sum.iter().zip(&x).filter(|(got, expected)| got != expected).count();
        }
        let mut expected = vec![0.0f64; columns];
        let statistics = cpu::norm(&x, &norm, &mut expected);
        let of_row =
            NormRow::new(&x, [statistics.mean, statistics.inverse_deviation], case.is_centered, on_cpu);
        let normed: Vec<f64> =
            x.iter().map(|&x| (f64::from(x) - statistics.mean) * statistics.inverse_deviation).collect();
        for column in 0..columns {
            let bias = bias.as_ref().map_or(0.0, |bias| f64::from(bias[column]));
            let rounded = f64::from(Y::round(expected[column]).to_f32());
            let terms = [normed[column], factor(column), bias, expected[column]];
            let got = f64::from(y[row * columns + column]);
            let judge = |got: f64| of_row.judge(got, terms, case.output);
            tally.add([row, column], got, [expected[column], rounded], judge);
        }
        if exact || columns == 0 {
            continue;
        }
        if let Some(mean) = &mean {
            let got = f64::from(mean[row]);
            tally.add([row, columns], got, [statistics.mean; 2], |got| of_row.judge_mean(got));
        }
        let (got, expected) = (f64::from(deviation[row]), statistics.inverse_deviation);
        tally.add([row, columns + 1], got, [expected; 2], |got| of_row.judge_deviation(got));

        let dy = widened(&operands.dy.row(row).to_vec());
        let dsum = operands.dsum.as_ref().map(|dsum| widened(&dsum.row(row).to_vec()));
        let mut expected = vec![0.0f64; columns];
        let [dweight, dbias] = &mut exact_sums;
        cpu::norm_gradient([&x, &dy], dsum.as_deref(), statistics, &norm, &mut expected, [dweight, dbias]);
        let gradient: Vec<f64> =
            dy.iter().enumerate().map(|(column, &dy)| f64::from(dy) * factor(column)).collect();
        let of_gradient = GradientRow::new(of_row, &gradient, &normed, on_cpu);
        for column in 0..columns {
            let dsum = dsum.as_ref().map_or(0.0, |dsum| f64::from(dsum[column]));
            let terms = [gradient[column], normed[column], dsum, expected[column]];
            let got = f64::from(dx[row * columns + column]);
            tally.add([row, column], got, [expected[column]; 2], |got| {
                of_gradient.judge(got, terms, case.dtype)
            });
            let dy = f64::from(dy[column]);
            let sums = &mut of_columns[column];
            sums[0] += dy.abs() * of_row.of_normed(normed[column]);
            sums[1] += (dy * normed[column]).abs();
            sums[2] += dy.abs();
        }
    }
    if !exact {
        let [dweight, dbias] = [results.dweight.to_vec()?, results.dbias.to_vec()?];
        for (column, &[of_terms, product, size]) in of_columns.iter().enumerate() {
            for (got, expected, bounds) in [
                (dweight[column], exact_sums[0][column], [of_terms, product]),
                (dbias[column], exact_sums[1][column], [0.0, size]),
            ] {
                tally.add([case.rows, column], f64::from(got), [expected; 2], |got| {
                    judge_sum(got, expected, bounds, case.rows)
                });
            }
        }
    }
    tally.outcome.compared = case.rows * columns;
    Ok(tally.finish())
}

fn prepared<T: Rows, Y: Rows>(device: &Device, case: &NormCase, slots: usize) -> Result<Prepared> {
    let case = NormCase { residual: false, placement: Placement { before: 0, after: 0 }, ..*case };
    let operands = Operands::<T, Y>::new(device, &case)?;
    let [x, dy] = [Tensor::from_array(device, &operands.x)?, Tensor::from_array(device, &operands.dy)?];
    let (weight, bias) = (operands.weight, operands.bias);
    let of_slots = (0..slots)
        .map(|_| {
            let shape = [case.rows, case.columns];
            let sums = || Tensor::<T>::zeros(device, [case.columns]);
            Ok((Tensor::<Y>::zeros(device, shape)?, Tensor::<T>::zeros(device, shape)?, sums()?, sums()?))
        })
        .collect::<Result<Vec<_>>>()?;
    let memory = |(y, dx, dweight, dbias): &(Tensor<Y>, Tensor<T>, Tensor<T>, Tensor<T>)| {
        Ok(vec![
            Output::new("y", y)?,
            Output::new("dx", dx)?,
            Output::new("dweight", dweight)?,
            Output::new("dbias", dbias)?,
        ])
    };
    Prepared::of_slots(of_slots, memory, move |(y, dx, dweight, dbias), step| {
        let norm = options(&case, start(&case, &x), [weight.as_ref(), bias.as_ref()]);
        let gradient = norm.backward(&dy);
        if step == Step::Ask {
            return Ok(norm.implementation()?.then(gradient.implementation_into::<T>()?));
        }
        norm.run_into(NormOutputs::<Y, T> { y: Some(y), ..NormOutputs::default() })?;
        let (dx, dweight, dbias) = (Some(dx), Some(dweight), Some(dbias));
        let outputs = ops::norm::NormGradientOutputs { dx, dweight, dbias, adds: false };
        gradient.run_into(outputs)?;
        Ok(Implementation::Empty)
    })
}
