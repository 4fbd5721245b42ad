//! Measuring attention.

use half::{bf16, f16};
use warpsmith::error::{Error, Result};
use warpsmith::ops::attention::{
    Alignment, AttentionGradientOp, AttentionGradientOutputs, AttentionInput, AttentionOp, Window,
};
use warpsmith::ops::{self, Implementation};
use warpsmith::stream::Stream;
use warpsmith::tensor::{DType, Element, Tensor};
use warpsmith::weights::FloatElement;

use super::{Subject, sets_beyond_cache};
use crate::cases::{AttentionCase, Data, Sequences, Slopes};

/// The operation's name in errors.
const OPERATION: &str = "benchmark::attention";
/// Of a mask's elements, those below this number let a row attend: nine of ten, of numbers evenly from [−1, 1).
const ATTENDS_BELOW: f32 = 0.8;

/// An attention ready to be measured: sets of operands in the device's memory, through which the launches rotate.
pub struct AttentionSubject {
    /// The operation.
    pub operation: Box<dyn Subject>,
    /// What it runs.
    pub implementation: Implementation,
    /// Its products of rows and keys, and of weights and values, as floating-point operations: only of pairs that the lengths and the window let attend.
    pub flops: f64,
    /// Bytes that it must read and write.
    pub bytes: f64,
}

/// Places the operands of `case` on the stream's device. They are in rows without gaps, and their elements are drawn evenly, whatever layout and data the
/// case has.
///
/// # Errors
///
/// [`Error::Type`] if the case's type is not f16, bf16 or f32, [`Error::SizeLimit`] if it has more elements than can be counted,
/// [`Error::OutOfMemory`] if the host or the device cannot hold the operands; otherwise whatever the operation returns.
pub fn attention_subject(stream: &Stream, case: &AttentionCase) -> Result<AttentionSubject> {
    match case.dtype {
        DType::F16 => subject::<f16>(stream, case),
        DType::Bf16 => subject::<bf16>(stream, case),
        DType::F32 => subject::<f32>(stream, case),
        actual => Err(Error::Type {
            operation: OPERATION,
            operand: "q",
            expected: "f16, bf16 or f32".into(),
            actual,
        }),
    }
}

/// The same of the gradients of `case`, which are measured without the forward pass: of q, k, v, and of sinks, if there are some.
///
/// # Errors
///
/// As [`attention_subject`]; whatever the forward pass returns.
pub fn attention_backward_subject(stream: &Stream, case: &AttentionCase) -> Result<AttentionSubject> {
    match case.dtype {
        DType::F16 => gradient_subject::<f16>(stream, case),
        DType::Bf16 => gradient_subject::<bf16>(stream, case),
        DType::F32 => gradient_subject::<f32>(stream, case),
        actual => Err(Error::Type {
            operation: OPERATION,
            operand: "q",
            expected: "f16, bf16 or f32".into(),
            actual,
        }),
    }
}

/// Operands of one launch.
struct Set<T: Element> {
    q: Tensor<T>,
    k: Tensor<T>,
    v: Tensor<T>,
    mask: Option<Tensor<u8>>,
    bias: Option<Tensor<T>>,
    blocks: Option<(Tensor<u8>, [u32; 2])>,
    slopes: Option<Tensor<f32>>,
    sinks: Option<Tensor<f32>>,
    /// Lengths, or offsets.
    lengths: Option<[Tensor<u32>; 2]>,
    page_table: Option<Tensor<u32>>,
    y: Tensor<T>,
}

