//! Gradients of scaled linear layers.

use float8::{F8E4M3, F8E5M2};
use half::{bf16, f16};
use ndarray::{Array2, s};
use warpsmith::cpu::{FromAccumulator, Operand};
use warpsmith::device::{Device, DeviceKind};
use warpsmith::error::{Error, Result};
use warpsmith::ops::column_sums::SumElement;
use warpsmith::ops::linear::LinearTypes;
use warpsmith::ops::scaled::{
    ScaledBackwardOp, ScaledGradient, ScaledGradientOutputs, ScaledInput, ScaledOutput,
};
use warpsmith::ops::{self, Activation, Implementation, Precision, Scale};
use warpsmith::tensor::{DType, Element, Tensor};
use warpsmith::weights::FloatElement;

use super::Number;
use super::products::Gradient;
use crate::bound::backward::Near;
use crate::bound::{Arithmetic, ErrorModel};
use crate::cases::{Data, Placement, ScaleKind, ScaledBackwardCase, ScaledCase};
use crate::validate::Outcome;
use crate::validate::load::{Output, Prepared, Step};
use crate::validate::product::{Stored, place};
use crate::validate::tally::Tally;

/// The operation's name in errors.
const OPERATION: &str = "validate::scaled_backward";
/// A length of sums for which integers are at most 3.
const SMALL_INTEGERS: usize = 1 << 18;

/// A type of gradients.
trait Result_: ScaledOutput + SumElement + FromAccumulator<f32> + Number {}
impl<O: ScaledOutput + SumElement + FromAccumulator<f32> + Number> Result_ for O {}

/// An 8-bit type of operands.
trait Input: ScaledInput + FloatElement {}
impl<T: ScaledInput + FloatElement> Input for T {}

/// A type of dy.
trait Dy: ScaledGradient + FloatElement + Operand {}
impl<D: ScaledGradient + FloatElement + Operand> Dy for D {}

/// Runs `$f::<X, W, D, A, B>` with the types of a case.
macro_rules! of_types {
    ($case:expr, $f:ident($($argument:expr),*)) => {{
        macro_rules! results {
            ($x:ty, $d:ty) => {
                match $case.product.output {
                    DType::Bf16 => $f::<$x, F8E4M3, $d, bf16, f32>($($argument),*),
                    DType::F32 => $f::<$x, F8E4M3, $d, f32, bf16>($($argument),*),
                    actual => wrong_type("dx", "bf16 or f32", actual),
                }
            };
        }
        macro_rules! gradient {
            ($x:ty) => {
                match $case.dy_type {
                    DType::F8E4M3 => results!($x, F8E4M3),
                    DType::F8E5M2 => results!($x, F8E5M2),
                    DType::F16 => results!($x, f16),
                    DType::Bf16 => results!($x, bf16),
                    DType::F32 => results!($x, f32),
                    actual => wrong_type("dy", "f8e4m3, f8e5m2, f16, bf16 or f32", actual),
                }
            };
        }
        match ($case.product.x_type, $case.product.w_type) {
            (DType::F8E4M3, DType::F8E4M3) => gradient!(F8E4M3),
            (DType::F8E5M2, DType::F8E4M3) => gradient!(F8E5M2),
            (DType::F8E4M3 | DType::F8E5M2, actual) => wrong_type("w", "f8e4m3", actual),
            (actual, _) => wrong_type("x", "f8e4m3 or f8e5m2", actual),
        }
    }};
}

fn wrong_type<R>(operand: &'static str, expected: &str, actual: DType) -> Result<R> {
    Err(Error::Type { operation: OPERATION, operand, expected: expected.into(), actual })
}

/// Computes all gradients of one case on `device`, and compares each with the exact one.
///
/// # Errors
///
/// [`Error::Type`] if the case's types are none that are validated, [`Error::SizeLimit`] if the host cannot hold its operands; otherwise whatever the operation returns.
pub fn scaled_backward(device: &Device, case: &ScaledBackwardCase) -> Result<Outcome> {
    case.product.check(OPERATION)?;
    of_types!(case, check(device, case))
}

/// The bits of every result: to compare one device, or mode, with another.
///
/// # Errors
///
/// As [`scaled_backward`].
pub fn scaled_backward_bits(device: &Device, case: &ScaledBackwardCase) -> Result<Vec<u8>> {
    case.product.check(OPERATION)?;
    of_types!(case, bits(device, case))
}

/// Prepares a case to be run again and again into one of `slots` outputs.
pub(in crate::validate) fn prepare(
    device: &Device,
    case: &ScaledBackwardCase,
    slots: usize,
) -> Result<Prepared> {
    case.product.check(OPERATION)?;
    of_types!(case, prepared(device, case, slots))
}

