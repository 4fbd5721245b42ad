//! Gradients of generated low-rank updates, alone and onto linear operations.

use half::{bf16, f16};
use ndarray::{Array2, ArrayView2, Axis, concatenate, s};
use warpsmith::cpu::FromAccumulator;
use warpsmith::device::{Device, DeviceKind};
use warpsmith::error::{Error, Result};
use warpsmith::ops::column_sums::SumElement;
use warpsmith::ops::linear::LinearTypes;
use warpsmith::ops::update::{
    UpdateBackwardOp, UpdateGradientElement, UpdateGradientOutputs, UpdateGradientPlaces,
};
use warpsmith::ops::{self, Activation, Implementation, Precision};
use warpsmith::tensor::{DType, Tensor};

use super::Number;
use super::products::Gradient;
use crate::bound::backward::Near;
use crate::bound::{Arithmetic, ErrorModel, Expected, Rounding, U, lost_near_zero};
use crate::cases::{CodesPer, Data, Placement, SlopesFrom, UpdateBackwardCase, UpdateCase, split_mix};
use crate::validate::Outcome;
use crate::validate::load::{Output, Prepared, Step};
use crate::validate::placed::Placed;
use crate::validate::tally::Tally;

/// The operation's name in errors.
const OPERATION: &str = "validate::update_backward";
/// Elements of a column of V, and of a row of U, that are not zero with integer data, so that H and P stay exact in every type.
const FEW: usize = 8;
/// A length of sums for which integers are at most 3.
const SMALL_INTEGERS: usize = 1 << 18;

/// A type of operands, for gradients of type `W` of weights.
trait Input<W: Weight>: UpdateGradientElement + LinearTypes<W> + Number {}
impl<T: UpdateGradientElement + LinearTypes<W> + Number, W: Weight> Input<W> for T {}

/// A type of the gradients of weights.
trait Weight: SumElement + FromAccumulator<f32> + Number {}
impl<W: SumElement + FromAccumulator<f32> + Number> Weight for W {}

/// A type of the gradients of codes.
trait Code: SumElement + Number {}
impl<C: SumElement + Number> Code for C {}

/// Runs `$f::<T, W, C>` with the types of a case.
macro_rules! of_types {
    ($case:expr, $f:ident($($argument:expr),*)) => {
        match ($case.update.dtype, $case.gradient, $case.of_codes) {
            (DType::F16, DType::F16, DType::F16) => $f::<f16, f16, f16>($($argument),*),
            (DType::F16, DType::F16, DType::F32) => $f::<f16, f16, f32>($($argument),*),
            (DType::F16, DType::F32, DType::F16) => $f::<f16, f32, f16>($($argument),*),
            (DType::F16, DType::F32, DType::F32) => $f::<f16, f32, f32>($($argument),*),
            (DType::Bf16, DType::Bf16, DType::Bf16) => $f::<bf16, bf16, bf16>($($argument),*),
            (DType::Bf16, DType::Bf16, DType::F32) => $f::<bf16, bf16, f32>($($argument),*),
            (DType::Bf16, DType::F32, DType::Bf16) => $f::<bf16, f32, bf16>($($argument),*),
            (DType::Bf16, DType::F32, DType::F32) => $f::<bf16, f32, f32>($($argument),*),
            (DType::F32, DType::F32, DType::F32) => $f::<f32, f32, f32>($($argument),*),
            (input, gradient, of_codes) => {
                let is_known = matches!(input, DType::F16 | DType::Bf16 | DType::F32);
                let (operand, expected, actual) = match (is_known, gradient == input || gradient == DType::F32) {
                    (false, _) => ("x", "f16, bf16 or f32".into(), input),
                    (_, false) => ("dv", format!("{input} or f32"), gradient),
                    (_, true) => ("dcodes", format!("{input} or f32"), of_codes),
                };
                Err(Error::Type { operation: OPERATION, operand, expected, actual })
            }
        }
    };
}

