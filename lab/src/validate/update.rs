//! Validation of generated low-rank updates, alone and onto a linear operation.

use half::{bf16, f16};
use ndarray::{Array1, Array2, ArrayView2, Axis, s};
use rayon::prelude::*;
use warpsmith::cpu::{self, LinearTerms};
use warpsmith::device::{Device, DeviceKind};
use warpsmith::error::{Error, Result};
use warpsmith::ops::update::UpdateInput;
use warpsmith::ops::{self, Implementation};
use warpsmith::tensor::{DType, Element, Tensor};
use warpsmith::weights::FloatElement;

use super::Outcome;
use super::load::{Output, Prepared, Step};
use super::outputs::Bits;
use super::tally::Tally;
use crate::bound::update::{Magnitudes, UpdateModel};
use crate::bound::{Arithmetic, Expected};
use crate::cases::Placement;
use crate::cases::UpdateCase;
use crate::cases::{Data, filled};
use crate::reference::sampled;

/// The operation's name in errors.
const OPERATION: &str = "validate::generated_update";
/// What the memory beside an output is filled with: a number that no validated result is.
const SENTINEL: f64 = -24576.0;
/// What masks hold before a run that is compared with others.
const MASK_SENTINEL: u32 = 0xa5c3_96e1;
/// Multiply–adds above which only some rows and columns of the output are compared.
const FULL_WORK: usize = 1 << 31;
/// Elements of a column of V that are not zero with integer data, so that H stays exact in every type.
const INTEGERS_OF_V: usize = 8;
/// A length of sums for which integers are at most 3.
const SMALL_INTEGERS: usize = 1 << 18;

/// Runs one case on `device` and compares the result with the reference.
///
/// # Errors
///
/// [`Error::Type`] if the case's type is not f16, bf16 or f32, [`Error::SizeLimit`] or [`Error::OutOfMemory`] if the host cannot
/// hold its operands; otherwise whatever the operation returns.
pub fn generated_update(device: &Device, case: &UpdateCase) -> Result<Outcome> {
    case.check_sizes(OPERATION)?;
    match case.dtype {
        DType::F16 => check::<f16>(device, case),
        DType::Bf16 => check::<bf16>(device, case),
        DType::F32 => check::<f32>(device, case),
        actual => Err(Error::Type {
            operation: OPERATION,
            operand: "x",
            expected: "f16, bf16 or f32".into(),
            actual,
        }),
    }
}

/// Runs one case on `device` and returns the bits of all that it writes, to compare devices with each other.
///
/// # Errors
///
/// As [`generated_update`].
pub fn generated_update_bits(device: &Device, case: &UpdateCase) -> Result<Vec<u32>> {
    fn of_type<T: UpdateInput + FloatElement + Bits>(device: &Device, case: &UpdateCase) -> Result<Vec<u32>> {
        let result = run_case(device, case, &Operands::<T>::draw(case)?)?;
        let numbers = result.surrounding.iter().chain(result.preactivation.iter().flatten());
        let mask = result.mask.iter().flatten().copied();
        Ok(numbers.map(|value| value.bits()).chain(mask).collect())
    }
    const OPERATION: &str = "validate::generated_update_bits";
    case.check_sizes(OPERATION)?;
    match case.dtype {
        DType::F16 => of_type::<f16>(device, case),
        DType::Bf16 => of_type::<bf16>(device, case),
        DType::F32 => of_type::<f32>(device, case),
        actual => {
            let expected = "f16, bf16 or f32".into();
            Err(Error::Type { operation: OPERATION, operand: "x", expected, actual })
        }
    }
}

/// The operands of one update on the host.
struct Part<T> {
    v: Array2<T>,
    codes: Array2<T>,
    u: Array2<T>,
}

/// The operands of a case on the host.
struct Operands<T> {
    x: Array2<T>,
    w: Option<Array2<T>>,
    bias: Option<Array1<T>>,
    residual: Option<Array2<T>>,
    parts: Vec<Part<T>>,
}

