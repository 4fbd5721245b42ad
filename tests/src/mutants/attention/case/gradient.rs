//! What the gradients of a problem have to be, in f64.

use warpsmith_dsl::attention::softmax::LOG2_E;

use super::super::number::Number;
use super::{Expected, Layout, Sequence, Size, Tensor, drawn};

/// What the kernels of gradients read beside a problem's operands, and what they have to give.
pub(in super::super) struct Gradients {
    /// The results of rows, and their gradients.
    pub(in super::super) y: Tensor,
    pub(in super::super) dy: Tensor,
    /// The log-sum-exp of each row; no number of those that do not count.
    pub(in super::super) lse: Vec<f32>,
    /// Four numbers of each row, as tiles read them; no numbers of those that do not count.
    pub(in super::super) rows: Vec<f32>,
    pub(in super::super) dq_layout: Layout,
    pub(in super::super) dk_layout: Layout,
    pub(in super::super) dv_layout: Layout,
    pub(in super::super) dq: Expected,
    pub(in super::super) dk: Expected,
    pub(in super::super) dv: Expected,
    /// What is found of rows: their four numbers, and what each adds to the gradients of sinks.
    pub(in super::super) found: Expected,
    pub(in super::super) dsinks: Expected,
}

/// A sum, that of what is rounded of it, and that of what its terms are made of.
#[derive(Clone, Copy, Default)]
struct Sum {
    sum: f64,
    size: f64,
    parts: f64,
}

impl Sum {
    fn add(&mut self, number: f64, parts: f64, factor: f64) {
        self.sum += number * factor;
        self.size += (number * factor).abs();
        self.parts += (parts * factor).abs();
    }
}

/// Sums of a tensor's elements; none of those that are not written.
struct Sums {
    layout: Layout,
    all: Vec<Option<Sum>>,
}

impl Sums {
    fn new(axes: [u32; 3], columns: u32) -> Self {
        // Rows may begin anywhere.
        let layout = Layout::new(axes, columns, 1, 1);
        Self { layout, all: vec![None; layout.len()] }
    }

    fn row(&mut self, [sequence, row, head]: [u32; 3]) -> impl Iterator<Item = (u32, &mut Sum)> {
        let first = self.layout.at(sequence, row, head);
        let of_row = &mut self.all[first..first + self.layout.columns as usize];
        (0..).zip(of_row.iter_mut().map(|sum| sum.get_or_insert_default()))
    }

    fn expected(&self, of: Number) -> Expected {
        let mut expected = Expected::untouched(self.all.len());
        for (at, sum) in self.all.iter().enumerate() {
            if let Some(Sum { sum, size, parts }) = *sum {
                expected.set(at, sum, 1.1 * of.unit() * (size + sum.abs()) + 1e-5 * parts + 1e-6);
            }
        }
        expected
    }
}

impl Size {
    fn dy(&self, of: Sequence, row: u32, head: u32, column: u32) -> f64 {
        drawn(&[8, of.number, row, head, column])
    }

    /// The slope of the soft cap where a query and a key meet.
    fn slope_of_cap(&self, of: Sequence, [head, key_head]: [u32; 2], row: u32, key: u32) -> f64 {
        if self.cap == 0.0 {
            return 1.0;
        }
        let product = |column| self.q(of, row, head, column) * self.k(of, key, key_head, column);
        let product: f64 = (0..self.columns[0]).map(product).sum();
        let capped = (product * f64::from(self.scale) / f64::from(self.cap)).tanh();
        1.0 - capped * capped
    }

