//! Validation of copies into aligned rows: every element is at its place, with its bits, and the rows are aligned.

use half::{bf16, f16};
use warpsmith::ops;
use warpsmith::{DType, Device, Element, Error, Result, Tensor};

use super::Outcome;
use super::tally::Tally;
use crate::bound::Judgement;
use crate::cases::{RepackCase, Source, split_mix};

/// Bytes that rows of a copy start at multiples of.
const ALIGNMENT: usize = 16;

/// Runs one case on `device` and compares the copy with its source, bit by bit.
///
/// # Errors
///
/// [`Error::Type`] if the case's type is not u8, f16, bf16, u32 or f32; otherwise whatever the operation returns.
pub fn repack(device: &Device, case: &RepackCase) -> Result<Outcome> {
    match case.dtype {
        DType::U8 => check::<u8>(device, case, |bits| bits as u8, u64::from),
        DType::F16 => {
            check(device, case, |bits| f16::from_bits(bits as u16), |element| u64::from(element.to_bits()))
        }
        DType::Bf16 => {
            check(device, case, |bits| bf16::from_bits(bits as u16), |element| u64::from(element.to_bits()))
        }
        DType::U32 => check::<u32>(device, case, |bits| bits as u32, u64::from),
        DType::F32 => {
            check(device, case, |bits| f32::from_bits(bits as u32), |element| u64::from(element.to_bits()))
        }
        actual => {
            let expected = "u8, f16, bf16, u32 or f32".into();
            Err(Error::Type { operation: "validate::repack", operand: "x", expected, actual })
        }
    }
}

fn check<T: Element>(
    device: &Device,
    case: &RepackCase,
    element: impl Fn(u64) -> T,
    bits: impl Fn(T) -> u64,
) -> Result<Outcome> {
    let RepackCase { batch, rows, columns, source, beside: [before, after], .. } = *case;
    let (lines, length) = match source {
        Source::Rows => (rows, columns),
        Source::Columns => (columns, rows),
    };
    let pitch = before + length + after;
    let memory: Vec<T> =
        (0..batch * lines * pitch).map(|place| element(split_mix(case.seed, place as u64))).collect();
    let whole = Tensor::from_slice(device, &memory, [batch, lines, pitch])?;
    let part = whole.slice(2, before..before + length)?;
    let x = if source == Source::Columns { part.swap_axes(1, 2)? } else { part };
    let operation = ops::repack(&x);
    let mut tally = Tally::new(operation.implementation()?, true);
    let copy = operation.run()?;
    let is_aligned = |stride: &usize| (stride * size_of::<T>()).is_multiple_of(ALIGNMENT);
    if !copy.is_empty() && !copy.strides()[..2].iter().all(is_aligned) {
        tally.outcome.failures += 1;
    }
    let got = copy.to_vec()?;
    tally.outcome.compared = got.len();
    for (place, got) in got.into_iter().enumerate() {
        let (row, column) = (place / columns, place % columns);
        let (matrix, of_matrix) = (row / rows, row % rows);
        let (line, along) = match source {
            Source::Rows => (of_matrix, column),
            Source::Columns => (column, of_matrix),
        };
        let expected = bits(memory[(matrix * lines + line) * pitch + before + along]);
        let judge = |got: f64| {
            let within = got == expected as f64;
            Judgement { error: (got - expected as f64).abs(), bound: 0.0, within }
        };
        tally.add([row, column], bits(got) as f64, [expected as f64; 2], judge);
    }
    Ok(tally.finish())
}
