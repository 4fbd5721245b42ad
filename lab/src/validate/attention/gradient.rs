//! Validation of attention's gradients: against the f64 reference, within the bound; exact where one key has all the weight.

use half::{bf16, f16};
use ndarray::{Array2, Array4, s};
use rayon::prelude::*;
use warpsmith::device::{Device, DeviceKind};
use warpsmith::error::{Error, Result};
use warpsmith::ops::Implementation;
use warpsmith::ops::attention::{AttentionGradientOp, AttentionGradientOutputs};
use warpsmith::tensor::{DType, Tensor};

use super::draw::{self, Drawn};
use super::placed::{Placed, filled};
use super::{Inputs, Queries, SENTINEL};
use crate::bound::attention_gradient::{GradientModel, GradientSum};
use crate::bound::{Arithmetic, Judgement};
use crate::cases::{AttentionCase, Data, Sequences};
use crate::reference::attention::widened;
use crate::reference::attention_gradient::HeadGradients;
use crate::validate::Outcome;
use crate::validate::load::{Output, Prepared, Step};
use crate::validate::tally::Tally;

/// The operation's name in errors.
const OPERATION: &str = "validate::attention_backward";
/// The largest gradient of a result that is an integer.
const LARGEST: f64 = 4.0;

/// Calls a function of the type with these arguments.
macro_rules! of_types {
    ($case:ident, $function:ident, $arguments:tt) => {
        match $case.dtype {
            DType::F16 => of_types!(@call $function::<f16> $arguments),
            DType::Bf16 => of_types!(@call $function::<bf16> $arguments),
            DType::F32 => of_types!(@call $function::<f32> $arguments),
            actual => Err(Error::Type {
                operation: OPERATION,
                operand: "q",
                expected: "f16, bf16 or f32".into(),
                actual,
            }),
        }
    };
    (@call $function:ident::<$element:ty> ($($argument:expr),*)) => { $function::<$element>($($argument),*) };
}

/// Runs one case on `device`, the attention and its gradients, and compares the gradients with the reference.
///
/// # Errors
///
/// As [`attention`](super::attention); [`Error::Argument`] for keys in pages or of 8 bits.
pub fn attention_backward(device: &Device, case: &AttentionCase) -> Result<Outcome> {
    expect_differentiable(case)?;
    of_types!(case, check, (device, case))
}

/// The bits of dq, dk, dv and the sinks' gradient, one after the other, for a comparison of devices.
///
/// # Errors
///
/// As [`attention_backward`].
pub fn attention_backward_bits(device: &Device, case: &AttentionCase) -> Result<Vec<u32>> {
    fn of_type<T: Queries>(device: &Device, case: &AttentionCase) -> Result<Vec<u32>> {
        let drawn = Drawn::<T, T>::new(case)?;
        let saved = Saved::new(device, case, &drawn)?;
        let gradients = saved.operation().run()?;
        let mut bits = Vec::new();
        for gradient in [gradients.dq, gradients.dk, gradients.dv] {
            bits.extend(gradient.to_vec()?.into_iter().map(|gradient| gradient.to_f32().to_bits()));
        }
        if let Some(dsinks) = gradients.dsinks {
            bits.extend(dsinks.to_vec()?.into_iter().map(f32::to_bits));
        }
        Ok(bits)
    }
    expect_differentiable(case)?;
    of_types!(case, of_type, (device, case))
}

fn expect_differentiable(case: &AttentionCase) -> Result<()> {
    if case.page_size.is_none() && case.keys_dtype.is_none() {
        return Ok(());
    }
    let (expected, actual) = ("keys that are not in pages, of the type of q".into(), case.options());
    Err(Error::Argument { operation: OPERATION, argument: "keys", expected, actual })
}

/// What the gradients are computed from, on the device.
struct Saved<T: Queries> {
    inputs: Inputs<T, T>,
    y: Tensor<T>,
    lse: Tensor<f32>,
    dy: Placed<T>,
    /// The gradients of results.
    drawn: Array4<T>,
}

