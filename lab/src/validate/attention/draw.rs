//! The operands of a case of attention.

use ndarray::{Array2, Array4};
use warpsmith::cpu::Operand;
use warpsmith::error::{Error, Result};
use warpsmith::weights::FloatElement;

use super::OPERATION;
use crate::cases::{AttentionCase, Data, KeyScales, Sequences, Slopes, split_mix};
use crate::reference::attention::{Scores, Sequence};

/// The scale that makes a difference of 1 between products one of all the weight: exp(−256) is 0 in f32.
const EXACT_SCALE: f32 = 256.0;
/// What queries are multiplied with, so that the weights of a row differ.
const SPREAD: f64 = 4.0;
/// The digits that the number of a key is written in, one for three columns, with the largest square that is exact in every type.
const BASE: usize = 16;
/// The same of 8 bits.
const BASE_OF_FP8: usize = 3;

/// The most sequences of a case.
const MOST_SEQUENCES: usize = 1 << 24;

/// Everything that an attention reads.
pub(super) struct Drawn<T, K> {
    pub(super) q: Array4<T>,
    pub(super) k: Array4<K>,
    pub(super) v: Array4<K>,
    /// Of k and of v, one or one of each head.
    pub(super) key_scales: [Option<Vec<f32>>; 2],
    pub(super) scores: Scores<T>,
}

/// Where each sequence has its rows and keys.
fn sequences(case: &AttentionCase) -> Vec<Sequence> {
    let mut ends = [0; 2];
    (0..case.sequences.batch())
        .map(|b| {
            let [rows, keys] = case.sequences.lengths(b);
            if !matches!(case.sequences, Sequences::Packed(_)) {
                return Sequence { matrix: b, rows: 0..rows, keys: 0..keys };
            }
            let [row, key] = ends;
            ends = [row + rows, key + keys];
            Sequence { matrix: 0, rows: row..ends[0], keys: key..ends[1] }
        })
        .collect()
}

/// The error for a case that cannot be drawn: lengths beyond their axes, blocks of nothing, pages of a part of the keys, or more elements than can be addressed.
fn expect_drawable(case: &AttentionCase) -> Result<()> {
    let argument = |argument, expected: &str, actual: String| {
        Err(Error::Argument { operation: OPERATION, argument, expected: expected.into(), actual })
    };
    if let Sequences::Padded { rows, keys, lengths } = &case.sequences
        && let Some(length) = lengths.iter().find(|[of_rows, of_keys]| of_rows > rows || of_keys > keys)
    {
        return argument("lengths", &format!("at most {rows} rows and {keys} keys"), format!("{length:?}"));
    }
    if let Some((_, sizes)) = case.blocks
        && sizes.contains(&0)
    {
        return argument("block size", "at least one row and one key", format!("{sizes:?}"));
    }
    let ([matrices, rows, keys], batch) = (case.sequences.axes(), case.sequences.batch());
    if let Some(size) = case.page_size {
        let is_packed = matches!(case.sequences, Sequences::Packed(_));
        if is_packed || size == 0 || keys % size != 0 {
            let expected = format!("a divisor of the {keys} keys, of sequences that are not packed");
            return argument("page size", &expected, size.to_string());
        }
    }
    if batch > MOST_SEQUENCES {
        return Err(Error::SizeLimit {
            operation: OPERATION,
            operand: "q",
            quantity: "number of sequences",
            limit: format!("at most {MOST_SEQUENCES}"),
            actual: batch.to_string(),
        });
    }
    let has_scores = case.mask.is_some() || case.bias.is_some() || case.blocks.is_some();
    for (operand, shape) in [
        ("q", [matrices, rows, case.heads(), case.width]),
        ("k", [matrices, keys, case.key_heads, case.width]),
        ("v", [matrices, keys, case.key_heads, case.value_width]),
        ("y", [matrices, rows, case.heads(), case.value_width]),
        ("mask", if has_scores { [batch, case.heads(), rows, keys] } else { [0; 4] }),
    ] {
        // With room for what may lie beside them, and as if no axis were empty.
        let most = isize::MAX as usize / size_of::<f64>();
        let elements = shape.into_iter().try_fold(1usize, |product, length| {
            product.checked_mul(length.checked_add(32)?).filter(|&elements| elements <= most)
        });
        if elements.is_none() {
            return Err(Error::SizeLimit {
                operation: OPERATION,
                operand,
                quantity: "number of elements",
                limit: format!("at most {most}, with what lies beside them"),
                actual: format!("that of {shape:?}"),
            });
        }
    }
    Ok(())
}