impl<T: AttentionInput + FloatElement> Set<T> {
    fn new(stream: &Stream, case: &AttentionCase) -> Result<Self> {
        let (device, heads, batch) = (stream.device(), case.heads(), case.sequences.batch());
        let ([matrices, rows, keys], is_packed) = (case.sequences.axes(), is_packed(case));
        let tensor = |which: u64, shape: [usize; 4]| -> Result<Tensor<T>> {
            let [.., columns] = shape;
            let lines = elements(&shape[..3])?;
            let drawn =
                Data::Uniform.draw(case.seed, which, (lines, columns), 1, |v| T::round(f64::from(v)))?;
            let tensor = Tensor::from_array(device, &drawn)?;
            if is_packed && which < 4 { tensor.reshape(&shape[1..]) } else { tensor.reshape(shape) }
        };
        let mask = |which: u64, shape: [usize; 4]| -> Result<Tensor<u8>> {
            let [.., columns] = shape;
            let lines = elements(&shape[..3])?;
            let attends = |v| u8::from(v < ATTENDS_BELOW);
            let drawn = Data::Uniform.draw(case.seed, which, (lines, columns), 1, attends)?;
            Tensor::from_array(device, &drawn)?.reshape(shape)
        };
        let columns = pages_of_sequence(case)?;
        // Of pages as many as hold the keys.
        let of_keys = |width: usize| -> Result<[usize; 4]> {
            Ok(match case.page_size.zip(columns) {
                Some((size, columns)) => [elements(&[batch, columns])?, size, case.key_heads, width],
                None => [matrices, keys, case.key_heads, width],
            })
        };
        let full = [batch, heads, rows, keys];
        let output = [matrices, rows, heads, case.value_width];
        let blocks = match case.blocks {
            Some((is_one, sizes)) => {
                let [of_rows, of_keys] = sizes.map(|size| (size as usize).max(1));
                let blocks = [batch, heads, rows.div_ceil(of_rows), keys.div_ceil(of_keys)];
                Some((mask(6, shortened(&is_one, blocks))?, sizes))
            }
            None => None,
        };
        let slopes = case.slopes.map(|slopes| {
            let of_head = |index: usize| 2f32.powi(-1 - (index % heads.max(1) % 8) as i32);
            let shape: &[usize] = if slopes == Slopes::OfHeads { &[heads] } else { &[batch, heads] };
            let all: Vec<f32> = (0..elements(shape)?).map(of_head).collect();
            Tensor::from_slice(device, &all, shape)
        });
        let sinks = case.sinks.then(|| Tensor::from_slice(device, &vec![0.0; heads], [heads]));
        Ok(Self {
            q: tensor(1, [matrices, rows, heads, case.width])?,
            k: tensor(2, of_keys(case.width)?)?,
            v: tensor(3, of_keys(case.value_width)?)?,
            mask: case.mask.map(|is_one| mask(4, shortened(&is_one, full))).transpose()?,
            bias: case.bias.map(|is_one| tensor(5, shortened(&is_one, full))).transpose()?,
            blocks,
            slopes: slopes.transpose()?,
            sinks: sinks.transpose()?,
            lengths: lengths(stream, case)?,
            page_table: columns.map(|columns| page_table(stream, [batch, columns])).transpose()?,
            y: Tensor::zeros_on(stream, &output[usize::from(is_packed)..])?,
        })
    }

    /// The same in memory of its own; what is small is shared.
    fn copied(&self, stream: &Stream) -> Result<Self> {
        let (mask, bias) = (self.mask.as_ref(), self.bias.as_ref());
        Ok(Self {
            q: self.q.deep_clone()?,
            k: self.k.deep_clone()?,
            v: self.v.deep_clone()?,
            mask: mask.map(Tensor::deep_clone).transpose()?,
            bias: bias.map(Tensor::deep_clone).transpose()?,
            blocks: self.blocks.clone(),
            slopes: self.slopes.clone(),
            sinks: self.sinks.clone(),
            lengths: self.lengths.clone(),
            page_table: self.page_table.clone(),
            y: Tensor::zeros_on(stream, self.y.shape())?,
        })
    }

    fn operation(&self, case: &AttentionCase) -> AttentionOp<'_, T> {
        let mut operation = ops::attention(&self.q, &self.k, &self.v)
            .soft_cap(case.soft_cap)
            .mask(self.mask.as_ref())
            .bias(self.bias.as_ref())
            .alibi(self.slopes.as_ref())
            .sinks(self.sinks.as_ref())
            .pages(self.page_table.as_ref());
        if let Some(scale) = case.scale {
            operation = operation.scale(scale);
        }
        let window = case.window;
        if window != Window::default() {
            operation = operation.window(window.left(), window.right(), window.alignment());
        }
        if let Some((mask, sizes)) = &self.blocks {
            operation = operation.block_mask(mask, *sizes);
        }
        match &self.lengths {
            Some([of_q, of_k]) if is_packed(case) => operation.packed(of_q, of_k),
            Some([of_q, of_k]) => operation.lengths(Some(of_q), Some(of_k)),
            None => operation,
        }
    }
}

fn is_packed(case: &AttentionCase) -> bool {
    matches!(case.sequences, Sequences::Packed(_))
}

