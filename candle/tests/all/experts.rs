//! Product-key retrieval and expert MLPs.

use candle_core::{DType, Result, Tensor};
use proptest::prelude::*;
use warpsmith_candle::warpsmith::ops::peer::{ExpertFormat, Gate, QueryNorm};
use warpsmith_candle::{Activation, Experts, expert_mlp, product_key_topk};

use crate::activated as activated_of;
use crate::inputs::{Numbers, View, backward, devices, is_for, judge_gradients, sizes, types, views};
use crate::linear::{activate, gradient_of_argument};
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
        let gates = Numbers::new(seed ^ 1, &device, DType::F32).operand(&[tokens, heads, k], View::Plain)?;
        let experts = Experts::new(format(dtype), &u, is_gated.then_some(&w), &v)?;
        let y = expert_mlp(&x.tensor, &ids, &gates.tensor, &experts).activation(activation).run()?;
        assert_eq!(y.dims(), [tokens, o]);
        if tokens == 0 {
            continue;
        }
        let (all, dy) = (heads * k, numbers.tensor(&[tokens, o])?);
        let of_tokens = |table: &Tensor| -> Result<Near> {
            let ids = ids.to_device(&candle_core::Device::Cpu)?.flatten_all()?;
            let width = table.dim(1)?;
            Near::input(table)?.view(|x| x.index_select(&ids, 0)?.reshape((tokens, all, width)))
        };
        // Sums of so many products, in whatever order: a rounding for each at most.
        let dot = |table: &Tensor, rows: &Near| -> Result<Near> {
            of_tokens(table)?.mul(&rows.view(|x| x.unsqueeze(1))?)?.sum_last()
        };
        let z = dot(&u, &x.near()?)?;
        let activated = activate(&z, activation)?;
        let other = if is_gated { Some(dot(&w, &x.near()?)?) } else { None };
        let times_other = |near: &Near| other.as_ref().map_or(Ok(near.clone()), |other| near.mul(other));
        let unit = times_other(&activated)?;
        let gate = gates.near()?.view(|x| x.reshape((tokens, all, 1)))?;
        let gated = unit.mul(&gate)?;
        gated.mul(&of_tokens(&v)?)?.sum(1)?.view(|x| x.reshape((tokens, o)))?.judge("y", &y)?;

        let t = dot(&v, &Near::input(&dy)?)?;
        let of_t = gate.mul(&t)?;
        let of_u = gradient_of_argument(&times_other(&of_t)?, &z, activation, DType::F32)?;
        let mut dx = of_u.mul(&of_tokens(&u)?)?.sum(1)?;
        if is_gated {
            dx = dx.add(&of_t.mul(&activated)?.mul(&of_tokens(&w)?)?.sum(1)?)?;
        }
        let dx = dx.view(|x| x.reshape((tokens, d)))?;
        let dgates = unit.mul(&t)?.view(|x| x.reshape((tokens, heads, k)))?;

        let (xv, gv) = (x.wide()?, gates.wide()?);
        let product = |table: &Tensor| -> Result<Tensor> {
            of_tokens(table)?.exact.broadcast_mul(&xv.unsqueeze(1)?)?.sum_keepdim(2)
        };
        let mut wide = activated_of(&product(&u)?, activation)?;
        if is_gated {
            wide = (wide * product(&w)?)?;
        }
        let wide = wide.broadcast_mul(&gv.reshape((tokens, all, 1))?)?;
        let wide = wide.broadcast_mul(&of_tokens(&v)?.exact)?.sum(1)?;
        let of_candle = backward(&wide, &Near::input(&dy)?.exact)?;
        let operands = [("dx", &x, &xv, dx), ("dgates", &gates, &gv, dgates)];
        judge_gradients(&backward(&y, &dy)?, &of_candle, &operands)?;
    }
    Ok(())
}

