//! Validation of losses of rows of logits, and of their gradient.

use half::{bf16, f16};
use warpsmith::cpu::Target;
use warpsmith::device::Device;
use warpsmith::error::{Error, Result};
use warpsmith::ops::cross_entropy::{
    CrossEntropyOp, CrossEntropyOutputs, LabelElement, LogitElement, Reduction,
};
use warpsmith::ops::{self, Implementation};
use warpsmith::tensor::{DType, Tensor};
use warpsmith::weights::FloatElement;

use super::Outcome;
use super::load::{Output, Prepared, Step};
use super::placed::Placed;
use super::softmax::{draw, numbers};
use super::tally::Tally;
use crate::bound::softmax as bound;
use crate::cases::{CrossEntropyCase, split_mix};

/// The operation's name in errors.
const OPERATION: &str = "validate::cross_entropy";

/// A type of logits or gradients.
trait Logits: LogitElement + FloatElement {}
impl<T: LogitElement + FloatElement> Logits for T {}

/// A type of labels.
trait Label: LabelElement {
    fn of(label: i64) -> Self;
}
impl Label for i64 {
    fn of(label: i64) -> Self {
        label
    }
}
impl Label for i32 {
    fn of(label: i64) -> Self {
        label as Self
    }
}
impl Label for u32 {
    fn of(label: i64) -> Self {
        label as Self
    }
}

/// Runs `$f::<T, G, L>` with the types of a case.
macro_rules! of_types {
    ($case:expr, $f:ident($($argument:expr),*)) => {
        match ($case.dtype, $case.output) {
            (DType::F16, DType::F16) => of_types!(f16, f16; $case, $f($($argument),*)),
            (DType::F16, DType::Bf16) => of_types!(f16, bf16; $case, $f($($argument),*)),
            (DType::F16, DType::F32) => of_types!(f16, f32; $case, $f($($argument),*)),
            (DType::Bf16, DType::F16) => of_types!(bf16, f16; $case, $f($($argument),*)),
            (DType::Bf16, DType::Bf16) => of_types!(bf16, bf16; $case, $f($($argument),*)),
            (DType::Bf16, DType::F32) => of_types!(bf16, f32; $case, $f($($argument),*)),
            (DType::F32, DType::F16) => of_types!(f32, f16; $case, $f($($argument),*)),
            (DType::F32, DType::Bf16) => of_types!(f32, bf16; $case, $f($($argument),*)),
            (DType::F32, DType::F32) => of_types!(f32, f32; $case, $f($($argument),*)),
            _ => Err(unknown($case)),
        }
    };
    ($logits:ty, $gradient:ty; $case:expr, $f:ident($($argument:expr),*)) => {
        match $case.labels {
            DType::I64 => $f::<$logits, $gradient, i64>($($argument),*),
            DType::I32 => $f::<$logits, $gradient, i32>($($argument),*),
            DType::U32 => $f::<$logits, $gradient, u32>($($argument),*),
            _ => Err(unknown($case)),
        }
    };
}

fn unknown(case: &CrossEntropyCase) -> Error {
    let is_known = |dtype| matches!(dtype, DType::F16 | DType::Bf16 | DType::F32);
    let (operand, actual, expected) = match case {
        CrossEntropyCase { dtype, .. } if !is_known(*dtype) => ("logits", *dtype, "f16, bf16 or f32"),
        CrossEntropyCase { output, .. } if !is_known(*output) => ("gradient", *output, "f16, bf16 or f32"),
        CrossEntropyCase { labels, .. } => ("labels", *labels, "i64, i32 or u32"),
    };
    Error::Type { operation: OPERATION, operand, expected: expected.into(), actual }
}