impl<T: Queries> Saved<T> {
    fn new(device: &Device, case: &AttentionCase, drawn: &Drawn<T, T>) -> Result<Self> {
        let ([matrices, rows, _], heads) = (case.sequences.axes(), case.heads());
        let convert = |uniform: f64| {
            T::round(if case.data == Data::Integers { (uniform * LARGEST).round() } else { uniform })
        };
        let mut dy = draw::drawn(case.seed, 12, [matrices, rows, heads, case.value_width], convert)?;
        if let Sequences::Padded { lengths, .. } = &case.sequences {
            for (b, &[rows, _]) in lengths.iter().enumerate() {
                dy.slice_mut(s![b, rows.., .., ..]).fill(T::round(f64::NAN));
            }
        }
        let is_packed = matches!(case.sequences, Sequences::Packed(_));
        let inputs = Inputs::new(device, case, drawn)?;
        let (y, lse) = inputs.operation().run_with_lse()?;
        let placed = Placed::new(device, &dy, case.layout, T::round(f64::NAN), is_packed)?;
        Ok(Self { inputs, y, lse, dy: placed, drawn: dy })
    }

    fn operation(&self) -> AttentionGradientOp<'_, T> {
        self.inputs.operation().backward(&self.y, &self.lse, self.dy.view())
    }
}

/// Memory for the results.
struct Results<T: Queries> {
    dq: Placed<T>,
    dk: Placed<T>,
    dv: Placed<T>,
    dsinks: Option<Tensor<f32>>,
}

impl<T: Queries> Results<T> {
    fn new(device: &Device, case: &AttentionCase) -> Result<Self> {
        let ([matrices, rows, keys], heads) = (case.sequences.axes(), case.heads());
        let is_packed = matches!(case.sequences, Sequences::Packed(_));
        let sentinel = T::round(SENTINEL.into());
        let placed = |rows, heads, width| {
            let elements = filled([matrices, rows, heads, width], sentinel)?;
            Placed::new(device, &elements, case.layout, sentinel, is_packed)
        };
        let dsinks = case.sinks.then(|| Tensor::from_slice(device, &vec![SENTINEL; heads], [heads]));
        Ok(Self {
            dq: placed(rows, heads, case.width)?,
            dk: placed(keys, case.key_heads, case.width)?,
            dv: placed(keys, case.key_heads, case.value_width)?,
            dsinks: dsinks.transpose()?,
        })
    }

    fn outputs(&mut self) -> AttentionGradientOutputs<'_, T> {
        AttentionGradientOutputs {
            dq: Some(self.dq.view_mut()),
            dk: Some(self.dk.view_mut()),
            dv: Some(self.dv.view_mut()),
            dsinks: self.dsinks.as_mut(),
            adds: false,
        }
    }
}

/// Prepares a case to be run again and again into one of `slots` outputs.
pub(in crate::validate) fn prepare(device: &Device, case: &AttentionCase, slots: usize) -> Result<Prepared> {
    fn of_type<T: Queries>(device: &Device, case: &AttentionCase, slots: usize) -> Result<Prepared> {
        let saved = Saved::<T>::new(device, case, &Drawn::new(case)?)?;
        let of_slots = (0..slots).map(|_| Results::<T>::new(device, case)).collect::<Result<Vec<_>>>()?;
        let memory = |results: &Results<T>| {
            let mut all = vec![
                Output::new("dq", results.dq.all())?,
                Output::new("dk", results.dk.all())?,
                Output::new("dv", results.dv.all())?,
            ];
            if let Some(dsinks) = &results.dsinks {
                all.push(Output::new("dsinks", dsinks)?);
            }
            Ok(all)
        };
        Prepared::of_slots(of_slots, memory, move |results, step| match step {
            Step::Ask => saved.operation().implementation(),
            Step::Run => saved.operation().run_into(results.outputs()).map(|()| Implementation::Empty),
        })
    }
    expect_differentiable(case)?;
    of_types!(case, of_type, (device, case, slots))
}

/// What was computed, and how it compares.
struct Compared<T> {
    gradients: [Array4<T>; 3],
    tally: Tally,
}

impl<T: Queries> Compared<T> {
    /// Compares elements of a row of one of the gradients.
    fn row(
        &mut self,
        which: usize,
        [matrix, row, head]: [usize; 3],
        expected: impl Iterator<Item = (f64, impl FnOnce(f64) -> Judgement)>,
    ) {
        let [_, rows, heads, _] = self.gradients[which].dim().into();
        let index = (matrix * rows + row) * heads + head;
        for (column, (exact, judge)) in expected.enumerate() {
            let got = f64::from(self.gradients[which][[matrix, row, head, column]].to_f32());
            let rounded = f64::from(T::round(exact).to_f32());
            self.tally.outcome.compared += 1;
            self.tally.add([index, column], got, [exact, rounded], judge);
        }
    }

