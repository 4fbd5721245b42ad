//! Gradients of linear layers.

use half::{bf16, f16};
use ndarray::Array2;
use warpsmith::cpu::FromAccumulator;
use warpsmith::device::{Device, DeviceKind};
use warpsmith::error::{Error, Result};
use warpsmith::ops::column_sums::SumElement;
use warpsmith::ops::linear::{
    LinearBackwardOp, LinearGradientElement, LinearGradientOutputs, LinearInput, LinearTypes,
};
use warpsmith::ops::{self, Activation, Implementation};
use warpsmith::tensor::{DType, Tensor};

use super::Number;
use super::products::Gradient;
use crate::bound::backward::Near;
use crate::bound::{Arithmetic, ErrorModel};
use crate::cases::{Data, LinearBackwardCase, Placement, Scales, SlopesFrom};
use crate::validate::Outcome;
use crate::validate::load::{Output, Prepared, Step};
use crate::validate::placed::Placed;
use crate::validate::tally::Tally;

/// The operation's name in errors.
const OPERATION: &str = "validate::linear_backward";

/// A type of x and w, for an output of type `O` and gradients of type `W`.
trait Input<O: Output_, W: Gradient_>:
    LinearInput + LinearTypes<O> + LinearTypes<W> + SumElement + Number
{
}
impl<T, O: Output_, W: Gradient_> Input<O, W> for T where
    T: LinearInput + LinearTypes<O> + LinearTypes<W> + SumElement + Number
{
}

/// A type of the layer's output.
trait Output_: LinearGradientElement + Number {}
impl<O: LinearGradientElement + Number> Output_ for O {}

/// A type of the gradients of weights.
trait Gradient_: SumElement + FromAccumulator<f32> + Number {}
impl<W: SumElement + FromAccumulator<f32> + Number> Gradient_ for W {}