fn draw<U: FloatElement>(case: &ScaledCase, stream: u64, shape: (usize, usize)) -> Result<Array2<U>> {
    case.data.draw(case.seed, stream, shape, SMALL_INTEGERS, |number| U::round(number.into()))
}

/// What a case reads, on the host. Scales have a number for each row, whatever they are.
struct Operands<X, W, D> {
    x: Array2<X>,
    w: Array2<W>,
    dy: Array2<D>,
    /// Of x, w and dy.
    scales: [Vec<f32>; 3],
    kinds: [ScaleKind; 3],
}

impl<X: FloatElement, W: FloatElement, D: FloatElement> Operands<X, W, D> {
    fn draw(case: &ScaledBackwardCase) -> Result<Self> {
        let product = &case.product;
        let &ScaledCase { m, k, n, .. } = product;
        let of_dy = if case.has_8_bits() { case.dy_scale } else { ScaleKind::One };
        let kinds = [product.x_scale, product.w_scale, of_dy];
        let scale = |which: usize, count: usize| -> Result<Vec<f32>> {
            let drawn =
                Data::Uniform.draw(product.seed, 8 + which as u64, (1, count.max(1)), 1, |number| number)?;
            // With integers powers of two, that keep every result exact.
            let number = |&number: &f32| match product.data {
                Data::Integers => [0.25, 0.5, 1.0, 0.5][((number + 1.0) * 2.0) as usize & 3],
                _ => 1.5 * number + 0.01,
            };
            let all: Vec<f32> = drawn.iter().map(number).collect();
            Ok(match kinds[which] {
                ScaleKind::One => vec![1.0; count],
                ScaleKind::Rows => all[..count].to_vec(),
                _ => vec![all[0]; count.max(1)],
            })
        };
        Ok(Self {
            x: draw(product, 0, (m, k))?,
            w: draw(product, 1, (n, k))?,
            dy: draw(product, 2, (m, n))?,
            scales: [scale(0, m)?, scale(1, n)?, scale(2, m)?],
            kinds,
        })
    }

    /// A factor of a row's numbers: of scales on the host, or of those that tensors have.
    fn factor(&self, which: usize, row: usize, on_host: bool) -> f64 {
        match self.kinds[which] {
            ScaleKind::One => 1.0,
            ScaleKind::Tensor if on_host => self.scales[which][0].into(),
            ScaleKind::Device if !on_host => self.scales[which][0].into(),
            ScaleKind::Rows if !on_host => self.scales[which].get(row).map_or(1.0, |&scale| scale.into()),
            _ => 1.0,
        }
    }

    fn has_tensor(&self, which: usize) -> bool {
        matches!(self.kinds[which], ScaleKind::Device | ScaleKind::Rows)
    }
}

/// What a case reads, on its device.
struct Uploaded<X: Element, W: Element, D: Element> {
    x: Tensor<X>,
    w: Tensor<W>,
    dy: Tensor<D>,
    /// Those that the device has.
    scales: [Option<Tensor<f32>>; 3],
    /// The first number of each.
    firsts: [f32; 3],
    kinds: [ScaleKind; 3],
}

impl<X: Input, W: Input, D: Dy> Uploaded<X, W, D> {
    fn new(device: &Device, case: &ScaledBackwardCase, operands: &Operands<X, W, D>) -> Result<Self> {
        let product = &case.product;
        let stored = |rows, across, placement: Placement| Stored {
            batch: 1,
            rows,
            batch_axis: false,
            across,
            turned_back: true,
            placement,
        };
        let scale = |which: usize| {
            let scales = &operands.scales[which];
            match operands.kinds[which] {
                ScaleKind::Device => Tensor::from_slice(device, &scales[..1], [1]).map(Some),
                ScaleKind::Rows => Tensor::from_slice(device, scales, [scales.len()]).map(Some),
                _ => Ok(None),
            }
        };
        let [x_across, w_across] = product.across;
        Ok(Self {
            x: place(device, &operands.x, stored(product.m, x_across, product.x))?,
            w: place(device, &operands.w, stored(product.n, w_across, product.w))?,
            dy: place(device, &operands.dy, stored(product.m, false, product.y))?,
            scales: [scale(0)?, scale(1)?, scale(2)?],
            firsts: operands.scales.each_ref().map(|scales| scales.first().copied().unwrap_or(1.0)),
            kinds: operands.kinds,
        })
    }

    fn operation(&self, case: &ScaledBackwardCase) -> ScaledBackwardOp<'_, X, W, D> {
        let scale = |which: usize| match (self.kinds[which], &self.scales[which]) {
            (ScaleKind::Tensor, _) => Scale::Tensor(self.firsts[which]),
            (ScaleKind::Device, Some(scale)) => Scale::Device(scale),
            (ScaleKind::Rows, Some(scale)) => Scale::Rows(scale),
            _ => Scale::One,
        };
        ops::linear_scaled_backward(&self.x, &self.w, &self.dy)
            .x_scale(scale(0))
            .w_scale(scale(1))
            .dy_scale(scale(2))
            .alpha(case.product.alpha)
    }
}

