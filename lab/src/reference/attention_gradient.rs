//! The f64 reference of the gradients of attention, with what their bounds need.

use ndarray::{Array2, ArrayView2};
use warpsmith::cpu::Operand;

use super::attention::Scores;
use crate::bound::attention_gradient::{GradientModel, GradientSum, ValueProduct};

/// The gradients of a head of keys of a sequence, and of the rows of the heads that share it.
pub(crate) struct HeadGradients {
    /// Of each head of queries: rows × columns.
    pub(crate) dq: Vec<Array2<GradientSum>>,
    pub(crate) dk: Array2<GradientSum>,
    pub(crate) dv: Array2<GradientSum>,
    /// Of the sink of each head of queries.
    pub(crate) dsinks: Vec<GradientSum>,
}

impl<T: Operand> Scores<T> {
    /// The gradients of a head of keys of sequence b, whose keys and values these are; of each head of queries, numbered from `first` on, its rows and their gradients.
    pub(crate) fn gradients(
        &self,
        model: &GradientModel,
        [b, first]: [usize; 2],
        heads: &[[Array2<f64>; 2]],
        [keys, values]: [ArrayView2<'_, f64>; 2],
    ) -> HeadGradients {
        let mut all = HeadGradients {
            dq: Vec::new(),
            dk: Array2::default(keys.dim()),
            dv: Array2::default(values.dim()),
            dsinks: vec![GradientSum::default(); heads.len()],
        };
        for (of_group, [queries, gradients]) in heads.iter().enumerate() {
            let h = first + of_group;
            let mut dq = Array2::<GradientSum>::default(queries.dim());
            for (i, (query, dy)) in queries.rows().into_iter().zip(gradients.rows()).enumerate() {
                let [query, dy] = [query, dy].map(|row| row.to_vec());
                let row = self.row(&model.forward, [b, h, i], &query, keys, values);
                let Some(sum) = row.sum else { continue };
                let logits = self.logits([b, h, i], &query, keys);
                let products: Vec<ValueProduct> = logits
                    .iter()
                    .map(|&(j, _)| {
                        let mut of = ValueProduct::default();
                        for (dy, value) in dy.iter().zip(values.row(j)) {
                            of.product += dy * value;
                            of.magnitude += (dy * value).abs();
                        }
                        of
                    })
                    .collect();
                let weights: Vec<f64> = logits.iter().map(|(_, of)| (of.logit - sum.lse).exp()).collect();
                let pairs = logits.iter().zip(&weights).zip(&products);
                let of_pairs = pairs.clone().map(|((&(_, of), &weight), &product)| (of, weight, product));
                let of_row = model.row(&dy, &row.elements, sum, of_pairs);
                for ((&(j, of), &weight), &product) in pairs {
                    let slope = if of.cap > 0.0 {
                        let products: f64 = query.iter().zip(keys.row(j)).map(|(q, k)| q * k).sum();
                        let capped = (f64::from(self.scale) * products / of.cap).tanh();
                        1.0 - capped * capped
                    } else {
                        1.0
                    };
                    let pair = model.pair(of_row, of, weight, product, slope);
                    for (column, sum) in dq.row_mut(i).iter_mut().enumerate() {
                        sum.add(pair.score, keys[[j, column]]);
                    }
                    for (sum, &q) in all.dk.row_mut(j).iter_mut().zip(&query) {
                        sum.add(pair.score, q);
                    }
                    for (sum, &dy) in all.dv.row_mut(j).iter_mut().zip(&dy) {
                        sum.add(pair.weight, dy);
                    }
                }
                if self.sinks.is_some() {
                    all.dsinks[of_group].add(model.of_sink(of_row, self.sink(h)), 1.0);
                }
            }
            all.dq.push(dq);
        }
        all
    }
}