/// The pages of each sequence, if keys and values are in pages.
fn pages_of_sequence(case: &AttentionCase) -> Result<Option<usize>> {
    let Some(size) = case.page_size else { return Ok(None) };
    let [.., keys] = case.sequences.axes();
    if is_packed(case) || size == 0 || keys % size != 0 {
        return Err(Error::Argument {
            operation: OPERATION,
            argument: "page size",
            expected: format!("a divisor of the {keys} keys, of sequences that are not packed"),
            actual: size.to_string(),
        });
    }
    Ok(Some(keys / size))
}

/// A table of pages that are in memory in the order of their columns: the pages of a sequence do not follow each other.
fn page_table(stream: &Stream, [batch, columns]: [usize; 2]) -> Result<Tensor<u32>> {
    let pages: Vec<u32> =
        (0..elements(&[batch, columns])?).map(|at| (at % columns * batch + at / columns) as u32).collect();
    Tensor::from_slice(stream.device(), &pages, [batch, columns])
}

/// `shape` with the length 1 where `is_one` says so.
fn shortened(is_one: &[bool], mut shape: [usize; 4]) -> [usize; 4] {
    shape.iter_mut().zip(is_one).filter(|(_, is_one)| **is_one).for_each(|(length, _)| *length = 1);
    shape
}

/// The number of elements of a shape.
fn elements(shape: &[usize]) -> Result<usize> {
    shape.iter().try_fold(1usize, |product, &length| product.checked_mul(length)).ok_or_else(|| {
        Error::SizeLimit {
            operation: OPERATION,
            operand: "operands",
            quantity: "number of elements",
            limit: format!("at most {}", usize::MAX),
            actual: format!("that of {shape:?}"),
        }
    })
}

/// Lengths, or offsets, of rows and of keys; nothing where all count.
fn lengths(stream: &Stream, case: &AttentionCase) -> Result<Option<[Tensor<u32>; 2]>> {
    let each =
        |which: usize| (0..case.sequences.batch()).map(move |b| case.sequences.lengths(b)[which] as u32);
    let vector = |numbers: Vec<u32>| Tensor::from_slice(stream.device(), &numbers, [numbers.len()]);
    let offsets = |which: usize| {
        let ends = each(which).scan(0u32, |end, length| {
            *end = end.saturating_add(length);
            Some(*end)
        });
        vector(std::iter::once(0).chain(ends).collect())
    };
    Ok(match case.sequences {
        Sequences::Equal { .. } => None,
        Sequences::Padded { .. } => Some([vector(each(0).collect())?, vector(each(1).collect())?]),
        Sequences::Packed(_) => Some([offsets(0)?, offsets(1)?]),
    })
}

/// Pairs of a row and a key of one head that lengths and window let attend.
fn pairs(case: &AttentionCase) -> f64 {
    let window = case.window;
    let of_sequence = |b: usize| {
        let [rows, keys] = case.sequences.lengths(b).map(|length| length as i64);
        if window.left().is_none() && window.right().is_none() {
            return rows as f64 * keys as f64;
        }
        let offset = if window.alignment() == Alignment::TopLeft { 0 } else { keys - rows };
        let of_row = |row: i64| {
            let beside = row + offset;
            let start = window.left().map_or(0, |left| (beside - i64::from(left)).clamp(0, keys));
            let end = window.right().map_or(keys, |right| (beside + i64::from(right) + 1).clamp(0, keys));
            (end - start).max(0) as f64
        };
        (0..rows).map(of_row).sum()
    };
    (0..case.sequences.batch()).map(of_sequence).sum()
}

/// Bytes that an attention must read and write: of rows and keys that count, and of all results.
fn bytes<T: AttentionInput + FloatElement>(case: &AttentionCase, set: &Set<T>) -> f64 {
    let sum = |which: usize| -> usize {
        (0..case.sequences.batch()).map(|b| case.sequences.lengths(b)[which]).sum()
    };
    let of_queries = sum(0) as f64 * (case.heads() * case.width) as f64;
    let of_keys = sum(1) as f64 * (case.key_heads * (case.width + case.value_width)) as f64;
    let of_bias = set.bias.as_ref().map_or(0, Tensor::len);
    let of_masks =
        set.mask.as_ref().map_or(0, Tensor::len) + set.blocks.as_ref().map_or(0, |(mask, _)| mask.len());
    (of_queries + of_keys + (set.y.len() + of_bias) as f64) * size_of::<T>() as f64 + of_masks as f64
}

