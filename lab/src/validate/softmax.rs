//! Validation of softmax of rows, and of its gradient.

use half::{bf16, f16};
use ndarray::{Array2, ArrayView2};
use warpsmith::cpu::Operand as CpuOperand;
use warpsmith::device::Device;
use warpsmith::error::{Error, Result};
use warpsmith::ops::softmax::SoftmaxElement;
use warpsmith::ops::{self, Implementation};
use warpsmith::tensor::{DType, Tensor};
use warpsmith::weights::FloatElement;

use super::Outcome;
use super::load::{Output, Prepared, Step};
use super::placed::Placed;
use super::tally::Tally;
use crate::bound::softmax as bound;
use crate::cases::{Data, MaskRows, SoftmaxCase};

/// The operation's name in errors.
const OPERATION: &str = "validate::softmax";

/// A type of rows.
trait Rows: SoftmaxElement + FloatElement {}
impl<T: SoftmaxElement + FloatElement> Rows for T {}

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
            (dtype, output) => Err(unknown(dtype, output)),
        }
    };
}

fn unknown(dtype: DType, output: DType) -> Error {
    let is_known = matches!(dtype, DType::F16 | DType::Bf16 | DType::F32);
    let (operand, actual) = if is_known { ("y", output) } else { ("x", dtype) };
    Error::Type { operation: OPERATION, operand, expected: "f16, bf16 or f32".into(), actual }
}

/// Runs one case on `device`, the softmax and its gradient, and compares every result with the exact one.
///
/// # Errors
///
/// [`Error::Type`] if the case's types are not f16, bf16 or f32; otherwise whatever the operations return.
pub fn softmax(device: &Device, case: &SoftmaxCase) -> Result<Outcome> {
    let ran = of_types!(case, run(device, case))?;
    let mut tally = Tally::new(ran.implementation, false);
    for row in 0..case.rows {
        let of_row = row * case.columns..(row + 1) * case.columns;
        let mask = match case.mask {
            MaskRows::None => None,
            MaskRows::One => Some(&ran.mask[..]),
            MaskRows::All => Some(&ran.mask[of_row.clone()]),
        };
        let y = &ran.y[of_row.clone()];
        let shares = bound::softmax(&ran.x[of_row.clone()], mask, case.scale, case.output);
        let gradient = bound::softmax_gradient(y, &ran.dy[of_row.clone()], case.scale, case.dtype);
        for (found, expected) in [(y, shares), (&ran.dx[of_row], gradient)] {
            for (column, (&found, bounded)) in found.iter().zip(expected).enumerate() {
                let judge = |found| bound::judge(found, bounded);
                tally.add([row, column], found.into(), [bounded.0; 2], judge);
            }
        }
    }
    tally.outcome.compared = case.rows * case.columns;
    tally.outcome.stray_writes = ran.strays;
    Ok(tally.finish())
}

/// The bits of every result: to compare one device, or mode, with another.
///
/// # Errors
///
/// As [`softmax`].
pub fn softmax_bits(device: &Device, case: &SoftmaxCase) -> Result<Vec<u32>> {
    let ran = of_types!(case, run(device, case))?;
    Ok(ran.y.iter().chain(&ran.dx).map(|number| number.to_bits()).collect())
}

/// Prepares a case to be run again and again into one of `slots` outputs.
pub(super) fn prepare(device: &Device, case: &SoftmaxCase, slots: usize) -> Result<Prepared> {
    of_types!(case, prepared(device, case, slots))
}

/// What a case reads and gives, as numbers.
struct Ran {
    x: Vec<f32>,
    mask: Vec<u8>,
    y: Vec<f32>,
    dy: Vec<f32>,
    dx: Vec<f32>,
    implementation: Implementation,
    /// Elements beside results that were written.
    strays: usize,
}

pub(super) fn numbers<T: CpuOperand>(elements: ArrayView2<'_, T>) -> Vec<f32> {
    elements.iter().map(|element| element.to_f32()).collect()
}

/// Numbers of up to `range`.
pub(super) fn draw<T: FloatElement>(
    (seed, stream): (u64, u64),
    shape: (usize, usize),
    range: f32,
) -> Result<Array2<T>> {
    let drawn = Data::Uniform.draw(seed, stream, shape, 1, |number| number)?;
    Ok(drawn.mapv(|number| T::round(f64::from(number * range))))
}

fn drawn_x<T: FloatElement>(case: &SoftmaxCase) -> Result<Array2<T>> {
    let shape = (case.rows, case.columns);
    let mut x = draw::<T>((case.seed, 0), shape, case.range)?;
    if case.infinities {
        let which = Data::Uniform.draw(case.seed, 1, shape, 1, |number| number > 0.8)?;
        let least = T::round(f64::NEG_INFINITY);
        x.zip_mut_with(&which, |x, &is_least| *x = if is_least { least } else { *x });
    }
    Ok(x)
}

