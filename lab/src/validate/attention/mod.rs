//! Validation of attention: results and logarithms of sums against the f64 reference, within the bound; exact where one key has all the weight.

mod draw;
pub(super) mod gradient;
mod pages;
mod placed;

use float8::{F8E4M3, F8E5M2};
use half::{bf16, f16};
use ndarray::Array4;
use rayon::prelude::*;
use warpsmith::device::{Device, DeviceKind};
use warpsmith::error::{Error, Result};
use warpsmith::ops::attention::{AttentionInput, AttentionKeys, AttentionOp};
use warpsmith::ops::{self, Implementation};
use warpsmith::tensor::{DType, Tensor};
use warpsmith::weights::FloatElement;

use super::Outcome;
use super::load::{Output, Prepared, Step};
use super::tally::Tally;
use crate::bound::attention::AttentionModel;
use crate::bound::{Arithmetic, Judgement};
use crate::cases::{AttentionCase, Data, Sequences};
use crate::reference::attention::{Row, widened};
use draw::Drawn;
pub use gradient::{attention_backward, attention_backward_bits};
use pages::Pages;
use placed::{Placed, filled};

/// The operation's name in errors.
const OPERATION: &str = "validate::attention";
/// Products of queries and keys, and of weights and values, above which only some rows are compared.
const FULL_WORK: u64 = 1 << 30;
/// What the memory of a result, and beside it, is filled with: a number that no result is.
const SENTINEL: f32 = -24576.0;

/// Calls a function of the types of queries and of keys with these arguments.
macro_rules! of_types {
    ($case:ident, $function:ident, $arguments:tt) => {
        match ($case.dtype, $case.keys_dtype) {
            (DType::F16, None) => of_types!(@call $function::<f16, f16> $arguments),
            (DType::F16, Some(DType::F8E4M3)) => of_types!(@call $function::<f16, F8E4M3> $arguments),
            (DType::F16, Some(DType::F8E5M2)) => of_types!(@call $function::<f16, F8E5M2> $arguments),
            (DType::Bf16, None) => of_types!(@call $function::<bf16, bf16> $arguments),
            (DType::Bf16, Some(DType::F8E4M3)) => of_types!(@call $function::<bf16, F8E4M3> $arguments),
            (DType::Bf16, Some(DType::F8E5M2)) => of_types!(@call $function::<bf16, F8E5M2> $arguments),
            (DType::F32, None) => of_types!(@call $function::<f32, f32> $arguments),
            (DType::F16 | DType::Bf16 | DType::F32, Some(actual)) => {
                Err(other_type("k", "that of q, or of f16 and bf16 also f8e4m3 or f8e5m2", actual))
            }
            (actual, _) => Err(other_type("q", "f16, bf16 or f32", actual)),
        }
    };
    (@call $function:ident::<$element:ty, $keys:ty> ($($argument:expr),*)) => {
        $function::<$element, $keys>($($argument),*)
    };
}

/// Runs one case on `device` and compares `y` and `lse` with the reference.
///
/// # Errors
///
/// [`Error::Type`] if the case's types are none of attention's, [`Error::Argument`] if its data are integers and scores have other terms than products; otherwise
/// whatever the operation returns.
pub fn attention(device: &Device, case: &AttentionCase) -> Result<Outcome> {
    of_types!(case, check, (device, case))
}

fn other_type(operand: &'static str, expected: &str, actual: DType) -> Error {
    Error::Type { operation: OPERATION, operand, expected: expected.into(), actual }
}

/// The bits of `y` and then of `lse`, for a comparison of devices.
///
/// # Errors
///
/// As [`attention`].
pub fn attention_bits(device: &Device, case: &AttentionCase) -> Result<Vec<u32>> {
    fn of_type<T: Queries, K: Keys<T>>(device: &Device, case: &AttentionCase) -> Result<Vec<u32>> {
        let inputs = Inputs::<T, K>::new(device, case, &Drawn::new(case)?)?;
        let (y, lse) = inputs.operation().run_with_lse()?;
        let y = y.to_vec()?.into_iter().map(|y| y.to_f32().to_bits());
        Ok(y.chain(lse.to_vec()?.into_iter().map(f32::to_bits)).collect())
    }
    of_types!(case, of_type, (device, case))
}