impl<T: FloatElement> Operands<T> {
    fn draw(case: &UpdateCase) -> Result<Self> {
        let UpdateCase { m, k, n, data, seed, .. } = *case;
        // The unit of uniform numbers, and of those that are factors of sums of so many products.
        let (unit, of_sum): (f64, fn(usize) -> f64) = if case.unit_scaled && data == Data::Uniform {
            (3f64.sqrt(), |length| (3.0 / length.max(1) as f64).sqrt())
        } else {
            (1.0, |_| 1.0)
        };
        let draw = |stream: u64, shape: (usize, usize), length: usize, factor: f64| -> Result<Array2<T>> {
            let drawn = data.draw(seed, stream, shape, length, f64::from)?;
            Ok(drawn.mapv(|value| T::round(value * factor)))
        };
        let x = draw(0, (m, k), k.max(SMALL_INTEGERS), unit)?;
        let w = case.linear.then(|| draw(1, (n, k), k, of_sum(k))).transpose()?;
        let bias = case.bias.then(|| draw(2, (1, n), k, unit)).transpose()?;
        let residual = (case.beta != 0.0).then(|| draw(3, (m, n), k, unit)).transpose()?;
        let mut parts = Vec::with_capacity(case.ranks.len());
        for (index, &rank) in case.ranks.iter().enumerate() {
            let stream = 4 + 4 * index as u64;
            let v = match data {
                Data::Integers => sparse(seed, stream, (k, rank))?.mapv(T::round),
                _ => draw(stream, (k, rank), k, of_sum(k))?,
            };
            let rows = m.div_ceil(case.rows_of_codes(index));
            let codes = match data {
                // 1 or 2, of both signs.
                Data::Integers => {
                    Data::Uniform.draw(seed, stream + 1, (rows, rank), 1, f64::from)?.mapv(|value| {
                        T::round(if value.abs() < 0.5 { value.signum() } else { 2.0 * value.signum() })
                    })
                }
                _ => draw(stream + 1, (rows, rank), case.rank(), unit)?,
            };
            let u = draw(stream + 2, (rank, n), SMALL_INTEGERS, of_sum(case.rank()))?;
            parts.push(Part { v, codes, u });
        }
        Ok(Self { x, w, bias: bias.map(|bias| bias.remove_axis(Axis(0))), residual, parts })
    }
}

/// A matrix of zeros, with a few elements 1 or −1 in each column.
fn sparse(seed: u64, stream: u64, (rows, columns): (usize, usize)) -> Result<Array2<f64>> {
    let mut matrix = filled((rows, columns), 0.0)?;
    if rows > 0 {
        let drawn = Data::Uniform.draw(seed, stream, (INTEGERS_OF_V, columns), 1, f64::from)?;
        for ((index, column), value) in drawn.indexed_iter() {
            let row = ((value + 1.0) / 2.0 * rows as f64) as usize;
            matrix[[row.min(rows - 1), column]] = if index % 2 == 0 { 1.0 } else { -1.0 };
        }
    }
    Ok(matrix)
}

/// The result of a case: the matrix that holds y, what else was stored, and what ran.
struct CaseResult<T> {
    surrounding: Array2<T>,
    mask: Option<Array2<u32>>,
    preactivation: Option<Array2<T>>,
    implementation: Implementation,
}

/// Copies `matrix` to the device as the columns of a matrix with NaNs beside them.
fn place<T: FloatElement>(device: &Device, matrix: &Array2<T>, placement: Placement) -> Result<Tensor<T>> {
    let columns = placement.before..placement.before + matrix.ncols();
    let mut surrounding = filled((matrix.nrows(), columns.end + placement.after), T::round(f64::NAN))?;
    surrounding.slice_mut(s![.., columns.clone()]).assign(matrix);
    Tensor::from_array(device, &surrounding)?.slice(1, columns)
}

/// The shape of `columns` columns for each row of x: with an axis for sequences, if there is one.
fn rows(case: &UpdateCase, columns: usize) -> Vec<usize> {
    match (case.has_sequences(), case.sequence) {
        (true, sequence) => vec![case.m / sequence, sequence, columns],
        (false, _) => vec![case.m, columns],
    }
}

/// The same elements with those axes.
fn in_axes<T: Element>(case: &UpdateCase, tensor: &Tensor<T>) -> Result<Tensor<T>> {
    tensor.reshape(rows(case, tensor.shape()[1]))
}