fn subject<T: AttentionInput + FloatElement>(
    stream: &Stream,
    case: &AttentionCase,
) -> Result<AttentionSubject> {
    let first = Set::<T>::new(stream, case)?;
    let flops = 2.0 * pairs(case) * case.heads() as f64 * (case.width + case.value_width) as f64;
    let bytes = bytes(case, &first);
    let implementation = first.operation(case).implementation()?;
    let mut sets = vec![first];
    for _ in 1..sets_beyond_cache(stream.device(), bytes as u64) {
        sets.push(sets[0].copied(stream)?);
    }
    let (case, stream) = (case.clone(), stream.clone());
    let operation = move |index: usize| {
        let set = &sets[index % sets.len()];
        set.operation(&case).on(&stream).run_into(&mut set.y.clone())
    };
    Ok(AttentionSubject { operation: Box::new(operation), implementation, flops, bytes })
}

/// What the gradients of a set are computed from, and where they go.
struct GradientSet<T: Element> {
    set: Set<T>,
    lse: Tensor<f32>,
    dy: Tensor<T>,
    dq: Tensor<T>,
    dk: Tensor<T>,
    dv: Tensor<T>,
    dsinks: Option<Tensor<f32>>,
}

impl<T: AttentionInput + FloatElement> GradientSet<T> {
    fn new(stream: &Stream, case: &AttentionCase, set: Set<T>) -> Result<Self> {
        let (y, lse) = set.operation(case).on(stream).run_with_lse()?;
        let new = |like: &Tensor<T>| Tensor::zeros_on(stream, like.shape());
        // Numbers as evenly drawn as others: those of the values' size that results have.
        let dy = y.deep_clone()?;
        let dsinks = set.sinks.as_ref().map(|sinks| Tensor::zeros_on(stream, sinks.shape())).transpose()?;
        let (dq, dk, dv) = (new(&set.q)?, new(&set.k)?, new(&set.v)?);
        Ok(Self { set: Set { y, ..set }, lse, dy, dq, dk, dv, dsinks })
    }

    fn operation(&self, case: &AttentionCase) -> AttentionGradientOp<'_, T> {
        self.set.operation(case).backward(&self.set.y, &self.lse, &self.dy)
    }
}

fn gradient_subject<T: AttentionInput + FloatElement>(
    stream: &Stream,
    case: &AttentionCase,
) -> Result<AttentionSubject> {
    let first = Set::<T>::new(stream, case)?;
    // Q Kᵀ and dY Vᵀ; dQ, dK and dV.
    let products = 3 * case.width + 2 * case.value_width;
    let flops = 2.0 * pairs(case) * case.heads() as f64 * products as f64;
    // What the forward pass has, Y and dY read, and three gradients.
    let gradients = first.q.len() + first.k.len() + first.v.len() + first.y.len();
    let bytes = bytes(case, &first) + (gradients * size_of::<T>()) as f64;
    let mut sets = vec![GradientSet::new(stream, case, first)?];
    let implementation = sets[0].operation(case).implementation()?;
    for _ in 1..sets_beyond_cache(stream.device(), bytes as u64) {
        let copied = sets[0].set.copied(stream)?;
        sets.push(GradientSet::new(stream, case, copied)?);
    }
    let (case, stream) = (case.clone(), stream.clone());
    let operation = move |index: usize| {
        let of = &sets[index % sets.len()];
        let mut dsinks = of.dsinks.clone();
        of.operation(&case).on(&stream).run_into(AttentionGradientOutputs {
            dq: Some(&mut of.dq.clone()),
            dk: Some(&mut of.dk.clone()),
            dv: Some(&mut of.dv.clone()),
            dsinks: dsinks.as_mut(),
            adds: false,
        })
    };
    Ok(AttentionSubject { operation: Box::new(operation), implementation, flops, bytes })
}

#[cfg(test)]
mod tests {
    use warpsmith::ops::Implementation;
    use warpsmith::ops::attention::{Alignment, Window};
    use warpsmith::{DType, Device};

    use super::{attention_backward_subject, attention_subject, pairs};
    use crate::cases::{AttentionCase, Sequences, Slopes};

    fn case(sequences: Sequences) -> AttentionCase {
        AttentionCase { sequences, ..AttentionCase::new(DType::Bf16, [0; 3], [2, 3], 8) }
    }