/// Computes all gradients of one case on `device`, and compares each with the exact one.
///
/// # Errors
///
/// [`Error::Type`] if there are no such gradients for the case's types, [`Error::SizeLimit`] or [`Error::OutOfMemory`] if the host cannot hold its operands; otherwise
/// whatever the operation returns.
pub fn update_backward(device: &Device, case: &UpdateBackwardCase) -> Result<Outcome> {
    case.update.check_sizes(OPERATION)?;
    of_types!(case, check(device, case))
}

/// The bits of every result: to compare one device, or mode, with another.
///
/// # Errors
///
/// As [`update_backward`].
pub fn update_backward_bits(device: &Device, case: &UpdateBackwardCase) -> Result<Vec<u8>> {
    case.update.check_sizes(OPERATION)?;
    of_types!(case, bits(device, case))
}

/// Prepares a case to be run again and again into one of `slots` outputs.
pub(in crate::validate) fn prepare(
    device: &Device,
    case: &UpdateBackwardCase,
    slots: usize,
) -> Result<Prepared> {
    case.update.check_sizes(OPERATION)?;
    of_types!(case, prepared(device, case, slots))
}

/// Numbers of a stream, rounded to a type.
fn draw<U: Number>(case: &UpdateCase, stream: u64, shape: (usize, usize), size: f64) -> Result<Array2<U>> {
    let drawn = case.data.draw(case.seed, stream, shape, SMALL_INTEGERS, f64::from)?;
    let size = if case.data == Data::Integers { 1.0 } else { size };
    Ok(drawn.mapv(|number| U::round(size * number)))
}

/// The operands of one update on the host.
struct Part<T> {
    v: Array2<T>,
    codes: Array2<T>,
    u: Array2<T>,
}

/// What a case reads, on the host.
struct Operands<T> {
    x: Array2<T>,
    w: Array2<T>,
    dy: Array2<T>,
    /// The activation's argument.
    z: Array2<T>,
    parts: Vec<Part<T>>,
}

impl<T: Number> Operands<T> {
    fn draw(case: &UpdateCase) -> Result<Self> {
        let &UpdateCase { m, k, n, .. } = case;
        let mut parts = Vec::with_capacity(case.ranks.len());
        for (index, &rank) in case.ranks.iter().enumerate() {
            let stream = 16 + 4 * index as u64;
            let groups = codes_shape(case, index).iter().product::<usize>() / rank.max(1);
            let (v, codes, u) = if case.data == Data::Integers {
                let signs = UpdateCase { data: Data::Uniform, ..case.clone() };
                let signs = draw::<f32>(&signs, stream + 1, (groups, rank), 1.0)?;
                // 1 or 2, of both signs.
                let code = |sign: f32| {
                    T::round(f64::from(if sign.abs() < 0.5 { sign.signum() } else { 2.0 * sign.signum() }))
                };
                let u = few(case.seed, stream + 2, (n, rank))?.reversed_axes();
                (few(case.seed, stream, (k, rank))?.mapv(T::round), signs.mapv(code), u.mapv(T::round))
            } else {
                let codes = draw(case, stream + 1, (groups, rank), 1.0)?;
                (draw(case, stream, (k, rank), 1.0)?, codes, draw(case, stream + 2, (rank, n), 1.0)?)
            };
            parts.push(Part { v, codes, u });
        }
        let w = if case.linear { (n, k) } else { (n, 0) };
        Ok(Self {
            x: draw(case, 0, (m, k), 1.0)?,
            w: draw(case, 1, w, 1.0)?,
            dy: draw(case, 2, (m, n), 1.0)?,
            z: draw(case, 3, (m, n), 4.0)?,
            parts,
        })
    }
}

/// A matrix of zeros, with a few elements 1 or −1 in each column.
fn few(seed: u64, stream: u64, (rows, columns): (usize, usize)) -> Result<Array2<f64>> {
    let mut matrix = Array2::zeros((rows, columns));
    if rows > 0 {
        for column in 0..columns {
            for index in 0..FEW {
                let bits = split_mix(split_mix(seed, stream), (column * FEW + index) as u64);
                let row = (bits >> 8) as usize % rows;
                matrix[[row, column]] = if bits & 1 == 0 { 1.0 } else { -1.0 };
            }
        }
    }
    Ok(matrix)
}