/// The operands of a case on its device, in the default stream's order.
struct Uploaded<T: Element> {
    x: Tensor<T>,
    w: Option<Tensor<T>>,
    bias: Option<Tensor<T>>,
    /// Where it is not what y holds.
    residual: Option<Tensor<T>>,
    /// V, codes and U of the first update, and of those after it.
    first: [Tensor<T>; 3],
    others: Vec<[Tensor<T>; 3]>,
}

/// What a case writes on its device.
struct Outputs<T: Element> {
    /// The matrix that y is columns of.
    surrounding: Tensor<T>,
    y: Tensor<T>,
    mask: Option<Tensor<u32>>,
    preactivation: Option<Tensor<T>>,
}

impl<T: UpdateInput + FloatElement> Outputs<T> {
    fn new(device: &Device, case: &UpdateCase, operands: &Operands<T>) -> Result<Self> {
        let UpdateCase { m, n, .. } = *case;
        let columns = case.y.before..case.y.before + n;
        let mut filler = filled((m, columns.end + case.y.after), T::round(SENTINEL))?;
        if let (Some(residual), true) = (&operands.residual, case.in_place) {
            filler.slice_mut(s![.., columns.clone()]).assign(residual);
        }
        let surrounding = Tensor::from_array(device, &filler)?;
        let y = in_axes(case, &surrounding.slice(1, columns)?)?;
        let mask = case.mask.then(|| Tensor::uninit(device, rows(case, n.div_ceil(32)))).transpose()?;
        let preactivation = case.preactivation.then(|| Tensor::uninit(device, rows(case, n))).transpose()?;
        Ok(Self { surrounding, y, mask, preactivation })
    }

    /// All memory that may be written, with what is beside the results.
    fn memory(&self) -> Result<Vec<Output>> {
        let mut all = vec![Output::new("y", &self.surrounding)?];
        all.extend(self.mask.as_ref().map(|mask| Output::new("mask", mask)).transpose()?);
        all.extend(self.preactivation.as_ref().map(|z| Output::new("preactivation", z)).transpose()?);
        Ok(all)
    }
}

impl<T: UpdateInput + FloatElement> Uploaded<T> {
    fn new(device: &Device, case: &UpdateCase, operands: &Operands<T>) -> Result<Self> {
        let mut parts = Vec::with_capacity(operands.parts.len());
        for (index, part) in operands.parts.iter().enumerate() {
            let v = if case.v_across {
                place(device, &part.v.t().to_owned(), case.factors)?.swap_axes(0, 1)?
            } else {
                place(device, &part.v, case.factors)?
            };
            let codes = Tensor::from_array(device, &part.codes)?;
            let (shared, rank) = (case.rows_of_codes(index), part.codes.ncols());
            let codes = match shared {
                1 => codes.reshape(rows(case, rank))?,
                // One row is given with axes or without.
                _ if part.codes.nrows() == 1 && case.seed.is_multiple_of(2) => codes.reshape([rank])?,
                _ => codes,
            };
            parts.push([v, codes, place(device, &part.u, case.factors)?]);
        }
        let mut parts = parts.into_iter();
        let first = parts.next().ok_or_else(|| Error::Argument {
            operation: OPERATION,
            argument: "ranks",
            expected: "at least one".into(),
            actual: "none".into(),
        })?;
        let apart = operands.residual.as_ref().filter(|_| case.linear && !case.in_place);
        let residual = |residual| in_axes(case, &Tensor::from_array(device, residual)?);
        Ok(Self {
            x: in_axes(case, &place(device, &operands.x, case.x)?)?,
            w: operands.w.as_ref().map(|w| place(device, w, case.w)).transpose()?,
            bias: operands.bias.as_ref().map(|bias| Tensor::from_array(device, bias)).transpose()?,
            residual: apart.map(residual).transpose()?,
            first,
            others: parts.collect(),
        })
    }

