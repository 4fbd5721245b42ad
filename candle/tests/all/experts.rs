//! Product-key retrieval and expert MLPs.

use candle_core::{DType, Result, Tensor};
use proptest::prelude::*;
use warpsmith_candle::warpsmith::ops::peer::{ExpertFormat, Gate, QueryNorm};
use warpsmith_candle::{Activation, Error, Experts, expert_mlp, product_key_topk};

use crate::inputs::{Numbers, View, backward, devices, is_for, sizes, types, views};
use crate::linear::activate;
use crate::near::Near;

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..Default::default() })]

    #[test]
    fn expert_mlps_are_within_their_bounds(
        tokens in sizes(),
        (d, o) in (prop_oneof![Just(8usize), Just(24), Just(64)], prop_oneof![Just(8usize), Just(40)]),
        [heads, k] in [1usize..3, 1usize..4],
        is_gated in any::<bool>(),
        dtype in types(),
        view in views(),
        activation in 0usize..5,
        seed in any::<u64>(),
    ) {
        check_experts([tokens, d, o, heads, k], is_gated, dtype, view, Activation::ALL[activation], seed).unwrap();
    }

    #[test]
    fn the_best_experts_of_exact_scores_are_found(tokens in sizes(), k in 1usize..5, dtype in types(), seed in any::<u64>()) {
        check_retrieval(tokens, k, dtype, seed).unwrap();
    }
}

fn format(dtype: DType) -> ExpertFormat {
    match dtype {
        DType::F16 => ExpertFormat::F16,
        DType::BF16 => ExpertFormat::Bf16,
        _ => ExpertFormat::F32,
    }
}

fn check_experts(
    [tokens, d, o, heads, k]: [usize; 5],
    is_gated: bool,
    dtype: DType,
    view: View,
    activation: Activation,
    seed: u64,
) -> Result<()> {
    const EXPERTS: usize = 11;
    for device in devices() {
        if !is_for(&device, &[tokens]) {
            continue;
        }
        let mut numbers = Numbers::new(seed, &device, dtype);
        let x = numbers.operand(&[tokens, d], view)?;
        let (u, w, v) =
            (numbers.tensor(&[EXPERTS, d])?, numbers.tensor(&[EXPERTS, d])?, numbers.tensor(&[EXPERTS, o])?);
        let ids = numbers.ids(&[tokens, heads, k], EXPERTS)?;
        let gates = Numbers::new(seed ^ 1, &device, DType::F32).tensor(&[tokens, heads, k])?;
        let experts = Experts::new(format(dtype), &u, is_gated.then_some(&w), &v)?;
        let y = expert_mlp(&x.tensor, &ids, &gates, &experts).activation(activation).run()?;
        assert_eq!(y.dims(), [tokens, o]);
        if tokens == 0 {
            continue;
        }
        let of_tokens = |table: &Tensor| -> Result<Near> {
            let ids = ids.to_device(&candle_core::Device::Cpu)?.flatten_all()?;
            let width = table.dim(1)?;
            Near::input(table)?.view(|x| x.index_select(&ids, 0)?.reshape((tokens, heads * k, width)))
        };
        let column = x.near()?.view(|x| x.reshape((tokens, d, 1)))?;
        // Sums of d products, in whatever order: a rounding for each at most.
        let dot = |table: &Tensor| -> Result<Near> {
            let products = of_tokens(table)?.mul(&column.view(|x| x.transpose(1, 2))?)?;
            products.sum_last()
        };
        let mut unit = activate(&dot(&u)?, activation)?;
        if is_gated {
            unit = unit.mul(&dot(&w)?)?;
        }
        let gated = unit.mul(&Near::input(&gates)?.view(|x| x.reshape((tokens, heads * k, 1)))?)?;
        gated.mul(&of_tokens(&v)?)?.sum(1)?.view(|x| x.reshape((tokens, o)))?.judge("y", &y)?;

        // There is no backward pass, and that is said.
        let error = backward(&y, &y.detach()).unwrap_err();
        assert!(
            matches!(Error::find(&error), Some(Error::NoGradient { operation: "expert_mlp", .. })),
            "{error}"
        );
    }
    Ok(())
}

/// Scores of whole numbers are exact: the best sums of two sub-keys' scores, whatever the order of sums.
fn check_retrieval(tokens: usize, k: usize, dtype: DType, seed: u64) -> Result<()> {
    const N: usize = 7;
    for device in devices() {
        if !is_for(&device, &[tokens]) {
            continue;
        }
        let mut numbers = Numbers::new(seed, &device, dtype);
        let (x, keys_1, keys_2) =
            (numbers.integers(&[tokens, 8])?, numbers.integers(&[N, 4])?, numbers.integers(&[N, 4])?);
        // The query is x itself.
        let w_q = Tensor::eye(8, DType::F32, &device)?.to_dtype(dtype)?;
        let (ids, gates) = product_key_topk(&x, &w_q, &keys_1, &keys_2, 1, k)
            .query_norm(QueryNorm::none())
            .gate(Gate::Identity)
            .run()?;
        assert_eq!((ids.dims(), ids.dtype()), (&[tokens, 1, k][..], DType::U32));
        assert_eq!(gates.dtype(), DType::F32);
        if tokens == 0 {
            continue;
        }
        let x = Near::input(&x)?.exact;
        let half = |start: usize, keys: &Tensor| {
            x.narrow(1, start, 4)?.matmul(&Near::input(keys)?.exact.t()?)?.to_vec2::<f64>()
        };
        let scores = std::iter::zip(half(0, &keys_1)?, half(4, &keys_2)?);
        let gates = gates.reshape((tokens, k))?.to_vec2::<f32>()?;
        let ids = ids.reshape((tokens, k))?.to_vec2::<u32>()?;
        for ((first, second), (gates, ids)) in scores.zip(std::iter::zip(gates, ids)) {
            let score = |id: usize| first[id / N] + second[id % N];
            let mut all: Vec<f64> = (0..N * N).map(score).collect();
            all.sort_by(|a, b| b.total_cmp(a));
            assert_eq!(gates.iter().map(|&gate| f64::from(gate)).collect::<Vec<_>>(), all[..k]);
            assert!(ids.iter().zip(&gates).all(|(&id, &gate)| score(id as usize) == f64::from(gate)));
        }
    }
    Ok(())
}
