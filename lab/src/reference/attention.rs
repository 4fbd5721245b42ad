//! The f64 reference of attention: the rows' results as the definition gives them, with what their bound needs.

use std::ops::Range;

use ndarray::{Array2, Array4, ArrayView2, s};
use warpsmith::cpu::Operand;
use warpsmith::ops::attention::Window;

use crate::bound::attention::{AttentionModel, Element, Logit, Sum};

/// A sequence: its rows of the matrix `matrix` of q, and its keys of that of k.
#[derive(Clone, Debug)]
pub(crate) struct Sequence {
    pub(crate) matrix: usize,
    pub(crate) rows: Range<usize>,
    pub(crate) keys: Range<usize>,
}

/// What rows attend to, and what is done to their scores; the axes of length 1 of an array are repeated.
#[derive(Clone, Debug)]
pub(crate) struct Scores<T> {
    pub(crate) sequences: Vec<Sequence>,
    pub(crate) window: Window,
    pub(crate) scale: f32,
    pub(crate) soft_cap: Option<f32>,
    pub(crate) mask: Option<Array4<u8>>,
    pub(crate) bias: Option<Array4<T>>,
    pub(crate) blocks: Option<(Array4<u8>, [usize; 2])>,
    pub(crate) slopes: Option<Array2<f32>>,
    pub(crate) sinks: Option<Vec<f32>>,
}

/// A row of the reference: nothing if it attends to nothing and has no sink.
pub(crate) struct Row {
    pub(crate) elements: Vec<Element>,
    pub(crate) sum: Option<Sum>,
}

impl<T: Operand> Scores<T> {
    /// What is added to a row's number to have that of the key beside it.
    fn offset(&self, b: usize) -> i64 {
        let Sequence { rows, keys, .. } = &self.sequences[b];
        self.window.alignment().offset([rows.len(), keys.len()])
    }

    /// Whether row i of head h of sequence b attends to key j of the sequence.
    pub(crate) fn attends(&self, [b, h, i, j]: [usize; 4]) -> bool {
        let (row, key) = (i as i64 + self.offset(b), j as i64);
        self.window.left().is_none_or(|left| key >= row - i64::from(left))
            && self.window.right().is_none_or(|right| key <= row + i64::from(right))
            && self.mask.as_ref().is_none_or(|mask| at(mask, [b, h, i, j]) != 0)
            && self
                .blocks
                .as_ref()
                .is_none_or(|(mask, [rows, keys])| at(mask, [b, h, i / rows, j / keys]) != 0)
            && self.bias.as_ref().is_none_or(|bias| at(bias, [b, h, i, j]).to_f32() != f32::NEG_INFINITY)
    }

    /// The logit of a row and a key.
    fn logit(&self, [b, h, i, j]: [usize; 4], query: &[f64], key: &[f64]) -> Logit {
        let scale = f64::from(self.scale);
        let (mut sum, mut size) = (0.0, 0.0);
        for (&q, &k) in query.iter().zip(key) {
            sum += q * k;
            size += (q * k).abs();
        }
        let cap = self.soft_cap.map_or(0.0, f64::from);
        let mut logit = scale * sum;
        if cap > 0.0 {
            logit = cap * (logit / cap).tanh();
        }
        let bias = self.bias.as_ref().map_or(0.0, |bias| f64::from(at(bias, [b, h, i, j]).to_f32()));
        let distance = self.slopes.as_ref().map_or(0.0, |slopes| {
            let slope = slopes[[if slopes.nrows() == 1 { 0 } else { b }, h]];
            f64::from(slope) * (i as i64 + self.offset(b) - j as i64).abs() as f64
        });
        Logit {
            logit: logit + bias - distance,
            size: scale.abs() * size,
            cap,
            added: bias.abs() + distance.abs(),
        }
    }

    /// The logits of the keys that row i of a head of sequence b attends to, each with the key's number.
    pub(crate) fn logits(
        &self,
        [b, h, i]: [usize; 3],
        query: &[f64],
        keys: ArrayView2<'_, f64>,
    ) -> Vec<(usize, Logit)> {
        let attended = keys.rows().into_iter().enumerate().filter(|(j, _)| self.attends([b, h, i, *j]));
        attended
            .map(|(j, key)| (j, self.logit([b, h, i, j], query, key.to_slice().unwrap_or_default())))
            .collect()
    }

    /// The logit without a value of a head; −∞ without sinks.
    pub(crate) fn sink(&self, h: usize) -> f64 {
        self.sinks.as_ref().map_or(f64::NEG_INFINITY, |sinks| f64::from(sinks[h]))
    }

    /// The reference of row i of a head of sequence b, whose keys and values these are.
    pub(crate) fn row(
        &self,
        model: &AttentionModel,
        [b, h, i]: [usize; 3],
        query: &[f64],
        keys: ArrayView2<'_, f64>,
        values: ArrayView2<'_, f64>,
    ) -> Row {
        let sink = self.sink(h);
        let logits = self.logits([b, h, i], query, keys);
        let largest = logits.iter().fold(sink, |largest, (_, of)| largest.max(of.logit));
        let mut elements = vec![Element::default(); values.ncols()];
        if largest == f64::NEG_INFINITY {
            return Row { elements, sum: None };
        }
        let (mut total, mut error) = ((sink - largest).exp(), 0.0);
        if sink > f64::NEG_INFINITY {
            let of_sink = Logit { logit: sink, ..Logit::default() };
            error += total * model.weight_error(of_sink, largest);
        }
        for (j, of) in logits {
            let weight = (of.logit - largest).exp();
            let off = if weight == 0.0 { 0.0 } else { weight * model.weight_error(of, largest) };
            total += weight;
            error += off;
            for (element, &value) in elements.iter_mut().zip(values.row(j)) {
                element.y += weight * value;
                element.magnitude += weight * value.abs();
                element.weighted += off * value.abs();
                element.plain += value.abs();
            }
        }
        for element in &mut elements {
            for sum in [&mut element.y, &mut element.magnitude, &mut element.weighted, &mut element.plain] {
                *sum /= total;
            }
        }
        Row { elements, sum: Some(Sum { lse: largest + total.ln(), largest, error: error / total }) }
    }
}

/// The rows `range` of a head of a matrix, in f64.
pub(crate) fn widened<T: Operand>(
    array: &Array4<T>,
    matrix: usize,
    range: Range<usize>,
    head: usize,
) -> Array2<f64> {
    array.slice(s![matrix, range, head, ..]).mapv(|element| f64::from(element.to_f32()))
}

/// The element of an array whose axes of length 1 are repeated.
fn at<T: Copy>(array: &Array4<T>, index: [usize; 4]) -> T {
    let mut index = index;
    for (axis, at) in index.iter_mut().enumerate() {
        *at = if array.shape()[axis] == 1 { 0 } else { *at };
    }
    array[index]
}
