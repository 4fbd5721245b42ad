//! Validation of selections: the k largest elements of each row have to be exactly those that sorting gives.

use half::{bf16, f16};
use ndarray::Array2;
use warpsmith::cpu::Operand as CpuOperand;
use warpsmith::device::Device;
use warpsmith::error::{Error, Result};
use warpsmith::ops::topk::TopkElement;
use warpsmith::ops::{self, Implementation};
use warpsmith::tensor::{DType, Tensor};
use warpsmith::weights::FloatElement;

use super::Outcome;
use super::load::{Output, Prepared, Step};
use super::tally::Tally;
use crate::bound::Judgement;
use crate::cases::TopkCase;

/// The operation's name in errors.
const OPERATION: &str = "validate::topk";

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

/// Prepares a case to be run again and again into one of `slots` outputs.
pub(super) fn prepare(device: &Device, case: &TopkCase, slots: usize) -> Result<Prepared> {
    fn of_type<T: TopkElement + FloatElement>(
        device: &Device,
        case: &TopkCase,
        slots: usize,
    ) -> Result<Prepared> {
        let x = Tensor::from_array(device, &draw::<T>(case)?)?;
        let (shape, k) = ([case.rows, case.k], case.k);
        let of_slots = (0..slots)
            .map(|_| Ok((Tensor::<T>::zeros(device, shape)?, Tensor::<u32>::zeros(device, shape)?)))
            .collect::<Result<Vec<_>>>()?;
        let memory = |(values, ids): &(Tensor<T>, Tensor<u32>)| {
            Ok(vec![Output::new("values", values)?, Output::new("ids", ids)?])
        };
        Prepared::of_slots(of_slots, memory, move |(values, ids), step| {
            let operation = ops::topk(&x, k);
            match step {
                Step::Ask => operation.implementation(),
                Step::Run => operation.run_into(values, ids).map(|()| Implementation::Empty),
            }
        })
    }
    match case.dtype {
        DType::F16 => of_type::<f16>(device, case, slots),
        DType::Bf16 => of_type::<bf16>(device, case, slots),
        DType::F32 => of_type::<f32>(device, case, slots),
        actual => Err(Error::Type {
            operation: "validate::load::Work::topk",
            operand: "x",
            expected: "f16, bf16 or f32".into(),
            actual,
        }),
    }
}

fn draw<T: FloatElement>(case: &TopkCase) -> Result<Array2<T>> {
    let drawn = case.data.draw(case.seed, 0, (case.rows, case.columns), 1 << 18, f64::from)?;
    Ok(drawn.mapv(T::round))
}

fn check<T: TopkElement + FloatElement>(device: &Device, case: &TopkCase) -> Result<Outcome> {
    let x = draw::<T>(case)?;
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