    /// Takes a step of the operation on these operands.
    fn step(&self, case: &UpdateCase, outputs: &mut Outputs<T>, step: Step) -> Result<Implementation> {
        let [v, codes, u] = &self.first;
        let others = self.others.iter().enumerate().map(|(index, part)| (part, case.scaling_of(index + 1)));
        let Some(w) = &self.w else {
            let mut op = ops::generated_update(&self.x, v, codes, u, case.scaling_of(0));
            for ([v, codes, u], scaling) in others {
                op = op.and(v, codes, u, scaling);
            }
            let y = &mut outputs.y;
            if op.implementation_as(Some(y), case.way).is_ok() {
                op = op.way(case.way);
            }
            return match step {
                Step::Ask => op.implementation_into(y),
                Step::Run if case.beta == 0.0 => op.run_into(y).map(|()| Implementation::Empty),
                Step::Run => op.add_to(y).map(|()| Implementation::Empty),
            };
        };
        let whole = outputs.y.clone();
        let mut op = ops::linear_with_update(&self.x, w, v, codes, u, case.scaling_of(0))
            .bias(&self.bias)
            .activation(case.activation);
        for ([v, codes, u], scaling) in others {
            op = op.and(v, codes, u, scaling);
        }
        if let Some(residual) = &self.residual {
            op = op.residual(residual, case.beta);
        } else if case.beta != 0.0 {
            op = op.residual(&whole, case.beta);
        }
        if let Some(mask) = &mut outputs.mask {
            op = op.relu_mask(mask);
        }
        if let Some(preactivation) = &mut outputs.preactivation {
            op = op.preactivation(preactivation);
        }
        if op.implementation_as(Some(&outputs.y), case.way).is_ok() {
            op = op.way(case.way);
        }
        match step {
            Step::Ask => op.implementation_into(&outputs.y),
            Step::Run => op.run_into(&mut outputs.y).map(|()| Implementation::Empty),
        }
    }
}

fn run_case<T>(device: &Device, case: &UpdateCase, operands: &Operands<T>) -> Result<CaseResult<T>>
where
    T: UpdateInput + FloatElement,
{
    let UpdateCase { m, n, .. } = *case;
    let uploaded = Uploaded::new(device, case, operands)?;
    let mut outputs = Outputs::new(device, case, operands)?;
    let implementation = uploaded.step(case, &mut outputs, Step::Ask)?;
    uploaded.step(case, &mut outputs, Step::Run)?;
    let Outputs { surrounding, mask, preactivation, .. } = outputs;
    let array = |tensor: &Tensor<T>, columns: usize| matrix((m, columns), tensor.to_vec()?);
    Ok(CaseResult {
        surrounding: array(&surrounding, case.y.before + n + case.y.after)?,
        mask: mask.map(|mask| matrix((m, n.div_ceil(32)), mask.to_vec()?)).transpose()?,
        preactivation: preactivation.map(|z| array(&z, n)).transpose()?,
        implementation,
    })
}

/// Prepares a case to be run again and again into one of `slots` outputs.
pub(super) fn prepare(device: &Device, case: &UpdateCase, slots: usize) -> Result<Prepared> {
    fn of_type<T: UpdateInput + FloatElement>(
        device: &Device,
        case: &UpdateCase,
        slots: usize,
    ) -> Result<Prepared> {
        let operands = Operands::<T>::draw(case)?;
        let uploaded = Uploaded::new(device, case, &operands)?;
        let outputs = (0..slots).map(|_| {
            let mut outputs = Outputs::new(device, case, &operands)?;
            // What is compared later holds something before it is written.
            if let Some(mask) = &mut outputs.mask {
                mask.write_slice(&vec![MASK_SENTINEL; mask.len()])?;
            }
            if let Some(z) = &mut outputs.preactivation {
                z.write_slice(&vec![T::round(SENTINEL); z.len()])?;
            }
            Ok(outputs)
        });
        let (of_slots, case) = (outputs.collect::<Result<Vec<_>>>()?, case.clone());
        Prepared::of_slots(of_slots, Outputs::memory, move |outputs, step| {
            uploaded.step(&case, outputs, step)
        })
    }
    const OPERATION: &str = "validate::load::Work::generated_update";
    case.check_sizes(OPERATION)?;
    match case.dtype {
        DType::F16 => of_type::<f16>(device, case, slots),
        DType::Bf16 => of_type::<bf16>(device, case, slots),
        DType::F32 => of_type::<f32>(device, case, slots),
        actual => {
            let expected = "f16, bf16 or f32".into();
            Err(Error::Type { operation: OPERATION, operand: "x", expected, actual })
        }
    }
}

fn matrix<U>(shape: (usize, usize), elements: Vec<U>) -> Result<Array2<U>> {
    Array2::from_shape_vec(shape, elements).map_err(|error| Error::Argument {
        operation: OPERATION,
        argument: "shape",
        expected: format!("{shape:?}"),
        actual: error.to_string(),
    })
}