/// Runs `$f::<T, O, W>` with the types of a case.
macro_rules! of_types {
    ($case:expr, $f:ident($($argument:expr),*)) => {
        match ($case.input, $case.output, $case.gradient) {
            (DType::F16, DType::F16, DType::F16) => $f::<f16, f16, f16>($($argument),*),
            (DType::F16, DType::F16, DType::F32) => $f::<f16, f16, f32>($($argument),*),
            (DType::F16, DType::F32, DType::F16) => $f::<f16, f32, f16>($($argument),*),
            (DType::F16, DType::F32, DType::F32) => $f::<f16, f32, f32>($($argument),*),
            (DType::Bf16, DType::Bf16, DType::Bf16) => $f::<bf16, bf16, bf16>($($argument),*),
            (DType::Bf16, DType::Bf16, DType::F32) => $f::<bf16, bf16, f32>($($argument),*),
            (DType::Bf16, DType::F32, DType::Bf16) => $f::<bf16, f32, bf16>($($argument),*),
            (DType::Bf16, DType::F32, DType::F32) => $f::<bf16, f32, f32>($($argument),*),
            (DType::F32, DType::F32, DType::F32) => $f::<f32, f32, f32>($($argument),*),
            (input, output, gradient) => {
                let is_known = matches!(input, DType::F16 | DType::Bf16 | DType::F32);
                let (operand, expected, actual) = match (is_known, output == input || output == DType::F32) {
                    (false, _) => ("x", "f16, bf16 or f32".into(), input),
                    (_, false) => ("dy", format!("{input} or f32"), output),
                    (_, true) => ("dw", format!("{input} or f32"), gradient),
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
/// [`Error::Type`] if there is no such layer for the case's types; otherwise whatever the operation returns.
pub fn linear_backward(device: &Device, case: &LinearBackwardCase) -> Result<Outcome> {
    of_types!(case, check(device, case))
}

/// The bits of every result: to compare one device, or mode, with another.
///
/// # Errors
///
/// As [`linear_backward`].
pub fn linear_backward_bits(device: &Device, case: &LinearBackwardCase) -> Result<Vec<u8>> {
    of_types!(case, bits(device, case))
}

/// Prepares a case to be run again and again into one of `slots` outputs.
pub(in crate::validate) fn prepare(
    device: &Device,
    case: &LinearBackwardCase,
    slots: usize,
) -> Result<Prepared> {
    of_types!(case, prepared(device, case, slots))
}

/// What a case reads, on the host.
struct Operands<T, O> {
    x: Array2<T>,
    w: Array2<T>,
    dy: Array2<O>,
    /// The activation's argument.
    z: Array2<O>,
    scales: [Option<Vec<f32>>; 2],
}

/// Numbers of a stream, rounded to a type.
fn draw<U: Number>(
    case: &LinearBackwardCase,
    stream: u64,
    shape: (usize, usize),
    size: f64,
) -> Result<Array2<U>> {
    let sums = case.m.max(case.n).max(1);
    let drawn = case.data.draw(case.seed, stream, shape, sums, f64::from)?;
    let size = if case.data == Data::Integers { 1.0 } else { size };
    Ok(drawn.mapv(|number| U::round(size * number)))
}

impl<T: Number, O: Number> Operands<T, O> {
    fn draw(case: &LinearBackwardCase) -> Result<Self> {
        let &LinearBackwardCase { m, k, n, .. } = case;
        let scale = |of: Scales, stream, each: usize| -> Result<Option<Vec<f32>>> {
            let count = match of {
                Scales::None => return Ok(None),
                Scales::One => 1,
                Scales::Each => each,
            };
            let drawn = draw::<f32>(case, stream, (1, count), 1.0)?;
            // Integers times 1 or −1 are exact.
            let is_exact = case.data == Data::Integers;
            let number = |&number: &f32| {
                if !is_exact {
                    number
                } else if number < 0.0 {
                    -1.0
                } else {
                    1.0
                }
            };
            Ok(Some(drawn.iter().map(number).collect()))
        };
        Ok(Self {
            x: draw(case, 0, (m, k), 1.0)?,
            w: draw(case, 1, (n, k), 1.0)?,
            dy: draw(case, 2, (m, n), 1.0)?,
            z: draw(case, 3, (m, n), 4.0)?,
            scales: [scale(case.scales[0], 4, m)?, scale(case.scales[1], 5, n)?],
        })
    }
}

/// What a case reads, on its device.
struct Uploaded<T: Number, O: Number> {
    x: Tensor<T>,
    w: Tensor<T>,
    dy: Tensor<O>,
    /// The activation's argument, or its value.
    z: Tensor<O>,
    mask: Tensor<u32>,
    scales: [Option<Tensor<f32>>; 2],
}

fn placed<U: Number>(
    device: &Device,
    held: Option<&Array2<U>>,
    shape: (usize, usize),
    placement: Placement,
) -> Result<Placed<U>> {
    Placed::new(device, held, shape, U::round(77.0), placement)
}

impl<T: Number, O: Output_> Uploaded<T, O> {
    fn new(device: &Device, case: &LinearBackwardCase, operands: &Operands<T, O>) -> Result<Self> {
        let (m, n) = (case.m, case.n);
        let full = |columns| vec![m, columns];
        let told = match case.slopes {
            SlopesFrom::Output => operands.z.mapv(|z| if z.widen() > 0.0 { z } else { O::round(0.0) }),
            _ => operands.z.clone(),
        };
        let mut words = Array2::<u32>::zeros((m, n.div_ceil(32)));
        for ((row, column), z) in operands.z.indexed_iter() {
            words[[row, column / 32]] |= u32::from(z.widen() > 0.0) << (column % 32);
        }
        let [of_rows, of_columns] = operands.scales.each_ref().map(|scale| {
            scale.as_ref().map(|scale| Tensor::from_slice(device, scale, [scale.len()])).transpose()
        });
        Ok(Self {
            x: Tensor::from_array(device, &operands.x)?,
            w: Tensor::from_array(device, &operands.w)?,
            dy: placed(device, Some(&operands.dy), (m, n), case.placement)?.tensor(&full)?,
            z: placed(device, Some(&told), (m, n), case.placement)?.tensor(&full)?,
            mask: Tensor::from_array(device, &words)?,
            scales: [of_rows?, of_columns?],
        })
    }

    fn operation(&self, case: &LinearBackwardCase) -> LinearBackwardOp<'_, T, O>
    where
        T: LinearInput + LinearTypes<O> + SumElement,
    {
        let operation = ops::linear_backward(&self.x, &self.w, &self.dy)
            .activation(case.activation)
            .alpha(case.alpha)
            .residual(case.beta)
            .row_scale(&self.scales[0])
            .column_scale(&self.scales[1])
            .precision(case.precision);
        match case.slopes {
            SlopesFrom::Preactivation => operation.preactivation(&self.z),
            SlopesFrom::Mask => operation.relu_mask(&self.mask),
            SlopesFrom::Output => operation.output(&self.z),
        }
    }
}

/// What a case writes.
struct Written<T: Number, O: Number, W: Number> {
    dx: Tensor<T>,
    dw: Tensor<W>,
    db: Tensor<W>,
    dresidual: Placed<O>,
    dz: Option<Tensor<T>>,
}

impl<T: Number, O: Number, W: Number> Written<T, O, W> {
    /// Of what is there before; NaNs where nothing is added.
    fn new(device: &Device, case: &LinearBackwardCase, before: Option<&Before<T, W>>) -> Result<Self> {
        let &LinearBackwardCase { m, k, n, .. } = case;
        fn nans<U: Number>(shape: (usize, usize)) -> Array2<U> {
            Array2::from_elem(shape, U::round(f64::NAN))
        }
        let dz = case.dz.then(|| Tensor::from_array(device, &nans::<T>((m, n)))).transpose()?;
        let dresidual = placed(device, None, (m, n), case.placement)?;
        let (dx, dw, db) = match before {
            Some(before) => (before.dx.clone(), before.dw.clone(), before.db.clone()),
            None => (nans((m, k)), nans((n, k)), nans((1, n))),
        };
        let db = Tensor::from_array(device, &db)?.reshape([n])?;
        Ok(Self {
            dx: Tensor::from_array(device, &dx)?,
            dw: Tensor::from_array(device, &dw)?,
            db,
            dresidual,
            dz,
        })
    }

    fn run(&mut self, operation: &LinearBackwardOp<'_, T, O>, case: &LinearBackwardCase) -> Result<()>
    where
        T: Input<O, W>,
        O: Output_,
        W: Gradient_,
    {
        let mut dresidual = self.dresidual.tensor(&|columns| vec![case.m, columns])?;
        operation.run_into(LinearGradientOutputs {
            dx: Some(&mut self.dx),
            dw: Some(&mut self.dw),
            db: Some(&mut self.db),
            dresidual: Some(&mut dresidual),
            dz: self.dz.as_mut(),
            adds: case.adds,
            adds_dx: case.adds,
        })
    }
}

/// What gradients are added to.
struct Before<T, W> {
    dx: Array2<T>,
    dw: Array2<W>,
    db: Array2<W>,
}

impl<T: Number, W: Number> Before<T, W> {
    fn draw(case: &LinearBackwardCase) -> Result<Option<Self>> {
        let &LinearBackwardCase { m, k, n, .. } = case;
        if !case.adds {
            return Ok(None);
        }
        let [dx, dw, db] = [6, 7, 8];
        Ok(Some(Self {
            dx: draw(case, dx, (m, k), 1.0)?,
            dw: draw(case, dw, (n, k), 1.0)?,
            db: draw(case, db, (1, n), 1.0)?,
        }))
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

fn check<T: Input<O, W>, O: Output_, W: Gradient_>(
    device: &Device,
    case: &LinearBackwardCase,
) -> Result<Outcome> {
    let &LinearBackwardCase { m, k, n, activation, .. } = case;
    let operands = Operands::<T, O>::draw(case)?;
    let uploaded = Uploaded::new(device, case, &operands)?;
    let before = Before::<T, W>::draw(case)?;
    let mut written = Written::<T, O, W>::new(device, case, before.as_ref())?;
    let operation = uploaded.operation(case);
    let implementation = operation.implementation()?;
    written.run(&operation, case)?;

    let mut tally = Tally::new(implementation, case.is_exact());
    let gradient = Array2::from_shape_fn((m, n), |at| {
        let slope = activation.derivative(operands.z[at].widen());
        Near::gradient(operands.dy[at].widen(), slope, activation)
    });
    let residual = written.dresidual.read()?;
    tally.outcome.stray_writes = residual.strays();
    for ((at, &got), &dz) in residual.inside().indexed_iter().zip(&gradient) {
        let expected = dz.times(f64::from(case.beta), if case.beta.abs() == 1.0 { 0.0 } else { 1.0 });
        let exact = [expected.exact, rounded::<O>(expected.exact)];
        tally.add([at.0, at.1], got.widen(), exact, |got| expected.judge(got, O::DTYPE));
    }
    for (column, got) in written.db.to_vec()?.into_iter().enumerate() {
        let there = before.as_ref().map_or(0.0, |before| before.db[[0, column]].widen());
        let expected = Near::sum(gradient.column(column).iter().copied(), there);
        let exact = [expected.exact, rounded::<W>(expected.exact)];
        tally.add([0, column], got.widen(), exact, |got| expected.judge(got, W::DTYPE));
    }
    tally.outcome.compared = m * n + n;

    let scale = |of: &Option<Vec<f32>>, at: usize| {
        of.as_ref().map_or(1.0, |scale| f64::from(scale[at % scale.len()]))
    };
    let has_scales = operands.scales.iter().any(Option::is_some);
    let scaled = Array2::from_shape_fn((m, n), |(row, column)| {
        let factor = scale(&operands.scales[0], row) * scale(&operands.scales[1], column);
        gradient[[row, column]].times(factor, if has_scales { 2.0 } else { 0.0 })
    });
    if let Some(dz) = &written.dz {
        for ((at, &got), &dz) in matrix(dz, (m, n))?.indexed_iter().zip(&scaled) {
            let exact = [dz.exact, rounded::<T>(dz.exact)];
            tally.add([at.0, at.1], got, exact, |got| dz.judge(got, T::DTYPE));
        }
        tally.outcome.compared += m * n;
    }
    let is_changed = activation != Activation::None || has_scales || T::DTYPE != O::DTYPE;
    let read = if is_changed { scaled.mapv(|dz| dz.rounded(T::DTYPE)) } else { scaled };
    let model = |length: usize, output: DType| {
        let arithmetic = match device.kind() {
            DeviceKind::Cpu => Arithmetic::Cpu,
            _ => Arithmetic::on_tensor_cores(T::DTYPE, length, case.precision),
        };
        let model = ErrorModel::new(arithmetic, T::DTYPE, output, length, case.alpha, Activation::None);
        // The claim is one about exact operands.
        model.without_claim()
    };
    let (x, w) = (operands.x.mapv(|element| element.widen()), operands.w.mapv(|element| element.widen()));
    let there = before.map(|Before { dx, dw, .. }| {
        (dx.mapv(|element| element.widen()), dw.mapv(|element| element.widen()))
    });
    let (dx0, dw0) = there.unzip();
    let of_x = Gradient {
        left: read.view(),
        right: w.t(),
        right_errors: None,
        between: None,
        alpha: case.alpha,
        factors: None,
        least: [0.0; 2],
        before: dx0.as_ref(),
        input: T::DTYPE,
        model: model(n, T::DTYPE),
        round: rounded::<T>,
    };
    of_x.judge(&mut tally, matrix(&written.dx, (m, k))?.view(), 0);
    let of_w = Gradient {
        left: read.t(),
        right: x.t(),
        before: dw0.as_ref(),
        model: model(m, W::DTYPE),
        round: rounded::<W>,
        ..of_x
    };
    of_w.judge(&mut tally, matrix(&written.dw, (n, k))?.view(), 0);
    Ok(tally.finish())
}

fn bits<T: Input<O, W>, O: Output_, W: Gradient_>(
    device: &Device,
    case: &LinearBackwardCase,
) -> Result<Vec<u8>> {
    let operands = Operands::<T, O>::draw(case)?;
    let uploaded = Uploaded::new(device, case, &operands)?;
    let before = Before::<T, W>::draw(case)?;
    let mut written = Written::<T, O, W>::new(device, case, before.as_ref())?;
    written.run(&uploaded.operation(case), case)?;
    let mut all = bytemuck::cast_slice(&written.dx.to_vec()?).to_vec();
    all.extend_from_slice(bytemuck::cast_slice(&written.dw.to_vec()?));
    all.extend_from_slice(bytemuck::cast_slice(&written.db.to_vec()?));
    all.extend_from_slice(bytemuck::cast_slice(&written.dresidual.all().to_vec()?));
    if let Some(dz) = &written.dz {
        all.extend_from_slice(bytemuck::cast_slice(&dz.to_vec()?));
    }
    Ok(all)
}

fn prepared<T: Input<O, W>, O: Output_, W: Gradient_>(
    device: &Device,
    case: &LinearBackwardCase,
    slots: usize,
) -> Result<Prepared> {
    // What is added to would be another number each time.
    let case = LinearBackwardCase { adds: false, ..case.clone() };
    let uploaded = Uploaded::<T, O>::new(device, &case, &Operands::draw(&case)?)?;
    let of_slots =
        (0..slots).map(|_| Written::<T, O, W>::new(device, &case, None)).collect::<Result<Vec<_>>>()?;
    let memory = |written: &Written<T, O, W>| {
        let mut all = vec![
            Output::new("dx", &written.dx)?,
            Output::new("dw", &written.dw)?,
            Output::new("db", &written.db)?,
            Output::new("dresidual", written.dresidual.all())?,
        ];
        all.extend(written.dz.as_ref().map(|dz| Output::new("dz", dz)).transpose()?);
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