fn placed<U: Number>(device: &Device, held: &Array2<U>, placement: Placement) -> Result<Placed<U>> {
    Placed::new(device, Some(held), held.dim(), U::round(77.0), placement)
}

/// What a case reads, on its device.
struct Uploaded<T: Number> {
    x: Tensor<T>,
    w: Tensor<T>,
    dy: Tensor<T>,
    /// The activation's argument, or its value.
    z: Tensor<T>,
    mask: Tensor<u32>,
    /// V, codes and U of each update.
    parts: Vec<[Tensor<T>; 3]>,
}

impl<T: UpdateGradientElement + Number> Uploaded<T> {
    fn new(device: &Device, case: &UpdateBackwardCase, operands: &Operands<T>) -> Result<Self> {
        let update = &case.update;
        let (m, n) = (update.m, update.n);
        let full = |columns: usize| full_shape(update, columns);
        let told = match case.slopes {
            SlopesFrom::Output => operands.z.mapv(|z| if z.widen() > 0.0 { z } else { T::round(0.0) }),
            _ => operands.z.clone(),
        };
        let mut words = Array2::<u32>::zeros((m, n.div_ceil(32)));
        for ((row, column), z) in operands.z.indexed_iter() {
            words[[row, column / 32]] |= u32::from(z.widen() > 0.0) << (column % 32);
        }
        let parts = operands.parts.iter().enumerate().map(|(index, part)| {
            let factor = |matrix: &Array2<T>| {
                placed(device, matrix, update.factors)?.tensor(&|columns| vec![matrix.nrows(), columns])
            };
            let v = if update.v_across {
                factor(&part.v.t().as_standard_layout().to_owned())?.swap_axes(0, 1)?
            } else {
                factor(&part.v)?
            };
            let codes = Tensor::from_array(device, &part.codes)?;
            Ok([v, codes.reshape(codes_shape(update, index))?, factor(&part.u)?])
        });
        Ok(Self {
            x: placed(device, &operands.x, update.x)?.tensor(&full)?,
            w: placed(device, &operands.w, update.w)?.tensor(&|columns| vec![n, columns])?,
            dy: placed(device, &operands.dy, update.y)?.tensor(&full)?,
            z: placed(device, &told, update.y)?.tensor(&full)?,
            mask: Tensor::from_array(device, &words)?.reshape(full(n.div_ceil(32)))?,
            parts: parts.collect::<Result<_>>()?,
        })
    }

    fn operation(&self, case: &UpdateBackwardCase) -> UpdateBackwardOp<'_, T> {
        let update = &case.update;
        let [v, codes, u] = &self.parts[0];
        let scaling = update.scaling_of(0);
        let mut operation = if update.linear {
            let operation =
                ops::linear_with_update_backward(&self.x, &self.w, v, codes, u, scaling, &self.dy)
                    .activation(update.activation)
                    .residual(update.beta);
            match case.slopes {
                SlopesFrom::Preactivation => operation.preactivation(&self.z),
                SlopesFrom::Mask => operation.relu_mask(&self.mask),
                SlopesFrom::Output => operation.output(&self.z),
            }
        } else {
            ops::generated_update_backward(&self.x, v, codes, u, scaling, &self.dy)
        };
        for (index, [v, codes, u]) in self.parts.iter().enumerate().skip(1) {
            operation = operation.and(v, codes, u, update.scaling_of(index));
        }
        operation
    }
}

/// The shape of rows with so many columns.
fn full_shape(case: &UpdateCase, columns: usize) -> Vec<usize> {
    if case.has_sequences() {
        vec![case.m / case.sequence, case.sequence, columns]
    } else {
        vec![case.m, columns]
    }
}