fn check<T>(device: &Device, case: &UpdateCase) -> Result<Outcome>
where
    T: UpdateInput + FloatElement,
{
    let operands = Operands::<T>::draw(case)?;
    let result = run_case(device, case, &operands)?;
    let arithmetic = match device.kind() {
        DeviceKind::Cpu => Arithmetic::Cpu,
        _ => Arithmetic::TensorCore,
    };
    let is_sequence = case.rounds_between(&result.implementation);
    let beta = if case.beta == 0.0 { 1.0 } else { f64::from(case.beta) };
    let between = is_sequence.then_some(beta);
    let model = UpdateModel::new(arithmetic, case.dtype, case.k, case.rank(), between);
    let judged = model.of_sum(case.linear, case.activation);
    let y = result.surrounding.slice(s![.., case.y.before..case.y.before + case.n]);
    // Between two kernels the update is rounded.
    let mut tally = Tally::new(result.implementation, case.is_exact() && !is_sequence);
    for part in cover(case, &operands, &model)? {
        for (row, column, expected) in part {
            tally.outcome.compared += 1;
            let widened = |value: T| f64::from(value.to_f32());
            let rounded = |value: f64| widened(T::round(value));
            let judge = |got| judged.judge(got, expected);
            tally.add([row, column], widened(y[[row, column]]), [expected.y, rounded(expected.y)], judge);
            if let Some(z) = &result.preactivation {
                let judge = |got| judged.judge_argument(got, expected);
                tally.add([row, column], widened(z[[row, column]]), [expected.z, rounded(expected.z)], judge);
            }
            if let Some(mask) = &result.mask {
                let bit = mask[[row, column / 32]] >> (column % 32) & 1 == 1;
                // Where rounding may decide, either will do.
                let open = !tally.outcome.exact && expected.z.abs() <= judged.argument_error(expected);
                tally.outcome.failures += usize::from(bit != (expected.z > 0.0) && !open);
            }
        }
    }
    if let Some(mask) = result.mask.as_ref().filter(|_| !case.n.is_multiple_of(32) && case.n > 0) {
        let beyond = mask.column(case.n / 32).iter().filter(|&&word| word >> (case.n % 32) != 0).count();
        tally.outcome.failures += beyond;
    }
    let sentinel = T::round(SENTINEL);
    let beside = |view: ArrayView2<'_, T>| view.iter().filter(|&&value| value != sentinel).count();
    let end = case.y.before + case.n;
    tally.outcome.stray_writes = beside(result.surrounding.slice(s![.., ..case.y.before]))
        + beside(result.surrounding.slice(s![.., end..]));
    Ok(tally.finish())
}

/// Elements of the output with what is expected of them.
type References = Vec<(usize, usize, Expected)>;

/// What is expected of every element, or of those of sampled rows and of sampled columns where there are many.
fn cover<T>(case: &UpdateCase, operands: &Operands<T>, model: &UpdateModel) -> Result<Vec<References>>
where
    T: UpdateInput,
{
    let all = |count: usize| (0..count).collect::<Vec<_>>();
    let (m, n) = (case.m, case.n);
    if m == 0 || n == 0 {
        return Ok(Vec::new());
    }
    let work = m.saturating_mul(n).saturating_mul(case.k.max(1) + 3 * case.rank());
    let parts = if work <= FULL_WORK {
        vec![(all(m), all(n))]
    } else {
        vec![(sampled(m), all(n)), (all(m), sampled(n))]
    };
    parts.into_iter().map(|(rows, columns)| reference(case, operands, model, &rows, &columns)).collect()
}