/// Runs one case on `device`, the loss and its gradient, and compares every result with the exact one.
///
/// # Errors
///
/// [`Error::Type`] if the case's types are not those of logits and labels; otherwise whatever the operation returns.
pub fn cross_entropy(device: &Device, case: &CrossEntropyCase) -> Result<Outcome> {
    let ran = of_types!(case, run(device, case))?;
    let mut tally = Tally::new(ran.implementation, false);
    let mut add = |at, found: f32, bounded: bound::Bounded| {
        tally.add(at, found.into(), [bounded.0; 2], |found| bound::judge(found, bounded));
    };
    let count = ran.targets.iter().filter(|target| **target != Target::Ignored).count();
    let divisor = if case.reduction == Reduction::Mean { count.max(1) as f64 } else { 1.0 };
    let (columns, mut losses) = (case.columns, Vec::new());
    for (row, &target) in ran.targets.iter().enumerate() {
        let of_row = row * columns..(row + 1) * columns;
        let factor = f64::from(case.gradient_scale) / divisor;
        let expected = bound::loss(&ran.logits[of_row.clone()], target, case.options, factor, case.output);
        losses.push(expected.loss);
        if case.reduction == Reduction::None {
            add([row, columns], ran.loss[row], expected.loss);
            add([row, columns], ran.alone[row], expected.loss);
        }
        add([row, columns + 1], ran.lse[row], expected.lse);
        for (column, (&found, bounded)) in ran.gradient[of_row].iter().zip(expected.gradient).enumerate() {
            add([row, column], found, bounded);
        }
    }
    if case.reduction != Reduction::None {
        let total = bound::total(&losses, divisor);
        add([case.rows, columns], ran.loss[0], total);
        add([case.rows, columns], ran.alone[0], total);
    }
    if !is_read_otherwise_with_gradient(case) {
        let differs = |(a, b): &(&f32, &f32)| a.to_bits() != b.to_bits() && !(a.is_nan() && b.is_nan());
        tally.outcome.failures += ran.alone.iter().zip(&ran.loss).filter(differs).count();
    }
    tally.outcome.compared = case.rows * columns;
    tally.outcome.stray_writes = ran.strays;
    Ok(tally.finish())
}

/// Whether rows are read 16 bytes at a time without a gradient, but not with one, since it is not aligned for that. Sums have another order then. Else a loss
/// has the same bits whatever else is computed.
fn is_read_otherwise_with_gradient(case: &CrossEntropyCase) -> bool {
    let [logits, gradient] = case.placements.map(|placement| placement.alignment([case.rows, case.columns]));
    let at_a_time = 16 / case.dtype.size();
    // The most bytes of a store are 16, too.
    let stored = at_a_time.min(16 / case.output.size());
    let is_wide = case.columns.is_multiple_of(at_a_time) && logits.is_multiple_of(at_a_time);
    is_wide && !case.is_in_place() && !gradient.is_multiple_of(stored)
}

/// The bits of every result: to compare one device, or mode, with another.
///
/// # Errors
///
/// As [`cross_entropy`].
pub fn cross_entropy_bits(device: &Device, case: &CrossEntropyCase) -> Result<Vec<u32>> {
    let ran = of_types!(case, run(device, case))?;
    let all = ran.loss.iter().chain(&ran.alone).chain(&ran.lse).chain(&ran.gradient);
    Ok(all.map(|number| number.to_bits()).collect())
}

/// Prepares a case to be run again and again into one of `slots` outputs.
pub(super) fn prepare(device: &Device, case: &CrossEntropyCase, slots: usize) -> Result<Prepared> {
    of_types!(case, prepared(device, case, slots))
}

/// What a case reads and gives, as numbers.
struct Ran {
    logits: Vec<f32>,
    targets: Vec<Target>,
    loss: Vec<f32>,
    /// The loss where nothing else is asked for.
    alone: Vec<f32>,
    lse: Vec<f32>,
    gradient: Vec<f32>,
    implementation: Implementation,
    /// Elements beside the gradient that were written.
    strays: usize,
}

/// The label of each row.
fn labels<L: Label>(case: &CrossEntropyCase) -> Vec<L> {
    let label = |row: usize| {
        let bits = split_mix(case.seed ^ 0x1abe1, row as u64);
        match bits >> 32 & 15 {
            0..3 => case.ignored,
            3..5 if case.outside => (case.columns + row) as i64,
            _ => (bits as u32 as usize % case.columns.max(1)) as i64,
        }
    };
    (0..case.rows).map(|row| L::of(label(row))).collect()
}

fn options<'a, T: LogitElement, L: LabelElement>(
    case: &CrossEntropyCase,
    operation: CrossEntropyOp<'a, T, L>,
) -> CrossEntropyOp<'a, T, L> {
    operation
        .label_smoothing(case.options.smoothing)
        .z_loss(case.options.z_loss)
        .soft_cap(case.options.soft_cap)
        .ignored_label(case.ignored)
        .reduction(case.reduction)
        .gradient_scale(case.gradient_scale)
}