/// A type of queries.
trait Queries: AttentionInput + FloatElement {}
impl<T: AttentionInput + FloatElement> Queries for T {}

/// A type of keys for queries of type `T`.
trait Keys<T: Queries>: AttentionKeys<T> + FloatElement {}
impl<T: Queries, K: AttentionKeys<T> + FloatElement> Keys<T> for K {}

/// What an attention reads, on the device.
struct Inputs<T: Queries, K: Keys<T>> {
    q: Placed<T>,
    k: Placed<K>,
    v: Placed<K>,
    key_scales: [Option<Tensor<f32>>; 2],
    mask: Option<Tensor<u8>>,
    bias: Option<Tensor<T>>,
    blocks: Option<(Tensor<u8>, [u32; 2])>,
    slopes: Option<Tensor<f32>>,
    sinks: Option<Tensor<f32>>,
    /// Lengths, or offsets.
    lengths: Option<[Tensor<u32>; 2]>,
    is_packed: bool,
    page_table: Option<Tensor<u32>>,
    case: AttentionCase,
    scale: f32,
}

impl<T: Queries, K: Keys<T>> Inputs<T, K> {
    fn new(device: &Device, case: &AttentionCase, drawn: &Drawn<T, K>) -> Result<Self> {
        let (scores, is_packed) = (&drawn.scores, matches!(case.sequences, Sequences::Packed(_)));
        let nan = K::round(f64::NAN);
        let place = |elements: &Array4<K>| Placed::new(device, elements, case.layout, nan, is_packed);
        let pages = case.page_size.map(|size| Pages::new(case, size)).transpose()?;
        let place_keys = |elements: &Array4<K>| match &pages {
            Some(pages) => place(&pages.place(elements, nan)?),
            None => place(elements),
        };
        let vector = |numbers: Vec<u32>| Tensor::from_slice(device, &numbers, [numbers.len()]);
        let each =
            |which: usize| (0..case.sequences.batch()).map(move |b| case.sequences.lengths(b)[which] as u32);
        let lengths = match case.sequences {
            Sequences::Equal { .. } => None,
            Sequences::Padded { .. } => Some([vector(each(0).collect())?, vector(each(1).collect())?]),
            Sequences::Packed(_) => {
                let offsets = |which: usize| {
                    let ends = each(which).scan(0, |end, length| {
                        *end += length;
                        Some(*end)
                    });
                    vector(std::iter::once(0).chain(ends).collect())
                };
                Some([offsets(0)?, offsets(1)?])
            }
        };
        let blocks = match (&scores.blocks, &case.blocks) {
            (Some((mask, _)), Some((_, sizes))) => Some((Tensor::from_array(device, mask)?, *sizes)),
            _ => None,
        };
        let slopes = scores.slopes.as_ref().map(|slopes| {
            let tensor = Tensor::from_array(device, slopes)?;
            if slopes.nrows() == case.sequences.batch() { Ok(tensor) } else { tensor.reshape([case.heads()]) }
        });
        let scales_of = |scales: &Option<Vec<f32>>| {
            scales.as_ref().map(|scales| Tensor::from_slice(device, scales, [scales.len()])).transpose()
        };
        Ok(Self {
            q: Placed::new(device, &drawn.q, case.layout, T::round(f64::NAN), is_packed)?,
            k: place_keys(&drawn.k)?,
            v: place_keys(&drawn.v)?,
            key_scales: [scales_of(&drawn.key_scales[0])?, scales_of(&drawn.key_scales[1])?],
            mask: scores.mask.as_ref().map(|mask| Tensor::from_array(device, mask)).transpose()?,
            bias: scores.bias.as_ref().map(|bias| Tensor::from_array(device, bias)).transpose()?,
            blocks,
            slopes: slopes.transpose()?,
            sinks: scores
                .sinks
                .as_ref()
                .map(|sinks| Tensor::from_slice(device, sinks, [sinks.len()]))
                .transpose()?,
            lengths,
            is_packed,
            page_table: pages.as_ref().map(|pages| pages.table_on(device)).transpose()?,
            case: case.clone(),
            scale: scores.scale,
        })
    }