impl<T: FloatElement + Operand, K: FloatElement + Operand> Drawn<T, K> {
    pub(super) fn new(case: &AttentionCase) -> Result<Self> {
        expect_drawable(case)?;
        let [matrices, rows, keys] = case.sequences.axes();
        let (batch, heads) = (case.sequences.batch(), case.heads());
        let full = [batch, heads, rows, keys];
        let short = |is_one: &[bool], full: [usize; 4]| {
            let mut shape = full;
            for (length, _) in shape.iter_mut().zip(is_one).filter(|(_, is_one)| **is_one) {
                *length = 1;
            }
            shape
        };
        let flags = |stream, shape| {
            drawn(
                case.seed,
                stream,
                shape,
                |uniform| if uniform < 0.3 { 1 + (uniform < 0.0) as u8 } else { 0 },
            )
        };
        let blocks = match &case.blocks {
            Some((is_one, sizes)) => {
                let sizes = sizes.map(|size| size as usize);
                let shape = short(is_one, [batch, heads, rows.div_ceil(sizes[0]), keys.div_ceil(sizes[1])]);
                Some((flags(6, shape)?, sizes))
            }
            None => None,
        };
        let bias = |uniform: f64| T::round(if uniform < -0.875 { f64::NEG_INFINITY } else { 2.0 * uniform });
        let slopes = case.slopes.map(|slopes| {
            let rows = if slopes == Slopes::OfHeads { 1 } else { batch };
            Array2::from_shape_fn((rows, heads), |(b, h)| 2f32.powi(-1 - ((b + h) % 8) as i32))
        });
        let sinks = drawn(case.seed, 7, [1, 1, 1, heads], |uniform| 2.0 * uniform as f32)?;
        let is_exact = case.data == Data::Integers;
        let own_scale = case.scale.unwrap_or((1.0 / (case.width as f64).sqrt()) as f32);
        let scores = Scores {
            sequences: sequences(case),
            window: case.window,
            scale: if is_exact { EXACT_SCALE } else { own_scale },
            soft_cap: case.soft_cap,
            mask: case.mask.map(|is_one| flags(4, short(&is_one, full))).transpose()?,
            bias: case.bias.map(|is_one| drawn(case.seed, 5, short(&is_one, full), bias)).transpose()?,
            blocks,
            slopes,
            sinks: case.sinks.then(|| sinks.iter().copied().collect()),
        };
        let element = |size: f64| move |uniform: f64| T::round(size * uniform);
        let key = |uniform: f64| K::round(uniform);
        let value = |uniform: f64| K::round(if is_exact { (uniform * 100.0).round() } else { uniform });
        let mut stream = 8;
        let key_scales = case.key_scales.map(|scales| {
            stream += 1;
            let count = if scales? == KeyScales::OfHeads { case.key_heads } else { 1 };
            let scale = |at| (split_mix(case.seed ^ stream, at as u64) % 1000) as f32 / 1000.0 + 0.5;
            // Powers of two change no result but by themselves.
            Some((0..count).map(|at| if is_exact { 1.0 + (at % 2) as f32 } else { scale(at) }).collect())
        });
        let mut drawn = Self {
            q: drawn(case.seed, 1, [matrices, rows, heads, case.width], element(SPREAD))?,
            k: drawn(case.seed, 2, [matrices, keys, case.key_heads, case.width], key)?,
            v: drawn(case.seed, 3, [matrices, keys, case.key_heads, case.value_width], value)?,
            key_scales,
            scores,
        };
        if is_exact {
            drawn.make_exact(case)?;
        }
        drawn.poison(case);
        Ok(drawn)
    }

