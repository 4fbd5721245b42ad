//! Gradients of product-key retrieval on the CPU: of queries, of sub-keys, and of the norm's weight and bias.

use rayon::prelude::*;

use super::Gate;
use super::number::{Accumulator, Operand};
use super::product_key::{Normalization, ProductKeys, Widened, normalise, of_head};
use crate::error::{Error, Result};

/// The operation's name in errors.
const OPERATION: &str = "product_key_topk_backward";

/// The gradients of a retrieval.
#[derive(Clone, Debug, PartialEq)]
pub struct ProductKeyGradients<A> {
    /// Of the queries before they are normalised, `[T, H · d]`.
    pub dq: Vec<A>,
    /// Of the sub-keys of both halves, as they are.
    pub dkeys: [Vec<A>; 2],
    /// Of the norm's weight, for the features of each head, `[H, d]`.
    pub dweight: Vec<A>,
    /// Of its bias likewise.
    pub dshift: Vec<A>,
}

/// What a row gives.
struct Row<A> {
    dq: Vec<A>,
    /// The query as scores are made of it, and before weight and bias.
    query: Vec<A>,
    hat: Vec<A>,
    /// The gradient of what scores are made of.
    dquery: Vec<A>,
    dscores: Vec<A>,
}

/// The gradients of the scores that `gates` are of, from those of the gates, as many.
fn score_gradients<A: Accumulator>(gate: Gate, temperature: f32, gates: &[A], dgates: &[A]) -> Vec<A> {
    let both = || gates.iter().zip(dgates);
    let sum = both().fold(A::zero(), |sum, (&gate, &dgate)| sum + gate * dgate);
    let of_score = |(&value, &dgate): (&A, &A)| match gate {
        Gate::Softmax => value * (dgate - sum),
        Gate::Sigmoid => dgate * (value * (A::one() - value)),
        Gate::Relu if value <= A::zero() => A::zero(),
        Gate::Relu | Gate::Identity => dgate,
    };
    both().map(|pair| of_score(pair) / A::from_f32(temperature)).collect()
}