/// What a layer behind the experts hands back need not be without gaps.
#[test]
fn gradients_of_a_transposed_output_are_those_of_a_copy() -> Result<()> {
    let device = candle_core::Device::Cpu;
    let mut numbers = Numbers::new(3, &device, DType::F32);
    let (u, v) = (numbers.tensor(&[5, 8])?, numbers.tensor(&[5, 4])?);
    let experts = Experts::new(ExpertFormat::F32, &u, None, &v)?;
    let x = candle_core::Var::from_tensor(&numbers.tensor(&[2, 3, 8])?)?;
    let (ids, gates) = (numbers.ids(&[2, 3, 1, 2], 5)?, numbers.tensor(&[2, 3, 1, 2])?);
    let dy = numbers.tensor(&[3, 2, 4])?;
    let y = expert_mlp(&x, &ids, &gates, &experts).run()?;
    let of_view = backward(&y.transpose(0, 1)?, &dy)?;
    let of_copy = backward(&y, &dy.transpose(0, 1)?.contiguous()?)?;
    let of_x = |of: &candle_core::backprop::GradStore| {
        of.get(&x).expect("a gradient").flatten_all()?.to_vec1::<f32>()
    };
    assert_eq!(of_x(&of_view)?, of_x(&of_copy)?);
    Ok(())
}

/// The gradients of a retrieval's gates are those of candle's own operations on the experts that were found.
#[test]
fn gradients_of_gates_are_those_of_candle() -> Result<()> {
    const N: usize = 7;
    for device in devices() {
        let mut numbers = Numbers::new(4, &device, DType::F32);
        let var = |tensor: Tensor| candle_core::Var::from_tensor(&tensor);
        let (x, w_q) = (var(numbers.tensor(&[3, 8])?)?, var(numbers.tensor(&[16, 8])?)?);
        let (keys_1, keys_2) = (var(numbers.tensor(&[N, 4])?)?, var(numbers.tensor(&[N, 4])?)?);
        let (ids, gates) = product_key_topk(&x, &w_q, &keys_1, &keys_2, 2, 3)
            .query_norm(QueryNorm::rms(1e-5))
            .temperature(0.5)
            .run()?;
        let dgates = numbers.tensor(&[3, 2, 3])?;
        let of_ours = backward(&gates, &dgates)?;

        let q = x.matmul(&w_q.t()?)?.reshape((3, 2, 8))?;
        let squares = (q.sqr()?.mean_keepdim(2)? + 1e-5)?.sqrt()?;
        let q = q.broadcast_div(&squares)?;
        let found = ids.flatten_all()?.to_vec1::<u32>()?;
        let score = |start: usize, keys: &Tensor, of: fn(u32) -> u32| {
            let places: Vec<u32> = found.iter().map(|&id| of(id)).collect();
            let places = Tensor::new(places, &device)?;
            let keys = keys.index_select(&places, 0)?.reshape((3, 2, 3, 4))?;
            keys.broadcast_mul(&q.narrow(2, start, 4)?.unsqueeze(2)?)?.sum(3)
        };
        let scores = (score(0, &keys_1, |id| id / N as u32)? + score(4, &keys_2, |id| id % N as u32)?)?;
        let exponentials = (scores * 2.0)?.exp()?;
        let of_candle = exponentials.broadcast_div(&exponentials.sum_keepdim(2)?)?;
        let of_candle = backward(&of_candle, &dgates)?;
        for of in [&x, &w_q, &keys_1, &keys_2] {
            let numbers = |store: &candle_core::backprop::GradStore| {
                store.get(of).expect("a gradient").flatten_all()?.to_vec1::<f32>()
            };
            let (ours, candle) = (numbers(&of_ours)?, numbers(&of_candle)?);
            let largest = candle.iter().fold(0.0f32, |largest, number| largest.max(number.abs()));
            assert!(largest > 0.0);
            for (ours, candle) in ours.into_iter().zip(candle) {
                // Both are sums of some tens of terms in f32.
                assert!((ours - candle).abs() <= 256.0 * f32::EPSILON * largest, "{ours} {candle}");
            }
        }
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
