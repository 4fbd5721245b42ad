//! Product-key retrieval on the CPU.

use ndarray::{ArrayView2, ArrayView3, Axis};
use rayon::prelude::*;

use super::linear::{LinearTerms, linear};
use super::number::{Accumulator, FromAccumulator, Operand};
use super::topk::Best;
use crate::cpu::Gate;
use crate::error::{Error, Result};
use crate::memory::zeros;

/// The operation's name in errors.
const OPERATION: &str = "cpu::product_key_topk";
/// Sums that a score is added up in, side by side.
const LANES: usize = 16;

/// How the queries of a head are normalised.
#[derive(Clone, Copy, Debug, Default)]
pub enum Normalization<'a> {
    /// Not at all.
    #[default]
    None,
    /// By mean and variance of the query: `(q − mean) / √(variance + epsilon)`.
    Layer {
        /// Added to the variance.
        epsilon: f32,
    },
    /// By the mean square of the query: `q / √(mean square + epsilon)`.
    Rms {
        /// Added to the mean square.
        epsilon: f32,
    },
    /// By the length of the query: `q / max(length, epsilon)`.
    L2 {
        /// The smallest length.
        epsilon: f32,
    },
    /// By mean and variance of each feature, which are given: `(q − mean) / √(variance + epsilon)`.
    Batch {
        /// Means, for the features of a head or of all heads.
        mean: &'a [f32],
        /// Variances, likewise.
        variance: &'a [f32],
        /// Added to the variances.
        epsilon: f32,
    },
}

/// What a retrieval is made with, beside its input.
#[derive(Clone, Debug)]
pub struct ProductKeys<'a, T> {
    /// The projection, `[H · d, D]`.
    pub w: ArrayView2<'a, T>,
    /// `[H · d]`: is added to the projection.
    pub bias: Option<&'a [T]>,
    /// Sub-keys of the first half, `[H, n, d / 2]`, or `[1, n, d / 2]` if all heads share them.
    pub keys_1: ArrayView3<'a, T>,
    /// Sub-keys of the second half.
    pub keys_2: ArrayView3<'a, T>,
    /// Heads, H.
    pub heads: usize,
    /// Experts that each head finds.
    pub k: usize,
    /// How queries are normalised.
    pub norm: Normalization<'a>,
    /// Multiplied with normalised queries, for the features of a head or of all heads.
    pub weight: Option<&'a [f32]>,
    /// Added to them.
    pub shift: Option<&'a [f32]>,
    /// What gates are of scores.
    pub gate: Gate,
    /// What scores are divided by before the gate.
    pub temperature: f32,
}

impl<T: Operand> ProductKeys<'_, T> {
    /// Columns of a query.
    fn width(&self) -> usize {
        2 * self.keys_1.dim().2
    }

    fn check(&self, x: ArrayView2<'_, T>) -> Result<()> {
        let projected = self.heads.saturating_mul(self.width());
        expect("w", &[projected, x.ncols()], self.w.shape())?;
        self.check_keys()
    }

    /// That sub-keys, what belongs to features, heads and k fit together.
    pub(super) fn check_keys(&self) -> Result<()> {
        let (heads, d, n) = (self.heads, self.width(), self.keys_1.dim().1);
        if heads == 0 {
            return Err(Error::Argument {
                operation: OPERATION,
                argument: "heads",
                expected: "at least 1".into(),
                actual: "0".into(),
            });
        }
        expect("keys_2", self.keys_1.shape(), self.keys_2.shape())?;
        let groups = if self.keys_1.dim().0 == 1 { 1 } else { heads };
        expect("keys_1", &[groups, n, d / 2], self.keys_1.shape())?;
        if let Some(bias) = self.bias {
            expect("bias", &[heads * d], &[bias.len()])?;
        }
        let (mut of_features, batch) = (vec![("weight", self.weight), ("shift", self.shift)], self.norm);
        if let Normalization::Batch { mean, variance, .. } = batch {
            of_features.extend([("mean", Some(mean)), ("variance", Some(variance))]);
        }
        for (operand, numbers) in of_features {
            if let Some(numbers) = numbers.filter(|numbers| numbers.len() != d) {
                expect(operand, &[heads * d], &[numbers.len()])?;
            }
        }
        if self.k == 0 || self.k > n || n.saturating_mul(n) > 1 << 32 {
            return Err(Error::Argument {
                operation: OPERATION,
                argument: "k",
                expected: format!("1 to the {n} sub-keys, of which there are at most 65536"),
                actual: self.k.to_string(),
            });
        }
        Ok(())
    }
}