    #[test]
    fn products_and_bytes_are_those_of_what_is_attended_to() {
        let stream = Device::cpu().default_stream();
        let equal = case(Sequences::Equal { batch: 2, rows: 5, keys: 7 });
        let subject = attention_subject(&stream, &equal).expect("it fits");
        assert_eq!(subject.implementation, Implementation::Cpu);
        assert_eq!(subject.flops, 4.0 * 2.0 * 6.0 * 5.0 * 7.0 * 8.0);
        assert_eq!(subject.bytes, 2.0 * f64::from(2 * (2 * 5 * 6 * 8 + 2 * 7 * 2 * 8)));
        let padded = Sequences::Padded { rows: 5, keys: 7, lengths: vec![[5, 7], [2, 3]] };
        let masked = AttentionCase { mask: Some([false, true, false, false]), ..case(padded) };
        let subject = attention_subject(&stream, &masked).expect("it fits");
        assert_eq!(subject.flops, 4.0 * 6.0 * (5.0 * 7.0 + 2.0 * 3.0) * 8.0);
        let elements = 7 * 6 * 8 + 10 * 2 * 16 + 2 * 5 * 6 * 8;
        assert_eq!(subject.bytes, f64::from(2 * elements + 2 * 5 * 7));
    }

    #[test]
    fn gradients_are_five_products_and_are_enqueued() {
        let stream = Device::cpu().default_stream();
        let sizes = Sequences::Equal { batch: 2, rows: 5, keys: 7 };
        let of = AttentionCase { value_width: 4, sinks: true, ..case(sizes) };
        let mut subject = attention_backward_subject(&stream, &of).expect("it fits");
        assert_eq!(subject.implementation, Implementation::Cpu);
        assert_eq!(subject.flops, 2.0 * 2.0 * 6.0 * 5.0 * 7.0 * (3.0 * 8.0 + 2.0 * 4.0));
        let (of_rows, of_keys) = (2 * 5 * 6, 2 * 7 * 2);
        assert_eq!(subject.bytes, 2.0 * f64::from(2 * (of_rows * (8 + 4) + of_keys * (8 + 4))));
        subject.operation.enqueue(0).expect("it fits");
    }

    #[test]
    fn a_window_leaves_the_pairs_within_it() {
        let of = |rows, keys, left, right, alignment| {
            let window = Window::new(left, right, alignment);
            pairs(&AttentionCase { window, ..case(Sequences::Equal { batch: 3, rows, keys }) })
        };
        assert_eq!(of(4, 4, None, Some(0), Alignment::BottomRight), 3.0 * 10.0);
        assert_eq!(of(4, 6, None, Some(0), Alignment::BottomRight), 3.0 * (3.0 + 4.0 + 5.0 + 6.0));
        assert_eq!(of(4, 6, None, Some(0), Alignment::TopLeft), 3.0 * 10.0);
        // Rows that stand beside no key attend to nothing.
        assert_eq!(of(6, 4, None, Some(0), Alignment::BottomRight), 3.0 * 10.0);
        assert_eq!(of(4, 4, Some(1), Some(0), Alignment::BottomRight), 3.0 * 7.0);
        assert_eq!(of(4, 6, None, None, Alignment::TopLeft), 3.0 * 24.0);
    }

    #[test]
    fn every_option_is_launched_as_it_is_told() {
        let stream = Device::cpu().default_stream();
        let causal = Window::new(None, Some(0), Alignment::BottomRight);
        let of_axes = [true, false, false, false];
        let sizes = Sequences::Equal { batch: 2, rows: 3, keys: 9 };
        let all = AttentionCase {
            window: causal,
            scale: Some(0.5),
            soft_cap: Some(5.0),
            mask: Some(of_axes),
            bias: Some(of_axes),
            blocks: Some(([false, true], [2, 4])),
            slopes: Some(Slopes::OfSequences),
            sinks: true,
            ..case(sizes)
        };
        let packed =
            AttentionCase { window: causal, ..case(Sequences::Packed(vec![[3, 3], [0, 2], [4, 4]])) };
        let paged = AttentionCase { page_size: Some(3), ..all.clone() };
        for case in [all, packed, paged] {
            let mut subject = attention_subject(&stream, &case).expect("it fits");
            (0..3).try_for_each(|index| subject.operation.enqueue(index)).expect("nothing is refused");
        }
        let torn =
            AttentionCase { page_size: Some(4), ..case(Sequences::Equal { batch: 1, rows: 1, keys: 9 }) };
        assert!(attention_subject(&stream, &torn).is_err());
        let other = AttentionCase { dtype: DType::U8, ..case(Sequences::Packed(vec![])) };
        assert!(attention_subject(&stream, &other).is_err());
    }
}