    fn operation(&self) -> AttentionOp<'_, T, K> {
        let window = self.case.window;
        let mut operation = ops::attention(self.q.view(), self.k.view(), self.v.view())
            .scale(self.scale)
            .k_scale(self.key_scales[0].as_ref())
            .v_scale(self.key_scales[1].as_ref())
            .soft_cap(self.case.soft_cap)
            .mask(self.mask.as_ref())
            .bias(self.bias.as_ref())
            .alibi(self.slopes.as_ref())
            .way(self.case.way)
            .sinks(self.sinks.as_ref())
            .pages(self.page_table.as_ref());
        if window != ops::attention::Window::default() {
            operation = operation.window(window.left(), window.right(), window.alignment());
        }
        if let Some((mask, sizes)) = &self.blocks {
            operation = operation.block_mask(mask, *sizes);
        }
        match &self.lengths {
            Some([of_q, of_k]) if self.is_packed => operation.packed(of_q, of_k),
            Some([of_q, of_k]) => operation.lengths(Some(of_q), Some(of_k)),
            None => operation,
        }
    }
}

/// Memory for the results.
struct Results<T: FloatElement> {
    y: Placed<T>,
    lse: Tensor<f32>,
}

impl<T: FloatElement> Results<T> {
    fn new(device: &Device, case: &AttentionCase) -> Result<Self> {
        let ([matrices, rows, _], heads) = (case.sequences.axes(), case.heads());
        let is_packed = matches!(case.sequences, Sequences::Packed(_));
        let sentinel = T::round(SENTINEL.into());
        let shape = [matrices, rows, heads, case.value_width];
        let elements = filled(shape, sentinel)?;
        let y = Placed::new(device, &elements, case.layout, sentinel, is_packed)?;
        let lse = Tensor::from_array(device, &filled([1, matrices, heads, rows], SENTINEL)?)?;
        let lse = lse.reshape(&[matrices, heads, rows][usize::from(is_packed)..])?;
        Ok(Self { y, lse })
    }
}

/// Prepares a case to be run again and again into one of `slots` outputs.
pub(super) fn prepare(device: &Device, case: &AttentionCase, slots: usize) -> Result<Prepared> {
    fn of_type<T: Queries, K: Keys<T>>(
        device: &Device,
        case: &AttentionCase,
        slots: usize,
    ) -> Result<Prepared> {
        let inputs = Inputs::<T, K>::new(device, case, &Drawn::new(case)?)?;
        let of_slots = (0..slots).map(|_| Results::<T>::new(device, case)).collect::<Result<Vec<_>>>()?;
        let memory = |results: &Results<T>| {
            Ok(vec![Output::new("y", results.y.all())?, Output::new("lse", &results.lse)?])
        };
        Prepared::of_slots(of_slots, memory, move |results, step| {
            let operation = inputs.operation();
            match step {
                Step::Ask => operation.implementation(),
                Step::Run => operation
                    .run_into_with_lse(results.y.view_mut(), &mut results.lse)
                    .map(|()| Implementation::Empty),
            }
        })
    }
    of_types!(case, of_type, (device, case, slots))
}