fn expect(operand: &'static str, expected: &[usize], actual: &[usize]) -> Result<()> {
    if expected == actual {
        return Ok(());
    }
    let expected = format!("{expected:?}, as the other operands give");
    Err(Error::Shape { operation: OPERATION, operand, expected, actual: actual.to_vec() })
}

/// Number `feature` of those of a head, of some numbers for `width` features of each head or of all.
pub fn of_head(numbers: &[f32], width: usize, head: usize, feature: usize) -> f32 {
    numbers[if numbers.len() == width { feature } else { head * width + feature }]
}

/// Normalises a vector of head `head`.
pub(crate) fn normalise<A: Accumulator>(
    vector: &mut [A],
    head: usize,
    norm: Normalization<'_>,
    [weight, shift]: [Option<&[f32]>; 2],
) {
    let width = vector.len();
    let d = A::from_f64(width as f64);
    let number = |value: f32| A::from_f32(value);
    let of_head = |numbers: &[f32], feature: usize| number(of_head(numbers, width, head, feature));
    let sum = |vector: &[A], term: &dyn Fn(A) -> A| vector.iter().fold(A::zero(), |sum, &q| sum + term(q));
    match norm {
        Normalization::None => {}
        Normalization::Layer { epsilon } => {
            let mean = sum(vector, &|q| q) / d;
            let variance = sum(vector, &|q| (q - mean) * (q - mean)) / d;
            let length = (variance + number(epsilon)).sqrt();
            vector.iter_mut().for_each(|q| *q = (*q - mean) / length);
        }
        Normalization::Rms { epsilon } => {
            let length = (sum(vector, &|q| q * q) / d + number(epsilon)).sqrt();
            vector.iter_mut().for_each(|q| *q = *q / length);
        }
        Normalization::L2 { epsilon } => {
            let length = sum(vector, &|q| q * q).sqrt();
            let length = if length > number(epsilon) { length } else { number(epsilon) };
            vector.iter_mut().for_each(|q| *q = *q / length);
        }
        Normalization::Batch { mean, variance, epsilon } => {
            for (feature, q) in vector.iter_mut().enumerate() {
                *q = (*q - of_head(mean, feature)) / (of_head(variance, feature) + number(epsilon)).sqrt();
            }
        }
    }
    for (feature, q) in vector.iter_mut().enumerate() {
        if let Some(weight) = weight {
            *q = *q * of_head(weight, feature);
        }
        if let Some(shift) = shift {
            *q += of_head(shift, feature);
        }
    }
}

/// The queries before they are normalised, `[T, H · d]`.
///
/// # Errors
///
/// As [`product_key_topk`].
pub fn queries<A, T>(x: ArrayView2<'_, T>, keys: &ProductKeys<'_, T>) -> Result<Vec<A>>
where
    A: Accumulator + FromAccumulator<A>,
    T: Operand,
{
    keys.check(x)?;
    let shape = (x.nrows(), keys.w.nrows());
    let mut q = zeros::<A>(OPERATION, shape.0.saturating_mul(shape.1))?;
    let target = ndarray::ArrayViewMut2::from_shape(shape, &mut q).map_err(|error| Error::Argument {
        operation: OPERATION,
        argument: "shape",
        expected: format!("{shape:?}"),
        actual: error.to_string(),
    })?;
    let terms = LinearTerms::<T, f32, A> { bias: keys.bias.map(Into::into), ..LinearTerms::default() };
    linear::<A, T, T, f32, A>(x, keys.w, terms, target)?;
    Ok(q)
}

/// What is found of one token and head.
#[derive(Clone, Debug)]
pub struct Found<A> {
    /// The normalised query.
    pub query: Vec<A>,
    /// Scores of all sub-keys of both halves.
    pub scores: [Vec<A>; 2],
    /// The experts, best first.
    pub ids: Vec<u32>,
    /// Their gates.
    pub gates: Vec<A>,
}

/// Sub-keys of a half as the type that is added up in, head by head.
pub struct Widened<A> {
    keys: [Vec<A>; 2],
    groups: usize,
}

impl<A: Accumulator> Widened<A> {
    /// Those of an operation.
    #[must_use]
    pub fn new<T: Operand>(keys: &ProductKeys<'_, T>) -> Self {
        let widen = |keys: &ArrayView3<'_, T>| keys.iter().map(|key| A::from_f32(key.to_f32())).collect();
        Self { keys: [widen(&keys.keys_1), widen(&keys.keys_2)], groups: keys.keys_1.len_of(Axis(0)) }
    }

    /// Sub-keys of a half for a head, one after the other.
    #[must_use]
    pub fn of_head(&self, half: usize, head: usize) -> &[A] {
        let keys = &self.keys[half];
        let length = keys.len() / self.groups.max(1);
        &keys[if self.groups == 1 { 0 } else { head * length }..][..length]
    }
}