/// What a case writes: of x, of w, and of the bias.
struct Written<A: Element, B: Element> {
    dx: Tensor<A>,
    dw: Tensor<B>,
    db: Tensor<B>,
}

/// What gradients are added to; NaNs where they are not.
struct Before<A, B> {
    dx: Array2<A>,
    dw: Array2<B>,
    db: Array2<B>,
}

impl<A: Result_, B: Result_> Before<A, B> {
    fn draw(case: &ScaledBackwardCase) -> Result<Self> {
        fn of<U: Number>(case: &ScaledBackwardCase, stream: u64, shape: (usize, usize)) -> Result<Array2<U>> {
            if case.adds {
                return draw(&case.product, stream, shape);
            }
            Ok(Array2::from_elem(shape, U::round(f64::NAN)))
        }
        let &ScaledCase { m, k, n, .. } = &case.product;
        Ok(Self { dx: of(case, 16, (m, k))?, dw: of(case, 17, (n, k))?, db: of(case, 18, (1, n))? })
    }
}

impl<A: Result_, B: Result_> Written<A, B> {
    fn new(device: &Device, before: &Before<A, B>) -> Result<Self> {
        let n = before.db.ncols();
        Ok(Self {
            dx: Tensor::from_array(device, &before.dx)?,
            dw: Tensor::from_array(device, &before.dw)?,
            db: Tensor::from_array(device, &before.db)?.reshape([n])?,
        })
    }

    fn run<X, W, D>(
        &mut self,
        operation: &ScaledBackwardOp<'_, X, W, D>,
        case: &ScaledBackwardCase,
    ) -> Result<()>
    where
        X: Input,
        W: Input,
        D: ScaledGradient,
        bf16: LinearTypes<A> + LinearTypes<B>,
    {
        operation.run_into(ScaledGradientOutputs {
            dx: Some(&mut self.dx),
            dw: Some(&mut self.dw),
            db: (!case.has_8_bits()).then_some(&mut self.db),
            adds: case.adds,
            adds_dx: case.adds,
        })
    }
}

fn matrix<U: Number>(tensor: &Tensor<U>, shape: (usize, usize)) -> Result<Array2<f64>> {
    let numbers = tensor.to_vec()?.into_iter().map(|element| element.widen()).collect();
    Array2::from_shape_vec(shape, numbers).map_err(|error| Error::Argument {
        operation: OPERATION,
        argument: "shape",
        expected: format!("{shape:?}"),
        actual: error.to_string(),
    })
}

fn rounded<U: Number>(number: f64) -> f64 {
    U::round(number).widen()
}

/// The smallest normal number of an 8-bit type.
fn least(dtype: DType) -> f64 {
    if dtype == DType::F8E4M3 { 2f64.powi(-6) } else { 2f64.powi(-14) }
}