    /// The same of rows that have to be zeros.
    fn zeros(&mut self, which: usize, matrix: usize, first: usize) {
        let [_, rows, heads, columns] = self.gradients[which].dim().into();
        for (row, head) in (first..rows).flat_map(|row| (0..heads).map(move |head| (row, head))) {
            let zero = |got: f64| Judgement { error: got.abs(), bound: 0.0, within: got == 0.0 };
            self.row(which, [matrix, row, head], (0..columns).map(|_| (0.0, zero)));
        }
    }
}

fn check<T: Queries>(device: &Device, case: &AttentionCase) -> Result<Outcome> {
    let drawn = Drawn::<T, T>::new(case)?;
    let saved = Saved::new(device, case, &drawn)?;
    let mut results = Results::<T>::new(device, case)?;
    let operation = saved.operation();
    let mut tally = Tally::new(operation.implementation()?, case.data == Data::Integers);
    operation.run_into(results.outputs())?;
    let dsinks = results.dsinks.as_ref().map(Tensor::to_vec).transpose()?;
    let ((dq, of_q), (dk, of_k), (dv, of_v)) = (results.dq.read()?, results.dk.read()?, results.dv.read()?);
    tally.outcome.stray_writes = of_q + of_k + of_v;
    let mut compared = Compared { gradients: [dq, dk, dv], tally };

    let arithmetic = match device.kind() {
        DeviceKind::Cpu => Arithmetic::Cpu,
        _ => Arithmetic::TensorCore,
    };
    let group = case.group;
    let mut of_sinks = vec![GradientSum::default(); case.heads()];
    let scale = f64::from(drawn.scores.scale);
    let widths = [case.width, case.value_width];
    for (b, sequence) in drawn.scores.sequences.iter().enumerate() {
        let model = GradientModel::new(arithmetic, case.dtype, widths, sequence.keys.len());
        let (rows, keys, matrix) = (sequence.rows.clone(), sequence.keys.clone(), sequence.matrix);
        let expected: Vec<HeadGradients> = (0..case.key_heads)
            .into_par_iter()
            .map(|key_head| {
                let of_keys = widened(&drawn.k, matrix, keys.clone(), key_head);
                let of_values = widened(&drawn.v, matrix, keys.clone(), key_head);
                let first = key_head * group;
                let heads: Vec<[Array2<f64>; 2]> = (first..first + group)
                    .map(|h| [&drawn.q, &saved.drawn].map(|of| widened(of, matrix, rows.clone(), h)))
                    .collect();
                drawn.scores.gradients(&model, [b, first], &heads, [of_keys.view(), of_values.view()])
            })
            .collect();
        for (key_head, of_head) in expected.into_iter().enumerate() {
            let judge = |sum: GradientSum, count: usize, factor: f64| {
                (sum.exact * factor, move |got: f64| model.judge(got, sum, count, factor))
            };
            for (of_group, dq) in of_head.dq.iter().enumerate() {
                for (i, dq) in dq.rows().into_iter().enumerate() {
                    let of_columns = dq.iter().map(|&sum| judge(sum, keys.len(), scale));
                    compared.row(0, [matrix, rows.start + i, key_head * group + of_group], of_columns);
                }
            }
            let count = rows.len() * group;
            for (which, gradient, factor) in [(1, &of_head.dk, scale), (2, &of_head.dv, 1.0)] {
                for (j, row) in gradient.rows().into_iter().enumerate() {
                    let of_columns = row.iter().map(|&sum| judge(sum, count, factor));
                    compared.row(which, [matrix, keys.start + j, key_head], of_columns);
                }
            }
            for (of_group, sum) in of_head.dsinks.into_iter().enumerate() {
                of_sinks[key_head * group + of_group].join(sum);
            }
        }
        if matches!(case.sequences, Sequences::Padded { .. }) {
            compared.zeros(0, matrix, rows.end);
            compared.zeros(1, matrix, keys.end);
            compared.zeros(2, matrix, keys.end);
        }
    }
    let [matrices, rows, keys] = case.sequences.axes();
    let model = GradientModel::new(arithmetic, case.dtype, widths, keys);
    for (h, (&got, sum)) in dsinks.iter().flatten().zip(of_sinks).enumerate() {
        compared.tally.outcome.compared += 1;
        let judge = |got| model.judge_sink(got, sum, matrices * rows);
        compared.tally.add([h, 0], f64::from(got), [sum.exact; 2], judge);
    }
    Ok(compared.tally.finish())
}