    /// Gives each row a key with all the weight: of digits t of that one and d of any key the product is `−Σ (t − d)²`.
    fn make_exact(&mut self, case: &AttentionCase) -> Result<()> {
        let digits = case.width / 3;
        let base = if case.keys_dtype.is_some() { BASE_OF_FP8 } else { BASE };
        let keys = (0..case.sequences.batch()).map(|b| case.sequences.lengths(b)[1]).max().unwrap_or(0);
        let has_more = case.scale.is_some()
            || case.soft_cap.is_some()
            || case.bias.is_some()
            || case.slopes.is_some()
            || case.sinks;
        if has_more || u32::try_from(digits).is_ok_and(|digits| base.saturating_pow(digits) < keys) {
            return Err(Error::Argument {
                operation: OPERATION,
                argument: "data",
                expected: "integers with three columns for each digit of a key, and nothing done to scores"
                    .into(),
                actual: format!("{keys} keys of {} columns, {}", case.width, case.options()),
            });
        }
        let digit = |number: usize, place: usize| {
            let above = u32::try_from(place).ok().and_then(|place| base.checked_pow(place));
            above.map_or(0, |above| number / above % base) as f64
        };
        let (group, heads) = (case.group, case.heads());
        for (b, sequence) in self.scores.sequences.iter().enumerate() {
            for (j, at) in sequence.keys.clone().enumerate() {
                for ((h, column), element) in
                    self.k.slice_mut(ndarray::s![sequence.matrix, at, .., ..]).indexed_iter_mut()
                {
                    let _ = h;
                    let d = digit(j, column / 3);
                    let of_digit = [d, d * d, 1.0][column % 3];
                    *element = K::round(if column / 3 < digits { of_digit } else { 0.0 });
                }
            }
            for (i, at) in sequence.rows.clone().enumerate() {
                for h in 0..heads {
                    let attended: Vec<usize> =
                        (0..sequence.keys.len()).filter(|&j| self.scores.attends([b, h, i, j])).collect();
                    let chosen = split_mix(case.seed ^ (h / group.max(1)) as u64, (at * heads + h) as u64);
                    let target = attended.get(chosen as usize % attended.len().max(1)).copied().unwrap_or(0);
                    for column in 0..case.width {
                        let t = digit(target, column / 3);
                        let of_digit = [2.0 * t, -1.0, -t * t][column % 3];
                        let element = if column / 3 < digits { of_digit } else { 0.0 };
                        self.q[[sequence.matrix, at, h, column]] = T::round(element);
                    }
                }
            }
        }
        Ok(())
    }

    /// Makes what no sequence has NaN.
    fn poison(&mut self, case: &AttentionCase) {
        let Sequences::Padded { lengths, .. } = &case.sequences else { return };
        for (b, &[rows, keys]) in lengths.iter().enumerate() {
            self.q.slice_mut(ndarray::s![b, rows.., .., ..]).fill(T::round(f64::NAN));
            for operand in [&mut self.k, &mut self.v] {
                operand.slice_mut(ndarray::s![b, keys.., .., ..]).fill(K::round(f64::NAN));
            }
        }
    }
}

/// An array of what `convert` makes of numbers evenly from [−1, 1).
pub(super) fn drawn<U: Send>(
    seed: u64,
    stream: u64,
    shape: [usize; 4],
    convert: impl Fn(f64) -> U + Sync,
) -> Result<Array4<U>> {
    let columns = shape[2] * shape[3];
    let uniform = Data::Uniform.draw(seed, stream, (shape[0] * shape[1], columns), 1, f64::from)?;
    let elements: Vec<U> = uniform.into_iter().map(convert).collect();
    Array4::from_shape_vec(shape, elements).map_err(|error| Error::Argument {
        operation: OPERATION,
        argument: "shape",
        expected: error.to_string(),
        actual: format!("{shape:?}"),
    })
}