/// The gradients for queries `q` `[T, H · d]` that are not normalised yet, and experts `ids`, `gates` and `dgates` `[T, H, k]`, adding up in `A` in the order of tokens.
///
/// # Errors
///
/// [`Error::Shape`] if the lengths do not fit together, [`Error::Argument`] if an id is no expert's.
pub fn product_key_topk_backward<A, T>(
    q: &[A],
    keys: &ProductKeys<'_, T>,
    ids: &[u32],
    [gates, dgates]: [&[f32]; 2],
) -> Result<ProductKeyGradients<A>>
where
    A: Accumulator,
    T: Operand,
{
    keys.check_keys()?;
    let (groups, n, half) = keys.keys_1.dim();
    let (width, heads, k) = (2 * half, keys.heads, keys.k);
    let of_token = heads.saturating_mul(width);
    if of_token == 0 || !q.len().is_multiple_of(of_token) {
        let expected = format!("whole tokens of {heads} queries of {width}");
        return Err(Error::Shape { operation: OPERATION, operand: "q", expected, actual: vec![q.len()] });
    }
    let rows = q.len() / width;
    for (operand, actual) in [("ids", ids.len()), ("gates", gates.len()), ("dgates", dgates.len())] {
        if actual != rows * k {
            let expected = format!("[{}], {k} for each query", rows * k);
            return Err(Error::Shape { operation: OPERATION, operand, expected, actual: vec![actual] });
        }
    }
    if let Some(id) = ids.iter().find(|id| **id as usize >= n * n) {
        return Err(Error::Argument {
            operation: OPERATION,
            argument: "an id",
            expected: format!("less than {}, the number of experts", n * n),
            actual: id.to_string(),
        });
    }
    let widened = Widened::<A>::new(keys);
    let all: Vec<Row<A>> = (0..rows)
        .into_par_iter()
        .map(|row| {
            let own = row * k..(row + 1) * k;
            let wide = |values: &[f32]| values[own.clone()].iter().map(|&value| A::from_f32(value)).collect();
            let (gates, dgates): (Vec<A>, Vec<A>) = (wide(gates), wide(dgates));
            let dscores = score_gradients(keys.gate, keys.temperature, &gates, &dgates);
            let head = row % heads;
            let mut dquery = vec![A::zero(); width];
            for (&id, &dscore) in ids[own.clone()].iter().zip(&dscores) {
                let of_id = [id as usize / n, id as usize % n];
                for (which, key) in of_id.into_iter().enumerate() {
                    let key = &widened.of_head(which, head)[key * half..][..half];
                    for (sum, &number) in dquery[which * half..].iter_mut().zip(key) {
                        *sum += dscore * number;
                    }
                }
            }
            let raw = &q[row * width..][..width];
            let (mut hat, mut query) = (raw.to_vec(), raw.to_vec());
            normalise(&mut hat, head, keys.norm, [None, None]);
            normalise(&mut query, head, keys.norm, [keys.weight, keys.shift]);
            let dhat = dquery.iter().enumerate().map(|(feature, &value)| match keys.weight {
                Some(weight) => value * A::from_f32(of_head(weight, width, head, feature)),
                None => value,
            });
            let dq = through_norm(raw, &hat, &dhat.collect::<Vec<A>>(), head, keys.norm);
            Row { dq, query, hat, dquery, dscores }
        })
        .collect();
    let mut dkeys: [Vec<A>; 2] = Default::default();
    for (which, sums) in dkeys.iter_mut().enumerate() {
        // The uses of each sub-key, in order.
        let mut uses = vec![Vec::new(); groups * n];
        for (at, &id) in ids.iter().enumerate() {
            let key = [id as usize / n, id as usize % n][which];
            let group = if groups == 1 { 0 } else { at / k % heads };
            uses[group * n + key].push(at);
        }
        *sums = vec![A::zero(); groups * n * half];
        if half == 0 {
            continue;
        }
        sums.par_chunks_mut(half).zip(uses).for_each(|(sums, uses)| {
            for at in uses {
                let Row { query, dscores, .. } = &all[at / k];
                for (sum, &number) in sums.iter_mut().zip(&query[which * half..]) {
                    *sum += dscores[at % k] * number;
                }
            }
        });
    }
    let of_features = |term: &dyn Fn(&Row<A>, usize) -> A| {
        let mut sums = vec![A::zero(); heads * width];
        for (row, of) in all.iter().enumerate() {
            for (feature, sum) in sums[row % heads * width..][..width].iter_mut().enumerate() {
                *sum += term(of, feature);
            }
        }
        sums
    };
    Ok(ProductKeyGradients {
        dweight: of_features(&|row, feature| row.dquery[feature] * row.hat[feature]),
        dshift: of_features(&|row, feature| row.dquery[feature]),
        dq: all.iter().flat_map(|row| row.dq.iter().copied()).collect(),
        dkeys,
    })
}

