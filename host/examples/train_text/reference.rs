//! The loss of the model in f64, by formulas alone: what gradients are compared with differences of.

use std::collections::BTreeMap;

use ndarray::{Array1, Array2, ArrayView2, Axis, s};

use crate::model::{EPSILON, ROTARY_BASE, Sizes};
use crate::text::Windows;

/// Weights by name; those of norms are one row.
pub(crate) type Numbers = BTreeMap<String, Array2<f64>>;

/// The mean loss of windows.
pub(crate) fn loss(weights: &Numbers, sizes: Sizes, windows: &Windows) -> f64 {
    let length = windows.shape[1];
    let both = windows.ids.chunks_exact(length).zip(windows.labels.chunks_exact(length));
    let sum: f64 = both.map(|(ids, labels)| of_window(weights, sizes, ids, labels)).sum();
    sum / windows.ids.len() as f64
}

/// The sum of a window's losses.
fn of_window(weights: &Numbers, sizes: Sizes, ids: &[u32], labels: &[u32]) -> f64 {
    let table = &weights["embedding.weight"];
    let rows: Vec<usize> = ids.iter().map(|&id| id as usize).collect();
    let mut x = table.select(Axis(0), &rows);
    for block in 0..sizes.blocks {
        let of = |name: &str| &weights[&format!("blocks.{block}.{name}.weight")];
        let projected = rms_norm(&x, of("input_norm")).dot(&of("attention.qkv_proj").t());
        x = x + attention(&projected, sizes).dot(&of("attention.o_proj").t());
        let both = rms_norm(&x, of("mlp_norm")).dot(&of("mlp.gate_up_proj").t());
        let (gate, value) = both.view().split_at(Axis(1), sizes.hidden);
        let hidden = gate.mapv(|z| z / (1.0 + (-z).exp())) * value;
        x = x + hidden.dot(&of("mlp.down_proj").t());
    }
    let logits = rms_norm(&x, &weights["norm.weight"]).dot(&table.t());
    let losses = logits.rows().into_iter().zip(labels).map(|(logits, &label)| {
        let largest = logits.fold(f64::NEG_INFINITY, |largest, &logit| largest.max(logit));
        let sum: f64 = logits.iter().map(|logit| (logit - largest).exp()).sum();
        largest + sum.ln() - logits[label as usize]
    });
    losses.sum()
}

fn rms_norm(x: &Array2<f64>, weight: &Array2<f64>) -> Array2<f64> {
    let mut y = x.clone();
    for mut row in y.rows_mut() {
        let square = row.iter().map(|number| number * number).sum::<f64>() / row.len() as f64;
        row /= (square + f64::from(EPSILON)).sqrt();
        row *= &weight.row(0);
    }
    y
}

/// What the heads make of queries, keys and values, side by side.
fn attention(projected: &Array2<f64>, sizes: Sizes) -> Array2<f64> {
    let (columns, width) = (sizes.columns, sizes.columns / sizes.heads);
    let mut y = Array2::zeros((projected.nrows(), columns));
    for head in 0..sizes.heads {
        let of = |part: usize| {
            let first = part * columns + head * width;
            projected.slice(s![.., first..first + width])
        };
        let scores = turned(of(0)).dot(&turned(of(1)).t()) / (width as f64).sqrt();
        for (position, scores) in scores.rows().into_iter().enumerate() {
            let seen = scores.slice(s![..=position]);
            let largest = seen.fold(f64::NEG_INFINITY, |largest, &score| largest.max(score));
            let exponentials: Array1<f64> = seen.mapv(|score| (score - largest).exp());
            let mixed = exponentials.dot(&of(2).slice(s![..=position, ..])) / exponentials.sum();
            y.slice_mut(s![position, head * width..(head + 1) * width]).assign(&mixed);
        }
    }
    y
}

/// Rows turned by the angles of their positions: number i with number i + half.
fn turned(rows: ArrayView2<'_, f64>) -> Array2<f64> {
    let half = rows.ncols() / 2;
    Array2::from_shape_fn(rows.dim(), |(position, column)| {
        let pair = column % half;
        let frequency = ROTARY_BASE.powf(-(pair as f64) / half as f64);
        let (sine, cosine) = (position as f64 * frequency).sin_cos();
        let (first, second) = (rows[[position, pair]], rows[[position, pair + half]]);
        if column < half { first * cosine - second * sine } else { second * cosine + first * sine }
    })
}
