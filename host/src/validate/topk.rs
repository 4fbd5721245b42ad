//! Validation of selections: the k largest elements of rows have to be exactly those that sorting gives.

use half::{bf16, f16};
use ndarray::Array2;

use super::Outcome;
use super::bound::Judgement;
use super::data::Data;
use super::tally::Tally;
use crate::cpu::Operand as CpuOperand;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::ops;
use crate::ops::topk::TopkElement;
use crate::tensor::{DType, Tensor};
use crate::weights::FloatElement;

/// The operation's name in errors.
const OPERATION: &str = "validate::topk";

/// One selection to validate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TopkCase {
    /// The elements' type: f16, bf16 or f32.
    pub dtype: DType,
    /// Rows.
    pub rows: usize,
    /// Elements of a row.
    pub columns: usize,
    /// How many are selected of each.
    pub k: usize,
    /// What the elements are drawn from; integers are few, so that most are ties.
    pub data: Data,
    /// Decides the elements.
    pub seed: u64,
}

impl TopkCase {
    /// The sizes in short.
    #[must_use]
    pub fn shape(&self) -> String {
        format!("{}×{} k={}", self.rows, self.columns, self.k)
    }

    /// The options in short.
    #[must_use]
    pub fn options(&self) -> String {
        if self.data == Data::Integers { "ties".into() } else { String::new() }
    }
}

/// Runs one case on `device` and compares the result with what sorting gives: values and ids.
///
/// # Errors
///
/// [`Error::Type`] if the case's type is not f16, bf16 or f32; otherwise whatever the operation returns.
pub fn topk(device: &Device, case: &TopkCase) -> Result<Outcome> {
    match case.dtype {
        DType::F16 => check::<f16>(device, case),
        DType::Bf16 => check::<bf16>(device, case),
        DType::F32 => check::<f32>(device, case),
        actual => {
            let expected = "f16, bf16 or f32".into();
            Err(Error::Type { operation: OPERATION, operand: "x", expected, actual })
        }
    }
}

fn check<T: TopkElement + FloatElement>(device: &Device, case: &TopkCase) -> Result<Outcome> {
    let drawn = case.data.draw(case.seed, 0, (case.rows, case.columns), 1 << 18, f64::from)?;
    let x: Array2<T> = drawn.mapv(T::round);
    let tensor = Tensor::from_array(device, &x)?;
    let operation = ops::topk(&tensor, case.k);
    let mut tally = Tally::new(operation.implementation()?, true);
    let (values, ids) = operation.run()?;
    let (values, ids) = (values.to_vec()?, ids.to_vec()?);
    tally.outcome.compared = values.len();
    for (row, elements) in x.rows().into_iter().enumerate() {
        let number = |at: usize| f64::from(CpuOperand::to_f32(elements[at]));
        let mut sorted: Vec<usize> = (0..case.columns).collect();
        // The sort keeps the order of equal ones. There is no NaN among them, and no −0.
        sorted.sort_by(|&a, &b| number(b).total_cmp(&number(a)));
        for (place, &at) in sorted.iter().take(case.k).enumerate() {
            let index = row * case.k + place;
            let got = f64::from(CpuOperand::to_f32(values[index]));
            let expected = number(at);
            tally.outcome.failures += usize::from(ids[index] as usize != at);
            let judge =
                |got: f64| Judgement { error: (got - expected).abs(), bound: 0.0, within: got == expected };
            tally.add([row, place], got, [expected; 2], judge);
        }
    }
    Ok(tally.finish())
}