/// The gradient of a query `raw` of head `head`, from that of what a norm makes of it, `hat`.
fn through_norm<A: Accumulator>(
    raw: &[A],
    hat: &[A],
    dhat: &[A],
    head: usize,
    norm: Normalization<'_>,
) -> Vec<A> {
    let (width, d) = (raw.len(), A::from_f64(raw.len() as f64));
    let sum = |terms: &mut dyn Iterator<Item = A>| terms.fold(A::zero(), |sum, term| sum + term);
    let along = sum(&mut dhat.iter().zip(hat).map(|(&dhat, &hat)| dhat * hat));
    let squares = |mean: A| sum(&mut raw.iter().map(|&q| (q - mean) * (q - mean)));
    let all = |factor: A, mean: A, along: A| {
        dhat.iter().zip(hat).map(|(&dhat, &hat)| factor * ((dhat - mean) - hat * along)).collect()
    };
    match norm {
        Normalization::None => dhat.to_vec(),
        Normalization::Layer { epsilon } => {
            let mean = sum(&mut raw.iter().copied()) / d;
            let factor = A::one() / (squares(mean) / d + A::from_f32(epsilon)).sqrt();
            all(factor, sum(&mut dhat.iter().copied()) / d, along / d)
        }
        Normalization::Rms { epsilon } => {
            let factor = A::one() / (squares(A::zero()) / d + A::from_f32(epsilon)).sqrt();
            all(factor, A::zero(), along / d)
        }
        Normalization::L2 { epsilon } => {
            let (length, least) = (squares(A::zero()).sqrt(), A::from_f32(epsilon));
            // A length below the least is no length that is divided by.
            if length > least {
                all(A::one() / length, A::zero(), along)
            } else {
                all(A::one() / least, A::zero(), A::zero())
            }
        }
        Normalization::Batch { variance, epsilon, .. } => {
            let factor = |feature: usize| {
                let variance = A::from_f32(of_head(variance, width, head, feature));
                A::one() / (variance + A::from_f32(epsilon)).sqrt()
            };
            dhat.iter().enumerate().map(|(feature, &dhat)| dhat * factor(feature)).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use ndarray::Array3;

    use super::product_key_topk_backward;
    use crate::cpu::Gate;
    use crate::cpu::product_key::{Normalization, ProductKeys, Widened, find};
    use crate::error::Error;

    /// Numbers below 1 that look drawn.
    fn numbers(count: usize, seed: u64) -> Vec<f64> {
        let number = |at: usize| ((at as u64 * 7919 + seed * 104_729 + 1) * 48_271 % 65_537) as f64;
        (0..count).map(|at| number(at) / 32_768.5 - 1.0).collect()
    }

    fn features(count: usize, seed: u64, offset: f64) -> Vec<f32> {
        numbers(count, seed).into_iter().map(|number| (0.4 * number + offset) as f32).collect()
    }

    const HEADS: usize = 2;
    const WIDTH: usize = 6;
    const K: usize = 3;
    /// Far enough for numbers of f32.
    const STEP: f32 = 1.0 / 256.0;

    /// The sum of gates times `dgates`, for these queries, of the experts with these ids.
    fn loss(q: &[f64], keys: &ProductKeys<'_, f32>, ids: &[u32], dgates: &[f32]) -> f64 {
        let widened = Widened::<f64>::new(keys);
        let of_row = |(row, query): (usize, &[f64])| {
            let found = find(keys, &widened, query, row % HEADS);
            let of_id = |id: u32| found.scores[0][id as usize / 5] + found.scores[1][id as usize % 5];
            // In the order of the ids, which moves with nothing.
            let scores: Vec<f64> = ids[row * K..][..K].iter().map(|&id| of_id(id)).collect();
            let gates = crate::cpu::product_key::gates(keys.gate, keys.temperature, &scores);
            gates.iter().zip(&dgates[row * K..]).map(|(gate, &dgate)| gate * f64::from(dgate)).sum::<f64>()
        };
        q.chunks(WIDTH).enumerate().map(of_row).sum()
    }

    #[test]
    fn gradients_are_those_of_finite_differences() {
        let (q, dgates) = (numbers(3 * HEADS * WIDTH, 1), features(3 * HEADS * K, 2, 0.2));
        let w = ndarray::Array2::zeros((HEADS * WIDTH, 1));
        let keys =
            |seed| Array3::from_shape_vec((HEADS, 5, 3), features(HEADS * 15, seed, 0.0)).expect("it fits");
        let (keys_1, keys_2) = (keys(3), keys(4));
        let (weight, shift) = (features(HEADS * WIDTH, 5, 1.0), features(HEADS * WIDTH, 6, 0.0));
        let (mean, variance) = (features(WIDTH, 7, 0.0), features(WIDTH, 8, 1.0));
        let norms = [
            Normalization::None,
            Normalization::Layer { epsilon: 1e-3 },
            Normalization::Rms { epsilon: 1e-3 },
            Normalization::L2 { epsilon: 1e-3 },
            Normalization::L2 { epsilon: 10.0 },
            Normalization::Batch { mean: &mean, variance: &variance, epsilon: 1e-3 },
        ];
        for (norm, gate) in norms.into_iter().flat_map(|norm| Gate::ALL.map(|gate| (norm, gate))) {
            let keys = ProductKeys {
                w: w.view(),
                bias: None,
                keys_1: keys_1.view(),
                keys_2: keys_2.view(),
                heads: HEADS,
                k: K,
                norm,
                weight: Some(&weight),
                shift: Some(&shift),
                gate,
                temperature: 0.7,
            };
            let widened = Widened::<f64>::new(&keys);
            let rows = q.chunks(WIDTH).enumerate().map(|(row, q)| find(&keys, &widened, q, row % HEADS));
            let rows: Vec<_> = rows.collect();
            let ids: Vec<u32> = rows.iter().flat_map(|found| found.ids.iter().copied()).collect();
            let gates: Vec<f32> =
                rows.iter().flat_map(|found| found.gates.iter().map(|&g| g as f32)).collect();
            let gradients = product_key_topk_backward::<f64, f32>(&q, &keys, &ids, [&gates, &dgates]);
            let gradients = gradients.expect("it fits");
            let check = |what: &str, got: f64, step: f32, loss: &dyn Fn(f32) -> f64| {
                let expected = (loss(step) - loss(-step)) / (2.0 * f64::from(step));
                let bound = 1e-3 * (1.0 + expected.abs());
                assert!((got - expected).abs() < bound, "{norm:?} {gate}, {what}: {got} {expected}");
            };
            for at in 0..q.len() {
                check("dq", gradients.dq[at], 1e-4, &|by| {
                    let mut q = q.clone();
                    q[at] += f64::from(by);
                    loss(&q, &keys, &ids, &dgates)
                });
            }
            for at in 0..keys_1.len() {
                let moved = |of: &Array3<f32>, by: f32| {
                    let mut moved = of.clone();
                    moved.as_slice_mut().expect("no gaps")[at] += by;
                    moved
                };
                check("dkeys_1", gradients.dkeys[0][at], STEP, &|by| {
                    let keys_1 = moved(&keys_1, by);
                    loss(&q, &ProductKeys { keys_1: keys_1.view(), ..keys.clone() }, &ids, &dgates)
                });
                check("dkeys_2", gradients.dkeys[1][at], STEP, &|by| {
                    let keys_2 = moved(&keys_2, by);
                    loss(&q, &ProductKeys { keys_2: keys_2.view(), ..keys.clone() }, &ids, &dgates)
                });
            }
            for at in 0..weight.len() {
                let moved = |of: &[f32], by: f32| {
                    let mut moved = of.to_vec();
                    moved[at] += by;
                    moved
                };
                check("dweight", gradients.dweight[at], STEP, &|by| {
                    let weight = moved(&weight, by);
                    loss(&q, &ProductKeys { weight: Some(&weight), ..keys.clone() }, &ids, &dgates)
                });
                check("dshift", gradients.dshift[at], STEP, &|by| {
                    let shift = moved(&shift, by);
                    loss(&q, &ProductKeys { shift: Some(&shift), ..keys.clone() }, &ids, &dgates)
                });
            }
        }
    }

    #[test]
    fn an_id_of_no_expert_and_lengths_that_do_not_fit_are_errors() {
        let (w, keys) = (ndarray::Array2::<f32>::zeros((2, 1)), Array3::<f32>::zeros((1, 2, 1)));
        let keys = ProductKeys {
            w: w.view(),
            bias: None,
            keys_1: keys.view(),
            keys_2: keys.view(),
            heads: 1,
            k: 1,
            norm: Normalization::None,
            weight: None,
            shift: None,
            gate: Gate::Softmax,
            temperature: 1.0,
        };
        let run = |ids: &[u32], gates: &[f32]| {
            product_key_topk_backward::<f32, f32>(&[1.0, 2.0], &keys, ids, [gates, &[1.0]])
        };
        assert!(run(&[3], &[1.0]).is_ok());
        assert!(matches!(run(&[4], &[1.0]), Err(Error::Argument { argument: "an id", .. })));
        assert!(matches!(run(&[], &[1.0]), Err(Error::Shape { operand: "ids", .. })));
        assert!(matches!(run(&[0], &[]), Err(Error::Shape { operand: "gates", .. })));
        let run = |q: &[f32], keys: &ProductKeys<'_, f32>| {
            product_key_topk_backward::<f32, f32>(q, keys, &[0], [&[1.0], &[1.0]]).map(|_| ())
        };
        assert!(run(&[1.0, 2.0], &keys).is_ok());
        assert!(matches!(run(&[1.0, 2.0, 3.0], &keys), Err(Error::Shape { operand: "q", .. })));
        let other = Array3::<f32>::zeros((1, 1, 1));
        for wrong in [
            ProductKeys { heads: 0, ..keys.clone() },
            ProductKeys { keys_2: other.view(), ..keys.clone() },
            ProductKeys { weight: Some(&[1.0; 3]), ..keys.clone() },
            ProductKeys { k: 3, ..keys.clone() },
        ] {
            assert!(run(&[1.0, 2.0], &wrong).is_err());
        }
    }
}
