//! Validation of element-wise operations.

use half::{bf16, f16};
use ndarray::Array2;
use warpsmith::cpu::{Elementwise, Operand as CpuOperand};
use warpsmith::device::Device;
use warpsmith::error::{Error, Result};
use warpsmith::ops::elementwise::ElementwiseElement;
use warpsmith::ops::{self, Implementation};
use warpsmith::tensor::{DType, Tensor};
use warpsmith::weights::FloatElement;

use super::Outcome;
use super::load::{Output, Prepared, Step};
use super::placed::Placed;
use super::tally::Tally;
use crate::bound::Judgement;
use crate::bound::elementwise::{Bounded, elementwise as bounded};
use crate::cases::{Data, ElementwiseCase};

/// The operation's name in errors.
const OPERATION: &str = "validate::elementwise";

/// A type of elements.
trait Elements: ElementwiseElement + FloatElement {}
impl<T: ElementwiseElement + FloatElement> Elements for T {}

/// Runs `$f::<T, Y>` with the types of a case.
macro_rules! of_types {
    ($case:expr, $f:ident($($argument:expr),*)) => {
        match ($case.dtype, $case.other) {
            (DType::F16, DType::F16) => $f::<f16, f16>($($argument),*),
            (DType::F16, DType::Bf16) => $f::<f16, bf16>($($argument),*),
            (DType::F16, DType::F32) => $f::<f16, f32>($($argument),*),
            (DType::Bf16, DType::F16) => $f::<bf16, f16>($($argument),*),
            (DType::Bf16, DType::Bf16) => $f::<bf16, bf16>($($argument),*),
            (DType::Bf16, DType::F32) => $f::<bf16, f32>($($argument),*),
            (DType::F32, DType::F16) => $f::<f32, f16>($($argument),*),
            (DType::F32, DType::Bf16) => $f::<f32, bf16>($($argument),*),
            (DType::F32, DType::F32) => $f::<f32, f32>($($argument),*),
            (dtype, other) => {
                let actual = if dtype.is_float() && dtype.size() != 8 && dtype.size() != 1 { other } else { dtype };
                Err(Error::Type { operation: OPERATION, operand: "a", expected: "f16, bf16 or f32".into(), actual })
            }
        }
    };
}

/// Runs one case on `device` and compares every result with the exact one.
///
/// # Errors
///
/// [`Error::Type`] if the case's types are not f16, bf16 or f32; otherwise whatever the operation returns.
pub fn elementwise(device: &Device, case: &ElementwiseCase) -> Result<Outcome> {
    of_types!(case, check(device, case))
}

/// The bits of every result: to compare one device, or mode, with another.
///
/// # Errors
///
/// As [`elementwise`].
pub fn elementwise_bits(device: &Device, case: &ElementwiseCase) -> Result<Vec<u8>> {
    of_types!(case, bits(device, case))
}

/// Prepares a case to be run again and again into one of `slots` outputs.
pub(super) fn prepare(device: &Device, case: &ElementwiseCase, slots: usize) -> Result<Prepared> {
    of_types!(case, prepared(device, case, slots))
}

/// Numbers between −`size` and `size`, rounded to a type.
pub(super) fn drawn<T: FloatElement>(
    seed: u64,
    stream: u64,
    shape: (usize, usize),
    size: f64,
) -> Result<Array2<T>> {
    let drawn = Data::Uniform.draw(seed, stream, shape, 1, f64::from)?;
    Ok(drawn.mapv(|number| T::round(size * number)))
}

/// The judgement of a result that has to be within a bound, or the same NaN or infinity.
pub(super) fn judged((expected, bound): Bounded) -> impl FnOnce(f64) -> Judgement {
    move |got| {
        let is_same = got == expected || got.is_nan() && expected.is_nan();
        let error = if is_same { 0.0 } else { (got - expected).abs() };
        Judgement { error, bound, within: error <= bound }
    }
}

/// Rows on a device, as wide as they are placed.
fn placed<T: Elements>(
    device: &Device,
    case: &ElementwiseCase,
    held: Option<&Array2<T>>,
) -> Result<Placed<T>> {
    Placed::new(device, held, (case.rows, case.columns), T::round(77.0), case.placement)
}

/// What a case reads.
struct Operands<T: Elements, Y: Elements> {
    a: Array2<T>,
    b: Array2<Y>,
    c: Array2<T>,
    on_device: (Tensor<T>, Tensor<Y>, Tensor<T>),
}

impl<T: Elements, Y: Elements> Operands<T, Y> {
    fn new(device: &Device, case: &ElementwiseCase) -> Result<Self> {
        let &ElementwiseCase { rows, columns, seed, is_row, .. } = case;
        let full = |columns| vec![rows, columns];
        let a = drawn(seed, 0, (rows, columns), 6.0)?;
        let b = drawn::<Y>(seed, 1, (if is_row { 1 } else { rows }, columns), 6.0)?;
        let c = drawn(seed, 2, (rows, columns), 6.0)?;
        let of_b = match is_row {
            true => Tensor::from_array(device, &b)?.reshape([columns])?,
            false => placed(device, case, Some(&b))?.tensor(&full)?,
        };
        let on_device = (
            placed(device, case, Some(&a))?.tensor(&full)?,
            of_b,
            placed(device, case, Some(&c))?.tensor(&full)?,
        );
        Ok(Self { a, b, c, on_device })
    }
}