    /// The gradients of this problem, which has no pages and no keys of 8 bits.
    pub(in super::super) fn gradients(&self, of: Number) -> Gradients {
        let sequences = if self.offsets.is_some() { 1 } else { self.batch };
        let [width, values] = self.columns;
        let (of_rows, of_keys) =
            ([sequences, self.rows, self.heads], [sequences, self.keys, self.key_heads()]);
        let (mut dq, mut dk) = (Sums::new(of_rows, width), Sums::new(of_keys, width));
        let mut dv = Sums::new(of_keys, values);
        let tensor = || Tensor::new(of, Layout::new(of_rows, values, 8, 8));
        let (mut y, mut dy) = (tensor(), tensor());
        let count = self.all_rows();
        let (mut lse, mut rows) = (vec![f32::NAN; count], vec![f32::NAN; 4 * count]);
        let mut found = Expected::untouched(4 * count);
        let mut dsinks = Expected::untouched(if self.sinks { count } else { 0 });
        let scale = f64::from(self.scale);
        for sequence in self.sequences() {
            let Sequence { index, row: first_row, key: first_key, .. } = sequence;
            let keys = if self.offsets.is_some() { sequence.keys } else { self.keys };
            for (head, key) in (0..self.key_heads()).flat_map(|head| (0..keys).map(move |key| (head, key))) {
                // All are written: as zeros, if no row attends to the key.
                dk.row([index, first_key + key, head]).for_each(drop);
                dv.row([index, first_key + key, head]).for_each(drop);
            }
            for (head, row) in
                (0..self.heads).flat_map(|head| (0..sequence.written).map(move |row| (head, row)))
            {
                let place = [index, first_row + row, head];
                let number = ((index * self.heads + head) * self.rows + first_row + row) as usize;
                let in_order = ((index * self.rows + first_row + row) * self.heads + head) as usize;
                dq.row(place).for_each(drop);
                let mut find = |of_lse: f64, delta: f64, error: f64| {
                    found.set(4 * number, of_lse, 0.0);
                    found.set(4 * number + 1, delta, error);
                    found.set(4 * number + 2, f64::from(of_lse as f32 * LOG2_E), 0.0);
                    found.set(4 * number + 3, delta, error);
                };
                if row >= sequence.rows {
                    find(f64::INFINITY, 0.0, 0.0);
                    if self.sinks {
                        dsinks.set(in_order, 0.0, 0.0);
                    }
                    continue;
                }
                let scores = self.scores(sequence, head, row);
                let sink = self.sinks.then(|| Self::sink(head));
                let (of_row, sums) = self.sums(sequence, head, &scores, sink);
                let of_y = |column: u32| of.get(&of.put(sums[column as usize].0));
                let of_dy = |column: u32| self.dy(sequence, row, head, column);
                y.fill(of, place, of_y);
                dy.fill(of, place, of_dy);
                let products = || (0..values).map(|column| of_y(column) * of_dy(column));
                let (delta, size): (f64, f64) = (products().sum(), products().map(f64::abs).sum());
                let has_keys = of_row > f64::NEG_INFINITY;
                let kept = if has_keys { f64::from(of_row as f32) } else { f64::INFINITY };
                lse[number] = of_row as f32;
                rows[4 * number..][..4].copy_from_slice(&[
                    kept as f32,
                    delta as f32,
                    kept as f32 * LOG2_E,
                    delta as f32,
                ]);
                find(kept, if has_keys { delta } else { 0.0 }, 1e-5 * size);
                if let Some(sink) = sink {
                    let weight = (sink - of_row).exp();
                    dsinks.set(in_order, -weight * delta, 1e-5 * weight * size + 1e-6);
                }
                let key_head = head / self.group;
                for (key, score) in scores {
                    let weight = (score - of_row).exp();
                    let of_value = |column| of_dy(column) * self.v(sequence, key, key_head, column);
                    let product: f64 = (0..values).map(of_value).sum();
                    let magnitude: f64 = (0..values).map(|column| of_value(column).abs()).sum();
                    let slope = self.slope_of_cap(sequence, [head, key_head], row, key);
                    let gradient = weight * (product - delta) * slope;
                    let parts = weight * (magnitude + delta.abs() + (product - delta).abs());
                    for (column, sum) in dq.row(place) {
                        sum.add(gradient, parts, scale * self.k(sequence, key, key_head, column));
                    }
                    let of_key = [index, first_key + key, key_head];
                    for (column, sum) in dk.row(of_key) {
                        sum.add(gradient, parts, scale * self.q(sequence, row, head, column));
                    }
                    for (column, sum) in dv.row(of_key) {
                        sum.add(weight, weight, of_dy(column));
                    }
                }
            }
        }
        Gradients {
            y,
            dy,
            lse,
            rows,
            dq_layout: dq.layout,
            dk_layout: dk.layout,
            dv_layout: dv.layout,
            dq: dq.expected(of),
            dk: dk.expected(of),
            dv: dv.expected(of),
            found,
            dsinks,
        }
    }
}