fn drawn_mask(case: &SoftmaxCase) -> Result<Option<Array2<u8>>> {
    let rows = match case.mask {
        MaskRows::None => return Ok(None),
        MaskRows::One => 1,
        MaskRows::All => case.rows,
    };
    let counts = |number: f32| 3 * u8::from(number > -0.5);
    Data::Uniform.draw(case.seed, 2, (rows, case.columns), 1, counts).map(Some)
}

fn run<T: Rows, Y: Rows>(device: &Device, case: &SoftmaxCase) -> Result<Ran> {
    let shape = (case.rows, case.columns);
    let [of_operands, of_mask, of_results] = case.placements;
    let full = |columns| vec![case.rows, columns];
    let (x, mask) = (drawn_x::<T>(case)?, drawn_mask(case)?);
    // Of what is beside an operand and is read, a row is nothing else.
    let beside = T::round(777.0);
    let held = Placed::new(device, Some(&x), shape, beside, of_operands)?;
    let of_x = held.tensor(&full)?;
    let held_mask = match &mask {
        Some(mask) => Some(Placed::new(device, Some(mask), mask.dim(), 1, of_mask)?),
        None => None,
    };
    let mask_rows = mask.as_ref().map_or(0, |mask| mask.nrows());
    let of_mask = held_mask.as_ref().map(|held| held.tensor(&|columns| vec![mask_rows, columns]));
    let of_mask = of_mask.transpose()?;
    let softmax = ops::softmax(&of_x).scale(case.scale).mask(of_mask.as_ref());
    let implementation = softmax.implementation()?;

    let mut strays = 0;
    let y: Vec<f32> = if case.in_place && T::DTYPE == Y::DTYPE {
        softmax.run_into(&mut of_x.clone())?;
        let written = held.read()?;
        strays += written.strays();
        numbers(written.inside())
    } else {
        let placed = Placed::<Y>::new(device, None, shape, Y::round(77.0), of_results)?;
        softmax.run_into(&mut placed.tensor(&full)?)?;
        let written = placed.read()?;
        strays += written.strays();
        numbers(written.inside())
    };

    let mut shares = y.iter();
    let of_y = Array2::from_shape_simple_fn(shape, || {
        Y::round(f64::from(shares.next().copied().unwrap_or_default()))
    });
    // Where y is 0 anything may be.
    let which = Data::Uniform.draw(case.seed, 4, shape, 1, |number| number > 0.8)?;
    let mut dy = draw::<T>((case.seed, 3), shape, case.range)?;
    for (dy, (&is_nan, &y)) in dy.iter_mut().zip(which.iter().zip(&y)) {
        if is_nan && y == 0.0 {
            *dy = T::round(f64::NAN);
        }
    }
    let held_y = Placed::new(device, Some(&of_y), shape, Y::round(777.0), of_results)?;
    let held_dy = Placed::new(device, Some(&dy), shape, beside, of_operands)?;
    let (of_y, of_dy) = (held_y.tensor(&full)?, held_dy.tensor(&full)?);
    let gradient = softmax.backward(&of_y, &of_dy);
    let implementation = match implementation {
        Implementation::Cpu | Implementation::Empty => implementation,
        _ => implementation.then(gradient.implementation()?),
    };
    let written = if case.in_place {
        gradient.run_into(&mut of_dy.clone())?;
        held_dy.read()?
    } else {
        let placed = Placed::<T>::new(device, None, shape, T::round(77.0), of_results)?;
        gradient.run_into(&mut placed.tensor(&full)?)?;
        placed.read()?
    };
    strays += written.strays();
    Ok(Ran {
        x: numbers(x.view()),
        mask: mask.map_or_else(Vec::new, |mask| mask.into_raw_vec_and_offset().0),
        y,
        dy: numbers(dy.view()),
        dx: numbers(written.inside()),
        implementation,
        strays,
    })
}

fn prepared<T: Rows, Y: Rows>(device: &Device, case: &SoftmaxCase, slots: usize) -> Result<Prepared> {
    let (scale, shape) = (case.scale, [case.rows, case.columns]);
    let x = Tensor::from_array(device, &drawn_x::<T>(case)?)?;
    let dy = draw::<T>((case.seed, 3), (case.rows, case.columns), case.range)?;
    let dy = Tensor::from_array(device, &dy)?;
    let mask = drawn_mask(case)?.map(|mask| Tensor::from_array(device, &mask)).transpose()?;
    let of_slots = (0..slots)
        .map(|_| Ok((Tensor::<Y>::zeros(device, shape)?, Tensor::<T>::zeros(device, shape)?)))
        .collect::<Result<Vec<_>>>()?;
    let memory = |(y, dx): &(Tensor<Y>, Tensor<T>)| Ok(vec![Output::new("y", y)?, Output::new("dx", dx)?]);
    Prepared::of_slots(of_slots, memory, move |(y, dx), step| {
        let softmax = ops::softmax(&x).scale(scale).mask(mask.as_ref());
        if step == Step::Ask {
            return Ok(softmax.implementation()?.then(softmax.backward(y, &dy).implementation()?));
        }
        softmax.run_into(y)?;
        softmax.backward(y, &dy).run_into(dx)?;
        Ok(Implementation::Empty)
    })
}