/// The shape of an update's codes.
fn codes_shape(case: &UpdateCase, index: usize) -> Vec<usize> {
    let rank = case.ranks[index];
    let per = match (case.codes, index % 3) {
        (CodesPer::Mixed, 0) => CodesPer::Token,
        (CodesPer::Mixed, 1) => CodesPer::Sequence,
        (CodesPer::Mixed, _) => CodesPer::Operation,
        (per, _) => per,
    };
    match per {
        CodesPer::Token => full_shape(case, rank),
        CodesPer::Sequence if case.has_sequences() => vec![case.m / case.sequence, rank],
        _ => vec![rank],
    }
}

/// The gradients of one update.
struct OfUpdate<W: Number, C: Number> {
    dv: Tensor<W>,
    dcodes: Tensor<C>,
    du: Tensor<W>,
}

/// What a case writes.
struct Written<T: Number, W: Number, C: Number> {
    dx: Placed<T>,
    db: Tensor<W>,
    dresidual: Tensor<T>,
    updates: Vec<OfUpdate<W, C>>,
}

/// What gradients are added to: of x, of the bias, and of V, codes and U of each update.
struct Before<T, W, C> {
    dx: Array2<T>,
    db: Array2<W>,
    updates: Vec<(Array2<W>, Array2<C>, Array2<W>)>,
}

impl<T: Number, W: Number, C: Number> Before<T, W, C> {
    /// NaNs where nothing is added.
    fn draw(case: &UpdateBackwardCase, operands: &Operands<T>) -> Result<Self> {
        let &UpdateCase { m, k, n, .. } = &case.update;
        fn of<U: Number>(case: &UpdateBackwardCase, stream: u64, shape: (usize, usize)) -> Result<Array2<U>> {
            if case.adds {
                return draw(&case.update, stream, shape, 1.0);
            }
            Ok(Array2::from_elem(shape, U::round(f64::NAN)))
        }
        let updates = operands.parts.iter().enumerate().map(|(index, Part { v, codes, u })| {
            let stream = 64 + 4 * index as u64;
            Ok((
                of(case, stream, v.dim())?,
                of(case, stream + 1, codes.dim())?,
                of(case, stream + 2, u.dim())?,
            ))
        });
        Ok(Self {
            dx: of(case, 6, (m, k))?,
            db: of(case, 7, (1, n))?,
            updates: updates.collect::<Result<_>>()?,
        })
    }
}

impl<T: Number, W: Number, C: Number> Written<T, W, C> {
    fn new(device: &Device, case: &UpdateBackwardCase, before: &Before<T, W, C>) -> Result<Self> {
        let (m, n) = (case.update.m, case.update.n);
        let updates = before.updates.iter().enumerate().map(|(index, (dv, dcodes, du))| {
            let dcodes = Tensor::from_array(device, dcodes)?.reshape(codes_shape(&case.update, index))?;
            Ok(OfUpdate { dv: Tensor::from_array(device, dv)?, dcodes, du: Tensor::from_array(device, du)? })
        });
        Ok(Self {
            dx: placed(device, &before.dx, case.update.x)?,
            db: Tensor::from_array(device, &before.db)?.reshape([n])?,
            dresidual: Tensor::from_slice(
                device,
                &vec![T::round(f64::NAN); m * n],
                full_shape(&case.update, n),
            )?,
            updates: updates.collect::<Result<_>>()?,
        })
    }

