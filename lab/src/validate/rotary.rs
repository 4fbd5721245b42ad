//! Validation of rotations of heads.

use ndarray::Array2;
use warpsmith::cpu::Operand as CpuOperand;
use warpsmith::device::Device;
use warpsmith::error::Result;
use warpsmith::ops::rotary::{RotaryElement, RotaryOp};
use warpsmith::ops::{self, Implementation, RotaryTable};
use warpsmith::tensor::Tensor;
use warpsmith::weights::FloatElement;

use super::Outcome;
use super::elementwise::{drawn, judged};
use super::load::{Output, Prepared, Step};
use super::of_type;
use super::placed::Placed;
use super::tally::Tally;
use crate::bound::elementwise::rotated;
use crate::cases::{RotaryCase, split_mix};

/// The operation's name in errors.
const OPERATION: &str = "validate::rotary";
/// The base of frequencies, and the positions of a table.
const BASE: f64 = 500_000.0;
const POSITIONS: usize = 5000;

/// A type of heads.
trait Heads: RotaryElement + FloatElement {}
impl<T: RotaryElement + FloatElement> Heads for T {}

/// Runs one case on `device` and compares every element with the exact one.
///
/// # Errors
///
/// [`Error::Type`](warpsmith::Error::Type) if the case's type is not f16, bf16 or f32; otherwise whatever the operation returns.
pub fn rotary(device: &Device, case: &RotaryCase) -> Result<Outcome> {
    of_type!(OPERATION, case, check(device, case))
}

/// The bits of the result: to compare one device, or mode, with another.
///
/// # Errors
///
/// As [`rotary`].
pub fn rotary_bits(device: &Device, case: &RotaryCase) -> Result<Vec<u8>> {
    of_type!(OPERATION, case, bits(device, case))
}

/// Prepares a case to be run again and again into one of `slots` outputs.
pub(super) fn prepare(device: &Device, case: &RotaryCase, slots: usize) -> Result<Prepared> {
    of_type!(OPERATION, case, prepared(device, case, slots))
}

/// What a case reads.
struct Operands<T: Heads> {
    /// A row for each head.
    x: Array2<T>,
    placed: Placed<T>,
    table: RotaryTable,
    positions: Tensor<u32>,
}

fn full(case: &RotaryCase) -> impl Fn(usize) -> Vec<usize> {
    let [batch, length, heads, _] = case.shape;
    move |columns| vec![batch, length, heads, columns]
}

/// The position of a token, which the table may not have.
fn position(case: &RotaryCase, token: usize) -> usize {
    match case.offset {
        Some(offset) => offset + token % case.shape[1],
        None => (split_mix(case.seed, token as u64) % (POSITIONS as u64 + 100)) as usize,
    }
}

impl<T: Heads> Operands<T> {
    fn new(device: &Device, case: &RotaryCase) -> Result<Self> {
        let [batch, length, heads, width] = case.shape;
        let x = drawn(case.seed, 0, (batch * length * heads, width), 6.0)?;
        let placed = Placed::new(device, Some(&x), x.dim(), T::round(77.0), case.placement)?;
        let table = RotaryTable::new(device, BASE, case.rotary, POSITIONS)?;
        let positions: Vec<u32> = (0..batch * length).map(|token| position(case, token) as u32).collect();
        let positions = Tensor::from_slice(device, &positions, [batch, length])?;
        Ok(Self { x, placed, table, positions })
    }
}

/// The rotation of a case.
fn rotation<'a, T: Heads>(
    case: &RotaryCase,
    x: &'a Tensor<T>,
    table: &'a RotaryTable,
    positions: &'a Tensor<u32>,
) -> RotaryOp<'a, T> {
    let operation = ops::rotary(x, table).pairing(case.pairing);
    let operation = match case.offset {
        Some(offset) => operation.offset(offset),
        None => operation.positions(positions),
    };
    if case.is_inverse { operation.inverse() } else { operation }
}

/// The result of a case, what ran, and stray writes.
fn run<T: Heads>(
    device: &Device,
    case: &RotaryCase,
    operands: Operands<T>,
) -> Result<(Array2<T>, Implementation, usize)> {
    let full = full(case);
    let x = operands.placed.tensor(&full)?;
    let operation = rotation(case, &x, &operands.table, &operands.positions);
    let implementation = operation.implementation()?;
    let written = if case.in_place {
        operation.run_into(&mut x.clone())?;
        operands.placed.read()?
    } else {
        let of_y = Placed::new(device, None, operands.x.dim(), T::round(77.0), case.placement)?;
        operation.run_into(&mut of_y.tensor(&full)?)?;
        of_y.read()?
    };
    Ok((written.inside().to_owned(), implementation, written.strays()))
}

fn bits<T: Heads>(device: &Device, case: &RotaryCase) -> Result<Vec<u8>> {
    let (y, ..) = run(device, case, Operands::<T>::new(device, case)?)?;
    Ok(bytemuck::cast_slice(&y.into_raw_vec_and_offset().0).to_vec())
}

fn check<T: Heads>(device: &Device, case: &RotaryCase) -> Result<Outcome> {
    let operands = Operands::<T>::new(device, case)?;
    let x = operands.x.clone();
    let (y, implementation, strays) = run(device, case, operands)?;
    let mut tally = Tally::new(implementation, false);
    tally.outcome.stray_writes = strays;
    let number = |of: &Array2<T>, at: [usize; 2]| f64::from(CpuOperand::to_f32(of[at]));
    let (heads, pairs) = (case.shape[2], case.rotary / 2);
    for row in 0..x.nrows() {
        let position = position(case, row / heads);
        for pair in 0..pairs {
            let places = case.pairing.elements(pair, pairs).map(|column| [row, column]);
            let angle = position as f64 * BASE.powf(-2.0 * pair as f64 / case.rotary as f64);
            let (sine, cosine) = if case.is_inverse { (-angle).sin_cos() } else { angle.sin_cos() };
            let expected = match position < POSITIONS {
                true => rotated(places.map(|at| number(&x, at)), [cosine, sine], case.dtype),
                false => [(f64::NAN, 0.0); 2],
            };
            for (at, expected) in places.into_iter().zip(expected) {
                let got = number(&y, at);
                // A NaN that has to be one is no error.
                if expected.0.is_nan() {
                    tally.outcome.failures += usize::from(!got.is_nan());
                } else {
                    tally.add(at, got, [expected.0; 2], judged(expected));
                }
            }
        }
        for column in case.rotary..case.shape[3] {
            let at = [row, column];
            tally.add(at, number(&y, at), [number(&x, at); 2], judged((number(&x, at), 0.0)));
        }
    }
    tally.outcome.compared = x.len();
    Ok(tally.finish())
}

fn prepared<T: Heads>(device: &Device, case: &RotaryCase, slots: usize) -> Result<Prepared> {
    let case = *case;
    let Operands { placed, table, positions, .. } = Operands::<T>::new(device, &case)?;
    let x = placed.tensor(&full(&case))?;
    let of_slots = (0..slots).map(|_| Tensor::<T>::zeros(device, case.shape)).collect::<Result<_>>()?;
    let memory = |y: &Tensor<T>| Ok(vec![Output::new("y", y)?]);
    Prepared::of_slots(of_slots, memory, move |y, step| {
        let operation = rotation(&case, &x, &table, &positions);
        match step {
            Step::Ask => operation.implementation(),
            Step::Run => operation.run_into(y).map(|()| Implementation::Empty),
        }
    })
}