fn reference<T>(
    case: &UpdateCase,
    operands: &Operands<T>,
    model: &UpdateModel,
    rows: &[usize],
    columns: &[usize],
) -> Result<References>
where
    T: UpdateInput,
{
    let x = operands.x.select(Axis(0), rows);
    let size = |array: &Array2<T>| array.mapv(|value| value.to_f32().abs());
    // Of each update: its operands, each row of x with codes of its own, and their magnitudes.
    let parts: Vec<_> = operands
        .parts
        .iter()
        .enumerate()
        .map(|(index, part)| {
            let shared = case.rows_of_codes(index);
            let of_rows: Vec<_> = rows.iter().map(|row| row / shared).collect();
            let (codes, u) = (part.codes.select(Axis(0), &of_rows), part.u.select(Axis(1), columns));
            let sizes = [size(&part.v), size(&codes), size(&u)];
            (&part.v, codes, u, sizes, case.scaling_of(index))
        })
        .collect();
    let updates: Vec<_> = parts
        .iter()
        .map(|(v, codes, u, _, scaling)| cpu::Update {
            v: v.view(),
            codes: codes.view(),
            rows: 1,
            u: u.view(),
            scaling: *scaling,
        })
        .collect();
    let sizes: Vec<_> = parts
        .iter()
        .map(|(_, _, _, [v, codes, u], scaling)| cpu::Update {
            v: v.view(),
            codes: codes.view(),
            rows: 1,
            u: u.view(),
            scaling: scaling.abs(),
        })
        .collect();
    let shape = (rows.len(), columns.len());
    let bias = operands.bias.as_ref().map(|bias| bias.select(Axis(0), columns));
    let residual = operands.residual.as_ref();
    let residual = residual.map(|residual| residual.select(Axis(0), rows).select(Axis(1), columns));
    let nothing = Array2::from_shape_fn((case.n, 0), |_| T::zeroed());
    let w = operands.w.as_ref().unwrap_or(&nothing).select(Axis(0), columns);
    let of_w = if case.linear { x.view() } else { x.slice(s![.., ..0]) };

    let mut z = filled(shape, 0f64)?;
    // Updates are of all of x, the product of what w has columns for.
    let h = cpu::rank_coordinates::<f64, T>(x.view(), &updates)?;
    let h_sizes = cpu::rank_coordinates::<f64, f32>(size(&x).view(), &sizes)?;
    let terms = LinearTerms::<T, T, f64> {
        bias: bias.as_ref().map(|bias| bias.view()),
        beta: case.beta,
        residual: residual.as_ref().map(|residual| residual.view()),
        ..LinearTerms::default()
    };
    cpu::linear::<f64, T, T, T, f64>(of_w, w.view(), terms, z.view_mut())?;
    let mut base = filled(shape, 0f64)?;
    let of_w = size(&of_w.to_owned());
    let plain = LinearTerms::<f32, f32, f64>::default();
    cpu::linear::<f64, f32, f32, f32, f64>(of_w.view(), size(&w).view(), plain, base.view_mut())?;

    let rank = h.ncols();
    let mut u = filled((rank, columns.len()), 0f64)?;
    for (mut target, source) in
        u.rows_mut().into_iter().zip(updates.iter().flat_map(|update| update.u.rows()))
    {
        target.iter_mut().zip(source).for_each(|(target, source)| *target = source.to_f32().into());
    }
    let sums_of_u = u.mapv(f64::abs).sum_axis(Axis(0));
    let activation = case.activation;
    let expected = (0..rows.len()).into_par_iter().flat_map_iter(|i| {
        let (mut delta, mut magnitude, mut size) =
            (vec![0.0; columns.len()], vec![0.0; columns.len()], vec![0.0; columns.len()]);
        for r in 0..rank {
            let (h, h_size) = (h[[i, r]], h_sizes[[i, r]]);
            for (j, &u) in u.row(r).iter().enumerate() {
                delta[j] += h * u;
                magnitude[j] += (h * u).abs();
                size[j] += h_size * u.abs();
            }
        }
        let (z, base, bias, residual) = (&z, &base, &bias, &residual);
        let sums_of_u = &sums_of_u;
        (0..columns.len()).map(move |j| {
            let z = z[[i, j]] + delta[j];
            let residual = residual
                .as_ref()
                .map_or(0.0, |residual| (f64::from(case.beta) * f64::from(residual[[i, j]].to_f32())).abs());
            let bias = bias.as_ref().map_or(0.0, |bias| f64::from(bias[j].to_f32()).abs());
            let expected = model.expected(Magnitudes {
                base: base[[i, j]],
                update: magnitude[j],
                size: size[j],
                sum_of_u: sums_of_u[j],
                residual,
            });
            let expected = Expected { z, y: activation.apply(z), added: bias + residual, ..expected };
            (rows[i], columns[j], expected)
        })
    });
    Ok(expected.collect())
}