    fn run(&mut self, operation: &UpdateBackwardOp<'_, T>, case: &UpdateBackwardCase) -> Result<()>
    where
        T: Input<W>,
        W: Weight,
        C: Code,
    {
        let mut dx = self.dx.tensor(&|columns| full_shape(&case.update, columns))?;
        let places = self.updates.iter_mut().map(|of| UpdateGradientPlaces {
            dv: Some(&mut of.dv),
            dcodes: Some(&mut of.dcodes),
            du: Some(&mut of.du),
        });
        let is_linear = case.update.linear;
        operation.run_into(UpdateGradientOutputs {
            dx: Some(&mut dx),
            updates: places.collect(),
            db: is_linear.then_some(&mut self.db),
            dresidual: is_linear.then_some(&mut self.dresidual),
            dz: None,
            adds: case.adds,
            adds_dcodes: case.adds,
            adds_dx: case.adds,
        })
    }
}

fn matrix<U: Number>(tensor: &Tensor<U>, shape: (usize, usize)) -> Result<Array2<f64>> {
    let numbers = tensor.to_vec()?.into_iter().map(|element| element.widen()).collect();
    Array2::from_shape_vec(shape, numbers).map_err(|error| shape_error(shape, &error))
}

fn shape_error(expected: impl std::fmt::Debug, error: &ndarray::ShapeError) -> Error {
    let (expected, actual) = (format!("{expected:?}"), error.to_string());
    Error::Argument { operation: OPERATION, argument: "shape", expected, actual }
}

fn wide<U: Number>(matrix: &Array2<U>) -> Array2<f64> {
    matrix.mapv(|element| element.widen())
}

fn rounded<U: Number>(number: f64) -> f64 {
    U::round(number).widen()
}

/// `left · right` of numbers that are off, with sums as `model` has them, before they are rounded: `[rows, columns]`.
fn near_product(
    left: &Array2<Near>,
    right: ArrayView2<'_, f64>,
    input: DType,
    model: &ErrorModel,
) -> Array2<Near> {
    let sizes = right.mapv(f64::abs);
    let exact = left.mapv(|near| near.exact).dot(&right);
    let inner = left.mapv(|near| near.error).dot(&sizes);
    let left_sizes = left.mapv(|near| near.exact.abs() + near.error);
    let magnitude = left_sizes.dot(&sizes);
    let (of_rows, of_columns) = (left_sizes.sum_axis(Axis(1)), sizes.sum_axis(Axis(0)));
    Array2::from_shape_fn(exact.dim(), |at| {
        let y = exact[at];
        let lost = lost_near_zero(input) * (of_rows[at.0] + of_columns[at.1]);
        let (magnitude, inner) = (magnitude[at], inner[at]);
        let expected = Expected { z: y, y, magnitude, factor: 1.0, added: 0.0, inner, lost };
        Near { exact: y, error: model.argument_error(expected) }
    })
}

fn check<T: Input<W>, W: Weight, C: Code>(device: &Device, case: &UpdateBackwardCase) -> Result<Outcome> {
    let update = &case.update;
    let &UpdateCase { m, k, n, linear, .. } = update;
    let activation = if linear { update.activation } else { Activation::None };
    let operands = Operands::<T>::draw(update)?;
    let uploaded = Uploaded::new(device, case, &operands)?;
    let before = Before::<T, W, C>::draw(case, &operands)?;
    let mut written = Written::new(device, case, &before)?;
    let operation = uploaded.operation(case);
    let implementation = operation.implementation()?;
    written.run(&operation, case)?;

    let mut tally = Tally::new(implementation, case.is_exact());
    let gradient = Array2::from_shape_fn((m, n), |at| {
        Near::gradient(operands.dy[at].widen(), activation.derivative(operands.z[at].widen()), activation)
    });
    if linear {
        let residual = matrix(&written.dresidual, (m, n))?;
        for ((at, &got), &dz) in residual.indexed_iter().zip(&gradient) {
            let expected = dz.times(f64::from(update.beta), if update.beta.abs() == 1.0 { 0.0 } else { 1.0 });
            let exact = [expected.exact, rounded::<T>(expected.exact)];
            tally.add([at.0, at.1], got, exact, |got| expected.judge(got, T::DTYPE));
        }
        for (column, got) in written.db.to_vec()?.into_iter().enumerate() {
            let there = if case.adds { before.db[[0, column]].widen() } else { 0.0 };
            let expected = Near::sum(gradient.column(column).iter().copied(), there);
            let exact = [expected.exact, rounded::<W>(expected.exact)];
            tally.add([0, column], got.widen(), exact, |got| expected.judge(got, W::DTYPE));
        }
        tally.outcome.compared += m * n + n;
    }
    let dz = match activation {
        Activation::None => gradient,
        _ => gradient.mapv(|dz| dz.rounded(T::DTYPE)),
    };
    let model = |length: usize, output: DType| {
        let arithmetic = match device.kind() {
            DeviceKind::Cpu => Arithmetic::Cpu,
            _ => Arithmetic::on_tensor_cores(T::DTYPE, length, Precision::Full),
        };
        // The claim is one about exact operands.
        ErrorModel::new(arithmetic, T::DTYPE, output, length, 1.0, Activation::None).without_claim()
    };
    let exactly = |matrix: &Array2<T>| matrix.mapv(|element| Near { exact: element.widen(), error: 0.0 });
    let (x, x_near) = (wide(&operands.x), exactly(&operands.x));
    let (dz_exact, dz_errors) = (dz.mapv(|near| near.exact), dz.mapv(|near| near.error));
    let dz_errors = (activation != Activation::None).then_some(dz_errors);
    let mut all_dh = Array2::from_elem((m, 0), Near::default());
    let mut all_v = Array2::zeros((k, 0));
    for (index, part) in operands.parts.iter().enumerate() {
        let (rank, rows, scaling) =
            (update.ranks[index], update.rows_of_codes(index), f64::from(update.scaling_of(index)));
        let (v, codes, u) = (wide(&part.v), wide(&part.codes), wide(&part.u));
        let h = near_product(&x_near, v.view(), T::DTYPE, &model(k, DType::F32));
        let p = near_product(&dz, u.t(), T::DTYPE, &model(n, DType::F32));
        let modulated = |side: &Array2<Near>| {
            Array2::from_shape_fn((m, rank), |(row, r)| {
                side[[row, r]].times(scaling * codes[[row / rows, r]], 2.0).rounded(T::DTYPE)
            })
        };
        let (a, dh) = (modulated(&h), modulated(&p));
        let (dv0, dcodes0, du0) = &before.updates[index];
        let of = &written.updates[index];

        let dcodes = matrix(&of.dcodes, codes.dim())?;
        for ((at, &got), there) in dcodes.indexed_iter().zip(dcodes0) {
            let terms = (at.0 * rows..m.min((at.0 + 1) * rows)).map(|row| {
                let (h, p) = (h[[row, at.1]], p[[row, at.1]]);
                let exact = h.exact * p.exact;
                let most = (h.exact.abs() + h.error) * (p.exact.abs() + p.error);
                Near { exact, error: most - exact.abs() }.times(scaling, 2.0)
            });
            let expected = Near::sum(terms, if case.adds { there.widen() } else { 0.0 });
            let exact = [expected.exact, rounded::<C>(expected.exact)];
            tally.add([at.0, at.1], got, exact, |got| expected.judge(got, C::DTYPE));
        }
        tally.outcome.compared += codes.len();

        let [dv0, du0] = [dv0, du0].map(|before| case.adds.then(|| wide(before)));
        let dz_errors = dz_errors.as_ref().map(|errors| errors.t());
        let of_u = Gradient {
            left: a.t(),
            right: dz_exact.t(),
            right_errors: dz_errors,
            alpha: 1.0,
            factors: None,
            least: [0.0; 2],
            before: du0.as_ref(),
            between: None,
            input: T::DTYPE,
            model: model(m, W::DTYPE),
            round: rounded::<W>,
        };
        of_u.judge(&mut tally, matrix(&of.du, (rank, n))?.view(), 0);
        // Transposed: `Gradient` has the numbers that are off on the left.
        let dv0 = dv0.map(Array2::reversed_axes);
        let of_v = Gradient { left: dh.t(), right: x.t(), right_errors: None, before: dv0.as_ref(), ..of_u };
        of_v.judge(&mut tally, matrix(&of.dv, (k, rank))?.t(), 0);

        // What is rounded before the linear operation's is added.
        let between = if linear {
            let relative = Rounding::of(T::DTYPE).relative + 5.0 * U;
            dh.mapv(|near| Near { error: near.error + (near.exact.abs() + near.error) * relative, ..near })
        } else {
            dh
        };
        let beside = |left: ArrayView2<'_, f64>, right: ArrayView2<'_, f64>| {
            concatenate(Axis(1), &[left, right]).map_err(|error| shape_error("as many rows", &error))
        };
        all_v = beside(all_v.view(), v.view())?;
        all_dh = concatenate(Axis(1), &[all_dh.view(), between.view()])
            .map_err(|error| shape_error("as many rows", &error))?;
    }
    let (mut left, mut right) = (all_dh, all_v);
    if linear {
        let w = wide(&operands.w);
        left = concatenate(Axis(1), &[left.view(), dz.view()]).map_err(|error| shape_error(m, &error))?;
        right = concatenate(Axis(1), &[right.view(), w.t()]).map_err(|error| shape_error(k, &error))?;
    }
    let dx0 = case.adds.then(|| wide(&before.dx));
    let of_x = Gradient {
        left: left.view(),
        right: right.view(),
        right_errors: None,
        alpha: 1.0,
        factors: None,
        least: [0.0; 2],
        before: dx0.as_ref(),
        between: linear.then_some(T::DTYPE),
        input: T::DTYPE,
        model: model(left.ncols(), T::DTYPE),
        round: rounded::<T>,
    };
    let dx = written.dx.read()?;
    tally.outcome.stray_writes = dx.strays();
    of_x.judge(&mut tally, dx.inside().mapv(|element| element.widen()).slice(s![.., ..]), 0);
    Ok(tally.finish())
}

fn bits<T: Input<W>, W: Weight, C: Code>(device: &Device, case: &UpdateBackwardCase) -> Result<Vec<u8>> {
    let operands = Operands::<T>::draw(&case.update)?;
    let uploaded = Uploaded::new(device, case, &operands)?;
    let mut written = Written::new(device, case, &Before::<T, W, C>::draw(case, &operands)?)?;
    written.run(&uploaded.operation(case), case)?;
    let mut all = bytemuck::cast_slice(&written.dx.all().to_vec()?).to_vec();
    all.extend_from_slice(bytemuck::cast_slice(&written.db.to_vec()?));
    all.extend_from_slice(bytemuck::cast_slice(&written.dresidual.to_vec()?));
    for OfUpdate { dv, dcodes, du } in &written.updates {
        all.extend_from_slice(bytemuck::cast_slice(&dv.to_vec()?));
        all.extend_from_slice(bytemuck::cast_slice(&dcodes.to_vec()?));
        all.extend_from_slice(bytemuck::cast_slice(&du.to_vec()?));
    }
    Ok(all)
}

fn prepared<T: Input<W>, W: Weight, C: Code>(
    device: &Device,
    case: &UpdateBackwardCase,
    slots: usize,
) -> Result<Prepared> {
    // What is added to would be another number each time.
    let case = UpdateBackwardCase { adds: false, ..case.clone() };
    let operands = Operands::<T>::draw(&case.update)?;
    let uploaded = Uploaded::new(device, &case, &operands)?;
    let before = Before::<T, W, C>::draw(&case, &operands)?;
    let of_slots = (0..slots).map(|_| Written::new(device, &case, &before)).collect::<Result<Vec<_>>>()?;
    let is_linear = case.update.linear;
    let memory = move |written: &Written<T, W, C>| {
        let mut all = vec![Output::new("dx", written.dx.all())?];
        if is_linear {
            all.push(Output::new("db", &written.db)?);
            all.push(Output::new("dresidual", &written.dresidual)?);
        }
        for OfUpdate { dv, dcodes, du } in &written.updates {
            all.extend([Output::new("dv", dv)?, Output::new("dcodes", dcodes)?, Output::new("du", du)?]);
        }
        Ok(all)
    };
    Prepared::of_slots(of_slots, memory, move |written, step| {
        let operation = uploaded.operation(&case);
        match step {
            Step::Ask => operation.implementation(),
            Step::Run => written.run(&operation, &case).map(|()| Implementation::Empty),
        }
    })
}