/// A dot product, in several sums side by side.
fn dot<A: Accumulator>(a: &[A], b: &[A]) -> A {
    let mut sums = [A::zero(); LANES];
    let (a_chunks, b_chunks) = (a.chunks_exact(LANES), b.chunks_exact(LANES));
    let rest = a_chunks.remainder().iter().zip(b_chunks.remainder());
    for (a, b) in a_chunks.zip(b_chunks) {
        for ((sum, &a), &b) in sums.iter_mut().zip(a).zip(b) {
            *sum += a * b;
        }
    }
    let rest = rest.fold(A::zero(), |sum, (&a, &b)| sum + a * b);
    sums.iter().fold(rest, |sum, &part| sum + part)
}

/// What gates are of scores, best first.
pub fn gates<A: Accumulator>(gate: Gate, temperature: f32, scores: &[A]) -> Vec<A> {
    let temperature = A::from_f32(temperature);
    let largest = scores.first().copied().unwrap_or(A::zero());
    let value = |&score: &A| match gate {
        Gate::Softmax => ((score - largest) / temperature).exp(),
        Gate::Sigmoid => A::one() / (A::one() + (-score / temperature).exp()),
        // Not `max`, which drops a NaN.
        Gate::Relu if score < A::zero() => A::zero(),
        Gate::Relu | Gate::Identity => score / temperature,
    };
    let mut gates: Vec<A> = scores.iter().map(value).collect();
    if gate == Gate::Softmax {
        let sum = gates.iter().fold(A::zero(), |sum, &gate| sum + gate);
        gates.iter_mut().for_each(|gate| *gate = *gate / sum);
    }
    gates
}

/// Finds the experts of one query, which is not normalised yet.
pub fn find<A: Accumulator, T: Operand>(
    keys: &ProductKeys<'_, T>,
    widened: &Widened<A>,
    query: &[A],
    head: usize,
) -> Found<A> {
    let mut query = query.to_vec();
    normalise(&mut query, head, keys.norm, [keys.weight, keys.shift]);
    let (n, half, k) = (keys.keys_1.dim().1, keys.keys_1.dim().2, keys.k);
    let of_half = |which: usize| -> (Vec<A>, Vec<u32>) {
        let query = &query[which * half..][..half];
        let sub_keys = widened.of_head(which, head);
        let scores: Vec<A> = (0..n).map(|key| dot(query, &sub_keys[key * half..][..half])).collect();
        let mut best = Best::new(k);
        for (id, score) in scores.iter().enumerate() {
            best.offer(score.to_f64().unwrap_or(f64::NAN), id as u32);
        }
        let ids = best.ids().collect();
        (scores, ids)
    };
    let ((scores_1, best_1), (scores_2, best_2)) = (of_half(0), of_half(1));
    let score = |i: u32, j: u32| scores_1[i as usize] + scores_2[j as usize];
    let mut best = Best::new(k);
    for (a, &i) in best_1.iter().enumerate() {
        // The others are no better than k that are offered.
        for &j in &best_2[..k / (a + 1)] {
            best.offer(score(i, j).to_f64().unwrap_or(f64::NAN), (i as usize * n + j as usize) as u32);
        }
    }
    let ids: Vec<u32> = best.ids().collect();
    let scores: Vec<A> = ids.iter().map(|id| score(id / n as u32, id % n as u32)).collect();
    let gates = gates(keys.gate, keys.temperature, &scores);
    Found { query, scores: [scores_1, scores_2], ids, gates }
}

/// Finds the k best experts of every token of `x` `[T, D]` and head, best first, of equal ones that of the lowest id, and their gates,
/// adding up in `A`. Ids and gates are `[T, H, k]`, row-major.
///
/// # Errors
///
/// [`Error::Shape`] if the shapes do not fit together, [`Error::Argument`] if k is 0 or above n or n above 65536, [`Error::OutOfMemory`] if
/// the host has too little memory.
pub fn product_key_topk<A, T>(x: ArrayView2<'_, T>, keys: &ProductKeys<'_, T>) -> Result<(Vec<u32>, Vec<A>)>
where
    A: Accumulator + FromAccumulator<A>,
    T: Operand,
{
    let q = queries::<A, T>(x, keys)?;
    let widened = Widened::new(keys);
    let count = x.nrows() * keys.heads;
    let (mut ids, mut gates) = (vec![0; count * keys.k], vec![A::zero(); count * keys.k]);
    let width = keys.width();
    ids.par_chunks_mut(keys.k).zip(gates.par_chunks_mut(keys.k)).enumerate().for_each(
        |(row, (ids, gates))| {
            let found = find(keys, &widened, &q[row * width..][..width], row % keys.heads);
            ids.copy_from_slice(&found.ids);
            gates.copy_from_slice(&found.gates);
        },
    );
    Ok((ids, gates))
}

