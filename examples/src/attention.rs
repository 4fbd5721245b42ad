//! A small attention: a warp for each query, the softmax computed on the way ("online"), so that no scores are stored. Warps
//! share the queries out.

use warpsmith_dsl::prelude::*;

/// Elements of a head.
pub const HEAD: usize = 64;
const OF_LANE: usize = HEAD / 32;

/// `y[q] = softmax(scale · x[q] Kᵀ) V`, by any number of blocks of one warp. With `causal`, query q sees the keys up to q.
#[kernel(block = [32, 1, 1])]
pub fn attention(
    q: GlobalMatrix<f32>,
    k: GlobalMatrix<f32>,
    v: GlobalMatrix<f32>,
    y: GlobalMatrixMut<f32>,
    scale: f32,
    causal: u32,
) {
    let lane = warp::lane_id() as usize;
    for query in block::indices(q.rows()) {
        let own: [f32; OF_LANE] = core::array::from_fn(|i| q.at(query, lane + 32 * i));
        let (mut most, mut sum, mut result) = (f32::NEG_INFINITY, 0.0, [0.0; OF_LANE]);
        let keys = if causal != 0 && query + 1 < k.rows() { query + 1 } else { k.rows() };
        for key in 0..keys {
            let mut product = 0.0;
            for (i, own) in own.iter().enumerate() {
                product += own * k.at(key, lane + 32 * i);
            }
            // SAFETY: all lanes of the warp are here.
            let score = scale * unsafe { warp::sum(product) };
            // What was added so far was relative to the largest score so far.
            let larger = most.max(score);
            let (kept, weight) = (math::exp(most - larger), math::exp(score - larger));
            sum = sum * kept + weight;
            for (i, result) in result.iter_mut().enumerate() {
                *result = *result * kept + weight * v.at(key, lane + 32 * i);
            }
            most = larger;
        }
        for (i, result) in result.iter().enumerate() {
            // SAFETY: the row is this warp's, the column this lane's.
            unsafe { y.write(query, lane + 32 * i, result / sum) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Bench, U, assert_within, numbers};

    const KERNELS: warpsmith::KernelFile = warpsmith::include_kernels!("attention");

    #[test]
    fn results_are_within_the_bound() -> warpsmith::Result<()> {
        let bench = Bench::new(&KERNELS)?;
        let kernel = bench.module.kernel::<attention>()?;
        let scale = 1.0 / (HEAD as f32).sqrt();
        for (queries, keys, causal, grid) in
            [(1, 1, 0, [1, 1, 1]), (3, 17, 0, [3, 1, 1]), (13, 13, 1, [2, 2, 2]), (5, 101, 0, [1, 4, 3])]
        {
            let [q, k, v] = [queries, keys, keys].map(|rows| numbers(10 + rows as u64, rows * HEAD));
            let mut y = bench.zeros::<f32>([queries, HEAD])?;
            let tensor = |x: &[f32]| bench.tensor(x, [x.len() / HEAD, HEAD]);
            let args = (&tensor(&q)?, &tensor(&k)?, &tensor(&v)?, &mut y, scale, causal);
            kernel.run(&bench.stream(), grid, args)?;
            let y = y.to_vec()?;
            for query in 0..queries {
                let seen = if causal != 0 { query + 1 } else { keys };
                let products = |key: usize| (0..HEAD).map(move |i| (query * HEAD + i, key * HEAD + i));
                let scale = f64::from(scale);
                let score =
                    |key| scale * products(key).map(|(i, j)| f64::from(q[i]) * f64::from(k[j])).sum::<f64>();
                let terms =
                    |key| scale * products(key).map(|(i, j)| f64::from(q[i] * k[j]).abs()).sum::<f64>();
                let scores: Vec<f64> = (0..seen).map(score).collect();
                let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let least = scores.iter().copied().fold(f64::INFINITY, f64::min);
                let weights: Vec<f64> = scores.iter().map(|score| (score - most).exp()).collect();
                let total: f64 = weights.iter().sum();
                // A score goes through a product, at most 7 additions and the scale. A weight: twice that error, the
                // exponential's 8 u and the rounding of its argument; then for each further key a factor of 8 u, a product
                // and an addition, and the roundings of the arguments, which add up to no more than the range of the scores.
                let of_score = 10.0 * (0..seen).map(terms).fold(0.0, f64::max);
                let relative = 2.0 * of_score + 8.0 + 11.0 * seen as f64 + 3.0 * (most - least) + 3.0;
                for column in 0..HEAD {
                    let element = |key: usize| f64::from(v[key * HEAD + column]);
                    let exact = (0..seen).map(|key| weights[key] * element(key)).sum::<f64>() / total;
                    let sizes = (0..seen).map(|key| weights[key] * element(key).abs()).sum::<f64>() / total;
                    let bound = 1.01 * 2.0 * relative * U * sizes;
                    assert_within(y[query * HEAD + column], exact, bound, (query, column));
                }
            }
        }
        Ok(())
    }
}
