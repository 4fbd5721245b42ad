//! Drawn attention layers that decode in drawn steps.

use half::{bf16, f16};
use libtest_mimic::Failed;
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use warpsmith::layers::{Attention, AttentionConfig};
use warpsmith::ops::attention::Alignment;
use warpsmith::{Device, Tensor, ops};

use super::{INPUT, Number, expect_close, linear, numbers};
use crate::drawn;

/// A layer, and steps of so many rows of which so many of each sequence count.
#[derive(Clone, Debug)]
struct Drawn {
    is_half: bool,
    is_fused: bool,
    heads: [usize; 2],
    widths: [usize; 2],
    window: [Option<u32>; 2],
    soft_cap: bool,
    slopes: bool,
    sinks: bool,
    steps: Vec<(usize, Vec<usize>)>,
    seed: usize,
}

fn drawn_layers() -> impl Strategy<Value = Drawn> {
    let width = || prop_oneof![3 => (1usize..5).prop_map(|eighths| 8 * eighths), 1 => 1usize..20];
    let reach = || prop::option::weighted(0.7, 0u32..12);
    let step = |batch: usize| {
        let rows = prop_oneof![2 => Just(1usize), 1 => 0usize..30];
        rows.prop_flat_map(move |rows| {
            let each = prop_oneof![2 => Just(rows), 1 => 0..=rows];
            (Just(rows), prop_oneof![1 => Just(vec![rows; batch]), 1 => prop::collection::vec(each, batch)])
        })
    };
    let steps = (1usize..4).prop_flat_map(move |batch| prop::collection::vec(step(batch), 1..7));
    let options = (any::<[bool; 5]>(), [reach(), reach()]);
    (options, (1usize..4, 1usize..4), width(), width(), steps, any::<u16>()).prop_map(
        |((switches, window), (key_heads, group), width, value_width, steps, seed)| {
            let [is_half, is_fused, soft_cap, slopes, sinks] = switches;
            Drawn {
                is_half,
                is_fused,
                heads: [key_heads * group, key_heads],
                widths: [width, if is_fused { width } else { value_width }],
                window,
                soft_cap,
                slopes,
                sinks,
                steps,
                seed: seed.into(),
            }
        },
    )
}

/// Each step of each sequence is what the operations give for the sequence's tokens up to there, alone.
pub(super) fn drawn_attention_layers_are_their_operations_step_by_step(
    device: &Device,
) -> Result<(), Failed> {
    fn of_type<T: Number>(device: &Device, drawn: &Drawn) -> Result<(), Failed> {
        let ([heads, key_heads], [width, value_width]) = (drawn.heads, drawn.widths);
        let (seed, [left, right], batch) = (drawn.seed, drawn.window, drawn.steps[0].1.len());
        let mut config = AttentionConfig::new(heads).key_heads(key_heads).window(left, right).scale(0.2);
        if drawn.soft_cap {
            config = config.soft_cap(2.0);
        }
        let output = linear::<T>(device, [24, heads * value_width], seed)?;
        let mut layer = if drawn.is_fused {
            let qkv = linear(device, [(heads + 2 * key_heads) * width, INPUT], seed + 2)?;
            Attention::fused(config, qkv, output)?
        } else {
            let q = linear(device, [heads * width, INPUT], seed + 2)?;
            let k = linear(device, [key_heads * width, INPUT], seed + 4)?;
            let v = linear(device, [key_heads * value_width, INPUT], seed + 6)?;
            Attention::new(config, q, k, v, output)?
        };
        let of_heads = |first: f32| (0..heads).map(move |h| first / (h + 1) as f32).collect::<Vec<_>>();
        let slopes = Tensor::from_slice(device, &of_heads(0.25), [heads])?;
        let sinks = Tensor::from_slice(device, &of_heads(1.5), [heads])?;
        if drawn.slopes {
            layer = layer.with_alibi(slopes.clone())?;
        }
        if drawn.sinks {
            layer = layer.with_sinks(sinks.clone())?;
        }
        let most: usize = drawn.steps.iter().map(|(rows, _)| rows).sum();
        let mut cache = layer.new_cache(batch, most)?;
        let mut tokens = vec![Vec::<T>::new(); batch];
        for (step, (in_order, rows)) in drawn.steps.iter().enumerate() {
            let x = numbers::<T>(device, &[batch, *in_order, INPUT], 1.0, seed + 10 + step)?;
            let y = layer.operation(&x).cache(&mut cache).rows(&rows[..]).run()?;
            for (b, (tokens, &rows)) in tokens.iter_mut().zip(rows).enumerate() {
                tokens.extend(x.slice(0, b..b + 1)?.slice(1, 0..rows)?.to_vec()?);
                let keys = tokens.len() / INPUT;
                assert_eq!(cache.lengths()?[b], keys);
                let x = Tensor::from_slice(device, tokens, [1, keys, INPUT])?;
                let projected = layer.projections();
                let [q, k, v] = if let [q, k, v] = projected {
                    [q, k, v].map(|linear| linear.forward(&x))
                } else {
                    let whole = projected[0].forward(&x)?;
                    let ends = [0, heads, heads + key_heads, heads + 2 * key_heads].map(|end| end * width);
                    [0, 1, 2].map(|part| whole.slice(2, ends[part]..ends[part + 1])?.contiguous())
                };
                let q = q?.reshape([1, keys, heads, width])?.slice(1, keys - rows..keys)?;
                let k = k?.reshape([1, keys, key_heads, width])?;
                let v = v?.reshape([1, keys, key_heads, value_width])?;
                let attended = ops::attention(&q, &k, &v)
                    .window(left, right, Alignment::BottomRight)
                    .scale(0.2)
                    .soft_cap(drawn.soft_cap.then_some(2.0))
                    .alibi(drawn.slopes.then_some(&slopes))
                    .sinks(drawn.sinks.then_some(&sinks))
                    .run()?;
                let expected =
                    layer.output().forward(&attended.reshape([1, rows, heads * value_width])?)?;
                let got = y.slice(0, b..b + 1)?.slice(1, 0..rows)?;
                expect_close(&got, &expected, &format!("step {step}, sequence {b}"))?;
            }
        }
        Ok(())
    }
    Ok(drawn::runner(device, [15, 60])?.run(&drawn_layers(), |drawn| {
        let done = match drawn.is_half {
            true => of_type::<f16>(device, &drawn),
            false => of_type::<bf16>(device, &drawn),
        };
        done.map_err(|error| TestCaseError::fail(format!("{error:?}")))
    })?)
}