fn check<T: Queries, K: Keys<T>>(device: &Device, case: &AttentionCase) -> Result<Outcome> {
    let drawn = Drawn::<T, K>::new(case)?;
    let inputs = Inputs::new(device, case, &drawn)?;
    let mut results = Results::<T>::new(device, case)?;
    let operation = inputs.operation();
    let mut tally = Tally::new(operation.implementation()?, case.data == Data::Integers);
    operation.run_into_with_lse(results.y.view_mut(), &mut results.lse)?;
    let (y, strays) = results.y.read()?;
    tally.outcome.stray_writes = strays;
    let lse = results.lse.to_vec()?;

    let ([_, rows, _], heads) = (case.sequences.axes(), case.heads());
    let arithmetic = match device.kind() {
        DeviceKind::Cpu => Arithmetic::Cpu,
        _ => Arithmetic::TensorCore,
    };
    let place = |matrix: usize, row: usize, h: usize| {
        ((matrix * rows + row) * heads + h, (matrix * heads + h) * rows + row)
    };
    let zeros = vec![Default::default(); case.value_width];
    let mut judge = |[matrix, row, h]: [usize; 3], model: &AttentionModel, expected: Row| {
        let (index, of_sum) = place(matrix, row, h);
        let got = f64::from(lse[of_sum]);
        tally.outcome.compared += case.value_width + 1;
        for (column, element) in expected.elements.into_iter().enumerate() {
            let got = f64::from(y[[matrix, row, h, column]].to_f32());
            let rounded = f64::from(T::round(element.y).to_f32());
            tally.add([index, column], got, [element.y, rounded], |got| match expected.sum {
                Some(sum) => model.judge(got, element, sum),
                None => Judgement { error: got.abs(), bound: 0.0, within: got == 0.0 },
            });
        }
        match expected.sum {
            Some(sum) => {
                tally.add([index, case.value_width], got, [sum.lse; 2], |got| model.judge_lse(got, sum));
            }
            None => tally.outcome.failures += usize::from(got != f64::NEG_INFINITY),
        }
    };
    for (b, sequence) in drawn.scores.sequences.iter().enumerate() {
        let model = AttentionModel::new(arithmetic, case.dtype, case.width, sequence.keys.len())
            .with_scales(case.key_scales.map(|scales| scales.is_some()));
        let every = every(case, sequence.rows.len(), sequence.keys.len());
        for h in 0..heads {
            let key_head = h / case.group;
            // What stored numbers stand for: products of so few bits are exact.
            let scaled = |operand: &Array4<K>, scales: &Option<Vec<f32>>| {
                let widened = widened(operand, sequence.matrix, sequence.keys.clone(), key_head);
                match scales {
                    Some(scales) => widened * f64::from(scales[if scales.len() == 1 { 0 } else { key_head }]),
                    None => widened,
                }
            };
            let [k_scale, v_scale] = &drawn.key_scales;
            let (keys, values) = (scaled(&drawn.k, k_scale), scaled(&drawn.v, v_scale));
            let queries = widened(&drawn.q, sequence.matrix, sequence.rows.clone(), h);
            let compared: Vec<usize> =
                (0..sequence.rows.len()).filter(|row| is_compared(*row, every)).collect();
            let expected: Vec<(usize, Row)> = compared
                .into_par_iter()
                .map(|i| {
                    let query = queries.row(i);
                    let query = query.to_slice().unwrap_or_default();
                    (i, drawn.scores.row(&model, [b, h, i], query, keys.view(), values.view()))
                })
                .collect();
            for (i, expected) in expected {
                judge([sequence.matrix, sequence.rows.start + i, h], &model, expected);
            }
        }
        if matches!(case.sequences, Sequences::Padded { .. }) {
            for row in sequence.rows.end..rows {
                for h in 0..heads {
                    judge([b, row, h], &model, Row { elements: zeros.clone(), sum: None });
                }
            }
        }
    }
    Ok(tally.finish())
}

/// Of so many rows one is compared, so that the reference does not take too long.
fn every(case: &AttentionCase, rows: usize, keys: usize) -> usize {
    let sequences = case.sequences.batch() * case.heads();
    let work = [sequences, rows, keys, case.width + case.value_width];
    let work = work.into_iter().fold(1u64, |work, size| work.saturating_mul(size as u64));
    work.div_ceil(FULL_WORK).max(1) as usize
}

/// Whether a row is compared: the first rows of tiles of any size, and rows within them, have their turn.
fn is_compared(row: usize, every: usize) -> bool {
    (row + row / every).is_multiple_of(every)
}