/// Does a step of a case.
fn step<T: Elements, Y: Elements>(
    function: Elementwise,
    (a, b, c): &(Tensor<T>, Tensor<Y>, Tensor<T>),
    (y, z): (&mut Tensor<Y>, &mut Tensor<T>),
    step: Step,
) -> Result<Implementation> {
    let second = Y::any(b);
    let operation = match function {
        Elementwise::Activation(ops::Activation::None) => {
            let operation = ops::cast::<Y>(T::any(a));
            return match step {
                Step::Ask => operation.implementation(),
                Step::Run => operation.run_into(y).map(|()| Implementation::Empty),
            };
        }
        Elementwise::GatedGradient(of) => {
            let operation = ops::gated_backward(a, b, T::any(c), of);
            return match step {
                Step::Ask => operation.implementation(),
                Step::Run => operation.run_into(y, z).map(|()| Implementation::Empty),
            };
        }
        Elementwise::Activation(of) => ops::activation(a, of),
        Elementwise::Add => ops::add(a, second),
        Elementwise::Multiply => ops::mul(a, second),
        Elementwise::Gated(of) => ops::gated(a, second, of),
        Elementwise::ActivationGradient(of) => ops::activation_backward(a, second, of),
    };
    match step {
        Step::Ask => operation.implementation(),
        Step::Run => operation.run_into(y).map(|()| Implementation::Empty),
    }
}

/// Both results of a case, of which the second may be none, what ran, and stray writes.
type Results<T, Y> = (Array2<Y>, Option<Array2<T>>, Implementation, usize);

fn run<T: Elements, Y: Elements>(
    device: &Device,
    case: &ElementwiseCase,
    operands: &Operands<T, Y>,
) -> Result<Results<T, Y>> {
    let full = |columns| vec![case.rows, columns];
    let (of_y, of_z) = (placed::<Y>(device, case, None)?, placed::<T>(device, case, None)?);
    let (mut y, mut z) = (of_y.tensor(&full)?, of_z.tensor(&full)?);
    let implementation = step(case.function, &operands.on_device, (&mut y, &mut z), Step::Ask)?;
    step(case.function, &operands.on_device, (&mut y, &mut z), Step::Run)?;
    let (y, z) = (of_y.read()?, of_z.read()?);
    let has_two = matches!(case.function, Elementwise::GatedGradient(_));
    let second = has_two.then(|| z.inside().to_owned());
    Ok((y.inside().to_owned(), second, implementation, y.strays() + z.strays()))
}

fn bits<T: Elements, Y: Elements>(device: &Device, case: &ElementwiseCase) -> Result<Vec<u8>> {
    let (y, z, ..) = run(device, case, &Operands::<T, Y>::new(device, case)?)?;
    let mut all = bytemuck::cast_slice(&y.into_raw_vec_and_offset().0).to_vec();
    if let Some(z) = z {
        all.extend_from_slice(bytemuck::cast_slice(&z.into_raw_vec_and_offset().0));
    }
    Ok(all)
}

fn check<T: Elements, Y: Elements>(device: &Device, case: &ElementwiseCase) -> Result<Outcome> {
    fn number<T: CpuOperand>(element: T) -> f64 {
        f64::from(element.to_f32())
    }
    let operands = Operands::<T, Y>::new(device, case)?;
    let (y, z, implementation, strays) = run(device, case, &operands)?;
    let mut tally = Tally::new(implementation, false);
    tally.outcome.stray_writes = strays;
    for row in 0..case.rows {
        let of_b = if case.is_row { 0 } else { row };
        for column in 0..case.columns {
            let at = [row, column];
            let elements =
                [number(operands.a[at]), number(operands.b[[of_b, column]]), number(operands.c[at])];
            let [first, second] = bounded(case.function, elements, [case.other, case.dtype]);
            tally.add(at, number(y[at]), [first.0; 2], judged(first));
            if let Some(z) = &z {
                tally.add(at, number(z[at]), [second.0; 2], judged(second));
            }
        }
    }
    tally.outcome.compared = case.rows * case.columns;
    Ok(tally.finish())
}

fn prepared<T: Elements, Y: Elements>(
    device: &Device,
    case: &ElementwiseCase,
    slots: usize,
) -> Result<Prepared> {
    let (shape, function) = ([case.rows, case.columns], case.function);
    let operands = Operands::<T, Y>::new(device, case)?.on_device;
    let of_slots = (0..slots)
        .map(|_| Ok((Tensor::<Y>::zeros(device, shape)?, Tensor::<T>::zeros(device, shape)?)))
        .collect::<Result<Vec<_>>>()?;
    let memory = |(y, z): &(Tensor<Y>, Tensor<T>)| Ok(vec![Output::new("y", y)?, Output::new("z", z)?]);
    Prepared::of_slots(of_slots, memory, move |(y, z), of_slot| step(function, &operands, (y, z), of_slot))
}