fn check<X, W, D, A, B>(device: &Device, case: &ScaledBackwardCase) -> Result<Outcome>
where
    X: Input,
    W: Input,
    D: Dy,
    bf16: LinearTypes<A> + LinearTypes<B>,
    A: Result_,
    B: Result_,
{
    let &ScaledCase { m, k, n, alpha, data, .. } = &case.product;
    let operands = Operands::<X, W, D>::draw(case)?;
    let uploaded = Uploaded::new(device, case, &operands)?;
    let before = Before::<A, B>::draw(case)?;
    let mut written = Written::new(device, &before)?;
    let operation = uploaded.operation(case);
    let implementation = operation.implementation()?;
    written.run(&operation, case)?;

    let is_exact = data == Data::Integers && matches!(alpha.abs(), 0.5 | 1.0 | 2.0);
    let mut tally = Tally::new(implementation, is_exact);
    let (x, w) = (operands.x.mapv(|of| f64::from(of.to_f32())), operands.w.mapv(|of| f64::from(of.to_f32())));
    let dy = operands.dy.mapv(|of| f64::from(of.to_f32()));
    if !case.has_8_bits() {
        for (column, got) in written.db.to_vec()?.into_iter().enumerate() {
            let there = if case.adds { before.db[[0, column]].widen() } else { 0.0 };
            let terms = dy.column(column).iter().map(|&exact| Near { exact, error: 0.0 }).collect::<Vec<_>>();
            let expected = Near::sum(terms.into_iter(), there);
            let exact = [expected.exact, rounded::<B>(expected.exact)];
            tally.add([0, column], got.widen(), exact, |got| expected.judge(got, B::DTYPE));
        }
        tally.outcome.compared += n;
    }
    let is_along = |which: usize| operands.kinds[which] == ScaleKind::Rows;
    // Of dx the other scale is that of w, of dw that of x.
    for (other, length) in [(1, n), (0, m)] {
        let of_x = other == 1;
        let output = if of_x { A::DTYPE } else { B::DTYPE };
        let is_scaled = case.has_8_bits() && !is_along(other) && (of_x || !is_along(2));
        let host = f64::from(alpha) * operands.factor(other, 0, true) * operands.factor(2, 0, true);
        let (arithmetic, input) = match (device.kind(), is_scaled) {
            (DeviceKind::Cpu, _) => (Arithmetic::Cpu, DType::Bf16),
            (_, true) => (Arithmetic::Promoted, DType::F8E4M3),
            (_, false) => (Arithmetic::on_tensor_cores(DType::Bf16, length, Precision::Full), DType::Bf16),
        };
        let model =
            ErrorModel::new(arithmetic, input, output, length, host as f32, Activation::None).without_claim();
        let has_tensors = operands.has_tensor(other) || operands.has_tensor(2);
        let number = |(row, column): (usize, usize)| {
            let exact = Near { exact: dy[[row, column]], error: 0.0 };
            if is_scaled {
                return exact;
            }
            let of_other = operands.factor(other, if of_x { column } else { row }, false);
            let scaled =
                exact.times(operands.factor(2, row, false) * of_other, if has_tensors { 3.0 } else { 0.0 });
            if !has_tensors && (case.has_8_bits() || D::DTYPE == DType::Bf16) {
                scaled
            } else {
                scaled.rounded(DType::Bf16)
            }
        };
        let left = Array2::from_shape_fn((m, n), number);
        // Scales that tensors have are factors of rows.
        let rows = if of_x { m } else { n };
        let factors: Vec<f64> = (0..rows)
            .map(|row| {
                let of_dy = operands.factor(2, if of_x { row } else { 0 }, false);
                if is_scaled && m > 0 && n > 0 { of_dy * operands.factor(other, 0, false) } else { 1.0 }
            })
            .collect();
        let of_other = if of_x { least(DType::F8E4M3) } else { least(case.product.x_type) };
        let least = if is_scaled { [least(case.dy_type), of_other] } else { [0.0; 2] };
        let there = case
            .adds
            .then(|| if of_x { before.dx.mapv(|of| of.widen()) } else { before.dw.mapv(|of| of.widen()) });
        let gradient = Gradient {
            left: if of_x { left.view() } else { left.t() },
            right: if of_x { w.t() } else { x.t() },
            right_errors: None,
            alpha: host as f32,
            factors: Some(&factors),
            least,
            before: there.as_ref(),
            between: None,
            input,
            model,
            round: if of_x { rounded::<A> } else { rounded::<B> },
        };
        let got = if of_x { matrix(&written.dx, (m, k))? } else { matrix(&written.dw, (n, k))? };
        gradient.judge(&mut tally, got.slice(s![.., ..]), 0);
    }
    Ok(tally.finish())
}

fn bits<X, W, D, A, B>(device: &Device, case: &ScaledBackwardCase) -> Result<Vec<u8>>
where
    X: Input,
    W: Input,
    D: Dy,
    bf16: LinearTypes<A> + LinearTypes<B>,
    A: Result_,
    B: Result_,
{
    let uploaded = Uploaded::new(device, case, &Operands::<X, W, D>::draw(case)?)?;
    let mut written = Written::new(device, &Before::<A, B>::draw(case)?)?;
    written.run(&uploaded.operation(case), case)?;
    let mut all = bytemuck::cast_slice(&written.dx.to_vec()?).to_vec();
    all.extend_from_slice(bytemuck::cast_slice(&written.dw.to_vec()?));
    all.extend_from_slice(bytemuck::cast_slice(&written.db.to_vec()?));
    Ok(all)
}

fn prepared<X, W, D, A, B>(device: &Device, case: &ScaledBackwardCase, slots: usize) -> Result<Prepared>
where
    X: Input,
    W: Input,
    D: Dy,
    bf16: LinearTypes<A> + LinearTypes<B>,
    A: Result_,
    B: Result_,
{
    // What is added to would be another number each time.
    let case = ScaledBackwardCase { adds: false, ..case.clone() };
    let uploaded = Uploaded::new(device, &case, &Operands::<X, W, D>::draw(&case)?)?;
    let before = Before::<A, B>::draw(&case)?;
    let of_slots = (0..slots).map(|_| Written::new(device, &before)).collect::<Result<Vec<_>>>()?;
    let has_8_bits = case.has_8_bits();
    let memory = move |written: &Written<A, B>| {
        let mut all = vec![Output::new("dx", &written.dx)?, Output::new("dw", &written.dw)?];
        if !has_8_bits {
            all.push(Output::new("db", &written.db)?);
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