fn losses_of(case: &CrossEntropyCase) -> usize {
    if case.reduction == Reduction::None { case.rows } else { 1 }
}

fn run<T: Logits, G: Logits, L: Label>(device: &Device, case: &CrossEntropyCase) -> Result<Ran> {
    let shape = (case.rows, case.columns);
    let [of_logits, of_gradient] = case.placements;
    let full = |columns| vec![case.rows, columns];
    let drawn = draw::<T>((case.seed, 0), shape, case.range)?;
    let held = Placed::new(device, Some(&drawn), shape, T::round(777.0), of_logits)?;
    let logits = held.tensor(&full)?;
    let labels = labels::<L>(case);
    let on_device = Tensor::from_slice(device, &labels, [case.rows])?;
    let mut operation = options(case, ops::cross_entropy(&logits, &on_device));
    // Half of a scale comes from the device, which is exact.
    let half = Tensor::from_slice(device, &[0.5f32], [1])?;
    if case.gradient_scale != 1.0 {
        operation = operation.gradient_scale(2.0 * case.gradient_scale).gradient_scale_on_device(&half);
    }
    let implementation = operation.implementation()?;
    let alone = operation.run()?.to_vec()?;
    let mut loss = Tensor::<f32>::uninit(device, [losses_of(case)])?;
    let mut lse = Tensor::<f32>::uninit(device, [case.rows])?;
    let (gradient, strays) = if case.is_in_place() {
        let gradient = Some(&mut logits.clone());
        operation.run_into(CrossEntropyOutputs { loss: Some(&mut loss), lse: Some(&mut lse), gradient })?;
        let written = held.read()?;
        (numbers(written.inside()), written.strays())
    } else {
        let placed = Placed::<G>::new(device, None, shape, G::round(77.0), of_gradient)?;
        let gradient = Some(&mut placed.tensor(&full)?);
        operation.run_into(CrossEntropyOutputs { loss: Some(&mut loss), lse: Some(&mut lse), gradient })?;
        let written = placed.read()?;
        (numbers(written.inside()), written.strays())
    };
    let target = |&label: &L| match label.into() {
        label if label == case.ignored => Target::Ignored,
        label => match usize::try_from(label) {
            Ok(column) if column < case.columns => Target::Column(column),
            _ => Target::Outside,
        },
    };
    let (loss, lse) = (loss.to_vec()?, lse.to_vec()?);
    Ok(Ran {
        logits: numbers(drawn.view()),
        targets: labels.iter().map(target).collect(),
        loss,
        alone,
        lse,
        gradient,
        implementation,
        strays,
    })
}

fn prepared<T: Logits, G: Logits, L: Label>(
    device: &Device,
    case: &CrossEntropyCase,
    slots: usize,
) -> Result<Prepared> {
    let case = *case;
    let shape = [case.rows, case.columns];
    let logits = draw::<T>((case.seed, 0), (case.rows, case.columns), case.range)?;
    let logits = Tensor::from_array(device, &logits)?;
    let labels = Tensor::from_slice(device, &labels::<L>(&case), [case.rows])?;
    let of_slots = (0..slots)
        .map(|_| {
            let vector = |length| Tensor::<f32>::zeros(device, [length]);
            Ok((vector(losses_of(&case))?, vector(case.rows)?, Tensor::<G>::zeros(device, shape)?))
        })
        .collect::<Result<Vec<_>>>()?;
    let memory = |(loss, lse, gradient): &(Tensor<f32>, Tensor<f32>, Tensor<G>)| {
        Ok(vec![Output::new("loss", loss)?, Output::new("lse", lse)?, Output::new("gradient", gradient)?])
    };
    Prepared::of_slots(of_slots, memory, move |(loss, lse, gradient), step| {
        let operation = options(&case, ops::cross_entropy(&logits, &labels));
        if step == Step::Ask {
            return operation.implementation();
        }
        let (loss, lse, gradient) = (Some(loss), Some(lse), Some(gradient));
        operation.run_into(CrossEntropyOutputs { loss, lse, gradient })?;
        Ok(Implementation::Empty)
    })
}