#[cfg(test)]
mod tests {
    use ndarray::{Array2, Array3};

    use super::{Normalization, ProductKeys, product_key_topk};
    use crate::cpu::Gate;
    use crate::error::Error;

    fn pattern(shape: (usize, usize), seed: usize) -> Array2<f32> {
        Array2::from_shape_fn(shape, |(i, j)| ((i * 31 + j * 17 + seed * 7) % 11) as f32 - 5.0)
    }

    fn keys_of(shape: (usize, usize, usize), seed: usize) -> Array3<f32> {
        Array3::from_shape_fn(shape, |(h, i, j)| ((h * 5 + i * 13 + j * 7 + seed) % 5) as f32 - 2.0)
    }

    /// Small integers: exact, with many ties; every expert's score is computed.
    #[test]
    fn experts_found_are_the_best_of_all() {
        for (heads, groups, n, half, k) in
            [(2, 1, 5, 3, 5), (3, 3, 9, 4, 7), (1, 1, 1, 1, 1), (2, 2, 40, 17, 33)]
        {
            let (d, tokens) = (2 * half, 4);
            let (x, w) = (pattern((tokens, 6), 1), pattern((heads * d, 6), 2));
            let (keys_1, keys_2) = (keys_of((groups, n, half), 3), keys_of((groups, n, half), 4));
            let keys = ProductKeys {
                w: w.view(),
                bias: None,
                keys_1: keys_1.view(),
                keys_2: keys_2.view(),
                heads,
                k,
                norm: Normalization::None,
                weight: None,
                shift: None,
                gate: Gate::Identity,
                temperature: 2.0,
            };
            let (ids, gates) = product_key_topk::<f64, f32>(x.view(), &keys).expect("the shapes fit");
            let (ids_32, _) = product_key_topk::<f32, f32>(x.view(), &keys).expect("the shapes fit");
            assert_eq!(ids, ids_32);
            let q = x.dot(&w.t());
            for row in 0..tokens * heads {
                let (token, head) = (row / heads, row % heads);
                let group = if groups == 1 { 0 } else { head };
                let score = |id: u32| {
                    let (i, j) = (id as usize / n, id as usize % n);
                    (0..half)
                        .map(|c| {
                            q[[token, head * d + c]] * keys_1[[group, i, c]]
                                + q[[token, head * d + half + c]] * keys_2[[group, j, c]]
                        })
                        .sum::<f32>()
                };
                let mut all: Vec<u32> = (0..(n * n) as u32).collect();
                all.sort_by(|&a, &b| score(b).total_cmp(&score(a)).then(a.cmp(&b)));
                assert_eq!(ids[row * k..][..k], all[..k], "{heads} {n} {k}");
                for (place, &id) in all[..k].iter().enumerate() {
                    assert_eq!(gates[row * k + place], f64::from(score(id)) / 2.0);
                }
            }
        }
    }

    #[test]
    fn shapes_that_do_not_fit_are_errors() {
        let (x, w) = (pattern((3, 6), 1), pattern((8, 6), 2));
        let (keys_1, keys_2) = (keys_of((1, 5, 2), 3), keys_of((1, 5, 2), 4));
        let keys = ProductKeys {
            w: w.view(),
            bias: None,
            keys_1: keys_1.view(),
            keys_2: keys_2.view(),
            heads: 2,
            k: 5,
            norm: Normalization::Layer { epsilon: 1e-5 },
            weight: Some(&[1.0; 4]),
            shift: Some(&[0.0; 8]),
            gate: Gate::Softmax,
            temperature: 1.0,
        };
        let run = |keys: &ProductKeys<'_, f32>| product_key_topk::<f32, f32>(x.view(), keys);
        let (_, gates) = run(&keys).expect("these fit");
        assert!(gates.chunks(5).all(|gates| (gates.iter().sum::<f32>() - 1.0).abs() < 1e-6));
        let refused = |keys: ProductKeys<'_, f32>| run(&keys).is_err();
        assert!(refused(ProductKeys { heads: 3, ..keys.clone() }));
        assert!(refused(ProductKeys { weight: Some(&[1.0; 5]), ..keys.clone() }));
        assert!(refused(ProductKeys { bias: Some(&[1.0; 5]), ..keys.clone() }));
        for k in [0, 6] {
            assert!(matches!(run(&ProductKeys { k, ..keys.clone() }), Err(Error::Argument { .. })));
        }
    }
}
